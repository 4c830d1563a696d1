"""Pack: products and convolutions become `smelt.packed_dot` and `smelt.plane_dot`, for an engine that multiplies tiles.

The packing is an op of its own before the product, so `split_prepare` moves the packing of weights out of the run.
Called by `pipeline` for engines that ask for a width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.dim import Size, product
from smelt.ir.core import Value
from smelt.ir.rewrite import Match, Rule, op
from smelt.shape import Shape


def pack_rules(width: int) -> list[Rule]:
    """The rule that cuts right operands into panels of `width` columns."""

    def packed(m: Match) -> Value | None:
        return _packed(m, width)

    def planar(m: Match) -> Value | None:
        return _planar(m, width)

    return [
        Rule(op("stablehlo.dot_general", "x", "y"), packed, "columns of a product are read in panels"),
        Rule(op("stablehlo.convolution", "x", "y"), planar, "every tap of a window reads a run of neighbours"),
    ]


def _packed(m: Match, width: int) -> Value | None:
    lhs, rhs = m["x"], m["y"]
    if not all(str(value.shape.dtype) == "f32" for value in (lhs, rhs)) or str(m.shape.dtype) != "f32":
        return None
    dims = m.op.attrs["dot_dimension_numbers"]
    batch = dims.lhs_batching_dimensions, dims.rhs_batching_dimensions
    summed = dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions
    rows = [d for d in range(lhs.shape.rank) if d not in batch[0] and d not in summed[0]]
    columns = [d for d in range(rhs.shape.rank) if d not in batch[1] and d not in summed[1]]
    left = _ordered(m, lhs, (batch[0], rows, summed[0]))
    right = _ordered(m, rhs, (batch[1], summed[1], columns))
    panels = m.build.op("smelt.pack", right, width=width).result
    result = Shape.of(m.shape.dtype, (*left.shape.sizes[:2], right.shape.sizes[2]))
    made = m.build.op("smelt.packed_dot", left, panels, result=result).result
    return _reshaped(m, made, m.shape)


def _planar(m: Match, width: int) -> Value | None:
    images, kernel, attrs = m["x"], m["y"], m.op.attrs
    if not all(str(value.shape.dtype) == "f32" for value in (images, kernel)) or str(m.shape.dtype) != "f32":
        return None
    dims, rank = attrs["dimension_numbers"], m.shape.rank
    window = tuple(kernel.shape.sizes[d] for d in dims.kernel_spatial_dimensions)
    plain = rank in (3, 4) and attrs["batch_group_count"] == 1
    plain = plain and not any(attrs.get("window_reversal") or ()) and set(attrs.get("lhs_dilation") or ()) <= {1}
    if not plain or not all(isinstance(size, int) for size in window):
        return None
    strides, dilations = (tuple(attrs.get(name) or (1,) * (rank - 2)) for name in ("window_strides", "rhs_dilation"))
    padding = tuple(attrs.get("padding") or ((0, 0),) * (rank - 2))
    input_order = (dims.input_batch_dimension, dims.input_feature_dimension, *dims.input_spatial_dimensions)
    kernel_order = (dims.kernel_output_feature_dimension, dims.kernel_input_feature_dimension)
    output_order = (dims.output_batch_dimension, dims.output_feature_dimension, *dims.output_spatial_dimensions)
    images = _transposed(m, images, input_order)
    kernel = _transposed(m, kernel, (*kernel_order, *dims.kernel_spatial_dimensions))
    groups = attrs["feature_group_count"]
    features, depth = kernel.shape.sizes[0], product(kernel.shape.sizes[1:])
    if not isinstance(features, int):
        return None
    weights = _reshaped(m, kernel, Shape.of(kernel.shape.dtype, (groups, features // groups, depth)))
    taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations, "least": width}
    sizes = images.shape.sizes
    count: Size = product(sizes[2:])
    if set(window) == set(strides) == {1} and set(padding) <= {(0, 0)} and isinstance(count, int) and count >= width:
        planes = _reshaped(m, images, Shape.of(images.shape.dtype, (*sizes[:2], 1, count)))
    else:
        edges: dict[str, Any] = {"low": tuple(pair[0] for pair in padding), "high": tuple(pair[1] for pair in padding)}
        planes = m.build.op("smelt.planes", images, **taps, **edges).result
    result = Shape.of(m.shape.dtype, tuple(m.shape.sizes[d] for d in output_order))
    made = m.build.op("smelt.plane_dot", weights, planes, result=result, **taps).result
    back = tuple(output_order.index(d) for d in range(rank))
    return _transposed(m, made, back)


def _transposed(m: Match, value: Value, order: tuple[int, ...]) -> Value:
    if order == tuple(range(len(order))):
        return value
    transposed: Value = m.build.transpose(value, permutation=order)
    return transposed


def _ordered(m: Match, value: Value, groups: tuple[Sequence[int], Sequence[int], Sequence[int]]) -> Value:
    """The value with its axes in three groups, each of them one axis."""
    order = tuple(d for group in groups for d in group)
    value = _transposed(m, value, order)
    sizes = iter(value.shape.sizes)
    merged = tuple(product(next(sizes) for _ in group) for group in groups)
    return _reshaped(m, value, Shape.of(value.shape.dtype, merged))


def _reshaped(m: Match, value: Value, shape: Shape) -> Value:
    if value.shape.sizes == shape.sizes:
        return value
    reshaped: Value = m.build.reshape(value, result=shape)
    return reshaped
