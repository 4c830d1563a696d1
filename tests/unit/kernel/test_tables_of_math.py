"""Constants and formats that the kernels' C functions are made from, against values that others published."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from smelt.dtype import dtype
from smelt.kernel.math import narrow
from smelt.kernel.math.payne_hanek import TWO_OVER_PI

# The first words of 2/π, as tables for the reduction of large arguments have them (Payne and Hanek).
WORDS = (0xA2F9836E, 0x4E441529, 0xFC2757D1, 0xF534DDC0, 0xDB629599, 0x3C439041, 0xFE5163AB, 0xDEBBC561)


def test_two_over_pi() -> None:
    bits = 1400
    assert TWO_OVER_PI.bit_length() == bits
    for i, word in enumerate(WORDS):
        assert TWO_OVER_PI >> (bits - 32 * (i + 1)) & 0xFFFFFFFF == word
    assert TWO_OVER_PI / 2**bits == 2 / np.pi


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
