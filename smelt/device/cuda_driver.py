"""NVIDIA's driver through `cuda-bindings` (extra `cuda`): one device, its primary context and its memory. `cuda_queue`
has its streams.

Everything is imported when it is first used. What the driver refuses becomes a DeviceError or RunError with a remedy.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Sequence
from functools import cache, cached_property
from typing import Any

import numpy as np

from smelt.buffer import bytes_text
from smelt.device.cuda_errors import (
    DRIVER,
    FATAL,
    explain,
    explain_capability,
    explain_setup,
    explain_version,
    lost_device,
    short_name,
)
from smelt.device.cuda_queue import CudaQueue, Event
from smelt.device.order import Queues
from smelt.device.pinned import BUFFERS, CHUNK, Ring
from smelt.device.spare import Freed, Spare
from smelt.errors import DeviceError, SmeltError

EXTRA = 'pip install "smelt[cuda]"'
MOST_SPARED = 1 << 30  # bytes: the most freed memory that is kept
UNTIMED = 2  # a flag of events
ALWAYS = 48 << 10  # bytes of shared memory that a launch may take without asking


def missing(number: int = 0) -> str | None:
    """Why this device cannot be used here, with the remedy; None where it can."""
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
    why = explain_version(version()) or (None if count() else f"no NVIDIA GPU: {DRIVER}")
    if why is None and number >= count():
        return f"no such CUDA device: there is cuda:{count() - 1}, and none after it"
    return why or explain_capability(capability(number))


def capability(number: int) -> tuple[int, int]:
    """The compute capability of a device, which is not opened."""
    api = _api()
    device, major, minor = (
        _check(api.cuDeviceGet(number), "finding the device"),
        api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR,
        api.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR,
    )
    asked = (_check(api.cuDeviceGetAttribute(each, device), "asking for an attribute") for each in (major, minor))
    first, second = map(int, asked)
    return first, second


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
    library.cuStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
    return library


class CudaDriver:
    """One GPU. Calls may come from any thread."""

    def __init__(self, number: int = 0) -> None:
        why = missing(number)
        if why is not None:
            raise DeviceError("no CUDA device", got=why, remedy='device="cpu"')
        self.number = number
        self.lost: SmeltError | None = None  # how
        self.api = api = _api()
        self._device = _check(api.cuDeviceGet(number), "opening the device")
        self._context = _check(api.cuDevicePrimaryCtxRetain(self._device), "opening a context")
        self.local = threading.local()  # whether a thread has the context, and whether it records a graph
        self.overlaps = self.capability >= (9, 0)
        self._shared: dict[int, int] = {}  # that a function may take, by its address
        self._ring: Ring | None = None  # for large copies
        self._events: list[Any] = []  # handles that no mark uses
        self.enter()
        self.direct = _direct_calls()
        self.recording = threading.Lock()  # graphs are recorded one at a time, on a stream of their own
        self.recorder = self.open_stream()
        self.queues: Queues = Queues(lambda: CudaQueue(self))
        self.spare: Spare = Spare(self.queues, MOST_SPARED)
        pool = _check(api.cuDeviceGetDefaultMemPool(self._device), "finding the memory pool")
        keep = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        _check(api.cuMemPoolSetAttribute(pool, keep, api.cuuint64_t((1 << 64) - 1)), "setting up the memory pool")

    def open_stream(self) -> Any:
        self.enter()
        flags = self.api.CUstream_flags.CU_STREAM_NON_BLOCKING.value
        return self.check(self.api.cuStreamCreate(flags), "opening a stream")

    def enter(self) -> None:
        """Make the context this thread's own. Raises where the device was lost."""
        if self.lost is not None:
            raise lost_device(self.lost)
        if not getattr(self.local, "entered", False):
            self.check(self.api.cuCtxSetCurrent(self._context), "entering the context")
            self.local.entered = True

    def check(self, answer: tuple[Any, ...], what: str) -> Any:
        """The result of a call, or an error. A lost device is remembered."""
        try:
            return _check(answer, what)
        except SmeltError as error:
            if short_name(answer[0]) in FATAL:
                self.lost = error
            raise

    def refuse(self, status: int, what: str) -> None:
        """The error of a direct call to the driver library."""
        self.check((self.api.CUresult(status),), what)

    # -- facts --

    @property
    def name(self) -> str:
        raw: bytes = self.check(self.api.cuDeviceGetName(128, self._device), "asking for the name")
        return raw.split(b"\0")[0].decode()

    def attribute(self, name: str) -> int:
        wanted = getattr(self.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.check(self.api.cuDeviceGetAttribute(wanted, self._device), "asking for an attribute"))

    @cached_property
    def capability(self) -> tuple[int, int]:
        return capability(self.number)

    @property
    def memory(self) -> tuple[int, int]:
        """(free, all) bytes."""
        self.enter()
        status, free, total = self.api.cuMemGetInfo()
        self.check((status,), "asking for the memory")
        return int(free), int(total)

    # -- code --

    def load(self, code: bytes) -> Any:
        self.enter()
        return self.check(self.api.cuModuleLoadData(code), "loading the code")

    def function(self, module: Any, name: str) -> Any:
        self.enter()
        answer = self.api.cuModuleGetFunction(module, name.encode())
        return None if short_name(answer[0]) == "NOT_FOUND" else self.check(answer, "finding a kernel")

    def allow_shared(self, function: Any, count: int) -> None:
        """Let blocks of a kernel take shared memory."""
        if count > ALWAYS and self._shared.get(int(function), 0) < count:
            most = self.api.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.check(self.api.cuFuncSetAttribute(function, most, count), f"{count} bytes of shared memory")
            self._shared[int(function)] = count

    def describe(self, function: Any) -> dict[str, Any]:
        """The name of a kernel, and what a thread and a block of it take."""
        self.enter()
        kinds = self.api.CUfunction_attribute
        wanted = {"registers": "NUM_REGS", "spilled": "LOCAL_SIZE_BYTES", "shared": "SHARED_SIZE_BYTES"}
        found: dict[str, Any] = {
            name: int(
                self.check(self.api.cuFuncGetAttribute(getattr(kinds, f"CU_FUNC_ATTRIBUTE_{each}"), function), name)
            )
            for name, each in wanted.items()
        }
        name = self.check(self.api.cuFuncGetName(function), "asking for a name")
        return {"name": name.decode() if isinstance(name, bytes) else str(name), **found}

    # -- memory --

    def allocate(self, queue: CudaQueue, size: int, count: int) -> int:
        """Memory of a size that is not spare."""
        self.enter()
        answer = self.api.cuMemAllocAsync(size, queue.handle)
        if short_name(answer[0]) == "OUT_OF_MEMORY" and self.release():
            answer = self.api.cuMemAllocAsync(size, queue.handle)
        address = int(self.check(answer, self._describe_request(count)))
        self.spare.add(address, size)
        return address

    def _describe_request(self, count: int) -> str:
        if count < 1 << 20:
            return f"{count} bytes"
        free, total = self.memory
        return f"{bytes_text(count)}, where {bytes_text(free)} of {bytes_text(total)} are free"

    def release(self) -> bool:
        """Return spare memory to the driver; whether there was some."""
        found = self.spare.clear()
        self.give_back(found)
        return bool(found)

    def give_back(self, freed: Sequence[Freed]) -> None:
        """Return memory to the driver, which gives it to any queue in the right order."""
        for queue, address, marks in freed:
            assert isinstance(queue, CudaQueue)
            self.enter()
            with self.queues.lock:
                for mark in marks:
                    queue.order.await_mark(mark)
            self.check(self.api.cuMemFreeAsync(address, queue.handle), "freeing memory")

    def pin(self, count: int) -> int:
        """Pinned memory costs time, so it stays."""
        return int(self.check(self.api.cuMemHostAlloc(count, 0), "pinned memory"))

    @property
    def ring(self) -> Ring:
        with self.queues.lock:
            self._ring = self._ring or self._make_ring()
        return self._ring

    def _make_ring(self) -> Ring:
        first = self.pin(BUFFERS * CHUNK)
        pinned = np.ctypeslib.as_array((ctypes.c_uint8 * (BUFFERS * CHUNK)).from_address(first))
        return Ring([*pinned.reshape(BUFFERS, CHUNK)], self.await_event)

    # -- events --

    def new_event(self, *, is_timed: bool = True) -> Event:
        """One whose time does not count may be another's afterwards."""
        self.enter()
        if is_timed:
            return Event(self.api, self.check(self.api.cuEventCreate(0), "making an event"))
        try:
            handle = self._events.pop()
        except IndexError:
            handle = self.check(self.api.cuEventCreate(UNTIMED), "making an event")
        return Event(self.api, handle, self._events)

    def await_event(self, event: Event) -> None:
        self.enter()
        self.check(self.api.cuEventSynchronize(event.handle), "a copy")

    def seconds(self, first: Event, second: Event) -> float:
        """The time between two events, once both are reached."""
        self.check(self.api.cuEventSynchronize(second.handle), "waiting for an event")
        taken = self.check(self.api.cuEventElapsedTime(first.handle, second.handle), "asking for a time")
        return 1e-3 * float(taken)

    def wait(self) -> None:
        for queue in list(self.queues.all):
            queue.wait()


@cache
def open_driver(number: int) -> CudaDriver:
    """The driver of a device, opened once."""
    return CudaDriver(number)
