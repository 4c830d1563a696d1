"""The native engine: our own kernels, generated as C, compiled for this processor, run by the runtime library.

Program → passes → plan → C → machine code. It refuses an op that it does not know by name; `auto` then takes the
reference engine.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import partial

from smelt.device import cpu
from smelt.engine.footprint import Footprint
from smelt.engine.plans import PIECES, Planned, donating, entries, planned, write
from smelt.engine.store import store_program
from smelt.errors import DeviceError, SmeltError
from smelt.ir.core import Program
from smelt.kernel.emit.c import Source
from smelt.kernel.emit.tile_f32 import tile_shape
from smelt.run.executable import NativeExecutable, Store
from smelt.target import Target


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

    def compile(self, program: Program, *, donate: Iterable[str] = ()) -> NativeExecutable:
        """`donate`: inputs that a call may use up, so that results and temporaries take their place in memory."""
        (made,) = compile_all([donating(program, tuple(donate))], self.target)
        if isinstance(made, SmeltError):
            raise made
        return made


def compile_all(programs: Sequence[Program], target: Target | None = None) -> list[NativeExecutable | SmeltError]:
    """Compile several programs as one library, which takes less time than one by one; a program that cannot be
    compiled gives its error and leaves the others as they are."""
    target = target or cpu.target()
    source = Source(tile_shape(target))
    made: list[Planned | SmeltError] = []
    for i, program in enumerate(programs):
        try:
            each = planned(program, target)
            write(each, source, f"smelt{i}")
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
            store = partial(store_program, programs[i], target)
            executables.append(executable_of(library, f"smelt{i}", outcome, store))
    return executables


def executable_of(library: ctypes.CDLL, name: str, program: Planned, store: Store | None = None) -> NativeExecutable:
    main, prepare = entries(program, name)
    first = prepare.program(library, program.prepare[0].constants) if prepare and program.prepare else None
    second = main.program(library, program.main[0].constants)
    return NativeExecutable(program.signature, first, second, None if first else (), program.kernels, store)
