"""Derivatives of branches, loops and scans.

A branch or a loop body is differentiated as a region of its own. Backward passes compute the forward values of a body
again from what went in: a scan saves its carries, a branch saves nothing. A `while` whose number of iterations is known
as a size is a scan; forward mode takes any `while`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.dim import Size, ceildiv, maximum
from smelt.dtype import i1
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.clone import clone_ops, clone_region
from smelt.ir.core import Op, Region, Value, find_captures
from smelt.ir.grad.rule import Cotangents, Rule, is_differentiable, refuse, zeros
from smelt.ir.grad.sweep import Find, Forward, Reverse, active_values, needed_ops
from smelt.ir.ops.reduce import scan_counts
from smelt.ir.sizes import trace
from smelt.shape import Shape

_SAME = frozenset(f"stablehlo.{name}" for name in ("convert", "reshape", "broadcast_in_dim"))  # of a scalar

# ---- branches ----


def _branch_jvp(sweep: Forward, op: Op) -> None:
    """The same branch taken on values and tangents."""
    live = [i for i, value in enumerate(op.results) if is_differentiable(value.type) and _is_live(sweep, op, i)]
    regions = []
    for region in op.regions:
        r = RegionBuilder(sweep.b, ())
        values: dict[Value, Value] = {}
        r.ops += clone_ops(region.ops, values)
        results = [values.get(value, value) for value in region.results]
        inner = Forward(r, sweep.find, dict(sweep.tangents))
        inner.run(list(r.ops))
        regions.append(r.result(*(_instantiate(inner, results[i]) for i in live)))
    made = sweep.b.op(op.name, *op.operands, regions=regions, result=[op.results[i].type for i in live]).results
    for i, tangent in zip(live, made, strict=True):
        sweep.put(op.results[i], tangent)


def _is_live(sweep: Forward, op: Op, index: int) -> bool:
    return any(region.results[index] in active_values(sweep.find, sweep.tangents, region.ops) for region in op.regions)


def _instantiate(sweep: Forward, value: Value) -> Value:
    tangent = sweep.tangent(value)
    return zeros(sweep.b, value.type) if tangent is None else tangent


def _branch_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """The branch that was taken, computed again, and its cotangents for what it captured."""
    wanted = [value for value in find_captures(*op.regions) if sweep.wants(value)]
    regions = []
    for region in op.regions:
        r = RegionBuilder(sweep.b, ())
        values: dict[Value, Value] = {}
        ops = clone_ops(region.ops, values)
        r.ops += ops
        inner = Reverse(r, sweep.find, wanted, ops)
        for value, g in zip(region.results, cotangents, strict=True):
            inner.add(values.get(value, value), g)
        inner.run(ops)
        regions.append(r.result(*(inner.cotangent(value) for value in wanted)))
    made = sweep.b.op(op.name, *op.operands, regions=regions, result=[value.type for value in wanted]).results
    for value, g in zip(wanted, made, strict=True):
        sweep.add(value, g)


# ---- while, forward ----


def _while_jvp(sweep: Forward, op: Op) -> None:
    """The same loop on states and the tangents of those that have some."""
    condition, body = op.regions
    live = {i for i, value in enumerate(op.operands) if sweep.tangent(value) is not None}
    while True:
        seeds = [*sweep.tangents, *(body.args[i] for i in live)]
        active = active_values(sweep.find, seeds, body.ops)
        found = live | {i for i, value in enumerate(body.results) if value in active}
        if found == live:
            break
        live = found
    order = sorted(live)
    count = len(op.operands)
    operands = [*op.operands, *(_instantiate(sweep, op.operands[i]) for i in order)]
    types = [value.type for value in operands]
    test = RegionBuilder(sweep.b, types)
    values = dict(zip(condition.args, test.args[:count], strict=True))
    test.ops += clone_ops(condition.ops, values)
    test.result(*(values.get(value, value) for value in condition.results))
    r = RegionBuilder(sweep.b, types)
    values = dict(zip(body.args, r.args[:count], strict=True))
    r.ops += clone_ops(body.ops, values)
    results = [values.get(value, value) for value in body.results]
    tangents = {**sweep.tangents, **{r.args[i]: r.args[count + j] for j, i in enumerate(order)}}
    inner = Forward(r, sweep.find, tangents)
    inner.run(list(r.ops))
    r.result(*results, *(_instantiate(inner, results[i]) for i in order))
    made = sweep.b.op("stablehlo.while", *operands, regions=[test.body, r.body], result=types).results
    for j, i in enumerate(order):
        sweep.put(op.results[i], made[count + j])


# ---- while, as a scan ----


def while_as_scan(b: Builder, op: Op) -> Sequence[Value]:
    """A loop whose trip count is a size, or has a size as its maximum, is a scan; what its regions capture becomes
    further carries. Under a maximum, a step computes the condition, and leaves the state alone where it fails."""
    exact = trip_count(op)
    trips = exact if exact is not None else most_trips(op)
    if trips is None:
        refuse(
            op,
            "the number of its iterations is not known as a size, so that reverse mode cannot keep its states",
            "count from a constant to a size or a constant in constant steps, state a maximum (smelt.while_loop(…,"
            " most=100), or a counter in the condition), or use smelt.scan; forward mode works",
        )
    assert trips is not None
    condition, body = op.regions
    captured = find_captures(body) if exact is not None else find_captures(*op.regions)
    rows = b.iota(iota_dimension=0, result=Shape("i32", trips))
    carried = [*op.operands, *captured]
    r = RegionBuilder(b, [Shape("i32"), *(value.type for value in carried)])
    states = r.args[1 : 1 + len(op.operands)]
    outside = dict(zip(captured, r.args[1 + len(op.operands) :], strict=True))
    if exact is not None:
        after = _insert(r, body, states, outside)
    else:
        (going,) = _insert(r, condition, states, outside)
        then, same = RegionBuilder(r, ()), RegionBuilder(r, ())
        regions = [then.result(*_insert(then, body, states, outside)), same.result(*states)]
        after = list(r.op("stablehlo.if", going, regions=regions, result=[value.type for value in states]).results)
    r.result(*after, *outside.values())
    return b.op("chlo.scan", rows, *carried, regions=[r.body], dimension=0).results[: len(op.operands)]


def _insert(r: Builder, region: Region, args: Sequence[Value], outside: dict[Value, Value]) -> list[Value]:
    """The results of a region's ops on other arguments."""
    values = {**dict(zip(region.args, args, strict=True)), **outside}
    r.ops += clone_ops(region.ops, values)
    return [values.get(value, value) for value in region.results]


