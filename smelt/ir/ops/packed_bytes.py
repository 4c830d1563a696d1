"""Products of bytes over packed operands: what an engine writes in place of `smelt.qdot`.

`smelt.pack_quads` cuts the columns of a matrix of i8 into panels in which four steps of a column lie side by side;
`smelt.packed_qdot` multiplies rows of ui8 by them and `smelt.packed_qconv` padded ui8 images with their channels last.
Sums are exact i32 (modulo 2^32), so every order gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from smelt.dim import ceildiv, floordiv
from smelt.dtype import Array, i8, i32, ui8
from smelt.ir.attributes import INT, INTS
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.packed import taps_of, under
from smelt.shape import Shape

QUAD = 4  # steps that lie side by side


def _infer_pack_quads(call: Call) -> Sequence[Type]:
    shape, width = call.shape(0), call.attrs["width"]
    call.require(shape.rank == 3, "", "the operand must be [group, k, columns]", got=shape)
    call.require(shape.dtype == i8, "", "the operand must be of i8", got=shape)
    call.require(width >= 1, "", "the width must be positive", got=width)
    group, depth, columns = shape.sizes
    return [Shape.of(i8, (group, ceildiv(columns, width), ceildiv(depth, QUAD), QUAD * width))]


def _pack_quads(frame: Frame, op: Op, x: Array) -> Array:
    group, depth, columns = x.shape
    width = op.attrs["width"]
    panels, quads = -(-columns // width), -(-depth // QUAD)
    full = np.zeros((group, quads * QUAD, panels * width), x.dtype)
    full[:, :depth, :columns] = x
    parts = full.reshape(group, quads, QUAD, panels, width).transpose(0, 3, 1, 4, 2)
    return np.ascontiguousarray(parts).reshape(group, panels, quads, width * QUAD)


def _matrix(panels: Array) -> Array:
    """What was packed, with the columns and steps that were added: [group, k, column]."""
    group, count, quads, line = panels.shape
    parts = panels.reshape(group, count, quads, line // QUAD, QUAD).transpose(0, 2, 4, 1, 3)
    return parts.reshape(group, quads * QUAD, count * (line // QUAD))


def _summed(rows: Array, matrix: Array) -> Array:
    """Exact sums of products: doubles hold them all."""
    return (rows.astype(np.float64) @ matrix.astype(np.float64)).astype(np.int64).astype(np.int32)


def _check_bytes(call: Call) -> tuple[Shape, Shape, Shape]:
    left, panels, result = call.shape(0), call.shape(1), call.wanted()
    call.require(left.dtype == ui8, "", "the left operand must be of ui8", got=left)
    call.require(panels.dtype == i8, "", "the panels must be of i8", got=panels)
    call.require(result.dtype == i32, "", "the result must be of i32", got=result)
    call.require(panels.rank == 4, "", "the panels must be [group, panel, quad, column and step]", got=panels)
    line = panels.sizes[3]
    call.require(isinstance(line, int) and line % QUAD == 0, "", "a line holds whole quads", got=panels)
    return left, panels, result


def _infer_packed_qdot(call: Call) -> Sequence[Type]:
    lhs, rhs, result = _check_bytes(call)
    call.require(lhs.rank == 3, "", "the left operand must be [group, row, k]", got=lhs)
    call.require(result.rank == 3, "", "the result must be [group, row, column]", got=result)
    call.same_size(ceildiv(lhs.sizes[2], QUAD), rhs.sizes[2], "", "both operands have the same k")
    if rhs.sizes[0] != 1:
        call.same_size(lhs.sizes[0], rhs.sizes[0], "", "both operands have the same groups")
    width = floordiv(rhs.sizes[3], QUAD)
    call.same_size(rhs.sizes[1], ceildiv(result.sizes[2], width), "", "the panels hold the columns")
    return [Shape.of(i32, (*lhs.sizes[:2], result.sizes[2]))]


def _packed_qdot(frame: Frame, op: Op, lhs: Array, panels: Array) -> Array:
    columns = frame.shape(op.result.type)[2]
    return _summed(lhs, _matrix(panels)[:, : lhs.shape[2], :columns])


def _infer_packed_qconv(call: Call) -> Sequence[Type]:
    images, panels, result = _check_bytes(call)
    counts = {len(call.attrs[name]) for name in ("window", "strides", "dilations")}
    call.require(counts == {images.rank - 2}, "", "one number for each axis of an image", got=sorted(counts))
    taps, (groups, count, quads, line) = taps_of(call.attrs), panels.sizes
    channels = images.sizes[-1]
    whole = isinstance(channels, int) and isinstance(groups, int) and groups > 0 and channels % (QUAD * groups) == 0
    call.require(whole, "", "the channels of a group are whole quads", got=images)
    call.same_size(groups * quads * QUAD, channels * prod(taps.window), "", "k covers the taps and a group's channels")
    share = floordiv(result.sizes[-1], groups)
    call.same_size(count, ceildiv(share, floordiv(line, QUAD)), "", "the panels hold the features")
    return [Shape.of(i32, (images.sizes[0], *taps.out(images.sizes[1:-1]), result.sizes[-1]))]


def _packed_qconv(frame: Frame, op: Op, images: Array, panels: Array) -> Array:
    batch, *out, features = frame.shape(op.result.type)
    taps, groups = taps_of(op.attrs), panels.shape[0]
    each = (under(images, taps, tap, out) for tap in np.ndindex(*taps.window))
    parts = [part.reshape(batch, -1, groups, images.shape[-1] // groups) for part in each]
    rows = np.moveaxis(np.stack(parts, axis=3), 2, 0).reshape(groups, -1, panels.shape[2] * QUAD)
    found = _summed(rows, _matrix(panels)[:, :, : features // groups])
    return found.transpose(1, 0, 2).reshape(batch, *out, features)


_TAPS = tuple(Attr(name, INTS) for name in ("window", "strides", "dilations"))

ROWS = [
    OpDef("smelt.pack_quads", "x", _infer_pack_quads, _pack_quads, (Attr("width", INT),)),
    OpDef("smelt.packed_qdot", "lhs rhs", _infer_packed_qdot, _packed_qdot),
    OpDef("smelt.packed_qconv", "images panels", _infer_packed_qconv, _packed_qconv, _TAPS),
]
