"""Every elementwise op on complex numbers in freestanding C, on the structs c64 {f32 re, im} and c128 {f64 re, im}.

Out: `PIECES` (name → C text) and `FORMS` ((op, class of the first operand) → C expression of {0}, {1}), which the
package joins with those of the real functions. Functions of c64 compute in c128 and round once. Branch cuts, signed
zeros, infinities and nan are C99's (annex G), as NumPy has them; the rest follows `smelt.ir.special`.
"""

from __future__ import annotations

import math

from smelt.kernel.math.pieces import number

_PI, _HALF_PI, _LN2 = (number(value, "f64") for value in (math.pi, math.pi / 2, math.log(2)))
_LARGEST_EXPONENT = 709  # e^709 is finite
_E709 = number(8.218407461554972e307, "f64")
_NAN = '__builtin_nan("")'
_INF = "__builtin_inf()"

# Parts and scaling ----------------------------------------------------------------------------------------------------

_PARTS = {
    "smelt_pair_c64": "static inline c64 smelt_pair_c64(f32 re, f32 im) { c64 z = { re, im }; return z; }",
    "smelt_pair_c128": "static inline c128 smelt_pair_c128(f64 re, f64 im) { c128 z = { re, im }; return z; }",
    "smelt_widen_c128": "static inline c128 smelt_widen_c128(c64 z) { return smelt_pair_c128(z.re, z.im); }",
    "smelt_narrow_c64": "static inline c64 smelt_narrow_c64(c128 z) { return smelt_pair_c64((f32)z.re, (f32)z.im); }",
    "smelt_has_nan_c128": "static inline i32 smelt_has_nan_c128(c128 z) { return z.re != z.re || z.im != z.im; }",
    "smelt_swap_c128": "static inline c128 smelt_swap_c128(c128 z) { return smelt_pair_c128(z.im, z.re); }",
    "smelt_exponent_f64": """\
/* e with |x| = m 2^e, 1/2 <= m < 1; 0 where x is 0, infinite or nan. */
static inline i32 smelt_exponent_f64(f64 x) {
  i32 shift = __builtin_fabs(x) < 0x1p-1022 ? 54 : 0;
  union { f64 value; i64 bits; } u = { shift ? x * 0x1p54 : x };
  i32 e = (i32)(u.bits >> 52 & 0x7ff);
  return e == 0x7ff || e == 0 ? 0 : e - 1022 - shift;
}""",
    "smelt_scale_f64": """\
/* x 2^n with one rounding: the steps down stop where the last one alone can reach the subnormal numbers. */
static inline f64 smelt_scale_f64(f64 x, i32 n) {
  for (i32 k = 0; k < 2 && n > 1023; k++) { x *= 0x1p1023; n -= 1023; }
  for (i32 k = 0; k < 2 && n < -1022; k++) { x *= 0x1p-969; n += 969; }
  n = n > 1023 ? 1023 : n < -1022 ? -1022 : n;
  union { i64 bits; f64 value; } power = { (i64)(n + 1023) << 52 };
  return x * power.value;
}""",
    "smelt_larger_part": """\
static inline f64 smelt_larger_part(c128 z) {
  f64 a = __builtin_fabs(z.re), b = __builtin_fabs(z.im);
  return a != a || a > b ? a : b;
}""",
    "smelt_hypot_f64": """\
static inline f64 smelt_hypot_f64(f64 x, f64 y) {
  f64 a = __builtin_fabs(x), b = __builtin_fabs(y);
  if (a == __builtin_inf() || b == __builtin_inf()) return __builtin_inf();
  i32 e = smelt_exponent_f64(a > b ? a : b);
  a = smelt_scale_f64(a, -e);
  b = smelt_scale_f64(b, -e);
  return smelt_scale_f64(__builtin_sqrt(a * a + b * b), e);
}""",
    "smelt_fused_f64": """\
/* a b + c with one rounding. Without the instruction, twice where the sum cancels or is subnormal. */
static inline f64 smelt_fused_f64(f64 a, f64 b, f64 c) {
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__) || defined(__riscv_flen))
  return __builtin_fma(a, b, c);
#else
  f64 product = a * b, total = product + c;
  f64 rest = smelt_product_error_f64(a, b, product) + smelt_sum_error_f64(product, c, total);
  return rest - rest == 0 && rest != 0 ? total + rest : total;
#endif
}""",
    "smelt_circle_excess": """\
/* x^2 + y^2 + c. What rounding takes from the products is added like a term, from the sums at the end. */
static inline f64 smelt_circle_excess(f64 x, f64 y, f64 c) {
  f64 p = x * x, q = y * y, total = c, lost = 0;
  f64 terms[4] = { p, q, smelt_product_error_f64(x, x, p), smelt_product_error_f64(y, y, q) };
  for (i32 k = 0; k < 4; k++) {
    f64 sum = total + terms[k];
    lost += smelt_sum_error_f64(total, terms[k], sum);
    total = sum;
  }
  return total + lost;
}""",
}

