"""The protocol's system shared-memory extension: tensors in POSIX shared memory instead of in requests.

Registered regions are read and written through their descriptors, never mapped: a client that truncates its region gets
an error, while a mapping would end the server. With `shared_memory = true` those with administration may register.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from smelt.serve.http import Request, Response, Routes, json_response, read_json
from smelt.serve.problems import NotFoundError, RequestError, TooLargeError, UnavailableError

FOLDER = Path("/dev/shm")  # where POSIX shared memory is on Linux
MAX_REGIONS = 1024
REGION, SIZE, OFFSET = "shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"
_KEY = re.compile(r"/?[^/\0]{1,254}")


@dataclass(frozen=True, slots=True)
class Region:
    name: str
    key: str
    offset: int
    byte_size: int
    descriptor: int

    def record(self) -> dict[str, Any]:
        return {"name": self.name, "key": self.key, "offset": self.offset, "byte_size": self.byte_size}


class Regions:
    """Regions by name."""

    def __init__(self) -> None:
        self._regions: dict[str, Region] = {}

    def register(self, name: str, key: str, offset: int, byte_size: int) -> None:
        if name in self._regions:
            raise RequestError(f"the region {name!r} is registered already", remedy="unregister it first")
        if len(self._regions) >= MAX_REGIONS:
            raise UnavailableError("there are too many regions", expected=f"at most {MAX_REGIONS}")
        if not name or not _KEY.fullmatch(key) or key.strip("/") in ("", ".", ".."):
            raise RequestError("no name of shared memory", expected="/NAME, as shm_open takes it", got=key[:80])
        if offset < 0 or byte_size <= 0:
            raise RequestError(f"{name}: no part of a region", got=f"{byte_size} bytes from {offset}")
        descriptor = _open(key)
        size = os.fstat(descriptor).st_size
        if offset + byte_size > size:
            os.close(descriptor)
            raise RequestError(
                f"{name}: the region ends early", expected=f"at least {offset + byte_size} bytes", got=f"{size} bytes"
            )
        self._regions[name] = Region(name, key, offset, byte_size, descriptor)

    def unregister(self, name: str = "") -> None:
        """One region, or all; one that is not there is no mistake."""
        for each in [name] if name else list(self._regions):
            region = self._regions.pop(each, None)
            if region is not None:
                os.close(region.descriptor)

    def status(self, name: str = "") -> list[dict[str, Any]]:
        return [each.record() for each in ([self._find(name)] if name else self._regions.values())]

    def _find(self, name: Any) -> Region:
        region = self._regions.get(name) if isinstance(name, str) else None
        if region is None:
            raise NotFoundError(f"no shared-memory region {str(name)[:80]!r}", expected=", ".join(self._regions))
        return region

    def _part(self, tensor: str, parameters: Mapping[str, Any]) -> tuple[Region, int, int]:
        """The region that a tensor names, where in its file the part begins, and its size."""
        region = self._find(parameters[REGION])
        size, offset = parameters.get(SIZE), parameters.get(OFFSET, 0)
        for number in (size, offset):
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise RequestError(f"{tensor}: {SIZE} or {OFFSET} is no size", got=repr(number)[:40])
        assert isinstance(size, int)
        if offset + size > region.byte_size:
            raise RequestError(
                f"{tensor}: more than the region {region.name!r}",
                expected=f"at most {region.byte_size} bytes",
                got=f"{size} bytes from {offset}",
            )
        return region, region.offset + offset, size

    def read(self, tensor: str, parameters: Mapping[str, Any], taken: int = 0) -> memoryview:
        """The bytes of an input. `taken`: what was read for the request's inputs before it. Together they are no larger
        than all regions: inputs that share a part would make a short request a large one."""
        region, at, size = self._part(tensor, parameters)
        most = sum(each.byte_size for each in self._regions.values())
        if taken + size > most:
            raise TooLargeError(
                f"{tensor}: the inputs are larger than all shared memory",
                expected=f"at most {most} bytes",
                got=f"{taken + size} bytes",
            )
        data = os.pread(region.descriptor, size, at)
        if len(data) != size:
            raise RequestError(f"{tensor}: the region has become shorter", expected=f"{size} bytes", got=len(data))
        return memoryview(data)

    def write(self, tensor: str, parameters: Mapping[str, Any], data: bytes) -> dict[str, Any]:
        """Put an output into its region. What the answer says about it."""
        region, at, size = self._part(tensor, parameters)
        if len(data) > size:
            raise RequestError(
                f"{tensor}: the output does not fit its part of {region.name!r}",
                expected=f"{len(data)} bytes",
                got=size,
            )
        if at + len(data) > os.fstat(region.descriptor).st_size:
            raise RequestError(f"{tensor}: the region has become shorter")
        written = os.pwrite(region.descriptor, data, at)
        if written != len(data):
            raise UnavailableError(f"{tensor}: the region could not be written", got=f"{written} bytes")
        place = {OFFSET: at - region.offset} if at > region.offset else {}
        return {REGION: region.name, SIZE: len(data), **place}


def _open(key: str) -> int:
    path = FOLDER / key.lstrip("/")
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise RequestError(f"the shared memory {key!r} cannot be opened", got=error.strerror) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise RequestError(f"{key!r} is no shared memory")
    return descriptor


# ---- REST ----


class RegisterRequest(msgspec.Struct):
    key: str
    byte_size: int
    offset: int = 0


_REGISTER = msgspec.json.Decoder(RegisterRequest)
PREFIX = "/v2/systemsharedmemory"


class SharedMemory:
    """The extension's paths. The application asks for administration before any of them."""

    def __init__(self, regions: Regions, body_timeout: float) -> None:
        self.regions, self._timeout = regions, body_timeout

    def add_to(self, routes: Routes) -> None:
        for place in (PREFIX, f"{PREFIX}/region/{{}}"):
            routes.add("GET", f"{place}/status", self.status)
            routes.add("POST", f"{place}/unregister", self.unregister)
        routes.add("POST", f"{PREFIX}/region/{{}}/register", self.register)

    async def status(self, request: Request) -> Response:
        return json_response(self.regions.status(*request.parts))

    async def register(self, request: Request) -> Response:
        asked = read_json(_REGISTER, await request.body(1 << 16, self._timeout), "the request")
        self.regions.register(request.parts[0], asked.key, asked.offset, asked.byte_size)
        return json_response({})

    async def unregister(self, request: Request) -> Response:
        await request.body(1 << 16, self._timeout)
        self.regions.unregister(*request.parts)
        return json_response({})
