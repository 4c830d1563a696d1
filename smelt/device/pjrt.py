"""PJRT through jaxlib: clients, buffers and loaded programs. What is private of jaxlib is here and in `pjrt_mesh`.

In: StableHLO text and NumPy arrays. Out: buffers on a device. `engine.pjrt` calls it, in this process or, through
`pjrt_worker`, in another one. jaxlib is imported when a client is opened; jax itself is not needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import math
import mmap
import os
import re
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from smelt.activity import Activity
from smelt.buffer import HostBuffer, in_thread
from smelt.dtype import Array, dtype
from smelt.engine_api import Cost, Memory
from smelt.errors import (
    DeviceError,
    DeviceLost,
    MissingPackageError,
    RunError,
    ShapeError,
    SmeltError,
    UnsupportedError,
)
from smelt.shape import Shape
from smelt.weights import Stored

KNOWN = ("0.10", "0.11")  # what this file was written against and is tested with
REMEDY = "pip install smelt[xla]"
PLATFORMS = ("cpu", "cuda")
_LOST = re.compile(r"DATA_LOSS|UNAVAILABLE|CUDA_ERROR_(?!OUT_OF_MEMORY)\w+|device.*(?:lost|halted)", re.IGNORECASE)
_PLAIN = frozenset(  # element types that Python's buffer protocol knows
    ("i1", *(f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "f16", "f32", "f64", "complex<f32>")
)


# ---- what is there ----


def version() -> str | None:
    """The version of jaxlib that is installed, if one is; nothing is imported."""
    if find_spec("jaxlib") is None:
        return None
    return importlib.metadata.version("jaxlib")


def missing(platform: str = "cpu") -> str | None:
    """Why a platform cannot be used here, with the remedy; None where it can, as far as one knows before trying."""
    if version() is None:
        return f"jaxlib is not installed: {REMEDY}"
    if platform == "cuda":
        if _plugin() is None:
            return "no PJRT plug-in for CUDA: pip install smelt[gpu]"
        if not any(Path("/dev").glob("nvidia[0-9]*")) and not Path("/dev/dxg").exists():
            return "no NVIDIA device: /dev/nvidia0 does not exist"
    return None


def is_known(found: str) -> bool:
    return any(found == each or found.startswith(f"{each}.") for each in KNOWN)


@cache
def _plugin() -> Path | None:
    """The shared library of jaxlib's CUDA plug-in."""
    spec = find_spec("jax_plugins")
    for place in (spec.submodule_search_locations or ()) if spec else ():
        for found in sorted(Path(place).glob("xla_cuda*/xla_cuda_plugin.so"), reverse=True):
            return found
    return None


# ---- errors ----


@contextmanager
def jaxlib_calls(what: str, failure: type[SmeltError], client: Client | None = None) -> Any:
    """XLA's errors as ours. A device that is gone is lost for the client too."""
    try:
        yield
    except (AttributeError, TypeError, ImportError) as error:
        raise UnsupportedError(
            f"this version of jaxlib has another interface than {what} needs",
            expected=f"jaxlib {' or '.join(KNOWN)}",
            got=f"jaxlib {version()}: {error}",
            remedy=f"pip install 'jaxlib>={KNOWN[0]},<0.{int(KNOWN[-1].split('.')[1]) + 1}'",
        ) from error
    except (RuntimeError, ValueError) as error:
        raise _explain(what, failure, error, client) from error


def _explain(what: str, failure: type[SmeltError], error: Exception, client: Client | None) -> SmeltError:
    text = str(error)
    if _LOST.search(text):
        if client is not None:
            client.lost = _short(text)
        return DeviceLost(f"the device was lost in {what}", got=_short(text), remedy="make a new platform")
    if "RESOURCE_EXHAUSTED" in text or "OUT_OF_MEMORY" in text:
        return RunError(f"no memory left on the device for {what}", got=_short(text), remedy="delete buffers")
    return failure(f"XLA refuses {what}", got=_short(text))