# Arithmetic and order -------------------------------------------------------------------------------------------------


def _arithmetic(z: str) -> dict[str, str]:
    """What c64 and c128 do alike, each in its own precision."""
    pair = f"smelt_pair_{z}"
    pieces = {}
    for name, sign in (("add", "+"), ("subtract", "-")):
        parts = f"x.re {sign} y.re, x.im {sign} y.im"
        pieces[f"smelt_{name}_{z}"] = f"static inline {z} smelt_{name}_{z}({z} x, {z} y) {{ return {pair}({parts}); }}"
    for name, parts in (("negate", "-x.re, -x.im"), ("conj", "x.re, -x.im")):
        pieces[f"smelt_{name}_{z}"] = f"static inline {z} smelt_{name}_{z}({z} x) {{ return {pair}({parts}); }}"
    for name, sign in RELATIONS.items():
        pieces[f"smelt_{name}_{z}"] = f"""\
static inline i1 smelt_{name}_{z}({z} x, {z} y) {{ return x.re == y.re ? x.im {sign} y.im : x.re {sign} y.re; }}"""
    for name, first in (("maximum", "GT"), ("minimum", "LT")):
        pieces[f"smelt_{name}_{z}"] = f"""\
static inline {z} smelt_{name}_{z}({z} x, {z} y) {{
  i32 x_nan = x.re != x.re || x.im != x.im, y_nan = y.re != y.re || y.im != y.im;
  return x_nan || (smelt_{first}_{z}(x, y) && !y_nan) ? x : y;
}}"""
    pieces[f"smelt_clamp_{z}"] = f"""\
static inline {z} smelt_clamp_{z}({z} low, {z} x, {z} high) {{
  return smelt_minimum_{z}(smelt_maximum_{z}(x, low), high);
}}"""
    return pieces


RELATIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}

