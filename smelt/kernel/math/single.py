"""f32 functions without branches, so that a loop over them becomes vector code.

exp, log, tanh, … are computed in single precision; powers, angles and circular functions in double, rounded once.
`FORMS` and `PIECES` are merged by the package; coefficients are in `tables.py`. Special values are C's.
"""

from __future__ import annotations

from smelt.kernel.math import tables
from smelt.kernel.math.payne_hanek import select_word
from smelt.kernel.math.pieces import horner

# ln 2 in two parts: the first has few enough bits that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = "0x1.62e4p-1f", "0x1.7f7d1cp-20f"
_LOG2E = "0x1.715476p+0f"
_INF, _NAN = "__builtin_inff()", '__builtin_nanf("")'

PIECES: dict[str, str] = {
    "smelt_power_of_two_f32": """\
static inline f32 smelt_power_of_two_f32(i32 k) { return smelt_from_bits_f32((ui32)(k + 127) << 23); }""",
    # x = n ln 2 + r with |r| <= ln 2 / 2. Adding 1.5 * 2^23 rounds to a whole number and leaves it in the low bits.
    "smelt_exp_split_f32": f"""\
static inline i32 smelt_exp_split_f32(f32 x, f32 *p) {{
  f32 shifted = smelt_fma_f32(x, {_LOG2E}, 0x1.8p+23f), k = shifted - 0x1.8p+23f;
  f32 r = smelt_fma_f32(k, -{_LN2_LOW}, smelt_fma_f32(k, -{_LN2_HIGH}, x));
  *p = smelt_fma_f32({horner("r", tables.EXP_F32, "f32")}, r * r, r);
  return (i32)(smelt_bits_f32(shifted) - 0x4b400000u);
}}""",
    "smelt_exp_f32": """\
static inline f32 smelt_exp_f32(f32 x) {
  f32 low = x < -105.0f ? -105.0f : x, in = low > 89.0f ? 89.0f : low, p;
  i32 n = smelt_exp_split_f32(in, &p), half = n >> 1;
  return (1.0f + p) * smelt_power_of_two_f32(half) * smelt_power_of_two_f32(n - half);
}""",
    # For arguments whose result is in the normal range.
    "smelt_exp_near_f32": """\
static inline f32 smelt_exp_near_f32(f32 x) {
  f32 p;
  i32 n = smelt_exp_split_f32(x, &p);
  return (1.0f + p) * smelt_power_of_two_f32(n);
}""",
    # e^x for x <= 0, zero where that is no normal number: those are slow, and nothing beside the weight of a maximum.
    "smelt_weight_f32": """\
static inline f32 smelt_weight_f32(f32 x) {
  f32 value = smelt_exp_near_f32(x < -87.0f ? -87.0f : x);
  return x < -87.0f ? 0.0f : value;
}""",
    # 2^n (1 + p) - 1 from half of it, since 2^128 is not a number.
    "smelt_expm1_f32": """\
static inline f32 smelt_expm1_f32(f32 x) {
  f32 low = x < -26.0f ? -26.0f : x, in = low > 89.0f ? 89.0f : low, p;
  i32 n = smelt_exp_split_f32(in, &p);
  f32 scale = smelt_power_of_two_f32(n - 1);
  f32 far = 2.0f * smelt_fma_f32(p, scale, scale - 0.5f), value = n == 0 ? p : far;
  return x == 0.0f ? x : value;
}""",
    # log(2^n (1 + f)) with 1 + f between sqrt(1/2) and sqrt(2).
    "smelt_log_sum_f32": f"""\
static inline f32 smelt_log_sum_f32(i32 n, f32 f) {{
  f32 k = (f32)n;
  f32 q = smelt_fma_f32({horner("f", tables.LOG_F32, "f32")}, f, -0.5f);
  f32 low = smelt_fma_f32(q, f * f, k * {_LN2_LOW});
  return smelt_fma_f32(k, {_LN2_HIGH}, f + low);
}}""",
    "smelt_log_f32": f"""\
static inline f32 smelt_log_f32(f32 x) {{
  i32 tiny = x < 0x1p-126f;
  ui32 from = smelt_bits_f32(tiny ? x * 0x1p+23f : x) - 0x3f3504f3u;
  i32 n = ((i32)from >> 23) - (tiny ? 23 : 0);
  f32 value = smelt_log_sum_f32(n, smelt_from_bits_f32((from & 0x7fffffu) + 0x3f3504f3u) - 1.0f);
  f32 zero = x == 0.0f ? -{_INF} : {_NAN};
  f32 real = x > 0.0f ? value : zero;
  return x < {_INF} ? real : x;
}}""",
    # f = (1 + x) / 2^n - 1 straight from x, so that nothing of a small x is lost in 1 + x.
    "smelt_log1p_f32": f"""\
static inline f32 smelt_log1p_f32(f32 x) {{
  ui32 from = smelt_bits_f32(1.0f + x) - 0x3f3504f3u;
  i32 n = (i32)from >> 23;
  f32 scale = smelt_power_of_two_f32(-n);
  f32 exact = smelt_fma_f32(x, scale, scale - 1.0f);
  f32 large = smelt_from_bits_f32((from & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
  f32 value = smelt_log_sum_f32(n, n > 25 ? large : exact);
  f32 least = x == -1.0f ? -{_INF} : {_NAN};
  f32 real = x > -1.0f ? value : least;
  f32 known = x == 0.0f ? x : real;
  return x < {_INF} ? known : x;
}}""",
    "smelt_tanh_f32": f"""\
static inline f32 smelt_tanh_f32(f32 x) {{
  f32 a = smelt_abs_f32(x), z = a * a;
  f32 small = smelt_fma_f32({horner("z", tables.TANH_F32, "f32")} * z, a, a);
  f32 e = smelt_exp_near_f32(-2.0f * (a > 10.0f ? 10.0f : a));
  f32 large = smelt_fma_f32(-2.0f, smelt_divide_near_f32(e, e), 1.0f);
  return smelt_copysign_f32(a < 0.6f ? small : large, x);
}}""",
    # t / (1 + e) for e in [0, 1]. What rounding takes from 1 + e is known while the division runs.
    "smelt_divide_near_f32": """\
static inline f32 smelt_divide_near_f32(f32 t, f32 e) {
  f32 d = 1.0f + e, lost = e - (d - 1.0f), y = t / d;
  return smelt_fma_f32(-lost, y, y);
}""",
    # 1 / (1 + e) or e / (1 + e), where e is e^-|x|: in the normal range until the last product.
    "smelt_logistic_f32": """\
static inline f32 smelt_logistic_f32(f32 x) {
  f32 in = -smelt_abs_f32(x), low = in < -105.0f ? -105.0f : in, p;
  i32 n = smelt_exp_split_f32(low, &p);
  f32 e = (1.0f + p) * smelt_power_of_two_f32(n + 64) * 0x1p-64f;
  return smelt_divide_near_f32((i32)smelt_bits_f32(x) < 0 ? e : 1.0f, e);
}""",
    # Beside 0 a polynomial; further out 1 - e^q(a), where q is log(erfc(a)).
    "smelt_erf_f32": f"""\
static inline f32 smelt_erf_f32(f32 x) {{
  f32 a = smelt_abs_f32(x), z = a * a, b = a > 4.0f ? 4.0f : a;
  f32 small = smelt_fma_f32({horner("z", tables.ERF_F32, "f32")}, a, a);
  f32 large = 1.0f - smelt_exp_near_f32({horner("b", tables.LOG_ERFC_F32, "f32")});
  return smelt_copysign_f32(a < 0.92f ? small : large, x);
}}""",
    # 2^t for |t| < 1000, to 32 bits.
    "smelt_exp2_wide": f"""\
static inline f64 smelt_exp2_wide(f64 t) {{
  f64 shifted = t + 0x1.8p+52, r = t - (shifted - 0x1.8p+52);
  f64 scale = smelt_from_bits_f64((smelt_bits_f64(shifted) + 1023) << 52);
  return smelt_fma_f64({horner("r", tables.EXP2_WIDE, "f64")}, r, 1.0) * scale;
}}""",
    "smelt_erfc_f32": f"""\
static inline f32 smelt_erfc_f32(f32 x) {{
  f64 a = smelt_abs_f64(x), b = a > 10.5 ? 10.5 : a, z = a * a, t = (b - 3.0) / (b + 3.0);
  f64 near = smelt_fma_f64({horner("z", tables.ERF_WIDE, "f64")}, a, a);
  f64 tail = {horner("t", tables.ERFC_WIDE, "f64")} * smelt_exp2_wide(b * b * -0x1.71547652b82fep+0) / (1.0 + 2.0 * b);
  f64 value = a < 0.5 ? 1.0 - near : tail;
  return (f32)(x < 0.0f ? 2.0 - value : value);
}}""",
    "smelt_pow_f32": f"""\
static inline f32 smelt_pow_f32(f32 x, f32 y) {{
  f64 a = smelt_abs_f64(x), b = y;
  ui64 from = smelt_bits_f64(a) - 0x3fe6a09e667f3bcdull;
  f64 m = smelt_from_bits_f64((from & 0xfffffffffffffull) + 0x3fe6a09e667f3bcdull);
  f64 n = smelt_from_bits_f64((from >> 52 ^ 0x800) | 0x4330000000000000ull) - 0x1.00000000008p+52;
  f64 s = (m - 1.0) / (m + 1.0), z = s * s;
  f64 log = smelt_fma_f64({horner("z", tables.ATANH_WIDE, "f64")} * z, s, s + s);
  f64 finite = smelt_fma_f64(log, 0x1.71547652b82fep+0, n);
  f64 over = a > 0x1p+128 ? a : finite, log2 = a == 0.0 ? -__builtin_inf() : over;
  f64 t = b * log2, low = t < -200.0 ? -200.0 : t;
  f64 size = smelt_exp2_wide(low > 200.0 ? 200.0 : low);
  f64 half = 0.5 * b;
  i32 whole = smelt_trunc_f64(b) == b, odd = whole & (smelt_trunc_f64(half) != half);
  i32 negative = (i32)(smelt_bits_f32(x) >> 31);
  f64 turned = (negative & odd) ? -size : size;
  i32 undefined = (x < 0.0f) & (whole ^ 1) & (a < 0x1p+128);
  f64 value = undefined ? __builtin_nan("") : turned;
  f64 known = ((x != x) | (y != y)) ? a + b : value;
  i32 one = (y == 0.0f) | (x == 1.0f) | ((a == 1.0) & (smelt_abs_f64(b) > 0x1p+128));
  return (f32)(one ? 1.0 : known);
}}""",
    # Two of Halley's steps from a third of the exponent: each triples the digits.
    "smelt_cbrt_f32": """\
static inline f32 smelt_cbrt_f32(f32 x) {
  f64 a = smelt_abs_f64(x);
  f64 t = smelt_from_bits_f64((ui64)((ui32)(smelt_bits_f64(a) >> 32) / 3 + 0x2a9f7893u) << 32), r = t * t * t;
  t = t * (r + a + a) / (r + r + a);
  r = t * t * t;
  t = t * (r + a + a) / (r + r + a);
  i32 plain = (a > 0.0) & (a < 0x1p+128);
  return plain ? (f32)smelt_copysign_f64(t, x) : x;
}""",
    # The smaller over the larger is at most 1; above tan(pi/8) turned back by a further eighth.
    "smelt_atan2_f32": f"""\
static inline f32 smelt_atan2_f32(f32 y, f32 x) {{
  f64 a = smelt_abs_f64(x), b = smelt_abs_f64(y);
  i32 steep = b > a;
  f64 high = steep ? b : a, low = steep ? a : b;
  i32 fold = low > 0x1.a827999fcef32p-2 * high;
  f64 q = (fold ? low - high : low) / (fold ? low + high : high), z = q * q;
  f64 v = smelt_fma_f64({horner("z", tables.ATAN_WIDE, "f64")} * z, q, q) + (fold ? 0x1.921fb54442d18p-1 : 0.0);
  f64 both = low > 0x1p+128 ? 0x1.921fb54442d18p-1 : v, first = high == 0.0 ? 0.0 : both;
  f64 quarter = steep ? 0x1.921fb54442d18p+0 - first : first;
  f64 turned = smelt_bits_f32(x) >> 31 ? 0x1.921fb54442d18p+1 - quarter : quarter;
  f64 known = ((x != x) | (y != y)) ? a + b : turned;
  return (f32)smelt_copysign_f64(known, y);
}}""",
    # |x| as quarter turns, whole turns taken away, in units of 2^-62: for 2^20 <= |x| < inf.
    "smelt_far_quarters_f32": f"""\
static inline ui64 smelt_far_quarters_f32(ui32 bits) {{
  ui32 start = (bits >> 23 & 0xff) - 120, at = start >> 5, left = start & 31, right = 31 - left;
  ui32 a = {select_word("at", 1, 5)};
  ui32 b = {select_word("at", 2, 5)};
  ui32 c = {select_word("at", 3, 5)};
  ui32 d = {select_word("at", 4, 5)};
  ui32 m = (bits & 0x7fffffu) | 0x800000u;
  ui32 high = m * (a << left | b >> 1 >> right);
  ui64 middle = (ui64)m * (b << left | c >> 1 >> right), low = (ui64)m * (c << left | d >> 1 >> right);
  return ((ui64)high << 32) + middle + (low >> 32);
}}""",
    # x = quadrant pi/2 + r. Below 2^20 pi/2 is taken away in two parts, the first with an exact product.
    "smelt_quarters_f32": """\
static inline f64 smelt_quarters_f32(f32 x, ui32 *quadrant) {
  f64 wide = x, shifted = wide * 0x1.45f306dc9c883p-1 + 0x1.8p+52, k = shifted - 0x1.8p+52;
  f64 near = (wide - k * 0x1.921fb544p+0) - k * 0x1.0b4611a626331p-34;
  ui32 bits = smelt_bits_f32(x);
  ui64 turned = smelt_far_quarters_f32(bits);
  f64 far = (f64)(i64)(turned << 2) * 0x1.921fb54442d18p-64, far_signed = bits >> 31 ? -far : far;
  ui32 whole = (ui32)(turned >> 62) + (ui32)(turned >> 61 & 1), whole_signed = bits >> 31 ? 0 - whole : whole;
  f32 a = smelt_abs_f32(x);
  i32 large = a >= 0x1p+20f;
  *quadrant = large ? whole_signed : (ui32)smelt_bits_f64(shifted);
  f64 known = a < __builtin_inff() ? far_signed : wide - wide;
  return large ? known : near;
}""",
    "smelt_sin_wide": f"""\
static inline f64 smelt_sin_wide(f64 r) {{
  f64 z = r * r;
  return smelt_fma_f64({horner("z", tables.SIN_WIDE, "f64")} * z, r, r);
}}""",
    "smelt_cos_wide": f"""\
static inline f64 smelt_cos_wide(f64 r) {{
  f64 z = r * r;
  return smelt_fma_f64(smelt_fma_f64({horner("z", tables.COS_WIDE, "f64")}, z, -0.5), z, 1.0);
}}""",
    "smelt_sin_f32": """\
static inline f32 smelt_sin_f32(f32 x) {
  ui32 quadrant;
  f64 r = smelt_quarters_f32(x, &quadrant);
  f64 value = quadrant & 1 ? smelt_cos_wide(r) : smelt_sin_wide(r);
  f32 known = (f32)(quadrant & 2 ? -value : value);
  return x == 0.0f ? x : known;
}""",
    "smelt_cos_f32": """\
static inline f32 smelt_cos_f32(f32 x) {
  ui32 quadrant;
  f64 r = smelt_quarters_f32(x, &quadrant);
  f64 value = quadrant & 1 ? smelt_sin_wide(r) : smelt_cos_wide(r);
  return (f32)((quadrant + 1) & 2 ? -value : value);
}""",
    "smelt_tan_f32": """\
static inline f32 smelt_tan_f32(f32 x) {
  ui32 quadrant;
  f64 r = smelt_quarters_f32(x, &quadrant), s = smelt_sin_wide(r), c = smelt_cos_wide(r);
  f32 known = (f32)((quadrant & 1 ? -c : s) / (quadrant & 1 ? s : c));
  return x == 0.0f ? x : known;
}""",
}

# op → the function's name, here and in `double.py`
NAMES = {
    "atan2": "atan2",
    "cbrt": "cbrt",
    "cosine": "cos",
    "erf": "erf",
    "erfc": "erfc",
    "exponential": "exp",
    "exponential_minus_one": "expm1",
    "log": "log",
    "log_plus_one": "log1p",
    "logistic": "logistic",
    "power": "pow",
    "sine": "sin",
    "tan": "tan",
    "tanh": "tanh",
}


def forms(suffix: str) -> dict[tuple[str, str], str]:
    """One call per op."""
    two = ("atan2", "power")
    return {(op, suffix): f"smelt_{name}_{suffix}({'{0}, {1}' if op in two else '{0}'})" for op, name in NAMES.items()}


FORMS = forms("f32") | {("weight", "f32"): "smelt_weight_f32({0})"}
