"""The reader of JSON arrays in C (`runtime/numbers.c`): a text of numbers → a flat NumPy array, for the server.

It is compiled once per machine. Without a compiler, and for what it leaves to others, there is no result.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device import cpu
from smelt.device.cache import compiling_for
from smelt.dtype import Array
from smelt.errors import SmeltError

log = logging.getLogger("smelt.serve")
_read: list[Any] = []  # the function, once it is there, and its library


def prepare() -> None:
    """Compile and load the reader. Before the first request: this may take a second."""
    if _read:
        return
    source = (Path(__file__).parents[1] / "runtime" / "numbers.c").read_text("utf-8")
    try:
        with compiling_for("the reader of JSON tensors"):
            library = cpu.build(source)
            function = ctypes.PyDLL(library._name).smelt_read_numbers  # which keeps the GIL: it takes microseconds
    except SmeltError as error:
        log.info("JSON tensors are read without C: %s", error.message)
        return
    function.restype = ctypes.c_int
    function.argtypes = [ctypes.c_char_p, ctypes.c_longlong, ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p]
    _read[:] = function, library


def read_numbers(data: bytes, count: int, integers: bool) -> Array | None:
    """`count` numbers of a JSON array as float32 or int64; None: something else is needed to read them, or to say why
    they cannot be read."""
    if not _read or not 0 < count <= len(data) // 2:  # a number and what follows it
        return None
    made = np.empty(count, np.int64 if integers else np.float32)
    failed = _read[0](data, len(data), integers, count, made.__array_interface__["data"][0])
    return None if failed else made
