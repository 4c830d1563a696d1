"""Bounded constant folding: an op on constants is computed now, by its own meaning, if the result is small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.errors import SmeltError
from smelt.ir.attributes import Constant
from smelt.ir.core import Func, Op, Program, Region, Value, captured, walk
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit, has_effect
from smelt.shape import Shape

LIMIT = 1024  # bytes: what a constant may weigh inside a program
MOST = 1 << 20  # bytes: the operands of an op that is computed now; a constant of one element may stand for many
NEVER = ("stablehlo.constant", "stablehlo.iota", "stablehlo.rng", "stablehlo.while", "stablehlo.composite", "func.call")


def fold(edit: Edit) -> int:
    """Replace what can be computed now by constants; gives the number of ops replaced."""
    count = 0
    for op in list(edit.ops()):
        if op in edit and _foldable(edit, op):
            values = _compute(edit, op)
            if values is not None:
                for old, new in zip(op.results, values, strict=True):
                    edit.replace(old, new)
                edit.erase_if_dead(op)
                count += 1
    return count


def _foldable(edit: Edit, op: Op) -> bool:
    if op.name in NEVER or has_effect(op):
        return False
    for value in op.results:
        shape = value.type
        if not isinstance(shape, Shape) or not shape.is_static or _bytes(shape) > LIMIT:
            return False
    makers = [edit.maker(operand) for operand in op.operands]
    constants = [maker.results[0].shape for maker in makers if maker is not None and maker.name == "stablehlo.constant"]
    if not makers or len(constants) != len(makers) or sum(map(_bytes, constants)) > MOST:
        return False
    return not captured(op) and not any(map(_loops, op.regions))


def _loops(region: Region) -> bool:
    """Whether running a region may take for ever."""
    return any(op.name == "stablehlo.while" for op in walk(region))


def _bytes(shape: Shape) -> int:
    count = 1
    for size in shape.numbers():
        count *= size
    return count * shape.dtype.numpy.itemsize


def _compute(edit: Edit, op: Op) -> Sequence[Value] | None:
    """Run the op on its constants, in a function of its own."""
    operands = edit.operands(op)
    args = [operand.op.attrs["value"].array for operand in operands if operand.op is not None]
    inputs = tuple(Value(operand.type, None, i) for i, operand in enumerate(operands))
    alone = Op(op.name, inputs, [value.type for value in op.results], op.attrs, op.regions, op.location)
    func = Func("main", Region(inputs, (alone,), alone.results))
    try:
        results = run(Program.of(func), args)
    except SmeltError:
        return None  # it fails when it runs, with the user's own location; nothing is lost by leaving it
    builder = edit.before(op)
    return [
        builder.op("stablehlo.constant", value=Constant.of(np.array(array), value.shape.dtype)).result
        for value, array in zip(op.results, results, strict=True)
    ]
