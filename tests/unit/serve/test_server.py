"""The server as a process: it says where it listens, answers over HTTP and gRPC, survives bad clients, drains."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import smelt
from smelt.serve.grpc_messages import messages
from tests.unit.serve.client import DIGITS

ROOT = Path(__file__).resolve().parents[3]
PIXELS = np.linspace(0, 1, 64, dtype=np.float32).reshape(1, 64)


class Server:
    """`smelt serve` on free ports. Lines of its output are kept."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "smelt", "serve", *arguments, "--port", "0", "--grpc-port", "0"]
        self.process = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, bufsize=1
        )
        self.lines: list[str] = []
        self.ready = threading.Event()
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()
        assert self.ready.wait(120), self.lines
        text = "".join(self.lines)
        found = re.search(r"listens on http://127\.0\.0\.1:(\d+)\n  and for gRPC on 127\.0\.0\.1:(\d+)\n", text)
        assert found is not None, text
        self.http, self.grpc = int(found[1]), int(found[2])

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("Try it"):
                self.ready.set()
        self.ready.set()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self.http, timeout=60)
        try:
            connection.request(method, path, None if body is None else json.dumps(body))
            reply = connection.getresponse()
            data = reply.read()
        finally:
            connection.close()
        return reply.status, json.loads(data) if data else None

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def infer() -> dict[str, Any]:
    tensor = {"name": "pixels", "shape": [1, 64], "datatype": "FP32", "data": PIXELS.reshape(-1).tolist()}
    return {"inputs": [tensor]}


