"""Tiles of a thread block on tensor cores: their sizes, and the shared memory that they take.

Builders choose one, `loops.simt` finds room for it, `emit.tile_mma` has the functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.dim import Size
from smelt.dtype import DType, bf16
from smelt.frozen import Frozen
from smelt.ir.block_layout import COLUMNS, Layout
from smelt.ir.blocks import RUN
from smelt.kernel.loops.form import (
    FEW_BF16,
    FEW_F32_BF16,
    FLASH_BF16,
    STREAM,
    TENSOR_BF16,
    TENSOR_F16,
    TENSOR_F32_BF16,
    TENSOR_FP8,
    TENSOR_INT8,
    TENSOR_TF32,
    Form,
)
from smelt.kernel.loops.grammar import Amount, Attend, BlockMma, Decode, Mma, Number, Split, Tile

TENSOR = (TENSOR_BF16, TENSOR_F16, TENSOR_F32_BF16, TENSOR_INT8, TENSOR_TF32, *TENSOR_FP8)
FEW_TENSOR = (FEW_BF16, FEW_F32_BF16, *STREAM)
TILE_ROWS, FEW_ROWS = 128, 32
HALF_ROWS = 64  # of a tile where there are few of them
WIDTHS = (64, 128, 256)  # columns of a tile
STAGES = 8  # of the ring of operands, where there is room
SLAB = 64  # bytes of a row in a stage; twice as many where a block has one tile and a multiprocessor alone
BLOCK_COLUMNS, BLOCK_ROWS = 32, (8, 32, 64)  # of a tile by block-quantised weights
BLOCK_TILE, TILE_AHEAD = 128, 4  # rows and columns of one where there are many of both; chunks of K in shared memory
ALONE = 132  # blocks that have a multiprocessor each
MOST_STAGES = 5  # chunks of a share by block-quantised weights that are in shared memory
HELD_ROWS = 40 << 10  # bytes of rows that shared memory may hold
# A single row by block-quantised weights: warps of a block beside those that multiply; bytes of barriers and of a flag
# beside those of stages.
SINGLE_ROLES, SINGLE_BARRIERS = 2, 48
STREAM_SIZES, STREAM_COLUMNS, STREAM_PITCH = (8, 16, 32, 64), 64, 68  # rows and columns of a block; of its sums: a row
STREAM_BYTES = 128  # of a column or a row in a stage
STREAM_BLOCKS, SPLIT_STREAM_BLOCKS = 4, 3  # on a multiprocessor; where several blocks split K
STREAM_ROOM, STREAM_BARRIERS = 220 << 10, 16  # bytes of all of these blocks; of the barriers of a stage, or of a flag
# Where several blocks split K: the launch in front is short, and a block of it fits beside one that fetches already.
SPLIT_STREAM_ROOM = 208 << 10
WARPS = 8  # of a block
STAGED_WARPS = 16  # of a multiprocessor whose shared memory some rows are copied to
ALIGN = 1024  # bytes of a stage
PAD = 8  # elements after each row of sums: neighbouring rows begin in other banks


def stage_steps(form: Form, *, alone: bool) -> int:
    """Steps of K in a stage: short ones are fetched further ahead, long ones need fewer barriers. A stage of fp8 is
    a block of K, whose sum is added to the others'."""
    long = form in TENSOR_FP8 or (alone and form is not TENSOR_F32_BF16)
    return slab_steps(form) * (2 if long else 1)


def slab_steps(form: Form) -> int:
    """Steps of K in a slab of a stage: 64 bytes of a row, 128 of f32 that is split."""
    return SLAB * (2 if form is TENSOR_F32_BF16 else 1) * 8 // form.left.bits


