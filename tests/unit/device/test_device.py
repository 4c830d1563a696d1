"""The seam between the native engine and its devices: a second device is one class and one line of the registry.

`Loopback` is the processor behind a memory of its own: arrays have to be copied there, results are its buffers. It
stands in for a GPU: loading, compiling, tensors, donated state, limits, bundles and tuning work without another change.
"""

from __future__ import annotations

import ctypes
from collections.abc import Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.buffer import Buffer, HostBuffer
from smelt.bundle.write import write
from smelt.device import cpu, cpu_device, host, registry, runtime
from smelt.device.api import Arrays
from smelt.device.cpu_device import Cpu
from smelt.device.entry import Entry
from smelt.dtype import Array, dtype
from smelt.engine import engines, platform, tuned
from smelt.engine.store import default_targets, recompile, store_weights
from smelt.errors import DeviceError, RunError, SmeltError, UnsupportedError
from smelt.run.load import every_code
from smelt.shape import Shape
from smelt.stop import Stop
from smelt.target import Target

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

DIGITS = "smelt/assets/digits.onnx"


class There:
    """A buffer of the device: NumPy cannot look at it."""

    def __init__(self, array: Array) -> None:
        self.client = "loopback"
        self.shape = Shape.of(dtype(array.dtype), array.shape)
        self._held: Array | None = array

    @property
    def held(self) -> Array:
        if self._held is None:
            raise RunError("the buffer was donated", remedy=".copy()")
        return self._held

    @property
    def dtype(self) -> Any:
        return self.held.dtype

    @property
    def nbytes(self) -> int:
        return self.held.nbytes

    def give_away(self) -> None:
        self._held = None

    def wait(self) -> There:
        return self

    def copy(self) -> There:
        return There(self.held.copy())

    def numpy(self) -> Array:
        LOOPBACK.copies += 1
        return self.held.copy()

    def delete(self) -> None:
        self._held = None

    def __array__(self, *_: object) -> Array:
        raise TypeError("not in host memory")

    def __await__(self) -> Generator[Any, Any, There]:
        yield
        return self


class ThereBound:
    def __init__(self, bound: runtime.Bound, donated: Sequence[int], reused: Mapping[int, int]) -> None:
        self._bound, self._donated, self._reused = bound, donated, reused
        self.memory, self.cancel, self.trim, self.close = bound.memory, bound.cancel, bound.trim, bound.close
        self.call_bytes = bound.call_bytes

    def __call__(self, inputs: Arrays, out: Arrays | None = None, stop: Stop | None = None) -> Arrays:
        arrays = tuple(LOOPBACK.bring(each) for each in inputs)
        places = None if out is None else tuple(each.held for each in out)
        results = self._bound(arrays, places, stop)
        for i in self._donated:
            if isinstance(inputs[i], There):
                inputs[i].give_away()
        return tuple(map(There, results)) if out is None else out


class ThereProgram:
    def __init__(self, program: runtime.Program) -> None:
        self._program = program
        self.arguments, self.results = program.arguments, program.results
        self.donated, self.reused, self.constant_bytes = program.donated, program.reused, program.constant_bytes

    def bind(self, arrays: Arrays, sizes: Mapping[str, int] | None = None, account: Any = None) -> ThereBound:
        bound = self._program.bind([LOOPBACK.bring(each) for each in arrays], sizes or {}, account)
        first = len(arrays)
        return ThereBound(bound, [i - first for i in self.donated], self.reused)


