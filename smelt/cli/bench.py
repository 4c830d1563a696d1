"""`smelt bench`: the latency distribution of a model on this machine, optionally beside peers.

Every engine runs in its own process; measurements are interleaved (`cli.rounds`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.markup import escape

from smelt.cli import bundle
from smelt.cli.accuracy import accuracy
from smelt.cli.preflight import parse_static
from smelt.cli.random_inputs import inputs_for
from smelt.cli.rounds import Outcome, Setup, Times, measure, processors, python_of
from smelt.cli.sizes import parse_sizes
from smelt.cli.tables import Column, open_console, print_table
from smelt.dtype import Array
from smelt.errors import SmeltError
from smelt.passes.quantise import check_precision

BARS = " ▁▂▃▄▅▆▇█"
BINS = 60
COLUMNS = (
    Column("engine", True),
    Column("median ms"),
    Column("p10", drop=2),
    Column("p90", drop=1),
    Column("p99", drop=3),
    Column("calls/s", drop=4),
    Column("calls", drop=5),
    Column("of smelt's"),
)


def bench(
    file: Path,
    sizes: list[str],
    engine: str,
    against: list[str],
    seconds: float,
    as_json: bool,
    static: Sequence[str] = (),
    memory_limit: str | None = None,
    threads: int | None = None,
    pythons: Sequence[str] = (),
    precision: str = "f32",
    original: Path | None = None,
    device: str = "auto",
) -> None:
    check_precision(precision)
    inputs = _inputs(file, sizes, static, original, against)
    setup = Setup(
        threads=threads or processors(),
        seconds=seconds,
        solo=False,
        ours={
            "device": device,
            "engine": engine,
            "precision": precision,
            "memory_limit": memory_limit,
            "sizes": parse_sizes(sizes),
        },
        pythons=python_of(pythons),
        original=original,
    )
    outcome = measure(file, ["smelt", *against], inputs, setup)
    if "smelt" in outcome.errors:
        raise outcome.errors["smelt"]
    reason = outcome.failed.get("smelt") or outcome.skipped.get("smelt")
    if reason is not None:
        raise SmeltError("the model could not be run", got=reason, remedy=f"smelt check {file} says why")
    record = _record(file, inputs, outcome, setup)
    if precision != "f32":
        record |= {"precision": precision, "accuracy": [each.record() for each in accuracy(file, inputs, setup.ours)]}
    if as_json:
        print(json.dumps(record))
    else:
        _print(record, outcome)
        _print_accuracy(record)
    if precision == "f32" and not all(each.agree for each in outcome.differences):
        raise SystemExit(1)


def _inputs(
    file: Path, sizes: Sequence[str], static: Sequence[str], original: Path | None, against: Sequence[str]
) -> dict[str, Array]:
    if bundle.is_bundle(file):
        parse_static(file, static)  # refuses them
        bundle.check_original(file, original, against)
        return bundle.random_inputs(file, sizes)
    if original is not None:
        raise SmeltError(
            "--original belongs to a bundle: peers read any other model themselves",
            got=file,
            remedy="leave --original out",
        )
    return inputs_for(file, sizes, static)


def _print_accuracy(record: dict[str, Any]) -> None:
    """The error of another precision, per output."""
    if "accuracy" not in record:
        return
    columns = (Column(f"{record['precision']} against f32", True), Column("cosine"), Column("max error"), Column("max"))
    rows = [
        (each["output"], f"{each['cosine']:.6f}", f"{each['max_error']:.4g}", f"{each['greatest']:.4g}")
        for each in record["accuracy"]
    ]
    print_table(open_console(), columns, rows)


def _record(file: Path, inputs: dict[str, Array], outcome: Outcome, setup: Setup) -> dict[str, Any]:
    rows = {_label(name, times): _row(times) for name, times in outcome.times.items()}
    return {
        "model": str(file),
        "cores": os.cpu_count(),
        "threads": setup.threads,
        "inputs": {name: list(array.shape) for name, array in inputs.items()},
        "engines": rows,
        "skipped": outcome.skipped,
        "failed": outcome.failed,
        "differences": [each.record() for each in outcome.differences],
    }


def _label(name: str, times: Times) -> str:
    return f"smelt ({times.version.rpartition('(')[2]}" if name == "smelt" else name


def _row(times: Times) -> dict[str, Any]:
    more = {"min_ms": min(times.values), "p99": float(np.percentile(times.values, 99)), "first_ms": times.first}
    return {**times.summary(), **more, "calls_per_second": 1e3 / float(np.mean(times.values)), "version": times.version}


def _print(record: dict[str, Any], outcome: Outcome) -> None:
    console = open_console()
    first = next(iter(record["engines"].values()))["median_ms"]
    rows = []
    for name, row in record["engines"].items():
        numbers = [f"{row[key]:.3f}" for key in ("median_ms", "p10", "p90", "p99")]
        ratio = f"{row['median_ms'] / first:.2f} x"
        rows.append((name, *numbers, f"{row['calls_per_second']:.1f}", str(row["runs"]), ratio))
    print_table(console, COLUMNS, rows)
    values = {_label(name, times): times.values for name, times in outcome.times.items()}
    console.print()
    for line in histogram(values, min(BINS, console.width - max(map(len, values)) - 1)):
        console.print(line, markup=False)
    for name, reason in (outcome.skipped | outcome.failed).items():
        console.print(f"{name} was left out: {escape(reason)}", style="dim")
    for each in outcome.differences:
        if not each.agree:
            far = f"{each.absolute:.3g}, {each.relative:.3g} of the scale {each.what}"
            console.print(f"[bold red]outputs of {' and '.join(each.engines)} differ[/] by up to {escape(far)}")


def histogram(values: Mapping[str, Sequence[float]], columns: int = BINS) -> list[str]:
    """A histogram line per engine over a common logarithmic axis of milliseconds, then the axis.

    The slowest percent of each is left out.
    """
    low = min(min(each) for each in values.values())
    high = max(float(np.percentile(each, 99)) for each in values.values())
    edges = np.geomspace(max(low, 1e-6), max(high, low * 1.01, 2e-6), columns + 1)
    edges[0], edges[-1] = low, max(edges[-1], high)  # rounding must not lose the ends
    width = max(map(len, values))
    lines = []
    for name, each in values.items():
        counts, _ = np.histogram(each, edges)
        levels = np.ceil(counts / max(counts.max(), 1) * (len(BARS) - 1)).astype(int)
        lines.append(f"{name:{width}} {''.join(BARS[level] for level in levels)}")
    left, middle, right = (f"{edges[i]:.3g}" for i in (0, columns // 2, columns))
    axis = f"{left}{middle:^{max(columns - len(left) - len(right), 1)}}{right}"
    return [*lines, f"{'ms':{width}} {axis}"]
