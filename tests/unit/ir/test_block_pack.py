"""Records of packed blocks: what is packed is read back, whole and column by column; GGML's numbers of the formats."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.ir.block_layout import Layout, unpack
from smelt.ir.block_pack import pack, take_columns
from smelt.ir.blocks import TABLE, Block, decode
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape

# ggml.h: enum ggml_type, and the sizes of its structures; at the end ours.
NUMBERS_OF = {
    "q4_0": (2, 32, 18), "q4_1": (3, 32, 20), "q5_0": (6, 32, 22), "q5_1": (7, 32, 24), "q8_0": (8, 32, 34),
    "q2_k": (10, 256, 84), "q3_k": (11, 256, 110), "q4_k": (12, 256, 144), "q5_k": (13, 256, 176),
    "q6_k": (14, 256, 210), "iq4_nl": (20, 32, 18), "iq4_xs": (23, 256, 136), "mxfp4": (39, 32, 17),
    "u4_128": (None, 128, 67),
}  # fmt: skip
ROWS = [pytest.param(row, id=row.name) for row in TABLE]


@pytest.mark.parametrize("row", ROWS)
def test_numbers_of_every_format(row: Block) -> None:
    assert (row.kind, row.length, row.bytes) == NUMBERS_OF[row.name]


def blocks(row: Block, *lead: int) -> Array:
    """Random bytes with scales and minimums that are small finite numbers."""
    data = np.random.default_rng(len(row.name) + (row.kind or 0)).integers(0, 256, (*lead, row.bytes), np.uint8)
    if row.exponent:
        data[..., row.scale] = 120 + data[..., row.scale] % 16
    else:
        data[..., row.scale + 1] = 0x2C + data[..., row.scale + 1] % 8
    if row.minimum is not None:
        data[..., row.minimum + 1] = 0x2C + data[..., row.minimum + 1] % 8
    return data


@pytest.mark.parametrize("row", ROWS)
def test_what_is_packed_is_read_back(row: Block) -> None:
    """Two groups of 19 columns, so that the second panel is filled up; columns by number."""
    layout, columns, count = Layout(row), 19, 2
    data = blocks(row, 2, columns, count)
    f = FuncBuilder("main", [Shape("ui8", *data.shape)])
    (packed,) = run(Program.of(f.func(pack(f, layout, f.args[0]))), [data])
    assert packed.shape == (2, 2, count, layout.record)
    want = decode(row, data)
    found = unpack(layout, packed)
    scale = np.repeat(found.scale, row.group if row.scales else row.length, -1)
    value = scale * found.levels
    if found.minimum is not None:
        value = value + np.repeat(found.minimum, value.shape[-1] // found.minimum.shape[-1], -1)
    np.testing.assert_allclose(value[:, :columns], want, rtol=2e-6, atol=1e-6)
    assert not found.levels[:, columns:].any() or layout.zero, "columns that are not there are zeros"
    assert np.abs(found.levels).max() <= max(layout.largest, layout.zero)

    places = np.array([[3, 0], [18, 16]], np.int32)
    g = FuncBuilder("main", [Shape("ui8", 1, *packed.shape[1:]), Shape("i32", 2, 2)])
    (taken,) = run(Program.of(g.func(take_columns(g, layout, *g.args))), [packed[:1], places])
    np.testing.assert_array_equal(taken, want[0][places])


def test_every_number_of_a_layout() -> None:
    """Bits of codes, what is subtracted, the largest code, groups, and whether two integers share a byte."""
    found = {row.name: Layout(row) for row in TABLE}
    said = {
        name: (each.bits, each.zero, each.largest, each.groups, each.nibbles, each.subtracts, each.record)
        for name, each in found.items()
    }
    assert {name: numbers for name, numbers in said.items() if name in NUMBERS} == NUMBERS
    assert [(plane.bits, plane.low, plane.at, plane.steps) for plane in found["q6_k"].planes] == [
        (4, 0, 0, 8), (2, 4, 2048, 16)
    ]  # fmt: skip


NUMBERS = {
    "q4_0": (4, 8, 15, 1, False, False, 16 * 18),
    "q4_1": (4, 0, 15, 1, False, False, 16 * 20),
    "q5_1": (5, 0, 31, 1, False, False, 16 * 24),
    "q8_0": (8, 128, 255, 1, False, False, 16 * 34),
    "q2_k": (2, 0, 3, 16, True, True, 16 * 84),
    "q4_k": (4, 0, 15, 8, False, True, 16 * (128 + 16 + 4)),
    "q6_k": (6, 32, 63, 16, False, False, 16 * 210),
    "u4_128": (4, 0, 15, 4, True, True, 16 * 72),
}
