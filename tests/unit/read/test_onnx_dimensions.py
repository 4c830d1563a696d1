"""Names of dynamic dimensions: any text is one, two of the same name are the same size, and messages show it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.device import cpu
from smelt.dim import symbol
from smelt.dtype import Array
from smelt.errors import ShapeError
from smelt.ir.verify import verify
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
