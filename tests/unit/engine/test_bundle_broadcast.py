"""Bundles of models whose dynamic dimensions broadcast against each other: the answers of onnxruntime at all sizes.

`N`, `M`: equal, or one of them is 1, or none fits and both refuse. The same from `save` and from `smelt compile`.
"""

from __future__ import annotations

import logging
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

import smelt
from smelt.cli.main import app
from smelt.errors import SizeError, UnsupportedError
from smelt.run.load import read_stored
from tests.onnx_nodes import on_onnxruntime

node, port = helper.make_node, helper.make_tensor_value_info
FLOAT, INT = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
WEIGHT = numpy_helper.from_array(np.linspace(-1, 1, 20, dtype=np.float32).reshape(4, 5), "w")


def model(path: Path, *nodes: Any, inputs: list[Any]) -> onnx.ModelProto:
    graph = helper.make_graph([*nodes], "g", inputs, [port("y", FLOAT, None)], [WEIGHT])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, path)
    return made


def compare(proto: onnx.ModelProto, loaded: Any, feed: dict[str, Any]) -> None:
    (want,) = on_onnxruntime(proto, feed)
    np.testing.assert_allclose(loaded.run(feed)["y"], want, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("way", ["save", "compile", "save again"])
def test_dynamic_dimensions_broadcast_in_a_bundle(way: str, tmp_path: Path):
    """A sum of two inputs and a matmul behind it, over every pair of sizes."""
    source, file = tmp_path / "m.onnx", tmp_path / "m.smelt"
    nodes = [node("Add", ["a", "b"], ["s"]), node("MatMul", ["s", "w"], ["t"]), node("Softmax", ["t"], ["y"], axis=0)]
    proto = model(source, *nodes, inputs=[port("a", FLOAT, ["N", 4]), port("b", FLOAT, ["M", 4])])
    if way == "compile":
        done = CliRunner().invoke(app, ["compile", str(source), "-o", str(file), "--target", "plain"])
        assert done.exit_code == 0, done.output
    else:
        smelt.load(source, engine="native").save(file, targets=["plain"])
    if way == "save again":
        smelt.load(file).save(tmp_path / "again.smelt")
        file = tmp_path / "again.smelt"
    shown = CliRunner().invoke(app, ["show", str(file)]).output
    assert "program 1 of 2" in shown
    assert "program 2 of 2" in shown
    loaded = smelt.load(file)
    kernels = len(loaded.kernels)
    rng = np.random.default_rng(1)
    feeds = {(n, m): {"a": rng.random((n, 4), np.float32), "b": rng.random((m, 4), np.float32)}
             for n, m in product((3, 1, 2), repeat=2)}  # fmt: skip
    compare(proto, loaded, feeds[3, 3])
    assert len(loaded.kernels) == kernels, "equal sizes need the first program only"
    for (n, m), feed in feeds.items():
        if 1 in (n, m) or n == m:
            compare(proto, loaded, feed)
        else:
            with pytest.raises(SizeError, match=rf"M == N, or sizes that broadcast\n +got +N={n}, M={m}"):
                loaded.run(feed)
    assert len(loaded.kernels) > kernels
    loaded.trim()
    loaded.close()


def test_a_number_that_a_dynamic_dimension_meets(tmp_path: Path):
    """A size that must be the weight's or 1, beside a compile-time input."""
    source, file = tmp_path / "m.onnx", tmp_path / "m.smelt"
    inputs = [port("a", FLOAT, ["N", 5]), port("b", FLOAT, ["M", 5]), port("axes", INT, [1])]
    nodes = [node("Add", ["a", "w"], ["s"]), node("Mul", ["s", "b"], ["t"]), node("ReduceSum", ["t", "axes"], ["y"])]
    proto = model(source, *nodes, inputs=inputs)
    loaded = smelt.load(source, engine="native")
    rng = np.random.default_rng(2)
    feed = {"a": rng.random((4, 5), np.float32), "b": rng.random((4, 5), np.float32), "axes": np.array([1])}
    compare(proto, loaded, feed)
    loaded.save(file, targets=["plain"])
    loaded = smelt.load(file)
    for n, m in ((4, 4), (1, 4), (4, 1), (1, 1)):
        compare(proto, loaded, {**feed, "a": feed["a"][:n], "b": feed["b"][:m]})


def test_no_second_program_where_nothing_can_broadcast(tmp_path: Path):
    """Equal symbols, and a table that is cut to the length of an input: that is an upper bound, not a broadcast."""
    zero, one = (numpy_helper.from_array(np.array([n]), f"n{n}") for n in (0, 1))
    nodes = [
        node("Shape", ["a"], ["shape"]),
        node("Gather", ["shape", "n0"], ["length"]),
        node("Slice", ["w", "n0", "length", "n0"], ["rows"]),
        node("Add", ["a", "rows"], ["s"]),
        node("Add", ["s", "b"], ["y"]),
    ]
    proto = model(tmp_path / "m.onnx", *nodes, inputs=[port(name, FLOAT, ["N", 5]) for name in "ab"])
    proto.graph.initializer.extend([zero, one])
    onnx.save(proto, tmp_path / "m.onnx")
    smelt.load(tmp_path / "m.onnx", engine="native").save(tmp_path / "m.smelt", targets=["plain"])
    assert len(read_stored(tmp_path / "m.smelt").programs) == 1


def test_a_bundle_says_what_it_cannot_broadcast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    """Where no program can broadcast at run time, the bundle holds the one that assumes equal sizes, with a warning."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedError("a shape that no program can have")

    inputs = [port("a", FLOAT, ["N", 4]), port("b", FLOAT, ["M", 4])]
    model(tmp_path / "m.onnx", node("Add", ["a", "b"], ["y"]), inputs=inputs)
    loaded = smelt.load(tmp_path / "m.onnx", engine="native")
    monkeypatch.setattr("smelt.read.onnx.read", refuse)
    with caplog.at_level(logging.WARNING, logger="smelt"):
        loaded.save(tmp_path / "m.smelt", targets=["plain"])
    assert "must be equal" in caplog.text
    assert "a shape that no program can have" in caplog.text
    with pytest.raises(SizeError, match="expected M == N"):
        smelt.load(tmp_path / "m.smelt").run({"a": np.ones((1, 4), np.float32), "b": np.ones((2, 4), np.float32)})
