"""From logits to a token: penalties, bias, temperature, and which tokens are left in the draw.

`Sampling` has the parameters of a request; a `Sampler` follows one sequence. A draw depends only on the seed, the index
of the alternative and the position, not on what else runs.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from smelt.dtype import Array
from smelt.errors import RunError

COLDEST = 1e-3  # temperature that f32 computes with
FEW = 256  # tokens that are sorted first, for top-p and typical sampling


@dataclass(frozen=True, slots=True)
class Sampling:
    """How tokens are chosen. A temperature of 0 is greedy; the other limits are off unless given."""

    temperature: float = 0.0
    top_k: int = 0  # the k most likely tokens
    top_p: float = 1.0  # the most likely tokens that together have this probability
    min_p: float = 0.0  # tokens with at least this fraction of the most likely one's probability
    typical_p: float = 1.0  # the tokens closest to the expected information that together have this probability
    repetition_penalty: float = 1.0  # divides (multiplies, if negative) logits of tokens seen before
    frequency_penalty: float = 0.0  # subtracted per time that a token was generated
    presence_penalty: float = 0.0  # subtracted once
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None  # how many of the most likely tokens to report with each

    def __post_init__(self) -> None:
        for name, low, high in (
            ("temperature", 0.0, 1e6),
            ("top_k", 0, 1 << 31),
            ("top_p", 0.0, 1.0),
            ("min_p", 0.0, 1.0),
            ("typical_p", 0.0, 1.0),
            ("repetition_penalty", 1e-6, 1e6),
            ("frequency_penalty", -1e6, 1e6),
            ("presence_penalty", -1e6, 1e6),
            ("seed", 0, (1 << 64) - 1),
            ("logprobs", 0, 1 << 16),
        ):
            value = getattr(self, name)
            if value is None and name == "logprobs":
                continue
            whole = isinstance(low, int)
            fits = isinstance(value, int if whole else int | float) and not isinstance(value, bool)
            if not fits or not low <= value <= high:
                raise RunError(
                    f"{name} is out of range",
                    expected=f"{low} to {high}",
                    got=value,
                    remedy=f"{name} within these bounds",
                )
        if not isinstance(self.logit_bias, Mapping):
            raise RunError(
                "logit_bias names tokens", expected="token → number", got=self.logit_bias, remedy="leave it out"
            )


@dataclass(frozen=True, slots=True)
class Choice:
    """A token, the logarithm of its probability before any limit, and the likeliest tokens with theirs."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Allowed(Protocol):
    """Which tokens may come next: a grammar's state."""

    def mask(self) -> Array:
        """bool[v]: the tokens that may come next; at least one."""

    def accept(self, token: int) -> None:
        """A token was chosen."""

    @property
    def is_complete(self) -> bool:
        """Whether nothing may follow."""


class Sampler:
    """Chooses the tokens of one sequence."""

    def __init__(
        self,
        sampling: Sampling,
        prompt: Iterable[int],
        vocabulary: int,
        alternative: int = 0,
        allowed: Allowed | None = None,
    ) -> None:
        self.sampling = sampling
        self._alternative = alternative
        self._allowed = allowed
        greedy = replace(
            sampling, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, seed=0
        )  # what counts for a draw is off
        self.is_simple = allowed is None and greedy == Sampling()  # the likeliest token, no more
        self._seen = set(prompt)
        self._generated: Counter[int] = Counter()
        given: Mapping[Any, Any] = sampling.logit_bias
        for token, bias in given.items():
            if not isinstance(token, int) or not 0 <= token < vocabulary or not _is_bias(bias):
                raise RunError(
                    "logit_bias names tokens",
                    expected=f"0 to {vocabulary - 1} → a number, -inf for never",
                    got={token: bias},
                    remedy="leave it out, or name tokens of the vocabulary",
                )

    @cached_property
    def is_plain(self) -> bool:
        """Whether the logits alone decide, and `draw.draw_tokens` draws as `choose` does: no more than temperature,
        top-k, top-p and min-p."""
        plain, asked = Sampling(), self.sampling
        names = ("typical_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "logprobs")
        is_asked = any(getattr(asked, name) != getattr(plain, name) for name in names)
        return self._allowed is None and not is_asked and (asked.temperature == 0 or asked.temperature >= COLDEST)

    def uniform(self, position: int) -> float:
        """The random number in [0, 1) of a position."""
        key = np.array([self.sampling.seed, self._alternative], np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, position])).random()

    @property
    def is_complete(self) -> bool:
        """Whether a grammar allows no token after the last one."""
        return self._allowed is not None and self._allowed.is_complete

    def choose(self, logits: Array, position: int) -> Choice:
        """The token at a position from the logits before it, f32[v]."""
        if self.is_simple and math.isfinite(logits[best := int(logits.argmax())]):  # a NaN is argmax's greatest
            return Choice(best)
        if not np.isfinite(logits.max()):
            raise RunError(
                f"the model gave no numbers for position {position}",
                got="NaN in the logits",
                remedy="check its weights for NaN and infinity",
            )
        sampling = self.sampling
        scores = self._adjust(logits.astype(np.float64))
        if self._allowed is not None:
            scores = np.where(self._allowed.mask(), scores, -np.inf)
        token = int(scores.argmax())
        if scores[token] == -np.inf:
            raise RunError(
                f"no token is left for position {position}",
                got="logit_bias forbids every token that may come next",
                remedy="fewer tokens with -inf in logit_bias",
            )
        if sampling.temperature > 0:
            token = self._draw(scores, scores[token], position)
        self._seen.add(token)
        self._generated[token] += 1
        if self._allowed is not None:
            self._allowed.accept(token)
        if sampling.logprobs is None:
            return Choice(token)
        logs = log_softmax(logits.astype(np.float64))
        likely = greatest(logs, sampling.logprobs)
        return Choice(token, float(logs[token]), tuple((int(each), float(logs[each])) for each in likely))

    def _adjust(self, scores: Array) -> Array:
        sampling = self.sampling
        if sampling.repetition_penalty != 1 and self._seen:
            seen = np.array(sorted(each for each in self._seen if each < len(scores)), np.intp)
            values = scores[seen]
            scores[seen] = np.where(
                values > 0, values / sampling.repetition_penalty, values * sampling.repetition_penalty
            )
        if sampling.frequency_penalty or sampling.presence_penalty:
            for token, count in self._generated.items():
                scores[token] -= count * sampling.frequency_penalty + sampling.presence_penalty
        for token, bias in sampling.logit_bias.items():
            scores[token] += bias
        return scores

    def _draw(self, scores: Array, top: float, position: int) -> int:
        with np.errstate(over="ignore"):  # what is that far below the top never comes
            scaled = (scores - top) / self.sampling.temperature
        left, probabilities = survivors(scaled, self.sampling)
        total = probabilities.cumsum()
        place = int(np.searchsorted(total, self.uniform(position) * total[-1], side="right"))
        return int(left[min(place, len(left) - 1)])


