"""Encoders for embeddings (BERT, RoBERTa, XLM-RoBERTa, MiniLM): configuration, names of tensors, and the model.

`read_encoder` reads a `config.json`; `encoder_weights` renames a checkpoint's tensors; `Encoder.encode` is compiled.
Axes: b texts, s and t tokens, h heads, k depth, d width, f width of the MLP.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smelt.dtype import DType, i32
from smelt.errors import FileError, UnsupportedError
from smelt.llm.config import Fields
from smelt.llm.encoder_config import EncoderConfig
from smelt.llm.families import ENCODERS, HARMLESS
from smelt.llm.layers import Formats, Linear, Matrix, Norm
from smelt.tensor import nn
from smelt.tensor.core import Tensor
from smelt.tensor.model import Model
from smelt.tensor.ops.elementwise import outer
from smelt.tensor.ops.move import arange
from smelt.weights import Stored, Weights

_HARMLESS = HARMLESS | {
    *("hidden_dropout_prob", "attention_probs_dropout_prob", "gradient_checkpointing", "problem_type"),
    *("id2label", "label2id", "num_labels", "sbert_ce_default_activation_function", "sentence_transformers"),
}
_IGNORED = ("position_ids", "pooler.", "cls.", "lm_head.", "classifier.")
_NAMES = {
    "embed.weight": "embeddings.word_embeddings.weight",
    "positions.weight": "embeddings.position_embeddings.weight",
    "types.weight": "embeddings.token_type_embeddings.weight",
    "norm.{p}": "embeddings.LayerNorm.{p}",
    "layers.{i}.q.{p}": "encoder.layer.{i}.attention.self.query.{p}",
    "layers.{i}.k.{p}": "encoder.layer.{i}.attention.self.key.{p}",
    "layers.{i}.v.{p}": "encoder.layer.{i}.attention.self.value.{p}",
    "layers.{i}.o.{p}": "encoder.layer.{i}.attention.output.dense.{p}",
    "layers.{i}.after_attn.{p}": "encoder.layer.{i}.attention.output.LayerNorm.{p}",
    "layers.{i}.up.{p}": "encoder.layer.{i}.intermediate.dense.{p}",
    "layers.{i}.down.{p}": "encoder.layer.{i}.output.dense.{p}",
    "layers.{i}.after_mlp.{p}": "encoder.layer.{i}.output.LayerNorm.{p}",
}


def read_encoder(config: Mapping[str, Any], where: str) -> EncoderConfig:
    fields = Fields(config, where, _HARMLESS)
    family = fields.text("model_type")
    if family not in ENCODERS:
        raise UnsupportedError(f"{where}: unknown encoder", expected=", ".join(ENCODERS), got=family)
    fields.expect("position_embedding_type", "absolute")
    fields.expect("tie_word_embeddings", True, False)
    padding = fields.any("pad_token_id", ENCODERS[family])
    d, heads = fields.size("hidden_size"), fields.size("num_attention_heads")
    if d % heads or type(padding) is not int or padding < 0:
        fields.refuse("num_attention_heads, pad_token_id", f"heads that divide {d}, and a token", (heads, padding))
    vocabulary = fields.size("vocab_size")
    found = EncoderConfig(
        family,
        fields.size("num_hidden_layers"),
        d,
        fields.size("intermediate_size"),
        heads,
        vocabulary,
        fields.size("max_position_embeddings", 512),
        padding + 1 if ENCODERS[family] else 0,
        fields.size("type_vocab_size", 2),
        fields.positive("layer_norm_eps", 1e-12),
        fields.text("hidden_act", "gelu"),
        min(padding, vocabulary - 1),  # what stands behind a text's end is not seen
    )
    if found.context < 1:
        fields.refuse("max_position_embeddings", f"more than {found.first}", found.positions)
    fields.check_unread()
    return found


def encoder_weights(weights: Weights, config: EncoderConfig) -> tuple[Weights, Formats]:
    """The same tensors under our names, and how each is stored."""
    prefixes = ("", "bert.", "roberta.", "model.")
    prefix = next((each for each in prefixes if f"{each}embeddings.word_embeddings.weight" in weights), "")
    found: dict[str, Stored] = {}
    used: set[str] = set()
    for ours, theirs in _NAMES.items():
        for i in range(config.layers) if "{i}" in ours else (0,):
            for part in ("weight", "bias") if "{p}" in ours else ("",):
                old = {"weight": "gamma", "bias": "beta"}.get(part, "") if "LayerNorm" in theirs else part
                names = [prefix + theirs.format(i=i, p=each) for each in (part, old)]
                name = next((each for each in names if each in weights), None)
                if name is None:
                    raise FileError(f"{weights.source}: a tensor is missing", expected=names[0])
                used.add(name)
                found[ours.format(i=i, p=part)] = weights.find(name)
    strange = [name for name in weights if name not in used and not any(part in name for part in _IGNORED)]
    if strange:
        raise FileError(f"{weights.source}: tensors that an encoder has no use for", got=", ".join(strange[:6]))
    kinds = {name: stored.shape.dtype for name, stored in found.items()}
    formats: dict[str, Any] = {name: kind for name, kind in kinds.items() if isinstance(kind, DType) and kind.is_float}
    if len(formats) != len(found):
        raise UnsupportedError(f"{weights.source}: weights of an encoder are floats")
    return Weights(found, weights.metadata, weights.source), formats


class EncoderLayer(Model):
    q: Linear
    k: Linear
    v: Linear
    o: Linear
    after_attn: Norm
    up: Linear
    down: Linear
    after_mlp: Norm

    def __init__(self, config: EncoderConfig, path: str, formats: Formats) -> None:
        d, f = config.d, config.f
        self.q, self.k, self.v = (Linear(f"{path}.{name}", formats, True, e=d, d=d) for name in "qkv")
        self.o = Linear(f"{path}.o", formats, True, d=d, e=d)
        self.after_attn = Norm(config, "d", d)
        self.up = Linear(f"{path}.up", formats, True, f=f, d=d)
        self.down = Linear(f"{path}.down", formats, True, d=d, f=f)
        self.after_mlp = Norm(config, "d", d)
        self._heads, self._activation = config.heads, nn.activation(config.activation)

    def __call__(self, x: Tensor, seen: Tensor) -> Tensor:
        q, k, v = (layer(x).split("e", h=self._heads, k=None) for layer in (self.q, self.k, self.v))
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t"), mask=seen)
        x = self.after_attn(x + self.o(y.merge("h k", "e")))
        return self.after_mlp(x + self.down(self._activation(self.up(x))))


class Encoder(Model):
    embed: Matrix
    positions: Matrix
    types: Matrix
    norm: Norm
    layers: list[EncoderLayer]

    def __init__(self, config: EncoderConfig, formats: Formats) -> None:
        self.embed = Matrix("embed.weight", formats, v=config.v, d=config.d)
        self.positions = Matrix("positions.weight", formats, p=config.positions, d=config.d)
        self.types = Matrix("types.weight", formats, y=config.types, d=config.d)
        self.norm = Norm(config, "d", config.d)
        self.layers = [EncoderLayer(config, f"layers.{i}", formats) for i in range(config.layers)]
        self._first = config.first

    def encode(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        """Tokens i32[b, s] of which `lengths` i32[b] count → the last layer's states, f32[b, s, d]."""
        return self._states(tokens, lengths, self.types.dense().slice(y=slice(0, 1)).squeeze("y"))

    def encode_pair(self, tokens: Tensor, lengths: Tensor, kinds: Tensor) -> Tensor:
        """The same for a pair of texts, concatenated; `kinds` i32[b, s] says which of them a token belongs to."""
        return self._states(tokens, lengths, self.types.dense().take(kinds, "y"))

    def _states(self, tokens: Tensor, lengths: Tensor, types: Tensor) -> Tensor:
        places = arange(tokens.size("s"), "s", i32)
        x = self.embed.dense().take(tokens, "v") + self.positions.dense().take(places + self._first, "p")
        x = self.norm(x + types)
        seen = outer("-", lengths, arange(tokens.size("s"), "t", i32)) > 0
        for layer in self.layers:
            x = layer(x, seen)
        return x
