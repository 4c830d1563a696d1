"""Block-quantised weights: how a run of elements is packed into bytes, one row per format of GGML's.

A row (`Block`) says where in a block's bytes the levels, the scales and the minimums are. From it come `decode`, on
NumPy arrays, and `decomposition`, the same arithmetic as StableHLO ops: the body of the composite `smelt.unblock`,
`ui8[..., n, bytes] → f32[..., n * length]`, that every engine can run. `smelt.read.gguf` and `smelt.llm` use both.

An element is `scale * level` or `scale * level ± minimum`. A format with sub-blocks multiplies the scale, and the
minimum, by small integers, one per sub-block.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from smelt.dtype import Array, f16, f32, i8, ui8, ui32
from smelt.ir.attributes import GatherDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Value
from smelt.shape import Shape

X = TypeVar("X")


@dataclass(frozen=True, slots=True)
class Bits:
    """Integers cut out of bytes: `groups` runs of `width` bytes; each run is read once per shift, shift by shift."""

    at: int
    groups: int
    width: int
    shifts: tuple[int, ...]
    mask: int
    up: int = 0  # where the bits stand in the integer

    @property
    def count(self) -> int:
        return self.groups * len(self.shifts) * self.width


Run = tuple[Bits, ...]  # parts of the same integers


@dataclass(frozen=True, slots=True)
class Integers:
    """Runs one after the other; `zero` is subtracted. `signed`: bytes are i8."""

    runs: tuple[Run, ...]
    zero: int = 0
    signed: bool = False


@dataclass(frozen=True, slots=True)
class Block:
    """A format: `length` elements in `bytes` bytes. `scale` and `minimum` are the offsets of these numbers."""

    name: str
    kind: int  # GGML's number of the type
    length: int
    bytes: int
    levels: Integers
    scale: int  # an f16, or one byte where `exponent`
    exponent: bool = False  # the scale is 2 ** (byte - 128)
    codebook: tuple[int, ...] = ()  # what levels stand for
    scales: Integers | None = None  # per sub-block
    minimum: int | None = None
    minimums: Integers | None = None  # per sub-block; then the minimum is subtracted, else added


def _bytes(at: int, count: int, shifts: tuple[int, ...], mask: int, up: int = 0, groups: int = 1) -> Bits:
    return Bits(at, groups, count // groups, shifts, mask, up)


def _nibbles(at: int, count: int, groups: int = 1) -> Bits:
    """Low nibbles of a group's bytes, then their high nibbles."""
    return _bytes(at, count, (0, 4), 15, groups=groups)


def _pairs(at: int, count: int, groups: int = 1, up: int = 0) -> Bits:
    return _bytes(at, count, (0, 2, 4, 6), 3, up, groups)


def _bit(at: int, count: int, up: int, groups: int = 1) -> Bits:
    return _bytes(at, count, tuple(range(8)), 1, up, groups)


def _six_bits(low: int, at: int, shift: int) -> Integers:
    """Eight 6-bit integers of Q4_K and Q5_K: four in bytes of their own, four in nibbles and those bytes' top bits."""
    own = _bytes(low, 4, (0,), 63)
    return Integers(((own,), (_bytes(at + 8, 4, (shift,), 15), _bytes(low, 4, (6,), 3, 4))))


_IQ4_NL = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_E2M1 = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)  # doubled

