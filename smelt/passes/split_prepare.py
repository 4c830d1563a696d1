"""Split a program into `prepare(weights) → bound` and `main(bound, inputs)`: what depends on weights alone runs once.

Arguments marked `smelt.weight` are weights; a call consumes those marked `smelt.donated`. A broadcast of a smaller
value is not bound: the run repeats the cheap op. Called by `pipeline`; engines run both functions.
"""

from __future__ import annotations

from types import MappingProxyType

from smelt.ir.clone import clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, used_values
from smelt.ir.ops import OPS
from smelt.ir.rewrite import has_effect
from smelt.shape import Shape

WEIGHT, NAME, BOUND, DONATED = "smelt.weight", "smelt.name", "smelt.bound", "smelt.donated"


def split_prepare(program: Program) -> Program:
    """The program with `@prepare` and a `@main` that takes the bound values first; unchanged without weights."""
    main = program.main
    weights = [arg for arg, attrs in zip(main.args, main.arg_attrs, strict=True) if WEIGHT in attrs]
    if not weights:
        return program
    early = _weights_only(main, weights)
    bound = _frontier(main, weights, early)
    return program.replace(_prepare_function(main, weights, early, bound), _run_function(main, bound))


def _weights_only(main: Func, weights: list[Value]) -> dict[Op, None]:
    """The ops that depend on weights and constants alone, not even on sizes of inputs."""
    ready: set[Value] = set(weights)
    known = frozenset().union(*(_symbols(weight) for weight in weights))
    early: dict[Op, None] = {}
    for op in main.body.ops:
        if has_effect(op) or op.name.startswith("stablehlo.rng"):
            continue
        used = used_values(op)
        if all(value in ready for value in used) and all(_symbols(value) <= known for value in op.results):
            ready.update(op.results)
            early[op] = None
    return early


def _symbols(value: Value) -> frozenset[str]:
    return value.type.symbols if isinstance(value.type, Shape) else frozenset()


def _frontier(main: Func, weights: list[Value], early: dict[Op, None]) -> list[Value]:
    """The values to bind, in order. An op that only broadcasts a smaller value is repeated by the run instead."""
    made = {*weights, *(value for op in early for value in op.results)}
    repeated: set[Op] = set()
    needed = _needed_late(main, early, made, repeated)
    while cheap := {value.op for value in needed if value.op is not None and _is_broadcast_like(value.op)} - repeated:
        repeated |= cheap
        needed = _needed_late(main, early, made, repeated)
    kept = needed - {value for op in repeated for value in op.results}
    return [value for value in (*main.args, *(value for op in main.body.ops for value in op.results)) if value in kept]


def _needed_late(main: Func, early: dict[Op, None], made: set[Value], repeated: set[Op]) -> set[Value]:
    """The values that the run takes from `prepare` if it repeats some of its ops."""
    needed = {value for value in main.results if value in made}
    for op in main.body.ops:
        if op not in early or op in repeated:
            needed.update(value for value in used_values(op) if value in made)
    return needed


def _is_broadcast_like(op: Op) -> bool:
    """Whether the results are larger than the operands: constants, iotas, broadcasts."""
    if not op.operands:
        return True
    if op.name in ("stablehlo.broadcast_in_dim", "stablehlo.reshape"):
        return True
    return OPS[op.name].elementwise and all(_count(value) > sum(map(_count, op.operands)) for value in op.results)


def _count(value: Value) -> int:
    shape = value.type
    if not isinstance(shape, Shape) or not shape.is_static:
        return 1
    count = 1
    for size in shape.numbers():
        count *= size
    return count


def _prepare_function(main: Func, weights: list[Value], early: dict[Op, None], bound: list[Value]) -> Func:
    attrs = {arg: main.arg_attrs[i] for i, arg in enumerate(main.args)}
    values: dict[Value, Value] = {}
    args = tuple(Value(weight.type, None, i, weight.name) for i, weight in enumerate(weights))
    values.update(zip(weights, args, strict=True))
    wanted = _backwards(early, bound)
    ops = tuple(clone_op(op, values) for op in early if op in wanted)
    body = Region(args, ops, tuple(values[value] for value in bound))
    return Func("prepare", body, "public", tuple(attrs[weight] for weight in weights), location=main.location)


def _backwards(early: dict[Op, None], bound: list[Value]) -> set[Op]:
    """The early ops that the bound values depend on."""
    wanted: set[Op] = set()
    work = [value.op for value in bound if value.op is not None]
    while work:
        op = work.pop()
        if op in early and op not in wanted:
            wanted.add(op)
            work += [value.op for value in used_values(op) if value.op is not None]
    return wanted


def _run_function(main: Func, bound: list[Value]) -> Func:
    inputs = [(arg, main.arg_attrs[i]) for i, arg in enumerate(main.args) if WEIGHT not in main.arg_attrs[i]]
    values: dict[Value, Value] = {}
    args = [Value(value.type, None, i, value.name) for i, value in enumerate([*bound, *(arg for arg, _ in inputs)])]
    values.update(zip([*bound, *(arg for arg, _ in inputs)], args, strict=True))
    live: set[Value] = set(main.results)
    late: list[Op] = []
    for op in reversed(main.body.ops):
        if has_effect(op) or any(result in live and result not in values for result in op.results):
            live.update(used_values(op))
            late.append(op)
    ops = tuple(clone_op(op, values) for op in reversed(late))
    body = Region(tuple(args), ops, tuple(values[value] for value in main.results))
    attrs = [MappingProxyType({BOUND: True}) for _ in bound] + [attr for _, attr in inputs]
    return Func(main.name, body, "public", tuple(attrs), main.result_attrs, main.attrs, main.location)
