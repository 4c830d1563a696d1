"""Block skipping in masked attention: finds the keys that masks leave visible to a block of queries, before any GEMM.

Scores are within [-bound, bound], bound = sum |q| * max |k|. The *level* of a key is its masked score for an unmasked
score of 0. A key is invisible if its level is so far below the highest level of every query that its weight underflows
to zero for any scores. Skipping it changes no bit, unless its value is not finite.
"""

from __future__ import annotations

from math import inf

from smelt.dim import Size, ceildiv
from smelt.dtype import DType, f32, i1, i64
from smelt.frozen import Frozen
from smelt.kernel.build.attention_shape import At, Attention, AttentionSchedule
from smelt.kernel.loops.grammar import Expr, Load, Number, Place, Set, add, scale
from smelt.kernel.loops.nest import Nest, flat
from smelt.shape import Shape

SMALLEST = 88.0  # exp(-88) counts as zero
SLACK = 1.0001  # margin for rounding


class VisibleKeys(Frozen):
    """Buffers that are filled before the blocks of queries.

    Per block and key: the highest level (`tops`), and whether no mask changes the score (`plain`). Per block: the
    lowest of the queries' highest levels (`floors`). Per key head: max |k| (`sizes`).
    """

    attn: Attention
    schedule: AttentionSchedule
    letters: tuple[str, ...]  # batch and head letters of the masks
    queries: Size  # 1 if no mask varies along queries
    tops: int
    plain: int
    floors: int
    sizes: int

    @staticmethod
    def of(nest: Nest, attn: Attention, schedule: AttentionSchedule, has_many: Size) -> VisibleKeys | None:
        """The buffers, and the loops that fill them; None if no mask varies along keys."""
        seen = {letter for word in attn.axes.words[3:] for axis in word for letter in axis}
        if attn.axes.key not in seen:
            return None
        letters = tuple(letter for letter in attn.axes.batch if letter in seen)
        queries = attn.queries if seen.intersection(attn.axes.rows) else 1
        keys = attn.axes.size(attn.axes.key)
        outer = (*(attn.axes.size(letter) for letter in letters), ceildiv(queries, schedule.queries))
        heads = [attn.axes.size(letter) for letter in _key_letters(attn)]
        visible = VisibleKeys(
            attn,
            schedule,
            letters,
            queries,
            nest.scratch(Shape("f32", *outer, keys)),
            nest.scratch(Shape("i1", *outer, keys)),
            nest.scratch(Shape("f32", *outer)),
            nest.scratch(Shape("f32", *heads)),
        )
        visible.fill_places(nest, has_many)
        visible.fill_sizes(nest, has_many)
        return visible

    @property
    def blocks(self) -> Size:
        return ceildiv(self.queries, self.schedule.queries)

    # -- before --

    def fill_places(self, nest: Nest, has_many: Size) -> None:
        attn, axes = self.attn, self.attn.axes
        keys = axes.size(axes.key)
        sizes = [axes.size(letter) for letter in self.letters]
        with nest.loops((*sizes, self.blocks * has_many)) as index:
            at = dict(zip(self.letters, index, strict=False))
            row = flat(index, (*sizes, self.blocks))
            with nest.loop(keys, "lane") as j:
                nest.store(self.tops, add(scale(row, keys), j), Number(-inf, f32))
                nest.store(self.plain, add(scale(row, keys), j), Number(True, i1))
            floor = nest.declare(f32, Number(inf, f32))
            first = scale(index[-1], self.schedule.queries)
            with nest.loop(attn.clip(nest, self.schedule.queries, self.queries, first), "ordered") as i:
                here = {**at, **attn.apart(add(first, i))}
                greatest = nest.fold(
                    "maximum",
                    Number(-inf, f32),
                    keys,
                    lambda j: attn.mask(nest, Number(0.0, f32), {**here, axes.key: j}),
                )
                nest.emit(Set(floor, nest.apply("minimum", nest.keep(floor), greatest)))
                with nest.loop(keys, "lane") as j:
                    self.see(nest, add(scale(row, keys), j), {**here, axes.key: j})
            nest.store(self.floors, row, floor)

    def see(self, nest: Nest, place: Expr, at: At) -> None:
        """Include one more query in the levels of a key."""
        zero, one = Number(0.0, f32), Number(1.0, f32)
        moved, other = self.attn.mask(nest, zero, at), self.attn.mask(nest, one, at)
        same = nest.both(nest.apply("EQ", moved, zero, dtype=i1), nest.apply("EQ", other, one, dtype=i1))
        old = nest.keep(self.load(nest, self.tops, place, f32))
        was = nest.keep(self.load(nest, self.plain, place, i1))
        nest.store(self.tops, place, nest.apply("maximum", old, moved))
        nest.store(self.plain, place, nest.both(was, same))

    def fill_sizes(self, nest: Nest, has_many: Size) -> None:
        attn, axes = self.attn, self.attn.axes
        letters = _key_letters(attn)
        sizes = [axes.size(letter) for letter in letters]
        with nest.loops((*sizes, has_many)) as (*index, _):
            at = dict(zip(letters, index, strict=True))
            most = attn.array(nest, "most", attn.depth)
            with nest.loop(attn.depth, "lane") as d:
                nest.write(most, d, Number(0.0, f32))
            with nest.loop(axes.size(axes.key), "ordered") as j, nest.loop(attn.depth, "lane") as d:
                size = nest.apply("abs", attn.element(nest, 1, {**at, axes.key: j, axes.depth: d}))
                nest.write(most, d, nest.apply("maximum", nest.read(most, d, f32), size))
            self.store_greatest(nest, most, attn.depth, flat(tuple(index), sizes))

    def store_greatest(self, nest: Nest, array: str, count: int, place: Expr) -> None:
        nest.store(self.sizes, place, greatest(nest, array, count))

    # -- in a block --

    def load(self, nest: Nest, buffer: int, place: Expr, dtype: DType) -> Load:
        return Load(Place(nest.buffer(buffer), place), dtype)

    def limit(self, nest: Nest, at: At, block: Expr, queries: str) -> Expr:
        """Keys with a level below this are invisible."""
        attn, width = self.attn, self.attn.width
        sums = attn.array(nest, "sum", width)
        with nest.loop(width, "lane") as i:
            nest.write(sums, i, Number(0.0, f32))
        with nest.loop(attn.depth, "ordered") as d, nest.loop(width, "lane") as i:
            size = nest.apply("abs", nest.read(queries, add(scale(d, width), i), f32))
            nest.write(sums, i, nest.apply("add", nest.read(sums, i, f32), size))
        letters = _key_letters(attn)
        head = flat(tuple(at[each] for each in letters), [attn.axes.size(each) for each in letters])
        size = nest.keep(self.load(nest, self.sizes, head, f32))
        bound = nest.apply("multiply", greatest(nest, sums, width), size)
        if attn.numbers.softcap:
            bound = nest.apply("minimum", bound, Number(attn.numbers.softcap, f32))
        floor = nest.keep(self.load(nest, self.floors, self.row(at, block), f32))
        far = nest.apply("add", nest.apply("multiply", bound, Number(2 * SLACK, f32)), Number(SMALLEST, f32))
        rounding = nest.apply("multiply", nest.apply("abs", floor), Number(SLACK - 1, f32))
        return nest.apply("subtract", floor, nest.apply("add", far, rounding))

    def row(self, at: At, block: Expr) -> Expr:
        sizes = [self.attn.axes.size(letter) for letter in self.letters]
        here = (*(at[letter] for letter in self.letters), block if self.queries != 1 else Number(0))
        return flat(here, (*sizes, self.blocks))

    def part(self, nest: Nest, at: At, block: Expr, start: Expr, count: Expr, limit: Expr) -> tuple[Expr, Expr, Expr]:
        """Of `count` keys: the first visible one, the one after the last, and whether any mask applies."""
        keys = self.attn.axes.size(self.attn.axes.key)
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


def _key_letters(attn: Attention) -> list[str]:
    """The batch and head letters of keys."""
    return [letter for letter in attn.axes.batch if letter in "".join(attn.axes.words[1])]


def greatest(nest: Nest, array: str, count: int) -> Expr:
    """The maximum of a local array."""
    total = nest.declare(f32, Number(0.0, f32))
    with nest.loop(count, "ordered") as i:
        nest.emit(Set(total, nest.apply("maximum", nest.keep(total), nest.read(array, i, f32))))
    return nest.keep(total)
