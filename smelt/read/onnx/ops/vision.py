"""Operators that sample images: AffineGrid, GridSample, RoiAlign, DeformConv, NonMaxSuppression, Col2Im."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product as combinations

import numpy as np

from smelt.dim import Size
from smelt.dtype import DType, f32, f64, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.attributes import GatherDims
from smelt.ir.build import RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.emit import ints
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.ops.control import element_at, inner_graph, while_loop
from smelt.read.onnx.ops.nn import per_axis, with_bias
from smelt.read.onnx.ops.order import keep_where, sorted_with
from smelt.read.onnx.ops.reduce import running
from smelt.read.onnx.registry import Ints, Sizes, onnx_op

# ---- sampling ----


def pixels(g: Graph, x: Value, places: Sequence[Value]) -> Value:
    """x [N, C, *space] at places [N, *out] per spatial dimension, as [N, C, *out]; coordinates are in range."""
    space = x.shape.rank - 2
    at = g.concat([g.expand_dims(g.convert(place, i64), (place.shape.rank,)) for place in places], places[0].shape.rank)
    spatial = tuple(range(2, 2 + space))
    dims = GatherDims(
        offset_dims=(1,),
        collapsed_slice_dims=spatial,
        operand_batching_dims=(0,),
        start_indices_batching_dims=(0,),
        start_index_map=spatial,
        index_vector_dim=at.shape.rank - 1,
    )
    return g.gather(x, at, dims, (1, x.shape.sizes[1], *(1,) * space))


def _inside(g: Graph, places: Sequence[Value], sizes: Sequence[Size]) -> tuple[list[Value], Value]:
    """Places moved inside, and which of them were."""
    held, flags = [], None
    for place, size in zip(places, sizes, strict=True):
        element = place.shape.element
        last = g.broadcast_to(g.convert(g.size(size - 1), element), place.shape.sizes)
        zero = g.like(0, place)
        inside = g.binary("and", g.compare(place, zero, "GE"), g.compare(place, last, "LE"))
        flags = inside if flags is None else g.binary("and", flags, inside)
        held.append(g.binary("minimum", g.binary("maximum", place, zero), last))
    assert flags is not None
    return held, flags


def sample_linear(g: Graph, x: Value, places: Sequence[Value]) -> Value:
    """Linear interpolation; coordinates out of range read 0."""
    sizes = x.shape.sizes[2:]
    low = [g.unary("floor", place) for place in places]
    ratio = [g.binary("subtract", place, floor) for place, floor in zip(places, low, strict=True)]
    total: Value | None = None
    for corner in combinations((0, 1), repeat=len(places)):
        at, inside = _inside(g, [g.plus(floor, bit) for floor, bit in zip(low, corner, strict=True)], sizes)
        weight = _corner_weight(g, ratio, corner)
        weight = g.select(inside, weight, g.like(0, weight))
        value = pixels(g, x, at)
        term = g.binary("multiply", value, g.expand_dims(g.convert(weight, x.shape.element), (1,)))
        total = term if total is None else g.binary("add", total, term)
    assert total is not None
    return total


def _corner_weight(g: Graph, ratio: Sequence[Value], corner: Sequence[int]) -> Value:
    weight: Value | None = None
    for part, bit in zip(ratio, corner, strict=True):
        own = part if bit else g.binary("subtract", g.like(1, part), part)
        weight = own if weight is None else g.binary("multiply", weight, own)
    assert weight is not None
    return weight


# ---- AffineGrid and GridSample ----


@onnx_op("AffineGrid", since=20, ranks={"theta": "3"})
def affine_grid(g: Graph, theta: Value, size: Sizes, *, align_corners: int = 0) -> Value:
    """theta [N, k, k + 1] times the homogeneous coordinates of every pixel: [N, *space, k].

    The standard's own function squeezes a batch of 1 away.
    """
    space = len(size) - 2
    if space not in (2, 3) or theta.shape.sizes[1:] != (space, space + 1):
        expected = "theta [N, 2, 3] and four sizes, or theta [N, 3, 4] and five"
        raise ShapeError("AffineGrid: theta and size do not fit", expected=expected, got=f"{theta.shape}, {list(size)}")
    sizes = (size[0], *size[2:], space)
    rank = len(sizes)

    def compute(theta: Value) -> Value:
        element = theta.shape.element

        def column(i: int) -> Value:
            return g.reshape(g.slice_axis(theta, 2, i, i + 1), (theta.shape.sizes[0], *(1,) * space, space))

        total = g.broadcast_to(column(space), sizes)
        for i in range(space):  # x belongs to the last spatial dimension
            place = g.along(_grid_line(g, size[-1 - i], element, bool(align_corners)), rank, rank - 2 - i)
            total = g.binary("add", total, g.binary("multiply", column(i), place))
        return total

    return g.in_f32(compute, theta)


def _grid_line(g: Graph, size: Size, element: DType, align_corners: bool) -> Value:
    """The coordinates of pixels along an axis: -1 to 1 are its corners, or its borders. One aligned pixel is at 0."""
    at = g.times(g.iota(element, (size,), 0), 2)  # -1 to 1 is 2
    extent = g.convert(g.size(size), element)
    if align_corners:
        one = g.scalar(1, element)
        last = g.plus(extent, -1)
        line = g.plus(g.binary("divide", at, g.binary("maximum", last, one)), -1)
        return g.choose(g.compare(extent, one, "EQ"), g.scalar(0, element), line)
    return g.plus(g.binary("divide", g.plus(at, 1), extent), -1)


@onnx_op("GridSample", since=16)
def grid_sample(
    g: Graph, X: Value, grid: Value, *, align_corners: int = 0, mode: str = "linear", padding_mode: str = "zeros"
) -> Value:
    kind = {"bilinear": "linear", "bicubic": "cubic"}.get(mode, mode)
    if kind not in ("linear", "nearest", "cubic"):
        raise ParseError("GridSample: attribute 'mode'", expected="linear, nearest or cubic", got=mode)
    if padding_mode not in ("zeros", "border", "reflection"):
        raise ParseError(
            "GridSample: attribute 'padding_mode'", expected="zeros, border or reflection", got=padding_mode
        )
    space = X.shape.rank - 2
    if space > 3:
        raise UnsupportedError("GridSample of more than three spatial dimensions", got=X.shape)
    if space < 1 or grid.shape.rank != X.shape.rank or grid.shape.sizes[-1] != space:
        raise ShapeError("GridSample: the grid does not fit", expected=X.shape, got=grid.shape)
    sizes = X.shape.sizes[2:]
    wide = f64 if X.shape.element == f64 else f32
    at = []
    for axis in range(space):  # the last coordinate of the grid belongs to the first spatial dimension
        part = g.slice_axis(grid, grid.shape.rank - 1, space - 1 - axis, space - axis)
        flat = g.convert(g.reshape(part, grid.shape.sizes[:-1]), wide)
        size = g.broadcast_to(g.convert(g.size(sizes[axis]), wide), flat.shape.sizes)
        if align_corners:
            at.append(g.times(g.binary("multiply", g.plus(flat, 1), g.plus(size, -1)), 0.5))
        else:
            at.append(g.times(g.plus(g.binary("multiply", g.plus(flat, 1), size), -1), 0.5))
    x = g.convert(X, wide)
    if kind == "nearest":
        rounded = [g.unary("round_nearest_even", place) for place in at]
        return g.convert(_padded_pixels(g, x, rounded, sizes, padding_mode, align_corners), X.shape.element)
    low = [g.unary("floor", place) for place in at]
    ratio = [g.binary("subtract", place, floor) for place, floor in zip(at, low, strict=True)]
    taps = (0, 1) if kind == "linear" else (-1, 0, 1, 2)
    total: Value | None = None
    for corner in combinations(taps, repeat=space):
        weight: Value | None = None
        for part, tap in zip(ratio, corner, strict=True):
            own = _linear(g, part, tap) if kind == "linear" else _cubic(g, part, tap)
            weight = own if weight is None else g.binary("multiply", weight, own)
        assert weight is not None
        places = [g.plus(floor, tap) for floor, tap in zip(low, corner, strict=True)]
        value = _padded_pixels(g, x, places, sizes, padding_mode, align_corners)
        term = g.binary("multiply", value, g.expand_dims(weight, (1,)))
        total = term if total is None else g.binary("add", total, term)
    assert total is not None
    return g.convert(total, X.shape.element)


def _linear(g: Graph, ratio: Value, tap: int) -> Value:
    return ratio if tap else g.binary("subtract", g.like(1, ratio), ratio)


def _cubic(g: Graph, ratio: Value, tap: int) -> Value:
    """Keys' cubic with a = -0.75."""
    a = -0.75
    d = g.unary("abs", g.plus(g.unary("negate", ratio), tap))
    if tap in (0, 1):  # ((a + 2) d - (a + 3)) d² + 1
        return g.plus(g.binary("multiply", g.plus(g.times(d, a + 2), -(a + 3)), g.binary("multiply", d, d)), 1)
    inner = g.plus(g.binary("multiply", g.plus(g.times(d, a), -5 * a), d), 8 * a)
    return g.plus(g.binary("multiply", inner, d), -4 * a)


