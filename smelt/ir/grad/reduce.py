"""Derivatives of reductions. A sum is linear, a maximum chooses (ties share, as in JAX), any other body is a scan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.dim import product
from smelt.ir.build import Builder
from smelt.ir.core import Op, Region, Value
from smelt.ir.grad.rule import Cotangents, Rule, cast, refuse, sum_over
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.ir.ops import OPS
from smelt.shape import Shape


def single_op(region: Region) -> str:
    """The name of the one op on both arguments that a binary body consists of; empty for any other body."""
    if len(region.ops) != 1 or len(region.args) != 2:
        return ""
    (op,) = region.ops
    same = op.operands in (region.args, region.args[::-1]) and region.results == op.results
    return op.name.removeprefix("stablehlo.") if same else ""


def vectorise(b: Builder, region: Region, operands: Sequence[Value], op: Op) -> list[Value]:
    """A body over scalars, on tensors of one shape."""
    sizes = operands[0].shape.sizes
    values = dict(zip(region.args, operands, strict=True))
    for each in region.ops:
        if each.regions or not OPS[each.name].elementwise:
            refuse(op, f"its body has a {each.name}, which is not elementwise")
        inputs = [_spread(b, values.get(value, value), sizes) for value in each.operands]
        types = [Shape.of(value.shape.dtype, sizes) for value in each.results]
        if each.name in ("stablehlo.constant", "chlo.constant"):
            made = b.op(each.name, **dict(each.attrs)).results
        else:
            made = b.op(each.name, *inputs, result=types, **dict(each.attrs)).results
        values.update(zip(each.results, made, strict=True))
    return [_spread(b, values.get(value, value), sizes) for value in region.results]


def _spread(b: Builder, value: Value, sizes: Sequence[object]) -> Value:
    shape = Shape.of(value.shape.dtype, sizes)  # type: ignore[arg-type]
    return value if value.shape == shape else b.broadcast_in_dim(value, broadcast_dimensions=(), result=shape)


_MOVES = frozenset(f"stablehlo.{name}" for name in ("broadcast_in_dim", "reshape", "convert", "optimization_barrier"))

# ---- reduce ----


def lay_along(b: Builder, value: Value, axes: Sequence[int], shape: Shape) -> Value:
    """A reduced value back in the shape it was reduced from."""
    kept = tuple(d for d in range(shape.rank) if d not in axes)
    result = Shape.of(value.shape.dtype, shape.sizes)
    return b.broadcast_in_dim(value, broadcast_dimensions=kept, result=result)


def _reduce_jvp(sweep: Forward, op: Op) -> None:
    b, body, axes = sweep.b, op.regions[0], op.attrs["dimensions"]
    kind = single_op(body)
    x, init = op.operands[0], op.operands[1]
    result = op.results[0]
    tangent, start = sweep.tangent(x), sweep.tangent(init)
    if kind == "add":
        terms = [] if tangent is None else [sum_over(b, cast(b, tangent, result.shape), axes)]
        if start is not None:
            terms.append(b.broadcast_in_dim(cast(b, start, result.shape), broadcast_dimensions=(), result=result.type))
        sweep.put(result, sweep.total(terms))
        return
    # A maximum or minimum: the mean of the tangents where the operand is the result.
    wide = cast(b, x, result.shape)
    chosen = b.compare(wide, lay_along(b, result, axes, x.shape), comparison_direction="EQ")
    share = b.convert(chosen, result=wide.shape)
    count = sum_over(b, share, axes)
    first: Value | None = None
    if not is_neutral(init, kind):
        spread = b.broadcast_in_dim(cast(b, init, result.shape), broadcast_dimensions=(), result=result.type)
        first = b.convert(b.compare(spread, result, comparison_direction="EQ"), result=result.shape)
        count = b.add(count, first)
    terms = []
    if tangent is not None:
        terms.append(sum_over(b, b.multiply(cast(b, tangent, result.shape), share), axes))
    if start is not None and first is not None:
        wide = b.broadcast_in_dim(cast(b, start, result.shape), broadcast_dimensions=(), result=result.type)
        terms.append(b.multiply(wide, first))
    total = sweep.total(terms)
    sweep.put(result, None if total is None else b.divide(total, count))


def is_neutral(init: Value, kind: str) -> bool:
    """Whether an initial value is the smallest (of a maximum) or largest number."""
    made = init.op
    while made is not None and made.name in _MOVES:
        made = made.operands[0].op
    if made is None or made.name != "stablehlo.constant":
        return False
    number = float(np.asarray(made.attrs["value"].array).reshape(()).astype(np.float64))
    return bool(number == (-np.inf if kind == "maximum" else np.inf))


def _reduce_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """Of a sum."""
    (g,) = cotangents
    assert g is not None
    x, init = op.operands
    if sweep.wants(x):
        sweep.add(x, lay_along(sweep.b, cast(sweep.b, g, x.shape), op.attrs["dimensions"], x.shape))
    if sweep.wants(init):
        sweep.add(init, cast(sweep.b, sum_over(sweep.b, g, range(g.shape.rank)), init.shape))


def _reduce_as_scan(b: Builder, op: Op) -> Sequence[Value]:
    """Any body: a scan over the reduced elements, vectorised over all others."""
    count = len(op.results)
    axes = sorted(op.attrs["dimensions"])
    shape = op.operands[0].shape
    kept = [d for d in range(shape.rank) if d not in axes]
    lanes = [shape.sizes[d] for d in kept]
    length = product(shape.sizes[d] for d in axes)
    rows, inits = [], []
    for value, init, result in zip(op.operands[:count], op.operands[count:], op.results, strict=True):
        moved = b.transpose(cast(b, value, result.shape), permutation=(*axes, *kept))
        rows.append(b.reshape(moved, result=Shape.of(result.shape.dtype, [length, *lanes])))
        start = cast(b, init, result.shape)
        inits.append(b.broadcast_in_dim(start, broadcast_dimensions=(), result=Shape.of(result.shape.dtype, lanes)))
    types = [Shape.of(result.shape.dtype, lanes) for result in op.results]
    with b.region(*types, *types) as r:
        r.result(*vectorise(r, op.regions[0], [*r.args[count:], *r.args[:count]], op))
    return b.op("chlo.scan", *rows, *inits, regions=[r.body], dimension=0).results


def reduce_rule(op: Op) -> Rule:
    """By the body: a sum, a choice, or anything else."""
    if len(op.results) == 1:
        kind = single_op(op.regions[0])
        if kind == "add":
            return SUM
        if kind in ("maximum", "minimum") and not op.results[0].shape.element.is_complex:
            return CHOICE
    return ANY


SUM = Rule(_reduce_jvp, _reduce_vjp)
CHOICE = Rule(_reduce_jvp)
ANY = Rule(expand=_reduce_as_scan)


# ---- map ----


def _map(b: Builder, op: Op) -> Sequence[Value]:
    return vectorise(b, op.regions[0], op.operands, op)


RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.map": Rule(expand=_map),
    "stablehlo.reduce": reduce_rule,
}
