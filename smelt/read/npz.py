"""`.npz` archives (NumPy's `savez`) as Weights: plain members are mapped, compressed ones inflated on first access.

In: a path. Out: lazy arrays. Nothing is unpickled. A member's header is checked against the archive's sizes before
anything is allocated.
"""

from __future__ import annotations

import io
import math
import os
import struct
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from smelt.dtype import Array, DType, dtype
from smelt.errors import FileError, ParseError, ShapeError, SmeltError, UnsupportedError, advise
from smelt.files import open_regular
from smelt.shape import Shape
from smelt.weights import MAX_RANK, MappedFile, Stored, Weights

MAX_HEADER = 1 << 16  # bytes of one member's .npy header
MAX_MEMBERS = 1 << 20
_RATIO = 1040  # deflate cannot shrink by more
_LOCAL = struct.Struct("<4s5H3I2H")  # the header before a member's bytes


@advise("download or copy the file again: it may be damaged", ParseError, FileError)
def read(path: str | Path) -> Weights:
    """The arrays of an archive, by name; nothing but headers is read."""
    file = MappedFile(path)
    try:
        with os.fdopen(open_regular(path), "rb") as content, zipfile.ZipFile(content) as archive:
            members = archive.infolist()
            if len(members) > MAX_MEMBERS:
                raise ParseError(f"{path}: too many members", expected=f"at most {MAX_MEMBERS}", got=len(members))
            stored: dict[str, Stored] = {}
            for member in members:
                name = member.filename.removesuffix(".npy")
                if name in stored:
                    raise ParseError(f"{path}: a name appears twice", got=name)
                stored[name] = _member(file, archive, member, name)
    except SmeltError:
        raise
    except OSError as error:
        raise FileError(f"cannot read {path}", got=error) from error
    except Exception as error:  # zipfile raises what its parts raise: BadZipFile, UnicodeDecodeError, …
        raise ParseError(f"{path}: not an .npz archive", got=error) from error
    return Weights(stored, source=str(path))


def _member(file: MappedFile, archive: zipfile.ZipFile, member: zipfile.ZipInfo, name: str) -> Stored:
    if member.flag_bits & 1:
        raise UnsupportedError(f"{file.path}: {name!r} is encrypted", remedy="save it without a password")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise UnsupportedError(f"{file.path}: {name!r} is compressed in a way that NumPy does not use")
    limit = member.compress_size * (_RATIO if member.compress_type == zipfile.ZIP_DEFLATED else 1)
    if member.file_size > limit or member.compress_size > file.size:
        raise ParseError(
            f"{file.path}: {name!r} claims more bytes than it can hold", expected=limit, got=member.file_size
        )
    with archive.open(member) as opened:
        head = opened.read(MAX_HEADER + 16)
    order, element, foreign, sizes, start = _header(file.path, name, head)
    length = math.prod(sizes) * element.numpy.itemsize
    if start + length != member.file_size or math.prod(max(size, 1) for size in sizes) >> 56:
        raise ParseError(
            f"{file.path}: {name!r} has the wrong number of bytes",
            expected=f"{length} for {element}{list(sizes)}",
            got=member.file_size - start,
        )
    shape = Shape.of(element, sizes)
    if member.compress_type != zipfile.ZIP_STORED:
        return Stored(shape, partial(_inflate, file.path, member.filename, start, element, sizes, order, foreign))
    at = _place(file, member) + start
    load = partial(_map_array, file, at, element, sizes, order, foreign, name)
    return Stored(shape, load, (file, at) if order == "C" and foreign.isnative else None)


def _header(path: Path, name: str, head: bytes) -> tuple[str, DType, np.dtype[Any], tuple[int, ...], int]:
    """Order, element type, the type in the file, sizes and where the data begins."""
    stream = io.BytesIO(head)
    try:
        version = np.lib.format.read_magic(stream)
        reader = {1: np.lib.format.read_array_header_1_0, 2: np.lib.format.read_array_header_2_0}[version[0]]
        sizes, fortran, found = reader(stream, max_header_size=MAX_HEADER)
    except Exception as error:  # NumPy evaluates the header as Python: TokenError, SyntaxError, UnicodeDecodeError, …
        raise ParseError(f"{path}: {name!r} is no .npy array", got=error) from None
    if len(sizes) > MAX_RANK or any(type(size) is not int or size < 0 for size in sizes):
        raise ParseError(f"{path}: {name!r} has a wrong shape", got=sizes)
    try:
        element = dtype(found.newbyteorder("="))
    except ShapeError:
        remedy = "save bfloat16 and float8 as safetensors" if found.kind == "V" else "convert it to numbers"
        raise UnsupportedError(
            f"{path}: {name!r} holds no numbers of a known type", got=found.str, remedy=remedy
        ) from None
    return "F" if fortran else "C", element, found, tuple(sizes), stream.tell()


def _place(file: MappedFile, member: zipfile.ZipInfo) -> int:
    """Where a member's bytes begin in the archive."""
    head = bytes(file.bytes[member.header_offset : member.header_offset + _LOCAL.size])
    fields = _LOCAL.unpack(head)
    if fields[0] != b"PK\x03\x04":
        raise ParseError(f"{file.path}: the archive has no member at its stated offset", got=member.filename)
    return member.header_offset + _LOCAL.size + int(fields[9]) + int(fields[10])


def _map_array(
    file: MappedFile, at: int, element: DType, sizes: tuple[int, ...], order: str, found: np.dtype[Any], name: str
) -> Array:
    array = file.array(at, element, sizes if order == "C" else sizes[::-1], f"array {name!r}")
    return _native(array if order == "C" else array.T, found)


def _inflate(
    path: Path, member: str, start: int, element: DType, sizes: tuple[int, ...], order: str, found: np.dtype[Any]
) -> Array:
    """The array of a compressed member; its length is known, and one byte more or less is an error."""
    try:
        array = np.empty(sizes if order == "C" else sizes[::-1], element.numpy)
    except (MemoryError, ValueError) as error:
        raise FileError(f"{path}: no memory left for {member}", got=f"{element}{list(sizes)}") from error
    target = array.reshape(-1).view(np.uint8)
    try:
        with (
            os.fdopen(open_regular(path), "rb") as content,
            zipfile.ZipFile(content) as archive,
            archive.open(member) as opened,
        ):
            opened.read(start)
            at = 0
            while at < len(target) and (part := opened.read(min(1 << 20, len(target) - at))):
                target[at : at + len(part)] = np.frombuffer(part, np.uint8)
                at += len(part)
            rest = opened.read(1)
    except SmeltError:
        raise
    except Exception as error:  # as in `read`
        raise FileError(f"cannot read {member} of {path}", got=error) from error
    if at != len(target) or rest:
        raise ParseError(f"{path}: {member} has the wrong number of bytes", expected=len(target), got=at)
    return _native(array if order == "C" else array.T, found)


def _native(array: Array, found: np.dtype[Any]) -> Array:
    """Bytes in this machine's order."""
    return array if found.isnative else array.view(found).astype(found.newbyteorder("="))
