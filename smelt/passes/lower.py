"""Lowering: ops without a kernel become ops that have one. Called by `pipeline` for engines that need it.

Batch norms and scans are decomposed, `einsum` becomes `dot_general`, collectives over one process become their operand.
Quantised types (`lower_quantised_types`) and `rng` (`lower_random`) change whole functions and have files of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import DType, f32, i32
from smelt.ir.attributes import DotDims, Float, GatherDims, Int
from smelt.ir.build import Builder
from smelt.ir.clone import clone_ops
from smelt.ir.core import Op, Region, Value, walk
from smelt.ir.ops import OPS
from smelt.ir.ops.control import is_assertion
from smelt.ir.ops.linear import einsum_labels, inner_dims, ragged_mode
from smelt.ir.ops.reduce import scan_counts
from smelt.ir.rewrite import Edit, Match, Rule, op
from smelt.shape import Shape

Values = Value | Sequence[Value] | None


def lower(edit: Edit, rules: Sequence[Rule] | None = None) -> int:
    """Apply the rules; unlike `rewrite`, also to ops with an effect. Returns the number of changes."""
    by_name = {rule.pattern.op: rule for rule in (LOWER if rules is None else rules)}
    count = 0
    work = deque(walk(edit.func.body))
    while work:
        each = work.popleft()
        rule = by_name.get(each.name)
        if rule is None or each not in edit:
            continue
        edit.touched.clear()
        made = rule.fn(Match(edit, each))
        if made is None:
            continue
        work += (op for top in edit.touched for op in _with_inner(top))
        values = [made] if isinstance(made, Value) else list(made)
        for old, new in zip(each.results, values, strict=True):
            edit.replace(old, new)
        start = edit.maker(each.operands[0]) if each.operands else None
        edit.erase(each)
        if start is not None and start.name == "stablehlo.async_start" and not edit.is_used(start.results[0]):
            edit.erase(start)
        count += 1
    return count


def _with_inner(op: Op) -> Iterator[Op]:
    yield op
    for region in op.regions:
        yield from walk(region)


# ---- normalisation ----


class _Norm:
    """The state of one batch norm: values in the type to compute in, and per-channel numbers broadcast to them."""

    def __init__(self, m: Match) -> None:
        self.b, self.op, self.shape = m.build, m.op, m.operand(0).shape
        element = self.shape.element
        self.kind: DType = element if element.bits >= 32 else f32
        self.feature = m.op.attrs["feature_index"]
        self.axes = tuple(d for d in range(self.shape.rank) if d != self.feature)
        self.operands = [self.b.convert(value, result=value.shape.with_dtype(self.kind)) for value in _operands(m)]

    def along(self, x: Value) -> Value:
        """Per-channel numbers broadcast to every element."""
        return self.b.broadcast_in_dim(x, broadcast_dimensions=(self.feature,), result=self.shape.with_dtype(self.kind))

    def number(self, x: float, like: Value) -> Value:
        return self.b.full(x, like.shape)

    def sum(self, x: Value) -> Value:
        return self.b.reduce_by("add", x, 0.0, self.axes)

    def count(self, like: Value) -> Value:
        """The number of elements of a channel, in the shape of a value."""
        total = self.b.constant(1.0, self.kind)
        for axis in self.axes:
            size = self.b.get_dimension_size(self.operands[0], dimension=axis)
            total = self.b.multiply(total, self.b.convert(size, result=Shape.of(self.kind, ())))
        return _spread(self.b, total, like.shape)

    def deviation(self, variance: Value) -> Value:
        epsilon = float(np.float32(self.op.attrs["epsilon"]))
        return self.b.sqrt(self.b.add(variance, self.number(epsilon, variance)))

    def results(self, *values: Value) -> list[Value]:
        pairs = zip(values, self.op.results, strict=True)
        return [self.b.convert(value, result=value.shape.with_dtype(old.shape.dtype)) for value, old in pairs]


def _batch_norm_inference(m: Match) -> Values:
    n = _Norm(m)
    x, scale, offset, mean, variance = n.operands
    normal = n.b.divide(n.b.subtract(x, n.along(mean)), n.along(n.deviation(variance)))
    return n.results(n.b.add(n.b.multiply(normal, n.along(scale)), n.along(offset)))


def _batch_norm_training(m: Match) -> Values:
    n = _Norm(m)
    x, scale, offset = n.operands
    mean = n.b.divide(n.sum(x), n.count(scale))
    centered = n.b.subtract(x, n.along(mean))
    variance = n.b.divide(n.sum(n.b.multiply(centered, centered)), n.count(scale))
    normal = n.b.divide(centered, n.along(n.deviation(variance)))
    return n.results(n.b.add(n.b.multiply(normal, n.along(scale)), n.along(offset)), mean, variance)


def _batch_norm_grad(m: Match) -> Values:
    n = _Norm(m)
    x, scale, mean, variance, grad = n.operands
    b = n.b
    centered = b.subtract(x, n.along(mean))
    deviation = n.deviation(variance)
    offset = n.sum(grad)
    along = n.sum(b.multiply(grad, centered))
    pull = b.multiply(centered, n.along(b.divide(along, b.multiply(deviation, deviation))))
    inner = b.subtract(b.subtract(b.multiply(n.count(x), grad), n.along(offset)), pull)
    factor = b.divide(b.divide(scale, deviation), n.count(scale))
    return n.results(b.multiply(n.along(factor), inner), b.divide(along, deviation), offset)


def _spread(b: Builder, scalar: Value, shape: Shape) -> Value:
    return b.broadcast_in_dim(scalar, broadcast_dimensions=(), result=shape)


# ---- contractions ----


def _einsum(m: Match) -> Values:
    """A `dot_general` where every label is batch, contracted or free; einsum's own kernel takes the rest."""
    lhs, rhs = _operands(m)
    terms, names = einsum_labels(m.op.attrs["einsum_config"], [lhs.shape.rank, rhs.shape.rank])
    left, right = terms
    shared = [label for label in left if label in right]
    batch = [label for label in shared if label in names]
    summed = [label for label in shared if label not in names]
    free = [[label for label in term if label not in shared] for term in terms]
    unique = all(len(set(term)) == len(term) for term in terms)
    if not unique or any(label not in names for label in (*free[0], *free[1])):
        return None
    dims = DotDims(
        tuple(map(left.index, batch)),
        tuple(map(right.index, batch)),
        tuple(map(left.index, summed)),
        tuple(map(right.index, summed)),
    )
    order = [*batch, *free[0], *free[1]]
    sizes: dict[str, Size] = {
        **dict(zip(right, rhs.shape.sizes, strict=True)),
        **dict(zip(left, lhs.shape.sizes, strict=True)),
    }
    made = Shape.of(m.shape.dtype, [sizes[label] for label in order])
    product = m.build.dot_general(lhs, rhs, dot_dimension_numbers=dims, result=made)
    if order == names:
        return _same_sizes(product, m)
    return _same_sizes(m.build.transpose(product, permutation=tuple(order.index(label) for label in names)), m)


