"""Autotuning: measures which schedules make a program's kernels faster on this machine, for the tuning database.

Program, weights, inputs and seconds → `Tuning`. Called by `smelt tune` and `smelt.load(…, tune=…)`. The program is
built once with timestamps and run-time tunables (`kernel.tune.tunables`). A round interleaves calls with several sets
of schedules, each with another schedule for every key, so that one call measures all kernels in place;
`kernel.tune.search` proposes them. At the end the whole program, built as it will be used, is compared with the program
as it was. Schedules are kept only if it is faster by more than the noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import TypeAlias, TypeVar

import numpy as np

from smelt.buffer import as_array
from smelt.device.api import Module
from smelt.device.registry import device_of, find_device
from smelt.device.step_log import StepLog
from smelt.dtype import Array
from smelt.engine import tuned
from smelt.engine.compile import NAME, Build, ProgramPlan, build_plan, lower, plan_lowered
from smelt.engine.signature import signature_of
from smelt.engine.tuned import Database, Record
from smelt.ir.core import Program
from smelt.kernel.plan.plan import Copy, Launch, walk
from smelt.kernel.tune.cost_model import Machine, predict_cost
from smelt.kernel.tune.schedules import KernelKey, Lookup, Schedule, default_schedule, legal_schedules, no_schedule
from smelt.kernel.tune.search import FRACTIONS, Estimate, Lesson, Search, pair_ratios
from smelt.kernel.tune.tunables import EACH, Tunables
from smelt.run.executable import NativeExecutable
from smelt.target import Target, tile_shape
from smelt.weights import Weights

AT_ONCE = 8  # schedules of a key per round
CALLS = (8, 40)  # per schedule, at least and at most
ROUND = 0.5  # seconds per round, at least
SMALL = 0.01  # fraction of a call's time below which a key is not tuned
FINAL = (24, 2000)  # pairs of calls at the end, at least and at most
NEIGHBOURS = 3  # pairs per ratio: few, because a machine's speed changes within a second
PATIENCE = 4  # calls until one is not preempted
LAST = 0.15  # fraction of the time for the final comparison

T = TypeVar("T")
Timed: TypeAlias = tuple[ProgramPlan, NativeExecutable, StepLog]  # a program with timestamps
Report = Callable[[float, str], None]  # seconds spent, current activity


@dataclass(frozen=True, slots=True)
class Finding:
    """The result for a key: its fraction of a call's time, the schedule to use, and how many candidates were tried."""

    key: KernelKey
    share: float
    schedule: Schedule
    estimate: Estimate
    tried: int
    schedules: int


@dataclass(frozen=True, slots=True)
class Tuning:
    """`whole`: the time of a call with the new schedules over the time before, None where no schedule changes; `kept`:
    whether the new schedules are used from now on. `known`: keys that were searched completely before."""

    findings: tuple[Finding, ...]
    whole: Estimate | None
    kept: bool
    known: int
    seconds: float
    enough: int | None = None  # seconds that would do, where the time was too short to compare the whole program

    @property
    def tries(self) -> int:
        return sum(each.tried for each in self.findings)


def tune(
    program: Program,
    weights: Weights,
    inputs: Sequence[Array],
    seconds: float,
    *,
    seed: int = 0,
    report: Report = lambda spent, what: None,
    database: Database | None = None,
    target: Target | None = None,
) -> Tuning:
    """Measure for about `seconds`, and keep faster schedules. By default the target is this processor."""
    start = time.perf_counter()
    bench = Bench(program, weights, inputs, target or find_device().target())
    return _Tuner(bench, inputs, seconds, seed, report, database or tuned.database(), start).run()


@dataclass(slots=True)
class Bench:
    """A program that is built with several schedules and measured interleaved."""

    program: Program
    weights: Weights
    inputs: Sequence[Array]
    target: Target = field(default_factory=lambda: find_device().target())
    lowered: Program = field(init=False)
    first: NativeExecutable | None = None  # its prepared weights are shared by all others

    def __post_init__(self) -> None:
        self.lowered = lower(self.program, self.target)

    def plan(self, schedules: Lookup) -> ProgramPlan:
        return plan_lowered(self.lowered, signature_of(self.program.main), self.target, schedules=schedules)

    def tunables(self) -> TunableProgram | BuiltPrograms:
        """A program with timestamps whose schedules can change between calls."""
        if not device_of(self.target).has_tunables:
            return BuiltPrograms(self.build_timed)
        tunables = Tunables(tile_shape(self.target))
        plans = plan_lowered(
            self.lowered, signature_of(self.program.main), self.target, schedules=no_schedule, tunables=tunables
        )
        build = build_plan(plans, timestamps=True)
        return TunableProgram(plans, self._bind(build), build.library, NAME, tunables)

    def build_timed(self, schedules: Lookup) -> Timed:
        """The program with timestamps under fixed schedules."""
        plan = self.plan(schedules)
        build = build_plan(plan, timestamps=True)
        bound = self._bind(build)
        return plan, bound, bound.device.step_log(build.library, NAME)

    def plain(self, schedules: Lookup) -> NativeExecutable:
        """The program as `NativeEngine.compile` builds it."""
        return self._bind(build_plan(self.plan(schedules)))

    def _bind(self, build: Build) -> NativeExecutable:
        if self.first is None:
            self.first = build.executable.prepare(self.weights)
            return self.first
        return build.executable.prepared_like(self.first)

    def close(self) -> None:
        if self.first is not None:
            self.first.close()


