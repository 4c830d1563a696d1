"""`EmbeddingModel`: texts → vectors, by an encoder and the pooling that its folder describes. `load` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from smelt.dtype import Array
from smelt.engine import platform as platform_of
from smelt.errors import RunError, UnsupportedError
from smelt.llm.cross_encoder import CrossEncoder, read_head
from smelt.llm.encoder import Encoder, EncoderConfig, encoder_weights, read_encoder
from smelt.llm.pooling import Pooling
from smelt.llm.sentence_files import read_pooling
from smelt.llm.tokenizer import Tokenizer, from_file
from smelt.read import checkpoint
from smelt.tensor.instantiate import instantiate
from smelt.tensor.jit.compile import compile

TOKENS = 4096  # of a batch, padding included


class EmbeddingModel:
    """An encoder with its weights, tokenizer and pooling."""

    def __init__(self, folder: Path, config: EncoderConfig, bound: Any, pooling: Pooling, context: int) -> None:
        self.folder, self.config, self.pooling, self.context = folder, config, pooling, context
        self._bound = bound
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        config = self.config
        return f"<{self.name}: {config.family}, {config.layers} layers of {config.d}, {self._bound.platform}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("generate", "stream", "chat", "logits", "generate_async", "stream_async", "chat_async"):
            raise UnsupportedError(f"{self.folder.name} is an encoder and has no {name}", remedy=".embed(texts)")
        raise AttributeError(name)

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def tokenizer(self) -> Tokenizer:
        """Text → tokens; read when it is first used."""
        if self._tokenizer is None:
            self._tokenizer = from_file(self.folder / "tokenizer.json")
        return self._tokenizer

    def embed(self, texts: str | Sequence[str] | Sequence[Sequence[int]], *, prompt: str | None = None) -> Array:
        """The vectors of texts (or of lists of tokens), f32[n, d]. Longer texts are cut at the context's end.

        `prompt` names one of the folder's prompts, which goes before every text.
        """
        given: Sequence[Any] = [texts] if isinstance(texts, str) else list(texts)
        lists = [self._tokens(each, prompt) for each in given]
        found: list[Array | None] = [None] * len(lists)
        order = sorted(range(len(lists)), key=lambda i: len(lists[i]))
        while order:
            batch = self._batch(order, lists)
            states = self._run([lists[i] for i in batch])
            for row, i in zip(states, batch, strict=True):
                found[i] = self.pooling(row[: len(lists[i])])
            order = order[len(batch) :]
        rows = [row for row in found if row is not None]
        return np.stack(rows) if rows else np.zeros((0, self.config.d), np.float32)

    def _batch(self, order: Sequence[int], lists: Sequence[Sequence[int]]) -> Sequence[int]:
        """Texts of about the same length, as many as a batch takes."""
        count = 1
        while count < len(order) and (count + 1) * len(lists[order[count]]) <= TOKENS:
            count += 1
        return order[:count]

    def _tokens(self, text: Any, prompt: str | None) -> list[int]:
        if isinstance(text, str):
            whole = self.pooling.before(prompt) + text
            ids = self.tokenizer.encode_up_to(whole.lower() if self.pooling.lower_case else whole, self.context)
        else:
            ids = [int(each) for each in np.asarray(text).reshape(-1)][: self.context]
        if not ids or min(ids) < 0 or max(ids) >= self.config.v:
            raise RunError("a text has tokens of the vocabulary", expected=f"0 to {self.config.v - 1}", got=ids[:8])
        return ids

    def _run(self, lists: Sequence[Sequence[int]]) -> Array:
        lengths = np.array([len(each) for each in lists], np.int32)
        tokens = np.full((len(lists), int(lengths.max())), self.config.padding, np.int32)
        for row, each in zip(tokens, lists, strict=True):
            row[: len(each)] = each
        states: Array = self._bound(tokens, lengths).numpy()
        return states

    def close(self) -> None:
        """Give back the weights."""
        self._bound.close()

    def __enter__(self) -> EmbeddingModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
