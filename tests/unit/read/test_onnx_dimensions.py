"""Names of dynamic dimensions: any text is one, two of the same name are the same size, and messages show it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

import smelt
from smelt.device import cpu
from smelt.dim import symbol
from smelt.dtype import Array
from smelt.errors import ShapeError
from smelt.ir.verify import verify
from smelt.model import load
from smelt.passes import pipeline
from smelt.read.onnx import read
from smelt.read.onnx.model import dimension_name
from tests.onnx_nodes import Node, on_onnxruntime

NAMES = ["a-b", "s0+1", "batch/2", "N M", "1x", "max(a, b)", "é", 'a"b', "x\ty", "l" * 400, "-1"]
NODES = [
    Node("Softmax", "x:f32[N,3,N]", domain=""),
    Node("Conv", "x:f32[N,3,8,N] w:f32[4,3,3,3]", domain="", weights="w"),
    Node("GatherND", "x:f32[N,3] i:i64[2,1]", domain=""),
]


def named(node: Node, name: str, folder: Path, arrays: dict[str, Array]) -> Path:
    model = node.model(arrays)
    for port in model.graph.input:
        for dim in port.type.tensor_type.shape.dim:
            if dim.dim_param:
                dim.dim_param = name
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:12])
@pytest.mark.parametrize("node", NODES, ids=lambda node: node.op)
def test_any_text_names_a_dimension(node: Node, name: str, tmp_path: Path, seed: int) -> None:
    arrays = node.arrays(np.random.default_rng(seed), {"N": 5})
    arrays |= {"i": np.array([[-5], [4]])} if "i" in arrays else {}
    path = named(node, name, tmp_path, arrays)
    program, _ = read(path)
    for step in pipeline.passes(target=cpu.target("avx2")):  # as for the native engine
        program = step.run(program)
        verify(program)
    model = smelt.load(path, engine="reference")
    inputs = {port.name: arrays[port.name] for port in model.signature.inputs}
    (want,) = on_onnxruntime(node.model(arrays), arrays)
    np.testing.assert_allclose(model.run(inputs)["out0"], want, rtol=1e-4, atol=1e-5)


def test_two_of_one_name_are_one_size(tmp_path: Path) -> None:
    path = named(Node("Softmax", "x:f32[N,3,N]", domain=""), "s0 + 1", tmp_path, {})
    program, _ = read(path)
    first, _, last = program.main.args[0].shape.sizes
    assert first == last == symbol("s0 + 1")
    model = smelt.load(path, engine="reference")
    with pytest.raises(ShapeError, match=r"s0 \+ 1"):
        model(np.zeros((2, 3, 4), np.float32))


def test_names_that_no_symbol_can_have() -> None:
    long = [dimension_name("l" * 400), dimension_name("l" * 401), dimension_name("a\tb"), dimension_name("a\nb")]
    assert len({*long}) == 4
    assert all(name is not None and name.isprintable() and len(name) <= 128 for name in long)
    assert dimension_name("l" * 400) == long[0]
    assert [dimension_name(text) for text in ("", "  ", " n ", "?")] == [None, None, "n", None]


def test_what_sizes_alone_decide_is_compiled_for_each_shape(tmp_path: Path) -> None:
    """An axis that a dimension gives, and an operator that takes fixed sizes only."""
    axis = [
        helper.make_node("Shape", ["x"], ["s"], start=0, end=1),
        helper.make_node("Mod", ["s", "two"], ["rest"]),
        helper.make_node("Squeeze", ["rest"], ["axis"]),
        helper.make_node("CumSum", ["x", "axis"], ["y"]),
    ]
    two = numpy_helper.from_array(np.array([2], np.int64), "two")
    path = tmp_path / "m.onnx"
    cases: list[tuple[list[Any], list[str | int | None], list[Any], Callable[[Array], Any]]] = [
        (axis, ["N", 3], [two], lambda x: np.cumsum(x, len(x) % 2)),
        ([helper.make_node("Det", ["x"], ["y"])], ["N", "N"], [], np.linalg.det),
    ]
    for nodes, sizes, weights, want in cases:
        ports = [helper.make_tensor_value_info("x", TensorProto.FLOAT, sizes)]
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, sizes if weights else [])
        graph = helper.make_graph(nodes, "g", ports, [result], weights)
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
        model = load(path, engine="reference")
        for n in (2, 3):
            x = np.arange(n * 3, dtype=np.float32).reshape(n, 3)[:, : n if "N" in sizes[1:] else 3] % 5
            np.testing.assert_allclose(model(x)["y"], want(x), rtol=1e-5, atol=1e-5)
