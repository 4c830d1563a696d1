"""The convolutional network for digits: accuracy from a fixed seed, and the same bits for any number of threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from examples.digits import cnn
from smelt import train
from smelt.device.runtime import runtime
from smelt.engine.native import NativeEngine
from smelt.tensor.model import build, parameters_of

pytestmark = pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
BATCH, EPOCHS = 64, 3


def trainer() -> train.Trainer:
    shapes = f"f32[b={BATCH}, c=1, y=8, x=8]", f"i32[b={BATCH}]", f"f32[b={BATCH}]"
    start = build(cnn.Digits, cnn.draw_weights(np.random.default_rng(1)))
    rate = train.cosine(4e-3, EPOCHS * 23, warmup=20)
    return train.Trainer(cnn.loss, start, train.adamw(rate, weight_decay=1e-4), *shapes, engine="native")


@contextmanager
def threads(count: int) -> Iterator[None]:
    before = runtime().threads
    runtime().set_threads(count)
    try:
        yield
    finally:
        runtime().set_threads(before)


def bits(made: train.Trainer) -> dict[str, bytes]:
    names, model = parameters_of(cnn.Digits), made.parameters
    found = {path: tensor.numpy().tobytes() for path, tensor in model.walk()}
    assert found.keys() == names.keys()
    return found


def test_digits_are_learnt_to_the_same_bits_on_any_number_of_threads_and_after_a_stop(tmp_path: Path) -> None:
    images, labels, test_images, test_labels = cnn.read_digits()
    options: dict[str, Any] = {"batch": BATCH, "seed": 1, "progress": False}
    first, checkpoint = tmp_path / "first.safetensors", tmp_path / "run.safetensors"
    made = trainer()
    made.save(first)
    found = []
    for count in (1, 2):
        made.load(first)
        with threads(count):
            made.fit((images, labels), epochs=EPOCHS, **options)
        found.append(bits(made))
    made.load(first)
    with threads(3):
        made.fit((images, labels), epochs=1, checkpoint=checkpoint, **options)
        resumed = trainer()
        resumed.fit((images, labels), epochs=EPOCHS, checkpoint=checkpoint, **options)
    found.append(bits(resumed))
    assert found[0] == found[1] == found[2]
    logits = resumed.parameters.forward(smelt.tensor(test_images, "b c y x")).numpy()
    assert (logits.argmax(1) == test_labels).mean() >= 0.98
