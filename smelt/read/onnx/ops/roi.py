"""MaxRoiPool: the greatest element in each cell of a grid over regions of images. Imported by `read.onnx.model`."""

from __future__ import annotations

from smelt.dim import Size
from smelt.dtype import f32, i1, i64
from smelt.errors import ShapeError
from smelt.ir.core import Value
from smelt.read.onnx.emit import lowest
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.registry import onnx_op
from smelt.shape import Shape


@onnx_op("MaxRoiPool")
def max_roi_pool(
    g: Graph, X: Value, rois: Value, *, pooled_shape: tuple[int, ...], spatial_scale: float = 1.0
) -> Value:
    """[regions, channels, *pooled_shape]. A region is (image, left, top, right, bottom); empty cells give 0."""
    if X.shape.rank != 4 or rois.shape.rank != 2 or rois.shape.sizes[1] != 5 or len(pooled_shape) != 2:
        raise ShapeError(
            "MaxRoiPool takes [images, channels, height, width] and [regions, 5]", got=[X.shape, rois.shape]
        )
    if min(pooled_shape) < 1:
        raise ShapeError("MaxRoiPool: attribute 'pooled_shape'", expected="at least 1", got=list(pooled_shape))
    count = rois.shape.sizes[0]
    wide = g.convert(rois, f32)
    image, left, top, right, bottom = (g.reshape(g.slice_axis(wide, 1, i, i + 1), (count,)) for i in range(5))
    x = g.take_checked(X, g.convert(image, i64), 0)  # [regions, channels, height, width]
    rows = _cells(g, top, bottom, X.shape.sizes[2], pooled_shape[0], spatial_scale)
    columns = _cells(g, left, right, X.shape.sizes[3], pooled_shape[1], spatial_scale)
    least = lowest(X.shape.element)
    for axis, cells in ((2, rows), (3, columns)):  # one axis after the other
        sizes = [*x.shape.sizes[:axis], cells.shape.sizes[1], *x.shape.sizes[axis:]]
        inside = g.broadcast_in_dim(cells, sizes, (0, axis, axis + 1))
        dims = [i if i < axis else i + 1 for i in range(4)]
        spread = g.broadcast_in_dim(x, sizes, dims)
        x = g.max(g.select(inside, spread, g.like(least, spread)), (axis + 1,))
    filled = [g.reduce(cells, (2,), "or", False) for cells in (rows, columns)]
    there = g.all_true(Shape.of(i1, x.shape.sizes))
    for axis, cells in zip((2, 3), filled, strict=True):
        there = g.binary("and", there, g.broadcast_in_dim(cells, x.shape.sizes, (0, axis)))
    return g.select(there, x, g.like(0, x))


def _cells(g: Graph, low: Value, high: Value, size: Size, parts: int, scale: float) -> Value:
    """[regions, parts, size]: which places along an axis belong to which part of each region."""
    begin, end = (g.unary("round_nearest_afz", g.times(each, scale)) for each in (low, high))
    extent = g.plus(g.binary("subtract", end, begin), 1.0)
    step = g.binary("divide", g.binary("maximum", extent, g.like(1.0, extent)), g.like(float(parts), extent))
    sizes = (*low.shape.sizes, parts)
    number = g.iota(f32, sizes, 1)
    start, width = (g.broadcast_in_dim(each, sizes, (0,)) for each in (begin, step))
    first = g.binary("add", g.unary("floor", g.binary("multiply", number, width)), start)
    behind = g.binary("add", g.unary("ceil", g.binary("multiply", g.plus(number, 1.0), width)), start)
    whole = (*sizes, size)
    place = g.iota(f32, whole, 2)
    above = g.compare(place, g.broadcast_in_dim(first, whole, (0, 1)), "GE")
    return g.binary("and", above, g.compare(place, g.broadcast_in_dim(behind, whole, (0, 1)), "LT"))
