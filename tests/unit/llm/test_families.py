"""Every family against transformers: logits of tiny checkpoints that `tests/fixtures/make_llm.py` recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import smelt.llm
from smelt.cli.generate import show_language_model
from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.ir.blocks import TABLE as BLOCKS
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.families import MULTIMODAL, TABLE, read_config
from smelt.llm.report import describe
from tests.llm_checkpoints import FIXTURE, Case, compare, write_checkpoint

CASES = Case.load(FIXTURE)
COMPILED = ("llama", "qwen3moe", "phi3-switch")  # by the native engine in every run


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in CASES])
def test_logits_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, case.config, case.shapes)
    compare(case, tmp_path, "reference", single=3, greedy=1)


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.name, marks=() if case.name in COMPILED else pytest.mark.slow) for case in CASES],
)
def test_greedy_tokens_are_those_of_transformers(case: Case, tmp_path: Path) -> None:
    write_checkpoint(tmp_path, case.config, case.shapes)
    compare(case, tmp_path, "native")


def test_xla_runs_the_same_step(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    case = next(case for case in CASES if case.name == "llama")
    write_checkpoint(tmp_path, case.config, case.shapes)
    compare(case, tmp_path, "pjrt", single=2, greedy=8)


def test_sequences_that_outgrow_their_rotary_positions_are_computed_again(tmp_path: Path) -> None:
    """On XLA the switch ends a run; in a bundle, beside others and after it, tokens are the same."""
    pytest.importorskip("jaxlib")
    case = next(case for case in CASES if case.name == "phi3-switch")
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, engine="pjrt") as model:
        assert model.config.switch == 30
        more = [case.tokens, case.tokens[:9], [*case.tokens, *case.ids[:20]]]
        made = model.generate_all(more, max_tokens=24, ignore_end=True)
        assert made[0].ids == tuple(case.ids[:24])
        assert made[2].ids == tuple(case.ids[20:44])
        again = model.generate([*case.tokens, *case.ids[:40]], max_tokens=3, ignore_end=True)
        assert again.ids == tuple(case.ids[40:43])


def test_a_prompt_cache_is_for_one_kind_of_rotary_positions(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "phi3-switch")
    write_checkpoint(tmp_path, case.config | {"original_max_position_embeddings": 68}, case.shapes)
    tokens = (case.tokens * 3)[:70]
    with smelt.llm.load(tmp_path, engine="reference") as model:
        short = model.generate(tokens[:66], max_tokens=1, ignore_end=True)
        long = model.generate(tokens, max_tokens=1, ignore_end=True)
        assert (short.cached, long.cached) == (0, 0)
        model.save_cache(tmp_path / "short", tokens[:66])
        model.save_cache(tmp_path / "long", tokens)
    for name, shared in (("short", (64, 0)), ("long", (0, 64))):
        with smelt.llm.load(tmp_path, engine="reference") as model:
            assert model.load_cache(tmp_path / name) == 64
            found = [model.generate(each, max_tokens=1, ignore_end=True) for each in (tokens[:66], tokens)]
            assert (found[0].cached, found[1].cached) == shared
            assert [each.ids for each in found] == [short.ids, long.ids]


def test_every_family_has_a_case() -> None:
    known = {read_config(case.config, case.name).family for case in CASES}
    assert known == {row.name for row in TABLE}


MULTIMODAL_CASES = [case for case in CASES if "text_config" in case.config]
PLACES = (  # of the text model in a file: as transformers writes it, and as it has it in memory
    ("language_model.model.", "model.language_model."),
    ("model.text_model.", "text_model.model."),
)


def move(name: str) -> str:
    """The name of a tensor in the other place."""
    found = {old: new for places in PLACES for old, new in (places, places[::-1]) if name.startswith(old)}
    return next((new + name.removeprefix(old) for old, new in found.items()), name)


@pytest.mark.parametrize("case", [pytest.param(case, id=case.name) for case in MULTIMODAL_CASES])
def test_the_text_model_of_a_multimodal_checkpoint(case: Case, tmp_path: Path) -> None:
    """Its tensors may be in either place; what is beside them is named and not loaded."""
    write_checkpoint(tmp_path / "a", case.config, case.shapes)
    write_checkpoint(tmp_path / "b", case.config, {move(name): sizes for name, sizes in case.shapes.items()})
    found, moved = (open_checkpoint(tmp_path / folder) for folder in "ab")
    assert found.config == moved.config
    assert {name: found.sizes(name) for name in found.weights} == {name: moved.sizes(name) for name in moved.weights}
    assert found.left_out == moved.left_out
    assert all("vision" in name or "projector" in name or "connector" in name for name in found.left_out)
    assert len(found.weights) + len(found.left_out) == len(case.shapes)
    said = describe(tmp_path / "a")["multimodal"]
    assert said["architecture"] == case.config["architectures"][0]
    assert sum(said["left_out"].values()) == len(found.left_out)
    show_language_model(describe(tmp_path / "a"))


def test_multimodal_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    case = MULTIMODAL_CASES[0]
    write_checkpoint(tmp_path, case.config, {**case.shapes, "language_model.model.layers.0.extra.weight": (3,)})
    with pytest.raises(FileError, match="no use for"):
        open_checkpoint(tmp_path)
    write_checkpoint(tmp_path, case.config, {**case.shapes, "other.model.embed_tokens.weight": (96, 48)})
    with pytest.raises(FileError, match="the text model of a multimodal file") as caught:
        open_checkpoint(tmp_path)
    assert caught.value.got == "language_model, other"
    write_checkpoint(tmp_path, case.config, {"vision_tower.weight": (3,)})
    with pytest.raises(FileError, match="the text model of a multimodal file"):
        open_checkpoint(tmp_path)


def test_the_page_lists_what_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "llm.md").read_text("utf-8")
    for row in TABLE:
        assert f"| {row.name} | {', '.join(row.architectures)} | {', '.join(row.gguf) or 'llama'} |" in page
    for architecture in MULTIMODAL:
        assert architecture in page
    assert ", ".join(block.name for block in BLOCKS if block.kind is not None) + "." in page


LLAMA = CASES[0]
STRANGE: list[tuple[str, dict[str, Any]]] = [
    ("an unknown field", {"logit_scale": 0.5}),
    ("an unknown scaling", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}),
    ("an unknown field of a scaling", {"rope_parameters": {"rope_type": "default", "twist": 2}}),
    ("quantised by another tool", {"quantization_config": {"quant_method": "gptq"}}),
    ("a window where the family has none", {"sliding_window": 7}),
    ("an unknown architecture", {"architectures": ["MambaForCausalLM"]}),
    ("no architecture", {"architectures": None}),
    ("heads that do not divide", {"num_key_value_heads": 3}),
    ("no width", {"hidden_size": None}),
    ("a width that is a text", {"hidden_size": "48"}),
    ("a negative number of layers", {"num_hidden_layers": -1}),
    ("too many layers", {"num_hidden_layers": 1 << 23}),
    ("an infinite epsilon", {"rms_norm_eps": float("inf")}),
    ("a flag that is a number", {"attention_bias": 1}),
    ("a base of zero", {"rope_parameters": {"rope_type": "default", "rope_theta": -1.0}}),
]


@pytest.mark.parametrize("change", [pytest.param(change, id=name) for name, change in STRANGE])
def test_what_would_change_the_arithmetic_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError):
        read_config({**LLAMA.config, **change}, "config.json")


COMMON = {"attention_dropout": 0.0, "initializer_range": 0.02, "use_cache": True, "torch_dtype": "bfloat16"}
LLAMA31 = {
    "factor": 32.0,
    "high_freq_factor": 4.0,
    "low_freq_factor": 1.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}
# Configurations as the hub has them, written by older versions of transformers: architecture, width, layers, heads,
# heads of keys and values, width of the MLP, vocabulary, context; and the rest.
HUB: dict[str, tuple[str, tuple[int, ...], dict[str, Any]]] = {
    "Llama-3.2-1B": (
        "LlamaForCausalLM",
        (2048, 16, 32, 8, 8192, 128256, 131072),
        {"rope_scaling": LLAMA31, "rope_theta": 500000.0, "tie_word_embeddings": True, "pretraining_tp": 1}
        | {"attention_bias": False, "mlp_bias": False, "head_dim": 64, "eos_token_id": [128001, 128008, 128009]},
    ),
    "SmolLM2-135M": (
        "LlamaForCausalLM",
        (576, 30, 9, 3, 1536, 49152, 8192),
        {"is_llama_config": True, "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000},
    ),
    "llama-7b": ("LlamaForCausalLM", (4096, 32, 32, 32, 11008, 32000, 2048), {"max_sequence_length": 2048}),
    "Mistral-7B": ("MistralForCausalLM", (4096, 32, 32, 8, 14336, 32000, 32768), {"sliding_window": 4096}),
    "Qwen2.5-0.5B": (
        "Qwen2ForCausalLM",
        (896, 24, 14, 2, 4864, 151936, 32768),
        {"max_window_layers": 24, "sliding_window": 32768, "use_mrope": False, "use_sliding_window": False},
    ),
    "Qwen3-0.6B": (
        "Qwen3ForCausalLM",
        (1024, 28, 16, 8, 3072, 151936, 40960),
        {"head_dim": 128, "max_window_layers": 28, "sliding_window": None, "use_sliding_window": False},
    ),
    "gemma-2-2b": (
        "Gemma2ForCausalLM",
        (2304, 26, 8, 4, 9216, 256000, 8192),
        {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "cache_implementation": "hybrid"}
        | {"head_dim": 256, "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
        | {"query_pre_attn_scalar": 256, "sliding_window": 4096},
    ),
    "gemma-3-1b": (
        "Gemma3ForCausalLM",
        (1152, 26, 4, 1, 6912, 262144, 32768),
        {
            "hidden_activation": "gelu_pytorch_tanh",
            "head_dim": 256,
            "rope_local_base_freq": 10000,
            "rope_theta": 1000000,
        }
        | {
            "query_pre_attn_scalar": 256,
            "sliding_window": 512,
            "sliding_window_pattern": 6,
            "attn_logit_softcapping": None,
        },
    ),
    "Phi-3-mini-4k": (
        "Phi3ForCausalLM",
        (3072, 32, 32, 32, 8192, 32064, 4096),
        {"original_max_position_embeddings": 4096, "rope_scaling": None, "sliding_window": 2047, "resid_pdrop": 0.0}
        | {"attention_bias": False, "auto_map": {"AutoConfig": "configuration_phi3.Phi3Config"}, "embd_pdrop": 0.0},
    ),
    "Phi-4-mini": (
        "Phi3ForCausalLM",
        (3072, 32, 24, 8, 8192, 200064, 131072),
        {"partial_rotary_factor": 0.75, "full_attn_mod": 1, "interpolate_factor": 1, "lm_head_bias": False}
        | {"original_max_position_embeddings": 4096, "sliding_window": 262144, "tie_word_embeddings": True}
        | {"rope_scaling": {"long_factor": [2.0] * 48, "short_factor": [1.0] * 48, "type": "longrope"}},
    ),
    "SmolLM3-3B": (
        "SmolLM3ForCausalLM",
        (2048, 36, 16, 4, 11008, 128256, 65536),
        {"no_rope_layer_interval": 4, "no_rope_layers": [1, 1, 1, 0] * 9, "pretraining_tp": 2, "rope_theta": 5000000.0}
        | {"layer_types": ["full_attention"] * 36, "max_window_layers": 28, "use_sliding_window": False},
    ),
    "Mixtral-8x7B": (
        "MixtralForCausalLM",
        (4096, 32, 32, 8, 14336, 32000, 32768),
        {"num_experts_per_tok": 2, "num_local_experts": 8, "output_router_logits": False, "router_aux_loss_coef": 0.02}
        | {"rope_theta": 1000000.0, "sliding_window": None},
    ),
    "starcoder2-3b": (
        "Starcoder2ForCausalLM",
        (3072, 30, 24, 2, 12288, 49152, 16384),
        {"activation_function": None, "embedding_dropout": 0.1, "residual_dropout": 0.1, "mlp_type": "default"}
        | {"hidden_act": "gelu_pytorch_tanh", "norm_epsilon": 1e-05, "norm_type": "layer_norm", "use_bias": True}
        | {"rope_theta": 999999.4420358813, "sliding_window": 4096},
    ),
    "OLMo-2-1124-7B": (
        "Olmo2ForCausalLM",
        (4096, 32, 32, 32, 11008, 100352, 4096),
        {"attention_bias": False, "hidden_act": "silu", "rms_norm_eps": 1e-06, "rope_scaling": None}
        | {"rope_theta": 500000, "tie_word_embeddings": False, "pad_token_id": 100277, "eos_token_id": 100257},
    ),
    "Qwen3-30B-A3B": (
        "Qwen3MoeForCausalLM",
        (2048, 48, 32, 4, 6144, 151936, 40960),
        {"decoder_sparse_step": 1, "mlp_only_layers": [], "moe_intermediate_size": 768, "norm_topk_prob": True}
        | {"num_experts": 128, "num_experts_per_tok": 8, "head_dim": 128, "max_window_layers": 48},
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_configurations_of_the_hub_are_read(name: str) -> None:
    architecture, sizes, rest = HUB[name]
    keys = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "intermediate_size")
    said = dict(zip((*keys, "vocab_size", "max_position_embeddings"), sizes, strict=True))
    found = read_config({"architectures": [architecture], **COMMON, **said, **rest}, name)
    assert (found.d, len(found.layers), found.heads) == sizes[:3]
    windows = {layer.window for layer in found.layers}
    windowed = ("Mistral-7B", "gemma-2-2b", "gemma-3-1b", "Phi-3-mini-4k", "Phi-4-mini", "starcoder2-3b")
    assert (windows != {None}) == (name in windowed)
    turned = sum(layer.rope is not None for layer in found.layers)
    assert turned == (27 if name == "SmolLM3-3B" else sizes[1])
    assert (found.layers[0].experts is not None) == (name in ("Mixtral-8x7B", "Qwen3-30B-A3B"))


def test_multimodal_configurations_of_the_hub_are_read() -> None:
    """They leave out what is the default of transformers' class."""
    gemma = {
        "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999, "eoi_token_index": 256000,
        "eos_token_id": [1, 106], "image_token_index": 262144, "initializer_range": 0.02, "mm_tokens_per_image": 256,
        "model_type": "gemma3", "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "vision_config": {"hidden_size": 1152, "image_size": 896, "model_type": "siglip_vision_model"},
    }  # fmt: skip
    found = read_config(gemma, "config.json")
    assert (found.family, found.d, found.heads, found.kv_heads, found.head_size) == ("gemma3", 2560, 8, 4, 256)
    assert (found.v, found.context, found.tied, found.stop) == (262208, 131072, True, (1, 106))
    assert [layer.window for layer in found.layers[:7]] == [1024] * 5 + [None, 1024]
    full, sliding = found.layers[5].rope, found.layers[0].rope
    assert full is not None
    assert sliding is not None
    assert (full.frequencies[0], sliding.frequencies[0]) == (1 / 8, 1)
    mistral = {
        "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10, "model_type": "mistral3",
        "multimodal_projector_bias": False, "projector_hidden_act": "gelu", "spatial_merge_size": 2,
        "vision_feature_layer": -1, "torch_dtype": "bfloat16", "vision_config": {"model_type": "pixtral"},
        "text_config": {
            "attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
            "initializer_range": 0.02, "intermediate_size": 32768, "max_position_embeddings": 131072,
            "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
            "rms_norm_eps": 1e-05, "rope_theta": 1000000000.0, "sliding_window": None, "use_cache": True,
            "vocab_size": 131072,
        },
    }  # fmt: skip
    found = read_config(mistral, "config.json")
    assert (found.family, found.d, found.head_size, found.tied, found.window) == ("mistral", 5120, 128, False, None)


def test_fields_that_say_nothing_are_ignored() -> None:
    said = {**LLAMA.config, "attn_something": None, "use_magic": False, "transformers_version": "9", "dtype": "bf16"}
    assert read_config(said, "config.json") == read_config(LLAMA.config, "config.json")


def test_checkpoints_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    shapes = dict(LLAMA.shapes)
    write_checkpoint(tmp_path, LLAMA.config, {**shapes, "model.layers.0.extra.weight": (3,)})
    with pytest.raises(FileError, match="no use for"):
        smelt.llm.load(tmp_path)
    lost = shapes.pop("model.layers.1.mlp.up_proj.weight")
    write_checkpoint(tmp_path, LLAMA.config, shapes)
    with pytest.raises(SmeltError, match=r"layers\.1\.mlp\.up\.weight: missing"):
        smelt.llm.load(tmp_path)
    write_checkpoint(tmp_path, LLAMA.config, {**shapes, "model.layers.1.mlp.up_proj.weight": lost[::-1]})
    with pytest.raises(SmeltError, match="axis f is 48"):
        smelt.llm.load(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ParseError):
        smelt.llm.load(tmp_path)
