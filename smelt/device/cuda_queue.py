"""A CUDA stream as a `Queue`: work that runs in order, with the pinned memory of its small copies.

`cuda_driver` makes those of a device. Calls may come from any thread.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from smelt.device.cuda_errors import short_name
from smelt.device.order import Mark, Order
from smelt.device.pinned import HALF, Read, Staging
from smelt.dtype import Array

if TYPE_CHECKING:
    from smelt.device.cuda_driver import CudaDriver

GRAIN = 512  # bytes: sizes of memory are multiples
LARGE = 32 << 20  # bytes from which on a copy to the device takes pinned memory,
SMALL = 32 << 10  # and up to which: a copy of ordinary memory may wait for the work before it
PIECE, PIECES = 4 << 10, 64  # bytes of pinned memory for a result, and how many are allocated at once
MEMORY_TYPE = 2  # an attribute of memory that the driver knows
LEGACY = 1  # the default stream that all threads share


class Event:
    """A mark in a stream. Its handle goes to `spare` after its last user, or is destroyed."""

    __slots__ = ("_api", "_spare", "handle")

    def __init__(self, api: Any, handle: Any, spare: list[Any] | None = None) -> None:
        self._api, self.handle, self._spare = api, handle, spare

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if self._spare is not None:
            self._spare.append(self.handle)  # what waits for it already waits for what it marked then
        elif not is_finalizing():
            self._api.cuEventDestroy(self.handle)


class Piece:
    """Pinned memory that a small result is copied to, and the event behind that copy."""

    __slots__ = ("address", "event", "handle")

    def __init__(self, address: int, event: Event) -> None:
        self.address, self.event, self.handle = address, event, int(event.handle)


class Download:
    """A copy of a result to a piece that has begun. The piece is free afterwards, and where nothing waits for the copy:
    a later one into it comes behind this one."""

    __slots__ = ("_array", "_piece", "_queue")

    def __init__(self, queue: CudaQueue, piece: Piece, array: Array) -> None:
        self._queue, self._piece, self._array = queue, piece, array

    def __call__(self) -> None:
        self._queue.read_piece(self._piece, self._array)

    def __del__(self) -> None:
        self._queue.free_piece(self._piece)


class CudaQueue:
    """One stream."""

    def __init__(self, driver: CudaDriver) -> None:
        self._driver, self._api = driver, driver.api
        self._enter, self._check, self._refuse = driver.enter, driver.check, driver.refuse
        self.handle = driver.open_stream()
        self.stream = int(self.handle)
        self.order, self._spare = Order(self, driver.queues), driver.spare
        self._staging: tuple[int, Staging] | None = None  # for small copies, with the address of its memory
        self._staged = threading.Lock()  # a copy from it begins before the next place in it is taken
        self._pieces: list[Piece] = []  # that no result is copied to,
        self._all_pieces: list[Piece] = []  # and all: if garbage alone held a piece, its event would be destroyed first
        self._kept: list[tuple[Event, Any]] = []  # objects of other libraries that running work reads

    @property
    def _is_recording(self) -> bool:
        found: bool = getattr(self._driver.local, "records", False)
        return found

    @property
    def _here(self) -> Any:
        """The stream for kernels and copies of this thread: while it records a graph, one that no other thread uses."""
        return self._driver.recorder if self._is_recording else self.handle

    # -- kernels --

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
        self._driver.allow_shared(function, shared)
        values = np.array(arguments, np.int64)
        table = values.ctypes.data + 8 * np.arange(len(arguments), dtype=np.int64)
        sizes = (blocks, 1, 1, threads, 1, 1, shared)
        if overlap and self._driver.overlaps:
            config = self._overlapping(*sizes)
            self._check(self._api.cuLaunchKernelEx(config, function, int(table.ctypes.data), 0), "a launch")
        else:
            self._check(self._api.cuLaunchKernel(function, *sizes, self._here, int(table.ctypes.data), 0), "a launch")

    def _overlapping(self, *sizes: int) -> Any:
        """The configuration of a launch that may begin before the one in front of it ends."""
        api = self._api
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

    # -- memory --

    def allocate(self, count: int) -> int:
        size = -(-(count or 1) // GRAIN) * GRAIN
        found = self._spare.take(self, size)
        return self._driver.allocate(self, size, count) if found is None else found

    def free(self, address: int, after: Sequence[Mark] = ()) -> None:
        """Keep memory for later; what is too much goes back to the driver."""
        if self._driver.lost is not None:
            return  # the memory is gone
        gone = self._spare.give(self, address, after)
        if gone:
            self._driver.give_back(gone)

    def upload(self, address: int, array: Array) -> None:
        if array.nbytes >= LARGE:
            source = array.reshape(-1).view(np.uint8)
            self.fill(address, array.nbytes, lambda part, start: np.copyto(part, source[start : start + part.size]))
        elif 0 < array.nbytes <= SMALL:
            self._upload_small(address, array)
        elif array.nbytes:
            self._enter()
            self._check(self._api.cuMemcpyHtoDAsync(address, array.ctypes.data, array.nbytes, self.handle), "a copy")
            if self._is_pinned(array.ctypes.data):
                self.wait()

    def _upload_small(self, address: int, array: Array) -> None:
        """Through pinned memory: work that runs on the device goes on, and so does the caller."""
        self._enter()
        with self._staged:
            if self._staging is None:
                self._staging = self._driver.pin(2 * HALF), Staging(self.mark, self._driver.await_event)
            first, staging = self._staging
            place = first + staging.take(array.nbytes)
            ctypes.memmove(place, array.ctypes.data, array.nbytes)
            status = self._driver.direct.cuMemcpyHtoDAsync_v2(address, place, array.nbytes, self.stream)
        if status:
            self._refuse(status, "a copy")

    def _is_pinned(self, address: int) -> bool:
        """Whether the device reads host memory itself, after the call that asks for a copy: another library pinned it.
        The driver copies ordinary memory before that call returns."""
        kind = ctypes.c_uint()
        return not self._driver.direct.cuPointerGetAttribute(ctypes.byref(kind), MEMORY_TYPE, address)

    def fill(self, address: int, count: int, read: Read) -> None:
        self._enter()
        self._driver.ring.copy(address, count, read, self._send)

    def _send(self, address: int, part: Array, count: int) -> Event:
        self._enter()
        self._check(self._api.cuMemcpyHtoDAsync(address, part.ctypes.data, count, self.handle), "a copy")
        return self.mark()

    def download(self, array: Array, address: int) -> None:
        self._enter()
        if array.nbytes:
            self._check(self._api.cuMemcpyDtoHAsync(array.ctypes.data, address, array.nbytes, self.handle), "a copy")
        self.wait()

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        if not 0 < array.nbytes <= PIECE:  # rare, and a copy to ordinary memory waits anyway
            self.download(array, address)
            return lambda: None
        self._enter()
        with self._driver.queues.lock:
            if not self._pieces:
                first = self._driver.pin(PIECES * PIECE)
                self._pieces += [Piece(first + i * PIECE, self._driver.new_event()) for i in range(PIECES)]
                self._all_pieces += self._pieces
            piece = self._pieces.pop()
        copied = self._driver.direct.cuMemcpyDtoHAsync_v2(piece.address, address, array.nbytes, self.stream)
        if status := copied or self._driver.direct.cuEventRecord(piece.handle, self.stream):
            self._refuse(status, "a copy")
        return Download(self, piece, array)

    def read_piece(self, piece: Piece, array: Array) -> None:
        """The bytes of a piece, once they are there."""
        self._enter()
        status = self._driver.direct.cuEventSynchronize(piece.handle)
        if status:
            self._refuse(status, "a run")
        ctypes.memmove(array.ctypes.data, piece.address, array.nbytes)

    def free_piece(self, piece: Piece) -> None:
        self._pieces.append(piece)

    def move(self, target: int, source: int, count: int) -> None:
        self._enter()
        self._check(self._api.cuMemcpyDtoDAsync(target, source, count, self._here), "a copy")

    def clear(self, address: int, count: int) -> None:
        self._enter()
        self._check(self._api.cuMemsetD8Async(address, 0, count, self.handle), "clearing memory")

    def wait(self) -> None:
        self._enter()
        status = self._driver.direct.cuStreamSynchronize(self.stream)
        if status:
            self._refuse(status, "a run")

    # -- graphs --

    def record(self, work: Callable[[], None]) -> Any:
        self._enter()
        driver = self._driver
        mode = self._api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        with driver.recording:
            self._check(self._api.cuStreamBeginCapture(driver.recorder, mode), "recording a graph")
            driver.local.records = True
            try:
                work()
            finally:
                driver.local.records = False
                answer = self._api.cuStreamEndCapture(driver.recorder)
        graph = self._check(answer, "recording a graph")
        made = self._check(self._api.cuGraphInstantiate(graph, 0), "making a graph")
        self._check(self._api.cuGraphDestroy(graph), "making a graph")
        return int(made)

    def replay(self, graph: int) -> None:
        """The one call of the driver in a call of a recorded program."""
        self._enter()
        status = self._driver.direct.cuGraphLaunch(graph, self.stream)
        if status:
            self._refuse(status, "launching a graph")

    def forget(self, graph: int) -> None:
        if self._driver.lost is not None:
            return
        self._enter()
        self._check(self._api.cuGraphExecDestroy(graph), "freeing a graph")

    # -- other queues and libraries --

    def mark(self) -> Event:
        made = self._driver.new_event(is_timed=False)
        status = self._driver.direct.cuEventRecord(int(made.handle), self.stream)
        if status:
            self._refuse(status, "recording an event")
        return made

    def after(self, event: Event) -> None:
        self._enter()
        status = self._driver.direct.cuStreamWaitEvent(self.stream, int(event.handle), 0)
        if status:
            self._refuse(status, "waiting for another stream")

    def hand_over(self, stream: int | None) -> None:
        mine = self.mark()
        self._check(self._api.cuStreamWaitEvent(LEGACY if stream is None else stream, mine.handle, 0), "an export")

    def follow(self, stream: int | None) -> None:
        if self._driver.lost is not None:
            return
        theirs = self._driver.new_event(is_timed=False)
        where = LEGACY if stream is None else stream
        self._check(self._api.cuEventRecord(theirs.handle, where), "recording an event")
        self._check(self._api.cuStreamWaitEvent(self.handle, theirs.handle, 0), "an import")

    def keep_until_done(self, owner: Any) -> None:
        if self._driver.lost is not None:
            return
        with self._driver.queues.lock:
            before = self._kept  # those whose work is done go after the lock: another library's code runs then
            self._kept = [(event, each) for event, each in before if not self.is_done(event)]
            self._kept.append((self.mark(), owner))
        del before

    # -- time --

    def event(self) -> Event:
        """A mark in the stream, with the time."""
        made = self._driver.new_event()
        if self._is_recording:
            external = self._api.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL.value
            answer = self._api.cuEventRecordWithFlags(made.handle, self._driver.recorder, external)
        else:
            answer = self._api.cuEventRecord(made.handle, self.handle)
        self._check(answer, "recording an event")
        return made

    def is_done(self, event: Event) -> bool:
        self._enter()
        answer = self._api.cuEventQuery(event.handle)
        if short_name(answer[0]) == "NOT_READY":
            return False
        self._check(answer, "a run")
        return True