def _short(text: str) -> str:
    """The part of XLA's messages that says something."""
    lines = [line.strip() for line in text.partition("=== Source Location Trace")[0].splitlines()]
    kept = [line for line in lines if line and "Failed to parse using StableHLO" not in line]
    return " ".join(kept)[:600]


# ---- clients ----


@dataclass(frozen=True, slots=True)
class _Aval:
    """What jaxlib wants to know of an array that it makes."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    weak_type: bool = False


aval = lru_cache(4096)(_Aval)


class Client:
    """One PJRT client and the device of it that is used."""

    def __init__(self, platform: str = "cpu", index: int = 0) -> None:
        jax, xla, hlo = modules()
        with jaxlib_calls(f"opening {platform}", DeviceError):
            raw = xla.make_cpu_client() if platform == "cpu" else plugged(xla, platform)
            devices = raw.local_devices()
        if index >= len(devices):
            raise DeviceError(f"no device {index}", expected=f"0 to {len(devices) - 1}", got=index)
        self.platform = platform
        self.lost: str | None = None
        self._raw, self._device, self._jax = raw, devices[index], jax
        self.watch: Watch | None = None  # what is under way, once somebody has asked
        self._used = self.peak = 0  # bytes of buffers, where the device does not tell
        self._counting = threading.Lock()
        self._copies: dict[Shape, Loaded] = {}  # programs that copy a buffer, by its shape

        class _Sharding(jax.SingleDeviceSharding):  # type: ignore[misc, name-defined]  # one device, the whole array
            memory_kind = None

            def _to_xla_hlo_sharding(self, rank: int) -> Any:
                return hlo.HloSharding.replicate()

        with jaxlib_calls("placing arrays", DeviceError):
            self.counts = not self._device.memory_stats()  # whether buffers have to be counted here
            self._sharding = _Sharding(self._device)
            self._devices = jax.DeviceList((self._device,))
            self._put = jax.batched_device_put
            semantics = jax.HostBufferSemantics
            self._copied, self._shared = semantics.IMMUTABLE_ONLY_DURING_CALL, semantics.ZERO_COPY
        found = version() or ""
        if not is_known(found):
            self._probe()

    def _probe(self) -> None:
        """Try every call of this file once; an unknown version that has changed one of them says so here."""
        text = "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  return %a : tensor<2xf32>\n}"
        shape = Shape("f32", 2)
        (result,) = self.compile(text, [shape])([self.put(np.ones(2, np.float32), shape)])
        assert result.numpy().tolist() == [1, 1]

    @property
    def version(self) -> str:
        """What a serialised program depends on."""
        kind = "" if self.platform == "cpu" else f" on {self.kind}"
        return f"jaxlib {version()}, {self._raw.platform_version}{kind}".strip()

    @property
    def kind(self) -> str:
        return str(self._device.device_kind)

    @property
    def devices(self) -> int:
        return len(self._raw.local_devices())

    def put(self, array: Array, shape: Shape, *, shared: bool = False) -> PjrtBuffer:
        """An array on the device. `shared`: its bytes never change, so that the device may read them where they are."""
        semantics = self._shared if shared else self._copied
        if not array.flags.c_contiguous:
            array = np.ascontiguousarray(array)
        described = aval(array.shape, array.dtype)
        try:
            raw = self._put(described, self._sharding, [array], [self._device], True, False, semantics, True)
        except (RuntimeError, ValueError) as error:
            raise _explain("a copy to the device", RunError, error, self) from error
        return PjrtBuffer(raw, shape, self)

    def hold(self, buffers: Sequence[PjrtBuffer]) -> Held:
        """Buffers that stay the first arguments of runs to come."""
        return Held(tuple(buffers), [each.raw for each in buffers])

    def take(self, given: Any) -> PjrtBuffer:
        """What another library holds, through DLPack; shared where it lies on this device already."""
        with jaxlib_calls("an array from DLPack", DeviceError, self):
            capsule = given.__dlpack__()
            raw = self._jax.dlpack_managed_tensor_to_buffer(capsule, self._device, None)
        view = raw._single_device_array_to_np_array_did_copy()[0] if self.platform == "cpu" else np.asarray(raw)
        return PjrtBuffer(raw, Shape.of(dtype(view.dtype), view.shape), self)

    def compile(self, text: str, results: Sequence[Shape]) -> Loaded:
        """A program as StableHLO text whose `@main` gives these results."""
        with jaxlib_calls("the program", UnsupportedError, self):
            if LAPACK in text and has_lapack(self.platform):
                register_lapack()
            raw = self._raw.compile_and_load(text, self._devices, self._jax.CompileOptions())
        return Loaded(raw, results, self)

    def copied(self, buffer: PjrtBuffer) -> PjrtBuffer:
        """Another buffer with the same contents, by a program that gives its argument back: XLA has to copy it."""
        program = self._copies.get(buffer.shape)
        if program is None:
            kind = f"tensor<{'x'.join([*map(str, buffer.shape.numbers()), buffer.shape.dtype.name])}>"
            text = f"func.func public @main(%a: {kind}) -> {kind} {{\n  return %a : {kind}\n}}"
            program = self._copies[buffer.shape] = self.compile(text, [buffer.shape])
        (made,) = program([buffer])
        made.guard = buffer.guard
        return made

    def load(self, data: bytes, results: Sequence[Shape]) -> Loaded:
        """A program that was serialised by the same version for the same kind of device."""
        with jaxlib_calls("a serialised program", DeviceError, self):
            if LAPACK.encode() in data and has_lapack(self.platform):
                register_lapack()
            raw = self._raw.deserialize_executable(data, self._devices, self._jax.CompileOptions())
        return Loaded(raw, results, self)

    def stats(self) -> dict[str, float]:
        """Bytes in use and at the peak, as PJRT says or else of the buffers; calls under way, and the busy share.

        Calls are watched from the first look on.
        """
        if self.watch is None:
            self.watch = Watch()
        queue, busy = self.watch.activity.sample()
        with jaxlib_calls("the memory's statistics", DeviceError, self):
            told = self._device.memory_stats()
            if told:
                wanted = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size", "num_allocs")
                memory = {name: int(told[name]) for name in wanted if name in told}
            else:
                alive = [each for each in self._raw.live_arrays() if not each.is_deleted()]
                used = sum(each.on_device_size_in_bytes() for each in alive)
                self.peak = max(self.peak, used)
                memory = {"bytes_in_use": used, "peak_bytes_in_use": self.peak, "buffers": len(alive)}
        return {**memory, "queue": queue, "busy": busy}

    def count(self, change: int) -> None:
        """Bytes that a buffer takes, or gives back."""
        with self._counting:
            self._used += change
            if self._used > self.peak:
                self.peak = self._used

    def close(self) -> None:
        """Nothing to do: PJRT frees a client with its last buffer and program."""


class Watch:
    """Notices when calls are done, on a thread of its own."""

    def __init__(self) -> None:
        self.activity = Activity()
        self._under_way: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._wait, name="smelt-watch", daemon=True).start()

    def started(self, results: Sequence[Any]) -> None:
        """A call has begun; it is done when its first result is."""
        if results and not results[0].is_ready():
            self._under_way.put(results[0])
        else:
            self.activity.end()

    def _wait(self) -> None:
        while True:
            result = self._under_way.get()
            with suppress(RuntimeError, ValueError):  # deleted meanwhile, or gone wrong: whoever reads it hears of that
                result.block_until_ready()
            del result
            self.activity.end()


@cache
def modules() -> tuple[Any, Any, Any]:
    """jaxlib's modules; its log says warnings only, unless the user has chosen otherwise."""
    if version() is None:
        raise MissingPackageError("PJRT needs jaxlib", expected="jaxlib", got="no such package", remedy=REMEDY)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with jaxlib_calls("the start", DeviceError):
        names = ("_jax", "xla_client", "_hlo")
        jax, xla, hlo = (importlib.import_module(f"jaxlib.{name}") for name in names)
        return jax, xla, hlo


