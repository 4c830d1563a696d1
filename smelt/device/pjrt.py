"""PJRT through jaxlib: clients, buffers and loaded programs. Only this file and `pjrt_mesh` use jaxlib's private API.

In: StableHLO text and NumPy arrays. Out: buffers on a device. `engine.pjrt` calls it, in this process or, through
`pjrt_worker`, in another one. jaxlib is imported when a client is opened; jax itself is not needed.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import logging
import math
import mmap
import os
import re
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from smelt.activity import Activity
from smelt.buffer import HostBuffer, in_thread
from smelt.device import pjrt_cache
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
from smelt.frozen import Frozen
from smelt.shape import Shape
from smelt.weights import Stored

log = logging.getLogger("smelt")
WORTH = 1.0  # seconds of compiling, from which on a program is kept
NO_MEMORY = "no memory left on the device"
KEEP = "use the buffer before it is donated or deleted, or .copy() it first"
KNOWN = ("0.10", "0.11")  # jaxlib versions that the tests run with
REMEDY = 'pip install "smelt[xla]"'
PLATFORMS = ("cpu", "cuda")
_LOST = re.compile(r"DATA_LOSS|UNAVAILABLE|CUDA_ERROR_(?!OUT_OF_MEMORY)\w+|device.*(?:lost|halted)", re.IGNORECASE)
_PLAIN = frozenset(  # element types of Python's buffer protocol
    ("i1", *(f"{sign}i{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)), "f16", "f32", "f64", "complex<f32>")
)


# ---- installed versions ----


def version() -> str | None:
    """The installed version of jaxlib, or None. Imports nothing."""
    if find_spec("jaxlib") is None:
        return None
    return importlib.metadata.version("jaxlib")


def missing(platform: str = "cpu") -> str | None:
    """Why a platform cannot be used, with the remedy; None if nothing is known to be missing. Opens no device."""
    if version() is None:
        return f"jaxlib is not installed: {REMEDY}"
    if platform == "cuda":
        if _plugin() is None:
            return 'no PJRT plug-in for CUDA: pip install "smelt[gpu]"'
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
    """Raise XLA's errors as ours. After the loss of its device, the client is marked as lost."""
    try:
        yield
    except (AttributeError, TypeError, ImportError) as error:
        raise UnsupportedError(
            f"this version of jaxlib lacks a function that {what} needs",
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
        remedy = "delete buffers that are not in use, or use smaller sizes"
        return RunError(f"{NO_MEMORY} for {what}", got=_short(text), remedy=remedy)
    return failure(f"XLA refuses {what}", got=_short(text))


def _short(text: str) -> str:
    """The informative part of XLA's message."""
    lines = [line.strip() for line in text.partition("=== Source Location Trace")[0].splitlines()]
    kept = [line for line in lines if line and "Failed to parse using StableHLO" not in line]
    return " ".join(kept)[:600]


# ---- clients ----


class _Aval(Frozen):
    """The abstract value of an array, with the attributes that jaxlib reads."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    weak_type: bool = False


aval = lru_cache(4096)(_Aval)


class Client:
    """A PJRT client and the one device of it that is used."""

    def __init__(self, platform: str = "cpu", index: int = 0) -> None:
        jax, xla, hlo = modules()
        with jaxlib_calls(f"opening {platform}", DeviceError):
            raw = xla.make_cpu_client() if platform == "cpu" else make_plugin_client(xla, platform)
            devices = raw.local_devices()
        if index >= len(devices):
            expected = f"0 to {len(devices) - 1}"
            raise DeviceError(f"no device {index}", expected=expected, got=index, remedy="smelt devices lists them")
        self.platform = platform
        self.lost: str | None = None
        self._raw, self._device, self._jax = raw, devices[index], jax
        self.options: dict[str, str] = {}  # of XLA, for what is compiled from now on
        self.caches = platform != "cpu"  # whether compiled programs are kept on disk
        self.watch: Watch | None = None  # running calls, counted from the first call of `stats`
        self._used = self.peak = 0  # bytes of buffers, counted here if the device has no statistics
        self._counting = threading.Lock()
        self._copies: dict[Shape, Loaded] = {}  # programs that copy a buffer, by its shape

        class _Sharding(jax.SingleDeviceSharding):  # type: ignore[misc, name-defined]  # one device, the whole array
            memory_kind = None

            def _to_xla_hlo_sharding(self, rank: int) -> Any:
                return hlo.HloSharding.replicate()

        with jaxlib_calls("placing arrays", DeviceError):
            self.counts = not self._device.memory_stats()  # whether bytes of buffers are counted here
            self._sharding = _Sharding(self._device)
            self._devices = jax.DeviceList((self._device,))
            self._put = jax.batched_device_put
            semantics = jax.HostBufferSemantics
            self._copied, self._shared = semantics.IMMUTABLE_ONLY_DURING_CALL, semantics.ZERO_COPY
        found = version() or ""
        if not is_known(found):
            self._probe()

    def _probe(self) -> None:
        """Call every private function once, so that an untested version of jaxlib fails here and not later."""
        text = "func.func public @main(%a: tensor<2xf32>) -> tensor<2xf32> {\n  return %a : tensor<2xf32>\n}"
        shape = Shape("f32", 2)
        (result,) = self.compile(text, [shape])([self.put(np.ones(2, np.float32), shape)])
        assert result.numpy().tolist() == [1, 1]

    @property
    def version(self) -> str:
        """The versions that a serialised program depends on."""
        kind = "" if self.platform == "cpu" else f" on {self.kind}"
        return f"jaxlib {version()}, {self._raw.platform_version}{kind}".strip()

    @property
    def kind(self) -> str:
        return str(self._device.device_kind)

    @property
    def devices(self) -> int:
        return len(self._raw.local_devices())

    def put(self, array: Array, shape: Shape, *, shared: bool = False) -> PjrtBuffer:
        """Copy an array to the device. `shared`: the caller never changes its bytes, so the device may alias them."""
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
        """Prepare buffers that are the first arguments of many runs."""
        return Held(tuple(buffers), [each.raw for each in buffers])

    def take(self, given: Any) -> PjrtBuffer:
        """Import an array of another library through DLPack; without a copy if it is on this device."""
        with jaxlib_calls("an array from DLPack", DeviceError, self):
            capsule = given.__dlpack__()
            raw = self._jax.dlpack_managed_tensor_to_buffer(capsule, self._device, None)
        view = raw._single_device_array_to_np_array_did_copy()[0] if self.platform == "cpu" else np.asarray(raw)
        return PjrtBuffer(raw, Shape.of(dtype(view.dtype), view.shape), self)

    def compile(self, text: str, results: Sequence[Shape]) -> Loaded:
        """Compile StableHLO text whose `@main` has these results, or read what was compiled before."""
        if not self.caches:
            return self._compile(text, results)
        key = pjrt_cache.key_of(text, self.version, self.options)
        found = pjrt_cache.find(key)
        if found is not None:
            try:
                return self.load(found, results)
            except SmeltError as error:
                log.warning("a program in the cache cannot be used: %s", error.message)
                pjrt_cache.discard(key)
        start = time.perf_counter()
        made = self._compile(text, results)
        if time.perf_counter() - start > WORTH:
            pjrt_cache.keep(key, made.serialize)
        return made

    def _compile(self, text: str, results: Sequence[Shape]) -> Loaded:
        with jaxlib_calls("the program", UnsupportedError, self):
            if LAPACK in text and has_lapack(self.platform):
                register_lapack()
            options = self._jax.CompileOptions()
            options.env_option_overrides = list(self.options.items())
            raw = self._raw.compile_and_load(text, self._devices, options)
        return Loaded(raw, results, self)

    def copy(self, buffer: PjrtBuffer) -> PjrtBuffer:
        """Copy a buffer on the device, by running the identity program."""
        program = self._copies.get(buffer.shape)
        if program is None:
            kind = f"tensor<{'x'.join([*map(str, buffer.shape.numbers()), buffer.shape.dtype.name])}>"
            text = f"func.func public @main(%a: {kind}) -> {kind} {{\n  return %a : {kind}\n}}"
            program = self._copies[buffer.shape] = self.compile(text, [buffer.shape])
        (made,) = program([buffer])
        made.guard = buffer.guard
        return made

    def load(self, data: bytes, results: Sequence[Shape]) -> Loaded:
        """Load a program that the same version serialised for the same kind of device."""
        with jaxlib_calls("a serialised program", DeviceError, self):
            if LAPACK.encode() in data and has_lapack(self.platform):
                register_lapack()
            raw = self._raw.deserialize_executable(data, self._devices, self._jax.CompileOptions())
        return Loaded(raw, results, self)

    def stats(self) -> dict[str, float]:
        """Bytes in use and peak bytes (from PJRT, else the sum of buffers), running calls, and the busy fraction.

        Calls are counted from the first use of this method.
        """
        if self.watch is None:
            self.watch = Watch()
        queue, busy = self.watch.activity.sample()
        return {**self.memory(), "queue": queue, "busy": busy}

    def memory(self) -> dict[str, float]:
        """The part of `stats` that is about memory; counts no calls."""
        with jaxlib_calls("the memory's statistics", DeviceError, self):
            told = self._device.memory_stats()
            if told:
                wanted = ("bytes_in_use", "peak_bytes_in_use", "bytes_limit", "largest_alloc_size", "num_allocs")
                return {name: int(told[name]) for name in wanted if name in told}
            alive = [each for each in self._raw.live_arrays() if not each.is_deleted()]
            used = sum(each.on_device_size_in_bytes() for each in alive)
            self.peak = max(self.peak, used)
            return {"bytes_in_use": used, "peak_bytes_in_use": self.peak, "buffers": len(alive)}

    def count(self, change: int) -> None:
        """Count bytes that a buffer allocates (positive) or frees (negative)."""
        with self._counting:
            self._used += change
            if self._used > self.peak:
                self.peak = self._used

    def close(self) -> None:
        """Nothing to do: PJRT frees a client with its last buffer and program."""


class Watch:
    """Counts running calls. A background thread waits for their ends."""

    def __init__(self) -> None:
        self.activity = Activity()
        self._under_way: SimpleQueue[Any] = SimpleQueue()
        threading.Thread(target=self._wait, name="smelt-watch", daemon=True).start()

    def watch_call(self, results: Sequence[Any]) -> None:
        """A call has begun; it is done when its first result is."""
        if results and not results[0].is_ready():
            self._under_way.put(results[0])
        else:
            self.activity.end()

    def _wait(self) -> None:
        while True:
            result = self._under_way.get()
            with suppress(RuntimeError, ValueError):  # deleted, or failed: reading the result raises the error
                result.block_until_ready()
            del result
            self.activity.end()


@cache
def modules() -> tuple[Any, Any, Any]:
    """Import jaxlib's modules. It logs warnings only, unless the user has set its log level."""
    if version() is None:
        raise MissingPackageError("PJRT needs jaxlib", expected="jaxlib", got="no such package", remedy=REMEDY)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "1")
    with jaxlib_calls("the start", DeviceError):
        names = ("_jax", "xla_client", "_hlo")
        jax, xla, hlo = (importlib.import_module(f"jaxlib.{name}") for name in names)
        return jax, xla, hlo


