"""OpenAI's API for language models: models, chat completions, completions, embeddings, tokenize.

Fields that other servers added (top_k, min_p, repetition_penalty, ignore_eos) are understood; what would change the
answer and is not there is refused.
"""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec

from smelt.errors import SmeltError
from smelt.serve.http import EVENTS, Request, Response, Routes, json_response, read_json
from smelt.serve.language import (
    Generation,
    Languages,
    Opened,
    cancel_all,
    chat_prompt,
    check_supported,
    complete,
    explain_failure,
    form_of,
)
from smelt.serve.problems import RequestError, status_of
from smelt.serve.text_model import About, Token
from smelt.serve.tool_choice import ToolUse, choose_tools

_KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
ABSENT = {
    "/v1/audio/": "speech models (Whisper and others) are not served here",
    "/v1/images/": "models that make images are not served here",
    "/v1/responses/": "responses are not stored here",
}
_dump = msgspec.json.Encoder().encode
NO_TOKEN, NO_TOOLS = Token(0, ""), ToolUse()


class StreamOptions(msgspec.Struct):
    include_usage: bool = False


class Shared(msgspec.Struct, kw_only=True):
    """What chat and completion requests have in common."""

    model: str
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    ignore_eos: bool = False
    user: str | None = None

    def options(self, logprobs: int | None) -> dict[str, Any]:
        """The engine's options. The temperature is 1 unless given, as OpenAI has it."""
        named = ("top_p", "top_k", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "seed")
        found = {name: getattr(self, name) for name in named if getattr(self, name) is not None}
        found["temperature"] = 1.0 if self.temperature is None else self.temperature
        found["max_tokens"] = self.max_tokens
        found["ignore_end"] = self.ignore_eos
        if self.stop:
            found["stop"] = self.stop
        if self.logit_bias:
            found["logit_bias"] = _bias(self.logit_bias)
        if logprobs is not None:
            found["logprobs"] = logprobs
        return found


class ChatRequest(Shared, kw_only=True):
    messages: list[dict[str, Any]]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    response_format: dict[str, Any] | None = None


class CompletionRequest(Shared, kw_only=True):
    prompt: str | list[Any]
    echo: bool = False
    suffix: str | None = None
    best_of: int | None = None
    logprobs: int | None = None


class EmbeddingRequest(msgspec.Struct):
    model: str
    input: str | list[Any]
    encoding_format: str = "float"
    dimensions: int | None = None


class TokenizeRequest(msgspec.Struct):
    model: str
    prompt: str | None = None
    messages: list[dict[str, Any]] | None = None


class DetokenizeRequest(msgspec.Struct):
    model: str
    tokens: list[int]


_CHAT, _COMPLETION = msgspec.json.Decoder(ChatRequest), msgspec.json.Decoder(CompletionRequest)
_EMBEDDING = msgspec.json.Decoder(EmbeddingRequest)
_TOKENIZE, _DETOKENIZE = msgspec.json.Decoder(TokenizeRequest), msgspec.json.Decoder(DetokenizeRequest)


def _bias(given: Mapping[str, float]) -> dict[int, float]:
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError:
        raise RequestError("logit_bias names tokens by number", got=next(iter(given))) from None


def openai_problem(error: SmeltError) -> Response:
    """An error in OpenAI's form."""
    status = status_of(error)
    kind = _KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    fields = {"message": str(error), "type": kind, "param": None, "code": type(error).__name__}
    response = json_response({"error": fields}, status)
    retry = getattr(error, "retry_after", None)
    if retry is not None:
        response.headers.append((b"retry-after", str(max(1, round(retry))).encode()))
    return response


