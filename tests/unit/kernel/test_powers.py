"""Powers: squares and cubes by a constant are products, within two units of the last place; others are `pow`."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape


@pytest.mark.parametrize("exponent", [2.0, 3.0, 2.5, -1.0, 0.5, 0.0])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_by_a_constant(kind: str, exponent: float, seed: int) -> None:
    random = np.random.default_rng(seed)
    sign = np.where(random.random(4096) < 0.5, -1, 1) if exponent == int(exponent) else 1
    x: Array = (sign * np.exp(random.uniform(-20, 20, 4096))).astype(dtype(kind).numpy)
    x[:4] = 0.0, np.inf, np.nan, 1.0
    shape = Shape(kind, *x.shape)
    f = FuncBuilder("main", [shape])
    made = NativeEngine().compile(Program.of(f.func(f.power(f.args[0], f.full(exponent, shape)))))
    (result,) = made(x)
    with np.errstate(all="ignore"):
        exact = np.power(x.astype(np.longdouble), np.longdouble(exponent))
        expected = exact.astype(x.dtype)
        distance = np.abs(result.astype(np.longdouble) - exact) / np.spacing(np.abs(expected)).astype(np.longdouble)
    plain = np.isfinite(expected)
    np.testing.assert_array_equal(result[~plain], expected[~plain])
    assert distance[plain].max() <= 2
