"""The engine: one thread that schedules steps, runs them and delivers their tokens while there are requests.

`submit` and `cancel` may be called from any thread; they take effect between steps. A step that fails ends its
requests with the error; the other requests are recomputed.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from smelt.buffer import bytes_text
from smelt.errors import MemoryLimitError, RunError
from smelt.llm.batch import CHUNK, Batch, Decoding, Drawn, Rows, Stepping
from smelt.llm.cache import SEQUENCES, Pool
from smelt.llm.config import PAGE
from smelt.llm.request import Request
from smelt.llm.scheduler import Part, Scheduler

T = TypeVar("T")
AHEAD = 1  # steps that begin before the tokens of the one before are known
AHEAD_IN_RUN = 2  # the same in a run
SHORTEST = 4  # steps that a run is begun for


@dataclass(frozen=True, slots=True)
class Launched:
    """A running step: what it computes and what it gives."""

    parts: list[Part]
    made: Rows
    batch: Batch | None = None  # None in a run


class Engine:
    """A step, a pool and a scheduler. The thread starts with the first request."""

    def __init__(self, step: Stepping, pool: Pool, sequences: int = SEQUENCES, spare: int | None = None) -> None:
        """`spare`: bytes that runs may take besides weights and pool, where memory is limited."""
        self.pool = pool
        self._spare = spare
        self.scheduler = Scheduler(pool.pages, step.most, sequences)
        self.steps = 0
        self.after_step: Callable[[], object] = lambda: None  # called when the tokens of a step were given out
        self._step = step
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._busy = False  # a step runs
        self._guests = 0  # threads that wait for the time between steps
        self._unread: Launched | None = None  # the last step, where nothing of it was read: it may have failed

    # ---- for any thread ----

    def submit(self, *requests: Request) -> None:
        with self._changed:
            if self._closed:
                raise RunError("the model is closed", remedy="load it again")
            for request in requests:
                self._check_room(request)
            self._add(requests)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="smelt-llm", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def cancel(self, request: Request) -> None:
        """End a request before the next step."""
        with self._changed:
            request.cancelled = True
            self._changed.notify_all()

    def between_steps(self, act: Callable[[], T]) -> T:
        """Call a function while no step runs. If it fails and the cache is lost, running requests are recomputed."""
        with self._changed:
            self._guests += 1
            try:
                while self._busy:
                    self._changed.wait()
                try:
                    return act()
                except BaseException:
                    if self.pool.is_lost:
                        self._forget()
                    raise
            finally:
                self._guests -= 1
                self._changed.notify_all()

    def close(self) -> None:
        """End all requests, and the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _check_room(self, request: Request) -> None:
        pages = self.pool.pages
        most = pages.limit * PAGE
        if pages.count_needed(request.prompt + request.most, CHUNK) > pages.limit:
            raise RunError(
                "the cache has no room for this number of tokens",
                expected=f"prompt and answer together at most {most}",
                got=f"{request.prompt} + {request.most}",
                remedy="load(…, memory_limit=…) with a larger limit",
            )

    # ---- the thread ----

    @property
    def _has_work(self) -> bool:
        return bool(self.scheduler.waiting or self.scheduler.running)

    def _work(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                self._changed.notify_all()
                while not self._closed and (self._guests or not self._has_work):
                    self._changed.wait()
                if self._closed:
                    for request in self.scheduler.drop(lambda _: True):
                        request.end("cancelled")
                    return
                parts = self._plan()
                self._busy = True
            self._run(parts)

    def run_step(self) -> int:
        """Run one step on the caller's thread, without a thread of our own; the number of tokens computed."""
        assert self._thread is None, "one thread works"
        parts = self._plan()
        self._run(parts)
        return sum(part.count for part in parts)

    def add(self, *requests: Request) -> None:
        """`submit` for a caller that runs the steps itself."""
        for request in requests:
            self._check_room(request)
        self._add(requests)

    def _add(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.scores or request.most:
                self.scheduler.add(request)
            else:
                request.end("length")

    def _plan(self) -> list[Part]:
        now = time.monotonic()
        for request in self.scheduler.drop(lambda each: each.is_over(now)):
            request.end("cancelled" if request.cancelled else "deadline")
        return self.scheduler.plan()

    def _run(self, parts: list[Part]) -> None:
        """Run a step and those that can follow it: the next steps run while the tokens of one are processed."""
        if not parts or not self._read_last(parts):
            return
        try:
            if (run := self._begin_run(parts)) is not None:
                self._run_on(parts, run)
            else:
                tokens = [(_next_tokens(part), _position(part), _pages(part), part.rows) for part in parts]
                batch = Batch.of(tokens, self._sliding_pages(parts))
                self._run_steps(parts, replace(batch, draws=_list_draws(parts)))
        except MemoryError as error:
            self._fail(parts, self._name_memory(parts, error))
        except Exception as error:  # those who asked get it
            self._fail(parts, error)

    def _sliding_pages(self, parts: list[Part]) -> list[list[int]] | None:
        """The pages of the layers with a window, where they have their own."""
        if self.pool.pages.sliding is None:
            return None
        sequences = [part.request.sequence for part in parts]
        return [each.sliding.pages for each in sequences if each is not None and each.sliding is not None]

    def _read_last(self, parts: list[Part]) -> bool:
        """Whether the last step was computed, which is asked where other requests would read what it wrote. Where it
        was not, another plan is needed."""
        last = self._unread
        if last is None or {id(part.request) for part in parts} <= {id(part.request) for part in last.parts}:
            return True
        self._unread = None
        try:
            last.made.best(0)
        except Exception as error:
            self._fail(last.parts, error)
            return False
        return True

    def _run_steps(self, parts: list[Part], batch: Batch) -> None:
        """Steps over pages."""
        running = deque([self._launch(parts, batch)])
        read: list[int | None] | None = None  # the tokens that the first of them read, where another step picked them
        while running:
            last = running[-1]
            if len(running) <= AHEAD and self._can_follow(running) and last.batch is not None:
                self.scheduler.serve(last.parts)
                running.append(self._launch(last.parts, last.batch.advance(), last.made.picked))
            else:
                read = self._take_in_first(running, read)

    def _take_in_first(self, running: deque[Launched], read: list[int | None] | None) -> list[int | None] | None:
        """Deliver the first step, which read these tokens; gives those that the next one reads, in a run also one that
        is not launched yet. Nothing else of the step is kept: the next launch has its memory, and thus the addresses
        of an earlier one."""
        step = running.popleft()
        self._take_in(step, read)
        return [step.made.best(i) for i in range(len(step.parts))] if running or step.batch is None else None

    # ---- runs in slots ----

    def _begin_run(self, parts: list[Part]) -> Decoding | None:
        """A run of the planned requests, where a device can pick the tokens of all that run, and they go on for a
        while."""
        if not self._step.has_runs or self._thread is None or not parts or len(parts) != len(self.scheduler.running):
            return None
        requests = [part.request for part in parts]
        if not self.scheduler.is_settled or not all(part.count == 1 and part.is_last for part in parts):
            return None
        if not all(each.sampler is not None and each.sampler.is_plain for each in requests):
            return None
        if max(each.most - each.generated for each in requests) < SHORTEST:
            return None
        pools = self.pool.take()
        self.pool.give(pools)
        return self._step.begin_run(requests, pools, self._spare)

    def _run_on(self, parts: list[Part], run: Decoding) -> None:
        """Steps of a run until another plan is needed; then their keys and values are in pages."""
        running = deque[Launched]()
        read: list[int | None] | None = None
        is_first = True
        while True:
            if len(running) <= AHEAD_IN_RUN and (parts_left := self._go_on(parts, run, len(running))):
                if not is_first:
                    self.scheduler.serve(parts_left)
                is_first = False
                self.steps += 1
                running.append(Launched(parts, run.step()))
            elif running:
                read = self._take_in_first(running, read)
            else:
                break
        self.pool.give(run.save(self.pool.take()))

    def _go_on(self, parts: list[Part], run: Decoding, count: int) -> list[Part]:
        """The requests that need a step more than the `count` that run, with pages for it; none where the run ends."""
        if self._closed or self._guests or not self.scheduler.is_settled or not run.room:
            return []
        now = time.monotonic()
        if any(each.is_over(now) for each in (*self.scheduler.waiting, *self.scheduler.running)):
            return []
        left = [
            part for part in parts if part.request.finish is None and part.request.generated + count < part.request.most
        ]
        if not run.fits(len(left)):
            return []
        has_pages = all(self._reserve(part.request, count + 1) for part in left)
        run.note_pages()
        return left if has_pages else []

    def _reserve(self, request: Request, count: int) -> bool:
        assert request.sequence is not None
        return request.sequence.room >= count or self.pool.pages.reserve(request.sequence, count)

    # ---- steps ----

    def _launch(self, parts: list[Part], batch: Batch, picked: Any = None) -> Launched:
        """Start a step. Its tokens are those that the step before it picked, where there is one."""
        self.steps += 1
        return Launched(parts, self._compute(batch, picked), batch)

    def _can_follow(self, running: Sequence[Launched]) -> bool:
        """Whether the same requests can go on before their next tokens are known: all take those that the device
        picked, which are in its memory, have room in their pages, and no request waits."""
        count, last, scheduler = len(running), running[-1], self.scheduler
        if last.made.picked is None or self._thread is None or self._closed or self._guests:
            return False
        if scheduler.waiting or len(scheduler.running) != len(last.parts):
            return False
        now = time.monotonic()
        return all(
            part.count == 1 and part.is_last and _goes_on(part.request, count, now, last.made.is_drawn)
            for part in last.parts
        )

    def _take_in(self, step: Launched, read: list[int | None] | None) -> None:
        """Deliver a step's results to its requests. `read`: its tokens, where they are those of the step before."""
        self._unread = step
        if step.batch is None or len(step.batch.rows):
            step.made.best(0)  # the error of a step that failed on a device is raised here: it is no request's own
            self._unread = None
        at = 0
        for part in step.parts:
            request = part.request
            if read is not None and (request.finish is not None or read[at] != request.tokens[-1]):
                at += 1  # it ended, or took another token than the step read
                continue
            rows, is_last = part.rows, part.is_last
            assert request.sequence is not None
            self.pool.pages.commit(request.sequence, _next_tokens(part))
            try:
                if request.scores:
                    wanted = step.made.states if request.embeds else step.made.logits
                    request.keep(np.array(wanted[at : at + len(rows)]))
                elif is_last:
                    request.accept(step.made, at)
            except Exception as error:
                request.end("error", error)
            at += len(rows)
            if request.finish is not None:
                with self._changed:
                    self.scheduler.remove(request)
        self.after_step()

    def _compute(self, batch: Batch, tokens: Any) -> Rows:
        if not len(batch.rows):  # a program has at least one row
            batch = replace(batch, rows=np.zeros(1, np.int32))
        made, arrays = self._step.run(batch, self.pool.take(), tokens)
        self.pool.give(arrays)
        return made

    def _name_memory(self, parts: list[Part], error: MemoryError) -> MemoryLimitError:
        found = MemoryLimitError(
            "no memory left for a step",
            got=f"{sum(part.count for part in parts)} tokens, {bytes_text(self.pool.nbytes)} of keys and values",
            remedy="load(…, memory_limit=…), or a smaller context",
        )
        found.__cause__ = error
        return found

    def _fail(self, parts: list[Part], error: BaseException) -> None:
        """Fail the requests of a step; the others are recomputed, since the cache is lost."""
        with self._changed:
            for part in parts:
                part.request.end("error", error)
                self.scheduler.remove(part.request)
            self._forget()

    def _forget(self) -> None:
        self._unread = None
        self.pool.discard()
        for request in list(self.scheduler.running):
            self.scheduler.preempt(request)
        self.pool.pages.forget()


def _list_draws(parts: Sequence[Part]) -> tuple[Drawn | None, ...]:
    """The sampler and the position of the next token of each row, where a device may draw it; () for no row."""
    found: list[Drawn | None] = []
    for part in parts:
        sampler = part.request.sampler
        draws = sampler is not None and sampler.is_plain and not sampler.is_simple
        found += [(sampler, len(part.request.tokens)) if sampler is not None and draws else None for _ in part.rows]
    return tuple(found) if any(found) else ()


def _goes_on(request: Request, count: int, now: float, is_drawn: bool) -> bool:
    """Whether a request takes the picked token after each of `count` steps, and then needs another step."""
    if request.sampler is None or request.sequence is None or request.is_over(now) or request.finish is not None:
        return False
    has_room = request.sequence.room > count and request.generated + count < request.most
    return (request.sampler.is_simple or (is_drawn and request.sampler.is_plain)) and has_room


def _length(part: Part) -> int:
    assert part.request.sequence is not None
    return part.request.sequence.length


def _position(part: Part) -> int:
    """Of the next token, as a step takes it."""
    assert part.request.sequence is not None
    return part.request.sequence.next_position


def _pages(part: Part) -> list[int]:
    assert part.request.sequence is not None
    return part.request.sequence.pages


def _next_tokens(part: Part) -> list[int]:
    at = _length(part)
    return part.request.tokens[at : at + part.count]
