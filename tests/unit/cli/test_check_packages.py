"""`smelt check` on files of packages: they are imported under their package, so that relative imports work."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from smelt.cli.check_modules import import_file


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_modules_of_packages(tmp_path: Path) -> None:
    write(tmp_path / "pack" / "__init__.py", "TOP = 1\n")
    write(tmp_path / "pack" / "inner" / "__init__.py", "from .. import TOP\n")
    write(tmp_path / "pack" / "two.py", "VALUE = 2\n")
    one = write(tmp_path / "pack" / "inner" / "one.py", "from ..two import VALUE\nfrom . import TOP\n")
    found = import_file(one)
    assert found.error is None
    assert found.module is not None
    assert (found.module.VALUE, found.module.TOP) == (2, 1)
    whole = import_file(tmp_path / "pack" / "inner" / "__init__.py")
    assert whole.error is None
    assert whole.module is not None
    assert whole.module.TOP == 1


def test_modules_alone(tmp_path: Path) -> None:
    for name in ("plain.py", "not-a-name.py"):
        found = import_file(write(tmp_path / name, "VALUE = 3\n"))
        assert found.error is None
        assert found.module is not None
        assert found.module.VALUE == 3
    loose = write(tmp_path / "folder" / "one.py", "from .two import VALUE\n")
    write(tmp_path / "folder" / "two.py", "VALUE = 4\n")
    found = import_file(loose)
    assert found.error is None
    assert found.module is not None
    assert found.module.VALUE == 4


def test_a_file_that_is_saved_again_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Within a second, with the same length: where Python keeps bytecode it does not notice."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    for file in (tmp_path / "alone.py", tmp_path / "package" / "inner.py"):
        found = []
        for value in (1, 2):
            file.write_text(f"value = {value}\n")
            os.utime(file, (1e9, 1e9))
            module = import_file(file).module
            assert module is not None
            found.append(module.value)
        assert found == [1, 2]
    assert not [*tmp_path.rglob("*.pyc")]
    assert not sys.dont_write_bytecode
