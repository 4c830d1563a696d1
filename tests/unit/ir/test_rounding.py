"""How results are rounded: fused products against exact fractions, and the same bits for every memory layout."""

from fractions import Fraction

import numpy as np
import pytest

from smelt.dtype import dtype, f32, f64
from smelt.ir.build import FuncBuilder
from smelt.ir.cast import cast
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.ops.linear import matmul
from smelt.ir.special import complex_product, fma, power
from smelt.shape import Shape


def nearest(exact, kind):
    """A fraction rounded once. Python rounds to double; to single through the two neighbours."""
    if kind == np.float64:
        return np.float64(float(exact))
    guess = np.float32(float(exact))
    around = [guess, np.nextafter(guess, np.float32(np.inf)), np.nextafter(guess, np.float32(-np.inf))]
    return min(around, key=lambda x: (abs(Fraction(float(x)) - exact), int(x.view(np.uint32)) & 1))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_fused_rounds_once(kind, seed):
    random = np.random.default_rng(seed)
    a, b = (random.normal(size=300).astype(kind) for _ in range(2))
    c = (random.normal(size=300) * 10.0 ** random.integers(-9, 9, 300)).astype(kind)
    c[:100] = -(a[:100] * b[:100])  # everything cancels but what a product of its own would lose
    exact = [Fraction(float(x)) * Fraction(float(y)) + Fraction(float(z)) for x, y, z in zip(a, b, c, strict=True)]
    wanted = np.array([nearest(each, kind) for each in exact])
    np.testing.assert_array_equal(fma(a, b, c), wanted)


def test_fused_of_values_at_the_ends():
    a = np.array([1e308, 1e308, np.inf, np.nan, 0.0, -0.0, 1e200])
    b = np.array([10.0, 10.0, 1.0, 1.0, 5.0, 5.0, 1e-200])
    c = np.array([0.0, -np.inf, -1.0, 1.0, -0.0, -0.0, 1.0])
    got = fma(a, b, c)
    np.testing.assert_array_equal(got[:4], [np.inf, np.nan, np.inf, np.nan])
    assert not np.signbit(got[4])
    assert np.signbit(got[5])
    assert got[6] == 2.0


@pytest.mark.parametrize(("kind", "part"), [(np.complex64, np.float32), (np.complex128, np.float64)])
def test_complex_products_fuse_the_first_factor(kind, part, seed):
    """re = fma(ar, br, -(ai bi)), im = fma(ai, br, ar bi): what XLA's CPU gives, from exact fractions."""
    random = np.random.default_rng(seed)
    x, y = (random.normal(size=200) + 1j * random.normal(size=200) for _ in range(2))
    x, y = x.astype(kind), y.astype(kind)
    got = complex_product(x, y)
    assert got.dtype == kind
    for z, a, b in zip(got, x, y, strict=True):
        re = Fraction(float(a.real)) * Fraction(float(b.real)) - Fraction(float(part(a.imag * b.imag)))
        im = Fraction(float(a.imag)) * Fraction(float(b.real)) + Fraction(float(part(a.real * b.imag)))
        assert (z.real, z.imag) == (nearest(re, part), nearest(im, part))


@pytest.mark.parametrize("kind", [f32, f64])
def test_short_products_of_matrices_round_at_every_step(kind, seed):
    random = np.random.default_rng(seed)
    a, b = (random.normal(size=size).astype(kind.numpy) for size in ((1, 3, 7), (1, 7, 2)))
    got = matmul(a, b, kind)
    for i, j in np.ndindex(3, 2):
        total = kind.numpy.type(0)
        for k in range(7):
            exact = Fraction(float(a[0, i, k])) * Fraction(float(b[0, k, j])) + Fraction(float(total))
            total = nearest(exact, kind.numpy)
        assert got[0, i, j] == total


def test_short_products_of_complex_matrices_have_four_sums(seed):
    random = np.random.default_rng(seed)
    a, b = (
        (random.normal(size=size) + 1j * random.normal(size=size)).astype(np.complex64)
        for size in ((1, 2, 5), (1, 5, 3))
    )
    got = matmul(a, b, dtype("complex<f32>"))
    for i, j in np.ndindex(2, 3):
        sums = np.zeros(4, np.float32)
        for k in range(5):
            x, y = a[0, i, k], b[0, k, j]
            sums += np.array([x.real * y.real, x.imag * y.imag, x.real * y.imag, x.imag * y.real], np.float32)
        assert got[0, i, j] == np.complex64(complex(sums[0] - sums[1], sums[2] + sums[3]))


