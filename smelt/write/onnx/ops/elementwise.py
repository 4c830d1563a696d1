"""Elementwise ops as ONNX operators. A row takes the graph, the op and its operands before they are broadcast."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from smelt.dtype import DType, dtype, i1, i64, integer_range
from smelt.ir.core import Op, Value
from smelt.write.onnx.graph import Graph, Out, broadcast_sizes, refuse, shape_of

Row = Callable[..., Out]


def write_elementwise(g: Graph, op: Op, row: Row) -> Out:
    """Operands stay as small as they are where the operator's own broadcast gives the result's sizes."""
    element, sizes = shape_of(op.results[0])
    operands = [g.thin(value) for value in op.operands]
    if not g.lanes:
        for i, value in enumerate(op.operands):
            if broadcast_sizes([x.sizes for x in operands]) == sizes:
                break
            operands[i] = g.get(value)
        spread = broadcast_sizes([x.sizes for x in operands])
        if spread != sizes:
            operands[0] = g.expand(operands[0], sizes)
    found = row(g, op, *operands)
    assert found.dtype == element, f"{op.name}: {found.dtype} is not {element}"
    return found if g.lanes else g.expand(found, sizes)


def _plain(operator: str) -> Row:
    return lambda g, op, *xs: g.call(operator, *xs)


def _logical(on_bools: str, on_integers: str) -> Row:
    return lambda g, op, *xs: g.call(on_bools if xs[0].dtype is i1 else on_integers, *xs)


# ---- arithmetic ----


def _add(g: Graph, op: Op, x: Out, y: Out) -> Out:
    return g.call("Or" if x.dtype is i1 else "Add", x, y)


def _multiply(g: Graph, op: Op, x: Out, y: Out) -> Out:
    return g.call("And" if x.dtype is i1 else "Mul", x, y)


def _maximum(g: Graph, op: Op, x: Out, y: Out) -> Out:
    if x.dtype.name == "f32" and not g.lanes and _is_zero(op.operands[1]):
        return g.call("Relu", x)
    return g.call("Or" if x.dtype is i1 else "Max", x, y)


def _is_zero(value: Value) -> bool:
    maker = value.op
    while maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        maker = maker.operands[0].op
    constant = maker.attrs["value"] if maker is not None and maker.name == "stablehlo.constant" else None
    return constant is not None and constant.is_splat and not constant.array.reshape(-1)[0]


def _minimum(g: Graph, op: Op, x: Out, y: Out) -> Out:
    return g.call("And" if x.dtype is i1 else "Min", x, y)


def _negate(g: Graph, op: Op, x: Out) -> Out:
    return g.call("Sub", g.like(0, x), x) if x.dtype.kind == "uint" else g.call("Neg", x)


def where(g: Graph, test: Out, yes: Out, no: Out) -> Out:
    return g.call("Where", test, yes, no, of=1)


def _safe_divisor(g: Graph, op: Op) -> bool:
    """Whether a divisor is a constant without 0 and -1, for which processors raise an exception."""
    maker = op.operands[1].op
    value = maker.attrs.get("value") if maker is not None and maker.name == "stablehlo.constant" else None
    return value is not None and not np.isin(np.asarray(value.array).astype(object), [0, -1]).any()


def _guard(g: Graph, x: Out, y: Out) -> tuple[Out, Out, Out]:
    """y with 1 in place of 0 and -1, and where it was which."""
    zero = g.call("Equal", y, g.like(0, y), to=i1)
    minus = g.call("Equal", y, g.like(-1, y), to=i1) if y.dtype.kind == "int" else zero
    return where(g, g.call("Or", zero, minus), g.like(1, y), y), zero, minus


def divide(g: Graph, op: Op, x: Out, y: Out) -> Out:
    if not x.dtype.is_integer or _safe_divisor(g, op):
        return g.call("Div", x, y)
    inside, zero, minus = _guard(g, x, y)
    quotient = g.call("Div", x, inside)
    if x.dtype.kind == "int":
        quotient = where(g, minus, g.call("Sub", g.like(0, x), x), quotient)
    nothing = -1 if x.dtype.kind == "int" else integer_range(x.dtype)[1]
    return where(g, zero, g.like(nothing, x), quotient)


def _remainder(g: Graph, op: Op, x: Out, y: Out) -> Out:
    if not x.dtype.is_integer or _safe_divisor(g, op):
        return _modulo(g, x, y)
    inside, zero, minus = _guard(g, x, y)
    rest = _modulo(g, x, inside)
    return where(g, zero, x, where(g, minus, g.like(0, x), rest) if x.dtype.kind == "int" else rest)


def _modulo(g: Graph, x: Out, y: Out) -> Out:
    """The remainder with the sign of x. Runtimes compute `fmod` in f64, which does not hold every 64-bit integer."""
    if x.dtype.is_integer and x.dtype.bits == 64:
        return g.call("Sub", x, g.call("Mul", g.call("Div", x, y), y))
    return g.call("Mod", x, y, fmod=1)


def _power(g: Graph, op: Op, x: Out, y: Out) -> Out:
    if not x.dtype.is_integer:
        return g.call("Pow", x, y)
    steps, base, total = y, x, g.like(1, x)
    for _ in range(x.dtype.bits):  # by squaring, which wraps
        odd = g.call("BitwiseAnd", steps, g.like(1, y))
        total = where(g, g.cast(odd, i1), g.call("Mul", total, base), total)
        base, steps = g.call("Mul", base, base), _shift(g, steps, g.like(1, y), "RIGHT")
    if y.dtype.kind == "uint":
        return total
    unit = g.call("Equal", x, g.like(1, x), to=i1)
    mirror = g.call("Equal", x, g.like(-1, x), to=i1)
    odd = g.cast(g.call("BitwiseAnd", y, g.like(1, y)), i1)
    signed = where(g, odd, g.like(-1, x), g.like(1, x))
    inverse = where(g, unit, g.like(1, x), where(g, mirror, signed, g.like(0, x)))
    return where(g, g.call("Less", y, g.like(0, y), to=i1), inverse, total)


def _clamp(g: Graph, op: Op, low: Out, x: Out, high: Out) -> Out:
    if x.dtype is i1:
        return g.call("And", g.call("Or", x, low), high)
    return g.call("Min", g.call("Max", x, low), high)


# ---- bits ----


def _as_unsigned(element: DType) -> DType:
    return dtype(f"ui{max(element.bits, 8)}")


def _shift(g: Graph, x: Out, by: Out, direction: str) -> Out:
    """The bits moved; by the width or more, nothing is left."""
    bits = x.dtype.bits
    if bits < 8:
        refuse("shifts of integers with less than 8 bits")
    count = g.cast(by, _as_unsigned(by.dtype))
    large = g.call("GreaterOrEqual", count, g.like(bits, count), to=i1)
    wide = _as_unsigned(x.dtype) if bits != 16 else dtype("ui32")
    source = g.cast(g.cast(x, _as_unsigned(x.dtype)), wide)
    moved = g.call("BitShift", source, g.cast(where(g, large, g.like(0, count), count), wide), direction=direction)
    return where(g, large, g.like(0, x), g.cast(g.cast(moved, _as_unsigned(x.dtype)), x.dtype))


def _shift_arithmetic(g: Graph, op: Op, x: Out, by: Out) -> Out:
    """The first bit is repeated, also of unsigned numbers."""
    if x.dtype.kind == "uint":
        signed = dtype(f"i{x.dtype.bits}")
        return g.cast(_shift_arithmetic(g, op, g.cast(x, signed), by), x.dtype)
    negative = g.call("Less", x, g.like(0, x), to=i1)
    bits = where(g, negative, g.call("BitwiseNot", x), x)
    moved = _shift(g, bits, by, "RIGHT")
    return where(g, negative, g.call("BitwiseNot", moved), moved)


def _popcnt(g: Graph, op: Op, x: Out) -> Out:
    """Sums of neighbouring fields of bits, 1, 2, 4 … wide."""
    bits = x.dtype.bits
    if bits < 8:
        refuse("counting bits of integers with less than 8 bits")
    total = g.cast(x, _as_unsigned(x.dtype))
    width = 1
    while width < bits:
        mask = sum(((1 << width) - 1) << at for at in range(0, bits, 2 * width))
        even = g.call("BitwiseAnd", total, g.like(mask, total))
        odd = g.call("BitwiseAnd", _shift(g, total, g.like(width, total), "RIGHT"), g.like(mask, total))
        total, width = g.call("Add", even, odd), 2 * width
    return g.cast(total, x.dtype)


def _leading_zeros(g: Graph, op: Op, x: Out) -> Out:
    """Set every bit below the first one, then count what is not set."""
    bits, width = x.dtype.bits, 1
    if bits < 8:
        refuse("counting bits of integers with less than 8 bits")
    filled = g.cast(x, _as_unsigned(x.dtype))
    while width < bits:
        filled = g.call("BitwiseOr", filled, _shift(g, filled, g.like(width, filled), "RIGHT"))
        width *= 2
    return g.cast(_popcnt(g, op, g.call("BitwiseNot", filled)), x.dtype)


# ---- functions of floats ----


def _logistic(g: Graph, op: Op, x: Out) -> Out:
    return g.call("Sigmoid", x)


def _rsqrt(g: Graph, op: Op, x: Out) -> Out:
    return g.call("Reciprocal", g.call("Sqrt", x))


def _cbrt(g: Graph, op: Op, x: Out) -> Out:
    root = g.call("Pow", g.call("Abs", x), g.like(1 / 3, x))
    return g.call("Mul", g.call("Sign", x), root)


def _wide(function: Callable[[Graph, Out], Out]) -> Row:
    """A formula of several nodes, computed in f32 for narrower floats and rounded once."""

    def row(g: Graph, op: Op, x: Out) -> Out:
        return g.cast(function(g, g.cast(x, dtype("f32")) if x.dtype.bits < 32 else x), x.dtype)

    return row


def _log1p(g: Graph, x: Out) -> Out:
    """Kahan's: log(u) * x / (u - 1) with u = 1 + x is exact where u is rounded."""
    one = g.like(1, x)
    u = g.call("Add", x, one)
    plain = g.call("Log", u)
    better = g.call("Mul", plain, g.call("Div", x, g.call("Sub", u, one)))
    small = g.call("Less", g.call("Abs", x), g.like(0.5, x), to=i1)
    return where(g, small, where(g, g.call("Equal", u, one, to=i1), x, better), plain)


