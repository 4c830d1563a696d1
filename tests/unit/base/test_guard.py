"""Guards of results: failed checks are found behind any number of later calls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from smelt.errors import RunError
from smelt.guard import DEEPEST, Guard, guard_results, open_guards


def call(*inputs: Any, fails: str | None = None, judged: list[str] | None = None, name: str = "") -> Any:
    """A call with one result. `fails`: its check fails; `judged`: it has a check, which notes its name there."""

    def judge() -> None:
        if judged is not None:
            judged.append(name)
        if fails:
            raise RunError(fails)

    result = SimpleNamespace(guard=None)
    has_check = fails is not None or judged is not None
    guard_results([result], judge if has_check else None, open_guards(inputs))
    return result


def test_checks_of_earlier_calls_are_judged_first_and_once() -> None:
    judged: list[str] = []
    first = call(judged=judged, name="first")
    between = call(first)
    assert between.guard is first.guard
    last = call(between, first, call(judged=judged, name="beside"), judged=judged, name="last")
    last.guard()
    last.guard()
    assert judged == ["beside", "first", "last"]
    assert (first.guard.holds, last.guard.holds) == (True, True)
    assert call(last).guard is None


def test_a_failure_reaches_every_later_result() -> None:
    judged: list[str] = []
    failed = call(fails="no")
    both = call(call(judged=judged, name="beside"), failed, judged=judged, name="both")
    for _ in range(2):
        with pytest.raises(RunError, match="no"):
            both.guard()
    assert judged == ["beside"]  # what a failed call gave is not judged further
    assert call(both, judged=judged).guard is both.guard


def test_long_chains_are_judged_now_and_then() -> None:
    judged: list[str] = []
    state = None
    for i in range(3 * DEEPEST):
        state = call(state, judged=judged, name=str(i))
    assert state is not None
    assert DEEPEST < len(judged) < 3 * DEEPEST
    state.guard()
    assert judged == [str(i) for i in range(3 * DEEPEST)]


def test_an_interrupted_judgement_comes_again() -> None:
    times = [KeyboardInterrupt, None]

    def judge() -> None:
        if (kind := times.pop(0)) is not None:
            raise kind

    guard = Guard(judge)
    with pytest.raises(KeyboardInterrupt):
        guard()
    guard()
    assert guard.holds
