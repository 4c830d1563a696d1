"""Tensors of ONNX files: element types, typed fields, lifted payloads, external data; held against numpy_helper."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.read.onnx import read
from smelt.read.onnx.file.wire import INLINE_LIMIT, lift
from smelt.weights import MappedFile

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper

TYPES = [
    np.float32, np.float64, np.float16, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32,
    np.uint64, np.bool_, np.complex64, np.complex128, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e4m3fnuz, ml_dtypes.float8_e5m2, ml_dtypes.float8_e5m2fnuz, ml_dtypes.int4, ml_dtypes.uint4,
    ml_dtypes.float4_e2m1fn,
]  # fmt: skip


def model_with(*tensors: Any) -> Any:
    graph = helper.make_graph([], "g", [], [], list(tensors))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def sample(kind: Any, count: int) -> Any:
    values = np.arange(count) % 7
    return (values % 2 if kind is np.bool_ else values).astype(kind)


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: np.dtype(kind).name)
@pytest.mark.parametrize("count", [0, 1, 5, 3001])
def test_raw_data_of_every_type(tmp_path: Path, kind: Any, count: int):
    array = sample(kind, count)
    path = tmp_path / "m.onnx"
    onnx.save(model_with(numpy_helper.from_array(array, "w")), path)
    _, weights = read(path)
    found = weights["w"].numpy()
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)


FIELDS: list[tuple[int, str, Any, Any]] = [
    (onnx.TensorProto.FLOAT, "float_data", [1.5, -2.0, 3.0], np.array([1.5, -2, 3], np.float32)),
    (onnx.TensorProto.DOUBLE, "double_data", [1.5, -2.0], np.array([1.5, -2], np.float64)),
    (onnx.TensorProto.INT64, "int64_data", [-(2**63), 5], np.array([-(2**63), 5], np.int64)),
    (onnx.TensorProto.UINT64, "uint64_data", [2**64 - 1], np.array([2**64 - 1], np.uint64)),
    (onnx.TensorProto.UINT32, "uint64_data", [2**32 - 1], np.array([2**32 - 1], np.uint32)),
    (onnx.TensorProto.INT8, "int32_data", [-128, 127], np.array([-128, 127], np.int8)),
    (onnx.TensorProto.BOOL, "int32_data", [1, 0], np.array([1, 0], np.bool_)),
    (onnx.TensorProto.FLOAT16, "int32_data", [0x3C00, 0xC000], np.array([1, -2], np.float16)),
    (onnx.TensorProto.BFLOAT16, "int32_data", [0x3F80, 0xC000], np.array([1, -2], ml_dtypes.bfloat16)),
    (onnx.TensorProto.FLOAT8E4M3FN, "int32_data", [0x38, 0xC0], np.array([1, -2], ml_dtypes.float8_e4m3fn)),
    (onnx.TensorProto.COMPLEX64, "float_data", [1.0, 2.0, 3.0, -4.0], np.array([1 + 2j, 3 - 4j], np.complex64)),
    (onnx.TensorProto.INT4, "int32_data", [0x8F, 0x07], np.array([-1, -8, 7], ml_dtypes.int4)),
]


@pytest.mark.parametrize(("kind", "field", "data", "expected"), FIELDS, ids=lambda value: str(value)[:16])
def test_typed_fields(tmp_path: Path, kind: int, field: str, data: Any, expected: Any):
    tensor = onnx.TensorProto(name="w", data_type=kind, dims=expected.shape)
    getattr(tensor, field).extend(data)
    path = tmp_path / "m.onnx"
    onnx.save(model_with(tensor), path)
    found = read(path)[1]["w"].numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


def test_long_typed_fields_are_lifted_too(tmp_path: Path):
    values = np.arange(1000, dtype=np.float32)
    tensor = onnx.TensorProto(name="w", data_type=onnx.TensorProto.FLOAT, dims=[10, 100], float_data=values.tolist())
    path = tmp_path / "m.onnx"
    onnx.save(model_with(tensor), path)
    lifted = lift(MappedFile(path).bytes, str(path))
    assert [payload.field for payload in lifted.payloads.values()] == ["float_data"]
    np.testing.assert_array_equal(read(path)[1]["w"].numpy(), values.reshape(10, 100))


def test_what_the_parser_sees_is_small(tmp_path: Path):
    """Payloads in initialisers, in attributes and in subgraphs stay in the file; what is left parses to the same."""
    big = np.arange(4096, dtype=np.float32)
    inner = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(big + 1, "deep"))],
        "inner",
        [],
        [helper.make_empty_tensor_value_info("c")],
    )
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(big + 2, "attribute")),
        helper.make_node("If", ["p"], ["y"], then_branch=inner, else_branch=inner),
    ]
    ports = [helper.make_tensor_value_info("p", onnx.TensorProto.BOOL, [])]
    graph = helper.make_graph(nodes, "g", ports, [], [numpy_helper.from_array(big, "w")])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph), path)
    file = MappedFile(path)
    lifted = lift(file.bytes, str(path))
    assert len(lifted.message) < 2048 < file.size
    assert len(lifted.payloads) == 4
    proto = onnx.ModelProto.FromString(lifted.message)
    key = proto.graph.initializer[0].doc_string
    payload = lifted.payloads[key]
    np.testing.assert_array_equal(np.frombuffer(file.bytes, np.float32, 4096, payload.offset), big)
    assert payload.length == big.nbytes > INLINE_LIMIT


def test_external_data_is_mapped(tmp_path: Path):
    arrays = {"a": np.arange(6, dtype=np.float32), "b": np.arange(5000, dtype=np.float16).reshape(50, 100)}
    model = model_with(*(numpy_helper.from_array(array, name) for name, array in arrays.items()))
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    _, weights = read(path)
    for name, array in arrays.items():
        np.testing.assert_array_equal(weights[name].numpy(), array)
        assert not weights[name].owns


def test_reading_touches_no_weight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "m.onnx"
    onnx.save(model_with(numpy_helper.from_array(np.zeros((512, 512), np.float32), "w")), path)
    monkeypatch.setattr(MappedFile, "array", lambda *_: pytest.fail("a weight was loaded"))
    _, weights = read(path)
    assert str(weights.shape("w")) == "f32[512, 512]"
