"""Compiling a model while its weights are read from disk, compared with doing both in sequence.

    python examples/compile_and_load.py [--engine pjrt] [--device cuda] [--megabytes 512]

In: nothing. Out: seconds for each, and that both give the same numbers. The file is put out of the system's cache
before each round, as far as the system lets us.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import Tensor, nn
from smelt.read import safetensors

WIDTH = 1024
LAYER = WIDTH * WIDTH * 4  # bytes of one layer


class Tower(smelt.Model):
    """Layers that each do something else, so that there is something to compile."""

    layers: list[nn.Linear]

    def __init__(self, count: int) -> None:
        self.layers = [nn.Linear(d=(WIDTH, WIDTH), bias=False) for _ in range(count)]

    def forward(self, x: Tensor) -> Tensor:
        shapes: tuple[Callable[[Tensor], Tensor], ...] = (nn.gelu, nn.silu, nn.tanh, lambda y: y.softmax("d"))
        for i, layer in enumerate(self.layers):
            x = x + shapes[i % len(shapes)](layer(x)) * (1 / (i + 1))
        return x


def forget(path: Path) -> None:
    """Put a file out of the system's cache."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def measure(work: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    made = work()
    return time.perf_counter() - start, made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="pjrt")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--megabytes", type=int, default=512, help="how much the weights weigh, about")
    options = parser.parse_args()
    count = max(1, (options.megabytes << 20) // LAYER)
    x = np.random.default_rng(1).standard_normal((4, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        # Machine code that an earlier round left is no help in the next.
        os.environ["SMELT_CACHE_DIR"] = str(Path(folder) / "cache")
        path = Path(folder) / "tower.safetensors"
        random = np.random.default_rng(0)
        arrays = {
            f"layers.{i}.weight": (random.standard_normal((WIDTH, WIDTH)) / 32).astype(np.float32) for i in range(count)
        }
        safetensors.write(path, arrays)
        where = smelt.platform(options.device, options.engine)
        smelt.compile(lambda y: y + y, "f32[2]", platform=where)(np.ones(2, np.float32))  # the device is open now

        forget(path)
        weights = smelt.open(path)
        model = smelt.instantiate(Tower, weights, count=count)
        compiling, first = measure(lambda: smelt.compile(model.forward, f"f32[b=4, d={WIDTH}]", platform=where))
        loading, buffers = measure(lambda: weights.to_device(model, where))
        one = first.prepare(buffers)(x).numpy()
        print(f"compile       {compiling:.2f} s on {where}")
        print(f"load          {loading:.2f} s, {weights.nbytes / 1e6:.0f} MB")

        forget(path)
        os.environ["SMELT_CACHE_DIR"] = str(Path(folder) / "another cache")
        weights = smelt.open(path)
        both, (second, more) = measure(
            lambda: smelt.compile_and_load(model.forward, weights, f"f32[b=4, d={WIDTH}]", platform=where)
        )
        print(f"at once       {both:.2f} s instead of {compiling + loading:.2f} s")
        assert np.array_equal(second.prepare(more)(x).numpy(), one), "the two ways disagree"


if __name__ == "__main__":
    main()