def _same_sizes(value: Value, m: Match) -> Value | None:
    return value if value.shape.sizes == m.shape.sizes else None


def _ragged_dot(m: Match) -> Values:
    dims = m.op.attrs["ragged_dot_dimension_numbers"]
    if ragged_mode(dims) != "batch":
        return None
    lhs, rhs, _ = _operands(m)
    return m.build.dot_general(lhs, rhs, dot_dimension_numbers=inner_dims(dims), result=m.shape)


# ---- one process ----


def _alone(m: Match) -> bool:
    """Whether the only group is the one process."""
    return [list(group) for group in m.op.attrs["replica_groups"]] == [[0]] and not m.op.attrs.get("has_dynamic_root")


def _lower_collective_of_one(m: Match) -> Values:
    """A collective over one process is its operand; the computation's element type may be wider."""
    if not _alone(m):
        return None
    made = []
    for operand, old in zip(_operands(m), m.op.results, strict=True):
        if operand.shape.sizes != old.shape.sizes:
            return None
        same = operand.shape.dtype == old.shape.dtype
        made.append(operand if same else m.build.convert(operand, result=old.shape))
    return made


def _permute(m: Match) -> Values:
    pairs = [tuple(pair) for pair in m.op.attrs["source_target_pairs"]]
    if pairs == [(0, 0)]:
        return m.operand(0)
    return m.build.full(0, m.shape) if not pairs else None


