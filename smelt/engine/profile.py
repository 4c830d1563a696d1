"""Program + weights + inputs → `Profile`: time, cost and ops of every kernel launch and copy, and a trace of one call.

`smelt profile` and the sessions of `smelt.compat` call it. The program is compiled again with timestamps: ordinary
programs have none.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from smelt.buffer import HostBuffer
from smelt.dim import solve
from smelt.dtype import Array
from smelt.engine.compile import NAME, ProgramPlan, compile_program
from smelt.ir.core import Op, Program
from smelt.kernel.plan.cost import Cost, step_cost
from smelt.kernel.plan.plan import Copy, Launch, Plan, walk
from smelt.stop import Stop
from smelt.target import Target
from smelt.weights import Weights

PRODUCTS = ("dot_general", "dot", "convolution", "conv", "attention", "paged_attention")  # contractions
SPELLS = 10  # of calls, with a probe before each


@dataclass(frozen=True, slots=True)
class Step:
    """A launch or a copy. Equal kernels have one name. Times are of one call: the sum over the iterations of a loop."""

    kernel: str
    kind: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]  # the model's own names of what the step computes
    shapes: tuple[str, ...]  # of what it writes
    runs: float
    milliseconds: float  # the median of the calls
    least: float
    cost: Cost  # of one run
    on_tensor_cores: bool = False  # its products take bf16 or f16


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


def profile(
    program: Program,
    weights: Weights,
    inputs: Sequence[Array],
    seconds: float = 2.0,
    probe: Callable[[], None] | None = None,
    target: Target | None = None,
) -> Profile:
    """Call a program for about `seconds`, at least three times, in several spells. By default on this processor.

    `probe` measures the machine before each spell, whose first call does not count: its caches are cold.
    """
    profiled = Profiled(program, weights, target)
    try:
        calls: list[_Call] = []
        start = time.perf_counter()
        while len(calls) < 3 or time.perf_counter() - start < seconds:
            if probe is not None:
                probe()
            outputs, _ = profiled.call(inputs)
            begin = time.perf_counter()
            calls.append(profiled.call(inputs)[1])
            while time.perf_counter() - begin < seconds / SPELLS:
                calls.append(profiled.call(inputs)[1])
        return _summary(profiled.steps(inputs), calls, profiled.ticks, outputs)
    finally:
        profiled.close()


class Profiled:
    """A program with timestamps and bound weights. Each call returns the log of its steps."""

    def __init__(self, program: Program, weights: Weights, target: Target | None = None) -> None:
        self._program = program
        build = compile_program(program, target, timestamps=True)
        self._plan = build.plan
        self._names: dict[object, str] = {kernel: each.name for kernel, each in build.source.kernels.items()}
        self._library = build.library  # which owns the memory of the log
        self._log = build.executable.device.step_log(self._library, NAME)
        self._bound = build.executable.prepare(weights)

    def call(self, inputs: Sequence[Array], stop: Stop | None = None) -> tuple[tuple[Array, ...], _Call]:
        """The results, and the log of the steps."""
        device = self._bound.device
        given = [device.copy(HostBuffer.of(np.asarray(each))) for each in inputs] if device.has_own_memory else inputs
        begin, before = self._log.begin(), time.perf_counter()
        outputs = self._bound(*given, stop=stop)
        self._log.end()
        taken = 1e3 * (time.perf_counter() - before)
        if device.has_own_memory:
            outputs = tuple(each.numpy() for each in outputs)
        return outputs, _Call(begin, taken, *self._log.read())

    @property
    def ticks(self) -> float:
        """Of the clock, in a millisecond."""
        return self._log.ticks

    def steps(self, inputs: Sequence[Array]) -> list[Step]:
        """The steps that the log numbers, without times; costs are those of the last call's sizes."""
        plan = self._plan.main[0]
        late = self._log.deferred_sizes(len(plan.deferred))
        sizes = _sizes(self._plan, inputs) | dict(zip(plan.deferred, late, strict=True))
        return _steps(plan, self._program, self._names, sizes)

    def events(self, call: _Call, inputs: Sequence[Array]) -> list[tuple[Step, Event]]:
        """The runs of steps in one call, in order."""
        steps = self.steps(inputs)
        return [(steps[event.step], event) for event in _events(call, self.ticks)]

    def close(self) -> None:
        self._bound.close()


def _sizes(plan: ProgramPlan, inputs: Sequence[Array]) -> dict[str, int]:
    """The values of the symbolic sizes at these inputs."""
    patterns = [size for port in plan.signature.inputs for size in port.shape.sizes]
    return solve(patterns, [size for array in inputs for size in np.asarray(array).shape])


def _steps(plan: Plan, program: Program, names: dict[object, str], sizes: dict[str, int]) -> list[Step]:
    """The steps that the log numbers, without times."""
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
        found.append(Step(name, kind, ops, _nodes(covers), shapes, 0, 0.0, 0.0, cost, _is_half(covers)))
    return found


def _is_half(ops: Sequence[Op]) -> bool:
    """Whether a contraction multiplies 16-bit floats."""
    products = [op for op in ops if op.name.rpartition(".")[2] in PRODUCTS]
    return any(value.shape.dtype.name in ("bf16", "f16") for op in products for value in op.operands)


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
            on_tensor_cores=step.on_tensor_cores,
        )
        for i, step in enumerate(steps)
    ]
    middle = sorted(calls, key=lambda call: call.milliseconds)[len(calls) // 2]
    trace = _events(middle, ticks)
    return Profile(tuple(measured), tuple(call.milliseconds for call in calls), tuple(trace), middle.lost, outputs)


def _events(call: _Call, ticks: float) -> list[Event]:
    return [
        Event(int(step), 1e3 * (begin - call.begin) / ticks, 1e3 * (end - call.begin) / ticks)
        for step, begin, end in call.log
    ]
