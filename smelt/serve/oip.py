"""The Open Inference Protocol v2 over HTTP, with the binary tensor, statistics and repository extensions.

`Service` holds what the REST and gRPC fronts share: a decoded request in, outputs and timing out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from smelt.client.wire import datatype_of, to_bytes
from smelt.dtype import Array
from smelt.serve.config import Config, KeyConfig
from smelt.serve.fronts import Others
from smelt.serve.http import JSON_TYPE, Request, Response, Routes, WholeRequest, json_response, read_json
from smelt.serve.infer_request import InferRequest, Templates, TensorOut, parse
from smelt.serve.keys import Keys
from smelt.serve.models import Catalogue, Version, check_inputs
from smelt.serve.pipeline import PipelineQueue
from smelt.serve.problems import BusyError, NotFoundError, RequestError, UnavailableError
from smelt.serve.queue import Job, ModelQueue, Timing
from smelt.serve.shared_memory import REGION, Regions
from smelt.serve.short_calls import ShortCall
from smelt.serve.tensors import to_json
from smelt.version import __version__

EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "model_repository", "schedule_policy"]
EXTENSIONS += ["sequence", "statistics"]
HEADER_LENGTH = b"inference-header-content-length"
BINARY_TYPE = b"application/octet-stream"
LONGEST = 1 << 53  # microseconds
T = TypeVar("T")


class IndexRequest(msgspec.Struct):
    ready: bool = False


class LoadRequest(msgspec.Struct):
    parameters: dict[str, Any] = {}


_INDEX, _LOAD = msgspec.json.Decoder(IndexRequest), msgspec.json.Decoder(LoadRequest)
_encode = msgspec.json.Encoder().encode


@dataclass(slots=True)
class Outcome:
    """Outputs of one request, and the version that gave them."""

    version: Version
    outputs: dict[str, Array]


class Service:
    """Inference independent of the protocol: checks, queue, statistics."""

    def __init__(self, catalogue: Catalogue, config: Config, keys: Keys) -> None:
        self.catalogue, self.config, self.keys = catalogue, config, keys
        self.regions = Regions() if config.shared_memory else None
        self.extensions = [*EXTENSIONS, *(["system_shared_memory"] if config.shared_memory else [])]
        self.others: Others | None = None  # server processes, with `--workers`
        self._templates = Templates()

    def visible(self, key: KeyConfig | None) -> list[Version]:
        """The models that a key opens."""
        return [each for each in self.catalogue.every() if self.keys.opens(key, each.name)]

    async def load(self, name: str) -> Version:
        """Load a model here and in the other server processes."""
        found = await self.catalogue.load(name)
        await self._tell_others("load", name)
        return found

    async def unload(self, name: str) -> None:
        await self.catalogue.unload(name)
        await self._tell_others("unload", name)

    async def _tell_others(self, to: str, name: str) -> None:
        failed = [text for text in await self.others.ask(to, name) if text] if self.others is not None else []
        if failed:
            raise UnavailableError(f"{name}: another server process could not {to} it", got=failed[0])

    def parse(self, body: bytes, header_length: bytes | None) -> tuple[InferRequest, dict[str, Array]]:
        """A request over HTTP and its arrays."""
        return parse(body, header_length, self.config.max_elements, self.regions, self._templates)

    async def infer(
        self,
        name: str,
        version: str,
        inputs: Mapping[str, Array],
        parameters: Mapping[str, Any],
        started: float,
        request: Request | None = None,
        client: str = "",
    ) -> Outcome:
        """Run a model. `started`: when the request came, on `perf_counter`. The client's leaving cancels the call."""
        found = await self.catalogue.demand(name, version)
        call = InferCall(found, started, request)
        try:
            queue, options = call.prepare(inputs), _options(found, parameters)
            if request is not None and request.key is not None:
                client = request.key.name
            if found.sequences is not None and isinstance(queue, ModelQueue):
                ports = found.loaded.signature.inputs
                work = found.sequences.infer(queue, ports, inputs, parameters, client, *options)
            else:
                work = queue.infer(inputs, *options, client)
            outputs, timing = await (work if request is None else request.while_connected(work))
        except BaseException as error:
            call.fail(error)
            raise
        return call.succeed(outputs, timing)

    def start(
        self,
        version: Version,
        inputs: Mapping[str, Array],
        parameters: Mapping[str, Any],
        started: float,
        request: Request,
    ) -> Outcome | InferCall:
        """The same for a model that is loaded, without a task. A short call has ended when this returns."""
        version.used = time.monotonic()
        call = InferCall(version, started, request)
        try:
            queue = call.prepare(inputs)
            assert isinstance(queue, ModelQueue)
            timeout, priority = _options(version, parameters)
            found = queue.infer_soon(inputs, timeout) if queue.is_inline(inputs) else None
            if isinstance(found, tuple):
                return call.succeed(*found)
            client = "" if request.key is None else request.key.name
            call.job = found or queue.submit(inputs, timeout, priority, client)
        except BaseException as error:
            call.fail(error)
            raise
        return call