LAPACK = "lapack_"  # how the names of JAX's LAPACK custom calls begin


def has_lapack(platform: str) -> bool:
    """Whether XLA can run JAX's LAPACK custom calls here: jaxlib takes the routines from SciPy."""
    return platform == "cpu" and all(importlib.util.find_spec(name) is not None for name in ("jaxlib.lapack", "scipy"))


@cache
def register_lapack() -> None:
    """Tell XLA about jaxlib's LAPACK, as jax does when it is imported."""
    _, xla, _ = modules()
    lapack = importlib.import_module("jaxlib.lapack")
    lapack.prepare_lapack_call("getrf", np.float32)  # loads SciPy's routines
    for name, target, version in lapack.registrations()["cpu"]:
        xla.register_custom_call_target(name, target, platform="cpu", api_version=version)


def plugged(xla: Any, platform: str) -> Any:
    """A client from a plug-in. Memory is taken when it is needed, so that other libraries find some."""
    reason = missing(platform)
    if reason is not None:
        raise DeviceError(f"no {platform} here", got=reason)
    if not xla.pjrt_plugin_loaded(platform):
        xla.load_pjrt_plugin_dynamically(platform, str(_plugin()))
    if not xla.pjrt_plugin_initialized(platform):
        xla.initialize_pjrt_plugin(platform)
    options = dict(xla.generate_pjrt_gpu_plugin_options())
    options.setdefault("preallocate", False)
    return xla.make_c_api_client(platform, options)


