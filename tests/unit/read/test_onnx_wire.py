"""The protobuf wire format under an ONNX file: damage is named with its position; numbers are as protobuf writes."""

from __future__ import annotations

import re

import pytest
from google.protobuf.internal.encoder import _VarintBytes

from smelt.errors import ParseError
from smelt.read.onnx.file import wire
from smelt.read.onnx.file.wire import _fields, _message, _varint, lift

NO_FILE, DAMAGED, NUMBER = "m: not an ONNX file", "m: the file is truncated or damaged", "m: not an ONNX file, or a"
# bytes, the message, what was expected, what came
BROKEN = [
    (b"\x00\x07", DAMAGED, "a protobuf field", "field 0 at 0"),
    (b"\x08\x01\x02\x01a", DAMAGED, "a protobuf field", "field 0 at 2"),
    (b"\x0a\x05ab", DAMAGED, "at least 7 bytes", "4 bytes; the field at 0 ends beyond them"),
    (b"\x08\x01\x09" + bytes(7), DAMAGED, "at least 11 bytes", "10 bytes; the field at 2 ends beyond them"),
    (b"\x0d" + bytes(3), DAMAGED, "at least 5 bytes", "4 bytes; the field at 0 ends beyond them"),
    (b"\x0b", NO_FILE, "a protobuf field", "wire type 3 at 0"),
    (b"\x08\x01\x0e", NO_FILE, "a protobuf field", "wire type 6 at 2"),
    (b"\x80", NUMBER, "a number", "the end at 1"),
    (b"\x08", NUMBER, "a number", "the end at 1"),
    (b"\x0a\xff\xff", NUMBER, "a number", "the end at 3"),
    (b"\x08" + b"\xff" * 20, NUMBER, "a number", "the end at 11"),
]


@pytest.mark.parametrize(("data", "message", "expected", "got"), BROKEN)
def test_damage_is_named_with_its_position(data: bytes, message: str, expected: str, got: str) -> None:
    with pytest.raises(ParseError, match=re.escape(message)) as caught:
        lift(memoryview(data), "m")
    assert (caught.value.expected, caught.value.got) == (expected, got)
    assert caught.value.remedy


def test_fields_of_every_wire_type() -> None:
    data = b"\x08\x96\x01" + b"\x11" + bytes(8) + b"\x1a\x02ab" + b"\x25" + bytes(4) + b"\xa0\x06\x05"
    assert [*_fields(memoryview(data), 0, len(data), "m")] == [
        (1, 0, 0, 1, 3), (2, 1, 3, 4, 12), (3, 2, 12, 14, 16), (4, 5, 16, 17, 21), (100, 0, 21, 23, 24),
    ]  # fmt: skip
    assert lift(memoryview(data), "m").message == data


@pytest.mark.parametrize("value", [0, 1, 127, 128, 255, 300, 16383, 16384, 2**31, 2**63, 2**64 - 1])
def test_numbers_are_written_as_protobuf_writes_them(value: int) -> None:
    assert _varint(value) == _VarintBytes(value)
    assert wire._read_varint(memoryview(_varint(value)), 0, 10, "m") == (value, len(_varint(value)))


def test_graphs_inside_graphs() -> None:
    """64 levels are read, one more is refused. Messages of 1024 bytes are not entered."""

    def nest(levels: int) -> bytes:
        data = b"\x12" + _varint(2000) + bytes(2000)
        for _ in range(levels // 3):
            data = b"\x32" + _varint(len(data)) + data  # the graph of an attribute
            data = b"\x2a" + _varint(len(data)) + data  # the attribute of a node
            data = b"\x0a" + _varint(len(data)) + data  # the node of a graph
        return data

    for levels, depth in ((63, 1), (60, 4)):
        data = nest(levels)
        assert b"".join(_message(memoryview(data), 0, len(data), "graph", wire.Lifted(), "m", depth)) == data
        with pytest.raises(ParseError, match="m: graphs inside graphs, too deep") as caught:
            _message(memoryview(data), 0, len(data), "graph", wire.Lifted(), "m", depth + 1)
        assert caught.value.expected == "at most 64 levels"
