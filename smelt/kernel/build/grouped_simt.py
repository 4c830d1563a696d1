"""Grouped GEMM on a GPU (mixtures of experts): a thread block multiplies some rows of one group by a few columns.

There is a block for every tile of rows that groups could need. Each finds its group in the sizes, which launches in
front compute; one that no group needs multiplies nothing. Rows behind the last group are a group without products.
"""

from __future__ import annotations

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import bf16, f32, i1, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.kernel.build.blocks import row_slices
from smelt.kernel.build.blocks_simt import SHARES
from smelt.kernel.build.gemm import Columns, axis_stride, element_place, panel_slice, row_slice
from smelt.kernel.build.gemm_simt import Tiled, at_most
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.form import FEW_BF16, FEW_F32_BF16
from smelt.kernel.loops.grammar import (
    Amount,
    BlockMma,
    Expr,
    Mma,
    Number,
    Place,
    Quotient,
    Set,
    Slice,
    add,
    scale,
    split,
)
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import BLOCK_COLUMNS, BLOCK_ROWS, FEW_ROWS

FEW = 64  # rows of all groups, of which a group has few
WIDE = 32  # columns of a block


@simt_sink("smelt.grouped_dot")
def grouped_dot(nest: Nest, op: Op, output: Output) -> None:
    lhs, panels, sizes = op.operands
    form = FEW_BF16 if tensor(lhs).element == bf16 else FEW_F32_BF16
    (_, rows, depth), line = tensor(lhs).sizes, tensor(panels).sizes[3]
    assert isinstance(line, int)
    columns, width = tensor(op.result).sizes[2], line // form.k_pack
    wide = WIDE if width % WIDE == 0 else 16
    with nest.loops((most_tiles(sizes, rows, FEW_ROWS), ceildiv(columns, wide))) as (tile_number, number):
        part = GroupPart.of(nest, sizes, rows, FEW_ROWS, depth, tile_number)
        panel, share = (nest.let(each) for each in split(number, width // wide))
        before = nest.let(scale(number, wide))
        there = at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("few", f32, FEW_ROWS * wide), wide, wide, part.rows, before, there)
        a = row_slice(nest, op, lhs, (Number(0), part.first, Number(0)), (part.rows, part.depth))
        b = panel_slice(nest, op, (part.group, panel, Number(0)), part.depth, Columns(before, width, there, f32))
        inside = add(b.place.index, scale(share, wide * form.k_pack))
        nest.emit(Mma(tile.sums, a, Slice(Place(b.place.array, inside), b.sizes, b.strides), form))
        tile.store(nest, op, output, f32, lambda row, column: (Number(0), add(part.first, row), column))


@simt_sink("smelt.grouped_block_dot")
def grouped_block_dot(nest: Nest, op: Op, output: Output) -> None:
    rows = tensor(op.operands[0]).sizes[1]
    several = minimum(floordiv(rows, FEW + 1), 1)
    few, some, _ = BLOCK_ROWS
    for most, here in ((few, 1 - several), (some, several)):
        if here != 0:
            _multiply_blocks(nest, op, output, most, here)


def _multiply_blocks(nest: Nest, op: Op, output: Output, most: int, here: Size) -> None:
    """Tiles of at most this number of rows. `here`: 1 where there are as many rows, else 0."""
    *left, panels, sizes = op.operands
    rows, columns, wide = tensor(left[0]).sizes[1], tensor(op.result).sizes[2], BLOCK_COLUMNS
    _, _, blocks, size = tensor(panels).sizes
    with nest.loops((most_tiles(sizes, rows, most) * here, ceildiv(columns, wide))) as (tile_number, number):
        part = GroupPart.of(nest, sizes, rows, most, blocks, tile_number)
        before = nest.let(scale(number, wide))
        there = at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("tile", f32, most * wide), wide, wide, part.rows, before, there)
        q, scales, totals = (row_slices(nest, op, each, (Number(0), part.first), part.rows) for each in left)
        place = element_place(nest, op, panels, (part.group, nest.let(scale(number, 2)), Number(0), Number(0)))
        strides = (Amount(size), Number(1), axis_stride(nest, op, panels, 1))
        records = Slice(place, (part.depth, Amount(size), Number(1)), strides)
        format = op.attrs["format"]
        nest.emit(BlockMma(tile.sums, q, scales, totals, records, format, most, SHARES, 0, 0, 0))
        tile.store(nest, op, output, f32, lambda row, column: (Number(0), add(part.first, row), column))


def most_tiles(sizes: Value, rows: Size, most: int) -> Size:
    """The tiles of at most `most` rows that groups of these rows can have; those behind the last group are one more."""
    return minimum(rows, floordiv(rows, most) + tensor(sizes).sizes[0] + 1)


class GroupPart(Frozen):
    """A tile of rows: its group, its first row, how many there are, and the K of its products; none for rows behind the
    last group, and where no group needs the tile."""

    group: Expr
    first: Expr
    rows: Expr
    depth: Expr

    @staticmethod
    def of(nest: Nest, sizes: Value, rows: Size, most: int, depth: Size, number: Expr) -> GroupPart:
        """Tile `number` of those of all groups, in order; each has at most `most` rows."""
        zero = Number(0)
        end, covered, tiles, group, first, last, deep = (nest.declare(i64, zero) for _ in range(7))

        def choose(here: Expr, to: Expr, other: Expr) -> Expr:
            return nest.apply("select", here, to, other, dtype=i64)

        def count_tiles(low: Expr, high: Expr) -> Expr:
            inside = nest.apply("maximum", zero, nest.let(add(high, scale(low, -1))), dtype=i64)
            return nest.let(Quotient(nest.let(add(inside, most - 1)), most))

        with nest.loop(tensor(sizes).sizes[0], "ordered") as at:
            begin, before = nest.keep(end), nest.keep(tiles)
            nest.emit(Set(end, add(begin, nest.convert(nest.pull(sizes, (at,)), i64))))
            low, high = nest.clamp(begin, rows), nest.clamp(nest.keep(end), rows)
            own = nest.let(add(number, scale(before, -1)))
            count = count_tiles(low, high)
            here = nest.both(nest.apply("GE", own, zero, dtype=i1), nest.less(own, count))
            start = nest.let(add(low, scale(own, most)))
            for var, value in ((group, at), (first, start), (last, high), (deep, Amount(depth))):
                nest.emit(Set(var, choose(here, value, nest.keep(var))))
            nest.emit(Set(tiles, add(before, count)))
            nest.emit(Set(covered, nest.apply("maximum", nest.keep(covered), high, dtype=i64)))
        behind = nest.let(add(number, scale(nest.keep(tiles), -1)))
        is_behind = nest.apply("GE", behind, zero, dtype=i1)
        start = choose(is_behind, nest.let(add(nest.keep(covered), scale(behind, most))), nest.keep(first))
        stop = choose(is_behind, Amount(rows), nest.keep(last))
        left = nest.apply("maximum", zero, nest.let(add(stop, scale(start, -1))), dtype=i64)
        used = nest.apply("minimum", Number(most), left, dtype=i64)
        return GroupPart(nest.keep(group), start, used, nest.keep(deep))
