"""A Hugging Face folder as the content of a GGUF file: metadata, and tensors under GGUF's names. `quantise` writes it.

The tokenizer goes along whole, as `tokenizer.huggingface.json`, and as llama.cpp reads it (`gguf_vocabulary`). What
GGUF cannot express is refused: what was written is read back and compared with the folder's configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.blocks import Block, decode
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import Config, Layer, Rope, rope_frequencies
from smelt.llm.families import FAMILIES, text_config
from smelt.llm.gguf_vocabulary import vocabulary_of
from smelt.llm.names import sources

CLOSE = 1e-6  # numbers in metadata have 32 bits


def architecture_of(config: Config) -> str:
    """Mistral and Mixtral are `llama` there."""
    return next(iter(FAMILIES[config.family].gguf), "llama")


def metadata_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """All keys of the file."""
    config, name = checkpoint.config, architecture_of(checkpoint.config)
    raw = _fields(checkpoint)
    found: dict[str, Any] = {"general.architecture": name, "general.name": checkpoint.name}
    found |= {f"{name}.{key}": value for key, value in _sizes(config).items()}
    found |= {f"{name}.{key}": value for key, value in _positions(config, raw).items()}
    for key, token in zip(("eos", "eot", "eom"), config.stop, strict=False):
        found[f"tokenizer.ggml.{key}_token_id"] = token
    if config.bos is not None:
        found["tokenizer.ggml.bos_token_id"] = config.bos
    if checkpoint.template is not None:
        found["tokenizer.chat_template"] = checkpoint.template
    if checkpoint.has_tokenizer:
        tokenizer = checkpoint.read_tokenizer()
        found |= vocabulary_of(tokenizer, config.v, found)
        found["tokenizer.huggingface.json"] = tokenizer.to_json()
    return found


def _fields(checkpoint: Checkpoint) -> Mapping[str, Any]:
    """Those of the text model."""
    file = checkpoint.path / "config.json"
    return text_config(json.loads(file.read_text("utf-8")), str(file))


def _sizes(config: Config) -> dict[str, Any]:
    norm = "layer_norm_epsilon" if config.norm == "layer" else "layer_norm_rms_epsilon"
    found: dict[str, Any] = {
        "block_count": len(config.layers),
        "context_length": config.context,
        "embedding_length": config.d,
        "feed_forward_length": config.f,
        "attention.head_count": config.heads,
        "attention.head_count_kv": config.kv_heads,
        f"attention.{norm}": config.epsilon,
        "vocab_size": config.v,
    }
    windows = {layer.window for layer in config.layers} - {None}
    if windows and max(filter(None, windows)) < config.context:
        found["attention.sliding_window"] = windows.pop()
    if config.softcap:
        found["attn_logit_softcapping"] = config.softcap
    if config.final_softcap:
        found["final_logit_softcapping"] = config.final_softcap
    experts = next((layer.experts for layer in config.layers if layer.experts is not None), None)
    if experts is not None:
        found["expert_count"], found["expert_used_count"] = experts.count, experts.used
        if config.family != "mixtral":
            found["expert_feed_forward_length"] = experts.f
    return found


def _positions(config: Config, raw: Mapping[str, Any]) -> dict[str, Any]:
    rope = _rope(config)
    if rope is None:
        return {}
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    given = given.get("full_attention", given)
    found: dict[str, Any] = {
        "attention.key_length": config.head_size,
        "attention.value_length": config.head_size,
        "rope.dimension_count": rope.part,
        "rope.freq_base": _base(config, raw),
    }
    kind = given.get("rope_type", given.get("type"))
    original = raw.get("original_max_position_embeddings") or given.get("original_max_position_embeddings")
    if kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(given["factor"])}
    if kind == "yarn" and given.get("attention_factor"):
        found["rope.scaling.attn_factor"] = float(given["attention_factor"])
    if kind in ("longrope", "su"):
        found["rope.scaling.attn_factor"] = rope.scale
    if kind in ("yarn", "longrope", "su") and original:
        found["rope.scaling.original_context_length"] = int(original)
    return found


def _rope(config: Config) -> Rope | None:
    """That of a layer which sees everything, where there is one."""
    ropes = [layer.rope for layer in sorted(config.layers, key=lambda each: each.window is not None) if layer.rope]
    return ropes[0] if ropes else None


def _base(config: Config, raw: Mapping[str, Any]) -> float:
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    base = given.get("full_attention", given).get("rope_theta") or raw.get("rope_theta")
    return float(base or FAMILIES[config.family].defaults.get("rope_theta", 10_000.0))


# ---- tensors ----


class Content(Frozen):
    """A tensor of the file: its sizes, the blocks that it is stored in, if any, and what loads it as it is stored."""

    sizes: tuple[int, ...]
    blocks: Block | None
    load: Callable[[], Array]

    def load_numbers(self) -> Array:
        return self.load() if self.blocks is None else decode(self.blocks, self.load())


def tensors_of(checkpoint: Checkpoint) -> dict[str, Content]:
    """Contents by GGUF's names; matrices as they are stored, vectors in f32."""
    config, weights = checkpoint.config, checkpoint.weights
    parts: dict[str, list[str]] = {}
    for ours, source in sorted(sources(config, True).items(), key=lambda pair: _ORDER.get(pair[1].how, 0)):
        if ours in weights:
            parts.setdefault(source.names[0], []).append(ours)
    return {theirs: _content(checkpoint, ours_of) for theirs, ours_of in parts.items()} | _factors(checkpoint)


