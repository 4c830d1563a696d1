"""Facts in force, and branches on sizes: what is proven, what is explored, and where exploring ends."""

from __future__ import annotations

import contextlib

import pytest

from smelt.dim import Fact, Facts, symbol
from smelt.tensor.facts import (
    MAX_BRANCHES,
    MAX_PATHS,
    assume,
    decide,
    explore,
    facts_of,
    parse_facts,
    refuse_contradiction,
    substitute_fact,
)
from smelt.tensor.proving import current_facts
from smelt.tensor.source import TensorError
from smelt.tensor.symbols import determined_symbols

S, C = symbol("S"), symbol("C")


def at_most(a: object, b: object) -> Fact:
    return Fact("<=", a, b)  # type: ignore[arg-type]


def test_assumed_facts_hold_inside_the_block_alone() -> None:
    before = current_facts()
    with assume("S <= C") as outer:
        assert current_facts().at_most(S, C)
        with assume("C <= 8"):
            assert current_facts().at_most(S, 8)
        assert not current_facts().at_most(S, 8)
    assert current_facts() == before
    with contextlib.suppress(ZeroDivisionError), outer:  # again, and left by an error
        assert current_facts().at_most(S, C)
        raise ZeroDivisionError
    assert current_facts() == before


def test_a_decorator_states_each_fact_once_and_leaves_none_in_force() -> None:
    def function() -> None: ...

    before = current_facts()
    decorated = assume("S <= C")(assume("S <= C", "2 divides S")(function))
    assert decorated is function
    assert facts_of(function) == ("S <= C", "S % 2 == 0")
    assert current_facts() == before


def test_facts_of_owners() -> None:
    class Owner:
        def __init__(self, facts: object) -> None:
            self.facts = facts

    assert facts_of(Owner("S <= C")) == ("S <= C",)
    assert facts_of(Owner(["S <= C", "S >= 1"])) == ("S <= C", "S >= 1")
    assert facts_of(Owner(("S <= C",))) == facts_of(Owner(Facts.of("S <= C"))) == ("S <= C",)
    assert facts_of(Owner(7)) == facts_of(object()) == ()


def test_texts_that_are_no_facts_and_facts_that_contradict() -> None:
    assert parse_facts("S <= C") == parse_facts(["S <= C"]) == Facts.of("S <= C")
    with pytest.raises(TensorError, match=r"not a fact(?s:.)*got 'S is small'(?s:.)*try \"S <= C\""):
        parse_facts(["S is small"])
    refuse_contradiction(Facts.of("S <= 3", "S >= 3"))
    with pytest.raises(TensorError, match=r"contradict each other(?s:.)*facts +S <= 3, S >= 4"):
        refuse_contradiction(Facts.of("S <= 3", "S >= 4"))
    assert substitute_fact(Fact("<=", S, C + 1), {"S": 2 * C, "C": S}) == Fact("<=", 2 * C, S + 1)


def test_what_is_proven_needs_no_branch_and_what_is_not_needs_a_tracer() -> None:
    assert decide(at_most(S, S)) is True
    assert decide(at_most(S + 1, S)) is False
    assert decide(Fact("==", S, S)) is True
    assert decide(Fact("==", S, S + 1)) is False
    with assume("S <= 3"):
        assert decide(at_most(S, 3)) is True
        assert decide(at_most(4, S)) is False
        assert decide(Fact("==", S, 4)) is False
    with pytest.raises(TensorError, match=r"depends on dynamic dimensions(?s:.)*state a fact"):
        decide(at_most(S, 3))


@pytest.mark.parametrize(
    ("claim", "guards"),
    [
        (at_most(S, 3), ["S <= 3", "S >= 4"]),
        (at_most(S + 1, 3), ["S <= 2", "S >= 3"]),
        (at_most(3, S), ["S >= 3", "S <= 2"]),
        (Fact("==", S + 1, 3), ["S == 2", "S <= 1", "S >= 3"]),
        (Fact("==", 3, S), ["S == 3", "S >= 4", "S <= 2"]),
        (at_most(S, C), ["S <= C", "C + 1 <= S"]),
    ],
)
def test_every_branch_is_taken_under_its_own_fact(claim: Fact, guards: list[str]) -> None:
    paths = explore(lambda: (decide(claim), str(current_facts())), Facts.of())
    assert [str(fact) for path in paths for fact in path.guards] == guards
    assert [path.result[0] for path in paths if path.result] == [i == 0 for i in range(len(guards))]
    for path, guard in zip(paths, guards, strict=True):
        assert path.result is not None
        assert guard in path.result[1]
    assert current_facts() == Facts.of()


def many_branches(count: int) -> int:
    """So many comparisons on one path, each true or the end."""
    for i in range(count):
        if not decide(at_most(i, S)):
            return i
    return count


def test_loops_over_a_size_and_too_many_paths_are_refused() -> None:
    assert (MAX_BRANCHES, MAX_PATHS) == (24, 64)
    paths = explore(lambda: many_branches(MAX_BRANCHES + 1), Facts.of())  # the first one is proven: S >= 0
    assert max(path.result or 0 for path in paths) == MAX_BRANCHES + 1
    ended = explore(lambda: many_branches(MAX_BRANCHES + 2), Facts.of())
    (error,) = {str(error) for path in ended for error in path.errors}
    assert f"is branch {MAX_BRANCHES + 1} on sizes" in error
    symbols = [symbol(f"X{i}") for i in range(7)]
    assert len(explore(lambda: [decide(at_most(each, 3)) for each in symbols[:6]], Facts.of())) == MAX_PATHS == 64
    with pytest.raises(TensorError, match="more than 64 paths"):
        explore(lambda: [decide(at_most(each, 3)) for each in symbols], Facts.of())


def test_a_branch_that_raises_is_no_path() -> None:
    def run() -> str:
        if not decide(at_most(S, 3)):
            raise ValueError("too long")
        return "short"

    (path,) = explore(run, Facts.of())
    assert (path.result, [str(each) for each in path.guards]) == ("short", ["S <= 3"])

    def refuse_all() -> None:
        raise ValueError(str(decide(at_most(S, 3))))

    with pytest.raises(ValueError, match="True"):
        explore(refuse_all, Facts.of())


def test_symbols_that_sizes_determine() -> None:
    """A symbol with a number for its factor needs no fact, one with another symbol needs that to be 1 or more."""
    h, k, n = symbol("H"), symbol("K"), symbol("N")
    for sizes, names, facts in (
        ([k, 2 * h + k], {"H", "K"}, ()),
        ([k, h * k], {"H", "K"}, (Fact("<=", 1, k),)),
        ([k, h * k, h + 1], {"H", "K"}, ()),
        ([h * k], set(), ()),
        ([k, h * k, h * n], {"H", "K", "N"}, (Fact("<=", 1, k), Fact("<=", 1, h))),
        ([3, 4], set(), ()),
    ):
        told, needed = determined_symbols(sizes)
        assert told == frozenset(names), sizes
        assert list(needed.facts) == list(facts), sizes
