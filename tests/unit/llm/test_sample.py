"""Sampling against the formulas of transformers' warpers written out, stop strings, and bad options."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.errors import RunError
from smelt.llm.draw import Draw, draw_tokens, parameters_of, random_numbers
from smelt.llm.sample import Sampler, Sampling, _typical, survivors
from smelt.llm.stops import Stops

SCORES = np.array([2.0, 1.0, 0.5, -1.0, 3.0, 3.0], np.float32)


def kept(**options: Any) -> list[int]:
    return survivors(SCORES.astype(np.float64), Sampling(temperature=1.0, **options))[0].tolist()


def test_limits_keep_what_they_say() -> None:
    p = np.exp(SCORES) / np.exp(SCORES).sum()
    assert kept() == [0, 1, 2, 3, 4, 5]
    assert kept(top_k=2) == [4, 5]
    assert kept(top_k=3) == [0, 4, 5]
    assert kept(top_p=float(p[4] * 1.5)) == [4, 5]
    assert kept(top_p=0.0) == [4, 5]
    assert kept(min_p=float(p[0] / p[4]) - 1e-6) == [0, 4, 5]
    assert kept(min_p=1.0) == [4, 5]
    entropy = -(p * np.log(p)).sum()
    nearest = int(np.abs(-np.log(p) - entropy).argmin())
    assert kept(typical_p=0.0) == [nearest]
    np.testing.assert_allclose(survivors(SCORES.astype(np.float64), Sampling(temperature=1.0))[1], p, rtol=1e-6)


@pytest.mark.parametrize("size", [131, 5000])
def test_a_device_draws_the_tokens_of_the_host(size: int, seed: int) -> None:
    """Random temperatures and limits, equal logits among them; a row is drawn alike beside any others, in programs with
    and without limits."""
    dice, rows = np.random.default_rng(seed), 64 if size < 1000 else 12
    logits = (dice.standard_normal((rows, size)) * dice.choice([0.5, 2, 6], (rows, 1))).astype(np.float32)
    logits[::4] = logits[::4].round()
    asked = [
        Sampling(
            temperature=float(dice.choice([0, 0.3, 1, 2.5])),
            top_k=int(dice.choice([0, 1, 5, 50, 300])),
            top_p=float(dice.choice([1, 0.9, 0.5, 0.0])),
            min_p=float(dice.choice([0, 0.05, 0.5])),
            seed=int(dice.integers(1 << 40)),
        )
        for _ in range(rows)
    ]
    samplers = [Sampler(each, [], size) for each in asked]
    assert all(each.is_plain for each in samplers)
    assert not Sampler(Sampling(temperature=1.0, presence_penalty=0.5), [], size).is_plain
    uniform = random_numbers([(each, row) for row, each in enumerate(samplers)], rows)
    draw = parameters_of(asked, size, rows)._replace(uniform=uniform)
    texts = Draw("f32[s=S]", "i32[s=S]", "f32[s=S]", "f32[s=S]", "f32[s=S]")
    with smelt.compile(draw_tokens, f"f32[s=S, v={size}]", texts, engine="reference") as drawing:
        got = drawing(logits, draw).numpy().tolist()
    assert got == [each.choose(row, i).token for i, (each, row) in enumerate(zip(samplers, logits, strict=True))]
    free = [i for i, each in enumerate(asked) if not each.top_k and each.top_p == 1]
    some = Draw(*(each[free] for each in draw))._replace(top_k=None, top_p=None)
    with smelt.compile(draw_tokens, f"f32[s=S, v={size}]", texts._replace(top_k=None, top_p=None)) as drawing:
        assert not free or drawing(logits[free], some).numpy().tolist() == [got[i] for i in free]


def test_a_draw_beside_the_ends() -> None:
    """Random numbers that round to one give the last token that is left; a row without a greatest logit keeps -1."""
    logits = np.array([[1.0, 2.0, -np.inf, 0.0, -np.inf], [1.0, np.nan, 0.0, 0.0, 0.0], SCORES[:5]], np.float32)
    given = parameters_of([Sampling(temperature=1.0)] * 2, 5, 3)._replace(uniform=np.array([1, 0.5, 0.5], np.float32))
    texts = Draw("f32[s=S]", "i32[s=S]", "f32[s=S]", "f32[s=S]", "f32[s=S]")
    with smelt.compile(draw_tokens, "f32[s=S, v=5]", texts, "i32[s=S]", engine="reference") as drawing:
        call: Any = drawing
        assert call(logits, given, np.array([1, -1, 4], np.int32)).numpy().tolist() == [3, -1, 4]


def test_limits_do_not_matter_to_the_likeliest_token() -> None:
    assert Sampler(Sampling(top_k=5, top_p=0.5, min_p=0.1, typical_p=0.5, seed=7), [], 6).is_simple
    for other in ({"temperature": 0.5}, {"presence_penalty": 0.5}, {"logprobs": 0}, {"logit_bias": {1: 2.0}}):
        assert not Sampler(Sampling(**other), [], 6).is_simple


def test_penalties_and_bias_move_the_choice() -> None:
    def first(prompt: list[int], times: int = 1, **options: Any) -> int:
        sampler = Sampler(Sampling(**options), prompt, 6)
        return [sampler.choose(SCORES, i).token for i in range(times)][-1]

    assert first([]) == 4
    assert first([4], repetition_penalty=1.5) == 5
    assert first([4, 5], repetition_penalty=2.0) == 0
    assert first([], 2, presence_penalty=0.5) == 5
    assert first([], 3, frequency_penalty=0.2) == 4
    assert first([], 3, frequency_penalty=1.5) == 0
    assert first([], logit_bias={3: 100.0}) == 3


def test_draws_depend_on_seed_and_position_alone() -> None:
    def draws(seed: int) -> list[int]:
        sampler = Sampler(Sampling(temperature=1.0, seed=seed), [], 6)
        return [sampler.choose(SCORES, i).token for i in range(40)]

    assert draws(1) == draws(1) != draws(2)
    late = Sampler(Sampling(temperature=1.0, seed=1), [], 6)
    assert late.choose(SCORES, 7).token == draws(1)[7]


def test_draws_have_the_probabilities_of_the_model() -> None:
    sampler = Sampler(Sampling(temperature=0.7, seed=5), [], 6)
    counts = np.bincount([sampler.choose(SCORES, i).token for i in range(20_000)], minlength=6) / 20_000
    scaled = np.exp(SCORES / 0.7)
    np.testing.assert_allclose(counts, scaled / scaled.sum(), atol=0.015)


def test_logprobs_are_those_of_the_model() -> None:
    choice = Sampler(Sampling(logprobs=3, logit_bias={0: 50.0}), [], 6).choose(SCORES, 0)
    total = math.log(np.exp(SCORES).sum())
    assert choice.token == 0
    assert choice.logprob == pytest.approx(2.0 - total, abs=1e-6)
    assert [token for token, _ in choice.top] == [4, 5, 0]


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"temperature": math.nan},
        {"temperature": "hot"},
        {"top_p": 1.5},
        {"top_k": -1},
        {"top_k": 1.5},
        {"min_p": True},
        {"repetition_penalty": 0.0},
        {"seed": -1},
        {"logprobs": -1},
        {"logit_bias": {99: 1.0}},
        {"logit_bias": {"a": 1.0}},
        *({"logit_bias": {1: bias}} for bias in (math.nan, math.inf, 10**400, "1")),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(RunError):
        Sampler(Sampling(**options), [], 6)


@pytest.mark.parametrize("temperature", [0.0, 1e-300, 0.5])
def test_a_bias_of_any_size_forces_and_forbids_tokens(temperature: float) -> None:
    def choose(bias: dict[int, float]) -> int:
        return Sampler(Sampling(temperature=temperature, logit_bias=bias), [], 6).choose(SCORES, 0).token

    assert choose({4: 1.7e308, 3: -1.7e308}) == 4
    assert choose(dict.fromkeys(range(5), -math.inf)) == 5
    with pytest.raises(RunError, match="no token is left"):
        choose(dict.fromkeys(range(6), -math.inf))


def test_logits_that_are_no_numbers_are_refused() -> None:
    for bad in (np.full(6, np.nan, np.float32), np.full(6, -np.inf, np.float32)):
        with pytest.raises(RunError, match="no numbers"):
            Sampler(Sampling(), [], 6).choose(bad, 0)


def test_stop_strings_end_a_stream_wherever_pieces_are_cut() -> None:
    text = "one END two"
    for cut in range(1, len(text)):
        stops = Stops(("END", "ENDLESS"))
        out = ""
        for piece in (text[:cut], text[cut:]):
            part, stopped = stops.add(piece)
            out += part
            if stopped:
                break
        assert (out, stopped) == ("one ", True), cut
    stops = Stops(("END",))
    assert stops.add("an EN") == ("an ", False)
    assert stops.add("T") == ("ENT", False)
    assert stops.add("E") == ("", False)
    assert stops.finish() == "E"


def test_a_repetition_penalty_before_anything_was_seen() -> None:
    for prompt in ([], [99]):  # 99 is no token of this vocabulary
        assert Sampler(Sampling(repetition_penalty=2.0), prompt, 6).choose(SCORES, 0).token == 4


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_tokens_that_hardly_ever_come_change_nothing_about_typical_ones(share: float) -> None:
    scores = np.array([2.0, 1.0, 0.5, -1.0, -3.0], np.float32)
    rare = np.concatenate([scores[:2], np.array([-1e4], np.float32), scores[2:]])
    found = _typical(rare, share)
    assert not found[2]
    np.testing.assert_array_equal(np.delete(found, 2), _typical(scores, share))
