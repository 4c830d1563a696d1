"""`smelt.ir.special` against mpmath: random grids with a stated error, and values at zeros, poles, infinities, cuts.

A tolerance is relative. Near a zero that no double hits, `floor` takes the place of a smaller |value|: there the error
is bounded against `floor` alone.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from smelt.ir import special

INF, NAN = np.inf, np.nan
EXACT = 4e-16  # about two units in the last place


def linear(low: float, high: float, n: int = 150) -> np.ndarray:
    return np.random.default_rng(7).uniform(low, high, n)


def decades(low: float, high: float, n: int = 150) -> np.ndarray:
    return 10 ** np.random.default_rng(11).uniform(low, high, n)


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, -x])


def whole(low: int, high: int, n: int = 150) -> np.ndarray:
    return np.random.default_rng(13).integers(low, high, n).astype(np.float64)


@dataclass(frozen=True)
class Case:
    name: str
    fn: Callable[..., np.ndarray]
    oracle: Callable[..., Any]
    args: tuple[np.ndarray, ...]
    tolerance: float
    floor: float = 0.0
    bits: int = 250  # of mpmath's precision


def log_gamma(x):
    return mp.log(abs(mp.gamma(x)))


def hurwitz(s, q):
    """mpmath's own, with the terms below 0 added by hand and the bits that it needs for small values."""
    terms = max(0, int(mp.ceil(-q)))
    with mp.workprec(200 + int(s * mp.log(q + terms + 1, 2))):
        return mp.fsum((q + k) ** -s for k in range(terms)) + mp.zeta(s, q + terms)


def derivative(n, x):
    return mp.digamma(x) if n == 0 else (-1) ** (int(n) + 1) * mp.factorial(n) * hurwitz(n + 1, x)


def bessel(order):
    return lambda x: mp.exp(-abs(x)) * mp.besseli(order, x)


REAL = [
    Case("erf", special.erf, mp.erf, (np.r_[linear(-6, 6), decades(-300, 0)],), EXACT),
    Case("erfc", special.erfc, mp.erfc, (np.r_[linear(-6, 26), decades(-300, 0)],), 1e-15),
    Case("erf_inv", special.erf_inv, mp.erfinv, (np.r_[linear(-1, 1), both(decades(-300, -1, 50))],), EXACT),
    Case("erf_inv-tail", special.erf_inv, mp.erfinv, (1 - decades(-15.5, -0.5),), EXACT),
    Case("lgamma", special.lgamma, mp.loggamma, (np.r_[linear(0, 3), linear(3, 20), decades(-300, 305)],), 1e-15),
    Case("lgamma-at-1", special.lgamma, mp.loggamma, (1 + both(decades(-12, -1)),), 1e-15),
    Case("lgamma-at-2", special.lgamma, mp.loggamma, (2 + both(decades(-12, -1)),), 1e-15),
    Case("lgamma-below-0", special.lgamma, log_gamma, (np.r_[linear(-30, 0, 600), -decades(-300, 0)],), 2e-14, 1.0),
    Case("lgamma-at-poles", special.lgamma, log_gamma, (whole(-100, 0) + both(decades(-12, -3))[:150],), 2e-14),
    Case("digamma", special.digamma, mp.digamma, (np.r_[linear(0, 5), linear(5, 30), decades(-300, 300)],), 1e-14),
    Case("digamma-at-zero", special.digamma, mp.digamma, (1.4616321449683622 + both(decades(-15.5, -0.7)),), 1e-14),
    Case("digamma-below-0", special.digamma, mp.digamma, (np.r_[linear(-30, 0, 600), -decades(-300, 0)],), 2e-14, 1.0),
    Case("zeta", special.zeta, hurwitz, (1 + decades(-3, 1.7, 100), np.flip(decades(-2, 4, 100))), 2e-15),
    Case("zeta-whole", special.zeta, hurwitz, (whole(2, 60, 100), decades(-5, 3, 100)), 2e-15),
    Case("zeta-even-below-0", special.zeta, hurwitz, (2 * whole(1, 15, 100), linear(-20, 0, 100)), 2e-15),
    Case("zeta-odd-below-0", special.zeta, hurwitz, (2 * whole(1, 15, 100) + 1, linear(-20, 0, 100)), 1e-14, 1.0),
    Case("polygamma", special.polygamma, derivative, (whole(0, 40, 100), decades(-3, 3, 100)), 1e-14),
    Case("polygamma-large", special.polygamma, derivative, (whole(40, 400, 100), decades(-1, 3, 100)), 2e-12),
    Case("polygamma-below-0", special.polygamma, derivative, (whole(1, 20, 100), linear(-10, 0, 100)), 1e-13, 1.0),
    Case("bessel_i0e", special.bessel_i0e, bessel(0), (np.r_[linear(-60, 60), decades(-300, 8)],), 2e-15),
    Case("bessel_i1e", special.bessel_i1e, bessel(1), (np.r_[linear(-60, 60), decades(-300, 8)],), 2e-15),
    Case("logistic", special.logistic, lambda x: 1 / (1 + mp.exp(-x)), (linear(-700, 700),), 1e-15),
    Case("exponential_minus_one", special.exponential_minus_one, mp.expm1, (both(decades(-300, 2)),), EXACT),
    Case("log_plus_one", special.log_plus_one, mp.log1p, (decades(-300, 300),), EXACT),
    Case("rsqrt", special.rsqrt, lambda x: 1 / mp.sqrt(x), (decades(-308, 308),), EXACT),
    Case("cbrt", special.cbrt, mp.cbrt, (decades(-308, 308),), EXACT),
    Case("power", special.power, mp.power, (decades(-3, 3), linear(-40, 40)), EXACT),
    Case("atan2", special.atan2, mp.atan2, (linear(-3, 3), np.flip(both(decades(-3, 3)))[:150]), EXACT),
]


