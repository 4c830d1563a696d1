"""Ops that move data: reshape, broadcast, slice, pad, concatenate, gather, scatter, sort, and their dynamic forms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import dtype, i1, i32, i64
from smelt.ir.attributes import GatherDims
from smelt.ir.core import Op, Region
from smelt.write.onnx.graph import Graph, Out, count_elements, refuse, shape_of
from smelt.write.onnx.ops.elementwise import where
from smelt.write.onnx.types import type_for

_SORTED = 1 << 10  # elements of an axis whose order is found by comparing each with each


def _constant(g: Graph, op: Op) -> Out:
    value = op.attrs["value"]
    shape_of(op.results[0])
    return g.constant(np.asarray(value.array), value.dtype, op.results[0].name or "const")


def _iota(g: Graph, op: Op) -> Out:
    element, sizes = shape_of(op.results[0])
    axis = op.attrs["iota_dimension"]
    return g.expand(g.along(g.iota(sizes[axis], element), axis, len(sizes)), sizes)


def _broadcast_in_dim(g: Graph, op: Op) -> Out:
    _, sizes = shape_of(op.results[0])
    return g.expand(g.stretch(g.thin_source(op), op), sizes)


def _reshape(g: Graph, op: Op) -> Out:
    return g.reshape(g.get(op.operands[0]), shape_of(op.results[0])[1])


def _transpose(g: Graph, op: Op) -> Out:
    return g.transpose(g.get(op.operands[0]), op.attrs["permutation"])


def _reverse(g: Graph, op: Op) -> Out:
    return g.flip(g.get(op.operands[0]), op.attrs["dimensions"])


def _slice(g: Graph, op: Op) -> Out:
    names = ("start_indices", "limit_indices", "strides")
    return _with_size(g.slice(g.get(op.operands[0]), *(op.attrs[name] for name in names)), op)


def _with_size(x: Out, op: Op) -> Out:
    """A tensor with the sizes that the program states."""
    return Out(x.name, x.dtype, shape_of(op.results[0])[1])


def _pad(g: Graph, op: Op) -> Out:
    x, value = map(g.get, op.operands)
    x = g.spread_elements(x, op.attrs["interior_padding"], value)
    return _with_size(g.pad(x, op.attrs["edge_padding_low"], op.attrs["edge_padding_high"], value), op)


def _concatenate(g: Graph, op: Op) -> Out:
    return _with_size(g.concat([g.get(value) for value in op.operands], op.attrs["dimension"]), op)


def _get_dimension_size(g: Graph, op: Op) -> Out:
    return g.reshape(g.cast(g.length(g.get(op.operands[0]), op.attrs["dimension"]), i32), ())


def _set_dimension_size(g: Graph, op: Op) -> Out:
    x, size = map(g.get, op.operands)
    axis, zero = op.attrs["dimension"], g.constant([0], i64)
    _, sizes = shape_of(op.results[0])
    return g.slice_axis(x, axis, zero, g.reshape(g.cast(size, i64), [1]), sizes[axis])


def _bitcast_convert(g: Graph, op: Op) -> Out:
    x, (element, sizes) = g.get(op.operands[0]), shape_of(op.results[0])
    if not (x.dtype.is_integer and element.is_integer and x.dtype.bits == element.bits):
        refuse("ONNX cannot see the bits of floats, nor split integers into parts")
    return Out(g.cast(x, element).name, element, sizes)


# ---- bounds that are tensors ----


def _numbers(g: Graph, x: Out) -> Out:
    return g.cast(x, i64)


def _dynamic_reshape(g: Graph, op: Op) -> Out:
    x, shape = map(g.get, op.operands)
    return g.call("Reshape", x, _numbers(g, shape), sizes=shape_of(op.results[0])[1], typed=1, allowzero=1)


def _dynamic_broadcast_in_dim(g: Graph, op: Op) -> Out:
    x = g.stretch(g.get(op.operands[0]), op)
    return g.call("Expand", x, _numbers(g, g.get(op.operands[1])), sizes=shape_of(op.results[0])[1], typed=1)


def _dynamic_iota(g: Graph, op: Op) -> Out:
    element, sizes = shape_of(op.results[0])
    axis, shape = op.attrs["iota_dimension"], _numbers(g, g.get(op.operands[0]))
    count = g.call("Gather", shape, g.constant(axis, i64), sizes=(), typed=1, axis=0)
    start, step = (g.constant(number, i64) for number in (0, 1))
    line = g.call("Range", start, count, step, sizes=[sizes[axis]])
    return g.call("Expand", g.along(g.cast(line, element), axis, len(sizes)), shape, sizes=sizes, typed=1)


def _dynamic_pad(g: Graph, op: Op) -> Out:
    x, value, low, high = map(g.get, op.operands[:4])
    maker = op.operands[4].op
    holes = maker.attrs["value"].array if maker is not None and maker.name == "stablehlo.constant" else None
    if holes is None or np.any(holes):
        refuse("amounts of interior padding that are computed")
    amounts = g.concat([_numbers(g, low), _numbers(g, high)], 0)
    return g.call("Pad", x, amounts, g.reshape(value, ()), sizes=shape_of(op.results[0])[1])


def _real_dynamic_slice(g: Graph, op: Op) -> Out:
    x, starts, limits, strides = map(g.get, op.operands)
    axes = g.constant(list(range(x.rank)), i64)
    bounds = _numbers(g, starts), _numbers(g, limits), axes, _numbers(g, strides)
    return g.call("Slice", x, *bounds, sizes=shape_of(op.results[0])[1], typed=1)


def clamp_start(g: Graph, start: Out, x: Out, axis: int, size: Size) -> Out:
    """A start index held inside the tensor, as an i64 vector of one element."""
    most = g.size(x.sizes[axis] - size)
    return g.call("Min", g.call("Max", g.reshape(_numbers(g, start), [1]), g.constant([0], i64)), most)


def _dynamic_slice(g: Graph, op: Op) -> Out:
    x = g.get(op.operands[0])
    for axis, (start, size) in enumerate(zip(op.operands[1:], op.attrs["slice_sizes"], strict=True)):
        if x.sizes[axis] != size:
            at = clamp_start(g, g.get(start), x, axis, size)
            x = g.slice_axis(x, axis, at, g.call("Add", at, g.constant([size], i64)), size)
    return x


def _dynamic_update_slice(g: Graph, op: Op) -> Out:
    """The update padded to the tensor's sizes, where a padded mask says so."""
    x, update = g.get(op.operands[0]), g.get(op.operands[1])
    starts = [
        clamp_start(g, g.get(start), x, axis, size)
        for axis, (start, size) in enumerate(zip(op.operands[2:], update.sizes, strict=True))
    ]
    if x.sizes == update.sizes or not starts:
        return g.expand(update, x.sizes)
    low = g.concat(starts, 0)
    high = g.call("Sub", g.call("Sub", g.vector(x.sizes), low), g.vector(update.sizes))
    amounts = g.concat([low, high], 0)
    element = dtype("ui8") if x.dtype is i1 else x.dtype
    filled = g.call("Pad", g.cast(update, element), amounts, g.constant(0, element), sizes=x.sizes)
    mask = g.call("Pad", g.expand(g.constant(True, i1), update.sizes), amounts, g.constant(False, i1), sizes=x.sizes)
    return g.cast(where(g, mask, filled, g.cast(x, element)), x.dtype)


