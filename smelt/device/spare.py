"""Spare: freed memory of a device that is kept for later, by queue and size. A driver with several queues has one.

Memory comes again for work of the queue that it was freed on, which is behind what used it. Where other queues read
it as well, their marks come with it: it waits until they are passed, or the next user does.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from heapq import heappop, heappush

from smelt.device.driver import Queue
from smelt.device.order import Mark, Queues

MOST_LATE = 2  # blocks of a size that others still read before a queue waits for one of them: a host that is ahead of
# the device would take more and more memory

Freed = tuple[Queue, int, Sequence[Mark]]  # on which queue, the address, behind what


class Spare:
    """`most`: bytes that are kept."""

    def __init__(self, queues: Queues, most: int) -> None:
        self.most = most
        self.bytes = 0
        self._lock = queues.lock
        self.sizes: dict[int, int] = {}  # of all memory, by its address
        self._ready: defaultdict[Queue, dict[int, list[int]]] = defaultdict(dict)  # heaps of addresses, by size
        self._late: defaultdict[Queue, dict[int, deque[tuple[int, Sequence[Mark]]]]] = defaultdict(dict)

    def add(self, address: int, size: int) -> None:
        """Memory that was allocated."""
        with self._lock:
            self.sizes[address] = size

    def take(self, queue: Queue, size: int) -> int | None:
        """Memory of a size, for work of a queue from now on. The lowest address comes first: calls that come again then
        have the addresses of earlier ones, and replay their graphs."""
        with self._lock:
            ready = self._ready[queue].get(size)
            if ready:
                self.bytes -= size
                return heappop(ready)
            late = self._late[queue].get(size)
            if not late:
                return None
            address, marks = late[0]
            open_marks = [each for each in marks if not (queue.order.is_behind(each) or queue.is_done(each.event))]
            if open_marks and len(late) < MOST_LATE:
                return None
            late.popleft()
            for each in open_marks:
                queue.order.await_mark(each)
            self.bytes -= size
            return address

    def give(self, queue: Queue, address: int, after: Sequence[Mark] = ()) -> list[Freed]:
        """Keep freed memory. What is too much comes back, the largest first."""
        with self._lock:
            size = self.sizes[address]
            if after:
                self._late[queue].setdefault(size, deque()).append((address, after))
            elif (ready := self._ready[queue].get(size)) is not None:
                heappush(ready, address)
            else:
                self._ready[queue][size] = [address]
            self.bytes += size
            gone: list[Freed] = []
            while self.bytes > self.most:
                gone += self._drop(max(self._list_sizes()))
            return gone

    def clear(self) -> list[Freed]:
        """All of it."""
        with self._lock:
            return [each for size in self._list_sizes() for each in self._drop(size)]

    def _list_sizes(self) -> list[int]:
        """The sizes of kept memory."""
        found = list[int]()
        for ready in [*self._ready.values()]:
            found += [size for size, kept in [*ready.items()] for _ in kept]
        for late in [*self._late.values()]:
            found += [size for size, kept in [*late.items()] for _ in kept]
        return found

    def _drop(self, size: int) -> list[Freed]:
        """One block of a size; none where the garbage collector has freed and dropped another in the meantime."""
        for queue, ready in [*self._ready.items()]:
            if ready.get(size):
                return self._forget(queue, ready[size].pop(), ())
        for queue, late in [*self._late.items()]:
            if late.get(size):
                return self._forget(queue, *late[size].popleft())
        return []

    def _forget(self, queue: Queue, address: int, marks: Sequence[Mark]) -> list[Freed]:
        self.bytes -= self.sizes.pop(address)
        return [(queue, address, marks)]