def trip_count(op: Op) -> Size | None:
    """How often a `while` runs, where that is a size: a counter from a size in constant steps up or down to a size."""
    return _count_trips(op, op.regions[0].results[0].op)


def most_trips(op: Op) -> Size | None:
    """How often a `while` runs at most, where its condition is a conjunction with such a counter."""
    tests = [op.regions[0].results[0]]
    for value in tests:
        test = _skip_conversions(value).op
        if test is not None and test.name == "stablehlo.and":
            tests += test.operands
        elif (found := _count_trips(op, test)) is not None:
            return found
    return None


def _skip_conversions(value: Value) -> Value:
    """What a boolean is made of: conversions, and `x != false`, are x."""
    while (op := value.op) is not None:
        differs = op.name == "stablehlo.compare" and op.attrs["comparison_direction"] == "NE"
        if op.name in _SAME or (differs and _is_false(op.operands[1])):
            value = op.operands[0]
        else:
            break
    return value


def _is_false(value: Value) -> bool:
    while value.op is not None and value.op.name in _SAME:
        value = value.op.operands[0]
    if value.op is None or value.op.name != "stablehlo.constant" or value.shape.element != i1:
        return False
    return not value.op.attrs["value"].array.any()


def _count_trips(op: Op, test: Op | None) -> Size | None:
    condition, body = op.regions
    if test is None or test.name != "stablehlo.compare":
        return None
    direction = test.attrs["comparison_direction"]
    left, right = test.operands
    if left not in condition.args:
        left, right = right, left
        direction = {"LT": "GT", "GT": "LT", "LE": "GE", "GE": "LE"}.get(direction, direction)
    if left not in condition.args:
        return None
    counter = condition.args.index(left)
    start, limit = _as_size(op.operands[counter]), _as_size(_outside(op, right))
    step = _step(body, counter)
    if start is None or limit is None or not step or not isinstance(step, int):
        return None
    if direction in ("LE", "GE"):
        limit = limit + (1 if direction == "LE" else -1)
    distance = limit - start if step > 0 else start - limit
    if direction == "NE":
        return distance if abs(step) == 1 else None
    if direction not in (("LT", "LE") if step > 0 else ("GT", "GE")):
        return None
    return maximum(ceildiv(distance, abs(step)), 0)


