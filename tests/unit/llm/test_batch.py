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


def test_tables_have_a_power_of_two_of_pages() -> None:
    """So that few sizes come while sequences grow; tokens go to the same pages as before."""
    batch = Batch.of([([5], 4 * PAGE, [7, 3, 2, 9, 4], [0]), ([6], 1, [8], [0])])
    padded = batch.pad_pages()
    assert padded.table.tolist() == [[7, 3, 2, 9, 4, 0, 0, 0], [8, 0, 0, 0, 0, 0, 0, 0]]
    assert (
        [each.tolist() for each in padded.page_slots]
        == [each.tolist() for each in batch.page_slots]
        == [[4, 8], [0, 1]]
    )
    assert padded.pad_pages().table.shape == (2, 8)
