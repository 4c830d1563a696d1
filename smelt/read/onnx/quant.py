"""Quantised operators: integers, or narrow floats, that stand for `(q - zero_point) * scale`.

What comes in is a node of ai.onnx; what goes out computes on whole integers (i32) and f32, and rounds to the stored
type once, at the end. `read.onnx.contrib_quant` builds Microsoft's operators from the same parts.
"""

from __future__ import annotations

from smelt.dim import Size
from smelt.dtype import DType, f32, f64, i32, i64, integer_range, ui8
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of, greatest_finite
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.nn import conv
from smelt.read.onnx.registry import onnx_op
from smelt.read.onnx.tensors import element_type
from smelt.shape import Shape

# ---- scales and zero points ----


def is_single(parameter: Value) -> bool:
    """Whether a scale or zero point is one number, as a scalar or as a vector of one element."""
    return parameter.shape.rank == 0 or parameter.shape.sizes == (1,)


def single(g: Graph, parameter: Value, what: str) -> Value:
    """A scale or zero point that must be one number, as a scalar."""
    if not is_single(parameter):
        raise UnsupportedError(f"input {what!r} that is not one number", got=parameter.shape)
    return g.reshape(parameter, ())


def _spread(g: Graph, parameter: Value, x: Shape, axis: int, block_size: int) -> Value:
    """A scale or zero point in the shape of what it scales: one, one per slice of an axis, or one per block of it."""
    if block_size < 0:
        raise ShapeError("attribute 'block_size' is negative", got=block_size)
    if parameter.shape.rank == 0 or (is_single(parameter) and not block_size):
        return g.broadcast_to(g.reshape(parameter, ()), x.sizes)
    place = 0 if x.rank == 1 else axis_of(axis, x.rank)  # a vector has no other axis, whatever the attribute says
    if block_size:
        return _blocks(g, parameter, x, place, block_size)
    if parameter.shape.rank != 1 or _differ(parameter.shape.sizes[0], x.sizes[place]):
        raise ShapeError(f"a scale does not fit axis {place} of what it scales", expected=x, got=parameter.shape)
    return g.broadcast_in_dim(parameter, x.sizes, (place,))