TABLE = (
    Block("q4_0", 2, 32, 18, Integers(((_nibbles(2, 16),),), 8), 0),
    Block("q4_1", 3, 32, 20, Integers(((_nibbles(4, 16),),)), 0, minimum=2),
    Block("q5_0", 6, 32, 22, Integers(((_nibbles(6, 16), _bit(2, 4, 4, groups=4)),), 16), 0),
    Block("q5_1", 7, 32, 24, Integers(((_nibbles(8, 16), _bit(4, 4, 4, groups=4)),)), 0, minimum=2),
    Block("q8_0", 8, 32, 34, Integers(((_bytes(2, 32, (0,), 255),),), signed=True), 0),
    Block(
        "q2_k",
        10,
        256,
        84,
        Integers(((_pairs(16, 64, groups=2),),)),
        80,
        scales=Integers(((_bytes(0, 16, (0,), 15),),)),
        minimum=82,
        minimums=Integers(((_bytes(0, 16, (4,), 15),),)),
    ),
    Block(
        "q3_k",
        11,
        256,
        110,
        Integers(((_pairs(32, 64, groups=2), _bit(0, 32, 2)),), 4),
        108,
        scales=Integers(((_nibbles(96, 8), _pairs(104, 4, up=4)),), 32),
    ),
    Block(
        "q4_k",
        12,
        256,
        144,
        Integers(((_nibbles(16, 128, groups=4),),)),
        0,
        scales=_six_bits(4, 4, 0),
        minimum=2,
        minimums=_six_bits(8, 4, 4),
    ),
    Block(
        "q5_k",
        13,
        256,
        176,
        Integers(((_nibbles(48, 128, groups=4), _bit(16, 32, 4)),)),
        0,
        scales=_six_bits(4, 4, 0),
        minimum=2,
        minimums=_six_bits(8, 4, 4),
    ),
    Block(
        "q6_k",
        14,
        256,
        210,
        Integers(((_nibbles(0, 128, groups=2), _pairs(128, 64, groups=2, up=4)),), 32),
        208,
        scales=Integers(((_bytes(192, 16, (0,), 255),),), signed=True),
    ),
    Block("iq4_nl", 20, 32, 18, Integers(((_nibbles(2, 16),),)), 0, codebook=_IQ4_NL),
    Block("mxfp4", 39, 32, 17, Integers(((_nibbles(1, 16),),)), 0, exponent=True, codebook=_E2M1),
)
BLOCKS: dict[str, Block] = {row.name: row for row in TABLE}
BY_KIND: dict[int, Block] = {row.kind: row for row in TABLE}


# ---- the arithmetic, once ----


class _Ops(Protocol[X]):
    """What decoding needs of arrays whose last axis is a block: NumPy's, or ops of a function that is being built."""

    def cut(self, x: X, at: int, count: int) -> X: ...
    def unpack(self, x: X, bits: Bits) -> X: ...
    def combine(self, x: X, y: X) -> X: ...
    def join(self, parts: list[X]) -> X: ...
    def to_f32(self, x: X, signed: bool) -> X: ...
    def half(self, x: X) -> X: ...
    def exponent(self, x: X) -> X: ...
    def lookup(self, x: X, table: Array) -> X: ...
    def less(self, x: X, number: int) -> X: ...
    def times(self, per_group: X, x: X) -> X: ...
    def plus(self, x: X, per_group: X, subtract: bool) -> X: ...


def _decode(row: Block, blocks: X, ops: _Ops[X]) -> X:
    scale = ops.exponent(ops.cut(blocks, row.scale, 1)) if row.exponent else ops.half(ops.cut(blocks, row.scale, 2))
    if row.scales is not None:
        scale = ops.times(scale, _integers(row.scales, blocks, ops))
    if row.codebook:
        levels = ops.lookup(_run(row.levels.runs[0], blocks, ops), np.array(row.codebook, np.float32))
    else:
        levels = _integers(row.levels, blocks, ops)
    value = ops.times(scale, levels)
    if row.minimum is None:
        return value
    minimum = ops.half(ops.cut(blocks, row.minimum, 2))
    if row.minimums is not None:
        minimum = ops.times(minimum, _integers(row.minimums, blocks, ops))
    return ops.plus(value, minimum, row.minimums is not None)


def _integers(integers: Integers, blocks: X, ops: _Ops[X]) -> X:
    runs = [_run(run, blocks, ops) for run in integers.runs]
    found = ops.to_f32(runs[0] if len(runs) == 1 else ops.join(runs), integers.signed)
    return ops.less(found, integers.zero) if integers.zero else found


