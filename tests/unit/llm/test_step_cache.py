"""Compiled steps in the cache: a checkpoint is loaded again without the compiler, with the same bits."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.device import cache as kept
from smelt.llm import checkpoint as files
from smelt.llm import step_cache
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

CASE = Case.load(FIXTURE)[0]
CHILD = """
import sys
import numpy as np
import smelt
with smelt.llm.load(sys.argv[1], engine="native") as model:
    assert "smelt.engine.compile" not in sys.modules and "smelt.tensor.core" not in sys.modules, "the step is cached"
    np.save(sys.argv[2], model.logits([3, 4, 5]))
    model.save(sys.argv[3])
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SMELT_CACHE_DIR", str(tmp_path / "cache"))
    write_checkpoint(tmp_path / "tiny", CASE.config, CASE.shapes)
    return tmp_path / "tiny"


def test_a_model_is_loaded_again_without_the_compiler(folder: Path, tmp_path: Path) -> None:
    with smelt.llm.load(folder, engine="native") as model:
        logits = model.logits([3, 4, 5])
    given = [str(folder), str(tmp_path / "logits.npy"), str(tmp_path / "tiny.smelt")]
    subprocess.run([sys.executable, "-c", CHILD, *given], check=True, timeout=300)
    np.testing.assert_array_equal(np.load(given[1]), logits)
    with smelt.llm.load(given[2]) as bundle:
        np.testing.assert_array_equal(bundle.logits([3, 4, 5]), logits)


def test_what_cannot_be_read_is_compiled(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = files.open(folder)
    keys = {
        step_cache.key_of(found.with_cache(cache), precision) for cache in ("f32", "f16") for precision in ("f32", "q8")
    }
    assert len(keys) == 4
    key = step_cache.key_of(found, "q8")
    assert key is not None
    other = folder / "other"
    other.write_bytes(b"no bundle")
    kept.default().put(key, other)
    with smelt.llm.load(folder, engine="native") as model:
        assert model.logits([3]).shape == (1, 96)
    assert "cannot be used" in caplog.text
