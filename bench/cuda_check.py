"""`python -m bench.cuda_check --out FILE.json`: everything that only a GPU can show, in one run with time limits.

    spike      a map and GEMVs: bytes per second of the kernels
    gemm       4096³ in bf16, beside cuBLAS through torch where that is installed
    models     digits.onnx and small models: the same bits as on the processor, or how far off
    networks   every ONNX file of --models: time of a call, time of its kernels, difference from the processor
    stablehlo  the StableHLO programs of --suites through the native engine on `cuda`
    onnx       the ONNX backend suite, or the part of it that --filter names

Each part runs in a process of its own, so that a lost device ends one part only, and is written to FILE as soon as it
is done. `SMELT_CC=gcc` where ziglang is not installed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device.host_plan import PlanProgram

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("spike", "gemm", "models", "networks", "stablehlo", "onnx")
REPEATS = 20


# ---- measuring ----


class Timed:
    """A driver whose launches stand between two events, each by itself: no graph is replayed."""

    def __init__(self, driver: Any) -> None:
        self.driver, self.plain, self.straight = driver, driver.launch, PlanProgram.is_straight
        self.marks: list[tuple[Any, Any]] = []

    def __enter__(self) -> Timed:
        def launch(*given: Any) -> None:
            first = self.driver.event()
            self.plain(*given)
            self.marks.append((first, self.driver.event()))

        self.driver.launch = launch
        PlanProgram.is_straight = property(lambda _: False)  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.launch = self.plain
        PlanProgram.is_straight = self.straight  # type: ignore[method-assign]

    def seconds(self) -> list[float]:
        found = [self.driver.seconds(*each) for each in self.marks]
        self.marks.clear()
        return found


def kernel_seconds(program: str, array: Any, weights: dict[str, Any] | None = None) -> dict[str, Any]:
    """The least and the median time of a program's kernels together, and of a call with its overhead."""
    from smelt.buffer import HostBuffer
    from smelt.device.registry import find_device
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    engine, driver = native_engine("cuda"), find_device("cuda").driver  # type: ignore[attr-defined]
    bound = Weights.of({name: HostBuffer.of(each) for name, each in (weights or {}).items()})
    executable = engine.compile(parse(program)).prepare(bound)
    inputs = [engine.put(HostBuffer.of(array))]  # type: ignore[attr-defined]
    executable(*inputs)[0].wait()
    calls = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        executable(*inputs)[0].wait()
        calls.append(time.perf_counter() - start)
    sums = []
    with Timed(driver) as timed:
        for _ in range(REPEATS):
            executable(*inputs)
            sums.append(sum(timed.seconds()))
    kernels = [f"{use.kind} × {use.count}" for use in executable.kernels]
    return {"least": min(sums), "median": statistics.median(sums), "call": min(calls), "kernels": kernels}


def dot_text(rows: int, depth: int, columns: int, element: str) -> str:
    """A GEMM whose weights are packed when they are bound."""
    a, b = f"tensor<{rows}x{depth}x{element}>", f"tensor<{depth}x{columns}x{element}>"
    result = f"tensor<{rows}x{columns}xf32>"
    return f"""func.func @main(%x: {a}, %w: {b} {{smelt.weight = "w"}}) -> {result} {{
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({a}, {b}) -> {result}
  return %0 : {result}
}}"""


def random(sizes: tuple[int, ...], element: str) -> Any:
    from smelt.dtype import dtype

    return np.random.default_rng(1).standard_normal(sizes, np.float32).astype(dtype(element).numpy)


# ---- parts ----


def spike(options: argparse.Namespace) -> dict[str, Any]:
    count = (1 << 28) // options.smaller**2
    text = f"""func.func @main(%x: tensor<{count}xf32>) -> tensor<{count}xf32> {{
  %0 = stablehlo.add %x, %x : tensor<{count}xf32>
  return %0 : tensor<{count}xf32>
}}"""
    timed = kernel_seconds(text, np.ones(count, np.float32))
    found: dict[str, Any] = {"map": {**timed, "bytes_per_second": 8 * count / timed["least"]}}
    for element, size in (("f32", 4), ("bf16", 2)):
        for columns, depth in ((4096, 4096), (28672, 4096), (4096, 14336)):
            columns, depth = columns // options.smaller, depth // options.smaller
            for rows in (1, 8):
                weights = {"w": random((depth, columns), element)}
                timed = kernel_seconds(dot_text(rows, depth, columns, element), random((rows, depth), element), weights)
                moved = size * depth * columns
                name = f"gemv {rows}x{depth}x{columns} {element}"
                found[name] = {**timed, "bytes_per_second": moved / timed["least"]}
    return found


