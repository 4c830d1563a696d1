"""Requests at given times on kept connections, whatever the answers do: what `smelt bench --url` sends.

Callbacks and no tasks, so that the generator takes little of the machine that it shares with the server. Latency counts
from the intended time. The clock ticks once a millisecond: what has become due is sent together.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from smelt.client.calls import AsyncClient

QUANTILES = (50, 90, 99, 99.9)
TICK = 0.001  # seconds; the resolution of event loops
MOST = 1000  # connections at once; what has none waits for one, and its latency counts on


class Streamed(NamedTuple):
    """An answer that came in parts: when each came, and all that had come then. Times count from the intended one."""

    content: bytes
    parts: list[tuple[float, int]]


class OpenLoop:
    """Messages that are sent at given times."""

    def __init__(
        self,
        client: AsyncClient,
        message: Callable[[int], bytes],
        times: Sequence[float],
        streamed: list[Streamed] | None = None,
    ) -> None:
        """`message`: what the i-th request is; `times`: seconds after the start, ascending. With `streamed`, answers
        are collected there."""
        self.client, self.message, self._times, self.streamed = client, message, times, streamed
        self.latencies: list[float] = []
        self.errors: Counter[str] = Counter()
        self.sent_after = self.ended_after = 0.0  # seconds until the last was sent, and until all had ended
        self._next = self._open = 0
        self._idle: list[_Link] = []
        self._links: set[_Link] = set()
        self._waiting: deque[int] = deque()  # numbers of what has no connection yet
        self._connecting: set[asyncio.Task[None]] = set()
        self._done = asyncio.Event()

    async def run(self, patience: float) -> None:
        """Send everything, and wait for the answers; those that take longer than `patience` seconds are errors."""
        self._start = time.perf_counter()
        self._tick()
        try:
            async with asyncio.timeout(float(self._times[-1]) + patience):
                await self._done.wait()
        except TimeoutError:
            self.errors["no answer in time"] += len(self._times) - len(self.latencies) - sum(self.errors.values())
        finally:
            self.ended_after = time.perf_counter() - self._start
            await self._close()

    async def _close(self) -> None:
        for task in self._connecting:
            task.cancel()
        for link in self._links:
            link.close()
        while self._links:
            await asyncio.sleep(0)

    def _tick(self) -> None:
        now = time.perf_counter() - self._start
        while self._next < len(self._times) and self._times[self._next] <= now:
            self._send(self._next)
            self._next += 1
        if self._next < len(self._times):
            wait = max(TICK, self._times[self._next] - now)
            asyncio.get_running_loop().call_later(wait, self._tick)
        else:
            self.sent_after = now

    def _send(self, number: int) -> None:
        if self._idle:
            self.give(self._idle.pop(), number)
            return
        self._waiting.append(number)
        if self._open < MOST:
            self._open += 1
            task = asyncio.get_running_loop().create_task(self._connect())
            self._connecting.add(task)
            task.add_done_callback(self._connecting.discard)

    async def _connect(self) -> None:
        try:
            await self.client.connect(lambda: _Link(self))
        except OSError as error:
            self._open -= 1
            if self._waiting:
                self._waiting.popleft()
                self.count(type(error).__name__)

    def ready(self, link: _Link) -> None:
        """A connection that can take a request."""
        self._links.add(link)
        if self._waiting:
            self.give(link, self._waiting.popleft())
        else:
            self._idle.append(link)

    def give(self, link: _Link, number: int) -> None:
        link.send(self.message(number), self._start + self._times[number])

    def drop(self, link: _Link) -> None:
        self._open -= 1
        self._links.discard(link)
        if link in self._idle:
            self._idle.remove(link)

    def count(self, error: str = "", latency: float = 0.0) -> None:
        if error:
            self.errors[error] += 1
        else:
            self.latencies.append(latency)
        if len(self.latencies) + sum(self.errors.values()) == len(self._times):
            self._done.set()


class _Link(asyncio.Protocol):
    """One connection: a request, then its answer."""

    def __init__(self, loop: OpenLoop) -> None:
        self._loop, self._intended = loop, 0.0
        self._content = b""
        self._parts: list[tuple[float, int]] = []
        self._busy = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop.ready(self)

    def close(self) -> None:
        self._busy = False
        self._transport.abort()

    def send(self, message: bytes, intended: float) -> None:
        self._intended, self._busy, self._content, self._parts = intended, True, b"", []
        self._transport.write(message)

    def data_received(self, data: bytes) -> None:
        self._content = content = self._content + data if self._content else data
        if self._loop.streamed is not None:
            self._parts.append((time.perf_counter() - self._intended, len(content)))
        end = content.find(b"\r\n\r\n")
        if not self._busy or end < 0:
            return
        head = content[:end].lower()
        if b"transfer-encoding: chunked" in head:
            complete = content.endswith(b"\r\n0\r\n\r\n")
        else:
            length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0] or 0)
            complete = len(content) >= end + 4 + length
        if not complete:
            return
        self._busy = False
        status = int(head[9:12])
        if self._loop.streamed is not None and status < 400:
            self._loop.streamed.append(Streamed(content, self._parts))
        self._loop.count(f"status {status}" if status >= 400 else "", time.perf_counter() - self._intended)
        if b"connection: close" in head:
            self._transport.close()
        else:
            self._loop.ready(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._loop.drop(self)
        if self._busy:
            self._busy = False
            self._loop.count(type(exc).__name__ if exc is not None else "the connection closed")


def quantiles(seconds: Sequence[float]) -> dict[str, float]:
    """p50, p90, p99 and p99.9 in milliseconds."""
    times = np.array(seconds or [float("nan")]) * 1000
    return {f"{each:g}": float(np.percentile(times, each)) for each in QUANTILES}


def run(work: Any) -> Any:
    """`asyncio.run`, on the faster event loop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(work)
    return uvloop.run(work)
