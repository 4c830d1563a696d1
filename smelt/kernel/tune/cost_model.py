"""Cost model: the estimated cycles of a kernel under a schedule, before it is built; good for ranking.

A kernel shape key, a schedule and a `Machine` (three cache levels) come in, cycles go out. `kernel.tune.search` prunes
with it and corrects it by measurements, so only the ranking has to be right.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.kernel.loops.form import F32
from smelt.kernel.tune.schedules import (
    FEW_COLUMNS,
    USUAL_COLUMNS,
    USUAL_ROWS,
    AttentionBlock,
    Blocked,
    ColumnReduction,
    Conv,
    Depthwise,
    ExpandDepthwise,
    FewColumns,
    Gemm,
    KernelKey,
    Schedule,
    TensorTile,
    Winograd,
    bands_of,
    patches_of,
    pixels_of,
    rows_of,
)
from smelt.target import TileShape

CALL = 40.0  # cycles of one micro-kernel call besides its K-loop
CHUNK = 400.0  # of one chunk: bounds, and the loops around it
FLOAT = 4
MULTIPROCESSORS = 132  # of a large GPU


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of the L1, L2 and L3 caches of a core, and cycles per byte from L2, L3 and memory."""

    tile: TileShape
    cores: int = 1
    caches: tuple[int, int, int] = (32 << 10, 1 << 20, 16 << 20)
    cycles: tuple[float, float, float] = (1 / 48, 1 / 16, 1 / 5)

    def fetch(self, bytes: float, held: float) -> float:
        """Cycles to load bytes of a working set of `held` bytes that is read repeatedly."""
        level = sum(held > size for size in self.caches)
        return 0.0 if level == 0 else bytes * self.cycles[level - 1]


def predict_cost(key: KernelKey, schedule: Schedule, machine: Machine) -> float:
    """Estimated cycles of one run."""
    match schedule:
        case Gemm():
            return _gemm_cost(key, schedule, machine, key["rows"], rows_of(key, schedule), key["groups"], 1)
        case Conv():
            pixels, image_rows = pixels_of(key, schedule)
            rows, outer = key["rows"] * key["pixels"], key["groups"] * key["batch"]
            return _gemm_cost(key, schedule, machine, rows, pixels * image_rows, outer, max(1, image_rows))
        case Winograd():
            return _gemm_cost(key, schedule, machine, key["patches"], patches_of(key, schedule), 1, 1)
        case Depthwise(pixels):
            return 1.0 + 1.0 / pixels + (0.05 * (pixels - 8) if pixels > 8 else 0.0)
        case ExpandDepthwise(pixels, _, gemm_rows, _):
            band, row_chunks = bands_of(key, schedule)
            chunks = max(1, key["batch"] * key["panels"] * row_chunks)
            rows, again = key["rows"] * key["stride"], (row_chunks - 1) * (key["window_rows"] - key["stride"])
            held = (band * key["stride"] + key["window_rows"]) * key["across"] * key["width"] * FLOAT
            expand = key["across"] * (rows + again) * (key["depth"] + machine.fetch(64.0, held) + 64.0 / gemm_rows)
            depthwise = rows * key["across"] * key["taps"] * (1.0 + 1.0 / pixels)
            return (expand + depthwise + CHUNK * chunks) * _idle(chunks, machine.cores)
        case ColumnReduction(columns):
            return 1.0 + 8.0 / columns + columns / 8192
        case TensorTile(rows, columns):
            tall, wide = rows or USUAL_ROWS, columns or USUAL_COLUMNS
            tiles = key["groups"] * -(-key["rows"] // tall) * -(-key["columns"] // wide)
            return CALL + -(-tiles // MULTIPROCESSORS) * key["depth"] * (wide + tall) / 64
        case FewColumns(columns):  # rows are read again by every block; blocks that are too few leave memory idle
            blocks = key["groups"] * -(-key["columns"] // (columns or FEW_COLUMNS[0]))
            reads = key["depth"] * (key["columns"] + blocks * key["rows"] / 8)
            return CALL + reads * _idle(max(blocks, 1), MULTIPROCESSORS)
        case AttentionBlock(queries):
            block = queries or key["width"]
            blocks = -(-key["queries"] // block)
            chunks = max(key["heads"] * blocks, 1)
            return chunks * (block + 8.0) * _idle(chunks, machine.cores)


def _gemm_cost(
    key: KernelKey,
    schedule: Blocked,
    machine: Machine,
    rows: int,
    row_block: int,
    outer: int,
    image_rows: int,
) -> float:
    """Row blocks x panels: arithmetic, loads of both operands, and sums that are written and read between K-blocks."""
    depth, panels, width = max(key["depth"], 1), key["panels"], key["width"]
    row_chunks = max(1, -(-rows // max(row_block, 1)))
    used = max(1.0, rows / row_chunks)
    chunks = max(1, outer * row_chunks * panels)
    calls = image_rows * -(-(used / image_rows) // schedule.call_rows)
    call_rows = used / calls
    inner = -(-call_rows // machine.tile.rows)
    vectors = width / machine.tile.lanes
    steps = calls * depth * (inner * vectors / 2 + call_rows * vectors / 2)
    blocks = -(-depth // F32.block)
    sums = machine.fetch(2 * used * width * FLOAT * (blocks - 1), used * width * FLOAT + F32.block * width * FLOAT)
    taps = max(1, key["taps"]) if key.kind == "conv" else 1  # which read the same pixels
    panel, left = depth * width * FLOAT, used * depth * FLOAT / taps
    if schedule.panels_outer:
        fetched = machine.fetch(panel, panel + left) + machine.fetch(left, row_chunks * left + panel)
    else:
        fetched = machine.fetch(panel, panels * panel + left) + machine.fetch(left, left + 2 * panel)
    l1_misses = machine.fetch(calls * F32.block * width * FLOAT * blocks, F32.block * (width + used) * FLOAT)
    one = steps + sums + fetched + 0.3 * l1_misses + calls * blocks * CALL + CHUNK
    return chunks * one * _idle(chunks, machine.cores)


def _idle(chunks: int, cores: int) -> float:
    """The factor by which the last chunks, which leave cores idle, prolong a kernel."""
    return -(-chunks // cores) * cores / chunks
