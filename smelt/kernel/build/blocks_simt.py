"""GEMM by block-quantised weights on a GPU: a thread block computes 32 columns of a chunk of rows, over all of k.

Chunks have different sizes for one row (decoding), up to 8, up to 32, and more; if the number of rows is dynamic, all
of these kernels are built, and each call selects one. The micro-kernel is `emit/blocks_cuda.py`; where there are tiles
of 128 rows by 128 columns for most multiprocessors, it is `emit/blocks_tile_cuda.py`.

`smelt.round_blocks` computes every element of its operand once: a warp rounds a run of 32. Where they depend on a
reduction of their row (a norm), a thread block takes the row, so that both are one launch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import f32, i8, i32, i64
from smelt.ir.block_layout import COLUMNS
from smelt.ir.blocks import RUN
from smelt.ir.core import Op, Value
from smelt.ir.ops.packed_blocks import LEAST, MOST
from smelt.kernel.build.attention_flash import inside
from smelt.kernel.build.blocks import row_slices
from smelt.kernel.build.gemm import axis_stride, element_place
from smelt.kernel.build.gemm_simt import Tiled, at_most
from smelt.kernel.build.pairs import half
from smelt.kernel.build.round_simt import TOGETHER, Rows, elements_of_warp, round_tile
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.grammar import (
    Amount,
    Bitcast,
    BlockMma,
    Expr,
    Fold,
    Number,
    Place,
    RoundRow,
    Slice,
    Stmt,
    add,
    scale,
)
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.kernel.loops.simt import MULTIPROCESSORS
from smelt.kernel.loops.tensor_tile import (
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    BLOCK_TILE,
    can_stage_rows,
    choose_single,
    choose_stream,
    tile_ahead,
)
from smelt.target import WARPGROUPS

# Shares of K, and the blocks up to which there are more of them: a multiprocessor needs many warps to hide its waits.
SHARES, MANY_SHARES, FEW_BLOCKS = 8, 16, MULTIPROCESSORS
ENOUGH = MULTIPROCESSORS * 3 // 4  # large tiles that are better than more and smaller ones


@simt_sink("smelt.round_blocks")
def round_blocks(nest: Nest, op: Op, output: Output) -> None:
    (x,) = op.operands
    groups, rows, depth = tensor(x).sizes
    if isinstance(depth, int) and _depends_on_reduction(nest, x):
        _round_rows(nest, op, output, depth)
        return
    integers = output.targets[0]
    with nest.loops((groups, rows, ceildiv(depth, RUN))) as (g, row, run):
        held, first = nest.tile("run", f32, RUN), scale(run, RUN)
        with nest.loop(RUN, "lane") as at:
            nest.write(held, at, nest.pull(x, (g, row, add(first, at))))

        def element(at: Expr) -> Expr:
            return nest.read(held, at, f32)

        factor = _round_run(nest, op, output, element, (g, row, run))
        with nest.loop(RUN, "lane") as at:
            place = flat((g, row, add(first, at)), (groups, rows, depth))
            nest.store(integers, place, nest.convert(_integer(nest, element(at), factor), i8))


def _round_rows(nest: Nest, op: Op, output: Output, depth: int) -> None:
    """A block rounds a row: threads compute its elements, then eight of them have a run."""
    (x,) = op.operands
    groups, rows, _ = tensor(x).sizes
    group, zero = op.attrs["group"], op.attrs["zero"]
    with nest.loops((groups, rows)) as (g, row):
        held = nest.tile("row", f32, depth)
        with nest.loop(depth, "lane") as at:
            nest.write(held, at, nest.pull(x, (g, row, at)))
        counts = depth, depth // RUN, depth // group
        first = (flat((g, row, Number(0)), (groups, rows, count)) for count in counts)
        q, scales, totals = (Place(nest.buffer(each), at) for each, at in zip(output.targets, first, strict=True))
        nest.emit(RoundRow(q, scales, totals, Place(held, Number(0)), depth // RUN, group, zero))


def _depends_on_reduction(nest: Nest, value: Value) -> bool:
    """Whether a value that has no buffer is computed from a reduction that has none."""
    stack, seen = [value], set[Value]()
    while stack:
        each = stack.pop()
        if each.op is None or each in nest.stored or each in seen:
            continue
        if each.op.name == "stablehlo.reduce":
            return True
        seen.add(each)
        stack += each.op.operands
    return False


def _round_run(nest: Nest, op: Op, output: Output, element: Callable[[Expr], Expr], index: Index) -> Expr:
    """Store the scale of a run of 32 elements, and the sums of its groups; what its elements are multiplied by."""
    _, scales, totals = output.targets
    group, zero = op.attrs["group"], op.attrs["zero"]
    groups, rows, depth = tensor(op.operands[0]).sizes
    *row, run = index
    # Positive floats are ordered as integers are, and the largest integer needs no order.
    bits = _fold_here(nest, "maximum", RUN, lambda at: nest.let(Bitcast(nest.apply("abs", element(at)), i32)))
    step = nest.apply("divide", nest.let(Bitcast(bits, f32)), Number(float(MOST), f32))
    small = nest.less(step, Number(float(LEAST), f32))
    inverse = nest.apply("divide", Number(1.0, f32), step)
    factor = nest.apply("select", small, Number(0.0, f32), inverse, dtype=f32)
    nest.store(scales, flat(index, (groups, rows, ceildiv(depth, RUN))), step)

    def term(first: int, at: Expr) -> Expr:
        return _integer(nest, element(add(at, first)), factor)

    for part in range(RUN // group):
        total = _fold_here(nest, "add", group, partial(term, part * group))
        if zero:
            total = nest.apply("multiply", total, Number(-zero, i32))
        else:
            total = nest.apply("multiply", step, nest.convert(total, f32))
        here = (*row, add(scale(run, RUN // group), part))
        nest.store(totals, flat(here, (groups, rows, ceildiv(depth, group))), total)
    return factor


def _integer(nest: Nest, element: Expr, factor: Expr) -> Expr:
    return nest.convert(nest.apply("round_nearest_even", nest.apply("multiply", element, factor)), i32)


def _fold_here(nest: Nest, function: str, count: int, term: Callable[[Expr], Expr]) -> Expr:
    """The sum or the largest of integers that depend on a tile: in this scope, after the tile is written."""
    with nest.inner() as scope:
        at = nest.var(i64, count, "at")
        nest.places[at] = scope
        value = term(at)
    total = nest.var(i32, stem="total")
    nest.emit(Fold(at, Amount(count), tuple(scope.statements), value, total, function, Number(0, i32)))
    nest.places[total] = nest.scope
    return total


@simt_sink("smelt.packed_block_dot")
def packed_block_dot(nest: Nest, op: Op, output: Output) -> None:
    rows = tensor(op.operands[0]).sizes[1]
    few, some, _ = BLOCK_ROWS
    ahead, many = _choose_tiles(nest, op, some)
    above = [minimum(floordiv(rows, most + 1), 1) for most in (1, few, some, *([many] if ahead else []))]
    sizes = [low - high for low, high in zip([1, *above], [*above, 0], strict=True)]
    factors = _keep_factors(nest, op, above[0]) if len(op.operands) > 4 and above[0] != 0 else -1
    several: Size = 1  # where the sums of pairs are kept
    product = output
    if output.pair:
        if sizes[0] != 0 and _find_single(nest, op):
            _chunks(nest, op, output, 1, sizes[0])
            several, sizes[0] = above[0], 0
        product = Output((nest.scratch(tensor(op.result)),)) if several != 0 else output
    for most, here in zip((1, *BLOCK_ROWS, BLOCK_TILE), sizes, strict=False):
        if here != 0:
            _chunks(nest, op, product, most, here, ahead if most == BLOCK_TILE else 0, factors)
    if output.pair and several != 0:
        _finish_pairs(nest, op, output, product.targets[0], several)


def _finish_pairs(nest: Nest, op: Op, output: Output, kept: int, here: Size) -> None:
    """The epilogue of pairs whose sums are in a buffer, in a launch of its own."""
    groups, rows, columns = sizes = tensor(op.result).sizes
    part = half(columns)
    with nest.loops((groups * here, rows, ceildiv(part, TOGETHER))) as (group, row, number):
        first = nest.let(scale(number, TOGETHER))
        there = at_most(nest, TOGETHER, part, first)
        held = nest.tile("run", f32, TOGETHER) if output.roundings else ""
        with elements_of_warp(nest, there) as at:
            places = (flat((group, row, add(first, at, before)), sizes) for before in (0, part))
            sums = [nest.read(nest.buffer(kept), place, f32) for place in places]
            found = output.finish(nest, op, (group, row, add(first, at)), *sums)
            if found is not None:
                nest.write(held, at, found)
        if output.roundings:
            start = flat((group, row, first), (groups, rows, part))
            round_tile(nest, output, Rows(held, Number(1), 1, TOGETHER, there), start, TOGETHER)


def _keep_factors(nest: Nest, op: Op, here: Size) -> int:
    """A buffer with the factors of several rows. That of a single one is computed beside its product."""
    factor = op.operands[4]
    groups, rows = sizes = tensor(factor).sizes
    kept = nest.scratch(tensor(factor))
    with nest.loops((groups * here, rows)) as index:
        nest.store(kept, flat(index, sizes), nest.pull(factor, index))
    return kept


def _choose_tiles(nest: Nest, op: Op, least: int) -> tuple[int, int]:
    """(Chunks of K in shared memory for large tiles, or 0; the rows, at least `least`, above which most multiprocessors
    have such a tile)."""
    panels = tensor(op.operands[3]).sizes
    groups, _, columns = tensor(op.result).sizes
    tiles = groups * ceildiv(columns, BLOCK_TILE)
    if not isinstance(tiles, int) or tiles < 1:
        return 0, 0
    rows = (-(-ENOUGH // tiles) - 1) * BLOCK_TILE
    return tile_ahead(op.attrs["format"], panels[2], nest.target.cache_bytes[0]), max(rows, least)


def _chunks(nest: Nest, op: Op, output: Output, most: int, here: Size, ahead: int = 0, factors: int = -1) -> None:
    """Chunks of at most this number of rows. `here`: 1 where there are as many, else 0. `ahead`: of a large tile.
    `factors`: the buffer of those of several rows."""
    *left, panels = op.operands[:4]
    groups, rows, _ = tensor(left[0]).sizes
    most = min(most, rows) if isinstance(rows, int) and rows else most
    held, _, blocks, size = tensor(panels).sizes
    columns = tensor(op.result).sizes[2]
    parts = len(output.pair) or 1
    wide = BLOCK_TILE if ahead else BLOCK_COLUMNS * parts
    shares, count = _count_shares(op)
    streams = WARPGROUPS in nest.target.features and most <= BLOCK_ROWS[0]
    format = op.attrs["format"]
    stream = choose_stream(format, most, shares, count, blocks) if streams else (0, 0)
    single = _find_single(nest, op) if most == 1 else 0
    if single:
        stream = (1, single)
    if BLOCK_ROWS[0] < most <= BLOCK_ROWS[1] and can_stage_rows(format, blocks, nest.target.cache_bytes[0]):
        stream = (BLOCK_ROWS[1], 0)
    chunks, several = ceildiv(rows, most), most >= BLOCK_ROWS[-1] or isinstance(rows, int)
    if not several:  # `here` says so: no thread divides by their number
        here, chunks = here * minimum(rows, 1), 1
    with nest.loops((groups * here, ceildiv(columns, wide), chunks)) as (group, number, chunk):
        first, before = nest.let(scale(chunk, most)), nest.let(scale(number, wide))
        used = Number(1) if most == 1 else at_most(nest, most, rows, first)
        there = at_most(nest, wide, columns, before)
        name, between = nest.tile("tile", f32, most * wide), BLOCK_COLUMNS if output.pair else 0
        tile = Tiled(name, wide, wide, used, before, there, apart=between)
        q, scales, totals = (row_slices(nest, op, each, (group, first), used) for each in left)
        panel = nest.let(scale(number, wide // parts // COLUMNS))
        place = element_place(nest, op, panels, (Number(0) if held == 1 else group, panel, Number(0), Number(0)))
        strides = (Amount(size), Number(1), axis_stride(nest, op, panels, 1))
        records = Slice(place, (Amount(blocks), Amount(size), Number(1)), strides)
        aside: tuple[Stmt, ...] = ()
        if len(op.operands) > 4:
            tile, aside = _multiply_rows(nest, op, tile, (group, first), factors if most > 1 else -1)
        apart = scale(axis_stride(nest, op, panels, 1), half(columns) // COLUMNS) if output.pair else None
        sizes = format, most, shares, count, *stream, ahead
        nest.emit(BlockMma(tile.sums, q, scales, totals, records, *sizes, aside, apart, single > 0))
        tile.store(nest, op, output, f32, lambda row, column: (group, add(first, row), column))
        if output.roundings:
            part = half(columns) if output.pair else columns
            start = flat((group, first, tile.first_of(output)), (groups, rows, part))
            there = Number(BLOCK_COLUMNS) if output.pair else there
            round_tile(nest, output, Rows(tile.name, used, most, wide // parts, there), start, part)


def _count_shares(op: Op) -> tuple[int, int]:
    """(Shares of K, tiles of a chunk of rows; 0: their number is not known). Not those of a pair: bits depend on
    shares."""
    groups, _, columns = tensor(op.result).sizes
    tiles = groups * ceildiv(columns, BLOCK_COLUMNS)
    count = tiles if isinstance(tiles, int) else 0
    return MANY_SHARES if 0 < count <= FEW_BLOCKS else SHARES, count


def _find_single(nest: Nest, op: Op) -> int:
    """Chunks of each share in shared memory for a single row whose warps have roles; 0: it has another kernel."""
    if WARPGROUPS not in nest.target.features or tensor(op.result).sizes[0] != 1:
        return 0
    return choose_single(op.attrs["format"], *_count_shares(op), tensor(op.operands[3]).sizes[2])


def _multiply_rows(nest: Nest, op: Op, tile: Tiled, start: Index, factors: int) -> tuple[Tiled, tuple[Stmt, ...]]:
    """The tile with the factors of its rows, from `start` on, and what a warp computes for a single one, which has no
    buffer of `factors`."""
    factor, (group, first) = op.operands[4], start
    if factors >= 0:
        sizes = tensor(factor).sizes

        def load(row: Expr) -> Expr:
            return nest.read(nest.buffer(factors), flat((group, add(first, row)), sizes), f32)

        return replace(tile, factor=load), ()
    held = nest.tile("factor", f32, 1)
    with inside(nest) as scope:
        nest.write(held, Number(0), nest.pull(factor, start))
    return replace(tile, factor=lambda _: nest.read(held, Number(0), f32)), tuple(scope.statements)
