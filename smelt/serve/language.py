"""Language models behind the server: one generation, for the OpenAI and Ollama APIs.

A request's fields become the engine's options; tokens come back one by one. When a client leaves, its generation ends
before the next step.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from smelt.errors import SmeltError, UnsupportedError
from smelt.serve.config import Config
from smelt.serve.http import Request
from smelt.serve.keys import Keys
from smelt.serve.models import Catalogue, Version
from smelt.serve.problems import BusyError, DeadlineError, RequestError, as_problem
from smelt.serve.stats import ModelStats
from smelt.serve.text_model import CHAT, EMBEDDING, RANKING, TextModel, TextRun, Token

T = TypeVar("T")
log = logging.getLogger("smelt.serve")
MAX_ANSWERS = 16


class Opened:
    """A language model for one request. It is not closed before what was asked of it has ended."""

    def __init__(self, version: Version) -> None:
        self.name, self.config, self.stats = version.name, version.config, version.stats
        self.texts: TextModel = version.loaded

    def check_room(self, count: int) -> None:
        if self.texts.running + count > self.config.max_queue:
            self.stats.refused += 1
            raise BusyError(
                f"{self.name} is busy", expected=f"at most {self.config.max_queue} answers at once", retry_after=1
            )

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """The result of something that is no answer of tokens. It counts as a request, and has the model's timeout."""
        self._admit(work)
        with _Counted(self.texts, self.stats):
            return await self._within_timeout(work)

    async def prepare(self, work: Coroutine[Any, Any, T]) -> T:
        """The same for a part of a request, which is counted later."""
        self._admit(work)
        self.texts.running += 1
        try:
            return await self._within_timeout(work)
        finally:
            self.texts.running -= 1

    def _admit(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            self.check_room(1)
        except BusyError:
            work.close()
            raise

    async def _within_timeout(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            async with asyncio.timeout(self.config.timeout):
                return await work
        except TimeoutError:
            raise DeadlineError(f"{self.name}: the answer took too long") from None


class _Counted:
    """A running request, and how it ended."""

    def __init__(self, texts: TextModel, stats: ModelStats) -> None:
        self._texts, self._stats, self._ended = texts, stats, False
        self._started = time.perf_counter()
        texts.running += 1

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.end(kind is None)

    def end(self, is_success: bool) -> None:
        if not self._ended:
            self._ended = True
            self._texts.running -= 1
            stats, spent = self._stats, time.perf_counter() - self._started
            stats.last = time.time()
            if is_success:
                stats.success += 1
                stats.success_s += spent
                stats.latency.add(spent)
            else:
                stats.failure += 1
                stats.failure_s += spent


class Generation:
    """One running answer. Iterate for tokens, or `take` several at once; at the end `finish` and the counts are there.
    It must be cancelled by who does not go to the end."""

    def __init__(self, opened: Opened, prompt: Sequence[int], run: TextRun) -> None:
        self.opened, self.prompt, self._run = opened, prompt, run
        self._counted = _Counted(opened.texts, opened.stats)
        opened.stats.prompt_tokens += len(prompt)
        self._last = time.perf_counter()
        self._is_waiting = True  # for its first token
        opened.texts.waiting += 1
        self.first = 0.0  # seconds to the first token
        self.tokens = 0
        self.text = ""
        self.pieces: list[Token] = []

    @property
    def finish(self) -> str:
        return self._run.finish

    @property
    def said(self) -> str:
        """The text with special tokens, if requested."""
        return self._run.said

    async def __aiter__(self) -> AsyncGenerator[Token, None]:
        try:
            while pieces := await self.take():
                for piece in pieces:
                    yield piece
        finally:
            self.cancel()

    async def take(self) -> list[Token]:
        """The next tokens: those that are there, at least one. Empty at the end."""
        pieces = await self._run.take()
        if pieces:
            self._note(pieces)
            return pieces
        if self.finish == "deadline":
            raise DeadlineError(f"{self.opened.name}: the answer took too long")
        self._end(True)
        return []

    def _end(self, is_success: bool) -> None:
        self._stop_waiting()
        self._counted.end(is_success)

    def _stop_waiting(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self.opened.texts.waiting -= 1

    def _note(self, pieces: Sequence[Token]) -> None:
        stats, now = self.opened.stats, time.perf_counter()
        self._stop_waiting()
        for piece in pieces:
            (stats.between_tokens if self.tokens else stats.first_token).add(now - self._last)
            if not self.tokens:
                self.first = now - self._last
            self._last = now
            self.tokens += 1
            self.text += piece.text
            self.pieces.append(piece)
        stats.generated_tokens += len(pieces)

    async def complete(self) -> Generation:
        async for _ in self:
            pass
        return self

    def cancel(self) -> None:
        """End it, if it has not ended."""
        self._run.cancel()
        self._end(False)


async def complete(request: Request, runs: Sequence[Generation]) -> None:
    """Run all to the end while the client is there; where one fails, the others end too."""

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for run in runs:
                group.create_task(run.complete())

    try:
        await request.while_connected(work())
    except BaseExceptionGroup as several:
        errors = [each for each in several.exceptions if isinstance(each, SmeltError)]
        raise (errors or several.exceptions)[0] from several
    finally:
        cancel_all(runs)


def cancel_all(runs: Sequence[Generation]) -> None:
    for run in runs:
        run.cancel()


def explain_failure(error: Exception, runs: Sequence[Generation]) -> SmeltError:
    """What the client of a stream is told at its end. A bug of ours is logged."""
    if not isinstance(error, SmeltError):
        log.error("an answer of %s failed", runs[0].opened.name, exc_info=error)
    return as_problem(error)


class Languages:
    """The language models of a catalogue."""

    def __init__(
        self, catalogue: Catalogue, config: Config, keys: Keys, note: Callable[..., None] = lambda *_, **__: None
    ) -> None:
        self.catalogue, self.config, self.keys = catalogue, config, keys
        self.note = note  # an event, its request and more fields, for the audit log

    async def open(self, request: Request, name: str) -> Opened:
        """A model that generates text, if the request's key opens it."""
        return await self._open(request, name, (CHAT,), "makes no text", "/v1/embeddings, or /v1/rerank")

    async def open_encoder(self, request: Request, name: str) -> Opened:
        return await self._open(request, name, (EMBEDDING,), "makes no embeddings", "an encoder, e.g. a MiniLM")

    async def open_ranker(self, request: Request, name: str) -> Opened:
        """A model that ranks texts: a cross-encoder, or one that makes embeddings."""
        kinds = (RANKING, EMBEDDING)
        return await self._open(request, name, kinds, "makes no embeddings", "a cross-encoder, or an encoder")

    async def open_any(self, request: Request, name: str) -> Opened:
        return await self._open(request, name, (CHAT, EMBEDDING, RANKING), "", "")

    async def _open(self, request: Request, name: str, kinds: Sequence[str], lacks: str, remedy: str) -> Opened:
        self.keys.check_model(request.key, name)
        version = await self.catalogue.demand(name)
        if not isinstance(version.loaded, TextModel):
            raise RequestError(f"{name} is no language model", remedy=f"POST /v2/models/{name}/infer")
        if version.loaded.about.kind not in kinds:
            raise RequestError(f"{name} {lacks}", got=version.loaded.about.kind, remedy=remedy)
        return Opened(version)

    def list_models(self, request: Request) -> list[Version]:
        """The language models that a request's key opens, those that are loaded on demand included."""
        models = (each for each in self.catalogue.every() if each.language and each.callable)
        return [each for each in models if self.keys.opens(request.key, each.name)]

    async def start(
        self,
        request: Request,
        opened: Opened,
        prompts: Sequence[Sequence[int]],
        options: Mapping[str, Any],
        n: int,
        said: bool = False,
    ) -> list[Generation]:
        """`n` answers to each prompt. The i-th draws with the seed plus i. Those who have a key are served alike."""
        if not 1 <= n <= MAX_ANSWERS:
            raise RequestError("n is out of range", expected=f"1 to {MAX_ANSWERS}", got=n)
        opened.check_room(n * len(prompts))
        seed = options.get("seed")
        if seed is not None and type(seed) is not int:
            raise RequestError("seed is a whole number", got=repr(seed)[:80])
        first = secrets.randbits(48) if seed is None else seed
        client = "" if request.key is None else request.key.name
        given = {**options, "client": client, "timeout": opened.config.timeout}
        runs: list[Generation] = []
        try:
            for prompt in prompts:
                most = max(0, opened.texts.about.context - len(prompt))
                asked = options.get("max_tokens")
                given["max_tokens"] = most if asked is None else min(asked, most)
                for i in range(n):
                    work = opened.texts.generate(prompt, {**given, "seed": (first + i) % (1 << 64)}, said)
                    runs.append(Generation(opened, prompt, await opened.prepare(work)))
        except BaseException:
            cancel_all(runs)
            raise
        return runs


def check_supported(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Refuse what would change the answer and is not there: ignoring it would be a wrong answer."""
    for name in names:
        if given.get(name):
            raise UnsupportedError(f"{name} is not supported here", remedy=f"leave out {name}")


def form_of(asked: Mapping[str, Any] | None) -> dict[str, Any]:
    """What an answer must look like: a JSON schema for the engine, which generates nothing else."""
    match (asked or {}).get("type", "text"):
        case "text":
            return {}
        case "json_object":
            return {"schema": {"type": "object"}}
        case "json_schema":
            schema = ((asked or {}).get("json_schema") or {}).get("schema")
            if not isinstance(schema, dict):
                raise RequestError("response_format has no schema", expected='{"json_schema": {"schema": {…}}}')
            return {"schema": schema}
        case other:
            raise RequestError("unknown response_format", expected="text, json_object or json_schema", got=other)


async def chat_prompt(
    opened: Opened, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> list[int]:
    """Tokens of messages. Content may come in parts, of which only text is understood."""
    if not messages:
        raise RequestError("there are no messages", expected='[{"role": "user", "content": "…"}]')
    knows_developers = "developer" in opened.texts.about.template
    written = [_message(message, knows_developers) for message in messages]
    return await opened.prepare(opened.texts.prompt(written, tools or ()))


def _message(message: Mapping[str, Any], knows_developers: bool = True) -> dict[str, Any]:
    """A message as templates read it: text, and the arguments of tool calls as records. OpenAI's role `developer` is
    `system` for templates that do not know it."""
    found = {**message, "content": _text(message.get("content"))}
    if found.get("role") == "developer" and not knows_developers:
        found["role"] = "system"
    calls = message.get("tool_calls")
    if calls:
        try:
            found["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": _arguments(call["function"]["arguments"])}}
                for call in calls
            ]
        except (TypeError, KeyError, ValueError, RecursionError) as error:
            raise RequestError("tool_calls do not fit", expected="calls with function.name and .arguments") from error
    return found


def _arguments(given: Any) -> Any:
    """Of a call: OpenAI's clients write them as a text, Ollama's as a record."""
    return given if isinstance(given, dict) else json.loads(given)


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise RequestError("the content is no text", expected="a string, or parts of type text")
