"""NVIDIA's driver through `cuda-bindings` (extra `cuda`): one device, its primary context, one stream for all work, and
one to record graphs on.

Everything is imported when it is first used. What the driver refuses becomes a DeviceError or RunError with a remedy.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from functools import cache
from heapq import heappop, heappush
from typing import Any

import numpy as np

from smelt.buffer import bytes_text
from smelt.device.cuda_errors import DRIVER, FATAL, explain, explain_setup, explain_version, lost_device, short_name
from smelt.device.pinned import BUFFERS, CHUNK, HALF, Read, Ring, Staging
from smelt.dtype import Array
from smelt.errors import DeviceError, SmeltError

EXTRA = 'pip install "smelt[cuda]"'
GRAIN, MOST_SPARED = 512, 1 << 30  # bytes: sizes are multiples, and the most freed memory that is kept
LARGE = 32 << 20  # bytes from which on a copy to the device takes pinned memory,
SMALL = 32 << 10  # and up to which: a copy of ordinary memory may wait for the work before it
PIECE, PIECES = 4 << 10, 64  # bytes of pinned memory for a result, and how many are allocated at once
MEMORY_TYPE = 2  # an attribute of memory that the driver knows
LEGACY = 1  # the default stream that all threads share
ALWAYS = 48 << 10  # bytes of shared memory that a launch may take without asking


def missing() -> str | None:
    """Why no device of this kind can be used here, with the remedy; None where one can."""
    try:
        from cuda.bindings import driver as api
    except ImportError:
        return f"the package cuda-bindings is not installed: {EXTRA}"
    try:
        (status,) = api.cuInit(0)
    except Exception as error:  # no library of the driver, or an old one: the type differs between package versions
        if str(error).startswith("Function "):  # … "cuName" not found
            return f"the NVIDIA driver is too old ({error}): update it"
        return f"no NVIDIA driver: {DRIVER}"
    if status != api.CUresult.CUDA_SUCCESS:
        return explain_setup(status)
    return explain_version(version()) or (None if count() else f"no NVIDIA GPU: {DRIVER}")


def version() -> int:
    """The newest CUDA that the driver supports, as 1000 major + 10 minor."""
    return int(_check(_api().cuDriverGetVersion(), "asking for the version"))


def count() -> int:
    """The devices that the driver shows."""
    api = _api()
    return int(_check(api.cuDeviceGetCount(), "counting devices"))


def _api() -> Any:
    from cuda.bindings import driver as api

    return api


def _check(answer: tuple[Any, ...], what: str) -> Any:
    """The result of a call, or an error."""
    status, *found = answer
    name = "SUCCESS" if status == 0 else short_name(status)
    if name == "SUCCESS":
        return found[0] if found else None
    raise explain(name, what)


def _direct_calls() -> ctypes.CDLL:
    """The driver's library itself, for the calls that every run makes: `cuda-bindings` takes longer than they do."""
    library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    library.cuGraphLaunch.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.cuStreamSynchronize.argtypes = [ctypes.c_void_p]
    library.cuPointerGetAttribute.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint64]
    library.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    library.cuEventRecord.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.cuEventSynchronize.argtypes = [ctypes.c_void_p]
    return library


class Event:
    """A mark in the stream, destroyed after its last user."""

    __slots__ = ("_cuda", "handle")

    def __init__(self, cuda: Any, handle: Any) -> None:
        self._cuda, self.handle = cuda, handle

    def __del__(self) -> None:
        if not sys.is_finalizing():
            self._cuda.cuEventDestroy(self.handle)


class Piece:
    """Pinned memory that a small result is copied to, and the event behind that copy."""

    __slots__ = ("address", "event", "handle")

    def __init__(self, address: int, event: Event) -> None:
        self.address, self.event, self.handle = address, event, int(event.handle)


