"""Loop IR as text, one line per statement. `smelt show --stage loops` prints it.

    for i < 64 on cores: …      while: head; until not c; body     if c: … else: …
    let x = e   var x = e   x := e       local t[384] of f32   t[i] := e       b0[i] := e      (b0: buffer 0)
    s = add over k < n from e: … give e            tile[rows] = sum over k < n of b0[…] * b1[…]        fail 3 (e, …)

Types are shown where they are neither i64 nor those of the arguments: `f16(x)`, `bits f32(x)`, `b0[i] f32`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size
from smelt.kernel.loops.grammar import (
    Affine,
    Amount,
    Apply,
    Bitcast,
    Convert,
    Declare,
    Expr,
    Fail,
    Fold,
    For,
    If,
    Let,
    Load,
    LoadLocal,
    Local,
    Mma,
    Number,
    Quotient,
    Remainder,
    Set,
    Stmt,
    Store,
    StoreLocal,
    Transpose,
    Var,
    While,
)
from smelt.kernel.plan.plan import Kernel

_LEVELS = {"serial": "", "ordered": " in order", "core": " on cores", "lane": " on lanes"}


def kernel_text(kernel: Kernel) -> str:
    """A kernel's loops."""
    return "\n".join(lines(kernel.body))


def lines(statements: Sequence[Stmt], depth: int = 0) -> list[str]:
    """Statements as lines, indented by depth."""
    return [line for each in statements for line in _statement(each, "  " * depth, depth + 1)]


def _statement(stmt: Stmt, pad: str, inside: int) -> list[str]:
    match stmt:
        case For(var, extent, body, level):
            return [f"{pad}for {var.name} < {text(extent)}{_LEVELS[level]}:", *lines(body, inside)]
        case While(head, condition, body):
            until = f"{pad}  until not {text(condition)}"
            return [f"{pad}while:", *lines(head, inside), until, *lines(body, inside)]
        case If(condition, then, otherwise):
            other = [f"{pad}else:", *lines(otherwise, inside)] if otherwise else []
            return [f"{pad}if {text(condition)}:", *lines(then, inside), *other]
        case Let(var, value):
            return [f"{pad}let {var.name} = {text(value)}"]
        case Declare(var, value):
            return [f"{pad}var {var.name} = {text(value)}"]
        case Set(var, value):
            return [f"{pad}{var.name} := {text(value)}"]
        case Store(buffer, index, value):
            return [f"{pad}b{buffer}[{text(index)}] := {text(value)}"]
        case Local(name, dtype, count):
            return [f"{pad}local {name}[{count}] of {dtype}"]
        case StoreLocal(array, index, value):
            return [f"{pad}{array}[{text(index)}] := {text(value)}"]
        case Transpose(target, source, rows, columns):
            return [f"{pad}{target}[j, i] := {source}[i < {rows}, j < {columns}]"]
        case Fold(var, extent, body, value, total, function, start):
            first = f"{pad}{total.name} = {function} over {var.name} < {text(extent)} from {text(start)}:"
            return [first, *lines(body, inside), f"{pad}  give {text(value)}"]
        case Mma():
            return [pad + _mma(stmt)]
        case Fail(status, values):
            return [f"{pad}fail {status} ({', '.join(map(text, values))})"]


def _mma(stmt: Mma) -> str:
    """i counts the tile's rows, j its columns."""
    taps = stmt.taps not in (Number(1), Amount(1))
    a = _sum(
        stmt.a_index,
        _steps("i", stmt.a_row_stride),
        *([_steps("tap", stmt.a_tap_stride)] if taps else []),
        _steps("k", stmt.a_stride),
    )
    line, at = ("k", "j") if stmt.k_pack == 1 else (f"k//{stmt.k_pack}", f"{stmt.k_pack}*j + k%{stmt.k_pack}")
    b = _sum(stmt.b_index, _steps(line, stmt.b_stride), at)
    over = (f"tap < {text(stmt.taps)}, " if taps else "") + f"k < {text(stmt.extent)}"
    sign = "=" if stmt.accumulate == Number(0) else f"+= (where {text(stmt.accumulate)}, else =)"
    tile = stmt.tile if stmt.tile_offset == Number(0) else f"{stmt.tile}[{text(stmt.tile_offset)}:]"
    factors = f"{_operand(stmt.a)}[{a}] * {_operand(stmt.b)}[{b}]"
    return f"{tile}[i < {text(stmt.rows)}, j] {sign} sum over {over} of {factors}"


def _operand(operand: int | str) -> str:
    return operand if isinstance(operand, str) else f"b{operand}"


def _steps(name: str, stride: Expr) -> str:
    return name if stride in (Number(1), Amount(1)) else f"{name}*{_tight(stride)}"


def _sum(first: Expr, *parts: str) -> str:
    return " + ".join(parts if first in (Number(0), Amount(0)) else (text(first), *parts))


def text(expr: Expr) -> str:
    """An expression."""
    match expr:
        case Var(name):
            return name
        case Number(value, dtype):
            return f"{value}" if dtype.is_integer or dtype.kind == "bool" else f"{value!r} {dtype}"
        case Amount(size):
            return _size(size)
        case Affine(terms, constant):
            parts = [_times(atom, coefficient) for atom, coefficient in terms]
            return " + ".join([*parts, *([_size(constant)] if constant != 0 else [])]).replace("+ -", "- ")
        case Quotient(x, size):
            return f"{_tight(x)} // {_size(size)}"
        case Remainder(x, size):
            return f"{_tight(x)} % {_size(size)}"
        case Load(buffer, index, dtype):
            return f"b{buffer}[{text(index)}] {dtype}"
        case LoadLocal(array, index):
            return f"{array}[{text(index)}]"
        case Apply(function, args, _, detail):
            return f"{function}({', '.join([*map(text, args), *map(str, detail)])})"
        case Convert(x, dtype):
            return f"{dtype}({text(x)})"
        case Bitcast(x, dtype):
            return f"bits {dtype}({text(x)})"


def _times(atom: Expr, coefficient: Size) -> str:
    return text(atom) if coefficient == 1 else f"{_tight(atom)}*{_size(coefficient)}"


def _tight(expr: Expr) -> str:
    """An expression in parentheses where a product needs them."""
    return f"({text(expr)})" if isinstance(expr, Affine | Quotient | Remainder) else text(expr)


def _size(size: Size) -> str:
    shown = str(size)
    return f"({shown})" if " " in shown else shown
