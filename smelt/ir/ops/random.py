"""Random numbers: `rng_bit_generator`, whose bits are XLA's, and the legacy `rng`, which draws from it.

THREE_FRY is Threefry-2x32, PHILOX is Philox-4x32 (Salmon et al., 2011); DEFAULT is PHILOX, as on XLA's CPU and GPU.
The state is a key and a counter; how counters become elements of the output follows XLA, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, ui64
from smelt.errors import RunError
from smelt.ir import integer, special
from smelt.ir.attributes import RNG_ALGORITHM, RNG_DISTRIBUTION, Constant
from smelt.ir.cast import cast
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import UNKNOWN, Attr, Call, Frame, OpDef
from smelt.ir.ops.shape import check_fits
from smelt.shape import Shape

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


# ---- rng_bit_generator ----


def _infer_bits(call: Call) -> Sequence[Type]:
    state, output = call.shape(0), call.declared_shape(1)
    call.require(state.dtype.name == "ui64", "rng_bit_generator_i2", "initial_state must hold ui64", got=state)
    call.require(state.rank == 1, "rng_bit_generator_i2", "initial_state must have one dimension", got=state)
    sizes = (2,) if call.attrs["rng_algorithm"] == "THREE_FRY" else (2, 3)
    if state.sizes[0] not in sizes:
        expected = " or ".join(map(str, sizes))
        call.fail("rng_bit_generator_c2", "initial_state has the wrong size", expected=expected, got=state)
    allowed = output.dtype.is_integer or output.dtype.is_float
    call.require(allowed, "rng_bit_generator_o2", "the output must hold integers or floats", got=output)
    return [state, output]  # rng_bit_generator_c1


def _bits(frame: Frame, op: Op, state: Array) -> tuple[Array, Array]:
    type = op.results[1].shape
    return bits(state, frame.shape(type), type.element, op.attrs["rng_algorithm"])


def bits(state: Array, sizes: tuple[int, ...], element: DType, algorithm: str) -> tuple[Array, Array]:
    """The state afterwards, and random bits in elements of a type."""
    generate = _three_fry if algorithm == "THREE_FRY" else _philox
    new_state, words = generate(state, sizes, wide=element.bits == 64)
    return new_state, _as_elements(words, element)


def _as_elements(words: Array, element: DType) -> Array:
    """Bit patterns from the low bits of each word."""
    if element.is_integer:
        return cast(words, element)
    low = np.asarray(words & words.dtype.type((1 << element.bits) - 1))
    return low.astype(np.dtype(f"u{element.numpy.itemsize}")).view(element.numpy)


def _three_fry(state: Array, sizes: tuple[int, ...], wide: bool) -> tuple[Array, Array]:
    """One counter, which gives two words of 32 bits, for each element of 64 bits or each two narrower ones."""
    key, counter = state
    if wide:
        low, high = threefry(key, _counters(counter, sizes))
        words = low.astype(np.uint64) | high.astype(np.uint64) << _HALF
        return np.array([key, counter + np.uint64(math.prod(sizes))]), words
    axis = split_axis(sizes)
    half = list(sizes or (1,))
    half[axis] = (half[axis] + 1) // 2
    pair = np.stack(threefry(key, _counters(counter, half)), axis + 1)
    full = [*half[:axis], 2 * half[axis], *half[axis + 1 :]]
    words = pair.reshape(full).take(range((sizes or (1,))[axis]), axis).reshape(sizes)
    return np.array([key, counter + np.uint64(math.prod(half))]), words


def split_axis(sizes: Sequence[int]) -> int:
    """The axis along which the two words of a counter are neighbours: the first even one, else the first longest."""
    even = [axis for axis, size in enumerate(sizes) if size % 2 == 0]
    return even[0] if even else max(range(len(sizes)), key=sizes.__getitem__, default=0)


def _counters(first: np.uint64, sizes: Sequence[int]) -> Array:
    return (np.arange(math.prod(sizes), dtype=np.uint64) + first).reshape(sizes)


def _philox(state: Array, sizes: tuple[int, ...], wide: bool) -> tuple[Array, Array]:
    """A counter of 128 bits for each four words of 32 bits. The key is the upper half where the state has no more."""
    key = state[0]
    low, high = state[1:] if len(state) == 3 else (state[1], key)
    count = math.prod(sizes)
    blocks = -(-count * (2 if wide else 1) // 4)
    lows = np.arange(blocks, dtype=np.uint64) + low
    highs = high + (lows < low).astype(np.uint64)
    words = np.stack(philox(key, lows, highs), 1).reshape(-1)
    if wide:
        words = words[0::2].astype(np.uint64) | words[1::2].astype(np.uint64) << _HALF
    after = int(low) + (int(high) << 64) + blocks
    after_words = [after & (1 << 64) - 1, (after >> 64) & (1 << 64) - 1][: len(state) - 1]
    return np.array([key, *after_words], np.uint64), words[:count].reshape(sizes)


ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
GROUP_KEY = 0x1BD11BDA
MULTIPLIERS, STEPS = (0xD2511F53, 0xCD9E8D57), (0x9E3779B9, 0xBB67AE85)


def threefry(key: np.uint64, counters: Array) -> tuple[Array, Array]:
    """Threefry-2x32 in 20 rounds: two words of 32 bits for each counter of 64."""
    keys = [np.uint32(key & _LOW), np.uint32(key >> _HALF)]
    keys.append(keys[0] ^ keys[1] ^ np.uint32(GROUP_KEY))
    x = (counters & _LOW).astype(np.uint32) + keys[0]
    y = (counters >> _HALF).astype(np.uint32) + keys[1]
    for group in range(5):
        for places in ROTATIONS[group % 2]:
            x = x + y
            y = (y << np.uint32(places) | y >> np.uint32(32 - places)) ^ x
        x = x + keys[(group + 1) % 3]
        y = y + keys[(group + 2) % 3] + np.uint32(group + 1)
    return x, y


def philox(key: np.uint64, lows: Array, highs: Array) -> tuple[Array, Array, Array, Array]:
    """Philox-4x32 in 10 rounds: four words of 32 bits for each counter of 128."""
    key0, key1 = key & _LOW, key >> _HALF
    x0, x1, x2, x3 = lows & _LOW, lows >> _HALF, highs & _LOW, highs >> _HALF
    for _ in range(10):
        product0, product1 = x0 * np.uint64(MULTIPLIERS[0]), x2 * np.uint64(MULTIPLIERS[1])
        x0, x1 = product1 >> _HALF ^ x1 ^ key0, product1 & _LOW
        x2, x3 = product0 >> _HALF ^ x3 ^ key1, product0 & _LOW
        key0, key1 = (key0 + np.uint64(STEPS[0])) & _LOW, (key1 + np.uint64(STEPS[1])) & _LOW
    return x0.astype(np.uint32), x1.astype(np.uint32), x2.astype(np.uint32), x3.astype(np.uint32)


# ---- rng ----

ALGORITHM = "THREE_FRY"
FIRST_STATE = (0x736D656C74, 0)


def _infer_rng(call: Call) -> Sequence[Type]:
    a, b, sizes = call.shapes
    for index, bound in enumerate((a, b), 1):
        call.require(bound.rank == 0, f"rng_i{index}", "a and b must be scalars", got=bound)
        allowed = bound.dtype.kind in ("bool", "int", "uint", "float")
        call.require(allowed, f"rng_i{index}", "a and b must be booleans, integers or floats", got=bound)
    call.same_dtype(a.dtype, b.dtype, "rng_c1", "a and b have different element types")
    normal = call.attrs["rng_distribution"] == "NORMAL"
    call.require(a.dtype.is_float or not normal, "rng_c2", "a normal distribution needs floats", got=a)
    call.require(sizes.rank == 1 and sizes.dtype.is_integer, "rng_i3", "shape must be a vector of integers", got=sizes)
    call.require(sizes.is_static, "rng_i3", "shape must have a known length", got=sizes)
    return [Shape.of(a.dtype, _wanted_sizes(call, sizes))]


def _wanted_sizes(call: Call, operand: Shape) -> Sequence[Size]:
    """rng_c3: the sizes that the operand `shape` holds where it is a constant, else the declared ones."""
    source = call.operands[2].op
    value = source.attrs.get("value") if source is not None else None
    if isinstance(value, Constant):
        sizes = [int(size) for size in value.array]
        call.require(all(size >= 0 for size in sizes), "rng_c3", "a size must not be negative", got=sizes)
        return sizes
    rank = operand.sizes[0]
    if call.declared:
        wanted = call.declared_shape()
        call.same_size(wanted.rank, rank, "rng_c3", "shape must name every size of the result")
        return [call.scope.new_symbol() if size == UNKNOWN else size for size in wanted.sizes]
    if not isinstance(rank, int):
        call.fail("rng_c3", "the rank of the result is not known", expected="a declared result type", got=operand)
    return [call.scope.new_symbol() for _ in range(rank)]


@dataclass(slots=True)
class Source:
    """The state of the generator of bits that all draws of one run share; every run starts from the same state."""

    state: Array = field(default_factory=lambda: np.array(FIRST_STATE, np.uint64))

    def words(self, sizes: tuple[int, ...]) -> Array:
        """The next words of 64 bits."""
        self.state, words = bits(self.state, sizes, ui64, ALGORITHM)
        return words


def _rng(frame: Frame, op: Op, a: Array, b: Array, shape: Array) -> Array:
    """The specification leaves the numbers open: these are the same on every engine (see `passes.lower_random`)."""
    element = op.results[0].shape.element
    sizes = tuple(int(size) for size in shape)
    if any(size < 0 for size in sizes):
        raise RunError("rng: a size is negative (rng_c3)", expected="sizes of at least 0", got=list(sizes))
    check_fits(op, sizes)
    source: Source = frame.world.random
    words = source.words(sizes)
    if not element.is_float:
        return _scale_word(words, int(a), int(b), element)
    first, second = np.float64(a), np.float64(b)
    if op.attrs["rng_distribution"] == "NORMAL":
        middle = (words >> np.uint64(12)).astype(np.float64) + 0.5
        unit = special.erf_inv(middle * 2.0**-51 - 1.0) * np.sqrt(2.0)
        return cast(np.asarray(first + unit * second), element)
    unit = (words >> np.uint64(11)).astype(np.float64) * 2.0**-53
    value = cast(np.asarray(first + unit * (second - first)), element)
    return np.where(value < b, value, a)  # rounding may reach the end, which is outside


def _scale_word(words: Array, first: int, last: int, element: DType) -> Array:
    """The upper half of a word times the number of integers. Of booleans, `last` is among them."""
    if element.kind == "bool":
        last += 1
    count = np.full(words.shape, max(last - first, 1), np.uint64)
    return cast(integer.mulhi(words, count) + np.uint64(first % (1 << 64)), element)


ROWS: list[OpDef] = [
    OpDef("stablehlo.rng", "a b shape", _infer_rng, _rng, (Attr("rng_distribution", RNG_DISTRIBUTION),), effect=True),
    OpDef("stablehlo.rng_bit_generator", "initial_state", _infer_bits, _bits, (Attr("rng_algorithm", RNG_ALGORITHM),)),
]
