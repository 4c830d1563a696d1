"""Compiling in another process, for one that may not run a compiler: sources go out, machine code comes back.

`compile_through` makes this process ask; `compile_for_other` is what the other one answers with. The server's isolated
workers use both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.device import cpu, runtime
from smelt.device.cache import Contents
from smelt.errors import DeviceError


def compile_through(ask: Callable[[Sequence[str], bool], bytes], contents: Contents | None = None) -> None:
    """From now on, get code from `ask(sources, is_runtime)`. `is_runtime`: with the flags of the runtime library.
    `contents`: where this process keeps other results of compiling."""

    def compile(sources: Sequence[str], extra: Sequence[str]) -> bytes:
        if tuple(extra) not in ((), runtime.flags()):
            raise DeviceError("this cannot be compiled in another process", got=" ".join(extra))
        return ask(sources, bool(extra))

    cpu.compile_elsewhere(compile, contents)


def compile_for_other(sources: Sequence[str], is_runtime: bool) -> bytes:
    """A library for this machine, from the cache or compiled now."""
    return cpu.build_bytes(sources, *(runtime.flags() if is_runtime else ()))
