"""uvicorn's HTTP protocol with limits on a request's head, and with answers that need no task.

Without limits a client that sends a byte now and then keeps a connection for ever. A request that arrives whole, for a
path with a direct handler, is answered in the callback that parsed it, or when the model's result is there; all others
take the ASGI way. The application finds its connection in the scope: it writes a whole answer at once, and is told when
the client leaves, without another task.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from smelt.serve.http import CONNECTION, DirectHandler, DirectHead, Routes, WholeRequest
from smelt.serve.known_head import KnownHead, learn_head

MAX_HEAD = 64 << 10  # bytes
MAX_PIPELINED = 128  # requests of one connection that wait for the answers before them


class DirectApp(Protocol):
    """What the protocol needs of the application beside ASGI."""

    routes: Routes

    def answer_directly(self, request: WholeRequest, accepted: Any, reply: Reply) -> None: ...


class LimitedProtocol(HttpToolsProtocol):
    """`limited` makes a subclass with the seconds of a configuration and its application."""

    seconds = 30.0
    direct: DirectApp | None = None
    _defaults: tuple[Any, bytes] = (None, b"")  # uvicorn's headers, and how they are written
    _timer: asyncio.TimerHandle | None = None
    _received = 0  # bytes since a head, a part of a body or a request was complete
    _has_progress = False  # whether what arrived last completed one
    _is_large = False  # whether what arrived last may hold a whole head that is too large
    _in_head = False
    _in_request = False  # from its first byte to its last
    _ended = False  # the connection's last request has arrived: what follows is not read
    _body: list[bytes] | None = None  # of a request that may be answered directly
    _found: tuple[DirectHandler, str, tuple[str, ...]] | None = None  # and by whom
    _had_direct = False  # whether what arrived last held one
    _last_head: DirectHead | None = None  # the head of the last one, if the connection stays
    _known: KnownHead | None = None  # the same as bytes
    _idle_since: float | None = None  # on the loop's clock; None: a request is being read or answered
    on_lost: Callable[[], object] | None = None  # of the request that runs; pipelined ones wait

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        is_start = not (self._in_request or self._in_head or self._received or self._is_answering)
        if is_start and self._known is not None and self._repeat(self._known, data):
            return
        if not self._in_request and not self._is_answering:
            self._in_head = True
        self._had_direct = self._has_progress = False
        self._is_large = len(data) > MAX_HEAD
        self._last_head = None
        super().data_received(data)
        if is_start:
            self._learn(data)
        if self._body is not None:
            self._begin_held(complete=False)
        self._received = 0 if self._has_progress else self._received + len(data)
        if self._received > MAX_HEAD:
            self._refuse("the head of the request is too large")
        elif self._timer is None and (self._in_head or self._is_discarding):
            self._arm()

    @property
    def _is_answering(self) -> bool:
        cycle: Any = self.cycle  # None before the first request
        return cycle is not None and not cycle.response_complete

    @property
    def _is_discarding(self) -> bool:
        """Whether the rest of a body comes after the answer."""
        return self._in_request and not self._in_head and self._body is None and not self._is_answering

    def _should_upgrade(self) -> bool:
        return not self._is_answering and super()._should_upgrade()  # answers do not go into a WebSocket

    # ---- the parser's callbacks ----

    def on_message_begin(self) -> None:
        if self._ended:
            return
        self.url = b""
        self.headers = []
        self._in_head = self._in_request = True
        self._idle_since = None

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # trailers of a chunked body are no headers
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        if self._ended:
            return
        if self._is_large and len(self.url) + sum(len(name) + len(value) for name, value in self.headers) > MAX_HEAD:
            self._refuse("the head of the request is too large")
            return
        if self._may_be_direct():
            self._body = []
        else:
            self._begin()
        self._in_head, self._has_progress = False, True
        self._disarm()

    def _may_be_direct(self) -> bool:
        may = (
            self.direct is not None
            and not self._had_direct  # pipelined ones take turns with other clients'
            and not self._is_answering
            and self.parser.get_method() == b"POST"
            and not self.parser.should_upgrade()
            and not self.flow.write_paused  # a client that does not read its answers waits
            and (self.limit_concurrency is None or len(self.connections) < self.limit_concurrency)
        )
        self._found = self.direct.routes.find_direct(self.url) if may and self.direct is not None else None
        return self._found is not None

    def _begin(self) -> None:
        """Start the application's task for a request whose head is complete."""
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers += headers  # the list that the scope has
        self.expect_100_continue = any(
            name == b"expect" and value.lower() == b"100-continue" for name, value in headers
        )
        super().on_headers_complete()
        cycle: Any = self.cycle
        self.scope[CONNECTION] = Connection(self, cycle)  # type: ignore[literal-required]
        # The parser takes the body of a request that asks for another protocol for that protocol's bytes.
        if len(self.pipeline) >= MAX_PIPELINED or (self.parser.should_upgrade() and not self._should_upgrade()):
            cycle.keep_alive = False

    def on_body(self, body: bytes) -> None:
        self._has_progress = True
        if self._ended:
            return
        if self._body is not None:
            self._body.append(body)
        else:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_progress = True
        if self._ended:
            return
        if self._is_discarding and not self.parser.should_upgrade():
            self._disarm()
            self._idle_since = self.loop.time()
        self._in_request = False
        if self._body is None:
            super().on_message_complete()
        elif not self._answer_directly():
            self._begin_held(complete=True)
        cycle: Any = self.cycle  # None where a WebSocket begins
        self._ended = cycle is not None and not cycle.keep_alive

    def _begin_held(self, complete: bool) -> None:
        """The ASGI way for a request that was held back, with what came of its body."""
        parts, self._body = self._body or [], None
        self._begin()
        for part in parts:
            super().on_body(part)
        if complete:
            super().on_message_complete()

    def _answer_directly(self) -> bool:
        assert self._found is not None
        handler, path, parts = self._found
        headers = dict(self.headers)
        accepted = handler.accepts(parts) if b"expect" not in headers else None
        if accepted is None:
            return False
        body = b"".join(self._body or ())
        self._body, self._had_direct = None, True
        keep_alive = self.parser.should_keep_alive() and self.parser.get_http_version() != "1.0"
        client = self._forwarded_client() if b"x-forwarded-for" in headers else self.client
        direct_head = DirectHead(handler, path, parts, headers, client)
        self._last_head = direct_head if keep_alive else None
        self._reply(direct_head, accepted, body, keep_alive)
        return True

    def _learn(self, data: bytes) -> None:
        if self._last_head is not None:
            self._known = learn_head(data, self._last_head)

    def _repeat(self, known: KnownHead, data: bytes) -> bool:
        """Answer a request whose head is known without parsing it; False: it is another one."""
        body = known.cut_body(data)
        if body is None or self.flow.write_paused or len(self.connections) >= (self.limit_concurrency or sys.maxsize):
            return False
        accepted = known.says.handler.accepts(known.says.parts)
        if accepted is None:
            return False
        self._idle_since = None
        self._reply(known.says, accepted, body, keep_alive=True)
        return True

    def _reply(self, direct_head: DirectHead, accepted: Any, body: bytes, keep_alive: bool) -> None:
        self.cycle = reply = Reply(self, keep_alive)  # type: ignore[assignment]
        try:
            assert self.direct is not None
            self.direct.answer_directly(WholeRequest(direct_head, body), accepted, reply)
        except Exception:  # a bug of ours, which the parser would take for a bad request
            self.logger.exception("Exception in a direct handler")
            reply.abort()

    def _forwarded_client(self) -> Any:
        """The client's address as the ASGI way has it: what a trusted proxy says. uvicorn's middleware decides that."""
        scope: Any = {"type": "http", "client": self.client, "headers": self.headers}

        async def application(*_: Any) -> None: ...

        if self.config.proxy_headers:
            work: Any = ProxyHeadersMiddleware(application, self.config.forwarded_allow_ips)(scope, None, None)  # type: ignore[arg-type]
            with contextlib.suppress(StopIteration):
                work.send(None)  # it waits for nothing
        return scope["client"]

    # ---- the end of a request, of a connection, of patience ----

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:  # no more is read before they are answered, but for the body of the last
            self._start_asgi_task(*self.pipeline.pop())
            return
        self.flow.resume_reading()
        self._idle_since = self.loop.time()
        if self.timeout_keep_alive_task is None:  # one timer for many requests
            self._await_next(self.timeout_keep_alive)

    def _unset_keepalive_if_required(self) -> None:
        self._idle_since = None

    def _await_next(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if self._idle_since is None:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0.001:
            self._await_next(left)
        else:
            super().timeout_keep_alive_handler()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
        super().connection_lost(exc)
        if self.on_lost is not None:
            self.on_lost()

    def _arm(self) -> None:
        if self._ended:
            return
        self._timer = self.loop.call_later(self.seconds, self._refuse, "the head of the request did not arrive in time")

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _refuse(self, reason: str) -> None:
        self._disarm()
        if self.transport.is_closing():
            return
        if self._in_request or self._received:
            self.send_400_response(reason)
        else:
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Refuse what cannot be read. Requests before it are answered first: a client takes answers in their order."""
        self._ended, is_discarding, self._body = True, self._is_discarding, None
        if not self._is_answering and not is_discarding:
            super().send_400_response(msg)
        elif self._in_head or not self._in_request:
            self.cycle.keep_alive = False
        elif is_discarding or self.pipeline:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def write_answer(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, keep_alive: bool) -> None:
        """Write a whole answer. The headers are ours."""
        lines = [b"%b: %b\r\n" % pair for pair in headers]
        if not keep_alive and b"connection: close\r\n" not in lines:
            lines.append(b"connection: close\r\n")
        self.write_lines(status, b"".join(lines), body)

    def write_lines(self, status: int, lines: bytes, body: bytes) -> None:
        """The same with headers that are written already."""
        self.transport.write(b"".join((STATUS_LINE[status], self._default_lines(), lines, b"\r\n", body)))

    def _default_lines(self) -> bytes:
        """uvicorn's own headers. It makes a new list of them every second, for the date."""
        given, (known, lines) = self.server_state.default_headers, self._defaults
        if known is not given:
            lines = b"".join(b"%b: %b\r\n" % pair for pair in given)
            type(self)._defaults = given, lines
        return lines


class NoEvent:
    """No task waits for messages of a request that is answered directly."""

    def set(self) -> None: ...


class Reply:
    """The place of uvicorn's cycle for a request that is answered directly."""

    __slots__ = ("_protocol", "disconnected", "keep_alive", "response_complete")
    message_event = NoEvent()

    def __init__(self, protocol: LimitedProtocol, keep_alive: bool) -> None:
        self._protocol, self.keep_alive = protocol, keep_alive
        self.response_complete = self.disconnected = False

    def on_lost(self, told: Callable[[], object] | None) -> None:
        """Have this called when the client leaves."""
        self._protocol.on_lost = told

    def abort(self) -> None:
        """No answer can be sent: close the connection, so that the client does not wait for it."""
        self.keep_alive = False
        self._protocol.on_lost = None
        self._protocol.transport.close()

    def write(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> None:
        if (b"connection", b"close") in headers:
            self.keep_alive = False
        if self._complete():
            self._protocol.write_answer(status, headers, body, self.keep_alive)
            self._end()

    def write_lines(self, lines: bytes, body: bytes) -> None:
        """A whole answer with status 200 on a connection that stays, and with headers that are written already."""
        if self._complete():
            self._protocol.write_lines(200, lines, body)
            self._protocol.on_response_complete()

    def _complete(self) -> bool:
        """Whether the client still waits for the answer."""
        self._protocol.on_lost = None
        self.response_complete = True
        return not self._protocol.transport.is_closing()

    def _end(self) -> None:
        if not self.keep_alive:
            self._protocol.transport.close()
        self._protocol.on_response_complete()


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

    def write(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Send a whole answer in one piece; False where the client reads too slowly for that. The headers are ours."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.response_started or cycle.scope["method"] == "HEAD":
            return False
        if cycle.disconnected:
            return True
        if (b"connection", b"close") in headers:
            cycle.keep_alive = False
        cycle.response_started = cycle.response_complete = True
        cycle.waiting_for_100_continue = False
        self._protocol.write_answer(status, headers, body, cycle.keep_alive)
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    def write_piece(self, data: bytes) -> bool:
        """Send a piece of an answer that has begun; False where that is not simple, e.g. the client reads slowly."""
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or not cycle.chunked_encoding or not data:
            return False
        cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


class StallWatch:
    """Ends connections whose clients read nothing of what is written, also while a close waits for them to read."""

    looks = 4  # that must find the same

    def __init__(self, connections: Iterable[Any]) -> None:
        self._connections = connections
        self._seen: dict[Any, tuple[int, int]] = {}  # bytes that wait to be written, and how often they were as many

    async def run(self, seconds: float) -> None:
        """Look until cancelled. A connection ends when nothing of it was read for so long."""
        while True:
            await asyncio.sleep(seconds / self.looks)
            self.look()

    def look(self) -> None:
        before, self._seen = self._seen, {}
        for each in list(self._connections):
            size = each.transport.get_write_buffer_size()
            if not size:
                continue
            known, times = before.get(each, (0, 0))
            times = times + 1 if size == known else 0
            if times < self.looks:
                self._seen[each] = size, times
            else:
                each.transport.abort()


def limit_protocol(seconds: float, direct: DirectApp | None = None) -> type[LimitedProtocol]:
    return type("LimitedProtocol", (LimitedProtocol,), {"seconds": seconds, "direct": direct})
