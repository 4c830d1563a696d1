"""What small integer tensors of sizes are, as polynomials: a partial evaluator over the ops that shape code is made of.

A value → its elements as sizes, so far as they trace back to constants and to dimensions of other
values. The rules of `dynamic_*` ops call it to prove the sizes of their results. It never recurses: chains may be long.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from smelt.dim import Size, at_most, floordiv, maximum, minimum, mod
from smelt.dtype import Array, DType, integer_range
from smelt.errors import ShapeError
from smelt.ir.attributes import Constant
from smelt.ir.core import Op, Value
from smelt.shape import Shape

_MOST = 1024  # elements of a tensor that is still looked at
_BUDGET = 1 << 20  # values that one question may visit

Known: TypeAlias = Size | None  # None: this element is not known
Elements: TypeAlias = Array  # of objects, each one Known, in the tensor's shape
_Rule: TypeAlias = Callable[..., Elements | None]


def trace(value: Value) -> tuple[Size, ...] | None:
    """The elements of an integer tensor in row-major order, if every one of them is known."""
    found = trace_each(value)
    return None if found is None or None in found else found  # type: ignore[return-value]


def trace_each(value: Value) -> tuple[Known, ...] | None:
    """The same with None for each element that is not known; None for a value that is no small integer tensor."""
    if not _is_small(value):
        return None
    memo: dict[Value, Elements] = {}
    stack = [value]
    while stack:
        current = stack[-1]
        if current in memo:
            stack.pop()
            continue
        op = current.op
        rule = None if op is None else _RULES.get(op.name)
        if op is None or rule is None or len(memo) > _BUDGET:
            memo[current] = _unknown(current)
            continue
        needed = [operand for operand in _inspect(op) if operand not in memo and _is_small(operand)]
        if needed:
            stack.extend(needed)
            continue
        inputs = [memo.get(operand, _NOTHING) for operand in _inspect(op)]
        memo[current] = _apply(rule, op, current, inputs)
    return tuple(memo[value].reshape(-1).tolist())


_NOTHING: Elements = np.empty(0, object)


def _is_small(value: Value) -> bool:
    shape = value.type
    if not isinstance(shape, Shape) or not shape.is_static or not isinstance(shape.dtype, DType):
        return False
    count = 1
    for size in shape.sizes:
        count *= size  # type: ignore[assignment]
        if count > _MOST:
            return False
    return shape.rank <= 8 and (shape.dtype.is_integer or shape.dtype.kind == "bool")


def _inspect(op: Op) -> tuple[Value, ...]:
    return () if op.name == "stablehlo.get_dimension_size" else op.operands


def _unknown(value: Value) -> Elements:
    return np.full(value.shape.numbers(), None, object)


def _apply(rule: _Rule, op: Op, value: Value, inputs: list[Elements]) -> Elements:
    """What the rule says, cut down to what the element type can hold; sizes that outgrow `smelt.dim` are not known."""
    if any(elements is _NOTHING for elements in inputs):
        return _unknown(value)
    try:
        found = rule(op, *inputs)
    except ShapeError:
        return _unknown(value)
    sizes = value.shape.numbers()
    if found is None or found.shape != sizes:
        return _unknown(value)
    low, high = integer_range(value.shape.element)
    flat = [None if isinstance(each, int) and not low <= each <= high else each for each in found.reshape(-1).tolist()]
    return _array(flat, sizes)


def _array(flat: list[Any], sizes: tuple[int, ...]) -> Elements:
    result = np.empty(len(flat), object)
    result[:] = flat
    return result.reshape(sizes)


# ---- rules: elements of the operands → elements of the result ----


def _constant(op: Op) -> Elements | None:
    value = op.attrs.get("value")
    if not isinstance(value, Constant):
        return None
    return _array([int(each) for each in value.array.reshape(-1)], value.array.shape)


def _get_dimension_size(op: Op) -> Elements | None:
    return _array([op.operands[0].shape.sizes[op.attrs["dimension"]]], ())


def _iota(op: Op) -> Elements | None:
    sizes = op.results[0].shape.numbers()
    flat = np.indices(sizes)[op.attrs["iota_dimension"]].reshape(-1)
    return _array([int(each) for each in flat], sizes)


def _convert(op: Op, operand: Elements) -> Elements | None:
    if op.results[0].shape.element.kind == "bool":
        return None
    return operand


def _reshape(op: Op, operand: Elements, *_: Elements) -> Elements | None:
    return operand.reshape(op.results[0].shape.numbers())


def _concatenate(op: Op, *inputs: Elements) -> Elements | None:
    return np.concatenate(inputs, axis=op.attrs["dimension"])


def _slice(op: Op, operand: Elements) -> Elements | None:
    names = ("start_indices", "limit_indices", "strides")
    return operand[tuple(slice(*bounds) for bounds in zip(*(op.attrs[name] for name in names), strict=True))]


def _dynamic_slice(op: Op, operand: Elements, *starts: Elements) -> Elements | None:
    window = []
    for start, size, most in zip(starts, op.attrs["slice_sizes"], operand.shape, strict=True):
        at = start.item()
        if not isinstance(at, int):
            return None
        at = min(max(at, 0), most - size)
        window.append(slice(at, at + size))
    return operand[tuple(window)]


def _broadcast_in_dim(op: Op, operand: Elements, *_: Elements) -> Elements | None:
    sizes, dims = op.results[0].shape.numbers(), op.attrs["broadcast_dimensions"]
    spread = [1] * len(sizes)
    for size, dim in zip(operand.shape, dims, strict=True):
        spread[dim] = size
    order = sorted(range(len(dims)), key=lambda i: dims[i])
    return np.broadcast_to(operand.transpose(order).reshape(spread), sizes)


def _transpose(op: Op, operand: Elements) -> Elements | None:
    return operand.transpose(op.attrs["permutation"])


def _reverse(op: Op, operand: Elements) -> Elements | None:
    return np.flip(operand, op.attrs["dimensions"])


def _each(fn: Callable[..., Known]) -> _Rule:
    """An elementwise rule from a function of known elements."""

    def rule(_: Op, *operands: Elements) -> Elements | None:
        if all(each.shape == () for each in operands):
            row = [each.item() for each in operands]
            return _array([None if None in row else fn(*row)], ())
        spread = np.broadcast_arrays(*operands)  # the bounds of a clamp may be scalars
        rows = zip(*(each.reshape(-1).tolist() for each in spread), strict=True)
        return _array([None if None in row else fn(*row) for row in rows], spread[0].shape)

    return rule


def _divide(a: Size, b: Size) -> Known:
    """Rounded towards zero, which is down where nothing is negative."""
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
    return floordiv(a, b) if b != 0 and at_most(0, a) and at_most(0, b) else None


def _remainder(a: Size, b: Size) -> Known:
    if isinstance(a, int) and isinstance(b, int):
        return None if b == 0 else abs(a) % abs(b) * (-1 if a < 0 else 1)
    return mod(a, b) if b != 0 and at_most(0, a) and at_most(0, b) else None


def _sign(a: Size) -> Known:
    if isinstance(a, int):
        return (a > 0) - (a < 0)
    return 1 if at_most(1, a) else None


def _abs(a: Size) -> Known:
    if isinstance(a, int):
        return abs(a)
    return a if at_most(0, a) else -a if at_most(a, 0) else None


def _power(a: Size, b: Size) -> Known:
    if not isinstance(b, int) or not 0 <= b <= 64:
        return None
    return a**b


def _select(op: Op, predicate: Elements, on_true: Elements, on_false: Elements) -> Elements | None:
    """Element by element; an unknown predicate does no harm where both sides agree."""
    spread = np.broadcast_arrays(predicate, on_true, on_false)
    flat = []
    for chosen, a, b in zip(*(each.reshape(-1).tolist() for each in spread), strict=True):
        flat.append((a if a == b else None) if chosen is None else a if chosen else b)
    return _array(flat, spread[1].shape)


_LESS: Mapping[str, tuple[int, bool]] = MappingProxyType(
    # direction → (what is added to the left side, whether the sides swap) so that `left + added <= right` says it
    {"LE": (0, False), "LT": (1, False), "GE": (0, True), "GT": (1, True)}
)


def _compare(op: Op, lhs: Elements, rhs: Elements) -> Elements | None:
    direction = op.attrs["comparison_direction"]

    def holds(a: Size, b: Size) -> Known:
        if direction in ("EQ", "NE"):
            if a == b:
                return int(direction == "EQ")
            never = isinstance(a - b, int) or at_most(a + 1, b) or at_most(b + 1, a)
            return int(direction == "NE") if never else None
        added, swapped = _LESS[direction]
        left, right = (b, a) if swapped else (a, b)
        if at_most(left + added, right):
            return 1
        return 0 if at_most(right + 1, left + added) else None

    return _each(holds)(op, lhs, rhs)


def _logic(on_bools: Callable[..., Known]) -> _Rule:
    """A rule for booleans only: bits of a size are not sizes."""

    def rule(op: Op, *operands: Elements) -> Elements | None:
        if op.results[0].shape.element.kind != "bool":
            return None
        return _each(on_bools)(op, *operands)

    return rule


_RULES: Mapping[str, _Rule] = MappingProxyType(
    {
        "stablehlo.constant": _constant,
        "stablehlo.get_dimension_size": _get_dimension_size,
        "stablehlo.iota": _iota,
        "stablehlo.convert": _convert,
        "stablehlo.reshape": _reshape,
        "stablehlo.dynamic_reshape": _reshape,
        "stablehlo.concatenate": _concatenate,
        "stablehlo.slice": _slice,
        "stablehlo.dynamic_slice": _dynamic_slice,
        "stablehlo.broadcast_in_dim": _broadcast_in_dim,
        "stablehlo.dynamic_broadcast_in_dim": _broadcast_in_dim,
        "stablehlo.transpose": _transpose,
        "stablehlo.reverse": _reverse,
        "stablehlo.add": _each(lambda a, b: a + b),
        "stablehlo.subtract": _each(lambda a, b: a - b),
        "stablehlo.multiply": _each(lambda a, b: a * b),
        "stablehlo.divide": _each(_divide),
        "stablehlo.remainder": _each(_remainder),
        "stablehlo.maximum": _each(maximum),
        "stablehlo.minimum": _each(minimum),
        "stablehlo.clamp": _each(lambda low, x, high: minimum(maximum(x, low), high)),
        "stablehlo.negate": _each(lambda a: -a),
        "stablehlo.abs": _each(_abs),
        "stablehlo.sign": _each(_sign),
        "stablehlo.power": _each(_power),
        "stablehlo.select": _select,
        "stablehlo.compare": _compare,
        "stablehlo.and": _logic(lambda a, b: a & b),
        "stablehlo.or": _logic(lambda a, b: a | b),
        "stablehlo.not": _logic(lambda a: 1 - a),
    }
)
