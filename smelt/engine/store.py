"""Program + weights + names of targets → StoredModel: code per target, the arrays they share, text to recompile.

`smelt compile` and `LoadedModel.save` call it. `recompile` compiles a bundle's text where it has no code for a machine.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from smelt.bundle.container import digest
from smelt.bundle.stored import Code, RuntimeCode, StoredModel, StoredProgram, Variant
from smelt.device import cpu, runtime
from smelt.dtype import bf16, f32, i8, ui8
from smelt.engine.compile import (
    FUNCTIONS,
    NAME,
    ProgramPlan,
    build_library,
    build_plan,
    emit_plan,
    lower,
    make_entries,
    plan_lowered,
    split_source,
)
from smelt.engine.signature import signature_of
from smelt.engine_api import KernelUse, Signature
from smelt.errors import DeviceError, FileError, UnsupportedError
from smelt.ir.core import Program, walk
from smelt.ir.text import parse, print_program
from smelt.kernel.emit.c import Source
from smelt.kernel.tune.schedules import default_schedule, schedule_text
from smelt.run.executable import Arrays, NativeExecutable
from smelt.shape import Shape
from smelt.target import Target, TileShape, tile_shape
from smelt.weights import Weights

PLAIN, VNNI = "plain", "avx512vnni"
GLIBC = "2.17"  # the oldest glibc that the runtime library of a bundle runs with
AGAIN = "compile the model again: smelt compile MODEL -o FILE.smelt"
LARGEST = 1 << 30  # bytes of a program's text
PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})

Bind: TypeAlias = Callable[[ProgramPlan, Target], Arrays | None]
Layout: TypeAlias = tuple[
    TileShape, bool
]  # of packed weights: the register tile, and whether panels hold pairs of bf16


def default_targets(program: Program | None = None) -> tuple[str, ...]:
    """The best target that this processor runs, and the baseline ISA.

    An int8 program gets VNNI code as well, which shares the packed weights.
    """
    here = cpu.target()
    fitting = [
        name
        for name, each in cpu.TARGETS.items()
        if name not in (PLAIN, VNNI) and each.name == here.name and each.features <= here.features
        if not each.has_pairs or (here.has_pairs and program is not None and has_bf16_products(program))
    ]
    first = [VNNI] if program is not None and _has_int8(program) else []
    return (*(name for name in first if cpu.TARGETS[name].features <= here.features), *fitting[:1], PLAIN)


def _has_int8(program: Program) -> bool:
    """Whether some value of a program is int8 or uint8."""
    results = (value for op in walk(program.main.body) for value in op.results)
    types = (value.type for value in (*program.main.args, *results))
    return any(isinstance(type, Shape) and type.dtype in (i8, ui8) for type in types)


def has_bf16_products(program: Program) -> bool:
    """Whether a program multiplies bf16 with sums of f32."""
    ops = (op for func in program.funcs.values() for op in walk(func.body) if op.name in PRODUCTS)
    return any(op.operands[1].shape.dtype == bf16 and op.results[0].shape.dtype == f32 for op in ops)


def _layout(program: Program, target: Target) -> Layout:
    return tile_shape(target), target.has_pairs and has_bf16_products(program)


def store_program(program: Program, target: Target, bound: Arrays | None, targets: Sequence[str]) -> StoredModel:
    """A compiled program with its bound arrays."""
    have = _layout(program, target)

    def bind(plan: ProgramPlan, other: Target) -> Arrays | None:
        wanted = _layout(program, other)
        if bound and wanted != have:
            raise UnsupportedError(
                "the weights are already packed for another register tile",
                expected=f"targets with {_layout_text(have)}",
                got=_layout_text(wanted),
                remedy="smelt compile MODEL -o FILE.smelt --target …",
            )
        return bound

    return _store(program, targets, bind)


def _layout_text(layout: Layout) -> str:
    tile, pairs = layout
    return f"panels of {tile.columns} columns{' in pairs of bf16' if pairs else ''}"


def store_weights(program: Program, weights: Weights, targets: Sequence[str]) -> StoredModel:
    """A program with its weights, for any targets. The weights are packed here, once per layout."""

    def bind(plan: ProgramPlan, target: Target) -> Arrays:
        if plan.prepare is None:
            return ()
        source = Source(tile_shape(target))
        emit_plan(plan, source, NAME, ("prepare",))
        library = build_library(source, cpu.target("native"))
        _, prepare = make_entries(plan, NAME)
        assert prepare is not None
        run = prepare.program(library, plan.prepare[0].constants).bind(())
        try:
            return run(tuple(weights[port.name].numpy() for port in plan.signature.weights))
        finally:
            run.close()

    return _store(program, targets, bind)


def recompile(text: bytes, tile: tuple[int, int, int], signature: Signature, bound: Arrays | None) -> NativeExecutable:
    """The program of a bundle, compiled for this machine. Its weights stay packed as they are."""
    known = {tile_shape(each) for each in cpu.TARGETS.values()}
    if TileShape(*tile) not in known:
        raise FileError("the bundle has weights in panels of an unknown shape", expected=known, got=tile, remedy=AGAIN)
    plan = plan_lowered(read_program(text), signature)
    taken = len(plan.main[0].of_kind("argument")) - len(signature.inputs)
    if taken != len(bound or ()) and (bound is not None or plan.prepare is None):
        raise FileError(
            "the program in the bundle does not take its weights",
            expected=taken,
            got=len(bound or ()),
            remedy=AGAIN,
        )
    return build_plan(plan, cpu.target("native"), tile=TileShape(*tile), bound=bound).executable


def read_program(text: bytes) -> Program:
    """The program of a bundle, from its compressed text."""
    return parse(decompress_text(text))


def decompress_text(text: bytes) -> str:
    """The text itself."""
    try:
        found = zlib.decompressobj().decompress(text, LARGEST)
        return found.decode()
    except (zlib.error, UnicodeDecodeError) as error:
        raise FileError("the program in the bundle cannot be read", got=error, remedy=AGAIN) from error


# ---- variants ----


@dataclass(frozen=True, slots=True)
class _Group:
    """Targets that share one layout of packed weights, and so one lowered program."""

    layout: Target
    names: list[str]


def _groups(program: Program, targets: Sequence[str]) -> list[_Group]:
    """Baseline code uses the layout of the first other target: a fallback without weights of its own."""
    names = list(dict.fromkeys(targets or default_targets(program)))
    groups: list[_Group] = []
    for name in sorted(names, key=lambda name: name == PLAIN):
        target = _target_of(name)
        for group in groups:
            if name == PLAIN or _layout(program, group.layout) == _layout(program, target):
                group.names.append(name)
                break
        else:
            groups.append(_Group(target, [name]))
    return groups


def _target_of(name: str) -> Target:
    if name not in cpu.TARGETS:
        raise DeviceError("unknown target", expected=", ".join(cpu.TARGETS), got=name, remedy="targets=[…] with these")
    return cpu.target(name)


def _store(program: Program, targets: Sequence[str], bind: Bind) -> StoredModel:
    signature = signature_of(program.main)
    groups = _groups(program, targets)
    variants: list[Variant] = []
    kernels: tuple[KernelUse, ...] = ()
    tuned: dict[str, str] = {}
    for group in groups:
        low = lower(program, group.layout)
        plan = plan_lowered(low, signature, group.layout)
        variants.append(_variant(low, plan, group, bind(plan, group.layout)))
        kernels = kernels or plan.kernels
        tuned |= {f"tuned {group.names[0]}: {key}": text for key, text in _tuned(plan).items()}
    made_by = {"compiler": _compiler(), "flags": " ".join(cpu.FLAGS), **tuned}
    stored = StoredProgram(signature, kernels, tuple(variants), made_by)
    machines = {_target_of(name).name: name for group in groups for name in group.names}
    return StoredModel("model", signature, (stored,), tuple(_runtime(machine) for machine in machines))


def _tuned(plan: ProgramPlan) -> dict[str, str]:
    """The kernel shape keys whose schedule is not the default, as texts."""
    pairs = plan.chosen.items()
    return {str(key): schedule_text(schedule) for key, schedule in pairs if schedule != default_schedule(key)}


def _variant(program: Program, plan: ProgramPlan, group: _Group, bound: Arrays | None) -> Variant:
    tile = tile_shape(group.layout)
    source = Source(tile)
    emit_plan(plan, source, NAME, FUNCTIONS if bound is None else ("main",))
    texts = split_source(source)
    main, prepare = make_entries(plan, NAME)
    first = plan.prepare[0].constants if plan.prepare and bound is None else ()
    return Variant(
        (tile.rows, tile.columns, tile.lanes),
        partial(zlib.compress, print_program(program).encode(), 6),
        main,
        tuple(_array(constant) for constant in plan.main[0].constants),
        prepare if bound is None else None,
        tuple(_array(constant) for constant in first),
        bound,
        tuple(_code(name, texts) for name in group.names),
    )


def _array(constant: bytes) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    return np.frombuffer(constant, np.uint8)


def _code(name: str, texts: Sequence[str]) -> Code:
    target = _target_of(name)
    return Code(name, target.name, tuple(sorted(target.features)), partial(bytes, _compile(texts, target)))


@cache
def _runtime(machine: str) -> RuntimeCode:
    """The runtime library for the baseline ISA of a machine."""
    plain = Target(machine, 1, 16, flags=("baseline",))
    text = runtime.source()
    command = cpu.compiler()
    linux = sys.platform == "linux" and command is not None and command[-2:] == ("ziglang", "cc")
    old = (f"--target={machine}-linux-gnu.{GLIBC}",) if linux else ()
    return RuntimeCode(
        machine, digest(*runtime.texts()), partial(bytes, _compile([text], plain, *runtime.flags(), *old))
    )


def _compile(texts: Sequence[str], target: Target, *flags: str) -> bytes:
    with tempfile.TemporaryDirectory(prefix="smelt-bundle-") as folder:
        made = Path(folder) / "code.so"
        cpu.compile_to(made, texts, *flags, processor=target)
        return made.read_bytes()


@cache
def _compiler() -> str:
    """The compiler's own name and version."""
    command = cpu.compiler()
    assert command is not None, "something was compiled"
    done = subprocess.run([*command, "--version"], capture_output=True, text=True, errors="replace", check=False)
    return (done.stdout.strip().splitlines() or [" ".join(command)])[0]
