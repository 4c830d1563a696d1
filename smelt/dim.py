"""Sizes of tensors: integers, or polynomials over symbols, and proofs about them.

In come numbers, symbols and facts (`D == H*K`, `H divides D`, `S <= C`); out go canonical sizes, and answers that are
proven, refuted by numbers, or unknown with the missing fact named. Everything that has a shape calls this module.

A symbol is an integer >= 0. `//` and `%` are Python's; dividing by 0 is an error. Arithmetic never cancels a symbolic
divisor: `(B*S)//B` stays as it is, because B may be 0, until a fact says `B >= 1`. Only a size that vanishes forgets
its divisors (`x//b - x//b` is 0). A claim speaks about the numbers for which both of its sides have a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from functools import partial
from itertools import islice
from math import gcd, lcm
from operator import index
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, final

from smelt.errors import ShapeError

# Bounds that keep hostile expressions cheap: beyond them arithmetic raises ShapeError, and a proof ends unknown.
_MAX_TERMS, _MAX_DEGREE, _MAX_COEFFICIENT = 256, 64, 10**36
_MAX_DEPTH, _MAX_ATOM, _MAX_NAME, _MAX_TEXT = 48, 4096, 256, 1 << 16
_MAX_ROWS, _MAX_FUEL, _MAX_CASES, _MAX_MODULUS, _MAX_TRIALS, _MAX_ANSWERS = 32, 2000, 32, 24, 200, 4096

# ------------------------------------------------------------------------------------------------ sizes

Op: TypeAlias = Literal["symbol", "//", "%", "max", "min"]


@final
class Atom(str):
    """A symbol, or a `//`, `%`, `max` or `min` that does not simplify.

    An atom is its own canonical text: the text compares, orders and hashes it.
    """

    __slots__ = ("args", "depth", "name", "names", "nonneg", "op")

    op: Op
    name: str  # of a symbol
    args: tuple[Size, ...]  # of everything else: two of them
    names: frozenset[str]  # of the symbols inside
    nonneg: bool  # plainly >= 0, whatever the symbols are
    depth: int


Monomial: TypeAlias = tuple[Atom, ...]  # sorted, with repeats: B*S*S is (B, S, S), and the constant is ()


@final
class Poly:
    """A polynomial over atoms with integer coefficients. Immutable, canonical, never a constant.

    >>> B, S = symbol("B"), symbol("S")
    >>> (B + 1) * (B - 1) + 1 == B * B, (4 * S + 6) // 4, S - S
    (True, S + 1, 0)
    """

    __slots__ = ("_hash", "terms")
    __array_ufunc__ = None  # NumPy's integers leave the arithmetic to us

    terms: tuple[tuple[Monomial, int], ...]  # higher degree first, then alphabetical
    _hash: int

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]) -> None:
        object.__setattr__(self, "terms", terms)
        object.__setattr__(self, "_hash", hash(terms))

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError(f"a size is immutable: make a new one instead of setting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return parse_size, (str(self),)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Poly) and self._hash == other._hash and self.terms == other.terms)

    def __hash__(self) -> int:
        return self._hash

    def __add__(self, other: Size) -> Size:
        return _add(self, _operand(other))

    def __sub__(self, other: Size) -> Size:
        return _add(self, _operand(other), -1)

    def __rsub__(self, other: Size) -> Size:
        return _add(-self, _operand(other))

    def __mul__(self, other: Size) -> Size:
        return _multiply(self, _operand(other))

    def __floordiv__(self, other: Size) -> Size:
        return floordiv(self, _operand(other))

    def __rfloordiv__(self, other: Size) -> Size:
        return floordiv(_operand(other), self)

    def __mod__(self, other: Size) -> Size:
        return mod(self, _operand(other))

    def __rmod__(self, other: Size) -> Size:
        return mod(_operand(other), self)

    def __pow__(self, exponent: int) -> Size:
        if not 0 <= exponent <= _MAX_DEGREE:
            raise ShapeError("exponent out of range", expected=f"0 to {_MAX_DEGREE}", got=exponent)
        return product([self] * exponent)

    def __neg__(self) -> Poly:
        return Poly(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    __radd__ = __add__
    __rmul__ = __mul__

    def __bool__(self) -> NoReturn:
        raise TypeError(f"whether {self} is 0 depends on its symbols: ask Facts.equal")

    def __lt__(self, other: object) -> NoReturn:
        raise TypeError(f"the order of {self} and {other} depends on their symbols: ask Facts.at_most")

    __le__ = __gt__ = __ge__ = __lt__

    def __str__(self) -> str:
        lead = next((i for i, (_, coefficient) in enumerate(self.terms) if coefficient > 0), 0)
        text = ""
        for monomial, coefficient in (self.terms[lead], *self.terms[:lead], *self.terms[lead + 1 :]):
            sign = "-" if coefficient < 0 else "+"
            text += f" {sign} " if text else sign.strip("+")
            text += _term_text(monomial, abs(coefficient), alone=text != "-")
        return text

    __repr__ = __str__


Size: TypeAlias = int | Poly


def symbol(name: str) -> Poly:
    """The size called `name`: an unknown integer >= 0. Names that are not identifiers print in quotes."""
    if not (0 < len(name) <= _MAX_NAME and name.isprintable()):
        expected = f"1 to {_MAX_NAME} printable characters"
        raise ShapeError("not a name for a size", expected=expected, got=ascii(name[:80]))
    return _symbol(name)


def floordiv(a: Size, b: Size) -> Size:
    """`a / b`, rounded down. What a number divides comes out: `(8*S + T + 9)//8` is `(T + 1)//8 + S + 1`."""
    if not isinstance(b, int):
        a, b, _ = _lowest(a, b)
        return _call("//", a, b)
    if b == 0:
        raise ShapeError("division by zero", got=f"({a})//0")
    return a // b if isinstance(a, int) else _floordiv_number(a if b > 0 else -a, abs(b))


def mod(a: Size, b: Size) -> Size:
    """`a % b`, with the sign of `b`, so that `a == a//b*b + a%b`."""
    if not isinstance(b, int):
        a, b, factor = _lowest(a, b)
        return factor * _call("%", a, b)
    if b == 0:
        raise ShapeError("division by zero", got=f"({a}) % 0")
    if isinstance(a, int):
        return a % b
    return _mod_number(a, b) if b > 0 else -_mod_number(-a, -b)


def ceildiv(a: Size, b: Size) -> Size:
    """`a / b`, rounded up."""
    return floordiv(a + b - 1, b) if isinstance(b, int) and b > 0 else -floordiv(-a, b)


def maximum(a: Size, b: Size) -> Size:
    """The larger size: one of the two where their order does not depend on the symbols."""
    difference = a - b
    if _nonneg(difference):
        return a
    return b if _nonneg(-difference) else _call("max", *sorted((a, b), key=_number_last))


def minimum(a: Size, b: Size) -> Size:
    """The smaller size: one of the two where their order does not depend on the symbols."""
    difference = a - b
    if _nonneg(difference):
        return b
    return a if _nonneg(-difference) else _call("min", *sorted((a, b), key=_number_last))


def product(sizes: Iterable[Size]) -> Size:
    """All sizes multiplied: how many elements a shape has."""
    result: Size = 1
    for size in sizes:
        result = result * size
    return result


def divide_exact(a: Size, b: Size) -> Size | None:
    """The polynomial q with `a == b*q`, or None: what the -1 of a reshape stands for.

    >>> B, S = symbol("B"), symbol("S")
    >>> divide_exact(B * S + 2 * B, B), divide_exact(B * S + 1, B)
    (S + 2, None)
    """
    if isinstance(b, int):
        return None if b == 0 or any(coefficient % b for _, coefficient in _terms(a)) else _shrink(a, b)
    quotient, rest = _divide(a, b)
    return quotient if rest == 0 else None


def symbols(size: Size) -> frozenset[str]:
    """The names of the symbols that a size depends on."""
    return frozenset(name for monomial, _ in _terms(size) for atom in monomial for name in atom.names)


def symbols_in_order(*sizes: Size) -> tuple[str, ...]:
    """The names of the symbols of all sizes, each once, alphabetically."""
    return tuple(sorted({name for size in sizes for name in symbols(size)}))


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with symbols replaced; what replaces a symbol must be >= 0, as the symbol was."""

    def replace(atom: Atom) -> Size:
        if not any(name in values for name in atom.names):
            return _term(atom)
        if atom.op == "symbol":
            return values[atom.name]
        return _APPLY[atom.op](*(substitute(arg, values) for arg in atom.args))

    return _map(size, replace)


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number that a size is, given its symbols."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms:
        for atom in monomial:
            coefficient *= _value(atom, values)
        total += coefficient
    return total