@pytest.mark.parametrize("case", REAL, ids=lambda case: case.name)
def test_real(case: Case) -> None:
    got = case.fn(*case.args)
    assert got.dtype == np.float64
    with mp.workprec(case.bits):
        for value, *args in zip(got, *case.args, strict=True):
            want = case.oracle(*map(mp.mpf, map(float, args)))
            if abs(want) > np.finfo(np.float64).max:
                assert value == mp.sign(want) * INF
                continue
            error = abs(mp.mpf(float(value)) - want)
            assert error <= case.tolerance * max(abs(want), case.floor), (args, value, mp.nstr(want, 20))


def plane(n: int = 40) -> np.ndarray:
    """Complex numbers of every size, with parts of like and of very different size, on and beside the unit circles."""
    rng = np.random.default_rng(17)
    z = rng.normal(size=n) + 1j * rng.normal(size=n)
    circle = np.exp(1j * rng.uniform(-np.pi, np.pi, n))
    beside = [1 + z * 1e-6, -1 + z * 1e-6, 1j + z * 1e-6, np.pi * 1j + z * 1e-5]
    uneven = [z.real * 1e-8 + 1j * z.imag, z.real + 1e-8j * z.imag]
    return np.concatenate([z, z * 1e-3, z * 1e-8, z * 20, circle, circle - 1, *beside, *uneven])


def sizes(n: int = 40) -> np.ndarray:
    rng = np.random.default_rng(19)
    parts = 10 ** rng.uniform(-150, 150, (2, n)) * rng.choice([-1, 1], (2, n))
    return parts[0] + 1j * parts[1]


