"""`python -m bench.tune`: what tuning gains, and how far the default schedules are from the best.

With `--models DIR`, for every model: tune from an empty database; compare the tuned program with the default,
interleaved; and measure every legal schedule of every kernel, interleaved with the default. Without it, compare the
search with exhaustive measurement on ten kernels. Results go to stdout and are added to `--json FILE`, so that a long
run can be split (`--only MODEL`, `--part`).
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.dtype import Array
from smelt.engine import tuned
from smelt.engine.sample import sample_inputs
from smelt.engine.signature import signature_of
from smelt.engine.tune import NEIGHBOURS, Bench, tune
from smelt.engine.tuned import Database
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.tune.cost_model import Machine, predict_cost
from smelt.kernel.tune.schedules import (
    KernelKey,
    Lookup,
    Schedule,
    default_schedule,
    legal_schedules,
    no_schedule,
    schedule_text,
)
from smelt.kernel.tune.search import Estimate, Lesson, Search, pair_ratios
from smelt.model import read
from smelt.target import tile_shape
from smelt.weights import Weights

PARTS = ("tune", "check", "everything")
DYNAMIC = 128  # value of a dynamic dimension, except on the first axis (1)
QUIET = 0.2  # quantile of the times that counts: slower calls were disturbed
EVERY = 4  # calls between two with default schedules
OFTEN = 5  # measurements of the default per measurement of another schedule
SMALL = 0.01  # fraction of a call's time that is worth a line

GEMMS = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 768), (512, 512, 512), (784, 192, 32))
CONVOLUTIONS = (
    (56, 64, 64, 3),
    (28, 128, 128, 3),
    (14, 256, 256, 3),
    (80, 32, 64, 3),
)  # pixels, input channels, output channels, window


# ---- every schedule ----


@dataclass(slots=True)
class Samples:
    """Ticks of calls: `usual` with default schedules, `others` with each schedule of a key beside random schedules of
    other keys; spread over the whole run."""

    usual: list[float] = field(default_factory=list)
    others: dict[Schedule, list[float]] = field(default_factory=dict)

    def quiet(self, schedule: Schedule, half: slice) -> float:
        """The time of undisturbed calls with a schedule."""
        return float(np.quantile(self.others[schedule][half], QUIET))

    def best(self, key: KernelKey) -> tuple[Schedule, float]:
        """The best schedule by every other call, and its time over the default's in the rest: no selection bias."""
        found = min(self.others, key=lambda each: self.quiet(each, slice(0, None, 2)))
        rest = slice(1, None, 2)
        return found, self.quiet(found, rest) / self.quiet(default_schedule(key), rest)


def measure_all(bench: Bench, seconds: float) -> tuple[dict[KernelKey, Samples], float]:
    """Measure all legal schedules of all keys until time is up; also the ticks of a call with the defaults."""
    program, tile = bench.tunables(), tile_shape(bench.target)
    random = np.random.default_rng(0)
    schedules: dict[KernelKey, tuple[Schedule, ...]] = {}
    for key in program.keys:
        usual, *others = legal_schedules(key, tile)
        schedules[key] = ((usual,) * OFTEN + tuple(others)) if others else (usual,)
    found = {key: Samples() for key in schedules}
    whole: list[float] = []
    least = 4 * max(map(len, schedules.values()), default=0)  # calls
    begin, calls = time.perf_counter(), 0
    program.use({})
    program.call(bench.inputs)
    while time.perf_counter() - begin < seconds or calls < least:
        orders = {key: random.permutation(len(some)) for key, some in schedules.items()}
        for iteration in range(max(map(len, schedules.values()), default=1)):
            if iteration % EVERY == 0:
                program.use({})
                ticks = program.call(bench.inputs)
                whole.append(float(ticks.sum()))
                for key, samples in found.items():
                    samples.usual.append(program.spent(ticks, key))
            variant = {key: some[orders[key][iteration % len(some)]] for key, some in schedules.items()}
            program.use(variant)
            ticks = program.call(bench.inputs)
            calls += 1
            for key, samples in found.items():
                samples.others.setdefault(variant[key], []).append(program.spent(ticks, key))
    return found, float(np.quantile(whole, QUIET))


def measure_gap(bench: Bench, seconds: float) -> dict[str, Any]:
    """The time of a call with the best schedules over that with the defaults."""
    found, whole = measure_all(bench, seconds)
    rows: list[dict[str, Any]] = []
    for key, samples in found.items():
        share = float(np.quantile(samples.usual, QUIET)) / whole
        schedule, ratio = samples.best(key) if share >= SMALL else (default_schedule(key), 1.0)
        rows.append(
            {
                "key": str(key),
                "share": round(share, 4),
                "schedules": len(samples.others),
                "calls": round(statistics.mean(map(len, samples.others.values())), 1),
                "default": schedule_text(default_schedule(key)),
                "best": schedule_text(schedule),
                "ratio": round(min(ratio, 1.0), 4),
            }
        )
    rows.sort(key=lambda row: -row["share"])
    gain = sum(row["share"] * (1 - row["ratio"]) for row in rows)
    return {"best by default": round(1 - gain, 4), "keys": rows}


