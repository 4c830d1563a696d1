"""A progress bar for compiles that take longer than a second, on terminals: `main` shows it around every command."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from smelt.device import cpu

PATIENCE = 1.0  # seconds without a bar


@contextmanager
def compiling() -> Iterator[None]:
    """Show how far the compiler is, on stderr, where somebody looks at it."""
    if not sys.stderr.isatty():
        yield
        return
    bar = _Bar()
    token = cpu.progress.set(bar.tell)
    try:
        yield
    finally:
        cpu.progress.reset(token)
        bar.stop()


class _Bar:
    def __init__(self) -> None:
        self._started = 0.0
        self._progress: Progress | None = None

    def tell(self, done: int, total: int) -> None:
        """So many of the pieces are done; 0: a compile begins."""
        if done == 0:
            self._started = time.monotonic()
        if done == total:
            self.stop()
        elif self._progress is not None:
            self._progress.update(self._progress.task_ids[0], completed=done, total=total)
        elif time.monotonic() - self._started > PATIENCE:
            columns = (TextColumn("compiling"), BarColumn(), TextColumn("{task.completed}/{task.total}"))
            console = Console(stderr=True)
            self._progress = Progress(*columns, TimeElapsedColumn(), console=console, transient=True)
            self._progress.add_task("compiling", total=total, completed=done)
            self._progress.start()

    def stop(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
