"""Ops with computed indices: gather, scatter, dynamic slices, sort and top_k.

Inference proves the dimension numbers and gives sizes; `evaluate` is NumPy's fancy indexing over whole tensors. Regions
run through `frame.lanes`, for all elements of a step at once. `dynamic` shares the rules of `gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, ElementType, Quantized, i1, i32
from smelt.errors import RunError, SizeError
from smelt.ir.attributes import BOOL, GATHER, INT, INTS, SCATTER, GatherDims, ScatterDims, elements
from smelt.ir.core import Op, Region, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.reduce import check_reducer, promote
from smelt.ir.ops.shape import check_equal, not_per_axis, same_length
from smelt.shape import Shape


def as_int64(indices: Array) -> Array:
    """Indices of any integer type; what is beyond int64 is far out of range in every tensor."""
    if indices.dtype == np.uint64:
        indices = np.minimum(indices, np.uint64(1 << 62))
    return np.asarray(indices).astype(np.int64)


def _check_indices(call: Call, indices: Shape, label: str) -> None:
    call.require(indices.dtype.is_integer, label, "indices must be integers", got=indices)


def _check_starts(call: Call, first: int, rank: int, rank_label: str, type_label: str) -> None:
    """Start indices: one scalar per dimension, all of one integer type."""
    starts = call.shapes[first:]
    call.require(len(starts) == rank, rank_label, "one start index per dimension", expected=rank, got=len(starts))
    for start in starts:
        call.require(start.rank == 0, type_label, "a start index must be a scalar", got=start)
        _check_indices(call, start, type_label)
        call.same_dtype(starts[0].dtype, start.dtype, type_label, "start indices must have one type")


# ---- gather ----


def infer_gather(
    call: Call, operand: Shape, indices: Shape, dims: GatherDims, slice_sizes: Sequence[Size | None]
) -> tuple[ElementType, list[Size | None]]:
    """The result's element type and sizes; a slice size that is not known stays None. Labels are those of `gather`."""
    not_per_axis(call, operand)
    _check_indices(call, indices, "gather_i2")
    collapsed, batching = dims.collapsed_slice_dims, dims.operand_batching_dims
    rank = operand.rank
    covered = len(dims.offset_dims) + len(collapsed) + len(batching)
    call.require(rank == covered, "gather_c1", "every operand dimension plays one part", expected=rank, got=covered)
    batch = _check_index_vector(
        call, indices, dims.index_vector_dim, len(dims.start_index_map), "start_index_map", "gather_c2", "gather_c3"
    )
    call.check_dims(dims.offset_dims, len(batch) + len(dims.offset_dims), "gather_c5", "offset_dims", unique=False)
    call.check_dims(dims.offset_dims, len(batch) + len(dims.offset_dims), "gather_c4", "offset_dims", ordered=True)
    call.check_dims(collapsed, rank, "gather_c8", "collapsed_slice_dims", unique=False)
    call.check_dims(collapsed, rank, "gather_c7", "collapsed_slice_dims", unique=False, ordered=True)
    call.check_dims(batching, rank, "gather_c11", "operand_batching_dims", unique=False)
    call.check_dims(batching, rank, "gather_c10", "operand_batching_dims", unique=False, ordered=True)
    call.check_dims((*collapsed, *batching), rank, "gather_c6", "collapsed_slice_dims and operand_batching_dims")
    _check_batching(
        call, operand, batching, indices, dims.start_indices_batching_dims, dims.index_vector_dim,
        "start_indices_batching_dims", ("gather_c13", "gather_c14", "gather_c15", "gather_c16", "gather_c17"),
    )  # fmt: skip
    call.check_dims(dims.start_index_map, rank, "gather_c19", "start_index_map", unique=False)
    call.check_dims((*dims.start_index_map, *batching), rank, "gather_c18", "start_index_map and operand_batching_dims")
    same_length(call, rank, "gather_c20", slice_sizes=slice_sizes)
    for dim, (size, most) in enumerate(zip(slice_sizes, operand.sizes, strict=True)):
        if size is None:
            continue
        call.at_most(0, size, "gather_c21", "slice sizes must not be negative")
        call.at_most(size, most, "gather_c21", f"slice {dim} must fit into the operand", unless_empty=batch)
        if dim in collapsed or dim in batching:
            call.at_most(
                size, 1, "gather_c9" if dim in collapsed else "gather_c12", "the slice must have one element here"
            )
    windows = iter([size for dim, size in enumerate(slice_sizes) if dim not in collapsed and dim not in batching])
    batches = iter(batch)
    return operand.dtype, [
        next(windows) if dim in dims.offset_dims else next(batches) for dim in range(len(batch) + len(dims.offset_dims))
    ]


