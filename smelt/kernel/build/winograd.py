"""Winograd F(2×2, 3×3): 3×3 convolutions with 16 multiplications per 4 output pixels instead of 36.

Input tiles of 4×4 pixels, which overlap by two, are transformed to a row in each of 16 matrices (`_transform_input`).
16 GEMMs multiply them by the weights, which `passes.pack_weights` has transformed, and the 16 results of a tile become
2×2 output pixels (`_transform_output`). The transforms only add and subtract, so the rounding error grows little.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from smelt.dim import Size, ceildiv
from smelt.dtype import f32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.kernel.build.gemm import (
    PASS_COLUMNS,
    Columns,
    Panels,
    chunk_bounds,
    count_chunks,
    memory_layout,
    panel_slice,
    row_tiles,
)
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import F32
from smelt.kernel.loops.grammar import (
    Amount,
    Chunk,
    Expr,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Remainder,
    Slice,
    add,
    scale,
)
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.kernel.tune.schedules import DYNAMIC_PATCHES, ROWS, KernelKey, Winograd, estimate
from smelt.shape import Shape
from smelt.target import Target

TILE, OUT = 4, 2
MATRICES = TILE * TILE


@sink("smelt.winograd_conv", anchor=True, addressed=(0, 1))
def winograd_conv(nest: Nest, op: Op, output: Output) -> None:
    maps, panels = op.operands
    batch, height, width, channels_out = tensor(op.result).sizes
    channels = tensor(maps).sizes[-1]
    down, across = ceildiv(height, OUT), ceildiv(width, OUT)
    tiles_count = batch * down * across
    transformed = nest.scratch(Shape.of(f32, (MATRICES, tiles_count, channels)))
    _transform_input(nest, op, transformed, (down, across))
    count, _, _, columns_of = tensor(panels).sizes
    assert isinstance(columns_of, int)
    together = 1 if count == 1 or _tiles_fit(nest.target, tiles_count, channels) else max(1, PASS_COLUMNS // columns_of)
    passes = ceildiv(count, together) if together > 1 else count
    key = KernelKey.of("winograd", patches=tiles_count, depth=channels, panels=passes, width=together * columns_of)
    schedule = nest.choose_schedule(key, Winograd)
    blocking = nest.blocking(key, schedule)
    chunks = count_chunks(tiles_count, blocking.rows, ROWS, passes)
    with nest.loops((passes, chunks) if schedule.panels_outer else (chunks, passes)) as indices:
        number, chunk = indices if schedule.panels_outer else reversed(indices)
        first, used = chunk_bounds(nest, chunk, tiles_count, chunks)
        room = MATRICES * blocking.max_rows
        panels_here = Panels.of(nest, number, (count, together), room, (columns_of, channels_out))
        sums = nest.tile("sums", f32, together * room * columns_of)
        with nest.loop(MATRICES, "ordered") as form, nest.loop(ceildiv(channels, F32.block), "ordered") as block:
            done = nest.let(scale(block, F32.block))
            extent = nest.apply("minimum", Number(F32.block), nest.let(add(channels, scale(done, -1))), dtype=i64)
            with panels_here.each(nest) as (begin, panel, columns):
                b = panel_slice(nest, op, (panel, form, done), extent, columns)
                with row_tiles(nest, used, blocking.call_rows) as ((part, parts), above, rows):
                    start = flat((form, add(first, above), done), (MATRICES, tiles_count, channels))
                    strides = Amount(channels), Number(0), Number(1)
                    a = Slice(Place(nest.buffer(transformed), start), (rows, Number(1), extent), strides)
                    tile = columns.sums(sums, add(begin, scale(form, blocking.rows), above), rows)
                    nest.emit(Mma(tile, a, b, F32, accumulate=block, prefetch=Chunk(part, parts)))
        with nest.loop(used, "ordered") as row, panels_here.each(nest) as (begin, _, columns):
            held = _Sums(sums, add(begin, row), blocking.rows)
            _transform_output(nest, op, output, held, nest.let(add(first, row)), columns, (down, across))


def _tiles_fit(target: Target, count: Size, channels: Size) -> bool:
    """Whether a chunk of transformed tiles stays in L2 from one panel to the next, as `gemm.rows_fit`."""
    tiles = min(count, DYNAMIC_PATCHES) if isinstance(count, int) else DYNAMIC_PATCHES
    return 4 * MATRICES * tiles * estimate(channels) <= target.cache_bytes[1] * 3 // 4


def _transform_input(nest: Nest, op: Op, target: int, counts: tuple[Size, Size]) -> None:
    """Input tiles [4, 4, channel] as rows of 16 matrices: B' d B. No result needs pixels past the last row and column;
    the last one is repeated there."""
    maps = op.operands[0]
    batch, high, wide, channels = tensor(maps).sizes
    down, across = counts
    buffer, constant, (a, b, c, d) = memory_layout(nest, op, maps)
    with nest.loops((batch, down, across)) as (sample, y, x):
        rows_in = [nest.let(_clamp_index(nest, add(scale(y, OUT), i), high)) for i in range(TILE)]
        columns_in = [nest.let(_clamp_index(nest, add(scale(x, OUT), i), wide)) for i in range(TILE)]
        tile_number = flat((sample, y, x), (batch, down, across))
        with nest.loop(channels, "lane") as channel:

            def pixel(i: int, j: int) -> Expr:
                at = add(scale(sample, a), scale(rows_in[i], b), scale(columns_in[j], c), scale(channel, d), constant)
                return nest.let(Load(Place(buffer, at), f32))

            rows = [_multiply_bt(nest, [pixel(i, j) for i in range(TILE)]) for j in range(TILE)]
            for i in range(TILE):
                for j, value in enumerate(_multiply_bt(nest, [rows[k][i] for k in range(TILE)])):
                    offset = flat(
                        (Number(TILE * i + j), tile_number, channel), (MATRICES, batch * down * across, channels)
                    )
                    nest.store(target, offset, value)


def _clamp_index(nest: Nest, at: Expr, size: Size) -> Expr:
    return nest.apply("minimum", nest.let(at), Amount(size - 1), dtype=i64)


def _multiply_bt(nest: Nest, d: Sequence[Expr]) -> list[Expr]:
    """B' d."""

    def apply(function: str, x: Expr, y: Expr) -> Expr:
        return nest.let(nest.apply(function, x, y, dtype=f32))

    return [
        apply("subtract", d[0], d[2]),
        apply("add", d[1], d[2]),
        apply("subtract", d[2], d[1]),
        apply("subtract", d[1], d[3]),
    ]


