"""Reductions: `reduce`, `map`, the batch norms and `chlo.scan`.

In: calls whose regions combine scalars. Out: their types and values. `Fold` is a body that is one known associative op,
which NumPy reduces at once; `ir.ops.window` shares it. Every other body runs element by element, vectorised over lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np

from smelt.dtype import Array, DType, ElementType, Quantized, i32
from smelt.frozen import Frozen
from smelt.ir.attributes import BOOL, FLOAT32, INT, INTS, DenseArray, Kind, ints_of
from smelt.ir.cast import cast
from smelt.ir.core import Op, Region, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.quantize import dequantize, quantize
from smelt.shape import Shape

Arrays: TypeAlias = tuple[Array, ...]

SHORT = 64  # terms: a sum of floats this short rounds at every step, as its body says; a longer one in double, once
SEQUENTIAL = 4096  # elements up to which an arbitrary body runs in order; beyond, as a tree that keeps the order

_UFUNCS: dict[str, np.ufunc] = {
    "stablehlo.add": np.add,
    "stablehlo.multiply": np.multiply,
    "stablehlo.maximum": np.maximum,
    "stablehlo.minimum": np.minimum,
    "stablehlo.and": np.bitwise_and,
    "stablehlo.or": np.bitwise_or,
    "stablehlo.xor": np.bitwise_xor,
}


# ---- bodies ----


class Fold(Frozen):
    """A body that is one associative op on two scalars. It computes in a wide type and rounds once, at the end."""

    ufunc: np.ufunc
    element: DType

    def widen(self, array: Array) -> Array:
        """In row-major order, because NumPy sums along memory: strides must not affect a result."""
        return np.asarray(array).astype(self._wide, order="C")

    def narrow(self, array: Array) -> Array:
        return cast(np.asarray(array), self.element)

    def pair(self, a: Array, b: Array) -> Array:
        """Two wide arrays combined. A maximum of two zeros is negative only if both are, a minimum if either is."""
        result: Array = np.asarray(self.ufunc(a, b))
        if self._orders_floats:
            zeros = (a == 0) & (b == 0)
            if zeros.any():
                zero = a + b if self.ufunc is np.maximum else -(-a + -b)
                result = np.where(zeros, zero, result)
        return result

    def along(self, array: Array, axes: tuple[int, ...], init: Array) -> Array:
        """A wide array reduced over `axes`, starting from the wide scalar `init`."""
        result = np.asarray(self.ufunc.reduce(array, axis=axes, dtype=self._wide, initial=init.reshape(())[()]))
        if self._orders_floats:
            zeros = result == 0
            if zeros.any():
                wins = np.signbit(array) == (self.ufunc is np.minimum)
                found = ((array == 0) & wins).any(axis=axes) | (
                    (init == 0) & (np.signbit(init) == (self.ufunc is np.minimum))
                )
                winner, other = (0.0, -0.0) if self.ufunc is np.maximum else (-0.0, 0.0)
                result = np.where(zeros, np.where(found, winner, other), result)
        return result

    @property
    def _wide(self) -> np.dtype[Any]:
        small = self.element.is_integer and self.element.bits < 8  # ml_dtypes has no ufuncs for these
        return np.dtype(np.int64) if small else self.element.wide

    @property
    def _orders_floats(self) -> bool:
        return self.element.is_float and self.ufunc in (np.maximum, np.minimum)


def fold_of(region: Region, terms: int) -> Fold | None:
    """The fold that a body is, if it is one; a short sum or product of floats is left to run in order, step by step."""
    if len(region.ops) != 1 or len(region.args) != 2:
        return None
    op = region.ops[0]
    ufunc = _UFUNCS.get(op.name)
    if ufunc is None or region.results != op.results or set(op.operands) != set(region.args):
        return None
    element = op.result.shape.dtype
    if not isinstance(element, DType) or op.result.shape.rank:
        return None
    if element.is_complex and ufunc not in (np.add, np.multiply):  # lexicographic
        return None
    if (element.is_float or element.is_complex) and ufunc in (np.add, np.multiply) and terms <= SHORT:
        return None
    return Fold(ufunc, element)


def promote(array: Array, of: ElementType, to: ElementType) -> Array:
    """An input in the element type that a body computes in."""
    if of == to:
        return array
    if isinstance(of, Quantized) and isinstance(to, Quantized):
        return quantize(dequantize(array, of), to)
    assert isinstance(to, DType)
    return cast(array, to)


def promotable(of: ElementType, to: ElementType) -> bool:
    """Whether a body may compute in `to` on elements of type `of`: the same kind, at least as wide."""
    if isinstance(of, Quantized) or isinstance(to, Quantized):
        if not (isinstance(of, Quantized) and isinstance(to, Quantized)):
            return False
        return of.expressed == to.expressed and promotable(of.storage, to.storage)
    return of == to or (of.bits <= to.bits and (of.kind == to.kind or (of.is_integer and to.is_integer)))


def check_reducer(call: Call, region: Region, inputs: Sequence[Shape], label: str) -> list[ElementType]:
    """A body combines scalars of the element types that it gives; those are promoted from the inputs' types."""
    if len(region.results) != len(inputs):
        call.fail(label, "its body returns the wrong number of values", expected=len(inputs), got=len(region.results))
    elements: list[ElementType] = []
    for value, shape in zip(region.results, inputs, strict=True):
        given = value.type
        if not isinstance(given, Shape) or given.rank:
            call.fail(label, "its body must return scalars", expected=Shape.of(shape.dtype, ()), got=given)
        call.require(
            promotable(shape.dtype, given.dtype),
            label,
            "the inputs cannot be promoted to what its body returns",
            expected=shape.dtype,
            got=given.dtype,
        )
        elements.append(given.dtype)
    scalars = [Shape.of(element, ()) for element in elements]
    call.check_region(region, [*scalars, *scalars], scalars, label)
    return elements


