"""`load`: a path → `LanguageModel`, which scores, completes and streams text and answers messages.

One sequence at a time over a contiguous cache; a scheduler of many will stand between this and `step`.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt.buffer import bytes_text, in_thread
from smelt.dtype import Array
from smelt.engine.footprint import Budget
from smelt.errors import FileError, MemoryLimitError, RunError
from smelt.llm import chat as templates
from smelt.llm import checkpoint as files
from smelt.llm.cache import Cache
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.sample import Choice, Sampler, Sampling
from smelt.llm.step import Step, check_precision
from smelt.llm.stops import Stops
from smelt.llm.tokenizer import Detokenizer, Tokenizer, from_file, from_gguf

Prompt = str | Sequence[int]
DEFAULT_CONTEXT = 1 << 15  # tokens, where a model allows more


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a stream and the text that is certain with it."""

    token: int
    text: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Answer:
    """What was generated. `finish`: "stop" (an end token or a stop string) or "length"."""

    text: str
    ids: tuple[int, ...]
    finish: str
    prompt_tokens: int
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds, and tokens per second
    choices: tuple[Choice, ...] = ()

    def record(self) -> dict[str, Any]:
        """The same for machines."""
        found: dict[str, Any] = {
            "text": self.text,
            "ids": list(self.ids),
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "timings": dict(self.timings),
        }
        if any(choice.logprob is not None for choice in self.choices):
            found["logprobs"] = [{"id": c.token, "logprob": c.logprob, "top": list(c.top)} for c in self.choices]
        return found


def load(
    path: str | Path,
    *,
    device: str = "auto",
    engine: str = "auto",
    context: int | None = None,
    precision: str = "f32",
    memory_limit: int | str | None = None,
) -> LanguageModel:
    """A language model from a Hugging Face folder or a GGUF file, ready to answer.

    `context` is how many tokens a sequence may have, at most what the model was made for. With `precision="f32"`
    everything is computed in f32: block-quantised weights are opened once, when they are bound. A model whose opened
    weights and cache need more than `memory_limit` is refused before anything is loaded.
    """
    check_precision(precision)
    found = files.open(path, context)
    most = found.config.context
    wanted = min(most, DEFAULT_CONTEXT) if context is None else context
    if not 1 <= wanted <= most:
        raise RunError("the model was not made for such a context", expected=f"1 to {most} tokens", got=context)
    budget = Budget.of(memory_limit, None)
    if budget is not None:
        _check_memory(found, wanted, budget.bytes)
    return LanguageModel(found, Step(found, device, engine), wanted)


def _check_memory(checkpoint: Checkpoint, context: int, limit: int) -> None:
    weights = sum(4 * checkpoint.elements(name) for name in checkpoint.weights)
    cache = context * checkpoint.config.cache_bytes
    if weights + cache > limit:
        raise MemoryLimitError(
            f"{checkpoint.path.name} needs more memory than the limit",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(weights)} of weights in f32, {bytes_text(cache)} of cache for {context} tokens",
            remedy="a smaller context, or a larger limit",
        )


