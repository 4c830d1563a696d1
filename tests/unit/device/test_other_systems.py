"""The runtime library compiles and links for systems that the tests do not run on."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from smelt.device import runtime

PYTHON_NAMES = re.compile(r"^(?:[\w ]+\*?|PyObject \*|void \*?)\b(Py\w+)\(", re.MULTILINE)


def zig(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "ziglang", *arguments], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]


def python_import_library(folder: Path) -> Path:
    """What links to python3.dll, which a Python on Windows brings as libs/python3.lib."""
    text = (Path(runtime.__file__).parents[1] / "runtime" / "python.c").read_text()
    names = [name for name in PYTHON_NAMES.findall(text) if "Slot" not in name]
    definitions, library = folder / "python3.def", folder / "libpython3.a"
    definitions.write_text("\n".join(["LIBRARY python3.dll", "EXPORTS", *names, "_Py_NoneStruct DATA", ""]))
    zig("dlltool", "-m", "i386:x86-64", "-d", str(definitions), "-l", str(library))
    return library


@pytest.mark.skipif(find_spec("ziglang") is None, reason="only zig cross-compiles")
@pytest.mark.parametrize(
    ("target", "platform"),
    [
        pytest.param("x86_64-windows-gnu", "win32", marks=pytest.mark.slow),  # a cold C library takes a minute
        ("aarch64-macos", "darwin"),
    ],
)
def test_runtime_cross_compiles(target: str, platform: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, library = tmp_path / "runtime.c", tmp_path / "runtime.out"
    source.write_text(runtime.source())
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", platform)
        flags = [flag for flag in runtime.flags() if not flag.startswith("-L")]
    if platform == "win32":
        flags.append(f"-L{python_import_library(tmp_path).parent}")
    warnings = ["-Wall", "-Wextra", "-Werror", "-std=c11"]
    zig("cc", "-target", target, "-O1", "-shared", *warnings, "-o", str(library), str(source), *flags)
    content = library.read_bytes()
    assert content.startswith(b"MZ" if platform == "win32" else b"\xcf\xfa\xed\xfe")
    assert b"smelt_bind" in content
