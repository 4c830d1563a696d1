"""Order between the queues of a device: who wrote and who reads a block of memory, and who waits for which event.

`gpu_program` and `gpu_buffer` call `begin` before work and `end` behind it where memory of another queue takes part.
Memory that one queue alone uses costs nothing: neither events nor notes.

A block has a `home`, the queue of its last writer. What the home does with it is noted nowhere. Another queue that
reads it waits for all that the home was given so far, once for each write, and is noted as a reader. One that writes it
waits for home and readers, and is the home from then on.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from smelt.device.driver import Queue

MOST_QUEUES = 4  # of a device; more programs share them
NOW = math.inf  # the epoch of everything that was given to a queue


class Queues:
    """The queues of a device. `current`: the one that this thread's last call went to, which its copies follow."""

    def __init__(self, make: Callable[[], Queue], most: int = MOST_QUEUES) -> None:
        self.lock = threading.RLock()  # of all that is noted: a block may be freed in the middle of that
        self.local = threading.local()
        self.crossings = 0  # how often queues met; a call during which it stays the same has met no other
        self.all: list[Queue] = []
        self.is_shared = False  # whether there are several
        self._make, self._most = make, most
        self._owners = Counter[Queue]()

    @property
    def first(self) -> Queue:
        if not self.all:
            with self.lock:
                self.all = self.all or [self._make()]
        return self.all[0]

    @property
    def current(self) -> Queue:
        return getattr(self.local, "queue", None) or self.first

    def choose(self, owner: Any, preferred: Iterable[Queue] = ()) -> tuple[Queue, weakref.finalize[..., Any]]:
        """A queue for programs: a preferred one, else the first of those with the fewest owners. What comes with it
        gives it back; so does the end of `owner`."""
        with self.lock:
            found = next(iter(preferred), None)
            if found is None:
                _ = self.first
                if len(self.all) < self._most and all(self._owners[each] for each in self.all):
                    self.all.append(self._make())
                    self.is_shared = len(self.all) > 1
                found = min(self.all, key=self._owners.__getitem__)
            self._owners[found] += 1
        leave = weakref.finalize(owner, self._leave, found)
        leave.atexit = False
        return found, leave

    def _leave(self, queue: Queue) -> None:
        with self.lock:
            self._owners[queue] -= 1


class Mark:
    """An event behind what a queue was given in its epochs up to one."""

    __slots__ = ("epoch", "event", "order")

    def __init__(self, order: Order, epoch: float, event: Any) -> None:
        self.order, self.epoch, self.event = order, epoch, event


class Order:
    """Where a queue is among others. Events are recorded when another queue first asks: each ends an epoch.

    Work belongs to the epoch that is read after it was given to the queue, or to an earlier one. The epoch is counted
    up before its event is recorded, so that an event is never said to cover what came behind it.
    """

    def __init__(self, queue: Queue, queues: Queues) -> None:
        self.queue, self.queues = queue, queues
        self.turn = threading.Lock()  # calls of the programs of a queue take turns
        self.epoch = 0
        self.last = Mark(self, -1, None)  # behind the last epoch that has ended
        self.seen: dict[Order, float] = {}  # epochs of others that this queue waits for

    def mark(self, epoch: float) -> Mark:
        """A mark behind all work up to an epoch. The caller has the lock."""
        if self.last.epoch < epoch:
            ended = self.epoch
            self.epoch = ended + 1
            self.last = Mark(self, ended, self.queue.mark())
        return self.last

    def await_epoch(self, other: Order, epoch: float) -> None:
        """Work from now on waits for another queue's up to an epoch. The caller has the lock."""
        if other is not self and self.seen.get(other, -1) < epoch:
            self.await_mark(other.mark(epoch))

    def await_mark(self, mark: Mark) -> None:
        if not self.is_behind(mark):
            self.queue.after(mark.event)
            self.seen[mark.order] = mark.epoch

    def is_behind(self, mark: Mark) -> bool:
        """Whether work from now on is behind a mark, whatever the device has done."""
        return mark.order is self or self.seen.get(mark.order, -1) >= mark.epoch


@dataclass(slots=True, eq=False)
class Shared:
    """What is noted of a block that other queues than its home use."""

    fresh: set[Queue] = field(default_factory=set)  # queues that waited for the last write,
    readers: dict[Queue, float] = field(default_factory=dict)  # those that read it since, and the epochs of that,
    holders: set[Queue] = field(default_factory=set)  # and those of programs that it is bound to: any call reads it