class LanguageModel:
    """A decoder with its weights, tokenizer and chat template. Threads may share it: their steps take turns."""

    def __init__(self, checkpoint: Checkpoint, step: Step, context: int) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.context = context
        self._step = step
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        config = self.config
        return f"<{self.name}: {config.family}, {len(config.layers)} layers of {config.d}, {self._step.platform}>"

    @property
    def name(self) -> str:
        return self.checkpoint.path.stem if self.checkpoint.kind == "gguf" else self.checkpoint.path.name

    @property
    def tokenizer(self) -> Tokenizer:
        """Text ↔ tokens; read when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = tokenizer_of(self.checkpoint)
        return self._tokenizer

    # ---- scoring ----

    def logits(self, ids: Sequence[int]) -> Array:
        """For each token of a sequence the logits of the next one, f32[T, V]."""
        tokens = self._checked(ids, 0)
        cache = self._step.cache(self.context)
        parts = []
        at = 0
        for size in self._step.chunks(len(tokens)):
            parts.append(self._step.run(tokens[at : at + size], cache, np.arange(size)))
            at += size
        return np.concatenate(parts)

    # ---- generating ----

    def generate(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
        sampling: Sampling | None = None,
        **options: Any,
    ) -> Answer:
        """Complete a text or tokens. Without options the likeliest token each time.

        `options` are fields of `Sampling` (temperature, top_p, seed, …). The text ends before a `stop` string, and at
        the model's end tokens unless `ignore_end`.
        """
        run = self._start(prompt, max_tokens, stop, ignore_end, _sampling(sampling, options))
        return run.answer(list(run))

    async def generate_async(self, prompt: Prompt, **options: Any) -> Answer:
        """The same for coroutines: the event loop goes on meanwhile."""
        return await in_thread(lambda: self.generate(prompt, **options))

    def stream(
        self,
        prompt: Prompt,
        *,
        max_tokens: int = 128,
        stop: str | Sequence[str] = (),
        ignore_end: bool = False,
        sampling: Sampling | None = None,
        **options: Any,
    ) -> Run:
        """The same token by token: iterate over `Piece`s; closing or leaving the loop ends it. `.finish` and
        `.timings` are there at the end."""
        return self._start(prompt, max_tokens, stop, ignore_end, _sampling(sampling, options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """The answer to messages, each with `role` and `content`; options as in `generate`."""
        return self.generate(self.prompt(messages), **options)

    async def chat_async(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """The same for coroutines."""
        return await in_thread(lambda: self.chat(messages, **options))

    def prompt(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> list[int]:
        """The tokens of messages, by the model's chat template."""
        template = self.checkpoint.template
        if template is None:
            raise FileError(
                f"{self.name} has no chat template", remedy="generate(prompt), with a prompt in the model's own form"
            )
        text = templates.render(template, messages, **{**self.checkpoint.specials, **arguments})
        return self.tokenizer.encode(text, special=False)

    def close(self) -> None:
        """Give back the weights."""
        self._step.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- one sequence ----

    def _start(
        self, prompt: Prompt, max_tokens: int, stop: str | Sequence[str], ignore_end: bool, sampling: Sampling
    ) -> Run:
        if type(max_tokens) is not int or max_tokens < 0:
            raise RunError("max_tokens is a whole number", expected="0 or more", got=max_tokens)
        stops: tuple[Any, ...] = (stop,) if isinstance(stop, str) else tuple(stop)
        if not all(isinstance(each, str) and each for each in stops):
            raise RunError("stop strings are texts that are not empty", got=stops)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        tokens = self._checked(ids, 1)
        room = self.context - len(tokens)
        text = isinstance(prompt, str) or bool(stops) or has_tokenizer(self.checkpoint)
        ends = frozenset() if ignore_end else frozenset(self.config.stop)
        sampler = Sampler(sampling, tokens, self.config.v)
        decode = Detokenizer(self.tokenizer) if text else None
        return Run(self._step, self.context, tokens, min(max_tokens, room), sampler, Stops(stops), ends, decode)

    def _checked(self, ids: Sequence[int], room: int) -> list[int]:
        """Tokens of the vocabulary that fit into the context with room for so many more."""
        tokens = np.asarray(ids)
        if tokens.ndim != 1 or not tokens.size or tokens.dtype.kind not in "iu":
            raise RunError(
                "tokens are a list of whole numbers, at least one", got=f"{tokens.dtype}{list(tokens.shape)}"
            )
        if tokens.size + room > self.context:
            raise RunError(
                "too many tokens for the context",
                expected=f"at most {self.context - room}",
                got=tokens.size,
                remedy="a shorter prompt" if self.context == self.config.context else "load(…, context=…)",
            )
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= self.config.v:
            raise RunError("no such token", expected=f"0 to {self.config.v - 1}", got=low if low < 0 else high)
        return [int(each) for each in tokens]


