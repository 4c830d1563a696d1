"""Sorting on a GPU: a thread for every element finds its position, in runs that get longer from launch to launch.

The first launch ranks each element among the 256 of its run by comparing it with all of them. Each of the following
merges four sorted runs: a binary search in the three others says how many of their elements come before one. Both are
stable. `chlo.top_k` of long rows sorts them; `sort.py` has the serial algorithms, which short rows of it still use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dim import Size, floordiv, minimum
from smelt.dtype import DType, i1, i32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Region, walk
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.build.sort import Before, Row, order_of_top_k
from smelt.kernel.build.sort import top_k as serial_top_k
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Set, add, scale, split
from smelt.kernel.loops.nest import Nest, tensor
from smelt.shape import Shape

RUN, WAYS = 256, 4  # elements that the first launch sorts; runs that the others merge
MOST = 1 << 31  # elements of a row whose number is dynamic
SHORT = 512  # elements of a row whose k largest one thread finds


@simt_sink("stablehlo.sort")
def sort(nest: Nest, op: Op, output: Output) -> None:
    shapes = [tensor(value) for value in op.operands]
    sizes, body = shapes[0].sizes, op.regions[0]

    def before(a: Sequence[Expr], b: Sequence[Expr]) -> Expr:
        return nest.inline(body, [each for pair in zip(a, b, strict=True) for each in pair])[0]

    def element(which: int, index: tuple[Expr, ...]) -> Expr:
        return nest.pull(op.operands[which], index)

    held = Arrays(tuple(output.targets), tuple(shape.element for shape in shapes), compared_operands(body))
    sort_rows(nest, held, sizes, op.attrs["dimension"] % len(sizes), element, before)


@simt_sink("chlo.top_k")
def top_k(nest: Nest, op: Op, output: Output) -> None:
    (operand,) = op.operands
    shape = tensor(operand)
    *outer, length = shape.sizes
    if isinstance(length, int) and length <= SHORT:
        serial_top_k(nest, op, output)
        return
    numbers = Shape.of(i32, shape.sizes)

    def element(which: int, index: tuple[Expr, ...]) -> Expr:
        return nest.convert(index[-1], i32) if which else nest.pull(operand, index)

    held = Arrays((nest.scratch(shape), nest.scratch(numbers)), (shape.element, i32), (0,))
    sort_rows(nest, held, shape.sizes, shape.rank - 1, element, order_of_top_k(nest, shape.element))
    with nest.loops((*outer, op.attrs["k"])) as index:
        *rows, at = index
        source = Row(dict(enumerate(rows)), shape.sizes, shape.rank - 1)
        target = Row(source.outer, tensor(op.results[0]).sizes, shape.rank - 1)
        for which, buffer in enumerate(output.targets):
            nest.store(buffer, target(at), held.read(nest, which, source(at)))


class Arrays(Frozen):
    """Buffers that are sorted together, the types of their elements, and those that the order depends on."""

    buffers: tuple[int, ...]
    kinds: tuple[DType, ...]
    compared: tuple[int, ...]

    def read(self, nest: Nest, which: int, offset: Expr) -> Expr:
        return nest.read(nest.buffer(self.buffers[which]), offset, self.kinds[which])

    def items(self, read: Callable[[int], Expr]) -> list[Expr]:
        """An element of each array that the order depends on; zeros for the others."""
        return [read(i) if i in self.compared else Number(0, kind) for i, kind in enumerate(self.kinds)]


def compared_operands(body: Region) -> tuple[int, ...]:
    """The operands that a comparator reads."""
    used = {value for op in walk(body) for value in op.operands} | {*body.results}
    return tuple(sorted({i // 2 for i, arg in enumerate(body.args) if arg in used}))


def sort_rows(
    nest: Nest,
    held: Arrays,
    sizes: Sequence[Size],
    dim: int,
    element: Callable[[int, tuple[Expr, ...]], Expr],
    before: Before,
) -> None:
    """Sort the rows along a dimension into the buffers `held`. `element` gives what is sorted."""
    length = sizes[dim]
    spare = held.replace(buffers=tuple(nest.scratch(Shape.of(kind, tuple(sizes))) for kind in held.kinds))
    widths = run_lengths(length)
    steps = [minimum(floordiv(length, width + 1), 1) for width in widths]  # 1 where there are several such runs
    source, target = (held, spare) if not isinstance(length, int) or len(widths) % 2 == 0 else (spare, held)
    with nest.loops(sizes) as index:
        _rank_in_run(nest, source, Row(dict(enumerate(index)), sizes, dim), element, before)
    for width, here in zip(widths, steps, strict=True):
        with nest.loops((sizes[0] * here, *sizes[1:])) as index:
            _merge(nest, source, target, Row(dict(enumerate(index)), sizes, dim), width, before)
        source, target = target, source
    count = _total(steps)
    odd = 0 if isinstance(length, int) else count - 2 * floordiv(count, 2)
    if odd != 0:
        with nest.loops((sizes[0] * odd, *sizes[1:])) as index:
            row = Row(dict(enumerate(index)), sizes, dim)
            for which, buffer in enumerate(held.buffers):
                nest.store(buffer, row(index[dim]), spare.read(nest, which, row(index[dim])))


def _total(steps: Sequence[Size]) -> Size:
    total: Size = 0
    for each in steps:
        total = total + each
    return total


def run_lengths(length: Size) -> list[int]:
    """The lengths of the runs that launches merge."""
    most, found = length if isinstance(length, int) else MOST, []
    width = RUN
    while width < most:
        found.append(width)
        width *= WAYS
    return found


def _comes_first(
    nest: Nest, held: Arrays, before: Before, own: list[Expr], other: list[Expr], is_earlier: Expr
) -> Expr:
    """Whether another element comes before one's own. `is_earlier`: it did so before they were sorted."""

    def choose(x: Expr, y: Expr) -> Expr:
        return nest.apply("select", is_earlier, x, y, dtype=x.dtype)

    pairs = [
        (choose(x, y), choose(y, x)) if i in held.compared else (x, y)
        for i, (x, y) in enumerate(zip(own, other, strict=True))
    ]
    found = nest.keep(before([a for a, _ in pairs], [b for _, b in pairs]))
    return nest.apply("NE", nest.convert(found, i32), nest.convert(is_earlier, i32), dtype=i1)