_ARITHMETIC = {
    **_arithmetic("c64"),
    **_arithmetic("c128"),
    # As XLA's CPU has it: the second product of each part is added with one rounding.
    "smelt_multiply_c64": """\
static inline c64 smelt_multiply_c64(c64 x, c64 y) {
  f32 re = -(x.im * y.im), im = x.re * y.im;
  return smelt_pair_c64((f32)((f64)x.re * y.re + re), (f32)((f64)x.im * y.re + im));
}""",
    "smelt_multiply_c128": """\
static inline c128 smelt_multiply_c128(c128 x, c128 y) {
  return smelt_pair_c128(smelt_fused_f64(x.re, y.re, -(x.im * y.im)), smelt_fused_f64(x.im, y.re, x.re * y.im));
}""",
    "smelt_plain_product_c128": """\
static inline c128 smelt_plain_product_c128(c128 x, c128 y) {
  return smelt_pair_c128(x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re);
}""",
    "smelt_square_c128": """\
static inline c128 smelt_square_c128(c128 z) {
  return smelt_pair_c128(z.re * z.re - z.im * z.im, 2 * (z.re * z.im));
}""",
    "smelt_boxed_f64": """\
/* 1 for inf, 0 for everything else, with the sign of x. */
static inline f64 smelt_boxed_f64(f64 x) { return __builtin_copysign(smelt_is_inf_f64(x) ? 1.0 : 0.0, x); }""",
    "smelt_times_conjugate": """\
static inline c128 smelt_times_conjugate(f64 a, f64 b, f64 c, f64 d) {
  return smelt_pair_c128(a * c + b * d, b * c - a * d);
}""",
    "smelt_rescued_quotient": """\
/* A quotient whose parts are both nan, as in C99, annex G: inf / finite and finite / 0 are inf, finite / inf is 0. */
static inline c128 smelt_rescued_quotient(c128 x, c128 y, c128 value) {
  if (value.re == value.re || value.im == value.im) return value;
  i32 x_finite = smelt_is_finite_f64(x.re) && smelt_is_finite_f64(x.im);
  i32 y_finite = smelt_is_finite_f64(y.re) && smelt_is_finite_f64(y.im);
  f64 factor = 0;
  if (y.re == 0 && y.im == 0) {
    factor = __builtin_copysign(__builtin_inf(), y.re);
    value = x;
  } else if ((smelt_is_inf_f64(x.re) || smelt_is_inf_f64(x.im)) && y_finite) {
    factor = __builtin_inf();
    value = smelt_times_conjugate(smelt_boxed_f64(x.re), smelt_boxed_f64(x.im), y.re, y.im);
  } else if (x_finite && (smelt_is_inf_f64(y.re) || smelt_is_inf_f64(y.im))) {
    value = smelt_times_conjugate(x.re, x.im, smelt_boxed_f64(y.re), smelt_boxed_f64(y.im));
  }
  return smelt_pair_c128(factor * value.re, factor * value.im);
}""",
    "smelt_divide_c64": """\
/* The squares of single numbers are in the range of double ones: no scaling. */
static inline c64 smelt_divide_c64(c64 x, c64 y) {
  c128 a = smelt_widen_c128(x), b = smelt_widen_c128(y), v = smelt_times_conjugate(a.re, a.im, b.re, b.im);
  f64 size = b.re * b.re + b.im * b.im;
  return smelt_narrow_c64(smelt_rescued_quotient(a, b, smelt_pair_c128(v.re / size, v.im / size)));
}""",
    "smelt_divide_c128": """\
static inline c128 smelt_divide_c128(c128 x, c128 y) {
  f64 size_of_x = smelt_larger_part(x);
  i32 above = size_of_x > 0x1p1000 ? 4 : size_of_x < 0x1p-900 ? -120 : 0;
  i32 below = smelt_exponent_f64(smelt_larger_part(y));
  f64 c = smelt_scale_f64(y.re, -below), d = smelt_scale_f64(y.im, -below), size = c * c + d * d;
  c128 v = smelt_times_conjugate(smelt_scale_f64(x.re, -above), smelt_scale_f64(x.im, -above), c, d);
  v.re = smelt_scale_f64(v.re / size, above - below);
  v.im = smelt_scale_f64(v.im / size, above - below);
  return smelt_rescued_quotient(x, y, v);
}""",
    "smelt_plain_quotient_c128": """\
/* Smith's quotient: what infinite parts give is NumPy's. */
static inline c128 smelt_plain_quotient_c128(c128 x, c128 y) {
  f64 a = __builtin_fabs(y.re), b = __builtin_fabs(y.im);
  if (a == 0 && b == 0) return smelt_pair_c128(x.re / a, x.im / a);
  if (a >= b) {
    f64 ratio = y.im / y.re, scale = 1 / (y.re + y.im * ratio);
    return smelt_pair_c128((x.re + x.im * ratio) * scale, (x.im - x.re * ratio) * scale);
  }
  f64 ratio = y.re / y.im, scale = 1 / (y.im + y.re * ratio);
  return smelt_pair_c128((x.re * ratio + x.im) * scale, (x.im * ratio - x.re) * scale);
}""",
    "smelt_abs_c128": "static inline f64 smelt_abs_c128(c128 z) { return smelt_hypot_f64(z.re, z.im); }",
    "smelt_sign_c128": f"""\
/* z / |z|; 0 at 0, nan where a part is infinite or nan. */
static inline c128 smelt_sign_c128(c128 z) {{
  if (z.re == 0 && z.im == 0) return smelt_pair_c128(0, 0);
  if (!smelt_is_finite_f64(z.re) || !smelt_is_finite_f64(z.im)) return smelt_pair_c128({_NAN}, {_NAN});
  i32 e = smelt_exponent_f64(smelt_larger_part(z));
  f64 re = smelt_scale_f64(z.re, -e), im = smelt_scale_f64(z.im, -e), size = __builtin_sqrt(re * re + im * im);
  return smelt_pair_c128(re / size, im / size);
}}""",
}

# Roots and powers -----------------------------------------------------------------------------------------------------

