# ruff: noqa: F722  # shapes are no forward references
"""A variational autoencoder of handwritten digits: it learns to draw new ones.

    python examples/digits/vae.py [--epochs 30] [--engine native] [--draw 4]

In: scikit-learn's digits, 8 x 8 pixels. Out: the loss (how badly pixels are told from a few numbers, plus how far
those are from a normal distribution), and new digits.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn, train
from smelt.tensor.model import build, parameters_of


class Autoencoder(smelt.Model):
    """64 pixels → mean and spread of a few numbers → 64 pixels."""

    encode = nn.Linear(d=64, f=128)
    mean, spread = nn.Linear(f=128, z=8), nn.Linear(f=128, z=8)
    decode = nn.Linear(z=8, f=128)
    draw_pixels = nn.Linear(f=128, d=64)

    def draw(self, z: Shaped[Tensor, "f32[b=B, z=8]"]) -> Tensor:
        return self.draw_pixels(self.decode(z).relu())


def loss(model: Autoencoder, pixels: Tensor, noise: Tensor, weights: Tensor) -> Tensor:
    """The evidence lower bound, negative: reconstruction by one sample, and the divergence in closed form."""
    hidden = model.encode(pixels).relu()
    mean, spread = model.mean(hidden), model.spread(hidden)
    logits = model.draw(mean + (0.5 * spread).exp() * noise)
    told = (logits.softplus() - logits * pixels).sum("d")
    far = 0.5 * (mean.square() + spread.exp() - spread - 1.0).sum("z")
    return ((told + far) * weights).sum() / weights.sum()


def draw_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    shapes = {name: spec.shape.numbers() for name, spec in parameters_of(Autoencoder).items()}
    return {
        name: np.asarray(rng.normal(size=sizes) * (sizes[-1] ** -0.5 if len(sizes) > 1 else 0.0), np.float32)
        for name, sizes in shapes.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=30)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--draw", type=int, default=4)
    options = parser.parse_args()
    from sklearn.datasets import load_digits

    pixels = (load_digits().data / 16).astype(np.float32)

    def rows(epoch: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Digits in another order each time, with fresh noise."""
        rng = np.random.default_rng([2, epoch])
        for chosen in np.array_split(rng.permutation(len(pixels)), len(pixels) // 64):
            yield pixels[chosen], rng.normal(size=(len(chosen), 8)).astype(np.float32)

    start = build(Autoencoder, draw_weights(np.random.default_rng(1)))
    shapes = "f32[b=65, d=64]", "f32[b=65, z=8]", "f32[b=65]"
    trainer = train.Trainer(loss, start, train.adam(2e-3), *shapes, engine=options.engine)
    trainer.fit(
        rows,
        epochs=options.epochs,
        batch=65,
        report=lambda epoch, mean: print(f"epoch {epoch + 1}: loss {mean:.2f}"),
    )
    z = np.random.default_rng(3).normal(size=(options.draw, 8)).astype(np.float32)
    for image in trainer.parameters.draw(smelt.tensor(z, "b z")).sigmoid().numpy().reshape(-1, 8, 8):
        print("\n".join("".join(" .:oO@"[int(5.99 * grey)] * 2 for grey in row) for row in image), "\n")


if __name__ == "__main__":
    main()
