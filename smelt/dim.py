"""Claims about symbolic sizes: proven, refuted by a counterexample, or unknown with the missing fact named.

In: facts (`D == H*K`, `H divides D`, `S <= C`) and claims about sizes. Every op that computes a shape calls it. It also
re-exports the names of `smelt.size`. A claim is about the values of symbols for which both sides are defined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from enum import Enum
from itertools import combinations, islice
from typing import Any, final

from smelt.errors import ShapeError
from smelt.frozen import Frozen
from smelt.size import (
    Atom,
    Poly,
    Size,
    any_symbol,
    assignment,
    ceildiv,
    collect,
    content_of,
    divide_exact,
    evaluate,
    floordiv,
    maximum,
    minimum,
    mod,
    parse_size,
    product,
    solve,
    substitute,
    symbol,
    symbols,
    symbols_in_order,
    terms_of,
    without,
)
from smelt.theory import HIDDEN, MAX_FUEL, Fact, Theory, atoms_in, parse_fact

__all__ = [
    "Answer",
    "Atom",
    "Fact",
    "Facts",
    "Poly",
    "Proof",
    "Size",
    "at_most",
    "ceildiv",
    "divide_exact",
    "equal",
    "evaluate",
    "floordiv",
    "maximum",
    "minimum",
    "mod",
    "parse_size",
    "product",
    "solve",
    "substitute",
    "symbol",
    "symbols",
    "symbols_in_order",
]

_MAX_TRIALS, _MAX_ANSWERS = 200, 4096


class Proof(Enum):
    """How a question about sizes ended."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


class Answer(Frozen):
    """What became of a claim. True only when it is proven.

    A false claim about numbers alone is refuted whatever the facts are: by `{}` where nothing is known to satisfy them.
    """

    status: Proof
    counterexample: dict[str, int] | None = None  # of a refuted claim: numbers that satisfy the facts and break it
    missing: str | None = None  # what would prove the claim together with the facts, if found: one, or two with `and`

    def __bool__(self) -> bool:
        return self.status is Proof.PROVEN

    def __str__(self) -> str:
        numbers = dict(islice((self.counterexample or {}).items(), 8))
        example = f", not for {assignment(numbers)}" if numbers else ""
        return self.status.value + example + (f"; holds if {self.missing}" if self.missing else "")


_PROVEN = Answer(Proof.PROVEN)


