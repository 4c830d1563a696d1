"""MiniLM in 8 bits and in bf16 against itself in f32, on real sentences."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import smelt
from tests.real import minilm
from tests.real.zoo import MINILM

# Measured: the worst of the sentences has 0.9963 in int8 (0.9985 and more for all others), 0.9962 in fp8, 0.999982 in
# bf16; words are off by 0.18, 0.21 and 0.015 of 5.8.
LEAST_COSINE = {"int8": 0.994, "fp8": 0.994, "bf16": 0.99997}
MOST_ERROR = {"int8": 0.3, "fp8": 0.3, "bf16": 0.03}


@pytest.mark.parametrize("precision", LEAST_COSINE)
def test_sentences_mean_the_same(precision: str, tmp_path: Path) -> None:
    folder = MINILM()
    if isinstance(folder, str):
        pytest.skip(folder)
    path = tmp_path / "minilm.onnx"
    onnx.save(minilm.build(folder), path)
    inputs = minilm.tokens(folder, minilm.SENTENCES)
    exact, rounded = (smelt.load(path, engine="native", precision=each).run(inputs) for each in ("f32", precision))
    cosines = (exact["sentence"] * rounded["sentence"]).sum(-1)  # both are unit vectors
    assert cosines.min() >= LEAST_COSINE[precision]
    words = inputs["attention_mask"].astype(bool)
    error = np.abs(exact["last_hidden_state"] - rounded["last_hidden_state"])[words].max()
    assert error <= MOST_ERROR[precision]
    assert error > 1e-3, "nothing was rounded"
    nearest = [[int(np.argsort(row)[-2]) for row in each["sentence"] @ each["sentence"].T] for each in (exact, rounded)]
    assert nearest[0][:2] == nearest[1][:2] == [1, 0], "the cat and the feline belong together"
