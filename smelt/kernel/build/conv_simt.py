"""Convolution on a GPU: an implicit GEMM of pixels × output channels, without an im2col buffer; depthwise convolution.

A block takes the next pixels of all feature maps of a batch, whatever their rows. Where each one's window begins is
computed once, into shared memory. Where there are few tiles, each K-block has a block of its own (split-K).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, product
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.conv import Window, with_rows
from smelt.kernel.build.gemm import Columns, panel_slice
from smelt.kernel.build.gemm_simt import (
    Tiled,
    across_panels,
    add_kept,
    at_most,
    form_on_gpu,
    is_worth_splitting,
    tensor_tile,
)
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Expr, Load, Mma, Number, Place, Slice, add, scale, split
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import TENSOR, TILE_ROWS
from smelt.shape import Shape


@simt_sink("smelt.packed_conv")
def packed_conv(nest: Nest, op: Op, output: Output) -> None:
    form, sizes = form_on_gpu(op), tensor(op.result).sizes
    groups, count, lines, line = tensor(op.operands[1]).sizes
    *places, channels_out = with_rows(sizes)
    assert isinstance(groups, int)
    assert isinstance(lines, int)
    assert isinstance(line, int)
    assert isinstance(channels_out, int)
    width, share = line // form.k_pack, channels_out // groups
    window = Window.of(nest, op, lines * form.k_pack)
    pixels, blocks = product(places), prod(window.block_counts(form))
    tiles = groups * ceildiv(pixels, TILE_ROWS) * count
    splits = form.total == f32 and form.k_pack == 1 and is_worth_splitting(tiles, blocks, pixels * channels_out)
    parts = nest.scratch(Shape("f32", blocks, pixels, channels_out)) if splits else -1

    def index(pixel: Expr, channel: Expr) -> tuple[Expr, ...]:
        sample, *at = _pixel(nest, pixel, places)
        return (sample, *(at if len(sizes) > 3 else at[1:]), channel)

    own = window.block_counts(form) if splits else ()
    with nest.loops((groups, ceildiv(pixels, TILE_ROWS), count, *own)) as (group, part, panel, *at_block):
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
            tile = tensor_tile(nest, width, used, before, there)
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
            tile.keep(nest, parts, (number, first, scale(group, share)), (blocks, pixels, channels_out))
        else:
            tile.store(
                nest,
                op,
                output,
                form.total,
                lambda row, column: index(add(first, row), add(scale(group, share), column)),
            )
    if splits:
        kept = (blocks, pixels, channels_out)
        with nest.loops((pixels, channels_out)) as (pixel, channel):
            total = add_kept(nest, parts, kept, (pixel, channel))
            output.finish(nest, op, index(pixel, channel), total)


@simt_sink("smelt.depthwise_conv")
def depthwise_conv(nest: Nest, op: Op, output: Output) -> None:
    """One thread for each element: neighbours read neighbouring channels."""
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
    rest = nest.let(number)
    for size in reversed(sizes[1:]):
        rest, at = (nest.let(each) for each in split(rest, size))
        index.append(at)
    return (rest, *reversed(index))