def _expm1(g: Graph, x: Out) -> Out:
    """Kahan's: (u - 1) * x / log(u) with u = exp(x)."""
    one = g.like(1, x)
    u = g.call("Exp", x)
    less = g.call("Sub", u, one)
    better = g.call("Mul", less, g.call("Div", x, g.call("Log", u)))
    small = g.call("Less", g.call("Abs", x), g.like(0.5, x), to=i1)
    return where(g, small, where(g, g.call("Equal", u, one, to=i1), x, better), less)


def _tan(g: Graph, x: Out) -> Out:
    return g.call("Div", g.call("Sin", x), g.call("Cos", x))


def _sinh(g: Graph, x: Out) -> Out:
    """sign(x) * (e + e / (e + 1)) / 2 with e = exp(|x|) - 1."""
    grown = _expm1(g, g.call("Abs", x))
    part = g.call("Div", grown, g.call("Add", grown, g.like(1, x)))
    infinite = g.call("IsInf", grown, to=i1)
    size = g.call("Mul", where(g, infinite, grown, g.call("Add", grown, part)), g.like(0.5, x))
    return g.call("Mul", g.call("Sign", x), size)


def _cosh(g: Graph, x: Out) -> Out:
    total = g.call("Add", g.call("Exp", x), g.call("Exp", g.call("Neg", x)))
    return g.call("Mul", total, g.like(0.5, x))


