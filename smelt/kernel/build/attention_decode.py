"""Decode attention (flash-decoding): a few queries over many keys of a KV cache, vectorised along the head dimension.

Keys are split into chunks, which run on all cores; each gives its maximum, its sum of weights and its weighted sum of
values. A second loop combines the chunks in order. Chunk sizes depend on the shape alone. Called by `attention.py`.
"""

from __future__ import annotations

from math import inf

from smelt.dim import Size, ceildiv, minimum
from smelt.dtype import f32, i1
from smelt.kernel.build.attention_shape import At, Attention, AttentionSchedule, fold_here
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Set, add, scale
from smelt.kernel.loops.nest import Nest, flat
from smelt.shape import Shape

LANES = 16  # partial sums of a dot product
AT_ONCE = 4  # keys per update of the sum in memory
BLOCK = 128  # keys per partial sum


def build_decode(nest: Nest, attn: Attention, schedule: AttentionSchedule, here: Size, output: Output) -> None:
    """The loops; `here` is 1, or 0 if there are too many queries at run time."""
    axes = attn.axes
    queries, keys = attn.queries, axes.size(axes.key)
    sizes = attn.heads
    chunks = ceildiv(keys, schedule.chunk)
    kept = (*sizes, chunks, minimum(queries, schedule.few), attn.values + 2)
    parts = None if chunks == 1 else nest.scratch(Shape("f32", *kept))
    with nest.loops((*sizes, chunks * here)) as index:
        at = dict(zip(axes.batch, index, strict=False))
        start = nest.let(scale(index[-1], schedule.chunk))
        count = attn.clip(nest, schedule.chunk, keys, start)
        scores = attn.array(nest, "score", min(schedule.chunk, keys) if isinstance(keys, int) else schedule.chunk)
        with nest.loop(queries, "ordered") as query:
            here_at = {**at, **attn.apart(query)}
            _score(nest, attn, here_at, scores, start, count)
            best, total = _weigh(nest, attn, here_at, scores, start, count)
            result = _sum(nest, attn, here_at, scores, start, count)
            if parts is None:
                with nest.loop(attn.values, "lane") as e:
                    element = attn.quotient(nest, nest.read(result, e, f32), total)
                    attn.store(nest, output, {**here_at, axes.value: e}, element)
            else:
                place = flat((*index, query, Number(0)), kept)
                nest.store(parts, place, best)
                nest.store(parts, add(place, 1), total)
                with nest.loop(attn.values, "lane") as e:
                    nest.store(parts, add(place, e, 2), nest.read(result, e, f32))
    if parts is not None:
        join_chunks(nest, attn, parts, kept, here, output)


def _score(nest: Nest, attn: Attention, at: At, scores: str, start: Expr, count: Expr) -> None:
    """Dot products of a query with keys: one partial sum per lane, then their sum."""
    axes, depth = attn.axes, attn.depth
    query, sums = attn.array(nest, "query", depth), attn.array(nest, "lane", LANES)
    with nest.loop(depth, "lane") as d:
        nest.write(query, d, attn.query(nest, {**at, axes.depth: d}))
    with nest.loop(count, "ordered") as j:
        key = add(start, j)

        def times(lane: Expr, first: int, before: Expr) -> Expr:
            d = add(lane, first)
            factor = nest.read(query, d, f32)
            element = attn.element(nest, 1, {**at, axes.key: key, axes.depth: d})
            return nest.apply("fma", factor, element, before, dtype=f32)

        with nest.loop(LANES, "lane") as lane:
            total: Expr = Number(0.0, f32)
            for first in range(0, depth - LANES + 1, LANES):
                total = times(lane, first, total)
            nest.write(sums, lane, total)
        if depth % LANES:
            with nest.loop(depth % LANES, "lane") as lane:
                nest.write(sums, lane, times(lane, depth - depth % LANES, nest.read(sums, lane, f32)))
        half = LANES // 2
        while half:
            with nest.loop(half, "lane") as lane:
                pair = (nest.read(sums, each, f32) for each in (lane, add(lane, half)))
                nest.write(sums, lane, nest.apply("add", *pair))
            half //= 2
        nest.write(scores, j, nest.read(sums, Number(0), f32))