def _blocks(g: Graph, parameter: Value, x: Shape, axis: int, block: int) -> Value:
    """Every element repeated along an axis; the last block may reach beyond the end."""
    own = list(parameter.shape.sizes)
    fits = len(own) == x.rank and not any(
        _differ(a, b) for i, (a, b) in enumerate(zip(own, x.sizes, strict=True)) if i != axis
    )
    if fits and isinstance(own[axis], int) and isinstance(x.sizes[axis], int):
        fits = -(-x.sizes[axis] // block) == own[axis]
    if not fits:
        raise ShapeError(f"scales do not fit blocks of {block} along axis {axis}", expected=x, got=parameter.shape)
    spread = [*own[: axis + 1], block, *own[axis + 1 :]]
    repeated = g.broadcast_in_dim(parameter, spread, [i if i <= axis else i + 1 for i in range(len(own))])
    whole = [n * block if i == axis else n for i, n in enumerate(own)]
    return g.slice_axis(g.reshape(repeated, whole), axis, 0, x.sizes[axis])


def _differ(a: Size, b: Size) -> bool:
    return isinstance(a, int) and isinstance(b, int) and a != b


# ---- from floats to stored numbers and back ----


def _division(x: DType, scale: DType, precision: int, where: object) -> DType:
    """The type whose precision the division has: the one asked for, else the scale's."""
    if precision:
        asked = element_type(precision, where)
        if not asked.is_float:
            raise UnsupportedError("attribute 'precision'", expected="a float type", got=asked)
        return asked
    if scale.is_float and scale.bits >= 16:
        return scale
    return x if x.is_float else f32 if scale.is_float else f64  # scales of whole numbers or powers of two


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
    to = element_type(output_dtype, g.location) if output_dtype else ui8
    if y_zero_point is not None:
        if output_dtype and to != y_zero_point.shape.element:
            raise ShapeError(
                "attribute 'output_dtype' is not the zero point's type", expected=y_zero_point.shape.element, got=to
            )
        to = y_zero_point.shape.element
    exact = _division(x.shape.element, y_scale.shape.element, precision, g.location)
    wide = exact if exact.bits >= 32 else f32
    # Operands first take the precision's type; a quotient rounded to f32 and then to a narrower type is rounded right.
    left, right = (
        g.convert(g.convert(each, exact), wide) for each in (x, _spread(g, y_scale, x.shape, axis, block_size))
    )
    scaled = g.convert(g.convert(g.binary("divide", left, right), exact), wide)
    zero = None if y_zero_point is None else _spread(g, y_zero_point, x.shape, axis, block_size)
    return stored(g, scaled, zero, to, bool(saturate))


def stored(g: Graph, scaled: Value, zero: Value | None, to: DType, saturate: bool = True) -> Value:
    """f32 or f64 rounded to even, moved by the zero point and held inside the type."""
    if not (to.is_integer and to.bits <= 16) and not (to.is_float and to.bits <= 8 and to.name != "f8E8M0FNU"):
        raise UnsupportedError("quantisation to this type", expected="at most 16 bits, or floats of at most 8", got=to)
    wide = scaled.shape.element
    point = None if zero is None else g.broadcast_to(g.convert(zero, wide), scaled.shape.sizes)
    if to.is_float:
        moved = scaled if point is None else g.binary("add", scaled, point)
        if saturate:  # nan stays nan
            most = greatest_finite(to)
            low, high = g.like(-most, moved), g.like(most, moved)
            moved = g.select(g.compare(moved, high, "GT"), high, g.select(g.compare(moved, low, "LT"), low, moved))
        return g.convert(moved, to)
    rounded = g.unary("round_nearest_even", scaled)
    if point is not None:
        rounded = g.binary("add", rounded, point)
    least, greatest = integer_range(to)
    held = g.binary("minimum", g.binary("maximum", rounded, g.like(least, rounded)), g.like(greatest, rounded))
    return g.convert(g.convert(held, i32), to)


def expressed(g: Graph, x: Value, scale: Value, zero: Value | None) -> Value:
    """`(x - zero) * scale` in f32, of a scale and a zero point that broadcast."""
    if x.shape.element.is_float:
        shifted = g.convert(x, f32)
        if zero is not None:
            shifted = g.binary("subtract", shifted, g.convert(zero, f32))
    else:
        wide = i64 if x.shape.element.bits >= 32 else i32
        whole = g.convert(x, wide)
        if zero is not None:
            whole = g.binary("subtract", whole, g.convert(zero, wide))
        shifted = g.convert(whole, f32)
    return g.binary("multiply", shifted, g.convert(scale, f32))


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
    if not to.is_float or to.bits < 16:
        raise UnsupportedError("attribute 'output_dtype'", expected="a float type of at least 16 bits", got=to)
    if x_zero_point is not None and x_zero_point.shape.element != x.shape.element:
        raise ShapeError("the zero point has another type than the tensor", expected=x.shape, got=x_zero_point.shape)
    scale = _spread(g, x_scale, x.shape, axis, block_size)
    zero = None if x_zero_point is None else _spread(g, x_zero_point, x.shape, axis, block_size)
    return g.convert(expressed(g, x, scale, zero), to)


@onnx_op("DynamicQuantizeLinear", since=11)
def dynamic_quantize_linear(g: Graph, x: Value) -> tuple[Value, Value, Value]:
    every = tuple(range(x.shape.rank))
    zero, most = g.scalar(0, f32), g.scalar(255, f32)
    low = g.binary("minimum", g.min(x, every), zero)
    high = g.binary("maximum", g.max(x, every), zero)
    reach = g.binary("subtract", high, low)
    reach = g.select(g.compare(reach, zero, "EQ"), g.scalar(1, f32), reach)  # nothing but zeros
    scale = g.binary("divide", reach, most)
    point = g.binary("divide", g.unary("negate", low), scale)
    point = g.unary("round_nearest_even", g.binary("minimum", g.binary("maximum", point, zero), most))
    whole = g.convert(point, ui8)
    return stored(g, g.binary("divide", x, scale), whole, ui8), scale, whole


# ---- products ----


def _shifted(g: Graph, x: Value, zero: Value | None, axis: int) -> Value:
    """The numbers less their zero point, which is one, one per slice or broadcasts: i32, or f32 of floats."""
    wide = f32 if x.shape.element.is_float else i32
    whole = g.convert(x, wide)
    return whole if zero is None else g.binary("subtract", whole, g.convert(placed(g, zero, x.shape.rank, axis), wide))


def placed(g: Graph, parameter: Value, rank: int, axis: int) -> Value:
    """A scale or zero point so that it broadcasts against a tensor of a rank; a vector goes along an axis."""
    if is_single(parameter):
        return g.reshape(parameter, ())
    if parameter.shape.rank == 1:
        return g.along(parameter, rank, axis_of(axis, rank))
    if parameter.shape.rank != rank:
        raise ShapeError("a scale or zero point has another rank than its tensor", expected=rank, got=parameter.shape)
    return parameter


def _rows(x: Value) -> int:
    """The axis that `per row` means: the one before the last, if there is one."""
    return -2 if x.shape.rank > 1 else -1


@onnx_op("MatMulInteger", since=10)
def matmul_integer(
    g: Graph, A: Value, B: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    return g.matmul(_shifted(g, A, a_zero_point, _rows(A)), _shifted(g, B, b_zero_point, -1))


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
    if a.shape.element.is_float != b.shape.element.is_float:
        raise UnsupportedError("a product of integers and floats", got=f"{a.shape} and {b.shape}")
    total = matmul_integer(g, a, b, a_zero_point, b_zero_point)
    rows = placed(g, g.convert(a_scale, f32), a.shape.rank, _rows(a))
    columns = placed(g, g.convert(b_scale, f32), b.shape.rank, -1)
    if b.shape.rank == 1 and rows.shape.rank > 1:  # a product with a vector has no columns, one of a vector no rows
        rows = g.reshape(rows, rows.shape.sizes[:-1])
    if a.shape.rank == 1 and columns.shape.rank > 1:
        columns = g.reshape(columns, (*columns.shape.sizes[:-2], columns.shape.sizes[-1]))
    factor = g.binary("divide", g.binary("multiply", rows, columns), single(g, g.convert(y_scale, f32), "y_scale"))
    scaled = g.binary("multiply", g.convert(total, f32), factor)
    return stored(g, scaled, single(g, y_zero_point, "y_zero_point"), y_zero_point.shape.element)


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
    """The padding stands for the real number 0: it is added after the zero point is taken off."""
    left = _shifted(g, x, None if x_zero_point is None else single(g, x_zero_point, "x_zero_point"), 1)
    right = _shifted(g, w, w_zero_point, 0)
    return conv(
        g,
        left,
        right,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )


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
    total = conv_integer(
        g,
        x,
        w,
        x_zero_point,
        w_zero_point,
        auto_pad=auto_pad,
        dilations=dilations,
        group=group,
        kernel_shape=kernel_shape,
        pads=pads,
        strides=strides,
    )
    if B is not None:
        total = g.binary("add", total, g.along(B, total.shape.rank, 1))
    channels = placed(g, w_scale, total.shape.rank, 1)
    factor = g.binary("multiply", single(g, x_scale, "x_scale"), channels)
    factor = g.binary("divide", factor, single(g, y_scale, "y_scale"))
    scaled = g.binary("multiply", g.convert(total, f32), factor)
    return stored(g, scaled, single(g, y_zero_point, "y_zero_point"), y_zero_point.shape.element)
