"""Elementwise ops of StableHLO and CHLO: one row each, made by a few factories.

A row says which kinds of elements are allowed and which function computes them. Functions of floats are computed in
double and rounded once; quantised tensors are computed in their expressed type. `ir.ops` joins these rows to the table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, ElementType, Quantized, complex_of, dtype, i1
from smelt.errors import SizeError, UnsupportedError
from smelt.ir import integer, special
from smelt.ir.attributes import (
    ANY,
    COMPARE_TYPE,
    COMPARISON,
    CONSTANT,
    INT32,
    INTS,
    RESULT_ACCURACY,
    Constant,
    Float,
    Int,
    enum,
)
from smelt.ir.cast import cast
from smelt.ir.core import Op, Type, Value
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.quantize import baseline, check_axis, dequantize, quantize
from smelt.shape import Shape

Function = Callable[..., Array]  # of arrays that broadcast against each other
Kinds = frozenset[str]

BOOL: Kinds = frozenset({"bool"})
SIGNED: Kinds = frozenset({"int"})
INT: Kinds = frozenset({"int", "uint"})
FLOAT: Kinds = frozenset({"float"})
COMPLEX: Kinds = frozenset({"complex"})
QUANTIZED: Kinds = frozenset({"quantized"})
REAL = FLOAT | QUANTIZED
NUMBER = INT | FLOAT | COMPLEX | QUANTIZED
ANALYTIC = FLOAT | COMPLEX | QUANTIZED  # what cosine, log, … are defined for
ANYTHING = BOOL | NUMBER


# ---- types ----


def _allow(call: Call, index: int, kinds: Kinds, per_axis: bool = False) -> Shape:
    """Operand `index`, which must be a tensor of one of these kinds."""
    shape = call.shape(index)
    label = f"{_short(call)}_i{index + 1}"
    if shape.dtype.kind not in kinds:
        call.fail(
            label,
            f"operand {index} has an element type that is not allowed",
            expected=" or ".join(sorted(kinds)),
            got=shape,
        )
    if isinstance(shape.dtype, Quantized) and shape.dtype.axis is not None:
        call.require(per_axis, label, f"operand {index} must not be quantised per axis", got=shape)
        check_axis(call, shape)
    return shape


def _short(call: Call) -> str:
    return call.name.partition(".")[2]


def _same_baseline(call: Call, a: Shape, b: Shape, label: str) -> None:
    """Equal element types, where quantised ones may differ in scale and zero point."""
    x, y = a.dtype, b.dtype
    if x != y and not (isinstance(x, Quantized) and isinstance(y, Quantized) and baseline(x) == baseline(y)):
        call.fail(label, "the operands have different element types", expected=a, got=b)


def _result_type(call: Call, like: Shape) -> Shape:
    """The result type for operands like `like`: of a quantised one, the declared scale and zero point."""
    if isinstance(like.dtype, Quantized) and call.declared:
        wanted = call.declared_shape().dtype
        if isinstance(wanted, Quantized) and baseline(wanted) == baseline(like.dtype):
            return like.with_dtype(wanted)
    return like


def _join_shapes(call: Call, a: Shape, b: Shape, label: str) -> Shape:
    """The shape of two operands that must have the same sizes: numbers win over symbols."""
    if a.sizes == b.sizes:
        return a
    call.same_sizes(a.sizes, b.sizes, label, "the operands have different shapes")
    return a.with_sizes(x if type(x) is int else y for x, y in zip(a.sizes, b.sizes, strict=True))


# ---- reference semantics ----


def _widen(array: Array, exact: bool) -> Array:
    """An array in the type to compute in: double, or single where that gives the same result after rounding."""
    of = dtype(array.dtype)
    if exact and of.name in ("f16", "f32"):
        return array.astype(np.float32, copy=False)
    return array if of.wide == array.dtype else array.astype(of.wide)


def evaluate_with(fn: Function, exact: bool = False, native: bool = False) -> Callable[..., Array]:
    """The reference semantics of an op that applies `fn` to its operands.

    `exact`: `fn` rounds correctly, so f32 and f16 need no more than single precision (24 bits are 2 * 11 + 2).
    `native`: `fn` looks at bit patterns, so nothing is widened. Integers never are.
    """

    def evaluate(_: Frame, op: Op, *arrays: Array) -> Array:
        floats = _dequantize_all(op, arrays)
        if not exact:  # NumPy's vector loops do not take negative strides, and round differently from its others
            floats = [np.asarray(array, order="C") for array in floats]
        out = fn(*(floats if native else [_widen(array, exact) for array in floats]))
        return _quantize_result(np.asarray(out), op.results[0].shape.dtype)

    return evaluate


def _dequantize_all(op: Op, arrays: Sequence[Array]) -> list[Array]:
    """The operands without quantisation. Sizes that inference assumed are checked here."""
    types = [value.shape for value in op.operands]
    if not all(type.is_static for type in types):
        try:
            np.broadcast_shapes(*(array.shape for array in arrays))
        except ValueError:
            got = " and ".join(str(list(array.shape)) for array in arrays)
            raise SizeError(f"{op.name}: the operands have different shapes", expected="equal sizes", got=got) from None
    pairs = zip(types, arrays, strict=True)
    return [dequantize(array, type.dtype) if isinstance(type.dtype, Quantized) else array for type, array in pairs]


def _quantize_result(array: Array, to: ElementType) -> Array:
    return quantize(cast(array, to.expressed), to) if isinstance(to, Quantized) else cast(array, to)


def either(floats: Function, integers: Function) -> Function:
    """One function for floats and complex numbers, another for integers and booleans."""

    def choose(*arrays: Array) -> Array:
        return (floats if dtype(arrays[0].dtype).kind in ("float", "complex") else integers)(*arrays)

    return choose


def _narrow(fn: Function) -> Function:
    """An integer function that NumPy lacks for 2- and 4-bit integers, computed in 8 bits; the result wraps."""

    def widen(*arrays: Array) -> Array:
        of = dtype(arrays[0].dtype)
        if of.is_integer and of.bits < 8:
            arrays = tuple(np.asarray(array).astype(np.int8 if of.kind == "int" else np.uint8) for array in arrays)
        return fn(*arrays)

    return widen


# ---- factories ----


def unary(
    name: str,
    kinds: Kinds,
    fn: Function,
    *attrs: Attr,
    gives: Callable[[ElementType], ElementType] | None = None,
    exact: bool = False,
    native: bool = False,
) -> OpDef:
    """A function of one tensor. The result has the operand's type, or an element type made from it."""

    def infer(call: Call) -> Sequence[Type]:
        operand = _allow(call, 0, kinds)
        _check_accuracy(call)
        return [_result_type(call, operand.with_dtype(gives(operand.dtype)) if gives else operand)]

    return OpDef(_full(name), "operand", infer, evaluate_with(fn, exact, native), attrs, elementwise=True)


