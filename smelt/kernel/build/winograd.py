"""Convolutions of 3 x 3 by Winograd's F(2 x 2, 3 x 3): 16 products for 4 pixels where the plain form has 36.

Every patch of 4 x 4 pixels that overlaps its neighbours by two becomes 16 rows of as many matrices (`_spread`); these
are multiplied by the 16 matrices that `passes.pack_weights` made of the weights, and each 16 sums become 2 x 2 pixels
(`_gathered`). Both changes only add and subtract, so rounding grows little; but it is not the plain sum, so only
weights go this way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from smelt.dim import Size, ceildiv
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.kernel.build.gemm import Columns, in_memory, parts_of, place, shares, step, tiles
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.emit.tile_f32 import BLOCK
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    Load,
    LoadLocal,
    Local,
    Mma,
    Number,
    Quotient,
    Remainder,
    StoreLocal,
    add,
    scale,
)
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.kernel.tune.schedules import ROWS, KernelKey, Winograd
from smelt.shape import Shape

SIDE, STRIDE = 4, 2
FORMS = SIDE * SIDE


@sink("smelt.winograd_conv", anchor=True, addressed=(0, 1))
def winograd_conv(nest: Nest, op: Op, output: Output) -> None:
    images, panels = op.operands
    batch, height, width, features = tensor(op.result).sizes
    channels = tensor(images).sizes[-1]
    down, across = ceildiv(height, STRIDE), ceildiv(width, STRIDE)
    patches = batch * down * across
    spread = nest.scratch(Shape.of(f32, (FORMS, patches, channels)))
    _spread(nest, op, spread, (down, across))
    count, _, _, columns_of = tensor(panels).sizes
    assert isinstance(columns_of, int)
    key = KernelKey.of("winograd", patches=patches, depth=channels, panels=count, width=columns_of)
    schedule = nest.choose_schedule(key, Winograd)
    blocking = nest.blocking(key, schedule)
    chunks = parts_of(patches, blocking.rows, ROWS, count)
    with nest.loops((count, chunks) if schedule.panels_outer else (chunks, count)) as places:
        panel, chunk = places if schedule.panels_outer else reversed(places)
        first, used = shares(nest, chunk, patches, chunks)
        columns = Columns.of(nest, panel, columns_of, features)
        sums = nest.var(f32, stem="sums").name
        nest.emit(Local(sums, f32, FORMS * blocking.max_rows * columns_of))
        with nest.loop(FORMS, "ordered") as form, nest.loop(ceildiv(channels, BLOCK), "ordered") as block:
            done = nest.let(scale(block, BLOCK))
            extent = nest.apply("minimum", Number(BLOCK), nest.let(add(channels, scale(done, -1))), dtype=i64)
            b = place(nest, op, panels, (panel, form, done, Number(0)))
            with tiles(nest, used, blocking.call_rows) as ((part, parts), above, rows):
                start = flat((form, add(first, above), done), (FORMS, patches, channels))
                nest.emit(
                    Mma(
                        sums,
                        rows,
                        nest.buffer(spread),
                        start,
                        Amount(channels),
                        Number(1),
                        *b,
                        step(nest, op, panels, 2),
                        extent,
                        tile_offset=scale(add(scale(form, blocking.rows), above), columns_of),
                        accumulate=block,
                        prefetch=part,
                        tiles=parts,
                        columns=columns.fewest,
                    )
                )
        with nest.loop(used, "ordered") as row:
            _gathered(
                nest, op, output, _Sums(sums, row, blocking.rows), nest.let(add(first, row)), columns, (down, across)
            )


def _spread(nest: Nest, op: Op, target: int, counts: tuple[Size, Size]) -> None:
    """Patches [4, 4, channel] as rows of 16 matrices: B' d B. Beyond the last line and column there is nothing that
    a result needs; what is there instead is the last one again."""
    images = op.operands[0]
    batch, high, wide, channels = tensor(images).sizes
    down, across = counts
    buffer, constant, (a, b, c, d) = in_memory(nest, op, images)
    with nest.loops((batch, down, across)) as (image, y, x):
        lines = [nest.let(_within(nest, add(scale(y, STRIDE), i), high)) for i in range(SIDE)]
        places = [nest.let(_within(nest, add(scale(x, STRIDE), i), wide)) for i in range(SIDE)]
        patch = flat((image, y, x), (batch, down, across))
        with nest.loop(channels, "lane") as channel:

            def pixel(i: int, j: int) -> Expr:
                at = add(scale(image, a), scale(lines[i], b), scale(places[j], c), scale(channel, d), constant)
                return nest.let(Load(buffer, at, f32))

            rows = [_turned(nest, [pixel(i, j) for i in range(SIDE)]) for j in range(SIDE)]
            for i in range(SIDE):
                for j, value in enumerate(_turned(nest, [rows[k][i] for k in range(SIDE)])):
                    spot = flat((Number(SIDE * i + j), patch, channel), (FORMS, batch * down * across, channels))
                    nest.store(target, spot, value)


def _within(nest: Nest, at: Expr, size: Size) -> Expr:
    return nest.apply("minimum", nest.let(at), Amount(size - 1), dtype=i64)


def _turned(nest: Nest, d: Sequence[Expr]) -> list[Expr]:
    """B' d."""

    def apply(function: str, x: Expr, y: Expr) -> Expr:
        return nest.let(nest.apply(function, x, y, dtype=f32))

    return [
        apply("subtract", d[0], d[2]),
        apply("add", d[1], d[2]),
        apply("subtract", d[2], d[1]),
        apply("subtract", d[1], d[3]),
    ]


