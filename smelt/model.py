"""Path → LoadedModel: `load` reads a model file, compiles it and binds its weights.

It connects importers and engines. `smelt.load` and the command line call it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from smelt import formats
from smelt.bundle.stored import StoredProgram
from smelt.device.cache import compiling_for
from smelt.device.registry import HOST, find_device, is_device
from smelt.dtype import Array
from smelt.engine import check_names, compile_with_first
from smelt.engine.choose_device import choose_device
from smelt.engine.footprint import Budget, Limited
from smelt.engine.native import NativeEngine
from smelt.engine.protocol import Engine
from smelt.engine.sample import sample_inputs
from smelt.engine.store import recompile, store_weights
from smelt.engine.tune import tune as tune_program
from smelt.engine_api import Executable
from smelt.errors import DeviceError, RunError, UnsupportedError
from smelt.ir.core import Program
from smelt.ir.verify import assumes_broadcasts
from smelt.passes.independent_rows import describe_batching
from smelt.passes.quantise import check_precision, with_precision
from smelt.read import jax_export, onnx, stablehlo
from smelt.read.onnx import StaticError
from smelt.read.onnx.declared import declared_signature, describe
from smelt.run import load as bundle
from smelt.run.loaded import Defaults
from smelt.run.loaded import LoadedModel as LoadedModel
from smelt.run.per_value import Build, DynamicSizes, MissingValuesError, PerValue, StoreGeneral
from smelt.weights import Weights

log = logging.getLogger("smelt")
T = TypeVar("T")

FORMATS: dict[str, Callable[[Path], tuple[Program, Weights]]] = {
    ".onnx": onnx.read,
    ".mlir": stablehlo.read,
    ".stablehlo": stablehlo.read,
    ".mlirbc": stablehlo.read,
    jax_export.SUFFIX: stablehlo.read,
}


def read(path: str | Path, static: Mapping[str, Any] | None = None) -> tuple[Program, Weights]:
    """A model file as a program and its weights; nothing is compiled and no weight is loaded.

    `static` gives values to compile-time inputs (axes, k, a target shape), which become constants of the program.
    """
    path = Path(path)
    suffix = check_file(path)
    if static and suffix != ".onnx":
        raise UnsupportedError(
            "only inputs of ONNX models can be given at import",
            got=", ".join(static),
            where=path,
            remedy="leave out static",
        )
    return onnx.read(path, static) if static else FORMATS[suffix](path)


def check_file(path: Path) -> str:
    """The suffix of a file that exists and has a known format."""
    if not os.path.isfile(path):  # Path.is_file raises for names that are too long
        raise formats.absent(path, ", ".join(FORMATS))
    suffix = path.suffix.lower()
    if suffix == bundle.SUFFIX:
        raise UnsupportedError(
            f"{path} is compiled already: the model itself is not in it",
            expected=", ".join(FORMATS),
            got=suffix,
            remedy="give the model that it was made of (smelt inspect names it); "
            "smelt run, bench, check, show and inspect take bundles",
        )
    if suffix not in FORMATS and stablehlo.is_binary(path):
        return jax_export.SUFFIX  # bytecode and jax.export are recognised by their content
    if suffix not in FORMATS:
        raise formats.unsupported(path, suffix, ", ".join(FORMATS))
    return suffix


def load(
    path: str | Path,
    *,
    device: str = "auto",
    engine: str = "auto",
    static: Mapping[str, Any] | None = None,
    memory_limit: int | str | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str = "f32",
    tune: float | None = None,
) -> LoadedModel:
    """Read, compile and bind a model: `smelt.load("model.onnx")(pixels=x)["probabilities"]`.

    Compile-time inputs are found automatically: the model then compiles once per value of them.
    `memory_limit` (bytes, or "512MB") bounds what the process takes for the model: its program, weights, packed weights
    and all calls at once, with their results while they run (not the compiler, which is a process of its own). A model
    that needs more is refused before its weights are loaded, for the dynamic dimensions given in `sizes` (else 1). A
    call that needs more than is free waits for others to end; one that could never fit is refused before it runs. With
    `precision="tf32"`, `"bf16"`, `"int8"` or `"fp8"` weight matmuls and convolutions round their operands.
    `tune` is a number of seconds for autotuning on random inputs; later loads use the schedules that were found.
    """
    check_precision(precision)
    if Path(path).suffix.lower() == bundle.SUFFIX:
        return bundle.load(
            path,
            recompile,
            device=device,
            engine=engine,
            static=static,
            memory_limit=memory_limit,
            precision=precision,
            sizes=sizes,
            tune=tune,
        )
    check_names(device, engine)
    seconds: Any = tune
    if seconds is not None and not (isinstance(seconds, int | float) and 0 < seconds < float("inf")):
        raise RunError("tune is no time", expected="seconds, more than 0", got=tune, remedy="tune=60")
    name, budget = Path(path).stem, Budget.of(memory_limit, sizes)
    if static is None and Path(path).suffix.lower() == ".onnx":
        again = partial(_load_fed, path, device, engine, budget, precision)
        defaults = Defaults(ports=cache(lambda: describe(path).overridable), build=again)
    else:
        defaults = None
    try:
        program, weights = read(path, static)
    except StaticError as error:
        if not (error.inputs or error.sizes):
            raise
        if tune is not None:
            error.remedy = "tuning needs a program: give static=…, or use smelt tune with --static and --size"
            raise
        fixed = static or {}
        build = _builder(path, device, engine, budget, precision, lambda used: setattr(model, "engine", used), fixed)
        said = declared_signature(path)
        signature = said._replace(inputs=tuple(port for port in said.inputs if port.name not in fixed))
        executable: Executable = PerValue(signature, error.inputs, error.sizes, build)
        model = LoadedModel(name, engine, executable, {}, source=Path(path), defaults=defaults)
        return model
    program = with_precision(program, precision)
    if tune is not None:
        _tune(program, weights, device, engine, sizes or {}, tune)
    used, executable = compile_for(program, device, engine, budget, name)
    executable = executable.prepare(weights)
    if Path(path).suffix.lower() == ".onnx":
        build = _builder(path, device, engine, budget, precision, lambda used: None, static or {})
        executable = _for_any_size(
            executable, build, partial(_store_general, path, program, precision, static or {}, ())
        )
    batching = describe_batching(program.main)
    return LoadedModel(name, used, executable, weights.metadata, batching, source=Path(path), defaults=defaults)


def _for_any_size(executable: Executable, build: Build, store_general: StoreGeneral) -> Executable:
    """The executable, and where its sizes are dynamic, programs for sizes that break its assumptions."""
    signature = executable.signature
    if all(port.shape.is_static for port in signature.inputs):
        return executable
    return DynamicSizes(executable, PerValue(signature, (), True, build), store_general)


def _store_general(
    path: str | Path,
    program: Program,
    precision: str,
    static: Mapping[str, Any],
    fed: tuple[str, ...],
    targets: Sequence[str],
) -> tuple[StoredProgram, ...]:
    """For a bundle: the program of an ONNX file that broadcasts at run time, where `program` assumes equal sizes."""
    return store_broadcasting(
        program, lambda: onnx.read(path, static, fed=fed, runtime_broadcast=True), precision, targets
    )


def store_broadcasting(
    program: Program, read_general: Callable[[], tuple[Program, Weights]], precision: str, targets: Sequence[str]
) -> tuple[StoredProgram, ...]:
    """What a bundle holds for sizes that a program assumes to be equal and that could be broadcast; often nothing."""

    def store(general: Program, weights: Weights) -> tuple[StoredProgram, ...]:
        return store_weights(general, weights, targets).programs

    return use_broadcasting(program, read_general, precision, store) or ()


def use_broadcasting(
    program: Program,
    read_general: Callable[[], tuple[Program, Weights]],
    precision: str,
    use: Callable[[Program, Weights], T],
) -> T | None:
    """What `use` makes of the program for sizes that `program` assumes to be equal and that could be broadcast."""
    if not assumes_broadcasts(program):
        return None
    try:
        general, weights = read_general()
        return use(with_precision(general, precision), weights)
    except UnsupportedError as error:
        said = " ".join(str(error).split())
        log.warning("when saved, dynamic dimensions that meet must be equal or 1 in the same operand: %s", said)
        return None


def _load_fed(
    path: str | Path, device: str, engine: str, budget: Budget | None, precision: str, names: tuple[str, ...]
) -> Executable:
    """The program of an ONNX file in which these inputs have no default."""
    build = _builder(path, device, engine, budget, precision, lambda used: None, fed=names)
    try:
        return build({}, {})
    except MissingValuesError as error:
        return PerValue(declared_signature(path, names), error.names, error.sizes, build)


def _tune(
    program: Program, weights: Weights, device: str, engine: str, sizes: Mapping[str, int], seconds: float
) -> None:
    """Measure a program's kernels before it is compiled."""
    if not is_device(device) or engine not in ("auto", "native"):
        got = f"device={device}, engine={engine}"
        raise UnsupportedError("only the native engine is tuned", got=got, remedy='leave tune= out, or engine="native"')
    try:
        tune_program(program, weights, sample_inputs(program, sizes), seconds, target=find_device(device).target())
    except UnsupportedError as error:
        if engine == "native":
            raise
        log.warning("nothing is tuned: %s", " ".join(str(error).split()))