def binary(
    name: str,
    kinds: Kinds,
    fn: Function,
    *,
    operands: str = "lhs rhs",
    exact: bool = False,
    native: bool = False,
) -> OpDef:
    """A function of two tensors of one type."""

    def infer(call: Call) -> Sequence[Type]:
        label = f"{_short(call)}_c1"
        lhs, rhs = _allow(call, 0, kinds), _allow(call, 1, kinds)
        _same_baseline(call, lhs, rhs, label)
        return [_result_type(call, _join_shapes(call, lhs, rhs, label))]

    return OpDef(_full(name), operands, infer, evaluate_with(fn, exact, native), elementwise=True)


def _full(name: str) -> str:
    return name if "." in name else f"stablehlo.{name}"


ACCURACY = Attr("result_accuracy", RESULT_ACCURACY, None)


def _check_accuracy(call: Call) -> None:
    accuracy = call.attrs.get("result_accuracy")
    if accuracy is not None:
        label = f"{_short(call)}_i2"
        limits = (accuracy.atol, accuracy.rtol, accuracy.ulps)
        modes = ("DEFAULT", "HIGHEST", "TOLERANCE")
        call.require(
            accuracy.mode in modes, label, "unknown accuracy mode", expected=" or ".join(modes), got=accuracy.mode
        )
        call.require(all(limit >= 0 for limit in limits), label, "a tolerance must not be negative", got=accuracy)
        call.require(
            accuracy.mode == "TOLERANCE" or not any(limits), label, "a tolerance needs mode TOLERANCE", got=accuracy
        )


