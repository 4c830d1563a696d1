"""Derivatives of ops that read or write where indices say. Gathers and scatters are each other's transpose.

A gather clamps its indices, a scatter leaves out what falls outside: indices are clamped before a cotangent is
scattered, and a cotangent that is gathered counts only where its update landed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dim import Size
from smelt.dtype import i1, i32, i64
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.ir.build import Builder
from smelt.ir.clone import clone_ops
from smelt.ir.core import Op, Value
from smelt.ir.grad.reduce import single_op
from smelt.ir.grad.rule import (
    Cotangents,
    Rule,
    is_differentiable,
    like,
    linear,
    linear_in_first,
    no_derivative,
    zero,
    zeros,
)
from smelt.ir.grad.shape import pad_with_zeros, sum_broadcast
from smelt.ir.grad.sizes import size_list
from smelt.ir.grad.sweep import Forward, Reverse
from smelt.shape import Shape

# ---- gather ----


def _scatter_dims(dims: GatherDims) -> ScatterDims:
    return ScatterDims(
        dims.offset_dims,
        dims.collapsed_slice_dims,
        dims.operand_batching_dims,
        dims.start_indices_batching_dims,
        dims.start_index_map,
        dims.index_vector_dim,
    )


def _gather_dims(dims: ScatterDims) -> GatherDims:
    return GatherDims(
        dims.update_window_dims,
        dims.inserted_window_dims,
        dims.input_batching_dims,
        dims.scatter_indices_batching_dims,
        dims.scatter_dims_to_operand_dims,
        dims.index_vector_dim,
    )


def _gather_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, indices) = sweep.b, op.operands[:2]
    if not sweep.wants(x):
        return
    dims: GatherDims = op.attrs["dimension_numbers"]
    slices = _slice_sizes(op, g)
    last = [x.shape.sizes[d] - slices[d] for d in dims.start_index_map]
    places = _clamp(b, indices, last, dims.index_vector_dim, [x, g])
    sweep.accumulate(x, lambda total: _scatter_add(b, total, places, g, _scatter_dims(dims)))


def _slice_sizes(op: Op, g: Value) -> list[Size]:
    """The sizes of the slices, one per dimension of the operand; of a `dynamic_gather` they are those of its result."""
    dims: GatherDims = op.attrs["dimension_numbers"]
    dropped = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    windows = iter(g.shape.sizes[d] for d in dims.offset_dims)
    return [1 if d in dropped else next(windows) for d in range(op.operands[0].shape.rank)]


def _clamp(b: Builder, indices: Value, last: Sequence[Size], vector_dim: int, near: Sequence[Value]) -> Value:
    """Indices at least 0 and at most `last`, which has one entry per component of an index."""
    indices = _widen(b, indices)
    limits = _components(b, last, indices, vector_dim, near)
    nothing = zeros(b, limits.type)
    return b.clamp(nothing, indices, b.maximum(limits, nothing))


def _scatter_add(b: Builder, into: Value, indices: Value, updates: Value, dims: ScatterDims) -> Value:
    scalar = Shape.of(into.shape.dtype, ())
    with b.region(scalar, scalar) as r:
        r.result(r.add(*r.args))
    return b.scatter(into, indices, updates, scatter_dimension_numbers=dims, regions=[r.body])


def gather_like(b: Builder, x: Value, indices: Value, dims: GatherDims, result: Shape) -> Value:
    """A gather whose slices have the sizes that a result says; they may be symbolic."""
    dropped = (*dims.collapsed_slice_dims, *dims.operand_batching_dims)
    windows = iter(result.sizes[d] for d in dims.offset_dims)
    slices: list[Size] = [1 if d in dropped else next(windows) for d in range(x.shape.rank)]
    if all(isinstance(size, int) for size in slices):
        return b.gather(x, indices, dimension_numbers=dims, slice_sizes=tuple(slices), result=result)
    return b.dynamic_gather(x, indices, size_list(b, slices, [x]), dimension_numbers=dims, result=result)


# ---- dynamic_broadcast_in_dim: a size that is not known to be 1 may turn out to be ----


def _dynamic_broadcast(b: Builder, op: Op, g: Value) -> Value:
    """Where a size is 1 when the program runs, its axis was stretched: element i went to min(i, size - 1)."""
    x, dims = op.operands[0], op.attrs["broadcast_dimensions"]
    kept = op.attrs.get("known_nonexpanding_dimensions") or ()
    for i, (d, size) in enumerate(zip(dims, x.shape.sizes, strict=True)):
        if size in (1, g.shape.sizes[d]) or i in kept:
            continue
        places = b.iota(iota_dimension=0, result=Shape.of(i64, (g.shape.sizes[d],)))
        last = b.convert(b.get_dimension_size(x, dimension=i), result=Shape.of(i64, ()))
        last = b.subtract(last, b.constant(1, i64))
        spread = b.broadcast_in_dim(last, broadcast_dimensions=(), result=places.shape)
        windows = tuple(axis for axis in range(g.shape.rank) if axis != d)
        sizes = [size if axis == d else have for axis, have in enumerate(g.shape.sizes)]
        into = zeros(b, Shape.of(g.shape.dtype, sizes))
        g = _scatter_add(b, into, b.minimum(places, spread), g, ScatterDims(windows, (d,), (), (), (d,), 1))
    return sum_broadcast(b, op, g)


# ---- scatter ----


def _inside(b: Builder, op: Op) -> Value:
    """Which elements of the updates fall inside the operand."""
    count = len(op.results)
    x, indices, update = op.operands[0], op.operands[count], op.operands[count + 1]
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    rank = update.shape.rank
    scattered = [d for d in range(rank) if d not in dims.update_window_dims]
    indices = _widen(b, indices)
    wide = Shape.of(i64, update.shape.sizes)
    windows = dict(
        zip(
            [d for d in range(x.shape.rank) if d not in (*dims.inserted_window_dims, *dims.input_batching_dims)],
            dims.update_window_dims,
            strict=True,
        )
    )
    inside = b.full(True, Shape.of(i1, update.shape.sizes))
    for i, dim in enumerate(dims.scatter_dims_to_operand_dims):
        at = b.broadcast_in_dim(
            _component(b, indices, i, dims.index_vector_dim), broadcast_dimensions=tuple(scattered), result=wide
        )
        if dim in windows:
            at = b.add(at, b.iota(iota_dimension=windows[dim], result=wide))
        size = b.convert(b.get_dimension_size(x, dimension=dim), result=Shape.of(wide.dtype, ()))
        end = b.broadcast_in_dim(size, broadcast_dimensions=(), result=wide)
        inside = b.and_(inside, b.compare(at, zeros(b, wide), comparison_direction="GE"))
        inside = b.and_(inside, b.compare(at, end, comparison_direction="LT"))
    return inside


def _component(b: Builder, indices: Value, i: int, vector_dim: int) -> Value:
    """One component of all indices."""
    if vector_dim == indices.shape.rank:
        return indices
    low = [0] * indices.shape.rank
    high = [0] * indices.shape.rank
    count = indices.shape.sizes[vector_dim]
    assert isinstance(count, int)
    low[vector_dim], high[vector_dim] = -i, i + 1 - count
    cut = b.pad(
        indices,
        b.constant(0, indices.shape.dtype),
        edge_padding_low=tuple(low),
        edge_padding_high=tuple(high),
        interior_padding=(0,) * len(low),
    )
    kept = [size for d, size in enumerate(indices.shape.sizes) if d != vector_dim]
    return b.reshape(cut, result=Shape.of(indices.shape.dtype, kept))


def _read_back(b: Builder, op: Op, g: Value, i: int = 0) -> Value:
    """The elements of g at the position of each update; 0 for updates out of bounds."""
    count = len(op.results)
    indices, update = op.operands[count], op.operands[count + 1 + i]
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    found = gather_like(b, _extend(b, op, g), _shift(b, op, indices), _gather_dims(dims), _with_dtype_of(update, g))
    return b.select(_inside(b, op), found, zeros(b, found.type))


def _with_dtype_of(update: Value, g: Value) -> Shape:
    return update.shape.with_dtype(g.shape.dtype)


def _extend(b: Builder, op: Op, g: Value) -> Value:
    """g with room for windows that hang over its edges."""
    by = _overhang(op)
    return pad_with_zeros(b, g, by, by, (0,) * len(by), [op.operands[len(op.results) + 1]])


def _overhang(op: Op) -> list[Size]:
    """How far a window may stick out on either side and still touch the operand; windows of one element cannot."""
    x, update = op.operands[0], op.operands[len(op.results) + 1]
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    windows = iter(dims.update_window_dims)
    dropped = (*dims.inserted_window_dims, *dims.input_batching_dims)
    widths = [1 if d in dropped else update.shape.sizes[next(windows)] for d in range(x.shape.rank)]
    moves = dims.scatter_dims_to_operand_dims
    return [width - 1 if d in moves and width not in (0, 1) else 0 for d, width in enumerate(widths)]


def _shift(b: Builder, op: Op, indices: Value) -> Value:
    """Indices into what `_extend` made."""
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    by = _overhang(op)
    amounts = [by[d] for d in dims.scatter_dims_to_operand_dims]
    if all(amount == 0 for amount in amounts):
        return indices
    indices = _widen(b, indices)
    row = _components(b, amounts, indices, dims.index_vector_dim, [op.operands[len(op.results) + 1]])
    return b.add(indices, row)


def _widen(b: Builder, indices: Value) -> Value:
    """Indices in a type that holds every size."""
    return b.convert(indices, result=indices.shape.with_dtype(i64))


def _components(b: Builder, numbers: Sequence[Size], indices: Value, vector_dim: int, near: Sequence[Value]) -> Value:
    """One number per component of an index, in the shape of all indices."""
    row = b.convert(size_list(b, numbers, near), result=Shape.of(indices.shape.dtype, (len(numbers),)))
    if vector_dim < indices.shape.rank:
        return b.broadcast_in_dim(row, broadcast_dimensions=(vector_dim,), result=indices.shape)
    scalar = b.reshape(row, result=Shape.of(indices.shape.dtype, ()))
    return b.broadcast_in_dim(scalar, broadcast_dimensions=(), result=indices.shape)


def _again(b: Builder, op: Op, into: Value, updates: Value, body: str) -> Value:
    """A scatter of one operand to the same places, with another body: `update` keeps the last update."""
    scalar = Shape.of(into.shape.dtype, ())
    with b.region(scalar, scalar) as r:
        r.result(r.args[1] if body == "update" else r.op(f"stablehlo.{body}", *r.args).result)
    attrs = {key: value for key, value in op.attrs.items() if key != "regions"}
    made: Value = b.scatter(into, op.operands[len(op.results)], updates, regions=[r.body], **attrs)
    return made


def _scatter_add_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    sweep.add(op.operands[0], g)
    if sweep.wants(op.operands[2]):
        sweep.add(op.operands[2], _read_back(sweep.b, op, g))


def _winners(b: Builder, op: Op) -> Value:
    """Of the updates, the elements that were not overwritten by later ones."""
    x, update = op.operands[0], op.operands[len(op.results) + 1]
    numbers = _number_elements(b, update)
    none = b.full(-1, Shape.of(i32, x.shape.sizes))
    last = _again(b, op, none, numbers, "update")
    return b.compare(_read_back(b, op, last), numbers, comparison_direction="EQ")


def _number_elements(b: Builder, value: Value) -> Value:
    """The elements of a shape, numbered from 0."""
    sizes = value.shape.sizes
    flat = b.iota(iota_dimension=0, result=Shape.of(i32, (value.shape.count,)))
    return b.reshape(flat, result=Shape.of(i32, sizes))


def _scatter_update_jvp(sweep: Forward, op: Op) -> None:
    """The last update of each place wins: tangents of the others count for nothing."""
    b, x, update = sweep.b, op.operands[0], op.operands[2]
    left, right = sweep.tangent(x), sweep.tangent(update)
    terms = []
    if left is not None:
        terms.append(_again(b, op, left, zeros(b, update.type), "update"))
    if right is not None:
        kept = right
        if not op.attrs.get("unique_indices"):
            kept = b.select(_winners(b, op), right, zeros(b, right.type))
        terms.append(_again(b, op, zeros(b, x.type), kept, "add"))
    sweep.put(op.results[0], sweep.total(terms))


def _scatter_update_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, x, update = sweep.b, op.operands[0], op.operands[2]
    if sweep.wants(x):
        sweep.add(x, _again(b, op, g, zeros(b, update.type), "update"))
    if sweep.wants(update):
        found = _read_back(b, op, g)
        if not op.attrs.get("unique_indices"):
            found = b.select(_winners(b, op), found, zeros(b, found.type))
        sweep.add(update, found)


def _scatter_choice_jvp(sweep: Forward, op: Op) -> None:
    """A maximum or minimum: tangents of everything that equals the result share."""
    b, (x, _, update), result = sweep.b, op.operands, op.results[0]
    ones = like(b, 1, x), like(b, 1, update)
    mine = b.select(b.compare(x, result, comparison_direction="EQ"), ones[0], zeros(b, x.type))
    same = b.and_(b.compare(update, _read_back(b, op, result), comparison_direction="EQ"), _inside(b, op))
    theirs = b.select(same, ones[1], zeros(b, update.type))
    count = _again(b, op, mine, theirs, "add")
    left, right = sweep.tangent(x), sweep.tangent(update)
    terms = []
    if left is not None:
        terms.append(b.multiply(left, mine))
    if right is not None:
        terms.append(_again(b, op, zeros(b, x.type), b.multiply(right, theirs), "add"))
    total = sweep.total(terms)
    sweep.put(result, None if total is None else b.divide(total, count))


def _scatter_multiply_jvp(sweep: Forward, op: Op) -> None:
    """An update's factor is the product of everything else at its place; zeros among the updates are counted apart."""
    b, (x, _, update) = sweep.b, op.operands
    left, right = sweep.tangent(x), sweep.tangent(update)
    terms = []
    if left is not None:
        terms.append(_again(b, op, left, update, "multiply"))
    if right is not None:
        nothing, one = zeros(b, update.type), like(b, 1, update)
        is_zero = b.compare(update, nothing, comparison_direction="EQ")
        others = b.select(is_zero, one, update)
        product = _read_back(b, op, _again(b, op, x, others, "multiply"))
        count = _read_back(b, op, _again(b, op, zeros(b, x.type), b.select(is_zero, one, nothing), "add"))
        alone = b.and_(is_zero, b.compare(count, one, comparison_direction="EQ"))
        none = b.compare(count, nothing, comparison_direction="EQ")
        factor = b.select(none, b.divide(product, others), b.select(alone, product, nothing))
        terms.append(_again(b, op, zeros(b, x.type), b.multiply(right, factor), "add"))
    sweep.put(op.results[0], sweep.total(terms))


