"""Structures: tuples, lists, dictionaries and objects whose leaves are tensors, arrays or buffers.

A structure and a test for leaves → the leaves with their paths, a copy with other leaves, or the leaves of two
structures side by side. Weights of models are loaded with it, and executables take and return the user's structures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Generator, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from smelt.errors import ShapeError

IsLeaf = Callable[[Any], bool]


def fields_of(value: Any) -> dict[str, Any]:
    """The fields of an object by name, also of a dataclass with slots; none where it has no fields to look into."""
    if isinstance(value, type | ModuleType | FunctionType | MethodType):
        return {}
    found = dict(getattr(value, "__dict__", {}))
    if hasattr(type(value), "__dataclass_fields__"):
        from dataclasses import fields

        named = {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)}
        found = {**named, **found}
    return found


def join(path: str, name: object) -> str:
    """The path of an item or field of what is under a path."""
    return f"{path}.{name}" if path else str(name)


CONTAINERS = tuple, list, dict


def items_of(value: Any) -> dict[Any, Any]:
    """The items of a container by field name, position or key; none for anything else."""
    if isinstance(value, dict):
        return value
    if isinstance(value, tuple | list):
        return dict(zip(getattr(value, "_fields", range(len(value))), value, strict=True))
    return {}


def map_items(value: Any, change: Callable[[Any, Any], Any]) -> Any:
    """A container of the same kind with `change(key, item)` for each item; anything else stays as it is."""
    if not isinstance(value, CONTAINERS):
        return value
    changed = {key: change(key, item) for key, item in items_of(value).items()}
    if isinstance(value, dict):
        return changed
    return type(value)(*changed.values()) if hasattr(value, "_fields") else type(value)(changed.values())


def children(value: Any) -> dict[Any, Any]:
    """What a structure is made of, one level deep, by key, place or field; nothing for a plain value."""
    if isinstance(value, Mapping):
        return dict(value)
    return items_of(value) if isinstance(value, CONTAINERS) else fields_of(value)


def leaves(value: Any, is_leaf: IsLeaf, path: str = "") -> Iterator[tuple[str, Any]]:
    """(path, leaf) of everything that a structure holds, in order; an object inside itself is not entered again."""
    yield from _Walk(is_leaf).leaves(value, path, frozenset())


def has_leaf(value: Any, is_leaf: IsLeaf) -> bool:
    """Whether a structure has a leaf at all."""
    return _Walk(is_leaf).has_leaf(value)


class _Walk:
    """A walk over structures that do not change meanwhile. What holds no leaf is entered once, however often it
    occurs: each layer of a model may keep the whole configuration."""

    def __init__(self, is_leaf: IsLeaf) -> None:
        self.is_leaf = is_leaf
        self._empty: dict[int, Any] = {}  # by identity; kept, so that no identity is given out again
        self._cuts = 0  # objects that were not entered because they are inside themselves

    def leaves(self, value: Any, path: str, within: frozenset[int]) -> Generator[tuple[str, Any], None, bool]:
        """Gives whether there were any."""
        if self.is_leaf(value):
            yield path, value
            return True
        if id(value) in self._empty:
            return False
        if id(value) in within:
            self._cuts += 1
            return False
        found, cuts, inner = False, self._cuts, within | {id(value)}
        for name, item in children(value).items():
            found = (yield from self.leaves(item, join(path, name), inner)) or found
        if not found and cuts == self._cuts:  # else it may hold leaves where it is entered from elsewhere
            self._empty[id(value)] = value
        return found

    def has_leaf(self, value: Any) -> bool:
        return next(self.leaves(value, "", frozenset()), None) is not None


def map_leaves(value: Any, is_leaf: IsLeaf, change: Callable[[Any], Any], tied: bool = True) -> Any:
    """The same structure with other leaves; the given one is kept. What occurs several times does so in the copy, too,
    unless leaves are not `tied`: then each place has its own."""
    return _map_leaves(value, _Walk(is_leaf), change, {}, tied)


def _map_leaves(
    value: Any, walk: _Walk, change: Callable[[Any], Any], made: dict[int, tuple[Any, Any]], tied: bool
) -> Any:
    known = made.get(id(value))
    if known is not None:
        return known[1]
    if walk.is_leaf(value):
        result = change(value)
        if not tied:
            return result
    elif not walk.has_leaf(value):
        return value
    elif isinstance(value, (*CONTAINERS, Mapping)):
        items = dict(value) if isinstance(value, Mapping) else value
        result = map_items(items, lambda _, item: _map_leaves(item, walk, change, made, tied))
    else:
        result = copy.copy(value)
        made[id(value)] = value, result  # before its fields: one of them may be itself
        for name, item in fields_of(value).items():
            object.__setattr__(result, name, _map_leaves(item, walk, change, made, tied))  # it may be frozen
    made[id(value)] = value, result
    return result


def zip_leaves(pattern: Any, given: Any, is_leaf: IsLeaf, what: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, leaf of the pattern, what is given there). Another structure than the pattern's is the caller's mistake.

    What is no leaf and holds none is not compared.
    """
    yield from _zip_leaves(pattern, given, _Walk(is_leaf), what)


def _zip_leaves(pattern: Any, given: Any, walk: _Walk, what: str) -> Iterator[tuple[str, Any, Any]]:
    if walk.is_leaf(pattern):
        yield what, pattern, given
        return
    have = children(given)
    for name, item in children(pattern).items():
        if not walk.has_leaf(item):
            continue
        if name not in have:
            expected = _describe(pattern, walk)
            raise ShapeError(f"{what or 'the argument'} has another structure", expected=expected, got=_kind(given))
        yield from _zip_leaves(item, have[name], walk, join(what, name))
    if isinstance(pattern, tuple | list) and len(have) != len(pattern):
        got = f"{len(have)} items"
        raise ShapeError(f"{what or 'the argument'} has another structure", expected=f"{len(pattern)} items", got=got)
    if isinstance(pattern, Mapping) and (strange := [str(key) for key in have if key not in pattern]):
        expected = ", ".join(map(str, pattern))
        raise ShapeError(f"{what or 'the argument'} has unexpected entries", expected=expected, got=strange)


def _describe(pattern: Any, walk: _Walk) -> str:
    names = [str(name) for name, item in children(pattern).items() if walk.has_leaf(item)]
    return f"{_kind(pattern)} with {', '.join(names)}"


def _kind(value: Any) -> str:
    return "a " + type(value).__name__
