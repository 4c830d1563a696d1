"""Gradients of random programs agree with JAX's; SMELT_SEARCH=1000 compares that many."""

import os

from tests.property.grad_programs import search

PROGRAMS = int(os.environ.get("SMELT_SEARCH", "60"))


def test_gradients_of_random_programs_agree_with_jax(seed: int):
    differences = search(seed, PROGRAMS)
    assert not differences, "\n\n".join(differences[:3])
