"""Error recovery: a check goes on after a mistake and finds all of them. The result of a refused op is poison.

An op `with_recovery` returns poison for poison without a report, so that each mistake is reported once. Outside of
`collect_errors`, which the tracer uses, mistakes are raised.
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
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.record import Leaf, is_tensor, tensor_of
from smelt.tensor.source import TensorError

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

F = TypeVar("F", bound=Callable[..., Any])

_SIZE = "(poison)"  # not an identifier, so no user symbol has this name
_POISON = Leaf(Shape.of(f32, (symbol(_SIZE),)), name="poison")
_MISTAKES: ContextVar[list[SmeltError] | None] = ContextVar("smelt.mistakes", default=None)


@contextmanager
def collect_errors() -> Iterator[list[SmeltError]]:
    """Append mistakes in this block to the list instead of raising them."""
    mistakes: list[SmeltError] = []
    token = _MISTAKES.set(mistakes)
    try:
        yield mistakes
    finally:
        _MISTAKES.reset(token)


def make_poison() -> Tensor:
    """A tensor in place of the result of a refused op."""
    return tensor_of(_POISON, ("poison",))


def is_poison(value: Any) -> bool:
    """Whether a tensor or a size is poison, or one in a list is."""
    if is_tensor(value):
        return value.value is _POISON
    if isinstance(size := getattr(value, "size", None), Poly):
        return _SIZE in symbols(size)
    return isinstance(value, list | tuple) and any(is_poison(item) for item in value)


class PoisonError(Exception):
    """Ends a path where nothing sensible can follow a mistake that is already in the list."""


def stop_if_poison(values: Iterable[Any]) -> None:
    """Raise PoisonError where a tensor is poison and its shape is needed."""
    if any(is_poison(value) for value in values):
        raise PoisonError


def with_recovery(function: F) -> F:
    """The op, which returns poison after a mistake: one tensor, or as many as `_poison_results` returns.

    Wrong types of arguments are mistakes too.
    """
    op = with_argument_errors(function)

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        mistakes = _MISTAKES.get()
        if mistakes is None:
            return op(*args, **keywords)
        if not _has_poison(args) and not _has_poison(keywords.values()):
            try:
                return op(*args, **keywords)
            except TensorError as mistake:
                mistakes.append(mistake)
        return _poison_results(function.__name__, args)

    return call  # type: ignore[return-value]


def _has_poison(values: Iterable[Any]) -> bool:
    return any(is_poison(value) for value in values)


def _poison_results(name: str, args: tuple[Any, ...]) -> Any:
    if name == "top_k":
        return make_poison(), make_poison()
    if name == "chunk":
        sizes = args[2] if len(args) > 2 else 1
        return [make_poison() for _ in range(sizes if isinstance(sizes, int) else len(sizes))]
    return make_poison()


def guard_methods(cls: type[Any], names: Iterable[str]) -> None:
    """Wrap methods of a class `with_recovery`."""
    for name in names:
        setattr(cls, name, with_recovery(getattr(cls, name)))
