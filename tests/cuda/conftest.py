"""`emulated`: the device `cuda` without a GPU, for one test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from smelt.device import registry
from tests.cuda.emulated import EmulatedCuda, compiler


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[EmulatedCuda]:
    if compiler() is None:
        pytest.skip("no C++ compiler: pip install ziglang")
    device = EmulatedCuda()
    monkeypatch.setitem(registry.KINDS, "cuda", lambda: device)
    registry.find_device.cache_clear()
    yield device
    registry.find_device.cache_clear()
