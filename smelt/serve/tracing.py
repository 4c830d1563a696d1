"""Spans of requests for OpenTelemetry (extra `otel`): request → queue, run → kernels. `otel = true` switches it on.

Where spans go and how many are sampled is set as OpenTelemetry has it: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME,
OTEL_TRACES_SAMPLER. A client's `traceparent` makes its span the parent.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from smelt.errors import SmeltError, UnsupportedError
from smelt.serve.http import Request


class Tracing:
    """Spans are made when a request has ended, from the times that were taken anyway."""

    def __init__(self, exporter: Any = None) -> None:
        """`exporter`: where spans go instead of the configured endpoint."""
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

            if exporter is None:
                from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

                exporter = OTLPSpanExporter()
        except ImportError as error:
            raise UnsupportedError(
                f"tracing needs the package {error.name}", remedy='pip install "smelt[otel]", or otel = false'
            ) from error
        resource = Resource.create({})
        if str(resource.attributes.get("service.name", "")).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": "smelt"}))
        self._provider = TracerProvider(resource=resource)
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("smelt.serve")
        self._extract = TraceContextTextMapPropagator().extract
        self._server, self._inside = SpanKind.SERVER, set_span_in_context
        self._failed = Status(StatusCode.ERROR)

    def record(self, request: Request, status: int, identity: str, seconds: float, error: SmeltError | None) -> None:
        """A request. The status of a call over gRPC is HTTP's, too."""
        attributes: dict[str, Any] = {"smelt.request_id": identity}
        if request.is_rpc:
            name = request.path[1:]
            service, _, method = name.partition("/")
            attributes |= {"rpc.system": "grpc", "rpc.service": service, "rpc.method": method}
        else:
            name = f"{request.method} {_route(request)}"
            attributes |= {"http.request.method": request.method, "url.path": request.path}
            attributes["http.response.status_code"] = status
        self._record(name, request, attributes, status, seconds, error)

    def _record(
        self,
        name: str,
        request: Request,
        attributes: Mapping[str, Any],
        status: int,
        seconds: float,
        error: SmeltError | None,
    ) -> None:
        ended, mark = time.time_ns(), time.perf_counter()
        parent = request.header(b"traceparent")
        span = self._tracer.start_span(
            name,
            self._extract({"traceparent": parent, "tracestate": request.header(b"tracestate")}) if parent else None,
            kind=self._server,
            start_time=ended - round(seconds * 1e9),
            attributes=attributes,
        )
        if status >= 500:
            span.set_status(self._failed)
        if error is not None:
            span.set_attribute("error.type", type(error).__name__)
        if request.timing is not None:
            self._parts(span, request, ended - round((mark - request.finished) * 1e9))
        span.end(end_time=ended)

    def _parts(self, span: Any, request: Request, ended: int) -> None:
        """The time in the queue and in the model's call, which `ended` then, with its kernels if they were measured."""
        timing, inside = request.timing, self._inside(span)
        begun = ended - round(timing.computed * 1e9)
        queue = self._tracer.start_span("queue", inside, start_time=begun - round(timing.waited * 1e9))
        queue.end(end_time=begun)
        attributes = {"smelt.rows": timing.rows, "smelt.batch_rows": timing.batch}
        if request.parts:
            attributes["smelt.model"] = request.parts[0]
        run = self._tracer.start_span("run", inside, start_time=begun, attributes=attributes)
        for kernel in timing.kernels:
            first, last = (begun + round(each * 1e9) for each in (kernel.begin, kernel.end))
            within = self._inside(run)
            self._tracer.start_span(kernel.name, within, start_time=first, attributes=kernel.attributes).end(
                end_time=last
            )
        run.end(end_time=ended)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


def _route(request: Request) -> str:
    """The path without names of models, of which there may be many."""
    names = set(request.parts)
    return "/".join("{}" if part in names else part for part in request.path.split("/"))
