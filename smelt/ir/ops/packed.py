"""Products over packed operands: what an engine writes in place of `dot_general` and `convolution`.

`smelt.pack` cuts the columns of a matrix into panels; `smelt.packed_dot` multiplies by such panels, `smelt.packed_conv`
convolves padded images with their channels last by them; `smelt.channel_conv` has a window for each channel. All have a
reference semantics like every op, so programs that hold them can be verified, printed and run by the reference.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv
from smelt.dtype import Array, DType
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


def _check_floats(call: Call) -> None:
    """The operands and the result of a product are of one plain float type."""
    types = {call.shape(0).dtype, call.shape(1).dtype, call.declared_shape().dtype}
    plain = len(types) == 1 and all(isinstance(each, DType) and each.is_float for each in types)
    call.require(plain, "", "operands and result must be of one float type", got=", ".join(sorted(map(str, types))))


def _infer_packed_dot(call: Call) -> Sequence[Type]:
    lhs, rhs, result = call.shape(0), call.shape(1), call.declared_shape()
    _check_floats(call)
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


# ---- convolutions ----


@dataclass(frozen=True, slots=True)
class Taps:
    """Windows over padded feature maps [batch, y, x, channel]."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]

    def out(self, sizes: Sequence[Size]) -> tuple[Size, ...]:
        """The windows that fit, along each axis of an image."""
        each = zip(sizes, self.window, self.dilations, self.strides, strict=True)
        return tuple(window_count(size, (0, 0), 1, window, dilation, stride) for size, window, dilation, stride in each)


def taps_of(attrs: Attrs) -> Taps:
    return Taps(*(tuple(attrs[name]) for name in ("window", "strides", "dilations")))


def checked_taps(call: Call, images: Shape, window: Sequence[int]) -> Taps:
    """The taps of an op on images [batch, (y,) x, channel], one number for each axis of an image."""
    call.require(images.rank >= 3, "", "images must be [batch, (y,) x, channel]", got=images)
    call.require(
        call.declared_shape().rank == images.rank,
        "",
        "the result has the axes of the images",
        got=call.declared_shape(),
    )
    taps = taps_of({**call.attrs, "window": window})
    for name, least in (("window", 0), ("strides", 1), ("dilations", 1)):
        numbers = getattr(taps, name)
        fits = len(numbers) == images.rank - 2 and all(number >= least for number in numbers)
        call.require(fits, "", f"{name}: a number of at least {least} for each axis of an image", got=list(numbers))
    return taps


def _infer_packed_conv(call: Call) -> Sequence[Type]:
    images, panels, result = call.shape(0), call.shape(1), call.declared_shape()
    _check_floats(call)
    call.require(panels.rank == 4, "", "the right operand must be [group, panel, k, column]", got=panels)
    taps, (groups, count, depth, width) = checked_taps(call, images, call.attrs["window"]), panels.sizes
    call.same_size(groups * depth, images.sizes[-1] * prod(taps.window), "", "k covers the taps and a group's channels")
    features = result.sizes[-1]
    for count_of, size in (("channels", images.sizes[-1]), ("features", features)):
        call.same_size(groups * floordiv(size, groups), size, "", f"each group has the same number of {count_of}")
    call.same_size(
        groups * count, groups * ceildiv(floordiv(features, groups), width), "", "the panels hold the features"
    )
    return [Shape.of(result.dtype, (images.sizes[0], *taps.out(images.sizes[1:-1]), features))]


