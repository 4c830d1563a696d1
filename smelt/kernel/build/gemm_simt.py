"""GEMM on a GPU: a thread block computes a tile of sums by one micro-kernel call, then stores it through the epilogue.

f32 uses the panels and K-blocks of a CPU, so results have the same bits. With few tiles, each K-block gets its own
thread block (split-K). bf16 weights use tensor cores (`loops.tensor_tile`). Few rows (decoding) use narrow tiles, so
that many blocks read the weights at once; if the number of rows is dynamic, both kinds of tiles are built, and each
call selects one. `conv_simt.py` has convolutions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from math import log2

from smelt.dim import Size, ceildiv, floordiv, minimum, product
from smelt.dtype import DType, bf16, f16, f32, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.kernel.build.gemm import Columns, axis_stride, panel_slice, required_form, row_slice
from smelt.kernel.build.pairs import half, paired_columns
from smelt.kernel.build.sinks import Output, simt_sink
from smelt.kernel.loops.form import (
    F32_F16,
    FEW_BF16,
    FEW_F32_BF16,
    STREAM,
    TENSOR_BF16,
    TENSOR_F32_BF16,
    TENSOR_FP8,
    TENSOR_INT8,
    Form,
)
from smelt.kernel.loops.grammar import Amount, Expr, Load, Mma, Number, Place, Set, Slice, Split, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, flat, tensor
from smelt.kernel.loops.simt import MULTIPROCESSORS
from smelt.kernel.loops.tensor_tile import FEW_ROWS as FEW_TENSOR_ROWS
from smelt.kernel.loops.tensor_tile import (
    HALF_ROWS,
    PAD,
    SPLIT_STREAM_BLOCKS,
    STAGES,
    STREAM_COLUMNS,
    STREAM_PITCH,
    STREAM_SIZES,
    TENSOR,
    TILE_ROWS,
    WIDTHS,
    stage_bytes,
    stream_steps,
)
from smelt.kernel.tune.schedules import TENSOR_TILES, FewColumns, KernelKey, TensorTile
from smelt.shape import Shape
from smelt.target import WARPGROUPS, Target

FEW_ROWS = 8  # of a block where there are few rows of f32
THREADS = 256  # of a block
BUSY = 100  # thread blocks that keep a GPU busy
PANEL, MOST_SUMS = 64, 1 << 23  # columns of a panel; sums of K-blocks that may be kept
MANY_COLUMNS = 8192  # from here on a block with few rows takes 32 columns
K_STAGE, VECTOR = 64, 128  # steps of a stage of bf16; bits that a thread stores together
# A multiprocessor, by cycle: products of its tensor cores, bytes from the cache; cycles of a tile beside its stages.
PRODUCTS, CACHE_RATE, BESIDE = 2048, 48, 2500
LEAST_STAGES, MOST_SPLITS = 4, 8  # of a part of K with few rows; parts
EVEN = 0.9  # of the time of a launch in which multiprocessors have work: enough
SPLITS, JOIN = (1, 2, 3, 4, 6, 8, 12, 16), 1500  # parts of K; cycles until the last block has them


def form_on_gpu(op: Op) -> Form:
    """How the elements of a product are multiplied."""
    elements = tensor(op.operands[0]).element, tensor(op.operands[1]).element
    return F32_F16 if elements == (f32, f16) else required_form(op)  # weights of 16 bits are read as they are


def few_columns(columns: Size, width: int) -> int:
    """The columns of a block with few rows: fewer where there would be too few blocks to keep memory busy."""
    if width <= 16 or not isinstance(columns, int):
        return 16
    return next((each for each in (64, 32) if columns >= 2 * MULTIPROCESSORS * each), 16)


@simt_sink("smelt.packed_dot")
def packed_dot(nest: Nest, op: Op, output: Output) -> None:
    form = form_on_gpu(op)
    if form in TENSOR:
        _tensor_dot(nest, op, output, form)
        return
    lhs, panels = op.operands
    (groups, rows, depth), count = tensor(lhs).sizes, tensor(panels).sizes[1]
    few = FEW_ROWS if form.k_pack == 1 else 0
    most = max(few, rows_that_split(form, groups, depth, count))
    if few and (here := are_between(rows, 0, few)) != 0:
        _f32_tiles(nest, op, output, form, here * minimum(rows, 1), few=True)
    if (here := are_between(rows, few + 1, most)) != 0:
        _split_k(nest, op, output, form, here)
    if (here := are_between(rows, most + 1 if most else 0)) != 0:
        _f32_tiles(nest, op, output, form, here)


def are_between(rows: Size, least: int, most: int | None = None) -> Size:
    """1 where there are as many rows, else 0."""
    enough = minimum(floordiv(rows, least), 1) if least > 0 else 1
    return enough - (0 if most is None else minimum(floordiv(rows, max(most + 1, least)), 1))


def _f32_tiles(nest: Nest, op: Op, output: Output, form: Form, here: Size, *, few: bool = False) -> None:
    """A block for each tile, or for few rows by some columns."""
    lhs, panels = op.operands
    (groups, rows, depth), (shared, count, _, line) = tensor(lhs).sizes, tensor(panels).sizes
    assert isinstance(line, int)
    width, columns = line // form.k_pack, tensor(op.result).sizes[2]
    tall, wide = (FEW_ROWS, few_columns(columns, width)) if few else (TILE_ROWS, width)
    parts, shares = 1 if few else ceildiv(rows, tall), ceildiv(width, wide)
    tiles = ceildiv(columns, wide) if width % wide == 0 else count * shares
    with nest.loops((groups * here, parts, tiles)) as (group, part, number):
        panel, share = (nest.let(each) for each in split(number, shares))
        first = nest.let(scale(part, tall))
        used = Amount(rows) if few and not isinstance(rows, int) else at_most(nest, tall, rows, first)
        before = nest.let(add(scale(panel, width), scale(share, wide)))
        there = at_most(nest, wide, columns, before)
        if width % wide:
            there = nest.let(nest.apply("minimum", there, at_most(nest, wide, width, scale(share, wide)), dtype=i64))
        tile = Tiled(nest.tile("tile", form.total, tall * wide), wide, wide, used, before, there)
        a = row_slice(nest, op, lhs, (group, first, Number(0)), (used, Amount(depth)))
        all_columns = Columns(before, width, tile.columns, form.total)
        b = panel_slice(nest, op, (Number(0) if shared == 1 else group, panel, Number(0)), Amount(depth), all_columns)
        inside = add(b.place.index, scale(share, wide * form.k_pack))
        nest.emit(Mma(tile.sums, a, Slice(Place(b.place.array, inside), b.sizes, b.strides), form))
        tile.store(nest, op, output, form.total, lambda row, column: (group, add(first, row), column))


def rows_that_split(form: Form, groups: Size, depth: Size, panels: Size) -> int:
    """The rows up to which K-blocks of f32 have thread blocks of their own."""
    blocks, tiles = ceildiv(depth, form.block), groups * panels
    return most_rows_to_split(tiles, blocks, tiles * PANEL) if form.k_pack == 1 else 0


def most_rows_to_split(across: Size, blocks: Size, sums: Size) -> int:
    """The rows up to which a GPU has too few tiles, and the sums of several K-blocks fit in memory for a while.
    `across`: tiles beside each other; `sums`: of a row and a K-block."""
    if not (isinstance(across, int) and isinstance(blocks, int) and isinstance(sums, int)) or not across or blocks < 2:
        return 0
    return min((BUSY - 1) // across * TILE_ROWS, MOST_SUMS // (blocks * sums))


def _split_k(nest: Nest, op: Op, output: Output, form: Form, here: Size) -> None:
    """A block for each tile and K-block; a second launch adds the sums of the K-blocks, in order."""
    lhs, panels = op.operands
    (groups, rows, depth), (shared, count, _, width) = tensor(lhs).sizes, tensor(panels).sizes
    columns = tensor(op.result).sizes[2]
    assert isinstance(width, int)
    blocks = ceildiv(depth, form.block)
    kept = (blocks, groups * here, rows, columns)
    parts = nest.scratch(Shape.of(form.total, kept))
    with nest.loops((groups * here, ceildiv(rows, TILE_ROWS), count, blocks)) as (group, part, panel, block):
        first, before, k = (nest.let(scale(*each)) for each in ((part, TILE_ROWS), (panel, width), (block, form.block)))
        used, there = at_most(nest, TILE_ROWS, rows, first), at_most(nest, width, columns, before)
        extent = at_most(nest, form.block, depth, k)
        tile = Tiled(nest.tile("tile", form.total, TILE_ROWS * width), width, width, used, before, there)
        a = row_slice(nest, op, lhs, (group, first, k), (used, extent))
        place = (Number(0) if shared == 1 else group, panel, k)
        b = panel_slice(nest, op, place, extent, Columns(before, width, there, form.total))
        nest.emit(Mma(tile.sums, a, b, form))
        tile.keep(nest, parts, (block, group, first, Number(0)), kept)
    with nest.loops((groups * here, rows, half(columns) if output.pair else columns)) as (*row, column):
        read = paired_columns(column) if output.pair else (column,)
        found = [add_kept(nest, parts, kept, (*row, each)) for each in read]
        output.finish(nest, op, (*row, column), *found)


def add_kept(nest: Nest, parts: int, sizes: Sequence[Size], index: Index) -> Expr:
    """The sum of an element's kept sums, one for each K-block, in order."""

    def part_of(block: Expr) -> Expr:
        return nest.read(nest.buffer(parts), flat((block, *index), sizes), f32)

    total = nest.declare(f32, part_of(Number(0)))
    with nest.loop(sizes[0] - 1, "ordered") as later:
        nest.emit(Set(total, nest.apply("add", nest.keep(total), part_of(nest.let(add(later, 1))))))
    return nest.keep(total)


