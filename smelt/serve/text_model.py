"""A language model as the server's protocols call it: `TextModel`, and `LocalTexts`, one in the same process.

Everything goes in and out as text, token numbers and arrays, so that a model in a worker process
(`isolation.remote_texts`) is called in the same way. `language` and the protocols use it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from smelt.dtype import Array
from smelt.errors import ParseError, UnsupportedError
from smelt.llm import CrossEncoder, EmbeddingModel, LanguageModel
from smelt.llm.stream import AsyncRun

CHAT, EMBEDDING, RANKING = "chat", "embedding", "ranking"


class About(msgspec.Struct, frozen=True):
    """What is known of a language model without calling it. `format`: of its file or folder."""

    kind: str
    family: str
    format: str
    context: int
    vocabulary: int
    template: str = ""


class Token(msgspec.Struct, array_like=True, frozen=True):
    """One token of an answer, and the text that is certain with it. Where log-probabilities were asked for, also its
    own text and the likeliest tokens."""

    token: int
    text: str
    name: str = ""
    logprob: float | None = None
    top: list[tuple[str, float]] = []


class Vectors(msgspec.Struct, array_like=True, frozen=True):
    """Embeddings f32[n, d], and how many tokens were read."""

    shape: tuple[int, int]
    data: bytes
    tokens: int

    @property
    def array(self) -> Array:
        if min(self.shape) < 0 or self.shape[0] * self.shape[1] * 4 != len(self.data):
            raise ParseError("embeddings do not fit their shape", got=f"{len(self.data)} bytes for {self.shape}")
        return np.frombuffer(self.data, np.float32).reshape(self.shape)


class Scores(msgspec.Struct, array_like=True, frozen=True):
    """Logits of relevance, and how many tokens were read."""

    logits: list[float]
    tokens: int


class TextRun(ABC):
    """One running answer. Iterate for tokens; afterwards `finish` is there, and `said` if it was asked for: the answer
    with its special tokens."""

    finish = "length"
    said = ""

    @abstractmethod
    def __aiter__(self) -> AsyncGenerator[Token, None]: ...

    @abstractmethod
    def cancel(self) -> None:
        """End it before the next step."""


class TextModel(ABC):
    about: About
    worker: Any = None  # the process that it runs in; None: this one
    restarts = 0  # of the worker
    running = 0  # requests, counted by `language`

    @abstractmethod
    async def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        """The tokens of messages, by the chat template."""

    @abstractmethod
    async def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    async def decode(self, tokens: Sequence[int]) -> str: ...

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> Vectors: ...

    @abstractmethod
    async def score(self, query: str, texts: Sequence[str]) -> Scores: ...

    @abstractmethod
    async def generate(self, prompt: Sequence[int], options: Mapping[str, Any], said: bool) -> TextRun:
        """Begin an answer. Mistakes in the options are raised here."""

    async def drain(self, seconds: float) -> None:
        """Wait for running requests, and take no more."""
        end = time.monotonic() + seconds
        while self.running and time.monotonic() < end:
            await asyncio.sleep(0.01)

    @abstractmethod
    def close(self) -> None: ...


class LocalTexts(TextModel):
    """A model in this process. What takes a while runs in threads."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.about = _describe(model)

    async def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        arguments = {"tools": list(tools)} if tools else {}
        found: list[int] = await asyncio.to_thread(self._of(LanguageModel).prompt, messages, **arguments)
        return found

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        tokenizer = self._model.tokenizer
        return await asyncio.to_thread(lambda: [tokenizer.encode(text) for text in texts])

    async def decode(self, tokens: Sequence[int]) -> str:
        found: str = await asyncio.to_thread(self._model.tokenizer.decode, list(tokens))
        return found

    async def embed(self, texts: Sequence[str]) -> Vectors:
        model = self._of(EmbeddingModel)

        def work() -> Vectors:
            made = np.ascontiguousarray(model.embed(texts), np.float32)
            tokens = sum(len(model.tokenizer.encode(text)) for text in texts)
            return Vectors((len(made), made.shape[1]), made.tobytes(), tokens)

        return await asyncio.to_thread(work)

    async def score(self, query: str, texts: Sequence[str]) -> Scores:
        logits, tokens = await asyncio.to_thread(self._of(CrossEncoder).score, query, texts)
        return Scores(logits.tolist(), tokens)

    async def generate(self, prompt: Sequence[int], options: Mapping[str, Any], said: bool) -> TextRun:
        model = self._of(LanguageModel)
        run: AsyncRun = await asyncio.to_thread(model.stream_async, list(prompt), **options)
        return _LocalRun(model, run, options.get("logprobs") is not None, said)

    def _of(self, kind: type) -> Any:
        if not isinstance(self._model, kind):
            raise UnsupportedError(
                f"it is no {kind.__name__}",
                got=self._model,
                remedy="ask a model of that kind: GET /v1/models lists them",
            )
        return self._model

    def warm_up(self) -> None:
        """Answer once, so that the first request finds everything compiled and bound."""
        match self._model:
            case LanguageModel():
                self._model.generate([0], max_tokens=2, ignore_end=True)
            case EmbeddingModel():
                self._model.embed([[0]])
            case CrossEncoder():
                self._model.score("a", ["b"])

    def close(self) -> None:
        self._model.close()


class _LocalRun(TextRun):
    def __init__(self, model: LanguageModel, run: AsyncRun, names: bool, says: bool) -> None:
        self._model, self._run, self._names, self._says = model, run, names, says

    async def __aiter__(self) -> AsyncGenerator[Token, None]:
        ids = []
        async for piece in self._run:
            ids.append(piece.token)
            choice = piece.choice
            if self._names:
                top = [(self._name(token), logprob) for token, logprob in choice.top]
                yield Token(piece.token, piece.text, self._name(piece.token), choice.logprob, top)
            else:
                yield Token(piece.token, piece.text)
        self.finish = self._run.finish
        if self._says:
            self.said = self._model.tokenizer.decode(ids, special=True)

    def _name(self, token: int) -> str:
        return self._model.tokenizer.decode([token], special=True)

    def cancel(self) -> None:
        self._run.cancel()


def _describe(model: Any) -> About:
    config = model.config
    if isinstance(model, LanguageModel):
        kind = model.checkpoint.kind
        form = "safetensors" if kind == "folder" else kind
        return About(CHAT, config.family, form, model.context, config.v, model.checkpoint.template or "")
    kind = RANKING if isinstance(model, CrossEncoder) else EMBEDDING
    return About(kind, config.family, "safetensors", model.context, config.v)
