"""Quantised Hugging Face folders, packed as the formats' definitions say: for the tests of `smelt.llm` and for
`fixtures/make_quantised.py`. Nothing here is smelt's own code, but for the file format."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from smelt.dtype import Array
from smelt.read import safetensors
from tests.llm_checkpoints import weight

FIXTURE = Path(__file__).parent / "fixtures" / "quantised.npz"
KEPT = ("embed_tokens", "lm_head", "mlp.gate.", "block_sparse_moe.gate.")  # layers that stay as they are
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # the column in each place of a word
Tensors = dict[str, Array]


@dataclass(frozen=True)
class Integers:
    """Codes [out, in] of a matrix, scales and zero points [out, group], and the group of each input."""

    codes: Array
    scales: Array
    zeros: Array
    group_of: Array

    def numbers(self, element: Any = np.float32) -> Array:
        """What they stand for, rounded once to an element type."""
        levels = self.codes.astype(np.float64) - self.zeros[:, self.group_of]
        return (levels * self.scales.astype(np.float64)[:, self.group_of]).astype(np.float32).astype(element)


def to_integers(
    x: Array, bits: int, size: int, symmetric: bool, element: Any = np.float16, order: Array | None = None
) -> Integers:
    """Rounded to the nearest, in groups of `size` inputs (-1: all), which are runs, or those of an order of inputs."""
    depth = x.shape[1]
    group_of = np.arange(depth) // (depth if size == -1 else size)
    if order is not None:
        group_of = group_of[order]
    count, most = int(group_of.max()) + 1, (1 << bits) - 1
    low = np.stack([np.minimum(x[:, group_of == g].min(1), 0) for g in range(count)], 1)
    high = np.stack([np.maximum(x[:, group_of == g].max(1), 0) for g in range(count)], 1)
    half = 1 << (bits - 1)
    if symmetric:
        scales = (np.maximum(-low, high) / (half - 1)).astype(element)
        zeros = np.full(scales.shape, half)
    else:
        scales = ((high - low) / most).astype(element)
        zeros = np.clip(np.rint(-low / scales.astype(np.float32)), 0, most).astype(int)
    wide = scales.astype(np.float32)[:, group_of]
    codes = np.clip(np.rint(x / wide) + zeros[:, group_of], 0, most).astype(np.int64)
    return Integers(codes, scales, zeros, group_of.astype(np.int32))


def pack(codes: Array, bits: int, order: tuple[int, ...] | None = None) -> Array:
    """Codes [n, m] in words of 32 bits [n, ceil(m / each)], the first in the lowest bits."""
    each = 32 // bits
    places = order or tuple(range(each))
    wide = np.zeros((len(codes), -(-codes.shape[1] // each), each), np.uint64)
    wide.reshape(len(codes), -1)[:, : codes.shape[1]] = codes
    words = np.zeros(wide.shape[:2], np.uint64)
    for place, column in enumerate(places):
        words |= wide[..., column] << np.uint64(bits * place)
    return words.astype(np.uint32).view(np.int32)


# ---- one function per format: a matrix → the tensors of a layer, and the numbers that they stand for ----


def gptq(
    x: Array, bits: int = 4, size: int = 128, symmetric: bool = True, desc_act: bool = False, v2: bool = False
) -> tuple[Tensors, Array]:
    order = np.random.default_rng(x.shape[1]).permutation(x.shape[1]) if desc_act else None
    made = to_integers(x, bits, size, symmetric, order=order)
    zeros = pack(made.zeros.T, bits).view(np.uint32)
    if not v2:
        zeros = zeros - np.uint32(sum(1 << at for at in range(0, 32, bits)))
    tensors = {
        "qweight": np.ascontiguousarray(pack(made.codes, bits).T),
        "qzeros": zeros.view(np.int32),
        "scales": np.ascontiguousarray(made.scales.T),
        "g_idx": made.group_of,
    }
    dense = np.float16 if desc_act or (bits == 8 and not symmetric) else np.float32
    return tensors, made.numbers(dense)


def awq(x: Array, size: int = 128) -> tuple[Tensors, Array]:
    made = to_integers(x, 4, size, False)
    tensors = {
        "qweight": pack(np.ascontiguousarray(made.codes.T), 4, AWQ_ORDER),
        "qzeros": pack(np.ascontiguousarray(made.zeros.T), 4, AWQ_ORDER),
        "scales": np.ascontiguousarray(made.scales.T),
    }
    return tensors, made.numbers()


def packed(
    x: Array, bits: int = 4, size: int = 128, symmetric: bool = True, element: Any = ml_dtypes.bfloat16
) -> tuple[Tensors, Array]:
    made = to_integers(x, bits, size, symmetric, element)
    tensors = {
        "weight_packed": pack(made.codes, bits),
        "weight_scale": made.scales,
        "weight_shape": np.array(x.shape, np.int64),
    }
    if not symmetric:
        tensors["weight_zero_point"] = np.ascontiguousarray(pack(np.ascontiguousarray(made.zeros.T), bits).T)
    dense = ml_dtypes.bfloat16 if bits == 8 and not symmetric else np.float32
    return tensors, made.numbers(dense)


def bytes8(x: Array, element: Any = np.float32) -> tuple[Tensors, Array]:
    """int8 with a scale per output."""
    made = to_integers(x, 8, -1, True, element)
    dense = ml_dtypes.bfloat16 if element == np.float32 else np.float32
    return {"weight": (made.codes - 128).astype(np.int8), "weight_scale": made.scales}, made.numbers(dense)


def float8(x: Array, tile: tuple[int, int] | None, name: str = "weight_scale_inv") -> tuple[Tensors, Array]:
    """`tile`: outputs and inputs that share a scale; None: all."""
    rows, depth = x.shape
    high, wide = min(tile[0], rows) if tile else rows, min(tile[1], depth) if tile else depth
    scales = np.zeros((-(-rows // high), -(-depth // wide)), np.float32)
    whole = np.zeros(x.shape, np.float32)
    for i in range(scales.shape[0]):
        for j in range(scales.shape[1]):
            part = slice(i * high, (i + 1) * high), slice(j * wide, (j + 1) * wide)
            scales[i, j] = np.abs(x[part]).max() / 448
            whole[part] = scales[i, j]
    codes = (x / whole).astype(ml_dtypes.float8_e4m3fn)
    stored = scales if tile is not None else scales.reshape(()) if name == "weight_scale_inv" else scales.reshape(1)
    return {"weight": codes, name: stored}, (codes.astype(np.float32) * whole).astype(ml_dtypes.bfloat16)


# ---- folders ----


@dataclass(frozen=True)
class Kind:
    """How a folder is quantised: what config.json says, and what makes the tensors of a layer."""

    config: Mapping[str, Any]
    make: Callable[..., tuple[Tensors, Array]]
    options: Mapping[str, Any]
    forms: tuple[str, ...]  # of its matrices in smelt


def _gptq(forms: str, bits: int = 4, size: int = 128, **more: Any) -> Kind:
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "damp_percent": 0.1, "true_sequential": True}
    config |= {"sym": more.get("symmetric", True), "desc_act": more.get("desc_act", False), "lm_head": False}
    config["checkpoint_format"] = "gptq_v2" if more.get("v2") else "gptq"
    return Kind(config, gptq, {"bits": bits, "size": size, **more}, tuple(forms.split()))


def _awq(forms: str, size: int) -> Kind:
    config = {"quant_method": "awq", "bits": 4, "group_size": size, "zero_point": True, "version": "gemm"}
    return Kind(config | {"modules_to_not_convert": ["lm_head", "gate"]}, awq, {"size": size}, tuple(forms.split()))


def _compressed(
    forms: str, format: str, make: Callable[..., Any], scheme: dict[str, Any], inputs: Any = None, **options: Any
) -> Kind:
    weights = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": False, "observer": "minmax", **scheme}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs, "output_activations": None}
    config: dict[str, Any] = {
        "quant_method": "compressed-tensors",
        "format": format,
        "config_groups": {"group_0": group},
    }
    config |= {"ignore": ["lm_head", "re:.*gate$"], "kv_cache_scheme": None, "quantization_status": "compressed"}
    return Kind(config, make, options, tuple(forms.split()))


DYNAMIC = {"num_bits": 8, "type": "int", "symmetric": True, "dynamic": True, "strategy": "token"}


def _fp8(tile: tuple[int, int] | None) -> Kind:
    block = None if tile is None else list(tile)
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": block}
    return Kind(config | {"modules_to_not_convert": ["lm_head"]}, float8, {"tile": tile}, ("bf16",))


GROUP = {"num_bits": 4, "strategy": "group"}
KINDS = {
    "gptq": _gptq("q4_0"),
    "gptq-all": _gptq("q4_0", size=-1),
    "gptq-asymmetric": _gptq("u4_128", symmetric=False),
    "gptq-asymmetric-32": _gptq("q5_0", size=32, symmetric=False),
    "gptq-v2": _gptq("u4_128", symmetric=False, v2=True),
    "gptq-ordered": _gptq("f16", size=32, symmetric=False, desc_act=True),
    "gptq-8": _gptq("q8_0", bits=8, size=64),
    "gptq-8-asymmetric": _gptq("f16", bits=8, size=64, symmetric=False),
    "awq": _awq("u4_128", 128),
    "awq-64": _awq("q5_0", 64),
    "packed": _compressed("q4_0", "pack-quantized", packed, {**GROUP, "group_size": 32}, size=32),
    "packed-asymmetric": _compressed(
        "u4_128", "pack-quantized", packed, {**GROUP, "group_size": 128, "symmetric": False}, symmetric=False
    ),
    "packed-8": _compressed("q8_0", "pack-quantized", packed, {"strategy": "channel"}, bits=8, size=-1),
    "int8": _compressed("bf16", "int-quantized", bytes8, {"strategy": "channel"}, DYNAMIC),
    "int8-bf16": _compressed(
        "q8_0", "int-quantized", bytes8, {"strategy": "channel"}, DYNAMIC, element=ml_dtypes.bfloat16
    ),
    "float8": _compressed(
        "bf16",
        "float-quantized",
        float8,
        {"type": "float", "strategy": "tensor"},
        {**DYNAMIC, "type": "float"},
        tile=None,
        name="weight_scale",
    ),
    "float8-tiles": _compressed(
        "bf16",
        "float-quantized",
        float8,
        {"type": "float", "strategy": "block", "block_structure": [64, 128]},
        {**DYNAMIC, "type": "float"},
        tile=(64, 128),
        name="weight_scale",
    ),
    "float8-outputs": _compressed(
        "bf16",
        "naive-quantized",
        float8,
        {"type": "float", "strategy": "channel"},
        {**DYNAMIC, "type": "float"},
        tile=(1, 1 << 20),
        name="weight_scale",
    ),
    "fp8": _fp8((128, 128)),
    "fp8-all": _fp8(None),
}
# name of a case → (kind, transformers' configuration, fields). Sizes are such that some rows are no whole tile.
CASES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gptq": ("gptq", "LlamaConfig", {}),
    "gptq-all": ("gptq-all", "MistralConfig", {"sliding_window": None}),
    "gptq-asymmetric": ("gptq-asymmetric", "Qwen2Config", {}),
    "gptq-asymmetric-32": ("gptq-asymmetric-32", "Phi3Config", {}),
    "gptq-v2": ("gptq-v2", "Qwen3Config", {"head_dim": 32}),
    "gptq-ordered": ("gptq-ordered", "LlamaConfig", {}),
    "gptq-ordered-fused": ("gptq-ordered", "Phi3Config", {}),
    "gptq-ordered-experts": ("gptq-ordered", "MixtralConfig", {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "gptq-8": ("gptq-8", "LlamaConfig", {}),
    "gptq-8-asymmetric": ("gptq-8-asymmetric", "LlamaConfig", {}),
    "awq": ("awq", "LlamaConfig", {"tie_word_embeddings": True}),
    "awq-experts": ("awq-64", "MixtralConfig", {"num_local_experts": 3, "num_experts_per_tok": 2}),
    "packed": ("packed", "LlamaConfig", {}),
    "packed-asymmetric": ("packed-asymmetric", "Qwen3Config", {"head_dim": 32}),
    "packed-8": ("packed-8", "LlamaConfig", {}),
    "int8": ("int8", "LlamaConfig", {}),
    "int8-bf16": ("int8-bf16", "LlamaConfig", {}),
    "float8": ("float8", "LlamaConfig", {}),
    "float8-tiles": ("float8-tiles", "LlamaConfig", {}),
    "float8-outputs": ("float8-outputs", "LlamaConfig", {}),
    "fp8": ("fp8", "Qwen3Config", {"head_dim": 32, "intermediate_size": 160}),
    "fp8-experts": (
        "fp8",
        "Qwen3MoeConfig",
        {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "head_dim": 32},
    ),
    "fp8-all": ("fp8-all", "LlamaConfig", {}),
}


def quantise(kind: Kind, shapes: Mapping[str, tuple[int, ...]]) -> tuple[Tensors, Tensors]:
    """The tensors of a quantised folder, and those of one without quantisation that means the same."""
    quantised: Tensors = {}
    dense: Tensors = {}
    for name, sizes in shapes.items():
        x = weight(name, sizes)
        if len(sizes) != 2 or any(part in name for part in KEPT):
            quantised[name] = dense[name] = x
            continue
        tensors, numbers = kind.make(x, **kind.options)
        layer = name.removesuffix(".weight")
        quantised |= {f"{layer}.{part}": array for part, array in tensors.items()}
        dense[name] = numbers.astype(np.float32)
    return quantised, dense


def write_folder(folder: Path, config: Mapping[str, Any], tensors: Tensors) -> None:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(dict(config)))
    safetensors.write(folder / "model.safetensors", tensors, {"format": "pt"})


def write_quantised(folder: Path, name: str, config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Kind:
    """The folder of a case."""
    kind = KINDS[CASES[name][0]]
    write_folder(folder, {**config, "quantization_config": dict(kind.config)}, quantise(kind, shapes)[0])
    return kind
