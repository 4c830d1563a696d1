"""Schedule parameters of kernels: the shape key of a kernel, one record of parameters per kernel kind, and defaults.

Builders call `Nest.choose_schedule(key, kind)`; `fuse` is given the lookup that answers (`engine.tuned`). No schedule
changes the order in which an element is summed, so results are bit-identical under all of them. `kernel.tune.search`
searches `legal_schedules`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from math import log2
from typing import Any, TypeAlias, TypeVar

from smelt.dim import Size, evaluate, symbols
from smelt.frozen import Frozen
from smelt.target import TileShape

DEFAULT_CALL_ROWS = 192  # rows of one micro-kernel call: fewer, larger calls have fewer incomplete register tiles
ROWS = 12  # the same where the schedule is fixed
MIN_CHUNKS = 8  # chunks of work that should exist to spread over cores
DYNAMIC = 64  # the value that a symbol of a dynamic dimension is assumed to have
DYNAMIC_ROWS, DYNAMIC_PATCHES = 192, 64  # row blocks where the number of rows or patches is dynamic
CALL_ROWS = (12, 24, 48, 96, 192)  # candidates
PIXEL_BLOCK = 96  # pixels of a long row that share one pass over a K-block
MAX_PATCHES = 128  # Winograd patches whose sums fit on a stack
ROW_BLOCKS = (12, 24, 36, 48, 72, 96, 144, 192, 288, 384, 576, 768)  # candidates
# Candidates on a GPU: rows and columns of a tile on tensor cores; columns of a block with few rows.
TENSOR_TILES = (*((128, columns) for columns in (64, 128, 192, 256)), (64, 64), (64, 128))
FEW_COLUMNS = (16, 32, 64)
USUAL_ROWS, USUAL_COLUMNS = 128, 128

# Cost of a row block besides its arithmetic, in rows: loading a B panel costs 1 + depth / PANEL_STEPS, at most MAX_LOAD
# (the rest of a deep panel is prefetched). ROW_GROWTH: rows get more expensive as their sums leave the L1 cache.
PANEL_STEPS, MAX_LOAD, ROW_GROWTH = 16, 10.0, 0.0014
PATCH_LOAD = 1.8  # the panel cost for Winograd patches, each of which has sixteen rows
MIN_ROWS = 8  # smallest row block, where there are many rows
CORES = (1, 2, 4, 8)  # core counts to balance for: the number of cores is unknown at compile time


class Gemm(Frozen):
    """`row_block` rows share one pass over a K-block of a packed panel; `call_rows` rows per micro-kernel call.
    `panels_outer`: panels are the outer loop and rows the inner one."""

    row_block: int
    call_rows: int = DEFAULT_CALL_ROWS
    panels_outer: bool = False


class Conv(Frozen):
    """The same for output pixels. A row of at most `2 * row_block` pixels is not split."""

    row_block: int
    call_rows: int = DEFAULT_CALL_ROWS
    panels_outer: bool = False


class Winograd(Frozen):
    """The same for patches of 4 x 4 pixels, each of which has 16 rows."""

    row_block: int
    call_rows: int = DEFAULT_CALL_ROWS
    panels_outer: bool = False


class Depthwise(Frozen):
    """At most `pixels` neighbouring output pixels of a row are computed at once."""

    pixels: int


class ExpandDepthwise(Frozen):
    """Fused expand + depthwise: bands of expanded rows take `band_bytes`; `gemm_rows` of their pixels are computed at
    once. Rows are split into chunks where there are fewer than `min_chunks`."""

    pixels: int = 8
    band_bytes: int = 192 << 10
    gemm_rows: int = 96
    min_chunks: int = MIN_CHUNKS


class ColumnReduction(Frozen):
    """Columns per iteration."""

    columns: int = 64


class AttentionBlock(Frozen):
    """Queries per block; 0: as many as the op says."""

    queries: int = 0


class TensorTile(Frozen):
    """A block's tile on tensor cores; 0: what is predicted to be fastest. Where blocks split K it has no effect: the
    parts of K would be others."""

    rows: int = 0
    columns: int = 0


class FewColumns(Frozen):
    """Columns of a block with few rows on tensor cores; 0: more where there are many columns or rows."""

    columns: int = 0


B = TypeVar("B", Gemm, Conv, Winograd)
Blocked: TypeAlias = Gemm | Conv | Winograd
Schedule: TypeAlias = Blocked | Depthwise | ExpandDepthwise | ColumnReduction | AttentionBlock | TensorTile | FewColumns

# Kind: (record, revision, numbers of the key). The revision changes with the builder: measurements of an older one are
# ignored.
KINDS: dict[str, tuple[type[Schedule], int, str]] = {
    "gemm": (Gemm, 3, "groups rows depth panels width"),
    "conv": (Conv, 3, "batch rows pixels groups depth panels width taps stride"),
    "winograd": (Winograd, 2, "patches depth panels width"),
    "depthwise_conv": (Depthwise, 3, "batch rows pixels channels taps stride"),
    "expand_depthwise": (ExpandDepthwise, 2, "batch rows pixels across depth panels width taps stride window_rows"),
    "column_reduction": (ColumnReduction, 2, "outer rows columns bytes"),
    "attention": (AttentionBlock, 2, "heads queries keys depth values masks width"),
    "tensor_gemm": (TensorTile, 2, "groups rows depth columns bits"),
    "tensor_conv": (TensorTile, 1, "groups rows depth columns bits"),
    "few_gemm": (FewColumns, 1, "groups rows depth columns bits"),
}


class KernelKey(Frozen):
    """Kernel shape key: everything that a schedule may depend on. A dynamic dimension is represented by an estimate,
    rounded up to a power of two."""

    kind: str
    numbers: tuple[tuple[str, int], ...]
    dynamic: frozenset[str] = frozenset()

    @staticmethod
    def of(kind: str, **sizes: Size) -> KernelKey:
        assert " ".join(sizes) == KINDS[kind][2]
        dynamic = frozenset(name for name, size in sizes.items() if not isinstance(size, int))
        return KernelKey(kind, tuple((name, _rounded_estimate(size)) for name, size in sizes.items()), dynamic)

    def __getitem__(self, name: str) -> int:
        return dict(self.numbers)[name]

    def __str__(self) -> str:
        """A stable text: the key in the tuning database."""
        numbers = (f"{name}={'~' * (name in self.dynamic)}{number}" for name, number in self.numbers)
        return " ".join([f"{self.kind}/{KINDS[self.kind][1]}", *numbers])

    @staticmethod
    def parse(text: str) -> KernelKey | None:
        """The key of a text; None for another revision, or a text that is no key."""
        head, *parts = text.split(" ")
        kind, _, revision = head.partition("/")
        pairs = [part.partition("=") for part in parts]
        plain = all(equals and value.removeprefix("~").isdecimal() for _, equals, value in pairs)
        if kind not in KINDS or revision != str(KINDS[kind][1]) or not plain:
            return None
        if " ".join(name for name, _, _ in pairs) != KINDS[kind][2]:
            return None
        numbers = tuple((name, int(value.removeprefix("~"))) for name, _, value in pairs)
        return KernelKey(kind, numbers, frozenset(name for name, _, value in pairs if value.startswith("~")))


class Blocking(Frozen):
    """The loops that a blocked schedule gives for a key: `call_rows` per micro-kernel call; `rows` (pixels of a
    row) of `image_rows` share one pass over a K-block. `max_rows`: rows of the tile of sums."""

    call_rows: Size
    rows: Size
    image_rows: Size
    max_rows: int


class RowBands(Frozen):
    """The loops of a fused expand + depthwise kernel: bands of `rows` output rows, in `chunks`; `gemm_rows` pixels of
    the expanded feature map per GEMM. Local arrays hold `max_rows` and `max_gemm_rows`."""

    rows: Size
    chunks: Size
    gemm_rows: Size
    max_rows: int
    max_gemm_rows: int

    @staticmethod
    def of(key: KernelKey, schedule: ExpandDepthwise) -> RowBands:
        rows, chunks = bands_of(key, schedule)
        return RowBands(rows, chunks, schedule.gemm_rows, rows, schedule.gemm_rows)


Lookup: TypeAlias = Callable[[KernelKey], Schedule | None]


def no_schedule(key: KernelKey) -> Schedule | None:
    """The lookup without measurements: every kernel gets its default."""
    return None


@lru_cache(4096)
def default_schedule(key: KernelKey) -> Schedule:
    """The schedule of a kernel that was not tuned."""
    match key.kind:
        case "gemm" if "rows" in key.dynamic:
            return Gemm(DYNAMIC_ROWS)
        case "winograd" if "patches" in key.dynamic:
            return Winograd(DYNAMIC_PATCHES)
        case "gemm":
            others = key["groups"] * key["panels"]
            return Gemm(_row_block(key["rows"], 1, others, _load_cost(key["depth"])))
        case "winograd":
            return Winograd(min(_row_block(key["patches"], 1, key["panels"], PATCH_LOAD), MAX_PATCHES))
        case "conv" if "pixels" in key.dynamic or key["pixels"] > 2 * PIXEL_BLOCK:
            return Conv(PIXEL_BLOCK)
        case "conv":
            others = key["batch"] * key["groups"] * key["panels"]
            return Conv(_row_block(key["rows"], key["pixels"], others, _load_cost(key["depth"])))
        case "depthwise_conv":
            return Depthwise(_pixels(key))
        case "expand_depthwise":
            return ExpandDepthwise()
        case "column_reduction":
            return ColumnReduction()
        case "attention":
            return AttentionBlock()
        case "tensor_gemm" | "tensor_conv":
            return TensorTile()
        case "few_gemm":
            return FewColumns()
    raise AssertionError(key.kind)


def _pixels(key: KernelKey) -> int:
    """Neighbouring pixels of a large window share most of their loads; for a small window they take registers away from
    its taps. A single pixel shares nothing."""
    if "pixels" in key.dynamic:
        return 2 if key["taps"] <= 9 else 8
    pixels = key["pixels"]
    few = largest_divisor(pixels, 2 if key["taps"] <= 9 else 16)
    return few if few > 1 else largest_divisor(pixels, 8)


def _load_cost(depth: int) -> float:
    return min(MAX_LOAD, 1 + depth / PANEL_STEPS)


def _row_block(units: int, rows: int, others: int, load: float) -> int:
    """Rows of a block, where `units` of `rows` each are split into chunks, once for each of `others`. Blocks are large
    enough to pay for `load`, and their number balances over any of `CORES`."""

    def cost(chunks: int) -> float:
        most = -(-units // chunks) * rows
        calls = sum(-(-chunks * others // cores) * cores for cores in CORES)
        return calls * (load + most + ROW_GROWTH * most**2)

    units, rows, others = max(units, 1), max(rows, 1), max(others, 1)
    chunks = min(range(1, min(units, units * rows // MIN_ROWS + max(CORES)) + 1), key=cost)
    return -(-units // chunks) * rows


def estimate(size: Size) -> int:
    """A size; a dynamic one with `DYNAMIC` for each symbol."""
    return evaluate(size, dict.fromkeys(symbols(size), DYNAMIC))


def _rounded_estimate(size: Size) -> int:
    return size if isinstance(size, int) else 1 << max(estimate(size) - 1, 0).bit_length()


def chunk_size(count: Size, most: int, others: Size) -> int:
    """How many of `count` items form a chunk: at most `most`, yet enough chunks for all cores. `others`: chunks that
    other loops give."""
    return max(1, min(most, estimate(count), estimate(count) * estimate(others) // MIN_CHUNKS))


# ---- the search space ----


@lru_cache(1024)
def legal_schedules(key: KernelKey, tile: TileShape) -> tuple[Schedule, ...]:
    """The default first, then all candidates; no two give the same loops."""
    return tuple(_distinct(key, tile))


def _distinct(key: KernelKey, tile: TileShape) -> Iterator[Schedule]:
    seen: set[tuple[Any, ...]] = set()
    usual = default_schedule(key)
    for schedule in (usual, *_candidates(key, tile)):
        effect = effect_of(key, schedule, tile)
        if effect not in seen:
            seen.add(effect)
            yield schedule


def _candidates(key: KernelKey, tile: TileShape) -> Iterable[Schedule]:
    match key.kind:
        case "gemm":
            return _list_blockings(Gemm, key["rows"] <= key["panels"] * key["width"])
        case "conv":
            pixels = key["batch"] * key["rows"] * key["pixels"]
            return _list_blockings(Conv, pixels <= key["panels"] * key["width"])
        case "winograd":
            return (each for each in _list_blockings(Winograd, False) if each.row_block <= MAX_PATCHES)
        case "depthwise_conv":
            return (Depthwise(n) for n in range(1, 17) if key["pixels"] % n == 0)
        case "expand_depthwise":
            return (
                ExpandDepthwise(n, kib << 10, rows, chunks)
                for n in range(4, 17)
                if key["pixels"] % n == 0
                for kib in (96, 192, 288)
                for rows in (48, 96, 192)
                for chunks in (1, 4, 8, 16)
            )
        case "column_reduction":
            return (ColumnReduction(n) for n in (16, 32, 128, 256, 512))
        case "attention":
            return (AttentionBlock(n) for n in range(tile.lanes, key["width"], tile.lanes))
        case "tensor_gemm" | "tensor_conv":
            return (TensorTile(*each) for each in TENSOR_TILES)
        case "few_gemm":
            return map(FewColumns, FEW_COLUMNS)
    raise AssertionError(key.kind)


def _list_blockings(kind: type[B], wide: bool) -> Iterator[B]:
    """Panels are an outer loop only where they outweigh the rows: the smaller operand is read repeatedly."""
    for panels_outer in (False, True) if wide else (False,):
        for call_rows in CALL_ROWS:
            for row_block in ROW_BLOCKS:
                if row_block >= call_rows:
                    yield kind(row_block, call_rows, panels_outer)


def effect_of(key: KernelKey, schedule: Schedule, tile: TileShape) -> tuple[Any, ...]:
    """The loop structure that a schedule gives for a key: schedules with equal effects give the same loops."""
    match schedule:
        case Gemm(call_rows=call_rows, panels_outer=first):
            rows = rows_of(key, schedule)
            if "rows" in key.dynamic:
                return rows, call_rows, first and key["panels"] > 1
            chunks = -(-key["rows"] // rows)
            used = -(-key["rows"] // max(chunks, 1))
            return chunks, -(-used // call_rows), first and chunks > 1 and key["panels"] > 1
        case Conv(call_rows=call_rows, panels_outer=first):
            pixels, rows = pixels_of(key, schedule)
            if "pixels" in key.dynamic:
                return pixels, rows, call_rows, first and key["panels"] > 1
            chunks, segments = -(-key["rows"] // rows), -(-key["pixels"] // max(pixels, 1))
            used = -(-key["pixels"] // max(segments, 1))
            several = key["batch"] * chunks * segments > 1
            return chunks, segments, -(-used // call_rows), first and several and key["panels"] > 1
        case Winograd(call_rows=call_rows, panels_outer=first):
            rows = patches_of(key, schedule)
            if "patches" in key.dynamic:
                return rows, call_rows, first and key["panels"] > 1
            chunks = -(-key["patches"] // rows)
            used = -(-key["patches"] // max(chunks, 1))
            return chunks, -(-used // call_rows), first and chunks > 1 and key["panels"] > 1
        case Depthwise(most):
            return (largest_divisor(key["pixels"], most) if "pixels" not in key.dynamic else most,)
        case ExpandDepthwise(pixels, _, rows, _):
            expanded = key["rows"] * key["across"]
            return largest_divisor(key["pixels"], pixels), min(rows, expanded), *bands_of(key, schedule)
        case ColumnReduction(columns):
            return (min(columns, 16 * -(-key["columns"] // 16)),)
        case AttentionBlock(queries):
            block = queries or key["width"]
            return (min(block, tile.lanes * -(-key["queries"] // tile.lanes)),)
        case TensorTile(rows, columns):
            return rows, columns
        case FewColumns(columns):
            return (columns,)


def rows_of(key: KernelKey, schedule: Gemm) -> int:
    """Rows per pass over a K-block."""
    return schedule.row_block if "rows" in key.dynamic else max(1, min(schedule.row_block, key["rows"]))


def pixels_of(key: KernelKey, schedule: Conv) -> tuple[int, int]:
    """Pixels of a row, and rows, per pass over a K-block."""
    pixels = key["pixels"]
    if "pixels" in key.dynamic or pixels > 2 * schedule.row_block:
        return schedule.row_block, 1
    rows = max(1, schedule.row_block // max(pixels, 1))
    return pixels, rows if "rows" in key.dynamic else max(1, min(rows, key["rows"]))


def patches_of(key: KernelKey, schedule: Winograd) -> int:
    """Patches per pass over a K-block."""
    return schedule.row_block if "patches" in key.dynamic else max(1, min(schedule.row_block, key["patches"]))


def blocking_of(key: KernelKey, schedule: Blocked) -> Blocking:
    if not isinstance(schedule, Conv):
        rows = rows_of(key, schedule) if isinstance(schedule, Gemm) else patches_of(key, schedule)
        return Blocking(schedule.call_rows, rows, 1, rows)
    pixels, rows = pixels_of(key, schedule)
    return Blocking(schedule.call_rows, pixels, rows, max(pixels * rows, 1))


def bands_of(key: KernelKey, schedule: ExpandDepthwise) -> tuple[int, int]:
    """Output rows of a band, whose expanded rows stay in cache, and the number of chunks. At the border of two chunks
    expanded rows are computed twice: at most a sixth of all."""
    rows, stride, window_rows = key["rows"], key["stride"], key["window_rows"]
    held = schedule.band_bytes // max(1, 4 * key["across"] * key["width"])
    cheap = rows * stride // max(1, 6 * (window_rows - stride))
    chunks = max(1, min(cheap, -(-schedule.min_chunks // max(1, key["panels"] * key["batch"]))))
    longest = max(1, (held - window_rows) // max(1, stride) + 1)
    return longest if "rows" in key.dynamic else max(1, min(-(-rows // chunks), longest)), chunks


def largest_divisor(count: Size, most: int) -> int:
    """The largest divisor of a size up to `most`; 1 where the size is dynamic."""
    return max(n for n in range(1, most + 1) if n == 1 or (isinstance(count, int) and count % n == 0))


# ---- schedules as numbers and as data ----


def features(key: KernelKey, schedule: Schedule) -> tuple[float, ...]:
    """A schedule as a point; neighbouring candidates are about 1 apart."""
    match schedule:
        case Gemm(call_rows=call_rows, panels_outer=first):
            return log2(rows_of(key, schedule)), 2 * log2(call_rows), 2.0 * first
        case Conv(call_rows=call_rows, panels_outer=first):
            pixels, rows = pixels_of(key, schedule)
            return log2(pixels * rows + 1), 2 * log2(call_rows), 2.0 * first
        case ExpandDepthwise(pixels, band_bytes, gemm_rows, chunks):
            return log2(pixels), log2(band_bytes), log2(gemm_rows), log2(chunks)
        case Winograd(call_rows=call_rows, panels_outer=first):
            return log2(patches_of(key, schedule) + 1), 2 * log2(call_rows), 2.0 * first
        case Depthwise(number) | ColumnReduction(number) | AttentionBlock(number):
            return (log2((number or key["width"]) + 1),)
        case TensorTile(rows, columns):
            return log2(rows or USUAL_ROWS), log2(columns or USUAL_COLUMNS)
        case FewColumns(number):
            return (log2(number or FEW_COLUMNS[0]),)


def scale_of(key: KernelKey) -> tuple[float, ...]:
    """A key as a point among keys of its kind."""
    return tuple(log2(number + 1) for _, number in key.numbers)


def schedule_record(schedule: Schedule) -> dict[str, int]:
    return schedule.record()


def schedule_of(key: KernelKey, record: Mapping[str, Any], tile: TileShape) -> Schedule | None:
    """The schedule of a record, if it is legal for a key."""
    kind = KINDS[key.kind][0]
    if set(kind.__match_args__) != record.keys() or not all(type(v) in (int, bool) for v in record.values()):
        return None
    found = kind(**record)
    return found if found in legal_schedules(key, tile) else None


def schedule_text(schedule: Schedule) -> str:
    return " ".join(f"{name}={int(value)}" for name, value in schedule_record(schedule).items())
