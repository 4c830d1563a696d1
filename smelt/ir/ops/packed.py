"""Products over packed operands: what an engine writes in place of `dot_general` and `convolution`.

`smelt.pack` cuts the columns of a matrix into panels; `smelt.packed_dot` multiplies by such panels. `smelt.planes` pads
images and parts them by stride, so that every tap of a window reads a run of neighbours; `smelt.plane_dot` convolves
them. All have a meaning like every op, so programs that hold them can be verified, printed and run by the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, evaluate, maximum, product
from smelt.dtype import Array
from smelt.ir.attributes import INT, INTS
from smelt.ir.core import Attrs, Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.linear import matmul
from smelt.ir.ops.window import window_count
from smelt.shape import Shape


def _infer_pack(call: Call) -> Sequence[Type]:
    shape, width = call.shape(0), call.attrs["width"]
    call.require(shape.rank == 3, "", "the operand must be [group, k, columns]", got=shape)
    call.require(width >= 1, "", "the width must be positive", got=width)
    group, depth, columns = shape.sizes
    return [Shape.of(shape.dtype, (group, ceildiv(columns, width), depth, width))]


def _pack(frame: Frame, op: Op, x: Array) -> Array:
    group, depth, columns = x.shape
    width = op.attrs["width"]
    panels = -(-columns // width)
    full = np.zeros((group, depth, panels * width), x.dtype)
    full[:, :, :columns] = x
    return np.ascontiguousarray(full.reshape(group, depth, panels, width).transpose(0, 2, 1, 3))


def _infer_packed_dot(call: Call) -> Sequence[Type]:
    lhs, rhs, result = call.shape(0), call.shape(1), call.wanted()
    call.require(lhs.rank == 3, "", "the left operand must be [group, row, k]", got=lhs)
    call.require(rhs.rank == 4, "", "the right operand must be [group, panel, k, column]", got=rhs)
    call.require(result.rank == 3, "", "the result must be [group, row, column]", got=result)
    call.same_size(lhs.sizes[2], rhs.sizes[2], "", "both operands have the same k")
    if rhs.sizes[0] != 1:
        call.same_size(lhs.sizes[0], rhs.sizes[0], "", "both operands have the same groups")
    call.same_size(rhs.sizes[1], ceildiv(result.sizes[2], rhs.sizes[3]), "", "the panels hold the columns")
    return [Shape.of(result.dtype, (*lhs.sizes[:2], result.sizes[2]))]


def _packed_dot(frame: Frame, op: Op, lhs: Array, rhs: Array) -> Array:
    group, panels, depth, width = rhs.shape
    sizes = frame.shape(op.result.type)
    right = rhs.transpose(0, 2, 1, 3).reshape(group, depth, panels * width)[:, :, : sizes[2]]
    wide = np.broadcast_to(right, (lhs.shape[0], *right.shape[1:]))
    return matmul(lhs, wide, op.result.shape.element)


# ---- planes ----


@dataclass(frozen=True, slots=True)
class Taps:
    """How windows lie on images [batch, channel, y, x]: `planes` holds one plane per (y, x) remainder of the stride.

    Pixel (y, x) of the result stands at `y * width + x` of a plane; the tap (i, j) of the window is `offset(i, j)` on.
    """

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    out: tuple[Size, ...]
    least: int  # pixels that a plane offers at least, whatever the image

    @property
    def reach(self) -> tuple[int, ...]:
        """How far the last tap reaches, in pixels of a plane."""
        each = zip(self.window, self.dilations, self.strides, strict=True)
        return tuple((size - 1) * dilation // stride for size, dilation, stride in each)

    @property
    def width(self) -> Size:
        return self.out[-1] + self.reach[-1]

    @property
    def pixels(self) -> Size:
        """Places that are computed: the result's, and those between the ends of its rows."""
        rows: Size = product(self.out[:-1])
        return maximum(rows * self.width, self.least)

    @property
    def length(self) -> Size:
        """Elements of a plane."""
        rows = self.reach[0] if len(self.reach) == 2 else 0
        return self.pixels + rows * self.width + self.reach[-1]

    @property
    def count(self) -> int:
        return prod(self.strides)

    def place(self, tap: Sequence[int]) -> tuple[int, Size]:
        """The plane of a tap, and how far on in it the tap reads."""
        plane = 0
        offset: Size = 0
        for at, dilation, stride in zip(tap, self.dilations, self.strides, strict=True):
            plane = plane * stride + at * dilation % stride
            offset = offset * self.width + at * dilation // stride
        return plane, offset


def taps_of(attrs: Attrs, out: Sequence[Size]) -> Taps:
    window, strides, dilations = (tuple(attrs[name]) for name in ("window", "strides", "dilations"))
    return Taps(window, strides, dilations, tuple(out), attrs["least"])