class _Sums(Frozen):
    """One row of each of the 16 result tiles of `rows` rows."""

    array: str
    row: Expr
    rows: Size


def _transform_output(
    nest: Nest,
    op: Op,
    output: Output,
    sums: _Sums,
    tile_number: Expr,
    columns: Columns,
    counts: tuple[Size, Size],
) -> None:
    """A' m A: the 2×2 output pixels of a tile; those past the edge are not stored."""
    _, height, width, _ = tensor(op.result).sizes
    down, across = counts
    tile_row, x = nest.let(Quotient(tile_number, across)), nest.let(Remainder(tile_number, across))
    sample, y = nest.let(Quotient(tile_row, down)), nest.let(Remainder(tile_row, down))
    pixels = nest.tile("pixels", f32, OUT * OUT * columns.width)
    with nest.loop(columns.used, "lane") as j:

        def total(i: int, k: int) -> Expr:
            at = add(scale(add(sums.row, (TILE * i + k) * sums.rows), columns.width), j)
            return nest.read(sums.array, at, f32)

        def apply(function: str, a: Expr, b: Expr) -> Expr:
            return nest.keep(nest.apply(function, a, b, dtype=f32))

        def multiply_at(m: Sequence[Expr]) -> tuple[Expr, Expr]:
            return (
                apply("add", apply("add", m[0], m[1]), m[2]),
                apply("subtract", apply("subtract", m[1], m[2]), m[3]),
            )

        rows = [multiply_at([total(i, k) for i in range(TILE)]) for k in range(TILE)]
        for i in range(OUT):
            for k, value in enumerate(multiply_at([rows[c][i] for c in range(TILE)])):
                nest.write(pixels, add(j, (OUT * i + k) * columns.width), value)
    for i in range(OUT):
        for k in range(OUT):
            place_y, place_x = nest.let(add(scale(y, OUT), i)), nest.let(add(scale(x, OUT), k))
            inside = nest.both(nest.less(place_y, Amount(height)), nest.less(place_x, Amount(width)))
            offset = (sample, place_y, place_x)
            with nest.guard(inside):
                columns.store(nest, op, output, pixels, Number(OUT * i + k), partial(_at, offset))


def _at(offset: Index, feature: Expr) -> Index:
    return (*offset, feature)
