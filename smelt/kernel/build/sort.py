"""Sorting: `sort` by any comparator (stable merge sort) and `chlo.top_k`. Rows are sorted in parallel.

Registered in `sinks.SINKS`. The bottom-up merge sort alternates between two buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.dim import Size
from smelt.dtype import DType, i1, i32, i64
from smelt.ir.core import Op
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Amount, Expr, Number, Set, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.shape import Shape

Before = Callable[[Sequence[Expr], Sequence[Expr]], Expr]  # whether one tuple of elements comes before another
INSERTED = 32  # largest k for which top_k uses insertion


@sink("stablehlo.sort")
def sort(nest: Nest, op: Op, output: Output) -> None:
    shapes = [tensor(value) for value in op.operands]
    sizes = shapes[0].sizes
    dim = op.attrs["dimension"] % len(sizes)
    spare = [nest.scratch(shape) for shape in shapes]
    with _rows(nest, sizes, dim) as row:
        with nest.loop(sizes[dim]) as at:
            for value, target in zip(op.operands, output.targets, strict=True):
                nest.store(target, row(at), nest.pull(value, row.index(at)))

        def before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
            pairs = [each for pair in zip(a, b, strict=True) for each in pair]
            return nest.inline(op.regions[0], pairs)[0]

        kinds = [shape.element for shape in shapes]
        merge_sort(nest, output.targets, spare, kinds, sizes[dim], row, before)


class Row:
    """A row of a tensor along one dimension: offsets and indices of its elements."""

    def __init__(self, outer: dict[int, Expr], sizes: Sequence[Size], dim: int) -> None:
        self.outer, self.sizes, self.dim = outer, sizes, dim

    def index(self, at: Expr) -> tuple[Expr, ...]:
        return tuple(at if d == self.dim else self.outer[d] for d in range(len(self.sizes)))

    def __call__(self, at: Expr) -> Expr:
        return flat(self.index(at), self.sizes)


@contextmanager
def _rows(nest: Nest, sizes: Sequence[Size], dim: int) -> Iterator[Row]:
    """Loops over all rows along a dimension."""
    others = [d for d in range(len(sizes)) if d != dim]
    with nest.loops([sizes[d] for d in others]) as vars:
        yield Row(dict(zip(others, vars, strict=True)), sizes, dim)


def merge_sort(
    nest: Nest,
    held: Sequence[int],
    spare: Sequence[int],
    kinds: Sequence[DType],
    length: Size,
    row: Callable[[Expr], Expr],
    before: Before,
) -> None:
    """Sort a row in the buffers `held`; `spare` is scratch of the same size."""
    width = nest.declare(i64, Number(1))
    with nest.repeat(lambda: nest.less(nest.keep(width), Amount(length))):
        for source, target in ((held, spare), (spare, held)):
            now = nest.keep(width)
            _merge_runs(nest, source, target, kinds, length, row, before, now)
            nest.emit(Set(width, scale(now, 2)))


def _merge_runs(
    nest: Nest,
    source: Sequence[int],
    target: Sequence[int],
    kinds: Sequence[DType],
    length: Size,
    row: Callable[[Expr], Expr],
    before: Before,
    width: Expr,
) -> None:
    """Merge adjacent runs of `width` elements; the last runs may be short or missing."""
    begin = nest.declare(i64, Number(0))
    with nest.repeat(lambda: nest.less(nest.keep(begin), Amount(length))):
        first = nest.keep(begin)
        middle = nest.apply("minimum", nest.let(add(first, width)), Amount(length))
        end = nest.apply("minimum", nest.let(add(first, scale(width, 2))), Amount(length))
        left, right = nest.declare(i64, first), nest.declare(i64, middle)

        def read(at: Expr) -> list[Expr]:
            offset = row(at)
            return [nest.read(nest.buffer(b), offset, kind) for b, kind in zip(source, kinds, strict=True)]

        def write(at: Expr, items: Sequence[Expr]) -> None:
            offset = row(at)
            for buffer, item in zip(target, items, strict=True):
                nest.store(buffer, offset, item)

        def both_left() -> Expr:
            return nest.both(nest.less(nest.keep(left), middle), nest.less(nest.keep(right), end))

        with nest.repeat(both_left):
            a, b = nest.keep(left), nest.keep(right)
            ours, theirs = read(a), read(b)
            later = nest.keep(before(theirs, ours))
            place = nest.let(add(a, b, scale(middle, -1)))
            chosen = [nest.apply("select", later, y, x, dtype=x.dtype) for x, y in zip(ours, theirs, strict=True)]
            write(place, chosen)
            step = nest.convert(later, i64)
            nest.emit(Set(right, add(b, step)))
            nest.emit(Set(left, add(a, 1, scale(step, -1))))
        for var, other, limit in ((left, right, middle), (right, left, end)):
            with nest.repeat(lambda var=var, limit=limit: nest.less(nest.keep(var), limit)):  # type: ignore[misc]
                at = nest.keep(var)
                write(nest.let(add(at, nest.keep(other), scale(middle, -1))), read(at))
                nest.emit(Set(var, add(at, 1)))
        nest.emit(Set(begin, end))


@sink("chlo.top_k")
def top_k(nest: Nest, op: Op, output: Output) -> None:
    """The k largest of each row, equal ones in the order of the row."""
    operand = op.operands[0]
    shape, k = tensor(operand), op.attrs["k"]
    dim, kinds = shape.rank - 1, [shape.element, i32]
    length = shape.sizes[dim]

    before = order_of_top_k(nest, shape.element)
    if k <= INSERTED:
        _keep_largest(nest, op, output, before)
        return
    indices = Shape.of(i32, shape.sizes)
    held, spare = ([nest.scratch(each) for each in (shape, indices)] for _ in range(2))
    with _rows(nest, shape.sizes, dim) as row:
        with nest.loop(length) as at:
            nest.store(held[0], row(at), nest.pull(operand, row.index(at)))
            nest.store(held[1], row(at), nest.convert(at, i32))
        merge_sort(nest, held, spare, kinds, length, row, before)
        results = Row(row.outer, tensor(op.results[0]).sizes, dim)
        with nest.loop(k) as at:
            for source, target, kind in zip(held, output.targets, kinds, strict=True):
                nest.store(target, results(at), nest.read(nest.buffer(source), row(at), kind))


def order_of_top_k(nest: Nest, element: DType) -> Before:
    def before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
        return nest.apply("GT_TOTALORDER" if element.is_float else "GT", a[0], b[0], dtype=i1)

    return before


def _keep_largest(nest: Nest, op: Op, output: Output, before: Before) -> None:
    """Small k: insertion into the sorted results so far."""
    operand = op.operands[0]
    shape, k = tensor(operand), op.attrs["k"]
    dim, kinds = shape.rank - 1, [shape.element, i32]
    if k == 0:
        return
    with _rows(nest, shape.sizes, dim) as row:
        found = Row(row.outer, tensor(op.results[0]).sizes, dim)

        def at_place(place: Expr, which: int) -> Expr:
            return nest.read(nest.buffer(output.targets[which]), found(place), kinds[which])

        def comes_before(item: Expr, place: Expr) -> Expr:
            """Whether an item comes before the one at a position; an empty position is not read."""
            return before([item], [at_place(place, 0)])

        with nest.loop(shape.sizes[dim], "ordered") as at:
            item = nest.pull(operand, row.index(at))
            full = nest.apply("GE", at, Number(k), dtype=i1)
            wanted = nest.choose(full, lambda: comes_before(item, Number(k - 1)), lambda: Number(True, i1), i1)
            with nest.guard(nest.keep(wanted)):
                hole = nest.declare(i64, nest.apply("minimum", at, Number(k - 1)))

                def moves() -> Expr:
                    here = nest.keep(hole)
                    return nest.keep(
                        nest.choose(
                            nest.less(Number(0), here),
                            lambda: comes_before(item, nest.let(add(here, -1))),
                            lambda: Number(False, i1),
                            i1,
                        )
                    )

                with nest.repeat(moves):
                    here = nest.keep(hole)
                    for which, target in enumerate(output.targets):
                        nest.store(target, found(here), at_place(add(here, -1), which))
                    nest.emit(Set(hole, add(here, -1)))
                _put(nest, output, found(nest.keep(hole)), (item, nest.convert(at, i32)))


def _put(nest: Nest, output: Output, offset: Expr, items: Sequence[Expr]) -> None:
    for target, item in zip(output.targets, items, strict=True):
        nest.store(target, offset, item)
