"""`smelt run`: one call of a model on files or random numbers."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from smelt.cli.preflight import said_values
from smelt.cli.sizes import given_sizes, said_sizes
from smelt.dtype import Array, dtype
from smelt.engine.sample import random_array
from smelt.engine_api import Port, Signature
from smelt.errors import FileError, ShapeError, SmeltError
from smelt.model import load
from smelt.shape import Shape


def run(
    file: Path,
    inputs: Sequence[str],
    sizes: Sequence[str],
    engine: str,
    seed: int,
    output_dir: Path | None,
    as_json: bool,
    memory_limit: str | None = None,
    precision: str = "f32",
    static: Sequence[str] = (),
) -> None:
    start = time.perf_counter()
    model = load(
        file,
        engine=engine,
        static=said_values(file, static) or None,
        memory_limit=memory_limit,
        sizes=said_sizes(sizes),
        precision=precision,
    )
    loaded = time.perf_counter()
    arrays = gather(model.signature, inputs, sizes, seed)
    outputs = model.run(arrays)
    called = time.perf_counter()
    if output_dir is not None:
        save(outputs, output_dir)
    record = {
        "model": str(file),
        "engine": model.engine,
        "load_ms": round(1e3 * (loaded - start), 3),
        "call_ms": round(1e3 * (called - loaded), 3),
        "inputs": {name: describe(array) for name, array in arrays.items()},
        "outputs": {name: describe(array) for name, array in outputs.items()},
    }
    if as_json:
        print(json.dumps(record))
        return
    console = Console(highlight=False)
    table = Table("output", "type", "min", "mean", "max", "first values", box=None, pad_edge=False)
    for name, array in outputs.items():
        facts = describe(array)
        numbers = [f"{facts[key]:.6g}" if facts.get(key) is not None else "" for key in ("min", "mean", "max")]
        table.add_row(
            escape(name), escape(facts["type"]), *numbers, ", ".join(_short(value) for value in facts["first"])
        )
    console.print(table)
    console.print(
        f"{model.engine} engine: loaded in {record['load_ms']} ms, called in {record['call_ms']} ms", style="dim"
    )


def gather(signature: Signature, inputs: Sequence[str], sizes: Sequence[str], seed: int) -> dict[str, Array]:
    """The arrays for every input: from files where the user named them, else random."""
    chosen: dict[str, str] = {}
    names = [port.name for port in signature.inputs]
    for item in inputs:
        name, equals, value = item.partition("=")
        if not equals and item == "random":
            continue
        if not equals:
            raise SmeltError("--input is not understood", expected="NAME=FILE.npy, NAME=random or random", got=item)
        if name not in names:
            raise SmeltError("the model has no such input", expected=", ".join(names) or "no inputs", got=name)
        chosen[name] = value
    numbers = {
        port.name: _load(value) for port in signature.inputs if (value := chosen.get(port.name, "random")) != "random"
    }
    symbols = _symbols(signature, sizes, numbers)
    generator = np.random.default_rng(seed)
    return {
        port.name: numbers[port.name] if port.name in numbers else random_array(port.shape, symbols, generator)
        for port in signature.inputs
    }


def save(outputs: dict[str, Array], folder: Path) -> None:
    """Each output as a file; names become safe file names."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, array in outputs.items():
            safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in name).lstrip(".") or "output"
            np.save(folder / f"{safe}.npy", array)
    except OSError as error:
        raise FileError(f"cannot write to {folder}", got=error) from error


def describe(array: Array) -> dict[str, Any]:
    """Type, statistics and first values of an array, ready for JSON."""
    wide = array.astype(dtype(array.dtype).wide)
    facts: dict[str, Any] = {"type": str(Shape.of(dtype(array.dtype), array.shape))}
    if array.size and wide.dtype.kind in "fiu":
        facts |= {"min": float(wide.min()), "mean": float(wide.mean()), "max": float(wide.max())}
    first = wide.reshape(-1)[:5].tolist()
    return facts | {"first": [str(value) if isinstance(value, complex) else value for value in first]}


def _short(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def _load(path: str) -> Array:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise FileError(f"cannot read {path}", expected="a .npy file", got=error) from error
    if not isinstance(array, np.ndarray):
        raise FileError(f"cannot read {path}", expected="one array (.npy)", got="an archive of several (.npz)")
    return array


def _symbols(signature: Signature, sizes: Sequence[str], numbers: dict[str, Array]) -> dict[str, int]:
    """Values for the open sizes: from files, from `--size`, else 1."""
    symbols = given_sizes(signature, sizes)
    for port in signature.inputs:
        if port.name in numbers:
            symbols |= _measured(port, numbers[port.name])
    return symbols


def _measured(port: Port, array: Array) -> dict[str, int]:
    if array.ndim != port.shape.rank:
        raise ShapeError(f"the input {port.name!r} does not fit", expected=port.shape, got=list(array.shape))
    pairs = zip(port.shape.sizes, array.shape, strict=True)
    return {str(size): actual for size, actual in pairs if str(size) in port.shape.symbols}
