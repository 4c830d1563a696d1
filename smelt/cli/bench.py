"""`smelt bench`: how long a model's call takes here, beside a peer's where asked; rounds are interleaved."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from smelt.cli.preflight import looked_at, must_be_readable, sampled
from smelt.cli.run import gather
from smelt.cli.sizes import said_sizes
from smelt.dtype import Array
from smelt.errors import MissingPackageError, SmeltError
from smelt.model import Model, load

Call = Callable[[], Any]


def bench(
    file: Path,
    sizes: list[str],
    engine: str,
    against: list[str],
    seconds: float,
    as_json: bool,
    static: Sequence[str] = (),
    memory_limit: str | None = None,
) -> None:
    model = load(file, engine=engine, memory_limit=memory_limit, sizes=said_sizes(sizes))
    inputs = random_inputs(file, model, sizes, static)
    calls: dict[str, Call] = {f"smelt ({model.engine})": lambda: model.run(inputs)}
    for peer in against:
        if peer not in PEERS:
            raise SmeltError("unknown peer", expected=", ".join(PEERS), got=peer)
        calls[peer] = PEERS[peer](file, inputs)
    times = measure(calls, seconds)
    rows = {name: summary(values) for name, values in times.items()}
    if as_json:
        shown = {name: list(array.shape) for name, array in inputs.items()}
        print(json.dumps({"model": str(file), "cores": os.cpu_count(), "inputs": shown, "engines": rows}))
        return
    first = next(iter(rows.values()))["median_ms"]
    table = Table("engine", "median ms", "p10", "p90", "calls", "of smelt's", box=None, pad_edge=False)
    for name, row in rows.items():
        numbers = [f"{row[key]:.3f}" for key in ("median_ms", "p10", "p90")]
        table.add_row(name, *numbers, str(row["runs"]), f"{row['median_ms'] / first:.2f} x")
    Console(highlight=False).print(table)


def random_inputs(file: Path, model: Model, sizes: list[str], static: Sequence[str]) -> dict[str, Array]:
    """Random numbers; what shapes the program is as the user said, or a sample that there is a program for."""
    if not (model.shaped or static):
        return gather(model.signature, ["random"], sizes, 0)
    found = looked_at(file, sizes, static)
    assert found is not None, "only ONNX files have static inputs"
    must_be_readable(found)
    return {**sampled(found, 0), **found.static}


def measure(calls: Mapping[str, Call], seconds: float) -> dict[str, list[float]]:
    """Milliseconds of each call, in turns, for about so many seconds in all, at least three rounds."""
    for call in calls.values():
        call()
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < 3 or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(1e3 * (time.perf_counter() - start))
    return times


def summary(values: list[float]) -> dict[str, Any]:
    low, median, high = np.percentile(values, [10, 50, 90])
    return {"median_ms": float(median), "p10": float(low), "p90": float(high), "runs": len(values)}


def _onnxruntime(file: Path, inputs: Mapping[str, Array]) -> Call:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingPackageError("onnxruntime is not installed", remedy="pip install onnxruntime") from error
    if file.suffix != ".onnx":
        raise SmeltError("onnxruntime runs ONNX files only", got=file.name)
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda: session.run(None, dict(inputs))


PEERS: dict[str, Callable[[Path, Mapping[str, Array]], Call]] = {"onnxruntime": _onnxruntime}
