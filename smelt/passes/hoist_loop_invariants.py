"""Loop-invariant code motion: work that is the same in every iteration moves in front of the loop.

Called by `pipeline` after `pack_weights`, so that `split_prepare` finds the packing of a recurrent weight outside the
loop. Out of a branch moves only what depends on weights alone: `prepare` runs that once, whichever branch is taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from smelt.ir.clone import clone_args, clone_op, remake_op
from smelt.ir.core import Func, Op, Program, Region, Value, used_values, walk
from smelt.ir.rewrite import has_effect
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

# Ops whose results are always materialised: hoisting them saves work and costs no extra buffer per iteration.
WORK = frozenset(
    {
        *("smelt.relayout", "smelt.packed_dot", "smelt.packed_conv", "smelt.depthwise_conv", "smelt.winograd_conv"),
        *(
            "smelt.round_blocks",
            "smelt.round_rows",
            "smelt.packed_block_dot",
            "smelt.grouped_dot",
            "smelt.grouped_block_dot",
        ),
        *(
            f"stablehlo.{name}"
            for name in ("dot_general", "convolution", "reduce", "reduce_window", "sort", "fft", "cholesky")
        ),
    }
)
BRANCHES = frozenset({"stablehlo.if", "stablehlo.case"})
CONTROL = BRANCHES | {"stablehlo.while"}
# Ops that may fail at run time, or have data-dependent sizes.
DYNAMIC = ("stablehlo.dynamic_", "stablehlo.real_dynamic_", "stablehlo.set_dimension_size", "stablehlo.rng")


def hoist_loop_invariants(program: Program) -> Program:
    changed = [_hoist(func) for func in program.funcs.values() if _has_work(func)]
    return program.replace(*changed) if changed else program


def _has_work(func: Func) -> bool:
    """Whether a loop or a branch holds an op that is worth hoisting."""
    outer = (op for op in walk(func.body) if op.name in CONTROL)
    return any(inner.name in WORK for op in outer for region in op.regions for inner in walk(region))


def _hoist(func: Func) -> Func:
    moving = _Hoisting()
    moving.fixed.update(arg for arg, attrs in zip(func.args, func.arg_attrs, strict=True) if WEIGHT in attrs)
    values: dict[Value, Value] = {}
    ops = moving.ops(func.body.ops, values)
    body = Region(func.args, tuple(ops), tuple(values.get(value, value) for value in func.body.results))
    return replace(func, body=body)


class _Hoisting:
    """Rebuilds ops, innermost regions first."""

    def __init__(self) -> None:
        self.fixed: set[Value] = set()  # what depends on weights and constants alone

    def ops(self, ops: Sequence[Op], values: dict[Value, Value]) -> list[Op]:
        """Copies of ops, each after what is hoisted out of its regions; `values` as for `clone_op`."""
        made: list[Op] = []
        for op in ops:
            if not op.regions:
                made.append(clone_op(op, values))
            else:
                made += self._hoist_from(op, values)
            self._note(made[-1])
        return made

    def _note(self, op: Op) -> None:
        known = all(value in self.fixed for value in used_values(op))
        if known and _is_safe(op) and all(isinstance(each.type, Shape) and each.type.is_static for each in op.results):
            self.fixed.update(op.results)

    def _hoist_from(self, op: Op, values: dict[Value, Value]) -> list[Op]:
        """What is hoisted out of an op's regions, then the op."""
        regions = []
        for region in op.regions:
            args = clone_args(region.args)
            own = dict(zip(region.args, args, strict=True))
            values |= own
            values |= {region.args[i]: values.get(op.operands[i], op.operands[i]) for i in _carried_unchanged(op)}
            inner = tuple(self.ops(region.ops, values))
            results = tuple(own.get(value) or values.get(value, value) for value in region.results)
            regions.append(Region(args, inner, results))
        front: list[Op] = []
        if op.name == "stablehlo.while":
            front, regions[1] = self._split(regions[1], within=None)
        elif op.name in BRANCHES:
            for i, region in enumerate(regions):
                more, regions[i] = self._split(region, within=self.fixed)
                front += more
        operands = [values.get(operand, operand) for operand in op.operands]
        new = remake_op(op, operands, regions)
        values.update(zip(op.results, new.results, strict=True))
        return [*front, new]

    def _split(self, region: Region, within: set[Value] | None) -> tuple[list[Op], Region]:
        """The ops hoisted out of a region, and the rest of it. `within`: the values they may depend on; None: any."""
        free = _invariant(region, within)
        work = [op for op in free if op.name in WORK]
        if not work:
            return [], region
        wanted = _with_producers(work, free)
        outside: dict[Value, Value] = {}
        front = [clone_op(op, outside) for op in free if op in wanted]
        for op in front:
            self._note(op)
        values = {value: outside[value] for op in work for value in op.results}
        gone = set(work)
        kept = [op for op in region.ops if op not in gone]
        needed = _list_needed(kept, region.results)
        ops = tuple(clone_op(op, values) for op in kept if op not in wanted or op in needed)
        return front, Region(region.args, ops, tuple(values.get(value, value) for value in region.results))


def _carried_unchanged(op: Op) -> list[int]:
    """The operands of a loop that every iteration passes on unchanged."""
    if op.name != "stablehlo.while":
        return []
    body = op.regions[1]
    same = [result is arg for result, arg in zip(body.results, body.args, strict=True)]
    return [i for i, arg in enumerate(body.args) if same[i] and arg.type == op.operands[i].type]


def _invariant(region: Region, within: set[Value] | None) -> dict[Op, None]:
    """The invariant ops of a region: they depend on nothing inside it but each other."""
    inside = {*region.args, *(value for op in region.ops for value in op.results)}
    free: dict[Op, None] = {}
    for op in region.ops:
        used = set(used_values(op))
        apart = not used & inside if within is None else used <= within
        if apart and _is_safe(op):
            free[op] = None
            inside -= set(op.results)
            within = within if within is None else within | set(op.results)
    return free


def _is_safe(op: Op) -> bool:
    """Whether an op may run speculatively: it has no effect, cannot fail and terminates."""
    return op.name not in CONTROL and not op.name.startswith(DYNAMIC) and not has_effect(op)


def _with_producers(work: Iterable[Op], free: dict[Op, None]) -> set[Op]:
    """The ops and their invariant producers."""
    wanted: set[Op] = set()
    stack = list(work)
    while stack:
        op = stack.pop()
        if op not in wanted:
            wanted.add(op)
            stack += [value.op for value in used_values(op) if value.op is not None and value.op in free]
    return wanted


def _list_needed(ops: Sequence[Op], results: Sequence[Value]) -> set[Op]:
    """The ops that results or ops with effects depend on."""
    live = set(results)
    needed: set[Op] = set()
    for op in reversed(ops):
        if has_effect(op) or any(value in live for value in op.results):
            needed.add(op)
            live.update(used_values(op))
    return needed
