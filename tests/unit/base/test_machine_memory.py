"""How much memory there is: the machine's, or what a container allows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from smelt import buffer


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing that was measured before, and nothing that a patched system said after."""
    buffer.machine_memory.cache_clear()
    yield
    buffer.machine_memory.cache_clear()


def test_the_limit_of_a_container_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = buffer.machine_memory()
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    monkeypatch.setattr(buffer, "MEMORY_LIMITS", ((str(limit), b"", 1), (str(tmp_path / "absent"), b"", 1)))
    buffer.machine_memory.cache_clear()
    assert buffer.machine_memory() == 1 << 20
    limit.write_text("max\n")
    buffer.machine_memory.cache_clear()
    assert whole <= buffer.machine_memory()


def test_kilobytes_are_kilobytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "meminfo"
    info.write_text("MemFree:  7 kB\nMemTotal:      2048 kB\n")
    monkeypatch.setattr(buffer, "MEMORY_LIMITS", ((str(info), *buffer.MEMORY_LIMITS[0][1:]),))
    assert buffer.machine_memory() == 2 << 20
