"""The names of a decoder's tensors: ours → Hugging Face's and GGUF's, and how theirs are split, transposed or stacked.

`canonical` returns Weights under our names; tensors are read on first access. Our form has a
matrix `[out, in]` (or its blocks, `ui8[out, n, bytes]`) per projection, and experts stacked, `[e, out, in]`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError, UnsupportedError
from smelt.llm.config import Config
from smelt.shape import Shape
from smelt.weights import Stored, Weights

_LLAMA = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{i}.before_attn.weight": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.before_mlp.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.attn.{x}.weight": "model.layers.{i}.self_attn.{x}_proj.weight",
    "layers.{i}.attn.{x}.bias": "model.layers.{i}.self_attn.{x}_proj.bias",
    "layers.{i}.attn.q_norm.weight": "model.layers.{i}.self_attn.q_norm.weight",
    "layers.{i}.attn.k_norm.weight": "model.layers.{i}.self_attn.k_norm.weight",
    "layers.{i}.mlp.{m}.weight": "model.layers.{i}.mlp.{m}_proj.weight",
    "layers.{i}.mlp.{m}.bias": "model.layers.{i}.mlp.{m}_proj.bias",
}
_GEMMA = {
    **_LLAMA,
    "layers.{i}.after_attn.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.before_mlp.weight": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "layers.{i}.after_mlp.weight": "model.layers.{i}.post_feedforward_layernorm.weight",
}
_PHI3 = {
    **_LLAMA,
    "layers.{i}.attn.q.weight": "model.layers.{i}.self_attn.qkv_proj.weight:q",
    "layers.{i}.attn.k.weight": "model.layers.{i}.self_attn.qkv_proj.weight:k",
    "layers.{i}.attn.v.weight": "model.layers.{i}.self_attn.qkv_proj.weight:v",
    "layers.{i}.mlp.gate.weight": "model.layers.{i}.mlp.gate_up_proj.weight:gate",
    "layers.{i}.mlp.up.weight": "model.layers.{i}.mlp.gate_up_proj.weight:up",
}
_MIXTRAL = {
    **_LLAMA,
    "layers.{i}.mlp.router.weight": "model.layers.{i}.block_sparse_moe.gate.weight",
    "layers.{i}.mlp.gate_experts.weight": "model.layers.{i}.block_sparse_moe.experts.{e}.w1.weight",
    "layers.{i}.mlp.up_experts.weight": "model.layers.{i}.block_sparse_moe.experts.{e}.w3.weight",
    "layers.{i}.mlp.down_experts.weight": "model.layers.{i}.block_sparse_moe.experts.{e}.w2.weight",
}
_QWEN3_MOE = {
    **_LLAMA,
    "layers.{i}.mlp.router.weight": "model.layers.{i}.mlp.gate.weight",
    "layers.{i}.mlp.gate_experts.weight": "model.layers.{i}.mlp.experts.{e}.gate_proj.weight",
    "layers.{i}.mlp.up_experts.weight": "model.layers.{i}.mlp.experts.{e}.up_proj.weight",
    "layers.{i}.mlp.down_experts.weight": "model.layers.{i}.mlp.experts.{e}.down_proj.weight",
}
_OLMO2 = {
    **_LLAMA,
    "layers.{i}.after_attn.weight": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.after_mlp.weight": "model.layers.{i}.post_feedforward_layernorm.weight",
}
del _OLMO2["layers.{i}.before_attn.weight"], _OLMO2["layers.{i}.before_mlp.weight"]
_STARCODER2 = {
    **_LLAMA,
    "norm.bias": "model.norm.bias",
    "layers.{i}.before_attn.bias": "model.layers.{i}.input_layernorm.bias",
    "layers.{i}.before_mlp.bias": "model.layers.{i}.post_attention_layernorm.bias",
    **{f"layers.{{i}}.mlp.up.{p}": f"model.layers.{{i}}.mlp.c_fc.{p}" for p in ("weight", "bias")},
    **{f"layers.{{i}}.mlp.down.{p}": f"model.layers.{{i}}.mlp.c_proj.{p}" for p in ("weight", "bias")},
}
_GPT2 = {
    "embed.weight": "transformer.wte.weight",
    "positions.weight": "transformer.wpe.weight",
    "norm.weight": "transformer.ln_f.weight",
    "norm.bias": "transformer.ln_f.bias",
    "head.weight": "lm_head.weight",
    "layers.{i}.before_attn.weight": "transformer.h.{i}.ln_1.weight",
    "layers.{i}.before_attn.bias": "transformer.h.{i}.ln_1.bias",
    "layers.{i}.before_mlp.weight": "transformer.h.{i}.ln_2.weight",
    "layers.{i}.before_mlp.bias": "transformer.h.{i}.ln_2.bias",
    **{
        f"layers.{{i}}.attn.{x}.weight": f"transformer.h.{{i}}.attn.c_attn.weight:transposed {x}"
        for x in ("q", "k", "v")
    },
    **{f"layers.{{i}}.attn.{x}.bias": f"transformer.h.{{i}}.attn.c_attn.bias:{x}" for x in ("q", "k", "v")},
    "layers.{i}.attn.o.weight": "transformer.h.{i}.attn.c_proj.weight:transposed",
    "layers.{i}.attn.o.bias": "transformer.h.{i}.attn.c_proj.bias",
    "layers.{i}.mlp.up.weight": "transformer.h.{i}.mlp.c_fc.weight:transposed",
    "layers.{i}.mlp.up.bias": "transformer.h.{i}.mlp.c_fc.bias",
    "layers.{i}.mlp.down.weight": "transformer.h.{i}.mlp.c_proj.weight:transposed",
    "layers.{i}.mlp.down.bias": "transformer.h.{i}.mlp.c_proj.bias",
}
HUGGING_FACE: dict[str, Mapping[str, str]] = {
    "gemma2": _GEMMA,
    "gemma3": _GEMMA,
    "phi3": _PHI3,
    "mixtral": _MIXTRAL,
    "qwen3moe": _QWEN3_MOE,
    "gpt2": _GPT2,
    "starcoder2": _STARCODER2,
    "olmo2": _OLMO2,
}

_GGUF = {
    "embed.weight": "token_embd.weight",
    "positions.weight": "position_embd.weight",
    "norm.weight": "output_norm.weight",
    "norm.bias": "output_norm.bias",
    "head.weight": "output.weight",
    "layers.{i}.before_attn.weight": "blk.{i}.attn_norm.weight",
    "layers.{i}.before_attn.bias": "blk.{i}.attn_norm.bias",
    "layers.{i}.after_attn.weight": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.before_mlp.weight": "blk.{i}.ffn_norm.weight",
    "layers.{i}.before_mlp.bias": "blk.{i}.ffn_norm.bias",
    "layers.{i}.after_mlp.weight": "blk.{i}.post_ffw_norm.weight",
    "layers.{i}.attn.{x}.weight": "blk.{i}.attn_{x}.weight",
    "layers.{i}.attn.{x}.bias": "blk.{i}.attn_{x}.bias",
    "layers.{i}.attn.o.weight": "blk.{i}.attn_output.weight",
    "layers.{i}.attn.o.bias": "blk.{i}.attn_output.bias",
    "layers.{i}.attn.q_norm.weight": "blk.{i}.attn_q_norm.weight",
    "layers.{i}.attn.k_norm.weight": "blk.{i}.attn_k_norm.weight",
    "layers.{i}.mlp.{m}.weight": "blk.{i}.ffn_{m}.weight",
    "layers.{i}.mlp.{m}.bias": "blk.{i}.ffn_{m}.bias",
    "layers.{i}.mlp.router.weight": "blk.{i}.ffn_gate_inp.weight",
    "layers.{i}.mlp.gate_experts.weight": "blk.{i}.ffn_gate_exps.weight",
    "layers.{i}.mlp.up_experts.weight": "blk.{i}.ffn_up_exps.weight",
    "layers.{i}.mlp.down_experts.weight": "blk.{i}.ffn_down_exps.weight",
}
_GGUF_FUSED = {
    **_GGUF,
    **{f"layers.{{i}}.attn.{x}.{p}": f"blk.{{i}}.attn_qkv.{p}:{x}" for x in "qkv" for p in ("weight", "bias")},
}
_GGUF_PHI3 = {
    **_GGUF_FUSED,
    "layers.{i}.mlp.gate.weight": "blk.{i}.ffn_up.weight:gate",
    "layers.{i}.mlp.up.weight": "blk.{i}.ffn_up.weight:up",
}
GGUF: dict[str, Mapping[str, str]] = {"phi3": _GGUF_PHI3, "gpt2": _GGUF_FUSED}

# Tensors that hold what a configuration says already, or what is computed from it.
_IGNORED = ("rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias", "rope_freqs.weight", "rope_factors_")


@dataclass(frozen=True, slots=True)
class Source:
    """Where one of our tensors comes from: names in the file, and what is done to each."""

    names: tuple[str, ...]  # more than one are stacked
    how: str = ""


def sources(config: Config, gguf: bool) -> dict[str, Source]:
    """All names that a model may have; which of them it has is the decoder's to say."""
    table = GGUF.get(config.family, _GGUF) if gguf else HUGGING_FACE.get(config.family, _LLAMA)
    found: dict[str, Source] = {}
    for ours in sorted(table, key=lambda ours: "{x}" not in ours and "{m}" not in ours):  # spelt out counts more
        name, _, how = table[ours].partition(":")
        for x in ("q", "k", "v", "o") if "{x}" in ours else ("gate", "up", "down") if "{m}" in ours else ("",):
            for i, layer in enumerate(config.layers if "{i}" in ours else config.layers[:1]):
                count = 1 if "{e}" not in name else layer.experts.count if layer.experts is not None else 0
                if count:
                    theirs = tuple(name.format(i=i, x=x, m=x, e=e) for e in range(count))
                    found[ours.format(i=i, x=x, m=x)] = Source(theirs, how)
    return found