_ROOTS = {
    "smelt_sqrt_c128": f"""\
static inline c128 smelt_sqrt_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x), b = __builtin_fabs(y);
  if (b == {_INF}) return smelt_pair_c128({_INF}, y);
  if (a == {_INF} && y != y) return x > 0 ? smelt_pair_c128(x, y) : smelt_pair_c128(y, __builtin_copysign({_INF}, y));
  if (x != x || y != y) return smelt_pair_c128({_NAN}, {_NAN});
  f64 large, small;
  if (a == {_INF} || b == 0) {{
    large = __builtin_sqrt(a);
    small = 0;
  }} else {{
    i32 e = smelt_exponent_f64(a > b ? a : b);
    e -= e & 1;
    f64 p = smelt_scale_f64(a, -e), q = smelt_scale_f64(b, -e);
    large = smelt_scale_f64(__builtin_sqrt(0.5 * (p + __builtin_sqrt(p * p + q * q))), e / 2);
    small = b / (2 * large);
  }}
  return smelt_pair_c128(x < 0 ? small : large, __builtin_copysign(x < 0 ? large : small, y));
}}""",
    "smelt_rsqrt_c128": f"""\
/* The conjugate of the root over |z|; 0 at the infinities, inf + nan i at 0. */
static inline c128 smelt_rsqrt_c128(c128 z) {{
  if (z.re == 0 && z.im == 0) return smelt_pair_c128({_INF}, {_NAN});
  c128 root = smelt_sqrt_c128(z);
  f64 size = smelt_hypot_f64(root.re, root.im);
  if (size == {_INF}) return smelt_pair_c128(__builtin_copysign(0.0, root.re), __builtin_copysign(0.0, -root.im));
  return smelt_pair_c128(root.re / size / size, -root.im / size / size);
}}""",
    "smelt_cbrt_c128": """\
static inline c128 smelt_cbrt_c128(c128 z) {
  i32 e = smelt_exponent_f64(smelt_larger_part(z));
  i32 third = (e + 3000) / 3 - 1000;
  f64 size = smelt_hypot_f64(smelt_scale_f64(z.re, -3 * third), smelt_scale_f64(z.im, -3 * third));
  f64 radius = smelt_scale_f64(smelt_cbrt_f64(size), third);
  f64 angle = smelt_atan2_f64(z.im, z.re) / 3;
  return smelt_pair_c128(radius * smelt_cos_f64(angle), angle == 0 ? angle : radius * smelt_sin_f64(angle));
}""",
    "smelt_endless_product_c128": """\
/* The product as in C99, annex G: where both parts are nan although a factor is infinite, it is infinite. */
static inline c128 smelt_endless_product_c128(c128 x, c128 y) {
  c128 value = smelt_plain_product_c128(x, y);
  if (value.re == value.re || value.im == value.im) return value;
  i32 x_inf = smelt_is_inf_f64(x.re) || smelt_is_inf_f64(x.im);
  i32 y_inf = smelt_is_inf_f64(y.re) || smelt_is_inf_f64(y.im);
  if (!x_inf && !y_inf) return value;
  f64 parts[4] = { x.re, x.im, y.re, y.im };
  for (i32 k = 0; k < 4; k++) {
    if (k < 2 ? x_inf : y_inf) parts[k] = smelt_boxed_f64(parts[k]);
    else if (parts[k] != parts[k]) parts[k] = __builtin_copysign(0.0, parts[k]);
  }
  value = smelt_plain_product_c128(smelt_pair_c128(parts[0], parts[1]), smelt_pair_c128(parts[2], parts[3]));
  return smelt_pair_c128(__builtin_inf() * value.re, __builtin_inf() * value.im);
}""",
    "smelt_whole_power_c128": """\
/* Repeated squaring for 1 <= |n| < 100. The first powers are not multiplied by 1, which would make nan of 0 inf. */
static inline c128 smelt_whole_power_c128(c128 x, i32 n) {
  if (n == 1) return x;
  if (n == 2) return smelt_plain_product_c128(x, x);
  if (n == 3) return smelt_plain_product_c128(x, smelt_plain_product_c128(x, x));
  i32 left = n < 0 ? -n : n;
  c128 value = smelt_pair_c128(1, 0), factor = x;
  for (;;) {
    if (left & 1) value = smelt_plain_product_c128(value, factor);
    left >>= 1;
    if (!left) break;
    factor = smelt_plain_product_c128(factor, factor);
  }
  return n < 0 ? smelt_plain_quotient_c128(smelt_pair_c128(1, 0), value) : value;
}""",
    "smelt_power_c128": f"""\
/* NumPy's: whole powers below 100 by products, everything else e^(y log x); that too where a product became inf/inf. */
static inline c128 smelt_power_c128(c128 x, c128 y) {{
  if (y.re == 0 && y.im == 0) return smelt_pair_c128(1, 0);
  if (x.re == 0 && x.im == 0) {{
    f64 zero = y.re > 0 ? 0 : {_NAN};
    return smelt_pair_c128(zero, zero);
  }}
  c128 log = smelt_log_c128(x), value;
  if (y.im == 0 && __builtin_fabs(y.re) < 100 && smelt_floor_f64(y.re) == y.re)
    value = smelt_whole_power_c128(x, (i32)y.re);
  else
    value = smelt_exp_c128(smelt_endless_product_c128(y, log));
  return smelt_has_nan_c128(value) ? smelt_exp_c128(smelt_plain_product_c128(y, log)) : value;
}}""",
}

