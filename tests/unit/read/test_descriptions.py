"""What errors say about a node: its inputs and attributes, long ones cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest

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
