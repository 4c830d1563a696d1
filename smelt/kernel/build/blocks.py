"""Products by block-quantised weights: `smelt.round_blocks` rounds rows to 8 bits, `smelt.packed_block_dot` multiplies.

`ir.block_ops` says what the numbers are, `ir.block_layout` the layout of the weights in memory; the micro-kernel is
`emit/tile_blocks.py`. One loop nest serves GEMV and GEMM: panels × chunks of rows, each over all of k.
"""

from __future__ import annotations

from smelt.dim import Size, ceildiv
from smelt.dtype import f32, i1, i8, i32, i64
from smelt.ir.block_layout import COLUMNS
from smelt.ir.blocks import RUN
from smelt.ir.core import Op, Value
from smelt.ir.ops.packed_blocks import LEAST, MOST
from smelt.kernel.build.gemm import Columns, chunk_bounds, count_chunks, element_place, memory_layout
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Amount, Bitcast, BlockMma, Expr, Fold, Number, Place, Slice, add, scale
from smelt.kernel.loops.nest import Nest, flat, tensor, unsupported

ROWS, FEWEST = 96, 8  # rows of a chunk: at most, and least where few panels would leave cores idle
CACHED = 256 << 10  # bytes of a chunk's rows, which stay in L2


@sink("smelt.round_blocks")
def round_blocks(nest: Nest, op: Op, output: Output) -> None:
    """Runs of 32 elements: the largest one, then integers and their sums from a local array."""
    (x,), (integers, scales, totals) = op.operands, output.targets
    group, zero = op.attrs["group"], op.attrs["zero"]
    groups, rows, depth = tensor(x).sizes
    runs = ceildiv(depth, RUN)
    with nest.loops((groups, rows, runs)) as (g, row, run):
        first = scale(run, RUN)

        def element(at: Expr) -> Expr:
            return nest.pull(x, (g, row, add(first, at)))

        # Positive floats are ordered as integers are, and the largest integer needs no order: this one vectorises.
        peak_bits = nest.fold(
            "maximum", Number(0, i32), RUN, lambda at: nest.let(Bitcast(nest.apply("abs", element(at)), i32))
        )
        peak = nest.let(Bitcast(peak_bits, f32))
        step = nest.apply("divide", peak, Number(float(MOST), f32))
        small = nest.less(step, Number(float(LEAST), f32))
        inverse = nest.apply("divide", Number(1.0, f32), step)
        factor = nest.apply("select", small, Number(0.0, f32), inverse, dtype=f32)
        nest.store(scales, flat((g, row, run), (groups, rows, runs)), step)
        held = nest.tile("held", i32, RUN)
        with nest.loop(RUN, "lane") as at:
            # It is at most 127, or NaN, which counts 0: if an element is not finite, the largest one is not either.
            scaled = nest.apply("multiply", element(at), factor)
            is_number = nest.apply("EQ", scaled, scaled, dtype=i1)
            nearest = nest.apply("nearest", scaled, dtype=i32)
            nest.write(held, at, nest.apply("select", is_number, nearest, Number(0, i32), dtype=i32))
        with nest.loop(RUN, "lane") as at:
            value = nest.read(held, at, i32)
            place = flat((g, row, add(first, at)), (groups, rows, depth))
            nest.store(integers, place, nest.convert(value, i8))
        for part in range(RUN // group):
            total = _sum_tile(nest, held, part * group, group)
            if zero:
                total = nest.apply("multiply", total, Number(-zero, i32))
            else:
                total = nest.apply("multiply", step, nest.convert(total, f32))
            here = (g, row, add(scale(run, RUN // group), part))
            nest.store(totals, flat(here, (groups, rows, ceildiv(depth, group))), total)


def _sum_tile(nest: Nest, array: str, first: int, count: int) -> Expr:
    """The sum of elements of a tile, in this scope."""
    with nest.inner() as scope:
        at = nest.var(i64, count, "at")
        nest.places[at] = scope
        term = nest.read(array, add(at, first), i32)
    total = nest.var(i32, stem="total")
    nest.emit(Fold(at, Amount(count), tuple(scope.statements), term, total, "add", Number(0, i32)))
    nest.places[total] = nest.scope
    return total


@sink("smelt.packed_block_dot", anchor=True, addressed=(0, 1, 2, 3), in_runs=(0, 1, 2, 3))
def packed_block_dot(nest: Nest, op: Op, output: Output) -> None:
    if len(op.operands) > 4:
        raise unsupported(op, "with factors of rows")
    groups, rows, depth = tensor(op.operands[0]).sizes
    held, count, *_ = tensor(op.operands[3]).sizes
    most = chunk_rows(rows, depth)
    chunks = count_chunks(rows, most, FEWEST, groups * count)
    with nest.loops((groups, chunks, count)) as (group, chunk, panel):
        first, used = chunk_bounds(nest, chunk, rows, chunks)
        tile = nest.tile("tile", f32, most * COLUMNS)
        columns = Columns.of(nest, panel, COLUMNS, tensor(op.result).sizes[2])
        matrix = Number(0) if held == 1 else group
        multiply_blocks(nest, op, tile, (group, first, used), (matrix, panel), columns)
        columns.store_rows(nest, op, output, tile, (group, first), used)


def multiply_blocks(
    nest: Nest, op: Op, tile: str, rows: tuple[Expr, Expr, Expr], panel: tuple[Expr, Expr], columns: Columns
) -> None:
    """Rows (group, first, count) × one panel (matrix, number), over all of k, into a local tile."""
    (group, first, used), (*left, panels) = rows, op.operands[:4]
    *_, blocks, size = tensor(panels).sizes
    q, scales, totals = (row_slices(nest, op, each, (group, first), used) for each in left)
    place = element_place(nest, op, panels, (*panel, Number(0), Number(0)))
    records = Slice(place, (Amount(blocks), Amount(size)), (Amount(size), Number(1)))
    nest.emit(BlockMma(columns.sums(tile, Number(0), used), q, scales, totals, records, op.attrs["format"]))


def chunk_rows(rows: Size, depth: Size) -> int:
    """Rows of the largest chunk: they stay in L2 while all panels are multiplied with them."""
    assert isinstance(depth, int)
    most = min(ROWS, max(FEWEST, CACHED // max(depth, 1) // FEWEST * FEWEST))
    return max(1, min(rows, most)) if isinstance(rows, int) else most


def row_slices(nest: Nest, op: Op, value: Value, index: tuple[Expr, Expr], rows: Expr) -> Slice:
    """Rows of a value [group, row, …] from an index on."""
    buffer, start, (group, row, _) = memory_layout(nest, op, value)
    place = Place(buffer, add(scale(index[0], group), scale(index[1], row), start))
    return Slice(place, (rows, Amount(tensor(value).sizes[2])), (Amount(row), Number(1)))