def _packed_conv(frame: Frame, op: Op, images: Array, panels: Array) -> Array:
    batch, *out, features = frame.shape(op.result.type)
    taps, (groups, count, depth, width) = taps_of(op.attrs), panels.shape
    reads = (under(images, taps, tap, out) for tap in np.ndindex(*taps.window))
    parts = [part.reshape(batch, -1, groups, images.shape[-1] // groups) for part in reads]
    # [group, batch, pixel, tap and channel]
    rows = np.moveaxis(np.stack(parts, axis=3), 2, 0).reshape(groups, -1, depth)
    share = features // groups
    matrix = panels.transpose(0, 2, 1, 3).reshape(groups, depth, count * width)[:, :, :share]
    found = matmul(rows, matrix, op.result.shape.element)
    return found.transpose(1, 0, 2).reshape(batch, *out, features)


def _infer_channel_conv(call: Call) -> Sequence[Type]:
    images, kernel, result = call.shape(0), call.shape(1), call.declared_shape()
    _check_floats(call)
    call.require(kernel.rank == images.rank - 1, "", "the kernel must be [(y,) x, channel]", got=kernel)
    call.same_size(kernel.sizes[-1], images.sizes[-1], "", "a depthwise kernel has one filter per channel")
    window = [size for size in kernel.sizes[:-1] if isinstance(size, int)]
    call.require(len(window) == images.rank - 2, "", "the window must be known", got=kernel)
    taps = checked_taps(call, images, window)
    return [Shape.of(result.dtype, (images.sizes[0], *taps.out(images.sizes[1:-1]), images.sizes[-1]))]


def _channel_conv(frame: Frame, op: Op, images: Array, kernel: Array) -> Array:
    _, *out, _ = frame.shape(op.result.type)
    taps = taps_of({**op.attrs, "window": kernel.shape[:-1]})
    total = np.zeros(frame.shape(op.result.type), np.float64)
    for tap in np.ndindex(*taps.window):
        total += under(images, taps, tap, out).astype(np.float64) * kernel[tap]
    return total.astype(op.result.shape.element.numpy)


def under(images: Array, taps: Taps, tap: Sequence[int], out: Sequence[int]) -> Array:
    """The elements that one tap of every window reads."""
    each = zip(tap, taps.dilations, taps.strides, out, strict=True)
    places = (slice(at * hole, at * hole + (size - 1) * step + 1, step) for at, hole, step, size in each)
    return images[(slice(None), *places)]


# ---- Winograd ----

# F(2 x 2, 3 x 3): pixels = A' ((G w G') * (B' d B)) A for patches d of 4 x 4 pixels.
WINOGRAD_B = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]], np.float64)
WINOGRAD_G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float64)
WINOGRAD_A = np.array([[1, 1, 1, 0], [0, 1, -1, -1]], np.float64)


def _infer_winograd_conv(call: Call) -> Sequence[Type]:
    images, panels, result = call.shape(0), call.shape(1), call.declared_shape()
    _check_floats(call)
    call.require(result.rank == 4, "", "the result must be [batch, y, x, feature]", got=result)
    call.require(images.rank == 4, "", "the images must be [batch, y, x, channel]", got=images)
    call.require(panels.rank == 4 and panels.sizes[1] == 16, "", "panels must be of 16 packed matrices", got=panels)
    call.same_size(panels.sizes[2], images.sizes[3], "", "one row for each channel")
    call.same_size(panels.sizes[0], ceildiv(result.sizes[-1], panels.sizes[3]), "", "the panels hold the features")
    batch, high, wide, _ = images.sizes
    return [Shape.of(result.dtype, (batch, high - 2, wide - 2, result.sizes[-1]))]


def _winograd_conv(frame: Frame, op: Op, images: Array, panels: Array) -> Array:
    batch, high, wide, features = frame.shape(op.result.type)
    count, _, channels, width = panels.shape
    weights = panels.transpose(1, 2, 0, 3).reshape(4, 4, channels, count * width)[..., :features].astype(np.float64)
    down, across = -(-high // 2), -(-wide // 2)
    room = np.zeros((batch, 2 * down + 2, 2 * across + 2, channels))
    room[:, : high + 2, : wide + 2] = images
    result = np.zeros((batch, 2 * down, 2 * across, features))
    for y, x in np.ndindex(down, across):
        patch = room[:, 2 * y : 2 * y + 4, 2 * x : 2 * x + 4]
        forms = np.einsum("ai,bj,nijc->nabc", WINOGRAD_B, WINOGRAD_B, patch)
        sums = np.einsum("nabc,abcf->nabf", forms, weights)
        result[:, 2 * y : 2 * y + 2, 2 * x : 2 * x + 2] = np.einsum("ia,jb,nabf->nijf", WINOGRAD_A, WINOGRAD_A, sums)
    return result[:, :high, :wide].astype(op.result.shape.element.numpy)


_TAPS = tuple(Attr(name, INTS) for name in ("window", "strides", "dilations"))

ROWS = [
    OpDef("smelt.pack", "x", _infer_pack, _pack, (Attr("width", INT),)),
    OpDef("smelt.packed_dot", "lhs rhs", _infer_packed_dot, _packed_dot),
    OpDef("smelt.packed_conv", "images panels", _infer_packed_conv, _packed_conv, _TAPS),
    OpDef("smelt.winograd_conv", "images panels", _infer_winograd_conv, _winograd_conv),
    OpDef("smelt.channel_conv", "images kernel", _infer_channel_conv, _channel_conv, _TAPS[1:]),
]
