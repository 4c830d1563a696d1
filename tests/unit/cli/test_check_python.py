"""`smelt check` on Python files as a user meets it: what is printed, exit codes, folders, packages, broken imports."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from smelt.cli.main import app

MLP = """
from smelt import Shaped, Tensor
class MLP:
    up:   Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=10]"]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]):
        return x.dot(self.up, "d").relu().dot(self.down, "d")
"""
RIGHT = MLP.replace('self.down, "d"', 'self.down, "f"')
BARE = RIGHT + "def helper(x: Tensor):\n    return x\n"


def smelt(folder: Path, *arguments: object, **variables: str) -> Result:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("GITHUB_ACTIONS", raising=False)
        return CliRunner().invoke(app, ["check", *map(str, arguments)], env=variables)


def answer(folder: Path, *arguments: object) -> tuple[int, dict[str, Any]]:
    done = smelt(folder, *arguments, "--json")
    return done.exit_code, json.loads(done.stdout)


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.lstrip("\n"))
    return path


def test_the_example_of_the_design(tmp_path: Path) -> None:
    write(tmp_path / "mlp.py", MLP)
    command = [sys.executable, "-m", "smelt.cli.main", "check", "--format", "text", "mlp.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    expected = """
        mlp.py:6:47 error: dot over "d": the right operand has no such axis
          6 |  return x.dot(self.up, "d").relu().dot(self.down, "d")
            |                                        ^^^^^^^^^
          left  f32[b=B, f=F]   from line 6
          right f32[f=F, c=10]  from line 4
          try   .dot(self.down, "f")

        1 mistake in 1 entry point of 1 file
        """
    assert done.stdout.strip() == textwrap.dedent(expected).strip()


def test_what_is_right_and_what_is_not_covered(tmp_path: Path) -> None:
    write(tmp_path / "right.py", RIGHT)
    write(tmp_path / "bare.py", BARE)
    done = smelt(tmp_path, "right.py")
    assert (done.exit_code, done.stdout) == (0, "1 entry point of 1 file: every shape is proven\n")
    done = smelt(tmp_path, "bare.py")
    assert done.exit_code == 0
    assert "bare.py:7 note: helper is not covered: x has no shape" in done.stdout
    done = smelt(tmp_path, "bare.py", "--strict")
    assert done.exit_code == 1
    assert "bare.py:7 error: helper is not covered" in done.stdout


def test_the_record_for_machines(tmp_path: Path) -> None:
    write(tmp_path / "mlp.py", MLP)
    write(tmp_path / "bare.py", BARE)
    code, record = answer(tmp_path, "mlp.py", "bare.py")
    assert code == 1
    assert record.keys() == {"version", "ok", "files", "mistakes", "entries", "uncovered", "models"}
    assert (record["version"], record["ok"], record["files"]) == (1, False, ["mlp.py", "bare.py"])
    [mistake] = record["mistakes"]
    assert mistake["kind"] == "shape"
    assert mistake["entry"] == "MLP.forward"
    assert (mistake["path"], mistake["line"], mistake["column"]) == ("mlp.py", 6, 47)
    assert [operand["label"] for operand in mistake["operands"]] == ["left", "right"]
    assert mistake["remedy"] == '.dot(self.down, "f")'
    assert [(entry["name"], entry["mistakes"]) for entry in record["entries"]] == [
        ("MLP.forward", 1),
        ("MLP.forward", 0),
    ]
    assert record["uncovered"] == [{"name": "helper", "path": "bare.py", "line": 7, "reason": "x has no shape"}]


def test_annotations_for_github(tmp_path: Path) -> None:
    write(tmp_path / "pkg" / "mlp.py", MLP)
    for done in (
        smelt(tmp_path / "pkg", "mlp.py", "--format", "github", GITHUB_WORKSPACE=str(tmp_path)),
        smelt(tmp_path / "pkg", "mlp.py", GITHUB_ACTIONS="true", GITHUB_WORKSPACE=str(tmp_path)),
    ):
        assert done.exit_code == 1
        first, last = done.stdout.splitlines()
        assert first.startswith('::error file=pkg/mlp.py,line=6,col=47,title=smelt check::dot over "d": the right')
        assert "%0A  try   .dot(self.down" in first
        assert last == "1 mistake in 1 entry point of 1 file"
    assert "::error" not in smelt(tmp_path / "pkg", "mlp.py", "--format", "text", GITHUB_ACTIONS="true").stdout


def test_wrong_command_lines_are_code_two(tmp_path: Path) -> None:
    write(tmp_path / "mlp.py", MLP)
    for arguments in ([], ["nowhere.py"], ["nowhere"], ["mlp.py", "nowhere.py"], ["mlp.py", "--format", "svg"]):
        assert smelt(tmp_path, *arguments).exit_code == 2, arguments
    assert smelt(tmp_path, "mlp.py", "--json", "--format", "github").exit_code == 2


def test_a_folder_with_packages(tmp_path: Path) -> None:
    """Relative imports, absolute ones, modules named like others that are loaded, and files that are not ours."""
    write(tmp_path / "code" / "nets" / "__init__.py", "")
    write(tmp_path / "code" / "nets" / "layers" / "__init__.py", "from .linear import Linear\n")
    write(
        tmp_path / "code" / "nets" / "layers" / "linear.py",
        """
