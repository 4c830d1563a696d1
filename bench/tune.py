"""`python -m bench.tune`: what tuning brings, and how far the defaults are from the best that can be chosen.

With `--models DIR`, for every model: tuned from an empty database, then the program as tuned and as by default, each
built as it is used, called in turns; and every legal choice of every problem measured in turns with the default.
Without it, the search beside trying everything on ten kernels. Results go to stdout, and to `--json FILE`, which is
added to: parts of a long run may be measured one after the other (`--only MODEL`, `--part`).
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
from smelt.kernel.emit.tile_f32 import tile_shape
from smelt.kernel.tune.cost_model import Machine, predict_cost
from smelt.kernel.tune.schedules import (
    KernelKey,
    Lookup,
    Schedule,
    default_schedule,
    legal_schedules,
    schedule_text,
    untuned,
)
from smelt.kernel.tune.search import Estimate, Lesson, Search, pair_ratios
from smelt.model import read
from smelt.weights import Weights

PARTS = ("tune", "check", "everything")
OPEN = 128  # what an open size is, but those of a first axis are 1
QUIET = 0.2  # the part of calls, from below, up to which they count: what is slower was disturbed
EVERY = 4  # calls with any choices between two where everything goes by default
OFTEN = 5  # times that the default is measured where another choice is once: all others are held against it
SMALL = 0.01  # part of a call's time that is worth a line

PRODUCTS = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 768), (512, 512, 512), (784, 192, 32))
CONVOLUTIONS = (
    (56, 64, 64, 3),
    (28, 128, 128, 3),
    (14, 256, 256, 3),
    (80, 32, 64, 3),
)  # pixels, channels, features, window


# ---- every choice ----


@dataclass(slots=True)
class Taken:
    """Ticks of calls: `usual` where everything goes by default, `others` with each choice beside any choices of other
    problems, the default among them; spread over the whole run."""

    usual: list[float] = field(default_factory=list)
    others: dict[Schedule, list[float]] = field(default_factory=dict)

    def quiet(self, schedule: Schedule, half: slice) -> float:
        """The time of quiet calls with a choice, of every other call."""
        return float(np.quantile(self.others[schedule][half], QUIET))

    def best(self, key: KernelKey) -> tuple[Schedule, float]:
        """The best choice by every other call, and its time by the default's in the rest: luck does not count."""
        found = min(self.others, key=lambda each: self.quiet(each, slice(0, None, 2)))
        rest = slice(1, None, 2)
        return found, self.quiet(found, rest) / self.quiet(default_schedule(key), rest)


def everything(bench: Bench, seconds: float) -> tuple[dict[KernelKey, Taken], float]:
    """All legal choices of all problems, in passes until time is up; and the ticks of a whole call by default."""
    program, tile = bench.tunables(), tile_shape(bench.target)
    random = np.random.default_rng(0)
    schedules: dict[KernelKey, tuple[Schedule, ...]] = {}
    for key in program.keys:
        usual, *others = legal_schedules(key, tile)
        schedules[key] = ((usual,) * OFTEN + tuple(others)) if others else (usual,)
    found = {key: Taken() for key in schedules}
    whole: list[float] = []
    least = 4 * max(map(len, schedules.values()), default=0)  # calls
    begin, calls = time.perf_counter(), 0
    program.use({})
    program.call(bench.inputs)
    while time.perf_counter() - begin < seconds or calls < least:
        orders = {key: random.permutation(len(some)) for key, some in schedules.items()}
        for turn in range(max(map(len, schedules.values()), default=1)):
            if turn % EVERY == 0:
                program.use({})
                ticks = program.call(bench.inputs)
                whole.append(float(ticks.sum()))
                for key, taken in found.items():
                    taken.usual.append(program.spent(ticks, key))
            variant = {key: some[orders[key][turn % len(some)]] for key, some in schedules.items()}
            program.use(variant)
            ticks = program.call(bench.inputs)
            calls += 1
            for key, taken in found.items():
                taken.others.setdefault(variant[key], []).append(program.spent(ticks, key))
    return found, float(np.quantile(whole, QUIET))


def distance(bench: Bench, seconds: float) -> dict[str, Any]:
    """How far the defaults are from the best choices: the time of a call with these by that with those."""
    found, whole = everything(bench, seconds)
    rows: list[dict[str, Any]] = []
    for key, taken in found.items():
        share = float(np.quantile(taken.usual, QUIET)) / whole
        schedule, ratio = taken.best(key) if share >= SMALL else (default_schedule(key), 1.0)
        rows.append(
            {
                "problem": str(key),
                "share": round(share, 4),
                "choices": len(taken.others),
                "calls": round(statistics.mean(map(len, taken.others.values())), 1),
                "default": schedule_text(default_schedule(key)),
                "best": schedule_text(schedule),
                "ratio": round(min(ratio, 1.0), 4),
            }
        )
    rows.sort(key=lambda row: -row["share"])
    gain = sum(row["share"] * (1 - row["ratio"]) for row in rows)
    return {"best by default": round(1 - gain, 4), "problems": rows}