# Exponential and logarithm --------------------------------------------------------------------------------------------

_EXPONENTIAL = {
    "smelt_exp_c128": f"""\
static inline c128 smelt_exp_c128(c128 z) {{
  f64 x = z.re, y = z.im;
  if (y == 0) return smelt_pair_c128(smelt_exp_f64(x), y);
  if (!smelt_is_finite_f64(y)) {{
    if (x == -{_INF}) return smelt_pair_c128(0, __builtin_copysign(0.0, y));
    return smelt_pair_c128(x == {_INF} ? x : {_NAN}, {_NAN});
  }}
  f64 beyond = x > {_LARGEST_EXPONENT} ? {_E709} : 1;
  f64 e = smelt_exp_f64(x > {_LARGEST_EXPONENT} ? x - {_LARGEST_EXPONENT} : x);
  return smelt_pair_c128(e * smelt_cos_f64(y) * beyond, e * smelt_sin_f64(y) * beyond);
}}""",
    "smelt_expm1_c128": """\
/* Near the imaginary axis (e^x - 1) cos y - 2 sin(y/2)^2, which cancels only where the real part is 0. */
static inline c128 smelt_expm1_c128(c128 z) {
  c128 power = smelt_exp_c128(z);
  f64 sine = smelt_sin_f64(0.5 * z.im);
  f64 near = smelt_expm1_f64(z.re) * smelt_cos_f64(z.im) - 2 * (sine * sine);
  return smelt_pair_c128(__builtin_fabs(z.re) < 1 ? near : power.re - 1, power.im);
}""",
    "smelt_log_abs": f"""\
/* log|x + iy|: near 1 from the excess of the square over 1, elsewhere from the scaled size. */
static inline f64 smelt_log_abs(f64 x, f64 y) {{
  f64 a = __builtin_fabs(x), b = __builtin_fabs(y), square = a * a + b * b;
  if (square > 0.5 && square < 2) return 0.5 * smelt_log1p_f64(
    a > b ? smelt_circle_excess(a, b, -1) : smelt_circle_excess(b, a, -1));
  if (a == {_INF} || b == {_INF}) return {_INF};
  i32 e = smelt_exponent_f64(a > b ? a : b);
  if (e > -500 && e < 500) return smelt_log_f64(__builtin_sqrt(square));
  return smelt_log_f64(smelt_hypot_f64(smelt_scale_f64(a, -e), smelt_scale_f64(b, -e))) + e * {_LN2};
}}""",
    "smelt_log_c128": """\
static inline c128 smelt_log_c128(c128 z) {
  return smelt_pair_c128(smelt_log_abs(z.re, z.im), smelt_atan2_f64(z.im, z.re));
}""",
    "smelt_log1p_c128": """\
/* Where |1 + z|^2 is near 1, from its excess 2x + x^2 + y^2. */
static inline c128 smelt_log1p_c128(c128 z) {
  f64 excess = smelt_circle_excess(z.re, z.im, 2 * z.re);
  f64 re = __builtin_fabs(excess) < 0.5 ? 0.5 * smelt_log1p_f64(excess) : smelt_log_abs(1 + z.re, z.im);
  return smelt_pair_c128(re, smelt_atan2_f64(z.im, 1 + z.re));
}""",
    "smelt_logistic_c128": """\
/* 1/(1 + e^-z) from e = e^-|x|; 1 + e cos y is (1 - e) + 2e cos(y/2)^2, so nothing cancels beside the poles. */
static inline c128 smelt_logistic_c128(c128 z) {
  i32 right = z.re >= 0;
  if (smelt_is_inf_f64(z.re)) return smelt_pair_c128(right, 0);
  f64 a = __builtin_fabs(z.re), e = smelt_exp_f64(-a), rest = -smelt_expm1_f64(-a), half = smelt_cos_f64(0.5 * z.im);
  f64 cosine = 2 * (half * half), p = rest + e * cosine, q = e * smelt_sin_f64(z.im), square = p * p + q * q;
  return smelt_pair_c128((right ? p : e * (cosine - rest)) / square, q / square);
}""",
}

