"""Random inputs of `smelt bench --url`: as the server's metadata says."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.cli.load import _inputs
from smelt.client.wire import NUMPY
from smelt.errors import UnsupportedError


@pytest.mark.parametrize("kind", NUMPY)
def test_every_type_has_random_numbers(kind: str, seed: int) -> None:
    """Floats are of both signs, and no whole numbers; integers are 0 and 1, which are indices of nearly anything."""
    metadata = {"inputs": [{"name": "x", "datatype": kind, "shape": [40, -1, -1]}]}
    x = _inputs(metadata, {"x.2": 3, "y.1": 9}, np.random.default_rng(seed))["x"]
    assert (x.dtype, x.shape) == (NUMPY[kind], (40, 1, 3))
    numbers = x.astype(np.float64)
    if kind.startswith(("FP", "BF")):
        assert numbers.min() < 0 < numbers.max()
        assert (numbers != np.rint(numbers)).mean() > 0.8
    else:
        assert set(numbers.reshape(-1)) == {0.0, 1.0}


@pytest.mark.parametrize("kind", ["BYTES", "FP8"])
def test_types_without_random_numbers(kind: str) -> None:
    metadata = {"inputs": [{"name": "x", "datatype": kind, "shape": [1]}]}
    with pytest.raises(UnsupportedError, match=f"x: no random inputs of {kind}"):
        _inputs(metadata, {}, np.random.default_rng(0))
