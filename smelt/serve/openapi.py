"""`/openapi.json`: every path with the types that its handler reads and writes, from one table.

Requests are the structures that handlers decode; answers are the records below, which the tests hold real answers to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec

from smelt.serve import infer_request, oip, ollama, openai, rerank, responses, shared_memory, simple
from smelt.serve.config import NAME
from smelt.serve.http import Request, Response, Routes, json_response
from smelt.version import __version__


class Record(msgspec.Struct, forbid_unknown_fields=True):
    """An answer whose fields are all here."""


class Empty(Record):
    pass


class Detail(Record):
    error: str
    message: str
    expected: str | msgspec.UnsetType = msgspec.UNSET
    got: str | msgspec.UnsetType = msgspec.UNSET
    where: str | msgspec.UnsetType = msgspec.UNSET
    remedy: str | msgspec.UnsetType = msgspec.UNSET


class Problem(Record):
    """What went wrong, for people (`error`) and for machines (`detail`)."""

    error: str
    detail: Detail


class OpenAIError(Record):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIProblem(Record):
    error: OpenAIError


class Live(Record):
    live: bool


class Ready(Record):
    ready: bool


class ServerMetadata(Record):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(Record):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Record):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class ModelReady(Record):
    name: str
    ready: bool
    reason: str | msgspec.UnsetType = msgspec.UNSET


# `oip` keeps the bytes of a tensor's JSON; the document says what they are.
TensorIn = msgspec.defstruct(
    "TensorIn", [("data", list[Any] | msgspec.UnsetType, msgspec.UNSET)], bases=(infer_request.TensorIn,)
)
_Inputs: Any = Annotated[list[TensorIn], infer_request.FEW]  # type: ignore[valid-type]
InferRequest = msgspec.defstruct("InferRequest", [("inputs", _Inputs)], bases=(infer_request.InferRequest,))


class OutputTensor(Record):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    data: list[Any] | msgspec.UnsetType = msgspec.UNSET


class InferResponse(Record):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | msgspec.UnsetType = msgspec.UNSET


class Duration(Record):
    count: int
    ns: int


class InferStatistics(Record):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class BatchStatistics(Record):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(Record):
    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferStatistics
    batch_stats: list[BatchStatistics]


class Statistics(Record):
    model_stats: list[VersionStatistics]


class Region(Record):
    name: str
    key: str
    offset: int
    byte_size: int


class Slow(Record):
    slow_ms: float
    requests: list[dict[str, Any]]


class ModelIndex(Record):
    name: str
    version: str
    state: str
    reason: str


class Loaded(Record):
    name: str
    version: str
    seconds: float


# ---- /api/v1 ----


class PortRecord(Record):
    name: str
    datatype: str
    shape: list[int | str]


class RequestCounts(Record):
    success: int
    failure: int
    refused: int


class Latency(Record):
    bounds: list[float]
    counts: list[int]


class Tokens(Record):
    prompt: int
    generated: int


class ModelRecord(Record):
    name: str
    version: str
    state: str
    reason: str
    kind: str
    inputs: list[PortRecord]
    outputs: list[PortRecord]
    batching: int | None
    not_batched: str | None
    memory_bytes: int
    load_seconds: float
    waiting: int
    running: int
    requests: RequestCounts
    rows: int
    calls: int
    queue_seconds: float
    compute_seconds: float
    latency: Latency
    tokens: Tokens


class Models(Record):
    models: list[ModelRecord]


class ModelVersions(Record):
    name: str
    versions: list[ModelRecord]


class Info(Record):
    name: str
    version: str
    ready: bool
    uptime_seconds: float
    cpu_seconds: float
    resident_bytes: int
    protocols: list[str]
    key: str | None
    admin: bool
    models: list[ModelRecord]


class SimpleResponse(Record):
    model: str
    version: str
    outputs: dict[str, Any]
    ms: float


class BatchResponse(Record):
    """The outputs of one request, or what was wrong with it."""

    model: str | msgspec.UnsetType = msgspec.UNSET
    version: str | msgspec.UnsetType = msgspec.UNSET
    outputs: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET
    ms: float | msgspec.UnsetType = msgspec.UNSET
    error: str | msgspec.UnsetType = msgspec.UNSET
    detail: Detail | msgspec.UnsetType = msgspec.UNSET
    status: int | msgspec.UnsetType = msgspec.UNSET


class BatchResponses(Record):
    responses: list[BatchResponse]


# ---- language models ----


class OpenAIModel(Record):
    id: str
    object: str
    created: int
    owned_by: str
    max_model_len: int | msgspec.UnsetType = msgspec.UNSET  # known once it was loaded


class OpenAIModels(Record):
    object: str
    data: list[OpenAIModel]


class Usage(Record):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class PromptUsage(Record):
    prompt_tokens: int
    total_tokens: int


class Completion(Record):
    id: str
    object: str
    created: int
    model: str
    choices: list[dict[str, Any]]
    usage: Usage


class Embedding(Record):
    object: str
    index: int
    embedding: list[float] | str


class Embeddings(Record):
    object: str
    data: list[Embedding]
    model: str
    usage: PromptUsage


class RerankResult(Record):
    index: int
    relevance_score: float
    document: rerank.Document | msgspec.UnsetType = msgspec.UNSET


class Reranked(Record):
    object: str
    model: str
    results: list[RerankResult]
    usage: PromptUsage


class Tokenized(Record):
    tokens: list[int]
    count: int
    max_model_len: int


class Detokenized(Record):
    prompt: str


class OllamaModels(Record):
    models: list[dict[str, Any]]


class OllamaVectors(Record):
    model: str
    embeddings: list[list[float]]
    total_duration: int
    prompt_eval_count: int


class OllamaVector(Record):
    embedding: list[float]


class OllamaVersion(Record):
    version: str


# ---- the table ----

TEXT, EVENTS, LINES, BINARY = "text/plain", "text/event-stream", "application/x-ndjson", "application/octet-stream"


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path: what it reads, what it gives with status 200, and in which other forms."""

    method: str
    path: str
    about: str
    gives: Any = None  # None: nothing but the status
    reads: Any = None
    also: tuple[str, ...] = ()  # further types of the answer
    required: bool = True  # whether there must be a body
    may_fail: Any = None  # the record of status 503, where it is no `Problem`


