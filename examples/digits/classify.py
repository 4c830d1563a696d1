# ruff: noqa: F722  # shapes are no forward references
"""The digit classifier as a Python model: the twin of `digits.onnx`, from weights in a safetensors file.

    python examples/digits/classify.py [--engine native]

In: the weights of `smelt/assets/digits.onnx`, written to a safetensors file first. Out: how many test images are right.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import smelt
from smelt import Shaped, Tensor
from smelt.read import safetensors

ASSETS = Path(smelt.__file__).parent / "assets"


class Digits(smelt.Model):
    """64 → 64 → 32 → 10; the first matrix is stored the other way round."""

    w1: Shaped[Tensor, "f32[f=F, d=64]"]
    b1: Shaped[Tensor, "f32[f=F]"]
    w2: Shaped[Tensor, "f32[f=F, g=G]"]
    b2: Shaped[Tensor, "f32[g=G]"]
    w3: Shaped[Tensor, "f32[g=G, c=10]"]
    b3: Shaped[Tensor, "f32[c=10]"]

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=64]"]) -> Shaped[Tensor, "f32[b=B, c=10]"]:
        x = (x.dot(self.w1, "d") + self.b1).relu()
        x = (x.dot(self.w2, "f") + self.b2).relu()
        return (x.dot(self.w3, "g") + self.b3).softmax("c")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    test = np.load(ASSETS / "digits_test.npz")
    x = (test["images"] / 16).astype(np.float32)
    _, arrays = smelt.read(ASSETS / "digits.onnx")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "digits.safetensors"
        safetensors.write(path, {name: buffer.numpy() for name, buffer in arrays.items()})
        weights = smelt.open(path)  # header only
        digits = smelt.instantiate(Digits, weights)
        executable, buffers = smelt.compile_and_load(digits.forward, weights, engine=options.engine)
        with executable.prepare(buffers) as bound:
            probabilities = bound(x).numpy()
            print(bound)
    right = int((probabilities.argmax(axis=1) == test["labels"]).sum())
    print(f"{right} of {len(x)} test images are right")


if __name__ == "__main__":
    main()
