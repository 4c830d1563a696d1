"""Models as executables: bit-equal to the native engine in Python, with the same messages."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
from smelt.cli.main import app

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="runs executables for x86_64-linux"
)
DIGITS = str(files("smelt") / "assets" / "digits.onnx")


def compile_model(source: str | Path, output: Path, *options: str) -> Path:
    done = CliRunner().invoke(app, ["compile", str(source), "--standalone", "-o", str(output), *options, "--json"])
    assert done.exit_code == 0, done.output
    return output


def run(program: Path, *arguments: object, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), *map(str, arguments)], capture_output=True, text=True, input=text, timeout=60, check=False
    )


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_model(DIGITS, tmp_path_factory.mktemp("digits") / "digits", "--target", "x86_64-linux")


def test_results_equal_the_native_engine_bit_for_bit(digits: Path, tmp_path: Path, seed: int) -> None:
    model = smelt.load(DIGITS, engine="native")
    for batch in (1, 5, 33):
        pixels = np.random.default_rng(seed).random((batch, 64), np.float32) * 16
        np.save(tmp_path / "x.npy", pixels)
        for threads in (1, 3):
            given = (f"pixels={tmp_path / 'x.npy'}", "--output", f"probabilities={tmp_path / 'y.npy'}")
            done = run(digits, "--input", *given, "--threads", threads)
            assert done.returncode == 0, done.stderr
            np.testing.assert_array_equal(np.load(tmp_path / "y.npy"), model(pixels=pixels)["probabilities"])


def test_tensors_go_by_json_raw_bytes_and_stdin(digits: Path, tmp_path: Path, seed: int) -> None:
    pixels = (np.random.default_rng(seed).random((2, 64), np.float32) * 16).round(2)
    expected = smelt.load(DIGITS, engine="native")(pixels=pixels)["probabilities"]
    (tmp_path / "x.raw").write_bytes(pixels.tobytes())
    (tmp_path / "x.json").write_text(json.dumps(pixels.tolist()))
    np.save(tmp_path / "f.npy", np.asfortranarray(pixels))
    for given in ("x.raw", "x.json", "f.npy", "x.raw:2x64"):
        done = run(digits, "--input", f"pixels={tmp_path / given}")
        assert done.returncode == 0, done.stderr
        np.testing.assert_array_equal(np.float32(json.loads(done.stdout)["probabilities"]), expected)
    done = run(digits, "-i", "pixels=-", "-o", f"probabilities={tmp_path / 'y.raw'}", text=json.dumps(pixels.tolist()))
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.fromfile(tmp_path / "y.raw", np.float32).reshape(2, 10), expected)


def test_mistakes_say_what_was_expected_and_what_came(digits: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 65), np.float32))
    np.save(tmp_path / "double.npy", np.zeros((2, 64)))
    (tmp_path / "cut.npy").write_bytes((tmp_path / "double.npy").read_bytes()[:200])
    for given, code, words in (
        ("pixels=" + str(tmp_path / "wide.npy"), 1, ["'pixels' does not fit", "f32[batch, 64]", "f32[2, 65]"]),
        ("pixels=" + str(tmp_path / "double.npy"), 1, ["'pixels' does not fit", "f32[batch, 64]", "f64[2, 64]"]),
        ("pixels=" + str(tmp_path / "cut.npy"), 1, ["does not fit"]),
        ("pixels=" + str(tmp_path / "absent.npy"), 1, ["cannot read", "No such file"]),
        ("pixels=[[1, 2], [3]]", 1, ["cannot read JSON"]),
        ("other=[1]", 2, ["--input is not understood", "pixels: f32[batch, 64]"]),
    ):
        done = run(digits, "--input", given)
        assert done.returncode == code, done.stderr
        assert all(word in done.stderr for word in words), done.stderr
    assert run(digits).returncode == 1
    assert run(digits, "--unknown").returncode == 2
    assert "pixels: f32[batch, 64]" in run(digits, "--help").stdout
