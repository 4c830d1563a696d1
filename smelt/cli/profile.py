"""`smelt profile`: the time of every kernel of a call, against this machine's roofline.

A model → a table or JSON; optionally a trace for Perfetto or chrome://tracing, and the roofline as SVG.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from smelt.cli.outputs import check_output
from smelt.cli.preflight import read_with_samples, require_readable
from smelt.cli.random_inputs import inputs_for
from smelt.cli.roofline import Point, roofline_svg
from smelt.cli.tables import Column, open_console, print_table
from smelt.device.cache import compiling_for
from smelt.device.peak import Peaks
from smelt.device.registry import find_device
from smelt.dtype import Array
from smelt.engine.profile import Profile, Step
from smelt.engine.profile import profile as profile_program
from smelt.engine.signature import signature_of
from smelt.errors import DeviceError, FileError
from smelt.ir.core import Program
from smelt.model import read
from smelt.read import onnx
from smelt.read.onnx import StaticError
from smelt.weights import Weights

SHOWN_NODES = 3
STEADY = 0.8  # of the best: a median probe below it means that other processes ran
OVER = 1.05  # of the roofline: more than the probes' own noise
COLUMNS = (
    Column("kernel", True),
    Column("x", drop=1),
    Column("ms"),
    Column("%"),
    Column("GFLOP/s", drop=3),
    Column("GB/s", drop=4),
    Column("best ms", drop=2),
    Column("of best"),
    Column("computes", True),
)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `profile`."""

    sizes: tuple[str, ...] = ()
    static: tuple[str, ...] = ()
    seconds: float = 2.0
    top: int = 25
    each: bool = False  # a row per launch, not per kernel
    as_json: bool = False
    trace: Path | None = None
    svg: Path | None = None
    peaks_again: bool = False
    device: str = "auto"


def profile(file: Path, options: Options) -> None:
    check_output(options.trace)
    check_output(options.svg)
    program, weights = program_of(file, options.sizes, options.static)
    given = inputs_for(file, options.sizes, options.static)
    inputs = [given[port.name] for port in signature_of(program.main).inputs]
    with compiling_for(f"{file.stem} (profile)"):
        found, best = measure(program, weights, inputs, options)
    rows = table_of(found, best, options.each)
    if options.trace is not None:
        _write(options.trace, json.dumps(chrome_trace(file.name, found)))
    if options.svg is not None:
        _write(options.svg, roofline_svg(f"{file.name}: {found.milliseconds:.3g} ms a call", _points(rows), best))
    if options.as_json:
        print(json.dumps(_record(file, find_device(options.device).name, found, best, rows)))
    else:
        _print(found, best, rows, options)


def measure(program: Program, weights: Weights, inputs: Sequence[Array], options: Options) -> tuple[Profile, Peaks]:
    """Times of the program, and the machine's peaks from probes before, between and after its calls."""
    device = find_device(options.device)
    why = device.missing()
    if why is not None:
        raise DeviceError(f"nothing can be profiled on {options.device}", got=why, remedy="smelt devices lists them")
    meter = device.meter(again=options.peaks_again)
    meter.probe_ends()
    found = profile_program(program, weights, inputs, options.seconds, meter.probe, device.target())
    meter.probe_ends()
    return found, meter.peaks()


def program_of(file: Path, sizes: Sequence[str], static: Sequence[str]) -> tuple[Program, Weights]:
    """The program; with sample values of compile-time inputs."""
    if not static:
        try:
            return read(file)
        except StaticError:
            pass
    found = read_with_samples(file, sizes, static)
    assert found is not None, "only ONNX files have static inputs"
    require_readable(found)
    return onnx.read(file, found.static, found.shapes)


# ---- rows ----


def table_of(found: Profile, best: Peaks, each: bool) -> list[dict[str, Any]]:
    """A record for every kernel, or every launch, the longest first."""
    groups: dict[object, list[Step]] = {}
    for i, step in enumerate(found.steps):
        groups.setdefault(i if each else step.kernel, []).append(step)
    total = sum(step.milliseconds for step in found.steps)
    rows = [_row(steps, total, best) for steps in groups.values()]
    return sorted(rows, key=lambda row: -float(row["ms"]))


