"""Weights: names → arrays that stay in the file until they are read.

Readers (`smelt.read`) make them from mapped files; `Executable.prepare` takes from them what a program needs;
`to_device` copies them to a device, several at a time.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeVar, overload

import numpy as np

from smelt.buffer import Buffer, HostBuffer, bytes_text
from smelt.dtype import Array, ElementType
from smelt.errors import FileError, ShapeError, UnsupportedError
from smelt.files import open_regular
from smelt.shape import Shape
from smelt.structure import leaves, map_leaves

THREADS = 6  # tensors on their way to a device at the same time
MAX_RANK = 64  # axes of an array in NumPy
PIECE = 16 << 20  # bytes of a mapping that are brought into memory at a time
POPULATE_READ = 22  # Linux's madvise: read pages now, past what Python has a name for
Progress = Callable[[int, int], None]  # bytes that have arrived, all bytes
M = TypeVar("M")


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One tensor that is not loaded yet: its shape, how to load it and, for raw bytes in a file, their position."""

    shape: Shape
    load: Callable[[], Array]
    place: tuple[MappedFile, int] | None = None
    sources: tuple[Stored, ...] = ()  # what `load` computes it of

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape.numbers()) * self.shape.dtype.numpy.itemsize

    def read_into(self, target: Array, start: int) -> None:
        """Fill an array of bytes with the tensor's bytes from `start` on. Threads may read parts at the same time."""
        if self.place is not None:
            file, offset = self.place
            file.read_into(target, offset + start)
        else:
            flat = np.ascontiguousarray(self.load()).reshape(-1).view(np.uint8)
            target[:] = flat[start : start + target.size]

    @property
    def files(self) -> set[MappedFile]:
        """The mapped files that loading reads."""
        own = set() if self.place is None else {self.place[0]}
        return own.union(*(each.files for each in self.sources))

    def with_axes(self, axes: tuple[str, ...] | None) -> Stored:
        """The same tensor with names for its axes."""
        if axes is None:
            return self
        return replace(self, shape=Shape.of(self.shape.dtype, self.shape.sizes, axes))

    def fetch(self) -> Array:
        """The array with its part of the file in memory (prefetched), so that no later access waits for the disk."""
        if self.place is not None:
            file, offset = self.place
            file.fetch(offset, self.nbytes)
        return self.load()


class Placeholder(Protocol):
    """A tensor of a model without its data: its shape, and a value with the name of its weight."""

    @property
    def shape(self) -> Shape: ...

    @property
    def value(self) -> Any: ...


def is_placeholder(value: Any) -> bool:
    return hasattr(value, "value") and isinstance(getattr(value, "shape", None), Shape)


class Staging(Protocol):
    """What copies tensors to a device, one at a time: a Platform."""

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        """What copies a tensor of at most `largest` bytes and returns when it has arrived; threads may share it."""
        ...


