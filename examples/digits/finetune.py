"""Fine-tune an ONNX model: read it, train its weights, write it as ONNX again.

    python examples/digits/finetune.py [--model MODEL.onnx] [--epochs 3] [--output tuned.onnx]

In: `smelt/assets/digits.onnx`, and digits turned by a few degrees, with which it has trouble. Out: how many of them are
right before and after; the tuned model, which onnxruntime runs like the first one.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

import smelt
from smelt import Tensor, train

ASSETS = Path(smelt.__file__).parent / "assets"


def read_turned_digits() -> tuple[np.ndarray, ...]:
    """Digits turned by 25 degrees, for training and for the test."""
    from scipy.ndimage import rotate  # type: ignore[import-untyped]
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = rotate(digits.images, 25, axes=(1, 2), reshape=False, order=1) / 16
    pixels = images.reshape(-1, 64).astype(np.float32)
    labels = digits.target.astype(np.int32)
    return pixels[:-360], labels[:-360], pixels[-360:], labels[-360:]


def count_right(model: str | Path, pixels: np.ndarray, labels: np.ndarray, engine: str) -> int:
    probabilities = next(iter(smelt.load(model, engine=engine)(pixels).values()))
    return int((probabilities.argmax(1) == labels).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=ASSETS / "digits.onnx")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    pixels, labels, test_pixels, test_labels = read_turned_digits()
    program, weights = smelt.read(options.model)
    model = train.Imported(program, weights)

    def loss(trained: dict[str, Tensor], x: Tensor, y: Tensor, counted: Tensor) -> Tensor:
        (probabilities,) = model(trained, x).values()  # the last op of this model is a softmax
        return train.cross_entropy(probabilities.maximum(1e-9).log(), y, 1, counted)

    trainer = train.Trainer(
        loss, model.weights, train.adam(2e-3), "f32[64, 64]", "i32[64]", "f32[64]", engine=options.engine
    )
    trainer.fit((pixels, labels), epochs=options.epochs, batch=64, seed=0)
    with tempfile.TemporaryDirectory() as folder:
        output = options.output or Path(folder) / "tuned.onnx"
        smelt.export(model.program, output, weights=model.arrays(trainer.parameters))
        before, after = (
            count_right(path, test_pixels, test_labels, options.engine) for path in (options.model, output)
        )
    print(f"{before} of {len(test_labels)} turned digits were right, {after} are right now")


if __name__ == "__main__":
    main()
