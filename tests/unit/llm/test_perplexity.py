"""Perplexity, against the definition in float64 over every window."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import RunError
from smelt.llm.perplexity import perplexity


@dataclass
class Bigram:
    """A model whose logits depend on the last token alone."""

    table: Array
    context: int = 100
    windows: list[int] = field(default_factory=list)

    def logits(self, tokens: Sequence[int]) -> Array:
        self.windows.append(len(tokens))
        return self.table[list(tokens)]


def mean_loss(table: Array, tokens: Sequence[int], size: int) -> float:
    chances = np.exp(table.astype(np.float64))
    chances /= chances.sum(1, keepdims=True)
    pairs = [(a, b) for i, (a, b) in enumerate(pairwise(tokens)) if (i + 1) % size]
    return float(np.mean([-math.log(chances[a, b]) for a, b in pairs]))


@pytest.mark.parametrize(
    ("count", "window", "windows"), [(10, 4, [4, 4, 2]), (9, 4, [4, 4]), (8, 4, [4, 4]), (2, 4, [2]), (12, 512, [12])]
)
def test_it_is_the_exponential_of_the_mean_loss(count: int, window: int, windows: list[int], seed: int) -> None:
    random = np.random.default_rng(seed)
    model = Bigram((30 * random.standard_normal((6, 6))).astype(np.float32))
    tokens = random.integers(0, 6, count).tolist()
    found = perplexity(model, tokens, window)  # type: ignore[arg-type]
    assert found == pytest.approx(math.exp(mean_loss(model.table, tokens, window)), rel=1e-5)
    assert model.windows == windows


def test_windows_fit_into_the_context_and_large_logits_do_not_overflow() -> None:
    model = Bigram(np.full((3, 3), 1000, np.float32), context=3)
    assert perplexity(model, [0, 1, 2, 0]) == pytest.approx(3.0)  # type: ignore[arg-type]
    assert model.windows == [3]
    for tokens in ([], [1]):
        with pytest.raises(RunError, match=rf"at least two tokens(?s:.)*got +{len(tokens)}"):
            perplexity(model, tokens)  # type: ignore[arg-type]
