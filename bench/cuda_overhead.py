"""`python -m bench.cuda_overhead [--out FILE.json]`: where the time of a call of a recorded program goes.

    call        a call of the executable that is not waited for, 1,000 in a row with waits in between
    waited      a call and the wait for its result
    kernels     the graph alone, by events
    launch      cuGraphLaunch alone, directly and through cuda-bindings
    allocate    memory of a result, taken and given back
    python      `call` without `launch`: what the host adds

All in microseconds, the median. Without a GPU `--host` times the same path on a driver that does nothing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

CALLS = 1000
BATCH = 20  # calls between two waits: the queue of a device must not run full


def microseconds(work: Callable[[], object], wait: Callable[[], object] = lambda: None, calls: int = CALLS) -> float:
    """The median time of a call, over batches."""
    found = []
    for _ in range(calls // BATCH):
        start = time.perf_counter()
        for _ in range(BATCH):
            work()
        found.append((time.perf_counter() - start) / BATCH)
        wait()
    return 1e6 * statistics.median(found)


def _call_and_wait(made: Any, inputs: list[Any]) -> None:
    made(*inputs)[0].wait()


def measure_gpu() -> dict[str, Any]:
    """A perceptron and a chain of 16 maps, on the GPU."""
    from smelt.buffer import HostBuffer
    from smelt.device.registry import find_device
    from smelt.engine.native import native_engine
    from smelt.ir.text import parse
    from smelt.weights import Weights
    from tests.property.models import MODELS

    engine, driver = native_engine("cuda"), find_device("cuda").driver  # type: ignore[attr-defined]
    model = MODELS["perceptron"]
    perceptron = engine.compile(model.dynamic_program()).prepare(Weights.of(model.values(1)))
    arguments = model.arguments(np.random.default_rng(1), model.tried[0])
    small = "func.func @main(%x: tensor<256xf32>) -> tensor<256xf32> {\n  %0 = stablehlo.sine %x : tensor<256xf32>\n"
    single = engine.compile(parse(small + "  return %0 : tensor<256xf32>\n}")).prepare(Weights.of({}))
    programs = {"perceptron": (perceptron, arguments), "one map": (single, [np.ones(256, np.float32)])}
    found: dict[str, Any] = {}
    for name, (made, given) in programs.items():
        inputs = [engine.put(HostBuffer.of(each)) for each in given]  # type: ignore[attr-defined]
        for _ in range(10):
            made(*inputs)[0].wait()
        call = microseconds(partial(made, *inputs), driver.wait)
        waited = microseconds(partial(_call_and_wait, made, inputs))
        (graph,) = {each.whole for each in made._bound._graphs.values()}  # type: ignore[union-attr]
        queue = driver.queues.current
        first = queue.event()
        for _ in range(BATCH):
            queue.replay(graph)
        kernels = 1e6 * driver.seconds(first, queue.event()) / BATCH
        launch = microseconds(partial(queue.replay, graph), driver.wait)
        through = partial(driver.api.cuGraphLaunch, driver.api.CUgraphExec(graph), queue.handle)
        found[name] = {
            "call": call, "waited": waited, "kernels": kernels, "launch": launch,
            "launch through cuda-bindings": microseconds(through, driver.wait),
            "allocate": microseconds(lambda queue=queue: queue.free(queue.allocate(1024))), "python": call - launch,
        }  # fmt: skip
    return found


def measure_host() -> dict[str, Any]:
    """The path of a call on a driver that does nothing."""
    from smelt.device.gpu_buffer import GpuBuffer
    from smelt.shape import Shape
    from tests.unit.device.test_host_plan import HostDriver, doubling

    class Idle(HostDriver):
        def allocate(self, count: int) -> int:
            return 4096

        def free(self, address: int, after: Any = ()) -> None: ...

        def replay(self, graph: Any) -> None: ...

    driver, bound = doubling()
    driver.__class__ = Idle
    x = GpuBuffer.of(driver, np.ones(3, np.float32), Shape("f32", 3))
    for _ in range(3):
        bound((x,))
    return {"python": microseconds(lambda: bound((x,)), calls=20 * CALLS)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--host", action="store_true")
    options = parser.parse_args()
    found = measure_host() if options.host else measure_gpu()
    print(json.dumps(found, indent=1))
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
