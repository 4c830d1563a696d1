"""Arrays from one element type to another: what `convert` means, and how every result is rounded once.

In: an array of any element type, or of a wider one in which a result was computed. Out: an array of the wanted type.
Called by the op table wherever a result leaves the type it was computed in; NumPy's `astype` alone rounds twice.
"""

from __future__ import annotations

import numpy as np

from smelt.dtype import Array, DType, dtype, integer_range

_NATIVE = frozenset({"f16", "f32", "f64"})  # NumPy rounds to these once, from every type


def cast(array: Array, to: DType) -> Array:
    """`array` as elements of type `to`.

    Floats become integers by truncation; out of range they saturate, and nan becomes 0 (StableHLO leaves that open,
    XLA does so). Integers wrap. Only zero becomes false. Complex numbers lose their imaginary part first.
    """
    of = dtype(array.dtype)
    if of.numpy == to.numpy:
        return array
    with np.errstate(all="ignore"):
        if of.kind == "complex" and to.kind != "complex":
            return cast(array.real, to)
        if to.kind == "bool":
            zero = np.zeros((), np.float64 if of.name == "f8E8M0FNU" else array.dtype)  # that type has none of its own
            return np.asarray(array.astype(zero.dtype, copy=False) != zero)
        if of.kind == "float" and to.is_integer:
            return _to_integer(array, to)
        if to.kind == "complex" and of.kind != "complex":
            return np.asarray(cast(array, to.part)).astype(to.numpy)
        if to.name == "f8E8M0FNU":
            return _to_powers(array, to)
        if to.kind == "float" and to.name not in _NATIVE:
            array = _to_single(array, of)
        elif of.is_integer and of.bits < 8:  # ml_dtypes does not go from one of these to another
            array = np.asarray(array).astype(np.int8)
        return np.asarray(array).astype(to.numpy)


def _to_integer(array: Array, to: DType) -> Array:
    low, high = integer_range(to)
    x = np.asarray(array).astype(np.float64)
    above = x >= float(high + 1)
    inside = (x >= low) & ~above
    whole = np.where(inside, x, 0.0).astype(np.uint64 if high > np.iinfo(np.int64).max else np.int64)
    whole = np.where(above, whole.dtype.type(high), np.where(x < low, whole.dtype.type(low), whole))
    return whole.astype(to.numpy)


def _to_powers(array: Array, to: DType) -> Array:
    """Powers of two from 2**-127 on, ties going up; there is no zero, no sign and no infinity."""
    x = np.asarray(array).astype(np.float64)
    mantissa, exponent = np.frexp(x)
    biased = np.maximum(exponent - (mantissa < 0.75) + 127, 0)
    valid = (x >= 0) & np.isfinite(x) & (biased < 255)
    return np.where(valid, np.where(x == 0, 0, biased), 255).astype(np.uint8).view(to.numpy)


def _to_single(array: Array, of: DType) -> Array:
    """f32, rounded to odd: what a narrower type then makes of it is as if it were rounded once.

    Round to odd keeps in the last bit whether anything was lost; f32 has two bits more than every narrower type.
    """
    if of.bits < 32 or of.name == "f32":
        return np.asarray(array).astype(np.float32)  # exact
    if of.bits == 64 and of.is_integer:
        lost = (array & of.numpy.type(0x7FF)) != 0
        odd = ((array >> of.numpy.type(11)) | lost) << of.numpy.type(11)
        array = np.where(np.abs(np.asarray(array).astype(np.float64)) < 2.0**53, array, odd)
    x = np.asarray(array).astype(np.float64)
    near = np.asarray(x.astype(np.float32))
    bits = near.view(np.int32) - (np.abs(near) > np.abs(x))
    return np.asarray(bits | ((near != x) & ~np.isnan(x))).astype(np.int32).view(np.float32)
