"""Merge SPMD processes into one program: `interpreter.run_parallel` becomes the ops of all its processes.

The processes of a grid are interpreted symbolically, in the order of the reference: a collective becomes ordinary ops
on the values of its group. `pipeline` calls it for engines that run one process.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Container, Generator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import numpy as np

from smelt.dtype import ElementType
from smelt.errors import RunError, SmeltError, UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.clone import Retype, clone_op, clone_ops, clone_region, substitution
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.interpret import take_turns
from smelt.ir.ops.collective import (
    cross_replica,
    fetch,
    group_of,
    meet,
    my_group,
    narrow_groups,
    permute,
    post,
    split_roots,
    wide_groups,
)
from smelt.ir.ops.definition import Exchange, Process
from smelt.ir.rewrite import Edit, symbols_of
from smelt.passes.inline import inline
from smelt.shape import Shape

Values = tuple[Value, ...]
Steps = Generator[Exchange, Any, Values]

RUN_PARALLEL = "interpreter.run_parallel"
PLACES: dict[str, Callable[[Process], int]] = {
    "stablehlo.replica_id": lambda process: process.replica,
    "stablehlo.partition_id": lambda process: process.partition,
}


def join_processes(program: Program, keep: Container[str] = ()) -> Program:
    """The same program in one process, without calls; composites in `keep` stay."""
    if not _starters(program):
        return program
    program = inline(program, keep)
    while starters := _starters(program):
        for name, ops in starters.items():
            started = {callee for op in ops for row in op.attrs["programs"] for callee in row}
            if not started & starters.keys():  # nested grids: the inner ones first
                program = _join_in(program, program.funcs[name], ops)
        program = inline(program, keep)
    return program


def _starters(program: Program) -> dict[str, list[Op]]:
    """The functions that start processes, and the ops that start them."""
    found = {name: [op for op in walk(func.body) if op.name == RUN_PARALLEL] for name, func in program.funcs.items()}
    return {name: ops for name, ops in found.items() if ops}


def _join_in(program: Program, func: Func, starts: Sequence[Op]) -> Program:
    """The program with a function's grids replaced by calls of merged functions."""
    edit = Edit(func, {name: other.type for name, other in program.funcs.items()})
    for op in starts:
        grid = [[program.func(name) for name in row] for row in op.attrs["programs"]]
        queue = [program.func(name) for name in op.attrs.get("infeed", ())]
        joined = join_grid(grid, queue, name=_unused_name(program, f"{func.name}_processes"))
        program = program.replace(joined)
        edit.signatures[joined.name] = joined.type
        types = [result.type for result in op.results]
        call = edit.before(op).op("func.call", *edit.operands(op), callee=joined.name, result=types)
        for old, new in zip(op.results, call.results, strict=True):
            edit.replace(old, new)
        edit.erase(op)
    return program.replace(edit.freeze())


def _unused_name(program: Program, name: str) -> str:
    count = 0
    while f"{name}_{count}" in program.funcs:
        count += 1
    return f"{name}_{count}"


def join_grid(grid: Sequence[Sequence[Func]], infeed: Sequence[Func] = (), *, name: str = "main") -> Func:
    """One function for `grid[replica][partition]`: arguments and results of all processes, row by row.

    The functions must hold no calls. `infeed` gives what the processes take from their queue, in order.
    """
    build = Builder()
    queue: deque[Values] = deque(_infeed_values(func, build) for func in infeed)
    running: dict[Process, Steps] = {}
    args: list[Value] = []
    for replica, row in enumerate(grid):
        for partition, func in enumerate(row):
            process = Process(replica, partition, len(grid), len(row))
            placed = _bind_ids(func, process)
            member = _Member(process, build, _renaming(placed, build), queue)
            for arg in placed.args:
                member.values[arg] = Value(member.retype(arg.type), None, len(args), arg.name)
                args.append(member.values[arg])
            running[process] = member.steps(placed.body)
    done = take_turns(dict(running))
    results = tuple(value for process in running for value in done[process])
    return Func(name, Region(tuple(args), tuple(build.ops), results), "private")


def _infeed_values(func: Func, build: Builder) -> Values:
    values: dict[Value, Value] = {}
    build.ops += clone_ops(func.body.ops, values, _renaming(func, build))
    return tuple(values[value] for value in func.results)