class InferCall:
    """A call that runs, and the statistics that it will change."""

    __slots__ = ("begun", "job", "request", "started", "version")

    def __init__(self, version: Version, started: float, request: Request | None) -> None:
        self.version, self.started, self.request = version, started, request
        self.begun = time.perf_counter()
        self.job: Job | ShortCall | None = None  # in the model's queue

    def prepare(self, inputs: Mapping[str, Array]) -> ModelQueue | PipelineQueue:
        """The model's queue, if it can take the inputs."""
        version = self.version
        if version.queue is None:
            raise RequestError(
                f"{version.name} is a language model", remedy="POST /v1/chat/completions, or /v1/completions"
            )
        check_inputs(version, inputs)
        return version.queue

    def fail(self, error: BaseException) -> None:
        stats = self.version.stats
        if isinstance(error, BusyError):
            stats.refused += 1
        else:
            stats.failure += 1
            stats.failure_s += time.perf_counter() - self.started

    def succeed(self, outputs: dict[str, Array], timing: Timing) -> Outcome:
        stats, now = self.version.stats, time.perf_counter()
        if self.request is not None:
            self.request.timing, self.request.finished = timing, now
        spent = now - self.started
        stats.success += 1
        stats.rows += timing.rows
        stats.last = time.time()
        stats.input_s += self.begun - self.started
        stats.queue_s += timing.waited
        stats.infer_s += timing.computed
        stats.success_s += spent
        stats.latency.add(spent)
        return Outcome(self.version, outputs)


def _options(version: Version, parameters: Mapping[str, Any]) -> tuple[float | None, int]:
    """Timeout and priority of a call."""
    default = version.config.timeout
    return (_timeout(parameters, default), _priority(parameters)) if parameters else (default, 0)


def _timeout(parameters: Mapping[str, Any], default: float | None) -> float | None:
    """`timeout` is in microseconds, as Triton has it; it can only shorten the model's."""
    asked = parameters.get("timeout")
    if asked is None or asked == 0:
        return default
    if isinstance(asked, bool) or not isinstance(asked, int | float) or asked < 0:
        raise RequestError("timeout is no time", expected="microseconds, a positive number", got=repr(asked)[:80])
    seconds = min(asked, LONGEST) / 1e6
    return seconds if default is None else min(seconds, default)


def _priority(parameters: Mapping[str, Any]) -> int:
    """Triton's order: 1 comes before 2, 0 is the default. Ours: larger is sooner."""
    asked = parameters.get("priority", 0)
    if isinstance(asked, bool) or not isinstance(asked, int) or not 0 <= asked < 1 << 32:
        raise RequestError("priority is no number", expected="0 to 4294967295", got=repr(asked)[:80])
    return (1 << 32) - asked if asked else 0


# ---- REST ----


