# shapes are no forward references
"""What a killed process, a full disk or a folder that takes nothing leaves behind: the old file, or a whole new one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import smelt
from smelt.device.cache import Cache
from smelt.errors import FileError

# Saves x + FACTOR under a path; HOOK runs before.
SAVE = """
import os, sys, time
import numpy as np
import smelt

def shift(x):
    return x + FACTOR

def is_in_folder(descriptor):  # of the saved file, not of the cache
    return os.fstat(descriptor).st_ino in {each.inode() for each in os.scandir(os.path.dirname(sys.argv[1]))}

executable = smelt.compile(shift, "f32[n=3]", engine="ENGINE")
HOOK
executable.save(sys.argv[1])
print("saved", flush=True)
"""

# The file is written when it is synced, and has not its name yet: this is where the process stands still.
STAND_STILL = """
def stand_still(descriptor):
    if is_in_folder(descriptor):
        print("writing", flush=True)
        time.sleep(600)

os.fsync = stand_still
"""

# Files end at 2,000 bytes from where the file is written; what is compiled for it before may be larger.
LIMITED = """
import resource
from smelt.bundle import write
opened = write.os.fdopen

def limited(descriptor, mode="r", **options):
    if mode == "wb" and is_in_folder(descriptor):
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000, 2_000))
    return opened(descriptor, mode, **options)

write.os.fdopen = limited
"""

ENGINES = ["native", "pjrt"]


def child(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[3],
    )


def saving(path: Path, engine: str, factor: int, hook: str = "") -> subprocess.Popen[str]:
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    code = SAVE.replace("FACTOR", f"{factor}.0").replace("ENGINE", engine).replace("HOOK", hook)
    return child(code, str(path))


def shifted(path: Path) -> list[float]:
    """What the saved function gives for 0, 1, 2."""
    x = np.arange(3, dtype=np.float32)
    loaded: Any = smelt.load(path)
    results = loaded(x)
    first = results["result"] if isinstance(results, dict) else results[0].numpy()
    return [float(number) for number in first]


def finish(process: subprocess.Popen[str]) -> tuple[str, str]:
    output, said = process.communicate(timeout=120)
    return output, said


@pytest.mark.parametrize("engine", ENGINES)
def test_a_process_that_is_killed_while_it_saves(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "model.smelt"
    killed = saving(path, engine, 1, STAND_STILL)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "writing\n"
    killed.send_signal(signal.SIGKILL)
    finish(killed)
    assert not path.exists()
    with pytest.raises(FileError):
        smelt.load(path)
    assert finish(saving(path, engine, 2))[0] == "saved\n"
    again = saving(path, engine, 3, STAND_STILL)
    assert again.stdout is not None
    assert again.stdout.readline() == "writing\n"
    again.send_signal(signal.SIGKILL)
    finish(again)
    assert shifted(path) == [2, 3, 4], "the old file is whole"


@pytest.mark.parametrize("engine", ENGINES)
def test_a_disk_that_is_full_keeps_the_old_file(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "model.smelt"
    assert finish(saving(path, engine, 2))[0] == "saved\n"
    output, said = finish(saving(path, engine, 3, LIMITED))
    assert output == ""
    assert "FileError" in said
    assert f"cannot write {path}" in said
    assert os.listdir(tmp_path) == ["model.smelt"]
    assert shifted(path) == [2, 3, 4]


@pytest.mark.parametrize("engine", ENGINES)
def test_processes_that_save_the_same_file(engine: str, tmp_path: Path) -> None:
    path = tmp_path / "model.smelt"
    for process in [saving(path, engine, 5) for _ in range(2)]:
        assert finish(process)[0] == "saved\n"
    assert os.listdir(tmp_path) == ["model.smelt"]
    assert shifted(path) == [5, 6, 7]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    executable = smelt.compile(lambda x: x + 1.0, "f32[n=3]", engine="native")
    with pytest.raises(FileError, match="cannot write"):
        executable.save(tmp_path / "no" / "model.smelt")


def test_a_process_that_is_killed_while_it_fills_the_cache(tmp_path: Path) -> None:
    made = tmp_path / "made.so"
    made.write_bytes(os.urandom(100_000))
    code = f"""
        import os, sys, time
        from pathlib import Path
        from smelt.device.cache import Cache
        is_in_folder = lambda descriptor: True
        {textwrap.indent(STAND_STILL, " " * 8).strip()}
        Cache(Path(sys.argv[1])).put("0" * 40, Path(sys.argv[2]))
    """
    folder = tmp_path / "cache"
    killed = child(code, str(folder), str(made))
    assert killed.stdout is not None
    assert killed.stdout.readline() == "writing\n"
    killed.send_signal(signal.SIGKILL)
    finish(killed)
    store = Cache(folder)
    assert store.find("0" * 40) is None, "what is half written is no entry"
    assert len(list(folder.glob("*.part"))) == 1
    kept = store.put("0" * 40, made)
    assert kept is not None
    assert kept.read_bytes() == made.read_bytes()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_damaged_file_is_refused(engine: str, damage: str, tmp_path: Path) -> None:
    if engine == "pjrt":
        pytest.importorskip("jaxlib")
    path = tmp_path / "model.smelt"
    smelt.compile(lambda x: x + 2.0, "f32[n=3]", engine=engine).save(path)
    assert shifted(path) == [2, 3, 4]
    data = bytearray(path.read_bytes())
    if damage == "cut":
        data = data[: len(data) // 2]
    elif damage == "changed":
        data[len(data) // 2] ^= 0x10
    else:
        data = bytearray()
    path.write_bytes(data)
    says = {"cut": "is not complete", "changed": "is damaged", "empty": "is no bundle"}
    if engine == "pjrt" and damage != "empty":
        says[damage] = "the serialised executable is damaged"
    with pytest.raises(smelt.SmeltError, match=says[damage]):
        shifted(path)


COPY = """
import resource
import numpy as np
from smelt.engine.native import NativeEngine
from smelt.errors import RunError
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.shape import Shape

f = FuncBuilder("main", [Shape("f32", "N")])
run = NativeEngine().compile(Program.of(f.func(f.negate(f.args[0]))))
run(np.ones(3, np.float32))
strided = np.zeros(1 << 28, np.float32)[::2]  # has to be copied: 512 MiB
pages = int(open("/proc/self/statm").read().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    run(strided)
except RunError as error:
    print(error.message)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
def test_no_memory_for_a_copy_of_an_input_is_an_error_of_ours() -> None:
    done = subprocess.run([sys.executable, "-c", COPY], capture_output=True, text=True, check=False)
    assert "no memory left" in done.stdout, done.stderr
