"""Quantised Hugging Face folders: GPTQ, AWQ, compressed-tensors and FP8 against transformers and against the formats'
definitions (`tests/llm_quantised.py`, `tests/fixtures/make_quantised.py`)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import smelt.llm
from smelt.cli.inspect import inspect
from smelt.dtype import Array
from smelt.errors import FileError, SmeltError, UnsupportedError
from smelt.ir.blocks import Block, decode
from smelt.llm import checkpoint
from smelt.llm.checkpoint import Checkpoint
from smelt.llm.config import CACHES
from smelt.llm.quantise import quantise as write_gguf
from smelt.llm.quantised_folder import METHODS, read_quantised
from smelt.llm.report import describe
from smelt.weights import Stored, Weights
from tests.llm_checkpoints import FIXTURE as PLAIN
from tests.llm_checkpoints import Case, compare
from tests.llm_quantised import (
    CASES,
    FIXTURE,
    KINDS,
    Kind,
    gptq,
    pack,
    packed,
    quantise,
    to_integers,
    write_folder,
    write_quantised,
)

RECORDED = {case.name: case for case in Case.load(FIXTURE)}
COMPILED = ("gptq-v2", "awq-experts")  # by the native engine in every run


def write(name: str, folder: Path) -> Case:
    case = RECORDED[name]
    write_quantised(folder, name, case.config, case.shapes)
    return case


def is_quantised(name: str, found: Checkpoint) -> bool:
    return name.startswith("layers.") and len(found.sizes(name)) > 1 and "router" not in name


def no_stacks(names: Iterable[str]) -> Iterable[list[str]]:
    return ()


def read_layer(kind: Kind, x: Array) -> tuple[Any, Array, Array]:
    """A matrix that is quantised and read again: its form, its numbers, and those that it should have."""
    tensors, want = kind.make(x, **kind.options)
    given = Weights.of({f"model.layer.{part}": array for part, array in tensors.items()})
    weights, forms, _ = read_quantised(given, kind.config, "config.json", no_stacks)
    assert list(weights) == list(forms) == ["model.layer.weight"]
    form, stored = forms["model.layer.weight"], weights["model.layer.weight"].numpy()
    assert weights.shape("model.layer.weight").numbers() == stored.shape
    return form, decode(form, stored) if isinstance(form, Block) else stored, want


# ---- against transformers ----


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = write(name, tmp_path)
    compare(case, tmp_path, "reference", single=1, greedy=1)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in COMPILED else pytest.mark.slow) for name in CASES]
)
def test_greedy_tokens_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    case = write(name, tmp_path)
    compare(case, tmp_path, "native", precision="f32")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "gptq-asymmetric" else pytest.mark.slow) for name in CASES],
)
def test_weights_stay_small_where_activations_are_rounded(name: str, tmp_path: Path) -> None:
    case = write(name, tmp_path)
    found = checkpoint.open(tmp_path).for_processor("q8")
    kept = any(isinstance(form, Block) for form in found.formats.values())
    assert kept or not KINDS[CASES[name][0]].options.get("desc_act")
    with smelt.llm.load(tmp_path, engine="native") as model:
        wrong = float(np.abs(model.logits(case.tokens) - case.logits).max() / np.abs(case.logits).max())
        bound = model._step.executable.bound_bytes  # type: ignore[attr-defined]
    assert wrong < 0.05
    assert model.config.cache == (CACHES["int8"] if kept else CACHES["f32"])
    assert bound < 1.25 * found.nbytes + found.weights.find("embed.weight").nbytes  # which may be packed as well


def test_xla_runs_the_same_step(tmp_path: Path) -> None:
    pytest.importorskip("jaxlib")
    case = write("gptq-asymmetric", tmp_path)
    compare(case, tmp_path, "pjrt", single=1, greedy=8)


def test_every_method_has_a_case() -> None:
    assert set(RECORDED) == set(CASES)
    assert {str(KINDS[kind].config["quant_method"]) for kind, *_ in CASES.values()} == set(METHODS)


# ---- forms ----


@pytest.mark.parametrize("name", CASES)
def test_forms_of_a_folder(name: str, tmp_path: Path) -> None:
    write(name, tmp_path)
    found = checkpoint.open(tmp_path)
    forms = {getattr(form, "name", "") for name, form in found.formats.items() if is_quantised(name, found)}
    assert forms == set(KINDS[CASES[name][0]].forms)
    said = describe(tmp_path)
    assert [each for each in said["unsupported"] if each["part"] != "tokenizer"] == []
    assert forms <= set(said["formats"])
    assert said["quantised"] == KINDS[CASES[name][0]].config["quant_method"]
    count = sum(found.elements(each) for each in found.weights if is_quantised(each, found))
    assert said["dequantised"] + said["sorted"] == (count if forms <= {"f16", "bf16"} else 0)
    assert bool(said["sorted"]) == ("ordered" in name)
    assert said["weight_bytes"] == found.nbytes


def test_inspect_says_what_is_dequantised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, said in (
        ("gptq-ordered", "quantised gptq, 294,912 dequantised, or with precision q8 on the CPU in blocks with sorted"),
        ("fp8-all", "quantised fp8, 294,912 dequantised as they are read weights"),
        ("gptq", "quantised gptq weights"),
    ):
        write(name, tmp_path)
        with pytest.raises(SystemExit):  # there is no tokenizer
            inspect(tmp_path, [], [], False)
        assert said in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("name", KINDS)
def test_numbers_are_those_of_the_definition(name: str, seed: int) -> None:
    """Bit for bit, for rows that are no multiple of a panel or a tile, and every code."""
    dice = np.random.default_rng(seed)
    x = dice.standard_normal((24, 384), np.float32)
    form, got, want = read_layer(KINDS[name], x)
    assert form.name in KINDS[name].forms
    assert got.dtype == want.dtype or isinstance(form, Block)
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize(
    ("name", "sizes", "form"),
    [
        ("gptq", (8, 24), "f16"),  # no whole block
        ("gptq-all", (8, 32), "q4_0"),
        ("gptq-asymmetric-32", (16, 64), "q5_0"),
        ("gptq-v2", (8, 128 + 64), "q5_0"),  # no whole block of 128, and a group that ends early
        ("awq", (8, 129), "f16"),
        ("packed", (3, 32), "q4_0"),
        ("packed-8", (3, 37), "bf16"),
        ("int8-bf16", (5, 20), "bf16"),
        ("fp8", (129, 257), "bf16"),
        ("fp8", (1, 1), "bf16"),
    ],
)
def test_odd_sizes(name: str, sizes: tuple[int, int], form: str, seed: int) -> None:
    made, got, want = read_layer(KINDS[name], np.random.default_rng(seed).standard_normal(sizes, np.float32))
    assert made.name == form
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(got.dtype).astype(np.float32))


def test_a_zero_point_of_zero_borrows_from_its_neighbour(seed: int) -> None:
    """GPTQ's first format subtracts one from each zero point, as one word of 32 bits."""
    x = np.abs(np.random.default_rng(seed).standard_normal((16, 128), np.float32))
    for name in ("gptq-asymmetric", "gptq-v2"):
        made, got, want = read_layer(KINDS[name], x)
        assert made.name == "u4_128"
        np.testing.assert_array_equal(got, want)
    assert (to_integers(x, 4, 128, False).zeros == 0).all()


