"""Paths under /api/v1 for simple clients and the web page: the server, its models, `infer` on plain nested lists.

    POST /api/v1/models/digits/infer   {"inputs": {"pixels": [[0, 1, …]]}}   →   {"outputs": {"probabilities": [[…]]}}

Element types come from the model, shapes from the lists' nesting.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import msgspec
import numpy as np

from smelt.dtype import Array
from smelt.engine_api import Port
from smelt.errors import SmeltError
from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.keys import Keys
from smelt.serve.models import Version
from smelt.serve.oip import Service
from smelt.serve.problems import ForbiddenError, RequestError, status_of
from smelt.serve.stats import STARTED, Sample, process_usage
from smelt.serve.tensors import datatype, from_json
from smelt.serve.text_model import CHAT
from smelt.version import __version__

MAX_REQUESTS = 1024  # of one batch
PROTOCOLS = ["open-inference-protocol-v2", "openai", "ollama", "smelt-v1"]


class SimpleRequest(msgspec.Struct):
    inputs: msgspec.Raw
    parameters: dict[str, Any] = {}


class BatchRequest(msgspec.Struct):
    requests: list[SimpleRequest]


_REQUEST, _BATCH = msgspec.json.Decoder(SimpleRequest), msgspec.json.Decoder(BatchRequest)
_BY_NAME = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ANYTHING: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Simple:
    """The paths under /api/v1."""

    def __init__(self, service: Service, keys: Keys) -> None:
        self.service, self.keys = service, keys
        self.catalogue, self.config = service.catalogue, service.config

    def add_to(self, routes: Routes) -> None:
        routes.add("GET", "/api/v1/info", self.info)
        routes.add("GET", "/api/v1/models", self.models)
        routes.add("GET", "/api/v1/models/{}", self.model)
        routes.add("POST", "/api/v1/models/{}/infer", self.infer)
        routes.add("POST", "/api/v1/models/{}/infer/batch", self.infer_batch)

    async def info(self, request: Request) -> Response:
        usage, every = process_usage(), [(each, each.sample()) for each in self.catalogue.every()]
        return json_response(
            {
                "name": "smelt",
                "version": __version__,
                "ready": self.catalogue.ready,
                "uptime_seconds": round(time.time() - STARTED, 3),
                "cpu_seconds": round(usage.cpu_seconds + sum(each.worker_seconds for _, each in every), 6),
                "resident_bytes": usage.resident_bytes + sum(each.worker or 0 for _, each in every),
                "protocols": PROTOCOLS,
                "key": None if request.key is None else request.key.name,
                "admin": _is_admin(self.keys, request),
                "models": [describe(*each) for each in every if self.keys.opens(request.key, each[0].name)],
            }
        )

    async def models(self, request: Request) -> Response:
        opened = [each for each in self.catalogue.every() if self.keys.opens(request.key, each.name)]
        return json_response({"models": [describe(each, each.sample()) for each in opened]})

    async def model(self, request: Request) -> Response:
        (name,) = request.parts
        self.keys.check_model(request.key, name)
        versions = self.catalogue.find_versions(name).values()
        return json_response({"name": name, "versions": [describe(each, each.sample()) for each in versions]})

    async def infer(self, request: Request) -> Response:
        started = time.perf_counter()
        version = await self._callable(request)
        body = await request.body(self.config.max_body, self.config.body_timeout)
        asked = read_json(_REQUEST, body, "the request")
        return json_response(await request.while_connected(self._run(version, asked, started, _client(request))))

    async def infer_batch(self, request: Request) -> Response:
        """Several requests in one body. Each has an answer or an error of its own; they share calls where they may."""
        started = time.perf_counter()
        version = await self._callable(request)
        body = await request.body(self.config.max_body, self.config.body_timeout)
        asked = read_json(_BATCH, body, "the request").requests
        if len(asked) > MAX_REQUESTS:
            raise RequestError("too many requests", expected=f"at most {MAX_REQUESTS}", got=len(asked))
        work = (self._run_or_report(version, each, started, _client(request)) for each in asked)
        return json_response({"responses": await request.while_connected(_gather(work))})

    async def _callable(self, request: Request) -> Version:
        (name,) = request.parts
        self.keys.check_model(request.key, name)
        version = await self.catalogue.demand(name)
        if version.queue is None:
            raise RequestError(f"{name} is a language model", remedy="POST /v1/chat/completions, or /v1/completions")
        return version

    async def _run(self, version: Version, asked: SimpleRequest, started: float, client: str) -> dict[str, Any]:
        inputs = read_inputs(version, asked.inputs, self.config.max_elements)
        outcome = await self.service.infer(version.name, "", inputs, asked.parameters, started, client=client)
        outputs = {name: to_lists(array) for name, array in outcome.outputs.items()}
        spent = round((time.perf_counter() - started) * 1000, 3)
        answered = outcome.version
        return {"model": answered.name, "version": answered.version, "outputs": outputs, "ms": spent}

    async def _run_or_report(
        self, version: Version, asked: SimpleRequest, started: float, client: str
    ) -> dict[str, Any]:
        try:
            return await self._run(version, asked, started, client)
        except SmeltError as error:
            return {"error": str(error), "detail": error.record(), "status": status_of(error)}


async def _gather(work: Any) -> list[dict[str, Any]]:
    return list(await asyncio.gather(*work))


def _client(request: Request) -> str:
    return "" if request.key is None else str(request.key.name)


def _is_admin(keys: Keys, request: Request) -> bool:
    try:
        keys.check_admin(request.key)
    except ForbiddenError:
        return False
    return True


def describe(version: Version, sample: Sample) -> dict[str, Any]:
    """One version: what it takes and gives, its state, and what it did."""
    stats = version.stats
    return {
        "name": version.name,
        "version": version.version,
        "state": version.state,
        "reason": version.reason,
        "kind": kind_of(version),
        "inputs": [_port(port) for port in version.inputs],
        "outputs": [_port(port) for port in version.outputs],
        "batching": None if version.language or version.batching else version.config.max_batch,
        "not_batched": version.batching or None,
        "memory_bytes": sample.bytes,
        "load_seconds": round(version.seconds, 4),
        "waiting": sample.waiting,
        "running": sample.running,
        "requests": {"success": stats.success, "failure": stats.failure, "refused": stats.refused},
        "rows": stats.rows,
        "calls": stats.calls,
        "queue_seconds": stats.queue_s,
        "compute_seconds": stats.infer_s,
        "latency": {"bounds": list(stats.latency.bounds), "counts": stats.latency.counts},
        "tokens": {"prompt": stats.prompt_tokens, "generated": stats.generated_tokens},
    }


def kind_of(version: Version) -> str:
    """`tensors`, `chat`, `embedding` or `ranking`: what can be asked for. `chat` before it was loaded."""
    if version.about is not None:
        return version.about.kind
    return CHAT if version.language else "tensors"


def _port(port: Port) -> dict[str, Any]:
    """Dynamic dimensions keep their names: `["B", 64]`."""
    sizes = [size if isinstance(size, int) else str(size) for size in port.shape.sizes]
    return {"name": port.name, "datatype": datatype(port.shape.dtype, bool(port.labels)), "shape": sizes}


def read_inputs(version: Version, given: msgspec.Raw, most: int) -> dict[str, Array]:
    """Nested lists by name; a model with one input also takes the list itself."""
    ports = {port.name: port for port in (*version.inputs, *getattr(version.loaded, "optional", ()))}
    text = bytes(given)
    if text.lstrip()[:1] == b"{":
        named = read_json(_BY_NAME, text, "inputs")
    elif len(version.inputs) == 1:
        named = {version.inputs[0].name: given}
    else:
        raise RequestError("inputs have no names", expected=", ".join(ports), got="a list")
    unknown = [name for name in named if name not in ports]
    if unknown:
        raise RequestError(f"{version.name} has no such input", expected=", ".join(ports), got=", ".join(unknown))
    return {name: _array(ports[name], bytes(data), most) for name, data in named.items()}


def _array(port: Port, data: bytes, most: int) -> Array:
    value = read_json(_ANYTHING, data, port.name)
    shape: list[int] = []
    while isinstance(value, list) and len(shape) <= port.shape.rank:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    if not shape:  # a number or a string
        data = b"[" + data + b"]"
    kind = datatype(port.shape.dtype, bool(port.labels))
    assert kind is not None, port  # checked when the model was loaded
    return from_json(port.name, kind, shape, data, most)


def to_lists(array: Array) -> Any:
    """A result as nested lists; NaN and infinities leave as null."""
    if array.dtype.kind in "OUS":
        flat = [each.decode("utf-8", "replace") if isinstance(each, bytes) else str(each) for each in array.reshape(-1)]
        return np.array(flat, object).reshape(array.shape).tolist()
    if array.dtype.kind == "V" or (array.dtype.itemsize == 2 and array.dtype.kind == "f"):
        array = array.astype(np.float32)
    return array.tolist()
