"""A GGUF file's metadata → `Config`, through the fields of a `config.json`, so that families read one form.

What differs is put right here: GGUF's Llama has rows of Q and K permuted (pairs of RoPE are neighbours), Gemma's norms
have their offset added already, frequencies' factors are a tensor.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import ParseError, UnsupportedError
from smelt.llm.config import Config, Layer, Rope
from smelt.llm.families import BY_GGUF, FAMILIES, Family, read_config
from smelt.read.gguf import Gguf

# GGUF's keys after the architecture's name → config.json's
_FIELDS = {
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.layer_norm_epsilon": "rms_norm_eps",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "rope.freq_base": "rope_theta",
    "expert_count": "num_local_experts",
    "expert_used_count": "num_experts_per_tok",
    "expert_feed_forward_length": "moe_intermediate_size",
    "vocab_size": "vocab_size",
}
_HANDLED = (  # read below, or without a say in what is computed
    "attention.value_length",
    "attention.sliding_window_pattern",
    "rope.dimension_count",
    "rope.scale_linear",
    "rope.scaling.type",
    "rope.scaling.factor",
    "rope.scaling.attn_factor",
    "rope.scaling.original_context_length",
    "rope.scaling.finetuned",
)


def config_of(file: Gguf, context: int | None) -> Config:
    """What a file's metadata say of its decoder."""
    name = file.metadata.get("general.architecture")
    if not isinstance(name, str) or name not in BY_GGUF:
        raise UnsupportedError(
            f"{file.path}: no architecture of language models that is known",
            expected=", ".join(BY_GGUF),
            got=name,
        )
    metadata = {
        key.removeprefix(f"{name}."): value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in file.metadata.items()
        if key.startswith(f"{name}.")
    }
    family = FAMILIES["mixtral"] if name == "llama" and metadata.get("expert_count") else BY_GGUF[name]
    config = read_config(_as_json(file, family, metadata), str(file.path), context, partial=True)
    factors = _factors(file, config, context)
    layers = tuple(
        replace(layer, rope=_rope(layer, factors, family.gguf_interleaved or family.name == "mixtral"))
        for layer in config.layers
    )
    out = "blk.0.attn_output.bias" in file.packed if isinstance(family.out_bias, str) else config.out_bias
    return replace(config, layers=layers, norm_offset=0.0, out_bias=out)  # the offset is added already


def _as_json(file: Gguf, family: Family, metadata: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"architectures": [family.architectures[0]]}
    for key, value in metadata.items():
        if key in _FIELDS:
            found[_FIELDS[key]] = _same_for_all(file, key, value)
        elif key not in _HANDLED:
            found[f"gguf {key}"] = value  # read_config refuses it if it matters
    width, heads = _integer(found.get("hidden_size")), _integer(found.get("num_attention_heads"))
    head = _integer(found.get("head_dim")) or width // max(heads, 1)
    if not family.positions:  # llama.cpp's own defaults
        sizes = {"num_key_value_heads": heads, "head_dim": head} if heads and head else {}
        found = {"rope_theta": 10_000.0, "sliding_window": None, **sizes, **found}
    else:
        same = {
            name for name, number in (("num_key_value_heads", heads), ("head_dim", head)) if found.get(name) == number
        }
        found = {name: value for name, value in found.items() if name not in same}
    own = {name: theirs for theirs, name in family.renamed.items() if name in family.foreign}
    found = {own.get(name, name): value for name, value in found.items()}
    if (pattern := metadata.get("attention.sliding_window_pattern")) is not None:
        if isinstance(pattern, list):
            found["layer_types"] = ["sliding_attention" if each else "full_attention" for each in pattern]
        elif family.windows == "sixth":
            found["sliding_window_pattern"] = pattern
        elif pattern != 2:
            raise UnsupportedError(f"{file.path}: attention.sliding_window_pattern", expected=2, got=pattern)
    if not _is(metadata.get("attention.value_length"), head):
        raise UnsupportedError(
            f"{file.path}: keys and values of different depth", got=metadata["attention.value_length"]
        )
    if head and not _is(turned := metadata.get("rope.dimension_count"), head):
        found["partial_rotary_factor"] = _integer(turned) / head
    found["rope_scaling"] = _scaling(metadata)
    if "vocab_size" not in found:
        tokens = file.metadata.get("tokenizer.ggml.tokens")
        found["vocab_size"] = len(tokens) if isinstance(tokens, list) else 0
    found["tie_word_embeddings"] = "output.weight" not in file.packed
    found["eos_token_id"] = [
        value
        for key in ("eos", "eot", "eom")
        if type(value := file.metadata.get(f"tokenizer.ggml.{key}_token_id")) is int
    ]
    found["bos_token_id"] = file.metadata.get("tokenizer.ggml.bos_token_id")
    for flag in {family.qkv_bias, family.out_bias} - {True, False}:
        found[str(flag)] = "blk.0.attn_q.bias" in file.packed
    if isinstance(family.mlp_bias, str):
        found[family.mlp_bias] = "blk.0.ffn_up.bias" in file.packed
    _particular(family, found)
    return found


