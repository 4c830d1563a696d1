"""StableHLO files as programs: text, portable bytecode, artifacts of jax.export.

A safetensors file of the same name holds the weights.
"""

from __future__ import annotations

from pathlib import Path

from smelt.errors import ParseError
from smelt.files import read_bytes
from smelt.ir.core import Program
from smelt.ir.text import parse
from smelt.ir.text.bytecode import MAGIC, read_bytecode
from smelt.read import safetensors
from smelt.read.jax_export import SUFFIX, is_export, read_export
from smelt.weights import Weights

_LARGEST = 1 << 31  # bytes: what flatbuffers can address


def read(path: Path) -> tuple[Program, Weights]:
    """The program in a file; its content says of what form it is."""
    program = _program(read_bytes(path), path)
    if not program.funcs:
        raise ParseError("the file holds no function", expected="func.func @main", got="an empty module", where=path)
    return program, _weights(path)


def _program(data: bytes, path: Path) -> Program:
    if data.startswith(MAGIC):
        return read_bytecode(data, str(path))
    if path.suffix.lower() == SUFFIX or is_export(data):
        return read_export(data, str(path))
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ParseError(
            "neither UTF-8 text, nor MLIR bytecode, nor an artifact of jax.export",
            where=path,
            got=f"byte {error.start}",
        ) from error
    return parse(text, str(path))


def is_binary(path: Path) -> bool:
    """Whether a file of any name is bytecode or an artifact of jax.export."""
    if path.stat().st_size > _LARGEST:
        return False
    data = read_bytes(path)
    return data.startswith(MAGIC) or is_export(data)


def _weights(path: Path) -> Weights:
    beside = path.with_suffix(".safetensors")
    return safetensors.read(beside) if beside.is_file() else Weights({}, source=str(beside))
