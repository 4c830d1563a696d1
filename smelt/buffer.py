"""HostBuffer and Buffer: arrays in host memory and in device memory.

A HostBuffer owns its bytes or is a view (of a mapped file, a caller's array). A Buffer is the protocol of arrays in
device memory; every engine has its own class.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator
from contextlib import suppress
from functools import cache
from typing import Any, Protocol, TypeVar

import numpy as np

from smelt.dtype import Array, dtype
from smelt.errors import RunError, ShapeError, SmeltError
from smelt.shape import Shape

T = TypeVar("T")

# Linux's files with the machine's memory and the limit of a control group (v2, v1): the word before the number, if
# there is one, and its unit in bytes.
MEMORY_LIMITS: tuple[tuple[str, bytes, int], ...] = (
    ("/proc/meminfo", b"MemTotal:", 1024),
    ("/sys/fs/cgroup/memory.max", b"", 1),
    ("/sys/fs/cgroup/memory/memory.limit_in_bytes", b"", 1),
)


class Buffer(Protocol):
    """An array in a device's memory. It may still be filling: reading it waits."""

    @property
    def shape(self) -> Shape: ...

    def wait(self) -> Buffer:
        """Wait until the contents are computed; errors of the run are raised here."""
        ...

    def __await__(self) -> Generator[Any, Any, Any]:
        """The same for coroutines: `await buffer`."""
        ...

    def numpy(self) -> Array:
        """The contents, copied to the host where they are not there already."""
        ...

    def delete(self) -> None:
        """Free the memory now; using the buffer afterwards is an error. Deleting twice is harmless."""
        ...


class Destination(Protocol):
    """What copies buffers to a device: a Platform."""

    def put(self, buffer: HostBuffer) -> Buffer: ...


class HostBuffer:
    """An array in host memory with its Shape. `owns`: the bytes belong to this buffer alone.

    >>> HostBuffer.of([[1, 2], [3, 4]], "f32").shape
    f32[2, 2]

    A view keeps what it looks at alive; leaving a `with` block deletes the buffer.
    """

    __slots__ = ("__weakref__", "_array", "_coming", "_gone", "_reading", "owns", "shape")

    def __init__(self, array: Array | None, shape: Shape, owns: bool) -> None:
        self._array = array
        self._coming: Callable[[], Array] | None = None
        self._gone: str | None = None
        self._reading: tuple[Callable[[], bool], ...] = ()
        self.shape = shape
        self.owns = owns

    @staticmethod
    def later(coming: Callable[[], Array], shape: Shape) -> HostBuffer:
        """A buffer that is filled later: `coming` waits for the array, and raises its errors."""
        buffer = HostBuffer(None, shape, owns=True)
        buffer._coming = coming
        return buffer

    @staticmethod
    def of(data: Any, element: str | None = None, *, copy: bool = False) -> HostBuffer:
        """A buffer on a NumPy array or on what DLPack brings (shared unless `copy`), or on a copy of anything else
        that NumPy can read."""
        found = to_numpy(data, "the data")
        array = np.array(found) if copy else found
        if element is not None and array.dtype != dtype(element).numpy:
            array = array.astype(dtype(element).numpy)
        shared = array is data or (array.base is not None and not copy)
        return HostBuffer(array, Shape.of(dtype(array.dtype), array.shape), not shared)

    @property
    def array(self) -> Array:
        if self._gone is not None:
            raise RunError(f"the buffer {self._gone}", expected=f"{self.shape} in use", got=self._gone)
        if self._array is None:
            assert self._coming is not None
            self._array = self._coming()
        return self._array

    def numpy(self) -> Array:
        """The contents; a buffer that is still filling is waited for."""
        return self.array

    def wait(self) -> HostBuffer:
        """Wait until the contents are computed; errors of the run are raised here."""
        _ = self.array
        return self

    def __await__(self) -> Generator[Any, Any, HostBuffer]:
        return in_thread(self.wait).__await__()

    def read_until(self, is_done: Callable[[], bool]) -> None:
        """A call that returned already reads the contents until `is_done()`."""
        self._reading = (*(each for each in self._reading if not each()), is_done)

    @property
    def is_read(self) -> bool:
        """Whether such a call still reads: then the array must not be written."""
        return not all(is_done() for is_done in self._reading)

    @property
    def is_deleted(self) -> bool:
        return self._gone is not None

    def to_host(self) -> HostBuffer:
        """A copy, which owns its bytes."""
        return HostBuffer(np.array(self.array), self.shape, owns=True)

    def copy(self) -> HostBuffer:
        """Another buffer with the same contents."""
        return self.to_host()

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def to_device(self, platform: Destination) -> Buffer:
        """The same contents on a platform's device: `HostBuffer.of(x).to_device(smelt.platform("cuda"))`."""
        return platform.put(self)

    def delete(self) -> None:
        """Let the memory go; using the buffer afterwards is an error. Deleting twice is harmless."""
        if self._gone is None:
            self.give_away("was deleted")

    def give_away(self, reason: str) -> None:
        """Drop the array: the memory has another owner now, or is free."""
        self._gone, self._array, self._coming = reason, None, None

    def __enter__(self) -> HostBuffer:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.array.__dlpack_device__()

    def __repr__(self) -> str:
        state = f"which {self._gone}" if self._gone else "owned" if self.owns else "shared"
        return f"<{self.shape} in host memory, {state}>"


async def in_thread(function: Callable[[], T]) -> T:
    """The result of a function that runs in a thread, without blocking the event loop."""
    import asyncio

    return await asyncio.to_thread(function)


