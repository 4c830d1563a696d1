"""Arithmetic on f32 and f64: what needs no approximation.

`FORMS` maps (op, class) to C over register values, each operand written once; `PIECES` holds the functions they name.
Merged by the package; the approximated functions are in `single.py` and `double.py`.
"""

from __future__ import annotations

FORMS: dict[tuple[str, str], str] = {}
PIECES: dict[str, str] = {}

_INFIX = {"add": "+", "subtract": "-", "multiply": "*", "divide": "/"}
_RELATIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_CALLS = {
    "abs": 1,
    "ceil": 1,
    "clamp": 3,
    "floor": 1,
    "is_finite": 1,
    "is_inf": 1,
    "maximum": 2,
    "minimum": 2,
    "next_after": 2,
    "remainder": 2,
    "round_nearest_afz": 1,
    "round_nearest_even": 1,
    "rsqrt": 1,
    "sign": 1,
    "sqrt": 1,
    "square": 1,
}

# {t}: f32 or f64; {u}, {i}: the integers of its width; {s}: the suffix of the compiler's builtins.
_SHARED = {
    # Without a multiply-add instruction the builtin would be a call to a library; the polynomials bear two roundings.
    "fma": """\
#if !defined(SMELT_PLAIN) && (defined(__FMA__) || defined(__aarch64__) || defined(__riscv_flen))
static inline {t} smelt_fma_{t}({t} a, {t} b, {t} c) {{ return __builtin_fma{s}(a, b, c); }}
#else
static inline {t} smelt_fma_{t}({t} a, {t} b, {t} c) {{ return a * b + c; }}
#endif""",
    "bits": "static inline {u} smelt_bits_{t}({t} x) {{ {u} u; __builtin_memcpy(&u, &x, sizeof u); return u; }}",
    "from_bits": """\
static inline {t} smelt_from_bits_{t}({u} u) {{ {t} x; __builtin_memcpy(&x, &u, sizeof x); return x; }}""",
    "abs": "static inline {t} smelt_abs_{t}({t} x) {{ return __builtin_fabs{s}(x); }}",
    "copysign": "static inline {t} smelt_copysign_{t}({t} x, {t} y) {{ return __builtin_copysign{s}(x, y); }}",
    "sqrt": "static inline {t} smelt_sqrt_{t}({t} x) {{ return __builtin_sqrt{s}(x); }}",
    "rsqrt": "static inline {t} smelt_rsqrt_{t}({t} x) {{ return 1 / __builtin_sqrt{s}(x); }}",
    "square": "static inline {t} smelt_square_{t}({t} x) {{ return x * x; }}",
    # Rounding: an instruction where there is one, else adding and taking away 2^mantissa, beyond which all is whole.
    "round_nearest_even": """\
static inline {t} smelt_round_nearest_even_{t}({t} x) {{
#if !defined(SMELT_PLAIN) && (defined(__SSE4_1__) || defined(__aarch64__))
  return __builtin_rint{s}(x);
#else
  {t} a = smelt_abs_{t}(x), whole = (a + {shift}) - {shift};
  return smelt_copysign_{t}(a < {shift} ? whole : a, x);
#endif
}}""",
    "floor": """\
static inline {t} smelt_floor_{t}({t} x) {{
#if !defined(SMELT_PLAIN) && (defined(__SSE4_1__) || defined(__aarch64__))
  return __builtin_floor{s}(x);
#else
  {t} near = smelt_round_nearest_even_{t}(x);
  return smelt_copysign_{t}(near > x ? near - 1 : near, x);
#endif
}}""",
    "ceil": "static inline {t} smelt_ceil_{t}({t} x) {{ return -smelt_floor_{t}(-x); }}",
    "trunc": """\
static inline {t} smelt_trunc_{t}({t} x) {{
#if !defined(SMELT_PLAIN) && (defined(__SSE4_1__) || defined(__aarch64__))
  return __builtin_trunc{s}(x);
#else
  return smelt_copysign_{t}(smelt_floor_{t}(smelt_abs_{t}(x)), x);
#endif
}}""",
    "round_nearest_afz": """\
static inline {t} smelt_round_nearest_afz_{t}({t} x) {{
  {t} whole = smelt_trunc_{t}(x);
  return smelt_abs_{t}(x - whole) >= ({t})0.5 ? whole + smelt_copysign_{t}(1, x) : whole;
}}""",
    # -0 is less than +0: equal operands are combined by their bits. Of a nan and anything the result is a nan.
    "maximum": """\
static inline {t} smelt_maximum_{t}({t} x, {t} y) {{
  {t} greater = x > y ? x : y;
  {t} same = smelt_from_bits_{t}(smelt_bits_{t}(x) & smelt_bits_{t}(y));
  {t} value = x == y ? same : greater;
  return x != x ? x : value;
}}""",
    "minimum": """\
static inline {t} smelt_minimum_{t}({t} x, {t} y) {{
  {t} less = x < y ? x : y;
  {t} same = smelt_from_bits_{t}(smelt_bits_{t}(x) | smelt_bits_{t}(y));
  {t} value = x == y ? same : less;
  return x != x ? x : value;
}}""",
    "clamp": """\
static inline {t} smelt_clamp_{t}({t} low, {t} x, {t} high) {{
  return smelt_minimum_{t}(smelt_maximum_{t}(x, low), high);
}}""",
    "is_finite": "static inline i1 smelt_is_finite_{t}({t} x) {{ return (smelt_bits_{t}(x) & {inf}) != {inf}; }}",
    "is_inf": "static inline i1 smelt_is_inf_{t}({t} x) {{ return (smelt_bits_{t}(x) & {most}) == {inf}; }}",
    "sign": """\
static inline {t} smelt_sign_{t}({t} x) {{ return x == 0 || x != x ? x : smelt_copysign_{t}(1, x); }}""",
    "total": """\
static inline {i} smelt_total_{t}({t} x) {{
  {i} bits = ({i})smelt_bits_{t}(x);
  return bits < 0 ? bits ^ ({i}){most} : bits;
}}""",
    "next_after": """\
static inline {t} smelt_next_after_{t}({t} x, {t} y) {{
  {u} bits = smelt_bits_{t}(x);
  {t} step = smelt_from_bits_{t}((y > x) == (x > 0) ? bits + 1 : bits - 1);
  {t} next = x == 0 ? smelt_copysign_{t}(smelt_from_bits_{t}(1), y) : step, value = x == y ? y : next;
  return ((x != x) | (y != y)) ? x + y : value;
}}""",
    # The mantissa of x is carried down to the exponent of y in steps that fit 64 bits: every step is exact.
    "remainder": """\
static inline {t} smelt_remainder_{t}({t} x, {t} y) {{
  ui64 a = smelt_bits_{t}(x) & {most}, b = smelt_bits_{t}(y) & {most};
  if (a >= {inf} || b > {inf} || b == 0) return (x * y) / (x * y);
  if (a < b) return x;
  i32 from = (i32)(a >> {mantissa}), to = (i32)(b >> {mantissa});
  ui64 rest = from ? (a & {fraction}) | {one} : a, unit = to ? (b & {fraction}) | {one} : b;
  i32 steps = (from ? from : 1) - (to ? to : 1);
  rest %= unit;
  while (steps > 0 && rest) {{
    i32 now = steps < {free} ? steps : {free};
    rest = (rest << now) % unit;
    steps -= now;
  }}
  i32 power = (to ? to : 1) - {origin}, half = power / 2;
  f64 value = (f64)rest * smelt_power_of_two(half) * smelt_power_of_two(power - half);
  return smelt_copysign_{t}(({t})value, x);
}}""",
    "reduce_precision": """\
static inline {t} smelt_reduce_precision_{t}({t} x, i32 exponent, i32 mantissa) {{
  {u} bits = smelt_bits_{t}(x), sign = bits & ~({u}){most};
  i32 cut = {mantissa} - mantissa;
  if (cut > 0) {{
    {u} unit = ({u})1 << (cut < {width} - 1 ? cut : {width} - 1), last = (bits & unit) != 0;
    bits = (bits + (unit / 2 - 1) + last) & ~(unit - 1);
  }}
  if (exponent < {exponent}) {{
    {u} reach = ((({u})1 << (exponent - 1)) - 1) << {mantissa}, power = bits & {inf};
    {u} large = power > {bias} + reach ? (sign | {inf}) : bits;
    bits = power <= {bias} - reach ? sign : large;
  }}
  {t} rounded = smelt_from_bits_{t}(bits), kept = mantissa > 0 ? x : smelt_from_bits_{t}({inf});
  return x != x ? kept : rounded;
}}""",
}
_LAYOUTS = {
    "f32": {"t": "f32", "u": "ui32", "i": "i32", "s": "f", "mantissa": 23, "exponent": 8, "width": 32},
    "f64": {"t": "f64", "u": "ui64", "i": "i64", "s": "", "mantissa": 52, "exponent": 11, "width": 64},
}

