"""Convolutions: `smelt.planes` parts padded images by stride, `smelt.plane_dot` multiplies runs of neighbours.

A pixel and every tap of its window lie side by side in a plane, so both forms here read memory in runs: register tiles
of features x pixels, and, where each channel has a window of its own, one row of pixels after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, maximum, product
from smelt.dtype import f32, i1, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import Taps, planes_out, taps_of
from smelt.kernel.build_contract import ROWS, address, each_of, place, share_of
from smelt.kernel.loop import Amount, Array, Expr, Item, Load, Number, Product, Put, Quotient, add, scale, split
from smelt.kernel.nest import Index, Nest, flat, tensor
from smelt.kernel.sinks import Output, sink

SHORTEST = 12  # pixels of a row that are worth a loop of their own
MOST = 49  # taps that are written out


@sink("smelt.planes")
def planes(nest: Nest, op: Op, output: Output) -> None:
    """[batch, channel, plane, place]: the padded image at every stride-th place, zero outside it; row by row."""
    image = op.operands[0]
    sizes = tensor(image).sizes[2:]
    taps = taps_of(op.attrs, planes_out(op.attrs, sizes))
    shape = tensor(op.result).sizes
    two = len(sizes) == 2
    width: Size = taps.width if two else taps.length
    rows: Size = ceildiv(taps.length, maximum(width, 1)) if two else 1
    low, stride = op.attrs["low"][-1], taps.strides[-1]
    with nest.loops((*shape[:2], taps.count, rows)) as (batch, channel, plane, y):
        begin = scale(y, width)
        count = nest.apply("minimum", Amount(width), nest.let(add(taps.length, scale(begin, -1))), dtype=i64)
        parts = split(plane, taps.strides[1]) if two else (plane,)
        # Columns x with 0 <= x * stride + part - low < size are the image's: those in [left, right).
        left = _columns(nest, low, parts[-1], stride, count)
        right = _columns(nest, sizes[-1] + low, parts[-1], stride, count)
        at: list[Expr] = []
        if two:
            row = nest.let(add(scale(y, taps.strides[0]), parts[0], -op.attrs["low"][0]))
            inside = nest.both(nest.apply("GE", row, Number(0), dtype=i1), nest.less(row, Amount(sizes[0])))
            right = nest.apply("select", inside, right, left, dtype=i64)
            at.append(row)

        def fill(start: Expr, end: Expr, element: Callable[[Expr], Expr]) -> None:
            with nest.loop(nest.let(add(end, scale(start, -1))), "lane", fence=True) as x:
                spot = add(start, x)
                nest.store(output.targets[0], flat((batch, channel, plane, add(begin, spot)), shape), element(spot))

        def pixel(spot: Expr) -> Expr:
            column = add(scale(spot, stride), parts[-1], -low)
            return nest.pull(image, (batch, channel, *at, column))

        fill(Number(0), left, lambda _: Number(0.0, f32))
        fill(left, right, pixel)
        fill(right, count, lambda _: Number(0.0, f32))


def _columns(nest: Nest, end: Size, part: Expr, stride: int, count: Expr) -> Expr:
    """How many x have x * stride + part < end, of those below `count`."""
    before = add(end, scale(part, -1), stride - 1)
    positive = nest.apply("maximum", nest.let(before), Number(0), dtype=i64)
    return nest.apply("minimum", count, nest.let(Quotient(positive, stride)), dtype=i64)


@sink("smelt.plane_dot", anchor=True, addressed=(0, 1))
def plane_dot(nest: Nest, op: Op, output: Output) -> None:
    """Tiles of features x neighbouring pixels. Where a tile runs over the end of a row, the places between are left."""
    weights, source = op.operands
    groups, features, _ = tensor(weights).sizes
    batch, channels, _, length = tensor(source).sizes
    out = tensor(op.result).sizes[2:]
    taps = taps_of(op.attrs, out)
    width = op.attrs["least"]
    depth = channels // groups
    if features == depth == 1 and prod(taps.window) <= MOST and not (isinstance(out[-1], int) and out[-1] < SHORTEST):
        depthwise(nest, op, output, taps)
        return
    step = taps.count * length  # from channel to channel
    table = ""
    tap_count = prod(taps.window)
    if tap_count > 1:
        table = nest.var(i64, stem="taps").name
        nest.emit(Array(table, i64, tap_count))
        for i, tap in enumerate(np.ndindex(*taps.window)):
            plane, offset = taps.place(tap)
            nest.emit(Put(table, Number(i), Amount(plane * length + offset)))
    panels, blocks = ceildiv(taps.pixels, width), ceildiv(features, ROWS)
    share = share_of(panels, depth * taps.count * width, blocks * groups * batch)
    with (
        nest.loops((batch, groups, ceildiv(panels, share), blocks)) as (image, group, chunk, block),
        each_of(nest, chunk, share, panels) as panel,
    ):
        first = nest.let(scale(block, ROWS))
        height = nest.apply("minimum", Number(ROWS), nest.let(add(features, scale(first, -1))), dtype=i64)
        wanted = scale(panel, width)
        start = nest.apply("minimum", nest.let(wanted), Amount(taps.pixels - width), dtype=i64)
        skipped = nest.let(add(wanted, scale(start, -1)))  # the last tile overlaps the one before
        a = address(nest, op, weights, group, first)
        b = place(nest, op, source, (image, scale(group, depth), Number(0), start))
        tile = nest.var(f32, stem="tile").name
        nest.emit(Array(tile, f32, ROWS * width))
        nest.emit(Product(tile, height, *a, *b, Amount(step), Amount(depth), taps=table, tap_count=tap_count))
        with nest.loop(height, "ordered") as row:
            feature = add(scale(group, features), first, row)
            _pixels(nest, op, output, tile, (image, feature), row, start, skipped, taps)


def depthwise(nest: Nest, op: Op, output: Output, taps: Taps) -> None:
    """One window for each channel: a sum over the taps, written out, along rows of pixels."""
    weights, source = op.operands
    batch, channels, _, length = tensor(source).sizes
    rows: Size = taps.out[0] if len(taps.out) == 2 else 1
    with nest.loops((batch, channels)) as (image, channel):
        factors = [nest.pull(weights, (channel, Number(0), Number(t))) for t in range(prod(taps.window))]
        buffer, first = place(nest, op, source, (image, channel, Number(0), Number(0)))
        with nest.loop(rows, "ordered") as y, nest.loop(taps.out[-1], "lane") as x:
            total: Expr = Number(0.0, f32)
            for factor, tap in zip(factors, np.ndindex(*taps.window), strict=True):
                plane, offset = taps.place(tap)
                index = add(first, scale(y, taps.width), x, plane * length + offset)
                element = nest.let(Load(buffer, index, f32))
                total = nest.apply("fma", factor, element, total, dtype=f32)
            output.finish(nest, op, (image, channel, *([y] if len(taps.out) == 2 else []), x), total)


def _pixels(
    nest: Nest,
    op: Op,
    output: Output,
    tile: str,
    outer: Index,
    row: Expr,
    start: Expr,
    skipped: Expr,
    taps: Taps,
) -> None:
    """Store one row of a tile: the pixels from `start` on that lie inside the result."""
    width = taps.least

    def each(low: Expr, high: Expr, pixel: Callable[[Expr], Index]) -> None:
        with nest.loop(width, "lane") as j:
            above = nest.apply("GE", j, low, dtype=i1)
            with nest.guard(nest.both(above, nest.less(j, high))):
                element = nest.keep(Item(tile, add(scale(row, width), j), f32))
                output.finish(nest, op, (*outer, *pixel(j)), element)

    if len(taps.out) == 1:
        inside = nest.apply("minimum", Number(width), nest.let(add(taps.out[0], scale(start, -1))), dtype=i64)
        each(skipped, inside, lambda j: (add(start, j),))
        return
    if taps.width == taps.out[1]:  # rows follow each other without places between
        total = product(taps.out)
        inside = nest.apply("minimum", Number(width), nest.let(add(total, scale(start, -1))), dtype=i64)
        each(skipped, inside, lambda j: split(add(start, j), taps.width))
        return
    top = nest.let(Quotient(start, taps.width))
    bottom = nest.let(Quotient(nest.let(add(start, width - 1)), taps.width))
    last = nest.apply("minimum", bottom, Amount(taps.out[0] - 1), dtype=i64)
    with nest.loop(nest.let(add(last, 1, scale(top, -1))), "ordered") as line:
        y = nest.let(add(top, line))
        begin = nest.let(add(scale(y, taps.width), scale(start, -1)))  # where row y begins in the tile
        low = nest.apply("maximum", skipped, begin, dtype=i64)
        high = nest.apply("minimum", Number(width), nest.let(add(begin, taps.out[1])), dtype=i64)
        each(low, high, lambda j: (y, add(j, scale(begin, -1))))
