"""Models as C libraries: the examples in C, C++, Rust and Go, the C API under sanitizers, the header."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from smelt.aot.describe import MAX_RANK
from smelt.device.cross import RUNTIME
from smelt.dtype import DTYPES
from tests.unit.aot.test_executable import DIGITS, compile_model

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or platform.machine() != "x86_64", reason="runs libraries for x86_64-linux"
)
EXAMPLES = Path(__file__).parents[3] / "examples" / "edge"
FUZZ = Path(__file__).with_name("fuzz_api.c")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_model(DIGITS, tmp_path_factory.mktemp("library") / "libdigits.a", "--target", "x86_64-linux")


def build_and_run(folder: Path, *command: str) -> str:
    if shutil.which(command[0]) is None:
        pytest.skip(f"no {command[0]}")
    if subprocess.run([command[0], "--version"], capture_output=True, timeout=60, check=False).returncode:
        pytest.skip(f"{command[0]} has no toolchain")  # rustup's proxy before a default was chosen
    built = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    assert built.returncode == 0, built.stderr
    done = subprocess.run([folder / "program"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("cc", EXAMPLES / "digits.c", "libdigits.a", "-I.", "-lpthread", "-o", "program"), id="C"),
        pytest.param(
            (
                "c++",
                "-x",
                "c++",
                EXAMPLES / "digits.c",
                "-x",
                "none",
                "libdigits.a",
                "-I.",
                "-lpthread",
                "-o",
                "program",
            ),
            id="C++",
        ),
        pytest.param(("rustc", EXAMPLES / "digits.rs", "-L.", "-lstatic=digits", "-o", "program"), id="Rust"),
    ],
)
def test_examples_classify_and_show_an_error(library: Path, command: tuple[str | Path, ...]) -> None:
    said = build_and_run(library.parent, *map(str, command))
    assert "image 1: 1 (" in said
    assert "f32[batch, 64]" in said
    assert "f32[2, 63]" in said


def test_the_example_in_go(library: Path, tmp_path: Path) -> None:
    go = shutil.which("go")
    if go is None:
        pytest.skip("no go: apt-get install golang-go")
    paths = {"CGO_CFLAGS": f"-I{library.parent}", "CGO_LDFLAGS": f"-L{library.parent}", "CGO_ENABLED": "1"}
    caches = {"GOCACHE": str(tmp_path / "cache"), "GOPATH": str(tmp_path / "path"), "GOFLAGS": "-mod=mod"}
    command = [go, "build", "-o", str(tmp_path / "program"), str(EXAMPLES / "digits.go")]
    built = subprocess.run(
        command, env={**os.environ, **paths, **caches}, capture_output=True, text=True, timeout=300, check=False
    )
    assert built.returncode == 0, built.stderr
    done = subprocess.run([tmp_path / "program"], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "image 1: 1 (" in done.stdout
    assert "f32[2, 63]" in done.stdout


def _without_randomised_addresses() -> tuple[str, ...]:
    """Sanitizers of older compilers fail at random where the kernel randomises addresses by more than 28 bits."""
    if shutil.which("setarch") and subprocess.run(["setarch", "-R", "true"], check=False).returncode == 0:
        return ("setarch", "-R")
    bits = Path("/proc/sys/vm/mmap_rnd_bits")
    try:
        if int(bits.read_text()) <= 28:
            return ()
    except (OSError, ValueError):
        pass
    pytest.skip("addresses are randomised too much for sanitizers, and setarch -R is not allowed")


def test_random_tensors_under_sanitizers(library: Path, seed: int) -> None:
    """The runtime's own files are compiled with sanitizers, in place of those of the library."""
    sources = [str(RUNTIME / f"{name}.c") for name in ("model", "executable", "heap", "memory")]
    flags = ("-g", "-O1", "-std=gnu11", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
    command = ("cc", *flags, "-I.", str(FUZZ), *sources, "libdigits.a", "-lpthread", "-lm", "-o", "program")
    built = subprocess.run(command, cwd=library.parent, capture_output=True, text=True, timeout=120, check=False)
    if built.returncode:
        pytest.skip(f"no compiler with sanitizers: {built.stderr[-200:]}")
    command = (*_without_randomised_addresses(), str(library.parent / "program"), str(seed), "2000")
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"seed {seed}: {done.stdout}{done.stderr}"
    assert int(done.stdout.split()[0]) > 1000


def test_threads_share_a_model_while_another_one_cancels(library: Path) -> None:
    source = str(FUZZ.with_name("threads_api.c"))
    said = build_and_run(library.parent, "cc", "-O1", "-I.", source, "libdigits.a", "-lpthread", "-o", "program")
    assert said.endswith("0 wrong\n")


def test_the_header_agrees_with_the_table_of_element_types(library: Path) -> None:
    header = (library.parent / "digits.h").read_text()
    assert "pixels: f32[batch, 64]" in header
    assert f"SMELT_MAX_RANK = {MAX_RANK}" in header
    listed = header.split("enum smelt_dtype {")[1].split("}")[0].replace("= 1", "").replace("\n", " ")
    names = [each.strip().removeprefix("SMELT_") for each in listed.split(",")]
    spelled = {"i1": "BOOL", "complex<f32>": "COMPLEX64", "complex<f64>": "COMPLEX128"}
    assert names == [spelled.get(name, name.upper()) for name in DTYPES]
    texts = (files("smelt") / "runtime" / "model.c").read_text()
    assert all(f'"{name}"' in texts for name in DTYPES)
