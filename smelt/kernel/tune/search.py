"""Search over the choices of one problem: which to measure next, and when to believe what was measured.

`Search` is told ratios of times (a choice's by the default's, from runs taken in turns) and proposes choices; it knows
no clock and no compiler, `engine.tune` has those. Predictions prune; what was measured, here and on other problems,
corrects them; whatever stays close to the best is measured again.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.dtype import Array
from smelt.kernel.tune.schedules import KernelKey, Schedule, features, scale_of

SHARES = (0.1, 0.3, 1.0)  # of all choices that are tried: at first, and then while there is time
FEWEST = 2  # tries, where there are so many choices
REACH = 1.5  # distance at which what was measured says half as much
PRIOR = 0.5  # how much a prediction weighs beside measurements
CURIOUS = 0.3  # what an unknown choice is given ahead, at most: a part of the time
CERTAIN = 3.0  # errors of a median that a difference must exceed
LEAST = 0.01  # gain that is worth anything
LESSON = 0.7  # how much a measurement on the very same sizes weighs, of another problem
MANY = 8  # ratios
GROUPS = 4  # of neighbouring calls, from which ratios are made
AGAIN = 3  # times that one choice is measured once more


@dataclass(frozen=True, slots=True)
class Estimate:
    """The median of ratios and how far it may be off."""

    ratio: float
    error: float

    @staticmethod
    def of(ratios: Sequence[float]) -> Estimate:
        middle = statistics.median(ratios)
        spread = 1.4826 * statistics.median(abs(each - middle) for each in ratios)
        if len(ratios) < MANY:  # too few for a median of distances to mean much
            spread = max(spread, (max(ratios) - min(ratios)) / 2)
        return Estimate(middle, 1.2533 * max(spread, 1e-3 * middle) / math.sqrt(len(ratios)))

    @property
    def is_faster(self) -> bool:
        """Whether it is faster than 1 by more than the noise."""
        return self.is_faster_among(1)

    def is_faster_among(self, count: int) -> bool:
        """The same for the best of so many, of which some look fast by luck: the more, the surer it must be."""
        return self.ratio + math.sqrt(CERTAIN**2 + 2 * math.log(max(count, 1))) * self.error < 1 - LEAST


def pair_ratios(times: Sequence[float], others: Sequence[float], groups: int = GROUPS) -> list[float]:
    """Ratios of times that were taken in turns: the least of some neighbours by the least of the same of the others.

    Whatever else runs makes a time longer and never shorter, so the least of a few is the quietest moment of them.
    """
    size = max(1, len(times) // groups)
    starts = range(0, len(times) - size + 1, size)
    return [min(times[at : at + size]) / min(others[at : at + size]) for at in starts]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a measurement on some problem of the same kind says: the logarithm of true by predicted ratio."""

    key: KernelKey
    schedule: Schedule
    surprise: float


