"""Every stage from a program to an executable, in order. `NativeEngine`, bundles, `smelt profile`, `smelt tune` and
`smelt show` call it.

| stage | in → out | where |
|---|---|---|
| `lower` | Program → Program of ops that kernels exist for | `passes/pipeline.py` |
| `plan_lowered` | → `ProgramPlan`: fused kernels, buffers reused in place, memory offsets | `kernel/plan/` |
| `emit_source` | → C | `kernel/emit/` |
| `build_library` | → code for the target, loaded by its device | `device/` |
| `link_executable` | → `NativeExecutable` | `run/executable.py` |

`executable.prepare(weights)` then packs the weights and binds them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import MappingProxyType
from typing import TypeAlias

from smelt.activity import note_compile
from smelt.device import host
from smelt.device.api import Arrays, Module
from smelt.device.entry import DataCheck, Entry, SizeCheck
from smelt.device.registry import device_of, find_device
from smelt.engine.footprint import Footprint
from smelt.engine.signature import list_donated, signature_of
from smelt.engine.tuned import lookup
from smelt.engine_api import KernelUse, Signature
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.core import Program
from smelt.kernel.emit.c import TYPES, Source
from smelt.kernel.emit.cuda import CudaSource
from smelt.kernel.plan.contract import check_ops
from smelt.kernel.plan.fuse import fuse
from smelt.kernel.plan.in_place import in_place
from smelt.kernel.plan.memory import Memory, assign_slots
from smelt.kernel.plan.merge_launches import merge_launches
from smelt.kernel.plan.plan import Launch, Plan, walk
from smelt.kernel.plan.reorder import reorder
from smelt.kernel.tune.schedules import KernelKey, Lookup, Schedule
from smelt.kernel.tune.tunables import Tunables
from smelt.passes import fuse_attention, lower_blocks, pipeline
from smelt.passes.recompute import use_less_memory
from smelt.passes.split_prepare import DONATED, WEIGHT
from smelt.run.executable import NativeExecutable, Store
from smelt.target import Target, TileShape, tile_shape

NAME = "smelt0"  # of the only program in a library
FILES_PER_CORE = 4  # C files, so that no core waits long for another
FUNCTIONS = ("main", "prepare")
ABI_TYPES = TYPES  # the declarations of smelt.h that a C program contains
COMPOSITES = fuse_attention.COMPOSITES | lower_blocks.COMPOSITES  # that passes lower
AnySource: TypeAlias = Source | CudaSource
LANGUAGES: dict[str, type[AnySource]] = {"c": Source, "cuda": CudaSource}  # what emits a target's kernels


class ProgramPlan(Frozen):
    """The plans of @main and, where there are weights, of @prepare, each with its memory."""

    target: Target
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
    def chosen(self) -> dict[KernelKey, Schedule]:
        """The schedule of each kernel shape key."""
        steps = [step for plan, _ in self.plans.values() for step in walk(plan.steps)]
        return {key: schedule for step in steps if isinstance(step, Launch) for key, schedule in step.kernel.chosen}


class Build(Frozen):
    """The products of all stages. `executable` is not bound to weights yet."""

    plan: ProgramPlan
    source: AnySource
    library: Module
    executable: NativeExecutable


def compile_program(
    program: Program, target: Target | None = None, *, store: Store | None = None, timestamps: bool = False
) -> Build:
    """Program → executable. `timestamps`: with a timestamp at every step, and the ops behind it, for the profiler."""
    plan = plan_program(program, target, keep_ops=timestamps)
    return build_plan(plan, timestamps=timestamps, store=store)


def build_plan(
    plan: ProgramPlan,
    *,
    tile: TileShape | None = None,
    timestamps: bool = False,
    bound: Arrays | None = None,
    store: Store | None = None,
) -> Build:
    """Plan → executable. `tile`: the register tile of weights that are packed already; `bound`: these weights."""
    source = emit_source([plan], tile=tile, timestamps=timestamps)
    library = build_library(source, plan.target)
    note_compile()
    return Build(plan, source, library, link_executable(library, NAME, plan, bound=bound, store=store))


def lower(program: Program, target: Target | None = None) -> Program:
    """The program in ops that the kernel compiler knows, its weights packed for the target's register tile."""
    target = target or find_device().target()
    optimised, _ = pipeline.run(program, composites=COMPOSITES, target=target)
    return optimised


def plan_program(
    program: Program, target: Target | None = None, *, keep_ops: bool = False, schedules: Lookup | None = None
) -> ProgramPlan:
    """Everything that is decided before C is emitted. `keep_ops`, `schedules`: as for `fuse`.

    By default the target is this processor, and schedules come from the database of this machine (`smelt tune`).
    """
    target = target or find_device().target()
    return plan_lowered(
        lower(program, target), signature_of(program.main), target, keep_ops=keep_ops, schedules=schedules
    )


