"""smelt: take any model, prove its shapes, compile it for this machine, run it.

    import smelt

    model = smelt.load("model.onnx")
    y = model(image=x)["logits"]

The names below are all there is to the public surface; each is imported when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Shape": "smelt.shape",
    "dtype": "smelt.dtype",
    "SmeltError": "smelt.errors",
    "HostBuffer": "smelt.buffer",
    "Weights": "smelt.weights",
    "Program": "smelt.ir.core",
    "parse": "smelt.ir.text",
    "print_program": "smelt.ir.text",
    "verify": "smelt.ir.verify",
    "platform": "smelt.engine",
    "load": "smelt.model",
    "read": "smelt.model",
}

if TYPE_CHECKING:
    from smelt.buffer import HostBuffer as HostBuffer
    from smelt.dtype import dtype as dtype
    from smelt.engine import platform as platform
    from smelt.errors import SmeltError as SmeltError
    from smelt.ir.core import Program as Program
    from smelt.ir.text import parse as parse
    from smelt.ir.text import print_program as print_program
    from smelt.ir.verify import verify as verify
    from smelt.model import load as load
    from smelt.model import read as read
    from smelt.shape import Shape as Shape
    from smelt.weights import Weights as Weights

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'smelt' has no attribute {name!r}")
    value = getattr(import_module(_PUBLIC[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