class OpenAI:
    """The paths under /v1."""

    def __init__(self, languages: Languages) -> None:
        self.languages, self.config = languages, languages.config

    def add_to(self, routes: Routes) -> None:
        routes.add("GET", "/v1/models", self.models)
        routes.add("GET", "/v1/models/{}", self.model)
        routes.add("POST", "/v1/chat/completions", self.chat)
        routes.add("POST", "/v1/completions", self.completions)
        routes.add("POST", "/v1/embeddings", self.embeddings)
        routes.add("POST", "/tokenize", self.tokenize)
        routes.add("POST", "/detokenize", self.detokenize)
        for prefix, why in ABSENT.items():
            routes.add_absent(prefix, why)

    async def _read(self, request: Request, decoder: msgspec.json.Decoder[Any]) -> Any:
        body = await request.body(self.config.max_body, self.config.body_timeout)
        return read_json(decoder, body, "the request")

    async def models(self, request: Request) -> Response:
        rows = [_describe(each.name, each.about) for each in self.languages.list_models(request)]
        return json_response({"object": "list", "data": rows})

    async def model(self, request: Request) -> Response:
        opened = await self.languages.open_any(request, request.parts[0])
        return json_response(_describe(opened.name, opened.texts.about))

    async def chat(self, request: Request) -> Response:
        asked: ChatRequest = await self._read(request, _CHAT)
        if asked.max_completion_tokens is not None:
            asked.max_tokens = asked.max_completion_tokens
        opened = await self.languages.open(request, asked.model)
        tools = choose_tools(opened.texts.about.template, asked.tools, asked.tool_choice)
        prompt = await chat_prompt(opened, asked.messages, tools.offered)
        logprobs = (asked.top_logprobs or 0) if asked.logprobs else None
        options = asked.options(logprobs) | form_of(asked.response_format) | tools.options
        runs = await self.languages.start(request, opened, [prompt], options, asked.n or 1, bool(tools))
        return await self._answer(request, asked, runs, Chat(logprobs is not None, tools))

    async def completions(self, request: Request) -> Response:
        asked: CompletionRequest = await self._read(request, _COMPLETION)
        check_supported(
            {"suffix": asked.suffix, "best_of": (asked.best_of or 1) > (asked.n or 1)}, ("suffix", "best_of")
        )
        check_supported({"echo": asked.echo and asked.logprobs is not None}, ("echo",))
        opened = await self.languages.open(request, asked.model)
        prompts = await _prompts(opened, asked.prompt)
        if asked.max_tokens is None:
            asked.max_tokens = 16  # OpenAI's default for this endpoint
        n = asked.n or 1
        opened.check_room(n * len(prompts))
        texts = [await opened.prepare(opened.texts.decode(each)) if asked.echo else "" for each in prompts]
        runs = await self.languages.start(request, opened, prompts, asked.options(asked.logprobs), n)
        echoes = [text for text in texts for _ in range(n)]
        return await self._answer(request, asked, runs, Completion(asked.logprobs is not None, echoes))

    async def _answer(self, request: Request, asked: Shared, runs: list[Generation], form: Form) -> Response:
        identity = form.prefix + secrets.token_hex(12)
        head = {"id": identity, "created": int(time.time()), "model": asked.model}
        if asked.stream:
            usage = asked.stream_options is not None and asked.stream_options.include_usage
            return Response(
                kind=EVENTS,
                stream=_events(runs, form, head, usage),
                headers=[(b"cache-control", b"no-cache")],
                close=lambda: cancel_all(runs),
            )
        await complete(request, runs)
        choices = [form.whole(i, run) for i, run in enumerate(runs)]
        return json_response({**head, "object": form.object, "choices": choices, "usage": usage_of(runs)})

    async def embeddings(self, request: Request) -> Response:
        asked: EmbeddingRequest = await self._read(request, _EMBEDDING)
        opened = await self.languages.open_encoder(request, asked.model)
        check_supported({"dimensions": asked.dimensions}, ("dimensions",))
        texts = _split_texts("input", asked.input)
        made = await request.while_connected(opened.run(opened.texts.embed(texts)))
        opened.stats.prompt_tokens += made.tokens
        found = made.array
        if asked.encoding_format == "base64":
            rows: list[Any] = [base64.b64encode(row.astype("<f4").tobytes()).decode() for row in found]
        else:
            rows = [row.tolist() for row in found]
        data = [{"object": "embedding", "index": i, "embedding": row} for i, row in enumerate(rows)]
        usage = {"prompt_tokens": made.tokens, "total_tokens": made.tokens}
        return json_response({"object": "list", "data": data, "model": opened.name, "usage": usage})

    async def tokenize(self, request: Request) -> Response:
        asked: TokenizeRequest = await self._read(request, _TOKENIZE)
        opened = await self.languages.open_any(request, asked.model)
        if (asked.prompt is None) == (asked.messages is None):
            raise RequestError("give either prompt or messages")
        if asked.messages is not None:
            ids = await chat_prompt(opened, asked.messages)
        else:
            (ids,) = await opened.prepare(opened.texts.encode([asked.prompt or ""]))
        return json_response({"tokens": ids, "count": len(ids), "max_model_len": opened.texts.about.context})

    async def detokenize(self, request: Request) -> Response:
        asked: DetokenizeRequest = await self._read(request, _DETOKENIZE)
        opened = await self.languages.open_any(request, asked.model)
        size = opened.texts.about.vocabulary
        if any(not 0 <= token < size for token in asked.tokens):
            raise RequestError("no such token", expected=f"0 to {size - 1}")
        return json_response({"prompt": await opened.prepare(opened.texts.decode(asked.tokens))})


