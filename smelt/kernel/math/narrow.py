"""Floats below 32 bits: how they look in memory, and how an f32 is rounded to one of them.

A register holds such a value as f32. `smelt_load_X` and `smelt_store_X` go between the bit pattern and the register,
`smelt_round_X` gives the nearest value of format X, as ml_dtypes does. `FORMS` holds the ops that need the bits.
"""

from __future__ import annotations

from math import frexp
from typing import Literal

from smelt.frozen import Frozen
from smelt.kernel.math.pieces import number

# What a format does beyond its largest number: "ieee" has infinities, "nan" has one nan with all bits set, "fnuz" has
# one in the place of -0, "finite" has neither and stays at its largest number.
Rule = Literal["ieee", "nan", "fnuz", "finite"]


class Format(Frozen):
    """`mantissa` bits behind the point; the least normal number is 2^(1 - bias)."""

    width: int
    mantissa: int
    bias: int
    rule: Rule

    @property
    def least(self) -> float:
        """The smallest normal number."""
        return 2.0 ** (1 - self.bias)

    @property
    def unit(self) -> float:
        """The smallest number above 0."""
        return self.least * 2.0**-self.mantissa

    @property
    def infinity(self) -> int:
        """The pattern that follows the last one of a finite number, without the sign."""
        exponent = self.width - 1 - self.mantissa
        match self.rule:
            case "ieee":
                return ((1 << exponent) - 1) << self.mantissa
            case "nan":
                return (1 << (self.width - 1)) - 1
            case _:
                return 1 << (self.width - 1)

    @property
    def largest(self) -> float:
        code = self.infinity - 1
        exponent, fraction = code >> self.mantissa, code & ((1 << self.mantissa) - 1)
        return (1 + fraction * 2.0**-self.mantissa) * 2.0 ** (exponent - self.bias)


FORMATS: dict[str, Format] = {
    "f4E2M1FN": Format(4, 1, 1, "finite"),
    "f6E2M3FN": Format(6, 3, 1, "finite"),
    "f6E3M2FN": Format(6, 2, 3, "finite"),
    "f8E3M4": Format(8, 4, 3, "ieee"),
    "f8E4M3": Format(8, 3, 7, "ieee"),
    "f8E4M3FN": Format(8, 3, 7, "nan"),
    "f8E4M3FNUZ": Format(8, 3, 8, "fnuz"),
    "f8E4M3B11FNUZ": Format(8, 3, 11, "fnuz"),
    "f8E5M2": Format(8, 2, 15, "ieee"),
    "f8E5M2FNUZ": Format(8, 2, 16, "fnuz"),
    "f16": Format(16, 10, 15, "ieee"),
}