def _value(atom: Atom, values: Mapping[str, int]) -> int:
    if atom.op == "symbol":
        if atom.name not in values:
            raise ShapeError(f"no value for the size {atom}", got=_assignment(values) or "no values")
        return values[atom.name]
    a, b = evaluate(atom.args[0], values), evaluate(atom.args[1], values)
    if atom.op in ("max", "min"):
        return max(a, b) if atom.op == "max" else min(a, b)
    if b == 0:
        raise ShapeError("division by zero", got=f"{atom} with {_assignment(values)}")
    return a // b if atom.op == "//" else a % b


# -- polynomials


def _operand(value: object) -> Size:
    return value if isinstance(value, (int, Poly)) else index(value)  # type: ignore[arg-type]  # raises the TypeError


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Poly) else (((), size),) if size else ()


def _term(*monomial: Atom) -> Poly:
    return Poly(((monomial, 1),))


def _leading_first(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return -len(term[0]), term[0]  # a graded order: multiplication keeps it, as division needs


def _collect(terms: Mapping[Monomial, int]) -> Size:
    kept = [term for term in terms.items() if term[1]]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=_leading_first)
    elif not kept[0][0]:
        return kept[0][1]
    if len(kept) > _MAX_TERMS or len(kept[0][0]) > _MAX_DEGREE or max(map(abs, terms.values())) > _MAX_COEFFICIENT:
        raise _too_large()
    return Poly(tuple(kept))


def _too_large() -> ShapeError:
    return ShapeError("a size became too large an expression", remedy="give sizes inside it names of their own")