def check_inputs(call: Call, name: str, shapes: int, elements: int, counts: int) -> list[Shape]:
    """One initial value per input, a scalar of its element type; at least one input; all inputs of one shape.

    The numbers are those of the constraints that say so.
    """
    operands = call.shapes
    count = len(operands) // 2
    if not operands or len(operands) % 2:
        message = "it takes one initial value per input, and at least one input"
        call.fail(f"{name}_c{counts}", message, got=f"{len(operands)} operands")
    inputs, inits = operands[:count], operands[count:]
    for i, (shape, init) in enumerate(zip(inputs, inits, strict=True)):
        call.same_sizes(inputs[0].sizes, shape.sizes, f"{name}_c{shapes}", f"input {i} must have the shape of input 0")
        call.require(init.rank == 0, f"{name}_i2", f"initial value {i} must be a scalar", got=init)
        message = f"initial value {i} must have the element type of input {i}"
        call.same_dtype(shape.dtype, init.dtype, f"{name}_c{elements}", message)
    return inputs


# ---- reduce ----


def _infer_reduce(call: Call) -> list[Type]:
    inputs = check_inputs(call, "reduce", shapes=1, elements=2, counts=3)
    shape = inputs[0]
    dimensions = call.attrs["dimensions"]
    call.check_dims(dimensions, shape.rank, "reduce_c4", "dimensions", unique=False)
    call.check_dims(dimensions, shape.rank, "reduce_c5", "dimensions")
    elements = check_reducer(call, call.regions[0], inputs, "reduce_c6")
    kept = [d for d in range(shape.rank) if d not in dimensions]
    sizes = [shape.sizes[d] for d in kept]  # reduce_c7
    bounds = None if shape.bounds is None else tuple(shape.bounds[d] for d in kept)
    return [Shape.of(element, sizes, None, bounds) for element in elements]  # reduce_c8


def _reduce(frame: Frame, op: Op, *operands: Array) -> Arrays:
    return reduce_over(frame, op, op.regions[0], tuple(op.attrs["dimensions"]), operands)


def reduce_over(frame: Frame, op: Op, body: Region, axes: tuple[int, ...], operands: Sequence[Array]) -> Arrays:
    """Inputs and then their initial values, reduced over `axes`."""
    elements = [value.shape.dtype for value in body.results]
    types = [value.shape.dtype for value in op.operands]
    values = [promote(*each) for each in zip(operands, types, elements * 2, strict=True)]
    inputs, inits = values[: len(elements)], values[len(elements) :]
    fold = fold_of(body, prod(inputs[0].shape[d] for d in axes))
    if fold is not None:
        return (fold.narrow(fold.along(fold.widen(inputs[0]), axes, fold.widen(inits[0]))),)
    kept = [d for d in range(inputs[0].ndim) if d not in axes]
    sizes = inputs[0].shape
    # The reduced elements first, in the order of the input's indices; then the lanes.
    lanes = tuple(sizes[d] for d in kept)
    count = prod(sizes[d] for d in axes)
    rows = tuple(x.transpose([*sorted(axes), *kept]).reshape((count, *lanes)) for x in inputs)
    return in_order(frame, body, rows, tuple(np.broadcast_to(init, lanes) for init in inits))


