"""C files → objects, executables and libraries for any machine, through the compiler in the `ziglang` package.

`smelt.aot` calls it. Files are compiled in parallel in one temporary folder; nothing is cached but zig's own libraries.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

from smelt.activity import progress
from smelt.device import cpu
from smelt.device.host import cores
from smelt.errors import DeviceError
from smelt.frozen import Frozen

RUNTIME = Path(os.path.dirname(__file__)).parent / "runtime"
LANGUAGE = tuple(flag for flag in cpu.FLAGS if flag not in ("-O3", "-fPIC", "-g0"))  # that generated code relies on
WARNINGS = ("-Wno-c23-extensions",)  # #embed


class Unit(Frozen):
    """A C file: its name, its text or its path, and the flags that only it has."""

    name: str
    text: str | Path
    flags: tuple[str, ...] = ()


@contextmanager
def workshop() -> Iterator[Workshop]:
    """A temporary folder to compile in."""
    command = cpu.compiler()
    if command is None or command[-2:] != ("ziglang", "cc"):
        raise DeviceError(
            "only the ziglang package compiles for other machines",
            got=" ".join(command or ()) or "no compiler",
            remedy="pip install ziglang, and unset SMELT_CC",
        )
    with tempfile.TemporaryDirectory(prefix="smelt-aot-", ignore_cleanup_errors=True) as folder:
        yield Workshop(command, Path(folder))


class Workshop:
    """Compiles and links in one folder, which goes away with it."""

    def __init__(self, command: tuple[str, ...], folder: Path) -> None:
        self.command, self.folder = command, folder
        self._environment = cpu.zig_environment(folder)

    def write(self, files: Mapping[str, bytes]) -> None:
        """Files that C files include or embed."""
        for name, content in files.items():
            (self.folder / name).write_bytes(content)

    def compile(self, units: Sequence[Unit], flags: Sequence[str]) -> list[str]:
        """The objects of C files, by name, compiled in parallel."""
        tell = progress.get() or (lambda done, total: None)
        with ThreadPoolExecutor(cores()) as pool:
            jobs = [pool.submit(self._compile, unit, flags) for unit in units]
            try:
                for done, job in enumerate(as_completed(jobs)):
                    job.result()
                    tell(done + 1, len(jobs) + 1)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        return [f"{unit.name}.o" for unit in units]

    def link(self, objects: Sequence[str], name: str, flags: Sequence[str]) -> bytes:
        """What the linker makes of objects."""
        self.call(*flags, "-o", name, *objects)
        return (self.folder / name).read_bytes()

    def archive(self, objects: Sequence[str], name: str) -> bytes:
        """A static library."""
        self.run((*self.command[:-1], "ar"), "rcsD", name, *objects)
        return (self.folder / name).read_bytes()

    def call(self, *arguments: str) -> None:
        self.run(self.command, *arguments)

    def run(self, command: tuple[str, ...], *arguments: str) -> None:
        cpu.call_compiler(command, arguments, self._environment, self.folder)

    def _compile(self, unit: Unit, flags: Sequence[str]) -> None:
        path: Path | str = f"{unit.name}.c"
        if isinstance(unit.text, str):
            (self.folder / path).write_text(unit.text)
        else:
            path = unit.text
        self.call(*cpu.FLAGS, *WARNINGS, *flags, *unit.flags, "-c", "-o", f"{unit.name}.o", str(path))
