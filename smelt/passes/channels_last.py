"""Channels last: convolutions read and write [batch, y, x, channel], and what lies between them follows.

A convolution becomes one over channels-last images, padded before, between two transpositions. The second of these then
moves on past every op that does not care about the order of axes, until it meets the first one of the next convolution
or something that does care. Called by `pipeline` for engines that multiply panels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from smelt.ir.attributes import ConvDims
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Region, Value
from smelt.ir.ops import OPS
from smelt.ir.rewrite import Edit
from smelt.shape import Shape

# The channels-last value behind each value that was made from one.
Lasts: TypeAlias = dict[Value, Value]


def channels_last(edit: Edit) -> int:
    """Change every convolution that has a plain form, and what follows; gives the number of ops changed."""
    return _region(edit, edit.func.body, {})


def _region(edit: Edit, region: Region, lasts: Lasts) -> int:
    count = 0
    for op in list(edit.ops(region)):
        count += sum(_region(edit, inner, lasts) for inner in op.regions if op.name in _CONTROL)
        made = _convolution(edit, lasts, op) if op.name == "stablehlo.convolution" else _moved(edit, lasts, op)
        if made is not None:
            edit.replace(op.results[0], made)
            edit.erase_if_dead(op)
            count += 1
    return count


_CONTROL = ("stablehlo.if", "stablehlo.case", "stablehlo.while")


def to_last(rank: int) -> tuple[int, ...]:
    """[batch, channel, …] → [batch, …, channel]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """[batch, …, channel] → [batch, channel, …]."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last_dims(rank: int) -> ConvDims:
    """Images [b, 0, 1, …, f], kernels [0, 1, …, i, o]."""
    spatial = tuple(range(1, rank - 1))
    return ConvDims(0, rank - 1, spatial, rank - 2, rank - 1, tuple(range(rank - 2)), 0, rank - 1, spatial)


# ---- convolutions ----


def _convolution(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    attrs, rank = op.attrs, op.result.shape.rank
    images, kernel = edit.operands(op)
    if str(images.shape.dtype) != "f32" or str(kernel.shape.dtype) != "f32" or str(op.result.shape.dtype) != "f32":
        return None
    dims: ConvDims = attrs["dimension_numbers"]
    window = [kernel.shape.sizes[d] for d in dims.kernel_spatial_dimensions]
    if rank < 3 or attrs["batch_group_count"] != 1 or not all(isinstance(size, int) and size > 0 for size in window):
        return None
    b = edit.before(op)
    spatial = rank - 2
    padding = tuple(attrs.get("padding") or ((0, 0),) * spatial)
    base = tuple(attrs.get("lhs_dilation") or (1,) * spatial)
    images = _transposed(
        edit, b, images, (dims.input_batch_dimension, *dims.input_spatial_dimensions, dims.input_feature_dimension)
    )
    if set(padding) | {(step - 1, step - 1) for step in base} != {(0, 0)}:
        images = b.pad(
            images,
            b.constant(0.0, "f32"),
            edge_padding_low=(0, *(low for low, _ in padding), 0),
            edge_padding_high=(0, *(high for _, high in padding), 0),
            interior_padding=(0, *(step - 1 for step in base), 0),
        )
    turned = attrs.get("window_reversal") or ()
    if any(turned):
        axes = tuple(d for d, flag in zip(dims.kernel_spatial_dimensions, turned, strict=True) if flag)
        kernel = b.reverse(kernel, dimensions=axes)
    kernel_order = (*dims.kernel_spatial_dimensions, dims.kernel_input_feature_dimension)
    kernel = _transposed(edit, b, kernel, (*kernel_order, dims.kernel_output_feature_dimension))
    output_order = (dims.output_batch_dimension, *dims.output_spatial_dimensions, dims.output_feature_dimension)
    kept = {name: attrs[name] for name in ("window_strides", "rhs_dilation", "precision_config") if attrs.get(name)}
    result = Shape.of(op.result.shape.dtype, tuple(op.result.shape.sizes[d] for d in output_order))
    made = b.convolution(
        images,
        kernel,
        dimension_numbers=channels_last_dims(rank),
        feature_group_count=attrs["feature_group_count"],
        batch_group_count=1,
        result=result,
        **kept,
    )
    first = _transposed(edit, b, made, tuple(output_order.index(d) for d in range(rank)))
    if first is not made and tuple(output_order) == to_last(rank):
        lasts[first] = made
    return first


def _transposed(edit: Edit, b: Builder, value: Value, order: Sequence[int]) -> Value:
    """The axes in another order; a transposition that is undone goes away."""
    value = edit.value(value)
    maker = value.op
    if maker is not None and maker.name == "stablehlo.transpose":
        inner = maker.attrs["permutation"]
        value, order = edit.value(maker.operands[0]), [inner[d] for d in order]
    if tuple(order) == tuple(range(len(order))):
        return value
    made: Value = b.transpose(value, permutation=tuple(order))
    return made


# ---- what follows them ----


def _moved(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """The op over channels-last operands, and its result with channels first again."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, Shape):
        return None
    if not any(value in lasts for value in edit.operands(op)):
        return None
    if op.name == "stablehlo.reduce":
        return _reduce(edit, lasts, op)
    if op.name == "stablehlo.transpose":
        return _transposed(edit, edit.before(op), op.operands[0], op.attrs["permutation"])
    rule = _elementwise if OPS[op.name].elementwise else _RULES.get(op.name)
    made = rule(edit, lasts, op) if rule else None
    if made is None:
        return None
    back: Value = edit.before(op).transpose(made, permutation=to_first(made.shape.rank))
    lasts[back] = made
    return back


