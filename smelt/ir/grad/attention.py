"""The cotangents of attention without its scores in memory: blocks of queries are recomputed in order.

A `dot_general` that multiplies a softmax of another `dot_general` by values is attention, in any spelling. Op by op its
cotangents would read the weights [queries, keys] of all queries. Here a scan over blocks of queries computes scores and
weights of a block again from queries, keys and masks, and adds up what the block gives to keys and values. The order of
the sums depends on the sizes alone. Second derivatives follow: the scan has a rule of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from smelt.dim import evaluate, product
from smelt.ir.attributes import Constant, DotDims
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Value
from smelt.ir.grad.index import slice_like
from smelt.ir.grad.rule import Cotangents, Rule, cast, zeros
from smelt.ir.grad.softmax import find_softmax
from smelt.ir.grad.sweep import Reverse
from smelt.ir.ops import OPS
from smelt.shape import Shape

BLOCK = 64  # queries of a block
SMALL = 1 << 22  # scores: fewer stay in memory, which is faster where XLA runs them
_SHAPED = frozenset(f"stablehlo.{name}" for name in ("broadcast_in_dim", "transpose", "reshape", "reduce", "iota"))


def attention_rule(usual: Rule, op: Op) -> Rule:
    """The rule of a `dot_general`: that of attention where it is one with many scores, else the usual."""
    rows = next((found for side in (0, 1) if (found := _find_rows(op, side)) is not None), None)
    if rows is None:
        return usual

    def vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
        (g,) = cotangents
        assert g is not None
        plan = _Plan(op, *rows, sweep.wanted)
        if plan.visit_weights():
            _scan_blocks(sweep, plan, g)
        else:
            sweep.apply(usual, op, cotangents)

    return Rule(usual.jvp, vjp)


def _find_rows(op: Op, side: int) -> tuple[int, int, int] | None:
    """(operand of weights, their axis of queries, that of the result), where the operand is a softmax over the keys."""
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    weights = op.operands[side]
    batch, summed = (
        (dims.lhs_batching_dimensions, dims.lhs_contracting_dimensions)
        if side == 0
        else (dims.rhs_batching_dimensions, dims.rhs_contracting_dimensions)
    )
    value, axes = weights, tuple(summed)
    while value.op is not None and value.op.name in ("stablehlo.convert", "stablehlo.transpose"):
        order = value.op.attrs.get("permutation")
        axes = axes if order is None else tuple(order[axis] for axis in axes)
        value = value.op.operands[0]
    found = find_softmax(value.op) if value.op is not None and value.op.name == "stablehlo.divide" else None
    if found is None or found[1] != tuple(sorted(axes)):
        return None
    free = [axis for axis in range(weights.shape.rank) if axis not in (*batch, *summed)]
    long = [axis for axis in free if isinstance(size := weights.shape.sizes[axis], int) and size > BLOCK]
    if not long or evaluate(weights.shape.count, dict.fromkeys(weights.shape.symbols, 1)) < SMALL:
        return None
    rows = max(long, key=lambda axis: weights.shape.sizes[axis])
    first = len(batch) if side == 0 else op.results[0].shape.rank - len(free)
    return side, rows, first + free.index(rows)


@dataclass(slots=True)
class _Plan:
    """What a block is computed from: for every value between leaves and weights its axis of queries, None for none."""

    op: Op
    side: int
    rows: int
    result_rows: int
    wanted: frozenset[Value]  # what is differentiated by: leaves, wherever they are
    axes: dict[Value, int | None] = field(default_factory=dict)
    leaves: dict[Value, int | None] = field(default_factory=dict)  # what exists already: queries, keys, masks, numbers
    has_scores: bool = False

    @property
    def weights(self) -> Value:
        return self.op.operands[self.side]

    @property
    def queries(self) -> int:
        size = self.weights.shape.sizes[self.rows]
        assert isinstance(size, int)
        return size

    def visit_weights(self) -> bool:
        """Whether a block of weights can be computed from leaves that are no scores themselves."""
        values = self.op.operands[1 - self.side]
        return self._visit(self.weights, self.rows) and self.has_scores and self.leaves.get(values) is None

    def _visit(self, value: Value, axis: int | None) -> bool:
        for known in (self.axes, self.leaves):
            if value in known:
                return known[value] == axis
        operands = None if value.op is None or value in self.wanted else _operand_axes(value.op, axis)
        if operands is None:
            self.leaves[value] = axis
            return True
        assert value.op is not None
        self.axes[value] = axis
        if value.op.name == "stablehlo.dot_general":
            if self.has_scores:
                return False
            self.has_scores = True
            self.leaves |= dict(zip(value.op.operands, operands, strict=True))
            return value.op.operands[0] is not value.op.operands[1]
        return all(self._visit(each, place) for each, place in zip(value.op.operands, operands, strict=True))


def _operand_axes(op: Op, axis: int | None) -> list[int | None] | None:
    """The axis of queries of each operand; None where the op's result is taken as it is."""
    if len(op.results) != 1 or not (OPS[op.name].elementwise or op.name in _SHAPED or _is_dot(op) or _is_number(op)):
        return None
    if axis is None:  # the same for all blocks
        return [None for _ in op.operands] if _is_dot(op) else None
    shape = op.results[0].shape
    match op.name.removeprefix("stablehlo."):
        case "broadcast_in_dim":
            dims, source = op.attrs["broadcast_dimensions"], op.operands[0].shape.sizes
            place = dims.index(axis) if axis in dims else None
            return [None if place is None or source[place] == 1 else place]
        case "transpose":
            return [op.attrs["permutation"][axis]]
        case "reshape":
            place = _same_place(op.operands[0].shape, shape, axis)
            return None if place is None else [place]
        case "reduce":
            kept = [d for d in range(op.operands[0].shape.rank) if d not in op.attrs["dimensions"]]
            return [kept[axis], None]
        case "dot_general":
            return _dot_axes(op, axis)
        case "iota" | "constant":
            return []
    return [axis if each.shape.rank == shape.rank else None for each in op.operands]


