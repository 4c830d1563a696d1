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
    Attend,
    Bitcast,
    BlockMma,
    Convert,
    Declare,
    Decode,
    Expr,
    Fail,
    Fold,
    For,
    If,
    Let,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Remainder,
    RoundRow,
    Set,
    Split,
    Stmt,
    Store,
    Tile,
    Transpose,
    Update,
    Var,
    While,
)
from smelt.kernel.plan.plan import Kernel

_LEVELS = {"serial": "", "ordered": " in order"} | {
    level: f" on {level}s" for level in ("core", "lane", "warp", "vector")
}


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
        case Store(place, value):
            return [f"{pad}{_place(place)} := {text(value)}"]
        case Update(place, function, value):
            return [f"{pad}{_place(place)} := {function} of itself and {text(value)}, atomically"]
        case Tile(name, dtype, count, space):
            return [f"{pad}{space} {name}[{count}] of {dtype}"]
        case Transpose(target, source):
            rows, columns = map(text, source.sizes)
            return [f"{pad}{target.place.array}[j, i] := {source.place.array}[i < {rows}, j < {columns}]"]
        case Fold(var, extent, body, value, total, function, start):
            first = f"{pad}{total.name} = {function} over {var.name} < {text(extent)} from {text(start)}:"
            return [first, *lines(body, inside), f"{pad}  give {text(value)}"]
        case Mma():
            return [pad + _mma(stmt)]
        case BlockMma():
            aside = [f"{pad}  aside:", *lines(stmt.aside, inside + 1)] if stmt.aside else []
            return [pad + _block_mma(stmt), *aside]
        case RoundRow(q, scale, total, row, runs, group):
            parts = ", ".join(map(_place, (q, scale, total)))
            return [f"{pad}{parts} := {row.array}, rounded in {runs} runs, totals of {group}"]
        case Attend():
            return _attend(stmt, pad, inside)
        case Decode():
            return _decode(stmt, pad, inside)
        case Fail(status, values):
            return [f"{pad}fail {status} ({', '.join(map(text, values))})"]


def _mma(stmt: Mma) -> str:
    """i counts the tile's rows, j its columns."""
    (rows, *taps, extent), (row, *tap, k), pack = stmt.a.sizes, stmt.a.strides, stmt.form.k_pack
    each_tap = [*zip(("line", "tap")[-len(taps) :], taps, tap, strict=True)]
    counted = [(name, count, step) for name, count, step in each_tap if count not in (Number(1), Amount(1))]
    more = [_steps(name, step) for name, _, step in counted]
    a = _sum(stmt.a.place.index, _steps("i", row), *more, _steps("k", k))
    line, at = ("k", "j") if pack == 1 else (f"k//{pack}", f"{pack}*j + k%{pack}")
    *panels, b_stride, _ = stmt.b.strides
    b = _sum(stmt.b.place.index, *(_steps("panel", each) for each in panels), _steps(line, b_stride), at)
    over = "".join(f"{name} < {text(count)}, " for name, count, _ in counted) + f"k < {text(extent)}"
    match stmt.accumulate:
        case Split(number, count):
            sign = f"= part {text(number)} of {text(count)} of the"
        case other:
            sign = "=" if other == Number(0) else f"+= (where {text(other)}, else =)"
    place = stmt.acc.place
    tile = f"{place.array}" if place.index == Number(0) else f"{place.array}[{text(place.index)}:]"
    *_, width, _ = stmt.acc.strides
    columns = "j" if stmt.acc.sizes[-1] == width else f"j < {text(stmt.acc.sizes[-1])}"
    several = f"panel < {text(stmt.acc.sizes[0])}, " if panels else ""
    factors = f"{_array(stmt.a.place)}[{a}] * {_array(stmt.b.place)}[{b}]"
    return f"{tile}[{several}i < {text(rows)}, {columns}] {sign} {stmt.form.name} sum over {over} of {factors}"


def _block_mma(stmt: BlockMma) -> str:
    """i counts the tile's rows, j its columns."""
    parts = (stmt.q, stmt.scale, stmt.total)
    rows = (f"{_array(each.place)}[{_sum(each.place.index, _steps('i', each.strides[0]))}]" for each in parts)
    panel = f"{text(stmt.panel.sizes[0])} {stmt.format} records at {_place(stmt.panel.place)}"
    return f"{stmt.acc.place.array}[i < {text(stmt.acc.sizes[0])}, j] = ({', '.join(rows)}) * {panel}"


def _attend(stmt: Attend, pad: str, inside: int) -> list[str]:
    """The values of keys by softmax weights; the blocks that it computes with, one after another."""
    row, key, score = stmt.row.name, stmt.key.name, stmt.score.name
    return [
        f"{pad}{stmt.form.name} attention of {row} < {text(stmt.rows)} over {key} < {text(stmt.keys)}:",
        *lines((*stmt.at_row, *stmt.at_key), inside),
        f"{pad}  query {_place(stmt.q)}, key {_place(stmt.k)}, {stmt.depth} each; {stmt.values} of {_place(stmt.v)}",
        *lines(stmt.mask, inside),
        f"{pad}  mask {score} (times {text(stmt.scale)}): give {text(stmt.masked)}",
        *lines(stmt.classify, inside),
        f"{pad}  kind of {stmt.tile} keys from {stmt.start.name} on: give {text(stmt.kind)}",
        *lines(stmt.normalise, inside),
        f"{pad}  factor by {stmt.total.name}: give {text(stmt.factor)}",
        f"{pad}  put {stmt.element.name} of column {stmt.column.name}:"
        if stmt.target is None
        else f"{pad}  put all columns at {_place(stmt.target)}:",
        *lines(stmt.put, inside + 1),
    ]


def _decode(stmt: Decode, pad: str, inside: int) -> list[str]:
    """The same for chunks of keys."""
    row, key, step, score = stmt.row.name, stmt.key.name, stmt.step.name, stmt.score.name
    chunks = f"{text(stmt.count)} chunks from {text(stmt.first)} on, {text(stmt.stride)} apart"
    return [
        f"{pad}attention of {row} < {text(stmt.rows)} over {key} < {text(stmt.keys)} in {chunks}:",
        *lines(stmt.at_query, inside),
        f"{pad}  query {step} < {stmt.depth}: give {text(stmt.query)}",
        *lines(stmt.at_key, inside),
        f"{pad}  key {_place(stmt.k)}, {stmt.depth} each; {stmt.values} of {_place(stmt.v)}",
        *lines(stmt.mask, inside),
        f"{pad}  mask {score}: give {text(stmt.masked)}",
        *(lines(stmt.at_sink, inside) if stmt.share else []),
        *([f"{pad}  {stmt.share} blocks, with {text(stmt.sink)}: give {stmt.total.name}"] if stmt.share else []),
        f"{pad}  put {stmt.element.name} of column {stmt.column.name} of chunk {stmt.chunk.name}:",
        *lines(stmt.put, inside + 1),
    ]


def _array(place: Place) -> str:
    return place.array if isinstance(place.array, str) else f"b{place.array}"


def _place(place: Place) -> str:
    return f"{_array(place)}[{text(place.index)}]"


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
        case Load(place, dtype):
            return _place(place) if isinstance(place.array, str) else f"{_place(place)} {dtype}"
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