def _as_last(edit: Edit, lasts: Lasts, b: Builder, value: Value) -> Value:
    """A value with its channels last, whatever it takes."""
    value = edit.value(value)
    if value in lasts:
        return lasts[value]
    rank, maker = value.shape.rank, value.op
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        places = [to_last(rank).index(d) for d in maker.attrs["broadcast_dimensions"]]
        source, order = edit.value(maker.operands[0]), sorted(range(len(places)), key=places.__getitem__)
        source = _transposed(edit, b, source, order)
        made: Value = b.broadcast_in_dim(source, broadcast_dimensions=tuple(sorted(places)), result=_shape_last(value))
        return made
    return _transposed(edit, b, value, to_last(rank))


def _shape_last(value: Value) -> Shape:
    sizes = value.shape.sizes
    return Shape.of(value.shape.dtype, tuple(sizes[d] for d in to_last(len(sizes))))


def _permuted(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values[d] for d in to_last(len(values)))


def _axis_last(axis: int, rank: int) -> int:
    return to_last(rank).index(axis)


Move = Callable[[Edit, Lasts, Op], Value | None]


def _elementwise(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    rank = op.result.shape.rank
    if any(value.shape.rank not in (0, rank) for value in op.operands):
        return None
    operands = [
        _as_last(edit, lasts, edit.before(op), value) if value.shape.rank else value for value in edit.operands(op)
    ]
    return edit.before(op).op(op.name, *operands, result=_shape_last(op.result), **op.attrs).result


def _broadcast(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Batch and channels stay the first two axes; others may come in between."""
    source = lasts.get(edit.value(op.operands[0]))
    dims, rank = op.attrs["broadcast_dimensions"], op.result.shape.rank
    if source is None or dims[:2] != (0, 1):
        return None
    places = (0, *(d - 1 for d in dims[2:]), rank - 1)
    made: Value = edit.before(op).broadcast_in_dim(source, broadcast_dimensions=places, result=_shape_last(op.result))
    return made


def _reshape(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Batch and channels stay as they are; the axes of an image are merged or parted."""
    source, result = lasts.get(edit.value(op.operands[0])), op.result.shape
    if source is None or result.rank < 3 or op.operands[0].shape.sizes[:2] != result.sizes[:2]:
        return None
    made: Value = edit.before(op).reshape(source, result=_shape_last(op.result))
    return made


def _reduce(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Only where the result has no order of axes left to mind: channels stay, images go."""
    source = lasts.get(edit.value(op.operands[0]))
    rank = op.operands[0].shape.rank
    if source is None or len(op.operands) != 2 or sorted(op.attrs["dimensions"]) != list(range(2, rank)):
        return None
    body = clone_region(op.regions[0], {})
    made: Value = edit.before(op).reduce(source, op.operands[1], dimensions=tuple(range(1, rank - 1)), regions=[body])
    return made


def _reduce_window(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    if source is None:
        return None
    attrs: dict[str, Any] = {name: _permuted(value) for name, value in op.attrs.items() if value is not None}
    body = clone_region(op.regions[0], {})
    made = edit.before(op).op(
        "stablehlo.reduce_window", source, op.operands[1], regions=[body], result=_shape_last(op.result), **attrs
    )
    return made.result


def _pad(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    attrs: dict[str, Any] = {name: _permuted(value) for name, value in op.attrs.items()}
    return (
        None
        if source is None
        else edit.before(op).op(op.name, source, op.operands[1], result=_shape_last(op.result), **attrs).result
    )


def _slice(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    attrs: dict[str, Any] = {name: _permuted(value) for name, value in op.attrs.items()}
    return (
        None if source is None else edit.before(op).op(op.name, source, result=_shape_last(op.result), **attrs).result
    )


def _reverse(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source, rank = lasts.get(edit.value(op.operands[0])), op.result.shape.rank
    if source is None:
        return None
    made: Value = edit.before(op).reverse(source, dimensions=tuple(_axis_last(d, rank) for d in op.attrs["dimensions"]))
    return made


def _concatenate(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    rank = op.result.shape.rank
    operands = [_as_last(edit, lasts, edit.before(op), value) for value in edit.operands(op)]
    made: Value = edit.before(op).concatenate(*operands, dimension=_axis_last(op.attrs["dimension"], rank))
    return made


_RULES: dict[str, Move] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.pad": _pad,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.concatenate": _concatenate,
}
