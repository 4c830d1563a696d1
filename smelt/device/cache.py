"""The compile cache: a folder of libraries named KEY-DIGEST.so (hash of source and flags, hash of the content).

KEY-DIGEST.name holds the name of the model that an entry was compiled for; `smelt cache ls` prints it.

`device.cpu` looks up keys and adds entries; `smelt cache` lists and clears. Processes may share one folder: entries
are written atomically (temporary name, sync, rename) and their digest is checked at every use. A folder or file that
another user owns or may write is not used. Failures here are never errors: an entry that cannot be stored in the folder
stays in a private temporary folder until the process ends.
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
from typing import TYPE_CHECKING, Protocol

from smelt.buffer import parse_bytes
from smelt.errors import FileError
from smelt.files import STALE, read_bytes, sweep, write_atomically
from smelt.frozen import Frozen

if TYPE_CHECKING:  # imported where it is used: running a bundle does not need it
    from pathlib import Path

LIMIT = 2 << 30
WRITERS = 8  # processes that may fill one folder at the same time
SCRATCH = "smelt-build-"  # prefix of build folders
_ENTRY = r"([0-9a-f]{40})-([0-9a-f]{32})\.so"
_UNFINISHED = r"\.[0-9a-f]{40}-[0-9a-f]{32}\.so-[0-9a-f]{16}\.part|[0-9a-f]{40}-[^.]*\.part"
_NAME = ".name"
_NAME_BYTES = 400
_SHARED_MEMORY = "/dev/shm"  # often the only writable folder where the root is read-only


# The name of the model that is being compiled; new cache entries are labelled with it.
model_name: ContextVar[str] = ContextVar("model_name", default="")


class Entry(Frozen):
    """One compiled program. `used`: the time of its creation or last use, in seconds since 1970."""

    path: Path
    key: str
    digest: str
    bytes: int
    used: float

    @property
    def name(self) -> str:
        """The model that it was compiled for, or an empty string."""
        try:
            return read_bytes(self.path.with_suffix(_NAME), _NAME_BYTES).decode("utf-8", "replace")
        except FileError:
            return ""

    def remove(self) -> None:
        self.path.unlink()
        with suppress(OSError):
            self.path.with_suffix(_NAME).unlink()


class Contents(Protocol):
    """Entries as bytes: a cache, or another process that has one."""

    def read(self, key: str) -> bytes | None: ...

    def keep(self, key: str, content: bytes) -> object: ...


# Bytes that this process may add to a folder with a limit before it counts again what is there.
_room: dict[tuple[Path, int], int] = {}

_elsewhere: list[Contents | None] = []  # of the process that compiles for this one, and has the cache


class Cache(Frozen):
    """A folder with at most `limit` bytes of entries. Eviction is by least recent use."""

    folder: Path
    limit: int = LIMIT

    def find(self, key: str) -> Path | None:
        """The path of a key's entry, marked as used. An entry whose content does not match its digest is removed."""
        found = self.open(key)
        if found is None:
            return None
        os.close(found[0])
        return found[1].path

    def open(self, key: str) -> tuple[int, Entry] | None:
        """A key's entry as an open file whose owner, mode and content were checked. Load the file, not the path."""
        _sweep_once(self.folder)
        for folder in (self.folder, *_spare()):
            if not _why_unsafe(folder):
                for entry in _entries(folder, key):
                    file = _open_entry(entry)
                    if file is not None:
                        return file, entry
        return None

    def read(self, key: str) -> bytes | None:
        """The content of a key's entry."""
        found = self.open(key)
        if found is None:
            return None
        with os.fdopen(found[0], "rb") as file:
            file.seek(0)  # it was read to check its digest
            return file.read()

    def discard(self, key: str) -> None:
        """Remove a key's entry: its content is as it was written, and of no use here."""
        found = self.open(key)
        if found is not None:
            os.close(found[0])
            with suppress(OSError):
                found[1].remove()

    def put(self, key: str, made: Path) -> Path | None:
        """Store a file under a key and return its path.

        Where the folder cannot be written, a private temporary folder is used and a warning is logged once. None:
        neither could be written.
        """
        return None if made.stat().st_size > self.limit else self.keep(key, made.read_bytes())

    def keep(self, key: str, content: bytes) -> Path | None:
        """The same for the content of a file."""
        if len(content) > self.limit:
            return None
        there = self.find(key)  # another process may have been faster
        if there is not None:
            return there
        try:
            final = self._write(key, content)
        except (OSError, FileError) as error:
            _warn(self.folder, _reason(error))
            spare = private_folder()
            if spare is None or spare == self.folder:
                return None
            with suppress(OSError, FileError):
                return Cache(spare, self.limit)._write(key, content)
            return None
        self._evict(final)
        return final

    def _write(self, key: str, content: bytes) -> Path:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        unsafe = _why_unsafe(self.folder)
        if unsafe:
            raise FileError(f"{self.folder} is not used", got=unsafe)
        final = self.folder / f"{key}-{_digest(content)}.so"
        name = model_name.get().encode()[:_NAME_BYTES]
        if name:
            write_atomically(final.with_suffix(_NAME), [name], 0o600)
        write_atomically(final, [content], 0o600)
        return final

    def _evict(self, newest: Path) -> None:
        """Remove the least recently used entries until the limit is met. `newest` stays."""
        room = _room.get((self.folder, self.limit), 0) - newest.stat().st_size
        if room <= 0:
            room = (self.limit - _count_bytes(self.folder)) // WRITERS
        _room[self.folder, self.limit] = room
        if room >= 0:
            return
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
        """The entries, unordered. Other files in the folder are ignored."""
        return _entries(self.folder, key)

    def clear(self) -> tuple[int, int]:
        """Remove all entries and unfinished files, and nothing else. Returns the number of entries and their bytes."""
        count = freed = 0
        for entry in list(self.entries()):
            with suppress(FileNotFoundError):
                entry.remove()
                count, freed = count + 1, freed + entry.bytes
        sweep(self.folder, _UNFINISHED, -1)
        return count, freed


