"""Memory: which temporaries of a plan share a slot, decided before anything runs.

Buffers whose lives do not meet may share. A slot is as large as the largest of its tenants, for any sizes; offsets are
running sums of slots, evaluated when a program is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.dim import Size, ceildiv, evaluate, symbols
from smelt.kernel.plan.in_place import shared_with
from smelt.kernel.plan.liveness import Liveness, Set, members, set_of
from smelt.kernel.plan.plan import Launch, Plan, touched, walk

ALIGN = 64
SAMPLE = 100  # what an open size is taken for when slots are compared


@dataclass(frozen=True, slots=True)
class Memory:
    """The slots, each with the bytes of its tenants; the slot of each temporary, by its number in the plan."""

    slots: tuple[tuple[Size, ...], ...]
    homes: Mapping[int, int]
    scratch: Size = 0  # bytes per worker

    def peak(self, values: Mapping[str, int]) -> int:
        """The bytes of all slots, for given sizes."""
        return sum(max(evaluate(size, values) for size in slot) for slot in self.slots)


def assign(plan: Plan) -> Memory:
    lives = {i: life for i, life in lifetimes(plan).items() if not plan.is_deferred(*plan.buffers[i].shape.sizes)}
    slots: list[dict[Size, None]] = []
    free: list[int] = []  # the position after which a slot is free
    homes: dict[int, int] = {}
    before = taken_over(plan)
    for i in sorted(lives, key=lambda i: lives[i][0]):
        begin, end = lives[i]
        size = ceildiv(plan.buffers[i].bytes, ALIGN) * ALIGN
        wanted = _guess(size)
        ending = {homes[each] for each in before.get(i, ()) if each in homes and lives[each][1] == begin}
        fits = [k for k in range(len(slots)) if free[k] < begin or (k in ending and free[k] == begin)]
        best = min(fits, key=lambda k: (abs(max(map(_guess, slots[k])) - wanted), k not in ending, k), default=None)
        if best is None:
            best = len(slots)
            slots.append({})
            free.append(end)
        slots[best][size] = None
        free[best] = end
        homes[i] = best
    return Memory(tuple(_largest(slot) for slot in slots), homes)


def _largest(sizes: Mapping[Size, None]) -> tuple[Size, ...]:
    """The sizes that may be the largest: one number at most."""
    numbers = [size for size in sizes if isinstance(size, int)]
    return (*(size for size in sizes if not isinstance(size, int)), *([max(numbers)] if numbers else []))


def taken_over(plan: Plan) -> dict[int, tuple[int, ...]]:
    """For results of kernels: the operands that may lie in the same memory, each element read just before it is
    written over."""
    found: dict[int, tuple[int, ...]] = {}
    for step in walk(plan.steps):
        if isinstance(step, Launch) and len(step.writes) == 1:
            found[step.writes[0]] = shared_with(plan, step, step.writes[0])
    return found


def _guess(size: Size) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), SAMPLE))


def lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """First and last moment of each temporary: step p happens at 2 p, what is needed after it lives at 2 p + 1.

    What a loop shares with what is around it, or with its own next turn, lives through the whole loop.
    """
    temporary = set_of([i for i, buffer in enumerate(plan.buffers) if buffer.kind == "temporary"])
    lives: dict[int, tuple[int, int]] = {}
    alive = 0
    moment = 0

    def become(now: Set, then: int) -> None:
        nonlocal alive, moment
        for i in members(alive & ~now):
            lives[i] = (lives[i][0], moment)
        for i in members(now & ~alive):
            lives.setdefault(i, (then, then))
        alive, moment = now, then

    for leaf in Liveness.of(plan).leaves:
        become((set_of(tuple(touched(leaf.step))) | leaf.after) & temporary, 2 * leaf.position)
        become(leaf.after & temporary, 2 * leaf.position + 1)
    become(0, moment)
    return lives
