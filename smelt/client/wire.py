"""The Open Inference Protocol's tensors as bytes: names of element types, elements of BYTES, requests and answers.

The client and the server share it; it needs NumPy alone (and ml_dtypes for BF16).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

from smelt.dtype import Array
from smelt.errors import ParseError, ShapeError

BYTES = "BYTES"
NUMPY: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.bool_),
    **{f"UINT{bits}": np.dtype(f"<u{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": np.dtype(f"<i{bits // 8}") for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": np.dtype(f"<f{bits // 8}") for bits in (16, 32, 64)},
    "BF16": np.dtype(ml_dtypes.bfloat16),
}
_OF_NUMPY = {numpy: name for name, numpy in NUMPY.items()}
HEADER = "Inference-Header-Content-Length"


def datatype_of(array: Array) -> str:
    """The protocol's name of an array's element type. Strings are BYTES."""
    if array.dtype.kind in "OUS":
        return BYTES
    name = _OF_NUMPY.get(array.dtype)
    if name is None:
        raise ShapeError(
            "the protocol does not have this element type", expected=", ".join((*NUMPY, BYTES)), got=array.dtype
        )
    return name


def to_bytes(array: Array) -> bytes:
    """A tensor in the binary form."""
    if array.dtype.kind not in "OUS":
        return array.tobytes()
    elements = [each if isinstance(each, bytes) else str(each).encode() for each in array.reshape(-1).tolist()]
    return b"".join(struct.pack("<I", len(each)) + each for each in elements)


def split_strings(data: memoryview, count: int) -> Array:
    """Elements of BYTES: text where they are UTF-8, else bytes."""
    if 4 * count > len(data):
        raise ParseError("the BYTES end early", expected=f"{count} elements", got=f"{len(data)} bytes")
    made = np.empty(count, object)
    at = 0
    for i in range(count):
        if at + 4 > len(data):
            raise ParseError("the BYTES end early", expected=f"{count} elements", got=i)
        (length,) = struct.unpack_from("<I", data, at)
        at += 4
        if at + length > len(data):
            raise ParseError("an element of BYTES is longer than the data", got=f"{length} bytes")
        piece = bytes(data[at : at + length])
        try:
            made[i] = piece.decode()
        except UnicodeDecodeError:
            made[i] = piece
        at += length
    if at != len(data):
        raise ParseError("bytes are left over after the last element", got=len(data) - at)
    return made


def encode_request(
    inputs: Mapping[str, Any], outputs: Iterable[str] = (), parameters: Mapping[str, Any] | None = None
) -> tuple[bytes, int]:
    """The body of a binary request, and the length of its JSON."""
    arrays = {name: np.asarray(value) for name, value in inputs.items()}
    raw = {name: to_bytes(array) for name, array in arrays.items()}
    head: dict[str, Any] = {
        "inputs": [
            {
                "name": name,
                "shape": list(array.shape),
                "datatype": datatype_of(array),
                "parameters": {"binary_data_size": len(raw[name])},
            }
            for name, array in arrays.items()
        ],
        "parameters": {"binary_data_output": True, **(parameters or {})},
    }
    wanted = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    text = json.dumps({**head, "outputs": wanted} if wanted else head).encode()
    return b"".join((text, *raw.values())), len(text)


def decode_answer(body: bytes, header_length: int | None) -> dict[str, Array]:
    """The outputs of an answer, binary or JSON."""
    view = memoryview(body)
    at = len(body) if header_length is None else header_length
    try:
        rows = json.loads(bytes(view[:at]))["outputs"]
        found = {}
        for row in rows:
            size = row.get("parameters", {}).get("binary_data_size")
            if size is None:
                kind = object if row["datatype"] == BYTES else NUMPY[row["datatype"]]
                found[row["name"]] = np.array(row["data"], kind).reshape(row["shape"])
                continue
            data, at = view[at : at + size], at + size
            count = int(np.prod(row["shape"], dtype=np.int64))
            flat = (
                split_strings(data, count) if row["datatype"] == BYTES else np.frombuffer(data, NUMPY[row["datatype"]])
            )
            found[row["name"]] = flat.reshape(row["shape"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ParseError("the server's answer does not fit the protocol", got=error) from error
    return found