def in_order(frame: Frame, body: Region, rows: Arrays, inits: Arrays) -> Arrays:
    """Rows combined by any body, from the initial values on; more than SEQUENTIAL of them as a tree over neighbours."""
    count = len(rows[0])
    while count > SEQUENTIAL:
        odd = tuple(row[count - 1 :] for row in rows) if count % 2 else None
        pairs = frame.lanes(body, *(row[0 : count - 1 : 2] for row in rows), *(row[1:count:2] for row in rows))
        rows = tuple(map(np.concatenate, zip(pairs, odd, strict=True))) if odd else pairs
        count = len(rows[0])
    total = inits
    for i in range(count):
        total = frame.lanes(body, *total, *(row[i] for row in rows))
    return tuple(np.asarray(each) for each in total)


# ---- map ----


def _infer_map(call: Call) -> list[Type]:
    inputs = call.shapes
    if not inputs:
        call.fail("map_c2", "it takes at least one input", got=0)
    shape = inputs[0]
    for i, other in enumerate(inputs):
        call.same_sizes(shape.sizes, other.sizes, "map_c1", f"input {i} must have the shape of input 0")
    wanted = tuple(range(shape.rank))
    if tuple(call.attrs["dimensions"]) != wanted:
        call.fail("map_c3", "dimensions must be all of the inputs'", expected=wanted, got=call.attrs["dimensions"])
    region = call.regions[0]
    given = region.results[0].type if len(region.results) == 1 else None
    if not isinstance(given, Shape) or given.rank:
        call.fail("map_c4", "its computation must return one scalar", got=[value.type for value in region.results])
    call.check_region(region, [Shape.of(each.dtype, ()) for each in inputs], [given], "map_c4")
    return [shape.with_dtype(given.dtype)]


def _map(frame: Frame, op: Op, *inputs: Array) -> Array:
    return frame.lanes(op.regions[0], *inputs)[0]


# ---- batch norms ----


def _check_batch_norm(call: Call, like_operand: Sequence[int]) -> tuple[Shape, Shape]:
    """The operand's type, and that of one number per feature. `like_operand`: operands of the first one's shape."""
    name = call.name.removeprefix("stablehlo.")
    shapes = call.shapes
    operand = shapes[0]
    call.require(operand.dtype.is_float, f"{name}_i1", "the operand must be floating-point", got=operand)
    call.check_dims([call.attrs["feature_index"]], operand.rank, f"{name}_c1", "feature_index")
    feature = Shape.of(operand.dtype, [operand.sizes[call.attrs["feature_index"]]])
    for i, shape in enumerate(shapes):
        wanted = operand if i in (0, *like_operand) else feature
        call.same_dtype(
            operand.dtype, shape.dtype, f"{name}_c2", f"operand {i} must have the element type of operand 0"
        )
        call.same_sizes(wanted.sizes, shape.sizes, f"{name}_c3", f"operand {i} has the wrong shape")
    return operand, feature


def _infer_batch_norm_inference(call: Call) -> list[Type]:
    operand, _ = _check_batch_norm(call, ())
    return [operand]


def _infer_batch_norm_training(call: Call) -> list[Type]:
    operand, feature = _check_batch_norm(call, ())
    return [operand, feature, feature]


def _infer_batch_norm_grad(call: Call) -> list[Type]:
    operand, feature = _check_batch_norm(call, (4,))
    return [operand, feature, feature]


def _by_feature(op: Op, operand: Array) -> tuple[tuple[int, ...], Callable[[Array], Array]]:
    """The axes that are not the feature's, and a function that lays numbers per feature along the operand."""
    feature = op.attrs["feature_index"]
    around = [1] * operand.ndim
    around[feature] = operand.shape[feature]
    return tuple(d for d in range(operand.ndim) if d != feature), lambda x: x.astype(np.float64).reshape(around)