class Loopback(Cpu):
    name = "loopback"
    has_own_memory = True
    baseline = None

    def __init__(self) -> None:
        self.copies = 0

    def bring(self, given: Any) -> Array:
        """What memory of this device holds: from the host it is a copy."""
        if isinstance(given, There):
            return given.held
        self.copies += 1
        return np.array(given.numpy() if isinstance(given, HostBuffer) else given)

    @property
    def model(self) -> str:
        return "A Mirror"

    @property
    def targets(self) -> Mapping[str, Target]:
        return {f"loopback_{name}": each.replace(device="loopback") for name, each in cpu.TARGETS.items()}

    def target(self, name: str | None = None) -> Target:
        short = None if name is None else name.removeprefix("loopback_")
        return super().target(short).replace(device="loopback")

    def default_targets(self, *, int8: bool, bf16: bool) -> tuple[str, ...]:
        best, *_ = super().default_targets(int8=False, bf16=False)
        return (f"loopback_{best}",)

    def program(self, module: ctypes.CDLL, entry: Entry, constants: Sequence[bytes | Array]) -> Any:
        return ThereProgram(super().program(module, entry, constants))

    def allocate(self, wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]]) -> Arrays:
        return tuple(map(There, super().allocate(wanted)))

    def copy(self, buffer: HostBuffer) -> Buffer:
        return There(self.bring(buffer))

    def stats(self) -> dict[str, float]:
        return {"bytes_in_use": 7.0}


LOOPBACK = Loopback()


@pytest.fixture
def loopback(monkeypatch: pytest.MonkeyPatch) -> Iterator[Loopback]:
    monkeypatch.setitem(registry.KINDS, "loopback", lambda: LOOPBACK)
    registry.find_device.cache_clear()
    yield LOOPBACK
    registry.find_device.cache_clear()


@pytest.fixture(scope="module")
def pixels() -> Array:
    return np.random.default_rng(3).random((5, 64), np.float32)


@pytest.fixture(scope="module")
def expected(pixels: Array) -> Array:
    found: Array = smelt.load(DIGITS, engine="native")(pixels)["probabilities"]
    return found


def test_a_model_runs_there(loopback: Loopback, pixels: Array, expected: Array) -> None:
    with smelt.load(DIGITS, device="loopback", engine="native") as model:
        assert model.engine == "native"
        np.testing.assert_array_equal(model(pixels)["probabilities"], expected)
    assert [engine.name for engine in engines("loopback")] == ["native"], "no plug-in of XLA for it"
    assert platform("loopback").stats() == {"bytes_in_use": 7.0}


def test_tensors_stay_there(loopback: Loopback) -> None:
    """Weights and state are copied once; what a call gives goes into the next one where it is."""

    def step(state: smelt.Tensor, weight: smelt.Tensor) -> smelt.Tensor:
        return state + weight

    shape = Shape("f32", 8)
    where = smelt.platform("loopback", "native")
    added = smelt.compile(step, shape, shape, platform=where, donate="state")
    state: Any = HostBuffer.of(np.zeros(8, np.float32)).to_device(where)
    weight = HostBuffer.of(np.arange(8, dtype=np.float32)).to_device(where)
    before = loopback.copies
    for _ in range(3):
        used, state = state, added(state, weight)
    assert loopback.copies == before
    assert isinstance(state, There)
    np.testing.assert_array_equal(state.numpy(), 3 * np.arange(8))
    with pytest.raises(RunError, match="donated"):
        used.numpy()
    kept = added(state, weight, keep=True)
    np.testing.assert_array_equal(kept.numpy() - state.numpy(), np.arange(8))


def test_a_memory_limit_is_counted_there(loopback: Loopback, pixels: Array, expected: Array) -> None:
    with smelt.load(DIGITS, device="loopback", engine="native", memory_limit="64MB") as model:
        np.testing.assert_array_equal(model(pixels)["probabilities"], expected)
    with pytest.raises(SmeltError, match="memory"):
        smelt.load(DIGITS, device="loopback", engine="native", memory_limit="10KB")