# What the op table takes from NumPy is checked beside what it takes from here: both must hold on every platform.
ANYWHERE, MODERATE = np.r_[plane(), sizes()], plane()
COMPLEX = [
    Case("logistic", special.logistic, lambda z: 1 / (1 + mp.exp(-z)), (MODERATE,), 2e-15),
    Case("exponential_minus_one", special.exponential_minus_one, mp.expm1, (MODERATE,), 2e-15),
    Case("log_plus_one", special.log_plus_one, lambda z: mp.log(1 + z), (ANYWHERE,), 2e-15, bits=1200),
    Case("rsqrt", special.rsqrt, lambda z: 1 / mp.sqrt(z), (ANYWHERE,), 2e-15, bits=1200),
    Case("sign", special.sign, lambda z: z / abs(z), (ANYWHERE,), 2e-15, bits=1200),
    Case("cbrt", special.cbrt, lambda z: mp.exp(mp.log(z) / 3), (ANYWHERE,), 2e-15, bits=1200),
    Case("power", special.power, mp.power, (MODERATE, np.roll(MODERATE, 40) / 4), 1e-14),
    Case("power-whole", special.power, mp.power, (MODERATE, np.rint(np.roll(MODERATE, 40).real * 5) + 0j), 1e-13),
    Case("exponential", np.exp, mp.exp, (MODERATE,), 2e-15),
    Case("log", np.log, mp.log, (ANYWHERE,), 2e-15, bits=1200),
    Case("sqrt", np.sqrt, mp.sqrt, (ANYWHERE,), 2e-15, bits=1200),
    Case("sine", np.sin, mp.sin, (MODERATE,), 2e-15),
    Case("cosine", np.cos, mp.cos, (MODERATE,), 2e-15),
    Case("tan", np.tan, mp.tan, (MODERATE,), 2e-15),
    Case("sinh", np.sinh, mp.sinh, (MODERATE,), 2e-15),
    Case("cosh", np.cosh, mp.cosh, (MODERATE,), 2e-15),
    Case("tanh", np.tanh, mp.tanh, (MODERATE,), 2e-15),
    Case("asin", np.arcsin, mp.asin, (ANYWHERE,), 2e-15, bits=1200),
    Case("acos", np.arccos, mp.acos, (ANYWHERE,), 2e-15, bits=1200),
    Case("atan", np.arctan, mp.atan, (ANYWHERE,), 2e-15, bits=1200),
    Case("asinh", np.arcsinh, mp.asinh, (ANYWHERE,), 2e-15, bits=1200),
    Case("acosh", np.arccosh, mp.acosh, (ANYWHERE,), 2e-15, bits=1200),
    Case("atanh", np.arctanh, mp.atanh, (ANYWHERE,), 2e-15, bits=1200),
]
# Zeros of one part alone, which cost that part its relative error: e^x cos y = 1, or y log x at a multiple of π/2.
NORM_ONLY = {"exponential_minus_one", "logistic", "power", "power-whole"}


@pytest.mark.parametrize("case", COMPLEX, ids=lambda case: case.name)
def test_complex(case: Case) -> None:
    got = case.fn(*case.args)
    assert got.dtype == np.complex128
    with mp.workprec(case.bits):
        for value, *args in zip(got, *case.args, strict=True):
            want = case.oracle(*map(mp.mpc, map(complex, args)))
            if max(abs(want.real), abs(want.imag)) > 1e300:
                continue
            assert abs(mp.mpc(complex(value)) - want) <= case.tolerance * abs(want), (args, value, mp.nstr(want, 20))
            if case.name not in NORM_ONLY:
                for part, expected in ((value.real, want.real), (value.imag, want.imag)):
                    error = abs(mp.mpf(float(part)) - expected)
                    assert error <= 4e-13 * abs(expected) + 1e-300, (args, value, mp.nstr(want, 20))


def test_complex_atan2_is_the_formula_of_the_specification() -> None:
    def formula(y, x):
        return -mp.j * mp.log((x + mp.j * y) / mp.sqrt(x * x + y * y))

    z, other = MODERATE[::2], np.roll(MODERATE, 40)[::2]
    beside = 1j * z * (1 + decades(-9, -1, z.size))  # where x² + y² cancels
    ys, xs = np.r_[other, beside, -beside, z, other * 1e200], np.r_[z, z, z, 1e5 * z, z * 1e200]
    checked = 0
    for value, y, x in zip(special.atan2(ys, xs), map(mp.mpc, ys.tolist()), map(mp.mpc, xs.tolist()), strict=True):
        with mp.workprec(300):
            square = x * x + y * y
            if square.real < 0 and abs(square.imag) < 1e-13 * abs(square):
                continue  # the cut of the root: rounding decides
            error = mp.mpc(complex(value)) - formula(y, x)
            error -= 2 * mp.pi * mp.nint(error.real / (2 * mp.pi))  # -π and π are one angle
        assert abs(error) <= 4e-15 * abs(value), (y, x, value)
        checked += 1
    assert checked > 0.9 * ys.size


def test_complex_atan2_of_axes() -> None:
    y, x = np.array([1, -1, 0, 0, 2]), np.array([0, 0, 1, -1, 2])
    assert special.atan2(y + 0j, x + 0j) == pytest.approx(np.arctan2(y, x) + 0j, abs=1e-16)


