"""Parse the protobuf wire format of a model without copying its big tensors.

In: the mapped bytes of a ModelProto. Out: the same message without the payloads of its big tensors, which the
official package may parse, and the position of each payload in the file. Only `read.onnx.model` calls it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field

from smelt.errors import ParseError

INLINE_LIMIT = 1024  # bytes: what is larger stays in the file
_MAX_DEPTH = 64  # messages inside messages, as protobuf itself allows about a hundred

# Field numbers of the messages that may hold a tensor, and what each of those fields is.
_CHILDREN: dict[str, dict[int, str]] = {
    "model": {7: "graph", 25: "function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "function": {7: "node", 11: "attribute"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
}
# How an attribute ends that says it is a list of floats, ints or strings. Long ones are not worth a walk.
_LISTS = (b"\xa0\x01\x06", b"\xa0\x01\x07", b"\xa0\x01\x08")
_RAW_DATA, _DOC_STRING = 9, 12
_PAYLOADS = {4: "float_data", _RAW_DATA: "raw_data", 10: "double_data"}  # little-endian bytes as they are


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of one tensor in the file, and the field they came from."""

    offset: int
    length: int
    field: str


@dataclass(slots=True)
class Lifted:
    """A message without its big payloads. A tensor that lost one has a key of `payloads` as its `doc_string`."""

    message: bytes = b""
    payloads: dict[str, Payload] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: secrets.token_hex(16))  # no file can guess the keys


def lift(data: memoryview, path: str) -> Lifted:
    """The model without its big payloads."""
    lifted = Lifted()
    lifted.message = b"".join(_message(data, 0, len(data), "model", lifted, path, 0))
    return lifted


def _message(data: memoryview, start: int, end: int, kind: str, lifted: Lifted, path: str, depth: int) -> list[bytes]:
    if depth > _MAX_DEPTH:
        raise ParseError(f"{path}: graphs inside graphs, too deep", expected=f"at most {_MAX_DEPTH} levels")
    children = _CHILDREN.get(kind, {})
    out: list[bytes] = []
    payload: Payload | None = None
    for number, wire, at, body, stop in _fields(data, start, end, path):
        if wire != 2 or stop - body <= INLINE_LIMIT:
            out.append(bytes(data[at:stop]))
        elif kind == "tensor" and number in _PAYLOADS:
            if payload is not None:
                raise ParseError(f"{path}: a tensor with two values", got=f"at {payload.offset} and at {body}")
            payload = Payload(body, stop - body, _PAYLOADS[number])
        elif number in children and not (children[number] == "attribute" and bytes(data[stop - 3 : stop]) in _LISTS):
            inner = _message(data, body, stop, children[number], lifted, path, depth + 1)
            out += [_varint(number << 3 | 2), _varint(sum(map(len, inner))), *inner]
        elif not (kind == "tensor" and number == _DOC_STRING):
            out.append(bytes(data[at:stop]))
    if payload is not None:
        key = f"{lifted.mark}:{len(lifted.payloads)}"
        lifted.payloads[key] = payload
        text = key.encode()
        out += [_varint(_DOC_STRING << 3 | 2), _varint(len(text)), text]  # the last of a field's values counts
    return out


def _fields(data: memoryview, start: int, end: int, path: str) -> Iterator[tuple[int, int, int, int, int]]:
    """(number, wire type, start, start of the body, end) of each field of a message."""
    at = start
    while at < end:
        tag, body = _read_varint(data, at, end, path)
        number, wire = tag >> 3, tag & 7
        if wire == 0:
            _, stop = _read_varint(data, body, end, path)
        elif wire == 1:
            stop = body + 8
        elif wire == 2:
            length, body = _read_varint(data, body, end, path)
            stop = body + length
        elif wire == 5:
            stop = body + 4
        else:
            raise ParseError(
                f"{path}: not an ONNX file",
                expected="a protobuf field",
                got=f"wire type {wire} at {at}",
                remedy="export the model as ONNX, or rename the file to the ending of its format",
            )
        if number == 0 or stop > end:
            raise ParseError(
                f"{path}: the file is truncated or damaged",
                expected=f"at least {stop} bytes" if number else "a protobuf field",
                got=f"{end} bytes; the field at {at} ends beyond them" if number else f"field 0 at {at}",
                remedy="download or export the model again",
            )
        yield number, wire, at, body, stop
        at = stop


def _read_varint(data: memoryview, at: int, end: int, path: str) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ParseError(
        f"{path}: not an ONNX file, or a truncated one",
        expected="a number",
        got=f"the end at {at}",
        remedy="download or export the model again",
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
