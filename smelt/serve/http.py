"""The subset of HTTP that the server needs, on bare ASGI: a request with a bounded body, a response, routes by path."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar
from urllib.parse import parse_qs

import msgspec

from smelt.errors import SmeltError
from smelt.serve.problems import MediaTypeError, MethodError, NotFoundError, RequestError, TooLargeError, status_of

T = TypeVar("T")
K = TypeVar("K", str, bytes)
Scope: TypeAlias = Mapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Mapping[str, Any]]]
Send: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[None]]
JSON_TYPE = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"
COMPRESS_FROM = 32 << 10  # bytes
MOST_MATCHED = 1024  # paths that are remembered
LONGEST_MATCHED = 512  # characters
LEFT = "the client left before the answer"
CONNECTION = "smelt.connection"  # where `serve.protocol` leaves the connection in a scope


class Request:
    """One request. The body is read once, up to a limit, and decompressed up to the same limit."""

    __slots__ = ("_receive", "connection", "finished", "headers", "key", "method", "parts", "path", "scope", "timing")
    is_rpc = False  # a call over gRPC

    def __init__(self, scope: Scope, receive: Receive) -> None:
        self.scope, self._receive = scope, receive
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers: dict[bytes, bytes] = dict(scope["headers"])
        self.connection: Any = scope.get(CONNECTION)
        self.parts: tuple[str, ...] = ()  # the route's parameters
        self.key: Any = None
        self.timing: Any = None  # of the model's call, which was `finished` then, for the recorder and tracing
        self.finished = 0.0

    def header(self, name: bytes) -> str:
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def query(self) -> dict[str, str]:
        return {name: values[-1] for name, values in parse_qs(self.scope["query_string"].decode("latin-1")).items()}

    async def body(self, most: int, seconds: float) -> bytes:
        try:
            declared = int(self.headers.get(b"content-length", b"0"))
        except ValueError:
            raise RequestError("Content-Length is no number") from None
        if declared > most:
            raise _too_large(most, declared)
        data: bytes | None = None if self.connection is None else self.connection.take_body()
        if data is None:
            data = await self._arriving(most, seconds)
        return self.decode_body(data, most)

    def decode_body(self, data: bytes, most: int) -> bytes:
        """A body that has arrived, decompressed."""
        if len(data) > most:
            raise _too_large(most, len(data))
        encoding = self.headers.get(b"content-encoding")
        return data if encoding is None else _decompress(encoding.decode("latin-1").lower(), data, most)

    async def _arriving(self, most: int, seconds: float) -> bytes:
        try:
            async with asyncio.timeout(seconds):
                first = await self._receive()
                if first["type"] == "http.disconnect":
                    raise RequestError("the client left before the request was complete")
                body: bytes = first.get("body", b"")
                return await self._rest(body, most) if first.get("more_body") else body
        except TimeoutError:
            raise RequestTimeoutError("the request did not arrive in time", expected=f"{seconds:g} s") from None

    async def _rest(self, first: bytes, most: int) -> bytes:
        parts, size = [first], len(first)
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise RequestError("the client left before the request was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise _too_large(most, size)
            if not message.get("more_body"):
                return b"".join(parts)

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of work that is cancelled when the client leaves. The body must have been read."""
        if self.connection is None:
            return await self._watch(work)
        if self.connection.is_lost:  # while the model was loaded
            work.close()
            raise ClientGoneError(LEFT)
        task = asyncio.current_task()
        assert task is not None
        self.connection.on_lost(task.cancel)
        try:
            return await work
        except asyncio.CancelledError:
            if self.connection.is_lost:
                raise ClientGoneError(LEFT) from None
            raise
        finally:
            self.connection.on_lost(None)

    async def _watch(self, work: Coroutine[Any, Any, T]) -> T:
        """The same where nothing but `receive` says that the client left."""
        task = asyncio.ensure_future(work)
        watch = asyncio.ensure_future(self._wait_for_disconnect())
        try:
            await asyncio.wait((task, watch), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            task.cancel()
            await asyncio.wait((task,))
            raise ClientGoneError(LEFT)
        finally:
            task.cancel()
            watch.cancel()

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass


class DirectHead:
    """The head of a request that a direct handler takes. Requests with equal heads share one."""

    __slots__ = ("handler", "headers", "is_admitted", "key", "parts", "path", "scope")

    def __init__(
        self, handler: DirectHandler, path: str, parts: tuple[str, ...], headers: dict[bytes, bytes], client: Any
    ) -> None:
        self.handler, self.path, self.parts, self.headers = handler, path, parts, headers
        self.scope = {"client": client, "query_string": b""}
        self.is_admitted = False  # whether its API key opens the model; that is looked up once
        self.key: Any = None


class WholeRequest(Request):
    """A POST whose body came together with its head: it is answered without a task, by a `DirectHandler`."""

    __slots__ = ("data", "head")

    def __init__(self, head: DirectHead, data: bytes) -> None:
        self.head, self.data, self.method = head, data, "POST"
        self.path, self.parts, self.headers, self.scope = head.path, head.parts, head.headers, head.scope
        self.connection = self.key = self.timing = None
        self.finished = 0.0


class ClientGoneError(RequestError):
    """The client has disconnected; the status is for the log."""

    status = 499
    advice = "keep the connection open until the answer is there"


class RequestTimeoutError(RequestError):
    """A body that comes too slowly."""

    status = 408
    advice = "send the body faster, or raise body_timeout in the server's configuration"


def _too_large(most: int, got: int) -> TooLargeError:
    return TooLargeError("the body is too large", expected=f"at most {most} bytes", got=f"{got} bytes")


def _decompress(encoding: str, data: bytes, most: int) -> bytes:
    """gzip or deflate; what would grow beyond the limit is refused before it does."""
    if encoding == "identity":
        return data
    if encoding not in ("gzip", "deflate"):
        raise MediaTypeError("unknown Content-Encoding", expected="gzip, deflate or identity", got=encoding[:40])
    for bits in (31,) if encoding == "gzip" else (15, -15):  # deflate comes with and without zlib's header
        machine = zlib.decompressobj(bits)
        try:
            made = machine.decompress(data, most)
        except zlib.error:
            continue
        if machine.unconsumed_tail:
            raise TooLargeError("the decompressed body is too large", expected=f"at most {most} bytes")
        if not machine.eof:
            break
        if machine.unused_data:  # a proxy may read them as more of the body
            raise RequestError(f"bytes are left over after the {encoding}", got=f"{len(machine.unused_data)} bytes")
        return made
    raise RequestError(f"the body is no {encoding}")


@dataclass(slots=True)
class Response:
    """An answer; with `stream` it is sent in chunks, and `close` is always called at the end."""

    body: bytes = b""
    status: int = 200
    kind: bytes = JSON_TYPE
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    stream: AsyncGenerator[bytes, None] | None = None
    close: Callable[[], object] = lambda: None


_encode = msgspec.json.Encoder().encode


def read_json(decoder: msgspec.json.Decoder[T], data: bytes | memoryview, what: str) -> T:
    """JSON of a client, as the decoder's type."""
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # a ValidationError is a DecodeError
        raise RequestError(f"{what} does not fit", got=error) from None
    except RecursionError:
        raise RequestError(f"{what} is nested too deeply") from None


def json_response(value: Any, status: int = 200) -> Response:
    return Response(_encode(value), status)


def problem(error: SmeltError) -> Response:
    """The common form of an error: `error` is text, as the Open Inference Protocol wants it; `detail` is the record."""
    response = json_response({"error": str(error), "detail": error.record()}, status_of(error))
    retry = getattr(error, "retry_after", None)
    if retry is not None:
        response.headers.append((b"retry-after", str(max(1, round(retry))).encode()))
    return response


Headers: TypeAlias = list[tuple[bytes, bytes]]


def is_same_origin(headers: Mapping[bytes, bytes], allowed: str | None) -> bool:
    """Whether a request comes from no page, from one of this server's, or from one of a site that is `allowed`: others'
    scripts may not use a visitor's way to this server."""
    origin = headers.get(b"origin", b"").decode("latin-1")
    if not origin or allowed in ("*", origin):
        return True
    return origin.partition("://")[2] == headers.get(b"host", b"").decode("latin-1")


def finish_response(response: Response, request: Request, extra: Headers) -> tuple[Headers, bytes]:
    """All headers and the body of a response that is no stream; a large body is compressed if the client reads gzip."""
    body = response.body
    headers = [(b"content-type", response.kind), *response.headers, *extra]
    if len(body) >= COMPRESS_FROM and b"gzip" in request.headers.get(b"accept-encoding", b""):
        body = gzip.compress(body, 1)
        headers.append((b"content-encoding", b"gzip"))
    headers.append((b"content-length", b"%d" % len(body)))
    return headers, body


async def send_response(response: Response, request: Request, send: Send, extra: Headers) -> None:
    try:
        await _send_response(response, request, send, extra)
    finally:
        response.close()


async def _send_response(response: Response, request: Request, send: Send, extra: Headers) -> None:
    if response.stream is None:
        headers, body = finish_response(response, request, extra)
        if request.connection is not None and request.connection.write(response.status, headers, body):
            return
    else:
        headers, body = [(b"content-type", response.kind), *response.headers, *extra], b""
    await send({"type": "http.response.start", "status": response.status, "headers": headers})
    if response.stream is not None:
        await request.while_connected(_send_stream(response.stream, send, request.connection))
    await send({"type": "http.response.body", "body": b"" if request.method == "HEAD" else body})


async def _send_stream(stream: AsyncGenerator[bytes, None], send: Send, connection: Any) -> None:
    try:
        async for piece in stream:
            if connection is None or not connection.write_piece(piece):
                await send({"type": "http.response.body", "body": piece, "more_body": True})
    finally:
        await stream.aclose()


Handler: TypeAlias = Callable[[Request], Awaitable[Response]]


class Pending(Protocol):
    """An answer that comes later."""

    def then(self, done: Callable[[], object]) -> None:
        """Have this called when it is there."""

    def answer(self) -> Response:
        """The response; raises where the call failed."""

    def cancel(self) -> object:
        """The client left."""


class DirectHandler(Protocol):
    """Answers requests that have arrived whole, without a task for each."""

    def accepts(self, parts: tuple[str, ...]) -> Any:
        """What `start` needs; None: the ordinary handler of the path takes the request."""

    def start(self, request: WholeRequest, accepted: Any) -> Response | Pending: ...


class Routes:
    """Paths → handlers. A part `{}` of a path stands for one name, which the handler finds in `request.parts`."""

    def __init__(self) -> None:
        self._exact: dict[str, dict[str, Handler]] = {}
        self._patterns: dict[int, list[tuple[tuple[str, ...], dict[str, Handler]]]] = {}
        self._matched: dict[str, tuple[dict[str, Handler], tuple[str, ...]]] = {}  # the last paths with names in them
        self._absent: dict[str, str] = {}
        self._direct: dict[Handler, DirectHandler] = {}
        self._targets: dict[bytes, tuple[DirectHandler, str, tuple[str, ...]]] = {}  # the last that have one

    def add(self, method: str, path: str, handler: Handler) -> None:
        if "{}" not in path:
            self._exact.setdefault(path, {})[method] = handler
            return
        parts = tuple(path.split("/"))
        rows = self._patterns.setdefault(len(parts), [])
        for known, methods in rows:
            if known == parts:
                methods[method] = handler
                return
        rows.append((parts, {method: handler}))

    def add_absent(self, prefix: str, why: str) -> None:
        """Say why paths that a protocol has are not here."""
        self._absent[prefix] = why

    def add_direct(self, handler: Handler, direct: DirectHandler) -> None:
        """Have whole POST requests of a handler's paths answered by `direct`, where that accepts them."""
        self._direct[handler] = direct

    def find_direct(self, target: bytes) -> tuple[DirectHandler, str, tuple[str, ...]] | None:
        """The direct handler of a request target, its path, and the path's parameters."""
        found = self._targets.get(target)
        if found is not None or b"%" in target or b"?" in target or not target.isascii():
            return found
        path = target.decode("ascii")
        if path in self._exact:
            return None
        try:
            methods, parts = self._matched.get(path) or self._match(path)
        except NotFoundError:
            return None
        direct = self._direct.get(methods.get("POST"))  # type: ignore[arg-type]
        if direct is None:
            return None
        _remember(self._targets, target, (direct, path, parts))
        return direct, path, parts

    def paths(self) -> dict[str, list[str]]:
        """Every path and its methods."""
        found = {path: sorted(methods) for path, methods in self._exact.items()}
        for rows in self._patterns.values():
            found |= {"/".join(parts): sorted(methods) for parts, methods in rows}
        return found

    def find(self, request: Request) -> Handler:
        methods = self._exact.get(request.path)
        if methods is None:
            found = self._matched.get(request.path) or self._match(request.path)
            methods, request.parts = found
        handler = methods.get("GET" if request.method == "HEAD" else request.method)
        if handler is None:
            raise MethodError("the path has no such method", expected=", ".join(sorted(methods)), got=request.method)
        return handler

    def _match(self, path: str) -> tuple[dict[str, Handler], tuple[str, ...]]:
        given = path.split("/")
        for parts, row in self._patterns.get(len(given), ()):
            if all(part in ("{}", name) for part, name in zip(parts, given, strict=True)):
                found = row, tuple(name for part, name in zip(parts, given, strict=True) if part == "{}")
                _remember(self._matched, path, found)
                return found
        why = next((why for prefix, why in self._absent.items() if path.startswith(prefix)), "no such path")
        raise NotFoundError(why, got=path)


def _remember(known: dict[K, T], key: K, value: T) -> None:
    """Clients choose the keys: their number and lengths are limited."""
    if len(key) <= LONGEST_MATCHED:
        if len(known) >= MOST_MATCHED:
            known.clear()
        known[key] = value
