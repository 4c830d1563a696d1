"""Settings of a server: one TOML file, environment variables and flags → `Config`, checked before anything starts.

Precedence: flags, environment (`SMELT_SERVE_PORT=…`), file, defaults.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from smelt.buffer import parse_bytes
from smelt.errors import FileError, UnsupportedError
from smelt.files import read_bytes

T = TypeVar("T", bound=msgspec.Struct)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
PREFIX = "SMELT_SERVE_"
MOST_INSTANCES = 120  # a worker gets a socket for each, all in one message


class StepConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A step of a pipeline: a model of the server, or a Python function. Its inputs and outputs → names of values."""

    model: str = ""
    python: str = ""  # FILE.py:FUNCTION
    inputs: dict[str, str] = {}
    outputs: dict[str, str] = {}


class ModelConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """How one model is loaded and run. The same fields stand in a repository's `config.toml`."""

    path: str = ""
    name: str = ""
    engine: str = "auto"
    device: str = "auto"
    precision: str = ""  # the kind of model's default
    memory_limit: str | int | None = None
    static: dict[str, Any] = {}  # values of compile-time inputs
    sizes: dict[str, int] = {}  # sizes that it is warmed up with
    instances: int = 1  # calls at once
    max_batch: int = 32  # rows of one call, where rows are proven independent; 1 switches batching off
    max_delay_ms: float = 0.0  # how long a request may wait for others; 0: only while a call runs
    max_queue: int = 1024  # requests that may wait
    timeout: float | None = 60.0  # seconds for a request, waiting included
    load_timeout: float = 900.0  # seconds for a worker to load, compile and warm up the model
    max_output: str | int = "1GiB"  # all outputs of a call of a worker
    warm_up: bool = True
    compile_on_request: bool = False  # whether a request may compile: with new values of compile-time inputs
    trusted: bool = False  # run inside the server instead of a sandboxed process of its own
    context: int | None = None  # longest sequence of a language model
    state: dict[str, str] = {}  # inputs that come from a sequence's last request, and the outputs that become them
    max_sequences: int = 1024  # of a model with state, for each key
    kernel_spans: int = 0  # with `otel`: one call in this number has a span for each kernel; 0: none
    steps: tuple[StepConfig, ...] = ()  # a pipeline instead of a model

    @property
    def output_limit(self) -> int:
        """`max_output` in bytes."""
        return parse_bytes(self.max_output, "max_output")

    def check(self, where: str) -> ModelConfig:
        least = {"instances": 1, "max_batch": 1, "max_delay_ms": 0, "max_queue": 0, "max_sequences": 1}
        for field, low in least.items():
            if getattr(self, field) < low:
                raise _wrong(where, field, f"at least {low}", getattr(self, field))
        if self.instances > MOST_INSTANCES:
            raise _wrong(where, "instances", f"at most {MOST_INSTANCES}", self.instances)
        for field in ("timeout", "load_timeout"):
            seconds = getattr(self, field)
            if seconds is not None and seconds <= 0:
                raise _wrong(where, field, "more than 0 seconds", seconds)
        if self.output_limit < 1:
            raise _wrong(where, "max_output", "at least one byte", self.max_output)
        if self.name and not NAME.fullmatch(self.name):
            raise _wrong(where, "name", "letters, digits, '.', '_' and '-', at most 128", self.name)
        return self


