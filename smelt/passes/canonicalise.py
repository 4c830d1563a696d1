"""Canonical forms: legacy ops, implicit broadcasts and dynamic ops with known sizes become ordinary StableHLO ops.

Later passes and engines then have fewer forms to handle. Called by `pipeline`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.errors import VerifyError
from smelt.ir.attributes import Constant
from smelt.ir.core import Value
from smelt.ir.ops import OPS
from smelt.ir.ops.linear import dot_dims
from smelt.ir.rewrite import Match, Rule, op
from smelt.ir.sizes import trace
from smelt.shape import Shape

COMMUTATIVE = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")


def _constant_right(m: Match) -> Value | None:
    left, right = m.edit.operands(m.op)
    if not _is_constant(m, left) or _is_constant(m, right):
        return None
    return m.build.op(m.op.name, right, left, result=m.shape, **dict(m.op.attrs)).result


def _is_constant(m: Match, value: Value) -> bool:
    maker = m.edit.maker(value)
    return maker is not None and maker.name == "stablehlo.constant"


def _broadcast(m: Match) -> Value:
    added = len(m.op.attrs["broadcast_sizes"])
    dims = tuple(range(added, m.shape.rank))
    return m.build.broadcast_in_dim(m["x"], broadcast_dimensions=dims, result=m.shape)


def _dot(m: Match) -> Value:
    return m.build.dot_general(
        m["x"],
        m["y"],
        dot_dimension_numbers=dot_dims(m["x"].shape.rank),
        precision_config=m.op.attrs.get("precision_config"),
        result=m.shape,
    )


def _create_token(m: Match) -> Value:
    return m.build.after_all()


def _dimension_size(m: Match) -> Value | None:
    size = m["x"].shape.sizes[m.op.attrs["dimension"]]
    return m.build.constant(size, "i32") if isinstance(size, int) else None


def _explicit_broadcast(m: Match) -> Value | None:
    """`chlo.broadcast_*`: broadcast both operands to the result's sizes, then the elementwise op."""
    name = m.op.name.replace("chlo.broadcast_", "")
    plain = next((full for full in (f"stablehlo.{name}", f"chlo.{name}") if full in OPS), None)
    if plain is None:
        return None
    dims = m.op.attrs.get("broadcast_dimensions")
    rank = m.shape.rank
    operands = m.edit.operands(m.op)
    stretched = []
    for operand in operands:
        shape = operand.shape
        if name == "select" and operand is operands[0] and not shape.rank:
            stretched.append(operand)
            continue
        narrower = dims is not None and shape.rank == len(dims) and shape.rank < rank
        places = tuple(dims) if narrower and dims is not None else tuple(range(rank - shape.rank, rank))
        stretched.append(_stretch(m, operand, places, Shape.of(shape.dtype, m.shape.sizes)))
    attrs = {key: value for key, value in m.op.attrs.items() if key != "broadcast_dimensions"}
    return m.build.op(plain, *stretched, result=m.shape, **attrs).result


def _stretch(m: Match, value: Value, places: tuple[int, ...], to: Shape) -> Value:
    if value.shape.sizes == to.sizes:
        return value
    return m.build.broadcast_in_dim(value, broadcast_dimensions=places, result=to)


# ---- dynamic ops whose sizes are known, as numbers or as polynomials over the arguments' sizes ----


def _numbers(m: Match, index: int) -> tuple[int, ...] | None:
    sizes = trace(m.operand(index))
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return tuple(size for size in sizes if isinstance(size, int))


def _is_known(m: Match, index: int) -> bool:
    """Whether the shape operand is exactly the result's sizes, so that it is redundant."""
    traced: tuple[Size, ...] | None = trace(m.operand(index))
    return traced is not None and traced == m.shape.sizes


def _twin(m: Match, name: str, *operands: Value, **keywords: Any) -> Value | None:
    """The static op; None where the known sizes are impossible: the dynamic op then fails at run time."""
    try:
        return m.build.op(name, *operands, **keywords).result
    except VerifyError:
        return None


