"""A client without a network: requests go straight into the ASGI application, on an event loop of its own."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from smelt.serve.app import App
from smelt.serve.config import Config, ModelConfig
from smelt.serve.models import Catalogue

T = TypeVar("T")
DIGITS = str(Path(__file__).resolve().parents[3] / "smelt" / "assets" / "digits.onnx")


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, app: App) -> None:
        self.app, self.loop = app, asyncio.new_event_loop()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(asyncio.wait_for(work, 120))

    def get(self, path: str, **headers: str) -> Reply:
        return self.run(self.ask("GET", path, b"", headers))

    def post(self, path: str, body: Any = b"", **headers: str) -> Reply:
        return self.run(self.ask("POST", path, body, headers))

    async def ask(self, method: str, path: str, body: Any = b"", headers: Mapping[str, str] = {}) -> Reply:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        path, _, query = path.partition("?")
        sent: list[Mapping[str, Any]] = []
        waiting = [{"type": "http.request", "body": data, "more_body": False}]

        async def receive() -> Mapping[str, Any]:
            if waiting:
                return waiting.pop()
            await asyncio.Event().wait()  # the client stays
            raise AssertionError

        async def send(message: Mapping[str, Any]) -> None:
            sent.append(message)

        pairs = [(name.replace("_", "-").lower().encode(), value.encode()) for name, value in headers.items()]
        scope = {
            "type": "http", "method": method, "path": path, "query_string": query.encode(),
            "headers": [(b"content-length", str(len(data)).encode()), *pairs], "client": ("test", 1),
        }  # fmt: skip
        await self.app(scope, receive, send)
        start, *pieces = sent
        body = b"".join(piece["body"] for piece in pieces)
        return Reply(start["status"], {k.decode(): v.decode() for k, v in start["headers"]}, body)


@contextmanager
def serving(*models: ModelConfig, **settings: Any) -> Iterator[Client]:
    """An application with these models loaded."""
    config = Config(models=list(models), **settings).check("the test")
    client = Client(App(Catalogue(config.models, config.budget), config))
    client.run(client.app.catalogue.load_all())
    try:
        yield client
    finally:
        client.run(client.app.catalogue.close(30))
        client.loop.close()


def model(path: str | Path, **fields: Any) -> ModelConfig:
    return ModelConfig(path=str(path), **{"engine": "reference", "trusted": True, **fields})