def _first(m: Match) -> Values:
    return m.build.constant(0, m.shape.dtype)


def _operand(m: Match) -> Values:
    return m.operand(0)


def _nothing(_: Match) -> Values:
    return ()


# ---- tuples, futures, constants ----


def _element(m: Match) -> Values:
    maker = m.edit.maker(m.operand(0))
    if maker is None or maker.name != "stablehlo.tuple":
        return None
    return m.edit.operands(maker)[m.op.attrs["index"]]


def _lower_async_done(m: Match) -> Values:
    """The results of an asynchronous region, computed at its `async_done`."""
    maker = m.edit.maker(m.operand(0))
    if maker is None or maker.name != "stablehlo.async_start":
        return None
    return _inline(m.build, maker.regions[0], m.edit.operands(maker))


def _inline(b: Any, region: Region, operands: Sequence[Value]) -> list[Value]:
    values = dict(zip(region.args, operands, strict=True))
    for each in clone_ops(region.ops, values):
        b.insert(each)
    return [values.get(value, value) for value in region.results]


def _constant_like(m: Match) -> Values:
    value = m.op.attrs["value"]
    return m.build.full(value.value if isinstance(value, Int | Float) else value, m.shape)


# ---- scan ----


def is_pointwise(region: Region) -> bool:
    """Whether a body is elementwise, so that the scan kernel can run it along the scanned dimension."""
    shapes = [value.type for value in (*region.args, *(result for each in region.ops for result in each.results))]
    sizes = {shape.sizes for shape in shapes if isinstance(shape, Shape) and shape.rank}
    if len(sizes) > 1 or (sizes and any(isinstance(arg.type, Shape) and not arg.type.rank for arg in region.args)):
        return False

    def plain(each: Op) -> bool:
        if each.name in ("stablehlo.constant", "chlo.constant"):
            return bool(each.attrs["value"].is_splat)
        if each.name == "stablehlo.broadcast_in_dim":
            return not each.operands[0].shape.rank
        return OPS[each.name].elementwise

    own = {*region.args, *(value for each in region.ops for value in each.results)}
    return all(plain(each) and own.issuperset(each.operands) for each in region.ops) and own.issuperset(region.results)


def _scan(m: Match) -> Values:
    """A loop over slices, for bodies that are not elementwise."""
    return None if is_pointwise(m.op.regions[0]) else _scan_as_loop(m)


def _scan_as_loop(m: Match) -> Values:
    body, dimension = m.op.regions[0], m.op.attrs["dimension"]
    inputs, inits = scan_counts(m.op)
    operands = _operands(m)
    outputs = len(body.results) - inits
    b, counter = m.build, Shape("i32")
    if operands[0].shape.sizes[dimension] == 0:
        return [*(b.full(0, value.shape) for value in m.op.results[:outputs]), *operands[inputs:]]
    length = b.convert(b.get_dimension_size(operands[0], dimension=dimension), result=counter)
    carried = [
        b.constant(0, i32),
        *(b.full(0, value.shape) for value in m.op.results[:outputs]),
        *operands[inputs:],
    ]
    types = [value.type for value in carried]
    with b.region(*types) as condition:
        condition.result(condition.compare(condition.args[0], length, comparison_direction="LT"))
    with b.region(*types) as r:
        step, zero = r.args[0], r.constant(0, i32)
        last = r.subtract(length, r.constant(1, i32))
        at = r.subtract(last, step) if m.op.attrs["is_reverse"] else step
        rows = [_row(r, value, at, zero, dimension) for value in operands[:inputs]]
        values = dict(zip(body.args, [*rows, *r.args[1 + outputs :]], strict=True))
        r.ops += clone_ops(body.ops, values)
        results = [values.get(value, value) for value in body.results]
        written = [
            _write_row(r, target, row, at, zero, dimension)
            for target, row in zip(r.args[1 : 1 + outputs], results[:outputs], strict=True)
        ]
        r.result(r.add(step, r.constant(1, i32)), *written, *results[outputs:])
    loop = b.op("stablehlo.while", *carried, regions=[condition.body, r.body])
    return loop.results[1:]