@dataclass(frozen=True, slots=True)
class _Sums:
    """One row of each of 16 tiles that have so many."""

    array: str
    row: Expr
    rows: Size


def _gathered(
    nest: Nest,
    op: Op,
    output: Output,
    sums: _Sums,
    patch: Expr,
    columns: Columns,
    counts: tuple[Size, Size],
) -> None:
    """A' m A: the 2 x 2 pixels of a patch; those beyond the image's edge are left out."""
    _, height, width, _ = tensor(op.result).sizes
    down, across = counts
    line, x = nest.let(Quotient(patch, across)), nest.let(Remainder(patch, across))
    image, y = nest.let(Quotient(line, down)), nest.let(Remainder(line, down))
    pixels = nest.var(f32, stem="pixels").name
    nest.emit(Local(pixels, f32, STRIDE * STRIDE * columns.width))
    with nest.loop(columns.used, "lane") as j:

        def total(i: int, k: int) -> Expr:
            at = add(scale(add(sums.row, (SIDE * i + k) * sums.rows), columns.width), j)
            return nest.keep(LoadLocal(sums.array, at, f32))

        def apply(function: str, a: Expr, b: Expr) -> Expr:
            return nest.keep(nest.apply(function, a, b, dtype=f32))

        def halves(m: Sequence[Expr]) -> tuple[Expr, Expr]:
            return (
                apply("add", apply("add", m[0], m[1]), m[2]),
                apply("subtract", apply("subtract", m[1], m[2]), m[3]),
            )

        rows = [halves([total(i, k) for i in range(SIDE)]) for k in range(SIDE)]
        for i in range(STRIDE):
            for k, value in enumerate(halves([rows[c][i] for c in range(SIDE)])):
                nest.emit(StoreLocal(pixels, add(j, (STRIDE * i + k) * columns.width), value))
    for i in range(STRIDE):
        for k in range(STRIDE):
            place_y, place_x = nest.let(add(scale(y, STRIDE), i)), nest.let(add(scale(x, STRIDE), k))
            inside = nest.both(nest.less(place_y, Amount(height)), nest.less(place_x, Amount(width)))
            spot = (image, place_y, place_x)
            with nest.guard(inside):
                columns.store(nest, op, output, pixels, Number(STRIDE * i + k), partial(_at, spot))


def _at(spot: Index, feature: Expr) -> Index:
    return (*spot, feature)
