"""Grouped GEMM (mixtures of experts): `smelt.grouped_dot` and `smelt.grouped_block_dot`.

Each core takes a panel of columns and loops over all groups, so cores have equal work however rows are distributed over
the groups. A group without rows costs a comparison.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from smelt.dim import Size
from smelt.dtype import f32, i64
from smelt.ir.block_layout import COLUMNS
from smelt.ir.core import Op, Value
from smelt.kernel.build.blocks import chunk_rows, multiply_blocks
from smelt.kernel.build.gemm import Columns, Panels, contiguous_operands, multiply, required_form, row_tiles
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Expr, Number, Set, add, scale
from smelt.kernel.loops.nest import Nest, tensor

ROWS = 192  # of a tile


@sink("smelt.grouped_dot", anchor=True, addressed=(0, 1, 2), in_runs=contiguous_operands)
def grouped_dot(nest: Nest, op: Op, output: Output) -> None:
    form = required_form(op)
    lhs, panels, sizes = op.operands
    rows, (_, count, _, line) = tensor(lhs).sizes[1], tensor(panels).sizes
    assert isinstance(line, int)
    width, columns = line // form.k_pack, tensor(op.result).sizes[2]
    most = max(1, min(rows, ROWS)) if isinstance(rows, int) else ROWS
    with nest.loops((count,)) as (number,):
        tile = nest.tile("tile", form.total, most * width)
        panel = Panels.of(nest, number, (count, 1), most, (width, columns), form.total)
        assert panel.only is not None
        with _groups(nest, sizes, rows, most, panel.only, op, output) as (group, first, used):
            multiply(nest, op, tile, (Number(0), first, used), panel, most, form, matrix=group)
            panel.only.store_rows(nest, op, output, tile, (Number(0), first), used)


@sink("smelt.grouped_block_dot", anchor=True, addressed=(0, 1, 2, 3, 4), in_runs=(0, 1, 2, 3))
def grouped_block_dot(nest: Nest, op: Op, output: Output) -> None:
    *_, panels, sizes = op.operands
    (_, rows, depth), count = tensor(op.operands[0]).sizes, tensor(panels).sizes[1]
    most = chunk_rows(rows, depth)
    with nest.loops((count,)) as (panel,):
        tile = nest.tile("tile", f32, most * COLUMNS)
        columns = Columns.of(nest, panel, COLUMNS, tensor(op.result).sizes[2])
        with _groups(nest, sizes, rows, most, columns, op, output) as (group, first, used):
            multiply_blocks(nest, op, tile, (Number(0), first, used), (group, panel), columns)
            columns.store_rows(nest, op, output, tile, (Number(0), first), used)


@contextmanager
def _groups(
    nest: Nest, sizes: Value, rows: Size, most: int, columns: Columns, op: Op, output: Output
) -> Iterator[tuple[Expr, Expr, Expr]]:
    """A loop over the tiles of at most `most` rows of every group: (group, first row, rows). Rows behind the last
    group are zeros."""
    end, last = nest.declare(i64, Number(0)), nest.declare(i64, Number(0))
    with nest.loop(tensor(sizes).sizes[0], "ordered") as group:
        begin = nest.keep(end)
        nest.emit(Set(end, add(begin, nest.convert(nest.pull(sizes, (group,)), i64))))
        low, high = nest.clamp(begin, rows), nest.clamp(nest.keep(end), rows)
        nest.emit(Set(last, nest.apply("maximum", nest.keep(last), high, dtype=i64)))
        inside = nest.apply("maximum", Number(0), nest.let(add(high, scale(low, -1))), dtype=i64)
        with row_tiles(nest, nest.let(inside), most) as (_, above, used):
            yield group, nest.let(add(low, above)), used
    covered = nest.keep(last)
    with nest.loop(nest.let(add(rows, scale(covered, -1))), "ordered") as row, nest.loop(columns.used, "lane") as j:
        index = (Number(0), nest.let(add(covered, row)), add(columns.first, j))
        output.finish(nest, op, index, Number(0, columns.element))
