"""Packed ops: `packed_dot`, `packed_conv`, `winograd_conv` and `depthwise_conv` against plain dots and convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt import layout
from smelt.dtype import Array
from smelt.errors import VerifyError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.ops.packed import WINOGRAD_G
from smelt.shape import Shape


@pytest.mark.parametrize(
    ("rows", "depth", "columns", "width"), [(3, 4, 5, 4), (1, 1, 1, 8), (2, 3, 8, 4), (0, 2, 3, 2)]
)
def test_packed_dot_is_a_product(rows: int, depth: int, columns: int, width: int) -> None:
    random = np.random.default_rng(1)
    a = random.integers(-9, 9, (2, rows, depth)).astype(np.float32)
    b = random.integers(-9, 9, (2, depth, columns)).astype(np.float32)
    f = FuncBuilder("main", [Shape("f32", *a.shape), Shape("f32", *b.shape)])
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(width)).result
    assert panels.shape.sizes == (2, -(-columns // width), depth, width)
    made = f.op(
        "smelt.packed_dot", f.args[0], panels, layout=layout.panels(width), result=Shape("f32", 2, rows, columns)
    ).result
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
def test_packed_conv_is_a_convolution(
    size: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> None:
    random = np.random.default_rng(2)
    x = random.integers(-5, 5, (2, 4, *size)).astype(np.float32)
    w = random.integers(-5, 5, (6, 2, *window)).astype(np.float32)  # two groups
    expected = np.moveaxis(windows(x, w, strides, dilations, padding), 1, -1)
    images = np.moveaxis(padded(x, padding), 1, -1)
    # [group, tap and channel, feature]
    matrices = np.moveaxis(w.reshape(2, 3, 2, -1), (1, 2, 3), (3, 2, 1)).reshape(2, -1, 3)
    f = FuncBuilder("main", [Shape("f32", *images.shape), Shape("f32", *matrices.shape)])
    taps: dict[str, Any] = {"window": window, "strides": strides, "dilations": dilations}
    panels = f.op("smelt.relayout", f.args[1], layout=layout.panels(2)).result
    made = f.op(
        "smelt.packed_conv", f.args[0], panels, layout=layout.panels(2), result=Shape("f32", *expected.shape), **taps
    ).result
    (result,) = run(Program.of(f.func(made)), [images, matrices])
    np.testing.assert_array_equal(result, expected)


def test_depthwise_conv_convolves_each_channel() -> None:
    random = np.random.default_rng(3)
    x, w = (random.integers(-5, 5, shape).astype(np.float32) for shape in ((2, 7, 9, 3), (3, 2, 3)))
    expected = np.zeros((2, 3, 4, 3), np.float32)
    for y, column, i, j in np.ndindex(3, 4, 3, 2):
        expected[:, y, column] += x[:, 2 * y + i, 2 * column + j] * w[i, j]
    f = FuncBuilder("main", [Shape("f32", *x.shape), Shape("f32", *w.shape)])
    steps: dict[str, Any] = {"strides": (2, 2), "dilations": (1, 1)}
    made = f.op("smelt.depthwise_conv", *f.args, result=Shape("f32", *expected.shape), **steps).result
    (result,) = run(Program.of(f.func(made)), [x, w])
    np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("size", [(4, 4), (5, 7), (1, 2), (8, 3)])
def test_winograd_conv_is_a_convolution(size: tuple[int, int]) -> None:
    random = np.random.default_rng(4)
    x = random.integers(-5, 5, (2, size[0] + 2, size[1] + 2, 3)).astype(np.float32)
    w = random.integers(-5, 5, (3, 3, 3, 5)).astype(np.float32)
    expected = np.zeros((2, *size, 5), np.float32)
    for i, j in np.ndindex(3, 3):
        expected += x[:, i : i + size[0], j : j + size[1]] @ w[i, j]
    matrices = np.einsum("ai,bj,ijcf->abcf", WINOGRAD_G, WINOGRAD_G, w).reshape(16, 3, 5).astype(np.float32)
    f = FuncBuilder("main", [Shape("f32", *x.shape), Shape("f32", *matrices.shape)])
    panels = f.transpose(f.op("smelt.relayout", f.args[1], layout=layout.panels(4)).result, permutation=(1, 0, 2, 3))
    made = f.op("smelt.winograd_conv", f.args[0], panels, result=Shape("f32", *expected.shape)).result
    (result,) = run(Program.of(f.func(made)), [x, matrices])
    np.testing.assert_array_equal(result, expected)  # quarters of whole numbers are exact


def padded(x: Array, padding: tuple[tuple[int, int], ...]) -> Array:
    """Images [batch, channel, …] with zeros around them, or cut."""
    cut: Any = tuple(slice(max(-low, 0), x.shape[2 + d] - max(-high, 0)) for d, (low, high) in enumerate(padding))
    return np.pad(x[(..., *cut)], [(0, 0), (0, 0), *((max(low, 0), max(high, 0)) for low, high in padding)])


def windows(
    x: Array,
    w: Array,
    strides: tuple[int, ...],
    dilations: tuple[int, ...],
    padding: tuple[tuple[int, int], ...],
) -> Array:
    """A convolution in two groups, straight from its definition."""
    full = padded(x, padding)
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
    with pytest.raises(VerifyError, match="holds k and the columns"):
        f.op("smelt.packed_dot", *f.args, layout=layout.panels(4), result=Shape("f32", 1, 2, 8))
    with pytest.raises(VerifyError, match="no digit"):
        f.op("smelt.relayout", f.args[0], layout=layout.panels(0))