def _as_size(value: Value) -> Size | None:
    """A scalar as a size: from constants and dimensions, or from the data that a leaf of the front end has."""
    found = trace(value)
    if found is not None and len(found) == 1:
        return found[0]
    while value.op is not None and value.op.name == "stablehlo.convert":
        value = value.op.operands[0]
    data = getattr(value, "data", None)
    return int(data) if data is not None and data.size == 1 and data.dtype.kind in "iu" else None


def _outside(op: Op, value: Value) -> Value:
    """What a value of the condition is before the loop: a state that the body leaves alone is what went in."""
    condition, body = op.regions
    if value in condition.args:
        place = condition.args.index(value)
        if body.results[place] is body.args[place]:
            return op.operands[place]
    return value


def _step(body: Region, counter: int) -> Size | None:
    made = body.results[counter].op
    if made is None or made.name not in ("stablehlo.add", "stablehlo.subtract"):
        return None
    left, right = made.operands
    if left is not body.args[counter] and made.name == "stablehlo.add":
        left, right = right, left
    step = _as_size(right)
    if left is not body.args[counter] or step is None:
        return None
    return step if made.name == "stablehlo.add" else -step


# ---- scan ----


class _Scan:
    """A scan taken apart: `rows` are its inputs, `carries` what goes from step to step, `outputs` one per step."""

    def __init__(self, op: Op) -> None:
        self.op, self.body = op, op.regions[0]
        self.inputs, self.inits = scan_counts(op)
        self.outputs = len(self.body.results) - self.inits
        self.rows, self.carries = op.operands[: self.inputs], op.operands[self.inputs :]
        self.row_args, self.carry_args = self.body.args[: self.inputs], self.body.args[self.inputs :]
        self.output_values = self.body.results[: self.outputs]
        self.next_values = self.body.results[self.outputs :]

    def live_carries(self, find: Find, rows: set[int], carries: set[int]) -> set[int]:
        """The carries that depend on some rows and carries, in any number of steps."""
        while True:
            seeds = [*(self.row_args[i] for i in rows), *(self.carry_args[i] for i in carries)]
            active = active_values(find, seeds, self.body.ops)
            found = carries | {i for i, value in enumerate(self.next_values) if value in active}
            if found == carries:
                return carries
            carries = found

    def copy(self, r: RegionBuilder, args: Sequence[Value]) -> tuple[dict[Value, Value], list[Op]]:
        """The body's ops on other arguments."""
        values = dict(zip(self.body.args, args, strict=True))
        ops = clone_ops(self.body.ops, values)
        r.ops += ops
        return values, ops


