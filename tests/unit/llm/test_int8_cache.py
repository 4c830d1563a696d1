"""Keys and values in int8: near those in f32, the same on every engine, on disk and in bundles; refused where there is
no kernel for them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import smelt
import smelt.llm
from smelt.dtype import i8
from smelt.errors import SmeltError, UnsupportedError
from smelt.ir.ops import paged_attention
from smelt.llm import LanguageModel, paged
from smelt.llm.cache import cache_bytes, pool_sizes
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.checkpoint_model import cache_type
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_gguf

CASE = Case.load(FIXTURE)[0]
PROMPT = [*CASE.tokens, *[3, 5, 7] * 25]  # more than a page


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("int8") / "tiny"
    write_checkpoint(path, CASE.config, CASE.shapes)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, engine="native", precision="f32", cache="int8") as loaded:
        yield loaded


def test_logits_are_near_those_of_exact_keys_and_values(model: LanguageModel, folder: Path) -> None:
    got = model.logits(PROMPT)
    with smelt.llm.load(folder, engine="reference", cache="int8") as reference:
        rounded = reference.logits(PROMPT)
    with smelt.llm.load(folder, engine="reference") as reference:
        exact = reference.logits(PROMPT)
    scale = np.abs(exact).max()
    assert not np.array_equal(rounded, exact)
    errors = np.abs(got - rounded).max(axis=1) / scale
    assert np.median(errors) <= 2e-4
    # A few codes on the edge round otherwise (for the target plain five of the second layer); few rows depend on one.
    assert np.mean(errors > 2e-3) <= 0.02
    np.testing.assert_allclose(got, exact, rtol=0, atol=2e-2 * scale)


def test_the_cache_goes_to_disk_and_into_bundles(model: LanguageModel, folder: Path, tmp_path: Path) -> None:
    model.save(tmp_path / "tiny.smelt")
    want = model.generate(PROMPT, max_tokens=6, logprobs=2)
    with smelt.llm.load(tmp_path / "tiny.smelt") as found:
        assert found.config.cache == i8
        assert model.save_cache(tmp_path / "prompt.cache", PROMPT) == 64
        assert found.load_cache(tmp_path / "prompt.cache") == 64
        again = found.generate(PROMPT, max_tokens=6, logprobs=2)
        assert (again.cached, again.ids, again.choices) == (64, want.ids, want.choices)
    with (
        smelt.llm.load(folder, engine="native", precision="f32", cache="f16") as other,
        pytest.raises(SmeltError, match="another model"),
    ):
        other.load_cache(tmp_path / "prompt.cache")


def test_pages_have_scales(model: LanguageModel) -> None:
    config = model.config
    heads, depth, layers = config.kv_heads, config.head_size, len(config.layers)
    sizes = pool_sizes(config, 3)
    assert sizes == ((3, heads, depth // 4 + 2, 64, 4), (3, heads, 16, depth, 4))
    assert cache_bytes(config, 3, 1) == layers * sum(int(np.prod(each)) for each in sizes)


def test_int8_is_the_default_of_rounded_activations_on_processors(folder: Path, tmp_path: Path) -> None:
    write_gguf(tmp_path / "model.gguf", CASE, "q8_0")
    found = open_checkpoint(tmp_path / "model.gguf")
    odd = replace(found, config=replace(found.config, head_size=6))
    assert [cache_type(found, each) for each in ("q8", "f32", "bf16")] == ["int8", "f32", "bf16"]
    assert (cache_type(found, "q8", on_processor=False), cache_type(odd, "q8")) == ("f16", "f16")
    assert cache_type(found, "q8", on_processor=False, on_gpu=True) == "bf16"
    assert [cache_type(open_checkpoint(folder), "q8", each, not each) for each in (True, False)] == ["f32", "f32"]
    with pytest.raises(UnsupportedError, match="words of four"):
        odd.with_cache("int8")


def test_engines_without_a_kernel_refuse_it(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="kernel") as caught:
        smelt.llm.load(folder, engine="pjrt", cache="int8")
    assert caught.value.remedy
    with pytest.raises(UnsupportedError, match="unknown type"):
        smelt.llm.load(folder, engine="native", cache="i8")
    with pytest.raises(UnsupportedError, match="unknown type"):
        smelt.llm.load(folder, engine="native", cache=["int8"])  # type: ignore[arg-type]


def test_rows_are_rounded_alike_by_the_model_and_by_the_op() -> None:
    """The largest element of a row is 127; a row whose scale is no normal number is zeros, and keeps its scale."""
    least = np.float32(2.0**-126)  # a row with this scale is not yet too small
    rows = np.array([[0, 0], [least * 127, 0], [least * 126, 0], [-1, 0.5], [1e30, -3e38]], np.float32)
    codes, steps = paged_attention.round_rows(rows)
    assert codes.tolist() == [[0, 0], [127, 0], [0, 0], [-127, 64], [0, -127]]
    np.testing.assert_array_equal(steps, np.abs(rows).max(1) / np.float32(127))
    found = paged.round_rows(smelt.tensor(rows, "n k"))
    smelt.realize(*found, engine="reference")
    np.testing.assert_array_equal(found[0].numpy(), codes)
    np.testing.assert_array_equal(found[1].numpy(), steps)