def _padded_pixels(
    g: Graph, x: Value, places: Sequence[Value], sizes: Sequence[Size], padding_mode: str, align_corners: int
) -> Value:
    if padding_mode == "reflection":
        places = [_reflect(g, p, n, align_corners) for p, n in zip(places, sizes, strict=True)]
    held, inside = _inside(g, places, sizes)
    value = pixels(g, x, held)
    if padding_mode != "zeros":
        return value
    return g.choose(g.expand_dims(inside, (1,)), value, g.scalar(0, x.shape.element))


def _reflect(g: Graph, place: Value, size: Size, align_corners: int) -> Value:
    """Mirrored at the borders: the middles of the outer pixels, or their outer edges. The result is a whole number."""
    element = place.shape.element
    low = 0.0 if align_corners else -0.5
    width = g.convert(g.size(size), element)
    span = g.broadcast_to(g.plus(width, -1) if align_corners else width, place.shape.sizes)
    span = g.binary("maximum", span, g.like(1e-9, span))
    away = g.unary("abs", g.plus(place, -low))
    round_trip = g.binary("remainder", away, g.times(span, 2))
    back = g.binary("subtract", g.times(span, 2), round_trip)
    mirrored = g.plus(g.select(g.compare(round_trip, span, "LE"), round_trip, back), low)
    return g.unary("round_nearest_even", mirrored)


