"""`!quant.uniform` types become their storage integers; arithmetic happens on dequantised floats.

In a function, its arguments and its results, quantised tensors become tensors of the storage type. An op that computes
gets dequantised operands and its result is quantised again, in the order of `smelt.ir.ops.quantize`. An op that only
moves elements moves integers. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from smelt.dtype import DType, ElementType, Quantized, i32, i64
from smelt.ir.attributes import Constant
from smelt.ir.build import Builder
from smelt.ir.cast import cast
from smelt.ir.clone import clone_args
from smelt.ir.core import Func, Future, Op, Program, Region, Tuple, Type, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import Scope
from smelt.ir.rewrite import symbols_of
from smelt.shape import Shape

# Ops that compute, besides the elementwise ones. All others move elements, or have bodies that compute.
COMPUTING = frozenset(
    f"stablehlo.{name}"
    for name in (
        "dot_general",
        "dot",
        "convolution",
        "dynamic_conv",
        "cholesky",
        "triangular_solve",
        "iota",
        "dynamic_iota",
    )
)
MOVING = frozenset({"stablehlo.constant", "stablehlo.bitcast_convert"})


def lower_quantised_types(program: Program) -> Program:
    """The program without quantised types."""
    funcs = [_lower(func) if any(map(_is_quantised, _types(func))) else func for func in program.funcs.values()]
    if all(new is old for new, old in zip(funcs, program.funcs.values(), strict=True)):
        return program
    return program.replace(*funcs)


def _types(func: Func) -> Iterator[Type]:
    yield from (arg.type for arg in func.args)
    for op in walk(func.body):
        yield from (value.type for value in op.results)
        yield from (arg.type for region in op.regions for arg in region.args)


def _is_quantised(type: Type) -> bool:
    if isinstance(type, Tuple | Future):
        return any(map(_is_quantised, type.types))
    return isinstance(type, Shape) and isinstance(type.dtype, Quantized)


def to_storage(type: Type) -> Type:
    """The type in memory: storage integers for a quantised type."""
    match type:
        case Tuple(types):
            return Tuple(tuple(map(to_storage, types)))
        case Future(types):
            return Future(tuple(map(to_storage, types)))
        case Shape(dtype=Quantized() as element):
            return type.with_dtype(element.storage)
    return type


def _lower(func: Func) -> Func:
    lowering = _Lowering(Scope(symbols_of(func)))
    body = lowering.region(func.body)
    return replace(func, body=body)


@dataclass(slots=True)
class _Lowering:
    scope: Scope
    values: dict[Value, Value] = field(default_factory=dict)  # old value -> new value

    def region(self, region: Region) -> Region:
        args = clone_args(region.args, to_storage)
        self.values.update(zip(region.args, args, strict=True))
        builder = Builder(self.scope)
        for op in region.ops:
            builder.location = op.location
            self.op(builder, op)
        return Region(args, tuple(builder.ops), tuple(self.values[value] for value in region.results))

    def op(self, b: Builder, op: Op) -> None:
        is_quantised = any(_is_quantised(value.type) for value in (*op.operands, *op.results))
        computes = op.name in COMPUTING or (OPS[op.name].elementwise and op.name not in MOVING)
        if is_quantised and computes:
            self.values[op.result] = self.in_floats(b, op)
            return
        regions = [self.region(region) for region in op.regions]
        operands = [self.promote(b, value, to) for value, to in zip(op.operands, _promotions(op), strict=True)]
        attrs = dict(op.attrs)
        if is_quantised and isinstance(value := attrs.get("value"), Constant):
            attrs["value"] = Constant.of(value.array, _storage(op.result.shape.dtype))
        types = [to_storage(value.type) for value in op.results]
        copy = Op(op.name, operands, types, attrs, regions, op.location, [value.name for value in op.results])
        b.ops.append(copy)
        self.values.update(zip(op.results, copy.results, strict=True))

    def in_floats(self, b: Builder, op: Op) -> Value:
        operands = [self.dequantise_value(b, value) for value in op.operands]
        result = op.result.shape
        to = result.dtype
        floats = result.with_dtype(to.expressed) if isinstance(to, Quantized) else result
        if op.name in ("stablehlo.uniform_quantize", "stablehlo.uniform_dequantize"):
            (value,) = operands
        else:
            value = b.op(op.name, *operands, result=floats, **dict(op.attrs)).result
        return quantise(b, value, to) if isinstance(to, Quantized) else value

    def dequantise_value(self, b: Builder, value: Value) -> Value:
        now = self.values[value]
        if isinstance(value.type, Shape) and isinstance(value.type.dtype, Quantized):
            return dequantise(b, now, value.type.dtype)
        return now

    def promote(self, b: Builder, value: Value, to: ElementType | None) -> Value:
        """An operand in the quantised type that a body computes in."""
        if to is None or not isinstance(to, Quantized) or value.shape.dtype == to:
            return self.values[value]
        return quantise(b, self.dequantise_value(b, value), to)


def _promotions(op: Op) -> Sequence[ElementType | None]:
    """For each operand, the element type in which the op's body takes it; None: its own."""
    results = [value.shape.dtype if isinstance(value.type, Shape) else None for value in op.results]
    match op.name.removeprefix("stablehlo."):
        case "reduce" | "reduce_window":
            return results * 2
        case "scatter":
            return [*results, None, *results]
        case "select_and_scatter":
            return [None, *results, *results]
    return [None] * len(op.operands)


def _storage(element: ElementType) -> DType:
    return element.storage if isinstance(element, Quantized) else element


# ---- quantise and dequantise ----


def dequantise(b: Builder, value: Value, of: Quantized) -> Value:
    """`(q - zero_point) * scale`. The difference does not wrap."""
    shape = value.shape
    wide = i32 if of.storage.bits < 32 else i64
    steps = b.convert(value, result=shape.with_dtype(wide))
    if any(of.zero_points):
        steps = b.subtract(steps, _broadcast_numbers(b, of.zero_points, of.axis, steps.shape))
    floats = b.convert(steps, result=shape.with_dtype(of.expressed))
    return b.multiply(floats, _broadcast_numbers(b, of.scales, of.axis, floats.shape))


def quantise(b: Builder, value: Value, to: Quantized) -> Value:
    """`round_nearest_even(clamp(x / scale + zero_point))`."""
    shape = value.shape
    moved = b.divide(value, _broadcast_numbers(b, to.scales, to.axis, shape))
    if any(to.zero_points):
        moved = b.add(moved, _broadcast_numbers(b, to.zero_points, to.axis, shape))
    low, high = (b.full(_round(limit, to.expressed), shape) for limit in (to.storage_min, to.storage_max))
    held = b.minimum(b.maximum(moved, low), high)
    return b.convert(b.round_nearest_even(held), result=shape.with_dtype(to.storage))


def _broadcast_numbers(b: Builder, numbers: Sequence[float], axis: int | None, shape: Shape) -> Value:
    """One number, or one per slice along an axis, broadcast to a shape."""
    element = shape.element
    wide = np.array(numbers, np.int64 if element.is_integer or isinstance(numbers[0], int) else np.float64)
    array = cast(wide, element)
    if axis is None:
        return b.full(array[0], shape)
    values = b.op("stablehlo.constant", value=Constant.of(array, element)).result
    return b.broadcast_in_dim(values, broadcast_dimensions=(axis,), result=shape)


def _round(number: int, element: DType) -> float:
    return float(cast(np.array(number, np.int64), element).astype(np.float64))