@contextmanager
def compiling_for(name: str) -> Iterator[None]:
    """Label the entries that are added inside the block with a model's name."""
    token = model_name.set(name)
    try:
        yield
    finally:
        model_name.reset(token)


def leave_to_other(contents: Contents | None = None) -> None:
    """From now on another process has the cache, which compiles for this one. `contents`: entries that it keeps."""
    _elsewhere[:] = [contents]


def contents() -> Contents | None:
    """Where this process keeps what it compiled as bytes; None: nowhere."""
    return _elsewhere[0] if _elsewhere else default()


def default() -> Cache:
    """The cache in SMELT_CACHE_DIR, limited to SMELT_CACHE_LIMIT (default 2GiB).

    Without a home folder it is in a private temporary folder.
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
    """The user's folder for caches, or None: a container's user may have neither HOME nor a passwd entry."""
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
    """A temporary folder of this process, removed at exit. None where no folder can be written."""
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
    """Remove the private folder, unless this is a forked child of its owner."""
    if os.getpid() == owner:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def temporary_folders() -> Iterator[Path]:
    """Parents for temporary folders, in order of preference."""
    import tempfile
    from pathlib import Path

    with suppress(OSError):
        yield Path(tempfile.gettempdir())
    if os.path.isdir(_SHARED_MEMORY):
        yield Path(_SHARED_MEMORY)


def _spare() -> tuple[Path, ...]:
    """The private folder, if it was created."""
    spare = private_folder() if private_folder.cache_info().currsize else None
    return () if spare is None else (spare,)


def _why_unsafe(folder: Path) -> str:
    """Why another user could have put files into a folder: its owner or its mode. Empty if it is safe or absent."""
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


def _open_entry(entry: Entry) -> int | None:
    """Open an entry and mark it as used. An entry that does not match its digest is removed; the result is None."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
    try:
        file = os.open(entry.path, flags)
    except OSError:  # removed by another process, or not readable: treated as absent
        return None
    try:
        facts = os.fstat(file)
        with os.fdopen(file, "rb", closefd=False) as stream:
            right = stat.S_ISREG(facts.st_mode) and not _why_foreign(facts) and _digest(stream.read()) == entry.digest
    except (OSError, MemoryError):
        right = False
    if right:
        with suppress(OSError):  # a read-only folder can still be read
            os.utime(entry.path)
        return file
    os.close(file)
    with suppress(OSError):
        entry.remove()
    return None


def _entries(folder: Path, key: str) -> Iterator[Entry]:
    """The entries of a key, or all. A folder may hold thousands, so nothing is made of the names of others."""
    from pathlib import Path

    for file in _files(folder, key):
        named = re.fullmatch(_ENTRY, file.name)
        if named:
            try:
                facts = file.stat(follow_symlinks=False)
            except OSError:  # removed by another process
                continue
            yield Entry(Path(file.path), named[1], named[2], facts.st_size, facts.st_mtime)


def _count_bytes(folder: Path) -> int:
    """The bytes of all entries, and of what else has such a name."""
    total = 0
    for file in _files(folder):
        if file.name.endswith(".so"):
            with suppress(OSError):  # removed by another process
                total += file.stat(follow_symlinks=False).st_size
    return total


def _digest(content: bytes) -> str:
    import hashlib

    return hashlib.blake2b(content, digest_size=16).hexdigest()


def _files(folder: Path, start: str = "") -> list[os.DirEntry[str]]:
    """The files of a folder whose names begin with a text."""
    try:
        with os.scandir(folder) as files:
            return [each for each in files if each.name.startswith(start) and each.is_file(follow_symlinks=False)]
    except OSError:  # no folder yet, or it is not readable
        return []


@cache
def _sweep_once(folder: Path) -> None:
    _sweep(folder)


def _sweep(folder: Path) -> None:
    """Remove what killed processes left behind: unfinished files and build folders."""
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
    """Log once per folder and reason that compiled programs are not cached."""
    import logging

    logging.getLogger("smelt").warning(
        "compiled programs are not cached on disk: %s is not used (%s); set SMELT_CACHE_DIR to another folder",
        folder,
        why,
    )
