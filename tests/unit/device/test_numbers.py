"""The reader of JSON arrays in C: no byte outside its text and its results, no undefined behaviour."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from smelt.device.cross import RUNTIME

FUZZ = Path(__file__).with_name("fuzz_numbers.c")


@pytest.mark.skipif(sys.platform != "linux", reason="needs mprotect")
def test_random_texts_are_read_within_their_bounds(tmp_path: Path, seed: int) -> None:
    checks = ("-fsanitize=undefined", "-fno-sanitize-recover=all", "-fsanitize-trap=all")
    compiler = (sys.executable, "-m", "ziglang", "cc", "-O1", "-std=c11", f"-I{RUNTIME}")
    command = (*compiler, *checks, str(FUZZ), "-o", str(tmp_path / "fuzz"))
    built = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    fuzz = (str(tmp_path / "fuzz"), str(seed), "300000")
    done = subprocess.run(fuzz, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    assert int(done.stdout) > 10_000, "texts that were read"
