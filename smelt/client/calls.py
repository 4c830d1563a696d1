"""`Client` and `AsyncClient`: calls of models on a server, with retries until a deadline.

The asynchronous client speaks HTTP/1.1 on asyncio's streams, the other runs it on an event loop of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import ssl
import threading
import time
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

from smelt.client.wire import HEADER, decode_answer, encode_request
from smelt.dtype import Array
from smelt.errors import RunError, SmeltError, TimedOutError, UnsupportedError

T = TypeVar("T")
RETRIED = (429, 503)
FIRST_WAIT, LONGEST_WAIT = 0.05, 5.0  # seconds between tries
MAX_ANSWER = 1 << 32  # bytes


class ServerError(RunError):
    """An answer that is an error. `status` is HTTP's."""

    advice = "the server's log says more"

    def __init__(self, message: str, status: int, retry_after: float | None, remedy: str | None = None) -> None:
        super().__init__(message, got=f"status {status}", remedy=remedy)
        self.status, self.retry_after = status, retry_after


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def exchange(self, message: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(message)
        await self.writer.drain()
        status_line = await self.reader.readline()
        if not status_line:
            raise ConnectionResetError("the server closed the connection")
        status = int(status_line.split(b" ", 2)[1])
        headers: dict[str, str] = {}
        while (line := await self.reader.readline()) not in (b"\r\n", b""):
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return status, headers, await self._chunks()
        length = int(headers.get("content-length", "0"))
        if length > MAX_ANSWER:
            raise UnsupportedError("the answer is too large", expected=f"at most {MAX_ANSWER} bytes", got=length)
        return status, headers, await self.reader.readexactly(length)

    async def _chunks(self) -> bytes:
        parts = []
        while size := int((await self.reader.readline()).split(b";")[0], 16):
            parts.append(await self.reader.readexactly(size))
            await self.reader.readline()
        await self.reader.readline()
        return b"".join(parts)

    def close(self) -> None:
        self.writer.close()


class AsyncClient:
    """A server's models, for coroutines. Connections are kept and used again."""

    def __init__(self, url: str, *, key: str = "", timeout: float = 60.0, verify: bool = True) -> None:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise RunError("no address of a server", expected="http://HOST:PORT", got=url)
        self._host = parts.hostname
        self._port = parts.port or (443 if parts.scheme == "https" else 80)
        self._path = parts.path.rstrip("/")
        self._tls = _tls(verify) if parts.scheme == "https" else None
        self._key, self._timeout = key, timeout
        self._idle: list[_Connection] = []

    async def infer(
        self,
        model: str,
        /,
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        timeout: float | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Call a model with arrays by name; `run` takes names that are no Python names."""
        return await self.run(model, inputs, version=version, outputs=outputs, timeout=timeout)

    async def run(
        self,
        model: str,
        inputs: dict[str, Any],
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        timeout: float | None = None,
    ) -> dict[str, Array]:
        end = time.monotonic() + (self._timeout if timeout is None else timeout)
        path = f"/v2/models/{quote(model, safe='')}{f'/versions/{quote(version)}' if version else ''}/infer"
        left = max(1, int((end - time.monotonic()) * 1e6))
        body, length = encode_request(inputs, outputs, {"timeout": left})
        headers, answer = await self._ask("POST", path, body, end, {HEADER: str(length)})
        told = headers.get(HEADER.lower())
        return decode_answer(answer, None if told is None else int(told))

    async def metadata(self, model: str = "") -> dict[str, Any]:
        """What the server says about itself, or about a model."""
        return await self._json("GET", f"/v2/models/{quote(model, safe='')}" if model else "/v2")

    async def is_ready(self, model: str = "") -> bool:
        """Whether a model, or every model, can be called now. A server that is away is not ready."""
        path = f"/v2/models/{quote(model, safe='')}/ready" if model else "/v2/health/ready"
        try:
            await self._exchange("GET", path, b"", time.monotonic() + self._timeout, {})
        except (ServerError, OSError):
            return False
        return True

    async def load(self, model: str) -> dict[str, Any]:
        """Load a model, or its newest version."""
        return await self._json("POST", f"/v2/repository/models/{quote(model, safe='')}/load")

    async def unload(self, model: str) -> None:
        await self._json("POST", f"/v2/repository/models/{quote(model, safe='')}/unload")

    async def send(self, method: str, path: str, body: bytes, headers: dict[str, str], timeout: float) -> bytes:
        """One exchange as it is, tried once: for load tests."""
        try:
            return (await self._exchange(method, path, body, time.monotonic() + timeout, headers))[1]
        except (OSError, asyncio.IncompleteReadError) as error:
            raise self._unreachable(error) from error

    def message(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> bytes:
        """A request as it is sent."""
        lines = {"Host": f"{self._host}:{self._port}", "Content-Length": str(len(body)), **headers}
        if self._key:
            lines["Authorization"] = f"Bearer {self._key}"
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {self._path}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body

    async def connect(self, protocol: Callable[[], asyncio.BaseProtocol]) -> None:
        """A connection of its own to the server, for load tests."""
        await asyncio.get_running_loop().create_connection(protocol, self._host, self._port, ssl=self._tls)

    async def _json(self, method: str, path: str) -> dict[str, Any]:
        _, answer = await self._ask(method, path, b"", time.monotonic() + self._timeout, {})
        found: dict[str, Any] = json.loads(answer)
        return found

    async def _ask(
        self, method: str, path: str, body: bytes, end: float, headers: dict[str, str]
    ) -> tuple[dict[str, str], bytes]:
        """One answer; a busy or absent server is asked again, ever less often, with some chance in the waits."""
        wait, refused = FIRST_WAIT, None
        while True:
            try:
                return await self._exchange(method, path, body, end, headers)
            except TimedOutError as error:  # while it was asked again: the answer says more than the lack of one
                raise refused or error from None
            except (ServerError, OSError, asyncio.IncompleteReadError) as error:
                if isinstance(error, ServerError) and error.status not in RETRIED:
                    raise
                refused = error if isinstance(error, ServerError) else refused
                asked = error.retry_after if isinstance(error, ServerError) else None
                pause = min(LONGEST_WAIT, max(wait, asked or 0.0)) * random.uniform(0.75, 1.25)
                if time.monotonic() + pause >= end:
                    if isinstance(error, SmeltError):
                        raise
                    raise self._unreachable(error) from error
            await asyncio.sleep(pause)
            wait *= 2

    def _unreachable(self, error: Exception) -> RunError:
        return RunError(
            f"the server {self._host}:{self._port} does not answer",
            got=str(error) or type(error).__name__,
            remedy="smelt serve MODEL, or check the address",
        )

    async def _exchange(
        self, method: str, path: str, body: bytes, end: float, headers: dict[str, str]
    ) -> tuple[dict[str, str], bytes]:
        message = self.message(method, path, body, headers)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(max(0.0, end - time.monotonic())):
                connection = await self._connection()
                status, answered, answer = await connection.exchange(message)
        except TimeoutError:
            self._drop(connection)
            raise TimedOutError(f"{path}: no answer in time") from None
        except BaseException:
            self._drop(connection)
            raise
        if answered.get("connection", "").lower() == "close":
            connection.close()
        else:
            self._idle.append(connection)
        if status >= 400:
            raise _problem(status, answered, answer)
        return answered, answer

    async def _connection(self) -> _Connection:
        while self._idle:
            kept = self._idle.pop()
            if not kept.reader.at_eof() and not kept.writer.is_closing():
                return kept
            kept.close()
        reader, writer = await asyncio.open_connection(self._host, self._port, ssl=self._tls, limit=1 << 20)
        return _Connection(reader, writer)

    def _drop(self, connection: _Connection | None) -> None:
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for each in idle:
            each.close()
            with contextlib.suppress(OSError, ssl.SSLError):
                await each.writer.wait_closed()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


def _tls(verify: bool) -> ssl.SSLContext:
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _problem(status: int, headers: dict[str, str], answer: bytes) -> ServerError:
    remedy = None
    try:
        found = json.loads(answer)
        message = str(found["error"])
        remedy = found.get("detail", {}).get("remedy")
    except (ValueError, KeyError, TypeError, AttributeError):
        message = answer[:200].decode("utf-8", "replace") or f"status {status}"
    message = message.removesuffix(f"\n  try      {remedy}")  # it comes last, as in any error
    try:
        retry = float(headers["retry-after"])
    except (KeyError, ValueError):
        retry = None
    return ServerError(message, status, retry, remedy)


class Client:
    """A server's models. Threads may share it."""

    def __init__(self, url: str, *, key: str = "", timeout: float = 60.0, verify: bool = True) -> None:
        self._inner = AsyncClient(url, key=key, timeout=timeout, verify=verify)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="smelt-client", daemon=True)
        self._thread.start()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def infer(
        self,
        model: str,
        /,
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        timeout: float | None = None,
        **inputs: Any,
    ) -> dict[str, Array]:
        """Call a model with arrays by name; `run` takes names that are no Python names."""
        return self.run(model, inputs, version=version, outputs=outputs, timeout=timeout)

    def run(
        self,
        model: str,
        inputs: dict[str, Any],
        *,
        version: str = "",
        outputs: Iterable[str] = (),
        timeout: float | None = None,
    ) -> dict[str, Array]:
        return self._run(self._inner.run(model, inputs, version=version, outputs=outputs, timeout=timeout))

    def metadata(self, model: str = "") -> dict[str, Any]:
        """What the server says about itself, or about a model."""
        return self._run(self._inner.metadata(model))

    def is_ready(self, model: str = "") -> bool:
        """Whether a model, or every model, can be called now."""
        return self._run(self._inner.is_ready(model))

    def load(self, model: str) -> dict[str, Any]:
        """Load a model, or its newest version."""
        return self._run(self._inner.load(model))

    def unload(self, model: str) -> None:
        self._run(self._inner.unload(model))

    def close(self) -> None:
        if self._loop.is_closed():
            return
        self._run(self._inner.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def connect(url: str, *, key: str = "", timeout: float = 60.0, verify: bool = True) -> Client:
    """A client of the server at an address. `key` is sent with every request; `verify=False` takes any certificate."""
    return Client(url, key=key, timeout=timeout, verify=verify)
