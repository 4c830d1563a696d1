"""Tensors in POSIX shared memory, over HTTP and gRPC; `triton_tour.py` has tritonclient do the same."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import nullcontext
from hashlib import sha256
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.serve.config import KeyConfig
from smelt.serve.grpc import GrpcFront, _read_inputs
from smelt.serve.grpc_messages import messages
from smelt.serve.infer_request import parse
from smelt.serve.openapi import SHARED_MEMORY
from smelt.serve.problems import NotFoundError, RequestError, TooLargeError
from smelt.serve.shared_memory import Regions
from tests.unit.serve.client import DIGITS, Client, model, serving

PIXELS = np.linspace(0, 1, 128, dtype=np.float32).reshape(2, 64)
BASE = "/v2/systemsharedmemory"


def buffer(memory: SharedMemory) -> memoryview:
    assert memory.buf is not None
    return memory.buf


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    made = SharedMemory(create=True, size=4096)
    buffer(made)[:512] = PIXELS.tobytes()
    yield made
    made.close()
    made.unlink()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with serving(model(DIGITS), admin=True, shared_memory=True) as made:
        yield made


def where(offset: int, size: int) -> dict[str, Any]:
    return {"shared_memory_region": "all", "shared_memory_offset": offset, "shared_memory_byte_size": size}


def read(memory: SharedMemory, offset: int) -> Any:
    return np.frombuffer(bytes(buffer(memory)[offset : offset + 80]), np.float32).reshape(2, 10)


def test_tensors_stay_in_shared_memory(client: Client, memory: SharedMemory) -> None:
    want = smelt.load(DIGITS, engine="reference")(PIXELS)["probabilities"]
    size = memory.size
    key = f"/{memory.name}"
    assert client.post(f"{BASE}/region/all/register", {"key": key, "offset": 0, "byte_size": size}).status == 200
    rows = [{"name": "all", "key": key, "offset": 0, "byte_size": size}]
    assert client.get(f"{BASE}/status").json == client.get(f"{BASE}/region/all/status").json == rows
    assert "system_shared_memory" in client.get("/v2").json["extensions"]
    tensor = {"name": "pixels", "datatype": "FP32", "shape": [2, 64], "parameters": where(0, 512)}
    body = {"inputs": [tensor], "outputs": [{"name": "probabilities", "parameters": where(1024, 80)}]}
    reply = client.post("/v2/models/digits/infer", body)
    assert reply.status == 200, reply.body
    (row,) = reply.json["outputs"]
    assert row["parameters"] == where(1024, 80)
    assert "data" not in row
    np.testing.assert_allclose(read(memory, 1024), want, rtol=1e-6)
    # The same over gRPC.
    m = messages()
    front = GrpcFront(client.app.service, None, client.app.journal)

    def parameters(record: dict[str, Any]) -> Any:
        return {
            name: m["InferParameter"](**{"string_param" if isinstance(value, str) else "int64_param": value})
            for name, value in record.items()
        }

    given = m["InferInputTensor"](
        name="pixels", datatype="FP32", shape=[2, 64], parameters=parameters(where(0, 512))
    )  # fmt: skip
    wanted = m["InferRequestedOutputTensor"](name="probabilities", parameters=parameters(where(2048, 80)))
    asked = m["ModelInferRequest"](model_name="digits", inputs=[given], outputs=[wanted])
    answer = client.run(front.infer(asked))
    assert list(answer.raw_output_contents) == [b""]
    np.testing.assert_allclose(read(memory, 2048), want, rtol=1e-6)
    status = client.run(front.region_status(m["SystemSharedMemoryStatusRequest"]()))
    assert status.regions["all"].byte_size == size
    # A region that is truncated is an error and not the end of the server.
    os.truncate(f"/dev/shm/{memory.name}", 100)
    assert client.post("/v2/models/digits/infer", body).status == 400
    os.truncate(f"/dev/shm/{memory.name}", size)
    assert client.post(f"{BASE}/region/all/unregister").status == 200
    assert client.post("/v2/models/digits/infer", body).status == 404
    assert client.get(f"{BASE}/status").json == []


def test_what_is_refused(memory: SharedMemory) -> None:
    regions = Regions()
    size = memory.size
    for key, offset, count in [
        ("/nothing-is-called-this", 0, 1),
        ("/../etc/passwd", 0, 1),
        ("..", 0, 1),
        ("", 0, 1),
        (memory.name, 0, size + 1),
        (memory.name, -1, 1),
        (memory.name, 0, 0),
    ]:
        with pytest.raises(RequestError):
            regions.register("r", key, offset, count)
    regions.register("r", memory.name, 8, 16)
    with pytest.raises(RequestError, match="already"):
        regions.register("r", memory.name, 0, 1)
    parts: list[Any] = [(0, 17), (16, 1), (-1, 1), (0, True), (0, None)]
    for offset, count in parts:
        with pytest.raises(RequestError):
            regions.read("x", where(offset, count) | {"shared_memory_region": "r"})
    with pytest.raises(NotFoundError):
        regions.read("x", where(0, 1))
    with pytest.raises(RequestError, match="does not fit"):
        regions.write("x", where(0, 4) | {"shared_memory_region": "r"}, b"12345")
    before = len(os.listdir("/proc/self/fd"))
    regions.unregister()
    assert len(os.listdir("/proc/self/fd")) == before - 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_short_request_does_not_ask_for_much(memory: SharedMemory, protocol: str) -> None:
    """Three inputs of half a region."""
    half = memory.size // 2
    regions = Regions()
    regions.register("all", memory.name, 0, memory.size)
    m, part = messages(), where(0, half)
    names, shape = ("x", "y", "z"), [half]
    for count in (2, 3):
        with nullcontext() if count == 2 else pytest.raises(TooLargeError, match="z: the inputs are larger"):
            if protocol == "http":
                rows = [{"name": n, "datatype": "UINT8", "shape": shape, "parameters": part} for n in names[:count]]
                parse(json.dumps({"inputs": rows}).encode(), None, memory.size, regions)
            else:
                tensors = [m["InferInputTensor"](name=n, datatype="UINT8", shape=shape) for n in names[:count]]
                for tensor in tensors:
                    for name, value in part.items():
                        field = "string_param" if isinstance(value, str) else "int64_param"
                        tensor.parameters[name].CopyFrom(m["InferParameter"](**{field: value}))
                _read_inputs(m["ModelInferRequest"](inputs=tensors), memory.size, regions)
    regions.unregister()


def test_it_is_off_by_default_and_for_administration() -> None:
    with serving(model(DIGITS), admin=True) as client:
        assert client.get(f"{BASE}/status").status == 404
        output = {"name": "probabilities", "parameters": where(0, 80)}
        tensor = {"name": "pixels", "datatype": "FP32", "shape": [1, 64], "data": [0] * 64}
        reply = client.post("/v2/models/digits/infer", {"inputs": [tensor], "outputs": [output]})
        assert (reply.status, "shared memory is off" in reply.json["error"]) == (400, True)
    key = KeyConfig("team", sha256(b"secret").hexdigest())
    with serving(model(DIGITS), keys=[key], shared_memory=True) as client:
        for each in SHARED_MEMORY:
            path = each.path.replace("{name}", "r")
            ask = client.get if each.method == "get" else client.post
            assert ask(path, authorization="Bearer secret").status == 403, path


def test_the_paths_are_in_the_document(client: Client) -> None:
    described = {each.path.replace("{name}", "{}") for each in SHARED_MEMORY}
    assert {path for path in client.app.routes.paths() if path.startswith(BASE)} == described
    assert described <= {path.replace("{name}", "{}") for path in client.get("/openapi.json").json["paths"]}
