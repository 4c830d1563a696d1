"""Facts about sizes made ready for proofs: symbols solved away, products to rewrite, and sizes known to be >= 0.

In: facts (`D == H*K`, `H divides D`, `S <= C`) and claims. Out: whether a claim follows. `smelt.dim` calls it, and
looks for counterexamples to what does not follow. A proof that is too expensive is given up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import gcd, lcm
from typing import Literal, NamedTuple

from smelt.errors import ShapeError
from smelt.size import (
    Atom,
    Monomial,
    Parser,
    Poly,
    Size,
    any_symbol,
    atom_of,
    collect,
    content_of,
    degree_of,
    divide,
    divide_exact,
    evaluate,
    floordiv,
    map_atoms,
    mod,
    nonneg,
    residue_of,
    shrink,
    substitute,
    symbols,
    term_of,
    terms_of,
    without,
)

# Bounds beyond which a proof is given up.
MAX_FUEL = 2000
_MAX_ROWS, _MAX_CASES, _MAX_MODULUS = 32, 32, 24

# ------------------------------------------------------------------------------------------------ facts


class Fact(NamedTuple):
    """`left == right` or `left <= right`; `k divides a` is `a % k == 0`."""

    relation: Literal["==", "<="]
    left: Size
    right: Size

    def __str__(self) -> str:
        left, right = self.left, self.right
        if self.relation == "<=":
            return f"{right} >= {left}" if isinstance(left, int) else f"{left} <= {right}"
        if right == 0 and (remainder := remainder_of(left)) and isinstance(remainder[1], Poly):
            return f"{remainder[1]} divides {remainder[0]}"
        return f"{left} == {right}"

    @property
    def symbols(self) -> frozenset[str]:
        return symbols(self.left) | symbols(self.right)

    def holds(self, values: Mapping[str, int]) -> bool | None:
        """Whether these numbers satisfy it; None where a side divides by zero."""
        try:
            left, right = evaluate(self.left, values), evaluate(self.right, values)
        except ShapeError:
            if self.symbols - values.keys():
                raise
            return None
        return left == right if self.relation == "==" else left <= right


def parse_fact(text: str) -> Fact:
    """The fact that a text says: two sizes with one of `==`, `<=`, `>=`, `<`, `>` and `divides` between them."""
    parser = Parser(text)
    left = parser.sum()
    relation = parser.take("==", "<=", ">=", "<", ">", "divides")
    if not relation:
        parser.fail("a fact compares two sizes with ==, <=, >=, <, > or divides")
    right = parser.sum()
    parser.end()
    if relation == "==":
        return Fact("==", left, right)
    if relation == "divides":
        return Fact("==", mod(right, left), 0)
    if relation[0] == ">":
        left, right = right, left
    return Fact("<=", left if relation[1:] else left + 1, right)


def remainder_of(size: Size) -> tuple[Size, Size, int] | None:
    """(a, k, r) where `size == 0` says `a % k == r`."""
    terms = dict(terms_of(size))
    constant = -terms.pop((), 0)
    if len(terms) == 1:
        (((atom, *more), coefficient),) = terms.items()
        if not more and atom.op == "%" and constant % coefficient == 0:
            return atom.args[0], atom.args[1], constant // coefficient
    return None


def atoms_in(*sizes: Size) -> list[Atom]:
    """All atoms of the sizes, each once, inner ones before those they are in."""
    found: dict[Atom, None] = {}
    for size in sizes:
        for monomial, _ in terms_of(size):
            for atom in monomial:
                if atom not in found:
                    found.update(dict.fromkeys((*atoms_in(*atom.args), atom)))
    return list(found)


# ------------------------------------------------------------------------------------------------ proofs

HIDDEN = "\0"  # prefix of fresh symbols: not printable, so no user's symbol has it


class Theory:
    """Facts made ready for proofs: symbols solved away, products to rewrite, and sizes known to be >= 0."""

    def __init__(self, base: Theory | None = None) -> None:
        self.bindings: dict[str, Size] = dict(base.bindings) if base else {}
        self.rules: list[tuple[Monomial, Size]] = list(base.rules) if base else []
        self.known: list[Poly] = list(base.known) if base else []
        self.lows: dict[str, int] = dict(base.lows) if base else {}
        self.mentioned: set[str] = set(base.mentioned) if base else set()  # at least the symbols of all of the above
        self.cases: dict[Atom, Size] = dict(base.cases) if base else {}  # what a max is, in the case at hand
        self.hidden: int = base.hidden if base else 0
        self.false: bool = base.false if base else False  # the facts contradict each other plainly
        self.fuel: list[int] = base.fuel if base else [MAX_FUEL]  # one budget for a question with all its cases
        self.forget()

    def forget(self) -> None:
        self.atoms: dict[Atom, Size] = {}
        self.proved: dict[Poly, bool] = {}

    def refuel(self, fuel: int) -> None:
        if self.fuel[0] < 0:
            self.forget()  # what went unproven for want of it
        self.fuel[0] = fuel

    def fresh(self) -> Poly:
        self.hidden += 1
        return any_symbol(f"{HIDDEN}{self.hidden}")

    # -- taking facts in

    def add(self, fact: Fact) -> None:
        for atom in atoms_in(fact.left, fact.right):  # a fact that holds has a value, so it divides by no zero
            if atom.op in ("//", "%") and nonneg(atom.args[1]):
                self.know(atom.args[1] - 1)
        gap = fact.right - fact.left
        if fact.relation == "<=":
            self.know(gap)
        elif not self.parametrise(gap):
            self.equate([gap])

    def know(self, size: Size) -> None:
        """Take `size >= 0` as known. Contradictions are found by the caller's check of the facts."""
        self.fuel[0] -= 2
        size = self.normal(size)
        if isinstance(size, int) or nonneg(size) or size in self.known:
            self.false |= isinstance(size, int) and size < 0
            return
        self.known.append(size)
        self.mentioned.update(symbols(size))
        (monomial, coefficient), *rest = size.terms
        if len(rest) == 1 and rest[0][0] == () and coefficient > 0 > rest[0][1] and nonneg(term_of(*monomial)):
            for atom in monomial:  # a product that is at least 1 has no factor 0
                low = -(rest[0][1] // coefficient) if len(monomial) == 1 else 1
                if atom.op == "symbol" and low > self.lows.get(atom.name, 0):
                    self.lows[atom.name] = low
                    bound = Poly((((atom,), 1), ((), -low)))
                    self.known += [bound] * (bound not in self.known)
        self.forget()

    def equate(self, pending: list[Size]) -> None:
        """Take each size as 0: solve it for a symbol, or rewrite a product by it, or know both its signs."""
        while pending:
            size = self.normal(pending.pop())
            if isinstance(size, int):
                self.false |= size != 0
                continue
            size = shrink(size, content_of(size))
            if solution := _lone_symbol(size):
                self.bind(*solution)
                pending += [term_of(*monomial) - value for monomial, value in self.rules]
                self.rules = []
                continue
            self.know(size)
            self.know(-size)
            degree = len(terms_of(size)[0][0])
            for monomial, coefficient in terms_of(size):
                value = term_of(*monomial) - coefficient * size
                if abs(coefficient) == 1 and len(monomial) == degree and not _mentions(value, monomial):
                    self.rules.append((monomial, value))
                    self.forget()
                    break

    def bind(self, name: str, value: Size) -> None:
        known: list[Poly] = []
        if name in self.mentioned:
            self.bindings = {key: substitute(old, {name: value}) for key, old in self.bindings.items()}
            known, self.known, self.lows = self.known, [], {}
        self.bindings[name] = value
        self.mentioned.update(symbols(value))
        self.forget()
        for size in (*known, value):
            self.know(size)

    def parametrise(self, gap: Size) -> bool:
        """From `a % k == r` solve `a == k*q + r` for a symbol of a, with a fresh q >= 0."""
        found = remainder_of(gap)
        if found and isinstance(k := self.normal(found[1]), int):
            found = remainder_of(mod(self.normal(found[0]) - found[2], k)) if k else None
        if found is None:
            return False
        a, k, rest = self.normal(found[0]), self.normal(found[1]), found[2]
        quotient = self.fresh() if nonneg(a) and nonneg(k) else self.fresh() - self.fresh()
        solution = _lone_symbol(a - k * quotient - rest, symbols(a) - symbols(k))
        if solution:
            self.equate([any_symbol(solution[0]) - solution[1]])
        return solution is not None

    # -- one form for sizes that the facts make equal

    def normal(self, size: Size) -> Size:
        """The size with no symbol that is bound, no `%`, no `min`, and `max` against 0 only."""
        for _ in range(4):
            before, size = size, self.rewrite(map_atoms(size, self.atom))
            if size == before:
                break
        return size

    def rewrite(self, size: Size) -> Size:
        for _ in range(_MAX_CASES if self.rules else 0):
            for (monomial, coefficient), (lead, value) in ((t, rule) for t in terms_of(size) for rule in self.rules):
                rest = without(monomial, lead)
                if rest is not None:
                    size = size + coefficient * (value - term_of(*lead)) * collect({rest: 1})
                    break
            else:
                break
        return size

    def atom(self, atom: Atom) -> Size:
        if atom.op == "symbol":
            return self.bindings.get(atom.name, term_of(atom))
        value = self.atoms.get(atom)
        if value is None:
            a, b = self.normal(atom.args[0]), self.normal(atom.args[1])
            match atom.op:
                case "//":
                    value = self.floor(a, b)
                case "%":
                    value = a - b * self.floor(a, b)
                case "max":
                    value = b + self.positive_part(a - b)
                case _:
                    value = a - self.positive_part(a - b)
            self.atoms[atom] = value
        return value

    def positive_part(self, size: Size) -> Size:
        """max(size, 0)."""
        if isinstance(size, int):
            return max(size, 0)
        if size.terms[0][1] < 0:
            return self.positive_part(-size) + size
        if self.linear(size):
            return size
        if self.linear(-size):
            return 0
        factor = content_of(size)
        call = atom_of("max", shrink(size, factor), 0)
        return factor * self.cases.get(call.terms[0][0][0], call)

    def floor(self, a: Size, b: Size) -> Size:
        """a//b; a divisor that is known to be positive comes out where it divides."""
        if isinstance(b, int) or not self.linear(b - 1):
            return floordiv(a, b)
        for factor in (term_of(atom) for atom in dict.fromkeys(b.terms[0][0])):
            less, fewer = divide_exact(a, factor), divide_exact(b, factor)
            if less is not None and fewer is not None and self.linear(factor - 1):
                return self.floor(less, fewer)
        quotient, rest = divide(a, b)
        if self.linear(rest) and self.linear(b - 1 - rest):
            return quotient
        if self.linear(-1 - rest) and self.linear(b + rest):
            return quotient - 1
        if terms_of(rest)[0][1] < 0:
            return quotient - self.floor(b - 1 - rest, b)
        return quotient + floordiv(rest, b)

    # -- proving

    def contradicts(self) -> bool:
        """Whether no numbers satisfy the facts, as far as linear combinations show."""
        known: list[Size] = [self.normal(size) for size in self.known]
        atoms = atoms_in(*known)
        rows = [*known, *(row for atom in atoms for row in self.definition(atom))]
        monomials = dict.fromkeys(monomial for row in rows for monomial, _ in terms_of(row) if monomial)
        rows += [term_of(*monomial) for monomial in monomials if all(atom.nonneg for atom in monomial)]
        return self.false or _infeasible(rows, self.fuel[0])[0]

    def plain(self, claim: Fact) -> bool:
        gap = self.normal(claim.right - claim.left)
        return gap == 0 or (claim.relation == "<=" and self.linear(gap))

    def prove(self, claim: Fact) -> bool:
        """Whether the claim follows: straight, or in each of a few cases."""
        todo: list[tuple[Callable[[], Theory], Size]] = [(lambda: self, claim.right - claim.left)]
        budget = _MAX_CASES
        while todo:
            case, goal = todo.pop()
            theory = case()
            goal = theory.normal(goal)
            if theory.linear(goal) and (claim.relation == "<=" or theory.linear(-goal)):
                continue
            cases = theory.split(goal)
            budget -= len(cases)
            if not cases or budget < 0 or self.fuel[0] < 0:
                return False
            todo += [(case, goal) for case in cases]
        return True

    def split(self, goal: Size) -> list[Callable[[], Theory]]:
        """Theories that cover this one together: both sides of a max, or all residues of a size that is divided."""
        atoms = atoms_in(goal)
        for atom in atoms:
            if atom.op == "max":
                return [partial(self.side, atom, sign) for sign in (1, 0)]
        floors = [(atom.args[0], k) for atom in atoms if atom.op == "//" and isinstance(k := atom.args[1], int)]
        floors = [(residue_of(dividend, k)[1], k) for dividend, k in floors]  # without its constant
        for dividend, k in floors:
            inside = (term_of(atom) for monomial, _ in terms_of(dividend) for atom in monomial if atom.op == "symbol")
            for part in (dividend, *inside):
                modulus = lcm(*(divisor for other, divisor in floors if symbols(part) <= symbols(other)))
                modulus = modulus if modulus <= _MAX_MODULUS else k
                if _lone_symbol(part) and modulus <= _MAX_MODULUS:
                    return [partial(self.residue, part, modulus, rest) for rest in range(modulus)]
        return []

    def side(self, atom: Atom, sign: int) -> Theory:
        case = Theory(self)
        case.know(atom.args[0] if sign else -atom.args[0])
        case.cases[atom] = sign * atom.args[0]
        case.forget()
        return case

    def residue(self, size: Size, modulus: int, rest: int) -> Theory:
        case = Theory(self)
        quotient = case.fresh() if nonneg(size) else case.fresh() - case.fresh()
        case.equate([size - modulus * quotient - rest])
        return case

    def linear(self, goal: Size) -> bool:
        """Whether `goal >= 0` follows by adding up multiples of what is known, with monomials as the unknowns."""
        if isinstance(goal, int):
            return goal >= 0
        if nonneg(goal):
            return True
        if goal not in self.proved:
            if self.fuel[0] < 0:
                return False
            if _follows_by_chain(goal, self.known):
                self.proved[goal] = True
                return True
            rows = self.rows(goal)
            self.proved[goal], self.fuel[0] = _infeasible(rows, self.fuel[0] - len(rows))
        return self.proved[goal]

    def rows(self, goal: Poly) -> list[Size]:
        """Sizes that are all >= 0 if the goal is not: what is known, times what leads to a monomial in question."""
        rows: list[Size] = []
        sources: list[tuple[Size, Monomial]] = [(size, ()) for size in (-1 - goal, *self.known)]
        queue = [monomial for monomial, _ in goal.terms if monomial]
        met, defined, used = set(queue), set[Atom](), set[tuple[int, Monomial]]()
        for monomial in queue:  # which grows
            for atom in monomial:
                if atom not in defined:
                    defined.add(atom)
                    sources += [(size, (atom,)) for size in self.definition(atom)]
            if all(atom.nonneg for atom in monomial):
                rows.append(term_of(*monomial))
            highest = degree_of(goal) - 1 + max(degree_of(source) for source, _ in sources)
            for number, (source, subject) in enumerate(sources):
                terms = dict(terms_of(source))
                for part in (subject, *terms):
                    rest = without(monomial, part) if part else None
                    if rest is None or (number, rest) in used or not all(atom.nonneg for atom in rest):
                        continue
                    if rest and (degree_of(source) + len(rest) > highest or (part == subject and monomial in terms)):
                        continue  # leads away from the goal
                    used.add((number, rest))
                    rows.append(term_of(*rest) * source if rest else source)
                    new = [m for m, _ in terms_of(rows[-1]) if m and m not in met]
                    met.update(new)
                    queue += new
                    if len(used) >= _MAX_ROWS:
                        return rows
        return rows

    def definition(self, atom: Atom) -> list[Poly]:
        """What is >= 0 because of what the atom means."""
        rows: list[Size] = []
        if atom.op == "max":
            rows = [term_of(atom) - arg for arg in atom.args]
        elif atom.op == "//" and self.low(atom.args[1]) >= 1:
            rest = atom.args[0] - atom.args[1] * term_of(atom)
            rows = [rest, atom.args[1] - 1 - rest]
        return [row for row in rows if isinstance(row, Poly)]

    def low(self, size: Size) -> int:
        """A number that a plainly positive size is not below; -1 for others."""
        total = 0
        for monomial, coefficient in terms_of(size):
            if (coefficient < 0 and monomial) or not all(atom.nonneg for atom in monomial):
                return -1
            for atom in monomial:
                coefficient *= self.lows.get(atom.name, 0)
            total += coefficient
        return total


def _lone_symbol(size: Size, among: frozenset[str] | None = None) -> tuple[str, Size] | None:
    """A symbol and what it is where `size == 0`: by preference something that is plainly >= 0."""
    solutions: list[tuple[str, Size]] = []
    for monomial, coefficient in terms_of(size):
        if len(monomial) == 1 and abs(coefficient) == 1 and (atom := monomial[0]).op == "symbol":
            value = term_of(atom) - coefficient * size
            if atom.name not in symbols(value) and (among is None or atom.name in among):
                solutions.append((atom.name, value))
    return next((solution for solution in solutions if nonneg(solution[1])), solutions[0] if solutions else None)


def _mentions(size: Size, monomial: Monomial) -> bool:
    inside = (arg for other, _ in terms_of(size) for atom in other for arg in atom.args)
    return any(without(other, monomial) is not None for other, _ in terms_of(size)) or any(
        _mentions(arg, monomial) for arg in inside
    )


def _difference(size: Poly) -> tuple[str, str, int] | None:
    """(a, b, c) where a size is `b - a + c` for two symbols; "" stands for 0."""
    a = b = ""
    constant = 0
    for monomial, coefficient in size.terms:
        if not monomial:
            constant = coefficient
        elif len(monomial) > 1 or monomial[0].op != "symbol":
            return None
        elif coefficient == 1 and not b:
            b = monomial[0].name
        elif coefficient == -1 and not a:
            a = monomial[0].name
        else:
            return None
    return a, b, constant


def _follows_by_chain(goal: Poly, known: Sequence[Poly]) -> bool:
    """Whether `goal >= 0` follows from a chain `a <= b + c`, `b <= …` of known differences: Bellman and Ford."""
    wanted = _difference(goal)
    edges = [edge for size in known if (edge := _difference(size))] if wanted else []
    if not wanted or len(edges) < 2:
        return False
    start, end, least = wanted
    edges += [("", name, 0) for edge in edges for name in edge[:2] if name]
    distance = {start: 0}
    for _ in range(len(edges)):
        before = dict(distance)
        for a, b, weight in edges:
            if a in distance and distance[a] + weight < distance.get(b, distance[a] + weight + 1):
                distance[b] = distance[a] + weight
        if distance == before:
            break
    return end in distance and distance[end] <= least


def _infeasible(rows: Sequence[Size], budget: int) -> tuple[bool, int]:
    """Whether no integers make every row >= 0, and what is left of the budget for adding up rows.

    Fourier and Motzkin's elimination, with monomials as unknowns and each constant rounded down.
    """
    number: dict[Monomial, int] = {(): -1}  # of an unknown; the constant comes first in a sorted row
    new = [{number.setdefault(monomial, len(number)): c for monomial, c in terms_of(row)} for row in rows]
    system: dict[tuple[tuple[int, int], ...], int] = {}
    while True:
        for row in new:
            constant = row.pop(-1, 0)
            factor = gcd(*row.values())
            if factor:
                key = tuple(sorted([(i, c // factor) for i, c in row.items() if c]))
                system[key] = min(constant // factor, system.get(key, constant // factor))
            elif constant < 0:
                return True, budget
        signs: dict[int, list[int]] = {}
        for key in system:
            for i, c in key:
                signs.setdefault(i, [0, 0])[c > 0] += 1
        if not signs:
            return False, budget
        unknown = min(signs, key=lambda i: signs[i][0] * signs[i][1])
        budget -= signs[unknown][0] * signs[unknown][1] + 1
        if budget < 0:
            return False, budget
        bounds: tuple[list[dict[int, int]], ...] = ([], [])
        for key in tuple(system):
            if coefficient := dict(key).get(unknown):
                bounds[coefficient > 0].append({**dict(key), -1: system.pop(key)})
        new = []
        for upper in bounds[0]:
            for lower in bounds[1]:
                row = {i: c * lower[unknown] for i, c in upper.items()}
                for i, c in lower.items():
                    row[i] = row.get(i, 0) - c * upper[unknown]
                new.append(row)
