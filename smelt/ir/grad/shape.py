"""Derivatives of ops that move elements: each is linear, and its transpose moves cotangents back.

Sizes may be symbolic. Where an amount of padding or a limit then is no number, the dynamic op takes it as a value.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dim import Size
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.grad.rule import (
    Cotangents,
    Rule,
    linear,
    linear_in_first,
    no_derivative,
    sum_over,
    zero,
)
from smelt.ir.grad.sizes import size_list
from smelt.ir.grad.sweep import Reverse

# ---- slices and padding with sizes that may be symbolic ----


def take(b: Builder, x: Value, starts: Sequence[Size], limits: Sequence[Size], strides: Sequence[int]) -> Value:
    """A slice whose bounds may be symbolic."""
    if all(isinstance(number, int) for number in (*starts, *limits)):
        if starts == (0,) * x.shape.rank and tuple(limits) == x.shape.sizes and set(strides) <= {1}:
            return x
        return b.slice(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides))
    bounds = [size_list(b, each, [x]) for each in (starts, limits, strides)]
    return b.real_dynamic_slice(x, *bounds)


def pad_with_zeros(
    b: Builder, x: Value, low: Sequence[Size], high: Sequence[Size], interior: Sequence[int], near: Sequence[Value] = ()
) -> Value:
    """Zeros around and between elements; amounts may be symbolic in sizes of `x` and of `near`."""
    nothing = b.constant(0, x.shape.dtype)
    if all(isinstance(number, int) for number in (*low, *high)):
        if not any((*low, *high, *interior)):
            return x
        return b.pad(
            x,
            nothing,
            edge_padding_low=tuple(low),
            edge_padding_high=tuple(high),
            interior_padding=tuple(interior),
        )
    return b.dynamic_pad(x, nothing, *(size_list(b, each, [x, *near]) for each in (low, high, interior)))


def spread_length(size: Size, stride: int) -> Size:
    """How long `size` elements are with `stride - 1` holes between neighbours, if there are any elements."""
    return size if stride == 1 else (size - 1) * stride + 1


def _slice(b: Builder, op: Op, g: Value) -> Value:
    x, strides = op.operands[0], op.attrs["strides"]
    low = op.attrs["start_indices"]
    used = [
        spread_length(size, stride) if size != 0 else 0 for size, stride in zip(g.shape.sizes, strides, strict=True)
    ]
    high = [size - first - length for size, first, length in zip(x.shape.sizes, low, used, strict=True)]
    return pad_with_zeros(b, g, low, high, [stride - 1 for stride in strides], [x])


def _real_dynamic_slice(b: Builder, op: Op, g: Value) -> Value:
    """Bounds are values: the padding is computed where the program runs."""
    x, start, _, stride = op.operands
    one, none = b.full(1, start.shape), b.full(0, start.shape)

    def sizes(value: Value) -> Value:
        return b.convert(size_list(b, value.shape.sizes, [value]), result=start.shape)

    used = b.maximum(b.add(b.multiply(b.subtract(sizes(g), one), stride), one), none)
    high = b.subtract(b.subtract(sizes(x), start), used)
    nothing = b.constant(0, g.shape.dtype)
    return b.dynamic_pad(g, nothing, start, high, b.subtract(stride, one), result=x.shape)


def _pad_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, value) = sweep.b, op.operands
    low, high, interior = (
        op.attrs[f"{name}"] for name in ("edge_padding_low", "edge_padding_high", "interior_padding")
    )
    inner = pad_with_zeros(b, g, [-n for n in low], [-n for n in high], (0,) * x.shape.rank)
    if any(interior):
        inner = take(b, inner, (0,) * x.shape.rank, inner.shape.sizes, [n + 1 for n in interior])
    sweep.add(x, inner)
    _pad_value(sweep, value, g, inner)


def _pad_value(sweep: Reverse, value: Value, g: Value, inner: Value) -> None:
    """The cotangent of a padding value: everything but what went to the operand."""
    if sweep.wants(value):
        whole, part = (sum_over(sweep.b, each, range(each.shape.rank)) for each in (g, inner))
        sweep.add(value, sweep.b.subtract(whole, part))


def _dynamic_pad_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, value, low, high, interior) = sweep.b, op.operands
    none = b.full(0, low.shape)
    nothing = b.constant(0, g.shape.dtype)
    edges = b.dynamic_pad(g, nothing, b.negate(low), b.negate(high), none)
    ends = b.convert(size_list(b, edges.shape.sizes, [edges]), result=low.shape)
    inner = b.real_dynamic_slice(edges, none, ends, b.add(interior, b.full(1, low.shape)), result=x.shape)
    sweep.add(x, inner)
    _pad_value(sweep, value, g, inner)


def _concatenate_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    axis = op.attrs["dimension"]
    first: Size = 0
    for operand in op.operands:
        after = first + operand.shape.sizes[axis]
        if sweep.wants(operand):
            starts: list[Size] = [0] * g.shape.rank
            limits = list(g.shape.sizes)
            starts[axis], limits[axis] = first, after
            sweep.add(operand, take(sweep.b, g, tuple(starts), limits, (1,) * g.shape.rank))
        first = after


# ---- broadcasts, reshapes, permutations ----


def sum_broadcast(b: Builder, op: Op, g: Value) -> Value:
    """Summed over the axes that were added or stretched; the others back in their order."""
    x, dims = op.operands[0], op.attrs["broadcast_dimensions"]
    kept = [d for d, size in zip(dims, x.shape.sizes, strict=True) if size != 1 or g.shape.sizes[d] == 1]
    summed = sum_over(b, g, [d for d in range(g.shape.rank) if d not in kept])
    order = sorted(kept)
    if kept != order:
        summed = b.transpose(summed, permutation=tuple(order.index(d) for d in kept))
    return summed if summed.shape.rank == x.shape.rank else b.reshape(summed, result=x.shape)


def _reshape(b: Builder, op: Op, g: Value) -> Value:
    return b.reshape(g, result=op.operands[0].shape)


def _transpose(b: Builder, op: Op, g: Value) -> Value:
    return b.transpose(g, permutation=tuple(int(i) for i in np.argsort(op.attrs["permutation"])))


def _barrier_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    for operand, g in zip(op.operands, cotangents, strict=True):
        sweep.add(operand, g)


def _broadcast(b: Builder, op: Op, g: Value) -> Value:
    return sum_over(b, g, range(len(op.attrs["broadcast_sizes"])))


_TUPLE = "tuples are taken apart before differentiation; this one is not"

RULES: dict[str, Rule] = {
    "stablehlo.bitcast_convert": zero("bits have no derivative"),
    "stablehlo.broadcast": linear_in_first(_broadcast),
    "stablehlo.broadcast_in_dim": linear_in_first(sum_broadcast),
    "stablehlo.concatenate": linear(_concatenate_vjp),
    "stablehlo.iota": zero("it has no operand"),
    "stablehlo.reshape": linear_in_first(_reshape),
    "stablehlo.reverse": linear_in_first(lambda b, op, g: b.reverse(g, dimensions=op.attrs["dimensions"])),
    "stablehlo.slice": linear_in_first(_slice),
    "stablehlo.transpose": linear_in_first(_transpose),
    "stablehlo.pad": linear(_pad_vjp, 0, 1),
    "stablehlo.get_dimension_size": zero("a size is an integer"),
    "stablehlo.tuple": no_derivative(_TUPLE),
    "stablehlo.get_tuple_element": no_derivative(_TUPLE),
    "stablehlo.optimization_barrier": linear(_barrier_vjp),
    "stablehlo.dynamic_iota": zero("its operand is a list of sizes"),
    "stablehlo.dynamic_pad": linear(_dynamic_pad_vjp, 0, 1),
    "stablehlo.dynamic_reshape": linear_in_first(_reshape),
    "chlo.dynamic_reshape": linear_in_first(_reshape),
    "stablehlo.real_dynamic_slice": linear_in_first(_real_dynamic_slice),
    **{
        name: linear_in_first(lambda b, op, g: b.op(op.name, g, **dict(op.attrs)).result)
        for name in ("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
    },
}
