"""Paged attention of a few queries on a GPU (flash-decoding): each thread block takes a chunk of the keys of one query.

Each chunk yields its maximum, its sum of weights and its weighted sum of values, for all query heads of a KV head. The
blocks of a cluster combine them in order, or a second launch does. Chunks begin at multiples of their size, so the bits
of a query depend on its position alone. More queries over bf16 pages go to `paged_flash.py`, others to the blocks of
`paged_attention.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum
from smelt.dtype import f32, i1, i64
from smelt.ir.blocks import RUN
from smelt.ir.core import Op
from smelt.kernel.build.attention_flash import inside
from smelt.kernel.build.attention_shape import fold_here
from smelt.kernel.build.attention_simt import add_chunk
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.gemm import axis_stride, element_place
from smelt.kernel.build.paged_attention import Paged, build_blocks
from smelt.kernel.build.paged_flash import build_paged_flash, find_tile, has_aligned_pages
from smelt.kernel.build.round_simt import TOGETHER, Rows, round_kept, round_tile
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Amount, Decode, Expr, Number, Quotient, Set, add, scale, split
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.kernel.loops.tensor_tile import (
    CLUSTERS,
    DECODE_CHUNKS,
    DECODE_DEEPEST,
    DECODE_KEYS,
    DECODE_ROWS,
    fits_decode,
)
from smelt.shape import Shape
from smelt.target import WARPGROUPS

CHUNK = DECODE_KEYS  # keys of a block: few, so that there are many blocks
LEAST_BLOCKS, MOST_CHUNKS = 4, 8  # that share the chunks of a query's head on tensor cores; that each has
SHARE = 8  # the same, where they combine their chunks
LEAST_HEADS = 96  # of all queries that are worth a block each
JOINED = 4  # chunks that a thread reads at a time
THREADS = 256
AT_ONCE = 8  # heads whose scores a thread computes together
FEW = 64  # queries


@simt_sink("smelt.paged_attention")
def paged_attention(nest: Nest, op: Op, output: Output) -> None:
    paged = Paged.of(op)
    many = minimum(floordiv(paged.count, FEW + 1), 1)
    if many != 1:
        _build_chunks(nest, paged, 1 - many, output)
    if many == 0:
        return
    tile, kept = find_tile(nest, paged), output
    if output.roundings:  # behind these kernels
        groups, rows, depth = tensor(output.roundings[0].op.operands[0]).sizes
        held = nest.scratch(Shape.of(f32, (groups * many, rows, depth)))
        kept = output.replace(targets=(held,), roundings=())
    if tile is not None:
        build_paged_flash(nest, paged, tile, many, kept)
    else:
        build_blocks(nest, op, kept, many)
    if output.roundings:
        round_kept(nest, output, kept.targets[0], many)


def _build_chunks(nest: Nest, paged: Paged, here: Size, output: Output) -> None:
    op, shared = paged.op, paged.shared
    chunks = ceildiv(tensor(op.operands[3]).sizes[1] * paged.page, CHUNK)
    tensor_cores = fits_tensor_cores(nest, paged, output)
    if tensor_cores:
        here = _combine_chunks(nest, paged, chunks, here, output)
    if here == 0:
        return
    kept = (minimum(paged.count, FEW) * minimum(here, 1), paged.groups, chunks, shared, paged.values + 2)
    parts = nest.scratch(Shape("f32", *kept))
    if tensor_cores:
        _decode(nest, paged, parts, kept, 0, here, output)
        _join(nest, paged, parts, kept, here, output)
        return
    with nest.loops((paged.count * here, paged.groups, chunks)) as (token, group, chunk):
        keys = _Keys.of(nest, paged, token)
        start = nest.let(scale(chunk, CHUNK))
        begin = nest.apply("maximum", start, keys.first)
        end = nest.apply("minimum", nest.let(add(start, CHUNK)), keys.end)
        count = nest.apply("maximum", nest.let(add(end, scale(begin, -1))), Number(0))
        _Chunk(nest, paged, token, group, begin, count).write(parts, (token, group, chunk), kept)
    _join(nest, paged, parts, kept, here, output)


def _combine_chunks(nest: Nest, paged: Paged, chunks: Size, here: Size, output: Output) -> Size:
    """Chunks on tensor cores, combined in the same launch: by clusters if each block has a multiprocessor, else a block
    has all chunks of a head. What is left: more chunks than that, or so few heads that more blocks are better."""
    most = min(paged.shared, DECODE_ROWS)
    short = 1 - minimum(floordiv(chunks, DECODE_CHUNKS + 1), 1)
    heads = paged.groups * -(-paged.shared // DECODE_ROWS)
    clusters = WARPGROUPS in nest.target.features and fits_decode(
        _ring_room(nest, paged, output), paged.depth, paged.values, most, DECODE_CHUNKS
    )
    few: Size = 0
    if clusters and heads <= CLUSTERS[SHARE]:
        few = short * (1 - minimum(floordiv(paged.count, CLUSTERS[SHARE] // heads + 1), 1))
        if few != 0:
            _decode(nest, paged, None, (), SHARE, here * few, output)
    some = short * minimum(floordiv(paged.count * heads, LEAST_HEADS), 1) * (1 - few)
    if some != 0:
        _decode(nest, paged, None, (), 1, here * some, output)
    return here * (1 - few) * (1 - some)


def _ring_room(nest: Nest, paged: Paged, output: Output) -> int:
    """Bytes of shared memory beside what a block rounds."""
    return nest.target.cache_bytes[0] - (DECODE_ROWS * paged.values * 4 if output.roundings else 0)


def fits_tensor_cores(nest: Nest, paged: Paged, output: Output) -> bool:
    """Whether pages are bf16, with 16 aligned bytes at a time, and `Decode` computes this attention."""
    if paged.depth % 16 or paged.values % 16 or paged.page % 16 or CHUNK != DECODE_KEYS:
        return False
    if max(paged.depth, paged.values) > DECODE_DEEPEST:
        return False
    room = _ring_room(nest, paged, output)
    return fits_decode(room, paged.depth, paged.values, DECODE_ROWS, 0) and has_aligned_pages(nest, paged)


def _decode(
    nest: Nest, paged: Paged, parts: int | None, kept: tuple[Size, ...], share: int, here: Size, output: Output
) -> None:
    """All chunks on tensor cores. A block has some that are far apart: the last ones are often empty. Without `parts`,
    `share` adjacent blocks combine theirs."""
    op, blocks, most = paged.op, -(-paged.shared // DECODE_ROWS), min(paged.shared, DECODE_ROWS)
    groups = share or minimum(kept[2], maximum(LEAST_BLOCKS, ceildiv(kept[2], MOST_CHUNKS)))
    several = DECODE_CHUNKS // share if share else MOST_CHUNKS
    sizes = paged.count * here, paged.groups, blocks
    with nest.loops((*sizes, groups) if share else (groups, *sizes)) as index:
        token, group, block, number = index if share else (*index[1:], index[0])
        seen = _Keys.of(nest, paged, token)
        sequence = to_index(nest, nest.pull(op.operands[4], (token,)))
        line = nest.clamp(sequence, tensor(op.operands[3]).sizes[0] - 1)
        first = nest.let(scale(block, DECODE_ROWS))
        left = nest.let(add(paged.shared, scale(first, -1)))
        rows = Number(paged.shared) if blocks == 1 else nest.apply("minimum", Number(DECODE_ROWS), left, dtype=i64)
        row, step, key, chunk, column = (
            nest.var(i64, None, stem) for stem in ("row", "step", "key", "chunk", "column")
        )
        score, element, total = (nest.var(f32, None, stem) for stem in ("score", "element", "total"))

        def head_of(row: Expr) -> Expr:
            return nest.let(add(scale(group, paged.shared), first, row))

        with inside(nest, row, step) as at_query:
            head = head_of(row)
            query = nest.convert(nest.pull(op.operands[0], (token, head, step)), f32)
            query = nest.apply("multiply", query, Number(paged.numbers.scale, f32))
        with inside(nest, key) as at_key:
            which, place = (nest.let(each) for each in split(key, paged.page))
            page = nest.clamp(
                to_index(nest, nest.pull(op.operands[3], (line, which))), tensor(op.operands[1]).sizes[0] - 1
            )
            k = element_place(nest, op, op.operands[1], (page, group, Number(0), place))
            v = element_place(nest, op, op.operands[2], (page, group, place, Number(0)))
        with inside(nest, row, key, score) as mask:
            masked = cap(nest, paged, score)
            if paged.numbers.window:
                there = nest.apply("GE", key, seen.first, dtype=i1)
                masked = nest.apply("select", there, masked, Number(-inf, f32), dtype=f32)
        rounds = parts is None and bool(output.roundings)
        result = nest.tile("result", f32, most * paged.values) if rounds else ""
        with inside(nest, chunk, row, column, element, total) as put:
            if parts is None:
                found = _finish(nest, paged, output, (token, head_of(row), column), element, total)
                if found is not None:
                    nest.write(result, add(scale(row, paged.values), column), found)
            else:
                nest.store(parts, flat((token, group, chunk, add(first, row), add(column, 2)), kept), element)
        with inside(nest, row) as at_sink:
            sink = _sink(nest, paged, head_of(row)) if share else Number(-inf, f32)
        nest.emit(
            Decode(
                rows,
                most,
                seen.end,
                paged.depth,
                paged.values,
                number,
                Amount(groups),
                Amount(several),
                row,
                step,
                tuple(at_query.statements),
                query,
                key,
                tuple(at_key.statements),
                k,
                v,
                axis_stride(nest, op, op.operands[1], 2),
                axis_stride(nest, op, op.operands[2], 2),
                score,
                tuple(mask.statements),
                masked,
                1 if paged.numbers.window else 0,
                chunk,
                column,
                element,
                total,
                tuple(put.statements),
                tuple(at_sink.statements),
                sink,
                whole=True,
                adjacent=True,
                share=share,
                held=DECODE_CHUNKS if share > 1 else 0,
            )
        )
        if rounds:
            combines = nest.apply("EQ", number, Number(0), dtype=i1)
            there = nest.apply("select", combines, rows, Number(0), dtype=i64) if share > 1 else rows
            start = flat((token, head_of(Number(0)), Number(0)), tensor(op.result).sizes)
            held = Rows(result, there, most, paged.values, Number(paged.values))
            round_tile(nest, output, held, start, paged.values)


@dataclass(frozen=True, slots=True)
class _Keys:
    """The keys that a query sees: from `first` on, before `end`."""

    first: Expr
    end: Expr

    @staticmethod
    def of(nest: Nest, paged: Paged, token: Expr) -> _Keys:
        position = to_index(nest, nest.pull(paged.op.operands[5], (token,)))
        end = nest.apply("minimum", nest.let(add(position, 1)), Amount(paged.room))
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
                    nest.write(scores, add(j, head * CHUNK), cap(nest, paged, nest.keep(sum_of)))

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


def cap(nest: Nest, paged: Paged, score: Expr) -> Expr:
    softcap = paged.numbers.softcap
    if not softcap:
        return score
    inner = nest.apply("multiply", score, Number(1 / softcap, f32))
    return nest.apply("multiply", nest.apply("tanh", inner), Number(softcap, f32))


def _safe(nest: Nest, best: Expr) -> Expr:
    """A maximum that may be subtracted: 0 where there is none."""
    none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
    return nest.apply("select", none, Number(0.0, f32), best, dtype=f32)


def _join(nest: Nest, paged: Paged, parts: int, kept: tuple[Size, ...], here: Size, output: Output) -> None:
    """Combine the chunks of each query, in order; a query without keys gives zeros. A thread has elements of the
    result, and reads several chunks at a time: the last one again and again, which then counts nothing. A warp has
    runs of a head where it rounds them."""
    outer = paged.count * here, paged.groups, paged.shared
    if not output.roundings:
        with nest.loops((*outer, paged.values)) as (*index, e):
            _join_elements(nest, paged, parts, kept, index, [e], output)
        return
    runs = max(each for each in (1, 2, TOGETHER // RUN) if paged.values % (each * RUN) == 0)
    wide = runs * RUN
    with nest.loops((*outer, paged.values // wide)) as (token, group, inner, part):
        held, first = nest.tile("run", f32, wide), scale(part, wide)
        with nest.loop(RUN, "lane") as at:
            elements = [nest.let(add(first, at, RUN * i)) for i in range(runs)]
            found = _join_elements(nest, paged, parts, kept, (token, group, inner), elements, output)
            for i, each in enumerate(found):
                assert each is not None
                nest.write(held, add(at, RUN * i), each)
        head = add(scale(group, paged.shared), inner)
        start = flat((token, head, first), tensor(paged.op.result).sizes)
        round_tile(nest, output, Rows(held, Number(1), 1, wide, Number(wide)), start, wide)


def _join_elements(
    nest: Nest,
    paged: Paged,
    parts: int,
    kept: tuple[Size, ...],
    row: Sequence[Expr],
    elements: Sequence[Expr],
    output: Output,
) -> list[Expr | None]:
    """Elements of a row of the result; for each what `Output.finish` returns."""
    token, group, inner = row
    keys = _Keys.of(nest, paged, token)
    head = nest.let(add(scale(group, paged.shared), inner))
    first = nest.let(Quotient(keys.first, CHUNK))
    last = nest.let(Quotient(nest.apply("maximum", nest.let(add(keys.end, -1)), Number(0)), CHUNK))
    some = nest.less(keys.first, keys.end)
    count = nest.let(add(last, scale(first, -1), 1))
    turns = nest.let(Quotient(nest.let(add(count, JOINED - 1)), JOINED))
    turns = nest.apply("select", some, turns, Number(0), dtype=i64)

    def item(number: Expr, place: Expr) -> Expr:
        index = (token, group, nest.apply("minimum", number, last, dtype=i64), inner, place)
        return nest.read(nest.buffer(parts), flat(index, kept), f32)

    sink = _sink(nest, paged, head)
    none = nest.apply("EQ", sink, Number(-inf, f32), dtype=i1)
    start = nest.apply("select", none, Number(0.0, f32), Number(1.0, f32), dtype=f32)
    sums = tuple(nest.declare(f32, each) for each in (sink, start, *[Number(0.0, f32)] * len(elements)))
    places = Number(0), Number(1), *(add(e, 2) for e in elements)
    with nest.loop(turns, "ordered", fence=True) as turn:
        numbers = [nest.let(add(first, scale(turn, JOINED), i)) for i in range(JOINED)]
        read = [[item(number, place) for place in places] for number in numbers]
        for number, (level, *more) in zip(numbers, read, strict=True):
            hidden = nest.apply("GT", number, last, dtype=i1)
            add_chunk(nest, sums, level, more, hidden)
    _, total, *results = sums
    return [
        _finish(nest, paged, output, (token, head, e), nest.keep(result), nest.keep(total))
        for e, result in zip(elements, results, strict=True)
    ]


def _sink(nest: Nest, paged: Paged, head: Expr) -> Expr:
    """A score without a value."""
    operands = paged.op.operands
    return nest.convert(nest.pull(operands[6], (head,)), f32) if len(operands) == 7 else Number(-inf, f32)


def _finish(
    nest: Nest, paged: Paged, output: Output, index: tuple[Expr, ...], result: Expr, total: Expr
) -> Expr | None:
    """Divide by the sum of weights; a query without keys gives zeros."""
    none = nest.apply("EQ", total, Number(0.0, f32), dtype=i1)
    element = nest.apply("select", none, Number(0.0, f32), nest.apply("divide", result, total), dtype=f32)
    return output.finish(nest, paged.op, index, nest.convert(element, tensor(paged.op.result).element))