def _scan_jvp(sweep: Forward, op: Op) -> None:
    s, b = _Scan(op), sweep.b
    rows = [i for i, value in enumerate(s.rows) if sweep.tangent(value) is not None]
    given = {i for i, value in enumerate(s.carries) if sweep.tangent(value) is not None}
    carries = sorted(s.live_carries(sweep.find, set(rows), given))
    row_tangents = [sweep.tangents[s.rows[i]] for i in rows]
    carry_tangents = [_instantiate(sweep, s.carries[i]) for i in carries]
    types = [
        *(arg.type for arg in s.row_args),
        *(s.row_args[i].type for i in rows),
        *(arg.type for arg in s.carry_args),
        *(s.carry_args[i].type for i in carries),
    ]
    r = RegionBuilder(b, types)
    first = s.inputs + len(rows)
    last = first + s.inits
    values, ops = s.copy(r, [*r.args[: s.inputs], *r.args[first:last]])
    tangents = {r.args[i]: r.args[s.inputs + j] for j, i in enumerate(rows)}
    tangents |= {r.args[first + i]: r.args[last + j] for j, i in enumerate(carries)}
    inner = Forward(r, sweep.find, tangents)
    inner.run(ops)
    outputs = [values.get(value, value) for value in s.output_values]
    after = [values.get(value, value) for value in s.next_values]
    live = [i for i, value in enumerate(outputs) if inner.tangent(value) is not None]
    r.result(
        *outputs,
        *(inner.tangents[outputs[i]] for i in live),
        *after,
        *(_instantiate(inner, after[i]) for i in carries),
    )
    operands = [*s.rows, *row_tangents, *s.carries, *carry_tangents]
    made = b.op("chlo.scan", *operands, regions=[r.body], **_attrs(op)).results
    for j, i in enumerate(live):
        sweep.put(op.results[i], made[s.outputs + j])
    for j, i in enumerate(carries):
        sweep.put(op.results[s.outputs + i], made[s.outputs + len(live) + s.inits + j])


def _attrs(op: Op, reverse: bool | None = None) -> dict[str, Any]:
    backwards = op.attrs["is_reverse"] if reverse is None else reverse
    return {"dimension": op.attrs["dimension"], "is_reverse": backwards}


def _scan_vjp(sweep: Reverse, op: Op, cotangents: Cotangents) -> None:
    """A scan the other way over the rows and the carries that went into each step."""
    s, b = _Scan(op), sweep.b
    rows = [i for i, value in enumerate(s.rows) if sweep.wants(value)]
    given = {i for i, value in enumerate(s.carries) if sweep.wants(value)}
    carries = sorted(s.live_carries(sweep.find, set(rows), given))
    seeded = [i for i in range(s.outputs) if cotangents[i] is not None]
    types = [
        *(arg.type for arg in s.body.args),
        *(s.output_values[i].type for i in seeded),
        *(s.carry_args[i].type for i in carries),
    ]
    r = RegionBuilder(b, types)
    args = _Cursor(r.args)
    row_args, carry_args = args.take(s.inputs), args.take(s.inits)
    seeds, totals = args.take(len(seeded)), args.take(len(carries))
    values, ops = s.copy(r, [*row_args, *carry_args])
    inner = Reverse(r, sweep.find, [*(row_args[i] for i in rows), *(carry_args[i] for i in carries)], ops)
    for i, g in zip(seeded, seeds, strict=True):
        inner.add(values.get(s.output_values[i], s.output_values[i]), g)
    for i, g in zip(carries, totals, strict=True):
        inner.add(values.get(s.next_values[i], s.next_values[i]), g)
    inner.run(ops)
    row_results = [inner.cotangent(row_args[i]) for i in rows]
    carry_results = [inner.cotangent(carry_args[i]) for i in carries]
    kept, used = needed_ops(r.ops, [*row_results, *carry_results])
    # Only what the backward steps read: rows (one at least, for their number), carries that vary, and fixed ones.
    row_places = [i for i, arg in enumerate(row_args) if arg in used] or [0]
    fixed = [i for i, arg in enumerate(carry_args) if arg in used and s.next_values[i] is s.carry_args[i]]
    varying = [i for i, arg in enumerate(carry_args) if arg in used and i not in fixed]
    fixed_args = [carry_args[i] for i in fixed]
    region = _rebuild(
        [*(row_args[i] for i in row_places), *(carry_args[i] for i in varying), *seeds, *fixed_args, *totals],
        kept,
        [*row_results, *fixed_args, *carry_results],
    )
    incoming = [g for g in cotangents[: s.outputs] if g is not None]
    last = [cotangents[s.outputs + i] for i in carries]
    finals = [zeros(b, s.carries[i].type) if g is None else g for i, g in zip(carries, last, strict=True)]
    saved = _save_carries(b, s, varying)
    operands = [*(s.rows[i] for i in row_places), *saved, *incoming, *(s.carries[i] for i in fixed), *finals]
    attrs = _attrs(op, not op.attrs["is_reverse"])
    made = b.op("chlo.scan", *operands, regions=[region], **attrs).results
    for j, i in enumerate(rows):
        sweep.add(s.rows[i], made[j])
    for j, i in enumerate(carries):
        sweep.add(s.carries[i], made[len(rows) + len(fixed) + j])


