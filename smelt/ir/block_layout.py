"""How kernels hold a block-quantised matrix: panels of 16 columns, in records of one block of each column.

`Layout.of(row)` says what is where in a record; it has no format's name in it, only a class: planes of code bits, what
is subtracted from a code, a codebook, scales per block and per group. `ir.block_pack` goes from a file's bytes to
records, `ui8[group, panel, n, record]`; `unpack` goes back to numbers, on NumPy, for the reference semantics of
`smelt.packed_block_dot`.

A record holds, in this order: the planes of codes; the integers of groups that scale and minimum are multiplied
by, i8[group, column], or both in one byte where each has four bits; the scales and the minimums, f16[column] or
bf16[column]. A line of a plane is 64 bytes, byte
4 * column + step for four steps of k; a plane of b bits has 8 / b times as many steps in a line, the first ones in the
lowest bits. So a vector of 32-bit lanes has columns in its lanes, and one shift and mask give an operand of an int8
multiplication. Columns that are not there are zeros.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod

import ml_dtypes
import numpy as np

from smelt.dtype import Array
from smelt.frozen import Frozen
from smelt.ir.blocks import BLOCKS, RUN, Block, Integers

COLUMNS, STEPS = 16, 4  # columns of a panel; steps of k in a lane
WIDTHS = {2: (2,), 3: (2, 1), 4: (4,), 5: (4, 1), 6: (4, 2), 8: (8,)}  # planes, by the bits of a code
LINE = COLUMNS * STEPS
SHIFT = 128  # added to signed codes


class Plane(Frozen):
    """Bits of codes: `bits` of them from bit `low` on, in the record from `at` on."""

    bits: int
    low: int
    at: int

    @property
    def steps(self) -> int:
        """Steps of k in a line."""
        return STEPS * 8 // self.bits


@dataclass(frozen=True)
class Layout:
    """The record of a class of formats; places are offsets in it."""

    row: Block

    @staticmethod
    def of(format: str) -> Layout:
        return Layout(BLOCKS[format])

    @property
    def length(self) -> int:
        return self.row.length

    @property
    def group(self) -> int:
        return self.row.group

    @property
    def groups(self) -> int:
        """Groups of a block."""
        return self.row.length // self.row.group

    @property
    def zero(self) -> int:
        """What is subtracted from a code, or from what the codebook says."""
        signed = self.row.codebook or self.row.levels.signed
        return SHIFT if signed else self.row.levels.zero

    @property
    def is_centred(self) -> bool:
        """Whether what is subtracted from codes is nothing, or half of their range."""
        return not self.zero or bool(self.codebook) or self.zero == 1 << (self.bits - 1)

    @property
    def codebook(self) -> tuple[int, ...]:
        """What codes stand for, made positive; none: themselves."""
        return tuple(each + SHIFT for each in self.row.codebook)

    @property
    def largest(self) -> int:
        """The largest code, or number in the codebook."""
        return max(self.codebook, default=(1 << self.bits) - 1)

    @property
    def bits(self) -> int:
        return max((each.mask << each.up).bit_length() for run in self.row.levels.runs for each in run)

    @property
    def nibbles(self) -> bool:
        """Whether a group's integers are one byte: that of the scale in the low bits, that of the minimum above."""
        both = (self.row.scales, self.row.minimums)
        masks = [(each.mask << each.up) for of in both if of is not None for run in of.runs for each in run]
        return None not in both and max(masks) < 16

    @property
    def subtracts(self) -> bool:
        """Whether minimums are subtracted, not added."""
        return self.row.minimums is not None

    @cached_property
    def planes(self) -> tuple[Plane, ...]:
        found: list[Plane] = []
        low = at = 0
        for bits in WIDTHS[self.bits]:
            found.append(Plane(bits, low, at))
            low, at = low + bits, at + self.length * COLUMNS * bits // 8
        return tuple(found)

    @cached_property
    def places(self) -> dict[str, int]:
        """Where the other parts are: "scales", "minimums" (integers of groups), "scale", "minimum", "end"."""
        at = self.length * COLUMNS * self.bits // 8
        found: dict[str, int] = {}
        for name, there, size in (
            ("scales", self.row.scales is not None, self.groups),
            ("minimums", self.row.minimums is not None and not self.nibbles, self.groups),
            ("scale", True, 2),
            ("minimum", self.row.minimum is not None, 2),
        ):
            if there:
                found[name] = at
                at += size * COLUMNS
        return {**found, "end": at}

    @property
    def record(self) -> int:
        """Bytes."""
        return self.places["end"]


