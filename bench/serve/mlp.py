"""The model of the benchmarks: an MLP 784-128-10 as an ONNX file, and one request for it in both encodings."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np

from smelt.client.wire import HEADER, encode_request

NAME, SLOW = "mlp", "slow"
WIDTH, DEPTH = 2048, 6  # of the slow one


def weights() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(0)
    sizes = (784, 128, 10)
    found = {}
    for i, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        found[f"w{i}"] = (draw.standard_normal((rows, columns)) / rows**0.5).astype(np.float32)
        found[f"b{i}"] = draw.standard_normal(columns).astype(np.float32)
    return found


def write_onnx(path: Path) -> Path:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes = [
        helper.make_node("Gemm", ["x", "w0", "b0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w1", "b1"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=-1),
    ]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["b", n]) for name, n in (("x", 784), ("y", 10))]
    held = [numpy_helper.from_array(array, name) for name, array in weights().items()]
    graph = helper.make_graph(nodes, NAME, ports[:1], ports[1:], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def write_slow(path: Path) -> Path:
    """A model whose calls take milliseconds, for more requests than it can answer."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    held = (np.random.default_rng(0).standard_normal((WIDTH, WIDTH)) / WIDTH**0.5).astype(np.float32)
    names = ["x", *(f"h{i}" for i in range(1, DEPTH)), "y"]
    nodes = [helper.make_node("MatMul", [a, f"w{i}"], [b]) for i, (a, b) in enumerate(itertools.pairwise(names))]
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    weights = [numpy_helper.from_array(held + i, f"w{i}") for i in range(DEPTH)]
    graph = helper.make_graph(nodes, SLOW, ports[:1], ports[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def slow_request() -> tuple[bytes, dict[str, str]]:
    body, length = encode_request({"x": np.ones((1, WIDTH), np.float32)})
    return body, {"Content-Type": "application/octet-stream", HEADER: str(length)}


def sample() -> np.ndarray:
    return np.random.default_rng(1).random((1, 784), np.float32)


def json_request() -> tuple[bytes, dict[str, str]]:
    tensor = {"name": "x", "shape": [1, 784], "datatype": "FP32", "data": sample().reshape(-1).tolist()}
    return json.dumps({"inputs": [tensor]}).encode(), {"Content-Type": "application/json"}


def binary_request() -> tuple[bytes, dict[str, str]]:
    body, length = encode_request({"x": sample()})
    return body, {"Content-Type": "application/octet-stream", HEADER: str(length)}