def test_an_order_of_inputs_that_blocks_can_hold(seed: int) -> None:
    """Groups of whole blocks, in any order."""
    dice = np.random.default_rng(seed)
    order = dice.permutation(8).repeat(32)
    x = dice.standard_normal((16, 256), np.float32)
    kind = KINDS["gptq-asymmetric-32"]
    tensors, _ = kind.make(x, **kind.options)
    tensors["g_idx"] = order.astype(np.int32)
    weights, forms, _ = read_quantised(
        Weights.of({f"l.{part}": array for part, array in tensors.items()}), kind.config, "", no_stacks
    )
    made = to_integers(x, 4, 32, False)
    want = replace(made, group_of=order).numbers()
    assert forms["l.weight"].name == "q5_0"
    form = forms["l.weight"]
    assert isinstance(form, Block)
    np.testing.assert_array_equal(decode(form, weights["l.weight"].numpy()), want)


@pytest.mark.parametrize(("bits", "size", "symmetric"), [(4, 32, True), (4, 64, False), (4, 128, False), (8, 32, True)])
def test_inputs_are_sorted_where_blocks_then_hold_a_weight(bits: int, size: int, symmetric: bool, seed: int) -> None:
    dice = np.random.default_rng(seed)
    x, order = dice.standard_normal((16, 256), np.float32), dice.permutation(256)
    tensors, _ = gptq(x, bits, size, symmetric)
    made = to_integers(x, bits, size, symmetric, order=order)
    tensors |= {"g_idx": made.group_of, "qweight": np.ascontiguousarray(pack(made.codes, bits).T)}
    tensors |= {"scales": np.ascontiguousarray(made.scales.T), "qzeros": pack(np.ascontiguousarray(made.zeros.T), bits)}
    given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
    config = {"quant_method": "gptq", "bits": bits, "group_size": size, "checkpoint_format": "gptq_v2"}
    read = read_quantised(given, config, "", no_stacks)
    found = read.sorted["l.weight"]
    assert read.forms["l.weight"].name == "f16"
    assert found.form.name == ("q8_0" if bits == 8 else "q4_0" if symmetric else "u4_128" if size == 128 else "q5_0")
    assert sorted(found.order) == list(range(256))
    stored = found.stored.load()
    assert stored.shape == found.stored.shape.numbers()
    np.testing.assert_array_equal(decode(found.form, stored), made.numbers()[:, found.order])
    assert not read_quantised(given, config, "", lambda names: [list(names)]).sorted