def _real_part(element: ElementType) -> ElementType:
    return element.part if isinstance(element, DType) else element


def _predicate(_: ElementType) -> ElementType:
    return i1


# ---- functions that NumPy spells differently ----


def _comparison(relation: Function, x: Array, y: Array) -> Array:
    """A comparison; complex numbers compare by real part, and by imaginary part where those are equal."""
    if dtype(x.dtype).is_complex:
        return np.where(x.real == y.real, relation(x.imag, y.imag), relation(x.real, y.real))
    return relation(x, y)


def _extreme(numpy: Callable[[Array, Array], Array], greatest: bool) -> Function:
    """maximum or minimum: nan wins over numbers, and -0 is less than +0."""

    def function(x: Array, y: Array) -> Array:
        kind = dtype(x.dtype).kind
        if kind == "complex":
            first = _comparison(np.greater if greatest else np.less, x, y)
            return np.where(np.isnan(x) | (first & ~np.isnan(y)), x, y)
        value = numpy(x, y)
        if kind == "float":
            zero = x + y if greatest else -(-x - y)
            return np.where((x == 0) & (y == 0), zero, value)
        return value

    return _narrow(function)


_maximum = _extreme(np.maximum, greatest=True)
_minimum = _extreme(np.minimum, greatest=False)


def _sign(x: Array) -> Array:
    return _narrow(np.sign)(x) if dtype(x.dtype).is_integer else special.sign(x)


def _imag(x: Array) -> Array:
    return x.imag if dtype(x.dtype).is_complex else np.zeros_like(x)


def _pair(re: Array, im: Array) -> Array:
    re, im = np.broadcast_arrays(re, im)
    z = np.empty(re.shape, np.complex128)  # re + 1j * im would make nan of 1j * inf
    z.real, z.imag = re, im
    return z


def _multiply(x: Array, y: Array) -> Array:
    if dtype(x.dtype).is_complex:
        return special.complex_product(x, y)
    return np.multiply(_widen(x, exact=True), _widen(y, exact=True))


def _square(x: Array) -> Array:
    """NumPy's own square of complex numbers depends on whether the machine has fused multiply-add."""
    if not dtype(x.dtype).is_complex:
        return np.multiply(x, x)
    return _pair(x.real * x.real - x.imag * x.imag, 2 * (x.real * x.imag))


def _divide(x: Array, y: Array) -> Array:
    """The quotient. Complex: as in C99, annex G, where inf / finite and finite / 0 are inf, and finite / inf is 0."""
    if not dtype(x.dtype).is_complex:
        return np.divide(x, y)
    a, b, c, d = x.real, x.imag, y.real, y.imag
    above = np.where(np.maximum(np.abs(a), np.abs(b)) > 2.0**1000, 4, 0)  # so that a sum of products is in range
    below = np.frexp(np.maximum(np.abs(c), np.abs(d)))[1]
    p, q, r, s = np.ldexp(a, -above), np.ldexp(b, -above), np.ldexp(c, -below), np.ldexp(d, -below)
    size = r * r + s * s
    parts = [np.ldexp(part / size, above - below) for part in _times_conjugate(p, q, r, s)]
    lost = np.isnan(parts[0]) & np.isnan(parts[1])
    by_zero = np.copysign(np.inf, c)
    endless = _times_conjugate(_box(a), _box(b), c, d)
    nothing = _times_conjugate(a, b, _box(c), _box(d))
    rescues = [
        (y == 0, (by_zero * a, by_zero * b)),
        (np.isinf(x) & np.isfinite(y), (np.inf * endless[0], np.inf * endless[1])),
        (np.isfinite(x) & np.isinf(y), (0.0 * nothing[0], 0.0 * nothing[1])),
    ]
    for applies, rescue in reversed(rescues):  # the first that applies wins
        parts = [np.where(lost & applies, new, old) for new, old in zip(rescue, parts, strict=True)]
    return _pair(*parts)


