"""Scalar functions for kernels: one C line per elementwise op and class of element type.

`{0}`, `{1}`, … stand for the operands, `{t}` for the type's suffix. Functions named `smelt_*` are in `PRELUDE`.
"""

from __future__ import annotations

from smelt.dtype import DType

FLOATS = ("f32", "f64")

# op → (class of element type → C); "number" serves both floats and integers.
SCALAR: dict[str, dict[str, str]] = {
    "abs": {"float": "({0} < 0 ? -{0} : {0} + 0)", "int": "({0} < 0 ? -{0} : {0})"},
    "add": {"number": "({0} + {1})", "bool": "({0} | {1})"},
    "subtract": {"number": "({0} - {1})"},
    "multiply": {"number": "({0} * {1})", "bool": "({0} & {1})"},
    "divide": {"float": "({0} / {1})", "index": "({0} / {1})"},
    "remainder": {"index": "({0} % {1})"},
    "negate": {"number": "(-{0})"},
    "maximum": {"float": "smelt_max_{t}({0}, {1})", "int": "({0} > {1} ? {0} : {1})", "bool": "({0} | {1})"},
    "minimum": {"float": "smelt_min_{t}({0}, {1})", "int": "({0} < {1} ? {0} : {1})", "bool": "({0} & {1})"},
    "exponential": {"float": "smelt_exp_{t}({0})"},
    "logistic": {"float": "(1 / (1 + smelt_exp_{t}(-{0})))"},
    "tanh": {"float": "smelt_tanh_{t}({0})"},
    "sqrt": {"float": "smelt_sqrt_{t}({0})"},
    "rsqrt": {"float": "(1 / smelt_sqrt_{t}({0}))"},
    "and": {"int": "({0} & {1})", "bool": "({0} & {1})"},
    "or": {"int": "({0} | {1})", "bool": "({0} | {1})"},
    "xor": {"int": "({0} ^ {1})", "bool": "({0} ^ {1})"},
    "not": {"int": "(~{0})", "bool": "(!{0})"},
}
COMPARE = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}

PRELUDE = """\
typedef signed char i8; typedef short i16; typedef int i32; typedef long long i64;
typedef unsigned char ui8; typedef unsigned short ui16; typedef unsigned int ui32; typedef unsigned long long ui64;
typedef float f32; typedef double f64; typedef unsigned char i1;

static inline f32 smelt_max_f32(f32 a, f32 b) { return a != a ? a : b != b ? b : a > b ? a : b; }
static inline f64 smelt_max_f64(f64 a, f64 b) { return a != a ? a : b != b ? b : a > b ? a : b; }
static inline f32 smelt_min_f32(f32 a, f32 b) { return a != a ? a : b != b ? b : a < b ? a : b; }
static inline f64 smelt_min_f64(f64 a, f64 b) { return a != a ? a : b != b ? b : a < b ? a : b; }
static inline f32 smelt_sqrt_f32(f32 x) { return __builtin_sqrtf(x); }
static inline f64 smelt_sqrt_f64(f64 x) { return __builtin_sqrt(x); }

/* exp: x = k ln 2 + r with |r| <= ln 2 / 2; Taylor's series of degree 13 on r; scaled by 2^k in two steps. */
static inline f64 smelt_power_of_two(i64 k) {
  union { i64 bits; f64 value; } u = { (k + 1023) << 52 };
  return u.value;
}
static inline f64 smelt_exp_f64(f64 x) {
  if (x != x) return x;
  if (x > 709.8) return __builtin_inf();
  if (x < -745.2) return 0;
  f64 scaled = x * 1.4426950408889634;
  i64 k = (i64)(scaled + (scaled < 0 ? -0.5 : 0.5));
  f64 r = (x - k * 0.6931471803691238) - k * 1.9082149292705877e-10;
  f64 p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0; p = p * r + 1.0 / 39916800.0; p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0; p = p * r + 1.0 / 40320.0; p = p * r + 1.0 / 5040.0; p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0; p = p * r + 1.0 / 24.0; p = p * r + 1.0 / 6.0; p = p * r + 0.5;
  p = p * r + 1.0; p = p * r + 1.0;
  i64 half = k / 2;
  return p * smelt_power_of_two(half) * smelt_power_of_two(k - half);
}
static inline f32 smelt_exp_f32(f32 x) { return (f32)smelt_exp_f64(x); }
static inline f64 smelt_tanh_f64(f64 x) {
  f64 a = x < 0 ? -x : x;
  if (!(a < 20)) return x != x ? x : x < 0 ? -1 : 1;
  if (a < 0.02) {
    f64 s = x * x;
    return x * (1 + s * (-1.0 / 3 + s * (2.0 / 15 + s * (-17.0 / 315 + s * (62.0 / 2835)))));
  }
  f64 e = smelt_exp_f64(2 * a);
  f64 t = (e - 1) / (e + 1);
  return x < 0 ? -t : t;
}
static inline f32 smelt_tanh_f32(f32 x) { return (f32)smelt_tanh_f64(x); }
"""


def scalar(function: str, dtype: DType) -> str | None:
    """The C template of an op for an element type; None where kernels do not know it yet."""
    forms = SCALAR.get(function, {})
    if dtype.name in FLOATS:
        return forms.get("float") or forms.get("number")
    if dtype.kind == "bool":
        return forms.get("bool")
    if dtype.is_integer and dtype.bits >= 8:
        return forms.get("int") or forms.get("number")
    return None
