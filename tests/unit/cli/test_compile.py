"""`smelt compile` and what the other commands make of a bundle; onnxruntime is the oracle."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import smelt
from smelt.cli.main import app
from smelt.device import cpu
from smelt.errors import RunError, ShapeError, SizeError, SmeltError
from smelt.read.onnx import StaticError
from tests import onnx_oracle

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = str(files("smelt") / "assets" / "digits.onnx")


def smelt_json(*arguments: object) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def on_onnxruntime(path: object, **inputs: np.ndarray) -> np.ndarray:
    return onnx_oracle.session(str(path)).run(None, inputs)[0]


def test_a_file_becomes_a_bundle_that_other_commands_take(tmp_path: Path, seed: int) -> None:
    bundle = tmp_path / "digits.smelt"
    record = smelt_json("compile", DIGITS, "-o", bundle, "--target", "plain")
    assert record["targets"] == ["plain"]
    assert record["bytes"] == bundle.stat().st_size
    said = smelt_json("inspect", bundle)
    assert (said["inputs"], said["targets"], said["signed"]) == ({"pixels": "f32[batch, 64]"}, ["plain"], None)
    assert said["provenance"]["source"] == "digits.onnx"
    x = np.random.default_rng(seed).random((5, 64), np.float32)
    np.save(tmp_path / "x.npy", x)
    ran = smelt_json("run", bundle, "--input", f"pixels={tmp_path / 'x.npy'}", "--output-dir", tmp_path)
    assert ran["engine"] == "native"
    want = on_onnxruntime(DIGITS, pixels=x)
    np.testing.assert_allclose(np.load(tmp_path / "probabilities.npy"), want, rtol=2e-5, atol=1e-7)


def test_sizes_and_values_are_fixed_where_said(tmp_path: Path, seed: int) -> None:
    smelt_json("compile", DIGITS, "-o", tmp_path / "four.smelt", "--target", "plain", "--size", "batch=4")
    model = smelt.load(tmp_path / "four.smelt")
    assert str(model.signature.inputs[0].shape) == "f32[4, 64]"
    x = np.random.default_rng(seed).random((4, 64), np.float32)
    np.testing.assert_allclose(model(x)["probabilities"], on_onnxruntime(DIGITS, pixels=x), rtol=2e-5, atol=1e-7)
    with pytest.raises((ShapeError, SizeError), match="pixels"):
        model(x[:3])
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [helper.make_node("ReduceSum", ["x", "axes"], ["y"], keepdims=0)],
        "sum",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, [3, 4]),
            helper.make_tensor_value_info("axes", kind.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, ["n"])],
    )
    path = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    with pytest.raises(StaticError) as caught:
        smelt_json("compile", path, "-o", tmp_path / "sum.smelt")
    assert caught.value.remedy == "--static axes=…"
    smelt_json("compile", path, "-o", tmp_path / "sum.smelt", "--target", "plain", "--static", "axes=[1]")
    (y,) = smelt.load(tmp_path / "sum.smelt")(x[:3, :4]).values()
    np.testing.assert_allclose(y, on_onnxruntime(path, x=x[:3, :4], axes=np.array([1])), rtol=1e-6)
    assert smelt_json("inspect", tmp_path / "sum.smelt")["provenance"]["static axes"] == "[1]"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("-o", "digits.bin"), "needs its ending"),
        (("-o", "digits.smelt", "--target", "abacus"), "unknown target"),
        (("-o", "digits.smelt", "--size", "depth=3"), "--size is not understood"),
        (("-o", "digits.smelt", "--static", "depth=3"), "--static is not understood"),
    ],
)
def test_mistakes_are_named_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SmeltError, match=message):
        smelt_json("compile", DIGITS, *arguments)
    assert not list(tmp_path.iterdir())


def test_programs_in_text_are_compiled_too(tmp_path: Path) -> None:
    text = """func.func @main(%x: tensor<?xf32, #smelt.sizes<N>>) -> tensor<?xf32, #smelt.sizes<N>> {
      %0 = stablehlo.negate %x : tensor<?xf32, #smelt.sizes<N>>
      return %0 : tensor<?xf32, #smelt.sizes<N>>
    }"""
    (tmp_path / "negate.mlir").write_text(text)
    smelt_json("compile", tmp_path / "negate.mlir", "-o", tmp_path / "negate.smelt", "--target", "plain")
    model = smelt.load(tmp_path / "negate.smelt")
    for count in (0, 1, 7):
        (y,) = model(np.arange(count, dtype=np.float32)).values()
        np.testing.assert_array_equal(y, -np.arange(count, dtype=np.float32))
    model.close()
    with pytest.raises(RunError, match="closed"):
        model(np.zeros(1, np.float32))
