"""`python -m bench.cuda_forms --out FILE.json`: GEMM in tf32, fp8 and int8, and of few rows, in turns with torch.

Every case is timed as a graph that holds it many times, in rounds that alternate between smelt's variants and torch:
the median of each. Errors are of some rows, against doubles, relative to the sum of the sizes of the products. `odd`
checks sizes that fill no tile, with every tile; `few` reads fp8 weights for few rows.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from bench.cuda_check import Timed, dot_text
from bench.cuda_check import random as draw

TIMES, ROUNDS = 10, 7
FP8 = ("f8E4M3FN", "f8E5M2")
F32_SIZES = ((1, 784, 128), (1, 2048, 1000), (1, 2048, 2048), (8, 2048, 2048), (16, 1024, 1024))  # rows, K, columns
ODD_TILES = ((128, 128), (128, 256), (64, 64))


class Ours:
    """A program with its inputs on the device."""

    def __init__(self, text: str, x: Any, w: Any = None) -> None:
        from smelt.buffer import HostBuffer
        from smelt.device.registry import find_device
        from smelt.engine.native import native_engine
        from smelt.ir.text import parse
        from smelt.weights import Weights

        engine, self.driver = native_engine("cuda"), find_device("cuda").driver  # type: ignore[attr-defined]
        self.made = engine.compile(parse(text)).prepare(Weights.of({} if w is None else {"w": HostBuffer.of(w)}))
        inputs = [engine.put(HostBuffer.of(x))]  # type: ignore[attr-defined]
        with Timed(self.driver, TIMES) as timed:
            self.kept = self.made(*inputs)[0].wait()  # the memory that the kernels write
            self.result = np.array(self.kept.numpy())  # before they are launched again
        launches, self.inputs = list(timed.launches), inputs
        self.kernels = [[each["name"], 1e6 * each["seconds"], each.get("registers")] for each in timed.kernels()]
        self.queue = self.driver.queues.current

        def work() -> None:
            for _ in range(1 if hasattr(self.driver, "replays") else TIMES):
                for each in launches:
                    self.queue.launch(*each)

        self.graph = self.queue.record(work)

    def __call__(self) -> float:
        first = self.queue.event()
        self.queue.replay(self.graph)
        return float(self.driver.seconds(first, self.queue.event())) / TIMES


def torch_peer(call: Callable[[], Any]) -> Callable[[], float]:
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(TIMES):
            call()

    def seconds() -> float:
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        first.record()
        graph.replay()
        second.record()
        torch.cuda.synchronize()
        return 1e-3 * first.elapsed_time(second) / TIMES

    return seconds


def peers(kind: str, x: Any, w: Any) -> dict[str, Callable[[], float]]:
    """The same product in torch, by the names of its variants."""
    try:
        import torch
    except ImportError:
        return {}
    if not torch.cuda.is_available():
        return {}
    if kind in ("f32", "tf32"):
        torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
        a, b = (torch.from_numpy(each).cuda() for each in (x, w))
        return {f"torch {kind}": torch_peer(lambda: torch.matmul(a, b))}
    if kind == "int8":
        a, b = (torch.from_numpy(each.view(np.int8)).cuda() for each in (x, w))
        columns = b.t().contiguous().t()
        return {
            "torch._int_mm": torch_peer(lambda: torch._int_mm(a, b)),
            "torch._int_mm, columns": torch_peer(lambda: torch._int_mm(a, columns)),
        }
    a, b = (torch.from_numpy(each.view(np.uint8)).cuda().view(torch.float8_e4m3fn) for each in (x, w))
    columns, one = b.t().contiguous().t(), torch.ones((), device="cuda")

    def scale_and_multiply(fast: bool) -> Callable[[], Any]:
        return lambda: torch._scaled_mm(a, columns, one, one, out_dtype=torch.bfloat16, use_fast_accum=fast)

    return {
        f"torch._scaled_mm{', fast accumulation' if fast else ''}": torch_peer(scale_and_multiply(fast))
        for fast in (False, True)
    }


def program(kind: str, rows: int, depth: int, columns: int, right: str = "") -> str:
    """A weight matmul. Results: f32, of fp8 bf16, of int8 i32."""
    from smelt.ir.text import parse, print_program
    from smelt.layout import panels
    from smelt.passes.quantise import with_precision

    if kind == "tf32":
        return print_program(with_precision(parse(dot_text(rows, depth, columns, "f32")), "tf32"))
    if kind == "int8":
        x, w, y = f"tensor<1x{rows}x{depth}xui8>", f"tensor<1x{depth}x{columns}xi8>", f"tensor<1x{rows}x{columns}xi32>"
        packed = f"tensor<1x{-(-columns // 64)}x{-(-depth // 16)}x1024xi8>"
        layout = f'<{{layout = "{panels(64, 16)}"}}>'
        return f"""func.func @main(%x: {x}, %w: {w} {{smelt.weight = "w"}}) -> {y} {{
  %0 = "smelt.relayout"(%w) {layout} : ({w}) -> {packed}
  %1 = "smelt.packed_dot"(%x, %0) {layout} : ({x}, {packed}) -> {y}
  return %1 : {y}
}}"""
    text = dot_text(rows, depth, columns, kind, "bf16" if not right else "f32")
    return text.replace(f"{depth}x{columns}x{kind}", f"{depth}x{columns}x{right or kind}")


def operands(kind: str, rows: int, depth: int, columns: int, right: str = "") -> tuple[Any, Any]:
    if kind == "int8":
        random = np.random.default_rng(1)
        x = random.integers(0, 128, (rows, depth)).astype(np.uint8)
        return x, random.integers(-127, 128, (depth, columns)).astype(np.int8)
    kinds = ("f32", "f32") if kind == "tf32" else (kind, right or kind)
    return draw((rows, depth), kinds[0]), draw((depth, columns), kinds[1])


def error(kind: str, got: Any, x: Any, w: Any, rows: int = 32) -> float:
    from smelt.ir.integer import reduce_precision

    if kind == "tf32":
        x, w = (reduce_precision(each, 8, 10) for each in (x, w))
    x, w = x[:rows].astype(np.float64), w.astype(np.float64)
    got = got.reshape(-1, w.shape[1])[:rows].astype(np.float64)
    return float((np.abs(got - x @ w) / np.maximum(np.abs(x) @ np.abs(w), 1e-30)).max())


@contextmanager
def variant(tile: tuple[int, ...] | None = None, blocks: bool = True) -> Iterator[None]:
    """A size of the tile; fp8 without sums of blocks of K, as tensor cores add."""
    from smelt.kernel.build import gemm_simt
    from smelt.kernel.emit import tile_mma

    module: Any = tile_mma
    kept = gemm_simt.choose_tile, module.LOADS, module.MULTIPLY
    if tile is not None:
        gemm_simt.choose_tile = lambda *_: gemm_simt.TensorSize(*tile)
    if not blocks:
        module.LOADS = kept[1].replace("PACK = 16, BLOCK = 128", "PACK = 16, BLOCK = 0")
        module.MULTIPLY = kept[2].replace("b, more);", "b, 1);")
    try:
        yield
    finally:
        gemm_simt.choose_tile, module.LOADS, module.MULTIPLY = kept


def compare(kind: str, side: int, variants: dict[str, dict[str, Any]]) -> dict[str, Any]:
    x, w = operands(kind, side, side, side)
    given = (x[None], w[None]) if kind == "int8" else (x, w)
    calls: dict[str, Callable[[], float]] = {}
    found: dict[str, Any] = {}
    for name, how in variants.items():
        try:
            with variant(**how):
                ours = Ours(program(kind, side, side, side), *given)
            calls[name], found[name] = ours, {"kernels": ours.kernels, "error": error(kind, ours.result, x, w)}
        except Exception as problem:
            found[name] = {"failed": f"{type(problem).__name__}: {problem}"[:400]}
    try:
        calls |= peers(kind, x, w)
    except Exception as problem:
        found["torch"] = {"failed": f"{type(problem).__name__}: {problem}"[:400]}
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            times[name].append(call())
    for name, each in times.items():
        seconds = median(each)
        found.setdefault(name, {})
        found[name] |= {"us": 1e6 * seconds, "tflops": 2e-12 * side**3 / seconds}
        print(kind, side, name, json.dumps(found[name]), flush=True)
    for name, about in found.items():
        if "failed" in about:
            print(kind, side, name, about, flush=True)
    return found


def odd() -> dict[str, Any]:
    """Errors of sizes that fill no tile."""
    found: dict[str, Any] = {}
    for kind, right in (("tf32", ""), *((left, right) for left in FP8 for right in FP8)):
        for tile in ODD_TILES if (kind, right) in (("tf32", ""), (FP8[0], FP8[0])) else ODD_TILES[:1]:
            for splits, sizes in ((1, (150, 1056, 264)), (3, (70, 333, 77))):
                x, w = operands(kind, *sizes, right)
                with variant((*tile, splits)):
                    got = Ours(program(kind, *sizes, right), x, w).result
                found[f"{kind} {right} {tile} {splits} {sizes}"] = error(kind, got, x, w, sizes[0])
    long = {}
    for name, blocks in (("blocks", True), ("one sum", False)):
        x, w = (np.abs(each.astype(np.float32)).astype(each.dtype) for each in operands(FP8[0], 128, 8192, 128))
        with variant((128, 128), blocks):
            long[name] = error(FP8[0], Ours(program(FP8[0], 128, 8192, 128, FP8[0]), x, w).result, x, w, 128)
    worst = {kind: max(value for name, value in found.items() if name.startswith(kind)) for kind in ("tf32", *FP8)}
    print("odd", json.dumps({"worst": worst, "positive, K of 8192": long}), flush=True)
    return {"all": found, "worst": worst, "long": long}


def few() -> dict[str, Any]:
    """Few rows: fp8 and bf16, and f32 in turns with torch."""
    wide, found = [(rows, 4096, 14336) for rows in (1, 64)], {}
    cases = [(*sizes, kind) for sizes in wide for kind in (FP8[0], "bf16")]
    cases += [(*sizes, "f32") for sizes in (*F32_SIZES, *wide)]
    for rows, depth, columns, kind in cases:
        x, w = draw((rows, depth), kind), draw((depth, columns), kind)
        calls = {"smelt": Ours(dot_text(rows, depth, columns, kind), x, w)} | (
            peers(kind, x, w) if kind == "f32" else {}
        )
        times = [[call() for call in calls.values()] for _ in range(ROUNDS)]
        found[f"{rows}x{depth}x{columns} {kind}"] = {
            name: {"us": 1e6 * (seconds := median(each)), "TB/s": 1e-12 * w.nbytes / seconds}
            for name, each in zip(calls, zip(*times, strict=True), strict=True)
        }
    print("few", json.dumps(found), flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--side", type=int, default=4096)
    parser.add_argument("--parts", default="tf32,f8E4M3FN,int8,odd,few")
    parser.add_argument("--device", default="cuda", help="cuda, or emulated: to try the script without a GPU")
    options = parser.parse_args()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register()
    wide, usual = {"tile": (128, 256)}, {"tile": (128, 128)}
    variants: dict[str, dict[str, dict[str, Any]]] = {
        "tf32": {"smelt": {}},
        "int8": {"smelt": {}, "128 columns": usual},
        FP8[0]: {
            "smelt": {},
            "256 columns": wide,
            "128 columns": usual,
            "one sum": {**wide, "blocks": False},
        },
    }
    found: dict[str, Any] = {"command": sys.argv}
    for part in options.parts.split(","):
        match part:
            case "odd":
                found[part] = odd()
            case "few":
                found[part] = few()
            case _:
                found[part] = compare(part, options.side, variants[part])
        options.out.write_text(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