def _times_conjugate(a: Array, b: Array, c: Array, d: Array) -> tuple[Array, Array]:
    """The parts of (a + ib) (c - id)."""
    return a * c + b * d, b * c - a * d


def _box(part: Array) -> Array:
    """±1 for ±inf, ±0 for everything else."""
    return np.copysign(np.where(np.isinf(part), 1.0, 0.0), part)


def _hyperbolic(numpy: Function, combine: Function, limit: float) -> Function:
    """cosh or sinh. CHLO defines them as e^(x + log ½) ± e^(-x + log ½), sinh from |x| = 1 up.

    In f32 the sum in the exponent is rounded to f32, so for large x the value is some units beside the nearest one; the
    public suite holds results to that. Elsewhere the difference is not seen.
    """

    def function(x: Array) -> Array:
        wide = numpy(_widen(x, exact=False))
        if x.dtype != np.float32:
            return wide
        log_half = np.float32(np.log(0.5))
        up, down = (np.exp((part + log_half).astype(np.float64)).astype(np.float32) for part in (x, -x))
        return np.where(np.abs(x) < limit, wide.astype(np.float32), combine(up, down))

    return function


def _remainder(x: Array, y: Array) -> Array:
    if dtype(x.dtype).is_complex:
        raise UnsupportedError(
            "remainder of complex numbers", expected="integers or floats", got="the specification leaves it open"
        )
    return np.fmod(x, y)


# ---- clamp, select, compare, convert, constants ----


def _infer_clamp(call: Call) -> Sequence[Type]:
    low, operand, high = (_allow(call, i, ANYTHING) for i in range(3))
    for bound, label in ((low, "clamp_c1"), (high, "clamp_c2")):
        if bound.rank:
            call.same_sizes(operand.sizes, bound.sizes, label, "a bound must be a scalar or have the operand's shape")
        _same_baseline(call, operand, bound, "clamp_c3")
    return [_result_type(call, operand)]  # clamp_c4


def _clamp(low: Array, x: Array, high: Array) -> Array:
    return _minimum(_maximum(x, low), high)


def _infer_select(call: Call) -> Sequence[Type]:
    pred, on_true, on_false = _allow(call, 0, BOOL), _allow(call, 1, ANYTHING), _allow(call, 2, ANYTHING)
    _same_baseline(call, on_true, on_false, "select_c2")
    result = _join_shapes(call, on_true, on_false, "select_c2")
    if pred.rank:
        call.same_sizes(result.sizes, pred.sizes, "select_c1", "pred must be a scalar or have the shape of on_true")
    return [_result_type(call, result)]


_COMPARE_TYPES = {
    "int": {"SIGNED"},
    "uint": {"UNSIGNED"},
    "bool": {"UNSIGNED"},
    "float": {"FLOAT", "TOTALORDER"},
    "complex": {"FLOAT"},
}


def _infer_compare(call: Call) -> Sequence[Type]:
    lhs, rhs = _allow(call, 0, ANYTHING), _allow(call, 1, ANYTHING)
    _same_baseline(call, lhs, rhs, "compare_c1")
    result = _join_shapes(call, lhs, rhs, "compare_c2")
    given = call.attrs.get("compare_type", "NOTYPE")
    allowed = _COMPARE_TYPES.get(lhs.dtype.kind, {"FLOAT"}) | {"NOTYPE"}
    call.require(
        given in allowed,
        "compare_c3",
        "compare_type does not suit the element type",
        expected=sorted(allowed),
        got=given,
    )
    return [result.with_dtype(i1)]


_RELATIONS: dict[str, Function] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


def _compare(_: Frame, op: Op, x: Array, y: Array) -> Array:
    x, y = (_widen(array, exact=True) for array in _dequantize_all(op, (x, y)))
    if op.attrs.get("compare_type") == "TOTALORDER":
        x, y = _total_order(x), _total_order(y)
    return np.asarray(_comparison(_narrow(_RELATIONS[op.attrs["comparison_direction"]]), x, y))


