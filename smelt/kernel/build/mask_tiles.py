"""Classify a tile of scores as masked, unmasked or mixed, by bounds on comparisons of positions.

Causal masks and windows compare affine functions of a query and a key. These are bounded over a tile, so fully masked
and fully visible tiles are found by arithmetic on its corners. A tile whose mask cannot be bounded, such as one in
memory, is mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

from smelt.dtype import i1, i64
from smelt.kernel.build.attention_shape import At, Attention
from smelt.kernel.loops.grammar import (
    Affine,
    Amount,
    Apply,
    Convert,
    Expr,
    Let,
    Number,
    Quotient,
    Remainder,
    Var,
    add,
    scale,
    variables,
)
from smelt.kernel.loops.nest import Nest

Bounds = tuple[Expr, Expr]  # the least value and the greatest one, or: true for all, true for some
TRUE, FALSE = Number(True, i1), Number(False, i1)
UNKNOWN: Bounds = FALSE, TRUE
HIDDEN, PLAIN, MIXED = 0, 1, 2  # kinds of a tile


def kind_of_tile(nest: Nest, attn: Attention, at: Callable[[], At], ranges: Mapping[Var, Bounds]) -> Expr:
    """The kind of a tile; `at` gives the index along each letter, from variables that count in the tile: `ranges`."""
    if attn.numbers.softcap or not attn.numbers.roles[3:]:
        return Number(MIXED if attn.numbers.softcap else PLAIN)
    hidden: Expr = FALSE
    plain: Expr = TRUE
    fill = iter(attn.numbers.fill)
    for role, word, mask in zip(attn.numbers.roles[3:], attn.axes.words[3:], attn.op.operands[3:], strict=True):
        if role == "add":
            return Number(MIXED)
        with nest.inner(fence=True) as scope:
            for var in ranges:
                nest.places[var] = scope
            element = nest.pull(mask, attn.index(word, at()))
        named = {each.var: each.value for each in scope.statements if isinstance(each, Let)}
        for var in ranges:
            nest.places[var] = nest.scope
        every, some = _Tile(nest, ranges, named).truth(element)
        if role == "unless":
            every, some = _negate(nest, (every, some))
        if next(fill) == -inf:
            hidden = _join(nest, "or", hidden, _join_not(nest, some))
        plain = _join(nest, "and", plain, every)
    kind = nest.apply("select", plain, Number(PLAIN), Number(MIXED), dtype=i64) if plain != FALSE else Number(MIXED)
    return nest.apply("select", hidden, Number(HIDDEN), kind, dtype=i64) if hidden != FALSE else kind


@dataclass(slots=True)
class _Tile:
    """`named`: what variables of the mask's expression stand for."""

    nest: Nest
    ranges: Mapping[Var, Bounds]
    named: Mapping[Var, Expr]
    known: dict[Expr, bool] = field(default_factory=dict)

    def varies(self, expr: Expr) -> bool:
        """Whether it may differ inside the tile."""
        if expr not in self.known:
            parts = (self.named.get(var, var) for var in variables(expr))
            self.known[expr] = any(each in self.ranges or (each != expr and self.varies(each)) for each in parts)
        return self.known[expr]

    def truth(self, expr: Expr) -> Bounds:
        """Whether a condition holds for all elements, and whether it may for some."""
        if isinstance(expr, Var) and expr in self.named:
            return self.truth(self.named[expr])
        if isinstance(expr, Number):
            return expr, expr
        nest = self.nest
        match expr:
            case Apply("and" | "or" as function, (x, y)):
                one, other = self.truth(x), self.truth(y)
                return _join(nest, function, one[0], other[0]), _join(nest, function, one[1], other[1])
            case Apply("not", (x,)):
                return _negate(nest, self.truth(x))
            case Apply("LT" | "LE" | "GT" | "GE" | "EQ" | "NE" as function, (x, y)) if x.dtype.is_integer:
                a, b = self.bounds(x), self.bounds(y)
                return UNKNOWN if a is None or b is None else self.compare(function, a, b)
        return UNKNOWN

    def compare(self, function: str, a: Bounds, b: Bounds) -> Bounds:
        nest = self.nest
        (low, high), (least, most) = a, b
        match function:
            case "LT" | "LE":
                pairs = (high, least), (low, most)
            case "GT" | "GE":
                pairs = (low, most), (high, least)
            case _:
                overlap = nest.both(nest.apply("LE", low, most, dtype=i1), nest.apply("LE", least, high, dtype=i1))
                same = nest.both(nest.apply("EQ", low, most, dtype=i1), nest.apply("EQ", high, least, dtype=i1))
                return (same, overlap) if function == "EQ" else _negate(nest, (same, overlap))
        every, some = (nest.apply(function, *pair, dtype=i1) for pair in pairs)
        return every, some

    def bounds(self, expr: Expr) -> Bounds | None:
        """The least and the greatest value of an integer."""
        if expr in self.ranges:
            assert isinstance(expr, Var)
            return self.ranges[expr]
        if isinstance(expr, Var) and expr in self.named:
            return self.bounds(self.named[expr])
        nest = self.nest
        match expr:
            case Number() | Amount():
                return expr, expr
            case Affine(terms, constant):
                low: Expr = Amount(constant)
                high = low
                for atom, factor in terms:
                    inner = self.bounds(atom)
                    if inner is None or not isinstance(factor, int):
                        return None
                    least, most = inner if factor >= 0 else (inner[1], inner[0])
                    low, high = add(low, scale(least, factor)), add(high, scale(most, factor))
                return nest.let(low), nest.let(high)
            case Convert(x) if x.dtype.is_integer and expr.dtype.is_integer:
                return self.bounds(x)
            case Apply("add" | "subtract" as function, (x, y)):
                a, b = self.bounds(x), self.bounds(y)
                if a is None or b is None:
                    return None
                if function == "subtract":
                    b = scale(b[1], -1), scale(b[0], -1)
                return nest.let(add(a[0], b[0])), nest.let(add(a[1], b[1]))
            case Quotient(x, size):
                inner = self.bounds(x)
                return inner and (nest.let(Quotient(inner[0], size)), nest.let(Quotient(inner[1], size)))
            case Remainder(x, size):
                inner = self.bounds(x)
                if inner is None:
                    return None
                same = nest.apply("EQ", *(nest.let(Quotient(each, size)) for each in inner), dtype=i1)
                low, high = (nest.let(Remainder(each, size)) for each in inner)
                low = nest.apply("select", same, low, Number(0), dtype=i64)
                return low, nest.apply("select", same, high, nest.let(Amount(size - 1)), dtype=i64)
        if self.varies(expr) or not expr.dtype.is_integer:
            return None
        same_for_all = nest.convert(expr, i64)
        return same_for_all, same_for_all


def _negate(nest: Nest, bounds: Bounds) -> Bounds:
    return _join_not(nest, bounds[1]), _join_not(nest, bounds[0])


def _join_not(nest: Nest, x: Expr) -> Expr:
    if x in (TRUE, FALSE):
        return FALSE if x == TRUE else TRUE
    return nest.apply("not", x, dtype=i1)


def _join(nest: Nest, function: str, x: Expr, y: Expr) -> Expr:
    """`and` or `or` of conditions, without one that is known."""
    neutral, decisive = (TRUE, FALSE) if function == "and" else (FALSE, TRUE)
    if decisive in (x, y):
        return decisive
    if neutral in (x, y):
        return y if x == neutral else x
    return nest.apply(function, x, y, dtype=i1)
