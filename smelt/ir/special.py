"""Functions of StableHLO and CHLO that NumPy lacks, or gets wrong somewhere.

In: float64 or complex128 arrays (the op table widens narrower types and rounds once afterwards). Out: the same dtype
and the broadcast shape, without warnings. What is not here (`sine`, `tanh`, complex `log`, …) is NumPy's own, which
follows C99's branch cuts and special values. Integers and bit patterns are in `integer.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import numpy as np

from smelt.dtype import Array

P = ParamSpec("P")


def _quiet(fn: Callable[P, Any]) -> Callable[P, Array]:
    """Run `fn` without floating-point warnings; a scalar result becomes an array again."""

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> Array:
        with np.errstate(all="ignore"):
            return np.asarray(fn(*args, **kwargs))

    return call


def _horner(x: Array, coefficients: Sequence[float]) -> Array:
    """c0 + c1 x + c2 x² + …"""
    value = np.zeros_like(x)
    for c in reversed(coefficients):
        value = value * x + c
    return value


def _complex(re: Array, im: Array) -> Array:
    """re + i im, without the arithmetic that would turn an infinite part into a nan."""
    z = np.empty(np.broadcast_shapes(np.shape(re), np.shape(im)), np.complex128)
    z.real, z.imag = re, im
    return z


def _is_integral(x: Array) -> Array:
    """Whole numbers; both infinities count, as they do for every large double."""
    return np.asarray(np.floor(x) == x)


# Rounding and classification ------------------------------------------------------------------------------------------


@_quiet
def round_nearest_even(x: Array) -> Array:
    """The nearest integer, ties to the even one; the sign of zero stays."""
    return np.rint(x)


@_quiet
def round_nearest_afz(x: Array) -> Array:
    """The nearest integer, ties away from zero; the sign of zero stays."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(1.0, x), whole)


def is_inf(x: Array) -> Array:
    """x is +inf or -inf."""
    return np.asarray(np.isinf(x))


def is_pos_inf(x: Array) -> Array:
    """x is +inf."""
    return np.asarray(x == np.inf)


def is_neg_inf(x: Array) -> Array:
    """x is -inf."""
    return np.asarray(x == -np.inf)


# Elementary functions, real and complex -------------------------------------------------------------------------------


@_quiet
def sign(x: Array) -> Array:
    """±1, or x itself where it is ±0 or nan; z/|z| for complex z, 0 at 0, nan where a part is infinite or nan."""
    if not np.iscomplexobj(x):
        return np.where((x == 0) | np.isnan(x), x, np.copysign(1.0, x))
    re, im, _ = _scale(x)
    size = np.hypot(re, im)
    unit = np.where(np.isfinite(size), _complex(re / size, im / size), complex(np.nan, np.nan))
    return np.where(x == 0, 0, unit)


@_quiet
def cbrt(x: Array) -> Array:
    """The real cube root; the principal one, |z|^(1/3) e^(iθ/3), for complex z."""
    if not np.iscomplexobj(x):
        return np.cbrt(x)
    re, im, exponent = _scale(x, multiple=3)
    radius = np.ldexp(np.cbrt(np.hypot(re, im)), exponent // 3)
    angle = np.arctan2(x.imag, x.real) / 3
    return _complex(radius * np.cos(angle), np.where(angle == 0, angle, radius * np.sin(angle)))


@_quiet
def rsqrt(x: Array) -> Array:
    """1/√x. Complex: the conjugate of √z over |z|, 0 at the infinities, and inf + nan i at 0 (XLA's choice)."""
    root = np.sqrt(x)
    if not np.iscomplexobj(x):
        return 1.0 / root
    size = np.hypot(root.real, root.imag)
    inverse = _complex(root.real / size / size, -root.imag / size / size)
    inverse = np.where(np.isinf(size), _complex(np.copysign(0.0, root.real), np.copysign(0.0, -root.imag)), inverse)
    return np.where(x == 0, complex(np.inf, np.nan), inverse)


@_quiet
def logistic(x: Array) -> Array:
    """1/(1 + e^-x), from e = e^-|Re x| so that nothing overflows.

    Complex: with a = 1 + e cos y written as (1 - e) + 2e cos²(y/2), a sum of positive terms, there is no cancellation
    beside the poles at odd multiples of πi.
    """
    if not np.iscomplexobj(x):
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e, 1.0) / (1.0 + e)
    right, y = x.real >= 0, x.imag
    e, rest = np.exp(-np.abs(x.real)), -np.expm1(-np.abs(x.real))
    cosine = 2 * np.cos(y / 2) ** 2  # 1 + cos y
    a, b = rest + e * cosine, e * np.sin(y)
    square = a * a + b * b
    value = _complex(np.where(right, a, e * (cosine - rest)) / square, b / square)
    return np.where(np.isinf(x.real), right, value)


