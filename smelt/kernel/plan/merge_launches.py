"""Merge adjacent, independent short maps into one kernel: on a GPU each would take less time than its launch.

Plan → plan, for targets of kind `simt`. Called by `engine.compile` between `in_place` and `memory`: the memory of a
merged launch is planned for all of its buffers at once. Each element is computed as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from smelt.dtype import i1, i64
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    Expr,
    For,
    If,
    Let,
    Load,
    Number,
    Stmt,
    Store,
    Var,
    add,
    rebuild,
    rebuild_expr,
)
from smelt.kernel.loops.simt import flatten_map
from smelt.kernel.plan.plan import Branch, Kernel, Launch, Plan, Repeat, Step

MOST = 1 << 18  # iterations of a merged kernel: longer maps are worth a launch


def merge_launches(plan: Plan) -> Plan:
    """The plan with fewer launches."""
    return plan.replace(steps=_merge_steps(plan.steps))


def _merge_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    done: list[Step] = []
    run: list[Launch] = []
    for step in (*map(_merge_inside, steps), None):
        if isinstance(step, Launch) and _fits(run, step):
            run.append(step)
            continue
        done += [_merge(run)] if run else []
        run = [step] if isinstance(step, Launch) else []
        done += [step] if step is not None and not run else []
    return tuple(done)


def _merge_inside(step: Step) -> Step:
    match step:
        case Repeat(head, _, body):
            return step.replace(head=_merge_steps(head), body=_merge_steps(body))
        case Branch(_, branches):
            return step.replace(branches=tuple(map(_merge_steps, branches)))
    return step


@dataclass(frozen=True, slots=True)
class _Map:
    """A kernel of scalars: what each of its iterations runs."""

    var: Var
    extent: int
    body: tuple[Stmt, ...]


@cache
def _map_of(kernel: Kernel) -> _Map | None:
    """The map that a kernel is, if it is a short one."""
    if len(kernel.phases) != 1 or kernel.variants:
        return None
    flat = flatten_map(kernel)
    if flat is None:
        return None
    body, var, extent = flat
    size = extent.size if isinstance(extent, Amount) else None
    return _Map(var, size, body) if isinstance(size, int) and size <= MOST else None


def _fits(run: Sequence[Launch], step: Launch) -> bool:
    """Whether a launch may run at the same time as others."""
    found = [_map_of(each.kernel) for each in (*run, step)]
    if not run or None in found or sum(each.extent for each in found if each) > MOST:
        return False
    apart = (not {*a.writes} & {*b.buffers} for other in run for a, b in ((other, step), (step, other)))
    return all(apart)


def _merge(run: Sequence[Launch]) -> Launch:
    if len(run) == 1:
        return run[0]
    buffers = tuple(dict.fromkeys(buffer for each in run for buffer in each.buffers))
    maps = [found for each in run if (found := _map_of(each.kernel)) is not None]
    total = sum(each.extent for each in maps)
    at = Var("at_merged", i64, total)
    body: tuple[Stmt, ...] = ()
    first = total
    for launch, each in zip(reversed(run), reversed(maps), strict=True):
        first -= each.extent
        numbers = [buffers.index(buffer) for buffer in launch.buffers]
        own = (Let(each.var, add(at, -first)), *_renumber(each.body, numbers))
        last = first + each.extent == total
        body = own if last else (If(Apply("LT", (at, Number(first + each.extent)), i1), own, body),)
    loop = For(at, Amount(total), body, "core")
    ops = tuple(dict.fromkeys(name for each in run for name in each.kernel.ops))
    return Launch(
        Kernel("map", (loop,), len(buffers), ops),
        buffers,
        tuple(dict.fromkeys(buffer for each in run for buffer in each.writes)),
        tuple(op for each in run for op in each.covers),
        tuple(dict.fromkeys(buffer for each in run for buffer in each.updates)),
    )


def _renumber(body: Sequence[Stmt], numbers: Sequence[int]) -> tuple[Stmt, ...]:
    """Statements with other numbers of buffers."""

    def expr(each: Expr) -> Expr:
        changed = rebuild_expr(each, expr)
        if isinstance(changed, Load) and isinstance(changed.place.array, int):
            return changed.replace(place=changed.place.replace(array=numbers[changed.place.array]))
        return changed

    def block(statements: tuple[Stmt, ...]) -> tuple[Stmt, ...]:
        return _renumber(statements, numbers)

    def one(statement: Stmt) -> Stmt:
        changed = rebuild(statement, block, expr)
        if isinstance(changed, Store) and isinstance(changed.place.array, int):
            return changed.replace(place=changed.place.replace(array=numbers[changed.place.array]))
        return changed

    return tuple(map(one, body))
