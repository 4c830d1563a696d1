"""Short calls that arrive in one iteration of the event loop → one call at its end, on the loop itself.

A model whose calls are shorter than a change of threads runs here. Where its rows are proven independent, requests that
are read in the same iteration share a call. A request that is alone waits for nothing but the parsing of others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.dtype import Array

if TYPE_CHECKING:
    from smelt.serve.queue import Inputs, ModelQueue, Timing


class ShortCall:
    """A request, then its outputs or its error. `on_done` is called once."""

    __slots__ = (
        "_job",
        "_queue",
        "error",
        "inputs",
        "is_cancelled",
        "kind",
        "on_done",
        "outputs",
        "queued",
        "rows",
        "timeout",
        "timing",
    )

    def __init__(self, queue: ModelQueue, inputs: Inputs, timeout: float | None, rows: int, kind: Any) -> None:
        self._queue, self.inputs, self.timeout, self.rows, self.kind = queue, inputs, timeout, rows, kind
        self.queued = time.perf_counter()
        self.on_done: Callable[[], object] = _ignore
        self.is_cancelled = False
        self.outputs: dict[str, Array] = {}
        self.error: BaseException | None = None
        self.timing: Timing | None = None
        self._job: Any = None  # where it took long for once

    def result(self) -> tuple[dict[str, Array], Timing]:
        if self.error is not None:
            raise self.error
        assert self.timing is not None
        return self.outputs, self.timing

    def cancel(self) -> None:
        """The outputs are not wanted any more."""
        self.is_cancelled = True
        if self._job is not None:
            self._queue.cancel(self._job)
            self._job.give_up()

    def succeed(self, outputs: dict[str, Array], timing: Timing) -> None:
        self.outputs, self.timing = outputs, timing
        self._end()

    def fail(self, error: BaseException) -> None:
        self.error = error
        self._end()

    def _end(self) -> None:
        done, self.on_done = self.on_done, _ignore  # which knows this call: no cycle stays for the collector
        done()

    def submit(self) -> None:
        """Run it in a thread: it, or what shared its call, took long."""
        self._queue.doubt(self.inputs)
        self._job = job = self._queue.enqueue(self.inputs, self.timeout, alone=True)

        def end() -> None:
            future = job.future
            if future.cancelled():
                self.fail(asyncio.CancelledError())
            elif (error := future.exception()) is not None:
                self.fail(error)
            else:
                self.succeed(future.result(), job.timing)

        job.on_done = end


def _ignore() -> None: ...


class ShortCalls:
    """The short calls of one model that wait for the end of the iteration."""

    def __init__(self, queue: ModelQueue, patience: float) -> None:
        self._queue, self._patience = queue, patience
        self._waiting: list[ShortCall] = []

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, inputs: Inputs, timeout: float | None) -> ShortCall:
        is_urgent = timeout is not None and timeout < self._patience  # it ends alone
        kind = object() if is_urgent else self._queue.kind(inputs)
        call = ShortCall(self._queue, inputs, timeout, len(next(iter(inputs.values()))), kind)
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._run)
        self._waiting.append(call)
        return call

    def _run(self) -> None:
        waiting, self._waiting = self._waiting, []
        batches: dict[Any, list[ShortCall]] = {}
        for call in waiting:
            if call.is_cancelled:
                call.fail(asyncio.CancelledError())
                continue
            batch = batches.setdefault(call.kind, [])
            if batch and sum([each.rows for each in batch]) + call.rows > self._queue.limits.max_batch:
                self._run_batch(batch)
                batch = batches[call.kind] = []
            batch.append(call)
        for batch in batches.values():
            self._run_batch(batch)

    def _run_batch(self, calls: Sequence[ShortCall]) -> None:
        try:
            found = self._call(calls)
        except Exception as error:
            if len(calls) == 1:
                calls[0].fail(error)
                return
            for call in calls:  # one request's data must not fail the others
                self._run_batch([call])
            return
        if found is None:
            for call in calls:
                call.submit()
            return
        outputs, timing = found
        end = 0
        for call in calls:
            start, end = end, end + call.rows
            own = outputs if len(calls) == 1 else {name: array[start:end] for name, array in outputs.items()}
            call.succeed(own, timing.share(call.rows, call.queued))

    def _call(self, calls: Sequence[ShortCall]) -> tuple[dict[str, Array], Timing] | None:
        if len(calls) == 1:
            return self._queue.call_now(calls[0].inputs, calls[0].timeout)
        joined = {name: np.concatenate([call.inputs[name] for call in calls]) for name in calls[0].inputs}
        return self._queue.call_now(joined, None)