# ---- RoiAlign ----

_MOST_SAMPLES = 1 << 12  # along an axis of a cell


@onnx_op("RoiAlign", since=10, ranks={"X": "4", "rois": "2", "batch_indices": "1"})
def roi_align(
    g: Graph,
    X: Value,
    rois: Value,
    batch_indices: Value,
    *,
    coordinate_transformation_mode: str | None = None,
    mode: str = "avg",
    output_height: int = 1,
    output_width: int = 1,
    sampling_ratio: int = 0,
    spatial_scale: float = 1.0,
) -> Value:
    default = "half_pixel" if g.opsets.get("", 10) >= 16 else "output_half_pixel"
    transform = coordinate_transformation_mode or default
    if transform not in ("half_pixel", "output_half_pixel"):
        raise ParseError("RoiAlign: attribute 'coordinate_transformation_mode'", got=transform)
    if mode not in ("avg", "max"):
        raise ParseError("RoiAlign: attribute 'mode'", expected="avg or max", got=mode)
    element = X.shape.element
    if not element.is_float or rois.shape.element != element:
        raise ShapeError("RoiAlign: rois and X must have one float type", expected=X.shape, got=rois.shape)
    half = transform == "half_pixel"
    sizes = (output_height, output_width)
    if not 0 < output_height * output_width * max(sampling_ratio, 1) ** 2 <= 1 << 24:
        raise UnsupportedError(
            "RoiAlign: an output of this size", expected="1 to 2^24 samples", got=[*sizes, sampling_ratio]
        )
    wide = f32 if element.bits < 32 else element  # a narrow type cannot tell coordinates apart
    X, boxes = g.convert(X, wide), g.convert(rois, wide)
    batch = g.convert(batch_indices, i64)
    g.check_range(batch, X.shape.sizes[0], negative=False)
    lows, lengths = _roi_extents(g, boxes, spatial_scale, half)
    if sampling_ratio > 0:
        found = _roi_samples(g, X, batch, lows, lengths, sizes, sampling_ratio, mode)
    else:
        found = _roi_adaptive_samples(g, X, batch, lows, lengths, sizes, mode)
    return g.convert(found, element)


