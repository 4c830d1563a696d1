"""`reduce_window` on a GPU. Cumulative sums, maxima and the like: blocks scan chunks of a row (`scan_simt`). Large
windows, as of global pooling: a warp reduces each.

Registered in `sinks.SIMT_SINKS`; `window.py` has short rows and small windows.
"""

from __future__ import annotations

from math import prod

from smelt.ir.core import Op
from smelt.kernel.build import window as any_window
from smelt.kernel.build.reduce import body_function
from smelt.kernel.build.scan_simt import SHORT, Row, Scan, scan_rows
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.build.window import Window, accumulator_type, find_scan_axis, window_items, window_places
from smelt.kernel.loops.grammar import Expr, add, scale
from smelt.kernel.loops.nest import Nest, reshape_index, tensor

LARGE = 256  # elements of a window that are worth a warp


@simt_sink("stablehlo.reduce_window")
def reduce_window(nest: Nest, op: Op, output: Output) -> None:
    window = Window.of(op)
    axis = find_scan_axis(op, window)
    function = body_function(op.regions[0]) if len(op.results) == 1 else None
    if axis is not None and window.sizes[axis] > SHORT:
        _scan_window(nest, op, output, window, axis)
    elif axis is None and function is not None and prod(window.sizes) >= LARGE:
        _reduce_large(nest, op, output, window, function)
    else:
        any_window.reduce_window(nest, op, output)


def _reduce_large(nest: Nest, op: Op, output: Output, window: Window, function: str) -> None:
    dtype, count = tensor(op.result).element, prod(window.sizes)
    kind = accumulator_type(function, dtype, count)
    with nest.loops(tensor(op.result).sizes) as position:

        def term(i: Expr) -> Expr:
            inner = reshape_index(nest, (i,), (count,), window.sizes)
            places, fits = window_places(nest, op, window, position, inner, False)
            (item,) = window_items(nest, op, places, fits)
            return nest.convert(item, kind)

        start = nest.convert(nest.convert(nest.pull(op.operands[1], ()), dtype), kind)
        total = nest.fold(function, start, count, term)
        output.finish(nest, op, position, nest.convert(total, dtype))


def _scan_window(nest: Nest, op: Op, output: Output, window: Window, axis: int) -> None:
    sizes, dtype, length = tensor(op.result).sizes, tensor(op.result).element, window.sizes[axis]
    function, forward = body_function(op.regions[0]), window.padding[axis][0] > 0
    assert function is not None
    kind = accumulator_type(function, dtype, length)

    def index_of(row: Row, i: Expr) -> tuple[Expr, ...]:
        at = i if forward else add(scale(i, -1), length - 1)
        return (*row[:axis], at, *row[axis:])

    def item(row: Row, i: Expr) -> Expr:
        return nest.convert(nest.pull(op.operands[0], index_of(row, i)), kind)

    def finish(row: Row, i: Expr, carry: Expr) -> None:
        output.finish(nest, op, index_of(row, i), nest.convert(carry, dtype))

    rows = Scan(
        function,
        kind,
        tuple(size for d, size in enumerate(sizes) if d != axis),
        length,
        lambda _: nest.convert(nest.pull(op.operands[1], ()), kind),
        item,
        finish,
        lambda _row, _carry: None,
        after=True,
    )
    scan_rows(nest, rows)
