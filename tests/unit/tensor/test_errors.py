"""How mistakes look: the user's line, carets below the expression, both shapes and where they come from, the remedy."""

import importlib.util
import json
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import smelt
from smelt import TensorError, symbolic
from smelt.tensor import check, trace

MLP = """
from smelt import Shaped, Tensor
class MLP:
    up:   Shaped[Tensor, "f32[d=784, f=F]"]
    down: Shaped[Tensor, "f32[f=F, c=10]"]
    def forward(self, x: Shaped[Tensor, "f32[b=B, d=784]"]):
        return x.dot(self.up, "d").relu().dot(self.down, "d")
    def declared(self, x: Shaped[Tensor, "f32[b=B, d=784]"]) -> Shaped[Tensor, "f32[b=B, c=11]"]:
        y = x.dot(self.up, "d")
        return y.dot(
            self.down,
            "f",
        )
    def lines(self, x: Shaped[Tensor, "f32[b=B, d=784]"]):
        return (
            x.dot(self.up, "d")
            .relu()
            .dot(self.down, "x")
        )
    def sum(self, x: Shaped[Tensor, "f32[b=B, d=784]"], y: Shaped[Tensor, "f32[b=B, d=783]"]):
        größe = x; return größe + y
"""


def module(tmp_path: Path, text: str, name: str = "mlp") -> ModuleType:
    path = tmp_path / f"{name}.py"
    path.write_text(text.lstrip("\n"))
    spec = importlib.util.spec_from_file_location(f"{name}_{tmp_path.name}", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    import sys

    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


def error_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str) -> TensorError:
    monkeypatch.chdir(tmp_path)
    made = module(tmp_path, MLP)
    [error] = check(getattr(object.__new__(made.MLP), method)).errors
    assert isinstance(error, TensorError)
    return error


def test_the_whole_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error = error_of(tmp_path, monkeypatch, "forward")
    expected = """
        mlp.py:6:47: dot over "d": the right operand has no such axis
          6 |  return x.dot(self.up, "d").relu().dot(self.down, "d")
            |                                        ^^^^^^^^^
          left  f32[b=B, f=F]   from line 6
          right f32[f=F, c=10]  from line 4
          try   .dot(self.down, "f")
        """
    assert str(error) == textwrap.dedent(expected).strip()


def test_a_result_that_is_not_what_was_declared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error = error_of(tmp_path, monkeypatch, "declared")
    assert error.message == "MLP.declared: the result: a size is 10, not 11"
    assert [operand.label for operand in error.operands] == ["declared", "got"]
    assert "from line 7" in str(error), "where it is declared"
    assert "from line 9" in str(error), "where it was made"


def test_an_expression_over_several_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error = error_of(tmp_path, monkeypatch, "lines")
    assert error.source is not None
    assert ".dot(self.down" in error.source


def test_columns_count_characters_not_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    error = error_of(tmp_path, monkeypatch, "sum")
    assert error.source is not None
    line, carets = error.source.splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "größe + y"


def test_the_record_for_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    record = error_of(tmp_path, monkeypatch, "forward").record()
    json.dumps(record)
    assert (record["path"], record["line"], record["column"]) == ("mlp.py", 6, 47)
    assert record["operands"][1] == {"label": "right", "shape": "f32[f=F, c=10]", "origin": "from line 4"}
    assert record["remedy"] == '.dot(self.down, "f")'


def test_other_files_are_named(tmp_path: Path):
    other = module(tmp_path, "import smelt\ndef make():\n    return smelt.symbolic('f32[s=T]')\n", "other")
    with pytest.raises(TensorError) as caught:
        symbolic("f32[s=S]") + other.make()
    assert "other.py line 3" in str(caught.value)
    assert "S=" in str(caught.value)


def test_operators_underline_the_expression():
    x, y = symbolic("f32[s=S]"), symbolic("f32[s=T]")
    with pytest.raises(TensorError) as caught:
        1.0 + (x - y) * 2.0
    assert caught.value.source is not None
    line, carets = caught.value.source.splitlines()
    assert line[carets.index("^") : carets.rindex("^") + 1] == "x - y"


def test_what_the_ir_refuses_is_shown_at_the_users_line():
    x = symbolic("i1[s=S]")
    with pytest.raises(TensorError) as caught:
        x << x
    assert caught.value.source is not None
    assert "x << x" in caught.value.source


def test_a_missing_annotation_names_the_parameter():
    def f(x):
        return x

    with pytest.raises(TensorError, match="x has no shape"):
        trace(f)


def test_values_are_refused_during_a_trace():
    x = symbolic("f32[]")
    with pytest.raises(TensorError, match="depends on its data"):
        bool(x > 0)
    with pytest.raises(TensorError, match="no value yet"):
        x.numpy()
    with pytest.raises(TensorError, match="has no value before"):
        range(symbolic("f32[s=S]").size("s"))


def test_branches_outside_of_a_trace_are_refused():
    with pytest.raises(TensorError, match="depends on dynamic dimensions"):
        assert symbolic("f32[s=S]").size("s") > 1
    assert symbolic("f32[s=S + 2]").size("s") > 1


def test_element_types():
    x = smelt.tensor([1, 2])
    for run, message in (
        (lambda: x / 2, "has no fractions"),
        (lambda: x + 0.5, "the float 0.5 does not mix with i32"),
        (lambda: x.exp(), "not for i32"),
        (lambda: x.mean(), "not for i32"),
        (lambda: x.to("i8") + 300, "does not fit"),
        (lambda: x + x.to("ui32"), "do not mix"),
        (lambda: x.to("bf16") + x.to("f16"), "do not mix"),
    ):
        with pytest.raises(TensorError, match=message) as caught:
            run()
        assert caught.value.remedy