_clients: dict[tuple[str, int], Client] = {}
_lock = threading.Lock()


def client(platform: str = "cpu", index: int = 0) -> Client:
    """The client of this process for a device: one for all engines, a new one when the last was lost."""
    with _lock:
        found = _clients.get((platform, index))
        if found is None or found.lost is not None:
            found = _clients[platform, index] = Client(platform, index)
        return found


# ---- many tensors at once ----

STAGING = 256 << 20  # bytes of pinned memory: pinning more takes longer than it saves
LARGEST = 2 << 30  # bytes of a tensor for which there is more, so that it can go the same way
PART = 4 << 20  # bytes that one thread reads at a time
READERS = 16


class Stage:
    """Brings tensors from files to a device with a bus: parts are read in parallel into pinned memory, while others are
    on the bus. A tensor that is small, or larger than the pinned memory can be, goes the plain way."""

    def __init__(self, client: Client, largest: int) -> None:
        self._client = client
        beside = -(-largest // PART) * PART if STAGING < largest <= LARGEST else 0
        self._size = STAGING + beside if largest >= PART else 0
        self._memory: Array = np.empty(0, np.uint8)
        self._pinned = False
        self._free = [(0, self._size)]  # ranges, in order
        self._changed = threading.Condition()
        self._readers = ThreadPoolExecutor(READERS, "smelt-read")

    def __enter__(self) -> Stage:
        if self._size:
            pages = mmap.mmap(-1, self._size)
            if hasattr(mmap, "MADV_HUGEPAGE"):
                pages.madvise(mmap.MADV_HUGEPAGE)
            self._memory = np.frombuffer(pages, np.uint8)
            parts = [self._memory[at : at + PART] for at in range(0, self._size, PART)]
            _all([self._readers.submit(part.fill, 0) for part in parts])  # pages that are there are pinned at once
            with suppress(RuntimeError):  # without pinning it is slower, and still right
                self._client._raw.dma_map(self._memory.ctypes.data, self._size)
                self._pinned = True
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown()
        if self._pinned:
            self._client._raw.dma_unmap(self._memory.ctypes.data)

    def __call__(self, stored: Stored) -> PjrtBuffer:
        """A tensor on the device; returns when it has arrived."""
        if not PART <= stored.nbytes <= self._size:
            return self._client.put(stored.load(), stored.shape).wait()
        length = -(-stored.nbytes // PART) * PART
        begin = self._take(length)
        try:
            target = self._memory[begin : begin + stored.nbytes]
            starts = range(0, stored.nbytes, PART)
            reads = [self._readers.submit(stored.read_into, target[at : at + PART], at) for at in starts]
            _all(reads)
            array = target.view(stored.shape.dtype.numpy).reshape(stored.shape.numbers())
            return self._client.put(array, stored.shape, shared=True).wait()
        finally:
            self._give(begin, length)

    def _take(self, length: int) -> int:
        """The first free range that is long enough, as soon as there is one."""
        with self._changed:
            while True:
                for i, (begin, free) in enumerate(self._free):
                    if free >= length:
                        self._free[i] = (begin + length, free - length)
                        return begin
                self._changed.wait()

    def _give(self, begin: int, length: int) -> None:
        with self._changed:
            joined: list[tuple[int, int]] = []
            for start, free in sorted([*self._free, (begin, length)]):
                if joined and sum(joined[-1]) == start:
                    joined[-1] = (joined[-1][0], joined[-1][1] + free)
                else:
                    joined.append((start, free))
            self._free = joined
            self._changed.notify_all()


def _all(started: Sequence[Future[Any]]) -> None:
    """Wait for all, also where one failed: nobody writes to the memory any more when its error is raised."""
    failures = [failure for each in started if (failure := each.exception()) is not None]
    if failures:
        raise failures[0]


# ---- buffers ----


@lru_cache(4096)
def _bytes(shape: Shape) -> int:
    return math.prod(shape.numbers()) * shape.dtype.numpy.itemsize


class PjrtBuffer:
    """An array in a device's memory; it may still be on its way there. Reading it waits."""

    __slots__ = ("__weakref__", "_gone", "_raw", "_size", "client", "guard", "shape")

    def __init__(self, raw: Any, shape: Shape, client: Client, size: int | None = None) -> None:
        self._raw = raw
        self._size = _bytes(shape) if size is None else size
        self._gone: str | None = None
        self.shape = shape
        self.client = client
        self.guard: Callable[[], None] | None = None  # raises what the run that made it found wrong
        if client.counts:
            client.count(self._size)

    def __del__(self) -> None:
        if self._gone is None and self.client.counts:
            self.client.count(-self._size)

    @property
    def raw(self) -> Any:
        """jaxlib's array; an error where it was given away."""
        if self._gone is not None:
            raise RunError(f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone)
        return self._raw

    @property
    def nbytes(self) -> int:
        return int(self.raw.on_device_size_in_bytes())

    @property
    def is_ready(self) -> bool:
        return bool(self.raw.is_ready())

    @property
    def is_deleted(self) -> bool:
        return self._gone is not None

    def wait(self) -> PjrtBuffer:
        """Return when the contents are there; what went wrong on the way is raised here."""
        try:
            self.raw.block_until_ready()
        except (RuntimeError, ValueError) as error:
            raise _explain("a run", RunError, error, self.client) from error
        if self.guard is not None:
            self.guard()
        return self

    def __await__(self) -> Any:
        return in_thread(self.wait).__await__()

    def copy_to_host(self) -> PjrtBuffer:
        """Start copying to the host; `numpy` then has less to wait for."""
        with jaxlib_calls("a copy to the host", RunError, self.client):
            self.raw._copy_single_device_array_to_host_async()
        return self

    def numpy(self) -> Array:
        """The contents; on the processor they are shared, and read-only for that reason."""
        raw = self.raw
        if self.guard is not None:
            self.guard()
        try:
            if self.client.platform == "cpu" and self.shape.dtype.name in _PLAIN:
                raw.block_until_ready()
                array: Array = np.asarray(memoryview(raw))
            else:  # this one imports jax where it is installed
                array = raw._single_device_array_to_np_array_did_copy()[0]
        except (RuntimeError, ValueError) as error:
            raise _explain("a run", RunError, error, self.client) from error
        if array.shape != self.shape.sizes:
            raise RunError("XLA gave another shape than the program says", expected=self.shape, got=array.shape)
        return array

    def to_host(self) -> HostBuffer:
        """A copy in host memory."""
        return HostBuffer(np.array(self.numpy()), self.shape, owns=True)

    def copy(self) -> PjrtBuffer:
        """Another buffer with the same contents; they do not leave the device."""
        if self.client.platform == "cpu":
            return self.client.put(self.numpy(), self.shape)
        return self.client.copied(self)

    def delete(self) -> None:
        if self._gone is None:
            self._raw.delete()
            self.give_away("was deleted")

    def give_away(self, reason: str) -> None:
        """Forget jaxlib's array: the memory is somebody else's now, or free."""
        if self._gone is None and self.client.counts:
            self.client.count(-self._size)
        self._gone, self._raw = reason, None

    def __enter__(self) -> PjrtBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        with jaxlib_calls("an array for DLPack", DeviceError, self.client):
            return self.client._jax.buffer_to_dlpack_managed_tensor(self.raw, stream)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0) if self.client.platform == "cpu" else (2, int(self.client._device.local_hardware_id or 0))

    def __repr__(self) -> str:
        return f"<{self.shape} on {self.client.platform}{', which ' + self._gone if self._gone else ''}>"


# ---- programs ----


@dataclass(frozen=True, slots=True)
class Held:
    """Buffers that are given to many runs, looked at once. One that was deleted since is found when a run fails."""

    buffers: tuple[PjrtBuffer, ...]
    raws: list[Any]

    def check(self) -> None:
        for buffer in self.buffers:
            _ = buffer.raw


class Loaded:
    """A compiled program on a device."""

    def __init__(self, raw: Any, results: Sequence[Shape], client: Client) -> None:
        self.results = tuple(results)
        self.client = client
        self._raw = raw
        self._handlers = [client_handler(client, shape) for shape in self.results]
        self._made = [(shape, client, _bytes(shape)) for shape in self.results]
        self._execute = raw.execute_sharded

    def __call__(self, arguments: Sequence[PjrtBuffer], held: Held | None = None) -> tuple[PjrtBuffer, ...]:
        """Start a run on what is held and the arguments; its results fill in their own time."""
        client = self.client
        raws = [each.raw for each in arguments]
        if held is not None:
            raws = held.raws + raws
        watch = client.watch
        if watch is not None:
            watch.activity.begin()
        try:
            made = self._execute(raws).consume_with_handlers(self._handlers)
        except (RuntimeError, ValueError) as error:
            if watch is not None:
                watch.activity.end()
            if held is not None:
                held.check()
            raise _explain("the run", RunError, error, client) from error
        if watch is not None:
            watch.started(made)
        return tuple([PjrtBuffer(raw, *each) for raw, each in zip(made, self._made, strict=True)])

    def memory(self) -> Memory:
        with jaxlib_calls("the program's memory", DeviceError, self.client):
            told = self._raw.get_compiled_memory_stats()
            return Memory(
                told.argument_size_in_bytes,
                told.output_size_in_bytes,
                told.temp_size_in_bytes,
                told.alias_size_in_bytes,
                told.generated_code_size_in_bytes,
            )

    def cost(self) -> Cost:
        with jaxlib_calls("the program's cost", DeviceError, self.client):
            told = self._raw.cost_analysis()
        wanted = ("flops", "bytes accessed", "transcendentals")
        return Cost(*(float(told.get(name, 0.0)) for name in wanted))

    def serialize(self) -> bytes:
        with jaxlib_calls("serialising a program", UnsupportedError, self.client):
            return bytes(self._raw.serialize())

    def close(self) -> None:
        """Nothing to do: PJRT frees a program with its last use."""


def client_handler(client: Client, shape: Shape) -> Any:
    """What makes a result's array of what a run gives; no module of jax is imported on the way."""
    described = aval(shape.numbers(), shape.dtype.numpy)
    with jaxlib_calls("results", DeviceError, client):
        return result_handler(client._jax.array_result_handler, described, client._sharding)


def result_handler(make: Callable[..., Any], described: Any, sharding: Any) -> Any:
    try:
        return make(described, sharding, True, True)
    except TypeError:  # 0.11 has no fourth argument
        return make(described, sharding, True)


def check_placed(given: Any, client: Any, shape: Shape, what: str) -> None:
    """A buffer that lies on a client's device and has a shape; anything else is the caller's mistake."""
    if given.client is not client:
        raise DeviceError(
            f"{what} lies on another device",
            expected=client.platform,
            got=given.client.platform,
            remedy=".to_host() first",
        )
    if given.shape.dtype != shape.dtype or given.shape.sizes != shape.sizes:
        raise ShapeError(f"{what} does not fit", expected=shape, got=given.shape)
