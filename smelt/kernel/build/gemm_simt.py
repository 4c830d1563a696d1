"""GEMM on a GPU: a block computes a tile of sums in shared memory by one micro-kernel call, then stores it through the
epilogue.

Panels are those of a processor, and so are the K-blocks of a sum: f32 results have the same bits. A few rows (decoding)
take narrow tiles, so that many blocks read the weights at once. `conv_simt.py` has convolutions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from smelt.dim import Size, ceildiv
from smelt.dtype import DType, bf16, f16, f32, i64
from smelt.ir.core import Op
from smelt.kernel.build.gemm import Columns, panel_slice, required_form, row_slice
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.form import F32_BF16, F32_F16, FEW_BF16, INT8, TENSOR_BF16, Form
from smelt.kernel.loops.grammar import Amount, Expr, Mma, Number, Place, Slice, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, tensor

TILE_ROWS = 128  # of a block
FEW_ROWS = 8  # of a block where there are few rows
THREADS = 256  # of a block; with few rows each takes 4 columns of a K-block
READ_AS = {  # weights of 16 bits are read as they are; bf16 takes tensor cores
    (f32, f16): F32_F16,
    (f32, bf16): F32_BF16,
    (bf16, bf16): TENSOR_BF16,
}


def form_on_gpu(op: Op, *, few: bool = False) -> Form:
    """How the elements of a product are multiplied; `few`: there are few rows."""
    elements = tensor(op.operands[0]).element, tensor(op.operands[1]).element
    if few and elements == (bf16, bf16):
        return FEW_BF16
    return READ_AS.get(elements) or required_form(op)


def few_columns(form: Form, depth: Size, width: int) -> int:
    """The columns of a block with few rows: as few as leave a K-block for every thread."""
    blocks = -(-depth // form.block) if isinstance(depth, int) else THREADS
    return next((each for each in (16, 32) if 4 * THREADS // each <= blocks), 64) if width > 16 else 16


@simt_sink("smelt.packed_dot")
def packed_dot(nest: Nest, op: Op, output: Output) -> None:
    lhs, panels = op.operands
    groups, rows, depth = tensor(lhs).sizes
    few = isinstance(rows, int) and rows <= FEW_ROWS
    form = form_on_gpu(op, few=few)
    few = few and form.k_pack < INT8.k_pack
    shared, count, _, line = tensor(panels).sizes
    assert isinstance(line, int)
    width, columns = line // form.k_pack, tensor(op.result).sizes[2]
    tall, wide = (FEW_ROWS, few_columns(form, depth, width)) if few else (TILE_ROWS, width)
    shares = ceildiv(min(width, columns) if isinstance(columns, int) else width, wide)
    with nest.loops((groups, ceildiv(rows, tall), count, shares)) as (group, part, panel, share):
        first = nest.let(scale(part, tall))
        used = at_most(nest, tall, rows, first)
        before = nest.let(add(scale(panel, width), scale(share, wide)))
        there = at_most(nest, wide, columns, before)
        if width % wide:
            there = nest.let(nest.apply("minimum", there, at_most(nest, wide, width, scale(share, wide)), dtype=i64))
        tile = Tiled(nest.tile("tile", form.total, tall * wide), wide, used, before, there)
        a = row_slice(nest, op, lhs, (group, first, Number(0)), (used, Amount(depth)))
        all_columns = Columns(before, width, tile.columns, form.total)
        b = panel_slice(nest, op, (Number(0) if shared == 1 else group, panel, Number(0)), Amount(depth), all_columns)
        inside = add(b.place.index, scale(share, wide * form.k_pack))
        nest.emit(Mma(tile.sums, a, Slice(Place(b.place.array, inside), b.sizes, b.strides), form))
        tile.store(nest, op, output, form.total, lambda row, column: (group, add(first, row), column))


def at_most(nest: Nest, most: int, size: Size, first: Expr) -> Expr:
    """How many of `most` elements from `first` on there are; less than 1 where there are none."""
    if isinstance(size, int) and (size % most == 0 or (size < most and first == Number(0))):
        return Number(min(size, most))
    left = nest.let(add(size, scale(first, -1)))
    return nest.let(nest.apply("minimum", Number(most), left, dtype=i64))


@dataclass(frozen=True, slots=True)
class Tiled:
    """A block's tile of sums: `rows` and `columns` of it are used, and its first column is column `first`."""

    name: str
    width: int
    rows: Expr
    first: Expr
    columns: Expr

    @property
    def sums(self) -> Slice:
        return Slice(Place(self.name, Number(0)), (self.rows, self.columns), (Number(self.width), Number(1)))

    def store(self, nest: Nest, op: Op, output: Output, element: DType, index: Callable[[Expr, Expr], Index]) -> None:
        """Every element through the epilogue, in one loop on the block's threads."""
        with nest.loop(nest.let(scale(self.rows, self.width)), "lane") as at:
            row, column = (nest.let(each) for each in split(at, self.width))
            with nest.guard(nest.less(column, self.columns)):
                value = nest.read(self.name, at, element)
                output.finish(nest, op, index(row, nest.let(add(self.first, column))), value)