def _total_order(x: Array) -> Array:
    """Integers in IEEE 754's total order: -nan < -inf < … < -0 < +0 < … < inf < nan."""
    signed = np.asarray(x).view(np.dtype(f"i{x.itemsize}"))
    return np.where(signed < 0, signed ^ np.iinfo(signed.dtype).max, signed)


def _infer_convert(call: Call) -> Sequence[Type]:
    operand, wanted = _allow(call, 0, ANYTHING - QUANTIZED), call.declared_shape()
    if isinstance(wanted.dtype, Quantized):
        call.fail("convert_o1", "the result must not be quantised", got=wanted, remedy="stablehlo.uniform_quantize")
    return [operand.with_dtype(wanted.dtype)]  # convert_c1


def _convert(_: Frame, op: Op, x: Array) -> Array:
    return cast(x, op.results[0].shape.element)


def _infer_constant(call: Call) -> Sequence[Type]:
    value: Constant = call.attrs["value"]
    if call.declared and not isinstance(value.dtype, Quantized) and call.name == "stablehlo.constant":
        wanted = call.declared_shape().dtype
        if isinstance(wanted, Quantized) and wanted.storage == value.dtype:
            shape = value.shape.with_dtype(wanted)
            check_axis(call, shape)
            return [shape]
    return [value.shape]  # constant_c1


def _constant(_: Frame, op: Op) -> Array:
    value: Constant = op.attrs["value"]
    return value.array


def _infer_constant_like(call: Call) -> Sequence[Type]:
    value = call.attrs["value"]
    if isinstance(value, bool):
        return [call.shape(0).with_dtype(i1)]
    if not isinstance(value, Int | Float):
        call.fail("constant_like_i1", "the value must be a number with a type", expected="1.0 : f32", got=value)
    return [call.shape(0).with_dtype(value.type)]


def _constant_like(_: Frame, op: Op, x: Array) -> Array:
    value = op.attrs["value"]
    number = value if isinstance(value, bool) else value.value
    to = op.results[0].shape.element
    wide = (
        np.array(number % (1 << 64), np.uint64)
        if to.is_integer and isinstance(number, int)
        else np.array(number, np.float64)
    )
    return np.broadcast_to(cast(wide, to), x.shape)


def _infer_complex(call: Call) -> Sequence[Type]:
    lhs, rhs = _allow(call, 0, FLOAT), _allow(call, 1, FLOAT)
    call.same_dtype(lhs.dtype, rhs.dtype, "complex_c1", "the operands have different element types")
    call.require(lhs.dtype.name in ("f32", "f64"), "complex_i1", "the parts must be f32 or f64", got=lhs)
    return [_join_shapes(call, lhs, rhs, "complex_c2").with_dtype(complex_of(lhs.element))]  # complex_c3


def _infer_add(call: Call) -> Sequence[Type]:
    """Like every binary op, but quantised operands may be so per axis, and need not agree on it."""
    lhs, rhs = _allow(call, 0, ANYTHING, per_axis=True), _allow(call, 1, ANYTHING, per_axis=True)
    sizes = _join_shapes(call, lhs, rhs, "add_c1").sizes
    left, right = lhs.dtype, rhs.dtype
    if not isinstance(left, Quantized) or not isinstance(right, Quantized):
        label = "add_c2" if "quantized" in (left.kind, right.kind) else "add_c1"
        call.same_dtype(left, right, label, "the operands have different element types")
        return [lhs if sizes == lhs.sizes else lhs.with_sizes(sizes)]
    result: ElementType = right if left.axis is None and right.axis is not None else left
    if call.declared:
        result = call.declared_shape().dtype
    if not isinstance(result, Quantized):
        call.fail("add_c2", "the result of quantised operands must be quantised", got=result)
    for what, of, label in (("lhs", left, "add_c6"), ("rhs", right, "add_c7")):
        call.same_dtype(of.storage, result.storage, "add_c3", f"the storage types of {what} and the result differ")
        call.same_dtype(
            of.expressed, result.expressed, "add_c4", f"the expressed types of {what} and the result differ"
        )
        if of.axis is not None:
            call.require(
                of.axis == result.axis,
                label,
                f"the quantisation dimensions of {what} and the result differ",
                expected=of.axis,
                got=result.axis,
            )
    axes = left.axis is not None or right.axis is not None
    call.require(
        axes == (result.axis is not None),
        "add_c5",
        "the result is quantised per axis exactly if an operand is",
        got=result,
    )
    shape = Shape.of(result, sizes)
    check_axis(call, shape)
    return [shape]


