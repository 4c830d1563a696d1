"""Rare functions of real numbers: inverse circular and hyperbolic ones, gamma and its relatives, Bessel.

Out: `PIECES` (name → freestanding C) and `FORMS` ((op, class of element) → C expression of {0}, {1}), which the package
joins with those of the everyday functions. All compute in double; f32 rounds the result once. Special values follow
`smelt.ir.special` and NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from smelt.dtype import DTYPES
from smelt.ir import special
from smelt.kernel.math.pieces import horner, number


def _table(values: Sequence[float]) -> str:
    """The inside of a C array."""
    return ", ".join(number(value, "f64") for value in values)


def _series(variable: str, coefficients: Sequence[float]) -> str:
    return horner(variable, coefficients, "f64")


def _c(value: float) -> str:
    return number(value, "f64")


# B₂, B₄, …: the coefficients of the Euler–Maclaurin and Stirling series.
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730),
    *(7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730),
)

# Inverse circular functions -------------------------------------------------------------------------------------------

# atan(k/4) and atan(4/k) for k = 0 … 4, each the sum of two doubles.
_ANGLE = (0.0, 0.24497866312686414, 0.4636476090008061, 0.6435011087932844, 0.7853981633974483)
_ANGLE_LOW = (0.0, 1.0698755618734451e-17, 2.2698777452961687e-17, 1.5834785051444286e-17, 3.061616997868383e-17)
_STEEP = (1.5707963267948966, 1.3258176636680326, 1.1071487177940904, 0.9272952180016122, 0.7853981633974483)
_STEEP_LOW = (
    *(6.123233995736766e-17, -8.824429373951136e-17, 9.40447137356638e-17, 4.5397554905923374e-17),
    3.061616997868383e-17,
)
_ATAN = tuple((-1) ** k / (2 * k + 1) for k in range(1, 13))

_CIRCULAR = {
    "smelt_atan_f64": f"""\
/* atan b = atan c + atan((b - c) / (1 + bc)) with c = k/4 near b or 1/b, then Taylor's series. */
static inline f64 smelt_atan_f64(f64 x) {{
  static const f64 angle[2][5] = {{{{{_table(_ANGLE)}}}, {{{_table(_STEEP)}}}}};
  static const f64 low[2][5] = {{{{{_table(_ANGLE_LOW)}}}, {{{_table(_STEEP_LOW)}}}}};
  f64 b = __builtin_fabs(x);
  if (b != b) return x;
  b = b > 1e300 ? 1e300 : b;
  i32 steep = b > 1;
  f64 ratio = steep ? 1 / b : b;
  i32 k = ratio < 0.1875 ? 0 : (i32)(4 * ratio + 0.5);
  f64 c = 0.25 * k;
  f64 t = steep ? (c * b - 1) / (b + c) : (b - c) / (1 + c * b);
  f64 s = t * t;
  f64 rest = t * s * {_series("s", _ATAN)} + low[steep][k];
  return __builtin_copysign(angle[steep][k] + (t + rest), x);
}}""",
    "smelt_asin_f64": """\
static inline f64 smelt_asin_f64(f64 x) {
  f64 a = __builtin_fabs(x);
  return smelt_atan_f64(x / __builtin_sqrt(a < 0.5 ? 1 - a * a : (1 - a) * (1 + a)));
}""",
    "smelt_acos_f64": """\
static inline f64 smelt_acos_f64(f64 x) { return 2 * smelt_atan_f64(__builtin_sqrt((1 - x) / (1 + x))); }""",
}

# Hyperbolic functions and their inverses ------------------------------------------------------------------------------

_SINH = tuple(1 / math.factorial(2 * k + 1) for k in range(1, 10))
_COSH = tuple(1 / math.factorial(2 * k) for k in range(1, 11))
_LN2 = _c(math.log(2))
LARGEST_EXPONENT = 709  # e^709 is finite
_HALF_E709 = _c(4.109203730777486e307)

_HYPERBOLIC = {
    "smelt_half_exp_f64": f"""\