def _roi_extents(g: Graph, boxes: Value, scale: float, half: bool) -> tuple[list[Value], list[Value]]:
    """Where boxes begin, and how far they reach, in pixels: [boxes] for the vertical axis and for the other."""
    count = boxes.shape.sizes[0]
    x1, y1, x2, y2 = (
        g.plus(g.times(g.reshape(g.slice_axis(boxes, 1, i, i + 1), (count,)), scale), -0.5 if half else 0.0)
        for i in range(4)
    )
    lengths = [g.binary("subtract", high, low) for low, high in ((y1, y2), (x1, x2))]
    if not half:
        lengths = [g.binary("maximum", length, g.like(1, length)) for length in lengths]
    return [y1, x1], lengths


def _roi_samples(
    g: Graph,
    X: Value,
    batch: Value,
    lows: Sequence[Value],
    lengths: Sequence[Value],
    out: tuple[int, int],
    samples: int,
    mode: str,
) -> Value:
    """The same number of samples in every cell."""
    axes = []
    for low, length, n in zip(lows, lengths, out, strict=True):
        steps = (np.arange(n * samples).reshape(n, samples) % samples + 0.5) / samples + np.arange(n)[:, None]
        offsets = g.value(Tensor.constant((steps.reshape(-1) / n).astype(X.shape.element.numpy)))
        spread = g.binary("multiply", g.expand_dims(length, (1,)), g.expand_dims(offsets, (0,)))
        axes.append(g.binary("add", spread, g.expand_dims(low, (1,))))  # [boxes, n * samples]
    found = _roi_corners(g, X, batch, axes, "add" if mode == "avg" else "maximum")
    split = (batch.shape.sizes[0], X.shape.sizes[1], out[0], samples, out[1], samples)
    return (g.mean if mode == "avg" else g.max)(g.reshape(found, split), (3, 5))


def _roi_adaptive_samples(
    g: Graph,
    X: Value,
    batch: Value,
    lows: Sequence[Value],
    lengths: Sequence[Value],
    out: tuple[int, int],
    mode: str,
) -> Value:
    """As many samples in a cell as it has pixels. One iteration takes the next sample of every cell, until the boxes
    with the most samples have all. Boxes without samples give 0."""
    element = X.shape.element
    most = g.scalar(_MOST_SAMPLES, element)
    cells = [g.times(length, 1 / n) for length, n in zip(lengths, out, strict=True)]
    parts = []
    for length, n in zip(lengths, out, strict=True):
        pixels_of_cell = g.unary("ceil", g.binary("divide", length, g.like(n, length)))
        held = g.binary("minimum", pixels_of_cell, g.broadcast_to(most, length.shape.sizes))
        parts.append(g.convert(g.binary("maximum", held, g.like(0, held)), i64))
    number = g.binary("multiply", *parts)  # [boxes]
    total = g.reduce(number, (0,), "maximum", 0)
    shape = (batch.shape.sizes[0], X.shape.sizes[1], *out)
    function, start = ("add", 0.0) if mode == "avg" else ("maximum", -math.inf)

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        inner = inner_graph(g, r, args)
        at, before = args
        turn = inner.broadcast_to(at, number.shape.sizes)
        across = inner.binary("maximum", parts[1], inner.like(1, parts[1]))
        row = inner.binary("divide", turn, across)
        column = inner.binary("subtract", turn, inner.binary("multiply", row, across))
        axes = []
        for low, cell, count, place, n in zip(lows, cells, parts, (row, column), out, strict=True):
            many = inner.binary("maximum", inner.convert(count, element), inner.like(1, cell))
            step = inner.binary("divide", inner.plus(inner.convert(place, element), 0.5), many)
            steps = inner.binary("add", inner.expand_dims(step, (1,)), inner.iota(element, (1, n), 1))
            spread = inner.binary("multiply", inner.expand_dims(cell, (1,)), steps)
            axes.append(inner.binary("add", spread, inner.expand_dims(low, (1,))))  # [boxes, n]
        found = _roi_corners(inner, X, batch, axes, function)
        live = inner.along(inner.compare(turn, number, "LT"), 4, 0)
        after = inner.select(inner.broadcast_to(live, shape), inner.binary(function, before, found), before)
        return [inner.plus(at, 1), after]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], total, comparison_direction="LT")]

    first = g.broadcast_to(g.scalar(start, element), shape)
    found = while_loop(g, [g.scalar(0, i64), first], test, iterate)[1]
    if mode == "avg":
        divisor = g.convert(g.binary("maximum", number, g.like(1, number)), element)
        return g.binary("divide", found, g.along(divisor, 4, 0))
    some = g.along(g.compare(number, g.like(0, number), "GT"), 4, 0)
    return g.choose(some, found, g.scalar(0, element))


