"""The client of our own: arrays in and out, retries until the deadline, errors with their status."""

from __future__ import annotations

import asyncio
import json
import re
import socketserver
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.cli.load import Load, load
from smelt.client import AsyncClient, Client, connect
from smelt.client.calls import ServerError
from smelt.client.wire import HEADER, NUMPY, decode_answer, encode_request
from smelt.errors import ParseError, RunError, SmeltError, TimedOutError
from smelt.serve.infer_request import InferRequest, parse
from smelt.serve.oip import Outcome, answer
from tests.unit.serve.client import DIGITS
from tests.unit.serve.test_server import PIXELS, Server


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server(DIGITS, "--engine", "reference", "--admin")
    yield made
    made.close()


def test_models_answer_from_afar_as_at_home(server: Server) -> None:
    want = smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]
    with connect(f"http://127.0.0.1:{server.http}") as client:
        np.testing.assert_array_equal(client.infer("digits", pixels=PIXELS)["probabilities"], want)
        many = client.infer("digits", pixels=np.repeat(PIXELS, 500, 0), outputs=["probabilities"], version="1")
        assert many["probabilities"].shape == (500, 10)
        assert client.metadata("digits")["inputs"][0]["name"] == "pixels"
        assert client.metadata()["name"] == "smelt"
        assert client.is_ready("digits")
        assert not client.is_ready("nothing")
        with pytest.raises(ServerError, match="no model 'nothing'") as raised:
            client.infer("nothing", x=PIXELS)
        assert raised.value.status == 404
        client.unload("digits")
        with pytest.raises(ServerError, match="not ready"):
            client.infer("digits", pixels=PIXELS, timeout=2.0)
        assert client.load("digits")["version"] == "1"
        threads = [threading.Thread(target=client.infer, args=("digits",), kwargs={"pixels": PIXELS}) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    async def work() -> None:
        async with AsyncClient(f"127.0.0.1:{server.http}") as client:
            found = await asyncio.gather(*(client.infer("digits", pixels=PIXELS) for _ in range(10)))
        for each in found:
            np.testing.assert_array_equal(each["probabilities"], want)

    asyncio.run(work())


@pytest.mark.parametrize("kind", [*NUMPY, "BYTES"])
def test_both_ends_agree_on_every_type(kind: str) -> None:
    array = np.array([["a", "ä" * 9]], object) if kind == "BYTES" else np.array([[0, 1]]).astype(NUMPY[kind])
    body, length = encode_request({"x": array})
    asked, inputs = parse(body, str(length).encode(), 100)
    assert inputs["x"].dtype == array.dtype
    np.testing.assert_array_equal(inputs["x"], array)
    version: Any = type("V", (), {"name": "m", "version": "1"})
    for request in (asked, InferRequest([])):
        reply = answer(request, Outcome(version, {"y": array}))
        told = dict(reply.headers).get(HEADER.lower().encode())
        found = decode_answer(reply.body, None if told is None else int(told))["y"]
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_outputs_that_are_asked_for_come_as_bytes() -> None:
    """As the binary extension of the protocol names the fields."""
    x = np.array([[1, 2, 3]], np.int16)
    body, length = encode_request({"x": x}, ("y", "z"), {"priority": 2})
    assert json.loads(body[:length]) == {
        "inputs": [{"name": "x", "shape": [1, 3], "datatype": "INT16", "parameters": {"binary_data_size": 6}}],
        "parameters": {"binary_data_output": True, "priority": 2},
        "outputs": [{"name": name, "parameters": {"binary_data": True}} for name in ("y", "z")],
    }
    assert body[length:] == x.tobytes()
    assert "outputs" not in json.loads(encode_request({"x": x})[0][: encode_request({"x": x})[1]])


def test_answers_that_do_not_fit() -> None:
    short = b'{"outputs": [{"name": "y", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 3}}]}abc'
    for body in (b"", b"[]", b'{"outputs": [{"name": "y"}]}', short):
        at = body.find(b"abc")
        with pytest.raises(ParseError, match="does not fit the protocol"):
            decode_answer(body, at if at > 0 else None)


class Moody(socketserver.ThreadingTCPServer):
    """A server that hangs up, is busy, then answers."""

    allow_reuse_address = daemon_threads = True

    def __init__(self, moods: list[bytes]) -> None:
        self.moods = moods
        super().__init__(("127.0.0.1", 0), _Answer)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Answer(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            length = 0
            while line not in (b"\r\n", b""):
                if line.lower().startswith(b"content-length:"):
                    length = int(line.split(b":")[1])
                line = self.rfile.readline()
            self.rfile.read(length)
            server: Any = self.server
            mood = server.moods.pop(0) if len(server.moods) > 1 else server.moods[0]
            if not mood:
                return
            self.wfile.write(mood)


def reply(status: int, body: Any, *headers: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(data)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + data


BUSY = reply(503, {"error": "busy"}, "Retry-After: 0")
GOOD = reply(200, {"outputs": [{"name": "y", "datatype": "INT8", "shape": [1], "data": [7]}]})


def test_it_asks_again_until_the_deadline() -> None:
    server = Moody([b"", BUSY, b"", GOOD])
    try:
        with Client(f"127.0.0.1:{server.server_address[1]}") as client:
            assert client.infer("m", x=np.ones(2))["y"].tolist() == [7]
            server.moods = [BUSY]
            with pytest.raises(SmeltError, match=r"busy|no answer in time"):  # which of them, a slow machine decides
                client.infer("m", x=np.ones(2), timeout=0.3)
            server.moods = [b""]
            with pytest.raises(RunError, match=r"does not answer|no answer in time"):
                client.infer("m", x=np.ones(2), timeout=0.3)
            server.moods = [reply(400, {"error": "wrong"}), GOOD]
            with pytest.raises(ServerError, match="wrong"):
                client.infer("m", x=np.ones(2))
            assert server.moods == [GOOD], "what is wrong is not asked again"
            server.moods = [reply(400, {"error": "wrong\n  try      x=…", "detail": {"remedy": "x=…"}}), GOOD]
            with pytest.raises(ServerError, match="wrong") as told:
                client.infer("m", x=np.ones(2))
            assert (told.value.message, told.value.remedy) == ("wrong", "x=…"), "the server's remedy, once"
            silent = b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n"
            server.moods = [BUSY, silent]
            with pytest.raises(ServerError, match="busy"):
                client.infer("m", x=np.ones(2), timeout=1.0)
            server.moods = [silent]
            with pytest.raises(TimedOutError):
                client.infer("m", x=np.ones(2), timeout=0.3)
    finally:
        server.shutdown()
        server.server_close()


def test_an_address_that_is_none() -> None:
    with pytest.raises(RunError, match="no address"):
        connect("ftp://x")


def test_the_load_test_counts_what_it_sent(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    load(f"http://127.0.0.1:{server.http}", Load("", 200.0, 0.5, ["pixels.0=2"], seed=3, within_ms=1e6), True)
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["requests"], found["failed"]) == ("digits", 100, 0)
    assert found["answered"] == 100
    assert 0 < found["latency_ms"]["50"] <= found["latency_ms"]["99"] <= found["most_ms"]
    assert found["goodput"] > 0
    load(f"http://127.0.0.1:{server.http}", Load("digits", 50.0, 0.1, seed=3, within_ms=1e-6), False)
    assert re.search("answered 5,(.|\n)*goodput: 0.0", capsys.readouterr().out)
    with pytest.raises(RunError, match="no model 'other'"):
        load(f"http://127.0.0.1:{server.http}", Load("other", 50.0, 0.1), False)
    with pytest.raises(RunError, match="must be positive"):
        load(f"http://127.0.0.1:{server.http}", Load("digits", 0.0, 0.1), False)