class Rest:
    """The protocol's paths under /v2."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.catalogue = service.catalogue
        self.config = service.config

    def add_to(self, routes: Routes) -> None:
        routes.add("GET", "/v2", self.server)
        routes.add("GET", "/v2/health/live", self.live)
        routes.add("GET", "/v2/health/ready", self.ready)
        for prefix in ("/v2/models/{}", "/v2/models/{}/versions/{}"):
            routes.add("GET", prefix, self.model)
            routes.add("GET", f"{prefix}/ready", self.model_ready)
            routes.add("POST", f"{prefix}/infer", self.infer)
            routes.add_direct(self.infer, DirectInfer(self.service))
            routes.add("GET", f"{prefix}/stats", self.stats)
            routes.add("GET", f"{prefix}/config", self.model_config)
        routes.add("GET", "/v2/models/stats", self.stats)
        routes.add("POST", "/v2/repository/index", self.index)
        routes.add("POST", "/v2/repository/models/{}/load", self.load)
        routes.add("POST", "/v2/repository/models/{}/unload", self.unload)

    async def server(self, request: Request) -> Response:
        return json_response({"name": "smelt", "version": __version__, "extensions": self.service.extensions})

    async def live(self, request: Request) -> Response:
        return json_response({"live": True})

    async def ready(self, request: Request) -> Response:
        ready = self.catalogue.ready
        return json_response({"ready": ready}, 200 if ready else 503)

    async def model(self, request: Request) -> Response:
        found = await self.catalogue.demand(*request.parts)
        return json_response(found.metadata(self.catalogue.versions(found.name)))

    async def model_ready(self, request: Request) -> Response:
        found = self.catalogue.pick(*request.parts)
        if not found.callable:
            return json_response({"name": found.name, "ready": False, "reason": found.reason}, 503)
        return json_response({"name": found.name, "ready": True})

    async def stats(self, request: Request) -> Response:
        if request.parts:
            name, *version = request.parts
            known = self.catalogue.find_versions(name)
            if version and version[0] not in known:
                raise NotFoundError(f"{name} has no version {version[0]}", expected=", ".join(known))
            found = [known[version[0]]] if version else list(known.values())
        else:
            found = self.service.visible(request.key)
        rows = [{"name": each.name, "version": each.version, **each.stats.record()} for each in found]
        return json_response({"model_stats": rows})

    async def model_config(self, request: Request) -> Response:
        found = await self.catalogue.demand(*request.parts)
        config = found.config
        meta = found.metadata(self.catalogue.versions(found.name))
        ports = {
            key: [
                {"name": each["name"], "data_type": f"TYPE_{_proto_type(each['datatype'])}", "dims": each["shape"]}
                for each in meta[f"{key}s"]
            ]
            for key in ("input", "output")
        }
        batched = {"preferred_batch_size": [], "max_queue_delay_microseconds": round(config.max_delay_ms * 1000)}
        return json_response(
            {
                "name": found.name,
                "platform": meta["platform"],
                "max_batch_size": 0,  # in Triton's sense: axis 0 is part of every shape
                **ports,
                "instance_group": [{"count": config.instances, "kind": "KIND_CPU"}],
                "parameters": {
                    "batching": {"string_value": found.batching or "rows are proven independent"},
                    "max_batch": {"string_value": str(config.max_batch)},
                    "isolation": {"string_value": ", ".join(found.layers) or "none"},
                },
                **({} if found.batching or found.language else {"dynamic_batching": batched}),
            }
        )

    async def index(self, request: Request) -> Response:
        body = await request.body(1 << 16, self.config.body_timeout)
        only = _read_options(_INDEX, body).ready
        rows = [
            {"name": each.name, "version": each.version, "state": each.state, "reason": each.reason}
            for each in self.service.visible(request.key)
            if each.state == "READY" or not only
        ]
        return json_response(rows)

    async def load(self, request: Request) -> Response:
        options = _read_options(_LOAD, await request.body(1 << 16, self.config.body_timeout))
        if options.parameters:
            raise RequestError("models are loaded as configured", got="parameters", remedy="change config.toml")
        found = await self.service.load(request.parts[0])
        return json_response({"name": found.name, "version": found.version, "seconds": round(found.seconds, 4)})

    async def unload(self, request: Request) -> Response:
        await request.body(1 << 16, self.config.body_timeout)
        await self.service.unload(request.parts[0])
        return json_response({})

    async def infer(self, request: Request) -> Response:
        started = time.perf_counter()
        name, *version = request.parts
        body = await request.body(self.config.max_body, self.config.body_timeout)
        asked, inputs = self.service.parse(body, request.headers.get(HEADER_LENGTH))
        outcome = await self.service.infer(
            name, version[0] if version else "", inputs, asked.parameters, started, request
        )
        return respond(asked, outcome, self.service.regions)


class DirectInfer:
    """`infer` for requests that arrive whole: without a task, and short calls without leaving the parser's callback."""

    def __init__(self, service: Service) -> None:
        self.service, self.config = service, service.config

    def accepts(self, parts: tuple[str, ...]) -> Version | None:
        """The model, if it can be called now and is no pipeline."""
        return self.service.catalogue.find_ready(*parts)

    def start(self, request: WholeRequest, accepted: Version) -> Response | PendingInfer:
        started = time.perf_counter()
        body = request.decode_body(request.data, self.config.max_body)
        asked, inputs = self.service.parse(body, request.headers.get(HEADER_LENGTH))
        call = self.service.start(accepted, inputs, asked.parameters, started, request)
        if isinstance(call, InferCall):
            return PendingInfer(call, asked, self.service.regions)
        return respond(asked, call, self.service.regions)


class PendingInfer:
    """A request that waits for its model."""

    __slots__ = ("_asked", "_call", "_regions")

    def __init__(self, call: InferCall, asked: InferRequest, regions: Regions | None) -> None:
        self._call, self._asked, self._regions = call, asked, regions

    def then(self, done: Callable[[], object]) -> None:
        assert self._call.job is not None
        self._call.job.on_done = done

    def answer(self) -> Response:
        job = self._call.job
        assert job is not None
        try:
            outputs, timing = job.result() if isinstance(job, ShortCall) else (job.future.result(), job.timing)
        except BaseException as error:
            self._call.fail(error)
            raise
        return respond(self._asked, self._call.succeed(outputs, timing), self._regions)

    def cancel(self) -> None:
        job, queue = self._call.job, self._call.version.queue
        if isinstance(job, ShortCall):
            job.cancel()
        elif job is not None:
            if isinstance(queue, ModelQueue):
                queue.cancel(job)
            job.give_up()