def _infer_reduce_precision(call: Call) -> Sequence[Type]:
    operand = _allow(call, 0, REAL)
    for name, least, label in (
        ("exponent_bits", 1, "reduce_precision_c2"),
        ("mantissa_bits", 0, "reduce_precision_c3"),
    ):
        bits = call.attrs[name]
        call.require(bits >= least, label, f"{name} must be at least {least}", got=bits)
    return [_result_type(call, operand)]  # reduce_precision_c1


def _reduce_precision(_: Frame, op: Op, x: Array) -> Array:
    x = np.asarray(_dequantize_all(op, [x])[0])
    out = integer.reduce_precision(x, op.attrs["exponent_bits"], op.attrs["mantissa_bits"])
    return _quantize_result(out, op.results[0].shape.dtype)


# ---- chlo.broadcast_* ----


def broadcasting(base: OpDef, *, dimensions: bool = True, attrs: tuple[Attr, ...] = ()) -> OpDef:
    """`chlo.broadcast_x` for the row of x: sizes of 1 stretch, and a tensor of lower rank gets axes.

    It gets them in front, or its own axes become `broadcast_dimensions` of the other.
    """

    def infer(call: Call) -> Sequence[Type]:
        shapes = call.shapes
        rank = max(shape.rank for shape in shapes)
        placed = [
            _place(shape.sizes, dims, rank) for shape, dims in zip(shapes, _places(call, shapes, rank), strict=True)
        ]
        sizes = tuple(_stretch(call, column) for column in zip(*placed, strict=True))
        for shape in shapes:
            per_axis = isinstance(shape.dtype, Quantized) and shape.dtype.axis is not None
            call.require(not per_axis, "", "a tensor that is quantised per axis cannot be broadcast", got=shape)
        stretched = [Value(Shape.of(shape.dtype, sizes)) for shape in shapes]
        inner = Call(call.name, stretched, call.attrs, (), call.declared, scope=call.scope, location=call.location)
        return base.infer(inner)

    def evaluate(frame: Frame, op: Op, *arrays: Array) -> Array:
        ranks = [value.shape.rank for value in op.operands]
        given = op.attrs.get("broadcast_dimensions")
        if given is not None and len(set(ranks)) > 1:
            most = max(ranks)
            shapes = (
                _place(array.shape, _own(given, rank, most), most) for array, rank in zip(arrays, ranks, strict=True)
            )
            arrays = tuple(array.reshape(shape) for array, shape in zip(arrays, shapes, strict=True))
        result: Array = base.evaluate(frame, op, *arrays)
        return result

    own = (Attr("broadcast_dimensions", INTS, None),) if dimensions else ()
    name = base.name.partition(".")[2]
    return OpDef(
        f"chlo.broadcast_{name}", base.operands, infer, evaluate, own + (attrs or base.attrs), elementwise=True
    )


def _own(given: Sequence[int], rank: int, most: int) -> Sequence[int]:
    """Which axes of the result an operand's axes become."""
    return given if rank < most else range(rank)


def _places(call: Call, shapes: Sequence[Shape], rank: int) -> list[Sequence[int]]:
    given = call.attrs.get("broadcast_dimensions")
    if given is None:
        return [range(rank - shape.rank, rank) for shape in shapes]
    least = min(shape.rank for shape in shapes)
    call.require(
        len(given) == least,
        "",
        "broadcast_dimensions must name one dimension for each of the smaller operand",
        expected=least,
        got=list(given),
    )
    call.check_dims(given, rank, "", "broadcast_dimensions", ordered=True)
    return [_own(given, shape.rank, rank) for shape in shapes]


