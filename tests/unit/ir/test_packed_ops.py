"""Packed products: `pack`, `packed_dot`, `planes` and `plane_dot` mean the products and convolutions they stand for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.shape import Shape


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "width"), [(3, 4, 5, 4), (1, 1, 1, 8), (2, 3, 8, 4), (0, 2, 3, 2)]
)
def test_packed_dot_is_a_product(rows: int, depth: int, columns: int, width: int) -> None:
    random = np.random.default_rng(1)
    a = random.integers(-9, 9, (2, rows, depth)).astype(np.float32)
    b = random.integers(-9, 9, (2, depth, columns)).astype(np.float32)
    f = FuncBuilder("main", [Shape("f32", *a.shape), Shape("f32", *b.shape)])
    panels = f.op("smelt.pack", f.args[1], width=width).result
    assert panels.shape.sizes == (2, -(-columns // width), depth, width)
    made = f.op("smelt.packed_dot", f.args[0], panels, result=Shape("f32", 2, rows, columns)).result
    (result,) = run(Program.of(f.func(made)), [a, b])
    np.testing.assert_array_equal(result, a @ b)


@pytest.mark.parametrize(
    ("size", "window", "strides", "dilations", "padding"),
    [
        ((5, 6), (3, 3), (1, 1), (1, 1), ((1, 1), (1, 1))),
        ((7, 8), (3, 2), (2, 3), (1, 2), ((0, 2), (1, 0))),
        ((6, 6), (1, 1), (2, 2), (1, 1), ((0, 0), (0, 0))),
        ((5, 5), (3, 3), (1, 2), (1, 1), ((-1, 1), (1, -1))),
        ((9,), (4,), (2,), (2,), ((3, 1),)),
    ],
)
def test_plane_dot_is_a_convolution(
    size: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> None:
    random = np.random.default_rng(2)
    x = random.integers(-5, 5, (2, 4, *size)).astype(np.float32)
    w = random.integers(-5, 5, (6, 2, *window)).astype(np.float32)  # two groups
    expected = windows(x, w, strides, dilations, padding)
    f = FuncBuilder("main", [Shape("f32", *x.shape), Shape("f32", 2, 3, 2 * int(np.prod(window)))])
    taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations, "least": 4}
    edges: dict[str, Any] = {"low": tuple(low for low, _ in padding), "high": tuple(high for _, high in padding)}
    planes = f.op("smelt.planes", f.args[0], **taps, **edges).result
    made = f.op("smelt.plane_dot", f.args[1], planes, result=Shape("f32", *expected.shape), **taps).result
    (result,) = run(Program.of(f.func(made)), [x, w.reshape(2, 3, -1)])
    np.testing.assert_array_equal(result, expected)


def windows(
    x: Array,
    w: Array,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> Array:
    """A convolution in two groups, straight from its definition."""
    cut: Any = tuple(slice(max(-low, 0), x.shape[2 + d] - max(-high, 0)) for d, (low, high) in enumerate(padding))
    full = np.pad(x[(..., *cut)], [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in padding)])
    reach = [(k - 1) * d + 1 for k, d in zip(w.shape[2:], dilations, strict=True)]
    out = tuple((n - r) // s + 1 for n, r, s in zip(full.shape[2:], reach, strides, strict=True))
    result = np.zeros((x.shape[0], w.shape[0], *out), np.float32)
    for place in np.ndindex(*out):
        for tap in np.ndindex(*w.shape[2:]):
            at = tuple(p * s + t * d for p, s, t, d in zip(place, strides, tap, dilations, strict=True))
            pixel = full[(slice(None), slice(None), *at)]
            for group in range(2):
                part = w[(slice(3 * group, 3 * group + 3), slice(None), *tap)]
                features = slice(3 * group, 3 * group + 3)
                result[(slice(None), features, *place)] += pixel[:, 2 * group : 2 * group + 2] @ part.T
    return result


def test_shapes_that_do_not_fit_are_refused() -> None:
    f = FuncBuilder("main", [Shape("f32", 1, 2, 3), Shape("f32", 1, 1, 4, 8)])
    with pytest.raises(VerifyError, match="same k"):
        f.op("smelt.packed_dot", *f.args, result=Shape("f32", 1, 2, 8))
    with pytest.raises(VerifyError, match="width"):
        f.op("smelt.pack", f.args[0], width=0)