def _scatter_multiply_unique_jvp(sweep: Forward, op: Op) -> None:
    """Products at places that no two updates share."""
    b, (x, _, update) = sweep.b, op.operands
    left, right = sweep.tangent(x), sweep.tangent(update)
    terms = []
    if left is not None:
        terms.append(_again(b, op, left, update, "multiply"))
    if right is not None:
        terms.append(_again(b, op, zeros(b, x.type), b.multiply(right, _read_back(b, op, x)), "add"))
    sweep.put(op.results[0], sweep.total(terms))


def _scatter_multiply_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """By what is multiplied into, which is linear; by the updates the transpose of the jvp."""
    (g,) = cotangents
    assert g is not None
    x, _, update = op.operands
    if sweep.wants(x):
        sweep.add(x, _again(sweep.b, op, g, update, "multiply"))
    if sweep.wants(update):
        sweep.transpose(scatter_rule(op), op, cotangents, [update])


def scatter_rule(op: Op) -> Rule:
    """By the body."""
    if len(op.results) != 1:
        return no_derivative("it scatters several tensors at once")
    x, _, _ = op.operands
    region = op.regions[0]
    if x.shape.dtype != op.results[0].shape.dtype:
        return no_derivative("its body computes in another element type")
    if not is_differentiable(x.type):
        return zero("integers have no derivative")
    if region.results == region.args[1:]:
        return Rule(_scatter_update_jvp, _scatter_update_vjp)
    kind = single_op(region)
    if kind == "add":
        return linear(_scatter_add_vjp, 0, 2)
    if kind in ("maximum", "minimum"):
        return Rule(_scatter_choice_jvp)
    if kind == "multiply":
        unique = op.attrs.get("unique_indices")
        return Rule(_scatter_multiply_unique_jvp if unique else _scatter_multiply_jvp, _scatter_multiply_vjp)
    return no_derivative("its body is no sum, product, maximum, minimum or overwrite")