REDUCTIONS = frozenset(("add", "multiply", "maximum", "minimum", "and", "or", "xor"))


def running_reduction(op: Op) -> tuple[str, int] | None:
    """The function by which each element of an input changes the only carry, and the number of that input. Not for
    narrow floats and complex numbers: totals of parts would be rounded far from them."""
    body, (inputs, inits) = op.regions[0], scan_counts(op)
    if inits != 1 or not is_pointwise(body):
        return None
    maker, carry = body.results[-1].op, body.args[inputs]
    if maker is None or maker.name.removeprefix("stablehlo.") not in REDUCTIONS or len(maker.operands) != 2:
        return None
    one, other = maker.operands if maker.operands[1] is carry else maker.operands[::-1]
    element = carry.shape.element
    narrow = element.is_complex or (element.is_float and element.bits < 32)
    if other is not carry or one not in body.args[:inputs] or narrow:
        return None
    return maker.name.removeprefix("stablehlo."), body.args.index(one)


def _scan_in_parts(m: Match) -> Values:
    """A running sum, maximum or the like over a known number of elements: totals of pairs, of pairs of pairs, and so
    on, each on all rows at once. The work is linear, the number of ops logarithmic. One over sizes that are not known
    yet stays as it is."""
    found, operands, dimension = running_reduction(m.op), _operands(m), m.op.attrs["dimension"]
    if found is None or operands[0].shape.sizes[dimension] == 0:
        return _scan_as_loop(m)
    item = operands[found[1]]
    if not item.shape.is_static:
        return None
    b, init, back = m.build, operands[-1], m.op.attrs["is_reverse"]
    length = item.shape.numbers()[dimension]
    first = b.reshape(init, result=_resize(item, dimension, 1))
    if back:
        item = b.reverse(item, dimensions=(dimension,))
    totals = _totals(b, found[0], b.concatenate(first, item, dimension=dimension), dimension)
    before = _cut(b, totals, dimension, 0, length)
    if back:
        before = b.reverse(before, dimensions=(dimension,))
    last = b.reshape(_cut(b, totals, dimension, length, length + 1), result=init.shape)
    return [*_run_on_all_rows(b, m.op, [*operands[:-1], before]), last]


def _totals(b: Builder, function: str, x: Value, dimension: int) -> Value:
    """Every element combined with all before it."""
    length = x.shape.numbers()[dimension]
    if length < 2:
        return x
    half = length // 2
    pairs = b.op(
        f"stablehlo.{function}",
        _cut(b, x, dimension, 0, 2 * half, 2),
        _cut(b, x, dimension, 1, 2 * half, 2),
    ).result
    odd = _totals(b, function, pairs, dimension)  # of the elements 1, 3, 5 …
    even = _cut(b, x, dimension, 0, 1)  # of the elements 0, 2, 4 …
    if length > 2:
        rest = _cut(b, x, dimension, 2, length, 2)
        known = _cut(b, odd, dimension, 0, rest.shape.numbers()[dimension])
        even = b.concatenate(even, b.op(f"stablehlo.{function}", known, rest).result, dimension=dimension)
    sizes = list(x.shape.sizes)
    sizes[dimension : dimension + 1] = [half, 1]
    one = Shape.of(x.shape.dtype, sizes)
    columns = [b.reshape(each, result=one) for each in (_cut(b, even, dimension, 0, half), odd)]
    woven = b.reshape(b.concatenate(*columns, dimension=dimension + 1), result=_resize(x, dimension, 2 * half))
    if length % 2:
        woven = b.concatenate(woven, _cut(b, even, dimension, half, half + 1), dimension=dimension)
    return woven


