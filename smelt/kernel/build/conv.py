"""Implicit GEMM: `smelt.packed_conv`, a convolution of padded NHWC feature maps, without an im2col buffer.

Pixels are the rows of A, output channels the columns of the packed panels. A window row is contiguous in NHWC, so its
taps and channels are one run of K; the other taps are an outer K loop inside the micro-kernel (`Mma.taps`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import prod

from smelt.dim import Size, ceildiv, maximum, minimum, product
from smelt.dtype import i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.gemm import (
    Columns,
    chunk_bounds,
    contiguous_operands,
    count_chunks,
    memory_layout,
    min_chunks,
    panel_slice,
    required_form,
    row_tiles,
)
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import F32, Form
from smelt.kernel.loops.grammar import Amount, Chunk, Expr, Mma, Number, Place, Slice, add, scale
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.tune.schedules import ROWS, Blocking, Conv, KernelKey, chunk_size

ROW_BLOCK = 192  # pixels per cache-resident K-block, for int8 and bf16


@sink("smelt.packed_conv", anchor=True, addressed=(0, 1), in_runs=contiguous_operands)
def packed_conv(nest: Nest, op: Op, output: Output) -> None:
    """Loops of an implicit GEMM: each K-block of a panel stays cache-resident for a chunk of rows of pixels."""
    form, panels = required_form(op), op.operands[1]
    groups, count, quads, pixel_stride = tensor(panels).sizes
    batch, *outer, map_rows, pixels, channels_out = with_rows(tensor(op.result).sizes)
    assert isinstance(groups, int)
    assert isinstance(quads, int)
    assert isinstance(pixel_stride, int)
    assert isinstance(channels_out, int)
    width, share = pixel_stride // form.k_pack, channels_out // groups
    window = Window.of(nest, op, quads * form.k_pack)
    key = KernelKey.of(
        "conv",
        batch=product((batch, *outer)),
        rows=map_rows,
        pixels=pixels,
        groups=groups,
        depth=quads,
        panels=count,
        width=width,
        taps=prod(taps_of(op.attrs).window),
        stride=taps_of(op.attrs).strides[-1],
    )
    schedule, blocking = _choose_schedule(nest, key, form)
    row_block, others = blocking.rows, product((batch, *outer)) * groups * count
    if isinstance(pixels, int):
        chunks, segments = (
            count_chunks(map_rows, blocking.image_rows, 1, others),
            1 if row_block == pixels else ceildiv(pixels, row_block),
        )
        room = blocking.max_rows
    else:  # as many rows as have `row_block` pixels, or a segment of one row: at most twice as many pixels
        chunks, segments = (
            minimum(map_rows, maximum(ceildiv(map_rows * pixels, row_block), min_chunks(others))),
            ceildiv(pixels, 2 * row_block),
        )
        room = 2 * blocking.max_rows
    maps_outer = (batch, *outer, groups, chunks, segments, count)
    panels_outer = (groups, count, batch, *outer, chunks, segments)
    with nest.loops(panels_outer if schedule.panels_outer else maps_outer) as places:
        if schedule.panels_outer:
            group, panel, sample, *at, chunk, segment = places
        else:
            sample, *at, group, chunk, segment, panel = places
        first_row, row_count = chunk_bounds(nest, chunk, map_rows, chunks)
        first, used = chunk_bounds(nest, segment, pixels, segments)
        tile = nest.tile("tile", form.total, room * width)
        columns = Columns.of(nest, panel, width, share, form.total)

        def row(map_row: Expr, x: Expr) -> Expr:
            """The row of the tile that holds a pixel."""
            if isinstance(pixels, int):
                return add(scale(map_row, row_block), x)
            return add(nest.let(nest.apply("multiply", map_row, used, dtype=i64)), x)

        with window.blocks(nest, form) as (number, offset, done, taps, extent):
            b = panel_slice(nest, op, (group, panel, done), extent, columns)
            with (
                nest.loop(row_count, "ordered") as map_row,
                row_tiles(nest, used, blocking.call_rows) as ((part, parts), above, height),
            ):
                start = window.start((*at, add(first_row, map_row), add(first, above)), sample, group)
                a = Slice(Place(window.buffer, add(start, offset)), (height, taps, extent), window.slice_strides)
                sums = columns.sums(tile, row(map_row, above), height)
                prefetch = Chunk(
                    add(nest.let(nest.apply("multiply", map_row, parts, dtype=i64)), part),
                    nest.let(nest.apply("multiply", row_count, parts, dtype=i64)),
                )
                nest.emit(Mma(sums, a, b, form, accumulate=number, prefetch=prefetch))
        with nest.loop(row_count, "ordered") as map_row, nest.loop(used, "ordered") as x:
            y = [add(first_row, map_row)] if tensor(op.result).rank > 3 else []
            here, begin = (sample, *at, *y, add(first, x)), scale(group, share)
            columns.store(nest, op, output, tile, row(map_row, x), lambda column: (*here, add(begin, column)))


def _choose_schedule(nest: Nest, key: KernelKey, form: Form) -> tuple[Conv, Blocking]:
    """The tuned schedule of f32; other types have a fixed one."""
    if form is F32:
        schedule = nest.choose_schedule(key, Conv)
        return schedule, nest.blocking(key, schedule)
    pixels, others = key["pixels"], key["batch"] * key["groups"] * key["panels"]
    map_rows = 1
    if "pixels" in key.dynamic or pixels > 2 * ROW_BLOCK:
        pixels = ROW_BLOCK
    else:
        map_rows = chunk_size(key["rows"], max(1, ROW_BLOCK // max(pixels, 1)), others)
    return Conv(ROW_BLOCK, ROWS), Blocking(ROWS, pixels, map_rows, max(pixels * map_rows, 1))


def with_rows(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """[batch, x, channel] as [batch, 1, x, channel]."""
    return (sizes[0], 1, *sizes[1:]) if len(sizes) == 3 else tuple(sizes)


class Window(Frozen):
    """The K dimension of an implicit GEMM: loops over taps around contiguous runs of channels.

    `axes`: strides of the feature map. `run`: contiguous K elements. `taps`, `tap_stride`: the innermost tap loop.
    `outer`: the tap loops around it, as (count, stride).
    """

    buffer: int
    constant: Size
    axes: tuple[Size, ...]
    strides: tuple[int, ...]
    channels: int  # of a group
    outer: tuple[tuple[int, Size], ...]
    taps: int
    tap_stride: Size
    run: int

    @staticmethod
    def of(nest: Nest, op: Op, depth: int) -> Window:
        taps = taps_of(op.attrs)
        buffer, constant, axes = memory_layout(nest, op, op.operands[0])
        channels = depth // prod(taps.window)
        levels = [(size, hole * axis) for size, hole, axis in zip(taps.window, taps.dilations, axes[1:-1], strict=True)]
        run = channels
        if levels[-1][1] == channels * axes[-1] or levels[-1][0] == 1:  # the taps of a window row are contiguous
            run *= levels.pop()[0]
        count, tap_stride = levels.pop() if levels else (1, 0)
        return Window(buffer, constant, axes, taps.strides, channels, tuple(levels), count, tap_stride, run)

    @property
    def pixel_stride(self) -> Size:
        """The distance of the windows of adjacent output pixels."""
        return self.strides[-1] * self.axes[-2]

    @property
    def k_stride(self) -> Size:
        return self.axes[-1]

    @property
    def slice_strides(self) -> tuple[Expr, Expr, Expr]:
        """The strides of [pixel, tap, k]."""
        return Amount(self.pixel_stride), Amount(self.tap_stride), Amount(self.k_stride)

    def start(self, at: Sequence[Expr], sample: Expr, group: Expr) -> Expr:
        """The offset of an output pixel's window."""
        places = at[len(at) - len(self.strides) :]
        steps = zip(places, self.strides, self.axes[1:-1], strict=True)
        parts = (scale(place, stride * axis) for place, stride, axis in steps)
        return add(scale(sample, self.axes[0]), *parts, scale(group, self.channels * self.k_stride), self.constant)

    @contextmanager
    def blocks(self, nest: Nest, form: Form) -> Iterator[tuple[Expr, Expr, Expr, Expr, Expr]]:
        """Loops over K-blocks, with what `block` gives for each."""
        with nest.loops(self.block_counts(form), "ordered") as places:
            yield self.block(nest, form, places)

    def block_counts(self, form: Form) -> list[int]:
        """The extents of the loops over K-blocks: tap loops, taps of the innermost one, parts of a run."""
        per = max(1, form.block // max(self.run, 1))
        return [*(count for count, _ in self.outer), -(-self.taps // per), max(1, -(-self.run // form.block))]

    def block(self, nest: Nest, form: Form, places: Sequence[Expr]) -> tuple[Expr, Expr, Expr, Expr, Expr]:
        """A K-block: (number, offset in the feature map, first row of the panel, taps, K extent per tap)."""
        per, counts = max(1, form.block // max(self.run, 1)), self.block_counts(form)
        *outer, share, part = places
        segment = -(-self.run // (counts[-1] * form.k_pack)) * form.k_pack
        number, first_tap = _flatten(places, counts), scale(share, per)
        moves = (scale(at, distance) for at, (_, distance) in zip(outer, self.outer, strict=True))
        offset = add(*moves, scale(first_tap, self.tap_stride), scale(part, segment * self.k_stride))
        before = add(scale(_flatten(outer, counts[:-2]), self.taps), first_tap)
        done = add(scale(before, self.run // form.k_pack), scale(part, segment // form.k_pack))
        taps = _clip_extent(nest, per, add(self.taps, scale(first_tap, -1)), self.taps % per == 0)
        extent = _clip_extent(nest, segment, add(self.run, scale(part, -segment)), self.run == segment * counts[-1])
        return nest.let(number), offset, nest.let(done), taps, extent


def _flatten(places: Sequence[Expr], counts: Sequence[int]) -> Expr:
    number: Expr = Number(0)
    for at, count in zip(places, counts, strict=True):
        number = add(scale(number, count), at)
    return number


def _clip_extent(nest: Nest, most: int, left: Expr, even: bool) -> Expr:
    return Amount(most) if even else nest.apply("minimum", Number(most), nest.let(left), dtype=i64)
