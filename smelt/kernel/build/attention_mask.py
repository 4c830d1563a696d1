"""Which keys masks leave to a block of queries, found out before the products: what is blotted out is not computed.

Scores lie within [-bound, bound], bound = sum |q| * max |k|. A mask moves a score or replaces it; what it makes of 0 is
the key's *place*. A key counts for nothing where its place is so far below the greatest place of every query that its
weight is zero whatever the scores are. So leaving it out changes no bit, unless its value is not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from smelt.dim import Size, ceildiv
from smelt.dtype import DType, f32, i1, i64
from smelt.kernel.build.attention_shape import At, Attention, Choice
from smelt.kernel.loops.grammar import Expr, Load, LoadLocal, Number, Set, StoreLocal, add, scale
from smelt.kernel.loops.nest import Nest, flat
from smelt.shape import Shape

SMALLEST = 88.0  # the weight of -88 is zero
SLACK = 1.0001  # for rounding


@dataclass(frozen=True, slots=True)
class Reach:
    """Buffers that are filled before the blocks of queries.

    By block and key: the greatest place (`tops`), and whether masks change nothing there (`plain`). By block: the least
    of the queries' greatest places (`floors`). By the letters of keys: max |k| (`sizes`).
    """

    problem: Attention
    choice: Choice
    letters: tuple[str, ...]  # of the masks, besides those of queries and keys
    queries: Size  # that masks tell apart
    tops: int
    plain: int
    floors: int
    sizes: int

    @staticmethod
    def of(nest: Nest, problem: Attention, choice: Choice, some: Size) -> Reach | None:
        """The buffers, and the loops that fill them; None where no mask looks at keys."""
        seen = {letter for word in problem.axes.words[3:] for axis in word for letter in axis}
        if problem.axes.key not in seen:
            return None
        letters = tuple(letter for letter in problem.axes.batch if letter in seen)
        queries = problem.queries if seen.intersection(problem.axes.rows) else 1
        keys = problem.axes.size(problem.axes.key)
        outer = (*(problem.axes.size(letter) for letter in letters), ceildiv(queries, choice.queries))
        heads = [problem.axes.size(letter) for letter in _key_letters(problem)]
        reach = Reach(
            problem,
            choice,
            letters,
            queries,
            nest.scratch(Shape("f32", *outer, keys)),
            nest.scratch(Shape("i1", *outer, keys)),
            nest.scratch(Shape("f32", *outer)),
            nest.scratch(Shape("f32", *heads)),
        )
        reach.fill_places(nest, some)
        reach.fill_sizes(nest, some)
        return reach

    @property
    def blocks(self) -> Size:
        return ceildiv(self.queries, self.choice.queries)

    # -- before --

    def fill_places(self, nest: Nest, some: Size) -> None:
        problem, axes = self.problem, self.problem.axes
        keys = axes.size(axes.key)
        sizes = [axes.size(letter) for letter in self.letters]
        with nest.loops((*sizes, self.blocks * some)) as index:
            at = dict(zip(self.letters, index, strict=False))
            row = flat(index, (*sizes, self.blocks))
            with nest.loop(keys, "lane") as j:
                nest.store(self.tops, add(scale(row, keys), j), Number(-inf, f32))
                nest.store(self.plain, add(scale(row, keys), j), Number(True, i1))
            floor = nest.declare(f32, Number(inf, f32))
            first = scale(index[-1], self.choice.queries)
            with nest.loop(problem.bounded(nest, self.choice.queries, self.queries, first), "ordered") as i:
                here = {**at, **problem.apart(add(first, i))}
                greatest = nest.fold(
                    "maximum",
                    Number(-inf, f32),
                    keys,
                    lambda j: problem.masked(nest, Number(0.0, f32), {**here, axes.key: j}),
                )
                nest.emit(Set(floor, nest.apply("minimum", nest.keep(floor), greatest)))
                with nest.loop(keys, "lane") as j:
                    self.see(nest, add(scale(row, keys), j), {**here, axes.key: j})
            nest.store(self.floors, row, floor)

    def see(self, nest: Nest, place: Expr, at: At) -> None:
        """One query more for a key."""
        zero, one = Number(0.0, f32), Number(1.0, f32)
        moved, other = self.problem.masked(nest, zero, at), self.problem.masked(nest, one, at)
        same = nest.both(nest.apply("EQ", moved, zero, dtype=i1), nest.apply("EQ", other, one, dtype=i1))
        old = nest.keep(self.load(nest, self.tops, place, f32))
        was = nest.keep(self.load(nest, self.plain, place, i1))
        nest.store(self.tops, place, nest.apply("maximum", old, moved))
        nest.store(self.plain, place, nest.both(was, same))

    def fill_sizes(self, nest: Nest, some: Size) -> None:
        problem, axes = self.problem, self.problem.axes
        letters = _key_letters(problem)
        sizes = [axes.size(letter) for letter in letters]
        with nest.loops((*sizes, some)) as (*index, _):
            at = dict(zip(letters, index, strict=True))
            most = problem.array(nest, "most", problem.depth)
            with nest.loop(problem.depth, "lane") as d:
                nest.emit(StoreLocal(most, d, Number(0.0, f32)))
            with nest.loop(axes.size(axes.key), "ordered") as j, nest.loop(problem.depth, "lane") as d:
                size = nest.apply("abs", problem.element(nest, 1, {**at, axes.key: j, axes.depth: d}))
                nest.emit(StoreLocal(most, d, nest.apply("maximum", nest.keep(LoadLocal(most, d, f32)), size)))
            self.store_greatest(nest, most, problem.depth, flat(tuple(index), sizes))

    def store_greatest(self, nest: Nest, array: str, count: int, place: Expr) -> None:
        nest.store(self.sizes, place, greatest(nest, array, count))

    # -- in a block --

    def load(self, nest: Nest, buffer: int, place: Expr, dtype: DType) -> Load:
        return Load(nest.buffer(buffer), place, dtype)

    def limit(self, nest: Nest, at: At, block: Expr, queries: str) -> Expr:
        """Keys with a place below this count for nothing."""
        problem, width = self.problem, self.problem.width
        sums = problem.array(nest, "sum", width)
        with nest.loop(width, "lane") as i:
            nest.emit(StoreLocal(sums, i, Number(0.0, f32)))
        with nest.loop(problem.depth, "ordered") as d, nest.loop(width, "lane") as i:
            size = nest.apply("abs", nest.keep(LoadLocal(queries, add(scale(d, width), i), f32)))
            nest.emit(StoreLocal(sums, i, nest.apply("add", nest.keep(LoadLocal(sums, i, f32)), size)))
        letters = _key_letters(problem)
        head = flat(tuple(at[each] for each in letters), [problem.axes.size(each) for each in letters])
        size = nest.keep(self.load(nest, self.sizes, head, f32))
        bound = nest.apply("multiply", greatest(nest, sums, width), size)
        if problem.numbers.softcap:
            bound = nest.apply("minimum", bound, Number(problem.numbers.softcap, f32))
        floor = nest.keep(self.load(nest, self.floors, self.row(at, block), f32))
        far = nest.apply("add", nest.apply("multiply", bound, Number(2 * SLACK, f32)), Number(SMALLEST, f32))
        rounding = nest.apply("multiply", nest.apply("abs", floor), Number(SLACK - 1, f32))
        return nest.apply("subtract", floor, nest.apply("add", far, rounding))

    def row(self, at: At, block: Expr) -> Expr:
        sizes = [self.problem.axes.size(letter) for letter in self.letters]
        here = (*(at[letter] for letter in self.letters), block if self.queries != 1 else Number(0))
        return flat(here, (*sizes, self.blocks))

    def part(self, nest: Nest, at: At, block: Expr, start: Expr, count: Expr, limit: Expr) -> tuple[Expr, Expr, Expr]:
        """Of `count` keys: the first that counts, the one after the last, and whether masks change any at all."""
        keys = self.problem.axes.size(self.problem.axes.key)
        low, high = nest.declare(i64, count), nest.declare(i64, Number(0))
        masked = nest.declare(i1, Number(False, i1))
        with nest.loop(count, "ordered") as j:
            place = add(scale(self.row(at, block), keys), start, j)
            top, plain = (nest.keep(self.load(nest, *of)) for of in ((self.tops, place, f32), (self.plain, place, i1)))
            changed = nest.apply("not", plain, dtype=i1)
            nest.emit(Set(masked, nest.apply("or", nest.keep(masked), changed, dtype=i1)))
            with nest.guard(nest.apply("not", nest.less(top, limit), dtype=i1)):
                nest.emit(Set(low, nest.apply("minimum", nest.keep(low), j, dtype=i64)))
                nest.emit(Set(high, nest.let(add(j, 1))))
        return nest.keep(low), nest.keep(high), nest.keep(masked)


def _key_letters(problem: Attention) -> list[str]:
    """The letters that tell keys of different heads apart."""
    return [letter for letter in problem.axes.batch if letter in "".join(problem.axes.words[1])]


def greatest(nest: Nest, array: str, count: int) -> Expr:
    """The greatest element of a local array."""
    total = nest.declare(f32, Number(0.0, f32))
    with nest.loop(count, "ordered") as i:
        nest.emit(Set(total, nest.apply("maximum", nest.keep(total), nest.keep(LoadLocal(array, i, f32)))))
    return nest.keep(total)
