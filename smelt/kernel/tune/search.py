"""Search over the schedules of one kernel shape key: what to measure next, and when a difference is significant.

Ratios of times come in (a schedule's over the default's, from interleaved runs), proposals go out. No clock and no
compiler: `engine.tune` has those. The cost model prunes; measurements, also of other keys, correct it; schedules within
the noise of the best are measured again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.dtype import Array
from smelt.kernel.tune.schedules import KernelKey, Schedule, features, scale_of

FRACTIONS = (0.1, 0.3, 1.0)  # of all schedules to try: at first, and then while there is time
MIN_TRIES = 2  # schedules to try, where there are as many
SCALE = 1.5  # distance at which a measurement counts half
PRIOR = 0.5  # weight of the cost model beside measurements
EXPLORATION = 0.3  # bonus of an unexplored schedule, at most: a fraction of the time
CONFIDENCE = 3.0  # standard errors of a median that a difference must exceed
MIN_GAIN = 0.01  # relative gain
LESSON_WEIGHT = 0.7  # weight of a measurement of another key with the same sizes
ENOUGH = 8  # ratios for a robust spread
GROUPS = 4  # of neighbouring calls; each gives one ratio
MAX_REPEATS = 3  # of the measurement of one schedule


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median of ratios and its standard error."""

    ratio: float
    error: float

    @staticmethod
    def of(ratios: Sequence[float]) -> Estimate:
        middle = statistics.median(ratios)
        spread = 1.4826 * statistics.median(abs(each - middle) for each in ratios)
        if len(ratios) < ENOUGH:  # too few for a robust spread
            spread = max(spread, (max(ratios) - min(ratios)) / 2)
        return Estimate(middle, 1.2533 * max(spread, 1e-3 * middle) / math.sqrt(len(ratios)))

    @property
    def is_faster(self) -> bool:
        """Whether it is below 1 by more than the noise."""
        return self.is_faster_among(1)

    def is_faster_among(self, count: int) -> bool:
        """The same for the best of `count`: the threshold grows with the number of comparisons."""
        return self.ratio + math.sqrt(CONFIDENCE**2 + 2 * math.log(max(count, 1))) * self.error < 1 - MIN_GAIN