def _cut(b: Builder, x: Value, dimension: int, start: int, limit: int, stride: int = 1) -> Value:
    sizes = x.shape.numbers()
    starts, limits, strides = [0] * len(sizes), list(sizes), [1] * len(sizes)
    starts[dimension], limits[dimension], strides[dimension] = start, limit, stride
    return b.slice(x, start_indices=tuple(starts), limit_indices=tuple(limits), strides=tuple(strides))


def _resize(x: Value, dimension: int, size: Size) -> Shape:
    return x.shape.with_sizes(size if d == dimension else each for d, each in enumerate(x.shape.sizes))


def _run_on_all_rows(b: Builder, op: Op, operands: Sequence[Value]) -> list[Value]:
    """The outputs of a scan with an elementwise body, from its inputs and the carry before each element."""
    body = op.regions[0]
    row, sizes = body.args[0].shape.sizes, operands[0].shape.sizes
    values = dict(zip(body.args, operands, strict=True))
    for each in body.ops:
        shape = each.result.shape
        result = shape.with_sizes(sizes) if shape.sizes == row else shape
        if each.name in ("stablehlo.constant", "chlo.constant"):
            values[each.result] = b.full(each.attrs["value"].array.reshape(-1)[0].item(), result)
        elif each.name == "stablehlo.broadcast_in_dim":
            given = values[each.operands[0]]
            axes = tuple(range(given.shape.rank))
            values[each.result] = b.broadcast_in_dim(given, broadcast_dimensions=axes, result=result)
        else:
            made = b.op(each.name, *(values[value] for value in each.operands), result=result, **each.attrs)
            values[each.result] = made.result
    return [values[value] for value in body.results[: len(op.results) - 1]]


def _scan_for_onnx(m: Match) -> Values:
    """What CumSum computes stays a scan, of the sums before each element; `is_cumulative_sum` knows it again. Other
    running reductions over dynamic dimensions stay as they are, too: they are Loop."""
    found, operands, dimension = running_reduction(m.op), _operands(m), m.op.attrs["dimension"]
    is_sum = found is not None and found[0] == "add" and operands[-1].shape.element.kind != "bool"
    if found is None or not is_sum or not _is_zero(m.edit, operands[-1]):
        return _scan_in_parts(m)
    last = m.edit.is_used(m.op.results[-1])
    if is_cumulative_sum(m.op) and not last:
        return None
    b, item, init = m.build, operands[found[1]], operands[-1]
    with b.region(init.type, init.type) as r:
        r.result(r.args[1], r.add(r.args[1], r.args[0]))
    attrs = {"dimension": dimension, "is_reverse": m.op.attrs["is_reverse"]}
    before = b.op("chlo.scan", item, init, regions=[r.body], **attrs).results[0]
    total = b.reduce_by("add", item, 0, [dimension]) if last else init
    return [*_run_on_all_rows(b, m.op, [*operands[:-1], before]), total]


def is_cumulative_sum(op: Op) -> bool:
    """Whether the only output of a scan is the sum of the elements before each one."""
    body = op.regions[0]
    added = body.ops[0] if len(body.ops) == 1 and len(body.args) == 2 else None
    if added is None or added.name != "stablehlo.add" or set(added.operands) != set(body.args):
        return False
    return body.results == (body.args[1], added.result)


def _is_zero(edit: Edit, value: Value) -> bool:
    maker = edit.maker(value)
    while maker is not None and maker.name in ("stablehlo.broadcast_in_dim", "stablehlo.dynamic_broadcast_in_dim"):
        maker = edit.maker(edit.operands(maker)[0])
    return maker is not None and maker.name == "stablehlo.constant" and not np.any(maker.attrs["value"].array)


def _checked_scan(m: Match) -> Values:
    return _scan(m) if any(is_assertion(op) for op in walk(m.op.regions[0])) else None