def _row(steps: Sequence[Step], total: float, best: Peaks) -> dict[str, Any]:
    ms = sum(step.milliseconds for step in steps)
    operations = _sum([None if step.cost.operations is None else step.runs * step.cost.operations for step in steps])
    moved = _sum([None if step.cost.bytes is None else step.runs * step.cost.bytes for step in steps])
    predicted = _sum([_predict(step, best) for step in steps])
    ran = ms > 0
    return {
        "kernel": steps[0].kernel,
        "kind": steps[0].kind,
        "launches": len(steps),
        "runs": sum(step.runs for step in steps),
        "ms": ms,
        "least_ms": sum(step.least for step in steps),
        "share": ms / total if total else 0.0,
        "operations": operations,
        "bytes": moved,
        "gflops": operations / ms / 1e6 if ran and operations is not None else None,
        "gbytes_per_second": moved / ms / 1e6 if ran and moved is not None else None,
        "predicted_ms": predicted,
        "of_roofline": predicted / ms if ran and predicted is not None else None,
        "bound": _bound(operations, moved, best, steps[0].on_tensor_cores),
        "ops": list(dict.fromkeys(op for step in steps for op in step.ops)),
        "nodes": list(dict.fromkeys(node for step in steps for node in step.nodes)),
        "writes": [list(step.shapes) for step in steps],
    }


