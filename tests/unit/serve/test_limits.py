"""Limits on what clients choose: what reaches one is taken or kept, one more is not."""

from __future__ import annotations

import gzip
from typing import Any

import pytest

from smelt.serve import http, shared_memory
from smelt.serve.http import DirectHead, Request, Response, finish_response
from smelt.serve.infer_request import _read_length
from smelt.serve.known_head import learn_head
from smelt.serve.problems import RequestError, UnavailableError
from smelt.serve.sequences import _identity
from smelt.serve.stats import ModelStats


def test_as_many_sizes_of_batches_as_clients_may_choose_are_told_apart() -> None:
    stats = ModelStats()
    for rows in range(1, 258):
        stats.call(rows, 0.5)
    assert sorted(stats.by_rows) == list(range(1, 257))
    for rows in (256, 257):
        stats.call(rows, 0.25)
    assert stats.by_rows[256] == [2, 0.75]
    assert stats.by_rows[1] == [1, 0.5]
    assert (257 in stats.by_rows, stats.calls) == (False, 259)


@pytest.mark.parametrize(
    ("length", "accepts", "is_packed"),
    [
        (32 * 1024, b"gzip", True),
        (32 * 1024, b"br, gzip;q=0.5", True),
        (32 * 1024 - 1, b"gzip", False),
        (32 * 1024, b"br", False),
        (32 * 1024, None, False),
    ],
)
def test_large_answers_are_compressed_for_clients_that_read_gzip(
    length: int, accepts: bytes | None, is_packed: bool
) -> None:
    given = [] if accepts is None else [(b"accept-encoding", accepts)]
    request = Request({"method": "GET", "path": "/", "headers": given}, None)  # type: ignore[arg-type]
    body = bytes(range(256)) * 128
    response = Response(body[:length], kind=b"text/x", headers=[(b"a", b"1")])
    headers, sent = finish_response(response, request, [(b"b", b"2")])
    assert (gzip.decompress(sent) if is_packed else sent) == body[:length]
    packed = [(b"content-encoding", b"gzip")] if is_packed else []
    assert headers == [
        (b"content-type", b"text/x"), (b"a", b"1"), (b"b", b"2"), *packed, (b"content-length", b"%d" % len(sent)),
    ]  # fmt: skip


def test_what_is_remembered_of_paths() -> None:
    known: dict[str, int] = {}
    http._remember(known, "p" * 512, 1)
    http._remember(known, "p" * 513, 2)
    assert known == {"p" * 512: 1}
    for number in range(1, 1024):
        http._remember(known, str(number), number)
    assert len(known) == 1024
    http._remember(known, "last", 5)
    assert known == {"last": 5}


@pytest.mark.parametrize(
    ("text", "length"),
    [
        (b"0", 0),
        (b"17", 17),
        (b"9" * 18, 10**18 - 1),
        (b"9" * 19, -1),
        (b"", -1),
        (b"+1", -1),
        (b" 1", -1),
        (b"1_0", -1),
    ],
)
def test_lengths(text: bytes, length: int) -> None:
    assert _read_length(text) == length


@pytest.mark.parametrize("given", ["x" * 256, 7, -1, 10**255])
def test_names_of_sequences(given: int | str) -> None:
    assert _identity("m", {"sequence_id": given}) == given


@pytest.mark.parametrize("given", ["x" * 257, 10**256, 0, "", True, False, 1.5, None, ["x"]])
def test_what_names_no_sequence(given: Any) -> None:
    with pytest.raises(RequestError, match="m has state: a request belongs to a sequence") as caught:
        _identity("m", {"sequence_id": given})
    assert caught.value.got == repr(given)[:80]
    with pytest.raises(RequestError, match="belongs to a sequence"):
        _identity("m", {})


def test_the_number_of_regions_is_limited() -> None:
    regions: Any = shared_memory.Regions()
    regions._regions = {f"r{i}": None for i in range(1023)}
    for wanted in (RequestError, UnavailableError):  # a name of no memory is looked at while there is room
        with pytest.raises(wanted):
            regions.register("new", "no/name", 0, 1)
        regions._regions["one more"] = None
    with pytest.raises(RequestError, match="registered already"):
        regions.register("r0", "/x", 0, 1)


def head(length: int, **more: str) -> tuple[bytes, DirectHead]:
    """A request with a head of so many bytes, and what it says."""
    body = b"abc"
    start = b"POST / HTTP/1.1\r\ncontent-length: %d\r\nx: " % len(body)
    rest = b"".join(b"\r\n%s: %s" % (name.encode(), value.encode()) for name, value in more.items()) + b"\r\n\r\n"
    filled = b"v" * (length - len(start) - len(rest))
    headers = {b"content-length": b"%d" % len(body), b"x": filled}
    headers |= {name.encode(): value.encode() for name, value in more.items()}
    return start + filled + rest + body, DirectHead(None, "/", (), headers, None)  # type: ignore[arg-type]


def test_heads_that_are_remembered() -> None:
    data, says = head(4096)
    known = learn_head(data, says)
    assert known is not None
    assert b"content-length" not in known.says.headers
    assert known.cut_body(data) == b"abc"
    longer = data.replace(b"content-length: 3", b"content-length: 12").removesuffix(b"abc") + b"x" * 12
    assert known.cut_body(longer) == b"x" * 12
    for wrong in (data[:-1], data + b"d", data.replace(b": 3", b": +3"), data.replace(b"POST", b"PUT "), b""):
        assert known.cut_body(wrong) is None
    digits = b"content-length: " + b"0" * 17
    assert known.cut_body(data.replace(b"content-length: ", digits)) == b"abc"
    assert known.cut_body(data.replace(b"content-length: ", digits + b"0")) is None


@pytest.mark.parametrize(
    "given",
    [
        head(4097),
        (head(99)[0] + b"more", head(99)[1]),
        (head(99)[0][:-1], head(99)[1]),
        head(199, **{"transfer-encoding": "chunked"}),
        (head(99)[0].replace(b"content-length: 3", b"content-length: 4"), head(99)[1]),
        (head(199)[0].replace(b"\r\n\r\n", b"\r\ncontent-length: 3\r\n\r\n"), head(199)[1]),
        (head(199)[0].replace(b"\r\nx: ", b"\r\nContent-Length: 3\r\nx: "), head(199)[1]),
    ],
    ids=[
        "long",
        "more after it",
        "not whole",
        "chunked",
        "read as another length",
        "two lengths",
        "one after the other",
    ],
)
def test_heads_that_are_not_remembered(given: tuple[bytes, DirectHead]) -> None:
    assert learn_head(*given) is None
