"""Convolution on a GPU: an implicit GEMM of pixels × output channels, without an im2col buffer; depthwise convolution.

A thread block takes consecutive pixels of the batch, across rows and feature maps. The start of each pixel's window is
computed once, into shared memory; for tensor cores also a bit mask of the taps inside the feature map, the others are
zeros. With few f32 tiles, each K-block gets its own thread block (split-K).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv, product
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.conv import Window, with_rows
from smelt.kernel.build.gemm import Columns, panel_slice
from smelt.kernel.build.gemm_simt import (
    Rows,
    SplitK,
    Tiled,
    across_panels,
    add_kept,
    are_between,
    at_most,
    choose_tile,
    form_on_gpu,
    most_rows_to_split,
    ranges_of_rows,
    steps_together,
    tensor_tile,
    tuned_tile,
)
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.form import Form
from smelt.kernel.loops.grammar import Amount, Expr, Load, Mma, Number, Place, Slice, add, scale, split
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import TENSOR, TILE_ROWS
from smelt.kernel.tune.schedules import KernelKey
from smelt.shape import Shape

TAPS = 64  # whose bits a word holds


@simt_sink("smelt.packed_conv")
def packed_conv(nest: Nest, op: Op, output: Output) -> None:
    form, sizes = form_on_gpu(op), tensor(op.result).sizes
    groups, count, lines, _ = tensor(op.operands[1]).sizes
    *places, channels_out = with_rows(sizes)
    pixels = product(places)
    assert isinstance(lines, int)
    window, said = Window.of(nest, op, lines * form.k_pack), taps_of(op.attrs)
    has_bits = any(map(any, said.edges)) or not window.outer or prod(said.window) < TAPS
    if form in TENSOR and len(said.window) <= 2 and has_bits:
        share, of_sample = floordiv(channels_out, groups), product(places[1:])
        for some in ranges_of_rows(nest.target, form, groups, pixels, share, 0, of_sample):
            _tensor_conv(nest, op, output, form, some)
        return
    blocks = prod(window.block_counts(form))
    most = most_rows_to_split(groups * count, blocks, channels_out) if form.total == f32 and form.k_pack == 1 else 0
    if most and (here := are_between(pixels, 0, most)) != 0:
        _write_tiles(nest, op, output, form, window, here, blocks)
    if (here := are_between(pixels, most + 1 if most else 0)) != 0:
        _write_tiles(nest, op, output, form, window, here)


def _write_tiles(nest: Nest, op: Op, output: Output, form: Form, window: Window, here: Size, blocks: int = 0) -> None:
    """A block for each tile. `here`: 1 where there are as many pixels, else 0; `blocks`: K-blocks whose sums a second
    launch adds up."""
    sizes, (groups, count, _, line) = tensor(op.result).sizes, tensor(op.operands[1]).sizes
    *places, channels_out = with_rows(sizes)
    assert isinstance(groups, int)
    assert isinstance(line, int)
    assert isinstance(channels_out, int)
    width, share = line // form.k_pack, channels_out // groups
    pixels, splits = product(places), blocks > 0
    parts = nest.scratch(Shape.of(f32, (blocks, pixels * here, channels_out))) if splits else -1

    def index(pixel: Expr, channel: Expr) -> tuple[Expr, ...]:
        sample, *at = _pixel(nest, pixel, places)
        return (sample, *(at if len(sizes) > 3 else at[1:]), channel)

    own = window.block_counts(form) if splits else ()
    with nest.loops((groups * here, ceildiv(pixels, TILE_ROWS), count, *own)) as (group, part, panel, *at_block):
        first = nest.let(scale(part, TILE_ROWS))
        used = at_most(nest, TILE_ROWS, pixels, first)
        starts = nest.tile("starts", i64, TILE_ROWS)
        with nest.loop(used, "lane") as i:
            sample, *at = _pixel(nest, add(first, i), places)
            nest.write(starts, i, nest.let(window.start(at, sample, group)))
        before = nest.let(scale(panel, width))
        there = at_most(nest, width, share, before)
        tile = Tiled(nest.tile("tile", form.total, TILE_ROWS * width), width, width, used, before, there)
        if form in TENSOR:
            tile = tensor_tile(nest, form, TILE_ROWS, width, used, before, there)
        columns = Columns(before, width, tile.columns, form.total)
        with nullcontext(window.block(nest, form, at_block)) if splits else window.blocks(nest, form) as block:
            number, offset, done, taps, extent = block
            b = panel_slice(nest, op, (group, panel, done), extent, columns)
            _, *strides = window.slice_strides
            rows = Load(Place(starts, Number(0)), i64)
            a = Slice(Place(window.buffer, offset), (used, taps, extent), (rows, *strides))
            again = Number(0) if splits else number
            nest.emit(Mma(tile.sums, a, across_panels(nest, op, b), form, accumulate=again))
        if splits:
            tile.keep(nest, parts, (number, first, scale(group, share)), (blocks, pixels * here, channels_out))
        else:
            tile.store(
                nest,
                op,
                output,
                form.total,
                lambda row, column: index(add(first, row), add(scale(group, share), column)),
            )
    if splits:
        kept = (blocks, pixels * here, channels_out)
        with nest.loops((pixels * here, channels_out)) as (pixel, channel):
            total = add_kept(nest, parts, kept, (pixel, channel))
            output.finish(nest, op, index(pixel, channel), total)


def _tensor_conv(nest: Nest, op: Op, output: Output, form: Form, some: Rows) -> None:
    """Rows of a tile are pixels. Taps are read one by one where zeros surround the feature maps, or where those of a
    row of the window are not adjacent."""
    sizes, taps = tensor(op.result).sizes, taps_of(op.attrs)
    groups, _, lines, line = tensor(op.operands[1]).sizes
    *places, channels_out = with_rows(sizes)
    assert isinstance(groups, int)
    assert isinstance(lines, int)
    assert isinstance(line, int)
    assert isinstance(channels_out, int)
    width, share = line // form.k_pack, channels_out // groups
    window = Window.of(nest, op, lines * form.k_pack)
    padded = any(map(any, taps.edges)) or bool(window.outer)  # two loops over taps have bits as well
    pixels, count = product(places), prod(taps.window) if padded else window.taps
    run = window.channels if padded else window.run
    stages = count * ceildiv(run, steps_together(form))
    size = choose_tile(nest.target, form, lambda rows: groups * ceildiv(some.about, rows), share, stages)
    if some.about == pixels:
        shape = {"groups": groups, "rows": pixels, "depth": count * run, "columns": share, "bits": form.left.bits}
        size = tuned_tile(nest, form, KernelKey.of("tensor_conv", **shape), size)
    tall, wide = size.rows, size.columns
    split = SplitK.of(nest, size, (groups, ceildiv(some.most, tall), ceildiv(share, wide)))
    counts = groups * some.here, ceildiv(pixels, tall), ceildiv(share, wide)
    with nest.loops((*counts, size.splits)) as (group, part, number, own):
        first, before = nest.let(scale(part, tall)), scale(number, wide)
        used, there = at_most(nest, tall, pixels, first), at_most(nest, wide, share, before)
        starts = nest.tile("starts", i64, 2 * tall if padded else tall)
        with nest.loop(used, "lane") as i:
            sample, *at = _pixel(nest, add(first, i), places)
            begin = window.start(at, sample, group)
            if padded:
                corner = zip(taps.edges, window.axes[1:-1], strict=True)
                begin = add(begin, *(-low * axis for (low, _), axis in corner))
                nest.write(starts, add(i, tall), _find_taps(nest, op, at))
            nest.write(starts, i, nest.let(begin))
        tile = tensor_tile(nest, form, tall, wide, used, before, there)
        panel = nest.let(scale(number, wide // width))
        b = panel_slice(nest, op, (group, panel, Number(0)), Amount(run), Columns(before, width, there, form.total))
        rows = Load(Place(starts, Number(0)), i64)
        counts_of_taps, steps = [window.taps], [window.tap_stride]
        if padded:
            steps = [hole * axis for hole, axis in zip(taps.dilations, window.axes[1:-1], strict=True)]
            counts_of_taps, steps = [1, *taps.window][-2:], [0, *steps][-2:]
        a = Slice(
            Place(window.buffer, Number(0)),
            (used, *map(Amount, counts_of_taps), Amount(run)),
            (rows, *map(Amount, steps), Amount(window.k_stride)),
        )
        shares = split.shares(nest, (group, part, number), own)
        nest.emit(Mma(tile.sums, a, across_panels(nest, op, b), form, shares))
        tile = split.finish(nest, tile, shares)

        def index(row: Expr, column: Expr) -> tuple[Expr, ...]:
            sample, *at = _pixel(nest, add(first, row), places)
            return (sample, *(at if len(sizes) > 3 else at[1:]), add(scale(group, share), column))

        tile.store_vectors(nest, op, output, share, index)


def _find_taps(nest: Nest, op: Op, at: Sequence[Expr]) -> Expr:
    """The taps of a pixel's window that are inside the feature map, one bit for each."""
    taps, (_, *inside, _) = taps_of(op.attrs), tensor(op.operands[0]).sizes
    found: Expr = Number(1)
    axes = [
        *zip(at[len(at) - len(inside) :], taps.window, taps.strides, taps.dilations, taps.edges, inside, strict=True)
    ]
    bits = 1
    for place, count, stride, hole, (low, _), size in reversed(axes):
        parts: list[Expr] = []
        for tap in range(count):
            where = nest.let(add(scale(place, stride), tap * hole - low))
            there = nest.both(nest.less(Number(-1), where), nest.less(where, Amount(size)))
            parts.append(nest.apply("select", there, nest.let(scale(found, 1 << (bits * tap))), Number(0), dtype=i64))
        found, bits = nest.let(add(*parts)), bits * count
    return found


