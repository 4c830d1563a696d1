"""uvicorn's HTTP protocol with limits on a request's head: how long it may take to arrive, and how large it may be.

Without them a client that sends a byte now and then keeps a connection for ever.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEAD = 64 << 10  # bytes


class LimitedProtocol(HttpToolsProtocol):
    """`limited` makes a subclass with the seconds of a configuration."""

    seconds = 30.0
    _timer: asyncio.TimerHandle | None = None
    _received = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        cycle: Any = self.cycle  # None before the first request
        if self._timer is None and (cycle is None or cycle.response_complete):
            self._arm()
        super().data_received(data)
        if self._timer is not None:
            self._received += len(data)
            if self._received > MAX_HEAD:
                self._refuse("the head of the request is too large")

    def on_headers_complete(self) -> None:
        self._disarm()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _arm(self) -> None:
        self._received = 0
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


def limited(seconds: float) -> type[LimitedProtocol]:
    return type("LimitedProtocol", (LimitedProtocol,), {"seconds": seconds})
