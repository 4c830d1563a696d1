"""Bundles that are damaged, cut, forged or half written: refused before anything of them is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import smelt
from smelt.bundle import container
from smelt.bundle.container import HEAD
from smelt.device import cpu
from smelt.errors import FileError, SmeltError
from tests.hostile.bundle_fuzz import ROOT, digits, fuzz, on_disk

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.smelt"
    digits(path)
    return path


@pytest.mark.parametrize("kind", ["damage", "forge"])
def test_every_attack_is_refused_or_harmless(whole: Path, kind: str, seed: int) -> None:
    seen = fuzz(whole, kind, seed, 250)
    assert set(seen) <= {"refused", "harmless", "same bytes"}, seen
    assert sum(seen.values()) == 250
    assert seen["refused"] > 150


def test_files_are_judged_like_bytes(whole: Path, seed: int) -> None:
    seen = on_disk(whole, seed, 40)
    assert seen["refused"] > 30


def test_every_bit_of_the_head_counts(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    for place in range(HEAD):
        data[place] ^= 1 << place % 8
        if 96 <= place < HEAD:  # the signature: nobody asked for one
            smelt.deserialize(data).close()
        else:
            with pytest.raises(FileError):
                smelt.deserialize(data)
        data[place] ^= 1 << place % 8
    smelt.deserialize(data).close()


def test_every_section_is_covered(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    image = container.open_bytes(bytes(data))
    for offset, length, _ in image.sections:
        for place in {offset, offset + length // 2, offset + length - 1} if length else ():
            data[image.start + place] ^= 0x10
            for verify in (None, True):
                with pytest.raises(FileError, match="damaged"):
                    smelt.deserialize(data, verify=verify)
            data[image.start + place] ^= 0x10


def test_bytes_between_sections_are_covered(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    image = container.open_bytes(bytes(data))
    ends = [offset + length for offset, length, _ in image.sections]
    gaps = [end for end, (offset, _, _) in zip(ends, image.sections[1:], strict=False) if end < offset]
    assert gaps
    for place in (image.offset, image.start - 1, *(image.start + gap for gap in gaps)):
        data[place] = 1
        for verify in (None, True):
            with pytest.raises(FileError, match="damaged"):
                smelt.deserialize(data, verify=verify)
        data[place] = 0


def test_code_is_checked_even_where_weights_are_not(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    image = container.open_bytes(bytes(data))
    variant = image.manifest["programs"][0]["variants"][0]
    weights = image.sections[variant["bound"][0][0]][0]
    data[image.start + weights] ^= 0x40
    smelt.deserialize(data, verify=False).close()
    for code in variant["codes"]:
        offset, length, _ = image.sections[code["library"]]
        data[image.start + offset + length // 2] ^= 1
    with pytest.raises(FileError, match="damaged"):
        smelt.deserialize(data, verify=False)


def test_every_cut_is_noticed(whole: Path, tmp_path: Path) -> None:
    data = whole.read_bytes()
    image = container.open_bytes(data)
    places = [0, 1, 31, HEAD - 1, HEAD, image.start, *(image.start + offset for offset, _, _ in image.sections)]
    cut = tmp_path / "cut.smelt"
    for place in (*places, len(data) - 1):
        cut.write_bytes(data[:place])
        with pytest.raises(FileError):
            smelt.load(cut)


@pytest.mark.parametrize(
    "content", [b"", b"\x89SMELT\r\n", b"x" * 4096, b"\x89SMELT\r\n" + b"\xff" * 4096, b"PK\x03\x04" + bytes(300)]
)
def test_what_is_no_bundle_is_named_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.smelt"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"odd\.smelt"):
        smelt.load(path)
    with pytest.raises(SmeltError):
        smelt.load(tmp_path)


def test_lengths_in_a_head_allocate_nothing(whole: Path) -> None:
    data = bytearray(whole.read_bytes())
    data[24:32] = (1 << 62).to_bytes(8, "little")
    with pytest.raises(FileError, match="impossible lengths"):
        smelt.deserialize(data)


# ---- writing ----

WRITE = """
import os, signal, sys
from pathlib import Path
import smelt
from smelt.bundle import write

model = smelt.load(sys.argv[1])
pieces = write._pieces

def dying(*given):
    for i, piece in enumerate(pieces(*given)):
        if i == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)
        yield piece

write._pieces = dying
fsync = os.fsync
def sync(handle):
    if sys.argv[3] == "sync":
        os.kill(os.getpid(), signal.SIGKILL)
    fsync(handle)
os.fsync = sync
if sys.argv[3] == "sync":
    write._pieces = pieces
model.save(sys.argv[2])
"""

FULL = """
import resource, signal, sys
import smelt
from smelt.errors import FileError

model = smelt.load(sys.argv[1])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[3]), int(sys.argv[3])))
try:
    model.save(sys.argv[2])
except FileError as error:
    print(error)
    sys.exit(7)
"""


def python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.mark.parametrize("when", [0, 1, 2, 5, 9, "sync"])
def test_a_writer_that_is_killed_leaves_nothing_that_loads(whole: Path, tmp_path: Path, when: object) -> None:
    target = tmp_path / "new.smelt"
    done = python(WRITE, whole, target, when)
    assert done.returncode == -9, done.stderr
    assert not target.exists()
    for left in tmp_path.iterdir():
        assert left.name.endswith(".part")
        with pytest.raises(SmeltError):
            smelt.load(left)


def test_a_writer_that_is_killed_leaves_the_old_bundle(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "old.smelt"
    target.write_bytes(whole.read_bytes())
    assert python(WRITE, whole, target, 3).returncode == -9
    assert target.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("limit", [1, 4096, 100_000])
def test_a_full_disk_leaves_nothing(whole: Path, tmp_path: Path, limit: int) -> None:
    old = tmp_path / "old.smelt"
    old.write_bytes(whole.read_bytes())
    for target in (tmp_path / "new.smelt", old):
        done = python(FULL, whole, target, limit)
        assert done.returncode == 7, done.stderr
        assert "cannot write" in done.stdout
        assert [left.name for left in tmp_path.iterdir()] == ["old.smelt"]
    np.testing.assert_equal(old.read_bytes(), whole.read_bytes())


def test_a_folder_that_cannot_be_written_is_an_error_of_ours(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(FileError, match="cannot write"):
        smelt.load(whole).save(tmp_path / "no" / "such" / "folder.smelt")