class Memory(Protocol):
    """A block."""

    home: Queue
    shared: Shared | None


def crosses(queue: Queue, reads: Iterable[Memory], writes: Iterable[Memory]) -> bool:
    """Whether work with these blocks meets another queue."""
    return any(each.home is not queue for each in reads) or any(
        each.home is not queue or each.shared is not None for each in writes
    )


def begin(queue: Queue, reads: Sequence[Memory], writes: Sequence[Memory]) -> None:
    """Work of a queue that follows waits for that of others with these blocks."""
    mine = queue.order
    with mine.queues.lock:
        mine.queues.crossings += 1  # first: a call that reads the same number later has its work in front of our events
        late: dict[Order, float] = {}
        for block in reads:
            if block.home is not queue:
                shared = _notes_of(block)
                if queue not in shared.fresh:
                    shared.fresh.add(queue)
                    late[block.home.order] = NOW
        for block in writes:
            for other, epoch in _users(block).items():
                late[other.order] = max(epoch, late.get(other.order, -1))
            _move_home(block, queue)
        for order, epoch in late.items():
            mine.await_epoch(order, epoch)


def end(queue: Queue, reads: Sequence[Memory], writes: Sequence[Memory]) -> None:
    """Note work that was given to a queue since `begin`, or that met no other queue when it began."""
    mine = queue.order
    with mine.queues.lock:
        for block in reads:
            if block.home is not queue:
                _notes_of(block).readers[queue] = mine.epoch
        for block in writes:
            if block.home is queue and block.shared is None:
                continue
            # Others use parts of the block that this work did not write. They know nothing of its writes, and it may
            # not be behind theirs: what waits for the home from now on waits for both.
            for other, epoch in _users(block).items():
                mine.await_epoch(other.order, epoch)
            _move_home(block, queue)
            if block.shared is not None:
                for holder in block.shared.holders:
                    holder.order.await_epoch(mine, NOW)


def _notes_of(block: Memory) -> Shared:
    if block.shared is None:
        block.shared = Shared()
    return block.shared


def _users(block: Memory) -> dict[Queue, float]:
    """The queues that may still use a block, with the epochs of that."""
    found = {} if block.shared is None else dict(block.shared.readers)
    if block.shared is not None:
        found |= dict.fromkeys(block.shared.holders, NOW)
    return found | {block.home: NOW}


def _move_home(block: Memory, queue: Queue) -> None:
    block.home = queue
    holders = block.shared.holders if block.shared is not None else None
    block.shared = Shared(holders=holders) if holders else None


@contextmanager
def in_order(queue: Queue, reads: Sequence[Memory], writes: Sequence[Memory] = ()) -> Iterator[None]:
    """For work of a queue with these blocks."""
    queues = queue.order.queues
    before = queues.crossings
    meets = crosses(queue, reads, writes)
    if meets:
        begin(queue, reads, writes)
    try:
        yield
    finally:
        if meets or queues.crossings != before:
            end(queue, reads, writes)


def hold(queue: Queue, blocks: Iterable[Memory]) -> None:
    """Blocks that all later work of a queue may read, without a note of each time: weights."""
    mine = queue.order
    with mine.queues.lock:
        mine.queues.crossings += 1
        for home in {each.home for each in blocks}:
            mine.await_epoch(home.order, NOW)
        for each in blocks:
            _notes_of(each).holders.add(queue)


def list_users(block: Memory) -> list[Queue]:
    """The queues that may still use a block."""
    with block.home.order.queues.lock:
        return list(_users(block))


def marks_of_others(block: Memory) -> Sequence[Mark]:
    """Marks behind what other queues than its home do with a block whose last user is gone."""
    home = block.home.order
    with home.queues.lock:
        found = [queue.order.mark(epoch) for queue, epoch in _users(block).items() if queue is not block.home]
        return [mark for mark in found if not home.is_behind(mark)]


def follow_stream(block: Memory, stream: int | None) -> None:
    """Whatever uses a block from now on waits for another library's stream, which may have written it."""
    with block.home.order.queues.lock:
        for queue in {block.home, *(block.shared.holders if block.shared is not None else ())}:
            queue.follow(stream)
        if block.shared is not None:
            block.shared.fresh.clear()
