"""Portable StableHLO bytecode, through jaxlib's own reader and writer.

In: the bytes of a portable artifact, or a program. Out: a program, or the bytes. Without jaxlib these two functions say
how to get it, and everything else works. Reading happens in a process of its own: damaged bytes can crash jaxlib.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

from smelt.errors import FileError, MissingPackageError, UnsupportedError
from smelt.ir.core import Program
from smelt.ir.text.parser import parse
from smelt.ir.text.printer import print_program

MAGIC = b"ML\xefR"  # how MLIR bytecode begins


def read_bytecode(data: bytes, path: str = "<bytecode>") -> Program:
    """The program in a portable artifact."""
    if not data.startswith(MAGIC):
        raise FileError(
            "this is no MLIR bytecode", expected=f"bytes that begin with {MAGIC!r}", got=data[:8], where=path
        )
    if any(importlib.util.find_spec(name) is None for name in ("jaxlib", "jaxlib.mlir")):
        raise _missing()
    command = [sys.executable, "-m", "smelt.ir.text.bytecode_worker"]
    found = subprocess.run(command, input=data, capture_output=True, env=_environment())
    if found.returncode == 0:
        return parse(found.stdout.decode(), path)
    if found.returncode == 1 and found.stdout:
        raise FileError("jaxlib cannot read this bytecode", got=found.stdout.decode().strip(), where=path)
    if b"MissingPackageError" in found.stderr:
        raise _missing()
    raise FileError("jaxlib crashes on this bytecode", got=f"exit status {found.returncode}", where=path)


def text_of(data: bytes) -> str:
    """The text of a portable artifact, in this process; ValueError where jaxlib finds something wrong."""
    ir, stablehlo, context = _jaxlib()
    with context, ir.Location.unknown():
        try:
            module = stablehlo.deserialize_portable_artifact(context, data)
        except Exception as error:  # jaxlib's own classes for what it finds wrong
            raise ValueError(_first_line(error)) from None
        return str(module.operation.get_asm(enable_debug_info=True))


def _environment() -> dict[str, str]:
    """Ours, with the modules that this process finds."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


def _missing() -> MissingPackageError:
    return MissingPackageError(
        "portable bytecode needs jaxlib", expected="jaxlib", got="no such package", remedy='pip install "smelt[xla]"'
    )


def write_bytecode(program: Program, *, version: str | None = None) -> bytes:
    """A portable artifact that says a program; `version` is the oldest StableHLO that must read it (default: any)."""
    ir, stablehlo, context = _jaxlib()
    text = print_program(program, export=True, locations=True)
    with context:
        try:
            module = ir.Module.parse(text)
            target = version or stablehlo.get_minimum_version()
            return bytes(stablehlo.serialize_portable_artifact(module, target))
        except Exception as error:  # jaxlib's own classes for what it finds wrong
            raise UnsupportedError("jaxlib cannot write this program as bytecode", got=_first_line(error)) from None


def _first_line(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__


def _jaxlib() -> tuple[Any, Any, Any]:
    """jaxlib's MLIR bindings and a context with the dialects that programs use."""
    try:
        from jaxlib.mlir import ir
        from jaxlib.mlir._mlir_libs import _jax_mlir_ext
        from jaxlib.mlir.dialects import chlo, sdy, stablehlo
    except ImportError:
        raise _missing() from None
    registry = ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context = ir.Context()
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    for dialect in (stablehlo, chlo, sdy):
        dialect.register_dialect(context)
    return ir, stablehlo, context