def test_bundles_hold_code_for_it(loopback: Loopback, pixels: Array, expected: Array, tmp_path: Path) -> None:
    path = tmp_path / "digits.smelt"
    (best,) = default_targets(device=loopback)
    targets = [best, "plain"]
    program, weights = smelt.read(DIGITS)
    write(path, store_weights(program, weights, targets))
    with smelt.load(path, device="loopback") as model:
        np.testing.assert_allclose(model(pixels)["probabilities"], expected, rtol=2e-5, atol=1e-7)
        assert isinstance(model._executable(pixels)[0], There)
    with smelt.load(path) as model:
        np.testing.assert_allclose(model(pixels)["probabilities"], expected, rtol=2e-5, atol=1e-7)
        assert isinstance(model._executable(pixels)[0], np.ndarray)
    with smelt.load(DIGITS, device="loopback", engine="native") as model:
        data = model.serialize()
    assert b'"device": "loopback"' in data or b'"device":"loopback"' in data


def test_code_for_a_device_that_is_not_known(loopback: Loopback, tmp_path: Path) -> None:
    """A bundle from elsewhere says what it is for, and is compiled again for the processor."""
    path = tmp_path / "digits.smelt"
    with smelt.load(DIGITS, device="loopback", engine="native") as model:
        model.save(path)
    registry.KINDS.pop("loopback")
    registry.find_device.cache_clear()
    assert {each.absent for each in every_code(path, recompile)} == {"for the device loopback"}
    with smelt.load(path) as model:
        assert model(np.zeros((1, 64), np.float32))["probabilities"].shape == (1, 10)


def test_measurements_are_of_a_device(loopback: Loopback) -> None:
    here = cpu.target("plain")
    assert tuned.here(here).device == "cpu"
    there = tuned.here(here.replace(device="loopback"))
    assert (there.device, there.model) == ("loopback", "A Mirror")


# ---- names ----


def test_what_the_native_engine_has_no_device_for() -> None:
    with pytest.raises(DeviceError, match="the native engine has no device tpu") as caught:
        registry.find_device("tpu")
    assert "expected cpu" in str(caught.value)
    with pytest.raises(UnsupportedError, match="does not run on cuda"):
        platform("cuda", "reference")
    for name in ("cup", "", "cuda:x"):
        with pytest.raises(SmeltError, match="device") as failed:
            platform(name)
        assert "cpu" in str(failed.value)


@pytest.mark.parametrize(
    ("listed", "expected"),
    [
        ([(1, "Data", 48 << 10), (1, "Instruction", 32 << 10), (2, "Unified", 2 << 20)], (48 << 10, 2 << 20)),
        ([(3, "Unified", 8 << 20), (2, "Unified", 1 << 20), (1, "Data", 1 << 15)], (1 << 15, 1 << 20, 8 << 20)),
        ([(1, "Data", 48 << 10)], None),  # a container may hide the others
        ([(1, "Data", 0), (2, "Unified", 1 << 20)], None),
        ([], None),
    ],
)
def test_a_target_has_the_caches_of_this_machine(
    listed: list[tuple[int, str, int]], expected: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host, "caches", lambda: iter(listed))
    cpu_device._caches.cache_clear()
    try:
        assert Cpu().target("native").cache_bytes == (expected or cpu.target("native").cache_bytes)
        assert Cpu().target("avx2").cache_bytes == cpu.TARGETS["avx2"].cache_bytes
        assert all(len(each.cache_bytes) >= 2 for each in cpu.TARGETS.values())
    finally:
        cpu_device._caches.cache_clear()


def test_targets_are_found_by_name() -> None:
    assert registry.find_target("avx2").vector_bytes == 32
    with pytest.raises(DeviceError, match="unknown target") as caught:
        registry.find_target("sm_11")
    assert "avx2" in str(caught.value)
    assert registry.find_target("sm_90").kind == "simt"
    kinds = {"cpu": ("cpu", "c"), "cuda": ("simt", "cuda")}
    for name, target in registry.all_targets().items():
        told = target.as_json()
        assert (told["kind"], told["language"]) == kinds[told["device"]], name