@final
class Facts:
    """What is assumed about symbols. Immutable; `|` joins two sets.

    >>> D, H = symbol("D"), symbol("H")
    >>> facts = Facts.of("H divides D", "S <= C")
    >>> facts.equal(D // H * H, D).status, facts.check({"D": 7, "H": 2, "S": 1, "C": 1})
    (<Proof.PROVEN: 'proven'>, ['H divides D'])
    >>> print(equal(D // H * H, D))
    refuted, not for D=2, H=3; holds if H divides D
    """

    __slots__ = ("_answers", "_false", "_parent", "_theory", "_witness", "facts")

    def __init__(self, facts: Iterable[Fact] = (), _parent: Facts | None = None) -> None:
        self.facts = tuple(dict.fromkeys(facts))
        # Facts that are the first of ours and whose theory is ready: it need only be extended.
        self._parent: Facts | None = _parent._parent if _parent and _parent._theory is None else _parent
        self._theory: Theory | None = None
        self._witness: dict[str, int] | None = None
        self._false: Answer | None = None if self.facts else Answer(Proof.REFUTED, {})
        self._answers: dict[Fact, Answer] = {}

    @staticmethod
    def of(*facts: str | Fact) -> Facts:
        """Facts from text: two sizes with one of `==`, `<=`, `>=`, `<`, `>` and `divides` between them."""
        return Facts(parse_fact(fact) if isinstance(fact, str) else fact for fact in facts)

    def eq(self, a: Size, b: Size) -> Facts:
        """These facts and `a == b`."""
        return Facts((*self.facts, Fact("==", a, b)), self)

    def le(self, a: Size, b: Size) -> Facts:
        """These facts and `a <= b`."""
        return Facts((*self.facts, Fact("<=", a, b)), self)

    def factor(self, k: Size, a: Size) -> Facts:
        """These facts and `k divides a`, which says too that k is not 0."""
        return self.eq(mod(a, k), 0)

    def __or__(self, other: Facts) -> Facts:
        return Facts((*self.facts, *other.facts), self)

    def __iter__(self) -> Iterator[Fact]:
        return iter(self.facts)

    def __len__(self) -> int:
        return len(self.facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Facts) and set(self.facts) == set(other.facts)

    def __hash__(self) -> int:
        return hash(frozenset(self.facts))

    def __repr__(self) -> str:
        return f"Facts.of({', '.join(repr(str(fact)) for fact in self.facts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Facts, (self.facts,)

    def check(self, values: Mapping[str, int]) -> list[str]:
        """The facts that these numbers break; one that divides by zero is broken."""
        return [str(fact) for fact in self.facts if not fact.holds(values)]

    @property
    def contradictory(self) -> bool:
        """Whether it is proven that no numbers satisfy all of the facts."""
        if not self.facts or self._witness:
            return False
        theory = self._ready()
        theory.refuel(MAX_FUEL)
        return theory.contradicts()

    def equal(self, a: Size, b: Size) -> Answer:
        """Whether `a == b`."""
        return _PROVEN if a is b or a == b else self._ask(Fact("==", a, b))

    def at_most(self, a: Size, b: Size) -> Answer:
        """Whether `a <= b`."""
        if a is b or a == b or (isinstance(a, int) and isinstance(b, int) and a <= b):
            return _PROVEN
        return self._ask(Fact("<=", a, b))

    def divides(self, k: Size, a: Size) -> Answer:
        """Whether `k divides a`: whether `a % k == 0`. 0 divides nothing."""
        return self.equal(mod(a, k), 0) if k != 0 else self.equal(0, 1)

    def _ask(self, claim: Fact) -> Answer:
        if isinstance(claim.left, int) and isinstance(claim.right, int):  # and false: the true ones ended before
            if self._false is None:
                self._false = Answer(Proof.REFUTED, _visible(self._example()))
            return self._false
        answer = self._answers.get(claim)
        if answer is None:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            try:
                answer = self._decide(claim)
            except ShapeError:  # an expression outgrew its bounds
                answer = Answer(Proof.UNKNOWN, None, str(claim))
            self._answers[claim] = answer
        return answer

    def _decide(self, claim: Fact) -> Answer:
        """Try cheap proofs, then cheap counterexamples, then the expensive ones."""
        theory = self._ready()
        theory.refuel(MAX_FUEL)
        if theory.plain(claim):
            return _PROVEN
        search = self._search(claim)
        numbers = _first(search, 8)
        if numbers is None and theory.prove(claim):
            return _PROVEN
        numbers = numbers or _first(search, _MAX_TRIALS)
        missing: str | None = None
        with suppress(ShapeError):
            missing = self._missing(claim)
        return Answer(Proof.REFUTED, _visible(numbers), missing) if numbers else Answer(Proof.UNKNOWN, None, missing)

    def _ready(self) -> Theory:
        if self._theory is None:
            parent, self._parent = self._parent, None
            theory = Theory(parent._ready() if parent else None)
            for fact in self.facts[len(parent) if parent else 0 :]:
                theory.refuel(MAX_FUEL)
                with suppress(ShapeError):  # facts that contradict each other: to know less is safe
                    theory.add(fact)
            self._theory = theory
        return self._theory

    def _search(self, claim: Fact | None) -> Iterator[dict[str, int] | None]:
        """Trial after trial: numbers for all symbols if they satisfy the facts and break the claim, else None."""
        theory = self._ready()
        own = symbols_in_order(claim.left, claim.right) if claim else ()
        order = dict.fromkeys((*own, *sorted({name for fact in self.facts for name in fact.symbols})))
        sizes = {name: theory.bindings.get(name, any_symbol(name)) for name in order}
        free = list(dict.fromkeys(name for size in sizes.values() for name in symbols_in_order(size)))
        moving = len({name for own_name in own for name in symbols(sizes[own_name])})
        aims: list[list[Size]] = [[]]
        if claim:
            gap = theory.normal(claim.left - claim.right)
            aims += [[gap - 1]] if claim.relation == "<=" else [[gap - 1], [-1 - gap]]
        near = sorted({abs(number) for fact in (*self.facts, claim) if fact for number in _numbers(fact)})[:12]
        pool = list(dict.fromkeys((*_POOL, *(n for number in near for n in (number, number + 1, abs(number - 1))))))
        base = self._example if claim and self.facts else dict
        weight = sum(len(atoms_in(fact.left, fact.right)) for fact in (*self.facts, claim) if fact)
        limit = max(_MAX_TRIALS // 5, _MAX_TRIALS * 10 // (weight + 1))
        for trial, start in zip(range(limit), _candidates(free, pool, base, moving), strict=False):
            try:
                values = _repair(start, [*theory.known, *aims[trial % len(aims)]])
                numbers = {name: evaluate(size, values) for name, size in sizes.items()}
            except ShapeError:
                yield None
                continue
            good = all(number >= 0 for number in numbers.values()) and all(fact.holds(numbers) for fact in self.facts)
            yield {**numbers, **values} if good and (claim is None or claim.holds(numbers) is False) else None

    def _example(self, trials: int = _MAX_TRIALS) -> dict[str, int]:
        """Numbers that satisfy the facts; none if none were found."""
        if self._witness is None:
            self._witness = _first(self._search(None), trials) or {}
        return self._witness

    def _missing(self, claim: Fact) -> str | None:
        """A fact that would prove the claim and goes together with the others: the simplest first. Else two of them."""
        plain = list(dict.fromkeys([*_bounds(claim), *_divisions(claim)]))
        own = _simplest(claim)
        attempts: list[tuple[Fact, ...]] = [*((fact,) for fact in plain), *combinations(plain[:5], 2)]
        for some in (attempts, [] if _vanishes(own) else [(own,)]):
            self._ready().refuel(MAX_FUEL // 4)
            for facts in some:
                with suppress(ShapeError):
                    if self._proves(facts, claim):
                        return " and ".join(map(str, facts))
        return None

    def _proves(self, facts: Sequence[Fact], claim: Fact) -> bool:
        more = Facts((*self.facts, *facts))
        more._theory = Theory(self._theory)
        for fact in facts:
            more._theory.add(fact)
        proven = more._theory.plain(claim) or (len(claim.symbols) == 1 and more._theory.prove(claim))
        return proven and bool(more._example(16))


def _bounds(claim: Fact) -> Iterator[Fact]:
    """Bounds of single symbols that may be what a claim lacks."""
    if claim.relation == "==":
        return
    names = symbols_in_order(claim.left, claim.right)
    if len(names) == 1:
        held = [n for n in range(65) if claim.holds({names[0]: n})]
        if held and held[-1] == 64:
            least = next(n for n in reversed(range(65)) if n == 0 or not claim.holds({names[0]: n - 1}))
            yield Fact("<=", least, any_symbol(names[0]))
        elif held and held == list(range(len(held))):
            yield Fact("<=", any_symbol(names[0]), held[-1])
        return
    yield from (Fact("<=", 1, any_symbol(name)) for name in names[:4])


def _divisions(claim: Fact) -> Iterator[Fact]:
    """What would take the divisions, maxima and minima out of a claim."""
    divisors: list[Fact] = []
    others: list[Fact] = []
    for atom in atoms_in(claim.left, claim.right):
        a, b = atom.args or (0, 0)
        if atom.op in ("//", "%"):
            divisors += [Fact("<=", 1, b)] * isinstance(b, Poly)
            divisors += [Fact("<=", b, a)] * (claim.relation == "<=" and isinstance(a, Poly) and isinstance(b, Poly))
            others += [Fact("==", mod(a, b), 0)]
        elif atom.op in ("max", "min"):
            others += [Fact("<=", a, b), Fact("<=", b, a)]
    yield from (*divisors[:4], *others[:6])


def _vanishes(fact: Fact) -> bool:
    """Whether a fact says only that a size is 0, which is never a useful suggestion."""
    terms = terms_of(fact.right - fact.left)
    return len(terms) == 1 and all(atom.op != "%" for atom in terms[0][0])


def _first(search: Iterator[dict[str, int] | None], trials: int) -> dict[str, int] | None:
    return next((numbers for numbers in islice(search, trials) if numbers is not None), None)


def _visible(numbers: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if name[0] != HIDDEN}


def equal(a: Size, b: Size) -> Answer:
    """Whether `a == b` for all values of the symbols."""
    return _NO_FACTS.equal(a, b)


def at_most(a: Size, b: Size) -> Answer:
    """Whether `a <= b` for all values of the symbols."""
    return _NO_FACTS.at_most(a, b)


_NO_FACTS = Facts()


def _simplest(claim: Fact) -> Fact:
    """The claim without what its two sides share."""
    gap = claim.right - claim.left
    terms = terms_of(gap)
    if len(terms) < 2:
        return Fact(claim.relation, -gap, 0) if terms and terms[0][1] < 0 else Fact(claim.relation, gap, 0)
    common, factor = terms[0][0], content_of(gap)
    for monomial, _ in terms:
        shared = [[atom] * min(common.count(atom), monomial.count(atom)) for atom in dict.fromkeys(common)]
        common = tuple(atom for atoms in shared for atom in atoms)
    rest = {without(monomial, common) or (): coefficient // factor for monomial, coefficient in terms}
    right = collect({monomial: coefficient for monomial, coefficient in rest.items() if coefficient > 0})
    left = collect({monomial: -coefficient for monomial, coefficient in rest.items() if coefficient < 0})
    return Fact(claim.relation, left, right)


def _numbers(fact: Fact) -> Iterator[int]:
    for size in (fact.left, fact.right, *(arg for atom in atoms_in(fact.left, fact.right) for arg in atom.args)):
        yield from (coefficient for _, coefficient in terms_of(size))


# ------------------------------------------------------------------------------------------------ counterexamples

_POOL = (2, 3, 5, 7, 11, 13, 1, 0, 4, 6, 8, 9, 10, 12, 16, 17, 31, 32, 64, 97)


def _candidates(
    names: Sequence[str], pool: Sequence[int], example: Callable[[], Mapping[str, int]], moving: int
) -> Iterator[dict[str, int]]:
    """Assignments to try, the same ones every time: small and distinct, all alike, one unusual, then mixed.

    `example()` are numbers that satisfy the facts; the claim depends on the first `moving` names.
    """
    for shift in (0, 1, 2):
        yield {name: pool[(i + shift) % 6] for i, name in enumerate(names)}
    for number in (1, 2, 0):
        yield dict.fromkeys(names, number)
    good = example()
    base = {name: good.get(name, pool[i % 6]) for i, name in enumerate(names)}
    for number in pool:
        for name in names[:moving]:
            yield {**base, name: number}
    state = 1
    while names:
        values = dict(base)
        for name in names[: moving if state % 2 else None]:
            state = (state * 1103515245 + 12345) % (1 << 31)
            values[name] = pool[(state >> 16) % len(pool)]
        yield values


def _repair(values: dict[str, int], rows: Sequence[Size]) -> dict[str, int]:
    """Numbers near the given ones that make more of the rows >= 0: one symbol moves at a time, along the slope."""
    values = dict(values)
    for _ in range(4):
        changed = False
        for row in rows:
            lack = -evaluate(row, values)
            for name in symbols_in_order(row) if lack > 0 else ():
                slope = evaluate(row, {**values, name: values[name] + 1}) + lack
                step = -(-lack // abs(slope)) * (1 if slope > 0 else -1) if slope else 0
                if step and values[name] + step >= 0:
                    values[name] += step
                    changed = True
                    break
        if not changed:
            break
    return values