ANYTHING = dict[str, Any]
_MODEL = (
    Operation("get", "", "Metadata of a model.", ModelMetadata),
    Operation("get", "/ready", "Whether a model can be called.", ModelReady, may_fail=ModelReady),
    Operation("post", "/infer", "Run a model.", InferResponse, InferRequest, also=(BINARY,)),
    Operation("get", "/stats", "What a model did.", Statistics),
    Operation("get", "/config", "The configuration of a model, in Triton's form.", ANYTHING),
)


def _operations() -> Sequence[Operation]:
    models = [
        Operation(each.method, prefix + each.path, each.about, each.gives, each.reads, each.also, True, each.may_fail)
        for prefix in ("/v2/models/{name}", "/v2/models/{name}/versions/{version}")
        for each in _MODEL
    ]
    return (
        Operation("get", "/v2", "The server.", ServerMetadata),
        Operation("get", "/v2/health/live", "Whether the server runs.", Live),
        Operation("get", "/v2/health/ready", "Whether every model can be called.", Ready, may_fail=Ready),
        Operation("get", "/health", "The same, without a body."),
        Operation("get", "/ping", "The same, without a body."),
        *models,
        Operation("get", "/v2/models/stats", "What every model did.", Statistics),
        Operation("post", "/v2/repository/index", "Models and states.", list[ModelIndex], oip.IndexRequest, (), False),
        Operation("post", "/v2/repository/models/{name}/load", "Load a model.", Loaded, oip.LoadRequest, (), False),
        Operation("post", "/v2/repository/models/{name}/unload", "Unload a model.", Empty, ANYTHING, (), False),
        Operation("get", "/v1/models", "Language models.", OpenAIModels),
        Operation("get", "/v1/models/{name}", "A language model.", OpenAIModel),
        Operation("post", "/v1/chat/completions", "Chat.", Completion, openai.ChatRequest, (EVENTS,)),
        Operation("post", "/v1/completions", "Continue a text.", Completion, openai.CompletionRequest, (EVENTS,)),
        Operation("post", "/v1/responses", "Chat, in the newer form.", ANYTHING, responses.ResponsesRequest, (EVENTS,)),
        Operation("post", "/v1/embeddings", "Texts as vectors.", Embeddings, openai.EmbeddingRequest),
        Operation("post", "/v1/rerank", "Documents by relevance.", Reranked, rerank.RerankRequest),
        Operation("post", "/rerank", "Documents by relevance.", Reranked, rerank.RerankRequest),
        Operation("post", "/tokenize", "Text as tokens.", Tokenized, openai.TokenizeRequest),
        Operation("post", "/detokenize", "Tokens as text.", Detokenized, openai.DetokenizeRequest),
        Operation("post", "/api/chat", "Chat, in Ollama's form.", ANYTHING, ollama.OllamaChatRequest, (LINES,)),
        Operation("post", "/api/generate", "Complete a text.", ANYTHING, ollama.OllamaGenerateRequest, (LINES,)),
        Operation("post", "/api/embed", "Texts as vectors, as Ollama.", OllamaVectors, ollama.OllamaEmbedRequest),
        Operation("post", "/api/embeddings", "A text as a vector.", OllamaVector, ollama.OllamaEmbeddingsRequest),
        Operation("get", "/api/ps", "Language models in memory, in Ollama's form.", OllamaModels),
        Operation("get", "/api/tags", "Language models, in Ollama's form.", OllamaModels),
        Operation("post", "/api/show", "A language model, in Ollama's form.", ANYTHING, ollama.OllamaShowRequest),
        Operation("get", "/api/version", "The server's version.", OllamaVersion),
        Operation("get", "/api/v1/info", "The server and its models.", Info),
        Operation("get", "/api/v1/models", "Models.", Models),
        Operation("get", "/api/v1/models/{name}", "The versions of a model.", ModelVersions),
        Operation("post", "/api/v1/models/{name}/infer", "Run a model on lists.", SimpleResponse, simple.SimpleRequest),
        Operation("post", "/api/v1/models/{name}/infer/batch", "Several at once.", BatchResponses, simple.BatchRequest),
        Operation("get", "/api/v1/models/{name}/program", "The plan of a model's kernels.", ANYTHING),
        Operation("get", "/api/v1/models/{name}/profile", "What a model's kernels take.", ANYTHING),
        Operation("get", "/metrics", "Prometheus metrics.", None, also=(TEXT,)),
        Operation("get", "/v2/debug/slow", "The last slow requests; for administration.", Slow),
        Operation("get", "/openapi.json", "This document.", ANYTHING),
    )  # fmt: skip