@_quiet
def exponential_minus_one(x: Array) -> Array:
    """e^x - 1. Complex: (e^x - 1) cos y - 2 sin²(y/2) near the imaginary axis, which cancels only where Re = 0."""
    if not np.iscomplexobj(x):
        return np.expm1(x)
    power = np.exp(x)
    near = np.expm1(x.real) * np.cos(x.imag) - 2 * np.sin(x.imag / 2) ** 2
    return _complex(np.where(np.abs(x.real) < 1, near, power.real - 1), power.imag)


@_quiet
def log_plus_one(x: Array) -> Array:
    """log(1 + x). Complex: ½ log1p(2x + x² + y²) + i atan2(y, 1 + x), the sum carried in twice the precision."""
    if not np.iscomplexobj(x):
        return np.log1p(x)
    re, im = x.real, x.imag
    total, error = 2 * re, np.zeros_like(re)
    for part in (re, im):
        square, lost = _product(part, part)
        total, missed = _sum(total, square)
        error = error + lost + missed
    excess = total + error
    away = np.log(np.hypot(1 + re, im))
    return _complex(np.where(np.abs(excess) < 0.5, np.log1p(excess) / 2, away), np.arctan2(im, 1 + re))


@_quiet
def power(x: Array, y: Array) -> Array:
    """x^y, C's pow for reals. Complex: NumPy's, but e^(y log x) where its repeated product ran into inf/inf.

    NumPy has short cuts for some exponents that it takes or not depending on strides: here they are always taken.
    """
    value = np.power(x, y)
    if not np.iscomplexobj(value):
        root = np.where(x == -np.inf, np.inf, np.sqrt(x) + 0.0)  # C: of -0.0 it is 0.0
        return np.select([y == 2, y == -1, y == 0.5], [x * x, 1.0 / x, root], value)
    return np.where(np.isnan(value) & (x != 0), np.exp(y * np.log(x)), value)


@_quiet
def complex_product(x: Array, y: Array) -> Array:
    """x y in the type of x, as XLA's CPU has it: the second product of each part is added with one rounding."""
    z = np.empty(np.broadcast_shapes(x.shape, y.shape), x.dtype)
    z.real = fma(x.real, y.real, -(x.imag * y.imag))
    z.imag = fma(x.imag, y.real, x.real * y.imag)
    return z


@_quiet
def fma(a: Array, b: Array, c: Array) -> Array:
    """a b + c of floats with one rounding; doubles may come out rounded twice where the sum cancels or is subnormal."""
    if a.dtype == np.float32:
        return (np.multiply(a, b, dtype=np.float64) + c).astype(np.float32)
    product, lost = _product(a, b)
    total, missed = _sum(product, c)
    rest = lost + missed
    return np.where(np.isfinite(rest) & (rest != 0), total + rest, total)  # -0.0 + 0.0 would lose the sign


@_quiet
def atan2(y: Array, x: Array) -> Array:
    """The angle of (x, y). Complex: -i log((x + iy) / √(x² + y²)), the formula of the specification.

    As written the formula cancels for small y/x and beside y = ±ix. With w = x + iy and v = x - iy, whose parts are
    exact to one rounding, it is (arg w - ½ arg wv) + ½ i log|v/w|, good beside y = ±ix; elsewhere the value is
    atan(y/x), or π/2 - atan(x/y), plus the multiple of π that the formula says.
    """
    if not np.iscomplexobj(y):
        return np.arctan2(y, x)
    steep = np.abs(y) > np.abs(x)
    atan = np.where(steep, np.pi / 2 - np.arctan(x / y), np.arctan(y / x))
    *_, exponent = _scale(np.where(steep, y, x))
    yr, yi, xr, xi = (np.ldexp(part, -exponent) for part in (y.real, y.imag, x.real, x.imag))
    w, v = _complex(xr - yi, xi + yr), _complex(xr + yi, xi - yr)
    angle = _wrap(np.angle(w) - _wrap(np.angle(w) + np.angle(v)) / 2)
    turns = np.rint((angle - atan.real) / np.pi)
    beside = np.abs(w) * np.abs(v) < 0.1 * (np.abs(w) ** 2 + np.abs(v) ** 2)
    re = np.where(beside, angle, atan.real + turns * np.pi)
    return _complex(re, np.where(beside, np.log(np.abs(v) / np.abs(w)) / 2, atan.imag))