def _builder(
    path: str | Path,
    device: str,
    engine: str,
    budget: Budget | None,
    precision: str,
    report: Callable[[str], None],
    static: Mapping[str, Any] | None = None,
    fed: tuple[str, ...] = (),
) -> Build:
    """A function that compiles a file for given values and shapes of inputs, and reports the engine."""

    def build(values: Mapping[str, Array], shapes: Mapping[str, tuple[int, ...]]) -> Executable:
        try:
            known = {**(static or {}), **values}
            program, weights = onnx.read(path, known, shapes, fed)
        except StaticError as error:
            if not set(error.inputs) - set(values) and not (error.sizes and not shapes):
                raise
            raise MissingValuesError(error.inputs, error.sizes) from error
        used, executable = compile_for(with_precision(program, precision), device, engine, budget, Path(path).stem)
        report(used)
        bound = executable.prepare(weights)
        if shapes:
            return bound
        store_general = partial(_store_general, path, program, precision, known, fed)
        return _for_any_size(
            bound, lambda _, fixed: build(values, fixed), store_general
        )  # the same values, other sizes

    return build


def compile_for(
    program: Program, device: str, engine: str, budget: Budget | None = None, name: str = ""
) -> tuple[str, Executable]:
    """The name of an engine and what it made of a program; `name` is the model's, for the cache.

    The device `auto` is the one that is predicted to be fastest (`engine.choose_device`).

    `auto` takes the first engine that can run it, and logs a warning where that is not the first that works here.
    """

    def compile_on(device: str) -> tuple[str, Executable]:
        with compiling_for(name):
            used, executable = compile_with_first(device, engine, lambda each: _compile(each, program, budget))
        return used.name, executable

    is_free = device == "auto" and engine in ("auto", "native") and budget is None  # a limit is one of host memory
    chosen = choose_device(program) if is_free else device
    if chosen in ("auto", HOST, device):
        return compile_on(chosen)
    try:
        return compile_on(chosen)
    except (UnsupportedError, DeviceError) as error:
        log.warning('device="auto" is %s, because %s refused: %s', HOST, chosen, " ".join(str(error).split()))
        return compile_on(HOST)


