"""Real ONNX models from public packages, at several sizes, against onnxruntime; and what they make of real files.

The packages are listed in tests/models.txt. A model whose package is not installed is skipped, and says so.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import smelt
from tests import onnx_oracle
from tests.real.zoo import OCR, ROOT, SILERO, features, zoo

onnxruntime = pytest.importorskip("onnxruntime")
pytestmark = pytest.mark.filterwarnings("ignore")
ZOO = zoo()


def model_file(name: str) -> Path:
    reason = ZOO[name].missing()
    if reason is not None:
        pytest.skip(reason)
    return ZOO[name].path()


@pytest.mark.parametrize("name", [*SILERO, "magika", *OCR])
def test_real_models_agree_with_onnxruntime(name: str, seed: int) -> None:
    path = model_file(name)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnx_oracle.session(path, options)
    model = smelt.load(path)
    for feeds in ZOO[name].feeds(np.random.default_rng(seed), 1):
        (inputs,) = feeds
        outputs = [output.name for output in session.get_outputs()]
        expected = dict(zip(outputs, session.run(None, inputs), strict=True))
        actual = model.run(inputs)
        assert set(actual) == set(expected)
        for output, array in actual.items():
            other = expected[output]
            assert (array.shape, array.dtype) == (other.shape, other.dtype)
            scale = np.abs(other).max(initial=1e-2)  # onnxruntime's logistic is 0 where the true one is below 1e-8
            where = f"{output} at { ({key: value.shape for key, value in inputs.items()}) }"
            np.testing.assert_allclose(array, other, rtol=1e-3, atol=1e-4 * scale, err_msg=where)


def test_magika_knows_files() -> None:
    path = model_file("magika")
    labels = json.loads(path.with_name("config.min.json").read_text("utf-8"))["target_labels_space"]
    files = {"smelt/model.py": "python", "pyproject.toml": "toml", "README.md": "markdown", "Makefile": "makefile"}
    inputs = np.stack([features((ROOT / name).read_bytes()) for name in files])
    scores = smelt.load(path).run({"bytes": inputs})["target_label"]
    assert [labels[i] for i in scores.argmax(axis=1)] == list(files.values())