def _check_index_vector(
    call: Call, indices: Shape, vector_dim: int, count: int, what: str, range_label: str, size_label: str
) -> list[Size]:
    """`index_vector_dim` is a dimension of the indices with one number per mapped dimension; gives the other sizes."""
    in_range = 0 <= vector_dim <= indices.rank
    call.require(
        in_range, range_label, "index_vector_dim must be a dimension of the indices", expected=indices, got=vector_dim
    )
    size = indices.sizes[vector_dim] if vector_dim < indices.rank else 1
    call.same_size(count, size, size_label, f"{what} must have one number per index")
    return [size for dim, size in enumerate(indices.sizes) if dim != vector_dim]


def _check_batching(
    call: Call,
    operand: Shape,
    batching: Sequence[int],
    indices: Shape,
    indices_batching: Sequence[int],
    vector_dim: int,
    what: str,
    labels: tuple[str, str, str, str, str],
) -> None:
    unique, in_range, not_vector, count, size = labels
    call.check_dims(indices_batching, indices.rank, in_range, what, unique=False)
    call.check_dims(indices_batching, indices.rank, unique, what)
    call.require(
        vector_dim not in indices_batching, not_vector, f"index_vector_dim must not be in {what}", got=vector_dim
    )
    call.require(
        len(batching) == len(indices_batching),
        count,
        f"{what} must pair up",
        expected=len(batching),
        got=list(indices_batching),
    )
    for a, b in zip(batching, indices_batching, strict=True):
        call.same_size(operand.sizes[a], indices.sizes[b], size, "batching dimensions must have one size")


def _infer_gather(call: Call) -> list[Type]:
    dtype, sizes = infer_gather(
        call, call.shape(0), call.shape(1), call.attrs["dimension_numbers"], call.attrs["slice_sizes"]
    )
    return [Shape.of(dtype, [size for size in sizes if size is not None])]


def _eval_gather(_: Frame, op: Op, operand: Array, indices: Array) -> Array:
    return gather(op, operand, indices, op.attrs["slice_sizes"])


def gather(op: Op, operand: Array, indices: Array, slice_sizes: Sequence[int]) -> Array:
    """Slices of the operand; dimensions that are taken whole are sliced, all others are indexed by broadcast arrays."""
    dims: GatherDims = op.attrs["dimension_numbers"]
    starts, batch = _starts(op, indices, dims.index_vector_dim, dims.start_index_map)
    fits = all(size <= most for size, most in zip(slice_sizes, operand.shape, strict=True))
    if min(slice_sizes, default=0) < 0 or not (fits or 0 in batch):  # where nothing is read, nothing need be there
        raise SizeError(
            f"{op.name}: a slice does not fit", expected=list(operand.shape), got=list(slice_sizes), where=op.location
        )
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    if any(slice_sizes[dim] > 1 for dim in dropped):
        raise RunError(f"{op.name}: a collapsed slice has several elements", got=list(slice_sizes), where=op.location)
    check_equal(
        op,
        (
            [indices.shape[dim] for dim in dims.start_indices_batching_dims],
            [operand.shape[dim] for dim in dims.operand_batching_dims],
        ),
    )
    rank, kept = len(batch) + len(dims.offset_dims), [dim for dim in range(operand.ndim) if dim not in dropped]
    whole = [dim for dim in kept if slice_sizes[dim] == operand.shape[dim]]
    picked = [dim for dim in range(operand.ndim) if dim not in whole]
    inner = [dim for dim in kept if dim not in whole]  # indexed, and still a dimension of the result
    coordinates = []
    for dim in picked:
        most = max(operand.shape[dim] - max(slice_sizes[dim], 1), 0)
        at = np.clip(starts[dim], 0, most) if dim in starts else np.zeros((1,) * len(batch), np.int64)
        if dim in dims.operand_batching_dims:
            at = _batch_index(
                dims.start_indices_batching_dims[dims.operand_batching_dims.index(dim)], dims.index_vector_dim, batch
            )
        at = at.reshape(at.shape + (1,) * len(inner))
        if dim in inner:
            along = [1] * (len(batch) + len(inner))
            along[len(batch) + inner.index(dim)] = slice_sizes[dim]
            at = at + np.arange(slice_sizes[dim]).reshape(along)
        coordinates.append(at)
    moved = operand.transpose(picked + whole)
    shape = (*batch, *(slice_sizes[dim] for dim in inner))
    if any(operand.shape[dim] == 0 for dim in picked):  # slices of nothing
        found = np.zeros(shape + moved.shape[len(picked) :], operand.dtype)
    elif picked:
        found = moved[tuple(np.broadcast_arrays(*coordinates, np.empty(shape, np.bool_))[:-1])]
    else:
        found = np.broadcast_to(moved, shape + moved.shape)
    batch_dims = [dim for dim in range(rank) if dim not in dims.offset_dims]
    place = {dims.offset_dims[kept.index(dim)]: len(batch) + i for i, dim in enumerate(inner + whole)}
    place |= {dim: i for i, dim in enumerate(batch_dims)}
    return found.transpose([place[dim] for dim in range(rank)])


