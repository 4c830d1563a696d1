"""Sampled tokens on a GPU, emulated: drawn behind the step from logits that stay on the device."""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
import smelt.llm
from smelt.device.host_plan import list_launches
from smelt.engine.compile import emit_source, plan_program
from smelt.llm import LanguageModel
from smelt.llm.draw import LONG, Draw, draw_tokens, parameters_of, random_numbers
from smelt.llm.gpu_step import DRAW_BYTES, GpuStep
from smelt.llm.sample import Sampler, Sampling
from tests.cuda.emulated import EmulatedCuda
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint

CASE = Case.load(FIXTURE)[0]
ASKED: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 1.0},
    "top_k": {"temperature": 1.3, "top_k": 20},
    "top_p": {"temperature": 0.8, "top_p": 0.95},
    "min_p": {"temperature": 1.5, "min_p": 0.3},
    "all": {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    "cold": {"temperature": 1e-3, "top_p": 0.5},
    "colder than a device": {"temperature": 1e-5},
    "hot": {"temperature": 1e4, "top_k": 60},
}
TEXTS = Draw("f32[s=S]", "i32[s=S]", "f32[s=S]", "f32[s=S]", "f32[s=S]")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_checkpoint(tmp_path, CASE.config, CASE.shapes)
    return tmp_path


@pytest.fixture
def model(emulated: EmulatedCuda, folder: Path) -> Iterator[LanguageModel]:
    with smelt.llm.load(folder, device="cuda", engine="native", memory_limit="1GB") as loaded:
        yield loaded


def expected(folder: Path, prompts: list[list[int]], asked: list[dict[str, Any]], count: int) -> list[tuple[int, ...]]:
    """The host's tokens."""
    with smelt.llm.load(folder, device="cpu", engine="native", precision="f32", cache="f32") as cpu:
        return [
            cpu.generate(prompt, max_tokens=count, ignore_end=True, **each).ids
            for prompt, each in zip(prompts, asked, strict=True)
        ]


def answer_all(
    model: LanguageModel, prompts: list[list[int]], asked: list[dict[str, Any]], count: int
) -> list[tuple[int, ...]]:
    """Answers of requests that run together."""
    held = threading.Event()
    guest = threading.Thread(target=lambda: model._engine.between_steps(lambda: held.wait(60)))
    guest.start()
    streams = [
        model.stream(prompt, max_tokens=count, ignore_end=True, **each)
        for prompt, each in zip(prompts, asked, strict=True)
    ]
    held.set()
    guest.join()
    return [each.answer().ids for each in streams]


