"""Memory: which temporaries of a plan share a slot, decided before anything runs.

Buffers whose lives do not meet may share. A slot is as large as the largest of its tenants, for any sizes; offsets are
running sums of slots, evaluated when a program is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from smelt.dim import Size, ceildiv, evaluate, symbols
from smelt.kernel.loop import Expr, Store, loads
from smelt.kernel.nest import everything, expressions
from smelt.kernel.plan import Branch, Copy, Kernel, Launch, Measure, Plan, Repeat, Require, Step, touched, walk

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
    lives = {i: life for i, life in lifetimes(plan).items() if not plan.is_late(*plan.buffers[i].shape.sizes)}
    slots: list[dict[Size, None]] = []
    free: list[int] = []  # the position after which a slot is free
    homes: dict[int, int] = {}
    taken_over = in_place(plan)
    for i in sorted(lives, key=lambda i: lives[i][0]):
        begin, end = lives[i]
        size = ceildiv(plan.buffers[i].bytes, ALIGN) * ALIGN
        wanted = _guess(size)
        ending = {homes[each] for each in taken_over.get(i, ()) if each in homes and lives[each][1] == begin}
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


def in_place(plan: Plan) -> dict[int, tuple[int, ...]]:
    """For results of kernels: the operands that may lie in the same memory, each element read just before it is
    written over."""
    found: dict[int, tuple[int, ...]] = {}
    for step in walk(plan.steps):
        if isinstance(step, Launch) and len(step.writes) == 1:
            (target,) = step.writes
            if target not in step.buffers:
                continue  # there is no element to write
            sizes = plan.buffers[target].shape
            alike = (
                i
                for i in alone(step.kernel, step.buffers.index(target))
                if plan.buffers[step.buffers[i]].bytes == plan.buffers[target].bytes
                and plan.buffers[step.buffers[i]].shape.dtype.numpy.itemsize == sizes.dtype.numpy.itemsize
            )
            found[target] = tuple(step.buffers[i] for i in alike)
    return found


@cache
def alone(kernel: Kernel, target: int) -> tuple[int, ...]:
    """The buffers of a kernel that are read only where the same element of `target` is written."""
    if kernel.kind != "map":
        return ()
    places: dict[int, set[Expr]] = {}
    stores: set[Expr] = set()
    for statement in everything(kernel.body):
        if isinstance(statement, Store):
            if statement.buffer != target:
                return ()
            stores.add(statement.index)
        for expr in expressions(statement):
            for load in loads(expr):
                places.setdefault(load.buffer, set()).add(load.index)
    if len(stores) != 1:
        return ()
    return tuple(i for i, read in places.items() if read == stores)


def _guess(size: Size) -> int:
    return evaluate(size, dict.fromkeys(symbols(size), SAMPLE))


def lifetimes(plan: Plan) -> dict[int, tuple[int, int]]:
    """First and last position of each temporary in the steps, loops unrolled once.

    What a loop shares with what is around it, or with its own next turn, lives through the whole loop.
    """
    lives: dict[int, tuple[int, int]] = {}
    position = 0

    def live(i: int, begin: int, end: int) -> None:
        if plan.buffers[i].kind == "temporary":
            old = lives.get(i, (begin, end))
            lives[i] = (min(old[0], begin), max(old[1], end))

    def visit(steps: tuple[Step, ...]) -> None:
        nonlocal position
        for step in steps:
            position += 1
            begin = position
            match step:
                case Repeat(head, flag, body):
                    visit(head)
                    live(flag, position, position)
                    visit(body)
                    position += 1
                    for i in set(touched(step)):
                        if i in lives and (lives[i][0] < begin or _carried(step, i)):
                            live(i, begin, position)
                case Branch(selector, branches):
                    live(selector, begin, begin)
                    for branch in branches:
                        visit(branch)
                case _:
                    for i in touched(step):
                        live(i, begin, begin)

    visit(plan.steps)
    return lives


def _carried(loop: Repeat, buffer: int) -> bool:
    """Whether a buffer's content passes from one turn of a loop to the next: it is read before it is written."""
    for step in (*loop.head, *loop.body):
        match step:
            case Launch(_, buffers, writes):
                if buffer in buffers:
                    return buffer not in writes
            case Copy(source, target):
                if buffer in (source, target):
                    return buffer == source
            case Repeat() | Branch():
                if buffer in set(touched(step)):
                    return True
            case Require():
                if buffer in touched(step):
                    return True
            case Measure(_, source):
                if source == buffer:
                    return True
    return False
