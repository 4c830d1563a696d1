"""HostBuffer and Buffer: arrays in host memory and in device memory.

A HostBuffer knows whether it owns its bytes or looks at somebody else's (a mapped file, a caller's array).
A Buffer is what an engine keeps on a device; every engine brings its own, all behave as the protocol says.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol

import numpy as np

from smelt.dtype import Array, dtype
from smelt.errors import ShapeError, SmeltError
from smelt.shape import Shape


@dataclass(frozen=True, slots=True, eq=False)
class HostBuffer:
    """An array in host memory with its Shape.

    >>> HostBuffer.of([[1, 2], [3, 4]], "f32").shape
    f32[2, 2]
    """

    array: Array
    shape: Shape
    owns: bool

    @staticmethod
    def of(data: Any, element: str | None = None, *, copy: bool = False) -> HostBuffer:
        """A buffer on a NumPy array (shared unless `copy`), or on a copy of anything that NumPy can read."""
        array = np.array(data) if copy else np.asarray(data)
        if element is not None and array.dtype != dtype(element).numpy:
            array = array.astype(dtype(element).numpy)
        return HostBuffer(array, Shape.of(dtype(array.dtype), array.shape), array is not data)

    def numpy(self) -> Array:
        return self.array

    @property
    def nbytes(self) -> int:
        return self.array.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.array, dtype=dtype, copy=copy)


class Buffer(Protocol):
    """An array in a device's memory."""

    @property
    def shape(self) -> Shape: ...

    def numpy(self) -> Array:
        """The contents, copied to the host where they are not there already."""
        ...

    def delete(self) -> None:
        """Give the memory back now; using the buffer afterwards is an error."""
        ...


def check_array(array: Any, shape: Shape, what: str) -> Array:
    """An array that fits a shape whose symbols are open; anything else is the caller's mistake."""
    found = np.asarray(array)
    expected = shape.dtype.numpy
    fits = found.ndim == shape.rank and all(
        not isinstance(size, int) or size == actual for size, actual in zip(shape.sizes, found.shape, strict=True)
    )
    if found.dtype != expected or not fits:
        remedy = f".astype({str(expected)!r})" if fits and found.dtype.kind in "iufb" else None
        got = f"{_name(found)}[{', '.join(map(str, found.shape))}]"
        raise ShapeError(f"{what} does not fit", expected=shape, got=got, remedy=remedy)
    return found


def _name(array: Array) -> str:
    try:
        return dtype(array.dtype).name
    except ShapeError:
        return str(array.dtype)


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
        raise SmeltError(f"{what} is not understood", expected="bytes, or a number with KB, MiB, GB …", got=text)
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
