"""Custom calls that JAX exports for dynamic shapes and for LAPACK become StableHLO ops.

`dynamic_top_k` becomes a sort, `dynamic_rng_bit_generator` the op with the sizes of its type, `dynamic_reduce_window` a
loop over the window's positions. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from smelt.dtype import i32
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Program, Region, Value, walk
from smelt.ir.lapack import compute
from smelt.ir.ops.lapack import TARGETS, options
from smelt.ir.rewrite import Edit, Match
from smelt.ir.sizes import trace_each
from smelt.shape import Shape

Values = Sequence[Value]


def lower_custom_calls(program: Program, calls: Container[str] | None = None) -> Program:
    """The program without the custom calls that have a rule here (limited to `calls`). Data-dependent sizes stay."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    changed = []
    for func in program.funcs.values():
        if any(op.name == "stablehlo.custom_call" for op in walk(func.body)):
            edit = Edit(func, signatures)
            for op in list(walk(func.body)):
                if calls is None or op.attrs.get("call_target_name") in calls:
                    _lower(program, edit, op)
            changed.append(edit.freeze())
    return program.replace(*changed) if changed else program


def _lower(program: Program, edit: Edit, op: Op) -> None:
    rule = CALLS.get(op.attrs["call_target_name"]) if op.name == "stablehlo.custom_call" else None
    made = rule(program, Match(edit, op)) if rule is not None else None
    if made is not None:
        for old, new in zip(op.results, made, strict=True):
            edit.replace(old, new)
        edit.erase(op)


def _bits(program: Program, m: Match) -> Values | None:
    algorithm = str(m.op.attrs.get("rng_algorithm", "DEFAULT"))
    name = next((name for name in ("THREE_FRY", "PHILOX") if name in algorithm), "DEFAULT")
    state, *_ = m.edit.operands(m.op)
    types = [value.type for value in m.op.results]
    return m.build.op("stablehlo.rng_bit_generator", state, rng_algorithm=name, result=types).results


def _top_k(program: Program, m: Match) -> Values | None:
    """A stable descending sort of each row, then its first k elements."""
    b, (x, k) = m.build, m.edit.operands(m.op)
    shape = x.shape
    last = shape.rank - 1
    places = b.iota(iota_dimension=last, result=Shape.of(i32, shape.sizes))
    scalar, index = Shape.of(shape.dtype, ()), Shape.of(i32, ())
    with b.region(scalar, scalar, index, index) as r:
        order = "TOTALORDER" if shape.element.is_float else "NOTYPE"
        r.result(r.compare(r.args[0], r.args[1], comparison_direction="GT", compare_type=order))
    ordered = b.op("stablehlo.sort", x, places, regions=[r.body], dimension=last, is_stable=True)
    count = b.convert(b.reshape(k, result=Shape("i32", 1)) if not k.shape.rank else k, result=Shape("i32", 1))
    outer = [_length(b, x, d) for d in range(last)]
    limit = b.concatenate(*outer, count, dimension=0) if outer else count
    bounds = _all(b, 0, shape.rank), limit, _all(b, 1, shape.rank)
    pairs = zip(ordered.results, m.op.results, strict=True)
    return [b.real_dynamic_slice(each, *bounds, result=old.type) for each, old in pairs]


def _length(b: Builder, x: Value, d: int) -> Value:
    return b.reshape(b.get_dimension_size(x, dimension=d), result=Shape("i32", 1))


def _all(b: Builder, number: int, count: int) -> Value:
    return b.full(number, Shape("i32", count))


