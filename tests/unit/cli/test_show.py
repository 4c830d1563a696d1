"""`smelt show` and `smelt cache`: every stage as text and as JSON, in processes of their own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from smelt.cli.show import _short
from smelt.device import cpu

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = Path(__file__).parents[3] / "smelt" / "assets" / "digits.onnx"
LOOP = """func.func @main(%n: tensor<i32>, %x: tensor<3xf32>) -> tensor<3xf32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %0:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<3xf32>
    cond {
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %next = stablehlo.add %i, %one : tensor<i32>
      %more = stablehlo.add %y, %y : tensor<3xf32>
      stablehlo.return %next, %more : tensor<i32>, tensor<3xf32>
    }
  return %0#1 : tensor<3xf32>
}
"""


def smelt(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "smelt.cli.main", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, env={**os.environ, **environment}
    )


def shown(file: Path, stage: str, *more: object) -> str:
    done = smelt("show", file, "--stage", stage, *more)
    assert done.returncode == 0, done.stderr
    return done.stdout


def record(file: Path, stage: str, *more: object) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(shown(file, stage, "--json", *more))
    assert made["stage"] == stage
    return made


def test_the_table_of_kernels() -> None:
    text = shown(DIGITS, "kernels")
    assert "packed_dot" in text
    assert "costs of one launch at batch=1" in text
    rows = record(DIGITS, "kernels", "--size", "batch=3")["kernels"]
    first = next(row for row in rows if "smelt.packed_dot" in row["ops"])
    panels, *others = first["reads"]
    sizes = [int(size) for size in panels.removeprefix("f32[").removesuffix("]").split(",")]
    assert panels.startswith("f32[")
    assert sizes[0] * sizes[1] * sizes[2] * sizes[3] == 64 * 64, "the packed weight, in panels of this machine's width"
    assert others == ["f32[batch, 64]", "f32[64]"], "rows, what is added"
    assert first["writes"] == ["f32[batch, 64]"]
    assert first["operations"] >= 2 * 3 * 64 * 64
    assert first["bytes"] >= 4 * (3 * 64 + 64 * 64 + 3 * 64)


def test_loops_are_printed() -> None:
    text = shown(DIGITS, "loops")
    assert "on cores:" in text
    assert re.search(r"b0: f32\[1, \d+, 64, \d+\]\n +b1: f32\[batch, 64\]", text), "panels of the weight, then rows"
    assert re.search(r"sum over k < \w+ of b1\[.*\] \* b0\[", text)
    assert "from -inf f32:" in text
    kernels = record(DIGITS, "loops")["kernels"]
    assert all(kernel["loops"] for kernel in kernels)


def test_the_source_is_c() -> None:
    text = shown(DIGITS, "source")
    assert "int smelt0_run(const Runtime *rt" in text
    assert "int smelt0_prepare_measure(" in text
    assert record(DIGITS, "source")["text"].strip() == text.strip()


def test_the_plan_names_buffers_slots_and_the_peak() -> None:
    text = shown(DIGITS, "plan", "--size", "batch=10")
    assert "slot 0" in text
    assert "← packed_dot %" in text
    made = record(DIGITS, "plan", "--size", "batch=10")
    buffers = made["functions"]["main"]["buffers"]
    assert {buffer["kind"] for buffer in buffers} == {"argument", "result", "constant", "temporary"}
    slots = made["functions"]["main"]["slots"]
    assert all(buffer["slot"] < len(slots) for buffer in buffers if buffer["kind"] == "temporary")
    assert made["peak_bytes"] > 10 * 4 * 64 + made["parts"]["weights"]
    assert "batch" in made["peak"]
    assert made["peak"] in text


def test_a_loop_in_the_plan(tmp_path: Path) -> None:
    file = tmp_path / "loop.mlir"
    file.write_text(LOOP)
    text = shown(file, "plan")
    assert "repeat:" in text
    steps = record(file, "plan")["functions"]["main"]["steps"]
    assert [step["step"] for step in steps if step["step"] == "repeat"] == ["repeat"]


def test_the_passes_say_what_they_did() -> None:
    made = record(DIGITS, "passes")
    assert made["passes"][0]["before"] > 0
    assert "stablehlo." in made["text"]


def test_an_unknown_stage_is_refused() -> None:
    done = smelt("show", DIGITS, "--stage", "dreams")
    assert done.returncode == 1
    assert "loops" in done.stderr


def test_the_cache_is_listed_and_cleared(tmp_path: Path) -> None:
    here = {"SMELT_CACHE_DIR": str(tmp_path / "cache"), "SMELT_CACHE_LIMIT": "1GiB"}
    listed = json.loads(smelt("cache", "ls", "--json", **here).stdout)
    assert (listed["entries"], listed["bytes"], listed["limit"]) == ([], 0, 1 << 30)
    assert smelt("run", DIGITS, "--engine", "native", **here).returncode == 0
    listed = json.loads(smelt("cache", "ls", "--json", **here).stdout)
    assert len(listed["entries"]) == 2  # the runtime library and the model
    assert listed["bytes"] == sum(path.stat().st_size for path in (tmp_path / "cache").glob("*.so"))
    assert {entry["model"] for entry in listed["entries"]} == {"smelt's runtime", "digits"}
    assert "2 entries" in smelt("cache", "ls", **here).stdout
    assert json.loads(smelt("cache", "clear", "--json", **here).stdout)["removed"] == 2
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_limit_on_the_command_line() -> None:
    assert smelt("run", DIGITS, "--memory-limit", "1MB").returncode == 0
    done = smelt("run", DIGITS, "--memory-limit", "1MB", "--size", "batch=100000")
    assert done.returncode == 1
    assert "more memory than allowed" in done.stderr
    assert "temporary" in done.stderr
    assert smelt("bench", DIGITS, "--memory-limit", "1KB").returncode == 1


def test_inspect_foresees_the_native_engine() -> None:
    made = json.loads(smelt("inspect", DIGITS, "--json", "--size", "batch=10").stdout)
    plan = record(DIGITS, "plan", "--size", "batch=10")
    assert made["native"]["peak_bytes"] == plan["peak_bytes"]
    assert "native engine" in smelt("inspect", DIGITS).stdout


@pytest.mark.parametrize(
    ("count", "text"), [(0, "copy"), (1, "a0"), (3, "a0, a1, a2"), (4, "a0, a1, a2 +1"), (9, "a0, a1, a2 +6")]
)
def test_a_table_names_the_first_ops_of_a_kernel(count: int, text: str) -> None:
    assert _short([f"stablehlo.a{i}" for i in range(count)]) == text
