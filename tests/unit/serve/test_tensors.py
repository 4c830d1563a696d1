"""Tensors of the protocol: JSON and bytes to arrays and back, and what is refused."""

from __future__ import annotations

import json
import math
import random
import re
import struct
import sys
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.client.wire import BYTES, NUMPY, datatype_of, to_bytes
from smelt.device import numbers
from smelt.serve.infer_request import LONGEST_TEMPLATE, MOST_TEMPLATES, Templates, parse
from smelt.serve.oip import classify
from smelt.serve.problems import RequestError, TooLargeError
from smelt.serve.tensors import from_bytes, from_json, to_json

MOST = 1 << 20


@pytest.fixture(autouse=True, params=["in C", "in Python"])
def _reader(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything holds with the reader in C and without it."""
    if request.param == "in C":
        numbers.prepare()
    else:
        monkeypatch.setattr(numbers, "_read", [])


@pytest.mark.parametrize("kind", NUMPY)
def test_numbers_survive_the_way_there_and_back(kind: str) -> None:
    array = np.array([[0, 1, 1], [1, 0, 1]]).astype(NUMPY[kind])
    assert datatype_of(array) == kind
    there = from_bytes("x", kind, [2, 3], memoryview(to_bytes(array)), MOST)
    assert there.dtype == array.dtype
    np.testing.assert_array_equal(there, array)
    for data in (to_json(array), array.astype(np.float64 if kind in ("BF16", "FP16") else array.dtype).tolist()):
        there = from_json("x", kind, [2, 3], json.dumps(data).encode(), MOST)
        assert there.dtype == array.dtype
        np.testing.assert_array_equal(there, array)


def test_extremes() -> None:
    for kind, given in {
        "UINT64": [0, 2**64 - 1], "INT64": [-(2**63), 2**63 - 1], "INT8": [-128, 127], "FP32": [1e-45, 3.4e38],
    }.items():  # fmt: skip
        found = from_json("x", kind, [2], json.dumps(given).encode(), MOST)
        np.testing.assert_array_equal(found, np.array(given, NUMPY[kind]))
    half = from_json("x", "BF16", [1], b"[1.00390625]", MOST)
    assert half[0] == ml_dtypes.bfloat16(1.0)


def test_strings() -> None:
    texts = ["", "ä€", "x" * 300]
    found = from_json("x", BYTES, [3], json.dumps(texts).encode(), MOST)
    assert found.tolist() == texts
    raw = to_bytes(found)
    assert raw[:4] == struct.pack("<I", 0)
    assert from_bytes("x", BYTES, [3], memoryview(raw), MOST).tolist() == texts
    assert from_bytes("x", BYTES, [1], memoryview(struct.pack("<I", 2) + b"\xff\xfe"), MOST).tolist() == [b"\xff\xfe"]
    assert to_json(found) == texts


def test_what_json_lacks_is_null() -> None:
    assert json.loads(json.dumps(to_json(np.array([1.5, 2.5], np.float32)))) == [1.5, 2.5]


WRONG: dict[str, tuple[str, list[int], Any, str]] = {
    "a fraction": ("INT32", [1], [1.5], "not INT32"),
    "a boolean": ("INT32", [1], [True], "not INT32"),
    "out of range": ("UINT8", [1], [300], "out of the range"),
    "an integer beyond the doubles": ("FP32", [1], [10**309], "out of the range"),
    "one in a nested list": ("FP64", [1], [[-(10**400)]], "out of the range"),
    "negative": ("UINT64", [1], [-1], "out of the range"),
    "text": ("FP32", [1], ["1"], "not FP32"),
    "null": ("FP32", [1], [None], "not FP32"),
    "ragged": ("FP32", [3], [[1, 2], [3]], "ragged"),
    "too few": ("FP32", [2, 2], [1, 2, 3], "does not fit its shape"),
    "no list": ("FP32", [1], 5, "no list"),
    "another type": ("FP128", [1], [1], "no such datatype"),
    "a negative size": ("FP32", [-1], [1], "no shape"),
    "numbers for strings": (BYTES, [1], [1], "not only strings"),
    "two for a boolean": ("BOOL", [1], [2], "true and false"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_json(name: str) -> None:
    kind, shape, data, message = WRONG[name]
    with pytest.raises(RequestError, match=message):
        from_json("x", kind, shape, json.dumps(data).encode(), MOST)


@pytest.mark.parametrize("size", [-1, 9, True, "8", 8.0, None])
def test_sizes_of_binary_tensors(size: Any) -> None:
    head = json.dumps({"inputs": [{"name": "x", "shape": [4], "datatype": "INT16",
                                   "parameters": {"binary_data_size": size}}]}).encode()  # fmt: skip
    message = "x: there is no data" if size is None else "x: binary_data_size does not fit the body"
    with pytest.raises(RequestError, match=message) as caught:
        parse(head + bytes(8), str(len(head)).encode(), 100)
    if size is not None:
        assert (caught.value.expected, caught.value.got) == ("0 to 8 bytes", repr(size))


def test_wrong_bytes() -> None:
    for kind, shape, data, message in [
        ("FP32", [2], b"\0" * 7, "8 bytes for"),
        ("BOOL", [1], b"\2", "BOOL is 0 or 1"),
        (BYTES, [1], b"\0\0", "end early"),
        (BYTES, [1], struct.pack("<I", 9) + b"abc", "longer than the data"),
        (BYTES, [1], struct.pack("<I", 1) + b"ab", "left over"),
    ]:
        with pytest.raises(RequestError, match=message) as raised:
            from_bytes("x", kind, shape, memoryview(data), MOST)
        assert "x" in str(raised.value)
    with pytest.raises(TooLargeError, match="too many elements"):
        from_bytes("x", "UINT8", [1 << 40, 1 << 40], memoryview(b""), MOST)


def _random_number(draw: random.Random) -> str:
    """The text of a number: of all magnitudes and lengths, and midpoints of neighbouring floats."""
    single = np.frombuffer(draw.randbytes(4), np.float32)[0]
    single = single if np.isfinite(single) else np.float32(1.5)
    match draw.randrange(7):
        case 0:
            return repr(draw.uniform(-1, 1))
        case 1:
            return repr(float(single))
        case 2:
            return repr(math.ldexp(draw.random() - 0.5, draw.randrange(-200, 200)))
        case 3:
            return str(draw.randrange(-(10 ** draw.randrange(1, 22)), 10 ** draw.randrange(1, 22)))
        case 4:
            return f"{draw.uniform(-1e5, 1e5):.{draw.randrange(1, 25)}f}"
        case 5:
            return f"{draw.uniform(-10, 10):.{draw.randrange(18)}e}"
    upper = np.nextafter(single, np.float32(np.inf))
    middle = (float(single) + float(upper)) / 2
    return repr(middle if math.isfinite(middle) else 0.0)


def test_the_reader_in_c_rounds_as_python_does(seed: int) -> None:
    draw = random.Random(seed)
    numbers.prepare()
    read = 0
    for _ in range(20_000):
        text = f"[{_random_number(draw)}]".encode()
        for integers in (False, True):
            found = numbers.read_numbers(text, 1, integers)
            if found is None:
                continue
            read += 1
            want = json.loads(text)[0]
            if integers:
                assert isinstance(want, int), text
                assert found.tolist() == [want], text
            else:
                assert found.tobytes() == np.float64(want).astype(np.float32).tobytes(), text
    assert read > 10_000 or not numbers._read


ODD = [
    *("[]", "[[]]", "[[1],[]]", "[[1],[2,3]]", "[1,[2]]", "[[1],2]", "[1,]", "[,1]", "[1 2]", "[1]]", "[[1]", "[1]x"),
    *(
        "[01]",
        "[1.]",
        "[.5]",
        "[+1]",
        "[-]",
        "[1e]",
        "[1e+]",
        "[--1]",
        "[0x1]",
        "[NaN]",
        "[1}",
        "x",
        "1",
        '"1"',
        '["1"]',
    ),
    *("[null]", "[true]", "{}", "[{}]", "[" * 40 + "1" + "]" * 40),
]


def test_what_is_no_array_of_numbers_is_left_to_others(seed: int) -> None:
    numbers.prepare()
    draw = random.Random(seed)
    for odd in ODD:
        assert all(numbers.read_numbers(odd.encode(), count, False) is None for count in (1, 2)), odd
    good = b"[[[1.5, -2], [3e0,4]],\n[[5,6],[7 , 8]]]"
    for _ in range(5_000):  # bytes that change: it reads them as JSON does, or not at all
        text = bytearray(good)
        for _ in range(draw.randrange(1, 4)):
            text[draw.randrange(len(text))] = draw.choice(b'[]0123456789.,eE+- \n"x\xff')
        found = numbers.read_numbers(bytes(text), 8, False)
        if found is not None:
            assert found.tolist() == np.array(json.loads(text), np.float32).reshape(-1).tolist(), text
    if numbers._read:
        assert numbers.read_numbers(good, 8, False) is not None
    assert numbers.read_numbers(good, 7, False) is numbers.read_numbers(good, 9, False) is None


TENSOR = '{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1.5, 2],[3, 4e0]]}'
OTHER = '{"data" : [1,2,3] , "name": "y", "datatype": "INT8", "shape": [3]}'


def _request(*tensors: str, before: str = "", after: str = "") -> str:
    return f'{{{before}"inputs": [{",".join(tensors)}]{after}}}'


NULL = TENSOR.replace("[[1.5, 2],[3, 4e0]]", "null")
REQUESTS = {
    "one": _request(TENSOR),
    "two": _request(TENSOR, OTHER, after=', "id": "a]"'),
    "an id that looks like data": _request(TENSOR, before=r'"id": "\"data\": [1]", '),
    "an id that ends like data": _request(TENSOR, before=r'"id": "x,\"data", '),
    "a parameter that is called data": _request(TENSOR, after=', "parameters": {"data": [1]}'),
    "strings": _request(TENSOR, '{"name": "s", "shape": [2], "datatype": "BYTES", "data": ["a]", "["]}'),
    "null beside a parameter": _request(NULL, after=', "parameters": {"data": [1, 2, 3, 4]}'),
    "the place of an array": _request(
        TENSOR.replace("[[1.5, 2],[3, 4e0]]", '"array 0"'), after=', "parameters": {"data": [1, 2, 3, 4]}'
    ),
    "data twice": _request(TENSOR.replace('"name"', '"data": [1,2,3,4], "name"')),
    "the same name": _request(TENSOR, TENSOR),
    "doubles": _request(TENSOR.replace("FP32", "FP64")),
    "an unknown type": _request(TENSOR.replace("FP32", "FP33")),
    "too few": _request(TENSOR.replace(", 4e0", "")),
    "cut off": _request(TENSOR)[:-4],
    "a huge shape": _request(TENSOR.replace("[2, 2]", "[9999999, 99]")),
    "out of range": _request(OTHER.replace("3]", "300]", 1)),
}


def _outcome(body: bytes, header_length: bytes | None = None, templates: Templates | None = None) -> Any:
    try:
        asked, inputs = parse(body, header_length, MOST, templates=templates)
    except RequestError as error:
        return type(error), str(error)
    arrays = {each: (array.dtype, array.shape, array.tolist()) for each, array in inputs.items()}
    return asked.id, asked.parameters, arrays


@pytest.mark.parametrize("name", REQUESTS)
def test_arrays_that_are_cut_out_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = _outcome(REQUESTS[name].encode())
    monkeypatch.setattr(numbers, "_read", [])
    assert found == _outcome(REQUESTS[name].encode())


def test_what_is_read_by_a_template_is_read_as_before(seed: int) -> None:
    """Requests again with other numbers, and with bytes that change anywhere."""
    numbers.prepare()
    draw, templates = random.Random(seed), Templates()
    head = '{"inputs":[{"name":"x","shape":[2,2],"datatype":"INT16","parameters":{"binary_data_size":8}}]}'
    known: list[tuple[str, bytes, bytes | None]] = [(text, b"", None) for text in REQUESTS.values()]
    known += [(head, b"12345678", b"%d" % len(head)), (head, b"1234567", b"%d" % len(head))]
    for _ in range(3_000):
        text, raw, length = draw.choice(known)
        body = bytearray(re.sub(r"(?<=[\[,])\d+(?=[,\]])", lambda _: str(draw.randrange(5)), text).encode() + raw)
        if draw.random() < 0.3:
            body[draw.randrange(len(body))] = draw.choice(b'[]0123456789.,eE+- "x{}')
        assert _outcome(bytes(body), length, templates) == _outcome(bytes(body), length), bytes(body)
    assert templates._binary
    assert templates._texts or not numbers._read
    for i in range(MOST_TEMPLATES + 10):
        _outcome(_request(TENSOR, before=f'"id": "{i}", ').encode(), None, templates)
    _outcome(_request(TENSOR, before=f'"id": "{"x" * LONGEST_TEMPLATE}", ').encode(), None, templates)
    assert len(templates._texts) <= MOST_TEMPLATES
    assert all(len(text) < LONGEST_TEMPLATE for text in templates._texts)


def test_what_is_remembered_does_not_keep_the_body() -> None:
    """Clients choose its size: 256 of the largest are more than a machine has."""
    tensor = {"name": "x", "shape": [9], "datatype": "UINT8", "parameters": {"binary_data_size": 9}, "data": [0]}
    text = json.dumps({"inputs": [tensor]}).encode()
    body, templates = text + bytes(9), Templates()
    before = sys.getrefcount(body)
    parse(body, b"%d" % len(text), 100, None, templates)
    assert templates.read(body, b"%d" % len(text)) is not None
    assert sys.getrefcount(body) == before


def test_a_template_does_not_judge_what_is_not_its_own() -> None:
    """The type comes after the numbers: what does not fit an earlier request's may fit this one's."""
    templates = Templates()
    text = '{"inputs": [{"name": "x", "shape": [1], "data": [%s], "datatype": "%s"}]}'
    for number, kind in (("1", "INT8"), ("300", "INT16"), ("1", "FP16"), ("1e6", "FP32"), ("1", "INT8")):
        _, inputs = parse((text % (number, kind)).encode(), None, 100, None, templates)
        assert inputs["x"].tolist() == [float(number)]
        assert inputs["x"].dtype == NUMPY[kind]


def test_the_largest_of_each_row_by_value_and_index() -> None:
    rows = np.array([[0.125, 0.75, 0.25], [0.5, 0.5, -1.0]], np.float32)
    for count in (None, 0):
        assert classify(rows, count) is rows
    assert classify(rows, 1).tolist() == [["0.750000:1"], ["0.500000:0"]]
    assert classify(rows, 2).tolist() == [["0.750000:1", "0.250000:2"], ["0.500000:0", "0.500000:1"]]
    assert classify(rows, 9).shape == (2, 3)
    assert classify(np.array([3, 250], np.uint8), 2).tolist() == ["250.000000:1", "3.000000:0"]
    wrong: list[tuple[Any, Any]] = [(rows, True), (rows, -1), (rows, "2"), (rows > 0, 1), (rows[0, 0], 1)]
    for array, given in wrong:
        with pytest.raises(RequestError, match="classification does not fit"):
            classify(array, given)
