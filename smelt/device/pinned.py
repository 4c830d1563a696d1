"""Pinned memory of the host, which a device reads and writes itself.

`cuda_driver` makes a `Ring` for its first large copy to the device: several threads fill buffers, where a copy of
ordinary memory would go through one thread of the driver. Small copies go through `Staging`: no call waits for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from smelt.dtype import Array

CHUNK = 8 << 20  # bytes of a buffer
BUFFERS, THREADS = 12, 8
HALF = 128 << 10  # bytes of each half of `Staging`
STEP = 64  # bytes: pieces of it begin at multiples

Read = Callable[[Array, int], None]  # fill an array of bytes with those from a position on
Send = Callable[[int, Array, int], Any]  # begin a copy (address, bytes, count); gives an event behind it


class Ring:
    """Pinned buffers that threads fill in turn. `wait` waits for an event."""

    def __init__(self, buffers: Sequence[Array], wait: Callable[[Any], None], threads: int = THREADS) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._wait, self._size = wait, buffers[0].size
        self._free: SimpleQueue[tuple[Array, Any]] = SimpleQueue()
        for each in buffers:
            self._free.put((each, None))
        self._pool = ThreadPoolExecutor(threads, "smelt-copy")
        self._lock = threading.Lock()  # uploads take turns: together they would not be faster

    def copy(self, address: int, count: int, read: Read, send: Send) -> None:
        """Copy `count` bytes to an address. They have been read when this returns; the device may still be copying."""
        from concurrent.futures import wait

        def chunk(start: int) -> None:
            buffer, sent = self._free.get()
            try:
                if sent is not None:
                    self._wait(sent)
                part = buffer[: min(buffer.size, count - start)]
                read(part, start)
                sent = send(address + start, part, part.size)
            finally:
                self._free.put((buffer, sent))

        with self._lock:
            running = [self._pool.submit(chunk, start) for start in range(0, count, self._size)]
            try:
                errors = [error for each in running if (error := each.exception()) is not None]
            finally:  # an interrupted copy ends, too: its memory may be another's afterwards
                wait([each for each in running if not each.cancel()])
        if errors:
            raise errors[0]


class Staging:
    """Pinned memory for small copies to a device, in halves: one is filled while the device reads the other. `mark`
    gives an event behind the copies so far, for which `wait` waits. The caller has a lock."""

    def __init__(self, mark: Callable[[], Any], wait: Callable[[Any], None], half: int = HALF) -> None:
        self._mark, self._wait, self._half = mark, wait, half
        self._at, self._end = 0, half
        self._read: list[Any] = [None, None]  # events behind the copies of each half

    def take(self, count: int) -> int:
        """The offset of `count` free bytes, whose copy begins before the next call."""
        if self._at + count > self._end:
            left = self._end // self._half - 1
            self._read[left] = self._mark()
            if self._read[1 - left] is not None:
                self._wait(self._read[1 - left])
            self._at = (1 - left) * self._half
            self._end = self._at + self._half
        at = self._at
        self._at += -(-count // STEP) * STEP
        return at
