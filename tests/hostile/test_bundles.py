"""Bundles that are damaged, cut, forged or half written: refused before anything of them is executed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import abi
from smelt.bundle import container
from smelt.bundle.container import HEAD
from smelt.device import cpu, processor
from smelt.errors import FileError, UnsupportedError
from tests.hostile.bundle_fuzz import ROOT, assemble, digits, fuzz, on_disk

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundle") / "digits.smelt"
    digits(path)
    return path


@pytest.mark.parametrize("kind", ["damage", "forge"])
def test_every_attack_is_refused_or_harmless(whole: Path, kind: str, seed: int) -> None:
    seen = fuzz(whole, kind, seed, 250)
    right = {"refused", "harmless", "same bytes"}
    # A forged manifest may exchange weights; its description of the code must match the code.
    assert set(seen) <= (right if kind == "damage" else right | {"refused by a call", "other results"}), seen
    assert sum(seen.values()) == 250
    assert seen["refused"] > 150


def manifest_of(data: bytes) -> tuple[dict[str, Any], bytes]:
    image = container.open_bytes(data)
    return image.manifest, bytes(image.body)


def _narrow(entry: dict[str, Any]) -> None:
    entry["arguments"][-1][1][-1] -= 1


LIES: dict[str, Callable[[dict[str, Any]], Any]] = {
    "constants": lambda entry: entry.update(constants=[]),
    "rank": lambda entry: entry["arguments"][-1][1].append(1),
    "narrower input": _narrow,
    "element type": lambda entry: entry["arguments"][-1].__setitem__(0, "i8"),
    "results": lambda entry: entry["results"][0][1].append(7),
    "symbols": lambda entry: entry.update(symbols=[]),
    "donated": lambda entry: entry.update(donated=[len(entry["arguments"]) - 1]),
    "checks": lambda entry: entry["sizes"].append(["a", "b"]),
}


@pytest.mark.parametrize("lie", LIES)
def test_code_says_itself_what_it_takes(whole: Path, lie: str) -> None:
    """A manifest with right checksums and wrong claims: the code's own description is compared before it is called."""
    manifest, body = manifest_of(whole.read_bytes())
    for variant in manifest["programs"][0]["variants"]:
        if lie == "constants" and not variant["main"]["constants"]:
            variant["main"]["constants"] = [0]
        else:
            LIES[lie](variant["main"])
    with pytest.raises(FileError, match="the code does not match its description") as caught:
        smelt.deserialize(assemble(manifest, body))
    assert str(caught.value.expected).split()[0] == str(caught.value.got).split()[0]