OPERATIONS = _operations()
_REGION = "/v2/systemsharedmemory/region/{name}"
SHARED_MEMORY = (  # where it is on
    Operation("get", "/v2/systemsharedmemory/status", "Registered regions.", list[Region]),
    Operation("get", f"{_REGION}/status", "A registered region.", list[Region]),
    Operation("post", f"{_REGION}/register", "Register POSIX shared memory.", Empty, shared_memory.RegisterRequest),
    Operation("post", f"{_REGION}/unregister", "Forget a region.", Empty, ANYTHING, (), False),
    Operation("post", "/v2/systemsharedmemory/unregister", "Forget all regions.", Empty, ANYTHING, (), False),
)
_OPEN = ("/v2/health/live", "/v2/health/ready", "/health", "/ping", "/openapi.json")
_JSON = "application/json"


def document(operations: Sequence[Operation] = OPERATIONS) -> dict[str, Any]:
    """The OpenAPI document."""
    kinds = [Problem, OpenAIProblem, *(kind for each in operations for kind in (each.gives, each.reads, each.may_fail))]
    named = [kind for kind in kinds if kind is not None]
    schemas, components = msgspec.json.schema_components(named, ref_template="#/components/schemas/{name}")
    schema_of = {repr(kind): schema for kind, schema in zip(named, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for each in operations:
        paths.setdefault(each.path, {})[each.method] = _describe(each, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "smelt", "version": __version__, "description": "Models over HTTP."},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _describe(each: Operation, schema_of: Mapping[str, Any]) -> dict[str, Any]:
    def content(kind: Any) -> dict[str, Any]:
        return {_JSON: {"schema": schema_of[repr(kind)]}}

    answers: dict[str, Any] = {} if each.gives is None else content(each.gives)
    answers |= {kind: {} for kind in each.also}
    failed = OpenAIProblem if each.path.startswith("/v1/") else Problem
    found: dict[str, Any] = {
        "operationId": each.method + "".join(c if c.isalnum() else "_" for c in each.path),
        "summary": each.about,
        "responses": {
            "200": {"description": "Done.", **({"content": answers} if answers else {})},
            "default": {"description": "It was refused or failed.", "content": content(failed)},
        },
    }
    if each.may_fail is not None:
        found["responses"]["503"] = {"description": "Not ready.", "content": content(each.may_fail)}
    elif each.gives is None and not each.also:
        found["responses"]["503"] = {"description": "Not ready."}
    names = [part[1:-1] for part in each.path.split("/") if part.startswith("{")]
    if names:
        text = {"type": "string", "pattern": f"^{NAME.pattern}$"}
        found["parameters"] = [{"name": name, "in": "path", "required": True, "schema": text} for name in names]
    if each.reads is not None:
        found["requestBody"] = {"required": each.required, "content": content(each.reads)}
    if each.path in _OPEN:
        found["security"] = []
    return found


class OpenAPI:
    """`/openapi.json`, made once."""

    def __init__(self, shared_memory: bool) -> None:
        self._operations = (*OPERATIONS, *SHARED_MEMORY) if shared_memory else OPERATIONS
        self._made: Response | None = None

    def add_to(self, routes: Routes) -> None:
        routes.add("GET", "/openapi.json", self.document)

    async def document(self, request: Request) -> Response:
        if self._made is None:
            self._made = json_response(document(self._operations))
        return self._made