def _batch_norm_inference(
    _: Frame, op: Op, operand: Array, scale: Array, offset: Array, mean: Array, variance: Array
) -> Array:
    spread = _by_feature(op, operand)[1]
    deviation = np.sqrt(spread(variance) + _epsilon(op))
    normal = (operand.astype(np.float64) - spread(mean)) / deviation
    return cast(normal * spread(scale) + spread(offset), op.result.shape.element)


def _batch_norm_training(_: Frame, op: Op, operand: Array, scale: Array, offset: Array) -> Arrays:
    axes, spread = _by_feature(op, operand)
    element = op.results[0].shape.element
    x = operand.astype(np.float64, order="C")
    count = np.float64(prod(operand.shape[d] for d in axes))
    mean = x.sum(axis=axes) / count
    centered = x - spread(mean)
    variance = (centered * centered).sum(axis=axes) / count
    normal = centered / np.sqrt(spread(variance) + _epsilon(op))
    return cast(normal * spread(scale) + spread(offset), element), cast(mean, element), cast(variance, element)


def _batch_norm_grad(
    _: Frame, op: Op, operand: Array, scale: Array, mean: Array, variance: Array, grad_output: Array
) -> Arrays:
    axes, spread = _by_feature(op, operand)
    element = op.results[0].shape.element
    count = np.float64(prod(operand.shape[d] for d in axes))
    grad = grad_output.astype(np.float64, order="C")
    centered = operand.astype(np.float64, order="C") - spread(mean)
    shifted = spread(variance) + _epsilon(op)
    grad_offset = grad.sum(axis=axes)
    along = (grad * centered).sum(axis=axes)
    grad_scale = along / np.sqrt(shifted).reshape(along.shape)
    inner = count * grad - spread(grad_offset) - centered * spread(along) / shifted
    grad_operand = spread(scale) / np.sqrt(shifted) / count * inner
    return cast(grad_operand, element), cast(grad_scale, element), cast(grad_offset, element)


def _epsilon(op: Op) -> float:
    return float(np.float32(op.attrs["epsilon"]))


# ---- scan ----


def scan_counts(op: Op | Call) -> tuple[int, int]:
    """How many inputs and initial values: of an input the body sees one slice, of an initial value everything."""
    ranks = [
        (value.type.rank, arg.type.rank)
        for value, arg in zip(op.operands, op.regions[0].args, strict=False)
        if isinstance(value.type, Shape) and isinstance(arg.type, Shape)
    ]
    inputs = next((i for i, (outer, inner) in enumerate(ranks) if outer == inner), len(ranks))
    return inputs, len(op.operands) - inputs


def _infer_scan(call: Call) -> list[Type]:
    shapes = call.shapes
    body = call.regions[0]
    call.check_isolated(body, "scan")
    dimension = call.attrs["dimension"]
    if len(body.args) != len(shapes):
        call.fail("scan", "its body takes one argument per operand", expected=len(shapes), got=len(body.args))
    inputs, inits = scan_counts(call)
    said = [name for name in ("operandSegmentSizes", "resultSegmentSizes") if name in call.attrs]
    call.require(len(said) != 1, "scan", "both segment sizes are there, or none", got=said)
    segments = call.attrs.get("operandSegmentSizes")
    if segments is not None and tuple(segments) != (inputs, inits):
        call.fail("scan", "the body does not fit the inputs and initial values", expected=segments, got=(inputs, inits))
    if not inputs:
        call.fail("scan", "it takes at least one input", got=0)
    for i, shape in enumerate(shapes[:inputs]):
        call.check_dims([dimension], shape.rank, "scan", f"the scanned dimension of input {i}")
        length = shapes[0].sizes[dimension]
        call.same_size(
            length, shape.sizes[dimension], "scan", "all inputs must have the same size in the scanned dimension"
        )
    outputs = len(body.results) - inits
    if outputs < 0:
        call.fail("scan", "its body must return every carry", expected=f"{inits} or more", got=len(body.results))
    args = [_without(shape, dimension) for shape in shapes[:inputs]] + shapes[inputs:]
    given = [value.type for value in body.results[:outputs]]
    call.check_region(body, args, [*given, *shapes[inputs:]], "scan")
    results: list[Type] = []
    for each in given:
        if not isinstance(each, Shape) or dimension > each.rank:
            call.fail("scan", "an output has no room for the scanned dimension", expected=dimension, got=each)
        results.append(each.with_sizes([*each.sizes[:dimension], length, *each.sizes[dimension:]]))
    segments = call.attrs.get("resultSegmentSizes")
    if segments is not None and tuple(segments) != (outputs, inits):
        call.fail("scan", "the body does not fit the outputs and carries", expected=segments, got=(outputs, inits))
    return [*results, *shapes[inputs:]]


