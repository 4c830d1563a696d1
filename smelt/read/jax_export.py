"""Artifacts that `jax.export` serialises: a flatbuffer around portable bytecode. Called by `read.stablehlo`.

Only the fields that say what runs are read, with every offset checked; neither jax nor flatbuffers is needed for that.
"""

from __future__ import annotations

from dataclasses import dataclass

from smelt.errors import FileError, UnsupportedError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Func, Program
from smelt.ir.text.bytecode import MAGIC, read_bytecode

SUFFIX = ".jaxexport"
_PLATFORMS, _MODULE = 22, 30  # where the vtable of JAX's table `Exported` says a field's offset
_PLATFORM_INDEX = "_platform_index"  # of an argument that chooses between the code for several platforms


@dataclass(frozen=True, slots=True)
class Exported:
    """The bytecode in an artifact, and the platforms that it is for, in the order of their code."""

    module: bytes
    platforms: tuple[str, ...]


def is_export(data: bytes) -> bool:
    """Whether bytes are an artifact with a module in it."""
    try:
        unpack(data, "")
    except FileError:
        return False
    return True


def read_export(data: bytes, path: str) -> Program:
    """The program in an artifact, for the processor."""
    found = unpack(data, path)
    program = read_bytecode(found.module, path)
    attrs = program.main.arg_attrs[0] if program.funcs and program.main.arg_attrs else {}
    if attrs.get("jax.global_constant") != _PLATFORM_INDEX:
        return program
    if "cpu" not in found.platforms:
        raise UnsupportedError(
            "the artifact has no code for the processor",
            expected="cpu",
            got=", ".join(found.platforms),
            where=path,
            remedy='jax.export.export(…, platforms=["cpu", …])',
        )
    return _for_platform(program, found.platforms.index("cpu"))


def _for_platform(program: Program, index: int) -> Program:
    """A program whose entry has no argument for the platform."""
    old = program.main
    inner = Func("_any_platform", old.body, "private", old.arg_attrs, old.result_attrs, old.attrs, old.location)
    types = [arg.type for arg in old.args[1:]]
    f = FuncBuilder(old.name, types, [arg.name for arg in old.args[1:]], old.arg_attrs[1:])
    f.signatures = {inner.name: inner.type}
    chosen = f.constant(index, old.args[0].shape.dtype)
    called = f.op("func.call", chosen, *f.args, callee=inner.name, result=[value.type for value in old.results])
    entry = f.func(*called.results, result_attrs=old.result_attrs)
    return program.replace(entry, inner)


# ---- the flatbuffer ----


def unpack(data: bytes, path: str) -> Exported:
    table = _Table(data, path)
    module = table.bytes(_MODULE)
    if not module.startswith(MAGIC):
        raise table.damage("a module that is no MLIR bytecode")
    return Exported(module, tuple(table.texts(_PLATFORMS)))


class _Table:
    """The root table of a flatbuffer: fields at offsets that its vtable lists."""

    def __init__(self, data: bytes, path: str) -> None:
        self.data, self.path = data, path
        self.at = self._number(0, 4)
        self.vtable = self.at - self._number(self.at, 4, signed=True)
        self.size = self._number(self.vtable, 2)

    def damage(self, what: str) -> FileError:
        return FileError(
            "this is no artifact of jax.export, or a damaged one",
            expected="what jax.export.Exported.serialize() gives",
            got=what,
            where=self.path or None,
        )

    def _number(self, at: int, size: int, *, signed: bool = False) -> int:
        if not 0 <= at <= len(self.data) - size:
            raise self.damage(f"an offset of {at} in a file of {len(self.data)} bytes")
        return int.from_bytes(self.data[at : at + size], "little", signed=signed)

    def _vector(self, at: int) -> tuple[int, int]:
        """Where the elements of the vector that `at` refers to begin, and how many there are."""
        start = at + self._number(at, 4)
        return start + 4, self._number(start, 4)

    def _field(self, slot: int) -> int | None:
        offset = self._number(self.vtable + slot, 2) if slot + 2 <= self.size else 0
        return self.at + offset if offset else None

    def _bytes(self, at: int) -> bytes:
        start, length = self._vector(at)
        if start + length > len(self.data):
            raise self.damage(f"{length} bytes at {start} in a file of {len(self.data)} bytes")
        return self.data[start : start + length]

    def bytes(self, slot: int) -> bytes:
        at = self._field(slot)
        if at is None:
            raise self.damage("no module")
        return self._bytes(at)

    def texts(self, slot: int) -> list[str]:
        at = self._field(slot)
        if at is None:
            return []
        start, count = self._vector(at)
        if start + 4 * count > len(self.data):
            raise self.damage(f"{count} names at {start} in a file of {len(self.data)} bytes")
        return [self._bytes(start + 4 * i).decode(errors="replace") for i in range(count)]
