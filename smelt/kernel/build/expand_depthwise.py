"""Fused expand + depthwise (inverted bottleneck): a 1×1 convolution and the depthwise convolution of its result.

The expanded feature map is the largest value of such networks. Here bands of its rows are computed by GEMM into a local
buffer that stays in a core's cache, and are convolved there; the map is never materialised. `find_expansion` finds the
pair for `plan.materialise`; `depthwise.py` calls `expand_depthwise`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

import numpy as np

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum
from smelt.dtype import f32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.packed import Taps, taps_of
from smelt.kernel.build.gemm import Columns, Panels, chunk_bounds, form_of, min_chunks, multiply, required_form
from smelt.kernel.build.sinks import Output
from smelt.kernel.loops.form import F32, INT8, Form
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Remainder, add, scale
from smelt.kernel.loops.nest import Expansion, Nest, tensor
from smelt.kernel.tune.schedules import ROWS, ExpandDepthwise, KernelKey, RowBands, largest_divisor

FORMS = (F32, INT8)  # of the GEMM
MAX_OPS = 40  # ops between the GEMM and the depthwise convolution
MAX_BYTES = 256 << 10  # bytes of the local buffer of rows
LANES = 16  # f32 lanes of the widest vectors
SEGMENT = 56  # input pixels of a segment of a row that is too long or of dynamic length
AT_ONCE = 4  # output pixels computed together, in a row of dynamic length


def find_expansion(op: Op, users: Mapping[Value, Sequence[Op]]) -> Expansion | None:
    """The GEMM and elementwise ops that produce the input of a depthwise convolution, if it has no other user."""
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
    dots = _gemms_behind(last, depends)
    if len(dots) != 1:
        return None
    (dot,) = dots
    inside += [expanded.op for expanded, through in depends.items() if through and expanded.op is not None]
    closed = frozenset(inside)
    for each in closed:
        if len(each.results) != 1 or each.result not in users:
            return None
        if each.result is not value and not closed.issuperset(users[each.result]):
            return None
    if len(users[value]) != 1 or tensor(dot.operands[0]).sizes[0] != 1:
        return None
    expansion = Expansion(dot, last, edge, before, closed)
    return expansion if _Conv.of(op, expansion).fits else None


def _gemms_behind(value: Value, depends: dict[Value, bool]) -> set[Op]:
    """The GEMMs behind a value, through reshapes and elementwise ops."""
    op = value.op
    if op is None or len(depends) > MAX_OPS:
        return set()
    if op.name == "smelt.packed_dot" and form_of(op) in FORMS:
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
            found |= _gemms_behind(operand, depends)
        if depends.get(operand):
            depends[value] = True
    return found


def expand_depthwise(nest: Nest, op: Op, output: Output, expansion: Expansion) -> None:
    """For one panel of channels, a chunk of rows and a segment of each: expand a band of rows, then convolve it while
    it is cache-resident."""
    conv = _Conv.of(op, expansion)
    key = conv.key(expansion)
    schedule = nest.choose_schedule(key, ExpandDepthwise)
    bands = nest.bands(key, schedule)
    band, row_size, (stride, step) = bands.rows, conv.row_size, conv.taps.strides
    chunks, segments = conv.count_chunks(bands.chunks), conv.segments
    nest.covered.update(dict.fromkeys(expansion.inside))
    with nest.loops((conv.batch, chunks, segments, conv.panels)) as (number, chunk, segment, panel):
        first, rows = chunk_bounds(nest, chunk, conv.out[0], chunks)
        left, wide = chunk_bounds(nest, segment, conv.out[1], segments)
        expanded = nest.tile("made", f32, conv.input_rows(bands.max_rows) * row_size)
        columns = Columns.of(nest, panel, conv.width, conv.channels, conv.form.total)
        with nest.loop(nest.let(Quotient(nest.let(add(rows, band - 1)), band)), "ordered") as iteration:
            done = nest.let(scale(iteration, band))
            count = nest.apply("minimum", Amount(band), nest.let(add(rows, scale(done, -1))), dtype=i64)
            kept = nest.let(scale(nest.apply("minimum", iteration, Number(1), dtype=i64), conv.halo))
            with nest.loop(nest.let(scale(kept, row_size)), "lane") as at:
                nest.write(expanded, at, nest.read(expanded, add(at, band * stride * row_size), f32))
            down, columns_in = (
                _Span.of(nest, add(scale(start, each), -before), windows, each, window_rows, size)
                for start, windows, each, before, window_rows, size in (
                    (add(first, done), count, stride, expansion.before[0], conv.window_rows, conv.map_sizes[0]),
                    (left, wide, step, expansion.before[1], conv.window_columns + step - 1, conv.map_sizes[1]),
                )
            )
            fill = _Expand(nest, conv, expansion, expanded, columns, number, panel)
            fill.fill(down, columns_in, kept, bands)
            for start, groups, at_once in _pixel_groups(nest, wide, conv.out[1], schedule.pixels):
                with (
                    nest.loop(count, "ordered") as y,
                    nest.loop(groups, "ordered") as part,
                    nest.loop(columns.used, "lane") as j,
                ):
                    channel, x = add(columns.first, j), add(start, scale(part, at_once))
                    totals: list[Expr] = [Number(0.0, f32)] * at_once
                    for tap in np.ndindex(*conv.taps.window):
                        factor = nest.pull(op.operands[1], (*map(Number, tap), channel))
                        row = scale(add(scale(y, stride), tap[0] * conv.taps.dilations[0]), row_size)
                        for i in range(at_once):
                            pixel = add(scale(add(x, i), step), tap[1] * conv.taps.dilations[1])
                            element = nest.read(expanded, add(row, scale(pixel, conv.pitch), j), f32)
                            totals[i] = nest.apply("fma", factor, element, totals[i], dtype=f32)
                    for i, total in enumerate(totals):
                        output.finish(nest, op, (number, add(first, done, y), add(left, x, i), channel), total)


def _pixel_groups(nest: Nest, count: Expr, pixels: Size, most: int) -> list[tuple[Expr, Expr, int]]:
    """The pixels of a row in groups: (first pixel, groups, pixels per group)."""
    if isinstance(count, Amount) and isinstance(pixels, int):
        at_once = largest_divisor(pixels, most)
        return [(Number(0), Amount(pixels // at_once), at_once)]
    whole = nest.let(Quotient(count, AT_ONCE))
    done = nest.let(scale(whole, AT_ONCE))
    return [(Number(0), whole, AT_ONCE), (done, nest.let(add(count, scale(done, -1))), 1)]


class _Conv(Frozen):
    """The sizes of both convolutions. `segment`: output pixels of a row that are computed together."""

    taps: Taps
    batch: Size
    map_sizes: tuple[Size, Size]  # rows and columns without padding
    out: tuple[Size, Size]
    segment: int
    channels: int
    panels: int
    width: int
    form: Form

    @staticmethod
    def of(op: Op, expansion: Expansion) -> _Conv:
        batch, down, columns_in, channels = tensor(op.result).sizes
        *window, _ = tensor(op.operands[1]).sizes
        form, (_, panels, _, line) = required_form(expansion.dot), tensor(expansion.dot.operands[1]).sizes
        assert isinstance(channels, int)
        assert isinstance(panels, int)
        assert isinstance(line, int)
        _, y, x, _ = tensor(expansion.last).sizes
        taps = taps_of({**op.attrs, "window": window})
        segment = max(1, SEGMENT // taps.strides[1])
        width = line // form.k_pack
        conv = _Conv(taps, batch, (y, x), (down, columns_in), segment, channels, panels, width, form)
        if isinstance(columns_in, int):
            whole = conv.replace(segment=max(1, columns_in))
            return whole if whole.fits else conv
        return conv

    @property
    def fits(self) -> bool:
        """Whether the input rows of one output row fit the local buffer."""
        return 4 * self.input_rows(1) * self.row_size <= MAX_BYTES

    @property
    def segments(self) -> Size:
        return 1 if self.segment == self.out[1] else ceildiv(self.out[1], self.segment)

    @property
    def columns_in(self) -> int:
        """Input pixels of a segment, with those before the next window, so that a whole row stays whole."""
        return self.segment * self.taps.strides[1] + self.window_columns - 1

    @property
    def pitch(self) -> int:
        """Floats per pixel in the local buffer."""
        return min(self.width, -(-self.channels // LANES) * LANES)

    @property
    def row_size(self) -> int:
        return self.columns_in * self.pitch

    @property
    def window_rows(self) -> int:
        """Input rows of one output row."""
        return (self.taps.window[0] - 1) * self.taps.dilations[0] + 1

    @property
    def window_columns(self) -> int:
        return (self.taps.window[1] - 1) * self.taps.dilations[1] + 1

    @property
    def halo(self) -> int:
        """Input rows that the next output row reads as well."""
        return max(0, self.window_rows - self.taps.strides[0])

    def input_rows(self, rows: int) -> int:
        return (rows - 1) * self.taps.strides[0] + self.window_rows

    def count_chunks(self, planned: Size) -> Size:
        """Chunks of rows; with a dynamic number of rows, from that number."""
        rows = self.out[0]
        if isinstance(rows, int):
            return planned
        cheap = floordiv(rows * self.taps.strides[0], max(1, 6 * self.halo))
        return maximum(1, minimum(cheap, min_chunks(self.batch * self.panels)))

    def key(self, expansion: Expansion) -> KernelKey:
        return KernelKey.of(
            "expand_depthwise",
            batch=self.batch,
            rows=self.out[0],
            pixels=self.out[1],
            across=self.columns_in,
            depth=tensor(expansion.dot.operands[0]).sizes[2],
            panels=self.panels,
            width=self.pitch,
            taps=prod(self.taps.window),
            stride=self.taps.strides[0],
            window_rows=self.window_rows,
        )


class _Span(Frozen):
    """Input rows or columns under windows: the index of the first (negative in the padding), their count, and the part
    [begin, end) inside the feature map."""

    first: Expr
    count: Expr
    begin: Expr
    end: Expr

    @staticmethod
    def of(nest: Nest, first: Expr, windows: Expr, stride: int, window_rows: int, size: Size) -> _Span:
        first, count = nest.let(first), nest.let(add(scale(windows, stride), window_rows - stride))
        begin = nest.apply("clamp", Number(0), first, Amount(size), dtype=i64)
        end = nest.apply("clamp", begin, nest.let(add(first, count)), Amount(size), dtype=i64)
        return _Span(first, count, begin, end)

    def after(self, nest: Nest, kept: Expr) -> _Span:
        """The same without the first `kept`, which are computed already."""
        begin = nest.apply("maximum", self.begin, nest.let(add(self.first, kept)), dtype=i64)
        return self.replace(begin=nest.apply("minimum", begin, self.end, dtype=i64))

    def position(self, at: Expr) -> Expr:
        return add(at, scale(self.first, -1))


class _Expand(Frozen):
    """Computes rows of the expanded feature map into a local buffer."""

    nest: Nest
    conv: _Conv
    expansion: Expansion
    expanded: str
    columns: Columns
    number: Expr
    panel: Expr

    def fill(self, down: _Span, columns_in: _Span, kept: Expr, bands: RowBands) -> None:
        """All rows but the `kept` ones of the band before."""
        nest, row_size = self.nest, self.conv.row_size
        edge = Number(0.0, f32) if self.expansion.edge is None else nest.pull(self.expansion.edge, ())
        above = nest.apply("minimum", nest.let(down.position(down.begin)), down.count, dtype=i64)
        below = nest.apply("maximum", nest.let(down.position(down.end)), kept, dtype=i64)
        for first, after in ((kept, above), (below, down.count)):
            count = nest.let(add(after, scale(first, -1)))
            with nest.loop(count, "ordered") as y, nest.loop(row_size, "lane") as at:
                nest.write(self.expanded, add(scale(add(first, y), row_size), at), edge)
        rest = down.after(nest, kept)
        self._fill_borders(rest, columns_in, edge)
        self._run_gemm(rest, columns_in, bands)

    def _fill_borders(self, down: _Span, columns_in: _Span, edge: Expr) -> None:
        """Padding left and right of the rows."""
        nest, pitch = self.nest, self.conv.pitch
        left = nest.apply("minimum", nest.let(columns_in.position(columns_in.begin)), columns_in.count, dtype=i64)
        right = nest.apply("maximum", nest.let(columns_in.position(columns_in.end)), Number(0), dtype=i64)
        with nest.loop(nest.let(add(down.end, scale(down.begin, -1))), "ordered") as y:
            row_size = scale(down.position(add(down.begin, y)), self.conv.row_size)
            for first, after in ((Number(0), left), (right, columns_in.count)):
                count = nest.let(scale(add(after, scale(first, -1)), pitch))
                with nest.loop(count, "lane") as at:
                    nest.write(self.expanded, add(row_size, scale(first, pitch), at), edge)

    def _run_gemm(self, down: _Span, columns_in: _Span, bands: RowBands) -> None:
        """The GEMM for the pixels inside: all rows at once if rows are whole, else row by row."""
        nest, (height, width), pitch = self.nest, self.conv.map_sizes, self.conv.pitch
        most, panel = bands.gemm_rows, self.conv.width
        form = self.conv.form
        tile = nest.tile("tile", form.total, bands.max_gemm_rows * panel)
        rows = nest.let(add(down.end, scale(down.begin, -1)))
        wide = nest.let(add(columns_in.end, scale(columns_in.begin, -1)))
        is_segmented = Amount(minimum(self.conv.segments - 1, 1))  # 1 if a row has several segments
        further = nest.apply("multiply", nest.let(add(rows, -1)), is_segmented, dtype=i64)
        alone = nest.apply("maximum", Number(0), nest.let(add(further, 1)), dtype=i64)
        rows_at_once = nest.let(add(rows, scale(further, -1)))
        rows = nest.apply("multiply", wide, rows_at_once, dtype=i64)
        with (
            nest.loop(alone, "ordered") as each,
            nest.loop(nest.let(Quotient(nest.let(add(rows, most - 1)), most)), "ordered") as part,
        ):
            first = nest.let(scale(part, most))
            used = nest.apply("minimum", Amount(most), nest.let(add(rows, scale(first, -1))), dtype=i64)
            row_size = nest.let(add(down.begin, each))
            start = nest.let(add(scale(add(scale(self.number, height), row_size), width), columns_in.begin, first))
            here = Panels(self.panel, None, 0, self.columns.width, self.conv.channels, form.total, self.columns)
            multiply(nest, self.expansion.dot, tile, (Number(0), start, used), here, ROWS, form)
            with nest.loop(used, "ordered") as row:
                at = nest.let(add(first, row))
                y = nest.let(add(row_size, Quotient(at, width)))
                x = nest.let(add(columns_in.begin, Remainder(at, width)))
                pixel = scale(add(scale(down.position(y), self.conv.columns_in), columns_in.position(x)), pitch)
                with nest.loop(self.columns.used, "lane") as j:
                    nest.values[self.expansion.dot.result] = nest.read(tile, add(scale(row, panel), j), form.total)
                    element = nest.pull(self.expansion.last, (self.number, y, x, add(self.columns.first, j)))
                    del nest.values[self.expansion.dot.result]
                    nest.write(self.expanded, add(pixel, j), element)
