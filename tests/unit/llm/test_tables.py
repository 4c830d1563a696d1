"""Constants and arithmetic of language models: defaults of families, windows, rotary positions, memory, batches, texts.

The defaults are those of transformers' configuration classes, the frequencies those of its `ROPE_INIT_FUNCTIONS`.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.errors import MemoryLimitError, RunError, UnsupportedError
from smelt.llm import memory
from smelt.llm.cache import cache_bytes, pool_sizes
from smelt.llm.config import MAX_LAYERS, MAX_SIZE, Config, Experts, Fields, Layer, Rope
from smelt.llm.decode import _pages, _slots
from smelt.llm.families import BY_ARCHITECTURE, BY_GGUF, FAMILIES, MULTIMODAL, family_of, read_config, token_ids
from smelt.llm.gguf_export import CLOSE, _equal
from smelt.llm.options import MAX_ALTERNATIVES, Options
from smelt.llm.pages import pages_in_window
from smelt.llm.report import _traits
from smelt.llm.rope import scaled_rope
from smelt.llm.step import Step
from smelt.llm.text_encoder import TOKENS, batches_by_length

SMALL = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 12, "vocab_size": 99}
GPT2 = {"n_embd": 64, "n_head": 8, "n_layer": 12, "vocab_size": 99}

# family: KV heads, head size, context, epsilon, activation, tied, theta of full and of sliding layers
DEFAULTS: dict[str, tuple[Any, ...]] = {
    "llama": (8, 8, 2048, 1e-6, "silu", False, 1e4, None),
    "mistral": (8, 8, 131072, 1e-6, "silu", False, None, 1e4),
    "qwen2": (32, 8, 32768, 1e-6, "silu", False, 1e4, None),
    "qwen3": (32, 128, 32768, 1e-6, "silu", False, 1e4, None),
    "gemma2": (4, 256, 8192, 1e-6, "gelu_pytorch_tanh", True, 1e4, 1e4),
    "gemma3": (4, 256, 131072, 1e-6, "gelu_pytorch_tanh", True, 1e6, 1e4),
    "phi3": (8, 8, 4096, 1e-5, "silu", False, 1e4, None),
    "smollm3": (4, 8, 32768, 1e-6, "silu", True, 2e6, None),
    "gpt2": (8, 8, 1024, 1e-5, "gelu_new", True, None, None),
    "mixtral": (8, 8, 131072, 1e-5, "silu", False, 1e6, None),
    "qwen3moe": (4, 8, 32768, 1e-6, "silu", False, 1e4, None),
    "starcoder2": (2, 8, 4096, 1e-5, "gelu_pytorch_tanh", True, 1e4, None),
    "olmo2": (8, 8, 2048, 1e-5, "silu", False, 1e4, None),
}
# family: norms, gate, norms after, norms of Q and K, biases (Q K V, output, MLP), embedding, caps, scale of the scores
PARTS: dict[str, tuple[Any, ...]] = {
    "llama": ("rms", 0, True, False, False, (False, False, False), 1, (0, 0), 8),
    "mistral": ("rms", 0, True, False, False, (False, False, False), 1, (0, 0), 8),
    "qwen2": ("rms", 0, True, False, False, (True, False, False), 1, (0, 0), 8),
    "qwen3": ("rms", 0, True, False, True, (False, False, False), 1, (0, 0), 128),
    "gemma2": ("rms", 1, True, True, False, (False, False, False), 8, (50, 30), 256),
    "gemma3": ("rms", 1, True, True, True, (False, False, False), 8, (0, 0), 256),
    "phi3": ("rms", 0, True, False, False, (False, False, False), 1, (0, 0), 8),
    "smollm3": ("rms", 0, True, False, False, (False, False, False), 1, (0, 0), 8),
    "gpt2": ("layer", 0, False, False, False, (True, True, True), 1, (0, 0), 8),
    "mixtral": ("rms", 0, True, False, False, (False, False, False), 1, (0, 0), 8),
    "qwen3moe": ("rms", 0, True, False, True, (False, False, False), 1, (0, 0), 8),
    "starcoder2": ("layer", 0, False, False, False, (True, True, True), 1, (0, 0), 8),
    "olmo2": ("rms", 0, True, True, True, (False, False, False), 1, (0, 0), 8),
}


def config_of(family: str, **more: Any) -> Config:
    small = dict(GPT2 if family == "gpt2" else SMALL)
    if DEFAULTS[family][0] == 32:
        small["num_attention_heads"] = 32
        small["hidden_size"] = 256
    if family == "mixtral":
        small["intermediate_size"] = 96
    return read_config({"architectures": [FAMILIES[family].architectures[0]], **small, **more}, "config.json")


def theta(rope: Rope) -> float:
    """The base of plain frequencies: the second one is base ** (-2 / part)."""
    return float(rope.frequencies[1] ** (-rope.part / 2))


@pytest.mark.parametrize("family", DEFAULTS)
def test_a_short_configuration_has_the_defaults_of_transformers(family: str) -> None:
    found = config_of(family)
    heads, size, context, epsilon, activation, tied, full, sliding = DEFAULTS[family]
    assert (found.kv_heads, found.head_size, found.context, found.epsilon) == (heads, size, context, epsilon)
    assert (found.activation, found.tied, found.f) == (activation, tied, 96 if family == "mixtral" else 4 * found.d)
    norm, offset, gated, after, queries, biases, embed, caps, scale = PARTS[family]
    assert (found.norm, found.norm_offset, found.gated, found.post_norms, found.qk_norm) == (
        norm, offset, gated, after, queries,
    )  # fmt: skip
    assert (found.qkv_bias, found.out_bias, found.mlp_bias) == biases
    assert (found.embed_scale, found.softcap, found.final_softcap, found.scale) == (embed, *caps, scale**-0.5)
    assert found.positions == (family == "gpt2")
    assert (found.pre_norms, found.qk_norm_per_head) == ((False, False) if family == "olmo2" else (True, True))
    bases = {
        wide: {theta(layer.rope) for layer in found.layers if (layer.window is None) == wide and layer.rope is not None}
        for wide in (True, False)
    }
    assert [sorted(bases[wide]) for wide in (True, False)] == [
        [] if base is None else [pytest.approx(base)] for base in (full, sliding)
    ]
    assert all(layer.rope is None or layer.rope.part == size for layer in found.layers)


FULL, SLIDING = "full_attention", "sliding_attention"
W = 4096
# family, more fields, the windows of 12 layers
WINDOWS: list[tuple[str, dict[str, Any], list[int | None]]] = [
    ("mistral", {}, [W] * 12),
    ("mistral", {"sliding_window": 7}, [7] * 12),
    ("mixtral", {}, [None] * 12),
    ("mixtral", {"sliding_window": 7}, [7] * 12),
    ("phi3", {"sliding_window": 9}, [9] * 12),
    ("qwen2", {}, [None] * 12),
    ("qwen2", {"use_sliding_window": True, "max_window_layers": 10}, [None] * 10 + [W] * 2),
    ("qwen2", {"use_sliding_window": True}, [None] * 12),  # max_window_layers is 28
    ("qwen3", {"use_sliding_window": True, "max_window_layers": 0}, [W] * 12),
    ("qwen3", {"use_sliding_window": True, "layer_types": [FULL, SLIDING] * 6}, [None, W] * 6),
    ("qwen3moe", {"use_sliding_window": True}, [W] * 12),
    ("starcoder2", {"sliding_window": 9}, [9] * 12),
    ("gemma2", {}, [W, None] * 6),
    ("gemma3", {}, [W] * 5 + [None] + [W] * 5 + [None]),
    ("gemma3", {"sliding_window_pattern": 4, "sliding_window": 5}, ([5] * 3 + [None]) * 3),
    ("smollm3", {}, [None] * 12),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 5}, ([None] * 3 + [5]) * 3),
    ("smollm3", {"use_sliding_window": True, "sliding_window": 5, "no_rope_layer_interval": 3}, ([None] * 2 + [5]) * 4),
]  # fmt: skip


@pytest.mark.parametrize(("family", "more", "wanted"), WINDOWS)
def test_windows_of_layers(family: str, more: dict[str, Any], wanted: list[int | None]) -> None:
    assert [layer.window for layer in config_of(family, **more).layers] == wanted


def test_layers_without_rotary_positions() -> None:
    assert [layer.rope is not None for layer in config_of("smollm3").layers] == [True, True, True, False] * 3
    said = [0, 1] * 6
    assert [layer.rope is not None for layer in config_of("smollm3", no_rope_layers=said).layers] == [False, True] * 6
    assert all(layer.rope is None for layer in config_of("gpt2").layers)


def test_experts() -> None:
    assert {layer.experts for layer in config_of("mixtral").layers} == {Experts(8, 2, 96, True)}
    assert {layer.experts for layer in config_of("qwen3moe").layers} == {Experts(128, 8, 768, False)}
    some = config_of("qwen3moe", decoder_sparse_step=3, mlp_only_layers=[2], num_experts=9, norm_topk_prob=True)
    assert [i for i, layer in enumerate(some.layers) if layer.experts] == [5, 8, 11]
    assert some.layers[5].experts == Experts(9, 8, 768, True)
    assert not any(layer.experts for layer in config_of("qwen3moe", num_experts=0).layers)


# family, fields, what the error says
REFUSED: list[tuple[str, dict[str, Any], str, str]] = [
    ("mixtral", {"num_local_experts": 1}, "num_experts_per_tok", "at most 1"),
    ("mixtral", {"router_jitter_noise": 0.1}, "router_jitter_noise", "0 or 0.0"),
    ("qwen3moe", {"num_experts": -1}, "num_experts", "a whole number"),
    ("qwen3moe", {"num_experts": (1 << 16) + 1}, "num_experts", "a whole number"),
    ("qwen3moe", {"num_experts": True}, "num_experts", "a whole number"),
    ("qwen3moe", {"mlp_only_layers": 3}, "mlp_only_layers", "a list of numbers"),
    ("smollm3", {"no_rope_layers": [1] * 11}, "no_rope_layers", "a list of 12 zeros and ones"),
    ("smollm3", {"no_rope_layers": [2] * 12}, "no_rope_layers", "a list of 12 zeros and ones"),
    ("smollm3", {"no_rope_layers": 4}, "no_rope_layers", "a list of 12 zeros and ones"),
    ("llama", {"sliding_window": 5}, "sliding_window", "none in this family"),
    ("llama", {"num_key_value_heads": 3}, "num_key_value_heads, num_hidden_layers", "a divisor of the heads"),
    ("llama", {"num_hidden_layers": MAX_LAYERS + 1}, "num_key_value_heads, num_hidden_layers", "a divisor"),
    ("llama", {"rope_parameters": {FULL: {}}}, "rope_parameters", "one record for all layers"),
    ("gemma3", {"rope_parameters": {"other": {}}}, "rope_parameters", f"those of {FULL} and {SLIDING}"),
    ("gemma3", {"rope_parameters": {FULL: 3}}, "rope_parameters", "records"),
    ("gemma3", {"rope_parameters": {SLIDING: 3}}, "rope_parameters", "a record"),
    ("llama", {"rope_theta": 1}, "rope_theta, partial_rotary_factor", "a number above 1 and one up to 1"),
    ("llama", {"rope_parameters": {"rope_theta": 1e30}}, "rope_theta, partial_rotary_factor", "a number above 1"),
    ("phi3", {"partial_rotary_factor": 1.5}, "rope_theta, partial_rotary_factor", "one up to 1"),
    ("phi3", {"partial_rotary_factor": 0.4}, "partial_rotary_factor", "an even number of rotated elements"),
    ("starcoder2", {"norm_type": "rms_norm"}, "norm_type", "'layer_norm'"),
    ("starcoder2", {"mlp_type": "gated"}, "mlp_type", "'default'"),
    ("olmo2", {"sliding_window": 5}, "sliding_window", "none in this family"),
    ("mistral", {"layer_types": [FULL] * 12}, "layer_types", "layers that are all alike"),
    ("mistral", {"sliding_window": 0}, "sliding_window", "a whole number"),
    ("gemma2", {"layer_types": [FULL] * 11}, "layer_types", f"12 of {FULL}, {SLIDING}"),
    ("gemma2", {"layer_types": ["other"] * 12}, "layer_types", f"12 of {FULL}, {SLIDING}"),
    ("gemma2", {"layer_types": "all"}, "layer_types", f"12 of {FULL}, {SLIDING}"),
    ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention", "False"),
    ("llama", {"hidden_size": 0}, "hidden_size", f"a whole number from 1 to {MAX_SIZE}"),
    ("llama", {"vocab_size": MAX_SIZE + 1}, "vocab_size", f"a whole number from 1 to {MAX_SIZE}"),
    ("llama", {"vocab_size": 9.0}, "vocab_size", "a whole number"),
    ("llama", {"rms_norm_eps": 0}, "rms_norm_eps", "a positive number"),
    ("llama", {"rms_norm_eps": "x"}, "rms_norm_eps", "a number"),
    ("llama", {"rms_norm_eps": 1e30}, "rms_norm_eps", "a number"),
    ("llama", {"rope_scaling": 3}, "rope_scaling", "a record"),
    ("llama", {"tie_word_embeddings": 1}, "tie_word_embeddings", "true or false"),
    ("llama", {"hidden_act": 3}, "hidden_act", "a text"),
]


@pytest.mark.parametrize(("family", "fields", "name", "expected"), REFUSED)
def test_fields_that_are_refused(family: str, fields: dict[str, Any], name: str, expected: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        config_of(family, **fields)
    assert caught.value.message == f"config.json: {name}" or caught.value.message == f"config.json: rope: {name}"
    assert expected in str(caught.value.expected)


def test_unknown_fields_and_families() -> None:
    with pytest.raises(UnsupportedError, match="fields that may change") as caught:
        config_of("llama", **{f"strange_{i}": i + 1 for i in range(9)}, empty=[], no=False, none=None)
    assert caught.value.got == ", ".join(f"strange_{i}={i + 1}" for i in range(8))
    with pytest.raises(UnsupportedError, match="fields that gpt2 does not have") as caught:
        config_of("gpt2", intermediate_size=3)
    assert caught.value.got == ["intermediate_size"]
    with pytest.raises(UnsupportedError, match="fields that starcoder2 does not have") as caught:
        config_of("starcoder2", rms_norm_eps=0.1)
    assert caught.value.expected == "norm_epsilon"
    for said, got in (({"architectures": ["A", "B", 3]}, "A, B"), ({"model_type": "x"}, "model_type x")):
        with pytest.raises(UnsupportedError, match="no family of language models") as caught:
            family_of(said, "config.json")
        assert caught.value.got == got
        assert str(caught.value.expected).split(", ") == [*BY_ARCHITECTURE, *MULTIMODAL]
    assert family_of({"architectures": ["A", "PhiForCausalLM", "Phi3ForCausalLM"]}, "").name == "phi3"
    assert {row.name for row in BY_GGUF.values()} == set(FAMILIES) - {"mistral", "mixtral"}


@pytest.mark.parametrize(
    ("field", "neutral", "other"),
    [
        ("use_bidirectional_attention", False, True),
        ("rope_interleaved", False, True),
        ("full_attn_mod", 1, 2),
        ("interpolate_factor", 1, 2),
        ("scale_attn_weights", True, False),
        ("scale_attn_by_inverse_layer_idx", False, True),
        ("add_cross_attention", False, True),
    ],
)
def test_fields_with_one_value_that_changes_nothing(field: str, neutral: Any, other: Any) -> None:
    assert config_of("llama", **{field: neutral}) == config_of("llama")
    with pytest.raises(UnsupportedError) as caught:
        config_of("llama", **{field: other})
    assert (caught.value.message, caught.value.expected) == (f"config.json: {field}", repr(neutral))


def test_fields_that_say_nothing_in_a_family() -> None:
    assert config_of("gemma3", attn_logit_softcapping=50.0) == config_of("gemma3")
    assert config_of("gemma2", hidden_act="silu") == config_of("gemma2")
    assert config_of("gemma2", attn_logit_softcapping=7.0).softcap == 7.0
    assert config_of("gemma3", final_logit_softcapping=7.0).final_softcap == 7.0
    for field in ("attn_logit_softcapping", "final_logit_softcapping"):
        with pytest.raises(UnsupportedError, match="fields that may change") as caught:
            config_of("llama", **{field: 7.0})
        assert caught.value.got == f"{field}=7.0"


@pytest.mark.parametrize("architecture", MULTIMODAL)
def test_multimodal_architectures_are_read_as_their_text_models(architecture: str) -> None:
    text = {**SMALL, "model_type": "qwen3_moe", "eos_token_id": 3, "tie_word_embeddings": False}
    said = {"architectures": [architecture], "model_type": "x", "text_config": text, "vision_config": {"depth": 3}}
    more = {"eos_token_id": [5, 6], "tie_word_embeddings": True}
    alone = config_of("qwen3moe", eos_token_id=3, tie_word_embeddings=False)
    assert read_config(said, "config.json") == alone
    assert read_config({**said, **more}, "config.json") == replace(alone, stop=(5, 6), tied=True)
    for change, name in (
        ({"text_config": {**text, "model_type": "mamba"}}, "model_type of text_config"),
        ({"text_config": {**text, "logit_scale": 2.0}}, "fields that may change"),
        ({"text_config": None}, "model_type of text_config"),
        ({"text_config": 3}, "text_config"),
        ({"cross_attention_layers": [3]}, "fields that may change"),
    ):
        with pytest.raises(UnsupportedError, match=name):
            read_config({**said, **change}, "config.json")


def test_tokens_that_end_a_text() -> None:
    assert token_ids(3) == (3,)
    assert token_ids([3, None, 5, True]) == (3, 5)
    assert token_ids(None) == ()
    found = config_of("llama", eos_token_id=[7, 8], bos_token_id=[5, 6])
    assert (found.stop, found.bos) == ((7, 8), 5)
    assert config_of("llama").bos is None


def test_fields_by_kind() -> None:
    fields = Fields({"a": 3, "b": None, "c": 1.5, "d": "", "e": {}, "f": MAX_SIZE}, "x", frozenset({"c"}))
    assert ("a" in fields, "b" in fields, "z" in fields) == (True, False, False)
    assert (fields.any("b", 4), fields.size("f"), fields.maybe("c"), fields.maybe("b")) == (4, MAX_SIZE, 1.5, None)
    assert list(fields.unread_fields()) == ["a"]
    assert (fields.number("a"), fields.positive("c")) == (3.0, 1.5)
    fields.check_unread()
    for kind, said in ((fields.size, "nothing"), (fields.number, "nothing"), (fields.text, "nothing")):
        with pytest.raises(UnsupportedError) as caught:
            kind("b")
        assert caught.value.got == said


# ---- rotary positions ----

# parameters, elements of a head, context that is wanted, trained context: frequencies, scale, longest
ROPES: list[tuple[dict[str, Any], int, int | None, list[float], float, int | None]] = [
    ({"rope_type": "linear", "factor": 4.0}, 8, None, [0.25, 0.025, 0.0025, 0.00025], 1.0, None),
    ({"type": "dynamic", "factor": 4.0}, 8, 512, [1.0, 0.1, 0.01, 0.001], 1.0, None),
    (
        {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        8, None, [1.0, 0.01304226, 0.00125, 0.000125], 1.0, None,
    ),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        16, None,
        [1.0, 0.2371708, 0.05, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05], 1.138629436111989, None,
    ),
    (
        {"rope_type": "yarn", "original_max_position_embeddings": 128},  # the factor follows from the lengths
        16, None,
        [1.0, 0.2371708, 0.05, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05], 1.138629436111989, None,
    ),
    (
        {
            "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0,
            "beta_slow": 2.0, "mscale": 0.7, "mscale_all_dim": 0.5, "truncate": False,
        },
        16, None,
        [1.0, 0.2124687, 0.0256644, 0.007905695, 0.0025, 0.0007905695, 0.00025, 7.905695e-05], 1.0259286501478284, None,
    ),
    (
        {"rope_type": "yarn", "factor": 1.0, "original_max_position_embeddings": 512, "attention_factor": 0.7},
        8, None, [1.0, 0.1, 0.01, 0.001], 0.7, None,
    ),
    (
        {
            "rope_type": "longrope", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 3.0, 5.0, 7.0],
            "factor": 4.0, "original_max_position_embeddings": 128,
        },
        8, 128, [1.0, 0.06666667, 0.005, 0.0004], 1.1338934190276817, 128,
    ),
    (
        {
            "type": "su", "short_factor": [1.0, 1.5, 2.0, 2.5], "long_factor": [1.0, 3.0, 5.0, 7.0],
            "original_max_position_embeddings": 128,
        },
        8, 129, [1.0, 0.06666667, 0.005, 0.0004], 1.1338934190276817, 128,
    ),
    (  # sqrt(1 + ln 1.5 / ln 128)
        {
            "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 1.5,
            "original_max_position_embeddings": 128,
        },
        8, 128, [1.0, 0.1, 0.01, 0.001], 1.0409447, 128,
    ),
    (
        {
            "rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "factor": 1.0,
            "original_max_position_embeddings": 128,
        },
        8, 128, [1.0, 0.1, 0.01, 0.001], 1.0, 128,
    ),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "part", "context", "frequencies", "scale", "most"), ROPES)
def test_scaled_rotary_positions(
    parameters: dict[str, Any], part: int, context: int | None, frequencies: list[float], scale: float, most: int | None
) -> None:
    found = scaled_rope(parameters, 1e4, part, context, 512, "config.json")
    np.testing.assert_allclose(found.frequencies, frequencies, rtol=2e-6)
    assert found.scale == pytest.approx(scale)
    assert (found.most, found.part, found.interleaved) == (most, part, False)


LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LONG = {"rope_type": "longrope", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}


@pytest.mark.parametrize(
    ("parameters", "part", "context", "message", "expected"),
    [
        ({}, 3, None, "partial_rotary_factor", "an even number"),
        ({}, 0, None, "partial_rotary_factor", "an even number"),
        ({"type": "linear"}, 8, None, "factor", "a number"),
        ({"type": "dynamic", "factor": 2.0}, 8, 513, "dynamic", "a context of at most 512"),
        ({**LLAMA3, "low_freq_factor": 4.0}, 8, None, "low_freq_factor", "less than 4"),
        ({**LONG, "original_max_position_embeddings": 1}, 8, None, "original_max_position_embeddings", "2 or more"),
        ({**LONG, "short_factor": [1.0] * 3}, 8, None, "long_factor and short_factor", "4 positive numbers each"),
        ({**LONG, "short_factor": [0.0] * 4}, 8, None, "long_factor and short_factor", "4 positive numbers each"),
        ({**LONG, "long_factor": [1.0] * 5}, 8, None, "long_factor and short_factor", "4 positive numbers each"),
        ({**LONG, "short_factor": 3}, 8, None, "long_factor and short_factor", "4 positive numbers each"),
        ({"type": "other"}, 8, None, "unknown scaling of rotary positions", "default, linear, dynamic, llama3, yarn"),
        ({"type": "linear", "factor": 2.0, "more": 1}, 8, None, "fields that may change", "None"),
    ],
)
def test_rotary_positions_that_are_refused(
    parameters: dict[str, Any], part: int, context: int | None, message: str, expected: str
) -> None:
    with pytest.raises(UnsupportedError) as caught:
        scaled_rope(parameters, 1e4, part, context, 512, "config.json")
    assert message in caught.value.message
    assert expected in str(caught.value.expected)


def test_the_length_before_an_extension_may_stand_outside() -> None:
    found = scaled_rope({**LLAMA3, "original_max_position_embeddings": 9}, 1e4, 8, None, 512, "", original=64)
    np.testing.assert_allclose(found.frequencies, [1.0, 0.01304226, 0.00125, 0.000125], rtol=2e-6)
    assert scaled_rope(LONG, 1e4, 8, 100, 512, "", original=100).most == 100
    assert scaled_rope(LONG, 1e4, 8, 100, 80, "", original=100).most == 80
    longs = [scaled_rope(LONG, 1e4, 8, context, 512, "", original=100).long for context in (100, 101, None)]
    assert longs[0] is None
    for each in longs[1:]:
        np.testing.assert_allclose(each or (), [0.5, 0.05, 0.005, 0.0005], rtol=2e-6)
    assert scaled_rope({"type": "linear", "factor": 1}, 1e4, 8, None, 9, "", interleaved=True).interleaved


# ---- memory ----


def test_pages_and_their_bytes() -> None:
    config = config_of("llama", num_key_value_heads=4)  # 12 layers, heads of 8
    assert config.cache_bytes == 2 * 4 * 12 * 4 * 8
    assert cache_bytes(config, 3, 64) == 3 * 64 * config.cache_bytes
    assert cache_bytes(replace(config, cache=dtype("bf16")), 1, 64) == 32 * config.cache_bytes
    assert pool_sizes(config, 5) == ((5, 4, 8, 64), (5, 4, 64, 8))
    assert (pages_in_window(1, 1), pages_in_window(65, 64), pages_in_window(66, 65)) == (3, 4, 6)


def test_the_cache_has_room_for_four_contexts_within_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("llama")
    each = cache_bytes(config, 1, 1)
    monkeypatch.setattr(memory, "machine_memory", lambda: 2 * (1000 + 37 * each))

    def plan(context: int, weights: int = 1000, work: int = 0, limit: int | None = None) -> int:
        return memory.plan_pages("m", config, context, weights, work, limit)

    assert (plan(64), plan(65), plan(640), plan(64 * 50)) == (4, 8, 37, 50)  # at least one context
    assert plan(640, work=500, limit=1500 + 20 * each) == 20
    assert plan(640, work=500, limit=1499 + 20 * each) == 19
    assert plan(640, work=500, limit=1500 + 90 * each) == 40
    assert plan(640, work=500, limit=1500 + 10 * each) == 10
    with pytest.raises(MemoryLimitError) as caught:
        plan(640, weights=2048, work=1024, limit=2048 + 1024 + 10 * each - 1)
    assert caught.value.message == "m needs more memory than the limit"
    assert str(caught.value.got) == "2 KiB of weights, 3.75 MiB of cache for 640 tokens, 1 KiB for a step"
    with pytest.raises(MemoryLimitError) as caught:
        plan(640, weights=2048, limit=2048)
    assert str(caught.value.got) == "2 KiB of weights, 3.75 MiB of cache for 640 tokens"
    windowed = config_of("mistral", sliding_window=100)  # pages behind the window are free
    assert memory.plan_pages("m", windowed, 64 * 50, 0, 0, 1 << 40) == 4 * pages_in_window(100, 512)
    assert memory.plan_pages("m", windowed, 64 * 3, 0, 0, 1 << 40) == 12


def test_layers_with_a_window_have_as_many_pages_as_their_windows_need() -> None:
    shared = config_of("gemma2", sliding_window=100)  # every other layer
    config = replace(shared, own_pages=True)
    sliding = sum(layer.window is not None for layer in config.layers)
    full, layer = len(config.layers) - sliding, 64 * config.layer_bytes
    assert sliding
    assert full
    for sequences, beside in ((1, 5 + 1 + 8), (3, 3 * (5 + 1) + 8)):  # of each a page is being copied
        assert cache_bytes(config, 1000, sequences) == layer * (1000 * full + beside * sliding)
        assert cache_bytes(shared, 1000, sequences) == layer * 1000 * (full + sliding)
    assert cache_bytes(config, 10, 64) == layer * 10 * (full + sliding)
    room = cache_bytes(config, 1000, 3)
    assert memory.plan_pages("m", config, 64 * 500, 0, 0, room, sequences=3) == 1000
    assert memory.plan_pages("m", config, 64 * 500, 0, 0, room - 1, sequences=3) == 999
    limits = [memory.limit_sequences(config, 64 * 1000, room + change, 64) for change in (0, -1, 10**12)]
    assert limits == [3, 2, 64]
    with pytest.raises(MemoryLimitError):
        memory.plan_pages("m", config, 64 * 1000, 0, 0, cache_bytes(config, 1000, 1) - 1)


@pytest.mark.parametrize(
    ("engine", "device", "pages", "wanted"),
    [("native", "cuda:0", 1, 512), ("pjrt", "cpu:0", 1, 512), ("pjrt", "cpu:0", 16, 512), ("pjrt", "cpu:0", 17, 481),
     ("pjrt", "cpu", 1 << 13, 1), ("pjrt", "cpu", 1 << 14, 1), ("pjrt", "cuda:0", 1 << 13, 16),
     ("reference", "cpu", 1 << 12, 2), ("pjrt", "cpu", 0, 512)],
)  # fmt: skip
def test_tokens_whose_keys_and_values_are_gathered(engine: str, device: str, pages: int, wanted: int) -> None:
    """A page of 64 positions of 8 heads of 8, keys and values in f32, is 2^15 bytes; 2^28 on a CPU, 2^32 elsewhere."""
    platform = SimpleNamespace(engine=SimpleNamespace(name=engine), device=device, put=None)
    step = Step(SimpleNamespace(platform=platform), config_of("llama"), "f32")  # type: ignore[arg-type]
    assert step.most(pages, 1) == wanted


NEAR = 1 + CLOSE / 2
EQUALS: list[tuple[Any, Any, bool]] = [
    (1.0, 1.0, True), (1.0, NEAR, True), (NEAR, 1.0, True), (1.0, 1 + 3 * CLOSE, False), (-1.0, 1.0, False),
    (1.0, None, False), (None, 1.0, False), (None, None, True), (0.0, 0.0, True), (2, 2, True), (2, 3, False),
    ((1.0, (2, None)), (NEAR, (2, None)), True), ((1.0,), (1.0, 2.0), False), ((1.0, 2.0), (1.0, 3.0), False),
    ((1.0,), None, False), (None, (1.0,), False), ((), None, False), ((2,), 2, False),
    ("gelu_new", "gelu_pytorch_tanh", True), ("gelu_new", "gelu", False), ("silu", "silu", True), ("1.0", 1.0, False),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "same"), EQUALS)
def test_fields_that_a_file_says_as_well(a: Any, b: Any, same: bool) -> None:
    assert _equal(a, b) is same


def test_slots_and_their_pages() -> None:
    assert [_slots(count) for count in (1, 7, 8, 9, 16, 17)] == [8, 8, 8, 16, 16, 32]
    assert [_pages(count) for count in (1, 64, 65, 128, 129, 257)] == [1, 1, 2, 2, 4, 8]


def test_contexts_and_sequences() -> None:
    config = config_of("llama", max_position_embeddings=1 << 17)
    assert memory.choose_context(config, None) == 1 << 15
    assert memory.choose_context(config, 1 << 17) == 1 << 17
    assert memory.choose_context(config_of("llama"), None) == 2048
    for wrong in (0, (1 << 17) + 1, 5.0):
        with pytest.raises(RunError, match="not made for such a context") as caught:
            memory.choose_context(config, wrong)  # type: ignore[arg-type]
        assert (caught.value.expected, caught.value.got) == (f"1 to {1 << 17} tokens", wrong)
    memory.check_sequences(1)
    memory.check_sequences(512)
    for wrong in (0, 513, 1.0):
        with pytest.raises(RunError, match="computed at once") as caught:
            memory.check_sequences(wrong)  # type: ignore[arg-type]
        assert caught.value.expected == "1 to 512"


def test_the_longest_sequence_and_the_widest_window() -> None:
    config = config_of("llama")
    rope = config.layers[0].rope
    assert rope is not None
    assert (config.longest, config.window) == (2048, None)
    short = replace(config, layers=(Layer(replace(rope, most=100), 7), Layer(rope, 9)))
    assert (short.longest, short.window) == (100, 9)
    assert replace(config, layers=(Layer(rope, 7), Layer(rope))).window is None


# ---- texts ----


def test_architectures_in_words() -> None:
    assert _traits(config_of("llama")) == ["RMSNorm", "silu, gated MLP", "RoPE"]
    assert _traits(config_of("gpt2")) == [
        "LayerNorm", "gelu_new, plain MLP", "learned positions", "biases of q, k, v", "tied embeddings",
    ]  # fmt: skip
    assert _traits(config_of("gemma2")) == [
        "RMSNorm", "gelu_pytorch_tanh, gated MLP", "norms after attention and MLP", "attention softcap 50",
        "logit softcap 30", "tied embeddings", "RoPE", "window of 4096 in 6 layers",
    ]  # fmt: skip
    assert _traits(config_of("qwen3moe")) == [
        "RMSNorm", "silu, gated MLP", "norms of queries and keys", "RoPE", "8 of 128 experts in 12 layers",
    ]  # fmt: skip
    assert _traits(config_of("olmo2")) == [
        "RMSNorm", "silu, gated MLP", "norms only after attention and MLP", "norms of queries and keys over all heads",
        "RoPE",
    ]  # fmt: skip
    assert _traits(config_of("smollm3"))[-1] == "RoPE in 9 layers"


def test_batches_of_texts_fill_up_to_their_tokens() -> None:
    assert TOKENS == 4096
    assert list(batches_by_length([])) == []
    lists = [[0] * length for length in (1024, 5, 1024, 1024, 1024, 1025)]
    assert list(batches_by_length(lists)) == [[1, 0, 2, 3], [4, 5]]
    assert list(batches_by_length([[0] * 1024] * 5)) == [[0, 1, 2, 3], [4]]
    assert list(batches_by_length([[0] * 5000, [0] * 5000])) == [[0], [1]]


@pytest.mark.parametrize(
    ("given", "message", "expected"),
    [
        ({"max_tokens": -1}, "max_tokens is a whole number", "0 or more"),
        ({"max_tokens": True}, "max_tokens is a whole number", "0 or more"),
        ({"n": 0}, "n is how many answers", f"1 to {MAX_ALTERNATIVES}"),
        ({"n": MAX_ALTERNATIVES + 1}, "n is how many answers", "1 to 256"),
        ({"n": 1.0}, "n is how many answers", "1 to 256"),
        ({"stop": ""}, "stop strings are texts that are not empty", None),
        ({"stop": ["a", 3]}, "stop strings are texts that are not empty", None),
        ({"timeout": -0.1}, "timeout is a number of seconds", "0 or more"),
        ({"timeout": "1"}, "timeout is a number of seconds", "0 or more"),
        ({"regex": "a", "schema": {}}, "an answer has one form", "schema or regex or grammar"),
        ({"max_token": 3}, "unknown options", None),
    ],
)
def test_options_that_are_refused(given: dict[str, Any], message: str, expected: str | None) -> None:
    with pytest.raises(RunError) as caught:
        Options.of(given)
    assert caught.value.message == message
    assert expected is None or caught.value.expected == expected


def test_options_and_sampling_are_told_apart() -> None:
    options, sampling = Options.of(
        {"max_tokens": 0, "n": 256, "stop": "x", "timeout": 0, "temperature": 0.5, "seed": 7}
    )
    assert (options.max_tokens, options.n, options.stops, options.timeout) == (0, 256, ("x",), 0)
    assert (sampling.temperature, sampling.seed) == (0.5, 7)
    plain, _ = Options.of({})
    assert (plain.max_tokens, plain.n, plain.stops, plain.timeout, plain.ignore_end) == (128, 1, (), None, False)
    again, more = Options.of({"sampling": sampling, "top_k": 3})
    assert (more.temperature, more.top_k, again.constraints) == (0.5, 3, {})
    assert Options.of({"regex": "a+"})[0].constraints == {"regex": "a+"}
