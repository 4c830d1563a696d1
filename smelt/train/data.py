"""Minibatches of arrays: shuffled by seed and epoch, all of one size, so that one compiled step takes them all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from smelt.dtype import Array
from smelt.errors import ShapeError


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
        weights = np.zeros(size, np.float32)
        weights[: len(chosen)] = 1
        filled = np.concatenate([chosen, np.full(size - len(chosen), order[0])])
        yield (*(np.ascontiguousarray(array[filled]) for array in arrays), weights)
