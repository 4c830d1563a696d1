"""What a valid program assumes about its sizes, as facts for people: `length <= 512`.

A program → its facts, each once and in its simplest form; without facts it holds for all sizes. Engines check
them when a program runs. `smelt check` and `smelt inspect` call it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Literal

from smelt.dim import Facts, Size, at_most
from smelt.ir.core import Op, Program, walk
from smelt.ir.ops.control import is_assertion
from smelt.ir.size_checks import size_checks
from smelt.ir.sizes import trace
from smelt.ir.verify import as_upper_bound, assumptions, dynamic_broadcasts
from smelt.size import collect, content_of, shrink, terms_of
from smelt.theory import Fact

_MOST = 32  # facts that are held against each other


def facts(program: Program) -> list[str]:
    """Every fact with its reason; raises on the first violation."""
    equal = _equalities(program)
    shown = [f"{fact} ({why})" for fact, why in (equal | _inequalities(program, [*equal])).items()]
    return list(dict.fromkeys([*shown[: len(equal)], *dynamic_broadcasts(program), *shown[len(equal) :]]))


def broken_by(program: Program, sizes: Mapping[str, int]) -> list[Fact]:
    """The facts that do not hold for given sizes; those about other symbols are left out."""
    equal = _equalities(program)
    known = [fact for fact in (*equal, *_inequalities(program, [*equal])) if fact.symbols <= sizes.keys()]
    return [fact for fact in known if not fact.holds(sizes)]


def _equalities(program: Program) -> dict[Fact, str]:
    return {
        as_upper_bound(a, b) or as_upper_bound(b, a) or _simple("==", b - a): why for a, b, why in assumptions(program)
    }


def _inequalities(program: Program, equal: list[Fact]) -> dict[Fact, str]:
    """Of facts that differ in a number the strongest; none that follows from the others."""
    strongest: dict[Size, tuple[int, str]] = {}
    for a, b, why in (*_checked_bounds(program), *_conditions(program)):
        gap = _unwrap(b - a)
        if at_most(0, gap):
            continue
        number = dict(terms_of(gap)).get((), 0)
        factor = content_of(gap - number)
        rest, number = shrink(gap - number, factor), number // factor
        known = strongest.get(rest)
        if known is None or number < known[0]:
            strongest[rest] = number, why
    found = {_simple("<=", rest + number): why for rest, (number, why) in strongest.items()}
    for fact in list(found) if len(found) <= _MOST else ():
        others = Facts((*equal, *(each for each in found if each is not fact)))
        if others.at_most(fact.left, fact.right):
            del found[fact]
    return found


def _unwrap(gap: Size) -> Size:
    """A size that is not negative where the given one is not: `h + 7 - 8` for `(h + 7)//8 - 1`."""
    while True:
        terms = dict(terms_of(gap))
        number = terms.pop((), 0)
        if len(terms) != 1 or set(map(len, terms)) != {1} or set(terms.values()) != {1}:
            return gap
        ((atom,),) = terms
        if atom.op == "//" and isinstance(atom.args[1], int) and atom.args[1] > 0:
            gap = atom.args[0] + number * atom.args[1]
        elif atom.op == "max" and isinstance(atom.args[1], int) and atom.args[1] + number < 0:
            gap = atom.args[0] + number
        else:
            return gap


def _checked_bounds(program: Program) -> Iterator[tuple[Size, Size, str]]:
    """What engines check: sizes that are at most others, sizes that are not negative, divisors that are not 0."""
    for op in walk(program.main.body):
        for check in size_checks(op):
            if check.relation == "<=":
                yield check.a, check.b, check.why
            elif check.relation == "!=" and at_most(0, check.a):
                yield 1, check.a, check.why


def _conditions(program: Program) -> Iterator[tuple[Size, Size, str]]:
    """What a reader has checked when the program runs, where it is about sizes alone."""
    for op in walk(program.main.body):
        test = op.operands[0].op if is_assertion(op) and op.operands else None
        if test is not None and test.name == "stablehlo.compare" and test.attrs["comparison_direction"] == "LE":
            a, b = (trace(value) for value in test.operands)
            if a is not None and b is not None and len(a) == len(b) == 1:
                yield a[0], b[0], _reason(op)


def _reason(op: Op) -> str:
    where = f"{op.location.name}: " if op.location is not None and op.location.name else ""
    return where + str(op.attrs.get("error_message", "a constraint")).partition(":")[0]


def _simple(relation: Literal["==", "<="], gap: Size) -> Fact:
    """`0 == gap` or `0 <= gap` with what is positive on one side and what is negative on the other."""
    rest = shrink(gap, content_of(gap))
    right = collect({monomial: coefficient for monomial, coefficient in terms_of(rest) if coefficient > 0})
    left = collect({monomial: -coefficient for monomial, coefficient in terms_of(rest) if coefficient < 0})
    whole = right == 0 and at_most(0, left)  # n % 2 is 0 where it is at most 0
    return Fact("==" if whole else relation, left, right)
