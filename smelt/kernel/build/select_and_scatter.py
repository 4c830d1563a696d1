"""`select_and_scatter`, the gradient of max pooling: NHWC with channels on lanes, any other layout one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

from smelt.dim import ceildiv
from smelt.dtype import i1, i32, i64
from smelt.ir.core import Op
from smelt.kernel.build.reduce import FEW
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.build.window import Window, window_places
from smelt.kernel.loops.grammar import Expr, Level, Number, Set, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, tensor

LANES = 64  # channels whose windows are searched together


@sink("stablehlo.select_and_scatter")
def select_and_scatter(nest: Nest, op: Op, output: Output) -> None:
    """The element that `select` picks in each window receives the source's element, window by window."""
    sizes, kind, (target,) = tensor(op.operands[0]).sizes, tensor(op.result).element, output.targets
    with nest.loops(sizes) as index:
        nest.store(target, flat(index, sizes), nest.convert(nest.pull(op.operands[2], ()), kind))
    window = Window.of(op)
    apart = [d for d in range(len(sizes)) if window.is_plain(d)]  # windows that differ here are disjoint
    last = len(sizes) - 1
    if last in apart and not (isinstance(sizes[last], int) and sizes[last] < FEW):
        _on_lanes(nest, op, target, window, apart[:-1])
    else:
        _one_by_one(nest, op, target, window, apart)


def _on_lanes(nest: Nest, op: Op, target: int, window: Window, apart: list[int]) -> None:
    """Windows of adjacent channels side by side: the number of the selected tap is found first, for all of them; then
    each tap updates the channels that selected it."""
    operand, source, _ = op.operands
    sizes, counts, kind = tensor(operand).sizes, tensor(source).sizes, tensor(op.result).element
    item_kind, last = tensor(operand).element, len(sizes) - 1
    moving = [d for d in range(last) if d not in apart]
    with nest.loops([*(counts[d] for d in apart), ceildiv(sizes[last], LANES)]) as (*outer, block):
        first = nest.let(scale(block, LANES))
        used = nest.apply("minimum", Number(LANES), nest.let(add(sizes[last], scale(first, -1))), dtype=i64)
        best, picked = nest.tile("best", item_kind, LANES), nest.tile("picked", i32, LANES)
        with nest.loops([counts[d] for d in moving], "ordered") as inner:
            here = dict(zip((*apart, *moving), (*outer, *inner), strict=True))
            position = tuple(here[d] for d in range(last))
            with nest.loop(used, "lane") as j:
                nest.write(best, j, Number(0, item_kind))
                nest.write(picked, j, Number(-1, i32))
            for number, places in _taps(nest, op, window, position):
                with nest.loop(used, "lane") as j:
                    item, old = nest.pull(operand, (*places, add(first, j))), nest.read(best, j, item_kind)
                    tap = nest.read(picked, j, i32)
                    there = nest.apply("GE", tap, Number(0, i32), dtype=i1)
                    stays = nest.both(there, nest.inline(op.regions[0], [old, item])[0])
                    nest.write(best, j, nest.apply("select", stays, old, item, dtype=item_kind))
                    nest.write(picked, j, nest.apply("select", stays, tap, number, dtype=i32))
            for number, places in _taps(nest, op, window, position):
                with nest.loop(used, "lane") as j:
                    offset = nest.let(flat((*places, add(first, j)), sizes))
                    old = nest.read(nest.buffer(target), offset, kind)
                    item = nest.convert(nest.pull(source, (*position, add(first, j))), kind)
                    new = nest.inline(op.regions[1], [old, item])[0]
                    mine = nest.apply("EQ", nest.read(picked, j, i32), number, dtype=i1)
                    nest.store(target, offset, nest.apply("select", mine, new, old, dtype=kind))


def _taps(nest: Nest, op: Op, window: Window, position: Index) -> Iterator[tuple[Expr, Index]]:
    """A loop over the taps of a window that are inside the operand: (number, position without the last axis)."""
    with nest.loops(window.sizes[:-1], "ordered") as inner:
        places, fits = window_places(nest, op, window, (*position, Number(0)), (*inner, Number(0)), False)
        with nest.guard(nest.both(*(each for dim in fits for each in dim))):
            yield nest.convert(nest.let(flat(inner, window.sizes[:-1])), i32), places[:-1]


def _one_by_one(nest: Nest, op: Op, target: int, window: Window, apart: list[int]) -> None:
    source, kind = op.operands[1], tensor(op.result).element
    sizes, counts = tensor(op.operands[0]).sizes, tensor(source).sizes
    places: dict[int, Expr] = {}
    with ExitStack() as loops:
        for d in [*apart, *(d for d in range(len(sizes)) if d not in apart)]:
            level: Level = "serial" if d in apart else "ordered"
            places[d] = loops.enter_context(nest.loop(counts[d], level)) if counts[d] != 1 else Number(0)
        position = tuple(places[d] for d in range(len(sizes)))
        chosen = nest.keep(_select_offset(nest, op, window, position))
        with nest.guard(nest.apply("GE", chosen, Number(0), dtype=i1)):
            old = nest.read(nest.buffer(target), chosen, kind)
            item = nest.convert(nest.pull(source, position), kind)
            nest.store(target, chosen, nest.inline(op.regions[1], [old, item])[0])


def _select_offset(nest: Nest, op: Op, window: Window, position: Index) -> Expr:
    """The offset of the selected element of a window; -1 if it holds only padding."""
    operand = op.operands[0]
    sizes, kind = tensor(operand).sizes, tensor(operand).element
    best, chosen = nest.declare(kind, Number(0, kind)), nest.declare(i64, Number(-1))
    with nest.loops(window.sizes, "ordered") as inner:
        places, fits = window_places(nest, op, window, position, inner, False)
        with nest.guard(nest.both(*(each for dim in fits for each in dim))):
            item = nest.pull(operand, places)
            there = nest.apply("GE", nest.keep(chosen), Number(0), dtype=i1)
            stays = nest.choose(
                there,
                lambda: nest.inline(op.regions[0], [nest.keep(best), item])[0],
                lambda: Number(False, i1),
                i1,
            )
            with nest.guard(nest.apply("not", nest.keep(stays), dtype=i1)):
                nest.emit(Set(best, item))
                nest.emit(Set(chosen, flat(places, sizes)))
    return chosen
