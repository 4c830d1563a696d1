"""Materialised transposes: square tiles are read along the operand's last axis and written along the result's.

If the result's last axis is short (RGB), its elements are interleaved instead. `fuse` calls `find_rule`. Inlined
transposes are index arithmetic (`elementwise.py`).
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dim import Size, ceildiv
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.kernel.loops.grammar import Expr, Number, Transpose, add, scale, tile_slice
from smelt.kernel.loops.nest import Nest, tensor

SIDE = 16  # of a square tile
FEW = 4  # elements that are interleaved at most
Rule = Callable[[Nest, Op, int], None]


def find_rule(op: Op) -> Rule | None:
    """The kernel of a transpose that changes the last axis, if there is a faster one than elementwise."""
    order, sizes = op.attrs["permutation"], tensor(op.result).sizes
    if len(order) < 2 or order[-1] == len(order) - 1:
        return None
    row = sizes[order.index(len(order) - 1)]
    if isinstance(sizes[-1], int) and 1 < sizes[-1] <= FEW:
        return interleave
    squares = all(not isinstance(size, int) or size >= SIDE for size in (sizes[-1], row))
    return transpose_tiles if squares and tensor(op.result).element == f32 else None


def interleave(nest: Nest, op: Op, target: int) -> None:
    """Interleave: all elements of the result's last axis, for a run along the operand's."""
    order, sizes = op.attrs["permutation"], tensor(op.result).sizes
    last = len(order) - 1
    row, few = order.index(last), sizes[last]
    assert isinstance(few, int)
    others = [d for d in range(last) if d != row]
    with nest.loops([sizes[d] for d in others]) as at, nest.loop(sizes[row], "lane") as i:
        fixed = {**dict(zip(others, at, strict=True)), row: i}
        for j in range(few):
            place = tuple(fixed.get(d, Number(j)) for d in range(last + 1))
            source = tuple(place[order.index(d)] for d in range(last + 1))
            nest.store(target, nest.offset(op.result, place), nest.pull(op.operands[0], source))


def transpose_tiles(nest: Nest, op: Op, target: int) -> None:
    order, sizes = op.attrs["permutation"], tensor(op.result).sizes
    last = len(order) - 1
    row = order.index(last)  # the result's axis that is the operand's last
    others = [d for d in range(last) if d != row]
    blocks = (ceildiv(sizes[row], SIDE), ceildiv(sizes[last], SIDE))
    with nest.loops((*(sizes[d] for d in others), *blocks)) as (*at, high, wide):
        first = {row: nest.let(scale(high, SIDE)), last: nest.let(scale(wide, SIDE))}
        rows, columns = (_clip(nest, sizes[d], first[d]) for d in (row, last))
        read, written = (nest.tile("square", f32, SIDE * SIDE) for _ in range(2))
        fixed = dict(zip(others, at, strict=True))

        def index(i: Expr, j: Expr) -> tuple[Expr, ...]:
            places = {**fixed, row: add(first[row], i), last: add(first[last], j)}
            return tuple(places[d] for d in range(last + 1))

        with nest.loop(columns, "ordered") as j, nest.loop(rows, "lane") as i:
            place = index(i, j)
            source = tuple(place[order.index(d)] for d in range(last + 1))
            nest.write(read, add(scale(j, SIDE), i), nest.pull(op.operands[0], source))
        nest.emit(Transpose(tile_slice(written, SIDE, SIDE), tile_slice(read, SIDE, SIDE)))
        with nest.loop(rows, "ordered") as i, nest.loop(columns, "lane") as j:
            element = nest.read(written, add(scale(i, SIDE), j), f32)
            nest.store(target, nest.offset(op.result, index(i, j)), element)


def _clip(nest: Nest, size: Size, first: Expr) -> Expr:
    if isinstance(size, int) and size % SIDE == 0:
        return Number(SIDE)
    return nest.let(nest.apply("minimum", Number(SIDE), nest.let(add(size, scale(first, -1))), dtype=i64))