from smelt import Shaped, Tensor
class Linear:
    weight: Shaped[Tensor, "f32[d=D, f=F]"]
    def __call__(self, x: Tensor) -> Tensor:
        return x.dot(self.weight, "d")
""",
    )
    net = """
from smelt import Shaped, Tensor
from {where} import Linear
class Net:
    linear: Linear
    def forward(self, x: Shaped[Tensor, "[B, D]"]) -> Shaped[Tensor, "{result}"]:
        return self.linear(x)
"""
    write(tmp_path / "code" / "nets" / "json.py", net.format(where=".layers", result="[B, F]"))
    write(tmp_path / "code" / "nets" / "deep" / "__init__.py", "")
    write(tmp_path / "code" / "nets" / "deep" / "numpy.py", net.format(where="..layers.linear", result="[B, D]"))
    write(tmp_path / "code" / "script.py", net.format(where="nets.layers", result="[B, F]"))
    write(tmp_path / "code" / "loose" / "one.py", "import smelt\nfrom ..nets.layers import Linear\n")
    write(tmp_path / "code" / "unrelated.py", "raise SystemExit('nobody asked for this')\n")
    write(tmp_path / "code" / ".hidden" / "smelt_too.py", "import smelt; 1 / 0\n")
    code, record = answer(tmp_path, "code")
    assert code == 1
    [mistake] = record["mistakes"]
    assert mistake["path"] == "code/nets/deep/numpy.py"
    assert "other axes than declared" in mistake["message"]
    assert {entry["path"]: entry["name"] for entry in record["entries"]} == {
        "code/nets/deep/numpy.py": "Net.forward",
        "code/nets/json.py": "Net.forward",
        "code/script.py": "Net.forward",
    }
    assert record["uncovered"] == [], "the layers lack shapes, but the networks call them"
    code, record = answer(tmp_path, "code/nets/layers")
    assert code == 0
    assert [each["name"] for each in record["uncovered"]] == ["Linear.__call__"]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("import smelt\n)\n", "2:1", "SyntaxError"),
        ("import smelt\nimport nothing_of_that_name\n", 2, "ModuleNotFoundError"),
        ("import smelt\ndef f():\n    return 1 / 0\nf()\n", 3, "ZeroDivisionError"),
        ("import smelt\ndef f(:\n    pass\n", "2:7", "SyntaxError"),
        ("import smelt, sys\nsys.exit(3)\n", 2, "SystemExit"),
        ("import smelt, json\njson.loads('{')\n", 2, "JSONDecodeError"),
        ("import smelt\nx = smelt.zeros('f32[s=2]') + smelt.zeros('f32[s=3]')\n", 2, "different sizes"),
    ],
)
def test_a_module_that_cannot_be_imported(text: str, line: int | str, message: str, tmp_path: Path) -> None:
    write(tmp_path / "broken.py", text)
    write(tmp_path / "mlp.py", MLP)
    done = smelt(tmp_path, "broken.py", "mlp.py")
    assert done.exit_code == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert f"broken.py:{line}" in done.stdout
    assert message in done.stdout
    assert "^" in done.stdout.partition("mlp.py")[0]
    assert "mlp.py:6:47 error" in done.stdout, "the other file is checked nevertheless"


def test_what_modules_print_does_not_mix_with_the_answer(tmp_path: Path) -> None:
    write(
        tmp_path / "loud.py",
        'print("hello")\n' + RIGHT.replace("        return", '        print("there")\n        return'),
    )
    code, record = answer(tmp_path, "loud.py")
    assert code == 0
    assert record["ok"]


def test_models_and_code_together(tmp_path: Path) -> None:
    write(tmp_path / "mlp.py", RIGHT)
    write(
        tmp_path / "add.mlir",
        """
func.func @main(%x: tensor<2xf32>, %y: tensor<3xf32>) -> tensor<2xf32> {
  %0 = stablehlo.add %x, %y : (tensor<2xf32>, tensor<3xf32>) -> tensor<2xf32>
  return %0 : tensor<2xf32>
}
""",
    )
    code, record = answer(tmp_path, "mlp.py", "add.mlir")
    assert code == 1
    assert not record["ok"]
    assert record["mistakes"] == []
    [model] = record["models"]
    assert not model["ok"]
    assert "add_c1" in json.dumps(model["errors"])
