"""What errors say about a node: its inputs and attributes, long ones cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

import smelt
from smelt.errors import UnsupportedError
from smelt.read.onnx.graph import _describe, _short
from smelt.read.onnx.items import Tensor


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (3, "3"),
        ((1, 2), "[1, 2]"),
        ("x" * 58, repr("x" * 58)),
        ("x" * 59, repr("x" * 59)[:60] + "…"),
        (Tensor.constant(np.zeros((2, 3), np.float32)), "f32[2, 3]"),
    ],
)
def test_attributes(value: Any, text: str) -> None:
    assert _short(value) == text


def test_inputs_and_attributes() -> None:
    node = onnx.helper.make_node("Conv", ["x", "", "w"], ["y"])
    x, w = (Tensor.constant(np.zeros(sizes, np.int64)) for sizes in ((1, 2), ()))
    assert _describe(node, [x, None, w], {"group": 2}) == "x: i64[1, 2], w: i64[], group=2"
    assert _describe(node, [], {}) == "no inputs"


def test_an_output_without_a_type_of_a_model_that_compiles_at_its_first_call() -> None:
    """Its sizes are inputs, so that only the declared types say what a call gives."""
    ports = [onnx.helper.make_tensor_value_info("x", 1, ["n"]), onnx.helper.make_tensor_value_info("sizes", 7, [2])]
    node = onnx.helper.make_node("Reshape", ["x", "sizes"], ["y"])
    graph = onnx.helper.make_graph([node], "g", ports, [onnx.ValueInfoProto(name="y")])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(UnsupportedError, match="'y' has no type") as caught:
        smelt.load(model.SerializeToString())
    assert "infer_shapes" in str(caught.value)