PIECES["smelt_power_of_two"] = """\
static inline f64 smelt_power_of_two(i32 k) { return smelt_from_bits_f64((ui64)(i64)(k + 1023) << 52); }"""


def _layout(suffix: str) -> dict[str, object]:
    """What the templates need to know about a format."""
    fixed = _LAYOUTS[suffix]
    mantissa, width = int(str(fixed["mantissa"])), int(str(fixed["width"]))
    bias = (1 << (width - mantissa - 2)) - 1
    unsigned = "u" if width == 32 else "ull"
    return fixed | {
        "inf": f"{((1 << (width - mantissa - 1)) - 1) << mantissa:#x}{unsigned}",
        "most": f"{(1 << (width - 1)) - 1:#x}{unsigned}",
        "bias": f"{bias << mantissa:#x}{unsigned}",
        "fraction": f"{(1 << mantissa) - 1:#x}ull",
        "one": f"{1 << mantissa:#x}ull",
        "shift": f"0x1p{mantissa}{fixed['s']}",
        "free": 63 - mantissa,
        "origin": bias + mantissa,
    }


for _suffix in _LAYOUTS:
    for _name, _text in _SHARED.items():
        PIECES[f"smelt_{_name}_{_suffix}"] = _text.format(**_layout(_suffix))
    for _name, _sign in _INFIX.items():
        FORMS[_name, _suffix] = f"({{0}} {_sign} {{1}})"
    for _name, _sign in _RELATIONS.items():
        FORMS[_name, _suffix] = f"(i1)({{0}} {_sign} {{1}})"
        _key = f"smelt_total_{_suffix}"
        FORMS[f"{_name}_TOTALORDER", _suffix] = f"(i1)({_key}({{0}}) {_sign} {_key}({{1}}))"
    for _name, _count in _CALLS.items():
        _operands = ", ".join(f"{{{index}}}" for index in range(_count))
        FORMS[_name, _suffix] = f"smelt_{_name}_{_suffix}({_operands})"
    _inf = f"({_suffix})__builtin_inf()"
    FORMS["negate", _suffix] = "(-{0})"
    FORMS["fma", _suffix] = f"smelt_fma_{_suffix}({{0}}, {{1}}, {{2}})"
    FORMS["real", _suffix] = FORMS["conj", _suffix] = "({0})"
    FORMS["imag", _suffix] = f"((void){{0}}, ({_suffix})0)"
    FORMS["is_pos_inf", _suffix] = f"(i1)({{0}} == {_inf})"
    FORMS["is_neg_inf", _suffix] = f"(i1)({{0}} == -{_inf})"
