"""Running calls of a device: their number, the fraction of time that it is busy, the queue of the CPU; compiles.

Engines report the start and end of calls to an Activity; `Platform.stats` reads it. Engines in host memory run long
calls on threads of the Queue, so that they return at once.
"""

from __future__ import annotations

import contextvars
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:  # running a bundle does not import it
    from concurrent.futures import Future, ThreadPoolExecutor

T = TypeVar("T")

# Called with (kernels done, kernels in all) while a program compiles.
progress: contextvars.ContextVar[Callable[[int, int], None] | None] = contextvars.ContextVar("progress", default=None)

# Counts the programs that are compiled in this context.
_compiles: contextvars.ContextVar[Compiles | None] = contextvars.ContextVar("compiles", default=None)

LONG = 20_000_000  # operations from which a call goes to another thread: switching to it is nothing beside them


class Compiles:
    """A number of compiled programs."""

    count = 0


@contextmanager
def count_compiles() -> Iterator[Compiles]:
    """Count the programs that this context compiles."""
    made = Compiles()
    token = _compiles.set(made)
    try:
        yield made
    finally:
        _compiles.reset(token)


def note_compile() -> None:
    """An engine compiled a program."""
    made = _compiles.get()
    if made is not None:
        made.count += 1


class Activity:
    """Counts running calls. The device is busy while there is at least one."""

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
        """The number of running calls, and the busy fraction of the time since the last sample."""
        with self._lock:
            now = self._clock()
            busy = self._busy + (now - self._since if self._running else 0.0)
            share = busy / (now - self._sampled) if now > self._sampled else 0.0
            self._busy, self._sampled, self._since = 0.0, now, now
            return self._running, min(share, 1.0)


class _Calls(threading.local):
    """The long calls of one thread that are not done, in order; and whether the thread is one of the Queue's own."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[Future[Any], Callable[[], Any]]] = deque()
        self.is_worker = False


class Queue:
    """The calls of this process on its processor.

    Long calls of one thread run in their order, those of different threads at the same time: the runtime library shares
    its workers among them.
    """

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._forget()
        os.register_at_fork(after_in_child=self._forget)

    def now(self, call: Callable[[], T]) -> T:
        """Run it here."""
        self.activity.begin()
        try:
            return call()
        finally:
            self.activity.end()

    def later(self, call: Callable[[], T]) -> Future[T]:
        """Run it on another thread, with the context variables of here, after earlier calls of this thread.

        Within a call of the queue it runs at once, so that no call waits for a thread of the queue.
        """
        from concurrent.futures import Future, ThreadPoolExecutor

        future: Future[T] = Future()
        self.activity.begin()
        job = partial(contextvars.copy_context().run, call)
        if self._calls.is_worker:
            self._finish(future, job)
            return future
        waiting = self._calls.waiting
        with self._lock:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(os.cpu_count() or 1, "smelt-run")
            waiting.append((future, job))
            if len(waiting) == 1:
                self._threads.submit(self._run_first, waiting)
        return future

    def _run_first(self, waiting: deque[tuple[Future[Any], Callable[[], Any]]]) -> None:
        """Run a thread's first call. Its next one waits for a turn again, behind those of other threads."""
        self._calls.is_worker = True
        self._finish(*waiting[0])
        with self._lock:
            waiting.popleft()
            if waiting:
                assert self._threads is not None, "this is one of them"
                self._threads.submit(self._run_first, waiting)

    def _finish(self, future: Future[T], job: Callable[[], T]) -> None:
        try:
            result = job()
        except BaseException as error:  # raised where the result is read
            self.activity.end()
            future.set_exception(error)
        else:
            self.activity.end()
            future.set_result(result)

    def _forget(self) -> None:
        """After a fork: the queue's thread does not exist in the child."""
        self.activity = Activity()
        self._lock = threading.Lock()
        self._threads = None
        self._calls = _Calls()


QUEUE = Queue()
