"""The cotangent of softmax from its result alone: y * (g - sum(g * y)), found where `exp(x - m) / sum` is divided.

Differentiated op by op, exponentials, their sum and the maximum would be kept and read again. Softmax does not depend
on m where m is the same along the axes of the sum, so nothing is added to its cotangent.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.ir.core import Op, Value
from smelt.ir.grad.reduce import single_op
from smelt.ir.grad.rule import Cotangents, Rule, sum_over
from smelt.ir.grad.sweep import Reverse


def divide_rule(usual: Rule, op: Op) -> Rule:
    """The rule of a division: of softmax where it is one, else the usual."""
    found = find_softmax(op)
    if found is None:
        return usual
    x, axes, inner = found

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        (g,) = cotangents
        assert g is not None
        if not sweep.wanted.isdisjoint(inner):
            sweep.apply(usual, op, cotangents)
            return
        b, y = sweep.b, op.results[0]
        kept = tuple(d for d in range(y.shape.rank) if d not in axes)
        total = sum_over(b, b.multiply(g, y), axes)
        spread = b.broadcast_in_dim(total, broadcast_dimensions=kept, result=y.shape)
        sweep.add(x, b.multiply(b.subtract(g, spread), y))

    return Rule(usual.jvp, vjp)


def find_softmax(op: Op) -> tuple[Value, tuple[int, ...], tuple[Value, ...]] | None:
    """(x, axes of the sum, the values between) of exp(x - m) / sum(exp(x - m)), with m the same along the axes."""
    powers, divisor = op.operands
    below = divisor
    between = [powers, divisor]
    while below.op is not None and below.op.name in ("stablehlo.reshape", "stablehlo.broadcast_in_dim"):
        dims = list(below.op.attrs.get("broadcast_dimensions", ()))
        if dims != sorted(dims):
            return None
        below = below.op.operands[0]
        between.append(below)
    total, made = below.op, powers.op
    if total is None or total.name != "stablehlo.reduce" or made is None or made.name != "stablehlo.exponential":
        return None
    if len(total.results) != 1 or total.operands[0] is not powers or single_op(total.regions[0]) != "add":
        return None
    axes = tuple(sorted(total.attrs["dimensions"]))
    shifted = made.operands[0]
    difference = shifted.op
    if not _is_zero(total.operands[1]) or not _is_same_along(divisor, axes):
        return None
    if (
        difference is None
        or difference.name != "stablehlo.subtract"
        or not _is_same_along(difference.operands[1], axes)
    ):
        return None
    return difference.operands[0], axes, (*between, shifted)


def _is_same_along(value: Value, axes: Sequence[int]) -> bool:
    """Whether a value is broadcast along axes."""
    if value.op is None or value.op.name != "stablehlo.broadcast_in_dim":
        return False
    dims, source = value.op.attrs["broadcast_dimensions"], value.op.operands[0].shape.sizes
    return all(axis not in dims or source[dims.index(axis)] == 1 for axis in axes)


def _is_zero(value: Value) -> bool:
    op = value.op
    return op is not None and op.name == "stablehlo.constant" and not np.any(op.attrs["value"].array)
