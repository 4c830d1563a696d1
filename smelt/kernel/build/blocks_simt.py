"""GEMM by block-quantised weights on a GPU: a thread block computes 32 columns of a chunk of rows, over all of k.

Chunks have different sizes for up to 8 rows (decoding), up to 32, and more; if the number of rows is dynamic, all three
kernels are built, and each call selects one. The micro-kernel is `emit/blocks_cuda.py`.
"""

from __future__ import annotations

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import f32
from smelt.ir.core import Op
from smelt.kernel.build.blocks import row_slices
from smelt.kernel.build.gemm import axis_stride, element_place
from smelt.kernel.build.gemm_simt import Tiled, at_most
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Amount, BlockMma, Number, Slice, add, scale
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import BLOCK_COLUMNS, BLOCK_ROWS


@simt_sink("smelt.packed_block_dot")
def packed_block_dot(nest: Nest, op: Op, output: Output) -> None:
    rows = tensor(op.operands[0]).sizes[1]
    few, some, _ = BLOCK_ROWS
    above_few, above_some = (minimum(floordiv(rows, most + 1), 1) for most in (few, some))
    for most, here in zip(BLOCK_ROWS, (1 - above_few, above_few - above_some, above_some), strict=True):
        if here != 0:
            _chunks(nest, op, output, most, here)


def _chunks(nest: Nest, op: Op, output: Output, most: int, here: Size) -> None:
    """Chunks of at most this number of rows. `here`: 1 where there are as many rows, else 0."""
    *left, panels = op.operands
    groups, rows, _ = tensor(left[0]).sizes
    most = min(most, rows) if isinstance(rows, int) and rows else most
    held, _, blocks, size = tensor(panels).sizes
    columns = tensor(op.result).sizes[2]
    wide, per_panel = BLOCK_COLUMNS, BLOCK_COLUMNS // 2
    with nest.loops((groups * here, ceildiv(columns, wide), ceildiv(rows, most))) as (group, number, chunk):
        first, before = nest.let(scale(chunk, most)), nest.let(scale(number, wide))
        used, there = at_most(nest, most, rows, first), at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("tile", f32, most * wide), wide, wide, used, before, there)
        q, scales, totals = (row_slices(nest, op, each, (group, first), used) for each in left)
        panel = nest.let(scale(number, wide // per_panel))
        place = element_place(nest, op, panels, (Number(0) if held == 1 else group, panel, Number(0), Number(0)))
        strides = (Amount(size), Number(1), axis_stride(nest, op, panels, 1))
        records = Slice(place, (Amount(blocks), Amount(size), Number(1)), strides)
        nest.emit(BlockMma(tile.sums, q, scales, totals, records, op.attrs["format"], most))
        tile.store(nest, op, output, f32, lambda row, column: (group, add(first, row), column))
