"""Blocks of `ir.blocks` as StableHLO: the decompositions of the composites `smelt.unblock` and `smelt.block_dot`.

`unblock` is ui8[..., n, bytes] → f32[..., n * length], bit for bit what `decode` gives. `block_dot` multiplies rows by
such a matrix with activations rounded to 8 bits; its decomposition is what the numbers of precision "q8" mean:

- A run of 32 activations has the scale `d = max |x| / 127` and the integers `q = round(x / d)`, half to even; where d
  is no normal number (below 2^-126) they are 0.
- The elements that share a scale of the weights (32 or 16, a group) are summed as integers, without rounding.
- Groups are added up in the order of k, each step rounded to f32: `sum += (scale * d) * integers`, or with a minimum
  `sum += (scale * d) * integers ± minimum * (d * (sum of q))`.

So a result depends on its row and its column alone. `tensor.composite` and `passes.lower_blocks` call this file.
"""

from __future__ import annotations

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, f16, f32, i8, i64, ui8, ui32
from smelt.ir.attributes import DotDims, GatherDims
from smelt.ir.blocks import RUN, Bits, Block, elements, levels, minimums, scales
from smelt.ir.build import Builder, FuncBuilder, RegionBuilder
from smelt.ir.core import Func, Value
from smelt.shape import Shape

MOST = 127.0  # largest rounded activation
LEAST = 2.0**-126  # least scale of activations

Sizes = tuple[Size, ...]


