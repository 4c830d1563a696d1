"""Configurations of language models, damaged: read, or refused with an error of ours."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.families import read_config
from smelt.llm.gguf_config import config_of
from smelt.read import gguf
from tests.llm_checkpoints import FIXTURE, Case
from tests.llm_gguf import write_gguf

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 7, 1 << 40, 1 << 70, 0.0, -1.5, 1e300, float("nan"), float("inf"), "", "silu"),
    *(
        [],
        [1],
        ["full_attention"],
        {},
        {"rope_type": "yarn"},
        {"rope_type": "llama3", "factor": 0},
        {"a": {"b": 1}},
        "é",
    ),
]


def damaged(config: Any, dice: Random) -> Any:
    """The same with a value somewhere replaced, removed or added."""
    found = dict(config)
    for _ in range(dice.choice((1, 1, 2, 5))):
        name = dice.choice([*found, "new_field"])
        inner = found.get(name)
        if isinstance(inner, dict) and inner and dice.random() < 0.7:
            found[name] = damaged(inner, dice)
        elif dice.random() < 0.2:
            found.pop(name, None)
        else:
            found[name] = dice.choice(VALUES)
    return found


def test_damaged_configurations_are_read_or_refused(seed: int) -> None:
    dice = Random(seed)
    refused = 0
    cases = Case.load(FIXTURE)
    for i in range(3000):
        config = damaged(cases[i % len(cases)].config, dice)
        try:
            found = read_config(config, "config.json")
            assert len(found.layers) >= 1
        except SmeltError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error} for {config}") from error
    assert 1000 < refused < 2900


def test_damaged_metadata_are_read_or_refused(tmp_path: Path, seed: int) -> None:
    pytest.importorskip("gguf")
    dice = Random(seed)
    values = [*VALUES, np.array([1, 2], np.int32), np.array([], np.float32), np.array(["a"])]
    for case in Case.load(FIXTURE):
        if case.name not in ("llama3", "gemma3", "phi3-long", "mixtral"):
            continue
        path = tmp_path / "model.gguf"
        write_gguf(path, case)
        assert open_checkpoint(path).config.family in case.name
        file = gguf.read(path)
        for _ in range(150):
            metadata = dict(file.metadata)
            for _ in range(dice.choice((1, 2))):
                metadata[dice.choice([*metadata, "general.architecture"])] = dice.choice(values)
            try:
                config_of(replace(file, metadata=metadata), None)
            except SmeltError:
                continue
            except Exception as error:
                raise AssertionError(f"{type(error).__name__}: {error} for {metadata}") from error
