"""FlashAttention over a KV cache in pages, on the tensor cores of a GPU: the prefill of language models.

A block of threads has neighbouring tokens of one sequence with all heads of queries that share a head of keys. bf16
pages of keys [depth, position] and values [position, element] are read in place, 64 positions at a time.
"""

from __future__ import annotations

from math import inf

from smelt.dim import Size, mod
from smelt.dtype import DType, bf16, f32, i1, i64
from smelt.kernel.build.attention_flash import inside, store_rows
from smelt.kernel.build.gather_scatter import to_index
from smelt.kernel.build.gemm import element_place, find_strides
from smelt.kernel.build.mask_tiles import HIDDEN, MIXED, PLAIN
from smelt.kernel.build.paged_attention import Paged, measure_block
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.form import FLASH_BF16, FLASH_F32
from smelt.kernel.loops.grammar import Attend, Expr, Number, Place, Remainder, add, scale, split
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.kernel.loops.tensor_tile import FLASH_DEEPEST, FlashTile
from smelt.shape import Shape

SLAB, STEP, CHUNK = 64, 16, 8  # adjacent positions; elements of an instruction; elements of 16 bytes


def find_tile(nest: Nest, paged: Paged) -> FlashTile | None:
    """The tile for this attention; None where the micro-kernel does not compute it."""
    op = paged.op
    if len(op.operands) != 6 or paged.is_int8 or paged.page % SLAB or not 2.0**-40 < paged.numbers.scale < 2.0**40:
        return None
    if paged.depth % STEP or paged.values % STEP or max(paged.depth, paged.values) > FLASH_DEEPEST:
        return None
    if not has_aligned_pages(nest, paged):
        return None
    kind = bf16 if tensor(op.operands[0]).element == bf16 else f32
    form_of = FLASH_BF16 if kind == bf16 else FLASH_F32
    room = nest.target.cache_bytes[0]
    tile = FlashTile.of(paged.depth, paged.values, (kind, bf16, bf16), form_of, room, paged.count, paged.count)
    fits = tile is not None and tile.keys % SLAB == 0 and paged.shared <= tile.rows
    return tile if fits else None


def has_aligned_pages(nest: Nest, paged: Paged) -> bool:
    """Whether keys and values are bf16 in memory, with 16 aligned bytes at a time."""
    for value in paged.op.operands[1:3]:
        found = find_strides(nest, value)
        if tensor(value).element != bf16 or found is None:
            return False
        _, form, axes = found
        steps = dict(form.terms)
        outer = [steps.get(axis, 0) for axis in axes[:-1]]
        if steps.get(axes[-1]) != 1 or any(mod(each, CHUNK) != 0 for each in (form.constant, *outer)):
            return False
    return True


def build_paged_flash(nest: Nest, paged: Paged, tile: FlashTile, here: Size, output: Output) -> None:
    """A block begins at multiples of its size and where another sequence begins; other iterations have no work."""
    op, together = paged.op, tile.rows // paged.shared
    buffer, kind = _copy_queries(nest, paged, here)
    with nest.loops((paged.count * here, paged.groups)) as (token, group):
        within = nest.let(Remainder(token, together))
        before = nest.apply("maximum", nest.let(add(token, -1)), Number(0))
        sequence, previous = (to_index(nest, nest.pull(op.operands[4], (each,))) for each in (token, before))
        first = nest.apply("EQ", within, Number(0), dtype=i1)
        other = nest.apply("NE", sequence, previous, dtype=i1)
        with nest.guard(nest.apply("or", first, other, dtype=i1)):
            most = nest.let(add(Number(together), scale(within, -1)))
            tokens, low, high = measure_block(nest, paged, token, sequence, most)
            rows = nest.let(scale(tokens, paged.shared))
            _emit_block(nest, paged, tile, (token, group, sequence), (rows, low, high), (buffer, kind), output)


def _copy_queries(nest: Nest, paged: Paged, here: Size) -> tuple[int, DType]:
    """Queries [token, head, depth] in a buffer of their own."""
    value = paged.op.operands[0]
    kind = bf16 if tensor(value).element == bf16 else f32
    heads = paged.groups * paged.shared
    sizes = (paged.count, heads, paged.depth)
    buffer = nest.scratch(Shape(str(kind), *sizes))
    with nest.loops((paged.count * here, heads, paged.depth)) as index:
        nest.store(buffer, flat(index, sizes), nest.convert(nest.pull(value, index), kind))
    return nest.buffer(buffer), kind


