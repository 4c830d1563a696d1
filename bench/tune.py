"""`python -m bench.tune`: the search over choices beside trying everything, on ten real kernels of this machine.

For each kernel all legal choices are measured in turns with the default. Then the search runs on these measurements,
told those of the choices that it asks for: so both see the same machine at the same time. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
from collections.abc import Sequence
from typing import Any

from smelt.device import cpu
from smelt.device.runtime import runtime
from smelt.engine.sample import sample_inputs
from smelt.engine.tune import Bench, in_turns
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.kernel.choice import Choice, Problem, defaults, legal, text_of
from smelt.kernel.predict import Machine, predicted
from smelt.kernel.search import Estimate, Lesson, Search, paired
from smelt.kernel.tile_c import tile_shape
from smelt.weights import Weights

AT_ONCE = 16  # programs of a library

PRODUCTS = ((128, 768, 768), (128, 768, 3072), (128, 3072, 768), (197, 768, 768), (512, 512, 512), (784, 192, 32))
CONVOLUTIONS = (
    (56, 64, 64, 3),
    (28, 128, 128, 3),
    (14, 256, 256, 3),
    (80, 32, 64, 3),
)  # pixels, channels, features, window


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


def measured(program: Program, seconds: float) -> tuple[Problem, dict[Choice, list[float]]]:
    """Ratios of every legal choice's times to the default's."""
    bench = Bench(program, Weights({}), sample_inputs(program, {}))
    try:
        (problem,) = bench.plan(defaults).chosen
        choices = legal(problem, tile_shape(bench.target))
        found: dict[Choice, list[float]] = {}
        for start in range(1, len(choices), AT_ONCE):
            some = choices[start : start + AT_ONCE]
            built = bench.stamped([defaults, *({problem: each}.get for each in some)])
            ticks = in_turns(built, bench.inputs, seconds)
            base = [built[0].spent(call, problem) for call in ticks[0]]
            for each, program_of, calls in zip(some, built[1:], ticks[1:], strict=True):
                found[each] = paired([program_of.spent(call, problem) for call in calls], base)
                program_of.bound.close()
        return problem, found
    finally:
        bench.close()


def searched(everything: Sequence[tuple[Problem, dict[Choice, list[float]]]]) -> list[dict[str, Any]]:
    """The search over all problems at once, as when a model is tuned."""
    tile = tile_shape(cpu.target())
    machine = Machine(tile, runtime().threads)
    searches = [Search(p, legal(p, tile), [predicted(p, c, machine) for c in legal(p, tile)]) for p, _ in everything]
    while any(not search.is_done for search in searches):
        for search, (_, ratios) in zip(searches, everything, strict=True):
            lessons: list[Lesson] = []
            for other in searches:
                lessons += other.learned() if other is not search else []
            search.lessons = lessons
            for choice in search.propose(1):
                search.tell(choice, ratios[choice])
    return [_row(search, ratios) for search, (_, ratios) in zip(searches, everything, strict=True)]


def _row(search: Search, ratios: dict[Choice, list[float]]) -> dict[str, Any]:
    times = {search.choices[0]: 1.0, **{choice: Estimate.of(found).ratio for choice, found in ratios.items()}}
    best = min(times, key=lambda each: times[each])
    found, _ = search.best
    return {
        "problem": str(search.problem),
        "choices": len(times),
        "tried": len(search.tried) + 1,
        "best": {"choice": text_of(best), "speedup": round(1 / times[best], 3)},
        "found": {"choice": text_of(found), "speedup": round(1 / times[found], 3)},
        "reached": round(times[best] / times[found], 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(prog="python -m bench.tune", description=__doc__)
    options.add_argument("--seconds", type=float, default=1.0, help="of calls for each library of choices")
    options.add_argument("--kernels", type=int, default=10, help="how many of the ten")
    options.add_argument("--json", metavar="FILE", help="write the figures to a file as well")
    chosen = options.parse_args()
    rows = searched([measured(program, chosen.seconds) for program in programs()[: chosen.kernels]])
    record = {
        "machine": platform.processor() or platform.machine(),
        "threads": runtime().threads,
        "choices": sum(row["choices"] for row in rows),
        "tried": sum(row["tried"] for row in rows),
        "reached": round(math.exp(sum(math.log(row["reached"]) for row in rows) / len(rows)), 4),
        "kernels": rows,
    }
    print(json.dumps(record, indent=2))
    if chosen.json:
        with open(chosen.json, "w") as file:
            json.dump(record, file, indent=2)


if __name__ == "__main__":
    main()
