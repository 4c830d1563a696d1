"""Data-dependent indexing: `gather`, `dynamic_slice` and the like as rules that pull one element; `scatter` as loops.

A run-time index is clamped into range before any read. Registered in `nest.PULLS` and `sinks.UPDATES`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

from smelt.dim import Size, at_most, maximum
from smelt.dtype import i1, i64
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.core import Op
from smelt.kernel.build.elementwise import pad_element
from smelt.kernel.build.sinks import Output, update
from smelt.kernel.loops.grammar import Amount, Expr, Level, Number, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, pull, tensor

FAR = 1 << 62  # beyond every tensor


def to_index(nest: Nest, x: Expr) -> Expr:
    """An integer of any type as an i64 index; what i64 cannot hold is out of range of every tensor."""
    if x.dtype.kind == "uint" and x.dtype.bits == 64:
        x = nest.apply("minimum", x, Number(FAR, x.dtype))
    return nest.convert(x, i64)


# ---- gather ----


@pull("stablehlo.gather")
def gather(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return _gather_element(nest, op, index, op.attrs["slice_sizes"])


@pull("stablehlo.dynamic_gather")
def dynamic_gather(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    dims, shape = op.attrs["dimension_numbers"], tensor(op.operands[0])
    maybe_empty = [shape.sizes[d] for d in dims.collapsed_slice_dims if not at_most(1, shape.sizes[d])]
    if not maybe_empty:
        return _gather_element(nest, op, index, slice_sizes(op))
    # A collapsed slice may have no element where the operand has none: the result is 0.
    found = [nest.apply("GT", Amount(size), Number(0), dtype=i1) for size in maybe_empty]
    return nest.choose(
        nest.both(*found),
        lambda: _gather_element(nest, op, index, slice_sizes(op)),
        lambda: Number(0, shape.element),
        shape.element,
    )


def slice_sizes(op: Op) -> tuple[Size, ...]:
    """The slice sizes of a `dynamic_gather`, from its result; collapsed dimensions have size 1."""
    dims: GatherDims = op.attrs["dimension_numbers"]
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    windows = iter([tensor(op.result).sizes[d] for d in dims.offset_dims])
    return tuple(1 if d in dropped else next(windows) for d in range(tensor(op.operands[0]).rank))


def _gather_element(nest: Nest, op: Op, index: Index, slices: Sequence[Size]) -> Expr:
    dims: GatherDims = op.attrs["dimension_numbers"]
    operand, indices = op.operands[:2]
    sizes = tensor(operand).sizes
    if any(size == 0 for size in sizes):
        return Number(0, tensor(operand).element)  # slices of an empty operand
    batch = [at for d, at in enumerate(index) if d not in dims.offset_dims]
    windows = iter([index[d] for d in dims.offset_dims])
    dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
    places: list[Expr] = []
    for d, size in enumerate(sizes):
        at: Expr = Number(0)
        last = maximum(size - maximum(slices[d], 1), 0)
        if d in dims.start_index_map and last != 0:
            vector = Number(dims.start_index_map.index(d))
            start = nest.pull(indices, _index_in_vector(batch, dims.index_vector_dim, tensor(indices).rank, vector))
            at = nest.clamp(to_index(nest, start), last)
        if d in dims.operand_batching_dims:
            which = dims.start_indices_batching_dims[dims.operand_batching_dims.index(d)]
            at = batch[which - (which > dims.index_vector_dim)]
        places.append(at if d in dropped else add(at, next(windows)))
    return nest.pull(operand, tuple(places))


def _index_in_vector(batch: Sequence[Expr], vector_dim: int, rank: int, number: Expr) -> Index:
    """The index of one number of an index vector."""
    if vector_dim == rank:
        return tuple(batch)
    return (*batch[:vector_dim], number, *batch[vector_dim:])


@pull("stablehlo.torch_index_select")
def torch_index_select(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand, selected = op.operands
    rank, count = tensor(operand).rank, tensor(selected).rank
    dim, batch = op.attrs["dim"], op.attrs["batch_dims"]
    dim, batch = dim + rank * (dim < 0), batch + count * (batch < 0)
    size = tensor(operand).sizes[dim]
    if size == 0:
        return Number(0, tensor(operand).element)  # never evaluated: a run-time check rejects the call
    after = dim + count - batch
    at = nest.pull(selected, (*index[:batch], *index[dim:after]))
    return nest.pull(operand, (*index[:dim], nest.clamp(to_index(nest, at), size - 1), *index[after:]))


# ---- slices with run-time starts ----


def _starts(nest: Nest, op: Op, first: int, sizes: Sequence[Size], parts: Sequence[Size]) -> list[Expr]:
    """The start of a window of `parts` in a tensor of `sizes`, clamped so that the window is inside."""
    starts = zip(op.operands[first:], sizes, parts, strict=True)
    return [
        Number(0) if size == part else nest.clamp(to_index(nest, nest.pull(start, ())), size - part)
        for start, size, part in starts
    ]


@pull("stablehlo.dynamic_slice")
def dynamic_slice(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand = op.operands[0]
    starts = _starts(nest, op, 1, tensor(operand).sizes, tensor(op.result).sizes)
    return nest.pull(operand, tuple(add(at, start) for at, start in zip(index, starts, strict=True)))


@pull("stablehlo.dynamic_update_slice")
def dynamic_update_slice(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand, update = op.operands[:2]
    sizes, parts = tensor(operand).sizes, tensor(update).sizes
    conditions: list[Expr] = []
    places: list[Expr] = []
    for at, start, size, part in zip(index, _starts(nest, op, 2, sizes, parts), sizes, parts, strict=True):
        inner = add(at, scale(start, -1))
        if size != part:
            conditions.append(nest.apply("GE", nest.let(inner), Number(0), dtype=i1))
            conditions.append(nest.less(nest.let(inner), Amount(part)))
        places.append(inner)
    if not conditions:
        return nest.pull(update, tuple(places))
    return nest.choose(
        nest.both(*conditions),
        lambda: nest.pull(update, tuple(places)),
        lambda: nest.pull(operand, index),
        tensor(operand).element,
    )


@update("stablehlo.dynamic_update_slice")
def write_slice(nest: Nest, op: Op, output: Output) -> None:
    """Write the update in place."""
    operand, value = op.operands[:2]
    sizes, parts = tensor(operand).sizes, tensor(value).sizes
    starts = _starts(nest, op, 2, sizes, parts)
    with nest.loops(parts) as index:
        there = tuple(add(at, start) for at, start in zip(index, starts, strict=True))
        nest.store(output.targets[0], flat(there, sizes), nest.pull(value, index))


@pull("stablehlo.real_dynamic_slice")
def real_dynamic_slice(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    operand, starts, _limits, strides = op.operands
    places: list[Expr] = []
    for d, (at, size) in enumerate(zip(index, tensor(operand).sizes, strict=True)):
        start, stride = (to_index(nest, nest.pull(each, (Number(d),))) for each in (starts, strides))
        step = nest.apply("multiply", at, stride, dtype=i64)
        places.append(nest.clamp(add(start, step), size - 1))  # a run-time check has verified the bounds
    return nest.pull(operand, tuple(places))


@pull("stablehlo.set_dimension_size")
def set_dimension_size(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return nest.pull(op.operands[0], index)


@pull("stablehlo.dynamic_iota")
def dynamic_iota(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return nest.convert(index[op.attrs["iota_dimension"]], tensor(op.result).element)


@pull("stablehlo.dynamic_pad")
def dynamic_pad(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    low, interior = (
        [to_index(nest, nest.pull(op.operands[i], (Number(d),))) for d in range(len(index))] for i in (2, 4)
    )
    return pad_element(nest, op, index, low, [nest.let(add(each, 1)) for each in interior])


# ---- scatter ----


@update("stablehlo.scatter")
def scatter(nest: Nest, op: Op, output: Output) -> None:
    """One update after the other; updates outside are skipped. On a GPU `scatter_simt` has faster loops."""
    count = len(op.results)
    updates = op.operands[count + 1 :]
    kinds = [tensor(result).element for result in op.results]
    sizes = tensor(op.operands[0]).sizes
    outer, middle, inner = split_updates(op)
    if nest.target.kind == "simt":  # a thread for each element of a window, which takes the updates in order
        outer, inner = [*outer, *inner], []
    shape = tensor(updates[0]).sizes
    free: Level = "serial" if op.attrs["unique_indices"] else "ordered"
    places: dict[int, Expr] = {}
    with _walk(nest, outer, shape, "serial", places), _walk(nest, middle, shape, free, places):
        starts, fits = target_start(nest, op, places)
        with (
            nest.guard(nest.both(*fits)),
            _walk(nest, inner[:-1], shape, "serial", places),
            _walk(nest, inner[-1:], shape, "lane" if middle else "serial", places),
        ):
            at = tuple(places[d] for d in range(len(shape)))
            there = nest.let(flat(target_index(op, starts, places), sizes))
            old = [
                nest.read(nest.buffer(target), there, kind) for target, kind in zip(output.targets, kinds, strict=True)
            ]
            new = [nest.convert(nest.pull(value, at), kind) for value, kind in zip(updates, kinds, strict=True)]
            results = [nest.keep(each) for each in nest.inline(op.regions[0], [*old, *new])]
            for target, result in zip(output.targets, results, strict=True):
                nest.store(target, there, result)


@contextmanager
def _walk(
    nest: Nest, dims: Sequence[int], sizes: Sequence[Size], level: Level, places: dict[int, Expr]
) -> Iterator[None]:
    """Loops over some dimensions, in order."""
    with ExitStack() as stack:
        for d in dims:
            places[d] = stack.enter_context(nest.loop(sizes[d], level)) if sizes[d] != 1 else Number(0)
        yield


def split_updates(op: Op) -> tuple[list[int], list[int], list[int]]:
    """The updates' dimensions as (outer, middle, inner). Updates that differ along outer or inner ones are disjoint:
    these are batching dimensions, and window dimensions without an index. Inner ones are the innermost loops.
    """
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    operand = tensor(op.operands[0])
    dropped = {*dims.inserted_window_dims, *dims.input_batching_dims}
    behind = [d for d in range(operand.rank) if d not in dropped]  # the operand's dimension of each window dimension
    scattered = [d for d in range(tensor(op.operands[-1]).rank) if d not in dims.update_window_dims]
    apart = {
        w for w, d in zip(dims.update_window_dims, behind, strict=True) if d not in dims.scatter_dims_to_operand_dims
    }
    inner = set(apart)
    for which in dims.scatter_indices_batching_dims:
        apart.add(scattered[which - (which > dims.index_vector_dim)])
    order = range(tensor(op.operands[-1]).rank)
    first = next((d for d in order if d not in apart), len(order))
    outer = [d for d in order if d in apart and (d < first or d not in inner)]
    last = [d for d in order if d in inner and d not in outer]
    return outer, [d for d in order if d not in outer and d not in last], last


def target_start(nest: Nest, op: Op, places: dict[int, Expr]) -> tuple[dict[int, Expr], list[Expr]]:
    """The start of an update's window in each dimension of the operand, and the conditions under which it is inside.

    A window with an index may be partly outside; `places` then holds its own dimension.
    """
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    count = len(op.results)
    indices, sizes = op.operands[count], tensor(op.operands[0]).sizes
    update = tensor(op.operands[-1])
    scattered = [d for d in range(update.rank) if d not in dims.update_window_dims]
    batch = [places[d] for d in scattered]
    windows = _windows(op)
    starts: dict[int, Expr] = {}
    fits: list[Expr] = []
    for d, size in enumerate(sizes):
        if d in dims.input_batching_dims:
            which = dims.scatter_indices_batching_dims[dims.input_batching_dims.index(d)]
            starts[d] = batch[which - (which > dims.index_vector_dim)]
        elif d in dims.scatter_dims_to_operand_dims:
            vector = Number(dims.scatter_dims_to_operand_dims.index(d))
            at = nest.pull(indices, _index_in_vector(batch, dims.index_vector_dim, tensor(indices).rank, vector))
            width = update.sizes[windows[d]] if d in windows else 1
            # A clamped start keeps the whole window outside, and the sum cannot overflow.
            starts[d] = nest.apply("clamp", Amount(-1 * width), to_index(nest, at), Amount(size), dtype=i64)
            there = nest.let(add(starts[d], places[windows[d]]) if d in windows else starts[d])
            fits += [nest.apply("GE", there, Number(0), dtype=i1), nest.less(there, Amount(size))]
        else:
            starts[d] = Number(0)
            if d in dims.inserted_window_dims:
                fits.append(nest.less(Number(0), Amount(size)))
    return starts, fits


def _windows(op: Op) -> dict[int, int]:
    """The updates' dimension behind each dimension of the operand that has a window."""
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    dropped = {*dims.inserted_window_dims, *dims.input_batching_dims}
    behind = [d for d in range(tensor(op.operands[0]).rank) if d not in dropped]
    return dict(zip(behind, dims.update_window_dims, strict=True))


def target_index(op: Op, starts: dict[int, Expr], places: dict[int, Expr]) -> Index:
    windows = _windows(op)
    return tuple(add(starts[d], places[windows[d]]) if d in windows else starts[d] for d in sorted(starts))
