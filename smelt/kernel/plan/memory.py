"""Memory planning: temporaries of a plan share slots of the arena, decided at compile time.

Buffers with disjoint lifetimes may share. A slot is as large as the largest of its buffers, for any sizes; offsets are
prefix sums of slots, evaluated when a program is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.dim import Size, ceildiv, evaluate, symbols
from smelt.frozen import Frozen
from smelt.kernel.plan.in_place import overwritable_by
from smelt.kernel.plan.liveness import Liveness, Set, members, set_of
from smelt.kernel.plan.plan import Launch, Plan, touched_buffers, walk

ALIGN = 64
SAMPLE = 100  # value of a dynamic dimension when slots are compared
GAIN, LEAST = 0.1, 1 << 25  # part of the memory and bytes: less is no reason to leave the usual order

Lives = Mapping[int, tuple[int, int]]  # first and last moment of each temporary


class Memory(Frozen):
    """The slots, each with the bytes of its buffers, and the slot of each temporary."""

    slots: tuple[tuple[Size, ...], ...]
    slot_of: Mapping[int, int]
    scratch: Size = 0  # bytes per worker

    def peak(self, values: Mapping[str, int]) -> int:
        """The bytes of all slots, for given sizes."""
        return sum(max(evaluate(size, values) for size in slot) for slot in self.slots)


def assign_slots(plan: Plan) -> Memory:
    """Slots by first use; by size, if that needs clearly less memory."""
    lives = {i: life for i, life in lifetimes(plan).items() if not plan.is_deferred(*plan.buffers[i].shape.sizes)}
    sizes = {i: ceildiv(plan.buffers[i].bytes, ALIGN) * ALIGN for i in lives}
    before = overwritable_operands(plan)
    usual, packed = (assign(lives, sizes, before) for assign in (_by_first_use, _by_size))
    return packed if is_clearly_less(_guess_peak(packed), _guess_peak(usual)) else usual


def is_clearly_less(changed: int, usual: int) -> bool:
    """Whether another order of steps or slots saves enough bytes to be worth it."""
    return changed < (1 - GAIN) * usual and changed < usual - LEAST


def _by_first_use(lives: Lives, sizes: Mapping[int, Size], before: Mapping[int, Sequence[int]]) -> Memory:
    """Each buffer, when it begins to live, takes the free slot that is nearest in size."""
    slots: list[dict[Size, None]] = []
    free: list[int] = []  # the position after which a slot is free
    slot_of: dict[int, int] = {}
    for i in sorted(lives, key=lambda i: lives[i][0]):
        begin, end = lives[i]
        wanted = _guess(sizes[i])
        ending = {slot_of[each] for each in before.get(i, ()) if each in slot_of and lives[each][1] == begin}
        fits = [k for k in range(len(slots)) if free[k] < begin or (k in ending and free[k] == begin)]
        best = min(fits, key=lambda k: (abs(max(map(_guess, slots[k])) - wanted), k not in ending, k), default=None)
        if best is None:
            best = len(slots)
            slots.append({})
            free.append(end)
        slots[best][sizes[i]] = None
        free[best] = end
        slot_of[i] = best
    return Memory(tuple(_largest(slot) for slot in slots), slot_of)


def _by_size(lives: Lives, sizes: Mapping[int, Size], before: Mapping[int, Sequence[int]]) -> Memory:
    """The largest buffers first: each takes the first slot that is free while it lives, so small buffers fill gaps."""
    slots: list[dict[Size, None]] = []
    held: list[list[int]] = []
    slot_of: dict[int, int] = {}

    def follows(i: int, j: int) -> bool:
        """Whether buffer j begins after buffer i ends, or takes its place."""
        return lives[i][1] < lives[j][0] or (lives[i][1] == lives[j][0] and i in before.get(j, ()))

    for i in sorted(lives, key=lambda i: (-_guess(sizes[i]), lives[i])):
        free = (k for k, others in enumerate(held) if all(follows(i, j) or follows(j, i) for j in others))
        best = next(free, len(slots))
        if best == len(slots):
            slots.append({})
            held.append([])
        slots[best][sizes[i]] = None
        held[best].append(i)
        slot_of[i] = best
    return Memory(tuple(_largest(slot) for slot in slots), slot_of)


def _guess_peak(memory: Memory) -> int:
    return sum(max(map(_guess, slot)) for slot in memory.slots)


def _largest(sizes: Mapping[Size, None]) -> tuple[Size, ...]:
    """The sizes that may be the largest; at most one of them is a number."""
    numbers = [size for size in sizes if isinstance(size, int)]
    return (*(size for size in sizes if not isinstance(size, int)), *([max(numbers)] if numbers else []))


def overwritable_operands(plan: Plan) -> dict[int, tuple[int, ...]]:
    """For results of kernels: the operands that may share memory, each element read just before it is overwritten."""
    found: dict[int, tuple[int, ...]] = {}
    for step in walk(plan.steps):
        if isinstance(step, Launch) and len(step.writes) == 1:
            found[step.writes[0]] = overwritable_by(plan, step, step.writes[0])
    return found


def _guess(size: Size) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), SAMPLE))


def lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """First and last moment of each temporary: step p is at 2 p, buffers that are live after it at 2 p + 1.

    Buffers that a loop shares with its surroundings, or with its next iteration, live through the whole loop.
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
        become((set_of(tuple(touched_buffers(leaf.step))) | leaf.after) & temporary, 2 * leaf.position)
        become(leaf.after & temporary, 2 * leaf.position + 1)
    become(0, moment)
    return lives
