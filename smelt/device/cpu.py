"""Compile C for a processor and load the library. `device.cache` keeps the libraries.

The compiler is the clang inside the `ziglang` package, else clang, gcc or cc; `SMELT_CC` overrides. Running compiled
code does not import this module.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING

from smelt.activity import progress
from smelt.device import cache as kept
from smelt.device.host import cores
from smelt.device.library import load_descriptor, load_library
from smelt.device.processor import TARGETS as TARGETS
from smelt.device.processor import has_pairs as has_pairs
from smelt.device.processor import list_absent
from smelt.device.processor import target as target
from smelt.errors import DeviceError, FileError
from smelt.target import Target

if TYPE_CHECKING:
    import tempfile
    from pathlib import Path

FLAGS = (
    "-O3",
    "-fPIC",
    "-std=c11",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-g0",
)
LIBRARY = "program.so"
PATIENCE = 1800  # timeout of one compiler run, in seconds
ROOM = 32 << 20  # bytes of free disk space that a compiler needs


@cache
def compiler() -> tuple[str, ...] | None:
    """The command of the C compiler, or None."""
    chosen = os.environ.get("SMELT_CC")
    if chosen:
        import shlex

        return tuple(shlex.split(chosen))
    from importlib.util import find_spec

    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    import shutil

    for name in ("clang", "gcc", "cc"):
        path = shutil.which(name)
        if path:
            return (path,)
    return None


# Compiles sources with extra flags in another process, where this one may not run a compiler (`compile_elsewhere`).
_elsewhere: list[Callable[[Sequence[str], Sequence[str]], bytes]] = []


def compile_elsewhere(
    compile: Callable[[Sequence[str], Sequence[str]], bytes], contents: kept.Contents | None = None
) -> None:
    """Have `build` call this from now on: sources and extra flags → a library for this machine's `target()`.
    `contents`: where other results of compiling are kept."""
    _elsewhere[:] = [compile]
    kept.leave_to_other(contents)


def build(source: str | Sequence[str], *extra: str, processor: Target | None = None) -> ctypes.CDLL:
    """Compile C (one file or several, with extra compiler flags) into a library and load it, through the cache."""
    import hashlib
    from pathlib import Path

    processor = processor or target()
    absent = list_absent(processor)
    if absent:
        raise DeviceError("this machine cannot run code for the target", expected=absent, remedy="unset SMELT_TARGET")
    if _elsewhere:
        code = _ask_elsewhere(source, extra, processor)
        return load_library(code, hashlib.blake2b(code, digest_size=16).hexdigest())
    work = _Work.of(source, processor, extra)
    store = kept.default()
    found = store.open(work.key)
    if found is None:
        with work.run(store.folder) as scratch:
            made = Path(scratch) / LIBRARY
            store.put(work.key, made)
            found = store.open(work.key)
            if found is None:  # it could not be cached
                code = made.read_bytes()
                return load_library(code, hashlib.blake2b(code, digest_size=16).hexdigest())
    file, entry = found
    return load_descriptor(file, entry.digest)


def _ask_elsewhere(source: str | Sequence[str], extra: Sequence[str], processor: Target) -> bytes:
    if processor.flags != target().flags:
        raise DeviceError("code for another target cannot be compiled here", got=processor.name)
    return _elsewhere[0]((source,) if isinstance(source, str) else source, extra)


def build_bytes(source: Sequence[str], *extra: str) -> bytes:
    """The library that `build` would load, for this machine's `target()`; it is not loaded."""
    return _Work.of(source, target(), extra).read()


def compile_to(path: Path, source: str | Sequence[str], *extra: str, processor: Target | None = None) -> None:
    """Compile C into a library file, without the cache. The target may be another processor than this one."""
    import shutil
    from pathlib import Path

    with _Work.of(source, processor or target(), extra).run(path.parent) as scratch:
        try:
            shutil.copyfile(Path(scratch) / LIBRARY, path)
        except OSError as error:
            raise FileError(
                f"cannot write {path}", got=error, remedy="choose a folder with space that you own"
            ) from error