# ---- gather and scatter ----


def _take(g: Graph, x: Out, indices: Out, axis: int) -> Out:
    sizes = [*x.sizes[:axis], *indices.sizes, *x.sizes[axis + 1 :]]
    return g.call("Gather", x, indices, sizes=sizes, typed=1, axis=axis)


def _torch_index_select(g: Graph, op: Op) -> Out:
    x, index = map(g.get, op.operands)
    if op.attrs["batch_dims"]:
        refuse("torch_index_select with batch dimensions")
    return _take(g, x, _numbers(g, index), op.attrs["dim"])


def _gather(g: Graph, op: Op) -> Out:
    x, indices = g.get(op.operands[0]), _numbers(g, g.get(op.operands[1]))
    dims, sizes = op.attrs["dimension_numbers"], tuple(op.attrs["slice_sizes"])
    return _gather_slices(g, x, indices, dims, sizes, shape_of(op.results[0])[1])


def _dynamic_gather(g: Graph, op: Op) -> Out:
    """The sizes of a slice follow from those of the result."""
    x, indices = g.get(op.operands[0]), _numbers(g, g.get(op.operands[1]))
    dims, result = op.attrs["dimension_numbers"], shape_of(op.results[0])[1]
    offsets = iter(dims.offset_dims)
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    sizes = tuple(1 if d in dropped else result[next(offsets)] for d in range(x.rank))
    return _gather_slices(g, x, indices, dims, sizes, result)


