"""What is kept of every request when it has ended, whatever its protocol: log lines, slow requests, spans."""

from __future__ import annotations

import itertools
import json
import logging
import secrets
import time
from typing import Any

from smelt.errors import SmeltError
from smelt.serve.audit import MOST_TEXT
from smelt.serve.config import Config
from smelt.serve.http import ClientGoneError, Request
from smelt.serve.problems import BusyError
from smelt.serve.recorder import Recorder
from smelt.serve.tracing import Tracing

log = logging.getLogger("smelt.serve")


class Journal:
    def __init__(self, config: Config, recorder: Recorder, tracing: Tracing | None) -> None:
        self.recorder, self.tracing = recorder, tracing
        self._is_json, self._logs_all = config.log == "json", config.access_log
        self._prefix, self._numbers = secrets.token_hex(6).encode(), itertools.count(1)  # of the requests' ids
        self._busy_logged = float("-inf")  # when, on `monotonic`

    def identify(self, request: Request) -> bytes:
        """The client's id of a request, or a new one."""
        given = request.headers.get(b"x-request-id")
        if given and given.isascii() and given[:128].decode("ascii").isprintable():
            return given[:128]
        return b"%b%x" % (self._prefix, next(self._numbers))

    def note(
        self,
        request: Request,
        status: int,
        identity: bytes,
        started: float,
        error: SmeltError | None,
        streamed: bool = False,
    ) -> None:
        """A request that has ended. Clients that left are logged only where all requests are."""
        spent = time.perf_counter() - started
        if spent >= self.recorder.threshold:
            message = None if error is None else error.message
            self.recorder.record(request, status, identity.decode(), spent, message, streamed)
        if self.tracing is not None:
            self.tracing.record(request, status, identity.decode(), spent, error)
        if self._logs_all or (error is not None and self._is_news(error)):
            self._log(request, status, identity.decode(), spent, error)

    def note_bug(self, request: Request, identity: bytes, failed: BaseException) -> None:
        """A request that failed inside the server."""
        path = one_line(request.path)
        log.error("%s %s failed (request %s)", request.method, path, identity.decode(), exc_info=failed)

    def _is_news(self, error: SmeltError) -> bool:
        """Whether an error is worth a line. Clients that left are not; a server without room writes one a second."""
        if isinstance(error, BusyError):
            now = time.monotonic()
            if now < self._busy_logged + 1:
                return False
            self._busy_logged = now
        return not isinstance(error, ClientGoneError)

    def _log(self, request: Request, status: int, identity: str, seconds: float, error: SmeltError | None) -> None:
        fields: dict[str, Any] = {
            "request": identity,
            "method": request.method,
            "path": request.path[:MOST_TEXT],
            "status": status,
            "ms": round(seconds * 1000, 3),
            "client": (request.scope.get("client") or ("?",))[0],
            "key": None if request.key is None else request.key.name,
        }
        if error is not None:
            fields["error"] = error.message[:MOST_TEXT]
        if self._is_json:
            log.info("%s", json.dumps({"time": round(time.time(), 3), **fields}))
        else:
            log.info("%s %s %s %.2f ms%s", request.method, one_line(request.path), status, seconds * 1000,
                     f": {one_line(error.message)}" if error is not None else "")  # fmt: skip


def one_line(text: str) -> str:
    """A path or a message for the log: clients put line ends, escape sequences and megabytes into paths and names."""
    text = text[:MOST_TEXT]
    return text if text.isprintable() else ascii(text)
