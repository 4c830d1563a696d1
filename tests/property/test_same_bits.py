"""What the native engine promises about bits: the number of threads, the batch and open sizes change none of them.

Loops are cut into far smaller pieces than usual, so that small models run on several threads at every step.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from smelt.device import cpu
from smelt.device.runtime import Runtime, runtime
from smelt.dtype import Array
from smelt.engine import native
from smelt.engine.native import NativeEngine, compile_all
from smelt.errors import SmeltError
from smelt.kernel import emit_c
from tests.property.models import MODELS

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runtime]:
    """The runtime with its number of threads restored afterwards; a few elements are worth a core."""
    monkeypatch.setattr(emit_c, "WORTH", 16)
    found = runtime()
    before = found.threads
    yield found
    found.set_threads(before)


def bits(arrays: tuple[Array, ...]) -> list[bytes]:
    return [array.tobytes() for array in arrays]


@pytest.mark.parametrize("name", MODELS)
def test_the_number_of_threads_changes_no_bit(name: str, seed: int, pool: Runtime) -> None:
    """Weights are prepared and inputs are run with the same number of threads, several times each."""
    model = MODELS[name]
    compiled = NativeEngine().compile(model.open_program())
    weights = model.values(seed)
    random = np.random.default_rng(seed)
    calls = [model.arguments(random, sizes) for sizes in model.tried]
    want: list[list[bytes]] = []
    for threads in (1, 2, 5, 5):
        pool.set_threads(threads)
        bound = compiled.prepare(weights)
        got = [bits(bound(*call)) for call in calls]
        assert pool.helpers == threads - 1
        want = want or got
        assert got == want, [i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b]


@pytest.mark.parametrize("name", [name for name, model in MODELS.items() if model.by_row])
def test_a_row_alone_is_the_row_of_a_batch(name: str, seed: int, pool: Runtime) -> None:
    model = MODELS[name]
    bound = NativeEngine().compile(model.open_program()).prepare(model.values(seed))
    random = np.random.default_rng(seed)
    for sizes in model.tried:
        call = model.arguments(random, {**sizes, "B": 14})
        whole = bound(*call)
        for i in (0, 5, 13):
            alone = bound(*(each[i : i + 1] for each in call))
            assert bits(alone) == bits(tuple(each[i : i + 1] for each in whole)), (sizes, i)


@pytest.mark.parametrize("name", MODELS)
def test_open_sizes_give_what_fixed_ones_give(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """One program for every size, and none is compiled when a new size comes."""
    model = MODELS[name]
    weights = model.values(seed)
    open_one = NativeEngine().compile(model.open_program()).prepare(weights)
    fixed = compile_all([model.program(sizes) for sizes in model.tried])
    built: list[str] = []
    monkeypatch.setattr(native.cpu, "build", lambda source, *flags: built.append(source))
    random = np.random.default_rng(seed)
    for sizes, each in zip(model.tried, fixed, strict=True):
        assert not isinstance(each, SmeltError), each
        call = model.arguments(random, sizes)
        assert bits(open_one(*call)) == bits(each.prepare(weights)(*call)), sizes
    assert not built


@pytest.mark.parametrize("name", MODELS)
def test_calls_take_no_memory(name: str, seed: int, pool: Runtime) -> None:
    """Sizes that came before, in any order, and a program for one size."""
    model = MODELS[name]
    weights = model.values(seed)
    made = compile_all([model.open_program(), model.program(model.tried[0])])
    random = np.random.default_rng(seed)
    calls = [model.arguments(random, sizes) for sizes in model.tried]
    pool.set_threads(2)
    for i, each in enumerate(made):
        assert not isinstance(each, SmeltError), each
        bound = each.prepare(weights)
        mine = calls if i == 0 else calls[:1]
        for call in mine:
            bound(*call)
        before = pool.allocations
        for turn in range(100):
            bound(*mine[turn * 7 % len(mine)])
        assert pool.allocations == before