def _renaming(func: Func, build: Builder) -> Retype:
    """Fresh symbols for each copy of a function."""
    return substitution({name: build.scope.new_symbol() for name in sorted(symbols_of(func))})


def _bind_ids(func: Func, process: Process) -> Func:
    """The function of one process: its ids in the grid are constants, inside regions too."""
    edit = Edit(func)
    for op in [op for op in walk(func.body) if op.name in PLACES]:
        edit.replace(op.result, edit.before(op).constant(np.uint32(PLACES[op.name](process))))
        edit.erase(op)
    return edit.freeze()


@dataclass(slots=True)
class _Member:
    """The state of one process, and its function's values in the merged function."""

    process: Process
    build: Builder  # shared by all processes: one may use what another added
    retype: Retype
    infeed: deque[Values]
    values: dict[Value, Value] = field(default_factory=dict)
    futures: dict[Value, Values] = field(default_factory=dict)

    def steps(self, region: Region) -> Steps:
        for op in region.ops:
            try:
                out = self._step(op)
                if inspect.isgenerator(out):
                    out = yield from out
            except SmeltError as error:
                if error.where is None:
                    error.where = op.location
                raise
            if isinstance(out, tuple):
                self.values.update(zip(op.results, out, strict=True))
        self._refuse_futures("func.return", region.results)
        return tuple(self.values[value] for value in region.results)

    def _step(self, op: Op) -> Any:
        """The results of an op, the steps to them, or None where they are recorded already."""
        if op.name == "stablehlo.async_start":
            return self._start(op)
        if op.name == "stablehlo.async_done" and op.operands[0] in self.futures:
            return self.futures[op.operands[0]]
        rule = RULES.get(op.name)
        if rule is None:
            return self._copy(op)
        return rule(self, op, *(self.values[operand] for operand in op.operands))

    def _start(self, op: Op) -> Generator[Exchange, Any, None]:
        (region,) = op.regions
        self.values.update((arg, self.values[given]) for arg, given in zip(region.args, op.operands, strict=True))
        self.futures[op.result] = yield from self.steps(region)

    def _copy(self, op: Op) -> None:
        """Copy an op that is local to this process."""
        inside = [inner for region in op.regions for inner in walk(region)]
        waits = next((inner for inner in inside if inner.name in RULES), None)
        if waits is not None:
            raise UnsupportedError(
                f"{waits.name} inside {op.name}: whether it runs is not known at compile time",
                where=waits.location,
                remedy="exchange values outside of loops and branches",
            )
        self._refuse_futures(op.name, [operand for each in (op, *inside) for operand in each.operands])
        self.build.ops.append(clone_op(op, self.values, self.retype))

    def _refuse_futures(self, name: str, values: Sequence[Value]) -> None:
        if any(value in self.futures for value in values):
            raise UnsupportedError(f"{name} of a future in joined processes", expected="stablehlo.async_done")

    # -- helpers of the rules --

    def at(self, op: Op) -> Builder:
        """The builder, with the location of this op."""
        self.build.location = op.location
        return self.build

    def shape(self, value: Value) -> Shape:
        """The type of a result in the merged function."""
        shape = self.retype(value.type)
        assert isinstance(shape, Shape)
        return shape

    def zeros(self, op: Op, shape: Shape) -> Value:
        """The result of a process that receives nothing: all bits zero."""
        build = self.at(op)
        scalar = build.constant(np.zeros((), shape.dtype.numpy), shape.dtype)
        if not shape.rank:
            return scalar
        return build.broadcast_in_dim(scalar, broadcast_dimensions=(), result=shape)

    def gather(self, op: Op, result: int, parts: Sequence[Value], dim: int) -> Value:
        """The concatenated parts, in the declared size."""
        sizes = list(parts[0].shape.sizes)
        sizes[dim] = sum(part.shape.sizes[dim] for part in parts)
        want = self.shape(op.results[result])
        _check_promise(op, Shape.of(parts[0].shape.dtype, sizes), want)
        return self.at(op).concatenate(*parts, dimension=dim, result=want)

    def share(self, op: Op, value: Value, dim: int, count: int, which: int) -> Value:
        """One of `count` equal parts along a dimension."""
        if not value.shape.is_static:
            raise UnsupportedError(f"{op.name}: joined processes split sizes that are numbers", got=value.shape)
        sizes = value.shape.numbers()
        part, rest = divmod(sizes[dim], count)
        if rest:
            raise RunError(
                f"{op.name}: a dimension does not split evenly", expected=f"a multiple of {count}", got=sizes[dim]
            )
        starts = [which * part if axis == dim else 0 for axis in range(len(sizes))]
        limits = [starts[dim] + part if axis == dim else size for axis, size in enumerate(sizes)]
        strides = (1,) * len(sizes)
        return self.at(op).slice(value, start_indices=tuple(starts), limit_indices=tuple(limits), strides=strides)

    def combine(self, op: Op, parts: Sequence[Value], element: ElementType) -> Value:
        """Reduce the parts elementwise by the op's computation, in the group's order."""

        def step(a: Value, b: Value) -> Value:
            body = clone_region(op.regions[0], dict(self.values), self.retype)
            return self.at(op).map(a, b, dimensions=tuple(range(a.shape.rank)), regions=[body])

        return reduce(step, [self._promote(op, part, element) for part in parts])

    def _promote(self, op: Op, part: Value, element: ElementType) -> Value:
        if part.shape.dtype == element:
            return part
        return self.at(op).convert(part, result=Shape.of(element, part.shape.sizes))

    def is_root(self, op: Op, roots: Value, result: int, place: int) -> Value:
        """Whether the root of an operand is this member of the group."""
        build = self.at(op)
        chosen = build.slice(roots, start_indices=(result,), limit_indices=(result + 1,), strides=(1,))
        scalar = build.reshape(chosen, result=Shape.of(roots.shape.dtype, ()))
        return build.compare(scalar, build.constant(place, roots.shape.dtype), comparison_direction="EQ")


