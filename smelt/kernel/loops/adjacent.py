"""Which loads and stores of a loop are to adjacent, aligned elements: a thread of a GPU may then move them together.

Called by `loops.rows` and by the printers, for loops over adjacent elements of one thread (`For.level` `vector`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import gcd

from smelt.dim import Size
from smelt.dtype import DType
from smelt.kernel.loops.grammar import (
    Amount,
    Expr,
    For,
    Let,
    Number,
    Place,
    Quotient,
    Stmt,
    Var,
    add,
    affine,
    scale,
    static_extent,
    variables,
    walk_statements,
)

BYTES = 16  # of an instruction


def find_definitions(statements: Sequence[Stmt]) -> dict[Var, Expr]:
    """What every name of a function stands for."""
    return {each.var: each.value for each in walk_statements(statements) if isinstance(each, Let)}


def first_place(place: Place, loop: For, definitions: Mapping[Var, Expr], dtype: DType) -> Place | None:
    """The place of the loop's first element, if the others follow it and it is aligned."""
    var, count = loop.var, static_extent(loop.extent)
    inner = find_definitions(loop.body)
    if dtype.bits < 8 or not isinstance(count, int):
        return None
    step = min(BYTES, count * dtype.bits // 8) * 8 // dtype.bits
    whole = _resolve(place.index, inner)
    if dict(affine(whole).terms).get(var) != 1:
        return None
    first = add(whole, scale(var, -1))
    if any(each == var or each in inner for each in variables(first)):
        return None
    return Place(place.array, first) if _divisor(first, definitions) % step == 0 else None


def _resolve(index: Expr, inner: Mapping[Var, Expr]) -> Expr:
    """An index with the names of the loop's body replaced by what they stand for, where that is a sum."""
    form = affine(index)
    parts = [
        scale(_resolve(inner[atom], inner) if isinstance(atom, Var) and atom in inner else atom, factor)
        for atom, factor in form.terms
    ]
    return add(*parts, form.constant)


def is_multiple(expr: Expr, number: int, definitions: Mapping[Var, Expr]) -> bool:
    """Whether a number surely divides an expression."""
    return _divisor(expr, definitions) % number == 0


def _divisor(expr: Expr, definitions: Mapping[Var, Expr]) -> int:
    """A number that divides an expression."""
    match expr:
        case Number(value):
            return abs(int(value.real)) or 1 << 30
        case Amount(size):
            return _divisor_of_size(size)
        case Var():
            return _divisor(definitions[expr], definitions) if expr in definitions else 1
        case Quotient(x, int(size)) if size and _divisor(x, definitions) % size == 0:
            return _divisor(x, definitions) // size
    form = affine(expr)
    if form.terms == ((expr, 1),):
        return 1
    parts = (_divisor_of_size(factor) * _divisor(atom, definitions) for atom, factor in form.terms)
    return gcd(_divisor_of_size(form.constant), *parts)


def _divisor_of_size(size: Size) -> int:
    if isinstance(size, int):
        return abs(size) or 1 << 30
    return gcd(*(coefficient for _, coefficient in size.terms))