def _wrap(angle: Array) -> Array:
    """The same angle within [-π, π]."""
    return angle - 2 * np.pi * np.rint(angle / (2 * np.pi))


def _scale(z: Array, multiple: int = 1) -> tuple[Array, Array, Array]:
    """The parts of z over 2^e, and e: the larger part is near 1 unless it is 0, inf or nan. e is a multiple."""
    exponent = np.frexp(np.maximum(np.abs(z.real), np.abs(z.imag)))[1] // multiple * multiple
    return np.ldexp(z.real, -exponent), np.ldexp(z.imag, -exponent), exponent


def _sum(a: Array, b: Array) -> tuple[Array, Array]:
    """a + b rounded, and what rounding lost (Knuth)."""
    total = a + b
    b_part = total - a
    return total, (a - (total - b_part)) + (b - b_part)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a b rounded, and what rounding lost (Dekker's product of 26-bit halves)."""
    (a_high, a_low), (b_high, b_low), product = _halves(a), _halves(b), a * b
    return product, ((a_high * b_high - product) + (a_high * b_low + a_low * b_high)) + a_low * b_low


def _halves(a: Array) -> tuple[Array, Array]:
    high = a * 134217729.0
    high = high - (high - a)
    return high, a - high


# Error function -------------------------------------------------------------------------------------------------------

_erf, _erfc = np.frompyfunc(math.erf, 1, 1), np.frompyfunc(math.erfc, 1, 1)


def erf(x: Array) -> Array:
    """2/√π ∫₀ˣ e^-t² dt, the C library's."""
    return np.asarray(_erf(x), np.float64)


def erfc(x: Array) -> Array:
    """1 - erf(x) without the cancellation, the C library's."""
    return np.asarray(_erfc(x), np.float64)


@_quiet
def erf_inv(x: Array) -> Array:
    """The y with erf(y) = x; ±inf at ±1 and nan beyond.

    Winitzki's closed form (within 0.5 %) and three steps of Halley's method, on erfc(y) = 1 - |x| from |x| = 1/2 up.
    """
    p = np.abs(x)
    log = np.log1p(-p * p)
    half = 2 / (np.pi * 0.147) + log / 2
    y = np.sqrt(np.maximum(np.sqrt(half * half - log / 0.147) - half, 0))
    y = np.where(p < 1, y, 0)
    for _ in range(3):
        error = np.where(p < 0.5, erf(y) - p, (1 - p) - erfc(y))
        step = error * np.exp(y * y) * (math.sqrt(math.pi) / 2)
        y = y - step / (1 + y * step)
    return np.copysign(np.where(p < 1, y, np.where(p == 1, np.inf, np.nan)), x)


# Gamma function and its relatives -------------------------------------------------------------------------------------

# B₂, B₄, …: the coefficients of the Euler–Maclaurin and Stirling series.
_BERNOULLI = (
    *(1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730),
    *(7 / 6, -3617 / 510, 43867 / 798, -174611 / 330, 854513 / 138, -236364091 / 2730),
)


@_quiet
def zeta(x: Array, q: Array) -> Array:
    """Hurwitz's ζ(x, q) = Σ 1/(q + k)^x over k = 0, 1, …

    inf at x = 1, nan below and for q < 0 with a fractional x. At a pole, q = 0, -1, …, inf for even x and nan for odd.
    Below 0 the terms on both sides of 0 are summed apart: with p = ⌈q⌉ - q,
    ζ(x, q) = ζ(x, 1 - p) + (-1)^x ζ(x, p) - (-1)^x ζ(x, 1 - q).
    """
    even = np.fmod(x, 2) == 0
    p, sign = np.ceil(q) - q, np.where(even, 1, -1)
    below = (_hurwitz(x, 1 - p) + sign * _hurwitz(x, p)) - sign * _hurwitz(x, 1 - q)
    below = np.where(_is_integral(q), np.where(even, np.inf, np.nan), below)
    value = np.where(q > 0, _hurwitz(x, q), np.where(_is_integral(x) & np.isfinite(x), below, np.nan))
    value = np.where(np.isnan(q), q, value)
    return np.where(x > 1, value, np.where(x == 1, np.inf, np.nan))


def _hurwitz(s: Array, q: Array) -> Array:
    """ζ(s, q) for s > 1, q > 0."""
    return np.where(np.isinf(q), 0.0, np.power(q, 1 - s) * _hurwitz_ratio(s, q))


def _hurwitz_ratio(s: Array, q: Array) -> Array:
    """ζ(s, q) q^(s-1), which stays in range: ten terms, then the Euler–Maclaurin series at a = q + 10.

    1/q (Σ (1 + k/q)^-s + (a/q)^-s (1/2 + Σ B₂ⱼ/(2j)! s(s+1)…(s+2j-2) / a^(2j-1))) + (a/q)^(1-s) / (s-1)
    """
    a = q + 10
    tail = np.zeros_like(s * a)
    for j in range(len(_BERNOULLI), 0, -1):
        tail = _BERNOULLI[j - 1] / math.factorial(2 * j) + (s + (2 * j - 1)) / a * ((s + 2 * j) / a) * tail
    grown = np.log1p(10 / q)
    shrunk = np.exp(-s * grown)
    terms = np.where(shrunk == 0, 0.0, shrunk * (0.5 + s / a * tail))
    for k in range(9, 0, -1):
        terms = terms + np.exp(-s * np.log1p(k / q))
    return np.asarray((1 + terms) / q + np.exp((1 - s) * grown) / (s - 1))


# log Γ(2 + t) = (1 - γ) t + Σ (ζ(k) - 1) (-t)^k / k
_ORDERS = np.arange(2.0, 32.0)
_LGAMMA_AT_2 = (0.0, 1 - np.euler_gamma, *((-1) ** _ORDERS * zeta(_ORDERS, np.array(2.0)) / _ORDERS).tolist())
_STIRLING = tuple(b / (2 * j * (2 * j - 1)) for j, b in enumerate(_BERNOULLI, 1))


@_quiet
def lgamma(x: Array) -> Array:
    """log|Γ(x)|; +inf at the poles 0, -1, … and at ±inf.

    Taylor's series about 2, reached by Γ(x + 1) = x Γ(x), below 8; Stirling's series above; below -1/2 the reflection
    Γ(x) Γ(-x) = -π / (x sin πx). Beside its zeros on the negative axis the error is small only against log|x sin πx|.
    """
    mirror = x < -0.5
    y = np.where(mirror, -x, x)
    value = np.where(y < 8, _lgamma_near_2(y), _lgamma_stirling(y))
    sine = np.abs(np.sin(np.pi * (x - np.rint(x))))
    value = np.where(mirror, np.log(np.pi / (y * sine)) - value, value)
    return np.where(_is_integral(x) & (x <= 0) | np.isinf(x), np.inf, value)


def _lgamma_near_2(y: Array) -> Array:
    """log|Γ(y)| for -1/2 <= y < 8. Every subtraction that leads to t = y - 2 ± steps is exact."""
    steps = np.clip(np.floor(y - 1.5), 0, 6)
    product = np.where(y < 0.5, np.abs(y) * (1 + y), np.where(y < 1.5, y, 1.0))
    for k in range(1, 7):
        product = np.where(k <= steps, product * (y - k), product)
    t = np.where(y < 0.5, y, np.where(y < 1.5, y - 1, y - (steps + 2)))
    return np.asarray(_horner(t, _LGAMMA_AT_2) + np.where(y < 1.5, -1, 1) * np.log(product))


def _lgamma_stirling(y: Array) -> Array:
    """(y - ½)(log y - 1) - ½ + ½ log 2π + Σ B₂ⱼ / (2j(2j-1) y^(2j-1)), for y >= 8."""
    constant = 0.5 * math.log(2 * math.pi) - 0.5
    return np.asarray((y - 0.5) * (np.log(y) - 1) + (constant + _horner(1 / (y * y), _STIRLING) / y))


# The one positive zero x₀ of ψ as the sum of two doubles, and ψ⁽ᵏ⁾(x₀)/k! = (-1)^(k+1) ζ(k + 1, x₀).
_ZERO, _ZERO_LOW = 1.4616321449683622, 9.549995429965697e-17
_DIGAMMA_AT_ZERO = (0.0, *((-1) ** _ORDERS * zeta(_ORDERS, np.array(_ZERO))).tolist())
_DIGAMMA_LARGE = (0.0, *(-b / (2 * j) for j, b in enumerate(_BERNOULLI, 1)))


@_quiet
def digamma(x: Array) -> Array:
    """ψ = Γ'/Γ; nan at the poles 0, -1, … and at -inf.

    log x - 1/(2x) - Σ B₂ⱼ / (2j x^2j) from 10 up, reached by ψ(x + 1) = ψ(x) + 1/x; Taylor's series beside the zero
    1.46…; below -1/2 the reflection ψ(x) = ψ(1 - x) - π cot πx, whose zeros keep their absolute error only.
    """
    mirror = x < -0.5
    y = np.where(mirror, 1 - x, x)
    offset = (y - _ZERO) - _ZERO_LOW
    beside_zero = _horner(offset, _DIGAMMA_AT_ZERO)
    sunk = np.zeros_like(y)
    for _ in range(11):
        small = y < 10
        sunk = np.where(small, sunk + 1 / y, sunk)
        y = np.where(small, y + 1, y)
    value = np.log(y) - 0.5 / y + _horner(1 / (y * y), _DIGAMMA_LARGE) - sunk
    value = np.where(np.abs(offset) < 0.25, beside_zero, value)
    value = np.where(mirror, value - np.pi / np.tan(np.pi * (x - np.rint(x))), value)
    return np.where(_is_integral(x) & (x <= 0), np.nan, value)


_FACTORIALS = np.array([float(math.factorial(n)) for n in range(171)])


@_quiet
def polygamma(n: Array, x: Array) -> Array:
    """The n-th derivative of ψ: (-1)^(n+1) n! ζ(n + 1, x); ψ itself for n = 0, nan where n is not a natural number."""
    natural = _is_integral(n) & (n >= 0) & np.isfinite(n)
    order = np.where(natural, n, 1.0)
    factorial = np.where(order <= 170, _FACTORIALS[np.minimum(order, 170).astype(np.intp)], np.inf)
    power = np.power(x, -order)
    in_range = np.isfinite(factorial * power) & (power > 1e-307)
    scale = np.where(in_range, factorial * power, np.exp(lgamma(order + 1) - order * np.log(x)))
    positive = np.where(np.isinf(x), 0.0, scale * _hurwitz_ratio(order + 1, x))
    size = np.where(x > 0, positive, factorial * zeta(order + 1, x))
    value = np.where(np.fmod(order, 2) == 1, size, -size)
    return np.where(natural, np.where(order == 0, digamma(x), value), np.nan)


# Bessel functions -----------------------------------------------------------------------------------------------------


def bessel_i0e(x: Array) -> Array:
    """e^-|x| I₀(x), the modified Bessel function of order 0, scaled."""
    return _bessel_ie(0, x)


def bessel_i1e(x: Array) -> Array:
    """e^-|x| I₁(x), the modified Bessel function of order 1, scaled; odd."""
    return _bessel_ie(1, x)


@_quiet
def _bessel_ie(order: int, x: Array) -> Array:
    """Below 32 the mean of cosh(x cos θ), or of cos θ sinh(x cos θ), over a quarter turn: the integrand is periodic and
    analytic, so the midpoint rule converges geometrically. Above 32 Hankel's asymptotic series.
    """
    a, points = np.abs(x), 20
    near = np.zeros_like(a)
    for k in range(points):
        angle = (k + 0.5) * math.pi / (2 * points)
        c, gap = math.cos(angle), 2 * math.sin(angle / 2) ** 2  # gap = 1 - c
        both = np.expm1(-2 * c * a)
        near = near + np.exp(-gap * a) * (-c * both if order else 2 + both)
    term = np.ones_like(a)
    series = term
    for k in range(1, 25):
        term = term * ((2 * k - 1) ** 2 - 4 * order) / (8 * k * a)
        series = series + term
    value = np.where(a < 32, near / (2 * points), series / (math.sqrt(2 * math.pi) * np.sqrt(a)))
    return np.copysign(value, x) if order else value
