"""The reader of JSON arrays in C (`runtime/numbers.c`): a text of numbers → a flat NumPy array, for the server.

It is compiled once per machine. Without a compiler, and for what it leaves to others, there is no result.
"""

from __future__ import annotations

import ctypes
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np

from smelt.device import cpu
from smelt.device.cache import compiling_for
from smelt.dtype import Array
from smelt.errors import SmeltError

PLACE = b'"array %d"'  # of an array that was cut out
MOST_ARRAYS = 4096  # in a text
_PLACE_BEGIN = PLACE.partition(b"%")[0]
_BEFORE_KEY = (b"{", b",", b" ", b"\n", b"\t", b"\r")  # no backslash: the quote begins or ends a string
_SPACE = b" \n\r\t"
_VALUE = re.compile(rb"\s*:\s*\[")
log = logging.getLogger("smelt.serve")
_read: list[Any] = []  # the functions, once they are there, and their library


def prepare() -> None:
    """Compile and load the reader. Before the first request: this may take a second."""
    if _read:
        return
    source = (Path(__file__).parents[1] / "runtime" / "numbers.c").read_text("utf-8")
    try:
        with compiling_for("the reader of JSON tensors"):
            library = cpu.build(source)
            held = ctypes.PyDLL(library._name)  # calls keep the GIL: they take microseconds
    except SmeltError as error:
        log.info("JSON tensors are read without C: %s", error.message)
        return
    read, find_end, number = held.smelt_read_numbers, held.smelt_array_end, ctypes.c_longlong
    read.restype = number
    read.argtypes = [ctypes.c_char_p, number, number, ctypes.c_int, number, ctypes.c_void_p]
    find_end.restype, find_end.argtypes = number, [ctypes.c_char_p, number, number]
    _read[:] = read, find_end, library


def read_numbers(data: bytes, count: int, integers: bool) -> Array | None:
    """`count` numbers of a JSON array as float32 or int64; None: something else is needed to read them, or to say why
    they cannot be read."""
    found = read_array(data, 0, count, integers)
    return None if found is None or data[found[1] :].strip(_SPACE) else found[0]


def read_array(text: bytes, start: int, count: int, integers: bool) -> tuple[Array, int] | None:
    """The same for an array that begins at `start`; and where it ends."""
    if not _read or not 0 < count <= len(text) // 2:  # a number and what follows it
        return None
    made = np.empty(count, np.int64 if integers else np.float32)
    end: int = _read[0](text, len(text), start, integers, count, made.__array_interface__["data"][0])
    return None if end < 0 else (made, end)


def cut_arrays(text: bytes, key: bytes) -> tuple[bytes, list[bytes]]:
    """JSON without the arrays that are values of a key, each replaced by `PLACE`; and these arrays.

    They are found by their brackets, so an array with strings may be cut at the wrong position. An array that
    `read_numbers` can read was cut right: behind a key there is exactly one array that begins there. Nothing is cut
    from a text that has a string like `PLACE` itself, or more than `MOST_ARRAYS`.
    """
    parts, arrays, done = list[bytes](), list[bytes](), 0
    at = text.find(key)
    while _read and at >= 0:
        start = at + len(key)
        if text[at - 1 : at] in _BEFORE_KEY and (found := _VALUE.match(text, start)):
            end = _read[1](text, len(text), found.end() - 1)
            if end < 0:
                break
            if len(arrays) == MOST_ARRAYS:
                return text, []
            parts += text[done : found.end() - 1], PLACE % len(arrays)
            arrays.append(text[found.end() - 1 : end])
            done = start = end
        at = text.find(key, start)
    left = b"".join((*parts, text[done:]))
    return (left, arrays) if arrays and left.count(_PLACE_BEGIN) == len(arrays) else (text, [])
