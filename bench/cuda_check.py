"""`python -m bench.cuda_check --out FILE.json`: everything that only a GPU can show, in one run with time limits.

    gemm       4096³ in bf16 in several variants, beside cuBLAS through torch where that is installed
    few        few rows by bf16 weights in several variants: bytes per second
    spike      a map, a reduction, GEMVs of f32: bytes per second
    overhead   the time of a call of a small program
    overlap    a chain of GEMVs with and without dependent launch
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
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device import gpu_program

ROOT = Path(__file__).resolve().parents[1]
PARTS = ("gemm", "few", "spike", "overhead", "overlap", "models", "networks", "stablehlo", "onnx")
REPEATS = 20
# Of few rows: columns of a block, turns of K that a thread reads ahead, blocks of a multiprocessor.
FEW_VARIANTS = ((16, 4, 2), (32, 2, 3), (32, 2, 2), (32, 4, 2))
STREAM_VARIANTS = (2, 3, 4)  # where the copy engine reads weights: blocks of a multiprocessor


# ---- measuring ----


class Timed:
    """Remembers the launches of a device, without graphs; then each is timed as a graph that holds it many times.

    An event pair around one launch would measure how long the host takes to launch it.
    """

    def __init__(self, driver: Any, times: int = 20) -> None:
        self.driver, self.queue_type, self.graphs = driver, type(driver.queues.first), gpu_program.GRAPHS
        self.plain = self.queue_type.launch
        self.times = 1 if hasattr(driver, "replays") else times  # the emulator is slow
        self.launches: list[tuple[Any, ...]] = []

    def __enter__(self) -> Timed:
        def launch(queue: Any, *given: Any, **more: Any) -> None:
            self.plain(queue, *given, **more)
            self.launches.append(given)

        self.queue_type.launch = launch
        gpu_program.GRAPHS = False
        return self

    def __exit__(self, *_: object) -> None:
        self.queue_type.launch = self.plain
        gpu_program.GRAPHS = self.graphs

    def _seconds(self, given: tuple[Any, ...]) -> float:
        queue = self.driver.queues.current

        def work() -> None:
            for _ in range(self.times):
                queue.launch(*given)

        self.queue_type.launch = self.plain
        graph = queue.record(work)
        queue.replay(graph)
        first = queue.event()
        queue.replay(graph)
        seconds = self.driver.seconds(first, queue.event()) / self.times
        queue.forget(graph)
        return float(seconds)

    def kernels(self, most: int = 12) -> list[dict[str, Any]]:
        """The kernels that take longest: seconds of all of its launches, and what it takes. Called after the work."""
        found: dict[str, dict[str, Any]] = {}
        for given in self.launches:
            function, blocks, threads, _, *shared = given
            about = self.driver.describe(function)
            held = found.setdefault(about["name"], {**about, "seconds": 0.0, "launches": 0})
            held |= {"blocks": blocks, "threads": threads, "dynamic": sum(shared), "launches": held["launches"] + 1}
            held["seconds"] += self._seconds(given)
        self.launches.clear()
        return sorted(found.values(), key=lambda each: -each["seconds"])[:most]


def kernel_seconds(
    program: str, array: Any, weights: dict[str, Any] | None = None, want: Any = None, repeats: int = REPEATS
) -> dict[str, Any]:
    """The time of a program's kernels together, of a call with its overhead, and of a call that is not waited for.
    `want`: the first rows of the result; how far off it is, relative to its scale."""
    from smelt.buffer import HostBuffer
    from smelt.device.registry import find_device
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    engine, driver = native_engine("cuda"), find_device("cuda").driver  # type: ignore[attr-defined]
    bound = Weights.of({name: HostBuffer.of(each) for name, each in (weights or {}).items()})
    executable = engine.compile(parse(program)).prepare(bound)
    inputs = [engine.put(HostBuffer.of(array))]  # type: ignore[attr-defined]
    result = executable(*inputs)[0].numpy()
    found: dict[str, Any] = {} if want is None else {"off": _off(result[: len(want)], want)}
    calls = []
    for _ in range(repeats):
        start = time.perf_counter()
        executable(*inputs)[0].wait()
        calls.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(repeats):
        last = executable(*inputs)[0]
    last.wait()
    found["stream"] = (time.perf_counter() - start) / repeats
    with Timed(driver) as timed:
        last = executable(*inputs)[0].wait()  # it keeps the memory that the kernels write
    found["kernels"] = kernels = timed.kernels()
    executable.close()
    return {"least": sum(each["seconds"] for each in kernels), "call": min(calls), **found}


def dot_text(rows: int, depth: int, columns: int, element: str, result: str = "f32") -> str:
    """A GEMM whose weights are packed when they are bound."""
    a, b = f"tensor<{rows}x{depth}x{element}>", f"tensor<{depth}x{columns}x{element}>"
    result = f"tensor<{rows}x{columns}x{result}>"
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
    rows, wide = 4096 // options.smaller, 4096 // options.smaller
    text = f"""func.func @main(%x: tensor<{rows}x{wide}xf32>) -> tensor<{rows}xf32> {{
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %0 = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [1] :
    (tensor<{rows}x{wide}xf32>, tensor<f32>) -> tensor<{rows}xf32>
  return %0 : tensor<{rows}xf32>
}}"""
    timed = kernel_seconds(text, random((rows, wide), "f32"))
    found["rows"] = {**timed, "bytes_per_second": 4 * rows * wide / timed["least"]}
    for columns, depth in ((4096, 4096), (28672, 4096)):
        columns, depth = columns // options.smaller, depth // options.smaller
        for rows in (1, 8):
            timed = _dot(rows, depth, columns, "f32")
            found[f"gemv {rows}x{depth}x{columns} f32"] = {
                **timed,
                "bytes_per_second": 4 * depth * columns / timed["least"],
            }
    return found


def overlap(options: argparse.Namespace) -> dict[str, Any]:
    """Products of one row by square weights, one after another."""
    from smelt.buffer import HostBuffer
    from smelt.device import host_plan
    from smelt.device.registry import find_device
    from smelt.engine.native import NativeEngine
    from smelt.ir.text import parse
    from smelt.weights import Weights

    side, count = 4096 // options.smaller, 16
    row, square = f"tensor<1x{side}xbf16>", f"tensor<{side}x{side}xbf16>"
    given = ", ".join(f'%w{i}: {square} {{smelt.weight = "w{i}"}}' for i in range(count))
    lines = [
        f"  %{i + 1} = stablehlo.dot_general %{i}, %w{i}, contracting_dims = [1] x [0] : ({row}, {square}) -> {row}"
        for i in range(count)
    ]
    text = "\n".join(
        [
            f"func.func @main(%x: {row}, {given}) -> {row} {{",
            f"  %0 = stablehlo.add %x, %x : {row}",
            *lines,
            f"  return %{count} : {row}",
            "}",
        ]
    )
    device = find_device("cuda")
    driver: Any = device.driver  # type: ignore[attr-defined]
    weights = Weights.of({f"w{i}": HostBuffer.of(random((side, side), "bf16")) for i in range(count)})
    x = HostBuffer.of(random((1, side), "bf16")).to_device(_platform())
    found: dict[str, Any] = {"bytes": 2 * count * side**2}
    digests = set()
    for on in (False, True):
        host_plan.OVERLAP = on
        made = NativeEngine(device.target()).compile(parse(text)).prepare(weights)
        last = [made(x)[0] for _ in range(4)][-1]
        digests.add(last.numpy().tobytes())
        first = driver.queues.current.event()
        for _ in range(REPEATS):
            last = made(x)[0]
        second = driver.queues.current.event()
        seconds = driver.seconds(first, second) / REPEATS
        found["dependent" if on else "in order"] = {"seconds": seconds}
    return {**found, "same bits": len(digests) == 1}


def _platform() -> Any:
    import smelt

    return smelt.platform("cuda", "native")


def _dot(rows: int, depth: int, columns: int, element: str, result: str = "f32") -> dict[str, Any]:
    """A product, timed; its first rows are checked against doubles."""
    x, w = random((rows, depth), element), random((depth, columns), element)
    some = x[:16].astype(np.float64) @ w.astype(np.float64)
    return kernel_seconds(dot_text(rows, depth, columns, element, result), x, {"w": w}, some)


# ---- variants of the kernels on tensor cores ----


def _variants(name: str) -> Iterator[str]:
    """What smelt chooses, then other sizes and instructions, each as a change of the modules that decide."""
    from smelt.device import cuda_compile
    from smelt.kernel.build import gemm_simt
    from smelt.kernel.emit import kernel_cuda, tile_mma
    from smelt.kernel.loops import tensor_tile

    printer: Any = kernel_cuda
    instructions: Any = tile_mma
    usual, resident_blocks = tensor_tile.STAGES, printer.resident_blocks
    texts = {each: getattr(instructions, each) for each in ("INSTRUCTIONS", "FEW")}
    chosen, many = gemm_simt.choose_tile, gemm_simt.MANY_COLUMNS
    rows_of, streams = gemm_simt.few_and_most, (tensor_tile.STREAM_BLOCKS, tensor_tile.SPLIT_STREAM_BLOCKS)
    compiled, flags = cuda_compile.compile_cuda, cuda_compile.FLAGS

    def reset() -> None:
        tensor_tile.STAGES, printer.resident_blocks = usual, resident_blocks
        for each, text in texts.items():
            setattr(instructions, each, text)
        gemm_simt.choose_tile, gemm_simt.MANY_COLUMNS, gemm_simt.few_and_most = chosen, many, rows_of
        tensor_tile.STREAM_BLOCKS, tensor_tile.SPLIT_STREAM_BLOCKS = streams
        cuda_compile.compile_cuda, cuda_compile.FLAGS = compiled, flags

    def tile(columns: int, stages: int, wgmma: bool = True) -> None:
        gemm_simt.choose_tile = lambda *_: gemm_simt.TensorSize(tensor_tile.TILE_ROWS, columns)
        tensor_tile.STAGES = stages
        if not wgmma:
            instructions.INSTRUCTIONS = instructions.INSTRUCTIONS.replace("#define SMELT_WGMMA 1", "")

    def two_blocks() -> None:
        cuda_compile.compile_cuda = lambda text, machine: compiled(
            text.replace("__launch_bounds__(256) ", "__launch_bounds__(256, 2) "), machine
        )
        cuda_compile.FLAGS = (*flags, "--extra-device-vectorization")  # another key in the cache

    def few(columns: int, deep: int, resident: int) -> None:
        gemm_simt.MANY_COLUMNS = 0 if columns == 32 else 1 << 30
        gemm_simt.few_and_most = lambda *_: (tensor_tile.FEW_ROWS,) * 2
        instructions.FEW = re.sub(r"SMELT_FEW\((\d), [^,]*, true\)", rf"SMELT_FEW(\1, {deep}, true)", instructions.FEW)
        printer.resident_blocks = lambda _: resident

    def stream(resident: int) -> None:
        tensor_tile.STREAM_BLOCKS = tensor_tile.SPLIT_STREAM_BLOCKS = resident

    tiles = ((256, 8), (256, 6), (128, 6), (128, 8), (128, 12), (64, 6), (64, 8))
    changes: dict[str, list[tuple[str, Callable[[], None]]]] = {
        "gemm": [
            *((f"{columns} columns, {stages} stages", partial(tile, columns, stages)) for columns, stages in tiles),
            *((f"{columns} columns, mma.sync", partial(tile, columns, 3, False)) for columns in (64, 128)),
            ("256 columns, mma.sync", partial(tile, 256, 4, False)),
        ],
        "f32": [("two blocks", two_blocks)],
        "few 1": [
            (f"{columns} columns, {deep} deep, {resident} resident", partial(few, columns, deep, resident))
            for columns, deep, resident in FEW_VARIANTS
        ],
        "few 32": [(f"copy engine, {resident} resident", partial(stream, resident)) for resident in STREAM_VARIANTS],
    }
    yield "chosen"
    for what, change in changes[name]:
        change()
        yield what
        reset()


def gemm(options: argparse.Namespace) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for side, element in ((4096, "bf16"), (1024, "bf16"), (4096, "f32")):
        side //= options.smaller
        peer = _torch_gemm(side, element)
        for what in _variants("gemm" if element == "bf16" else "f32"):
            found[f"{side} {element} {what}"] = _flops(side, element, peer)
    return found


def _flops(side: int, element: str, peer: float | None) -> dict[str, Any]:
    try:
        timed = _dot(side, side, side, element, element)  # as cuBLAS: the result has the type of the operands
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"[:400]}
    timed["flops_per_second"] = 2 * side**3 / timed["least"]
    if peer is not None:
        timed |= {"cublas": 2 * side**3 / peer, "share": peer / timed["least"]}
    print(side, element, json.dumps(timed)[:300], file=sys.stderr, flush=True)
    return timed


def few(options: argparse.Namespace) -> dict[str, Any]:
    """Few rows by bf16 weights, as in decoding: bytes of the weights per second."""
    found: dict[str, Any] = {}
    for depth, columns in ((4096, 14336), (14336, 4096)):
        depth, columns = depth // options.smaller, columns // options.smaller
        w = random((depth, columns), "bf16")
        for rows in (1, 32):
            x = random((rows, depth), "bf16")
            want = x.astype(np.float32) @ w.astype(np.float32)
            for what in _variants(f"few {rows}"):
                try:
                    timed = kernel_seconds(dot_text(rows, depth, columns, "bf16"), x, {"w": w}, want)
                    timed["bytes_per_second"] = 2 * depth * columns / timed["least"]
                except Exception as error:
                    timed = {"error": f"{type(error).__name__}: {error}"[:400]}
                found[f"{rows}x{depth}x{columns} {what}"] = timed
    return found


def overhead(options: argparse.Namespace) -> dict[str, Any]:
    """A small program of several kernels, replayed as a graph: a call that is waited for, and one of many in a row."""
    from smelt.buffer import HostBuffer
    from smelt.engine.native import native_engine
    from smelt.weights import Weights
    from tests.property.models import MODELS

    engine, model = native_engine("cuda"), MODELS["perceptron"]
    made = engine.compile(model.dynamic_program()).prepare(Weights.of(model.values(1)))
    args = model.arguments(np.random.default_rng(1), model.tried[0])
    inputs = [engine.put(HostBuffer.of(each)) for each in args]  # type: ignore[attr-defined]
    for _ in range(10):
        made(*inputs)[0].wait()
    waited, start = [], time.perf_counter()
    for _ in range(200):
        waited.append(_seconds(lambda: made(*inputs)[0].wait()))
    start = time.perf_counter()
    for _ in range(200):
        last = made(*inputs)[0]
    begun = (time.perf_counter() - start) / 200
    last.wait()
    return {"waited": min(waited), "begun": begun}


def _torch_gemm(side: int, element: str) -> float | None:
    try:
        import torch
    except ImportError:
        return None
    if not torch.cuda.is_available():
        return None
    kind = {"bf16": torch.bfloat16, "f32": torch.float32}[element]
    a, b, c = (torch.randn(side, side, device="cuda", dtype=kind) for _ in range(3))
    torch.matmul(a, b, out=c)
    graph, times = torch.cuda.CUDAGraph(), []
    with torch.cuda.graph(graph):
        for _ in range(REPEATS):
            torch.matmul(a, b, out=c)
    for _ in range(3):
        first, second = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        graph.replay()
        second.record()
        torch.cuda.synchronize()
        times.append(1e-3 * first.elapsed_time(second) / REPEATS)
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
                kernels = timed.kernels(1000)
            with smelt.load(path, engine="native") as here:
                want = here(*inputs)
            off = {name: _off(got[name], want[name]) for name in want}
            found[path.stem] = {
                "first_call": compiled,
                "call": min(calls),
                "kernels": sum(each["seconds"] for each in kernels),
                "launches": sum(each["launches"] for each in kernels),
                "off": off,
                "longest": kernels[:10],
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
    "gemm": gemm,
    "few": few,
    "spike": spike,
    "overhead": overhead,
    "overlap": overlap,
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
