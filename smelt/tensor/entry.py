"""What a function learns about sizes when it is called: the symbols that its arguments tell, and those that facts tell.

A fact about a symbol that nothing tells could never be checked, so it is refused. A symbol that only a fact names is
solved for: under `N == 2*Q` Q means `N//2`, and `2 divides N` is what is checked. The tracer and `assume` call this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from smelt.dim import Fact, Facts, Poly, Size, floordiv, mod, substitute, symbols
from smelt.size import linear_in, nonneg
from smelt.tensor.source import Place, refuse


def determined_symbols(sizes: Iterable[Size]) -> tuple[frozenset[str], Facts]:
    """The symbols that numbers for these sizes determine, as `smelt.size.solve` does it, and what that takes.

    `H*K` tells K where H is told elsewhere, and is at least 1.
    """
    waiting = [size for size in dict.fromkeys(sizes) if isinstance(size, Poly)]
    told: set[str] = set()
    needed: list[Fact] = []
    while found := _next_told(waiting, told):
        name, factor = found
        told.add(name)
        needed += [Fact("<=", 1, factor)] if isinstance(factor, Poly) else []
    return frozenset(told), Facts(needed)


def _next_told(sizes: list[Poly], told: Collection[str]) -> tuple[str, Size] | None:
    """One more symbol, and its factor in the size that tells it: a number where there is a choice."""
    found: tuple[str, Size] | None = None
    for size in sizes:
        unknown = symbols(size) - set(told)
        if len(unknown) == 1 and (parts := linear_in(size, name := next(iter(unknown)))):
            if isinstance(parts[0], int):
                return name, parts[0]
            found = found or (name, parts[0])
    return found


def solve_facts(facts: Facts, known: Collection[str]) -> tuple[Facts, dict[str, Size], list[Fact]]:
    """Facts about known symbols alone, what other symbols in them mean, and the facts that remain about others."""
    given = list(facts)
    meanings: dict[str, Size] = {}
    while solution := _solve_one(given, known, meanings):
        fact, name, value, checks = solution
        meanings[name] = value
        given[given.index(fact) : given.index(fact) + 1] = checks
        given = [Fact(f.relation, substitute(f.left, {name: value}), substitute(f.right, {name: value})) for f in given]
    kept = [fact for fact in given if fact.symbols <= set(known)]
    return Facts(kept), meanings, [fact for fact in given if fact not in kept]


def _solve_one(
    facts: list[Fact], known: Collection[str], solved: Mapping[str, Size]
) -> tuple[Fact, str, Size, list[Fact]] | None:
    for fact in facts:
        unknown = fact.symbols - set(known)
        if fact.relation != "==" or len(unknown) != 1:
            continue
        name = next(iter(unknown))
        parts = linear_in(fact.left - fact.right, name)
        if parts is None or name in solved:
            continue
        factor, rest = parts
        if nonneg(-factor):
            factor = -factor
        else:
            rest = -rest
        checks = [Fact("==", mod(rest, factor), 0)] if factor != 1 else []
        checks += [Fact("<=", 1, factor)] if isinstance(factor, Poly) else []
        checks += [Fact("<=", 0, rest)] if not nonneg(rest) else []
        return fact, name, floordiv(rest, factor), checks
    return None


def refuse_unknown(fact: Fact, known: Collection[str], place: Place | None = None) -> NoReturn:
    """A fact that cannot be checked because of a symbol that nothing tells."""
    name = min(fact.symbols - set(known))
    refuse(
        f"the fact {fact} names {name}, which no argument tells: it could never be checked",
        details=[("known", ", ".join(sorted(known)) or "none")],
        remedy=f"give an argument an axis of size {name}, or say what it is: {name} == …",
        place=place,
    )
