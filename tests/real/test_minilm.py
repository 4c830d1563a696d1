"""MiniLM with its real weights, on real sentences cut by its own tokenizer, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import smelt
from examples.minilm import embed as example
from smelt.dtype import Array
from smelt.run.loaded import LoadedModel
from tests import onnx_oracle
from tests.real import minilm
from tests.real.zoo import MINILM

onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture(scope="module")
def folder() -> Path:
    found = MINILM()
    if isinstance(found, str):
        pytest.skip(found)
    return found


@pytest.fixture(scope="module")
def file(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("minilm") / "minilm.onnx"
    onnx.save(minilm.build(folder), path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> LoadedModel:
    return smelt.load(file, engine="reference")


def embed(model: LoadedModel, folder: Path, sentences: list[str], length: int | None = None) -> Array:
    return model.run(minilm.tokens(folder, sentences, length))["sentence"]


def test_sentences_agree_with_onnxruntime(file: Path, folder: Path, model: LoadedModel) -> None:
    session = onnx_oracle.session(file)
    for sentences, length in (
        (minilm.SENTENCES[:1], None),
        (minilm.SENTENCES, None),
        (minilm.SENTENCES[2:4], 40),
        (minilm.SENTENCES[4:5], 5),
    ):
        inputs = minilm.tokens(folder, sentences, length)
        expected = session.run(None, inputs)
        for mine, other in zip(model.run(inputs).values(), expected, strict=True):
            assert mine.shape == other.shape
            np.testing.assert_allclose(mine, other, rtol=1e-4, atol=1e-5 * np.abs(other).max())


@pytest.mark.parametrize("engine", ["native", "pjrt"])
def test_the_example_agrees_with_onnxruntime(file: Path, folder: Path, engine: str) -> None:
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    session = onnx_oracle.session(file)
    with example.load(folder, engine) as embed_sentences:
        for sentences in (minilm.SENTENCES[:1], minilm.SENTENCES[:4], minilm.SENTENCES[4:]):
            (expected,) = session.run(["sentence"], minilm.tokens(folder, sentences))
            found = embed_sentences(list(sentences))
            assert found.shape == expected.shape
            assert np.abs(found - expected).max() < 1e-4


def test_sentences_that_mean_the_same_are_near(folder: Path, model: LoadedModel) -> None:
    vectors = embed(model, folder, list(minilm.SENTENCES))
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    likeness = vectors @ vectors.T
    cats, rest = likeness[0, 1], likeness[0, 2:]
    assert cats > 0.4
    assert cats > rest.max() + 0.2


def test_padding_changes_nothing(folder: Path, model: LoadedModel) -> None:
    short = embed(model, folder, [minilm.SENTENCES[0]])
    padded = embed(model, folder, [minilm.SENTENCES[0]], 48)
    np.testing.assert_allclose(padded, short, rtol=1e-4, atol=1e-6)