/* e^x / 2 without overflow before the result is. */
static inline f64 smelt_half_exp_f64(f64 x) {{
  return x > {LARGEST_EXPONENT} ? {_HALF_E709} * smelt_exp_f64(x - {LARGEST_EXPONENT}) : 0.5 * smelt_exp_f64(x);
}}""",
    "smelt_sinh_f64": f"""\
static inline f64 smelt_sinh_f64(f64 x) {{
  f64 a = __builtin_fabs(x), s = x * x;
  if (a < 1) return x + x * s * {_series("s", _SINH)};
  f64 e = smelt_half_exp_f64(a);
  return __builtin_copysign(a < 20 ? e - 0.25 / e : e, x);
}}""",
    "smelt_cosh_f64": f"""\
static inline f64 smelt_cosh_f64(f64 x) {{
  f64 a = __builtin_fabs(x), s = x * x;
  if (a < 1) return 1 + s * {_series("s", _COSH)};
  f64 e = smelt_half_exp_f64(a);
  return a < 20 ? e + 0.25 / e : e;
}}""",
    # CHLO defines cosh and sinh as e^(x + log ½) ± e^(-x + log ½); in f32 the sum in the exponent is rounded to f32.
    "smelt_cosh_f32": f"""\
static inline f32 smelt_cosh_f32(f32 x) {{
  f32 half = (f32)-{_LN2};
  return (f32)smelt_exp_f64(x + half) + (f32)smelt_exp_f64(-x + half);
}}""",
    "smelt_sinh_f32": f"""\
static inline f32 smelt_sinh_f32(f32 x) {{
  f32 half = (f32)-{_LN2};
  if (__builtin_fabsf(x) < 1) return (f32)smelt_sinh_f64(x);
  return (f32)smelt_exp_f64(x + half) - (f32)smelt_exp_f64(-x + half);
}}""",
    "smelt_asinh_f64": f"""\
static inline f64 smelt_asinh_f64(f64 x) {{
  f64 a = __builtin_fabs(x), s = a * a;
  f64 value = a > 1e9 ? smelt_log_f64(a) + {_LN2} : smelt_log1p_f64(a + s / (1 + __builtin_sqrt(1 + s)));
  return __builtin_copysign(value, x);
}}""",
    "smelt_acosh_f64": f"""\
static inline f64 smelt_acosh_f64(f64 x) {{
  f64 t = x - 1;
  if (x < 1) return __builtin_nan("");
  return x > 1e9 ? smelt_log_f64(x) + {_LN2} : smelt_log1p_f64(t + __builtin_sqrt(t * (x + 1)));
}}""",
    "smelt_atanh_f64": """\
static inline f64 smelt_atanh_f64(f64 x) {
  f64 a = __builtin_fabs(x);
  return __builtin_copysign(0.5 * smelt_log1p_f64(2 * a / (1 - a)), x);
}""",
}

# Error function -------------------------------------------------------------------------------------------------------

_ERROR_FUNCTION = {
    "smelt_erf_inv_f64": f"""\
