"""GGUF files of every family give what transformers gives for the same weights in a folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
import smelt.llm
from smelt.errors import SmeltError
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.native_step import NativeStep
from tests.llm_checkpoints import FIXTURE, TOLERANCE, Case, write_checkpoint
from tests.llm_gguf import write_gguf

pytest.importorskip("gguf")
CASES = {case.name: case for case in Case.load(FIXTURE)}
NAMES = (
    *("llama", "llama-biases", "llama-linear", "llama3", "llama-yarn", "qwen2", "qwen3", "gemma2", "gemma3"),
    *("phi3-long", "smollm3", "gpt2", "mistral-full", "qwen3moe", "starcoder2", "olmo2", "olmo2-bias"),
)


# What GGUF has no key for: these files say it by leaving it out.
IMPLIED: dict[str, dict[str, Any]] = {
    "llama-biases": {"hidden_act": "silu"},
    "gemma2": {"query_pre_attn_scalar": 16},
    "gemma3": {"query_pre_attn_scalar": 16},
    "smollm3": {"no_rope_layers": None, "no_rope_layer_interval": 4},
}


@pytest.mark.parametrize("name", NAMES)
def test_logits_are_those_of_the_folder(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = tmp_path / "model.gguf"
    write_gguf(path, case)
    want = case.logits
    if name in IMPLIED:
        write_checkpoint(tmp_path, {**case.config, **IMPLIED[name]}, case.shapes)
        with smelt.llm.load(tmp_path, engine="reference") as model:
            want = model.logits(case.tokens)
    with smelt.llm.load(path, engine="reference") as model:
        assert model.config.stop == (2,)
        np.testing.assert_allclose(model.logits(case.tokens), want, rtol=0, atol=TOLERANCE * np.abs(want).max())


@pytest.mark.parametrize("name", ["q8_0", "q5_1"])
def test_blocks_compute_as_their_numbers_do(name: str, tmp_path: Path) -> None:
    """Quantised tensors stay blocks in the program; dequantised by the gguf package, they give the same."""
    case = CASES["llama"]
    config = {**case.config, "hidden_size": 64, "intermediate_size": 96, "head_dim": 16}
    shapes = {
        theirs: tuple({48: 64, 64: 96}.get(size, size) for size in sizes) for theirs, sizes in case.shapes.items()
    }
    wide = Case(name, config, _heads(shapes), case.tokens, case.logits, [], [])
    path = tmp_path / "model.gguf"
    write_gguf(path, wide, name)
    found = open_checkpoint(path)
    assert sum(str(found.weights.shape(each)).startswith("ui8") for each in found.weights) == 16
    with smelt.load(path, engine="reference") as model:
        assert isinstance(model, smelt.llm.LanguageModel)
        blocks = model.logits(case.tokens)
    gguf = pytest.importorskip("gguf")
    dense = tmp_path / "dense.gguf"
    writer = gguf.GGUFWriter(dense, "llama")
    reader = gguf.GGUFReader(path)
    for key, field in reader.fields.items():
        if key.startswith("llama."):
            value = field.contents()
            (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(key, value)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, gguf.quants.dequantize(tensor.data, tensor.tensor_type))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with smelt.llm.load(dense, engine="reference") as model:
        np.testing.assert_array_equal(model.logits(case.tokens), blocks)


@pytest.mark.parametrize("name", ["q8_0", "q4_0"])
def test_blocks_stay_blocks_in_memory(name: str, tmp_path: Path) -> None:
    """What native binds is about as large as the file; products on rounded activations are near those in f32."""
    case = CASES["llama"]
    sizes = {48: 128, 64: 192}
    config = {**case.config, "hidden_size": 128, "intermediate_size": 192, "head_dim": 32}
    shapes = {theirs: tuple(sizes.get(size, size) for size in each) for theirs, each in case.shapes.items()}
    for theirs, each in shapes.items():
        if "k_proj" in theirs or "v_proj" in theirs:
            shapes[theirs] = (64, each[1])
    path = tmp_path / "model.gguf"
    write_gguf(path, Case(name, config, shapes, case.tokens, case.logits, [], []), name)
    found = open_checkpoint(path)
    stored = sum(found.weights.find(each).nbytes for each in found.weights)
    with smelt.llm.load(path, engine="native") as model, smelt.llm.load(path, precision="f32") as exact:
        rounded, want = model.logits(case.tokens), exact.logits(case.tokens)
        assert not np.array_equal(rounded, want)
        np.testing.assert_allclose(rounded, want, rtol=0, atol=0.05 * np.abs(want).max())
        step = model._step
        assert isinstance(step, NativeStep)
        bound = step.executable.bound_bytes
        assert bound <= 1.1 * stored, (bound, stored)


def _heads(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Projections of two heads of 16 for keys and values."""
    narrow = {name: (32, sizes[1]) for name, sizes in shapes.items() if "k_proj" in name or "v_proj" in name}
    return {**shapes, **narrow}


def test_unknown_metadata_are_refused(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    path = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_uint32("llama.embedding_length", 48)
    writer.add_uint32("llama.block_count", 1)
    writer.add_uint32("llama.attention.head_count", 4)
    writer.add_uint32("llama.vocab_size", 8)
    writer.add_float32("llama.logit_scale", 0.5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SmeltError, match="fields that may change"):
        smelt.llm.load(path)
    other = tmp_path / "other.gguf"
    writer = gguf.GGUFWriter(other, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(SmeltError, match="no architecture"):
        smelt.load(other)


def test_released_weights_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    write_gguf(path, CASES["llama"])
    weights = open_checkpoint(path).weights
    before = {name: weights[name].numpy() for name in weights}
    want = {name: array.copy() for name, array in before.items()}
    weights.release()
    for name in weights:
        np.testing.assert_array_equal(before[name], want[name])
        np.testing.assert_array_equal(weights[name].numpy(), want[name])


@pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says which pages of a mapping are in memory")
def test_pages_of_the_file_are_given_back(tmp_path: Path) -> None:
    """Weights are packed when they are bound: compiled now, and found in the cache of compiled steps."""
    path = tmp_path / "model.gguf"
    write_gguf(path, CASES["llama"])
    for _ in range(2):
        with smelt.llm.load(path, engine="native"):
            mapped = Path("/proc/self/smaps").read_text().partition(str(path))[2]
            assert int(mapped.partition("Rss:")[2].split()[0]) == 0
