"""Column reductions on a GPU: a thread adds up a column of a part's rows, in the order of `reduce.reduce_columns`.

A thread reads few rows itself. Of more rows the threads of a block first read the elements of some columns into shared
memory, many at a time, so that what takes time is the additions. Called by `plan.fuse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dim import Size, ceildiv, maximum
from smelt.dtype import i1, i64
from smelt.ir.core import Op
from smelt.kernel.build.reduce import TALL, Columns, loops_as_one
from smelt.kernel.loops.grammar import Expr, Number, Quotient, Remainder, add, scale
from smelt.kernel.loops.nest import Nest

FEW_ROWS, WARP = 32, 32  # rows that a thread reads itself; columns of a warp
WIDE = 16  # columns of a block
AT_ONCE = 16  # rows that a thread reads before it stores them

Element = Callable[[Sequence[Expr], Expr, Expr], Expr]  # of an index of the held axes, a row and a column
Store = Callable[[Sequence[Expr], Expr, Expr, Expr], None]  # of such an index, a part, a column and its total


def reduce_columns(nest: Nest, op: Op, target: int) -> None:
    """Totals of parts, then totals of parts of these, and the rest in order."""
    found = Columns(nest, op)
    rows, element = found.rows, found.element

    def finish(at: Sequence[Expr], _: Expr, column: Expr, total: Expr) -> None:
        found.finish(target, at, column, total)

    if isinstance(rows, int) and rows <= TALL:
        _reduce_parts(found, rows, element, finish)
        return
    room, parts = _reduce_into_room(found, rows, element)
    if isinstance(parts, int) and parts <= TALL:
        _reduce_parts(found, parts, _read(found, room, parts), finish)
    elif isinstance(parts, int):
        groups, count = _reduce_into_room(found, parts, _read(found, room, parts))
        _reduce_in_order(found, groups, count, finish)
    else:
        found.finish_parts(target, room, parts)


def _reduce_into_room(found: Columns, rows: Size, element: Element) -> tuple[int, Size]:
    """(A buffer with the totals of parts of the rows, how many there are)."""
    parts = maximum(ceildiv(rows, TALL), 1)
    room = found.room(parts)

    def store(at: Sequence[Expr], part: Expr, column: Expr, total: Expr) -> None:
        found.nest.store(room, found.part(at, part, column, parts), total)

    _reduce_parts(found, rows, element, store)
    return room, parts


def _read(found: Columns, room: int, parts: Size) -> Element:
    def element(at: Sequence[Expr], part: Expr, column: Expr) -> Expr:
        return found.nest.read(found.nest.buffer(room), found.part(at, part, column, parts), found.kind)

    return element


def _reduce_in_order(found: Columns, room: int, parts: Size, store: Store) -> None:
    """The totals of all parts: a thread for each column."""
    nest, element = found.nest, _read(found, room, parts)
    with nest.loops((*found.held, found.columns)) as (*at, column):
        total = nest.declare(found.kind, found.nothing)
        with nest.loop(parts, "ordered") as part:
            found.accumulate(total, element(at, part, column))
        store(at, Number(0), column, nest.keep(total))


def _reduce_parts(found: Columns, rows: Size, element: Element, store: Store) -> None:
    """One launch: the totals of parts of `TALL` rows."""
    nest, kind, columns = found.nest, found.kind, found.columns
    parts = maximum(ceildiv(rows, TALL), 1)
    is_short = isinstance(rows, int) and rows <= FEW_ROWS
    wide = WARP if is_short else WIDE
    is_whole = isinstance(columns, int) and columns % wide == 0
    with loops_as_one(nest, (*found.held, parts, ceildiv(columns, wide))) as (*at, part, block):
        first, begin = nest.let(scale(block, wide)), nest.let(scale(part, TALL))
        last = nest.let(add(columns, scale(first, -1), -1))  # of the columns that there are
        count = nest.apply("minimum", Number(TALL), nest.let(add(rows, scale(begin, -1))), dtype=i64)

        def column_of(j: Expr) -> Expr:
            """One that is there: the last one is read several times."""
            return add(first, j if is_whole else nest.apply("minimum", j, last, dtype=i64))

        tile = "" if is_short else _stage(found, at, begin, count, column_of, element)
        with nest.loop(wide, "lane") as j:
            column = column_of(j)
            total = nest.declare(kind, found.nothing)
            with nest.loop(rows if is_short else count, "ordered") as turn:
                if is_short:
                    found.accumulate(total, element(at, add(begin, turn), column))
                else:
                    found.accumulate(total, nest.read(tile, add(scale(turn, wide), j), kind))
            if is_whole:
                store(at, part, column, nest.keep(total))
            else:
                with nest.guard(nest.apply("LE", j, last, dtype=i1)):
                    store(at, part, column, nest.keep(total))


def _stage(
    found: Columns, at: Sequence[Expr], begin: Expr, count: Expr, column_of: Callable[[Expr], Expr], element: Element
) -> str:
    """A tile with the rows of a part. A thread reads all of its rows, `TALL / AT_ONCE` apart, before it stores one."""
    nest, apart = found.nest, TALL // AT_ONCE
    tile = nest.tile("rows", found.kind, TALL * WIDE)
    slices = nest.apply("minimum", Number(apart), count, dtype=i64)
    with nest.loop(nest.let(scale(slices, WIDE)), "lane", most=apart * WIDE) as i:
        j, first = nest.let(Remainder(i, WIDE), WIDE), nest.let(Quotient(i, WIDE), apart)
        column = column_of(j)
        last = nest.let(add(count, -1))
        rows = [nest.let(add(first, apart * k)) for k in range(AT_ONCE)]
        read = [element(at, add(begin, nest.apply("minimum", row, last, dtype=i64)), column) for row in rows]
        for row, one in zip(rows, read, strict=True):
            nest.write(tile, nest.let(add(scale(row, WIDE), j)), one)
    return tile
