"""Sizes as C: polynomials over the texts of their symbols, with and without overflow checks."""

from __future__ import annotations

from functools import reduce

from smelt.dim import Atom, Size
from smelt.errors import SizeError


def size_text(size: Size, symbols: dict[str, str]) -> str:
    """A polynomial as C over the texts of its symbols, for values that passed the checks of `sure_text`."""
    if isinstance(size, int):
        return number_text(size)
    terms = []
    for monomial, coefficient in size.terms:
        factors = [_atom_text(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, number_text(coefficient))
        terms.append(" * ".join(factors))
    return f"({' + '.join(terms)})"


def _atom_text(atom: Atom, symbols: dict[str, str]) -> str:
    if atom.op == "symbol":
        return symbols[atom.name]
    a, b = (size_text(arg, symbols) for arg in atom.args)
    return f"{ {'//': 'size_div', '%': 'size_mod', 'max': 'size_max', 'min': 'size_min'}[atom.op] }({a}, {b})"


def sure_text(size: Size, symbols: dict[str, str]) -> str:
    """The same with overflow checks: `int bad` becomes 1 where a number overflows 64 bits."""
    if isinstance(size, int):
        return number_text(size)
    terms = []
    for monomial, coefficient in size.terms:
        factors = [_sure_atom(atom, symbols) for atom in monomial]
        if coefficient != 1 or not factors:
            factors.insert(0, number_text(coefficient))
        terms.append(reduce(lambda a, b: f"sure_mul({a}, {b}, &bad)", factors))
    return reduce(lambda a, b: f"sure_add({a}, {b}, &bad)", terms)


def _sure_atom(atom: Atom, symbols: dict[str, str]) -> str:
    if atom.op == "symbol":
        return symbols[atom.name]
    a, b = (sure_text(arg, symbols) for arg in atom.args)
    if atom.op in ("max", "min"):
        return f"size_{atom.op}({a}, {b})"
    return f"{'sure_div' if atom.op == '//' else 'sure_mod'}({a}, {b}, &bad)"


def number_text(number: int) -> str:
    if abs(number) >= 1 << 63:
        raise SizeError("a number in a size is too large", expected="less than 2**63", got=number)
    return f"{number}LL"
