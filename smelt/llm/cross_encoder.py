"""`CrossEncoder`: a query and texts → a relevance for each, by an encoder that reads both together and a head of one
output. `load_encoder` makes it of folders whose architecture is `…ForSequenceClassification` with one label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError, RunError, UnsupportedError
from smelt.llm.encoder import EncoderConfig
from smelt.llm.pooling import Dense
from smelt.llm.tokenizer import Tokenizer, from_file
from smelt.weights import Weights

PAIRS = 4096  # tokens of a batch, padding included
_HEADS = (  # the layers behind the state of the first token, in the checkpoint's names
    ("pooler.dense", "classifier"),
    ("classifier.dense", "classifier.out_proj"),
)
_PREFIXES = ("", "bert.", "roberta.", "model.")


class CrossEncoder:
    """An encoder of pairs with its weights, tokenizer and head."""

    def __init__(self, folder: Path, config: EncoderConfig, bound: Any, head: Sequence[Dense], context: int) -> None:
        self.folder, self.config, self.context = folder, config, context
        self._bound, self._head = bound, tuple(head)
        self._tokenizer: Tokenizer | None = None

    def __repr__(self) -> str:
        return f"<{self.name}: {self.config.family} for pairs, {self.config.layers} layers, {self._bound.platform}>"

    def __getattr__(self, name: str) -> NoReturn:
        if name in ("embed", "generate", "stream", "chat", "logits", "generate_async", "stream_async", "chat_async"):
            raise UnsupportedError(
                f"{self.folder.name} scores pairs of texts and has no {name}", remedy=".score(query, texts)"
            )
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

    def score(self, query: str, texts: Sequence[str]) -> tuple[Array, int]:
        """The logit of each text's relevance, f32[n], and how many tokens were read. Long pairs are cut."""
        pairs = [self.tokenizer.encode_pair(query, text, self.context) for text in texts]
        for ids, _ in pairs:
            if not ids or min(ids) < 0 or max(ids) >= self.config.v:
                raise RunError(
                    "a pair has tokens of the vocabulary",
                    expected=f"0 to {self.config.v - 1}",
                    got=ids[:8],
                    remedy="check that tokenizer.json belongs to the model",
                )
        found = np.zeros(len(pairs), np.float32)
        order = sorted(range(len(pairs)), key=lambda i: len(pairs[i][0]))
        while order:
            count = 1
            while count < len(order) and (count + 1) * len(pairs[order[count]][0]) <= PAIRS:
                count += 1
            for state, i in zip(self._run([pairs[i] for i in order[:count]]), order, strict=False):
                vector = state.astype(np.float64)
                for layer in self._head:
                    vector = layer(vector)
                found[i] = vector[0]
            order = order[count:]
        return found, sum(len(ids) for ids, _ in pairs)

    def _run(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Array:
        """The states of the first tokens, f32[n, d]."""
        lengths = np.array([len(ids) for ids, _ in pairs], np.int32)
        tokens = np.full((len(pairs), int(lengths.max())), self.config.padding, np.int32)
        types = np.zeros_like(tokens)
        for row, kinds, (ids, given) in zip(tokens, types, pairs, strict=True):
            row[: len(ids)] = ids
            kinds[: len(ids)] = np.minimum(given, self.config.types - 1)
        states: Array = self._bound(tokens, lengths, types).numpy()
        return states[:, 0]

    def close(self) -> None:
        """Give back the weights."""
        self._bound.close()

    def __enter__(self) -> CrossEncoder:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_head(weights: Weights, said: Mapping[str, Any]) -> tuple[Dense, Dense] | None:
    """The two layers behind an encoder that scores pairs; None where the folder has none, or several labels."""
    if not any(str(name).endswith("ForSequenceClassification") for name in said.get("architectures") or ()):
        return None
    for names in _HEADS:
        layers = [_find(weights, name) for name in names]
        if layers[0] is not None and layers[1] is not None:
            if len(layers[1][0]) != 1:
                return None
            return Dense(*layers[0], "Tanh"), Dense(*layers[1], "Identity")
    raise FileError(
        f"{weights.source}: the layers behind the encoder are missing",
        expected=" or ".join(map(", ".join, _HEADS)),
        remedy="fetch the whole folder again",
    )


def _find(weights: Weights, name: str) -> tuple[Array, Array] | None:
    for prefix in _PREFIXES:
        if f"{prefix}{name}.weight" in weights and f"{prefix}{name}.bias" in weights:
            parts = (weights[f"{prefix}{name}.{part}"].numpy().astype(np.float64) for part in ("weight", "bias"))
            matrix, bias = parts
            return matrix, bias
    return None
