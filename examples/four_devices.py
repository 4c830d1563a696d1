# ruff: noqa: F722  # shapes are no forward references
"""Layers of a transformer over four devices: two parts of the batch, and two parts of heads and features.

    python examples/four_devices.py [--device cuda]

In: nothing. Out: what each device holds, what XLA makes the devices exchange, and that one device gives the same. Which
axis of a tensor is split along which axis of the mesh is said once, by the axes' names.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn
from smelt.read import safetensors

MESH = smelt.Mesh(data=2, model=2, split={"b": "data", "e": "model", "f": "model"})
LAYERS, WIDTH, WIDE, HEADS = 2, 64, 128, 4


class Block(smelt.Model):
    """Attention and two products; the first product of each splits its features, the second adds the parts up."""

    def __init__(self) -> None:
        self.norm = nn.LayerNorm(d=WIDTH)
        self.query, self.key, self.value = (nn.Linear(d=WIDTH, e=WIDTH) for _ in range(3))
        self.join = nn.Linear(e=WIDTH, d=WIDTH)
        self.up = nn.Linear(d=WIDTH, f=WIDE)
        self.down = nn.Linear(f=WIDE, d=WIDTH)

    def __call__(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        q, k, v = (layer(y).split("e", h=HEADS, k=None) for layer in (self.query, self.key, self.value))
        q = smelt.shard(q, b="data", h="model")  # whole heads on each device
        y = nn.attention(q, k.rename(s="t"), v.rename(s="t")).merge("h k", "e")
        x = x + self.join(y)
        return x + self.down(nn.gelu(self.up(x)))


class Network(smelt.Model):
    def __init__(self) -> None:
        self.blocks = [Block() for _ in range(LAYERS)]

    def forward(self, x: Shaped[Tensor, "f32[b=B, s=S, d=64]"]) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def random_weights(seed: int = 0) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    shapes = {path: tensor.shape.numbers() for path, tensor in Network().walk()}
    return {path: (random.standard_normal(sizes) / 8).astype(np.float32) for path, sizes in shapes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    options = parser.parse_args()
    x = np.random.default_rng(1).standard_normal((4, 10, WIDTH)).astype(np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "network.safetensors"
        safetensors.write(path, random_weights())
        weights = smelt.open(path)
        network = smelt.instantiate(Network, weights)

        where = smelt.platform(options.device, mesh=MESH)
        executable, buffers = smelt.compile_and_load(network.forward, weights, platform=where)
        print(f"mesh          {MESH}")
        print(f"a weight      {buffers.blocks[0].up.weight}")  # type: ignore[attr-defined]
        with executable.prepare(buffers) as bound:
            several = bound(x).numpy()
        print(f"each device   {where.stats()['bytes_in_use:0']} of {weights.nbytes} bytes of weights")

        one, loaded = smelt.compile_and_load(network.forward, weights, engine="pjrt")
        with one.prepare(loaded) as bound:
            alone = bound(x).numpy()
    error = float(np.abs(several - alone).max())
    assert error < 1e-4, f"the devices disagree by {error}"
    print(f"result        {list(several.shape)} agrees with one device, largest difference {error:.1e}")


if __name__ == "__main__":
    main()
