"""Language models behind the server: one generation as the OpenAI and Ollama fronts see it.

A request's fields become the engine's options; tokens come back one by one. When a client leaves, its generation ends
before the next step.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from smelt.errors import UnsupportedError
from smelt.llm import CrossEncoder, EmbeddingModel, LanguageModel, Piece
from smelt.serve.config import Config
from smelt.serve.http import Request
from smelt.serve.keys import Keys
from smelt.serve.models import Catalogue, Version
from smelt.serve.problems import BusyError, DeadlineError, RequestError

MAX_ANSWERS = 16


class Generation:
    """One running answer. Iterate for pieces; afterwards `finish` and the counts are there."""

    def __init__(self, version: Version, prompt: Sequence[int], options: Mapping[str, Any]) -> None:
        self.version, self.prompt = version, prompt
        model: LanguageModel = version.loaded
        self._run = model.stream_async(list(prompt), timeout=version.config.timeout, **options)
        self.tokens = 0
        self.text = ""
        self.pieces: list[Piece] = []

    @property
    def finish(self) -> str:
        return self._run.finish

    async def __aiter__(self) -> AsyncGenerator[Piece, None]:
        stats, started = self.version.stats, time.perf_counter()
        last = started
        self.version.active += 1
        try:
            async for piece in self._run:
                now = time.perf_counter()
                (stats.between_tokens if self.tokens else stats.first_token).add(now - last)
                last = now
                self.tokens += 1
                self.text += piece.text
                self.pieces.append(piece)
                yield piece
            if self.finish == "deadline":
                raise DeadlineError(f"{self.version.name}: the answer took too long")
            stats.success += 1
            stats.latency.add(time.perf_counter() - started)
        except BaseException:
            stats.failure += 1
            raise
        finally:
            self.version.active -= 1
            stats.last = time.time()
            stats.prompt_tokens += len(self.prompt)
            stats.generated_tokens += self.tokens
            self._run.cancel()

    async def complete(self) -> Generation:
        async for _ in self:
            pass
        return self


class Languages:
    """The language models of a catalogue."""

    def __init__(self, catalogue: Catalogue, config: Config, keys: Keys) -> None:
        self.catalogue, self.config, self.keys = catalogue, config, keys

    def open(self, request: Request, name: str) -> Version:
        """A model that generates text, if the request's key opens it."""
        self.keys.check_model(request.key, name)
        return self.get(name)

    def open_encoder(self, request: Request, name: str) -> Version:
        self.keys.check_model(request.key, name)
        return self.get_encoder(name)

    def get(self, name: str) -> Version:
        found = self._find(name)
        if not isinstance(found.loaded, LanguageModel):
            raise RequestError(f"{name} makes no text", remedy="POST /v1/embeddings, or /v1/rerank for a cross-encoder")
        return found

    def open_ranker(self, request: Request, name: str) -> Version:
        """A model that ranks texts: a cross-encoder, or one that makes embeddings."""
        self.keys.check_model(request.key, name)
        found = self._find(name)
        return found if isinstance(found.loaded, CrossEncoder) else self.get_encoder(name)

    def get_encoder(self, name: str) -> Version:
        found = self._find(name)
        if not isinstance(found.loaded, EmbeddingModel):
            raise RequestError(f"{name} makes no embeddings", remedy="serve an encoder, e.g. the folder of a MiniLM")
        return found

    def _find(self, name: str) -> Version:
        found = self.catalogue.get(name)
        if not found.language:
            raise RequestError(f"{name} is no language model", remedy=f"POST /v2/models/{name}/infer")
        return found

    def names(self, request: Request) -> list[Version]:
        """The language models that a request's key opens."""
        ready = (each for each in self.catalogue.every() if each.language and each.state == "READY")
        return [each for each in ready if self.keys.opens(request.key, each.name)]

    def start(
        self,
        request: Request,
        version: Version,
        prompts: Sequence[Sequence[int]],
        options: Mapping[str, Any],
        n: int,
    ) -> list[Generation]:
        """`n` answers to each prompt. The i-th draws with the seed plus i. Those who have a key are served alike."""
        if not 1 <= n <= MAX_ANSWERS:
            raise RequestError("n is out of range", expected=f"1 to {MAX_ANSWERS}", got=n)
        if version.active + n * len(prompts) > version.config.max_queue:
            version.stats.refused += 1
            raise BusyError(
                f"{version.name} is busy", expected=f"at most {version.config.max_queue} answers at once", retry_after=1
            )
        seed = options.get("seed")
        first = secrets.randbits(48) if seed is None else seed
        model: LanguageModel = version.loaded
        client = "" if request.key is None else request.key.name
        found = []
        for prompt in prompts:
            most = model.context - len(prompt)
            asked = options.get("max_tokens")
            given = {**options, "max_tokens": most if asked is None else asked, "client": client}
            found += [Generation(version, prompt, {**given, "seed": (first + i) % (1 << 64)}) for i in range(n)]
        return found


def encode(version: Version, text: str) -> list[int]:
    model: LanguageModel = version.loaded
    return model.tokenizer.encode(text)


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


def chat_prompt(
    version: Version, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None = None
) -> list[int]:
    """Tokens of messages. Content may come in parts, of which only text is understood."""
    if not messages:
        raise RequestError("there are no messages", expected='[{"role": "user", "content": "…"}]')
    model: LanguageModel = version.loaded
    arguments = {"tools": list(tools)} if tools else {}
    return model.prompt([_message(message) for message in messages], **arguments)


def _message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message as templates read it: text, and the arguments of tool calls as records."""
    found = {**message, "content": _text(message.get("content"))}
    calls = message.get("tool_calls")
    if calls:
        try:
            found["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
                for call in calls
            ]
        except (TypeError, KeyError, ValueError) as error:
            raise RequestError("tool_calls do not fit", expected="calls with function.name and .arguments") from error
    return found


def _text(content: Any) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list) and all(isinstance(p, dict) and p.get("type") == "text" for p in content):
        return "".join(str(part.get("text", "")) for part in content)
    raise RequestError("the content is no text", expected="a string, or parts of type text")
