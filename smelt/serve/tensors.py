"""Tensors of the Open Inference Protocol: datatype names, JSON lists and raw bytes ↔ NumPy arrays.

Binary tensors are little-endian and row-major; an element of BYTES is four bytes of length, then its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from smelt.client.wire import BYTES, NUMPY, split_strings
from smelt.device.numbers import read_numbers
from smelt.dtype import Array, DType, ElementType
from smelt.errors import ParseError
from smelt.serve.http import read_json
from smelt.serve.problems import RequestError, TooLargeError

_OF_ELEMENT = {
    "i1": "BOOL",
    **{f"ui{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"f{bits}": f"FP{bits}" for bits in (16, 32, 64)},
    "bf16": "BF16",
}
IN_PYTHON = ("BOOL", "UINT64", "FP64")  # what the reader in C does not have
_FLOATS = msgspec.json.Decoder(list[float])
_INTEGERS = msgspec.json.Decoder(list[int])
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


def datatype(element: ElementType, labelled: bool = False) -> str | None:
    """The protocol's name of an element type; None where it has none (complex, 4 bits, 8-bit floats)."""
    if labelled:
        return BYTES
    return _OF_ELEMENT.get(element.name) if isinstance(element, DType) else None


def check_shape(name: str, shape: Sequence[int], most: int) -> int:
    """The number of elements of a client's shape."""
    if len(shape) > 32 or any(
        not 0 <= size < 1 << 63 for size in shape
    ):  # Python does not print all products of others
        raise RequestError(
            f"{name}: no shape",
            expected="at most 32 sizes, none negative, of 63 bits",
            got=repr(list(shape)[:40])[:200],
        )
    count = prod(shape)
    if count > most:
        raise TooLargeError(f"{name}: too many elements", expected=f"at most {most}", got=count)
    return count


def from_bytes(name: str, kind: str, shape: Sequence[int], data: memoryview, most: int) -> Array:
    """An array over the bytes of a request; nothing is copied but strings."""
    count = check_shape(name, shape, most)
    if kind == BYTES:
        try:
            return split_strings(data, count).reshape(shape)
        except ParseError as error:
            raise RequestError(f"{name}: {error.message}", expected=error.expected, got=error.got) from None
    numpy = _numpy(name, kind)
    if len(data) != count * numpy.itemsize:
        raise RequestError(
            f"{name}: the binary data does not fit its shape",
            expected=f"{count * numpy.itemsize} bytes for {kind}{list(shape)}",
            got=f"{len(data)} bytes",
        )
    if numpy.kind == "b" and count and np.frombuffer(data, np.uint8).max() > 1:
        raise RequestError(f"{name}: a BOOL is 0 or 1", got="another byte")
    return np.frombuffer(data, numpy).reshape(shape)


def from_json(name: str, kind: str, shape: Sequence[int], data: bytes | memoryview, most: int) -> Array:
    """An array of a JSON list, flat or nested. Numbers must be exact: 1.5 is no INT32, 300 no UINT8."""
    read = read_tensor(name, kind, shape, bytes(data), most)
    if read is not None:
        return read
    count = check_shape(name, shape, most)
    if kind == BYTES:
        flat = _flatten(name, read_json(_ANYTHING, data, name))
        if not all(isinstance(each, str) for each in flat):
            raise RequestError(f"{name}: not only strings", expected="BYTES as JSON strings")
        made = np.array(flat, object) if flat else np.empty(0, object)
    else:
        made = _numbers(name, kind, _numpy(name, kind), bytes(data))
    if made.size != count:
        raise RequestError(f"{name}: the data does not fit its shape", expected=f"{count} elements", got=f"{made.size}")
    return made.reshape(shape)


def read_tensor(name: str, kind: str, shape: Sequence[int], data: bytes, most: int) -> Array | None:
    """The same in C; None where that cannot read it, or says that something is wrong."""
    numpy = NUMPY.get(kind)
    if numpy is None or kind in IN_PYTHON:
        return None
    made = read_numbers(data, check_shape(name, shape, most), numpy.kind in "iu")
    return None if made is None else narrow(name, kind, made, numpy).reshape(shape)


