"""Going on after a mistake, so that one check finds all of them: the result of an op that was refused is lost.

`guarded` ops called with a lost tensor give lost tensors and say nothing, so that one mistake is reported once. Without
`collecting`, which the tracer uses, a mistake is raised as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from smelt.dim import Poly, symbol, symbols
from smelt.dtype import f32
from smelt.errors import SmeltError
from smelt.shape import Shape
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.source import TensorError

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = "(lost)"  # no identifier, hence no symbol of a user's
_LOST = Leaf(Shape.of(f32, (symbol(_SIZE),)), name="lost")
_MISTAKES: ContextVar[list[SmeltError] | None] = ContextVar("smelt.mistakes", default=None)


@contextmanager
def collecting() -> Iterator[list[SmeltError]]:
    """Mistakes in this block are kept in the list instead of raised."""
    mistakes: list[SmeltError] = []
    token = _MISTAKES.set(mistakes)
    try:
        yield mistakes
    finally:
        _MISTAKES.reset(token)


def lost() -> Tensor:
    """What stands for the result of an op that was refused."""
    return tensor_of(_LOST, ("lost",))


def is_lost(value: Any) -> bool:
    """Whether a tensor or a size is lost, or one of a list of them."""
    if is_tensor(value):
        return value.value is _LOST
    if isinstance(size := getattr(value, "size", None), Poly):
        return _SIZE in symbols(size)
    return isinstance(value, list | tuple) and any(is_lost(item) for item in value)


class LostError(Exception):
    """Raised where nothing sensible can follow a mistake that was kept already: it ends the way."""


def stop_if_lost(values: Iterable[Any]) -> None:
    """Give up where a tensor is lost, because a shape would be needed."""
    if any(is_lost(value) for value in values):
        raise LostError


def guarded(function: F) -> F:
    """An op after whose mistake a check goes on. It gives one tensor, or as many as `_results` says."""

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        mistakes = _MISTAKES.get()
        if mistakes is None:
            return function(*args, **keywords)
        if not _any_lost(args) and not _any_lost(keywords.values()):
            try:
                return function(*args, **keywords)
            except TensorError as mistake:
                mistakes.append(mistake)
        return _results(function.__name__, args)

    return call  # type: ignore[return-value]


def _any_lost(values: Iterable[Any]) -> bool:
    return any(is_lost(value) for value in values)


def _results(name: str, args: tuple[Any, ...]) -> Any:
    if name == "top_k":
        return lost(), lost()
    if name == "chunk":
        sizes = args[2] if len(args) > 2 else 1
        return [lost() for _ in range(sizes if isinstance(sizes, int) else len(sizes))]
    return lost()


def guard_methods(cls: type[Any], names: Iterable[str]) -> None:
    """Make ops of a class guarded."""
    for name in names:
        setattr(cls, name, guarded(getattr(cls, name)))
