"""The machine that smelt itself runs on: cores, processor, caches, memory. Nothing here depends on a device."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from functools import cache

CACHES = "/sys/devices/system/cpu/cpu0/cache"


def cores() -> int:
    """The processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def processor() -> str:
    """The processor's own name, else its architecture."""
    named = (line.partition(":")[2] for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return " ".join(next(named, "").split()) or platform.processor() or platform.machine()


def caches() -> Iterator[tuple[int, str, int]]:
    """(level, kind, bytes) of every cache of the first core; the kind is Data, Instruction or Unified."""
    with suppress(OSError, ValueError):  # not Linux, or hidden in a container
        for folder in sorted(os.listdir(CACHES)):
            if folder.startswith("index"):
                level, kind, size = (_first_line(f"{CACHES}/{folder}/{name}") for name in ("level", "type", "size"))
                yield int(level), kind, int(size.removesuffix("K")) << 10


def _first_line(path: str) -> str:
    return next(iter(_lines(path)), "").strip()


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8") as file:
            return file.readlines()
    except OSError:
        return []
