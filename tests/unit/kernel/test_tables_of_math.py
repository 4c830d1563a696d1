"""Constants and formats that the kernels' C functions are made from, against values that others published."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from types import ModuleType

import ml_dtypes
import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.ir import special as reference
from smelt.kernel.math import narrow, payne_hanek, special
from smelt.kernel.math.payne_hanek import TWO_OVER_PI

# The first words of 2/π, as tables for the reduction of large arguments have them (Payne and Hanek).
WORDS = (0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561)


def test_two_over_pi() -> None:
    bits = 1400
    assert TWO_OVER_PI.bit_length() == bits
    for i, word in enumerate(WORDS):
        assert TWO_OVER_PI >> (bits - 32 * (i + 1)) & 0xFFFFFFFF == word
    assert TWO_OVER_PI / 2**bits == 2 / np.pi
    assert payne_hanek._WORDS[:10] == [0, 0, *WORDS]
    assert sum(word << 32 * (43 - i) for i, word in enumerate(payne_hanek._WORDS)) == TWO_OVER_PI >> (bits - 32 * 42)


def bernoulli(count: int) -> list[Fraction]:
    """B₂, B₄, … by the recurrence over all smaller ones."""
    found = [Fraction(1)]
    for n in range(1, 2 * count + 1):
        found.append(-sum((math.comb(n + 1, k) * found[k] for k in range(n)), Fraction(0)) / (n + 1))
    return found[2::2]


@pytest.mark.parametrize("tables", [special, reference], ids=["native", "reference"])
def test_series_of_bernoulli_numbers(tables: ModuleType) -> None:
    """Stirling's, digamma's and Euler and Maclaurin's series; those of the reference begin with a zero at times."""
    exact = bernoulli(len(tables._BERNOULLI))
    assert len(exact) >= 8
    assert list(tables._BERNOULLI) == [float(each) for each in exact]
    stirling = [each / (2 * j * (2 * j - 1)) for j, each in enumerate(exact, 1)]
    digamma = [-each / (2 * j) for j, each in enumerate(exact, 1)]
    np.testing.assert_allclose(tables._STIRLING, np.array(stirling, float), rtol=4e-16)
    np.testing.assert_allclose(tables._DIGAMMA_LARGE[-len(digamma) :], np.array(digamma, float), rtol=4e-16)
    assert list(tables._FACTORIALS) == [float(math.factorial(n)) for n in range(171)]


def test_series_at_zero() -> None:
    def check(table: Sequence[float], exact: list[Fraction]) -> None:
        assert [float(each) for each in exact] == list(table)

    check(special._ATAN, [Fraction((-1) ** k, 2 * k + 1) for k in range(1, 13)])
    check(special._SINH, [Fraction(1, math.factorial(2 * k + 1)) for k in range(1, 10)])
    check(special._COSH, [Fraction(1, math.factorial(2 * k)) for k in range(1, 11)])
    exact = [each / math.factorial(2 * j) for j, each in enumerate(bernoulli(12), 1)]
    np.testing.assert_allclose(special._EULER_MACLAURIN, np.array(exact, float), rtol=4e-16)
    for k in range(5):  # the sum of two doubles: the second one is what the first lacks
        assert math.isclose(math.tan(special._ANGLE[k]), k / 4, abs_tol=1e-15)
        assert math.isclose(special._STEEP[k], math.pi / 2 - special._ANGLE[k], rel_tol=1e-15)
        assert abs(special._ANGLE_LOW[k]) < math.ulp(special._ANGLE[k])
        assert abs(special._STEEP_LOW[k]) < math.ulp(special._STEEP[k])


@pytest.mark.parametrize("name", sorted(narrow.FORMATS))
def test_narrow_formats_are_those_of_ml_dtypes(name: str) -> None:
    """Width, largest number, least normal number and the pattern after the last finite one."""
    format, known = narrow.FORMATS[name], ml_dtypes.finfo(dtype(name).numpy)
    assert format.width == known.bits
    assert format.mantissa == known.nmant
    assert format.largest == float(known.max)
    assert 2.0 ** (1 - format.bias) == float(known.smallest_normal)
    storage = np.arange(1 << (format.width - 1)).astype(np.uint16 if format.width > 8 else np.uint8)
    numbers = storage.view(dtype(name).numpy).astype(np.float64)
    assert int(np.isfinite(numbers).sum()) == format.infinity
