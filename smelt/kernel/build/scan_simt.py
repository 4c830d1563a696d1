"""Long scans on a GPU: a block scans a chunk of a row, in three launches.

The first one reduces parts of rows, the second one scans these totals, the third one scans each chunk from the total of
what is before it. For that the carry must be a sum, a product, a maximum, a minimum, or the like, of the elements so
far; `scan.py` has the others, and short rows. Sums of floats are those of parts. `window_simt` calls `scan_rows`, too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dim import Size, ceildiv
from smelt.dtype import DType, i1, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.ir.ops.reduce import scan_counts
from smelt.kernel.build.reduce import PART, loops_as_one, reduce_parts
from smelt.kernel.build.scan import scan as serial_scan
from smelt.kernel.build.scan import step_through
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Amount, Expr, Number, Quotient, Remainder, Set, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor
from smelt.passes.lower import running_reduction
from smelt.shape import Shape

SHORT = 512  # elements of a row that one thread scans
SLICES, GROUPS = 256, 16  # slices of a chunk, one for each thread; groups of slices
CHUNK, TOTALS = 2 * PART, 4 * PART  # elements of a chunk; totals that a block scans at a time

Row = Sequence[Expr]  # the index of a row: all axes but the one along it


class Scan(Frozen):
    """Rows at an index of the axes of sizes `around`. `init(row)`: the carry before the first element of a row;
    `item(row, i)`: what element i changes it by; `finish(row, i, carry)`: what to do with the carry before element
    i, or, with `after`, behind it; `end(row, carry)`: with the last one."""

    function: str
    kind: DType
    around: tuple[Size, ...]
    length: Size
    init: Callable[[Row], Expr]
    item: Callable[[Row, Expr], Expr]
    finish: Callable[[Row, Expr, Expr], None]
    end: Callable[[Row, Expr], None]
    after: bool = False


def scan_rows(nest: Nest, rows: Scan) -> None:
    around, length, kind = rows.around, rows.length, rows.kind
    if isinstance(length, int) and length <= CHUNK:
        with nest.loops(around) as row:
            rows.end(row, _scan_chunk(nest, rows, row, nest.keep(rows.init(row)), Number(0), length, CHUNK))
        return
    totals, parts = reduce_parts(nest, rows.function, kind, around, length, rows.item)
    starts = nest.scratch(Shape.of(kind, (*around, parts)))

    def total(row: Row, i: Expr) -> Expr:
        return nest.read(nest.buffer(totals), flat((*row, i), (*around, parts)), kind)

    def start(row: Row, i: Expr, carry: Expr) -> None:
        nest.store(starts, flat((*row, i), (*around, parts)), carry)

    sums = rows.replace(item=total, finish=start, after=False)
    with nest.loops(around) as row:
        carry = nest.declare(kind, rows.init(row))
        with nest.loop(ceildiv(parts, TOTALS), "ordered") as number:
            first = nest.let(scale(number, TOTALS))
            left = nest.let(add(parts, scale(first, -1)))
            nest.emit(Set(carry, _scan_chunk(nest, sums, row, nest.keep(carry), first, left, TOTALS)))
        rows.end(row, nest.keep(carry))
    with loops_as_one(nest, (*around, ceildiv(length, CHUNK))) as (*place, chunk):
        first = nest.let(scale(chunk, CHUNK))
        left = nest.let(add(length, scale(first, -1)))
        before = flat((*place, nest.let(scale(chunk, CHUNK // PART))), (*around, parts))
        _scan_chunk(nest, rows, place, nest.read(nest.buffer(starts), before, kind), first, left, CHUNK)


def _scan_chunk(nest: Nest, rows: Scan, row: Row, carry: Expr, first: Expr, left: Size | Expr, most: int) -> Expr:
    """Scan the elements from the first one on, at most as many as are left; the carry after them.

    A thread scans a slice, a group of slices has one that scans their totals, and the elements come last.
    """
    kind, each = rows.kind, most // SLICES
    nothing = identity(rows.function, kind)
    slots, slices = nest.tile("slots", kind, SLICES * (each + 1)), nest.tile("slices", kind, SLICES)
    groups, before = nest.tile("groups", kind, GROUPS), nest.tile("before", kind, GROUPS)
    amount = Number(left) if isinstance(left, int) else left if isinstance(left, Expr) else Amount(left)
    count = nest.apply("minimum", Number(most), amount, dtype=i64)

    def combine(one: Expr, other: Expr) -> Expr:
        return nest.apply(rows.function, one, other, dtype=kind)

    def slot(i: Expr) -> Expr:
        """The place of an element. A slice has one more, so that threads read from different banks."""
        return nest.let(add(scale(nest.let(Quotient(i, each), SLICES), each + 1), nest.let(Remainder(i, each), each)))

    def scan_tile(tile: str, begin: Expr, extent: int, after: bool = False) -> Expr:
        """Replace elements of a tile by the totals before them, or behind them; the total of all."""
        total = nest.declare(kind, nothing)
        with nest.loop(extent, "ordered") as i:
            place = nest.let(add(begin, i))
            old, item = nest.keep(total), nest.read(tile, place, kind)
            new = combine(old, item)
            nest.write(tile, place, new if after else old)
            nest.emit(Set(total, new))
        return nest.keep(total)

    with nest.loop(SLICES, "lane") as lane:  # all elements are read before one is stored
        places = [nest.let(add(lane, SLICES * k), most) for k in range(each)]
        last = nest.let(add(count, -1))
        items = [rows.item(row, nest.let(add(first, nest.apply("minimum", i, last, dtype=i64)))) for i in places]
        for i, item in zip(places, items, strict=True):
            there = nest.apply("LT", i, count, dtype=i1)
            nest.write(slots, slot(i), nest.apply("select", there, item, nothing, dtype=kind))
    with nest.loop(SLICES, "lane") as lane:
        nest.write(slices, lane, scan_tile(slots, nest.let(scale(lane, each + 1)), each, rows.after))
    with nest.loop(GROUPS, "lane") as lane:
        nest.write(groups, lane, scan_tile(slices, nest.let(scale(lane, SLICES // GROUPS)), SLICES // GROUPS))
    with nest.loop(GROUPS, "lane") as lane:
        total = nest.declare(kind, carry)
        with nest.loop(lane, "ordered") as i:
            nest.emit(Set(total, combine(nest.keep(total), nest.read(groups, i, kind))))
        nest.write(before, lane, nest.keep(total))
    with nest.loop(count, "lane", most=most) as i:
        slice = nest.let(Quotient(i, each), SLICES)
        group = nest.let(Quotient(slice, SLICES // GROUPS), GROUPS)
        start = combine(nest.read(before, group, kind), nest.read(slices, slice, kind))
        rows.finish(row, nest.let(add(first, i)), combine(start, nest.read(slots, slot(i), kind)))
    last_group = Number(GROUPS - 1)
    return nest.keep(combine(nest.read(before, last_group, kind), nest.read(groups, last_group, kind)))


@simt_sink("chlo.scan")
def scan(nest: Nest, op: Op, output: Output) -> None:
    dimension, sizes = op.attrs["dimension"], tensor(op.operands[0]).sizes
    length, around = sizes[dimension], tuple(size for d, size in enumerate(sizes) if d != dimension)
    found = running_reduction(op)
    if found is None or (isinstance(length, int) and length <= SHORT):
        serial_scan(nest, op, output)
        return
    function, which = found
    init = op.operands[scan_counts(op)[0]]
    kind = tensor(init).element

    def index_of(row: Row, i: Expr) -> tuple[Expr, ...]:
        at: Expr = add(scale(i, -1), length - 1) if op.attrs["is_reverse"] else i
        return (*row[:dimension], at, *row[dimension:])

    def finish(row: Row, i: Expr, carry: Expr) -> None:
        step_through(nest, op, output, index_of(row, i), [nest.declare(kind, carry)])

    rows = Scan(
        function,
        kind,
        around,
        length,
        lambda row: nest.pull(init, tuple(row)),
        lambda row, i: nest.pull(op.operands[which], index_of(row, i)),
        finish,
        lambda row, carry: nest.store(output.targets[-1], flat(tuple(row), around), carry),
    )
    scan_rows(nest, rows)
