"""Register values from one element type to another, constants, and bit patterns read as another type.

`convert` gives what `smelt.ir.cast` gives: floats become integers by truncation, saturate, and nan becomes 0; integers
wrap; only zero is false; every result is rounded once. Used by the package, which also merges `PIECES`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dtype import DTYPES, DType, integer_range
from smelt.ir.cast import cast
from smelt.kernel.math.integer import cut, storage_type
from smelt.kernel.math.pieces import number

PIECES: dict[str, str] = {
    # f64 → f32, rounded to odd: the last bit says whether anything was lost, so rounding again is as if done once.
    "smelt_odd_f32": """\
static inline f32 smelt_odd_f32(f64 x) {
  f32 near = (f32)x;
  ui32 lost = (x == x) & ((f64)near != x);
  return smelt_from_bits_f32((smelt_bits_f32(near) - (smelt_abs_f64(near) > smelt_abs_f64(x))) | lost);
}""",
    "smelt_odd_f32_from_i64": """\
static inline f32 smelt_odd_f32_from_i64(i64 x) {
  i64 odd = (x >> 11 | ((x & 0x7ff) != 0)) * 2048, size = x < 0 ? -x : x;
  return smelt_odd_f32((f64)((ui64)size >> 53 ? odd : x));
}""",
    "smelt_odd_f32_from_ui64": """\
