"""Cost of a step at given sizes: arithmetic operations and bytes of memory traffic. Called by the profiler.

Arithmetic is that of the ops that a kernel covers (`ir.cost`), so recomputation and padding do not count. Bytes: each
buffer once, or only the elements that the loops can touch where these are fewer (a row of a table).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from smelt.dim import Size, evaluate, symbols
from smelt.dtype import i64
from smelt.ir.core import Program
from smelt.ir.cost import op_operations
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    Expr,
    Fold,
    For,
    If,
    Let,
    Load,
    Mma,
    Number,
    Stmt,
    Store,
    Var,
    While,
    children,
    expressions,
)
from smelt.kernel.plan.plan import Copy, Launch, Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic operations and bytes of one run of a step; None: the sizes are not known."""

    operations: int | None
    bytes: int | None


def step_cost(step: Launch | Copy, plan: Plan, program: Program, sizes: Mapping[str, int]) -> Cost:
    """The cost of one run of a step. A launch must list its ops (`fuse(…, keep_ops=True)`)."""
    if isinstance(step, Copy):
        moved = _number(plan.buffers[step.target].bytes, sizes)
        return Cost(0, None if moved is None else 2 * moved)
    counts = [_number(op_operations(op, program), sizes) for op in step.covers]
    known = [count for count in counts if count is not None]
    return Cost(sum(known) if len(known) == len(counts) else None, _moved(step, plan, sizes))


def _moved(launch: Launch, plan: Plan, sizes: Mapping[str, int]) -> int | None:
    found = _Accesses(sizes)
    found.block(launch.kernel.body, 1)
    total = 0.0
    for i, number in enumerate(launch.buffers):
        buffer = plan.buffers[number]
        size = _number(buffer.bytes, sizes)
        if size is None:
            return None
        element = buffer.shape.dtype.numpy.itemsize
        for side in (found.reads, found.writes):
            total += min(size, element * side.get(i, 0.0))
    return round(total)


@dataclass(slots=True)
class _Accesses:
    """Upper bounds of the element loads and stores of a kernel, by buffer."""

    sizes: Mapping[str, int]
    reads: dict[int, float] = field(default_factory=dict)
    writes: dict[int, float] = field(default_factory=dict)
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
            case Store(buffer):
                self.writes[buffer] = self.writes.get(buffer, 0.0) + times
            case Mma(a=a, b=b):  # a micro-kernel reads all of its operands
                self.reads |= {operand: inf for operand in (a, b) if isinstance(operand, int)}

    def expression(self, expr: Expr, times: float) -> None:
        if isinstance(expr, Load):
            self.reads[expr.buffer] = self.reads.get(expr.buffer, 0.0) + times
        for each in children(expr):
            self.expression(each, times)

    def bound(self, extent: Expr) -> float:
        """The largest number of iterations of a loop."""
        match extent:
            case Number(value):
                return float(value.real)
            case Amount(size):
                number = _number(size, self.sizes)
                return inf if number is None else float(number)
            case Apply("minimum", args):
                return min(self.bound(arg) for arg in args)
            case Var():
                return self.bounds.get(extent, inf)
        return inf


def _number(size: Size, sizes: Mapping[str, int]) -> int | None:
    return evaluate(size, sizes) if symbols(size) <= sizes.keys() else None
