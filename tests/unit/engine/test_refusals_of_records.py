"""What the records of a bundle refuse, and extreme values that they accept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.bundle import record
from smelt.bundle.container import ALIGN, _sections
from smelt.device.entry import Entry
from smelt.dim import symbol
from smelt.shape import Shape

F, G, N = Shape("f32", 2), Shape("f32", 3), Shape.of(Shape("f32").dtype, (symbol("N"),))
GOOD = Entry("main", (F, N), (F, G), ("N",), ("x", "y"), (), (), (0,), ((0, 0),))


def changed(**fields: Any) -> dict[str, Any]:
    return {**record.entry_record(GOOD), **fields}


def test_an_entry_comes_back() -> None:
    assert record.entry_of(record.entry_record(GOOD)) == GOOD
    old = record.entry_record(GOOD)
    del old["donated"], old["reused"]
    assert record.entry_of(old).donated == ()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"names": ["x"]}, "the entry main is inconsistent"),
        ({"symbols": ["N", "M"]}, "the entry main is inconsistent"),
        ({"donated": [2], "reused": []}, "the entry main reuses an argument that is not donated"),
        ({"reused": [[0, 1]]}, "the entry main reuses an argument that is not donated"),
        ({"reused": [[2, 0]]}, "the entry main reuses an argument that is not donated"),
        ({"reused": [[1, 0]]}, "the entry main reuses an argument that is not donated"),
        ({"reused": [[0, 0], [0, 0]]}, "the entry main reuses an argument twice"),
        ({"name": 3}, "text expected, not 3"),
        ({"names": ["x", None]}, "text expected, not None"),
        ({"donated": [-1]}, "a number of at least 0 expected, not -1"),
        ({"donated": [True]}, "a number of at least 0 expected, not True"),
        ({"donated": [0.0]}, "a number of at least 0 expected, not 0.0"),
        ({"donated": [1 << 62]}, "a number of at least 0 expected"),
    ],
)
def test_entries(fields: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as caught:
        record.entry_of(changed(**fields))
    assert str(caught.value).startswith(message)


def test_numbers_and_values() -> None:
    assert record.numbers([0, (1 << 62) - 1]) == (0, (1 << 62) - 1)
    for array in (np.arange(6, dtype=np.int16).reshape(2, 3).T, np.zeros((0, 2), np.float32), np.array(True)):
        again = record.value_of(record.value_record(array))
        np.testing.assert_array_equal(again, array)
        assert again.dtype == array.dtype
        assert again.shape == array.shape


@pytest.mark.parametrize(
    ("sections", "length", "message"),
    [
        ([[0, 4, 5]], 8, "a section is an offset, a length and a digest"),
        ([[0, -1, ""]], 8, "a section is an offset, a length and a digest"),
        ([[True, 1, ""]], 8, "a section is an offset, a length and a digest"),
        ([[0, 9, ""]], 8, "sections overlap, or are outside the file"),
        ([[1, 1, ""]], 8, "sections overlap, or are outside the file"),
        ([[-ALIGN, 1, ""]], 8, "sections overlap, or are outside the file"),
        ([[0, ALIGN + 1, ""], [ALIGN, 1, ""]], 3 * ALIGN, "sections overlap, or are outside the file"),
    ],
)
def test_sections(sections: list[list[Any]], length: int, message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        _sections(sections, length)


def test_sections_that_touch() -> None:
    given = [[0, ALIGN, "a"], [ALIGN, 0, "b"], [ALIGN, 8, "c"]]
    assert _sections(given, ALIGN + 8) == ((0, ALIGN, "a"), (ALIGN, 0, "b"), (ALIGN, 8, "c"))
