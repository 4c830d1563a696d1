"""Configuration → a running server: uvicorn on one event loop, models loaded while it already answers health checks."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import signal
import socket
import sys
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import uvicorn

from smelt.device import numbers
from smelt.errors import DeviceError
from smelt.serve import fronts
from smelt.serve import grpc as grpc_front
from smelt.serve.app import App
from smelt.serve.config import Config
from smelt.serve.models import READY, Catalogue, Version
from smelt.serve.protocol import StallWatch, limit_protocol
from smelt.serve.text_model import CHAT, TextModel

log = logging.getLogger("smelt.serve")


def serve(config: Config, quiet: bool = False) -> None:
    """Serve until SIGTERM or Ctrl-C; then finish what was accepted."""
    _set_up_log(quiet)
    listener = _listen(config.host, config.port)
    try:
        with contextlib.suppress(KeyboardInterrupt):
            if config.workers > 1:
                Catalogue(config.models)  # mistakes in it end the server, not its processes
                fronts.supervise(config, listener, quiet)
            else:
                _run(_serve(_app(config), listener, quiet))
    finally:
        listener.close()


def serve_on(
    config: Config, listener: socket.socket, quiet: bool, link: socket.socket, unloaded: Iterable[str]
) -> None:
    """The same as one of several processes. `unloaded`: models that are not loaded."""
    _set_up_log(quiet)
    app = _app(config)
    app.catalogue.unloaded |= set(unloaded)
    with contextlib.suppress(KeyboardInterrupt):
        _run(_serve(app, listener, quiet, link))


def _set_up_log(quiet: bool) -> None:
    logging.basicConfig(format="%(message)s", stream=sys.stderr)
    log.setLevel(logging.WARNING if quiet else logging.INFO)


def _app(config: Config) -> App:
    return App(Catalogue(config.models, config.budget), config)


def _run(main: Any) -> None:
    try:
        import uvloop
    except ImportError:  # not on Windows
        asyncio.run(main)
    else:
        uvloop.run(main)


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise DeviceError(
            f"cannot listen on {host}:{port}", got=error, remedy="--port 0 takes any free port"
        ) from error
    listener.listen(2048)
    return listener


class _Server(uvicorn.Server):
    """uvicorn without signal handlers of its own: the server drains by itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _serve(app: App, listener: socket.socket, quiet: bool, link: socket.socket | None = None) -> None:
    config = app.config
    server = _Server(
        uvicorn.Config(
            app,
            http=limit_protocol(config.body_timeout, app),
            ws="wsproto",
            ws_max_size=config.max_body,
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=True,
            timeout_keep_alive=round(config.keep_alive),
            limit_concurrency=config.max_connections,
            timeout_graceful_shutdown=round(config.drain),
            ssl_certfile=config.tls_certificate,
            ssl_keyfile=config.tls_key,
            ssl_ca_certs=config.tls_client_ca,
            ssl_cert_reqs=2 if config.tls_client_ca else 0,
        )
    )
    loop = asyncio.get_running_loop()

    def stop() -> None:
        app.catalogue.draining = True
        server.should_exit = True

    for number in (signal.SIGINT, signal.SIGTERM):
        with contextlib.suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, stop)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    while not server.started and not serving.done():
        await asyncio.sleep(0.005)
    scheme = "https" if config.tls_certificate else "http"
    host, port = listener.getsockname()[:2]
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
    _say(quiet, f"smelt listens on {url}")
    other = None
    if config.grpc_port is not None:
        other, bound = await grpc_front.start(app.service, app.audit, app.journal, config.host, config.grpc_port)
        _say(quiet, f"  and for gRPC on {host}:{bound}")
    linked = None if link is None else asyncio.create_task(app.join(link))
    loading = asyncio.create_task(_load(app.catalogue, url, quiet))
    watching = asyncio.create_task(StallWatch(server.server_state.connections).run(config.keep_alive))
    await serving
    if other is not None:
        await other.stop(config.drain)
    for task in (loading, linked, watching):
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def _load(catalogue: Catalogue, url: str, quiet: bool) -> None:
    await asyncio.to_thread(numbers.prepare)
    await catalogue.load_all()
    gc.collect()
    gc.freeze()  # what is there now stays: later collections, which stop every request, do not look at it
    ready = [version for version in catalogue.every() if version.state == READY]
    for version in ready:
        batches = "" if version.language or version.batching else f", batches of up to {version.config.max_batch}"
        _say(quiet, f"  {version.name} version {version.version} is ready ({version.seconds:.2f} s{batches})")
    if ready:
        _say(quiet, f"Try it: {example(ready[0], url)}")


def example(version: Version, url: str) -> str:
    """A command that calls a model."""
    if isinstance(version.loaded, TextModel) and version.loaded.about.kind != CHAT:
        ranked = {"model": version.name, "query": "Hello", "documents": ["Hi", "No"]}
        return f"curl {url}/v1/rerank -H 'Content-Type: application/json' -d '{_json(ranked)}'"
    if version.language:
        said = {"model": version.name, "messages": [{"role": "user", "content": "Hello"}]}
        return f"curl {url}/v1/chat/completions -H 'Content-Type: application/json' -d '{_json(said)}'"
    inputs = []
    for port, row in zip(version.inputs, version.metadata([])["inputs"], strict=True):
        shape = [1 if size == -1 else size for size in row["shape"]]
        count = 1
        for size in shape:
            count *= size
        if count > 64 or port.labels:
            return f"curl {url}/v2/models/{version.name}"
        inputs.append({"name": row["name"], "shape": shape, "datatype": row["datatype"], "data": [0] * count})
    asked: dict[str, Any] = {"inputs": inputs}
    if version.sequences is not None:
        asked["parameters"] = {"sequence_id": 1, "sequence_start": True}
    return f"curl {url}/v2/models/{version.name}/infer -d '{_json(asked)}'"


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def _say(quiet: bool, text: str) -> None:
    if not quiet:
        print(text, flush=True)