LAPACK = "lapack_"  # prefix of JAX's LAPACK custom calls


def has_lapack(platform: str) -> bool:
    """Whether XLA can run JAX's LAPACK custom calls here: jaxlib takes the routines from SciPy."""
    return platform == "cpu" and all(importlib.util.find_spec(name) is not None for name in ("jaxlib.lapack", "scipy"))


@cache
def register_lapack() -> None:
    """Register jaxlib's LAPACK custom calls with XLA, as `import jax` does."""
    _, xla, _ = modules()
    lapack = importlib.import_module("jaxlib.lapack")
    lapack.prepare_lapack_call("getrf", np.float32)  # loads SciPy's routines
    for name, target, version in lapack.registrations()["cpu"]:
        xla.register_custom_call_target(name, target, platform="cpu", api_version=version)


def make_plugin_client(xla: Any, platform: str) -> Any:
    """Make a client from a plug-in. Device memory is not preallocated, so that other libraries can use it."""
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
    """The client of a device, shared by all engines of this process; a new one if the last was lost."""
    with _lock:
        found = _clients.get((platform, index))
        if found is None or found.lost is not None:
            found = _clients[platform, index] = Client(platform, index)
        return found


# ---- loading weights ----

STAGING = 256 << 20  # bytes of pinned memory: pinning more takes longer than it saves
LARGEST = 2 << 30  # bytes of the largest tensor that the staging memory grows for
PART = 4 << 20  # bytes that one thread reads at a time
READERS = 16


