"""Functions over every axis of a tensor, and the first of equal elements, beside NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import smelt

SIZES = {"a": 2, "b": 3, "c": 4}


@pytest.mark.parametrize(
    ("axes", "axis"),
    [(axes, axis) for count in (1, 2, 3) for axes in itertools.permutations("abc", count) for axis in axes],
)
def test_slices_along_every_axis(axes: tuple[str, ...], axis: str, seed: int) -> None:
    """x / (1 + the sum of its slice), the axis in front of the others."""
    x = np.random.default_rng(seed).random([SIZES[name] for name in axes])
    made = smelt.vmap(lambda t: t / (t.sum() + 1.0), axis)(smelt.tensor(x, " ".join(axes)))
    place = axes.index(axis)
    others = tuple(i for i in range(x.ndim) if i != place)
    want = np.moveaxis(x / (1 + x.sum(others, keepdims=True)), place, 0)
    assert made.axes == (axis, *(name for name in axes if name != axis))
    np.testing.assert_allclose(made.numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("kind", [np.bool_, np.int8, np.int32, np.uint8, np.uint64, np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", ["argmax", "argmin"])
def test_the_first_of_equal_elements(name: str, kind: Any) -> None:
    """Also where all elements are the type's lowest or highest number, or infinite."""
    if kind is np.bool_:
        ends: list[Any] = [False, True]
    elif issubclass(kind, np.floating):
        ends = [-np.inf, np.finfo(kind).min, kind(0), np.finfo(kind).max, np.inf]
    else:
        ends = [np.iinfo(kind).min, 0, np.iinfo(kind).max]
    rows = np.array([[a, b, a, b] for a in ends for b in ends], kind)
    got = getattr(smelt.tensor(rows), name)(1)
    np.testing.assert_array_equal(got.numpy(), getattr(np, name)(rows, axis=1))