class TunableProgram:
    """A program whose schedules can change, with the time of each key in its last call."""

    def __init__(
        self, plans: ProgramPlan, bound: NativeExecutable, library: Module, name: str, tunables: Tunables
    ) -> None:
        self.plans, self.bound, self._tunables = plans, bound, tunables
        self._library = library  # owns the memory of the views below
        steps = [each for each in walk(plans.main[0].steps) if isinstance(each, Launch | Copy)]
        self.keys: dict[KernelKey, list[int]] = {}
        for i, step in enumerate(steps):
            for key, _ in step.kernel.chosen if isinstance(step, Launch) else ():
                self.keys.setdefault(key, []).append(i)
        kernels = {step.kernel for step in steps if isinstance(step, Launch)}
        self.variants = 1 + sum(len(each.variants) for each in kernels) / max(len(kernels), 1)  # per kernel, on average
        self._log = bound.device.step_log(library, name)
        self._steps = len(steps)
        self._table: Array = np.zeros(0, np.int64)
        if plans.main[0].tunables:
            self._table = bound.device.exported_array(library, f"{name}_tunables", plans.main[0].tunables)

    def use(self, schedules: Mapping[KernelKey, Schedule]) -> None:
        """Set the schedules of the next calls; keys that are not given use the default."""
        for key, number in self._tunables.numbers.items():
            values = self._tunables.values(key, schedules.get(key, default_schedule(key)))
            self._table[EACH * number : EACH * (number + 1)] = values

    def call(self, inputs: Sequence[Array]) -> Array:
        """Ticks of every step of one call."""
        self.bound(*inputs, keep=True)
        self._log.end()
        log, _ = self._log.read()
        return np.bincount(log[:, 0], log[:, 2] - log[:, 1], self._steps)

    def sum_ticks(self, ticks: Array, key: KernelKey) -> float:
        return float(ticks[self.keys.get(key, [])].sum())


class BuiltPrograms:
    """The same for a device whose schedules are part of the code: a build for every set of schedules."""

    variants = 1.0

    def __init__(self, build: Callable[[Lookup], Timed]) -> None:
        self._build = build
        self._made: dict[frozenset[tuple[KernelKey, Schedule]], Timed] = {}
        self.use({})
        self.keys = list(self._used[0].chosen)

    def use(self, schedules: Mapping[KernelKey, Schedule]) -> None:
        wanted = frozenset(schedules.items())
        if wanted not in self._made:
            if len(self._made) > AT_ONCE + 1:
                del self._made[next(each for each in self._made if each)]  # the default stays
            self._made[wanted] = self._build(schedules.get)
        self._used = self._made[wanted]

    def call(self, inputs: Sequence[Array]) -> Array:
        """Ticks of every key in one call, and of all that has none."""
        plan, bound, log = self._used
        bound(*inputs, keep=True)
        log.end()
        found, _ = log.read()
        steps = [each for each in walk(plan.main[0].steps) if isinstance(each, Launch | Copy)]
        ticks = np.bincount(found[:, 0], found[:, 2] - found[:, 1], len(steps))
        places = {key: i for i, key in enumerate(self.keys)}
        sums = np.zeros(len(places) + 1)
        for step, taken in zip(steps, ticks, strict=True):
            chosen = step.kernel.chosen if isinstance(step, Launch) else ()
            sums[min((places[key] for key, _ in chosen if key in places), default=-1)] += taken
        return sums

    def sum_ticks(self, ticks: Array, key: KernelKey) -> float:
        return float(ticks[self.keys.index(key)])


Variant: TypeAlias = Mapping[KernelKey, Schedule]


def interleave(
    program: TunableProgram | BuiltPrograms,
    variants: Sequence[Variant],
    inputs: Sequence[Array],
    seconds: float,
    seed: int = 0,
) -> list[Array]:
    """Ticks [call, step] of a program with each of several sets of schedules, interleaved in random order."""
    random = np.random.default_rng(seed)
    ticks: list[list[Array]] = [[] for _ in variants]
    start, least, most = time.perf_counter(), *CALLS
    for iteration in range(most):
        if iteration >= least and time.perf_counter() - start > seconds:
            break
        for at in random.permutation(len(variants)):
            program.use(variants[at])
            ticks[at].append(call_undisturbed(partial(program.call, inputs)))
    return [np.array(each) for each in ticks]


