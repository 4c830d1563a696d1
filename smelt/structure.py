"""Structures: tuples, lists, dictionaries and objects whose leaves are tensors, arrays or buffers.

A structure and a test for leaves → the leaves with their paths, a copy with other leaves, or the leaves of two
structures side by side. Weights of models are loaded with it, and executables take and return the user's structures.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
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


def leaves(value: Any, is_leaf: IsLeaf, path: str = "", within: frozenset[int] = frozenset()) -> Iterator[Any]:
    """(path, leaf) of everything that a structure holds, in order; an object inside itself is not entered again."""
    if is_leaf(value):
        yield path, value
    elif id(value) not in within:
        inner = within | {id(value)}
        for name, item in children(value).items():
            yield from leaves(item, is_leaf, join(path, name), inner)


def has_leaf(value: Any, is_leaf: IsLeaf) -> bool:
    """Whether a structure has a leaf at all."""
    return next(leaves(value, is_leaf), None) is not None


def map_leaves(value: Any, is_leaf: IsLeaf, change: Callable[[Any], Any], tied: bool = True) -> Any:
    """The same structure with other leaves; the given one is kept. What occurs several times does so in the copy, too,
    unless leaves are not `tied`: then each place has its own."""
    return _map_leaves(value, is_leaf, change, {}, tied)


def _map_leaves(
    value: Any, is_leaf: IsLeaf, change: Callable[[Any], Any], made: dict[int, tuple[Any, Any]], tied: bool
) -> Any:
    known = made.get(id(value))
    if known is not None:
        return known[1]
    if is_leaf(value):
        result = change(value)
        if not tied:
            return result
    elif not has_leaf(value, is_leaf):
        return value
    elif isinstance(value, (*CONTAINERS, Mapping)):
        items = dict(value) if isinstance(value, Mapping) else value
        result = map_items(items, lambda _, item: _map_leaves(item, is_leaf, change, made, tied))
    else:
        result = copy.copy(value)
        made[id(value)] = value, result  # before its fields: one of them may be itself
        for name, item in fields_of(value).items():
            object.__setattr__(result, name, _map_leaves(item, is_leaf, change, made, tied))  # it may be frozen
    made[id(value)] = value, result
    return result


def zip_leaves(pattern: Any, given: Any, is_leaf: IsLeaf, what: str = "") -> Iterator[tuple[str, Any, Any]]:
    """(path, leaf of the pattern, what is given there). Another structure than the pattern's is the caller's mistake.

    What is no leaf and holds none is not compared.
    """
    if is_leaf(pattern):
        yield what, pattern, given
        return
    for name, item in children(pattern).items():
        if not has_leaf(item, is_leaf):
            continue
        have = children(given)
        if name not in have:
            expected = _describe(pattern, is_leaf)
            raise ShapeError(f"{what or 'the argument'} has another structure", expected=expected, got=_kind(given))
        yield from zip_leaves(item, have[name], is_leaf, join(what, name))
    if isinstance(pattern, tuple | list) and len(children(given)) != len(pattern):
        got = f"{len(children(given))} items"
        raise ShapeError(f"{what or 'the argument'} has another structure", expected=f"{len(pattern)} items", got=got)
    if isinstance(pattern, Mapping) and (strange := [str(key) for key in children(given) if key not in pattern]):
        expected = ", ".join(map(str, pattern))
        raise ShapeError(f"{what or 'the argument'} has unexpected entries", expected=expected, got=strange)


def _describe(pattern: Any, is_leaf: IsLeaf) -> str:
    names = [str(name) for name, item in children(pattern).items() if has_leaf(item, is_leaf)]
    return f"{_kind(pattern)} with {', '.join(names)}"


def _kind(value: Any) -> str:
    return "a " + type(value).__name__
