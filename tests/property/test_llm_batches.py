"""Batch invariance of language models on the native engine: random arrivals, lengths, prefixes, chunks, cancels and
preemptions; the bits of each request are those of the request alone, and no page is lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import pytest

import smelt.llm
from smelt.llm import LanguageModel, Sampling
from smelt.llm.cache import Pool
from smelt.llm.engine import Engine
from smelt.llm.request import Request
from smelt.llm.sample import Sampler
from tests.llm_checkpoints import FIXTURE, Case, write_checkpoint
from tests.llm_gguf import write_gguf

CASES = {case.name: case for case in Case.load(FIXTURE)}


@pytest.fixture(scope="module", params=["gemma2", "mistral", "qwen3moe-some", "llama-biases q4_0", "smollm3 bf16"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LanguageModel]:
    """Windows in some layers, softcaps and grouped heads; windows in all layers, whose pages are given back; a mixture
    of experts; block-quantised weights, activations in 8 bits; weights and activations of bf16."""
    name, _, blocks = request.param.partition(" ")
    case, path = CASES[name], Path(tmp_path_factory.mktemp("model"))
    if blocks:
        path /= "model.gguf"
        write_gguf(path, case, blocks)
    else:
        write_checkpoint(path, case.config, case.shapes)
    with smelt.llm.load(path, engine="native") as loaded:
        yield loaded


@dataclass(frozen=True, slots=True)
class Asked:
    """What one client asks for, and when."""

    tokens: tuple[int, ...]
    most: int
    sampling: Sampling
    arrival: int  # the step before which it comes
    cancel: int | None  # the step before which it is cancelled
    alternative: int
    client: str

    def request(self, vocabulary: int) -> Request:
        sampler = Sampler(self.sampling, self.tokens, vocabulary, self.alternative)
        return Request(list(self.tokens), self.most, sampler, client=self.client)


def draw(dice: Random, vocabulary: int) -> list[Asked]:
    stems = [[dice.randrange(vocabulary) for _ in range(140)] for _ in range(2)]
    asked = []
    for _ in range(dice.randrange(2, 9)):
        own = [dice.randrange(vocabulary) for _ in range(dice.choice((1, 6, 7, 8, dice.randrange(1, 30))))]
        stem = dice.choice(stems)[: dice.choice((0, 5, 55, 55, 64, 70, 118, 128))]
        sampling = Sampling(
            temperature=dice.choice((0.0, 0.8, 2.0)),
            top_p=dice.choice((1.0, 0.7)),
            repetition_penalty=dice.choice((1.0, 1.3)),
            seed=dice.randrange(1000),
            logprobs=3,
        )
        most = min(dice.randrange(1, 14), 160 - len(stem) - len(own))
        if most < 1:
            continue
        arrival = dice.randrange(6)
        cancel = arrival + dice.randrange(8) if dice.random() < 0.2 else None
        asked.append(
            Asked((*stem, *own), most, sampling, arrival, cancel, dice.randrange(2), dice.choice(("ann", "bob")))
        )
    return asked


def always(count: int) -> Callable[[int, int], int]:
    return lambda *_: count


def engine_of(model: LanguageModel, pages: int) -> Engine:
    return Engine(model._step, Pool(model.config, model._step.put, pages, copies=True), 6)


def alone(model: LanguageModel, asked: Asked) -> Request:
    engine, request = engine_of(model, 8), asked.request(model.config.v)
    engine.add(request)
    while request.finish is None:
        engine.run_step()
    return request


def test_bits_do_not_depend_on_the_batch(model: LanguageModel, seed: int) -> None:
    dice = Random(seed)
    preempted = cached = 0
    for _ in range(8):
        every = draw(dice, model.config.v)
        engine = engine_of(model, dice.randrange(3, 5))
        requests = [asked.request(model.config.v) for asked in every]
        now = 0
        while any(request.finish is None for request in requests):
            for asked, request in zip(every, requests, strict=True):
                if asked.arrival == now:
                    engine.add(request)
                if asked.cancel == now:
                    request.cancelled = True
            chunk = dice.choice((1, 3, 17, 64, 200))
            engine.scheduler._most = always(chunk)
            if engine.scheduler.running and dice.random() < 0.05:
                engine.scheduler.preempt(dice.choice(engine.scheduler.running))
            engine.run_step()
            now += 1
        pages = engine.pool.pages
        for each in (pages, pages.sliding or pages):
            assert (each.held, each.available) == (0, each.limit)
        preempted += engine.scheduler.preempted
        for asked, request in zip(every, requests, strict=True):
            want = alone(model, asked)
            cached += request.cached
            assert request.error is None
            if request.finish == "cancelled":
                assert asked.cancel is not None
                assert request.pieces == want.pieces[: len(request.pieces)]
            else:
                assert (request.finish, request.pieces) == (want.finish, want.pieces)
    assert preempted
    assert cached
