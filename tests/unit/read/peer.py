"""One ONNX model in two hands: ours and onnxruntime's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from smelt.dtype import Array
from smelt.engine.reference import ReferenceEngine
from smelt.ir.core import Attrs
from smelt.read.onnx import read
from tests import onnx_oracle

VERSIONS = {"": 20, "ai.onnx.ml": 3}


def element(array: Array) -> int:
    if array.dtype.kind in "OU":
        return int(onnx.TensorProto.STRING)
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def node_model(
    op: str,
    inputs: Sequence[Array | None],
    outputs: Sequence[int],
    attributes: Mapping[str, Any] | None = None,
    domain: str = "",
    versions: Mapping[str, int] | None = None,
    symbolic: Sequence[Sequence[int]] = (),
    constant: Sequence[int] = (),
) -> Any:
    """A model of one node. `symbolic` has the open axes of each input, `constant` the inputs that are initialisers."""
    names = [f"x{i}" if array is not None else "" for i, array in enumerate(inputs)]
    node = helper.make_node(
        op, names, [f"y{i}" for i in range(len(outputs))], "node", domain=domain, **(attributes or {})
    )
    ports, weights = [], []
    for i, array in enumerate(inputs):
        if array is None:
            continue
        if i in constant:
            weights.append(onnx.numpy_helper.from_array(array, names[i]))
            continue
        axes = symbolic[i] if i < len(symbolic) else ()
        sizes = [f"n{axis}" if axis in axes else size for axis, size in enumerate(array.shape)]
        ports.append(helper.make_tensor_value_info(names[i], element(array), sizes))
    results = [
        helper.make_value_info(f"y{i}", helper.make_tensor_type_proto(kind, None)) for i, kind in enumerate(outputs)
    ]
    graph = helper.make_graph([node], "graph", ports, results, weights)
    opsets = [helper.make_opsetid(name, version) for name, version in {**VERSIONS, **(versions or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def theirs(model: Any, inputs: Mapping[str, Array]) -> list[Any]:
    """What onnxruntime gives."""
    onnxruntime = pytest.importorskip("onnxruntime")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnx_oracle.session(model, options)
    found: list[Any] = session.run(None, dict(inputs))
    return found


def ours(
    model: Any, inputs: Mapping[str, Array], folder: Path, static: Mapping[str, Any] | None = None
) -> tuple[list[Any], list[Attrs]]:
    """What the reference engine gives, and the attributes of its results. Labels are strings again."""
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    program, weights = read(path, static or {})
    executable = ReferenceEngine().compile(program).prepare(weights)
    found: list[Any] = list(executable(*(inputs[port.name] for port in executable.signature.inputs)))
    notes = list(program.main.result_attrs)
    for i, note in enumerate(notes):
        if "smelt.labels" in note:
            found[i] = np.array(note["smelt.labels"], object)[found[i]]
    return found, notes


def same(found: Sequence[Any], expected: Sequence[Any], rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Types, shapes and values agree."""
    assert len(found) == len(expected)
    for ours_, theirs_ in zip(found, expected, strict=True):
        want = np.asarray(theirs_)
        assert ours_.shape == want.shape
        if want.dtype.kind in "OU":
            np.testing.assert_array_equal(ours_.astype(str), want.astype(str))
            continue
        assert ours_.dtype == want.dtype
        np.testing.assert_allclose(ours_, want, rtol=rtol, atol=atol)
