"""Rows that are rounded to 8 bits by the kernel that computes them, on a GPU (`smelt.round_blocks`)."""

from __future__ import annotations

from smelt.dim import Size
from smelt.frozen import Frozen
from smelt.ir.blocks import RUN
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.grammar import Amount, Expr, Number, Place, RoundRow, split
from smelt.kernel.loops.nest import Nest


class Rows(Frozen):
    """A tile of f32: `rows` of it are used, at most `most`, and of `width` elements of a row so many are `columns`."""

    tile: str
    rows: Expr
    most: int
    width: int
    columns: Expr


def round_tile(nest: Nest, output: Output, held: Rows, start: Expr, step: Size) -> None:
    """Round a tile of what `Output.finish` returned. `start`: the place of its first element in the whole value, a
    multiple of 32; `step`: the distance of rows there, another one."""
    for each in output.roundings:
        group, zero = each.op.attrs["group"], each.op.attrs["zero"]
        first = start, split(start, RUN)[0], split(start, group)[0]
        q, scales, totals = (
            Place(nest.buffer(target), nest.let(at)) for target, at in zip(each.targets, first, strict=True)
        )
        columns = None if held.columns == Number(held.width) else held.columns
        rows = held.rows, held.most, held.width, Amount(step), columns
        nest.emit(RoundRow(q, scales, totals, Place(held.tile, Number(0)), held.width // RUN, group, zero, *rows))
