"""Merge independent short maps into one kernel: on a GPU each would take less time than its launch.

A map joins the first of the launches in front of it that it may run beside; those in between do not depend on it.
Plan → plan, for targets of kind `simt`. Called by `engine.compile` between `in_place` and `memory`: the memory of a
merged launch is planned for all of its buffers at once. Each element is computed as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from smelt.dim import Size
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
    static_extent,
)
from smelt.kernel.loops.simt import flatten_map
from smelt.kernel.plan.plan import Branch, Kernel, Launch, Plan, Repeat, Step

MOST = 1 << 18  # iterations of a merged kernel: longer maps are worth a launch. Dynamic ones may be short
REACH = 6  # launches in front of a map that it may join


def merge_launches(plan: Plan) -> Plan:
    """The plan with fewer launches."""
    return plan.replace(steps=_merge_steps(plan.steps))


def _merge_steps(steps: Sequence[Step]) -> tuple[Step, ...]:
    done: list[Step | list[Launch]] = []  # a list: launches that become one
    for step in map(_merge_inside, steps):
        run = _find_run(done, step) if isinstance(step, Launch) else None
        if run is not None and isinstance(step, Launch):
            run.append(step)
        else:
            done.append([step] if isinstance(step, Launch) else step)
    return tuple(_merge(each) if isinstance(each, list) else each for each in done)


def _find_run(done: Sequence[Step | list[Launch]], step: Launch) -> list[Launch] | None:
    """The first of the last runs that a launch fits, if those after it are apart from it."""
    found = None
    for run in reversed(done[-REACH:]):
        if not isinstance(run, list) or not all(_are_apart(each, step) for each in run):
            break
        found = run if _fits(run, step) else found
    return found


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
    extent: Size
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
    size = static_extent(extent)
    return None if size is None or (isinstance(size, int) and size > MOST) else _Map(var, size, body)


def _fits(run: Sequence[Launch], step: Launch) -> bool:
    """Whether a launch and others, which are apart from it, are short maps."""
    found = [_map_of(each.kernel) for each in (*run, step)]
    static = (each.extent for each in found if each is not None and isinstance(each.extent, int))
    return None not in found and sum(static) <= MOST


def _are_apart(one: Launch, other: Launch) -> bool:
    """Whether launches may run at the same time."""
    return all(not {*a.writes} & {*b.buffers} for a, b in ((one, other), (other, one)))


def _merge(run: Sequence[Launch]) -> Launch:
    if len(run) == 1:
        return run[0]
    buffers = tuple(dict.fromkeys(buffer for each in run for buffer in each.buffers))
    maps = [found for each in run if (found := _map_of(each.kernel)) is not None]
    total = maps[0].extent
    for each in maps[1:]:
        total = total + each.extent
    at = Var("at_merged", i64, total)
    body: tuple[Stmt, ...] = ()
    first = total
    for launch, each in zip(reversed(run), reversed(maps), strict=True):
        first = first - each.extent
        numbers = [buffers.index(buffer) for buffer in launch.buffers]
        own = (Let(each.var, add(at, -first)), *_renumber(each.body, numbers))
        end = first + each.extent
        bound = Number(end) if isinstance(end, int) else Amount(end)
        body = (If(Apply("LT", (at, bound), i1), own, body),) if body else own
    (phase,) = run[0].kernel.phases
    assert phase.loop is not None
    loop = For(at, Amount(total), body, "core", phase.loop.chunks)
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
