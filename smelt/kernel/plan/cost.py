"""Cost of a step at given sizes: arithmetic operations and bytes of memory traffic. Called by the profiler.

Arithmetic is that of the ops that a kernel covers (`ir.cost`), so recomputation and padding do not count. Bytes: each
buffer once, or only the elements that the loops can touch where these are fewer (a row of a table).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from smelt.dim import Size, evaluate, symbols
from smelt.ir.core import Program
from smelt.ir.cost import op_operations
from smelt.kernel.loops.cost import Accesses
from smelt.kernel.plan.plan import Copy, Launch, Plan


@dataclass(frozen=True, slots=True)
class Cost:
    """Arithmetic operations and bytes of one run of a step; None: the sizes are not known."""

    operations: int | None
    bytes: int | None


def step_cost(step: Launch | Copy, plan: Plan, program: Program, sizes: Mapping[str, int]) -> Cost:
    """The cost of one run of a step. A launch must list its ops (`fuse(…, keep_ops=True)`)."""
    if isinstance(step, Copy):
        moved = _number(plan.buffers[step.target].bytes, sizes)
        return Cost(0, None if moved is None else 2 * moved)
    counts = [_number(op_operations(op, program), sizes) for op in step.covers]
    known = [count for count in counts if count is not None]
    return Cost(sum(known) if len(known) == len(counts) else None, _count_moved(step, plan, sizes))


def _count_moved(launch: Launch, plan: Plan, sizes: Mapping[str, int]) -> int | None:
    found = Accesses(lambda size: _number(size, sizes))
    found.block(launch.kernel.body, 1)
    total = 0.0
    for i, number in enumerate(launch.buffers):
        buffer = plan.buffers[number]
        size = _number(buffer.bytes, sizes)
        if size is None:
            return None
        element = buffer.shape.dtype.numpy.itemsize
        for side in (found.reads, found.writes):
            total += min(size, element * side.get(i, 0.0))
    return round(total)


def _number(size: Size, sizes: Mapping[str, int]) -> int | None:
    return evaluate(size, sizes) if symbols(size) <= sizes.keys() else None
