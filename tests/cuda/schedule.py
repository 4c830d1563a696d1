"""Queues that put work off, for tests: what a queue is given runs when the host waits for it, or in between, in an
order that a random generator draws out of those that events allow. Whoever forgets to wait gets wrong numbers.

`LazyDriver` has the queues of a device on a driver that works at once. Memory of every allocation is overwritten first,
in the order of its queue.
"""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from smelt.device.order import Mark, Order, Queues
from smelt.device.spare import Freed, Spare
from smelt.dtype import Array

GRAIN = 64
Work = Callable[[], object]


class Event:
    """Reached when its queue comes to it."""

    def __init__(self, line: Line) -> None:
        self.line, self.is_reached, self.time = line, False, 0.0

    def reach(self) -> None:
        self.is_reached, self.time = True, time.perf_counter()


class Line:
    """Work in order: a queue of ours, or a stream of another library."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.work: deque[Work | Event] = deque()  # an event of this line is reached, one of another is waited for
        schedule.lines.append(self)

    def add(self, work: Work | Event) -> None:
        with self.schedule.lock:
            self.work.append(work)
            self.schedule.wander()

    def mark(self) -> Event:
        made = Event(self)
        self.add(made)
        return made

    def after(self, event: Event) -> None:
        assert isinstance(event, Event)
        self.add(event)


class Schedule:
    """`haste`: how much is done before somebody waits for it."""

    def __init__(self, seed: int, haste: float) -> None:
        self.random, self.haste = random.Random(seed), haste
        self.lock = threading.RLock()
        self.lines: list[Line] = []
        self.steps = self.met = 0  # that were done, and waits for other lines among them

    def wander(self) -> None:
        """Do some of the work, in any order that is allowed."""
        while self.random.random() < self.haste:
            able = [line for line in self.lines if line.work and self._is_able(line)]
            if not able:
                return
            self._step(self.random.choice(able))

    def finish(self, line: Line, event: Event | None = None) -> None:
        """Do the work of a line, up to an event; of other lines little more than what it waits for."""
        with self.lock:
            last = event or Event(line)
            if event is None:
                line.work.append(last)
            while not last.is_reached:
                assert line.work, "the event was never recorded"
                if self._is_able(line):
                    self._step(line)
                else:
                    front = line.work[0]
                    assert isinstance(front, Event)
                    self.finish(front.line, front)
                self.wander()

    def _is_able(self, line: Line) -> bool:
        front = line.work[0]
        return not isinstance(front, Event) or front.line is line or front.is_reached

    def _step(self, line: Line) -> None:
        work = line.work.popleft()
        self.steps += 1
        if not isinstance(work, Event):
            work()
        elif work.line is line:
            work.reach()
        else:
            self.met += 1


class LazyQueue(Line):
    """A `Queue` of `LazyDriver`."""

    def __init__(self, driver: LazyDriver) -> None:
        super().__init__(driver.schedule)
        self._driver, self._plain = driver, driver.plain
        self.order = Order(self, driver.queues)
        self.stream = 1000 + len(driver.streams)
        driver.streams[self.stream] = self
        self._kept: list[tuple[Event, Any]] = []

    def _do(self, work: Work) -> None:
        graph = getattr(self._driver.local, "graph", None)
        if graph is None:
            self.add(work)
        else:
            graph.append(work)

    # -- memory --

    def allocate(self, count: int) -> int:
        size = -(-count // GRAIN) * GRAIN
        address = self._driver.spare.take(self, size)
        if address is None:
            address = self._driver.allocate(self, size)
        self.add(partial(self._driver.overwrite, address, size))
        return address

    def free(self, address: int, after: Sequence[Mark] = ()) -> None:
        self._driver.give_back(self._driver.spare.give(self, address, after))

    def upload(self, address: int, array: Array) -> None:
        self.add(partial(self._plain.upload, address, array.copy()))

    def fill(self, address: int, count: int, read: Callable[[Array, int], None]) -> None:
        for start in range(0, count, 100):
            part = np.empty(min(100, count - start), np.uint8)
            read(part, start)
            self.upload(address + start, part)

    def download(self, array: Array, address: int) -> None:
        self.add(partial(self._plain.download, array, address))
        self.wait()

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        self.add(partial(self._plain.download, array, address))
        return partial(self.schedule.finish, self, self.mark())

    def move(self, target: int, source: int, count: int) -> None:
        self._do(partial(self._plain.move, target, source, count))

    def clear(self, address: int, count: int) -> None:
        self.add(partial(self._plain.clear, address, count))

    # -- kernels --

    def launch(
        self, function: Any, blocks: int, threads: int, arguments: Sequence[int], *more: Any, **flags: Any
    ) -> None:
        self._do(partial(self._plain.launch, function, blocks, threads, [*arguments], *more, **flags))

    def record(self, work: Work) -> list[Work]:
        self._driver.local.graph = graph = list[Work]()
        try:
            work()
        finally:
            self._driver.local.graph = None
        return graph

    def replay(self, graph: list[Work]) -> None:
        self._driver.replays += 1
        for work in graph:
            self.add(work)

    def forget(self, graph: list[Work]) -> None: ...

    # -- events --

    def event(self) -> Event:
        made = Event(self)
        self._do(made.reach)
        return made

    def is_done(self, event: Event) -> bool:
        with self.schedule.lock:
            if self.schedule.random.random() < 0.5:  # else a caller that polls would wait for ever
                self.schedule.finish(event.line)
            return event.is_reached

    def wait(self) -> None:
        self.schedule.finish(self)

    # -- other libraries --

    def hand_over(self, stream: int | None) -> None:
        self._driver.outside(stream).after(self.mark())

    def follow(self, stream: int | None) -> None:
        self.after(self._driver.outside(stream).mark())

    def keep_until_done(self, owner: Any) -> None:
        with self._driver.queues.lock:
            self._kept = [(event, each) for event, each in self._kept if not event.is_reached]
            self._kept.append((self.mark(), owner))


class LazyDriver:
    """A device on `plain`, a driver that works at once, and where memory may be written by any thread."""

    def __init__(self, plain: Any, seed: int, *, most_spared: int = 1 << 20, most_queues: int = 4) -> None:
        found = random.Random(seed)
        self.plain, self.number, self.replays = plain, plain.number, 0
        self.schedule = Schedule(seed, found.choice((0.0, 0.2, 0.5, 0.7)))
        self.local = threading.local()
        self.streams: dict[int | None, Line] = {}
        self.queues: Queues = Queues(lambda: LazyQueue(self), most_queues)
        self.spare = Spare(self.queues, most_spared)
        self._pool: dict[int, list[tuple[int, Event]]] = {}  # memory that went back, by size
        self._sizes: dict[int, int] = {}

    def __getattr__(self, name: str) -> Any:
        """Facts about the device."""
        return getattr(self.plain, name)

    def allocate(self, queue: LazyQueue, size: int) -> int:
        with self.queues.lock:
            if self._pool.get(size):  # of any queue: the driver orders them itself
                address, event = self._pool[size].pop()
                if event.line is not queue:
                    queue.after(event)
            else:
                address = self.plain.allocate(size)
            self._sizes[address] = size
            self.spare.add(address, size)
            return address

    def give_back(self, freed: Sequence[Freed]) -> None:
        with self.queues.lock:
            for queue, address, marks in freed:
                for mark in marks:
                    queue.order.await_mark(mark)
                self._pool.setdefault(self._sizes[address], []).append((address, queue.mark()))

    def overwrite(self, address: int, size: int) -> None:
        self.plain.upload(address, np.full(size, 0xA5, np.uint8))

    def outside(self, stream: int | None) -> Line:
        """A stream of another library."""
        with self.queues.lock:
            if stream not in self.streams:
                self.streams[stream] = Line(self.schedule)
            return self.streams[stream]

    def seconds(self, first: Event, second: Event) -> float:
        self.schedule.finish(second.line, second)
        return second.time - first.time

    def wait(self) -> None:
        for queue in self.queues.all:
            queue.wait()
