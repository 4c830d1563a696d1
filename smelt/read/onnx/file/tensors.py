"""ONNX tensors as arrays: element types, typed data fields, payloads in the mapped file, external files.

`TensorReader.open_tensor(proto)` returns a TensorProto as a lazy tensor: its shape, and a function that reads its data.
`read.onnx.graph` calls it for initialisers and tensor attributes.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array, DType, dtype
from smelt.errors import FileError, ParseError, UnsupportedError
from smelt.read.onnx.file.wire import Payload
from smelt.shape import Shape
from smelt.weights import MAX_RANK, MappedFile, Stored

STRING = 8
TYPES = {
    1: "f32", 2: "ui8", 3: "i8", 4: "ui16", 5: "i16", 6: "i32", 7: "i64", 9: "i1", 10: "f16", 11: "f64", 12: "ui32",
    13: "ui64", 14: "complex<f32>", 15: "complex<f64>", 16: "bf16", 17: "f8E4M3FN", 18: "f8E4M3FNUZ", 19: "f8E5M2",
    20: "f8E5M2FNUZ", 21: "ui4", 22: "i4", 23: "f4E2M1FN", 24: "f8E8M0FNU", 25: "ui2", 26: "i2",
}  # fmt: skip
_NUMBERS = {name: number for number, name in TYPES.items()}
_MAX_ELEMENTS = 1 << 48
_FLAT_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data")


def element_type(number: int, where: object) -> DType:
    """The element type that TensorProto.DataType calls `number`."""
    name = TYPES.get(number)
    if name is None:
        what = "strings" if number == STRING else f"element type {number}"
        raise UnsupportedError(f"tensors of {what} have no place in a program", where=where)
    return dtype(name)


def element_number(element: DType) -> int:
    """The number that TensorProto.DataType gives an element type."""
    return _NUMBERS[element.name]


class TensorReader:
    """Reads the tensors of one model file."""

    def __init__(self, file: MappedFile, payloads: dict[str, Payload]) -> None:
        self.file = file
        self.payloads = payloads
        self._external: dict[str, MappedFile] = {}

    def open_tensor(self, proto: Any) -> Stored:
        """A tensor that is not text."""
        what = f"tensor {proto.name!r}"
        element = element_type(proto.data_type, f"{self.file.path} ({proto.name})")
        sizes = self._sizes(proto, what)
        count = _count(sizes)
        shape = Shape.of(element, sizes)
        if proto.HasField("segment"):
            raise UnsupportedError(f"{self.file.path}: {what} is stored in segments")
        if proto.data_location == 1:
            file, offset, length = self._external_place(proto, what)
            return self._map_tensor(file, offset, length, shape, count, what)
        payload = self.payloads.get(proto.doc_string)
        if payload is not None:
            if any(len(getattr(proto, name)) for name in (*_FLAT_FIELDS, "raw_data")):
                raise ParseError(f"{self.file.path}: {what} has two values")
            if payload.field == "raw_data":
                return self._map_tensor(self.file, payload.offset, payload.length, shape, count, what)
            return self._typed_payload(payload, shape, count, what)
        return self._small(proto, shape, count, what)

    def dense(self, sparse: Any) -> Array:
        """A sparse tensor, spread out."""
        values = self.array(sparse.values).reshape(-1)
        indices = self.array(sparse.indices)
        sizes = tuple(sparse.dims)
        if any(size < 0 for size in sizes) or np.prod(np.array(sizes, float)) > 1 << 28:
            raise ParseError("a sparse tensor has impossible sizes", got=list(sizes))
        result = np.zeros(sizes, values.dtype)
        limits = np.array(sizes if indices.ndim == 2 else result.size)
        fits = indices.ndim in (1, 2) and indices.shape == (values.size, *limits.shape)
        if not fits or (indices < 0).any() or (indices >= limits).any():
            raise ParseError("the indices of a sparse tensor do not fit", got=list(sizes))
        flat = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), sizes)
        result.reshape(-1)[flat] = values
        return result

    def text(self, proto: Any) -> Array:
        """A tensor of strings."""
        what = f"tensor {proto.name!r}"
        sizes = self._sizes(proto, what)
        if len(proto.string_data) != _count(sizes):
            raise self._wrong_length(what, _count(sizes), len(proto.string_data), "strings")
        out = np.empty(len(proto.string_data), object)
        out[:] = [_decode(item, what) for item in proto.string_data]
        return out.reshape(sizes)

    def array(self, proto: Any) -> Array:
        """The data of a tensor, read now."""
        if proto.data_type == STRING:
            return self.text(proto)
        return self.open_tensor(proto).load()

    # -- positions of payloads --

    def _map_tensor(self, file: MappedFile, offset: int, length: int, shape: Shape, count: int, what: str) -> Stored:
        element = shape.element
        needed = (count * element.bits + 7) // 8 if element.bits < 8 and element.kind != "bool" else None
        needed = count * element.numpy.itemsize if needed is None else needed
        if length != needed:
            raise self._wrong_length(what, needed, length, "bytes")
        if offset < 0 or offset + length > file.size:
            raise FileError(
                f"{file.path}: {what} is outside the file",
                expected=f"at most {file.size} bytes",
                got=f"{length} bytes at {offset}",
            )
        sizes = shape.numbers()
        if element.bits < 8 and element.kind != "bool":
            return Stored(shape, lambda: _unpack(file.array(offset, dtype("ui8"), (length,), what), element, sizes))
        if element.kind == "bool":
            return Stored(shape, lambda: file.array(offset, dtype("ui8"), sizes, what) != 0)
        return Stored(shape, lambda: file.array(offset, element, sizes, what), (file, offset))

    def _typed_payload(self, payload: Payload, shape: Shape, count: int, what: str) -> Stored:
        """Packed `float_data` or `double_data` in the file."""
        part = dtype("f32" if payload.field == "float_data" else "f64")
        element = shape.element
        if element.part != part:
            raise ParseError(f"{self.file.path}: {what} of {element} has {payload.field}")
        needed = count * element.numpy.itemsize
        if payload.length != needed:
            raise self._wrong_length(what, needed, payload.length, "bytes")
        sizes = shape.numbers()
        return Stored(shape, lambda: self.file.array(payload.offset, element, sizes, what), (self.file, payload.offset))

    def _small(self, proto: Any, shape: Shape, count: int, what: str) -> Stored:
        """Data that came with the message."""
        filled = [name for name in (*_FLAT_FIELDS, "raw_data") if len(getattr(proto, name))]
        if len(filled) > 1:
            raise ParseError(f"{self.file.path}: {what} has two values", got=", ".join(filled))
        sizes = shape.numbers()
        element = shape.element
        if not filled:
            if count:
                raise self._wrong_length(what, count, 0, "elements")
            return Stored(shape, lambda: np.empty(sizes, element.numpy))
        if filled[0] == "raw_data":
            array = self._from_raw(proto.raw_data, element, sizes, count, what)
        else:
            array = self._from_field(filled[0], getattr(proto, filled[0]), element, sizes, count, what)
        array.flags.writeable = False
        return Stored(shape, lambda: array)

    def _from_raw(self, raw: bytes, element: DType, sizes: tuple[int, ...], count: int, what: str) -> Array:
        packed = element.bits < 8 and element.kind != "bool"
        needed = (count * element.bits + 7) // 8 if packed else count * element.numpy.itemsize
        if len(raw) != needed:
            raise self._wrong_length(what, needed, len(raw), "bytes")
        if packed:
            return _unpack(np.frombuffer(raw, np.uint8), element, sizes)
        if element.kind == "bool":
            return np.not_equal(np.frombuffer(raw, np.uint8), 0).reshape(sizes)
        return np.frombuffer(raw, element.numpy).reshape(sizes).copy()

    def _from_field(
        self, field: str, values: Any, element: DType, sizes: tuple[int, ...], count: int, what: str
    ) -> Array:
        expected = _field_of(element)
        if field != expected:
            raise ParseError(f"{self.file.path}: {what} of {element} has {field}", expected=expected)
        if element.bits < 8 and element.kind != "bool":
            needed = (count * element.bits + 7) // 8
            raw = np.array(values, np.int64)
            if raw.size != needed:
                raise self._wrong_length(what, needed, raw.size, "bytes")
            return _unpack((raw & 0xFF).astype(np.uint8), element, sizes)
        if element.is_complex:
            flat: Array = np.array(values, element.part.numpy).view(element.numpy)
        elif element.is_float and field == "int32_data":  # bit patterns of 16 or 8 bits
            bits = np.uint16 if element.bits == 16 else np.uint8
            flat = (np.array(values, np.int64) & np.iinfo(bits).max).astype(bits).view(element.numpy)
        elif field == "int32_data":
            flat = np.array(values, np.int64).astype(element.numpy)
        else:
            flat = np.array(values, element.numpy if field != "uint64_data" else np.uint64).astype(element.numpy)
        if flat.size != count:
            raise self._wrong_length(what, count, flat.size, "elements")
        return flat.reshape(sizes)

    def _sizes(self, proto: Any, what: str) -> tuple[int, ...]:
        sizes = tuple(proto.dims)
        if any(size < 0 for size in sizes) or len(sizes) > MAX_RANK or _count(sizes) > _MAX_ELEMENTS:
            raise ParseError(f"{self.file.path}: {what} has impossible sizes", got=list(sizes)[:MAX_RANK])
        return sizes

    def _wrong_length(self, what: str, expected: int, got: int, unit: str) -> FileError:
        return FileError(
            f"{self.file.path}: {what} has the wrong length", expected=f"{expected} {unit}", got=f"{got} {unit}"
        )

    # -- external files --

    def _external_place(self, proto: Any, what: str) -> tuple[MappedFile, int, int]:
        entries = {entry.key: entry.value for entry in proto.external_data}
        location = entries.get("location", "")
        file = self._external.get(location)
        if file is None:
            file = self._external[location] = MappedFile(external_path(self.file.path, location, what))
        offset = _natural(entries.get("offset", "0"), f"{self.file.path}: the offset of {what}")
        length = entries.get("length")
        if length is not None:
            return file, offset, _natural(length, f"{self.file.path}: the length of {what}")
        element = element_type(proto.data_type, what)
        count = _count(tuple(proto.dims))
        packed = element.bits < 8 and element.kind != "bool"
        return file, offset, (count * element.bits + 7) // 8 if packed else count * element.numpy.itemsize


def external_path(model: Path, location: str, what: str) -> Path:
    """The file that holds a tensor: a plain one with one name, in the model's folder or below, not behind links."""
    folder = model.parent
    parts = Path(location).parts
    outside = not location or "\0" in location or "\\" in location or Path(location).is_absolute() or ".." in parts
    if outside:
        raise FileError(
            f"{model}: {what} is in a file outside the model's folder",
            expected="a path inside the folder",
            got=repr(location),
        )
    path = folder
    try:
        mode = os.stat(folder)
        for part in parts:  # none for "."
            path = path / part
            mode = os.lstat(path)
            if stat.S_ISLNK(mode.st_mode):
                raise FileError(f"{model}: {what} is behind a link", expected="a plain file", got=repr(location))
        if not stat.S_ISREG(mode.st_mode):
            raise FileError(f"{model}: {what} is not in a plain file", got=repr(location))
        if mode.st_nlink > 1:
            raise FileError(f"{model}: {what} is in a file with several names (hard links)", got=repr(location))
    except OSError as error:
        raise FileError(f"{model}: {what} is in a file that cannot be read", got=error) from error
    return path


