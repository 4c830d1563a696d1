"""The cost of statements: an estimate of work for `parallelise`, bounds of memory traffic for the profiler."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

from smelt.dim import Size, product
from smelt.dtype import i64
from smelt.ir.blocks import BLOCKS, RUN
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    Attend,
    BlockMma,
    Decode,
    Expr,
    Fold,
    For,
    If,
    Let,
    Load,
    Mma,
    Number,
    RoundRow,
    Set,
    Slice,
    Stmt,
    Store,
    Transpose,
    Update,
    Var,
    While,
    children,
    expressions,
)


def count_work(statements: Sequence[Stmt]) -> Size:
    """An estimate of the elements that statements touch."""
    total: Size = 0
    for each in statements:
        match each:
            case For(_, Amount(size), body):
                total = total + size * count_work(body)
            case Fold(_, Amount(size), body):
                total = total + size * (count_work(body) + 1)
            case For(_, _, body) | While(_, _, body) | Fold(_, _, body):
                total = total + 64 * count_work(body)
            case Mma(_, a):
                _, *taps, extent = (size.size if isinstance(size, Amount) else None for size in a.sizes)
                steps = product(1 if each is None else each for each in taps)
                total = total + 16 * (128 if extent is None else extent) * steps
            case Decode(depth=depth, values=values):
                total = total + 8 * 1024 * (depth + values)
            case Attend(keys=keys, depth=depth, values=values):
                total = total + 128 * (keys.size if isinstance(keys, Amount) else 1024) * (depth + values)
            case BlockMma(panel=Slice(_, (Amount(count), _)), format=format):
                total = total + 16 * count * BLOCKS[format].length  # of some rows
            case If(_, then, otherwise):
                total = total + count_work(then) + count_work(otherwise)
            case Let() | Store() | Update() | Set():
                total = total + 1
            case RoundRow(runs=runs, most=most):
                total = total + 4 * RUN * runs * most
            case Transpose(Slice(_, (Number(rows), Number(columns)))):
                total = total + int(rows.real * columns.real) // 4
    return total


@dataclass(slots=True)
class Accesses:
    """Upper bounds of the element loads and stores of statements, by buffer. `number`: a size, where it is known."""

    number: Callable[[Size], int | None]
    reads: dict[int | str, float] = field(default_factory=dict)
    writes: dict[int | str, float] = field(default_factory=dict)
    bounds: dict[Var, float] = field(default_factory=dict)  # of integer variables

    def block(self, statements: Sequence[Stmt], times: float) -> None:
        for each in statements:
            self.statement(each, times)

    def statement(self, statement: Stmt, times: float) -> None:
        for expr in expressions(statement):
            self.expression(expr, times)
        match statement:
            case Let(var, value) if value.dtype == i64:
                self.bounds[var] = self.bound(value)
            case For(_, extent, body):
                self.block(body, times * self.bound(extent))
            case Fold(_, extent, body, value):
                inner = times * self.bound(extent)
                self.expression(value, inner)
                self.block(body, inner)
            case While(head, _, body):
                self.block((*head, *body), inf)
            case If(_, then, otherwise):
                self.block((*then, *otherwise), times)
            case Store(place) | Update(place):
                self.writes[place.array] = self.writes.get(place.array, 0.0) + times
            case Mma(_, a, b):  # a micro-kernel reads all of its operands
                self.reads |= {a.place.array: inf, b.place.array: inf}
            case Attend(rows=rows, values=wide, q=q, k=k, v=v, put=put, target=target):
                self.reads |= {each.array: inf for each in (q, k, v)}
                stores = times * self.bound(rows) * wide
                self.block(put, stores)
                if target is not None:
                    self.writes[target.array] = self.writes.get(target.array, 0.0) + stores
            case Decode(rows=rows, keys=keys, count=count, at_query=at_query, mask=mask, put=put):
                self.reads |= {each.array: inf for each in (statement.k, statement.v)}
                queries = times * self.bound(rows)
                self.block(at_query, queries * statement.depth)
                self.block(mask, queries * self.bound(keys))
                self.block(put, queries * (statement.values + 2) * (1 if statement.share else self.bound(count)))
            case RoundRow(runs=runs, group=group):
                self.reads[statement.row.array] = inf
                times *= statement.most
                targets = (statement.q, RUN * runs), (statement.scale, runs), (statement.total, RUN * runs // group)
                for place, stored in targets:
                    self.writes[place.array] = self.writes.get(place.array, 0.0) + times * stored
            case BlockMma(_, q, scale, total, panel):
                self.reads |= {each.place.array: inf for each in (q, scale, total, panel)}

    def expression(self, expr: Expr, times: float) -> None:
        if isinstance(expr, Load):
            self.reads[expr.place.array] = self.reads.get(expr.place.array, 0.0) + times
        for each in children(expr):
            self.expression(each, times)

    def bound(self, extent: Expr) -> float:
        """The largest number of iterations of a loop."""
        match extent:
            case Number(value):
                return float(value.real)
            case Amount(size):
                number = self.number(size)
                return inf if number is None else float(number)
            case Apply("minimum", args):
                return min(self.bound(arg) for arg in args)
            case Var():
                return self.bounds.get(extent, inf)
        return inf
