"""Integers of every width and booleans, as StableHLO defines them: results wrap, nothing traps.

`FORMS` maps (op, element type) to C over register values, `PIECES` holds the functions they name. Integers below 8 bits
live in 8 bits, already cut to their width. Division by zero and wide shifts give what `smelt.ir.integer` says.
Arithmetic is unsigned: NVRTC assumes that signed integers do not overflow, and has no `-fwrapv`.
"""

from __future__ import annotations

from smelt.dtype import DTYPES, DType, integer_range

FORMS: dict[tuple[str, str], str] = {}
PIECES: dict[str, str] = {}

RELATIONS = {"EQ": "==", "NE": "!=", "LT": "<", "LE": "<=", "GT": ">", "GE": ">="}
_ARITHMETIC = {"add": "+", "subtract": "-", "multiply": "*"}
_BITWISE = {"and": "&", "or": "|", "xor": "^"}


def storage_type(dtype: DType) -> str:
    """The C type that holds an integer."""
    if dtype.bits < 8:
        return "i8" if dtype.kind == "int" else "ui8"
    return f"{'i' if dtype.kind == 'int' else 'ui'}{dtype.bits}"


def cut(text: str, dtype: DType) -> str:
    """The low bits of an integer expression, in the type that holds `dtype`."""
    if dtype.bits >= 8:
        return f"(({storage_type(dtype)})({text}))"
    if dtype.kind == "uint":
        return f"((ui8)(({text}) & {(1 << dtype.bits) - 1}))"
    unused = 8 - dtype.bits
    return f"((i8)((i8)((ui8)({text}) << {unused}) >> {unused}))"


def _bits(name: str, dtype: DType) -> str:
    """The bit pattern of a variable, extended by zeros to ui32 or ui64."""
    unsigned = f"ui{max(dtype.bits, 8)}"
    pattern = f"({unsigned}){name}" if dtype.bits >= 8 else f"((ui8){name} & {(1 << dtype.bits) - 1})"
    return f"({_wide(dtype)})({pattern})"


def _wide(dtype: DType) -> str:
    return "ui64" if dtype.bits == 64 else "ui32"


def _division(dtype: DType) -> str:
    """The body of a division whose divisor is neither 0 nor, for signed integers, -1.

    Quotients of integers of up to 32 bits are those of doubles (16 bits: of floats) cut off, which vector units have.
    """
    if dtype.bits == 64:
        return "x / safe"
    real = "f64" if dtype.bits == 32 else "f32"
    whole = "ui32" if dtype.name == "ui32" else "i32"
    return f"({whole})(({real})x / ({real})safe)"


def _pieces(dtype: DType) -> dict[str, str]:
    """name → (parameters, body) of the functions of one type."""
    t, wide, width = storage_type(dtype), _wide(dtype), dtype.bits
    signed = dtype.kind == "int"
    _, high = integer_range(dtype)
    all_ones = "-1" if signed else f"{high}u" + ("ll" if width == 64 else "")
    special = "((y == 0) | (y == -1))" if signed else "y == 0"
    minus = cut(f"-({wide})x", dtype)
    by_minus_one = f"y == -1 ? {minus} : " if signed else ""
    amount = f"{wide} amount = {_bits('y', dtype)}"
    last = f"(amount < {width - 1} ? amount : {width - 1})"
    turned = f"({storage_type(DTYPES[f'i{width}'])}){cut('x', DTYPES[f'i{width}'])}"
    counted = "popcount64" if width == 64 else "popcount32"
    bits = _bits("x", dtype)
    two = f"{t} x, {t} y"
    bodies = {
        "abs": (f"{t} x", f"return x < 0 ? {minus} : x;"),
        "sign": (f"{t} x", f"return ({t})((x > 0) - (x < 0));"),
        "maximum": (two, "return x > y ? x : y;"),
        "minimum": (two, "return x < y ? x : y;"),
        "clamp": (f"{t} low, {t} x, {t} high", f"{t} above = x > low ? x : low; return above < high ? above : high;"),
        "popcnt": (f"{t} x", f"return {cut(f'smelt_{counted}({bits})', dtype)};"),
        "count_leading_zeros": (f"{t} x", f"return {cut(_leading(dtype), dtype)};"),
        "divide": (
            two,
            f"{t} safe = {special} ? 1 : y; {t} usual = {cut(_division(dtype), dtype)};"
            f" return y == 0 ? ({t}){all_ones} : {by_minus_one}usual;",
        ),
        "remainder": (
            two,
            f"return y == 0 ? x : {cut(f'({wide})x - ({wide})y * ({wide})smelt_divide_{dtype.name}(x, y)', dtype)};",
        ),
        "power": (two, _power(dtype)),
        "mulhi": (two, _mulhi(dtype)),
        "shift_left": (two, f"{amount}; return amount < {width} ? {cut(f'{bits} << amount', dtype)} : 0;"),
        "shift_right_logical": (
            two,
            f"{amount}; return amount < {width} ? {cut(f'{bits} >> amount', dtype)} : 0;",
        ),
        "shift_right_arithmetic": (two, f"{amount}; return {cut(f'{turned} >> {last}', dtype)};"),
    }
    return {
        name: f"static inline {t} smelt_{name}_{dtype.name}({parameters}) {{ {body} }}"
        for name, (parameters, body) in bodies.items()
    }


