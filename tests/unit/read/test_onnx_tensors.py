"""Tensors in ONNX files: every type in every field that may hold it, sparse tensors, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import smelt
from smelt.dtype import Array
from smelt.errors import FileError, ParseError, SmeltError, UnsupportedError

FLOATS = ("FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E5M2", "COMPLEX64", "COMPLEX128")
INTEGERS = ("INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "BOOL")
TYPES = {name: getattr(TensorProto, name) for name in (*FLOATS, *INTEGERS)}


def model(tensor: Any, sparse: Any = None) -> onnx.ModelProto:
    """A model that returns an initialiser."""
    kind = tensor.data_type if sparse is None else sparse.values.data_type
    dims = list(tensor.dims if sparse is None else sparse.dims)
    node = helper.make_node("Identity", ["w"], ["y"])
    graph = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", kind, dims)])
    if sparse is None:
        graph.initializer.append(tensor)
    else:
        graph.sparse_initializer.append(sparse)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def read(proto: onnx.ModelProto, folder: Path) -> Array:
    (folder / "m.onnx").write_bytes(proto.SerializeToString())
    return np.asarray(smelt.load(folder / "m.onnx", engine="reference").run({})["y"])


@pytest.mark.parametrize("raw", [True, False], ids=["raw", "fields"])
@pytest.mark.parametrize("name", TYPES)
def test_every_type_in_every_field(name: str, raw: bool, tmp_path: Path) -> None:
    numbers = np.array([[0, 1, 2], [3, 5, 7]]) % (2 if name == "BOOL" else 8)
    kind = helper.tensor_dtype_to_np_dtype(TYPES[name])
    array = numbers.astype(kind) * (1 + 2j if "COMPLEX" in name else 1)
    values: Any = array.astype(np.complex128 if "COMPLEX" in name else np.float64).reshape(-1).tolist()
    typed = helper.make_tensor("w", TYPES[name], [2, 3], values)
    given = numpy_helper.from_array(array.astype(kind), "w") if raw else typed
    found = read(model(given), tmp_path)
    assert found.shape == (2, 3)
    np.testing.assert_array_equal(found.astype(np.complex128), array.astype(np.complex128))


PACKED = [name for name in ("INT2", "UINT2", "INT4", "UINT4", "FLOAT4E2M1") if hasattr(TensorProto, name)]


@pytest.mark.parametrize("name", PACKED)
def test_every_code_in_every_place_of_a_byte(name: str, tmp_path: Path) -> None:
    kind = getattr(TensorProto, name)
    count = 256 * (4 if name.endswith("2") else 2)
    for missing in (0, 1):  # the last byte may be filled in part
        given = TensorProto(name="w", data_type=kind, dims=[count - missing], raw_data=bytes(range(256)))
        want = numpy_helper.to_array(given)
        np.testing.assert_array_equal(read(model(given), tmp_path).astype(np.float64), want.astype(np.float64))


Change = Callable[[Any], Any]
WRONG: dict[str, tuple[Change, type[SmeltError], str]] = {
    "raw data one byte short": (lambda t: setattr(t, "raw_data", t.raw_data[:-1]), FileError, "bytes"),
    "raw data one byte long": (lambda t: setattr(t, "raw_data", t.raw_data + b"\0"), FileError, "bytes"),
    "a size too many": (lambda t: t.dims.append(2), FileError, "bytes"),
    "a negative size": (lambda t: t.dims.__setitem__(0, -2), ParseError, "impossible sizes"),
    "sizes past memory": (lambda t: t.dims.extend([1 << 40, 1 << 40]), ParseError, "impossible sizes"),
    "two values": (lambda t: t.float_data.append(1.0), ParseError, "has two values"),
    "no value": (lambda t: t.ClearField("raw_data"), FileError, "elements"),
    "another field": (
        lambda t: (t.ClearField("raw_data"), t.int64_data.extend(range(6))),
        ParseError,
        "has int64_data",
    ),
    "segments": (lambda t: t.segment.CopyFrom(TensorProto.Segment(begin=0, end=3)), UnsupportedError, "segments"),
    "an unknown type": (lambda t: setattr(t, "data_type", 99), SmeltError, "99"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused(name: str, tmp_path: Path) -> None:
    change, kind, message = WRONG[name]
    proto = model(numpy_helper.from_array(np.arange(6, dtype=np.float32).reshape(2, 3), "w"))
    change(proto.graph.initializer[0])
    with pytest.raises(kind, match=message):
        read(proto, tmp_path)


@pytest.mark.parametrize(
    ("count", "field"), [(5, "float_data"), (7, "float_data"), (5, "int32_data"), (7, "int32_data")]
)
def test_fields_of_another_length(count: int, field: str, tmp_path: Path) -> None:
    kind = TensorProto.FLOAT if field == "float_data" else TensorProto.INT4
    tensor = TensorProto(name="w", dims=[2, 3] if kind == TensorProto.FLOAT else [12], data_type=kind)
    getattr(tensor, field).extend([1] * count)
    with pytest.raises(FileError, match=r"expected 6 (elements|bytes)|bytes"):
        read(model(tensor), tmp_path)


def test_strings(tmp_path: Path) -> None:
    tensor = TensorProto(name="w", dims=[2], data_type=TensorProto.STRING, string_data=[b"a", "ä".encode()])
    assert read(model(tensor), tmp_path).tolist() == ["a", "ä"]
    tensor.string_data.append(b"c")
    with pytest.raises(FileError, match="strings"):
        read(model(tensor), tmp_path)
    del tensor.string_data[:]
    tensor.string_data.extend([b"a", b"\xff"])
    with pytest.raises(ParseError, match="UTF-8"):
        read(model(tensor), tmp_path)


def sparse(values: list[float], indices: list[Any], dims: list[int]) -> Any:
    numbers = numpy_helper.from_array(np.array(values, np.float32), "w")
    return helper.make_sparse_tensor(numbers, numpy_helper.from_array(np.array(indices, np.int64), "i"), dims)


@pytest.mark.parametrize(
    ("values", "indices", "want"),
    [([5, 6], [0, 5], [[5, 0, 0], [0, 0, 6]]), ([5, 6], [[0, 1], [1, 2]], [[0, 5, 0], [0, 0, 6]]),
     ([], [], [[0, 0, 0], [0, 0, 0]])],
)  # fmt: skip
def test_sparse_tensors(values: list[float], indices: list[Any], want: list[Any], tmp_path: Path) -> None:
    assert read(model(None, sparse(values, indices, [2, 3])), tmp_path).tolist() == want


@pytest.mark.parametrize(
    ("values", "indices", "dims", "message"),
    [([5], [6], [2, 3], "do not fit"), ([5], [-1], [2, 3], "do not fit"), ([5, 6], [1], [2, 3], "do not fit"),
     ([5], [[2, 0]], [2, 3], "do not fit"), ([5], [[0, -1]], [2, 3], "do not fit"), ([5], [[0]], [2, 3], "do not fit"),
     ([5], [0], [2, -3], "impossible sizes"), ([5], [0], [1 << 20, 1 << 20], "impossible sizes")],
)  # fmt: skip
def test_sparse_tensors_that_do_not_fit(
    values: list[float], indices: list[Any], dims: list[int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ParseError, match=message):
        read(model(None, sparse(values, indices, dims)), tmp_path)
