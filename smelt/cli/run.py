"""`smelt run`: one call of a model on files, values or random numbers.

A bundle with given inputs runs without anything that reads or compiles models.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import cli
from smelt.cli.outputs import make_folder
from smelt.cli.sizes import parse_sizes
from smelt.cli.tables import Column, open_console, print_table
from smelt.cli.values import infer_symbols, read_inputs
from smelt.dtype import Array, dtype
from smelt.engine_api import Signature
from smelt.errors import FileError, UnsupportedError
from smelt.run.load import SUFFIX
from smelt.run.loaded import LoadedModel
from smelt.shape import Shape

COLUMNS = (
    Column("output", True),
    Column("type", True),
    Column("min", drop=1),
    Column("mean", drop=2),
    Column("max", drop=1),
    Column("first values", True),
)


def run(
    file: Path,
    inputs: Sequence[str],
    sizes: Sequence[str],
    engine: str,
    device: str,
    seed: int,
    output_dir: Path | None,
    as_json: bool,
    memory_limit: str | None = None,
    precision: str = "f32",
    static: Sequence[str] = (),
) -> None:
    make_folder(output_dir)
    start = time.perf_counter()
    given = cli.preflight.parse_static(file, static) if static else None
    options = {"device": device, "engine": engine, "memory_limit": memory_limit, "sizes": parse_sizes(sizes)}
    model = _load(file, {**options, "precision": precision, "static": given})
    loaded = time.perf_counter()
    arrays = _arrays(file, model.signature, inputs, sizes, static, seed)
    given_at = time.perf_counter()
    outputs = model.run(arrays)
    called = time.perf_counter()
    if output_dir is not None:
        save(outputs, output_dir)
    record = {
        "model": str(file),
        "engine": model.engine,
        "load_ms": round(1e3 * (loaded - start), 3),
        "call_ms": round(1e3 * (called - given_at), 3),
        "inputs": {name: describe(array) for name, array in arrays.items()},
        "outputs": {name: describe(array) for name, array in outputs.items()},
    }
    if as_json:
        print(json.dumps(record))
        return
    console = open_console()
    rows = []
    for name, array in outputs.items():
        facts = describe(array)
        numbers = [f"{facts[key]:.4g}" if facts.get(key) is not None else "" for key in ("min", "mean", "max")]
        rows.append((name, facts["type"], *numbers, ", ".join(_short(value) for value in facts["first"])))
    print_table(console, COLUMNS, rows)
    console.print(
        f"{model.engine} engine: loaded in {record['load_ms']} ms, called in {record['call_ms']} ms", style="dim"
    )


def _load(file: Path, options: dict[str, Any]) -> LoadedModel:
    if file.suffix.lower() != SUFFIX:
        cli.preflight.check_file(file)  # what is no model file has an error of its own
    model: Any = smelt.load(file, **options)
    if isinstance(model, LoadedModel):
        return model
    model.close()
    raise UnsupportedError(
        f"{file} is a language model", expected="a model from arrays to arrays", remedy=f"smelt generate {file} PROMPT"
    )


def _arrays(
    file: Path, signature: Signature, inputs: Sequence[str], sizes: Sequence[str], static: Sequence[str], seed: int
) -> dict[str, Array]:
    """The given inputs, and random numbers for the others."""
    given = read_inputs(signature, inputs)
    known = {size.rpartition("=")[0] for size in sizes}
    told = [*sizes, *(f"{name}={n}" for name, n in infer_symbols(signature, given).items() if name not in known)]
    if given.keys() >= {port.name for port in signature.inputs}:
        return given
    if file.suffix.lower() == SUFFIX:
        made = {**cli.bundle.random_inputs(file, told, seed), **given}
    else:
        made = cli.random_inputs.inputs_for(file, told, static, seed, given)
    return {port.name: made[port.name] for port in signature.inputs}


def save(outputs: dict[str, Array], folder: Path) -> None:
    """Write each output to a file; its name becomes a safe file name."""
    try:
        for name, array in outputs.items():
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "output"
            np.save(folder / f"{safe}.npy", array)
    except OSError as error:
        raise FileError(
            f"cannot write to {folder}", got=error, remedy="--output-dir with a folder that you may write to"
        ) from error


def describe(array: Array) -> dict[str, Any]:
    """Type, statistics and first values of an array, as a JSON record."""
    wide = array.astype(dtype(array.dtype).wide)
    facts: dict[str, Any] = {"type": str(Shape.of(dtype(array.dtype), array.shape))}
    if array.size and wide.dtype.kind in "fiu":
        facts |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    first = wide.reshape(-1)[:5].tolist()
    return facts | {"first": [str(value) if isinstance(value, complex) else value for value in first]}


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)
