"""Ops over one more axis: what `smelt.vmap` makes of the ops of a function. The new axis comes first.

`Batch` keeps, for each value that depends on the new axis, the value with it. Common ops have rules; any other op runs
in a scan over the slices, so that every op can be batched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from smelt.dim import Size
from smelt.ir.attributes import ConvDims, DotDims, GatherDims, ScatterDims
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.clone import clone_ops, clone_region
from smelt.ir.core import Func, Op, Region, Type, Value, used_values
from smelt.ir.ops import OPS
from smelt.ir.rewrite import insert_call
from smelt.shape import Shape


class Batch:
    """Values with the new axis, so far. `functions` are those that calls and composites name."""

    def __init__(self, b: Builder, size: Size, values: dict[Value, Value], functions: Mapping[str, Func]) -> None:
        self.b = b
        self.size = size
        self.values = values
        self.functions = functions

    def spread(self, value: Value) -> Value:
        """A value with the new axis; one that does not depend on it is repeated."""
        found = self.values.get(value)
        if found is None:
            dims = tuple(range(1, value.shape.rank + 1))
            found = self.b.broadcast_in_dim(value, broadcast_dimensions=dims, result=self.type(value.type))
        return found

    def type(self, type: Type) -> Shape:
        assert isinstance(type, Shape)
        return Shape.of(type.dtype, (self.size, *type.sizes))

    def run(self, ops: Sequence[Op]) -> None:
        for op in ops:
            if any(value in self.values for value in used_values(op)):
                made = self._results(op)
                self.values.update(zip(op.results, made, strict=True))

    def _results(self, op: Op) -> Sequence[Value]:
        if op.name in ("func.call", "stablehlo.composite"):
            return self._call(op)
        rule = _elementwise if _is_elementwise(op) else RULES.get(op.name)
        made = rule(self, op) if rule is not None else None
        return _slice_by_slice(self, op) if made is None else made

    def _call(self, op: Op) -> Sequence[Value]:
        """The body of what is called, batched."""
        name = op.attrs["callee" if op.name == "func.call" else "decomposition"]
        start = len(self.b.ops)
        results = insert_call(self.b, self.functions[name], op.operands, op)
        self.run(self.b.ops[start:])
        return [self.spread(value) for value in results]

    def op(self, op: Op, operands: Iterable[Value], regions: Sequence[Region] = (), **changed: Any) -> Sequence[Value]:
        """The same op on other operands, with results of one more axis."""
        attrs = {**op.attrs, **changed}
        types = [self.type(value.type) for value in op.results]
        return self.b.op(op.name, *operands, result=types, regions=regions, **attrs).results


Rule = Callable[[Batch, Op], Sequence[Value] | None]  # None: slice by slice


def _shift(dims: Sequence[int]) -> tuple[int, ...]:
    return tuple(dim + 1 for dim in dims)


def _is_elementwise(op: Op) -> bool:
    return OPS[op.name].elementwise and not op.name.startswith("chlo.broadcast_")


def _elementwise(batch: Batch, op: Op) -> Sequence[Value]:
    """Scalar bounds and predicates are repeated over all axes."""
    operands = []
    for value in op.operands:
        made = batch.spread(value)
        if value.shape.rank < op.results[0].shape.rank:
            to = Shape.of(value.shape.dtype, (batch.size, *op.results[0].shape.sizes))
            made = batch.b.broadcast_in_dim(made, broadcast_dimensions=(0,), result=to)
        operands.append(made)
    return batch.op(op, operands)


def _broadcast_in_dim(batch: Batch, op: Op) -> Sequence[Value]:
    dims = (0, *_shift(op.attrs["broadcast_dimensions"]))
    return batch.op(op, [batch.values[op.operands[0]]], broadcast_dimensions=dims)


def _dims(name: str, *, lead: bool = False) -> Rule:
    """An op on all operands whose attribute lists dimensions; `lead`: one entry per dimension, in order."""

    def rule(batch: Batch, op: Op) -> Sequence[Value]:
        given = op.attrs[name]
        dims: Any = given + 1 if isinstance(given, int) else (*((0,) if lead else ()), *_shift(given))
        regions = [clone_region(region, {}) for region in op.regions]
        return batch.op(op, map(batch.spread, op.operands), regions, **{name: dims})

    return rule


def _reshape(batch: Batch, op: Op) -> Sequence[Value]:
    return batch.op(op, [batch.values[op.operands[0]]])


def _slice(batch: Batch, op: Op) -> Sequence[Value] | None:
    if not isinstance(batch.size, int):
        return None
    edges = {"start_indices": 0, "limit_indices": batch.size, "strides": 1}
    changed = {name: (first, *op.attrs[name]) for name, first in edges.items()}
    return batch.op(op, [batch.values[op.operands[0]]], **changed)


def _pad(batch: Batch, op: Op) -> Sequence[Value] | None:
    x, value = op.operands
    if value in batch.values:
        return None
    names = ("edge_padding_low", "edge_padding_high", "interior_padding")
    return batch.op(op, [batch.spread(x), value], **{name: (0, *op.attrs[name]) for name in names})


def _reduce(batch: Batch, op: Op) -> Sequence[Value] | None:
    count = len(op.results)
    inputs, inits = op.operands[:count], op.operands[count:]
    if any(init in batch.values for init in inits):
        return None
    regions = [clone_region(op.regions[0], {})]
    return batch.op(op, [*map(batch.spread, inputs), *inits], regions, dimensions=_shift(op.attrs["dimensions"]))


def _reduce_window(batch: Batch, op: Op) -> Sequence[Value] | None:
    count = len(op.results)
    inputs, inits = op.operands[:count], op.operands[count:]
    if any(init in batch.values for init in inits):
        return None
    changed: dict[str, Any] = {"window_dimensions": (1, *op.attrs["window_dimensions"])}
    for name in ("window_strides", "base_dilations", "window_dilations"):
        if op.attrs.get(name):
            changed[name] = (1, *op.attrs[name])
    if op.attrs.get("padding"):
        changed["padding"] = ((0, 0), *op.attrs["padding"])
    return batch.op(op, [*map(batch.spread, inputs), *inits], [clone_region(op.regions[0], {})], **changed)


def _dot_general(batch: Batch, op: Op) -> Sequence[Value]:
    """A batch dimension where both operands have the new axis, else a free one, which then comes first."""
    lhs, rhs = op.operands
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    both = lhs in batch.values and rhs in batch.values
    parts = []
    for value, batching, contracting in (
        (lhs, dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions),
        (rhs, dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions),
    ):
        moved = value in batch.values
        parts.append(
            (
                (*((0,) if both else ()), *(_shift(batching) if moved else batching)),
                _shift(contracting) if moved else tuple(contracting),
            )
        )
    numbers = DotDims(parts[0][0], parts[1][0], parts[0][1], parts[1][1])
    operands = [batch.values.get(value, value) for value in op.operands]
    if both:
        return batch.op(op, operands, dot_dimension_numbers=numbers)
    result = op.results[0].shape
    count = len(dims.lhs_batching_dimensions)
    free = lhs.shape.rank - count - len(dims.lhs_contracting_dimensions)
    place = count if lhs in batch.values else count + free  # where the new axis comes out
    sizes = [*result.sizes[:place], batch.size, *result.sizes[place:]]
    attrs = {**op.attrs, "dot_dimension_numbers": numbers}
    made = batch.b.op(op.name, *operands, result=[Shape.of(result.dtype, sizes)], **attrs).result
    order = (place, *(d for d in range(len(sizes)) if d != place))
    return [made if place == 0 else batch.b.transpose(made, permutation=order)]


def _gather(batch: Batch, op: Op) -> Sequence[Value]:
    dims: GatherDims = op.attrs["dimension_numbers"]
    numbers = GatherDims(
        _shift(dims.offset_dims),
        _shift(dims.collapsed_slice_dims),
        (0, *_shift(dims.operand_batching_dims)),
        (0, *_shift(dims.start_indices_batching_dims)),
        _shift(dims.start_index_map),
        dims.index_vector_dim + 1,
    )
    sizes = (1, *op.attrs["slice_sizes"])
    return batch.op(op, map(batch.spread, op.operands), dimension_numbers=numbers, slice_sizes=sizes)


def _scatter(batch: Batch, op: Op) -> Sequence[Value]:
    dims: ScatterDims = op.attrs["scatter_dimension_numbers"]
    numbers = ScatterDims(
        _shift(dims.update_window_dims),
        _shift(dims.inserted_window_dims),
        (0, *_shift(dims.input_batching_dims)),
        (0, *_shift(dims.scatter_indices_batching_dims)),
        _shift(dims.scatter_dims_to_operand_dims),
        dims.index_vector_dim + 1,
    )
    regions = [clone_region(op.regions[0], {})]
    return batch.op(op, map(batch.spread, op.operands), regions, scatter_dimension_numbers=numbers)


def _convolution(batch: Batch, op: Op) -> Sequence[Value] | None:
    """The new axis of the feature maps as a part of their batch; kernels that differ go slice by slice."""
    x, kernel = op.operands
    dims: ConvDims = op.attrs["dimension_numbers"]
    if kernel in batch.values or op.attrs["batch_group_count"] != 1:
        return None
    images = _merge_first(batch, batch.values[x], dims.input_batch_dimension)
    result = op.results[0].shape
    place = dims.output_batch_dimension
    sizes = [batch.size * size if d == place else size for d, size in enumerate(result.sizes)]
    made = batch.b.op(op.name, images, kernel, result=[Shape.of(result.dtype, sizes)], **dict(op.attrs)).result
    split = [*result.sizes[:place], batch.size, *result.sizes[place:]]
    apart = batch.b.reshape(made, result=Shape.of(result.dtype, split))
    return [batch.b.transpose(apart, permutation=(place, *(d for d in range(len(split)) if d != place)))]


def _merge_first(batch: Batch, value: Value, into: int) -> Value:
    """The first axis as the slow part of another."""
    order = [*range(1, into + 1), 0, *range(into + 1, value.shape.rank)]
    moved = batch.b.transpose(value, permutation=tuple(order))
    sizes = [*moved.shape.sizes]
    merged = [*sizes[:into], sizes[into] * sizes[into + 1], *sizes[into + 2 :]]
    return batch.b.reshape(moved, result=Shape.of(value.shape.dtype, merged))


def _scan(batch: Batch, op: Op) -> Sequence[Value]:
    """The same scan on rows and carries that all have the new axis."""
    body = clone_region(op.regions[0], {})
    operands = [batch.spread(value) for value in op.operands]
    r = RegionBuilder(batch.b, [batch.type(arg.type) for arg in body.args])
    inner = Batch(r, batch.size, dict(zip(body.args, r.args, strict=True)), batch.functions)
    for each in body.ops:
        if any(value in inner.values for value in used_values(each)):
            inner.run([each])
        else:
            r.ops.append(each)
    results = [inner.spread(value) for value in body.results]
    return batch.op(op, operands, [r.result(*results)], dimension=op.attrs["dimension"] + 1)


def _slice_by_slice(batch: Batch, op: Op) -> Sequence[Value]:
    """Any op: a scan whose steps compute it on one slice each."""
    used = list(dict.fromkeys(used_values(op)))
    rows = [value for value in used if value in batch.values]
    fixed = [value for value in used if value not in batch.values]
    r = RegionBuilder(batch.b, [value.type for value in (*rows, *fixed)])
    values = dict(zip((*rows, *fixed), r.args, strict=True))
    r.ops += clone_ops([op], values)
    r.result(*(values[value] for value in op.results), *r.args[len(rows) :])
    operands = [*(batch.values[value] for value in rows), *fixed]
    made = batch.b.op("chlo.scan", *operands, regions=[r.body], dimension=0).results
    return made[: len(op.results)]


RULES: Mapping[str, Rule] = {
    "stablehlo.broadcast_in_dim": _broadcast_in_dim,
    "stablehlo.reshape": _reshape,
    "stablehlo.transpose": _dims("permutation", lead=True),
    "stablehlo.reverse": _dims("dimensions"),
    "stablehlo.concatenate": _dims("dimension"),
    "stablehlo.sort": _dims("dimension"),
    "stablehlo.slice": _slice,
    "stablehlo.pad": _pad,
    "stablehlo.reduce": _reduce,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.dot_general": _dot_general,
    "stablehlo.gather": _gather,
    "stablehlo.scatter": _scatter,
    "stablehlo.convolution": _convolution,
    "chlo.top_k": lambda batch, op: batch.op(op, [batch.values[op.operands[0]]]),
    "chlo.scan": _scan,
}
