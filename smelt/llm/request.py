"""One request of the engine, a sequence to complete or to score: its prompt, its progress and its result.

The scheduler reads `pending` and gives pages; the engine calls `accept` with logits. `emit` takes `Piece`s on the
engine's thread, and None at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import RunError
from smelt.llm.batch import Rows
from smelt.llm.pages import Sequence
from smelt.llm.sample import Choice, Sampler
from smelt.llm.stops import Stops
from smelt.llm.tokenizer import Detokenizer
from smelt.llm.tools import ToolCall

log = logging.getLogger("smelt")


@dataclass(frozen=True, slots=True)
class Piece:
    """One token of a stream and the text that is certain with it."""

    token: int
    text: str
    choice: Choice


@dataclass(frozen=True, slots=True)
class Answer:
    """What was generated. `finish`: "stop" (an end token or a stop string), "length", "deadline" or "cancelled".

    `cached` tokens of the prompt had their keys and values in the cache already. `alternatives` are the other answers
    if `n` is more than one, `tool_calls` the tool calls that the answer makes.
    """

    text: str
    ids: tuple[int, ...]
    finish: str
    prompt_tokens: int
    timings: Mapping[str, float] = field(default_factory=dict)  # seconds, and tokens per second
    choices: tuple[Choice, ...] = ()
    cached: int = 0
    alternatives: tuple[Answer, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()

    def record(self) -> dict[str, Any]:
        """The same for machines."""
        found: dict[str, Any] = {
            "text": self.text,
            "ids": list(self.ids),
            "finish": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached,
            "timings": dict(self.timings),
        }
        if any(choice.logprob is not None for choice in self.choices):
            found["logprobs"] = [{"id": c.token, "logprob": c.logprob, "top": list(c.top)} for c in self.choices]
        if self.tool_calls:
            found["tool_calls"] = [{"name": c.name, "arguments": dict(c.arguments)} for c in self.tool_calls]
        if self.alternatives:
            found["alternatives"] = [each.record() for each in self.alternatives]
        return found


@dataclass(slots=True, eq=False)
class Request:
    """`tokens` are the prompt and what was generated. Without a sampler every token's logits are kept, or the states
    of the last layer where it `embeds`."""

    tokens: list[int]
    most: int  # tokens to generate
    sampler: Sampler | None = None
    stops: Stops = field(default_factory=lambda: Stops(()))
    ends: frozenset[int] = frozenset()
    decode: Detokenizer | None = None
    deadline: float | None = None  # by `time.monotonic`
    client: str = ""
    after: Request | None = None  # begins when this one's prompt is read
    emit: Callable[[Piece | None], None] = lambda _: None
    embeds: bool = False

    prompt: int = 0  # tokens of it
    number: int = 0  # in the order of arrival
    sequence: Sequence | None = None  # while it runs
    cancelled: bool = False
    finish: str | None = None
    error: BaseException | None = None
    cached: int = 0
    kept: list[Array] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    times: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.prompt = len(self.tokens)
        self.times["begin"] = time.perf_counter()

    @property
    def scores(self) -> bool:
        return self.sampler is None

    @property
    def pending(self) -> int:
        """Tokens whose keys and values are to be computed."""
        return len(self.tokens) - (0 if self.sequence is None else self.sequence.length)

    @property
    def generated(self) -> int:
        return len(self.tokens) - self.prompt

    @property
    def is_read(self) -> bool:
        """Whether the prompt's keys and values are computed, or will never be."""
        return self.finish is not None or self.generated > 0

    def is_over(self, now: float) -> bool:
        """Whether it ends before the next step: it was cancelled, or its deadline has passed."""
        return self.cancelled or (self.deadline is not None and self.deadline <= now)

    def accept(self, made: Rows, row: int) -> None:
        """The row of a step after the last token: the next token, its text, and whether that is the end."""
        assert self.sampler is not None
        is_picked = self.sampler.is_simple or (made.is_drawn and self.sampler.is_plain)
        best = made.best(row) if is_picked else None
        choice = self.sampler.choose(made.logits[row], len(self.tokens)) if best is None else Choice(best)
        self.times.setdefault("first", time.perf_counter())
        self.tokens.append(choice.token)
        ended = choice.token in self.ends or self.sampler.is_complete
        last = ended or self.generated == self.most
        text, stopped = self._text(choice.token, choice.token in self.ends, last)
        self.put(Piece(choice.token, text, choice))
        if last or stopped:
            self.end("stop" if ended or stopped else "length")

    def keep(self, rows: Array) -> None:
        """Logits f32[r, v] of the next tokens that are scored, or states f32[r, d]."""
        if np.isnan(rows).any():
            raise RunError("the model gave no numbers", got="NaN", remedy="check its weights for NaN and infinity")
        self.kept.append(rows)
        if sum(map(len, self.kept)) == len(self.tokens):
            self.end("length")

    def put(self, piece: Piece) -> None:
        self.pieces.append(piece)
        self.emit(piece)

    def end(self, finish: str, error: BaseException | None = None) -> None:
        if self.finish is None:
            self.times["end"] = time.perf_counter()
            self.error = error
            self.finish = finish
            try:
                self.emit(None)
            except Exception:  # there is no one else to tell, and other requests run
                log.exception("the end of an answer (%s) could not be told", finish)

    def _text(self, token: int, ended: bool, last: bool) -> tuple[str, bool]:
        """The text that a token adds, and whether a stop string ends it."""
        if self.decode is None:
            return "", False
        text, stopped = self.stops.add("" if ended else self.decode.add(token))
        if last and not stopped:
            rest, stopped = self.stops.add(self.decode.finish())
            text += rest + ("" if stopped else self.stops.finish())
        return text, stopped

    # ---- results ----

    @property
    def timings(self) -> dict[str, float]:
        """Seconds until the first token and from there to the end, and tokens per second."""
        begin = self.times["begin"]
        end = self.times.get("end", time.perf_counter())
        first = self.times.get("first", end)
        prefill, decode = first - begin, end - first
        return {
            "prefill_s": prefill,
            "decode_s": decode,
            "prompt_tokens_per_s": self.prompt / max(prefill, 1e-9),
            "tokens_per_s": max(self.generated - 1, 0) / max(decode, 1e-9),
        }

    def answer(self) -> Answer:
        """What came out; an error is raised."""
        if self.error is not None:
            raise self.error
        return Answer(
            "".join(piece.text for piece in self.pieces),
            tuple(piece.token for piece in self.pieces),
            self.finish or "cancelled",
            self.prompt,
            self.timings,
            tuple(piece.choice for piece in self.pieces),
            self.cached,
        )
