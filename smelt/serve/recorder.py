"""The flight recorder: the last slow requests and where their time went. `GET /v2/debug/slow`, for administration."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from smelt.serve.audit import MOST_TEXT
from smelt.serve.http import Request, Response, Routes, json_response
from smelt.serve.keys import Keys

KEPT = 256


class Recorder:
    """Requests slower than `slow_ms`. It costs others one comparison."""

    def __init__(self, slow_ms: float, keys: Keys) -> None:
        self.threshold, self.keys = slow_ms / 1000, keys
        self._slow: deque[dict[str, Any]] = deque(maxlen=KEPT)

    def add_to(self, routes: Routes) -> None:
        routes.add("GET", "/v2/debug/slow", self.show)

    def record(
        self, request: Request, status: int, identity: str, seconds: float, error: str | None, streamed: bool
    ) -> None:
        found: dict[str, Any] = {
            "time": round(time.time() - seconds, 3),
            "request": identity,
            "method": request.method,
            "path": request.path[:MOST_TEXT],
            "status": status,
            "ms": round(seconds * 1000, 3),
            "key": None if request.key is None else request.key.name,
            "client": (request.scope.get("client") or ("?",))[0],
            "streamed": streamed,
            "error": None if error is None else error[:MOST_TEXT],
        }
        if request.timing is not None:
            waited, computed = request.timing.waited * 1000, request.timing.computed * 1000
            found |= {"queue_ms": round(waited, 3), "compute_ms": round(computed, 3)}
            found |= {"rows": request.timing.rows, "batch": request.timing.batch}
        self._slow.append(found)

    async def show(self, request: Request) -> Response:
        """The newest first."""
        self.keys.check_admin(request.key)
        return json_response({"slow_ms": round(self.threshold * 1000, 3), "requests": list(reversed(self._slow))})
