"""Models whose programs depend on the values of inputs: one program per value, bounded, with a logged reason."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.errors import RunError
from smelt.run import per_value

onnx = pytest.importorskip("onnx")


@pytest.fixture
def tile(tmp_path: Path) -> Path:
    """y = Tile(x, repeats) followed by a reduction over given axes."""
    helper, kind = onnx.helper, onnx.TensorProto
    graph = helper.make_graph(
        [
            helper.make_node("Tile", ["x", "repeats"], ["tiled"]),
            helper.make_node("ReduceSum", ["tiled", "axes"], ["y"], keepdims=0),
        ],
        "tile",
        [
            helper.make_tensor_value_info("x", kind.FLOAT, ["n", 2]),
            helper.make_tensor_value_info("repeats", kind.INT64, [2]),
            helper.make_tensor_value_info("axes", kind.INT64, [1]),
        ],
        [helper.make_tensor_value_info("y", kind.FLOAT, ["m"])],
    )
    path = tmp_path / "tile.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), str(path))
    return path


def expected(x: np.ndarray, repeats: list[int], axis: int) -> np.ndarray:
    return np.tile(x, repeats).sum(axis)


def test_every_value_gets_a_program_of_its_own(tile: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = smelt.load(tile)
    assert [port.name for port in model.signature.inputs] == ["x", "repeats", "axes"]
    x = np.arange(6, dtype=np.float32).reshape(3, 2)
    with caplog.at_level(logging.INFO, "smelt"):
        for repeats, axis in (([1, 2], 0), ([2, 1], 1), ([1, 2], 0), ([3, 3], 1)):
            y = model(x=x, repeats=np.array(repeats), axes=np.array([axis]))["y"]
            np.testing.assert_array_equal(y, expected(x, repeats, axis))
        np.testing.assert_array_equal(model(x[:1], np.array([1, 2]), np.array([0]))["y"], expected(x[:1], [1, 2], 0))
    assert set(model.static) == {"repeats", "axes"}
    assert len(caplog.messages) == 3, "an equal value, and another size of x, compile nothing"
    assert "repeats=[1, 2]" in caplog.text
    model.close()
    with pytest.raises(RunError, match="closed"):
        model(x, np.array([1, 2]), np.array([0]))


def test_the_number_of_programs_is_bounded(tile: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_value, "LIMIT", 2)
    model = smelt.load(tile, engine="reference")
    x = np.ones((1, 2), np.float32)
    for repeat in (1, 2, 3, 1):
        y = model(x, np.array([1, repeat]), np.array([1]))["y"]
        np.testing.assert_array_equal(y, [2 * repeat])
    assert isinstance(model._executable, per_value.PerValue)
    assert len(model._executable._programs) == 2


def test_values_may_be_fixed_when_loading(tile: Path) -> None:
    model = smelt.load(tile, static={"repeats": np.array([1, 2]), "axes": np.array([1])})
    assert [port.name for port in model.signature.inputs] == ["x"]
    x = np.ones((2, 2), np.float32)
    np.testing.assert_array_equal(model(x)["y"], [4, 4])
