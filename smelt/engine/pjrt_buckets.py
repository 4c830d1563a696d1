"""Buckets: sizes that are rounded up, so that fewer programs are compiled.

Arguments are padded with zeros and results cut; programs where that would change a result are refused. Called by
`engine.pjrt`.
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


def checked_buckets(main: Program, buckets: Buckets) -> dict[str, tuple[int, ...]]:
    """Buckets in order, for symbols along which padding is proven to change nothing."""
    checked = {}
    open_symbols = sorted({name for arg in main.main.args for name in arg.shape.symbols})
    for name, sizes in buckets.items():
        if name not in open_symbols or not sizes or any(size < 1 for size in sizes):
            raise RunError(
                "not a bucket", expected=f"sizes for one of {', '.join(open_symbols)}", got=f"{name}={sizes}"
            )
        reason = find_leak(main.main, name)
        taken = [why for a, b, why in assumptions(main) if name in symbols(a) | symbols(b)]
        if reason is None and taken:
            reason = f"the program takes for granted something about {name}: {taken[0]}"
        if reason is not None:
            raise UnsupportedError(
                f"padding along {name} would change results", got=reason, remedy=f"leave {name} out of the buckets"
            )
        checked[name] = tuple(sorted(set(sizes)))
    return checked


def round_up(size: int, buckets: Sequence[int]) -> int:
    """The least bucket that holds a size; beyond the largest the size itself."""
    return next((bucket for bucket in buckets if bucket >= size), size)


def padded_to(given: Any, sizes: tuple[int, ...]) -> Array:
    """An array in the corner of a larger one of zeros."""
    array = np.asarray(given)
    if array.shape == sizes:
        return array
    padded = np.zeros(sizes, array.dtype)
    padded[tuple(slice(size) for size in array.shape)] = array
    return padded


class Cut:
    """The first part of a buffer: a padded result without what was padded. It is cut when it is read, on the host."""

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
