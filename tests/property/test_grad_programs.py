"""Gradients of random programs agree with JAX's; SMELT_SEARCH=1000 compares that many."""

import os

import pytest

from smelt.device import pjrt
from smelt.engine.native import NativeEngine
from tests.property.grad_programs import search, search_engines

PROGRAMS = int(os.environ.get("SMELT_SEARCH", "60"))


def test_gradients_of_random_programs_agree_with_jax(seed: int):
    differences = search(seed, PROGRAMS)
    assert not differences, "\n\n".join(differences[:3])


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_engines_agree_on_gradients_of_random_programs(seed: int):
    differences = search_engines(seed, PROGRAMS // 3, 0 if pjrt.missing() else PROGRAMS // 10)
    assert not differences, "\n\n".join(differences[:3])
