"""Bounded constant folding: an op on constants is evaluated by its reference semantics if the result is small."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.errors import SmeltError
from smelt.ir.attributes import Constant
from smelt.ir.core import Func, Op, Program, Region, Value, find_captures, walk
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit, has_effect
from smelt.shape import Shape

LIMIT = 1024  # bytes of a folded constant
MOST = 1 << 20  # bytes of the operands of a folded op; a splat constant counts with all its elements
NEVER = ("stablehlo.constant", "stablehlo.iota", "stablehlo.rng", "stablehlo.while", "stablehlo.composite", "func.call")


def fold_constants(edit: Edit) -> int:
    """Replace ops on constants by constants; returns the number of ops replaced."""
    count = 0
    for op in list(edit.ops()):
        if op in edit and _can_fold(edit, op):
            values = _compute(edit, op)
            if values is not None:
                for old, new in zip(op.results, values, strict=True):
                    edit.replace(old, new)
                edit.erase_if_dead(op)
                count += 1
    return count


def _can_fold(edit: Edit, op: Op) -> bool:
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
    return not find_captures(*op.regions) and not any(map(_has_loop, op.regions))


def _has_loop(region: Region) -> bool:
    """Whether a region may not terminate."""
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
        return None  # it fails at run time instead, with the user's location
    builder = edit.before(op)
    return [
        builder.op("stablehlo.constant", value=Constant.of(np.array(array), value.shape.dtype)).result
        for value, array in zip(op.results, results, strict=True)
    ]
