"""Gemma's layers with a window have pages of their own on the native engine: less memory, the same logits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import MemoryLimitError
from smelt.llm import LanguageModel
from smelt.llm.cache import cache_bytes
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

CASE = next(case for case in Case.load(FIXTURE) if case.name == "gemma2")
CONFIG = CASE.config | {"max_position_embeddings": 4096}
TOKENS = (CASE.tokens * 40)[:700]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gemma")
    write_checkpoint(path, CONFIG, CASE.shapes)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, engine="native", precision="f32", sequences=2) as loaded:
        yield loaded


def test_logits_and_tokens_are_those_of_layers_that_share_pages(folder: Path, model: LanguageModel) -> None:
    assert model.config.sliding is not None
    with smelt.llm.load(folder, engine="reference", precision="f32") as shared:
        assert shared.config.sliding is None
        wanted = shared.logits(TOKENS[:150])
        np.testing.assert_allclose(model.logits(TOKENS[:150]), wanted, atol=1e-4 * float(np.abs(wanted).max()))
        ids = [each.generate(TOKENS[:140], max_tokens=3, ignore_end=True).ids for each in (model, shared)]
        assert ids[0] == ids[1]


def test_a_long_context_takes_the_memory_of_its_windows(model: LanguageModel, tmp_path: Path) -> None:
    long = (TOKENS * 6)[:3500]
    first = model.generate(long, max_tokens=2, ignore_end=True)
    pool: Any = model._engine.pool
    assert pool.pages.used >= len(long) // 64
    assert pool.pages.sliding.used <= pool.pages.sliding.limit < len(long) // 64
    sizes = {len(keys) for keys, _ in model._engine.between_steps(lambda: pool._arrays)}
    assert len(sizes) == 2
    assert pool.nbytes == 64 * model.config.layer_bytes * sum(sizes)  # of two layers
    again = model.generate(long, max_tokens=2, ignore_end=True)
    assert again.ids == first.ids
    assert again.cached >= len(long) - 64
    model.save_cache(tmp_path / "cache", long)
    model._engine.between_steps(pool.pages.forget)
    assert model.load_cache(tmp_path / "cache") == len(long) // 64 * 64
    loaded = model.generate(long, max_tokens=2, ignore_end=True)
    assert (loaded.ids, loaded.cached) == (first.ids, len(long) // 64 * 64)
    assert model._engine.between_steps(lambda: (pool.pages.held, pool.pages.sliding.held)) == (0, 0)


def test_fewer_sequences_run_at_once_where_memory_is_limited(folder: Path, model: LanguageModel) -> None:
    config, whole = model.config, 4096 // 64
    shared = whole * 64 * config.cache_bytes
    assert cache_bytes(config, whole, 1) < 0.7 * shared
    step: Any = model._step
    weights = sum(4 * int(np.prod(sizes)) for sizes in CASE.shapes.values())
    limit = weights + step.memory(512, 64, 64, whole) + cache_bytes(config, whole, 3)
    with smelt.llm.load(folder, engine="native", precision="f32", memory_limit=limit) as small:
        assert small._engine.scheduler._sequences < 64
        made = small.generate_all([TOKENS, TOKENS[:90], TOKENS[5:600]], max_tokens=3, ignore_end=True)
        assert made[0].ids == model.generate(TOKENS, max_tokens=3, ignore_end=True).ids
    with pytest.raises(MemoryLimitError):
        smelt.llm.load(
            folder, engine="native", precision="f32", memory_limit=weights + cache_bytes(config, whole, 1) // 2
        )
