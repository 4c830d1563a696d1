"""Elementwise ops: arithmetic, comparisons, logic, bits, mathematical functions, activations, casts, `where`.

Operands are Tensors and Python numbers, aligned by name and promoted by the table. `Tensor`'s operators and
methods call these functions, which are public under their own names too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from smelt.dtype import DType, dtype, integer_range
from smelt.shape import Shape
from smelt.tensor.axes import Dim, Places, align
from smelt.tensor.promotion import as_array, promote, python_number
from smelt.tensor.record import Leaf, constant, emit, is_tensor, operand, size_tensor, tensor_of
from smelt.tensor.source import Operand, here, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

Number: TypeAlias = bool | int | float | complex
TensorLike: TypeAlias = "Tensor | Number | Dim | np.ndarray[Any, Any] | np.generic"


# ---- operands ----


def leaf(data: Any, element: str | DType | None = None, names: tuple[str, ...] | None = None) -> Tensor:
    """A tensor on data that is already there."""
    array, found = as_array(data, element)
    return tensor_of(Leaf(Shape.of(found, array.shape), array, place=here()), names)


def lift(what: str, values: Sequence[Any], labels: Sequence[str]) -> list[Tensor]:
    """Tensors for operands of which some are Python numbers, sizes or arrays; numbers take the type of the tensors."""
    tensors = [value for value in values if not isinstance(value, bool | int | float | complex | Dim)]
    lifted = [value if is_tensor(value) else _lift_array(what, value) for value in tensors]
    if not lifted:
        return [size_tensor(value.size, ()) if isinstance(value, Dim) else leaf(value) for value in values]
    if len(lifted) == len(values):
        return lifted
    shown = [operand(label, tensor) for label, tensor in zip(labels, lifted, strict=False)]
    beside = shown[0] if len(shown) == 1 else Operand("tensors", lifted[0].shape.with_dtype(promote(what, *shown)))
    rest = iter(lifted)
    return [
        _lift_number(what, v, beside, lifted) if isinstance(v, Dim | complex | float | int) else next(rest)
        for v in values
    ]


def _lift_number(what: str, value: Number | Dim, beside: Operand, near: Sequence[Tensor]) -> Tensor:
    if isinstance(value, Dim):
        return cast(size_tensor(value.size, near), beside.shape.element)
    return constant(value, python_number(what, value, beside))


def _lift_array(what: str, value: Any) -> Tensor:
    if isinstance(value, np.generic):
        return constant(value, dtype(value.dtype))
    if isinstance(value, np.ndarray):
        return leaf(value)
    refuse(f"{what}: {type(value).__name__} is not a tensor", remedy="smelt.tensor(data)")


def spread(x: Tensor, shape: Shape, places: Places) -> Tensor:
    """Broadcast a tensor to a shape, with its axes at these positions; the names are the shape's."""
    if x.shape.rank == shape.rank and places == tuple(range(shape.rank)):
        if all(
            have is want or have == want or have != 1 for have, want in zip(x.shape.sizes, shape.sizes, strict=True)
        ):
            return x
    wanted = Shape.of(x.dtype, shape.sizes)
    return emit("broadcast_in_dim", x, names=shape.names, result=wanted, broadcast_dimensions=places)


def cast(x: Tensor, element: DType) -> Tensor:
    """The elements converted; nothing where they are of that type."""
    if x.dtype is element:
        return x
    return emit("convert", x, names=x.shape.names, result=Shape.of(element, x.shape.sizes))


def meet(
    what: str,
    values: Sequence[Any],
    labels: Sequence[str] = ("left", "right"),
    *,
    outer: bool = False,
    promoted: bool = True,
) -> tuple[list[Tensor], Shape]:
    """Operands as tensors of one shape and, where asked, of one element type; and that shape."""
    tensors = lift(what, values, labels)
    shown = [operand(label, tensor) for label, tensor in zip(labels, tensors, strict=True)]
    shape, places = align(what, shown, outer=outer)
    if promoted:
        element = promote(what, *shown)
        tensors = [cast(tensor, element) for tensor in tensors]
    return [spread(tensor, shape, each) for tensor, each in zip(tensors, places, strict=True)], shape