def test_claims_about_a_processor_are_compared_with_the_code(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manifest, body = manifest_of(whole.read_bytes())
    codes = manifest["programs"][0]["variants"][0]["codes"]
    if not codes[0]["features"]:
        pytest.skip("this processor has code for the baseline alone")
    codes[:] = [codes[0] | {"features": []}]
    smelt.deserialize(assemble(manifest, body)).close()  # runs here
    here = cpu.target("native")
    lesser = here.replace(features=here.features - set(abi.MACROS.values()) | {"sse2"})
    monkeypatch.setattr(processor, "_native", lambda: lesser)
    with pytest.raises(FileError, match="needs CPU features that this processor lacks") as caught:
        smelt.deserialize(assemble(manifest, body))
    assert "avx2" in str(caught.value.expected)


@pytest.mark.parametrize("name", ["", "other", "smelt0\0", "smelt0_run"])
def test_code_without_its_functions(whole: Path, name: str) -> None:
    manifest, body = manifest_of(whole.read_bytes())
    for variant in manifest["programs"][0]["variants"]:
        variant["main"]["name"] = name
    with pytest.raises(FileError, match="lacks functions"):
        smelt.deserialize(assemble(manifest, body))


def _fewer(manifest: dict[str, Any], variant: dict[str, Any]) -> None:
    manifest["signature"][0].clear()


MISFITS: dict[str, tuple[str, Callable[[dict[str, Any], dict[str, Any]], Any]]] = {
    "no programs": ("there is no program", lambda manifest, variant: manifest["programs"].clear()),
    "bound less": ("the program takes", lambda manifest, variant: variant["bound"].pop()),
    "bound more": ("more arrays are bound", lambda manifest, variant: variant["bound"].extend(variant["bound"] * 9)),
    "not bound": ("there is no prepare function", lambda manifest, variant: variant.update(bound=None)),
    "inputs": ("inputs that the model lacks", _fewer),
    "outputs": ("number of outputs", lambda manifest, variant: manifest["signature"][1].clear()),
    "static": ("no input of the model", lambda manifest, variant: manifest.update(static=["nobody"])),
    "donated": ("is donated", lambda manifest, variant: variant["main"].update(donated=[0])),
    "no section": ("no section", lambda manifest, variant: variant["codes"][0].update(library=1000)),
    "results": ("the program returns", lambda manifest, variant: variant["main"]["results"].pop()),
    "names": ("is inconsistent", lambda manifest, variant: variant["main"]["names"].pop()),
    "reused": (
        "reuses an argument that is not donated",
        lambda manifest, variant: variant["main"].update(reused=[[0, 0]]),
    ),
    "text": ("text expected", lambda manifest, variant: manifest.update(name=1)),
    "number": ("a number of at least 0", lambda manifest, variant: manifest.update(abi=-1)),
    "array": ("is no", lambda manifest, variant: variant["bound"][0].__setitem__(1, [3, 3, 3])),
    "missing": ("'provenance'", lambda manifest, variant: manifest.pop("provenance")),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_manifests_that_do_not_fit_together(whole: Path, misfit: str) -> None:
    manifest, body = manifest_of(whole.read_bytes())
    why, change = MISFITS[misfit]
    change(manifest, manifest["programs"][0]["variants"][0])
    with pytest.raises(FileError, match="manifest that this version cannot read") as caught:
        smelt.deserialize(assemble(manifest, body))
    assert why in str(caught.value.got)


def test_a_runtime_library_of_something_else(whole: Path, tmp_path: Path) -> None:
    """In a process without a runtime library, the one in the bundle is a program's: it is compiled instead."""
    manifest, body = manifest_of(whole.read_bytes())
    for each in manifest["runtimes"]:
        each["library"] = manifest["programs"][0]["variants"][0]["codes"][0]["library"]
    path = tmp_path / "odd.smelt"
    path.write_bytes(assemble(manifest, body))
    script = "import sys, numpy as np, smelt; print(smelt.load(sys.argv[1])(np.ones((1, 64), np.float32)).keys())"
    done = python(script, path)
    assert "probabilities" in done.stdout, done.stderr


def test_panels_of_an_unknown_shape(whole: Path) -> None:
    manifest, body = manifest_of(whole.read_bytes())
    manifest["abi"] += 1  # no code fits: it is compiled again
    manifest["programs"][0]["variants"][0]["tile"] = [1 << 20, 7, 3]
    with pytest.raises(FileError, match="panels of an unknown shape"):
        smelt.deserialize(assemble(manifest, body))


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
            why = "is no bundle" if place < 8 else "another format" if place < 12 else "damaged|not complete"
            with pytest.raises(FileError, match=why):
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
        with pytest.raises(FileError, match="is no bundle" if place < HEAD else "is not complete"):
            smelt.load(cut)


@pytest.mark.parametrize(
    "content", [b"", b"\x89SMELT\r\n", b"x" * 4096, b"\x89SMELT\r\n" + b"\xff" * 4096, b"PK\x03\x04" + bytes(300)]
)
def test_what_is_no_bundle_is_named_so(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "odd.smelt"
    path.write_bytes(content)
    with pytest.raises(FileError, match=r"odd\.smelt"):
        smelt.load(path)
    with pytest.raises(FileError, match="is a folder"):
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
        with pytest.raises(UnsupportedError, match="unknown model format"):
            smelt.load(left)


def test_a_writer_that_is_killed_leaves_the_old_bundle(whole: Path, tmp_path: Path) -> None:
    target = tmp_path / "old.smelt"
    target.write_bytes(whole.read_bytes())
    assert python(WRITE, whole, target, 3).returncode == -9
    assert target.read_bytes() == whole.read_bytes()


@pytest.mark.parametrize("share", [0.0, 0.04, 0.5, 1.0])
def test_a_full_disk_leaves_nothing(whole: Path, tmp_path: Path, share: float) -> None:
    """The disk has room for a part of the file: for nothing, or for all of it but one byte. How large the file is
    depends on the processor that it is made for."""
    limit = max(int(share * whole.stat().st_size) - 1, 1)
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
