"""A language model as the server's protocols call it: `TextModel`, and `LocalTexts`, one in the same process.

Everything goes in and out as text, token numbers and arrays, so that a model in a worker process
(`isolation.remote_texts`) is called in the same way. `language` and the protocols use it.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Annotated, Any

import msgspec
import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.llm import CrossEncoder, EmbeddingModel, LanguageModel, Piece
from smelt.llm.stream import EmittedRun
from smelt.serve.mailbox import Mailbox

CHAT, EMBEDDING, RANKING = "chat", "embedding", "ranking"
Text = Annotated[str, msgspec.Meta(max_length=1 << 16)]  # of one token
Count = Annotated[int, msgspec.Meta(ge=0)]


class About(msgspec.Struct, frozen=True):
    """What is known of a language model without calling it. `format`: of its file or folder."""

    kind: str
    family: str
    format: str
    context: int
    vocabulary: int
    template: str = ""


class Token(msgspec.Struct, array_like=True, frozen=True):
    """One token of an answer, and the text that is certain with it. If log-probabilities were requested, also its
    own text and the likeliest tokens. The limits are for what a worker sends."""

    token: int
    text: Text
    name: Text = ""
    logprob: float | None = None
    top: Annotated[list[tuple[Text, float]], msgspec.Meta(max_length=1 << 16)] = []


class Vectors(msgspec.Struct, array_like=True, frozen=True):
    """Embeddings f32[n, d], and how many tokens were read."""

    shape: tuple[int, int]
    data: bytes
    tokens: Count

    @property
    def is_whole(self) -> bool:
        return min(self.shape) >= 0 and self.shape[0] * self.shape[1] * 4 == len(self.data)

    @property
    def array(self) -> Array:
        return np.frombuffer(self.data, np.float32).reshape(self.shape)


class Scores(msgspec.Struct, array_like=True, frozen=True):
    """Logits of relevance, and how many tokens were read."""

    logits: list[float]
    tokens: Count


class TextRun(ABC):
    """One running answer. At its end `finish` is there, and `said` if requested: the answer with its special
    tokens."""

    finish = "length"
    said = ""

    @abstractmethod
    async def take(self) -> list[Token]:
        """The next tokens: those that are there, at least one. Empty at the end."""

    @abstractmethod
    def cancel(self) -> None:
        """End it before the next step."""


class TextModel(ABC):
    about: About
    worker: Any = None  # the process that it runs in; None: this one
    restarts = 0  # of the worker
    running = 0  # requests, counted by `language`
    waiting = 0  # of these, answers that wait for their first token

    @abstractmethod
    async def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        """The tokens of messages, by the chat template."""

    @abstractmethod
    async def encode(self, texts: Sequence[str]) -> list[list[int]]: ...

    @abstractmethod
    async def decode(self, tokens: Sequence[int]) -> str: ...

    @abstractmethod
    async def embed(self, texts: Sequence[str] | Sequence[Sequence[int]]) -> Vectors:
        """The vectors of texts, or of lists of tokens."""

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
        self._deliveries = Deliveries()

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

    async def embed(self, texts: Sequence[str] | Sequence[Sequence[int]]) -> Vectors:
        model = self._of(EmbeddingModel)

        def work() -> Vectors:
            made = np.ascontiguousarray(model.embed(texts), np.float32)
            lists = [model.tokenizer.encode(each) if isinstance(each, str) else each for each in texts]
            tokens = sum(min(len(each), model.context) for each in lists)
            return Vectors((len(made), made.shape[1]), made.tobytes(), tokens)

        return await asyncio.to_thread(work)

    async def score(self, query: str, texts: Sequence[str]) -> Scores:
        logits, tokens = await asyncio.to_thread(self._of(CrossEncoder).score, query, texts)
        return Scores(logits.tolist(), tokens)

    async def generate(self, prompt: Sequence[int], options: Mapping[str, Any], said: bool) -> TextRun:
        run = await self.prepare(prompt, options, said)
        self.on_step(self._deliveries.send)
        return _LocalRun(run, self._deliveries)

    def on_step(self, act: Callable[[], object]) -> None:
        """Have a function called on the engine's thread when the tokens of a step were emitted."""
        self._of(LanguageModel).on_step(act)

    async def prepare(self, prompt: Sequence[int], options: Mapping[str, Any], said: bool) -> Emitted:
        """An answer that has not begun. Mistakes in the options are raised here."""
        model = self._of(LanguageModel)
        run: EmittedRun = await asyncio.to_thread(model.stream_to, list(prompt), **options)
        return Emitted(model, run, options.get("logprobs") is not None, said)

    def _of(self, kind: type) -> Any:
        if not isinstance(self._model, kind):
            raise UnsupportedError(
                f"it is no {kind.__name__}",
                got=self._model,
                remedy="use a model of that kind: GET /v1/models lists them",
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


class Emitted:
    """An answer whose tokens are given to a function, on the engine's thread."""

    def __init__(self, model: LanguageModel, run: EmittedRun, names: bool, says: bool) -> None:
        self._model, self._run, self._names, self._says = model, run, names, says
        self._ids: list[int] = []

    def start(self, emit: Callable[[Token | None], None]) -> None:
        """Begin. `emit` gets tokens, and None at the end."""

        def take(piece: Piece | None) -> None:
            emit(None if piece is None else self._token(piece))

        self._run.start(take)

    def _token(self, piece: Piece) -> Token:
        self._ids.append(piece.token)
        if not self._names:
            return Token(piece.token, piece.text)
        top = [(self._name(token), logprob) for token, logprob in piece.choice.top]
        return Token(piece.token, piece.text, self._name(piece.token), piece.choice.logprob, top)

    def _name(self, token: int) -> str:
        return self._model.tokenizer.decode([token], special=True)

    @property
    def error(self) -> BaseException | None:
        return self._run.error

    @property
    def finish(self) -> str:
        return self._run.finish

    @property
    def said(self) -> str:
        return self._model.tokenizer.decode(self._ids, special=True) if self._says else ""

    def cancel(self) -> None:
        self._run.cancel()


class Deliveries:
    """Tokens on their way from the engine's thread to event loops: one message for all of a step."""

    def __init__(self) -> None:
        self._made: deque[tuple[_LocalRun, Token | None]] = deque()

    def add(self, run: _LocalRun, token: Token | None) -> None:
        self._made.append((run, token))
        if token is None:  # not every answer ends with a step
            self.send()

    def send(self) -> None:
        found: dict[asyncio.AbstractEventLoop, list[tuple[_LocalRun, Token | None]]] = {}
        while self._made:
            run, token = self._made.popleft()
            found.setdefault(run.loop, []).append((run, token))
        for loop, items in found.items():
            with suppress(RuntimeError):  # the loop is closed: no one waits
                loop.call_soon_threadsafe(_deliver, items)


def _deliver(items: Sequence[tuple[_LocalRun, Token | None]]) -> None:
    for run, token in items:
        run.box.put(token)


class _LocalRun(TextRun):
    def __init__(self, run: Emitted, deliveries: Deliveries) -> None:
        self.loop = asyncio.get_running_loop()
        self.box: Mailbox[Token | None] = Mailbox()
        self._run, self._deliveries = run, deliveries
        self._is_started = self._is_over = False

    async def take(self) -> list[Token]:
        if not self._is_started:
            self._is_started = True
            self._run.start(partial(self._deliveries.add, self))
        found = [] if self._is_over else await self.box.take()
        self._is_over = self._is_over or found[-1] is None
        tokens = [each for each in found if each is not None]
        if not tokens:
            if self._run.error is not None:
                raise self._run.error
            self.finish, self.said = self._run.finish, self._run.said
        return tokens

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