def _proto_type(name: str) -> str:
    return "STRING" if name == "BYTES" else name


def _read_options(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    """A body that may be missing: then it has its defaults."""
    return read_json(decoder, body if body.strip() else b"{}", "the body")


def respond(asked: InferRequest, outcome: Outcome, regions: Regions | None) -> Response:
    """`answer`, and its time in the statistics."""
    started = time.perf_counter()
    response = answer(asked, outcome, regions)
    outcome.version.stats.output_s += time.perf_counter() - started
    return response


def answer(asked: InferRequest, outcome: Outcome, regions: Regions | None = None) -> Response:
    """The requested outputs, each as JSON or binary as the request says."""
    wanted = _wanted_outputs(asked.outputs, outcome)
    binary_default = asked.parameters.get("binary_data_output") is True
    rows: list[bytes] = []
    raw: list[bytes] = []
    for name, parameters in wanted:
        array = outcome.outputs[name]
        if parameters:
            array = classify(array, parameters.get("classification"))
        if REGION in parameters:
            rows.append(_write_row(name, array, b'"parameters":', write_region(regions, name, parameters, array)))
        elif parameters.get("binary_data", binary_default) is True:
            raw.append(to_bytes(array))
            rows.append(_write_row(name, array, b'"parameters":', {"binary_data_size": len(raw[-1])}))
        else:
            rows.append(_write_row(name, array, b'"data":', to_json(array)))
    version = outcome.version
    end = b"]}" if not asked.id else b'],"id":%b}' % _encode(asked.id)
    text = b"".join((_write_start(version.name, version.version), b",".join(rows), end))
    if not raw:
        return Response(text, kind=JSON_TYPE)
    length = [(HEADER_LENGTH, str(len(text)).encode())]
    return Response(b"".join((text, *raw)), kind=BINARY_TYPE, headers=length)


def _write_row(name: str, array: Array, key: bytes, value: Any) -> bytes:
    """An output as JSON."""
    return b"%b%b%b}" % (_write_port(name, datatype_of(array), array.shape), key, _encode(value))


@lru_cache(1024)
def _write_port(name: str, kind: str, shape: tuple[int, ...]) -> bytes:
    """The same before its last field."""
    return _encode({"name": name, "datatype": kind, "shape": shape})[:-1] + b","


@lru_cache(1024)
def _write_start(name: str, version: str) -> bytes:
    """An answer before its outputs."""
    return _encode({"model_name": name, "model_version": version})[:-1] + b',"outputs":['


def write_region(regions: Regions | None, name: str, parameters: Mapping[str, Any], array: Array) -> dict[str, Any]:
    if regions is None:
        raise RequestError(f"{name}: shared memory is off here", remedy="shared_memory = true")
    return regions.write(name, parameters, to_bytes(array))


def _wanted_outputs(outputs: Sequence[TensorOut], outcome: Outcome) -> list[tuple[str, Mapping[str, Any]]]:
    if not outputs:
        return [(name, {}) for name in outcome.outputs]
    check_outputs([each.name for each in outputs], outcome)
    return [(each.name, each.parameters) for each in outputs]


def check_outputs(names: Sequence[str], outcome: Outcome) -> None:
    """Refuse what the model does not have, and answers that are many times as large as the outputs."""
    for name in names:
        if name not in outcome.outputs:
            raise RequestError(
                f"no output {name!r}", expected=", ".join(outcome.outputs), remedy="leave out `outputs` for all"
            )
    if len({*names}) < len(names):
        raise RequestError("an output is requested twice", expected="each name once")


def classify(array: Array, count: Any) -> Array:
    """Triton's classification extension: the k largest of each row as `value:index`."""
    if count is None or count == 0:
        return array
    import numpy as np

    if (
        isinstance(count, bool)
        or not isinstance(count, int)
        or count < 0
        or array.dtype.kind not in "fiuV"
        or not array.ndim
    ):
        raise RequestError(
            "classification does not fit", expected="a count, and an output of numbers", got=repr(count)[:40]
        )
    k = min(count, array.shape[-1])
    order = np.argsort(-array.astype(np.float64), axis=-1, kind="stable")[..., :k]
    best = np.take_along_axis(array, order, -1)
    text = [
        f"{value:f}:{index}" for value, index in zip(best.reshape(-1).tolist(), order.reshape(-1).tolist(), strict=True)
    ]
    return np.array(text, object).reshape(best.shape)