def _gather_slices(g: Graph, x: Out, indices: Out, d: GatherDims, sizes: Sequence[Size], result: Sequence[Size]) -> Out:
    indices = _vectors_last(g, indices, d.index_vector_dim)
    mapped, dropped = d.start_index_map, {*d.collapsed_slice_dims, *d.operand_batching_dims}
    batch = [axis for axis in range(len(result)) if axis not in d.offset_dims]
    whole = all(size == x.sizes[axis] for axis, size in enumerate(sizes) if axis not in mapped)
    if len(mapped) == 1 and set(mapped) == dropped and whole and not d.operand_batching_dims:
        axis = mapped[0]
        starts = g.reshape(indices, indices.sizes[:-1])
        most = g.reshape(g.size(x.sizes[axis] - 1), ())
        inside = g.call("Min", g.call("Max", starts, g.constant(0, i64)), most)
        taken = _take(g, x, inside, axis)
        own = [*d.offset_dims[:axis], *batch, *d.offset_dims[axis:]]
        return g.transpose(taken, [own.index(i) for i in range(len(result))])
    places = _places(g, x, indices, d, sizes, result, batch)
    full = g.expand(g.concat([g.reshape(each, [*each.sizes, 1]) for each in places], len(result)), [*result, x.rank])
    return g.call("GatherND", x, full, sizes=result, typed=1)


def _vectors_last(g: Graph, indices: Out, at: int) -> Out:
    """Index vectors along the last axis."""
    if at == indices.rank:
        return g.reshape(indices, [*indices.sizes, 1])
    return g.transpose(indices, [*(i for i in range(indices.rank) if i != at), at])


def _places(
    g: Graph, x: Out, indices: Out, d: GatherDims, sizes: Sequence[Size], result: Sequence[Size], batch: Sequence[int]
) -> list[Out]:
    """For each axis of the operand the index of each element of the result."""
    rank, found = len(result), []
    offsets = iter(d.offset_dims)
    dropped = {*d.collapsed_slice_dims, *d.operand_batching_dims}
    for axis in range(x.rank):
        place: Out = g.constant(0, i64)
        if axis not in dropped:
            at = next(offsets)
            place = g.along(g.iota(result[at]), at, rank)
        if axis in d.start_index_map:
            start = _index_part(g, indices, d.start_index_map.index(axis))
            most = g.reshape(g.size(x.sizes[axis] - sizes[axis]), ())
            start = g.call("Min", g.call("Max", start, g.constant(0, i64)), most)
            place = g.call("Add", place, _in_batch(g, start, batch, rank))
        if axis in d.operand_batching_dims:
            at = batch[_batch_place(d, axis)]
            place = g.call("Add", place, g.along(g.iota(result[at]), at, rank))
        found.append(g.expand(place, result))
    return found


def _batch_place(d: GatherDims, axis: int) -> int:
    """The position among the batch axes of the result that runs over a batching axis of the operand."""
    at = d.start_indices_batching_dims[d.operand_batching_dims.index(axis)]
    return int(at - (at > d.index_vector_dim))


def _index_part(g: Graph, indices: Out, part: int) -> Out:
    sizes = indices.sizes[:-1]
    return g.call("Gather", indices, g.constant(part, i64), sizes=sizes, typed=1, axis=indices.rank - 1)


def _in_batch(g: Graph, x: Out, batch: Sequence[int], rank: int) -> Out:
    """A tensor over the batch axes among all axes of the result."""
    sizes: list[Size] = [1] * rank
    for size, at in zip(x.sizes, batch, strict=True):
        sizes[at] = size
    return g.reshape(x, sizes)


_REDUCTIONS = {"add": "add", "multiply": "mul", "maximum": "max", "minimum": "min"}


def _scatter(g: Graph, op: Op) -> Sequence[Out]:
    """On flat tensors with one element more, which takes the updates that are out of bounds."""
    count = len(op.results)
    indices = _numbers(g, g.get(op.operands[count]))
    kinds = [_scatter_kind(op.regions[0], i, count) for i in range(count)]
    outs = []
    for i, kind in enumerate(kinds):
        x, update = g.get(op.operands[i]), g.get(op.operands[count + 1 + i])
        outs.append(_scatter_one(g, x, update, indices, op, kind))
    return outs