def _starts(op: Op, indices: Array, vector_dim: int, mapped: Sequence[int]) -> tuple[dict[int, Array], tuple[int, ...]]:
    """For each mapped operand dimension the start indices over the batch, and the sizes of the batch."""
    vectors = indices[..., None] if vector_dim == indices.ndim else np.moveaxis(indices, vector_dim, -1)
    check_equal(op, (vectors.shape[-1:], (len(mapped),)))
    return {dim: as_int64(vectors[..., i]) for i, dim in enumerate(mapped)}, vectors.shape[:-1]


def _batch_index(dim: int, vector_dim: int, batch: Sequence[int]) -> Array:
    """The position along the batch dimension that dimension `dim` of the indices became."""
    dim -= dim > vector_dim
    return np.arange(batch[dim]).reshape([batch[dim] if i == dim else 1 for i in range(len(batch))])


# ---- scatter ----


def _infer_scatter(call: Call) -> list[Type]:
    count = len(call.operands) // 2
    call.require(
        count > 0 and len(call.operands) == 2 * count + 1,
        "scatter_c5",
        "inputs and updates must pair up",
        got=len(call.operands),
    )
    shapes = call.shapes
    inputs, indices, updates = shapes[:count], shapes[count], shapes[count + 1 :]
    not_per_axis(call, *inputs, *updates)
    _check_indices(call, indices, "scatter_i2")
    for each, update in zip(inputs, updates, strict=True):
        call.same_sizes(inputs[0].sizes, each.sizes, "scatter_c1", "inputs must have one shape")
        call.same_sizes(updates[0].sizes, update.sizes, "scatter_c3", "updates must have one shape")
        call.same_dtype(each.dtype, update.dtype, "scatter_c6", "an update must have its input's element type")
    _check_scatter_dims(call, inputs[0], indices, updates[0], call.attrs["scatter_dimension_numbers"])
    computed = check_reducer(call, call.regions[0], inputs, "scatter_c23")
    return [Shape.of(dtype, each.sizes) for dtype, each in zip(computed, inputs, strict=True)]