def _binary(what: str, op: str, x: TensorLike, y: TensorLike, *, outer: bool = False, **attrs: Any) -> Tensor:
    (a, b), shape = meet(what, (x, y), outer=outer)
    return emit(op, a, b, names=shape.names, **attrs)


def _require_kind(what: str, x: Tensor, *kinds: str) -> Tensor:
    """Refuse elements that a function has no meaning for."""
    if x.dtype.kind not in kinds:
        wanted = {"float": 'cast to floats: .to("f32")', "bool": "compare with 0: x != 0"}
        remedy = next((wanted[kind] for kind in kinds if kind in wanted), None)
        refuse(f"{what}: not for {x.dtype}", operand("operand", x), remedy=remedy)
    return x


# ---- arithmetic ----


def add(x: TensorLike, y: TensorLike) -> Tensor:
    """x + y"""
    return _binary("+", "add", x, y)


def subtract(x: TensorLike, y: TensorLike) -> Tensor:
    """x - y"""
    return _binary("-", "subtract", x, y)


def multiply(x: TensorLike, y: TensorLike) -> Tensor:
    """x * y"""
    return _binary("*", "multiply", x, y)


def divide(x: TensorLike, y: TensorLike) -> Tensor:
    """x / y, of floats: integers are divided with `//` or after a cast."""
    (a, b), shape = meet("/", (x, y))
    if not (a.dtype.is_float or a.dtype.is_complex):
        shown = operand("left", a), operand("right", b)
        refuse(f"/: {a.dtype} has no fractions", *shown, remedy='x // y, or cast first: x.to("f32") / y')
    return emit("divide", a, b, names=shape.names)


def floor_divide(x: TensorLike, y: TensorLike) -> Tensor:
    """x // y, rounded down as in Python."""
    (a, b), shape = meet("//", (x, y))
    if a.dtype.is_float:
        return floor(emit("divide", a, b, names=shape.names))
    quotient = emit("divide", a, b, names=shape.names)
    if a.dtype.kind == "uint":
        return quotient
    rest = emit("remainder", a, b, names=shape.names)
    return where(logical_and(not_equal(rest, 0), not_equal(sign(rest), sign(b))), subtract(quotient, 1), quotient)


def remainder(x: TensorLike, y: TensorLike) -> Tensor:
    """x % y, with the sign of y as in Python."""
    (a, b), shape = meet("%", (x, y))
    rest = emit("remainder", a, b, names=shape.names)
    if a.dtype.kind == "uint":
        return rest
    return where(logical_and(not_equal(rest, 0), not_equal(less(rest, 0), less(b, 0))), add(rest, b), rest)


def power(x: TensorLike, y: TensorLike) -> Tensor:
    """x ** y. Small whole powers are products."""
    if is_tensor(x) and isinstance(y, int) and not isinstance(y, bool) and 1 <= y <= 4:
        result: Any = x
        for _ in range(y - 1):
            result = multiply(result, x)
        return result  # type: ignore[no-any-return]
    return _binary("**", "power", x, y)


def maximum(x: TensorLike, y: TensorLike) -> Tensor:
    """The larger of each two elements; nan where one is."""
    return _binary("maximum", "maximum", x, y)


def minimum(x: TensorLike, y: TensorLike) -> Tensor:
    """The smaller of each two elements; nan where one is."""
    return _binary("minimum", "minimum", x, y)


def atan2(x: TensorLike, y: TensorLike) -> Tensor:
    """The angle of the point (y, x)."""
    return _binary("atan2", "atan2", x, y)


