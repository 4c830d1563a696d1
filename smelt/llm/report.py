"""What a language model's checkpoint is, and everything that keeps it from running: `smelt inspect`.

In: a path. Out: one record, ready for JSON; `unsupported` lists every obstacle that was found, not only the first.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from smelt.errors import SmeltError
from smelt.ir.blocks import Block
from smelt.llm import checkpoint as files
from smelt.llm.chat import check_template
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import Config, Fields
from smelt.llm.decoder import Decoder
from smelt.llm.encoder import encoder_weights, read_encoder
from smelt.llm.families import BY_ARCHITECTURE, HARMLESS, read_config
from smelt.llm.memory import DEFAULT_CONTEXT
from smelt.llm.names import sources
from smelt.llm.sentence_files import read_pooling
from smelt.llm.tokenizer import from_file
from smelt.read import checkpoint as weights_of
from smelt.tensor.instantiate import instantiate

T = TypeVar("T")


def describe(path: Path) -> dict[str, Any]:
    """A checkpoint's architecture, sizes and needs, and what is missing."""
    problems: list[dict[str, Any]] = []
    if path.is_dir() and (raw := files.encoder_config(path)) is not None:
        return _describe_encoder(path, raw)
    found = _attempt(problems, "checkpoint", lambda: files.open(path))
    record: dict[str, Any] = {"model": str(path), "kind": "gguf" if path.suffix.lower() == ".gguf" else "folder"}
    if found is None:
        _explain(path, problems)
        return {**record, "unsupported": problems}
    _attempt(
        problems,
        "weights",
        lambda: instantiate(Decoder, found.weights, strict=True, config=found.config, formats=found.formats),
    )
    tokenizer = _attempt(problems, "tokenizer", found.read_tokenizer)
    if (template := found.template) is not None:
        _attempt(problems, "chat template", lambda: check_template(template))
    record.update(_describe(found))
    record["tokenizer"] = None if tokenizer is None else {"tokens": tokenizer.size}
    record["chat_template"] = found.template is not None
    return {**record, "unsupported": problems}


def _describe_encoder(path: Path, raw: Mapping[str, Any]) -> dict[str, Any]:
    problems: list[dict[str, Any]] = []
    record: dict[str, Any] = {"model": str(path), "kind": "encoder"}
    config = _attempt(problems, "configuration", lambda: read_encoder(raw, str(path / "config.json")))
    pooling = _attempt(problems, "pooling", lambda: read_pooling(path))
    tokenizer = _attempt(problems, "tokenizer", lambda: from_file(path / "tokenizer.json"))
    if config is not None:
        made = _attempt(problems, "weights", lambda: encoder_weights(weights_of.open(path), config))
        record |= {"family": config.family, "layers": config.layers, "context": config.context}
        record["sizes"] = {name: getattr(config, name) for name in ("d", "f", "heads", "v")}
        if made is not None:
            shapes = [made[0].shape(name).numbers() for name in made[0]]
            record |= {"parameters": sum(map(math.prod, shapes)), "weight_bytes": made[0].nbytes}
    if pooling is not None:
        record["pooling"] = list(pooling.modes)
    record["tokenizer"] = None if tokenizer is None else {"tokens": tokenizer.size}
    return {**record, "unsupported": problems}


def _attempt(problems: list[dict[str, Any]], part: str, act: Callable[[], T]) -> T | None:
    try:
        return act()
    except SmeltError as error:
        problems.append({"part": part, **error.record()})
        return None


