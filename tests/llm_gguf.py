"""Tiny GGUF files from the cases of `llm_checkpoints`, laid out as llama.cpp's converter does it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.llm.families import read_config
from tests.llm_checkpoints import Case, weight

RENAMED = (
    (r"^(model|transformer)\.", ""),
    (r"^layers\.|^h\.", "blk."),
    (r"^(embed_tokens|wte)\.", "token_embd."),
    (r"^wpe\.", "position_embd."),
    (r"^(norm|ln_f)\.", "output_norm."),
    (r"^lm_head\.", "output."),
    (r"self_attn\.([qkv])_proj", r"attn_\1"),
    (r"self_attn\.([qk])_norm", r"attn_\1_norm"),
    (r"self_attn\.qkv_proj|attn\.c_attn", "attn_qkv"),
    (r"self_attn\.o_proj|attn\.c_proj", "attn_output"),
    (r"input_layernorm|ln_1", "attn_norm"),
    (r"pre_feedforward_layernorm|ln_2", "ffn_norm"),
    (r"post_feedforward_layernorm", "post_ffw_norm"),
    (r"mlp\.gate_up_proj", "ffn_up"),
    (r"mlp\.(gate|up|down)_proj", r"ffn_\1"),
    (r"mlp\.c_fc", "ffn_up"),
    (r"mlp\.c_proj", "ffn_down"),
    (r"(block_sparse_moe|mlp)\.gate\.", "ffn_gate_inp."),
)
ARCHITECTURES = {"mixtral": "llama", "mistral": "llama"}
EXPERT = re.compile(r"(.*)\.(?:block_sparse_moe|mlp)\.experts\.(\d+)\.(w1|w2|w3|gate_proj|up_proj|down_proj)\.weight")
PARTS = {"w1": "gate", "w3": "up", "w2": "down"}


def write_gguf(path: Path, case: Case, quantised: str = "") -> None:
    """The checkpoint of a case as a GGUF file; matrices are stored in `quantised` blocks where their rows allow it."""
    gguf = pytest.importorskip("gguf")
    config = read_config(case.config, case.name)
    name = ARCHITECTURES.get(config.family, config.family)
    writer = gguf.GGUFWriter(path, name)
    for key, value in metadata(case, config).items():
        if isinstance(value, str):
            writer.add_string(f"{name}.{key}", value)
        elif isinstance(value, float):
            writer.add_float32(f"{name}.{key}", value)
        else:
            writer.add_uint32(f"{name}.{key}", value)
    writer.add_eos_token_id(2)
    for tensor, array in tensors(case, config).items():
        kind = gguf.GGMLQuantizationType[quantised.upper()] if quantised else None
        if kind is not None and array.ndim > 1 and array.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0:
            writer.add_tensor(tensor, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(tensor, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def metadata(case: Case, config: Any) -> dict[str, Any]:
    said = case.config
    norm = "layer_norm_epsilon" if config.norm == "layer" else "layer_norm_rms_epsilon"
    found = {
        "block_count": len(config.layers),
        "context_length": config.context,
        "embedding_length": config.d,
        "feed_forward_length": config.f,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        f"attention.{norm}": config.epsilon,
        "vocab_size": config.v,
    }
    if config.family != "gpt2":
        found["attention.key_length"] = found["attention.value_length"] = config.head_size
        found["rope.dimension_count"] = next(layer.rope for layer in config.layers if layer.rope is not None).part
        rope = said.get("rope_parameters", {})
        found["rope.freq_base"] = float(rope.get("full_attention", rope).get("rope_theta", 10000.0))
        if rope.get("rope_type") in ("linear", "yarn"):
            found["rope.scaling.type"], found["rope.scaling.factor"] = rope["rope_type"], float(rope["factor"])
        if rope.get("rope_type") == "yarn":
            found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
        if rope.get("rope_type") == "longrope":
            found["rope.scaling.attn_factor"] = config.layers[0].rope.scale
    if said.get("sliding_window"):
        found["attention.sliding_window"] = said["sliding_window"]
    for key in ("attn_logit_softcapping", "final_logit_softcapping"):
        if said.get(key):
            found[key] = float(said[key])
    experts = next((layer.experts for layer in config.layers if layer.experts is not None), None)
    if experts is not None:
        found["expert_count"], found["expert_used_count"] = experts.count, experts.used
        if config.family != "mixtral":
            found["expert_feed_forward_length"] = experts.f
    return found


def tensors(case: Case, config: Any) -> dict[str, Array]:
    gemma = config.family.startswith("gemma")
    after = "post_attention_norm" if config.post_norms else "ffn_norm"
    found: dict[str, Array] = {}
    stacks: dict[str, list[Array]] = {}
    for theirs, sizes in case.shapes.items():
        array = weight(theirs, sizes)
        if expert := EXPERT.fullmatch(theirs):
            layer = expert[1].rpartition(".")[2]
            part = PARTS.get(expert[3], expert[3].removesuffix("_proj"))
            stacks.setdefault(f"blk.{layer}.ffn_{part}_exps.weight", []).append(array)
            assert len(stacks[f"blk.{layer}.ffn_{part}_exps.weight"]) == int(expert[2]) + 1
            continue
        name = theirs.replace("post_attention_layernorm", after)
        for pattern, new in RENAMED:
            name = re.sub(pattern, new, name)
        if config.family == "gpt2" and array.ndim == 2 and name.startswith("blk."):
            array = array.T
        if config.family in ("llama", "mistral", "mixtral", "smollm3") and re.search(r"attn_[qk]\.", name):
            array = permuted(array, config.heads if "attn_q" in name else config.kv_heads)
        if gemma and "norm" in name:
            array = array + np.float32(1)
        found[name] = np.ascontiguousarray(array)
    found |= {name: np.stack(arrays) for name, arrays in stacks.items()}
    rope = case.config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        from smelt.llm.config import rope_frequencies

        plain = rope_frequencies(rope["rope_theta"], config.head_size)
        found["rope_freqs.weight"] = (plain / np.array(config.layers[0].rope.frequencies)).astype(np.float32)
    if rope.get("rope_type") == "longrope":
        for which in ("long", "short"):
            found[f"rope_factors_{which}.weight"] = np.array(rope[f"{which}_factor"], np.float32)
    return found


def permuted(array: Array, heads: int) -> Array:
    """Rows of Q or K in the order that makes pairs of RoPE neighbours."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def write_vocabulary(path: Path, tokens: list[str]) -> None:
    """A `tokenizer.json` of whole words, for tests that need any text at all."""
    vocab = {token: i for i, token in enumerate(tokens)}
    record: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": False},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": tokens[0]},
    }
    path.write_text(json.dumps(record))
