"""Facts about sizes at a point of the user's program, and branches on sizes.

Facts come from `facts=[…]` of a model or function, from `assume`, and from the branch of an `if` that is being traced.
They are context variables, so that threads and tasks trace independently. `explore` runs every branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Generic, TypeVar

from smelt.dim import Fact, Facts, Poly, Size, substitute
from smelt.errors import ShapeError, SmeltError
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.proving import FACTS, MEANINGS, current_facts, require_divisors
from smelt.tensor.recovery import collect_errors
from smelt.tensor.source import Place, TensorError, is_raised, refuse, starts_trace
from smelt.tensor.symbols import refuse_unknown, solve_facts

MAX_PATHS = 64  # that `explore` follows through one function
MAX_BRANCHES = 24  # on one path: more of them are a loop over a size

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


# ---- facts in force ----


def parse_facts(facts: Iterable[str | Fact], place: Place | None = None) -> Facts:
    """Facts from text; one that cannot be read is the user's mistake, at the place where they are stated."""
    if isinstance(facts, str):
        facts = [facts]
    try:
        return Facts.of(*facts)
    except ShapeError as error:
        refuse(
            f"not a fact: {error.message}",
            details=[("got", str(error.got))],
            remedy='"S <= C", "H divides D"',
            place=place,
        )


class assume:  # noqa: N801  # a context manager and decorator that reads as a statement
    """Facts about sizes: `with smelt.assume("S <= C"): …`, or `@smelt.assume("H divides D")` on a function.

    As a statement inside a function that is being traced it holds until the function ends. What is assumed is used in
    proofs and checked when the traced function runs.

    >>> with assume("S <= C"):
    ...     print(current_facts())
    Facts.of('S <= C')
    """

    @with_argument_errors
    def __init__(self, *facts: str | Fact) -> None:
        self._stated = parse_facts(facts)
        self._facts = _resolve_facts(self._stated)
        self._token: Token[Facts] | None = None
        walk = _WALK.get()
        if walk is not None:
            walk.assumed += self._facts.facts
            self._token = FACTS.set(current_facts() | self._facts)
            refuse_contradiction(current_facts())

    def __enter__(self) -> assume:
        if self._token is None:
            self._token = FACTS.set(current_facts() | self._facts)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._token is not None
        FACTS.reset(self._token)
        self._token = None

    def __call__(self, function: F) -> F:
        """The function itself, with the facts written on it for the tracer."""
        if self._token is not None:
            self.__exit__(None, None, None)
        stated = (*facts_of(function), *map(str, self._stated))
        function.facts = list(dict.fromkeys(stated))  # type: ignore[attr-defined]
        return function


def _resolve_facts(facts: Facts) -> Facts:
    """The facts with names resolved to sizes. Names that only the facts determine are solved for and bound."""
    names = MEANINGS.get()
    if names is None:
        return facts
    solved, meanings, unknown = solve_facts(facts, names.keys())
    for fact in unknown:
        refuse_unknown(fact, names.keys())
    MEANINGS.set({**names, **{name: substitute(size, names) for name, size in meanings.items()}})
    return Facts(substitute_fact(fact, names) for fact in solved)


def substitute_fact(fact: Fact, sizes: Mapping[str, Size]) -> Fact:
    """A fact with sizes in place of symbols."""
    return Fact(fact.relation, substitute(fact.left, sizes), substitute(fact.right, sizes))


def refuse_contradiction(facts: Facts, place: Place | None = None) -> None:
    """Refuse facts that no sizes satisfy: everything would follow from them."""
    if facts.contradictory:
        stated = ", ".join(map(str, facts))
        refuse("the facts contradict each other: no sizes satisfy them", details=[("facts", stated)], place=place)


def facts_of(owner: object) -> tuple[str, ...]:
    """The facts that a function or a model states: its attribute `facts`."""
    stated = getattr(owner, "facts", None)
    if isinstance(stated, str):
        return (stated,)
    return tuple(str(fact) for fact in stated) if isinstance(stated, list | tuple | Facts) else ()


# ---- branches ----


@dataclass(slots=True)
class _Walk:
    """One path through a function: which branches to take, those taken so far, and the facts that they add."""

    plan: list[int]
    taken: list[tuple[int, int]] = field(default_factory=list)  # (choice, number of choices)
    guards: list[Fact] = field(default_factory=list)
    assumed: tuple[Fact, ...] = ()


_WALK: ContextVar[_Walk | None] = ContextVar("smelt.walk", default=None)


