"""Machine code as loaded libraries: from bytes or from an open file, once per process, unloaded after the last use.

The caller has checked what it gives. `device.cpu` loads what the cache holds, `bundle.load` what a bundle holds.
Whoever uses an address inside a library keeps the library: the last reference unloads it.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import weakref
from contextlib import suppress

from smelt.errors import DeviceError

_DESCRIPTORS = "/proc/self/fd"
_loaded: weakref.WeakValueDictionary[str, ctypes.CDLL] = weakref.WeakValueDictionary()
_loading = threading.Lock()


def load_library(code: bytes, digest: str) -> ctypes.CDLL:
    """The library with that digest: the one that is loaded, else loaded from its bytes."""
    with _loading:
        found = _loaded.get(digest)
        if found is None:
            found = _loaded[digest] = _from_memory(code) or _from_disk(code)
        return found


def load_descriptor(file: int, digest: str) -> ctypes.CDLL:
    """The same from an open file, which is used up: what was checked is what is loaded, whatever its path leads to."""
    try:
        with _loading:
            found = _loaded.get(digest)
            if found is None:
                found = _from_descriptor(os.dup(file))
                if found is not None:
                    _loaded[digest] = found
        return found or load_library(_content(file), digest)
    finally:
        os.close(file)


def _content(file: int) -> bytes:
    os.lseek(file, 0, os.SEEK_SET)
    with os.fdopen(file, "rb", closefd=False) as stream:
        return stream.read()


def _from_memory(code: bytes) -> ctypes.CDLL | None:
    """None where the system has no files in memory, or does not execute them."""
    if not hasattr(os, "memfd_create"):
        return None
    try:
        file = os.memfd_create("smelt", os.MFD_CLOEXEC)
    except OSError:
        return None
    try:
        view = memoryview(code)
        while view:
            view = view[os.write(file, view) :]
    except OSError:
        os.close(file)
        return None
    return _from_descriptor(file)


def _from_descriptor(file: int) -> ctypes.CDLL | None:
    """A library from a descriptor, which stays open as long as it; None, and closed, where that cannot be."""
    name = f"{_DESCRIPTORS}/{file}"
    try:
        library = ctypes.CDLL(name)
    except OSError:  # no /proc, or a disk whose files are not executed
        os.close(file)
        return None
    weakref.finalize(library, _unload, library._handle, name, file).atexit = False
    return library


def _unload(handle: int, name: str, file: int) -> None:
    import _ctypes

    _ctypes.dlclose(handle)
    # The loader takes equal names for equal libraries: while something else holds this one, its name stays taken.
    with suppress(OSError):
        _ctypes.dlclose(_ctypes.dlopen(name, os.RTLD_NOLOAD))
        return
    os.close(file)


def _from_disk(code: bytes) -> ctypes.CDLL:
    import tempfile

    try:
        with tempfile.TemporaryDirectory(prefix="smelt-code-", ignore_cleanup_errors=True) as folder:
            path = os.path.join(folder, "program.so")
            with open(path, "wb") as file:
                file.write(code)
            library = ctypes.CDLL(path)  # what is mapped stays when the file goes
    except OSError as error:
        raise DeviceError("the machine code cannot be loaded", got=error, remedy="compile the model again") from error
    if sys.platform != "win32":
        import _ctypes

        weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library