def _leading(dtype: DType) -> str:
    bits, width = _bits("x", dtype), dtype.bits
    if width == 64:
        return f"x ? __builtin_clzll({bits}) : 64"
    return f"(x ? __builtin_clz({bits}) : 32) - {32 - width}"


def _power(dtype: DType) -> str:
    """By squaring; a negative exponent leaves ±1 of ±1 and 0 of everything else."""
    loop = "while (n) { result = n & 1 ? result * base : result; base *= base; n >>= 1; }"
    start = f"ui64 base = (ui64)(i64)x, n = {_bits('y', dtype)}, result = 1;"
    if dtype.kind == "uint":
        return f"{start} {loop} return {cut('result', dtype)};"
    return (
        f"{start} n = y < 0 ? n & 1 : n; {loop}"
        f" return ((y < 0) & (x != 1) & (x != -1)) ? 0 : {cut('(i64)result', dtype)};"
    )


def _mulhi(dtype: DType) -> str:
    """The upper half of the product; of 64 bits from halves, so that no wider type is needed."""
    wide = "i64" if dtype.kind == "int" else "ui64"
    if dtype.bits < 64:
        return f"return {cut(f'({wide})x * ({wide})y >> {dtype.bits}', dtype)};"
    return (
        f"{wide} x1 = x >> 32, y1 = y >> 32; ui64 x0 = (ui32)x, y0 = (ui32)y;"
        f" {wide} middle = x1 * ({wide})y0 + ({wide})(x0 * y0 >> 32);"
        f" {wide} other = ({wide})x0 * y1 + (middle & 0xffffffff);"
        " return x1 * y1 + (middle >> 32) + (other >> 32);"
    )


def _fill(dtype: DType) -> None:
    name = dtype.name
    wide = _wide(dtype)
    for op, sign in _ARITHMETIC.items():
        FORMS[op, name] = cut(f"({wide}){{0}} {sign} ({wide}){{1}}", dtype)
    for op, sign in _BITWISE.items():
        FORMS[op, name] = cut(f"{{0}} {sign} {{1}}", dtype)
    FORMS["negate", name], FORMS["not", name] = cut(f"-({wide}){{0}}", dtype), cut("~{0}", dtype)
    for op, sign in RELATIONS.items():
        FORMS[op, name] = f"(i1)({{0}} {sign} {{1}})"
    for op, text in _pieces(dtype).items():
        PIECES[f"smelt_{op}_{name}"] = text
        operands = ", ".join(f"{{{k}}}" for k in range(text.partition(")")[0].count(",") + 1))
        FORMS[op, name] = f"smelt_{op}_{name}({operands})"


# Counting in parallel; compilers know the pattern and use an instruction where there is one.
PIECES["smelt_popcount32"] = """\
static inline ui32 smelt_popcount32(ui32 x) {
  x = x - (x >> 1 & 0x55555555u);
  x = (x & 0x33333333u) + (x >> 2 & 0x33333333u);
  return ((x + (x >> 4)) & 0x0f0f0f0fu) * 0x01010101u >> 24;
}"""
PIECES["smelt_popcount64"] = """\
static inline ui64 smelt_popcount64(ui64 x) {
  x = x - (x >> 1 & 0x5555555555555555ull);
  x = (x & 0x3333333333333333ull) + (x >> 2 & 0x3333333333333333ull);
  return ((x + (x >> 4)) & 0x0f0f0f0f0f0f0f0full) * 0x0101010101010101ull >> 56;
}"""
for _dtype in DTYPES.values():
    if _dtype.is_integer and _dtype.name != "index":
        _fill(_dtype)

for _op, _form in {
    "add": "({0} | {1})",
    "or": "({0} | {1})",
    "maximum": "({0} | {1})",
    "multiply": "({0} & {1})",
    "and": "({0} & {1})",
    "minimum": "({0} & {1})",
    "xor": "({0} ^ {1})",
    "not": "(i1)(!{0})",
    "clamp": "(({1} | {0}) & {2})",
}.items():
    FORMS[_op, "i1"] = _form
for _op, _sign in RELATIONS.items():
    FORMS[_op, "i1"] = f"(i1)({{0}} {_sign} {{1}})"
