"""Packages that are functions, too: `smelt.read(path)` beside `smelt.read.safetensors`.

A package and a public function share a name, and importing a submodule binds the name to the package.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    target: tuple[str, str]

    def __call__(self, *args: Any, **keywords: Any) -> Any:
        module, name = self.target
        return getattr(import_module(module), name)(*args, **keywords)


def make_callable(package: str, module: str, name: str) -> None:
    """Calling a package calls this function of a module, which is imported by the first call."""
    made = sys.modules[package]
    made.__class__ = _CallablePackage
    made.target = module, name  # type: ignore[attr-defined]
