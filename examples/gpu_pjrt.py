"""A model's life on a device with XLA: compile, load weights from a file, bind, call, donate, serialise, free.

    python examples/gpu_pjrt.py [--device cuda] [--megabytes 64]

In: nothing. Out: what each step did, checked against NumPy. Without a GPU it runs on the processor.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import smelt
from smelt.buffer import HostBuffer
from smelt.device import pjrt
from smelt.engine import platform
from smelt.engine.pjrt import PjrtEngine
from smelt.ir.text import parse
from smelt.read import safetensors

# One step of a small recurrent network: the state is donated, so that the next one takes its place in memory.
STEP = """
func.func @main(%x: tensor<8x256xbf16>, %state: tensor<8x256xbf16>,
                %in: tensor<256x256xbf16> {smelt.weight = "in"},
                %back: tensor<256x256xbf16> {smelt.weight = "back"})
    -> (tensor<8x256xbf16> {smelt.name = "state"}) {
  %0 = stablehlo.dot %x, %in : (tensor<8x256xbf16>, tensor<256x256xbf16>) -> tensor<8x256xbf16>
  %1 = stablehlo.dot %state, %back : (tensor<8x256xbf16>, tensor<256x256xbf16>) -> tensor<8x256xbf16>
  %2 = stablehlo.add %0, %1 : tensor<8x256xbf16>
  %3 = stablehlo.tanh %2 : tensor<8x256xbf16>
  return %3 : tensor<8x256xbf16>
}
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu" if pjrt.missing("cuda") else "cuda")
    parser.add_argument("--megabytes", type=int, default=64, help="how much the weights weigh, about")
    options = parser.parse_args()
    chosen = platform(options.device, "pjrt")
    engine = chosen.engine
    assert isinstance(engine, PjrtEngine)
    print(f"platform      {chosen}, {engine.client.version}")
    with tempfile.TemporaryDirectory() as folder:
        arrays = make_weights(options.megabytes)
        path = Path(folder) / "model.safetensors"
        safetensors.write(path, arrays)
        run(chosen, engine, path, arrays)


def make_weights(megabytes: int) -> dict[str, Any]:
    random = np.random.default_rng(0)
    square = {name: random.standard_normal((256, 256)) / 16 for name in ("in", "back")}
    ballast = random.integers(0, 256, 32 << 20, np.uint8)  # tensors that are loaded and not used
    more = {f"more.{i}": ballast for i in range(megabytes // 32)}
    return {name: array.astype(ml_dtypes.bfloat16) for name, array in square.items()} | more


def run(chosen: Any, engine: PjrtEngine, path: Path, arrays: dict[str, Any]) -> None:
    program = parse(STEP)
    start = time.perf_counter()
    executable = engine.compile(program, donate=["state"])
    memory, cost = executable.memory(), executable.cost()
    print(f"compile       {time.perf_counter() - start:.2f} s, {cost.flops:.3g} flops, {memory.aliased} bytes in place")

    weights = smelt.open(path)
    start = time.perf_counter()
    buffers = weights.to_device(chosen)
    seconds = time.perf_counter() - start
    for name in ("in", "more.0"):
        assert np.array_equal(buffers[name].numpy(), arrays[name]), "a tensor arrived damaged"
    print(f"load          {weights.nbytes / 1e6:.0f} MB in {seconds:.3f} s, {weights.nbytes / 1e9 / seconds:.1f} GB/s")
    bound = executable.prepare(buffers)

    x = np.random.default_rng(1).standard_normal((8, 256)).astype(ml_dtypes.bfloat16)
    state = chosen.put(HostBuffer.of(np.zeros((8, 256), ml_dtypes.bfloat16)))
    kept, expected = state, np.zeros((8, 256))
    start = time.perf_counter()
    for _ in range(10):
        (state,) = bound(x, state)
        expected = step(x, expected, arrays)
    error = np.abs(state.numpy().astype(np.float64) - expected).max()
    print(
        f"call          10 steps, {1e3 * (time.perf_counter() - start):.1f} ms with NumPy's, largest error {error:.4f}"
    )
    assert error < 0.1, "the device disagrees with NumPy"
    try:
        kept.numpy()
    except smelt.SmeltError as refusal:
        print(f"donation      {refusal.message}")
    else:
        raise AssertionError("a donated buffer can still be read")

    data = bound.serialize()
    again = engine.deserialize(data).prepare(buffers)
    first = again(x, state, keep=True)[0].numpy()
    second = bound(x, state)[0].numpy()
    assert np.array_equal(first, second), "the restored program disagrees"
    print(f"serialise     {len(data)} bytes, {len(again.compilations)} compilations after loading them")

    before = chosen.stats()["bytes_in_use"]
    bound.close()
    again.close()
    for buffer in buffers.values():
        buffer.delete()
    print(f"free          {before} → {chosen.stats()['bytes_in_use']} bytes in use")


def step(x: Any, state: Any, arrays: dict[str, Any]) -> Any:
    wide = {name: arrays[name].astype(np.float64) for name in ("in", "back")}
    return np.tanh(x.astype(np.float64) @ wide["in"] + state @ wide["back"])


if __name__ == "__main__":
    main()
