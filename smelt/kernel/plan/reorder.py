"""The order of a plan's steps, for less memory: `fuse` keeps that of the program, `reorder` runs short branches first.

The last steps of a plan (those that nothing reads) are visited by the number of steps that they need. So the gradient
of a weight is computed when the backward pass has reached its layer, and the activations that it needs die there.
Called by `engine.compile` before `in_place`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import evaluate, symbols
from smelt.kernel.plan.liveness import Set, members
from smelt.kernel.plan.memory import SAMPLE, is_clearly_less, lifetimes
from smelt.kernel.plan.plan import Copy, Ensure, Launch, Measure, Plan, Require, Step, touched_buffers, walk


def reorder(plan: Plan) -> Plan:
    """The plan with another order of steps, if that needs clearly less memory; steps that check or measure stay."""
    if any(isinstance(step, Ensure | Measure | Require) for step in walk(plan.steps)) or len(plan.steps) < 3:
        return plan
    order = _short_branches_first(plan)
    if order == list(range(len(plan.steps))):
        return plan
    changed = plan.replace(steps=tuple(plan.steps[i] for i in order))
    return changed if is_clearly_less(peak(changed), peak(plan)) else plan


def peak(plan: Plan) -> int:
    """The most bytes of temporaries that are live at once, for sample sizes."""
    changes: dict[int, int] = {}
    for i, (begin, end) in lifetimes(plan).items():
        size = plan.buffers[i].bytes
        number = evaluate(size, dict.fromkeys(symbols(size), SAMPLE))
        changes[begin] = changes.get(begin, 0) + number
        changes[end + 1] = changes.get(end + 1, 0) - number
    live = most = 0
    for moment in sorted(changes):
        live += changes[moment]
        most = max(most, live)
    return most


def _short_branches_first(plan: Plan) -> list[int]:
    needs = _dependencies(plan)
    needed = 0
    closure: list[Set] = []  # the steps that each step needs, and what those need
    for own in needs:
        all_of_them = own
        for i in members(own):
            all_of_them |= closure[i]
        closure.append(all_of_them)
        needed |= own
    last = [i for i in range(len(needs)) if not needed >> i & 1]
    order: list[int] = []
    done: Set = 0
    for i in sorted(last, key=lambda i: closure[i].bit_count()):
        fresh = (closure[i] | 1 << i) & ~done
        order += members(fresh)
        done |= fresh
    return order


def _dependencies(plan: Plan) -> list[Set]:
    """For each step the earlier ones that must be done: those that write what it reads, and those that read or write
    what it overwrites. A result may take the memory of a donated argument, so it waits for the argument's readers.
    """
    donated = {i for i, buffer in enumerate(plan.buffers) if buffer.kind == "argument" and buffer.index in plan.donated}
    readers: dict[int, Set] = {}
    writers: dict[int, Set] = {}
    found: list[Set] = []
    for number, step in enumerate(plan.steps):
        reads, writes = _accesses(step)
        needs: Set = 0
        for buffer in reads:
            needs |= writers.get(buffer, 0)
        for buffer in writes:
            needs |= writers.get(buffer, 0) | readers.get(buffer, 0)
        if any(plan.buffers[buffer].kind == "result" for buffer in writes):
            for buffer in donated.intersection(reads):
                needs |= readers.get(buffer, 0)
        for buffer in reads:
            readers[buffer] = readers.get(buffer, 0) | 1 << number
        for buffer in writes:
            writers[buffer] = writers.get(buffer, 0) | 1 << number
        found.append(needs)
    return found


def _accesses(step: Step) -> tuple[Sequence[int], Sequence[int]]:
    """The buffers that a step reads and writes; those of a loop or a branch count as both."""
    if isinstance(step, Launch | Copy):
        return step.reads, step.writes
    both = tuple(dict.fromkeys(touched_buffers(step)))
    return both, both
