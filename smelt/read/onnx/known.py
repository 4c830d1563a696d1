"""Constant folding at import: values that depend on constants and weights only are computed.

`read.onnx.graph` calls it when an operator needs the values of a compile-time input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from smelt.dtype import Array
from smelt.ir.core import Func, Op, Program, Region, Value, used_values
from smelt.ir.interpret import run
from smelt.ir.rewrite import has_effect
from smelt.shape import Shape
from smelt.weights import Stored

_MOST_ELEMENTS = 1 << 26  # of a tensor that is computed at import


@dataclass(slots=True)
class Missing:
    """Why a value is not known at import: inputs of the model whose values it needs, or dynamic dimensions."""

    inputs: set[str] = field(default_factory=set)
    sizes: bool = False


def evaluate(
    value: Value, inputs: Mapping[Value, str], weights: Mapping[Value, Stored], functions: Iterable[Func]
) -> Array | Missing:
    """The elements of a value, or why they are not known; `functions`: what the program may call."""
    missing = Missing()
    ops, leaves = _leaves_of(value, inputs, missing)
    if not value.shape.is_static or any(_is_large(result) for op in ops for result in op.results):
        return missing
    if missing.inputs or missing.sizes or any(has_effect(op) for op in ops):
        return missing
    if any(leaf not in weights for leaf in leaves):
        return missing
    region = Region(tuple(leaves), tuple(ops), (value,))
    array: Array = run(Program.of(Func("constant", region), *functions), [weights[leaf].load() for leaf in leaves])[0]
    return array


def _leaves_of(value: Value, inputs: Mapping[Value, str], missing: Missing) -> tuple[list[Op], list[Value]]:
    """The ops that make a value, in order, and the arguments they start from; inputs of the model go into `missing`."""
    order: list[Op] = []
    leaves: dict[Value, None] = {}
    done: set[Op] = set()
    stack: list[tuple[Op | None, Value]] = [(None, value)]
    while stack:
        finished, current = stack.pop()
        if finished is not None:
            if finished not in done:
                done.add(finished)
                order.append(finished)
            continue
        op = current.op
        if op is None:
            if current in inputs:
                missing.inputs.add(inputs[current])
            leaves[current] = None
        elif op.name == "stablehlo.get_dimension_size":
            missing.sizes = True  # of a value that is not needed itself; a known size would be a constant
        elif op not in done:
            stack.append((op, current))
            stack += [(None, v) for v in used_values(op)]
    return order, list(leaves)


def _is_large(value: Value) -> bool:
    count = value.shape.count if isinstance(value.type, Shape) else 0
    return not isinstance(count, int) or count > _MOST_ELEMENTS
