"""Custom calls by which JAX exports ops whose sizes are open become those ops, for engines without such calls.

`dynamic_top_k` is sorting, `dynamic_rng_bit_generator` tells its sizes in its type, `dynamic_reduce_window` is a loop
over the places of its window. Called by `pipeline`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dtype import i32
from smelt.ir.build import Builder
from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Program, Value, walk
from smelt.ir.rewrite import Edit, Match
from smelt.ir.sizes import trace_each
from smelt.shape import Shape

Values = Sequence[Value]


def lower_called(program: Program) -> Program:
    """The program without calls that this file knows; one whose sizes only data tells stays."""
    signatures = {name: func.type for name, func in program.funcs.items()}
    changed = []
    for func in program.funcs.values():
        if any(op.name == "stablehlo.custom_call" for op in walk(func.body)):
            edit = Edit(func, signatures)
            for op in list(walk(func.body)):
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
    """All of a row in falling order, equal ones as they were; then its beginning."""
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
    size: Value = b.reshape(b.get_dimension_size(x, dimension=d), result=Shape("i32", 1))
    return size


def _all(b: Builder, number: int, count: int) -> Value:
    value: Value = b.full(number, Shape("i32", count))
    return value


def _reduce_window(program: Program, m: Match) -> Values | None:
    """One input, no holes, steps of one: the padded input at each place of the window joins the total, in order."""
    b, operands = m.build, m.edit.operands(m.op)
    if len(m.op.results) != 1:
        return None
    x, init, window, *steps, edges = operands
    rank, result = x.shape.rank, m.op.results[0].shape
    if any(trace_each(each) != (1,) * rank for each in steps):
        return None
    vector = Shape("i32", rank)
    low, high = (
        b.reshape(b.convert(_column(b, edges, side), result=Shape("i32", rank, 1)), result=vector) for side in (0, 1)
    )
    padded = b.dynamic_pad(x, init, low, high, _all(b, 0, rank))
    sizes = b.convert(window, result=vector)
    lengths = b.concatenate(*(_length(b, padded, d) for d in range(rank)), dimension=0)
    counts = b.maximum(b.add(b.subtract(lengths, sizes), _all(b, 1, rank)), _all(b, 0, rank))
    parts = [_part(b, sizes, d) for d in range(rank)]
    total = parts[0]
    for part in parts[1:]:
        total = b.multiply(total, part)
    carried = [
        b.full(0, Shape("i32", 1)),
        b.dynamic_broadcast_in_dim(init, counts, broadcast_dimensions=(), result=result),
    ]
    types = [value.type for value in carried]
    with b.region(*types) as condition:
        goes_on = condition.compare(condition.args[0], total, comparison_direction="LT")
        condition.result(condition.reshape(goes_on, result=Shape("i1")))
    with b.region(*types) as r:
        turn, found = r.args
        start = r.concatenate(*_place(r, turn, parts), dimension=0)
        bounds = start, r.add(start, counts), _all(r, 1, rank)
        part = r.real_dynamic_slice(padded, *bounds, result=result)
        body = clone_region(program.func(m.op.attrs["called_computations"][0]).body, {})
        joined = r.op("stablehlo.map", found, part, regions=[body], dimensions=tuple(range(rank)), result=result)
        r.result(r.add(turn, _all(r, 1, 1)), joined.result)
    loop = b.op("stablehlo.while", *carried, regions=[condition.body, r.body])
    return [loop.results[1]]


def _column(b: Builder, matrix: Value, at: int) -> Value:
    rows = matrix.shape.numbers()[0]
    column: Value = b.slice(matrix, start_indices=(0, at), limit_indices=(rows, at + 1), strides=(1, 1))
    return column


def _part(b: Builder, vector: Value, at: int) -> Value:
    part: Value = b.slice(vector, start_indices=(at,), limit_indices=(at + 1,), strides=(1,))
    return part


def _place(b: Builder, turn: Value, sizes: Sequence[Value]) -> list[Value]:
    """Where a turn's element lies in the window, row by row."""
    places = []
    for size in reversed(sizes):
        places.append(b.remainder(turn, size))
        turn = b.divide(turn, size)
    return places[::-1]


CALLS: dict[str, Callable[[Program, Match], Values | None]] = {
    "stablehlo.dynamic_rng_bit_generator": _bits,
    "stablehlo.dynamic_top_k": _top_k,
    "stablehlo.dynamic_reduce_window": _reduce_window,
}
