"""Load machine code as a library, from bytes or an open file. Each library is loaded once per process.

`device.cpu` loads from the cache, `run.load` from bundles; both have checked the code before. A library is unloaded
with its last reference, so keep the library as long as an address inside it is used.
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
    """The library with a digest: the loaded one, else loaded from its bytes."""
    with _loading:
        found = _loaded.get(digest)
        if found is None:
            found = _loaded[digest] = _from_memory(code) or _from_disk(code)
        return found


def load_descriptor(file: int, digest: str) -> ctypes.CDLL:
    """The library with a digest, loaded from an open file, which is closed. Loading by descriptor loads the bytes that
    were checked, even if the path was replaced since."""
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
    """Load from an anonymous file in memory; None where the system has none, or does not execute them."""
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
    """Load from a descriptor, which stays open as long as the library. On failure it is closed; the result is None."""
    name = f"{_DESCRIPTORS}/{file}"
    try:
        library = ctypes.CDLL(name)
    except OSError:  # no /proc, or a file system mounted noexec
        os.close(file)
        return None
    weakref.finalize(library, _unload, library._handle, name, file).atexit = False
    return library


def _unload(handle: int, name: str, file: int) -> None:
    import _ctypes

    _ctypes.dlclose(handle)
    # dlopen identifies libraries by name. While another reference keeps this one loaded, the descriptor stays open, so
    # that no other library gets the same name.
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
            library = ctypes.CDLL(path)  # the mapping outlives the file
    except OSError as error:
        raise DeviceError("the machine code cannot be loaded", got=error, remedy="compile the model again") from error
    if sys.platform != "win32":
        import _ctypes

        weakref.finalize(library, _ctypes.dlclose, library._handle).atexit = False
    return library