class Run:
    """One generation: an iterator over `Piece`s."""

    def __init__(
        self,
        step: Step,
        context: int,
        prompt: list[int],
        count: int,
        sampler: Sampler,
        stops: Stops,
        ends: frozenset[int],
        decode: Detokenizer | None,
    ) -> None:
        self._step, self._cache = step, step.cache(context)
        self._prompt, self._count = prompt, count
        self._sampler, self._stops, self._ends, self._decode = sampler, stops, ends, decode
        self.finish = "length"
        self.timings: dict[str, float] = {}
        self._made = self._pieces()

    def __iter__(self) -> Iterator[Piece]:
        return self._made

    def close(self) -> None:
        """End it here."""
        self._made.close()

    def answer(self, pieces: Sequence[Piece]) -> Answer:
        return Answer(
            "".join(piece.text for piece in pieces),
            tuple(piece.token for piece in pieces),
            self.finish,
            len(self._prompt),
            self.timings,
            tuple(piece.choice for piece in pieces),
        )

    def _pieces(self) -> Generator[Piece, None, None]:
        started = time.perf_counter()
        if not self._count:
            return
        logits = self._read(self._prompt, self._cache)
        first = time.perf_counter()
        made = 0
        try:
            while True:
                choice = self._sampler.choose(logits, self._cache.length)
                made += 1
                ended = choice.token in self._ends
                last = ended or made == self._count
                text, stopped = self._text(choice.token, ended, last)
                if ended or stopped:
                    self.finish = "stop"
                yield Piece(choice.token, text, choice)
                if last or stopped:
                    return
                logits = self._read([choice.token], self._cache)
        finally:
            self._time(started, first, made)

    def _text(self, token: int, ended: bool, last: bool) -> tuple[str, bool]:
        """The text that a token brings, and whether a stop string ends it."""
        if self._decode is None:
            return "", False
        text, stopped = self._stops.add("" if ended else self._decode.add(token))
        if last and not stopped:
            rest, stopped = self._stops.add(self._decode.finish())
            text += rest + ("" if stopped else self._stops.finish())
        return text, stopped

    def _read(self, tokens: list[int], cache: Cache) -> Array:
        """The logits after tokens, f32[v]."""
        at = 0
        logits: Array | None = None
        for size in self._step.chunks(len(tokens)):
            logits = self._step.run(tokens[at : at + size], cache, np.array([size - 1]))
            at += size
        assert logits is not None
        last: Array = logits[0]
        return last

    def _time(self, started: float, first: float, made: int) -> None:
        now = time.perf_counter()
        prefill, decode = first - started, now - first
        self.timings.update(
            prefill_s=prefill,
            decode_s=decode,
            prompt_tokens_per_s=len(self._prompt) / max(prefill, 1e-9),
            tokens_per_s=max(made - 1, 0) / max(decode, 1e-9),
        )


def _sampling(given: Sampling | None, options: Mapping[str, Any]) -> Sampling:
    known = Sampling.__dataclass_fields__
    if unknown := [name for name in options if name not in known]:
        raise RunError("unknown options", expected=", ".join(known), got=", ".join(unknown))
    return replace(given or Sampling(), **options)


def has_tokenizer(checkpoint: Checkpoint) -> bool:
    if checkpoint.kind == "gguf":
        return "tokenizer.ggml.tokens" in checkpoint.metadata
    return (checkpoint.path / "tokenizer.json").is_file()


def tokenizer_of(checkpoint: Checkpoint) -> Tokenizer:
    """The tokenizer of a checkpoint."""
    if checkpoint.kind == "gguf":
        return from_gguf(checkpoint.metadata, str(checkpoint.path))
    path = checkpoint.path / "tokenizer.json"
    if not path.is_file():
        raise FileError(f"{checkpoint.path}: no tokenizer", expected="tokenizer.json", remedy="give tokens, not text")
    return from_file(path)