def _asinh(g: Graph, x: Out) -> Out:
    """sign(x) * log1p(|x| + x² / (1 + sqrt(1 + x²)))."""
    size, one = g.call("Abs", x), g.like(1, x)
    square = g.call("Mul", size, size)
    part = g.call("Div", square, g.call("Add", one, g.call("Sqrt", g.call("Add", square, one))))
    small = _log1p(g, g.call("Add", size, part))
    large = g.call("Add", g.call("Log", size), g.like(math.log(2), x))
    huge = g.call("Greater", size, g.like(1e8 if x.dtype.bits > 32 else 1e4, x), to=i1)
    return g.call("Mul", g.call("Sign", x), where(g, huge, large, small))


def _atanh(g: Graph, x: Out) -> Out:
    """log1p(2 x / (1 - x)) / 2."""
    ratio = g.call("Div", g.call("Mul", x, g.like(2, x)), g.call("Sub", g.like(1, x), x))
    return g.call("Mul", _log1p(g, ratio), g.like(0.5, x))


def _acosh(g: Graph, x: Out) -> Out:
    """log1p(t + sqrt(2 t + t²)) with t = x - 1."""
    t = g.call("Sub", x, g.like(1, x))
    square = g.call("Add", g.call("Mul", t, g.like(2, x)), g.call("Mul", t, t))
    small = _log1p(g, g.call("Add", t, g.call("Sqrt", square)))
    large = g.call("Add", g.call("Log", x), g.like(math.log(2), x))
    return where(g, g.call("Greater", x, g.like(1e8, x), to=i1), large, small)


