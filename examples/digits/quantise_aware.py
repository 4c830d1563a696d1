# ruff: noqa: F722  # shapes are no forward references
"""Quantisation-aware training: weights that are good after they are rounded to a few bits.

    python examples/digits/quantise_aware.py [--bits 3] [--epochs 6] [--engine native]

In: scikit-learn's digits. Out: how many test images are right when the weights of a network are rounded after training,
and when training knew of the rounding. Gradients go straight through it.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn, train
from smelt.tensor.model import build, parameters_of

BATCH = 64


class Digits(smelt.Model):
    hidden = nn.Linear(d=64, f=32)
    head = nn.Linear(f=32, k=10)

    def forward(self, x: Shaped[Tensor, "f32[b=B, d=64]"]) -> Tensor:
        return self.head(self.hidden(x).relu())


def round_weight(w: Tensor, bits: int) -> Tensor:
    """To integers of a few bits, times one scale for each row; the gradient is that of the weight itself."""
    assert w.axes is not None
    scale = w.abs().max(w.axes[1]).maximum(1e-8) / float(2 ** (bits - 1) - 1)
    return w + smelt.stop_gradient((w / scale).round() * scale - w)


def round_weights(model: Any, bits: int) -> Any:
    rounded = {f"{name}.weight": round_weight(getattr(model, name).weight, bits) for name in ("hidden", "head")}
    biases = {f"{name}.bias": getattr(model, name).bias for name in ("hidden", "head")}
    return build(Digits, {**rounded, **biases})


def draw_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {name: spec.shape.numbers() for name, spec in parameters_of(Digits).items()}
    return {
        name: np.asarray(rng.normal(size=sizes) * (sizes[-1] ** -0.5 if len(sizes) > 1 else 0.0), np.float32)
        for name, sizes in shapes.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bits", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--engine", default="auto")
    options = parser.parse_args()
    from sklearn.datasets import load_digits

    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.data))
    pixels, labels = (digits.data / 16).astype(np.float32)[order], digits.target.astype(np.int32)[order]

    def plain(model: Digits, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return train.cross_entropy(model.forward(x), y, "k", weights)

    def aware(model: Digits, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return plain(round_weights(model, options.bits), x, y, weights)

    shapes = f"f32[b={BATCH}, d=64]", f"i32[b={BATCH}]", f"f32[b={BATCH}]"
    for name, loss in (("rounded after training", plain), ("trained with rounding", aware)):
        start = build(Digits, draw_weights(np.random.default_rng(1)))
        trainer = train.Trainer(loss, start, train.adam(5e-3), *shapes, engine=options.engine)
        trainer.fit((pixels[:-360], labels[:-360]), epochs=options.epochs, batch=BATCH, seed=0)
        test = smelt.tensor(pixels[-360:], "b d")
        logits = round_weights(trainer.parameters, options.bits).forward(test).numpy()
        right = int((logits.argmax(1) == labels[-360:]).sum())
        print(f"{right} of 360 test images are right, {name} to {options.bits} bits")


if __name__ == "__main__":
    main()