def _check_scatter_dims(call: Call, operand: Shape, indices: Shape, update: Shape, dims: ScatterDims) -> None:
    rank, windows = operand.rank, dims.update_window_dims
    inserted, batching = dims.inserted_window_dims, dims.input_batching_dims
    covered = len(windows) + len(inserted) + len(batching)
    call.require(rank == covered, "scatter_c2", "every input dimension plays one part", expected=rank, got=covered)
    batch = _check_index_vector(
        call, indices, dims.index_vector_dim, len(dims.scatter_dims_to_operand_dims), "scatter_dims_to_operand_dims",
        "scatter_c22", "scatter_c19",
    )  # fmt: skip
    fits = update.rank == len(batch) + len(windows)
    call.require(fits, "scatter_c4", "updates have the wrong rank", expected=len(batch) + len(windows), got=update.rank)
    call.check_dims(windows, update.rank, "scatter_c8", "update_window_dims", unique=False)
    call.check_dims(windows, update.rank, "scatter_c7", "update_window_dims", ordered=True)
    call.check_dims(inserted, rank, "scatter_c11", "inserted_window_dims", unique=False)
    call.check_dims(inserted, rank, "scatter_c10", "inserted_window_dims", unique=False, ordered=True)
    call.check_dims(batching, rank, "scatter_c13", "input_batching_dims", unique=False)
    call.check_dims(batching, rank, "scatter_c12", "input_batching_dims", unique=False, ordered=True)
    call.check_dims((*inserted, *batching), rank, "scatter_c9", "inserted_window_dims and input_batching_dims")
    _check_batching(
        call, operand, batching, indices, dims.scatter_indices_batching_dims, dims.index_vector_dim,
        "scatter_indices_batching_dims", ("scatter_c14", "scatter_c15", "scatter_c16", "scatter_c17", "scatter_c18"),
    )  # fmt: skip
    call.check_dims(
        dims.scatter_dims_to_operand_dims, rank, "scatter_c21", "scatter_dims_to_operand_dims", unique=False
    )
    together = (*dims.scatter_dims_to_operand_dims, *batching)
    call.check_dims(together, rank, "scatter_c20", "scatter_dims_to_operand_dims and input_batching_dims")
    scattered = [size for dim, size in enumerate(update.sizes) if dim not in windows]
    call.same_sizes(batch, scattered, "scatter_c4", "updates must have the indices' sizes outside their windows")
    window_sizes = [size for dim, size in enumerate(operand.sizes) if dim not in inserted and dim not in batching]
    for dim, most in zip(windows, window_sizes, strict=True):
        size = update.sizes[dim]
        call.at_most(size, most, "scatter_c4", "a window must fit into the input", unless_empty=scattered)


def _eval_scatter(frame: Frame, op: Op, *operands: Array) -> tuple[Array, ...]:
    count = len(op.results)
    indices, updates = operands[count], operands[count + 1 :]
    check_equal(op, *((each.shape, operands[0].shape) for each in operands[:count]))
    check_equal(op, *((each.shape, updates[0].shape) for each in updates))
    results = []
    for i in range(count):
        wide = promote(operands[i], op.operands[i].shape.dtype, op.results[i].shape.dtype)
        results.append(np.array(wide, order="C").reshape(-1))  # a copy
    targets, inside = _targets(op, operands[0].shape, indices, updates[0].shape)
    values = []
    for i, update in enumerate(updates):
        flat = update.reshape(-1) if inside is None else update.reshape(-1)[inside]
        values.append(promote(flat, op.operands[i].shape.dtype, op.results[i].shape.dtype))
    if targets.size:
        _scatter_flat(frame, op.regions[0], results, targets, values)
    return tuple(result.reshape(operand.shape) for result, operand in zip(results, operands[:count], strict=True))


def _targets(
    op: Op, sizes: tuple[int, ...], indices: Array, update_sizes: tuple[int, ...]
) -> tuple[Array, Array | None]:
    """Where each update lands in the flat input, in the updates' order, and which land inside it (None: all)."""
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    starts, batch = _starts(op, indices, dims.index_vector_dim, dims.scatter_dims_to_operand_dims)
    rank = len(update_sizes)
    scattered = [dim for dim in range(rank) if dim not in dims.update_window_dims]
    check_equal(
        op,
        ([update_sizes[dim] for dim in scattered], batch),
        (
            [indices.shape[dim] for dim in dims.scatter_indices_batching_dims],
            [sizes[dim] for dim in dims.input_batching_dims],
        ),
    )
    windows = iter(dims.update_window_dims)
    target: Any = np.zeros((1,) * rank, np.int64)
    inside: Any = np.ones((1,) * rank, np.bool_)
    for dim, size in enumerate(sizes):
        at: Array = np.zeros((1,) * rank, np.int64)
        width = 1
        if dim in dims.input_batching_dims:
            which = dims.scatter_indices_batching_dims[dims.input_batching_dims.index(dim)]
            at = at + _spread(_batch_index(which, dims.index_vector_dim, batch), scattered, rank)
        elif dim not in dims.inserted_window_dims:
            window = next(windows)
            width = update_sizes[window]
            at = at + np.arange(width).reshape([width if i == window else 1 for i in range(rank)])
        if dim in starts:
            # A start that far out stays out for the whole window, and the sum cannot overflow.
            at = at + _spread(np.clip(starts[dim], -width, size), scattered, rank)
        inside = inside & (at >= 0) & (at < size)
        target = target * size + at
    target, inside = (np.broadcast_to(each, update_sizes).reshape(-1) for each in (target, inside))
    return (target, None) if inside.all() else (target[inside], inside)


