"""gRPC calls in this process: classification, statistics, the journal, and what fails inside the server."""

from __future__ import annotations

import asyncio
from hashlib import sha256
from typing import Any

import grpc
import numpy as np
import pytest

from smelt.client.wire import split_strings
from smelt.serve.config import KeyConfig
from smelt.serve.grpc import GrpcFront
from smelt.serve.grpc_messages import messages
from tests.unit.serve.client import DIGITS, Client, model, serving

KINDS = messages()
PIXELS = np.random.default_rng(0).random((2, 64)).astype(np.float32)


class Context:
    """A caller with a key, and what it is told."""

    def __init__(self, secret: str = "") -> None:
        self.secret = secret

    def invocation_metadata(self) -> list[tuple[str, str]]:
        return [("authorization", f"Bearer {self.secret}"), ("x-request-id", "mine")]

    def peer(self) -> str:
        return "ipv4:10.0.0.1:1"

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise Aborted(code, details)


class Aborted(Exception):  # noqa: N818
    pass


def asked(name: str = "digits", classes: int = 0) -> Any:
    tensor = {"name": "pixels", "datatype": "FP32", "shape": [2, 64]}
    found = KINDS["ModelInferRequest"](model_name=name, inputs=[tensor], raw_input_contents=[PIXELS.tobytes()])
    if classes:
        output = found.outputs.add(name="probabilities")
        output.parameters["classification"].int64_param = classes
    return found


def call(client: Client, name: str, message: Any, context: Any = None) -> Any:
    front = GrpcFront(client.app.service, None, client.app.journal)
    work: Any = front.infer if name == "ModelInfer" else front.statistics
    return client.run(front._unary(name, work, False)(message, context or Context()))


def test_the_likeliest_classes_are_answered_as_over_http() -> None:
    with serving(model(DIGITS)) as client:
        found = call(client, "ModelInfer", asked(classes=3))
        (output,) = found.outputs
        assert (output.datatype, list(output.shape)) == ("BYTES", [2, 3])
        strings = split_strings(memoryview(found.raw_output_contents[0]), 6).tolist()
        tensor = {"name": "pixels", "datatype": "FP32", "shape": [2, 64], "data": PIXELS.reshape(-1).tolist()}
        wanted = [{"name": "probabilities", "parameters": {"classification": 3}}]
        over_http = client.post("/v2/models/digits/infer", {"inputs": [tensor], "outputs": wanted}).json
        assert strings == over_http["outputs"][0]["data"]


def test_statistics_count_calls_by_their_rows() -> None:
    with serving(model(DIGITS)) as client:
        for _ in range(3):
            call(client, "ModelInfer", asked())
        (stats,) = call(client, "ModelStatistics", KINDS["ModelStatisticsRequest"](name="digits")).model_stats
        (batch,) = stats.batch_stats
        assert (batch.batch_size, batch.compute_infer.count) == (2, 3)
        assert 0 < batch.compute_infer.ns <= stats.inference_stats.success.ns
        (row,) = client.get("/v2/models/digits/stats").json["model_stats"][0]["batch_stats"]
        assert row["compute_infer"] == {"count": 3, "ns": batch.compute_infer.ns}


def test_calls_are_in_the_log_and_among_the_slow_requests(caplog: pytest.LogCaptureFixture) -> None:
    keys = [KeyConfig("boss", sha256(b"boss").hexdigest(), admin=True)]
    with serving(model(DIGITS), keys=keys, slow_ms=0.0) as client, caplog.at_level("INFO", "smelt.serve"):
        call(client, "ModelInfer", asked(), Context("boss"))
        with pytest.raises(Aborted, match="NOT_FOUND"):
            call(client, "ModelInfer", asked("nothing"), Context("boss"))
        with pytest.raises(Aborted, match="UNAUTHENTICATED"):
            call(client, "ModelInfer", asked())
        rows = client.get("/v2/debug/slow", authorization="Bearer boss").json["requests"]
    refused, missing, answered = rows
    path = "/inference.GRPCInferenceService/ModelInfer"
    assert (answered["path"], answered["request"], answered["key"], answered["rows"]) == (path, "mine", "boss", 2)
    assert (missing["status"], refused["status"], refused["client"]) == (404, 401, "ipv4:10.0.0.1:1")
    lines = [record.getMessage() for record in caplog.records]
    assert [f"POST {path} {status}" in line for status, line in zip((404, 401), lines, strict=True)] == [True, True]


def test_what_fails_inside_the_server_is_logged_and_not_told(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise KeyError("a secret of the inside")

    with serving(model(DIGITS)) as client:
        monkeypatch.setattr(client.app.service, "infer", fail)
        with pytest.raises(Aborted) as refused:
            call(client, "ModelInfer", asked())
    code, details = refused.value.args
    assert (code, "secret" in details) == (grpc.StatusCode.INTERNAL, False)
    assert "a secret of the inside" in caplog.text


def test_a_caller_that_leaves_is_no_error_of_the_server(caplog: pytest.LogCaptureFixture) -> None:
    async def leave(*_: Any) -> Any:
        raise asyncio.CancelledError

    with serving(model(DIGITS)) as client, caplog.at_level("INFO", "smelt.serve"):
        front = GrpcFront(client.app.service, None, client.app.journal)
        with pytest.raises(asyncio.CancelledError):
            client.run(front._unary("ModelInfer", leave, False)(asked(), Context()))
    assert caplog.records == []