def _roi_corners(g: Graph, X: Value, batch: Value, axes: Sequence[Value], function: str) -> Value:
    """[boxes, channels, height, width]: the sum, or the greatest, of the four weighted neighbours of each sample, whose
    coordinates are [boxes, height] and [boxes, width]. Samples more than a pixel outside are 0."""
    sizes = (batch.shape.sizes[0], axes[0].shape.sizes[1], axes[1].shape.sizes[1])
    image = g.broadcast_in_dim(batch, sizes, (0,))
    low, high, ratio, valid = [], [], [], None
    for i, (axis, size) in enumerate(zip(axes, X.shape.sizes[2:], strict=True)):
        place = g.broadcast_in_dim(axis, sizes, (0, i + 1))
        end = g.broadcast_to(g.convert(g.size(size), place.shape.element), sizes)
        last = g.plus(end, -1)
        inside = g.binary("and", g.compare(place, g.like(-1, place), "GE"), g.compare(place, end, "LE"))
        valid = inside if valid is None else g.binary("and", valid, inside)
        held = g.binary("minimum", g.binary("maximum", place, g.like(0, place)), last)
        floor = g.unary("floor", held)
        low.append(floor)
        high.append(g.binary("minimum", g.plus(floor, 1), last))
        ratio.append(g.binary("subtract", held, floor))
    assert valid is not None
    found: Value | None = None
    for corner in combinations((0, 1), repeat=2):
        weight = _corner_weight(g, ratio, corner)
        weight = g.select(valid, weight, g.like(0, weight))
        places = [image, *(high[i] if bit else low[i] for i, bit in enumerate(corner))]
        at = g.concat([g.expand_dims(g.convert(place, i64), (3,)) for place in places], 3)
        dims = GatherDims(
            offset_dims=(1,), collapsed_slice_dims=(0, 2, 3), start_index_map=(0, 2, 3), index_vector_dim=3
        )
        value = g.gather(X, at, dims, (1, X.shape.sizes[1], 1, 1))
        term = g.binary("multiply", value, g.expand_dims(weight, (1,)))
        found = term if found is None else g.binary(function, found, term)
    assert found is not None
    return found


# ---- DeformConv ----


