"""Stored transpositions: in squares where both last axes are long, woven where the last is short, else by elements."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape

CASES = [
    ((33, 47), (1, 0), "transpose"),
    ((3, 16, 64), (0, 2, 1), "transpose"),
    ((40, 3, 50), (2, 1, 0), "transpose"),
    ((17, 2, 31), (2, 0, 1), "transpose"),
    ((2, 3, 9, 37), (0, 2, 3, 1), "transpose"),
    ((4, 5, 1), (2, 1, 0), "transpose"),
    ((17, 5, 31), (2, 0, 1), "map"),
    ((5, 17, 18, 33), (0, 3, 1, 2), "transpose"),
    ((2, 19, 5, 70), (0, 3, 1, 2), "map"),
    ((1, 16), (1, 0), "map"),
    ((0, 20), (1, 0), "map"),
]


@pytest.mark.parametrize(("sizes", "order", "kind"), CASES)
def test_every_element_arrives(sizes: tuple[int, ...], order: tuple[int, ...], kind: str) -> None:
    f = FuncBuilder("main", [Shape("f32", *sizes)])
    made = NativeEngine().compile(Program.of(f.func(f.transpose(f.args[0], permutation=order))))
    x = np.arange(np.prod(sizes), dtype=np.float32).reshape(sizes)
    np.testing.assert_array_equal(made(x)[0], x.transpose(order))
    assert [use.kind for use in made.kernels] == [kind]


@pytest.mark.parametrize("element", ["f64", "i8", "i1", "bf16", "complex<f32>"])
def test_elements_of_any_type_are_woven(element: str) -> None:
    f = FuncBuilder("main", [Shape(element, 3, "M", 35)])
    made = NativeEngine().compile(Program.of(f.func(f.transpose(f.args[0], permutation=(1, 2, 0)))))
    assert [use.kind for use in made.kernels] == ["transpose"]
    for m in (0, 1, 6):
        x = (np.arange(3 * m * 35) % 100).reshape(3, m, 35).astype(f.args[0].shape.dtype.numpy)
        np.testing.assert_array_equal(made(x)[0], x.transpose(1, 2, 0))


def test_dynamic_dimensions() -> None:
    f = FuncBuilder("main", [Shape("f32", 2, "M", "N")])
    made = NativeEngine().compile(Program.of(f.func(f.transpose(f.args[0], permutation=(0, 2, 1)))))
    for m, n in ((1, 1), (0, 5), (16, 32), (37, 15), (50, 65)):
        x = np.arange(2 * m * n, dtype=np.float32).reshape(2, m, n)
        np.testing.assert_array_equal(made(x)[0], x.transpose(0, 2, 1))
