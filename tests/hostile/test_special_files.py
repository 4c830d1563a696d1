"""What is no regular file, planted temporary names, modes of new files: for every reader and writer."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import files
from smelt.bundle import container, sign
from smelt.bundle.write import source_record
from smelt.engine.tuned import Database
from smelt.errors import FileError, SmeltError
from smelt.read import checkpoint, npz, onnx, safetensors, stablehlo
from smelt.run.load import describe
from smelt.weights import MappedFile

READERS: dict[str, Callable[[Path], Any]] = {
    "bundle": container.open_file,
    "load": lambda path: smelt.load(path.rename(path.with_suffix(".smelt"))),
    "describe": describe,
    "private key": lambda path: sign.signer(path),
    "source": source_record,
    "safetensors": safetensors.read,
    "npz": npz.read,
    "onnx": onnx.read,
    "stablehlo": stablehlo.read,
    "json": checkpoint._json,
    "mapped": MappedFile,
    "tuned": lambda path: Database(path.parent / "db").merge(path),
    "bytes": files.read_bytes,
}


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """A reader that waits for a FIFO fails, instead of waiting for ever."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise AssertionError("the reader waits")

    before = signal.signal(signal.SIGALRM, ring)
    signal.alarm(20)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def open_files(folder: Path) -> list[str]:
    """The files of a folder that this process has open; other files are other tests' business."""
    found = []
    for each in Path("/proc/self/fd").iterdir() if Path("/proc/self/fd").exists() else ():
        with contextlib.suppress(OSError):  # the descriptor of the listing itself
            found.append(os.readlink(each))
    return [name for name in found if name.startswith(f"{folder}/")]


def special(folder: Path, kind: str) -> Path:
    path = folder / "odd"
    match kind:
        case "FIFO":
            os.mkfifo(path)
        case "folder":
            path.mkdir()
        case "socket":
            with socket.socket(socket.AF_UNIX) as server:
                here = os.getcwd()
                os.chdir(folder)  # names of sockets are short
                try:
                    server.bind("odd")
                finally:
                    os.chdir(here)
        case "device":
            path.symlink_to("/dev/zero")
    return path


@pytest.mark.parametrize("kind", ["FIFO", "folder", "socket", "device"])
@pytest.mark.parametrize("reader", READERS)
def test_what_is_no_regular_file_is_refused_at_once(reader: str, kind: str, tmp_path: Path) -> None:
    path = special(tmp_path, kind)
    with pytest.raises(FileError, match="no regular file") as caught:
        READERS[reader](path)
    assert kind in str(caught.value.got)
    assert not open_files(tmp_path)


def test_a_public_key_is_no_fifo(tmp_path: Path) -> None:
    with pytest.raises(SmeltError, match="no public key"):
        sign.trusted_keys([str(special(tmp_path, "FIFO"))])


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    for name in ("missing", "nul\0", "x" * 5000):
        with pytest.raises(FileError, match="cannot read"):
            files.open_regular(tmp_path / name)


def test_a_file_that_is_larger_than_allowed_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(1 << 42)  # no room is used: it is one hole
    with pytest.raises(FileError, match="too large"):
        files.read_bytes(path, 1000)


LARGE = """
import resource, sys
from smelt import files
from smelt.errors import FileError
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
try:
    files.read_bytes(sys.argv[1])
except FileError as error:
    print(error.message)
"""


def test_a_file_that_is_larger_than_memory_is_an_error_of_ours(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(4 << 30)
    done = subprocess.run([sys.executable, "-c", LARGE, path], capture_output=True, text=True, check=False)
    assert "no memory left" in done.stdout, done.stderr


# ---- writing ----


def writers() -> dict[str, Callable[[Path], Any]]:
    return {
        "atomic": lambda path: files.write_atomically(path, [b"new"]),
        "safetensors": lambda path: safetensors.write(path, {"x": np.ones(2)}),
    }


@pytest.mark.parametrize("writer", writers())
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_new_files_have_the_mode_that_the_umask_leaves(writer: str, mask: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        writers()[writer](tmp_path / "file")
    finally:
        assert os.umask(before) == mask, "the umask was changed"
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o666 & ~mask
    assert os.listdir(tmp_path) == ["file"]


def test_the_umask_of_the_process_is_never_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail("another thread may create a file now"))
    for i, write in enumerate(writers().values()):
        write(tmp_path / str(i))


def test_planted_links_are_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Even if an attacker guesses the random name, the target of the link is not changed."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    names = iter([b"\0" * 8, b"\1" * 8])
    monkeypatch.setattr(os, "urandom", lambda count: next(names))
    (tmp_path / f".file-{'00' * 8}.part").symlink_to(victim)
    files.write_atomically(tmp_path / "file", [b"new"])
    assert victim.read_text() == "precious"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_predictable_name_is_not_used(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / f".m.safetensors.{os.getpid()}").symlink_to(victim)
    safetensors.write(tmp_path / "m.safetensors", {"x": np.ones(2)})
    assert victim.read_text() == "precious"


def test_what_killed_writers_left_is_swept(tmp_path: Path) -> None:
    old, young, other = (tmp_path / f".{name}.part" for name in (f"file-{'a' * 16}", f"file-{'b' * 16}", "file-x"))
    for path in (old, young, other):
        path.write_text("half")
    past = time.time() - 2 * files.STALE
    for path in (old, other):
        os.utime(path, (past, past))
    files.write_atomically(tmp_path / "file", [b"new"])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name, "file"])


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")

    def pieces() -> Iterator[bytes]:
        yield b"new"
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="cannot write") as caught:
        files.write_atomically(path, pieces())
    assert caught.value.got == "No space left on device"
    assert os.listdir(tmp_path) == ["file"]
    assert path.read_text() == "old"


# ---- files that shrink ----


def test_a_file_that_was_cut_is_refused_before_it_is_touched(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    safetensors.write(path, {"x": np.ones(10_000), "none": np.ones(0)})
    weights = safetensors.read(path)
    np.testing.assert_array_equal(weights["x"].numpy(), np.ones(10_000))
    os.truncate(path, 100)
    with pytest.raises(FileError, match="was truncated"):
        weights["x"]
    assert weights["none"].numpy().size == 0
