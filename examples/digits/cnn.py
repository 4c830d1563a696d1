# ruff: noqa: F722  # shapes are no forward references
"""A convolutional network for handwritten digits, trained from a fixed seed with `smelt.train`.

    python examples/digits/cnn.py [--epochs 14] [--engine native] [--checkpoint run.safetensors] [--resume]
        [--log FOLDER] [--output digits_cnn.onnx] [--test-set digits_cnn_test.npz] [--debug-nans] [--devices 2]
        [--memory-limit 50MB]

In: scikit-learn's digits, 8 x 8 pixels. Out: how many of the test images are right. Ctrl-C saves the checkpoint, and
`--resume` goes on from it to the same bits. A log holds TensorBoard's events and curves; `--output` is a file for the
trained model (.onnx, .mlir, .safetensors). `--devices 2` splits each batch over two devices, through XLA. The model of
`smelt demo` is made by `--output smelt/assets/digits_cnn.onnx --test-set smelt/assets/digits_cnn_test.npz`.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import smelt
from smelt import Shaped, Tensor, nn, train
from smelt.tensor.model import build, parameters_of


class Digits(smelt.Model):
    """Two convolutions, pooling, two dense layers."""

    first = nn.Conv2d(c=(1, 16), y=3, x=3, padding=1)
    second = nn.Conv2d(c=(16, 32), y=3, x=3, padding=1)
    hidden = nn.Linear(d=512, f=64)
    head = nn.Linear(f=64, k=10)

    def forward(self, images: Shaped[Tensor, "f32[b=B, c=1, y=8, x=8]"]) -> Tensor:
        x = self.second(self.first(images).relu()).relu().max_pool({"y": 2, "x": 2}, {"y": 2, "x": 2})
        return self.head(self.hidden(x.merge("c y x", "d")).relu())


def draw_weights(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Weights drawn as He proposes, biases 0."""
    arrays = {}
    for name, spec in parameters_of(Digits).items():
        sizes = spec.shape.numbers()
        scale = np.sqrt(2 / np.prod(sizes[1:])) if len(sizes) > 1 else 0.0
        arrays[name] = np.asarray(rng.normal(size=sizes) * scale, np.float32)
    return arrays


def read_digits() -> tuple[np.ndarray, ...]:
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images / 16).astype(np.float32)[:, None]
    labels = digits.target.astype(np.int32)
    order = np.random.default_rng(0).permutation(len(images))
    cut = len(images) - 360
    return images[order[:cut]], labels[order[:cut]], images[order[cut:]], labels[order[cut:]]


def loss(model: Digits, images: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    return train.cross_entropy(model.forward(images), labels, "k", weights)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=14)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--log", type=Path, help="a folder for TensorBoard's events and curves")
    parser.add_argument("--output", type=Path, help="a file for the trained model: .onnx, .mlir or .safetensors")
    parser.add_argument("--test-set", type=Path, help="a file for the test images and their labels: .npz")
    parser.add_argument("--debug-nans", action="store_true", help="stop at the first nan, and name what made it")
    parser.add_argument("--devices", type=int, default=1, help="how many devices share a batch")
    parser.add_argument("--memory-limit", help="for state, batch and a step of the native engine, such as 50MB")
    options = parser.parse_args()
    if options.checkpoint is not None and options.checkpoint.exists() and not options.resume:
        parser.error(f"{options.checkpoint} is there already: --resume goes on from it")
    images, labels, test_images, test_labels = read_digits()
    size = options.batch
    steps = options.epochs * -(-len(images) // size)
    shapes = f"f32[b={size}, c=1, y=8, x=8]", f"i32[b={size}]", f"f32[b={size}]"
    start = build(Digits, draw_weights(np.random.default_rng(1)))
    optimiser = train.adamw(train.cosine(4e-3, steps, warmup=20), weight_decay=1e-4)
    trainer = train.Trainer(
        loss,
        start,
        optimiser,
        *shapes,
        engine=options.engine,
        debug_nans=options.debug_nans,
        mesh=smelt.Mesh(data=options.devices, split={"b": "data"}) if options.devices > 1 else None,
        memory_limit=options.memory_limit,
    )
    trainer.fit(
        (images, labels),
        epochs=options.epochs,
        batch=size,
        seed=1,
        checkpoint=options.checkpoint,
        log=options.log,
        report=lambda epoch, mean: print(f"epoch {epoch + 1}: loss {mean:.4f}"),
    )
    model = trainer.parameters
    if options.output is not None:
        smelt.export(model.forward, options.output)
    if options.test_set is not None:
        grey = np.round(16 * test_images[:, 0]).astype(np.uint8)  # 0 to 16
        np.savez_compressed(options.test_set, images=grey, labels=test_labels.astype(np.uint8))
    logits = model.forward(smelt.tensor(test_images, "b c y x")).numpy()
    right = int((logits.argmax(1) == test_labels).sum())
    print(f"{right} of {len(test_labels)} test images are right ({100 * right / len(test_labels):.1f} %)")


if __name__ == "__main__":
    main()