def _compile(engine: Engine[Program], program: Program, budget: Budget | None) -> Executable:
    if budget is None:
        return engine.compile(program)
    if not isinstance(engine, NativeEngine):
        raise UnsupportedError(f"the {engine.name} engine keeps to no memory limit", remedy="no memory_limit")
    footprint = engine.footprint(program)
    known = sorted({name for arg in program.main.args for name in arg.shape.symbols})
    unknown = sorted(set(budget.sizes) - set(known))
    if known and unknown:
        got = ", ".join(unknown)
        raise RunError("sizes: no such dynamic dimension", expected=", ".join(known), got=got, remedy="name these")
    footprint.check(budget.bytes, budget.sizes)
    compiled = engine.compile(program).within(budget.account(engine.device), footprint.parts({})["program"])
    return Limited(compiled, footprint, budget.bytes)


def model_of(
    program: Program,
    weights: Weights,
    *,
    device: str = "auto",
    engine: str = "auto",
    name: str = "model",
    memory_limit: int | str | None = None,
    sizes: Mapping[str, int] | None = None,
    precision: str = "f32",
) -> LoadedModel:
    """Compile a program and bind its weights; `memory_limit`, `sizes` and `precision` as in `load`."""
    budget = Budget.of(memory_limit, sizes)
    used, executable = compile_for(with_precision(program, precision), device, engine, budget, name)
    return LoadedModel(name, used, executable.prepare(weights), weights.metadata)