# ---- slices at computed places ----


def _dynamic_slice_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """Added to a part of the cotangent, in place: a loop may take one slice after the other."""
    (g,) = cotangents
    assert g is not None
    b, (x, *starts) = sweep.b, op.operands

    def add(total: Value) -> Value:
        part = b.dynamic_slice(total, *starts, slice_sizes=op.attrs["slice_sizes"])
        return b.dynamic_update_slice(total, b.add(part, g), *starts)

    sweep.accumulate(x, add)


def _update_slice_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    (g,) = cotangents
    assert g is not None
    b, (x, update, *starts) = sweep.b, op.operands
    if sweep.wants(x):
        sweep.add(x, b.dynamic_update_slice(g, zeros(b, update.type), *starts))
    if sweep.wants(update):
        sweep.add(update, slice_like(b, g, starts, update.shape))


def slice_like(b: Builder, x: Value, starts: Sequence[Value], shape: Shape) -> Value:
    if shape.is_static:
        return b.dynamic_slice(x, *starts, slice_sizes=shape.numbers(), result=shape.with_dtype(x.shape.dtype))
    one = Shape.of(starts[0].shape.dtype, (1,))
    parts = [b.reshape(start, result=one) for start in starts]
    at = parts[0] if len(parts) == 1 else b.concatenate(*parts, dimension=0)
    dims = GatherDims(offset_dims=tuple(range(shape.rank)), start_index_map=tuple(range(shape.rank)))
    return gather_like(b, x, at, dims, shape.with_dtype(x.shape.dtype))


