"""Operators of neural networks: convolutions, pools, normalisations, dropout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

import numpy as np

from smelt.dim import Size, maximum, product
from smelt.dtype import DType, f32, i1, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.attributes import ConvDims, ScatterDims
from smelt.ir.core import Value
from smelt.read.onnx.emit import axes_of, axis_of, highest, ints, lowest
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.registry import Ints, onnx_op
from smelt.shape import Shape

# ---- windows ----


@dataclass(frozen=True, slots=True)
class Window:
    """A window that slides over the spatial dimensions."""

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    low: tuple[Size, ...]
    high: tuple[Size, ...]

    @property
    def extent(self) -> tuple[int, ...]:
        return tuple((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))


def per_axis(name: str, values: Sequence[int] | None, count: int, default: int) -> tuple[int, ...]:
    """An attribute with `count` numbers, which may be absent."""
    if values and len(values) != count:
        raise ShapeError(f"attribute {name!r} has the wrong length", expected=count, got=len(values))
    return tuple(values or (default,) * count)


def window_of(
    sizes: Sequence[Size],
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
) -> Window:
    """The window that the attributes of a convolution or a pool describe."""
    n = len(sizes)
    steps = tuple(strides or (1,) * n)
    spread = tuple(dilations or (1,) * n)
    if not len(kernel) == len(steps) == len(spread) == n:
        raise ShapeError(
            "attributes of the window differ in length", expected=n, got=[len(kernel), len(steps), len(spread)]
        )
    if any(number < 1 for number in (*kernel, *steps, *spread)):
        raise ShapeError("a window needs positive sizes, strides and dilations", got=[*kernel, *steps, *spread])
    extent = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    if auto_pad in ("NOTSET", ""):
        amounts = per_axis("pads", pads, 2 * n, 0)
        return Window(tuple(kernel), steps, spread, amounts[:n], amounts[n:])
    if auto_pad == "VALID":
        return Window(tuple(kernel), steps, spread, (0,) * n, (0,) * n)
    if auto_pad not in ("SAME_UPPER", "SAME_LOWER"):
        raise ParseError("attribute 'auto_pad'", expected="NOTSET, VALID, SAME_UPPER or SAME_LOWER", got=auto_pad)
    low: list[Size] = []
    high: list[Size] = []
    for size, step, reach in zip(sizes, steps, extent, strict=True):
        total: Size = reach - 1 if step == 1 else maximum((-(-size // step) - 1) * step + reach - size, 0)
        less = total // 2
        more = total - less
        low.append(less if auto_pad == "SAME_UPPER" else more)
        high.append(more if auto_pad == "SAME_UPPER" else less)
    return Window(tuple(kernel), steps, spread, tuple(low), tuple(high))


def _pad_first(g: Graph, x: Value, w: Window, fill: float | int) -> tuple[Value, Window]:
    """A window whose padding depends on sizes slides over a tensor that is padded first."""
    if ints((*w.low, *w.high)) is not None:
        return x, w
    value = g.scalar(fill, x.shape.element)
    padded = g.pad(x, value, (0, 0, *w.low), (0, 0, *w.high))
    zero = (0,) * len(w.kernel)
    return padded, Window(w.kernel, w.strides, w.dilations, zero, zero)


def _pairs(low: Sequence[Size], high: Sequence[Size]) -> tuple[tuple[int, int], ...]:
    return tuple((a, b) for a, b in zip(low, high, strict=True) if isinstance(a, int) and isinstance(b, int))


def convolve(
    g: Graph,
    x: Value,
    kernel: Value,
    w: Window,
    groups: int = 1,
    *,
    lhs_dilation: Sequence[int] | None = None,
    reverse: bool = False,
    element: DType | None = None,
) -> Value:
    """Batch, channels, then space; the kernel has outputs, inputs, then space."""
    n = x.shape.rank - 2
    space = tuple(range(2, n + 2))
    dims = ConvDims(0, 1, space, 1, 0, space, 0, 1, space)
    padding = _pairs(w.low, w.high)
    stretch = tuple(lhs_dilation or (1,) * n)
    result = Shape.of(element or x.shape.element, (x.shape.sizes[0], kernel.shape.sizes[0], *_outputs(x, w, stretch)))
    return g.b.convolution(
        x,
        kernel,
        window_strides=w.strides,
        padding=padding,
        lhs_dilation=stretch,
        rhs_dilation=w.dilations,
        window_reversal=(reverse,) * n,
        dimension_numbers=dims,
        feature_group_count=groups,
        batch_group_count=1,
        result=result,
    )


def _outputs(x: Value, w: Window, stretch: Sequence[int]) -> list[Size]:
    sizes: list[Size] = []
    for i, size in enumerate(x.shape.sizes[2:]):
        spread = (size - 1) * stretch[i] + 1
        sizes.append((spread + w.low[i] + w.high[i] - w.extent[i]) // w.strides[i] + 1)
    return sizes


def _check_image(x: Value, what: str) -> None:
    if x.shape.rank < 3:
        raise ShapeError(f"{what} needs a batch, channels and space", got=x.shape)


class ConvAttributes(TypedDict, total=False):
    """The attributes of Conv, for operators that pass them on."""

    auto_pad: str
    dilations: tuple[int, ...] | None
    group: int
    kernel_shape: tuple[int, ...] | None
    pads: tuple[int, ...] | None
    strides: tuple[int, ...] | None


@onnx_op("Conv")
def conv(
    g: Graph,
    X: Value,
    W: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    _check_image(X, "Conv")
    W, kernel = sized_kernel(g, W, kernel_shape, X.shape.rank - 2)
    w = window_of(X.shape.sizes[2:], kernel, strides, dilations, pads, auto_pad)
    x, w = _pad_first(g, X, w, 0)
    return with_bias(g, convolve(g, x, W, w, group), B)


def channels_first(g: Graph, x: Value, channels_last: int = 1) -> Value:
    rank = x.shape.rank
    return g.transpose(x, (0, rank - 1, *range(1, rank - 1))) if channels_last else x


def channels_back(g: Graph, x: Value, channels_last: int = 1) -> Value:
    return g.transpose(x, (0, *range(2, x.shape.rank), 1)) if channels_last else x


def sized_kernel(g: Graph, W: Value, given: tuple[int, ...] | None, n: int) -> tuple[Value, tuple[int, ...]]:
    """The weights and the sizes of their windows, which the attribute says where dimensions of weights are dynamic."""
    sizes = W.shape.sizes[2:]
    if len(sizes) != n or (given is not None and len(given) != n):
        raise ShapeError("the kernel does not fit", expected=given or f"{n} spatial dimensions", got=W.shape)
    if given is None:
        found = ints(sizes)
        if found is None:
            raise UnsupportedError("a kernel whose size is not fixed", expected="'kernel_shape'", got=W.shape)
        return W, found
    for have, want in zip(sizes, given, strict=True):
        if isinstance(have, int) and have != want:
            raise ShapeError("the kernel does not fit", expected=given, got=W.shape)
        g.check_at_most(have, want, "the kernel is larger than 'kernel_shape'")
        g.check_at_most(want, have, "the kernel is smaller than 'kernel_shape'")
    return g.reshape(W, (*W.shape.sizes[:2], *given)), tuple(given)


def with_bias(g: Graph, x: Value, bias: Value | None) -> Value:
    return x if bias is None else g.binary("add", x, g.along(bias, x.shape.rank, 1))


@onnx_op("ConvTranspose")
def conv_transpose(
    g: Graph,
    X: Value,
    W: Value,
    B: Value | None = None,
    *,
    auto_pad: str = "NOTSET",
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    output_padding: tuple[int, ...] | None = None,
    output_shape: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    _check_image(X, "ConvTranspose")
    n = X.shape.rank - 2
    W, kernel = sized_kernel(g, W, kernel_shape, n)
    steps = per_axis("strides", strides, n, 1)
    spread = per_axis("dilations", dilations, n, 1)
    extra = per_axis("output_padding", output_padding, n, 0)
    if output_shape is not None and len(output_shape) < n:
        raise ShapeError("attribute 'output_shape' has the wrong length", expected=n, got=len(output_shape))
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, spread, strict=True)]
    if output_shape is not None or auto_pad.startswith("SAME"):
        sizes = X.shape.sizes[2:]
        wanted: Sequence[Size] = (
            output_shape[-n:] if output_shape is not None else [s * t for s, t in zip(sizes, steps, strict=True)]
        )
        low: list[Size] = []
        high: list[Size] = []
        for i in range(n):
            total = steps[i] * (sizes[i] - 1) + extra[i] + reach[i] - wanted[i]
            total = maximum(total, 0) if not isinstance(total, int) else total
            less = total // 2
            low.append(less if auto_pad == "SAME_UPPER" else total - less)
            high.append(total - less if auto_pad == "SAME_UPPER" else less)
    else:
        amounts = per_axis("pads", None if auto_pad == "VALID" else pads, 2 * n, 0)
        low, high = list(amounts[:n]), list(amounts[n:])
    numbers = ints((*low, *high))
    if numbers is None:
        raise UnsupportedError("ConvTranspose: padding that depends on sizes that are not fixed", got=X.shape)
    inputs, outputs = W.shape.sizes[0], W.shape.sizes[1]
    split = g.reshape(W, (group, inputs // group, outputs, *kernel))
    moved = g.transpose(split, (0, 2, 1, *range(3, n + 3)))
    flipped = g.reshape(moved, (group * outputs, inputs // group, *kernel))
    window = Window(
        kernel,
        (1,) * n,
        spread,
        tuple(r - 1 - a for r, a in zip(reach, numbers[:n], strict=True)),
        tuple(r - 1 - a + e for r, a, e in zip(reach, numbers[n:], extra, strict=True)),
    )
    return with_bias(g, convolve(g, X, flipped, window, group, lhs_dilation=steps, reverse=True), B)


# ---- pools ----


def _pool_window(
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int] | None,
    dilations: Sequence[int] | None,
    pads: Sequence[int] | None,
    auto_pad: str,
    ceil_mode: int,
) -> tuple[Window, tuple[int, ...]]:
    """The window of a pool, and how far `ceil_mode` reaches beyond the padding at each end."""
    w = window_of(x.shape.sizes[2:], kernel, strides, dilations, pads, auto_pad)
    beyond = [0] * len(w.kernel)
    if ceil_mode and auto_pad in ("NOTSET", ""):
        for i, size in enumerate(x.shape.sizes[2:]):
            reach, step, low, high = w.extent[i], w.strides[i], w.low[i], w.high[i]
            assert isinstance(low, int)
            assert isinstance(high, int)
            if isinstance(size, int):
                count = -(-(size + low + high - reach) // step) + 1
                if (count - 1) * step >= size + low:  # a window that begins behind the data is none
                    count -= 1
                beyond[i] = max(0, (count - 1) * step + reach - size - low - high)
            elif high + step - 1 < reach:  # no window can begin there
                beyond[i] = step - 1
            else:
                raise UnsupportedError("attribute 'ceil_mode' with sizes that are not fixed", got=x.shape)
    return w, tuple(beyond)


def _slide(g: Graph, x: Value, w: Window, beyond: Sequence[int], kind: str, init: float | int) -> Value:
    """`reduce_window` over the spatial dimensions."""
    x, w = _pad_first(g, x, w, init)
    element = x.shape.element
    body = g.b.combine(kind, element)
    high = [a + b for a, b in zip(w.high, beyond, strict=True)]
    return g.b.reduce_window(
        x,
        g.scalar(init, element),
        window_dimensions=(1, 1, *w.kernel),
        window_strides=(1, 1, *w.strides),
        base_dilations=(1,) * x.shape.rank,
        window_dilations=(1, 1, *w.dilations),
        padding=((0, 0), (0, 0), *_pairs(w.low, high)),
        regions=[body],
    )


@onnx_op("MaxPool")
def max_pool(
    g: Graph,
    X: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    storage_order: int = 0,
    strides: tuple[int, ...] | None = None,
) -> tuple[Value, ...]:
    _check_image(X, "MaxPool")
    w, beyond = _pool_window(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    if len(g.node.output) < 2 or not g.node.output[1]:
        return (_slide(g, X, w, beyond, "maximum", lowest(X.shape.element)),)
    return _max_with_places(g, X, w, beyond, storage_order)


def _max_with_places(g: Graph, x: Value, w: Window, beyond: Sequence[int], storage_order: int) -> tuple[Value, Value]:
    """The largest elements and their flat indices; of equal ones the first in row-major order, whatever the order of
    the indices."""
    sizes, element = x.shape.sizes, x.shape.element
    places = _flat_places(g, sizes)
    x, inner = _pad_first(g, x, w, lowest(element))
    places, _ = _pad_first(g, places, w, highest(i64))
    high = [a + b for a, b in zip(inner.high, beyond, strict=True)]
    scalars = (Shape.of(element, ()), Shape.of(i64, ()))
    with g.region(*scalars, *scalars) as r:
        a, at, b, bt = r.args
        same = r.compare(a, b, comparison_direction="EQ")
        earlier = r.and_(same, r.compare(bt, at, comparison_direction="LT"))
        better = r.or_(r.compare(b, a, comparison_direction="GT"), earlier)
        body = r.result(r.select(better, b, a), r.select(better, bt, at))
    largest, at = g.b.reduce_window(
        x,
        places,
        g.scalar(lowest(element), element),
        g.scalar(highest(i64), i64),
        window_dimensions=(1, 1, *inner.kernel),
        window_strides=(1, 1, *inner.strides),
        base_dilations=(1,) * x.shape.rank,
        window_dilations=(1, 1, *inner.dilations),
        padding=((0, 0), (0, 0), *_pairs(inner.low, high)),
        regions=[body],
    )
    return largest, _to_column_major(g, at, sizes[2:]) if storage_order else at


def _to_column_major(g: Graph, places: Value, space: Sequence[Size]) -> Value:
    """Flat indices whose spatial part is in column-major order; the image and the channel stay."""
    column = g.like(0, places)
    for i in reversed(range(len(space))):
        place = g.binary("remainder", places, g.size(space[i]))
        places = g.binary("divide", places, g.size(space[i]))
        column = g.binary("add", column, g.binary("multiply", place, g.size(product(space[:i]))))
    return g.binary("add", column, g.binary("multiply", places, g.size(product(space))))


def _flat_places(g: Graph, sizes: Sequence[Size]) -> Value:
    """Each element's place in the flat tensor."""
    total: Value | None = None
    stride: Size = 1
    for axis in reversed(range(len(sizes))):
        step = g.binary("multiply", g.iota(i64, sizes, axis), g.size(stride))
        total = step if total is None else g.binary("add", total, step)
        stride = stride * sizes[axis]
    assert total is not None
    return total


