"""Quantised operators: integers that stand for `(q - zero_point) * scale`."""

from __future__ import annotations

from collections.abc import Sequence

import ml_dtypes

from smelt.dim import Size
from smelt.dtype import DType, f32, f64, i32, i64, integer_range, ui8
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of, ints
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.nn import convolve, window_of
from smelt.read.onnx.registry import onnx_op
from smelt.read.onnx.tensors import element_type
from smelt.shape import Shape


def _spread(g: Graph, parameter: Value, x: Shape, axis: int, block_size: int) -> Value:
    """A scale or zero point in the shape of what it scales: one, one per slice of an axis, or one per block of it."""
    if parameter.shape.rank == 0 or (parameter.shape.rank == 1 and parameter.shape.sizes[0] == 1 and not block_size):
        return g.broadcast_to(g.reshape(parameter, ()), x.sizes)
    place = axis_of(axis, x.rank)
    if parameter.shape.rank == 1 and not block_size:
        return g.broadcast_in_dim(parameter, x.sizes, (place,))
    if parameter.shape.rank != x.rank or block_size < 1:
        raise ShapeError("a scale does not fit what it scales", expected=x, got=parameter.shape)
    return _blocks(g, parameter, x.sizes, place, block_size)


def _blocks(g: Graph, parameter: Value, sizes: Sequence[Size], axis: int, block: int) -> Value:
    own = list(parameter.shape.sizes)
    spread = [*own[: axis + 1], block, *own[axis + 1 :]]
    repeated = g.broadcast_in_dim(parameter, spread, [i if i <= axis else i + 1 for i in range(len(own))])
    whole = [n * block if i == axis else n for i, n in enumerate(own)]
    return g.slice_axis(g.reshape(repeated, whole), axis, 0, sizes[axis])


@onnx_op("QuantizeLinear", since=10)
def quantize_linear(
    g: Graph,
    x: Value,
    y_scale: Value,
    y_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
    precision: int = 0,
    saturate: int = 1,
) -> Value:
    if y_zero_point is not None:
        to = y_zero_point.shape.element
        if output_dtype and element_type(output_dtype, g.location) != to:
            raise ShapeError("QuantizeLinear: 'output_dtype' is not the zero point's type", expected=to)
    else:
        to = element_type(output_dtype, g.location) if output_dtype else ui8
    compute = element_type(precision, g.location) if precision else f32
    wide = f64 if x.shape.element == f64 else compute if compute.bits >= 32 else f32
    scale = g.convert(_spread(g, y_scale, x.shape, axis, block_size), wide)
    scaled = g.binary("divide", g.convert(x, wide), scale)
    if precision and compute.bits < 32:
        scaled = g.convert(g.convert(scaled, compute), wide)
    zero = None if y_zero_point is None else _spread(g, y_zero_point, x.shape, axis, block_size)
    return _stored(g, scaled, zero, to, bool(saturate))


def _stored(g: Graph, scaled: Value, zero: Value | None, to: DType, saturate: bool = True) -> Value:
    """Rounded to even, moved by the zero point and held inside the type."""
    if to.is_float:
        moved = scaled if zero is None else g.binary("add", scaled, g.convert(zero, scaled.shape.element))
        if saturate:
            most = float(ml_dtypes.finfo(to.numpy).max)
            low, high = g.like(-most, moved), g.like(most, moved)
            moved = g.select(g.compare(moved, high, "GT"), high, g.select(g.compare(moved, low, "LT"), low, moved))
        return g.convert(moved, to)
    rounded = g.unary("round_nearest_even", scaled)
    if zero is not None:
        rounded = g.binary("add", rounded, g.convert(zero, scaled.shape.element))
    low_end, high_end = integer_range(to)
    held = g.binary("minimum", g.binary("maximum", rounded, g.like(low_end, rounded)), g.like(high_end, rounded))
    return g.convert(g.convert(held, i64), to) if to.bits < 8 else g.convert(held, to)


@onnx_op("DequantizeLinear", since=10)
def dequantize_linear(
    g: Graph,
    x: Value,
    x_scale: Value,
    x_zero_point: Value | None = None,
    *,
    axis: int = 1,
    block_size: int = 0,
    output_dtype: int = 0,
) -> Value:
    to = element_type(output_dtype, g.location) if output_dtype else x_scale.shape.element
    scale = g.convert(_spread(g, x_scale, x.shape, axis, block_size), f32)
    if x.shape.element.is_float:
        shifted = g.convert(x, f32)
        if x_zero_point is not None:
            shifted = g.binary("subtract", shifted, g.convert(_spread(g, x_zero_point, x.shape, axis, block_size), f32))
        return g.convert(g.binary("multiply", shifted, scale), to)
    wide = i64 if x.shape.element.bits >= 32 else i32
    whole = g.convert(x, wide)
    if x_zero_point is not None:
        whole = g.binary("subtract", whole, g.convert(_spread(g, x_zero_point, x.shape, axis, block_size), wide))
    return g.convert(g.binary("multiply", g.convert(whole, f32), scale), to)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(g: Graph, x: Value) -> tuple[Value, Value, Value]:
    every = tuple(range(x.shape.rank))
    zero = g.scalar(0, f32)
    low = g.binary("minimum", g.min(x, every), zero)
    high = g.binary("maximum", g.max(x, every), zero)
    scale = g.binary("divide", g.binary("subtract", high, low), g.scalar(255, f32))
    point = g.unary("round_nearest_even", g.binary("divide", g.unary("negate", low), scale))
    point = g.binary("minimum", g.binary("maximum", point, zero), g.scalar(255, f32))
    whole = g.convert(point, ui8)
    scaled = g.binary("divide", x, g.broadcast_to(scale, x.shape.sizes))
    return _stored(g, scaled, g.broadcast_to(whole, x.shape.sizes), ui8), scale, whole


