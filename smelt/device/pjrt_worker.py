"""PJRT in a worker process. XLA aborts its process on some inputs; isolated like this, only the worker dies.

`IsolatedClient` has the methods of `pjrt.Client` and forwards them to a worker that it starts. Arrays travel through
shared memory, everything else as JSON, so nothing that a worker sends is executed. A dead worker raises `DeviceLost`.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from smelt import errors
from smelt.buffer import HostBuffer, in_thread
from smelt.device.pjrt import KEEP, Client, PjrtBuffer
from smelt.dtype import Array, dtype
from smelt.engine_api import Cost, Memory
from smelt.errors import DeviceError, DeviceLost, RunError, SmeltError
from smelt.shape import Shape

START = 120.0  # seconds that a worker may take to open the device
_RECORD = ("message", "expected", "got", "where", "remedy")


# ---- messages: a length, JSON, a length, bytes ----


def _send(connection: socket.socket, message: dict[str, Any], data: bytes = b"") -> None:
    text = json.dumps(message).encode()
    connection.sendall(struct.pack("<QQ", len(text), len(data)) + text + data)


def _receive(connection: socket.socket) -> tuple[dict[str, Any], bytes]:
    """The next message; EOFError if the other process has ended."""
    text, data = struct.unpack("<QQ", _exactly(connection, 16))
    message: dict[str, Any] = json.loads(_exactly(connection, text))
    return message, _exactly(connection, data)


def _exactly(connection: socket.socket, count: int) -> bytes:
    parts = bytearray()
    while len(parts) < count:
        part = connection.recv(min(count - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)


class _Shared:
    """Memory shared by both processes: an unnamed file, mapped again after it has grown."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._map: mmap.mmap | None = None

    @staticmethod
    def make() -> _Shared:
        folder = "/dev/shm" if os.path.isdir("/dev/shm") else None
        with tempfile.TemporaryFile(dir=folder) as file:
            return _Shared(os.dup(file.fileno()))

    def at_least(self, size: int) -> mmap.mmap:
        size = max(size, 1)
        if self._map is None or len(self._map) < size:
            if os.fstat(self.descriptor).st_size < size:
                os.ftruncate(self.descriptor, size)
            self._map = mmap.mmap(self.descriptor, 0)
        return self._map

    def write(self, array: Array) -> None:
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        np.frombuffer(self.at_least(flat.size), np.uint8, flat.size)[:] = flat

    def read(self, shape: Shape) -> Array:
        """A copy of the contents."""
        sizes = shape.numbers()
        count = math.prod(sizes)
        length = count * shape.dtype.numpy.itemsize
        raw = np.frombuffer(self.at_least(length), np.uint8, length).copy()
        return raw.view(shape.dtype.numpy).reshape(sizes) if count else np.empty(sizes, shape.dtype.numpy)

    def close(self) -> None:
        os.close(self.descriptor)


def _shape_record(shape: Shape) -> list[Any]:
    return [shape.dtype.name, list(shape.numbers())]


def _shape(record: Sequence[Any]) -> Shape:
    return Shape.of(dtype(record[0]), tuple(int(size) for size in record[1]))


# ---- the client ----


