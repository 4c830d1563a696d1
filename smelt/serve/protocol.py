"""uvicorn's HTTP protocol with limits on a request's head: how long it may take to arrive, and how large it may be.

Without them a client that sends a byte now and then keeps a connection for ever. The application finds its connection
in the scope: it writes a whole answer at once, and is told when the client leaves, without another task.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from smelt.serve.http import CONNECTION

MAX_HEAD = 64 << 10  # bytes


class LimitedProtocol(HttpToolsProtocol):
    """`limited` makes a subclass with the seconds of a configuration."""

    seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _received = 0
    _in_head = False
    on_lost: Callable[[], object] | None = None  # of the request that runs; pipelined ones wait

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle  # None before the first request
        if cycle is None or cycle.response_complete:
            self._in_head = True
        super().data_received(data)
        if self._in_head:
            self._received += len(data)
            if self._received > MAX_HEAD:
                self._refuse("the head of the request is too large")
            elif self._timer is None:
                self._arm()

    def on_headers_complete(self) -> None:
        self._in_head, self._received = False, 0
        self._disarm()
        super().on_headers_complete()
        cycle: Any = self.cycle
        self.scope[CONNECTION] = Connection(self, cycle)  # type: ignore[literal-required]

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def _arm(self) -> None:
        self._timer = self.loop.call_later(self.seconds, self._refuse, "the head of the request did not arrive in time")

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, reason: str) -> None:
        self._disarm()
        if not self.transport.is_closing():
            if self._received:
                self.send_400_response(reason)
            self.transport.close()


class Connection:
    """What a request knows of its connection. `smelt.serve.http` uses it where it is there."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: LimitedProtocol, cycle: Any) -> None:
        self._protocol, self._cycle = protocol, cycle

    def take_body(self) -> bytes | None:
        """The whole body, if it has arrived."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body = bytes(cycle.body)
        cycle.body = bytearray()
        return body

    def on_lost(self, told: Callable[[], object] | None) -> None:
        """Have this called when the client leaves."""
        self._protocol.on_lost = told

    @property
    def is_lost(self) -> bool:
        return bool(self._cycle.disconnected)

    def write(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole answer in one piece; False where the client reads too slowly for that. The headers are ours."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        if cycle.disconnected:
            return True
        content, closing = [STATUS_LINE[status]], True
        for name, value in (*cycle.default_headers, *headers):
            content += (name, b": ", value, b"\r\n")
            if name == b"connection":  # close, in full
                cycle.keep_alive = closing = False
        if not cycle.keep_alive and closing:
            content.append(b"connection: close\r\n")
        content += (b"\r\n", body)
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        cycle.transport.write(b"".join(content))
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True


def limited(seconds: float) -> type[LimitedProtocol]:
    return type("LimitedProtocol", (LimitedProtocol,), {"seconds": seconds})