def _atan_up_to_one(g: Graph, x: Out) -> Out:
    """atan of 0 to 1. Runtimes have no f64 kernel: in f32, then one step by the angle between x and that."""
    if x.dtype.name != "f64":
        return g.call("Atan", x)
    near = g.cast(g.call("Atan", g.cast(x, dtype("f32"))), x.dtype)
    sine, cosine = g.call("Sin", near), g.call("Cos", near)
    rest = g.call("Sub", g.call("Mul", x, cosine), sine)
    return g.call("Add", near, g.call("Div", rest, g.call("Add", cosine, g.call("Mul", x, sine))))


def _angle(g: Graph, y: Out, x: Out) -> Out:
    """atan2: the angle of the larger coordinate, moved by quarter turns; signs of zeros count."""
    high, wide = g.call("Abs", y), g.call("Abs", x)
    steep = g.call("Greater", high, wide, to=i1)
    top, bottom = g.call("Min", high, wide), g.call("Max", high, wide)
    same = g.call("Equal", top, bottom, to=i1)
    nothing = g.call("Equal", bottom, g.like(0, y), to=i1)
    ratio = where(g, nothing, g.like(0, y), where(g, same, g.like(1, y), g.call("Div", top, bottom)))
    angle = _atan_up_to_one(g, ratio)
    angle = where(g, steep, g.call("Sub", g.like(math.pi / 2, y), angle), angle)
    angle = where(g, _is_negative(g, x), g.call("Sub", g.like(math.pi, y), angle), angle)
    return where(g, _is_negative(g, y), g.call("Neg", angle), angle)


def _atan2(g: Graph, op: Op, y: Out, x: Out) -> Out:
    kind = y.dtype
    if kind.bits < 32:
        y, x = g.cast(y, dtype("f32")), g.cast(x, dtype("f32"))
    return g.cast(_angle(g, y, x), kind)


def _or_formula(operator: str, formula: Callable[[Graph, Out], Out]) -> Row:
    """An operator that runtimes have for floats up to f32, and a formula for f64."""
    return lambda g, op, x: formula(g, x) if x.dtype.name == "f64" else g.call(operator, x)


def _atan(g: Graph, x: Out) -> Out:
    return _angle(g, x, g.like(1, x))


def _leg(g: Graph, x: Out) -> Out:
    """sqrt(1 - x²)."""
    one = g.like(1, x)
    return g.call("Sqrt", g.call("Mul", g.call("Sub", one, x), g.call("Add", one, x)))


def _asin(g: Graph, x: Out) -> Out:
    return _angle(g, x, _leg(g, x))


def _acos(g: Graph, x: Out) -> Out:
    return _angle(g, _leg(g, x), x)


def _is_negative(g: Graph, x: Out) -> Out:
    """Whether the sign is set, also of -0."""
    return g.call(
        "Less", where(g, g.call("Equal", x, g.like(0, x), to=i1), g.call("Reciprocal", x), x), g.like(0, x), to=i1
    )


def _round_away(g: Graph, op: Op, x: Out) -> Out:
    size = g.call("Abs", x)
    whole = g.call("Floor", size)
    half = g.call("GreaterOrEqual", g.call("Sub", size, whole), g.like(0.5, x), to=i1)
    return g.call("Mul", g.call("Sign", x), g.call("Add", whole, g.cast(half, x.dtype)))


