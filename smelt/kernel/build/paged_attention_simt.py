"""Paged attention of a few queries on a GPU (flash-decoding): each thread block takes a chunk of the keys of one query.

Each chunk yields its maximum, its sum of weights and its weighted sum of values, for all query heads of a KV head. A
second launch combines them in order. Chunks begin at multiples of their size, so the bits of a query depend on its
position alone. More queries over bf16 pages go to `paged_flash.py`, others to the blocks of `paged_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import f32, i1, i64
from smelt.ir.core import Op
from smelt.kernel.build.attention_shape import fold_here
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.paged_attention import Paged, build_blocks
from smelt.kernel.build.paged_flash import build_paged_flash, find_tile
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Set, Var, add, scale, split
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.shape import Shape

CHUNK = 128  # keys of a block: few, so that there are many blocks
THREADS = 256
AT_ONCE = 8  # heads whose scores a thread computes together
FEW = 64  # queries


@simt_sink("smelt.paged_attention")
def paged_attention(nest: Nest, op: Op, output: Output) -> None:
    paged = Paged.of(op)
    many = minimum(floordiv(paged.count, FEW + 1), 1)
    if many != 1:
        _build_chunks(nest, paged, 1 - many, output)
    tile = find_tile(nest, paged)
    if many != 0 and tile is not None:
        build_paged_flash(nest, paged, tile, many, output)
    elif many != 0:
        build_blocks(nest, op, output, many)


def _build_chunks(nest: Nest, paged: Paged, here: Size, output: Output) -> None:
    op, shared = paged.op, paged.shared
    chunks = ceildiv(tensor(op.operands[3]).sizes[1] * paged.page, CHUNK)
    kept = (minimum(paged.count, FEW), paged.groups, chunks, shared, paged.values + 2)
    parts = nest.scratch(Shape("f32", *kept))
    with nest.loops((paged.count * here, paged.groups, chunks)) as (token, group, chunk):
        keys = _Keys.of(nest, paged, token)
        start = nest.let(scale(chunk, CHUNK))
        begin = nest.apply("maximum", start, keys.first)
        end = nest.apply("minimum", nest.let(add(start, CHUNK)), keys.end)
        count = nest.apply("maximum", nest.let(add(end, scale(begin, -1))), Number(0))
        _Chunk(nest, paged, token, group, begin, count).write(parts, (token, group, chunk), kept)
    _join(nest, paged, parts, kept, here, output)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that a query sees: from `first` on, before `end`."""

    first: Expr
    end: Expr

    @staticmethod
    def of(nest: Nest, paged: Paged, token: Expr) -> _Keys:
        position = to_index(nest, nest.pull(paged.op.operands[5], (token,)))
        room = tensor(paged.op.operands[3]).sizes[1] * paged.page
        end = nest.apply("minimum", nest.let(add(position, 1)), Amount(room))
        if not paged.numbers.window:
            return _Keys(Number(0), end)
        behind = nest.let(add(position, 1 - paged.numbers.window))
        return _Keys(nest.apply("maximum", behind, Number(0)), end)