def _tensor_dot(nest: Nest, op: Op, output: Output, form: Form) -> None:
    """A product by bf16 weights: of few rows, of many, or as many as there are when it is called."""
    groups, rows, _ = tensor(op.operands[0]).sizes
    few, most = few_and_most(nest.target, op, form)
    if few and (here := are_between(rows, 0, few)) != 0:
        _few_rows(nest, op, output, FEW_BF16 if form.left == bf16 else FEW_F32_BF16, here)
    if (here := are_between(rows, few + 1, most)) != 0:
        _stream_rows(nest, op, output, stream_form(form), here)
    for part in ranges_of_rows(nest.target, form, groups, rows, tensor(op.result).sizes[2], most + 1, most + 1):
        _many_rows(nest, op, output, form, part)


class Rows(Frozen):
    """The rows that a kernel of tiles is for. `here`: 1 where there are as many, else 0; `about`: how many its tile is
    chosen for; `most`: at most, for which the tiles are numbered."""

    here: Size
    about: Size
    most: Size


def ranges_of_rows(
    target: Target, form: Form, groups: Size, rows: Size, columns: Size, least: int, usual: Size
) -> list[Rows]:
    """All rows from `least` on, of which there are often `usual` ones. If their number is dynamic, there is a range of
    those whose tiles would be too few for a GPU."""
    whole = Rows(are_between(rows, least), rows, rows)
    if isinstance(rows, int):
        return [whole] if whole.here != 0 else []
    across = groups * ceildiv(columns, wide_tile(target, form, rows, columns))
    if not isinstance(across, int) or not isinstance(usual, int) or across < 1:
        return [whole]
    most, usual = (BUSY - 1) // across * TILE_ROWS, max(usual, 1)
    if most < usual:
        return [whole]
    about = 1 << round(log2(usual * most) / 2)  # the geometric mean
    return [Rows(are_between(rows, least, most), about, most), whole.replace(here=are_between(rows, most + 1))]