def _spread(array: Array, dims: Sequence[int], rank: int) -> Array:
    """An array with its dimensions put at `check_dims` of `rank`."""
    sizes = [1] * rank
    for dim, size in zip(dims, array.shape, strict=True):
        sizes[dim] = size
    return array.reshape(sizes)


def _scatter_flat(frame: Frame, region: Region, results: list[Array], targets: Array, updates: list[Array]) -> None:
    """Apply the updates to the flat results in order. Updates that meet no other run as lanes of one step."""
    touched = np.zeros(results[0].size, np.bool_)
    touched[targets] = True
    if np.count_nonzero(touched) == targets.size:
        return _scatter_step(frame, region, results, targets, updates)
    order = np.argsort(targets, kind="stable")
    targets, updates = targets[order], [update[order] for update in updates]
    opens = np.concatenate(([True], targets[1:] != targets[:-1]))
    if region.results == region.args[len(results) :]:  # the last one stays
        closes = np.concatenate((opens[1:], [True]))
        for result, update in zip(results, updates, strict=True):
            result[targets[closes]] = update[closes]
        return None
    turn = np.arange(targets.size)
    turn = turn - np.maximum.accumulate(np.where(opens, turn, 0))
    step = _single_step(region)
    if step in _IN_ORDER and str(region.results[0].shape.dtype) in _ROUNDED_ONCE:
        _IN_ORDER[step].at(results[0], targets, updates[0])
    elif step in _ASSOCIATIVE and region.results[0].shape.dtype.kind in _ASSOCIATIVE[step]:
        _scatter_tree(frame, region, results, targets, updates, turn)
    else:
        by_turn = np.argsort(turn, kind="stable")
        for chosen in np.split(by_turn, np.cumsum(np.bincount(turn))[:-1]):
            _scatter_step(frame, region, results, targets[chosen], [update[chosen] for update in updates])
    return None


def _scatter_step(frame: Frame, region: Region, results: list[Array], targets: Array, updates: list[Array]) -> None:
    new = frame.lanes(region, *(result[targets] for result in results), *updates)
    for result, values in zip(results, new, strict=True):
        result[targets] = values


def _scatter_tree(
    frame: Frame, region: Region, results: list[Array], targets: Array, updates: list[Array], turn: Array
) -> None:
    """Updates of one target are combined in pairs, which an associative body allows, until one is left."""
    (values,) = updates
    while turn.any():
        odd = np.flatnonzero(turn % 2)
        (paired,) = frame.lanes(region, values[odd - 1], values[odd])
        values = values.copy()
        values[odd - 1] = paired
        even = turn % 2 == 0
        values, targets, turn = values[even], targets[even], turn[even] // 2
    _scatter_step(frame, region, results, targets, [values])


_EXACT = frozenset({"int", "uint", "bool"})
_ASSOCIATIVE: dict[str | None, frozenset[str]] = {
    "stablehlo.add": _EXACT,
    "stablehlo.multiply": _EXACT,
    "stablehlo.maximum": _EXACT | {"float"},
    "stablehlo.minimum": _EXACT | {"float"},
    "stablehlo.and": _EXACT,
    "stablehlo.or": _EXACT,
    "stablehlo.xor": _EXACT,
}
# NumPy's own arithmetic on these rounds each sum and product once, as the elementwise ops do, and goes in order.
_IN_ORDER: dict[str | None, np.ufunc] = {"stablehlo.add": np.add, "stablehlo.multiply": np.multiply}
_ROUNDED_ONCE = frozenset({"bf16", "f16", "f32", "f64"})


def _single_step(region: Region) -> str | None:
    """The name of the one op on both arguments that a binary region consists of."""
    if len(region.ops) != 1 or len(region.args) != 2:
        return None
    (op,) = region.ops
    same = op.operands in (region.args, region.args[::-1]) and region.results == op.results
    return op.name if same else None


