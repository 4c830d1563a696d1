"""`CrossEncoder`: a query and texts → a relevance for each, by an encoder that reads both together and a head of one
output. `checkpoint_encoder` makes it of folders whose architecture is `…ForSequenceClassification` with one label.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.pooling import Dense, Normalise
from smelt.llm.text_encoder import CompiledEncoder, TextEncoder, batches_by_length
from smelt.weights import Weights

_HEADS = (  # the layers behind the state of the first token, in the checkpoint's names
    ("pooler.dense", "classifier"),
    ("classifier.dense", "classifier.out_proj"),
)
Layer = Dense | Normalise
_PREFIXES = ("", "bert.", "roberta.", "model.")


class CrossEncoder(TextEncoder):
    """An encoder of pairs with its weights, tokenizer and head."""

    kind, use = "scores pairs of texts", ".score(query, texts)"

    def __init__(self, config: EncoderConfig, compiled: CompiledEncoder, head: Sequence[Layer], context: int) -> None:
        super().__init__(config, compiled, context)
        self._head = tuple(head)

    def __repr__(self) -> str:
        return f"<{self.name}: {self.config.family} for pairs, {self.config.layers} layers, {self._compiled.platform}>"

    def score(self, query: str, texts: Sequence[str]) -> tuple[Array, int]:
        """The logit of each text's relevance, f32[n], and how many tokens were read. Long pairs are cut."""
        pairs = [self.tokenizer.encode_pair(query, text, self.context) for text in texts]
        lists = [ids for ids, _ in pairs]
        for ids in lists:
            self._check(ids)
        found = np.zeros(len(pairs), np.float32)
        for batch in batches_by_length(lists):
            for state, i in zip(self._run([pairs[i] for i in batch]), batch, strict=True):
                vector = state.astype(np.float64)
                for layer in self._head:
                    vector = layer(vector)
                found[i] = vector[0]
        return found, sum(map(len, lists))

    def _run(self, pairs: Sequence[tuple[list[int], list[int]]]) -> Array:
        """The states of the first tokens, f32[n, d]."""
        tokens, lengths = self._pad([ids for ids, _ in pairs], self.config.padding)
        types, _ = self._pad([kinds for _, kinds in pairs], 0)
        return self._compiled.run(tokens, lengths, np.minimum(types, self.config.types - 1))[:, 0]


def read_head(weights: Weights, raw: Mapping[str, Any]) -> tuple[Dense, Dense] | None:
    """The two layers behind an encoder that scores pairs; None where the folder has none, or several labels."""
    named = raw.get("architectures")
    if not isinstance(named, list) or not any(str(name).endswith("ForSequenceClassification") for name in named):
        return None
    for names in _HEADS:
        layers = [_find(weights, name) for name in names]
        if layers[0] is not None and layers[1] is not None:
            if layers[1][0].shape[:1] != (1,):
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
