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
from smelt.kernel.tune.choice import Choice, Problem, features, scale_of

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


def paired(times: Sequence[float], others: Sequence[float], groups: int = GROUPS) -> list[float]:
    """Ratios of times that were taken in turns: the least of some neighbours by the least of the same of the others.

    Whatever else runs makes a time longer and never shorter, so the least of a few is the quietest moment of them.
    """
    size = max(1, len(times) // groups)
    starts = range(0, len(times) - size + 1, size)
    return [min(times[at : at + size]) / min(others[at : at + size]) for at in starts]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What a measurement on some problem of the same kind says: the logarithm of true by predicted ratio."""

    problem: Problem
    choice: Choice
    surprise: float


@dataclass(slots=True)
class Search:
    """`choices`: the default first. `predicted`: a cost for each, in any unit. `known`: ratios of an earlier search."""

    problem: Problem
    choices: Sequence[Choice]
    predicted: Sequence[float]
    lessons: Sequence[Lesson] = ()
    known: Mapping[Choice, float] = field(default_factory=dict)
    ratios: dict[Choice, list[float]] = field(default_factory=dict)
    asked: dict[Choice, int] = field(default_factory=dict)
    share: float = SHARES[0]

    @property
    def limit(self) -> int:
        """How many choices are tried, the default not counted."""
        return min(len(self.choices) - 1, max(FEWEST, int(self.share * len(self.choices)) - (self.share < 1)))

    @property
    def tried(self) -> list[Choice]:
        return [each for each in self.choices[1:] if each in self.ratios or each in self.known]

    @property
    def is_done(self) -> bool:
        return len(self.tried) >= self.limit and not self._close()

    def propose(self, count: int) -> list[Choice]:
        """Up to so many choices to measure now: new ones, then those that are close to the best."""
        found: list[Choice] = []
        open_ones = [each for each in self.choices[1:] if each not in self.tried]
        while open_ones and len(found) < min(count, self.limit - len(self.tried)):
            worth = self._worth(open_ones, found)
            found.append(open_ones.pop(int(np.argmin(worth))))
        found += [each for each in self._close() if each not in found][: count - len(found)]
        for each in found:
            self.asked[each] = self.asked.get(each, 0) + 1
        return found

    def tell(self, choice: Choice, ratios: Sequence[float]) -> None:
        """Ratios of a choice's times to the default's, each of two runs one after the other."""
        assert choice in self.choices
        self.ratios.setdefault(choice, []).extend(ratios)

    def estimate(self, choice: Choice) -> Estimate:
        if choice == self.choices[0]:
            return Estimate(1.0, 0.0)
        if choice in self.ratios:
            return Estimate.of(self.ratios[choice])
        return Estimate(self.known[choice], LEAST)

    @property
    def best(self) -> tuple[Choice, Estimate]:
        """The choice to use: the default unless another one was measured faster by more than the noise."""
        tried = [(each, self.estimate(each)) for each in self.tried]
        faster = [(each, found) for each, found in tried if found.is_faster_among(len(tried))]
        return min(faster, key=lambda pair: pair[1].ratio, default=(self.choices[0], Estimate(1.0, 0.0)))

    # -- what to expect --

    def learned(self) -> list[Lesson]:
        """What this search can tell others."""
        return [Lesson(self.problem, each, self._surprise(each)) for each in self.tried]

    def _expected(self, choice: Choice) -> float:
        """The predicted ratio, as a logarithm."""
        at = self.choices.index(choice)
        return math.log(self.predicted[at] / self.predicted[0])

    def _surprise(self, choice: Choice) -> float:
        return math.log(self.estimate(choice).ratio) - self._expected(choice)

    def _worth(self, choices: Sequence[Choice], pending: Sequence[Choice]) -> Array:
        """For each choice the time to hope for: predicted, corrected, and better the less is known about it."""
        here = scale_of(self.problem)
        mine = [self.choices[0], *self.tried]
        others = [each for each in self.lessons if each.problem.kind == self.problem.kind]
        places = [*self._places(mine), *(features(each.problem, each.choice) for each in others)]
        likeness = LESSON * _nearness([here], [scale_of(each.problem) for each in others], 4 * REACH)[0]
        surprises = np.array([0.0, *map(self._surprise, self.tried), *(each.surprise for each in others)])
        asked = self._places(choices)
        weights = _nearness(asked, places, REACH) * np.concatenate([np.ones(len(mine)), likeness])
        total = PRIOR + weights.sum(1)
        soon = _nearness(asked, self._places(pending), REACH).sum(1)  # two of one round should not tell the same
        expected = np.array([self._expected(each) for each in choices])
        corrected: Array = expected + weights @ surprises / total
        hoped: Array = corrected - CURIOUS * PRIOR / (total + soon) + CURIOUS * soon
        return hoped

    def _places(self, choices: Sequence[Choice]) -> list[tuple[float, ...]]:
        return [features(self.problem, each) for each in choices]

    def _close(self) -> list[Choice]:
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
