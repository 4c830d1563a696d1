"""The native engine: our own kernels, generated for a target, built and run by its device.

`engine/compile.py` lists the stages. An op without a kernel raises UnsupportedError that names it; `engine="auto"` then
falls back to the next engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

from smelt.buffer import Buffer, HostBuffer
from smelt.device.registry import device_of, find_device
from smelt.engine.compile import (
    ProgramPlan,
    build_library,
    build_plan,
    compile_program,
    emit_plan,
    link_executable,
    mark_donated,
    new_source,
    plan_program,
    plan_within,
)
from smelt.engine.footprint import Footprint
from smelt.engine.store import store_program
from smelt.errors import DeviceError, SmeltError
from smelt.ir.core import Program
from smelt.run.executable import NativeExecutable
from smelt.target import Target
from smelt.weights import Stored


class NativeEngine:
    """Generated code on a device of `device.registry`: the processor, or a named target of it."""

    name = "native"

    def __init__(self, target: Target | None = None, device: str = "auto", memory_limit: int | None = None) -> None:
        """`memory_limit`: bytes for the temporaries and results of a call; values are computed again to keep to it."""
        self.device = find_device(device) if target is None else device_of(target)
        self._target = target
        self.memory_limit = memory_limit

    @property
    def target(self) -> Target:
        """The given one, else the device as it is at compile time."""
        return self._target or self.device.target()

    def missing(self) -> str | None:
        return self.device.missing()

    def footprint(self, program: Program) -> Footprint:
        """The memory that a program will need; nothing is compiled."""
        return plan_program(program, self.target).footprint

    def compile(self, program: Program, *, donate: Iterable[str] = ()) -> NativeExecutable:
        """`donate`: inputs that a call may overwrite, so that results and temporaries reuse their memory."""
        target = self.target
        program = mark_donated(program, tuple(donate))
        store = partial(store_program, program, target)
        if self.memory_limit is not None:
            return build_plan(plan_within(program, target, self.memory_limit), store=store).executable
        return compile_program(program, target, store=store).executable


class PlacedNativeEngine(NativeEngine):
    """The same on a device that has its own memory: arrays are copied there, results stay there."""

    def put(self, buffer: HostBuffer) -> Buffer:
        return self.device.copy(buffer)

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        return nullcontext(lambda stored: self._place(stored).wait())

    def _place(self, stored: Stored) -> Buffer:
        """The bytes of a file go to the device part by part; anything else is an array first."""
        if stored.place is not None:
            return self.device.copy_stored(stored)
        return self.put(HostBuffer(stored.fetch(), stored.shape, owns=False))

    def stats(self) -> dict[str, float]:
        return self.device.stats()


def native_engine(device: str = "auto", memory_limit: int | None = None) -> NativeEngine:
    """The engine for a device."""
    kind = PlacedNativeEngine if find_device(device).has_own_memory else NativeEngine
    return kind(device=device, memory_limit=memory_limit)


def compile_all(programs: Sequence[Program], target: Target | None = None) -> list[NativeExecutable | SmeltError]:
    """Compile several programs as one library, which takes less time than one by one.

    The result for a program that cannot be compiled is its error; the others still run.
    """
    target = target or find_device().target()
    source = new_source(target)
    made: list[ProgramPlan | SmeltError] = []
    for i, program in enumerate(programs):
        try:
            plan = plan_program(program, target)
            emit_plan(plan, source, f"smelt{i}")
            made.append(plan)
        except SmeltError as error:
            made.append(error)
    try:
        library = None if all(isinstance(each, SmeltError) for each in made) else build_library(source, target)
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
