"""Plan: what a compiled program does, step by step, over numbered buffers whose sizes are polynomials.

Made by `kernel.fuse`, given memory by `kernel.memory`, printed by `emit_*`, run by an engine. Tied to no size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from smelt.dim import Size, symbols
from smelt.errors import Location
from smelt.ir.core import Op
from smelt.ir.size_checks import Check
from smelt.kernel.loops.grammar import Stmt
from smelt.kernel.tune.schedules import KernelKey, Schedule
from smelt.shape import Shape


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor in memory, row-major. `index` counts the buffers of its kind."""

    shape: Shape
    kind: Literal["argument", "result", "constant", "temporary"]
    index: int

    @property
    def bytes(self) -> Size:
        return self.shape.count * self.shape.dtype.numpy.itemsize


@dataclass(frozen=True, slots=True)
class Kernel:
    """One fused computation: its class, its loops, and the ops of the program that it covers.

    Buffers are numbered anew from 0, so that equal layers are equal kernels.
    """

    kind: str
    body: tuple[Stmt, ...]
    buffers: int
    ops: tuple[str, ...] = field(default=(), compare=False)
    chosen: tuple[tuple[KernelKey, Schedule], ...] = field(default=(), compare=False)  # the schedules of its builders
    variants: tuple[Kernel, ...] = ()  # the same computation with other loops, over the same buffers, to be tuned
    number: int = -1  # of the key whose tunables select a variant


@dataclass(frozen=True, slots=True)
class Launch:
    """A call of a kernel. `covers`: the ops that it computes, where the plan was asked to tell them (to profile it).

    `updates` are those of the written buffers whose earlier content matters: it is read, or stays where the kernel
    writes nothing.
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


@dataclass(frozen=True, slots=True)
class Copy:
    source: int
    target: int

    @property
    def reads(self) -> tuple[int, ...]:
        return (self.source,)

    @property
    def writes(self) -> tuple[int, ...]:
        return (self.target,)


@dataclass(frozen=True, slots=True)
class Repeat:
    """While the scalar in `flag` holds after `head`, run `body`."""

    head: tuple[Step, ...]
    flag: int
    body: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """Run one of several lists of steps: the one that the scalar in `selector` names, else the last."""

    selector: int
    branches: tuple[tuple[Step, ...], ...]


@dataclass(frozen=True, slots=True)
class Require:
    """All elements of a buffer of booleans hold, or the call ends with an error that tells some integers."""

    flags: int
    check: int  # which of the plan's `requirements`
    numbers: tuple[int, ...] = ()  # buffers of one element each


@dataclass(frozen=True, slots=True)
class Requirement:
    """What data must fulfil. `{0}` in the message stands for the first of the numbers that the run tells."""

    message: str
    of_sizes: bool = False
    where: Location | None = None


@dataclass(frozen=True, slots=True)
class Measure:
    """Sizes that only data tells become known, or known anew: symbols get the numbers in a buffer of i64, or sizes."""

    names: tuple[str, ...]
    source: int | tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Ensure:
    """Some of the plan's checks of sizes: those that wait for data, or for the run to get to their block."""

    checks: tuple[int, ...]


Filling: TypeAlias = Launch | Copy  # the steps that write buffers themselves
Step: TypeAlias = Filling | Repeat | Branch | Require | Measure | Ensure


@dataclass(frozen=True, slots=True)
class Plan:
    buffers: tuple[Buffer, ...]
    constants: tuple[bytes, ...]
    steps: tuple[Step, ...]
    checks: tuple[Check, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    symbols: tuple[str, ...] = ()
    deferred: tuple[str, ...] = ()  # symbols of data-dependent sizes, each after those that it may depend on
    donated: tuple[int, ...] = ()  # arguments that a call may use up, by their number among the arguments
    reused: tuple[tuple[int, int], ...] = ()  # (result, donated argument) that are one array
    tunables: int = 0  # run-time schedule parameters, where a program is built to be tuned

    def is_deferred(self, *sizes: Size) -> bool:
        """Whether sizes are known only while the program runs."""
        return any(name in self.deferred for size in sizes for name in symbols(size))

    @property
    def entry_checks(self) -> dict[int, Check]:
        """The checks that come before anything runs, by their number."""
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


def touched(step: Step) -> Iterator[int]:
    """The buffers that a step, or what is inside it, reads or writes."""
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


def remap_steps(steps: Sequence[Step], homes: Mapping[int, int]) -> tuple[Step, ...]:
    """Steps with other buffers in place of some, without copies from one to itself."""
    changed = (remap_step(step, homes) for step in steps)
    return tuple(step for step in changed if not (isinstance(step, Copy) and step.source == step.target))


def remap_step(step: Step, homes: Mapping[int, int]) -> Step:
    """A step, and what is inside it, with other buffers in place of some."""

    def home(i: int) -> int:
        return homes.get(i, i)

    match step:
        case Launch(kernel, buffers, writes, covers):
            targets = tuple(map(home, writes))
            updates = tuple(i for i in dict.fromkeys(map(home, step.reads)) if i in targets)
            return Launch(kernel, tuple(map(home, buffers)), targets, covers, updates)
        case Copy(source, target):
            return Copy(home(source), home(target))
        case Repeat(head, flag, body):
            return Repeat(remap_steps(head, homes), home(flag), remap_steps(body, homes))
        case Branch(selector, branches):
            return Branch(home(selector), tuple(remap_steps(branch, homes) for branch in branches))
        case Require(flags, check, numbers):
            return Require(home(flags), check, tuple(map(home, numbers)))
        case Measure(names, int(source)):
            return Measure(names, home(source))
    return step
