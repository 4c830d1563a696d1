"""`python -m bench.cuda_ops --out FILE.json`: sort, top-k, scans, reductions, scatters on a GPU beside torch, in turns.

Every case is timed as a graph that holds it many times, in rounds that alternate between smelt and torch: the median of
each, and whether the results are the same (floats: within 1e-5 of the root of the sum of their terms).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.cuda_forms import ROUNDS, Ours, torch_peer


def cases(count: int) -> dict[str, tuple[str, Any, Callable[[Any], Any], Callable[[Any, Any], Any]]]:
    """For each name a program, its input, and the same in NumPy and in torch."""
    random = np.random.default_rng(7)
    row = random.standard_normal(count).astype(np.float32)
    rows = random.standard_normal((32, count // 32)).astype(np.float32)
    whole = random.integers(-1000, 1000, count).astype(np.int32)
    places = random.integers(0, 4096, count).astype(np.int32)
    n, m, each = f"tensor<{count}xf32>", f"tensor<32x{count // 32}xf32>", count // 32
    few = min(64, each)
    less = """({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
  %c = stablehlo.compare LT, %a, %b, TOTALORDER : (tensor<f32>, tensor<f32>) -> tensor<i1>
  stablehlo.return %c : tensor<i1>
})"""

    def window(type: str, op: str, start: str) -> str:
        of, pad = f"tensor<{count}x{type}>", f"dense<[[{count - 1}, 0]]> : tensor<1x2xi64>"
        return f"""func.func @main(%x: {of}) -> {of} {{
  %z = stablehlo.constant dense<{start}> : tensor<{type}>
  %0 = "stablehlo.reduce_window"(%x, %z) ({{
^bb0(%a: tensor<{type}>, %b: tensor<{type}>):
  %c = stablehlo.{op} %a, %b : tensor<{type}>
  stablehlo.return %c : tensor<{type}>
}}) {{window_dimensions = array<i64: {count}>, padding = {pad}}} : ({of}, tensor<{type}>) -> {of}
  return %0 : {of}
}}"""

    def reduce(of: str, to: str, axes: str, op: str, start: str) -> str:
        return f"""func.func @main(%x: {of}) -> {to} {{
  %z = stablehlo.constant dense<{start}> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.{op} across dimensions = [{axes}] : ({of}, tensor<f32>) -> {to}
  return %0 : {to}
}}"""

    def sort(of: str, axis: int) -> str:
        return f"""func.func @main(%x: {of}) -> {of} {{
  %0 = "stablehlo.sort"(%x) {less} {{dimension = {axis} : i64, is_stable = true}} : ({of}) -> {of}
  return %0 : {of}
}}"""

    numbers = "#stablehlo.scatter<inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>"
    scatter = f"""func.func @main(%i: tensor<{count}xi32>) -> tensor<4096xi32> {{
  %z = stablehlo.constant dense<0> : tensor<4096xi32>
  %u = stablehlo.constant dense<1> : tensor<{count}xi32>
  %0 = "stablehlo.scatter"(%z, %i, %u) ({{
^bb0(%a: tensor<i32>, %b: tensor<i32>):
  %c = stablehlo.add %a, %b : tensor<i32>
  stablehlo.return %c : tensor<i32>
}}) {{scatter_dimension_numbers = {numbers}, indices_are_sorted = false, unique_indices = false}}
    : (tensor<4096xi32>, tensor<{count}xi32>, tensor<{count}xi32>) -> tensor<4096xi32>
  return %0 : tensor<4096xi32>
}}"""
    return {
        "sort": (sort(n, 0), row, np.sort, lambda torch, x: torch.sort(x, stable=True)[0]),
        "sort of 32 rows": (
            sort(m, 1),
            rows,
            np.sort,
            lambda torch, x: torch.sort(x, stable=True)[0],
        ),
        f"top {few} of 32 rows": (
            f"""func.func @main(%x: {m}) -> tensor<32x{few}xf32> {{
  %0:2 = chlo.top_k(%x, k = {few}) : {m} -> (tensor<32x{few}xf32>, tensor<32x{few}xi32>)
  return %0#0 : tensor<32x{few}xf32>
}}""",
            rows,
            lambda x: -np.sort(-x)[:, :few],
            lambda torch, x: torch.topk(x, few)[0],
        ),
        "running sum, i32": (
            window("i32", "add", "0"),
            whole,
            lambda x: np.cumsum(x, dtype=np.int32),
            lambda torch, x: torch.cumsum(x, 0, dtype=torch.int32),
        ),
        "running maximum": (
            window("f32", "maximum", "0xFF800000"),
            row,
            np.maximum.accumulate,
            lambda torch, x: torch.cummax(x, 0)[0],
        ),
        "sum": (
            reduce(n, "tensor<f32>", "0", "add", "0.0"),
            row,
            lambda x: x.sum(dtype=np.float64),
            lambda _, x: x.sum(),
        ),
        "sum of 32 rows": (
            reduce(m, "tensor<32xf32>", "1", "add", "0.0"),
            rows,
            lambda x: x.sum(1, dtype=np.float64),
            lambda _, x: x.sum(1),
        ),
        "sum of columns": (
            reduce(m, f"tensor<{each}xf32>", "0", "add", "0.0"),
            rows,
            lambda x: x.sum(0, dtype=np.float64),
            lambda _, x: x.sum(0),
        ),
        "maximum": (reduce(n, "tensor<f32>", "0", "maximum", "0xFF800000"), row, np.max, lambda _, x: x.max()),
        "histogram by scatter": (
            scatter,
            places,
            lambda x: np.bincount(x, minlength=4096),
            lambda torch, x: torch.zeros(4096, dtype=torch.int32, device=x.device).index_add_(
                0, x, torch.ones_like(x, dtype=torch.int32)
            ),
        ),
    }


def compare(
    text: str, array: Any, oracle: Callable[[Any], Any], peer: Callable[[Any, Any], Any] | None
) -> dict[str, Any]:
    ours = Ours(text, array)
    calls: dict[str, Callable[[], float]] = {"smelt": ours}
    if peer is not None:
        import torch

        given = torch.from_numpy(array).cuda()
        calls["torch"] = torch_peer(lambda: peer(torch, given))
    right = oracle(array)
    near = 1e-5 * np.abs(array).sum() ** 0.5 if right.dtype.kind == "f" else 0
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(call())
    found: dict[str, Any] = {f"{name} us": round(1e6 * median(each), 2) for name, each in times.items()}
    same = bool((np.abs(ours.result.astype(np.float64) - right) <= near).all())
    return found | {"same": same, "kernels": ours.kernels}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--count", type=int, default=1 << 20, help="elements")
    parser.add_argument("--device", default="cuda", help="cuda, or emulated: to try the script without a GPU")
    options = parser.parse_args()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register()
    found: dict[str, Any] = {"command": sys.argv}
    for name, case in cases(options.count).items():
        try:
            found[name] = compare(*case[:3], None if options.device == "emulated" else case[3])
        except Exception as problem:
            found[name] = {"failed": f"{type(problem).__name__}: {problem}"[:400]}
        print(name, json.dumps(found[name]), flush=True)
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
