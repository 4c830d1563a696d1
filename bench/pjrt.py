"""What a call through a prepared executable of the pjrt engine adds to jaxlib's own execution, in microseconds.

    python -m bench.pjrt [--device cuda] [--rounds N] [--processor-time] [--json FILE]

Both run the same program, interleaved: jaxlib's `execute_sharded` with results as arrays, and our call, on buffers on
the device; then both from NumPy to NumPy. `engine` is the engine's executable, `compile` that of `smelt.compile`.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import Tensor, nn
from smelt.buffer import HostBuffer
from smelt.device import pjrt
from smelt.engine.pjrt import PjrtEngine
from smelt.ir.text import parse

PROGRAM = """
func.func @main(%x: tensor<8x16xf32>, %w: tensor<16x4xf32> {smelt.weight = "w"}) -> tensor<8x4xf32> {
  %0 = stablehlo.dot %x, %w : (tensor<8x16xf32>, tensor<16x4xf32>) -> tensor<8x4xf32>
  return %0 : tensor<8x4xf32>
}
"""
CALLS = 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=400)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processor-time", action="store_true", help="of this process: others use the machine, too")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = PjrtEngine(options.device)
    weight = np.ones((16, 4), np.float32)
    x = np.ones((8, 16), np.float32)
    executable = engine.compile(parse(PROGRAM)).prepare({"w": weight})
    placed = engine.put(HostBuffer.of(x))
    theirs = _jaxlib(engine, executable, placed, x, weight)
    bound = _compile(engine, weight)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "engine, buffers": (lambda: executable(placed)[0].wait(), theirs[0]),
        "engine, numpy": (lambda: executable(x)[0].numpy(), theirs[1]),
        "compile, buffers": (lambda: bound(placed).wait(), theirs[0]),
        "compile, numpy": (lambda: bound(x).numpy(), theirs[1]),
    }
    record: dict[str, Any] = {"machine": platform.processor(), "jaxlib": pjrt.version(), "device": options.device}
    for name, (ours, plain) in pairs.items():
        clock = time.process_time if options.processor_time else time.perf_counter
        times = _in_turns(ours, plain, options.rounds, clock)
        record[name] = times
        print(
            f"{name:<16} smelt {times['smelt']:6.1f} µs, jaxlib {times['jaxlib']:6.1f} µs, "
            f"added {times['added']:+.1f} µs"
        )
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def _compile(engine: PjrtEngine, weight: Any) -> Any:
    """The same product as a layer of the front end."""

    class Product(smelt.Model):
        layer = nn.Linear(d=16, f=4, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x)

    where = smelt.platform(engine.device, "pjrt")
    executable = smelt.compile(Product().forward, "f32[b=8, d=16]", platform=where)
    return executable.prepare({"layer.weight": np.ascontiguousarray(weight.T)})


def _jaxlib(engine: PjrtEngine, executable: Any, placed: Any, x: Any, weight: Any) -> list[Callable[[], Any]]:
    """The same with jaxlib alone: what is measured against."""
    client: Any = engine.client
    loaded = executable._program().loaded(())._raw
    (bound,) = (each.raw for each in executable._bound.buffers)
    raw = placed.raw
    aval = pjrt._Aval(x.shape, x.dtype)

    def on_buffers() -> Any:
        ((result,),) = loaded.execute_sharded([bound, raw]).disassemble_into_single_device_arrays()
        return result.block_until_ready()

    def from_numpy() -> Any:
        put = client._put(aval, client._sharding, [x], [client._device], True, False, client._copied, True)
        ((result,),) = loaded.execute_sharded([bound, put]).disassemble_into_single_device_arrays()
        return result._single_device_array_to_np_array_did_copy()

    return [on_buffers, from_numpy]


def _in_turns(
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, clock: Callable[[], float]
) -> dict[str, float]:
    """Medians of rounds that take turns, and of the difference between neighbours."""
    times: dict[str, list[float]] = {"smelt": [], "jaxlib": []}
    for _ in range(rounds):
        for name, call in (("smelt", ours), ("jaxlib", theirs)):
            call()
            start = clock()
            for _ in range(CALLS):
                call()
            times[name].append(1e6 * (clock() - start) / CALLS)
    found = {name: statistics.median(each) for name, each in times.items()}
    added = [ours - theirs for ours, theirs in zip(times["smelt"], times["jaxlib"], strict=True)]
    return {**found, "added": statistics.median(added)}


if __name__ == "__main__":
    main()
