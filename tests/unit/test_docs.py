"""The examples of docs/tensors.md run as they stand and print what the page says; the miniature compiler computes.

A block of Python and the block of text behind it belong together; names carry over from block to block.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from smelt.cli.check_report import VERSION

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tensors.md").read_text()


def test_the_examples_print_what_the_page_says(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    blocks = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", PAGE, re.S)
    assert len(blocks) == PAGE.count("```python") == 8
    names: dict[str, object] = {"__name__": "tensors"}
    for number, (code, printed) in enumerate(blocks):
        path = tmp_path / f"block{number}.py"  # a file, so that errors find their lines
        path.write_text(code)
        exec(compile(code, str(path), "exec"), names)
        assert capsys.readouterr().out == printed, code


def test_the_message_of_the_page_is_the_message_of_the_command(tmp_path: Path):
    shown = re.search(r"\$ smelt check mlp\.py.*?\n(.*?\n)\n?An entry point", PAGE, re.S)
    assert shown is not None
    text = """from smelt import Shaped, Tensor
class MLP:
    up:   Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=10]"]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]):
        return x.dot(self.up, "d").relu().dot(self.down, "d")
"""
    (tmp_path / "mlp.py").write_text(text)
    command = [sys.executable, "-m", "smelt.cli.main", "check", "--format", "text", "mlp.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    expected = [line.removeprefix("    ") for line in shown.group(1).rstrip().splitlines()]
    assert done.stdout.rstrip().splitlines() == expected
    assert f"`version`, `ok`, `files` | {VERSION};" in PAGE


# ---- the miniature ----


@pytest.fixture(scope="module")
def scratch() -> ModuleType:
    spec = importlib.util.spec_from_file_location("from_scratch", ROOT / "docs" / "from_scratch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def test_the_miniature_is_short_and_runs(scratch: ModuleType, capsys: pytest.CaptureFixture[str]):
    assert 200 <= len((ROOT / "docs" / "from_scratch.py").read_text().splitlines()) <= 400
    scratch.main()
    printed = capsys.readouterr().out
    assert "void run(float **b, const long *n)" in printed
    assert 'refused before anything ran: dot over "d"' in printed


def test_the_miniature_computes_what_numpy_does(scratch: ModuleType, seed: int):
    rng = np.random.default_rng(seed)
    model = scratch.compile_model(scratch.attention, **scratch.SHAPES)
    for b, s, o in ((2, 3, 5), (1, 9, 2), (0, 2, 3)):
        sizes = {"x": (b, s, 8), "wq": (8, 4), "wk": (8, 4), "wv": (8, o)}
        arrays = {name: rng.standard_normal(size).astype(np.float32) for name, size in sizes.items()}
        wide = {name: array.astype(np.float64) for name, array in arrays.items()}
        scores = np.exp((wide["x"] @ wide["wq"]) @ (wide["x"] @ wide["wk"]).swapaxes(1, 2))
        want = np.maximum(scores / scores.sum(-1, keepdims=True) @ (wide["x"] @ wide["wv"]), 0) + 1
        np.testing.assert_allclose(model(**arrays), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(scratch.ShapeError, match="not"):
        model(**{name: np.zeros((1, 2, 7) if name == "x" else (8, 4), np.float32) for name in sizes})


def test_the_miniature_fuses(scratch: ModuleType):
    """A chain of maps behind a product is one loop; a value that is used twice is kept."""
    one = scratch.compile_model(lambda x, w: (x.dot(w, "d") * 2.0 + 1.0).relu(), x="b=B, d=4", w="d=4, f=3")
    assert len(one.kept) == 1
    two = scratch.compile_model(lambda x, w: (y := x.dot(w, "d")) * y, x="b=B, d=4", w="d=4, f=3")
    assert len(two.kept) == 2
    x, w = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((4, 3), np.float32)
    np.testing.assert_array_equal(one(x=x, w=w), x @ w * 2 + 1)
    np.testing.assert_array_equal(two(x=x, w=w), (x @ w) ** 2)
    axes = scratch.compile_model(lambda x: x.rename(b="d", d="b"), x="b=B, d=3")
    np.testing.assert_array_equal(axes(x=x[:, :3]), x[:, :3])


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: x + w, "neither"),
        (lambda x, w: x.sum("f"), "no axis"),
        (lambda x, w: x.dot(w, "b"), "the right operand"),
        (lambda x, w: x.rename(d="b"), "rename"),
        (lambda x, w: x + w.sum("f").rename(d="b"), "two sizes"),
    ],
)
def test_the_miniature_refuses(scratch: ModuleType, function, message: str):
    with pytest.raises(scratch.ShapeError, match=message):
        scratch.compile_model(function, x="b=B, d=4", w="d=4, f=4")
