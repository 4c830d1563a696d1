"""`TextEncoder`: an encoder's program, tokenizer and batches, shared by `EmbeddingModel` and `CrossEncoder`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NoReturn, Self

import numpy as np

from smelt.dtype import Array
from smelt.errors import RunError, UnsupportedError
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.tokenizer import Tokenizer

TOKENS = 4096  # of a batch, padding included
_ABSENT = ("embed", "generate", "stream", "chat", "logits", "generate_async", "stream_async", "chat_async")


@dataclass(frozen=True, slots=True)
class CompiledEncoder:
    """An encoder's program with its weights. `run`: tokens i32[n, s], lengths i32[n] (and for pairs the text that each
    token belongs to, i32[n, s]) → states f32[n, s, d]."""

    name: str
    run: Callable[..., Array]
    close: Callable[[], object]
    platform: str
    read_tokenizer: Callable[[], Tokenizer]


class TextEncoder:
    """An encoder with its weights and tokenizer. `kind` and `use` say in errors what the model is for."""

    kind, use = "is an encoder", ""

    def __init__(self, config: EncoderConfig, compiled: CompiledEncoder, context: int) -> None:
        self.config, self.context = config, context
        self._compiled = compiled
        self._tokenizer: Tokenizer | None = None

    def __getattr__(self, name: str) -> NoReturn:
        if name in _ABSENT:
            raise UnsupportedError(f"{self.name} {self.kind} and has no {name}", remedy=self.use)
        raise AttributeError(name)

    @property
    def name(self) -> str:
        return self._compiled.name

    @property
    def tokenizer(self) -> Tokenizer:
        """Text → tokens; read when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = self._compiled.read_tokenizer()
        return self._tokenizer

    def close(self) -> None:
        """Give back the weights."""
        self._compiled.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ---- batches ----

    def _check(self, ids: Sequence[int]) -> None:
        if not ids or min(ids) < 0 or max(ids) >= self.config.v:
            raise RunError(
                "a text has tokens of the vocabulary",
                expected=f"0 to {self.config.v - 1}",
                got=list(ids[:8]),
                remedy="check that tokenizer.json belongs to the model",
            )

    def _pad(self, lists: Sequence[Sequence[int]], padding: int) -> tuple[Array, Array]:
        """Lists as rows i32[n, s], and their lengths i32[n]."""
        lengths = np.array([len(each) for each in lists], np.int32)
        rows = np.full((len(lists), int(lengths.max())), padding, np.int32)
        for row, each in zip(rows, lists, strict=True):
            row[: len(each)] = each
        return rows, lengths


def batches_by_length(lists: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """Indices of lists of similar length, one batch at a time."""
    order = sorted(range(len(lists)), key=lambda i: len(lists[i]))
    while order:
        count = 1
        while count < len(order) and (count + 1) * len(lists[order[count]]) <= TOKENS:
            count += 1
        yield order[:count]
        order = order[count:]
