"""Run-time tunables: one build of a program whose schedule parameters are read from a table at every call.

`fuse` is given a `Tunables`: builders get symbols instead of block sizes, and a kernel has a variant for each schedule
that gives other loops. `emit.c` writes a program that reads the table; `engine.tune` fills it. Only programs that are
built to be tuned have tunables.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from smelt.dim import symbol
from smelt.kernel.tune.schedules import (
    Blocked,
    Blocking,
    ExpandDepthwise,
    KernelKey,
    RowBands,
    Schedule,
    bands_of,
    blocking_of,
    legal_schedules,
)
from smelt.target import TileShape

VARIANT, CALL_ROWS, ROWS, IMAGE_ROWS = range(4)  # positions of a key's numbers in the table
CHUNKS = CALL_ROWS  # fused expand + depthwise has no `call_rows`
EACH = 4


@dataclass(slots=True)
class Tunables:
    """Keys whose schedules are set at run time, numbered in the order in which builders use them."""

    tile: TileShape
    numbers: dict[KernelKey, int] = field(default_factory=dict)

    def number(self, key: KernelKey) -> int:
        return self.numbers.setdefault(key, len(self.numbers))

    def blocking(self, key: KernelKey) -> Blocking:
        """Symbols for the block sizes; `max_rows` is enough for every legal schedule."""
        first = EACH * self.number(key)
        legal = legal_schedules(key, self.tile)
        max_rows = max(blocking_of(key, each).max_rows for each in legal if isinstance(each, Blocked))
        call_rows, rows, image_rows = (symbol(tunable_name(first + at)) for at in (CALL_ROWS, ROWS, IMAGE_ROWS))
        return Blocking(call_rows, rows, image_rows, max_rows)

    def bands(self, key: KernelKey) -> RowBands:
        """The same for fused expand + depthwise."""
        first = EACH * self.number(key)
        legal = legal_schedules(key, self.tile)
        bands = [RowBands.of(key, each) for each in legal if isinstance(each, ExpandDepthwise)]
        rows, chunks, gemm_rows = (symbol(tunable_name(first + at)) for at in (IMAGE_ROWS, CHUNKS, ROWS))
        max_rows, max_gemm_rows = max(each.max_rows for each in bands), max(each.max_gemm_rows for each in bands)
        return RowBands(rows, chunks, gemm_rows, max_rows, max_gemm_rows)

    def variants(self, key: KernelKey) -> tuple[Schedule, ...]:
        """One schedule for each variant of a kernel; the default's first."""
        self.number(key)
        found: dict[Any, Schedule] = {}
        for each in legal_schedules(key, self.tile):
            found.setdefault(_variant(each), each)
        return tuple(found.values())

    def values(self, key: KernelKey, schedule: Schedule) -> list[int]:
        """The numbers that a schedule puts into the table."""
        variant = [*map(_variant, self.variants(key))].index(_variant(schedule))
        if isinstance(schedule, ExpandDepthwise):
            rows, chunks = bands_of(key, schedule)
            return [variant, chunks, schedule.gemm_rows, rows]
        if not isinstance(schedule, Blocked):
            return [variant, 0, 0, 0]
        blocking = blocking_of(key, schedule)
        assert isinstance(blocking.call_rows, int)
        assert isinstance(blocking.rows, int)
        assert isinstance(blocking.image_rows, int)
        return [variant, max(blocking.call_rows, 1), max(blocking.rows, 1), max(blocking.image_rows, 1)]


def _variant(schedule: Schedule) -> Schedule:
    """The parameters of a schedule that are fixed at compile time."""
    if isinstance(schedule, Blocked):
        return type(schedule)(0, panels_outer=schedule.panels_outer)
    if isinstance(schedule, ExpandDepthwise):
        return ExpandDepthwise(schedule.pixels)
    return schedule


def tunable_name(position: int) -> str:
    """The symbol for a position in the table; no model has a symbol with a space."""
    return f"tunable {position}"
