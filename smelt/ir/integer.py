"""Integer arithmetic and bit patterns the way StableHLO defines them.

In: arrays of any integer type from 2 to 64 bits, operands of one dtype (floats for `next_after`, `reduce_precision`).
Out: the same dtype and the broadcast shape. Everything is computed in 64 bits and cut to the type's width, so results
wrap around; where the specification leaves a result open they are XLA's. Called by the op table.
"""

from __future__ import annotations

import numpy as np

from smelt.dtype import Array, dtype
from smelt.ir.cast import cast

_quiet = np.errstate(all="ignore")  # as a decorator: NumPy warns when 0-d integers wrap around


def _widen(x: Array) -> Array:
    """The same values as int64 or uint64."""
    return x.astype(np.int64 if dtype(x.dtype).kind == "int" else np.uint64)


def _bits(x: Array) -> Array:
    """The bit pattern, extended by zeros to uint64."""
    return np.asarray(_widen(x).view(np.uint64) & ((1 << dtype(x.dtype).bits) - 1))


def _truncate(wide: Array, like: Array) -> Array:
    """The low bits of 64-bit integers in the dtype of `like`."""
    return np.asarray(wide).astype(like.dtype)


# Arithmetic -----------------------------------------------------------------------------------------------------------


@_quiet
def divide(x: Array, y: Array) -> Array:
    """x / y rounded towards zero; all bits set where y is 0, and the least value over -1 is itself.

    >>> divide(np.array([-7, 7, -128], np.int8), np.array([2, 0, -1], np.int8)).tolist()
    [-3, -1, -128]
    """
    wide, divisor = _widen(x), _widen(y)
    safe = np.where(divisor == 0, 1, divisor)
    return _truncate(np.where(divisor == 0, ~np.zeros_like(wide), (wide - np.fmod(wide, safe)) // safe), x)


@_quiet
def remainder(x: Array, y: Array) -> Array:
    """x - y · divide(x, y): it has the sign of x, and is x itself where y is 0."""
    wide, divisor = _widen(x), _widen(y)
    return _truncate(np.where(divisor == 0, wide, np.fmod(wide, np.where(divisor == 0, 1, divisor))), x)


@_quiet
def power(x: Array, y: Array) -> Array:
    """x^y by squaring; a negative y gives ±1 for x = ±1 and 0 for every other x, 0 included."""
    negative = _widen(y) < 0
    base, exponent = np.broadcast_arrays(_bits(x), np.where(negative, _bits(y) & 1, _bits(y)))
    result = np.ones_like(base)
    while exponent.any():
        result = np.where(exponent & 1, result * base, result)
        base, exponent = base * base, exponent >> 1
    wide = _widen(x)
    return _truncate(np.where(negative & (wide != 1) & (wide != -1), 0, result), x)


@_quiet
def mulhi(x: Array, y: Array) -> Array:
    """The high half of the product, which is twice as wide as x and y."""
    bits, a, b = dtype(x.dtype).bits, _widen(x), _widen(y)
    if bits < 64:
        return _truncate(a * b >> bits, x)
    # (a₁ 2³² + a₀)(b₁ 2³² + b₀); >> keeps the sign of the upper halves, & makes the lower ones unsigned.
    a1, b1, a0, b0 = a >> 32, b >> 32, a & 0xFFFFFFFF, b & 0xFFFFFFFF
    low = (a0.view(np.uint64) * b0.view(np.uint64) >> 32).astype(a.dtype)
    middle = a1 * b0 + low
    return _truncate(a1 * b1 + (middle >> 32) + (a0 * b1 + (middle & 0xFFFFFFFF) >> 32), x)


# Bits -----------------------------------------------------------------------------------------------------------------


@_quiet
def shift_left(x: Array, y: Array) -> Array:
    """x · 2^y. Here and below y counts as unsigned; shifting by the width or more leaves nothing."""
    amount = _bits(y)
    return _truncate(np.where(amount < dtype(x.dtype).bits, _bits(x) << np.minimum(amount, 63), 0), x)


@_quiet
def shift_right_logical(x: Array, y: Array) -> Array:
    """The bits of x moved y places down, zeros moved in."""
    amount = _bits(y)
    return _truncate(np.where(amount < dtype(x.dtype).bits, _bits(x) >> np.minimum(amount, 63), 0), x)


@_quiet
def shift_right_arithmetic(x: Array, y: Array) -> Array:
    """The bits of x moved y places down, copies of the top bit moved in; also for unsigned x."""
    unused = 64 - dtype(x.dtype).bits
    amount = np.minimum(_bits(y), 63).astype(np.int64)
    return _truncate((_bits(x) << unused).view(np.int64) >> unused >> amount, x)


def popcnt(x: Array) -> Array:
    """The number of ones."""
    return _truncate(np.bitwise_count(_bits(x)), x)


def count_leading_zeros(x: Array) -> Array:
    """The number of zeros above the highest one; the width for 0."""
    filled = _bits(x)
    for step in (1, 2, 4, 8, 16, 32):
        filled = filled | filled >> step
    return _truncate(dtype(x.dtype).bits - np.bitwise_count(filled), x)


# Bit patterns of floats -----------------------------------------------------------------------------------------------


@_quiet
def next_after(x: Array, y: Array) -> Array:
    """The number of x's type next to x in the direction of y: y itself where they are equal (±0 too), nan if one is
    nan."""
    return np.where(x == y, y, np.nextafter(x, y))


_MANTISSA = {"f64": 52, "f32": 23, "f16": 10, "bf16": 7}


@_quiet
def reduce_precision(x: Array, exponent_bits: int, mantissa_bits: int) -> Array:
    """x rounded to a format with these widths, still in x's type; ties go to the even bit pattern.

    A narrower exponent turns what is too large into ±inf and what would be subnormal into ±0. A nan stays as it is; a
    format without mantissa has none and gets +inf.
    """
    kind = dtype(x.dtype)
    if kind.name not in _MANTISSA:  # f8E4M3FN and the like are exact in f32, where every layout is the same
        narrower = exponent_bits < int(kind.name[kind.name.index("E") + 1])
        return cast(reduce_precision(x.astype(np.float32), exponent_bits if narrower else 8, mantissa_bits), kind)
    unsigned, mantissa = np.dtype(f"u{x.itemsize}"), _MANTISSA[kind.name]
    exponent = kind.bits - 1 - mantissa
    bits = x.view(unsigned).astype(np.uint64)
    sign = bits & (1 << (kind.bits - 1))
    if (cut := mantissa - mantissa_bits) > 0:
        last = bits >> cut & 1
        bits = (bits + ((1 << cut - 1) - 1) + last) & ~np.uint64((1 << cut) - 1)
    if exponent_bits < exponent:
        infinity = (1 << exponent) - 1 << mantissa
        bias, reach = (1 << exponent - 1) - 1, (1 << exponent_bits - 1) - 1
        power = bits & infinity
        bits = np.where(power > bias + reach << mantissa, sign | infinity, bits)
        bits = np.where(power <= bias - reach << mantissa, sign, bits)
    rounded = np.asarray(bits).astype(unsigned).view(x.dtype)
    return np.where(np.isnan(x), x if mantissa_bits > 0 else np.array(np.inf, x.dtype), rounded)
