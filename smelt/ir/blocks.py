"""Block-quantised weights: how a run of elements is packed into bytes, one row per format: GGML's and one of our own.

A row (`Block`) says where in a block's bytes the levels, the scales and the minimums are. From it come `decode`, on
NumPy arrays, and the same arithmetic as StableHLO ops (`ir.block_ops`). `ir.block_layout` says how kernels hold blocks.

An element is `scale * level` or `scale * level ± minimum`. A format with sub-blocks multiplies the scale, and the
minimum, by small integers, one per sub-block.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

X = TypeVar("X")


class Bits(Frozen):
    """Integers cut out of bytes: `groups` runs of `width` bytes; each run is read once per shift, shift by shift."""

    at: int
    groups: int
    width: int
    shifts: tuple[int, ...]
    mask: int
    up: int = 0  # the position of the bits in the integer

    @property
    def count(self) -> int:
        return self.groups * len(self.shifts) * self.width


Run = tuple[Bits, ...]  # parts of the same integers


class Integers(Frozen):
    """Adjacent runs; `zero` is subtracted. `signed`: bytes are i8."""

    runs: tuple[Run, ...]
    zero: int = 0
    signed: bool = False

    @property
    def count(self) -> int:
        return sum(run[0].count for run in self.runs)


class Block(Frozen):
    """A format: `length` elements in `bytes` bytes. `scale` and `minimum` are the offsets of these numbers."""

    name: str
    kind: int | None  # GGML's number of the type; None for those that no GGUF file has
    length: int
    bytes: int
    levels: Integers
    scale: int  # an f16, or one byte where `exponent`
    exponent: bool = False  # the scale is 2 ** (byte - 128)
    codebook: tuple[int, ...] = ()  # what levels stand for
    scales: Integers | None = None  # per sub-block
    minimum: int | None = None
    minimums: Integers | None = None  # per sub-block; then the minimum is subtracted, else added

    @property
    def group(self) -> int:
        """The elements that share a scale."""
        return self.length if self.scales is None else self.length // self.scales.count


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
    # Ours, for codes with a zero point: scale * code - scale * zero, exact in f32. Its byte has a 1 in the low bits and
    # the zero point in the high ones, which each of the four groups reads.
    Block(
        "u4_128",
        None,
        128,
        67,
        Integers(((_nibbles(3, 64, groups=4),),)),
        0,
        scales=Integers(((_bytes(2, 1, (0, 0, 0, 0), 15),),)),
        minimum=0,
        minimums=Integers(((_bytes(2, 1, (4, 4, 4, 4), 15),),)),
    ),
)
BLOCKS: dict[str, Block] = {row.name: row for row in TABLE}
BY_KIND: dict[int, Block] = {row.kind: row for row in TABLE if row.kind is not None}


# ---- the arithmetic, once ----


class Ops(Protocol[X]):
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


def elements(row: Block, blocks: X, ops: Ops[X]) -> X:
    """What blocks stand for: [..., bytes] → [..., length]."""
    value = ops.times(scales(row, blocks, ops), levels(row, blocks, ops))
    minimum = minimums(row, blocks, ops)
    return value if minimum is None else ops.plus(value, minimum, row.minimums is not None)


def levels(row: Block, blocks: X, ops: Ops[X]) -> X:
    """The integers that scales multiply, as f32."""
    if row.codebook:
        return ops.lookup(codes(row.levels, blocks, ops), np.array(row.codebook, np.float32))
    return _integers(row.levels, blocks, ops)


def scales(row: Block, blocks: X, ops: Ops[X]) -> X:
    """One per sub-block. The product of an f16 and a small integer is exact."""
    scale = ops.exponent(ops.cut(blocks, row.scale, 1)) if row.exponent else ops.half(ops.cut(blocks, row.scale, 2))
    return scale if row.scales is None else ops.times(scale, _integers(row.scales, blocks, ops))


def minimums(row: Block, blocks: X, ops: Ops[X]) -> X | None:
    """One per sub-block, where the format has them; subtracted where `row.minimums` is there, else added."""
    if row.minimum is None:
        return None
    minimum = ops.half(ops.cut(blocks, row.minimum, 2))
    return minimum if row.minimums is None else ops.times(minimum, _integers(row.minimums, blocks, ops))


def codes(integers: Integers, blocks: X, ops: Ops[X]) -> X:
    """Integers as they are stored, ui8: `zero` is not subtracted."""
    runs = [_run(run, blocks, ops) for run in integers.runs]
    return runs[0] if len(runs) == 1 else ops.join(runs)


def _integers(integers: Integers, blocks: X, ops: Ops[X]) -> X:
    found = ops.to_f32(codes(integers, blocks, ops), integers.signed)
    return ops.less(found, integers.zero) if integers.zero else found


def _run(run: Run, blocks: X, ops: Ops[X]) -> X:
    found = None
    for bits in run:
        part = ops.unpack(ops.cut(blocks, bits.at, bits.groups * bits.width), bits)
        found = part if found is None else ops.combine(found, part)
    assert found is not None
    return found


# ---- on NumPy ----


class ArrayOps:
    """On NumPy arrays."""

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
        made = elements(row, np.ascontiguousarray(blocks), ArrayOps())
    return made.reshape(*blocks.shape[:-2], blocks.shape[-2] * row.length)


# ---- activations ----

RUN = 32  # activations that share a scale
# Of activations: "q8" where they multiply block-quantised weights, "fp8" where they multiply others too, "bf16" and
# "tf32" in every matmul.
PRECISIONS = ("f32", "q8", "bf16", "tf32", "fp8")


def check_precision(precision: str) -> str:
    if precision not in PRECISIONS:
        raise UnsupportedError(
            "unknown precision of activations",
            expected=", ".join(PRECISIONS),
            got=precision,
            remedy='precision="q8", "bf16", "tf32" or "fp8" rounds them, precision="f32" keeps them',
        )
    return precision