def plan_within(program: Program, target: Target, limit: int) -> ProgramPlan:
    """The plan with at most `limit` bytes: activations are computed again until it fits, else it is refused."""
    lowered, signature = lower(program, target), signature_of(program.main)
    least = plan_lowered(lowered, signature, target)
    for smaller in use_less_memory(lowered):
        if least.footprint.required_bytes({}) <= limit:
            break
        plan = plan_lowered(smaller, signature, target)
        least = min(least, plan, key=lambda each: each.footprint.required_bytes({}))
    least.footprint.check(limit, {})
    return least


def plan_lowered(
    program: Program,
    signature: Signature,
    target: Target,
    *,
    keep_ops: bool = False,
    schedules: Lookup | None = None,
    tunables: Tunables | None = None,
) -> ProgramPlan:
    """The same for a lowered program. With `tunables`, the schedule of @main can change between calls."""
    for func in program.funcs.values():
        check_ops(func, target)
    known = schedules or lookup(target)
    fused = fuse(program.main, target=target, keep_ops=keep_ops, schedules=known, tunables=tunables)
    main = in_place(reorder(fused))
    if target.kind == "simt" and tunables is None:
        main = merge_launches(main)
    before = program.funcs.get("prepare")
    prepare = None if before is None else in_place(fuse(before, target=target, keep_ops=keep_ops, schedules=known))
    before_main = None if prepare is None else (prepare, assign_slots(prepare))
    return ProgramPlan(target, signature, (main, assign_slots(main)), before_main)


def mark_donated(program: Program, names: Sequence[str]) -> Program:
    """The program with these inputs marked as donated: a call may overwrite them."""
    if not names:
        return program
    main = program.main
    donated, number = list_donated(signature_of(main), tuple(names)), count()
    attrs = tuple(
        each if WEIGHT in each or next(number) not in donated else MappingProxyType({**each, DONATED: True})
        for each in main.arg_attrs
    )
    return program.replace(replace(main, arg_attrs=attrs))


def emit_source(plans: Sequence[ProgramPlan], *, tile: TileShape | None = None, timestamps: bool = False) -> AnySource:
    """The source of plans for one target: smelt0, smelt0_prepare, smelt1 …"""
    source = new_source(plans[0].target, tile=tile, timestamps=timestamps)
    for i, plan in enumerate(plans):
        emit_plan(plan, source, f"smelt{i}")
    return source


def new_source(target: Target, *, tile: TileShape | None = None, timestamps: bool = False) -> AnySource:
    """An empty source in the target's language. `tile`: the register tile of weights that are packed already."""
    if target.language not in LANGUAGES:
        raise UnsupportedError(
            "no emitter for the target's language", expected=", ".join(LANGUAGES), got=target.language
        )
    made = LANGUAGES[target.language](tile or tile_shape(target), timestamps=timestamps)
    if isinstance(made, CudaSource):
        made.shared = target.cache_bytes[0]
    return made


def emit_plan(plan: ProgramPlan, source: AnySource, name: str, functions: Sequence[str] = FUNCTIONS) -> None:
    for function, (each, memory) in plan.plans.items():
        if function in functions:
            source.add(each, memory, function_name(name, function))


def function_name(name: str, function: str) -> str:
    """The C name of a function of a program."""
    return name if function == "main" else f"{name}_{function}"


def split_source(source: AnySource) -> list[str]:
    """The source as files that compile in parallel."""
    return source.texts(FILES_PER_CORE * host.cores())


def build_library(source: AnySource, target: Target) -> Module:
    return device_of(target).build(split_source(source), target)


def link_executable(
    library: Module,
    name: str,
    plan: ProgramPlan,
    *,
    bound: Arrays | None = None,
    store: Store | None = None,
) -> NativeExecutable:
    """The program of a name in a library. Without @prepare there is nothing to bind but `bound`."""
    main, prepare = make_entries(plan, name)
    device = device_of(plan.target)
    first = device.program(library, prepare, plan.prepare[0].constants) if prepare and plan.prepare else None
    second = device.program(library, main, plan.main[0].constants)
    arrays = () if bound is None and first is None else bound
    return NativeExecutable(device, plan.signature, first, second, arrays, plan.kernels, store)


def make_entry(name: str, plan: Plan, inputs: Sequence[str]) -> Entry:
    """The interface of a compiled function: bound arguments first, then the inputs."""
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


def make_entries(plan: ProgramPlan, name: str) -> tuple[Entry, Entry | None]:
    """Those of @main and of @prepare in a library where the program has that name."""
    main = make_entry(name, plan.main[0], [port.name for port in plan.signature.inputs])
    return main, make_entry(function_name(name, "prepare"), plan.prepare[0], []) if plan.prepare else None
