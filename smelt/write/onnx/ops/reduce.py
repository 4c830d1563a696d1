"""Reductions over axes and windows, by any region: operators of ONNX where there are, else loops and slices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from smelt.dim import Size
from smelt.dtype import DType, dtype, i1, i32, i64, integer_range
from smelt.ir.core import Op, Region, Value
from smelt.ir.ops.reduce import scan_counts
from smelt.passes.lower import is_cumulative_sum
from smelt.write.onnx.graph import Graph, Out, Subgraph, count_elements, refuse, shape_of
from smelt.write.onnx.ops.elementwise import where

_OPERATORS = {"add": "ReduceSum", "multiply": "ReduceProd", "maximum": "ReduceMax", "minimum": "ReduceMin"}
_JOIN = {"add": "Add", "multiply": "Mul", "maximum": "Max", "minimum": "Min", "and": "And", "or": "Or"}
_ON_BOOLS = {"add": "or", "multiply": "and", "maximum": "or", "minimum": "and"}
_WINDOW = 1 << 10  # slices that one window may become


def monoid(region: Region, i: int, count: int) -> str | None:
    """The op that alone combines operand i of a reduction: `add`, `maximum` …"""
    result, pair = region.results[i], {region.args[i], region.args[count + i]}
    op = result.op
    if op is None or len(op.operands) != 2 or set(op.operands) != pair:
        return None
    name = op.name.removeprefix("stablehlo.")
    if pair.pop().shape.dtype is i1:
        name = _ON_BOOLS.get(name, name)
        return name if name in ("and", "or") else None
    return name if name in _OPERATORS else None


def _identity(name: str, element: DType) -> float | None:
    low, high = (-math.inf, math.inf) if element.is_float else (0, 1) if element is i1 else integer_range(element)
    return {"add": 0, "multiply": 1, "maximum": low, "minimum": high, "and": 1, "or": 0}.get(name)


def _is_identity(init: Value, name: str) -> bool:
    op = init.op
    if op is None or op.name != "stablehlo.constant":
        return False
    return bool(op.attrs["value"].array.reshape(-1)[0].item() == _identity(name, init.shape.element))


def _reduce(g: Graph, op: Op) -> Sequence[Out]:
    count = len(op.results)
    axes = sorted(op.attrs["dimensions"])
    names = [monoid(op.regions[0], i, count) for i in range(count)]
    if any(name is None for name in names):
        return _reduce_in_turn(g, op, axes)
    outs = []
    for i, name in enumerate(names):
        element, sizes = shape_of(op.results[i])
        x = g.cast(g.get(op.operands[i]), element)
        found = _reduce_by(g, str(name), x, axes, sizes)
        if not _is_identity(op.operands[count + i], str(name)):
            found = g.call(_JOIN[str(name)], found, g.cast(g.get(op.operands[count + i]), element))
        outs.append(found)
    return outs


def _reduce_by(g: Graph, name: str, x: Out, axes: Sequence[int], sizes: Sequence[Size]) -> Out:
    if not axes:
        return x
    if name in ("and", "or"):
        byte = g.cast(x, dtype("ui8"))
        return g.cast(_reduce_by(g, "minimum" if name == "and" else "maximum", byte, axes, sizes), i1)
    if count_elements([x.sizes[axis] for axis in axes]) == 0:
        return g.expand(g.like(_identity(name, x.dtype) or 0, x), sizes)
    if x.dtype.name == "ui64" and name in ("maximum", "minimum"):  # in the order of i64, with the sign turned
        turned = g.cast(g.call("BitwiseXor", x, g.like(1 << 63, x)), i64)
        return g.call("BitwiseXor", g.cast(_reduce_by(g, name, turned, axes, sizes), x.dtype), g.like(1 << 63, x))
    return g.call(_OPERATORS[name], x, g.constant(list(axes), i64), sizes=sizes, typed=1, keepdims=0)


def _reduce_in_turn(g: Graph, op: Op, axes: Sequence[int]) -> Sequence[Out]:
    """Any region: a loop over the elements of the reduced axes."""
    count, region = len(op.results), op.regions[0]
    inputs, inits = ([g.get(value) for value in op.operands[i * count :][:count]] for i in (0, 1))
    inputs = [g.cast(x, shape_of(value)[0]) for x, value in zip(inputs, op.results, strict=True)]
    kept = [i for i in range(inputs[0].rank) if i not in axes]
    total = count_elements([inputs[0].sizes[i] for i in axes])
    lines = []
    for x in inputs:
        moved = g.transpose(x, [*axes, *kept])
        lines.append(g.reshape(moved, [total, *(x.sizes[i] for i in kept)]))
    sizes = shape_of(op.results[0])[1]
    starts = [g.expand(g.cast(x, line.dtype), sizes) for x, line in zip(inits, lines, strict=True)]
    return loop(g, g.reshape(g.size(total), ()), starts, lambda at, held: _combine(g, region, held, lines, at, sizes))


def _combine(
    g: Graph, region: Region, held: Sequence[Out], lines: Sequence[Out], at: Out, sizes: Sequence[Size]
) -> list[Out]:
    rows = [g.call("Gather", line, at, sizes=sizes, typed=1, axis=0) for line in lines]
    return [g.expand(each, sizes) for each in g.apply(region, *held, *rows)]


Step = Callable[[Out, Sequence[Out]], Sequence[Out]]


def loop(g: Graph, count: Out, starts: Sequence[Out], step: Step) -> list[Out]:
    """`count` iterations of `step(iteration, carried)`."""
    with g.subgraph() as scope:
        at, go = g.new(i64, (), "iteration"), g.new(i1, (), "go")
        held = [g.new(x.dtype, x.sizes, "carried") for x in starts]
        after = [g.identity(each) for each in step(at, held)]
        stay = g.identity(go)
        body = Subgraph((at, go, *held), tuple(scope.nodes), (stay, *after))
    outs = [g.new(x.dtype, x.sizes, "loop") for x in starts]
    g.add_node("Loop", [count, None, *starts], outs, body=body)
    return outs


def _map(g: Graph, op: Op) -> Sequence[Out]:
    sizes = shape_of(op.results[0])[1]
    return [g.expand(x, sizes) for x in g.apply(op.regions[0], *map(g.get, op.operands))]


# ---- windows ----


def _reduce_window(g: Graph, op: Op) -> Sequence[Out]:
    count, region = len(op.results), op.regions[0]
    rank = op.operands[0].shape.rank
    window, strides = op.attrs["window_dimensions"], op.attrs.get("window_strides") or (1,) * rank
    dilations = op.attrs.get("window_dilations") or (1,) * rank
    bases = op.attrs.get("base_dilations") or (1,) * rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    names = [monoid(region, i, count) for i in range(count)]
    outs: list[Out] = []
    if all(name is not None for name in names):
        for i, name in enumerate(names):
            element, sizes = shape_of(op.results[i])
            x, init = g.cast(g.get(op.operands[i]), element), g.cast(g.get(op.operands[count + i]), element)
            plain = _is_identity(op.operands[count + i], str(name))
            found = _pool(g, str(name), x, op, sizes) if plain and max(bases, default=1) == 1 else None
            found = found or (_cumulate(g, str(name), x, op) if plain and element is not i1 else None)
            if found is None:
                filled = _fill(g, x, init, bases, padding)
                found = _slide(g, str(name), filled, window, strides, dilations, sizes)
                found = found if plain else g.call(_JOIN[str(name)], found, init)
            outs.append(found)
        return outs
    if math.prod(window) > _WINDOW:
        refuse(f"a window of more than {_WINDOW} elements with a computation of its own")
    sizes = shape_of(op.results[0])[1]
    elements = [shape_of(value)[0] for value in op.results]
    inits = [g.cast(g.get(op.operands[count + i]), elements[i]) for i in range(count)]
    filled_all = [_fill(g, g.cast(g.get(op.operands[i]), elements[i]), inits[i], bases, padding) for i in range(count)]
    held = [g.expand(init, sizes) for init in inits]
    for place in product(*map(range, window)):
        rows = [_shift(g, x, place, strides, dilations, window, sizes) for x in filled_all]
        held = [g.expand(each, sizes) for each in g.apply(region, *held, *rows)]
    return held


def _fill(g: Graph, x: Out, init: Out, bases: Sequence[int], padding: Sequence[Sequence[int]]) -> Out:
    x = g.spread_elements(x, [base - 1 for base in bases], init)
    return g.pad(x, [low for low, _ in padding], [high for _, high in padding], init)


def _slide(
    g: Graph,
    name: str,
    x: Out,
    window: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    sizes: Sequence[Size],
) -> Out:
    """Windows axis by axis: the op is associative and commutes."""
    if sum(window) > _WINDOW:
        refuse(f"a window of more than {_WINDOW} elements along its axes")
    rank = x.rank
    for axis in range(rank):
        size, stride = window[axis], strides[axis]
        if size == 1 and stride == 1:
            continue
        partial = [sizes[i] if i <= axis else x.sizes[i] for i in range(rank)]
        total: Out | None = None
        for at in range(size):
            start = g.constant([at * dilations[axis]], i64)
            reach = partial[axis] * stride - (stride - 1) + at * dilations[axis]
            part = g.slice_axis(x, axis, start, g.size(reach), partial[axis], stride)
            total = part if total is None else g.call(_JOIN[name], total, part)
        assert total is not None
        x = total
    return x


def _shift(
    g: Graph,
    x: Out,
    place: Sequence[int],
    strides: Sequence[int],
    dilations: Sequence[int],
    window: Sequence[int],
    sizes: Sequence[Size],
) -> Out:
    for axis, at in enumerate(place):
        if window[axis] == 1 and strides[axis] == 1:
            continue
        first = at * dilations[axis]
        reach = sizes[axis] * strides[axis] - (strides[axis] - 1) + first
        x = g.slice_axis(x, axis, g.constant([first], i64), g.size(reach), sizes[axis], strides[axis])
    return x


def _pool(g: Graph, name: str, x: Out, op: Op, sizes: Sequence[Size]) -> Out | None:
    """MaxPool and AveragePool, for feature maps [batch, channel, places …]."""
    window, rank = op.attrs["window_dimensions"], x.rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    strides = op.attrs.get("window_strides") or (1,) * rank
    dilations = op.attrs.get("window_dilations") or (1,) * rank
    moved = any(window[i] != 1 or strides[i] != 1 or any(padding[i]) for i in (0, 1)) if rank > 2 else True
    sides = [(pair, window[i], dilations[i]) for i, pair in enumerate(padding)]
    if moved or not 3 <= rank <= 5 or x.dtype.name != "f32" or name not in ("maximum", "add"):
        return None
    if any(not 0 <= amount < size for pair, size, _ in sides for amount in pair):
        return None
    options: dict[str, Any] = {
        "kernel_shape": list(window[2:]),
        "strides": list(strides[2:]),
        "dilations": list(dilations[2:]),
        "pads": [*(low for low, _ in padding[2:]), *(high for _, high in padding[2:])],
    }
    if name == "maximum":
        return g.call("MaxPool", x, sizes=sizes, **options)
    mean = g.call("AveragePool", x, sizes=sizes, count_include_pad=1, **options)
    return g.call("Mul", mean, g.like(math.prod(window), x))


def _cumulate(g: Graph, name: str, x: Out, op: Op) -> Out | None:
    """CumSum, for a window over a whole axis that ends at, or begins with, each element."""
    window, rank = op.attrs["window_dimensions"], x.rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    wide = [i for i in range(rank) if window[i] != 1]
    strided = max(op.attrs.get("window_strides") or (1,)) > 1 or max(op.attrs.get("base_dilations") or (1,)) > 1
    if name != "add" or len(wide) != 1 or strided or max(op.attrs.get("window_dilations") or (1,)) > 1:
        return None
    (axis,) = wide
    size = x.sizes[axis]
    others = any(any(pair) for i, pair in enumerate(padding) if i != axis)
    if window[axis] != size or others or tuple(padding[axis]) not in ((size - 1, 0), (0, size - 1)):
        return None
    backwards: dict[str, Any] = {"reverse": 1} if padding[axis][1] else {}
    return g.call("CumSum", x, g.constant(axis, i64), sizes=x.sizes, typed=1, **backwards)


def _scan(g: Graph, op: Op) -> Sequence[Out]:
    """CumSum of the elements before each one, else Loop: what `lower` leaves of scans. onnxruntime's Scan refuses to
    run over no elements."""
    inputs, inits = scan_counts(op)
    axis, is_reverse = op.attrs["dimension"], op.attrs["is_reverse"]
    given = [g.get(value) for value in op.operands]
    if is_cumulative_sum(op):
        flags: dict[str, Any] = {"exclusive": 1, **({"reverse": 1} if is_reverse else {})}
        x, init = given
        return [g.call("CumSum", x, g.constant(axis, i64), sizes=x.sizes, typed=1, **flags), init]
    outputs, length = len(op.results) - inits, given[0].sizes[axis]
    rank = given[0].rank
    first = [axis, *(i for i in range(rank) if i != axis)]
    turned = [0] if is_reverse else []
    lines = [g.flip(g.transpose(x, first), turned) for x in given[:inputs]]
    count = g.reshape(g.size(length), ())
    with g.subgraph() as scope:
        at, go = g.new(i64, (), "iteration"), g.new(i1, (), "go")
        held = [g.new(x.dtype, x.sizes, "carried") for x in given[inputs:]]
        rows = [g.call("Gather", x, at, sizes=x.sizes[1:], typed=1, axis=0) for x in lines]
        found = [g.identity(each) for each in g.apply(op.regions[0], *rows, *held)]
        stay = g.identity(go)
        body = Subgraph((at, go, *held), tuple(scope.nodes), (stay, *found[outputs:], *found[:outputs]))
    carries = [g.new(x.dtype, x.sizes, "loop") for x in held]
    stacks = [g.new(x.dtype, (length, *x.sizes), "scan") for x in found[:outputs]]
    g.add_node("Loop", [count, None, *given[inputs:]], [*carries, *stacks], body=body)
    # Without iterations onnxruntime does not know the dynamic sizes of a slice.
    stacks = [g.call("Reshape", x, g.vector(x.sizes), sizes=x.sizes) if x.rank > 1 else x for x in stacks]
    back = [first.index(i) for i in range(rank)]
    return [*(g.transpose(g.flip(x, turned), back) for x in stacks), *carries]


def _select_and_scatter(g: Graph, op: Op) -> Out:
    """For each window the place that is selected; sources go back there, added up place by place."""
    x, source, init = map(g.get, op.operands)
    rank = x.rank
    window, strides = op.attrs["window_dimensions"], op.attrs.get("window_strides") or (1,) * rank
    padding = op.attrs.get("padding") or ((0, 0),) * rank
    name = monoid(op.regions[1], 0, 1)
    if name is None or math.prod(window) > _WINDOW:
        refuse("a select_and_scatter with a computation of its own, or a large window")
    ones = (1,) * rank
    bounds = [low for low, _ in padding], [high for _, high in padding]
    wide = x if x.dtype.bits >= 32 else g.cast(x, dtype("f32") if x.dtype.is_float else i32)
    filled = g.pad(wide, *bounds, g.constant(0, wide.dtype))
    inside = g.pad(g.expand(g.constant(True, i1), x.sizes), *bounds, g.constant(False, i1))
    sizes = source.sizes
    best: Out | None = None
    chosen = g.constant(-1, i32)
    places = list(product(*map(range, window)))
    for number, place in enumerate(places):
        row = _shift(g, filled, place, strides, ones, window, sizes)
        valid = _shift(g, inside, place, strides, ones, window, sizes)
        if best is None:
            better = valid
            best = row
            chosen = where(g, better, g.constant(number, i32), chosen)
            continue
        stays = g.apply(op.regions[0], g.cast(best, x.dtype), g.cast(row, x.dtype))[0]
        empty = g.call("Equal", chosen, g.constant(-1, i32), to=i1)
        better = g.call("And", valid, g.call("Or", empty, g.call("Not", stays)))
        best, chosen = where(g, better, row, best), where(g, better, g.constant(number, i32), chosen)
    neutral = g.like(_identity(name, source.dtype) or 0, source)
    total = g.expand(init, filled.sizes)
    for number, place in enumerate(places):
        here = g.call("Equal", g.expand(chosen, sizes), g.constant(number, i32), to=i1)
        part = where(g, here, source, neutral)
        part = g.spread_elements(part, [stride - 1 for stride in strides], neutral)
        after = [a - b - c for a, b, c in zip(filled.sizes, part.sizes, place, strict=True)]
        if not all(isinstance(amount, int) for amount in after):
            refuse("select_and_scatter on dynamic dimensions")
        total = g.call(_JOIN[name], total, g.pad(part, list(place), after, neutral))  # type: ignore[arg-type]
    return g.pad(total, [-low for low, _ in padding], [-high for _, high in padding], init)


ROWS = {
    "stablehlo.reduce": _reduce,
    "stablehlo.map": _map,
    "chlo.scan": _scan,
    "stablehlo.reduce_window": _reduce_window,
    "stablehlo.select_and_scatter": _select_and_scatter,
}