ZERO, TINY, HUGE = 0.0, 5e-324, 1.7e308
VALUES: list[tuple[Callable[..., np.ndarray], list[tuple[float, ...]]]] = [  # arguments, then the value; nan equals nan
    (special.erf, [(ZERO, 0), (-ZERO, -ZERO), (INF, 1), (-INF, -1), (NAN, NAN)]),
    (special.erfc, [(ZERO, 1), (INF, 0), (-INF, 2), (NAN, NAN), (30, 0)]),
    (special.erf_inv, [(ZERO, 0), (-ZERO, -ZERO), (1, INF), (-1, -INF), (1.5, NAN), (-INF, NAN), (NAN, NAN)]),
    (special.erf_inv, [(TINY, TINY), (-TINY, -TINY)]),
    (special.lgamma, [(ZERO, INF), (-ZERO, INF), (-1, INF), (-3, INF), (-(2.0**60), INF), (INF, INF), (-INF, INF)]),
    (special.lgamma, [(1, 0), (2, 0), (NAN, NAN), (HUGE, INF), (TINY, 744.4400719213812), (-TINY, 744.4400719213812)]),
    (special.digamma, [(ZERO, NAN), (-ZERO, NAN), (-1, NAN), (-7, NAN), (INF, INF), (-INF, NAN), (NAN, NAN)]),
    (special.digamma, [(TINY, -INF), (-TINY, INF), (HUGE, np.log(HUGE))]),
    (special.zeta, [(1, 2, INF), (1, -3, INF), (0.5, 2, NAN), (-2, 2, NAN), (2.5, -0.5, NAN), (NAN, 1, NAN)]),
    (special.zeta, [(2, ZERO, INF), (2, -3, INF), (3, ZERO, NAN), (3, -3, NAN), (2, NAN, NAN), (2, INF, 0)]),
    (special.zeta, [(INF, 0.5, INF), (INF, 1, 1), (INF, 2, 0), (1e300, 1, 1), (1e300, 1e300, 0), (2, TINY, INF)]),
    (
        special.zeta,
        [
            (4, 1e100, 1e-300 / 3),
            (1 + 2.0**-50, 1e300, 2.0**50 * np.exp(-(2.0**-50) * np.log(1e300))),
            (3, -TINY, -INF),
        ],
    ),
    (special.polygamma, [(-1, 2, NAN), (0.5, 2, NAN), (INF, 2, NAN), (NAN, 2, NAN), (1, NAN, NAN), (1, INF, 0)]),
    (special.polygamma, [(0, ZERO, NAN), (1, ZERO, INF), (2, ZERO, NAN), (1, -2, INF), (1, 1, np.pi**2 / 6)]),
    (special.polygamma, [(3, 1e100, 2e-300), (1000, 1, -INF), (1001, 1e-10, INF), (2, -TINY, INF)]),
    (special.bessel_i0e, [(ZERO, 1), (INF, 0), (-INF, 0), (NAN, NAN), (TINY, 1)]),
    (special.bessel_i1e, [(ZERO, 0), (-ZERO, -ZERO), (INF, 0), (-INF, -ZERO), (NAN, NAN), (TINY, TINY)]),
    (special.logistic, [(ZERO, 0.5), (INF, 1), (-INF, 0), (NAN, NAN), (-710, np.exp(-710)), (710, 1)]),
    (special.exponential_minus_one, [(ZERO, 0), (-ZERO, -ZERO), (INF, INF), (-INF, -1), (NAN, NAN)]),
    (special.log_plus_one, [(ZERO, 0), (-ZERO, -ZERO), (INF, INF), (-1, -INF), (-2, NAN), (NAN, NAN)]),
    (special.rsqrt, [(ZERO, INF), (-ZERO, -INF), (INF, 0), (-1, NAN), (NAN, NAN), (4, 0.5)]),
    (special.cbrt, [(ZERO, 0), (-ZERO, -ZERO), (INF, INF), (-INF, -INF), (-27, -3), (NAN, NAN)]),
    (special.sign, [(ZERO, 0), (-ZERO, -ZERO), (INF, 1), (-INF, -1), (TINY, 1), (-TINY, -1), (NAN, NAN)]),
    (special.power, [(0, 0, 1), (1, NAN, 1), (NAN, 0, 1), (-1, INF, 1), (-1, -INF, 1), (-8, 1 / 3, NAN), (-2, 3, -8)]),
    (special.power, [(-ZERO, -1, -INF), (-ZERO, 2, 0), (ZERO, -1, INF), (0.5, INF, 0), (2, -INF, 0), (INF, -1, 0)]),
    (
        special.atan2,
        [(ZERO, 1, 0), (ZERO, -1, np.pi), (-ZERO, -1, -np.pi), (1, ZERO, np.pi / 2), (INF, INF, np.pi / 4)],
    ),
    (special.round_nearest_even, [(0.5, 0), (-0.5, -ZERO), (1.5, 2), (2.5, 2), (-0.2, -ZERO), (INF, INF), (NAN, NAN)]),
    (special.round_nearest_afz, [(0.5, 1), (-0.5, -1), (1.5, 2), (2.5, 3), (-0.2, -ZERO), (-INF, -INF), (NAN, NAN)]),
    (special.round_nearest_afz, [(0.49999999999999994, 0), (4503599627370497.0, 4503599627370497.0), (-HUGE, -HUGE)]),
]


