"""GpuBuffer: an array in the memory of a device with a `Driver`. What computes it may still run: reading it waits."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from typing import Any, ClassVar

import numpy as np

from smelt.buffer import HostBuffer, check_shape, in_thread
from smelt.device.dlpack import CUDA, Imported, export_array, import_array
from smelt.device.driver import Driver, Queue
from smelt.device.order import Shared, follow_stream, in_order, list_users, marks_of_others
from smelt.dtype import Array, ElementType, dtype
from smelt.errors import DeviceError, RunError
from smelt.guard import Guard
from smelt.shape import Shape

ALIGN = 16  # bytes: kernels read and write that much at once
NO_STREAM = -1  # of DLPack: the caller cares for the order itself
KEEP = "keep=True, or .copy() before the call"


@lru_cache(4096)
def static_shape(element: ElementType, sizes: tuple[int, ...]) -> Shape:
    """One object for equal shapes: calls compare the shapes of buffers by identity."""
    return Shape.of(element, sizes)


class Block:
    """Memory of a device, freed after its last user. `home` and `shared` are those of `order`."""

    __slots__ = ("address", "bytes", "home", "shared")

    def __init__(self, queue: Queue, count: int) -> None:
        self.bytes = count
        self.address = queue.allocate(count or 1)
        self.shared: Shared | None = None
        self.home = queue

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "home") and not is_finalizing():  # the process' end frees all
            if self.shared is None:
                self.home.free(self.address)
            else:
                self._free_shared()

    def _free_shared(self) -> None:
        try:
            others = marks_of_others(self)
        except DeviceError:
            return  # it was lost, and its memory with it
        self.home.free(self.address, others)


class Lent(Block):
    """Memory of another library."""

    __slots__ = ()
    _owners: ClassVar[dict[int, Any]] = {}  # by the id of its block: what garbage alone holds may end in any order

    def __init__(self, queue: Queue, found: Imported) -> None:
        self.bytes = math.prod(found.sizes) * found.element.numpy.itemsize
        self.address = found.address
        self.shared = None
        self.home = queue
        self._owners[id(self)] = found.owner

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        owner = self._owners.pop(id(self), None)
        if owner is not None and not is_finalizing():
            for queue in list_users(self):
                queue.keep_until_done(owner)  # calls that read it may still run


class Borrowed:
    """A block that another library uses on a stream: what reuses its memory waits for that stream."""

    __slots__ = ("_block", "_stream")

    def __init__(self, block: Block, stream: int | None) -> None:
        self._block, self._stream = block, stream

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_stream") and self._stream != NO_STREAM and not is_finalizing():
            follow_stream(self._block, self._stream)


class GpuBuffer:
    """A buffer of `device.api.Device`s with their own memory: `bytes` of a block, from `offset` on."""

    __slots__ = ("__weakref__", "_block", "_copy", "_gone", "_offset", "at", "client", "guard", "shape")

    def __init__(self, client: Driver, shape: Shape, block: Block | None = None, offset: int = 0) -> None:
        self.client = client
        self.shape = shape
        if block is None:
            block = Block(client.queues.current, self.nbytes)
        self._block: Block | None = block
        self._offset = offset
        self.at = block.address + offset  # -1: it has no memory any more
        self._gone = ""
        self.guard: Guard | None = None
        self._copy: tuple[Array, Callable[[], None]] | None = None  # that has begun, and what waits for it

    @staticmethod
    def of(client: Driver, array: Array, shape: Shape, queue: Queue | None = None) -> GpuBuffer:
        """A copy of an array."""
        block = Block(queue or client.queues.current, array.nbytes)
        block.home.upload(block.address, np.ascontiguousarray(array))
        return GpuBuffer(client, static_shape(shape.dtype, array.shape), block)

    @staticmethod
    def of_all(client: Driver, arrays: Sequence[Array]) -> list[GpuBuffer]:
        """Copies of small arrays, in one block: one allocation and one copy to the device."""
        together = bytearray()
        places = []
        for array in arrays:
            places.append((static_shape(dtype(array.dtype), array.shape), len(together)))
            together += array.tobytes()
            together += bytes(-len(together) % ALIGN)
        block = Block(client.queues.current, len(together))
        block.home.upload(block.address, np.frombuffer(together, np.uint8))
        return [GpuBuffer(client, shape, block, at) for shape, at in places]

    @staticmethod
    def read(client: Driver, shape: Shape, read: Callable[[Array, int], None]) -> GpuBuffer:
        """A buffer with the bytes that `read(part, start)` gives part by part: those of a file."""
        made = GpuBuffer(client, static_shape(shape.dtype, shape.numbers()))
        if made.nbytes:
            made.block.home.fill(made.address, made.nbytes, read)
        return made

    @property
    def block(self) -> Block:
        if self._block is None:
            raise RunError(f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone, remedy=KEEP)
        return self._block

    @property
    def address(self) -> int:
        return self.at if self._block is not None else self.block.address

    @property
    def dtype(self) -> np.dtype[Any]:
        return self.shape.dtype.numpy

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape.numbers()) * self.shape.dtype.numpy.itemsize

    @property
    def is_deleted(self) -> bool:
        return self._block is None

    def wait(self) -> GpuBuffer:
        self.block.home.wait()
        self.judge()
        return self

    def judge(self) -> None:
        """Raise what a check found of the call that made it, or of an earlier one whose results that call took."""
        if self.guard is not None:
            self.guard()

    def __await__(self) -> Generator[Any, Any, GpuBuffer]:
        return in_thread(self.wait).__await__()

    def copy_to_host(self) -> GpuBuffer:
        """Start a copy to the host, so that the next `numpy` does not wait for calls that begin meanwhile."""
        array, block = np.empty(self.shape.numbers(), self.dtype), self.block
        queue = block.home
        with in_order(queue, (block,)):
            self._copy = array, queue.begin_download(array, self.address)
        return self

    def numpy(self) -> Array:
        address, begun = self.address, self._copy
        if begun is None:
            array = np.empty(self.shape.numbers(), self.dtype)
            self.block.home.download(array, address)
        else:
            array, wait = begun
            self._copy = None
            wait()
        self.judge()
        return array

    def forget_copy(self) -> None:
        """Something writes this buffer anew."""
        self._copy = None

    def to_host(self) -> HostBuffer:
        """A copy in host memory."""
        return HostBuffer(self.numpy(), self.shape, owns=True)

    def copy(self) -> GpuBuffer:
        """Another buffer with the same contents."""
        block = self.block
        queue = block.home
        made = GpuBuffer(self.client, self.shape, Block(queue, self.nbytes))
        if self.nbytes:
            with in_order(queue, (block,)):
                queue.move(made.address, self.address, self.nbytes)
        made.guard = self.guard
        return made

    def copy_from(self, other: GpuBuffer) -> None:
        """Take the contents of a buffer of this shape on this device."""
        check_shape(other.shape, self.shape, "the copied buffer")
        block = self.block
        queue = block.home
        with in_order(queue, (other.block,), (block,)):
            queue.move(self.address, other.address, self.nbytes)
        self.guard = other.guard
        self.forget_copy()

    def enlarge(self, count: int) -> GpuBuffer:
        """A buffer of `count` rows: these, and zeros behind them."""
        block, rows = self.block, self.shape.numbers()[1:]
        queue = block.home
        size = count * math.prod(rows) * self.dtype.itemsize
        made = GpuBuffer(self.client, static_shape(self.shape.dtype, (count, *rows)), Block(queue, size))
        queue.clear(made.address + self.nbytes, size - self.nbytes)
        with in_order(queue, (block,)):
            queue.move(made.address, self.address, self.nbytes)
        made.guard = self.guard
        return made

    def renew(self) -> GpuBuffer:
        """A new buffer on the same memory."""
        return GpuBuffer(self.client, self.shape, self.block, self._offset)

    def delete(self) -> None:
        if self._block is not None:
            self.give_away("was deleted")

    def give_away(self, reason: str = "was donated") -> None:
        """Drop the memory: a result has it now, or it is free."""
        self._block, self.at, self._gone, self._copy = None, -1, reason, None

    def __dlpack__(self, *, stream: int | None = None, dl_device: Any = None, copy: Any = None, **_: Any) -> Any:
        """The memory itself, for torch, JAX or CuPy on this device. Work on their stream begins after what computes it;
        the host waits only where checks of data are to be judged. `stream`: as DLPack numbers them, -1 for none."""
        if dl_device is not None and tuple(map(int, dl_device)) != self.__dlpack_device__():
            raise BufferError(f"the buffer is on {self.__dlpack_device__()}: .numpy() copies it to the host")
        if copy:
            return self.copy().__dlpack__(stream=stream)
        if self.guard is not None:
            self.wait()
        block = self.block
        if stream != NO_STREAM:
            for queue in list_users(block):  # the library may write it
                queue.hand_over(stream)
        self.forget_copy()
        owner = Borrowed(block, stream)
        return export_array(self.address, self.shape.numbers(), self.shape.element, self.client.number, owner)

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.client.number

    @staticmethod
    def from_dlpack(client: Driver, given: Any, what: str, queue: Queue | None = None) -> GpuBuffer:
        """The memory of another library's array on this device; a copy where kernels could not read it: a part of a
        larger array may begin anywhere."""
        queue = queue or client.queues.current
        try:
            capsule = given.__dlpack__(stream=queue.stream)  # their work is in front of ours
        except TypeError:  # it knows no streams
            capsule = given.__dlpack__()
            queue.follow(None)
        found = import_array(capsule, what)
        made = GpuBuffer(client, static_shape(found.element, found.sizes), Lent(queue, found))
        return made if found.address % ALIGN == 0 else made.copy()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype)

    def __repr__(self) -> str:
        return f"<{self.shape} in device memory{', which ' + self._gone if self._gone else ''}>"
