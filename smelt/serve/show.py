"""A model's plan and kernel profile for the web page: `smelt show` and `smelt profile` in a process of their own.

The server itself reads no model file for it. The process of a model that is not trusted has few rights
(`isolation.confined_command`). Both need administration: they take processor time from requests.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

from smelt.serve.http import Request, Response, Routes, json_response
from smelt.serve.isolation.remote import code_folder, files_of
from smelt.serve.keys import Keys
from smelt.serve.models import Catalogue, Version
from smelt.serve.pipeline import is_pipeline
from smelt.serve.problems import BusyError, DeadlineError, RequestError

SECONDS = 120.0
MOST = 64 << 20  # bytes that a command may say
_VIEWS = {"program": ("show", "--stage", "plan"), "profile": ("profile", "--seconds", "1")}


class Show:
    """`/api/v1/models/NAME/program` and `…/profile`, one at a time."""

    def __init__(self, catalogue: Catalogue, keys: Keys) -> None:
        self.catalogue, self.keys, self._busy = catalogue, keys, False

    def add_to(self, routes: Routes) -> None:
        for view in _VIEWS:
            routes.add("GET", f"/api/v1/models/{{}}/{view}", self.show)

    async def show(self, request: Request) -> Response:
        self.keys.check_admin(request.key)
        (name,) = request.parts
        version = self.catalogue.pick(name)
        if version.language or is_pipeline(version.config, version.path):
            raise RequestError(f"{name} is no model of tensors", remedy="one of its models, if it is a pipeline")
        if self._busy:
            raise BusyError("another model is being shown", retry_after=5)
        self._busy = True
        try:
            return json_response(await _run(version, _VIEWS[request.path.rpartition("/")[2]]))
        finally:
            self._busy = False


def _confine(path: Path) -> list[str]:
    """The module, and its arguments, that run a command without rights. Code of one model is not read for another."""
    folder = code_folder(f"shown-{hashlib.blake2b(str(path.resolve()).encode(), digest_size=8).hexdigest()}")
    return ["smelt.serve.isolation.confined_command", str(folder), json.dumps([str(each) for each in files_of(path)])]


async def _listen(process: asyncio.subprocess.Process) -> tuple[bytes, bytes]:
    """What a process says to the end, out and as complaints. It may not say more than fits here."""

    async def read(stream: asyncio.StreamReader | None) -> bytes:
        assert stream is not None
        parts, size = [], 0
        while part := await stream.read(1 << 16):
            parts.append(part)
            size += len(part)
            if size > MOST:
                process.kill()
                raise RequestError("there is too much to show", expected=f"at most {MOST} bytes")
        return b"".join(parts)

    said, complaint = await asyncio.gather(read(process.stdout), read(process.stderr))
    await process.wait()
    return said, complaint


async def _run(version: Version, view: tuple[str, ...]) -> dict[str, Any]:
    config = version.config
    options = [f"--size={symbol}={size}" for symbol, size in config.sizes.items()]
    options += [f"--static={name}={json.dumps(value)}" for name, value in config.static.items()]
    command = [view[0], str(version.path.resolve()), *view[1:], *options, "--json"]
    module = await asyncio.to_thread(_confine, version.path) if version.isolated else ["smelt"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", *module, *command,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            said, complaint = await _listen(process)
    except TimeoutError:
        raise DeadlineError(f"{view[0]} took too long", expected=f"{SECONDS:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    try:
        found: Any = json.loads(said)
        if not isinstance(found, dict):
            raise ValueError("no record")
    except (ValueError, RecursionError):
        text = complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
        raise RequestError(f"{version.name} cannot be shown", got=text[:400]) from None
    if process.returncode:
        raise RequestError(
            str(found.get("message", "it cannot be shown"))[:4000], remedy=str(found.get("remedy", ""))[:4000]
        )
    return found | {"model": version.name}
