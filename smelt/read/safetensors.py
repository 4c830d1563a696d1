"""safetensors files: `read` gives lazy, mapped Weights; `write` puts arrays into one.

The header is checked as the format demands, before anything it claims is read or allocated: its length, its names, that
every tensor's bytes fit its type and shape, and that the tensors cover the rest of the file without gaps or overlaps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array, DType, dtype
from smelt.errors import FileError, ParseError, UnsupportedError, advise
from smelt.files import write_atomically
from smelt.shape import Shape
from smelt.weights import MAX_RANK, MappedFile, Stored, Weights

MAX_HEADER = 100_000_000  # bytes, the format's own limit
NAMES = {
    "BOOL": "i1",
    "U8": "ui8",
    "I8": "i8",
    "U16": "ui16",
    "I16": "i16",
    "U32": "ui32",
    "I32": "i32",
    "U64": "ui64",
    "I64": "i64",
    "F16": "f16",
    "BF16": "bf16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "f8E4M3FN",
    "F8_E5M2": "f8E5M2",
    "F8_E8M0": "f8E8M0FNU",
    "C64": "complex<f32>",
}
_BY_DTYPE = {smelt: theirs for theirs, smelt in NAMES.items()}


@advise("download or copy the file again: it may be damaged", ParseError, FileError)
def read(path: str | Path) -> Weights:
    """The tensors of a file, by name; nothing but the header is read."""
    file = MappedFile(path)
    header, start = _header(file)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise ParseError(f"{path}: the metadata is not text to text", got=metadata)
    spans: list[tuple[int, int, str]] = []
    stored: dict[str, Stored] = {}
    for name, entry in header.items():
        element, sizes, (begin, end) = _entry(path, name, entry)
        count = math.prod(sizes)
        if end - begin != count * element.numpy.itemsize:
            raise ParseError(
                f"{path}: tensor {name!r} has the wrong number of bytes",
                expected=f"{count * element.numpy.itemsize} for {element}{list(sizes)}",
                got=end - begin,
            )
        spans.append((begin, end, name))
        load = partial(file.array, start + begin, element, sizes, f"tensor {name!r}")
        stored[name] = Stored(Shape.of(element, sizes), load, (file, start + begin))
    _check_cover(path, spans, file.size - start)
    return Weights(stored, metadata, str(path))


def write(path: str | Path, arrays: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Arrays as a file, concatenated, each starting at a multiple of its own element size.

    It appears under its name only when it is complete.
    """
    order = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))  # larger elements first: all aligned
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name in order:
        element = dtype(arrays[name].dtype).name
        if element not in _BY_DTYPE:
            raise UnsupportedError(f"safetensors has no type for {name!r}", expected=", ".join(_BY_DTYPE), got=element)
        header[name] = {
            "dtype": _BY_DTYPE[element],
            "shape": list(arrays[name].shape),
            "data_offsets": [at, at + arrays[name].nbytes],
        }
        at += arrays[name].nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % 64)  # data that begins at a multiple of 64 can be shared with any device
    data = (np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8).data for name in order if arrays[name].size)
    write_atomically(path, chain([struct.pack("<Q", len(text)) + text], data))


def _header(file: MappedFile) -> tuple[dict[str, Any], int]:
    path = file.path
    if file.size < 8:
        raise ParseError(f"{path}: too short for a safetensors file", expected="at least 8 bytes", got=file.size)
    (length,) = struct.unpack("<Q", bytes(file.bytes[:8]))
    if length > MAX_HEADER or 8 + length > file.size:
        raise ParseError(f"{path}: the header does not fit", expected=f"at most {file.size - 8} bytes", got=length)
    raw = bytes(file.bytes[8 : 8 + length])
    if not raw.startswith(b"{"):
        raise ParseError(f"{path}: the header must start with '{{'", got=raw[:20])
    try:
        header = json.loads(raw, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ParseError(f"{path}: the header is not JSON", got=error) from None
    return header, 8 + length


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name appears twice")
    return found


def _entry(path: str | Path, name: str, entry: Any) -> tuple[DType, tuple[int, ...], tuple[int, int]]:
    wanted = {"dtype", "shape", "data_offsets"}
    if not isinstance(entry, dict) or set(entry) != wanted:
        raise ParseError(f"{path}: tensor {name!r} is not described", expected=", ".join(sorted(wanted)), got=entry)
    element = NAMES.get(entry["dtype"]) if isinstance(entry["dtype"], str) else None
    if element is None:
        known = ", ".join(NAMES)
        raise UnsupportedError(f"{path}: tensor {name!r} has an unknown type", expected=known, got=entry["dtype"])
    sizes, offsets = entry["shape"], entry["data_offsets"]
    if isinstance(sizes, list) and len(sizes) > MAX_RANK:
        raise UnsupportedError(
            f"{path}: tensor {name!r} has too many axes", expected=f"at most {MAX_RANK}", got=len(sizes)
        )
    if not _naturals(sizes) or not _naturals(offsets) or len(offsets) != 2 or math.prod(max(n, 1) for n in sizes) >> 56:
        raise ParseError(f"{path}: tensor {name!r} has a wrong shape or place", got=entry)
    return dtype(element), tuple(sizes), (offsets[0], offsets[1])


def _naturals(values: Any) -> bool:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 1 << 63 for v in values)


def _check_cover(path: str | Path, spans: list[tuple[int, int, str]], size: int) -> None:
    """Check that tensors fill the data section without gaps or overlaps."""
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            what = "overlaps the one before" if begin < at else "leaves a gap before it"
            raise ParseError(f"{path}: tensor {name!r} {what}", expected=f"it at {at}", got=begin)
        at = end
    if at != size:
        raise ParseError(f"{path}: the tensors do not fill the file", expected=f"{size} bytes", got=at)
