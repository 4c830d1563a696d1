"""Quantised operators: integers, or narrow floats, that stand for `(q - zero_point) * scale`.

In: nodes of ai.onnx. Out: `smelt.quantize`, `smelt.dequantize` and `smelt.qdot` as
`ir.composites` has them. Their decompositions compute on whole integers (i32) and f32, and round to the stored type
once, at the end. `read.onnx.contrib_quant` builds Microsoft's operators from the same parts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

from smelt.dim import Size
from smelt.dtype import DType, f32, f64, i32, i64, integer_range, ui8
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.composites import window_attributes
from smelt.ir.core import Op, Value
from smelt.read.onnx.emit import axis_of, greatest_finite
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.ops.composite import composite
from smelt.read.onnx.ops.nn import ConvAttributes, conv, sized_kernel
from smelt.read.onnx.registry import onnx_op
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


# ---- layouts, as `ir.composites` writes them ----

_AXES = "abcdefghijklmnopqrstuvwxyz"


def parameter_layout(parameter: Value, axes: Sequence[str], axis: int) -> str | None:
    """The layout of a scale or zero point for a tensor with these axes; a vector goes along one of them."""
    if is_single(parameter):
        return "." * parameter.shape.rank
    if parameter.shape.rank == 1:
        return axes[axis_of(axis, len(axes))] if axes else None
    if parameter.shape.rank != len(axes):
        return None
    return "".join("." if size == 1 else letter for size, letter in zip(parameter.shape.sizes, axes, strict=True))


def _elementwise_layout(x: Value, parameters: Sequence[Value], axis: int, block_size: int) -> str | None:
    """`ab,b->ab`, or `a(bz),ab->a(bz)` in blocks; None where blocks do not fill the axis or it is dynamic."""
    rank = x.shape.rank
    if rank > len(_AXES) - 1:
        return None
    axes = list(_AXES[:rank])
    place = 0 if rank == 1 else axis_of(axis, rank) if rank else 0
    if block_size:
        size = x.shape.sizes[place] if rank else 1
        if not isinstance(size, int) or size % block_size or not all(each.shape.rank == rank for each in parameters):
            return None
    words = [parameter_layout(each, axes, place) for each in parameters]
    if any(word is None for word in words):
        return None
    if block_size:
        axes[place] = f"({axes[place]}z)"
    whole = "".join("." if size == 1 else axis for size, axis in zip(x.shape.sizes, axes, strict=True))
    return ",".join([whole, *(word or "" for word in words)]) + "->" + whole


def _elementwise(
    g: Graph,
    name: str,
    operands: Mapping[str, Value | None],
    axis: int,
    block_size: int,
    emits: Callable[..., Value],
) -> Value:
    """A composite of a tensor, its scale and its zero point."""
    given = {role: each for role, each in operands.items() if each is not None}
    inputs = list(given.values())
    layout = _elementwise_layout(inputs[0], inputs[1:], axis, block_size)

    def emit(g: Graph, values: Sequence[Value]) -> Value:
        named = dict(zip(given, values, strict=True))
        return emits(g, *(named.get(role) for role in operands))

    said = None if layout is None else {"operands": " ".join(given), "layout": layout}
    return composite(g, name, inputs, emit, lambda ops: said)[0]


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

    def emit(g: Graph, x: Value, scale: Value, point: Value | None) -> Value:
        # Operands first take the precision's type; rounding a quotient to f32 and then to a narrower one is right.
        spread = _spread(g, scale, x.shape, axis, block_size)
        left, right = (g.convert(g.convert(each, exact), wide) for each in (x, spread))
        scaled = g.convert(g.convert(g.binary("divide", left, right), exact), wide)
        zero = None if point is None else _spread(g, point, x.shape, axis, block_size)
        return quantise_to(g, scaled, zero, to, bool(saturate))

    if not to.is_integer:
        return emit(g, x, y_scale, y_zero_point)
    operands = {"x": x, "scale": y_scale, "zero": y_zero_point}
    return _elementwise(g, "smelt.quantize", operands, axis, block_size, emit)


def quantise_to(g: Graph, scaled: Value, zero: Value | None, to: DType, saturate: bool = True) -> Value:
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


def dequantise(g: Graph, x: Value, scale: Value, zero: Value | None) -> Value:
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

    def emit(g: Graph, x: Value, scale: Value, point: Value | None) -> Value:
        spread = _spread(g, scale, x.shape, axis, block_size)
        zero = None if point is None else _spread(g, point, x.shape, axis, block_size)
        return g.convert(dequantise(g, x, spread, zero), to)

    if not x.shape.element.is_integer:
        return emit(g, x, x_scale, x_zero_point)
    operands = {"x": x, "scale": x_scale, "zero": x_zero_point}
    return _elementwise(g, "smelt.dequantize", operands, axis, block_size, emit)


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

    def emit(g: Graph, x: Value, scale: Value, zero: Value) -> Value:
        return quantise_to(g, g.binary("divide", x, scale), zero, ui8)

    operands = {"x": x, "scale": scale, "zero": whole}
    return _elementwise(g, "smelt.quantize", operands, 0, 0, emit), scale, whole


# ---- matrix multiplication ----


def _subtract_zero_point(g: Graph, x: Value, zero: Value | None, axis: int) -> Value:
    """The numbers less their zero point, which is one, one per slice or broadcasts: i32, or f32 of floats."""
    wide = f32 if x.shape.element.is_float else i32
    whole = g.convert(x, wide)
    return (
        whole
        if zero is None
        else g.binary("subtract", whole, g.convert(broadcast_parameter(g, zero, x.shape.rank, axis), wide))
    )


def broadcast_parameter(g: Graph, parameter: Value, rank: int, axis: int) -> Value:
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


def integer_product(g: Graph, named: Mapping[str, Value]) -> Value:
    """Integer matrix multiplication after subtracting zero points, i32."""
    a, b = named["lhs"], named["rhs"]
    left = _subtract_zero_point(g, a, named.get("lhs_zero"), _rows(a))
    return g.matmul(left, _subtract_zero_point(g, b, named.get("rhs_zero"), -1))


def product(
    g: Graph,
    lhs: tuple[Value, Value | None],
    rhs: tuple[Value, Value | None],
    more: Mapping[str, Value | None],
    emits: Callable[[Graph, Mapping[str, Value]], Value],
    *,
    rows: int = -2,
) -> Value:
    """`smelt.qdot` over a NumPy-style matmul of (tensor, zero point) pairs.

    `more` are scales, a bias and the result's scale and zero point, by the role in the composite and then, after a
    dot, by whose axes a vector follows: `scale.lhs`. `emits` gives the ops, from values by the same names.
    """
    operands = {"lhs": lhs[0], "rhs": rhs[0], "lhs_zero": lhs[1], "rhs_zero": rhs[1], **more}
    given = {role: each for role, each in operands.items() if each is not None}
    layout = _product_layout(given)
    said = None if layout is None else {"operands": _roles(given), "layout": layout}
    return composite(g, "smelt.qdot", list(given.values()), _by_name(given, emits), lambda ops: said)[0]


def _roles(given: Mapping[str, Value]) -> str:
    return " ".join(role.partition(".")[0] for role in given)


def _by_name(
    given: Mapping[str, Value], emits: Callable[[Graph, Mapping[str, Value]], Value]
) -> Callable[[Graph, Sequence[Value]], Value]:
    return lambda g, values: emits(g, dict(zip(given, values, strict=True)))


def _product_layout(given: Mapping[str, Value]) -> str | None:
    """The layout of a matmul with its scales; None where broadcasting depends on dynamic dimensions."""
    a, b = given["lhs"].shape, given["rhs"].shape
    batch = max(a.rank, b.rank, 2) - 2
    if not a.rank or not b.rank or batch > 16 or any(each.element.is_float for each in (a, b)):
        return None
    letters = "abcdefghijpqrstu"[:batch]
    sides = []
    for shape, own in ((a, "mk"), (b, "kn")):
        word = "k" if shape.rank == 1 else letters[batch - (shape.rank - 2) :] + own
        sides.append([letter if size != 1 else "." for letter, size in zip(word, shape.sizes, strict=True)])
    if b.rank > 2:
        for x, y in zip(a.sizes[-3::-1], b.sizes[-3::-1], strict=False):
            if x != y and 1 not in (x, y):
                return None
    ends = ("m" if a.rank > 1 else "") + ("n" if b.rank > 1 else "")
    names = letters + ends
    used = {letter for side in sides for letter in side}
    result = [letter if letter in used else "." for letter in names]
    words = ["".join(side) for side in sides]
    for role, value in list(given.items())[2:]:
        side = {"lhs": sides[0], "rhs": sides[1]}.get(role[:3] if "." not in role else role.partition(".")[2], result)
        found = parameter_layout(value, side, _rows_of(len(side)) if side is sides[0] else -1)
        if found is None:
            return None
        words.append(found)
    return ",".join(words) + "->" + "".join(result)


def _rows_of(rank: int) -> int:
    return -2 if rank > 1 else -1


@onnx_op("MatMulInteger", since=10)
def matmul_integer(
    g: Graph, A: Value, B: Value, a_zero_point: Value | None = None, b_zero_point: Value | None = None
) -> Value:
    return product(g, (A, a_zero_point), (B, b_zero_point), {}, integer_product)


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

    def emits(g: Graph, named: Mapping[str, Value]) -> Value:
        rows = broadcast_parameter(g, g.convert(named["scale.lhs"], f32), a.shape.rank, _rows(a))
        columns = broadcast_parameter(g, g.convert(named["scale.rhs"], f32), b.shape.rank, -1)
        if b.shape.rank == 1 and rows.shape.rank > 1:  # a product with a vector has no columns, one of a vector no rows
            rows = g.reshape(rows, rows.shape.sizes[:-1])
        if a.shape.rank == 1 and columns.shape.rank > 1:
            columns = g.reshape(columns, (*columns.shape.sizes[:-2], columns.shape.sizes[-1]))
        result = single(g, g.convert(named["result_scale"], f32), "y_scale")
        factor = g.binary("divide", g.binary("multiply", rows, columns), result)
        scaled = g.binary("multiply", g.convert(integer_product(g, named), f32), factor)
        return quantise_to(g, scaled, single(g, named["result_zero"], "y_zero_point"), y_zero_point.shape.element)

    more = {"scale.lhs": a_scale, "scale.rhs": b_scale, "result_scale": y_scale, "result_zero": y_zero_point}
    return product(g, (a, a_zero_point), (b, b_zero_point), more, emits)


def _window_sum(g: Graph, named: Mapping[str, Value], window: ConvAttributes) -> Value:
    """The convolution of integers; padding stands for the real number 0: it is added after the zero point is off."""
    zero = named.get("lhs_zero")
    left = _subtract_zero_point(g, named["lhs"], None if zero is None else single(g, zero, "x_zero_point"), 1)
    return conv(g, left, _subtract_zero_point(g, named["rhs"], named.get("rhs_zero"), 0), **window)


def convolve_quantised(
    g: Graph,
    lhs: tuple[Value, Value | None],
    rhs: tuple[Value, Value | None],
    more: Mapping[str, Value | None],
    emits: Callable[[Graph, Mapping[str, Value]], Value],
) -> Value:
    """`smelt.qdot` over a convolution of (tensor, zero point) pairs, channels first; `more` as for `product`."""
    operands = {"lhs": lhs[0], "rhs": rhs[0], "lhs_zero": lhs[1], "rhs_zero": rhs[1], **more}
    given = {role: each for role, each in operands.items() if each is not None}

    def attributes(ops: Sequence[Op]) -> Mapping[str, Any] | None:
        layout = _window_layout(given)
        found = [op for op in ops if op.name in ("stablehlo.convolution", "stablehlo.dynamic_conv", "stablehlo.pad")]
        if layout is None or [op.name for op in found] != ["stablehlo.convolution"]:
            return None  # dynamic dimensions, or separate padding
        return {"operands": _roles(given), "layout": layout, **window_attributes(found[0])}

    return composite(g, "smelt.qdot", list(given.values()), _by_name(given, emits), attributes)[0]


def _window_layout(given: Mapping[str, Value]) -> str | None:
    places = "xyzuvw"[: given["lhs"].shape.rank - 2]
    sides = {"lhs": f"bf{places}", "rhs": f"oi{places}"}
    words = list(sides.values())
    for role, value in list(given.items())[2:]:
        side, axis = (sides["rhs"], 0) if role in ("rhs_zero", "scale.rhs") else (f"bo{places}", 1)
        word = parameter_layout(value, list(side), axis)
        if word is None or (role in ("lhs_zero", "scale.lhs") and not is_single(value)):
            return None
        words.append(word)
    return ",".join(words) + f"->bo{places}"


@onnx_op("ConvInteger", since=10)
def conv_integer(
    g: Graph,
    x: Value,
    w: Value,
    x_zero_point: Value | None = None,
    w_zero_point: Value | None = None,
    **window: Unpack[ConvAttributes],
) -> Value:
    w, _ = sized_kernel(g, w, window.get("kernel_shape"), x.shape.rank - 2)
    return convolve_quantised(
        g, (x, x_zero_point), (w, w_zero_point), {}, lambda g, named: _window_sum(g, named, window)
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
    **window: Unpack[ConvAttributes],
) -> Value:
    w, _ = sized_kernel(g, w, window.get("kernel_shape"), x.shape.rank - 2)

    def emits(g: Graph, named: Mapping[str, Value]) -> Value:
        total = _window_sum(g, named, window)
        if "bias" in named:
            total = g.binary("add", total, g.along(named["bias"], total.shape.rank, 1))
        channels = broadcast_parameter(g, named["scale.rhs"], total.shape.rank, 1)
        factor = g.binary("multiply", single(g, named["scale.lhs"], "x_scale"), channels)
        factor = g.binary("divide", factor, single(g, named["result_scale"], "y_scale"))
        scaled = g.binary("multiply", g.convert(total, f32), factor)
        return quantise_to(g, scaled, single(g, named["result_zero"], "y_zero_point"), y_zero_point.shape.element)

    more = {
        "scale.lhs": x_scale,
        "scale.rhs": w_scale,
        "bias": B,
        "result_scale": y_scale,
        "result_zero": y_zero_point,
    }
    return convolve_quantised(g, (x, x_zero_point), (w, w_zero_point), more, emits)
