"""`emulated`: the device `cuda` without a GPU, for one test. With SMELT_CUDA_TESTS=gpu it is the first GPU.
For tests marked `races`, and with SMELT_CUDA_TESTS=races for all, it finds races of threads, blocks and launches."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from smelt.device import registry
from tests.cuda.emulated import EmulatedCuda, can_find_races, compiler, wants_races


class _Gpu:
    """A GPU in place of the emulator, whose counters it does not have."""

    def __init__(self, device: Any) -> None:
        self._device = device

    def __getattr__(self, name: str) -> Any:
        if name == "emulated":
            pytest.skip("counts what the emulator did")
        return getattr(self._device, name)


@pytest.fixture
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if os.environ.get("SMELT_CUDA_TESTS") == "gpu":
        yield _Gpu(registry.find_device("cuda"))
        return
    if compiler() is None:
        pytest.skip("no C++ compiler: pip install ziglang")
    is_marked = request.node.get_closest_marker("races") is not None
    device = EmulatedCuda(races=wants_races() or (is_marked and can_find_races()))
    monkeypatch.setitem(registry.KINDS, "cuda", lambda: device)
    registry.find_device.cache_clear()
    yield device
    registry.find_device.cache_clear()