def _natural(text: str, what: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 19):
        raise ParseError(what, expected="a number that is not negative", got=repr(text[:40]))
    return int(text)


def _field_of(element: DType) -> str:
    if element.is_complex:
        return "float_data" if element.bits == 64 else "double_data"
    if element.is_float and element.bits >= 32:
        return "float_data" if element.bits == 32 else "double_data"
    if element.kind == "uint" and element.bits >= 32:
        return "uint64_data"
    return "int64_data" if element.name == "i64" else "int32_data"


def _count(sizes: tuple[int, ...]) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count


def _unpack(packed: Array, element: DType, sizes: tuple[int, ...]) -> Array:
    """Elements of 2 or 4 bits, the first in the lowest bits of a byte."""
    count = _count(sizes)
    each = 8 // element.bits
    shifts = np.arange(each, dtype=np.uint8) * element.bits
    codes = ((packed[:, None] >> shifts) & ((1 << element.bits) - 1)).reshape(-1)[:count]
    if element.is_float:
        return codes.astype(np.uint8).view(element.numpy).reshape(sizes)
    if element.kind == "int":
        signed = codes.astype(np.int8)
        half = 1 << (element.bits - 1)
        return np.where(signed >= half, signed - 2 * half, signed).astype(element.numpy).reshape(sizes)
    return codes.astype(element.numpy).reshape(sizes)


def _decode(item: bytes, what: str) -> str:
    try:
        return item.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{what} holds text that is not UTF-8") from error
