"""Requests of language models are counted once, by how they end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from smelt.serve.language import _Counted
from smelt.serve.stats import ModelStats


def test_a_request_counts_as_it_ends() -> None:
    texts: Any = SimpleNamespace(running=0)
    stats = ModelStats()
    with _Counted(texts, stats):
        assert texts.running == 1
    assert (texts.running, stats.success, stats.failure) == (0, 1, 0)
    with pytest.raises(ValueError, match="no"), _Counted(texts, stats):
        raise ValueError("no")
    assert (texts.running, stats.success, stats.failure) == (0, 1, 1)
    assert stats.success_s >= 0
    assert stats.last > 0


@pytest.mark.parametrize("is_success", [True, False])
def test_a_request_ends_once(is_success: bool) -> None:
    texts: Any = SimpleNamespace(running=3)
    stats = ModelStats()
    counted = _Counted(texts, stats)
    assert texts.running == 4
    counted.end(is_success)
    counted.end(not is_success)
    counted.__exit__(ValueError, ValueError("late"), None)
    assert (texts.running, stats.success, stats.failure) == (3, int(is_success), int(not is_success))
