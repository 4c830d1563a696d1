"""Minibatches: every row once per epoch, the last one filled up, and what is no minibatch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from smelt.errors import ShapeError
from smelt.train.data import batches, fill_batch, generate, prefetch


@pytest.mark.parametrize(("count", "size"), [(10, 3), (9, 3), (1, 4), (4, 4), (5, 1)])
def test_every_row_counts_once(count: int, size: int) -> None:
    rows, labels = np.arange(2 * count).reshape(count, 2), np.arange(count)
    found = list(batches([rows, labels], size, seed=1))
    assert len(found) == -(-count // size)
    for x, y, weights in found:
        assert (x.shape, y.shape, weights.shape, weights.dtype.name) == ((size, 2), (size,), (size,), "float32")
        np.testing.assert_array_equal(x[:, 0], 2 * y)
        kept = int(weights.sum())
        assert weights.tolist() == [1] * kept + [0] * (size - kept)
        assert (y[kept:] == y[0]).all()
    seen = np.concatenate([y[weights > 0] for _, y, weights in found])
    assert sorted(seen.tolist()) == labels.tolist()


def test_order_depends_on_seed_and_epoch_alone_and_runs_resume() -> None:
    x = np.arange(50)

    def order(**given: int) -> list[int]:
        return [int(each) for y, _ in batches([x], 5, **{"seed": 1, **given}) for each in y]

    assert order() == order(epoch=0, start=0) == order()
    assert order() != order(seed=2) != order(epoch=1) != order()
    assert order(start=3) == order()[15:]
    assert order(start=10) == []


def test_mapped_files_give_the_same_rows(tmp_path: Path) -> None:
    x = np.random.default_rng(1).standard_normal((11, 3)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    for ours, theirs in zip(batches([mapped], 4, seed=3), batches([x], 4, seed=3), strict=True):
        np.testing.assert_array_equal(ours[0], theirs[0])


def test_what_is_no_minibatch_is_refused() -> None:
    a, b = np.zeros((3, 2), np.float32), np.zeros(4, np.int32)
    for arrays, size, got in (
        ([a, b], 2, r"\[3, 4\] rows, batches of 2"),
        ([a], 0, "batches of 0"),
        ([], 1, r"\[\] rows"),
    ):
        with pytest.raises(ShapeError, match=got):
            list(batches(arrays, size, seed=0))
    for rows, got in (
        ([a, b], r"float32\[3, 2\], int32\[4\]"),
        ([b], r"int32\[4\]"),
        ([a[:0]], r"\[0, 2\]"),
        ([], "nothing"),
    ):
        with pytest.raises(ShapeError, match=rf"1 to 3 rows each(?s:.)*{got}"):
            fill_batch(rows, 3)


def test_generated_batches_are_filled_up_and_resume() -> None:
    def source(epoch: int) -> list[list[np.ndarray]]:
        return [[np.full(count, epoch)] for count in (2, 2, 1)]

    found = list(generate(source, 2, epoch=7))
    assert [(x.tolist(), weights.tolist()) for x, weights in found] == [([7, 7], [1, 1])] * 2 + [([7, 7], [1, 0])]
    assert [x.tolist() for x, _ in generate(source, 2)] == [[0, 0]] * 3
    assert len(list(generate(source, 2, start=2))) == 1


def test_prefetching_changes_nothing_and_errors_come_through() -> None:
    assert list(prefetch(iter(range(100)))) == list(range(100))

    def failing() -> Iterator[int]:
        yield 1
        raise KeyError("lost")

    taken = prefetch(failing(), 1)
    assert next(taken) == 1
    with pytest.raises(KeyError, match="lost"):
        next(taken)
    early = prefetch(iter(range(10**9)))
    assert next(early) == 0
    early.close()