def _place(sizes: Sequence[Any], dims: Sequence[int], rank: int) -> list[Any]:
    placed: list[Any] = [1] * rank
    for size, dim in zip(sizes, dims, strict=True):
        placed[dim] = size
    return placed


def _stretch(call: Call, sizes: Sequence[Size]) -> Size:
    result: Size = 1
    for size in sizes:
        if result == 1:
            result = size
        elif size != 1:
            call.same_size(result, size, "", "sizes that are not 1 must be equal to be broadcast")
            result = size if type(size) is int else result
    return result


# ---- the rows ----

_DIRECTION = (Attr("comparison_direction", COMPARISON), Attr("compare_type", COMPARE_TYPE, None))
_CHLO_DIRECTION = (
    Attr("comparison_direction", enum("comparison_direction", "EQ", "NE", "GE", "GT", "LE", "LT", dialect="chlo")),
    Attr(
        "compare_type",
        enum("comparison_type", "NOTYPE", "FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED", dialect="chlo"),
        None,
    ),
)
_FORMAT = (Attr("exponent_bits", INT32), Attr("mantissa_bits", INT32))
_VALUE = (Attr("value", CONSTANT),)

_UNARY = [
    unary("abs", SIGNED | ANALYTIC, _narrow(np.abs), gives=_real_part, exact=True),
    unary("cbrt", ANALYTIC, special.cbrt, ACCURACY),
    unary("ceil", REAL, np.ceil, exact=True),
    unary("cosine", ANALYTIC, np.cos, ACCURACY),
    unary("count_leading_zeros", INT, integer.count_leading_zeros),
    unary("exponential", ANALYTIC, np.exp, ACCURACY),
    unary("exponential_minus_one", ANALYTIC, special.exponential_minus_one, ACCURACY),
    unary("floor", REAL, np.floor, exact=True),
    unary("imag", FLOAT | COMPLEX, _imag, gives=_real_part),
    unary("is_finite", REAL, np.isfinite, gives=_predicate, exact=True),
    unary("log", ANALYTIC, np.log, ACCURACY),
    unary("log_plus_one", ANALYTIC, special.log_plus_one, ACCURACY),
    unary("logistic", ANALYTIC, special.logistic, ACCURACY),
    unary("negate", NUMBER, _narrow(np.negative), exact=True),
    unary("not", BOOL | INT, _narrow(np.invert)),
    unary("popcnt", INT, integer.popcnt),
    unary("real", FLOAT | COMPLEX, np.real, gives=_real_part),
    unary("round_nearest_afz", REAL, special.round_nearest_afz),
    unary("round_nearest_even", REAL, special.round_nearest_even),
    unary("rsqrt", ANALYTIC, special.rsqrt, ACCURACY),
    unary("sign", SIGNED | ANALYTIC, _sign),
    unary("sine", ANALYTIC, np.sin, ACCURACY),
    unary("sqrt", ANALYTIC, np.sqrt, ACCURACY, exact=True),
    unary("tan", ANALYTIC, np.tan, ACCURACY),
    unary("tanh", ANALYTIC, np.tanh, ACCURACY),
]

_BINARY = [
    OpDef("stablehlo.add", "lhs rhs", _infer_add, evaluate_with(_narrow(np.add), exact=True), elementwise=True),
    binary("and", BOOL | INT, _narrow(np.bitwise_and)),
    binary("atan2", ANALYTIC, special.atan2),
    binary("divide", NUMBER, either(_divide, integer.divide), exact=True),
    binary("maximum", ANYTHING, _maximum, exact=True),
    binary("minimum", ANYTHING, _minimum, exact=True),
    binary("multiply", ANYTHING, _narrow(_multiply), native=True),
    binary("or", BOOL | INT, _narrow(np.bitwise_or)),
    binary("power", NUMBER, either(special.power, integer.power)),
    binary("remainder", NUMBER, either(_remainder, integer.remainder), exact=True),
    binary("shift_left", INT, integer.shift_left),
    binary("shift_right_arithmetic", INT, integer.shift_right_arithmetic),
    binary("shift_right_logical", INT, integer.shift_right_logical),
    binary("subtract", NUMBER, _narrow(np.subtract), exact=True),
    binary("xor", BOOL | INT, _narrow(np.bitwise_xor)),
    OpDef("stablehlo.complex", "lhs rhs", _infer_complex, evaluate_with(_pair), elementwise=True),
    OpDef("stablehlo.compare", "lhs rhs", _infer_compare, _compare, _DIRECTION, elementwise=True),
]