class IsolatedClient:
    """A PJRT client in a worker process. `timeout`: seconds for one request; after that the worker is killed."""

    def __init__(self, platform: str = "cpu", index: int = 0, timeout: float | None = None) -> None:
        self.platform = platform
        self.lost: str | None = None
        self._lock = threading.RLock()
        self._doomed: list[tuple[str, int]] = []  # handles to free with the next request
        self._shared = _Shared.make()
        ours, theirs = socket.socketpair()
        with theirs:
            pass_on = (theirs.fileno(), self._shared.descriptor)
            arguments = [str(each) for each in (*pass_on, platform, index)]
            root = str(Path(__file__).resolve().parents[2])
            path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
            self._process = subprocess.Popen(
                [sys.executable, "-c", "from smelt.device.pjrt_worker import serve; serve()", *arguments],
                pass_fds=pass_on,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "PYTHONPATH": path},
            )
        self._connection = ours
        self._end = weakref.finalize(self, _stop, self._process, ours, self._shared)
        ours.settimeout(START)
        self._version = str(self.ask("open")[0]["version"])
        ours.settimeout(timeout)

    @property
    def version(self) -> str:
        return self._version

    @property
    def process(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def ask(self, verb: str, data: bytes = b"", **message: Any) -> tuple[dict[str, Any], bytes]:
        """Send a request and wait for the answer. Errors of the worker are raised here."""
        with self._lock:
            if self.lost is not None:
                raise DeviceLost("the worker of this device has ended", got=self.lost, remedy="make a new platform")
            doomed, self._doomed = self._doomed, []
            try:
                _send(self._connection, {"verb": verb, "free": doomed, **message}, data)
                answer, blob = _receive(self._connection)
            except (EOFError, OSError) as error:
                self._bury(error)
                raise DeviceLost(
                    "the worker of this device died", got=self.lost, where=verb, remedy="make a new platform"
                ) from error
        if "error" in answer:
            kind: type[SmeltError] = getattr(errors, answer["error"], DeviceError)
            told = {name: answer.get(name) for name in _RECORD if name != "message"}
            raise kind(str(answer["message"]), **told)
        return answer, blob

    def _bury(self, error: Exception) -> None:
        self._process.kill()
        code = self._process.wait()
        name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
        late = self._connection.gettimeout()
        self.lost = f"no answer within {late:g} s" if isinstance(error, TimeoutError) else name

    def free(self, kind: str, handle: int) -> None:
        """Free an object of the worker with the next request."""
        self._doomed.append((kind, handle))

    def put(self, array: Array, shape: Shape, *, shared: bool = False) -> RemoteBuffer:
        with self._lock:
            self._shared.write(array)
            answer, _ = self.ask("put", shape=_shape_record(shape))
        return RemoteBuffer(answer["handle"], shape, self)

    def hold(self, buffers: Sequence[RemoteBuffer]) -> tuple[RemoteBuffer, ...]:
        return tuple(buffers)

    def fetch(self, buffer: RemoteBuffer) -> Array:
        with self._lock:
            self.ask("numpy", handle=buffer.handle)
            return self._shared.read(buffer.shape)

    def compile(self, text: str, results: Sequence[Shape]) -> RemoteProgram:
        answer, _ = self.ask("compile", text.encode(), results=[_shape_record(shape) for shape in results])
        return RemoteProgram(answer["handle"], results, self)

    def load(self, data: bytes, results: Sequence[Shape]) -> RemoteProgram:
        answer, _ = self.ask("load", data, results=[_shape_record(shape) for shape in results])
        return RemoteProgram(answer["handle"], results, self)

    def stats(self) -> dict[str, float]:
        answer, _ = self.ask("stats")
        return {str(name): value for name, value in answer["stats"].items() if isinstance(value, int | float)}

    def close(self) -> None:
        """End the worker."""
        self.lost = self.lost or "it was closed"
        self._end()


def _stop(process: subprocess.Popen[bytes], connection: socket.socket, shared: _Shared) -> None:
    connection.close()
    process.kill()
    process.wait()
    shared.close()


class RemoteBuffer:
    """An array in the memory of a worker's device."""

    def __init__(self, handle: int, shape: Shape, client: IsolatedClient) -> None:
        self.shape = shape
        self.client = client
        self._handle = handle
        self._gone: str | None = None
        self.guard: Callable[[], None] | None = None  # raises if a run-time check of the run failed
        self._end = weakref.finalize(self, client.free, "buffers", handle)

    @property
    def handle(self) -> int:
        if self._gone is not None:
            raise RunError(f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone, remedy=KEEP)
        return self._handle

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape.numbers()) * self.shape.dtype.numpy.itemsize

    @property
    def is_deleted(self) -> bool:
        return self._gone is not None

    def wait(self) -> RemoteBuffer:
        self.client.ask("wait", handle=self.handle)
        if self.guard is not None:
            self.guard()
        return self

    def __await__(self) -> Any:
        return in_thread(self.wait).__await__()

    def numpy(self) -> Array:
        if self.guard is not None:
            self.guard()
        return self.client.fetch(self)

    def to_host(self) -> HostBuffer:
        return HostBuffer(self.numpy(), self.shape, owns=True)

    def copy(self) -> RemoteBuffer:
        answer, _ = self.client.ask("copy", handle=self.handle)
        made = RemoteBuffer(answer["handle"], self.shape, self.client)
        made.guard = self.guard
        return made

    def delete(self) -> None:
        if self._gone is None:
            self.give_away("was deleted")

    def give_away(self, reason: str) -> None:
        self._gone = reason
        self._end()

    def __enter__(self) -> RemoteBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=None if copy is False else copy)