@dataclass(slots=True)
class Search:
    """`schedules`: the default first. `costs`: a cost for each, in any unit. `known`: ratios of an earlier search."""

    key: KernelKey
    schedules: Sequence[Schedule]
    costs: Sequence[float]
    lessons: Sequence[Lesson] = ()
    known: Mapping[Schedule, float] = field(default_factory=dict)
    ratios: dict[Schedule, list[float]] = field(default_factory=dict)
    asked: dict[Schedule, int] = field(default_factory=dict)
    share: float = SHARES[0]

    @property
    def limit(self) -> int:
        """How many choices are tried, the default not counted."""
        return min(len(self.schedules) - 1, max(FEWEST, int(self.share * len(self.schedules)) - (self.share < 1)))

    @property
    def tried(self) -> list[Schedule]:
        return [each for each in self.schedules[1:] if each in self.ratios or each in self.known]

    @property
    def is_done(self) -> bool:
        return len(self.tried) >= self.limit and not self._close()

    def propose(self, count: int) -> list[Schedule]:
        """Up to so many choices to measure now: new ones, then those that are close to the best."""
        found: list[Schedule] = []
        open_ones = [each for each in self.schedules[1:] if each not in self.tried]
        while open_ones and len(found) < min(count, self.limit - len(self.tried)):
            worth = self._worth(open_ones, found)
            found.append(open_ones.pop(int(np.argmin(worth))))
        found += [each for each in self._close() if each not in found][: count - len(found)]
        for each in found:
            self.asked[each] = self.asked.get(each, 0) + 1
        return found

    def tell(self, schedule: Schedule, ratios: Sequence[float]) -> None:
        """Ratios of a choice's times to the default's, each of two runs one after the other."""
        assert schedule in self.schedules
        self.ratios.setdefault(schedule, []).extend(ratios)

    def estimate(self, schedule: Schedule) -> Estimate:
        if schedule == self.schedules[0]:
            return Estimate(1.0, 0.0)
        if schedule in self.ratios:
            return Estimate.of(self.ratios[schedule])
        return Estimate(self.known[schedule], LEAST)

    @property
    def best(self) -> tuple[Schedule, Estimate]:
        """The choice to use: the default unless another one was measured faster by more than the noise."""
        tried = [(each, self.estimate(each)) for each in self.tried]
        faster = [(each, found) for each, found in tried if found.is_faster_among(len(tried))]
        return min(faster, key=lambda pair: pair[1].ratio, default=(self.schedules[0], Estimate(1.0, 0.0)))

    # -- what to expect --

    def learned(self) -> list[Lesson]:
        """What this search can tell others."""
        return [Lesson(self.key, each, self._surprise(each)) for each in self.tried]

    def _expected(self, schedule: Schedule) -> float:
        """The predicted ratio, as a logarithm."""
        at = self.schedules.index(schedule)
        return math.log(self.costs[at] / self.costs[0])

    def _surprise(self, schedule: Schedule) -> float:
        return math.log(self.estimate(schedule).ratio) - self._expected(schedule)

    def _worth(self, schedules: Sequence[Schedule], pending: Sequence[Schedule]) -> Array:
        """For each choice the time to hope for: predicted, corrected, and better the less is known about it."""
        here = scale_of(self.key)
        mine = [self.schedules[0], *self.tried]
        others = [each for each in self.lessons if each.key.kind == self.key.kind]
        places = [*self._places(mine), *(features(each.key, each.schedule) for each in others)]
        likeness = LESSON * _nearness([here], [scale_of(each.key) for each in others], 4 * REACH)[0]
        surprises = np.array([0.0, *map(self._surprise, self.tried), *(each.surprise for each in others)])
        asked = self._places(schedules)
        weights = _nearness(asked, places, REACH) * np.concatenate([np.ones(len(mine)), likeness])
        total = PRIOR + weights.sum(1)
        soon = _nearness(asked, self._places(pending), REACH).sum(1)  # two of one round should not tell the same
        expected = np.array([self._expected(each) for each in schedules])
        corrected: Array = expected + weights @ surprises / total
        hoped: Array = corrected - CURIOUS * PRIOR / (total + soon) + CURIOUS * soon
        return hoped

    def _places(self, schedules: Sequence[Schedule]) -> list[tuple[float, ...]]:
        return [features(self.key, each) for each in schedules]

    def _close(self) -> list[Schedule]:
        """What should be measured again, the most promising first: whatever may still be faster than the best by more
        than is worth anything, and the best itself where it is compared with such, or not certain yet."""
        estimates = {each: self.estimate(each) for each in self.tried if each in self.ratios}
        if not estimates:
            return []
        best = min(estimates, key=lambda each: estimates[each].ratio)
        least = estimates[best].ratio
        if least > 1 - LEAST:
            return []
        rivals = [
            each
            for each, found in estimates.items()
            if each != best and found.ratio - CERTAIN * found.error < least * (1 - LEAST)
        ]
        certain = estimates[best].is_faster_among(len(self.tried))
        wanted = [best, *rivals] if rivals or not certain else []
        again = [each for each in wanted if self.asked.get(each, 0) <= AGAIN]
        return sorted(again, key=lambda each: estimates[each].ratio)[:2]


def _nearness(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]], reach: float) -> Array:
    """For each place of a and each of b: 1 for the same one, 1/2 at `reach`, less beyond."""
    if not b:
        return np.zeros((len(a), 0))
    apart: Array = ((np.array(a)[:, None] - np.array(b)[None]) ** 2).sum(2)
    near: Array = 2.0 ** -(apart / reach**2)
    return near
