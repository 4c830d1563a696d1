"""The command line. `main.py` has the commands and their options; each command is one file.

`cli.run` is the module `smelt.cli.run`, imported when it is first used: a command imports only what it needs.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smelt.cli import bench as bench
    from smelt.cli import bench_language as bench_language
    from smelt.cli import bundle as bundle
    from smelt.cli import cache as cache
    from smelt.cli import chat as chat
    from smelt.cli import check as check
    from smelt.cli import compile as compile
    from smelt.cli import demo as demo
    from smelt.cli import demo_chat as demo_chat
    from smelt.cli import devices as devices
    from smelt.cli import diff as diff
    from smelt.cli import embed as embed
    from smelt.cli import export as export
    from smelt.cli import generate as generate
    from smelt.cli import inspect as inspect
    from smelt.cli import load as load
    from smelt.cli import pictures as pictures
    from smelt.cli import preflight as preflight
    from smelt.cli import profile as profile
    from smelt.cli import pull as pull
    from smelt.cli import quantise as quantise
    from smelt.cli import random_inputs as random_inputs
    from smelt.cli import run as run
    from smelt.cli import serve as serve
    from smelt.cli import show as show
    from smelt.cli import standalone as standalone
    from smelt.cli import top as top
    from smelt.cli import tune as tune


def __getattr__(name: str) -> Any:
    module = f"{__name__}.{name}"
    if name.startswith("_") or find_spec(module) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(module)
