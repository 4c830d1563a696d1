"""A window for each channel of an image that the kernel makes for itself, a few lines at a time, by a product.

Networks widen an image by a matrix, look at each channel through a window, and narrow it again. The wide image is the
largest thing in them; here it never leaves a core's cache. `made_image` finds such a pair for `fuse`, which then stores
nothing between the two; `channel_conv` hands over to `expanded_conv`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum
from smelt.dtype import f32, i64
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.packed import Taps, taps_of
from smelt.kernel.build.gemm import Columns, multiply, shares, wanted
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    LoadLocal,
    Local,
    Number,
    Quotient,
    Remainder,
    StoreLocal,
    add,
    scale,
)
from smelt.kernel.loops.nest import ExpandedImage, Nest, tensor
from smelt.kernel.tune.schedules import ROWS, ExpandDepthwise, KernelKey, RowBands, largest_divisor

LARGEST = 40  # ops between a product and the image
DEEPEST = 256 << 10  # bytes of lines on a stack
LANES = 16  # of the widest vectors
PIECE = 56  # pixels of a line that is too long, or of any length
FEW = 4  # of them at once


def made_image(op: Op, users: Mapping[Value, Sequence[Op]]) -> ExpandedImage | None:
    """How the image of a `channel_conv` can be made line by line, if nothing else uses it."""
    value = op.operands[0]
    shape = tensor(value)
    if shape.rank != 4 or not isinstance(shape.sizes[-1], int):
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
    image = ExpandedImage(dot, last, edge, before, closed)
    return image if _Conv.of(op, image).fits else None


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


def expanded_conv(nest: Nest, op: Op, output: Output, image: ExpandedImage) -> None:
    """One panel of channels, a share of the lines and a piece of each: bands of lines are made, and looked at while
    they are near."""
    conv = _Conv.of(op, image)
    key = conv.key(image)
    schedule = nest.choose_schedule(key, ExpandDepthwise)
    bands = nest.bands(key, schedule)
    band, line, (stride, step) = bands.rows, conv.line, conv.taps.strides
    chunks, pieces = conv.shares(bands.chunks), conv.pieces
    nest.covered.update(dict.fromkeys(image.inside))
    with nest.loops((conv.batch, chunks, pieces, conv.panels)) as (number, chunk, piece, panel):
        first, lines = shares(nest, chunk, conv.out[0], chunks)
        left, wide = shares(nest, piece, conv.out[1], pieces)
        made = nest.var(f32, stem="made").name
        nest.emit(Local(made, f32, conv.needed(bands.max_rows) * line))
        columns = Columns.of(nest, panel, conv.width, conv.channels)
        with nest.loop(nest.let(Quotient(nest.let(add(lines, band - 1)), band)), "ordered") as turn:
            done = nest.let(scale(turn, band))
            count = nest.apply("minimum", Amount(band), nest.let(add(lines, scale(done, -1))), dtype=i64)
            kept = nest.let(scale(nest.apply("minimum", turn, Number(1), dtype=i64), conv.halo))
            with nest.loop(nest.let(scale(kept, line)), "lane") as at:
                nest.emit(StoreLocal(made, at, nest.keep(LoadLocal(made, add(at, band * stride * line), f32))))
            down, across = (
                _Span.of(nest, add(scale(start, each), -before), windows, each, reach, size)
                for start, windows, each, before, reach, size in (
                    (add(first, done), count, stride, image.before[0], conv.reach, conv.image[0]),
                    (left, wide, step, image.before[1], conv.reach_across + step - 1, conv.image[1]),
                )
            )
            fill = _Fill(nest, conv, image, made, columns, number, panel)
            fill.make(down, across, kept, bands)
            for start, turns, few in _turns(nest, wide, conv.out[1], schedule.pixels):
                with (
                    nest.loop(count, "ordered") as y,
                    nest.loop(turns, "ordered") as part,
                    nest.loop(columns.used, "lane") as j,
                ):
                    channel, x = add(columns.first, j), add(start, scale(part, few))
                    totals: list[Expr] = [Number(0.0, f32)] * few
                    for tap in np.ndindex(*conv.taps.window):
                        factor = nest.pull(op.operands[1], (*map(Number, tap), channel))
                        row = scale(add(scale(y, stride), tap[0] * conv.taps.dilations[0]), line)
                        for i in range(few):
                            pixel = add(scale(add(x, i), step), tap[1] * conv.taps.dilations[1])
                            element = nest.keep(LoadLocal(made, add(row, scale(pixel, conv.pitch), j), f32))
                            totals[i] = nest.apply("fma", factor, element, totals[i], dtype=f32)
                    for i, total in enumerate(totals):
                        output.finish(nest, op, (number, add(first, done, y), add(left, x, i), channel), total)


def _turns(nest: Nest, count: Expr, pixels: Size, most: int) -> list[tuple[Expr, Expr, int]]:
    """Pixels of a line, a few at once: (where they begin, how often, how many)."""
    if isinstance(count, Amount) and isinstance(pixels, int):
        few = largest_divisor(pixels, most)
        return [(Number(0), Amount(pixels // few), few)]
    whole = nest.let(Quotient(count, FEW))
    done = nest.let(scale(whole, FEW))
    return [(Number(0), whole, FEW), (done, nest.let(add(count, scale(done, -1))), 1)]


@dataclass(frozen=True, slots=True)
class _Conv:
    """The numbers of both. A `piece` of a line of windows is looked at together."""

    taps: Taps
    batch: Size
    image: tuple[Size, Size]  # lines and pixels without the edge
    out: tuple[Size, Size]
    piece: int
    channels: int
    panels: int
    width: int

    @staticmethod
    def of(op: Op, image: ExpandedImage) -> _Conv:
        batch, down, across, channels = tensor(op.result).sizes
        *window, _ = tensor(op.operands[1]).sizes
        _, panels, _, width = tensor(image.dot.operands[1]).sizes
        assert isinstance(channels, int)
        assert isinstance(panels, int)
        assert isinstance(width, int)
        _, y, x, _ = tensor(image.last).sizes
        taps = taps_of({**op.attrs, "window": window})
        piece = max(1, PIECE // taps.strides[1])
        conv = _Conv(taps, batch, (y, x), (down, across), piece, channels, panels, width)
        if isinstance(across, int):
            whole = replace(conv, piece=max(1, across))
            return whole if whole.fits else conv
        return conv

    @property
    def fits(self) -> bool:
        """Whether there is room for the lines of one line of windows."""
        return 4 * self.needed(1) * self.line <= DEEPEST

    @property
    def pieces(self) -> Size:
        return 1 if self.piece == self.out[1] else ceildiv(self.out[1], self.piece)

    @property
    def across(self) -> int:
        """Pixels of a line that a piece looks at, and those before the next window: lines that are whole stay so."""
        return self.piece * self.taps.strides[1] + self.reach_across - 1

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
    def reach_across(self) -> int:
        return (self.taps.window[1] - 1) * self.taps.dilations[1] + 1

    @property
    def halo(self) -> int:
        """Lines that the windows of the next line look at, too."""
        return max(0, self.reach - self.taps.strides[0])

    def needed(self, lines: int) -> int:
        return (lines - 1) * self.taps.strides[0] + self.reach

    def shares(self, told: Size) -> Size:
        """Shares of the lines; where their number is open, as many as it turns out to need."""
        lines = self.out[0]
        if isinstance(lines, int):
            return told
        cheap = floordiv(lines * self.taps.strides[0], max(1, 6 * self.halo))
        return maximum(1, minimum(cheap, wanted(self.batch * self.panels)))

    def key(self, image: ExpandedImage) -> KernelKey:
        return KernelKey.of(
            "expand_depthwise",
            batch=self.batch,
            rows=self.out[0],
            pixels=self.out[1],
            across=self.across,
            depth=tensor(image.dot.operands[0]).sizes[2],
            panels=self.panels,
            width=self.pitch,
            taps=prod(self.taps.window),
            stride=self.taps.strides[0],
            window_rows=self.reach,
        )


@dataclass(frozen=True, slots=True)
class _Span:
    """Lines, or pixels of a line, that windows look at: the first one's number in the image, how many, and which of
    them the image has."""

    first: Expr
    count: Expr
    begin: Expr
    end: Expr

    @staticmethod
    def of(nest: Nest, first: Expr, windows: Expr, stride: int, reach: int, size: Size) -> _Span:
        first, count = nest.let(first), nest.let(add(scale(windows, stride), reach - stride))
        begin = nest.apply("clamp", Number(0), first, Amount(size), dtype=i64)
        end = nest.apply("clamp", begin, nest.let(add(first, count)), Amount(size), dtype=i64)
        return _Span(first, count, begin, end)

    def after(self, nest: Nest, kept: Expr) -> _Span:
        """Without those that are there already."""
        begin = nest.apply("maximum", self.begin, nest.let(add(self.first, kept)), dtype=i64)
        return replace(self, begin=nest.apply("minimum", begin, self.end, dtype=i64))

    def place(self, at: Expr) -> Expr:
        return add(at, scale(self.first, -1))


@dataclass(frozen=True, slots=True)
class _Fill:
    """Lines of the image, as they are made in a local array."""

    nest: Nest
    conv: _Conv
    image: ExpandedImage
    made: str
    columns: Columns
    number: Expr
    panel: Expr

    def make(self, down: _Span, across: _Span, kept: Expr, bands: RowBands) -> None:
        """All lines but those that are kept from before."""
        nest, line = self.nest, self.conv.line
        edge = Number(0.0, f32) if self.image.edge is None else nest.pull(self.image.edge, ())
        above = nest.apply("minimum", nest.let(down.place(down.begin)), down.count, dtype=i64)
        below = nest.apply("maximum", nest.let(down.place(down.end)), kept, dtype=i64)
        for first, after in ((kept, above), (below, down.count)):
            count = nest.let(add(after, scale(first, -1)))
            with nest.loop(count, "ordered") as y, nest.loop(line, "lane") as at:
                nest.emit(StoreLocal(self.made, add(scale(add(first, y), line), at), edge))
        rest = down.after(nest, kept)
        self._sides(rest, across, edge)
        self._product(rest, across, bands)

    def _sides(self, down: _Span, across: _Span, edge: Expr) -> None:
        """Pixels outside the image, beside its lines."""
        nest, pitch = self.nest, self.conv.pitch
        left = nest.apply("minimum", nest.let(across.place(across.begin)), across.count, dtype=i64)
        right = nest.apply("maximum", nest.let(across.place(across.end)), Number(0), dtype=i64)
        with nest.loop(nest.let(add(down.end, scale(down.begin, -1))), "ordered") as y:
            line = scale(down.place(add(down.begin, y)), self.conv.line)
            for first, after in ((Number(0), left), (right, across.count)):
                count = nest.let(scale(add(after, scale(first, -1)), pitch))
                with nest.loop(count, "lane") as at:
                    nest.emit(StoreLocal(self.made, add(line, scale(first, pitch), at), edge))

    def _product(self, down: _Span, across: _Span, bands: RowBands) -> None:
        """Pixels inside: rows of the product, one after the other where lines are whole, else line by line."""
        nest, (height, width), pitch = self.nest, self.conv.image, self.conv.pitch
        most, panel = bands.gemm_rows, self.conv.width
        tile = nest.var(f32, stem="tile").name
        nest.emit(Local(tile, f32, bands.max_gemm_rows * panel))
        lines = nest.let(add(down.end, scale(down.begin, -1)))
        wide = nest.let(add(across.end, scale(across.begin, -1)))
        apart = Amount(minimum(self.conv.pieces - 1, 1))  # 1 where a line is in several pieces
        further = nest.apply("multiply", nest.let(add(lines, -1)), apart, dtype=i64)
        alone = nest.apply("maximum", Number(0), nest.let(add(further, 1)), dtype=i64)
        together = nest.let(add(lines, scale(further, -1)))
        rows = nest.apply("multiply", wide, together, dtype=i64)
        with (
            nest.loop(alone, "ordered") as each,
            nest.loop(nest.let(Quotient(nest.let(add(rows, most - 1)), most)), "ordered") as part,
        ):
            first = nest.let(scale(part, most))
            used = nest.apply("minimum", Amount(most), nest.let(add(rows, scale(first, -1))), dtype=i64)
            line = nest.let(add(down.begin, each))
            start = nest.let(add(scale(add(scale(self.number, height), line), width), across.begin, first))
            multiply(nest, self.image.dot, tile, (Number(0), start, used), self.panel, self.columns, ROWS)
            with nest.loop(used, "ordered") as row:
                at = nest.let(add(first, row))
                y = nest.let(add(line, Quotient(at, width)))
                x = nest.let(add(across.begin, Remainder(at, width)))
                pixel = scale(add(scale(down.place(y), self.conv.across), across.place(x)), pitch)
                with nest.loop(self.columns.used, "lane") as j:
                    nest.values[self.image.dot.result] = nest.keep(LoadLocal(tile, add(scale(row, panel), j), f32))
                    element = nest.pull(self.image.last, (self.number, y, x, add(self.columns.first, j)))
                    del nest.values[self.image.dot.result]
                    nest.emit(StoreLocal(self.made, add(pixel, j), element))
