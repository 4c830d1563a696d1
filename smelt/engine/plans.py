"""Program → plans → C text: everything about a compiled program that is decided before the C compiler runs.

The native engine, bundles, the profiler and `smelt show` call it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from smelt.bundle import entry
from smelt.bundle.entry import DataCheck, Entry, SizeCheck
from smelt.device import cpu
from smelt.engine.executable import signature_of
from smelt.engine.footprint import Footprint
from smelt.engine.tuned import lookup
from smelt.engine_api import KernelUse, Signature
from smelt.errors import RunError
from smelt.ir.core import Program
from smelt.kernel.emit.c import FAILED, TOO_LARGE, UNFIT, Source
from smelt.kernel.emit.tile_f32 import tile_shape
from smelt.kernel.plan.fuse import fuse
from smelt.kernel.plan.in_place import in_place
from smelt.kernel.plan.memory import Memory, assign
from smelt.kernel.plan.plan import Launch, Plan, walk
from smelt.kernel.tune.adjust import Adjustable
from smelt.kernel.tune.choice import Choice, Lookup, Problem
from smelt.passes import pipeline
from smelt.passes.attend import COMPOSITES
from smelt.passes.split_prepare import DONATED, WEIGHT
from smelt.target import Target

PIECES = 4  # files for each core that compiles, so that none waits long for another
assert (entry.FAILED, entry.UNFIT, entry.TOO_LARGE) == (FAILED, UNFIT, TOO_LARGE), (
    "programs and those who run them agree on statuses"
)


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

    @property
    def chosen(self) -> dict[Problem, Choice]:
        """How the kernels' problems are gone about."""
        steps = [step for plan, _ in self.plans.values() for step in walk(plan.steps)]
        return {problem: choice for step in steps if isinstance(step, Launch) for problem, choice in step.kernel.chosen}


def planned(
    program: Program, target: Target | None = None, *, telling: bool = False, choices: Lookup | None = None
) -> Planned:
    """Everything about a program that is decided before there is C. `telling`, `choices`: as for `fuse`.

    Where nobody says otherwise, choices are those that were measured on this machine (`smelt tune`).
    """
    lowered = lower(program, target)
    return plan_lowered(lowered, signature_of(program.main), target, telling=telling, choices=choices)


def plan_lowered(
    program: Program,
    signature: Signature,
    target: Target | None = None,
    *,
    telling: bool = False,
    choices: Lookup | None = None,
    adjustable: Adjustable | None = None,
) -> Planned:
    """The same for a program that was lowered already; with `adjustable`, @main is built to be tuned."""
    known = choices or lookup(tile_shape(target or cpu.target()))
    main = in_place(fuse(program.main, telling=telling, choices=known, adjustable=adjustable))
    before = program.funcs.get("prepare")
    prepare = None if before is None else in_place(fuse(before, telling=telling, choices=known))
    return Planned(signature, (main, assign(main)), None if prepare is None else (prepare, assign(prepare)))


def donating(program: Program, names: Sequence[str]) -> Program:
    """The program with a mark on the inputs of these names: a call may use them up."""
    if not names:
        return program
    main = program.main
    known = [port.name for port in signature_of(main).inputs]
    unknown = [name for name in names if name not in known]
    if unknown:
        raise RunError("only inputs can be donated", expected=", ".join(known), got=", ".join(unknown))
    ports = iter(known)
    attrs = tuple(
        each if WEIGHT in each or next(ports) not in names else MappingProxyType({**each, DONATED: True})
        for each in main.arg_attrs
    )
    return program.replace(replace(main, arg_attrs=attrs))


def source_of(programs: Sequence[Planned], target: Target | None = None) -> Source:
    """The C of planned programs: smelt0, smelt0_prepare, smelt1 …"""
    source = Source(tile_shape(target or cpu.target()))
    for i, each in enumerate(programs):
        write(each, source, f"smelt{i}")
    return source


def write(program: Planned, source: Source, name: str) -> None:
    for function, (plan, memory) in program.plans.items():
        source.add(plan, memory, called(name, function))


def called(name: str, function: str) -> str:
    return name if function == "main" else f"{name}_{function}"


def lower(program: Program, target: Target | None = None) -> Program:
    """The program as the kernel compiler wants it."""
    target = target or cpu.target()
    width = tile_shape(target).columns
    optimised, _ = pipeline.run(program, composites=COMPOSITES, width=width, pairs=target.has_pairs, lowered=True)
    return optimised


def entry_of(name: str, plan: Plan, inputs: Sequence[str]) -> Entry:
    """What running a plan needs to know; names of the inputs come after those of what is bound."""
    arguments = tuple(buffer.shape for buffer in plan.of_kind("argument"))
    bound = len(arguments) - len(inputs)
    return Entry(
        name,
        arguments,
        tuple(buffer.shape for buffer in plan.of_kind("result")),
        plan.symbols,
        (*(f"bound {i}" for i in range(bound)), *inputs),
        tuple(SizeCheck(each.text, each.why) for each in plan.checks),
        tuple(DataCheck(each.message, each.of_sizes, each.where) for each in plan.requirements),
        plan.donated,
        plan.reused,
    )


def entries(program: Planned, name: str) -> tuple[Entry, Entry | None]:
    """Those of @main and of @prepare in a library where the program has that name."""
    main = entry_of(name, program.main[0], [port.name for port in program.signature.inputs])
    return main, entry_of(called(name, "prepare"), program.prepare[0], []) if program.prepare else None
