"""Paged attention: queries of many sequences over a KV cache in pages, with online softmax; prefill and decode alike.

Neighbouring queries of one sequence are the rows of a block, head of keys by head of keys. A page of keys [depth,
position] and one of values [position, element] are right operands of the micro-kernel, in place. Every query is a row
of its own that takes pages in order, and a masked key counts exactly zero: so its bits depend on neither its block nor
its batch. `paged_int8.py` has the products with pages of i8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import gcd, inf

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum
from smelt.dtype import DType, bf16, f16, f32, i1, i8, i32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.ir.ops.paged_attention import PagedNumbers
from smelt.kernel.build import paged_int8
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.gemm import axis_stride, chunk_bounds, element_place
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import F32, F32_BF16, F32_F16, Form
from smelt.kernel.loops.grammar import Amount, Expr, Mma, Number, Place, Quotient, Remainder, Set, Slice, add, scale
from smelt.kernel.loops.nest import Nest, tensor

ROWS = 48  # queries of a block: with a page of keys and one of values they stay in the cache
LANES = 16  # partial maxima and sums of a row
FEW = 64  # queries, mostly of different sequences: memory takes longest, so that a block reads whole pages,
BLOCKS = 8  # where there are as many blocks
DIRECT = {f32: F32, f16: F32_F16, bf16: F32_BF16}  # the micro-kernels that read pages in place


class Paged(Frozen):
    """The sizes of an op. `groups` heads of keys serve `shared` heads of queries each; `width` columns are a panel."""

    op: Op
    numbers: PagedNumbers
    width: int
    count: Size  # queries
    groups: int
    shared: int
    depth: int
    values: int
    page: int

    @staticmethod
    def of(op: Op) -> Paged:
        numbers = PagedNumbers.of(op.attrs["composite_attributes"])
        q, keys, values = (tensor(each).sizes for each in op.operands[:3])
        static = (q[1], keys[1], q[2], values[3], keys[3])
        heads, groups, depth, deep, page = (each for each in static if isinstance(each, int))
        assert numbers is not None, "inference has seen the attributes"
        return Paged(op, numbers, op.attrs["width"], q[0], groups, heads // groups, depth, deep, page)

    @property
    def block_rows(self) -> int:
        return ROWS

    @property
    def room(self) -> Size:
        """Positions that a sequence has pages for: none in an empty table or pool."""
        lines, columns = tensor(self.op.operands[3]).sizes
        return columns * self.page * minimum(lines, 1) * minimum(tensor(self.op.operands[1]).sizes[0], 1)

    @property
    def is_int8(self) -> bool:
        return tensor(self.op.operands[1]).element == i8

    @property
    def together(self) -> int:
        """Tokens of a block of one head of keys."""
        return max(1, ROWS // self.shared)

    @property
    def most_groups(self) -> int:
        """Heads of keys of a block: the pages of one token's sequence are read in order of addresses."""
        return max(1, min(self.groups, ROWS // self.shared))

    @property
    def few(self) -> Size:
        """1 if there are few queries, else 0."""
        return 1 - minimum(floordiv(self.count, FEW + 1), 1) if self.most_groups > 1 else 0

    @property
    def splits(self) -> Size:
        """Blocks that share the heads of keys of a token."""
        least = maximum(ceildiv(self.groups, self.most_groups), ceildiv(BLOCKS, maximum(self.count, 1)))
        return self.groups - (self.groups - minimum(self.groups, least)) * self.few

    @property
    def parts(self) -> int:
        """Blocks that the heads of one token need."""
        return -(-self.shared // ROWS)

    def panels(self, size: int) -> list[tuple[int, int]]:
        """(first column, columns) of each panel."""
        return [(at, min(self.width, size - at)) for at in range(0, size, self.width)]

    @property
    def lanes(self) -> int:
        return min(gcd(self.page, LANES), self.width)


@sink("smelt.paged_attention", anchor=True, addressed=(1, 2), in_runs=(1, 2))
def paged_attention(nest: Nest, op: Op, output: Output) -> None:
    build_blocks(nest, op, output, 1, Paged.of(op).splits)


def build_blocks(nest: Nest, op: Op, output: Output, here: Size, splits: Size | None = None) -> None:
    """A block begins at multiples of its size and where another sequence begins; other iterations have no work.

    `here` is 1, or 0 if there are too few queries at run time. `splits` blocks share the heads of keys of a token; as
    many as there are heads by default."""
    paged = Paged.of(op)
    splits = paged.groups if splits is None else splits
    with nest.loops((paged.count * here, paged.parts, splits)) as (token, part, split):
        group: Expr = split
        groups: Expr = Number(1)
        together: Expr = Number(paged.together)
        inside = nest.let(Remainder(token, paged.together))
        if splits != paged.groups:
            group, groups = chunk_bounds(nest, split, paged.groups, splits)
            small = max(1, ROWS // (paged.shared * paged.most_groups))
            few = nest.apply("EQ", Amount(paged.few), Number(1), dtype=i1)
            together = nest.apply("select", few, Number(small), together, dtype=i64)
            inside = nest.apply("select", few, nest.let(Remainder(token, small)), inside, dtype=i64)
        before = nest.apply("maximum", nest.let(add(token, -1)), Number(0))
        sequence, previous = (_index(nest, op, 4, each) for each in (token, before))
        first = nest.apply("EQ", inside, Number(0), dtype=i1)
        other = nest.apply("NE", sequence, previous, dtype=i1)
        with nest.guard(nest.apply("or", first, other, dtype=i1)):
            room = nest.let(add(together, scale(inside, -1)))
            Block(nest, paged, token, room, sequence, part, group, groups).write(output)


def _index(nest: Nest, op: Op, operand: int, *at: Expr) -> Expr:
    return to_index(nest, nest.pull(op.operands[operand], at))


def measure_block(nest: Nest, paged: Paged, token: Expr, sequence: Expr, most: Expr) -> tuple[Expr, Expr, Expr]:
    """How many tokens a block of up to `most` has, and the least and the greatest position in it."""
    left = nest.apply("minimum", most, nest.let(add(Amount(paged.count), scale(token, -1))))
    count, same = nest.declare(i64, Number(0)), nest.declare(i1, Number(True, i1))
    low, high = nest.declare(i64, Number(1 << 62)), nest.declare(i64, Number(-1))
    with nest.loop(left, "ordered", fence=True) as i:
        at = nest.let(add(token, i))
        equal = nest.apply("EQ", _index(nest, paged.op, 4, at), sequence, dtype=i1)
        nest.emit(Set(same, nest.apply("and", nest.keep(same), equal, dtype=i1)))
        with nest.guard(nest.keep(same)):
            position = _index(nest, paged.op, 5, at)
            nest.emit(Set(count, nest.let(add(i, 1))))
            nest.emit(Set(low, nest.apply("minimum", nest.keep(low), position)))
            nest.emit(Set(high, nest.apply("maximum", nest.keep(high), position)))
    return nest.keep(count), nest.keep(low), nest.apply("minimum", nest.keep(high), Amount(paged.room - 1))


@dataclass(slots=True)
class Block:
    """Queries of one sequence and some heads of keys. Inside of `each_group` it is the part of one of these heads."""

    nest: Nest
    paged: Paged
    token: Expr  # the first one
    room: Expr  # tokens that fit
    sequence: Expr
    part: Expr
    first_group: Expr
    groups: Expr  # heads of keys
    tokens: Expr = field(init=False)
    heads: Expr = field(init=False)  # of queries, of each token and head of keys
    used: Expr = field(init=False)  # rows of a head of keys
    group: Expr = field(init=False)
    number: Expr = field(init=False)  # of the head of keys in the block
    base: Expr = field(init=False)  # its first row

    def write(self, output: Output) -> None:
        nest, paged = self.nest, self.paged
        self.tokens, low, high = self.measure()
        self.heads = Number(paged.shared)
        if paged.parts > 1:
            left = nest.let(add(Number(paged.shared), scale(self.part, -ROWS)))
            self.heads = nest.apply("minimum", Number(ROWS), left)
        self.used = nest.let(scale(self.tokens, paged.shared)) if paged.parts == 1 else self.heads
        queries, places = self.load_queries()
        best, total = self.start_sums()
        result = self.array("sum", len(paged.panels(paged.values)) * ROWS * paged.width)
        scores = self.array("score", len(paged.panels(paged.page)) * ROWS * paged.width)
        rows = nest.apply("multiply", self.used, self.groups) if self.is_merged else self.used
        for start, _ in paged.panels(paged.values):
            with nest.loop(rows, "ordered") as i, nest.loop(paged.width, "lane") as e:
                nest.write(result, add(scale(i, paged.width), e, start * ROWS), Number(0.0, f32))
        first: Expr = Number(0)
        if paged.numbers.window:
            seen = nest.apply("maximum", nest.let(add(low, 1 - paged.numbers.window)), Number(0))
            first = nest.let(Quotient(seen, paged.page))
        pages = nest.let(Quotient(nest.let(add(high, paged.page)), paged.page))
        rest = nest.apply("maximum", nest.let(add(pages, scale(first, -1))), Number(0))
        with nest.loop(rest, "ordered", fence=True) as number:
            page = nest.let(add(first, number))
            key = nest.let(scale(page, paged.page))
            count = nest.apply("minimum", Number(paged.page), nest.let(add(high, 1, scale(key, -1))))
            place = self.find_page(self.sequence, page)
            with self.each_group():
                after = self.find_next(page, first, pages)
                self.multiply_keys(scores, queries, place, after)
                self.mask(scores, places, key, low, high)
                self.weigh(scores, best, total, result)
                if isinstance(queries, str):
                    self.multiply_values(result, scores, place, after, count)
                else:
                    paged_int8.multiply_values(self, result, scores, queries, place, after, count)
        self.finish(output, result, total)

    # -- what the block is --

    def measure(self) -> tuple[Expr, Expr, Expr]:
        return measure_block(self.nest, self.paged, self.token, self.sequence, self.room)

    @property
    def is_merged(self) -> bool:
        return self.groups != Number(1)

    @contextmanager
    def each_group(self) -> Iterator[None]:
        """A loop over the heads of keys."""
        nest, none = self.nest, Number(0)
        if not self.is_merged:
            self.group, self.number, self.base = self.first_group, none, none
            yield
            return
        with nest.loop(self.groups, "ordered", fence=True) as number:
            self.group, self.number = nest.let(add(self.first_group, number)), number
            self.base = nest.apply("multiply", number, self.used)
            yield

    @contextmanager
    def rows(self) -> Iterator[tuple[Expr, Expr, Expr]]:
        """(token, head, row) of each query of the block."""
        nest = self.nest
        with (
            self.each_group(),
            nest.loop(self.tokens, "ordered", fence=True) as t,
            nest.loop(self.heads, "ordered", fence=True) as i,
        ):
            head = add(scale(self.group, self.paged.shared), scale(self.part, ROWS), i)
            row = add(self.base, scale(t, self.paged.shared), i)
            yield nest.let(add(self.token, t)), nest.let(head), nest.let(row)

    def load_queries(self) -> tuple[str | paged_int8.Queries, str]:
        """Scaled queries, [row, depth], or rounded ones, and their positions."""
        nest, paged = self.nest, self.paged
        places = self.array("place", ROWS, i32)
        with self.rows() as (at, _, row):
            place = _index(nest, paged.op, 5, at)  # less than 0 sees no key, and more than an i32 all
            place = nest.apply("clamp", Number(-1), place, Number((1 << 31) - 1), dtype=i64)
            nest.write(places, row, nest.convert(place, i32))
        if paged.is_int8:
            return paged_int8.round_queries(self), places
        queries = self.array("query", ROWS * paged.depth)
        with self.rows() as (at, head, row), nest.loop(paged.depth, "lane") as d:
            element = nest.convert(nest.pull(paged.op.operands[0], (at, head, d)), f32)
            scaled = nest.apply("multiply", element, Number(paged.numbers.scale, f32))
            nest.write(queries, add(scale(row, paged.depth), d), scaled)
        return queries, places

    def start_sums(self) -> tuple[str, str]:
        """Maximum of scores and sums of weights (a partial sum per lane) so far: none, or a sink's."""
        nest, operands = self.nest, self.paged.op.operands
        lanes = self.paged.lanes
        best, total = self.array("best", ROWS), self.array("total", ROWS * lanes)
        with self.rows() as (_, head, row):
            sink = nest.convert(nest.pull(operands[6], (head,)), f32) if len(operands) == 7 else Number(-inf, f32)
            nest.write(best, row, sink)
            with nest.loop(lanes, "lane") as lane:
                nest.write(total, add(scale(row, lanes), lane), Number(0.0, f32))
            if len(operands) == 7:
                nest.write(total, scale(row, lanes), Number(1.0, f32))
        return best, total

    # -- a page --

    def find_page(self, sequence: Expr, page: Expr) -> Expr:
        """Where in the pool a page of a sequence is."""
        nest, op = self.nest, self.paged.op
        row = nest.clamp(sequence, tensor(op.operands[3]).sizes[0] - 1)
        return nest.clamp(_index(nest, op, 3, row, page), tensor(op.operands[1]).sizes[0] - 1)

    def find_next(self, page: Expr, first: Expr, pages: Expr) -> tuple[Expr, Expr]:
        """(page, group) to prefetch: the next group of keys of the block, or its first one in the next page; after the
        last page the first page of what a core takes next, which is the next group of keys or, where sequences have one
        query each, the next sequence."""
        nest, paged = self.nest, self.paged
        is_last = nest.apply("EQ", nest.let(add(page, 1)), pages, dtype=i1)
        is_over = nest.apply("EQ", self.group, Number(paged.groups - 1), dtype=i1)
        other = nest.apply("select", is_over, Number(0), nest.let(add(self.group, 1)), dtype=i64)
        following = nest.apply("select", is_last, first, nest.let(add(page, 1)), dtype=i64)
        if self.is_merged:
            is_end = nest.apply("EQ", nest.let(add(self.number, 1)), self.groups, dtype=i1)
            following = nest.apply("select", is_end, following, page, dtype=i64)
            is_last = nest.apply("and", is_last, is_end, dtype=i1)
            group = nest.apply("select", is_end, self.first_group, nest.let(add(self.group, 1)), dtype=i64)
            group = nest.apply("select", is_last, other, group, dtype=i64)
        else:
            group = nest.apply("select", is_last, other, self.group, dtype=i64)
        token = nest.apply("minimum", nest.let(add(self.token, 1)), Amount(paged.count - 1))
        turned = nest.apply("and", is_last, is_over, dtype=i1)
        sequence = nest.apply("select", turned, _index(nest, paged.op, 4, token), self.sequence, dtype=i64)
        return self.find_page(sequence, following), group

    def multiply_keys(
        self, scores: str, queries: str | paged_int8.Queries, page: Expr, after: tuple[Expr, Expr]
    ) -> None:
        """Queries by all keys of a page; what is not there is masked later."""
        if not isinstance(queries, str):
            paged_int8.multiply_keys(self, scores, queries, page, after)
            return
        nest, paged, value = self.nest, self.paged, self.paged.op.operands[1]
        depth = Number(paged.depth)
        first = scale(self.base, paged.depth)
        left = Slice(Place(queries, first), (self.used, Number(1), depth), (depth, Number(0), Number(1)))
        opened = None if self.is_direct(1) else self.open_page(1, page, Amount(paged.depth))
        for start, columns in paged.panels(paged.page):
            if opened is None:
                place = element_place(nest, paged.op, value, (page, self.group, Number(0), Number(start)))
                step = axis_stride(nest, paged.op, value, 2)
            else:
                place, step = Place(opened, Number(start)), Number(self.pitch(paged.page))
            right = Slice(place, (depth, Number(columns)), (step, Number(1)))
            later = self.later(1, after, paged.depth * start)
            self.multiply(scores, start, left, right, self.form(1), False, later)

    def multiply_values(self, result: str, scores: str, page: Expr, after: tuple[Expr, Expr], count: Expr) -> None:
        """Accumulate weights times the values that are there."""
        nest, paged, value = self.nest, self.paged, self.paged.op.operands[2]
        opened = None if self.is_direct(2) else self.open_page(2, page, count)
        for first, keys in paged.panels(paged.page):
            extent = count
            if keys != paged.page:
                left_over = nest.apply("maximum", nest.let(add(count, -first)), Number(0))
                extent = nest.apply("minimum", Number(keys), left_over)
            weights = Place(scores, Number(first * ROWS))
            left = Slice(weights, (self.used, Number(1), extent), (Number(paged.width), Number(0), Number(1)))
            for start, columns in paged.panels(paged.values):
                if opened is None:
                    place = element_place(nest, paged.op, value, (page, self.group, Number(first), Number(start)))
                    step = axis_stride(nest, paged.op, value, 2)
                else:
                    pitch = self.pitch(paged.values)
                    place, step = Place(opened, Number(first * pitch + start)), Number(pitch)
                right = Slice(place, (extent, Number(columns)), (step, Number(1)))
                later = self.later(2, after, first * paged.values + keys * start)
                self.multiply(result, start, left, right, self.form(2), True, later, self.base)

    def later(self, operand: int, after: tuple[Expr, Expr], first: int) -> Place | None:
        """The next page comes out of memory while this one is computed: no processor foresees where it is."""
        if not self.is_direct(operand):
            return None
        at = (*after, Number(0), Number(0))
        begin = element_place(self.nest, self.paged.op, self.paged.op.operands[operand], at)
        return begin.replace(index=add(begin.index, first))

    def multiply(
        self,
        tile: str,
        start: int,
        left: Slice,
        right: Slice,
        form: Form,
        accumulate: bool,
        later: Place | None,
        row: Expr = Number(0),  # noqa: B008 - it is frozen
    ) -> None:
        width, columns = Number(self.paged.width), right.sizes[1]
        place = Place(tile, add(scale(row, self.paged.width), start * ROWS))
        sums = Slice(place, (self.used, columns), (width, Number(1)))
        self.nest.emit(Mma(sums, left, right, form, accumulate=Number(int(accumulate)), prefetch=later))

    def is_direct(self, operand: int) -> bool:
        """Whether rows of a page are whole vectors that a micro-kernel reads."""
        size = self.paged.page if operand == 1 else self.paged.values
        return tensor(self.paged.op.operands[operand]).element in DIRECT and size % LANES == 0

    def form(self, operand: int) -> Form:
        return DIRECT[tensor(self.paged.op.operands[operand]).element] if self.is_direct(operand) else F32

    def pitch(self, size: int) -> int:
        return len(self.paged.panels(size)) * self.paged.width

    def open_page(self, operand: int, page: Expr, rows: Expr) -> str:
        """A page as f32, in rows of whole panels."""
        nest, value = self.nest, self.paged.op.operands[operand]
        size, most = (self.paged.page, self.paged.depth) if operand == 1 else (self.paged.values, self.paged.page)
        opened, pitch = self.array("open", most * self.pitch(size)), self.pitch(size)
        with nest.loop(rows, "ordered", fence=True) as i, nest.loop(size, "lane") as j:
            element = nest.convert(nest.pull(value, (page, self.group, i, j)), f32)
            nest.write(opened, add(scale(i, pitch), j), element)
        return opened

    def mask(self, scores: str, places: str, key: Expr, low: Expr, high: Expr) -> None:
        """Softcap; then keys after a query, or too far before it, become -inf where the page has such keys."""
        nest, paged, numbers = self.nest, self.paged, self.paged.numbers
        hidden = nest.less(low, nest.let(add(key, paged.page - 1)))
        if numbers.window:
            behind = nest.less(key, nest.let(add(high, 1 - numbers.window)))
            hidden = nest.apply("or", hidden, behind, dtype=i1)
        for start, columns in paged.panels(paged.page):
            if numbers.softcap:
                with nest.loop(self.used, "ordered") as i, nest.loop(columns, "lane") as j:
                    at = add(scale(i, paged.width), j, start * ROWS)
                    inner = nest.apply("multiply", nest.read(scores, at, f32), Number(1 / numbers.softcap, f32))
                    capped = nest.apply("multiply", nest.apply("tanh", inner), Number(numbers.softcap, f32))
                    nest.write(scores, at, capped)
            with nest.guard(hidden), nest.loop(self.used, "ordered") as i:
                here = nest.convert(nest.let(add(key, start)), i32)
                last = nest.apply("subtract", nest.read(places, i, i32), here)  # the last column that is seen
                with nest.loop(columns, "lane") as j:
                    at, column = add(scale(i, paged.width), j, start * ROWS), nest.convert(j, i32)
                    seen = nest.apply("LE", column, last, dtype=i1)
                    if numbers.window:
                        first = nest.apply("subtract", last, Number(numbers.window, i32))
                        seen = nest.both(seen, nest.apply("GT", column, first, dtype=i1))
                    score = nest.read(scores, at, f32)
                    nest.write(scores, at, nest.apply("select", seen, score, Number(-inf, f32), dtype=f32))

    def weigh(self, scores: str, best: str, total: str, result: str) -> None:
        """Online softmax, row by row: scores become weights; the result so far is rescaled."""
        nest, paged = self.nest, self.paged
        with nest.loop(self.used, "ordered") as i:
            chunks, row = [place for place, _ in self.chunks(i)], nest.let(add(self.base, i))
            part = self.array("part", paged.lanes)
            with nest.loop(paged.lanes, "lane") as lane:
                most = nest.read(scores, add(chunks[0], lane), f32)
                for chunk in chunks[1:]:
                    most = self.greater(nest.read(scores, add(chunk, lane), f32), most)
                nest.write(part, lane, most)
            before = nest.read(best, row, f32)
            top = self.greater(self.combine(part, Number(0), self.greater), before)
            none = nest.apply("EQ", top, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), top, dtype=f32)
            factor = nest.apply("weight", nest.apply("subtract", before, safe))
            nest.write(best, row, top)
            with nest.loop(paged.lanes, "lane") as lane:
                sums: Expr = Number(0.0, f32)
                for chunk in chunks:
                    place = add(chunk, lane)
                    weight = nest.apply("weight", nest.apply("subtract", nest.read(scores, place, f32), safe))
                    nest.write(scores, place, weight)
                    sums = nest.apply("add", sums, weight)
                mine = add(scale(row, paged.lanes), lane)
                scaled = nest.apply("multiply", nest.read(total, mine, f32), factor)
                nest.write(total, mine, nest.apply("add", scaled, sums))
            with nest.guard(nest.apply("NE", factor, Number(1.0, f32), dtype=i1)):
                for start, columns in paged.panels(paged.values):
                    with nest.loop(columns, "lane") as e:
                        place = add(scale(row, paged.width), e, start * ROWS)
                        nest.write(result, place, nest.apply("multiply", nest.read(result, place, f32), factor))

    def chunks(self, row: Expr) -> list[tuple[Expr, int]]:
        """Vectors of a row of scores: where each begins, and its first position in the page."""
        paged = self.paged
        return [
            (add(scale(row, paged.width), start * ROWS + at), start + at)
            for start, columns in paged.panels(paged.page)
            for at in range(0, columns, paged.lanes)
        ]

    def greater(self, new: Expr, old: Expr) -> Expr:
        """The greater one; a NaN in the new one does not count here, it shows in the weights."""
        bigger = self.nest.apply("GT", new, old, dtype=i1)
        return self.nest.apply("select", bigger, new, old, dtype=f32)

    def combine(self, part: str, start: Expr, function: Callable[[Expr, Expr], Expr], dtype: DType = f32) -> Expr:
        """All lanes of a row in one, as a tree."""
        found = [self.nest.read(part, add(start, lane), dtype) for lane in range(self.paged.lanes)]
        while len(found) > 1:
            half = len(found) // 2
            found = [function(a, b) for a, b in zip(found[:half], found[half:], strict=True)]
        return found[0]

    def finish(self, output: Output, result: str, total: str) -> None:
        """Divide by the sum of weights and store; a query without keys gives zeros."""
        nest, paged = self.nest, self.paged
        zero = Number(0.0, f32)
        with self.rows() as (at, head, row):
            sums = scale(row, paged.lanes)
            whole = self.combine(total, sums, lambda a, b: nest.apply("add", a, b))
            none = nest.apply("EQ", whole, zero, dtype=i1)
            for start, columns in paged.panels(paged.values):
                with nest.loop(columns, "lane") as e:
                    found = nest.read(result, add(scale(row, paged.width), e, start * ROWS), f32)
                    element = nest.apply("select", none, zero, nest.apply("divide", found, whole), dtype=f32)
                    rounded = nest.convert(element, tensor(paged.op.result).element)
                    output.finish(nest, paged.op, (at, head, nest.let(add(e, start))), rounded)

    def array(self, stem: str, count: int, dtype: DType = f32) -> str:
        return self.nest.tile(stem, dtype, max(count, 1))