# ---- dynamic slices ----


def _infer_dynamic_slice(call: Call) -> list[Type]:
    operand, sizes = call.shape(0), call.attrs["slice_sizes"]
    not_per_axis(call, operand)
    _check_starts(call, 1, operand.rank, "dynamic_slice_c2", "dynamic_slice_c3")
    same_length(call, operand.rank, "dynamic_slice_c2", slice_sizes=sizes)
    call.require(
        all(size >= 0 for size in sizes), "dynamic_slice_c4", "slice sizes must not be negative", got=list(sizes)
    )
    for size, most in zip(sizes, operand.sizes, strict=True):
        call.at_most(size, most, "dynamic_slice_c4", "a slice must fit into the operand")
    return [Shape.of(operand.dtype, sizes)]


def _eval_dynamic_slice(_: Frame, op: Op, operand: Array, *starts: Array) -> Array:
    view: Array = operand[_window(op, operand.shape, op.attrs["slice_sizes"], starts)]
    return view


def _window(op: Op, sizes: Sequence[int], wanted: Sequence[int], starts: Sequence[Array]) -> tuple[slice, ...]:
    """A window of the given sizes, its start clamped into range."""
    if any(size > most for size, most in zip(wanted, sizes, strict=True)):
        raise RunError(f"{op.name}: a slice does not fit", expected=list(sizes), got=list(wanted), where=op.location)
    window = []
    for start, size, most in zip(starts, wanted, sizes, strict=True):
        at = min(max(int(as_int64(start)), 0), most - size)
        window.append(slice(at, at + size))
    return tuple(window)


def _infer_dynamic_update_slice(call: Call) -> list[Type]:
    operand, update = call.shape(0), call.shape(1)
    not_per_axis(call, operand)
    call.same_dtype(
        operand.dtype, update.dtype, "dynamic_update_slice_c2", "the update must have the operand's element type"
    )
    call.require(
        operand.rank == update.rank, "dynamic_update_slice_c3", "the ranks must agree", expected=operand, got=update
    )
    _check_starts(call, 2, operand.rank, "dynamic_update_slice_c4", "dynamic_update_slice_c5")
    for size, most in zip(update.sizes, operand.sizes, strict=True):
        call.at_most(size, most, "dynamic_update_slice_c6", "the update must fit into the operand")
    return [operand]


def _eval_dynamic_update_slice(_: Frame, op: Op, operand: Array, update: Array, *starts: Array) -> Array:
    result = np.array(operand)
    result[_window(op, operand.shape, update.shape, starts)] = update
    return result


def _infer_torch_index_select(call: Call) -> list[Type]:
    operand, index = call.shape(0), call.shape(1)
    not_per_axis(call, operand)
    _check_indices(call, index, "torch_index_select_i2")
    dim, batch = _select_dims(call.attrs, operand.rank, index.rank)
    call.check_dims([dim], operand.rank, "", "dim")
    call.require(0 <= batch <= min(dim, index.rank), "", "batch_dims must come before dim", got=batch)
    call.same_sizes(operand.sizes[:batch], index.sizes[:batch], "", "batch dimensions must have one size")
    return [Shape.of(operand.dtype, (*operand.sizes[:dim], *index.sizes[batch:], *operand.sizes[dim + 1 :]))]


def _select_dims(attrs: Any, rank: int, index_rank: int) -> tuple[int, int]:
    dim, batch = attrs["dim"], attrs["batch_dims"]
    return dim + rank * (dim < 0), batch + index_rank * (batch < 0)


def _eval_torch_index_select(_: Frame, op: Op, operand: Array, index: Array) -> Array:
    dim, batch = _select_dims(op.attrs, operand.ndim, index.ndim)
    check_equal(op, (index.shape[:batch], operand.shape[:batch]))
    if not operand.shape[dim] and index.size:
        raise RunError(f"{op.name}: there is nothing to select from", got=list(operand.shape), where=op.location)
    result = (*operand.shape[:dim], *index.shape[batch:], *operand.shape[dim + 1 :])
    if 0 in result:
        return np.zeros(result, operand.dtype)
    at = np.clip(as_int64(index), 0, operand.shape[dim] - 1)
    if not batch:
        return operand.take(at, axis=dim)
    rows = int(np.prod(operand.shape[:batch]))
    middle = int(np.prod(operand.shape[batch:dim]))
    split = operand.reshape(rows, middle, operand.shape[dim], -1)
    found = split[np.arange(rows)[:, None], :, at.reshape(rows, -1), :]  # rows, selected, middle, rest
    return found.transpose(0, 2, 1, 3).reshape(result)