class RemoteProgram:
    """A compiled program in a worker."""

    def __init__(self, handle: int, results: Sequence[Shape], client: IsolatedClient) -> None:
        self.results = tuple(results)
        self.client = client
        self._handle = handle
        self._end = weakref.finalize(self, client.free, "programs", handle)

    def __call__(
        self, arguments: Sequence[RemoteBuffer], held: Sequence[RemoteBuffer] | None = None
    ) -> tuple[RemoteBuffer, ...]:
        """Start a run in the worker. If the worker dies, waiting for a result raises DeviceLost."""
        handles = [each.handle for each in (*(held or ()), *arguments)]
        answer, _ = self.client.ask("run", handle=self._handle, arguments=handles)
        made = zip(answer["handles"], self.results, strict=True)
        return tuple(RemoteBuffer(handle, shape, self.client) for handle, shape in made)

    def memory(self) -> Memory:
        return Memory(**self.client.ask("memory", handle=self._handle)[0]["memory"])

    def cost(self) -> Cost:
        return Cost(**self.client.ask("cost", handle=self._handle)[0]["cost"])

    def serialize(self) -> bytes:
        return self.client.ask("serialize", handle=self._handle)[1]

    def close(self) -> None:
        self._end()


# ---- the worker ----


def serve() -> None:
    """Answer requests until the client disconnects. Runs in the worker process; its arguments are in `sys.argv`."""
    descriptor, shared, platform, index = sys.argv[1:5]
    with socket.socket(fileno=int(descriptor)) as connection:
        worker: _Worker | None = None
        for message, data in _requests(connection):
            try:
                if worker is None:
                    worker = _Worker(Client(platform, int(index)), _Shared(int(shared)))
                answer, blob = worker.answer(message, data)
            except SmeltError as error:
                told = {name: getattr(error, name) for name in _RECORD}
                texts = {name: str(value) for name, value in told.items() if value is not None}
                answer, blob = {"error": type(error).__name__, **texts}, b""
            _send(connection, answer, blob)


def _requests(connection: socket.socket) -> Iterator[tuple[dict[str, Any], bytes]]:
    while True:
        try:
            yield _receive(connection)
        except (EOFError, OSError):
            return


class _Worker:
    """The client, and the objects that requests refer to by handle."""

    def __init__(self, client: Client, shared: _Shared) -> None:
        self.client = client
        self.shared = shared
        self.held: dict[str, dict[int, Any]] = {"buffers": {}, "programs": {}}
        self.next = 0

    def keep(self, kind: str, thing: Any) -> int:
        self.next += 1
        self.held[kind][self.next] = thing
        return self.next

    def answer(self, message: dict[str, Any], data: bytes) -> tuple[dict[str, Any], bytes]:
        for kind, freed in message["free"]:
            thing = self.held[kind].pop(freed, None)
            if isinstance(thing, PjrtBuffer) and not thing.raw.is_deleted():
                thing.delete()
        handle = message.get("handle", 0)
        buffer: Any = self.held["buffers"].get(handle)
        program: Any = self.held["programs"].get(handle)
        match message["verb"]:
            case "open":
                return {"version": self.client.version}, b""
            case "put":
                shape = _shape(message["shape"])
                return {"handle": self.keep("buffers", self.client.put(self.shared.read(shape), shape))}, b""
            case "numpy":
                self.shared.write(buffer.numpy())
                return {}, b""
            case "wait":
                buffer.wait()
                return {}, b""
            case "copy":
                return {"handle": self.keep("buffers", buffer.copy())}, b""
            case "compile" | "load" as verb:
                results = [_shape(record) for record in message["results"]]
                made = (
                    self.client.compile(data.decode(), results)
                    if verb == "compile"
                    else self.client.load(data, results)
                )
                return {"handle": self.keep("programs", made)}, b""
            case "run":
                results = program([self.held["buffers"][each] for each in message["arguments"]])
                return {"handles": [self.keep("buffers", each) for each in results]}, b""
            case "memory":
                return {"memory": program.memory().record()}, b""
            case "cost":
                return {"cost": program.cost().record()}, b""
            case "serialize":
                return {}, program.serialize()
            case "stats":
                return {"stats": self.client.stats()}, b""
            case verb:
                raise DeviceError("unknown request to the worker", got=verb)