def call_undisturbed(call: Callable[[], T]) -> T:
    """The result of a call during which no thread was preempted, if one of `PATIENCE` is."""
    for _ in range(PATIENCE):
        before = _interruptions()
        found = call()
        if _interruptions() == before:
            break
    return found


def _interruptions() -> int:
    """Involuntary context switches of this process; 0 where they are unknown."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


@dataclass(slots=True)
class _Tuner:
    bench: Bench
    inputs: Sequence[Array]
    seconds: float
    seed: int
    report: Report
    database: Database
    start: float
    searches: dict[KernelKey, Search] = field(default_factory=dict)
    shares: dict[KernelKey, float] = field(default_factory=dict)
    before: Mapping[KernelKey, Schedule] = field(default_factory=dict)  # schedules in use so far
    tunable: TunableProgram | BuiltPrograms = field(init=False)
    build_seconds: float = 0.0  # seconds to build the program without tunables
    call: float = 0.0  # seconds per call
    begun: float = 0.0  # seconds until the first round
    rounds: int = 0

    @property
    def spent(self) -> float:
        return time.perf_counter() - self.start

    def run(self) -> Tuning:
        self.report(0.0, "reading the database")
        try:
            known = self._begin()
            self.begun = self.spent
            for fraction in FRACTIONS:
                for search in self.searches.values():
                    search.fraction = fraction
                while self._round():
                    pass
            return self._end(known)
        finally:
            self.bench.close()

    def _begin(self) -> int:
        """Start a search for every key that takes time; returns how many are known completely."""
        here = tuned.here(self.bench.target)
        records = {key: each for (where, key), each in self.database.read().items() if where == here}
        self.before = {key: each.schedule for key, each in records.items()}
        self.report(self.spent, "measuring the program with default schedules")
        begin = time.perf_counter()
        self.tunable = usual = self.bench.tunables()
        self.build_seconds = (time.perf_counter() - begin) / usual.variants
        usual.call(self.inputs)
        begin = time.perf_counter()
        (ticks,) = interleave(usual, [{}], self.inputs, 0.0)
        self.call = (time.perf_counter() - begin) / len(ticks)
        if isinstance(usual, BuiltPrograms):  # every schedule is a build
            self.call += self.build_seconds / CALLS[0]
        middle, total = np.median(ticks, 0), max(float(np.median(ticks.sum(1))), 1.0)
        machine = Machine(here.tile, max(here.threads, 1))
        lessons = _lessons(records, machine)
        known = 0
        for key in usual.keys:
            share = usual.sum_ticks(middle, key) / total
            schedules = self._shuffle(legal_schedules(key, here.tile))
            if share < SMALL or len(schedules) < 2:
                continue
            self.shares[key] = share
            tried = records[key].tried if key in records else {}
            costs = [predict_cost(key, each, machine) for each in schedules]
            search = Search(key, schedules, costs, lessons, tried)
            known += len(search.tried) == len(schedules) - 1
            self.searches[key] = search
        return known

    def _shuffle(self, schedules: Sequence[Schedule]) -> list[Schedule]:
        """The default first, the others in random order, which breaks ties."""
        usual, *others = schedules
        order = np.random.default_rng(self.seed).permutation(len(others))
        return [usual, *(others[i] for i in order)]

    def _round(self) -> bool:
        """Measure some schedules of every key; False where there is nothing to do, or no time."""
        unfinished = {key: search for key, search in self.searches.items() if not search.is_done}
        if not unfinished:
            return False
        left = (self.seconds if self.is_short else (1 - LAST) * self.seconds - self.final) - self.spent
        count = min(AT_ONCE, int(left / (CALLS[0] * self.call)) - 1)
        if count < 1:
            return False
        for key, search in unfinished.items():
            search.lessons = [
                *(lesson for lesson in search.lessons if lesson.key not in self.searches),
                *(lesson for other in self.searches.values() if other.key != key for lesson in other.lessons_learned()),
            ]
        proposals = {key: search.propose(count) for key, search in unfinished.items()}
        width = max(map(len, proposals.values()))
        if width == 0:
            return False
        tried = sum(len(search.ratios) for search in self.searches.values())
        self.report(self.spent, f"{len(unfinished)} kernel shapes, {tried} schedules measured")
        variants: list[Variant] = [
            {key: some[i] for key, some in proposals.items() if i < len(some)} for i in range(width)
        ]
        self._measure(variants)
        return True

    @property
    def final(self) -> float:
        """Seconds that the comparison at the end takes at least."""
        return 2 * self.build_seconds + 2 * FINAL[0] * self.call

    @property
    def enough(self) -> float:
        """Seconds for one whole round and the comparison."""
        return (self.begun + (AT_ONCE + 1) * CALLS[0] * self.call + self.final) / (1 - LAST)

    @property
    def is_short(self) -> bool:
        """Whether there is no time for a comparison: all of it goes into rounds, and a later run goes on with them."""
        return self.begun + 2 * CALLS[0] * self.call + self.final > (1 - LAST) * self.seconds

    def _measure(self, variants: Sequence[Variant]) -> None:
        usual, *others = interleave(self.tunable, [{}, *variants], self.inputs, ROUND, self.rounds)
        self.rounds += 1
        for ticks, variant in zip(others, variants, strict=True):
            for key, schedule in variant.items():
                base = [self.tunable.sum_ticks(call, key) for call in usual]
                mine = [self.tunable.sum_ticks(call, key) for call in ticks]
                if min(*base, *mine) > 0:
                    self.searches[key].add_ratios(schedule, pair_ratios(mine, base))

    # -- the end --

    def _end(self, known: int) -> Tuning:
        measured = any(search.ratios for search in self.searches.values())  # else nothing is new
        found = {key: search.best for key, search in self.searches.items() if measured and search.tried}
        after = {**self.before, **{key: schedule for key, (schedule, _) in found.items()}}
        is_short = self.is_short and not all(search.is_done for search in self.searches.values())
        whole = self._compare_whole(after) if self._differs(after) and not is_short else None
        kept = not is_short and (whole is None or whole.is_faster)
        self._record(found, kept)
        findings = [
            Finding(key, self.shares[key], *search.best, len(search.tried), len(search.schedules))
            for key, search in self.searches.items()
        ]
        findings.sort(key=lambda each: -each.share)
        enough = math.ceil(1.2 * self.enough) if is_short else None
        return Tuning(tuple(findings), whole, kept and whole is not None, known, self.spent, enough)

    def _differs(self, after: Mapping[KernelKey, Schedule]) -> bool:
        return any(
            self.before.get(each, default_schedule(each)) != after.get(each, default_schedule(each))
            for each in self.searches
        )

    def _compare_whole(self, after: Mapping[KernelKey, Schedule]) -> Estimate:
        """Times of the whole program with the new schedules over those before, interleaved."""
        self.report(self.spent, "comparing the whole program")
        was, new = self.bench.plain(self.before.get), self.bench.plain(after.get)
        try:
            first, second = was(*self.inputs, keep=True), new(*self.inputs, keep=True)
            same = all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(first, second, strict=True))
            assert same, "results are bit-identical under every schedule"
            taken: tuple[list[float], list[float]] = ([], [])
            least, most = FINAL
            begin = time.perf_counter()
            patience = max(1.0, min(LAST * self.seconds, self.seconds - self.spent))
            while (count := len(taken[0])) < least or (count < most and time.perf_counter() - begin < patience):
                for at in (count % 2, 1 - count % 2):
                    taken[at].append(call_undisturbed(partial(self._time_call, (was, new)[at])))
            return Estimate.of(pair_ratios(taken[1], taken[0], max(1, len(taken[0]) // NEIGHBOURS)))
        finally:
            was.close()
            new.close()

    def _time_call(self, program: NativeExecutable) -> float:
        begin = time.perf_counter()
        for each in program(*self.inputs, keep=True):
            as_array(each)  # of a device that works on its own: waits
        return time.perf_counter() - begin

    def _record(self, found: Mapping[KernelKey, tuple[Schedule, Estimate]], kept: bool) -> None:
        """Record what was tried and the schedules to use: those before where the whole was not faster."""
        machine = tuned.here(self.bench.target)
        records = []
        for key, (schedule, estimate) in found.items():
            search = self.searches[key]
            tried = MappingProxyType({each: search.estimate(each).ratio for each in search.tried})
            if kept:
                records.append(Record(machine, key, schedule, estimate.ratio, tried))
            else:
                used = self.before.get(key, default_schedule(key))
                ratio = tried.get(used, 1.0)
                records.append(Record(machine, key, used, ratio, tried))
        self.database.append(records)


def _lessons(records: Mapping[KernelKey, Record], machine: Machine) -> list[Lesson]:
    """Corrections of the cost model by measurements in the database."""
    found: list[Lesson] = []
    for key, record in records.items():
        schedules = [default_schedule(key), *record.tried]
        costs = [predict_cost(key, each, machine) for each in schedules]
        found += Search(key, schedules, costs, known=record.tried).lessons_learned()
    return found