@onnx_op("DeformConv", since=19, ranks={"X": "4", "W": "4", "offset": "4", "B": "1", "mask": "4"})
def deform_conv(
    g: Graph,
    X: Value,
    W: Value,
    offset: Value,
    B: Value | None = None,
    mask: Value | None = None,
    *,
    dilations: tuple[int, ...] | None = None,
    group: int = 1,
    kernel_shape: tuple[int, ...] | None = None,
    offset_group: int = 1,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    kernel = ints(W.shape.sizes[2:])
    if kernel is None:
        raise UnsupportedError("DeformConv: a kernel whose size is not fixed", got=W.shape)
    if kernel_shape is not None and tuple(kernel_shape) != kernel:
        raise ShapeError("DeformConv: attribute 'kernel_shape'", expected=list(kernel), got=list(kernel_shape))
    spread, steps = per_axis("dilations", dilations, 2, 1), per_axis("strides", strides, 2, 1)
    edges = per_axis("pads", pads, 4, 0)
    batch, channels = X.shape.sizes[:2]
    height, width = offset.shape.sizes[2:]
    taps = kernel[0] * kernel[1]
    shifts = g.reshape(offset, (batch, offset_group, taps, 2, height, width))
    per_group = channels // offset_group
    columns = []
    for part in range(offset_group):
        own = g.slice_axis(X, 1, part * per_group, (part + 1) * per_group)
        sizes: tuple[Size, ...] = (batch, taps, height, width)
        places = []
        for axis in range(2):
            base = (np.arange(taps) // kernel[1] if axis == 0 else np.arange(taps) % kernel[1]) * spread[axis] - edges[
                axis
            ]
            first = g.along(g.value(Tensor.constant(base.astype(X.shape.element.numpy))), 4, 1)
            moved = g.times(g.iota(X.shape.element, sizes, 2 + axis), steps[axis])
            shift = g.slice(
                shifts, (0, part, 0, axis, 0, 0), (batch, part + 1, taps, axis + 1, height, width), (1,) * 6
            )
            places.append(g.binary("add", g.binary("add", moved, first), g.reshape(shift, sizes)))
        value = sample_linear(g, own, places)  # [batch, channels, taps, height, width]
        if mask is not None:
            whole = g.reshape(mask, (batch, offset_group, taps, height, width))
            value = g.binary("multiply", value, g.slice_axis(whole, 1, part, part + 1))
        columns.append(value)
    cols = g.concat(columns, 1)
    outputs, inputs = W.shape.sizes[0], W.shape.sizes[1]
    grouped = g.reshape(cols, (batch, group, inputs * taps, height * width))
    weights = g.reshape(W, (group, outputs // group, inputs * taps))
    product = g.dot(weights, grouped, ((2,), (2,)), ((0,), (1,)))  # [group, outputs, batch, space]
    whole = g.reshape(g.transpose(product, (2, 0, 1, 3)), (batch, outputs, height, width))
    return with_bias(g, whole, B)


# ---- NonMaxSuppression ----


@onnx_op("NonMaxSuppression", since=10, ranks={"boxes": "3", "scores": "3"})
def non_max_suppression(
    g: Graph,
    boxes: Value,
    scores: Value,
    max_output_boxes_per_class: Value | None = None,
    iou_threshold: Value | None = None,
    score_threshold: Value | None = None,
    *,
    center_point_box: int = 0,
) -> Value:
    """Boxes by falling score; each one kept removes those behind it that overlap it too much.

    An optional input without elements is as good as none.
    """
    batch, classes, count = scores.shape.sizes
    max_output_boxes_per_class, iou_threshold, score_threshold = (
        None if each is None or each.shape.count == 0 else each
        for each in (max_output_boxes_per_class, iou_threshold, score_threshold)
    )
    if 0 in (batch, classes, count):
        return g.const(np.zeros((0, 3), np.int64), i64)
    ordered, order = sorted_with(g, scores, g.iota(i64, scores.shape.sizes, 2), 2, descending=True)
    corners = _corners(g, boxes, center_point_box)
    in_order = [g.reshape(pixels(g, g.expand_dims(corner, (1,)), [order]), scores.shape.sizes) for corner in corners]
    kept = g.all_true(scores.shape)
    if score_threshold is not None:
        kept = g.compare(ordered, g.broadcast_to(g.reshape(score_threshold, ()), ordered.shape.sizes), "GT")
    limit = g.scalar(0, f32) if iou_threshold is None else g.convert(g.reshape(iou_threshold, ()), f32)
    areas = _area(g, in_order)
    places = g.iota(i64, scores.shape.sizes, 2)
    total = g.size(count)

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        inner = inner_graph(g, r, args)
        at, flags = args
        own = [inner.expand_dims(element_at(inner, corner, at, 2), (2,)) for corner in in_order]
        area = inner.expand_dims(element_at(inner, areas, at, 2), (2,))
        alive = inner.expand_dims(element_at(inner, flags, at, 2), (2,))
        shared = _overlap(inner, own, in_order)
        union = inner.binary("subtract", inner.binary("add", areas, area), shared)
        zero = inner.like(0, union)
        ratio = inner.select(inner.compare(union, zero, "GT"), inner.binary("divide", shared, union), zero)
        much = inner.compare(ratio, inner.broadcast_to(limit, ratio.shape.sizes), "GT")
        behind = inner.compare(places, inner.broadcast_to(at, places.shape.sizes), "GT")
        gone = inner.binary("and", inner.binary("and", much, behind), alive)
        return [inner.plus(at, 1), inner.binary("and", flags, inner.unary("not", gone))]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], total, comparison_direction="LT")]

    kept = while_loop(g, [g.scalar(0, i64), kept], test, iterate)[1]
    most = (
        g.scalar(0, i64)
        if max_output_boxes_per_class is None
        else g.convert(g.reshape(max_output_boxes_per_class, ()), i64)
    )
    number = running(g, g.convert(kept, i64), 2, "add", 0, False, False)
    kept = g.binary("and", kept, g.compare(number, g.broadcast_to(most, number.shape.sizes), "LE"))
    flat = batch * classes * count
    columns = [g.iota(i64, scores.shape.sizes, 0), g.iota(i64, scores.shape.sizes, 1), order]
    found = keep_where(g, g.reshape(kept, (flat,)), [g.reshape(column, (flat,)) for column in columns])
    return g.concat([g.expand_dims(column, (1,)) for column in found], 1)