def _content(checkpoint: Checkpoint, names: list[str]) -> Content:
    """Rows of one or several of our tensors. Blocks that GGUF has, the same in all of them, stay as they are."""
    forms = [checkpoint.formats[name] for name in names]
    first = forms[0]
    blocks = first if isinstance(first, Block) and first.kind is not None and forms == [first] * len(forms) else None
    shapes = [checkpoint.sizes(name) for name in names]
    sizes = (sum(shape[0] for shape in shapes), *shapes[0][1:])

    def load() -> Array:
        arrays = [_array(checkpoint, name, blocks is not None) for name in names]
        return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)

    return Content(sizes, blocks, load)


_ORDER = {"q": 1, "k": 2, "v": 3, "gate": 1, "up": 2}  # of the rows of a fused projection


def _array(checkpoint: Checkpoint, ours: str, as_blocks: bool) -> Array:
    config, family = checkpoint.config, FAMILIES[checkpoint.config.family]
    array, form = checkpoint.weights[ours].numpy(), checkpoint.formats[ours]
    if isinstance(form, Block) and not as_blocks:
        array = decode(form, array)
    if array.ndim < 2:
        array = array.astype(np.float32)
    if config.norm_offset and any(part in ours for part in ("norm", "before_", "after_")):
        array = array + np.float32(config.norm_offset)
    heads = {"q": config.heads, "k": config.kv_heads}.get(ours.split(".")[-2], 0)
    if heads and ".attn." in ours and (family.gguf_interleaved or architecture_of(config) == "llama"):
        array = _interleave(array, heads)
    return array


def _interleave(array: Array, heads: int) -> Array:
    """Rows of Q or K in the order that makes pairs of rotated elements neighbours."""
    return array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:]).swapaxes(1, 2).reshape(array.shape)


def _factors(checkpoint: Checkpoint) -> dict[str, Content]:
    """Tensors that frequencies are divided by: Llama 3's, and both of longrope."""
    raw = _fields(checkpoint)
    given = raw.get("rope_scaling") or raw.get("rope_parameters") or {}
    rope, kind = _rope(checkpoint.config), given.get("rope_type", given.get("type"))
    if rope is None or kind not in ("llama3", "longrope", "su"):
        return {}
    if kind == "llama3":
        plain = rope_frequencies(_base(checkpoint.config, raw), rope.part)
        made = {"rope_freqs.weight": plain / np.array(rope.frequencies)}
    else:
        made = {f"rope_factors_{which}.weight": np.array(given[f"{which}_factor"]) for which in ("long", "short")}
    narrow = {name: array.astype(np.float32) for name, array in made.items()}
    return {name: Content(array.shape, None, lambda array=array: array) for name, array in narrow.items()}  # type: ignore[misc]


# ---- what was written ----


def check_same(folder: Config, written: Config, path: Path) -> None:
    """Refuse a configuration that GGUF cannot say: both must compute the same."""
    wanted = replace(folder, norm_offset=0.0, family=written.family, stop=written.stop, cache=written.cache)
    wanted = replace(wanted, layers=tuple(_comparable(each, wanted.context) for each in folder.layers))
    got = replace(written, layers=tuple(_comparable(each, written.context) for each in written.layers))
    for each in fields(Config):
        a, b = getattr(wanted, each.name), getattr(got, each.name)
        if not _equal(a, b):
            raise UnsupportedError(f"{path}: GGUF has no word for {each.name}", expected=str(a)[:120], got=str(b)[:120])


def _comparable(layer: Layer, context: int) -> Any:
    rope = layer.rope
    window = None if layer.window is None or layer.window >= context else layer.window
    turned = None if rope is None else (rope.frequencies, rope.scale, rope.most or context, rope.long)
    return turned, window, layer.experts


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(_equal(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= CLOSE * max(abs(a), abs(b))
    if isinstance(a, str) and {a, b} <= {"gelu_new", "gelu_pytorch_tanh"}:
        return True
    return bool(a == b)
