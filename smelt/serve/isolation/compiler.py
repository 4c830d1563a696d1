"""The compiler process of one worker: C sources in, machine code out. Only it runs other programs and writes files.

It never sees a model file. Its cache is shared by isolated models and by nothing else.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from smelt.device.elsewhere import compile_for_other, compile_through
from smelt.errors import DeviceError, SmeltError, error_of
from smelt.serve.isolation import sandbox
from smelt.serve.isolation.channel import Channel, ClosedError, Compile, Compiled, Failed


class CompilerSetup(msgspec.Struct):
    """Where a compiler process keeps code."""

    folder: str


def run(setup: Any, sockets: list[socket.socket]) -> None:
    """Answer a worker until it ends."""
    folder = Path(msgspec.convert(setup, CompilerSetup).folder)
    scratch = folder / "tmp"
    scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ |= {"SMELT_CACHE_DIR": str(folder), "XDG_CACHE_HOME": str(folder), "TMPDIR": str(scratch)}
    tempfile.tempdir = str(scratch)
    sandbox.confine_compiler([folder])
    channel = Channel(sockets[0])
    while True:
        try:
            asked = channel.receive()
        except ClosedError:
            return
        assert isinstance(asked, Compile)
        texts = [channel.content(each).tobytes().decode() for each in asked.sources]
        try:
            code = compile_for_other(texts, asked.runtime)
        except SmeltError as error:
            channel.send(Failed(0, error.record()))
        else:
            channel.send_bytes(Compiled, code)


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

    compile_through(ask)
