"""The ASGI application: one request → key, route, handler, response; every failure becomes an answer and a log line."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from smelt.errors import FileError, SmeltError
from smelt.serve.audit import Audit
from smelt.serve.config import Config, KeyConfig
from smelt.serve.fronts import Others, sum_metrics
from smelt.serve.http import (
    COMPRESS_FROM,
    LEFT,
    ClientGoneError,
    Headers,
    Pending,
    Receive,
    Request,
    Response,
    Routes,
    Scope,
    Send,
    WholeRequest,
    finish_response,
    is_same_origin,
    problem,
    send_response,
)
from smelt.serve.journal import Journal
from smelt.serve.keys import Keys
from smelt.serve.language import Languages
from smelt.serve.models import Catalogue
from smelt.serve.oip import Rest, Service
from smelt.serve.ollama import Ollama
from smelt.serve.openai import OpenAI, openai_problem
from smelt.serve.openapi import OpenAPI
from smelt.serve.problems import ForbiddenError, MethodError, UnauthorizedError, as_problem
from smelt.serve.protocol import Reply
from smelt.serve.recorder import Recorder
from smelt.serve.rerank import Rerank
from smelt.serve.responses import Responses
from smelt.serve.shared_memory import PREFIX as SHARED_MEMORY
from smelt.serve.shared_memory import SharedMemory
from smelt.serve.show import Show
from smelt.serve.simple import Simple
from smelt.serve.sockets import Sockets
from smelt.serve.stats import prometheus
from smelt.serve.tracing import Tracing
from smelt.serve.web import FILES, Page

log = logging.getLogger("smelt.serve")
EXPOSED = b"inference-header-content-length, retry-after, x-request-id"  # to scripts of an allowed site
# Without a key: for load balancers; what describes the server and no model.
OPEN = {"/v2/health/live", "/v2/health/ready", "/health", "/ping", "/openapi.json", *FILES}
ADMIN = ("/v2/repository/models/", SHARED_MEMORY)


class App:
    """Everything that a server answers. `fronts` add their paths to the routes."""

    def __init__(self, catalogue: Catalogue, config: Config) -> None:
        self.catalogue, self.config = catalogue, config
        self.keys = Keys(config.keys, config.admin)
        self.service = Service(catalogue, config, self.keys)
        catalogue.names_models = not config.keys
        if config.workers > 1 and any(each.config.state for each in catalogue.every()):
            raise FileError(
                "a model with state is in one server process",
                expected="workers = 1",
                got=f"{config.workers} workers",
                remedy="leave --workers and workers out, or serve this model on its own",
            )
        self.audit = Audit(config.audit_log) if config.audit_log else None
        self.routes = Routes()
        Rest(self.service).add_to(self.routes)
        if self.service.regions is not None:
            SharedMemory(self.service.regions, config.body_timeout).add_to(self.routes)
        languages = Languages(catalogue, config, self.keys, self._note)
        OpenAI(languages).add_to(self.routes)
        Responses(languages).add_to(self.routes)
        Ollama(languages).add_to(self.routes)
        Rerank(languages).add_to(self.routes)
        self.sockets = Sockets(languages, self.keys)
        Simple(self.service, self.keys).add_to(self.routes)
        Show(catalogue, self.keys).add_to(self.routes)
        Page().add_to(self.routes)
        recorder = Recorder(config.slow_ms, self.keys)
        recorder.add_to(self.routes)
        self.journal = Journal(config, recorder, Tracing() if config.otel else None)
        OpenAPI(config.shared_memory).add_to(self.routes)
        if config.metrics:
            self.routes.add("GET", "/metrics", self.metrics)
        for path in ("/health", "/ping"):
            self.routes.add("GET", path, self.health)
        self._common = [(b"server", b"smelt")]
        if config.allow_origin:
            self._common.append((b"access-control-allow-origin", config.allow_origin.encode()))
            self._common.append((b"access-control-expose-headers", EXPOSED))
        self._common_lines = b"".join(b"%b: %b\r\n" % pair for pair in self._common)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        elif scope["type"] == "websocket":
            await self.sockets(scope, receive, send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.catalogue.close(self.config.drain)
                if self.journal.tracing is not None:
                    await asyncio.to_thread(self.journal.tracing.close)
                if self.audit is not None:
                    self.audit.close()
                await send({"type": "lifespan.shutdown.complete"})
                return

    async def _http(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        started = time.perf_counter()
        identity = self.journal.identify(request)
        error: SmeltError | None = None
        try:
            response = await self._answer(request)
        except Exception as failed:
            error, response = self._fail(request, identity, failed)
        try:
            await send_response(response, request, send, self._extra(response, identity))
        except ClientGoneError as gone:  # in the middle of a stream
            error = gone
        finally:
            self.journal.note(request, response.status, identity, started, error, response.stream is not None)

    def answer_directly(self, request: WholeRequest, accepted: Any, reply: Reply) -> None:
        """The same without a task, for requests that have arrived whole."""
        started = time.perf_counter()
        identity = self.journal.identify(request)
        error: SmeltError | None = None
        try:
            response = self._start(request, accepted)
        except Exception as failed:
            error, response = self._fail(request, identity, failed)
        if isinstance(response, Response):
            self._reply(request, response, identity, started, error, reply)
            return
        pending = response
        reply.on_lost(pending.cancel)
        pending.then(lambda: self._reply_later(request, pending, identity, started, reply))

    def _reply_later(
        self, request: WholeRequest, pending: Pending, identity: bytes, started: float, reply: Reply
    ) -> None:
        error: SmeltError | None = None
        try:
            try:
                response = pending.answer()
            except asyncio.CancelledError:
                error, response = self._fail(request, identity, ClientGoneError(LEFT))
            except Exception as failed:
                error, response = self._fail(request, identity, failed)
            self._reply(request, response, identity, started, error, reply)
        except Exception:  # a bug of ours: nothing else would close the connection
            log.exception("the answer to request %s cannot be sent", identity.decode())
            reply.abort()

    def _reply(
        self,
        request: WholeRequest,
        response: Response,
        identity: bytes,
        started: float,
        error: SmeltError | None,
        reply: Reply,
    ) -> None:
        body = response.body
        if response.status == 200 and reply.keep_alive and len(body) < COMPRESS_FROM:
            more = b"".join([b"%b: %b\r\n" % pair for pair in response.headers]) if response.headers else b""
            reply.write_lines(
                b"content-type: %b\r\n%b%bx-request-id: %b\r\ncontent-length: %d\r\n"
                % (response.kind, more, self._common_lines, identity, len(body)),
                body,
            )
        else:
            headers, body = finish_response(response, request, self._extra(response, identity))
            reply.write(response.status, headers, body)
        self.journal.note(request, response.status, identity, started, error)

    def _start(self, request: WholeRequest, accepted: Any) -> Response | Pending:
        head = request.head
        try:
            if head.is_admitted:
                request.key = head.key
                self.keys.count(head.key)
            else:
                self._check(request)
                head.key, head.is_admitted = request.key, True
            return head.handler.start(request, accepted)
        except (UnauthorizedError, ForbiddenError) as refused:
            self._note("refused", request, error=refused.message)
            raise

    def _extra(self, response: Response, identity: bytes) -> Headers:
        found = [*self._common, (b"x-request-id", identity)]
        if response.status in (408, 413):  # the rest of the body is not read
            found.append((b"connection", b"close"))
        return found

    def _fail(self, request: Request, identity: bytes, failed: Exception) -> tuple[SmeltError, Response]:
        if isinstance(failed, SmeltError):
            return failed, self._problem(request, failed)
        self.journal.note_bug(request, identity, failed)
        error = as_problem(failed)
        return error, self._problem(request, error)

    async def _answer(self, request: Request) -> Response:
        if request.method == "OPTIONS" and self.config.allow_origin:
            # Browsers do not count Authorization among the headers of a `*`.
            asked = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
            allow = [(b"access-control-allow-methods", b"GET, POST"), (b"access-control-allow-headers", asked)]
            return Response(b"", 204, headers=[*allow, (b"access-control-max-age", b"600")])
        handler = self.routes.find(request)
        try:
            if request.path not in OPEN:
                self._check(request)
            return await handler(request)  # which may find out by the body that a key does not open the model
        except (UnauthorizedError, ForbiddenError) as refused:
            self._note("refused", request, error=refused.message)
            raise

    def _check(self, request: Request) -> None:
        request.key = self.keys.admit(request)
        if request.path.startswith(ADMIN):
            self.keys.check_admin(request.key)
            # Browsers send no key of ours by themselves, but they do send requests of any page to 127.0.0.1.
            if request.key is None and not is_same_origin(request.headers, self.config.allow_origin):
                raise ForbiddenError("another site's page may not administer", remedy="a key with `admin = true`")
            self._note(request.path.rpartition("/")[2], request, model="".join(request.parts[:1]))
        elif request.path.startswith("/v2/models/") and request.parts:
            self.keys.check_model(request.key, request.parts[0])

    def _note(self, event: str, request: Request, **fields: Any) -> None:
        if self.audit is not None:
            key = request.key.name if request.key is not None else None
            client = (request.scope.get("client") or ("?",))[0]
            self.audit.write(event, path=request.path, key=key, client=client, **fields)

    def _problem(self, request: Request, error: SmeltError) -> Response:
        """An error in the form of the request's protocol."""
        form = next((each for prefix, each in FORMS.items() if request.path.startswith(prefix)), problem)
        response = form(error)
        if isinstance(error, MethodError):
            response.headers.append((b"allow", str(error.expected).encode()))
        return response

    async def health(self, request: Request) -> Response:
        return Response(b"", 200 if self.catalogue.ready else 503)

    async def metrics(self, request: Request) -> Response:
        texts = [self._metrics(request.key)]
        if self.service.others is not None:
            texts += await self.service.others.ask("metrics", "" if request.key is None else request.key.name)
        text = texts[0] if len(texts) == 1 else sum_metrics(texts)
        return Response(text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

    def _metrics(self, key: KeyConfig | None) -> str:
        return prometheus([version.sample() for version in self.service.visible(key)])

    async def join(self, link: socket.socket) -> None:
        """Work together with other server processes."""
        self.service.others = Others(self._answer_other)
        await self.service.others.run(link)

    async def _answer_other(self, to: str, text: str) -> str:
        match to:
            case "load":
                await self.catalogue.load(text)
            case "unload":
                await self.catalogue.unload(text)
            case "metrics":
                return self._metrics(next((key for key in self.config.keys if key.name == text), None))
        return ""


# Protocols whose errors look otherwise, by the beginning of their paths.
FORMS: Mapping[str, Callable[[SmeltError], Response]] = {"/v1/": openai_problem}
