"""Outline: a structure of tensors ↔ a flat list, without a comparison leaf by leaf.

Made once from the structure of a traced function's parameters or results. `executable` uses it for repeated calls.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.tensor.record import is_tensor


class Outline:
    """A tuple, named tuple, list or dictionary of leaves and of further outlines.

    >>> from smelt import symbolic
    >>> x = symbolic("f32[n=2]")
    >>> outline = Outline.of((x, [x, {"a": x}]))
    >>> outline.flatten((1, [2, {"a": 3}])), outline.flatten((1, [2]))
    ([1, 2, 3], None)
    >>> outline.build([4, 5, 6])
    (4, [5, {'a': 6}])
    """

    __slots__ = ("_count", "_keys", "_kind", "_kinds", "_parts", "_plain")

    def __init__(self, kind: type, keys: tuple[Any, ...] | None, parts: tuple[Outline | None, ...]) -> None:
        self._kind, self._keys, self._parts = kind, keys, parts  # a part that is None is a leaf
        self._kinds: tuple[type, ...] = (tuple, list) if kind in (tuple, list) else (kind,)
        self._count = len(parts)
        self._plain = keys is None and all(part is None for part in parts)

    @staticmethod
    def of(structure: Any) -> Outline | None:
        """The outline of a structure that is no leaf itself; None where it holds anything but tensors."""
        keys: tuple[Any, ...] | None = None
        named = isinstance(structure, tuple) and hasattr(structure, "_fields")
        if named or type(structure) in (tuple, list):
            items: Sequence[Any] = structure
        elif type(structure) is dict:
            keys, items = tuple(structure), list(structure.values())
        else:
            return None
        parts = []
        for item in items:
            part = None if is_tensor(item) else Outline.of(item)
            if part is None and not is_tensor(item):
                return None
            parts.append(part)
        return Outline(type(structure), keys, tuple(parts))

    def flatten(self, given: Any) -> list[Any] | None:
        """The leaves of a structure of this kind in order; None where it is another."""
        found: list[Any] = []
        return found if self._add(given, found) else None

    def _add(self, given: Any, found: list[Any]) -> bool:
        if type(given) not in self._kinds or len(given) != self._count:
            return False
        if self._plain:
            found.extend(given)
            return True
        if self._keys is not None:
            if any(key not in given for key in self._keys):
                return False
            given = [given[key] for key in self._keys]
        for item, part in zip(given, self._parts, strict=True):
            if part is None:
                found.append(item)
            elif not part._add(item, found):
                return False
        return True

    def build(self, values: Sequence[Any]) -> Any:
        """A structure of this kind from its leaves."""
        made, _ = self._take(values, 0)
        return made

    def _take(self, values: Sequence[Any], at: int) -> tuple[Any, int]:
        if self._plain:
            items = values[at : at + self._count]
            at += self._count
        else:
            items = []
            for part in self._parts:
                if part is None:
                    items.append(values[at])
                    at += 1
                else:
                    made, at = part._take(values, at)
                    items.append(made)
        if self._keys is not None:
            return dict(zip(self._keys, items, strict=True)), at
        if self._kind is tuple or self._kind is list:
            return self._kind(items), at
        return self._kind(*items), at