def canonical(weights: Weights, config: Config, gguf: bool) -> tuple[Weights, dict[str, str]]:
    """The same tensors under our names; and for each of our names one of the file's."""
    found: dict[str, Stored] = {}
    theirs: dict[str, str] = {}
    used: set[str] = set()
    for ours, source in sources(config, gguf).items():
        names = [_present(name, weights) for name in source.names]
        present = [name for name in names if name is not None]
        used.update(present)
        if not present or (ours == "head.weight" and config.tied):
            continue
        if len(present) != len(names):
            raise FileError(f"{weights.source}: some experts are missing", expected=source.names[names.index(None)])
        stored = [weights.find(name) for name in present]
        found[ours] = _transform(stored[0], source.how, config) if len(stored) == 1 else _stack(stored, source)
        theirs[ours] = present[0]
    strange = [name for name in weights if name not in used and not any(part in name for part in _IGNORED)]
    if strange:
        raise FileError(
            f"{weights.source}: tensors that this family has no use for",
            expected=f"those of {config.family}",
            got=", ".join(strange[:6]) + (f" and {len(strange) - 6} more" if len(strange) > 6 else ""),
        )
    if missing := [ours for ours in _biases(config) if ours not in found]:
        raise FileError(
            f"{weights.source}: biases are missing",
            expected=", ".join(sources(config, gguf)[ours].names[0] for ours in missing[:6]),
            remedy="download or copy the file again: it may be damaged",
        )
    return Weights(found, weights.metadata, weights.source), theirs


