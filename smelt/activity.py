"""Calls under way on a device: how many there are, what share of the time it was busy, and the processor's own queue.

Engines report to an Activity when a call begins and ends; `Platform.stats` reads it. Engines in host memory run
long calls on the Queue's thread, so that they return at once.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:  # running a bundle does not import it
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

LONG = 20_000_000  # operations from which a call goes to the thread: switching to it is nothing beside them


class Activity:
    """Counts calls under way. Busy is the time with at least one of them."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = 0
        self._since = self._sampled = clock()
        self._busy = 0.0

    def begin(self) -> None:
        with self._lock:
            if self._running == 0:
                self._since = self._clock()
            self._running += 1

    def end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._running == 0:
                self._busy += self._clock() - self._since

    def sample(self) -> tuple[int, float]:
        """Calls under way, and the fraction of the time since the last sample in which there were any."""
        with self._lock:
            now = self._clock()
            busy = self._busy + (now - self._since if self._running else 0.0)
            share = busy / (now - self._sampled) if now > self._sampled else 0.0
            self._busy, self._sampled, self._since = 0.0, now, now
            return self._running, min(share, 1.0)


class Queue:
    """The calls of this process on its processor."""

    def __init__(self) -> None:
        self.activity = Activity()
        self._lock = threading.Lock()
        self._thread: ThreadPoolExecutor | None = None
        os.register_at_fork(after_in_child=self._forget)

    def now(self, call: Callable[[], T]) -> T:
        """Run it here."""
        self.activity.begin()
        try:
            return call()
        finally:
            self.activity.end()

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Run it on the thread, with the context variables of here; calls keep their order."""
        with self._lock:
            if self._thread is None:
                from concurrent.futures import ThreadPoolExecutor

                self._thread = ThreadPoolExecutor(1, "smelt-run")
            self.activity.begin()
            started = self._thread.submit(contextvars.copy_context().run, call)
        started.add_done_callback(lambda _: self.activity.end())
        return started

    def _forget(self) -> None:
        """A forked process has no threads but its own."""
        self.activity = Activity()
        self._lock = threading.Lock()
        self._thread = None


QUEUE = Queue()
