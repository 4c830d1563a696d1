"""NHWC layout: convolutions read and write [batch, y, x, channel], and the ops between them follow.

A convolution becomes an explicit pad and an NHWC convolution between two transposes. The second transpose sinks below
every op that has an NHWC form, until it cancels with the first transpose of the next convolution. Called by `pipeline`
for engines with packed GEMMs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from smelt.dim import Size, ceildiv, product
from smelt.dtype import i32
from smelt.frozen import Frozen
from smelt.ir.attributes import ConvDims, GatherDims
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Region, Value
from smelt.ir.ops import OPS
from smelt.ir.ops.window import can_pad_first
from smelt.ir.rewrite import Edit
from smelt.passes.crop import crop
from smelt.shape import Shape

# The NHWC value of each NCHW value that was transposed from one.
Lasts: TypeAlias = dict[Value, Value]


def channels_last(edit: Edit) -> int:
    """Convert every supported convolution and the ops after it; returns the number of ops changed."""
    return _region(edit, edit.func.body, {})


def _region(edit: Edit, region: Region, lasts: Lasts) -> int:
    count = 0
    for op in list(edit.ops(region)):
        count += sum(_region(edit, inner, lasts) for inner in op.regions if op.name in _CONTROL)
        made = _convolution(edit, lasts, op) if op.name == "stablehlo.convolution" else _follow(edit, lasts, op)
        if made is not None:
            edit.replace(op.results[0], made)
            edit.erase_if_dead(op)
            count += 1
    for op in reversed(list(edit.ops(region)) if count else []):
        edit.erase_if_dead(op)
    return count


_CONTROL = ("stablehlo.if", "stablehlo.case", "stablehlo.while")


def to_last(rank: int) -> tuple[int, ...]:
    """[batch, channel, …] → [batch, …, channel]."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """[batch, …, channel] → [batch, channel, …]."""
    return (0, rank - 1, *range(1, rank - 1))


def channels_last_dims(rank: int) -> ConvDims:
    """Feature maps [b, 0, 1, …, f], kernels [0, 1, …, i, o]."""
    spatial = tuple(range(1, rank - 1))
    return ConvDims(0, rank - 1, spatial, rank - 2, rank - 1, tuple(range(rank - 2)), 0, rank - 1, spatial)


# ---- convolutions ----


def _convolution(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    attrs, rank = op.attrs, op.result.shape.rank
    maps, kernel = edit.operands(op)
    types = str(maps.shape.dtype), str(kernel.shape.dtype), str(op.result.shape.dtype)
    if types not in (("f32", "f32", "f32"), ("bf16", "bf16", "f32"), ("f16", "f16", "f32")):
        return None
    dims: ConvDims = attrs["dimension_numbers"]
    sizes = [kernel.shape.sizes[d] for d in dims.kernel_spatial_dimensions]
    window = [size for size in sizes if isinstance(size, int) and size > 0]
    if rank < 3 or attrs["batch_group_count"] != 1 or len(window) < len(sizes):
        return None
    b = edit.before(op)
    spatial = rank - 2
    padding = tuple(attrs.get("padding") or ((0, 0),) * spatial)
    base = tuple(attrs.get("lhs_dilation") or (1,) * spatial)
    if not can_pad_first([maps.shape.sizes[d] for d in dims.input_spatial_dimensions], padding, base):
        return None
    maps = _transpose(
        edit, b, maps, (dims.input_batch_dimension, *dims.input_spatial_dimensions, dims.input_feature_dimension)
    )
    reversed_axes = attrs.get("window_reversal") or ()
    if any(reversed_axes):
        axes = tuple(d for d, flag in zip(dims.kernel_spatial_dimensions, reversed_axes, strict=True) if flag)
        kernel = b.reverse(kernel, dimensions=axes)
    kernel_order = (*dims.kernel_spatial_dimensions, dims.kernel_input_feature_dimension)
    kernel = _transpose(edit, b, kernel, (*kernel_order, dims.kernel_output_feature_dimension))
    output_order = (dims.output_batch_dimension, *dims.output_spatial_dimensions, dims.output_feature_dimension)
    kept = {name: attrs[name] for name in ("window_strides", "rhs_dilation", "precision_config") if attrs.get(name)}
    result = Shape.of(op.result.shape.dtype, tuple(op.result.shape.sizes[d] for d in output_order))
    plain = attrs["feature_group_count"] == 1 and {
        *(kept.get("window_strides") or ()),
        *(kept.get("rhs_dilation") or ()),
    } <= {1}
    phases = [
        _phases(*each) for each in zip(base, window, padding, maps.shape.sizes[1:-1], result.sizes[1:-1], strict=True)
    ]
    if max(base) > 1 and plain and None not in phases:
        made = _convolve_in_phases(b, maps, kernel, [each for each in phases if each is not None], result)
    else:
        edges = [(*pair, step - 1) for pair, step in zip(padding, base, strict=True)]
        made = b.convolution(
            _pad_zeros(b, maps, [(0, 0, 0), *edges, (0, 0, 0)]),
            kernel,
            dimension_numbers=channels_last_dims(rank),
            feature_group_count=attrs["feature_group_count"],
            batch_group_count=1,
            result=result,
            **kept,
        )
    first = _transpose(edit, b, made, tuple(output_order.index(d) for d in range(rank)))
    if first is not made and tuple(output_order) == to_last(rank):
        lasts[first] = made
    return first


def _pad_zeros(b: Builder, value: Value, edges: Sequence[tuple[int, int, int]]) -> Value:
    """(before, after, between) for each axis."""
    if set(edges) == {(0, 0, 0)}:
        return value
    low, high, between = zip(*edges, strict=True)
    zero = b.constant(0.0, value.shape.dtype)
    return b.pad(value, zero, edge_padding_low=low, edge_padding_high=high, interior_padding=between)


class _Phases(Frozen):
    """A transposed convolution (base dilation `step`) along one axis, as `step` ordinary ones: every `step`-th result
    uses every `step`-th tap. Phase r takes the taps from `first[r]` on, shifted by `shift[r]` in a window of `reach`
    taps; `low` and `high` are the padding, `count` the results of each phase."""

    step: int
    first: tuple[int, ...]
    shift: tuple[int, ...]
    reach: int
    low: int
    high: int
    count: Size


def _phases(step: int, taps: int, padding: tuple[int, int], size: Size, results: Size) -> _Phases | None:
    first = tuple((padding[0] - r) % step for r in range(step))
    starts = [(r + at - padding[0]) // step for r, at in enumerate(first)]
    least = min(start for start, at in zip(starts, first, strict=True) if at < taps)
    counts = [len(range(at, taps, step)) for at in first]
    shift = tuple(max(start - least, 0) for start in starts)
    reach = max(by + count for by, count in zip(shift, counts, strict=True) if count)
    each = ceildiv(results, step)
    high = each + reach - 1 - size + least
    even = each * step == results or isinstance(results, int)
    return _Phases(step, first, shift, reach, -least, high, each) if isinstance(high, int) and even else None


def _convolve_in_phases(b: Builder, maps: Value, kernel: Value, phases: Sequence[_Phases], result: Shape) -> Value:
    """All phases as one convolution with output channels [phase, channel]; the results are interleaved."""
    rank, features = len(phases) + 2, result.sizes[-1]
    for axis, phase in reversed(list(enumerate(phases))):
        parts = [_phase_taps(b, kernel, axis, phase, r) for r in range(phase.step)]
        kernel = parts[0] if len(parts) == 1 else b.concatenate(*parts, dimension=rank - 1)
    maps = _pad_zeros(b, maps, [(0, 0, 0), *((phase.low, phase.high, 0) for phase in phases), (0, 0, 0)])
    counts, steps = [phase.count for phase in phases], [phase.step for phase in phases]
    made = b.convolution(
        maps,
        kernel,
        dimension_numbers=channels_last_dims(rank),
        feature_group_count=1,
        batch_group_count=1,
        result=Shape.of(result.dtype, (result.sizes[0], *counts, product(steps) * features)),
    )
    apart = Shape.of(result.dtype, (result.sizes[0], *counts, *steps, features))
    order = [0, *(d for i in range(len(phases)) for d in (1 + i, 1 + len(phases) + i)), apart.rank - 1]
    joined = Shape.of(
        result.dtype, (result.sizes[0], *(n * step for n, step in zip(counts, steps, strict=True)), features)
    )
    made = b.reshape(b.transpose(b.reshape(made, result=apart), permutation=tuple(order)), result=joined)
    return crop(b, made, {1 + i: (0, size) for i, size in enumerate(result.sizes[1:-1])})


def _phase_taps(b: Builder, kernel: Value, axis: int, phase: _Phases, number: int) -> Value:
    """The taps of one phase along one axis, padded to the window of all phases."""
    sizes = kernel.shape.numbers()
    at, by = phase.first[number], phase.shift[number]
    begin, steps = [0] * len(sizes), [1] * len(sizes)
    begin[axis], steps[axis] = min(at, sizes[axis]), phase.step
    part = b.slice(kernel, start_indices=tuple(begin), limit_indices=sizes, strides=tuple(steps))
    edges = [(0, 0, 0)] * len(sizes)
    edges[axis] = (by, phase.reach - by - part.shape.numbers()[axis], 0)
    return _pad_zeros(b, part, edges)


def _transpose(edit: Edit, b: Builder, value: Value, order: Sequence[int]) -> Value:
    """Transpose; composes with the transpose that produces the value, and vanishes if both cancel."""
    value = edit.value(value)
    maker = value.op
    if maker is not None and maker.name == "stablehlo.transpose":
        inner = maker.attrs["permutation"]
        value, order = edit.value(maker.operands[0]), [inner[d] for d in order]
    if tuple(order) == tuple(range(len(order))):
        return value
    return b.transpose(value, permutation=tuple(order))


# ---- ops after a convolution ----


def _follow(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """The op on NHWC operands, and its result transposed back to NCHW."""
    if len(op.results) != 1 or not isinstance(op.results[0].type, Shape):
        return None
    if _is_int8_to_nchw(edit, op) or _is_convolution_to_nchw(edit, op):
        lasts[op.results[0]] = edit.value(op.operands[0])
        return None
    if not any(value in lasts for value in edit.operands(op)):
        return None
    if op.name == "stablehlo.reduce":
        return _reduce(edit, lasts, op)
    if op.name == "stablehlo.transpose":
        return _transpose(edit, edit.before(op), op.operands[0], op.attrs["permutation"])
    rule = _elementwise if OPS[op.name].elementwise else _RULES.get(op.name)
    made = rule(edit, lasts, op) if rule else None
    if made is None:
        return None
    back = edit.before(op).transpose(made, permutation=to_first(made.shape.rank))
    lasts[back] = made
    return back


def _is_int8_to_nchw(edit: Edit, op: Op) -> bool:
    """Whether an op transposes the result of an int8 convolution, which is NHWC already, to NCHW."""
    if op.name != "stablehlo.transpose" or op.attrs["permutation"] != to_first(op.results[0].shape.rank):
        return False
    maker = edit.maker(op.operands[0])
    if maker is not None and maker.name == "stablehlo.slice":
        maker = edit.maker(maker.operands[0])
    if maker is not None and maker.name == "stablehlo.reshape" and op.results[0].shape.rank > 3:
        maker = edit.maker(maker.operands[0])
        return maker is not None and maker.name == "smelt.packed_dot" and maker.result.shape.dtype == i32
    return maker is not None and maker.name == "smelt.packed_conv" and maker.result.shape.dtype == i32


def _is_convolution_to_nchw(edit: Edit, op: Op) -> bool:
    """Whether an op transposes the result of an NHWC convolution to NCHW."""
    if op.name != "stablehlo.transpose" or op.attrs["permutation"] != to_first(op.results[0].shape.rank):
        return False
    maker = edit.maker(op.operands[0])
    return maker is not None and maker.name == "stablehlo.convolution"


def _to_nhwc(edit: Edit, lasts: Lasts, b: Builder, value: Value) -> Value:
    """A value in NHWC, transposed if there is no other way."""
    value = edit.value(value)
    if value in lasts:
        return lasts[value]
    rank, maker = value.shape.rank, value.op
    if maker is not None and maker.name == "stablehlo.broadcast_in_dim":
        places = [to_last(rank).index(d) for d in maker.attrs["broadcast_dimensions"]]
        source, order = edit.value(maker.operands[0]), sorted(range(len(places)), key=places.__getitem__)
        source = _transpose(edit, b, source, order)
        return b.broadcast_in_dim(source, broadcast_dimensions=tuple(sorted(places)), result=_shape_last(value))
    return _transpose(edit, b, value, to_last(rank))


def _shape_last(value: Value) -> Shape:
    sizes = value.shape.sizes
    return Shape.of(value.shape.dtype, tuple(sizes[d] for d in to_last(len(sizes))))


def _permute(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values[d] for d in to_last(len(values)))


def _axis_last(axis: int, rank: int) -> int:
    return to_last(rank).index(axis)


Move = Callable[[Edit, Lasts, Op], Value | None]


def _elementwise(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    rank = op.result.shape.rank
    if any(value.shape.rank not in (0, rank) for value in op.operands):
        return None
    operands = [
        _to_nhwc(edit, lasts, edit.before(op), value) if value.shape.rank else value for value in edit.operands(op)
    ]
    return edit.before(op).op(op.name, *operands, result=_shape_last(op.result), **op.attrs).result


def _broadcast(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Only where batch and channels stay the first two axes; spatial axes may be inserted."""
    source = lasts.get(edit.value(op.operands[0]))
    dims, rank = op.attrs["broadcast_dimensions"], op.result.shape.rank
    if source is None or dims[:2] != (0, 1):
        return None
    places = (0, *(d - 1 for d in dims[2:]), rank - 1)
    return edit.before(op).broadcast_in_dim(source, broadcast_dimensions=places, result=_shape_last(op.result))