@simt_sink("smelt.depthwise_conv")
def depthwise_conv(nest: Nest, op: Op, output: Output) -> None:
    """One thread per element: adjacent threads read adjacent channels."""
    maps, kernel = op.operands
    *window, _ = tensor(kernel).sizes
    taps = taps_of({**op.attrs, "window": window})
    with nest.loops(tensor(op.result).sizes) as (sample, *at, channel):
        total: Expr = Number(0.0, f32)
        for tap in np.ndindex(*taps.window):
            steps = zip(at, taps.strides, tap, taps.dilations, strict=True)
            place = [add(scale(each, stride), number * hole) for each, stride, number, hole in steps]
            factor = nest.pull(kernel, (*map(Number, tap), channel))
            total = nest.apply("fma", factor, nest.pull(maps, (sample, *place, channel)), total, dtype=f32)
        output.finish(nest, op, (sample, *at, channel), total)


def _pixel(nest: Nest, number: Expr, sizes: Sequence[Size]) -> tuple[Expr, ...]:
    """The index of a pixel by its number."""
    index: list[Expr] = []
    rest, left = nest.let(number, product(sizes)), list(sizes)
    while len(left) > 1:
        size = left.pop()
        above, at = split(rest, size)
        rest = nest.let(above, product(left))
        index.append(nest.let(at, size))
    return (rest, *reversed(index))
