"""Bit reproducibility of the native engine: threads, batch size and dynamic dimensions change no bit.

Held on every processor that this machine can stand in for. Loops are cut into far smaller pieces than usual, so that
small models run on several threads at every step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Runtime, runtime
from smelt.dtype import Array
from smelt.engine.native import compile_all
from smelt.errors import DeviceError, SmeltError
from smelt.ir.interpret import run
from smelt.kernel.loops import parallelise
from smelt.run.executable import NativeExecutable
from tests.property.models import MODELS

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

TARGETS = ("native", "avx512", "avx2", "plain")
ROUNDING = 1e-5  # of a whole small model, relative to its largest result


@cache
def compiled(target: str) -> Mapping[str, NativeExecutable]:
    """Every model with dynamic dimensions, for a target; few elements are enough for another core."""
    usual, parallelise.ELEMENTS_PER_CORE = parallelise.ELEMENTS_PER_CORE, 16
    try:
        made = compile_all([model.dynamic_program() for model in MODELS.values()], cpu.target(target))
    finally:
        parallelise.ELEMENTS_PER_CORE = usual
    found = {}
    for name, each in zip(MODELS, made, strict=True):
        if isinstance(each, DeviceError) and "cannot run code for the target" in str(each):
            pytest.skip(f"this machine cannot run {target}")
        assert not isinstance(each, SmeltError), each
        found[name] = each
    return found


@pytest.fixture
def pool() -> Iterator[Runtime]:
    """The runtime, with its number of threads restored afterwards."""
    found = runtime()
    before = found.threads
    yield found
    found.set_threads(before)


def bits(arrays: tuple[Array, ...]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("target", TARGETS)
def test_the_number_of_threads_changes_no_bit(target: str, seed: int, pool: Runtime) -> None:
    """Weights are prepared and inputs are run with the same number of threads; and the answers are right."""
    random = np.random.default_rng(seed)
    for name, executable in compiled(target).items():
        model = MODELS[name]
        weights = model.values(seed)
        calls = [model.arguments(random, sizes) for sizes in model.tried]
        want: list[list[bytes]] = []
        for threads in (1, 2, 5, 5):
            pool.set_threads(threads)
            bound = executable.prepare(weights)
            got = [bits(bound(*call)) for call in calls]
            assert pool.helpers == threads - 1
            want = want or got
            assert got == want, [name, *(sizes for sizes, a, b in zip(model.tried, got, want, strict=True) if a != b)]
        stored = [weights[each].numpy() for each in model.weights]
        for result, right in zip(bound(*calls[0]), run(model.dynamic_program(), [*stored, *calls[0]]), strict=True):
            error = np.abs(result.astype(np.float64) - right.astype(np.float64)).max(initial=0)
            assert error <= ROUNDING * np.abs(right.astype(np.float64)).max(initial=0), name


@pytest.mark.parametrize("target", TARGETS)
def test_a_row_is_independent_of_its_batch(target: str, seed: int, pool: Runtime) -> None:
    random = np.random.default_rng(seed)
    for name, executable in compiled(target).items():
        model = MODELS[name]
        if not model.by_row:
            continue
        bound = executable.prepare(model.values(seed))
        for sizes in model.tried:
            call = model.arguments(random, {**sizes, "B": 14})
            whole = bound(*call)
            for i in (0, 5, 13):
                alone = bound(*(each[i : i + 1] for each in call))
                assert bits(alone) == bits(tuple(each[i : i + 1] for each in whole)), (name, sizes, i)


@pytest.mark.parametrize("name", MODELS)
def test_dynamic_sizes_give_the_bits_of_static_ones(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for every size, and none is compiled when a new size comes."""
    model = MODELS[name]
    weights = model.values(seed)
    open_one, *fixed = compile_all([model.dynamic_program(), *(model.program(sizes) for sizes in model.tried)])
    assert not isinstance(open_one, SmeltError), open_one
    bound = open_one.prepare(weights)
    built: list[object] = []
    monkeypatch.setattr(cpu, "build", lambda *given, **more: built.append(given))
    random = np.random.default_rng(seed)
    for sizes, each in zip(model.tried, fixed, strict=True):
        assert not isinstance(each, SmeltError), each
        call = model.arguments(random, sizes)
        assert bits(bound(*call)) == bits(each.prepare(weights)(*call)), sizes
    assert not built


@pytest.mark.parametrize("name", MODELS)
def test_calls_take_no_memory(name: str, seed: int, pool: Runtime) -> None:
    """Sizes that came before, in any order; one size again and again."""
    model = MODELS[name]
    random = np.random.default_rng(seed)
    calls = [model.arguments(random, sizes) for sizes in model.tried]
    pool.set_threads(2)
    bound = compiled("native")[name].prepare(model.values(seed))
    for mine in (calls, calls[:1]):
        for call in mine:
            bound(*call)
        before = pool.allocations
        for turn in range(100):
            bound(*mine[turn * 7 % len(mine)])
        assert pool.allocations == before