def _reshape(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Only where batch and channels stay; spatial axes are merged or split."""
    source, result = lasts.get(edit.value(op.operands[0])), op.result.shape
    if source is None or result.rank < 3 or op.operands[0].shape.sizes[:2] != result.sizes[:2]:
        return None
    return edit.before(op).reshape(source, result=_shape_last(op.result))


def _reduce(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Only where all spatial axes are reduced, as in pooling and batch statistics: the result [batch, channel] or
    [channel] needs no transpose."""
    source = lasts.get(edit.value(op.operands[0]))
    rank, reduced = op.operands[0].shape.rank, sorted(op.attrs["dimensions"])
    if source is None or len(op.operands) != 2 or reduced not in (list(range(2, rank)), [0, *range(2, rank)]):
        return None
    body, axes = clone_region(op.regions[0], {}), tuple(_axis_last(d, rank) for d in reduced)
    return edit.before(op).reduce(source, op.operands[1], dimensions=axes, regions=[body])


def _reduce_window(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    if source is None:
        return None
    attrs: dict[str, Any] = {name: _permute(value) for name, value in op.attrs.items() if value is not None}
    body = clone_region(op.regions[0], {})
    made = edit.before(op).op(
        "stablehlo.reduce_window", source, op.operands[1], regions=[body], result=_shape_last(op.result), **attrs
    )
    return made.result


def _select_and_scatter(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """The gradient of max pooling."""
    maps, pooled = (_to_nhwc(edit, lasts, edit.before(op), value) for value in edit.operands(op)[:2])
    attrs: dict[str, Any] = {name: _permute(value) for name, value in op.attrs.items() if value is not None}
    bodies = [clone_region(region, {}) for region in op.regions]
    made = edit.before(op).op(
        op.name, maps, pooled, op.operands[2], regions=bodies, result=_shape_last(op.result), **attrs
    )
    return made.result


def _pad(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    attrs: dict[str, Any] = {name: _permute(value) for name, value in op.attrs.items()}
    return (
        None
        if source is None
        else edit.before(op).op(op.name, source, op.operands[1], result=_shape_last(op.result), **attrs).result
    )


def _slice(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source = lasts.get(edit.value(op.operands[0]))
    attrs: dict[str, Any] = {name: _permute(value) for name, value in op.attrs.items()}
    return (
        None if source is None else edit.before(op).op(op.name, source, result=_shape_last(op.result), **attrs).result
    )


def _reverse(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    source, rank = lasts.get(edit.value(op.operands[0])), op.result.shape.rank
    if source is None:
        return None
    return edit.before(op).reverse(source, dimensions=tuple(_axis_last(d, rank) for d in op.attrs["dimensions"]))


def _gather(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    """Only of whole slices along one spatial axis, as when a feature map is resized."""
    source, dims = lasts.get(edit.value(op.operands[0])), op.attrs["dimension_numbers"]
    whole, result, axes = op.operands[0].shape, op.result.shape, dims.collapsed_slice_dims
    rank, kept = whole.rank, tuple(d for d in range(whole.rank) if d not in axes)
    along_one = result.rank == rank and len(axes) == 1 and axes[0] > 1 and axes == dims.start_index_map
    if source is None or not along_one or dims.offset_dims != kept or dims.index_vector_dim != 1:
        return None
    if any(result.sizes[d] != whole.sizes[d] for d in kept):
        return None
    axis, b = _axis_last(axes[0], rank), edit.before(op)
    others = tuple(d for d in range(rank) if d != axis)
    attrs = {**op.attrs, "dimension_numbers": GatherDims(others, (axis,), (), (), (axis,), 1)}
    if op.name == "stablehlo.gather":
        attrs["slice_sizes"] = _permute(op.attrs["slice_sizes"])
        return b.gather(source, edit.value(op.operands[1]), **attrs)
    parts = edit.maker(op.operands[2])
    if parts is None or parts.name != "stablehlo.concatenate":
        return None
    if [each.shape.sizes for each in parts.operands] != [(1,)] * rank:
        return None
    sizes = b.concatenate(*(parts.operands[d] for d in to_last(rank)), dimension=0)
    return b.op(op.name, source, edit.value(op.operands[1]), sizes, result=_shape_last(op.result), **attrs).result


def _concatenate(edit: Edit, lasts: Lasts, op: Op) -> Value | None:
    rank = op.result.shape.rank
    operands = [_to_nhwc(edit, lasts, edit.before(op), value) for value in edit.operands(op)]
    return edit.before(op).concatenate(*operands, dimension=_axis_last(op.attrs["dimension"], rank))


_RULES: dict[str, Move] = {
    "stablehlo.broadcast_in_dim": _broadcast,
    "stablehlo.reshape": _reshape,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
    "stablehlo.pad": _pad,
    "stablehlo.slice": _slice,
    "stablehlo.reverse": _reverse,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.gather": _gather,
    "stablehlo.dynamic_gather": _gather,
}
