"""Guard: checks of data of an asynchronous call, judged when a result is read.

Engines with memory of their own set it as `guard` of the results. What was computed from a result whose checks are not
judged yet is guarded by them too, so that no failed check is lost between two calls.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smelt.errors import SmeltError

DEEPEST = 256  # calls one after another whose checks wait: they are judged then, and hold little memory


class Guard:
    """`judge` raises where a check of a call failed; None: the call has none. `before`: the guards of its inputs."""

    __slots__ = ("_before", "_is_open", "_judge", "depth", "error")

    def __init__(self, judge: Callable[[], None] | None, before: Iterable[Guard] = ()) -> None:
        self._judge, self._before, self._is_open = judge, tuple(before), True
        self.depth: int = 1 + max((each.depth for each in self._before), default=0)
        self.error: SmeltError | None = None

    @property
    def holds(self) -> bool:
        """Whether the checks were judged and none failed."""
        return not self._is_open and self.error is None

    def __call__(self) -> None:
        """Judge the checks, those of earlier calls first. Raises the first failure, again at every call."""
        work = [self]
        while work:
            waiting = [each for each in work[-1]._before if each._is_open]
            work += waiting
            if not waiting:
                work.pop()._settle()
        if self.error is not None:
            raise self.error

    def _settle(self) -> None:
        judge, error = self._judge, next((each.error for each in self._before if each.error is not None), None)
        if not self._is_open:
            return
        if error is None and judge is not None:
            try:
                judge()
            except SmeltError as failure:
                error = failure
        self.error, self._is_open = error, False
        self._judge, self._before = None, ()  # and the memory that they hold


def open_guards(inputs: Iterable[Any]) -> list[Guard]:
    """The guards of inputs that are not known to hold."""
    found = {id(guard): guard for each in inputs if (guard := getattr(each, "guard", None)) is not None}
    return [guard for guard in found.values() if not guard.holds]


def guard_results(results: Iterable[Any], judge: Callable[[], None] | None, before: list[Guard]) -> Guard | None:
    """Guard the results of a call that has checks or takes guarded inputs. None: there is nothing to judge."""
    if judge is None and not before:
        return None
    failed = next((each for each in before if each.error is not None), None)
    alone = before[0] if judge is None and len(before) == 1 else None
    guard = failed or alone or Guard(judge, before)
    for result in results:
        result.guard = guard
    if guard.depth > DEEPEST:
        guard()
    return guard
