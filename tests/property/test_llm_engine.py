"""The engine of language models over a step in NumPy whose cache holds the tokens themselves: random arrivals, cancels,
deadlines, preemptions, NaN logits and steps that fail, with and without steps that follow before tokens are read, and
runs of steps over slots.

The next token is a hash of all tokens that a query sees, so an answer with anything of another request in it is wrong.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import MemoryLimitError, RunError
from smelt.llm.batch import Batch, Pools
from smelt.llm.cache import Pool
from smelt.llm.config import PAGE, Config, Layer
from smelt.llm.decode import DecodeRun
from smelt.llm.decoder import Decoded
from smelt.llm.draw import Draw
from smelt.llm.engine import AHEAD_IN_RUN, Engine
from smelt.llm.request import Request
from smelt.llm.sample import Sampler, Sampling

TOKENS = 50
END = 7


def likeliest(seen: Array) -> tuple[int, int] | None:
    """After the tokens that a query sees two are equally likely, and no other is; None stands for a row of NaN."""
    found = crc32(seen.astype(np.int32).tobytes())
    first = found // 61 % (TOKENS - 1)
    return None if found % 61 == 0 else (first, first + 1 + found // 7 % (TOKENS - 1 - first))


def next_token(seen: Array, uniform: float = 0.0) -> int | None:
    """The first of both where none is drawn."""
    found = likeliest(seen)
    return None if found is None else found[int(2 * uniform)]


@dataclass(slots=True)
class HashRows:
    """What a step gives; a step that failed on a device says so when it is read."""

    _logits: Array
    picks: bool
    failed: bool
    is_drawn: bool = False

    @property
    def logits(self) -> Array:
        if self.failed:
            raise RunError("the device failed")
        return self._logits

    states = logits

    @property
    def picked(self) -> Any:
        return self._logits.argmax(1).astype(np.int32) if self.picks else None

    def best(self, row: int) -> int | None:
        if not self.picks or np.isnan(self.logits[row]).any():
            return None
        return int(self.logits[row].argmax())


@dataclass(slots=True)
class HashStep:
    """Keys are tokens, values their positions. `meanwhile` is called while a step runs."""

    window: int | None
    picks: bool
    meanwhile: Callable[[], None]
    fails: Callable[[], str]  # "launch", "read", "memory" or nothing
    runs: bool = False
    most: Callable[[int, int], int] = lambda *_: 64
    precision: str = "f32"
    platform: str = "cpu"
    followed: int = 0
    lost: Any = None  # keys of a step that failed: those who read them fail, too
    near: int | None = None  # the window of a second layer, which has pages of its own

    def run(self, batch: Batch, pools: Pools, tokens: Any = None) -> tuple[HashRows, Pools]:
        self.meanwhile()
        self.followed += tokens is not None
        (keys, values), *others = pools
        page, place = batch.page_slots
        keys[page, 0, 0, place] = batch.tokens if tokens is None else tokens
        values[page, 0, place, 0] = batch.position
        for near_keys, near_values in others:
            near_keys[batch.sliding_page, 0, 0, place] = keys[page, 0, 0, place]
            near_values[batch.sliding_page, 0, place, 0] = batch.position
            self._check_near(near_keys, near_values, keys, batch)
        logits = np.full((len(batch.rows), TOKENS), -np.inf, np.float32)
        for i, row in enumerate(batch.rows):
            found = likeliest(self._seen(keys, values, batch, row))
            logits[i, slice(None) if found is None else list(found)] = np.nan if found is None else 1
        return HashRows(logits, self.picks, self.may_fail(keys)), pools

    def _check_near(self, near_keys: Array, near_values: Array, keys: Array, batch: Batch) -> None:
        """What the last token of each sequence sees in the second layer's pages is what is in the first one's."""
        assert self.near is not None
        assert batch.sliding is not None
        for sequence, last in dict(zip(batch.sequence.tolist(), batch.position.tolist(), strict=True)).items():
            at = np.arange(max(0, last - self.near + 1), last + 1)
            page, full = batch.sliding[sequence, at // PAGE], batch.table[sequence, at // PAGE]
            assert (near_values[page, 0, at % PAGE, 0] == at).all()
            assert (near_keys[page, 0, 0, at % PAGE] == keys[full, 0, 0, at % PAGE]).all()

    def may_fail(self, keys: Array) -> bool:
        """Whether what is computed with these keys will fail when it is read."""
        failure = "read" if keys is self.lost else self.fails()
        if failure:
            self.lost = keys
        if failure == "launch":
            raise RunError("the step failed")
        if failure == "memory":
            raise MemoryError
        return failure == "read"

    def _seen(self, keys: Array, values: Array, batch: Batch, row: int) -> Array:
        last = int(batch.position[row])
        at = np.arange(0 if self.window is None else max(0, last - self.window + 1), last + 1)
        page = batch.table[batch.sequence[row], at // PAGE]
        np.testing.assert_array_equal(values[page, 0, at % PAGE, 0], at)
        found: Array = keys[page, 0, 0, at % PAGE]
        return found

    free_memory = None

    has_runs = True

    def begin_run(self, requests: Sequence[Any], pools: Pools, spare: int | None) -> Any:
        return DecodeRun(HashSlots(self), requests, pools) if self.runs else None  # type: ignore[arg-type]

    def put(self, array: Array) -> Array:
        return array

    enlarge = None

    def memory(self, tokens: int, rows: int, sequences: int, pages: int) -> int:
        return 0

    def close(self) -> None: ...


@dataclass(slots=True)
class Fetched:
    """A result of a step in a run."""

    array: Array
    failed: bool

    def copy_to_host(self) -> None: ...

    def numpy(self) -> Array:
        if self.failed:
            raise RunError("the device failed")
        return self.array


@dataclass(slots=True)
class HashSlots:
    """The programs of a run, in NumPy: tokens and positions of each slot, [s, t]."""

    step: HashStep
    vocabulary: int = TOKENS
    begun: int = 0

    def fill(self, pools: Pools, table: Array, begin: Array, end: Array) -> list[Array]:
        ((keys, values),) = pools
        place = np.arange(table.shape[1] * PAGE)
        seen = (begin[:, None] <= place) & (place < end[:, None])
        slots = [np.where(seen, each[table].reshape(len(table), -1), 0) for each in (keys, values)]
        if self.step.may_fail(keys):
            self.step.lost = slots[0]
        return slots

    def drawing(self, given: Any, caches: list[Array], position: Array, asked: Draw) -> Decoded:
        return self.greedy(given, caches, position, np.where(asked.temperature > 0, asked.uniform, 0))

    def greedy(self, given: Any, caches: list[Array], position: Array, uniform: Any = None) -> Decoded:
        self.step.meanwhile()
        self.step.followed += self.begun > 0
        self.begun += 1
        tokens = given.array if isinstance(given, Fetched) else given
        keys, values = caches
        best = np.full(len(tokens), -1, np.int32)
        for slot, (token, last) in enumerate(zip(tokens, position, strict=True)):
            if last >= keys.shape[1]:
                continue
            keys[slot, last], values[slot, last] = token, last
            first = 0 if self.step.window is None else max(0, last - self.step.window + 1)
            np.testing.assert_array_equal(values[slot, first : last + 1], np.arange(first, last + 1))
            found = next_token(keys[slot, first : last + 1], 0.0 if uniform is None else uniform[slot])
            best[slot] = -1 if found is None else found
        logits = np.full((len(tokens), TOKENS), np.nan, np.float32)
        return Decoded(Fetched(best, self.step.may_fail(keys)), Fetched(logits, False), caches, position + 1)

    def save(self, pools: Pools, caches: list[Array], page: Array, slot: Array, number: Array) -> Pools:
        ((keys, values),) = pools
        if self.step.may_fail(keys):
            raise RunError("the copy failed")
        for at, owner, i in zip(page, slot, number, strict=True):
            if at >= 0:
                keys[at, 0, 0], values[at, 0, :, 0] = (each[owner, i * PAGE : (i + 1) * PAGE] for each in caches)
        return pools


def expect(request: Request, window: int | None) -> tuple[list[int], str]:
    """The answer to a request alone, and how it ends."""
    sampler = request.sampler
    assert sampler is not None
    tokens, made = request.tokens[: request.prompt], list[int]()
    while len(made) < request.most:
        uniform = sampler.uniform(len(tokens)) if sampler.sampling.temperature else 0.0
        found = next_token(np.array(tokens if window is None else tokens[-window:]), uniform)
        if found is None:
            return made, "error"
        tokens.append(found)
        made.append(found)
        if found == END:
            return made, "stop"
    return made, "length"


def draw_most(dice: Random) -> Callable[[int, int], int]:
    """How many tokens a step reads."""
    count = dice.choice((1, 5, 70, 200))
    return lambda *_: count


@dataclass
class Play:
    """Requests that arrive, are cancelled or late while an engine works."""

    dice: Random
    window: int | None
    picks: bool
    runs: bool
    failing: float
    near: int | None = None
    every: list[Request] = field(default_factory=list)
    over: dict[int, int] = field(default_factory=dict)  # by request: the steps until it was cancelled or late
    failures: int = 0
    guilty: set[int] = field(default_factory=set)  # requests that ran when a step failed

    def run(self) -> HashStep:
        dice = self.dice
        layers = (Layer(None, self.window), *([] if self.near is None else [Layer(None, self.near)]))
        config = Config("toy", layers, 1, 1, 1, 1, 1, TOKENS, 400, 1e-5, "silu", 1.0, own_pages=True)
        step = HashStep(self.window, self.picks, self.change, self.fail, self.runs, near=self.near)
        pool = Pool(config, step.put, dice.randrange(7, 12), copies=True, sequences=6)
        if pool.pages.sliding is not None:  # fewer than are planned: they may lack, too
            pool.pages.sliding.limit, pool.pages.sliding._small = dice.randrange(5, 8), dice.choice((3, 9))
        self.engine = engine = Engine(step, pool, 6)
        engine._thread = threading.current_thread()  # so that steps follow
        self.stems = [[dice.randrange(TOKENS) for _ in range(200)] for _ in range(2)]
        self.change()
        while self.engine._has_work or len(self.every) < 12:
            engine.scheduler._most = draw_most(dice)
            if engine.scheduler.running and dice.random() < 0.05:
                engine.scheduler.preempt(dice.choice(engine.scheduler.running))
            engine._run(engine._plan())
            self.change()
        return step

    def change(self) -> None:
        """What other threads do while a step runs."""
        dice = self.dice
        if len(self.every) < 12 and dice.random() < 0.3:
            stem = dice.choice(self.stems)[: dice.choice((0, 9, 60, 64, 70, 127, 128, 190))]
            prompt = [*stem, *(dice.randrange(TOKENS) for _ in range(dice.choice((1, 2, 8, 30))))]
            logprobs, temperature = None if dice.random() < 0.9 else 1, dice.choice((0.0, 0.0, 1.0))
            sampling = Sampling(temperature=temperature, seed=dice.randrange(9), logprobs=logprobs)
            most, client, first = dice.randrange(1, 40), dice.choice("ab"), None
            for alternative in range(dice.choice((1, 1, 1, 3))):
                sampler = Sampler(sampling, prompt, TOKENS, alternative)
                ends = frozenset({END})
                request = Request(list(prompt), most, sampler, ends=ends, client=client, after=first)
                first = first or request
                self.every.append(request)
                self.engine.add(request)
        if self.every and dice.random() < 0.06:
            request = dice.choice(self.every)
            if dice.random() < 0.5:
                request.cancelled = True
            else:
                request.deadline = time.monotonic() - 1
            self.over.setdefault(id(request), self.engine.steps)
        for request in self.every:
            waited = self.engine.steps - self.over.get(id(request), self.engine.steps)
            assert request.finish is not None or waited <= AHEAD_IN_RUN + 1, "it ends soon, also where it waits"

    def fail(self) -> str:
        if self.dice.random() >= self.failing:
            return ""
        self.failures += 1
        self.guilty |= {id(each) for each in self.engine.scheduler.running}
        return self.dice.choice(("launch", "read", "memory") if self.picks else ("launch", "memory"))


def is_failure(error: BaseException | None) -> bool:
    """Whether a request has the error of a step."""
    return isinstance(error, MemoryLimitError) or (isinstance(error, RunError) and "failed" in error.message)


@pytest.mark.parametrize(
    ("window", "near", "picks", "runs"),
    [
        *((window, None, *how) for window in (None, 100) for how in ((False, False), (True, False), (True, True))),
        *((None, near, picks, False) for near, picks in ((1, False), (30, True), (100, False))),
    ],
)
def test_answers_are_those_of_each_request_alone(
    window: int | None, near: int | None, picks: bool, runs: bool, seed: int
) -> None:
    dice = Random(seed)
    followed = failures = preempted = cached = 0
    for number in range(60):
        play = Play(dice, window, picks, runs, 0.02 if number % 2 else 0.0, near)
        followed += play.run().followed
        failures += play.failures
        preempted += play.engine.scheduler.preempted
        pages = play.engine.pool.pages
        for each in (pages, pages.sliding or pages):
            assert (each.held, each.available) == (0, each.limit)
        failed = [request for request in play.every if is_failure(request.error)]
        errors = {id(request.error) for request in failed}
        assert len(errors) <= play.failures, "a step that failed does not make others fail"
        assert play.guilty.issuperset(map(id, failed))
        for request in play.every:
            want, finish = expect(request, window)
            cached += request.cached
            assert request.tokens[request.prompt :] == want[: request.generated]
            if request.finish not in ("cancelled", "deadline") and id(request.error) not in errors:
                assert (request.finish, request.generated) == (finish, len(want))
    assert bool(followed) == picks
    assert failures
    assert preempted
    assert cached
