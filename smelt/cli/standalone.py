"""`smelt compile --standalone`: a model file → an executable or a C library that needs no Python (docs/edge.md)."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from smelt.aot.assemble import assemble
from smelt.aot.build import DEFAULT, Options, build, model_name
from smelt.aot.targets import MACHINES as MACHINES
from smelt.aot.targets import find_machine, host_machine
from smelt.buffer import bytes_text
from smelt.cli.preflight import parse_static, read_fixed
from smelt.cli.sizes import parse_sizes
from smelt.errors import SmeltError
from smelt.files import check_folder, write_atomically
from smelt.passes.quantise import with_precision


def compile_standalone(
    file: Path,
    output: Path,
    targets: Sequence[str],
    sizes: Sequence[str],
    static: Sequence[str],
    as_json: bool,
    precision: str = "f32",
    options: Options = DEFAULT,
) -> None:
    if len(targets) > 1:
        raise SmeltError(
            "a standalone model is built for one target", got=", ".join(targets), remedy="one command for each"
        )
    machine = find_machine(targets[0] if targets else host_machine())
    check_folder(output)
    start = time.perf_counter()
    program, weights = read_fixed(file, parse_static(file, static), parse_sizes(sizes))
    parts = assemble(
        with_precision(program, precision), weights, model_name(output), machine, small=options.optimise == "size"
    )
    made = build(parts, machine, output.name, options)
    for name, (content, mode) in made.items():
        write_atomically(output.with_name(name), [content], mode)
    files = {str(output.with_name(name)): len(content) for name, (content, _) in made.items()}
    versions = [version.name for version in parts.versions]
    record = {
        "files": files,
        "target": machine.name,
        "versions": versions,
        "weights": len(parts.weights),
        "seconds": round(time.perf_counter() - start, 3),
    }
    if as_json:
        print(json.dumps(record))
        return
    say = partial(Console(highlight=False, soft_wrap=True).print)
    for name, count in files.items():
        say(f"{escape(name)}: {bytes_text(count)}")
    say(f"for {machine.name} ({', '.join(versions)}), in {record['seconds']} s")