def _sign(g: Graph, op: Op, x: Out) -> Out:
    if not x.dtype.is_float:
        return g.call("Sign", x)
    return where(g, g.call("IsNaN", x, to=i1), x, g.call("Sign", x))


def _is_finite(g: Graph, op: Op, x: Out) -> Out:
    return g.call("Not", g.call("Or", g.call("IsInf", x, to=i1), g.call("IsNaN", x, to=i1)))


def _infinite(**sides: int) -> Row:
    return lambda g, op, x: g.call("IsInf", x, to=i1, **sides)


def _square(g: Graph, op: Op, x: Out) -> Out:
    return g.call("Mul", x, x)


# ---- comparisons, conversions ----

_COMPARISONS = {
    "EQ": "Equal",
    "NE": "Equal",
    "LT": "Less",
    "LE": "LessOrEqual",
    "GT": "Greater",
    "GE": "GreaterOrEqual",
}


def _compare(g: Graph, op: Op, x: Out, y: Out) -> Out:
    direction = op.attrs["comparison_direction"]
    if op.attrs.get("compare_type") == "TOTALORDER" and x.dtype.is_float:
        return _compare_all(g, direction, x, y)
    if x.dtype is i1 and direction not in ("EQ", "NE"):
        x, y = g.cast(x, dtype("i32")), g.cast(y, dtype("i32"))
    found = g.call(_COMPARISONS[direction], x, y, to=i1)
    return g.call("Not", found) if direction == "NE" else found


def _compare_all(g: Graph, direction: str, x: Out, y: Out) -> Out:
    """The total order of floats: -0 before 0, nan last. ONNX cannot see the sign of a nan: all count as positive."""
    if direction in ("GT", "LE"):
        x, y = y, x
    equal = g.call("Equal", x, y, to=i1)
    signs = [_is_negative(g, each) for each in (x, y)]
    broken = [g.call("IsNaN", each, to=i1) for each in (x, y)]
    if direction in ("EQ", "NE"):
        same = g.call("And", equal, g.call("Not", g.call("Xor", *signs)))
        found = g.call("Or", same, g.call("And", *broken))
        return g.call("Not", found) if direction == "NE" else found
    zeros = g.call("And", equal, g.call("And", signs[0], g.call("Not", signs[1])))
    last = g.call("And", g.call("Not", broken[0]), broken[1])
    less = g.call("Or", g.call("Less", x, y, to=i1), g.call("Or", zeros, last))
    return less if direction in ("LT", "GT") else g.call("Not", less)


def _select(g: Graph, op: Op, test: Out, yes: Out, no: Out) -> Out:
    if yes.dtype is i1:
        return g.call("Or", g.call("And", test, yes), g.call("And", g.call("Not", test), no))
    return where(g, test, yes, no)


def _convert(g: Graph, op: Op, x: Out) -> Out:
    element = op.results[0].shape.dtype
    if not isinstance(element, DType) or element.kind == "complex":
        refuse(f"ONNX operators have no {element}")
    if x.dtype.is_float and element.is_integer:
        return _to_integer(g, x, element)
    return g.cast(x, element)


def _to_integer(g: Graph, x: Out, element: DType) -> Out:
    """Out of range the nearest number, and 0 for nan: a runtime's own cast leaves that open."""
    wide = g.cast(x, dtype("f64")) if element.bits >= 32 else g.cast(x, dtype("f32"))
    low, high = integer_range(element)
    found = g.cast(
        where(g, _inside(g, wide, low, high), wide, g.like(0, wide)), i64 if element.name != "ui64" else element
    )
    above = g.call("GreaterOrEqual", wide, g.like(float(high + 1), wide), to=i1)
    below = g.call("Less", wide, g.like(float(low), wide), to=i1)
    narrow = g.cast(found, element)
    return where(g, above, g.like(high, narrow), where(g, below, g.like(low, narrow), narrow))