def can_pack(row: Block) -> bool:
    """Whether records can hold a format. By weights in any other, products are computed in f32."""
    layout, per_group = Layout(row), [each for each in (row.scales, row.minimums) if each is not None]
    return (
        row.length % RUN == 0
        and row.group in (RUN // 2, RUN)
        and layout.bits in WIDTHS
        and (layout.bits == 8 or not row.levels.signed)
        and len(row.codebook) in (0, 16)
        and not (row.exponent and per_group)
        and not (row.minimum is not None and (row.exponent or layout.zero))
        and (row.minimum is None or (row.scales is None) == (row.minimums is None))
        and all(each.count == layout.groups and _fits_i8(each) for each in per_group)
        and not (layout.nibbles and any(each.zero for each in per_group))
    )


def _fits_i8(integers: Integers) -> bool:
    """Whether all integers do, less their zero."""
    largest = max(sum(bits.mask << bits.up for bits in run) for run in integers.runs)
    return integers.signed and not integers.zero if largest > 127 + integers.zero else integers.zero <= 128


# ---- unpacking, on NumPy ----


class Unpacked(Frozen):
    """Codes less `zero` [group, column, k], scales [group, column, k / group] and minimums, added."""

    levels: Array
    scale: Array
    minimum: Array | None


def unpack(layout: Layout, packed: Array) -> Unpacked:
    groups, panels, count, _ = packed.shape
    places = layout.places

    def per_column(name: str, sizes: tuple[int, ...], size: int) -> Array:
        part = packed[..., places[name] : places[name] + size]
        part = part.reshape(groups, panels, count, *sizes)
        return np.moveaxis(part, 4, 2)  # [group, panel, column, n, …]

    def halves(name: str) -> Array:
        raw = np.ascontiguousarray(per_column(name, (1, COLUMNS, 2), 2 * COLUMNS))
        kind = ml_dtypes.bfloat16 if layout.row.exponent else np.float16
        return raw.view(kind).astype(np.float32)[..., 0]

    def whole(name: str, many: str) -> Array | None:
        if name not in places:
            return None
        found = halves(name)
        if layout.nibbles:
            each = per_column("scales", (layout.groups, COLUMNS), layout.groups * COLUMNS)
            found = found * (each & 15 if many == "scales" else each >> 4).astype(np.float32)
        elif many in places:
            each = per_column(many, (layout.groups, COLUMNS), layout.groups * COLUMNS)
            found = found * np.ascontiguousarray(each).view(np.int8).astype(np.float32)
        return found.reshape(groups, panels * COLUMNS, prod(found.shape[3:]))

    levels = np.zeros((groups, panels, COLUMNS, count, layout.length), np.int32)
    for plane, lines in _lines(layout):
        end = plane.at + lines * LINE
        part = packed[..., plane.at : end].reshape(groups, panels, count, lines, COLUMNS, STEPS)
        shifts = np.arange(0, 8, plane.bits, dtype=np.uint8)
        bits = part[..., None, :] >> shifts[:, None] & np.uint8((1 << plane.bits) - 1)
        bits = bits.transpose(0, 1, 4, 2, 3, 5, 6).reshape(levels.shape)
        levels |= bits.astype(np.int32) << plane.low
    if layout.codebook:
        levels = np.array(layout.codebook, np.int32)[levels]
    levels = (levels - layout.zero).reshape(groups, panels * COLUMNS, count * layout.length)
    with np.errstate(all="ignore"):
        scale, minimum = whole("scale", "scales"), whole("minimum", "minimums")
    assert scale is not None
    return Unpacked(levels, scale, -minimum if minimum is not None and layout.subtracts else minimum)


def _lines(layout: Layout) -> Iterator[tuple[Plane, int]]:
    return ((plane, layout.length // plane.steps) for plane in layout.planes)