@pytest.mark.parametrize(("fn", "rows"), VALUES, ids=lambda each: getattr(each, "__name__", ""))
def test_value(fn: Callable[..., np.ndarray], rows: list[tuple[float, ...]]) -> None:
    *args, want = np.array(rows, np.float64).T
    got = fn(*args)
    np.testing.assert_allclose(got, want, rtol=2e-15, atol=0)
    assert np.array_equal(np.signbit(got[want == 0]), np.signbit(want[want == 0]))


def c(re: float, im: float) -> complex:
    return complex(re, im)


NEITHER = c(NAN, NAN)
COMPLEX_VALUES: list[tuple[Callable[..., np.ndarray], list[tuple[complex, ...]]]] = [
    (special.sign, [(0j, 0j), (c(INF, 1), NEITHER), (c(NAN, 0), NEITHER), (c(HUGE, HUGE), c(0.5**0.5, 0.5**0.5))]),
    (special.sign, [(c(TINY, -TINY), c(0.5**0.5, -(0.5**0.5)))]),
    (special.rsqrt, [(0j, c(INF, NAN)), (c(INF, 0), 0j), (c(1, -INF), 0j), (c(-4, 0), -0.5j), (c(-4, -ZERO), 0.5j)]),
    (special.rsqrt, [(c(1e-300, 0), 1e150 + 0j), (c(NAN, 1), NEITHER)]),
    (special.cbrt, [(0j, 0j), (c(8, 0), 2 + 0j), (c(-8, -ZERO), c(1, -(3**0.5))), (c(INF, 0), c(INF, 0))]),
    (special.logistic, [(0j, 0.5 + 0j), (c(INF, INF), 1 + 0j), (c(-INF, NAN), 0j), (c(0, INF), NEITHER)]),
    (special.logistic, [(c(800, 3), 1 + 0j), (c(-800, 3), 0j), (c(NAN, 0), NEITHER)]),
    (
        special.exponential_minus_one,
        [(0j, 0j), (c(INF, 0), c(INF, 0)), (c(-INF, INF), -1 + 0j), (c(800, 0), c(INF, 0))],
    ),
    (special.exponential_minus_one, [(c(1e-200, 1e-160), c(1e-200, 1e-160)), (c(709, 1e-3), np.exp(c(709, 1e-3)))]),
    (special.log_plus_one, [(0j, 0j), (c(-1, 0), c(-INF, 0)), (c(-2, 0), c(0, np.pi)), (c(-2, -ZERO), c(0, -np.pi))]),
    (
        special.log_plus_one,
        [(c(INF, NAN), c(INF, NAN)), (c(HUGE, 0), c(np.log(HUGE), 0)), (c(1e-200, 0), c(1e-200, 0))],
    ),
    (special.power, [(0j, 0j, 1 + 0j), (0j, 2 + 0j, 0j), (c(NAN, 1), 0j, 1 + 0j), (c(1e200, 1e200), -2 + 0j, 0j)]),
    (special.power, [(c(-1, 0), c(0.5, 0), 1j), (c(-1, -ZERO), c(0.5, 0), -1j), (c(INF, 0), c(-1, 0), 0j)]),
    (np.sqrt, [(c(-1, 0), 1j), (c(-1, -ZERO), -1j), (c(1, INF), c(INF, INF)), (c(-INF, 1), c(0, INF))]),
    (np.log, [(0j, c(-INF, 0)), (c(-1, 0), c(0, np.pi)), (c(-1, -ZERO), c(0, -np.pi)), (c(1, INF), c(INF, np.pi / 2))]),
    (np.tanh, [(c(INF, 1), 1 + 0j), (c(-800, 1), -1 + 0j), (c(0, INF), c(0, NAN))]),
    (np.tan, [(c(1, INF), 1j), (c(1, -800), -1j)]),
    (np.arctanh, [(c(1, 0), c(INF, 0)), (c(INF, 1), c(0, np.pi / 2)), (c(1, INF), c(0, np.pi / 2))]),
]