PIECES: dict[str, str] = {
    "smelt_load_bf16": "static inline f32 smelt_load_bf16(ui16 u) { return smelt_from_bits_f32((ui32)u << 16); }",
    "smelt_store_bf16": "static inline ui16 smelt_store_bf16(f32 x) { return (ui16)(smelt_bits_f32(x) >> 16); }",
    "smelt_round_bf16": """\
static inline f32 smelt_round_bf16(f32 x) {
#ifdef __CUDACC__
  ui16 narrow;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(narrow) : "f"(x));
  return smelt_from_bits_f32((ui32)narrow << 16);
#endif
  ui32 bits = smelt_bits_f32(x), near = bits + 0x7fffu + (bits >> 16 & 1);
  return smelt_from_bits_f32((x != x ? bits | 0x400000u : near) & 0xffff0000u);
}""",
    # bf16 has no wider exponent to round in: below 2^-126 f32 would round to 2^-149 first and to 2^-133 then. There the
    # result is computed larger by 2^133, in which it is whole.
    "smelt_multiply_bf16": """\
static inline f32 smelt_multiply_bf16(f32 x, f32 y) {
  f32 p = x * y, fine = smelt_round_nearest_even_f32((x * 0x1p+66f) * (y * 0x1p+67f)) * 0x1p-133f;
  return ((p != 0.0f) & (smelt_abs_f32(p) < 0x1p-126f)) ? fine : p;
}""",
    "smelt_divide_bf16": """\
static inline f32 smelt_divide_bf16(f32 x, f32 y) {
  f32 q = x / y, fine = smelt_round_nearest_even_f32((x * 0x1p+66f) / (y * 0x1p-67f)) * 0x1p-133f;
  return ((q != 0.0f) & (smelt_abs_f32(q) < 0x1p-126f)) ? fine : q;
}""",
    "smelt_square_bf16": "static inline f32 smelt_square_bf16(f32 x) { return smelt_multiply_bf16(x, x); }",
    # Powers of two from 2^-127 on; no sign, no zero, no infinity.
    "smelt_load_f8E8M0FNU": """\
static inline f32 smelt_load_f8E8M0FNU(ui8 u) {
  ui32 bits = u ? (ui32)u << 23 : 0x400000u;
  return smelt_from_bits_f32(u == 255 ? 0x7fc00000u : bits);
}""",
    "smelt_store_f8E8M0FNU": """\
static inline ui8 smelt_store_f8E8M0FNU(f32 x) { return (ui8)(x != x ? 255 : smelt_bits_f32(x) >> 23); }""",
    "smelt_round_f8E8M0FNU": """\
static inline f32 smelt_round_f8E8M0FNU(f32 x) {
  ui32 bits = smelt_bits_f32(x), small = bits >= 0x600000u ? 1 : 0;
  ui32 near = bits < 0x800000u ? small : (bits + 0x400000u) >> 23, code = x == 0.0f ? 0 : near;
  return smelt_load_f8E8M0FNU((ui8)(((x >= 0.0f) & (code < 255)) ? code : 255));
}""",
    "smelt_next_after_f8E8M0FNU": """\
static inline f32 smelt_next_after_f8E8M0FNU(f32 x, f32 y) {
  i32 code = smelt_store_f8E8M0FNU(x), next = code + (y > x) - (y < x);
  return ((x != x) | (y != y)) ? x + y : smelt_load_f8E8M0FNU((ui8)next);
}""",
    "smelt_next_after_bf16": """\
static inline f32 smelt_next_after_bf16(f32 x, f32 y) {
  ui32 bits = smelt_bits_f32(x);
  f32 step = smelt_from_bits_f32((y > x) == (x > 0.0f) ? bits + 0x10000u : bits - 0x10000u);
  f32 next = x == 0.0f ? smelt_copysign_f32(0x1p-133f, y) : step, value = x == y ? y : next;
  return ((x != x) | (y != y)) ? x + y : value;
}""",
    "smelt_reduce_precision_f16": """\
static inline f32 smelt_reduce_precision_f16(f32 x, i32 exponent, i32 mantissa) {
  ui32 bits = smelt_store_f16(x), sign = bits & 0x8000u;
  i32 cut = 10 - mantissa;
  if (cut > 0) {
    ui32 unit = 1u << cut, last = (bits & unit) != 0;
    bits = (bits + (unit / 2 - 1) + last) & ~(unit - 1);
  }
  if (exponent < 5) {
    ui32 reach = ((1u << (exponent - 1)) - 1) << 10, power = bits & 0x7c00u;
    ui32 large = power > 0x3c00u + reach ? (sign | 0x7c00u) : bits;
    bits = power <= 0x3c00u - reach ? sign : large;
  }
  f32 kept = mantissa > 0 ? x : __builtin_inff();
  return x != x ? kept : smelt_load_f16((ui16)bits);
}""",
}
FORMS: dict[tuple[str, str], str] = {
    ("multiply", "bf16"): "smelt_multiply_bf16({0}, {1})",
    ("divide", "bf16"): "smelt_divide_bf16({0}, {1})",
    ("square", "bf16"): "smelt_square_bf16({0})",
}


def _load(name: str, of: Format) -> str:
    """Bit pattern → f32. Subnormal numbers are whole multiples of the unit."""
    held, shift = _storage_type(of), 23 - of.mantissa
    sign, fraction = 1 << (of.width - 1), (1 << of.mantissa) - 1
    lines = [
        f"  ui32 size = u & {sign - 1:#x}u, sign = ((ui32)u & {sign:#x}u) << {32 - of.width};",
        f"  ui32 normal = (size << {shift}) + {(127 - of.bias) << 23:#x}u;",
        f"  ui32 small = smelt_bits_f32((f32)(i32)size * {number(of.unit, 'f32')});",
        f"  ui32 finite = size > {fraction}u ? normal : small;",
    ]
    if of.rule == "ieee":
        beyond = f"size >= {of.infinity:#x}u ? 0x7f800000u | (size & {fraction:#x}u) << {shift} : finite"
    elif of.rule == "nan":
        beyond = f"size == {of.infinity:#x}u ? 0x7fc00000u : finite"
    elif of.rule == "fnuz":
        beyond = f"u == {sign:#x}u ? 0x7fc00000u : finite"
    else:
        beyond = "finite"
    lines += [f"  ui32 value = {beyond};", "  return smelt_from_bits_f32(value | sign);"]
    return f"static inline f32 smelt_load_{name}({held} u) {{\n" + "\n".join(lines) + "\n}"


