"""Frozen: records with named fields that never change.

A subclass reads like a frozen dataclass with slots and behaves like one. Defining it takes microseconds, for no code is
generated: a dataclass takes a hundred times as long, and every process defines all of them. A class with many records
gets generated methods after the first few.
"""

from __future__ import annotations

from typing import Any, NoReturn, Self, dataclass_transform

_MANY = 50  # records of a class, after which it gets generated methods


class _Fields(type):
    """Makes slots of a class's annotations, and keeps the defaults beside them."""

    __match_args__: tuple[str, ...]  # the fields
    field_defaults: dict[str, Any]
    _made: int  # records so far

    def __new__(cls, name: str, bases: tuple[type, ...], namespace: dict[str, Any]) -> _Fields:
        fields = tuple(namespace.get("__annotations__", ()))
        defaults = {field: namespace.pop(field) for field in fields if field in namespace}
        assert not any(getattr(base, "__match_args__", ()) for base in bases), f"{name}: a record's fields are its own"
        made = {"__slots__": fields, "__match_args__": fields, "field_defaults": defaults, "_made": 0}
        return super().__new__(cls, name, bases, namespace | made)


def _generate(cls: _Fields) -> None:
    """Give a class its own `__init__`, `__eq__` and `__hash__`, unless it defines them."""
    fields = cls.__match_args__
    given = {f"_default_{field}": value for field, value in cls.field_defaults.items()}
    setters = {f"_set_{field}": getattr(cls, field).__set__ for field in fields}
    parameters = "".join(
        f", {field}=_default_{field}" if field in cls.field_defaults else f", {field}" for field in fields
    )
    body = "; ".join(f"_set_{field}(self, {field})" for field in fields) or "pass"
    values = {who: f"({''.join(f'{who}.{field}, ' for field in fields)})" for who in ("self", "other")}
    source = (
        f"def __init__(self{parameters}): {body}\n"
        f"def __eq__(self, other):\n"
        f"    if self is other: return True\n"
        f"    return other.__class__ is self.__class__ and {values['self']} == {values['other']}\n"
        f"def __hash__(self): return hash({values['self']})\n"
    )
    found: dict[str, Any] = {}
    exec(source, given | setters, found)  # field names alone go into it
    for name, method in found.items():
        if getattr(cls, name) is getattr(Frozen, name):
            setattr(cls, name, method)


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
        cls = type(self)
        cls._made += 1
        if cls._made == _MANY:
            _generate(cls)
        fields = cls.__match_args__
        if named or len(values) != len(fields):
            values = self._complete(values, named)
        for field, value in zip(fields, values, strict=True):
            object.__setattr__(self, field, value)

    def _complete(self, values: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        fields = type(self).__match_args__
        given = type(self).field_defaults | dict(zip(fields, values, strict=False)) | named
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
        fields = type(self).__match_args__
        if not changes.keys() <= set(fields):
            raise TypeError(f"{type(self).__name__} has the fields {', '.join(fields)}; given are {', '.join(changes)}")
        return type(self)(*[changes[field] if field in changes else getattr(self, field) for field in fields])

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