def _index_select(b: Builder, op: Op) -> Sequence[Value]:
    """`torch_index_select` as a gather."""
    x, index = op.operands
    dim, batch = op.attrs["dim"], op.attrs["batch_dims"]
    batching = tuple(range(batch))
    places = range(dim, dim + index.shape.rank - batch)
    offsets = tuple(d for d in range(batch, op.results[0].shape.rank) if d not in places)
    dims = GatherDims(offsets, (dim,), batching, batching, (dim,), index.shape.rank)
    return [gather_like(b, x, index, dims, op.results[0].shape)]


# ---- sort and top_k: tangents follow the permutation ----


def _follow(b: Builder, tangent: Value, places: Value, dimension: int) -> Value:
    """Elements of a tensor taken along one dimension at places of their own."""
    rank = tangent.shape.rank
    others = tuple(d for d in range(rank) if d != dimension)
    dims = GatherDims((), (dimension,), others, others, (dimension,), rank)
    return b.gather(tangent, places, dimension_numbers=dims, slice_sizes=(1,) * rank)


def _sort_jvp(sweep: Forward, op: Op) -> None:
    b, dimension = sweep.b, op.attrs["dimension"] % op.operands[0].shape.rank
    places = b.iota(iota_dimension=dimension, result=Shape.of(i32, op.operands[0].shape.sizes))
    region = op.regions[0]
    pair = Shape.of(i32, ())
    with b.region(*(arg.type for arg in region.args), pair, pair) as r:
        values = dict(zip(region.args, r.args, strict=False))
        r.ops += clone_ops(region.ops, values)
        r.result(*(values.get(value, value) for value in region.results))
    attrs = {"dimension": op.attrs["dimension"], "is_stable": op.attrs.get("is_stable")}
    order = b.op("stablehlo.sort", *op.operands, places, regions=[r.body], **attrs).results[-1]
    for value, result in zip(op.operands, op.results, strict=True):
        tangent = sweep.tangent(value)
        if tangent is not None:
            sweep.put(result, _follow(b, tangent, order, dimension))


def _top_k_jvp(sweep: Forward, op: Op) -> None:
    tangent = sweep.tangent(op.operands[0])
    if tangent is not None:
        sweep.put(op.results[0], _follow(sweep.b, tangent, op.results[1], tangent.shape.rank - 1))


RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.gather": linear(_gather_vjp, 0),
    "stablehlo.dynamic_gather": linear(_gather_vjp, 0),
    "stablehlo.dynamic_broadcast_in_dim": linear_in_first(_dynamic_broadcast),
    "stablehlo.scatter": scatter_rule,
    "stablehlo.dynamic_slice": linear(_dynamic_slice_vjp, 0),
    "stablehlo.dynamic_update_slice": linear(_update_slice_vjp, 0, 1),
    "stablehlo.torch_index_select": Rule(expand=_index_select),
    "stablehlo.sort": Rule(_sort_jvp),
    "chlo.top_k": Rule(_top_k_jvp),
}
