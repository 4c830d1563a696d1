"""The native engine: our own kernels, generated as C, compiled for this processor, run by the runtime library.

`engine/compile.py` lists the stages. An op without a kernel raises UnsupportedError that names it; `engine="auto"` then
falls back to the next engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from smelt.device import cpu
from smelt.engine.compile import (
    ProgramPlan,
    build_library,
    compile_program,
    emit_plan,
    link_executable,
    mark_donated,
    plan_program,
)
from smelt.engine.footprint import Footprint
from smelt.engine.store import store_program
from smelt.errors import DeviceError, SmeltError
from smelt.ir.core import Program
from smelt.kernel.emit.c import Source
from smelt.run.executable import NativeExecutable
from smelt.target import Target, tile_shape


class NativeEngine:
    """Generates C and compiles it, for this machine's processor or a named target."""

    name = "native"

    def __init__(self, target: Target | None = None) -> None:
        self.target = target  # None: `device.cpu.target()` at compile time

    def missing(self) -> str | None:
        return None if cpu.compiler() else "no C compiler: pip install ziglang"

    def footprint(self, program: Program) -> Footprint:
        """The memory that a program will need; nothing is compiled."""
        return plan_program(program, self.target).footprint

    def compile(self, program: Program, *, donate: Iterable[str] = ()) -> NativeExecutable:
        """`donate`: inputs that a call may overwrite, so that results and temporaries reuse their memory."""
        target = self.target or cpu.target()
        program = mark_donated(program, tuple(donate))
        return compile_program(program, target, store=partial(store_program, program, target)).executable


def compile_all(programs: Sequence[Program], target: Target | None = None) -> list[NativeExecutable | SmeltError]:
    """Compile several programs as one library, which takes less time than one by one.

    The result for a program that cannot be compiled is its error; the others still run.
    """
    target = target or cpu.target()
    source = Source(tile_shape(target))
    made: list[ProgramPlan | SmeltError] = []
    for i, program in enumerate(programs):
        try:
            plan = plan_program(program, target)
            emit_plan(plan, source, f"smelt{i}")
            made.append(plan)
        except SmeltError as error:
            made.append(error)
    try:
        library = build_library(source, target) if source.parts else None
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
            store = partial(store_program, programs[i], target)
            executables.append(link_executable(library, f"smelt{i}", outcome, store=store))
    return executables
