"""The Open Inference Protocol over gRPC: the same service behind other messages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import grpc
import numpy as np

from smelt.client.wire import BYTES, NUMPY, datatype_of, to_bytes
from smelt.dtype import Array
from smelt.errors import DeviceError, SmeltError, UnsupportedError
from smelt.files import read_bytes
from smelt.serve.audit import Audit
from smelt.serve.config import Config, KeyConfig
from smelt.serve.grpc_messages import DATA_TYPES, messages
from smelt.serve.http import LEFT, ClientGoneError, Request
from smelt.serve.infer_request import MOST_TENSORS
from smelt.serve.journal import Journal
from smelt.serve.oip import Outcome, Service, check_outputs, classify, write_region
from smelt.serve.problems import (
    BrokenError,
    ForbiddenError,
    NotFoundError,
    RequestError,
    UnauthorizedError,
    as_problem,
    status_of,
)
from smelt.serve.shared_memory import REGION, Regions
from smelt.serve.tensors import check_shape, from_bytes
from smelt.version import __version__

T = TypeVar("T")
_M = messages()
INFER = "ModelInfer"
SERVICE = "inference.GRPCInferenceService"
LISTING = ("ModelStatistics", "RepositoryIndex")  # what they say depends on the key
_CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    499: grpc.StatusCode.CANCELLED,
    503: grpc.StatusCode.UNAVAILABLE,
    504: grpc.StatusCode.DEADLINE_EXCEEDED,
}
# Where typed contents are, and the NumPy type that they have there.
_CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    BYTES: "bytes_contents",
}


class GrpcFront:
    """The service's methods: message in, message out."""

    def __init__(self, service: Service, audit: Audit | None, journal: Journal) -> None:
        self.service, self.audit, self.journal = service, audit, journal
        self.keys, self.catalogue = service.keys, service.catalogue

    def handlers(self) -> grpc.GenericRpcHandler:
        rows: dict[str, tuple[Callable[..., Awaitable[Any]], bool]] = {
            "ServerLive": (self.server_live, False),
            "ServerReady": (self.server_ready, False),
            "ModelReady": (self.model_ready, False),
            "ServerMetadata": (self.server_metadata, False),
            "ModelMetadata": (self.model_metadata, False),
            INFER: (self.infer, False),
            "ModelConfig": (self.model_config, False),
            "ModelStatistics": (self.statistics, False),
            "RepositoryIndex": (self.index, False),
            "RepositoryModelLoad": (self.load, True),
            "RepositoryModelUnload": (self.unload, True),
            "SystemSharedMemoryStatus": (self.region_status, True),
            "SystemSharedMemoryRegister": (self.register_region, True),
            "SystemSharedMemoryUnregister": (self.unregister_region, True),
        }
        found = {
            name: grpc.unary_unary_rpc_method_handler(
                self._unary(name, work, admin),
                request_deserializer=_M[f"{name}Request"].FromString,
                response_serializer=_M[f"{name}Response"].SerializeToString,
            )
            for name, (work, admin) in rows.items()
        }
        found["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
            self._stream,
            request_deserializer=_M["ModelInferRequest"].FromString,
            response_serializer=_M["ModelStreamInferResponse"].SerializeToString,
        )
        return grpc.method_handlers_generic_handler(SERVICE, found)

    def _unary(self, name: str, work: Callable[..., Awaitable[Any]], admin: bool) -> Any:
        async def answer(message: Any, context: Any) -> Any:
            request = GrpcRequest(context, name, _model_of(message))
            try:
                with self._note_end(request):
                    key = self._check(request, context, admin)
                    more = (key,) if name in LISTING else (request,) if name == INFER else ()
                    return await work(message, *more)
            except SmeltError as error:
                await context.abort(_CODES.get(status_of(error), grpc.StatusCode.INTERNAL), str(error))

        return answer

    async def _stream(self, incoming: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
        async for message in incoming:
            request = GrpcRequest(context, INFER, _model_of(message))
            try:
                with self._note_end(request):
                    self._check(request, context, False)
                    found = await self.infer(message, request)
                yield _M["ModelStreamInferResponse"](infer_response=found)
            except SmeltError as error:
                yield _M["ModelStreamInferResponse"](
                    error_message=str(error), infer_response=_M["ModelInferResponse"](id=message.id)
                )

    @contextmanager
    def _note_end(self, request: GrpcRequest) -> Iterator[None]:
        """The same journal as over HTTP. What fails inside the server is logged, and says nothing of its inside."""
        started, identity = time.perf_counter(), self.journal.identify(request)
        status, error = 200, None
        try:
            yield
        except SmeltError as failed:
            error, status = failed, status_of(failed)
            raise
        except asyncio.CancelledError:
            error, status = ClientGoneError(LEFT), ClientGoneError.status
            raise
        except Exception as failed:
            self.journal.note_bug(request, identity, failed)
            error, status = as_problem(failed), BrokenError.status
            raise error from failed
        finally:
            self.journal.note(request, status, identity, started, error)

    def _check(self, request: GrpcRequest, context: Any, admin: bool) -> KeyConfig | None:
        """The same keys as over HTTP, in the call's metadata, and the same audit."""
        name = request.name
        if name in ("ServerLive", "ServerReady"):
            return None
        model = "".join(request.parts)
        key: KeyConfig | None = None
        try:
            key = request.key = self.keys.admit(request)
            if admin:
                self.keys.check_admin(key)
            elif model:
                self.keys.check_model(key, model)
        except (UnauthorizedError, ForbiddenError) as refused:
            self._note("refused", context, name, key, error=refused.message)
            raise
        if admin:
            self._note(name.removeprefix("RepositoryModel").lower(), context, name, key, model=model)
        return key

    def _note(self, event: str, context: Any, name: str, key: KeyConfig | None, **fields: Any) -> None:
        if self.audit is not None:
            by = None if key is None else key.name
            self.audit.write(event, path=f"{SERVICE}/{name}", key=by, client=context.peer(), **fields)

    async def server_live(self, message: Any) -> Any:
        return _M["ServerLiveResponse"](live=True)

    async def server_ready(self, message: Any) -> Any:
        return _M["ServerReadyResponse"](ready=self.catalogue.ready)

    async def model_ready(self, message: Any) -> Any:
        return _M["ModelReadyResponse"](ready=self.catalogue.pick(message.name, message.version).callable)

    async def server_metadata(self, message: Any) -> Any:
        return _M["ServerMetadataResponse"](name="smelt", version=__version__, extensions=self.service.extensions)

    async def model_metadata(self, message: Any) -> Any:
        found = await self.catalogue.demand(message.name, message.version)
        return _M["ModelMetadataResponse"](**found.metadata(self.catalogue.versions(found.name)))

    async def model_config(self, message: Any) -> Any:
        found = await self.catalogue.demand(message.name, message.version)
        meta = found.metadata([])
        ports = {
            key: [
                _M[kind](name=each["name"], data_type=DATA_TYPES[each["datatype"]], dims=each["shape"])
                for each in meta[f"{key}s"]
            ]
            for key, kind in (("input", "ModelInput"), ("output", "ModelOutput"))
        }
        config = _M["ModelConfig"](name=found.name, platform=meta["platform"], backend="smelt", **ports)
        return _M["ModelConfigResponse"](config=config)

    async def statistics(self, message: Any, key: KeyConfig | None) -> Any:
        known = self.catalogue.find_versions(message.name).values() if message.name else self.service.visible(key)
        rows = []
        for each in known:
            if message.version and each.version != message.version:
                continue
            record = each.stats.record()
            times = {name: _M["StatisticDuration"](**entry) for name, entry in record["inference_stats"].items()}
            counts = {name: record[name] for name in ("last_inference", "inference_count", "execution_count")}
            stats = _M["InferStatistics"](**times)
            batches = [_M["InferBatchStatistics"](**batch) for batch in record["batch_stats"]]
            rows.append(
                _M["ModelStatistics"](
                    name=each.name, version=each.version, inference_stats=stats, batch_stats=batches, **counts
                )
            )
        if message.version and not rows:
            raise NotFoundError(f"{message.name} has no version {message.version}")
        return _M["ModelStatisticsResponse"](model_stats=rows)

    async def index(self, message: Any, key: KeyConfig | None) -> Any:
        rows = [
            _M["ModelIndex"](name=each.name, version=each.version, state=each.state, reason=each.reason)
            for each in self.service.visible(key)
            if each.state == "READY" or not message.ready
        ]
        return _M["RepositoryIndexResponse"](models=rows)

    async def load(self, message: Any) -> Any:
        if message.parameters:
            raise RequestError("models are loaded as configured", got="parameters", remedy="change config.toml")
        await self.service.load(message.model_name)
        return _M["RepositoryModelLoadResponse"]()

    async def unload(self, message: Any) -> Any:
        await self.service.unload(message.model_name)
        return _M["RepositoryModelUnloadResponse"]()

    def _regions(self) -> Regions:
        if self.service.regions is None:
            raise UnsupportedError("shared memory is off here", remedy="shared_memory = true")
        return self.service.regions

    async def region_status(self, message: Any) -> Any:
        rows = self._regions().status(message.name)
        return _M["SystemSharedMemoryStatusResponse"](regions={row["name"]: _M["RegionStatus"](**row) for row in rows})

    async def register_region(self, message: Any) -> Any:
        self._regions().register(message.name, message.key, message.offset, message.byte_size)
        return _M["SystemSharedMemoryRegisterResponse"]()

    async def unregister_region(self, message: Any) -> Any:
        self._regions().unregister(message.name)
        return _M["SystemSharedMemoryUnregisterResponse"]()

    async def infer(self, message: Any, request: GrpcRequest | None = None) -> Any:
        started = time.perf_counter()
        inputs = _read_inputs(message, self.service.config.max_elements, self.service.regions)
        outcome = await self.service.infer(
            message.model_name, message.model_version, inputs, _parameters(message.parameters), started, request
        )
        return _write(message, outcome, self.service.regions)


class GrpcRequest(Request):
    """A call as keys, statistics and the journal see a request: its headers are the metadata."""

    is_rpc = True

    def __init__(self, context: Any, name: str, model: str) -> None:
        pairs = [(k.encode(), value.encode()) for k, value in context.invocation_metadata() if isinstance(value, str)]
        scope = {"method": "POST", "path": f"/{SERVICE}/{name}", "headers": pairs, "query_string": b""}
        super().__init__({**scope, "client": (context.peer(),)}, _nothing)
        self.name = name
        self.parts = (model,) if model else ()

    async def while_connected(self, work: Coroutine[Any, Any, T]) -> T:
        """gRPC cancels the handler itself when the client leaves."""
        return await work


async def _nothing() -> Mapping[str, Any]:
    return {"type": "http.disconnect"}


def _model_of(message: Any) -> str:
    return getattr(message, "model_name", "") or getattr(message, "name", "")


def _parameters(entries: Mapping[str, Any]) -> dict[str, Any]:
    found = {}
    for name, entry in entries.items():
        which = entry.WhichOneof("parameter_choice")
        if which is not None:
            found[name] = getattr(entry, which)
    return found


def _read_inputs(message: Any, most: int, regions: Regions | None) -> dict[str, Array]:
    """Raw contents are in the order of the inputs, without those in shared memory."""
    if len(message.inputs) > MOST_TENSORS:
        raise RequestError("too many inputs", expected=f"at most {MOST_TENSORS}", got=len(message.inputs))
    raw = list(message.raw_input_contents)
    shared = [regions is not None and REGION in tensor.parameters for tensor in message.inputs]
    inline = len(shared) - sum(shared)
    if raw and len(raw) != inline:
        raise RequestError("raw_input_contents does not fit", expected=f"{inline} tensors", got=len(raw))
    parts = iter(raw)
    taken = 0  # of shared memory
    inputs: dict[str, Array] = {}
    for tensor, is_shared in zip(message.inputs, shared, strict=True):
        name, kind, shape = tensor.name, tensor.datatype, list(tensor.shape)
        if name in inputs:
            raise RequestError(f"the input {name!r} comes twice")
        if is_shared and regions is not None:
            found = regions.read(name, _parameters(tensor.parameters), taken)
            taken += len(found)
            inputs[name] = from_bytes(name, kind, shape, found, most)
        elif raw:
            if tensor.HasField("contents"):
                raise RequestError(f"{name}: contents and raw_input_contents exclude each other")
            inputs[name] = from_bytes(name, kind, shape, memoryview(next(parts)), most)
        else:
            inputs[name] = _to_array(tensor, shape, most)
    return inputs


def _to_array(tensor: Any, shape: list[int], most: int) -> Array:
    """Contents as a list of numbers."""
    count, kind = check_shape(tensor.name, shape, most), tensor.datatype
    field = _CONTENTS.get(kind)
    if field is None:
        raise RequestError(
            f"{tensor.name}: {kind} has no contents", expected=", ".join(_CONTENTS), remedy="raw_input_contents"
        )
    values = getattr(tensor.contents, field)
    if len(values) != count:
        raise RequestError(
            f"{tensor.name}: the contents do not fit the shape", expected=f"{count} in {field}", got=len(values)
        )
    if kind == BYTES:
        made = np.empty(count, object)
        made[:] = [_text(each) for each in values]
        return made.reshape(shape)
    numpy = NUMPY[kind]
    if numpy.kind in "iu" and values and not np.iinfo(numpy).min <= min(values) <= max(values) <= np.iinfo(numpy).max:
        raise RequestError(f"{tensor.name}: a number is out of the range of {kind}")
    return np.array(values, numpy).reshape(shape)


def _text(each: bytes) -> str | bytes:
    try:
        return each.decode()
    except UnicodeDecodeError:
        return each


def _write(message: Any, outcome: Outcome, regions: Regions | None) -> Any:
    """The raw contents of an output in shared memory are empty."""
    check_outputs([each.name for each in message.outputs], outcome)
    asked = [(each.name, _parameters(each.parameters)) for each in message.outputs]
    outputs, raw = [], []
    for name, parameters in asked or [(name, {}) for name in outcome.outputs]:
        array = classify(outcome.outputs[name], parameters.get("classification"))
        row = _M["InferOutputTensor"](name=name, datatype=datatype_of(array), shape=array.shape)
        if REGION in parameters:
            for key, value in write_region(regions, name, parameters, array).items():
                field = "string_param" if isinstance(value, str) else "int64_param"
                row.parameters[key].CopyFrom(_M["InferParameter"](**{field: value}))
            raw.append(b"")
        else:
            raw.append(to_bytes(array))
        outputs.append(row)
    version = outcome.version
    return _M["ModelInferResponse"](
        model_name=version.name,
        model_version=version.version,
        id=message.id,
        outputs=outputs,
        raw_output_contents=raw,
    )


async def start(service: Service, audit: Audit | None, journal: Journal, host: str, port: int) -> tuple[Any, int]:
    """A running gRPC server, and its port. It shares the event loop with HTTP."""
    most = service.config.max_body
    options = [
        ("grpc.max_receive_message_length", most),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(service.config.workers > 1)),
    ]
    server = grpc.aio.server(options=options)
    server.add_generic_rpc_handlers((GrpcFront(service, audit, journal).handlers(),))
    address = f"{f'[{host}]' if ':' in host else host}:{port}"
    try:
        credentials = _credentials(service.config)
        if credentials is None:
            bound = server.add_insecure_port(address)
        else:
            bound = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        raise DeviceError(
            f"cannot listen on {address}", got=error, remedy="--grpc-port 0 takes any free port"
        ) from error
    await server.start()
    return server, bound


def _credentials(config: Config) -> Any:
    """The certificates of HTTP serve gRPC, too; None without any."""
    if config.tls_certificate is None or config.tls_key is None:
        return None
    pair = (read_bytes(config.tls_key), read_bytes(config.tls_certificate))
    clients = None if config.tls_client_ca is None else read_bytes(config.tls_client_ca)
    return grpc.ssl_server_credentials([pair], clients, require_client_auth=clients is not None)