def _rebuild(args: Sequence[Value], ops: Sequence[Op], results: Sequence[Value]) -> Region:
    """A region with fewer arguments."""
    fresh = tuple(Value(arg.type, None, i, arg.name) for i, arg in enumerate(args))
    values = dict(zip(args, fresh, strict=True))
    copies = clone_ops(ops, values)
    return Region(fresh, tuple(copies), tuple(values.get(value, value) for value in results))


class _Cursor:
    """Values taken from a list in order."""

    def __init__(self, values: Sequence[Value]) -> None:
        self.values, self.at = values, 0

    def take(self, count: int) -> list[Value]:
        self.at += count
        return list(self.values[self.at - count : self.at])


def _save_carries(b: Builder, s: _Scan, varying: Sequence[int]) -> list[Value]:
    """The same scan, with the carries that went into each step as outputs."""
    if not varying:
        return []
    body = clone_region(s.body, {})
    carry_args, results = body.args[s.inputs :], body.results[s.outputs :]
    region = Region(body.args, body.ops, (*(carry_args[i] for i in varying), *results))
    made = b.op("chlo.scan", *s.op.operands, regions=[region], **_attrs(s.op)).results
    return list(made[: len(varying)])


def _scan_first_dimension(b: Builder, op: Op) -> Sequence[Value]:
    """The same scan over the first dimension: carries then always have room for the steps."""
    s, dimension = _Scan(op), op.attrs["dimension"]
    rows = []
    for value in s.rows:
        others = [d for d in range(value.shape.rank) if d != dimension]
        rows.append(b.transpose(value, permutation=(dimension, *others)))
    attrs = {**_attrs(op), "dimension": 0}
    made = list(b.op("chlo.scan", *rows, *s.carries, regions=[clone_region(s.body, {})], **attrs).results)
    for i, value in enumerate(made[: s.outputs]):
        others = list(range(1, value.shape.rank))
        others.insert(dimension, 0)
        made[i] = b.transpose(value, permutation=tuple(others))
    return made


def scan_rule(op: Op) -> Rule:
    """By the dimension."""
    return ALONG_ANOTHER if op.attrs["dimension"] else SCAN


SCAN = Rule(_scan_jvp, _scan_vjp)
ALONG_ANOTHER = Rule(expand=_scan_first_dimension)

RULES: dict[str, Rule | Callable[[Op], Rule]] = {
    "stablehlo.if": Rule(_branch_jvp, _branch_vjp),
    "stablehlo.case": Rule(_branch_jvp, _branch_vjp),
    "stablehlo.while": Rule(_while_jvp, expand=while_as_scan),
    "chlo.scan": scan_rule,
}
