"""Sorting on a GPU: runs in the shared memory of a block, which launch after launch merges, two at a time.

A thread ranks 8 adjacent elements by comparing all pairs. Runs of these are merged in shared memory: a thread finds the
elements before its 8 results by a binary search (merge path), and merges from there. Longer runs are merged in the same
way, by blocks which search for the part of both that they merge. All of it is stable, with any comparator. `chlo.top_k`
keeps the k largest of each run, and sorts those again; of short rows it ranks every element among all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import DType, dtype, i1, i32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Region, walk
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.build.sort import Before, Row, order_of_top_k
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Set, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.shape import Shape

Element = Callable[[int, Index], Expr]  # of an array, at an index
RUN, SHORT_RUNS = 2048, (32, 256)  # elements that a block sorts in shared memory; that a warp does, of rows as short
CHUNK = 8  # elements of a thread
PLACE = dtype("i16")  # of an element in shared memory
SHRINKS = 4  # the largest of a run are at most this part of it
PROBES = 128  # threads that search together for where two runs are split
MOST = 1 << 31  # elements of a row whose number is dynamic; calls with more are refused
SHORT = 512  # elements of a row each of which is compared with all others, where only the largest are wanted


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
    dim, k, kinds = shape.rank - 1, op.attrs["k"], (shape.element, i32)
    before = order_of_top_k(nest, shape.element)

    def element(which: int, index: Index) -> Expr:
        return nest.convert(index[-1], i32) if which else nest.pull(operand, index)

    if isinstance(length, int) and length <= SHORT:
        _rank_in_row(nest, op, output)
        return
    if isinstance(length, int) and (length <= RUN or k <= RUN // SHRINKS):
        _select_in_runs(nest, Arrays(tuple(output.targets), kinds, (0,)), (*outer, length), k, element, before)
        return
    held = Arrays(tuple(nest.scratch(Shape.of(kind, shape.sizes)) for kind in kinds), kinds, (0,))
    sort_rows(nest, held, shape.sizes, dim, element, before)
    with nest.loops((*outer, k)) as (*rows, at):
        source = Row(dict(enumerate(rows)), shape.sizes, dim)
        target = Row(source.outer, tensor(op.results[0]).sizes, dim)
        for which, buffer in enumerate(output.targets):
            nest.store(buffer, target(at), held.read(nest, which, source(at)))


def _select_in_runs(nest: Nest, held: Arrays, sizes: Sequence[Size], k: int, element: Element, before: Before) -> None:
    """The first k of each row: of every run, then of what these leave, until that is one run."""
    *outer, length = sizes
    assert isinstance(length, int)
    left = length // RUN * k + min(length % RUN, k)
    target = held
    if length > RUN:
        shapes = (Shape.of(kind, (*outer, left)) for kind in held.kinds)
        target = held.replace(buffers=tuple(map(nest.scratch, shapes)))
    with _runs(nest, sizes, len(outer), RUN) as (row, number):
        kept = Row(row.outer, (*outer, left), len(outer))

        def put(at: Expr, which: int, value: Expr) -> None:
            nest.store(target.buffers[which], kept(nest.let(add(scale(number, k), at))), value)

        _sort_run(nest, target, row, number, RUN, element, before, put, k)

    def read_selected(which: int, index: Index) -> Expr:
        return target.read(nest, which, flat(index, (*outer, left)))

    if length > RUN:
        _select_in_runs(nest, held, (*outer, left), k, read_selected, before)


def _rank_in_row(nest: Nest, op: Op, output: Output) -> None:
    """The k largest of short rows: a thread counts the elements that come before its own."""
    (operand,) = op.operands
    shape, k = tensor(operand), op.attrs["k"]
    before = order_of_top_k(nest, shape.element)
    with nest.loops(shape.sizes) as (*rows, at):
        own, rank = nest.pull(operand, (*rows, at)), nest.declare(i32, Number(0, i32))
        with nest.loop(shape.sizes[-1], "ordered") as other:
            item = nest.pull(operand, (*rows, other))
            is_equal = nest.apply("and", nest.less(other, at), nest.apply("not", before([own], [item])), dtype=i1)
            first = nest.convert(nest.apply("or", before([item], [own]), is_equal, dtype=i1), i32)
            nest.emit(Set(rank, nest.apply("add", nest.keep(rank), first)))
        place = nest.keep(rank)
        with nest.guard(nest.less(place, Number(k, i32))):
            offset = Row(dict(enumerate(rows)), tensor(op.results[0]).sizes, shape.rank - 1)(nest.convert(place, i64))
            for buffer, item in zip(output.targets, (own, nest.convert(at, i32)), strict=True):
                nest.store(buffer, offset, item)


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


def sort_rows(nest: Nest, held: Arrays, sizes: Sequence[Size], dim: int, element: Element, before: Before) -> None:
    """Sort the rows along a dimension into the buffers `held`. `element` gives what is sorted."""
    length = sizes[dim]
    run = next((each for each in SHORT_RUNS if isinstance(length, int) and length <= each), RUN)
    widths = run_lengths(length)
    steps = [minimum(floordiv(length, width + 1), 1) for width in widths]  # 1 where there are several such runs
    source = target = held
    if widths:
        spare = held.replace(buffers=tuple(nest.scratch(Shape.of(kind, tuple(sizes))) for kind in held.kinds))
        source, target = (held, spare) if not isinstance(length, int) or len(widths) % 2 == 0 else (spare, held)
    with _runs(nest, sizes, dim, run) as (row, number):

        def put(at: Expr, which: int, value: Expr) -> None:
            nest.store(source.buffers[which], row(nest.let(add(scale(number, run), at))), value)

        _sort_run(nest, source, row, number, run, element, before, put)
    for width, here in zip(widths, steps, strict=True):
        with _runs(nest, sizes, dim, RUN, here) as (row, number):
            _merge(nest, source, target, row, number, width, before)
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
        width *= 2
    return found


@contextmanager
def _runs(nest: Nest, sizes: Sequence[Size], dim: int, run: int, times: Size = 1) -> Iterator[tuple[Row, Expr]]:
    """Loops over the runs of all rows, `times` 0 or 1: a row, and the number of a run of it."""
    others = [d for d in range(len(sizes)) if d != dim]
    with nest.loops((*(sizes[d] for d in others), ceildiv(sizes[dim], run) * times)) as (*outer, number):
        yield Row(dict(zip(others, outer, strict=True)), sizes, dim), number


class Tiles(Frozen):
    """Elements in shared memory: a tile of each array that the order depends on, and one of places, if any."""

    values: Mapping[int, str]
    places: str | None
    kinds: tuple[DType, ...]

    @staticmethod
    def of(nest: Nest, held: Arrays, run: int, *, places: bool) -> Tiles:
        room = run + 2 * CHUNK  # a thread reads past the end of what it merges
        values = {which: nest.tile("keys", held.kinds[which], room) for which in held.compared}
        return Tiles(values, nest.tile("places", PLACE, room) if places else None, held.kinds)

    def read(self, nest: Nest, at: Expr) -> list[Expr]:
        """An element of each array; zeros for those that the order does not depend on."""
        return [
            nest.read(self.values[i], at, kind) if i in self.values else Number(0, kind)
            for i, kind in enumerate(self.kinds)
        ]

    def write(self, nest: Nest, at: Expr, items: Sequence[Expr], place: Expr) -> None:
        for which, name in self.values.items():
            nest.write(name, at, items[which])
        if self.places is not None:
            nest.write(self.places, at, nest.convert(place, PLACE))

    def read_place(self, nest: Nest, at: Expr) -> Expr:
        assert self.places is not None
        return nest.convert(nest.read(self.places, at, PLACE), i64)


def _sort_run(
    nest: Nest,
    held: Arrays,
    row: Row,
    number: Expr,
    run: int,
    element: Element,
    before: Before,
    put: Callable[[Expr, int, Expr], None],
    most: int | None = None,
) -> None:
    """Sort a run of a row, and put the elements in order; `most`: the first ones alone."""
    length = row.sizes[row.dim]
    start = nest.let(scale(number, run))
    whole = isinstance(length, int) and length % run == 0
    left: Expr = Number(run)
    if not whole:
        left = nest.apply("minimum", left, nest.let(add(length, scale(start, -1))), dtype=i64)
    count = Number(run, i32) if whole else nest.convert(left, i32)
    moved = len(held.compared) < len(held.kinds)
    source, target = (Tiles.of(nest, held, run, places=moved) for _ in range(2))
    with nest.loop(run, "lane") as at:
        there = nest.let(add(start, at))
        if not whole:
            there = nest.apply("minimum", there, nest.let(add(length, -1)), dtype=i64)
        for which, name in source.values.items():
            nest.write(name, at, element(which, row.index(there)))
    with nest.loop(run // CHUNK, "lane") as chunk:
        _sort_chunk(nest, source, target, nest.convert(nest.let(scale(chunk, CHUNK)), i32), count, before)
    width = CHUNK
    while width < run:
        source, target = target, source
        with nest.loop(run // CHUNK, "lane") as chunk:
            _merge_in_run(nest, source, target, nest.convert(nest.let(scale(chunk, CHUNK)), i32), count, width, before)
        width *= 2
    with nest.loop(run if most is None else min(most, run), "lane") as at, nest.guard(nest.less(at, left)):
        items = target.read(nest, at)
        for which in range(len(held.kinds)):
            if which in held.compared:
                put(at, which, items[which])
            else:
                put(at, which, element(which, row.index(nest.let(add(start, target.read_place(nest, at))))))


def _sort_chunk(nest: Nest, source: Tiles, target: Tiles, first: Expr, count: Expr, before: Before) -> None:
    """Sort the adjacent elements of one thread: how many come before each is known when all pairs are compared."""
    places = [nest.apply("add", first, Number(i, i32)) for i in range(CHUNK)]
    held, ranks = [source.read(nest, at) for at in places], [*places]
    for j in range(CHUNK):
        inside = nest.less(places[j], count)
        for i in range(j):
            one = nest.convert(nest.both(before(held[j], held[i]), inside), i32)
            ranks[i] = nest.apply("add", ranks[i], one)
            ranks[j] = nest.apply("subtract", ranks[j], one)
    for where in (places, ranks):  # an order that contradicts itself gives some elements the same rank, and others none
        for items, at, place in zip(held, where, places, strict=True):
            target.write(nest, at, items, place)


def _merge_in_run(
    nest: Nest, source: Tiles, target: Tiles, first: Expr, count: Expr, width: int, before: Before
) -> None:
    """Merge runs of `width` of the `count` elements of a longer one: the results of a thread, from `first` on."""
    pair = nest.apply("and", first, Number(-2 * width, i32))

    def write(step: Expr, items: Sequence[Expr], place: Expr) -> None:
        at = nest.apply("add", first, nest.convert(step, i32))
        target.write(nest, at, items, Number(0) if source.places is None else source.read_place(nest, place))

    with nest.guard(nest.less(first, count)):
        rest = nest.apply("subtract", count, pair)
        ends = [nest.apply("minimum", rest, Number(each, i32)) for each in (width, 2 * width)]
        middle, end = (nest.apply("add", pair, each) for each in ends)
        _merge_chunk(nest, source, (pair, middle, end), nest.apply("subtract", first, pair), before, write)


def _merge_chunk(
    nest: Nest,
    tiles: Tiles,
    ends: tuple[Expr, Expr, Expr],
    first: Expr,
    before: Before,
    write: Callable[[Expr, Sequence[Expr], Expr], None],
) -> None:
    """Merge two adjacent runs in shared memory, which begin at `ends` and end there: results `first` and those behind
    it, of one thread. `write` gets the number of a result, its elements, and their place."""
    left, right, end = ends
    many, more = nest.apply("subtract", right, left), nest.apply("subtract", end, right)
    none = Number(0, i32)
    low = nest.declare(i32, nest.apply("maximum", none, nest.apply("subtract", first, more)))
    high = nest.declare(i32, nest.apply("minimum", first, many))
    opposite = nest.apply("subtract", nest.apply("add", right, first), Number(1, i32))
    with nest.repeat(lambda: nest.less(nest.keep(low), nest.keep(high))):
        a, b = nest.keep(low), nest.keep(high)
        middle = nest.apply("shift_right_logical", nest.apply("add", a, b), Number(1, i32))
        ours = tiles.read(nest, nest.apply("add", left, middle))
        theirs = tiles.read(nest, nest.apply("subtract", opposite, middle))
        comes = nest.keep(before(theirs, ours))
        nest.emit(Set(low, nest.apply("select", comes, a, nest.apply("add", middle, Number(1, i32)), dtype=i32)))
        nest.emit(Set(high, nest.apply("select", comes, middle, b, dtype=i32)))
    taken = nest.keep(low)
    at = nest.declare(i32, nest.apply("add", left, taken))
    other = nest.declare(i32, nest.apply("subtract", nest.apply("add", right, first), taken))
    heads = [
        {which: nest.declare(tiles.kinds[which], tiles.read(nest, nest.keep(begin))[which]) for which in tiles.values}
        for begin in (at, other)
    ]

    def head(which: int) -> list[Expr]:
        return [nest.keep(heads[which].get(i, Number(0, kind))) for i, kind in enumerate(tiles.kinds)]

    with nest.loop(CHUNK, "ordered") as step:
        a, b = nest.keep(at), nest.keep(other)
        ours, theirs = head(0), head(1)
        comes = nest.apply("or", nest.apply("GE", a, right, dtype=i1), nest.keep(before(theirs, ours)))
        comes = nest.both(nest.less(b, end), comes)
        place = nest.apply("select", comes, b, a, dtype=i32)
        chosen = [nest.apply("select", comes, y, x, dtype=x.dtype) for x, y in zip(ours, theirs, strict=True)]
        write(step, chosen, place)
        after = nest.apply("add", place, Number(1, i32))
        nest.emit(Set(at, nest.apply("select", comes, a, after, dtype=i32)))
        nest.emit(Set(other, nest.apply("select", comes, after, b, dtype=i32)))
        following = tiles.read(nest, after)
        for i in tiles.values:
            nest.emit(Set(heads[0][i], nest.apply("select", comes, ours[i], following[i], dtype=tiles.kinds[i])))
            nest.emit(Set(heads[1][i], nest.apply("select", comes, following[i], theirs[i], dtype=tiles.kinds[i])))


def _merge(nest: Nest, source: Arrays, target: Arrays, row: Row, number: Expr, width: int, before: Before) -> None:
    """Merge two runs of `width`: the elements that are run `number` of RUN elements of the result."""
    length = row.sizes[row.dim]
    start = nest.let(scale(number, RUN))
    first = nest.let(split(start, 2 * width)[1])
    pair = nest.let(add(start, scale(first, -1)))
    rest = nest.let(add(length, scale(pair, -1)))
    many = nest.apply("minimum", rest, Number(width), dtype=i64)
    more = nest.apply("clamp", Number(0), nest.let(add(rest, -width)), Number(width), dtype=i64)
    last = nest.apply("minimum", nest.let(add(first, RUN)), nest.let(add(many, more)), dtype=i64)
    low, high = _split(nest, source, row, (pair, width, many, more), (first, last), before)
    count = nest.let(add(last, scale(first, -1)))
    # An order that contradicts itself, as LT does with NaN, gives any two numbers.
    ours = nest.apply("clamp", Number(0), nest.let(add(high, scale(low, -1))), count, dtype=i64)
    left, right = nest.let(add(pair, low)), nest.let(add(pair, width, first, scale(low, -1), scale(ours, -1)))

    def origin(at: Expr) -> Expr:
        """Where an element in shared memory comes from, in the row."""
        there = nest.apply("select", nest.less(at, ours), left, right, dtype=i64)
        return nest.apply("minimum", nest.let(add(at, there)), nest.let(add(Amount(length), -1)), dtype=i64)

    tiles = Tiles.of(nest, source, RUN, places=False)
    order = nest.tile("order", PLACE, RUN)
    with nest.loop(RUN, "lane") as at:
        offset = row(origin(at))
        for which, name in tiles.values.items():
            nest.write(name, at, source.read(nest, which, offset))
    middle, end = nest.convert(ours, i32), nest.convert(count, i32)
    with nest.loop(RUN // CHUNK, "lane") as chunk:
        here = nest.convert(nest.let(scale(chunk, CHUNK)), i32)

        def write(step: Expr, _: Sequence[Expr], place: Expr) -> None:
            nest.write(order, nest.apply("add", here, nest.convert(step, i32)), nest.convert(place, PLACE))

        with nest.guard(nest.less(here, end)):
            _merge_chunk(nest, tiles, (Number(0, i32), middle, end), here, before, write)
    with nest.loop(RUN, "lane") as at, nest.guard(nest.less(at, count)):
        place = nest.convert(nest.read(order, at, PLACE), i64)
        items, offset = tiles.read(nest, place), row(nest.let(add(start, at)))
        for which, buffer in enumerate(target.buffers):
            held = which in tiles.values
            nest.store(buffer, offset, items[which] if held else source.read(nest, which, row(origin(place))))


def _split(
    nest: Nest,
    source: Arrays,
    row: Row,
    runs: tuple[Expr, int, Expr, Expr],
    results: tuple[Expr, Expr],
    before: Before,
) -> tuple[Expr, Expr]:
    """How many elements of the left one of two runs are among the first `results` of both together, for two numbers.

    The left run begins at a place and has `many` elements, the right one begins `width` after it and has `more`.
    Threads search together: each of PROBES has a part of what is left to search, and finds whether the answer is there.
    """
    pair, width, many, more = runs
    last = nest.let(add(row.sizes[row.dim], -1))

    def item(at: Expr) -> list[Expr]:
        offset = row(nest.apply("clamp", Number(0), at, last, dtype=i64))
        return source.items(lambda which: source.read(nest, which, offset))

    found = nest.tile("split", i64, 2)
    with nest.loop(2, "lane") as first:
        result = nest.apply("select", nest.apply("EQ", first, Number(0), dtype=i1), *results, dtype=i64)
        nest.write(found, first, nest.apply("maximum", Number(0), nest.let(add(result, scale(more, -1))), dtype=i64))
    reach = nest.declare(i64, Number(width))
    with nest.repeat(lambda: nest.less(Number(0), nest.keep(reach))):
        wide = nest.keep(reach)
        step = nest.let(Quotient(nest.let(add(wide, PROBES)), PROBES))
        known = [nest.read(found, Number(i), i64) for i in range(2)]  # before any thread writes
        with nest.loop(2 * PROBES, "lane") as thread:
            side, probe = (nest.let(each) for each in split(thread, PROBES))
            chosen = nest.apply("EQ", side, Number(0), dtype=i1)
            result, low = (nest.apply("select", chosen, *each, dtype=i64) for each in (results, known))
            high = nest.apply("minimum", result, many, dtype=i64)
            high = nest.apply("minimum", high, nest.let(add(low, wide)), dtype=i64)

            def is_later(at: Expr) -> Expr:
                """Whether an element of the left run is not among the results."""
                theirs = item(nest.let(add(pair, width, result, scale(at, -1), -1)))
                return nest.keep(before(theirs, item(nest.let(add(pair, at)))))

            begin = nest.let(add(low, nest.apply("multiply", probe, step, dtype=i64)))
            after = nest.let(add(begin, step))
            is_first, is_last = nest.apply("EQ", probe, Number(0), dtype=i1), nest.less(high, after)
            at_least = nest.apply("or", is_first, nest.apply("not", is_later(add(begin, -1))))
            at_most = nest.apply("or", is_last, is_later(add(after, -1)))
            with nest.guard(nest.both(nest.apply("LE", begin, high, dtype=i1), at_least, at_most)):
                nest.write(found, side, begin)
        nest.emit(Set(reach, add(step, -1)))
    return nest.read(found, Number(0), i64), nest.read(found, Number(1), i64)
