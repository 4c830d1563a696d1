"""The native engine: our own kernels, generated as C, compiled for this processor, run by the runtime library.

Program → passes → plan → C → machine code. It refuses an op that it does not know by name; `auto` then takes the
reference engine.
"""

from __future__ import annotations

import ctypes
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from smelt.device import cpu, runtime
from smelt.dtype import Array
from smelt.engine.executable import signature_of
from smelt.engine.footprint import Footprint
from smelt.engine_api import Executable, KernelUse, Signature
from smelt.errors import DeviceError, RunError, SizeError, SmeltError
from smelt.ir.core import Program
from smelt.ir.verify import assumptions
from smelt.kernel.emit_c import FAILED, UNFIT, Source
from smelt.kernel.fuse import fuse
from smelt.kernel.memory import Memory, assign
from smelt.kernel.plan import Launch, Plan, walk
from smelt.kernel.tile_c import tile_shape
from smelt.passes import pipeline
from smelt.target import Target
from smelt.weights import Weights

PIECES = 4  # files for each core that compiles, so that none waits long for another


class NativeEngine:
    """Generated C through a C compiler, for this machine's processor or another one of its kind."""

    name = "native"

    def __init__(self, target: Target | None = None) -> None:
        self.target = target  # None: what `device.cpu.target` says when a program comes

    def missing(self) -> str | None:
        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    def footprint(self, program: Program) -> Footprint:
        """What a program will hold in memory; nothing is compiled."""
        return planned(program, self.target).footprint

    def compile(self, program: Program) -> Executable:
        (made,) = compile_all([program], self.target)
        if isinstance(made, SmeltError):
            raise made
        return made


@dataclass(frozen=True, slots=True)
class Planned:
    """A program's plans with their memory: @main's and, where there are weights, @prepare's."""

    signature: Signature
    main: tuple[Plan, Memory]
    prepare: tuple[Plan, Memory] | None

    @property
    def footprint(self) -> Footprint:
        return Footprint(self.signature.weights, self.main, self.prepare)

    @property
    def plans(self) -> dict[str, tuple[Plan, Memory]]:
        """The plans by the names of their functions."""
        return {"main": self.main} | ({"prepare": self.prepare} if self.prepare else {})

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        steps = [step for plan, _ in self.plans.values() for step in walk(plan.steps)]
        count = Counter(step.kernel for step in steps if isinstance(step, Launch))
        return tuple(KernelUse(kernel.kind, kernel.ops, times) for kernel, times in count.items())


def planned(program: Program, target: Target | None = None, *, telling: bool = False) -> Planned:
    """Everything about a program that is decided before there is C. `telling`: as for `fuse`."""
    optimised = lower(program, target)
    main = fuse(optimised.main, assumptions(optimised), telling=telling)
    prepare = fuse(optimised.funcs["prepare"], telling=telling) if "prepare" in optimised.funcs else None
    signature = signature_of(program.main)
    return Planned(signature, (main, assign(main)), None if prepare is None else (prepare, assign(prepare)))


def source_of(programs: Sequence[Planned], target: Target | None = None) -> Source:
    """The C of planned programs: smelt0, smelt0_prepare, smelt1 …"""
    source = Source(tile_shape(target or cpu.target()))
    for i, each in enumerate(programs):
        _write(each, source, f"smelt{i}")
    return source


def _write(program: Planned, source: Source, name: str) -> None:
    for function, (plan, memory) in program.plans.items():
        source.add(plan, memory, _called(name, function))


def _called(name: str, function: str) -> str:
    return name if function == "main" else f"{name}_{function}"


def compile_all(programs: Sequence[Program], target: Target | None = None) -> list[NativeExecutable | SmeltError]:
    """Compile several programs as one library, which takes less time than one by one; a program that cannot be
    compiled gives its error and leaves the others as they are."""
    target = target or cpu.target()
    source = Source(tile_shape(target))
    made: list[Planned | SmeltError] = []
    for i, program in enumerate(programs):
        try:
            each = planned(program, target)
            _write(each, source, f"smelt{i}")
            made.append(each)
        except SmeltError as error:
            made.append(error)
    try:
        texts = source.texts(PIECES * cpu.cores()) if source.parts else None
        library = cpu.build(texts, processor=target) if texts else None
    except DeviceError as error:
        if len(programs) == 1:
            return [error]
        return [each for program in programs for each in compile_all([program], target)]
    executables: list[NativeExecutable | SmeltError] = []
    for i, outcome in enumerate(made):
        if isinstance(outcome, SmeltError):
            executables.append(outcome)
        else:
            assert library is not None
            executables.append(executable_of(library, f"smelt{i}", outcome))
    return executables


def executable_of(library: ctypes.CDLL, name: str, program: Planned) -> NativeExecutable:
    main = _load(library, name, program.main[0], [port.name for port in program.signature.inputs])
    prepare = _load(library, _called(name, "prepare"), program.prepare[0], []) if program.prepare else None
    return NativeExecutable(program.signature, prepare, main, None if prepare else main.bind(()), program.kernels)


def lower(program: Program, target: Target | None = None) -> Program:
    """The program as the kernel compiler wants it."""
    optimised, _ = pipeline.run(program, width=tile_shape(target or cpu.target()).columns, lowered=True)
    return optimised


def _load(library: ctypes.CDLL, name: str, plan: Plan, inputs: list[str]) -> runtime.Program:
    """A plan as machine code; names of the inputs come after those of what is bound."""
    arguments = [buffer.shape for buffer in plan.of_kind("argument")]
    bound = len(arguments) - len(inputs)
    return runtime.Program(
        library,
        name,
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
        kernels: tuple[KernelUse, ...],
    ) -> None:
        self.signature = signature
        self.kernels = kernels
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
