"""ONNX models of one node, written from a line: for tables of what the reader refuses."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper, save

from smelt.dtype import dtype
from smelt.read.onnx.file.tensors import element_number

_PORT = re.compile(r"(\w+)\[([^\]]*)\]")


def one_node(
    folder: Path, op: str, inputs: list[Any], domain: str = "", version: int = 21, outputs: int = 1, **attrs: Any
) -> Path:
    """A model of `op`. An input is `"f32[2,N]"`, an array (a constant of the model), a list of text, or None."""
    ports, constants, names = [], [], []
    for i, each in enumerate(inputs):
        names.append("" if each is None else f"x{i}")
        if isinstance(each, str):
            found = _PORT.fullmatch(each)
            assert found is not None, each
            sizes = [int(size) if size.isdigit() else size for size in found[2].split(",") if size]
            number = TensorProto.STRING if found[1] == "text" else element_number(dtype(found[1]))
            ports.append(helper.make_tensor_value_info(f"x{i}", number, sizes))
        elif isinstance(each, list):
            constants.append(helper.make_tensor(f"x{i}", TensorProto.STRING, [len(each)], each))
        elif each is not None:
            constants.append(numpy_helper.from_array(np.asarray(each), f"x{i}"))
    node = helper.make_node(op, names, [f"y{i}" for i in range(outputs)], domain=domain, **attrs)
    results = [helper.make_empty_tensor_value_info(f"y{i}") for i in range(outputs)]
    graph = helper.make_graph([node], "g", ports, results, constants)
    opsets = [helper.make_opsetid("", version)] + (
        [helper.make_opsetid(domain, 3 if domain == "ai.onnx.ml" else 1)] if domain else []
    )
    path = folder / f"{op}.onnx"
    save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return path