/* Winitzki's closed form (within 0.5 %) and three steps of Halley's method, on erfc(y) = 1 - |x| from 1/2 up. */
static inline f64 smelt_erf_inv_f64(f64 x) {{
  f64 p = __builtin_fabs(x);
  if (!(p < 1)) return p == 1 ? x * __builtin_inf() : __builtin_nan("");
  f64 log = smelt_log1p_f64(-p * p);
  f64 half = {_c(2 / (math.pi * 0.147))} + 0.5 * log;
  f64 square = __builtin_sqrt(half * half - log / 0.147) - half;
  f64 y = square > 0 ? __builtin_sqrt(square) : 0;
  for (i32 k = 0; k < 3; k++) {{
    f64 error = p < 0.5 ? smelt_erf_f64(y) - p : (1 - p) - smelt_erfc_f64(y);
    f64 step = error * smelt_exp_f64(y * y) * {_c(math.sqrt(math.pi) / 2)};
    y = y - step / (1 + y * step);
  }}
  return __builtin_copysign(y, x);
}}""",
}

# Gamma function and its relatives -------------------------------------------------------------------------------------

# log Γ(2 + t) = (1 - γ) t + Σ (ζ(k) - 1) (-t)^k / k
_ORDERS = np.arange(2.0, 32.0)
_LGAMMA_AT_2 = (1 - np.euler_gamma, *((-1) ** _ORDERS * special.zeta(_ORDERS, np.array(2.0)) / _ORDERS).tolist())
_STIRLING = tuple(b / (2 * j * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1))

# The one positive zero x₀ of ψ as the sum of two doubles, and ψ⁽ᵏ⁾(x₀)/k! = (-1)^(k+1) ζ(k + 1, x₀).
_ZERO, _ZERO_LOW = 1.4616321449683622, 9.549995429965697e-17
_DIGAMMA_AT_ZERO = ((-1) ** _ORDERS * special.zeta(_ORDERS, np.array(_ZERO))).tolist()
_DIGAMMA_LARGE = tuple(-b / (2 * j) for j, b in enumerate(_BERNOULLI, 1))

_EULER_MACLAURIN = tuple(b / math.factorial(2 * j) for j, b in enumerate(_BERNOULLI, 1))
_FACTORIALS = tuple(float(math.factorial(n)) for n in range(171))

_GAMMA = {
    "smelt_is_whole_f64": """\
static inline i32 smelt_is_whole_f64(f64 x) { return smelt_floor_f64(x) == x; }""",
    "smelt_lgamma_small": f"""\
/* Taylor's series about 2 for -1/2 <= y < 8, reached by Gamma(y + 1) = y Gamma(y). */
static inline f64 smelt_lgamma_small(f64 y) {{
  i32 steps = y < 2.5 ? 0 : (i32)(y - 1.5);
  f64 product = y < 0.5 ? __builtin_fabs(y) * (1 + y) : y < 1.5 ? y : 1;
  for (i32 k = 1; k <= steps; k++) product *= y - k;
  f64 t = y < 0.5 ? y : y < 1.5 ? y - 1 : y - (steps + 2);
  f64 log = smelt_log_f64(product);
  return t * {_series("t", _LGAMMA_AT_2)} + (y < 1.5 ? -log : log);
}}""",
    "smelt_lgamma_large": f"""\
static inline f64 smelt_lgamma_large(f64 y) {{
  f64 s = 1 / (y * y);
  f64 rest = {_c(0.5 * math.log(2 * math.pi) - 0.5)} + {_series("s", _STIRLING)} / y;
  return (y - 0.5) * (smelt_log_f64(y) - 1) + rest;
}}""",
    "smelt_lgamma_f64": f"""\
/* log|Gamma(x)|; below -1/2 by Gamma(x) Gamma(-x) = -pi / (x sin pi x). */
static inline f64 smelt_lgamma_f64(f64 x) {{
  if ((x <= 0 && smelt_is_whole_f64(x)) || __builtin_fabs(x) == __builtin_inf()) return __builtin_inf();
  f64 y = x < -0.5 ? -x : x;
  f64 value = y < 8 ? smelt_lgamma_small(y) : smelt_lgamma_large(y);
  if (!(x < -0.5)) return value;
  f64 sine = __builtin_fabs(smelt_sin_f64({_c(math.pi)} * (x - smelt_floor_f64(x + 0.5))));
  return smelt_log_f64({_c(math.pi)} / (y * sine)) - value;
}}""",
    "smelt_digamma_f64": f"""\
/* log x - 1/(2x) - sum B2j / (2j x^2j) from 10 up, reached by psi(x + 1) = psi(x) + 1/x; Taylor's series beside the
   zero; below -1/2 psi(1 - x) - pi cot pi x. */
