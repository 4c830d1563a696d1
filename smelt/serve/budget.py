"""The memory budget of a server: how much each model takes, and which one is unloaded when another needs room."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from smelt.buffer import bytes_text
from smelt.errors import MemoryLimitError
from smelt.serve.isolation.remote import RemoteModel
from smelt.serve.opening import held_bytes


def estimate(path: Path) -> int:
    """Bytes that a model will take, estimated from its files."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return sum(each.stat().st_size for each in files)


def measure(worker: RemoteModel | None, loaded: Any, expected: int) -> int:
    """Bytes that a loaded model takes: of its worker process, else what the engine counts, at least the estimate."""
    if worker is not None:
        return worker.pss
    return max(held_bytes(loaded), expected)


class Budget:
    """Bytes for all models together. None: unlimited."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit

    def check_alone(self, name: str, needed: int) -> None:
        """Refuse what would not fit if it were the only one."""
        if self.limit is not None and needed > self.limit:
            raise MemoryLimitError(
                f"{name} needs more memory than the server may take",
                expected=f"at most {bytes_text(self.limit)}",
                got=bytes_text(needed),
                remedy="raise memory_budget",
            )

    def excess(self, held: Iterable[int], needed: int) -> int:
        """Bytes that must become free before `needed` more are there; at most 0: they are."""
        return 0 if self.limit is None else sum(held) + needed - self.limit
