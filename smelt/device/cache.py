"""Compiled programs on disk: a folder of files named KEY-DIGEST.so, by what made them and by what is in them.

KEY-DIGEST.name beside an entry holds the name of the model that it was compiled for, for `smelt cache ls`.

`device.cpu` asks for a key and puts what it has made; `smelt cache` lists and clears. Any number of processes may use
one folder: entries appear whole (temporary name, sync, rename) and are checked whenever they are used. A folder or a
file that somebody else owns or may write is not used. Nothing that goes wrong here is an error: what the folder does
not take is kept in a private temporary folder until the process ends.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from typing import TYPE_CHECKING

from smelt.buffer import parse_bytes
from smelt.errors import FileError
from smelt.files import STALE, read_bytes, sweep, write_atomically
from smelt.frozen import Frozen

if TYPE_CHECKING:  # imported where it is used: whoever runs a bundle does not need it
    from pathlib import Path

LIMIT = 2 << 30
SCRATCH = "smelt-build-"  # begins the names of folders to compile in
_ENTRY = r"([0-9a-f]{40})-([0-9a-f]{32})\.so"
_UNFINISHED = r"\.[0-9a-f]{40}-[0-9a-f]{32}\.so-[0-9a-f]{16}\.part|[0-9a-f]{40}-[^.]*\.part"
_NAME = ".name"
_NAME_BYTES = 400
_SHARED_MEMORY = "/dev/shm"  # often the one place to write to where the root is read-only


# The model that is being compiled: what it adds to the cache bears its name.
model_name: ContextVar[str] = ContextVar("model_name", default="")


class Entry(Frozen):
    """One compiled program: `used` is when it was made or last asked for, in seconds since 1970."""

    path: Path
    key: str
    digest: str
    bytes: int
    used: float

    @property
    def name(self) -> str:
        """The model that it was compiled for; empty where that is not known."""
        try:
            return read_bytes(self.path.with_suffix(_NAME), _NAME_BYTES).decode("utf-8", "replace")
        except FileError:
            return ""

    def remove(self) -> None:
        self.path.unlink()
        with suppress(OSError):
            self.path.with_suffix(_NAME).unlink()


class Cache(Frozen):
    """A folder with at most `limit` bytes of entries; the least recently used go first."""

    folder: Path
    limit: int = LIMIT

    def find(self, key: str) -> Path | None:
        """The entry of a key, marked as used. One whose content is not what its name says is removed."""
        found = self.open(key)
        if found is None:
            return None
        os.close(found[0])
        return found[1].path

    def open(self, key: str) -> tuple[int, Entry] | None:
        """The same, as an open file whose owner, mode and content were checked: load that, not the path."""
        _sweep_once(self.folder)
        for folder in (self.folder, *_spare()):
            if not _why_unsafe(folder):
                for entry in _entries(folder, key):
                    file = _opened(entry)
                    if file is not None:
                        return file, entry
        return None

    def put(self, key: str, made: Path) -> Path | None:
        """Keep a file under a key, in a private temporary folder (with a warning the first time) where the folder does
        not take it; None where that does not either."""
        if made.stat().st_size > self.limit:
            return None
        there = self.find(key)  # another process may have been faster
        if there is not None:
            return there
        try:
            final = self._keep(key, made)
        except (OSError, FileError) as error:
            _warn(self.folder, _reason(error))
            spare = private_folder()
            if spare is None or spare == self.folder:
                return None
            with suppress(OSError, FileError):
                return Cache(spare, self.limit)._keep(key, made)
            return None
        self._evict(final)
        return final

    def _keep(self, key: str, made: Path) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unsafe = _why_unsafe(self.folder)
        if unsafe:
            raise FileError(f"{self.folder} is not used", got=unsafe)
        content = made.read_bytes()
        final = self.folder / f"{key}-{_digest(content)}.so"
        name = model_name.get().encode()[:_NAME_BYTES]
        if name:
            write_atomically(final.with_suffix(_NAME), [name], 0o600)
        write_atomically(final, [content], 0o600)
        return final

    def _evict(self, newest: Path) -> None:
        """Remove what is over the limit."""
        entries = sorted(self.entries(), key=lambda entry: entry.used)
        total = sum(entry.bytes for entry in entries)
        for entry in entries:
            if total <= self.limit:
                break
            if entry.path != newest:
                with suppress(OSError):
                    entry.remove()
                    total -= entry.bytes
        _sweep(self.folder)

    def entries(self, key: str = "") -> Iterator[Entry]:
        """What is there, in no order; files that are not ours are passed over."""
        return _entries(self.folder, key)

    def clear(self) -> tuple[int, int]:
        """Remove every entry and every unfinished file; how many entries and bytes that were. The rest stays."""
        count = freed = 0
        for entry in list(self.entries()):
            with suppress(FileNotFoundError):
                entry.remove()
                count, freed = count + 1, freed + entry.bytes
        sweep(self.folder, _UNFINISHED, -1)
        return count, freed


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Entries made meanwhile bear a model's name."""
    token = model_name.set(name)
    try:
        yield
    finally:
        model_name.reset(token)