def pair_ratios(times: Sequence[float], others: Sequence[float], groups: int = GROUPS) -> list[float]:
    """Ratios of interleaved times: the minimum of a few neighbours over the minimum of the other's.

    Disturbances only make a time longer, so the minimum of a few is the least disturbed.
    """
    size = max(1, len(times) // groups)
    starts = range(0, len(times) - size + 1, size)
    return [min(times[at : at + size]) / min(others[at : at + size]) for at in starts]


@dataclass(frozen=True, slots=True)
class Lesson:
    """A measurement of a key of the same kind: the logarithm of measured over predicted ratio."""

    key: KernelKey
    schedule: Schedule
    correction: float


@dataclass(slots=True)
class Search:
    """`schedules`: the default first. `costs`: predicted, in any unit. `known`: ratios of an earlier search."""

    key: KernelKey
    schedules: Sequence[Schedule]
    costs: Sequence[float]
    lessons: Sequence[Lesson] = ()
    known: Mapping[Schedule, float] = field(default_factory=dict)
    ratios: dict[Schedule, list[float]] = field(default_factory=dict)
    proposals: dict[Schedule, int] = field(default_factory=dict)
    fraction: float = FRACTIONS[0]

    @property
    def limit(self) -> int:
        """The number of schedules to try, without the default."""
        return min(
            len(self.schedules) - 1, max(MIN_TRIES, int(self.fraction * len(self.schedules)) - (self.fraction < 1))
        )

    @property
    def tried(self) -> list[Schedule]:
        return [each for each in self.schedules[1:] if each in self.ratios or each in self.known]

    @property
    def is_done(self) -> bool:
        return len(self.tried) >= self.limit and not self._undecided_schedules()

    def propose(self, count: int) -> list[Schedule]:
        """Up to `count` schedules to measure: new ones, then those within the noise of the best."""
        found: list[Schedule] = []
        untried = [each for each in self.schedules[1:] if each not in self.tried]
        while untried and len(found) < min(count, self.limit - len(self.tried)):
            worth = self._score(untried, found)
            found.append(untried.pop(int(np.argmin(worth))))
        found += [each for each in self._undecided_schedules() if each not in found][: count - len(found)]
        for each in found:
            self.proposals[each] = self.proposals.get(each, 0) + 1
        return found

    def add_ratios(self, schedule: Schedule, ratios: Sequence[float]) -> None:
        """Add ratios of a schedule's times to the default's."""
        assert schedule in self.schedules
        self.ratios.setdefault(schedule, []).extend(ratios)

    def estimate(self, schedule: Schedule) -> Estimate:
        if schedule == self.schedules[0]:
            return Estimate(1.0, 0.0)
        if schedule in self.ratios:
            return Estimate.of(self.ratios[schedule])
        return Estimate(self.known[schedule], MIN_GAIN)

    @property
    def best(self) -> tuple[Schedule, Estimate]:
        """The schedule to use: the default unless another one is faster by more than the noise."""
        tried = [(each, self.estimate(each)) for each in self.tried]
        faster = [(each, found) for each, found in tried if found.is_faster_among(len(tried))]
        return min(faster, key=lambda pair: pair[1].ratio, default=(self.schedules[0], Estimate(1.0, 0.0)))

    # -- expectations --

    def lessons_learned(self) -> list[Lesson]:
        """What this search teaches searches of other keys."""
        return [Lesson(self.key, each, self._correction(each)) for each in self.tried]

    def _predicted_ratio(self, schedule: Schedule) -> float:
        """The logarithm of the predicted ratio."""
        at = self.schedules.index(schedule)
        return math.log(self.costs[at] / self.costs[0])

    def _correction(self, schedule: Schedule) -> float:
        return math.log(self.estimate(schedule).ratio) - self._predicted_ratio(schedule)

    def _score(self, schedules: Sequence[Schedule], pending: Sequence[Schedule]) -> Array:
        """An optimistic time of each schedule: predicted, corrected by measurements, less a bonus for exploration."""
        here = scale_of(self.key)
        mine = [self.schedules[0], *self.tried]
        others = [each for each in self.lessons if each.key.kind == self.key.kind]
        points = [*self._features(mine), *(features(each.key, each.schedule) for each in others)]
        likeness = LESSON_WEIGHT * _similarity([here], [scale_of(each.key) for each in others], 4 * SCALE)[0]
        surprises = np.array([0.0, *map(self._correction, self.tried), *(each.correction for each in others)])
        proposals = self._features(schedules)
        weights = _similarity(proposals, points, SCALE) * np.concatenate([np.ones(len(mine)), likeness])
        total = PRIOR + weights.sum(1)
        soon = _similarity(proposals, self._features(pending), SCALE).sum(1)  # two proposals of a round should differ
        expected = np.array([self._predicted_ratio(each) for each in schedules])
        corrected: Array = expected + weights @ surprises / total
        hoped: Array = corrected - EXPLORATION * PRIOR / (total + soon) + EXPLORATION * soon
        return hoped

    def _features(self, schedules: Sequence[Schedule]) -> list[tuple[float, ...]]:
        return [features(self.key, each) for each in schedules]

    def _undecided_schedules(self) -> list[Schedule]:
        """Schedules to measure again, the most promising first: those that may still beat the best by `MIN_GAIN`, and
        the best itself where it has rivals or is not significant yet."""
        estimates = {each: self.estimate(each) for each in self.tried if each in self.ratios}
        if not estimates:
            return []
        best = min(estimates, key=lambda each: estimates[each].ratio)
        least = estimates[best].ratio
        if least > 1 - MIN_GAIN:
            return []
        rivals = [
            each
            for each, found in estimates.items()
            if each != best and found.ratio - CONFIDENCE * found.error < least * (1 - MIN_GAIN)
        ]
        certain = estimates[best].is_faster_among(len(self.tried))
        wanted = [best, *rivals] if rivals or not certain else []
        again = [each for each in wanted if self.proposals.get(each, 0) <= MAX_REPEATS]
        return sorted(again, key=lambda each: estimates[each].ratio)[:2]


def _similarity(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], reach: float) -> Array:
    """For each point of a and each of b: 1 where they are equal, 1/2 at distance `reach`."""
    if not b:
        return np.zeros((len(a), 0))
    apart: Array = ((np.array(a)[:, None] - np.array(b)[None]) ** 2).sum(2)
    similarity: Array = 2.0 ** -(apart / reach**2)
    return similarity
