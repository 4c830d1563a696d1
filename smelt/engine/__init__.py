"""Program + Weights → Executable: the engines, and how one is chosen."""

from __future__ import annotations

from smelt.engine.native import NativeEngine
from smelt.engine.pjrt import PjrtEngine
from smelt.engine.reference import ReferenceEngine
from smelt.engine_api import Engine, Platform, choose
from smelt.ir.core import Program

# In the order `auto` tries them on the processor.
ENGINES: tuple[Engine[Program], ...] = (NativeEngine(), PjrtEngine(), ReferenceEngine())


def engines(device: str = "auto") -> tuple[Engine[Program], ...]:
    """The engines for a device: all for the processor, pjrt for everything with a plug-in (`cuda`, `cuda:1`)."""
    return ENGINES if device in ("auto", "cpu") else (PjrtEngine(device),)


def platform(device: str = "auto", engine: str = "auto", *, isolate: bool = False) -> Platform[Program]:
    """The device and engine that names stand for. `isolate`: XLA works in a process of its own, for programs that are
    not trusted."""
    named = "cpu" if device == "auto" else device
    if isolate:
        return Platform(named, choose("pjrt" if engine == "auto" else engine, (PjrtEngine(named, isolate=True),)))
    return Platform(named, choose(engine, engines(device)))