def _rank_in_run(
    nest: Nest, target: Arrays, row: Row, element: Callable[[int, tuple[Expr, ...]], Expr], before: Before
) -> None:
    """Put an element where it belongs among those of its run."""
    length, at = row.sizes[row.dim], row.outer[row.dim]
    start = nest.let(add(at, scale(split(at, RUN)[1], -1)))
    end = nest.apply("minimum", nest.let(add(start, RUN)), Amount(length), dtype=i64)
    own = target.items(lambda which: element(which, row.index(at)))
    place = nest.declare(i64, start)
    with nest.loop(nest.let(add(end, scale(start, -1))), "ordered") as j:
        other = nest.let(add(start, j))
        items = target.items(lambda which: element(which, row.index(other)))
        first = _comes_first(nest, target, before, own, items, nest.less(other, at))
        counted = nest.both(first, nest.apply("NE", other, at, dtype=i1))
        nest.emit(Set(place, add(nest.keep(place), nest.convert(counted, i64))))
    offset = row(nest.keep(place))
    for which, buffer in enumerate(target.buffers):
        nest.store(buffer, offset, element(which, row.index(at)))


def _merge(nest: Nest, source: Arrays, target: Arrays, row: Row, width: int, before: Before) -> None:
    """Put an element where it belongs among those of its run of `width` and of the runs that are merged with it."""
    length, at = row.sizes[row.dim], row.outer[row.dim]
    inside = nest.let(split(at, WAYS * width)[1])
    start, run = nest.let(add(at, scale(inside, -1))), nest.let(Quotient(inside, width))
    own = source.items(lambda which: source.read(nest, which, row(at)))
    place = nest.declare(i64, nest.let(add(at, scale(run, -width))))
    with nest.loop(WAYS, "ordered") as other:
        first = nest.apply("minimum", nest.let(add(start, scale(other, width))), Amount(length), dtype=i64)
        end = nest.apply("minimum", nest.let(add(first, width)), Amount(length), dtype=i64)
        is_own = nest.apply("EQ", other, run, dtype=i1)
        is_earlier = nest.less(other, run)
        low = nest.declare(i64, first)
        high = nest.declare(i64, nest.apply("select", is_own, first, end, dtype=i64))
        with nest.repeat(lambda: nest.less(nest.keep(low), nest.keep(high))):
            a, b = nest.keep(low), nest.keep(high)
            middle = nest.let(Quotient(nest.let(add(a, b)), 2))
            items = source.items(lambda which: source.read(nest, which, row(middle)))
            comes = nest.keep(_comes_first(nest, source, before, own, items, is_earlier))
            nest.emit(Set(low, nest.apply("select", comes, nest.let(add(middle, 1)), a, dtype=i64)))
            nest.emit(Set(high, nest.apply("select", comes, b, middle, dtype=i64)))
        nest.emit(Set(place, add(nest.keep(place), nest.keep(low), scale(first, -1))))
    offset = row(nest.keep(place))
    for which, buffer in enumerate(target.buffers):
        nest.store(buffer, offset, source.read(nest, which, row(at)))