class Stage:
    """Loads tensors from files to a discrete device: parallel reads into pinned memory overlap with transfers.

    Tensors that are small, or larger than the pinned memory, are copied without staging.
    """

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
            _all([self._readers.submit(part.fill, 0) for part in parts])  # touched pages are pinned faster
            with suppress(RuntimeError):  # without pinning it is slower, but correct
                self._client._raw.dma_map(self._memory.ctypes.data, self._size)
                self._pinned = True
        return self

    def __exit__(self, *_: object) -> None:
        self._readers.shutdown()
        if self._pinned:
            self._client._raw.dma_unmap(self._memory.ctypes.data)

    def __call__(self, stored: Stored) -> PjrtBuffer:
        """Copy a tensor to the device and wait for the transfer."""
        if stored.place is None or not PART <= stored.nbytes <= self._size:  # what is computed is computed once
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
        """Allocate the first free range that is long enough; waits for one."""
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
    """Wait for all tasks, then raise the first error: no task writes to the memory after that."""
    failures = [failure for each in started if (failure := each.exception()) is not None]
    if failures:
        raise failures[0]


# ---- buffers ----


@lru_cache(4096)
def _bytes(shape: Shape) -> int:
    return math.prod(shape.numbers()) * shape.dtype.numpy.itemsize


