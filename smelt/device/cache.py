"""Compiled programs on disk: a folder of files named KEY-DIGEST.so, by what made them and by what is in them.

`device.cpu` asks for a key and puts what it has made; `smelt cache` lists and clears. Any number of processes may use
one folder: entries appear whole (temporary name, sync, rename) and are checked whenever they are used. Nothing that
goes wrong here is an error: an entry that cannot be kept is made again next time.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from smelt.buffer import parse_bytes
from smelt.frozen import Frozen

if TYPE_CHECKING:  # imported where it is used: whoever runs a bundle does not need it
    from pathlib import Path

LIMIT = 2 << 30
STALE = 3600.0  # seconds after which an unfinished file belongs to a process that is gone
_ENTRY = r"([0-9a-f]{40})-([0-9a-f]{32})\.so"
_UNFINISHED = r"[0-9a-f]{40}-[^.]*\.part"


class Entry(Frozen):
    """One compiled program: `used` is when it was made or last asked for, in seconds since 1970."""

    path: Path
    key: str
    digest: str
    bytes: int
    used: float


class Cache(Frozen):
    """A folder with at most `limit` bytes of entries; the least recently used go first."""

    folder: Path
    limit: int = LIMIT

    def find(self, key: str) -> Path | None:
        """The entry of a key, marked as used. One whose content is not what its name says is removed."""
        for entry in self.entries(key):
            try:
                if digest_of(entry.path) == entry.digest:
                    with suppress(OSError):  # a folder that cannot be written serves as well
                        os.utime(entry.path)
                    return entry.path
            except FileNotFoundError:  # another process removed it
                continue
            except OSError:  # not readable: as good as absent
                pass
            with suppress(OSError):
                entry.path.unlink()
        return None

    def put(self, key: str, made: Path) -> Path | None:
        """Keep a file under a key; None, with a warning the first time, where the folder does not take it."""
        size = made.stat().st_size
        if size > self.limit:
            return None
        there = self.find(key)  # another process may have been faster
        if there is not None:
            return there
        try:
            final = self._keep(key, made)
        except OSError as error:
            _warn(self.folder, error.strerror or type(error).__name__)
            return None
        self._evict(final)
        return final

    def _keep(self, key: str, made: Path) -> Path:
        import shutil
        import tempfile
        from pathlib import Path

        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        final = self.folder / f"{key}-{digest_of(made)}.so"
        handle, name = tempfile.mkstemp(dir=self.folder, prefix=f"{key}-", suffix=".part")
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as target, made.open("rb") as source:
                shutil.copyfileobj(source, target)
                target.flush()
                os.fsync(target.fileno())
            part.replace(final)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        _sync(self.folder)
        return final

    def _evict(self, newest: Path) -> None:
        """Remove what is over the limit, and what killed processes left."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self.limit:
                break
            if entry.path != newest:
                with suppress(OSError):
                    entry.path.unlink()
                    total -= entry.bytes
        self._sweep(time.time() - STALE)

    def _sweep(self, before: float) -> None:
        for each in _files(self.folder):
            with suppress(OSError):
                if re.fullmatch(_UNFINISHED, each.name) and each.stat().st_mtime < before:
                    each.unlink()

    def entries(self, key: str = "") -> Iterator[Entry]:
        """What is there, in no order; files that are not ours are passed over."""
        for path in _files(self.folder):
            named = re.fullmatch(_ENTRY, path.name)
            if named and (not key or named[1] == key):
                try:
                    facts = path.stat()
                except OSError:  # removed meanwhile
                    continue
                yield Entry(path, named[1], named[2], facts.st_size, facts.st_mtime)

    def clear(self) -> tuple[int, int]:
        """Remove every entry and every unfinished file; how many entries and bytes that were. The rest stays."""
        count = freed = 0
        for entry in list(self.entries()):
            with suppress(FileNotFoundError):
                entry.path.unlink()
                count, freed = count + 1, freed + entry.bytes
        self._sweep(float("inf"))
        return count, freed


def default() -> Cache:
    """The cache that the environment names: SMELT_CACHE_DIR, SMELT_CACHE_LIMIT (2GiB where it is not set)."""
    from pathlib import Path

    chosen = os.environ.get("SMELT_CACHE_DIR")
    folder = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smelt"
    limit = os.environ.get("SMELT_CACHE_LIMIT")
    return Cache(folder, parse_bytes(limit, "SMELT_CACHE_LIMIT") if limit else LIMIT)


def digest_of(path: Path) -> str:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _files(folder: Path) -> list[Path]:
    from pathlib import Path

    try:
        return [Path(each.path) for each in os.scandir(folder) if each.is_file(follow_symlinks=False)]
    except OSError:  # no folder yet, or not one of ours to read
        return []


def _sync(folder: Path) -> None:
    """Make a rename last; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


@cache
def _warn(folder: Path, why: str) -> None:
    """Say once per folder and reason that nothing is kept."""
    import logging

    logging.getLogger("smelt").warning(
        "compiled programs are not kept: %s does not take them (%s); SMELT_CACHE_DIR names another folder", folder, why
    )