def _row(b: Builder, value: Value, at: Value, zero: Value, dimension: int) -> Value:
    sizes = [1 if d == dimension else size for d, size in enumerate(value.shape.sizes)]
    if not all(isinstance(size, int) for size in sizes):
        return _gather_row(b, value, at, dimension)
    starts = [at if d == dimension else zero for d in range(len(sizes))]
    row = b.dynamic_slice(value, *starts, slice_sizes=tuple(sizes))
    kept = [size for d, size in enumerate(value.shape.sizes) if d != dimension]
    return b.reshape(row, result=Shape.of(value.shape.dtype, kept))


def _gather_row(b: Builder, value: Value, at: Value, dimension: int) -> Value:
    """A row with dynamic sizes, by a gather: the sizes of a slice are numbers."""
    rank, one = value.shape.rank, Shape("i32", 1)
    sizes = [
        b.constant([1], i32) if d == dimension else b.reshape(b.get_dimension_size(value, dimension=d), result=one)
        for d in range(rank)
    ]
    dims = GatherDims(
        offset_dims=tuple(range(rank - 1)),
        collapsed_slice_dims=(dimension,),
        start_index_map=(dimension,),
        index_vector_dim=0,
    )
    parts = b.concatenate(*sizes, dimension=0)
    kept = [size for d, size in enumerate(value.shape.sizes) if d != dimension]
    return b.dynamic_gather(value, at, parts, dimension_numbers=dims, result=Shape.of(value.shape.dtype, kept))


def _write_row(b: Builder, target: Value, row: Value, at: Value, zero: Value, dimension: int) -> Value:
    sizes = [1 if d == dimension else size for d, size in enumerate(target.shape.sizes)]
    update = b.reshape(row, result=Shape.of(row.shape.dtype, sizes))
    starts = [at if d == dimension else zero for d in range(len(sizes))]
    return b.dynamic_update_slice(target, update, *starts)


def _operands(m: Match) -> list[Value]:
    return m.edit.operands(m.op)


_ONE = "a collective over one process is its operand"

ON_ONE_DEVICE = [
    *(
        Rule(op(name), _operand, "one process holds all of a tensor")
        for name in ("sdy.sharding_constraint", "sdy.reshard", "sdy.propagation_barrier")
    ),
    Rule(op("sdy.sharding_group"), _nothing, "one process holds all of a tensor"),
]

SCANS = [Rule(op("chlo.scan"), _scan_in_parts, "a running reduction is one of parts, another scan a loop over slices")]
SCANS_FOR_ONNX = [Rule(op("chlo.scan"), _scan_for_onnx, "a running sum is CumSum")]
CHECKED_SCANS = [Rule(op("chlo.scan"), _checked_scan, "a loop can carry what its checks found")]

LOWER = [
    Rule(op("batch_norm_inference"), _batch_norm_inference, "decompose the batch norm"),
    Rule(op("batch_norm_training"), _batch_norm_training, "decompose the batch norm and its moments"),
    Rule(op("batch_norm_grad"), _batch_norm_grad, "decompose the gradient of the batch norm"),
    Rule(op("einsum"), _einsum, "an einsum of batch, contracted and free labels is a dot_general"),
    Rule(op("chlo.ragged_dot"), _ragged_dot, "a ragged batch dimension is an ordinary batch dimension"),
    *(
        Rule(op(name), _lower_collective_of_one, _ONE)
        for name in (
            "all_gather",
            "all_reduce",
            "all_to_all",
            "reduce_scatter",
            "collective_reduce",
            "collective_broadcast",
            "cross-replica-sum",
        )
    ),
    Rule(op("collective_permute"), _permute, "one process sends to itself or not at all"),
    Rule(op("partition_id"), _first, "one process is the first"),
    Rule(op("replica_id"), _first, "one process is the first"),
    *ON_ONE_DEVICE,
    Rule(op("get_tuple_element"), _element, "the parts of a tuple are known"),
    Rule(op("async_done"), _lower_async_done, "one stream computes one thing after the other"),
    Rule(op("chlo.constant_like"), _constant_like, "only the shape of the operand shows"),
    Rule(op("chlo.scan"), _scan, "a scan is a loop over slices"),
]