def _run(run: Run, blocks: X, ops: _Ops[X]) -> X:
    found = None
    for bits in run:
        part = ops.unpack(ops.cut(blocks, bits.at, bits.groups * bits.width), bits)
        found = part if found is None else ops.combine(found, part)
    assert found is not None
    return found


# ---- on NumPy ----


class _Arrays:
    def cut(self, x: Array, at: int, count: int) -> Array:
        return x[..., at : at + count]

    def unpack(self, x: Array, bits: Bits) -> Array:
        lead = x.shape[:-1]
        runs = x.reshape(*lead, bits.groups, 1, bits.width)
        shifted = (runs >> np.array(bits.shifts, np.uint8)[:, None]) & np.uint8(bits.mask)
        return (shifted << np.uint8(bits.up)).reshape(*lead, bits.count)

    def combine(self, x: Array, y: Array) -> Array:
        return x | y

    def join(self, parts: list[Array]) -> Array:
        return np.concatenate(parts, -1)

    def to_f32(self, x: Array, signed: bool) -> Array:
        return (x.view(np.int8) if signed else x).astype(np.float32)

    def half(self, x: Array) -> Array:
        return np.ascontiguousarray(x).view("<f2").astype(np.float32)

    def exponent(self, x: Array) -> Array:
        wide = x.astype(np.uint32)
        normal = np.maximum(wide, 1) - 1 << np.uint32(23)
        return np.where(wide < 2, np.uint32(1 << 21) << np.minimum(wide, 2), normal).view(np.float32)

    def lookup(self, x: Array, table: Array) -> Array:
        return table[x]

    def less(self, x: Array, number: int) -> Array:
        return x - np.float32(number)

    def times(self, per_group: Array, x: Array) -> Array:
        groups = per_group.shape[-1]
        product = per_group[..., None] * x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
        return product.reshape(x.shape)

    def plus(self, x: Array, per_group: Array, subtract: bool) -> Array:
        groups = per_group.shape[-1]
        grouped = x.reshape(*x.shape[:-1], groups, x.shape[-1] // groups)
        made = grouped - per_group[..., None] if subtract else grouped + per_group[..., None]
        return made.reshape(x.shape)


def decode(row: Block, blocks: Array) -> Array:
    """Elements from bytes: `ui8[..., n, bytes]` → `f32[..., n * length]`.

    >>> decode(BLOCKS["q8_0"], np.array([[0, 60] + [1, 255] * 16], np.uint8))[:4].tolist()
    [1.0, -1.0, 1.0, -1.0]
    """
    with np.errstate(all="ignore"):  # a scale may be infinite or not a number
        made = _decode(row, np.ascontiguousarray(blocks), _Arrays())
    return made.reshape(*blocks.shape[:-2], blocks.shape[-2] * row.length)


# ---- as StableHLO ----


class _Build:
    """The same as ops; axes before the last are kept as they are."""

    def __init__(self, builder: FuncBuilder) -> None:
        self.b = builder

    def cut(self, x: Value, at: int, count: int) -> Value:
        sizes = x.shape.numbers()
        starts = (*(0 for _ in sizes[:-1]), at)
        limits = (*sizes[:-1], at + count)
        return self.b.slice(x, start_indices=starts, limit_indices=limits, strides=(1,) * len(sizes))

    def unpack(self, x: Value, bits: Bits) -> Value:
        lead = x.shape.numbers()[:-1]
        rank = len(lead)
        runs = self._reshape(x, *lead, bits.groups, bits.width)
        sizes = (*lead, bits.groups, len(bits.shifts), bits.width)
        whole = self._spread(runs, (*range(rank + 1), rank + 2), sizes)
        shifts = self._spread(self.b.constant(np.array(bits.shifts, np.uint8)), (rank + 1,), sizes)
        found = self.b.and_(self.b.shift_right_logical(whole, shifts), self._full(bits.mask, whole))
        if bits.up:
            found = self.b.shift_left(found, self._full(bits.up, found))
        return self._reshape(found, *lead, bits.count)

    def combine(self, x: Value, y: Value) -> Value:
        return self.b.or_(x, y)

    def join(self, parts: list[Value]) -> Value:
        return self.b.concatenate(*parts, dimension=parts[0].shape.rank - 1)

    def to_f32(self, x: Value, signed: bool) -> Value:
        if signed:
            x = self.b.bitcast_convert(x, result=Shape.of(i8, x.shape.sizes))
        return self._convert(x)

    def half(self, x: Value) -> Value:
        lead = x.shape.numbers()[:-1]
        return self._convert(self._reshape(self.b.bitcast_convert(x, result=Shape.of(f16, lead)), *lead, 1))

    def exponent(self, x: Value) -> Value:
        wide = self.b.convert(x, result=Shape.of(ui32, x.shape.sizes))
        normal = self.b.subtract(self.b.maximum(wide, self._full(1, wide)), self._full(1, wide))
        normal = self.b.shift_left(normal, self._full(23, wide))
        small = self.b.shift_left(self._full(1 << 21, wide), self.b.minimum(wide, self._full(2, wide)))
        is_small = self.b.compare(wide, self._full(2, wide), comparison_direction="LT")
        bits = self.b.select(is_small, small, normal)
        return self.b.bitcast_convert(bits, result=Shape.of(f32, x.shape.sizes))

    def lookup(self, x: Value, table: Array) -> Value:
        rank = x.shape.rank
        dims = GatherDims(
            offset_dims=(),
            collapsed_slice_dims=(0,),
            operand_batching_dims=(),
            start_indices_batching_dims=(),
            start_index_map=(0,),
            index_vector_dim=rank,
        )
        return self.b.gather(self.b.constant(table), x, dimension_numbers=dims, slice_sizes=(1,))

    def less(self, x: Value, number: int) -> Value:
        return self.b.subtract(x, self._full(number, x))

    def times(self, per_group: Value, x: Value) -> Value:
        return self._grouped("multiply", x, per_group)

    def plus(self, x: Value, per_group: Value, subtract: bool) -> Value:
        return self._grouped("subtract" if subtract else "add", x, per_group)

    def _grouped(self, op: str, x: Value, per_group: Value) -> Value:
        sizes = x.shape.numbers()
        groups = per_group.shape.numbers()[-1]
        parts = (*sizes[:-1], groups, sizes[-1] // groups)
        spread = self._spread(per_group, tuple(range(len(sizes))), parts)
        return self._reshape(getattr(self.b, op)(self._reshape(x, *parts), spread), *sizes)

    def _convert(self, x: Value) -> Value:
        return self.b.convert(x, result=Shape.of(f32, x.shape.sizes))

    def _reshape(self, x: Value, *sizes: int) -> Value:
        return x if x.shape.sizes == sizes else self.b.reshape(x, result=Shape.of(x.shape.dtype, sizes))

    def _spread(self, x: Value, places: tuple[int, ...], sizes: tuple[int, ...]) -> Value:
        result = Shape.of(x.shape.dtype, sizes)
        return self.b.broadcast_in_dim(x, broadcast_dimensions=places, result=result)

    def _full(self, number: int, like: Value) -> Value:
        return self.b.full(number, like.shape)


def decomposition(row: Block, lead: tuple[int, ...], name: str = "") -> Func:
    """The function `ui8[*lead, bytes] → f32[*lead[:-1], lead[-1] * length]`, whose last leading axis counts blocks."""
    f = FuncBuilder(name or f"smelt.unblock.{row.name}", [Shape.of(ui8, (*lead, row.bytes))])
    made = _decode(row, f.args[0], _Build(f))
    result = f.reshape(made, result=Shape.of(f32, (*lead[:-1], lead[-1] * row.length)))
    return f.func(result, visibility="private")


def packed_bytes(row: Block, sizes: tuple[int, ...]) -> int:
    """The bytes of a tensor whose rows are whole blocks."""
    return math.prod(sizes) // row.length * row.bytes
