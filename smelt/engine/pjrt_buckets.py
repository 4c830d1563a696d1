"""Buckets: round dynamic dimensions up to fixed sizes, so that fewer programs are compiled.

Arguments are padded with zeros and results sliced. A program whose results padding would change is refused.
`engine.pjrt` calls it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from smelt.buffer import in_thread
from smelt.dim import symbols
from smelt.dtype import Array
from smelt.errors import RunError, UnsupportedError
from smelt.ir.core import Program
from smelt.ir.verify import assumptions
from smelt.passes.padding import find_leak
from smelt.shape import Shape

Buckets: TypeAlias = Mapping[str, Sequence[int]]


def check_buckets(main: Program, buckets: Buckets) -> dict[str, tuple[int, ...]]:
    """The buckets in ascending order, for symbols along which padding is proven to change no result."""
    checked = {}
    dynamic = sorted({name for arg in main.main.args for name in arg.shape.symbols})
    for name, sizes in buckets.items():
        if name not in dynamic or not sizes or any(size < 1 for size in sizes):
            raise RunError("invalid buckets", expected=f"sizes for one of {', '.join(dynamic)}", got=f"{name}={sizes}")
        reason = find_leak(main.main, name)
        taken = [why for a, b, why in assumptions(main) if name in symbols(a) | symbols(b)]
        if reason is None and taken:
            reason = f"the program has an assumption about {name}: {taken[0]}"
        if reason is not None:
            raise UnsupportedError(
                f"padding along {name} would change results", got=reason, remedy=f"leave {name} out of the buckets"
            )
        checked[name] = tuple(sorted(set(sizes)))
    return checked


def round_up(size: int, buckets: Sequence[int]) -> int:
    """The smallest bucket that is at least a size; above the largest bucket the size itself."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def padded_to(given: Any, sizes: tuple[int, ...]) -> Array:
    """Pad an array with zeros at the end of each axis."""
    array = np.asarray(given)
    if array.shape == sizes:
        return array
    padded = np.zeros(sizes, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


class Cut:
    """A padded result, sliced to its real size on the host when it is read."""

    def __init__(self, whole: Any, sizes: tuple[int, ...]) -> None:
        self._whole = whole
        self.shape = Shape.of(whole.shape.dtype, sizes)

    @staticmethod
    def of(whole: Any, sizes: tuple[int, ...]) -> Any:
        return whole if whole.shape.sizes == sizes else Cut(whole, sizes)

    def numpy(self) -> Array:
        array: Array = self._whole.numpy()[tuple(slice(size) for size in self.shape.numbers())]
        return array

    @property
    def is_ready(self) -> bool:
        return bool(self._whole.is_ready)

    def wait(self) -> Cut:
        self._whole.wait()
        return self

    def __await__(self) -> Any:
        return in_thread(self.wait).__await__()

    def delete(self) -> None:
        self._whole.delete()

    def __enter__(self) -> Cut:
        return self

    def __exit__(self, *_: object) -> None:
        self.delete()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.numpy(), dtype=dtype, copy=copy)
