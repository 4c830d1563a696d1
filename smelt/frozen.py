"""Frozen: records with named fields that never change, for the modules that a bundle is run with.

A subclass reads like a frozen dataclass with slots and behaves like one. Defining it takes microseconds, for no code is
generated: a dataclass takes a hundred times as long, and a process that runs a bundle starts with all of these.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self, dataclass_transform


class _Fields(type):
    """Makes slots of a class's annotations, and keeps the defaults beside them."""

    __match_args__: tuple[str, ...]  # the fields
    _defaults: dict[str, Any]

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Fields:
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        made = {"__slots__": fields, "__match_args__": fields, "_defaults": defaults}
        return super().__new__(cls, name, bases, namespace | made)


@dataclass_transform(frozen_default=True)
class Frozen(metaclass=_Fields):
    """A record: its fields go by position or by name. Two are equal where their class and their fields are.

    >>> class Point(Frozen):
    ...     x: int
    ...     y: int = 0
    >>> Point(1), Point(1) == Point(x=1, y=0), Point(1).replace(y=2)
    (Point(x=1, y=0), True, Point(x=1, y=2))
    """

    def __init__(self, *values: Any, **named: Any) -> None:
        fields = type(self).__match_args__
        if named or len(values) != len(fields):
            values = self._complete(values, named)
        for field, value in zip(fields, values, strict=True):
            object.__setattr__(self, field, value)

    def _complete(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        fields = type(self).__match_args__
        given = type(self)._defaults | dict(zip(fields, values, strict=False)) | named
        twice = not named.keys().isdisjoint(fields[: len(values)])
        if twice or given.keys() != set(fields) or len(values) > len(fields):
            got = f"{len(values)} by position and {', '.join(named) or 'none'} by name"
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(fields)}; given are {got}")
        return tuple(given[field] for field in fields)

    def _values(self) -> tuple[Any, ...]:
        return tuple([getattr(self, field) for field in type(self).__match_args__])

    def record(self) -> dict[str, Any]:
        """The fields by name."""
        return dict(zip(type(self).__match_args__, self._values(), strict=True))

    def replace(self, **changes: Any) -> Self:
        """A copy with some fields changed."""
        return type(self)(**self.record() | changes)

    def __eq__(self, other: object) -> bool:
        return self is other or (type(other) is type(self) and self._values() == other._values())

    def __hash__(self) -> int:
        return hash(self._values())

    def __repr__(self) -> str:
        pairs = zip(type(self).__match_args__, self._values(), strict=True)
        return f"{type(self).__qualname__}({', '.join(f'{field}={value!r}' for field, value in pairs)})"

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is immutable: cannot set {name!r}")

    def __delattr__(self, name: str) -> NoReturn:
        raise AttributeError(f"a {type(self).__name__} is immutable: cannot delete {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), self._values()
