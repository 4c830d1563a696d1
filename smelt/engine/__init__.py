"""Program + Weights → Executable: the engines, and how one is chosen."""

from __future__ import annotations

from smelt.engine.native import NativeEngine
from smelt.engine.reference import ReferenceEngine
from smelt.engine_api import Engine, Platform, choose
from smelt.errors import UnsupportedError
from smelt.ir.core import Program

ENGINES: tuple[Engine[Program], ...] = (NativeEngine(), ReferenceEngine())  # in the order `auto` tries them


def platform(device: str = "auto", engine: str = "auto") -> Platform[Program]:
    """The device and engine that names stand for; the processor is the only device so far."""
    if device not in ("auto", "cpu"):
        raise UnsupportedError("unknown device", expected="auto, cpu", got=device)
    return Platform("cpu", choose(engine, ENGINES))
