"""Attention of a few queries on a GPU (flash-decoding): each thread block takes some queries and a chunk of their keys.

bf16 keys and values go to tensor cores (`Decode`); the blocks of a cluster combine their chunks in order. Others are
staged in shared memory for coalesced loads, and each thread computes one score; a second launch combines the chunks.
Many queries of bf16 go to `attention_flash.py`, others to the blocks of `attention.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from smelt.dim import Size, ceildiv, floordiv, minimum, mod, product
from smelt.dtype import bf16, f32, i1, i64
from smelt.ir.core import Op
from smelt.ir.layouts import letters
from smelt.kernel.build.attention import build
from smelt.kernel.build.attention_flash import build_flash, fits_flash, inside
from smelt.kernel.build.attention_shape import At, Attention, AttentionSchedule, fold_here
from smelt.kernel.build.gemm import element_place, memory_layout
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import (
    Amount,
    Decode,
    Expr,
    Number,
    Quotient,
    Set,
    Var,
    add,
    scale,
    split,
)
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.kernel.loops.tensor_tile import (
    ALONE,
    CLUSTERS,
    DECODE_CHUNKS,
    DECODE_DEEPEST,
    DECODE_KEYS,
    DECODE_ROWS,
    fits_decode,
)
from smelt.shape import Shape
from smelt.target import WARPGROUPS, Target

CHUNK, KEYS, FEW = DECODE_KEYS, 32, DECODE_ROWS  # keys of a block, keys in shared memory at a time, queries of a block
THREADS = 256
MANY = 64  # queries that are worth a block of 128 on tensor cores
MOST_KEPT, MOST_OF_HEAD = 1 << 24, 1 << 16  # elements of the results of all chunks; of a head, if there is any number
AT_ONCE, MOST_CHUNKS = 256, 8  # blocks that a GPU runs at once; chunks that a block may take one after another


@simt_sink("smelt.attention")
def attention(nest: Nest, op: Op, output: Output) -> None:
    attn = Attention.of(op)
    schedule = AttentionSchedule.of(attn).replace(chunk=CHUNK, few=FEW)
    if fits_flash(nest, attn) and not (isinstance(attn.queries, int) and attn.queries < MANY):
        many: Size = 1 if isinstance(attn.queries, int) else minimum(floordiv(attn.queries, FEW + 1), 1)
        if many != 1:
            _build_few(nest, attn, schedule, 1 - many, output)
        build_flash(nest, attn, many, output)
    elif takes_small_blocks(attn):
        _build_few(nest, attn, schedule, 1, output)
    else:
        build(nest, attn, schedule, output, _build_few)


def takes_small_blocks(attn: Attention) -> bool:
    """Whether many queries take blocks of a few: the results of all chunks fit in memory for a while."""
    chunks = ceildiv(attn.axes.size(attn.axes.key), CHUNK)
    each = attn.queries * chunks * (attn.values + 2)
    total = product(attn.heads) * each
    return isinstance(each, int) and (total <= MOST_KEPT if isinstance(total, int) else each <= MOST_OF_HEAD)


def _build_few(nest: Nest, attn: Attention, schedule: AttentionSchedule, here: Size, output: Output) -> None:
    axes, chunks = attn.axes, ceildiv(attn.axes.size(attn.axes.key), CHUNK)
    queries = attn.queries if isinstance(attn.queries, int) else minimum(attn.queries, FEW)
    kept = (*attn.heads, chunks, queries, attn.values + 2)
    several = chunks_of_block(attn, chunks)
    blocks = ceildiv(queries, FEW) if isinstance(queries, int) else 1
    tensor_cores = fits_tensor_cores(nest, attn)
    share = choose_share(nest.target, attn, product(attn.heads) * blocks, chunks) if tensor_cores else 0
    if share:
        _decode(nest, attn, None, kept, blocks, ceildiv(chunks, share), share, here, output)
        return
    parts = nest.scratch(Shape("f32", *kept))
    if tensor_cores:
        _decode(nest, attn, parts, kept, blocks, several, 0, here, output)
        _join(nest, attn, parts, kept, here, output)
        return
    with nest.loops((*attn.heads, blocks, (chunks if several == 1 else chunks // several) * here)) as (
        *outer,
        block,
        group,
    ):
        at, first = dict(zip(axes.batch, outer, strict=True)), nest.let(scale(group, several))
        query = nest.let(scale(block, FEW))
        rows = Amount(attn.queries) if blocks == 1 else attn.clip(nest, FEW, queries, query)

        def chunk(number: Expr) -> _Chunk:
            start = nest.let(scale(number, CHUNK))
            return _Chunk(nest, attn, at, query, rows, start, attn.clip(nest, CHUNK, axes.size(axes.key), start))

        if several == 1:
            alone = chunk(first)
            alone.write(parts, (*outer, first), kept, alone.is_visible())
        else:
            levels = nest.tile("level", f32, several)
            with nest.loop(several, "warp") as i:
                nest.write(levels, i, chunk(nest.let(add(first, i))).level(Number(0)))
            with nest.loop(several, "ordered", fence=True) as i:
                number = nest.let(add(first, i))
                visible = nest.apply("NE", nest.read(levels, i, f32), Number(-inf, f32), dtype=i1)
                chunk(number).write(parts, (*outer, number), kept, visible)
    _join(nest, attn, parts, kept, here, output)


def _decode(
    nest: Nest,
    attn: Attention,
    parts: int | None,
    kept: tuple[Size, ...],
    blocks: Size,
    several: Size,
    share: int,
    here: Size,
    output: Output,
) -> None:
    """All chunks on tensor cores, `several` of them in a block. `share` blocks, which are adjacent, combine theirs. Or
    they go to `parts`, and blocks with the first chunks are the first ones: often later chunks are hidden."""
    axes, chunks = attn.axes, kept[len(attn.heads)]
    groups: Size = share or (chunks if several == 1 else floordiv(chunks, several))
    sizes = (*attn.heads, blocks, groups * here) if share else (groups * here, *attn.heads, blocks)
    with nest.loops(sizes) as index:
        *outer, block, group = index if share else (*index[1:], index[0])
        at, first = dict(zip(axes.batch, outer, strict=True)), nest.let(scale(block, FEW))
        rows = Amount(attn.queries) if blocks == 1 else attn.clip(nest, FEW, kept[-2], first)
        row, step, key, chunk, column = (
            nest.var(i64, None, stem) for stem in ("row", "step", "key", "chunk", "column")
        )
        score, element, total = (nest.var(f32, None, stem) for stem in ("score", "element", "total"))

        def query_of(row: Expr) -> dict[str, Expr]:
            return attn.apart(row if blocks == 1 else nest.let(add(first, row)))

        with inside(nest, row, step) as at_query:
            query = attn.query(nest, {**at, **query_of(row), axes.depth: step})
        with inside(nest, key) as at_key:
            k, v = (
                element_place(
                    nest,
                    attn.op,
                    attn.op.operands[i],
                    attn.index(axes.words[i], {**at, axes.key: key, letter: Number(0)}),
                )
                for i, letter in ((1, axes.depth), (2, axes.value))
            )
        with inside(nest, row, key, score) as mask:
            masked = attn.mask(nest, attn.cap(nest, score), {**at, **query_of(row), axes.key: key})
        with inside(nest, chunk, row, column, element, total) as put:
            if parts is None:
                result = attn.quotient(nest, element, total)
                attn.store(nest, output, {**at, **query_of(row), axes.value: column}, result)
            else:
                nest.store(parts, flat((*outer, chunk, add(first, row), add(column, 2)), kept), element)
        most = max(1, min(attn.queries, FEW)) if isinstance(attn.queries, int) else FEW
        nest.emit(
            Decode(
                rows,
                most,
                Amount(axes.size(axes.key)),
                attn.depth,
                attn.values,
                group,
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
                Amount(letter_stride(nest, attn, 1, axes.key)),
                Amount(letter_stride(nest, attn, 2, axes.key)),
                score,
                tuple(mask.statements),
                masked,
                _what_masks_hide(attn),
                chunk,
                column,
                element,
                total,
                tuple(put.statements),
                (),
                Number(-inf, f32),
                mod(axes.size(axes.key), 16) == 0,
                share=share,
                held=chunks if share > 1 and isinstance(chunks, int) else 0,
            )
        )


def choose_share(target: Target, attn: Attention, heads: Size, chunks: Size) -> int:
    """The blocks that take the chunks of a head in turns, and combine them: as many as have a multiprocessor each. 0:
    chunks are too many, or blocks too few."""
    if not isinstance(chunks, int) or not isinstance(heads, int) or not 0 < chunks <= DECODE_CHUNKS:
        return 0
    most = max(1, min(attn.queries, FEW)) if isinstance(attn.queries, int) else FEW
    fits = fits_decode(target.cache_bytes[0], attn.depth, attn.values, most, chunks)
    several = CLUSTERS.items() if WARPGROUPS in target.features and fits else ()
    share = next((each for each, most in several if each < 2 * chunks and heads <= most), 1)
    return share if share > 1 or 2 * heads > ALONE or chunks == 1 else 0


def _what_masks_hide(attn: Attention) -> int:
    """0: no chunk is hidden for sure; 1: masks are the same for all queries; 2: any."""
    axes = attn.axes
    seen = {letter for word in axes.words[3:] for letter in letters(word)}
    hides = any(role == "add" for role in attn.numbers.roles[3:]) or -inf in attn.numbers.fill
    if axes.key not in seen or not hides:
        return 0
    return 2 if seen & {*axes.rows} else 1


def chunks_of_block(attn: Attention, chunks: Size) -> int:
    """The chunks that a block takes, one after another: several where a GPU cannot run all at once, and where
    it is cheap to find out which of them no query sees."""
    axes, total = attn.axes, product(attn.heads) * ceildiv(attn.queries, FEW) * chunks
    seen = {letter for word in axes.words[3:] for letter in letters(word)}
    if not isinstance(total, int) or not isinstance(chunks, int) or axes.key not in seen or seen & {*axes.rows}:
        return 1
    return max(each for each in range(1, MOST_CHUNKS + 1) if chunks % each == 0 and (each - 1) * AT_ONCE < total)


def _join(nest: Nest, attn: Attention, parts: int, kept: tuple[Size, ...], here: Size, output: Output) -> None:
    """Combine the chunks of each query, in order: a thread has an element of the result, and reads all chunks."""
    axes, chunks = attn.axes, kept[len(attn.heads)]
    with nest.loops((*attn.heads, attn.queries * here, attn.values)) as (*outer, query, e):
        at = {**dict(zip(axes.batch, outer, strict=True)), **attn.apart(query)}

        def item(chunk: Expr, place: Expr) -> Expr:
            return nest.read(nest.buffer(parts), flat((*outer, chunk, query, place), kept), f32)

        sums = tuple(nest.declare(f32, Number(start, f32)) for start in (-inf, 0.0, 0.0))
        with nest.loop(chunks, "ordered", fence=True) as chunk:
            level = item(chunk, Number(0))
            hidden = nest.apply("EQ", level, Number(-inf, f32), dtype=i1)  # then there are no other items
            places = (
                nest.apply("select", hidden, Number(0), each, dtype=i64) for each in (Number(1), nest.let(add(e, 2)))
            )
            add_chunk(nest, sums, level, [item(chunk, place) for place in places], hidden)
        _, total, result = sums
        element = attn.quotient(nest, nest.keep(result), nest.keep(total))
        attn.store(nest, output, {**at, axes.value: e}, element)


def add_chunk(nest: Nest, sums: Sequence[Var], level: Expr, more: Sequence[Expr], hidden: Expr) -> None:
    """Add a chunk to those before it (online softmax): the highest score, the sum of the weights and the weighted sum
    of values. The order is that of `smelt_decode`."""
    best, *others = sums
    last = nest.keep(best)
    highest = nest.apply("maximum", last, level)
    apart = nest.apply("minimum", nest.apply("subtract", last, level), nest.apply("subtract", level, last))
    higher, less = nest.apply("GT", level, last, dtype=i1), nest.apply("weight", apart)
    old = nest.apply("select", higher, less, Number(1.0, f32), dtype=f32)
    fresh = nest.apply("select", higher, Number(1.0, f32), less, dtype=f32)
    for sum_of, value in zip(others, more, strict=True):
        before = nest.keep(sum_of)
        added = nest.apply("fma", fresh, value, nest.apply("multiply", old, before), dtype=f32)
        nest.emit(Set(sum_of, nest.apply("select", hidden, before, added, dtype=f32)))
    nest.emit(Set(best, nest.apply("select", hidden, last, highest, dtype=f32)))


def fits_tensor_cores(nest: Nest, attn: Attention) -> bool:
    """Whether keys and values are bf16 in memory, with 16 aligned bytes of a key or a value at a time."""
    axes = attn.axes
    if not fits_decode(nest.target.cache_bytes[0], attn.depth, attn.values, FEW, 0):
        return False
    for operand, inner in ((1, axes.depth), (2, axes.value)):
        value = attn.op.operands[operand]
        if tensor(value).element != bf16 or not inner or axes.size(inner) % 16 or axes.size(inner) > DECODE_DEEPEST:
            return False
        _, start, _ = memory_layout(nest, attn.op, value)
        strides = {each: letter_stride(nest, attn, operand, each) for each in letters(axes.words[operand])}
        if strides.pop(inner) != 1 or any(mod(stride, 8) != 0 for stride in (start, *strides.values())):
            return False
    return True


def letter_stride(nest: Nest, attn: Attention, operand: int, letter: str) -> Size:
    """The distance in memory of neighbours along a letter."""
    _, _, strides = memory_layout(nest, attn.op, attn.op.operands[operand])
    for axis, stride in zip(attn.axes.words[operand], strides, strict=True):
        if letter in axis:
            return stride * product(attn.axes.sizes[each] for each in axis[axis.index(letter) + 1 :])
    return 0


@dataclass(slots=True)
class _Chunk:
    nest: Nest
    attn: Attention
    at: At
    first: Expr  # query, and the number of queries
    rows: Expr
    start: Expr  # key, and the number of keys
    count: Expr

    def times(self, count: int) -> Expr:
        """As many for each query."""
        if isinstance(self.rows, Amount):
            return Amount(self.rows.size * count)
        return self.nest.let(scale(self.rows, count))

    def apart(self, query: Expr) -> dict[str, Expr]:
        """The index along each query letter."""
        return self.attn.apart(query if self.first == Number(0) else self.nest.let(add(self.first, query)))

    def write(self, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...], visible: Expr | None) -> None:
        """The chunk, or a maximum of -inf alone where it is not visible: its keys and values are not read then."""
        nest = self.nest
        if visible is None:
            self.attend(parts, place, kept)
            return
        with nest.guard(visible):
            self.attend(parts, place, kept)
        with nest.guard(nest.apply("not", visible, dtype=i1)), nest.loop(self.rows, "lane") as query:
            nest.store(parts, flat((*place, add(self.first, query), Number(0)), kept), Number(-inf, f32))

    def is_visible(self) -> Expr | None:
        """Whether masks leave a key of the chunk to some query; None where that cannot be found out cheaply."""
        nest, attn, axes = self.nest, self.attn, self.attn.axes
        seen = {letter for word in axes.words[3:] for letter in letters(word)}
        varies = bool(seen.intersection(axes.rows))
        if axes.key not in seen or (varies and not isinstance(attn.queries, int)):
            return None
        queries: list[Expr] = [Number(query) for query in range(self.room if varies else 1)]
        if not isinstance(self.rows, Amount):
            last = nest.let(add(self.rows, -1))
            queries = [nest.apply("minimum", query, last, dtype=i64) for query in queries]
        hidden = [nest.apply("EQ", self.level(query), Number(-inf, f32), dtype=i1) for query in queries]
        return nest.apply("not", nest.both(*hidden), dtype=i1)

    def level(self, query: Expr) -> Expr:
        """The highest score of a key if no mask changed a score of 0; -inf: all are masked."""
        nest, attn, axes = self.nest, self.attn, self.attn.axes
        here = {**self.at, **self.apart(query)}

        def of_key(j: Expr) -> Expr:
            return attn.mask(nest, Number(0.0, f32), {**here, axes.key: add(self.start, j)})

        return fold_here(nest, "maximum", Number(-inf, f32), self.count, of_key)

    def attend(self, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...]) -> None:
        nest = self.nest
        scores = nest.tile("score", f32, self.room * CHUNK)
        self.score(scores)
        self.weigh(scores, parts, place, kept)
        self.weighted_sum(scores, parts, place, kept)

    def weigh(self, scores: str, parts: int, place: tuple[Expr, ...], kept: tuple[Size, ...]) -> None:
        """Scores become weights, those of a query on a warp; maxima and sums go to the parts."""
        nest = self.nest
        with nest.loop(self.rows, "warp") as query:

            def fold(function: str, start: float) -> Expr:
                return fold_here(
                    nest, function, Number(start, f32), self.count, lambda j: nest.read(scores, at(j), f32)
                )

            def at(j: Expr) -> Expr:
                return add(scale(query, CHUNK), j)

            best = fold("maximum", -inf)
            none = nest.apply("EQ", best, Number(-inf, f32), dtype=i1)
            safe = nest.apply("select", none, Number(0.0, f32), best, dtype=f32)
            with nest.loop(self.count, "lane") as j:
                less = nest.apply("subtract", nest.read(scores, at(j), f32), safe)
                nest.write(scores, at(j), nest.apply("weight", less))
            here = flat((*place, add(self.first, query), Number(0)), kept)
            nest.store(parts, here, best)
            nest.store(parts, add(here, 1), fold("add", 0.0))

    def load_queries(self) -> str:
        nest, attn, depth = self.nest, self.attn, self.attn.depth
        queries = nest.tile("query", f32, self.room * depth)
        with nest.loop(self.times(depth), "lane") as item:
            query, d = (nest.let(each) for each in split(item, depth))
            nest.write(queries, item, attn.query(nest, {**self.at, **self.apart(query), attn.axes.depth: d}))
        return queries

    @property
    def room(self) -> int:
        """The queries that there may be, or one where there are none."""
        return max(1, min(self.attn.queries, FEW)) if isinstance(self.attn.queries, int) else FEW

    def score(self, scores: str) -> None:
        """Products of all queries with all keys, after masks."""
        nest, attn, axes = self.nest, self.attn, self.attn.axes
        depth = attn.depth
        pitch = depth + 1  # rows begin in different banks
        queries, keys = self.load_queries(), nest.tile("key", f32, KEYS * pitch)
        blocks = nest.let(Quotient(nest.let(add(self.count, KEYS - 1)), KEYS))
        with nest.loop(blocks, "ordered", fence=True) as block:
            first = nest.let(scale(block, KEYS))
            left = nest.apply("minimum", Number(KEYS), nest.let(add(self.count, scale(first, -1))), dtype=i64)
            with nest.loop(nest.let(scale(left, depth)), "lane") as item:
                j, d = (nest.let(each) for each in split(item, depth))
                place = {**self.at, axes.key: add(self.start, first, j), axes.depth: d}
                nest.write(keys, add(scale(j, pitch), d), attn.element(nest, 1, place))
            with nest.loop(self.times(KEYS), "lane") as item:
                query, j = (nest.let(each) for each in split(item, KEYS))
                with nest.guard(nest.less(j, left)):
                    total = nest.declare(f32, Number(0.0, f32))
                    with nest.loop(depth, "ordered", fence=True) as d:
                        pair = (
                            nest.read(queries, add(scale(query, depth), d), f32),
                            nest.read(keys, add(scale(j, pitch), d), f32),
                        )
                        nest.emit(Set(total, nest.apply("fma", *pair, nest.keep(total), dtype=f32)))
                    place = {**self.at, **self.apart(query), axes.key: add(self.start, first, j)}
                    score = attn.mask(nest, attn.cap(nest, nest.keep(total)), place)
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
        with nest.loop(self.times(wide), "lane") as item:
            row, e = (nest.let(each) for each in split(item, wide))
            whole = nest.read(sums, item, f32)
            for part in range(1, slices):
                whole = nest.apply("add", whole, nest.read(sums, add(item, part * self.room * wide), f32))
            nest.store(parts, flat((*place, add(self.first, row), add(e, 2)), kept), whole)
