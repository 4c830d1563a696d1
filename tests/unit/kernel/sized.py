"""StableHLO over dynamic dimensions, written shortly: `f32[N - 1, 4]` stands for a tensor type with its sizes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from smelt.dtype import Array
from smelt.ir.core import Program
from smelt.ir.text import parse
from tests.unit.kernel.agreement import draw

_TYPE = re.compile(r"\b(f32|f64|bf16|i1|i8|i32|i64|ui8|ui32|ui64|complex<f32>)\[([^\]]*)\]")


def types(text: str) -> str:
    """The text with tensor types in MLIR's own form; `N|M` is a quotient."""

    def tensor(match: re.Match[str]) -> str:
        element, sizes = match[1], [size.strip() for size in re.split(r",(?![^(]*\))", match[2]) if size.strip()]
        dims = "".join(f"{size}x" if size.isdigit() else "?x" for size in sizes)
        exact = ", ".join(sizes).replace("|", " floordiv ")
        return f"tensor<{dims}{element}{f', #smelt.sizes<{exact}>' if '?' in dims else ''}>"

    return _TYPE.sub(tensor, text)


def program(*arguments: str, body: str, results: Sequence[str]) -> Program:
    """A program over arguments %0, %1 … of these types; the results are %r, or %r#0, %r#1 …"""
    head = ", ".join(f"%{i}: {each}" for i, each in enumerate(arguments))
    names = ["%r"] if len(results) == 1 else [f"%r#{i}" for i in range(len(results))]
    listed = ", ".join(results)
    return parse(types(f"func.func @main({head}) -> ({listed}) {{\n{body}\nreturn {', '.join(names)} : {listed}\n}}"))


def inputs(source: Program, sizes: Mapping[str, int], random: np.random.Generator) -> list[Array]:
    """Small random numbers for every argument of a program; indices are among them."""
    shapes = [arg.shape for arg in source.main.args]
    return [draw(random, str(shape.dtype), *shape.numbers(dict(sizes)), few=True) for shape in shapes]