def compile_bytes(source: str | Sequence[str], *extra: str, processor: Target) -> bytes:
    """The same as bytes, through the cache."""
    if _elsewhere:
        return _ask_elsewhere(source, extra, processor)
    return _Work.of(source, processor, extra).read()


# ---- compiling ----


class _Work:
    """Sources, the compiler command and its flags. `key` is their hash, the key in the cache."""

    def __init__(self, command: tuple[str, ...], flags: tuple[str, ...], texts: tuple[str, ...], key: str) -> None:
        self.command, self.flags, self.texts, self.key = command, flags, texts, key

    @staticmethod
    def of(source: str | Sequence[str], processor: Target, extra: Sequence[str]) -> _Work:
        command = compiler()
        if command is None:
            raise DeviceError(
                "no C compiler", expected="the ziglang package, clang, gcc or cc", remedy="pip install ziglang"
            )
        import hashlib

        texts = (source,) if isinstance(source, str) else tuple(source)
        flags = (*FLAGS, *_flags(processor, _is_zig(command)), *extra)
        named = [*command, _version(command), *flags, processor.name, *sorted(processor.features), *texts]
        key = hashlib.blake2b("\0".join(named).encode(), digest_size=20).hexdigest()
        return _Work(command, flags, texts, key)

    def read(self) -> bytes:
        """The library as bytes, through the cache."""
        from pathlib import Path

        store = kept.default()
        found = store.read(self.key)
        if found is not None:
            return found
        with self.run(store.folder) as scratch:
            made = Path(scratch) / LIBRARY
            store.put(self.key, made)
            return made.read_bytes()

    def run(self, spare: Path) -> tempfile.TemporaryDirectory[str]:
        """Compile into a new temporary folder, or into one below `spare` where there is no space, and return the
        folder."""
        import tempfile
        from pathlib import Path

        refused: Exception | None = None
        for place in _workplaces(spare):
            try:
                scratch = tempfile.TemporaryDirectory(dir=place, prefix=kept.SCRATCH, ignore_cleanup_errors=True)
            except OSError as error:
                refused = error
                continue
            try:
                self._compile(Path(scratch.name))
                return scratch
            except (OSError, DeviceError) as error:
                scratch.cleanup()
                if isinstance(error, DeviceError) and _has_room(place):
                    raise
                refused = error
        raise FileError("no folder to compile in", got=refused, remedy="set TMPDIR to a folder with space")

    def _compile(self, folder: Path) -> None:
        from concurrent.futures import ThreadPoolExecutor, as_completed

        environment = zig_environment(folder) if _is_zig(self.command) else None
        tell = progress.get() or _say_nothing
        files = [folder / f"part{i}.c" for i in range(len(self.texts))]
        for file, text in zip(files, self.texts, strict=True):
            file.write_text(text)
        link = ["-shared", "-o", str(folder / LIBRARY)]
        kernels = [_count_kernels(text) for text in self.texts]
        total = max(sum(kernels), 1)
        tell(0, total)
        if len(files) == 1:
            self._call([*link, str(files[0])], environment, folder)
            tell(total, total)
            return
        objects = [file.with_suffix(".o") for file in files]
        with ThreadPoolExecutor(cores()) as pool:
            pairs = zip(files, objects, strict=True)
            jobs = {
                pool.submit(self._call, ["-c", "-o", str(made), str(file)], environment, folder): count
                for (file, made), count in zip(pairs, kernels, strict=True)
            }
            done = 0
            try:
                for job in as_completed(jobs):
                    job.result()
                    done += jobs[job]
                    tell(min(done, total - 1), total)
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        self._call([*link, *map(str, objects)], environment, folder)
        tell(total, total)

    def _call(self, arguments: list[str], environment: dict[str, str] | None, folder: Path) -> None:
        call_compiler(self.command, (*self.flags, *arguments), environment, folder)


