"""`--precision`: bench says what it costs, compile keeps it in the bundle, what has no kernel is refused."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
from smelt.cli.accuracy import compare
from smelt.cli.main import app
from smelt.errors import UnsupportedError

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_bench_says_how_far_it_is_from_f32(precision: str) -> None:
    said = ["bench", str(DIGITS), "--precision", precision, "--seconds", "0.2", "--size", "batch=8", "--threads", "1"]
    result = CliRunner().invoke(app, [*said, "--engine", "native", "--json"])
    assert result.exit_code == 0, result.output
    (found,) = json.loads(result.output)["accuracy"]
    assert found["output"] == "probabilities"
    assert 0.99 < found["cosine"] <= 1
    assert 0 < found["max_error"] < 0.1


@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_a_bundle_keeps_its_precision(precision: str, tmp_path: Path) -> None:
    path = tmp_path / "digits.smelt"
    said = ["compile", str(DIGITS), "-o", str(path), "--precision", precision, "--target", "plain", "--json"]
    result = CliRunner().invoke(app, said)
    assert result.exit_code == 0, result.output
    pixels = np.random.default_rng(0).random((5, 64), np.float32)
    expected = smelt.load(DIGITS, engine="native", precision=precision)(pixels)["probabilities"]
    exact = smelt.load(DIGITS, engine="native")(pixels)["probabilities"]
    found = smelt.load(path)(pixels)["probabilities"]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    assert np.abs(found - exact).max() > 1e-4, "nothing was rounded"
    with pytest.raises(UnsupportedError, match="compiled already"):
        smelt.load(path, precision=precision)


def test_the_cosine_of_outputs_without_numbers() -> None:
    nothing = np.zeros(0, np.float32)
    assert compare("y", nothing, nothing).cosine == 1
    assert compare("y", np.zeros(3), np.ones(3)).cosine == 0


def test_f16_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="bf16"):
        smelt.load(DIGITS, precision="f16")