# ---- models ----


def model_bench(path: Path) -> tuple[Program, Weights, list[Array]]:
    program, weights = read(path)
    sizes: dict[str, int] = {}
    for port in signature_of(program.main).inputs:
        for axis, size in enumerate(port.shape.sizes):
            if not isinstance(size, int):
                sizes.update({name: 1 if axis == 0 else DYNAMIC for name in port.shape.symbols if str(size) == name})
    return program, weights, sample_inputs(program, sizes)


def tune_model(path: Path, database: Database, seconds: float) -> dict[str, Any]:
    """Tune from an empty database."""
    database.path.unlink(missing_ok=True)
    found = tune(*model_bench(path), seconds, database=database)
    return {
        "seconds": round(found.seconds, 1),
        "keys": len(found.findings),
        "schedules": sum(each.schedules - 1 for each in found.findings),
        "tried": found.tries,
        "changed": sum(each.schedule != default_schedule(each.key) for each in found.findings),
        "kept": found.kept,
        "ratio": None if found.whole is None else round(found.whole.ratio, 4),
        "error": None if found.whole is None else round(found.whole.error, 4),
    }


def compare_tuned(path: Path, database: Database, seconds: float) -> dict[str, Any]:
    """The tuned program over the default one, interleaved."""
    program, weights, inputs = model_bench(path)
    bench = Bench(program, weights, inputs)
    machine = tuned.here(bench.target)
    known: Lookup = {key: each.schedule for (where, key), each in database.read().items() if where == machine}.get
    try:
        usual, other = bench.plain(no_schedule), bench.plain(known)
        samples: tuple[list[float], list[float]] = ([], [])
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or len(samples[0]) < 16:
            first = len(samples[0]) % 2
            for at in (first, 1 - first):
                start = time.perf_counter()
                (usual, other)[at](*inputs, keep=True)
                samples[at].append(time.perf_counter() - start)
        ratios = np.divide(samples[1], samples[0])
        found = Estimate.of(pair_ratios(samples[1], samples[0], len(ratios) // NEIGHBOURS))
        usual_ms, tuned_ms = (1e3 * float(np.quantile(each, QUIET)) for each in samples)
        return {
            "default ms": round(usual_ms, 3),
            "tuned ms": round(tuned_ms, 3),
            "ratio": round(found.ratio, 4),
            "error": round(found.error, 4),
            "middle half": [round(float(each), 4) for each in np.quantile(ratios, (0.25, 0.75))],
            "pairs": len(ratios),
        }
    finally:
        bench.close()


def run_models(paths: Sequence[Path], chosen: argparse.Namespace) -> dict[str, Any]:
    """The requested parts, added to those in the file."""
    kept = Path(chosen.json) if chosen.json else None
    record: dict[str, Any] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    record |= {"machine": platform.processor() or platform.machine(), "threads": runtime().threads}
    models: dict[str, Any] = record.setdefault("models", {})
    for path in paths:
        row = models.setdefault(path.stem, {})
        database = Database(Path(chosen.databases) / f"{path.stem}.jsonl")
        if "tune" in chosen.part:
            row["tune"] = tune_model(path, database, chosen.seconds)
        if "check" in chosen.part:
            row["check"] = compare_tuned(path, database, chosen.seconds / 3)
        if "everything" in chosen.part:
            program, weights, inputs = model_bench(path)
            bench = Bench(program, weights, inputs)
            try:
                row["everything"] = measure_gap(bench, chosen.seconds)
            finally:
                bench.close()
        record["geometric mean"] = _means(models)
        if kept is not None:
            kept.write_text(json.dumps(record, indent=2))
    return record


def _means(models: Mapping[str, Any]) -> dict[str, float]:
    """Over the models that have them: tuned over default, and the best possible over default."""
    ways: dict[str, Callable[[Any], float | None]] = {
        "tuned": lambda row: row.get("check", {}).get("ratio"),
        "best": lambda row: row.get("everything", {}).get("best by default"),
    }
    found = {name: [ratio for row in models.values() if (ratio := way(row)) is not None] for name, way in ways.items()}
    return {name: round(statistics.geometric_mean(ratios), 4) for name, ratios in found.items() if ratios}


def table(record: Mapping[str, Any]) -> Iterator[str]:
    heads = ("default ms", "tuned ms", "ratio", "middle half", "tried", "best")
    yield _line("model", heads)
    for name, row in record["models"].items():
        check, tune_of, every = row.get("check", {}), row.get("tune", {}), row.get("everything", {})
        half = "-".join(f"{each:.3f}" for each in check.get("middle half", []))
        tried = f"{tune_of['tried']}/{tune_of['schedules']}" if tune_of else ""
        times = (check.get(key, "") for key in ("default ms", "tuned ms", "ratio"))
        yield _line(name, (*times, half, tried, every.get("best by default", "")))
    yield f"geometric mean: {record['geometric mean']}"


def _line(name: str, cells: Sequence[object]) -> str:
    return f"{name:20s}" + "".join(f"{each!s:>14s}" for each in cells)


# ---- ten kernels ----


def gemm_program(rows: int, depth: int, columns: int) -> Program:
    left, right, result = f"{rows}x{depth}", f"{depth}x{columns}", f"{rows}x{columns}"
    return parse(f"""
func.func @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}""")


def conv_program(side: int, channels: int, channels_out: int, window: int) -> Program:
    image, kernel = f"1x{side}x{side}x{channels}", f"{window}x{window}x{channels}x{channels_out}"
    result, pad = f"1x{side}x{side}x{channels_out}", window // 2
    return parse(f"""
func.func @main(%a: tensor<{image}xf32>, %b: tensor<{kernel}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[{pad}, {pad}], [{pad}, {pad}]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<{image}xf32>, tensor<{kernel}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}""")


def programs() -> list[Program]:
    return [*(gemm_program(*sizes) for sizes in GEMMS), *(conv_program(*sizes) for sizes in CONVOLUTIONS)]


def run_searches(measured: Sequence[tuple[KernelKey, Samples]]) -> list[dict[str, Any]]:
    """Search all keys at once, as when a model is tuned, over recorded measurements."""
    tile = tile_shape(cpu.target())
    machine = Machine(tile, runtime().threads)
    searches = [
        Search(p, legal_schedules(p, tile), [predict_cost(p, c, machine) for c in legal_schedules(p, tile)])
        for p, _ in measured
    ]
    while any(not search.is_done for search in searches):
        for search, (_, samples) in zip(searches, measured, strict=True):
            lessons: list[Lesson] = []
            for other in searches:
                lessons += other.lessons_learned() if other is not search else []
            search.lessons = lessons
            for schedule in search.propose(1):
                some = samples.others[schedule]
                search.add_ratios(schedule, pair_ratios(some, samples.usual[: len(some)]))
    return [_row(search, samples) for search, (_, samples) in zip(searches, measured, strict=True)]


def _row(search: Search, samples: Samples) -> dict[str, Any]:
    times = {
        schedule: Estimate.of(pair_ratios(some, samples.usual[: len(some)])).ratio
        for schedule, some in samples.others.items()
    }
    times[search.schedules[0]] = 1.0
    best = min(times, key=lambda each: times[each])
    found, _ = search.best
    return {
        "key": str(search.key),
        "schedules": len(times),
        "tried": len(search.tried) + 1,
        "best": {"schedule": schedule_text(best), "speedup": round(1 / times[best], 3)},
        "found": {"schedule": schedule_text(found), "speedup": round(1 / times[found], 3)},
        "reached": round(times[best] / times[found], 3),
    }


def run_kernels(count: int, seconds: float) -> dict[str, Any]:
    measured: list[tuple[KernelKey, Samples]] = []
    for program in programs()[:count]:
        bench = Bench(program, Weights({}), sample_inputs(program, {}))
        try:
            measured += measure_all(bench, seconds)[0].items()
        finally:
            bench.close()
    rows = run_searches(measured)
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": runtime().threads,
        "schedules": sum(row["schedules"] for row in rows),
        "tried": sum(row["tried"] for row in rows),
        "reached": round(statistics.geometric_mean(row["reached"] for row in rows), 4),
        "kernels": rows,
    }


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.tune", description=__doc__)
    options.add_argument("--models", metavar="DIR", help="ONNX models; without them ten kernels are measured")
    options.add_argument("--only", metavar="MODEL", nargs="+", help="of these models")
    options.add_argument("--part", schedules=PARTS, nargs="+", default=PARTS)
    options.add_argument("--databases", metavar="DIR", default="tuned", help="folder of the tuning databases")
    options.add_argument("--seconds", type=float, default=60.0, help="to tune, or to measure a kernel's schedules")
    options.add_argument("--kernels", type=int, default=10, help="how many of the ten")
    options.add_argument("--json", metavar="FILE", help="add the figures to a file as well")
    chosen = options.parse_args()
    if chosen.models:
        paths = sorted(Path(chosen.models).glob("*.onnx"))
        wanted = [path for path in paths if not chosen.only or path.stem in chosen.only]
        print(*table(run_models(wanted, chosen)), sep="\n")
        return
    record = run_kernels(chosen.kernels, chosen.seconds)
    print(json.dumps(record, indent=2))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