class Weights(Mapping[str, HostBuffer]):
    """Named tensors, loaded when asked for. Iterating or asking for a shape reads no data."""

    def __init__(
        self,
        stored: Mapping[str, Stored],
        metadata: Mapping[str, str] = MappingProxyType({}),
        source: str = "",
        config: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        self._stored = dict(stored)
        self.metadata = MappingProxyType(dict(metadata))
        self.source = source
        self.config = MappingProxyType(dict(config))  # what a config.json beside the file says

    @staticmethod
    def of(arrays: Mapping[str, object]) -> Weights:
        """Weights from arrays that are in memory already."""
        buffers = {name: HostBuffer.of(array) for name, array in arrays.items()}
        return Weights({name: Stored(buffer.shape, buffer.numpy) for name, buffer in buffers.items()})

    def __getitem__(self, name: str) -> HostBuffer:
        stored = self.find(name)
        try:
            array = stored.load()
        except MemoryError as error:
            raise FileError(
                f"no memory left for the tensor {name!r}",
                got=f"{stored.nbytes} bytes",
                remedy="close models that are not in use",
            ) from error
        return HostBuffer(array, stored.shape, owns=array.base is None)

    def release(self) -> None:
        """Give back the memory that mapped files take: for weights that are bound, and so copied. Arrays stay valid."""
        for file in set[MappedFile]().union(*(stored.files for stored in self._stored.values())):
            file.release()

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def __repr__(self) -> str:
        return f"<Weights of {self.source or 'memory'}: {len(self)} tensors, {bytes_text(self.nbytes)}>"

    def shape(self, name: str) -> Shape:
        """The shape of a tensor; its data stays where it is."""
        return self.find(name).shape

    @property
    def nbytes(self) -> int:
        """The bytes of all tensors."""
        return sum(stored.nbytes for stored in self._stored.values())

    @overload
    def to_device(
        self, platform: Staging, names: Iterable[str] | None = None, /, *, progress: Progress | None = None
    ) -> dict[str, Buffer]: ...

    @overload
    def to_device(self, model: M, platform: Staging, /, *, progress: Progress | None = None) -> M: ...

    def to_device(self, model: Any, platform: Any = None, /, *, progress: Progress | None = None) -> Any:
        """Tensors on a platform's device, several copies at a time, the largest first.

        `to_device(model, platform)` returns the model's structure with a Buffer in place of every tensor;
        `to_device(platform)` returns all tensors by name, `to_device(platform, names)` the named ones. `progress` is
        called with the bytes copied so far and all bytes; without it a load that takes longer than a second shows a bar
        on the terminal.
        """
        if not hasattr(platform, "stage"):
            return self._copy(model, dict.fromkeys(self if platform is None else platform), progress)
        tensors = list(leaves(model, is_placeholder))
        names = {id(tensor): self._name_of(path, tensor) for path, tensor in tensors}
        axes = {names[id(tensor)]: tensor.shape.names for _, tensor in tensors}
        placed = self._copy(platform, axes, progress)
        return map_leaves(model, is_placeholder, lambda tensor: placed[names[id(tensor)]])

    def _name_of(self, path: str, tensor: Placeholder) -> str:
        """The name under which a tensor of a model is stored: what it was instantiated from, or its path."""
        name = tensor.value.name or path
        stored = self.find(name)
        wanted = tensor.shape
        sizes = zip(wanted.sizes, stored.shape.sizes, strict=False)
        fits = wanted.rank == stored.shape.rank and all(a == b or not isinstance(a, int) for a, b in sizes)
        if wanted.dtype != stored.shape.dtype or not fits:
            raise ShapeError(f"the weight {name!r} does not fit the model", expected=wanted, got=stored.shape)
        return name

    def _copy(
        self, platform: Staging, axes: Mapping[str, tuple[str, ...] | None], progress: Progress | None
    ) -> dict[str, Buffer]:
        """Tensors by name; those whose axes have names are split by them where there are several devices."""
        from concurrent.futures import ThreadPoolExecutor

        wanted = {name: self.find(name).with_axes(each) for name, each in axes.items()}
        reported = _Progress(sum(stored.nbytes for stored in wanted.values()), progress or _Bar().report)
        largest = max((stored.nbytes for stored in wanted.values()), default=0)

        with platform.stage(largest) as place, ThreadPoolExecutor(THREADS, "smelt-load") as pool:

            def copy(stored: Stored) -> Buffer:
                placed = place(stored)
                reported.add(stored.nbytes)
                return placed

            order = sorted(wanted, key=lambda name: -wanted[name].nbytes)
            started = {name: pool.submit(copy, wanted[name]) for name in order}
            try:
                return {name: started[name].result() for name in wanted}
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise

    def find(self, name: str) -> Stored:
        """The tensor of a name, not loaded."""
        stored = self._stored.get(name)
        if stored is None:
            from difflib import get_close_matches

            near = get_close_matches(name, self._stored, 3)
            raise FileError(
                f"no tensor {name!r} in {self.source or 'these weights'}",
                expected=f"one of {len(self._stored)} names",
                got=name,
                remedy=f"did you mean {', '.join(near)}?" if near else None,
            )
        return stored


class _Progress:
    """Adds up what several threads report."""

    def __init__(self, total: int, report: Callable[[int, int], None]) -> None:
        self._done, self._total, self._report = 0, total, report
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            self._report(self._done, self._total)


class _Bar:
    """A line on the terminal that appears when a load takes longer than a second, and goes when it is done."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._shown = False

    def report(self, done: int, total: int) -> None:
        seconds = time.monotonic() - self._started
        if seconds < 1 or not sys.stderr.isatty():
            return
        filled = 30 * done // max(total, 1)
        rate = bytes_text(int(done / seconds))
        line = f"loading [{'#' * filled}{'.' * (30 - filled)}] {bytes_text(done)} of {bytes_text(total)}, {rate}/s"
        if done < total:
            self._shown = True
            sys.stderr.write(f"\r{line}\x1b[K")
        elif self._shown:
            sys.stderr.write("\r\x1b[K")
        sys.stderr.flush()


class MappedFile:
    """A file mapped for reading. Arrays made from it keep the mapping alive; nothing is read before it is touched."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._descriptor = open_regular(self.path)
        try:
            self.size = os.fstat(self._descriptor).st_size
            self._map = mmap.mmap(self._descriptor, self.size, access=mmap.ACCESS_READ) if self.size else b""
        except (OSError, ValueError, MemoryError) as error:
            os.close(self._descriptor)
            raise FileError(f"cannot read {self.path}", got=error) from error
        weakref.finalize(self, os.close, self._descriptor)

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._map)

    def read_into(self, target: Array, offset: int) -> None:
        """Fill an array of bytes from the file, past the mapping: faster than page faults where all is wanted."""
        at = 0
        while at < target.size:
            try:
                count = os.preadv(self._descriptor, [target.data[at:]], offset + at)
            except OSError as error:
                raise FileError(f"cannot read {self.path}", got=error) from error
            if count == 0:
                raise FileError(f"{self.path} ends early", expected=target.size, got=at)
            at += count

    def fetch(self, offset: int, length: int) -> None:
        """Read a part of the mapping into memory, a block at a time; the GIL is released."""
        if not isinstance(self._map, mmap.mmap):
            return
        begin = offset - offset % mmap.PAGESIZE
        for start in range(begin, offset + length, PIECE):
            size = min(PIECE, offset + length - start)
            try:
                self._map.madvise(POPULATE_READ, start, size)
            except (OSError, AttributeError):  # an older system: the kernel reads ahead
                if hasattr(mmap, "MADV_WILLNEED"):
                    self._map.madvise(mmap.MADV_WILLNEED, start, size)

    def release(self) -> None:
        """Give the mapping's pages back; the next access reads them again."""
        if isinstance(self._map, mmap.mmap) and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)

    def array(self, offset: int, element: ElementType, sizes: tuple[int, ...], what: str = "tensor") -> Array:
        """A view of part of the file; bounds are checked before anything is allocated."""
        count = math.prod(sizes)
        length = count * element.numpy.itemsize
        span = math.prod(max(size, 1) for size in sizes) * element.numpy.itemsize  # what NumPy counts for empty arrays
        if offset < 0 or any(size < 0 for size in sizes) or offset + length > self.size or span >= 1 << 62:
            raise FileError(
                f"{self.path}: {what} is outside the file",
                expected=f"at most {self.size} bytes",
                got=f"{length} bytes at {offset}",
            )
        if len(sizes) > MAX_RANK:
            raise UnsupportedError(
                f"{self.path}: {what} has too many axes", expected=f"at most {MAX_RANK}", got=len(sizes)
            )
        if not count:
            return np.empty(sizes, element.numpy)
        self.check_size()
        return np.frombuffer(self._map, element.numpy, count, offset).reshape(sizes)

    def check_size(self) -> None:
        """Refuse a file that was truncated after it was mapped: an access would kill the process (SIGBUS)."""
        now = os.fstat(self._descriptor).st_size
        if now < self.size:
            raise FileError(
                f"{self.path} was truncated while it was in use",
                expected=f"{self.size} bytes",
                got=now,
                remedy="replace files, never write to them in place",
            )