def stage_bytes(form: Form, columns: int, rows: int = TILE_ROWS, steps: int | None = None) -> int:
    """A stage: steps of the rows and of the columns, by default few."""
    steps = stage_steps(form, alone=False) if steps is None else steps
    used = rows * steps * form.left.bits // 8 + steps // form.k_pack * (16 * columns + 32)
    return -(-used // ALIGN) * ALIGN


def ring_bytes(mma: Mma | BlockMma, room: int, rows: int = TILE_ROWS, blocks: Size | None = None) -> int:
    """The bytes for operands or parts of the sums of a product that has this number of bytes at most. `rows`: of a
    tile; `blocks`: of the launch, if the number is known."""
    alone = isinstance(blocks, int) and blocks <= ALONE  # a multiprocessor has one block, with one tile
    if isinstance(mma, BlockMma) and mma.ahead:
        return mma.ahead * tile_chunk_bytes(mma.format)
    if isinstance(mma, BlockMma) and mma.single:
        return single_bytes(mma.format, mma.shares, held_bytes(mma), mma.stages)
    if isinstance(mma, BlockMma) and stages_rows(mma):
        return mma.shares * 2 * staged_bytes(mma.format)
    if isinstance(mma, BlockMma):
        if not mma.stages:
            once = shares_at_once(mma, room)
            return (once + (once < mma.shares)) * share_bytes(mma)
        return mma.shares * (share_bytes(mma) + mma.stages * stage_of_chunk(mma.format)) + held_bytes(mma)
    if mma.form in TENSOR:
        each = stage_bytes(mma.form, tile_columns(mma), rows, stage_steps(mma.form, alone=alone))
        most = STAGES if alone or mma.form is not TENSOR_F32_BF16 else STAGES // 2
        return min(most, room // each) * each
    if mma.form in STREAM:
        return stream_stages(mma, blocks) * stream_stage_bytes(mma) + STREAM_BARRIERS
    return WARPS * few_rows(mma) * few_columns(mma) * 4  # the sums of every warp


def share_bytes(mma: BlockMma) -> int:
    """The sums of a share of K."""
    return mma.most * BLOCK_COLUMNS * 4


def shares_at_once(mma: BlockMma, room: int) -> int:
    """The shares of K whose sums are in shared memory of this number of bytes: all, or one for each warp beside the sum
    of those before."""
    return mma.shares if mma.shares * share_bytes(mma) <= room else min(mma.shares, block_threads(mma) // 32)


def chunk_records(layout: Layout) -> int:
    """The records of a chunk of K, which are adjacent: the copy engine takes no small pieces. What integers of groups
    are multiplied by is read once for a chunk, so that it is one record."""
    return 4 if layout.length == RUN and "scales" not in layout.places else 1


def stage_of_chunk(format: str) -> int:
    """A chunk of two panels, and its barrier."""
    layout = Layout.of(format)
    return 2 * chunk_records(layout) * layout.record + 8


def chunk_units(layout: Layout) -> int:
    """Runs of 32 steps of a chunk of K."""
    return chunk_records(layout) * layout.length // RUN


def tile_chunk_bytes(format: str) -> int:
    """A chunk of K for a tile of many rows and columns: integers with a gap, scales, totals, panels."""
    layout = Layout.of(format)
    units = chunk_units(layout)
    totals = RUN // layout.group if layout.row.minimum is not None else 0
    rows = RUN * units + RUN + 4 * units * (1 + totals)
    return BLOCK_TILE * rows + BLOCK_TILE // COLUMNS * chunk_records(layout) * layout.record


def tile_ahead(format: str, records: Size, room: int) -> int:
    """Chunks of K in this number of bytes of shared memory for a tile of many rows and columns; 0 where it has no room,
    or where rows are no whole number of chunks of four runs."""
    layout = Layout.of(format)
    if not isinstance(records, int) or records % chunk_records(layout) or chunk_units(layout) % 4:
        return 0
    chunks = min(TILE_AHEAD, room // tile_chunk_bytes(format))
    return chunks if chunks >= 2 and room >= BLOCK_TILE * BLOCK_TILE * 4 else 0


def stages_rows(mma: BlockMma) -> bool:
    """Whether rows come to shared memory, and weights to registers."""
    return mma.held > 0 and not mma.stages and not mma.ahead


def staged_bytes(format: str) -> int:
    """Four runs of some rows: integers with a gap, scales, totals."""
    layout = Layout.of(format)
    totals = RUN // layout.group if layout.row.minimum is not None else 0
    return BLOCK_ROWS[1] * (4 * RUN + RUN + 16 * (1 + totals))


def can_stage_rows(format: str, records: Size, room: int) -> bool:
    """Whether shared memory of this number of bytes has two stages for each warp of a multiprocessor, and rows are a
    whole number of chunks of four runs."""
    layout = Layout.of(format)
    exact = isinstance(records, int) and records % chunk_records(layout) == 0 and chunk_units(layout) % 4 == 0
    return exact and STAGED_WARPS * 2 * staged_bytes(format) + 2048 <= room


def held_pitch(format: str, blocks: int | None) -> int:
    """The bytes of a row of this number of blocks in shared memory: integers, scales and totals. Neighbouring rows use
    different banks."""
    layout = Layout.of(format)
    totals = RUN // layout.group if layout.row.minimum is not None else 0
    size = (blocks or 0) * (layout.length // RUN) * (RUN + 4 + 4 * totals)
    return -(-(size - 32) // 128) * 128 + 32


def block_stages(format: str, most: int, shares: int, blocks: int, held: int) -> tuple[int, int]:
    """(Chunks of each share in shared memory, blocks on a multiprocessor) where the copy engine brings weights; no
    chunks where there is no room for two. `held`: bytes of rows."""
    each, beside = shares * stage_of_chunk(format), shares * most * BLOCK_COLUMNS * 4 + held + 1024
    resident = 1 if 0 < blocks <= ALONE else 2
    stages = (STREAM_ROOM // resident - beside) // each
    return (min(MOST_STAGES, stages), resident) if stages >= 2 else (0, 1)


def choose_stream(format: str, most: int, shares: int, blocks: int, records: Size) -> tuple[int, int]:
    """(Rows that shared memory holds: all, a single one, or none; chunks of each share in it, or none). Rows have this
    number of `records`. A block with one tile needs no more chunks than that has: blocks of the launches in front and
    behind find room beside it."""
    chunks = MOST_STAGES
    if isinstance(records, int) and 0 < blocks <= ALONE:
        chunks = max(2, -(-records // (shares * chunk_records(Layout.of(format)))))
    for rows, least in ((most, 3), (1, 2), (0, 2)):
        size = rows * held_pitch(format, records) if isinstance(records, int) else HELD_ROWS * rows
        stages, _ = block_stages(format, most, shares, blocks, size)
        if size <= HELD_ROWS and stages >= least:
            return rows, min(stages, chunks)
    return 0, 0


def single_bytes(format: str, shares: int, held: int, stages: int) -> int:
    """The shared memory of a block for a single row: sums of a tile or of two, two sets of those of its shares, zeros,
    the row, weights and their barriers."""
    layout = Layout.of(format)
    stage = 2 * shares * chunk_records(layout) * layout.record + 16
    sums = 4 * BLOCK_COLUMNS * (2 + 2 * shares)
    return sums + -(-(RUN * chunk_units(layout) + held) // 128) * 128 + stages * stage + SINGLE_BARRIERS


def choose_single(format: str, shares: int, blocks: int, records: Size) -> int:
    """Chunks of each share in shared memory for a single row: as many as there is room for, and no more than a block
    with one tile has; 0 where there is no room for two, or the row is too long or of a dynamic size."""
    if not isinstance(records, int):
        return 0
    layout, held = Layout.of(format), held_pitch(format, records)
    fixed = single_bytes(format, shares, held, 0)
    each = single_bytes(format, shares, held, 1) - fixed
    room = STREAM_ROOM // single_blocks(blocks) - 1024
    chunks = -(-records // (shares * chunk_records(layout)))
    most = max(2, chunks) if 0 < blocks <= ALONE else MOST_STAGES
    stages = (room - fixed) // each
    return min(stages, most, MOST_STAGES) if stages >= 2 and held <= HELD_ROWS else 0


def single_blocks(blocks: int) -> int:
    """Blocks for a single row on a multiprocessor."""
    return 1 if 0 < blocks <= ALONE else 2


def held_bytes(mma: BlockMma) -> int:
    """Bytes of the rows in shared memory."""
    records = mma.panel.sizes[0]
    count = records.size if isinstance(records, Amount) and isinstance(records.size, int) else None
    return mma.held * held_pitch(mma.format, count) if mma.held else 0


def stream_shape(mma: BlockMma) -> tuple[int, int]:
    """`block_stages` of a product."""
    return block_stages(mma.format, mma.most, mma.shares, mma.blocks, held_bytes(mma))


def most_blocks(mma: BlockMma) -> int:
    """The thread blocks that run at once: each takes one tile after another, and fetches across their borders."""
    return ALONE * (single_blocks(mma.blocks) if mma.single else stream_shape(mma)[1])


def block_threads(mma: BlockMma) -> int:
    """The threads of a block: with few rows each share of K has a warp."""
    if mma.single:
        return 32 * (mma.shares + SINGLE_ROLES)
    if mma.ahead:
        return 2 * WARPS * 32
    if stages_rows(mma):
        return 32 * mma.shares
    return 32 * (mma.shares if mma.most <= BLOCK_ROWS[0] else WARPS)


def few_rows(mma: Mma) -> int:
    """The most rows that a product of few rows may have."""
    match mma.a.sizes[0]:
        case Number(value):
            return int(value.real)
        case Amount(int(rows)):
            return rows
    return STREAM_SIZES[-1] if mma.form in STREAM else FEW_ROWS


def stream_rows(mma: Mma) -> int:
    """The rows of a stage of a product whose weights the copy engine brings."""
    return next(each for each in STREAM_SIZES if few_rows(mma) <= each)


def stream_stage_bytes(mma: Mma) -> int:
    """Steps of K of 64 columns and of the rows, and their barriers."""
    return STREAM_BYTES * (STREAM_COLUMNS + stream_rows(mma)) + STREAM_BARRIERS


def stream_steps(form: Form) -> int:
    """Steps of K in a stage."""
    return STREAM_BYTES * 8 // form.left.bits


def stream_stages(mma: Mma, blocks: Size | None) -> int:
    """As many as there is room for beside the other blocks, and no more than K has."""
    splits = isinstance(mma.accumulate, Split)
    room = (SPLIT_STREAM_ROOM if splits else STREAM_ROOM) // stream_blocks(mma, blocks) - STREAM_BARRIERS
    match mma.a.sizes[-1]:
        case Amount(int(depth)):
            return max(1, min(room // stream_stage_bytes(mma), -(-depth // stream_steps(mma.form))))
    return room // stream_stage_bytes(mma)


def stream_blocks(mma: Mma, blocks: Size | None) -> int:
    """Blocks on a multiprocessor, of all in a launch: they share its memory, so they spread evenly even if they begin
    where blocks of the launch in front of them have ended."""
    most = STREAM_BLOCKS
    match mma.accumulate:
        case Split(count=Number(count), tiles=Amount(int(tiles))):  # also where the number of rows is dynamic
            most, blocks = SPLIT_STREAM_BLOCKS, int(count.real) * tiles
    return min(most, -(-blocks // ALONE)) if isinstance(blocks, int) and blocks > 0 else most


def resident_blocks(mma: Mma, blocks: Size | None) -> int:
    """Blocks of a product of few rows on a multiprocessor, so that its registers hold what is being read."""
    if mma.form in STREAM:
        return stream_blocks(mma, blocks)
    if few_rows(mma) <= 8:
        return 3 if few_columns(mma) == 16 else 4
    return 2


def few_columns(mma: Mma) -> int:
    pitch = mma.acc.strides[0]
    assert isinstance(pitch, Number)
    return int(pitch.value.real)


def tile_columns(mma: Mma) -> int:
    """The columns of the tile that a product fills."""
    return few_columns(mma) - PAD


def tile_rows(mma: Mma, tiles: Iterable[Tile]) -> int:
    """The rows of the tile that a product fills, which is one of these."""
    return next(each.count // few_columns(mma) for each in tiles if each.name == mma.acc.place.array)


def shares_memory(mma: Mma | BlockMma) -> bool:
    """Whether the sums may take the memory of the operands: they are written once, after all of them were read."""
    return isinstance(mma, BlockMma) or mma.accumulate == Number(0) or isinstance(mma.accumulate, Split)


# ---- FlashAttention: tiles of keys and values go through a ring ----

MANY_QUERIES = 2048  # from which on a block may have 192
FLASH_DEEPEST = 256  # elements of a row
FLASH_STAGES = (3, 2)  # tiles of keys, and of values, where there is room
FLASH_KEYS = (128, 64, 32)  # keys of a tile: as many as there is room for
# Up to this number of keys, half of it where heads are large, a block has 64 queries, and a multiprocessor two blocks,
# which hide each other's waits. So it is where masks hide keys from small heads in bf16: fewer are multiplied in vain.
SHORT_KEYS, SHORT_ROOM = 1024, 113 << 10  # and the bytes of shared memory for each of them
# Up to this number of keys, twice as many with masks, tiles of small heads in bf16 have 64 keys, and a multiprocessor
# has three blocks: most of the time of a block is its beginning and its end.
LIGHT_KEYS, LIGHT_ROOM = 128, 75 << 10
MOST_REGISTERS = {64: 144, 128: 176, 192: 128}  # of a thread, by queries: for results, scores and weights
BARRIERS = 256  # bytes


class FlashTile(Frozen):
    """Queries of a block, and keys of a tile."""

    rows: int
    keys: int

    @staticmethod
    def of(
        depth: int,
        values: int,
        types: Sequence[DType],
        form: Form,
        room: int,
        queries: Size,
        keys: Size,
        hides: bool = False,
    ) -> FlashTile | None:
        """For a number of `queries` and `keys`, and `room` bytes of shared memory; None where that is not enough.
        `hides`: masks hide keys."""
        parts, small = flash_parts(form.left), max(depth, values) <= 64
        short = isinstance(keys, int) and keys <= SHORT_KEYS // (1 if small else 2)
        short = short or (hides and small and parts == 1)
        light = isinstance(keys, int) and keys <= LIGHT_KEYS * (2 if hides else 1) and small and parts == 1
        many = isinstance(queries, int) and queries >= MANY_QUERIES
        for rows in (64, 128) if short else (192, 128) if many else (128,):
            for each in FLASH_KEYS[1:] if light else FLASH_KEYS if rows < 192 else FLASH_KEYS[:1]:
                tile = FlashTile(rows, each)
                registers = (values // 2) * (1 if parts == 1 else 2) + each // 2 + parts * each // 4
                registers -= 32 if parts > 1 and set(types[1:]) == {bf16} else 0  # which need few to be copied
                least = flash_bytes(depth, values, tile, types, FLASH_STAGES[-1])
                if registers <= MOST_REGISTERS[rows] and least <= (min(room, SHORT_ROOM) if rows == 64 else room):
                    return tile
        return None


def flash_parts(dtype: DType) -> int:
    """The bf16 that an element is the sum of."""
    return 1 if dtype == bf16 else 3


def flash_bytes(depth: int, values: int, tile: FlashTile, types: Sequence[DType], stages: int) -> int:
    """The shared memory of a block: rows of 128 bytes hold 64 elements."""
    q, k, v = map(flash_parts, types)
    deep, wide = (-(-each // 64) * 128 for each in (depth, values))
    return q * tile.rows * deep + stages * tile.keys * (k * deep + v * wide) + BARRIERS


def flash_stages(attend: Attend, room: int) -> int:
    """The tiles of keys, and of values, that are held at a time."""
    tile = FlashTile(attend.block, attend.tile)
    bound = min(room, {2: SHORT_ROOM, 3: LIGHT_ROOM}.get(attend_blocks(attend), room))
    sizes = attend.depth, attend.values, tile, attend.types
    return next(stages for stages in FLASH_STAGES if flash_bytes(*sizes, stages) <= bound)


def attend_blocks(attend: Attend) -> int:
    """Blocks on a multiprocessor."""
    small = attend.tile == 64 and max(attend.depth, attend.values) <= 64 and attend.form is FLASH_BF16
    return (3 if small else 2) if attend.block == 64 else 1


def attend_bytes(attend: Attend, room: int) -> int:
    tile = FlashTile(attend.block, attend.tile)
    return flash_bytes(attend.depth, attend.values, tile, attend.types, flash_stages(attend, room))


def attend_threads(attend: Attend) -> int:
    """A warp for 16 queries, and four that copy."""
    return 2 * attend.block + 128


# ---- flash-decoding: keys and values of chunks go through a ring ----

DECODE_ROWS, DECODE_WARPS = 8, 8  # queries and warps of a block
DECODE_KEYS = 16 * DECODE_WARPS  # of a chunk
DECODE_DEEPEST = 256  # elements of a key, and of a value
DECODE_CHUNKS = 32  # of a block, or of those that combine them
DECODE_SLOTS = 3  # of the ring
DECODE_BLOCKS = 2  # that registers must be enough for; the compiler takes few if it is one
# Blocks that combine their chunks, and how many such clusters run at once, if each block has a multiprocessor: those of
# a cluster are near each other, and some are left over.
CLUSTERS = {8: 14, 4: 30, 2: 66}
RESERVED = 1 << 10  # bytes of shared memory that each block takes beside its own


def decode_slot(depth: int, values: int) -> int:
    """The bytes of the keys of a chunk, or of its values."""
    return DECODE_KEYS * 2 * max(depth, values)


def decode_fixed(depth: int, values: int, most: int, held: int) -> int:
    """The bytes beside the ring: queries and weights as three bf16; maxima, totals and visible chunks of each warp; the
    results of `held` chunks."""
    queries = depth // 16 * 512 * (1 if most <= 4 else 2)
    weights = DECODE_WARPS * 32 * (16 if most <= 4 else 24)
    return queries + weights + DECODE_WARPS * (8 * most + 4) + held * most * (values + 2) * 4


def fits_decode(room: int, depth: int, values: int, most: int, held: int) -> bool:
    """Whether there is room for the keys and values of a chunk, and for what is beside them."""
    return 2 * decode_slot(depth, values) + decode_fixed(depth, values, most, held) <= room


def decode_bytes(decode: Decode, room: int, beside: int = 0) -> int:
    """The shared memory of a block: a ring of three slots, or two, of a size for two blocks on a multiprocessor if that
    is possible. More would be read before the first keys are there. `beside`: bytes of its tiles."""
    fixed, slot = _decode_sizes(decode)
    both = (room + RESERVED) // 2 - RESERVED
    several = decode.count.size if isinstance(decode.count, Amount) else DECODE_SLOTS
    useful = 2 * several if isinstance(several, int) else DECODE_SLOTS
    wanted = [fixed + each * slot for each in range(min(useful, DECODE_SLOTS), 1, -1)]
    enough = both if decode.share <= 1 else room
    return next(each for most in (enough, room) for each in wanted if each + beside <= most)


def _decode_sizes(decode: Decode) -> tuple[int, int]:
    fixed = decode_fixed(decode.depth, decode.values, decode.most, decode.held)
    return fixed, decode_slot(decode.depth, decode.values)


def decode_slots(decode: Decode, ring: int) -> int:
    """The slots of a ring of this number of bytes, with what is beside it."""
    fixed, slot = _decode_sizes(decode)
    return (ring - fixed) // slot
