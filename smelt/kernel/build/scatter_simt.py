"""Scatter on a GPU, where several updates may change the same element.

Integers that are added, or combined by another function whose order does not matter: a thread for every update, which
changes its element atomically. All other updates are sorted by their targets, stably; then a thread takes those of one
element, in the order of a CPU. `gather_scatter` has the loops for unique indices, and for few updates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from smelt.dim import Size, product
from smelt.dtype import i1, i32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.kernel.build.gather_scatter import scatter as scatter_in_order
from smelt.kernel.build.gather_scatter import split_updates, target_index, target_start
from smelt.kernel.build.sinks import Output, simt_update
from smelt.kernel.build.sort import Row
from smelt.kernel.build.sort_simt import MOST, Arrays, sort_rows
from smelt.kernel.loops.grammar import Atomic, Expr, Number, Place, Set, Update, add, split
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.shape import Shape

MANY = 128  # updates that are worth sorting


@simt_update("stablehlo.scatter")
def scatter(nest: Nest, op: Op, output: Output) -> None:
    if is_sorted(op):
        _sort_updates(nest, op, output)
    elif (function := find_function(op)) is not None and _is_repeated(op):
        _update_atomically(nest, op, output, function)
    else:
        scatter_in_order(nest, op, output)


def is_sorted(op: Op) -> bool:
    """Whether updates are sorted by their targets: there are many, or their number is dynamic."""
    count = count_updates(op)
    return _is_repeated(op) and find_function(op) is None and not (isinstance(count, int) and count < MANY)


def count_updates(op: Op) -> Size:
    """How many updates of a batch may change the same element."""
    return product(tensor(op.operands[-1]).sizes[d] for d in Dims.of(op).ordered)


def _is_repeated(op: Op) -> bool:
    """Whether several updates may change the same element."""
    return not op.attrs["unique_indices"] and count_updates(op) != 1


def find_function(op: Op) -> Atomic | None:
    """The function by which each update changes an integer, if a GPU does that atomically."""
    body, element = op.regions[0], tensor(op.results[0]).element
    if len(op.results) > 1 or not (element.is_integer and element.bits in (32, 64)):
        return None
    maker = body.results[0].op
    if maker is None or {*maker.operands} != {*body.args} or len(maker.operands) != 2:
        return None
    return next((each for each in get_args(Atomic) if maker.name == f"stablehlo.{each}"), None)


def _update_atomically(nest: Nest, op: Op, output: Output, function: Atomic) -> None:
    updates, result = op.operands[-1], tensor(op.results[0])
    with nest.loops(tensor(updates).sizes) as at:
        places = dict(enumerate(at))
        starts, fits = target_start(nest, op, places)
        with nest.guard(nest.both(*fits)):
            there = nest.let(flat(target_index(op, starts, places), result.sizes))
            value = nest.convert(nest.pull(updates, at), result.element)
            nest.emit(Update(Place(nest.buffer(output.targets[0]), there), function, value))


def _sort_updates(nest: Nest, op: Op, output: Output) -> None:
    """Sort the numbers of the updates of each batch by their targets. All elements of a window share that."""
    dims = Dims.of(op)
    updates, operand = tensor(op.operands[-1]), tensor(op.operands[0])
    rows = (*(updates.sizes[d] for d in dims.batch), product(updates.sizes[d] for d in dims.ordered))
    offset = i32 if isinstance(operand.count, int) and operand.count < MOST else i64
    which = i64 if isinstance(rows[-1], int) and rows[-1] > MOST else i32

    def element(array: int, index: Index) -> Expr:
        """Where an update's window begins, -1 if it is outside; the update's number."""
        if array == 1:
            return nest.convert(index[-1], which)
        places = dims.places(updates, index, ())
        starts, fits = target_start(nest, op, places)
        there = nest.convert(nest.let(flat(target_index(op, starts, places), operand.sizes)), offset)
        return nest.apply("select", nest.both(*fits), there, Number(-1, offset), dtype=offset)

    def before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
        return nest.less(a[0], b[0])

    kinds = offset, which
    held = Arrays(tuple(nest.scratch(Shape.of(kind, rows)) for kind in kinds), kinds, (0,))
    sort_rows(nest, held, rows, len(rows) - 1, element, before)
    with nest.loops((*rows, *(updates.sizes[d] for d in dims.window))) as index:
        _apply_in_order(nest, op, output, held, dims, index)


class Dims(Frozen):
    """The updates' dimensions: updates of different batches, and elements of a window, never change the same element.
    Those that differ along `ordered` ones may."""

    batch: tuple[int, ...]
    ordered: tuple[int, ...]
    window: tuple[int, ...]

    @staticmethod
    def of(op: Op) -> Dims:
        inside = op.attrs["scatter_dimension_numbers"].update_window_dims
        outer, ordered, inner = split_updates(op)
        batch = tuple(d for d in outer if d not in inside)
        return Dims(batch, tuple(ordered), tuple(d for d in (*outer, *inner) if d in inside))

    def places(self, updates: Shape, row: Index, window: Index) -> dict[int, Expr]:
        """The index of an element of an update by dimension. `row`: its batch and its number there."""
        *batch, number = row
        found: dict[int, Expr] = dict.fromkeys(self.window, Number(0)) | dict(zip(self.window, window, strict=False))
        found |= zip(self.batch, batch, strict=True)
        for d in reversed(self.ordered[1:]):
            number, found[d] = split(number, updates.sizes[d])
        found[self.ordered[0]] = number
        return found


def _apply_in_order(nest: Nest, op: Op, output: Output, held: Arrays, dims: Dims, index: Index) -> None:
    """One element of a window, for the first one of the sorted updates of a target: apply all of them. Where updates
    replace what was there, the last one does."""
    count, body, updates = len(op.results), op.regions[0], tensor(op.operands[-1])
    *batch, at = index[: len(dims.batch) + 1]
    window = index[len(dims.batch) + 1 :]
    sizes = (*(updates.sizes[d] for d in dims.batch), product(updates.sizes[d] for d in dims.ordered))
    row = Row(dict(enumerate(batch)), sizes, len(batch))
    own = held.read(nest, 0, row(at))

    def is_last(place: Expr, step: int) -> Expr:
        """Whether the next update, or the one before, has another target."""
        there = nest.let(add(place, step))
        near = nest.clamp(there, sizes[-1] - 1)
        changes = nest.apply("NE", held.read(nest, 0, row(near)), own, dtype=i1)
        return nest.apply("or", changes, nest.apply("NE", near, there, dtype=i1), dtype=i1)

    def pull_update(place: Expr) -> list[Expr]:
        number = nest.convert(held.read(nest, 1, row(place)), i64)
        places = dims.places(updates, (*batch, number), window)
        element = tuple(places[d] for d in range(updates.rank))
        return [
            nest.convert(nest.pull(value, element), tensor(result).element)
            for value, result in zip(op.operands[count + 1 :], op.results, strict=True)
        ]

    replaces = body.results == body.args[count:]
    inside = nest.apply("GE", own, Number(0, own.dtype), dtype=i1)
    with nest.guard(nest.both(inside, is_last(at, 1 if replaces else -1))):
        operand = tensor(op.operands[0])
        starts: dict[int, Expr] = {d: Number(0) for d in range(operand.rank)}
        places: dict[int, Expr] = {d: Number(0) for d in range(updates.rank)}
        places |= zip(dims.window, window, strict=True)
        there = nest.let(add(nest.convert(own, i64), flat(target_index(op, starts, places), operand.sizes)))
        if replaces:
            new = pull_update(at)
        else:
            kinds = [tensor(result).element for result in op.results]
            found = [
                nest.declare(kind, nest.read(nest.buffer(target), there, kind))
                for target, kind in zip(output.targets, kinds, strict=True)
            ]
            place, going = nest.declare(i64, at), nest.declare(i1, Number(True, i1))
            with nest.repeat(lambda: nest.keep(going)):
                here = nest.keep(place)
                results = nest.inline(body, [*map(nest.keep, found), *pull_update(here)])
                for var, result in zip(found, [nest.keep(each) for each in results], strict=True):
                    nest.emit(Set(var, result))
                nest.emit(Set(going, nest.apply("not", is_last(here, 1))))
                nest.emit(Set(place, add(here, 1)))
            new = [nest.keep(each) for each in found]
        for target, value in zip(output.targets, new, strict=True):
            nest.store(target, there, value)
