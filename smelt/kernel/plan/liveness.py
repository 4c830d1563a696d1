"""Liveness analysis: the buffers of a plan that are live after each step.

`Liveness.of(plan)` walks loops and branches once, backwards. Used by `in_place` to merge buffers and by `memory` to
share slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import and_

from smelt.frozen import Frozen
from smelt.kernel.plan.plan import Branch, Copy, Launch, Measure, Plan, Repeat, Require, Step, walk

Set = int  # of buffers: bit i stands for buffer i


class Leaf(Frozen):
    """A step without inner steps: its position in `plan.walk`, its loop depth, and the buffers that are live after
    it."""

    position: int
    depth: int
    step: Step
    after: Set


def set_of(buffers: Sequence[int]) -> Set:
    found = 0
    for i in buffers:
        found |= 1 << i
    return found


def members(buffers: Set) -> list[int]:
    """The numbers in a set."""
    found = []
    while buffers:
        low = buffers & -buffers
        found.append(low.bit_length() - 1)
        buffers ^= low
    return found


def read_by(step: Step) -> Set:
    """The buffers that a step reads; of a loop or a branch, only its flag or selector."""
    match step:
        case Launch() | Copy():
            return set_of(step.reads)
        case Require(flags, _, numbers):
            return set_of((flags, *numbers))
        case Measure(_, int(source)):
            return 1 << source
        case Repeat(_, flag, _):
            return 1 << flag
        case Branch(selector, _):
            return 1 << selector
    return 0


def written_by(step: Step) -> tuple[int, ...]:
    """The buffers that a step without inner steps writes."""
    return step.writes if isinstance(step, Launch | Copy) else ()


class _Effect(Frozen):
    """The transfer function of steps: live before = needs | (live after & ~replaces)."""

    needs: Set = 0
    replaces: Set = 0

    def before(self, after: Set) -> Set:
        return self.needs | (after & ~self.replaces)


@dataclass(slots=True)
class Liveness:
    """The leaves of a plan in order."""

    leaves: list[Leaf] = field(default_factory=list)
    _effects: dict[int, _Effect] = field(default_factory=dict)  # of loops and branches, by identity
    _position: int = 0

    @staticmethod
    def of(plan: Plan) -> Liveness:
        made = Liveness(_position=sum(1 for _ in walk(plan.steps)))
        made._effect(plan.steps)
        results = set_of([i for i, buffer in enumerate(plan.buffers) if buffer.kind == "result"])
        made._visit(plan.steps, results, 0)
        made.leaves.reverse()
        return made

    def _effect(self, steps: Sequence[Step]) -> _Effect:
        """The effect of a list of steps; visits every loop and branch once."""
        needs = replaces = 0
        for step in reversed(steps):
            each = self._effect_of(step)
            needs = each.before(needs)
            replaces |= each.replaces
        return _Effect(needs, replaces)

    def _effect_of(self, step: Step) -> _Effect:
        match step:
            case Repeat(head, _, body):
                first, iteration = self._effect(head), self._effect(body)
                found = _Effect(
                    first.before(read_by(step) | iteration.needs), first.replaces
                )  # the body may have no iteration
            case Branch(_, branches):
                parts = [self._effect(branch) for branch in branches]
                needs = read_by(step)
                for part in parts:
                    needs |= part.needs
                found = _Effect(needs, reduce(and_, (part.replaces for part in parts)))
            case _:
                return _Effect(read_by(step), set_of(written_by(step)))
        self._effects[id(step)] = found
        return found

    def _visit(self, steps: Sequence[Step], after: Set, depth: int) -> Set:
        """Record the leaves of a list, the last one first; returns what is live before it."""
        for step in reversed(steps):
            match step:
                case Repeat(head, _, body):
                    again = self._effects[id(step)].before(after)
                    inside = self._visit(body, again, depth + 1)
                    self._visit(head, after | inside | read_by(step), depth + 1)
                    after = again
                case Branch(_, branches):
                    before = read_by(step)
                    for branch in reversed(branches):
                        before |= self._visit(branch, after, depth)
                    after = before
            self._position -= 1
            if not isinstance(step, Repeat | Branch):
                self.leaves.append(Leaf(self._position, depth, step, after))
                after = _Effect(read_by(step), set_of(written_by(step))).before(after)
        return after