def as_array(result: Array | Buffer) -> Array:
    """A result of any engine as a writable array."""
    array = result if isinstance(result, np.ndarray) else result.numpy()
    return array if array.flags.writeable else array.copy()


def host_stats() -> dict[str, int]:
    """Bytes of memory that this process uses now, and at most so far."""
    import resource  # not on every system

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[1])
    except OSError:  # not Linux
        return {"peak_bytes_in_use": peak}
    used = pages * resource.getpagesize()
    return {"bytes_in_use": used, "peak_bytes_in_use": max(peak, used)}  # the system's peak may be a little behind


def to_numpy(data: Any, what: str) -> Array:
    """An array, what DLPack brings (both shared), or a copy of anything else that NumPy can read."""
    if not isinstance(data, np.ndarray) and hasattr(data, "__dlpack__") and not hasattr(data, "__array__"):
        data = np.from_dlpack(data)
    try:
        return np.asarray(data)
    except ValueError as error:  # nested lists whose rows differ in length
        raise ShapeError(f"{what} is no array", got=error, remedy="give rows of one length") from error


def check_array(array: Any, shape: Shape, what: str) -> Array:
    """Check that an array matches a shape, whose symbols match any size."""
    found = to_numpy(array, what)
    expected = shape.dtype.numpy
    fits = found.ndim == shape.rank and all(
        not isinstance(size, int) or size == actual for size, actual in zip(shape.sizes, found.shape, strict=True)
    )
    if found.dtype != expected or not fits:
        cast = f".astype({str(expected)!r})" if found is array else f"numpy.array(…, {str(expected)!r})"
        remedy = cast if fits and found.dtype.kind in "iufb" else advise_shape(found.shape, shape)
        raise ShapeError(f"{what} does not fit", expected=shape, got=type_text(found), remedy=remedy)
    return found


def advise_shape(given: tuple[int, ...], shape: Shape) -> str:
    """The remedy for an array of the wrong shape: add, drop or transpose axes; else an array of the right shape."""
    channels_first, channels_last = ((given[:1] + given[-1:] + given[1:-1]), (given[:1] + given[2:] + given[1:2]))
    orders = {"array.transpose(0, 3, 1, 2)": channels_first, "array.transpose(0, 2, 3, 1)": channels_last}
    candidates = {
        "array[None]": (1, *given),
        "array[..., None]": (*given, 1),
        "array[0]": given[1:] if given[:1] == (1,) else (),
        "array.T": given[::-1],
        **(orders if len(given) == 4 else {}),
    }
    for text, sizes in candidates.items():
        if sizes and sizes != given and len(sizes) == shape.rank:
            pairs = zip(shape.sizes, sizes, strict=True)
            if all(size == actual for size, actual in pairs if isinstance(size, int)):
                return text
    example = tuple(size if isinstance(size, int) else 1 for size in shape.sizes)
    return f"an array such as numpy.zeros({example}, {str(shape.dtype.numpy)!r})"


def check_shape(given: Shape, wanted: Shape, what: str) -> None:
    """Check that a buffer matches a shape, whose symbols match any size."""
    fits = given.dtype == wanted.dtype and given.rank == wanted.rank
    if not fits or any(isinstance(b, int) and a != b for a, b in zip(given.sizes, wanted.sizes, strict=True)):
        raise ShapeError(f"{what} does not fit", expected=wanted, got=given, remedy=f"a buffer of the shape {wanted}")


def sizes_of(given: Any) -> tuple[int, ...]:
    """The sizes of a buffer or an array."""
    shape: Shape | tuple[int, ...] = given.shape
    return shape.numbers() if isinstance(shape, Shape) else shape


def type_text(array: Array) -> str:
    """An array's element type and sizes, as errors show them: `f32[1, 64]`."""
    try:
        name = dtype(array.dtype).name
    except ShapeError:
        name = str(array.dtype)
    return f"{name}[{', '.join(map(str, array.shape))}]"


_UNITS = {"": 1, "B": 1} | {
    f"{prefix}{unit}": base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("B", 1000), ("iB", 1024))
}


def parse_bytes(text: str | int, what: str = "an amount of memory") -> int:
    """Bytes from a number or from text with a unit.

    >>> parse_bytes("512MB"), parse_bytes("1.5 GiB"), parse_bytes(100)
    (512000000, 1610612736, 100)
    """
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text), re.ASCII)
    if found is None or found[2] not in _UNITS:
        raise SmeltError(
            f"{what} is not understood",
            expected="bytes, or a number with KB, MiB, GB …",
            got=text,
            remedy='"512MB" or "2GiB"',
        )
    from fractions import Fraction

    return int(Fraction(found[1]) * _UNITS[found[2]])


def bytes_text(count: int) -> str:
    """Bytes for people.

    >>> bytes_text(1536)
    '1.5 KiB'
    """
    number = float(count)
    for unit in ("B", "KiB", "MiB"):
        if number < 1024:
            return f"{number:.4g} {unit}"
        number /= 1024
    return f"{number:.4g} GiB"


@cache
def machine_memory() -> int:
    """The bytes of memory that this process may use: the machine's, or the limit of its container."""
    found = [1 << 41]
    with suppress(AttributeError, OSError, ValueError):  # not every system says
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for path, label, unit in MEMORY_LIMITS:
        with suppress(OSError, ValueError, IndexError), open(path, "rb") as file:
            words = file.read().split()
            found.append(int(words[words.index(label) + 1 if label else 0]) * unit)
    return min(found)