@dataclass(frozen=True, slots=True)
class TextPart:
    """The tensors of the text model of a multimodal file, and what is beside them."""

    weights: Weights
    left_out: tuple[str, ...] = ()


def text_part(weights: Weights, config: Config) -> TextPart:
    """The text model is the module that has the token embeddings; names in it lose the module's. The output matrix may
    stand beside it."""
    table = sources(config, False)
    model, embed = table["embed.weight"].names[0].split(".")[:2]
    head = table["head.weight"].names[0].partition(".")[0]
    modules = set()
    for parts in (name.split(".") for name in weights if f".{embed}." in f".{name}"):
        outer = parts[: parts.index(embed)]
        modules.add(".".join(outer[:-1] if outer[-1:] == [model] else outer))
    if len(modules) != 1:
        raise FileError(
            f"{weights.source}: the text model of a multimodal file",
            expected=f"one module with {embed}",
            got=", ".join(sorted(modules)) or "none",
        )
    prefix = "".join(f"{module}." for module in modules if module)
    ours = {name: name.removeprefix(prefix) for name in weights if name.startswith((prefix, f"{head}."))}
    kept = Weights({short: weights.find(name) for name, short in ours.items()}, weights.metadata, weights.source)
    return TextPart(kept, tuple(name for name in weights if name not in ours))