def test_groups_that_are_no_whole_blocks_are_not_sorted(seed: int) -> None:
    kind = KINDS["gptq-ordered"]
    tensors, _ = kind.make(np.random.default_rng(seed).standard_normal((8, 96), np.float32), bits=4, size=16)
    tensors["g_idx"] = tensors["g_idx"][::-1].copy()
    given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
    assert not read_quantised(given, {**kind.config, "group_size": 16}, "", no_stacks).sorted


def test_scales_that_f16_cannot_hold(seed: int) -> None:
    """Then weights are bf16, rounded once."""
    x = np.random.default_rng(seed).standard_normal((8, 64), np.float32)
    x[3, 32:] *= np.float32(1e-9)
    kind = KINDS["packed"]
    form, got, _ = read_layer(kind, x)
    assert form.name == "bf16"
    want = to_integers(x, 4, 32, True, ml_dtypes.bfloat16).numbers(ml_dtypes.bfloat16)
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("symmetric", [True, False])
def test_compressed_tensors_with_groups_of_inputs_and_signed_zero_points(symmetric: bool, seed: int) -> None:
    """As older versions wrote them."""
    x = np.random.default_rng(seed).standard_normal((5, 64), np.float32)
    tensors, want = packed(x, size=32, symmetric=symmetric)
    zeros = to_integers(x, 4, 32, symmetric, ml_dtypes.bfloat16).zeros
    tensors["weight_zero_point"] = (zeros - 8).astype(np.int8)
    tensors["weight_g_idx"] = np.full(64, -1, np.int32)
    given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
    weights, forms, _ = read_quantised(given, KINDS["packed"].config, "", no_stacks)
    form = forms["l.weight"]
    assert isinstance(form, Block)
    assert form.name == ("q4_0" if symmetric else "q5_0")
    np.testing.assert_array_equal(decode(form, weights["l.weight"].numpy()), want)


def test_experts_have_one_form(tmp_path: Path) -> None:
    """If blocks cannot hold one of them, none is in blocks."""
    case = RECORDED["awq-experts"]
    kind = KINDS["packed"]
    tensors, _ = quantise(kind, case.shapes)
    tensors["model.layers.1.block_sparse_moe.experts.2.w3.weight_scale"][0, 0] = 1e-12
    write_folder(tmp_path, {**case.config, "quantization_config": dict(kind.config)}, tensors)
    found = checkpoint.open(tmp_path)
    forms = {i: found.formats[f"layers.{i}.mlp.up_experts.weight"] for i in (0, 1)}
    assert [getattr(form, "name", "") for form in forms.values()] == ["q4_0", "bf16"]
    name = "layers.1.mlp.up_experts.weight"
    assert found.weights[name].numpy().shape == found.weights.shape(name).numbers() == found.sizes(name)


# ---- folders ----


def test_nothing_large_is_read_before_it_is_used() -> None:
    def refuse() -> Array:
        raise AssertionError("read at open")

    small = ("qzeros", "g_idx", "weight_shape", "weight_scale")
    for name in ("gptq-asymmetric", "gptq-ordered", "awq", "packed", "int8", "fp8"):
        kind = KINDS[name]
        tensors, _ = kind.make(np.ones((16, 256), np.float32), **kind.options)
        given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
        stored = {each: given.find(each) for each in given}
        lazy = {each: stored[each] if each.endswith(small) else Stored(stored[each].shape, refuse) for each in stored}
        read_quantised(Weights(lazy), kind.config, "", no_stacks)


