"""Minibatches: of arrays, of mapped files, of generators; all of one size, so that one compiled step takes them all.

Arrays are shuffled by seed and epoch. The last minibatch is filled up, and weights say which rows count. `prefetch`
makes minibatches in a thread while the step runs.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from smelt.dtype import Array
from smelt.errors import FileError, ShapeError

T = TypeVar("T")
Source = Callable[[int], Iterable[Sequence[Array]]]  # an epoch → its minibatches
Data = Sequence[Array | str | Path] | Source


def open_data(data: Data) -> tuple[Array, ...] | Source:
    """Arrays as they are, `.npy` files mapped, and functions that give the minibatches of an epoch."""
    if callable(data):
        return data
    return tuple(_open_array(each) for each in data)


def _open_array(given: Array | str | Path) -> Array:
    if not isinstance(given, str | Path):
        return given
    try:
        return np.load(given, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise FileError(f"cannot map {given}", expected="an array in a .npy file", got=error) from error


def batches(
    arrays: Sequence[Array], size: int, *, seed: int, epoch: int = 0, start: int = 0
) -> Iterator[tuple[Array, ...]]:
    """Tuples of `size` rows of each array, and which of them count: f32 weights, 0 for what fills up the last batch.

    The order depends on seed and epoch alone. `start`: batches to leave out, for a run that is resumed.

    >>> [batch[-1].tolist() for batch in batches([np.arange(3)], 2, seed=0)]
    [[1.0, 1.0], [1.0, 0.0]]
    """
    counts = {len(array) for array in arrays}
    if len(counts) != 1 or size < 1:
        got = f"{sorted(counts)} rows, batches of {size}"
        raise ShapeError("batches: arrays of one length, and a size of at least 1", got=got)
    (count,) = counts
    order = np.random.default_rng([seed, epoch]).permutation(count)
    for first in range(start * size, count, size):
        chosen = order[first : first + size]
        yield fill_batch([_take_rows(array, chosen) for array in arrays], size)


def _take_rows(array: Array, chosen: Array) -> Array:
    """Some rows, in the order chosen; mapped files are read from front to back."""
    if not isinstance(array, np.memmap):
        return array[chosen]
    order = np.argsort(chosen, kind="stable")
    rows = np.empty((len(chosen), *array.shape[1:]), array.dtype)
    rows[order] = array[chosen[order]]
    return rows


def fill_batch(rows: Sequence[Array], size: int) -> tuple[Array, ...]:
    """A minibatch of `size` rows: its first row fills it up, with the weight 0."""
    counts = {len(each) for each in rows}
    count = next(iter(counts), 0)
    if len(counts) != 1 or not 0 < count <= size:
        got = ", ".join(f"{each.dtype}{list(each.shape)}" for each in rows) or "nothing"
        raise ShapeError("a minibatch: arrays with the same number of rows", expected=f"1 to {size} rows each", got=got)
    weights = np.zeros(size, np.float32)
    weights[:count] = 1
    if count == size:
        return (*(np.ascontiguousarray(each) for each in rows), weights)
    filled = [np.concatenate([each, np.repeat(np.asarray(each[:1]), size - count, axis=0)]) for each in rows]
    return (*filled, weights)


def generate(source: Source, size: int, *, epoch: int = 0, start: int = 0) -> Iterator[tuple[Array, ...]]:
    """The minibatches that a function gives for an epoch, filled up; the first `start` are left out."""
    for number, rows in enumerate(source(epoch)):
        if number >= start:
            yield fill_batch([np.asarray(each) for each in rows], size)


def prefetch(made: Iterator[T], depth: int = 2) -> Generator[T, None, None]:
    """The same elements, made by a thread that is up to `depth` ahead. The thread ends with the iterator."""
    ready: queue.Queue[Any] = queue.Queue(depth)
    stop, end = threading.Event(), object()

    def put(item: Any) -> bool:
        while not stop.is_set():
            try:
                ready.put(item, timeout=0.05)
                return True
            except queue.Full:
                continue
        return False

    def work() -> None:
        try:
            for item in made:
                if not put((item, None)):
                    return
            put((end, None))
        except BaseException as error:  # raised again where the elements are taken
            put((end, error))

    thread = threading.Thread(target=work, name="smelt-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if error is not None:
                raise error
            if item is end:
                return
            yield item
    finally:
        stop.set()
        thread.join()