def gemm(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, element in ((4096, "bf16"), (4096, "f32"), (1024, "bf16")):
        side //= options.smaller
        square = random((side, side), element)
        timed = kernel_seconds(dot_text(side, side, side, element), square, {"w": square})
        found[f"{side} {element}"] = {**timed, "flops_per_second": 2 * side**3 / timed["least"]}
        peer = _torch_gemm(side, element)
        if peer is not None:
            found[f"{side} {element}"]["cublas"] = {"least": peer, "flops_per_second": 2 * side**3 / peer}
    return found


def _torch_gemm(side: int, element: str) -> float | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[element]
    a, b = (torch.randn(side, side, device="cuda", dtype=kind) for _ in range(2))
    times = []
    for _ in range(REPEATS):
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        torch.matmul(a, b)
        second.record()
        torch.cuda.synchronize()
        times.append(1e-3 * first.elapsed_time(second))
    return float(min(times))


def models(_: argparse.Namespace) -> dict[str, Any]:
    import smelt
    from smelt.device.registry import find_device
    from smelt.engine.native import NativeEngine, compile_all
    from tests.property.models import MODELS
    from tests.property.problems import KINDS, difference, draw

    pixels = np.random.default_rng(3).random((5, 64), np.float32)
    path = str(ROOT / "smelt/assets/digits.onnx")
    got, want = (
        smelt.load(path, device=device, engine="native")(pixels)["probabilities"] for device in ("cuda", "cpu")
    )
    found: dict[str, Any] = {
        "digits": {"same_bits": bool(np.array_equal(got, want)), "off": float(np.abs(got - want).max())}
    }
    target = find_device("cuda").target()
    for name, model in MODELS.items():
        program, weights = model.dynamic_program(), model.values(1)
        there, here = (NativeEngine(each).compile(program).prepare(weights) for each in (target, None))
        worst, same = 0.0, True
        for sizes in model.tried:
            args = model.arguments(np.random.default_rng(1), sizes)
            for a, b in zip(there(*args), here(*args), strict=True):
                array = a.numpy()
                same = same and bool(np.array_equal(array, b, equal_nan=True))
                worst = max(worst, float(np.abs(array - b).max()) if array.size else 0.0)
        found[name] = {"same_bits": same, "off": worst}
    problems = [draw(kind, np.random.default_rng([1, *kind.encode(), i])) for kind in KINDS for i in range(8)]
    wrong = []
    for problem, made in zip(problems, compile_all([each.make(False) for each in problems], target), strict=True):
        why = str(made) if isinstance(made, Exception) else difference(problem, made(*problem.args)[0].numpy())
        if why:
            wrong.append(f"{problem.name}: {why}")
    return {**found, "property programs": {"run": len(problems), "wrong": wrong}}


def networks(options: argparse.Namespace) -> dict[str, Any]:
    import smelt
    from smelt.device.registry import find_device
    from smelt.engine.sample import default_sizes, sample_inputs
    from smelt.engine.signature import signature_of
    from smelt.model import read

    found: dict[str, Any] = {}
    for path in sorted(options.models.glob("*.onnx")) if options.models else ():
        start = time.perf_counter()
        try:
            program = read(path)[0]
            shapes = [port.shape for port in signature_of(program.main).inputs]
            inputs = sample_inputs(program, default_sizes(shapes))
            with smelt.load(path, device="cuda", engine="native") as there:
                got = there(*inputs)
                compiled = time.perf_counter() - start
                calls = [_seconds(partial(there, *inputs)) for _ in range(REPEATS)]
                with Timed(find_device("cuda").driver) as timed:  # type: ignore[attr-defined]
                    there(*inputs)
                    kernels = timed.seconds()
            with smelt.load(path, engine="native") as here:
                want = here(*inputs)
            off = {name: _off(got[name], want[name]) for name in want}
            found[path.stem] = {
                "first_call": compiled,
                "call": min(calls),
                "kernels": sum(kernels),
                "launches": len(kernels),
                "off": off,
            }
        except Exception as error:
            found[path.stem] = {"error": f"{type(error).__name__}: {error}"[:600]}
        print(path.stem, json.dumps(found[path.stem]), file=sys.stderr, flush=True)
    return found


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _off(got: Any, want: Any) -> float:
    """The largest difference, relative to the output's scale."""
    wide, right = (np.asarray(each).astype(np.float64) for each in (got, want))
    return float(np.abs(wide - right).max() / (np.abs(right).max() or 1)) if right.size else 0.0


def stablehlo(options: argparse.Namespace) -> dict[str, Any]:
    if options.suites is None:
        return {"skipped": "no --suites"}
    return _suite(["tests/conformance/stablehlo.py", str(options.suites), "--engine", "native"], options)


def onnx(options: argparse.Namespace) -> dict[str, Any]:
    more = ["--filter", options.filter] if options.filter else []
    return _suite(["tests/conformance/onnx_suite.py", "--engine", "native", *more], options)


def _suite(command: list[str], options: argparse.Namespace) -> dict[str, Any]:
    """A suite's own script with the device in its environment: how many passed, and what did not."""
    where = options.out.with_suffix(f".{Path(command[0]).stem}.json")
    environment = {**os.environ, "SUITE_DEVICE": options.device, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command, "--jobs", str(options.jobs), "--json", str(where)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if not where.exists():
        return {"error": (done.stdout + done.stderr)[-3000:]}
    told = json.loads(where.read_text())
    cases = told["cases"] if isinstance(told, dict) else told
    failed = {each["name"]: each["detail"][:300] for each in cases if each["status"] != "passed"}
    return {"cases": len(cases), "passed": len(cases) - len(failed), "failed": failed}


RUN: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "spike": spike,
    "gemm": gemm,
    "models": models,
    "networks": networks,
    "stablehlo": stablehlo,
    "onnx": onnx,
}


# ---- the run ----


def facts() -> dict[str, Any]:
    from importlib.metadata import PackageNotFoundError, version

    from smelt.device import cuda_compile
    from smelt.device.registry import find_device

    device = find_device("cuda")
    found: dict[str, Any] = {"missing": device.missing(), "command": sys.argv, "python": sys.version.split()[0]}
    for package in ("cuda-bindings", "nvidia-cuda-nvrtc", "torch", "numpy", "onnx"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    if found["missing"] is None:
        found |= {"device": device.model, "facts": {k: str(v) for k, v in device.facts().items()}}
        found |= {"compiler": cuda_compile.version(), "target": device.target().as_json()}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--suites", type=Path, help="the folder with testdata/ and interpret/")
    parser.add_argument("--models", type=Path, help="a folder with ONNX files")
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--seconds", type=float, default=150, help="the most that one part may take")
    parser.add_argument("--jobs", type=int, default=8, help="processes of a suite")
    parser.add_argument("--device", default="cuda", help="cuda, or emulated: to try the script without a GPU")
    parser.add_argument("--smaller", type=int, default=1, help="divides the sizes of spike and gemm")
    parser.add_argument("--filter", default="", help="only ONNX cases whose name contains this")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.device == "emulated":
        from tests.cuda.emulated import register

        register()
    if options.part:
        print(json.dumps(RUN[options.part](options)))
        return 0
    found: dict[str, Any] = {"facts": facts(), "parts": {}}
    for part in options.parts.split(","):
        start = time.perf_counter()
        try:
            done = subprocess.run(
                [sys.executable, "-m", "bench.cuda_check", "--part", part, *sys.argv[1:]],
                cwd=ROOT,
                capture_output=True,
                text=True,
                check=False,
                timeout=options.seconds,
            )
            lines = done.stdout.strip().splitlines()
            told = json.loads(lines[-1]) if done.returncode == 0 and lines else {"error": done.stderr[-3000:]}
        except subprocess.TimeoutExpired:
            told = {"error": f"not done after {options.seconds} s"}
        found["parts"][part] = {**told, "seconds": round(time.perf_counter() - start, 1)}
        options.out.write_text(json.dumps(found, indent=1))
        print(part, json.dumps(told)[:600], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
