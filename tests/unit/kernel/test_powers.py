"""Powers: squares and cubes by a constant are products, within two units of the last place; others are `pow`."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array, dtype
from smelt.engine.native import NativeEngine, compile_all
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.run.executable import NativeExecutable
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
    if exponent in (2.0, 3.0):
        with np.errstate(all="ignore"):
            np.testing.assert_array_equal(result, x * x if exponent == 2.0 else x * x * x, "bit for bit")


def test_of_other_types_by_a_constant(seed: int) -> None:
    """A product of narrow floats would round twice, and one of integers wrap as `power` does; NumPy's, in double."""
    random = np.random.default_rng(seed)
    cases: list[tuple[Array, int, Array]] = []
    for kind in ("f16", "bf16", "i8", "i32", "ui8", "ui64", "complex<f32>"):
        element = dtype(kind)
        x = random.uniform(-6, 6, 512)
        args = (x + 1j * x[::-1] if element.is_complex else abs(x) if element.kind == "uint" else x).astype(
            element.numpy
        )
        for exponent in (2, 3, 5):
            wide = args.astype(np.complex128 if element.is_complex else np.int64 if element.is_integer else np.float64)
            cases.append((args, exponent, (wide**exponent).astype(element.numpy)))
    programs = []
    for x, exponent, _ in cases:
        shape = Shape.of(dtype(x.dtype), x.shape)
        f = FuncBuilder("main", [shape])
        programs.append(Program.of(f.func(f.power(f.args[0], f.full(exponent, shape)))))
    for (x, exponent, want), made in zip(cases, compile_all(programs), strict=True):
        assert isinstance(made, NativeExecutable), made
        (got,) = made(x)
        if want.dtype.kind == "c":
            np.testing.assert_allclose(got, want, rtol=1e-6)
        else:
            np.testing.assert_array_equal(got, want, err_msg=f"{x.dtype}**{exponent}")