static inline f64 smelt_digamma_f64(f64 x) {{
  if (x <= 0 && smelt_is_whole_f64(x)) return __builtin_nan("");
  f64 y = x < -0.5 ? 1 - x : x;
  f64 offset = (y - {_c(_ZERO)}) - {_c(_ZERO_LOW)};
  f64 value;
  if (__builtin_fabs(offset) < 0.4) {{
    value = offset * {_series("offset", _DIGAMMA_AT_ZERO)};
  }} else {{
    f64 sunk = 0;
    for (; y < 10; y += 1) sunk += 1 / y;
    f64 s = 1 / (y * y);
    value = smelt_log_f64(y) - 0.5 / y + s * {_series("s", _DIGAMMA_LARGE)} - sunk;
  }}
  if (!(x < -0.5)) return value;
  return value - {_c(math.pi)} / smelt_tan_f64({_c(math.pi)} * (x - smelt_floor_f64(x + 0.5)));
}}""",
    "smelt_zeta_ratio": f"""\
/* zeta(s, q) q^(s-1) for s > 1, q > 0, which stays in range: ten terms, then the Euler-Maclaurin series at q + 10. */
static inline f64 smelt_zeta_ratio(f64 s, f64 q) {{
  static const f64 coefficient[{len(_EULER_MACLAURIN)}] = {{{_table(_EULER_MACLAURIN)}}};
  f64 a = q + 10, tail = 0;
  for (i32 j = {len(_EULER_MACLAURIN)}; j > 0; j--)
    tail = coefficient[j - 1] + (s + (2 * j - 1)) / a * ((s + 2 * j) / a) * tail;
  f64 grown = smelt_log1p_f64(10 / q);
  f64 shrunk = smelt_exp_f64(-s * grown);
  f64 terms = shrunk == 0 ? 0 : shrunk * (0.5 + s / a * tail);
  for (i32 k = 9; k > 0; k--) terms += smelt_exp_f64(-s * smelt_log1p_f64(k / q));
  return (1 + terms) / q + smelt_exp_f64((1 - s) * grown) / (s - 1);
}}""",
    "smelt_zeta_above": """\
static inline f64 smelt_zeta_above(f64 s, f64 q) {
  return q == __builtin_inf() ? 0 : smelt_pow_f64(q, 1 - s) * smelt_zeta_ratio(s, q);
}""",
    "smelt_zeta_f64": """\
/* The sum of 1/(q + k)^x. Below 0 the terms on both sides of 0 are summed apart: with p = ceil q - q,
   zeta(x, q) = zeta(x, 1 - p) + (-1)^x zeta(x, p) - (-1)^x zeta(x, 1 - q). */
static inline f64 smelt_zeta_f64(f64 x, f64 q) {
  if (!(x > 1)) return x == 1 ? __builtin_inf() : __builtin_nan("");
  if (q != q) return q;
  if (q > 0) return smelt_zeta_above(x, q);
  if (!smelt_is_whole_f64(x) || !smelt_is_finite_f64(x)) return __builtin_nan("");
  i32 even = smelt_is_whole_f64(0.5 * x);
  if (smelt_is_whole_f64(q)) return even ? __builtin_inf() : __builtin_nan("");
  f64 p = -smelt_floor_f64(-q) - q, sign = even ? 1 : -1;
  return (smelt_zeta_above(x, 1 - p) + sign * smelt_zeta_above(x, p)) - sign * smelt_zeta_above(x, 1 - q);
}""",
    "smelt_polygamma_f64": f"""\
