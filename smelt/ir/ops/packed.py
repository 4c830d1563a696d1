"""GEMMs and convolutions on packed operands, which passes emit in place of `dot_general` and `convolution`.

`smelt.relayout` stores a tensor in a `Layout`: the columns of a matrix cut into panels, for one. `smelt.packed_dot`
multiplies by a matrix in a layout, `smelt.packed_conv` convolves feature maps [batch, y, x, channel] by one, with zeros
around them where it has a `padding`;
`smelt.depthwise_conv` is a depthwise convolution. `smelt.round_rows` rounds activations to fp8, with a scale per row.
Element types say what is multiplied: floats, bf16 with sums of f32,
fp8 with sums of f32, f32 by weights that are stored in 16 bits, or ui8 by i8 with exact sums of i32. All have reference
semantics, so programs that hold them can be verified, printed and run by the reference engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv
from smelt.dtype import Array, DType, bf16, dtype, f16, f32, i8, i32, ui8
from smelt.frozen import Frozen
from smelt.ir.attributes import FLOAT32, INTS, PAIRS, STRING
from smelt.ir.core import Attrs, Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.linear import matmul
from smelt.ir.ops.window import window_count
from smelt.layout import Digit, Layout
from smelt.shape import Shape

QUAD, PAIR = 4, 2  # adjacent steps of k in panels of int8 and of bf16
OCTET, SIXTEEN = 8, 16  # the same on a GPU: of bf16, and of int8 or fp8; QUAD: of tf32
FP8 = (dtype("f8E4M3FN"), dtype("f8E5M2"))  # that tensor cores multiply
K = 1  # the axis of a matrix [group, k, column]
PAIRED = 8  # columns of one product before those of another one, where a kernel computes both for what reads them


# ---- layouts ----


def _layout(call: Call, rank: int) -> Layout:
    """The layout that an op names, of a tensor of this rank."""
    text = call.attrs["layout"]
    try:
        found = Layout.parse(text)
    except ValueError as error:
        call.require(False, "", str(error), got=text)
        raise
    call.require(len(found.letters) == rank, "", f"the layout must be of a tensor of rank {rank}", got=text)
    return found


def _infer_relayout(call: Call) -> Sequence[Type]:
    shape = call.shape(0)
    return [Shape.of(shape.dtype, _layout(call, shape.rank).stored_sizes(shape.sizes))]


def _relayout(frame: Frame, op: Op, x: Array) -> Array:
    return Layout.parse(op.attrs["layout"]).store(x)


def contraction_size(op: Op) -> Size:
    """The number of products in each sum of a packed product."""
    left = op.operands[0].shape.sizes[-1]
    if op.name != "smelt.packed_conv":
        return left
    return floordiv(left, op.operands[1].shape.sizes[0]) * prod(taps_of(op.attrs).window)


# ---- products ----


def check_types(call: Call) -> None:
    """One plain float type; bf16, f16 or fp8 with sums of f32; f32 by bf16 or f16; or ui8 by i8 with sums of i32."""
    types = call.shape(0).dtype, call.shape(1).dtype, call.declared_shape().dtype
    alike = len({*types}) == 1 and isinstance(types[0], DType) and types[0].is_float
    eight = types[0] in FP8 and types[1] in FP8 and types[2] == f32
    call.require(
        alike
        or eight
        or types in ((bf16, bf16, f32), (f16, f16, f32), (f32, bf16, f32), (f32, f16, f32), (ui8, i8, i32)),
        "",
        "operands and result must be of one float type; of floats and narrow floats with f32; or ui8, i8 and i32",
        got=", ".join(map(str, types)),
    )


def check_panels(call: Call, groups: Size, depth: Size, columns: Size) -> Layout:
    """The right operand is a matrix [group, k, column] in the layout; one group may stand for all."""
    layout, stored = _layout(call, 3), call.shape(1)
    call.require(layout.axes[:1] == ((Digit(0, 1, 0),),), "", "groups are the first stored axis", got=str(layout))
    call.require(stored.rank == len(layout.axes), "", f"the right operand must be in the layout {layout}", got=stored)
    first = stored.sizes[0]
    if first != 1:
        call.same_size(groups, first, "", "both operands have the same groups")
    for have, want in zip(stored.sizes, layout.stored_sizes((first, depth, columns)), strict=True):
        call.same_size(have, want, "", f"the right operand holds k and the columns in the layout {layout}")
    return layout


def sum_products(rows: Array, matrix: Array, total: DType) -> Array:
    """Sums of products. Doubles hold those of bytes, so they are exact (modulo 2^32)."""
    wide = np.broadcast_to(matrix, (rows.shape[0], *matrix.shape[1:]))
    if total.is_float:
        return matmul(rows, wide, total)
    return (rows.astype(np.float64) @ wide.astype(np.float64)).astype(np.int64).astype(total.numpy)


def _infer_packed_dot(call: Call) -> Sequence[Type]:
    lhs, result = call.shape(0), call.declared_shape()
    check_types(call)
    call.require(lhs.rank == 3, "", "the left operand must be [group, row, k]", got=lhs)
    call.require(result.rank == 3, "", "the result must be [group, row, column]", got=result)
    check_panels(call, lhs.sizes[0], lhs.sizes[2], result.sizes[2])
    return [Shape.of(result.dtype, (*lhs.sizes[:2], result.sizes[2]))]


def _packed_dot(frame: Frame, op: Op, lhs: Array, rhs: Array) -> Array:
    sizes = (rhs.shape[0], lhs.shape[2], frame.shape(op.result.type)[2])
    return sum_products(lhs, Layout.parse(op.attrs["layout"]).restore(rhs, sizes), op.result.shape.element)


# ---- convolutions ----


class Taps(Frozen):
    """Windows over feature maps [batch, y, x, channel], with `padding` zeros before and behind each spatial axis."""

    window: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    padding: tuple[tuple[int, int], ...] = ()

    def out(self, sizes: Sequence[Size]) -> tuple[Size, ...]:
        """The windows that fit, along each axis of an image."""
        each = zip(sizes, self.edges, self.window, self.dilations, self.strides, strict=True)
        return tuple(
            window_count(size, edge, 1, window, dilation, stride) for size, edge, window, dilation, stride in each
        )

    @property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """The padding of every axis."""
        return self.padding or ((0, 0),) * len(self.window)


def taps_of(attrs: Attrs) -> Taps:
    window, strides, dilations = (tuple(attrs[name]) for name in ("window", "strides", "dilations"))
    return Taps(window, strides, dilations, tuple((low, high) for low, high in attrs.get("padding") or ()))


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
    fits = len(taps.edges) == images.rank - 2 and all(min(pair) >= 0 for pair in taps.edges)
    call.require(fits, "", "padding: two numbers of at least 0 for each axis of an image", got=list(taps.padding))
    return taps


def _infer_packed_conv(call: Call) -> Sequence[Type]:
    images, panels, result = call.shape(0), call.shape(1), call.declared_shape()
    check_types(call)
    taps = checked_taps(call, images, call.attrs["window"])
    channels, features = images.sizes[-1], result.sizes[-1]
    call.require(panels.rank > 0, "", "the right operand must be in the layout", got=panels)
    groups = panels.sizes[0]
    for count_of, size in (("channels", channels), ("features", features)):
        call.same_size(groups * floordiv(size, groups), size, "", f"each group has the same number of {count_of}")
    depth = floordiv(channels, groups)
    layout = check_panels(call, groups, depth * prod(taps.window), floordiv(features, groups))
    adjacent = images.dtype in (bf16, f16) and taps.dilations[-1] == 1 and groups == 1  # the taps of a window's row
    whole = not layout.pads(K, (groups, depth * taps.window[-1] if adjacent else depth, features))
    where = "a row of a window" if adjacent else "a group"
    call.require(whole, "", f"the channels of {where} are a multiple of {layout.multiple(K)}", got=images)
    return [Shape.of(result.dtype, (images.sizes[0], *taps.out(images.sizes[1:-1]), features))]


def _packed_conv(frame: Frame, op: Op, images: Array, panels: Array) -> Array:
    batch, *out, features = frame.shape(op.result.type)
    taps, groups = taps_of(op.attrs), panels.shape[0]
    depth = images.shape[-1] // groups * prod(taps.window)
    images = np.pad(images, ((0, 0), *taps.edges, (0, 0)))
    reads = (under(images, taps, tap, out) for tap in np.ndindex(*taps.window))
    parts = [part.reshape(batch, prod(out), groups, images.shape[-1] // groups) for part in reads]
    if not parts:
        return np.zeros((batch, *out, features), op.result.shape.element.numpy)
    # [group, batch, pixel, tap and channel]
    rows = np.moveaxis(np.stack(parts, axis=3), 2, 0).reshape(groups, batch * prod(out), depth)
    matrix = Layout.parse(op.attrs["layout"]).restore(panels, (groups, depth, features // groups))
    found = sum_products(rows, matrix, op.result.shape.element)
    return found.transpose(1, 0, 2).reshape(batch, *out, features)


def _check_floats(call: Call) -> None:
    """The operands and the result are of one plain float type."""
    types = {call.shape(0).dtype, call.shape(1).dtype, call.declared_shape().dtype}
    plain = len(types) == 1 and all(isinstance(each, DType) and each.is_float for each in types)
    call.require(plain, "", "operands and result must be of one float type", got=", ".join(sorted(map(str, types))))


def _infer_depthwise_conv(call: Call) -> Sequence[Type]:
    images, kernel, result = call.shape(0), call.shape(1), call.declared_shape()
    _check_floats(call)
    call.require(kernel.rank == images.rank - 1, "", "the kernel must be [(y,) x, channel]", got=kernel)
    call.same_size(kernel.sizes[-1], images.sizes[-1], "", "a depthwise kernel has one filter per channel")
    window = [size for size in kernel.sizes[:-1] if isinstance(size, int)]
    call.require(len(window) == images.rank - 2, "", "the window must be known", got=kernel)
    taps = checked_taps(call, images, window)
    return [Shape.of(result.dtype, (images.sizes[0], *taps.out(images.sizes[1:-1]), images.sizes[-1]))]


def _depthwise_conv(frame: Frame, op: Op, images: Array, kernel: Array) -> Array:
    _, *out, _ = frame.shape(op.result.type)
    taps = taps_of({**op.attrs, "window": kernel.shape[:-1]})
    total = np.zeros(frame.shape(op.result.type), np.float64)
    for tap in np.ndindex(*taps.window):
        total += under(images, taps, tap, out).astype(np.float64) * kernel[tap]
    return total.astype(op.result.shape.element.numpy)


def under(images: Array, taps: Taps, tap: Sequence[int], out: Sequence[int]) -> Array:
    """The elements that one tap of every window reads."""
    each = zip(tap, taps.dilations, taps.strides, out, strict=True)
    places = (slice(at * hole, at * hole + max((size - 1) * step + 1, 0), step) for at, hole, step, size in each)
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
    out = Taps((3, 3), (1, 1), (1, 1)).out(images.sizes[1:-1])
    return [Shape.of(result.dtype, (images.sizes[0], *out, result.sizes[-1]))]


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


LAYOUT = Attr("layout", STRING)
_TAPS = tuple(Attr(name, INTS) for name in ("window", "strides", "dilations"))
_PADDING = Attr("padding", PAIRS, None)

# ---- fp8 ----


def _infer_round_rows(call: Call) -> Sequence[Type]:
    x, element = call.shape(0), call.attrs["element"]
    call.require(x.rank > 0 and x.dtype == f32, "", "the operand must be rows of f32", got=x)
    call.require(element in {each.name for each in FP8}, "", "rows are rounded to fp8", got=element)
    return [x.with_dtype(dtype(element)), Shape.of(f32, x.sizes[:-1])]


def _round_rows(frame: Frame, op: Op, x: Array) -> tuple[Array, Array]:
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(x).max(-1, initial=0) * np.float32(op.attrs["factor"]), np.float32(op.attrs["least"]))
        rounded = (x * (np.float32(1) / scale)[..., None]).astype(dtype(op.attrs["element"]).numpy)
    return rounded, scale


ROWS = [
    OpDef("smelt.relayout", "x", _infer_relayout, _relayout, (LAYOUT,)),
    OpDef("smelt.packed_dot", "lhs rhs", _infer_packed_dot, _packed_dot, (LAYOUT,)),
    OpDef("smelt.packed_conv", "images panels", _infer_packed_conv, _packed_conv, (LAYOUT, *_TAPS, _PADDING)),
    OpDef("smelt.winograd_conv", "images panels", _infer_winograd_conv, _winograd_conv),
    OpDef("smelt.depthwise_conv", "images kernel", _infer_depthwise_conv, _depthwise_conv, _TAPS[1:]),
    OpDef(
        "smelt.round_rows",
        "x",
        _infer_round_rows,
        _round_rows,
        (Attr("element", STRING), Attr("factor", FLOAT32), Attr("least", FLOAT32)),
    ),
]