def _describe(found: Checkpoint) -> dict[str, Any]:
    config = found.config
    elements = {name: found.elements(name) for name in found.weights}
    formats = Counter[str]()
    for name, count in elements.items():
        formats[_form(found, name)] += count
    context = min(config.context, DEFAULT_CONTEXT)
    return {
        "family": config.family,
        "layers": len(config.layers),
        "sizes": {name: getattr(config, name) for name in ("d", "f", "heads", "kv_heads", "head_size", "v")},
        "context": config.context,
        "architecture": _traits(config),
        "parameters": sum(elements.values()),
        "formats": dict(formats.most_common()),
        "multimodal": _multimodal(found) if found.multimodal else None,
        "quantised": found.quantised or None,
        "dequantised": sum(elements[name] for name in found.dequantised - found.sorted.keys()),
        "sorted": sum(elements[name] for name in found.dequantised & found.sorted.keys()),
        "weight_bytes": found.nbytes,
        "f32_bytes": 4 * sum(elements.values()),
        "cache_bytes": context * config.cache_bytes,
        "end_tokens": list(config.stop),
    }


def _multimodal(found: Checkpoint) -> dict[str, Any]:
    """The architecture, and the parts of it that are not loaded: modules with the numbers of their tensors."""
    modules = Counter(name.removeprefix("model.").partition(".")[0] for name in found.left_out)
    return {"architecture": found.multimodal, "left_out": dict(modules.most_common())}


def _form(found: Checkpoint, name: str) -> str:
    form = found.formats[name]
    return form.name if isinstance(form, Block) else str(form)


def _traits(config: Config) -> list[str]:
    """The variants of a decoder's parts, as text."""
    windows = Counter(layer.window for layer in config.layers if layer.window is not None)
    experts = Counter(layer.experts for layer in config.layers if layer.experts is not None)
    traits = [
        "RMSNorm" if config.norm == "rms" else "LayerNorm",
        f"{config.activation}, {'gated' if config.gated else 'plain'} MLP",
        "learned positions" if config.positions else "",
        f"norms {'' if config.pre_norms else 'only '}after attention and MLP" if config.post_norms else "",
        f"norms of queries and keys{'' if config.qk_norm_per_head else ' over all heads'}" if config.qk_norm else "",
        "biases of q, k, v" if config.qkv_bias else "",
        f"attention softcap {config.softcap:g}" if config.softcap else "",
        f"logit softcap {config.final_softcap:g}" if config.final_softcap else "",
        "tied embeddings" if config.tied else "",
    ]
    turned = Counter(layer.rope is not None for layer in config.layers)
    if turned[True]:
        traits.append("RoPE" + (f" in {turned[True]} layers" if turned[False] else ""))
    traits += [f"window of {size} in {count} layers" for size, count in windows.items()]
    traits += [f"{each.used} of {each.count} experts in {count} layers" for each, count in experts.items()]
    return [each for each in traits if each]


def _explain(path: Path, problems: list[dict[str, Any]]) -> None:
    """For a folder of an unknown family: what a Llama would have to have in addition."""
    if not path.is_dir():
        return
    try:
        weights = weights_of.open(path)
        raw: Mapping[str, Any] = weights.config
        if any(name in BY_ARCHITECTURE for name in raw.get("architectures") or ()):
            return
        fields = Fields(raw, str(path), HARMLESS)
        as_llama = {name: value for name, value in raw.items() if name in _LLAMA_FIELDS}
        config = read_config({**as_llama, "architectures": ["LlamaForCausalLM"]}, str(path))
    except SmeltError:
        return
    known = {name for source in sources(config, False).values() for name in source.names}
    strange = sorted({_pattern(name) for name in weights if name not in known})
    problems.append(
        {
            "part": "architecture",
            "message": "what the nearest family, llama, lacks",
            "fields": sorted(name for name in fields.unread_fields() if name not in _LLAMA_FIELDS),
            "tensors": strange[:40],
        }
    )


_LLAMA_FIELDS = frozenset(
    {
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "hidden_act",
        "tie_word_embeddings",
        "rope_theta",
        "attention_bias",
        "mlp_bias",
    }
)


def _pattern(name: str) -> str:
    """A tensor's name with every number as *."""
    return ".".join("*" if part.isdigit() else part for part in name.split("."))