def echo(path: Path) -> Path:
    """A model that returns its inputs, one of every type."""
    kinds = {
        name: getattr(TensorProto, name.upper())
        for name in ["bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16"]
    }
    kinds |= {"int32": TensorProto.INT32, "int64": TensorProto.INT64, "float16": TensorProto.FLOAT16}
    kinds |= {"float32": TensorProto.FLOAT, "float64": TensorProto.DOUBLE, "bfloat16": TensorProto.BFLOAT16}
    nodes = [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in kinds]
    ports = [
        [helper.make_tensor_value_info(f"{way}_{name}", kind, ["b", 3]) for name, kind in kinds.items()]
        for way in ("in", "out")
    ]
    made = helper.make_model(
        helper.make_graph(nodes, "echo", ports[0], ports[1]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    onnx.save(made, path)
    return path


SHOUT = """
import numpy as np
from smelt.serve.step import step


@step(text="str[B]", returns={"loud": "str[B]"})
def shout(text):
    return np.array([each.upper() for each in text], object)


PIPELINE = [shout]
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    path = echo(tmp_path_factory.mktemp("models") / "echo.onnx")
    settings = path.with_name("server.toml")
    settings.write_text("shared_memory = true\n")
    shout = path.with_name("shout.py")
    shout.write_text(SHOUT)
    made = Server(DIGITS, str(path), str(shout), "--engine", "reference", "--admin", "--config", str(settings))
    yield made
    made.close()


def test_it_says_how_to_call_a_model(server: Server) -> None:
    said = server.lines[-1] if server.lines[-1].startswith("Try it") else "".join(server.lines)
    body = re.search(r"-d '(.*)'", said)
    assert body is not None
    status, answer = server.ask("POST", "/v2/models/digits/infer", json.loads(body[1]))
    assert status == 200
    assert answer["outputs"][0]["shape"] == [1, 10]


def test_grpc_answers_as_the_model_does(server: Server) -> None:
    kinds = messages()
    with grpc.insecure_channel(f"127.0.0.1:{server.grpc}") as channel:

        def call(name: str, /, **fields: Any) -> Any:
            stub = channel.unary_unary(
                f"/inference.GRPCInferenceService/{name}",
                request_serializer=kinds[f"{name}Request"].SerializeToString,
                response_deserializer=kinds[f"{name}Response"].FromString,
            )
            return stub(kinds[f"{name}Request"](**fields), timeout=60)

        assert call("ServerLive").live
        assert call("ModelReady", name="digits").ready
        (port,) = call("ModelMetadata", name="digits").inputs
        assert (port.name, port.datatype, list(port.shape)) == ("pixels", "FP32", [-1, 64])
        want = smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]
        tensor = kinds["InferInputTensor"](name="pixels", datatype="FP32", shape=[1, 64])
        raw = call("ModelInfer", model_name="digits", inputs=[tensor], raw_input_contents=[PIXELS.tobytes()])
        tensor.contents.fp32_contents.extend(PIXELS.reshape(-1).tolist())
        typed = call("ModelInfer", model_name="digits", inputs=[tensor])
        for answer in (raw, typed):
            found = np.frombuffer(answer.raw_output_contents[0], np.float32).reshape(1, 10)
            np.testing.assert_array_equal(found, want)
        for fields, code in (
            ({"model_name": "nothing"}, grpc.StatusCode.NOT_FOUND),
            ({"model_name": "digits"}, grpc.StatusCode.INVALID_ARGUMENT),
            (
                {"model_name": "digits", "inputs": [tensor], "raw_input_contents": [b""]},
                grpc.StatusCode.INVALID_ARGUMENT,
            ),
        ):
            with pytest.raises(grpc.RpcError) as raised:
                call("ModelInfer", **fields)
            assert raised.value.code() == code


BAD = (
    b"\x16\x03\x01garbage",
    b"GET / HTTP/1.1\r\n\r\n",
    b"POST /v2/models/digits/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
    b"A" * 100000,
    b"GET " + b"/x" * 50000 + b" HTTP/1.1\r\n\r\n",
)


def test_bad_clients_do_not_take_it_down(server: Server) -> None:
    for data in BAD:
        with socket.create_connection(("127.0.0.1", server.http), timeout=30) as client:
            try:
                client.sendall(data)
                client.shutdown(socket.SHUT_WR)
                while client.recv(4096):
                    pass
            except OSError:
                pass  # it may hang up on us
    assert server.ask("POST", "/v2/models/digits/infer", infer())[0] == 200


def test_slow_and_endless_heads_are_cut_off(tmp_path: Path) -> None:
    settings = tmp_path / "server.toml"
    settings.write_text("body_timeout = 0.5\n")
    made = Server(DIGITS, "--trusted", "--engine", "reference", "--config", str(settings))
    try:
        clients = [socket.create_connection(("127.0.0.1", made.http), timeout=30) for _ in range(20)]
        for client in clients[:10]:
            client.sendall(b"GET /v2 HTTP/1.1\r\nHost: x\r\n")  # and nothing more
        clients[10].sendall(b"POST /v2/models/digits/infer HTTP/1.1\r\nContent-Length: 10\r\n\r\n{")
        for client in clients:
            found = b""
            while piece := client.recv(4096):
                found += piece
            if client in clients[:10]:
                assert b"did not arrive in time" in found
            elif client is clients[10]:
                assert b"408" in found
            client.close()
        with socket.create_connection(("127.0.0.1", made.http), timeout=30) as client:
            client.sendall(b"GET /v2 HTTP/1.1\r\nX: " + b"y" * (70 << 10))
            assert b"too large" in client.recv(4096)
        assert made.ask("POST", "/v2/models/digits/infer", infer())[0] == 200
    finally:
        made.close()


def test_sigterm_finishes_what_was_accepted() -> None:
    made = Server(DIGITS, "--trusted", "--engine", "reference")
    try:
        statuses = list[int]()

        def ask() -> None:
            for _ in range(20):
                try:
                    statuses.append(made.ask("POST", "/v2/models/digits/infer", infer())[0])
                except OSError:  # it takes no more
                    return

        threads = [threading.Thread(target=ask) for _ in range(4)]
        for thread in threads:
            thread.start()
        while len(statuses) < 10:
            pass
        made.process.send_signal(signal.SIGTERM)
        for thread in threads:
            thread.join()
        assert made.process.wait(60) == 0
        assert set(statuses) <= {200, 503}
        assert statuses.count(200) >= 10
    finally:
        made.close()


def test_a_port_that_is_taken(server: Server) -> None:
    command = [sys.executable, "-m", "smelt", "serve", DIGITS, "--port", str(server.http), "--engine", "reference"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert "cannot listen" in done.stderr
    assert "--port 0" in done.stderr


@pytest.mark.slow
def test_the_tour_of_tritonclient(server: Server, tmp_path: Path) -> None:
    """Its own environment: it pins other versions of what we use."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    packages = ["tritonclient[http,grpc]", "numpy", "ml_dtypes"]
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages]
    done = subprocess.run(install, capture_output=True, text=True, check=False, timeout=250)
    if done.returncode:
        pytest.skip(f"tritonclient cannot be installed here: {done.stderr[-200:]}")
    tour = [python, str(Path(__file__).with_name("triton_tour.py"))]
    addresses = [f"127.0.0.1:{port}" for port in (server.http, server.grpc)]
    done = subprocess.run([*tour, *addresses], capture_output=True, text=True, check=False, timeout=200)
    assert done.stdout == "the tour is over\n", done.stderr
    example = [python, "examples/serve/with_tritonclient.py", "--http", addresses[0], "--grpc", addresses[1]]
    done = subprocess.run(example, cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.count("are [") == 2, done.stderr