# Circular and hyperbolic functions ------------------------------------------------------------------------------------

# sin, tan, asin and atan of x + iy are the hyperbolic ones of y + ix with the parts swapped.
_HYPERBOLIC = {
    "smelt_sinh_c128": f"""\
static inline c128 smelt_sinh_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x);
  if (y == 0) return smelt_pair_c128(smelt_sinh_f64(x), y);
  if (!smelt_is_finite_f64(y)) return smelt_pair_c128(x == 0 ? x : a == {_INF} ? a : {_NAN}, {_NAN});
  f64 c = smelt_cos_f64(y), s = smelt_sin_f64(y);
  if (a == {_INF}) return smelt_pair_c128(x * c, a * s);
  if (!(a > {_LARGEST_EXPONENT})) return smelt_pair_c128(smelt_sinh_f64(x) * c, smelt_cosh_f64(x) * s);
  f64 e = smelt_exp_f64(a - {_LARGEST_EXPONENT});
  return smelt_pair_c128(__builtin_copysign(e, x) * c * (0.5 * {_E709}), e * s * (0.5 * {_E709}));
}}""",
    "smelt_cosh_c128": f"""\
static inline c128 smelt_cosh_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x);
  if (y == 0) return smelt_pair_c128(smelt_cosh_f64(x), x != x ? y : __builtin_copysign(1.0, x) * y);
  if (!smelt_is_finite_f64(y)) return smelt_pair_c128(a == {_INF} ? a : {_NAN}, x == 0 ? 0 : {_NAN});
  f64 c = smelt_cos_f64(y), s = smelt_sin_f64(y);
  if (a == {_INF}) return smelt_pair_c128(a * c, x * s);
  if (!(a > {_LARGEST_EXPONENT})) return smelt_pair_c128(smelt_cosh_f64(x) * c, smelt_sinh_f64(x) * s);
  f64 e = smelt_exp_f64(a - {_LARGEST_EXPONENT});
  return smelt_pair_c128(e * c * (0.5 * {_E709}), __builtin_copysign(e, x) * s * (0.5 * {_E709}));
}}""",
    "smelt_tanh_c128": f"""\
/* sinh x cosh x + i sin y cos y over sinh(x)^2 + cos(y)^2, a sum of positive terms. */
static inline c128 smelt_tanh_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x);
  if (y == 0) return smelt_pair_c128(smelt_tanh_f64(x), y);
  if (!smelt_is_finite_f64(y)) {{
    if (a == {_INF}) return smelt_pair_c128(__builtin_copysign(1.0, x), __builtin_copysign(0.0, y));
    return smelt_pair_c128(x == 0 ? x : {_NAN}, {_NAN});
  }}
  f64 c = smelt_cos_f64(y), s = smelt_sin_f64(y);
  if (a > 22) return smelt_pair_c128(__builtin_copysign(1.0, x), 4 * s * c * smelt_exp_f64(-2 * a));
  f64 sh = smelt_sinh_f64(x), size = sh * sh + c * c;
  return smelt_pair_c128(sh * smelt_cosh_f64(x) / size, s * c / size);
}}""",
    "smelt_sin_c128": """\
static inline c128 smelt_sin_c128(c128 z) { return smelt_swap_c128(smelt_sinh_c128(smelt_swap_c128(z))); }""",
    "smelt_cos_c128": """\
static inline c128 smelt_cos_c128(c128 z) { return smelt_cosh_c128(smelt_pair_c128(-z.im, z.re)); }""",
    "smelt_tan_c128": """\
static inline c128 smelt_tan_c128(c128 z) { return smelt_swap_c128(smelt_tanh_c128(smelt_swap_c128(z))); }""",
}

# Their inverses -------------------------------------------------------------------------------------------------------

_LARGE = "1e150"  # above, 1 is nothing beside z, and squares overflow

