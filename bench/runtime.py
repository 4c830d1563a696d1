"""`python -m bench.runtime`: what a call of a compiled program costs, and what a parallel step costs, as JSON.

CPU time of the process beside wall-clock time: on a machine that others use too, only the first is steady.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.resources import files

import numpy as np

from smelt.device import cpu
from smelt.device.runtime import Program, runtime
from smelt.errors import RunError
from smelt.shape import Shape

STEPS = 1000
SOURCE = f"""
int twice_measure(const i64 *s, i64 *out) {{ out[0] = out[1] = 0, out[2] = s[0]; return 0; }}
int twice_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {{
  for (i64 i = 0; i < s[0]; i++) ((float *)b[1])[i] = 2 * ((float *)b[0])[i];
  return 0;
}}
static void nothing(void *env, i64 begin, i64 end, i64 worker) {{}}
int steps_measure(const i64 *s, i64 *out) {{ out[0] = out[1] = 0; return 0; }}
int steps_run(const Runtime *rt, Context *ctx, void **b, const i64 *s) {{
  for (i64 i = 0; i < {STEPS}; i++) rt->parallel(rt, ctx, nothing, 0, 1 << 20, 1 << 10);
  return 0;
}}
"""


def cost(call: Callable[[], object], repeat: int, per_call: int = 1) -> dict[str, float]:
    """Microseconds: the best of five rounds."""
    rounds = []
    for _ in range(5):
        wall, used = time.perf_counter(), time.process_time()
        for _ in range(repeat):
            call()
        rounds.append((time.perf_counter() - wall, time.process_time() - used))
    scale = 1e6 / repeat / per_call
    wall_times, used_times = zip(*rounds, strict=True)
    return {"wall": round(min(wall_times) * scale, 3), "cpu": round(min(used_times) * scale, 3)}


def main() -> None:
    library = cpu.build((files("smelt") / "runtime" / "smelt.h").read_text("utf-8") + SOURCE)

    def bind(name: str, *results: Shape) -> Callable[..., object]:
        explain = lambda status, record: RunError("failed", got=status)  # noqa: E731
        return Program(library, name, [Shape("f32", "N")], results, ["N"], [], explain=explain).bind([])

    twice, steps = bind("twice", Shape("f32", "N")), bind("steps")
    inputs, odd, out = (np.ones(16, np.float32),), (np.ones(32, np.float32)[::2],), (np.empty(16, np.float32),)
    found: dict[str, object] = {
        "call": cost(lambda: twice(inputs), 50_000),
        "call into a given array": cost(lambda: twice(inputs, out), 50_000),
        "call with a strided input": cost(lambda: twice(odd), 2_000),
        "numpy.empty": cost(lambda: np.empty(16, np.float32), 50_000),
    }
    before = runtime().threads
    for threads in sorted({1, 2, before}):
        runtime().set_threads(threads)
        found[f"parallel step, {threads} threads"] = cost(lambda: steps(inputs), 10, STEPS)
    runtime().set_threads(before)
    print(json.dumps({"microseconds": found}, indent=2))


if __name__ == "__main__":
    main()