def outer(op: str, x: Tensor, y: Tensor) -> Tensor:
    """Every pair of elements: axes that only one operand has are all kept. `op` is `+ - * / maximum minimum`.

    >>> from smelt.tensor import tensor
    >>> outer("*", tensor([1., 2.], "a"), tensor([3., 4., 5.], "b")).shape
    f32[a=2, b=3]
    """
    names = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "maximum": "maximum", "minimum": "minimum"}
    if op not in names:
        refuse(f"outer: no such op {op!r}", remedy="one of " + " ".join(names))
    return _binary(f"outer {op}", names[op], x, y, outer=True)


def negative(x: Tensor) -> Tensor:
    """-x"""
    return _unary("-", "negate", x, "int", "uint", "float", "complex")


def absolute(x: Tensor) -> Tensor:
    """|x|"""
    return x if x.dtype.kind == "uint" else _unary("abs", "abs", x, "int", "float", "complex")


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return _unary("sign", "sign", x, "int", "float", "complex")


# ---- comparisons and logic ----


def _compare(symbol: str, direction: str, x: TensorLike, y: TensorLike) -> Tensor:
    return _binary(symbol, "compare", x, y, comparison_direction=direction)


def equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x == y, element by element."""
    return _compare("==", "EQ", x, y)


def not_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x != y, element by element."""
    return _compare("!=", "NE", x, y)


def less(x: TensorLike, y: TensorLike) -> Tensor:
    """x < y, element by element."""
    return _compare("<", "LT", x, y)