def _add(a: Size, b: Size, sign: int = 1) -> Size:
    terms = dict(_terms(a))
    for monomial, coefficient in _terms(b):
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    return _collect(terms)


def _multiply(a: Poly, b: Size) -> Size:
    if isinstance(b, int):
        return _collect({monomial: b * coefficient for monomial, coefficient in a.terms})
    if len(a.terms) * len(b.terms) > 16 * _MAX_TERMS:
        raise _too_large()
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in b.terms:
            both = tuple(sorted(m + n)) if m and n else m or n
            terms[both] = terms.get(both, 0) + c * d
    return _collect(terms)


def _map(size: Size, replace: Callable[[Atom], Size]) -> Size:
    total: Size = 0
    for monomial, coefficient in _terms(size):
        term: Size = coefficient
        for atom in monomial:
            term = term * replace(atom)
        total = total + term
    return total


def _without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """The monomial divided by `part`, if that divides it."""
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def _divide(a: Size, b: Poly) -> tuple[Size, Size]:
    """(q, r) with `a == q*b + r`, where no term of r is a multiple of b's leading term."""
    quotient: Size = 0
    rest: Size = 0
    lead, divisor = b.terms[0]
    for _ in range(_MAX_TERMS):
        if a == 0:
            return quotient, rest
        monomial, coefficient = _terms(a)[0]
        factor = _without(monomial, lead)
        if factor is None or coefficient % divisor:
            term = _collect({monomial: coefficient})
            a, rest = a - term, rest + term
        else:
            term = _collect({factor: coefficient // divisor})
            a, quotient = a - term * b, quotient + term
    raise _too_large()


def _nonneg(size: Size) -> bool:
    """Whether a size is plainly >= 0: no minus sign, and no atom that may be negative."""
    return all(coefficient > 0 and all(atom.nonneg for atom in monomial) for monomial, coefficient in _terms(size))


def _degree(size: Size) -> int:
    return len(size.terms[0][0]) if isinstance(size, Poly) else 0


def _content(size: Size) -> int:
    return gcd(*(coefficient for _, coefficient in _terms(size)))


def _shrink(size: Size, factor: int) -> Size:
    return _collect({monomial: coefficient // factor for monomial, coefficient in _terms(size)})


# -- atoms


def _symbol(name: str) -> Poly:
    bare = _NAME.fullmatch(name) and name != "divides"
    atom = Atom(name if bare else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    atom.op, atom.name, atom.args, atom.names, atom.nonneg, atom.depth = "symbol", name, (), frozenset((name,)), True, 0
    return _term(atom)


def _call(op: Op, a: Size, b: Size) -> Poly:
    atom = Atom(f"{op}({a}, {b})" if op in ("max", "min") else f"{_tight(a)}{'//' if op == '//' else ' % '}{_tight(b)}")
    atom.op, atom.name, atom.args, atom.names = op, "", (a, b), symbols(a) | symbols(b)
    atom.depth = 1 + max(inner.depth for arg in (a, b) for monomial, _ in _terms(arg) for inner in monomial)
    if atom.depth > _MAX_DEPTH or len(atom) > _MAX_ATOM:
        raise _too_large()
    if op == "max":
        atom.nonneg = _nonneg(a) or _nonneg(b)
    else:  # of a divisor `>= 0` is enough: where it is 0 there is no value
        atom.nonneg = _nonneg(b) and (op == "%" or _nonneg(a))
    return _term(atom)


def _lowest(a: Size, b: Poly) -> tuple[Size, Poly, int]:
    """(a/f, b/f, f) for the number f that divides all coefficients and makes b's leading one positive."""
    factor = gcd(_content(a), _content(b)) * (1 if b.terms[0][1] > 0 else -1)
    return _shrink(a, factor), Poly(tuple((monomial, c // factor) for monomial, c in b.terms)), factor


def _residue(a: Size, k: int) -> tuple[Size, Size, int]:
    """(q, r, c) with `a == k*q + r + c`: `0 <= c < k`, no constant in r, its coefficients in `-k/2 < _ <= k/2`."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in _terms(a):
        small = coefficient % k
        if monomial and 2 * small > k:
            small -= k
        quotient[monomial], rest[monomial] = (coefficient - small) // k, small
    constant = rest.pop((), 0)
    return _collect(quotient), _collect(rest), constant


def _floordiv_number(a: Size, k: int) -> Size:
    quotient, rest, constant = _residue(a, k)
    if isinstance(rest, int):
        return quotient
    if (factor := gcd(_content(rest), k)) > 1:
        return quotient + _floordiv_number(_shrink(rest, factor) + constant // factor, k // factor)
    if rest.terms[0][1] < 0:  # rounding -x down is rounding x up: one form for both
        return quotient - _floordiv_number(k - 1 - constant - rest, k)
    for monomial, coefficient in rest.terms:
        atom = monomial[0]
        if coefficient == 1 and len(monomial) == 1 and atom.op == "//" and isinstance(m := atom.args[1], int):
            return quotient + _floordiv_number(atom.args[0] + m * (rest + constant - _term(atom)), k * m)
    return quotient + _call("//", rest + constant, k)


def _mod_number(a: Size, k: int) -> Size:
    _, rest, constant = _residue(a, k)
    if isinstance(rest, int):
        return constant
    for monomial, coefficient in rest.terms:
        atom = monomial[0]
        if len(monomial) == 1 and atom.op == "%" and isinstance(m := atom.args[1], int) and coefficient * m % k == 0:
            return _mod_number(rest + constant + coefficient * (atom.args[0] - _term(atom)), k)
    factor = gcd(_content(rest), k)
    return factor * _call("%", _shrink(rest, factor) + constant // factor, k // factor) + constant % factor


_APPLY: dict[str, Callable[[Size, Size], Size]] = {"//": floordiv, "%": mod, "max": maximum, "min": minimum}

# ------------------------------------------------------------------------------------------------ text

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_TOKEN = re.compile(rf'[0-9]+|{_NAME.pattern}|"(?:[^"\\]|\\.)+"|\*\*|//|==|<=|>=|\S')
_CALLS = {"floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum}


def parse_size(text: str) -> Size:
    """The size that a text says: the inverse of `str`, with Python's operators and precedence.

    Names that are not identifiers stand in double quotes; `floordiv`, `mod`, `max` and `min` take two arguments.

    >>> parse_size('2*(S + 7)//8 + "my dim"'), parse_size("max(S, 1)*S**2")
    ("my dim" + (S + 3)//4 + 1, S**2*max(S, 1))
    """
    parser = _Parser(text)
    size = parser.sum()
    parser.end()
    return size


class _Parser:
    """Recursive descent, at most `_MAX_DEPTH` parentheses deep."""

    def __init__(self, text: str) -> None:
        self.text, self.depth, self.at = text, 0, 0
        if len(text) > _MAX_TEXT:
            self.fail("the text of a size is too long")
        self.tokens = [*_TOKEN.findall(text), ""]

    def fail(self, message: str) -> NoReturn:
        raise ShapeError(message, expected="names, numbers, + - * // % ( ) max(,) min(,)", got=ascii(self.text[:80]))

    def take(self, *tokens: str) -> str:
        token = self.tokens[self.at]
        self.at += token in tokens
        return token if token in tokens else ""

    def need(self, token: str) -> None:
        if not self.take(token):
            self.fail(f"expected {token!r} in a size, got {self.tokens[self.at][:40]!a}")

    def end(self) -> None:
        if self.tokens[self.at]:
            self.fail(f"a size should end before {self.tokens[self.at][:40]!a}")

    def fits(self, size: Size) -> Size:
        if isinstance(size, int) and abs(size) > _MAX_COEFFICIENT:
            self.fail("a number is too large for a size")
        return size

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > _MAX_DEPTH + 1:
            self.fail("a size is nested too deeply")
        total = self.product()
        while token := self.take("+", "-"):
            total = total + self.product() if token == "+" else total - self.product()
        self.depth -= 1
        return total

    def product(self) -> Size:
        result = self.power()
        while token := self.take("*", "//", "%"):
            factor = self.power()
            result = self.fits(result * factor if token == "*" else _APPLY[token](result, factor))
        return result

    def power(self) -> Size:
        sign = 1
        while token := self.take("-", "+"):
            sign = -sign if token == "-" else sign
        base = self.primary()
        if self.take("**"):
            exponent = self.primary()
            if isinstance(exponent, Poly) or not 0 <= exponent <= _MAX_DEGREE:
                self.fail("an exponent is a small number")
            base = self.fits(base**exponent)
        return sign * base

    def primary(self) -> Size:
        token = self.tokens[self.at]
        self.at += token != ""
        if "0" <= token[:1] <= "9":
            return self.fits(int(token[:40]))
        if token[:1] == '"' and len(token) > 1:
            return symbol(re.sub(r"\\(.)", r"\1", token[1:-1]))
        if token == "(":
            size = self.sum()
            self.need(")")
            return size
        if not _NAME.fullmatch(token) or token == "divides":
            self.fail(f"expected a size, got {token[:40]!a}" if token else "a size ends too early")
        if token not in _CALLS or not self.take("("):
            return symbol(token)
        a = self.sum()
        self.need(",")
        b = self.sum()
        self.need(")")
        return _CALLS[token](a, b)

    def fact(self) -> Fact:
        left = self.sum()
        relation = self.take("==", "<=", ">=", "<", ">", "divides")
        if not relation:
            self.fail("a fact compares two sizes with ==, <=, >=, <, > or divides")
        right = self.sum()
        self.end()
        if relation == "==":
            return Fact("==", left, right)
        if relation == "divides":
            return Fact("==", mod(right, left), 0)
        if relation[0] == ">":
            left, right = right, left
        return Fact("<=", left if relation[1:] else left + 1, right)


def _term_text(monomial: Monomial, coefficient: int, *, alone: bool) -> str:
    """`2*B*S**2`. A lone `S//2` needs no parentheses in a sum, but does in a product and after a leading minus."""
    if len(monomial) == 1 and coefficient == 1 and alone:
        return str(monomial[0])
    factors = [str(coefficient)] if coefficient != 1 or not monomial else []
    for atom in dict.fromkeys(monomial):
        power = monomial.count(atom)
        text = f"({atom})" if atom.op in ("//", "%") else str(atom)
        factors.append(text if power == 1 else f"{text}**{power}")
    return "*".join(factors)


def _tight(size: Size) -> str:
    """The text of an operand of `//` or `%`."""
    text = str(size)
    bare = size >= 0 if isinstance(size, int) else text == (atom := size.terms[0][0][0]) and atom.op not in ("//", "%")
    return text if bare else f"({text})"


def _number_last(size: Size) -> tuple[bool, str]:
    return isinstance(size, int), str(size)


def _assignment(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------ binding symbols


def solve(patterns: Sequence[Size], actual: Sequence[int]) -> dict[str, int]:
    """The values of symbols that make the patterns the actual numbers, as at the entry of a program.

    A pattern that is linear in its one unknown symbol binds it; in the end every pattern is checked.

    >>> solve([symbol("B"), 2 * symbol("S") + 1, 3], [4, 11, 3])
    {'B': 4, 'S': 5}
    """
    if len(patterns) != len(actual):
        raise ShapeError("the number of sizes differs", expected=len(patterns), got=len(actual))
    values: dict[str, int] = {}
    waiting = [position for position, pattern in enumerate(patterns) if isinstance(pattern, Poly)]
    while waiting:
        still = []
        for position in waiting:
            pattern, number = patterns[position], actual[position]
            unknown = symbols(pattern) - values.keys()
            if len(unknown) == 1:
                (name,) = unknown
                rest = substitute(pattern, values)
                slope = _slope(rest, name)
                if slope:
                    value, odd = divmod(number - evaluate(rest, {name: 0}), slope)
                    if odd or value < 0:
                        raise _misfit(position, pattern, f"for some {name} >= 0", number, values)
                    values[name] = value
                    continue
            if unknown:
                still.append(position)
        if still == waiting:
            break
        waiting = still
    for position in waiting:
        unknown_names = ", ".join(sorted(symbols(patterns[position]) - values.keys()))
        remedy = f"give {unknown_names} a size of its own among the arguments"
        message = f"size {position}, {patterns[position]}, does not determine {unknown_names}"
        raise ShapeError(message, got=actual[position], remedy=remedy)
    for position, (pattern, number) in enumerate(zip(patterns, actual, strict=True)):
        if (expected := evaluate(pattern, values)) != number:
            raise _misfit(position, pattern, f"= {expected}" if isinstance(pattern, Poly) else "", number, values)
    return values


def _misfit(position: int, pattern: Size, why: str, number: int, values: Mapping[str, int]) -> ShapeError:
    known = _assignment({name: values[name] for name in symbols_in_order(pattern) if name in values})
    expected = " ".join(filter(None, (str(pattern), why, f"with {known}" if known else "")))
    return ShapeError(f"size {position} does not fit", expected=expected, got=number)


def _slope(size: Size, name: str) -> int:
    """The coefficient of a symbol that a size is linear in; 0 if it is not."""
    slope = 0
    for monomial, coefficient in _terms(size):
        if any(name in atom.names for atom in monomial):
            if slope or len(monomial) > 1 or monomial[0].op != "symbol":
                return 0
            slope = coefficient
    return slope


# ------------------------------------------------------------------------------------------------ facts and answers


class Fact(NamedTuple):
    """`left == right` or `left <= right`; `k divides a` is `a % k == 0`."""

    relation: Literal["==", "<="]
    left: Size
    right: Size

    def __str__(self) -> str:
        left, right = self.left, self.right
        if self.relation == "<=":
            return f"{right} >= {left}" if isinstance(left, int) else f"{left} <= {right}"
        if right == 0 and (remainder := _remainder(left)) and isinstance(remainder[1], Poly):
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


class Proof(Enum):
    """How a question about sizes ended."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a claim. True only when it is proven.

    A false claim about numbers alone is refuted whatever the facts are: by `{}` where nothing is known to satisfy them.
    """

    status: Proof
    counterexample: dict[str, int] | None = None  # of a refuted claim: numbers that satisfy the facts and break it
    missing: str | None = None  # a fact that would prove the claim and goes together with the others, if one was found

    def __bool__(self) -> bool:
        return self.status is Proof.PROVEN

    def __str__(self) -> str:
        numbers = dict(islice((self.counterexample or {}).items(), 8))
        example = f", not for {_assignment(numbers)}" if numbers else ""
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
        self._theory: _Theory | None = None
        self._witness: dict[str, int] | None = None
        self._false: Answer | None = None if self.facts else Answer(Proof.REFUTED, {})
        self._answers: dict[Fact, Answer] = {}

    @staticmethod
    def of(*facts: str | Fact) -> Facts:
        """Facts from text: two sizes with one of `==`, `<=`, `>=`, `<`, `>` and `divides` between them."""
        return Facts(_Parser(fact).fact() if isinstance(fact, str) else fact for fact in facts)

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
            except ShapeError:  # an expression outgrew its bounds on the way
                answer = Answer(Proof.UNKNOWN, None, str(claim))
            self._answers[claim] = answer
        return answer

    def _decide(self, claim: Fact) -> Answer:
        """Cheap proofs, cheap counterexamples, then the dear ones."""
        theory = self._ready()
        theory.refuel(_MAX_FUEL)
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

    def _ready(self) -> _Theory:
        if self._theory is None:
            parent, self._parent = self._parent, None
            theory = _Theory(parent._ready() if parent else None)
            for fact in self.facts[len(parent) if parent else 0 :]:
                theory.refuel(_MAX_FUEL)
                with suppress(ShapeError):  # facts that contradict each other: to know less is safe
                    theory.add(fact)
            self._theory = theory
        return self._theory

    def _search(self, claim: Fact | None) -> Iterator[dict[str, int] | None]:
        """Trial after trial: numbers for all symbols if they satisfy the facts and break the claim, else None."""
        theory = self._ready()
        own = symbols_in_order(claim.left, claim.right) if claim else ()
        order = dict.fromkeys((*own, *sorted({name for fact in self.facts for name in fact.symbols})))
        sizes = {name: theory.bindings.get(name, _symbol(name)) for name in order}
        free = list(dict.fromkeys(name for size in sizes.values() for name in symbols_in_order(size)))
        moving = len({name for own_name in own for name in symbols(sizes[own_name])})
        aims: list[list[Size]] = [[]]
        if claim:
            gap = theory.normal(claim.left - claim.right)
            aims += [[gap - 1]] if claim.relation == "<=" else [[gap - 1], [-1 - gap]]
        near = sorted({abs(number) for fact in (*self.facts, claim) if fact for number in _numbers(fact)})[:12]
        pool = list(dict.fromkeys((*_POOL, *(n for number in near for n in (number, number + 1, abs(number - 1))))))
        base = self._example if claim and self.facts else dict
        weight = sum(len(_atoms(fact.left, fact.right)) for fact in (*self.facts, claim) if fact)
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
        """A fact that would prove the claim and goes together with the others."""
        divisors: list[Fact] = []
        others: list[Fact] = []
        for atom in _atoms(claim.left, claim.right):
            a, b = atom.args or (0, 0)
            if atom.op in ("//", "%"):
                divisors += [Fact("<=", 1, b)] * isinstance(b, Poly)
                others += [Fact("==", mod(a, b), 0)]
            elif atom.op in ("max", "min"):
                others += [Fact("<=", a, b), Fact("<=", b, a)]
        self._ready().refuel(_MAX_FUEL // 4)
        for fact in (*dict.fromkeys(divisors[:4] + others[:6]), _simplest(claim)):
            with suppress(ShapeError):
                more = Facts((*self.facts, fact))
                more._theory = _Theory(self._theory)
                more._theory.add(fact)
                if more._theory.plain(claim) and more._example(16):
                    return str(fact)
        return None


def _first(search: Iterator[dict[str, int] | None], trials: int) -> dict[str, int] | None:
    return next((numbers for numbers in islice(search, trials) if numbers is not None), None)


def _visible(numbers: dict[str, int]) -> dict[str, int]:
    return {name: number for name, number in numbers.items() if name[0] != _HIDDEN}


def equal(a: Size, b: Size) -> Answer:
    """Whether `a == b` for all values of the symbols."""
    return _NO_FACTS.equal(a, b)


def at_most(a: Size, b: Size) -> Answer:
    """Whether `a <= b` for all values of the symbols."""
    return _NO_FACTS.at_most(a, b)


_NO_FACTS = Facts()


def _remainder(size: Size) -> tuple[Size, Size, int] | None:
    """(a, k, r) where `size == 0` says `a % k == r`."""
    terms = dict(_terms(size))
    constant = -terms.pop((), 0)
    if len(terms) == 1:
        (((atom, *more), coefficient),) = terms.items()
        if not more and atom.op == "%" and constant % coefficient == 0:
            return atom.args[0], atom.args[1], constant // coefficient
    return None


def _simplest(claim: Fact) -> Fact:
    """The claim without what its two sides share."""
    gap = claim.right - claim.left
    terms = _terms(gap)
    if len(terms) < 2:
        return claim
    common, factor = terms[0][0], _content(gap)
    for monomial, _ in terms:
        shared = [[atom] * min(common.count(atom), monomial.count(atom)) for atom in dict.fromkeys(common)]
        common = tuple(atom for atoms in shared for atom in atoms)
    rest = {_without(monomial, common) or (): coefficient // factor for monomial, coefficient in terms}
    right = _collect({monomial: coefficient for monomial, coefficient in rest.items() if coefficient > 0})
    left = _collect({monomial: -coefficient for monomial, coefficient in rest.items() if coefficient < 0})
    return Fact(claim.relation, left, right)


def _atoms(*sizes: Size) -> list[Atom]:
    """All atoms of the sizes, each once, inner ones before those they are in."""
    found: dict[Atom, None] = {}
    for size in sizes:
        for monomial, _ in _terms(size):
            for atom in monomial:
                if atom not in found:
                    found.update(dict.fromkeys((*_atoms(*atom.args), atom)))
    return list(found)


def _numbers(fact: Fact) -> Iterator[int]:
    for size in (fact.left, fact.right, *(arg for atom in _atoms(fact.left, fact.right) for arg in atom.args)):
        yield from (coefficient for _, coefficient in _terms(size))


# ------------------------------------------------------------------------------------------------ proofs

_HIDDEN = "\0"  # begins the names of our own symbols: not printable, hence no name of a user's


class _Theory:
    """Facts made ready for proofs: symbols solved away, products to rewrite, and sizes known to be >= 0."""

    def __init__(self, base: _Theory | None = None) -> None:
        self.bindings: dict[str, Size] = dict(base.bindings) if base else {}
        self.rules: list[tuple[Monomial, Size]] = list(base.rules) if base else []
        self.known: list[Poly] = list(base.known) if base else []
        self.lows: dict[str, int] = dict(base.lows) if base else {}
        self.mentioned: set[str] = set(base.mentioned) if base else set()  # at least the symbols of all of the above
        self.cases: dict[Atom, Size] = dict(base.cases) if base else {}  # what a max is, in the case at hand
        self.hidden: int = base.hidden if base else 0
        self.fuel: list[int] = base.fuel if base else [_MAX_FUEL]  # one tank for a question with all its cases
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
        return _symbol(f"{_HIDDEN}{self.hidden}")

    # -- taking facts in

    def add(self, fact: Fact) -> None:
        for atom in _atoms(fact.left, fact.right):  # a fact that holds has a value, so it divides by no zero
            if atom.op in ("//", "%") and _nonneg(atom.args[1]):
                self.know(atom.args[1] - 1)
        gap = fact.right - fact.left
        if fact.relation == "<=":
            self.know(gap)
        elif not self.parametrise(gap):
            self.equate([gap])

    def know(self, size: Size) -> None:
        """Take `size >= 0` as known. Contradictions are left to whoever checks the facts."""
        self.fuel[0] -= 2
        size = self.normal(size)
        if isinstance(size, int) or _nonneg(size) or size in self.known:
            return
        self.known.append(size)
        self.mentioned.update(symbols(size))
        (monomial, coefficient), *rest = size.terms
        if len(rest) == 1 and rest[0][0] == () and coefficient > 0 > rest[0][1] and _nonneg(_term(*monomial)):
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
                continue
            size = _shrink(size, _content(size))
            if solution := _lone_symbol(size):
                self.bind(*solution)
                pending += [_term(*monomial) - value for monomial, value in self.rules]
                self.rules = []
                continue
            self.know(size)
            self.know(-size)
            degree = len(_terms(size)[0][0])
            for monomial, coefficient in _terms(size):
                value = _term(*monomial) - coefficient * size
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
        found = _remainder(gap)
        if found and isinstance(k := self.normal(found[1]), int):
            found = _remainder(mod(self.normal(found[0]) - found[2], k)) if k else None
        if found is None:
            return False
        a, k, rest = self.normal(found[0]), self.normal(found[1]), found[2]
        quotient = self.fresh() if _nonneg(a) and _nonneg(k) else self.fresh() - self.fresh()
        solution = _lone_symbol(a - k * quotient - rest, symbols(a) - symbols(k))
        if solution:
            self.equate([_symbol(solution[0]) - solution[1]])
        return solution is not None

    # -- one form for sizes that the facts make equal

    def normal(self, size: Size) -> Size:
        """The size with no symbol that is bound, no `%`, no `min`, and `max` against 0 only."""
        for _ in range(4):
            before, size = size, self.rewrite(_map(size, self.atom))
            if size == before:
                break
        return size

    def rewrite(self, size: Size) -> Size:
        for _ in range(_MAX_CASES if self.rules else 0):
            for (monomial, coefficient), (lead, value) in ((t, rule) for t in _terms(size) for rule in self.rules):
                rest = _without(monomial, lead)
                if rest is not None:
                    size = size + coefficient * (value - _term(*lead)) * _collect({rest: 1})
                    break
            else:
                break
        return size

    def atom(self, atom: Atom) -> Size:
        if atom.op == "symbol":
            return self.bindings.get(atom.name, _term(atom))
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
        factor = _content(size)
        call = _call("max", _shrink(size, factor), 0)
        return factor * self.cases.get(call.terms[0][0][0], call)

    def floor(self, a: Size, b: Size) -> Size:
        """a//b; a divisor that is known to be positive comes out where it divides."""
        if isinstance(b, int) or not self.linear(b - 1):
            return floordiv(a, b)
        for factor in (_term(atom) for atom in dict.fromkeys(b.terms[0][0])):
            less, fewer = divide_exact(a, factor), divide_exact(b, factor)
            if less is not None and fewer is not None and self.linear(factor - 1):
                return self.floor(less, fewer)
        quotient, rest = _divide(a, b)
        if self.linear(rest) and self.linear(b - 1 - rest):
            return quotient
        if self.linear(-1 - rest) and self.linear(b + rest):
            return quotient - 1
        if _terms(rest)[0][1] < 0:
            return quotient - self.floor(b - 1 - rest, b)
        return quotient + floordiv(rest, b)

    # -- proving

    def plain(self, claim: Fact) -> bool:
        gap = self.normal(claim.right - claim.left)
        return gap == 0 or (claim.relation == "<=" and self.linear(gap))

    def prove(self, claim: Fact) -> bool:
        """Whether the claim follows: straight, or in each of a few cases."""
        todo: list[tuple[Callable[[], _Theory], Size]] = [(lambda: self, claim.right - claim.left)]
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

    def split(self, goal: Size) -> list[Callable[[], _Theory]]:
        """Theories that cover this one together: both sides of a max, or all residues of a size that is divided."""
        atoms = _atoms(goal)
        for atom in atoms:
            if atom.op == "max":
                return [partial(self.side, atom, sign) for sign in (1, 0)]
        floors = [(atom.args[0], k) for atom in atoms if atom.op == "//" and isinstance(k := atom.args[1], int)]
        floors = [(_residue(dividend, k)[1], k) for dividend, k in floors]  # without its constant
        for dividend, k in floors:
            inside = (_term(atom) for monomial, _ in _terms(dividend) for atom in monomial if atom.op == "symbol")
            for part in (dividend, *inside):
                modulus = lcm(*(divisor for other, divisor in floors if symbols(part) <= symbols(other)))
                modulus = modulus if modulus <= _MAX_MODULUS else k
                if _lone_symbol(part) and modulus <= _MAX_MODULUS:
                    return [partial(self.residue, part, modulus, rest) for rest in range(modulus)]
        return []

    def side(self, atom: Atom, sign: int) -> _Theory:
        case = _Theory(self)
        case.know(atom.args[0] if sign else -atom.args[0])
        case.cases[atom] = sign * atom.args[0]
        case.forget()
        return case

    def residue(self, size: Size, modulus: int, rest: int) -> _Theory:
        case = _Theory(self)
        quotient = case.fresh() if _nonneg(size) else case.fresh() - case.fresh()
        case.equate([size - modulus * quotient - rest])
        return case

    def linear(self, goal: Size) -> bool:
        """Whether `goal >= 0` follows by adding up multiples of what is known, with monomials as the unknowns."""
        if isinstance(goal, int):
            return goal >= 0
        if _nonneg(goal):
            return True
        if goal not in self.proved:
            if self.fuel[0] < 0:
                return False
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
                rows.append(_term(*monomial))
            highest = _degree(goal) - 1 + max(_degree(source) for source, _ in sources)
            for number, (source, subject) in enumerate(sources):
                terms = dict(_terms(source))
                for part in (subject, *terms):
                    rest = _without(monomial, part) if part else None
                    if rest is None or (number, rest) in used or not all(atom.nonneg for atom in rest):
                        continue
                    if rest and (_degree(source) + len(rest) > highest or (part == subject and monomial in terms)):
                        continue  # leads away from the goal
                    used.add((number, rest))
                    rows.append(_term(*rest) * source if rest else source)
                    new = [m for m, _ in _terms(rows[-1]) if m and m not in met]
                    met.update(new)
                    queue += new
                    if len(used) >= _MAX_ROWS:
                        return rows
        return rows

    def definition(self, atom: Atom) -> list[Poly]:
        """What is >= 0 because of what the atom means."""
        rows: list[Size] = []
        if atom.op == "max":
            rows = [_term(atom) - arg for arg in atom.args]
        elif atom.op == "//" and self.low(atom.args[1]) >= 1:
            rest = atom.args[0] - atom.args[1] * _term(atom)
            rows = [rest, atom.args[1] - 1 - rest]
        return [row for row in rows if isinstance(row, Poly)]

    def low(self, size: Size) -> int:
        """A number that a plainly positive size is not below; -1 for others."""
        total = 0
        for monomial, coefficient in _terms(size):
            if (coefficient < 0 and monomial) or not all(atom.nonneg for atom in monomial):
                return -1
            for atom in monomial:
                coefficient *= self.lows.get(atom.name, 0)
            total += coefficient
        return total


def _lone_symbol(size: Size, among: frozenset[str] | None = None) -> tuple[str, Size] | None:
    """A symbol and what it is where `size == 0`: by preference something that is plainly >= 0."""
    solutions: list[tuple[str, Size]] = []
    for monomial, coefficient in _terms(size):
        if len(monomial) == 1 and abs(coefficient) == 1 and (atom := monomial[0]).op == "symbol":
            value = _term(atom) - coefficient * size
            if atom.name not in symbols(value) and (among is None or atom.name in among):
                solutions.append((atom.name, value))
    return next((solution for solution in solutions if _nonneg(solution[1])), solutions[0] if solutions else None)


def _mentions(size: Size, monomial: Monomial) -> bool:
    inside = (arg for other, _ in _terms(size) for atom in other for arg in atom.args)
    return any(_without(other, monomial) is not None for other, _ in _terms(size)) or any(
        _mentions(arg, monomial) for arg in inside
    )


def _infeasible(rows: Sequence[Size], budget: int) -> tuple[bool, int]:
    """Whether no integers make every row >= 0, and what is left of the budget for adding up rows.

    Fourier and Motzkin's elimination, with monomials as unknowns and each constant rounded down.
    """
    number: dict[Monomial, int] = {(): -1}  # of an unknown; the constant comes first in a sorted row
    new = [{number.setdefault(monomial, len(number)): c for monomial, c in _terms(row)} for row in rows]
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
