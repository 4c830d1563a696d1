"""`smelt check` says "proven" of what is proven: what it samples, skips or assumes is named, and no success
under `--strict`."""

import re
from pathlib import Path

import pytest

from smelt.cli.check_entries import check_module
from smelt.cli.check_modules import import_file
from smelt.cli.check_report import Report, record, summary, text

HEAD = """
import enum
from typing import Literal
import smelt
from smelt import Shaped, Tensor
"""
X = 'x: Shaped[Tensor, "f32[n=N]"]'
SAME = '-> Shaped[Tensor, "f32[n=N]"]'


def report(folder: Path, program: str, strict: bool = False) -> Report:
    file = folder / "program.py"
    file.write_text(HEAD + re.sub(r"\bX\b", X, program).replace("SAME", SAME))
    made = Report(strict=strict)
    made.add(file, check_module(import_file(file)))
    return made


# A mistake that only one variant, or only a function of an unusual kind, makes.
WRONG = {
    "five flags": "def f(X, a: bool, b: bool, c: bool, d: bool, e: bool) SAME: return x[1:] if a*b*c*d*e else x",
    "a flag of a model": """
class Net(smelt.Model):
    wide: bool
    w: Shaped[Tensor, "f32[d=D]"]
    def forward(self, x: Shaped[Tensor, "f32[d=D]"]) -> Shaped[Tensor, "f32[d=D]"]:
        return (x * self.w)[1:] if self.wide else x * self.w
""",
    "a choice of a model": """
class Kind(enum.Enum):
    SAME, LESS = 1, 2
class Net:
    def __init__(self, kind: Kind, how: Literal["a", "b"]) -> None:
        self.kind, self.how = kind, how
    def forward(self, X) SAME:
        return x[1:] if self.kind is Kind.LESS and self.how == "b" else x
""",
    "a classmethod": """
class Net(smelt.Model):
    @classmethod
    def helper(cls, X) SAME: return x[1:]
""",
    "a property": """
class Net(smelt.Model):
    w: Shaped[Tensor, "f32[d=D]"]
    @property
    def shorter(self) -> Shaped[Tensor, "f32[d=D]"]: return self.w[1:]
""",
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_of_all_variants_and_kinds_are_found(name: str, tmp_path: Path):
    assert len(report(tmp_path, WRONG[name]).mistakes) == 1


LAYERS = """
class Layer(smelt.Model):
    w: Shaped[Tensor, "f32[d=D]"]
    def __call__(self, x: Shaped[Tensor, "f32[d=D]"]) -> Shaped[Tensor, "f32[d=D]"]: return x * self.w
class Net(smelt.Model):
    layers: list[Layer]
    def forward(self, x: Shaped[Tensor, "f32[d=D]"]) -> Shaped[Tensor, "f32[d=D]"]:
        for layer in self.layers:
            x = layer(x)
        return x
"""
FLAGS = ", ".join(f"f{i}: bool" for i in range(7))
LIMITED = {
    "a list": ('def f(xs: list[Shaped[Tensor, "f32[n=N]"]]) SAME: return xs[0] + xs[1]', "2 tensors stand for any"),
    "a later item": ('def f(xs: tuple[Shaped[Tensor, "f32[n=N]"], ...]) SAME: return xs[5]', "8 tensors stand for any"),
    "more flags than are tried": (f"def f(X, {FLAGS}) SAME: return x", "64 of 128 combinations"),
    "layers": (LAYERS, "2 layers stand for any number of layers"),
    "a number that Python needs": (
        "def f(X, k: int) SAME:\n  return sum([x] * len(range(k)), x)",
        "k = 2 stands for any",
    ),
    "a number": ('def f(X, k: int) -> Shaped[Tensor, "f32[n=N + k]"]: return x.pad(n=(0, k))', "k >= 0 is assumed"),
    "a float": ("def f(X, p: float) SAME: return x * p if 2 * p - 1 > 0 else x[1:]", "p = 1.0 stands for any float"),
    "arguments": (
        'def f(*xs: Shaped[Tensor, "f32[n=N]"]) SAME: return xs[0]',
        "2 tensors stand for any number of *xs",
    ),
}


@pytest.mark.parametrize("name", LIMITED)
def test_what_is_sampled_or_assumed_is_named(name: str, tmp_path: Path):
    program, said = LIMITED[name]
    made = report(tmp_path, program)
    assert made.ok
    assert said in text(made)
    assert "not proven for everything" in summary(made)
    assert any(said in limit for entry in record(made)["entries"] for limit in entry["limits"])
    assert not report(tmp_path, program, strict=True).ok


def test_what_is_proven_has_no_limits(tmp_path: Path):
    program = """
@smelt.assume("k >= 0")
def f(X, k: int) -> Shaped[Tensor, "f32[n=N + k]"]: return x.pad(n=(0, k))
def g(X, p: float, five: bool, four: bool, three: bool, two: bool, one: bool) SAME: return x * (1.0 - p) ** 2
def h(X, N: int) SAME: return x.broadcast(b=N).sum("b")
"""
    made = report(tmp_path, program, strict=True)
    assert made.ok, text(made)
    assert summary(made) == "3 entry points of 1 file: every shape is proven"


UNCOVERED = {
    "a decorator without wraps": (
        "def hide(f): return lambda *a: f(*a)\n@hide\ndef f(X) SAME: return x[1:]",
        "decorator",
    ),
    "a nested function": ("def outer():\n  def f(X) SAME: return x[1:]\n  return f", "it is inside outer"),
    "a generator": ("def f(X):\n  yield x[5]", "generator"),
    "a coroutine": ("async def f(X) SAME: return x[1:]", "coroutine"),
    "a result that cannot be resolved": (
        "def f(X) -> 'Shaped[Tensr, \"f32[n=N]\"]': return x[1:]",
        "the result cannot",
    ),
    "a branch of the module": ("if not smelt:\n  def f(X) SAME: return x[1:]", "nothing calls it"),
}


@pytest.mark.parametrize("name", UNCOVERED)
def test_what_is_skipped_is_named(name: str, tmp_path: Path):
    program, said = UNCOVERED[name]
    reasons = {each.name: each.reason for each in report(tmp_path, program).uncovered}
    assert any(said in reason for reason in reasons.values()), reasons
    assert not report(tmp_path, program, strict=True).ok


def test_a_nested_function_that_is_called_is_covered(tmp_path: Path):
    program = """
def f(X) SAME:
    def inner(y: Tensor) -> Tensor:
        return y + 1.0
    return inner(x)
"""
    made = report(tmp_path, program, strict=True)
    assert made.ok, text(made)