def _numbers(name: str, kind: str, numpy: np.dtype[Any], data: bytes) -> Array:
    """Elements of a JSON list, through Python's numbers. Flat lists go the quick way."""
    wide = np.dtype(np.float64) if numpy.kind in "fV" else np.dtype(object if kind == "UINT64" else np.int64)
    try:
        if numpy.kind in "fV":
            flat: list[Any] = _FLOATS.decode(data)
        elif kind == "BOOL":
            flat = _flatten(name, read_json(_ANYTHING, data, name))
            if not all(isinstance(each, bool) or each in (0, 1) for each in flat):
                raise RequestError(f"{name}: not only true and false", expected="BOOL")
            return np.array(flat, np.bool_)
        else:
            flat = _INTEGERS.decode(data)
    except msgspec.ValidationError:
        flat = _flatten(name, read_json(_ANYTHING, data, name))
        fits = (int, float) if numpy.kind in "fV" else int
        if not all(isinstance(each, fits) and not isinstance(each, bool) for each in flat):
            raise RequestError(f"{name}: the data is not {kind}", got=_first_wrong(flat, fits)) from None
    if numpy.kind in "fV":
        try:
            doubles = np.frombuffer(struct.pack(f"{len(flat)}d", *flat), np.float64)  # in a third of np.array's time
        except (OverflowError, struct.error):  # an integer beyond the doubles
            raise RequestError(f"{name}: a number is out of the range of {kind}") from None
        return doubles if numpy == wide else narrow(name, kind, doubles, numpy)
    low, high = np.iinfo(numpy).min, np.iinfo(numpy).max
    if flat and not low <= min(flat) <= max(flat) <= high:
        raise RequestError(f"{name}: a number is out of the range of {kind}", expected=f"{low} to {high}")
    return np.array(flat, numpy)


def narrow(name: str, kind: str, array: Array, numpy: np.dtype[Any]) -> Array:
    """Numbers as an element type; an error where one is out of its range."""
    if array.dtype == numpy:
        return array
    if numpy.kind in "iu":
        low, high = np.iinfo(numpy).min, np.iinfo(numpy).max
        if array.min() < low or array.max() > high:
            raise RequestError(f"{name}: a number is out of the range of {kind}", expected=f"{low} to {high}")
        return array.astype(numpy)
    try:
        with np.errstate(over="raise"):
            return array.astype(np.float32, copy=False).astype(numpy, copy=False)
    except FloatingPointError:
        raise RequestError(f"{name}: a number is out of the range of {kind}") from None


def _first_wrong(flat: list[Any], fits: type | tuple[type, ...]) -> str:
    return repr(next(each for each in flat if not isinstance(each, fits) or isinstance(each, bool)))[:80]


def _flatten(name: str, data: Any) -> list[Any]:
    """The elements of a nested list whose parts have equal lengths."""
    if not isinstance(data, list):
        raise RequestError(f"{name}: the data is no list", got=repr(data)[:80])
    while data and isinstance(data[0], list):
        width = len(data[0])
        if not all(isinstance(part, list) and len(part) == width for part in data):
            raise RequestError(f"{name}: the data is ragged", expected="lists of equal length on every level")
        data = [each for part in data for each in part]
    return list(data)


def _numpy(name: str, kind: str) -> np.dtype[Any]:
    found = NUMPY.get(kind)
    if found is None:
        raise RequestError(f"{name}: no such datatype", expected=", ".join((*NUMPY, BYTES)), got=kind)
    return found


def to_json(array: Array) -> list[Any]:
    """A result as a flat list; NaN and infinities become null, which is all that JSON has."""
    if array.dtype.kind in "OUS":
        return [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.reshape(-1)]
    if array.dtype.kind == "V" or (array.dtype.itemsize == 2 and array.dtype.kind == "f"):
        array = array.astype(np.float32)
    return array.reshape(-1).tolist()
