"""Grouped GEMM on a GPU (mixtures of experts): a thread block multiplies some rows of one group by a few columns.

There is a block for every tile of rows that groups could need. Each finds its group in the sizes, which launches in
front compute; one that no group needs multiplies nothing. Rows behind the last group are a group without products.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dim import Size, ceildiv, floordiv, minimum
from smelt.dtype import bf16, f32, i1, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.kernel.build.blocks import row_slices
from smelt.kernel.build.blocks_simt import SHARES
from smelt.kernel.build.gemm import Columns, axis_stride, element_place, panel_slice, row_slice
from smelt.kernel.build.gemm_simt import Tiled, at_most
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.form import FEW_BF16, FEW_F32_BF16, GROUPED_BF16, GROUPED_F32_BF16, Form
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    BlockMma,
    Expr,
    Fold,
    Mma,
    Number,
    Place,
    Quotient,
    Remainder,
    Set,
    Slice,
    Var,
    add,
    scale,
    split,
)
from smelt.kernel.loops.nest import Nest, tensor
from smelt.kernel.loops.tensor_tile import (
    BLOCK_COLUMNS,
    BLOCK_ROWS,
    FEW_ROWS,
    STREAM_COLUMNS,
    STREAM_PITCH,
    STREAM_SIZES,
)
from smelt.target import WARPGROUPS

FEW, FEW_EACH = 64, 4  # rows of all groups, or of each on average, of which a group has few
WIDE = 16  # columns of a block whose threads read the weights themselves
# Groups whose sizes a block adds up in shared memory, in chunks; from the least number on lanes share a reduction.
MOST_GROUPS, LEAST_GROUPS, CHUNK = 1024, 96, 16


@simt_sink("smelt.grouped_dot")
def grouped_dot(nest: Nest, op: Op, output: Output) -> None:
    """Where the copy engine can bring weights, it does."""
    lhs, panels, _ = op.operands
    is_narrow, line = tensor(lhs).element == bf16, tensor(panels).sizes[3]
    if WARPGROUPS in nest.target.features and line == STREAM_COLUMNS * GROUPED_BF16.k_pack:
        _stream(nest, op, output, GROUPED_BF16 if is_narrow else GROUPED_F32_BF16)
    else:
        _multiply(nest, op, output, FEW_BF16 if is_narrow else FEW_F32_BF16)


def _stream(nest: Nest, op: Op, output: Output, form: Form) -> None:
    lhs, _, sizes = op.operands
    (_, rows, depth), columns = tensor(lhs).sizes, tensor(op.result).sizes[2]
    most, wide = STREAM_SIZES[-1] if form is GROUPED_BF16 else STREAM_SIZES[-2], STREAM_COLUMNS
    with nest.loops((most_tiles(sizes, rows, most), ceildiv(columns, wide))) as (tile_number, panel):
        part = GroupPart.of(nest, sizes, rows, most, depth, tile_number)
        before = nest.let(scale(panel, wide))
        there = at_most(nest, wide, columns, before)
        sums = nest.tile("few", f32, most * STREAM_PITCH)
        tile = Tiled(sums, wide, STREAM_PITCH, part.rows, before, there, most)
        a = row_slice(nest, op, lhs, (Number(0), part.first, Number(0)), (part.rows, part.depth))
        b = panel_slice(nest, op, (part.group, panel, Number(0)), part.depth, Columns(before, wide, there, f32))
        nest.emit(Mma(tile.sums, a, b, form))
        tile.store_vectors(nest, op, output, columns, lambda row, column: (Number(0), add(part.first, row), column))


def _multiply(nest: Nest, op: Op, output: Output, form: Form) -> None:
    lhs, panels, sizes = op.operands
    (_, rows, depth), line = tensor(lhs).sizes, tensor(panels).sizes[3]
    assert isinstance(line, int)
    columns, width, wide = tensor(op.result).sizes[2], line // form.k_pack, WIDE
    with nest.loops((most_tiles(sizes, rows, FEW_ROWS), ceildiv(columns, wide))) as (tile_number, number):
        part = GroupPart.of(nest, sizes, rows, FEW_ROWS, depth, tile_number)
        panel, share = (nest.let(each) for each in split(number, width // wide))
        before = nest.let(scale(number, wide))
        there = at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("few", f32, FEW_ROWS * wide), wide, wide, part.rows, before, there)
        a = row_slice(nest, op, lhs, (Number(0), part.first, Number(0)), (part.rows, part.depth))
        b = panel_slice(nest, op, (part.group, panel, Number(0)), part.depth, Columns(before, width, there, f32))
        inside = add(b.place.index, scale(share, wide * form.k_pack))
        nest.emit(Mma(tile.sums, a, Slice(Place(b.place.array, inside), b.sizes, b.strides), form))
        tile.store(nest, op, output, f32, lambda row, column: (Number(0), add(part.first, row), column))


@simt_sink("smelt.grouped_block_dot")
def grouped_block_dot(nest: Nest, op: Op, output: Output) -> None:
    rows, groups = tensor(op.operands[0]).sizes[1], tensor(op.operands[-1]).sizes[0]
    least = max(FEW, FEW_EACH * groups) if isinstance(groups, int) else FEW
    several = minimum(floordiv(rows, least + 1), 1)
    few, some, _ = BLOCK_ROWS
    for most, here in ((few, 1 - several), (some, several)):
        if here != 0:
            _multiply_blocks(nest, op, output, most, here)


def _multiply_blocks(nest: Nest, op: Op, output: Output, most: int, here: Size) -> None:
    """Tiles of at most this number of rows. `here`: 1 where there are as many rows, else 0."""
    *left, panels, sizes = op.operands
    rows, columns, wide = tensor(left[0]).sizes[1], tensor(op.result).sizes[2], BLOCK_COLUMNS
    _, _, blocks, size = tensor(panels).sizes
    with nest.loops((most_tiles(sizes, rows, most) * here, ceildiv(columns, wide))) as (tile_number, number):
        part = GroupPart.of(nest, sizes, rows, most, blocks, tile_number)
        before = nest.let(scale(number, wide))
        there = at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("tile", f32, most * wide), wide, wide, part.rows, before, there)
        q, scales, totals = (row_slices(nest, op, each, (Number(0), part.first), part.rows) for each in left)
        place = element_place(nest, op, panels, (part.group, nest.let(scale(number, 2)), Number(0), Number(0)))
        strides = (Amount(size), Number(1), axis_stride(nest, op, panels, 1))
        records = Slice(place, (part.depth, Amount(size), Number(1)), strides)
        format = op.attrs["format"]
        nest.emit(BlockMma(tile.sums, q, scales, totals, records, format, most, SHARES, 0, 0, 0))
        tile.store(nest, op, output, f32, lambda row, column: (Number(0), add(part.first, row), column))


def most_tiles(sizes: Value, rows: Size, most: int) -> Size:
    """The tiles of at most `most` rows that groups of these rows can have; those behind the last group are one more."""
    return minimum(rows, floordiv(rows, most) + tensor(sizes).sizes[0] + 1)


class GroupPart(Frozen):
    """A tile of rows: its group, its first row, how many there are, and the K of its products; none for rows behind the
    last group, and where no group needs the tile."""

    group: Expr
    first: Expr
    rows: Expr
    depth: Expr

    @staticmethod
    def of(nest: Nest, sizes: Value, rows: Size, most: int, depth: Size, number: Expr) -> GroupPart:
        """Tile `number` of those of all groups; each has at most `most` rows.

        Where rows are fewer than tiles could be, a tile has the number of its first row, else tile p of group g, which
        begins at row r, has number r // most + g + p. So the ends of groups are enough to find it.
        """
        number, count = nest.keep(number), tensor(sizes).sizes[0]
        by_rows = nest.apply("LE", Amount(rows), Amount(floordiv(rows, most) + count + 1), dtype=i1)

        def choose(here: Expr, to: Expr, other: Expr) -> Expr:
            return nest.apply("select", here, to, other, dtype=i64)

        def is_before(end: Expr, at: Expr) -> Expr:
            """Whether the tiles of group `at`, which ends at row `end`, are in front of this one."""
            after = choose(by_rows, end, nest.let(add(Quotient(end, most), at, 1)))
            return nest.apply("LE", after, number, dtype=i1)

        found = isinstance(count, int) and 0 < count <= MOST_GROUPS
        group, low, high = (_search if found else _search_in_order)(nest, sizes, rows, is_before)
        tiles = nest.let(add(number, scale(nest.let(Quotient(low, most)), -1), scale(group, -1)))
        ahead = choose(by_rows, nest.let(add(number, scale(low, -1))), nest.let(scale(tiles, most)))
        left = nest.apply("clamp", Number(0), nest.let(add(high, scale(add(low, ahead), -1))), Number(most), dtype=i64)
        inside = nest.apply("maximum", Number(0), ahead, dtype=i64)
        begins = nest.apply("EQ", nest.let(Remainder(inside, most)), Number(0), dtype=i1)
        here = nest.both(begins, nest.apply("EQ", inside, ahead, dtype=i1))
        used = choose(here, left, Number(0))
        multiplies = nest.both(nest.less(Number(0), used), nest.less(group, Amount(count)))
        deep = nest.let(scale(choose(multiplies, Number(1), Number(0)), depth))
        return GroupPart(nest.clamp(group, count - 1), nest.let(add(low, ahead)), used, deep)


Test = Callable[[Expr, Expr], Expr]


def _search(nest: Nest, sizes: Value, rows: Size, is_before: Test) -> tuple[Expr, Expr, Expr]:
    """(group, its first row, the row behind it): the threads of a block add up the sizes."""
    count = tensor(sizes).sizes[0]
    assert isinstance(count, int)
    chunks = -(-max(count + 1, LEAST_GROUPS) // CHUNK)
    padded, zero = chunks * CHUNK, Number(0)
    held, sums, ends = (nest.tile("groups", i64, each) for each in (padded, chunks, padded))

    def add_up(tile: str, extent: int, first: Expr, end: Expr, total: Var) -> None:
        """Elements in front of number `end`."""
        with nest.loop(extent, "ordered") as at:
            each = nest.read(tile, add(first, at), i64)
            nest.emit(Set(total, add(total, nest.apply("select", nest.less(at, end), each, zero, dtype=i64))))

    with nest.loop(padded, "lane") as at:
        inside = nest.apply("minimum", at, Number(count - 1), dtype=i64)
        size = nest.convert(nest.pull(sizes, (inside,)), i64)
        nest.write(held, at, nest.apply("select", nest.less(at, Number(count)), size, zero, dtype=i64))
    with nest.loop(chunks, "lane") as chunk:
        total = nest.declare(i64, zero)
        add_up(held, CHUNK, scale(chunk, CHUNK), Number(CHUNK), total)
        nest.write(sums, chunk, total)
    with nest.loop(padded, "lane") as at:
        total = nest.declare(i64, zero)
        own, last = (nest.let(each) for each in split(at, CHUNK))
        add_up(sums, chunks, zero, own, total)
        add_up(held, CHUNK, scale(own, CHUNK), nest.let(add(last, 1)), total)
        nest.write(ends, at, nest.clamp(nest.keep(total), rows))
    before = nest.var(i64, stem="total")
    with nest.inner() as scope:
        at = nest.var(i64, padded, "at")
        nest.places[at] = scope
        test = is_before(nest.read(ends, at, i64), at)
        term = nest.apply("select", test, Number(1), zero, dtype=i64)
    nest.emit(Fold(at, Amount(padded), tuple(scope.statements), term, before, "add", zero))
    nest.places[before] = nest.scope
    group = nest.apply("minimum", before, Number(count), dtype=i64)
    previous = nest.apply("maximum", zero, nest.let(add(group, -1)), dtype=i64)
    low = nest.read(ends, previous, i64)
    high = nest.read(ends, group, i64)
    is_first, is_behind = (nest.apply("EQ", group, Number(each), dtype=i1) for each in (0, count))
    return (
        group,
        nest.apply("select", is_first, zero, low, dtype=i64),
        nest.apply("select", is_behind, Amount(rows), high, dtype=i64),
    )


def _search_in_order(nest: Nest, sizes: Value, rows: Size, is_before: Test) -> tuple[Expr, Expr, Expr]:
    """The same for a dynamic number of groups, or very many: every thread adds up the sizes."""
    zero = Number(0)
    end, group, low, high = (nest.declare(i64, each) for each in (zero, zero, zero, Amount(rows)))
    with nest.loop(tensor(sizes).sizes[0], "ordered") as at:
        nest.emit(Set(end, add(end, nest.convert(nest.pull(sizes, (at,)), i64))))
        here = nest.apply("clamp", zero, nest.keep(end), Amount(rows), dtype=i64)
        test = is_before(here, at)
        nearest = nest.apply("minimum", nest.keep(high), here, dtype=i64)
        for var, to, other in ((group, nest.let(add(at, 1)), group), (low, here, low), (high, high, nearest)):
            nest.emit(Set(var, nest.keep(Apply("select", (test, nest.keep(to), nest.keep(other)), i64))))
    return nest.keep(group), nest.keep(low), nest.keep(high)