_INVERSES = {
    "smelt_asin_c128": f"""\
/* Kahan's formulas, from the roots of 1 - z and 1 + z. */
static inline c128 smelt_asin_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x), b = __builtin_fabs(y);
  if (x != x || y != y) {{
    if (a == {_INF} || b == {_INF}) return smelt_pair_c128({_NAN}, b == {_INF} ? y : {_INF});
    return smelt_pair_c128(x == 0 ? x : {_NAN}, {_NAN});
  }}
  if (a > {_LARGE} || b > {_LARGE})
    return smelt_pair_c128(smelt_atan2_f64(x, b), __builtin_copysign(smelt_log_abs(x, y) + {_LN2}, y));
  c128 p = smelt_sqrt_c128(smelt_pair_c128(1 - x, -y)), q = smelt_sqrt_c128(smelt_pair_c128(1 + x, y));
  f64 re = smelt_atan2_f64(x, p.re * q.re - p.im * q.im);
  return smelt_pair_c128(re, smelt_asinh_f64(p.re * q.im - p.im * q.re));
}}""",
    "smelt_acos_c128": f"""\
static inline c128 smelt_acos_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x), b = __builtin_fabs(y);
  if (x != x || y != y) {{
    if (a == {_INF} || b == {_INF}) return smelt_pair_c128({_NAN}, b == {_INF} ? -y : -{_INF});
    return smelt_pair_c128(x == 0 ? {_HALF_PI} : {_NAN}, {_NAN});
  }}
  if (a > {_LARGE} || b > {_LARGE})
    return smelt_pair_c128(smelt_atan2_f64(b, x), __builtin_copysign(smelt_log_abs(x, y) + {_LN2}, -y));
  c128 p = smelt_sqrt_c128(smelt_pair_c128(1 - x, -y)), q = smelt_sqrt_c128(smelt_pair_c128(1 + x, y));
  return smelt_pair_c128(2 * smelt_atan2_f64(p.re, q.re), smelt_asinh_f64(q.re * p.im - q.im * p.re));
}}""",
    "smelt_atanh_c128": f"""\
/* log1p(4x / ((1 - x)^2 + y^2)) / 4 for x >= 0, and half the angle of 1 - x^2 - y^2 + 2iy. */
static inline c128 smelt_atanh_c128(c128 z) {{
  f64 x = z.re, y = z.im, a = __builtin_fabs(x), b = __builtin_fabs(y);
  if (a == {_INF} || b == {_INF})
    return smelt_pair_c128(__builtin_copysign(0.0, x), y != y ? y : __builtin_copysign({_HALF_PI}, y));
  if (x != x || y != y) return smelt_pair_c128(x == 0 ? x : {_NAN}, {_NAN});
  if (a > {_LARGE} || b > {_LARGE}) {{
    f64 half = smelt_hypot_f64(0.5 * x, 0.5 * y);
    return smelt_pair_c128(0.25 * (x / half) / half, __builtin_copysign({_HALF_PI}, y));
  }}
  f64 gap = 1 - a, square = gap * gap + b * b;
  f64 re = square < 1e-290 && b > 0 ? 0.5 * ({_LN2} - smelt_log_f64(b)) : 0.25 * smelt_log1p_f64(4 * a / square);
  return smelt_pair_c128(__builtin_copysign(re, x), 0.5 * smelt_atan2_f64(2 * y, gap * (1 + a) - b * b));
}}""",
    "smelt_asinh_c128": """\
static inline c128 smelt_asinh_c128(c128 z) { return smelt_swap_c128(smelt_asin_c128(smelt_swap_c128(z))); }""",
    "smelt_acosh_c128": """\
static inline c128 smelt_acosh_c128(c128 z) {
  c128 w = smelt_acos_c128(z);
  return smelt_pair_c128(__builtin_fabs(w.im), __builtin_copysign(w.re, z.im));
}""",
    "smelt_atan_c128": """\
static inline c128 smelt_atan_c128(c128 z) { return smelt_swap_c128(smelt_atanh_c128(smelt_swap_c128(z))); }""",
    "smelt_wrap_angle": f"""\
/* The same angle within [-pi, pi]. */
static inline f64 smelt_wrap_angle(f64 angle) {{
  return angle > {_PI} ? angle - 2 * {_PI} : angle < -{_PI} ? angle + 2 * {_PI} : angle;
}}""",
    "smelt_atan2_c128": f"""\
/* -i log((x + iy) / sqrt(x^2 + y^2)). With w = x + iy and v = x - iy it is (arg w - arg(wv)/2) + i log|v/w| / 2, good
   beside y = ix and y = -ix; elsewhere atan(y/x) or pi/2 - atan(x/y), plus the multiple of pi that the formula says. */
static inline c128 smelt_atan2_c128(c128 y, c128 x) {{
  i32 steep = smelt_abs_c128(y) > smelt_abs_c128(x);
  c128 atan = smelt_atan_c128(steep ? smelt_plain_quotient_c128(x, y) : smelt_plain_quotient_c128(y, x));
  if (steep) atan = smelt_pair_c128({_HALF_PI} - atan.re, 0 - atan.im);
  i32 e = -smelt_exponent_f64(smelt_larger_part(steep ? y : x));
  f64 yr = smelt_scale_f64(y.re, e), yi = smelt_scale_f64(y.im, e);
  f64 xr = smelt_scale_f64(x.re, e), xi = smelt_scale_f64(x.im, e);
  c128 w = smelt_pair_c128(xr - yi, xi + yr), v = smelt_pair_c128(xr + yi, xi - yr);
  f64 arg = smelt_atan2_f64(w.im, w.re), angle = smelt_atan2_f64(v.im, v.re);
  angle = smelt_wrap_angle(arg - smelt_wrap_angle(arg + angle) / 2);
  f64 p = smelt_abs_c128(w), q = smelt_abs_c128(v);
  if (p * q < 0.1 * (p * p + q * q)) return smelt_pair_c128(angle, 0.5 * smelt_log_f64(q / p));
  f64 turns = smelt_floor_f64((angle - atan.re) / {_PI} + 0.5);
  return smelt_pair_c128(atan.re + turns * {_PI}, atan.im);
}}""",
}

