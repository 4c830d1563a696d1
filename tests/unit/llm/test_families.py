"""Every family against transformers: logits of tiny checkpoints that `tests/fixtures/make_llm.py` recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import smelt.llm
from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError
from smelt.ir.blocks import TABLE as BLOCKS
from smelt.llm.families import TABLE, read_config
from tests.llm_checkpoints import FIXTURE, Case, compare, write_checkpoint

CASES = Case.load(FIXTURE)
COMPILED = ("llama", "gemma2", "qwen3moe")  # by the native engine in every run


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


def test_every_family_has_a_case() -> None:
    known = {read_config(case.config, case.name).family for case in CASES}
    assert known == {row.name for row in TABLE}


def test_the_page_lists_what_is_there() -> None:
    page = (Path(__file__).parents[3] / "docs" / "llm.md").read_text("utf-8")
    for row in TABLE:
        assert f"| {row.name} | {', '.join(row.architectures)} | {', '.join(row.gguf) or 'llama'} |" in page
    assert ", ".join(block.name for block in BLOCKS) + "." in page


LLAMA = CASES[0]
STRANGE: list[tuple[str, dict[str, Any]]] = [
    ("an unknown field", {"logit_scale": 0.5}),
    ("an unknown scaling", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}),
    ("an unknown field of a scaling", {"rope_parameters": {"rope_type": "default", "twist": 2}}),
    ("quantised by somebody", {"quantization_config": {"quant_method": "gptq"}}),
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
