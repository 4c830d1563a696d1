"""The processor as a device: find out what it can do, compile C for it, keep the result on disk, load it.

The compiler is the clang inside the `ziglang` package, else clang, gcc or cc; `SMELT_CC` overrides. Compiled files
live under `SMELT_CACHE_DIR` (default: the user's cache folder), named by digests of what made them and of themselves.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from smelt.errors import DeviceError, FileError
from smelt.target import Target

FLAGS = (
    "-O3",
    "-shared",
    "-fPIC",
    "-std=c11",
    "-fwrapv",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-strict-aliasing",
    "-g0",
)


@cache
def target() -> Target:
    """This machine's processor."""
    features: frozenset[str] = frozenset()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                features = frozenset(line.partition(":")[2].split())
                break
    except OSError:
        pass  # not Linux: the plain description serves
    width = 64 if "avx512f" in features else 32 if "avx2" in features else 16
    return Target(platform.machine(), os.cpu_count() or 1, width, features=features)


@cache
def compiler() -> tuple[str, ...] | None:
    """The command that compiles C here; None where there is none."""
    chosen = os.environ.get("SMELT_CC")
    if chosen:
        return tuple(shlex.split(chosen))
    if find_spec("ziglang") is not None:
        return (sys.executable, "-m", "ziglang", "cc")
    for name in ("clang", "gcc", "cc"):
        path = shutil.which(name)
        if path:
            return (path,)
    return None


def cache_folder() -> Path:
    """Where compiled programs are kept."""
    chosen = os.environ.get("SMELT_CACHE_DIR")
    if chosen:
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smelt"


def build(source: str, *extra: str) -> ctypes.CDLL:
    """Compile C (with extra flags for the compiler), or find it compiled already, and load it."""
    command = compiler()
    if command is None:
        raise DeviceError(
            "no C compiler", expected="the ziglang package, clang, gcc or cc", remedy="pip install ziglang"
        )
    tuned = ["-mcpu=native" if command[-2:] == ("ziglang", "cc") else "-march=native"]
    if "avx512f" in target().features:
        tuned.append("-mprefer-vector-width=512")
    flags = (*FLAGS, *tuned, *extra)
    key = hashlib.blake2b("\0".join([*command, *flags, _processor(), source]).encode(), digest_size=20).hexdigest()
    folder = cache_folder()
    for found in folder.glob(f"{key}-*.so"):
        if _digest(found) == found.stem.partition("-")[2]:
            return _open(found)
        found.unlink(missing_ok=True)  # damaged: make it again
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
            made = _compile(command, flags, source, Path(scratch))
            final = folder / f"{key}-{_digest(made)}.so"
            made.replace(final)
    except OSError as error:
        raise FileError(
            f"cannot write to {folder}", got=error, remedy="set SMELT_CACHE_DIR to a folder with space"
        ) from error
    return _open(final)


def _processor() -> str:
    here = target()
    return " ".join([here.name, *sorted(here.features)])


def _compile(command: tuple[str, ...], flags: tuple[str, ...], source: str, folder: Path) -> Path:
    text, binary = folder / "program.c", folder / "program.so"
    text.write_text(source)
    done = subprocess.run([*command, *flags, "-o", str(binary), str(text)], capture_output=True, text=True, check=False)
    if done.returncode:
        raise DeviceError(
            f"{command[0]} could not compile the program",
            got=done.stderr.strip()[-2000:],
            remedy="set SMELT_CC to another compiler",
        )
    with binary.open("rb") as file:
        os.fsync(file.fileno())
    return binary


def _digest(path: Path) -> str:
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


def _open(path: Path) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(str(path))
    except OSError as error:
        raise DeviceError(f"cannot load {path}", got=error, remedy="delete the file, or set SMELT_CACHE_DIR") from error
