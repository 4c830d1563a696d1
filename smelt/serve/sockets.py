"""The WebSocket `/ws/chat`: a message with a chat request in, tokens out, as many times as the client likes.

    → {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}     as for /v1/chat/completions
    ← {"type": "token", "text": "Hi"} … {"type": "done", "finish_reason": "stop", "usage": {…}}

`{"type": "stop"}` ends the running answer. A browser, which cannot send headers, puts its key into `key`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from smelt.errors import SmeltError
from smelt.serve.http import Receive, Request, Scope, Send, is_same_origin, read_json
from smelt.serve.keys import Keys
from smelt.serve.language import Generation, Languages, chat_prompt, form_of
from smelt.serve.openai import ChatRequest, usage_of
from smelt.serve.problems import ForbiddenError, RequestError, UnauthorizedError, status_of

PATH = "/ws/chat"
IDLE = 600.0  # seconds for which a connection may stay silent
REFUSED, GONE = 1008, 1001  # codes of closing: policy, going away


class SocketChatRequest(ChatRequest, kw_only=True):
    model: str = ""
    messages: list[dict[str, Any]] = msgspec.field(default_factory=list)
    type: str = "chat"
    key: str = ""


_REQUEST = msgspec.json.Decoder(SocketChatRequest)
_encode = msgspec.json.Encoder().encode


class Sockets:
    """Every WebSocket of a server."""

    def __init__(self, languages: Languages, keys: Keys) -> None:
        self.languages, self.keys, self.config = languages, keys, languages.config

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (await receive())["type"] != "websocket.connect":
            return
        headers = dict(scope["headers"])
        if scope["path"] != PATH or not is_same_origin(headers, self.config.allow_origin):
            await send({"type": "websocket.close", "code": REFUSED})  # before it is accepted: 403
            return
        await send({"type": "websocket.accept"})
        await _Conversation(self, scope, receive, send).run()


class _Conversation:
    """One connection. While an answer runs, only `stop` is listened to."""

    def __init__(self, sockets: Sockets, scope: Scope, receive: Receive, send: Send) -> None:
        self.sockets, self.receive, self.send = sockets, receive, send
        self.request = Request({**scope, "method": "GET"}, receive)
        self.pending: SocketChatRequest | None = None  # a message that came while an answer ended

    async def run(self) -> None:
        while True:
            try:
                asked = self.pending or await self._next(IDLE)
                self.pending = None
                if asked is None or not await self._answer(asked):
                    return
            except TimeoutError:
                await self.send({"type": "websocket.close", "code": GONE, "reason": "idle"})
                return
            except (UnauthorizedError, ForbiddenError) as error:
                self.sockets.languages.note("refused", self.request, error=error.message)
                await self._say(_problem(error))
                if isinstance(error, UnauthorizedError):
                    await self.send({"type": "websocket.close", "code": REFUSED, "reason": "no valid API key"})
                    return
            except SmeltError as error:
                await self._say(_problem(error))

    async def _next(self, seconds: float | None = None) -> SocketChatRequest | None:
        """The client's next message; None where it has left."""
        async with asyncio.timeout(seconds):
            message = await self.receive()
        return None if message["type"] == "websocket.disconnect" else self._read(message)

    def _read(self, message: Mapping[str, Any]) -> SocketChatRequest:
        data = message.get("bytes") or (message.get("text") or "").encode()
        asked = read_json(_REQUEST, data, "the message")
        if asked.type not in ("chat", "stop"):
            raise RequestError("unknown type of message", expected="chat or stop", got=asked.type[:80])
        if asked.type == "chat" and asked.key:
            self.request.headers[b"authorization"] = b"Bearer " + asked.key.encode("latin-1", "replace")
        return asked

    async def _answer(self, asked: SocketChatRequest) -> bool:
        """Send one answer; False where the client has left. A `stop` that comes after the answer is nothing to do."""
        if asked.type == "stop":
            return True
        self.request.key = None
        self.request.key = self.sockets.keys.admit(self.request)
        languages = self.sockets.languages
        for field in ("tools", "logprobs"):
            if getattr(asked, field):
                raise RequestError(f"{field} is not there for WebSockets", remedy="POST /v1/chat/completions")
        if (asked.n or 1) != 1:
            raise RequestError("a WebSocket gives one answer", expected="n = 1", got=asked.n)
        if asked.max_completion_tokens is not None:
            asked.max_tokens = asked.max_completion_tokens
        opened = await languages.open(self.request, asked.model)
        prompt = await chat_prompt(opened, asked.messages)
        options = asked.options(None) | form_of(asked.response_format)
        (run,) = await languages.start(self.request, opened, [prompt], options, 1)
        sending = asyncio.ensure_future(self._stream(run))
        listening = asyncio.ensure_future(self._next())
        try:
            await asyncio.wait((sending, listening), return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                sending.result()
                if listening.done():
                    self.pending = listening.result()
                    return self.pending is not None
                return True
            sending.cancel()
            await asyncio.wait((sending,))
            said = listening.result()
            if said is None:
                return False
            if said.type == "chat":
                raise RequestError("an answer was still running", remedy='{"type": "stop"}, or wait for "done"')
            await self._say({"type": "done", "finish_reason": "cancelled", "usage": usage_of([run])})
            return True
        finally:
            sending.cancel()
            listening.cancel()
            run.cancel()

    async def _stream(self, run: Generation) -> None:
        async for piece in run:
            if piece.text:
                await self._say({"type": "token", "text": piece.text})
        await self._say({"type": "done", "finish_reason": run.finish, "usage": usage_of([run])})

    async def _say(self, record: Mapping[str, Any]) -> None:
        await self.send({"type": "websocket.send", "text": _encode(record).decode()})


def _problem(error: SmeltError) -> dict[str, Any]:
    return {"type": "error", "error": str(error), "detail": error.record(), "status": status_of(error)}
