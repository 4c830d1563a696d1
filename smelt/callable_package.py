"""Packages that are functions, too: `smelt.read(path)` beside `smelt.read.safetensors`.

A package and a public function share a name, and importing a submodule binds the name to the package.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any


def call_later(module: str, name: str) -> Callable[..., Any]:
    """A function of a module that the first call imports."""

    def call(*args: Any, **keywords: Any) -> Any:
        return getattr(import_module(module), name)(*args, **keywords)

    return call


class _CallablePackage(ModuleType):
    target: Callable[..., Any]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        return self.target(*args, **keywords)


def make_callable(package: str, module: str, name: str) -> None:
    """Calling a package calls this function of a module, which is imported by the first call."""
    made = sys.modules[package]
    made.__class__ = _CallablePackage
    made.target = call_later(module, name)  # type: ignore[attr-defined]
