"""The queue of a model in a worker process: jobs go out and come back on the event loop, without threads.

A worker that dies fails the request that it ran; requests that shared a call are run again alone, waiting requests wait
for the next worker (`restarts`).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from smelt.dtype import Array
from smelt.errors import ParseError, error_of
from smelt.serve.isolation.channel import Channel, ClosedError, Done, Failed, Message
from smelt.serve.isolation.remote import RemoteModel
from smelt.serve.isolation.restarts import MOST_PAUSE, Restarts
from smelt.serve.problems import UnavailableError
from smelt.serve.queue import Inputs, Job, Limits, ModelQueue

log = logging.getLogger("smelt.serve")
GRACE = 5.0  # seconds after its deadline in which a worker must have answered


@dataclass(slots=True, eq=False)
class Slot:
    """One call at once: its channel, and what runs there."""

    channel: Channel
    number: int = 0
    jobs: list[Job] = field(default_factory=list)
    started: float = 0.0
    overdue: float | None = None


class RemoteQueue(ModelQueue):
    """Everything runs on the event loop; starting workers in threads."""

    def __init__(
        self,
        name: str,
        model: RemoteModel,
        limits: Limits,
        on_call: Callable[[int, float, int], object] = lambda rows, seconds, compiles: None,
    ) -> None:
        """`on_call`: also told how many programs were compiled for a call."""
        super().__init__(name, _never, limits)
        self.note_call = on_call
        self.model = model
        self._restarts = Restarts(model, self._resume, self._refuse_all)
        self._numbers = itertools.count(1)
        self._slots: list[Slot] = []
        self._idle: list[Slot] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watching: asyncio.TimerHandle | None = None
        self._is_pumping = False  # at the end of this iteration of the loop

    @property
    def restarts(self) -> int:
        return self._restarts.count

    def is_inline(self, inputs: Inputs) -> bool:
        return False

    def submit(self, inputs: Inputs, timeout: float | None, priority: int = 0, client: str = "") -> Job:
        self.attach()
        if self._restarts.is_hopeless:
            raise UnavailableError(f"{self.name}: its worker process keeps ending", retry_after=MOST_PAUSE)
        return super().submit(inputs, timeout, priority, client)

    def attach(self) -> None:
        """Listen to the worker on this event loop: one that ends is started again before it is asked."""
        if self._loop is None:
            self._attach(asyncio.get_running_loop())

    def _attach(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._slots = [Slot(channel) for channel in self.model.slots]
        self._idle = list(self._slots)
        for slot in self._slots:
            loop.add_reader(slot.channel.socket.fileno(), self._hear, slot)

    def _detach(self) -> None:
        if self._loop is not None and not self._loop.is_closed():
            for slot in self._slots:
                if slot.channel.socket.fileno() >= 0:
                    self._loop.remove_reader(slot.channel.socket.fileno())
        self._slots, self._idle = [], []

    # ---- out ----

    def _put(self, job: Job) -> None:
        self._insert(job)
        if self._idle and not self._is_pumping:  # requests that are read in one iteration of the loop share a call
            assert self._loop is not None
            self._is_pumping = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        """Give every idle slot what waits."""
        self._is_pumping = False
        while self._jobs and self._idle:
            if self.limits.max_delay and self.limits.max_batch > 1 and not self._is_due():
                return
            jobs = self._take()
            if jobs:
                self._start(self._idle.pop(), jobs)

    def _is_due(self) -> bool:
        """Whether a batch is full, or its first request has waited long enough; else look again then."""
        left = self._jobs[0].queued + self.limits.max_delay - time.perf_counter()
        if left <= 0 or self._closed or sum(job.rows for job in self._jobs) >= self.limits.max_batch:
            return True
        assert self._loop is not None
        self._loop.call_later(left, self._pump)
        return False

    def _start(self, slot: Slot, jobs: list[Job]) -> None:
        now = slot.started = time.perf_counter()
        slot.number, slot.jobs = next(self._numbers), jobs
        ends = [job.deadline for job in jobs if job.deadline is not None]
        left = max(0.0, max(ends) - now) if len(ends) == len(jobs) else None
        slot.overdue = None if left is None else now + left + GRACE
        for job in jobs:
            job.timing.waited, job.timing.rows = now - job.queued, job.rows
        self._running += 1
        try:
            slot.channel.send_call(
                slot.number, left, {name: [job.inputs[name] for job in jobs] for name in jobs[0].inputs}
            )
        except ClosedError:
            self._lose()
        except Exception as error:  # inputs that cannot be sent
            self._free(slot)
            self._settle(jobs, error)
        else:
            if self._watching is None and slot.overdue is not None and self._loop is not None:
                self._watching = self._loop.call_later(GRACE, self._watch)

    def cancel(self, job: Job) -> None:
        super().cancel(job)
        for slot in self._slots:
            if slot.jobs == [job]:
                self.model.cancel(slot.number)

    def _watch(self) -> None:
        """End a worker that does not answer long after its deadline."""
        self._watching = None
        now = time.perf_counter()
        overdue = [slot.overdue for slot in self._slots if slot.jobs and slot.overdue is not None]
        if overdue and min(overdue) < now:
            log.error("%s: its worker does not answer; it is ended", self.name)
            self.model.kill()
        elif overdue and self._loop is not None:
            self._watching = self._loop.call_later(GRACE, self._watch)

    # ---- back ----

    def _hear(self, slot: Slot) -> None:
        try:
            said = slot.channel.receive(socket.MSG_DONTWAIT)
            jobs, outcome = slot.jobs, self._read(slot, said)
        except BlockingIOError:
            return
        except (ParseError, ValueError, TypeError, LookupError, OverflowError):  # tensors that are none
            self._lose()
            return
        self._restarts.note_success()
        spent = time.perf_counter() - slot.started
        self._free(slot)
        if isinstance(outcome, list):
            total = sum(job.rows for job in jobs)
            self.note_call(total, spent, said.compiles if isinstance(said, Done) else 0)
            for job, outputs in zip(jobs, outcome, strict=True):
                job.timing.computed, job.timing.batch = spent, total
                job.finish(outputs)
        else:
            self._settle(jobs, outcome)
        if self._jobs:
            self._pump()

    def _free(self, slot: Slot) -> None:
        slot.jobs = []
        self._running -= 1
        self._idle.append(slot)

    def _read(self, slot: Slot, said: Message) -> list[dict[str, Array]] | Exception:
        """The outputs for each job, or the error of all."""
        if not isinstance(said, Done | Failed) or said.number != slot.number or not slot.jobs:
            raise ClosedError("the worker answers what was not asked")
        if isinstance(said, Failed):
            return error_of(said.error)
        if len(slot.jobs) == 1:
            return [slot.channel.tensors(said.tensors, copy=True)]
        outputs = slot.channel.tensors(said.tensors, copy=False)
        found = []
        end = 0
        for job in slot.jobs:
            start, end = end, end + job.rows
            found.append({name: array[start:end].copy() for name, array in outputs.items()})
        if any(len(array) != end for array in outputs.values()):
            raise ClosedError("the worker answers with another number of rows")
        return found

    def _settle(self, jobs: list[Job], error: Exception) -> None:
        """One request's data must not fail the others': what shared a call is run again alone."""
        if len(jobs) > 1:
            self._again(jobs)
        else:
            jobs[0].finish(error)

    def _again(self, jobs: list[Job]) -> None:
        for job in reversed(jobs):
            job.kind = object()
            self._jobs.appendleft(job)

    # ---- workers that end ----

    def _lose(self) -> None:
        """The worker has died, or broke the protocol."""
        if self._restarts.is_running or self._loop is None:
            return
        lost = [slot.jobs for slot in self._slots if slot.jobs]
        self._detach()
        self._running = 0
        error = UnavailableError(
            f"{self.name}: its worker process ended while it ran the request",
            remedy="send it again; the worker is started anew",
            retry_after=1,
        )
        for jobs in lost:
            self._settle(jobs, error)
        self._restarts.begin(self._loop, wanted=not self._closed or bool(self._jobs))

    def _resume(self) -> None:
        assert self._loop is not None
        self._attach(self._loop)
        self._pump()

    def _refuse_all(self, why: str) -> None:
        while self._jobs:
            self._jobs.popleft().finish(UnavailableError(f"{self.name}: its worker process has died", got=why))

    async def drain(self, seconds: float) -> bool:
        done = await super().drain(seconds)
        await self._restarts.stop()
        self._detach()
        if self._watching is not None:
            self._watching.cancel()
        return done


def _never(inputs: Inputs, timeout: float | None, cancel: Any) -> dict[str, Array]:
    raise AssertionError("calls of a worker go through its channels")