def default() -> Cache:
    """The cache that the environment names: SMELT_CACHE_DIR, SMELT_CACHE_LIMIT (2GiB where it is not set).

    A user without a home folder has a private temporary one.
    """
    from pathlib import Path

    limit = os.environ.get("SMELT_CACHE_LIMIT")
    most = parse_bytes(limit, "SMELT_CACHE_LIMIT") if limit else LIMIT
    chosen = os.environ.get("SMELT_CACHE_DIR")
    if chosen:
        return Cache(Path(chosen), most)
    home = cache_home()
    if home is not None:
        return Cache(home / "smelt", most)
    nowhere = Path("~/.cache/smelt")
    _warn(nowhere, "there is no home folder")
    return Cache(private_folder() or nowhere, most)


def cache_home() -> Path | None:
    """The user's folder for caches; None where there is none: a container's user may have no HOME, no passwd entry."""
    from pathlib import Path

    chosen = os.environ.get("XDG_CACHE_HOME")
    if chosen:
        return Path(chosen)
    try:
        home = Path.home()
    except (RuntimeError, KeyError):
        return None
    return home / ".cache" if home.is_absolute() else None


@cache
def private_folder() -> Path | None:
    """A new temporary folder of this process alone, removed when it ends; None where nothing can be written."""
    import atexit
    import tempfile
    from pathlib import Path

    for place in temporary_folders():
        with suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix="smelt-cache-", dir=place))
            atexit.register(_remove, made, os.getpid())
            return made
    return None


def _remove(folder: Path, owner: int) -> None:
    """A child of the process that made it leaves it alone."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def temporary_folders() -> Iterator[Path]:
    """Where temporary folders may be made, best first."""
    import tempfile
    from pathlib import Path

    with suppress(OSError):
        yield Path(tempfile.gettempdir())
    if os.path.isdir(_SHARED_MEMORY):
        yield Path(_SHARED_MEMORY)


def _spare() -> tuple[Path, ...]:
    """The private folder, if there is one already."""
    spare = private_folder() if private_folder.cache_info().currsize else None
    return () if spare is None else (spare,)


def _why_unsafe(folder: Path) -> str:
    """Why files in a folder may be somebody else's: its owner and its mode. Empty for one that is safe, or absent."""
    try:
        facts = os.stat(folder)
    except OSError:
        return ""
    why = _why_foreign(facts)
    if why:
        _warn(folder, why)
    return why


def _why_foreign(facts: os.stat_result) -> str:
    if not hasattr(os, "geteuid"):
        return ""
    if facts.st_uid not in (0, os.geteuid()):
        return f"it belongs to the user {facts.st_uid}"
    if facts.st_mode & 0o022:
        return f"others may write to it, its mode is {stat.S_IMODE(facts.st_mode):04o}"
    return ""


def _opened(entry: Entry) -> int | None:
    """An entry as an open file, marked as used; None, and removed, where it is not what its name says."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(entry.path, flags)
    except OSError:  # removed meanwhile, or not readable: as good as absent
        return None
    try:
        facts = os.fstat(file)
        with os.fdopen(file, "rb", closefd=False) as stream:
            right = stat.S_ISREG(facts.st_mode) and not _why_foreign(facts) and _digest(stream.read()) == entry.digest
    except (OSError, MemoryError):
        right = False
    if right:
        with suppress(OSError):  # a folder that cannot be written serves as well
            os.utime(entry.path)
        return file
    os.close(file)
    with suppress(OSError):
        entry.remove()
    return None


def _entries(folder: Path, key: str) -> Iterator[Entry]:
    for path in _files(folder):
        named = re.fullmatch(_ENTRY, path.name)
        if named and (not key or named[1] == key):
            try:
                facts = path.stat()
            except OSError:  # removed meanwhile
                continue
            yield Entry(path, named[1], named[2], facts.st_size, facts.st_mtime)


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _files(folder: Path) -> list[Path]:
    from pathlib import Path

    try:
        return [Path(each.path) for each in os.scandir(folder) if each.is_file(follow_symlinks=False)]
    except OSError:  # no folder yet, or not one of ours to read
        return []


@cache
def _sweep_once(folder: Path) -> None:
    _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left: unfinished files, and folders that they compiled in."""
    import shutil

    sweep(folder, _UNFINISHED)
    before = time.time() - STALE
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(SCRATCH) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < before:
                        shutil.rmtree(entry.path, ignore_errors=True)


def _reason(error: OSError | FileError) -> str:
    return str(error.got if isinstance(error, FileError) else error.strerror or type(error).__name__)


@cache
def _warn(folder: Path, why: str) -> None:
    """Say once per folder and reason that nothing is kept."""
    import logging

    logging.getLogger("smelt").warning(
        "compiled programs are not kept beyond this process: %s is not used (%s); SMELT_CACHE_DIR names another folder",
        folder,
        why,
    )
