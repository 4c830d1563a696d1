"""Fields of configurations: what changes transformers' logits changes what is read, or is refused (recorded by
`tests/fixtures/make_llm_fields.py`)."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

import smelt.llm
from smelt.cli.standalone_chat import open_checkpoint as open_for_chat
from smelt.errors import FileError, RunError, SmeltError
from smelt.llm.checkpoint import open as open_checkpoint
from smelt.llm.config import Config, Rope
from smelt.llm.decoder import Decoder
from smelt.llm.families import read_config
from smelt.tensor.instantiate import instantiate
from tests.llm_checkpoints import FIXTURE, Case, compare, write_checkpoint

CASES = {case.name: case for case in Case.load(FIXTURE)}
ROWS = [json.loads(line) for line in gzip.decompress(FIXTURE.with_name("llm_fields.json.gz").read_bytes()).splitlines()]
TANH = ("gelu_new", "gelu_pytorch_tanh")  # two names of one function
FAR = 24  # tokens that were computed: no longer window or context changes anything


def frequencies(rope: Rope) -> Rope:
    """Those of a text of FAR tokens."""
    if rope.most is None or rope.long is None:
        return rope
    return replace(rope, frequencies=rope.frequencies if rope.most >= FAR else rope.long, long=None, most=None)


def numbers(config: dict[str, Any]) -> Config:
    """What decides the logits of a short text."""
    found = read_config(config, "config.json")
    windows = [None if (each.window or 0) >= FAR else each.window for each in found.layers]
    ropes = [each.rope and frequencies(each.rope) for each in found.layers]
    changed = zip(found.layers, windows, ropes, strict=True)
    layers = tuple(replace(each, window=window, rope=rope) for each, window, rope in changed)
    activation = TANH[0] if found.activation in TANH else found.activation
    width = 0 if all(each.experts for each in layers) else found.f  # of an MLP that is nowhere
    return replace(found, layers=layers, activation=activation, f=width, stop=(), bos=None, context=0)


@pytest.mark.parametrize("name", dict.fromkeys(row[0] for row in ROWS))
def test_fields_count_where_they_do_in_transformers(name: str) -> None:
    config = CASES[name].config
    before = numbers(config)
    seen: Counter[str] = Counter()
    wrong = []
    for _, key, *value, changed in (row for row in ROWS if row[0] == name):
        new = {k: v for k, v in config.items() if k != key} | dict.fromkeys([key] if value else [], *value)
        try:
            after = numbers(new)
        except SmeltError:
            seen["refused"] += 1
            continue
        seen["read"] += 1
        if key in ("attention_bias", "mlp_bias", "use_bias", "tie_word_embeddings"):
            continue  # the checkpoint decides: it lacks the biases, or has both matrices
        if (after != before) != changed and not (key == "max_position_embeddings" and value == [3]):
            wrong.append((key, *value, changed))
    assert not wrong
    assert seen["read"] > 50, seen


def test_an_output_matrix_of_its_own_counts_whatever_the_configuration_says(tmp_path: Path) -> None:
    case = CASES["llama"]
    assert "lm_head.weight" in case.shapes
    tied = Case("tied", case.config | {"tie_word_embeddings": True}, case.shapes, case.tokens, case.logits, [], [])
    write_checkpoint(tmp_path, tied.config, tied.shapes)
    assert not open_checkpoint(tmp_path).config.tied
    compare(tied, tmp_path, "reference", single=1, greedy=0)


def read(folder: Path) -> None:
    found = open_checkpoint(folder)
    instantiate(Decoder, found.weights, strict=True, config=found.config, formats=found.formats)


def test_every_tensor_of_a_checkpoint_is_needed(tmp_path: Path, seed: int) -> None:
    choose = Random(seed)
    for name in ("llama-biases", "qwen3-bias", "gpt2", "qwen3moe-some"):
        case = CASES[name]
        biases = [each for each in case.shapes if "0" in each and "bias" in each]
        for lost in (*choose.sample(sorted(case.shapes), 5), *biases):
            write_checkpoint(tmp_path, case.config, {key: sizes for key, sizes in case.shapes.items() if key != lost})
            with pytest.raises(SmeltError):
                read(tmp_path)
    write_checkpoint(tmp_path, CASES["llama"].config | {"attention_bias": True}, CASES["llama"].shapes)
    with pytest.raises(FileError, match="biases are missing"):
        open_checkpoint(tmp_path)


def test_longrope_holds_for_the_context_that_it_was_loaded_for(tmp_path: Path) -> None:
    case = CASES["phi3-short"]
    short, long, whole = (read_config(case.config, "config.json", context) for context in (160, 161, None))
    assert (short.longest, long.longest) == (160, 640)
    assert (short.switch, long.switch) == (None, 160)
    assert long == whole
    write_checkpoint(tmp_path, case.config, case.shapes)
    with smelt.llm.load(tmp_path, engine="reference", context=160) as model:
        assert model.context == 160
        with pytest.raises(RunError, match="too many tokens"):
            model.logits([3] * 161)
    compiled = open_for_chat(tmp_path).config  # a program without Python keeps its rotary positions
    assert (compiled.switch, compiled.longest) == (None, 160)
