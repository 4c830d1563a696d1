"""Derivatives of products: `dot_general` and its legacy forms. Each is linear in either operand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from smelt.dtype import DType
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.grad.rule import Cotangents, Rule, cast, multilinear, no_derivative, sum_over
from smelt.ir.grad.sweep import Reverse
from smelt.ir.ops.linear import dot_dims, einsum_labels
from smelt.shape import Shape

_ATTRS = ("precision_config", "algorithm")


def _dot_general_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    lhs, rhs = op.operands
    if sweep.wants(lhs):
        sweep.add(lhs, _dot_cotangent(sweep.b, op, g, 0))
    if sweep.wants(rhs):
        sweep.add(rhs, _dot_cotangent(sweep.b, op, g, 1))


def _dot_cotangent(b: Builder, op: Op, g: Value, own: int) -> Value:
    """g times the other operand, over the other's free axes. The result of a dot is batch, lhs free, rhs free."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    batch = (dims.lhs_batching_dimensions, dims.rhs_batching_dimensions)
    summed = (dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions)
    x, y = op.operands[own], op.operands[1 - own]
    free, others = (
        [d for d in range(value.shape.rank) if d not in (*batch[i], *summed[i])]
        for value, i in ((x, own), (y, 1 - own))
    )
    count = len(batch[0])
    places = list(range(count + len(free), g.shape.rank)) if own == 0 else list(range(count, count + len(others)))
    product = DotDims(tuple(range(count)), batch[1 - own], tuple(places), tuple(others))
    # The axes of g times y: batch, the free ones of x, then what was contracted, in y's order.
    order = sorted(range(len(summed[0])), key=lambda i: summed[1 - own][i])
    made = [*batch[own], *free, *(summed[own][i] for i in order)]
    attrs = {name: op.attrs[name] for name in _ATTRS if name in op.attrs}
    if "precision_config" in attrs and attrs["precision_config"] and own == 1:
        attrs["precision_config"] = tuple(attrs["precision_config"])[::-1]
    element = op.results[0].shape.dtype
    kind = x.shape.dtype if isinstance(element, DType) and element == y.shape.dtype else element
    sizes = [x.shape.sizes[d] for d in made]
    y = cast(b, y, g.shape)
    found = b.dot_general(g, y, dot_dimension_numbers=product, result=Shape.of(kind, sizes), **attrs)
    if made != sorted(made):
        found = b.transpose(found, permutation=tuple(int(i) for i in np.argsort(made)))
    return cast(b, found, x.shape)


def _dot(b: Builder, op: Op) -> Sequence[Value]:
    x, y = op.operands
    dims = dot_dims(x.shape.rank)
    return [b.dot_general(x, y, dot_dimension_numbers=dims, result=op.results[0].shape)]


# ---- einsum: repeated labels take diagonals, missing ones are summed ----


def _einsum(b: Builder, op: Op) -> Sequence[Value]:
    """One product over broadcast operands: every label is an axis of both, then those not in the result are summed."""
    terms, names = einsum_labels(op.attrs["einsum_config"], [value.shape.rank for value in op.operands])
    if any(len(set(term)) != len(term) for term in terms):
        raise AssertionError("a repeated label")  # refused before
    labels = list(dict.fromkeys([*names, *(label for term in terms for label in term)]))
    sizes = {
        label: size
        for v, term in zip(op.operands, terms, strict=True)
        for label, size in zip(term, v.shape.sizes, strict=True)
    }
    whole = [sizes[label] for label in labels]
    spread = [
        b.broadcast_in_dim(
            value,
            broadcast_dimensions=tuple(labels.index(label) for label in term),
            result=Shape.of(value.shape.dtype, whole),
        )
        for value, term in zip(op.operands, terms, strict=True)
    ]
    product = spread[0] if len(spread) == 1 else b.multiply(*spread)
    return [sum_over(b, product, range(len(names), len(labels)))]


RULES: dict[str, Rule] = {
    "stablehlo.dot_general": multilinear(_dot_general_vjp, 0, 1),
    "stablehlo.dot": Rule(expand=_dot),
    "stablehlo.einsum": Rule(expand=_einsum),
    "stablehlo.unary_einsum": Rule(expand=_einsum),
    "chlo.ragged_dot": no_derivative("its groups have sizes that only data knows"),
}