# ---- the same for every memory layout ----


def layouts(array):
    backwards = np.ascontiguousarray(array[tuple(slice(None, None, -1) for _ in array.shape)])
    yield backwards[tuple(slice(None, None, -1) for _ in array.shape)]
    yield np.asfortranarray(array)
    yield np.repeat(array, 2, axis=-1)[..., ::2]


@pytest.mark.parametrize("name", ["exponential", "log", "log_plus_one", "tan", "cbrt", "rsqrt", "logistic", "tanh"])
def test_functions(name, seed):
    x = np.random.default_rng(seed).uniform(0.1, 1, (9, 31))
    f = FuncBuilder("main", [Shape("f64", 9, 31)])
    program = Program.of(f.func(f.op(f"stablehlo.{name}", f.args[0]).result))
    (wanted,) = run(program, [x])
    for other in layouts(x):
        np.testing.assert_array_equal(run(program, [other])[0], wanted)
    for i in range(31):
        alone = FuncBuilder("main", [Shape("f64")])
        one = Program.of(alone.func(alone.op(f"stablehlo.{name}", alone.args[0]).result))
        assert run(one, [np.array(x[0, i])])[0] == wanted[0, i]


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_sums(axes, seed):
    x = np.random.default_rng(seed).uniform(0.1, 1, (90, 131))
    f = FuncBuilder("main", [Shape("f64", 90, 131)])
    with f.region(Shape("f64"), Shape("f64")) as body:
        region = body.result(body.add(*body.args))
    total = f.op("stablehlo.reduce", f.args[0], f.constant(0.0, "f64"), regions=[region], dimensions=axes).result
    program = Program.of(f.func(total))
    (wanted,) = run(program, [x])
    for other in layouts(x):
        np.testing.assert_array_equal(run(program, [other])[0], wanted)


def test_matrix_products(seed):
    random = np.random.default_rng(seed)
    a, b = random.normal(size=(1, 20, 150)), random.normal(size=(1, 150, 30))
    wanted = matmul(a, b, f64)
    for x in layouts(a):
        for y in layouts(b):
            np.testing.assert_array_equal(matmul(x, y, f64), wanted)


@pytest.mark.parametrize("exponent", [2.0, -1.0, 0.5, 3.0, 0.25, 0.0, 1.0])
def test_powers(exponent, seed):
    """NumPy takes short cuts for some exponents where they repeat in memory, and for single elements."""
    x = np.random.default_rng(seed).uniform(0.1, 5, 200)
    wanted = power(x, np.full(200, exponent))
    np.testing.assert_array_equal(power(x, np.array(exponent)), wanted)
    np.testing.assert_array_equal(power(x, np.broadcast_to(exponent, 200)), wanted)
    np.testing.assert_array_equal([power(np.array(each), np.array(exponent)) for each in x], wanted)


def test_powers_of_the_ends_are_those_of_c():
    ends = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -1.0])
    root = power(ends, np.full(6, 0.5))
    np.testing.assert_array_equal(root, [0.0, 0.0, np.inf, np.inf, np.nan, np.nan])
    assert not np.signbit(root[:2]).any()
    inverse = power(ends, np.full(6, -1.0))
    np.testing.assert_array_equal(inverse, [np.inf, -np.inf, 0.0, -0.0, np.nan, -1.0])


def test_powers_of_two():
    """f8E8M0FNU, as OCP's specification of scales has it: 2**-127 to 2**127 and nan; ties go up, 0 is the least."""
    given = [1.0, 1.49, 1.5, 3.0, 2.0**127, 2.0**127 * 1.4, 2.0**-127, 2.0**-140, 0.0]
    wanted = [1.0, 1.0, 2.0, 4.0, 2.0**127, 2.0**127, 2.0**-127, 2.0**-127, 2.0**-127]
    found = cast(np.array(given), dtype("f8E8M0FNU"))
    assert found.astype(np.float64).tolist() == wanted
    assert found.view(np.uint8).tolist() == [127, 127, 128, 129, 254, 254, 0, 0, 0]
    others = cast(np.array([np.nan, -1.0, -(2.0**-130), np.inf, -np.inf, 2.0**128, 2.0**127 * 1.5]), dtype("f8E8M0FNU"))
    assert others.view(np.uint8).tolist() == [255] * 7
