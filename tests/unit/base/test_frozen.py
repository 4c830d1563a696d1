"""Frozen records beside frozen dataclasses with the same fields: whatever one does, the other does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from smelt.frozen import Frozen


class Ours(Frozen):
    a: int
    b: str = "x"
    c: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.a


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs:
    a: int
    b: str = "x"
    c: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.a


CALLS: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
    ((1,), {}),
    ((1, "y"), {}),
    ((1, "y", (2,)), {}),
    ((1,), {"c": (3,)}),
    ((), {"c": (3,), "a": 2}),
    ((), {}),
    ((1, "y", (2,), 4), {}),
    ((1,), {"a": 1}),
    ((1,), {"d": 1}),
    ((1, "y", (2,)), {"c": ()}),
    ((), {"b": "y"}),
]


@pytest.mark.parametrize(("positional", "named"), CALLS)
def test_fields_are_taken_as_a_dataclass_takes_them(positional: tuple[Any, ...], named: dict[str, Any]) -> None:
    try:
        want = Theirs(*positional, **named)
    except TypeError:
        with pytest.raises(TypeError, match="Ours has the fields a, b, c"):
            Ours(*positional, **named)
        return
    made = Ours(*positional, **named)
    assert (made.a, made.b, made.c, made.twice) == (want.a, want.b, want.c, want.twice)
    assert repr(made) == repr(want).replace("Theirs", "Ours")


def test_equality_and_hashes() -> None:
    calls = CALLS[:5]
    for first in calls:
        for second in calls:
            same = Theirs(*first[0], **first[1]) == Theirs(*second[0], **second[1])
            a, b = Ours(*first[0], **first[1]), Ours(*second[0], **second[1])
            assert (a == b) is same
            assert (hash(a) == hash(b)) is same
    assert Ours(1) != Theirs(1)
    assert Ours(1) != (1, "x", ())


def test_nothing_changes_but_copies() -> None:
    made = Ours(1, "y")
    for change in (lambda: setattr(made, "a", 2), lambda: setattr(made, "new", 2), lambda: delattr(made, "a")):
        with pytest.raises(AttributeError):
            change()
    assert not hasattr(made, "__dict__")
    assert made.replace(a=5) == Ours(5, "y")
    assert made == Ours(1, "y")
    with pytest.raises(TypeError):
        made.replace(d=1)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made
    match made:
        case Ours(a, b):
            assert (a, b) == (1, "y")