def decide(claim: Fact) -> bool:
    """The answer to a comparison of sizes in Python: proven, or a branch that the tracer explores."""
    facts = current_facts()
    a, b = claim.left, claim.right
    if MEANINGS.get() is not None:  # not in constructors: Python reports those itself
        require_divisors((a, b))
    if claim.relation == "<=":
        options = [(claim, True), (Fact("<=", b + 1, a), False)]
    else:
        options = [(claim, True), (Fact("<=", a + 1, b), False), (Fact("<=", b + 1, a), False)]
    options = [option for option in options if _is_possible(facts, option[0])]
    if len({answer for _, answer in options}) == 1:
        return options[0][1]
    walk = _WALK.get()
    if walk is None or not options:
        refuse(
            f"{claim} depends on dynamic dimensions, which have no values here",
            remedy="trace the function (smelt.tensor.trace, smelt check), which follows both branches, or state a fact",
        )
    branch = len(walk.taken)
    if branch >= MAX_BRANCHES:
        refuse(
            f"{claim} is branch {branch + 1} on sizes: a Python loop over a dynamic dimension does not end",
            remedy="smelt.scan(…) or smelt.fori_loop(…), which loop over an axis of any size",
        )
    choice = walk.plan[branch] if branch < len(walk.plan) else 0
    walk.taken.append((choice, len(options)))
    fact, answer = _simplify(options[choice][0]), options[choice][1]
    walk.guards.append(fact)
    FACTS.set(facts | Facts((fact,)))
    return answer


def _simplify(fact: Fact) -> Fact:
    """A fact about one size with its number on one side: `S <= 0` for `S + 1 <= 1`."""
    gap = fact.right - fact.left
    if not isinstance(gap, Poly):
        return fact
    constant = sum(coefficient for monomial, coefficient in gap.terms if not monomial)
    rest = gap - constant
    if not isinstance(rest, Poly) or len(rest.terms) != 1:
        return fact
    if fact.relation == "==":
        return Fact("==", rest, -constant) if rest.terms[0][1] > 0 else Fact("==", -rest, constant)
    return Fact("<=", -constant, rest) if rest.terms[0][1] > 0 else Fact("<=", -rest, constant)


def _is_possible(facts: Facts, fact: Fact) -> bool:
    """Whether a fact may hold: it is not refuted by the others, as far as can be proven."""
    if facts.at_most(fact.right + 1, fact.left):
        return False
    return fact.relation == "<=" or not facts.at_most(fact.left + 1, fact.right)


@dataclass(frozen=True, slots=True)
class ExploredPath(Generic[T]):
    """One path through a function: its guards, its assumptions, and its result."""

    guards: tuple[Fact, ...]
    assumed: tuple[Fact, ...]
    result: T | None
    errors: tuple[SmeltError, ...] = ()


@starts_trace
def explore(run: Callable[[], T], facts: Facts) -> list[ExploredPath[T]]:
    """Run a function once for every combination of branches on sizes, each under the facts of its branches.

    A path goes on after a mistake where it can, and all paths are followed. Where the program itself refuses the sizes
    of a branch, by `raise` or `assert`, there is no path for them.
    """
    paths: list[ExploredPath[T]] = []
    refusals: list[Exception] = []
    plan: list[int] = []
    while True:
        walk = _Walk(plan)
        refusal: Exception | None = None
        token, facts_token = _WALK.set(walk), FACTS.set(current_facts() | facts)
        result: T | None = None
        with collect_errors() as mistakes:
            try:
                result = run()
            except SmeltError as mistake:
                mistakes.append(mistake)
            except Exception as error:
                if not mistakes:  # else it is what a mistake led to
                    if not (walk.guards and is_raised(error)):
                        raise
                    refusal = error
            finally:
                FACTS.reset(facts_token)
                _WALK.reset(token)
        for each in mistakes:
            if isinstance(each, TensorError) and walk.guards:
                each.under = tuple(str(fact) for fact in walk.guards)
        if refusal is None:
            paths.append(ExploredPath(tuple(walk.guards), walk.assumed, result, tuple(mistakes)))
        else:
            refusals.append(refusal)
        while walk.taken and walk.taken[-1][0] + 1 >= walk.taken[-1][1]:
            walk.taken.pop()
        if not walk.taken and not paths:
            raise refusals[0]  # whatever the sizes are
        if not walk.taken:
            return paths
        if len(paths) + len(refusals) >= MAX_PATHS:
            refuse(
                f"more than {MAX_PATHS} paths lead through the function", remedy="branch on fewer sizes, or state facts"
            )
        plan = [choice for choice, _ in walk.taken]
        plan[-1] += 1
