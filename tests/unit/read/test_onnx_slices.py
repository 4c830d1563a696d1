"""Slice: every combination of starts, ends and steps on small axes, in range and out of it, as in onnxruntime.

One row differs, by the standard: an end beyond the axis is clamped to its last element where the step is negative, so
that nothing is left ("use INT_MIN when slicing backward"). onnxruntime takes INT_MAX for "to the end" there, too.
"""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import smelt  # noqa: E402  after the check for onnx
from tests.onnx_oracle import session  # noqa: E402

INT32, INT64 = (1 << 31) - 1, (1 << 63) - 1
PLACES = (0, 1, 4, 7, -1, -5, -9, INT32, -INT32 - 1, INT64, -INT64 - 1)
STEPS = (1, 2, INT64, -1, -2, -7, -INT64 - 1)

Case = tuple[int, int, int]  # start, end, step


def model(cases: list[Case], size: int | str, kind: type[Any]) -> bytes:
    """A Slice for each case, of the same vector."""
    nodes, kept, outputs = [], [], []
    for i, case in enumerate(cases):
        names = [f"{what}{i}" for what in ("start", "end", "axis", "step")]
        for name, number in zip(names, (*case[:2], 0, case[2]), strict=True):
            kept.append(onnx.numpy_helper.from_array(np.array([number], kind), name))
        nodes.append(onnx.helper.make_node("Slice", ["x", *names], [f"y{i}"]))
        outputs.append(onnx.helper.make_tensor_value_info(f"y{i}", onnx.TensorProto.FLOAT, None))
    inputs = [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])]
    graph = onnx.helper.make_graph(nodes, "slices", inputs, outputs, kept)
    opsets = [onnx.helper.make_opsetid("", 18)]
    return bytes(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString())


def fits(number: int, kind: type[Any]) -> bool:
    return bool(np.iinfo(kind).min <= number <= np.iinfo(kind).max)


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("kind", [np.int64, np.int32])
@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_slices_are_those_of_onnxruntime(size: int, kind: type[Any], is_open: bool, tmp_path: Path) -> None:
    cases = [case for case in product(PLACES, PLACES, STEPS) if all(fits(number, kind) for number in case)]
    x, path = np.arange(size, dtype=np.float32), tmp_path / "slices.onnx"
    path.write_bytes(model(cases, "n" if is_open else size, kind))
    found = smelt.load(path, engine="reference")(x)  # reading decides where slices begin and end
    wanted = session(model(cases, size, kind)).run(None, {"x": x})
    differ = []
    for i, (case, want) in enumerate(zip(cases, wanted, strict=True)):
        _, end, step = case
        if step < 0 and end >= INT32:
            assert not found[f"y{i}"].size, case
            differ.append(want.size)
        else:
            assert np.array_equal(np.asarray(found[f"y{i}"]), want), (case, found[f"y{i}"], want)
    assert any(differ) == (size > 0), "onnxruntime follows the standard now: remove the exception"
