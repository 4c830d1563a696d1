"""A window for each channel of an image that the kernel makes for itself, a few lines at a time, by a product.

Networks widen an image by a matrix, look at each channel through a window, and narrow it again. The wide image is the
largest thing in them; here it never leaves a core's cache. `made_image` finds such a pair for `fuse`, which then stores
nothing between the two; `channel_conv` hands over to `expanded_conv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from smelt.dim import Size
from smelt.dtype import f32, i64
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.packed import Taps, taps_of
from smelt.kernel.build_contract import Columns, multiply, shares
from smelt.kernel.choice import ROWS, Bands, ExpandedConvolution, Problem, dividing
from smelt.kernel.loop import Amount, Array, Expr, Item, Number, Put, Quotient, Remainder, add, scale
from smelt.kernel.nest import MadeImage, Nest, tensor
from smelt.kernel.sinks import Output

LARGEST = 40  # ops between a product and the image
DEEPEST = 256 << 10  # bytes of lines on a stack
LANES = 16  # of the widest vectors


def made_image(op: Op, users: Mapping[Value, Sequence[Op]]) -> MadeImage | None:
    """How the image of a `channel_conv` can be made line by line, if nothing else uses it."""
    value = op.operands[0]
    shape = tensor(value)
    if shape.rank != 4 or not all(isinstance(size, int) for size in shape.sizes[1:]):
        return None
    last, edge, before, inside = value, None, (0, 0), []
    if value.op is not None and value.op.name == "stablehlo.pad":
        low, high = value.op.attrs["edge_padding_low"], value.op.attrs["edge_padding_high"]
        if min(*low, *high) < 0 or any(value.op.attrs["interior_padding"]) or any(low[d] + high[d] for d in (0, 3)):
            return None
        last, edge = value.op.operands
        before = (low[1], low[2])
        inside.append(value.op)
    depends: dict[Value, bool] = {}
    dots = _makers(last, depends)
    if len(dots) != 1:
        return None
    (dot,) = dots
    inside += [made.op for made, through in depends.items() if through and made.op is not None]
    closed = frozenset(inside)
    for each in closed:
        if len(each.results) != 1 or each.result not in users:
            return None
        if each.result is not value and not closed.issuperset(users[each.result]):
            return None
    if len(users[value]) != 1 or tensor(dot.operands[0]).sizes[0] != 1:
        return None
    image = MadeImage(dot, last, edge, before, closed)
    conv = _Conv.of(op, image)
    return image if 4 * conv.needed(1) * conv.line <= DEEPEST else None


def _makers(value: Value, depends: dict[Value, bool]) -> set[Op]:
    """The products that a value comes from by reshapes and elementwise ops."""
    op = value.op
    if op is None or len(depends) > LARGEST:
        return set()
    if op.name == "smelt.packed_dot":
        depends[value] = True
        return {op}
    if op.name != "stablehlo.reshape" and not OPS[op.name].elementwise:
        return set()
    if op.name == "stablehlo.reshape" and tensor(value).sizes[-1:] != tensor(op.operands[0]).sizes[-1:]:
        return set()
    found: set[Op] = set()
    depends.setdefault(value, False)
    for operand in dict.fromkeys(op.operands):
        if tensor(operand).count == tensor(value).count and operand not in depends:
            found |= _makers(operand, depends)
        if depends.get(operand):
            depends[value] = True
    return found


def expanded_conv(nest: Nest, op: Op, output: Output, image: MadeImage) -> None:
    """One panel of channels and a share of the lines: bands of lines are made, and looked at while they are near."""
    conv = _Conv.of(op, image)
    problem = conv.problem(image)
    choice = nest.decide(problem, ExpandedConvolution)
    few = dividing(conv.out[1], choice.pixels)
    bands = nest.bands(problem, choice)
    band, chunks = bands.lines, bands.shares
    line = conv.line
    nest.covered.update(dict.fromkeys(image.inside))
    with nest.loops((conv.batch, chunks, conv.panels)) as (number, chunk, panel):
        first, lines = shares(nest, chunk, conv.out[0], chunks)
        made = nest.var(f32, stem="made").name
        nest.emit(Array(made, f32, conv.needed(bands.most_lines) * line))
        columns = Columns.of(nest, panel, conv.width, conv.channels)
        edge = Number(0.0, f32) if image.edge is None else nest.pull(image.edge, ())
        with nest.loop(nest.let(Quotient(nest.let(add(lines, band - 1)), band)), "ordered") as turn:
            done = nest.let(scale(turn, band))
            count = nest.apply("minimum", Amount(band), nest.let(add(lines, scale(done, -1))), dtype=i64)
            top = nest.let(add(scale(add(first, done), conv.taps.strides[0]), -image.before[0]))
            kept = nest.let(scale(nest.apply("minimum", turn, Number(1), dtype=i64), conv.halo))
            with nest.loop(nest.let(scale(kept, line)), "lane") as at:
                shift = band * conv.taps.strides[0] * line
                nest.emit(Put(made, at, nest.keep(Item(made, add(at, shift), f32))))
            after = nest.let(add(scale(count, conv.taps.strides[0]), conv.reach - conv.taps.strides[0]))
            begin = nest.apply("clamp", Number(0), nest.let(add(top, kept)), Number(conv.image[0]), dtype=i64)
            end = nest.apply("clamp", begin, nest.let(add(top, after)), Number(conv.image[0]), dtype=i64)
            fill = _Fill(nest, conv, image, made, columns, top)
            above, below = (nest.let(add(each, scale(top, -1))) for each in (begin, end))
            fill.edge(kept, nest.apply("minimum", above, after, dtype=i64), edge)
            fill.edge(below, after, edge)
            fill.sides(above, below, edge)
            fill.product(number, panel, begin, end, bands)
            with (
                nest.loop(count, "ordered") as y,
                nest.loop(conv.out[1] // few, "ordered") as piece,
                nest.loop(columns.used, "lane") as j,
            ):
                channel = add(columns.first, j)
                totals: list[Expr] = [Number(0.0, f32)] * few
                for tap in np.ndindex(*conv.taps.window):
                    factor = nest.pull(op.operands[1], (*map(Number, tap), channel))
                    row = scale(add(scale(y, conv.taps.strides[0]), tap[0] * conv.taps.dilations[0]), line)
                    for i in range(few):
                        step = conv.taps.strides[1]
                        x = add(scale(piece, few * step), i * step + tap[1] * conv.taps.dilations[1])
                        element = nest.keep(Item(made, add(row, scale(x, conv.pitch), j), f32))
                        totals[i] = nest.apply("fma", factor, element, totals[i], dtype=f32)
                for i, total in enumerate(totals):
                    place = (number, add(first, done, y), add(scale(piece, few), i), channel)
                    output.finish(nest, op, place, total)


@dataclass(frozen=True, slots=True)
class _Conv:
    """The numbers of both."""

    taps: Taps
    batch: Size
    image: tuple[int, int]  # lines and pixels without the edge
    across: int  # pixels of a line with the edge
    out: tuple[int, int]
    channels: int
    panels: int
    width: int

    @staticmethod
    def of(op: Op, image: MadeImage) -> _Conv:
        images, kernel = op.operands
        batch, *out, channels = tensor(op.result).sizes
        *window, _ = tensor(kernel).sizes
        _, panels, _, width = tensor(image.dot.operands[1]).sizes
        numbers = (*tensor(image.last).sizes[1:3], tensor(images).sizes[2], *out, channels, panels, width)
        y, x, across, down, along, wide, count, each = (size for size in numbers if isinstance(size, int))
        taps = taps_of({**op.attrs, "window": window})
        return _Conv(taps, batch, (y, x), across, (down, along), wide, count, each)

    @property
    def pitch(self) -> int:
        """Floats from pixel to pixel."""
        return min(self.width, -(-self.channels // LANES) * LANES)

    @property
    def line(self) -> int:
        return self.across * self.pitch

    @property
    def reach(self) -> int:
        """Lines that one line of windows looks at."""
        return (self.taps.window[0] - 1) * self.taps.dilations[0] + 1

    @property
    def halo(self) -> int:
        """Lines that the windows of the next line look at, too."""
        return max(0, self.reach - self.taps.strides[0])

    def needed(self, lines: int) -> int:
        return (lines - 1) * self.taps.strides[0] + self.reach

    def problem(self, image: MadeImage) -> Problem:
        return Problem.of(
            "expanded_convolution",
            images=self.batch,
            lines=self.out[0],
            pixels=self.out[1],
            across=self.across,
            depth=tensor(image.dot.operands[0]).sizes[2],
            panels=self.panels,
            width=self.pitch,
            taps=prod(self.taps.window),
            stride=self.taps.strides[0],
            reach=self.reach,
        )


@dataclass(frozen=True, slots=True)
class _Fill:
    """Lines of the image, as they are made. Places are lines of the band; its line 0 is line `top` of the image."""

    nest: Nest
    conv: _Conv
    image: MadeImage
    made: str
    columns: Columns
    top: Expr

    def edge(self, first: Expr, after: Expr, value: Expr) -> None:
        """Lines outside the image."""
        line = self.conv.line
        count = self.nest.let(add(after, scale(first, -1)))
        with self.nest.loop(count, "ordered") as y, self.nest.loop(line, "lane") as at:
            self.nest.emit(Put(self.made, add(scale(add(first, y), line), at), value))

    def sides(self, first: Expr, after: Expr, value: Expr) -> None:
        """Pixels outside the image, beside its lines."""
        left, pitch = self.image.before[1], self.conv.pitch
        right = self.conv.across - left - self.conv.image[1]
        with self.nest.loop(self.nest.let(add(after, scale(first, -1))), "ordered") as y:
            line = scale(add(first, y), self.conv.line)
            for start, count in ((0, left), (left + self.conv.image[1], right)):
                if count:
                    with self.nest.loop(count * pitch, "lane") as at:
                        self.nest.emit(Put(self.made, add(line, at, start * pitch), value))

    def product(self, number: Expr, panel: Expr, begin: Expr, end: Expr, bands: Bands) -> None:
        """Lines of the image from `begin` to `end`."""
        nest, (height, across), width = self.nest, self.conv.image, self.conv.width
        tile = nest.var(f32, stem="tile").name
        most = bands.rows
        nest.emit(Array(tile, f32, bands.most_rows * width))
        rows = nest.let(scale(add(end, scale(begin, -1)), across))
        with nest.loop(nest.let(Quotient(nest.let(add(rows, most - 1)), most)), "ordered") as part:
            first = nest.let(scale(part, most))
            used = nest.apply("minimum", Amount(most), nest.let(add(rows, scale(first, -1))), dtype=i64)
            start = nest.let(add(scale(add(scale(number, height), begin), across), first))
            multiply(nest, self.image.dot, tile, (Number(0), start, used), panel, self.columns, ROWS)
            with nest.loop(used, "ordered") as row:
                at = nest.let(add(first, row))
                down, x = nest.let(Quotient(at, across)), nest.let(Remainder(at, across))
                y = nest.let(add(begin, down))
                line = scale(add(y, scale(self.top, -1)), self.conv.across)
                pixel = scale(add(line, x, self.image.before[1]), self.conv.pitch)
                with nest.loop(self.columns.used, "lane") as j:
                    nest.values[self.image.dot.result] = nest.keep(Item(tile, add(scale(row, width), j), f32))
                    element = nest.pull(self.image.last, (number, y, x, add(self.columns.first, j)))
                    del nest.values[self.image.dot.result]
                    nest.emit(Put(self.made, add(pixel, j), element))