@pytest.mark.parametrize(("fn", "rows"), COMPLEX_VALUES, ids=lambda each: getattr(each, "__name__", ""))
def test_complex_value(fn: Callable[..., np.ndarray], rows: list[tuple[complex, ...]]) -> None:
    *args, want = np.array(rows, np.complex128).T
    with np.errstate(all="ignore"):  # for NumPy's own
        got = fn(*args)
    np.testing.assert_allclose(got.real, want.real, rtol=2e-15, atol=2e-16)
    np.testing.assert_allclose(got.imag, want.imag, rtol=2e-15, atol=2e-16)


# On a cut the sign of zero says which side is meant: the value there is the limit from that side.
CUTS: dict[str, tuple[Callable[..., Any], Callable[..., Any], list[Any], complex]] = {
    "sqrt": (np.sqrt, mp.sqrt, [-0.3, -2.0], 1j),
    "log": (np.log, mp.log, [-0.3, -2.0], 1j),
    "log_plus_one": (special.log_plus_one, lambda z: mp.log(1 + z), [-1.3, -5.0], 1j),
    "rsqrt": (special.rsqrt, lambda z: 1 / mp.sqrt(z), [-0.3, -2.0], 1j),
    "cbrt": (special.cbrt, lambda z: mp.exp(mp.log(z) / 3), [-0.3, -2.0], 1j),
    "asin": (np.arcsin, mp.asin, [-2.0, 1.5], 1j),
    "acos": (np.arccos, mp.acos, [-2.0, 1.5], 1j),
    "acosh": (np.arccosh, mp.acosh, [-2.0, 0.5], 1j),
    "atanh": (np.arctanh, mp.atanh, [-2.0, 1.5], 1j),
    "asinh": (np.arcsinh, mp.asinh, [-2j, 1.5j], 1),
    "atan": (np.arctan, mp.atan, [-2j, 1.5j], 1),
}


@pytest.mark.parametrize("name", CUTS)
def test_branch_cut(name: str) -> None:
    fn, oracle, points, across = CUTS[name]
    for point in points:
        for side in (0.0, -0.0):
            z = c(point, side) if across == 1j else c(side, complex(point).imag)
            beside = mp.mpc(point) + mp.mpc(across) * mp.mpf(np.copysign(1e-40, side))
            with mp.workprec(400):
                want = complex(oracle(beside))
            assert complex(fn(np.array(z))) == pytest.approx(want, rel=1e-15, abs=1e-16), z


def test_infinities_are_distinguished() -> None:
    x = np.array([INF, -INF, NAN, HUGE, 0.0])
    assert special.is_inf(x).tolist() == [True, True, False, False, False]
    assert special.is_pos_inf(x).tolist() == [True, False, False, False, False]
    assert special.is_neg_inf(x).tolist() == [False, True, False, False, False]


UNARY = [
    *(
        special.erf,
        special.erfc,
        special.erf_inv,
        special.lgamma,
        special.digamma,
        special.bessel_i0e,
        special.bessel_i1e,
    ),
    *(special.sign, special.cbrt, special.rsqrt, special.logistic, special.exponential_minus_one, special.log_plus_one),
    *(special.round_nearest_even, special.round_nearest_afz, special.is_inf),
]


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (2, 3)])
def test_shapes_are_kept(shape: tuple[int, ...]) -> None:
    x = np.full(shape, 0.25)
    results = [fn(x) for fn in UNARY] + [fn(x, x) for fn in (special.zeta, special.polygamma, special.power)]
    results += [fn(x + 1j) for fn in UNARY[7:13]] + [special.atan2(x + 1j, x), special.power(x + 1j, x + 0j)]
    assert [(type(result), result.shape) for result in results] == [(np.ndarray, shape)] * len(results)
