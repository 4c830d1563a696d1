"""The memory that a standalone model will need, from its plans, before anything is built; a limit on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smelt.aot.targets import Machine
from smelt.buffer import bytes_text
from smelt.dim import evaluate
from smelt.engine.compile import ProgramPlan
from smelt.errors import MemoryLimitError

STACK = 2 << 20  # of each thread beside the caller's


def parts(plan: ProgramPlan, machine: Machine, threads: int, sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of each kind; dynamic dimensions that are not given count as 1, data-dependent ones as 0."""
    main, memory = plan.main
    known = dict.fromkeys(main.symbols, 1) | dict(sizes)
    bound = len(main.of_kind("argument")) - len(plan.signature.inputs)
    arguments = main.of_kind("argument")
    reused = {result for result, _ in main.reused}  # they are inputs' memory
    tensors = [*arguments[bound:], *(each for i, each in enumerate(main.of_kind("result")) if i not in reused)]
    weights = sum(evaluate(each.bytes, {}) for each in arguments[:bound]) + sum(map(len, main.constants))
    threads = threads if machine.has_threads else 0
    return {
        "weights": weights if machine.has_memory_for_weights else 0,
        "temporaries": memory.peak(known),
        "scratch": evaluate(memory.scratch, known) * max(threads, 1),
        "inputs and outputs": sum(
            evaluate(each.bytes, known) for each in tensors if not main.is_deferred(*each.shape.sizes)
        ),
        "runtime": machine.base_bytes + STACK * max(threads - 1, 0),
    }


def check_limit(
    plan: ProgramPlan,
    limit: int,
    machine: Machine,
    threads: int,
    sizes: Mapping[str, int],
    smaller: Callable[[], tuple[str, ProgramPlan] | None],
) -> None:
    """Refuse a model that needs more than `limit` bytes. `smaller`: another way to build it, with its name."""
    found = parts(plan, machine, threads, sizes)
    if sum(found.values()) <= limit:
        return
    listed = ", ".join(f"{name} {bytes_text(count)}" for name, count in found.items() if count)
    at = ", ".join(f"{name}={sizes.get(name, 1)}" for name in plan.main[0].symbols)
    raise MemoryLimitError(
        "the model needs more memory than allowed",
        expected=f"at most {bytes_text(limit)}",
        got=f"{bytes_text(sum(found.values()))}{f' at {at}' if at else ''} ({listed})",
        remedy=_advise(plan, limit, machine, threads, sizes, smaller),
    )


def _advise(
    plan: ProgramPlan,
    limit: int,
    machine: Machine,
    threads: int,
    sizes: Mapping[str, int],
    smaller: Callable[[], tuple[str, ProgramPlan] | None],
) -> str:
    """What would fit: no threads, another precision, both; else the memory that is needed."""
    other = smaller()
    ways = [("--threads 0", plan, 0)] if machine.has_threads else []
    if other is not None:
        ways += [(other[0], other[1], threads)]
        ways += [(f"{other[0]} --threads 0", other[1], 0)] if machine.has_threads else []
    for text, way, count in ways:
        needed = sum(parts(way, machine, count, sizes).values())
        if needed <= limit:
            return f"{text}: {bytes_text(needed)}"
    return f"--memory-limit {-(-sum(parts(plan, machine, threads, sizes).values()) // 1000)}KB"
