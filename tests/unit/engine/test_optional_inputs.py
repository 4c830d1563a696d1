"""Initialisers that are inputs too: a call may bring them, and need not, as onnxruntime has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.dtype import Array
from smelt.errors import RunError

onnx = pytest.importorskip("onnx")
onnxruntime = pytest.importorskip("onnxruntime")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """y = ReduceSum(x * scale, axes): one default is a number, the other is a compile-time input."""
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Mul", ["x", "scale"], ["scaled"]),
            helper.make_node("ReduceSum", ["scaled", "axes"], ["y"], keepdims=1),
        ],
        "sum",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, ["n", 3]),
            helper.make_tensor_value_info("scale", kind.FLOAT, [3]),
            helper.make_tensor_value_info("axes", kind.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, None)],
        [
            onnx.numpy_helper.from_array(np.array([1, 2, 3], np.float32), "scale"),
            onnx.numpy_helper.from_array(np.array([1]), "axes"),
        ],
    )
    file = tmp_path / "sum.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(file))
    return file


@pytest.mark.parametrize("engine", ["reference", "auto"])
def test_defaults_may_be_overridden(path: Path, engine: str) -> None:
    model = smelt.load(path, engine=engine)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [port.name for port in model.signature.inputs] == ["x"]
    assert [port.name for port in model.optional] == ["scale", "axes"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    scale, axes = np.array([3, -1, 2], np.float32), np.array([0])
    feeds: list[dict[str, Array]] = [
        {"x": x},
        {"x": x, "scale": scale},
        {"x": x, "axes": axes},
        {"scale": scale, "x": x[:1], "axes": axes},
        {"x": x, "axes": np.array([-1])},
        {"x": x},
    ]
    for feed in feeds:
        np.testing.assert_array_equal(model.run(feed)["y"], session.run(None, feed)[0])
    np.testing.assert_array_equal(model(x, scale=scale)["y"], session.run(None, {"x": x, "scale": scale})[0])
    model.close()
    with pytest.raises(RunError, match="closed"):
        model(x)


def test_mistakes_with_optional_inputs(path: Path) -> None:
    model = smelt.load(path, engine="reference")
    x = np.zeros((2, 3), np.float32)
    with pytest.raises(RunError, match="unknown scales") as caught:
        model(x, scales=np.ones(3, np.float32))
    assert "scale" not in str(caught.value.expected)
    with pytest.raises(RunError, match="no x"):
        model(scale=np.ones(3, np.float32))
    with pytest.raises(RunError, match="too many"):
        model(x, np.ones(3, np.float32))  # what has a default goes by its name
    with pytest.raises(smelt.SmeltError, match="the input 'scale'"):
        model(x, scale=np.ones(4, np.float32))
