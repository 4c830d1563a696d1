"""What a step takes: where the keys and values of its tokens go."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.llm.batch import FEW, Batch
from smelt.llm.config import LONG, PAGE


@pytest.mark.parametrize("count", [1, FEW, FEW + 1, 300])
def test_tokens_go_to_the_pages_of_their_positions(count: int, seed: int) -> None:
    """By lists for few tokens, by arrays for many; tokens that are not there go to no page."""
    random = np.random.default_rng(seed)
    table = random.integers(0, 1000, (7, 9)).astype(np.int32)
    sequence = random.integers(0, 7, count).astype(np.int32)
    near = random.integers(-1, 9 * PAGE, count)
    near[-1] = 9 * PAGE - 1
    position = np.where(random.random(count) < 0.3, near + LONG * (near >= 0), near).astype(np.int32)
    page, place = Batch(sequence, sequence, position, table, sequence[:1]).page_slots
    want = [-1 if at < 0 else table[i, at // PAGE] for i, at in zip(sequence, near, strict=True)]
    np.testing.assert_array_equal(page, want)
    np.testing.assert_array_equal(place[near >= 0], near[near >= 0] % PAGE)
    assert page.dtype == place.dtype == np.int32
