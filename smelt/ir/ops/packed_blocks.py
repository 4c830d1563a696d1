"""Products by block-quantised matrices in the kernels' layout (`ir.block_layout`); `ir.block_ops` says what they mean.

`smelt.round_blocks` rounds rows to 8 bits: integers i8[group, row, k], their scales f32[group, row, k / 32], and sums
of `group` integers. A format that subtracts `zero` from its codes wants these times -zero, i32; one with minimums wants
them times the scale, f32. `smelt.packed_block_dot` multiplies what it gives by packed columns, and each row of the
result by its `factor`, where rows have one that they were rounded without (`passes.defer_factors`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import ceildiv, floordiv
from smelt.dtype import Array, f32, i8, i32, ui8
from smelt.ir.attributes import INT, STRING
from smelt.ir.block_layout import COLUMNS, Layout, can_pack, unpack
from smelt.ir.blocks import BLOCKS, RUN
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.shape import Shape

MOST, LEAST = np.float32(127), np.float32(2.0**-126)  # largest integer, least scale


def _infer_round(call: Call) -> Sequence[Type]:
    x, group, zero = call.shape(0), call.attrs["group"], call.attrs["zero"]
    call.require(x.rank == 3 and x.dtype == f32, "", "the operand must be f32[group, row, k]", got=x)
    depth = x.sizes[2]
    call.require(isinstance(depth, int) and depth % RUN == 0, "", f"k must be a multiple of {RUN}", got=x)
    call.require(group in (16, 32), "", "groups have 16 or 32 elements", got=group)
    call.require(0 <= zero <= 128, "", "a zero is a byte", got=zero)
    lead = x.sizes[:2]
    total = i32 if zero else f32
    return [
        Shape.of(i8, x.sizes),
        Shape.of(f32, (*lead, floordiv(depth, RUN))),
        Shape.of(total, (*lead, floordiv(depth, group))),
    ]


def _round(frame: Frame, op: Op, x: Array) -> tuple[Array, Array, Array]:
    group, zero = op.attrs["group"], op.attrs["zero"]
    *lead, depth = x.shape
    runs = x.reshape(*lead, depth // RUN, RUN)
    with np.errstate(all="ignore"):
        scale = np.abs(runs).max(-1, initial=0) / MOST
        inverse = np.where(scale < LEAST, np.float32(0), np.float32(1) / scale)
        rounded = np.rint(runs * inverse[..., None])
        q = np.nan_to_num(rounded, nan=0).clip(-128, 127).astype(np.int8)
        totals = q.reshape(*lead, depth // group, group).sum(-1, dtype=np.int32)
        if zero:
            return q.reshape(x.shape), scale, totals * np.int32(-zero)
        return q.reshape(x.shape), scale, np.repeat(scale, RUN // group, -1) * totals.astype(np.float32)


def _infer_dot(call: Call) -> Sequence[Type]:
    check_block_dot(call)
    q, panels, result = call.shape(0), call.shape(3), call.declared_shape()
    if panels.sizes[0] != 1:
        call.same_size(q.sizes[0], panels.sizes[0], "", "both operands have the same groups")
    if len(call.operands) > 4:
        factor = call.shape(4)
        call.require(factor.rank == 2 and factor.dtype == f32, "", "factors must be f32[group, row]", got=factor)
        for size, want in zip(factor.sizes, q.sizes, strict=False):
            call.same_size(size, want, "", "each row has a factor")
    return [Shape.of(f32, (*q.sizes[:2], result.sizes[2]))]


def check_block_dot(call: Call) -> None:
    """Rounded rows, packed columns of a format, and the product."""
    q, scale, totals, panels = (call.shape(i) for i in range(4))
    result = call.declared_shape()
    call.require(call.attrs["format"] in BLOCKS, "", "an unknown format", got=call.attrs["format"])
    call.require(can_pack(BLOCKS[call.attrs["format"]]), "", "a format without records", got=call.attrs["format"])
    layout = Layout.of(call.attrs["format"])
    kinds = (i8, f32, i32 if layout.zero else f32, ui8)
    for shape, kind in zip((q, scale, totals, panels), kinds, strict=True):
        call.require(shape.dtype == kind, "", f"an operand must be of {kind}", got=shape)
    ranks = all(shape.rank == 3 for shape in (q, scale, totals, result)) and panels.rank == 4
    call.require(ranks, "", "rows are [group, row, k], the panels [group, panel, n, record]", got=panels)
    call.require(result.dtype == f32, "", "the result must be f32", got=result)
    call.same_size(panels.sizes[3], layout.record, "", "a record is as long as its format says")
    call.same_size(q.sizes[2], panels.sizes[2] * layout.length, "", "both operands have the same k")
    for shape, per in ((scale, RUN), (totals, layout.group)):
        call.same_size(shape.sizes[2] * per, q.sizes[2], "", f"a number for each {per} elements")
        for size, want in zip(shape.sizes[:2], q.sizes[:2], strict=True):
            call.same_size(size, want, "", "rows have the same integers, scales and sums")
    call.same_size(panels.sizes[1], ceildiv(result.sizes[2], COLUMNS), "", "the panels hold the columns")


def _dot(
    frame: Frame, op: Op, q: Array, scale: Array, totals: Array, panels: Array, factor: Array | None = None
) -> Array:
    made = multiply_blocks(op.attrs["format"], frame.shape(op.result.type)[2], q, scale, totals, panels)
    with np.errstate(all="ignore"):
        return made if factor is None else made * factor[..., None]


def multiply_blocks(format: str, columns: int, q: Array, scale: Array, totals: Array, panels: Array) -> Array:
    """Rounded rows by packed columns, of which there are `columns`."""
    layout = Layout.of(format)
    found = unpack(layout, panels)
    group, (lead, rows, depth) = layout.group, q.shape
    made = np.zeros((lead, rows, columns), np.float32)
    with np.errstate(all="ignore"):
        for at in range(depth // group):
            here = slice(at * group, (at + 1) * group)
            left = q[:, :, here].astype(np.int32)
            integers = np.matmul(left, found.levels[:, :columns, here].transpose(0, 2, 1)).astype(np.float32)
            step = scale[:, :, at * group // RUN, None]
            term = (found.scale[:, None, :columns, at] * step) * integers
            if found.minimum is not None:
                term = term + found.minimum[:, None, :columns, at] * totals[:, :, at, None]
            made = made + term
    return made


ROWS = [
    OpDef("smelt.round_blocks", "x", _infer_round, _round, (Attr("group", INT), Attr("zero", INT))),
    OpDef("smelt.packed_block_dot", "q scale totals panels factor?", _infer_dot, _dot, (Attr("format", STRING),)),
]