def _is_dot(op: Op) -> bool:
    return op.name == "stablehlo.dot_general"


def _is_number(op: Op) -> bool:
    """Whether an op is a constant of one number."""
    value = op.attrs.get("value")
    return op.name == "stablehlo.constant" and isinstance(value, Constant) and value.array.size == 1


def _same_place(source: Shape, shape: Shape, axis: int) -> int | None:
    """The axis that a reshape leaves alone."""
    before = product(shape.sizes[:axis])
    for place, size in enumerate(source.sizes):
        if size == shape.sizes[axis] and product(source.sizes[:place]) == before:
            return place
    return None


def _dot_axes(op: Op, axis: int) -> list[int | None]:
    dims: DotDims = op.attrs["dot_dimension_numbers"]
    batch = len(dims.lhs_batching_dimensions)
    if axis < batch:
        return [dims.lhs_batching_dimensions[axis], dims.rhs_batching_dimensions[axis]]
    lhs, rhs = op.operands
    left = [
        d for d in range(lhs.shape.rank) if d not in (*dims.lhs_batching_dimensions, *dims.lhs_contracting_dimensions)
    ]
    right = [
        d for d in range(rhs.shape.rank) if d not in (*dims.rhs_batching_dimensions, *dims.rhs_contracting_dimensions)
    ]
    place = axis - batch
    return [left[place], None] if place < len(left) else [None, right[place - len(left)]]


# ---- the backward pass ----


def _scan_blocks(sweep: Reverse, plan: _Plan, g: Value) -> None:
    """Add to the cotangents of leaves and values: whole blocks in a scan, then the queries that are left."""
    b, values = sweep.b, plan.op.operands[1 - plan.side]
    given = list(dict.fromkeys((*plan.leaves, values, g)))
    wanted = [value for value in given if value is not g and sweep.wants(value)]
    totals = [zeros(b, value.type) for value in wanted]
    count, left = divmod(plan.queries, BLOCK)
    r = RegionBuilder(b, [Shape("i32"), *(value.type for value in (*given, *wanted))])
    fixed, sums = r.args[1 : 1 + len(given)], r.args[1 + len(given) :]
    block = _Block(r, plan, r.multiply(r.args[0], r.constant(BLOCK, "i32")), BLOCK)
    region = r.result(*fixed, *block.add(sweep, dict(zip(given, fixed, strict=True)), g, wanted, sums))
    rows = b.iota(iota_dimension=0, result=Shape("i32", count))
    totals = list(b.op("chlo.scan", rows, *given, *totals, regions=[region], dimension=0).results[len(given) :])
    if left:
        block = _Block(b, plan, b.constant(count * BLOCK, "i32"), left)
        totals = block.add(sweep, dict(zip(given, given, strict=True)), g, wanted, totals)
    for value, total in zip(wanted, totals, strict=True):
        sweep.add(value, total)


