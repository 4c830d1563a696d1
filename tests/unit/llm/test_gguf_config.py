"""The metadata of GGUF files as configurations: names, llama.cpp's defaults, frequencies' factors, what is refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.errors import ParseError, SmeltError, UnsupportedError
from smelt.llm.config import Config, Experts
from smelt.llm.gguf_config import config_of

SIZES = {
    "context_length": 128, "embedding_length": 64, "block_count": 6, "feed_forward_length": 96,
    "attention.head_count": 8, "attention.head_count_kv": 4, "attention.layer_norm_rms_epsilon": 1e-5,
}  # fmt: skip
TOKENS = {"tokenizer.ggml.tokens": ["a"] * 9}
GPT2: dict[str, Any] = {
    "attention.head_count_kv": 8, "attention.layer_norm_rms_epsilon": None, "attention.layer_norm_epsilon": 1e-4,
}  # fmt: skip


def read(
    name: str = "llama",
    tensors: tuple[str, ...] = (),
    dense: dict[str, Any] | None = None,
    context: int | None = None,
    general: dict[str, Any] | None = None,
    **more: Any,
) -> Config:
    said = {**SIZES, **{key.replace("__", "."): value for key, value in more.items()}}
    metadata = {"general.architecture": name, **TOKENS, **(general or {})}
    metadata |= {f"{name}.{key}": value for key, value in said.items() if value is not None}
    arrays = {key: SimpleNamespace(numpy=lambda value=value: value) for key, value in (dense or {}).items()}
    file: Any = SimpleNamespace(path="m.gguf", metadata=metadata, packed=dict.fromkeys(tensors), dense=arrays)
    return config_of(file, context)


def theta(config: Config, layer: int = 0) -> float:
    rope = config.layers[layer].rope
    assert rope is not None
    return float(rope.frequencies[1] ** (-rope.part / 2))


def test_names_and_sizes() -> None:
    found = read()
    assert (found.family, found.d, found.f, found.heads, found.kv_heads, found.head_size) == ("llama", 64, 96, 8, 4, 8)
    assert (found.v, found.context, found.epsilon, found.activation) == (9, 128, 1e-5, "silu")
    assert (len(found.layers), found.tied, found.stop, found.bos, found.norm_offset) == (6, True, (), None, 0.0)
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == (False, False, False)
    assert theta(found) == pytest.approx(10_000)
    assert all(layer.window is None and layer.rope is not None and layer.rope.interleaved for layer in found.layers)
    other = read(vocab_size=7, attention__head_count_kv=None, rope__freq_base=5e5, tensors=("output.weight",))
    assert (other.v, other.kv_heads, other.tied) == (7, 8, False)
    assert theta(other) == pytest.approx(5e5)
    assert read(attention__key_length=16, attention__value_length=16).head_size == 16
    assert read(attention__head_count=[8] * 6, attention__head_count_kv=np.array([4] * 6)).kv_heads == 4
    assert read(tokenizer=None, general={"tokenizer.ggml.tokens": ["a"] * 5}).v == 5


def test_tokens_that_begin_and_end() -> None:
    ids = {f"tokenizer.ggml.{key}_token_id": i for i, key in enumerate(("bos", "eos", "eot", "eom"), 1)}
    found = read(general=ids)
    assert (found.bos, found.stop) == (1, (2, 3, 4))
    assert read(general={**ids, "tokenizer.ggml.eot_token_id": "x"}).stop == (2, 4)


def test_biases_are_those_of_the_file() -> None:
    found = read(tensors=("blk.0.attn_q.bias",))
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == (True, False, False)
    found = read(tensors=("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"))
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == (True, True, True)


def test_families() -> None:
    qwen = read("qwen2")
    assert (qwen.family, qwen.qkv_bias, [layer.rope.interleaved for layer in qwen.layers if layer.rope]) == (
        "qwen2", True, [False] * 6,
    )  # fmt: skip
    mixed = read(expert_count=4, expert_used_count=2)
    assert mixed.family == "mixtral"
    assert all(layer.experts and (layer.experts.count, layer.experts.used) == (4, 2) for layer in mixed.layers)
    assert all(layer.rope and layer.rope.interleaved for layer in mixed.layers)
    many = read("qwen3moe", expert_count=4, expert_used_count=2, expert_feed_forward_length=24)
    assert {each.experts for each in many.layers} == {Experts(4, 2, 24, True)}
    gpt = read("gpt2", **{key.replace(".", "__"): value for key, value in GPT2.items()})
    assert (gpt.family, gpt.positions, gpt.epsilon, gpt.f, gpt.activation) == (
        "gpt2",
        True,
        1e-4,
        96,
        "gelu_pytorch_tanh",
    )
    gemma = read("gemma2", attention__sliding_window=32, final_logit_softcapping=30.0, attn_logit_softcapping=50.0)
    assert [layer.window for layer in gemma.layers] == [32, None] * 3
    assert (gemma.softcap, gemma.final_softcap, gemma.norm_offset, gemma.activation) == (50, 30, 0, "gelu_pytorch_tanh")
    assert gemma.scale == pytest.approx(8**-0.5)
    deep: dict[str, Any] = dict.fromkeys(("attention__key_length", "attention__value_length"), 16)
    wide = read("gemma2", attention__sliding_window=32, **deep)
    assert wide.scale == pytest.approx(16**-0.5)
    largest = read("gemma2", block_count=46, attention__sliding_window=32, **deep)
    assert largest.scale == pytest.approx((64 // 8) ** -0.5)


def test_starcoder2_and_olmo2() -> None:
    layer: dict[str, Any] = {"attention__layer_norm_rms_epsilon": None, "attention__layer_norm_epsilon": 1e-4}
    code = read("starcoder2", tensors=("blk.0.attn_q.bias", "blk.0.attn_output.bias", "blk.0.ffn_up.bias"), **layer)
    assert (code.norm, code.gated, code.epsilon, code.activation) == ("layer", False, 1e-4, "gelu_pytorch_tanh")
    assert (code.qkv_bias, code.out_bias, code.mlp_bias, code.f) == (True, True, True, 96)
    assert {each.window for each in code.layers} == {None}
    assert {each.window for each in read("starcoder2", attention__sliding_window=9, **layer).layers} == {9}
    olmo = read("olmo2")
    assert (olmo.pre_norms, olmo.post_norms, olmo.qk_norm, olmo.qk_norm_per_head) == (False, True, True, False)
    assert not any(each.rope.interleaved for each in (*code.layers, *olmo.layers) if each.rope)


def test_windows() -> None:
    sixth = read("gemma3", attention__sliding_window=32, block_count=8)
    assert [layer.window for layer in sixth.layers] == [32] * 5 + [None] + [32] * 2
    third = read("gemma3", attention__sliding_window=32, attention__sliding_window_pattern=3)
    assert [layer.window for layer in third.layers] == [32, 32, None] * 2
    said = read("gemma3", attention__sliding_window=32, attention__sliding_window_pattern=[True, False] * 3)
    assert [layer.window for layer in said.layers] == [32, None] * 3
    assert [layer.window for layer in read("gemma2", attention__sliding_window=32,
                                           attention__sliding_window_pattern=2).layers] == [32, None] * 3  # fmt: skip


def test_rotary_positions_of_a_part_and_scaled() -> None:
    part = read("phi3", rope__dimension_count=4)
    assert {layer.rope.part for layer in part.layers if layer.rope} == {4}
    plain = read().layers[0].rope
    assert plain is not None
    scaled: list[dict[str, Any]] = [
        {"rope__scaling__type": "linear", "rope__scaling__factor": 4.0},
        {"rope__scaling__type": "linear", "rope__scale_linear": 4.0},
    ]
    for more in scaled:
        rope = read(**more).layers[0].rope
        assert rope is not None
        np.testing.assert_allclose(np.array(rope.frequencies) * 4, plain.frequencies)
    unscaled: list[dict[str, Any]] = [
        {"rope__scaling__factor": 4.0}, {"rope__scaling__type": "linear"},
        {"rope__scaling__type": "none", "rope__scaling__factor": 4.0},
    ]  # fmt: skip
    for more in unscaled:
        assert read(**more).layers[0].rope == plain
    yarn: dict[str, Any] = {
        "rope__scaling__type": "yarn", "rope__scaling__factor": 4.0, "rope__scaling__attn_factor": 1.5,
        "rope__scaling__original_context_length": 32,
    }  # fmt: skip
    rope = read(**yarn).layers[0].rope
    assert rope is not None
    assert rope.scale == pytest.approx(1.5)


def test_factors_of_frequencies() -> None:
    plain = read().layers[0].rope
    assert plain is not None
    factors = np.array([1, 2, 4, 8], np.float32)
    rope = read(dense={"rope_freqs.weight": factors}).layers[0].rope
    assert rope is not None
    np.testing.assert_allclose(np.array(rope.frequencies) * factors, plain.frequencies)
    assert (rope.scale, rope.most, rope.long, rope.interleaved) == (1.0, None, None, True)
    both = {"rope_factors_short.weight": factors, "rope_factors_long.weight": 2 * factors}
    more: dict[str, Any] = {"rope__scaling__original_context_length": 32, "rope__scaling__attn_factor": 1.25}
    for context, is_long in ((None, True), (33, True), (32, False), (16, False)):
        rope = read("phi3", dense=both, context=context, **more).layers[0].rope
        assert rope is not None
        np.testing.assert_allclose(np.array(rope.frequencies) * factors, plain.frequencies)
        assert (rope.scale, rope.most, rope.long is not None) == (1.25, 32, is_long)
        if rope.long is not None:
            np.testing.assert_allclose(np.array(rope.long) * 2 * factors, plain.frequencies)


SHORT = {"rope_factors_short.weight": np.ones(4, np.float32)}
BOTH = {**SHORT, "rope_factors_long.weight": np.ones(4, np.float32)}
REFUSED: list[tuple[type[SmeltError], str, dict[str, Any]]] = [
    (UnsupportedError, "no architecture of language models that is known", {"name": "bert"}),
    (UnsupportedError, "no architecture of language models that is known", {"general": {"general.architecture": 7}}),
    (UnsupportedError, "layers differ in attention.head_count_kv", {"attention__head_count_kv": [4, 4, 4, 4, 4, 2]}),
    (UnsupportedError, "layers differ in attention.head_count_kv", {"attention__head_count_kv": []}),
    (UnsupportedError, "attention.sliding_window_pattern", {"name": "gemma2", "attention__sliding_window_pattern": 3}),
    (UnsupportedError, "keys and values of different depth", {"attention__value_length": 16}),
    (UnsupportedError, "gguf rope.other", {"rope__other": 3}),
    (ParseError, "factors of rotary positions", {"dense": SHORT}),
    (ParseError, "rope.scaling.attn_factor", {"dense": BOTH, "rope__scaling__attn_factor": 0}),
    (ParseError, "rope.scaling.attn_factor", {"dense": BOTH, "rope__scaling__attn_factor": 1e30}),
    (ParseError, "rope.scaling.attn_factor", {"dense": BOTH, "rope__scaling__attn_factor": "2"}),
    (ParseError, "rope_freqs.weight does not fit", {"dense": {"rope_freqs.weight": np.ones(5, np.float32)}}),
    (ParseError, "rope_freqs.weight does not fit", {"dense": {"rope_freqs.weight": np.zeros(4, np.float32)}}),
]  # fmt: skip


@pytest.mark.parametrize(("error", "message", "more"), REFUSED)
def test_refused(error: type[SmeltError], message: str, more: dict[str, Any]) -> None:
    with pytest.raises(error) as caught:
        read(**more)
    assert message in str(caught.value)
    assert "m.gguf" in str(caught.value)