def planes_out(attrs: Attrs, sizes: Sequence[Size]) -> tuple[Size, ...]:
    names = ("low", "high", "window", "dilations", "strides")
    each = zip(sizes, *(attrs[name] for name in names), strict=True)
    return tuple(
        window_count(size, (low, high), 1, window, dilation, stride)
        for size, low, high, window, dilation, stride in each
    )


def _infer_planes(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    call.require(shape.rank in (3, 4), "", "the operand must be [batch, channel, (y,) x]", got=shape)
    counts = {len(call.attrs[name]) for name in ("window", "strides", "dilations", "low", "high")}
    call.require(counts == {shape.rank - 2}, "", "one number for each axis of an image", got=sorted(counts))
    taps = taps_of(call.attrs, planes_out(call.attrs, shape.sizes[2:]))
    return [Shape.of(shape.dtype, (*shape.sizes[:2], taps.count, taps.length))]


def _planes(frame: Frame, op: Op, x: Array) -> Array:
    taps = taps_of(op.attrs, planes_out(op.attrs, x.shape[2:]))
    width, length = evaluate(taps.width, {}), evaluate(taps.length, {})
    places = np.arange(length)
    pixels = [places] if x.ndim == 3 else [places // width, places % width] if width else [places] * 2
    result = np.zeros((*x.shape[:2], taps.count, len(places)), x.dtype)
    for plane in range(taps.count):
        inside = np.ones(len(places), bool)
        index = []
        parts = np.unravel_index(plane, taps.strides)
        for at, part, stride, low, size in zip(pixels, parts, taps.strides, op.attrs["low"], x.shape[2:], strict=True):
            place = at * stride + part - low
            inside &= (place >= 0) & (place < size)
            index.append(place)
        result[:, :, plane, inside] = x[(..., *(place[inside] for place in index))]
    return result


def _infer_plane_dot(call: Call) -> Sequence[Type]:
    weights, planes, result = call.shape(0), call.shape(1), call.wanted()
    call.require(weights.rank == 3, "", "the weights must be [group, feature, k]", got=weights)
    call.require(planes.rank == 4, "", "the planes must be [batch, channel, plane, place]", got=planes)
    call.require(result.rank in (3, 4), "", "the result must be [batch, feature, (y,) x]", got=result)
    counts = {len(call.attrs[name]) for name in ("window", "strides", "dilations")}
    call.require(counts == {result.rank - 2}, "", "one number for each axis of an image", got=sorted(counts))
    taps = taps_of(call.attrs, result.sizes[2:])
    call.same_size(planes.sizes[2], taps.count, "", "one plane for each remainder of the strides")
    call.same_size(planes.sizes[3], taps.length, "", "a plane is as long as the taps reach")
    call.same_size(weights.sizes[0] * weights.sizes[2], planes.sizes[1] * prod(taps.window), "", "k covers the taps")
    features = weights.sizes[0] * weights.sizes[1]
    return [Shape.of(result.dtype, (planes.sizes[0], features, *result.sizes[2:]))]


def _plane_dot(frame: Frame, op: Op, weights: Array, planes: Array) -> Array:
    shape = frame.shape(op.result.type)
    taps = taps_of(op.attrs, shape[2:])
    groups, _, depth = weights.shape
    width = evaluate(taps.width, {})
    rows = np.arange(shape[2])[:, None] * width if len(shape) == 4 else np.zeros((1, 1), np.int64)
    pixels: Array = (rows + np.arange(shape[-1])).reshape(-1)
    parts = []
    for tap in np.ndindex(*taps.window):
        plane, offset = taps.place(tap)
        parts.append(planes[:, :, plane, pixels + evaluate(offset, {})])
    columns = np.stack(parts, axis=2).reshape(planes.shape[0], groups, depth, len(pixels))
    element = op.result.shape.element
    images = [matmul(weights, image, element).reshape(shape[1], len(pixels)) for image in columns]
    return np.stack(images).reshape(shape) if images else np.zeros(shape, element.numpy)


_TAPS = (*(Attr(name, INTS) for name in ("window", "strides", "dilations")), Attr("least", INT))

ROWS = [
    OpDef("smelt.pack", "x", _infer_pack, _pack, (Attr("width", INT),)),
    OpDef("smelt.packed_dot", "lhs rhs", _infer_packed_dot, _packed_dot),
    OpDef("smelt.planes", "x", _infer_planes, _planes, (*_TAPS, Attr("low", INTS), Attr("high", INTS))),
    OpDef("smelt.plane_dot", "weights planes", _infer_plane_dot, _plane_dot, _TAPS),
]
