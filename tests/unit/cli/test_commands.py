"""The command line as a user meets it: in processes of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from smelt.aot.targets import MACHINES
from smelt.cli.main import app

ADD = """func.func @main(%x: tensor<?x2xf32>, %y: tensor<?x2xf32>) -> tensor<?x2xf32> {
  %0 = stablehlo.add %x, %y : tensor<?x2xf32>
  return %0 : tensor<?x2xf32>
}
"""
BROKEN = """func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %y : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
"""


def smelt(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smelt.cli.main", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def answer(*arguments: object) -> dict[str, Any]:
    done = smelt(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    record: dict[str, Any] = json.loads(done.stdout)
    return record


@pytest.fixture
def add(tmp_path: Path) -> Path:
    path = tmp_path / "add.mlir"
    path.write_text(ADD)
    return path


def test_demo_classifies_real_digits() -> None:
    record = answer("demo")
    assert set(record["engines"]) == {"native", "pjrt", "reference"}
    for result in record["engines"].values():
        assert result["total"] == 360
        assert result["correct"] >= 353  # 98 %
    assert record["difference"] < 1e-4  # of logits up to about 20
    assert [stage["stage"] for stage in record["stages"]] == ["read", "verify", "passes", *["compile"] * 3]
    shown = smelt("demo")
    assert shown.returncode == 0
    assert "of 360" in shown.stdout


def test_run_takes_files_and_writes_files(add: Path, tmp_path: Path) -> None:
    x, y = np.array([[1, 2]], np.float32), np.array([[10, 20]], np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    record = answer(
        "run", add, "-i", f"x={tmp_path / 'x.npy'}", "-i", f"y={tmp_path / 'y.npy'}", "--output-dir", tmp_path / "out"
    )
    assert record["outputs"]["result0"]["first"] == [11.0, 22.0]
    np.testing.assert_array_equal(np.load(tmp_path / "out" / "result0.npy"), x + y)


@pytest.mark.parametrize("engine", ["native", "pjrt", "reference", "auto"])
def test_run_draws_random_inputs_of_a_size(add: Path, engine: str) -> None:
    symbols = sorted(json.loads(smelt("run", add, "--json").stdout)["inputs"])
    assert symbols == ["x", "y"]
    record = answer("run", add, "--engine", engine, "--seed", 3)
    assert record["outputs"]["result0"]["type"] == "f32[1, 2]"
    total = [a + b for a, b in zip(record["inputs"]["x"]["first"], record["inputs"]["y"]["first"], strict=True)]
    assert record["outputs"]["result0"]["first"] == pytest.approx(total)


def test_show_prints_every_stage(add: Path) -> None:
    assert "stablehlo.add %x, %y" in smelt("show", add).stdout
    assert '"stablehlo.add"' in smelt("show", add, "--generic").stdout
    assert "// simplify:" in smelt("show", add, "--stage", "passes").stdout
    assert "1 launches of 1 kernels" in smelt("show", add, "--stage", "kernels").stdout
    assert "int smelt0_run" in smelt("show", add, "--stage", "source").stdout
    assert answer("show", add)["stage"] == "ir"


def test_check_says_what_holds_and_what_does_not(add: Path, tmp_path: Path) -> None:
    record = answer("check", add)
    assert record["ok"]
    assert record["assumed"], "the two batch sizes are different symbols: their equality is assumed, and said"
    broken = tmp_path / "broken.mlir"
    broken.write_text(BROKEN)
    done = smelt("check", broken)
    assert done.returncode == 1
    assert "add_c1" in done.stderr + done.stdout
    assert f"{broken}:2:" in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "missing.onnx"], "no such file"),
        (["run", "{add}", "--engine", "abacus"], "unknown engine"),
        (["run", "{add}", "--device", "abacus"], "unknown device"),
        (["run", "{add}", "--device", "cuda", "--engine", "native"], "the engine native cannot run here"),
        (["run", "{add}", "-i", "z=1.npy"], "no such input"),
        (["run", "{add}", "-i", "x=nothing.npy"], "cannot read"),
        (["run", "{add}", "--size", "Q=2"], "--size"),
        (["show", "{add}", "--stage", "dreams"], "unknown stage"),
        (["check", "{text}"], "unknown model format"),
    ],
)
def test_mistakes_get_one_message_and_no_traceback(
    arguments: list[str], message: str, add: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").touch()
    filled = [item.format(add=add, text=tmp_path / "notes.txt") for item in arguments]
    done = smelt(*filled)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    machine = smelt(*filled, "--json")
    assert machine.returncode == 1
    assert message in json.loads(machine.stdout)["message"]


def test_a_wrong_command_line_is_code_two() -> None:
    assert smelt("fly").returncode == 2
    assert smelt("run").returncode == 2
    assert smelt("--help").returncode == 0


def test_importing_smelt_imports_no_optional_package() -> None:
    optional = ("onnx", "jax", "typer", "rich", "ziglang", "safetensors")
    code = f"import smelt, sys; print([name for name in {optional} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def list_imports(*arguments: object) -> set[str]:
    """What a command imports: rooms of smelt, and other packages."""
    code = """
import sys
from smelt.cli.main import main
try:
    main()
except SystemExit as done:
    assert not done.code
print(*(name.split(".")[1] if name.startswith("smelt.") else name for name in sys.modules), file=sys.stderr)
"""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stderr.split())


def test_commands_import_only_what_they_need(add: Path, tmp_path: Path) -> None:
    compiles = {"ir", "passes", "kernel", "engine", "read", "tensor", "model"}
    servers = {"serve", "llm", "train", "aot", "write", "compat", "asyncio"}
    assert not list_imports("--help") & {"numpy", "device", *compiles, *servers}
    assert not list_imports("run", "--help") & {"numpy", "device", *compiles, *servers}
    bundle = tmp_path / "add.smelt"
    assert smelt("compile", add, "-o", bundle, "--target", "plain").returncode == 0
    inputs = ["-i", "x=[[1, 2]]", "-i", "y=[[3, 4]]"]
    assert not list_imports("run", bundle, *inputs) & {*compiles, *servers, "onnx", "ziglang"}
    assert not list_imports("run", add, *inputs) & {*servers, "onnx"}


def test_help_lists_every_command() -> None:
    """Each with the first line of its help; and `compile` names every machine of `--standalone`."""
    text = smelt("--help").stdout
    for command in app.registered_commands:
        assert command.callback is not None
        assert f" {command.name or command.callback.__name__} " in text
        assert (command.callback.__doc__ or "").split()[0] in text
    assert all(f" {group.name} " in text for group in app.registered_groups)
    described = "".join(smelt("compile", "--help").stdout.replace("│", " ").split())
    assert all(name in described for name in MACHINES)
