"""A float that stands for any float: 1.0 that records whether a branch or a size depends on its value.

Arithmetic with it returns such floats. Where something depends on one, the check was a sample, and the report says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

_ASKED: ContextVar[set[str] | None] = ContextVar("smelt.floats", default=None)


class AnyFloat(float):
    """1.0 in place of the parameter `name`."""

    name: str

    def __new__(cls, name: str, value: float = 1.0) -> AnyFloat:
        made = super().__new__(cls, value)
        made.name = name
        return made

    __hash__ = float.__hash__


@contextmanager
def watch_floats() -> Iterator[set[str]]:
    """Collects the names of the floats that something depends on."""
    asked: set[str] = set()
    token = _ASKED.set(asked)
    try:
        yield asked
    finally:
        _ASKED.reset(token)


def _keep_symbolic(name: str) -> Callable[..., Any]:
    compute = getattr(float, name)

    def method(self: AnyFloat, *others: Any) -> Any:
        result = compute(self, *others)
        return AnyFloat(self.name, result) if isinstance(result, float) else result

    return method


def _note_use(name: str) -> Callable[..., Any]:
    answer = getattr(float, name)

    def method(self: AnyFloat, *others: Any) -> Any:
        asked = _ASKED.get()
        if asked is not None:
            asked.add(self.name)
        return answer(self, *others)

    return method


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "pow", "rpow", "neg", "abs"):
    setattr(AnyFloat, f"__{_name}__", _keep_symbolic(f"__{_name}__"))
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "bool")
_ROUNDINGS = ("int", "round", "trunc", "floor", "ceil", "floordiv", "rfloordiv", "mod", "rmod", "divmod", "rdivmod")
for _name in (*_COMPARISONS, *_ROUNDINGS):
    setattr(AnyFloat, f"__{_name}__", _note_use(f"__{_name}__"))