class KeyConfig(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """An API key: which models it opens and how often it may be used. `sha256` keeps the key itself out of the file."""

    name: str
    sha256: str
    models: tuple[str, ...] = ("*",)
    per_minute: int | None = None
    admin: bool = False


class Config(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The whole server."""

    host: str = "127.0.0.1"
    port: int = 8000
    grpc_port: int | None = None
    workers: int = 1  # server processes, each with models of its own
    models: list[ModelConfig] = []
    keys: list[KeyConfig] = []
    admin: bool = False  # loading and unloading by request without keys; with keys only keys with `admin` may
    memory_budget: str | int | None = None  # for all models at once; what was not used for longest is unloaded
    max_body: int = 64 << 20  # bytes, decompressed
    max_elements: int = 1 << 26  # of one tensor
    body_timeout: float = 30.0  # seconds for a request to arrive
    keep_alive: float = 75.0  # seconds that a connection stays which is idle, or whose client reads nothing
    max_connections: int = 4096
    drain: float = 30.0  # seconds for running requests when the server stops
    allow_origin: str | None = None  # CORS
    tls_certificate: str | None = None
    tls_key: str | None = None
    tls_client_ca: str | None = None  # with it clients must have a certificate
    audit_log: str | None = None
    log: str = "text"  # or "json"
    access_log: bool = False  # a line for every request, not only for those that fail
    metrics: bool = True
    otel: bool = False  # spans of requests for OpenTelemetry; OTEL_… variables say where they go
    slow_ms: float = 1000.0  # requests that took longer are kept for /v2/debug/slow
    shared_memory: bool = False  # whether those with administration may register POSIX shared memory

    @property
    def budget(self) -> int | None:
        """`memory_budget` in bytes."""
        return None if self.memory_budget is None else parse_bytes(self.memory_budget, "memory_budget")

    def check(self, where: str) -> Config:
        for field in ("port", "grpc_port"):
            port = getattr(self, field)
            if port is not None and not 0 <= port < 1 << 16:
                raise _wrong(where, field, "0 to 65535", port)
        for field in ("max_body", "max_elements", "max_connections", "body_timeout", "keep_alive", "drain"):
            if getattr(self, field) <= 0:
                raise _wrong(where, field, "more than 0", getattr(self, field))
        if not 1 <= self.workers <= 256:
            raise _wrong(where, "workers", "1 to 256", self.workers)
        if self.workers > 1 and self.shared_memory:
            raise _wrong(where, "shared_memory", "one worker, which has the regions", f"{self.workers} workers")
        if self.log not in ("text", "json"):
            raise _wrong(where, "log", "text or json", self.log)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise _wrong(where, "tls_key", "tls_certificate and tls_key, or neither", "one of them")
        if self.tls_client_ca and not self.tls_certificate:
            raise _wrong(where, "tls_client_ca", "also tls_certificate and tls_key", "tls_client_ca alone")
        for key in self.keys:
            if not re.fullmatch(r"[0-9a-f]{64}", key.sha256):
                raise _wrong(where, f"key {key.name}", "the SHA-256 of the key, 64 hexadecimal digits", key.sha256)
        if self.memory_budget is not None:
            parse_bytes(self.memory_budget, "memory_budget")
        for model in self.models:
            model.check(where)
        return self


def read_config(
    path: str | None, flags: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> tuple[Config, str]:
    """The configuration, and where it came from. `flags`: what the command line says; None is nothing said."""
    said: dict[str, Any] = {}
    where = "the command line"
    if path is not None:
        where = path
        said |= _read_toml(path)
    said |= _from_environment(environment)
    said |= {name: value for name, value in flags.items() if value is not None}
    return convert(said, Config, where).check(where), where


def read_model_config(path: Path) -> ModelConfig:
    """A model's `config.toml` in a repository."""
    return convert(_read_toml(str(path)), ModelConfig, str(path)).check(str(path))


def convert(said: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        return msgspec.convert(said, kind)
    except msgspec.ValidationError as error:
        fields = ", ".join(kind.__struct_fields__)
        raise FileError(
            f"{where}: a setting is wrong",
            expected=f"one of {fields}",
            got=error,
            remedy="docs/serving.md lists the settings",
        ) from error


def _read_toml(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(read_bytes(path).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise FileError(f"{path} is no TOML file", got=error, remedy="mend it at the line that is named") from error


def _from_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    """`SMELT_SERVE_MAX_BODY=1048576` sets `max_body`. A list of models or keys belongs into the file."""
    found: dict[str, Any] = {}
    for variable, text in environment.items():
        field = variable.removeprefix(PREFIX).lower()
        if not variable.startswith(PREFIX):
            continue
        if field not in Config.__struct_fields__ or field in ("models", "keys"):
            raise UnsupportedError(
                f"{variable} sets nothing",
                expected=", ".join(PREFIX + name.upper() for name in Config.__struct_fields__),
                remedy=f"unset {variable}",
            )
        found[field] = _number(text)
    return found


def _number(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _wrong(where: str, field: str, expected: str, got: object) -> FileError:
    return FileError(
        f"{where}: {field} is wrong", expected=expected, got=got, remedy="docs/serving.md lists the settings"
    )