class PjrtBuffer:
    """An array in a device's memory. The run that computes it may be in progress: reading waits for it."""

    __slots__ = ("__weakref__", "_gone", "_raw", "_size", "client", "guard", "shape")

    def __init__(self, raw: Any, shape: Shape, client: Client, size: int | None = None) -> None:
        self._raw = raw
        self._size = _bytes(shape) if size is None else size
        self._gone: str | None = None
        self.shape = shape
        self.client = client
        self.guard: Callable[[], None] | None = None  # raises if a run-time check of the run failed
        if client.counts:
            client.count(self._size)

    def __del__(self) -> None:
        if self._gone is None and self.client.counts:
            self.client.count(-self._size)

    @property
    def raw(self) -> Any:
        """jaxlib's array; an error if the buffer was deleted or donated."""
        if self._gone is not None:
            raise RunError(f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone, remedy=KEEP)
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
        """Wait until the contents are computed. Errors of the run are raised here."""
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
        """Start a copy to the host, so that `numpy` waits less."""
        with jaxlib_calls("a copy to the host", RunError, self.client):
            self.raw._copy_single_device_array_to_host_async()
        return self

    def numpy(self) -> Array:
        """The contents. On the CPU the array aliases the buffer and is read-only."""
        raw = self.raw
        if self.guard is not None:
            self.guard()
        try:
            if self.client.platform == "cpu" and self.shape.dtype.name in _PLAIN:
                raw.block_until_ready()
                array: Array = np.asarray(memoryview(raw))
            else:  # this call imports jax if it is installed
                array = raw._single_device_array_to_np_array_did_copy()[0]
        except (RuntimeError, ValueError) as error:
            raise _explain("a run", RunError, error, self.client) from error
        if array.shape != self.shape.sizes:
            raise RunError("XLA returned another shape than the program states", expected=self.shape, got=array.shape)
        return array

    def to_host(self) -> HostBuffer:
        """A copy in host memory."""
        return HostBuffer(np.array(self.numpy()), self.shape, owns=True)

    def copy(self) -> PjrtBuffer:
        """Copy to a new buffer on the same device."""
        if self.client.platform == "cpu":
            return self.client.put(self.numpy(), self.shape)
        return self.client.copy(self)

    def delete(self) -> None:
        if self._gone is None:
            self._raw.delete()
            self.give_away("was deleted")

    def give_away(self, reason: str) -> None:
        """Drop jaxlib's array: its memory was donated or freed."""
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


class Held(Frozen):
    """Buffers that are arguments of many runs, checked once. A buffer deleted since is reported when a run fails."""

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
        """Start a run on the held buffers and the arguments. The results are filled asynchronously."""
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
            watch.watch_call(made)
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
    """The function that wraps a run's result as an array, without importing jax."""
    described = aval(shape.numbers(), shape.dtype.numpy)
    with jaxlib_calls("results", DeviceError, client):
        return result_handler(client._jax.array_result_handler, described, client._sharding)


def result_handler(make: Callable[..., Any], described: Any, sharding: Any) -> Any:
    try:
        return make(described, sharding, True, True)
    except TypeError:  # 0.11 has no fourth argument
        return make(described, sharding, True)


def check_placed(given: Any, client: Any, shape: Shape, what: str) -> None:
    """Check that a buffer is on a client's device and has the expected shape."""
    if given.client is not client:
        raise DeviceError(
            f"{what} is on another device",
            expected=client.platform,
            got=given.client.platform,
            remedy="call .to_host() on it first",
        )
    if given.shape.dtype != shape.dtype or given.shape.sizes != shape.sizes:
        raise ShapeError(f"{what} does not fit", expected=shape, got=given.shape)
