"""Long reductions on a GPU whose body selects one of its arguments (argmax and similar): a row is split over blocks.

Such a body is associative and exact, so the split does not change the result. Called by `plan.fuse`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from smelt.dtype import DType, i64
from smelt.ir.core import Op
from smelt.kernel.loops.grammar import Expr, Number, Quotient, Set, Var, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.shape import Shape

LONG, PART, EACH = 1024, 2048, 8  # elements of a row that are worth it, of a block, of a thread
SELECTS = frozenset(("compare", "select", "and", "or", "xor", "not", "maximum", "minimum"))


def is_long_selection(op: Op) -> bool:
    if op.name != "stablehlo.reduce" or len(op.attrs["dimensions"]) != 1:
        return False
    extent = tensor(op.operands[0]).sizes[op.attrs["dimensions"][0]]
    names = {each.name.partition(".")[2] for each in op.regions[0].ops}
    plain = not any(tensor(value).element.is_complex for value in op.results)
    return isinstance(extent, int) and extent >= LONG and len(op.results) > 1 and names <= SELECTS and plain


def reduce_selection(nest: Nest, op: Op, targets: Sequence[int]) -> None:
    """Blocks reduce the parts of a row, and a second launch the results of the parts."""
    found = _Selection(nest, op)
    axis, sizes = op.attrs["dimensions"][0], tensor(op.operands[0]).sizes
    rows = [size for d, size in enumerate(sizes) if d != axis]
    extent = sizes[axis]
    assert isinstance(extent, int)
    count = -(-extent // PART)
    kept = (*rows, count)
    parts = [nest.scratch(Shape.of(kind, kept)) for kind in found.kinds]
    with nest.loops(kept) as (*index, number):
        first = nest.let(scale(number, PART))
        used = nest.apply("minimum", Number(PART), nest.let(add(extent, scale(first, -1))), dtype=i64)

        def element(at: Expr) -> list[Expr]:
            place = (*index[:axis], nest.let(add(first, at)), *index[axis:])
            return [nest.pull(value, place) for value in op.operands[: len(found.kinds)]]

        whole = found.reduce(element, used, PART)
        for part, one in zip(parts, whole, strict=True):
            nest.store(part, flat((*index, number), kept), nest.keep(one))
    with nest.loops(rows) as row:

        def of_part(at: Expr) -> list[Expr]:
            place = flat((*row, at), kept)
            return [nest.read(nest.buffer(part), place, kind) for part, kind in zip(parts, found.kinds, strict=True)]

        whole = found.reduce(of_part, Number(count), count)
        start = found.variables([nest.pull(each, ()) for each in op.operands[len(found.kinds) :]])
        found.combine(start, [nest.keep(each) for each in whole])
        for target, total, value in zip(targets, start, op.results, strict=True):
            nest.store(target, nest.offset(value, row), nest.convert(nest.keep(total), tensor(value).element))


@dataclass(slots=True)
class _Selection:
    nest: Nest
    op: Op

    @property
    def kinds(self) -> list[DType]:
        """The types that the body computes with."""
        return [tensor(arg).element for arg in self.op.regions[0].args[: len(self.op.results)]]

    def variables(self, items: Sequence[Expr]) -> list[Var]:
        nest = self.nest
        return [nest.declare(kind, nest.convert(one, kind)) for kind, one in zip(self.kinds, items, strict=True)]

    def combine(self, totals: Sequence[Var], items: Sequence[Expr]) -> None:
        """The totals and what comes after them."""
        nest = self.nest
        wide = [nest.convert(one, kind) for kind, one in zip(self.kinds, items, strict=True)]
        found = [nest.keep(one) for one in nest.inline(self.op.regions[0], [*map(nest.keep, totals), *wide])]
        for total, one in zip(totals, found, strict=True):
            nest.emit(Set(total, one))

    def reduce(self, items: Callable[[Expr], list[Expr]], count: Expr, most: int) -> list[Var]:
        """Items in order, of which there are 1 to `most`: a thread reduces some in order, until few are left."""
        nest = self.nest
        while most > EACH:
            most = -(-most // EACH)
            tiles = [nest.tile("slice", kind, most) for kind in self.kinds]
            slices = nest.let(Quotient(nest.let(add(count, EACH - 1)), EACH))
            with nest.loop(slices, "lane") as lane:
                first = nest.let(scale(lane, EACH))
                rest = nest.let(add(count, scale(first, -1), -1))
                totals = self.in_order(items, first, nest.apply("minimum", Number(EACH - 1), rest, dtype=i64))
                for tile, total in zip(tiles, totals, strict=True):
                    nest.write(tile, lane, nest.keep(total))
            items, count = partial(self.read, tiles), slices
        return self.in_order(items, Number(0), nest.let(add(count, -1)))

    def read(self, tiles: Sequence[str], at: Expr) -> list[Expr]:
        return [self.nest.read(tile, at, kind) for tile, kind in zip(tiles, self.kinds, strict=True)]

    def in_order(self, items: Callable[[Expr], list[Expr]], first: Expr, rest: Expr) -> list[Var]:
        """An item and the `rest` that follow it."""
        totals = self.variables(items(first))
        with self.nest.loop(rest, "ordered", fence=True) as i:
            self.combine(totals, items(self.nest.let(add(first, i, 1))))
        return totals
