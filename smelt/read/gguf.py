"""GGUF files (versions 2 and 3): `read` gives all metadata and lazy, mapped tensors.

Everything that a file claims is checked before it is used: counts against the bytes that are left, strings, nesting,
alignment, types, that tensors are inside the file and do not overlap. Block-quantised tensors (`ir.blocks`) are
`ui8[..., n, bytes]` in `Gguf.packed`, as in the file, and f32 in `Gguf.dense`, decoded on first access.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array, DType, dtype, f32, ui8
from smelt.errors import FileError, ParseError, UnsupportedError, advise
from smelt.ir.blocks import BY_KIND, Block, decode
from smelt.shape import Shape
from smelt.weights import MappedFile, Stored, Weights

VERSIONS = (2, 3)
ALIGNMENT = 32  # the default of `general.alignment`
MAX_ALIGNMENT = 1 << 20
MAX_KEY = 1 << 16  # bytes of a key or of a tensor's name
MAX_STRING = 1 << 27
MAX_ITEMS = 1 << 24  # strings and arrays in all metadata together
MAX_DEPTH = 4  # arrays within arrays
MAX_RANK = 8

_SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8"}
_STRING, _ARRAY, _BOOL = 8, 9, 7
ELEMENTS = {0: "f32", 1: "f16", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 30: "bf16"}  # GGML's numbers


@dataclass(frozen=True, slots=True)
class Gguf:
    """The contents of a file. `formats`: how each tensor is stored, a row of `ir.blocks` or an element type."""

    path: Path
    metadata: Mapping[str, Any]
    packed: Weights
    dense: Weights
    formats: Mapping[str, Block | DType]
    raw_metadata: memoryview  # all pairs, as in the file


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    sizes: tuple[int, ...]  # the slowest axis first, as NumPy has it
    format: Block | DType
    offset: int
    nbytes: int


@advise("download or copy the file again: it may be damaged", ParseError, FileError)
def read(path: str | Path) -> Gguf:
    """The metadata and tensors of a file; no tensor is read."""
    file = MappedFile(path)
    cursor = _Cursor(file)
    if cursor.take(4, "the magic") != b"GGUF":
        raise ParseError(f"{path}: not a GGUF file", expected="GGUF", got=bytes(file.bytes[:4]))
    version = cursor.number("<I", "the version")
    if version not in VERSIONS:
        swapped = version >> 16 and not version & 0xFFFF
        got = f"{version}, a big-endian file" if swapped else version
        raise UnsupportedError(f"{path}: unknown version of GGUF", expected=", ".join(map(str, VERSIONS)), got=got)
    tensors, pairs = cursor.number("<Q", "a count"), cursor.number("<Q", "a count")
    cursor.check_room(pairs, 13, "metadata")
    first = cursor.at
    metadata = _metadata(cursor, pairs)
    raw = file.bytes[first : cursor.at]
    alignment = metadata.get("general.alignment", ALIGNMENT)
    if type(alignment) is not int or not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise ParseError(f"{path}: the alignment is no power of two", expected=f"1 to {MAX_ALIGNMENT}", got=alignment)
    if metadata.get("split.count", 0) not in (0, 1):
        raise UnsupportedError(
            f"{path}: one of several files", got=f"{metadata['split.count']} parts", remedy="merge them (gguf-split)"
        )
    cursor.check_room(tensors, 24, "tensors")
    found = [_tensor(cursor) for _ in range(tensors)]
    start = -(-cursor.at // alignment) * alignment
    _check_places(path, found, start, file.size, alignment)
    return _gguf(file, metadata, found, start, raw)


def _gguf(file: MappedFile, metadata: dict[str, Any], tensors: list[_Tensor], start: int, raw: memoryview) -> Gguf:
    packed: dict[str, Stored] = {}
    dense: dict[str, Stored] = {}
    for tensor in tensors:
        element, sizes, offset = _layout(tensor), _packed_sizes(tensor), start + tensor.offset
        load = partial(file.array, offset, element, sizes, f"tensor {tensor.name!r}")
        packed[tensor.name] = dense[tensor.name] = Stored(Shape.of(element, sizes), load, (file, offset))
        if isinstance(tensor.format, Block):
            dense[tensor.name] = Stored(Shape.of(f32, tensor.sizes), partial(_decode_later, tensor.format, load))
    formats = {tensor.name: tensor.format for tensor in tensors}
    text = {key: value for key, value in metadata.items() if isinstance(value, str)}
    source = str(file.path)
    return Gguf(file.path, metadata, Weights(packed, text, source), Weights(dense, text, source), formats, raw)


def _decode_later(row: Block, load: Any) -> Array:
    return decode(row, load())


def _layout(tensor: _Tensor) -> DType:
    return ui8 if isinstance(tensor.format, Block) else tensor.format


def _packed_sizes(tensor: _Tensor) -> tuple[int, ...]:
    if not isinstance(tensor.format, Block):
        return tensor.sizes
    return (*tensor.sizes[:-1], tensor.sizes[-1] // tensor.format.length, tensor.format.bytes)


# ---- the header ----


class _Cursor:
    """Reads a file's header from its start; nothing behind its end."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.at = 0
        self.items = 0

    def fail(self, message: str, **details: Any) -> ParseError:
        return ParseError(f"{self.file.path}: {message}", where=f"byte {self.at}", **details)

    def take(self, count: int, what: str) -> bytes:
        return bytes(self.view(count, what))

    def view(self, count: int, what: str) -> memoryview:
        if count > self.file.size - self.at:
            raise self.fail(f"the file ends within {what}", expected=f"{count} bytes", got=self.file.size - self.at)
        self.at += count
        return self.file.bytes[self.at - count : self.at]

    def number(self, form: str, what: str) -> int:
        (value,) = struct.unpack(form, self.view(struct.calcsize(form), what))
        return int(value)

    def check_room(self, count: int, least: int, what: str) -> None:
        """Require room for `count` entries of at least `size` bytes each."""
        if count > (self.file.size - self.at) // least:
            raise self.fail(f"more {what} than fit into the file", got=count)

    def string(self, limit: int, what: str) -> str:
        length = self.number("<Q", f"the length of {what}")
        if length > limit:
            raise self.fail(f"{what} is too long", expected=f"at most {limit} bytes", got=length)
        try:
            return str(self.view(length, what), "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"{what} is not UTF-8", got=error) from None

    def count_items(self, count: int) -> None:
        self.items += count
        if self.items > MAX_ITEMS:
            raise self.fail("too many strings and arrays", expected=f"at most {MAX_ITEMS}", got=self.items)


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for _ in range(count):
        key = cursor.string(MAX_KEY, "a key")
        if not key or key in found:
            raise cursor.fail(f"the key {key!r} appears twice" if key else "a key without a name")
        found[key] = _value(cursor, cursor.number("<I", "a type"), key, 0)
    return found


def _value(cursor: _Cursor, kind: int, key: str, depth: int) -> Any:
    """Numbers as Python's, arrays of numbers as NumPy's, arrays of others as lists."""
    if kind in _SCALARS:
        return _array(cursor, kind, 1, key)[0].item()
    if kind == _STRING:
        return cursor.string(MAX_STRING, f"the value of {key!r}")
    if kind != _ARRAY:
        raise cursor.fail(f"{key!r} has an unknown type", expected="0 to 12", got=kind)
    if depth >= MAX_DEPTH:
        raise cursor.fail(f"{key!r}: arrays within arrays", expected=f"at most {MAX_DEPTH} deep", got=depth + 1)
    inner, count = cursor.number("<I", "a type"), cursor.number("<Q", "a count")
    if inner in _SCALARS:
        return _array(cursor, inner, count, key)
    cursor.check_room(count, 8 if inner == _STRING else 12, f"elements of {key!r}")
    cursor.count_items(count)
    return [_value(cursor, inner, key, depth + 1) for _ in range(count)]


def _array(cursor: _Cursor, kind: int, count: int, key: str) -> Array:
    element = np.dtype(_SCALARS[kind])
    cursor.check_room(count, element.itemsize, f"elements of {key!r}")
    data = cursor.view(count * element.itemsize, f"the value of {key!r}")
    if kind == _BOOL:
        numbers = np.frombuffer(data, np.uint8)
        if (numbers > 1).any():
            raise cursor.fail(f"{key!r} is no boolean", expected="0 or 1", got=int(numbers.max()))
    return np.frombuffer(data, element)


def _tensor(cursor: _Cursor) -> _Tensor:
    name = cursor.string(MAX_KEY, "the name of a tensor")
    rank = cursor.number("<I", "a rank")
    if rank > MAX_RANK:
        raise cursor.fail(f"tensor {name!r} has too many axes", expected=f"at most {MAX_RANK}", got=rank)
    sizes = tuple(cursor.number("<Q", "a size") for _ in range(rank))[::-1]
    kind, offset = cursor.number("<I", "a type"), cursor.number("<Q", "an offset")
    if math.prod(max(size, 1) for size in sizes) >> 56:
        raise cursor.fail(f"tensor {name!r} is too large", got=sizes)
    format: Block | DType
    if kind in ELEMENTS:
        format = dtype(ELEMENTS[kind])
        return _Tensor(name, sizes, format, offset, math.prod(sizes) * format.numpy.itemsize)
    if kind not in BY_KIND:
        known = ", ".join([*ELEMENTS.values(), *(row.name for row in BY_KIND.values())])
        raise UnsupportedError(
            f"{cursor.file.path}: tensor {name!r} has an unknown type", expected=known, got=f"GGML's type {kind}"
        )
    format = BY_KIND[kind]
    if not sizes or sizes[-1] % format.length:
        raise cursor.fail(
            f"tensor {name!r}: its rows are no whole blocks", expected=f"a multiple of {format.length}", got=sizes
        )
    return _Tensor(name, sizes, format, offset, math.prod(sizes) // format.length * format.bytes)


def _check_places(path: str | Path, tensors: list[_Tensor], start: int, size: int, alignment: int) -> None:
    """Check that tensors are inside the file, aligned and disjoint, with distinct names."""
    if len({tensor.name for tensor in tensors}) != len(tensors):
        raise ParseError(f"{path}: two tensors have the same name")
    at = 0
    for tensor in sorted(tensors, key=lambda tensor: (tensor.offset, tensor.nbytes)):
        if tensor.offset % alignment:
            raise ParseError(
                f"{path}: tensor {tensor.name!r} is not aligned", expected=f"at {alignment}", got=tensor.offset
            )
        if start + tensor.offset + tensor.nbytes > size:
            raise FileError(
                f"{path}: tensor {tensor.name!r} is outside of the file: it may be truncated",
                expected=f"{start + tensor.offset + tensor.nbytes} bytes",
                got=size,
            )
        if tensor.offset < at:
            raise ParseError(f"{path}: tensor {tensor.name!r} overlaps another", expected=f"at {at}", got=tensor.offset)
        at = tensor.offset + tensor.nbytes
