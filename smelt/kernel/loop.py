"""The loop grammar: what a kernel is made of, on one screen. `kernel.build` writes it, `emit_*` print it as source.

    Expr := Var | Number | SizeOf | Load | Unary | Binary | Choose | Cast
    Stmt := For(var, extent, body) | Store(buffer, index, value) | Declare(name, value) | Assign(name, value)

Index arithmetic is in `i64`. A buffer is a number: its place in the plan's list. No text of a model gets in here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from smelt.dtype import DType, i64


@dataclass(frozen=True, slots=True)
class Var:
    """A loop variable or an accumulator."""

    name: str
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Number:
    value: float | int | bool
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class SizeOf:
    """A size known when the program is called: entry `slot` of the plan's size table."""

    slot: int
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class Load:
    buffer: int
    index: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Unary:
    """`function` is the name of a StableHLO op."""

    function: str
    x: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binary:
    function: str
    x: Expr
    y: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Choose:
    condition: Expr
    x: Expr
    y: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Cast:
    x: Expr
    dtype: DType


Expr: TypeAlias = Var | Number | SizeOf | Load | Unary | Binary | Choose | Cast


@dataclass(frozen=True, slots=True)
class For:
    var: Var
    extent: Expr
    body: tuple[Stmt, ...]


@dataclass(frozen=True, slots=True)
class Store:
    buffer: int
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class Declare:
    var: Var
    value: Expr


@dataclass(frozen=True, slots=True)
class Assign:
    var: Var
    value: Expr


Stmt: TypeAlias = For | Store | Declare | Assign


def add(x: Expr, y: Expr) -> Expr:
    """Index arithmetic that drops what is neutral."""
    return _fold("add", x, y, 0, lambda a, b: a + b)


def multiply(x: Expr, y: Expr) -> Expr:
    if Number(0) in (x, y):
        return Number(0)
    return _fold("multiply", x, y, 1, lambda a, b: a * b)


def divide(x: Expr, y: Expr) -> Expr:
    return x if y == Number(1) else Binary("divide", x, y, i64)


def remainder(x: Expr, y: Expr) -> Expr:
    return Number(0) if y == Number(1) else Binary("remainder", x, y, i64)


def _fold(name: str, x: Expr, y: Expr, neutral: int, both: Callable[[int, int], int]) -> Expr:
    if isinstance(x, Number) and isinstance(y, Number):
        return Number(both(int(x.value), int(y.value)))
    if x == Number(neutral):
        return y
    return x if y == Number(neutral) else Binary(name, x, y, i64)