@onnx_op("AveragePool")
def average_pool(
    g: Graph,
    X: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    count_include_pad: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    _check_image(X, "AveragePool")
    w, beyond = _pool_window(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return g.in_f32(lambda x: _averages(g, x, w, beyond, bool(count_include_pad)), X)


def _averages(g: Graph, x: Value, w: Window, beyond: Sequence[int], padding_counts: bool) -> Value:
    element = x.shape.element
    total = _slide(g, x, w, beyond, "add", 0)
    number = int(np.prod(w.kernel))
    if not any(beyond) and (padding_counts or (not any(n != 0 for n in (*w.low, *w.high)))):
        return g.binary("divide", total, g.scalar(number, element))
    ones = g.full(1, Shape.of(element, (1, 1, *x.shape.sizes[2:])))
    if padding_counts:  # what ceil_mode adds does not
        ones = g.pad(ones, g.scalar(1, element), (0, 0, *w.low), (0, 0, *w.high))
        zero = (0,) * len(w.kernel)
        w = Window(w.kernel, w.strides, w.dilations, zero, zero)
    counts = _slide(g, ones, w, beyond, "add", 0)
    return g.binary("divide", total, g.broadcast_to(counts, total.shape.sizes))


@onnx_op("LpPool", since=2)
def lp_pool(
    g: Graph,
    X: Value,
    *,
    auto_pad: str = "NOTSET",
    ceil_mode: int = 0,
    dilations: tuple[int, ...] | None = None,
    kernel_shape: tuple[int, ...],
    p: int = 2,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    _check_image(X, "LpPool")
    w, beyond = _pool_window(X, kernel_shape, strides, dilations, pads, auto_pad, ceil_mode)
    return g.in_f32(lambda x: _root(g, _slide(g, _powers(g, x, p), w, beyond, "add", 0), p), X)


def _powers(g: Graph, x: Value, p: int) -> Value:
    if p < 1:
        raise ParseError("attribute 'p'", expected="at least 1", got=p)
    size = g.unary("abs", x)
    return size if p == 1 else g.binary("multiply", x, x) if p == 2 else g.binary("power", size, g.like(p, x))


def _root(g: Graph, x: Value, p: int) -> Value:
    return x if p == 1 else g.unary("sqrt", x) if p == 2 else g.binary("power", x, g.like(1 / p, x))


@onnx_op("GlobalAveragePool")
def global_average_pool(g: Graph, X: Value) -> Value:
    return g.in_f32(lambda x: g.mean(x, range(2, x.shape.rank), keep=True), X)


@onnx_op("GlobalMaxPool")
def global_max_pool(g: Graph, X: Value) -> Value:
    return g.max(X, range(2, X.shape.rank), keep=True)


@onnx_op("GlobalLpPool", since=2)
def global_lp_pool(g: Graph, X: Value, *, p: int = 2) -> Value:
    return g.in_f32(lambda x: _root(g, g.sum(_powers(g, x, p), range(2, x.shape.rank), keep=True), p), X)


@onnx_op("MaxUnpool", since=9)
def max_unpool(
    g: Graph,
    X: Value,
    I: Value,  # noqa: E741
    output_shape: Ints | None = None,
    *,
    kernel_shape: tuple[int, ...],
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    _check_image(X, "MaxUnpool")
    n = X.shape.rank - 2
    kernel = per_axis("kernel_shape", kernel_shape, n, 1)
    steps, edges = per_axis("strides", strides, n, 1), per_axis("pads", pads, 2 * n, 0)
    if output_shape is not None and len(output_shape) != n + 2:
        raise ShapeError("MaxUnpool: 'output_shape' has the wrong length", expected=n + 2, got=len(output_shape))
    natural = [(X.shape.sizes[i + 2] - 1) * steps[i] - edges[i] - edges[i + n] + kernel[i] for i in range(n)]
    inner: list[Size] = [*X.shape.sizes[:2], *natural]
    # The indices are places in a tensor of the natural size, whatever size the result has.
    flat = _put_flat(g, X, I, Shape.of(X.shape.element, inner))
    spread = g.reshape(flat, inner)
    if output_shape is None or list(output_shape) == inner:
        return spread
    missing = [int(a) - b if isinstance(b, int) else None for a, b in zip(output_shape, inner, strict=True)]
    if any(each is None or each < 0 for each in missing):
        raise UnsupportedError(
            "MaxUnpool: 'output_shape' smaller than the natural one", expected=inner, got=output_shape
        )
    high = [each for each in missing if each is not None]
    return g.pad(spread, g.scalar(0, X.shape.element), (0,) * X.shape.rank, high)


def _put_flat(g: Graph, values: Value, places: Value, shape: Shape) -> Value:
    count = values.shape.count
    dims = ScatterDims(inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    body = g.scalar_region(shape.element, lambda r, a, b: b)
    g.check_range(places, shape.count, negative=False)
    empty = g.full(0, Shape.of(shape.element, (shape.count,)))
    return g.scatter(empty, g.reshape(places, (count,)), g.reshape(values, (count,)), dims, body)


# ---- normalisations ----


def _normalise(g: Graph, x: Value, axes: Sequence[int], epsilon: float) -> tuple[Value, Value, Value]:
    """(x - mean) / sqrt(variance + epsilon) over axes, the mean, and one over the root."""
    mean = g.mean(x, axes, keep=True)
    centred = g.binary("subtract", x, mean)
    variance = g.mean(g.binary("multiply", centred, centred), axes, keep=True)
    inverse = g.unary("rsqrt", g.plus(variance, epsilon))
    return g.binary("multiply", centred, inverse), mean, inverse


@onnx_op("LayerNormalization", since=17)
def layer_normalization(
    g: Graph,
    X: Value,
    Scale: Value,
    B: Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
) -> tuple[Value, Value, Value]:
    stash = element_type(stash_type, g.location)
    first = axis_of(axis, X.shape.rank)
    normal, mean, inverse = _normalise(g, g.convert(X, stash), range(first, X.shape.rank), epsilon)
    y = g.binary("multiply", g.convert(normal, X.shape.element), Scale)
    y = y if B is None else g.binary("add", y, B)
    return g.keep_shape(X, y, "LayerNormalization"), mean, inverse


@onnx_op("RMSNormalization", since=23)
def rms_normalization(
    g: Graph, X: Value, scale: Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> Value:
    stash = element_type(stash_type, g.location)
    first = axis_of(axis, X.shape.rank)
    x = g.convert(X, stash)
    square = g.mean(g.binary("multiply", x, x), range(first, X.shape.rank), keep=True)
    normal = g.binary("divide", x, g.unary("sqrt", g.plus(square, epsilon)))
    y = g.binary("multiply", g.convert(normal, X.shape.element), g.convert(scale, X.shape.element))
    return g.keep_shape(X, y, "RMSNormalization")


@onnx_op("InstanceNormalization", ranks={"input": "2+", "scale": "1", "B": "1"})
def instance_normalization(
    g: Graph, input: Value, scale: Value, B: Value, *, epsilon: float = 1e-5, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    rank = input.shape.rank

    def normalise(x: Value) -> Value:
        normal, _, _ = _normalise(g, x, range(2, rank), epsilon)
        factor, shift = (g.along(g.convert(each, x.shape.element), rank, 1) for each in (scale, B))
        return g.binary("add", g.binary("multiply", normal, factor), shift)

    return g.keep_shape(input, g.in_f32(normalise, input), "InstanceNormalization")


@onnx_op("GroupNormalization", since=21, ranks={"X": "2+", "scale": "1", "bias": "1"})
def group_normalization(
    g: Graph, X: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int, stash_type: int = 1
) -> Value:
    rank = X.shape.rank
    normal = _normalise_groups(g, X, num_groups, epsilon, stash_type)
    y = g.binary("add", g.binary("multiply", normal, g.along(scale, rank, 1)), g.along(bias, rank, 1))
    return g.keep_shape(X, y, "GroupNormalization")


def _normalise_groups(g: Graph, x: Value, groups: int, epsilon: float, stash_type: int) -> Value:
    batch, channels, *space = x.shape.sizes
    if not isinstance(channels, int) or groups < 1 or channels % groups:
        raise ShapeError("GroupNormalization: attribute 'num_groups'", expected=f"a divisor of {channels}", got=groups)
    wide = g.reshape(g.convert(x, element_type(stash_type, g.location)), (batch, groups, channels // groups, *space))
    normal, _, _ = _normalise(g, wide, range(2, wide.shape.rank), epsilon)
    return g.reshape(g.convert(normal, x.shape.element), x.shape.sizes)


@onnx_op("GroupNormalization", since=18, ranks={"X": "2+", "scale": "1", "bias": "1"})
def group_normalization_18(
    g: Graph, X: Value, scale: Value, bias: Value, *, epsilon: float = 1e-5, num_groups: int
) -> Value:
    """Here scale and bias are one per group."""
    batch, channels, *space = X.shape.sizes
    normal = g.reshape(
        _normalise_groups(g, X, num_groups, epsilon, 1), (batch, num_groups, channels // num_groups, *space)
    )
    rank = normal.shape.rank
    y = g.binary("add", g.binary("multiply", normal, g.along(scale, rank, 1)), g.along(bias, rank, 1))
    return g.reshape(y, X.shape.sizes)


@onnx_op("BatchNormalization", since=14, ranks={"X": "1+"})
def batch_normalization(
    g: Graph,
    X: Value,
    scale: Value,
    B: Value,
    input_mean: Value,
    input_var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    training_mode: int = 0,
) -> tuple[Value, ...]:
    if not training_mode:
        return (_batch_norm(g, X, scale, B, input_mean, input_var, epsilon),)
    rank = X.shape.rank
    if rank < 2:
        raise ShapeError("BatchNormalization: training needs a batch and channels", got=X.shape)
    axes = (0, *range(2, rank))
    wide = _widest(X, input_mean)
    x = g.convert(X, wide)
    mean = g.mean(x, axes)
    centred = g.binary("subtract", x, g.along(mean, rank, 1))
    variance = g.mean(g.binary("multiply", centred, centred), axes)
    running = [
        g.convert(
            g.binary("add", g.times(g.convert(old, wide), momentum), g.times(new, 1 - momentum)), old.shape.element
        )
        for old, new in ((input_mean, mean), (input_var, variance))
    ]
    return _batch_norm(g, X, scale, B, mean, variance, epsilon), *running


def _widest(*values: Value) -> DType:
    """The type to compute in for values of several float types: the widest of them, and at least f32."""
    widest = max((value.shape.element for value in values), key=lambda element: element.bits)
    return widest if widest.bits >= 32 else f32


def _batch_norm(g: Graph, X: Value, scale: Value, B: Value, mean: Value, var: Value, epsilon: float) -> Value:
    rank = X.shape.rank
    axis = 1 if rank > 1 else 0
    wide = _widest(X, scale, mean)
    x, scale, shift, mean, var = (g.convert(each, wide) for each in (X, scale, B, mean, var))
    factor = g.binary("multiply", scale, g.unary("rsqrt", g.plus(var, epsilon)))
    shift = g.binary("subtract", shift, g.binary("multiply", mean, factor))
    scaled = g.binary("multiply", x, g.along(factor, rank, axis))
    y = g.convert(g.binary("add", scaled, g.along(shift, rank, axis)), X.shape.element)
    return g.keep_shape(X, y, "BatchNormalization")


@onnx_op("BatchNormalization", since=1, ranks={"X": "1+"})
def batch_normalization_1(
    g: Graph,
    X: Value,
    scale: Value,
    B: Value,
    mean: Value,
    var: Value,
    *,
    epsilon: float = 1e-5,
    momentum: float = 0.9,
    spatial: int = 1,
    is_test: int = 0,
    consumed_inputs: tuple[int, ...] = (),
) -> Value:
    if not spatial:
        raise UnsupportedError("BatchNormalization: attribute 'spatial' = 0")
    if len([name for name in g.node.output if name]) > 1:
        raise UnsupportedError("BatchNormalization for training before opset 14")
    return _batch_norm(g, X, scale, B, mean, var, epsilon)


@onnx_op("LpNormalization")
def lp_normalization(g: Graph, input: Value, *, axis: int = -1, p: int = 2) -> Value:
    if p not in (1, 2):
        raise ParseError("LpNormalization: attribute 'p'", expected="1 or 2", got=p)
    place = axis_of(axis, input.shape.rank)

    def fn(x: Value) -> Value:
        norm = _root(g, g.sum(_powers(g, x, p), (place,), keep=True), p)
        whole = g.broadcast_to(norm, x.shape.sizes)
        zero = g.like(0, x)
        return g.select(g.compare(whole, zero, "EQ"), zero, g.binary("divide", x, whole))

    return g.in_f32(fn, input)


@onnx_op("MeanVarianceNormalization", since=9)
def mean_variance_normalization(g: Graph, X: Value, *, axes: tuple[int, ...] = (0, 2, 3)) -> Value:
    places = axes_of(axes, X.shape.rank)

    def fn(x: Value) -> Value:
        centred = g.binary("subtract", x, g.mean(x, places, keep=True))
        variance = g.mean(g.binary("multiply", centred, centred), places, keep=True)
        return g.binary("divide", centred, g.plus(g.unary("sqrt", variance), 1e-9))

    return g.in_f32(fn, X)


@onnx_op("LRN")
def lrn(g: Graph, X: Value, *, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int) -> Value:
    return g.in_f32(lambda x: _local_response(g, x, alpha, beta, bias, size), X)


def _local_response(g: Graph, x: Value, alpha: float, beta: float, bias: float, size: int) -> Value:
    rank = x.shape.rank
    element = x.shape.element
    body = g.b.combine("add", element)
    ahead = (size - 1) // 2
    around = [(ahead, size - 1 - ahead) if axis == 1 else (0, 0) for axis in range(rank)]
    one = (1,) * rank
    total: Any = g.b.reduce_window(
        g.binary("multiply", x, x),
        g.scalar(0, element),
        window_dimensions=tuple(size if axis == 1 else 1 for axis in range(rank)),
        window_strides=one,
        base_dilations=one,
        window_dilations=one,
        padding=tuple(around),
        regions=[body],
    )
    scale = g.plus(g.times(total, alpha / size), bias)
    return g.binary("divide", x, g.binary("power", scale, g.like(beta, x)))


# ---- dropout ----


@onnx_op("Dropout", since=7)
def dropout_7(g: Graph, data: Value, *, ratio: float = 0.5) -> tuple[Value, Value]:
    element = i1 if g.opsets.get("", 7) >= 10 else data.shape.element
    return data, g.full(True if element == i1 else 1, data.shape.with_dtype(element))


@onnx_op("Dropout", since=1)
def dropout_1(
    g: Graph, data: Value, *, ratio: float = 0.5, is_test: int = 0, consumed_inputs: tuple[int, ...] = ()
) -> tuple[Value, Value]:
    if not is_test:
        raise UnsupportedError("Dropout in training mode", remedy="export the model for inference")
    return dropout_7(g, data, ratio=ratio)
