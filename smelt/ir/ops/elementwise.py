"""Elementwise ops: one row each. Functions of floats are computed in double and rounded once."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.dtype import Array
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef

FLOAT, COMPLEX, INT, BOOL = (
    frozenset({"float"}),
    frozenset({"complex"}),
    frozenset({"int", "uint"}),
    frozenset({"bool"}),
)


def unary(name: str, kinds: frozenset[str], fn: Callable[[Array], Array], *attrs: Attr) -> OpDef:
    """A function of one tensor whose result has the operand's type."""

    def infer(call: Call) -> Sequence[Type]:
        operand = call.shape(0)
        call.require(
            operand.dtype.kind in kinds, "", "the element type is not allowed", expected=sorted(kinds), got=operand
        )
        return [operand]

    def meaning(_: Frame, op: Op, x: Array) -> Array:
        return fn(x.astype(op.results[0].shape.element.wide)).astype(x.dtype)

    return OpDef(f"stablehlo.{name}", "operand", infer, meaning, attrs, elementwise=True)


ROWS = [unary("cosine", FLOAT | COMPLEX, np.cos)]