def _particular(family: Family, found: dict[str, Any]) -> None:
    """What GGUF leaves to the reader."""
    found[family.activation] = "gelu_pytorch_tanh" if family.scaled_embedding or not family.gated else "silu"
    if family.name == "qwen3moe":
        found["norm_topk_prob"] = True
    if family.scale:  # the largest of Gemma's models scale by d / heads
        largest = {"gemma2": 46, "gemma3": 62}[family.name]
        is_largest = found.get("num_hidden_layers") == largest
        width, heads = _integer(found.get("hidden_size")), max(_integer(found.get("num_attention_heads")), 1)
        found["query_pre_attn_scalar"] = width // heads if is_largest else found.get("head_dim", width // heads)


def _is(value: Any, number: int) -> bool:
    """Whether a value is that number, or missing."""
    return value is None or (type(value) is int and value == number)


def _integer(value: Any) -> int:
    return value if type(value) is int else 0


def _same_for_all(file: Gguf, key: str, value: Any) -> Any:
    """A number; a list of one per layer must be the same for all."""
    if not isinstance(value, list):
        return value
    if len(value) == 0 or any(each != value[0] for each in value):
        raise UnsupportedError(f"{file.path}: layers differ in {key}", got=value[:16])
    return value[0]


def _scaling(metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    kind, factor = (
        metadata.get("rope.scaling.type", "none"),
        metadata.get("rope.scaling.factor", metadata.get("rope.scale_linear")),
    )
    if factor is None or kind in ("none", "longrope"):
        return None
    found = {"rope_type": kind, "factor": factor}
    if kind == "yarn":
        found["original_max_position_embeddings"] = metadata.get("rope.scaling.original_context_length")
        found["attention_factor"] = metadata.get("rope.scaling.attn_factor")
    return {name: value for name, value in found.items() if value is not None}


def _factors(file: Gguf, config: Config, context: int | None) -> Any:
    """What frequencies are divided by, the scale that goes with it, the length of sequences that this holds for, and
    what frequencies of longer ones are divided by."""
    name = file.metadata.get("general.architecture")
    original = _integer(file.metadata.get(f"{name}.rope.scaling.original_context_length")) or config.context
    if (plain := _read_factors(file, config, "rope_freqs.weight")) is not None:
        return plain, 1.0, None, None
    short, long = (_read_factors(file, config, f"rope_factors_{which}.weight") for which in ("short", "long"))
    if short is None and long is None:
        return None
    if short is None or long is None:
        raise ParseError(
            f"{file.path}: factors of rotary positions", expected="rope_factors_short and rope_factors_long", got="one"
        )
    scale = file.metadata.get(f"{name}.rope.scaling.attn_factor", 1.0)
    if type(scale) not in (int, float) or not 0 < scale < 1e30:
        raise ParseError(f"{file.path}: rope.scaling.attn_factor", expected="a positive number", got=scale)
    longest = config.context if context is None else min(context, config.context)
    return short, float(scale), min(original, config.context), long if longest > original else None


def _read_factors(file: Gguf, config: Config, tensor: str) -> Array | None:
    """Positive numbers, one for each frequency; None where the file has no such tensor."""
    if tensor not in file.dense:
        return None
    array: Array = file.dense[tensor].numpy().astype(np.float64)
    rope = next((layer.rope for layer in config.layers if layer.rope is not None), None)
    if rope is None or array.shape != (len(rope.frequencies),) or not (array > 0).all():
        raise ParseError(f"{file.path}: {tensor} does not fit", got=array.shape)
    return array


def _rope(layer: Layer, factors: Any, interleaved: bool) -> Rope | None:
    if layer.rope is None:
        return None
    if factors is None:
        return replace(layer.rope, interleaved=interleaved)
    plain = np.array(layer.rope.frequencies)
    short, scale, most, long = factors
    both = [None if each is None else tuple(map(float, plain / each)) for each in (short, long)]
    assert both[0] is not None
    return Rope(both[0], scale, interleaved, most, both[1])
