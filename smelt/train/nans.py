"""Where a number that is not finite comes from: the first op of a program that makes one of finite operands.

In: the program of a training step and its arguments, of the step that went wrong. Out: the op, its place in the
user's file and what it gave. `Trainer` asks with `debug_nans=True`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from smelt.dtype import Array, DType
from smelt.ir.core import Op, Program, Region, Value
from smelt.ir.interpret import run
from smelt.passes.inline import inline
from smelt.shape import Shape


@dataclass(frozen=True, slots=True)
class Culprit:
    """An argument or the result of an op that is not finite."""

    name: str
    where: Any
    got: str

    def __str__(self) -> str:
        return f"{self.name}: {self.got}" + (f", at {self.where}" if self.where else "")


def find_nan(program: Program, names: Sequence[str], arrays: Sequence[Array]) -> Culprit | None:
    """The first argument that is not finite; else the first op, in order, that makes such a number of finite ones."""
    for name, array in zip(names, arrays, strict=True):
        if text := _describe(array):
            return Culprit(name, None, text)
    plain = inline(program)
    main = plain.main
    makers = [op for op in main.body.ops if any(_is_float(value) for value in op.results)]
    values = tuple(value for op in makers for value in op.results if _is_float(value))
    body = Region(main.args, main.body.ops, values)
    watched = replace(main, body=body, result_attrs=(), arg_attrs=())
    made = dict(zip(values, run(plain.replace(watched), list(arrays)), strict=True))
    for op in makers:
        bad = next((text for value in op.results if value in made and (text := _describe(made[value]))), "")
        if bad and op.name != "stablehlo.constant" and not any(_describe(_value_of(made, x)) for x in op.operands):
            return Culprit(_name(op), op.location, bad)
    return None


def _is_float(value: Value) -> bool:
    return isinstance(value.type, Shape) and isinstance(value.type.dtype, DType) and value.type.dtype.kind == "float"


def _value_of(made: dict[Value, Any], value: Value) -> Array:
    return np.asarray(made.get(value, 0.0))


def _name(op: Op) -> str:
    hint = next((value.name for value in op.results if value.name), "")
    return op.name.removeprefix("stablehlo.") + (f" %{hint}" if hint else "")


def _describe(array: Any) -> str:
    """How many elements are not finite, or nothing."""
    x = np.asarray(array)
    if x.dtype.kind in "biu" or not x.size:
        return ""
    wide = x.astype(np.float64)
    counts = {"nan": int(np.isnan(wide).sum()), "infinite": int(np.isinf(wide).sum())}
    parts = [f"{count} {what}" for what, count in counts.items() if count]
    return f"{' and '.join(parts)} of {x.size} elements" if parts else ""