/* The n-th derivative of psi: (-1)^(n+1) n! zeta(n + 1, x). */
static inline f64 smelt_polygamma_f64(f64 n, f64 x) {{
  static const f64 factorials[{len(_FACTORIALS)}] = {{{_table(_FACTORIALS)}}};
  if (!(n >= 0) || !smelt_is_whole_f64(n) || !smelt_is_finite_f64(n)) return __builtin_nan("");
  if (n == 0) return smelt_digamma_f64(x);
  f64 factorial = n <= 170 ? factorials[(i32)n] : __builtin_inf(), size;
  if (x == __builtin_inf()) {{
    size = 0;
  }} else if (x > 0) {{
    f64 power = smelt_pow_f64(x, -n), scale = factorial * power;
    if (!(power > 1e-307) || !smelt_is_finite_f64(scale))
      scale = smelt_exp_f64(smelt_lgamma_f64(n + 1) - n * smelt_log_f64(x));
    size = scale * smelt_zeta_ratio(n + 1, x);
  }} else {{
    size = factorial * smelt_zeta_f64(n + 1, x);
  }}
  return smelt_is_whole_f64(0.5 * n) ? -size : size;
}}""",
}

# Bessel functions -----------------------------------------------------------------------------------------------------

_BESSEL = {
    "smelt_bessel_i1e_f64": f"""\
/* e^-|x| I1(x): the power series, all of whose terms are positive, below 20; Hankel's asymptotic series above. */
static inline f64 smelt_bessel_i1e_f64(f64 x) {{
  f64 a = __builtin_fabs(x), sum = 1;
  if (a < 20) {{
    f64 s = 0.25 * a * a;
    for (i32 k = 48; k > 0; k--) sum = smelt_fma_f64(s / (k * (k + 1)), sum, 1);
    return smelt_exp_f64(-a) * (0.5 * x * sum);
  }}
  f64 r = 1 / (8 * a);
  for (i32 k = 32; k > 0; k--) sum = 1 + ((2 * k - 1) * (2 * k - 1) - 4) * r / k * sum;
  return __builtin_copysign(sum / ({_c(math.sqrt(2 * math.pi))} * __builtin_sqrt(a)), x);
}}""",
}

PIECES: dict[str, str] = {
    **_CIRCULAR,
    **_HYPERBOLIC,
    **_ERROR_FUNCTION,
    **_GAMMA,
    **_BESSEL,
}

_IN_DOUBLE = (
    *("acos", "acosh", "asin", "asinh", "atan", "atanh", "bessel_i1e", "digamma", "erf_inv", "lgamma"),
    *("polygamma", "zeta"),
)
_OF_TWO = ("polygamma", "zeta")


def _forms() -> dict[tuple[str, str], str]:
    """Floats narrower than f32 get an f32 that is rounded to odd: rounding it again is as if the double were."""
    forms = {}
    narrow = [dtype.name for dtype in DTYPES.values() if dtype.is_float and dtype.bits < 32]
    for name in (*_IN_DOUBLE, "cosh", "sinh"):
        double = f"smelt_{name}_f64({'{0}, {1}' if name in _OF_TWO else '{0}'})"
        forms[name, "f64"] = double
        forms[name, "f32"] = f"((f32){double})" if name in _IN_DOUBLE else f"smelt_{name}_f32({{0}})"
        forms.update({(name, of): f"smelt_odd_f32({double})" for of in narrow})
    return forms


FORMS: dict[tuple[str, str], str] = _forms()

# The largest errors of f64 against mpmath (tests/unit/kernel/test_special.py) in units of the last place; f32 and
# narrower floats are rounded once. lgamma and digamma below 0: against 1, where the value is smaller.
ULP: dict[str, float] = {
    "acos": 1.6,
    "acosh": 2.5,
    "asin": 1.6,
    "asinh": 1.5,
    "atan": 1.0,
    "atanh": 1.7,
    "bessel_i1e": 10.0,
    "cosh": 1.3,
    "digamma": 20.0,
    "erf_inv": 2.0,
    "lgamma": 5.0,
    "polygamma": 10.0,
    "sinh": 1.6,
    "zeta": 4.0,
}
