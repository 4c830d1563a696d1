"""The container of a bundle: a head, a manifest (JSON) and sections of bytes, each with its digest.

`docs/bundles.md` describes the format. `run.load` opens an Container and reads sections; `write` lays them out. The
head has the digest of the manifest, the manifest the digest of every section; nothing is used before its digest was
checked.
"""

from __future__ import annotations

import ctypes
import json
import math
import mmap
import os
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

try:  # importing hashlib takes long: it loads OpenSSL
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

from smelt.bundle.sign import Seal
from smelt.device import host
from smelt.device.runtime import Runtime
from smelt.dtype import Array
from smelt.errors import FileError
from smelt.files import open_regular
from smelt.frozen import Frozen

AGAIN = "copy the file again, or compile the model again"
MAGIC = b"\x89SMELT\r\n"
FORMAT = 2  # 2: the program names the layout of its packed weights
PAGE, HUGE, ALIGN = 4096, 2 << 20, 64
BLOCK = 1 << 20  # bytes under one checksum; checksum.c
LARGEST = 1 << 28  # bytes of a manifest
_FRONT = struct.Struct("<8sIIQQ")  # magic, format, alignment of the body, bytes of the file, bytes of the manifest
_DIGEST, _KEY, _SIGNATURE = slice(32, 64), slice(64, 96), slice(96, 160)
HEAD = 160

Section = tuple[int, int, str]  # offset in the body, bytes, digest


def digest(*parts: bytes | memoryview) -> str:
    """BLAKE2b-256 in hexadecimal."""
    state = blake2b(digest_size=32)
    for part in parts:
        state.update(part)
    return state.hexdigest()


