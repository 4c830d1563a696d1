"""Large copies to a device at the rate of its bus: several threads fill pinned buffers, which the device reads itself.

`cuda_driver` makes a `Ring` for its first large copy. A copy of ordinary memory would go through one thread of the
driver.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from typing import Any

from smelt.dtype import Array

CHUNK = 8 << 20  # bytes of a buffer
BUFFERS, THREADS = 12, 8

Read = Callable[[Array, int], None]  # fill an array of bytes with those from a position on


class Ring:
    """Pinned buffers that threads fill in turn. `send(address, buffer, count)` begins a copy and gives an event, for
    which `wait` waits."""

    def __init__(
        self,
        buffers: Sequence[Array],
        send: Callable[[int, Array, int], Any],
        wait: Callable[[Any], None],
        threads: int = THREADS,
    ) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self._send, self._wait, self._size = send, wait, buffers[0].size
        self._free: SimpleQueue[tuple[Array, Any]] = SimpleQueue()
        for each in buffers:
            self._free.put((each, None))
        self._pool = ThreadPoolExecutor(threads, "smelt-copy")
        self._lock = threading.Lock()  # uploads take turns: together they would not be faster

    def copy(self, address: int, count: int, read: Read) -> None:
        """Copy `count` bytes to an address. They have been read when this returns; the device may still be copying."""
        from concurrent.futures import wait

        def chunk(start: int) -> None:
            buffer, sent = self._free.get()
            try:
                if sent is not None:
                    self._wait(sent)
                part = buffer[: min(buffer.size, count - start)]
                read(part, start)
                sent = self._send(address + start, part, part.size)
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
