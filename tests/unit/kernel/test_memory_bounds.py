"""Generated programs touch their buffers and nothing else, and no element from two threads: fences and sanitizers.

Random problems of every kind; each buffer, temporaries too, is memory of its own that ends where the buffer does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import smelt
from smelt.device import cpu
from smelt.kernel.loops import parallelise
from tests.property.problems import KINDS, Problem, difference
from tests.unit.kernel.bare import Bare, bare, random_problems, read_results, write_case

pytestmark = pytest.mark.skipif(cpu.compiler() is None, reason="no C compiler: pip install ziglang")

HERE = Path(__file__).parent
RUNTIME = Path(smelt.__path__[0]) / "runtime"


def answers(problems: Sequence[Problem], made: Bare, folder: Path) -> list[str]:
    """What is wrong with the results that the driver left."""
    found = []
    for i, (problem, case) in enumerate(zip(problems, made.cases, strict=True)):
        found.append(difference(problem, read_results(case, (folder / f"{i}.results").read_bytes())[0]))
    return [each for each in found if each]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages are protected as Linux does")
def test_buffers_between_guard_pages(seed: int) -> None:
    """In a subprocess, because a stray access kills it; its last line names the program."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.unit.kernel.bare", str(seed), "60"]
    done = subprocess.run(command, cwd=HERE.parents[2], capture_output=True, text=True, check=False)
    assert done.stdout.endswith("done\n"), done.stdout[-300:] + done.stderr[-3000:]


@pytest.mark.parametrize("sanitizer", ["thread", "address,undefined"])
def test_programs_under_a_sanitizer(sanitizer: str, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parallel loops are split into small chunks, so that two threads meet wherever they can. Nothing is optimised: a
    compiler that moves a stray read to where it does no harm would hide it."""
    gcc = shutil.which("gcc")
    flags = ["-g", "-O0", "-std=c11", "-pthread", "-fwrapv", "-ffp-contract=off", f"-fsanitize={sanitizer}"]
    flags += ["-fno-sanitize-recover=all", "-Wno-psabi", "-w"]
    probe = tmp_path / "probe.c"
    probe.write_text("int main(void) { return 0; }")
    binary = str(tmp_path / "driver")
    if (
        gcc is None
        or subprocess.run([gcc, *flags, str(probe), "-o", binary], capture_output=True, check=False).returncode
        or subprocess.run([binary], capture_output=True, check=False).returncode
    ):
        pytest.skip(f"no gcc whose -fsanitize={sanitizer} works here")
    monkeypatch.setattr(parallelise, "ELEMENTS_PER_CORE", 16)
    problems = random_problems(seed, 2 * len(KINDS))
    made = bare(problems)
    text = tmp_path / "programs.c"
    text.write_text(made.with_table())
    for i, case in enumerate(made.cases):
        write_case(case, tmp_path / f"{i}.case")
    command = [gcc, *flags, "-I", str(RUNTIME), str(text), str(HERE / "driver.c"), "-o", binary]
    subprocess.run(command, check=True)
    quiet = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [binary, str(tmp_path), str(len(problems))], env=quiet, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert answers(problems, made, tmp_path) == []


def test_programs_for_another_processor_under_an_emulator(seed: int, tmp_path: Path) -> None:
    """Code for 64-bit Arm, made here, gives the same answers."""
    emulator = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")
    command = cpu.compiler()
    if emulator is None or command is None or command[-2:] != ("ziglang", "cc"):
        pytest.skip("wants ziglang, and qemu-aarch64 (apt-get install qemu-user)")
    problems = random_problems(seed, len(KINDS))
    made = bare(problems, cpu.target("neon"))
    text, binary = tmp_path / "programs.c", str(tmp_path / "driver")
    text.write_text(made.with_table())
    for i, case in enumerate(made.cases):
        write_case(case, tmp_path / f"{i}.case")
    flags = ["-O1", "-std=c11", "-fwrapv", "-ffp-contract=off", "-static", "-target", "aarch64-linux-musl", "-w"]
    files = [str(text), str(HERE / "driver.c")]
    subprocess.run([*command, *flags, "-I", str(RUNTIME), *files, "-o", binary], check=True)
    done = subprocess.run(
        [emulator, binary, str(tmp_path), str(len(problems))], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert answers(problems, made, tmp_path) == []
