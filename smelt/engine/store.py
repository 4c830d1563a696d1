"""Program + weights + names of targets → StoredModel: code per target, the arrays they share, text to recompile.

`smelt compile` and `LoadedModel.save` call it. `recompile` compiles a bundle's text where it has no code for a machine.
"""

from __future__ import annotations

import platform
import zlib
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TypeAlias

import numpy as np

from smelt.bundle.container import digest
from smelt.bundle.stored import Code, RuntimeCode, StoredModel, StoredProgram, Variant
from smelt.device import runtime
from smelt.device.api import Arrays, Device
from smelt.device.registry import device_of, find_device, find_target
from smelt.dtype import DType, ElementType, bf16, f32, i8, ui8
from smelt.engine.compile import (
    FUNCTIONS,
    NAME,
    Build,
    ProgramPlan,
    build_library,
    build_plan,
    emit_plan,
    lower,
    make_entries,
    new_source,
    plan_lowered,
    split_source,
)
from smelt.engine.signature import signature_of
from smelt.engine_api import KernelUse, Signature
from smelt.errors import DeviceError, FileError, UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.core import Program, walk
from smelt.ir.text import parse, print_program
from smelt.kernel.tune.schedules import default_schedule, schedule_text
from smelt.run.executable import NativeExecutable
from smelt.shape import Shape
from smelt.target import FP8, Target, TileShape, tile_shape
from smelt.weights import Weights

AGAIN = "compile the model again: smelt compile MODEL -o FILE.smelt"
LARGEST = 1 << 30  # bytes of a program's text
PRODUCTS = frozenset({"stablehlo.dot_general", "stablehlo.convolution"})

Bind: TypeAlias = Callable[[ProgramPlan, Target], Arrays | None]
# Of packed weights: the register tile, and whether panels hold pairs of bf16, and fp8.
Layout: TypeAlias = tuple[TileShape, bool, bool]


def default_targets(program: Program | None = None, device: Device | None = None) -> tuple[str, ...]:
    """The targets of a bundle that names none: the best of the device, and its baseline."""
    int8, bf16 = (False, False) if program is None else (has_int8(program), has_bf16_products(program))
    return (device or find_device()).default_targets(int8=int8, bf16=bf16)


def has_int8(program: Program) -> bool:
    """Whether some value of a program is int8 or uint8."""
    return not {i8, ui8}.isdisjoint(_element_types(program))


def has_fp8(program: Program) -> bool:
    """Whether some value of a program is a float of 8 bits."""
    return any(isinstance(each, DType) and each.is_float and each.bits == 8 for each in _element_types(program))


def _element_types(program: Program) -> set[ElementType]:
    results = (value for op in walk(program.main.body) for value in op.results)
    types = (value.type for value in (*program.main.args, *results))
    return {type.dtype for type in types if isinstance(type, Shape)}


def has_bf16_products(program: Program) -> bool:
    """Whether a program multiplies bf16 with sums of f32."""
    ops = (op for func in program.funcs.values() for op in walk(func.body) if op.name in PRODUCTS)
    return any(op.operands[1].shape.dtype == bf16 and op.results[0].shape.dtype == f32 for op in ops)


def layout_of(program: Program, target: Target) -> Layout:
    """The layout of packed weights: targets that share it share the weights."""
    eight = has_fp8(program)  # which other targets multiply as bf16 or f32
    pairs = target.has_pairs and (eight or has_bf16_products(program))
    return tile_shape(target), pairs, eight and FP8 in target.features


def store_program(program: Program, target: Target, bound: Arrays | None, targets: Sequence[str]) -> StoredModel:
    """A compiled program with its bound arrays."""
    have = layout_of(program, target)

    def bind(plan: ProgramPlan, other: Target) -> Arrays | None:
        wanted = layout_of(program, other)
        if bound and wanted != have:
            raise UnsupportedError(
                "the weights are already packed for another register tile",
                expected=f"targets with {_layout_text(have)}",
                got=_layout_text(wanted),
                remedy="smelt compile MODEL -o FILE.smelt --target …",
            )
        return None if bound is None else _on_host(bound)

    return _store(program, targets or default_targets(program, device_of(target)), bind)


def store_build(build: Build) -> StoredModel:
    """A compiled program as it is, without weights: for this processor, and not to be compiled again elsewhere."""
    plan, tile = build.plan, tile_shape(build.plan.target)
    main, prepare = make_entries(plan, NAME)
    library = device_of(plan.target).compile(split_source(build.source), plan.target)  # it is in the cache
    variant = Variant(
        (tile.rows, tile.columns, tile.lanes),
        bytes,
        main,
        tuple(_array(constant) for constant in plan.main[0].constants),
        prepare,
        tuple(_array(constant) for constant in (plan.prepare[0].constants if plan.prepare else ())),
        None,
        (Code("native", plan.target.as_json(), partial(bytes, library)),),
    )
    program = StoredProgram(plan.signature, plan.kernels, (variant,), {})
    return StoredModel("model", plan.signature, (program,), ())


