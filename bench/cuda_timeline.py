"""`python -m bench.cuda_timeline --out FILE.json`: when the blocks of every launch of a decoding step begin and end.

Launches begin before the ones in front of them end, so times of kernels alone do not add up to a step. Here every block
notes the device's clock (`%globaltimer`, in steps of 32 ns) when it begins, when the launch in front has ended for it
(released), and at its end. A table has one line for each launch of the last layers, in order: the first, the median
and the last of its blocks, in microseconds. A launch that a step has several times shows its last time.

The model is that of `bench.cuda_llm --kinds engine`: `--format bf16`, or blocks such as q4_0.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cuda_llm import LARGE, WARM, Sizes, bind_engine, graph_seconds
from smelt.kernel.emit import cuda
from smelt.kernel.emit.kernel_cuda import StagePrinter

BLOCKS, MARKS = 4096, ("begin", "released", "end")
LAST = 400_000  # nanoseconds at the end of a step that are shown
MARK = f"""
extern "C" __device__ unsigned long long smelt_times[{len(MARKS) * BLOCKS}];
#define SMELT_MARK(mark, thread) do {{ if (threadIdx.x == (thread) && blockIdx.x < {BLOCKS}) {{ \\
  unsigned long long now_; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_) :: "memory"); \\
  smelt_times[(mark) * {BLOCKS} + blockIdx.x] = now_; }} }} while (0)
// The first or the last thread, whichever ends later: warps may have roles.
#define SMELT_END() do {{ if ((threadIdx.x == 0 || threadIdx.x == blockDim.x - 1) && blockIdx.x < {BLOCKS}) {{ \\
  unsigned long long now_; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now_) :: "memory"); \\
  atomicMax(smelt_times + 2 * {BLOCKS} + blockIdx.x, now_); }} }} while (0)
"""


def add_marks() -> None:
    """Have kernels note the time, each in a file of its own, so that each has its own array."""
    emit, file = StagePrinter.emit, cuda.CudaSource._file

    def emit_marked(printer: StagePrinter) -> str:
        head, _, body = emit(printer).partition(") {\n")
        return f"{head}) {{\n  SMELT_MARK(0, 0);\n{body.removesuffix('}')}  SMELT_END();\n}}"

    def file_marked(source: cuda.CudaSource, parts: Any) -> str:
        marked = r"{ \1(); SMELT_MARK(1, blockDim.x - 1); }"
        return re.sub(r"\b(SMELT_AWAIT|smelt_await)\(\);", marked, file(source, parts))

    def texts(source: cuda.CudaSource, _: int) -> list[str]:
        return [*(source._file([each]) for each in source.parts), json.dumps({"programs": source.programs})]

    StagePrinter.emit = emit_marked  # type: ignore[method-assign]
    cuda.CudaSource._file = file_marked  # type: ignore[method-assign]
    cuda.CudaSource.texts = texts  # type: ignore[method-assign]
    cuda.PRELUDE += MARK


def read_times(driver: Any, modules: list[Any]) -> list[dict[str, Any]]:
    """The marks of each kernel that has run, in nanoseconds."""
    found = []
    driver.enter()
    for module in modules:
        status, address, _ = driver.api.cuModuleGetGlobal(module, b"smelt_times")
        if int(status):
            continue
        times = np.zeros((len(MARKS), BLOCKS), np.int64)
        driver.check(driver.api.cuMemcpyDtoH(times.ctypes.data, address, times.nbytes), "reading times")
        blocks = times[0] > 0
        if not blocks.any():
            continue
        count = driver.check(driver.api.cuModuleGetFunctionCount(module), "counting kernels")
        (first, *_) = driver.check(driver.api.cuModuleEnumerateFunctions(count, module), "listing kernels")
        marks = {name: times[i][blocks & (times[i] > 0)] for i, name in enumerate(MARKS)}
        found.append(
            {
                "kernel": driver.describe(first)["name"].removeprefix("smelt0_").rsplit("_", 1)[0],
                "blocks": int(blocks.sum()),
                **{
                    name: [int(each.min()), int(np.median(each)), int(each.max())]
                    for name, each in marks.items()
                    if each.size
                },
            }
        )
    end = max(each["end"][2] for each in found)
    return sorted((each for each in found if end - each["end"][2] < LAST), key=lambda each: each["end"][2])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--format", default="bf16")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--start", type=int, default=512, help="positions of the cache that are filled already")
    parser.add_argument("--large", action="store_true", help="the sizes of Llama 3.1 70B")
    options = parser.parse_args()
    from smelt.device.registry import find_device

    add_marks()
    driver, modules = find_device("cuda").driver, list[Any]()  # type: ignore[attr-defined]
    kind, load = type(driver), type(driver).load

    def load_noted(driver: Any, code: bytes) -> Any:
        modules.append(load(driver, code))
        return modules[-1]

    kind.load = load_noted
    sizes = replace(LARGE if options.large else Sizes(), layers=options.layers)
    engine = bind_engine(sizes, options.batch, options.start, options.format)
    for _ in range(WARM):
        engine.run()
    seconds = graph_seconds(engine.run, lambda: None, driver)["seconds"]
    found = read_times(driver, modules)
    first = min(each["begin"][0] for each in found)
    print(f"a step: {1e3 * seconds:.3f} ms, weights {engine.moved / seconds / 1e12:.2f} TB/s")
    print(f"{'launch':26} {'blocks':>6} " + " ".join(f"{name:>26}" for name in MARKS))
    for each in found:
        columns = [" ".join(f"{(at - first) / 1000:8.2f}" for at in each.get(name, ())) for name in MARKS]
        print(f"{each['kernel']:26} {each['blocks']:6} " + " ".join(f"{column:>26}" for column in columns))
    options.out.write_text(json.dumps({"command": sys.argv, "seconds": seconds, "launches": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
