"""Convolution on a GPU: an implicit GEMM of pixels × output channels, without an im2col buffer; depthwise convolution.

A block takes the next pixels of all feature maps of a batch, whatever their rows. Where each one's window begins is
computed once, into shared memory.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import Size, ceildiv, product
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.conv import Window, with_rows
from smelt.kernel.build.gemm import Columns, panel_slice
from smelt.kernel.build.gemm_simt import Tiled, across_panels, at_most, form_on_gpu, tensor_tile
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import Expr, Load, Mma, Number, Place, Slice, add, scale, split
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import TENSOR, TILE_ROWS


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
    pixels = product(places)
    with nest.loops((groups, ceildiv(pixels, TILE_ROWS), count)) as (group, part, panel):
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
        with window.blocks(nest, form) as (number, offset, done, taps, extent):
            b = panel_slice(nest, op, (group, panel, done), extent, columns)
            _, *strides = window.slice_strides
            rows = Load(Place(starts, Number(0)), i64)
            a = Slice(Place(window.buffer, offset), (used, taps, extent), (rows, *strides))
            nest.emit(Mma(tile.sums, a, across_panels(nest, op, b), form, accumulate=number))

        def index(row: Expr, column: Expr) -> tuple[Expr, ...]:
            sample, *at = _pixel(nest, add(first, row), places)
            kept = at if len(sizes) > 3 else at[1:]
            return (sample, *kept, add(scale(group, share), column))

        tile.store(nest, op, output, form.total, index)


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
