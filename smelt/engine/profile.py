"""A program that tells how long each of its steps takes: what `smelt profile` runs.

Program, weights and inputs come in; out goes a `Profile`: every launch and copy with its times, its costs and the ops
behind it, and the log of one call. The program is built anew, with time stamps, so that ordinary ones pay nothing.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from smelt.device import cpu
from smelt.dim import solve
from smelt.dtype import Array
from smelt.engine.native import executable_of
from smelt.engine.plans import PIECES, Planned, planned, write
from smelt.engine_api import Executable
from smelt.ir.core import Op, Program
from smelt.kernel.cost import Cost, step_cost
from smelt.kernel.emit_c import Source
from smelt.kernel.plan import Copy, Launch, walk
from smelt.kernel.stamp_c import LOG
from smelt.kernel.tile_c import tile_shape
from smelt.weights import Weights

NAME = "profiled"


@dataclass(frozen=True, slots=True)
class Step:
    """A launch or a copy. Equal kernels have one name. Times are of one call, the runs in a loop added up."""

    kernel: str
    kind: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]  # the model's own names of what the step computes
    shapes: tuple[str, ...]  # of what it writes
    runs: float
    milliseconds: float  # the median of the calls
    least: float
    cost: Cost  # of one run


@dataclass(frozen=True, slots=True)
class Event:
    """One run of a step within one call, in microseconds from the call's start."""

    step: int
    begin: float
    end: float


@dataclass(frozen=True, slots=True)
class Profile:
    """`calls`: milliseconds of each call from outside. `trace`: a call in the middle of them; `lost`: its steps that
    did not fit into the log."""

    steps: tuple[Step, ...]
    calls: tuple[float, ...]
    trace: tuple[Event, ...]
    lost: int
    outputs: tuple[Array, ...]

    @property
    def milliseconds(self) -> float:
        """A call, as the median of them."""
        return statistics.median(self.calls)


@dataclass(frozen=True, slots=True)
class _Call:
    """The log of one call, in ticks."""

    begin: int
    milliseconds: float
    log: Array  # [run, (step, begin, end)]
    lost: int


def profile(program: Program, weights: Weights, inputs: Sequence[Array], seconds: float = 2.0) -> Profile:
    """Call a program for about so many seconds, at least three times, after one call that does not count."""
    plans = planned(program, telling=True)
    source = Source(tile_shape(cpu.target()), stamps=True)
    write(plans, source, NAME)
    library = cpu.build(source.texts(PIECES * cpu.cores()))
    stamps = _Stamps(library)
    bound = executable_of(library, NAME, plans).prepare(weights)
    try:
        outputs = bound(*inputs)
        calls, ticks = stamps.calls(bound, inputs, seconds)
        sizes = _sizes(plans, inputs) | dict(zip(plans.main[0].late, stamps.late(plans), strict=True))
        steps = _steps(plans, program, {kernel: each.name for kernel, each in source.kernels.items()}, sizes)
    finally:
        bound.close()
    return _summary(steps, calls, ticks, outputs)


class _Stamps:
    """What a program with time stamps exports."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        self.clock = library[f"{NAME}_clock"]
        self.clock.restype = ctypes.c_longlong
        self.count = ctypes.c_longlong.in_dll(library, f"{NAME}_count")
        log = (ctypes.c_longlong * (3 * LOG)).in_dll(library, f"{NAME}_log")
        self.log = np.ctypeslib.as_array(log).reshape(LOG, 3)

    def late(self, plans: Planned) -> list[int]:
        count = len(plans.main[0].late)
        return list((ctypes.c_longlong * count).in_dll(self.library, f"{NAME}_late")) if count else []

    def calls(self, bound: Executable, inputs: Sequence[Array], seconds: float) -> tuple[list[_Call], float]:
        """The calls, and how many ticks a millisecond has."""
        calls: list[_Call] = []
        first, start = self.clock(), time.perf_counter()
        while len(calls) < 3 or time.perf_counter() - start < seconds:
            begin, before = self.clock(), time.perf_counter()
            bound(*inputs)
            taken = 1e3 * (time.perf_counter() - before)
            kept = min(self.count.value, LOG)
            calls.append(_Call(begin, taken, self.log[:kept].copy(), self.count.value - kept))
        ticks = (self.clock() - first) / (1e3 * (time.perf_counter() - start))
        return calls, ticks


def _sizes(plans: Planned, inputs: Sequence[Array]) -> dict[str, int]:
    """The numbers of the symbols at these inputs."""
    open_sizes = [size for port in plans.signature.inputs for size in port.shape.sizes]
    return solve(open_sizes, [size for array in inputs for size in np.asarray(array).shape])


def _steps(plans: Planned, program: Program, names: dict[object, str], sizes: dict[str, int]) -> list[Step]:
    """The steps that the log numbers, without times."""
    plan, _ = plans.main
    found = []
    for step in walk(plan.steps):
        match step:
            case Launch(kernel, _, writes, covers):
                name, kind = names[kernel].removeprefix(f"{NAME}_"), kernel.kind
            case Copy(_, target):
                name, kind, writes, covers = "copy", "copy", (target,), ()
            case _:
                continue
        ops = tuple(dict.fromkeys(op.name for op in covers))
        shapes = tuple(str(plan.buffers[i].shape) for i in writes)
        cost = step_cost(step, plan, program, sizes)
        found.append(Step(name, kind, ops, _nodes(covers), shapes, 0, 0.0, 0.0, cost))
    return found


def _nodes(ops: Sequence[Op]) -> tuple[str, ...]:
    names = (op.location.name or (str(op.location.line) if op.location.line else "") for op in ops if op.location)
    return tuple(dict.fromkeys(name for name in names if name))


def _summary(steps: list[Step], calls: list[_Call], ticks: float, outputs: tuple[Array, ...]) -> Profile:
    spent = np.zeros((len(calls), len(steps)))
    runs = np.zeros((len(calls), len(steps)))
    for row, call in enumerate(calls):
        np.add.at(spent[row], call.log[:, 0], (call.log[:, 2] - call.log[:, 1]) / ticks)
        np.add.at(runs[row], call.log[:, 0], 1)
    measured = [
        Step(
            *(step.kernel, step.kind, step.ops, step.nodes, step.shapes),
            runs=float(np.median(runs[:, i])),
            milliseconds=float(np.median(spent[:, i])),
            least=float(spent[:, i].min()),
            cost=step.cost,
        )
        for i, step in enumerate(steps)
    ]
    middle = sorted(calls, key=lambda call: call.milliseconds)[len(calls) // 2]
    trace = [
        Event(int(step), 1e3 * (begin - middle.begin) / ticks, 1e3 * (end - middle.begin) / ticks)
        for step, begin, end in middle.log
    ]
    return Profile(tuple(measured), tuple(call.milliseconds for call in calls), tuple(trace), middle.lost, outputs)