@pytest.mark.parametrize("name", ["awq-experts", "gptq-asymmetric-32", "gptq-ordered"])
def test_every_weight_knows_the_file_that_it_is_made_of(name: str, tmp_path: Path) -> None:
    """So that the pages of the file can be given back once weights are bound."""
    write(name, tmp_path)
    found = checkpoint.open(tmp_path).for_processor("q8")
    for each in found.weights:
        files = found.weights.find(each).files
        assert {file.path.name for file in files} == (set() if each.endswith(".order") else {"model.safetensors"})


def test_zero_biases_of_every_layer_are_dropped(tmp_path: Path) -> None:
    case = RECORDED["gptq"]
    kind = KINDS["gptq"]
    tensors, _ = quantise(kind, case.shapes)
    for name in [name for name in tensors if name.endswith(".scales")]:
        tensors[name.replace(".scales", ".bias")] = np.zeros(tensors[name].shape[1], np.float16)
    config = {**case.config, "quantization_config": dict(kind.config)}
    write_folder(tmp_path, config, tensors)
    compare(case, tmp_path, "reference", single=1, greedy=1)
    tensors["model.layers.0.mlp.up_proj.bias"][3] = 1
    write_folder(tmp_path, config, tensors)
    with pytest.raises(SmeltError, match=r"mlp\.up\.bias"):
        smelt.llm.load(tmp_path, engine="reference")


def test_a_family_that_stores_transposed_matrices_is_refused(tmp_path: Path) -> None:
    case = next(case for case in Case.load(PLAIN) if case.name == "gpt2")
    kind = KINDS["gptq"]
    tensors, _ = kind.make(np.ones((48, 144), np.float32), bits=4, size=16)
    plain = {name: np.zeros(sizes, np.float32) for name, sizes in case.shapes.items()}
    del plain["transformer.h.0.attn.c_attn.weight"]
    plain |= {f"transformer.h.0.attn.c_attn.{part}": array for part, array in tensors.items()}
    write_folder(tmp_path, {**case.config, "quantization_config": dict(kind.config)}, plain)
    with pytest.raises(UnsupportedError, match="c_attn"):
        checkpoint.open(tmp_path)


@pytest.mark.parametrize("name", ["gptq-v2", "gptq-ordered"])
def test_bundles(name: str, tmp_path: Path) -> None:
    case = write(name, tmp_path / "in")
    with smelt.llm.load(tmp_path / "in", engine="native") as model:
        want = model.generate(case.tokens, max_tokens=12, ignore_end=True).ids
        model.save(tmp_path / "out.smelt")
    with smelt.llm.load(tmp_path / "out.smelt") as model:
        assert model.generate(case.tokens, max_tokens=12, ignore_end=True).ids == want


@pytest.mark.parametrize(("name", "kept"), [("gptq", True), ("gptq-asymmetric-32", False), ("awq", False)])
def test_as_a_gguf_file(name: str, kept: bool, tmp_path: Path) -> None:
    """Blocks that GGUF has and that are small enough are kept as they are."""
    case = write(name, tmp_path / "in")
    losses = write_gguf(tmp_path / "in", tmp_path / "out.gguf", "q4_0")
    assert [each.name for each in losses if "blk." in each.name] == [] or not kept
    with smelt.llm.load(tmp_path / "out.gguf", engine="reference") as model:
        wrong = np.abs(model.logits(case.tokens) - case.logits).max() / np.abs(case.logits).max()
    assert wrong < (0.02 if kept else 0.5)


# `quantization_config` as tools have written it: GPTQ by AutoGPTQ, transformers and GPTQModel, AWQ by AutoAWQ, the
# schemes of llm-compressor, and FP8 as Qwen and DeepSeek have it; each with the kind whose tensors it describes.
NOTHING: dict[str, Any] = {
    "actorder": None,
    "block_structure": None,
    "group_size": None,
    "observer_kwargs": {},
    "zp_dtype": None,
}
W8 = {**NOTHING, "dynamic": False, "num_bits": 8, "observer": "minmax", "strategy": "channel", "symmetric": True}
W8["observer_kwargs"] = {}
A8 = {**W8, "dynamic": True, "observer": None, "strategy": "token"}


