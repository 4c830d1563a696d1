"""Derivatives of convolutions by either operand: convolutions again, with the parts of the axes exchanged.

With y[i] = sum x[i*stride + k*rhs_dilation - low] w[k] over x dilated by lhs_dilation, the cotangent of x convolves g,
dilated by the stride, with the reversed kernel; the cotangent of w convolves x with g as the kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.dim import Size
from smelt.frozen import Frozen
from smelt.ir.attributes import ConvDims
from smelt.ir.build import Builder
from smelt.ir.core import Op, Value
from smelt.ir.grad.rule import Cotangents, Rule, cast, multilinear, zeros
from smelt.ir.grad.shape import pad_with_zeros, spread_length
from smelt.ir.grad.sweep import Reverse
from smelt.shape import Shape


class _Conv(Frozen):
    """The attributes of a convolution with their defaults, one entry per spatial dimension."""

    dims: ConvDims
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    reversal: tuple[bool, ...]
    groups: int
    batches: int

    @staticmethod
    def of(op: Op) -> _Conv:
        dims: ConvDims = op.attrs["dimension_numbers"]
        rank = len(dims.input_spatial_dimensions)

        def each(name: str, default: Any) -> Any:
            given = op.attrs.get(name)
            return tuple(given) if given else (default,) * rank

        return _Conv(
            dims,
            each("window_strides", 1),
            tuple((int(low), int(high)) for low, high in each("padding", (0, 0))),
            each("lhs_dilation", 1),
            each("rhs_dilation", 1),
            each("window_reversal", False),
            op.attrs["feature_group_count"],
            op.attrs["batch_group_count"],
        )


def _vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, w), conv = sweep.b, op.operands, _Conv.of(op)
    empty = 0 in op.results[0].shape.sizes
    if sweep.wants(x):
        sweep.add(x, zeros(b, x.type) if empty else _input_cotangent(b, op, conv, g))
    if sweep.wants(w):
        sweep.add(w, zeros(b, w.type) if empty or 0 in x.shape.sizes else _kernel_cotangent(b, op, conv, g))


def _input_cotangent(b: Builder, op: Op, conv: _Conv, g: Value) -> Value:
    x, w = op.operands
    dims = conv.dims
    groups = conv.groups * conv.batches  # one of them is 1
    kernel = b.reverse(cast(b, w, g.shape), dimensions=dims.kernel_spatial_dimensions) if len(conv.strides) else w
    inputs, outputs = dims.kernel_input_feature_dimension, dims.kernel_output_feature_dimension
    kernel = _move_groups(b, cast(b, kernel, g.shape), outputs, inputs, groups)
    low, high = [], []
    for i, (dilation, stride) in enumerate(zip(conv.lhs_dilation, conv.strides, strict=True)):
        size, count, window = _sizes(op, dims, i)
        length = spread_length(window, conv.rhs_dilation[i])
        before = length - 1 - conv.padding[i][0]
        low.append(before)
        high.append((size - 1) * dilation + length - before - spread_length(count, stride))
    sizes = list(x.shape.sizes)
    feature, batch = dims.input_feature_dimension, dims.input_batch_dimension
    if conv.batches > 1:
        sizes[feature], sizes[batch] = sizes[feature] * conv.batches, g.shape.sizes[dims.output_batch_dimension]
    made = _convolve(
        b,
        g,
        kernel,
        spatial=dims.output_spatial_dimensions,
        low=low,
        high=high,
        strides=conv.lhs_dilation,
        lhs_dilation=conv.strides,
        rhs_dilation=conv.rhs_dilation,
        reversal=conv.reversal,
        dims=ConvDims(
            dims.output_batch_dimension,
            dims.output_feature_dimension,
            dims.output_spatial_dimensions,
            outputs,
            inputs,
            dims.kernel_spatial_dimensions,
            batch,
            feature,
            dims.input_spatial_dimensions,
        ),
        groups=groups,
        batches=1,
        result=Shape.of(g.shape.dtype, sizes),
        near=[x],
    )
    made = _move_groups(b, made, feature, batch, conv.batches) if conv.batches > 1 else made
    return cast(b, made, x.shape)


def _kernel_cotangent(b: Builder, op: Op, conv: _Conv, g: Value) -> Value:
    x, w = op.operands
    dims = conv.dims
    low, high = [], []
    for i, (dilation, stride) in enumerate(zip(conv.lhs_dilation, conv.strides, strict=True)):
        size, count, window = _sizes(op, dims, i)
        low.append(conv.padding[i][0])
        needed = (window - 1) * conv.rhs_dilation[i] + spread_length(count, stride)
        high.append(needed - conv.padding[i][0] - spread_length(size, dilation))
    made = _convolve(
        b,
        cast(b, x, g.shape),
        g,
        spatial=dims.input_spatial_dimensions,
        low=low,
        high=high,
        strides=conv.rhs_dilation,
        lhs_dilation=conv.lhs_dilation,
        rhs_dilation=conv.strides,
        reversal=(False,) * len(conv.strides),
        dims=ConvDims(
            dims.input_feature_dimension,
            dims.input_batch_dimension,
            dims.input_spatial_dimensions,
            dims.output_batch_dimension,
            dims.output_feature_dimension,
            dims.output_spatial_dimensions,
            dims.kernel_input_feature_dimension,
            dims.kernel_output_feature_dimension,
            dims.kernel_spatial_dimensions,
        ),
        groups=conv.batches,
        batches=conv.groups,
        result=w.shape.with_dtype(g.shape.dtype),
        near=[g],
    )
    turned = [d for d, reversed in zip(dims.kernel_spatial_dimensions, conv.reversal, strict=True) if reversed]
    return cast(b, b.reverse(made, dimensions=tuple(turned)) if turned else made, w.shape)


def _sizes(op: Op, dims: ConvDims, i: int) -> tuple[Size, Size, Size]:
    """The sizes of input, output and kernel along a spatial dimension."""
    x, w = op.operands[:2]
    return (
        x.shape.sizes[dims.input_spatial_dimensions[i]],
        op.results[0].shape.sizes[dims.output_spatial_dimensions[i]],
        w.shape.sizes[dims.kernel_spatial_dimensions[i]],
    )


def _convolve(
    b: Builder,
    lhs: Value,
    rhs: Value,
    *,
    spatial: Sequence[int],
    low: Sequence[Size],
    high: Sequence[Size],
    strides: Sequence[int],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    reversal: Sequence[bool],
    dims: ConvDims,
    groups: int,
    batches: int,
    result: Shape,
    near: Sequence[Value],
) -> Value:
    """A convolution whose padding may be symbolic: then it is padded, and dilated, by an op of its own."""
    if not all(isinstance(number, int) for number in (*low, *high)):
        before: list[Size] = [0] * lhs.shape.rank
        after, between = list(before), [0] * lhs.shape.rank
        for i, dim in enumerate(spatial):
            before[dim], after[dim], between[dim] = low[i], high[i], lhs_dilation[i] - 1
        lhs = pad_with_zeros(b, lhs, before, after, between, near)
        low = high = (0,) * len(spatial)
        lhs_dilation = (1,) * len(spatial)
    return b.convolution(
        lhs,
        rhs,
        window_strides=tuple(strides),
        padding=tuple(zip(low, high, strict=True)),
        lhs_dilation=tuple(lhs_dilation),
        rhs_dilation=tuple(rhs_dilation),
        window_reversal=tuple(reversal),
        dimension_numbers=dims,
        feature_group_count=groups,
        batch_group_count=batches,
        result=result,
    )


def _move_groups(b: Builder, value: Value, source: int, target: int, groups: int) -> Value:
    """The groups that are the slow part of axis `source`, as the slow part of axis `target`."""
    if groups == 1:
        return value
    sizes = list(value.shape.sizes)
    split = [*sizes[:source], groups, sizes[source] // groups, *sizes[source + 1 :]]
    apart = b.reshape(value, result=value.shape.with_sizes(split))
    places = [d if d < source else d + 1 for d in range(len(sizes))]  # where each axis is now
    places[source] = source + 1
    order: list[int] = []
    for d, place in enumerate(places):
        order += [source, place] if d == target else [place]
    moved = b.transpose(apart, permutation=tuple(order))
    sizes[source], sizes[target] = sizes[source] // groups, sizes[target] * groups
    return b.reshape(moved, result=value.shape.with_sizes(sizes))


def _dynamic_conv(b: Builder, op: Op) -> Sequence[Value]:
    """A convolution whose padding is a value: padded and dilated by an op of its own, then convolved without."""
    x, w, padding = op.operands
    conv = _Conv.of(op)
    rank, spatial = x.shape.rank, conv.dims.input_spatial_dimensions
    interior = [0] * rank
    for dim, dilation in zip(spatial, conv.lhs_dilation, strict=True):
        interior[dim] = dilation - 1
    low, high = (_edge(b, padding, side, spatial, rank) for side in (0, 1))
    between = b.constant(interior, padding.shape.element)
    padded = b.dynamic_pad(x, b.constant(0, x.shape.dtype), low, high, between)
    attrs = {key: value for key, value in op.attrs.items() if key != "lhs_dilation"}
    return [b.convolution(padded, w, result=op.results[0].shape, **attrs)]


def _edge(b: Builder, padding: Value, side: int, spatial: Sequence[int], rank: int) -> Value:
    """The padding on one side of every dimension, from that of the spatial ones."""
    kind, count = padding.shape.element, len(spatial)
    column = b.slice(padding, start_indices=(0, side), limit_indices=(count, side + 1), strides=(1, 1))
    nothing = b.constant([0], kind)
    parts = [nothing] * rank
    for i, dim in enumerate(spatial):
        one = b.slice(column, start_indices=(i, 0), limit_indices=(i + 1, 1), strides=(1, 1))
        parts[dim] = b.reshape(one, result=Shape.of(kind, (1,)))
    return b.concatenate(*parts, dimension=0)


RULES: dict[str, Rule] = {
    "stablehlo.convolution": multilinear(_vjp, 0, 1),
    "stablehlo.dynamic_conv": Rule(expand=_dynamic_conv),
}
