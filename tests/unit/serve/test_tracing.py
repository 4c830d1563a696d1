"""Spans of requests, in an exporter that keeps them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import grpc
import numpy as np
import pytest

from smelt.serve.grpc import GrpcFront
from smelt.serve.grpc_messages import messages
from smelt.serve.tracing import Tracing
from tests.unit.serve.client import DIGITS, model, serving

pytest.importorskip("opentelemetry.sdk")
PIXELS: Any = {"inputs": [{"name": "pixels", "shape": [2, 64], "datatype": "FP32", "data": [0] * 128}]}
MESSAGES = messages()
PARENT = f"00-{'a' * 32}-{'b' * 16}-01"


def test_a_request_has_spans_for_the_queue_and_the_call() -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    with serving(model(DIGITS, trusted=True)) as client:
        client.app.journal.tracing = Tracing(kept)
        client.post("/v2/models/digits/infer", PIXELS, traceparent=PARENT, x_request_id="mine")
        client.get("/v2/models/nothing", traceparent="nonsense")
        client.app.journal.tracing._provider.force_flush()
        found = {span.name: span for span in kept.get_finished_spans()}
        client.app.journal.tracing.close()
        client.app.journal.tracing = None
    assert set(found) == {"POST /v2/models/{}/infer", "queue", "run", "GET /v2/models/{}"}
    whole, queue, run = (found[name] for name in ("POST /v2/models/{}/infer", "queue", "run"))
    assert whole.resource.attributes["service.name"] == "smelt"
    assert whole.attributes is not None
    assert whole.attributes["smelt.request_id"] == "mine"
    assert whole.parent is not None
    assert (f"{whole.context.trace_id:x}", f"{whole.parent.span_id:x}") == ("a" * 32, "b" * 16)
    assert run.attributes is not None
    assert (run.attributes["smelt.rows"], run.attributes["smelt.model"]) == (2, "digits")
    for part in (queue, run):
        assert part.parent is not None
        assert part.parent.span_id == whole.context.span_id
    times = [whole.start_time, queue.start_time, queue.end_time, run.start_time, run.end_time, whole.end_time]
    assert all(each is not None for each in times)
    assert queue.end_time == run.start_time
    assert (queue.start_time or 0) <= (queue.end_time or 0) <= (run.end_time or 0) <= (whole.end_time or 0)
    missing = found["GET /v2/models/{}"]
    assert missing.parent is None
    assert missing.attributes is not None
    assert missing.attributes["error.type"] == "NotFoundError"


def test_a_call_over_grpc_has_the_same_spans() -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    class Context:
        def invocation_metadata(self) -> list[tuple[str, str]]:
            return [("traceparent", PARENT)]

        def peer(self) -> str:
            return "ipv4:127.0.0.1:1"

        async def abort(self, code: grpc.StatusCode, details: str) -> None:
            raise grpc.RpcError(code)

    kept = InMemorySpanExporter()
    with serving(model(DIGITS, trusted=True)) as client:
        client.app.journal.tracing = tracing = Tracing(kept)
        front = GrpcFront(client.app.service, None, client.app.journal)
        infer = front._unary("ModelInfer", front.infer, False)
        tensor = {"name": "pixels", "datatype": "FP32", "shape": [2, 64]}
        for name in ("digits", "nothing"):
            message = MESSAGES["ModelInferRequest"](
                model_name=name, inputs=[tensor], raw_input_contents=[np.zeros((2, 64), np.float32).tobytes()]
            )
            with nullcontext() if name == "digits" else pytest.raises(grpc.RpcError):
                client.run(infer(message, Context()))
        tracing._provider.force_flush()
        spans = kept.get_finished_spans()
        tracing.close()
        client.app.journal.tracing = None
    method = "inference.GRPCInferenceService/ModelInfer"
    assert [span.name for span in spans] == ["queue", "run", method, method]
    queue, run, whole, failed = spans
    assert whole.parent is not None
    assert f"{whole.context.trace_id:x}" == "a" * 32
    assert run.attributes is not None
    assert (run.attributes["smelt.rows"], run.attributes["smelt.model"]) == (2, "digits")
    assert queue.parent == run.parent == whole.context
    assert failed.attributes is not None
    assert (failed.attributes["rpc.method"], failed.attributes["error.type"]) == ("ModelInfer", "NotFoundError")


@pytest.mark.parametrize("precision", ["f32", "bf16"])
def test_one_call_in_some_has_spans_of_its_kernels(precision: str) -> None:
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    kept = InMemorySpanExporter()
    data = np.random.default_rng(0).random((2, 64)).astype(np.float32).reshape(-1).tolist()
    asked = {"inputs": [{**PIXELS["inputs"][0], "data": data}]}
    with serving(model(DIGITS, engine="native", precision=precision, kernel_spans=2)) as client:
        client.app.journal.tracing = Tracing(kept)
        answers = [client.post("/v2/models/digits/infer", asked).json for _ in range(4)]
        client.app.journal.tracing._provider.force_flush()
        spans = kept.get_finished_spans()
        client.app.journal.tracing.close()
        client.app.journal.tracing = None
    assert answers.count(answers[0]) == 4
    runs = {span.context.span_id for span in spans if span.name == "run"}
    kernels = [span for span in spans if span.parent is not None and span.parent.span_id in runs]
    assert len(runs) == 4
    assert len({span.parent.span_id for span in kernels if span.parent is not None}) == 2
    assert all("smelt.kernel" in (span.attributes or {}) for span in kernels)
    assert any((span.attributes or {}).get("smelt.of_roofline", 0) for span in kernels)


def test_kernels_that_cannot_be_traced_are_an_error() -> None:
    for fields in ({"engine": "reference"}, {"engine": "native", "trusted": False}):
        with serving(model(DIGITS, kernel_spans=1, **fields)) as client:
            assert "trace" in client.app.catalogue.pick("digits").reason
