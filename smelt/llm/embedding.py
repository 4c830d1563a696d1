"""`EmbeddingModel`: texts → vectors, by an encoder and the pooling that its folder describes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.pooling import Pooling
from smelt.llm.text_encoder import CompiledEncoder, TextEncoder, batches_by_length
from smelt.llm.token_list import read_tokens


class EmbeddingModel(TextEncoder):
    """An encoder with its weights, tokenizer and pooling."""

    use = ".embed(texts)"

    def __init__(self, config: EncoderConfig, compiled: CompiledEncoder, pooling: Pooling, context: int) -> None:
        super().__init__(config, compiled, context)
        self.pooling = pooling

    def __repr__(self) -> str:
        config = self.config
        return f"<{self.name}: {config.family}, {config.layers} layers of {config.d}, {self._compiled.platform}>"

    def embed(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, prompt: str | None = None) -> Array:
        """The vectors of texts (or of lists of tokens), f32[n, d]. Longer texts are cut at the context's end.

        `prompt` names one of the folder's prompts, which goes before every text.
        """
        given: Sequence[Any] = [texts] if isinstance(texts, str) else list(texts)
        lists = [self._tokens(each, prompt) for each in given]
        found: dict[int, Array] = {}
        for batch in batches_by_length(lists):
            states = self._compiled.run(*self._pad([lists[i] for i in batch], self.config.padding))
            found |= {i: self.pooling(row[: len(lists[i])]) for row, i in zip(states, batch, strict=True)}
        rows = [found[i] for i in range(len(lists))]
        return np.stack(rows) if rows else np.zeros((0, self.config.d), np.float32)

    def _tokens(self, text: Any, prompt: str | None) -> list[int]:
        if isinstance(text, str):
            whole = self.pooling.before(prompt) + text
            ids = self.tokenizer.encode_up_to(whole.lower() if self.pooling.lower_case else whole, self.context)
        else:
            ids = read_tokens(text)[: self.context]
        self._check(ids)
        return ids
