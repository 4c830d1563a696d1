"""Quantised ONNX files on the native engine's int8 GEMMs, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import NodeProto, TensorProto, helper, numpy_helper

import smelt
from smelt.dtype import Array
from smelt.engine.compile import lower
from smelt.model import read
from tests import onnx_oracle
from tests.packed import op_names

pytest.importorskip("onnxruntime")

BYTES = {"smelt.packed_dot ui8", "smelt.packed_conv ui8"}


def agree(
    path: Path, nodes: Sequence[NodeProto], weights: dict[str, Any], x: Array, *, result: int, bytes: bool
) -> None:
    """Integers differ by one at most where a number is halfway between two; that is rare."""
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)]
    arrays = [numpy_helper.from_array(np.asarray(each), name) for name, each in weights.items()]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", result, None)], arrays)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    (expected,) = onnx_oracle.session(path).run(None, {"x": x})
    assert bool(op_names(lower(read(path)[0])) & BYTES) == bytes
    found = smelt.load(path, engine="native").run({"x": x})["y"]
    if expected.dtype == np.float32:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
        return
    apart = np.abs(found.astype(np.int64) - expected.astype(np.int64))
    assert apart.max() <= 1
    assert apart.mean() < 5e-3


def quantised(*names: str) -> list[NodeProto]:
    """x as integers and back, and the weights as floats."""
    return [
        helper.make_node("QuantizeLinear", ["x", "xs", "xz"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "xs", "xz"], ["xd"]),
        *(helper.make_node("DequantizeLinear", [name, f"{name}s"], [f"{name}d"], axis=0) for name in names),
    ]


ROUND = helper.make_node("QuantizeLinear", ["r", "ys", "yz"], ["y"])


def numbers(random: np.random.Generator, kind: type, columns: int) -> dict[str, Any]:
    return {
        "xs": np.float32(0.02),
        "xz": kind(100),
        "ys": np.float32(0.07),
        "yz": np.uint8(7),
        "ws": (random.random(columns) * 0.01 + 0.001).astype(np.float32),
        "b": random.integers(-900, 900, columns).astype(np.int32),
        "bs": np.full(columns, 1e-4, np.float32),
    }


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_gemm(kind: type, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(6, 45)).astype(np.float32), random.integers(-127, 128, (70, 45)).astype(np.int8)
    nodes = [*quantised("w", "b"), helper.make_node("Gemm", ["xd", "wd", "bd"], ["r"], transB=1), ROUND]
    weights = {"w": w, **numbers(random, kind, 70)}
    agree(tmp_path / "m.onnx", nodes, weights, x, result=TensorProto.UINT8, bytes=True)


@pytest.mark.parametrize("zero", [None, "one", "columns"])
def test_dynamic_matmul(zero: str | None, seed: int, tmp_path: Path) -> None:
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(2, 5, 45)).astype(np.float32), random.integers(-127, 128, (45, 70)).astype(np.int8)
    points = {} if zero is None else {"wz": random.integers(-5, 5, () if zero == "one" else 70).astype(np.int8)}
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z", *points], ["n"]),
        helper.make_node("Cast", ["n"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["t"]),
        helper.make_node("Mul", ["f", "t"], ["y"]),
    ]
    scales = (random.random(70) * 0.01).astype(np.float32)
    agree(tmp_path / "m.onnx", nodes, {"w": w, "ws": scales, **points}, x, result=TensorProto.FLOAT, bytes=True)


@pytest.mark.parametrize(
    ("channels", "window", "groups", "bytes"),
    [(8, 3, 1, True), (3, 7, 1, True), (16, 1, 1, True), (16, 3, 2, True), (16, 3, 16, False)],
)
@pytest.mark.parametrize("kind", [np.uint8, np.int8])
def test_convolution(
    kind: type, channels: int, window: int, groups: int, bytes: bool, seed: int, tmp_path: Path
) -> None:
    random = np.random.default_rng(seed)
    x = random.normal(size=(2, channels, 11, 9)).astype(np.float32)
    w = random.integers(-127, 128, (16, channels // groups, window, window)).astype(np.int8)
    taps: dict[str, Any] = {"group": groups, "pads": [window // 2] * 4, "strides": [2, 1] if window == 7 else [1, 1]}
    nodes = [
        *quantised("w", "b"),
        helper.make_node("Conv", ["xd", "wd", "bd"], ["c"], **taps),
        helper.make_node("Relu", ["c"], ["r"]),
        ROUND,
    ]
    weights = {"w": w, **numbers(random, kind, 16)}
    agree(tmp_path / "m.onnx", nodes, weights, x, result=TensorProto.UINT8, bytes=bytes)
