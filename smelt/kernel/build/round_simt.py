"""Rows that are rounded to 8 bits by the kernel that computes them, on a GPU (`smelt.round_blocks`)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from smelt.dim import Size, ceildiv
from smelt.dtype import f32
from smelt.frozen import Frozen
from smelt.ir.blocks import RUN
from smelt.kernel.build.gemm_simt import at_most
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.grammar import Amount, Expr, Number, Place, RoundRow, add, scale, split
from smelt.kernel.loops.nest import Nest, flat, tensor

VECTOR = 4  # adjacent elements of a thread: 16 bytes of f32
TOGETHER = VECTOR * RUN  # elements of a warp


class Rows(Frozen):
    """A tile of f32: `rows` of it are used, at most `most`, and `columns` of the `width` elements of a row."""

    tile: str
    rows: Expr
    most: int
    width: int
    columns: Expr


@contextmanager
def elements_of_warp(nest: Nest, there: Expr) -> Iterator[Expr]:
    """The number of each element of a warp, of which the first ones are `there`, a multiple of `VECTOR`: a thread has
    adjacent ones, so that it reads all of them at once."""
    with nest.loop(TOGETHER // VECTOR, "lane") as part:
        whole, first = there == Number(TOGETHER), scale(part, VECTOR)
        guard = nullcontext() if whole else nest.guard(nest.less(nest.let(first), there))
        with guard, nest.loop(VECTOR, "vector") as i:
            yield add(first, i)


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


def round_kept(nest: Nest, output: Output, buffer: int, here: Size) -> None:
    """Round rows that are in a buffer, in a launch of its own. `here`: 1 where they are there, else 0."""
    groups, rows, depth = sizes = tensor(output.roundings[0].op.operands[0]).sizes
    with nest.loops((groups * here, rows, ceildiv(depth, TOGETHER))) as (group, row, part):
        first = nest.let(scale(part, TOGETHER))
        start = flat((group, row, first), sizes)
        columns = at_most(nest, TOGETHER, depth, first)
        held = nest.tile("run", f32, TOGETHER)
        with elements_of_warp(nest, columns) as at:
            nest.write(held, at, nest.read(nest.buffer(buffer), add(start, at), f32))
        round_tile(nest, output, Rows(held, Number(1), 1, TOGETHER, columns), start, TOGETHER)