class Download:
    """A copy of a result to a piece that has begun. The piece is free afterwards, and where nothing waits for the copy:
    a later one into it comes behind this one."""

    __slots__ = ("_array", "_driver", "_piece")

    def __init__(self, driver: CudaDriver, piece: Piece, array: Array) -> None:
        self._driver, self._piece, self._array = driver, piece, array

    def __call__(self) -> None:
        self._driver.read_piece(self._piece, self._array)

    def __del__(self) -> None:
        self._driver.free_piece(self._piece)


class CudaDriver:
    """One GPU. Calls may come from any thread."""

    def __init__(self, number: int = 0) -> None:
        why = missing()
        if why is not None:
            raise DeviceError("no CUDA device", got=why, remedy='device="cpu"')
        if number >= count():
            raise DeviceError("no such CUDA device", expected=f"cuda:0 … cuda:{count() - 1}", got=f"cuda:{number}")
        self.number = number
        self.lost: SmeltError | None = None  # how
        self._cuda = api = _api()
        self._device = _check(api.cuDeviceGet(number), "opening the device")
        self._context = _check(api.cuDevicePrimaryCtxRetain(self._device), "opening a context")
        self._local = threading.local()
        self._overlaps = self.capability >= (9, 0)
        self._shared: dict[int, int] = {}  # that a function may take, by its address
        self._lock = threading.RLock()  # a buffer may be freed by the garbage collector, in the middle of a call
        self._sizes: dict[int, int] = {}  # of memory, by its address
        self._spare: dict[int, list[int]] = {}  # freed memory, by its size: heaps
        self._spared = 0  # bytes of it
        self._kept: list[tuple[Event, Any]] = []  # objects of other libraries that running work reads
        self._ring: Ring | None = None  # for large copies
        self._staging: tuple[int, Staging] | None = None  # for small ones, with the address of its memory
        self._pieces: list[Piece] = []  # that no result is copied to
        self._enter()
        flags = api.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        self._stream, self._recorder = (_check(api.cuStreamCreate(flags), "opening a stream") for _ in range(2))
        self._stream_address, self._fast = int(self._stream), _direct_calls()
        pool = _check(api.cuDeviceGetDefaultMemPool(self._device), "finding the memory pool")
        keep = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        _check(api.cuMemPoolSetAttribute(pool, keep, api.cuuint64_t((1 << 64) - 1)), "setting up the memory pool")

    def _enter(self) -> None:
        """Make the context this thread's own. Raises where the device was lost."""
        if self.lost is not None:
            raise lost_device(self.lost)
        if not getattr(self._local, "entered", False):
            self._check(self._cuda.cuCtxSetCurrent(self._context), "entering the context")
            self._local.entered = True

    def _check(self, answer: tuple[Any, ...], what: str) -> Any:
        """The result of a call, or an error. A lost device is remembered."""
        try:
            return _check(answer, what)
        except SmeltError as error:
            if short_name(answer[0]) in FATAL:
                self.lost = error
            raise

    @property
    def _here(self) -> Any:
        """The stream for kernels and copies of this thread: while it records a graph, one that no other thread uses."""
        return self._recorder if getattr(self._local, "records", False) else self._stream

    # -- facts --

    @property
    def name(self) -> str:
        raw: bytes = self._check(self._cuda.cuDeviceGetName(128, self._device), "asking for the name")
        return raw.split(b"\0")[0].decode()

    def attribute(self, name: str) -> int:
        wanted = getattr(self._cuda.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self._check(self._cuda.cuDeviceGetAttribute(wanted, self._device), "asking for an attribute"))

    @property
    def capability(self) -> tuple[int, int]:
        return self.attribute("COMPUTE_CAPABILITY_MAJOR"), self.attribute("COMPUTE_CAPABILITY_MINOR")

    @property
    def memory(self) -> tuple[int, int]:
        """(free, all) bytes."""
        self._enter()
        status, free, total = self._cuda.cuMemGetInfo()
        self._check((status,), "asking for the memory")
        return int(free), int(total)

    # -- code --

    def load(self, code: bytes) -> Any:
        self._enter()
        return self._check(self._cuda.cuModuleLoadData(code), "loading the code")

    def function(self, module: Any, name: str) -> Any:
        self._enter()
        answer = self._cuda.cuModuleGetFunction(module, name.encode())
        return None if short_name(answer[0]) == "NOT_FOUND" else self._check(answer, "finding a kernel")

    def launch(
        self,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Sequence[int],
        shared: int = 0,
        *,
        overlap: bool = False,
    ) -> None:
        self._enter()
        if shared > ALWAYS and self._shared.get(int(function), 0) < shared:
            most = self._cuda.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._check(self._cuda.cuFuncSetAttribute(function, most, shared), f"{shared} bytes of shared memory")
            self._shared[int(function)] = shared
        values = np.array(arguments, np.int64)
        table = values.ctypes.data + 8 * np.arange(len(arguments), dtype=np.int64)
        sizes = (blocks, 1, 1, threads, 1, 1, shared)
        if overlap and self._overlaps:
            config = self._overlapping(*sizes)
            self._check(self._cuda.cuLaunchKernelEx(config, function, int(table.ctypes.data), 0), "a launch")
        else:
            self._check(self._cuda.cuLaunchKernel(function, *sizes, self._here, int(table.ctypes.data), 0), "a launch")

    def _overlapping(self, *sizes: int) -> Any:
        """The configuration of a launch that may begin before the one in front of it ends."""
        api = self._cuda
        value = api.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute = api.CUlaunchAttribute()
        attribute.id = api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        attribute.value = value
        config = api.CUlaunchConfig()
        names = ("gridDimX", "gridDimY", "gridDimZ", "blockDimX", "blockDimY", "blockDimZ", "sharedMemBytes")
        for name, size in zip(names, sizes, strict=True):
            setattr(config, name, size)
        config.hStream, config.attrs, config.numAttrs = self._here, [attribute], 1
        return config

    def describe(self, function: Any) -> dict[str, Any]:
        """The name of a kernel, and what a thread and a block of it take."""
        self._enter()
        kinds = self._cuda.CUfunction_attribute
        wanted = {"registers": "NUM_REGS", "spilled": "LOCAL_SIZE_BYTES", "shared": "SHARED_SIZE_BYTES"}
        found: dict[str, Any] = {
            name: int(
                self._check(self._cuda.cuFuncGetAttribute(getattr(kinds, f"CU_FUNC_ATTRIBUTE_{each}"), function), name)
            )
            for name, each in wanted.items()
        }
        name = self._check(self._cuda.cuFuncGetName(function), "asking for a name")
        return {"name": name.decode() if isinstance(name, bytes) else str(name), **found}

    # -- memory --

    def allocate(self, count: int) -> int:
        """Freed memory of the same size comes first, by address: calls that come again then have the addresses of
        earlier ones, and replay their graphs. All work is on one stream, so it is in order."""
        size = -(-(count or 1) // GRAIN) * GRAIN
        with self._lock:
            spare = self._spare.get(size)
            if spare:
                self._spared -= size
                return heappop(spare)
        self._enter()
        answer = self._cuda.cuMemAllocAsync(size, self._stream)
        if short_name(answer[0]) == "OUT_OF_MEMORY" and self._release():
            answer = self._cuda.cuMemAllocAsync(size, self._stream)
        address = int(self._check(answer, self._describe_request(count)))
        with self._lock:
            self._sizes[address] = size
        return address

    def _describe_request(self, count: int) -> str:
        if count < 1 << 20:
            return f"{count} bytes"
        free, total = self.memory
        return f"{bytes_text(count)}, where {bytes_text(free)} of {bytes_text(total)} are free"

    def free(self, address: int) -> None:
        """Keep memory for later; what is too much goes back to the driver, large blocks first."""
        if self.lost is not None:
            return  # the memory is gone
        with self._lock:
            size = self._sizes[address]
            heappush(self._spare.setdefault(size, []), address)
            self._spared += size
            gone = []
            while self._spared > MOST_SPARED:
                largest = max(each for each, spare in self._spare.items() if spare)
                self._spared -= largest
                gone.append(self._spare[largest].pop())
                del self._sizes[gone[-1]]
        for each in gone:
            self._enter()
            self._check(self._cuda.cuMemFreeAsync(each, self._stream), "freeing memory")

    def _release(self) -> bool:
        """Return spare memory to the driver; whether there was some."""
        with self._lock:
            found = [address for spare in self._spare.values() for address in spare]
            self._spare, self._spared = {}, 0
            for address in found:
                del self._sizes[address]
        self._enter()
        for address in found:
            self._check(self._cuda.cuMemFreeAsync(address, self._stream), "freeing memory")
        return bool(found)

    def upload(self, address: int, array: Array) -> None:
        if array.nbytes >= LARGE:
            source = array.reshape(-1).view(np.uint8)
            self.fill(address, array.nbytes, lambda part, start: np.copyto(part, source[start : start + part.size]))
        elif 0 < array.nbytes <= SMALL:
            self._upload_small(address, array)
        elif array.nbytes:
            self._enter()
            self._check(self._cuda.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self._stream), "a copy")
            if self._is_pinned(array.ctypes.data):
                self.wait()

    def _upload_small(self, address: int, array: Array) -> None:
        """Through pinned memory: work that runs on the device goes on, and so does the caller."""
        self._enter()
        with self._lock:
            if self._staging is None:
                self._staging = self._pin(2 * HALF), Staging(self.event, self._await_event)
            first, staging = self._staging
            place = first + staging.take(array.nbytes)
            ctypes.memmove(place, array.ctypes.data, array.nbytes)
            status = self._fast.cuMemcpyHtoDAsync_v2(address, place, array.nbytes, self._stream_address)
        if status:
            self._refuse(status, "a copy")

    def _pin(self, count: int) -> int:
        """Pinned memory costs time, so it stays."""
        return int(self._check(self._cuda.cuMemHostAlloc(count, 0), "pinned memory"))

    def _is_pinned(self, address: int) -> bool:
        """Whether the device reads host memory itself, after the call that asks for a copy: another library pinned it.
        The driver copies ordinary memory before that call returns."""
        kind = ctypes.c_uint()
        return not self._fast.cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, address)

    def fill(self, address: int, count: int, read: Read) -> None:
        self._enter()
        with self._lock:
            self._ring = self._ring or self._make_ring()
        self._ring.copy(address, count, read)

    def _make_ring(self) -> Ring:
        first = self._pin(BUFFERS * CHUNK)
        pinned = np.ctypeslib.as_array((ctypes.c_uint8 * (BUFFERS * CHUNK)).from_address(first))
        return Ring([*pinned.reshape(BUFFERS, CHUNK)], self._send, self._await_event)

    def _send(self, address: int, part: Array, count: int) -> Event:
        self._enter()
        self._check(self._cuda.cuMemcpyHtoDAsync(address, part.ctypes.data, count, self._stream), "a copy")
        return self.event()

    def _await_event(self, event: Event) -> None:
        self._enter()
        self._check(self._cuda.cuEventSynchronize(event.handle), "a copy")

    def download(self, array: Array, address: int) -> None:
        self._enter()
        if array.nbytes:
            self._check(self._cuda.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self._stream), "a copy")
        self.wait()

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        if not 0 < array.nbytes <= PIECE:  # rare, and a copy to ordinary memory waits anyway
            self.download(array, address)
            return lambda: None
        self._enter()
        with self._lock:
            if not self._pieces:
                first = self._pin(PIECES * PIECE)
                self._pieces += [Piece(first + i * PIECE, self._new_event()) for i in range(PIECES)]
            piece = self._pieces.pop()
        copied = self._fast.cuMemcpyDtoHAsync_v2(piece.address, address, array.nbytes, self._stream_address)
        if status := copied or self._fast.cuEventRecord(piece.handle, self._stream_address):
            self._refuse(status, "a copy")
        return Download(self, piece, array)

    def read_piece(self, piece: Piece, array: Array) -> None:
        """The bytes of a piece, once they are there."""
        self._enter()
        status = self._fast.cuEventSynchronize(piece.handle)
        if status:
            self._refuse(status, "a run")
        ctypes.memmove(array.ctypes.data, piece.address, array.nbytes)

    def free_piece(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def move(self, target: int, source: int, count: int) -> None:
        self._enter()
        self._check(self._cuda.cuMemcpyDtoDAsync(target, source, count, self._here), "a copy")

    def clear(self, address: int, count: int) -> None:
        self._enter()
        self._check(self._cuda.cuMemsetD8Async(address, 0, count, self._stream), "clearing memory")

    def wait(self) -> None:
        self._enter()
        status = self._fast.cuStreamSynchronize(self._stream_address)
        if status:
            self._refuse(status, "a run")

    def _refuse(self, status: int, what: str) -> None:
        """The error of a direct call to the driver library."""
        self._check((self._cuda.CUresult(status),), what)

    # -- graphs --

    def record(self, work: Callable[[], None]) -> Any:
        self._enter()
        mode = self._cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        self._check(self._cuda.cuStreamBeginCapture(self._recorder, mode), "recording a graph")
        self._local.records = True
        try:
            work()
        finally:
            self._local.records = False
            answer = self._cuda.cuStreamEndCapture(self._recorder)
        graph = self._check(answer, "recording a graph")
        made = self._check(self._cuda.cuGraphInstantiate(graph, 0), "making a graph")
        self._check(self._cuda.cuGraphDestroy(graph), "making a graph")
        return int(made)

    def replay(self, graph: int) -> None:
        """The one call of the driver in a call of a recorded program."""
        self._enter()
        status = self._fast.cuGraphLaunch(graph, self._stream_address)
        if status:
            self._refuse(status, "launching a graph")

    def forget(self, graph: int) -> None:
        if self.lost is not None:
            return
        self._enter()
        self._check(self._cuda.cuGraphExecDestroy(graph), "freeing a graph")

    # -- other libraries --

    @property
    def stream(self) -> int | None:
        return self._stream_address

    def hand_over(self, stream: int | None) -> None:
        mine = self.event()
        self._check(self._cuda.cuStreamWaitEvent(LEGACY if stream is None else stream, mine.handle, 0), "an export")

    def follow(self, stream: int | None) -> None:
        if self.lost is not None:
            return
        self._enter()
        theirs = self._new_event()
        where = LEGACY if stream is None else stream
        self._check(self._cuda.cuEventRecord(theirs.handle, where), "recording an event")
        self._check(self._cuda.cuStreamWaitEvent(self._stream, theirs.handle, 0), "an import")

    def keep_until_done(self, owner: Any) -> None:
        if self.lost is not None:
            return
        self._kept = [(event, each) for event, each in self._kept if not self.is_done(event)]
        self._kept.append((self.event(), owner))

    # -- time --

    def _new_event(self) -> Event:
        return Event(self._cuda, self._check(self._cuda.cuEventCreate(0), "making an event"))

    def event(self) -> Event:
        """A mark in the stream."""
        self._enter()
        made = self._new_event()
        if getattr(self._local, "records", False):
            external = self._cuda.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value
            answer = self._cuda.cuEventRecordWithFlags(made.handle, self._recorder, external)
        else:
            answer = self._cuda.cuEventRecord(made.handle, self._stream)
        self._check(answer, "recording an event")
        return made

    def is_done(self, event: Event) -> bool:
        self._enter()
        answer = self._cuda.cuEventQuery(event.handle)
        if short_name(answer[0]) == "NOT_READY":
            return False
        self._check(answer, "a run")
        return True

    def seconds(self, first: Event, second: Event) -> float:
        """The time between two marks, once both are reached."""
        self._check(self._cuda.cuEventSynchronize(second.handle), "waiting for an event")
        taken = self._check(self._cuda.cuEventElapsedTime(first.handle, second.handle), "asking for a time")
        return 1e-3 * float(taken)


@cache
def open_driver(number: int) -> CudaDriver:
    """The driver of a device, opened once."""
    return CudaDriver(number)
