"""StepLog: what the steps of a program with timestamps took in its last call, for the profiler and the tuner.

On the processor the code writes its own log; a program that the host launches has events around every step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from smelt.abi import LOG
from smelt.dtype import Array

if TYPE_CHECKING:
    from smelt.device.driver import Driver
    from smelt.device.host_plan import PlanProgram

NANOSECONDS = 1e6  # in a millisecond


class StepLog(Protocol):
    """Times are ticks."""

    @property
    def ticks(self) -> float:
        """In a millisecond."""
        ...

    def begin(self) -> int:
        """The time before a call."""
        ...

    def end(self) -> None:
        """Wait for the end of a call."""
        ...

    def read(self) -> tuple[Array, int]:
        """[run, (step, begin, end)] of the last call, and how many more did not fit."""
        ...

    def deferred_sizes(self, count: int) -> list[int]:
        """The data-dependent sizes of the last call."""
        ...


class ClockedLog:
    """The log that code for the processor writes. `exported` finds an array of the code by its name."""

    def __init__(self, clock: Callable[[], int], exported: Callable[[str, int], Array]) -> None:
        self._clock, self._exported = clock, exported
        self._count = exported("count", 1)
        self._log = exported("log", 3 * LOG).reshape(LOG, 3)
        self._begun = clock(), time.perf_counter()

    @property
    def ticks(self) -> float:
        clock, start = self._begun
        return float((self._clock() - clock) / (1e3 * (time.perf_counter() - start)))

    def begin(self) -> int:
        return self._clock()

    def end(self) -> None:
        """A call ends with its work."""

    def read(self) -> tuple[Array, int]:
        kept = min(int(self._count[0]), LOG)
        return self._log[:kept].copy(), int(self._count[0]) - kept

    def deferred_sizes(self, count: int) -> list[int]:
        found: list[int] = self._exported("deferred", count).tolist() if count else []
        return found


class EventLog:
    """The events of a plan that the host runs; times count from the first of them."""

    ticks = NANOSECONDS

    def __init__(self, driver: Driver, plan: PlanProgram) -> None:
        self._driver, self._plan = driver, plan

    def begin(self) -> int:
        return 0

    def end(self) -> None:
        self._driver.wait()

    def read(self) -> tuple[Array, int]:
        marks = self._plan.marks
        found = np.zeros((len(marks), 3), np.int64)
        for row, (step, begin, end) in zip(found, marks, strict=True):
            row[:] = step, self._since(marks[0][1], begin), self._since(marks[0][1], end)
        return found[np.argsort(found[:, 1], kind="stable")], 0

    def _since(self, first: Any, event: Any) -> int:
        return 0 if event is first else round(1e9 * self._driver.seconds(first, event))

    def deferred_sizes(self, count: int) -> list[int]:
        return [self._plan.measured.get(f"m{i}", 0) for i in range(count)]