# ---- sort and top_k ----


def _infer_sort(call: Call) -> list[Type]:
    call.require(len(call.operands) > 0, "sort_c1", "there must be an input")
    shapes, dim = call.shapes, call.attrs["dimension"]
    not_per_axis(call, *shapes)
    for shape in shapes:
        call.same_sizes(shapes[0].sizes, shape.sizes, "sort_c3", "inputs must have one shape")
    rank = shapes[0].rank
    call.require(-rank <= dim < rank, "sort_c4", f"dimension must be in [{-rank}, {rank})", got=dim)
    scalars = [Shape.of(shape.dtype, ()) for shape in shapes]
    pairs = [scalar for scalar in scalars for _ in range(2)]
    call.check_region(call.regions[0], pairs, [Shape.of(i1, ())], "sort_c5")
    return list(shapes)


def _eval_sort(frame: Frame, op: Op, *inputs: Array) -> tuple[Array, ...]:
    axis = op.attrs["dimension"] % inputs[0].ndim
    check_equal(op, *((each.shape, inputs[0].shape) for each in inputs))
    moved = [np.moveaxis(each, axis, -1) for each in inputs]
    sizes = moved[0].shape
    if moved[0].size == 0 or sizes[-1] == 1:
        return inputs
    rows = [each.reshape(-1, sizes[-1]) for each in moved]
    order = _plain_order(op, rows[0])
    if order is None:
        order = _merge_order(frame, op.regions[0], rows)
    return tuple(np.moveaxis(np.take_along_axis(row, order, 1).reshape(sizes), -1, axis) for row in rows)


def _plain_order(op: Op, rows: Array) -> Array | None:
    """The order that a comparator `arg0 < arg1` or `arg0 > arg1` gives, where NumPy orders the elements likewise."""
    (region,) = op.regions
    dtype = region.args[0].shape.dtype
    if len(region.ops) != 1 or isinstance(dtype, Quantized) or dtype.is_complex:
        return None
    (compare,) = region.ops
    if compare.name != "stablehlo.compare" or compare.operands != region.args[:2] or region.results != compare.results:
        return None
    direction = compare.attrs["comparison_direction"]
    if direction not in ("LT", "GT"):
        return None
    if compare.attrs.get("compare_type") == "TOTALORDER":
        keys = total_order(rows, dtype)
    elif dtype.is_float:
        keys = rows.astype(np.float64)
        if np.isnan(keys).any():
            return None
    else:
        keys = total_order(rows, dtype)
    return _argsort(keys, descending=direction == "GT")


def _argsort(keys: Array, *, descending: bool) -> Array:
    """A stable order along the last axis."""
    if descending:
        keys = ~keys if keys.dtype.kind in "iu" else -keys
    return np.argsort(keys, axis=-1, kind="stable")


def total_order(array: Array, dtype: ElementType) -> Array:
    """Integers that are ordered as the elements are: -nan < -inf < … < -0 < 0 < … < inf < nan."""
    element = elements(dtype)
    if element.is_float:
        wide = array if element.bits >= 32 else np.asarray(array).astype(np.float32)  # exact
        bits: Array = np.ascontiguousarray(wide).view(np.int32 if wide.dtype.itemsize == 4 else np.int64)
        return np.where(bits < 0, bits ^ np.iinfo(bits.dtype).max, bits)
    return array.astype(np.uint64 if element.kind == "uint" else np.int64)