def less_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x <= y, element by element."""
    return _compare("<=", "LE", x, y)


def greater(x: TensorLike, y: TensorLike) -> Tensor:
    """x > y, element by element."""
    return _compare(">", "GT", x, y)


def greater_equal(x: TensorLike, y: TensorLike) -> Tensor:
    """x >= y, element by element."""
    return _compare(">=", "GE", x, y)


def _bits(symbol: str, op: str, x: TensorLike, y: TensorLike) -> Tensor:
    (a, b), shape = meet(symbol, (x, y))
    _require_kind(symbol, a, "bool", "int", "uint")
    return emit(op, a, b, names=shape.names)


def bitwise_and(x: TensorLike, y: TensorLike) -> Tensor:
    """x & y: of bits, or of booleans."""
    return _bits("&", "and", x, y)


def bitwise_or(x: TensorLike, y: TensorLike) -> Tensor:
    """x | y: of bits, or of booleans."""
    return _bits("|", "or", x, y)


def bitwise_xor(x: TensorLike, y: TensorLike) -> Tensor:
    """x ^ y: of bits, or of booleans."""
    return _bits("^", "xor", x, y)


def bitwise_not(x: Tensor) -> Tensor:
    """~x: of bits, or of booleans."""
    return _unary("~", "not", x, "bool", "int", "uint")


def shift_left(x: TensorLike, y: TensorLike) -> Tensor:
    """x << y"""
    return _bits("<<", "shift_left", x, y)


def shift_right(x: TensorLike, y: TensorLike) -> Tensor:
    """x >> y: keeps the sign of signed integers."""
    (a, b), shape = meet(">>", (x, y))
    _require_kind(">>", a, "int", "uint")
    signed = a.dtype.kind == "int"
    return emit("shift_right_arithmetic" if signed else "shift_right_logical", a, b, names=shape.names)


def logical_and(x: Tensor, y: Tensor) -> Tensor:
    """Both of two booleans."""
    return bitwise_and(_require_kind("logical_and", x, "bool"), _require_kind("logical_and", y, "bool"))


def logical_or(x: Tensor, y: Tensor) -> Tensor:
    """At least one of two booleans."""
    return bitwise_or(_require_kind("logical_or", x, "bool"), _require_kind("logical_or", y, "bool"))


def logical_xor(x: Tensor, y: Tensor) -> Tensor:
    """Exactly one of two booleans."""
    return bitwise_xor(_require_kind("logical_xor", x, "bool"), _require_kind("logical_xor", y, "bool"))


def logical_not(x: Tensor) -> Tensor:
    """The opposite of booleans."""
    return bitwise_not(_require_kind("logical_not", x, "bool"))


def where(condition: TensorLike, x: TensorLike, y: TensorLike) -> Tensor:
    """x where the condition holds, y elsewhere; all three align."""
    a, b = lift("where", (x, y), ("then", "else"))
    (test,) = lift("where", (condition,), ("condition",))
    _require_kind("where", test, "bool")
    element = promote("where", operand("then", a), operand("else", b))
    a, b = cast(a, element), cast(b, element)
    (test, a, b), shape = meet("where", (test, a, b), ("condition", "then", "else"), promoted=False)
    return emit("select", test, a, b, names=shape.names)


# ---- functions of one operand ----


def _unary(what: str, op: str, x: Tensor, *kinds: str) -> Tensor:
    return emit(op, _require_kind(what, x, *(kinds or ("float", "complex"))), names=x.shape.names)


FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    # name → (op, kinds of elements)
    "exp": ("exponential", ("float", "complex")),
    "expm1": ("exponential_minus_one", ("float", "complex")),
    "log": ("log", ("float", "complex")),
    "log1p": ("log_plus_one", ("float", "complex")),
    "sqrt": ("sqrt", ("float", "complex")),
    "rsqrt": ("rsqrt", ("float", "complex")),
    "cbrt": ("cbrt", ("float",)),
    "sin": ("sine", ("float", "complex")),
    "cos": ("cosine", ("float", "complex")),
    "tan": ("tan", ("float", "complex")),
    "asin": ("chlo.asin", ("float", "complex")),
    "acos": ("chlo.acos", ("float", "complex")),
    "atan": ("chlo.atan", ("float", "complex")),
    "sinh": ("chlo.sinh", ("float", "complex")),
    "cosh": ("chlo.cosh", ("float", "complex")),
    "tanh": ("tanh", ("float", "complex")),
    "asinh": ("chlo.asinh", ("float", "complex")),
    "acosh": ("chlo.acosh", ("float", "complex")),
    "atanh": ("chlo.atanh", ("float", "complex")),
    "sigmoid": ("logistic", ("float", "complex")),
    "erf": ("chlo.erf", ("float",)),
    "erfc": ("chlo.erfc", ("float",)),
    "erf_inv": ("chlo.erf_inv", ("float",)),
    "lgamma": ("chlo.lgamma", ("float",)),
    "digamma": ("chlo.digamma", ("float",)),
    "floor": ("floor", ("float",)),
    "ceil": ("ceil", ("float",)),
    "round": ("round_nearest_even", ("float",)),
    "isfinite": ("is_finite", ("float",)),
    "isinf": ("chlo.is_inf", ("float",)),
    "popcount": ("popcnt", ("int", "uint")),
    "count_leading_zeros": ("count_leading_zeros", ("int", "uint")),
    "real": ("real", ("float", "complex")),
    "imag": ("imag", ("float", "complex")),
}


def function(name: str, x: Tensor) -> Tensor:
    """A function of the table FUNCTIONS."""
    op, kinds = FUNCTIONS[name]
    return _unary(name, op, x, *kinds)


def floor(x: Tensor) -> Tensor:
    """Rounded down; integers are so already."""
    return x if x.dtype.is_integer else function("floor", x)


def isnan(x: Tensor) -> Tensor:
    """Whether elements are not numbers."""
    return not_equal(_require_kind("isnan", x, "float", "complex"), x)


def trunc(x: Tensor) -> Tensor:
    """Rounded toward zero."""
    return where(less(x, 0.0), function("ceil", x), function("floor", x))


def square(x: Tensor) -> Tensor:
    """x * x"""
    return multiply(x, x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x"""
    return divide(1.0, x)


def conj(x: Tensor) -> Tensor:
    """The complex conjugate."""
    return _unary("conj", "chlo.conj", x, "complex") if x.dtype.is_complex else x


def complex_from(real: Tensor, imag: Tensor) -> Tensor:
    """Complex numbers from their parts."""
    (a, b), shape = meet("complex", (real, imag))
    _require_kind("complex", a, "float")
    return emit("complex", a, b, names=shape.names)


