"""Operators that look things up, along axes without elements: onnxruntime is the oracle of shapes and types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.read.peer import element, node_model, ours, theirs


def zeros(*sizes: int) -> np.ndarray[Any, Any]:
    return np.zeros(sizes, np.float32)


def places(*sizes: int) -> np.ndarray[Any, Any]:
    return np.zeros(sizes, np.int64)


CASES: dict[str, tuple[str, list[Any], dict[str, Any]]] = {
    "no rows, none wanted": ("Gather", [zeros(0, 3), places(0)], {}),
    "no columns": ("Gather", [zeros(2, 0), places(4)], {}),
    "rows of an empty table": ("Gather", [zeros(0, 3), places(2, 0)], {}),
    "no columns, none wanted": ("Gather", [zeros(2, 0), places(0)], {"axis": 1}),
    "rows, none wanted": ("Gather", [zeros(2, 3), places(0, 2)], {}),
    "along an empty axis": ("GatherElements", [zeros(0, 3), places(0, 3)], {}),
    "beside an empty axis": ("GatherElements", [zeros(2, 0), places(2, 0)], {}),
    "no element": ("GatherND", [zeros(2, 3), places(0, 2)], {}),
    "slices without elements": ("GatherND", [zeros(2, 0), places(4, 1)], {}),
    "no update": ("ScatterND", [zeros(2, 3), places(0, 1), zeros(0, 3)], {}),
    "updates without elements": ("ScatterND", [zeros(2, 0), places(1, 1), zeros(1, 0)], {}),
    "no element to write": ("ScatterElements", [zeros(2, 3), places(0, 3), zeros(0, 3)], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_looked_up_in_empty_axes(name: str, tmp_path: Path) -> None:
    op, arrays, attributes = CASES[name]
    model = node_model(op, arrays, [element(arrays[0])], attributes)
    inputs = {f"x{i}": array for i, array in enumerate(arrays)}
    (want,), (got,) = theirs(model, inputs), ours(model, inputs, tmp_path)[0]
    assert np.asarray(got).shape == want.shape
    np.testing.assert_array_equal(got, want)
