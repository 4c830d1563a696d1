"""Weights: names to arrays that stay in the file until somebody looks at them.

Readers (`smelt.read`) make them from mapped files; `Executable.prepare` takes from them what a program needs.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

import numpy as np

from smelt.buffer import HostBuffer
from smelt.dtype import Array, ElementType
from smelt.errors import FileError
from smelt.shape import Shape


@dataclass(frozen=True, slots=True, eq=False)
class Stored:
    """One tensor that is not loaded yet: its shape, and how to look at it."""

    shape: Shape
    load: Callable[[], Array]


class Weights(Mapping[str, HostBuffer]):
    """Named tensors, loaded when asked for. Iterating or asking for a shape reads no data."""

    def __init__(
        self, stored: Mapping[str, Stored], metadata: Mapping[str, str] = MappingProxyType({}), source: str = ""
    ) -> None:
        self._stored = dict(stored)
        self.metadata = MappingProxyType(dict(metadata))
        self.source = source

    @staticmethod
    def of(arrays: Mapping[str, object]) -> Weights:
        """Weights from arrays that are in memory already."""
        buffers = {name: HostBuffer.of(array) for name, array in arrays.items()}
        return Weights({name: Stored(buffer.shape, buffer.numpy) for name, buffer in buffers.items()}, source="memory")

    def __getitem__(self, name: str) -> HostBuffer:
        stored = self._find(name)
        array = stored.load()
        return HostBuffer(array, stored.shape, owns=array.base is None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._stored)

    def __len__(self) -> int:
        return len(self._stored)

    def __contains__(self, name: object) -> bool:
        return name in self._stored

    def shape(self, name: str) -> Shape:
        """The shape of a tensor; its data stays where it is."""
        return self._find(name).shape

    @property
    def nbytes(self) -> int:
        """What all tensors weigh together."""
        total = 0
        for stored in self._stored.values():
            total += math.prod(stored.shape.numbers()) * stored.shape.dtype.numpy.itemsize
        return total

    def _find(self, name: str) -> Stored:
        stored = self._stored.get(name)
        if stored is None:
            near = get_close_matches(name, self._stored, 3)
            raise FileError(
                f"no tensor {name!r} in {self.source or 'these weights'}",
                expected=f"one of {len(self._stored)} names",
                got=name,
                remedy=f"did you mean {', '.join(near)}?" if near else None,
            )
        return stored


class MappedFile:
    """A file mapped for reading. Arrays made from it keep the mapping alive; nothing is read before it is touched."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            with self.path.open("rb") as file:
                self.size = self.path.stat().st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else b""
        except (OSError, ValueError) as error:
            raise FileError(f"cannot read {self.path}", got=error) from error

    @property
    def bytes(self) -> memoryview:
        return memoryview(self._map)

    def array(self, offset: int, element: ElementType, sizes: tuple[int, ...], what: str = "tensor") -> Array:
        """A view of part of the file; bounds are checked before anything is allocated."""
        count = math.prod(sizes)
        length = count * element.numpy.itemsize
        span = math.prod(max(size, 1) for size in sizes) * element.numpy.itemsize  # what NumPy counts for empty arrays
        if offset < 0 or any(size < 0 for size in sizes) or offset + length > self.size or span >= 1 << 62:
            raise FileError(
                f"{self.path}: {what} lies outside the file",
                expected=f"at most {self.size} bytes",
                got=f"{length} bytes at {offset}",
            )
        return (
            np.frombuffer(self._map, element.numpy, count, offset).reshape(sizes)
            if count
            else np.empty(sizes, element.numpy)
        )