def _inside(g: Graph, x: Out, low: int, high: int) -> Out:
    above = g.call("Greater", x, g.like(float(low - 1), x), to=i1)
    if float(low - 1) == float(low):
        above = g.call("GreaterOrEqual", x, g.like(float(low), x), to=i1)
    return g.call("And", above, g.call("Less", x, g.like(float(high + 1), x), to=i1))


def _reduce_precision(g: Graph, op: Op, x: Out) -> Out:
    bits = op.attrs["exponent_bits"], op.attrs["mantissa_bits"]
    if x.dtype.name == "f32" and bits == (8, 7):
        return g.cast(g.cast(x, dtype("bf16")), x.dtype)
    own = {"f64": (11, 52), "f32": (8, 23), "f16": (5, 10), "bf16": (8, 7)}.get(x.dtype.name)
    if own is not None and bits[0] >= own[0] and bits[1] >= own[1]:
        return g.cast(x, x.dtype)
    refuse(f"rounding to {bits[0]} bits of exponent and {bits[1]} of mantissa")


ROWS: dict[str, Row] = {
    **{
        f"stablehlo.{name}": _plain(operator)
        for name, operator in {
            "abs": "Abs", "ceil": "Ceil", "cosine": "Cos", "exponential": "Exp", "floor": "Floor", "log": "Log",
            "round_nearest_even": "Round", "sine": "Sin", "sqrt": "Sqrt", "tanh": "Tanh", "subtract": "Sub",
        }.items()
    },
    "chlo.erf": _plain("Erf"),
    "chlo.acos": _or_formula("Acos", _acos),
    "chlo.asin": _or_formula("Asin", _asin),
    "chlo.atan": _or_formula("Atan", _atan),
    "stablehlo.add": _add,
    "stablehlo.multiply": _multiply,
    "stablehlo.maximum": _maximum,
    "stablehlo.minimum": _minimum,
    "stablehlo.divide": divide,
    "stablehlo.remainder": _remainder,
    "stablehlo.power": _power,
    "stablehlo.negate": _negate,
    "stablehlo.and": _logical("And", "BitwiseAnd"),
    "stablehlo.or": _logical("Or", "BitwiseOr"),
    "stablehlo.xor": _logical("Xor", "BitwiseXor"),
    "stablehlo.not": _logical("Not", "BitwiseNot"),
    "stablehlo.shift_left": lambda g, op, x, by: _shift(g, x, by, "LEFT"),
    "stablehlo.shift_right_logical": lambda g, op, x, by: _shift(g, x, by, "RIGHT"),
    "stablehlo.shift_right_arithmetic": _shift_arithmetic,
    "stablehlo.popcnt": _popcnt,
    "stablehlo.count_leading_zeros": _leading_zeros,
    "stablehlo.logistic": _logistic,
    "stablehlo.rsqrt": _rsqrt,
    "stablehlo.cbrt": _cbrt,
    "stablehlo.log_plus_one": _wide(_log1p),
    "stablehlo.exponential_minus_one": _wide(_expm1),
    "stablehlo.tan": _or_formula("Tan", _tan),
    "stablehlo.atan2": _atan2,
    "stablehlo.round_nearest_afz": _round_away,
    "stablehlo.sign": _sign,
    "stablehlo.is_finite": _is_finite,
    "stablehlo.clamp": _clamp,
    "stablehlo.compare": _compare,
    "stablehlo.select": _select,
    "stablehlo.convert": _convert,
    "stablehlo.real": lambda g, op, x: x,
    "stablehlo.imag": lambda g, op, x: where(g, g.constant(True, i1), g.like(0, x), x),
    "stablehlo.reduce_precision": _reduce_precision,
    "chlo.tan": _or_formula("Tan", _tan),
    "chlo.sinh": _or_formula("Sinh", _sinh),
    "chlo.cosh": _or_formula("Cosh", _cosh),
    "chlo.asinh": _or_formula("Asinh", _asinh),
    "chlo.acosh": _or_formula("Acosh", _acosh),
    "chlo.atanh": _or_formula("Atanh", _atanh),
    "chlo.square": _square,
    "chlo.is_inf": _infinite(),
    "chlo.is_pos_inf": _infinite(detect_negative=0),
    "chlo.is_neg_inf": _infinite(detect_positive=0),
}  # fmt: skip
