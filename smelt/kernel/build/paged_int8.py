"""Paged attention over pages of i8: integer products by keys and by values, exact, then scales.

Queries are rounded to 8 bits. They are the unsigned operand of the int8 micro-kernel, offset by 128; one more row of
128s gives what the offset adds to every key's sum. Weights, times the scales of values, are rounded to 16 bits for each
page, and their two bytes are two rows. Called by `paged_attention.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smelt.dim import divide_exact
from smelt.dtype import f32, i1, i32, ui8
from smelt.frozen import Frozen
from smelt.ir.ops.packed_blocks import LEAST, MOST
from smelt.kernel.build.gemm import axis_stride, element_place, memory_layout
from smelt.kernel.loops.form import INT8
from smelt.kernel.loops.grammar import Bitcast, Expr, Load, Mma, Number, Place, Quotient, Slice, add, scale
from smelt.layout import WORD

if TYPE_CHECKING:
    from smelt.kernel.build.paged_attention import Block

OFFSET = 128  # of queries
BYTE, WEIGHT = 256, 65535  # a rounded weight is two bytes
ROUNDING = 2.0**23  # added to a float that is less, it leaves the nearest integer in the low bits


class Queries(Frozen):
    """Rounded queries [row, depth], with a row of offsets after those of each head of keys; bytes of weights [row,
    position]; the scale of each row; products."""

    codes: str
    weights: str
    scales: str
    dots: str
    rows: int  # of products


def round_queries(block: Block) -> Queries:
    nest, paged = block.nest, block.paged
    rows = 2 * paged.block_rows
    sums = max(len(paged.panels(size)) for size in (paged.page, paged.values)) * rows * paged.width
    queries = Queries(
        block.array("code", (paged.block_rows + paged.groups) * paged.depth, ui8),
        block.array("weight", rows * paged.page, ui8),
        block.array("step", paged.block_rows),
        block.array("dot", sums, i32),
        rows,
    )
    with block.rows() as (at, head, row):

        def element(d: Expr, at: Expr = at, head: Expr = head) -> Expr:
            return nest.convert(nest.pull(paged.op.operands[0], (at, head, d)), f32)

        # Positive floats are ordered as integers are.
        peak = nest.fold(
            "maximum", Number(0, i32), paged.depth, lambda d: nest.let(Bitcast(nest.apply("abs", element(d)), i32))
        )
        step, factor = _step(block, peak, float(MOST))
        nest.write(queries.scales, row, nest.apply("multiply", step, Number(paged.numbers.scale, f32)))
        with nest.loop(paged.depth, "lane") as d:
            rounded = nest.apply("round_nearest_even", nest.apply("multiply", element(d), factor))
            code = nest.apply("add", nest.convert(rounded, i32), Number(OFFSET, i32))
            place = add(scale(row, paged.depth), scale(block.number, paged.depth), d)
            nest.write(queries.codes, place, nest.convert(code, ui8))
    with block.each_group(), nest.loop(paged.depth, "lane") as d:
        last = add(block.base, block.number, block.used)
        nest.write(queries.codes, add(scale(last, paged.depth), d), Number(OFFSET, ui8))
    return queries


def _step(block: Block, peak: Expr, most: float) -> tuple[Expr, Expr]:
    """The scale of a row, of whose largest element these are the bits, and the factor that makes it `most`."""
    nest = block.nest
    step = nest.apply("divide", nest.let(Bitcast(peak, f32)), Number(most, f32))
    inverse = nest.apply("divide", Number(1.0, f32), step)
    small = nest.less(step, Number(float(LEAST), f32))
    return step, nest.apply("select", small, Number(0.0, f32), inverse, dtype=f32)


def multiply_keys(block: Block, scores: str, queries: Queries, page: Expr, after: tuple[Expr, Expr]) -> None:
    """Scores of all keys of a page."""
    nest, paged = block.nest, block.paged
    first = scale(add(block.base, block.number), paged.depth)
    left, rows = Place(queries.codes, first), nest.let(add(block.used, 1))
    _multiply(block, queries, 1, (left, rows, Number(paged.depth), paged.depth), page, after)
    for start, columns in paged.panels(paged.page):
        with nest.loop(block.used, "ordered") as i:
            step = nest.read(queries.scales, nest.let(add(block.base, i)), f32)
            with nest.loop(columns, "lane") as j:
                dot, offset = (_dot(block, queries, row, start, j) for row in (i, block.used))
                exact = nest.convert(nest.apply("subtract", dot, offset), f32)
                scaled = nest.apply("multiply", exact, load_scale(block, page, 0, add(j, start)))
                score = nest.apply("multiply", scaled, step)
                nest.write(scores, add(scale(i, paged.width), j, start * paged.block_rows), score)


def multiply_values(
    block: Block, result: str, scores: str, queries: Queries, page: Expr, after: tuple[Expr, Expr], count: Expr
) -> None:
    """Accumulate weights times the values of a page; those that are not there have weights of zero."""
    nest, paged = block.nest, block.paged
    steps = block.array("step", paged.block_rows)
    with nest.loop(block.used, "ordered") as i:
        step, factor = _step(block, _scale_weights(block, scores, page, i), float(WEIGHT))
        nest.write(steps, i, step)
        for start, columns in paged.panels(paged.page):
            with nest.loop(columns, "lane") as j:
                weight = nest.read(scores, add(scale(i, paged.width), j, start * paged.block_rows), f32)
                moved = nest.apply("add", nest.apply("multiply", weight, factor), Number(ROUNDING, f32))
                bits = nest.let(Bitcast(moved, i32))
                high = nest.apply("shift_right_logical", bits, Number(8, i32))
                for byte, row in ((high, i), (bits, nest.let(add(block.used, i)))):
                    low = nest.apply("and", byte, Number(BYTE - 1, i32))
                    nest.write(queries.weights, add(scale(row, paged.page), j, start), nest.convert(low, ui8))
    left, rows = Place(queries.weights, Number(0)), nest.let(scale(block.used, 2))
    words = nest.let(Quotient(nest.let(add(count, WORD - 1)), WORD))
    _multiply(block, queries, 2, (left, rows, nest.let(scale(words, WORD)), paged.page), page, after)
    for start, columns in paged.panels(paged.values):
        with nest.loop(block.used, "ordered") as i:
            step = nest.read(steps, i, f32)
            low_row = nest.let(add(block.used, i))
            with nest.loop(columns, "lane") as e:
                high, low = (_dot(block, queries, row, start, e) for row in (i, low_row))
                exact = nest.apply("add", nest.apply("multiply", high, Number(BYTE, i32)), low)
                term = nest.apply("multiply", nest.convert(exact, f32), step)
                place = add(scale(block.base, paged.width), scale(i, paged.width), e, start * paged.block_rows)
                nest.write(result, place, nest.apply("add", nest.read(result, place, f32), term))


def _scale_weights(block: Block, scores: str, page: Expr, row: Expr) -> Expr:
    """Weights of a row times the scales of values; the bits of the largest one. What is masked stays zero, whatever
    there is in its place."""
    nest, paged = block.nest, block.paged
    part = block.array("part", paged.lanes, i32)
    with nest.loop(paged.lanes, "lane") as lane:
        most: Expr = Number(0, i32)
        for chunk, first in block.chunks(row):
            place = add(chunk, lane)
            weight = nest.read(scores, place, f32)
            product = nest.apply("multiply", weight, load_scale(block, page, 1, add(lane, first)))
            seen = nest.apply("GT", weight, Number(0.0, f32), dtype=i1)
            scaled = nest.apply("select", seen, product, Number(0.0, f32), dtype=f32)
            nest.write(scores, place, scaled)
            most = nest.apply("maximum", most, nest.let(Bitcast(scaled, i32)))
        nest.write(part, lane, most)
    return block.combine(part, Number(0), lambda a, b: nest.apply("maximum", a, b), i32)


def _multiply(
    block: Block,
    queries: Queries,
    operand: int,
    left: tuple[Place, Expr, Expr, int],
    page: Expr,
    after: tuple[Expr, Expr],
) -> None:
    """Rows of bytes (place, rows, steps, row stride) by a page of keys (1) or values (2); the page after this one is
    prefetched."""
    nest, paged, value = block.nest, block.paged, block.paged.op.operands[operand]
    (place, rows, extent, pitch), zero = left, Number(0)
    steps, size = (paged.depth, paged.page) if operand == 1 else (paged.page, paged.values)
    a = Slice(place, (rows, Number(1), extent), (Number(pitch), zero, Number(1)))
    stride = axis_stride(nest, paged.op, value, 2)
    later = element_place(nest, paged.op, value, (*after, zero, zero, zero))
    for start, columns in paged.panels(size):
        begin = element_place(nest, paged.op, value, (page, block.group, zero, Number(start), zero))
        b = Slice(begin, (extent, Number(columns)), (stride, Number(1)))
        place = Place(queries.dots, Number(start * queries.rows))
        sums = Slice(place, (rows, Number(columns)), (Number(paged.width), Number(1)))
        following = later.replace(index=add(later.index, steps * start))
        nest.emit(Mma(sums, a, b, INT8, prefetch=following))


def _dot(block: Block, queries: Queries, row: Expr, start: int, column: Expr) -> Expr:
    place = add(scale(row, block.paged.width), column, start * queries.rows)
    return block.nest.read(queries.dots, place, i32)


def load_scale(block: Block, page: Expr, which: int, position: Expr) -> Expr:
    """The scale of a position's key (0) or value (1): a word of the page, as f32."""
    nest, paged = block.nest, block.paged
    buffer, start, strides = memory_layout(nest, paged.op, paged.op.operands[1])
    words = [divide_exact(each, WORD) for each in (start, *strides[:-1])]
    first, *steps = (each for each in words if each is not None)
    row = Number(paged.depth // WORD + which)
    parts = [scale(at, step) for at, step in zip((page, block.group, row, position), steps, strict=True)]
    return nest.let(Load(Place(buffer, add(*parts, first)), f32))
