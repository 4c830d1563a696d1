"""`EmbeddingModel`: texts → vectors, by an encoder and the pooling that its folder describes. `load` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.errors import RunError
from smelt.llm.cross_encoder import CrossEncoder, read_head
from smelt.llm.encoder import Encoder, EncoderConfig, encoder_weights, read_encoder
from smelt.llm.pooling import Pooling
from smelt.llm.sentence_files import read_pooling
from smelt.llm.text_encoder import TextEncoder, batches_by_length
from smelt.read import checkpoint
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile


class EmbeddingModel(TextEncoder):
    """An encoder with its weights, tokenizer and pooling."""

    use = ".embed(texts)"

    def __init__(self, folder: Path, config: EncoderConfig, bound: Any, pooling: Pooling, context: int) -> None:
        super().__init__(folder, config, bound, context)
        self.pooling = pooling

    def __repr__(self) -> str:
        config = self.config
        return f"<{self.name}: {config.family}, {config.layers} layers of {config.d}, {self._bound.platform}>"

    def embed(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, prompt: str | None = None) -> Array:
        """The vectors of texts (or of lists of tokens), f32[n, d]. Longer texts are cut at the context's end.

        `prompt` names one of the folder's prompts, which goes before every text.
        """
        given: Sequence[Any] = [texts] if isinstance(texts, str) else list(texts)
        lists = [self._tokens(each, prompt) for each in given]
        found: dict[int, Array] = {}
        for batch in batches_by_length(lists):
            states = self._bound(*self._pad([lists[i] for i in batch], self.config.padding)).numpy()
            found |= {i: self.pooling(row[: len(lists[i])]) for row, i in zip(states, batch, strict=True)}
        rows = [found[i] for i in range(len(lists))]
        return np.stack(rows) if rows else np.zeros((0, self.config.d), np.float32)

    def _tokens(self, text: Any, prompt: str | None) -> list[int]:
        if isinstance(text, str):
            whole = self.pooling.before(prompt) + text
            ids = self.tokenizer.encode_up_to(whole.lower() if self.pooling.lower_case else whole, self.context)
        else:
            ids = [int(each) for each in np.asarray(text).reshape(-1)][: self.context]
        self._check(ids)
        return ids


def load_encoder(
    folder: Path, said: dict[str, Any], device: str, engine: str, context: int | None
) -> EmbeddingModel | CrossEncoder:
    """An encoder's folder; `said` is its configuration."""
    config = read_encoder(said, str(folder / "config.json"))
    pooling = read_pooling(folder)
    if context is not None and not 1 <= context <= config.context:
        raise RunError(
            "the model was not made for such a context",
            expected=f"1 to {config.context}",
            got=context,
            remedy=f"context={config.context}, or less",
        )
    stored = checkpoint.open(folder)
    head = read_head(stored, said)
    weights, formats = encoder_weights(stored, config)
    model = instantiate(Encoder, weights, strict=True, config=config, formats=formats)
    facts = ("B >= 1", "S >= 1", f"S <= {config.context}")
    if head is not None:
        texts = ("i32[b=B, s=S]", "i32[b=B]", "i32[b=B, s=S]")
        pairs = compile(model.encode_pair, *texts, platform=platform_of(device, engine), facts=facts)
        return CrossEncoder(folder, config, pairs.prepare(weights), head, context or config.context)
    made = compile(model.encode, "i32[b=B, s=S]", "i32[b=B]", platform=platform_of(device, engine), facts=facts)
    most = context or min(pooling.most or config.context, config.context)
    return EmbeddingModel(folder, config, made.prepare(weights), pooling, most)
