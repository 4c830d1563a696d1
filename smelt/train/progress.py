"""A line on the terminal that says how far a run is: epoch, minibatches, loss, rows per second and the time left."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_WIDTH = 20
_PAUSE = 0.1  # seconds between two pictures


class ProgressBar:
    """Writes to a terminal (stderr), over and over the same line; nothing where there is none."""

    def __init__(self, epochs: int, rows: int, shown: bool | None = None, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.shown = self.stream.isatty() if shown is None else shown
        self.epochs, self.rows = epochs, rows
        self._first = self._last = time.monotonic()
        self._taken = 0

    def step(self, epoch: int, number: int, count: int | None, loss: float) -> None:
        """A minibatch was taken, the `number`th of `count` (None: not known) of an epoch."""
        self._taken += 1
        now = time.monotonic()
        if not self.shown or (now - self._last < _PAUSE and number != count):
            return
        self._last = now
        rate = self._taken * self.rows / max(now - self._first, 1e-9)
        line = f"epoch {epoch + 1}/{self.epochs} {_bar(number, count)} loss {loss:.4g} {rate:,.0f} rows/s"
        if count is not None:
            left = (self.epochs * count - epoch * count - number) * (now - self._first) / self._taken
            line += f" {_clock(left)} left"
        self.stream.write(f"\r\x1b[K{line}")
        self.stream.flush()

    def close(self) -> None:
        if self.shown and self._taken:
            self.stream.write("\n")
            self.stream.flush()


def _bar(number: int, count: int | None) -> str:
    if count is None:
        return f"{number}"
    full = _WIDTH * number // max(count, 1)
    return f"[{'#' * full}{'.' * (_WIDTH - full)}] {number}/{count}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(max(seconds, 0)), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}" if minutes >= 60 else f"{minutes}:{rest:02}"
