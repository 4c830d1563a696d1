"""The audit log: one JSON line per request that changes something or is refused, each with the hash of the one before.

`verify` walks the chain: it finds a line that was changed, removed or inserted. `smelt audit verify` calls it.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from smelt.errors import FileError
from smelt.files import open_regular

MOST_TEXT = 1000  # characters of a path or a message that is kept: clients choose them
START = "0" * 64


def _digest(record: dict[str, Any]) -> str:
    text = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Audit:
    """An append-only file. A file that is there already is verified, and continued."""

    def __init__(self, path: str) -> None:
        self._path, self._lock = path, threading.Lock()
        self._last, self._count = (START, 0) if not os.path.exists(path) else verify(path)
        self._fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._fd).st_size

    def write(self, event: str, **fields: Any) -> None:
        """Long texts are shortened."""
        fields = {name: each[:MOST_TEXT] if isinstance(each, str) else each for name, each in fields.items()}
        with self._lock, _lock_file(self._fd):
            self._catch_up()
            record = {"time": round(time.time(), 6), "event": event, **fields, "previous": self._last}
            self._last = _digest(record)
            self._count += 1
            line = json.dumps({**record, "hash": self._last}, ensure_ascii=False) + "\n"
            self._end += os.write(self._fd, line.encode())

    def _catch_up(self) -> None:
        """Continue after the lines that other processes have written."""
        size = os.fstat(self._fd).st_size
        if size != self._end:
            lines = os.pread(self._fd, size - self._end, self._end).splitlines()
            self._last, self._count, self._end = json.loads(lines[-1])["hash"], self._count + len(lines), size

    def close(self) -> None:
        with self._lock:
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1


@contextmanager
def _lock_file(file: int) -> Iterator[None]:
    """One process at a time, where the system can do that."""
    try:
        import fcntl
    except ImportError:  # Windows, where one process serves
        yield
        return
    fcntl.flock(file, fcntl.LOCK_EX)
    try:
        yield
    finally:
        fcntl.flock(file, fcntl.LOCK_UN)


def verify(path: str | Path) -> tuple[str, int]:
    """The last hash of an audit log and its number of lines."""
    last = START
    count = 0
    with os.fdopen(open_regular(path), encoding="utf-8") as file:
        for count, line in enumerate(file, 1):
            try:
                record = json.loads(line)
                stated = record.pop("hash")
                previous = record["previous"]
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise FileError(
                    f"{path}: line {count} is no record",
                    got=repr(line[:80]),
                    remedy="compare with a copy of the log from before the line",
                ) from error
            if previous != last:
                raise FileError(
                    f"{path}: the chain is broken at line {count}",
                    expected=f"previous {last[:16]}…",
                    got=f"{str(previous)[:16]}…: a line before it was changed or removed",
                    remedy="compare with a copy of the log from before the line",
                )
            if _digest(record) != stated:
                raise FileError(
                    f"{path}: line {count} was changed",
                    expected=f"hash {_digest(record)[:16]}…",
                    got=stated,
                    remedy="compare with a copy of the log from before the line",
                )
            last = stated
    return last, count
