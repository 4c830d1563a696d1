"""The table of the JAX sweep: `cases()` gives all of it. `jax_sweep.py` lowers, runs and compares the cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tests.conformance.jax_cases.case import Arg, Case, Tolerance, kind, oracle
from tests.conformance.jax_cases.elementwise import binary, converts, unary
from tests.conformance.jax_cases.exports import exports
from tests.conformance.jax_cases.numeric import randoms, solvers, transforms
from tests.conformance.jax_cases.programs import control, networks
from tests.conformance.jax_cases.structure import folds, indexing, moves, products, sums

__all__ = ["Arg", "Case", "Tolerance", "cases", "kind", "oracle"]

GROUPS: tuple[Callable[[], Iterator[Case]], ...] = (
    unary, binary, converts, moves, folds, sums, products, indexing,
    randoms, transforms, solvers, control, networks, exports,
)  # fmt: skip


def cases() -> list[Case]:
    """The whole table; names are unique."""
    found: dict[str, Case] = {}
    for group in GROUPS:
        for case in group():
            name = f"{group.__name__}/{case.name}"
            assert name not in found, name
            found[name] = replace(case, name=name)
    return list(found.values())
