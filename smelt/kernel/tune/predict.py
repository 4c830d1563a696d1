"""What a choice costs before anything is built: cycles of a processor with three levels of cache, good for ranking.

A problem, a choice and a `Machine` come in, a number goes out. `kernel.search` prunes with it and corrects it by what
was measured, so that it has to be right about directions only.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.kernel.emit.tile_f32 import BLOCK, TileShape
from smelt.kernel.tune.choice import (
    AttentionBlock,
    Blocked,
    ChannelConvolution,
    Choice,
    ColumnReduction,
    Contraction,
    Convolution,
    ExpandedConvolution,
    Problem,
    Winograd,
    bands_of,
    patches_of,
    pixels_of,
    rows_of,
)

CALL = 40.0  # cycles of one product besides its steps
PIECE = 400.0  # of one piece of work: bounds, and the loops around it
FLOAT = 4


@dataclass(frozen=True, slots=True)
class Machine:
    """Bytes of the caches of a core, and cycles for a byte from each level beyond the first; the last is memory."""

    tile: TileShape
    cores: int = 1
    caches: tuple[int, int, int] = (32 << 10, 1 << 20, 16 << 20)
    cycles: tuple[float, float, float] = (1 / 48, 1 / 16, 1 / 5)

    def fetch(self, bytes: float, held: float) -> float:
        """Cycles to bring bytes that are part of a set of `held` bytes which is gone through again and again."""
        level = sum(held > size for size in self.caches)
        return 0.0 if level == 0 else bytes * self.cycles[level - 1]


def predicted(problem: Problem, choice: Choice, machine: Machine) -> float:
    """Cycles of one run, about."""
    match choice:
        case Contraction():
            return _product(problem, choice, machine, problem["rows"], rows_of(problem, choice), problem["groups"], 1)
        case Convolution():
            near, lines = pixels_of(problem, choice)
            together = near * lines
            rows = problem["lines"] * problem["pixels"]
            outer = problem["groups"] * problem["images"]
            return _product(problem, choice, machine, rows, together, outer, max(1, lines))
        case Winograd():
            return _product(problem, choice, machine, problem["patches"], patches_of(problem, choice), 1, 1)
        case ChannelConvolution(pixels):
            return 1.0 + 1.0 / pixels + (0.05 * (pixels - 8) if pixels > 8 else 0.0)
        case ExpandedConvolution(pixels, _, rows, _):
            band, shares = bands_of(problem, choice)
            pieces = max(1, problem["images"] * problem["panels"] * shares)
            lines, again = problem["lines"] * problem["stride"], (shares - 1) * (problem["reach"] - problem["stride"])
            held = (band * problem["stride"] + problem["reach"]) * problem["across"] * problem["width"] * FLOAT
            made = problem["across"] * (lines + again) * (problem["depth"] + machine.fetch(64.0, held) + 64.0 / rows)
            seen = lines * problem["across"] * problem["taps"] * (1.0 + 1.0 / pixels)
            return (made + seen + PIECE * pieces) * _idle(pieces, machine.cores)
        case ColumnReduction(wide):
            return 1.0 + 8.0 / wide + wide / 8192
        case AttentionBlock(queries):
            block = queries or problem["width"]
            blocks = -(-problem["queries"] // block)
            pieces = max(problem["heads"] * blocks, 1)
            return pieces * (block + 8.0) * _idle(pieces, machine.cores)


def _product(
    problem: Problem,
    choice: Blocked,
    machine: Machine,
    rows: int,
    together: int,
    outer: int,
    lines: int,
) -> float:
    """Tiles of rows x a panel: arithmetic, what panels and rows cost to fetch, and sums that go to memory and back."""
    depth, panels, width = max(problem["depth"], 1), problem["panels"], problem["width"]
    chunks = max(1, -(-rows // max(together, 1)))
    used = max(1.0, rows / chunks)
    pieces = max(1, outer * chunks * panels)
    calls = lines * -(-(used / lines) // choice.height)
    height = used / calls
    inner = -(-height // machine.tile.rows)
    vectors = width / machine.tile.lanes
    steps = calls * depth * (inner * vectors / 2 + height * vectors / 2)
    blocks = -(-depth // BLOCK)
    sums = machine.fetch(2 * used * width * FLOAT * (blocks - 1), used * width * FLOAT + BLOCK * width * FLOAT)
    taps = max(1, problem["taps"]) if problem.kind == "convolution" else 1  # which read the same pixels
    panel, left = depth * width * FLOAT, used * depth * FLOAT / taps
    if choice.panels_first:
        fetched = machine.fetch(panel, panel + left) + machine.fetch(left, chunks * left + panel)
    else:
        fetched = machine.fetch(panel, panels * panel + left) + machine.fetch(left, left + 2 * panel)
    nearest = machine.fetch(calls * BLOCK * width * FLOAT * blocks, BLOCK * (width + used) * FLOAT)
    one = steps + sums + fetched + 0.3 * nearest + calls * blocks * CALL + PIECE
    return pieces * one * _idle(pieces, machine.cores)


def _idle(pieces: int, cores: int) -> float:
    """How much longer it takes because the last pieces leave cores without work."""
    return -(-pieces // cores) * cores / pieces
