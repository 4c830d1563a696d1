"""`load`: a path → `LanguageModel`, which scores, completes and streams text and answers messages.

The model makes requests of prompts and options; `engine` computes them, many at once.
"""

from __future__ import annotations

import math
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt.buffer import bytes_text, machine_memory
from smelt.dtype import Array
from smelt.engine.footprint import Budget
from smelt.errors import FileError, MemoryLimitError, RunError
from smelt.llm import chat as templates
from smelt.llm import checkpoint as files
from smelt.llm.cache import Pool, page_bytes
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.engine import SEQUENCES, Engine
from smelt.llm.paged import PAGE
from smelt.llm.request import Answer, Request
from smelt.llm.sample import Sampler, Sampling
from smelt.llm.step import CHUNK, Step, check_precision
from smelt.llm.stops import Stops
from smelt.llm.stream import AsyncRun, Run
from smelt.llm.tokenizer import Detokenizer, Tokenizer, from_file, from_gguf

Prompt = str | Sequence[int]
DEFAULT_CONTEXT = 1 << 15  # tokens, where a model allows more
CONTEXTS = 4  # whole contexts that the cache has room for, where the machine's memory allows it
MAX_ALTERNATIVES = 256


def load(
    path: str | Path,
    *,
    device: str = "auto",
    engine: str = "auto",
    context: int | None = None,
    precision: str = "f32",
    memory_limit: int | str | None = None,
    sequences: int = SEQUENCES,
) -> LanguageModel:
    """A language model from a Hugging Face folder or a GGUF file, ready to answer.

    `context` is how many tokens a sequence may have, at most what the model was made for. With `precision="f32"`
    everything is computed in f32: block-quantised weights are opened once, when they are bound. Weights, steps and
    cache stay within `memory_limit`; a model that cannot is refused before anything is loaded. Up to `sequences`
    requests are computed at once.
    """
    check_precision(precision)
    found = files.open(path, context)
    most = found.config.context
    wanted = min(most, DEFAULT_CONTEXT) if context is None else context
    if not 1 <= wanted <= most:
        raise RunError("the model was not made for such a context", expected=f"1 to {most} tokens", got=context)
    if type(sequences) is not int or not 1 <= sequences <= CHUNK:
        raise RunError("sequences that are computed at once", expected=f"1 to {CHUNK}", got=sequences)
    budget = Budget.of(memory_limit, None)
    if budget is not None:
        _check_memory(found, wanted, 0, budget.bytes)
    step = Step(found, device, engine)
    limit = _pages(found, step, wanted, sequences, None if budget is None else budget.bytes)
    pool = Pool(found.config, step.platform, limit, str(found.path.resolve()).encode())
    return LanguageModel(found, step, Engine(step, pool, sequences), wanted)