def _corners(g: Graph, boxes: Value, centred: int) -> list[Value]:
    """Low and high y, low and high x of every box, as [batch, boxes]."""
    batch, count, _ = boxes.shape.sizes
    a, b, c, d = (g.convert(g.reshape(g.slice_axis(boxes, 2, i, i + 1), (batch, count)), f32) for i in range(4))
    if centred:  # x, y, width, height
        half_w, half_h = g.times(c, 0.5), g.times(d, 0.5)
        return [
            g.binary("subtract", b, half_h),
            g.binary("add", b, half_h),
            g.binary("subtract", a, half_w),
            g.binary("add", a, half_w),
        ]
    return [g.binary("minimum", a, c), g.binary("maximum", a, c), g.binary("minimum", b, d), g.binary("maximum", b, d)]


def _area(g: Graph, box: Sequence[Value]) -> Value:
    return g.binary("multiply", g.binary("subtract", box[1], box[0]), g.binary("subtract", box[3], box[2]))


def _overlap(g: Graph, one: Sequence[Value], all_: Sequence[Value]) -> Value:
    sides = []
    for low, high in ((0, 1), (2, 3)):
        begin = g.binary("maximum", one[low], all_[low])
        end = g.binary("minimum", one[high], all_[high])
        side = g.binary("subtract", end, begin)
        sides.append(g.binary("maximum", side, g.like(0, side)))
    return g.binary("multiply", *sides)


# ---- Col2Im ----


@onnx_op("Col2Im", since=18, ranks={"input": "3", "image_shape": "1", "block_shape": "1"})
def col2im(
    g: Graph,
    input: Value,
    image_shape: Ints,
    block_shape: Ints,
    *,
    dilations: tuple[int, ...] | None = None,
    pads: tuple[int, ...] | None = None,
    strides: tuple[int, ...] | None = None,
) -> Value:
    n = len(image_shape)
    spread, steps = per_axis("dilations", dilations, n, 1), per_axis("strides", strides, n, 1)
    edges = per_axis("pads", pads, 2 * n, 0)
    if len(block_shape) != n or min((*block_shape, *image_shape, *spread, *steps), default=1) < 1:
        raise ShapeError(
            "Col2Im: impossible blocks", expected=f"{n} positive sizes, strides and dilations", got=list(block_shape)
        )
    padded = [image_shape[i] + edges[i] + edges[i + n] for i in range(n)]
    counts = [(padded[i] - spread[i] * (block_shape[i] - 1) - 1) // steps[i] + 1 for i in range(n)]
    taps = math.prod(block_shape)
    if any(count < 1 for count in counts) or taps > 4096:
        raise ShapeError("Col2Im: the blocks do not fit the image", expected=list(image_shape), got=list(block_shape))
    batch, channels = input.shape.sizes[0], input.shape.sizes[1] // taps
    columns = g.reshape(input, (batch, channels, taps, *counts))
    zero = g.scalar(0, input.shape.element)
    total: Value | None = None
    for tap, offsets in enumerate(np.ndindex(*block_shape)):
        piece = g.reshape(g.slice_axis(columns, 2, tap, tap + 1), (batch, channels, *counts))
        low = [offsets[i] * spread[i] for i in range(n)]
        high = [padded[i] - low[i] - ((counts[i] - 1) * steps[i] + 1) for i in range(n)]
        placed = g.pad(piece, zero, (0, 0, *low), (0, 0, *high), (0, 0, *(step - 1 for step in steps)))
        total = placed if total is None else g.binary("add", total, placed)
    assert total is not None
    starts = (0, 0, *edges[:n])
    limits = (batch, channels, *(edges[i] + image_shape[i] for i in range(n)))
    return g.slice(total, starts, limits, (1,) * (n + 2))