def _emit_block(
    nest: Nest,
    paged: Paged,
    tile: FlashTile,
    at: tuple[Expr, Expr, Expr],
    extents: tuple[Expr, Expr, Expr],
    queries: tuple[int, DType],
    output: Output,
) -> None:
    op, numbers = paged.op, paged.numbers
    (token, group, sequence), (rows, low, high) = at, extents
    buffer, kind = queries
    row, key, start, column, step = (nest.var(i64, None, stem) for stem in ("row", "key", "start", "column", "step"))
    score, total, element = (nest.var(f32, None, stem) for stem in ("score", "total", "element"))

    def place_of(row: Expr) -> tuple[Expr, Expr]:
        """The token and the head of a row."""
        number, head = split(row, paged.shared)
        return nest.let(add(token, number)), nest.let(add(scale(group, paged.shared), head))

    def page_of(key: Expr) -> tuple[Expr, Expr]:
        """The page of a key, and its place there."""
        number, place = split(key, paged.page)
        line = nest.clamp(sequence, tensor(op.operands[3]).sizes[0] - 1)
        page = to_index(nest, nest.pull(op.operands[3], (line, nest.let(number))))
        return nest.clamp(page, tensor(op.operands[1]).sizes[0] - 1), nest.let(place)

    with inside(nest, row) as at_row:
        found = place_of(row)
        sizes = (paged.count, paged.groups * paged.shared, paged.depth)
        q = Place(buffer, flat((*found, Number(0)), sizes))
    with inside(nest, key, step) as at_key:
        page, place = page_of(key)
        k = element_place(nest, op, op.operands[1], (page, group, step, place))
        v = element_place(nest, op, op.operands[2], (page, group, place, Number(0)))
    with inside(nest, row, key, score) as mask:
        position = to_index(nest, nest.pull(op.operands[5], (place_of(row)[0],)))
        seen = nest.apply("LE", key, position, dtype=i1)
        if numbers.window:
            behind = nest.let(add(position, scale(key, -1)))
            seen = nest.both(seen, nest.less(behind, Number(numbers.window)))
        capped: Expr = score
        if numbers.softcap:
            inner = nest.apply("multiply", score, Number(1 / numbers.softcap, f32))
            capped = nest.apply("multiply", nest.apply("tanh", inner), Number(numbers.softcap, f32))
        masked = nest.apply("select", seen, capped, Number(-inf, f32), dtype=f32)
    with inside(nest, start) as classify:
        last = nest.let(add(start, tile.keys - 1))
        whole = nest.apply("LE", last, low, dtype=i1)
        hidden = nest.less(high, start)
        if numbers.window:
            whole = nest.both(whole, nest.less(nest.let(add(high, scale(start, -1))), Number(numbers.window)))
            gone = nest.apply("GE", nest.let(add(low, scale(last, -1))), Number(numbers.window), dtype=i1)
            hidden = nest.apply("or", hidden, gone, dtype=i1)
        plain: Expr = Number(MIXED)
        if not numbers.softcap:
            plain = nest.apply("select", whole, Number(PLAIN), Number(MIXED), dtype=i64)
        class_of = nest.apply("select", hidden, Number(HIDDEN), plain, dtype=i64)
    with inside(nest, total) as normalise:
        none = nest.apply("EQ", total, Number(0.0, f32), dtype=i1)
        inverse = nest.apply("divide", Number(1.0, f32), total)
        factor = nest.apply("select", none, Number(0.0, f32), inverse, dtype=f32)  # a query without keys gives zeros
    with inside(nest, row, column, element) as putting:
        result = nest.convert(element, tensor(op.result).element)
        output.finish(nest, op, (*place_of(row), column), result)
    put, target = store_rows(tuple(putting.statements), column, element, kind)
    nest.emit(
        Attend(
            FLASH_BF16 if kind == bf16 else FLASH_F32,
            (kind, bf16, bf16),
            rows,
            nest.let(add(high, 1)),
            paged.depth,
            paged.values,
            tile.rows,
            tile.keys,
            Number(numbers.scale, f32),
            row,
            key,
            tuple(at_row.statements),
            q,
            tuple(at_key.statements),
            k,
            v,
            score,
            tuple(mask.statements),
            masked,
            start,
            tuple(classify.statements),
            class_of,
            total,
            tuple(normalise.statements),
            factor,
            column,
            element,
            put,
            target,
            False,
            step,
            adjacent=True,
        )
    )