def compressor(format: str, weights: Any, inputs: Any, **more: Any) -> dict[str, Any]:
    group = {"input_activations": inputs, "output_activations": None, "targets": ["Linear"], "weights": weights}
    found = {"config_groups": {"group_0": group}, "format": format, "global_compression_ratio": 1.8}
    found |= {"ignore": ["lm_head"], "kv_cache_scheme": None, "quant_method": "compressed-tensors"}
    return {**found, "quantization_status": "compressed", **more}


HUB: list[tuple[str, str, dict[str, Any]]] = [
    (
        "gptq",
        "AutoGPTQ",
        {"bits": 4, "damp_percent": 0.1, "desc_act": False, "group_size": 128, "is_marlin_format": False}
        | {"model_file_base_name": "model", "model_name_or_path": None, "quant_method": "gptq", "static_groups": False}
        | {"sym": True, "true_sequential": True},
    ),
    (
        "gptq",
        "transformers",
        {"batch_size": 1, "bits": 4, "block_name_to_quantize": None, "cache_block_outputs": True, "damp_percent": 0.01}
        | {"dataset": None, "desc_act": False, "exllama_config": {"version": 1}, "group_size": 128, "tokenizer": None}
        | {"max_input_length": None, "model_seqlen": None, "module_name_preceding_first_block": None, "sym": True}
        | {"modules_in_block_to_quantize": None, "pad_token_id": None, "quant_method": "gptq", "use_exllama": True}
        | {"true_sequential": True, "use_cuda_fp16": False},
    ),
    (
        "gptq-ordered",
        "GPTQModel",
        {"bits": 4, "checkpoint_format": "gptq", "desc_act": True, "dynamic": {"-:lm_head": {}}, "group_size": 32}
        | {"lm_head": False, "pack_dtype": "int32", "quant_method": "gptq", "sym": False, "adapter": None}
        | {"meta": {"damp_percent": 0.1, "quantizer": ["gptqmodel:2.0"], "static_groups": False, "mse": 0.0}},
    ),
    (
        "awq",
        "AutoAWQ",
        {"bits": 4, "group_size": 128, "modules_to_not_convert": None, "quant_method": "awq", "version": "gemm"}
        | {"zero_point": True},
    ),
    (
        "awq",
        "transformers",
        {"backend": "autoawq", "bits": 4, "do_fuse": False, "exllama_config": None, "fuse_max_seq_len": None}
        | {"group_size": 128, "modules_to_fuse": None, "modules_to_not_convert": ["lm_head"], "quant_method": "awq"}
        | {"version": "GEMM", "zero_point": True},
    ),
    (
        "packed",
        "W4A16",
        compressor(
            "pack-quantized",
            {**W8, "actorder": "weight", "num_bits": 4, "group_size": 32, "strategy": "group", "type": "int"},
            None,
            sparsity_config={},
            transform_config={},
            version="0.12.2",
        ),
    ),
    (
        "int8-bf16",
        "W8A8",
        compressor("int-quantized", {**W8, "type": "int"}, {**A8, "type": "int"}, sparsity_config={"format": "dense"}),
    ),
    ("float8-outputs", "FP8 dynamic", compressor("float-quantized", {**W8, "type": "float"}, {**A8, "type": "float"})),
    (
        "fp8",
        "Qwen3",
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "weight_block_size": [128, 128]}
        | {"modules_to_not_convert": ["lm_head", "model.layers.0.input_layernorm"]},
    ),
    (
        "fp8",
        "DeepSeek",
        {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8", "scale_fmt": "ue8m0"}
        | {"weight_block_size": [128, 128]},
    ),
]


@pytest.mark.parametrize(
    ("name", "config"), [pytest.param(name, config, id=f"{name} by {tool}") for name, tool, config in HUB]
)
def test_configurations_of_the_hub(name: str, config: dict[str, Any], seed: int) -> None:
    kind = replace(KINDS[name], config=config)
    form, got, want = read_layer(kind, np.random.default_rng(seed).standard_normal((24, 256), np.float32))
    assert form.name in kind.forms
    np.testing.assert_array_equal(got.astype(np.float32), want.astype(np.float32))


# ---- what is refused ----

GPTQ = KINDS["gptq"].config
PACKED = KINDS["packed"].config
SCHEME = PACKED["config_groups"]["group_0"]


def scheme(**changes: Any) -> dict[str, Any]:
    return {**PACKED, "config_groups": {"group_0": {**SCHEME, "weights": {**SCHEME["weights"], **changes}}}}