static inline f32 smelt_odd_f32_from_ui64(ui64 x) {
  ui64 odd = (x >> 11 | ((x & 0x7ff) != 0)) << 11;
  return smelt_odd_f32((f64)(x >> 53 ? odd : x));
}""",
}


def is_narrow(dtype: DType) -> bool:
    """A float that a register holds as f32."""
    return dtype.is_float and dtype.bits < 32


def real(dtype: DType) -> str:
    """The C type in which a register holds a float."""
    return "f64" if dtype.bits == 64 else "f32"


def round_narrow(text: str, dtype: DType) -> str:
    """An f32 as the nearest value of a narrow float."""
    return f"smelt_round_{dtype.name}({text})"


def convert(value: str, source: DType, target: DType) -> str:
    """C for `stablehlo.convert` of a register value."""
    if source.numpy == target.numpy:
        return value
    if target.kind == "bool" and not source.is_complex:
        return f"(i1)({value} != 0)"
    if source.is_complex and target.is_complex:
        return f"smelt_widen_c128({value})" if target.bits == 128 else f"smelt_narrow_c64({value})"
    if source.is_complex:
        return convert(f"({value}).re", source.part, target)
    if target.is_complex:
        return f"smelt_pair_c{target.bits}({convert(value, source, target.part)}, 0)"
    if target.is_integer:
        if source.is_float:
            return f"smelt_{_plain(target)}_from_{real(source)}({value})"
        return cut(value, target)
    if is_narrow(target):
        return round_narrow(_single(value, source), target)
    return f"(({target.name}){value})"


def _plain(dtype: DType) -> str:
    return "i64" if dtype.name == "index" else dtype.name


def _single(value: str, source: DType) -> str:
    """A value in f32, from which rounding to a narrower float gives what rounding once would."""
    if source.bits < 32 or source.name == "f32":
        return f"((f32){value})"
    if source.bits == 64 and source.is_integer:
        return f"smelt_odd_f32_from_{_plain(source)}({value})"
    return f"smelt_odd_f32({value})"


def _to_integer(target: DType, source: str) -> str:
    """Truncation within the range, the nearest end of it outside, 0 for nan."""
    t = storage_type(target)
    low, high = integer_range(target)
    mantissa = 24 if source == "f32" else 53
    if high < 1 << mantissa:
        step = "i64" if high > 0x7FFFFFFF else "i32"
        limits = (number(low, source), number(high, source))
        body = (
            f"{source} above = x < {limits[0]} ? {limits[0]} : x, in = above > {limits[1]} ? {limits[1]} : above;"
            f" return ({t})({step})(x == x ? in : 0);"
        )
    else:
        least, most = integer(low, target), integer(high, target)
        body = (
            f"{t} inside = ((x >= {number(low, source)}) & (x < {number(float(high + 1), source)})) ? ({t})x : 0;"
            f" {t} above = x >= {number(float(high + 1), source)} ? {most} : inside;"
            f" return x < {number(low, source)} ? {least} : above;"
        )
    return f"static inline {t} smelt_{target.name}_from_{source}({source} x) {{ {body} }}"


def integer(value: int, dtype: DType) -> str:
    """A constant of an integer type."""
    if dtype.bits < 64:
        return f"{value}u" if dtype.name == "ui32" else f"({value})" if value > -(1 << 31) else "(-2147483647 - 1)"
    if dtype.kind == "uint":
        return f"{value}ull"
    return f"({value}ll)" if value > -(1 << 63) else "(-9223372036854775807ll - 1)"


def literal(value: Any, dtype: DType) -> str:
    """A constant: a Python or NumPy number as a value of type `dtype`, exactly."""
    if dtype.is_complex:
        number_ = complex(value)
        return f"smelt_pair_c{dtype.bits}({literal(number_.real, dtype.part)}, {literal(number_.imag, dtype.part)})"
    if dtype.kind == "bool":
        return "1" if value else "0"
    if dtype.is_integer:
        low, _ = integer_range(dtype)
        return integer((int(value) - low) % (1 << dtype.bits) + low, dtype)
    wide = np.asarray(float(value))
    exact = float(cast(wide, dtype).astype(np.float64))
    suffix = "f" if dtype.bits < 64 else ""
    sign = "-" if np.signbit(exact) else ""
    if np.isnan(exact):
        return f'({sign}__builtin_nan{suffix}(""))'
    if np.isinf(exact):
        return f"({sign}__builtin_inf{suffix}())"
    return number(exact, "f32" if dtype.bits < 64 else "f64")


def load(dtype: DType, text: str) -> str:
    """A register value from what is in memory, where integers below 8 bits have their upper bits clear (ml_dtypes)."""
    if dtype.is_integer and dtype.bits < 8:
        return cut(text, dtype)
    return f"smelt_load_{dtype.name}({text})" if is_narrow(dtype) else text


def store(dtype: DType, text: str) -> str:
    """What goes into memory, from a register value."""
    if dtype.kind == "int" and dtype.bits < 8:
        return f"((i8)({text} & {(1 << dtype.bits) - 1}))"
    return f"smelt_store_{dtype.name}({text})" if is_narrow(dtype) else text


def bitcast(value: str, source: DType, target: DType) -> str:
    """The bits of a register value as another type of the same width."""
    if source.numpy == target.numpy:
        return value
    return _from_bits(_bits(value, source), target)


def _bits(value: str, dtype: DType) -> str:
    if dtype.is_complex:
        return f"smelt_bits_c64({value})"
    if is_narrow(dtype):
        return store(dtype, value)
    if dtype.is_float:
        return f"smelt_bits_{dtype.name}({value})"
    if dtype.bits < 8:
        return f"((ui8){value} & {(1 << dtype.bits) - 1})"
    return value


def _from_bits(text: str, dtype: DType) -> str:
    if dtype.is_complex:
        return f"smelt_from_bits_c64({text})"
    if is_narrow(dtype):
        return load(dtype, f"({'ui16' if dtype.bits == 16 else 'ui8'}){text}")
    if dtype.is_float:
        return f"smelt_from_bits_{dtype.name}((ui{dtype.bits}){text})"
    if dtype.kind == "bool":
        return f"(i1)(({text}) & 1)"
    return cut(text, dtype)


PIECES["smelt_bits_c64"] = "static inline ui64 smelt_bits_c64(c64 z) { ui64 u; __builtin_memcpy(&u, &z, 8); return u; }"
PIECES["smelt_from_bits_c64"] = """\
static inline c64 smelt_from_bits_c64(ui64 u) { c64 z; __builtin_memcpy(&z, &u, 8); return z; }"""
for _dtype in DTYPES.values():
    if _dtype.is_integer and _dtype.name != "index":
        for _source in ("f32", "f64"):
            PIECES[f"smelt_{_dtype.name}_from_{_source}"] = _to_integer(_dtype, _source)