def _describe(name: str, about: About | None) -> dict[str, Any]:
    fields = {"id": name, "object": "model", "created": 0, "owned_by": "smelt"}
    return fields if about is None else {**fields, "max_model_len": about.context}


async def _prompts(opened: Opened, prompt: str | list[Any]) -> list[list[int]]:
    found = _split_texts("prompt", prompt)
    return await opened.prepare(opened.texts.encode(found)) if isinstance(found[0], str) else found


def _split_texts(field: str, given: str | list[Any]) -> list[Any]:
    """A text, tokens, or several of either → a list of texts, or a list of lists of tokens."""
    if isinstance(given, str):
        return [given]
    if given and all(type(each) is int for each in given):
        return [given]
    if given and all(isinstance(each, str) for each in given):
        return given
    if given and all(isinstance(each, list) and each and all(type(t) is int for t in each) for each in given):
        return given
    raise RequestError(f"the {field} is no text", expected="a string, tokens, or a list of either")


def usage_of(runs: Sequence[Generation]) -> dict[str, int]:
    prompts = sum({id(run.prompt): len(run.prompt) for run in runs}.values())
    made = sum(run.tokens for run in runs)
    return {"prompt_tokens": prompts, "completion_tokens": made, "total_tokens": prompts + made}


# ---- the two forms of answers ----


class Form(ABC):
    """How pieces and whole answers look."""

    prefix = object = chunk = ""
    field = b""  # of a piece, before its text

    held = False  # whether pieces are held back until the answer is whole

    def __init__(self, logprobs: bool) -> None:
        self.logprobs = logprobs

    @abstractmethod
    def whole(self, index: int, run: Generation) -> dict[str, Any]: ...

    @abstractmethod
    def first(self, index: int) -> dict[str, Any] | None: ...

    @abstractmethod
    def piece(self, index: int, piece: Token, run: Generation) -> dict[str, Any]: ...

    @abstractmethod
    def last(self, index: int, run: Generation) -> dict[str, Any]: ...


class Chat(Form):
    prefix, object, chunk = "chatcmpl-", "chat.completion", "chat.completion.chunk"
    field = b'"content":'

    def __init__(self, logprobs: bool, tools: ToolUse = NO_TOOLS) -> None:
        super().__init__(logprobs)
        self.tools, self.held = tools, bool(tools)

    def calls(self, run: Generation) -> list[dict[str, Any]]:
        """The tools that an answer calls."""
        return [
            {
                "id": f"call_{secrets.token_hex(8)}",
                "type": "function",
                "function": {"name": call.name, "arguments": json.dumps(call.arguments)},
            }
            for call in self.tools.calls(run)
        ]

    def whole(self, index: int, run: Generation) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": run.text, "refusal": None}
        calls = self.calls(run)
        if calls:
            message |= {"content": None, "tool_calls": calls}
            return {"index": index, "message": message, "logprobs": None, "finish_reason": "tool_calls"}
        return {
            "index": index,
            "message": message,
            "logprobs": self._probs(run.pieces),
            "finish_reason": run.finish,
        }

    def first(self, index: int) -> dict[str, Any] | None:
        return {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}

    def piece(self, index: int, piece: Token, run: Generation) -> dict[str, Any]:
        probs = self._probs([piece])
        return {"index": index, "delta": {"content": piece.text}, "logprobs": probs, "finish_reason": None}

    def last(self, index: int, run: Generation) -> dict[str, Any]:
        calls = self.calls(run)
        if calls:
            delta: dict[str, Any] = {"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]}
        else:
            delta = {"content": run.text} if self.held else {}
        finish = "tool_calls" if calls else run.finish
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}

    def _probs(self, pieces: Sequence[Token]) -> dict[str, Any] | None:
        if not self.logprobs:
            return None

        def entry(text: str, logprob: float) -> dict[str, Any]:
            return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

        rows = [
            {**entry(each.name, each.logprob or 0.0), "top_logprobs": [entry(*top) for top in each.top]}
            for each in pieces
        ]
        return {"content": rows, "refusal": None}