def _dynamic_reshape(m: Match) -> Value | None:
    return _twin(m, "stablehlo.reshape", m.operand(0), result=m.shape) if _is_known(m, 1) else None


def _dynamic_broadcast(m: Match) -> Value | None:
    if not _is_known(m, 1):
        return None
    operand, dims = m.operand(0), m.op.attrs["broadcast_dimensions"]
    if any(size not in (1, m.shape.sizes[d]) for size, d in zip(operand.shape.sizes, dims, strict=True)):
        return None  # a size that may be one at run time
    return _twin(m, "stablehlo.broadcast_in_dim", operand, broadcast_dimensions=dims, result=m.shape)


def _dynamic_iota(m: Match) -> Value | None:
    dim = m.op.attrs["iota_dimension"]
    return _twin(m, "stablehlo.iota", iota_dimension=dim, result=m.shape) if _is_known(m, 0) else None


def _dynamic_pad(m: Match) -> Value | None:
    low, high, interior = (_numbers(m, index) for index in (2, 3, 4))
    if low is None or high is None or interior is None:
        return None
    amounts = {"edge_padding_low": low, "edge_padding_high": high, "interior_padding": interior}
    return _twin(m, "stablehlo.pad", m.operand(0), m.operand(1), **amounts)


def _real_dynamic_slice(m: Match) -> Value | None:
    start, limit, strides = (_numbers(m, index) for index in (1, 2, 3))
    if start is None or limit is None or strides is None or not m["x"].shape.is_static:
        return None
    return _twin(m, "stablehlo.slice", m["x"], start_indices=start, limit_indices=limit, strides=strides)


def _dynamic_gather(m: Match) -> Value | None:
    sizes = _numbers(m, 2)
    if sizes is None:
        return None
    return _twin(m, "stablehlo.gather", m.operand(0), m.operand(1), slice_sizes=sizes, **dict(m.op.attrs))


def _dynamic_conv(m: Match) -> Value | None:
    maker = m.edit.maker(m.operand(2))
    if maker is None or maker.name != "stablehlo.constant":
        return None
    padding: Constant = maker.attrs["value"]
    pairs = tuple((int(low), int(high)) for low, high in np.asarray(padding.array).tolist())
    attrs = dict(m.op.attrs)
    return _twin(m, "stablehlo.convolution", m.operand(0), m.operand(1), padding=pairs, result=m.shape, **attrs)


_BROADCASTING = sorted(name for name in OPS if name.startswith("chlo.broadcast_"))

CANONICALISE = [
    *(Rule(op(name), _constant_right, "the op commutes: constants go right") for name in COMMUTATIVE),
    Rule(op("broadcast", "x"), _broadcast, "legacy form of broadcast_in_dim"),
    Rule(op("dot", "x", "y"), _dot, "legacy form of dot_general"),
    Rule(op("create_token"), _create_token, "legacy form of after_all"),
    Rule(op("get_dimension_size", "x"), _dimension_size, "the size is a number"),
    *(Rule(op(name), _explicit_broadcast, "an implicit broadcast, spelled out") for name in _BROADCASTING),
    Rule(op("dynamic_reshape"), _dynamic_reshape, "the sizes are known"),
    Rule(op("chlo.dynamic_reshape"), _dynamic_reshape, "the sizes are known"),
    Rule(op("dynamic_broadcast_in_dim"), _dynamic_broadcast, "the sizes are known"),
    Rule(op("dynamic_iota"), _dynamic_iota, "the sizes are known"),
    Rule(op("dynamic_pad"), _dynamic_pad, "the padding is known"),
    Rule(op("real_dynamic_slice", "x", "", "", ""), _real_dynamic_slice, "the bounds are known"),
    Rule(op("dynamic_gather"), _dynamic_gather, "the slice sizes are known"),
    Rule(op("dynamic_conv"), _dynamic_conv, "the padding is known"),
]
