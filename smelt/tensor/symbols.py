"""Which symbols the arguments of a call determine, and which follow from facts.

A fact about a symbol that nothing determines cannot be checked, so it is refused. A symbol that only a fact names is
solved for: under `N == 2*Q` Q is `N//2`, and the call checks `2 divides N`. The tracer and `assume` call this.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NoReturn

from smelt.dim import Fact, Facts, Poly, Size, floordiv, mod, substitute, symbols
from smelt.size import linear_in, nonneg
from smelt.tensor.source import Place, refuse


def determined_symbols(sizes: Iterable[Size]) -> tuple[frozenset[str], Facts]:
    """The symbols that numbers for these sizes determine (as `smelt.size.solve` does), and the facts that this needs.

    `H*K` determines K where another size determines H, and H is at least 1.
    """
    waiting = [size for size in dict.fromkeys(sizes) if isinstance(size, Poly)]
    told: set[str] = set()
    needed: list[Fact] = []
    while found := _next_determined(waiting, told):
        name, factor = found
        told.add(name)
        needed += [Fact("<=", 1, factor)] if isinstance(factor, Poly) else []
    return frozenset(told), Facts(needed)


def _next_determined(sizes: list[Poly], told: Collection[str]) -> tuple[str, Size] | None:
    """One more symbol, and its factor in the size that determines it; a number where there is a choice."""
    found: tuple[str, Size] | None = None
    for size in sizes:
        unknown = symbols(size) - set(told)
        if len(unknown) == 1 and (parts := linear_in(size, name := next(iter(unknown)))):
            if isinstance(parts[0], int):
                return name, parts[0]
            found = found or (name, parts[0])
    return found


def solve_facts(facts: Facts, known: Collection[str]) -> tuple[Facts, dict[str, Size], list[Fact]]:
    """Facts about known symbols alone, formulas for other symbols in them, and the facts that cannot be solved."""
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
    """Refuse a fact about a symbol that nothing determines."""
    name = min(fact.symbols - set(known))
    refuse(
        f"the fact {fact} names {name}, which no argument determines, so it cannot be checked",
        details=[("known", ", ".join(sorted(known)) or "none")],
        remedy=f"give an argument an axis of size {name}, or say what it is: {name} == …",
        place=place,
    )