def _pages(found: Checkpoint, step: Step, context: int, sequences: int, limit: int | None) -> int:
    """How many pages the cache may have."""
    whole, each = math.ceil(context / PAGE), page_bytes(found.config)
    weights = _weight_bytes(found)
    if limit is None:
        return max(whole, min(CONTEXTS * whole, (machine_memory() // 2 - weights) // each))
    work = step.memory(CHUNK, sequences, sequences, whole)
    _check_memory(found, context, work, limit)
    return max(whole, min(CONTEXTS * whole, (limit - weights - work) // each))


def _weight_bytes(checkpoint: Checkpoint) -> int:
    return sum(4 * checkpoint.elements(name) for name in checkpoint.weights)


def _check_memory(checkpoint: Checkpoint, context: int, work: int, limit: int) -> None:
    weights = _weight_bytes(checkpoint)
    cache = math.ceil(context / PAGE) * page_bytes(checkpoint.config)
    if weights + cache + work > limit:
        raise MemoryLimitError(
            f"{checkpoint.path.name} needs more memory than the limit",
            expected=f"at most {bytes_text(limit)}",
            got=f"{bytes_text(weights)} of weights in f32, {bytes_text(cache)} of cache for {context} tokens"
            + (f", {bytes_text(work)} for a step" if work else ""),
            remedy="a smaller context, or a larger limit",
        )


@dataclass(frozen=True, slots=True)
class Options:
    """What a request may ask for besides `Sampling`."""

    max_tokens: int = 128
    stop: str | Sequence[str] = ()
    ignore_end: bool = False
    n: int = 1
    timeout: float | None = None
    client: str = ""
    sampling: Sampling | None = None

    def __post_init__(self) -> None:
        if type(self.max_tokens) is not int or self.max_tokens < 0:
            raise RunError("max_tokens is a whole number", expected="0 or more", got=self.max_tokens)
        if type(self.n) is not int or not 1 <= self.n <= MAX_ALTERNATIVES:
            raise RunError("n is how many answers", expected=f"1 to {MAX_ALTERNATIVES}", got=self.n)
        if not all(isinstance(each, str) and each for each in self.stops):
            raise RunError("stop strings are texts that are not empty", got=self.stop)
        timeout: Any = self.timeout
        if timeout is not None and not (type(timeout) in (int, float) and timeout >= 0):
            raise RunError("timeout is a number of seconds", expected="0 or more", got=self.timeout)

    @property
    def stops(self) -> tuple[Any, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)

    @staticmethod
    def of(given: Mapping[str, Any]) -> tuple[Options, Sampling]:
        """Options and what is for sampling, from keywords."""
        ours, theirs = Options.__dataclass_fields__, Sampling.__dataclass_fields__
        if unknown := [name for name in given if name not in ours and name not in theirs]:
            raise RunError("unknown options", expected=", ".join((*ours, *theirs)), got=", ".join(unknown))
        options = Options(**{name: value for name, value in given.items() if name in ours})
        chosen = {name: value for name, value in given.items() if name in theirs}
        return options, replace(options.sampling or Sampling(), **chosen)


class LanguageModel:
    """A decoder with its weights, tokenizer and chat template. Threads and coroutines may share it: what they ask for
    is computed together."""

    def __init__(self, checkpoint: Checkpoint, step: Step, engine: Engine, context: int) -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.context = context
        self._step = step
        self._engine = engine
        self._tokenizer: Tokenizer | None = None
        self._finalizer = weakref.finalize(self, _close, engine, step)

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
        request = Request(self._checked(ids, 0), 0)
        Run(self._engine, [request]).answer()
        return np.concatenate(request.logits)

    # ---- generating ----

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Complete a text or tokens. Without options the likeliest token each time.

        `max_tokens` (128), `stop` strings, before which the text ends, `ignore_end` (go on after the model's end
        tokens), `n` answers (`.alternatives`), `timeout` in seconds, `client` (those who share a model are served
        alike), and the fields of `Sampling`: temperature, top_p, seed, …
        """
        return self.stream(prompt, **options).answer()

    async def generate_async(self, prompt: Prompt, **options: Any) -> Answer:
        """The same for coroutines."""
        return await self.stream_async(prompt, **options).answer()

    def generate_all(self, prompts: Sequence[Prompt], **options: Any) -> list[Answer]:
        """Complete several prompts together."""
        requests = [self._requests(prompt, options) for prompt in prompts]
        everything = Run(self._engine, [request for each in requests for request in each])
        everything.answer() if requests else None
        answers = []
        for first, *others in requests:
            answers.append(replace(first.answer(), alternatives=tuple(each.answer() for each in others)))
        return answers

    def stream(self, prompt: Prompt, **options: Any) -> Run:
        """`generate` token by token: iterate over `Piece`s; closing or leaving the loop ends it. `.finish` and
        `.timings` are there at the end."""
        return Run(self._engine, self._requests(prompt, options))

    def stream_async(self, prompt: Prompt, **options: Any) -> AsyncRun:
        """The same for coroutines: `async for piece in …`."""
        return AsyncRun(self._engine, self._requests(prompt, options))

    def chat(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """The answer to messages, each with `role` and `content`; options as in `generate`."""
        return self.generate(self.prompt(messages), **options)

    async def chat_async(self, messages: Sequence[Mapping[str, Any]], **options: Any) -> Answer:
        """The same for coroutines."""
        return await self.generate_async(self.prompt(messages), **options)

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
        """End what is being computed and give back the weights."""
        self._finalizer()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- requests ----

    def _requests(self, prompt: Prompt, given: Mapping[str, Any]) -> list[Request]:
        """The requests of a call: one, or `n` that share the prompt."""
        options, sampling = Options.of(given)
        ids = self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
        tokens = self._checked(ids, 1)
        most = min(options.max_tokens, self.context - len(tokens))
        deadline = None if options.timeout is None else time.monotonic() + options.timeout
        text = isinstance(prompt, str) or bool(options.stops) or has_tokenizer(self.checkpoint)
        requests: list[Request] = []
        for i in range(options.n):
            requests.append(
                Request(
                    list(tokens),
                    most,
                    Sampler(sampling, tokens, self.config.v, i),
                    Stops(options.stops),
                    frozenset() if options.ignore_end else frozenset(self.config.stop),
                    Detokenizer(self.tokenizer) if text else None,
                    deadline,
                    options.client,
                    after=requests[0] if requests else None,
                )
            )
        return requests

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


def _close(engine: Engine, step: Step) -> None:
    engine.close()
    step.close()


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