def _check_promise(op: Op, have: Shape, want: Shape) -> None:
    """Sizes depend on the grid; static ones must be the declared ones."""
    if not _may_be_alike(have, want):
        raise RunError(f"{op.name}: the group does not give the declared size", expected=want, got=have)


def _may_be_alike(a: Shape, b: Shape) -> bool:
    """Whether types are the same, as far as their sizes are static."""
    if a.dtype != b.dtype or a.rank != b.rank:
        return False
    return all(x == y for x, y in zip(a.sizes, b.sizes, strict=True) if isinstance(x, int) and isinstance(y, int))


def _check_alike(op: Op, payloads: Sequence[Values]) -> None:
    first = [value.shape for value in payloads[0]]
    for payload in payloads[1:]:
        other = [value.shape for value in payload]
        if len(first) != len(other) or not all(map(_may_be_alike, first, other)):
            raise RunError(f"{op.name}: the processes of a group have different types", expected=first, got=other)


# ---- one rule per op ----


def _all_gather(member: _Member, op: Op, *operands: Value) -> Steps:
    group = my_group(member.process, op, wide_groups(member.process, op))
    payloads = yield from meet(op, group, operands)
    _check_alike(op, payloads)
    dim: int = op.attrs["all_gather_dim"]
    return tuple(member.gather(op, i, parts, dim) for i, parts in enumerate(zip(*payloads, strict=True)))


def _all_to_all(member: _Member, op: Op, *operands: Value) -> Steps:
    group = my_group(member.process, op, narrow_groups(member.process, op))
    payloads = yield from meet(op, group, operands)
    _check_alike(op, payloads)
    mine = group.index(member.process)
    split, concat, count = (op.attrs[name] for name in ("split_dimension", "concat_dimension", "split_count"))
    results = []
    for i, parts in enumerate(zip(*payloads, strict=True)):
        shares = [member.share(op, part, split, count, mine) for part in parts]
        results.append(member.gather(op, i, shares, concat))
    return tuple(results)


def _all_reduce(member: _Member, op: Op, *operands: Value) -> Steps:
    group = my_group(member.process, op, wide_groups(member.process, op))
    payloads = yield from meet(op, group, operands)
    _check_alike(op, payloads)
    wholes = zip(op.results, zip(*payloads, strict=True), strict=True)
    return tuple(member.combine(op, parts, result.shape.dtype) for result, parts in wholes)


