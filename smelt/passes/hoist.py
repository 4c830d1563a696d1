"""Hoist: what a loop computes anew in every turn from values that do not change moves in front of it.

Programs come in and go out; called by `pipeline` after `pack`, so that `split_prepare` finds the packing of a recurrent
weight outside of the loop. Out of a branch moves only what depends on weights alone: that runs once, whichever is
taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.ir.clone import clone_op
from smelt.ir.core import Func, Op, Program, Region, Value, captured, walk
from smelt.ir.rewrite import has_effect
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

# Ops that read their operands many times or walk them in an order of their own: worth a result in memory.
WORK = frozenset(
    {
        *("smelt.pack", "smelt.packed_dot", "smelt.packed_conv", "smelt.channel_conv", "smelt.winograd_conv"),
        *("smelt.pack_quads", "smelt.packed_qdot", "smelt.packed_qconv"),
        *("smelt.pack_pairs", "smelt.packed_pdot", "smelt.packed_pconv"),
        *(
            f"stablehlo.{name}"
            for name in ("dot_general", "convolution", "reduce", "reduce_window", "sort", "fft", "cholesky")
        ),
    }
)
BRANCHES = frozenset({"stablehlo.if", "stablehlo.case"})
CONTROL = BRANCHES | {"stablehlo.while"}
# Ops that may fail when they run, or give what only data tells.
DYNAMIC = ("stablehlo.dynamic_", "stablehlo.real_dynamic_", "stablehlo.set_dimension_size", "stablehlo.rng")


def hoist(program: Program) -> Program:
    changed = [_hoisted(func) for func in program.funcs.values() if _has_work(func)]
    return program.replace(*changed) if changed else program


def _has_work(func: Func) -> bool:
    """Whether there is something inside a loop or a branch that may be worth moving."""
    outer = (op for op in walk(func.body) if op.name in CONTROL)
    return any(inner.name in WORK for op in outer for region in op.regions for inner in walk(region))


def _hoisted(func: Func) -> Func:
    moving = _Moving()
    moving.fixed.update(arg for arg, attrs in zip(func.args, func.arg_attrs, strict=True) if WEIGHT in attrs)
    values: dict[Value, Value] = {}
    ops = moving.ops(func.body.ops, values)
    body = Region(func.args, tuple(ops), tuple(values.get(value, value) for value in func.body.results))
    return Func(func.name, body, func.visibility, func.arg_attrs, func.result_attrs, func.attrs, func.location)


class _Moving:
    """Ops written anew, from the inside to the outside."""

    def __init__(self) -> None:
        self.fixed: set[Value] = set()  # what depends on weights and constants alone

    def ops(self, ops: Sequence[Op], values: dict[Value, Value]) -> list[Op]:
        """Copies of ops, those in front that move out of their regions; `values` as for `clone_op`."""
        made: list[Op] = []
        for op in ops:
            if not op.regions:
                made.append(clone_op(op, values))
            else:
                made += self._opened(op, values)
            self._note(made[-1])
        return made

    def _note(self, op: Op) -> None:
        known = all(value in self.fixed for value in (*op.operands, *captured(op)))
        if known and _is_plain(op) and all(isinstance(each.type, Shape) and each.type.is_static for each in op.results):
            self.fixed.update(op.results)

    def _opened(self, op: Op, values: dict[Value, Value]) -> list[Op]:
        """An op with regions, after what moves out of them."""
        regions = []
        for region in op.regions:
            args = tuple(Value(arg.type, None, arg.index, arg.name) for arg in region.args)
            own = dict(zip(region.args, args, strict=True))
            values |= own
            values |= {region.args[i]: values.get(op.operands[i], op.operands[i]) for i in _carried_unchanged(op)}
            inner = tuple(self.ops(region.ops, values))
            results = tuple(own.get(value) or values.get(value, value) for value in region.results)
            regions.append(Region(args, inner, results))
        front: list[Op] = []
        if op.name == "stablehlo.while":
            front, regions[1] = self._moved(regions[1], within=None)
        elif op.name in BRANCHES:
            for i, region in enumerate(regions):
                more, regions[i] = self._moved(region, within=self.fixed)
                front += more
        operands = [values.get(operand, operand) for operand in op.operands]
        types, names = [each.type for each in op.results], [each.name for each in op.results]
        new = Op(op.name, operands, types, op.attrs, regions, op.location, names)
        values.update(zip(op.results, new.results, strict=True))
        return [*front, new]

    def _moved(self, region: Region, within: set[Value] | None) -> tuple[list[Op], Region]:
        """The ops that move out of a region, and what is left of it. `within`: what they may depend on, if not all."""
        free = _free(region, within)
        work = [op for op in free if op.name in WORK]
        if not work:
            return [], region
        wanted = _backwards(work, free)
        outside: dict[Value, Value] = {}
        front = [clone_op(op, outside) for op in free if op in wanted]
        for op in front:
            self._note(op)
        values = {value: outside[value] for op in work for value in op.results}
        gone = set(work)
        kept = [op for op in region.ops if op not in gone]
        needed = _needed(kept, region.results)
        ops = tuple(clone_op(op, values) for op in kept if op not in wanted or op in needed)
        return front, Region(region.args, ops, tuple(values.get(value, value) for value in region.results))


def _carried_unchanged(op: Op) -> list[int]:
    """The operands of a loop that every turn hands on as they are."""
    if op.name != "stablehlo.while":
        return []
    body = op.regions[1]
    same = [result is arg for result, arg in zip(body.results, body.args, strict=True)]
    return [i for i, arg in enumerate(body.args) if same[i] and arg.type == op.operands[i].type]


def _free(region: Region, within: set[Value] | None) -> dict[Op, None]:
    """The ops of a region that depend on nothing inside it but each other."""
    inside = {*region.args, *(value for op in region.ops for value in op.results)}
    free: dict[Op, None] = {}
    for op in region.ops:
        used = {*op.operands, *captured(op)}
        apart = not used & inside if within is None else used <= within
        if apart and _is_plain(op):
            free[op] = None
            inside -= set(op.results)
            within = within if within is None else within | set(op.results)
    return free


def _is_plain(op: Op) -> bool:
    """Whether an op can run where its results may not be wanted: it has no effect, does not fail and ends."""
    return op.name not in CONTROL and not op.name.startswith(DYNAMIC) and not has_effect(op)


def _backwards(work: Iterable[Op], free: dict[Op, None]) -> set[Op]:
    """Ops, and those they need that can come with them."""
    wanted: set[Op] = set()
    stack = list(work)
    while stack:
        op = stack.pop()
        if op not in wanted:
            wanted.add(op)
            stack += [value.op for value in (*op.operands, *captured(op)) if value.op is not None and value.op in free]
    return wanted


def _needed(ops: Sequence[Op], results: Sequence[Value]) -> set[Op]:
    """The ops that results or ops with effects depend on."""
    live = set(results)
    needed: set[Op] = set()
    for op in reversed(ops):
        if has_effect(op) or any(value in live for value in op.results):
            needed.add(op)
            live.update((*op.operands, *captured(op)))
    return needed
