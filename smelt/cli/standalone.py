"""`smelt compile --standalone`: a model file → an executable or a C library that needs no Python (docs/edge.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from smelt.aot.assemble import Parts, assemble, plan_for
from smelt.aot.build import OPTIMISE, Options, build, check_product, has_front, model_name
from smelt.aot.limit import check_limit
from smelt.aot.record import record_call
from smelt.aot.targets import Machine, find_machine, host_machine
from smelt.buffer import bytes_text, parse_bytes
from smelt.cli.preflight import parse_static, read_fixed
from smelt.cli.sizes import parse_sizes
from smelt.cli.standalone_chat import compile_chat, is_language_model
from smelt.dtype import Array
from smelt.engine.compile import ProgramPlan
from smelt.errors import SmeltError
from smelt.files import check_folder, write_atomically
from smelt.ir.core import Program
from smelt.model import use_broadcasting
from smelt.passes.quantise import with_precision
from smelt.weights import Weights

DEFAULT_THREADS = 4  # that a limit on memory counts, where --threads is not given
WEIGHTS = ("embedded", "separate")


def _check_choices(optimise: str, weights: str) -> None:
    for option, given, known in (("--optimize", optimise, tuple(OPTIMISE)), ("--weights", weights, WEIGHTS)):
        if given not in known:
            raise SmeltError(
                f"{option} is not understood",
                expected=" or ".join(known),
                got=given,
                remedy=f"{option} {next(iter(known))}",
            )


def compile_standalone(
    file: Path,
    output: Path,
    targets: Sequence[str],
    sizes: Sequence[str],
    static: Sequence[str],
    as_json: bool,
    precision: str | None,
    optimise: str,
    threads: int | None,
    weights_kind: str,
    memory_limit: str | None,
) -> None:
    _check_choices(optimise, weights_kind)
    if len(targets) > 1:
        raise SmeltError(
            "a standalone model is built for one target", got=", ".join(targets), remedy="one command for each"
        )
    machine = find_machine(targets[0] if targets else host_machine())
    check_product(machine, output.name, separate=weights_kind == "separate")
    check_folder(output)
    start = time.perf_counter()
    limit = None if memory_limit is None else parse_bytes(memory_limit, "--memory-limit")
    counted = DEFAULT_THREADS if threads is None else threads
    options = Options(threads != 0, optimise, weights_kind == "separate")
    if is_language_model(file):
        if sizes or static:
            raise SmeltError(
                "a language model has no sizes to choose",
                got=", ".join((*sizes, *static)),
                remedy="leave --size and --static out",
            )
        made, versions, weight_bytes = compile_chat(file, output, machine, precision, options, limit, counted)
    else:
        chosen = parse_sizes(sizes)
        read_file = partial(read_fixed, file, parse_static(file, static), chosen)
        parts, recorded = _assemble(
            file, output, machine, read_file, chosen, precision or "f32", optimise, limit, counted
        )
        made = build(parts, machine, output.name, options.replace(recorded=recorded))
        versions, weight_bytes = [version.name for version in parts.versions], len(parts.weights)
    for name, (content, mode) in made.items():
        write_atomically(output.with_name(name), [content], mode)
    files = {str(output.with_name(name)): len(content) for name, (content, _) in made.items()}
    record = {
        "files": files,
        "target": machine.name,
        "versions": versions,
        "weights": weight_bytes,
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print(json.dumps(record))
        return
    say = partial(Console(highlight=False, soft_wrap=True).print)
    for name, count in files.items():
        say(f"{escape(name)}: {bytes_text(count)}")
    say(f"for {machine.name} ({', '.join(versions)}), in {record['seconds']} s")


def _assemble(
    file: Path,
    output: Path,
    machine: Machine,
    read_file: Callable[..., tuple[Program, Weights]],
    chosen: Mapping[str, int],
    precision: str,
    optimise: str,
    limit: int | None,
    threads: int,
) -> tuple[Parts, tuple[Array, ...]]:
    """The parts of a model of tensors, and the call that `--selftest` repeats."""
    read, weights = read_file()
    program = with_precision(read, precision)

    def smaller() -> tuple[str, ProgramPlan] | None:
        if precision != "f32":
            return None
        return "--precision int8", plan_for(with_precision(read, "int8"), machine.versions[-1].target)

    def admit(plan: ProgramPlan) -> None:
        if limit is not None:
            check_limit(plan, limit, machine, threads, chosen, smaller)

    def put_together(*general: tuple[Program, Weights]) -> Parts:
        sources = [(program, weights), *general]
        return assemble(sources, model_name(output), machine, small=optimise == "size", admit=admit)

    parts = None
    if file.suffix.lower() == ".onnx":
        general = partial(read_file, runtime_broadcast=True)
        parts = use_broadcasting(read, general, precision, lambda *source: put_together(source))
    recorded = record_call(program, weights, chosen, machine.has_fma) if has_front(output.name) else ()
    return parts or put_together(), recorded
