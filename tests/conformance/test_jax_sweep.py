"""A random part of the JAX sweep, and tests of how it compares: it must notice what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smelt.errors import SmeltError

EVERY = 10  # one case in this many
NATIVE_EVERY = 26


@pytest.fixture(scope="module")
def sweep() -> Any:
    pytest.importorskip("jax", reason="JAX is the oracle of this test")
    import tests.conformance.jax_sweep as sweep

    return sweep


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_programs_of_jax_give_its_results(sweep, seed):
    outcomes = [sweep.run_case(case, seed) for case in sweep.chosen("", EVERY, seed)]
    failed = [f"{each.status} {each.name}: {each.detail}" for each in outcomes if each.status != "passed"]
    assert len(outcomes) > 200
    assert not failed, "\n".join(failed)


@pytest.mark.timeout(600)
def test_programs_of_jax_on_the_native_engine(sweep, seed):
    outcomes = list(sweep.run_natively(sweep.chosen("", NATIVE_EVERY, seed), seed))
    failed = [f"{each.status} {each.name}: {each.detail}" for each in outcomes if each.status != "passed"]
    assert len(outcomes) > 100
    assert not failed, "\n".join(failed)


@pytest.mark.parametrize("name", ["binary/add_float32", "folds/cumsum_int32", "networks/lstm", "exports/flatten"])
def test_one_case_of_each_kind(sweep, seed, name):
    (case,) = [case for case in sweep.cases() if case.name == name]
    outcome = sweep.run_case(case, seed)
    assert outcome.status == "passed", outcome.detail


def test_wrong_results_are_noticed(sweep, seed):
    (case,) = [case for case in sweep.cases() if case.name == "binary/add_float32"]
    real = sweep.run
    try:
        sweep.run = lambda program, args: tuple(np.nextafter(x, np.float32(7)) for x in real(program, args))
        assert sweep.run_case(case, seed).status == "results"
    finally:
        sweep.run = real


def test_sizes_that_break_a_constraint_are_refused(sweep):
    export = pytest.importorskip("jax.export")
    jax = pytest.importorskip("jax")
    scope = export.SymbolicScope(("b >= 3",))
    shape = export.symbolic_shape("b, 4", scope=scope)
    exported = export.export(jax.jit(lambda x: x[2:]))(jax.ShapeDtypeStruct(shape, np.float32))
    program = sweep.parse(exported.mlir_module())
    assert sweep.run(program, [np.ones((3, 4), np.float32)])[0].shape == (1, 4)
    with pytest.raises(SmeltError, match=">= 3"):
        sweep.run(program, [np.ones((2, 4), np.float32)])
    with pytest.raises(SmeltError, match=r">= 3|b - 3"):
        sweep.run(sweep.optimise(program), [np.ones((2, 4), np.float32)])


@pytest.mark.parametrize(
    ("got", "want", "ulp", "scaled", "wrong"),
    [
        (1.0, 1.0, 0, 0, False),
        (0.0, -0.0, 0, 0, True),
        (0.0, -0.0, 1, 0, False),
        (np.nan, np.nan, 0, 0, False),
        (np.nan, 1.0, 9, 9, True),
        (np.inf, 3e38, 9, 9, True),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 0, 0, True),
        (1.0, np.nextafter(np.float32(1), np.float32(2)), 1, 0, False),
        (1e-45, -1e-45, 2, 0, False),
        (1e-45, -1e-45, 1, 0, True),
        (1.0, 1.00001, 0, 100, False),
        (1.0, 1.00001, 0, 10, True),
        (1e-40, 0.0, 0, 0, False),  # JAX flushes it
        (0.0, 1e-37, 0, 0, True),
    ],
)
def test_distances(sweep, got, want, ulp, scaled, wrong):
    a, b = np.array([got], np.float32), np.array([want], np.float32)
    assert bool(sweep.far_apart(a, b, sweep.Tolerance(ulp, scaled))) == wrong


def test_types_are_compared(sweep):
    assert sweep.far_apart(np.zeros(3, np.float32), np.zeros(3, np.float64), sweep.Tolerance(9, 9))
    assert sweep.far_apart(np.zeros((3, 1), np.float32), np.zeros(3, np.float32), sweep.Tolerance(9, 9))
    assert sweep.far_apart(np.array([1, 2]), np.array([1, 3]), sweep.Tolerance(9, 9))
