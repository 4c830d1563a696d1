"""Safe opening of files, and atomic writing. Every reader and writer uses it.

`open_regular` refuses what is no regular file (a FIFO would block, a device would act). `write_atomically` creates a
temporary file with a random name and renames it.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress

from smelt.errors import FileError

STALE = 3600.0  # seconds without a write after which the writer of a temporary file counts as dead
_NO_WAIT = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a folder",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def open_regular(path: str | os.PathLike[str], flags: int = 0) -> int:
    """A descriptor for reading a regular file; anything else is refused without waiting for it."""
    try:
        _check_regular(path, os.stat(path).st_mode)  # opening a device can have effects of its own
        descriptor = os.open(path, os.O_RDONLY | _NO_WAIT | flags)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the name
        raise FileError(
            f"cannot read {path}", got=_reason(error), remedy="check the path and its permissions"
        ) from error
    try:
        _check_regular(path, os.fstat(descriptor).st_mode)  # it may have been replaced since the first check
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_bytes(path: str | os.PathLike[str], most: int | None = None) -> bytes:
    """All bytes of a regular file; one of more than `most` bytes is refused before anything is read."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        if most is not None and size > most:
            raise FileError(
                f"{path} is too large",
                expected=f"at most {most} bytes",
                got=size,
                remedy="check that it is the file that you mean",
            )
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read() if most is None else file.read(most)
    except OSError as error:
        raise FileError(
            f"cannot read {path}", got=_reason(error), remedy="check the path and its permissions"
        ) from error
    except (MemoryError, OverflowError) as error:
        raise FileError(
            f"cannot read {path}: no memory left",
            got=f"a file of {size} bytes",
            remedy="close models that are not in use",
        ) from error
    finally:
        os.close(descriptor)


def write_atomically(path: str | os.PathLike[str], pieces: Iterable[bytes | memoryview], mode: int = 0o666) -> int:
    """Write a file under a temporary name, sync it, rename it: it appears whole or not at all. Gives its bytes.

    The temporary file is created anew (no link is followed) with `mode` less the umask. What killed processes left of
    earlier attempts at the same file is removed.
    """
    folder, name = os.path.split(os.fspath(path))
    folder = folder or os.curdir
    total = 0
    try:
        part, descriptor = _create(folder, name, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                for piece in pieces:
                    total += file.write(piece)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(part)
            raise
    except (OSError, ValueError) as error:
        raise FileError(
            f"cannot write {path}", got=_reason(error), remedy="choose a folder that you may write to, with free space"
        ) from error
    _sync(folder)
    sweep(folder, rf"\.{re.escape(name)}-[0-9a-f]{{16}}\.part")
    return total


def check_folder(path: str | os.PathLike[str]) -> None:
    """Refuse an output file whose folder is missing, before the work begins."""
    folder = os.path.dirname(os.fspath(path)) or os.curdir
    if not os.path.isdir(folder):
        from shlex import quote

        raise FileError(
            f"cannot write {path}", expected="a folder that exists", got=folder, remedy=f"mkdir -p {quote(folder)}"
        )


def sweep(folder: str | os.PathLike[str], pattern: str, age: float = STALE) -> None:
    """Remove our own files whose names match and that were not written to for `age` seconds."""
    before = time.time() - age
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if re.fullmatch(pattern, entry.name):
                with suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(facts.st_mode) and facts.st_mtime <= before:
                        os.unlink(entry.path)


def _create(folder: str, name: str, mode: int) -> tuple[str, int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
    while True:
        part = os.path.join(folder, f".{name}-{os.urandom(8).hex()}.part")
        with suppress(FileExistsError):
            return part, os.open(part, flags, mode)


def _check_regular(path: str | os.PathLike[str], mode: int) -> None:
    if not stat.S_ISREG(mode):
        got = _KINDS.get(stat.S_IFMT(mode), "something else")
        raise FileError(f"{path} is no regular file", expected="a regular file", got=got, remedy="give a file")


def _reason(error: Exception) -> object:
    return getattr(error, "strerror", None) or error


def _sync(folder: str) -> None:
    """Make a rename last; not every system can."""
    with suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
