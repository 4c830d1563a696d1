"""Parameters that reach the loss only through ops without a slope (argmax, round): they would never train."""

from __future__ import annotations

from collections.abc import Mapping

from smelt.errors import ShapeError
from smelt.ir.core import Op, Value
from smelt.tensor.core import Tensor
from smelt.tensor.record import collect


def refuse_dead_paths(loss: Tensor, parameters: Mapping[str, Tensor], slopes: Mapping[str, Tensor]) -> None:
    """Refuse a parameter that the loss uses while its gradient is zero for all values.

    One that the loss does not use, or behind `smelt.stop_gradient`, is left as it is.
    """
    zero = [name for name, slope in slopes.items() if _is_zero(slope.value)]
    if not zero:
        return
    ops, used = collect([loss.value])
    if any(op.name == "stablehlo.composite" and op.attrs["name"] == "smelt.stop_gradient" for op in ops):
        return
    for name in zero:
        if parameters[name].value in used:
            raise ShapeError(
                f"the loss depends on the parameter {name} only through ops whose derivative is zero",
                expected="a differentiable path from the parameter to the loss",
                got=_flat_ops(ops),
                remedy="x + smelt.stop_gradient(x.round() - x) lets the gradient through, or leave the parameter out",
            )


def _is_zero(value: Value) -> bool:
    """Whether a value is a constant of zeros."""
    op = value.op
    while op is not None and op.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape", "stablehlo.convert"):
        op = op.operands[0].op
    return op is not None and op.name == "stablehlo.constant" and not op.attrs["value"].array.any()


_FLAT = frozenset(f"stablehlo.{name}" for name in ("round_nearest_even", "round_nearest_afz", "floor", "ceil", "sign"))


def _flat_ops(ops: list[Op]) -> str:
    """The ops that have no slope, or make integers and booleans of floats, with their places."""
    found = [op for op in ops if op.name in _FLAT or _leaves_floats(op)]
    shown = [f"{op.name.removeprefix('stablehlo.')} at {op.location}" for op in found[:3]]
    return ", ".join(shown) or "no such path"


def _leaves_floats(op: Op) -> bool:
    before, after = ([value.shape.element.is_float for value in values] for values in (op.operands, op.results))
    return any(before) and not all(after)