def few_and_most(target: Target, op: Op, form: Form) -> tuple[int, int]:
    """The rows up to which threads read the weights themselves; up to which the copy engine does, where it can: it
    brings weights while the launches in front are still at work."""
    *_, width = tensor(op.operands[1]).sizes
    streams = form is TENSOR_BF16 or form in TENSOR_FP8
    if streams and WARPGROUPS in target.features and width == STREAM_COLUMNS * form.k_pack:
        return 0, STREAM_SIZES[-1]
    few = FEW_TENSOR_ROWS if form in (TENSOR_BF16, TENSOR_F32_BF16) else 0  # others have tiles alone
    return few, few


def stream_form(form: Form) -> Form:
    """The form of few rows whose weights the copy engine brings."""
    return next(each for each in STREAM if (each.left, each.right) == (form.left, form.right))


def _few_rows(nest: Nest, op: Op, output: Output, form: Form, here: Size) -> None:
    lhs, panels = op.operands
    (groups, rows, depth), (shared, _, _, line) = tensor(lhs).sizes, tensor(panels).sizes
    columns = tensor(op.result).sizes[2]
    assert isinstance(line, int)
    width = line // form.k_pack
    large = not isinstance(columns, int) or columns >= MANY_COLUMNS
    several = isinstance(rows, int) and rows > FEW_ROWS  # then each block reads many rows: better for more columns
    key = gemm_key("few_gemm", op, form)
    usual = 16 << (large + several)
    wide = nest.choose_schedule(key, FewColumns).columns or usual if width % 64 == 0 else 16
    with nest.loops((groups * here, ceildiv(columns, wide))) as (group, number):
        panel, share = (nest.let(each) for each in split(number, width // wide))
        before = nest.let(scale(number, wide))
        there = at_most(nest, wide, columns, before)
        tile = Tiled(nest.tile("few", f32, FEW_TENSOR_ROWS * wide), wide, wide, Amount(rows), before, there)
        a = row_slice(nest, op, lhs, (group, Number(0), Number(0)), (tile.rows, Amount(depth)))
        place = (Number(0) if shared == 1 else group, panel, Number(0))
        b = panel_slice(nest, op, place, Amount(depth), Columns(before, width, there, f32))
        inside = add(b.place.index, scale(share, wide * form.k_pack))
        nest.emit(Mma(tile.sums, a, Slice(Place(b.place.array, inside), b.sizes, b.strides), form))
        tile.store(nest, op, output, f32, lambda row, column: (group, row, column))


def _stream_rows(nest: Nest, op: Op, output: Output, form: Form, here: Size) -> None:
    """A block for each panel; several, which split K, where panels are few. The parts of K do not depend on the number
    of rows, so that a row has the same bits in any batch."""
    lhs, panels = op.operands
    (groups, rows, depth), (shared, *_) = tensor(lhs).sizes, tensor(panels).sizes
    columns, wide = tensor(op.result).sizes[2], STREAM_COLUMNS
    tall = next((each for each in STREAM_SIZES if isinstance(rows, int) and rows <= each), STREAM_SIZES[-1])
    tiles = groups, ceildiv(columns, wide)
    splits = stream_splits(product(tiles), ceildiv(depth, stream_steps(form)))
    split = SplitK.of(nest, TensorSize(tall, wide, splits), tiles)
    with nest.loops((groups * here, tiles[1], split.size.splits)) as (group, panel, share):
        before = nest.let(scale(panel, wide))
        there = at_most(nest, wide, columns, before)
        sums = nest.tile("few", f32, tall * STREAM_PITCH)
        tile = Tiled(sums, wide, STREAM_PITCH, Amount(rows), before, there, tall)
        a = row_slice(nest, op, lhs, (group, Number(0), Number(0)), (tile.rows, Amount(depth)))
        place = (Number(0) if shared == 1 else group, panel, Number(0))
        b = panel_slice(nest, op, place, Amount(depth), Columns(before, wide, there, f32))
        shares = split.shares(nest, (group, panel), share)
        nest.emit(Mma(tile.sums, a, b, form, shares))
        split.finish(nest, tile, shares).store_vectors(
            nest, op, output, columns, lambda row, column: (group, row, column)
        )


def stream_splits(tiles: Size, stages: Size) -> int:
    """The blocks that share the K of a tile: few that keep two on each multiprocessor busy, or three."""
    if not isinstance(tiles, int) or not isinstance(stages, int) or tiles < 1:
        return 1

    def share(splits: int) -> float:
        """Of the time of the fullest multiprocessor, how long all are busy on average."""
        waves = max(2, -(-tiles * splits // MULTIPROCESSORS))
        return tiles * splits / (waves * MULTIPROCESSORS) if waves <= SPLIT_STREAM_BLOCKS else 0

    possible = range(1, max(1, min(stages // LEAST_STAGES, MOST_SPLITS)) + 1)
    return next((each for each in possible if share(each) >= EVEN), max(possible, key=share))


def _many_rows(nest: Nest, op: Op, output: Output, form: Form, some: Rows) -> None:
    lhs, panels = op.operands
    (groups, rows, depth), (shared, _, _, line) = tensor(lhs).sizes, tensor(panels).sizes
    columns = tensor(op.result).sizes[2]
    assert isinstance(line, int)
    width = line // form.k_pack
    steps = ceildiv(depth, steps_together(form))
    size = choose_tile(nest.target, form, lambda high: groups * ceildiv(some.about, high), columns, steps)
    size = tuned_tile(nest, form, gemm_key("tensor_gemm", op, form), size) if some.about == rows else size
    tall, wide = size.rows, size.columns
    split = SplitK.of(nest, size, (groups, ceildiv(some.most, tall), ceildiv(columns, wide)))
    counts = groups * some.here, ceildiv(rows, tall), ceildiv(columns, wide)
    with nest.loops((*counts, size.splits)) as (group, part, number, share):
        first, before = nest.let(scale(part, tall)), scale(number, wide)
        used, there = at_most(nest, tall, rows, first), at_most(nest, wide, columns, before)
        tile = tensor_tile(nest, form, tall, wide, used, before, there)
        a = row_slice(nest, op, lhs, (group, first, Number(0)), (used, Amount(depth)))
        panel = nest.let(scale(number, wide // width))
        place = (Number(0) if shared == 1 else group, panel, Number(0))
        b = panel_slice(nest, op, place, Amount(depth), Columns(before, width, there, form.total))
        shares = split.shares(nest, (group, part, number), share)
        nest.emit(Mma(tile.sums, a, across_panels(nest, op, b), form, shares))
        tile = split.finish(nest, tile, shares)
        tile.store_vectors(nest, op, output, columns, lambda row, column: (group, add(first, row), column))


def gemm_key(kind: str, op: Op, form: Form) -> KernelKey:
    """The shape key of a GEMM on tensor cores."""
    groups, rows, depth = tensor(op.operands[0]).sizes
    columns = tensor(op.result).sizes[2]
    return KernelKey.of(kind, groups=groups, rows=rows, depth=depth, columns=columns, bits=form.left.bits)


def tuned_tile(nest: Nest, form: Form, key: KernelKey, usual: TensorSize) -> TensorSize:
    """The tile of a tuned schedule if it fits. Where K is split nothing changes: its parts, and so bits, would."""
    asked = nest.choose_schedule(key, TensorTile)
    legal = (asked.rows, asked.columns) in tile_sizes(nest.target, form) and usual.splits == 1
    if legal and fits_shared_memory(nest.target, form, asked.columns, asked.rows):
        return TensorSize(asked.rows, asked.columns)
    return usual


def steps_together(form: Form) -> int:
    """Steps of K that `choose_tile` counts: 128 bytes of a row."""
    return K_STAGE if form is TENSOR_F32_BF16 else 2 * K_STAGE * 8 // form.left.bits


class TensorSize(Frozen):
    """A tile on tensor cores, and into how many parts its K is split, each for a block of its own."""

    rows: int
    columns: int
    splits: int = 1


def choose_tile(target: Target, form: Form, parts: Callable[[int], Size], columns: Size, stages: Size) -> TensorSize:
    """The tile that is predicted to take least time. `parts`: the number of tiles below each other, by their height;
    `stages`: of the ring, of a tile."""
    tried: dict[TensorSize, float] = {}
    for tall, wide in tile_sizes(target, form):
        tiles = parts(tall) * ceildiv(columns, wide)
        if not isinstance(tiles, int) or not isinstance(stages, int):
            return TensorSize(TILE_ROWS, wide_tile(target, form, parts(TILE_ROWS), columns))
        if not fits_shared_memory(target, form, wide, tall):
            continue
        resident = min(2, target.cache_bytes[0] // ring_room(form, STAGES, wide, tall)) or 1
        each = max(tall * wide * K_STAGE / PRODUCTS, (tall + wide) * 2 * K_STAGE / CACHE_RATE)
        for splits in (1,) if form in (TENSOR_F32_BF16, TENSOR_INT8) else SPLITS:
            if splits > 1 and (stages < 2 * splits or tiles * splits > MULTIPROCESSORS):
                break
            turns = -(-tiles * splits // MULTIPROCESSORS), -(-tiles // (resident * MULTIPROCESSORS))
            joins = JOIN + splits * tall * wide * 4 / CACHE_RATE if splits > 1 else 0
            tried[TensorSize(tall, wide, splits)] = turns[0] * -(-stages // splits) * each + turns[1] * BESIDE + joins
    return min(tried, key=lambda size: tried[size]) if tried else TensorSize(HALF_ROWS, WIDTHS[0])


class SplitK(Frozen):
    """The parts of K of every tile, and the buffer for their sums; -1: K is not split."""

    size: TensorSize
    counts: tuple[Size, ...]
    parts: int = -1

    @staticmethod
    def of(nest: Nest, size: TensorSize, counts: tuple[Size, ...]) -> SplitK:
        if size.splits == 1:
            return SplitK(size, counts)
        held = (product(counts), size.splits, size.rows * size.columns)
        return SplitK(size, counts, nest.scratch(Shape.of(f32, held)))

    def shares(self, nest: Nest, tile: Index, number: Expr) -> Expr | Split:
        """What a product says about its part of K."""
        if self.parts < 0:
            return Number(0)
        done = Load(Place(nest.tile("done", i64, 1), Number(0)), i64)
        parts = Load(Place(nest.buffer(self.parts), Number(0)), f32)
        at, tiles = nest.let(flat(tile, self.counts)), Amount(product(self.counts))
        return Split(number, Number(self.size.splits), at, tiles, parts, done)

    def finish(self, nest: Nest, tile: Tiled, shares: Expr | Split) -> Tiled:
        """The tile with all of its rows in the block that has the whole sum, else with none."""
        if not isinstance(shares, Split):
            return tile
        assert isinstance(shares.done, Load)
        whole = nest.read(shares.done.place.array, Number(0), i64)
        return replace(tile, rows=nest.apply("multiply", whole, tile.rows, dtype=i64))


def wide_tile(target: Target, form: Form, parts: Size, columns: Size) -> int:
    """The columns of a tile on tensor cores: as many as leave enough blocks for a whole GPU."""
    least, usual, most = WIDTHS
    for wide in (each for each in (most, usual) if (TILE_ROWS, each) in tile_sizes(target, form)):
        tiles = parts * ceildiv(columns, wide)
        fits = fits_shared_memory(target, form, wide)
        if fits and isinstance(tiles, int) and tiles >= BUSY:
            return wide
    dynamic = not isinstance(parts, int) and isinstance(columns, int) and columns >= 8 * usual
    return usual if dynamic and fits else least


def fits_shared_memory(target: Target, form: Form, wide: int, tall: int = TILE_ROWS) -> bool:
    """Whether a block has room for the stages of tiles of that size."""
    return ring_room(form, STAGES if wide == WIDTHS[-1] else STAGES - 2, wide, tall) <= target.cache_bytes[0]


def ring_room(form: Form, stages: int, wide: int, tall: int) -> int:
    """The bytes of a ring of stages; half as many where each is twice as long."""
    return stages // (2 if form in TENSOR_FP8 else 1) * stage_bytes(form, wide, tall)


def tile_sizes(target: Target, form: Form) -> Sequence[tuple[int, int]]:
    """Those that registers hold: fp8 has sums of a block of K beside all sums, with warpgroups of 128 columns."""
    if form not in TENSOR_FP8:
        return TENSOR_TILES
    widest = WIDTHS[-1] if WARPGROUPS in target.features else WIDTHS[1]
    return [(tall, wide) for tall, wide in TENSOR_TILES if wide in WIDTHS and wide <= widest]


def across_panels(nest: Nest, op: Op, b: Slice) -> Slice:
    """Rows of a panel and of those after it, as [k, column, panel]."""
    return Slice(b.place, (*b.sizes, Number(1)), (*b.strides, axis_stride(nest, op, op.operands[1], 1)))


def tensor_tile(nest: Nest, form: Form, tall: int, wide: int, rows: Expr, first: Expr, columns: Expr) -> Tiled:
    """A block's tile of sums on tensor cores."""
    pitch = wide + PAD
    return Tiled(nest.tile("tile", form.total, tall * pitch), wide, pitch, rows, first, columns, tall, form.total)


def at_most(nest: Nest, most: int, size: Size, first: Expr) -> Expr:
    """How many of `most` elements from `first` on there are; less than 1 where there are none."""
    if isinstance(size, int) and (size % most == 0 or (size < most and first == Number(0))):
        return Number(min(size, most))
    left = nest.let(add(size, scale(first, -1)))
    return nest.let(nest.apply("minimum", Number(most), left, dtype=i64))


@dataclass(frozen=True, slots=True)
class Tiled:
    """A block's tile of sums: `rows` and `columns` of it are used, and its first column is column `first`."""

    name: str
    width: int
    pitch: int  # the distance of rows
    rows: Expr
    first: Expr
    columns: Expr
    height: int = TILE_ROWS  # rows that it has room for
    element: DType = f32
    factor: Callable[[Expr], Expr] | None = None  # of the sums of a row
    apart: int = 0  # columns between the sums of a pair; 0: they alternate (`pairs`)

    @property
    def sums(self) -> Slice:
        return Slice(Place(self.name, Number(0)), (self.rows, self.columns), (Number(self.pitch), Number(1)))

    def keep(self, nest: Nest, parts: int, start: Index, sizes: Sequence[Size]) -> None:
        """Every element to a buffer of sums of K-blocks. `start`: the index of the first row, before its columns."""
        with nest.loop(nest.let(scale(self.rows, self.width)), "lane") as at:
            row, column = (nest.let(each) for each in split(at, self.width))
            with nest.guard(nest.less(column, self.columns)):
                *outer, first, left = start
                here = (*outer, add(first, row), nest.let(add(left, self.first, column)))
                nest.store(parts, flat(here, sizes), nest.read(self.name, at, f32))

    def store(self, nest: Nest, op: Op, output: Output, element: DType, index: Callable[[Expr, Expr], Index]) -> None:
        """Every element through the epilogue, in one loop on the block's threads."""
        sums = len(output.pair) or 1  # of an element
        with nest.loop(nest.let(scale(self.rows, self.width // sums)), "lane") as at:
            row, column = (nest.let(each) for each in split(at, self.width // sums))
            with nest.guard(nest.less(nest.let(scale(column, sums)), self.columns)):
                values = self.sums_of(nest, output, element, row, column)
                found = output.finish(nest, op, index(row, nest.let(add(self.first_of(output), column))), *values)
                if found is not None:
                    nest.write(self.name, add(scale(row, self.pitch), column), found)

    def store_vectors(
        self, nest: Nest, op: Op, output: Output, count: Size, index: Callable[[Expr, Expr], Index]
    ) -> None:
        """The same on tensor cores; a thread takes adjacent columns. `count`: columns of the whole result."""
        vector = VECTOR // max(16, tensor(output.last or op.result).element.bits)  # so that neighbours store neighbours
        sums = len(output.pair) or 1  # of an element
        if output.pair:  # they are read by more than a conversion: all threads compute
            vector = max(1, min(vector, self.height * self.width // sums // THREADS))
        if not isinstance(count, int) or vector == 1 or count // sums % max(vector, 2):
            self.store(nest, op, output, self.element, index)
            return
        vectors = self.width // sums // vector
        with nest.loop(nest.let(scale(self.rows, vectors)), "lane", most=self.height * vectors) as at:
            row, part = split(at, vectors)
            row, column = nest.let(row, self.height), scale(part, vector)
            whole = count % self.width == 0
            guard = nullcontext() if whole else nest.guard(nest.less(nest.let(scale(column, sums)), self.columns))
            with guard, nest.loop(vector, "vector") as i:
                values = self.sums_of(nest, output, self.element, row, add(column, i))
                output.finish(nest, op, index(row, add(self.first_of(output), column, i)), *values)

    def sums_of(self, nest: Nest, output: Output, element: DType, row: Expr, column: Expr) -> list[Expr]:
        """The sum of an element of the result, or both sums of one of a pair."""
        read = [column]
        if output.pair:
            read = [column, add(column, self.apart)] if self.apart else [*paired_columns(column)]
        found = [nest.read(self.name, add(scale(row, self.pitch), each), element) for each in read]
        return found if self.factor is None else [nest.apply("multiply", each, self.factor(row)) for each in found]

    def first_of(self, output: Output) -> Expr:
        """The tile's first column of the result, or of each of a pair."""
        return split(self.first, 2)[0] if output.pair else self.first
