"""Plan → JSON: the steps of a program for a device whose plan is run by the host (`device.host_plan`).

Sizes are numbered texts over `n0`, `n1` … (symbols that arguments determine) and `m0`, `m1` … (data-dependent ones), so
no name of a model gets into it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from math import prod
from typing import Any

from smelt import abi
from smelt.dim import Size
from smelt.kernel.emit.kernel_cuda import CudaKernel, Launched
from smelt.kernel.plan.memory import Memory
from smelt.kernel.plan.plan import (
    Branch,
    Copy,
    Ensure,
    Kernel,
    Launch,
    Measure,
    Plan,
    Repeat,
    Require,
    Step,
    walk,
)
from smelt.size import substitute, symbol

STRAIGHT = ("launch", "copy", "require", "ensure")
AHEAD = 12  # steps in which a launch looks for weights to prefetch
# Bytes: what memory gives during a short launch, what a GPU's cache holds, and what pieces are multiples of.
PREFETCHED, MOST_PREFETCHED, PIECE = 16 << 20, 32 << 20, 1024
ALIGN = 16  # bytes: where pieces begin


def _reads_weights(step: Mapping[str, Any]) -> bool:
    return step["do"] == "launch" and any(each["awaits"] for each in step["launches"])


@dataclass
class PlanWriter:
    """One plan as plain data."""

    plan: Plan
    memory: Memory
    kernels: Mapping[Kernel, CudaKernel]
    timestamps: bool = False  # launches and copies have the numbers that the profiler knows them by
    sizes: dict[Size, int] = field(default_factory=dict)

    def write(self) -> dict[str, Any]:
        plan = self.plan
        steps = self._steps(plan.steps)
        if all(isinstance(step, Launch | Copy | Require | Ensure) for step in plan.steps):
            for step in (step for step in steps if step["do"] == "require"):
                step["later"] = not plan.requirements[step["check"]].of_sizes
        buffers = [
            {
                "kind": buffer.kind,
                "index": buffer.index,
                "element": buffer.shape.element.name,
                "sizes": [self.size(size) for size in buffer.shape.sizes],
                "bytes": self.size(buffer.bytes),
                "slot": self.memory.slot_of.get(i),
                "deferred": plan.is_deferred(*buffer.shape.sizes),
            }
            for i, buffer in enumerate(plan.buffers)
        ]
        return {
            "abi": self._abi(),
            "symbols": len(plan.symbols),
            "deferred": len(plan.deferred),
            "buffers": buffers,
            "slots": [[self.size(size) for size in slot] for slot in self.memory.slots],
            "checks": [[self.size(each.a), each.relation, self.size(each.b)] for each in plan.checks],
            "entry_checks": list(plan.entry_checks),
            "steps": steps,
            **({"timed": True} if self.timestamps else {}),
            "sizes": [self._text(size) for size in self.sizes],
        }

    def _abi(self) -> str:
        plan = self.plan
        arguments, results = ([buffer.shape for buffer in plan.of_kind(kind)] for kind in ("argument", "result"))
        checks = len(plan.checks), len(plan.requirements)
        constants = [len(constant) for constant in plan.constants]
        return abi.describe(plan.symbols, arguments, results, constants, plan.donated, plan.reused, checks)

    def size(self, size: Size) -> int:
        """The number of a size."""
        return self.sizes.setdefault(size, len(self.sizes))

    def _text(self, size: Size) -> int | str:
        if isinstance(size, int):
            return size
        names = {name: symbol(f"n{i}") for i, name in enumerate(self.plan.symbols)}
        names |= {name: symbol(f"m{i}") for i, name in enumerate(self.plan.deferred)}
        return str(substitute(size, names))

    def _steps(self, steps: Sequence[Step]) -> list[dict[str, Any]]:
        done = [self._step(step) for step in steps]
        for i, step in enumerate(done):
            if step["do"] == "launch" and (i == 0 or _reads_weights(done[i - 1])):
                self._prefetch(step, done[i + 1 : i + 1 + AHEAD])
        return _with_waits(_without_crowds(done))

    def _prefetch(self, step: dict[str, Any], later: Sequence[dict[str, Any]]) -> None:
        """The first launch after one that reads weights prefetches those of the next such one."""
        at = next((i for i, each in enumerate(later) if each["do"] not in STRAIGHT or _reads_weights(each)), None)
        if _reads_weights(step) or at is None or not _reads_weights(later[at]):
            return
        if any(each["early"] for each in later[at]["launches"]):
            return
        found, between = later[at], sum(len(each.get("launches", ())) for each in (step, *later[:at]))
        weights = next(each["awaits"][0] for each in found["launches"] if each["awaits"])
        buffer = self.plan.buffers[weights]
        first: dict[str, Any] = next(iter(step["launches"]), {})  # an empty kernel has none
        if buffer.shape.is_static and first.get("prefetches"):
            _, panels, *lines = buffer.shape.numbers()
            stride = prod(lines) * buffer.shape.dtype.numpy.itemsize
            most = min(between * PREFETCHED, MOST_PREFETCHED)
            piece = min(stride, most // max(1, panels)) // PIECE * PIECE
            if piece and panels and stride % ALIGN == 0:
                first["prefetch"] = [weights, panels, stride, piece]

    @cached_property
    def numbers(self) -> dict[int, int]:
        """The number of each launch and copy, by its identity."""
        steps = [step for step in walk(self.plan.steps) if isinstance(step, Launch | Copy)]
        return {id(step): i for i, step in enumerate(steps)} if self.timestamps else {}

    def _step(self, step: Step) -> dict[str, Any]:
        written = self._write_step(step)
        return written | {"step": self.numbers[id(step)]} if id(step) in self.numbers else written

    def _write_step(self, step: Step) -> dict[str, Any]:
        match step:
            case Launch(kernel, buffers):
                launches = [self._launch(each, buffers) for each in self.kernels[kernel].launches]
                return {"do": "launch", "launches": launches}
            case Copy(source, target):
                return {"do": "copy", "source": source, "target": target}
            case Repeat(head, flag, body):
                return {"do": "repeat", "head": self._steps(head), "flag": flag, "body": self._steps(body)}
            case Branch(selector, branches):
                return {"do": "branch", "selector": selector, "branches": [self._steps(each) for each in branches]}
            case Require(flags, check, numbers):
                return {"do": "require", "flags": flags, "check": check, "numbers": list(numbers)}
            case Measure(names, source):
                found = source if isinstance(source, int) else [self.size(each) for each in source]
                symbols = [self.plan.deferred.index(name) for name in names]
                return {"do": "measure", "symbols": symbols, "source": found}
            case Ensure(checks):
                return {"do": "ensure", "checks": list(checks)}

    def _is_weight(self, buffer: int) -> bool:
        """Whether nothing of the program writes a buffer."""
        found = self.plan.buffers[buffer]
        kept = found.kind == "constant" or (found.kind == "argument" and found.index not in self.plan.donated)
        return kept and buffer not in self.written

    @cached_property
    def written(self) -> set[int]:
        """The buffers that steps write."""
        steps = [*walk(self.plan.steps)]
        targets = {step.target for step in steps if isinstance(step, Copy)}
        return targets.union(*(step.writes for step in steps if isinstance(step, Launch)))

    def _launch(self, launched: Launched, buffers: Sequence[int]) -> dict[str, Any]:
        weights, ahead = launched.weights, launched.ahead
        return {
            "function": launched.function,
            "buffers": [buffers[i] for i in launched.buffers],
            "sizes": [self.size(size) for size in launched.sizes],
            "extent": None if launched.extent is None else self.size(launched.extent),
            "single": launched.single,
            "per_block": launched.per_block,
            "threads": launched.threads,
            "saved": launched.saved,
            "scratch": launched.scratch,
            "shared": launched.shared,
            "awaits": [buffers[weights]] if weights is not None and self._is_weight(buffers[weights]) else [],
            "waits": False,
            "early": launched.early,
            "streams": launched.streams,
            "prefetches": launched.prefetches,
            **({} if launched.most is None else {"most": launched.most}),
            **({} if ahead is None else {"ahead": all(self._is_weight(buffers[i]) for i in ahead)}),
        }


def _without_crowds(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A product right behind one of few rows begins after it, unless the copy engine brings its weights: its blocks
    would go where others end first, several to one multiprocessor and none to another, and its time is that of the
    fullest one. What reads through the first-level cache is slow there besides, while shared memory has its place. Of
    a product that has kernels for several numbers of rows, those begin early whose weights the copy engine brings."""
    for step in filter(_streams, steps):
        step["launches"] = [each if each["streams"] else each | {"awaits": []} for each in step["launches"]]
    for before, step in pairwise(steps):
        behind = before["do"] == "launch" and any(each["early"] for each in before["launches"])
        if behind and _reads_weights(step) and not _streams(step):
            step["launches"] = [each | {"awaits": []} for each in step["launches"]]
    return steps


def _with_waits(steps: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Launches in front of a product whose weights the copy engine brings may begin before the ones in front of them
    end, for which they wait, and so may the product: its weights come meanwhile. Blocks of other products would crowd
    (`_without_crowds`)."""
    spread = False
    for step in reversed(steps):
        if step["do"] not in STRAIGHT or _reads_weights(step):
            spread = _streams(step)
        elif step["do"] == "launch" and spread:
            step["launches"] = [each | {"waits": True} for each in step["launches"]]
    return steps


def _streams(step: Mapping[str, Any]) -> bool:
    return step["do"] == "launch" and any(each["streams"] for each in step["launches"])
