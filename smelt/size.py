"""Sizes of tensors: integers, or polynomials over symbols; their arithmetic, text and values.

Numbers, symbols and text → canonical sizes, and their values for given symbols. Everything with a shape calls this
module, the code that runs bundles included. Proofs about sizes are in `smelt.dim`.

A symbol is an integer >= 0. `//` and `%` are Python's; dividing by 0 is an error. Arithmetic never cancels a symbolic
divisor: `(B*S)//B` stays as it is, because B may be 0, until a fact says `B >= 1`. Only a size that vanishes forgets
its divisors (`x//b - x//b` is 0).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import gcd
from operator import index
from typing import Any, Literal, NoReturn, TypeAlias, TypeVar, final

from smelt.errors import ShapeError

T = TypeVar("T")

# Bounds that keep hostile expressions cheap: beyond them arithmetic raises ShapeError.
_MAX_TERMS, _MAX_DEGREE, _MAX_COEFFICIENT = 256, 64, 10**36
_MAX_DEPTH, _MAX_ATOM, _MAX_NAME, _MAX_TEXT = 48, 4096, 256, 1 << 16

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
    args: tuple[Size, ...]  # operands of everything else: two
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
    return any_symbol(name)


def floordiv(a: Size, b: Size) -> Size:
    """`a / b`, rounded down. What a number divides comes out: `(8*S + T + 9)//8` is `(T + 1)//8 + S + 1`."""
    if not isinstance(b, int):
        a, b, _ = _lowest(a, b)
        return atom_of("//", a, b)
    if b == 0:
        raise ShapeError("division by zero", got=f"({a})//0")
    return a // b if isinstance(a, int) else _floordiv_number(a if b > 0 else -a, abs(b))


def mod(a: Size, b: Size) -> Size:
    """`a % b`, with the sign of `b`, so that `a == a//b*b + a%b`."""
    if not isinstance(b, int):
        a, b, factor = _lowest(a, b)
        return factor * atom_of("%", a, b)
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
    if nonneg(difference):
        return a
    return b if nonneg(-difference) else atom_of("max", *sorted((a, b), key=_number_last))


def minimum(a: Size, b: Size) -> Size:
    """The smaller size: one of the two where their order does not depend on the symbols."""
    difference = a - b
    if nonneg(difference):
        return b
    return a if nonneg(-difference) else atom_of("min", *sorted((a, b), key=_number_last))


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
        return None if b == 0 or any(coefficient % b for _, coefficient in terms_of(a)) else shrink(a, b)
    quotient, rest = divide(a, b)
    return quotient if rest == 0 else None


def symbols(size: Size) -> frozenset[str]:
    """The names of the symbols that a size depends on."""
    return frozenset(name for monomial, _ in terms_of(size) for atom in monomial for name in atom.names)


def symbols_in_order(*sizes: Size) -> tuple[str, ...]:
    """The names of the symbols of all sizes, each once, alphabetically."""
    return tuple(sorted({name for size in sizes for name in symbols(size)}))


def substitute(size: Size, values: Mapping[str, Size]) -> Size:
    """The size with symbols replaced; what replaces a symbol must be >= 0, as the symbol was."""

    def replace(atom: Atom) -> Size:
        if not any(name in values for name in atom.names):
            return term_of(atom)
        if atom.op == "symbol":
            return values[atom.name]
        return _APPLY[atom.op](*(substitute(arg, values) for arg in atom.args))

    return map_atoms(size, replace)


def compute_size(
    size: Poly,
    number: Callable[[int], T],
    value: Callable[[Atom], T],
    multiply: Callable[[T, T], T],
    add: Callable[[T, T], T],
) -> T:
    """A size as the operations that compute it, from its numbers and atoms. Coefficients of 1 are left out."""
    total: T | None = None
    for monomial, coefficient in size.terms:
        term = number(coefficient) if coefficient != 1 or not monomial else None
        for atom in monomial:
            term = value(atom) if term is None else multiply(term, value(atom))
        assert term is not None
        total = term if total is None else add(total, term)
    assert total is not None
    return total


def evaluate(size: Size, values: Mapping[str, int], by_zero: int | None = None) -> int:
    """The number that a size is, given its symbols. `by_zero` is the result of dividing by 0, else that is an error."""
    if isinstance(size, int):
        return size
    total = 0
    for monomial, coefficient in size.terms:
        for atom in monomial:
            coefficient *= _value(atom, values, by_zero)
        total += coefficient
    return total


def _value(atom: Atom, values: Mapping[str, int], by_zero: int | None) -> int:
    if atom.op == "symbol":
        if atom.name not in values:
            raise ShapeError(f"no value for the size {atom}", got=assignment(values) or "no values")
        return values[atom.name]
    a, b = (evaluate(each, values, by_zero) for each in atom.args)
    if atom.op in ("max", "min"):
        return max(a, b) if atom.op == "max" else min(a, b)
    if b == 0:
        if by_zero is None:
            raise ShapeError("division by zero", got=f"{atom} with {assignment(values)}")
        return by_zero
    return a // b if atom.op == "//" else a % b


# -- polynomials


def _operand(value: object) -> Size:
    return value if isinstance(value, (int, Poly)) else index(value)  # type: ignore[arg-type]  # raises the TypeError


def terms_of(size: Size) -> tuple[tuple[Monomial, int], ...]:
    return size.terms if isinstance(size, Poly) else (((), size),) if size else ()


def term_of(*monomial: Atom) -> Poly:
    return Poly(((monomial, 1),))


def _leading_first(term: tuple[Monomial, int]) -> tuple[int, Monomial]:
    return -len(term[0]), term[0]  # a graded order: multiplication keeps it, as division needs


def collect(terms: Mapping[Monomial, int]) -> Size:
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
    terms = dict(terms_of(a))
    for monomial, coefficient in terms_of(b):
        terms[monomial] = terms.get(monomial, 0) + sign * coefficient
    return collect(terms)


def _multiply(a: Poly, b: Size) -> Size:
    if isinstance(b, int):
        return collect({monomial: b * coefficient for monomial, coefficient in a.terms})
    if len(a.terms) * len(b.terms) > 16 * _MAX_TERMS:
        raise _too_large()
    terms: dict[Monomial, int] = {}
    for m, c in a.terms:
        for n, d in b.terms:
            both = tuple(sorted(m + n)) if m and n else m or n
            terms[both] = terms.get(both, 0) + c * d
    return collect(terms)


def map_atoms(size: Size, replace: Callable[[Atom], Size]) -> Size:
    total: Size = 0
    for monomial, coefficient in terms_of(size):
        term: Size = coefficient
        for atom in monomial:
            term = term * replace(atom)
        total = total + term
    return total


def without(monomial: Monomial, part: Monomial) -> Monomial | None:
    """The monomial divided by `part`, if that divides it."""
    rest = list(monomial)
    for atom in part:
        if atom not in rest:
            return None
        rest.remove(atom)
    return tuple(rest)


def divide(a: Size, b: Poly) -> tuple[Size, Size]:
    """(q, r) with `a == q*b + r`, where no term of r is a multiple of b's leading term."""
    quotient: Size = 0
    rest: Size = 0
    lead, divisor = b.terms[0]
    for _ in range(_MAX_TERMS):
        if a == 0:
            return quotient, rest
        monomial, coefficient = terms_of(a)[0]
        factor = without(monomial, lead)
        if factor is None or coefficient % divisor:
            term = collect({monomial: coefficient})
            a, rest = a - term, rest + term
        else:
            term = collect({factor: coefficient // divisor})
            a, quotient = a - term * b, quotient + term
    raise _too_large()


def nonneg(size: Size) -> bool:
    """Whether a size is plainly >= 0: no minus sign, and no atom that may be negative."""
    return all(coefficient > 0 and all(atom.nonneg for atom in monomial) for monomial, coefficient in terms_of(size))


def degree_of(size: Size) -> int:
    return len(size.terms[0][0]) if isinstance(size, Poly) else 0


def content_of(size: Size) -> int:
    return gcd(*(coefficient for _, coefficient in terms_of(size)))


def shrink(size: Size, factor: int) -> Size:
    return collect({monomial: coefficient // factor for monomial, coefficient in terms_of(size)})


# -- atoms


def any_symbol(name: str) -> Poly:
    bare = _is_name(name)
    atom = Atom(name if bare else '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    atom.op, atom.name, atom.args, atom.names, atom.nonneg, atom.depth = "symbol", name, (), frozenset((name,)), True, 0
    return term_of(atom)


def atom_of(op: Op, a: Size, b: Size) -> Poly:
    atom = Atom(f"{op}({a}, {b})" if op in ("max", "min") else f"{_tight(a)}{'//' if op == '//' else ' % '}{_tight(b)}")
    atom.op, atom.name, atom.args, atom.names = op, "", (a, b), symbols(a) | symbols(b)
    atom.depth = 1 + max(inner.depth for arg in (a, b) for monomial, _ in terms_of(arg) for inner in monomial)
    if atom.depth > _MAX_DEPTH or len(atom) > _MAX_ATOM:
        raise _too_large()
    if op == "max":
        atom.nonneg = nonneg(a) or nonneg(b)
    else:  # of a divisor `>= 0` is enough: where it is 0 there is no value
        atom.nonneg = nonneg(b) and (op == "%" or nonneg(a))
    return term_of(atom)


def _lowest(a: Size, b: Poly) -> tuple[Size, Poly, int]:
    """(a/f, b/f, f) for the number f that divides all coefficients and makes b's leading one positive."""
    factor = gcd(content_of(a), content_of(b)) * (1 if b.terms[0][1] > 0 else -1)
    return shrink(a, factor), Poly(tuple((monomial, c // factor) for monomial, c in b.terms)), factor


def residue_of(a: Size, k: int) -> tuple[Size, Size, int]:
    """(q, r, c) with `a == k*q + r + c`: `0 <= c < k`, no constant in r, its coefficients in `-k/2 < _ <= k/2`."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(a):
        small = coefficient % k
        if monomial and 2 * small > k:
            small -= k
        quotient[monomial], rest[monomial] = (coefficient - small) // k, small
    constant = rest.pop((), 0)
    return collect(quotient), collect(rest), constant


def _floordiv_number(a: Size, k: int) -> Size:
    quotient, rest, constant = residue_of(a, k)
    if isinstance(rest, int):
        return quotient
    if (factor := gcd(content_of(rest), k)) > 1:
        return quotient + _floordiv_number(shrink(rest, factor) + constant // factor, k // factor)
    if rest.terms[0][1] < 0:  # rounding -x down is rounding x up: one form for both
        return quotient - _floordiv_number(k - 1 - constant - rest, k)
    for monomial, coefficient in rest.terms:
        atom = monomial[0]
        if coefficient == 1 and len(monomial) == 1 and atom.op == "//" and isinstance(m := atom.args[1], int):
            return quotient + _floordiv_number(atom.args[0] + m * (rest + constant - term_of(atom)), k * m)
    return quotient + atom_of("//", rest + constant, k)


def _mod_number(a: Size, k: int) -> Size:
    _, rest, constant = residue_of(a, k)
    if isinstance(rest, int):
        return constant
    for monomial, coefficient in rest.terms:
        atom = monomial[0]
        if len(monomial) == 1 and atom.op == "%" and isinstance(m := atom.args[1], int) and coefficient * m % k == 0:
            return _mod_number(rest + constant + coefficient * (atom.args[0] - term_of(atom)), k)
    factor = gcd(content_of(rest), k)
    return factor * atom_of("%", shrink(rest, factor) + constant // factor, k // factor) + constant % factor


_APPLY: dict[str, Callable[[Size, Size], Size]] = {"//": floordiv, "%": mod, "max": maximum, "min": minimum}

# ------------------------------------------------------------------------------------------------ text

_TOKEN = r'[0-9]+|[A-Za-z_][A-Za-z0-9_.]*|"(?:[^"\\]|\\.)+"|\*\*|//|==|<=|>=|\S'
_CALLS = {"floordiv": floordiv, "mod": mod, "max": maximum, "min": minimum}


def parse_size(text: str) -> Size:
    """Parse the text of a size: the inverse of `str`, with Python's operators and precedence.

    Names that are not identifiers are in double quotes; `floordiv`, `mod`, `max` and `min` take two arguments.

    >>> parse_size('2*(S + 7)//8 + "my dim"'), parse_size("max(S, 1)*S**2")
    ("my dim" + (S + 3)//4 + 1, S**2*max(S, 1))
    """
    if _is_name(text) and len(text) <= _MAX_NAME:  # most sizes: nothing to parse
        return symbol(text)
    parser = Parser(text)
    size = parser.sum()
    parser.end()
    return size


def _is_name(text: str) -> bool:
    """Whether a name needs no quotes: letters, digits, `_` and `.`, no digit or point first."""
    return text.isascii() and text[:1] != "." and text.replace(".", "_").isidentifier() and text != "divides"


class Parser:
    """Recursive descent, at most `_MAX_DEPTH` parentheses deep."""

    def __init__(self, text: str) -> None:
        self.text, self.depth, self.at = text, 0, 0
        if len(text) > _MAX_TEXT:
            self.fail("the text of a size is too long")
        self.tokens = [*re.findall(_TOKEN, text), ""]

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
        if not _is_name(token):
            self.fail(f"expected a size, got {token[:40]!a}" if token else "a size ends too early")
        if token not in _CALLS or not self.take("("):
            return symbol(token)
        a = self.sum()
        self.need(",")
        b = self.sum()
        self.need(")")
        return _CALLS[token](a, b)


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


def assignment(values: Mapping[str, int]) -> str:
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
    known = assignment({name: values[name] for name in symbols_in_order(pattern) if name in values})
    expected = " ".join(filter(None, (str(pattern), why, f"with {known}" if known else "")))
    return ShapeError(f"size {position} does not fit", expected=expected, got=number)


def linear_in(size: Size, name: str) -> tuple[Size, Size] | None:
    """(factor, rest) where a size is `factor*name + rest` and neither depends on `name`; None where it is not so."""
    factor: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in terms_of(size):
        inside = [atom for atom in monomial if name in atom.names]
        if not inside:
            rest[monomial] = coefficient
        elif len(inside) > 1 or inside[0].op != "symbol":
            return None
        else:
            factor[without(monomial, (inside[0],)) or ()] = coefficient
    return (collect(factor), collect(rest)) if factor else None


def _slope(size: Size, name: str) -> int:
    """The coefficient of a symbol that a size is linear in; 0 if it is not."""
    slope = 0
    for monomial, coefficient in terms_of(size):
        if any(name in atom.names for atom in monomial):
            if slope or len(monomial) > 1 or monomial[0].op != "symbol":
                return 0
            slope = coefficient
    return slope