def _reduce_scatter(member: _Member, op: Op, operand: Value) -> Steps:
    group = my_group(member.process, op, wide_groups(member.process, op))
    payloads = yield from meet(op, group, (operand,))
    _check_alike(op, payloads)
    whole = member.combine(op, [payload[0] for payload in payloads], op.result.shape.dtype)
    share = member.share(op, whole, op.attrs["scatter_dimension"], len(group), group.index(member.process))
    _check_promise(op, share.shape, member.shape(op.result))
    return (share,)


def _collective_reduce(member: _Member, op: Op, *operands: Value) -> Steps:
    group = group_of(member.process, wide_groups(member.process, op))
    data, roots = split_roots(op, operands)
    if group is None:
        return tuple(member.zeros(op, value.shape) for value in data)
    payloads = yield from meet(op, group, data)
    _check_alike(op, payloads)
    mine = group.index(member.process)
    results = []
    for i, parts in enumerate(zip(*payloads, strict=True)):
        if roots is not None:
            whole, nothing = member.combine(op, parts, data[i].shape.dtype), member.zeros(op, data[i].shape)
            results.append(member.at(op).select(member.is_root(op, roots, i, mine), whole, nothing))
        elif mine == 0:
            results.append(member.combine(op, parts, data[i].shape.dtype))
        else:
            results.append(member.zeros(op, data[i].shape))
    return tuple(results)


def _cross_replica_sum(member: _Member, op: Op, operand: Value) -> Steps:
    group = my_group(member.process, op, cross_replica(member.process, op))
    payloads = yield from meet(op, group, (operand,))
    _check_alike(op, payloads)
    build = member.at(op)
    return (reduce(lambda a, b: build.op("stablehlo.add", a, b).result, [payload[0] for payload in payloads]),)


def _collective_broadcast(member: _Member, op: Op, *operands: Value) -> Steps:
    """A run-time root outside the group gives zeros; the reference rejects it."""
    group = group_of(member.process, narrow_groups(member.process, op))
    data, roots = split_roots(op, operands)
    if group is None:
        return tuple(member.zeros(op, value.shape) for value in data)
    payloads = yield from meet(op, group, data)
    _check_alike(op, payloads)
    if roots is None:
        return tuple(payloads[0])
    results = []
    for i, parts in enumerate(zip(*payloads, strict=True)):
        chosen = member.zeros(op, data[i].shape)
        for place, part in enumerate(parts):
            chosen = member.at(op).select(member.is_root(op, roots, i, place), part, chosen)
        results.append(chosen)
    return tuple(results)


def _collective_permute(member: _Member, op: Op, operand: Value) -> Steps:
    came = yield from permute(member.process, op, operand)
    value = member.zeros(op, operand.shape) if came is None else came
    _check_promise(op, value.shape, member.shape(op.result))
    return (value,)


def _send(member: _Member, op: Op, *operands: Value) -> Steps:
    yield from post(member.process, op, operands[:-1])
    return operands[-1:]


def _recv(member: _Member, op: Op, token: Value) -> Steps:
    payload = yield from fetch(member.process, op)
    if payload is None:
        payload = [member.zeros(op, member.shape(value)) for value in op.results[:-1]]
    return _receive(member, op, payload, token)


def _infeed(member: _Member, op: Op, token: Value) -> Values:
    if not member.infeed:
        raise RunError(f"{op.name}: nothing is left in the queue", expected=[value.type for value in op.results[:-1]])
    return _receive(member, op, member.infeed.popleft(), token)


def _receive(member: _Member, op: Op, payload: Sequence[Value], token: Value) -> Values:
    types = [member.shape(value) for value in op.results[:-1]]
    came = [value.shape for value in payload]
    if len(types) != len(came) or not all(map(_may_be_alike, types, came)):
        raise RunError(f"{op.name}: what came has another type", expected=types, got=came)
    return (*payload, token)


RULES: dict[str, Callable[..., Steps | Values]] = {
    "stablehlo.all_gather": _all_gather,
    "stablehlo.all_reduce": _all_reduce,
    "stablehlo.all_to_all": _all_to_all,
    "stablehlo.collective_broadcast": _collective_broadcast,
    "stablehlo.collective_permute": _collective_permute,
    "stablehlo.collective_reduce": _collective_reduce,
    "stablehlo.cross-replica-sum": _cross_replica_sum,
    "stablehlo.infeed": _infeed,
    "stablehlo.recv": _recv,
    "stablehlo.reduce_scatter": _reduce_scatter,
    "stablehlo.send": _send,
}