# ---- products of integers ----


def _shifted(g: Graph, x: Value, zero: Value | None, axis: int) -> Value:
    """The integers less their zero point, which is one number or one per slice of an axis."""
    whole = g.convert(x, i32)
    if zero is None:
        return whole
    point = g.convert(zero, i32)
    if point.shape.rank == 1 and point.shape.sizes[0] != 1:
        point = g.along(point, x.shape.rank, axis_of(axis, x.shape.rank))
    elif point.shape.rank <= 1:
        point = g.reshape(point, ())
    return g.binary("subtract", whole, point)


@onnx_op("MatMulInteger", since=10)
def matmul_integer(
    g: Graph, A: Value, B: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    a = _shifted(g, A, a_zero_point, -2 if A.shape.rank > 1 else -1)
    return g.matmul(a, _shifted(g, B, b_zero_point, -1))


@onnx_op("QLinearMatMul", since=10)
def qlinear_matmul(
    g: Graph,
    a: Value,
    a_scale: Value,
    a_zero_point: Value,
    b: Value,
    b_scale: Value,
    b_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
) -> Value:
    total = matmul_integer(g, a, b, a_zero_point, b_zero_point)
    rank = total.shape.rank
    rows = _factor(g, a_scale, rank, -2)
    factor = g.binary("multiply", rows, _factor(g, b_scale, rank, -1))
    factor = g.binary("divide", factor, _factor(g, y_scale, rank, -2))
    scaled = g.binary("multiply", g.convert(total, f32), factor)
    return _stored(g, scaled, _zero_like(g, y_zero_point, scaled, -2), y_zero_point.shape.element)


def _factor(g: Graph, scale: Value, rank: int, axis: int) -> Value:
    wide = g.convert(scale, f32)
    if wide.shape.rank == 1 and wide.shape.sizes[0] != 1 and rank:
        return g.along(wide, rank, axis_of(axis, rank))
    return g.reshape(wide, ()) if wide.shape.rank <= 1 else wide


def _zero_like(g: Graph, zero: Value, x: Value, axis: int) -> Value:
    if zero.shape.rank == 1 and zero.shape.sizes[0] != 1:
        return g.broadcast_in_dim(zero, x.shape.sizes, (axis_of(axis, x.shape.rank),))
    return g.broadcast_to(g.reshape(zero, ()) if zero.shape.rank <= 1 else zero, x.shape.sizes)


def _convolved(
    g: Graph,
    x: Value,
    w: Value,
    auto_pad: str,
    dilations: tuple[int, ...] | None,
    group: int,
    kernel_shape: tuple[int, ...] | None,
    pads: tuple[int, ...] | None,
    strides: tuple[int, ...] | None,
) -> Value:
    kernel = ints(w.shape.sizes[2:])
    if kernel is None or (kernel_shape is not None and tuple(kernel_shape) != kernel):
        raise ShapeError("the kernel does not fit", expected=kernel_shape, got=w.shape)
    window = window_of(x.shape.sizes[2:], kernel, strides, dilations, pads, auto_pad)
    if ints((*window.low, *window.high)) is None:
        raise UnsupportedError("attribute 'auto_pad' with sizes that are not fixed", got=x.shape)
    return convolve(g, x, w, window, group)


@onnx_op("ConvInteger", since=10)
def conv_integer(
    g: Graph,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    a, b = _shifted(g, x, x_zero_point, 1), _shifted(g, w, w_zero_point, 0)
    return _convolved(g, a, b, auto_pad, dilations, group, kernel_shape, pads, strides)


@onnx_op("QLinearConv", since=10)
def qlinear_conv(
    g: Graph,
    x: Value,
    x_scale: Value,
    x_zero_point: Value,
    w: Value,
    w_scale: Value,
    w_zero_point: Value,
    y_scale: Value,
    y_zero_point: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    a, b = _shifted(g, x, x_zero_point, 1), _shifted(g, w, w_zero_point, 0)
    total = _convolved(g, a, b, auto_pad, dilations, group, kernel_shape, pads, strides)
    rank = total.shape.rank
    if B is not None:
        total = g.binary("add", total, g.along(B, rank, 1))
    factor = g.binary("multiply", _factor(g, x_scale, rank, 1), _factor(g, w_scale, rank, 1))
    factor = g.binary("divide", factor, _factor(g, y_scale, rank, 1))
    scaled = g.binary("multiply", g.convert(total, f32), factor)
    return _stored(g, scaled, _zero_like(g, y_zero_point, scaled, 1), y_zero_point.shape.element)