def stacked_names(config: Config, names: Iterable[str]) -> Iterator[list[str]]:
    """Those of a folder's names that are stacked to one tensor each. Quantised matrices are [out, in], so that a family
    which stores [in, out] is refused."""
    known = dict.fromkeys(names)
    for source in sources(config, False).values():
        found = [name for each in source.names if (name := _present(each, known)) is not None]
        if found and source.how.startswith("transposed"):
            raise UnsupportedError(
                f"{found[0]} is quantised",
                expected=f"weights as numbers in {config.family}",
                remedy="use the model without quantisation, or as a GGUF file",
            )
        if len(found) > 1:
            yield found


def drop_zero_biases(weights: Weights, config: Config) -> Weights:
    """Without biases of zeros that a model has no parameters for: quantisers have added them to every layer."""
    expected = set(_biases(config))
    strange = [name for name in weights if name.endswith(".bias") and name not in expected]
    unused = {name for name in strange if not weights[name].numpy().any()}
    return Weights(
        {name: weights.find(name) for name in weights if name not in unused}, weights.metadata, weights.source
    )


def _biases(config: Config) -> Iterator[str]:
    """The biases that a model has for sure: the decoder takes them as optional."""
    if config.norm == "layer":
        yield "norm.bias"
    for i, layer in enumerate(config.layers):
        if config.norm == "layer" and config.pre_norms:
            yield from (f"layers.{i}.before_attn.bias", f"layers.{i}.before_mlp.bias")
        if config.norm == "layer" and config.post_norms:
            yield from (f"layers.{i}.after_attn.bias", f"layers.{i}.after_mlp.bias")
        yield from (f"layers.{i}.attn.{x}.bias" for x in "qkv" if config.qkv_bias)
        if config.out_bias:
            yield f"layers.{i}.attn.o.bias"
        if config.mlp_bias and layer.experts is None:
            yield from (f"layers.{i}.mlp.{m}.bias" for m in ("gate", "up", "down")[not config.gated :])


def untie(weights: Weights, config: Config) -> Config:
    """A file may say that embeddings are the output matrix and hold another one all the same: then that one counts."""
    table = sources(config, False)
    names = [_present(table[ours].names[0], weights) for ours in ("embed.weight", "head.weight")]
    if not config.tied or None in names:
        return config
    embed, head = (weights.find(name).load() for name in names if name is not None)
    same = embed.shape == head.shape and embed.dtype == head.dtype and embed.tobytes() == head.tobytes()
    return config if same else replace(config, tied=False)


def _present(name: str, weights: Container[str]) -> str | None:
    """The name in a file: checkpoints of a model without its head lack the first part."""
    bare = name.partition(".")[2] if name.startswith(("model.", "transformer.")) else name
    return name if name in weights else bare if bare in weights else None


def _stack(stored: list[Stored], source: Source) -> Stored:
    shape = stored[0].shape
    if any(each.shape != shape for each in stored):
        raise FileError("experts have different shapes", expected=shape, got=source.names[0])
    whole = Shape.of(shape.dtype, (len(stored), *shape.sizes))
    return Stored(whole, lambda: np.stack([each.load() for each in stored]), sources=tuple(stored))


def _transform(stored: Stored, how: str, config: Config) -> Stored:
    """A tensor transposed and split along its first axis, as views."""
    sizes = list(stored.shape.numbers())
    change: Callable[[Array], Array] | None = None
    if how.startswith("transposed"):
        sizes.reverse()
        change = np.transpose
    cut = how.removeprefix("transposed").strip()
    if cut:
        start, stop = _rows(cut, config, sizes[0])
        sizes[0] = stop - start
        change = partial(_cut, start, stop, change)
    if change is None:
        return stored
    final, load = change, stored.load
    return Stored(Shape.of(stored.shape.dtype, tuple(sizes)), lambda: final(load()), sources=(stored,))


def _cut(start: int, stop: int, first: Callable[[Array], Array] | None, array: Array) -> Array:
    return (array if first is None else first(array))[start:stop]


def _rows(part: str, config: Config, size: int) -> tuple[int, int]:
    q, kv = config.heads * config.head_size, config.kv_heads * config.head_size
    starts = {"q": (0, q), "k": (q, q + kv), "v": (q + kv, q + 2 * kv)}
    if part in starts:
        expected = q + 2 * kv
        found = starts[part]
    else:
        expected = 2 * config.f
        found = (0, config.f) if part == "gate" else (config.f, 2 * config.f)
    if size != expected:
        raise FileError(f"a fused projection ({part})", expected=f"{expected} rows", got=size)
    return found
