"""Programs of one op, from a short description: for tables of what ops refuse."""

from __future__ import annotations

from smelt.ir.core import Program
from smelt.ir.text.parser import parse

# Element types that tables name: i8 as f32, per tensor and per axis 0 or 1.
Q = "!quant.uniform<i8:f32,0.5:3>"
Q0 = "!quant.uniform<i8:f32,0.5>"
QA = "!quant.uniform<i8:f32:0,{0.5,0.25}>"
QB = "!quant.uniform<i8:f32:1,{0.5,0.25}>"


def typed(word: str) -> str:
    """`2xf32` is short for `tensor<2xf32>`; types that are no tensors stand for themselves."""
    is_whole = word.startswith(("!stablehlo", "tuple<", "tensor<"))
    return "!stablehlo.token" if word == "token" else word if is_whole else f"tensor<{word}>"


def one_op(name: str, takes: str, gives: str, attrs: str = "", regions: str = "") -> Program:
    """`name` on arguments of the types `takes`, with the results `gives`; both separated by spaces."""
    operands, results = ([typed(word) for word in words.split()] for words in (takes, gives))
    args = ", ".join(f"%arg{i}: {type}" for i, type in enumerate(operands))
    left = ", ".join(f"%r{i}" for i in range(len(results)))
    used = ", ".join(f"%arg{i}" for i in range(len(operands)))
    types = f"({', '.join(operands)}) -> ({', '.join(results)})"
    inner = f" ({regions})" if regions else ""
    line = f'{left + " = " if left else ""}"{name}"({used}){inner} {{{attrs}}} : {types}'
    return parse(f"func.func @main({args}) {{\n  {line}\n  return\n}}\n")


def body(takes: str, gives: str, ops: str = "") -> str:
    """A region that returns its first arguments, or what `ops` define: `gives` is `%0: 2xf32, …` or types alone."""
    args = ", ".join(f"%a{i}: {typed(word)}" for i, word in enumerate(takes.split()))
    results = [typed(word) for word in gives.split()]
    names = ", ".join(f"%{'v' if ops else 'a'}{i}" for i in range(len(results)))
    returned = f'"stablehlo.return"({names}) : ({", ".join(results)}) -> ()'
    return f"{{\n^bb0({args}):\n {ops}\n {returned}\n}}" if args else f"{{\n {ops}\n {returned}\n}}"