_OTHERS = [
    OpDef("stablehlo.clamp", "min operand max", _infer_clamp, evaluate_with(_clamp, exact=True), elementwise=True),
    OpDef("stablehlo.constant", "", _infer_constant, _constant, _VALUE, elementwise=True),
    OpDef("stablehlo.convert", "operand", _infer_convert, _convert, elementwise=True),
    OpDef(
        "stablehlo.reduce_precision", "operand", _infer_reduce_precision, _reduce_precision, _FORMAT, elementwise=True
    ),
    OpDef(
        "stablehlo.select",
        "pred on_true on_false",
        _infer_select,
        evaluate_with(np.where, native=True),
        elementwise=True,
    ),
]

_CHLO = [
    unary("chlo.acos", FLOAT | COMPLEX, np.arccos),
    unary("chlo.acosh", FLOAT | COMPLEX, np.arccosh),
    unary("chlo.asin", FLOAT | COMPLEX, np.arcsin),
    unary("chlo.asinh", FLOAT | COMPLEX, np.arcsinh),
    unary("chlo.atan", FLOAT | COMPLEX, np.arctan),
    unary("chlo.atanh", FLOAT | COMPLEX, np.arctanh),
    unary("chlo.bessel_i1e", FLOAT, special.bessel_i1e),
    unary("chlo.conj", FLOAT | COMPLEX, np.conj),
    unary("chlo.cosh", FLOAT | COMPLEX, _hyperbolic(np.cosh, np.add, limit=0), native=True),
    unary("chlo.digamma", FLOAT, special.digamma),
    unary("chlo.erf", FLOAT, special.erf),
    unary("chlo.erf_inv", FLOAT, special.erf_inv),
    unary("chlo.erfc", FLOAT, special.erfc),
    unary("chlo.is_inf", FLOAT, special.is_inf, gives=_predicate, exact=True),
    unary("chlo.is_neg_inf", FLOAT, special.is_neg_inf, gives=_predicate, exact=True),
    unary("chlo.is_pos_inf", FLOAT, special.is_pos_inf, gives=_predicate, exact=True),
    unary("chlo.lgamma", FLOAT, special.lgamma),
    unary("chlo.sinh", FLOAT | COMPLEX, _hyperbolic(np.sinh, np.subtract, limit=1), native=True),
    unary("chlo.square", FLOAT | COMPLEX, _narrow(_square), exact=True),
    unary("chlo.tan", FLOAT | COMPLEX, np.tan),
    binary("chlo.mulhi", INT, integer.mulhi),
    binary("chlo.next_after", FLOAT, integer.next_after, operands="x y", native=True),
    binary("chlo.polygamma", FLOAT, special.polygamma, operands="n x"),
    binary("chlo.zeta", FLOAT, special.zeta, operands="x q"),
    OpDef("chlo.constant", "", _infer_constant, _constant, _VALUE, elementwise=True),
    OpDef(
        "chlo.constant_like", "operand", _infer_constant_like, _constant_like, (Attr("value", ANY),), elementwise=True
    ),
]

_BASES = {row.name: row for row in (*_BINARY, *_CHLO, *_OTHERS)}
_BROADCAST = [
    *(broadcasting(row) for row in _BINARY if row.name != "stablehlo.compare"),
    *(broadcasting(_BASES[f"chlo.{name}"]) for name in ("next_after", "polygamma", "zeta")),
    broadcasting(_BASES["stablehlo.compare"], attrs=_CHLO_DIRECTION),
    broadcasting(_BASES["stablehlo.select"], dimensions=False),
]

ROWS: list[OpDef] = [*_UNARY, *_BINARY, *_OTHERS, *_CHLO, *_BROADCAST]
