"""Limits of what a GGUF file may say are inclusive: what reaches one is read, one more is refused."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from smelt.errors import ParseError
from smelt.read import gguf
from tests.hostile.test_gguf import F32, build, info, pair, text, write

U32, ARRAY, STRING = 4, 9, 8  # types of values


def alignment(bits: int) -> bytes:
    return build([pair("general.alignment", U32, struct.pack("<I", 1 << bits))])


def key(length: int) -> bytes:
    return build([pair("k" * length, U32, struct.pack("<I", 7))])


def nested(depth: int) -> bytes:
    """Arrays within arrays, the innermost of one string."""
    value = struct.pack("<IQ", STRING, 1) + text("x")
    for _ in range(depth):
        value = struct.pack("<IQ", ARRAY, 1) + value
    return build([pair("a", ARRAY, value)])


def axes(rank: int) -> bytes:
    return build([], [info("t", [1] * rank, F32, 0)], b"\0" * 32)


LIMITS = {"alignment": (alignment, 20), "key": (key, 1 << 16), "axes": (axes, 8)}


@pytest.mark.parametrize(("make", "most"), LIMITS.values(), ids=LIMITS)
def test_limits(make, most: int, tmp_path: Path) -> None:
    gguf.read(write(tmp_path, make(most)))
    with pytest.raises(ParseError):
        gguf.read(write(tmp_path, make(most + 1)))


def test_arrays_within_arrays(tmp_path: Path) -> None:
    depths = []
    for depth in range(8):
        try:
            found = gguf.read(write(tmp_path, nested(depth))).metadata["a"]
        except ParseError:
            continue
        for _ in range(depth):
            (found,) = found
        assert found == ["x"]
        depths.append(depth)
    assert depths == list(range(4)), "four arrays, one in another"
