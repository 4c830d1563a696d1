"""Gathers and scatters."""

from __future__ import annotations

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, DType, i64
from smelt.errors import ParseError, ShapeError
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.build import Builder
from smelt.ir.core import Region, Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.fold import move_known
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text, tensor_of
from smelt.read.onnx.registry import onnx_op

# ---- gathers ----


@onnx_op("Gather")
def gather(g: Graph, data: Item, indices: Tensor, *, axis: int = 0) -> Item | Value:
    """An index out of range is an error, at import where it is known, else when the program runs."""
    if isinstance(data, Text):
        return Text(np.take(data.array, g.numbers(indices, "indices"), axis))
    x = tensor_of(data)
    place = axis_of(axis, x.rank)
    if x.known is not None and indices.known is not None and not indices.is_symbolic:
        _check_indices(indices.known, x.known.shape[place])
        moved = move_known(x, lambda a: np.take(a, indices.known, place))  # type: ignore[arg-type]
        if moved is not None:
            return moved
    if indices.known is not None and indices.known.size == 1 and not indices.is_symbolic:  # one slice: no gather
        return _pick(g, x, indices, place)
    return g.take(g.value(x), wrap_indices(g, indices, x.sizes[place]), place)


def _pick(g: Graph, x: Tensor, indices: Tensor, axis: int) -> Value:
    assert indices.known is not None
    index = int(indices.known.reshape(-1)[0])
    at: Size = x.sizes[axis] + index if index < 0 else index
    size = x.sizes[axis]
    if isinstance(at, int) and isinstance(size, int) and not 0 <= at < size:
        raise ShapeError("Gather: an index is out of range", expected=f"less than {size}", got=index)
    part = g.slice_axis(g.value(x), axis, at, at + 1)
    return g.reshape(part, (*x.sizes[:axis], *indices.sizes, *x.sizes[axis + 1 :]))


def _check_indices(known: Array, size: int) -> None:
    low, high = (int(known.min()), int(known.max())) if known.size else (0, -1)
    if low < -size or high >= size:
        raise ShapeError("an index is out of range", expected=f"-{size} to {size - 1}", got=f"{low} to {high}")


def wrap_indices(g: Graph, indices: Tensor, size: Size) -> Value:
    """Indices as values, counting from the start; known ones are checked."""
    known = indices.known
    if known is not None and not indices.is_symbolic and known.size:
        if isinstance(size, int):
            _check_indices(known, size)
            return g.value(Tensor.constant(np.where(known < 0, known + known.dtype.type(size), known)))
        low, high = int(known.min()), int(known.max())
        g.check_at_most(max(high + 1, -low), size, "an index is out of range")
        return g.value(indices) if low >= 0 else g.wrap(g.value(indices), size)
    value = g.value(indices)
    g.check_range(value, size)
    return g.wrap(value, size)


@onnx_op("GatherElements", since=11)
def gather_elements(g: Graph, data: Value, indices: Tensor, *, axis: int = 0) -> Value:
    place = axis_of(axis, data.shape.rank)
    if indices.rank != data.shape.rank:
        raise ShapeError("GatherElements: ranks differ", expected=data.shape, got=indices.shape)
    at = _coordinates(g, wrap_indices(g, indices, data.shape.sizes[place]), place)
    rank = data.shape.rank
    dims = GatherDims(
        collapsed_slice_dims=tuple(range(rank)), start_index_map=tuple(range(rank)), index_vector_dim=rank
    )
    return g.gather(data, at, dims, (1,) * rank)


def _coordinates(g: Graph, indices: Value, axis: int) -> Value:
    """For every index its place in the data: its own coordinates, with the index for one of them."""
    sizes = indices.shape.sizes
    whole = g.convert(indices, i64)
    parts = [whole if i == axis else g.iota(i64, sizes, i) for i in range(len(sizes))]
    return g.concat([g.reshape(part, (*sizes, 1)) for part in parts], len(sizes))


@onnx_op("GatherND", since=11)
def gather_nd(g: Graph, data: Value, indices: Tensor, *, batch_dims: int = 0) -> Value:
    depth = indices.sizes[-1] if indices.rank else None
    if not isinstance(depth, int) or not 0 <= batch_dims <= min(data.shape.rank, indices.rank - 1):
        raise ShapeError("GatherND: the indices do not fit", expected=data.shape, got=indices.shape)
    if batch_dims + depth > data.shape.rank:
        raise ShapeError("GatherND: too many indices", expected=data.shape, got=indices.shape)
    at = _wrapped_vectors(g, indices, data.shape.sizes[batch_dims : batch_dims + depth])
    picked = tuple(range(batch_dims, batch_dims + depth))
    batch = tuple(range(batch_dims))
    window = [1 if i < batch_dims + depth else n for i, n in enumerate(data.shape.sizes)]
    many = indices.rank - 1
    dims = GatherDims(
        offset_dims=tuple(range(many, many + data.shape.rank - batch_dims - depth)),
        collapsed_slice_dims=picked,
        operand_batching_dims=batch,
        start_indices_batching_dims=batch,
        start_index_map=picked,
        index_vector_dim=many,
    )
    return g.gather(data, at, dims, window)