def _sum(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _predict(step: Step, best: Peaks) -> float | None:
    """Milliseconds that the roofline allows."""
    if step.cost.operations is None or step.cost.bytes is None:
        return None
    return 1e3 * step.runs * best.seconds(step.cost.operations, step.cost.bytes, step.on_tensor_cores)


def _bound(operations: float | None, moved: float | None, best: Peaks, on_tensor_cores: bool) -> str | None:
    """The bound of a kernel on the roofline: arithmetic or memory."""
    if operations is None or moved is None:
        return None
    gflops = best.gflops_for(on_tensor_cores)
    return "arithmetic" if operations / gflops > moved / best.bandwidth_for(moved) else "memory"


def _points(rows: Sequence[dict[str, Any]]) -> list[Point]:
    points = []
    for row in rows:
        if row["operations"] and row["bytes"] and row["gflops"]:
            note = f"{row['kernel']} x{row['launches']}: {row['ms']:.3g} ms, {100 * row['share']:.1f} % of the time, "
            note += f"{row['gflops']:.1f} GFLOP/s, {100 * row['of_roofline']:.0f} % of the roofline; {_nodes(row)}"
            intensity = row["operations"] / row["bytes"]
            points.append(Point(row["kernel"], row["kind"], intensity, row["gflops"], row["share"], note))
    return points


# ---- output ----


def _record(file: Path, device: str, found: Profile, best: Peaks, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        "model": str(file),
        "device": device,
        "threads": best.threads,
        "call_ms": found.milliseconds,
        "calls": len(found.calls),
        "kernels_ms": sum(step.milliseconds for step in found.steps),
        "gflop": _scale(_sum([row["operations"] for row in rows]), 1e-9),
        "predicted_ms": _sum([row["predicted_ms"] for row in rows]),
        "peaks": {
            "gflops": best.gflops,
            "tensor_gflops": best.tensor_gflops,
            "memory_gbytes_per_second": best.memory_bandwidth,
            "bandwidth": [list(point) for point in best.bandwidth],
            "steadiness": best.steadiness,
        },
        "kernels": list(rows),
    }


def _scale(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _print(found: Profile, best: Peaks, rows: Sequence[dict[str, Any]], options: Options) -> None:
    console = open_console()
    cells = []
    for row in rows[: options.top]:
        numbers = [
            _milliseconds(row["ms"]),
            f"{100 * row['share']:.1f}",
            _number(row["gflops"]),
            _number(row["gbytes_per_second"]),
        ]
        part = "" if row["of_roofline"] is None else f"{100 * row['of_roofline']:.0f} %"
        best_ms = "" if row["predicted_ms"] is None else _milliseconds(row["predicted_ms"])
        cells.append((row["kernel"], str(row["launches"]), *numbers, best_ms, part, _nodes(row)))
    print_table(console, COLUMNS, cells)
    if len(rows) > options.top:
        rest = sum(row["ms"] for row in rows[options.top :])
        console.print(f"… and {len(rows) - options.top} more, {rest:.3f} ms (--top N shows them)", style="dim")
    total, predicted = sum(row["ms"] for row in rows), _sum([row["predicted_ms"] for row in rows])
    ideal = "" if predicted is None else f", {_milliseconds(predicted)} ms at best"
    console.print(
        f"\na call: {_milliseconds(found.milliseconds)} ms (median of {len(found.calls)}); "
        f"its kernels: {_milliseconds(total)} ms{ideal}"
    )
    console.print(_peaks_text(best), style="dim")
    for note in _notes(found, best, rows, total):
        console.print(note, style="yellow")


def _peaks_text(best: Peaks) -> str:
    whose = f"peaks with {best.threads} threads" if best.threads else "peaks of the device"
    tensor = "" if best.tensor_gflops is None else f", {best.tensor_gflops:.0f} GFLOP/s (bf16, by its data sheet)"
    return (
        f"{whose}: {best.gflops:.0f} GFLOP/s (f32){tensor}, {best.memory_bandwidth:.1f} GB/s from "
        f"memory, {max(rate for _, rate in best.bandwidth):.0f} GB/s from caches"
    )


def _notes(found: Profile, best: Peaks, rows: Sequence[dict[str, Any]], total: float) -> list[str]:
    """Warnings about the measurement."""
    notes = []
    if best.steadiness < STEADY:
        notes.append(
            f"the machine was busy: half of the probes reached less than {100 * best.steadiness:.0f} % of its peak, "
            "so the kernels' times are too long; measure again on a quiet machine"
        )
    over = [row for row in rows if (row["of_roofline"] or 0) > OVER]
    if over:
        notes.append(
            f"{len(over)} of the kernels beat the f32 roofline: int8, bf16 and Winograd kernels may; "
            "for others, measure again on a quiet machine"
        )
    if found.lost:
        notes.append(f"{found.lost} steps of a call did not fit into the log: they are in no kernel's time")
    elif abs(found.milliseconds - total) > 0.2 * found.milliseconds and found.milliseconds > 0.1:
        notes.append("the kernels' times do not add up to the call's: something else ran on this machine")
    return notes


def _milliseconds(value: float) -> str:
    return f"{value:.3f}" if value >= 1 else f"{value:.3g}"


def _number(value: float | None) -> str:
    return f"{value:.1f}" if value else ""


def _nodes(row: dict[str, Any]) -> str:
    """The names of the model's nodes that a kernel computes, else its ops."""
    names = row["nodes"] or [op.partition(".")[2] for op in row["ops"]] or [row["kind"]]
    more = f" +{len(names) - SHOWN_NODES}" if len(names) > SHOWN_NODES else ""
    return ", ".join(names[:SHOWN_NODES]) + more


def chrome_trace(name: str, found: Profile) -> dict[str, Any]:
    """One call in the trace event format, which Perfetto and chrome://tracing open."""
    events: list[dict[str, Any]] = [
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": f"smelt: {name}"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 1, "args": {"name": "kernels"}},
    ]
    for event in found.trace:
        step = found.steps[event.step]
        details = {
            "ops": ", ".join(step.ops),
            "nodes": ", ".join(step.nodes),
            "writes": ", ".join(step.shapes),
            "operations": step.cost.operations,
            "bytes": step.cost.bytes,
        }
        times = {"ts": event.begin, "dur": event.end - event.begin}
        events.append({"name": step.kernel, "cat": step.kind, "ph": "X", "pid": 1, "tid": 1, **times, "args": details})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        raise FileError(f"cannot write {path}", got=error, remedy="a file in another folder") from error
