"""Models as executables: bit-equal to the native engine in Python, with the same messages."""

from __future__ import annotations

import http.client
import json
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
from smelt.cli.main import app
from smelt.errors import MemoryLimitError

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


@pytest.fixture(scope="module", autouse=True)
def _kernels_of_this_processor() -> Iterator[None]:
    """An executable has code for several processors and runs that for this one, whatever SMELT_TARGET says."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SMELT_TARGET", raising=False)
        yield


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


def test_the_recorded_call_is_repeated_and_timed(digits: Path) -> None:
    done = run(digits, "--selftest")
    assert (done.returncode, done.stdout) == (0, "probabilities: equal\n"), done.stderr
    timed = json.loads(run(digits, "--bench", "0.01").stdout)
    assert timed["calls"] >= 3
    assert timed["p10_ms"] <= timed["median_ms"] <= timed["p90_ms"]


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=30)
        self.path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(30)
        self.sock.connect(str(self.path))


def test_requests_of_the_open_inference_protocol_over_a_unix_socket(digits: Path, seed: int) -> None:
    pixels = (np.random.default_rng(seed).random((3, 64), np.float32) * 16).round(2)
    expected = smelt.load(DIGITS, engine="native")(pixels=pixels)["probabilities"]
    folder = tempfile.TemporaryDirectory(dir="/tmp")  # a socket's path is short
    path = Path(folder.name) / "s"
    server = subprocess.Popen([str(digits), "--listen", str(path)], stderr=subprocess.PIPE, text=True)
    try:
        assert server.stderr is not None
        assert "listening" in server.stderr.readline()
        connection = UnixConnection(path)

        def ask(method: str, url: str, body: object = None) -> tuple[int, dict[str, Any]]:
            connection.request(method, url, None if body is None else json.dumps(body))
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())

        tensor: dict[str, Any] = {
            "name": "pixels",
            "shape": [3, 64],
            "datatype": "FP32",
            "data": pixels.ravel().tolist(),
        }
        assert ask("GET", "/v2/health/ready")[0] == 200
        assert ask("GET", "/v2/models/digits")[1]["inputs"] == [
            {"name": "pixels", "datatype": "FP32", "shape": [-1, 64]}
        ]
        for _ in range(2):  # on one connection
            status, answer = ask("POST", "/v2/models/digits/infer", {"inputs": [tensor]})
            assert status == 200
            (output,) = answer["outputs"]
            np.testing.assert_array_equal(np.float32(output["data"]).reshape(output["shape"]), expected)
        bodies: list[dict[str, Any]] = [
            {},
            {"inputs": []},
            {"inputs": [{**tensor, "shape": [3, 63]}]},
            {"inputs": [{**tensor, "data": 1}]},
        ]
        for broken in bodies:
            assert ask("POST", "/v2/models/digits/infer", broken)[0] == 400
        status, answer = ask("POST", "/v2/models/digits/infer", {"inputs": [{**tensor, "shape": [64, 3]}]})
        assert status == 400
        assert "f32[batch, 64]" in str(answer["error"])
        assert ask("GET", "/other")[0] == 404
        connection.close()
    finally:
        server.terminate()
        server.communicate(timeout=30)
    assert not path.exists()
    folder.cleanup()


def test_weights_beside_the_program_are_mapped_and_verified(digits: Path, tmp_path: Path) -> None:
    options = ("--weights", "separate", "--threads", "0", "--optimize", "size")
    first, second = (compile_model(DIGITS, tmp_path / name / "small", *options) for name in _folders(tmp_path, "ab"))
    assert first.read_bytes() == second.read_bytes(), "a second build gives other bytes"
    weights = first.with_name("small.weights")
    assert weights.read_bytes() == second.with_name("small.weights").read_bytes()
    assert run(first, "--selftest").returncode == 0
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    done = run(first, "--selftest")
    assert done.returncode == 1
    assert "damaged, or of another model" in done.stderr
    assert run(first, "--selftest", "--weights", second.with_name("small.weights")).returncode == 0
    weights.unlink()
    assert "cannot be read" in run(first, "--selftest").stderr
    if shutil.which("strace"):
        trace = ("strace", "-f", "-e", "trace=file,network", str(digits), "--selftest")
        done = subprocess.run(trace, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode == 0:  # else tracing is not allowed here
            lines = [line for line in done.stderr.splitlines() if re.search(r"\b\w+\(.*\) += ", line)]
            assert [line for line in lines if "execve(" not in line] == [], "a file or socket that no option names"


def _folders(parent: Path, names: str) -> list[str]:
    for name in names:
        (parent / name).mkdir()
    return list(names)


def test_a_limit_on_memory_refuses_before_anything_is_built(tmp_path: Path) -> None:
    command = ["compile", DIGITS, "--standalone", "-o", str(tmp_path / "model"), "--memory-limit", "3MB"]
    error = CliRunner().invoke(app, command).exception
    assert isinstance(error, MemoryLimitError)
    assert "--threads 0" in str(error.remedy)
    assert "weights" in str(error.got)
    assert not list(tmp_path.iterdir())