def _scatter_kind(region: Region, i: int, count: int) -> str:
    """The reduction of a scatter: "" keeps the update."""
    result, (old, new) = region.results[i], (region.args[i], region.args[count + i])
    if result is new:
        return ""
    op = result.op
    name = "" if op is None else op.name.removeprefix("stablehlo.")
    if op is None or name not in _REDUCTIONS or set(op.operands) != {old, new}:
        refuse("a scatter with a computation other than add, multiply, maximum, minimum or the update itself")
    return _REDUCTIONS[name]


def _scatter_one(g: Graph, x: Out, update: Out, indices: Out, op: Op, kind: str) -> Out:
    d = op.attrs["scatter_dimension_numbers"]
    vectors = _vectors_last(g, indices, d.index_vector_dim)
    batch = [axis for axis in range(update.rank) if axis not in d.update_window_dims]
    windows = iter(d.update_window_dims)
    dropped = {*d.inserted_window_dims, *d.input_batching_dims}
    flat: Out = g.constant(0, i64)
    inside: Out = g.constant(True, i1)
    for axis in range(x.rank):
        place: Out = g.constant(0, i64)
        if axis not in dropped:
            at = next(windows)
            place = g.along(g.iota(update.sizes[at]), at, update.rank)
        if axis in d.scatter_dims_to_operand_dims:
            start = _index_part(g, vectors, d.scatter_dims_to_operand_dims.index(axis))
            place = g.call("Add", place, _in_batch(g, start, batch, update.rank))
        if axis in d.input_batching_dims:
            at = d.scatter_indices_batching_dims[d.input_batching_dims.index(axis)]
            at = batch[at - (at > d.index_vector_dim)]
            place = g.call("Add", place, g.along(g.iota(update.sizes[at]), at, update.rank))
        size = g.reshape(g.size(x.sizes[axis]), ())
        least = g.call("GreaterOrEqual", place, g.constant(0, i64), to=i1)
        inside = g.call("And", inside, g.call("And", least, g.call("Less", place, size, to=i1)))
        flat = g.call("Add", g.call("Mul", flat, size), place)
    total = count_elements(x.sizes)
    flat = where(g, inside, flat, g.reshape(g.size(total), ()))
    targets = g.reshape(g.expand(flat, update.sizes), [count_elements(update.sizes)])
    element = dtype("ui8") if x.dtype is i1 and kind else x.dtype
    if kind and element.name in ("bf16", "i8", "ui8", "i16", "ui16", "f16"):
        element = dtype("f32") if element.is_float else i32
    source = g.reshape(g.cast(x, element), [total])
    longer = g.pad(source, [0], [1], g.constant(0, element))
    new = g.reshape(g.cast(update, element), targets.sizes)
    options: dict[str, Any] = {"reduction": kind} if kind else {}
    done = g.call("ScatterElements", longer, targets, new, sizes=longer.sizes, axis=0, **options)
    cut = g.slice_axis(done, 0, g.constant([0], i64), g.size(total), total)
    return g.cast(g.reshape(cut, x.sizes), x.dtype)


# ---- order ----


def _sort(g: Graph, op: Op) -> Sequence[Out]:
    """By comparing each element of an axis with each: any comparator, ties in the order they come."""
    inputs = [g.get(value) for value in op.operands]
    axis = op.attrs["dimension"] % max(inputs[0].rank, 1)
    if not inputs[0].rank:
        return inputs
    simple = _plain_order(op.regions[0])
    if simple is not None and inputs[0].dtype.is_integer and inputs[0].dtype.name != "ui64":
        return _sort_by_key(g, inputs, axis, largest=simple)
    size = inputs[0].sizes[axis]
    if not isinstance(size, int) or size > _SORTED:
        refuse(f"a sort of more than {_SORTED} elements with a comparator that TopK does not have")
    if size < 2:
        return inputs
    before = _compare_pairs(g, op.regions[0], inputs, axis)  # [..., i, j]: whether i comes before j
    after = g.transpose(before, [*range(before.rank - 2), before.rank - 1, before.rank - 2])
    first = np.tri(size, size, -1, bool).T  # i < j
    tied = g.call("And", g.call("Equal", before, after, to=i1), g.constant(first, i1))  # LE says both of a tie
    leads = g.cast(g.call("Or", g.call("And", before, g.call("Not", after)), tied), i32)
    rank = g.call(
        "ReduceSum",
        leads,
        g.constant([leads.rank - 2], i64),
        sizes=leads.sizes[:-2] + leads.sizes[-1:],
        typed=1,
        keepdims=0,
    )
    line = g.constant(np.arange(size), i32)
    hit = g.call("Equal", g.reshape(rank, [*rank.sizes, 1]), line, to=i1)  # [..., i, place]
    index = _hit_index(g, hit)
    order = [*(i for i in range(inputs[0].rank) if i != axis), axis]
    back = [order.index(i) for i in range(len(order))]
    index = g.transpose(index, back)
    return [g.call("GatherElements", x, index, sizes=x.sizes, typed=1, axis=axis) for x in inputs]