def _weigh(nest: Nest, attn: Attention, at: At, scores: str, start: Expr, count: Expr) -> tuple[Expr, Expr]:
    """Scores become weights; returns the maximum score and the sum of weights."""
    axes = attn.axes
    if attn.numbers.softcap or attn.numbers.roles[3:]:
        with nest.loop(count, "lane") as j:
            score = attn.cap(nest, nest.read(scores, j, f32))
            nest.write(scores, j, attn.mask(nest, score, {**at, axes.key: add(start, j)}))
    best = fold_here(nest, "maximum", Number(-inf, f32), count, lambda j: nest.read(scores, j, f32))
    none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
    safe = nest.apply("select", none, Number(0.0, f32), best, dtype=f32)
    with nest.loop(count, "lane") as j:
        less = nest.apply("subtract", nest.read(scores, j, f32), safe)
        nest.write(scores, j, nest.apply("weight", less))
    total = fold_here(nest, "add", Number(0.0, f32), count, lambda j: nest.read(scores, j, f32))
    return best, total


def _sum(nest: Nest, attn: Attention, at: At, scores: str, start: Expr, count: Expr) -> str:
    """The weighted sum of values."""
    values = attn.values
    result, part = attn.array(nest, "sum", values), attn.array(nest, "part", values)

    def put(array: str, number: Expr) -> None:
        with nest.loop(values, "lane") as e:
            nest.write(array, e, number)

    def has_many(first: Expr, many: int) -> None:
        """Accumulate the weighted values of adjacent keys."""
        weights = [nest.read(scores, add(first, u), f32) for u in range(many)]
        with nest.loop(values, "lane") as e:
            total = nest.read(part, e, f32)
            for u, weight in enumerate(weights):
                place = {**at, attn.axes.key: add(start, first, u), attn.axes.value: e}
                total = nest.apply("fma", weight, attn.element(nest, 2, place), total, dtype=f32)
            nest.write(part, e, total)

    put(result, Number(0.0, f32))
    blocks = nest.let(Quotient(nest.let(add(count, BLOCK - 1)), BLOCK))
    with nest.loop(blocks, "ordered") as block:
        first = nest.let(scale(block, BLOCK))
        left = nest.apply("minimum", Number(BLOCK), nest.let(add(count, scale(first, -1))))
        whole = nest.let(Quotient(left, AT_ONCE))
        put(part, Number(0.0, f32))
        with nest.loop(whole, "ordered") as group:
            has_many(add(first, scale(group, AT_ONCE)), AT_ONCE)
        done = nest.let(scale(whole, AT_ONCE))
        with nest.loop(nest.let(add(left, scale(done, -1))), "ordered") as u:
            has_many(add(first, done, u), 1)
        with nest.loop(values, "lane") as e:
            pair = (nest.read(each, e, f32) for each in (result, part))
            nest.write(result, e, nest.apply("add", *pair))
    return result


def join_chunks(nest: Nest, attn: Attention, parts: int, kept: tuple[Size, ...], here: Size, output: Output) -> None:
    """Combine the chunks of each query, in order."""
    axes = attn.axes
    chunks, values = kept[len(attn.heads)], attn.values
    with nest.loops((*attn.heads, attn.queries * here)) as (*outer, query):
        at = {**dict(zip(axes.batch, outer, strict=True)), **attn.apart(query)}

        def item(chunk: Expr, place: Expr) -> Expr:
            return nest.read(nest.buffer(parts), flat((*outer, chunk, query, place), kept), f32)

        best = fold_here(nest, "maximum", Number(-inf, f32), Amount(chunks), lambda chunk: item(chunk, Number(0)))
        none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
        safe = nest.apply("select", none, Number(0.0, f32), best, dtype=f32)
        total, result = nest.declare(f32, Number(0.0, f32)), attn.array(nest, "sum", values)
        with nest.loop(values, "lane") as e:
            nest.write(result, e, Number(0.0, f32))
        with nest.loop(chunks, "ordered") as chunk:
            factor = nest.apply("weight", nest.apply("subtract", item(chunk, Number(0)), safe))
            more = nest.apply("fma", factor, item(chunk, Number(1)), nest.keep(total), dtype=f32)
            nest.emit(Set(total, more))
            with nest.loop(values, "lane") as e:
                old = nest.read(result, e, f32)
                nest.write(result, e, nest.apply("fma", factor, item(chunk, add(e, 2)), old, dtype=f32))
        sum_of = nest.keep(total)
        with nest.loop(values, "lane") as e:
            element = attn.quotient(nest, nest.read(result, e, f32), sum_of)
            attn.store(nest, output, {**at, axes.value: e}, element)
