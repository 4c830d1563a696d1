"""The scalar functions of the native engine: C for one element of every elementwise op and every element type.

In: an op's short name, register values as C text, element types. Out: a C expression; `prelude` adds the functions that
a program names. Called by the emitters. A value in a register has the type `register(dtype)`: floats narrower than f32
are held in f32, rounded to their own format after every op.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from smelt.dtype import DType
from smelt.kernel.math import complex, conversion, double, integer, narrow, quantise, real, single, special
from smelt.kernel.math.conversion import bitcast, convert, is_narrow, literal, load, round_narrow, store
from smelt.kernel.math.pieces import order

__all__ = [
    "FORMS",
    "PIECES",
    "ULP",
    "apply",
    "bitcast",
    "convert",
    "literal",
    "load",
    "prelude",
    "reduce_precision",
    "register",
    "storage",
    "store",
]

TYPES = """\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char ui8; typedef unsigned short ui16; typedef unsigned int ui32; typedef unsigned long long ui64;
typedef float f32; typedef double f64; typedef unsigned char i1;
typedef struct { f32 re, im; } c64; typedef struct { f64 re, im; } c128;
"""

_FILES = (real, single, double, narrow, integer, special, complex, quantise)
FORMS: dict[tuple[str, str], str] = {key: form for file in _FILES for key, form in file.FORMS.items()}
PIECES: dict[str, str] = {name: text for file in (*_FILES, conversion) for name, text in file.PIECES.items()}

# Ops whose result is one of the operands, or exact in every format that holds the operands.
_CHOOSING = frozenset({"select", "maximum", "minimum", "clamp", "next_after", "real", "conj"})
_EXACT_IN_16_BITS = frozenset(
    {"abs", "negate", "sign", "floor", "ceil", "round_nearest_afz", "round_nearest_even", "imag"}
)
_CONSTANT = re.compile(r"\(?(-?\d+)u?(?:ll)?\)?")


def storage(dtype: DType) -> str:
    """The C type of an element in memory."""
    if dtype.is_complex:
        return f"c{dtype.bits}"
    if is_narrow(dtype):
        return "ui16" if dtype.bits == 16 else "ui8"
    return "ui8" if dtype.kind == "bool" else integer.storage_type(dtype) if dtype.is_integer else dtype.name


def register(dtype: DType) -> str:
    """The C type of a computed value."""
    if is_narrow(dtype):
        return "f32"
    return "i1" if dtype.kind == "bool" else storage(dtype)


def apply(function: str, args: Sequence[str], operands: Sequence[DType], result: DType) -> str | None:
    """C for an op on register values; None where the op is not known for these types."""
    if function == "select":
        return "({} ? {} : {})".format(*args)
    if function == "convert":
        return convert(args[0], operands[0], result)
    of = operands[0]
    if function in ("divide", "remainder") and of.is_integer and _divides(args[1]):
        return integer.cut(f"{args[0]} {'/' if function == 'divide' else '%'} {args[1]}", of)
    form = FORMS.get((function, "i64" if of.name == "index" else of.name)) or FORMS.get((function, register(of)))
    if form is None:
        return None
    text = form.format(*args)
    exact = function in _CHOOSING or (result.bits == 16 and function in _EXACT_IN_16_BITS)
    return round_narrow(text, result) if is_narrow(result) and not exact else text


def _divides(text: str) -> bool:
    """Whether a divisor is a constant other than 0 and -1: the C compiler then divides faster than a function."""
    found = _CONSTANT.fullmatch(text)
    return found is not None and int(found[1]) not in (0, -1)


def reduce_precision(value: str, dtype: DType, exponent_bits: int, mantissa_bits: int) -> str:
    """C for `stablehlo.reduce_precision` of a register value."""
    mantissa = min(mantissa_bits, 52)
    if dtype.name in ("f64", "f32", "f16"):
        return f"smelt_reduce_precision_{dtype.name}({value}, {min(exponent_bits, 11)}, {mantissa})"
    exponent = min(exponent_bits, 11)
    if dtype.name != "bf16" and exponent_bits >= int(dtype.name[dtype.name.index("E") + 1]):
        exponent = 8
    text = f"smelt_reduce_precision_f32({value}, {exponent}, {mantissa})"
    return text if dtype.name == "bf16" else round_narrow(text, dtype)


def prelude(source: str) -> str:
    """The types, and the functions that `source` names."""
    return "\n".join([TYPES, *(PIECES[name] for name in order(source, PIECES)), ""])


# The greatest distance from the exact result in units of the last place of f32 or f64, over arguments of all exponents;
# tests/unit/kernel/test_math.py holds the functions to it. Narrower types round the f32 result once more.
ULP: dict[str, float] = {
    "atan2": 0.8,
    "cbrt": 0.7,
    "cosine": 0.8,
    "erf": 1.2,
    "erfc": 1.7,
    "exponential": 1.1,
    "exponential_minus_one": 1.8,
    "log": 0.9,
    "log_plus_one": 1.6,
    "logistic": 2.0,
    "power": 0.9,
    "rsqrt": 1.5,
    "sine": 0.8,
    "sqrt": 0.5,
    "tan": 1.5,
    "tanh": 1.4,
}
