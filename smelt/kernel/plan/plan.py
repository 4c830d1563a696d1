"""The plan of a function: steps in order, over numbered buffers whose sizes are polynomials over symbols.

`fuse` builds it, `in_place` merges buffers, `memory` assigns slots, `emit.c` prints it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from smelt.dim import Size, symbols
from smelt.errors import Location
from smelt.frozen import Frozen
from smelt.ir.core import Op
from smelt.ir.size_checks import Check
from smelt.kernel.loops.grammar import For, Stmt
from smelt.kernel.tune.schedules import KernelKey, Schedule
from smelt.shape import Shape


class Buffer(Frozen):
    """A tensor in memory, row-major. `index` counts the buffers of its kind."""

    shape: Shape
    kind: Literal["argument", "result", "constant", "temporary"]
    index: int

    @property
    def bytes(self) -> Size:
        return self.shape.count * self.shape.dtype.numpy.itemsize


class Phase(Frozen):
    """A part of a kernel: statements of the calling thread, then a loop on cores.

    The next phase reads what it wrote, so a device that cannot wait inside a kernel launches each phase by itself.
    """

    before: tuple[Stmt, ...]
    loop: For | None


@dataclass(frozen=True, slots=True)
class Kernel:
    """A fused kernel: its kind, its loops, and the ops that it covers.

    Buffers are numbered from 0 within the kernel, so that equal layers give equal kernels.
    """

    kind: str
    body: tuple[Stmt, ...]
    buffers: int
    ops: tuple[str, ...] = field(default=(), compare=False)
    chosen: tuple[tuple[KernelKey, Schedule], ...] = field(default=(), compare=False)  # the schedules of its builders
    variants: tuple[Kernel, ...] = ()  # the same computation with other loops, over the same buffers, to be tuned
    number: int = -1  # of the key whose tunables select a variant

    @property
    def phases(self) -> tuple[Phase, ...]:
        """The body, cut after every loop on cores."""
        found: list[Phase] = []
        before: list[Stmt] = []
        for statement in self.body:
            if isinstance(statement, For) and statement.level == "core":
                found.append(Phase(tuple(before), statement))
                before = []
            else:
                before.append(statement)
        return (*found, Phase(tuple(before), None)) if before else tuple(found)


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a kernel. `covers`: the ops that it computes, where the plan keeps them (`keep_ops`, for the profiler).

    `updates`: the written buffers whose earlier content matters, because the kernel reads it or writes only a part.
    """

    kernel: Kernel
    buffers: tuple[int, ...]
    writes: tuple[int, ...]
    covers: tuple[Op, ...] = field(default=(), compare=False, repr=False)
    updates: tuple[int, ...] = ()

    @property
    def reads(self) -> tuple[int, ...]:
        """The buffers whose content before the call matters."""
        return tuple(i for i in dict.fromkeys(self.buffers) if i not in self.writes or i in self.updates)


class Copy(Frozen):
    source: int
    target: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.target,)


class Repeat(Frozen):
    """While the scalar in `flag` holds after `head`, run `body`."""

    head: tuple[Step, ...]
    flag: int
    body: tuple[Step, ...]


class Branch(Frozen):
    """Run one of several lists of steps: number `selector`, else the last."""

    selector: int
    branches: tuple[tuple[Step, ...], ...]


class Require(Frozen):
    """Check that all elements of a buffer of booleans hold; else the call fails with the integers in `numbers`."""

    flags: int
    check: int  # which of the plan's `requirements`
    numbers: tuple[int, ...] = ()  # buffers of one element each


class Requirement(Frozen):
    """A condition on data. `{0}` in the message is the first of the numbers of its `Require`."""

    message: str
    of_sizes: bool = False
    where: Location | None = None


class Measure(Frozen):
    """Define the symbols of data-dependent sizes: by the numbers in a buffer of i64, or by other sizes."""

    names: tuple[str, ...]
    source: int | tuple[Size, ...]


class Ensure(Frozen):
    """Check sizes in the middle of a run: those that depend on data, or belong to a block that may not run."""

    checks: tuple[int, ...]


Filling: TypeAlias = Launch | Copy  # steps that write buffers
Step: TypeAlias = Filling | Repeat | Branch | Require | Measure | Ensure


class Plan(Frozen):
    buffers: tuple[Buffer, ...]
    constants: tuple[bytes, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    symbols: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()  # symbols of data-dependent sizes, each after those that it may depend on
    donated: tuple[int, ...] = ()  # arguments that a call may overwrite, by their number among the arguments
    reused: tuple[tuple[int, int], ...] = ()  # (result, donated argument) that share one array
    tunables: int = 0  # run-time schedule parameters, where a program is built to be tuned

    def is_deferred(self, *sizes: Size) -> bool:
        """Whether sizes are data-dependent."""
        return any(name in self.deferred for size in sizes for name in symbols(size))

    @property
    def entry_checks(self) -> dict[int, Check]:
        """The checks before anything runs, by their number."""
        later = {i for step in walk(self.steps) if isinstance(step, Ensure) for i in step.checks}
        return {i: check for i, check in enumerate(self.checks) if i not in later}

    def of_kind(self, kind: str) -> list[Buffer]:
        return [buffer for buffer in self.buffers if buffer.kind == kind]


def walk(steps: tuple[Step, ...]) -> Iterator[Step]:
    """Every step, each before the steps inside it."""
    for step in steps:
        yield step
        match step:
            case Repeat(head, _, body):
                yield from walk(head)
                yield from walk(body)
            case Branch(_, branches):
                for branch in branches:
                    yield from walk(branch)


def touched_buffers(step: Step) -> Iterator[int]:
    """The buffers that a step, or a step inside it, reads or writes."""
    for each in walk((step,)):
        match each:
            case Launch(_, buffers):
                yield from buffers
            case Copy(source, target):
                yield from (source, target)
            case Repeat(_, flag, _):
                yield flag
            case Branch(selector, _):
                yield selector
            case Require(flags, _, numbers):
                yield from (flags, *numbers)
            case Measure(_, int(source)):
                yield source


def remap_steps(steps: Sequence[Step], buffers: Mapping[int, int]) -> tuple[Step, ...]:
    """The steps with buffers replaced, without copies of a buffer to itself."""
    changed = (remap_step(step, buffers) for step in steps)
    return tuple(step for step in changed if not (isinstance(step, Copy) and step.source == step.target))


def remap_step(step: Step, buffers: Mapping[int, int]) -> Step:
    """A step, and the steps inside it, with buffers replaced."""

    def rename(i: int) -> int:
        return buffers.get(i, i)

    match step:
        case Launch(kernel, used, writes, covers):
            targets = tuple(map(rename, writes))
            updates = tuple(i for i in dict.fromkeys(map(rename, step.reads)) if i in targets)
            return Launch(kernel, tuple(map(rename, used)), targets, covers, updates)
        case Copy(source, target):
            return Copy(rename(source), rename(target))
        case Repeat(head, flag, body):
            return Repeat(remap_steps(head, buffers), rename(flag), remap_steps(body, buffers))
        case Branch(selector, branches):
            return Branch(rename(selector), tuple(remap_steps(branch, buffers) for branch in branches))
        case Require(flags, check, numbers):
            return Require(rename(flags), check, tuple(map(rename, numbers)))
        case Measure(names, int(source)):
            return Measure(names, rename(source))
    return step