@dataclass(slots=True)
class _Block:
    """Queries from `start` on: their weights and cotangents."""

    b: Builder
    plan: _Plan
    start: Value
    size: int
    made: dict[Value, Value] = field(default_factory=dict)

    def add(
        self, sweep: Reverse, given: Mapping[Value, Value], g: Value, wanted: Sequence[Value], totals: Sequence[Value]
    ) -> list[Value]:
        """The sums with what this block adds. `given` are leaves, values and g, as they are known here."""
        b, plan = self.b, self.plan
        axes = {**plan.leaves, g: plan.result_rows}
        for value, here in given.items():
            axis = axes.get(value)
            self.made[value] = here if axis is None else self._slice(here, axis)
        first = len(b.ops)
        weights = self._compute(plan.weights)
        operands = [weights if i == plan.side else self.made[each] for i, each in enumerate(plan.op.operands)]
        result = self._repeat(plan.op, operands, plan.result_rows)
        ops = list(b.ops[first:])
        inner = Reverse(b, sweep.find, [self.made[value] for value in wanted], ops)
        inner.add(result, self.made[g])
        inner.run(ops)
        return [
            self._accumulate(total, inner.cotangent(self.made[value]), axes.get(value))
            for value, total in zip(wanted, totals, strict=True)
        ]

    def _accumulate(self, total: Value, cotangent: Value, axis: int | None) -> Value:
        if axis is None:
            return self.b.add(total, cotangent)
        return self.b.dynamic_update_slice(total, cotangent, *self._starts(total, axis))

    def _slice(self, value: Value, axis: int) -> Value:
        return slice_like(self.b, value, self._starts(value, axis), self._shape(value.shape, axis))

    def _starts(self, value: Value, axis: int) -> list[Value]:
        none = self.b.constant(0, "i32")
        return [self.start if d == axis else none for d in range(value.shape.rank)]

    def _shape(self, shape: Shape, axis: int) -> Shape:
        return Shape.of(shape.dtype, [self.size if d == axis else size for d, size in enumerate(shape.sizes)])

    def _compute(self, value: Value) -> Value:
        if value in self.made:
            return self.made[value]
        op, axis = value.op, self.plan.axes[value]
        assert op is not None
        if op.name == "stablehlo.iota":
            self.made[value] = self._count(op, axis)
        elif op.name == "stablehlo.constant":
            assert axis is not None
            self.made[value] = self.b.full(op.attrs["value"].array.item(), self._shape(value.shape, axis))
        else:
            self.made[value] = self._repeat(op, [self._compute(each) for each in op.operands], axis)
        return self.made[value]

    def _count(self, op: Op, axis: int | None) -> Value:
        """An iota, whose numbers start at `start` along the axis of queries."""
        assert axis is not None
        shape, along = self._shape(op.results[0].shape, axis), op.attrs["iota_dimension"]
        numbers = self.b.iota(iota_dimension=along, result=shape)
        if along != axis:
            return numbers
        start = cast(self.b, self.start, shape)
        return self.b.add(numbers, self.b.broadcast_in_dim(start, broadcast_dimensions=(), result=shape))

    def _repeat(self, op: Op, operands: Sequence[Value], axis: int | None) -> Value:
        shape = op.results[0].shape
        regions = [clone_region(region, {}) for region in op.regions]
        result = shape if axis is None else self._shape(shape, axis)
        return self.b.op(op.name, *operands, result=[result], regions=regions, **op.attrs).results[0]
