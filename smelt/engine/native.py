"""The native engine: our own kernels, generated as C, compiled for this processor, run by the runtime library.

Program → passes → plan → C → machine code. It refuses an op that it does not know by name; `auto` then takes the
reference engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from smelt.device import cpu, runtime
from smelt.dtype import Array
from smelt.engine.executable import signature_of
from smelt.engine_api import Executable, Signature
from smelt.errors import RunError, SizeError, SmeltError
from smelt.ir.core import Func, Program
from smelt.ir.verify import assumptions
from smelt.kernel.emit_c import FAILED, emit
from smelt.kernel.fuse import fuse
from smelt.kernel.memory import assign
from smelt.kernel.plan import Plan
from smelt.kernel.tile_c import tile_shape
from smelt.passes import pipeline
from smelt.weights import Weights


class NativeEngine:
    """Generated C through a C compiler."""

    name = "native"

    def missing(self) -> str | None:
        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    def compile(self, program: Program) -> Executable:
        optimised = lower(program)
        names = [port.name for port in signature_of(program.main).inputs]
        main = _load(fuse(optimised.main, assumptions(optimised)), optimised.main, names)
        prepare = None
        if "prepare" in optimised.funcs:
            func = optimised.funcs["prepare"]
            prepare = _load(fuse(func), func, [])
        return NativeExecutable(signature_of(program.main), prepare, main, None if prepare else main.bind(()))


def lower(program: Program) -> Program:
    """The program as the kernel compiler wants it."""
    optimised, _ = pipeline.run(program, width=tile_shape(cpu.target()).columns)
    return optimised


def _load(plan: Plan, func: Func, inputs: list[str]) -> runtime.Program:
    """A plan as machine code."""
    tile = tile_shape(cpu.target())
    memory = assign(plan)
    text = emit(plan, memory, "smelt", tile)
    bound = len(func.args) - len(inputs)
    return runtime.Program(
        cpu.build(text),
        "smelt",
        [buffer.shape for buffer in plan.of_kind("argument")],
        [buffer.shape for buffer in plan.of_kind("result")],
        plan.symbols,
        plan.constants,
        explain=partial(_explain, plan),
        refuse=partial(_refuse, plan),
        names=[*(f"bound {i}" for i in range(bound)), *inputs],
    )


def _explain(plan: Plan, status: int, record: tuple[int, ...]) -> SmeltError:
    """The error behind a status of the program."""
    if status >= FAILED:
        return RunError(plan.requirements[status - FAILED], got=f"at element {record[0]}")
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
    ) -> None:
        self.signature = signature
        self._prepare = prepare
        self._main: runtime.Program | None = main
        self._bound = bound

    def prepare(self, weights: Weights) -> Executable:
        main = self._open()
        if self._prepare is None:
            return NativeExecutable(self.signature, None, main, main.bind(()))
        arrays = [weights[port.name].numpy() for port in self.signature.weights]
        named = self._prepare.bind(())
        values = named(tuple(arrays))
        named.close()
        return NativeExecutable(self.signature, self._prepare, main, main.bind(values))

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
