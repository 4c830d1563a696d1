"""Sizes of tensors: integers, or polynomials over symbols, and proofs about them.

In come numbers, symbols and facts (`D == H*K`, `H divides D`, `S <= C`); out go canonical sizes, and answers that are
proven, refuted by numbers, or unknown with the missing fact named. Everything that has a shape calls this module.

A symbol is an integer >= 0. `//` and `%` are Python's, and dividing by 0 is an error. Arithmetic never cancels a symbolic
divisor: `(B*S)//B` stays as it is, because B may be 0, until a fact says `B >= 1`. Only a size that vanishes forgets its
divisors (`x//b - x//b` is 0). A claim speaks about the numbers at which both of its sides are defined.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import gcd, lcm
from operator import index
from typing import Any, Literal, NamedTuple, NoReturn, TypeAlias, final

from smelt.errors import ShapeError

__all__ = [
    "Answer", "Atom", "Fact", "Facts", "Poly", "Proof", "Size", "at_most", "ceildiv", "divide_exact", "equal", "evaluate",
    "floordiv", "maximum", "minimum", "mod", "parse_size", "product", "solve", "substitute", "symbol", "symbols",
    "symbols_in_order",
]  # fmt: skip

# Bounds that keep hostile expressions cheap; beyond them arithmetic raises ShapeError and a proof ends unknown.
_MAX_TERMS, _MAX_DEGREE, _MAX_COEFFICIENT = 256, 64, 1 << 256
_MAX_DEPTH, _MAX_ATOM, _MAX_NAME, _MAX_TEXT = 48, 4096, 256, 1 << 16
_MAX_ROWS, _MAX_COMBINATIONS, _MAX_CASES, _MAX_MODULUS, _MAX_TRIALS, _MAX_ANSWERS = 40, 400, 32, 24, 240, 4096

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
    names: frozenset[str]
    nonneg: bool  # plainly >= 0, whatever the symbols are
    depth: int


Monomial: TypeAlias = tuple[Atom, ...]  # sorted, with repeats: B*S*S is (B, S, S) and the constant is ()


@final
class Poly:
    """A polynomial over atoms with integer coefficients. Immutable, canonical, never a constant.

    >>> B, S = symbol("B"), symbol("S")
    >>> (B + 1) * (B - 1) + 1 == B * B, (4 * S + 6) // 4, S - S
    (True, S + 1, 0)
    """

    __slots__ = ("_hash", "terms")

    terms: tuple[tuple[Monomial, int], ...]  # leading term first: higher degree, then alphabetical
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
        return NotImplemented if (size := _operand(other)) is None else _add(self, size)

    def __sub__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else _add(self, size, -1)

    def __rsub__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else _add(-self, size)

    def __mul__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else _multiply(self, size)

    def __floordiv__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else floordiv(self, size)

    def __rfloordiv__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else floordiv(size, self)

    def __mod__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else mod(self, size)

    def __rmod__(self, other: Size) -> Size:
        return NotImplemented if (size := _operand(other)) is None else mod(size, self)

    def __pow__(self, exponent: int) -> Size:
        if not 0 <= exponent <= _MAX_DEGREE:
            raise ShapeError("exponent out of range", expected=f"0 to {_MAX_DEGREE}", got=exponent)
        return product([self] * exponent)

    def __neg__(self) -> Poly:
        return Poly(tuple((monomial, -coefficient) for monomial, coefficient in self.terms))

    __radd__ = __add__
    __rmul__ = __mul__
    __array_ufunc__ = None  # NumPy's integers leave the arithmetic to us

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
    if not (isinstance(name, str) and 0 < len(name) <= _MAX_NAME and name.isprintable()):
        raise ShapeError("not a name for a size", expected=f"1 to {_MAX_NAME} printable characters", got=ascii(name)[:80])
    return _symbol(name)


def floordiv(a: Size, b: Size) -> Size:
    """`a / b`, rounded down. What a number divides comes out: `(8*S + T + 9)//8` is `S + (T + 1)//8 + 1`."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError("division by zero", got=f"({a})//0")
        if isinstance(a, int):
            return a // b
        return _floordiv_number(a, b) if b > 0 else _floordiv_number(-a, -b)
    a, b, _ = _lowest(a, b)
    return _call("//", a, b)


def mod(a: Size, b: Size) -> Size:
    """`a % b`, with the sign of `b`, so that `a == a//b*b + a%b`."""
    if isinstance(b, int):
        if b == 0:
            raise ShapeError("division by zero", got=f"({a}) % 0")
        if isinstance(a, int):
            return a % b
        return _mod_number(a, b) if b > 0 else -_mod_number(-a, -b)
    a, b, factor = _lowest(a, b)
    return factor * _call("%", a, b)


