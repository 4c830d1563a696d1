"""Elementwise operators: arithmetic, comparisons, logic, casts, activations, softmax, matrix multiplication."""

from __future__ import annotations

from collections.abc import Callable
from math import pi, sqrt
from typing import Any

import numpy as np

from smelt.dtype import DType, dtype, f32, f64, i1, i64, ui32
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx import fold
from smelt.read.onnx.emit import axis_of, greatest_finite
from smelt.read.onnx.file.tensors import STRING, element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape

# ---- one operand ----


def _simple(name: str, op: str) -> None:
    @onnx_op(name)
    def unary(g: Graph, X: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
        return g.unary(op, X)


for _name, _op in (
    ("Acos", "chlo.acos"), ("Acosh", "chlo.acosh"), ("Asin", "chlo.asin"), ("Asinh", "chlo.asinh"),
    ("Atan", "chlo.atan"), ("Atanh", "chlo.atanh"), ("Cos", "cosine"),
    ("Cosh", "chlo.cosh"), ("Erf", "chlo.erf"), ("Exp", "exponential"),
    ("Log", "log"), ("Round", "round_nearest_even"), ("Sigmoid", "logistic"), ("Sin", "sine"), ("Sinh", "chlo.sinh"),
    ("Sqrt", "sqrt"), ("Tan", "tan"), ("Tanh", "tanh"), ("BitwiseNot", "not"),
):  # fmt: skip
    _simple(_name, _op)


def _foldable(name: str, op: str, folded: Callable[[Any], Any], unsigned: str | None = None) -> None:
    """A function that sizes go through."""

    @onnx_op(name)
    def unary(g: Graph, X: Tensor, *, consumed_inputs: tuple[int, ...] = ()) -> Tensor | Value:
        known = fold.fold(folded, X.element, X)
        if known is not None:
            return known
        if unsigned is not None and X.element.kind == "uint":
            return g.value(X) if unsigned == "same" else g.binary("minimum", g.value(X), g.scalar(1, X.element))
        return g.unary(op, g.value(X))


_foldable("Abs", "abs", fold.absolute, unsigned="same")
_foldable("Neg", "negate", lambda a: -a)
_foldable("Sign", "sign", fold.sign, unsigned="at most 1")
_foldable("Floor", "floor", fold.round_down)
_foldable("Ceil", "ceil", fold.round_up)


@onnx_op("Not")
def not_(g: Graph, X: Tensor) -> Tensor | Value:
    return fold.fold(lambda a: not a, i1, X) or g.unary("not", g.value(X))


@onnx_op("Reciprocal")
def reciprocal(g: Graph, X: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    return g.binary("divide", g.like(1, X), X)


@onnx_op("IsNaN")
def is_nan(g: Graph, X: Value) -> Value:
    return g.compare(X, X, "NE")


@onnx_op("IsInf")
def is_inf(g: Graph, X: Value, *, detect_negative: int = 1, detect_positive: int = 1) -> Value:
    if detect_negative and detect_positive:
        return g.unary("chlo.is_inf", X)
    if detect_negative or detect_positive:
        return g.unary("chlo.is_neg_inf" if detect_negative else "chlo.is_pos_inf", X)
    return g.full(False, X.shape.with_dtype(i1))


# ---- two operands ----


def _arithmetic(
    name: str, op: str, folded: Callable[[Any, Any], Any], floats: Callable[[Any, Any], Any] | None = None
) -> None:
    @onnx_op(name, since=7)
    def binary(g: Graph, A: Tensor, B: Tensor) -> Tensor | Value:
        rule = floats if floats is not None and A.element.is_float else folded
        known = fold.fold(rule, A.element, A, B)
        return known if known is not None else g.binary(op, g.value(A), g.value(B))

    @onnx_op(name, since=1)
    def old(
        g: Graph,
        A: Value,
        B: Value,
        *,
        axis: int | None = None,
        broadcast: int = 0,
        consumed_inputs: tuple[int, ...] = (),
    ) -> Value:
        return g.binary(op, A, _old_broadcast(g, A, B, axis))


def _old_broadcast(g: Graph, A: Value, B: Value, axis: int | None) -> Value:
    """Before opset 7 the right operand's dimensions began at `axis` of the left one."""
    if axis is None:
        return B
    first = axis_of(axis, A.shape.rank)
    behind = A.shape.rank - first - B.shape.rank
    if behind < 0:
        raise ShapeError("axis leaves no room for the right operand", expected=A.shape, got=B.shape)
    return g.reshape(B, (*B.shape.sizes, *(1,) * behind))


_arithmetic("Add", "add", lambda a, b: a + b)
_arithmetic("Sub", "subtract", lambda a, b: a - b)
_arithmetic("Mul", "multiply", lambda a, b: a * b)
_arithmetic("Div", "divide", fold.divide, fold.divide_floats)


@onnx_op("Mod", since=10)
def mod(g: Graph, A: Tensor, B: Tensor, *, fmod: int = 0) -> Tensor | Value:
    known = fold.fold(fold.remainder if fmod else fold.modulo, A.element, A, B)
    if known is not None:
        return known
    a, b = g.together(g.value(A), g.value(B))
    rest = g.binary("remainder", a, b)
    if fmod or A.element.kind == "uint":
        return rest
    zero = g.like(0, rest)
    opposite = g.binary("xor", g.compare(rest, zero, "LT"), g.compare(b, zero, "LT"))
    moved = g.binary("and", g.compare(rest, zero, "NE"), opposite)
    return g.select(moved, g.binary("add", rest, b), rest)


@onnx_op("Pow", since=1)
def power(g: Graph, X: Tensor, Y: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor | Value:
    known = fold.fold(fold.power, X.element, X, Y)
    if known is not None:
        return known
    x, y = g.value(X), g.value(Y)
    y = _old_broadcast(g, x, y, axis)
    if X.element.is_integer and Y.element.is_float:
        return g.convert(g.binary("power", g.convert(x, f64), g.convert(y, f64)), X.element)
    if X.element.is_float and X.element.bits < 32:
        return g.convert(g.binary("power", g.convert(x, f32), g.convert(y, f32)), X.element)
    return g.binary("power", x, g.convert(y, X.element))


def _bitwise(name: str, op: str, since: int) -> None:
    @onnx_op(name, since=since)
    def binary(g: Graph, A: Value, B: Value, *, axis: int | None = None, broadcast: int = 0) -> Value:
        return g.binary(op, A, _old_broadcast(g, A, B, axis))


def _logical(name: str, op: str, folded: Callable[[Any, Any], Any]) -> None:
    @onnx_op(name)
    def binary(g: Graph, A: Tensor, B: Tensor, *, axis: int | None = None, broadcast: int = 0) -> Tensor | Value:
        known = fold.fold(folded, i1, A, B) if axis is None else None
        if known is not None:
            return known
        a = g.value(A)
        return g.binary(op, a, _old_broadcast(g, a, g.value(B), axis))


_logical("And", "and", lambda a, b: a and b)
_logical("Or", "or", lambda a, b: a or b)
_logical("Xor", "xor", lambda a, b: a != b)
_bitwise("BitwiseAnd", "and", 18)
_bitwise("BitwiseOr", "or", 18)
_bitwise("BitwiseXor", "xor", 18)


@onnx_op("BitShift", since=11)
def bit_shift(g: Graph, X: Value, Y: Value, *, direction: str) -> Value:
    if direction not in ("LEFT", "RIGHT"):
        raise ParseError("BitShift: attribute 'direction'", expected="LEFT or RIGHT", got=direction)
    right = "shift_right_arithmetic" if X.shape.element.kind == "int" else "shift_right_logical"
    return g.binary("shift_left" if direction == "LEFT" else right, X, Y)


def _comparison(name: str, direction: str, folded: Callable[[Any, Any], Any], since: int) -> None:
    @onnx_op(name, since=since)
    def compare(g: Graph, A: Item, B: Item, *, axis: int | None = None, broadcast: int = 0) -> Tensor | Value:
        if isinstance(A, Text) and isinstance(B, Text) and direction == "EQ":
            return Tensor.constant(np.asarray(A.array == B.array, np.bool_))
        if not isinstance(A, Tensor) or not isinstance(B, Tensor):
            raise UnsupportedError(f"{name} compares tensors")
        known = fold.fold(folded, i1, A, B) if axis is None else None
        if known is not None:
            return known
        a = g.value(A)
        left, right = g.together(a, _old_broadcast(g, a, g.value(B), axis))
        return g.compare(left, right, direction)


_comparison("Equal", "EQ", fold.equal, 1)
_comparison("Less", "LT", fold.less, 1)
_comparison("Greater", "GT", lambda a, b: fold.less(b, a), 1)
_comparison("LessOrEqual", "LE", fold.at_most_, 12)
_comparison("GreaterOrEqual", "GE", lambda a, b: fold.at_most_(b, a), 12)

# ---- any number of operands ----


def _variadic(name: str, op: str, folded: Callable[[Any, Any], Any] | None) -> None:
    @onnx_op(name)
    def join(g: Graph, *data_0: Tensor, consumed_inputs: tuple[int, ...] = ()) -> Tensor | Value:
        result = data_0[0]
        for other in data_0[1:]:
            known = fold.fold(folded, result.element, result, other) if folded is not None else None
            result = known or Tensor.of(g.binary(op, g.value(result), g.value(other)))
        return result


_variadic("Max", "maximum", fold.larger)
_variadic("Min", "minimum", fold.smaller)
_variadic("Sum", "add", None)


@onnx_op("Mean")
def mean(g: Graph, *data_0: Value, consumed_inputs: tuple[int, ...] = ()) -> Value:
    total = data_0[0]
    for other in data_0[1:]:
        total = g.binary("add", total, other)
    return g.binary("divide", total, g.scalar(len(data_0), total.shape.element))


@onnx_op("Where", since=9)
def where(g: Graph, condition: Tensor, X: Tensor, Y: Tensor) -> Tensor | Value:
    known = fold.fold(fold.choose, X.element, condition, X, Y)
    return known if known is not None else g.choose(g.value(condition), g.value(X), g.value(Y))


@onnx_op("Clip", since=11)
def clip(g: Graph, input: Value, min: Value | None = None, max: Value | None = None) -> Value:
    result = input
    if min is not None:
        result = g.binary("maximum", result, g.reshape(min, ()))
    if max is not None:
        result = g.binary("minimum", result, g.reshape(max, ()))
    return result


_LARGEST = 3.4028234663852886e38  # f32


@onnx_op("Clip", since=6)
def clip_6(g: Graph, input: Value, *, min: float = -_LARGEST, max: float = _LARGEST) -> Value:
    """Infinities become the largest numbers of f32, unless attributes say otherwise."""
    return clip_1(g, input, min=min, max=max)


@onnx_op("Clip", since=1)
def clip_1(
    g: Graph, input: Value, *, min: float | None = None, max: float | None = None, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    element = input.shape.element
    low = None if min is None else g.scalar(min, element)
    return clip(g, input, low, None if max is None else g.scalar(max, element))


# ---- casts ----


@onnx_op("Cast")
def cast(g: Graph, input: Item, *, to: int, saturate: int = 1, round_mode: str = "up") -> Item | Value:
    if isinstance(input, Text):
        return input if to == STRING else Tensor.constant(_parse_numbers(input, element_type(to, g.location)))
    if not isinstance(input, Tensor):
        raise UnsupportedError("Cast takes a tensor")
    if to == STRING:
        return Text(_print_numbers(g, input))
    return _cast(g, input, element_type(to, g.location), bool(saturate), round_mode)


@onnx_op("CastLike", since=15)
def cast_like(g: Graph, input: Item, target_type: Item, *, saturate: int = 1, round_mode: str = "up") -> Item | Value:
    if isinstance(target_type, Text):
        if isinstance(input, Text):
            return input
        if isinstance(input, Tensor):
            return Text(_print_numbers(g, input))
    if not isinstance(target_type, Tensor):
        raise UnsupportedError("CastLike takes tensors")
    if isinstance(input, Text):
        return Tensor.constant(_parse_numbers(input, target_type.element))
    if not isinstance(input, Tensor):
        raise UnsupportedError("CastLike takes tensors")
    return _cast(g, input, target_type.element, bool(saturate), round_mode)


def _cast(g: Graph, x: Tensor, to: DType, saturate: bool, round_mode: str) -> Tensor | Value:
    if x.element == to:
        return x
    if x.known is not None and x.element.kind != "float" and to.kind != "bool" and x.known.size <= 1024:
        if x.is_symbolic and (to.is_integer or (to.is_float and to.bits >= 32)):
            return Tensor(x.shape.with_dtype(to), known=x.known)
        if not x.is_symbolic and to.bits >= 8:
            return Tensor.constant(x.known.astype(to.numpy))
    if x.is_symbolic and x.element.is_float and to.is_integer:
        return Tensor(x.shape.with_dtype(to), known=x.known)
    value = g.value(x)
    if to.name == "f8E8M0FNU":
        return _to_exponent(g, value, saturate, round_mode)
    if to.is_float and to.bits <= 8 and x.element.is_float and (saturate or to.bits == 4):
        return _saturate(g, value, to)
    if to.is_integer and to.bits < 8 and x.element.is_float:  # these keep the low bits
        return g.convert(g.convert(value, i64), to)
    return g.convert(value, to)


def _saturate(g: Graph, x: Value, to: DType) -> Value:
    """Numbers beyond the greatest finite one become that; nan stays nan."""
    wide = g.convert(x, f32) if x.shape.element.bits < 32 else x
    most = greatest_finite(to)
    low, high = g.like(-most, wide), g.like(most, wide)
    held = g.select(g.compare(wide, high, "GT"), high, g.select(g.compare(wide, low, "LT"), low, wide))
    return g.convert(held, to)


def _to_exponent(g: Graph, x: Value, saturate: bool, round_mode: str) -> Value:
    """The exponent of a number, rounded as asked: a float type of powers of two."""
    e8 = dtype("f8E8M0FNU")
    wide = g.convert(x, f32)
    bits = g.b.bitcast_convert(wide, result=wide.shape.with_dtype(ui32))
    unsigned = wide.shape.with_dtype(ui32)
    exponent = g.binary("and", g.binary("shift_right_logical", bits, g.full(23, unsigned)), g.full(255, unsigned))
    mantissa = g.binary("and", bits, g.full((1 << 23) - 1, unsigned))
    zero = g.full(0, unsigned)
    match round_mode:
        case "up":
            rounds = g.compare(mantissa, zero, "GT")
        case "down":
            rounds = g.full(False, unsigned.with_dtype(i1))
        case "nearest":
            rounds = g.compare(mantissa, g.full(1 << 22, unsigned), "GE")
        case _:
            raise ParseError("Cast: attribute 'round_mode'", expected="up, down or nearest", got=round_mode)
    last = 254
    may = (
        g.compare(exponent, g.full(last, unsigned), "LT")
        if saturate
        else g.compare(exponent, g.full(255, unsigned), "LT")
    )
    moved = g.select(g.binary("and", rounds, may), g.binary("add", exponent, g.full(1, unsigned)), exponent)
    infinite = g.unary("chlo.is_inf", wide)
    if saturate:
        moved = g.select(infinite, g.full(last, unsigned), moved)
    moved = g.select(g.compare(wide, wide, "NE"), g.full(255, unsigned), moved)
    narrow = g.convert(moved, dtype("ui8"))
    return _one(g.b.bitcast_convert(narrow, result=narrow.shape.with_dtype(e8)))


def _one(result: Any) -> Value:
    assert isinstance(result, Value)
    return result


def _parse_numbers(text: Text, to: DType) -> np.ndarray[Any, Any]:
    flat = [float(each) if to.is_float else int(each) for each in text.array.reshape(-1)]
    return np.array(flat, np.float64 if to.is_float else np.int64).reshape(text.array.shape).astype(to.numpy)


def _print_numbers(g: Graph, x: Tensor) -> np.ndarray[Any, Any]:
    array = g.numbers(x, "input")
    flat = np.empty(array.size, object)
    flat[:] = [str(each) for each in array.reshape(-1)]
    return flat.reshape(array.shape)


@onnx_op("BitCast", since=26)
def bit_cast(g: Graph, input: Value, *, to: int) -> Value:
    element = element_type(to, g.location)
    if {element.kind, input.shape.element.kind} in ({"bool", "uint"}, {"bool", "int"}) and 8 in (
        element.bits,
        input.shape.element.bits,
    ):
        return g.convert(input, element)  # a boolean is a byte that is 0 or 1
    if element.bits != input.shape.element.bits:
        raise ShapeError("BitCast keeps the width", expected=input.shape.element, got=element)
    if element.is_complex != input.shape.element.is_complex:
        raise UnsupportedError("BitCast between complex and other types")
    return _one(g.b.bitcast_convert(input, result=input.shape.with_dtype(element)))


# ---- activations ----


@onnx_op("Relu")
def relu(g: Graph, X: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    return g.binary("maximum", X, g.like(0, X))


@onnx_op("LeakyRelu")
def leaky_relu(g: Graph, X: Value, *, alpha: float = 0.01, consumed_inputs: tuple[int, ...] = ()) -> Value:
    return g.select(g.compare(X, g.like(0, X), "LT"), g.times(X, alpha), X)


@onnx_op("PRelu", since=7)
def prelu(g: Graph, X: Value, slope: Value) -> Value:
    X, slope = g.together(X, slope)
    return g.select(g.compare(X, g.like(0, X), "LT"), g.binary("multiply", X, slope), X)


@onnx_op("PRelu", since=1)
def prelu_1(g: Graph, X: Value, slope: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
    if slope.shape.rank == 1 and X.shape.rank > 1 and slope.shape.sizes[0] != 1:  # one per channel
        slope = g.reshape(slope, (*slope.shape.sizes, *(1,) * (X.shape.rank - 2)))
    return prelu(g, X, slope)


@onnx_op("Elu")
def elu(g: Graph, X: Value, *, alpha: float = 1.0, consumed_inputs: tuple[int, ...] = ()) -> Value:
    def fn(x: Value) -> Value:
        return g.select(g.compare(x, g.like(0, x), "LT"), g.times(g.unary("exponential_minus_one", x), alpha), x)

    return g.in_f32(fn, X)


@onnx_op("Selu")
def selu(
    g: Graph, X: Value, *, alpha: float | None = None, gamma: float | None = None, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    old = g.opsets.get("", 1) < 6
    a = alpha if alpha is not None else 1.6732 if old else 1.67326319217681884765625
    c = gamma if gamma is not None else 1.0507 if old else 1.05070102214813232421875
    return g.in_f32(lambda x: g.times(elu(g, x, alpha=a), c), X)


@onnx_op("Celu", since=12)
def celu(g: Graph, X: Value, *, alpha: float = 1.0) -> Value:
    if alpha == 0:
        raise ParseError("Celu: attribute 'alpha'", expected="a number other than 0", got=alpha)

    def fn(x: Value) -> Value:
        shrunk = g.times(g.unary("exponential_minus_one", g.times(x, 1 / alpha)), alpha)
        zero = g.like(0, x)
        return g.binary("add", g.binary("maximum", x, zero), g.binary("minimum", shrunk, zero))

    return g.in_f32(fn, X)


@onnx_op("HardSigmoid")
def hard_sigmoid(
    g: Graph, X: Value, *, alpha: float = 0.2, beta: float = 0.5, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    def fn(x: Value) -> Value:
        line = g.plus(g.times(x, alpha), beta)
        return g.binary("maximum", g.binary("minimum", line, g.like(1, x)), g.like(0, x))

    return g.in_f32(fn, X)


@onnx_op("HardSwish", since=14)
def hard_swish(g: Graph, X: Value) -> Value:
    return g.binary("multiply", X, hard_sigmoid(g, X, alpha=1 / 6, beta=0.5))


@onnx_op("Softplus")
def softplus(g: Graph, X: Value) -> Value:
    def fn(x: Value) -> Value:
        tail = g.unary("log_plus_one", g.unary("exponential", g.unary("negate", g.unary("abs", x))))
        return g.binary("add", g.binary("maximum", x, g.like(0, x)), tail)

    return g.in_f32(fn, X)


@onnx_op("Softsign")
def softsign(g: Graph, input: Value) -> Value:
    return g.binary("divide", input, g.plus(g.unary("abs", input), 1))


@onnx_op("ThresholdedRelu", since=10)
def thresholded_relu(g: Graph, X: Value, *, alpha: float = 1.0) -> Value:
    return g.select(g.compare(X, g.like(alpha, X), "GT"), X, g.like(0, X))


@onnx_op("Shrink", since=9)
def shrink(g: Graph, input: Value, *, bias: float = 0.0, lambd: float = 0.5) -> Value:
    element = input.shape.element
    x = input if element.is_float else g.convert(input, f64)
    high = g.select(g.compare(x, g.like(lambd, x), "GT"), g.plus(x, -bias), g.like(0, x))
    return g.convert(g.select(g.compare(x, g.like(-lambd, x), "LT"), g.plus(x, bias), high), element)


@onnx_op("Gelu", since=20)
def gelu(g: Graph, X: Value, *, approximate: str = "none") -> Value:
    def exact(x: Value) -> Value:
        return g.times(g.binary("multiply", x, g.plus(g.unary("chlo.erf", g.times(x, sqrt(0.5))), 1)), 0.5)

    def tanh(x: Value) -> Value:
        cube = g.binary("multiply", x, g.binary("multiply", x, x))
        inner = g.times(g.binary("add", x, g.times(cube, 0.044715)), sqrt(2 / pi))
        return g.times(g.binary("multiply", x, g.plus(g.unary("tanh", inner), 1)), 0.5)

    if approximate not in ("none", "tanh"):
        raise ParseError("Gelu: attribute 'approximate'", expected="none or tanh", got=approximate)
    return g.in_f32(exact if approximate == "none" else tanh, X)


@onnx_op("Mish", since=18)
def mish(g: Graph, X: Value) -> Value:
    return g.in_f32(lambda x: g.binary("multiply", x, g.unary("tanh", softplus(g, x))), X)


@onnx_op("Swish", since=24)
def swish(g: Graph, X: Value, *, alpha: float = 1.0) -> Value:
    return g.in_f32(lambda x: g.binary("multiply", x, g.unary("logistic", g.times(x, alpha))), X)


# ---- softmax ----


def softmax_over(g: Graph, x: Value, axes: tuple[int, ...], log: bool = False) -> Value:
    """Softmax, or its logarithm, over axes taken together."""

    def fn(x: Value) -> Value:
        shifted = g.binary("subtract", x, g.max(x, axes, keep=True))
        powers = g.unary("exponential", shifted)
        total = g.sum(powers, axes, keep=True)
        return g.binary("subtract", shifted, g.unary("log", total)) if log else g.binary("divide", powers, total)

    return g.in_f32(fn, x)


def _behind(axis: int, rank: int) -> tuple[int, ...]:
    """Before opset 13 everything from an axis on was one axis."""
    return tuple(range(axis_of(axis, rank), rank))


@onnx_op("Softmax", since=13)
def softmax(g: Graph, input: Value, *, axis: int = -1) -> Value:
    return softmax_over(g, input, (axis_of(axis, input.shape.rank),))


@onnx_op("Softmax", since=1)
def softmax_1(g: Graph, input: Value, *, axis: int = 1) -> Value:
    return softmax_over(g, input, _behind(axis, input.shape.rank))


@onnx_op("LogSoftmax", since=13)
def log_softmax(g: Graph, input: Value, *, axis: int = -1) -> Value:
    return softmax_over(g, input, (axis_of(axis, input.shape.rank),), log=True)


@onnx_op("LogSoftmax", since=1)
def log_softmax_1(g: Graph, input: Value, *, axis: int = 1) -> Value:
    return softmax_over(g, input, _behind(axis, input.shape.rank), log=True)


def _hardmax(g: Graph, x: Value, axis: int) -> Value:
    """1 at the first greatest element."""
    places = g.iota(i64, x.shape.sizes, axis)
    greatest = g.compare(x, g.broadcast_to(g.max(x, (axis,), keep=True), x.shape.sizes), "EQ")
    first = g.min(g.select(greatest, places, g.like((1 << 63) - 1, places)), (axis,), keep=True)
    return g.convert(g.compare(places, g.broadcast_to(first, x.shape.sizes), "EQ"), x.shape.element)


@onnx_op("Hardmax", since=13)
def hardmax(g: Graph, input: Value, *, axis: int = -1) -> Value:
    return _hardmax(g, input, axis_of(axis, input.shape.rank))


@onnx_op("Hardmax", since=1)
def hardmax_1(g: Graph, input: Value, *, axis: int = 1) -> Value:
    first = axis_of(axis, input.shape.rank)
    flat = flatten_at(g, input, first)
    return g.reshape(_hardmax(g, flat, 1), input.shape.sizes)


def flatten_at(g: Graph, x: Value, axis: int) -> Value:
    """A matrix: the dimensions before an axis, and those from it on."""
    from_axis = Shape.of(x.shape.element, x.shape.sizes[axis:]).count
    return g.reshape(x, (Shape.of(x.shape.element, x.shape.sizes[:axis]).count, from_axis))


# ---- matrix multiplication ----


@onnx_op("MatMul")
def matmul(g: Graph, A: Value, B: Value) -> Value:
    return g.matmul(A, B)


@onnx_op("Gemm")
def gemm(
    g: Graph,
    A: Value,
    B: Value,
    C: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    broadcast: int = 0,
) -> Value:
    if A.shape.rank != 2 or B.shape.rank != 2:
        raise ShapeError("Gemm multiplies matrices", got=f"{A.shape} and {B.shape}")
    element = A.shape.element
    product = g.dot(A, B, ((0 if transA else 1,), (1 if transB else 0,)))
    if element.is_integer and (alpha != 1 or beta != 1):
        scaled = g.times(g.convert(product, f64), alpha)
        if C is not None:
            scaled = g.binary("add", scaled, g.broadcast_to(g.times(g.convert(C, f64), beta), product.shape.sizes))
        return g.convert(scaled, element)
    product = g.times(product, alpha)
    if C is None or beta == 0:
        return product
    return g.binary("add", product, g.broadcast_to(g.times(C, beta), product.shape.sizes))


@onnx_op("Einsum", since=12)
def einsum(g: Graph, *Inputs: Value, equation: str) -> Value:
    terms, _, output = equation.replace(" ", "").partition("->")
    if terms.count(",") + 1 != len(Inputs):
        raise ParseError("Einsum: attribute 'equation'", expected=f"{len(Inputs)} operands", got=equation)
    names = [_ellipsis(term, x.shape.rank) for term, x in zip(terms.split(","), Inputs, strict=True)]
    if "->" in equation:
        dots = max((int(label[1:]) for labels in names for label in labels if len(label) > 1), default=0)
        wanted = _output_labels(output, dots)
    else:
        flat = [label for term in names for label in term]
        many = sorted({label for label in flat if len(label) > 1}, key=lambda label: -int(label[1:]))
        wanted = [*many, *sorted(label for label in set(flat) if len(label) == 1 and flat.count(label) == 1)]
    result, labels = _diagonals(g, Inputs[0], names[0])
    for i, (x, own) in enumerate(zip(Inputs[1:], names[1:], strict=True), 2):
        needed = {label for term in names[i:] for label in term} | set(wanted)
        result, labels = _einsum_pair(g, result, labels, *_diagonals(g, x, own), needed)
    extra = [i for i, label in enumerate(labels) if label not in wanted]
    result = g.sum(result, extra)
    labels = [label for label in labels if label in wanted]
    missing = [label for label in wanted if label not in labels]
    if missing:
        raise ParseError("Einsum: attribute 'equation'", got=equation)
    return g.transpose(result, [labels.index(label) for label in wanted])


def _ellipsis(term: str, rank: int) -> list[str]:
    """The labels of one operand; `...` stands for dimensions counted from its end."""
    head, dots, tail = term.partition("...")
    if not dots:
        labels = list(head)
    else:
        count = rank - len(head) - len(tail)
        labels = [*head, *(f".{count - i}" for i in range(count)), *tail]
    if len(labels) != rank:
        raise ShapeError("Einsum: an operand has another rank than its term", expected=term, got=rank)
    return labels


def _output_labels(output: str, dots: int) -> list[str]:
    head, found, tail = output.partition("...")
    return [*head, *(f".{dots - i}" for i in range(dots)), *tail] if found else list(head)


def _diagonals(g: Graph, x: Value, labels: list[str]) -> tuple[Value, list[str]]:
    """Labels that repeat within an operand pick its diagonal."""
    while len(set(labels)) != len(labels):
        label = next(each for each in labels if labels.count(each) > 1)
        first = labels.index(label)
        second = labels.index(label, first + 1)
        sizes = x.shape.sizes
        same = g.compare(g.iota(i64, sizes, first), g.iota(i64, sizes, second), "EQ")
        x = g.sum(g.select(same, x, g.like(0, x)), (second,))
        labels = labels[:second] + labels[second + 1 :]
    return x, labels


def _einsum_pair(
    g: Graph, a: Value, left: list[str], b: Value, right: list[str], needed: set[str]
) -> tuple[Value, list[str]]:
    """The product of two operands, summed over shared labels that no later term uses."""
    shared = [label for label in left if label in right]
    if all(a.shape.sizes[left.index(label)] == b.shape.sizes[right.index(label)] for label in shared):
        gone = [label for label in shared if label not in needed]
        kept = [label for label in shared if label in needed]
        product = g.dot(
            a,
            b,
            ([left.index(label) for label in gone], [right.index(label) for label in gone]),
            ([left.index(label) for label in kept], [right.index(label) for label in kept]),
        )
        return product, kept + [label for label in left + right if label not in shared]
    labels = left + [label for label in right if label not in left]
    spread_a = g.reshape(a, (*a.shape.sizes, *(1,) * (len(labels) - len(left))))
    order = sorted(range(len(right)), key=lambda i: labels.index(right[i]))
    moved = g.transpose(b, order)
    sizes = iter(moved.shape.sizes)
    spread_b = g.reshape(moved, [next(sizes) if label in right else 1 for label in labels])
    return g.binary("multiply", spread_a, spread_b), labels


@onnx_op("Det", since=11, ranks={"X": "2+"})
def det(g: Graph, X: Value) -> Value:
    """Gaussian elimination with pivots, unrolled over the columns."""
    n = X.shape.sizes[-1]
    if not isinstance(n, int) or n != X.shape.sizes[-2] or n > 64:
        raise UnsupportedError("Det of matrices of this size", expected="square, at most 64", got=X.shape)
    rank = X.shape.rank
    batch = X.shape.sizes[:-2]
    x = X
    result = g.full(1, Shape.of(X.shape.element, batch))
    for k in range(n):
        m = n - k
        column = g.reshape(g.slice_axis(x, rank - 1, 0, 1), (*batch, m))
        size = g.unary("abs", column)
        rows = g.iota(i64, (*batch, m), rank - 2)
        best = g.compare(size, g.broadcast_to(g.max(size, (rank - 2,), keep=True), size.shape.sizes), "EQ")
        first = g.min(g.select(best, rows, g.like(m, rows)), (rank - 2,), keep=True)
        at_first = g.compare(rows, g.broadcast_to(first, rows.shape.sizes), "EQ")
        pick = g.expand_dims(at_first, (rank - 1,))
        chosen = g.sum(g.choose(pick, x, g.like(0, x)), (rank - 2,), keep=True)
        top = g.slice_axis(x, rank - 2, 0, 1)
        x = g.choose(pick, g.broadcast_to(top, x.shape.sizes), x)  # the rows change places
        pivot = g.reshape(g.slice_axis(chosen, rank - 1, 0, 1), batch)
        swapped = g.reshape(g.compare(first, g.like(0, first), "NE"), batch)
        result = g.binary("multiply", result, g.select(swapped, g.unary("negate", pivot), pivot))
        if m == 1:
            break
        rest = g.slice_axis(x, rank - 2, 1, m)
        safe = g.reshape(g.select(g.compare(pivot, g.like(0, pivot), "EQ"), g.like(1, pivot), pivot), (*batch, 1, 1))
        factors = g.binary("divide", g.slice_axis(rest, rank - 1, 0, 1), safe)
        rest = g.binary("subtract", rest, g.binary("multiply", factors, chosen))
        x = g.slice_axis(rest, rank - 1, 1, m)
    return result