PIECES: dict[str, str] = {**_PARTS, **_ARITHMETIC, **_ROOTS, **_EXPONENTIAL, **_HYPERBOLIC, **_INVERSES}

# Ops that compute in double, and the function that does it.
_IN_DOUBLE = {
    "cbrt": "cbrt",
    "cosine": "cos",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log": "log",
    "log_plus_one": "log1p",
    "logistic": "logistic",
    "rsqrt": "rsqrt",
    "sign": "sign",
    "sine": "sin",
    "sqrt": "sqrt",
    "square": "square",
    "tan": "tan",
    "tanh": "tanh",
    **{name: name for name in ("acos", "acosh", "asin", "asinh", "atan", "atanh", "cosh", "sinh")},
    **{name: name for name in ("atan2", "power")},
}
_OF_TWO = ("atan2", "power")
_EACH = ("negate", "conj")
_EACH_OF_TWO = ("add", "subtract", "multiply", "divide", "maximum", "minimum", *RELATIONS)


def _forms() -> dict[tuple[str, str], str]:
    forms = {
        ("abs", "c64"): "((f32)smelt_abs_c128(smelt_widen_c128({0})))",
        ("abs", "c128"): "smelt_abs_c128({0})",
        ("complex", "f32"): "smelt_pair_c64({0}, {1})",
        ("complex", "f64"): "smelt_pair_c128({0}, {1})",
    }
    for op, function in _IN_DOUBLE.items():
        wide = "smelt_widen_c128({0}), smelt_widen_c128({1})" if op in _OF_TWO else "smelt_widen_c128({0})"
        forms[op, "c64"] = f"smelt_narrow_c64(smelt_{function}_c128({wide}))"
        forms[op, "c128"] = f"smelt_{function}_c128({'{0}, {1}' if op in _OF_TWO else '{0}'})"
    for z in ("c64", "c128"):
        forms["real", z], forms["imag", z] = "({0}).re", "({0}).im"
        forms["clamp", z] = f"smelt_clamp_{z}({{0}}, {{1}}, {{2}})"
        forms.update({(op, z): f"smelt_{op}_{z}({{0}})" for op in _EACH})
        forms.update({(op, z): f"smelt_{op}_{z}({{0}}, {{1}})" for op in _EACH_OF_TWO})
    return forms


FORMS: dict[tuple[str, str], str] = _forms()

# The largest errors of each part of c128 against mpmath (tests/unit/kernel/test_special.py) in units of its last place;
# c64 is rounded once. Not here: functions one of whose parts has zeros off z = 0, where that part cancels.
ULP: dict[str, float] = {
    "abs": 1.2,
    "acos": 3.2,
    "acosh": 3.2,
    "asin": 3.3,
    "asinh": 4.0,
    "atan": 3.0,
    "atanh": 3.0,
    "cbrt": 3.3,
    "cosh": 3.1,
    "cosine": 2.6,
    "exponential": 2.1,
    "log": 3.2,
    "log_plus_one": 5.0,
    "rsqrt": 6.2,
    "sign": 2.1,
    "sine": 2.5,
    "sinh": 2.8,
    "sqrt": 2.1,
    "tan": 5.0,
    "tanh": 5.4,
}