def ceildiv(a: Size, b: Size) -> Size:
    """`a / b`, rounded up."""
    return -(-a // b)


def maximum(a: Size, b: Size) -> Size:
    """The larger size; one of the two where their order does not depend on the symbols."""
    difference = a - b
    if _nonneg(difference):
        return a
    return b if _nonneg(-difference) else _call("max", *sorted((a, b), key=_number_last))


def minimum(a: Size, b: Size) -> Size:
    """The smaller size; one of the two where their order does not depend on the symbols."""
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
        return None if b == 0 or any(c % b for _, c in _terms(a)) else floordiv(a, b)
    quotient, rest = _divide(a, b)
    return quotient if rest == 0 else None


def symbols(size: Size) -> frozenset[str]:
    """The names of the symbols a size depends on."""
    return frozenset(name for monomial, _ in _terms(size) for atom in monomial for name in atom.names)


def symbols_in_order(*sizes: Size) -> tuple[str, ...]:
    """The names of the symbols of all sizes, each once, alphabetically."""
    return tuple(sorted({name for size in sizes for name in symbols(size)}))


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with symbols replaced; what replaces a symbol must be >= 0 as the symbol was."""
    if isinstance(size, int) or not any(name in values for name in symbols(size)):
        return size

    def replace(atom: Atom) -> Size:
        if atom.op == "symbol":
            return values[atom.name] if atom.name in values else Poly((((atom,), 1),))
        return _APPLY[atom.op](*(substitute(arg, values) for arg in atom.args))

    return _map(size, replace)


def evaluate(size: Size, values: Mapping[str, int]) -> int:
    """The number a size is, given its symbols."""
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
        try:
            return values[atom.name]
        except KeyError:
            raise ShapeError(f"no value for the size {atom}", got=_assignment(values) or "no values") from None
    a, b = (evaluate(arg, values) for arg in atom.args)
    if atom.op == "max":
        return max(a, b)
    if atom.op == "min":
        return min(a, b)
    if b == 0:
        raise ShapeError("division by zero", got=f"{atom} with {_assignment(values)}")
    return a // b if atom.op == "//" else a % b


def _operand(value: object) -> Size | None:
    if isinstance(value, (int, Poly)):
        return value
    return index(value) if hasattr(value, "__index__") else None  # NumPy's integers


def _terms(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Poly) else (((), size),) if size else ()


def _leading_first(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return -len(term[0]), term[0]  # a graded order: compatible with multiplication, as division needs


def _collect(terms: Mapping[Monomial, int]) -> Size:
    kept = [term for term in terms.items() if term[1]]
    if not kept:
        return 0
    if len(kept) > 1:
        kept.sort(key=_leading_first)
    elif not kept[0][0]:
        return kept[0][1]
    if len(kept) > _MAX_TERMS or len(kept[0][0]) > _MAX_DEGREE or any(abs(c) > _MAX_COEFFICIENT for _, c in kept):
        raise _too_large()
    return Poly(tuple(kept))


def _too_large() -> ShapeError:
    return ShapeError("a size became too large an expression", remedy="give the sizes in question names of their own")


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
    """The monomial divided by `part`, where it divides."""
    if len(part) > len(monomial):
        return None
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
    """Whether a size is plainly >= 0: no minus sign, no atom that may be negative."""
    return all(coefficient > 0 and all(atom.nonneg for atom in monomial) for monomial, coefficient in _terms(size))


def _content(size: Size) -> int:
    return gcd(*(coefficient for _, coefficient in _terms(size)))


def _symbol(name: str) -> Poly:
    bare = _BARE_NAME.fullmatch(name) and name not in _RESERVED
    atom = Atom(name if bare else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    atom.op, atom.name, atom.args, atom.names, atom.nonneg, atom.depth = "symbol", name, (), frozenset((name,)), True, 0
    return Poly((((atom,), 1),))


def _call(op: Op, a: Size, b: Size) -> Poly:
    atom = Atom(_CALL_TEXT[op].format(a, b) if op in ("max", "min") else _CALL_TEXT[op].format(_tight(a), _tight(b)))
    atom.op, atom.name, atom.args, atom.names = op, "", (a, b), symbols(a) | symbols(b)
    atom.depth = 1 + max(inner.depth for arg in (a, b) for monomial, _ in _terms(arg) for inner in monomial)
    if atom.depth > _MAX_DEPTH or len(atom) > _MAX_ATOM:
        raise _too_large()
    match op:  # where a divisor is 0 there is no value, so `>= 0` is enough to know of it
        case "max":
            atom.nonneg = _nonneg(a) or _nonneg(b)
        case "%":
            atom.nonneg = _nonneg(b)
        case _:
            atom.nonneg = _nonneg(a) and _nonneg(b)
    return Poly((((atom,), 1),))


def _lowest(a: Size, b: Poly) -> tuple[Size, Poly, int]:
    """(a/f, b/f, f) for the number f that all coefficients share; b's leading term becomes positive."""
    factor = gcd(_content(a), _content(b)) * (1 if b.terms[0][1] > 0 else -1)
    if factor != 1:
        a, b = (_collect({m: c // factor for m, c in _terms(size)}) for size in (a, b))
    assert isinstance(b, Poly)
    return a, b, factor


def _residue(a: Size, k: int) -> tuple[Size, Size, int]:
    """(q, r, c) with `a == k*q + r + c`: `0 <= c < k`, no constant in r, its coefficients between -k/2 and k/2."""
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
        if coefficient == 1 and len(monomial) == 1 and atom.op == "//" and isinstance(atom.args[1], int):
            inner, m = atom.args[0], atom.args[1]  # (inner//m + outer)//k
            outer = rest + constant - Poly(((monomial, 1),))
            return quotient + _floordiv_number(inner + m * outer, k * m)
    return quotient + _call("//", rest + constant, k)


def _mod_number(a: Size, k: int) -> Size:
    _, rest, constant = _residue(a, k)
    for monomial, coefficient in _terms(rest):
        atom = monomial[0]
        if len(monomial) == 1 and atom.op == "%" and isinstance(atom.args[1], int) and coefficient * atom.args[1] % k == 0:
            return _mod_number(rest + constant + coefficient * (atom.args[0] - Poly(((monomial, 1),))), k)
    if isinstance(rest, int):
        return constant
    factor = gcd(_content(rest), k)
    return factor * _call("%", _shrink(rest, factor) + constant // factor, k // factor) + constant % factor


def _shrink(size: Size, factor: int) -> Size:
    return _collect({monomial: coefficient // factor for monomial, coefficient in _terms(size)})


_APPLY: dict[str, Callable[[Size, Size], Size]] = {"//": floordiv, "%": mod, "max": maximum, "min": minimum}

# ------------------------------------------------------------------------------------------------ text

_CALL_TEXT = {"//": "{}//{}", "%": "{} % {}", "max": "max({}, {})", "min": "min({}, {})"}
_RESERVED = frozenset({"divides"})
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
_TOKEN = re.compile(r'\s*(?:([0-9]+)|([A-Za-z_][A-Za-z0-9_.]*)|"((?:[^"\\]|\\.)+)"|(\*\*|//|==|<=|>=|[-+*%(),<>]))')
_FUNCTIONS = {"floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum}


def parse_size(text: str) -> Size:
    """The size a text says: the inverse of `str`, with Python's operators and precedence.

    Names that are not identifiers stand in double quotes; `floordiv`, `mod`, `max` and `min` take two arguments.

    >>> parse_size('2*(S + 7)//8 + "my dim"'), parse_size("max(S, 1)*S**2")
    ("my dim" + (S + 7)//4, S**2*max(S, 1))
    """
    parser = _Parser(text)
    size = parser.sum()
    parser.end()
    return size


class _Parser:
    """Recursive descent, at most `_MAX_DEPTH` parentheses deep."""

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or len(text) > _MAX_TEXT:
            raise ShapeError("not the text of a size", expected=f"at most {_MAX_TEXT} characters", got=ascii(text)[:80])
        self.text, self.depth, self.at = text, 0, 0
        self.tokens: list[tuple[str, str]] = []
        position, end = 0, len(text.rstrip())
        while position < end:
            match = _TOKEN.match(text, position)
            if match is None:
                self.fail(f"a size cannot contain {ascii(text[position:].strip()[:10])}")
            position = match.end()
            assert match.lastindex is not None
            kind = ("", "number", "name", "quoted", "mark")[match.lastindex]
            value = match[match.lastindex]
            reserved = kind == "name" and value in _RESERVED
            self.tokens.append((value if kind == "mark" or reserved else kind, value))
        self.tokens.append(("end", "the end"))

    def fail(self, message: str) -> NoReturn:
        raise ShapeError(message, expected="names, numbers, + - * // % ( ) max(,) min(,)", got=self.text[:80])

    def take(self, *kinds: str) -> tuple[str, str] | None:
        if self.tokens[self.at][0] not in kinds:
            return None
        self.at += 1
        return self.tokens[self.at - 1]

    def need(self, kind: str) -> str:
        token = self.take(kind)
        if token is None:
            self.fail(f"expected {kind!r} in a size, got {self.tokens[self.at][1][:40]!r}")
        return token[1]

    def end(self) -> None:
        self.need("end")

    def sum(self) -> Size:
        self.depth += 1
        if self.depth > _MAX_DEPTH + 1:
            self.fail("a size is nested too deeply")
        total = self.product()
        while token := self.take("+", "-"):
            total = total + self.product() if token[0] == "+" else total - self.product()
        self.depth -= 1
        return total

    def product(self) -> Size:
        result = self.power()
        while token := self.take("*", "//", "%"):
            factor = self.power()
            result = result * factor if token[0] == "*" else _APPLY[token[0]](result, factor)
        return result

    def power(self) -> Size:
        negative = False
        while token := self.take("-", "+"):
            negative ^= token[0] == "-"
        base = self.primary()
        if self.take("**"):
            exponent = self.number(self.need("number"))
            if exponent > _MAX_DEGREE:
                self.fail("an exponent is too large")
            base = base**exponent
        return -base if negative else base

    def primary(self) -> Size:
        kind, value = token = self.tokens[self.at]
        self.at += 1
        match kind:
            case "number":
                return self.number(value)
            case "quoted":
                return symbol(re.sub(r"\\(.)", r"\1", value))
            case "name" if value in _FUNCTIONS and self.take("("):
                a = self.sum()
                self.need(",")
                b = self.sum()
                self.need(")")
                return _FUNCTIONS[value](a, b)
            case "name":
                return symbol(value)
            case "(":
                size = self.sum()
                self.need(")")
                return size
        self.fail(f"expected a size, got {token[1][:40]!r}")

    def number(self, digits: str) -> int:
        if len(digits) > 77:
            self.fail("a number is too large for a size")
        return int(digits)

    def fact(self) -> Fact:
        left = self.sum()
        token = self.take("==", "<=", ">=", "<", ">", "divides")
        if token is None:
            self.fail("a fact compares two sizes with ==, <=, >=, <, > or divides")
        right = self.sum()
        self.end()
        match token[0]:
            case "==":
                return Fact("==", left, right)
            case "divides":
                return Fact("==", mod(right, left), 0)
            case "<=" | "<":
                return Fact("<=", left + (token[0] == "<"), right)
            case _:
                return Fact("<=", right + (token[0] == ">"), left)


def _term_text(monomial: Monomial, coefficient: int, *, alone: bool) -> str:
    """`2*B*S**2`; a lone `S//2` needs no parentheses in a sum, but does in a product and after a minus sign."""
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
    lone = size >= 0 if isinstance(size, int) else size.terms[0][0][0].op == "symbol" and str(size) == size.terms[0][0][0]
    return str(size) if lone else f"({size})"


def _number_last(size: Size) -> tuple[bool, str]:
    return isinstance(size, int), str(size)


def _assignment(values: Mapping[str, int]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


# ------------------------------------------------------------------------------------------------ binding symbols


def solve(patterns: Sequence[Size], actual: Sequence[int]) -> dict[str, int]:
    """The symbols' values that make the patterns the actual numbers, as at the entry of a program.

    A pattern that is linear in its one unknown symbol binds it; then every pattern is checked.

    >>> solve([symbol("B"), 2 * symbol("S") + 1, 3], [4, 11, 3])
    {'B': 4, 'S': 5}
    """
    if len(patterns) != len(actual):
        raise ShapeError("the number of sizes differs", expected=len(patterns), got=len(actual))
    values: dict[str, int] = {}
    waiting = [position for position, pattern in enumerate(patterns) if isinstance(pattern, Poly)]
    progress = True
    while waiting and progress:
        progress = False
        for position in tuple(waiting):
            pattern = patterns[position]
            unknown = symbols(pattern) - values.keys()
            if len(unknown) == 1:
                (name,) = unknown
                slope = _slope(rest := substitute(pattern, values), name)
                if slope is None:
                    continue
                number, left_over = divmod(actual[position] - evaluate(rest, {name: 0}), slope)
                if left_over or number < 0:
                    raise _mismatch(position, pattern, actual[position], values, f"{pattern} for some size {name} >= 0")
                values[name] = number
            if len(unknown) <= 1:
                waiting.remove(position)
                progress = True
    for position, (pattern, number) in enumerate(zip(patterns, actual, strict=True)):
        if missing := symbols(pattern) - values.keys():
            names = ", ".join(sorted(missing))
            remedy = f"give {names} a dimension of its own among the arguments"
            raise ShapeError(f"size {position}, {pattern}, does not determine {names}", got=number, remedy=remedy)
        if (expected := evaluate(pattern, values)) != number:
            raise _mismatch(position, pattern, number, values, f"{pattern} = {expected}" if symbols(pattern) else str(expected))
    return values


def _mismatch(position: int, pattern: Size, number: int, values: Mapping[str, int], expected: str) -> ShapeError:
    known = {name: values[name] for name in symbols_in_order(pattern) if name in values}
    given = f" with {_assignment(known)}" if known else ""
    return ShapeError(f"size {position} does not fit", expected=expected + given, got=number)


def _slope(size: Size, name: str) -> int | None:
    """The coefficient of a symbol that a size is linear in."""
    slope = None
    for monomial, coefficient in _terms(size):
        if any(name in atom.names for atom in monomial):
            if slope is not None or len(monomial) > 1 or monomial[0].op != "symbol":
                return None
            slope = coefficient
    return slope


# ------------------------------------------------------------------------------------------------ facts and answers

Relation: TypeAlias = Literal["==", "<="]


class Fact(NamedTuple):
    """`left == right` or `left <= right`; `k divides a` is `a % k == 0`."""

    relation: Relation
    left: Size
    right: Size

    def __str__(self) -> str:
        left, right = self.left, self.right
        if self.relation == "<=":
            return f"{right} >= {left}" if isinstance(left, int) else f"{left} <= {right}"
        if right == 0 and isinstance(left, Poly) and (remainder := _remainder(left)) and remainder[2] == 0:
            if isinstance(remainder[1], Poly):
                return f"{remainder[1]} divides {remainder[0]}"
        return f"{left} == {right}"

    def holds(self, values: Mapping[str, int]) -> bool:
        left, right = evaluate(self.left, values), evaluate(self.right, values)
        return left == right if self.relation == "==" else left <= right


class Proof(Enum):
    PROVEN = "proven"
    REFUTED = "refuted"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of a claim. True only when it is proven."""

    status: Proof
    counterexample: dict[str, int] | None = None  # numbers that satisfy the facts and break the claim, when refuted
    missing: str | None = None  # a fact that would prove the claim, when there is one

    def __bool__(self) -> bool:
        return self.status is Proof.PROVEN

    def __str__(self) -> str:
        numbers = f": not for {_assignment(self.counterexample)}" if self.counterexample else ""
        return f"{self.status.value}{numbers}" + (f"; holds if {self.missing}" if self.missing else "")


_PROVEN = Answer(Proof.PROVEN)


@final
class Facts:
    """What is assumed about symbols. Immutable; `|` joins two sets.

    >>> D, H = symbol("D"), symbol("H")
    >>> facts = Facts.of("H divides D", "S <= C")
    >>> facts.equal(D // H * H, D).status, facts.check({"D": 7, "H": 2, "S": 1, "C": 1})
    (<Proof.PROVEN: 'proven'>, ['H divides D'])
    >>> print(equal(D // H * H, D))
    refuted: not for D=2, H=3; holds if H divides D
    """

    __slots__ = ("_answers", "_false", "_parent", "_ready", "facts")

    def __init__(self, facts: Iterable[Fact] = (), _parent: Facts | None = None) -> None:
        self.facts = tuple(dict.fromkeys(facts))
        self._parent = _parent  # whose facts come first among ours, so that its theory need only be extended
        self._ready: _Theory | None = None
        self._answers: dict[Fact, Answer] = {}
        self._false: Answer | None = None if self.facts else Answer(Proof.REFUTED, {})

    @staticmethod
    def of(*facts: str | Fact) -> Facts:
        """Facts from text: two sizes and one of `==`, `<=`, `>=`, `<`, `>` and `divides`."""
        return Facts(fact if isinstance(fact, Fact) else _Parser(fact).fact() for fact in facts)

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
        """The facts these numbers break; one that divides by zero is broken."""
        return [str(fact) for fact in self.facts if _holds(fact, values) is not True]

    def equal(self, a: Size, b: Size) -> Answer:
        """Whether `a == b`."""
        if a is b or a == b:
            return _PROVEN
        return self._ask(Fact("==", a, b))

    def at_most(self, a: Size, b: Size) -> Answer:
        """Whether `a <= b`."""
        if a is b or (isinstance(a, int) and isinstance(b, int) and a <= b):
            return _PROVEN
        return self._ask(Fact("<=", a, b))

    def divides(self, k: Size, a: Size) -> Answer:
        """Whether `k divides a`: whether `a % k == 0`. 0 divides nothing."""
        return self._ask(Fact("==", 1, 0)) if k == 0 else self.equal(mod(a, k), 0)

    def _ask(self, claim: Fact) -> Answer:
        if isinstance(claim.left, int) and isinstance(claim.right, int):  # and false: the callers saw to that
            if self._false is None:
                self._false = Answer(Proof.REFUTED, self._find(None, _MAX_TRIALS) or {})
            return self._false
        answer = self._answers.get(claim)
        if answer is None:
            if len(self._answers) >= _MAX_ANSWERS:
                self._answers.clear()
            answer = self._answers[claim] = self._decide(claim)
        return answer

    def _decide(self, claim: Fact) -> Answer:
        """Cheap proofs, cheap counterexamples, then the dear ones."""
        try:
            theory = self._theory()
            goal = theory.normal(claim.right - claim.left)
            exact = claim.relation == "=="
            if goal == 0 or (not exact and _nonneg(goal)):
                return _PROVEN
            numbers = self._find(claim, 8)
            if numbers is None and theory.prove(goal, exact):
                return _PROVEN
            numbers = numbers or self._find(claim, _MAX_TRIALS)
            return Answer(Proof.UNKNOWN if numbers is None else Proof.REFUTED, numbers, self._missing(claim))
        except ShapeError:  # an expression outgrew its bounds on the way
            return Answer(Proof.UNKNOWN, None, str(claim))

    def _theory(self) -> _Theory:
        if self._ready is None:
            parent, self._parent = self._parent, None
            self._ready = _Theory(parent._theory() if parent else None)
            for fact in self.facts[len(parent.facts) if parent else 0 :]:
                self._ready.add(fact)
        return self._ready

    def _find(self, claim: Fact | None, trials: int) -> dict[str, int] | None:
        """Numbers that satisfy the facts and break the claim."""
        theory = self._theory()
        facts, names = self.facts, set[str]()
        for fact in (*facts, *((claim,) if claim else ())):
            names.update(symbols(fact.left), symbols(fact.right))
        own = symbols_in_order(claim.left, claim.right) if claim else ()
        order = [*own, *sorted(names.difference(own))]
        free = list(dict.fromkeys(s for name in order for s in symbols_in_order(theory.bindings.get(name, _symbol(name)))))
        aims: list[list[Size]] = [[]]
        if claim:
            goal = theory.normal(claim.left - claim.right)
            aims += [[goal - 1]] if claim.relation == "<=" else [[goal - 1], [-goal - 1]]
        pool = [2, 3, 5, 7, 4, 1, 0, 6, 8, 9, 10, 11, 12, 13, 16, 17, 31, 32, 64, 97]
        for number in sorted({abs(n) for fact in (*facts, *((claim,) if claim else ())) for n in _numbers(fact)})[:12]:
            pool += [n for n in (number, number + 1, number - 1) if n not in pool and 0 <= n]
        for trial, start in enumerate(islice(_candidates(free, pool), trials)):
            try:
                values = _repair(start, [*theory.known, *aims[trial % len(aims)]])
                full = {name: evaluate(theory.bindings.get(name, _symbol(name)), values) for name in order}
            except ShapeError:
                continue
            if min(full.values(), default=0) >= 0 and all(_holds(fact, full) for fact in facts):
                if claim is None or _holds(claim, full) is False:
                    return full
        return None

    def _missing(self, claim: Fact) -> str | None:
        """A fact that would prove the claim and does not contradict the others."""
        left, right = claim.left, claim.right
        candidates = []
        for atom in _atoms(left, right):
            if atom.op in ("//", "%"):
                a, b = atom.args
                candidates += [Fact("<=", 1, b)] * isinstance(b, Poly) + [Fact("==", mod(a, b), 0)]
        for fact in candidates[:8]:
            theory = _Theory(self._theory())
            theory.add(fact)
            goal = theory.normal(right - left)
            if (goal == 0 or (claim.relation == "<=" and _nonneg(goal))) and Facts((*self.facts, fact))._find(None, 16):
                return str(fact)
        gap = right - left
        if isinstance(gap, int):
            return None
        if len(gap.terms) > 1:  # without what both sides share
            common = gap.terms[0][0]
            for monomial, _ in gap.terms[1:]:
                common = tuple(atom for atom in dict.fromkeys(common) for _ in range(min(common.count(atom), monomial.count(atom))))
            factor = _content(gap)
            terms = {_without(monomial, common) or (): coefficient // factor for monomial, coefficient in gap.terms}
            right = _collect({monomial: c for monomial, c in terms.items() if c > 0})
            left = _collect({monomial: -c for monomial, c in terms.items() if c < 0})
            if claim.relation == "==" and divide_exact(claim.left, left) is None:
                left, right = right, left
        fact = Fact(claim.relation, left, right)
        return str(fact) if Facts((*self.facts, fact))._find(None, 16) else None


def equal(a: Size, b: Size) -> Answer:
    """Whether `a == b` for all values of the symbols."""
    return _NO_FACTS.equal(a, b)


def at_most(a: Size, b: Size) -> Answer:
    """Whether `a <= b` for all values of the symbols."""
    return _NO_FACTS.at_most(a, b)


def _holds(fact: Fact, values: Mapping[str, int]) -> bool | None:
    """None where a side is not defined."""
    try:
        return fact.holds(values)
    except ShapeError:
        if missing := (symbols(fact.left) | symbols(fact.right)) - values.keys():
            raise ShapeError(f"no value for the size {min(missing)} in {fact}") from None
        return None


def _remainder(size: Size) -> tuple[Size, Size, int] | None:
    """(a, k, r) where `size == 0` says `a % k == r`."""
    terms = _terms(size)
    if not 0 < len(terms) <= 2 or len(terms[0][0]) != 1 or terms[0][0][0].op != "%" or (len(terms) == 2 and terms[1][0]):
        return None
    rest, odd = divmod(-terms[1][1] if len(terms) == 2 else 0, terms[0][1])
    a, k = terms[0][0][0].args
    return None if odd else (a, k, rest)


def _atoms(*sizes: Size) -> list[Atom]:
    """All atoms of the sizes, each once, inner ones before those they are in."""
    found: dict[Atom, None] = {}
    for size in sizes:
        for monomial, _ in _terms(size):
            for atom in monomial:
                if atom not in found:
                    found.update(dict.fromkeys(_atoms(*atom.args)))
                    found[atom] = None
    return list(found)


def _numbers(fact: Fact) -> Iterator[int]:
    for size in (fact.left, fact.right, *(arg for atom in _atoms(fact.left, fact.right) for arg in atom.args)):
        for _, coefficient in _terms(size):
            yield coefficient


# ------------------------------------------------------------------------------------------------ proofs


class _Theory:
    """Facts made ready for proofs: symbols solved away, products to rewrite, and sizes known to be >= 0."""

    def __init__(self, base: _Theory | None = None) -> None:
        self.bindings: dict[str, Size] = dict(base.bindings) if base else {}
        self.rules: list[tuple[Monomial, Size]] = list(base.rules) if base else []
        self.known: list[Poly] = list(base.known) if base else []
        self.cases: dict[Atom, Size] = dict(base.cases) if base else {}  # what a max is in the case at hand
        self.lows: dict[str, int] = dict(base.lows) if base else {}
        self.hidden = base.hidden if base else 0
        self.atoms: dict[Atom, Size] = {}
        self.proved: dict[Poly, bool] = {}

    def fresh(self) -> Poly:
        self.hidden += 1
        return _symbol(f"\0{self.hidden}")  # not printable, so no name of a user's

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
        """Take `size >= 0` as known. A contradiction is left to whoever checks the facts."""
        size = self.normal(size)
        if isinstance(size, int) or _nonneg(size) or size in self.known:
            return
        self.known.append(size)
        monomial, coefficient = size.terms[0]
        if len(size.terms) == 2 and not size.terms[1][0] and coefficient > 0 > size.terms[1][1] and _nonneg(Poly(size.terms[:1])):
            for atom in monomial:  # a product of at least 1 has no factor 0
                low = -(size.terms[1][1] // coefficient) if len(monomial) == 1 else 1
                if atom.op == "symbol" and low > self.lows.get(atom.name, 0):
                    self.lows[atom.name] = low
                    if len(monomial) > 1:
                        self.known.append(Poly((((atom,), 1), ((), -1))))
        self.forget()

    def forget(self) -> None:
        self.atoms, self.proved = {}, {}

    def equate(self, pending: list[Size]) -> None:
        """Take each size as 0: solve for a symbol, else rewrite a product, else know both signs."""
        while pending:
            size = self.normal(pending.pop())
            if isinstance(size, int):
                continue
            size = _shrink(size, _content(size))
            if solution := _lone_symbol(size):
                self.bind(*solution)
                pending += [_collect({monomial: 1}) - value for monomial, value in self.rules]
                self.rules = []
                continue
            for monomial, coefficient in _terms(size):
                value = _collect({monomial: 1}) - coefficient * size
                if abs(coefficient) == 1 and len(monomial) == len(_terms(size)[0][0]) and not _mentions(value, monomial):
                    self.rules.append((monomial, value))
                    self.forget()
                    break
            self.know(size)
            self.know(-size)

    def bind(self, name: str, value: Size) -> None:
        self.bindings = {key: substitute(old, {name: value}) for key, old in self.bindings.items()}
        self.bindings[name] = value
        known, self.known = self.known, []
        self.lows = {}
        self.forget()
        for size in (*known, value):
            self.know(size)

    def parametrise(self, gap: Size) -> bool:
        """From `a % k == r` solve `a == k*q + r` for a symbol of a, with a fresh q >= 0."""
        if (found := _remainder(gap)) is None:
            return False
        a, k, rest = (self.normal(size) for size in found)
        if isinstance(k, int) and not isinstance(a, int):
            if (found := _remainder(mod(a - rest, k))) is None:
                return True
            a, k, rest = found
        quotient = self.fresh() if _nonneg(a) and _nonneg(k) else self.fresh() - self.fresh()
        solution = _lone_symbol(a - k * quotient - rest, symbols(a) - symbols(k))
        if solution:
            self.equate([_symbol(solution[0]) - solution[1]])
        return solution is not None

    def normal(self, size: Size) -> Size:
        """One form for sizes that the facts make equal: no bound symbol, no `%`, no `min`, and `max` against 0 only."""
        for _ in range(4):
            before, size = size, self.reduce(_map(size, self.atom))
            if size == before:
                break
        return size

    def reduce(self, size: Size) -> Size:
        for _ in range(_MAX_CASES if self.rules else 0):
            hits = (
                (monomial, lead, rest, value)
                for monomial, _ in _terms(size)
                for lead, value in self.rules
                if (rest := _without(monomial, lead)) is not None
            )
            hit = next(hits, None)
            if hit is None:
                break
            monomial, lead, rest, value = hit
            coefficient = dict(_terms(size))[monomial]
            size = size + coefficient * (value - _collect({lead: 1})) * _collect({rest: 1})
        return size

    def atom(self, atom: Atom) -> Size:
        if atom.op == "symbol":
            return self.bindings.get(atom.name, Poly((((atom,), 1),)))
        if atom not in self.atoms:
            a, b = (self.normal(arg) for arg in atom.args)
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
        return self.atoms[atom]

    def positive_part(self, size: Size) -> Size:
        """max(size, 0)."""
        if isinstance(size, int):
            return max(size, 0)
        factor = _content(size)
        size = _shrink(size, factor)
        assert isinstance(size, Poly)
        if size.terms[0][1] < 0:
            return factor * (self.positive_part(-size) + size)
        if self.linear(size):
            return factor * size
        if self.linear(-size):
            return 0
        call = _call("max", size, 0)
        return factor * self.cases.get(call.terms[0][0][0], call)

    def floor(self, a: Size, b: Size) -> Size:
        """a//b, for a divisor known to be positive without whatever it divides."""
        if isinstance(b, int) or not self.linear(b - 1):
            return floordiv(a, b)
        for atom in dict.fromkeys(b.terms[0][0]):
            factor = Poly((((atom,), 1),))
            if (fewer := divide_exact(b, factor)) is not None and self.linear(factor - 1):
                if (less := divide_exact(a, factor)) is not None:
                    return self.floor(less, fewer)
        quotient, rest = _divide(a, b)
        if self.linear(rest) and self.linear(b - 1 - rest):
            return quotient
        if self.linear(-1 - rest) and self.linear(b + rest):
            return quotient - 1
        if _terms(rest)[0][1] < 0:
            return quotient - self.floor(b - 1 - rest, b)
        for (atom, *more), coefficient in rest.terms if isinstance(rest, Poly) and () not in dict(rest.terms) else ():
            if coefficient == 1 and not more and atom.op == "//" and self.linear(atom.args[1] - 1):  # (a//m + r)//b
                inner, m = atom.args
                return quotient + self.floor(inner + m * (rest - Poly((((atom,), 1),))), m * b)
        return quotient + floordiv(rest, b)

    def linear(self, goal: Size) -> bool:
        """Whether `goal >= 0` follows by adding up multiples of what is known, monomials taken as unknowns."""
        if isinstance(goal, int):
            return goal >= 0
        if _nonneg(goal):
            return True
        if goal not in self.proved:
            self.proved[goal] = _infeasible(self.rows(goal))
        return self.proved[goal]

    def rows(self, goal: Poly) -> list[Size]:
        """Sizes that would all be >= 0 were the goal < 0: what is known, times what leads to a monomial in question."""
        rows: list[Size] = [-1 - goal]
        sources = list(self.known)
        queue = [monomial for monomial, _ in goal.terms if monomial]
        met, used = set(queue), set[tuple[int, Monomial]]()
        defined = set[Atom]()
        for monomial in queue:  # which grows
            for atom in monomial:
                if atom not in defined:
                    defined.add(atom)
                    sources += self.definition(atom)
            if all(atom.nonneg for atom in monomial):
                rows.append(Poly(((monomial, 1),)))
            for number, source in enumerate(sources):
                for part, _ in source.terms:
                    rest = _without(monomial, part) if part else None
                    if rest is None or (number, rest) in used or not all(atom.nonneg for atom in rest):
                        continue
                    used.add((number, rest))
                    row = _multiply(source, Poly(((rest, 1),))) if rest else source
                    rows.append(row)
                    new = [m for m, _ in _terms(row) if m and m not in met]
                    queue += new
                    met.update(new)
                    if len(rows) >= _MAX_ROWS:
                        return rows
        return rows

    def definition(self, atom: Atom) -> list[Poly]:
        """What is >= 0 because of what the atom means."""
        this: Size = Poly((((atom,), 1),))
        rows: list[Size] = []
        if atom.op == "max":
            rows = [this - atom.args[0], this - atom.args[1]]
        elif atom.op == "//" and self.low(atom.args[1]) >= 1:
            rest = atom.args[0] - atom.args[1] * this
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

    def prove(self, goal: Size, exact: bool) -> bool:
        """Whether `goal >= 0`, or `goal == 0`: straight, or in each of a few cases."""
        todo: list[tuple[_Theory, Size]] = [(self, goal)]
        budget = _MAX_CASES
        while todo:
            theory, goal = todo.pop()
            goal = theory.normal(goal)
            if theory.linear(goal) and (not exact or theory.linear(-goal)):
                continue
            cases = theory.split(goal)
            budget -= len(cases)
            if not cases or budget < 0:
                return False
            todo += [(case, goal) for case in cases]
        return True

    def split(self, goal: Size) -> list[_Theory]:
        """Theories that together cover this one: the two sides of a max, or the residues of a symbol that is divided."""
        atoms = _atoms(goal)
        for atom in atoms:
            if atom.op == "max":
                cases = [_Theory(self), _Theory(self)]
                for case, sign in zip(cases, (1, -1), strict=True):
                    case.know(sign * atom.args[0])
                    case.cases[atom] = atom.args[0] if sign > 0 else 0
                return cases
        for atom in atoms:
            if atom.op == "//" and isinstance(atom.args[1], int):
                names = [inner.name for monomial, _ in _terms(atom.args[0]) for inner in monomial if inner.op == "symbol"]
                for name in sorted(names):
                    divisors = [b for a in atoms if a.op == "//" and name in a.names and isinstance(b := a.args[1], int)]
                    modulus = lcm(*divisors)
                    if (modulus := modulus if modulus <= _MAX_MODULUS else atom.args[1]) <= _MAX_MODULUS:
                        return [self.residue(name, modulus, rest) for rest in range(modulus)]
        return []

    def residue(self, name: str, modulus: int, rest: int) -> _Theory:
        case = _Theory(self)
        case.bind(name, modulus * case.fresh() + rest)
        return case


def _lone_symbol(size: Size, among: frozenset[str] | None = None) -> tuple[str, Size] | None:
    """A symbol and what it is where `size == 0`; one that is plainly >= 0 if there is one."""
    solutions = []
    for monomial, coefficient in _terms(size):
        if len(monomial) == 1 and abs(coefficient) == 1 and monomial[0].op == "symbol":
            value = _collect({monomial: 1}) - coefficient * size
            name = monomial[0].name
            if name not in symbols(value) and (among is None or name in among):
                solutions.append((not _nonneg(value), len(solutions), (name, value)))
    return min(solutions)[2] if solutions else None


def _mentions(size: Size, monomial: Monomial) -> bool:
    return any(
        _without(other, monomial) is not None or any(_mentions(arg, monomial) for atom in other for arg in atom.args)
        for other, _ in _terms(size)
    )


def _infeasible(rows: Iterable[Size]) -> bool:
    """Whether no integers make every row >= 0: Fourier and Motzkin's elimination, rounding each constant down."""
    system: dict[tuple[tuple[Monomial, int], ...], int] = {}

    def insert(row: Size) -> bool:
        terms = _terms(row)
        constant = 0
        if terms and not terms[-1][0]:
            constant = terms[-1][1]
            terms = terms[:-1]
        if not terms:
            return constant < 0
        if (factor := gcd(*(coefficient for _, coefficient in terms))) > 1:
            terms = tuple((monomial, coefficient // factor) for monomial, coefficient in terms)
            constant //= factor
        system[terms] = min(constant, system.get(terms, constant))
        return False

    if any([insert(row) for row in rows]):
        return True
    budget = _MAX_COMBINATIONS
    while system:
        signs: dict[Monomial, list[int]] = {}
        for terms in system:
            for monomial, coefficient in terms:
                signs.setdefault(monomial, [0, 0])[coefficient > 0] += 1
        unknown = min(signs, key=lambda monomial: signs[monomial][0] * signs[monomial][1])
        above: list[tuple[int, Size]] = []
        below: list[tuple[int, Size]] = []
        for terms in tuple(system):
            coefficient = next((c for monomial, c in terms if monomial == unknown), 0)
            if coefficient:
                row = Poly((*terms, ((), constant))) if (constant := system.pop(terms)) else Poly(terms)
                (above if coefficient > 0 else below).append((coefficient, row))
        budget -= len(above) * len(below)
        if budget < 0:
            return False
        for up, lower in above:
            for down, upper in below:
                if insert(lower * (-down // (common := gcd(up, down))) + upper * (up // common)):
                    return True
    return False


def _candidates(names: Sequence[str], pool: Sequence[int]) -> Iterator[dict[str, int]]:
    """Assignments to try, the same ones every time: small and distinct, all alike, one unusual, then mixed."""
    first = [pool[i % 6] for i in range(len(names))]
    for shift in range(3):
        yield dict(zip(names, first[shift:] + first[:shift], strict=True))
    for number in (1, 2, 0):
        yield dict.fromkeys(names, number)
    for number in pool:
        for name in names:
            yield {**dict(zip(names, first, strict=True)), name: number}
    state = 1
    while names:
        values = {}
        for name in names:
            state = (state * 1103515245 + 12345) % (1 << 31)
            values[name] = pool[(state >> 16) % len(pool)]
        yield values


def _repair(values: dict[str, int], rows: Sequence[Size]) -> dict[str, int]:
    """Numbers near the given ones that make more of the rows >= 0: one symbol moves at a time, along the slope."""
    for _ in range(6):
        for row in rows:
            lack = -evaluate(row, values)
            if lack <= 0:
                continue
            for name in symbols_in_order(row):
                slope = evaluate(row, {**values, name: values[name] + 1}) + lack
                step = -(-lack // abs(slope)) * (1 if slope > 0 else -1) if slope else 0
                if step and values[name] + step >= 0:
                    values = {**values, name: values[name] + step}
                    break
            else:
                return values
            break
        else:
            break
    return values


_NO_FACTS = Facts()
