"""`LanguageModel` scores, completes and streams text and answers messages.

It makes requests of prompts and options; `engine` computes them, many at once. `load` makes models.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt.bundle.stored import StoredModel
from smelt.bundle.write import serialize, write
from smelt.dtype import Array
from smelt.errors import FileError, RunError, UnsupportedError
from smelt.files import check_folder
from smelt.llm import chat as templates
from smelt.llm import prompt_cache
from smelt.llm.batch import Stepping
from smelt.llm.engine import Engine
from smelt.llm.grammar import Grammar, Grammars
from smelt.llm.native_step import NativeStep
from smelt.llm.options import Options
from smelt.llm.origin import Origin
from smelt.llm.pooling import Pooling
from smelt.llm.request import Answer, Request
from smelt.llm.sample import Sampler
from smelt.llm.stops import Stops
from smelt.llm.stored import stored_files
from smelt.llm.stream import AsyncRun, EmittedRun, Run
from smelt.llm.token_list import read_tokens
from smelt.llm.tokenizer import Detokenizer, Tokenizer
from smelt.llm.tools import convention_of, parse_calls

Prompt = str | Sequence[int]


class LanguageModel:
    """A decoder with its weights, tokenizer and chat template. Threads and coroutines may share it: their requests
    are batched."""

    def __init__(self, checkpoint: Origin, step: Stepping, engine: Engine, context: int, name: str = "") -> None:
        self.checkpoint = checkpoint
        self.config = checkpoint.config
        self.context = context
        self.name = name or (checkpoint.path.name if checkpoint.kind == "folder" else checkpoint.path.stem)
        self._step = step
        self._engine = engine
        self._tokenizer: Tokenizer | None = None
        self._grammars: Grammars | None = None
        self._pooling: Pooling | None = None
        self._fingerprint = ""
        self._finalizer = weakref.finalize(self, _close, engine, step)

    def __repr__(self) -> str:
        config = self.config
        return f"<{self.name}: {config.family}, {len(config.layers)} layers of {config.d}, {self._step.platform}>"

    @property
    def tokenizer(self) -> Tokenizer:
        """Text ↔ tokens; read when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = self.checkpoint.read_tokenizer()
        return self._tokenizer

    # ---- scoring ----

    def logits(self, ids: Sequence[int]) -> Array:
        """For each token of a sequence the logits of the next one, f32[T, V]."""
        request = Request(self._check_tokens(ids, 0), 0)
        Run(self._engine, [request]).answer()
        return np.concatenate(request.kept)

    def embed(self, texts: str | Sequence[Prompt], *, prompt: str | None = None) -> Array:
        """The vectors of texts or tokens, f32[n, d]: states of the last layer, pooled as the folder's files for
        sentence-transformers say (the mean without them). Longer texts are cut; `prompt` names one of the folder's."""
        if self._pooling is None:
            pooling = self.checkpoint.read_pooling()
            pooling.check(self.config.d, self.name)
            self._pooling = pooling
        pooling = self._pooling
        given = [texts] if isinstance(texts, str) else list(texts)
        requests = []
        for each in given:
            if isinstance(each, str):
                each = self.tokenizer.encode_up_to(pooling.before(prompt) + each, pooling.most or self.context)
            requests.append(Request(self._check_tokens(each, 0), 0, embeds=True))
        if requests:
            Run(self._engine, requests).answer()
        rows = [pooling(np.concatenate(request.kept)) for request in requests]
        return np.stack(rows) if rows else np.zeros((0, self.config.d), np.float32)

    # ---- generating ----

    def generate(self, prompt: Prompt, **options: Any) -> Answer:
        """Complete a text or tokens; greedily without options.

        `max_tokens` (128), `stop` strings, before which the text ends, `ignore_end` (go on after the model's end
        tokens), `n` answers (`.alternatives`), `timeout` in seconds, `client` (those who share a model are served
        alike), a form that the answer has for sure (`schema`: JSON schema, `regex`, or `grammar` in Lark's syntax), and
        the fields of `Sampling`: temperature, top_p, seed, …
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

    def stream_to(self, prompt: Prompt, **options: Any) -> EmittedRun:
        """The same for a function that is called with each piece: `.start(emit)`."""
        return EmittedRun(self._engine, self._requests(prompt, options))

    def on_step(self, act: Callable[[], object]) -> None:
        """Call a function on the engine's thread after the tokens of each step were delivered."""
        self._engine.after_step = act

    def chat(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, **options: Any
    ) -> Answer:
        """The answer to messages, each with `role` and `content`; options as in `generate`.

        `tools` are descriptions of functions, as JSON schemas; calls of them are in `.tool_calls`.
        """
        return self._with_calls(self.generate(self._prompt(messages, tools), **options), tools)

    async def chat_async(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Any] | None = None, **options: Any
    ) -> Answer:
        """The same for coroutines."""
        return self._with_calls(await self.generate_async(self._prompt(messages, tools), **options), tools)

    def _prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None) -> list[int]:
        if tools is None:
            return self.prompt(messages)
        convention_of(self.checkpoint.template or "")
        return self.prompt(messages, tools=list(tools))

    def _with_calls(self, answer: Answer, tools: Sequence[Any] | None) -> Answer:
        if tools is None:
            return answer
        convention = convention_of(self.checkpoint.template or "")
        others = tuple(self._with_calls(each, tools) for each in answer.alternatives)
        calls = parse_calls(self.tokenizer.decode(answer.ids, special=True), convention)
        return replace(answer, alternatives=others, tool_calls=calls)

    def prompt(self, messages: Sequence[Mapping[str, Any]], **arguments: Any) -> list[int]:
        """The tokens of messages, by the model's chat template."""
        template = self.checkpoint.template
        if template is None:
            raise FileError(
                f"{self.name} has no chat template", remedy="generate(prompt), with a prompt in the model's own form"
            )
        text = templates.render(template, messages, **{**self.checkpoint.specials, **arguments})
        return self.tokenizer.encode(text, special=False)

    # ---- prompt caches ----

    def save_cache(self, path: str | Path, prompt: Prompt) -> int:
        """Compute a prompt and write the keys and values of its full pages to a file; how many tokens they hold."""
        tokens = self._check_tokens(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt, 1)
        self.generate(tokens, max_tokens=1)
        return self._engine.between_steps(
            lambda: prompt_cache.save(Path(path), tokens, self._engine.pool, self.config, self.fingerprint)
        )

    def load_cache(self, path: str | Path) -> int:
        """Load a prompt's keys and values, so that prompts with the same beginning skip it; the number of tokens."""
        return self._engine.between_steps(
            lambda: prompt_cache.load(Path(path), self._engine.pool, self.config, self.fingerprint)
        )

    @property
    def fingerprint(self) -> str:
        """A hash of the configuration and of all weights, and the precision; computed when it is first needed."""
        if not self._fingerprint:
            self._fingerprint = f"{self.checkpoint.fingerprint()} {self._step.precision}"
        return self._fingerprint

    # ---- bundles ----

    def save(self, path: str | Path, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> None:
        """Write it as a bundle, one file with code, packed weights, tokenizer and template, which `smelt.load` runs
        without a compiler. `targets` and `private_key` as in `LoadedModel.save`."""
        check_folder(path)
        write(path, self._to_stored(targets), private_key)

    def serialize(self, *, targets: Sequence[str] = (), private_key: str | Path | None = None) -> bytes:
        """The bytes that `save` writes."""
        return serialize(self._to_stored(targets), private_key)

    def _to_stored(self, targets: Sequence[str]) -> StoredModel:
        if not isinstance(self._step, NativeStep):
            raise UnsupportedError(
                f"{self.name} on {self._step.platform} cannot be saved", remedy='load it with engine="native"'
            )
        stored = self._step.executable.to_stored(targets)
        files = stored_files(self.checkpoint, self._step.precision)
        return stored.replace(name=self.name, provenance=self.checkpoint.provenance(), files=files)

    def close(self) -> None:
        """End running requests and free the weights."""
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
        tokens = self._check_tokens(ids, 1)
        most = min(options.max_tokens, self.context - len(tokens))
        deadline = None if options.timeout is None else time.monotonic() + options.timeout
        text = isinstance(prompt, str) or bool(options.stops) or self.checkpoint.has_tokenizer
        form = next((self._compile_grammar(kind, source) for kind, source in options.constraints.items()), None)
        requests: list[Request] = []
        for i in range(options.n):
            requests.append(
                Request(
                    list(tokens),
                    most,
                    Sampler(sampling, tokens, self.config.v, i, None if form is None else form.copy()),
                    Stops(options.stops),
                    frozenset() if options.ignore_end else frozenset(self.config.stop),
                    Detokenizer(self.tokenizer) if text else None,
                    deadline,
                    options.client,
                    after=requests[0] if requests else None,
                )
            )
        return requests

    def _compile_grammar(self, kind: str, source: Any) -> Grammar:
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.config.v, self.config.stop)
        return self._grammars.compile(kind, source)

    def _check_tokens(self, ids: Sequence[int], room: int) -> list[int]:
        """Tokens of the vocabulary that fit into the context with room for `room` tokens."""
        tokens = read_tokens(ids)
        if len(tokens) + room > self.context:
            raise RunError(
                "too many tokens for the context",
                expected=f"at most {self.context - room}",
                got=len(tokens),
                remedy="a shorter prompt" if self.context == self.config.context else "load(…, context=…)",
            )
        low, high = min(tokens), max(tokens)
        if low < 0 or high >= self.config.v:
            raise RunError("no such token", expected=f"0 to {self.config.v - 1}", got=low if low < 0 else high)
        return tokens


def _close(engine: Engine, step: Stepping) -> None:
    engine.close()
    step.close()