def _merge_order(frame: Frame, region: Region, rows: list[Array]) -> Array:
    """A stable merge sort of all rows at once; each binary search step is one run of the comparator over lanes.

    Two neighbouring runs are merged by looking up each element of the left run in the right one. What is free stays for
    the right run, so that the outcome is a permutation whatever the comparator says.
    """
    count, length = rows[0].shape
    at = np.arange(length)
    order = np.broadcast_to(at, (count, length))
    width = 1
    while width < length:
        is_left = at // width % 2 == 0
        left, right = at[is_left], at[~is_left]
        begin = np.minimum((left // width + 1) * width, length)
        low = np.broadcast_to(begin, (count, left.size))
        high = np.broadcast_to(np.minimum(begin + width, length), (count, left.size))
        keys = [row[:, left] for row in rows]
        for _ in range(width.bit_length()):
            middle = np.minimum((low + high) // 2, length - 1)
            pairs = [
                each for row, key in zip(rows, keys, strict=True) for each in (np.take_along_axis(row, middle, 1), key)
            ]
            (earlier,) = frame.lanes(region, *pairs)
            is_open = low < high
            low, high = np.where(is_open & earlier, middle + 1, low), np.where(is_open & ~earlier, middle, high)
        place = left + np.maximum.accumulate(low, axis=1) - begin
        source = np.empty((count, length), np.int64)
        free = np.ones((count, length), np.bool_)
        np.put_along_axis(source, place, np.broadcast_to(left, place.shape), 1)
        np.put_along_axis(free, place, False, 1)
        source[free] = np.broadcast_to(right, (count, right.size)).reshape(-1)
        rows = [np.take_along_axis(row, source, 1) for row in rows]
        order = np.take_along_axis(order, source, 1)
        width *= 2
    return order


def _infer_top_k(call: Call) -> list[Type]:
    operand, k = call.shape(0), call.attrs["k"]
    not_per_axis(call, operand)
    call.require(operand.rank > 0, "", "top_k needs a dimension", got=operand)
    call.require(not operand.dtype.is_complex, "", "complex numbers have no order", got=operand)
    call.require(k >= 0, "", "k must not be negative", got=k)
    call.at_most(k, operand.sizes[-1], "", "there are fewer than k elements")
    sizes = (*operand.sizes[:-1], k)
    return [Shape.of(operand.dtype, sizes), Shape.of(i32, sizes)]


def _eval_top_k(_: Frame, op: Op, operand: Array) -> tuple[Array, ...]:
    return top_k(op, operand, op.attrs["k"])


def top_k(op: Op, operand: Array, k: int) -> tuple[Array, ...]:
    if k > operand.shape[-1]:
        raise RunError(
            f"{op.name}: there are fewer than k elements", expected=k, got=operand.shape[-1], where=op.location
        )
    order = _argsort(total_order(operand, op.operands[0].shape.dtype), descending=True)[..., :k]
    return np.take_along_axis(operand, order, -1), order.astype(np.int32)


ROWS: list[OpDef] = [
    OpDef(
        "stablehlo.gather",
        "operand start_indices",
        _infer_gather,
        _eval_gather,
        (Attr("dimension_numbers", GATHER), Attr("slice_sizes", INTS), Attr("indices_are_sorted", BOOL, False)),
    ),
    OpDef(
        "stablehlo.scatter",
        "inputs* scatter_indices updates*",
        _infer_scatter,
        _eval_scatter,
        (
            Attr("scatter_dimension_numbers", SCATTER),
            Attr("indices_are_sorted", BOOL, False),
            Attr("unique_indices", BOOL, False),
        ),
        regions=1,
    ),
    OpDef(
        "stablehlo.dynamic_slice",
        "operand start_indices*",
        _infer_dynamic_slice,
        _eval_dynamic_slice,
        (Attr("slice_sizes", INTS),),
    ),
    OpDef(
        "stablehlo.dynamic_update_slice",
        "operand update start_indices*",
        _infer_dynamic_update_slice,
        _eval_dynamic_update_slice,
    ),
    OpDef(
        "stablehlo.torch_index_select",
        "operand index",
        _infer_torch_index_select,
        _eval_torch_index_select,
        (Attr("dim", INT), Attr("batch_dims", INT)),
    ),
    OpDef(
        "stablehlo.sort",
        "inputs*",
        _infer_sort,
        _eval_sort,
        (Attr("dimension", INT, -1), Attr("is_stable", BOOL, False)),
        regions=1,
    ),
    OpDef("chlo.top_k", "operand", _infer_top_k, _eval_top_k, (Attr("k", INT),)),
]
