"""`smelt demo`: classify handwritten digits with every engine, offline. Every number shown is computed in this run."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from importlib.resources import as_file, files
from typing import Any, TypeVar

import numpy as np
from rich.console import Console

from smelt.cli.tables import Column, open_console, print_table
from smelt.dtype import Array
from smelt.engine import ENGINES
from smelt.ir.core import Program
from smelt.ir.verify import verify
from smelt.model import LoadedModel, model_of, read
from smelt.passes import pipeline
from smelt.weights import Weights

T = TypeVar("T")
SHADES = " .:-=+*#%@"


def demo(as_json: bool) -> None:
    assets = files("smelt") / "assets"
    with as_file(assets / "digits_cnn.onnx") as path, as_file(assets / "digits_cnn_test.npz") as data:
        read_ms, (program, weights) = time_call(lambda: read(path))
        with np.load(data) as stored:
            images, labels = stored["images"], stored["labels"]
        pixels = images[:, None].astype(np.float32) / 16
        record = measure(program, weights, pixels, labels)
        record["stages"] = [
            {"stage": "read", "ms": read_ms, "what": f"digits_cnn.onnx, {len(weights)} weights"},
            *record["stages"],
        ]
    if as_json:
        print(json.dumps(record))
        return
    console = open_console()
    console.print("[bold]smelt demo[/]: handwritten digits, from an ONNX file that smelt trained to machine code\n")
    picture(console, images, record["predictions"], labels)
    stages = [(stage["stage"], f"{stage['ms']:.2f}", stage["what"]) for stage in record["stages"]]
    print_table(console, (Column("stage", True), Column("ms"), Column("what", True)), stages)
    results = []
    for name, result in record["engines"].items():
        right = f"{result['correct']} of {result['total']} ({100 * result['accuracy']:.1f} %)"
        results.append((name, right, f"{1e3 * result['one_ms']:.0f} µs", f"{result['all_ms']:.2f} ms"))
    console.print()
    heads = (Column("engine", True), Column("accuracy", True), Column("one image"), Column("all images"))
    print_table(console, heads, results)
    if "difference" in record:
        console.print(f"\nlargest difference between the engines: {record['difference']:.2e}")


def measure(program: Program, weights: Weights, pixels: Array, labels: Array) -> dict[str, Any]:
    """Run every stage, then every engine that works on this machine."""
    stages: list[dict[str, Any]] = []
    ms, facts = time_call(lambda: verify(program))
    assumed = f", {len(facts)} assumed" if facts else ""
    stages.append({"stage": "verify", "ms": ms, "what": f"every shape proven for every batch size{assumed}"})
    ms, (optimised, reports) = time_call(lambda: pipeline.run(program))
    stages.append(
        {"stage": "passes", "ms": ms, "what": f"{reports[0].before} → {len(optimised.main.body.ops)} ops per call"}
    )
    engines: dict[str, Any] = {}
    answers: list[Array] = []
    for engine in ENGINES:
        if engine.missing() is not None:
            stages.append({"stage": "compile", "ms": 0.0, "what": f"{engine.name}: {engine.missing()}"})
            continue
        chosen = engine.name
        ms, model = time_call(lambda: model_of(program, weights, engine=chosen))  # noqa: B023 - called at once
        kernels = sum(use.count for use in model.kernels)
        made = {"native": f"{kernels} kernels to machine code", "pjrt": "XLA, at the first call of each size"}
        what = f"{made.get(chosen, 'interpreter')}, weights bound"
        stages.append({"stage": "compile", "ms": ms, "what": f"{chosen}: {what}"})
        engines[chosen], answer = score(model, pixels, labels)
        answers.append(answer)
    record: dict[str, Any] = {"stages": stages, "engines": engines, "predictions": answers[0].argmax(1).tolist()}
    if len(answers) > 1:
        first = answers[0].astype(np.float64)
        record["difference"] = max(float(np.abs(first - other).max()) for other in answers[1:])
    return record


def score(model: LoadedModel, pixels: Array, labels: Array) -> tuple[dict[str, Any], Array]:
    """Accuracy on all images, and the median time of one image and of all of them."""
    (name,) = (port.name for port in model.signature.inputs)
    (output,) = (port.name for port in model.signature.outputs)
    answer = model.run({name: pixels})[output]
    one = [time_call(lambda: model.run({name: pixels[:1]}))[0] for _ in range(50)]
    everything = [time_call(lambda: model.run({name: pixels}))[0] for _ in range(5)]
    correct = int((answer.argmax(1) == labels).sum())
    result = {
        "correct": correct,
        "total": len(labels),
        "accuracy": correct / len(labels),
        "one_ms": statistics.median(one),
        "all_ms": statistics.median(everything),
    }
    return result, answer


def picture(console: Console, images: Array, predictions: list[int], labels: Array, count: int = 4) -> None:
    """A few of the images, with the model's answers below them."""
    count = min(count, (console.width + 2) // 18)
    grids = images[:count]
    for row in range(8):
        shades = (
            "".join(SHADES[min(int(value) * len(SHADES) // 17, len(SHADES) - 1)] * 2 for value in grid[row])
            for grid in grids
        )
        console.print("  ".join(shades), style="cyan", markup=False)
    verdicts = []
    for guess, truth in zip(predictions[:count], labels[:count], strict=True):
        verdicts.append(f"{guess} {'✓' if guess == truth else f'✗ ({truth})'}".ljust(16))
    console.print("  ".join(verdicts) + "\n")


def time_call(work: Callable[[], T]) -> tuple[float, T]:
    start = time.perf_counter()
    result = work()
    return 1e3 * (time.perf_counter() - start), result
