"""Frozen records beside frozen dataclasses with the same fields: whatever one does, the other does. Each test runs
with a new class, and again once the class has generated methods."""

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


class Many(Frozen):
    a: int
    b: str = "x"
    c: tuple[int, ...] = ()

    @property
    def twice(self) -> int:
        return 2 * self.a


class Rounded(Frozen):
    """Compares in its own way."""

    value: float

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rounded) and round(self.value) == round(other.value)

    def __hash__(self) -> int:
        return hash(round(self.value))


@pytest.fixture(params=["few", "many"])
def ours(request: pytest.FixtureRequest) -> type[Ours]:
    if request.param == "few":
        Ours._made = 0
        return Ours
    for number in range(100):
        Many(number)
    assert Many.__init__ is not Frozen.__init__
    return Many  # type: ignore[return-value]


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
def test_fields_are_taken_as_a_dataclass_takes_them(
    ours: type[Ours], positional: tuple[Any, ...], named: dict[str, Any]
) -> None:
    try:
        want = Theirs(*positional, **named)
    except TypeError:
        with pytest.raises(TypeError, match=r"Ours has the fields a, b, c|Many|__init__"):
            ours(*positional, **named)
        return
    made = ours(*positional, **named)
    assert (made.a, made.b, made.c, made.twice) == (want.a, want.b, want.c, want.twice)
    assert repr(made) == repr(want).replace("Theirs", ours.__name__)


def test_equality_and_hashes(ours: type[Ours]) -> None:
    calls = CALLS[:5]
    for first in calls:
        for second in calls:
            same = Theirs(*first[0], **first[1]) == Theirs(*second[0], **second[1])
            a, b = ours(*first[0], **first[1]), ours(*second[0], **second[1])
            assert (a == b) is same
            assert (hash(a) == hash(b)) is same
    assert ours(1) != Theirs(1)
    assert ours(1) != (1, "x", ())
    for _ in range(100):
        assert Rounded(1.1) == Rounded(0.9)
        assert hash(Rounded(1.1)) == hash(Rounded(0.9))


def test_nothing_changes_but_copies(ours: type[Ours]) -> None:
    made = ours(1, "y")
    for change in (lambda: setattr(made, "a", 2), lambda: setattr(made, "new", 2), lambda: delattr(made, "a")):
        with pytest.raises(AttributeError):
            change()
    assert not hasattr(made, "__dict__")
    assert made.replace(a=5) == ours(5, "y")
    assert made == ours(1, "y")
    with pytest.raises(TypeError):
        made.replace(d=1)
    assert pickle.loads(pickle.dumps(made)) == copy.deepcopy(made) == copy.copy(made) == made
    match made:
        case ours(a, b):
            assert (a, b) == (1, "y")