def test_sampled_tokens_are_those_of_the_host(
    model: LanguageModel, emulated: EmulatedCuda, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and beside others with other limits, greedy ones among them. Logits are fetched where the host draws."""
    prompts = [CASE.tokens[i : i + 5 + i] for i in range(len(ASKED) + 1)]
    asked: list[dict[str, Any]] = [{**each, "seed": 3 + i} for i, each in enumerate(ASKED.values())]
    asked.append({"temperature": 0.0, "top_k": 7})
    want = expected(folder, prompts, asked, 6)
    fetched = Counter[int]()
    plain = emulated.emulated.download
    monkeypatch.setattr(
        emulated.emulated, "download", lambda array, at: (fetched.update([array.ndim]), plain(array, at))[1]
    )
    for name, prompt, each, ids in zip([*ASKED, "greedy"], prompts, asked, want, strict=True):
        fetched.clear()
        assert model.generate(prompt, max_tokens=6, ignore_end=True, **each).ids == ids, name
        assert fetched == ({2: 6} if name == "colder than a device" else {}), name
    assert answer_all(model, prompts, asked, 6) == want
    assert len({*want}) == len(want)
    together = [i for i, name in enumerate([*ASKED, "greedy"]) if name in ("top_p", "top_k", "greedy")]
    fetched.clear()
    got = answer_all(model, [prompts[i] for i in together], [asked[i] for i in together], 6)
    assert got == [want[i] for i in together]
    assert not fetched


def test_requests_for_the_host_beside_those_that_a_device_draws(
    model: LanguageModel, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[dict[str, Any]] = [
        {"temperature": 0.9, "top_p": 0.8, "seed": 1},
        {"temperature": 0.9, "frequency_penalty": 1.0, "seed": 2},
        {},
        {"temperature": 1.1, "typical_p": 0.7, "seed": 4},
    ]
    prompts = [CASE.tokens[i : i + 6] for i in range(len(asked))]
    want = expected(folder, prompts, asked, 8)
    chosen, plain = list[int](), Sampler.choose

    def choose(self: Sampler, *given: Any) -> Any:
        chosen.append(self.sampling.seed)
        return plain(self, *given)

    monkeypatch.setattr(Sampler, "choose", choose)
    assert answer_all(model, prompts, asked, 8) == want
    assert Counter(chosen) == {2: 8, 4: 8}
    with_logprobs = model.generate(prompts[0], max_tokens=8, ignore_end=True, logprobs=2, **asked[0])
    assert with_logprobs.ids == want[0]
    assert all(len(each.top) == 2 for each in with_logprobs.choices)


def test_steps_that_draw(model: LanguageModel, emulated: EmulatedCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """One copy to the device, two graphs and one small copy back; greedy steps stay one graph, and programs that draw
    are compiled when they are needed."""
    driver, called, step = emulated.emulated, Counter[str](), model._engine._step
    assert isinstance(step, GpuStep)
    for name in ("upload", "download", "begin_download"):
        plain = getattr(driver, name)
        monkeypatch.setattr(
            driver, name, lambda *given, name=name, plain=plain: (called.update([name]), plain(*given))[1]
        )

    def count(**options: Any) -> tuple[int, int]:
        model.generate(CASE.tokens, max_tokens=40, ignore_end=True, **options)  # compiles and allocates
        called.clear()
        steps, replays = model._engine.steps, driver.replays
        model.generate(CASE.tokens, max_tokens=40, ignore_end=True, **options)
        steps, replays = model._engine.steps - steps, driver.replays - replays
        assert (called["upload"], called["begin_download"], called["download"]) == (steps, steps, 0)
        return steps, replays

    sampled: dict[str, Any] = {"temperature": 0.8, "top_p": 0.95, "seed": 1}
    steps, replays = count()
    assert steps >= replays >= steps - 8
    assert not step._drawing
    steps, replays = count(**sampled)
    assert 2 * steps >= replays >= 2 * steps - 16
    assert [*step._drawing] == [(False, True)]
    with smelt.compile(draw_tokens, "f32[s=S, v=128256]", TEXTS, "i32[s=S]", device="cuda", engine="native") as drawing:
        compiled: Any = drawing.compiled
        assert compiled.call_bytes({"S": 8}) <= DRAW_BYTES * 8 * 128256


@pytest.mark.parametrize("rows", [1, 3])
def test_a_draw_is_spread_over_thread_groups(emulated: EmulatedCuda, rows: int, seed: int) -> None:
    """No launch has a thread group that reads a whole row: 5,000 logits are three parts."""
    dice, size = np.random.default_rng(seed), 5000
    logits = (3 * dice.standard_normal((rows, size))).astype(np.float32)
    asked = [Sampling(temperature=0.8, top_p=0.95, top_k=800, seed=seed + i) for i in range(rows)]
    samplers = [Sampler(each, [], size) for each in asked]
    draw = parameters_of(asked, size, rows)._replace(uniform=random_numbers([(each, 5) for each in samplers], rows))
    best = logits.argmax(1).astype(np.int32)
    options: dict[str, Any] = {"device": "cuda", "engine": "native", "facts": ("S >= 1",)}
    with smelt.compile(draw_tokens, f"f32[s=S, v={size}]", TEXTS, "i32[s=S]", **options) as drawing:
        got = drawing(logits, draw, best).numpy().tolist()
        *sources, plan = emit_source([plan_program(drawing.program, emulated.target())]).texts(1)
    assert got == [each.choose(row, 5).token for each, row in zip(samplers, logits, strict=True)]
    loops = [int(each) for each in re.findall(r"for \(i64 \w+ = \S+; \w+ < (\d+);", "".join(sources))]
    assert 0 < max(loops) <= LONG < size
    assert len(list_launches(json.loads(plan)["programs"]["smelt0"]["steps"])) <= 75
