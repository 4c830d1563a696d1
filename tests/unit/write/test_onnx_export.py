# ruff: noqa: F722  # shapes are no forward references
"""ONNX export: models and programs that come back from onnxruntime with the same numbers, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import smelt
from smelt import Shaped, Tensor, nn
from smelt.cli.export import export as export_command
from smelt.engine.signature import signature_of
from smelt.errors import SmeltError, UnsupportedError
from smelt.ir.interpret import run
from smelt.tensor.model import build as build_model
from smelt.tensor.model import parameters_of
from smelt.write.onnx import model as writer

DIGITS = Path(str(files("smelt") / "assets" / "digits.onnx"))


def session(path: Path) -> onnxruntime.InferenceSession:
    onnx.checker.check_model(path, full_check=True)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])


def agree(program: smelt.Program, inputs: Mapping[str, Any], folder: Path, tolerance: float = 1e-6) -> set[str]:
    """Export a program without weights, compare onnxruntime with the reference; gives the operators."""
    path = folder / "program.onnx"
    smelt.export(program, path)
    wanted = run(program, list(inputs.values()))
    found = session(path).run(None, dict(inputs))
    for ours, theirs in zip(wanted, found, strict=True):
        assert theirs.dtype == ours.dtype
        np.testing.assert_allclose(theirs, ours, rtol=tolerance, atol=tolerance)
    return {node.op_type for node in onnx.load(path).graph.node}


def test_a_model_with_a_dynamic_dimension_keeps_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "digits.onnx"
    export_command(DIGITS, path, False, False, to="onnx")
    assert "nodes" in capsys.readouterr().out
    graph = onnx.load(path).graph
    assert [(port.name, port.type.tensor_type.shape.dim[0].dim_param) for port in graph.input] == [("pixels", "batch")]
    assert [port.name for port in graph.output] == ["probabilities"]
    assert {tensor.name for tensor in graph.initializer} >= {"w1", "b1", "w2", "b2", "w3", "b3"}
    assert {"Softmax", "Relu", "MatMul"} <= {node.op_type for node in graph.node}
    theirs, ours = session(DIGITS), session(path)
    for rows in (1, 5):
        pixels = np.random.default_rng(rows).random((rows, 64), np.float32)
        np.testing.assert_allclose(ours.run(None, {"pixels": pixels}), theirs.run(None, {"pixels": pixels}), rtol=1e-6)
    again, _ = smelt.read(path)  # and our own reader takes it
    assert [port.name for port in signature_of(again.main).outputs] == ["probabilities"]


def test_a_python_model_with_its_weights(tmp_path: Path):
    class Net(smelt.Model):
        first = nn.Linear(d=8, f=16)
        norm = nn.LayerNorm(f=16)
        last = nn.Linear(f=16, c=3)

        def forward(self, x: Shaped[Tensor, "f32[b=B, s=S, d=8]"]) -> Tensor:
            return self.last(self.norm(self.first(x)).gelu()).softmax("c")

    rng = np.random.default_rng(0)
    arrays = {
        name: rng.normal(size=spec.shape.numbers()).astype(np.float32) for name, spec in parameters_of(Net).items()
    }
    net = build_model(Net, arrays)
    path = tmp_path / "net.onnx"
    smelt.export(net.forward, path)
    graph = onnx.load(path).graph
    assert {"LayerNormalization", "Gelu", "Softmax"} <= {node.op_type for node in graph.node}
    assert arrays.keys() <= {tensor.name for tensor in graph.initializer}
    x = rng.normal(size=(2, 5, 8)).astype(np.float32)
    (found,) = session(path).run(None, {"x": x})
    np.testing.assert_allclose(found, net.forward(smelt.tensor(x, "b s d")).numpy(), rtol=1e-5, atol=1e-6)
    with pytest.raises(UnsupportedError, match="no data for"):
        smelt.export(Net().forward, path)


LOOP = """
func.func @main(%x: tensor<?xf32, #smelt.sizes<N>>, %n: tensor<i32>) -> (tensor<?xf32, #smelt.sizes<N>>, tensor<i32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %acc = %x) : tensor<i32>, tensor<?xf32, #smelt.sizes<N>>
    cond {
      %go = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %go : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %next = stablehlo.add %i, %one : tensor<i32>
      %more = stablehlo.add %acc, %x : tensor<?xf32, #smelt.sizes<N>>
      stablehlo.return %next, %more : tensor<i32>, tensor<?xf32, #smelt.sizes<N>>
    }
  %two = stablehlo.constant dense<2> : tensor<i32>
  %odd = stablehlo.compare GT, %n, %two : (tensor<i32>, tensor<i32>) -> tensor<i1>
  %y = "stablehlo.if"(%odd) ({
    %a = stablehlo.negate %r#1 : tensor<?xf32, #smelt.sizes<N>>
    stablehlo.return %a : tensor<?xf32, #smelt.sizes<N>>
  }, {
    stablehlo.return %x : tensor<?xf32, #smelt.sizes<N>>
  }) : (tensor<i1>) -> tensor<?xf32, #smelt.sizes<N>>
  %z = "stablehlo.case"(%n) ({
    stablehlo.return %zero : tensor<i32>
  }, {
    stablehlo.return %two : tensor<i32>
  }, {
    %b = stablehlo.add %n, %two : tensor<i32>
    stablehlo.return %b : tensor<i32>
  }) : (tensor<i32>) -> tensor<i32>
  return %y, %z : tensor<?xf32, #smelt.sizes<N>>, tensor<i32>
}
"""


@pytest.mark.parametrize("turns", [0, 1, 3])
def test_loops_and_branches(turns: int, tmp_path: Path):
    inputs = {"x": np.arange(4, dtype=np.float32), "n": np.array(turns, np.int32)}
    operators = agree(smelt.parse(LOOP), inputs, tmp_path)
    assert {"Loop", "If"} <= operators


def test_sizes_that_are_computed(tmp_path: Path):
    program = smelt.parse(
        "func.func @main(%x: tensor<?x?xf32, #smelt.sizes<B, 2*S>>) -> tensor<?x?xf32, #smelt.sizes<B*S, 2>> {"
        " %0 = stablehlo.reshape %x : (tensor<?x?xf32, #smelt.sizes<B, 2*S>>) -> tensor<?x?xf32, #smelt.sizes<B*S, 2>>"
        " return %0 : tensor<?x?xf32, #smelt.sizes<B*S, 2>> }"
    )
    agree(program, {"x": np.arange(24, dtype=np.float32).reshape(3, 8)}, tmp_path)


def test_everything_that_has_no_form_is_named_at_once(tmp_path: Path):
    program = smelt.parse(
        "func.func @main(%x: tensor<4x4xf32>) -> (tensor<4x4xf32>, tensor<4x4xf32>) {"
        " %0 = chlo.digamma %x : tensor<4x4xf32> -> tensor<4x4xf32>"
        " %1 = chlo.lgamma %x : tensor<4x4xf32> -> tensor<4x4xf32>"
        " return %0, %1 : tensor<4x4xf32>, tensor<4x4xf32> }"
    )
    with pytest.raises(UnsupportedError, match="2 things") as caught:
        smelt.export(program, tmp_path / "a.onnx")
    assert "digamma" in str(caught.value)
    assert "lgamma" in str(caught.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(SmeltError, match="output format"):
        smelt.export(program, tmp_path / "a.txt")
    with pytest.raises(SmeltError, match="does not end like"):
        export_command(DIGITS, tmp_path / "a.mlir", False, False, to="onnx")


def test_large_weights_are_a_file_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(writer, "EXTERNAL", 1000)
    path = tmp_path / "digits.onnx"
    made = smelt.export(DIGITS, path)
    assert made.weights == tmp_path / "digits.onnx.data"
    pixels = np.random.default_rng(0).random((2, 64), np.float32)
    np.testing.assert_allclose(
        session(path).run(None, {"pixels": pixels}), session(DIGITS).run(None, {"pixels": pixels}), rtol=1e-6
    )