def call_compiler(
    command: tuple[str, ...], arguments: Sequence[str], environment: dict[str, str] | None, folder: Path
) -> None:
    """Run the compiler. Its working directory is `folder`, because the caller's may have been removed."""
    import subprocess

    started = _without_python(command)
    started = started if os.sep not in started[0] else (os.path.abspath(started[0]), *started[1:])
    try:
        done = subprocess.run(
            [*started, *arguments],
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            env=environment,
            timeout=PATIENCE,
        )
    except FileNotFoundError as error:
        remedy = "pip install ziglang, or set SMELT_CC to a C compiler"
        raise DeviceError("the C compiler was not found", got=command[0], remedy=remedy) from error
    except subprocess.TimeoutExpired as error:
        raise DeviceError(
            f"{command[0]} did not finish",
            expected=f"at most {PATIENCE} seconds",
            remedy="set SMELT_CC to another compiler",
        ) from error
    if done.returncode:
        raise DeviceError(
            f"{command[0]} could not compile the program",
            got=done.stderr.strip()[-2000:] or f"exit code {done.returncode}",
            remedy="set SMELT_CC to another compiler",
        )


@cache
def _without_python(command: tuple[str, ...]) -> tuple[str, ...]:
    """The program that `python -m ziglang` would start, and any other command as it is. Python's own start takes
    longer than many a small kernel."""
    if command[:3] != (sys.executable, "-m", "ziglang"):
        return command
    from importlib.util import find_spec

    spec = find_spec("ziglang")
    for folder in (spec and spec.submodule_search_locations) or ():
        program = os.path.join(folder, "zig.exe" if sys.platform == "win32" else "zig")
        if os.access(program, os.X_OK):
            return program, *command[3:]
    return command


def _count_kernels(text: str) -> int:
    """The number of kernels in a source that `kernel.emit` wrote."""
    import re

    return len(re.findall(r"^HIDDEN int \w+\(const Runtime \*rt, .*\{$", text, re.MULTILINE))


@cache
def _version(command: tuple[str, ...]) -> str:
    """The compiler's version, which is a part of the cache key."""
    if _is_zig(command):
        from importlib.metadata import PackageNotFoundError, version

        with suppress(PackageNotFoundError):  # faster than running it
            return version("ziglang")
    import subprocess

    try:
        asked = subprocess.run([*command, "--version"], capture_output=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired):  # compiling will report the reason
        return ""
    return (asked.stdout + asked.stderr).decode(errors="replace")


def _say_nothing(done: int, total: int) -> None:
    pass


def _is_zig(command: tuple[str, ...]) -> bool:
    return command[-2:] == ("ziglang", "cc")


def _flags(processor: Target, zig: bool) -> tuple[str, ...]:
    """The compiler flags of a target."""
    level, *more = processor.flags
    x86 = processor.name in ("x86_64", "AMD64")
    if processor.name != platform.machine():
        if not zig:
            raise DeviceError(f"only the ziglang package compiles for {processor.name} here", remedy="unset SMELT_CC")
        return f"--target={processor.name}-linux-musl", "-mcpu=baseline", *more
    if level == "baseline":
        level = "x86_64" if x86 else "generic"
    return f"-mcpu={level}" if zig else f"{'-march' if x86 else '-mcpu'}={level.replace('_', '-')}", *more


def zig_environment(folder: Path) -> dict[str, str]:
    """The environment for zig. Its local cache has no limit, so it goes into a temporary folder; the global cache, with
    zig's own libraries, is shared where it can be written."""
    given = dict(os.environ)
    home = kept.cache_home()
    if not given.get("ZIG_GLOBAL_CACHE_DIR") and (home is None or not _can_write(home / "zig")):
        given["ZIG_GLOBAL_CACHE_DIR"] = str(folder / "global")
    given["ZIG_LOCAL_CACHE_DIR"] = str(folder / "local")
    return given


def _can_write(folder: Path) -> bool:
    import tempfile

    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return _has_room(folder)
    except OSError:
        return False


def _has_room(folder: Path) -> bool:
    import shutil

    try:
        return shutil.disk_usage(folder).free >= ROOM
    except OSError:
        return False


def _workplaces(spare: Path) -> Iterator[Path]:
    """Parents of build folders, in order of preference."""
    yield from kept.temporary_folders()
    with suppress(OSError):
        spare.mkdir(mode=0o700, parents=True, exist_ok=True)
        yield spare