REFUSED: list[tuple[str, Any]] = [
    ("a list", [GPTQ]),
    ("a text", "gptq"),
    ("no method", {}),
    ("bitsandbytes", {"quant_method": "bitsandbytes", "load_in_4bit": True}),
    ("a method that is a list", {"quant_method": ["gptq"]}),
    ("three bits", {**GPTQ, "bits": 3}),
    ("no bits", {**GPTQ, "bits": None}),
    ("bits that are a text", {**GPTQ, "bits": "4"}),
    ("bits that are a fraction", {**GPTQ, "bits": 4.0}),
    ("marlin", {**GPTQ, "checkpoint_format": "marlin"}),
    ("marlin, as a flag", {**GPTQ, "is_marlin_format": True}),
    ("words of 16 bits", {**GPTQ, "pack_dtype": "int16"}),
    ("a rotation", {**GPTQ, "rotation": "hadamard"}),
    ("a group of none", {**GPTQ, "group_size": 0}),
    ("a negative group", {**GPTQ, "group_size": -128}),
    ("an absurd group", {**GPTQ, "group_size": 10**30}),
    ("a group that is a flag", {**GPTQ, "group_size": True}),
    ("AWQ's other version", {**KINDS["awq"].config, "version": "gemv"}),
    ("AWQ's other order", {**KINDS["awq"].config, "backend": "llm-awq"}),
    ("AWQ with eight bits", {**KINDS["awq"].config, "bits": 8}),
    ("layers that are no texts", {**KINDS["awq"].config, "modules_to_not_convert": [1]}),
    ("nvfp4", {**PACKED, "format": "nvfp4-pack-quantized"}),
    ("a format that is none", {**PACKED, "format": None}),
    ("sparsity", {**PACKED, "sparsity_config": {"format": "sparse-24-bitmask"}}),
    ("a quantised cache", {**PACKED, "kv_cache_scheme": {"num_bits": 8}}),
    ("a transform", {**PACKED, "transform_config": {"config_groups": {"u": {}}}}),
    ("no groups", {**PACKED, "config_groups": {}}),
    ("a group that is a list", {**PACKED, "config_groups": {"W8A8": ["Linear"]}}),
    ("static activations", {**PACKED, "config_groups": {"g": {**SCHEME, "input_activations": {"dynamic": False}}}}),
    ("outputs", {**PACKED, "config_groups": {"g": {**SCHEME, "output_activations": {"dynamic": True}}}}),
    ("six bits", scheme(num_bits=6)),
    ("four bits of a float", scheme(type="float", num_bits=4)),
    ("an unknown strategy", scheme(strategy="tensor_group")),
    ("dynamic weights", scheme(dynamic=True)),
    ("a tile of one size", scheme(strategy="block", block_structure=[128])),
    ("static FP8", {**KINDS["fp8"].config, "activation_scheme": "static"}),
    ("e5m2", {**KINDS["fp8"].config, "fmt": "e5m2"}),
    ("FP4 experts", {**KINDS["fp8"].config, "expert_dtype": "fp4"}),
    ("a negative tile", {**KINDS["fp8"].config, "weight_block_size": [128, -1]}),
    ("a tile that is a number", {**KINDS["fp8"].config, "weight_block_size": 128}),
]


@pytest.mark.parametrize("record", [pytest.param(record, id=name) for name, record in REFUSED])
def test_what_would_change_the_arithmetic_is_refused(record: Any) -> None:
    kind = KINDS["gptq"]
    tensors, _ = kind.make(np.ones((16, 256), np.float32), **kind.options)
    given = Weights.of({f"l.{part}": array for part, array in tensors.items()})
    with pytest.raises(UnsupportedError) as caught:
        read_quantised(given, record, "config.json", no_stacks)
    error = caught.value
    assert "config.json" in error.message
    assert error.got is not None
    assert "GGUF" in error.remedy or "remove them" in error.remedy


def test_an_unknown_method_is_said_on_the_command_line(tmp_path: Path) -> None:
    case = RECORDED["gptq"]
    write_quantised(tmp_path, "gptq", case.config, case.shapes)
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"]["bits"] = 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    (problem,) = describe(tmp_path)["unsupported"]
    assert problem["expected"] == "4 or 8"
    with pytest.raises(UnsupportedError, match="bits"):
        smelt.llm.load(tmp_path)


def test_folders_without_quantised_tensors(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="no tensor is quantised"):
        read_quantised(Weights.of({"l.weight": np.ones((2, 2), np.float32)}), GPTQ, "", no_stacks)