def round_up(number: int, to: int) -> int:
    return -(-number // to) * to


# ---- reading ----


class Container(Frozen):
    """An open bundle with checked head and manifest. Sections are checked when they are read."""

    name: str
    manifest: Any
    checksum: str  # of the whole body
    seal: Seal
    sections: tuple[Section, ...]
    rest: memoryview  # the sections, mapped if the bundle is a file: pages are read on first access
    gap: int  # bytes before the body
    file: int | None  # the file's descriptor, closed by `close`
    offset: int  # offset of the body in the file

    @property
    def body(self) -> memoryview:
        return self.rest[self.gap :]

    @property
    def start(self) -> int:
        """The offset of the body in the file."""
        return self.offset + self.gap

    def section(self, index: object) -> memoryview:
        """A section without a check of its digest: for weights, after `check_body`."""
        if type(index) is not int or not 0 <= index < len(self.sections):
            raise ValueError(f"there is no section {index!r}")
        offset, length, _ = self.sections[index]
        return self.body[offset : offset + length]

    def read_checked(self, index: object) -> bytes:
        """A copy of a section after a check of its digest. The copy is checked, so later changes of the file are
        harmless."""
        self.check_size()
        found = bytes(self.section(index))
        assert isinstance(index, int)
        if digest(found) != self.sections[index][2]:
            raise _damage(self.name, f"section {index} does not match its digest")
        return found

    def reader(self, index: object) -> Callable[[], bytes]:
        """A function that reads and checks a section. The index is checked now."""
        self.section(index)
        return partial(self.read_checked, index)

    def array(self, index: object, element: np.dtype[Any], sizes: tuple[int, ...] | None = None) -> Array:
        """A view of a section."""
        found = self.section(index)
        if sizes is None:
            sizes = (found.nbytes // element.itemsize,)
        if any(size < 0 for size in sizes) or math.prod(sizes) * element.itemsize != found.nbytes:
            raise ValueError(f"section {index} is no {element}{list(sizes)}")
        return np.frombuffer(found, element).reshape(sizes) if found.nbytes else np.empty(sizes, element)

    def resident(self, array: Array) -> float:
        """The fraction of an array's pages that are in memory; 1 if the system does not say."""
        first = array.ctypes.data // mmap.PAGESIZE
        count = -(-(array.ctypes.data + array.nbytes) // mmap.PAGESIZE) - first
        try:
            with open("/proc/self/pagemap", "rb", buffering=0) as file:
                file.seek(8 * first)
                pages = np.frombuffer(file.read(8 * count), np.uint64)
        except OSError:
            return 1.0
        return float(np.mean(pages >> np.uint64(63))) if pages.size == count else 1.0

    def release(self, array: Array) -> None:
        """Release the pages behind an array that is a view of the file; the next access reads them again."""
        pages = self.rest.obj
        if not isinstance(pages, mmap.mmap) or not hasattr(mmap, "MADV_DONTNEED"):
            return
        first = np.frombuffer(self.rest, np.uint8).ctypes.data - self.offset
        start = -(-(array.ctypes.data - first) // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (array.ctypes.data - first + array.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE
        if end > start:
            pages.madvise(mmap.MADV_DONTNEED, start, end - start)

    def check_size(self) -> None:
        """Refuse a file that was truncated after it was mapped: an access would kill the process (SIGBUS)."""
        pages = self.rest.obj
        wanted = self.offset + len(self.rest)
        if isinstance(pages, mmap.mmap) and pages.size() < wanted:
            raise FileError(
                f"{self.name} was truncated while it was in use",
                expected=f"{wanted} bytes",
                got=pages.size(),
                remedy="replace bundles, never write to them in place",
            )

    def check_body(self, runtime: Runtime, *, complete: bool) -> None:
        """Compare the body with its checksums or, if `complete`, every section with its digest."""
        if complete:
            damaged = self._digests_differ()
        else:
            damaged = f"{self._checksum(runtime):016x}" != self.checksum
        if damaged:
            raise _damage(self.name, "the body does not match its checksum")

    def close(self) -> None:
        if self.file is not None:
            os.close(self.file)

    def _checksum(self, runtime: Runtime) -> int:
        if self.file is None:
            return checksum(runtime, [self.rest])
        count = -(-len(self.rest) // BLOCK)
        sums = (ctypes.c_ulonglong * max(count, 1))()

        def over(first: int, last: int) -> None:
            assert self.file is not None
            place = ctypes.cast(ctypes.byref(sums, 8 * first), ctypes.POINTER(ctypes.c_ulonglong))
            length = min(last * BLOCK, len(self.rest)) - first * BLOCK
            failed = runtime.released.smelt_checksum_file(self.file, self.offset + first * BLOCK, length, place)
            if failed:
                got = "end of file" if failed < 0 else os.strerror(failed)
                raise FileError(f"cannot read {self.name}", got=got, remedy=AGAIN)

        _run_parallel(over, count, runtime.threads if count > 8 else 1)
        return int(runtime.held.smelt_checksum(ctypes.addressof(sums), 8 * count))

    def _digests_differ(self) -> bool:
        wrong: list[int] = []

        def over(first: int, last: int) -> None:
            for i in range(first, last):
                if digest(self.section(i)) != self.sections[i][2]:
                    wrong.append(i)

        end = -self.gap
        for offset, length, _ in (*self.sections, (len(self.body), 0, "")):
            if bytes(self.rest[self.gap + end : self.gap + offset]) != bytes(offset - end):
                wrong.append(-1)
            end = offset + length
        _run_parallel(over, len(self.sections), host.cores())
        return bool(wrong)


def _run_parallel(work: Callable[[int, int], None], count: int, workers: int) -> None:
    """Call work(first, last) over ranges of 0…count, on several threads."""
    failures: list[Exception] = []

    def guard(first: int, last: int) -> None:
        try:
            work(first, last)
        except Exception as error:  # raised again by the caller
            failures.append(error)

    each = max(-(-count // workers), 1)
    parts = [(first, min(first + each, count)) for first in range(0, count, each)]
    threads = [threading.Thread(target=guard, args=part) for part in parts[1:]]
    for thread in threads:
        thread.start()
    for part in parts[:1]:
        guard(*part)
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


Admit: TypeAlias = Callable[[str, bytes], None]  # raises for a file that may not be used, by its name and its head


def open_file(path: str | os.PathLike[str], admit: Admit | None = None) -> Container:
    """Map a bundle. `admit` checks the head before anything else is read."""
    file = open_regular(path)
    try:
        size = os.fstat(file).st_size
        whole = memoryview(mmap.mmap(file, size, access=mmap.ACCESS_READ) if size else b"")
        return _parse(str(path), whole, file, admit)
    except (OSError, ValueError) as error:
        os.close(file)
        raise FileError(f"cannot read {path}", got=error, remedy=AGAIN) from error
    except BaseException:
        os.close(file)
        raise


def open_bytes(data: bytes | bytearray | memoryview, name: str = "the bundle", admit: Admit | None = None) -> Container:
    """Open a bundle in memory."""
    return _parse(name, memoryview(data).cast("B").toreadonly(), None, admit)


def seal_of(head: bytes) -> Seal | None:
    """The signature in the head of a bundle; None if the data is no bundle."""
    if len(head) < HEAD or not head.startswith(MAGIC):
        return None
    return Seal(head[_KEY], head[_SIGNATURE], head[_DIGEST].hex())


def _parse(name: str, whole: memoryview, file: int | None, admit: Admit | None) -> Container:
    head = bytes(whole[:HEAD])
    if admit is not None:
        admit(name, head)
    seal = seal_of(head)
    if seal is None:
        got = f"{whole.nbytes} bytes" if whole.nbytes < HEAD else head[: len(MAGIC)]
        expected = f"at least {HEAD} bytes that begin with {MAGIC!r}"
        raise FileError(f"{name} is no bundle", expected=expected, got=got, remedy="smelt compile MODEL -o FILE.smelt")
    _, format_, alignment, length, manifest_length = _FRONT.unpack_from(head)
    if format_ != FORMAT:
        raise FileError(
            f"{name} has another format: an older or newer smelt packs weights and names ops in another way",
            expected=FORMAT,
            got=format_,
            remedy="write it again with this smelt",
        )
    if length != whole.nbytes:
        raise FileError(f"{name} is not complete", expected=f"{length} bytes", got=whole.nbytes, remedy=AGAIN)
    start = round_up(HEAD + manifest_length, alignment) if alignment in (PAGE, HUGE) else length + 1
    if manifest_length > LARGEST or start > length:
        raise _damage(name, "the head has impossible lengths")
    written = bytes(whole[HEAD : HEAD + manifest_length])
    found = digest(head[: _FRONT.size], head[_KEY], written)
    if found != seal.digest:
        raise _damage(name, "head and manifest do not match their digest")
    rest = whole[HEAD + manifest_length :]
    gap = start - HEAD - manifest_length
    try:
        manifest = json.loads(written)
        named = manifest["checksum"]
        sections = _sections(manifest["sections"], rest.nbytes - gap)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FileError(f"{name} has a malformed manifest", got=error, remedy=AGAIN) from error
    return Container(name, manifest, named, seal, sections, rest, gap, file, HEAD + manifest_length)


def _damage(name: str, how: str) -> FileError:
    return FileError(f"{name} is damaged", got=how, remedy=AGAIN)


def _sections(record: Any, length: int) -> tuple[Section, ...]:
    """Check that sections do not overlap and are inside the file."""
    sections: list[Section] = []
    end = 0
    for offset, size, named in record:
        if not (type(offset) is type(size) is int and isinstance(named, str)) or size < 0:
            raise TypeError("a section is an offset, a length and a digest")
        if offset < end or offset % ALIGN or offset + size > length:
            raise ValueError("sections overlap, or are outside the file")
        end = offset + size
        sections.append((offset, size, named))
    return tuple(sections)


# ---- writing ----


class Body:
    """Sections in a row; equal ones are stored once."""

    def __init__(self) -> None:
        self.sections: list[Section] = []
        self._parts: list[memoryview] = []
        self._known: dict[tuple[str, int], int] = {}
        self._end = 0

    def add(self, content: bytes | memoryview | Array) -> int:
        """The index of the section with this content; adds it if there is none."""
        view = _bytes_of(content)
        key = digest(view), view.nbytes
        if key not in self._known:
            self._known[key] = len(self.sections)
            offset = round_up(self._end, ALIGN)
            self.sections.append((offset, view.nbytes, key[0]))
            self._parts.append(view)
            self._end = offset + view.nbytes
        return self._known[key]

    def pieces(self) -> Iterator[memoryview]:
        """The bytes of the body, in order."""
        end = 0
        for (offset, length, _), part in zip(self.sections, self._parts, strict=True):
            if offset > end:
                yield memoryview(bytes(offset - end))
            yield part
            end = offset + length

    @property
    def length(self) -> int:
        return self._end


def _bytes_of(content: bytes | memoryview | Array) -> memoryview:
    if isinstance(content, np.ndarray):
        ordered = np.ascontiguousarray(content)
        return ordered.reshape(-1).view(np.uint8).data if ordered.size else memoryview(b"")
    return memoryview(content).cast("B")


def checksum(runtime: Runtime, parts: Iterable[memoryview]) -> int:
    """The checksums of a byte stream."""
    sums: list[int] = []
    piece, filled = np.empty(BLOCK, np.uint8), 0

    def end_of_piece() -> None:
        sums.append(runtime.held.smelt_checksum(piece.ctypes.data, filled))

    for part in parts:
        rest = np.frombuffer(part, np.uint8)
        while rest.size:
            taken = min(rest.size, BLOCK - filled)
            piece[filled : filled + taken] = rest[:taken]
            filled, rest = filled + taken, rest[taken:]
            if filled == BLOCK:
                end_of_piece()
                filled = 0
    if filled:
        end_of_piece()
    all_sums = np.array(sums, np.uint64)
    return int(runtime.held.smelt_checksum(all_sums.ctypes.data, all_sums.nbytes))


def lay_out(
    runtime: Runtime, body: Body, manifest: dict[str, Any], sign: Callable[[str], tuple[bytes, bytes]] | None
) -> Iterator[memoryview]:
    """The bytes of a bundle, in order. `sign` maps the head's digest to a public key and a signature."""
    manifest = manifest | {"sections": [list(section) for section in body.sections]}
    alignment = HUGE if body.length >= HUGE else PAGE
    length = HEAD + len(_to_text(manifest, 0))
    start = round_up(length, alignment)
    gap = memoryview(bytes(start - length))
    written = _to_text(manifest, checksum(runtime, chain([gap], body.pieces())))
    front = _FRONT.pack(MAGIC, FORMAT, alignment, start + body.length, len(written))
    key = sign("")[0] if sign else bytes(32)
    found = digest(front, key, written)
    signature = sign(found)[1] if sign else bytes(64)
    yield memoryview(front + bytes.fromhex(found) + key + signature + written)
    yield gap
    yield from body.pieces()


def _to_text(manifest: dict[str, Any], checksum: int) -> bytes:
    """The manifest as text. Its length does not depend on the checksum."""
    whole = {"checksum": f"{checksum:016x}"} | manifest
    return json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
