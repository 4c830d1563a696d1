"""Program + weights + machine → the parts of a standalone model: generated C, packed weights, tables.

The stages are those of `engine/compile.py`. Weights are packed here, once per layout; equal arrays are stored once.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from smelt.aot.describe import CodedProgram, CodedVariant, CodedVersion, c_name, check_signature
from smelt.aot.targets import CodeVersion, Machine
from smelt.device.cross import Unit
from smelt.device.entry import Entry
from smelt.device.runtime import QUICK, make_layout
from smelt.dim import evaluate
from smelt.dtype import Array
from smelt.engine.compile import (
    ProgramPlan,
    emit_plan,
    function_name,
    lower,
    make_entry,
    new_source,
    plan_lowered,
    split_source,
)
from smelt.engine.signature import signature_of
from smelt.engine.store import has_int8, layout_of, pack_weights
from smelt.engine.tuned import lookup
from smelt.engine_api import Signature
from smelt.errors import UnsupportedError
from smelt.ir.core import Program
from smelt.kernel.tune.schedules import Lookup, no_schedule
from smelt.target import Target, tile_shape
from smelt.weights import Weights

ALIGN = 64
MAIN = ("main",)


@dataclass(slots=True)
class Blob:
    """Concatenated arrays, each aligned; equal ones are stored once."""

    parts: list[bytes] = field(default_factory=list)
    size: int = 0
    known: dict[bytes, int] = field(default_factory=dict)

    def add(self, content: bytes) -> int:
        """The offset of an array's bytes."""
        if content not in self.known:
            self.known[content] = self.size
            padded = content + bytes(-len(content) % ALIGN)
            self.parts.append(padded)
            self.size += len(padded)
        return self.known[content]

    def bytes(self) -> bytes:
        return b"".join(self.parts) or bytes(ALIGN)


@dataclass(frozen=True, slots=True)
class Parts:
    """What a build needs: C files with their flags, the weights, the model's tables as data."""

    name: str
    programs: tuple[CodedProgram, ...]
    units: tuple[Unit, ...]
    weights: bytes

    @property
    def signature(self) -> Signature:
        return self.programs[0].signature

    @property
    def versions(self) -> tuple[CodedVersion, ...]:
        return self.programs[0].versions


def assemble(
    sources: Sequence[tuple[Program, Weights]],
    name: str,
    machine: Machine,
    *,
    small: bool = False,
    admit: Callable[[ProgramPlan], None] | None = None,
) -> Parts:
    """`sources`: a program, and others for sizes that it refuses. `small`: one layout of weights, and code versions
    that share it. `admit` may refuse a plan before its weights are packed and its code is compiled."""
    name = c_name(name)
    blob = Blob()
    units: list[Unit] = []
    programs = [
        _assemble(program, weights, f"{name}_{i}", machine, blob, units, small, admit)
        for i, (program, weights) in enumerate(sources)
    ]
    return Parts(name, tuple(programs), tuple(units), blob.bytes())


def _assemble(
    program: Program,
    weights: Weights,
    name: str,
    machine: Machine,
    blob: Blob,
    units: list[Unit],
    small: bool,
    admit: Callable[[ProgramPlan], None] | None,
) -> CodedProgram:
    signature = signature_of(program.main)
    check_signature(signature)
    variants: list[CodedVariant] = []
    versions: list[CodedVersion] = []
    for group in _groups(program, choose_versions(program, machine, small=small)):
        layout = group[0].target
        plan = plan_for(program, layout)
        if admit is not None:
            admit(plan)
        bound = pack_weights(plan, layout, weights)
        for version in group:
            coded = CodedVersion(version.name, f"{name}_{version.name}", version.bits, len(variants))
            units += _emit(plan, coded.program, version, machine)
            versions.append(coded)
        variants.append(_place(make_main(plan, versions[-1].program), plan, bound, blob))
    versions.sort(key=lambda each: [v.name for v in machine.versions].index(each.name))
    return CodedProgram(signature, tuple(variants), tuple(versions))


def plan_for(program: Program, target: Target) -> ProgramPlan:
    """Everything that is decided before C is emitted."""
    return plan_lowered(lower(program, target), signature_of(program.main), target, schedules=_schedules(target))


def choose_versions(program: Program, machine: Machine, *, small: bool) -> list[CodeVersion]:
    """The code versions of a program: all that it gains from; where it is to be small, the last two: baseline code
    shares the weights of the version before it."""
    found = [each for each in machine.versions if has_int8(program) or not each.int8]
    return found[-2:] if small else found


def _schedules(target: Target) -> Lookup:
    """The tuned schedules of this machine for processors of its kind, the default ones for others."""
    return lookup(target) if target.name == platform.machine() else no_schedule


def make_main(plan: ProgramPlan, name: str) -> Entry:
    """The interface of @main."""
    return make_entry(function_name(name, "main"), plan.main[0], [port.name for port in plan.signature.inputs])


def _groups(program: Program, versions: Sequence[CodeVersion]) -> list[list[CodeVersion]]:
    """Versions that share one layout of packed weights. The baseline takes the first one's."""
    groups: list[list[CodeVersion]] = []
    for version in versions:
        wanted = layout_of(program, version.target)
        sharing = [group for group in groups if layout_of(program, group[0].target) == wanted]
        if not version.target.features and groups:
            sharing = groups[:1]
        if sharing:
            sharing[0].append(version)
        else:
            groups.append([version])
    return groups


def _emit(plan: ProgramPlan, name: str, version: CodeVersion, machine: Machine) -> list[Unit]:
    source = new_source(plan.target, tile=tile_shape(plan.target))
    emit_plan(plan, source, name, MAIN)
    texts = source.texts(1) if machine.system == "none" else split_source(source)
    return [Unit(f"{name}_{i}", text, version.target.flags) for i, text in enumerate(texts)]


def _peak(plan: ProgramPlan) -> tuple[int, int] | None:
    """Bytes of temporaries and of scratch, where no size is dynamic or data-dependent."""
    main, memory = plan.main
    if main.symbols or main.deferred:
        return None
    return memory.peak({}), evaluate(memory.scratch, {})


def _place(entry: Entry, plan: ProgramPlan, bound: Sequence[Array], blob: Blob) -> CodedVariant:
    constants = plan.main[0].constants
    layout = make_layout(entry, bound, len(constants), {})
    if not layout[QUICK]:
        raise UnsupportedError(
            "the C API cannot solve the dynamic dimensions of an input",
            expected="sizes that are linear in one symbol each",
            got=", ".join(map(str, entry.arguments[len(bound) :])),
            remedy="give them numbers: --size NAME=NUMBER",
        )
    offsets = [blob.add(np.ascontiguousarray(array).tobytes()) for array in bound]
    return CodedVariant(entry, tuple(layout), (*offsets, *(blob.add(each) for each in constants)), _peak(plan))
