"""A progress bar for compiles that take longer than a second, on terminals: kernels done of all, and the time.

`main` shows it around every command.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from smelt.activity import progress

if TYPE_CHECKING:
    from rich.progress import Progress

PATIENCE = 1.0  # seconds without a bar
TEXT = "compiling {task.completed} / {task.total} kernels"


@contextmanager
def compiling() -> Iterator[None]:
    """Show the compiler's progress on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    bar = _Bar()
    token = progress.set(bar.tell)
    try:
        yield
    finally:
        progress.reset(token)
        bar.stop()


class _Bar:
    """A bar that appears after a delay."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._progress: Progress | None = None
        self._state = (0, 1)

    def tell(self, done: int, total: int) -> None:
        """Kernels that are done; 0: a compile begins."""
        with self._lock:
            self._state = (done, total)
            if self._progress is not None:
                self._progress.update(self._progress.task_ids[0], completed=done, total=total)
        if done == 0:
            self._timer = threading.Timer(PATIENCE, self._start)
            self._timer.daemon = True
            self._timer.start()
        elif done == total:
            self.stop()

    def _start(self) -> None:
        with self._lock:
            done, total = self._state
            if self._timer is None or done == total:
                return
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

            columns = (SpinnerColumn(), TextColumn(TEXT), BarColumn(bar_width=20), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True), transient=True)
            self._progress.add_task("", total=total, completed=done)
            self._progress.start()

    def stop(self) -> None:
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
            if self._progress is not None:
                self._progress.stop()
                self._progress = None
