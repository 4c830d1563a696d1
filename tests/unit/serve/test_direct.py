"""Requests that arrive whole are answered without a task: what a client sees is the same as on the ASGI way."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
import re
import socket
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import uvicorn
from uvicorn.server import ServerState

from smelt.client.wire import HEADER, encode_request
from smelt.serve.config import KeyConfig
from smelt.serve.protocol import MAX_PIPELINED, Connection, LimitedProtocol, StallWatch, limit_protocol
from smelt.serve.queue import INLINE, ModelQueue
from tests.unit.serve.client import DIGITS, Client, model, serving

PIXELS = np.arange(64, dtype=np.float32).reshape(1, 64) / 7
JSON = {"inputs": [{"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS.reshape(-1).tolist()}]}
SECRET = "a long secret"


@pytest.fixture(scope="module", params=["on the event loop", "in a thread"])
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    key = KeyConfig(name="team", sha256=hashlib.sha256(SECRET.encode()).hexdigest(), models=("digits",))
    with serving(model(DIGITS), keys=[key], max_body=20_000) as found:
        queue = found.app.catalogue.pick("digits").queue
        assert isinstance(queue, ModelQueue)
        queue.is_inline = lambda inputs: request.param == "on the event loop"  # type: ignore[method-assign]
        yield found


class Wire:
    """One connection without a network: what is written lands in `sent`."""

    def __init__(self, client: Client, direct: bool = True) -> None:
        self.client, self.sent, self.closed, self.reading = client, b"", False, True
        config = uvicorn.Config(client.app, lifespan="off", log_config=None, server_header=False, limit_concurrency=9)
        config.load()
        kind = limit_protocol(30.0, client.app if direct else None)
        self.protocol: LimitedProtocol = kind(config, ServerState(), {}, client.loop)
        self.protocol.connection_made(self)

    def write(self, data: bytes) -> None:
        self.sent += data

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed

    def has_timer(self) -> bool:
        return self.protocol._timer is not None

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def feed(self, *pieces: bytes) -> bool:
        """Whether the connection is closed after these pieces."""

        async def feed() -> None:
            for piece in pieces:
                self.protocol.data_received(piece)
                await asyncio.sleep(0)

        self.client.run(feed())
        return self.closed

    def receive(self, *pieces: bytes) -> bytes:
        """Feed the pieces, and give what was answered when nothing runs any more."""

        async def feed() -> None:
            for piece in pieces:
                self.protocol.data_received(piece)
                await asyncio.sleep(0)
            while self.protocol.tasks or (
                not self.closed and self.protocol.cycle and not self.protocol.cycle.response_complete
            ):
                await asyncio.sleep(0.001)

        self.client.run(feed())
        found, self.sent = self.sent, b""
        return found


def request(body: Any = JSON, target: str = "/v2/models/digits/infer", version: str = "1.1", **headers: str) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = {"Host": "x", "Content-Length": str(len(data)), "X-Request-Id": "one", "Authorization": f"Bearer {SECRET}"}
    lines |= {name.replace("_", "-"): value for name, value in headers.items()}
    head = [f"POST {target} HTTP/{version}", *(f"{name}: {value}" for name, value in lines.items() if value)]
    return "\r\n".join([*head, "", ""]).encode() + data


def binary() -> bytes:
    body, length = encode_request({"pixels": PIXELS})
    return request(body, **{HEADER: str(length)})


REQUESTS: dict[str, Callable[[], bytes]] = {
    "JSON": request,
    "binary": binary,
    "a version": lambda: request(target="/v2/models/digits/versions/1/infer"),
    "no such version": lambda: request(target="/v2/models/digits/versions/2/infer"),
    "no such model": lambda: request(target="/v2/models/other/infer"),
    "a query": lambda: request(target="/v2/models/digits/infer?x=1"),
    "an escaped path": lambda: request(target="/v2/models/di%67its/infer"),
    "no key": lambda: request(Authorization=""),
    "a wrong key": lambda: request(Authorization="Bearer x"),
    "no JSON": lambda: request(b"{"),
    "nested too deeply": lambda: request(b"[" * 9000),
    "a wrong shape": lambda: request({"inputs": [{**JSON["inputs"][0], "shape": [2, 64]}]}),
    "a shape of many digits": lambda: request({"inputs": [{**JSON["inputs"][0], "shape": [10**1200] * 4}]}),
    "a wrong name": lambda: request({"inputs": [{**JSON["inputs"][0], "name": "x"}]}),
    "too large": lambda: request(b" " * 20_001),
    "compressed": lambda: request(gzip.compress(json.dumps(JSON).encode()), Content_Encoding="gzip"),
    "an unknown encoding": lambda: request(Content_Encoding="br"),
    "an encoding that is no UTF-8": lambda: request(Content_Encoding="@").replace(b"Encoding: @", b"Encoding: \xff"),
    "an encoding in capitals": lambda: request(gzip.compress(json.dumps(JSON).encode()), Content_Encoding="GZIP"),
    "a length of many digits": lambda: request(**{HEADER: "9" * 5000}),
    "a bad length": lambda: request(**{HEADER: "x"}),
    "a long timeout": lambda: request({**JSON, "parameters": {"timeout": 10**400}}),
    "a wrong timeout": lambda: request({**JSON, "parameters": {"timeout": -1}}),
    "HTTP/1.0": lambda: request(version="1.0"),
    "close": lambda: request(Connection="close"),
    "an expectation": lambda: request(Expect="100-continue"),
    "an odd id": lambda: request(X_Request_Id="\tä"),
}


def _normal(answer: bytes) -> tuple[bytes, list[bytes], bytes]:
    """Status, headers in any order, body: without what differs from one request to the next."""
    head, _, body = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").partition(b"\r\n\r\n")
    status, *lines = re.sub(rb"x-request-id: [0-9a-f]{13,}", b"x-request-id: new", head).split(b"\r\n")
    return status, sorted(lines), body


@pytest.mark.parametrize("name", REQUESTS)
def test_the_direct_way_answers_as_asgi_does(client: Client, name: str) -> None:
    whole = REQUESTS[name]()
    wires = [Wire(client), Wire(client), Wire(client, direct=False)]
    at = len(whole) - 3
    answers = [wires[0].receive(whole), wires[1].receive(whole[:at], whole[at:]), wires[2].receive(whole)]
    assert _normal(answers[0]) == _normal(answers[1]) == _normal(answers[2])
    assert len({wire.closed for wire in wires}) == 1
    assert answers[0].startswith((b"HTTP/1.1 200", b"HTTP/1.1 4"))


@pytest.mark.parametrize("name", REQUESTS)
def test_a_known_head_changes_nothing(client: Client, name: str) -> None:
    """After a request with the same head, and after one with another body; also where it is not alone, or not whole."""
    whole = REQUESTS[name]()
    at = whole.index(b"\r\n\r\n") + 4
    first, other = request(), request({**JSON, "id": "another length"})
    for before in ([first, other], [whole]):
        for pieces in ([whole], [whole[:at], whole[at:]], [whole[: at - 9], whole[at - 9 :]], [whole + first]):
            wires = [Wire(client), Wire(client, direct=False)]
            for wire in wires:
                wire.receive(*before)
            if any(wire.closed for wire in wires):
                continue
            answers = [re.split(rb"(?=HTTP/1\.1 [245])", wire.receive(*pieces))[1:] for wire in wires]
            assert [_normal(each) for each in answers[0]] == [_normal(each) for each in answers[1]]
            assert wires[0].closed == wires[1].closed


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
def test_nothing_may_follow_a_compressed_body(client: Client, kind: str) -> None:
    """A reader before this one may take it for more of the body."""
    packed = (gzip.compress if kind == "gzip" else zlib.compress)(json.dumps(JSON).encode())
    for more, status in ((b"", b"200"), (b"x", b"400"), (packed, b"400")):
        assert Wire(client).receive(request(packed + more, Content_Encoding=kind))[9:12] == status


def test_only_the_length_of_a_known_head_may_differ(client: Client) -> None:
    wire = Wire(client)
    for length in range(3):
        assert wire.receive(request({**JSON, "id": "x" * length})).startswith(b"HTTP/1.1 200")
        assert wire.protocol._known is not None
    del wire.protocol.parser  # it is not needed
    assert wire.receive(request({**JSON, "id": "x" * 100})).startswith(b"HTTP/1.1 200")
    known = wire.protocol._known
    assert known is not None
    body = b"0123456789"
    head = request(body).partition(body)[0]
    assert known.cut_body(head + body) == body
    for odd in (b"-10", b"1 0", b"+10", b"", b"0x10", b"9", b"11", b"1_0", "١٠".encode()):
        assert known.cut_body(head.replace(b"Length: 10", b"Length: " + odd) + body) is None
    for broken in (head.replace(b"Host", b"host"), head[:-2], head + b"x"):
        assert known.cut_body(broken + body) is None


@pytest.mark.parametrize(
    "odd",
    [
        {"Transfer_Encoding": "chunked", "Content_Length": ""},
        {"X_Long": "y" * 5000},
        {"Connection": "close"},
        {"version": "1.0"},
        {"Expect": "100-continue"},
    ],
)
def test_odd_heads_are_not_known(client: Client, odd: dict[str, Any]) -> None:
    wire = Wire(client)
    body = json.dumps(JSON).encode()
    chunked = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)
    assert wire.receive(request(chunked if "Transfer_Encoding" in odd else body, **odd)).count(b"HTTP/1.1 200") == 1
    assert wire.protocol._known is None


def test_a_known_head_opens_no_more_than_before(client: Client) -> None:
    """Limits of connections and of what is not read hold for it, too; a model that is gone is not called."""
    wire = Wire(client)
    assert wire.receive(request()).startswith(b"HTTP/1.1 200")
    wire.protocol.limit_concurrency = 1
    assert wire.receive(request()).startswith(b"HTTP/1.1 503")
    wire = Wire(client)
    wire.receive(request())
    version = client.app.catalogue.pick("digits")
    version.state = "UNAVAILABLE"
    try:
        assert wire.receive(request()).startswith(b"HTTP/1.1 503")
    finally:
        version.state = "READY"
    assert wire.receive(request()).startswith(b"HTTP/1.1 200")


def test_requests_with_a_known_head_are_counted() -> None:
    key = KeyConfig(name="team", sha256=hashlib.sha256(SECRET.encode()).hexdigest(), per_minute=3)
    with serving(model(DIGITS), keys=[key]) as found:
        wire = Wire(found)
        assert [wire.receive(request())[9:12] for _ in range(4)] == [b"200"] * 3 + [b"429"]
        assert wire.receive(request(Authorization="Bearer another one"))[9:12] == b"401"


def test_pipelined_requests_are_answered_in_their_order(client: Client) -> None:
    wire = Wire(client)
    found = wire.receive(
        b"".join(request(X_Request_Id=str(i)) if i % 2 else request(b"{", X_Request_Id=str(i)) for i in range(6))
    )
    assert re.findall(rb"x-request-id: (\d)", found) == [b"%d" % i for i in range(6)]
    assert re.findall(rb"HTTP/1.1 (\d+)", found) == [b"400", b"200"] * 3


def test_pipelined_requests_let_others_in_between(client: Client) -> None:
    wire = Wire(client)
    order: list[str] = []

    async def both() -> None:
        wire.protocol.data_received(request() * 3)
        client.loop.call_soon(order.append, "another client")
        order.extend(["answer"] * wire.sent.count(b"HTTP/1.1 200"))
        while wire.sent.count(b"HTTP/1.1 200") < 3:
            await asyncio.sleep(0.001)

    client.run(both())
    assert order in (["another client"], ["answer", "another client"])


def test_a_chunked_body(client: Client) -> None:
    data = json.dumps(JSON).encode()
    parts = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (data[:100], data[100:], b""))
    message = request(b"", Transfer_Encoding="chunked", Content_Length="") + parts
    assert Wire(client).receive(message).startswith(b"HTTP/1.1 200")


def _chunked(*trailers: bytes) -> bytes:
    data = json.dumps(JSON).encode()
    head = request(b"", Transfer_Encoding="chunked", Content_Length="", X_Request_Id="", Authorization="")
    return head + b"%x\r\n%b\r\n0\r\n" % (len(data), data) + b"".join(trailers)


@pytest.mark.parametrize("direct", [True, False])
def test_trailers_are_no_headers(client: Client, direct: bool) -> None:
    key = f"Authorization: Bearer {SECRET}\r\n\r\n".encode()
    assert Wire(client, direct).receive(_chunked(key)).startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("endless", [b"a: b\r\n" * 5000, b"a" * 30_000])
def test_trailers_are_limited(client: Client, endless: bytes) -> None:
    wire = Wire(client)
    start = _chunked().replace(b"Host: x", b"Host: x\r\nX-API-Key: " + SECRET.encode())
    assert not wire.feed(start, *[endless] * 2)
    assert wire.feed(endless)
    assert len(wire.protocol.headers) < 9
    wire.protocol.connection_lost(None)
    wire.receive()


@pytest.mark.parametrize("last", [{"Connection": "close"}, {"version": "1.0"}])
@pytest.mark.parametrize("target", ["/v2/models/digits/infer", "/v2/models/digits/infer?"])
def test_nothing_is_read_after_the_last_request(client: Client, last: dict[str, Any], target: str) -> None:
    stats = client.app.catalogue.pick("digits").stats
    before = stats.success
    wire = Wire(client)
    assert wire.receive(request(target=target, **last) + request() * 3).count(b"HTTP/1.1") == 1
    assert wire.closed
    assert stats.success == before + 1


@pytest.mark.parametrize("upgrade", ["h2c", "websocket"])
def test_the_body_of_a_request_for_another_protocol_is_no_request(client: Client, upgrade: str) -> None:
    """A proxy that passes `Upgrade` on takes the body for a body."""
    wire = Wire(client)
    wire.protocol.ws_protocol_class = None
    whole = request(request(X_Request_Id="hidden"), Upgrade=upgrade, Connection="Upgrade")
    at = whole.index(b"\r\n\r\n") + 4
    answers = wire.receive(whole[:at], whole[at:])
    assert answers.count(b"HTTP/1.1") == 1
    assert b"hidden" not in answers
    assert wire.closed


@pytest.mark.parametrize("broken", [b"\0", b"CONNECT x:1 HTTP/1.1\r\n\r\n", b"\r\n" * 40_000, b"GET /" + b"x" * 70_000])
def test_a_bad_request_does_not_answer_the_one_before_it(client: Client, broken: bytes) -> None:
    for first in (request(), request(target="/v2/models/digits/infer?")):
        wire = Wire(client)
        answers = wire.receive(first, broken, request())
        assert re.findall(rb"HTTP/1.1 (\d+)", answers) in ([b"200"], [b"200", b"400"])
        assert wire.closed


def test_a_large_head_is_refused_even_if_it_comes_at_once(client: Client) -> None:
    wire = Wire(client)
    assert wire.receive(request(X_Long="y" * 70_000)).startswith(b"HTTP/1.1 400")
    assert wire.closed


def test_bodies_do_not_count_as_the_head_of_the_next_request(client: Client) -> None:
    wire, padded = Wire(client), request(json.dumps(JSON).encode() + b" " * 18_000)
    assert wire.receive(padded * 5 + request()[:20], request()[20:]).count(b"HTTP/1.1 200") == 6
    assert not wire.closed


def test_few_pipelined_requests_wait(client: Client) -> None:
    wire = Wire(client)

    async def flood() -> None:
        wire.protocol.data_received(request() * (MAX_PIPELINED + 50))
        while not wire.closed:
            assert len(wire.protocol.pipeline) <= MAX_PIPELINED
            assert not wire.reading or not wire.protocol.pipeline
            await asyncio.sleep(0)

    client.run(flood())
    assert MAX_PIPELINED <= wire.sent.count(b"HTTP/1.1 200") <= MAX_PIPELINED + 2
    assert wire.sent.count(b"connection: close") == 1


def test_a_body_that_comes_after_the_answer_ends_quietly(client: Client) -> None:
    wire = Wire(client)
    whole = request(b"x" * 100_000, target="/v2/models/digits", Authorization="")
    assert wire.receive(whole[:200]).startswith(b"HTTP/1.1 40")
    assert wire.receive(whole[200:90_000], whole[90_000:]) == b""
    assert not wire.has_timer()
    assert wire.protocol._idle_since is not None
    assert wire.receive(request()).startswith(b"HTTP/1.1 200")
    assert wire.receive(whole[:200]).startswith(b"HTTP/1.1 40")
    wire.receive(whole[200:300])
    assert wire.has_timer()
    wire.protocol._refuse("too slow")
    assert (wire.sent, wire.closed) == (b"", True)


def test_a_connection_with_half_a_pipelined_request_is_not_idle(client: Client) -> None:
    wire = Wire(client)
    wire.feed(request() + request()[:-3])
    assert wire.protocol._idle_since is None
    assert wire.receive(request()[-3:]).count(b"HTTP/1.1 200") == 2


def test_a_bug_in_a_direct_handler_is_no_bad_request(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(client.app.journal, "identify", fail)
    wire = Wire(client)
    wire.feed(request())
    assert (wire.sent, wire.closed) == (b"", True)


def test_long_paths_are_not_remembered(client: Client) -> None:
    for direct in (True, False):
        for target in ("/v2/models/long", "/v2/models/long?"):
            Wire(client, direct).receive(request(target=target.replace("long", "x" * 5000) + "/infer"))
    routes = client.app.routes
    assert all(len(known) < 1000 for known in (*routes._targets, *routes._matched))


def test_a_request_without_a_key_does_not_keep_a_model_in_memory(client: Client) -> None:
    version = client.app.catalogue.pick("digits")
    version.used = 0.0
    Wire(client).receive(request(Authorization=""))
    assert version.used == 0
    Wire(client).receive(request())
    assert version.used > 0


def test_clients_cannot_write_lines_into_the_log(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    named = {"inputs": [{"name": "x\nPOST /y\x1b[2J", "shape": [1], "datatype": "FP32", "data": ["a"]}]}
    for sent in (request(target="/x%0aPOST%20/y%1b[2J"), request(named)):
        caplog.clear()
        with caplog.at_level("INFO", "smelt.serve"):
            Wire(client).receive(sent)
        (record,) = caplog.records
        assert record.getMessage().isprintable()


def test_a_line_of_the_log_has_the_reason_of_a_refusal(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "smelt.serve"):
        Wire(client).receive(request(target="/nothing"))
        assert client.get("/v2/health/live").status == 200
    first, *others = (re.sub(r"\d+\.\d\d ms", "T ms", record.getMessage()) for record in caplog.records)
    assert first == "POST /nothing 404 T ms: no such path"
    assert {*others} <= {"GET /v2/health/live 200 T ms"}


def test_a_client_that_does_not_read_its_answers_gets_no_more(client: Client) -> None:
    wire = Wire(client)
    wire.protocol.pause_writing()
    wire.protocol.loop.call_later(0.05, wire.protocol.resume_writing)
    assert wire.receive(request()).startswith(b"HTTP/1.1 200")


def test_clients_that_read_nothing_lose_their_connections() -> None:
    """On real sockets: a close alone would wait for such a client for ever."""

    class Sender(asyncio.Protocol):
        def __init__(self) -> None:
            self.lost = asyncio.Event()

        def connection_made(self, transport: Any) -> None:
            self.transport = transport
            transport.write(b"x" * (64 << 20))
            transport.close()

        def connection_lost(self, exc: Exception | None) -> None:
            connections.discard(self)
            self.lost.set()

    connections = set[Sender]()

    async def serve() -> None:
        loop = asyncio.get_running_loop()
        pairs = [socket.socketpair() for _ in range(2)]
        try:
            idle, reading = [(await loop.create_connection(Sender, sock=ours))[1] for ours, _ in pairs]
            connections.update((idle, reading))
            watch = StallWatch(connections)
            for _ in range(watch.looks):
                watch.look()
                assert len(connections) == 2
                pairs[1][1].recv(1 << 20)
                await asyncio.sleep(0.01)
            watch.look()
            await idle.lost.wait()
            assert connections == {reading}
            reading.transport.abort()
            await reading.lost.wait()
        finally:
            for pair in pairs:
                for each in pair:
                    each.close()

    asyncio.run(asyncio.wait_for(serve(), 60))


def test_idle_connections_are_closed_by_one_timer(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    wire = Wire(client)
    now = [100.0]
    monkeypatch.setattr(wire.protocol, "loop", _Loop(now))
    wire.protocol.timeout_keep_alive = 5
    for _ in range(3):
        wire.protocol.data_received(request())
        now[0] += 2
    timers: list[tuple[float, Callable[[], None]]] = wire.protocol.loop.timers  # type: ignore[attr-defined]
    assert len(timers) == 1
    now[0] = 105.0
    timers.pop()[1]()
    assert not wire.closed
    ((left, look),) = timers
    assert left == pytest.approx(4.0)  # the last answer was at 104
    now[0] = 109.0
    look()
    assert wire.closed


class _Loop:
    def __init__(self, now: list[float]) -> None:
        self.now, self.timers = now, list[tuple[float, Any]]()

    def time(self) -> float:
        return self.now[0]

    def call_later(self, seconds: float, call: Callable[..., None], *arguments: Any) -> Any:
        self.timers.append((seconds, call))
        return None if arguments else self


def test_a_client_that_leaves_cancels_its_waiting_call() -> None:
    with serving(model(DIGITS)) as client:
        queue = client.app.catalogue.pick("digits").queue
        assert isinstance(queue, ModelQueue)
        begun, go_on = threading.Event(), threading.Event()
        real = queue.call

        def slow(inputs: Any, timeout: Any, cancel: Any) -> Any:
            begun.set()
            assert go_on.wait(60)
            return real(inputs, timeout, cancel)

        queue.call = slow
        for _ in range(5):
            queue.measure({"pixels": PIXELS}, 2 * INLINE)
        running, leaving = Wire(client), Wire(client)

        async def leave() -> None:
            running.protocol.data_received(request())
            await asyncio.to_thread(begun.wait, 60)
            leaving.protocol.data_received(request())
            assert queue.waiting == 1
            leaving.protocol.connection_lost(None)
            assert queue.waiting == 0  # there is room for others
            go_on.set()

        client.run(leave())
        assert running.receive().startswith(b"HTTP/1.1 200")
        client.run(queue.drain(60))
        stats = client.app.catalogue.pick("digits").stats
        assert (stats.success, stats.failure, stats.calls) == (1, 1, 1)
        assert leaving.sent == b""


def test_a_client_that_leaves_while_the_model_is_loaded_gets_no_call(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire, catalogue = Wire(client), client.app.catalogue
    real, stats = catalogue.demand, catalogue.pick("digits").stats

    async def demand(name: str, version: str = "") -> Any:
        wire.protocol.connection_lost(None)
        return await real(name, version)

    monkeypatch.setattr(catalogue, "demand", demand)
    before = stats.calls
    assert wire.receive(request(target="/v2/models/digits/infer?")) == b""
    assert stats.calls == before


def test_a_server_without_room_writes_few_lines(caplog: pytest.LogCaptureFixture) -> None:
    key = KeyConfig(name="slow", sha256=hashlib.sha256(SECRET.encode()).hexdigest(), per_minute=1)
    with serving(model(DIGITS), keys=[key]) as client, caplog.at_level("INFO", "smelt.serve"):
        client.app.journal._busy_logged = time.monotonic() + 3600 - 1
        answers = [Wire(client).receive(request()) for _ in range(4)]
        assert [answer[9:12] for answer in answers] == [b"200", b"429", b"429", b"429"]
        assert not caplog.records
        client.app.journal._busy_logged = float("-inf")
        Wire(client).receive(request())
        assert [record.getMessage().split()[2] for record in caplog.records] == ["429"]


def test_the_address_that_a_proxy_states_is_the_clients(caplog: pytest.LogCaptureFixture) -> None:
    with serving(model(DIGITS), access_log=True, log="json") as client, caplog.at_level("INFO", "smelt.serve"):
        for peer in ("127.0.0.1", "10.1.1.1"):
            for direct in (True, False):
                wire = Wire(client, direct)
                wire.protocol.client = (peer, 5)
                wire.receive(request(X_Forwarded_For="10.2.3.4"))
        clients = [json.loads(record.getMessage())["client"] for record in caplog.records]
    assert clients == ["10.2.3.4"] * 2 + ["10.1.1.1"] * 2


def test_an_answer_that_cannot_be_sent_closes_the_connection(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client would wait for ever."""

    def fail(*given: Any) -> Any:
        raise AssertionError("a bug")

    wire = Wire(client)
    monkeypatch.setattr(client.app, "_reply", fail)
    assert wire.receive(request()) == b""
    assert wire.closed