class Completion(Form):
    prefix, object, chunk = "cmpl-", "text_completion", "text_completion"
    field = b'"text":'

    def __init__(self, logprobs: bool, echoes: Sequence[str]) -> None:
        super().__init__(logprobs)
        self.echoes = echoes
        self._sent = [len(each) for each in echoes]  # characters of each answer that were sent

    def whole(self, index: int, run: Generation) -> dict[str, Any]:
        text = self.echoes[index] + run.text
        probs = self._probs(run.pieces, len(self.echoes[index]))
        return {"index": index, "text": text, "logprobs": probs, "finish_reason": run.finish}

    def first(self, index: int) -> dict[str, Any] | None:
        text = self.echoes[index]
        return {"index": index, "text": text, "logprobs": None, "finish_reason": None} if text else None

    def piece(self, index: int, piece: Token, run: Generation) -> dict[str, Any]:
        probs = self._probs([piece], self._sent[index])
        self._sent[index] += len(piece.text)
        return {"index": index, "text": piece.text, "logprobs": probs, "finish_reason": None}

    def last(self, index: int, run: Generation) -> dict[str, Any]:
        return {"index": index, "text": "", "logprobs": None, "finish_reason": run.finish}

    def _probs(self, pieces: Sequence[Token], start: int) -> dict[str, Any] | None:
        """`start`: characters of the text before the pieces. The text of a token may come with a later one."""
        if not self.logprobs:
            return None
        *offsets, _ = itertools.accumulate((len(piece.text) for piece in pieces), initial=start)
        return {
            "tokens": [piece.name for piece in pieces],
            "token_logprobs": [piece.logprob for piece in pieces],
            "top_logprobs": [dict(piece.top) for piece in pieces],
            "text_offset": offsets,
        }


async def _events(
    runs: Sequence[Generation], form: Form, head: Mapping[str, Any], usage: bool
) -> AsyncGenerator[bytes, None]:
    """Server-sent events of several answers as their tokens come; an error is the last event."""

    def event(choices: list[dict[str, Any]], **more: Any) -> bytes:
        return b"data: " + _dump({**head, "object": form.chunk, "choices": choices, **more}) + b"\n\n"

    for i in range(len(runs)):
        opening = form.first(i)
        if opening is not None:
            yield event([opening])
    plain = [b"" if form.logprobs else event([form.piece(i, NO_TOKEN, run)]) for i, run in enumerate(runs)]
    parts = [each.rpartition(form.field + b'""') for each in plain]  # around the text, which alone differs
    try:
        async for index, tokens in _interleave(runs):
            if tokens is None:
                yield event([form.last(index, runs[index])])
            elif form.held:
                continue
            elif form.logprobs:
                yield b"".join([event([form.piece(index, token, runs[index])]) for token in tokens])
            else:
                before, _, after = parts[index]
                yield b"".join([b"%b%b%b%b" % (before, form.field, _dump(each.text), after) for each in tokens])
    except Exception as error:
        yield b"data: " + openai_problem(explain_failure(error, runs)).body + b"\n\n"
        return
    if usage:
        yield event([], usage=usage_of(runs))
    yield b"data: [DONE]\n\n"


async def _interleave(runs: Sequence[Generation]) -> AsyncGenerator[tuple[int, list[Token] | None], None]:
    """The tokens of answers as they come, with the index of their answer; None where one has ended."""
    if len(runs) == 1:  # without a task for each
        while tokens := await runs[0].take():
            yield 0, tokens
        yield 0, None
        return
    queue: asyncio.Queue[tuple[int, list[Token] | Exception | None]] = asyncio.Queue()

    async def follow(index: int, run: Generation) -> None:
        try:
            while tokens := await run.take():
                queue.put_nowait((index, tokens))
            queue.put_nowait((index, None))
        except Exception as error:
            queue.put_nowait((index, error))

    tasks = [asyncio.create_task(follow(i, run)) for i, run in enumerate(runs)]
    try:
        left = len(runs)
        while left:
            index, item = await queue.get()
            if isinstance(item, Exception):
                raise item
            left -= item is None
            yield index, item
    finally:
        for task in tasks:
            task.cancel()
