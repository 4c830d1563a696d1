"""Attention of a few queries on a GPU (flash-decoding): a block of threads takes a chunk of the keys of some queries.

Keys go through shared memory, so that neighbouring threads read neighbouring elements of them; a thread then has one
query and one key. A second launch combines the chunks in order (`attention_decode.py`). More queries take the blocks of
`attention.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from smelt.dim import Size, ceildiv, minimum
from smelt.dtype import f32, i1, i64
from smelt.ir.core import Op
from smelt.kernel.build.attention import build
from smelt.kernel.build.attention_decode import join_chunks
from smelt.kernel.build.attention_shape import At, Attention, AttentionSchedule, fold_here
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Set, add, scale, split
from smelt.kernel.loops.nest import Nest, flat
from smelt.shape import Shape

CHUNK, KEYS, FEW = 128, 32, 8  # keys of a block, keys in shared memory at a time, queries of a block
THREADS = 256


@simt_sink("smelt.attention")
def attention(nest: Nest, op: Op, output: Output) -> None:
    attn = Attention.of(op)
    schedule = AttentionSchedule.of(attn).replace(chunk=CHUNK, few=FEW)
    build(nest, attn, schedule, output, _build_few)


def _build_few(nest: Nest, attn: Attention, schedule: AttentionSchedule, here: Size, output: Output) -> None:
    axes, chunks = attn.axes, ceildiv(attn.axes.size(attn.axes.key), CHUNK)
    kept = (*attn.heads, chunks, minimum(attn.queries, FEW), attn.values + 2)
    parts = nest.scratch(Shape("f32", *kept))
    with nest.loops((*attn.heads, chunks * here)) as index:
        at = dict(zip(axes.batch, index, strict=False))
        start = nest.let(scale(index[-1], CHUNK))
        count = attn.bounded(nest, CHUNK, axes.size(axes.key), start)
        _Chunk(nest, attn, at, start, count).write(parts, tuple(index), kept)
    join_chunks(nest, attn, parts, kept, here, output)


@dataclass(slots=True)
class _Chunk:
    nest: Nest
    attn: Attention
    at: At
    start: Expr
    count: Expr

    def write(self, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...]) -> None:
        nest, attn = self.nest, self.attn
        scores = nest.tile("score", f32, self.room * CHUNK)
        self.score(scores)
        with nest.loop(attn.queries, "ordered", fence=True) as query:
            first = nest.let(scale(query, CHUNK))
            best = fold_here(
                nest, "maximum", Number(-inf, f32), self.count, lambda j: nest.read(scores, add(first, j), f32)
            )
            none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), best, dtype=f32)
            with nest.loop(self.count, "lane") as j:
                less = nest.apply("subtract", nest.read(scores, add(first, j), f32), safe)
                nest.write(scores, add(first, j), nest.apply("weight", less))
            total = fold_here(
                nest, "add", Number(0.0, f32), self.count, lambda j: nest.read(scores, add(first, j), f32)
            )
            here = flat((*place, query, Number(0)), kept)
            nest.store(parts, here, best)
            nest.store(parts, add(here, 1), total)
        self.weighted_sum(scores, parts, place, kept)

    @property
    def room(self) -> int:
        """The queries that there may be."""
        return min(self.attn.queries, FEW) if isinstance(self.attn.queries, int) else FEW

    def score(self, scores: str) -> None:
        """Products of all queries with all keys, after masks."""
        nest, attn, axes = self.nest, self.attn, self.attn.axes
        depth = attn.depth
        pitch = depth + 1  # rows begin in different banks
        queries, keys = nest.tile("query", f32, self.room * depth), nest.tile("key", f32, KEYS * pitch)
        with nest.loop(attn.queries * depth, "lane") as item:
            query, d = (nest.let(each) for each in split(item, depth))
            nest.write(queries, item, attn.query(nest, {**self.at, **attn.apart(query), axes.depth: d}))
        blocks = nest.let(Quotient(nest.let(add(self.count, KEYS - 1)), KEYS))
        with nest.loop(blocks, "ordered", fence=True) as block:
            first = nest.let(scale(block, KEYS))
            left = nest.apply("minimum", Number(KEYS), nest.let(add(self.count, scale(first, -1))), dtype=i64)
            with nest.loop(nest.let(scale(left, depth)), "lane") as item:
                j, d = (nest.let(each) for each in split(item, depth))
                place = {**self.at, axes.key: add(self.start, first, j), axes.depth: d}
                nest.write(keys, add(scale(j, pitch), d), attn.element(nest, 1, place))
            with nest.loop(attn.queries * KEYS, "lane") as item:
                query, j = (nest.let(each) for each in split(item, KEYS))
                with nest.guard(nest.less(j, left)):
                    total = nest.declare(f32, Number(0.0, f32))
                    with nest.loop(depth, "ordered", fence=True) as d:
                        pair = (
                            nest.read(queries, add(scale(query, depth), d), f32),
                            nest.read(keys, add(scale(j, pitch), d), f32),
                        )
                        nest.emit(Set(total, nest.apply("fma", *pair, nest.keep(total), dtype=f32)))
                    place = {**self.at, **attn.apart(query), axes.key: add(self.start, first, j)}
                    score = attn.masked(nest, attn.capped(nest, nest.keep(total)), place)
                    nest.write(scores, add(scale(query, CHUNK), first, j), score)

    def weighted_sum(self, scores: str, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...]) -> None:
        """Weights times values. Threads that have the same element take other keys; their sums are added in order."""
        nest, attn, axes = self.nest, self.attn, self.attn.axes
        wide, slices = attn.values, max(1, THREADS // attn.values)
        sums = nest.tile("sum", f32, slices * self.room * wide)
        share = nest.let(Quotient(nest.let(add(self.count, slices - 1)), slices))
        many = range(self.room)
        with nest.loop(slices * wide, "lane") as item:
            number, e = (nest.let(part) for part in split(item, wide))
            first = nest.let(nest.apply("multiply", number, share, dtype=i64))
            left = nest.apply("minimum", share, nest.let(add(self.count, scale(first, -1))), dtype=i64)
            totals = [nest.declare(f32, Number(0.0, f32)) for _ in many]
            with nest.loop(left, "ordered", fence=True) as i:
                j = nest.let(add(first, i))
                element = attn.element(nest, 2, {**self.at, axes.key: add(self.start, j), axes.value: e})
                for query, total in zip(many, totals, strict=True):
                    weight = nest.read(scores, add(j, query * CHUNK), f32)
                    nest.emit(Set(total, nest.apply("fma", weight, element, nest.keep(total), dtype=f32)))
            for query, total in zip(many, totals, strict=True):
                nest.write(sums, add(scale(number, self.room * wide), query * wide, e), nest.keep(total))
        with nest.loop(nest.let(scale(Amount(attn.queries), wide)), "lane") as item:
            row, e = (nest.let(each) for each in split(item, wide))
            whole = nest.read(sums, item, f32)
            for part in range(1, slices):
                whole = nest.apply("add", whole, nest.read(sums, add(item, part * self.room * wide), f32))
            nest.store(parts, flat((*place, row, add(e, 2)), kept), whole)