@dataclass(slots=True)
class _Chunk:
    nest: Nest
    paged: Paged
    token: Expr
    group: Expr
    begin: Expr
    count: Expr

    def write(self, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...]) -> None:
        nest, paged = self.nest, self.paged
        scores = nest.tile("score", f32, paged.shared * CHUNK)
        pages = nest.tile("page", i64, CHUNK)
        self.score(scores, pages)
        with nest.loop(paged.shared, "warp") as head:
            best, total = self.weigh(scores, scale(head, CHUNK))
            at = flat((*place, head, Number(0)), kept)
            nest.store(parts, at, best)
            nest.store(parts, add(at, 1), total)
        self.weighted_sum(scores, pages, lambda head, e: flat((*place, head, add(e, 2)), kept), parts)

    def score(self, scores: str, pages: str) -> None:
        """A thread for each key: its products with all queries."""
        nest, paged, op = self.nest, self.paged, self.paged.op
        queries = nest.tile("query", f32, paged.shared * paged.depth)
        with nest.loop(paged.shared * paged.depth, "lane") as at:
            inner, d = (nest.let(each) for each in split(at, paged.depth))
            element = nest.pull(op.operands[0], (self.token, add(scale(self.group, paged.shared), inner), d))
            scaled = nest.apply("multiply", nest.convert(element, f32), Number(paged.numbers.scale, f32))
            nest.write(queries, at, scaled)
        sequence = to_index(nest, nest.pull(op.operands[4], (self.token,)))
        row = nest.clamp(sequence, tensor(op.operands[3]).sizes[0] - 1)
        with nest.loop(self.count, "lane") as j:
            key = nest.let(add(self.begin, j))
            number, inside = (nest.let(each) for each in split(key, paged.page))
            page = to_index(nest, nest.pull(op.operands[3], (row, number)))
            page = nest.clamp(page, tensor(op.operands[1]).sizes[0] - 1)
            nest.write(pages, j, page)
            for first in range(0, paged.shared, AT_ONCE):
                heads = range(first, min(first + AT_ONCE, paged.shared))
                totals = [nest.declare(f32, Number(0.0, f32)) for _ in heads]
                with nest.loop(paged.depth, "ordered") as d:
                    element = nest.convert(nest.pull(op.operands[1], (page, self.group, d, inside)), f32)
                    for head, sum_of in zip(heads, totals, strict=True):
                        query = nest.read(queries, add(d, head * paged.depth), f32)
                        nest.emit(Set(sum_of, nest.apply("fma", query, element, nest.keep(sum_of), dtype=f32)))
                for head, sum_of in zip(heads, totals, strict=True):
                    nest.write(scores, add(j, head * CHUNK), self.cap(sum_of))

    def cap(self, score: Var) -> Expr:
        nest, softcap = self.nest, self.paged.numbers.softcap
        found = nest.keep(score)
        if not softcap:
            return found
        inner = nest.apply("multiply", found, Number(1 / softcap, f32))
        return nest.apply("multiply", nest.apply("tanh", inner), Number(softcap, f32))

    def weigh(self, scores: str, start: Expr) -> tuple[Expr, Expr]:
        """Scores of a head become weights: the maximum, and the sum of the weights."""
        nest = self.nest
        best = fold_here(
            nest, "maximum", Number(-inf, f32), self.count, lambda j: nest.read(scores, add(j, start), f32)
        )
        safe = _safe(nest, best)
        with nest.loop(self.count, "lane") as j:
            less = nest.apply("subtract", nest.read(scores, add(j, start), f32), safe)
            nest.write(scores, add(j, start), nest.apply("weight", less))
        total = fold_here(nest, "add", Number(0.0, f32), self.count, lambda j: nest.read(scores, add(j, start), f32))
        return best, total

    def weighted_sum(self, scores: str, pages: str, place: Callable[[Expr, Expr], Expr], parts: int) -> None:
        """Weights times values. Threads that have the same element take other keys; their sums are added in order."""
        nest, paged, op = self.nest, self.paged, self.paged.op
        slices, wide = max(1, THREADS // paged.values), paged.values
        sums = nest.tile("sum", f32, slices * paged.shared * wide)
        each = nest.let(Quotient(nest.let(add(self.count, slices - 1)), slices))
        with nest.loop(slices * wide, "lane") as at:
            number, e = (nest.let(part) for part in split(at, wide))
            first = nest.let(nest.apply("multiply", number, each, dtype=i64))
            left = nest.apply("minimum", each, nest.let(add(self.count, scale(first, -1))), dtype=i64)
            for begin in range(0, paged.shared, AT_ONCE):
                heads = range(begin, min(begin + AT_ONCE, paged.shared))
                totals = [nest.declare(f32, Number(0.0, f32)) for _ in heads]
                with nest.loop(left, "ordered", fence=True) as i:
                    j = nest.let(add(first, i))
                    inside = nest.let(split(nest.let(add(self.begin, j)), paged.page)[1])
                    page = nest.read(pages, j, i64)
                    element = nest.convert(nest.pull(op.operands[2], (page, self.group, inside, e)), f32)
                    for head, sum_of in zip(heads, totals, strict=True):
                        weight = nest.read(scores, add(j, head * CHUNK), f32)
                        nest.emit(Set(sum_of, nest.apply("fma", weight, element, nest.keep(sum_of), dtype=f32)))
                for head, sum_of in zip(heads, totals, strict=True):
                    nest.write(sums, add(scale(number, paged.shared * wide), head * wide, e), nest.keep(sum_of))
        with nest.loop(paged.shared * wide, "lane") as at:
            inner, e = (nest.let(part) for part in split(at, wide))
            total = nest.read(sums, at, f32)
            for later in range(1, slices):
                total = nest.apply("add", total, nest.read(sums, add(at, later * paged.shared * wide), f32))
            nest.store(parts, place(inner, e), total)


def _safe(nest: Nest, best: Expr) -> Expr:
    """A maximum that may be subtracted: 0 where there is none."""
    none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
    return nest.apply("select", none, Number(0.0, f32), best, dtype=f32)


def _join(nest: Nest, paged: Paged, parts: int, kept: tuple[Size, ...], here: Size, output: Output) -> None:
    """Combine the chunks of each query, in order; a query without keys gives zeros."""
    op = paged.op
    with nest.loops((paged.count * here, paged.groups, paged.shared)) as (token, group, inner):
        keys = _Keys.of(nest, paged, token)
        head = nest.let(add(scale(group, paged.shared), inner))
        first = nest.let(Quotient(keys.first, CHUNK))
        after = nest.let(Quotient(nest.apply("maximum", nest.let(add(keys.end, CHUNK - 1)), Number(0)), CHUNK))
        count = nest.apply("maximum", nest.let(add(after, scale(first, -1))), Number(0))

        def item(number: Expr, place: Expr) -> Expr:
            index = (token, group, nest.let(add(first, number)), inner, place)
            return nest.read(nest.buffer(parts), flat(index, kept), f32)

        sink = nest.convert(nest.pull(op.operands[6], (head,)), f32) if len(op.operands) == 7 else Number(-inf, f32)
        best = fold_here(nest, "maximum", sink, count, lambda number: item(number, Number(0)))
        safe = _safe(nest, best)
        start = nest.apply("weight", nest.apply("subtract", sink, safe)) if len(op.operands) == 7 else Number(0.0, f32)
        with nest.loop(paged.values, "lane") as e:
            total, result = nest.declare(f32, start), nest.declare(f32, Number(0.0, f32))
            with nest.loop(count, "ordered", fence=True) as number:
                factor = nest.apply("weight", nest.apply("subtract", item(number, Number(0)), safe))
                pairs = (total, item(number, Number(1))), (result, item(number, add(e, 2)))
                for sum_of, value in pairs:
                    nest.emit(Set(sum_of, nest.apply("fma", factor, value, nest.keep(sum_of), dtype=f32)))
            whole = nest.keep(total)
            none = nest.apply("EQ", whole, Number(0.0, f32), dtype=i1)
            quotient = nest.apply("divide", nest.keep(result), whole)
            element = nest.apply("select", none, Number(0.0, f32), quotient, dtype=f32)
            output.finish(nest, op, (token, head, e), nest.convert(element, tensor(op.result).element))
