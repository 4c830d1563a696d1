"""Products over packed operands of which several steps are a word of 32 bits: bytes, and bf16.

`smelt.pack_quads` cuts the columns of a matrix of i8 into panels in which four steps of a column are adjacent;
`smelt.packed_qdot` multiplies rows of ui8 by them and `smelt.packed_qconv` padded ui8 images with their channels last.
Sums are exact i32 (modulo 2^32), so every order gives the same bits. `smelt.pack_pairs`, `smelt.packed_pdot` and
`smelt.packed_pconv` are the same with two steps of bf16 and sums of f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.dim import ceildiv, floordiv
from smelt.dtype import Array, DType, bf16, f32, i8, i32, ui8
from smelt.ir.attributes import INT, INTS
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.linear import matmul
from smelt.ir.ops.packed import checked_taps, taps_of, under
from smelt.shape import Shape

QUAD, PAIR = 4, 2  # adjacent steps of K


@dataclass(frozen=True, slots=True)
class _Words:
    """One form: how many steps are a word, what is multiplied by what, and what sums are."""

    steps: int
    left: DType
    right: DType
    total: DType

    # -- packing --

    def infer_pack(self, call: Call) -> Sequence[Type]:
        shape, width = call.shape(0), call.attrs["width"]
        call.require(shape.rank == 3, "", "the operand must be [group, k, columns]", got=shape)
        call.require(shape.dtype == self.right, "", f"the operand must be of {self.right}", got=shape)
        call.require(width >= 1, "", "the width must be positive", got=width)
        group, depth, columns = shape.sizes
        return [Shape.of(self.right, (group, ceildiv(columns, width), ceildiv(depth, self.steps), self.steps * width))]

    def pack(self, frame: Frame, op: Op, x: Array) -> Array:
        group, depth, columns = x.shape
        width, steps = op.attrs["width"], self.steps
        panels, words = -(-columns // width), -(-depth // steps)
        full = np.zeros((group, words * steps, panels * width), x.dtype)
        full[:, :depth, :columns] = x
        parts = full.reshape(group, words, steps, panels, width).transpose(0, 3, 1, 4, 2)
        return np.ascontiguousarray(parts).reshape(group, panels, words, width * steps)

    def matrix(self, panels: Array) -> Array:
        """What was packed, with the columns and steps that were added: [group, k, column]."""
        group, count, words, line = panels.shape
        parts = panels.reshape(group, count, words, line // self.steps, self.steps).transpose(0, 2, 4, 1, 3)
        return parts.reshape(group, words * self.steps, count * (line // self.steps))

    def sum_products(self, rows: Array, matrix: Array) -> Array:
        """Sums of products; those of bytes are exact, for doubles hold them all."""
        if self.total == f32:
            return matmul(rows, np.broadcast_to(matrix, (rows.shape[0], *matrix.shape[1:])), f32)
        return (rows.astype(np.float64) @ matrix.astype(np.float64)).astype(np.int64).astype(np.int32)

    def check(self, call: Call) -> tuple[Shape, Shape, Shape]:
        left, panels, result = call.shape(0), call.shape(1), call.declared_shape()
        call.require(left.dtype == self.left, "", f"the left operand must be of {self.left}", got=left)
        call.require(panels.dtype == self.right, "", f"the panels must be of {self.right}", got=panels)
        call.require(result.dtype == self.total, "", f"the result must be of {self.total}", got=result)
        call.require(panels.rank == 4, "", "the panels must be [group, panel, word, column and step]", got=panels)
        line = panels.sizes[3]
        call.require(isinstance(line, int) and line % self.steps == 0, "", "a line holds whole words", got=panels)
        return left, panels, result

    # -- matrices --

    def infer_dot(self, call: Call) -> Sequence[Type]:
        lhs, rhs, result = self.check(call)
        call.require(lhs.rank == 3, "", "the left operand must be [group, row, k]", got=lhs)
        call.require(result.rank == 3, "", "the result must be [group, row, column]", got=result)
        call.same_size(ceildiv(lhs.sizes[2], self.steps), rhs.sizes[2], "", "both operands have the same k")
        if rhs.sizes[0] != 1:
            call.same_size(lhs.sizes[0], rhs.sizes[0], "", "both operands have the same groups")
        width = floordiv(rhs.sizes[3], self.steps)
        call.same_size(rhs.sizes[1], ceildiv(result.sizes[2], width), "", "the panels hold the columns")
        return [Shape.of(self.total, (*lhs.sizes[:2], result.sizes[2]))]

    def dot(self, frame: Frame, op: Op, lhs: Array, panels: Array) -> Array:
        columns = frame.shape(op.result.type)[2]
        return self.sum_products(lhs, self.matrix(panels)[:, : lhs.shape[2], :columns])

    # -- images --

    def infer_conv(self, call: Call) -> Sequence[Type]:
        images, panels, result = self.check(call)
        taps, (groups, count, words, line) = checked_taps(call, images, call.attrs["window"]), panels.sizes
        channels, steps = images.sizes[-1], self.steps
        known = isinstance(channels, int) and isinstance(groups, int) and groups > 0
        whole = known and channels % (steps * groups) == 0
        call.require(whole, "", "the channels of a group are whole words", got=images)
        depth = channels * prod(taps.window)
        call.same_size(groups * words * steps, depth, "", "k covers the taps and a group's channels")
        share = floordiv(result.sizes[-1], groups)
        call.same_size(count, ceildiv(share, floordiv(line, steps)), "", "the panels hold the features")
        return [Shape.of(self.total, (images.sizes[0], *taps.out(images.sizes[1:-1]), result.sizes[-1]))]

    def conv(self, frame: Frame, op: Op, images: Array, panels: Array) -> Array:
        batch, *out, features = frame.shape(op.result.type)
        taps, groups = taps_of(op.attrs), panels.shape[0]
        each = (under(images, taps, tap, out) for tap in np.ndindex(*taps.window))
        parts = [part.reshape(batch, -1, groups, images.shape[-1] // groups) for part in each]
        rows = np.moveaxis(np.stack(parts, axis=3), 2, 0).reshape(groups, -1, panels.shape[2] * self.steps)
        found = self.sum_products(rows, self.matrix(panels)[:, :, : features // groups])
        return found.transpose(1, 0, 2).reshape(batch, *out, features)

    def rows(self, pack: str, dot: str, conv: str) -> list[OpDef]:
        taps = tuple(Attr(name, INTS) for name in ("window", "strides", "dilations"))
        return [
            OpDef(f"smelt.{pack}", "x", self.infer_pack, self.pack, (Attr("width", INT),)),
            OpDef(f"smelt.{dot}", "lhs rhs", self.infer_dot, self.dot),
            OpDef(f"smelt.{conv}", "images panels", self.infer_conv, self.conv, taps),
        ]


ROWS = [
    *_Words(QUAD, ui8, i8, i32).rows("pack_quads", "packed_qdot", "packed_qconv"),
    *_Words(PAIR, bf16, bf16, f32).rows("pack_pairs", "packed_pdot", "packed_pconv"),
]