def _store(name: str, of: Format) -> str:
    """f32 that is a value of the format → bit pattern."""
    shift, sign, fraction = 23 - of.mantissa, 1 << (of.width - 1), (1 << of.mantissa) - 1
    lines = [
        f"  ui32 bits = smelt_bits_f32(x), size = bits & 0x7fffffffu, sign = bits >> 31 << {of.width - 1};",
        "  f32 a = smelt_abs_f32(x);",
        f"  ui32 normal = (size >> {shift}) - {(127 - of.bias) << of.mantissa:#x}u;",
        f"  ui32 finite = a < {number(of.least, 'f32')} ? (ui32)(i32)(a * {number(1 / of.unit, 'f32')}) : normal;",
    ]
    if of.rule == "ieee":
        lines += [
            f"  ui32 kept = size >> {shift} & {fraction:#x}u;",
            f"  ui32 nan = kept ? kept : {(fraction + 1) >> 1:#x}u, beyond = x != x ? nan : 0;",
            f"  ui32 code = size >= 0x7f800000u ? {of.infinity:#x}u | beyond : finite;",
        ]
    elif of.rule == "nan":
        lines += [f"  ui32 code = x != x ? {of.infinity:#x}u : finite;"]
    elif of.rule == "fnuz":
        lines += [f"  ui32 code = x != x ? {sign:#x}u : finite;"]
    else:
        lines += ["  ui32 code = finite;"]
    text = f"static inline {_storage_type(of)} smelt_store_{name}(f32 x) {{\n" + "\n".join(lines)
    return f"{text}\n  return ({_storage_type(of)})(code | sign);\n}}"


def _round(name: str, of: Format) -> str:
    """The nearest value of the format. Adding and taking away a number whose last place is the format's rounds."""
    least = (128 - of.bias) << 23
    top = of.largest
    limit = 2.0 ** frexp(top)[1]
    over = {
        "ieee": "__builtin_inff()",
        "nan": '__builtin_nanf("")',
        "fnuz": '__builtin_nanf("")',
        "finite": number(top, "f32"),
    }[of.rule]
    lines = [
        f"  f32 size = smelt_abs_f32(x), a = size > {number(limit, 'f32')} ? {number(limit, 'f32')} : size;",
        "  ui32 power = smelt_bits_f32(a) & 0x7f800000u;",
        f"  ui32 place = (power < {least:#x}u ? {least:#x}u : power) + {(23 - of.mantissa) << 23:#x}u;",
        "  f32 shift = smelt_from_bits_f32(place);",
        f"  f32 near = (a + shift) - shift, value = near > {number(top, 'f32')} ? {over} : near;",
    ]
    match of.rule:
        case "ieee" | "nan":
            lines += ["  return x != x ? x : smelt_copysign_f32(value, x);"]
        case "fnuz":
            lines += [
                "  f32 known = value == 0.0f ? 0.0f : smelt_copysign_f32(value, x);",
                "  return known != known ? smelt_from_bits_f32(0xffc00000u) : known;",
            ]
        case "finite":
            lines += ["  return x != x ? smelt_copysign_f32(0.0f, -x) : smelt_copysign_f32(value, x);"]
    return f"static inline f32 smelt_round_{name}(f32 x) {{\n" + "\n".join(lines) + "\n}"


def _next_after(name: str, of: Format) -> str:
    sign = 1 << (of.width - 1)
    gone = "(code & 0x7fu) ? code : 0" if of.rule == "fnuz" else "code"
    return f"""\
static inline f32 smelt_next_after_{name}(f32 x, f32 y) {{
  ui32 from = smelt_store_{name}(x), code = (y > x) == (x > 0.0f) ? from + 1 : from - 1;
  ui32 first = y < 0.0f ? {sign + 1:#x}u : 1u, next = x == 0.0f ? first : {gone};
  f32 value = x == y ? y : smelt_load_{name}(({_storage_type(of)})next);
  return ((x != x) | (y != y)) ? x + y : value;
}}"""


def _storage_type(of: Format) -> str:
    return "ui16" if of.width == 16 else "ui8"


def _with_instruction(plain: str, line: str) -> str:
    """A function of f16 by the processor's own conversion where it has one."""
    head, _, rest = plain.partition("{\n")
    body = rest.removesuffix("\n}")
    has = "defined(__FLT16_MAX__) && (defined(__F16C__) || defined(__aarch64__))"
    return f"{head}{{\n#if !defined(SMELT_PLAIN) && {has}\n  {line}\n#else\n{body}\n#endif\n}}"


for _name, _format in FORMATS.items():
    PIECES[f"smelt_load_{_name}"] = _load(_name, _format)
    PIECES[f"smelt_store_{_name}"] = _store(_name, _format)
    PIECES[f"smelt_round_{_name}"] = _round(_name, _format)
    PIECES[f"smelt_next_after_{_name}"] = _next_after(_name, _format)
for _piece, _line in {
    "smelt_load_f16": "_Float16 h; __builtin_memcpy(&h, &u, sizeof h); return (f32)h;",
    "smelt_store_f16": "_Float16 h = (_Float16)x; ui16 u; __builtin_memcpy(&u, &h, sizeof u); return u;",
    "smelt_round_f16": "return (f32)(_Float16)x;",
}.items():
    PIECES[_piece] = _with_instruction(PIECES[_piece], _line)
for _name in (*FORMATS, "bf16", "f8E8M0FNU"):
    FORMS["next_after", _name] = f"smelt_next_after_{_name}({{0}}, {{1}})"
