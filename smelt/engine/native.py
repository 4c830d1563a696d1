"""The native engine: our own kernels, generated as C, compiled for this processor, run by the runtime library.

Program → passes → plan → C → machine code. It refuses an op that it does not know by name; `auto` then takes the
reference engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from smelt.device import cpu, runtime
from smelt.dtype import Array
from smelt.engine.executable import signature_of
from smelt.engine_api import Executable, Signature
from smelt.errors import DeviceError, RunError, SizeError, SmeltError
from smelt.ir.core import Program
from smelt.ir.verify import assumptions
from smelt.kernel.emit_c import FAILED, UNFIT, Source
from smelt.kernel.fuse import fuse
from smelt.kernel.memory import assign
from smelt.kernel.plan import Launch, Plan, walk
from smelt.kernel.tile_c import tile_shape
from smelt.passes import pipeline
from smelt.weights import Weights


class NativeEngine:
    """Generated C through a C compiler."""

    name = "native"

    def missing(self) -> str | None:
        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    def compile(self, program: Program) -> Executable:
        (made,) = compile_all([program])
        if isinstance(made, SmeltError):
            raise made
        return made


def compile_all(programs: Sequence[Program]) -> list[NativeExecutable | SmeltError]:
    """Compile several programs as one C file, which takes less time than one by one; a program that cannot be compiled
    gives its error and leaves the others as they are."""
    source = Source(tile_shape(cpu.target()))
    made = [_plans(program, source, f"smelt{i}") for i, program in enumerate(programs)]
    try:
        library = cpu.build(source.text()) if source.parts else None
    except DeviceError as error:
        return [error] if len(programs) == 1 else [each for program in programs for each in compile_all([program])]
    executables: list[NativeExecutable | SmeltError] = []
    for program, plans in zip(programs, made, strict=True):
        if isinstance(plans, SmeltError):
            executables.append(plans)
            continue
        assert library is not None
        signature = signature_of(program.main)
        names = [port.name for port in signature.inputs]
        main, *first = [_load(library, each, names if i == 0 else []) for i, each in enumerate(plans)]
        bound = None if first else main.bind(())
        kernels = sum(isinstance(step, Launch) for step in walk(plans[0].plan.steps))
        executables.append(NativeExecutable(signature, first[0] if first else None, main, bound, kernels))
    return executables


def lower(program: Program) -> Program:
    """The program as the kernel compiler wants it."""
    optimised, _ = pipeline.run(program, width=tile_shape(cpu.target()).columns, lowered=True)
    return optimised


@dataclass(frozen=True, slots=True)
class _Planned:
    """A function's plan, and the name that it has in the C file."""

    name: str
    plan: Plan


def _plans(program: Program, source: Source, name: str) -> list[_Planned] | SmeltError:
    """The plans of @main and, where there are weights, of @prepare, written to the source."""
    try:
        optimised = lower(program)
        planned = [_Planned(name, fuse(optimised.main, assumptions(optimised)))]
        if "prepare" in optimised.funcs:
            planned.append(_Planned(f"{name}_prepare", fuse(optimised.funcs["prepare"])))
        for each in planned:
            source.add(each.plan, assign(each.plan), each.name)
    except SmeltError as error:
        return error
    return planned


def _load(library: ctypes.CDLL, planned: _Planned, inputs: list[str]) -> runtime.Program:
    """A plan as machine code; names of the inputs come after those of what is bound."""
    plan = planned.plan
    arguments = [buffer.shape for buffer in plan.of_kind("argument")]
    bound = len(arguments) - len(inputs)
    return runtime.Program(
        library,
        planned.name,
        arguments,
        [buffer.shape for buffer in plan.of_kind("result")],
        plan.symbols,
        plan.constants,
        explain=partial(_explain, plan),
        refuse=partial(_refuse, plan),
        names=[*(f"bound {i}" for i in range(bound)), *inputs],
    )


def _explain(plan: Plan, status: int, record: tuple[int, ...]) -> SmeltError:
    """The error behind a status of the program."""
    if status >= UNFIT:
        failed = plan.checks[status - UNFIT]
        relation = "equal to" if failed.exact else "at most"
        expected = f"{failed.a} {relation} {failed.b}"
        return SizeError(failed.why, expected=expected, got=f"{record[0]} and {record[1]}")
    if status >= FAILED:
        broken = plan.requirements[status - FAILED]
        message = broken.message
        for i, number in enumerate(record):
            message = message.replace(f"{{{i}}}", str(number))
        return (SizeError if broken.of_sizes else RunError)(message, where=broken.where)
    return RunError("the compiled program reported a failure", got=status)


def _refuse(plan: Plan, check: int, symbols: Mapping[str, int]) -> SmeltError:
    """The error behind a size that the program takes for granted."""
    failed = plan.checks[check]
    relation = "equal to" if failed.exact else "at most"
    return SizeError(failed.why, expected=f"{failed.a} {relation} {failed.b}", got=dict(symbols))


class NativeExecutable:
    """A compiled program. Weights are bound by `prepare`, which leaves this one as it is."""

    def __init__(
        self,
        signature: Signature,
        prepare: runtime.Program | None,
        main: runtime.Program,
        bound: runtime.Bound | None,
        kernels: int,
    ) -> None:
        self.signature = signature
        self.kernels = kernels  # launches in the program's text, those of loops and branches counted once
        self._prepare = prepare
        self._main: runtime.Program | None = main
        self._bound = bound

    def prepare(self, weights: Weights) -> Executable:
        main = self._open()
        if self._prepare is None:
            return NativeExecutable(self.signature, None, main, main.bind(()), self.kernels)
        arrays = [weights[port.name].numpy() for port in self.signature.weights]
        named = self._prepare.bind(())
        values = named(tuple(arrays))
        named.close()
        return NativeExecutable(self.signature, self._prepare, main, main.bind(values), self.kernels)

    def __call__(self, *inputs: Array) -> tuple[Array, ...]:
        if self._bound is None:
            self._open()
            raise RunError("the weights are not bound", expected=".prepare(weights) before the first call")
        return self._bound(inputs)

    def close(self) -> None:
        if self._bound is not None:
            self._bound.close()
        self._main = self._bound = None

    def _open(self) -> runtime.Program:
        if self._main is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        return self._main