def _wrapped_vectors(g: Graph, indices: Tensor, sizes: tuple[Size, ...]) -> Value:
    """Index vectors along the last dimension, checked, each entry counted from the end where it is negative."""
    known = None if indices.is_symbolic else indices.known
    value = None if known is not None else g.value(indices)
    parts: list[Value] = []
    for i, size in enumerate(sizes):
        if known is not None:
            column = Tensor.constant(known[..., i : i + 1])
        else:
            assert value is not None
            column = Tensor.of(g.slice_axis(value, indices.rank - 1, i, i + 1))
        parts.append(wrap_indices(g, column, size))
    return g.concat(parts, indices.rank - 1) if parts else g.value(indices)


@onnx_op("ReverseSequence", since=10, ranks={"input": "2+", "sequence_lens": "1"})
def reverse_sequence(g: Graph, input: Value, sequence_lens: Value, *, batch_axis: int = 1, time_axis: int = 0) -> Value:
    rank = input.shape.rank
    batch, time = axis_of(batch_axis, rank), axis_of(time_axis, rank)
    sizes = input.shape.sizes
    counts = g.convert(sequence_lens, i64)
    g.check_range(counts, sizes[time] + 1, negative=False)
    lengths = g.broadcast_in_dim(counts, sizes, (batch,))
    at = g.iota(i64, sizes, time)
    mirrored = g.plus(g.binary("subtract", lengths, at), -1)
    source = g.select(g.compare(at, lengths, "LT"), mirrored, at)
    every = tuple(range(rank))
    dims = GatherDims(collapsed_slice_dims=every, start_index_map=every, index_vector_dim=rank)
    return g.gather(input, _coordinates(g, source, time), dims, (1,) * rank)


# ---- scatters ----


def _combine(g: Graph, element: DType, reduction: str) -> Region:
    ops = {"add": "add", "mul": "multiply", "max": "maximum", "min": "minimum"}
    if reduction != "none" and reduction not in ops:
        raise ParseError("attribute 'reduction'", expected="none, add, mul, max or min", got=reduction)

    def body(r: Builder, a: Value, b: Value) -> Value:
        return b if reduction == "none" else r.op(f"stablehlo.{ops[reduction]}", a, b).result

    return g.scalar_region(element, body)


@onnx_op("ScatterElements", since=11)
def scatter_elements(
    g: Graph, data: Value, indices: Tensor, updates: Value, *, axis: int = 0, reduction: str = "none"
) -> Value:
    rank = data.shape.rank
    place = axis_of(axis, rank)
    if indices.rank != rank:
        raise ShapeError("ScatterElements: ranks differ", expected=data.shape, got=indices.shape)
    at = _coordinates(g, wrap_indices(g, indices, data.shape.sizes[place]), place)
    every = tuple(range(rank))
    dims = ScatterDims(inserted_window_dims=every, scatter_dims_to_operand_dims=every, index_vector_dim=rank)
    return g.scatter(data, at, updates, dims, _combine(g, data.shape.element, reduction))


@onnx_op("Scatter", since=9)
def scatter(g: Graph, data: Value, indices: Tensor, updates: Value, *, axis: int = 0) -> Value:
    return scatter_elements(g, data, indices, updates, axis=axis)


@onnx_op("ScatterND", since=11)
def scatter_nd(g: Graph, data: Value, indices: Tensor, updates: Value, *, reduction: str = "none") -> Value:
    depth = indices.sizes[-1] if indices.rank else None
    rank, many = data.shape.rank, indices.rank - 1
    if not isinstance(depth, int) or depth > rank:
        raise ShapeError("ScatterND: the indices do not fit", expected=data.shape, got=indices.shape)
    at = _wrapped_vectors(g, indices, data.shape.sizes[:depth])
    dims = ScatterDims(
        update_window_dims=tuple(range(many, many + rank - depth)),
        inserted_window_dims=tuple(range(depth)),
        scatter_dims_to_operand_dims=tuple(range(depth)),
        index_vector_dim=many,
    )
    return g.scatter(data, at, updates, dims, _combine(g, data.shape.element, reduction))


@onnx_op("TensorScatter", since=24, ranks={"past_cache": "2+", "write_indices": "1"})
def tensor_scatter(
    g: Graph,
    past_cache: Value,
    update: Value,
    write_indices: Value | None = None,
    *,
    axis: int = -2,
    mode: str = "linear",
) -> Value:
    """Each batch writes its update from an index on; a circular cache goes on at its start."""
    rank = past_cache.shape.rank
    place = axis_of(axis, rank)
    if mode not in ("linear", "circular"):
        raise ParseError("TensorScatter: attribute 'mode'", expected="linear or circular", got=mode)
    if place == 0:
        raise ShapeError("TensorScatter: axis must not be the batch's", got=axis)
    sizes = update.shape.sizes
    at = g.iota(i64, sizes, place)
    if write_indices is not None:
        at = g.binary("add", at, g.broadcast_in_dim(g.convert(write_indices, i64), sizes, (0,)))
    if mode == "linear":
        g.check_range(at, past_cache.shape.sizes[place], negative=False)
    if mode == "circular":
        at = g.binary("remainder", at, g.size(past_cache.shape.sizes[place]))
    every = tuple(range(rank))
    dims = ScatterDims(inserted_window_dims=every, scatter_dims_to_operand_dims=every, index_vector_dim=rank)
    return g.scatter(
        past_cache, _coordinates(g, at, place), update, dims, _combine(g, past_cache.shape.element, "none")
    )
