"""Quantisation, for `smelt.round_to_byte`: division by a known scale, clamping, rounding to the nearest integer.

All are exact: `quotient` is the correctly rounded division by a divisor whose reciprocal is known in two parts. Same
form as `real`; merged by the package.
"""

from __future__ import annotations

FORMS: dict[tuple[str, str], str] = {
    ("within", "f32"): "smelt_within_f32({0}, {1}, {2})",
    ("quotient", "f32"): "smelt_quotient_f32({0}, {1}, {2}, {3})",
    ("nearest", "f32"): "smelt_nearest_f32({0})",
}
PIECES: dict[str, str] = {
    # nan becomes `low`
    "smelt_within_f32": """\
static inline f32 smelt_within_f32(f32 x, f32 low, f32 high) {
  f32 above = x > low ? x : low;
  return above < high ? above : high;
}""",
    # `inverse` + `rest` is 1 / s to twice the digits, so q is next to x / s, and one step of Newton rounds it right:
    # x - q s is exact (Markstein). x / s must be neither huge nor tiny.
    "smelt_quotient_f32": """\
static inline f32 smelt_quotient_f32(f32 x, f32 s, f32 inverse, f32 rest) {
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__) || defined(__riscv_flen))
  f32 q = __builtin_fmaf(x, inverse, x * rest);
  return __builtin_fmaf(__builtin_fmaf(-q, s, x), inverse, q);
#else
  (void)inverse, (void)rest;
  return x / s;
#endif
}""",
    # The bits of 1.5 * 2^23 plus a number below 2^22 end in the number, rounded to even.
    "smelt_nearest_f32": """\
static inline i32 smelt_nearest_f32(f32 x) { return (i32)(smelt_bits_f32(x + 0x1.8p+23f) - 0x4b400000u); }""",
}