def test_a_connection_without_a_byte_is_closed_without_an_answer(client: Client) -> None:
    wire = Wire(client)
    wire.protocol._refuse("the head of the request did not arrive in time")
    assert (wire.sent, wire.closed) == (b"", True)
    wire = Wire(client)
    wire.protocol.data_received(b"G")
    wire.protocol._refuse("the head of the request did not arrive in time")
    assert wire.sent.startswith(b"HTTP/1.1 400")


def test_pieces_of_a_stream_are_chunks_unless_the_client_reads_slowly() -> None:
    written: list[bytes] = []
    flow = SimpleNamespace(write_paused=False)
    transport = SimpleNamespace(write=written.append)
    cycle = SimpleNamespace(flow=flow, transport=transport, disconnected=False, chunked_encoding=True)
    protocol: Any = None
    connection = Connection(protocol, cycle)
    assert connection.write_piece(b"x" * 26)
    assert written == [b"1a\r\n" + b"x" * 26 + b"\r\n"]
    assert not connection.write_piece(b""), "an empty chunk would end the answer"
    for holder, name in ((flow, "write_paused"), (cycle, "disconnected"), (cycle, "chunked_encoding")):
        setattr(holder, name, not getattr(holder, name))
        assert not connection.write_piece(b"x")
        setattr(holder, name, not getattr(holder, name))
    assert len(written) == 1
