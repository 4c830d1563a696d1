"""`python -m bench.cuda_errors [--out FILE.json]`: provokes what can go wrong on a GPU, and prints what a user sees.

Every case runs in a process of its own: what was raised, and whether the GPU and the processor work afterwards.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

DIGITS = str(Path(__file__).resolve().parents[1] / "smelt/assets/digits.onnx")
PIXELS = np.zeros((4, 64), np.float32)
SOURCE = """
extern "C" __global__ void spin(long long nanoseconds) {
  unsigned long long begin, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begin));
  do asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now)); while (now - begin < (unsigned long long)nanoseconds);
}
extern "C" __global__ void stray(long long address) { *(volatile int *)address = 1; }
extern "C" __global__ void trap(long long unused) { asm volatile("trap;"); }
"""


def load(device: str = "cuda") -> Any:
    import smelt

    return smelt.load(DIGITS, device=device, engine="native")


def launch(name: str, argument: int) -> None:
    """A kernel of SOURCE on smelt's own stream."""
    from smelt.device.cuda_compile import compile_cuda
    from smelt.device.registry import find_device

    device: Any = find_device("cuda")
    module = device.driver.load(compile_cuda(SOURCE, device.target().name))
    device.driver.queues.current.launch(device.driver.function(module, name), 1, 1, [argument])


# ---- cases: each raises ----


def out_of_memory() -> None:
    from smelt.device.registry import find_device

    find_device("cuda").allocate([(np.dtype(np.uint8), (1 << 40,))])


def call_out_of_memory() -> None:
    """A call whose results do not fit."""
    import smelt
    from smelt.ir.text import parse
    from smelt.weights import Weights

    text = """func.func @main(%x: tensor<?xf32>) -> tensor<?x4194304xf32> {
      %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?xf32>) -> tensor<i32>
      %r = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
      %c = stablehlo.constant dense<4194304> : tensor<1xi32>
      %s = stablehlo.concatenate %r, %c, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
      %y = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0]
        : (tensor<?xf32>, tensor<2xi32>) -> tensor<?x4194304xf32>
      return %y : tensor<?x4194304xf32>
    }"""
    made = smelt.platform("cuda", "native").engine.compile(parse(text)).prepare(Weights.of({}))
    made(np.zeros(4, np.float32))
    made(np.zeros(1 << 17, np.float32))  # 2 TiB


def kernel_runs_too_long() -> None:
    model = load()
    model(PIXELS)
    launch("spin", 3_000_000_000)
    model(PIXELS, timeout=0.3)


def cancel_call() -> None:
    import smelt

    model, token = load(), smelt.Cancel()
    model(PIXELS)
    launch("spin", 3_000_000_000)
    threading.Timer(0.3, token.cancel).start()
    model(PIXELS, cancel=token)


def illegal_address() -> None:
    model = load()
    launch("stray", 64)
    model(PIXELS)


def use_after_a_lost_device() -> None:
    model = load()
    model(PIXELS)
    launch("trap", 0)
    try:
        model(PIXELS)
    except Exception as error:
        print(f"first: {' '.join(str(error).split())}", file=sys.stderr)
    model(PIXELS)


def no_driver() -> None:
    """A machine whose devices are hidden."""
    load()


def old_driver() -> None:
    """A driver that says that it supports CUDA 11.4."""
    from cuda.bindings import driver as api

    api.cuDriverGetVersion = lambda: (api.CUresult.CUDA_SUCCESS, 11040)
    load()


def no_nvrtc() -> None:
    """A machine without NVRTC's library."""
    from cuda.bindings import nvrtc

    def find_nothing() -> None:
        raise RuntimeError("Failed to dlopen libnvrtc.so.13")

    nvrtc.nvrtcVersion = find_nothing
    load()


def no_package() -> None:
    sys.modules["cuda.bindings"] = None  # type: ignore[assignment]
    load()


CASES: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        out_of_memory, call_out_of_memory, kernel_runs_too_long, cancel_call, illegal_address, use_after_a_lost_device,
        no_driver, old_driver, no_nvrtc, no_package,
    )
}  # fmt: skip
HIDDEN = {"no_driver": {"CUDA_VISIBLE_DEVICES": ""}}


def provoke(name: str) -> dict[str, Any]:
    """Run a case in this process; then try the GPU and the processor."""
    from smelt.errors import SmeltError

    found: dict[str, Any] = {"case": name}
    start = time.perf_counter()
    try:
        CASES[name]()
        found["raised"] = "nothing"
    except SmeltError as error:
        found |= {"raised": type(error).__name__, "text": str(error)}
    except BaseException as error:
        found |= {"raised": f"NOT OURS: {type(error).__name__}", "text": str(error)}
    found["seconds"] = round(time.perf_counter() - start, 2)
    for device in ("cuda", "cpu"):
        try:
            load(device)(PIXELS)
            found[f"{device} afterwards"] = "works"
        except Exception as error:
            found[f"{device} afterwards"] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--case", choices=CASES)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(provoke(options.case)))
        return
    table = []
    for name in CASES:
        environment = {**os.environ, **HIDDEN.get(name, {})}
        command = [sys.executable, "-m", "bench.cuda_errors", "--case", name]
        try:
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        except subprocess.TimeoutExpired:
            table.append({"case": name, "raised": "HANGS"})
            continue
        lines = done.stdout.strip().splitlines()
        row = json.loads(lines[-1]) if lines else {"case": name, "raised": f"ENDS with {done.returncode}"}
        row["process"] = done.returncode
        row["said"] = done.stderr[-1500:]
        table.append(row)
        print(f"{name}: {row['raised']} after {row.get('seconds')} s, process ends with {done.returncode}")
        print("\n".join(f"    {line}" for line in str(row.get("text", row["said"])).splitlines()))
        print(
            "\n".join(f"    {each} afterwards: {row.get(f'{each} afterwards')}" for each in ("cuda", "cpu")), flush=True
        )
    if options.out:
        options.out.write_text(json.dumps(table, indent=1))


if __name__ == "__main__":
    main()
