"""f64 functions, without branches but for circular functions of large arguments.

Where one double is not enough a value is the sum of two, `high + low`. `FORMS` and `PIECES` are merged by the package;
coefficients are in `tables.py`. Special values are C's.
"""

from __future__ import annotations

from smelt.kernel.math import tables
from smelt.kernel.math.payne_hanek import table
from smelt.kernel.math.pieces import horner, number
from smelt.kernel.math.single import forms

# ln 2, in parts whose products with an exponent are exact but for the last.
_LN2_HIGH, _LN2_LOW = "0x1.62e42fefa38p-1", "0x1.ef35793c7673p-45"
_LOG2E = "0x1.71547652b82fep+0"
_ROOT = "0x3fe6a09e667f3bcdull"  # sqrt(1/2)
_INF, _NAN = "__builtin_inf()", '__builtin_nan("")'

PIECES: dict[str, str] = {
    # What rounding took from a + b (Knuth) and from a * b (one multiply-add, or Dekker's product of halves).
    "smelt_sum_error_f64": """\
static inline f64 smelt_sum_error_f64(f64 a, f64 b, f64 sum) {
  f64 part = sum - a;
  return (a - (sum - part)) + (b - part);
}""",
    "smelt_product_error_f64": """\
static inline f64 smelt_product_error_f64(f64 a, f64 b, f64 product) {
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__) || defined(__riscv_flen))
  return __builtin_fma(a, b, -product);
#else
  f64 ah = smelt_from_bits_f64((smelt_bits_f64(a) + 0x4000000ull) & ~0x7ffffffull), al = a - ah;
  f64 bh = smelt_from_bits_f64((smelt_bits_f64(b) + 0x4000000ull) & ~0x7ffffffull), bl = b - bh;
  return ((ah * bh - product) + (ah * bl + al * bh)) + al * bl;
#endif
}""",
    # high + low = n ln 2 + r, and p = e^r - 1.
    "smelt_exp_split_f64": f"""\
static inline i32 smelt_exp_split_f64(f64 high, f64 low, f64 *p) {{
  f64 shifted = high * {_LOG2E} + 0x1.8p+52, k = shifted - 0x1.8p+52;
  f64 near = high - k * {_LN2_HIGH}, rest = low - k * {_LN2_LOW}, r = near + rest;
  f64 lost = (near - r) + rest;
  *p = r + smelt_fma_f64({horner("r", tables.EXP_F64, "f64")}, r * r, lost);
  return (i32)(ui32)smelt_bits_f64(shifted);
}}""",
    # e^(high + low) 2^shift, in two steps so that neither power of two leaves the range.
    "smelt_exp_sum_f64": """\
static inline f64 smelt_exp_sum_f64(f64 high, f64 low, i32 shift) {
  f64 above = high < -800.0 ? -800.0 : high, in = above > 720.0 ? 720.0 : above, p;
  i32 n = smelt_exp_split_f64(in, low, &p) + shift, half = n >> 1;
  return (1.0 + p) * smelt_power_of_two(half) * smelt_power_of_two(n - half);
}""",
    "smelt_exp_f64": "static inline f64 smelt_exp_f64(f64 x) { return smelt_exp_sum_f64(x, 0.0, 0); }",
    "smelt_expm1_f64": """\
static inline f64 smelt_expm1_f64(f64 x) {
  f64 above = x < -60.0 ? -60.0 : x, in = above > 720.0 ? 720.0 : above, p;
  i32 n = smelt_exp_split_f64(in, 0.0, &p);
  i32 most = n > 1024 ? 1024 : n;
  f64 scale = smelt_power_of_two(most - 1);
  f64 far = 2.0 * smelt_fma_f64(p, scale, scale - 0.5), value = n == 0 ? p : far;
  f64 large = n > 1024 ? __builtin_inf() : value, known = x != x ? x : large;
  return x == 0.0 ? x : known;
}""",
    # log(2^n (1 + f)): with s = f / (2 + f) it is n ln 2 + f - f²/2 + s (f²/2 + 2s²/3 + …).
    "smelt_log_sum_f64": f"""\
static inline f64 smelt_log_sum_f64(i32 n, f64 f) {{
  f64 k = n, s = f / (2.0 + f), z = s * s, half = 0.5 * f * f;
  f64 series = z * {horner("z", tables.ATANH_F64, "f64")};
  return k * {_LN2_HIGH} - ((half - (s * (half + series) + k * {_LN2_LOW})) - f);
}}""",
    "smelt_log_f64": f"""\
static inline f64 smelt_log_f64(f64 x) {{
  i32 tiny = x < 0x1p-1022;
  ui64 from = smelt_bits_f64(tiny ? x * 0x1p+54 : x) - {_ROOT};
  i32 n = (i32)((i64)from >> 52) - (tiny ? 54 : 0);
  f64 value = smelt_log_sum_f64(n, smelt_from_bits_f64((from & 0xfffffffffffffull) + {_ROOT}) - 1.0);
  f64 zero = x == 0.0 ? -{_INF} : {_NAN};
  f64 real = x > 0.0 ? value : zero;
  return x < {_INF} ? real : x;
}}""",
    "smelt_log1p_f64": f"""\
static inline f64 smelt_log1p_f64(f64 x) {{
  ui64 from = smelt_bits_f64(1.0 + x) - {_ROOT};
  i32 n = (i32)((i64)from >> 52);
  f64 scale = smelt_power_of_two(n > 1000 ? 0 : -n);
  f64 exact = smelt_fma_f64(x, scale, scale - 1.0);
  f64 large = smelt_from_bits_f64((from & 0xfffffffffffffull) + {_ROOT}) - 1.0;
  f64 value = smelt_log_sum_f64(n, n > 55 ? large : exact);
  f64 least = x == -1.0 ? -{_INF} : {_NAN};
  f64 real = x > -1.0 ? value : least;
  f64 known = x == 0.0 ? x : real;
  return x < {_INF} ? known : x;
}}""",
    "smelt_tanh_f64": f"""\
static inline f64 smelt_tanh_f64(f64 x) {{
  f64 a = smelt_abs_f64(x), z = a * a;
  f64 small = smelt_fma_f64({horner("z", tables.TANH_F64, "f64")} * z, a, a);
  f64 large = 1.0 - 2.0 / (1.0 + smelt_exp_f64(2.0 * (a > 20.0 ? 20.0 : a)));
  return smelt_copysign_f64(a < 0.6 ? small : large, x);
}}""",
    # e^x for x <= 0, and what rounding took from it.
    "smelt_exp_lost_f64": """\
static inline f64 smelt_exp_lost_f64(f64 x, f64 *e) {
  f64 in = x < -800.0 ? -800.0 : x, p;
  i32 n = smelt_exp_split_f64(in, 0.0, &p), half = n >> 1;
  f64 sum = 1.0 + p, first = smelt_power_of_two(half), second = smelt_power_of_two(n - half);
  *e = sum * first * second;
  return ((1.0 - sum) + p) * first * second;
}""",
    # e / (1 + e) or 1 / (1 + e), corrected by the rounding error: w is 1 / (1 + e).
    "smelt_logistic_f64": """\
static inline f64 smelt_logistic_f64(f64 x) {
  f64 e, lost = smelt_exp_lost_f64(-smelt_abs_f64(x), &e), sum = 1 + e, q = (x < 0 ? e : 1) / sum;
  f64 w = x < 0 ? 1 - q : q, left = (1 - sum) + e;
  f64 off = x < 0 ? lost * w - q * left : -(lost + left) * w;
  return x != x ? x : q + off * w;
}""",
    "smelt_erf_near_f64": f"""\
static inline f64 smelt_erf_near_f64(f64 a) {{
  f64 z = a * a;
  return smelt_fma_f64({horner("z", tables.ERF_F64, "f64")}, a, a);
}}""",
    # erfc(a) = e^(-a²) g / (1 + 2a), where g is nearly constant in t; q + ql is the quotient, e^(-a²) is 2^n (1 + p).
    "smelt_erfc_tail_f64": f"""\
static inline f64 smelt_erfc_tail_f64(f64 a) {{
  f64 b = a > 28.0 ? 28.0 : a, t = (b - 3.0) / (b + 3.0), square = b * b, p;
  i32 n = smelt_exp_split_f64(-square, -smelt_product_error_f64(b, b, square), &p), half = n >> 1;
  f64 first = {number(tables.ERFC_F64[0], "f64")}, rest = t * {horner("t", tables.ERFC_F64[1:], "f64")};
  f64 g = first + rest, gl = ((first - g) + rest) + {number(tables.ERFC_F64_REST, "f64")};
  f64 d = 1.0 + 2.0 * b, dl = 1.0 - (d - 2.0 * b), q = g / d, product = q * d;
  f64 ql = (((g - product) - smelt_product_error_f64(q, d, product)) + (gl - q * dl)) / d;
  return (q + smelt_fma_f64(q, p, ql)) * smelt_power_of_two(half) * smelt_power_of_two(n - half);
}}""",
    "smelt_erf_f64": """\
static inline f64 smelt_erf_f64(f64 x) {
  f64 a = smelt_abs_f64(x);
  return smelt_copysign_f64(a < 1.0 ? smelt_erf_near_f64(a) : 1.0 - smelt_erfc_tail_f64(a), x);
}""",
    "smelt_erfc_f64": """\
static inline f64 smelt_erfc_f64(f64 x) {
  f64 a = smelt_abs_f64(x), value = a < 0.8 ? 1.0 - smelt_erf_near_f64(a) : smelt_erfc_tail_f64(a);
  return x < 0.0 ? 2.0 - value : value;
}""",
    # log a = high + *low for finite a > 0, to about 68 bits: 2s + 2s³/3 in two doubles, the rest of the series in one.
    "smelt_log_pair_f64": f"""\
static inline f64 smelt_log_pair_f64(f64 a, f64 *low) {{
  i32 tiny = a < 0x1p-1022;
  ui64 from = smelt_bits_f64(tiny ? a * 0x1p+54 : a) - {_ROOT};
  f64 k = (f64)((i32)((i64)from >> 52) - (tiny ? 54 : 0));
  f64 m = smelt_from_bits_f64((from & 0xfffffffffffffull) + {_ROOT}), f = m - 1.0, d = m + 1.0;
  f64 s = f / d, product = s * d;
  f64 sl = ((f - product) - smelt_product_error_f64(s, d, product) - s * (m - (d - 1.0))) / d;
  f64 z = s * s, zl = smelt_product_error_f64(s, s, z) + 2.0 * s * sl;
  f64 u = s * z, ul = smelt_product_error_f64(s, z, u) + (s * zl + sl * z);
  f64 third = 0x1.5555555555555p-1, v = u * third;
  f64 vl = smelt_product_error_f64(u, third, v) + (u * 0x1.5555555555555p-55 + ul * third);
  f64 tail = u * z * {horner("z", tables.ATANH_TAIL_F64, "f64")};
  f64 sum = 2.0 * s + v, rest = smelt_sum_error_f64(2.0 * s, v, sum) + (2.0 * sl + (vl + tail));
  f64 whole = k * {_LN2_HIGH}, high = whole + sum;
  *low = smelt_sum_error_f64(whole, sum, high) + (rest + k * {_LN2_LOW});
  return high;
}}""",
    "smelt_pow_f64": f"""\
static inline f64 smelt_pow_f64(f64 x, f64 y) {{
  f64 a = smelt_abs_f64(x), low, finite = smelt_log_pair_f64(a, &low);
  f64 over = a < {_INF} ? finite : a, log = a == 0.0 ? -{_INF} : over;
  f64 t = y * log, rest = smelt_product_error_f64(y, log, t) + y * low;
  f64 size = smelt_exp_sum_f64(t, smelt_abs_f64(t) < 800.0 ? rest : 0.0, 0);
  f64 half = 0.5 * y;
  i32 whole = smelt_trunc_f64(y) == y, odd = whole & (smelt_trunc_f64(half) != half);
  i32 negative = (i32)(smelt_bits_f64(x) >> 63);
  f64 turned = (negative & odd) ? -size : size;
  f64 value = ((x < 0.0) & (whole ^ 1) & (a < {_INF})) ? {_NAN} : turned;
  f64 known = ((x != x) | (y != y)) ? x + y : value;
  i32 one = (y == 0.0) | (x == 1.0) | ((a == 1.0) & (smelt_abs_f64(y) == {_INF}));
  return one ? 1.0 : known;
}}""",
    # Two of Halley's steps, then one of Newton's from a value of 26 bits, whose square is exact.
    "smelt_cbrt_f64": f"""\
static inline f64 smelt_cbrt_f64(f64 x) {{
  f64 size = smelt_abs_f64(x);
  i32 tiny = size < 0x1p-1000, plain = (size > 0.0) & (size < {_INF});
  f64 a = (tiny ? size * 0x1p+96 : size) * (size > 0x1p+1000 ? 0x1p-96 : 1.0);
  f64 t = smelt_from_bits_f64((ui64)((ui32)(smelt_bits_f64(a) >> 32) / 3 + 0x2a9f7893u) << 32), r = t * t * t;
  t = t * ((r + a + a) / (r + r + a));
  r = t * t * t;
  t = t * ((r + a + a) / (r + r + a));
  t = smelt_from_bits_f64((smelt_bits_f64(t) + 0x4000000ull) & ~0x7ffffffull);
  r = a / (t * t);
  t = t + t * ((r - t) / (t + t + r));
  t = t * (tiny ? 0x1p-32 : 1.0) * (size > 0x1p+1000 ? 0x1p+32 : 1.0);
  return plain ? smelt_copysign_f64(t, x) : x;
}}""",
    # The angle is j pi/4 plus or minus atan(q) with |q| <= tan(pi/8); pi/4 in two parts so that j pi/4 is exact.
    "smelt_atan2_f64": f"""\
static inline f64 smelt_atan2_f64(f64 y, f64 x) {{
  f64 a = smelt_abs_f64(x), b = smelt_abs_f64(y);
  i32 steep = b > a, back = (i32)(smelt_bits_f64(x) >> 63);
  f64 scale = (steep ? b : a) > 0x1p+1000 ? 0.25 : 1.0;
  f64 high = (steep ? b : a) * scale, low = (steep ? a : b) * scale;
  i32 both = low == {_INF}, fold = (low > 0x1.a827999fcef32p-2 * high) | both;
  f64 num = fold ? low - high : low, den = fold ? low + high : high, ratio = num / den, product = ratio * den;
  f64 numl = fold ? smelt_sum_error_f64(low, -high, num) : 0.0, denl = fold ? smelt_sum_error_f64(low, high, den) : 0.0;
  f64 left = ((num - product) - smelt_product_error_f64(ratio, den, product)) + (numl - ratio * denl);
  i32 plain = (low > 0x1p-900) & (high < {_INF}) & (smelt_abs_f64(ratio) > 0x1p-900);
  f64 q = (both | (high == 0.0)) ? 0.0 : ratio, z = q * q;
  f64 ql = plain ? left / den : 0.0;
  f64 v = q, vl = smelt_fma_f64({horner("z", tables.ATAN_F64, "f64")} * z, q, ql);
  i32 j = fold, first = steep ? 2 - j : j, eighths = back ? 4 - first : first;
  f64 part = (steep ^ back) ? -v : v, rest = (steep ^ back) ? -vl : vl, count = (f64)eighths;
  f64 base = count * 0x1.921fb54442dp-1, sum = base + part;
  f64 angle = sum + (smelt_sum_error_f64(base, part, sum) + (rest + count * 0x1.8469898cc517p-49));
  f64 known = ((x != x) | (y != y)) ? a + b : angle;
  return smelt_copysign_f64(known, y);
}}""",
    "smelt_two_over_pi": table(),
    # x = q pi/2 + r + *low for |x| >= 2^20, from the bits of 2/pi that neither are whole turns nor vanish.
    "smelt_far_quarters_f64": """\
static __attribute__((noinline)) f64 smelt_far_quarters_f64(f64 x, f64 *low, ui32 *quadrant) {
  ui64 bits = smelt_bits_f64(x), m = (bits & 0xfffffffffffffull) | 0x10000000000000ull;
  ui32 start = (ui32)(bits >> 52 & 0x7ff) - 1075 + 62, shift = start & 31, parts[2] = {(ui32)m, (ui32)(m >> 32)};
  ui32 product[6] = {0, 0, 0, 0, 0, 0};
  for (i32 j = 0; j < 2; j++) {
    ui64 carry = 0;
    for (i32 k = 0; k + j < 6; k++) {
      ui32 at = (start >> 5) + 5 - (ui32)k;
      ui64 two = (ui64)smelt_two_over_pi[at] << 32 | smelt_two_over_pi[at + 1];
      carry += (ui64)parts[j] * (ui32)(two << shift >> 32) + product[k + j];
      product[k + j] = (ui32)carry;
      carry >>= 32;
    }
  }
  ui32 q = (product[5] >> 30) + (product[5] >> 29 & 1);
  i32 top = (i32)(product[5] << 2 | product[4] >> 30);
  f64 a = (f64)top * 0x1p-32, b = (f64)(product[4] << 2 | product[3] >> 30) * 0x1p-64;
  f64 c = (f64)(product[3] << 2 | product[2] >> 30) * 0x1p-96, d = (f64)product[2] * 0x1p-126;
  f64 ab = a + b, e = smelt_sum_error_f64(a, b, ab), ec = e + c, rest = smelt_sum_error_f64(e, c, ec) + d;
  f64 f = ab + ec, g = smelt_sum_error_f64(ab, ec, f) + rest;
  f64 r = f * 0x1.921fb54442d18p+0;
  f64 s = smelt_product_error_f64(f, 0x1.921fb54442d18p+0, r) + (f * 0x1.1a62633145c07p-54 + g * 0x1.921fb54442d18p+0);
  i32 negative = (i32)(bits >> 63);
  *quadrant = negative ? 0 - q : q;
  *low = negative ? -s : s;
  return negative ? -r : r;
}""",
    # Below 2^20 pi/2 is taken away in parts of 33 bits, whose products with k are exact.
    "smelt_quarters_f64": """\
static inline f64 smelt_quarters_f64(f64 x, f64 *low, ui32 *quadrant) {
  f64 a = smelt_abs_f64(x);
  if (__builtin_expect(!(a < 0x1p+20), 0)) {
    *quadrant = 0;
    *low = 0.0;
    return a < __builtin_inf() ? smelt_far_quarters_f64(x, low, quadrant) : x - x;
  }
  f64 shifted = x * 0x1.45f306dc9c883p-1 + 0x1.8p+52, k = shifted - 0x1.8p+52;
  f64 first = x - k * 0x1.921fb544p+0, w = k * 0x1.0b4611a6p-34, second = first - w;
  f64 lost = smelt_sum_error_f64(first, -w, second);
  w = k * 0x1.3198a2ep-69;
  f64 third = second - w, rest = lost + smelt_sum_error_f64(second, -w, third) - k * 0x1.b839a252049c1p-104;
  f64 r = third + rest;
  *low = smelt_sum_error_f64(third, rest, r);
  *quadrant = (ui32)smelt_bits_f64(shifted);
  return r;
}""",
    # Both also give what rounding took from them, which only the tangent needs.
    "smelt_sin_near_f64": f"""\
static inline f64 smelt_sin_near_f64(f64 r, f64 low, f64 *lost) {{
  f64 z = r * r;
  f64 rest = smelt_fma_f64({horner("z", tables.SIN_F64, "f64")} * z, r, smelt_fma_f64(-0.5 * z, low, low));
  f64 value = r + rest;
  *lost = (r - value) + rest;
  return value;
}}""",
    "smelt_cos_near_f64": f"""\
static inline f64 smelt_cos_near_f64(f64 r, f64 low, f64 *lost) {{
  f64 z = r * r, half = 0.5 * z, w = 1.0 - half;
  f64 rest = ((1.0 - w) - half) + smelt_fma_f64({horner("z", tables.COS_F64, "f64")} * z, z, -r * low);
  f64 value = w + rest;
  *lost = (w - value) + rest;
  return value;
}}""",
    "smelt_sin_f64": """\
static inline f64 smelt_sin_f64(f64 x) {
  ui32 quadrant;
  f64 lost, low, r = smelt_quarters_f64(x, &low, &quadrant);
  f64 value = quadrant & 1 ? smelt_cos_near_f64(r, low, &lost) : smelt_sin_near_f64(r, low, &lost);
  f64 known = quadrant & 2 ? -value : value;
  return x == 0.0 ? x : known;
}""",
    "smelt_cos_f64": """\
static inline f64 smelt_cos_f64(f64 x) {
  ui32 quadrant;
  f64 lost, low, r = smelt_quarters_f64(x, &low, &quadrant);
  f64 value = quadrant & 1 ? smelt_sin_near_f64(r, low, &lost) : smelt_cos_near_f64(r, low, &lost);
  return (quadrant + 1) & 2 ? -value : value;
}""",
    "smelt_tan_f64": """\
static inline f64 smelt_tan_f64(f64 x) {
  ui32 quadrant;
  f64 low, sl, cl, r = smelt_quarters_f64(x, &low, &quadrant);
  f64 s = smelt_sin_near_f64(r, low, &sl), c = smelt_cos_near_f64(r, low, &cl);
  i32 turned = quadrant & 1;
  f64 high = turned ? -c : s, rest = turned ? -cl : sl, below = turned ? s : c, q = high / below;
  f64 known = q + (rest - q * (turned ? sl : cl)) / below;
  return x == 0.0 ? x : known;
}""",
}

FORMS = forms("f64")