def _without(shape: Shape, dimension: int) -> Shape:
    return shape.with_sizes(size for d, size in enumerate(shape.sizes) if d != dimension)


def _scan(frame: Frame, op: Op, *operands: Array) -> Arrays:
    inputs, inits = scan_counts(op)
    dimension = op.attrs["dimension"]
    body = op.regions[0]
    rows = [np.moveaxis(x, dimension, 0) for x in operands[:inputs]]
    carries: Arrays = operands[inputs:]
    given = [value.shape for value in body.results[: len(body.results) - inits]]
    is_reverse = op.attrs["is_reverse"]
    found = _accumulation(op)
    if found is not None and frame.is_elementwise(body):
        ufunc, which = found
        rows = [row[::-1] for row in rows] if is_reverse else rows
        terms = np.concatenate([np.asarray(carries[0])[None], rows[which]])
        with np.errstate(all="ignore"):
            totals = ufunc.accumulate(terms, axis=0, dtype=terms.dtype)
        made = frame.lanes(body, *rows, totals[:-1])[: len(given)]
        return (*(np.moveaxis(x[::-1] if is_reverse else x, 0, dimension) for x in made), np.asarray(totals[-1]))
    length = len(rows[0])
    outputs = [np.empty((length, *frame.shape(shape)), shape.dtype.numpy) for shape in given]
    for i in reversed(range(length)) if is_reverse else range(length):
        results = frame.call(body, *(np.asarray(row[i]) for row in rows), *carries)
        carries = results[len(outputs) :]
        for output, value in zip(outputs, results[: len(outputs)], strict=True):
            output[i] = value
    return (*(np.moveaxis(output, 0, dimension) for output in outputs), *carries)


def _accumulation(op: Op) -> tuple[np.ufunc, int] | None:
    """NumPy's function, if the only carry is the sum or product of an input so far; and the number of that input.

    NumPy adds and rounds in the same order as the body, one element after the other.
    """
    body, (inputs, inits) = op.regions[0], scan_counts(op)
    maker = body.results[-1].op if inits == 1 else None
    ufunc = _UFUNCS.get(maker.name) if maker is not None else None
    if maker is None or ufunc not in (np.add, np.multiply) or body.args[inputs] not in maker.operands:
        return None
    one, other = maker.operands
    item = one if other is body.args[inputs] else other
    element = item.shape.dtype
    if item not in body.args[:inputs] or not isinstance(element, DType) or element.name not in _ACCUMULATED:
        return None
    return ufunc, body.args.index(item)


_ACCUMULATED = frozenset(("f32", "f64", "i8", "i16", "i32", "i64", "ui8", "ui16", "ui32", "ui64"))


_SEGMENTS = Kind("segments", ints_of(i32), lambda values: DenseArray(i32, tuple(values)))
_NORM = (Attr("epsilon", FLOAT32), Attr("feature_index", INT))

ROWS: list[OpDef] = [
    OpDef("stablehlo.reduce", "inputs*", _infer_reduce, _reduce, (Attr("dimensions", INTS),), regions=1),
    OpDef("stablehlo.map", "inputs*", _infer_map, _map, (Attr("dimensions", INTS),), regions=1),
    OpDef(
        "stablehlo.batch_norm_inference",
        "operand scale offset mean variance",
        _infer_batch_norm_inference,
        _batch_norm_inference,
        _NORM,
    ),
    OpDef(
        "stablehlo.batch_norm_training",
        "operand scale offset",
        _infer_batch_norm_training,
        _batch_norm_training,
        _NORM,
    ),
    OpDef(
        "stablehlo.batch_norm_grad",
        "operand scale mean variance grad_output",
        _infer_batch_norm_grad,
        _batch_norm_grad,
        _NORM,
    ),
    OpDef(
        "chlo.scan",
        "operands*",
        _infer_scan,
        _scan,
        (
            Attr("dimension", INT),
            Attr("is_reverse", BOOL, False),
            Attr("is_associative", BOOL, None),
            Attr("operandSegmentSizes", _SEGMENTS, None),
            Attr("resultSegmentSizes", _SEGMENTS, None),
        ),
        regions=1,
    ),
]
