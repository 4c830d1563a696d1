"""The compiler process of one worker: C sources in, machine code out. Only it runs other programs and writes files.

It never sees a model file. Its cache is shared by isolated models and by nothing else. Compiled steps of language
models are kept there as well, under keys of the model that kept them: no other model reads them.
"""

from __future__ import annotations

import hashlib
import os
import socket
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from smelt.device import cache
from smelt.device.elsewhere import compile_for_other, compile_through
from smelt.errors import DeviceError, SmeltError, error_of
from smelt.serve.isolation import sandbox
from smelt.serve.isolation.channel import (
    Channel,
    ClosedError,
    Compile,
    Compiled,
    Failed,
    Find,
    Found,
    Keep,
    Message,
)

MOST_SOURCES = 1 << 30  # bytes
MOST_KEPT = 64 << 20  # bytes of an entry


class CompilerSetup(msgspec.Struct):
    """Where a compiler process keeps code. `owner`: the model and the state of its files."""

    folder: str
    owner: str


def run(setup: Any, sockets: list[socket.socket]) -> None:
    """Answer a worker until it ends."""
    given = msgspec.convert(setup, CompilerSetup)
    folder = Path(given.folder)
    scratch = folder / "tmp"
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"SMELT_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(scratch)}
    tempfile.tempdir = str(scratch)
    sandbox.confine_compiler([folder])
    channel = Channel(sockets[0], MOST_SOURCES)
    while True:
        try:
            asked = channel.receive()
        except ClosedError:
            return
        if not isinstance(asked, Compile):
            _answer_about_entry(channel, given.owner, asked)
            continue
        texts = [channel.content(each).tobytes().decode() for each in asked.sources]
        try:
            code = compile_for_other(texts, asked.runtime)
        except SmeltError as error:
            channel.send(Failed(0, error.record()))
        else:
            channel.send_bytes(Compiled, code)


def _answer_about_entry(channel: Channel, owner: str, asked: Message) -> None:
    assert isinstance(asked, Find | Keep), asked
    key = hashlib.blake2b(f"{owner}\0{asked.key}".encode(), digest_size=20).hexdigest()
    if isinstance(asked, Find):
        found = cache.default().read(key)
        if found is not None:
            channel.send_bytes(Found, found)
            return
    elif asked.content.size <= MOST_KEPT:
        cache.default().keep(key, channel.content(asked.content).tobytes())
    channel.send(Found(None))


class KeptElsewhere:
    """Entries of this process's model in the cache of its compiler process."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    def read(self, key: str) -> bytes | None:
        return self._ask(lambda: self._channel.send(Find(key)))

    def keep(self, key: str, content: bytes) -> None:
        if len(content) <= MOST_KEPT:
            self._ask(lambda: self._channel.send_bytes(lambda at: Keep(key, at), content))

    def _ask(self, send: Callable[[], object]) -> bytes | None:
        """The answer to a question; None if the compiler process has ended."""
        try:
            send()
            answer = self._channel.receive()
        except ClosedError:
            return None
        assert isinstance(answer, Found), answer
        return None if answer.content is None else self._channel.content(answer.content).tobytes()


def ask_compiler(channel: Channel) -> None:
    """Have this process compile in the one at the other end."""

    def ask(sources: Sequence[str], is_runtime: bool) -> bytes:
        try:
            channel.send_sources(sources, is_runtime)
            answer = channel.receive()
        except ClosedError as error:
            raise DeviceError("the compiler process of the worker has ended", got=error.got) from error
        if isinstance(answer, Compiled):
            return channel.content(answer.code).tobytes()
        assert isinstance(answer, Failed)
        raise error_of(answer.error)

    compile_through(ask, KeptElsewhere(channel))
