"""Products of bytes: `smelt.packed_qdot` and `smelt.packed_qconv` fill tiles of i32 from rows of ui8 and panels of i8.

The loops are like those of `build_contract` and `build_conv`; sums are exact, so nothing here decides about bits. What
shifts, scales and rounds the sums follows as the epilogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from smelt.dim import Size, ceildiv, maximum
from smelt.dtype import i8, i32, i64
from smelt.ir.core import Op
from smelt.ir.ops.packed import taps_of
from smelt.ir.ops.packed_bytes import QUAD
from smelt.kernel.build_contract import Columns, address, in_memory, place, share_of, shares, tiles
from smelt.kernel.loop import Amount, Array, Expr, Item, Number, Product, add, scale, split
from smelt.kernel.nest import Index, Nest, pull, tensor
from smelt.kernel.sinks import Output, sink

BLOCK = 512  # steps whose lines of a panel stay in the nearest cache while rows pass by
ROWS = 12  # of one call of a product
NEAR = 192  # rows that pass by a block of a panel
WIDE = 2 * NEAR  # pixels of a line that are still taken whole


@pull("smelt.pack_quads")
def pack_quads(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    """[group, panel, quad, 4 * j + step]: column `panel * width + j`, zero where there is none."""
    group, panel, quad, at = index
    depth, columns = tensor(op.operands[0]).sizes[1:]
    width = op.attrs["width"]
    j, step = split(at, QUAD)
    column, k = add(scale(panel, width), j), add(scale(quad, QUAD), step)
    there = [
        nest.less(nest.let(index), Amount(size))
        for index, size, whole in ((k, depth, QUAD), (column, columns, width))
        if not isinstance(size, int) or size % whole
    ]
    if not there:
        return nest.pull(op.operands[0], (group, k, column))
    return nest.choose(
        nest.both(*there), lambda: nest.pull(op.operands[0], (group, k, column)), lambda: Number(0, i8), i8
    )


@sink("smelt.packed_qdot", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qdot(nest: Nest, op: Op, output: Output) -> None:
    """Many rows x one panel: every block of the panel stays near while the rows pass by."""
    lhs, panels = op.operands
    groups, rows, depth = tensor(lhs).sizes
    own, count, _, line = tensor(panels).sizes
    assert isinstance(line, int)
    width = line // QUAD
    most = ROWS * share_of(ceildiv(rows, ROWS), NEAR // ROWS, count * groups)
    chunks = ceildiv(rows, most)
    with nest.loops((groups, chunks, count)) as (group, chunk, panel):
        first, used = shares(nest, chunk, rows, chunks)
        tile = _tile(nest, most * width)
        columns = Columns.of(nest, panel, width, tensor(op.result).sizes[2])
        with nest.loop(maximum(ceildiv(depth, BLOCK), 1), "ordered") as block:
            done = nest.let(scale(block, BLOCK))
            extent = nest.apply("minimum", Number(BLOCK), nest.let(add(depth, scale(done, -1))), dtype=i64)
            lines = nest.let(scale(block, BLOCK // QUAD))
            b = place(nest, op, panels, (Number(0) if own == 1 else group, panel, lines, Number(0)))
            with tiles(nest, used, ROWS) as ((part, parts), above, height):
                a = address(nest, op, lhs, group, add(first, above), done)
                nest.emit(
                    Product(
                        tile,
                        height,
                        *a,
                        *b,
                        Amount(line),
                        extent,
                        place=scale(above, width),
                        join=block,
                        ahead=part,
                        tiles=parts,
                        columns=columns.fewest,
                        narrow=True,
                    )
                )
        with nest.loop(used, "ordered") as row:
            here = (group, add(first, row))
            _store(nest, op, output, columns, tile, row, lambda column: (*here, column))


def _tile(nest: Nest, count: int) -> str:
    name = nest.var(i32, stem="tile").name
    nest.emit(Array(name, i32, count))
    return name


def _store(
    nest: Nest, op: Op, output: Output, columns: Columns, tile: str, row: Expr, index: Callable[[Expr], Index]
) -> None:
    """One row of a tile goes out."""
    with nest.loop(columns.used, "lane") as j:
        element = nest.keep(Item(tile, add(scale(row, columns.width), j), i32))
        output.finish(nest, op, index(add(columns.first, j)), element)


# ---- convolutions ----


@sink("smelt.packed_qconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qconv(nest: Nest, op: Op, output: Output) -> None:
    """Lines of pixels x one panel: every block of the panel stays near while the lines pass by."""
    groups, count, _, line_bytes = tensor(op.operands[1]).sizes
    sizes = tensor(op.result).sizes
    batch, *outer, lines, pixels, features = (sizes[0], 1, *sizes[1:]) if len(sizes) == 3 else sizes
    assert isinstance(groups, int)
    assert isinstance(line_bytes, int)
    assert isinstance(features, int)
    width, share = line_bytes // QUAD, features // groups
    window = _Window.of(nest, op, groups)
    near = pixels if isinstance(pixels, int) and pixels <= WIDE else NEAR
    pieces: Size = 1 if near == pixels else ceildiv(pixels, near)
    most = share_of(lines, max(1, NEAR // max(near, 1)), batch * groups * count) if pieces == 1 else 1
    with nest.loops((batch, *outer, groups, ceildiv(lines, most), pieces, count)) as (image, *at, chunk, piece, panel):
        *at, group = at
        first_line, line_count = shares(nest, chunk, lines, ceildiv(lines, most))
        first, used = shares(nest, piece, pixels, pieces)
        tile = _tile(nest, max(most * near, 1) * width)
        columns = Columns.of(nest, panel, width, share)
        with window.blocks(nest) as (number, offset, done, turns, extent):
            b = place(nest, op, op.operands[1], (group, panel, done, Number(0)))
            with nest.loop(line_count, "ordered") as line, tiles(nest, used, ROWS) as ((part, parts), above, height):
                spot = window.start((*at, add(first_line, line), add(first, above)), image, group)
                nest.emit(
                    Product(
                        tile,
                        height,
                        window.buffer,
                        add(spot, offset),
                        Amount(window.across),
                        Number(1),
                        *b,
                        Amount(line_bytes),
                        extent,
                        place=scale(add(scale(line, near), above), width),
                        turns=turns,
                        a_turn=Amount(window.turn),
                        join=number,
                        ahead=add(nest.let(nest.apply("multiply", line, parts, dtype=i64)), part),
                        tiles=nest.let(nest.apply("multiply", line_count, parts, dtype=i64)),
                        columns=columns.fewest,
                        narrow=True,
                    )
                )
        with nest.loop(line_count, "ordered") as line, nest.loop(used, "ordered") as x:
            y = [add(first_line, line)] if len(sizes) > 3 else []
            here, begin = (image, *at, *y, add(first, x)), scale(group, share)
            row = add(scale(line, near), x)
            _store(nest, op, output, columns, tile, row, lambda column: (*here, add(begin, column)))


@dataclass(frozen=True, slots=True)
class _Window:
    """How the sum over a window and its channels goes through memory: blocks of turns of runs of whole quads.

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
    def of(nest: Nest, op: Op, groups: int) -> _Window:
        images, panels = op.operands
        taps = taps_of(op.attrs)
        buffer, constant, axes = in_memory(nest, op, images)
        quads = tensor(panels).sizes[2]
        assert isinstance(quads, int)
        channels = quads * QUAD // prod(taps.window)
        levels = [(size, hole * axis) for size, hole, axis in zip(taps.window, taps.dilations, axes[1:-1], strict=True)]
        run = channels
        if levels[-1][1] == channels or levels[-1][0] == 1:  # taps follow each other like channels
            run *= levels.pop()[0]
        turns, turn = levels.pop() if levels else (1, 0)
        return _Window(buffer, constant, axes, taps.strides, channels, tuple(levels), turns, turn, run)

    @property
    def across(self) -> Size:
        """From pixel to pixel."""
        return self.strides[-1] * self.axes[-2]

    def start(self, at: Sequence[Expr], image: Expr, group: Expr) -> Expr:
        """Where the window of a pixel begins; an image without lines has but one."""
        places = at[len(at) - len(self.strides) :]
        steps = zip(places, self.strides, self.axes[1:-1], strict=True)
        parts = (scale(place, stride * axis) for place, stride, axis in steps)
        return add(scale(image, self.axes[0]), *parts, scale(group, self.channels), self.constant)

    @contextmanager
    def blocks(self, nest: Nest) -> Iterator[tuple[Expr, Expr, Expr, Expr, Expr]]:
        """Loops over blocks: (number, offset in the image, first line of the panel, turns, steps of each turn)."""
        per = max(1, BLOCK // max(self.run, 1))
        parts = max(1, -(-self.run // BLOCK))
        piece = -(-self.run // (parts * QUAD)) * QUAD
        counts = [*(count for count, _ in self.outer), -(-self.turns // per), parts]
        with nest.loops(counts, "ordered") as (*outer, share, part):
            number, turn = _numbered([*outer, share, part], counts), scale(share, per)
            moves = (scale(at, distance) for at, (_, distance) in zip(outer, self.outer, strict=True))
            offset = add(*moves, scale(turn, self.turn), scale(part, piece))
            before = add(scale(_numbered(outer, counts[:-2]), self.turns), turn)
            done = add(scale(before, self.run // QUAD), scale(part, piece // QUAD))
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
