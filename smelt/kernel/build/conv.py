"""Convolutions of padded images with their channels last.

`smelt.packed_conv` multiplies tiles of pixels x features: a row of the window lies side by side in the image, so it is
one run of the sum. `smelt.channel_conv` has a window for each channel and walks over channels on lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum, product
from smelt.dtype import f32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.kernel.build.expand_depthwise import expanded_conv
from smelt.kernel.build.gemm import FLOATS, Columns, Form, in_memory, parts_of, place, shares, step, tiles, wanted
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Amount, Expr, Local, Mma, Number, add, scale
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.tune.schedules import ROWS, Blocking, Conv, Depthwise, KernelKey, chunk_size, largest_divisor

NEAR = 192  # pixels of other types than floats that pass by a block of a panel


@sink("smelt.packed_conv", anchor=True, addressed=(0, 1))
def packed_conv(nest: Nest, op: Op, output: Output) -> None:
    convolve(nest, op, output, FLOATS)


def convolve(nest: Nest, op: Op, output: Output, form: Form) -> None:
    """Lines of pixels x one panel: every block of the panel stays near while the lines pass by."""
    panels = op.operands[1]
    groups, count, quads, across = tensor(panels).sizes
    batch, *outer, lines, pixels, features = _with_lines(tensor(op.result).sizes)
    assert isinstance(groups, int)
    assert isinstance(quads, int)
    assert isinstance(across, int)
    assert isinstance(features, int)
    width, share = across // form.k_pack, features // groups
    window = _Window.of(nest, op, quads * form.k_pack)
    key = KernelKey.of(
        "conv",
        batch=product((batch, *outer)),
        rows=lines,
        pixels=pixels,
        groups=groups,
        depth=quads,
        panels=count,
        width=width,
        taps=prod(taps_of(op.attrs).window),
        stride=taps_of(op.attrs).strides[-1],
    )
    schedule, blocking = _chosen(nest, key, form)
    near, others = blocking.rows, product((batch, *outer)) * groups * count
    if isinstance(pixels, int):
        chunks, pieces = parts_of(lines, blocking.image_rows, 1, others), 1 if near == pixels else ceildiv(pixels, near)
        room = blocking.max_rows
    else:  # as many lines as have `near` pixels, or a share of one line: never more than twice as many pixels
        chunks, pieces = (
            minimum(lines, maximum(ceildiv(lines * pixels, near), wanted(others))),
            ceildiv(pixels, 2 * near),
        )
        room = 2 * blocking.max_rows
    images_first = (batch, *outer, groups, chunks, pieces, count)
    panels_outer = (groups, count, batch, *outer, chunks, pieces)
    with nest.loops(panels_outer if schedule.panels_outer else images_first) as places:
        if schedule.panels_outer:
            group, panel, image, *at, chunk, piece = places
        else:
            image, *at, group, chunk, piece, panel = places
        first_line, line_count = shares(nest, chunk, lines, chunks)
        first, used = shares(nest, piece, pixels, pieces)
        tile = nest.var(form.element, stem="tile").name
        nest.emit(Local(tile, form.element, room * width))
        columns = Columns.of(nest, panel, width, share, form.element)

        def row(line: Expr, x: Expr) -> Expr:
            """Of the tile."""
            if isinstance(pixels, int):
                return add(scale(line, near), x)
            return add(nest.let(nest.apply("multiply", line, used, dtype=i64)), x)

        with window.blocks(nest, form) as (number, offset, done, turns, extent):
            b = place(nest, op, panels, (group, panel, done, Number(0)))
            with (
                nest.loop(line_count, "ordered") as line,
                tiles(nest, used, blocking.call_rows) as ((part, parts), above, height),
            ):
                spot = window.start((*at, add(first_line, line), add(first, above)), image, group)
                nest.emit(
                    Mma(
                        tile,
                        height,
                        window.buffer,
                        add(spot, offset),
                        Amount(window.across),
                        Amount(window.step),
                        *b,
                        step(nest, op, panels, 2),
                        extent,
                        tile_offset=scale(row(line, above), width),
                        taps=turns,
                        a_tap_stride=Amount(window.turn),
                        accumulate=number,
                        prefetch=add(nest.let(nest.apply("multiply", line, parts, dtype=i64)), part),
                        tiles=nest.let(nest.apply("multiply", line_count, parts, dtype=i64)),
                        columns=columns.fewest,
                        k_pack=form.k_pack,
                    )
                )
        with nest.loop(line_count, "ordered") as line, nest.loop(used, "ordered") as x:
            y = [add(first_line, line)] if tensor(op.result).rank > 3 else []
            here, begin = (image, *at, *y, add(first, x)), scale(group, share)
            columns.store(nest, op, output, tile, row(line, x), lambda column: (*here, add(begin, column)))


def _chosen(nest: Nest, key: KernelKey, form: Form) -> tuple[Conv, Blocking]:
    """Only about floats there is something to choose."""
    if form is FLOATS:
        schedule = nest.choose_schedule(key, Conv)
        return schedule, nest.blocking(key, schedule)
    pixels, others = key["pixels"], key["batch"] * key["groups"] * key["panels"]
    lines = 1
    if "pixels" in key.dynamic or pixels > 2 * NEAR:
        pixels = NEAR
    else:
        lines = chunk_size(key["rows"], max(1, NEAR // max(pixels, 1)), others)
    return Conv(NEAR, ROWS), Blocking(ROWS, pixels, lines, max(pixels * lines, 1))


def _with_lines(sizes: Sequence[Size]) -> tuple[Size, ...]:
    """[batch, x, feature] has one line."""
    return (sizes[0], 1, *sizes[1:]) if len(sizes) == 3 else tuple(sizes)


@dataclass(frozen=True, slots=True)
class _Window:
    """How the sum over a window and its channels goes through memory: blocks of turns of runs.

    `axes` are the distances of neighbours in the image; `outer` the loops around the turns: (count, distance).
    """

    buffer: int
    constant: Size
    axes: tuple[Size, ...]
    strides: tuple[int, ...]
    channels: int  # of a group
    outer: tuple[tuple[int, Size], ...]
    turns: int
    turn: Size
    run: int

    @staticmethod
    def of(nest: Nest, op: Op, depth: int) -> _Window:
        taps = taps_of(op.attrs)
        buffer, constant, axes = in_memory(nest, op, op.operands[0])
        channels = depth // prod(taps.window)
        levels = [(size, hole * axis) for size, hole, axis in zip(taps.window, taps.dilations, axes[1:-1], strict=True)]
        run = channels
        if levels[-1][1] == channels * axes[-1] or levels[-1][0] == 1:  # taps follow each other like channels
            run *= levels.pop()[0]
        turns, turn = levels.pop() if levels else (1, 0)
        return _Window(buffer, constant, axes, taps.strides, channels, tuple(levels), turns, turn, run)

    @property
    def across(self) -> Size:
        """From pixel to pixel."""
        return self.strides[-1] * self.axes[-2]

    @property
    def step(self) -> Size:
        return self.axes[-1]

    def start(self, at: Sequence[Expr], image: Expr, group: Expr) -> Expr:
        """Where the window of a pixel begins; an image without lines has but one."""
        places = at[len(at) - len(self.strides) :]
        steps = zip(places, self.strides, self.axes[1:-1], strict=True)
        parts = (scale(place, stride * axis) for place, stride, axis in steps)
        return add(scale(image, self.axes[0]), *parts, scale(group, self.channels * self.step), self.constant)

    @contextmanager
    def blocks(self, nest: Nest, form: Form) -> Iterator[tuple[Expr, Expr, Expr, Expr, Expr]]:
        """Loops over blocks: (number, offset in the image, first row of the panel, turns, steps of each turn)."""
        per = max(1, form.block // max(self.run, 1))
        parts = max(1, -(-self.run // form.block))
        piece = -(-self.run // (parts * form.k_pack)) * form.k_pack
        counts = [*(count for count, _ in self.outer), -(-self.turns // per), parts]
        with nest.loops(counts, "ordered") as (*outer, share, part):
            number, turn = _numbered([*outer, share, part], counts), scale(share, per)
            moves = (scale(at, distance) for at, (_, distance) in zip(outer, self.outer, strict=True))
            offset = add(*moves, scale(turn, self.turn), scale(part, piece * self.step))
            before = add(scale(_numbered(outer, counts[:-2]), self.turns), turn)
            done = add(scale(before, self.run // form.k_pack), scale(part, piece // form.k_pack))
            turns = _least(nest, per, add(self.turns, scale(turn, -1)), self.turns % per == 0)
            extent = _least(nest, piece, add(self.run, scale(part, -piece)), self.run == piece * parts)
            yield nest.let(number), offset, nest.let(done), turns, extent


def _numbered(places: Sequence[Expr], counts: Sequence[int]) -> Expr:
    number: Expr = Number(0)
    for at, count in zip(places, counts, strict=True):
        number = add(scale(number, count), at)
    return number


def _least(nest: Nest, most: int, left: Expr, even: bool) -> Expr:
    return Amount(most) if even else nest.apply("minimum", Number(most), nest.let(left), dtype=i64)


# ---- a window for each channel ----


@sink("smelt.channel_conv", anchor=True, addressed=(0, 1))
def channel_conv(nest: Nest, op: Op, output: Output) -> None:
    """A few pixels of a line at once, so that they share what they read; channels on lanes."""
    images, kernel = op.operands
    if images in nest.expanded:
        expanded_conv(nest, op, output, nest.expanded[images])
        return
    batch, *out, channels = tensor(op.result).sizes
    *window, _ = tensor(kernel).sizes
    taps = taps_of({**op.attrs, "window": window})
    key = KernelKey.of(
        "depthwise_conv",
        batch=batch,
        rows=product(out[:-1]),
        pixels=out[-1],
        channels=channels,
        taps=prod(taps.window),
        stride=taps.strides[-1],
    )
    schedule = nest.choose_schedule(key, Depthwise)
    with nest.loops((batch, *out[:-1])) as (image, *lines):
        for first, pieces, few in _pieces(out[-1], schedule.pixels):
            with nest.loop(pieces, "ordered") as piece, nest.loop(channels, "lane") as channel:
                totals: list[Expr] = [Number(0.0, f32)] * few
                for tap in np.ndindex(*taps.window):
                    factor = nest.pull(kernel, (*map(Number, tap), channel))
                    rows = [
                        add(scale(line, stride), at * hole)
                        for line, stride, at, hole in zip(lines, taps.strides, tap, taps.dilations, strict=False)
                    ]
                    for i in range(few):
                        x = scale(add(first, scale(piece, few), i), taps.strides[-1])
                        element = nest.pull(images, (image, *rows, add(x, tap[-1] * taps.dilations[-1]), channel))
                        totals[i] = nest.apply("fma", factor, element, totals[i], dtype=f32)
                for i, total in enumerate(totals):
                    output.finish(nest, op, (image, *lines, add(first, scale(piece, few), i), channel), total)


def _pieces(pixels: Size, few: int) -> list[tuple[Size, Size, int]]:
    """A line in pieces of a few pixels and a rest: (where they begin, how many there are, pixels of each)."""
    if isinstance(pixels, int):
        few = largest_divisor(pixels, few)
        return [(0, pixels // few, few)]
    whole = floordiv(pixels, few)
    return [(0, whole, few), (whole * few, pixels - whole * few, 1)]