def _reduce_window(program: Program, m: Match) -> Values | None:
    """A loop over the window's positions; each accumulates the padded inputs at that position."""
    b, operands = m.build, m.edit.operands(m.op)
    results = [value.shape for value in m.op.results]
    count, rank = len(results), results[0].rank
    inputs, starts = operands[:count], operands[count : 2 * count]
    vector = Shape("i32", rank)
    window, strides, bases, dilations = (b.convert(each, result=vector) for each in operands[2 * count : -1])
    _require_positive(b, window, strides, bases, dilations)
    edges = [b.convert(_column(b, operands[-1], side), result=Shape("i32", rank, 1)) for side in (0, 1)]
    low, high = (b.reshape(each, result=vector) for each in edges)
    holes = b.subtract(bases, _all(b, 1, rank))
    inits = [b.convert(each, result=Shape.of(result.dtype, ())) for each, result in zip(starts, results, strict=True)]
    padded = [
        b.dynamic_pad(b.convert(x, result=x.shape.with_dtype(init.shape.dtype)), init, low, high, holes)
        for x, init in zip(inputs, inits, strict=True)
    ]
    lengths = b.concatenate(*(_length(b, padded[0], d) for d in range(rank)), dimension=0)
    counts = _count_positions(b, lengths, window, strides, dilations)
    zero = _all(b, 0, rank)
    spans = b.maximum(b.add(b.multiply(b.subtract(counts, _all(b, 1, rank)), strides), _all(b, 1, rank)), zero)
    parts = [_element(b, window, d) for d in range(rank)]
    total = parts[0]
    for part in parts[1:]:
        total = b.multiply(total, part)
    carried = [b.full(0, Shape("i32", 1))]
    for init, result in zip(inits, results, strict=True):
        carried.append(b.dynamic_broadcast_in_dim(init, counts, broadcast_dimensions=(), result=result))
    types = [value.type for value in carried]
    with b.region(*types) as condition:
        goes_on = condition.compare(condition.args[0], total, comparison_direction="LT")
        condition.result(condition.reshape(goes_on, result=Shape("i1")))
    with b.region(*types) as r:
        iteration, *found = r.args
        at = r.multiply(r.concatenate(*_position(r, iteration, parts), dimension=0), dilations)
        start = r.minimum(at, lengths)  # past the end only if there are no windows
        bounds = start, r.add(start, spans), strides
        seen = [r.real_dynamic_slice(x, *bounds, result=to) for x, to in zip(padded, results, strict=True)]
        body = program.func(m.op.attrs["called_computations"][0]).body
        r.result(r.add(iteration, _all(r, 1, 1)), *_accumulate(r, body, found, seen))
    loop = b.op("stablehlo.while", *carried, regions=[condition.body, r.body])
    return loop.results[1:]


def _require_positive(b: Builder, *vectors: Value) -> None:
    for each in vectors:
        known = trace_each(each)
        if known is None or any(not isinstance(number, int) or number < 1 for number in known):
            positive = b.compare(each, _all(b, 1, each.shape.numbers()[0]), comparison_direction="GE")
            message = "dynamic_reduce_window: window sizes, strides and dilations must be positive"
            b.custom_call(
                positive, result=[], call_target_name="smelt.check", has_side_effect=True, error_message=message
            )


def _count_positions(b: Builder, lengths: Value, window: Value, strides: Value, dilations: Value) -> Value:
    """The number of positions of a dilated window along each dimension: 0 where it does not fit."""
    one = _all(b, 1, window.shape.numbers()[0])
    dilated = b.add(b.multiply(b.subtract(window, one), dilations), one)
    room = b.maximum(b.add(b.subtract(lengths, dilated), strides), b.subtract(one, one))
    return b.divide(room, strides)


def _accumulate(r: Builder, body: Region, totals: Values, parts: Values) -> list[Value]:
    """The scalar body applied to totals and new elements: one map per result."""
    joined = []
    for i, total in enumerate(totals):
        copy = clone_region(body, {})
        one = Region(copy.args, copy.ops, (copy.results[i],))
        dimensions = tuple(range(total.shape.rank))
        made = r.op("stablehlo.map", *totals, *parts, regions=[one], dimensions=dimensions, result=total.type)
        joined.append(made.result)
    return joined


def _column(b: Builder, matrix: Value, at: int) -> Value:
    rows = matrix.shape.numbers()[0]
    return b.slice(matrix, start_indices=(0, at), limit_indices=(rows, at + 1), strides=(1, 1))


def _element(b: Builder, vector: Value, at: int) -> Value:
    return b.slice(vector, start_indices=(at,), limit_indices=(at + 1,), strides=(1,))


def _position(b: Builder, iteration: Value, sizes: Sequence[Value]) -> list[Value]:
    """The position in the window of an iteration's element, row-major."""
    places = []
    for size in reversed(sizes):
        places.append(b.remainder(iteration, size))
        iteration = b.divide(iteration, size)
    return places[::-1]


def _lapack(program: Program, m: Match) -> Values:
    return compute(m.build, m.op.attrs["call_target_name"], m.edit.operands(m.op), options(m.op.attrs))


CALLS: dict[str, Callable[[Program, Match], Values | None]] = {
    **dict.fromkeys(TARGETS, _lapack),
    "stablehlo.dynamic_rng_bit_generator": _bits,
    "stablehlo.dynamic_top_k": _top_k,
    "stablehlo.dynamic_reduce_window": _reduce_window,
}
