"""Requests for one model → calls: a bounded queue, batches of independent rows, deadlines, cancellation.

A request waits for one of the model's instances, which are threads. An idle instance starts at once. Clients take turns
by the rows that they ask for (start-time fair queueing); requests of one client run in their order. Where rows are
proven independent, an instance takes along what waits with inputs of the same kind, up to `max_batch` rows. A model
whose calls are shorter than a change of threads runs on the event loop itself (`short_calls`).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from smelt.device.runtime import limit_this_thread
from smelt.dtype import Array
from smelt.errors import TimedOutError
from smelt.serve.problems import BusyError, DeadlineError, UnavailableError
from smelt.serve.short_calls import ShortCall, ShortCalls
from smelt.stop import Cancel

INLINE = 100e-6  # seconds of a call that is not worth another thread
PATIENCE = 0.1  # seconds after which a call on the event loop is ended; it is run again in a thread. More than two
# ticks of the runtime's watch thread, which would have to be woken for a shorter deadline.
MEASURED = 16  # one call in this number on the event loop: reading a thread's clock takes a while

RESERVED = 8  # one part in this number of a queue is for clients that hold less than half of it

Inputs = Mapping[str, Array]


class ModelCall(Protocol):
    """A model as the queue calls it: arrays by name in and out."""

    def __call__(self, inputs: Inputs, timeout: float | None, cancel: Cancel | None) -> dict[str, Array]: ...


@dataclass(slots=True)
class Limits:
    """What a queue is told about its model."""

    instances: int = 1
    max_batch: int = 1  # rows; 1 where rows are not proven independent
    max_delay: float = 0.0
    max_queue: int = 1024
    may_inline: bool = True  # whether short calls run on the event loop


@dataclass(slots=True)
class Timing:
    """Seconds of one request, for statistics."""

    waited: float = 0.0
    computed: float = 0.0
    rows: int = 1
    batch: int = 1  # rows of the call that it was part of
    kernels: Sequence[Any] = ()  # of a call that was measured kernel by kernel
    started: float = 0.0  # when the call was, on `perf_counter`

    def share(self, rows: int, queued: float) -> Timing:
        """Of one of the requests that shared the call."""
        return Timing(max(0.0, self.started - queued), self.computed, rows, self.batch, self.kernels, self.started)


@dataclass(slots=True, eq=False)
class Job:
    inputs: Inputs
    deadline: float | None
    future: asyncio.Future[dict[str, Array]]
    rows: int
    kind: Any  # jobs of the same kind may share a batch
    priority: int = 0
    client: str = ""  # who takes turns with others
    turn: int = 0  # rows that its client and those who took turns with it had asked for before
    cancel: Cancel = field(default_factory=Cancel)
    queued: float = field(default_factory=time.perf_counter)
    timing: Timing = field(default_factory=Timing)
    on_done: Callable[[], object] | None = None  # called at once when the future is done

    def finish(self, outcome: dict[str, Array] | Exception) -> None:
        if self.future.done():
            return
        if isinstance(outcome, Exception):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)
        self._end()

    def give_up(self) -> None:
        """The outputs are not wanted any more."""
        if self.future.cancel():
            self._end()

    def _end(self) -> None:
        done, self.on_done = self.on_done, None  # which may know this job: no cycle stays for the collector
        if done is not None:
            done()


class ModelQueue:
    """The queue and the instances of one model. Everything but `_work` runs on the event loop."""

    def __init__(
        self,
        name: str,
        call: ModelCall,
        limits: Limits,
        on_call: Callable[[int, float], object] = lambda rows, seconds: None,
        take_kernels: Callable[[], Sequence[Any]] | None = None,
    ) -> None:
        """`take_kernels`: the kernels of the call that the same thread made last."""
        self.name, self.call, self.limits, self.on_call = name, call, limits, on_call
        self._take_kernels = take_kernels
        self._times: dict[int, deque[float]] = {}  # seconds of the last calls, by the magnitude of their inputs
        self._typical: dict[int, float] = {}  # their medians
        self._doubted: set[int] = set()  # magnitudes of inputs with a call that was ended on the event loop
        self._long: set[int] = set()  # those with a call that was not short after all: they run in threads
        self._jobs: deque[Job] = deque()  # by priority, then by turn
        self._turn = 0  # of the job that was taken last
        self._turns: dict[str, int] = {}  # of the next job of each client
        self._expiry: tuple[float, asyncio.TimerHandle] | None = None  # when a deadline may pass, on `perf_counter`
        self._ready = threading.Condition()
        self._closed = False
        self._running = self._inlined = 0
        self._short = ShortCalls(self, PATIENCE)
        self._threads: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        return len(self._jobs) + len(self._short)

    def is_inline(self, inputs: Inputs) -> bool:
        """Whether a call runs on the event loop."""
        return self.limits.may_inline and self.seconds(inputs) < INLINE

    def seconds(self, inputs: Inputs) -> float:
        """What a call with such inputs typically takes: the median of the last ones."""
        return self._typical.get(_magnitude(inputs), float("inf"))

    def doubt(self, inputs: Inputs) -> None:
        """Have calls with such inputs run in threads until one of them is measured."""
        magnitude = _magnitude(inputs)
        self._doubted.add(magnitude)
        for known in (self._times, self._typical):
            known.pop(magnitude, None)

    def measure(self, inputs: Inputs, spent: float) -> None:
        """Note the CPU time of a call; what others do on the machine must not change how it is run."""
        magnitude = _magnitude(inputs)
        if magnitude in self._doubted:  # was it the model, or the machine that did something else?
            self._doubted.discard(magnitude)
            if spent > 10 * INLINE:
                self._long.add(magnitude)
        if magnitude in self._long:
            return
        times = self._times.setdefault(magnitude, deque(maxlen=5))
        times.append(spent)
        self._typical[magnitude] = sorted(times)[len(times) // 2]

    @property
    def running(self) -> int:
        return self._running

    async def infer(
        self, inputs: Inputs, timeout: float | None, priority: int = 0, client: str = ""
    ) -> tuple[dict[str, Array], Timing]:
        """The outputs for these inputs. Cancelling the task cancels the call."""
        if self.is_inline(inputs) and (found := self.infer_now(inputs, timeout)) is not None:
            return found
        return await self.wait(self.submit(inputs, timeout, priority, client))

    async def wait(self, job: Job) -> tuple[dict[str, Array], Timing]:
        """The outputs of a request that was put into the queue. Cancelling the task cancels it."""
        try:
            return await job.future, job.timing
        except asyncio.CancelledError:
            self.cancel(job)
            raise

    def submit(self, inputs: Inputs, timeout: float | None, priority: int = 0, client: str = "") -> Job:
        """Put a request into the queue; the outputs come into its future. Where clients are told apart, one of them
        cannot fill the queue."""
        self._check_open()
        most, waiting = self.limits.max_queue, len(self._jobs)
        if waiting >= most or (client and waiting >= most - most // RESERVED and self._count(client) > most // 2):
            wait = min(60.0, waiting * min(self.seconds(inputs), 1.0))
            raise BusyError(f"{self.name} is busy", expected=f"at most {most} requests that wait", retry_after=wait)
        return self.enqueue(inputs, timeout, priority, client)

    def _count(self, client: str) -> int:
        """Requests of a client that wait."""
        with self._ready:
            return sum([job.client == client for job in self._jobs])

    def enqueue(
        self, inputs: Inputs, timeout: float | None, priority: int = 0, client: str = "", alone: bool = False
    ) -> Job:
        """The same for a request that was accepted. `alone`: it shares its call with no other, and is measured."""
        loop = asyncio.get_running_loop()
        rows = len(next(iter(inputs.values()))) if self.limits.max_batch > 1 and inputs else 1
        deadline = None if timeout is None else time.perf_counter() + timeout
        kind = object() if alone else self.kind(inputs)
        job = Job(inputs, deadline, loop.create_future(), rows, kind, priority, client)
        self._put(job)
        if deadline is not None and (self._expiry is None or deadline < self._expiry[0]):
            self._look_again(loop, deadline)
        return job

    def _look_again(self, loop: asyncio.AbstractEventLoop, deadline: float) -> None:
        """Look for requests whose deadline has passed when this one does."""
        if self._expiry is not None:
            self._expiry[1].cancel()
        left = max(0.001, deadline - time.perf_counter())
        self._expiry = deadline, loop.call_later(left, self._expire, loop)

    def _expire(self, loop: asyncio.AbstractEventLoop) -> None:
        """Refuse what waits longer than it may, also while all instances are busy."""
        self._expiry = None
        now = time.perf_counter()
        with self._ready:
            late = [job for job in self._jobs if job.deadline is not None and job.deadline <= now]
            for job in late:
                self._jobs.remove(job)
            left = min((job.deadline for job in self._jobs if job.deadline is not None), default=None)
        for job in late:
            job.finish(self._late_error())
        if left is not None:
            self._look_again(loop, left)

    def _late_error(self) -> DeadlineError:
        return DeadlineError(f"{self.name}: the deadline passed before the request could run")

    def cancel(self, job: Job) -> None:
        """End a request whose outputs are not wanted any more. Its place in the queue is free at once."""
        job.cancel.cancel()
        with self._ready, suppress(ValueError):
            self._jobs.remove(job)

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError(f"{self.name} is being unloaded", retry_after=1)

    def infer_soon(self, inputs: Inputs, timeout: float | None) -> ShortCall | tuple[dict[str, Array], Timing] | None:
        """The same on the event loop, for calls that are short: at the end of its iteration where requests can share a
        call, else at once. None: it took long for once, and shall be submitted."""
        if self.limits.max_batch > 1 and inputs:
            self._check_open()
            return self._short.add(inputs, timeout)
        return self.infer_now(inputs, timeout)

    def infer_now(self, inputs: Inputs, timeout: float | None) -> tuple[dict[str, Array], Timing] | None:
        """The same at once. None: it took long for once, and shall be submitted."""
        self._check_open()
        return self.call_now(inputs, timeout)

    def call_now(self, inputs: Inputs, timeout: float | None) -> tuple[dict[str, Array], Timing] | None:
        """The same for requests that were accepted."""
        self._inlined += 1
        measured = self._inlined % MEASURED == 0
        started, busy = time.perf_counter(), time.thread_time() if measured else 0.0
        limit_this_thread(1)
        try:
            found = self.call(inputs, PATIENCE if timeout is None else min(timeout, PATIENCE), None)
        except TimedOutError:
            if timeout is not None and timeout <= PATIENCE:
                raise
            self.doubt(inputs)
            return None
        finally:
            limit_this_thread(0)
        if measured:
            self.measure(inputs, time.thread_time() - busy)
        spent = time.perf_counter() - started
        rows = len(next(iter(inputs.values()))) if self.limits.max_batch > 1 and inputs else 1
        self.on_call(rows, spent)
        return found, Timing(0.0, spent, rows, rows, self._kernels(), started)

    def _kernels(self) -> Sequence[Any]:
        return () if self._take_kernels is None else self._take_kernels()

    def kind(self, inputs: Inputs) -> Any:
        """What must be equal in one batch: element types, and all sizes but the rows."""
        if self.limits.max_batch <= 1:
            return None
        if len(inputs) > 1 and len({len(array) for array in inputs.values()}) > 1:
            return object()  # inputs that broadcast: a call of its own
        return frozenset([(name, array.dtype, array.shape[1:]) for name, array in inputs.items()])

    def _put(self, job: Job) -> None:
        with self._ready:
            self._insert(job)
            idle = len(self._threads) - self._running
            if idle < len(self._jobs) and len(self._threads) < self.limits.instances:
                thread = threading.Thread(
                    target=self._work, name=f"smelt-{self.name}-{len(self._threads)}", daemon=True
                )
                self._threads.append(thread)
                thread.start()
            self._ready.notify()

    def _insert(self, job: Job) -> None:
        job.turn = max(self._turn, self._turns.get(job.client, 0))
        self._turns[job.client] = job.turn + job.rows
        at, mine = len(self._jobs), (-job.priority, job.turn)
        while at and (-self._jobs[at - 1].priority, self._jobs[at - 1].turn) > mine:
            at -= 1
        if at == len(self._jobs):
            self._jobs.append(job)
        else:
            self._jobs.insert(at, job)

    # ---- in the instances' threads ----

    def _work(self) -> None:
        while True:
            with self._ready:
                while not self._jobs and not self._closed:
                    self._ready.wait()
                if not self._jobs:
                    self._threads.remove(threading.current_thread())  # what was accepted may still come
                    return
                if self.limits.max_delay and self.limits.max_batch > 1:
                    self._await_more()
                jobs = self._take()
                self._running += 1
            try:
                if jobs:
                    self._run(jobs)
            finally:
                with self._ready:
                    self._running -= 1

    def _await_more(self) -> None:
        """Wait for a fuller batch, no longer than the first request may wait."""
        end = self._jobs[0].queued + self.limits.max_delay
        while self._jobs and sum(job.rows for job in self._jobs) < self.limits.max_batch and not self._closed:
            left = end - time.perf_counter()
            if left <= 0 or not self._ready.wait(left):
                return

    def _take(self) -> list[Job]:
        """The first request that is still wanted, and what can share its call."""
        now = time.perf_counter()
        taken: list[Job] = []
        rows = 0
        skipped: list[Job] = []
        while self._jobs and (not taken or rows < self.limits.max_batch):
            job = self._jobs.popleft()
            if job.cancel.cancelled or job.future.cancelled():
                continue
            if job.deadline is not None and now >= job.deadline:
                _finish(job, self._late_error())
            elif not taken or (job.kind == taken[0].kind and rows + job.rows <= self.limits.max_batch):
                taken.append(job)
                rows += job.rows
                if self.limits.max_batch <= 1:
                    break
            else:
                skipped.append(job)
        self._jobs.extendleft(reversed(skipped))
        if taken:
            self._turn = max(self._turn, taken[0].turn)
        return taken

    def _run(self, jobs: Sequence[Job]) -> None:
        started, busy = time.perf_counter(), time.thread_time()
        for job in jobs:
            job.timing.waited, job.timing.rows = started - job.queued, job.rows
        try:
            found = self._call(jobs, started)
        except Exception as error:
            if len(jobs) > 1:  # one request's data must not fail the others
                for job in jobs:
                    self._run([job])
            else:
                _finish(jobs[0], error)
            return
        spent, kernels = time.perf_counter() - started, self._kernels()
        busy = time.thread_time() - busy
        if len(jobs) == 1 or busy < INLINE:  # where a batch is short, so is each of its requests
            self.measure(jobs[0].inputs, busy)
        total = sum(job.rows for job in jobs)
        self.on_call(total, spent)
        for job, outputs in zip(jobs, found, strict=True):
            job.timing.computed, job.timing.batch, job.timing.kernels = spent, total, kernels
            _finish(job, outputs)

    def _call(self, jobs: Sequence[Job], started: float) -> list[dict[str, Array]]:
        if len(jobs) == 1:
            job = jobs[0]
            left = None if job.deadline is None else max(0.0, job.deadline - started)
            return [self.call(job.inputs, left, job.cancel)]
        latest = [job.deadline for job in jobs]
        left = None if None in latest else max(0.0, max(each for each in latest if each is not None) - started)
        joined = {name: np.concatenate([job.inputs[name] for job in jobs]) for name in jobs[0].inputs}
        outputs = self.call(joined, left, None)
        ends = np.cumsum([job.rows for job in jobs])
        return [
            {name: array[end - job.rows : end] for name, array in outputs.items()}
            for job, end in zip(jobs, ends.tolist(), strict=True)
        ]

    def close(self) -> None:
        """Take no more; what waits still runs."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()

    async def drain(self, seconds: float) -> bool:
        """Whether all that was accepted ended in time."""
        end = time.monotonic() + seconds
        while (self.waiting or self._running) and time.monotonic() < end:
            await asyncio.sleep(0.01)
        if self._expiry is not None:
            self._expiry[1].cancel()
            self._expiry = None
        return not (self.waiting or self._running)


def _magnitude(inputs: Inputs) -> int:
    return sum([array.nbytes for array in inputs.values()]).bit_length()


def _finish(job: Job, outcome: dict[str, Array] | Exception) -> None:
    with suppress(RuntimeError):  # the loop has ended, and with it the client's connection
        job.future.get_loop().call_soon_threadsafe(job.finish, outcome)