def _on_host(arrays: Arrays) -> Arrays:
    """Packed weights as arrays: those of a device that has its own memory are copied."""
    return tuple(each if isinstance(each, np.ndarray) else each.numpy() for each in arrays)


def _layout_text(layout: Layout) -> str:
    tile, pairs, eight = layout
    return f"panels of {tile.columns} columns{' of fp8' if eight else ' in pairs of bf16' if pairs else ''}"


def store_weights(program: Program, weights: Weights, targets: Sequence[str]) -> StoredModel:
    """A program with its weights, for any targets. The weights are packed here, once per layout."""

    return _store(program, targets or default_targets(program), partial(pack_weights, weights=weights))


def pack_weights(plan: ProgramPlan, _target: Target, weights: Weights) -> Arrays:
    """The bound arrays of a plan: @prepare is emitted, and compiled and run here."""
    if plan.prepare is None:
        return ()
    source = new_source(plan.target)
    emit_plan(plan, source, NAME, ("prepare",))
    device = device_of(plan.target)
    library = build_library(source, device.target("native"))
    _, prepare = make_entries(plan, NAME)
    assert prepare is not None
    run = device.program(library, prepare, plan.prepare[0].constants).bind(())
    try:
        return _on_host(run(tuple(weights[port.name].numpy() for port in plan.signature.weights)))
    finally:
        run.close()


def recompile(
    text: bytes, tile: tuple[int, int, int], signature: Signature, bound: Arrays | None, device: Device
) -> NativeExecutable:
    """The program of a bundle, compiled for this machine. Its weights stay packed as they are."""
    known = {tile_shape(each) for each in device.targets.values()}
    if TileShape(*tile) not in known:
        if device is not find_device():
            raise DeviceError(f"the weights are packed for another device than {device.name}")
        raise FileError("the bundle has weights in panels of an unknown shape", expected=known, got=tile, remedy=AGAIN)
    plan = plan_lowered(read_program(text), signature, device.target("native"))
    taken = len(plan.main[0].of_kind("argument")) - len(signature.inputs)
    if taken != len(bound or ()) and (bound is not None or plan.prepare is None):
        raise FileError(
            "the program in the bundle does not take its weights",
            expected=taken,
            got=len(bound or ()),
            remedy=AGAIN,
        )
    return build_plan(plan, tile=TileShape(*tile), bound=bound).executable


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


class _Group(Frozen):
    """Targets that share one layout of packed weights, and so one lowered program."""

    layout: Target
    names: list[str]


def _groups(program: Program, targets: Sequence[str]) -> list[_Group]:
    """Baseline code uses the layout of the first other target: a fallback without weights of its own."""
    found = {name: find_target(name) for name in targets}
    groups: list[_Group] = []
    for name in sorted(found, key=lambda name: _is_baseline(name, found[name])):
        target = found[name]
        for group in groups:
            if group.layout.device != target.device:
                continue
            if _is_baseline(name, target) or layout_of(program, group.layout) == layout_of(program, target):
                group.names.append(name)
                break
        else:
            groups.append(_Group(target, [name]))
    return groups


def _is_baseline(name: str, target: Target) -> bool:
    return name == device_of(target).baseline


def _store(program: Program, targets: Sequence[str], bind: Bind) -> StoredModel:
    signature = signature_of(program.main)
    groups = _groups(program, targets)
    variants: list[Variant] = []
    kernels: tuple[KernelUse, ...] = ()
    tuned: dict[str, str] = {}
    for group in groups:
        low = lower(program, group.layout)
        plan = plan_lowered(low, signature, group.layout)
        here = device_of(group.layout).missing() is None
        packing = plan if here else plan_lowered(low, signature, find_device().target())  # by the processor
        variants.append(_variant(low, plan, group, bind(packing, group.layout)))
        kernels = kernels or plan.kernels
        tuned |= {f"tuned {group.names[0]}: {key}": text for key, text in _list_tuned(plan).items()}
    made_by = {**device_of(groups[0].layout).provenance(), **tuned}
    stored = StoredProgram(signature, kernels, tuple(variants), made_by)
    on_hosts = [find_target(name).name for group in groups for name in group.names if group.layout.kind == "cpu"]
    machines = dict.fromkeys(on_hosts or [platform.machine()])
    return StoredModel("model", signature, (stored,), tuple(_runtime(machine) for machine in machines))


def _list_tuned(plan: ProgramPlan) -> dict[str, str]:
    """The kernel shape keys whose schedule is not the default, as texts."""
    pairs = plan.chosen.items()
    return {str(key): schedule_text(schedule) for key, schedule in pairs if schedule != default_schedule(key)}


def _variant(program: Program, plan: ProgramPlan, group: _Group, bound: Arrays | None) -> Variant:
    tile = tile_shape(group.layout)
    source = new_source(group.layout)
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
    target = find_target(name)
    return Code(name, target.as_json(), partial(bytes, device_of(target).compile(texts, target)))


@cache
def _runtime(machine: str) -> RuntimeCode:
    """The host's runtime library, which every process needs that loads a bundle."""
    return RuntimeCode(machine, digest(*runtime.texts()), partial(bytes, runtime.compile_for(machine)))