# ---- models ----


def model_bench(path: Path) -> tuple[Program, Weights, list[Array]]:
    program, weights = read(path)
    sizes: dict[str, int] = {}
    for port in signature_of(program.main).inputs:
        for axis, size in enumerate(port.shape.sizes):
            if not isinstance(size, int):
                sizes.update({name: 1 if axis == 0 else OPEN for name in port.shape.symbols if str(size) == name})
    return program, weights, sample_inputs(program, sizes)


def tuned_model(path: Path, database: Database, seconds: float) -> dict[str, Any]:
    """Tune from an empty database."""
    database.path.unlink(missing_ok=True)
    found = tune(*model_bench(path), seconds, database=database)
    return {
        "seconds": round(found.seconds, 1),
        "problems": len(found.findings),
        "choices": sum(each.schedules - 1 for each in found.findings),
        "tried": found.tries,
        "changed": sum(each.schedule != default_schedule(each.key) for each in found.findings),
        "kept": found.kept,
        "ratio": None if found.whole is None else round(found.whole.ratio, 4),
        "error": None if found.whole is None else round(found.whole.error, 4),
    }


def checked(path: Path, database: Database, seconds: float) -> dict[str, Any]:
    """Calls of the program as tuned by calls as by default, in turns."""
    program, weights, inputs = model_bench(path)
    bench = Bench(program, weights, inputs)
    target = tuned.here(tile_shape(bench.target))
    known: Lookup = {key: each.schedule for (where, key), each in database.read().items() if where == target}.get
    try:
        usual, other = bench.plain(untuned), bench.plain(known)
        taken: tuple[list[float], list[float]] = ([], [])
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds or len(taken[0]) < 16:
            first = len(taken[0]) % 2
            for at in (first, 1 - first):
                start = time.perf_counter()
                (usual, other)[at](*inputs, keep=True)
                taken[at].append(time.perf_counter() - start)
        ratios = np.divide(taken[1], taken[0])
        found = Estimate.of(pair_ratios(taken[1], taken[0], len(ratios) // NEIGHBOURS))
        usual_ms, tuned_ms = (1e3 * float(np.quantile(each, QUIET)) for each in taken)
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


def of_models(paths: Sequence[Path], chosen: argparse.Namespace) -> dict[str, Any]:
    """All that was asked for, on top of what the file holds already."""
    kept = Path(chosen.json) if chosen.json else None
    record: dict[str, Any] = json.loads(kept.read_text()) if kept and kept.exists() else {}
    record |= {"machine": platform.processor() or platform.machine(), "threads": runtime().threads}
    models: dict[str, Any] = record.setdefault("models", {})
    for path in paths:
        row = models.setdefault(path.stem, {})
        database = Database(Path(chosen.databases) / f"{path.stem}.jsonl")
        if "tune" in chosen.part:
            row["tune"] = tuned_model(path, database, chosen.seconds)
        if "check" in chosen.part:
            row["check"] = checked(path, database, chosen.seconds / 3)
        if "everything" in chosen.part:
            program, weights, inputs = model_bench(path)
            bench = Bench(program, weights, inputs)
            try:
                row["everything"] = distance(bench, chosen.seconds)
            finally:
                bench.close()
        record["geometric mean"] = _means(models)
        if kept is not None:
            kept.write_text(json.dumps(record, indent=2))
    return record


def _means(models: Mapping[str, Any]) -> dict[str, float]:
    """Over the models that have them: the time as tuned by that by default, and the best possible."""
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
        tried = f"{tune_of['tried']}/{tune_of['choices']}" if tune_of else ""
        times = (check.get(key, "") for key in ("default ms", "tuned ms", "ratio"))
        yield _line(name, (*times, half, tried, every.get("best by default", "")))
    yield f"geometric mean: {record['geometric mean']}"


def _line(name: str, cells: Sequence[object]) -> str:
    return f"{name:20s}" + "".join(f"{each!s:>14s}" for each in cells)


# ---- ten kernels ----


def product(rows: int, depth: int, columns: int) -> Program:
    left, right, result = f"{rows}x{depth}", f"{depth}x{columns}", f"{rows}x{columns}"
    return parse(f"""
func.func @main(%a: tensor<{left}xf32>, %b: tensor<{right}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.dot_general %a, %b, contracting_dims = [1] x [0]
    : (tensor<{left}xf32>, tensor<{right}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}""")


def convolution(side: int, channels: int, features: int, window: int) -> Program:
    images, kernel = f"1x{side}x{side}x{channels}", f"{window}x{window}x{channels}x{features}"
    result, pad = f"1x{side}x{side}x{features}", window // 2
    return parse(f"""
func.func @main(%a: tensor<{images}xf32>, %b: tensor<{kernel}xf32>) -> tensor<{result}xf32> {{
  %0 = stablehlo.convolution(%a, %b) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [1, 1], pad = [[{pad}, {pad}], [{pad}, {pad}]]}}
    {{batch_group_count = 1 : i64, feature_group_count = 1 : i64}}
    : (tensor<{images}xf32>, tensor<{kernel}xf32>) -> tensor<{result}xf32>
  return %0 : tensor<{result}xf32>
}}""")


def programs() -> list[Program]:
    return [*(product(*sizes) for sizes in PRODUCTS), *(convolution(*sizes) for sizes in CONVOLUTIONS)]


def searched(everywhere: Sequence[tuple[KernelKey, Taken]]) -> list[dict[str, Any]]:
    """The search over all problems at once, as when a model is tuned; told what was measured."""
    tile = tile_shape(cpu.target())
    machine = Machine(tile, runtime().threads)
    searches = [
        Search(p, legal_schedules(p, tile), [predict_cost(p, c, machine) for c in legal_schedules(p, tile)])
        for p, _ in everywhere
    ]
    while any(not search.is_done for search in searches):
        for search, (_, taken) in zip(searches, everywhere, strict=True):
            lessons: list[Lesson] = []
            for other in searches:
                lessons += other.learned() if other is not search else []
            search.lessons = lessons
            for schedule in search.propose(1):
                some = taken.others[schedule]
                search.tell(schedule, pair_ratios(some, taken.usual[: len(some)]))
    return [_row(search, taken) for search, (_, taken) in zip(searches, everywhere, strict=True)]


def _row(search: Search, taken: Taken) -> dict[str, Any]:
    times = {
        schedule: Estimate.of(pair_ratios(some, taken.usual[: len(some)])).ratio
        for schedule, some in taken.others.items()
    }
    times[search.schedules[0]] = 1.0
    best = min(times, key=lambda each: times[each])
    found, _ = search.best
    return {
        "problem": str(search.key),
        "choices": len(times),
        "tried": len(search.tried) + 1,
        "best": {"choice": schedule_text(best), "speedup": round(1 / times[best], 3)},
        "found": {"choice": schedule_text(found), "speedup": round(1 / times[found], 3)},
        "reached": round(times[best] / times[found], 3),
    }


def of_kernels(count: int, seconds: float) -> dict[str, Any]:
    everywhere: list[tuple[KernelKey, Taken]] = []
    for program in programs()[:count]:
        bench = Bench(program, Weights({}), sample_inputs(program, {}))
        try:
            everywhere += everything(bench, seconds)[0].items()
        finally:
            bench.close()
    rows = searched(everywhere)
    return {
        "machine": platform.processor() or platform.machine(),
        "threads": runtime().threads,
        "choices": sum(row["choices"] for row in rows),
        "tried": sum(row["tried"] for row in rows),
        "reached": round(statistics.geometric_mean(row["reached"] for row in rows), 4),
        "kernels": rows,
    }


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.tune", description=__doc__)
    options.add_argument("--models", metavar="DIR", help="ONNX models; without them ten kernels are measured")
    options.add_argument("--only", metavar="MODEL", nargs="+", help="of these models")
    options.add_argument("--part", schedules=PARTS, nargs="+", default=PARTS)
    options.add_argument("--databases", metavar="DIR", default="tuned", help="folder for what was tuned")
    options.add_argument("--seconds", type=float, default=60.0, help="to tune, or to measure a kernel's choices")
    options.add_argument("--kernels", type=int, default=10, help="how many of the ten")
    options.add_argument("--json", metavar="FILE", help="add the figures to a file as well")
    chosen = options.parse_args()
    if chosen.models:
        paths = sorted(Path(chosen.models).glob("*.onnx"))
        wanted = [path for path in paths if not chosen.only or path.stem in chosen.only]
        print(*table(of_models(wanted, chosen)), sep="\n")
        return
    record = of_kernels(chosen.kernels, chosen.seconds)
    print(json.dumps(record, indent=2))
    if chosen.json:
        Path(chosen.json).write_text(json.dumps(record, indent=2))


if __name__ == "__main__":
    main()
