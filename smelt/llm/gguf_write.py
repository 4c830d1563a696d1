"""GGUF files: `rewrite` takes the metadata of another one byte by byte, with the file type and the version of
quantisation set; `write` takes them as Python's values. Called by `quantise`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array, DType
from smelt.errors import UnsupportedError
from smelt.files import write_atomically
from smelt.ir.blocks import Block
from smelt.read.gguf import ALIGNMENT, ELEMENTS, Gguf

_NUMBERS = {name: number for number, name in ELEMENTS.items()}
_U32, _I32, _F32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9  # GGUF's numbers of types
QUANTISATION = 2


@dataclass(frozen=True, slots=True)
class Tensor:
    """Sizes with the slowest axis first; `load` gives the bytes of its format."""

    name: str
    sizes: tuple[int, ...]
    format: Block | DType
    load: Callable[[], Array]

    @property
    def nbytes(self) -> int:
        count = int(np.prod(self.sizes, dtype=np.int64))
        if isinstance(self.format, Block):
            return count // self.format.length * self.format.bytes
        return count * self.format.numpy.itemsize

    @property
    def kind(self) -> int:
        if not isinstance(self.format, Block):
            return _NUMBERS[str(self.format)]
        if self.format.kind is None:
            raise UnsupportedError(f"{self.name}: GGUF has no such format", got=self.format.name)
        return self.format.kind


def rewrite(file: Gguf, target: Path, tensors: Sequence[Tensor], file_type: int) -> None:
    """Write a file again with other tensors."""
    pairs, count = _metadata(file, {"general.file_type": file_type, "general.quantization_version": QUANTISATION})
    _write(target, pairs, count, tensors, file.metadata.get("general.alignment", ALIGNMENT))


def write(target: Path, metadata: Mapping[str, Any], tensors: Sequence[Tensor], file_type: int) -> None:
    """Write a file."""
    numbers = {"general.file_type": file_type, "general.quantization_version": QUANTISATION}
    pairs = [_string(key) + _value(value) for key, value in {**metadata, **numbers}.items()]
    _write(target, b"".join(pairs), len(pairs), tensors, ALIGNMENT)


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _value(value: Any) -> bytes:
    """GGUF's number of a type, and the value."""
    match value:
        case str():
            return struct.pack("<I", _STRING) + _string(value)
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _U32, value)
        case float():
            return struct.pack("<If", _F32, value)
        case np.ndarray():
            kind, narrow = (_F32, "<f4") if value.dtype.kind == "f" else (_I32, "<i4")
            return struct.pack("<IIQ", _ARRAY, kind, len(value)) + value.astype(narrow).tobytes()
        case _:
            return struct.pack("<IIQ", _ARRAY, _STRING, len(value)) + b"".join(map(_string, value))


def _write(target: Path, pairs: bytes, count: int, tensors: Sequence[Tensor], alignment: int) -> None:
    """The file appears whole, or not at all."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), count), pairs]
    at = 0
    for tensor in tensors:
        name = tensor.name.encode()
        head += [struct.pack("<Q", len(name)), name, struct.pack("<I", len(tensor.sizes))]
        head += [struct.pack("<Q", size) for size in reversed(tensor.sizes)]
        head.append(struct.pack("<IQ", tensor.kind, at))
        at += -(-tensor.nbytes // alignment) * alignment

    begin = b"".join(head)

    def pieces() -> Iterator[bytes | memoryview]:
        yield begin + b"\0" * (-len(begin) % alignment)
        for tensor in tensors:
            yield np.ascontiguousarray(tensor.load()).reshape(-1).view(np.uint8).data
            yield b"\0" * (-tensor.nbytes % alignment)

    write_atomically(target, pieces())


def _metadata(file: Gguf, numbers: dict[str, int]) -> tuple[bytes, int]:
    """The bytes of all pairs, with these numbers set, and how many pairs there are."""
    raw, count = bytearray(file.raw_metadata), len(file.metadata)
    for name, number in numbers.items():
        key = struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", _U32)
        at = raw.find(key)
        if at >= 0 and type(file.metadata.get(name)) is int:
            raw[at + len(key) : at + len(key) + 4] = struct.pack("<I", number)
        elif name not in file.metadata:
            raw += key + struct.pack("<I", number)
            count += 1
    return bytes(raw), count