def _hit_index(g: Graph, hit: Out) -> Out:
    """Which i is hit, for each place."""
    size = hit.sizes[-2]
    assert isinstance(size, int)
    line = g.constant(np.arange(size).reshape(size, 1), i64)
    chosen = g.call("Mul", g.cast(hit, i64), line)
    axes = g.constant([hit.rank - 2], i64)
    return g.call("ReduceSum", chosen, axes, sizes=hit.sizes[:-2] + hit.sizes[-1:], typed=1, keepdims=0)


def _compare_pairs(g: Graph, region: Region, inputs: Sequence[Out], axis: int) -> Out:
    args = []
    for x in inputs:
        last = g.transpose(x, [*(i for i in range(x.rank) if i != axis), axis])
        args += [g.reshape(last, [*last.sizes, 1]), g.reshape(last, [*last.sizes[:-1], 1, last.sizes[-1]])]
    sizes = [*args[0].sizes[:-1], args[0].sizes[-2]]
    return g.expand(g.apply(region, *args)[0], sizes)


def _plain_order(region: Region) -> bool | None:
    """Whether the largest comes first, for a comparator of the first operand alone; None for any other one."""
    op = region.results[0].op
    if op is None or op.name != "stablehlo.compare" or op.operands != region.args[:2]:
        return None
    return {"LT": False, "GT": True}.get(op.attrs["comparison_direction"])


def _sort_by_key(g: Graph, inputs: Sequence[Out], axis: int, *, largest: bool) -> Sequence[Out]:
    key, index = top_k(g, inputs[0], g.size(inputs[0].sizes[axis]), inputs[0].sizes[axis], axis, largest)
    rest = [g.call("GatherElements", x, index, sizes=x.sizes, typed=1, axis=axis) for x in inputs[1:]]
    return [key, *rest]


def top_k(g: Graph, x: Out, k: Out, size: Size, axis: int, largest: bool) -> tuple[Out, Out]:
    wide = type_for("TopK", x.dtype)
    sizes = [size if i == axis else each for i, each in enumerate(x.sizes)]
    values, indices = g.new(wide, sizes, "topk"), g.new(i64, sizes, "topk_index")
    g.add_node("TopK", [g.cast(x, wide), k], [values, indices], axis=axis, largest=int(largest), sorted=1)
    return g.cast(values, x.dtype), indices


def _top_k(g: Graph, op: Op) -> Sequence[Out]:
    x, k = g.get(op.operands[0]), op.attrs["k"]
    values, indices = top_k(g, x, g.constant([k], i64), k, x.rank - 1, True)
    return [values, g.cast(indices, i32)]


ROWS = {
    "stablehlo.constant": _constant,
    "chlo.constant": _constant,
    "stablehlo.iota": _iota,
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _transpose,
    "stablehlo.reverse": _reverse,
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.concatenate": _concatenate,
    "stablehlo.get_dimension_size": _get_dimension_size,
    "stablehlo.set_dimension_size": _set_dimension_size,
    "stablehlo.bitcast_convert": _bitcast_convert,
    "stablehlo.dynamic_reshape": _dynamic_reshape,
    "chlo.dynamic_reshape": _dynamic_reshape,
    "stablehlo.dynamic_broadcast_in_dim": _dynamic_broadcast_in_dim,
    "stablehlo.dynamic_iota": _dynamic_iota,
    "stablehlo.dynamic_pad": _dynamic_pad,
    "stablehlo.real_dynamic_slice": _real_dynamic_slice,
    "stablehlo.dynamic_slice": _dynamic_slice,
    "stablehlo.dynamic_update_slice": _dynamic_update_slice,
    "stablehlo.torch_index_select": _torch_index_select,
    "stablehlo.gather": _gather,
    "stablehlo.dynamic_gather": _dynamic_gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.sort": _sort,
    "chlo.top_k": _top_k,
}