def clamp(x: Tensor, low: TensorLike | None = None, high: TensorLike | None = None) -> Tensor:
    """x held between low and high; either may be left out."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


# ---- activations ----


def relu(x: Tensor) -> Tensor:
    """max(x, 0)"""
    return maximum(x, 0)


def relu6(x: Tensor) -> Tensor:
    """x held between 0 and 6."""
    return clamp(x, 0, 6)


def leaky_relu(x: Tensor, slope: float = 0.01) -> Tensor:
    """x, times the slope where it is negative."""
    return where(less(x, 0.0), multiply(x, slope), x)


def elu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """x, or alpha * (exp(x) - 1) where it is negative."""
    return where(greater(x, 0.0), x, multiply(function("expm1", minimum(x, 0.0)), alpha))


def selu(x: Tensor) -> Tensor:
    """The self-normalising ELU of Klambauer et al., 2017."""
    scale, alpha = 1.0507009873554805, 1.6732632423543772
    return multiply(elu(x, alpha), scale)


def celu(x: Tensor, alpha: float = 1.0) -> Tensor:
    """max(x, 0) + min(alpha * (exp(x / alpha) - 1), 0)"""
    return add(maximum(x, 0.0), multiply(function("expm1", divide(minimum(x, 0.0), alpha)), alpha))


def gelu(x: Tensor, approximate: bool = False) -> Tensor:
    """x * Phi(x), Phi the normal distribution function: by erf, or by tanh where `approximate`."""
    if approximate:
        inner = multiply(add(x, multiply(power(x, 3), 0.044715)), math.sqrt(2 / math.pi))
        return multiply(multiply(x, 0.5), add(function("tanh", inner), 1.0))
    return multiply(multiply(x, 0.5), add(function("erf", multiply(x, math.sqrt(0.5))), 1.0))


def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x)"""
    return multiply(x, function("sigmoid", x))


def hard_sigmoid(x: Tensor) -> Tensor:
    """x / 6 + 1 / 2 held between 0 and 1."""
    return clamp(add(multiply(x, 1 / 6), 0.5), 0.0, 1.0)


def hard_swish(x: Tensor) -> Tensor:
    """x * hard_sigmoid(x)"""
    return multiply(x, hard_sigmoid(x))


def softplus(x: Tensor) -> Tensor:
    """log(1 + exp(x)), without overflow."""
    return add(maximum(x, 0.0), function("log1p", function("exp", negative(absolute(x)))))


def log_sigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)), without overflow."""
    return negative(softplus(negative(x)))


def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|)"""
    return divide(x, add(absolute(x), 1.0))


def mish(x: Tensor) -> Tensor:
    """x * tanh(softplus(x))"""
    return multiply(x, function("tanh", softplus(x)))


# ---- element types ----


def to(x: Tensor, element: str | DType) -> Tensor:
    """The elements converted to another type: floats to integers round toward zero."""
    wanted = dtype(element)
    if x.dtype.is_complex and not wanted.is_complex:
        remedy = "x.real().to(…)"
        refuse(f"to: complex numbers do not become {wanted}", operand("operand", x), remedy=remedy)
    return cast(x, wanted)


def bitcast(x: Tensor, element: str | DType) -> Tensor:
    """The same bits read as another type of the same width."""
    wanted = dtype(element)
    if wanted.bits != x.dtype.bits:
        message = f"bitcast: {x.dtype} has {x.dtype.bits} bits, {wanted} has {wanted.bits}"
        refuse(message, operand("operand", x), remedy="a type of the same width")
    return emit("bitcast_convert", x, names=x.shape.names, result=Shape.of(wanted, x.shape.sizes))


def lowest(element: DType) -> Number:
    """The value below all others: where a maximum starts."""
    if element.is_float:
        return -math.inf
    return integer_range(element)[0] if element.kind != "bool" else False


def highest(element: DType) -> Number:
    """The value above all others: where a minimum starts."""
    if element.is_float:
        return math.inf
    return integer_range(element)[1] if element.kind != "bool" else True
