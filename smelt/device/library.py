"""Machine code that came as bytes: loaded from memory, once per process, without a trace on disk where that can be.

The caller has checked the bytes. `bundle.load` calls it.
"""

from __future__ import annotations

import ctypes
import os
import threading

from smelt.errors import DeviceError

# A library stays loaded as long as the process, and so does the descriptor under whose name it was opened: the loader
# takes equal names for equal libraries.
_loaded: dict[str, ctypes.CDLL] = {}
_loading = threading.Lock()


def load_library(code: bytes, digest: str) -> ctypes.CDLL:
    """The library with that digest: the one that is loaded, else loaded from its bytes."""
    with _loading:
        if digest not in _loaded:
            _loaded[digest] = _from_memory(code) or _from_disk(code)
        return _loaded[digest]


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
        return ctypes.CDLL(f"/proc/self/fd/{file}")
    except OSError:
        os.close(file)
        return None


def _from_disk(code: bytes) -> ctypes.CDLL:
    import atexit
    import tempfile

    try:
        folder = tempfile.TemporaryDirectory(prefix="smelt-code-", ignore_cleanup_errors=True)
        atexit.register(folder.cleanup)
        path = os.path.join(folder.name, "program.so")
        with open(path, "wb") as file:
            file.write(code)
        return ctypes.CDLL(path)
    except OSError as error:
        raise DeviceError("the machine code cannot be loaded", got=error, remedy="compile the model again") from error