class BuildOps:
    """`ir.blocks.Ops` as ops; axes before the last are kept as they are."""

    def __init__(self, builder: Builder) -> None:
        self.b = builder

    def cut(self, x: Value, at: int, count: int) -> Value:
        sizes = x.shape.numbers()
        starts = (*(0 for _ in sizes[:-1]), at)
        limits = (*sizes[:-1], at + count)
        return self.b.slice(x, start_indices=starts, limit_indices=limits, strides=(1,) * len(sizes))

    def unpack(self, x: Value, bits: Bits) -> Value:
        lead = x.shape.sizes[:-1]
        rank = len(lead)
        runs = self.reshape(x, *lead, bits.groups, bits.width)
        sizes = (*lead, bits.groups, len(bits.shifts), bits.width)
        whole = self.spread(runs, (*range(rank + 1), rank + 2), sizes)
        shifts = self.spread(self.b.constant(np.array(bits.shifts, np.uint8)), (rank + 1,), sizes)
        found = self.b.and_(self.b.shift_right_logical(whole, shifts), self.full(bits.mask, whole))
        if bits.up:
            found = self.b.shift_left(found, self.full(bits.up, found))
        return self.reshape(found, *lead, bits.count)

    def combine(self, x: Value, y: Value) -> Value:
        return self.b.or_(x, y)

    def join(self, parts: list[Value]) -> Value:
        return self.b.concatenate(*parts, dimension=parts[0].shape.rank - 1)

    def to_f32(self, x: Value, signed: bool) -> Value:
        if signed:
            x = self.b.bitcast_convert(x, result=Shape.of(i8, x.shape.sizes))
        return self._convert(x)

    def half(self, x: Value) -> Value:
        lead = x.shape.sizes[:-1]
        return self._convert(self.reshape(self.b.bitcast_convert(x, result=Shape.of(f16, lead)), *lead, 1))

    def exponent(self, x: Value) -> Value:
        wide = self.b.convert(x, result=Shape.of(ui32, x.shape.sizes))
        normal = self.b.subtract(self.b.maximum(wide, self.full(1, wide)), self.full(1, wide))
        normal = self.b.shift_left(normal, self.full(23, wide))
        small = self.b.shift_left(self.full(1 << 21, wide), self.b.minimum(wide, self.full(2, wide)))
        is_small = self.b.compare(wide, self.full(2, wide), comparison_direction="LT")
        bits = self.b.select(is_small, small, normal)
        return self.b.bitcast_convert(bits, result=Shape.of(f32, x.shape.sizes))

    def lookup(self, x: Value, table: Array) -> Value:
        rank = x.shape.rank
        dims = GatherDims(
            offset_dims=(),
            collapsed_slice_dims=(0,),
            operand_batching_dims=(),
            start_indices_batching_dims=(),
            start_index_map=(0,),
            index_vector_dim=rank,
        )
        return self.b.gather(self.b.constant(table), x, dimension_numbers=dims, slice_sizes=(1,))

    def less(self, x: Value, number: int) -> Value:
        return self.b.subtract(x, self.full(number, x))

    def times(self, per_group: Value, x: Value) -> Value:
        return self._group("multiply", x, per_group)

    def plus(self, x: Value, per_group: Value, subtract: bool) -> Value:
        return self._group("subtract" if subtract else "add", x, per_group)

    def _group(self, op: str, x: Value, per_group: Value) -> Value:
        *lead, size = x.shape.sizes
        groups = per_group.shape.sizes[-1]
        assert isinstance(size, int)
        assert isinstance(groups, int)
        parts = (*lead, groups, size // groups)
        spread = self.spread(per_group, tuple(range(len(lead) + 1)), parts)
        return self.reshape(getattr(self.b, op)(self.reshape(x, *parts), spread), *lead, size)

    def _convert(self, x: Value) -> Value:
        return self.b.convert(x, result=Shape.of(f32, x.shape.sizes))

    def reshape(self, x: Value, *sizes: Size) -> Value:
        return x if x.shape.sizes == sizes else self.b.reshape(x, result=Shape.of(x.shape.dtype, sizes))

    def spread(self, x: Value, places: tuple[int, ...], sizes: Sizes) -> Value:
        result = Shape.of(x.shape.dtype, sizes)
        return x if x.shape.sizes == sizes else self.b.broadcast_in_dim(x, broadcast_dimensions=places, result=result)

    def full(self, number: float, like: Value) -> Value:
        return self.b.full(number, like.shape)


def decomposition(row: Block, lead: tuple[int, ...], name: str = "") -> Func:
    """The function `ui8[*lead, bytes] → f32[*lead[:-1], lead[-1] * length]`, whose last leading axis counts blocks."""
    f = FuncBuilder(name or f"smelt.unblock.{row.name}", [Shape.of(ui8, (*lead, row.bytes))])
    result = f.reshape(elements(row, f.args[0], BuildOps(f)), result=Shape.of(f32, (*lead[:-1], lead[-1] * row.length)))
    return f.func(result, visibility="private")


# ---- products ----


def dot_decomposition(row: Block, x: Shape, w: Shape, name: str = "") -> Func:
    """The function (f32[group, row, k], ui8[group or 1, column, n, bytes]) → f32[group, row, column]."""
    f = FuncBuilder(name or f"smelt.block_dot.{row.name}", [x, w])
    return f.func(_multiply(f, row, *f.args), visibility="private")


def grouped_dot_decomposition(row: Block, x: Shape, w: Shape, sizes: Shape) -> Func:
    """The function (f32[row, k], ui8[group, column, n, bytes], i32[group]) → f32[row, column]. Rows are sorted by
    group, and `sizes` counts those of each: every group multiplies all rows, and a row takes what its own group made.
    """
    f = FuncBuilder(f"smelt.block_ragged_dot.{row.name}", [x, w, sizes])
    ops = BuildOps(f)
    (rows, depth), groups = x.sizes, w.sizes[0]
    every = ops.spread(f.args[0], (1, 2), (groups, rows, depth))
    made = _multiply(f, row, every, f.args[1])
    ends = ops.spread(_add_up(f, f.args[2]), (0,), (groups, rows))
    at = f.op("stablehlo.iota", iota_dimension=1, result=ends.shape).result
    starts = f.subtract(ends, ops.spread(f.args[2], (0,), (groups, rows)))
    is_here = f.and_(f.compare(at, starts, comparison_direction="GE"), f.compare(at, ends, comparison_direction="LT"))
    kept = f.select(ops.spread(is_here, (0, 1), made.shape.sizes), made, ops.full(0.0, made))
    with f.region(Shape.of(f32, ()), Shape.of(f32, ())) as r:
        r.result(r.add(*r.args))
    total = f.op("stablehlo.reduce", kept, f.constant(0.0, f32), dimensions=(0,), regions=(r.body,)).result
    return f.func(total, visibility="private")


def _add_up(b: Builder, x: Value) -> Value:
    """The sums of all elements up to each one."""
    ops, element, (count,) = BuildOps(b), x.shape.element, x.shape.sizes
    square = Shape.of(element, (count, count))
    places = [b.op("stablehlo.iota", iota_dimension=d, result=square).result for d in range(2)]
    is_before = b.compare(*places, comparison_direction="LE")
    zero = b.constant(0, element)
    kept = b.select(is_before, ops.spread(x, (0,), square.sizes), b.full(0, square))
    with b.region(Shape.of(element, ()), Shape.of(element, ())) as r:
        r.result(r.add(*r.args))
    return b.op("stablehlo.reduce", kept, zero, dimensions=(0,), regions=(r.body,)).result


def _multiply(f: Builder, row: Block, x: Value, w: Value) -> Value:
    ops = BuildOps(f)
    (groups, rows, depth), (held, columns, count, _) = x.shape.sizes, w.shape.sizes
    assert isinstance(depth, int)
    assert count * row.length == depth
    parts = depth // row.group
    scale_of, integers = round_rows(f, x)
    integers = ops.reshape(integers, groups, rows, parts, row.group)
    factors = ops.reshape(levels(row, w, ops), held, columns, parts, row.group)
    steps = [ops.reshape(scales(row, w, ops), held, columns, parts)]
    minimum = minimums(row, w, ops)
    if minimum is not None:
        steps.append(ops.reshape(minimum, held, columns, parts))
    total = Shape.of(f32, (groups, rows, columns))
    state = [f.constant(np.int64(0)), f.full(0.0, total)]
    with f.region(*(value.type for value in state)) as condition:
        at = condition.args[0]
        condition.result(condition.compare(at, condition.constant(np.int64(parts)), comparison_direction="LT"))
    with f.region(*(value.type for value in state)) as body:
        term = _group_term(body, row, (integers, scale_of), (factors, *steps), body.args[0])
        after = body.add(body.args[0], body.constant(np.int64(1)))
        body.result(after, body.add(body.args[1], term))
    return f.op("stablehlo.while", *state, regions=(condition.body, body.body)).results[1]


def round_rows(b: Builder, x: Value) -> tuple[Value, Value]:
    """f32[group, row, k] → scales f32[group, row, k / 32], and integers f32[group, row, k / 32, 32]."""
    ops = BuildOps(b)
    groups, rows, depth = x.shape.sizes
    assert isinstance(depth, int)
    runs = ops.reshape(x, groups, rows, depth // RUN, RUN)
    with b.region(Shape.of(f32, ()), Shape.of(f32, ())) as r:
        r.result(r.maximum(*r.args))
    peak = b.op("stablehlo.reduce", b.abs(runs), b.constant(0.0, f32), dimensions=(3,), regions=(r.body,)).result
    scale = b.divide(peak, ops.full(MOST, peak))
    small = b.compare(scale, ops.full(LEAST, scale), comparison_direction="LT")
    inverse = b.select(small, ops.full(0.0, scale), b.divide(ops.full(1.0, scale), scale))
    return scale, b.round_nearest_even(b.multiply(runs, ops.spread(inverse, (0, 1, 2), runs.shape.sizes)))


def _group_term(b: RegionBuilder, row: Block, left: tuple[Value, Value], right: tuple[Value, ...], at: Value) -> Value:
    """What group number `at` adds to the sums."""
    ops = BuildOps(b)
    run = b.divide(at, b.constant(np.int64(RUN // row.group)))
    integers, scale_of = _pick(b, left[0], at), _pick(b, left[1], run)
    factors, scale, *minimum = (_pick(b, each, at) for each in right)
    shared = factors.shape.sizes[0] == 1 and integers.shape.sizes[0] != 1
    if shared:
        factors, dims = ops.reshape(factors, *factors.shape.sizes[1:]), DotDims((), (), (2,), (1,))
    else:
        dims = DotDims((0,), (0,), (2,), (2,))
    total = b.dot_general(
        integers,
        factors,
        dot_dimension_numbers=dims,
        result=Shape.of(f32, (*integers.shape.sizes[:2], right[1].shape.sizes[1])),
    )
    sizes = total.shape.sizes

    def per_row(x: Value) -> Value:
        return ops.spread(x, (0, 1), sizes)

    def per_column(x: Value) -> Value:
        if shared:
            return ops.spread(ops.reshape(x, x.shape.sizes[1]), (2,), sizes)
        return ops.spread(x, (0, 2), sizes)

    term = b.multiply(b.multiply(per_column(scale), per_row(scale_of)), total)
    if not minimum:
        return term
    with b.region(Shape.of(f32, ()), Shape.of(f32, ())) as r:
        r.result(r.add(*r.args))
    summed = b.op("stablehlo.reduce", integers, b.constant(0.0, f32), dimensions=(2,), regions=(r.body,)).result
    other = b.multiply(per_column(minimum[0]), per_row(b.multiply(scale_of, summed)))
    return b.subtract(term, other) if row.minimums is not None else b.add(term, other)


def _pick(b: Builder, x: Value, at: Value) -> Value:
    """x[:, :, at]; the first two axes may have any size, so that no attribute can hold it."""
    lead, rest = x.shape.sizes[:2], x.shape.sizes[3:]
    assert all(isinstance(size, int) for size in rest)
    dims = GatherDims(
        offset_dims=tuple(range(2, 2 + len(rest))),
        collapsed_slice_dims=(2,),
        operand_batching_dims=(0, 1),
        start_indices_batching_dims=(0, 1),
        start_index_map=(2,),
        index_vector_dim=2,
    )
    places = b.broadcast_in_dim(at, broadcast_dimensions=(), result=Shape.of(i64, (*lead, 1)))
    return b.gather(x, places, dimension_numbers=dims, slice_sizes=(1, 1, 1, *rest))