def _is_bias(bias: object) -> bool:
    return isinstance(bias, int | float) and (bias == -math.inf or abs(bias) <= sys.float_info.max)


def greatest(values: Array, count: int) -> Array:
    """The indices of the largest values, in descending order; of equal ones the first."""
    if 0 < count < len(values):
        least = np.partition(values, -count)[-count]
        places = np.flatnonzero(values >= least)
        found: Array = places[np.argsort(-values[places], kind="stable")][:count]
        return found
    return np.argsort(-values, kind="stable")[:count]


def _first_reaching(key: Array, probabilities: Array, share: float) -> Array:
    """The tokens of greatest key up to the one with which their probabilities reach the share; at least one."""
    count = FEW
    while True:
        order = greatest(key, count)
        before = probabilities[order].cumsum() - probabilities[order]
        if count >= len(key) or before[-1] >= share:
            break
        count *= 8
    kept = np.zeros(len(key), bool)
    kept[order[before < share]] = True
    kept[order[0]] = True
    return kept


def log_softmax(scores: Array) -> Array:
    top = scores.max()
    found: Array = scores - top - math.log(np.exp(scores - top).sum())
    return found


def survivors(scores: Array, sampling: Sampling) -> tuple[Array, Array]:
    """The tokens that pass all limits, applied in order, and their probabilities."""
    places = np.flatnonzero(scores > -np.inf)
    if 0 < sampling.top_k < len(places):
        least = np.partition(scores, -sampling.top_k)[-sampling.top_k]
        places = np.flatnonzero(scores >= least)
    values = scores[places]
    if sampling.top_p < 1:
        kept = _nucleus(softmax(values), sampling.top_p)
        places, values = places[kept], values[kept]
    if sampling.min_p > 0:
        probabilities = softmax(values)
        kept = probabilities >= sampling.min_p * probabilities.max()
        places, values = places[kept], values[kept]
    if sampling.typical_p < 1:
        kept = _typical(values, sampling.typical_p)
        places, values = places[kept], values[kept]
    return places, softmax(values)


def softmax(scores: Array) -> Array:
    powers = np.exp(scores - scores.max())
    found: Array = powers / powers.sum()
    return found


def _nucleus(probabilities: Array, share: float) -> Array:
    """The most likely tokens up to the one that reaches the probability, and those as likely as that one."""
    count = FEW
    while True:
        some = np.partition(probabilities, -count)[-count:] if count < len(probabilities) else probabilities
        likely = np.sort(some)[::-1]  # which tokens they are does not matter, and values alone are sorted faster
        before = likely.cumsum() - likely
        if count >= len(probabilities) or before[-1] >= share:
            break
        count *= 64
    found: Array = probabilities >= likely[before < share].min(initial=likely[0])
    return found


def _typical(scores: Array, share: float) -> Array:
    logs = log_softmax(scores)
    probabilities = np.exp(logs)
    surprise = -(probabilities * logs).sum()  # scores are finite
    distance = np.where(probabilities > 0, np.abs(-logs - surprise), np.inf)
    return _first_reaching(-distance, probabilities, share)
