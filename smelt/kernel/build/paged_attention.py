"""Paged attention: queries of many sequences over a KV cache in pages, with online softmax; prefill and decode alike.

Neighbouring queries of one sequence and one head of keys are a block, its columns on lanes; keys and values are left
operands of the micro-kernel, page by page, in place. Every query is a lane of its own that takes pages in order from
the first one, and a masked key counts exactly zero: so its bits depend on neither its block nor its batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

from smelt.dim import Size
from smelt.dtype import DType, f32, i1, i32, i64
from smelt.ir.core import Op
from smelt.ir.ops.paged_attention import PagedNumbers
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.gemm import axis_stride, element_place
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Remainder,
    Set,
    Slice,
    Transpose,
    add,
    scale,
    tile_slice,
)
from smelt.kernel.loops.nest import Nest, tensor

SUM_BLOCK = 16  # weights per partial sum, which keeps rounding errors small
LANES = 16  # queries are computed in multiples of this


@dataclass(frozen=True, slots=True)
class Paged:
    """The sizes of an op. `groups` heads of keys serve `shared` heads of queries each."""

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
        static = (q[1], keys[2], q[2], values[3], keys[1])
        heads, groups, depth, deep, page = (each for each in static if isinstance(each, int))
        assert numbers is not None, "inference has seen the attributes"
        return Paged(op, numbers, op.attrs["width"], q[0], groups, heads // groups, depth, deep, page)

    @property
    def together(self) -> int:
        """Tokens of a block."""
        return max(1, self.width // self.shared)

    @property
    def parts(self) -> int:
        """Blocks that the heads of one token need."""
        return -(-self.shared // self.width)


@sink("smelt.paged_attention", anchor=True, addressed=(1, 2), in_runs=(1, 2))
def paged_attention(nest: Nest, op: Op, output: Output) -> None:
    """A block begins at multiples of its size and where another sequence begins; other iterations have no work."""
    paged = Paged.of(op)
    with nest.loops((paged.count, paged.parts, paged.groups)) as (token, part, group):
        inside = nest.let(Remainder(token, paged.together))
        before = nest.apply("maximum", nest.let(add(token, -1)), Number(0))
        sequence, previous = (_index(nest, op, 4, each) for each in (token, before))
        first = nest.apply("EQ", inside, Number(0), dtype=i1)
        other = nest.apply("NE", sequence, previous, dtype=i1)
        with nest.guard(nest.apply("or", first, other, dtype=i1)):
            _Block(nest, paged, token, inside, sequence, part, group).write(output)


def _index(nest: Nest, op: Op, operand: int, *at: Expr) -> Expr:
    return to_index(nest, nest.pull(op.operands[operand], at))


@dataclass(slots=True)
class _Block:
    nest: Nest
    paged: Paged
    token: Expr  # the first one
    inside: Expr  # its place in the largest block
    sequence: Expr
    part: Expr
    group: Expr

    def write(self, output: Output) -> None:
        nest, paged, width = self.nest, self.paged, self.paged.width
        tokens, low, high = self.measure()
        heads: Expr = Number(paged.shared)
        if paged.parts > 1:
            left = nest.let(add(Number(paged.shared), scale(self.part, -width)))
            heads = nest.apply("minimum", Number(width), left)
        used = scale(tokens, paged.shared) if paged.parts == 1 else heads
        used = nest.let(used)
        vectors = nest.let(scale(nest.let(Quotient(nest.let(add(used, LANES - 1)), LANES)), LANES))
        wide = nest.apply("minimum", Number(width), vectors)
        queries = self.load_queries(tokens, heads)
        places = self.load_positions(tokens, heads)
        best, total = self.start_sums(tokens, heads)
        result = self.zeros("sum", paged.values * width)
        scores = self.zeros("score", paged.page * width)
        start = Number(0)
        if paged.numbers.window:
            seen = nest.apply("maximum", nest.let(add(low, 1 - paged.numbers.window)), Number(0))
            start = nest.let(Quotient(seen, paged.page))  # type: ignore[assignment]
        pages = nest.let(Quotient(nest.let(add(high, paged.page)), paged.page))
        rest = nest.apply("maximum", nest.let(add(pages, scale(start, -1))), Number(0))
        with nest.loop(rest, "ordered", fence=True) as number:
            page = nest.let(add(start, number))
            key = nest.let(scale(page, paged.page))
            count = nest.apply("minimum", Number(paged.page), nest.let(add(high, 1, scale(key, -1))))
            row = nest.clamp(self.sequence, tensor(paged.op.operands[3]).sizes[0] - 1)
            place = nest.clamp(_index(nest, paged.op, 3, row, page), tensor(paged.op.operands[1]).sizes[0] - 1)
            self.multiply(1, place, count, (scores, count, queries, Amount(paged.depth)), used)
            self.mask(scores, places, key, count, low, high, wide)
            factor = self.exponentiate(scores, count, best, total, wide)
            self.rescale(result, factor, wide)
            self.multiply(2, place, count, (result, Amount(paged.values), scores, count), used)
        self.finish(output, result, total, tokens, heads, wide)

    # -- what the block is --

    def measure(self) -> tuple[Expr, Expr, Expr]:
        """How many tokens the block has, and the least and the greatest position in it."""
        nest, paged = self.nest, self.paged
        most = nest.let(add(Number(paged.together), scale(self.inside, -1)))
        left = nest.apply("minimum", most, nest.let(add(Amount(paged.count), scale(self.token, -1))))
        count, same = nest.declare(i64, Number(0)), nest.declare(i1, Number(True, i1))
        low, high = nest.declare(i64, Number(1 << 62)), nest.declare(i64, Number(-1))
        with nest.loop(left, "ordered", fence=True) as i:
            at = nest.let(add(self.token, i))
            equal = nest.apply("EQ", _index(nest, paged.op, 4, at), self.sequence, dtype=i1)
            nest.emit(Set(same, nest.apply("and", nest.keep(same), equal, dtype=i1)))
            with nest.guard(nest.keep(same)):
                position = _index(nest, paged.op, 5, at)
                nest.emit(Set(count, nest.let(add(i, 1))))
                nest.emit(Set(low, nest.apply("minimum", nest.keep(low), position)))
                nest.emit(Set(high, nest.apply("maximum", nest.keep(high), position)))
        room = tensor(paged.op.operands[3]).sizes[1] * paged.page - 1
        return nest.keep(count), nest.keep(low), nest.apply("minimum", nest.keep(high), Amount(room))

    @contextmanager
    def lanes(self, tokens: Expr, heads: Expr) -> Iterator[tuple[Expr, Expr, Expr]]:
        """(token, head, lane) of each query of the block."""
        nest = self.nest
        with nest.loop(tokens, "ordered", fence=True) as t, nest.loop(heads, "ordered", fence=True) as i:
            head = add(scale(self.group, self.paged.shared), scale(self.part, self.paged.width), i)
            yield nest.let(add(self.token, t)), nest.let(head), nest.let(add(scale(t, self.paged.shared), i))

    def load_queries(self, tokens: Expr, heads: Expr) -> str:
        """Scaled queries as the columns of a packed panel; missing columns are zeros."""
        nest, paged = self.nest, self.paged
        rows = self.zeros("row", paged.depth * paged.width)
        with self.lanes(tokens, heads) as (at, head, lane), nest.loop(paged.depth, "lane") as d:
            element = nest.convert(nest.pull(paged.op.operands[0], (at, head, d)), f32)
            scaled = nest.apply("multiply", element, Number(paged.numbers.scale, f32))
            nest.write(rows, add(scale(lane, paged.depth), d), scaled)
        queries = self.array("query", paged.depth * paged.width)
        nest.emit(Transpose(tile_slice(queries, paged.depth, paged.width), tile_slice(rows, paged.width, paged.depth)))
        return queries

    def load_positions(self, tokens: Expr, heads: Expr) -> str:
        nest = self.nest
        places = self.array("place", self.paged.width, i32)
        with nest.loop(self.paged.width, "lane") as i:
            nest.write(places, i, Number(-1, i32))
        with self.lanes(tokens, heads) as (at, _, lane):
            nest.write(places, lane, nest.convert(_index(nest, self.paged.op, 5, at), i32))
        return places

    def start_sums(self, tokens: Expr, heads: Expr) -> tuple[str, str]:
        """Maximum and sum of weights so far: none, or a sink's."""
        nest, operands = self.nest, self.paged.op.operands
        best, total = self.array("best", self.paged.width), self.zeros("total", self.paged.width)
        with nest.loop(self.paged.width, "lane") as i:
            nest.write(best, i, Number(-inf, f32))
        if len(operands) == 7:
            with self.lanes(tokens, heads) as (_, head, lane):
                nest.write(best, lane, nest.convert(nest.pull(operands[6], (head,)), f32))
                nest.write(total, lane, Number(1.0, f32))
        return best, total

    # -- a page --

    def multiply(self, operand: int, page: Expr, count: Expr, product: tuple[str, Expr, str, Expr], used: Expr) -> None:
        """Keys times queries, or accumulate values times weights."""
        nest, paged, value = self.nest, self.paged, self.paged.op.operands[operand]
        tile, rows, panel, extent = product
        deep = (paged.depth, paged.values)[operand - 1]
        if tensor(value).element == f32:
            first = element_place(nest, paged.op, value, (page, Number(0), self.group, Number(0)))
            step = axis_stride(nest, paged.op, value, 1)
        else:  # narrow numbers are opened a page at a time
            opened = self.array("open", paged.page * deep)
            first, step = Place(opened, Number(0)), Number(deep)
            with nest.loop(count, "ordered", fence=True) as j, nest.loop(deep, "lane") as d:
                element = nest.convert(nest.pull(value, (page, j, self.group, d)), f32)
                nest.write(opened, add(scale(j, deep), d), element)
        one, width = Number(1), Number(paged.width)
        strides = (step, Number(0), one) if operand == 1 else (one, Number(0), step)
        left = Slice(first, (rows, one, extent), strides)
        right = Slice(Place(panel, Number(0)), (extent, used), (width, one))
        sums = Slice(Place(tile, Number(0)), (rows, used), (width, one))
        nest.emit(Mma(sums, left, right, F32, accumulate=Number(int(operand == 2))))

    def mask(self, scores: str, places: str, key: Expr, count: Expr, low: Expr, high: Expr, wide: Expr) -> None:
        """Softcap; then keys after a query, or too far before it, become -inf where the page has such keys."""
        nest, numbers, width = self.nest, self.paged.numbers, self.paged.width
        if numbers.softcap:
            with nest.loop(count, "ordered") as j, nest.loop(wide, "lane") as i:
                at = add(scale(j, width), i)
                inner = nest.apply("multiply", nest.read(scores, at, f32), Number(1 / numbers.softcap, f32))
                capped = nest.apply("multiply", nest.apply("tanh", inner), Number(numbers.softcap, f32))
                nest.write(scores, at, capped)
        hidden = nest.less(low, nest.let(add(key, count, -1)))
        if numbers.window:
            behind = nest.less(key, nest.let(add(high, 1 - numbers.window)))
            hidden = nest.apply("or", hidden, behind, dtype=i1)
        with nest.guard(hidden), nest.loop(count, "ordered") as j:
            here = nest.convert(nest.let(add(key, j)), i32)
            with nest.loop(wide, "lane") as i:
                at, place = add(scale(j, width), i), nest.read(places, i, i32)
                seen = nest.apply("LE", here, place, dtype=i1)
                if numbers.window:
                    first = nest.apply("subtract", place, Number(numbers.window, i32))
                    seen = nest.both(seen, nest.apply("GT", here, first, dtype=i1))
                score = nest.read(scores, at, f32)
                nest.write(scores, at, nest.apply("select", seen, score, Number(-inf, f32), dtype=f32))

    def exponentiate(self, scores: str, count: Expr, best: str, total: str, wide: Expr) -> str:
        """Online softmax: scores become weights; returns the factor that rescales earlier sums."""
        nest, width = self.nest, self.paged.width
        most, factor, part = (self.array(name, width) for name in ("most", "factor", "part"))
        with nest.loop(wide, "lane") as i:
            nest.write(most, i, Load(Place(best, i), f32))
        with nest.loop(count, "ordered") as j, nest.loop(wide, "lane") as i:
            score, old = nest.read(scores, add(scale(j, width), i), f32), nest.read(most, i, f32)
            greater = nest.apply("GT", score, old, dtype=i1)  # nan shows in the weights
            nest.write(most, i, nest.apply("select", greater, score, old, dtype=f32))
        with nest.loop(wide, "lane") as i:
            top, before = nest.read(most, i, f32), nest.read(best, i, f32)
            none = nest.apply("EQ", top, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), top, dtype=f32)
            rescale = nest.apply("weight", nest.apply("subtract", before, safe))
            nest.write(best, i, top)
            nest.write(most, i, safe)
            nest.write(factor, i, rescale)
            scaled = nest.apply("multiply", nest.read(total, i, f32), rescale)
            nest.write(total, i, scaled)
        groups = nest.let(Quotient(nest.let(add(count, SUM_BLOCK - 1)), SUM_BLOCK))
        with nest.loop(groups, "ordered") as group:
            first = nest.let(scale(group, SUM_BLOCK))
            with nest.loop(wide, "lane") as i:
                nest.write(part, i, Number(0.0, f32))
            left = nest.apply("minimum", Number(SUM_BLOCK), nest.let(add(count, scale(first, -1))))
            with nest.loop(left, "ordered") as j, nest.loop(wide, "lane") as i:
                place = add(scale(first, width), scale(j, width), i)
                score, top = nest.read(scores, place, f32), nest.read(most, i, f32)
                weight = nest.apply("weight", nest.apply("subtract", score, top))
                nest.write(scores, place, weight)
                nest.write(part, i, nest.apply("add", nest.read(part, i, f32), weight))
            with nest.loop(wide, "lane") as i:
                pair = (nest.read(each, i, f32) for each in (total, part))
                nest.write(total, i, nest.apply("add", *pair))
        return factor

    def rescale(self, result: str, factor: str, wide: Expr) -> None:
        """Rescale the result so far by the factor of each query."""
        nest, width = self.nest, self.paged.width
        with nest.loop(self.paged.values, "ordered") as e, nest.loop(wide, "lane") as i:
            place = add(scale(e, width), i)
            pair = (nest.read(*item, f32) for item in ((result, place), (factor, i)))
            nest.write(result, place, nest.apply("multiply", *pair))

    def finish(self, output: Output, result: str, total: str, tokens: Expr, heads: Expr, wide: Expr) -> None:
        """Divide by the sum of weights and store; a query without keys gives zeros."""
        nest, paged, width = self.nest, self.paged, self.paged.width
        zero = Number(0.0, f32)
        with nest.loop(paged.values, "ordered") as e, nest.loop(wide, "lane") as i:
            place = add(scale(e, width), i)
            found, whole = nest.read(result, place, f32), nest.read(total, i, f32)
            none = nest.apply("EQ", whole, zero, dtype=i1)
            element = nest.apply("select", none, zero, nest.apply("divide", found, whole), dtype=f32)
            nest.write(result, place, element)
        rows = self.array("row", paged.values * width)
        nest.emit(Transpose(tile_slice(rows, width, paged.values), tile_slice(result, paged.values, width)))
        with self.lanes(tokens, heads) as (at, head, lane), nest.loop(paged.values, "lane") as e:
            element = nest.read(rows, add(scale(lane, paged.values), e), f32)
            output.finish(nest, paged.op, (at, head, e), nest.convert(element, tensor(paged.op.result).element))

    # -- local arrays --

    def array(self, stem: str, count: int, dtype: DType = f32) -> str:
        return self.nest.tile(stem, dtype, max(count, 1))

    def zeros(self, stem: str, count: int) -> str:
        name = self.array(stem, count)
        with self.nest.loop(count, "lane") as i:
            self.nest.write(name, i, Number(0.0, f32))
        return name
