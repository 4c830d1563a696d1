"""What a call through a prepared executable of the pjrt engine adds to jaxlib's own execution, in microseconds.

    python -m bench.pjrt [--rounds N] [--json FILE]

Both run the same program in turns: jaxlib's `execute_sharded` with results as arrays, and our call, on buffers that lie
on the device; then both from NumPy to NumPy.
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
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    engine = PjrtEngine(options.device)
    weight = np.ones((16, 4), np.float32)
    x = np.ones((8, 16), np.float32)
    executable = engine.compile(parse(PROGRAM)).prepare({"w": weight})
    placed = engine.put(HostBuffer.of(x))
    theirs = _jaxlib(engine, executable, placed, x, weight)
    pairs = {
        "buffers": (lambda: executable(placed)[0].wait(), theirs[0]),
        "numpy": (lambda: executable(x)[0].numpy(), theirs[1]),
    }
    record: dict[str, Any] = {"machine": platform.processor(), "jaxlib": pjrt.version(), "device": options.device}
    for name, (ours, plain) in pairs.items():
        times = _in_turns(ours, plain, options.rounds)
        record[name] = times
        added = times["smelt"] - times["jaxlib"]
        print(f"{name:<8} smelt {times['smelt']:6.1f} µs, jaxlib {times['jaxlib']:6.1f} µs, added {added:+.1f} µs")
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


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


def _in_turns(ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int) -> dict[str, float]:
    """The lower deciles of rounds that take turns: a machine that others use is slow now and then."""
    times: dict[str, list[float]] = {"smelt": [], "jaxlib": []}
    for _ in range(rounds):
        for name, call in (("smelt", ours), ("jaxlib", theirs)):
            call()
            start = time.perf_counter()
            for _ in range(CALLS):
                call()
            times[name].append(1e6 * (time.perf_counter() - start) / CALLS)
    return {name: statistics.quantiles(each, n=10)[0] for name, each in times.items()}


if __name__ == "__main__":
    main()
