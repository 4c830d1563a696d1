"""Output files of a command, checked before the work begins, so that no compile is lost."""

from __future__ import annotations

from pathlib import Path

from smelt.errors import FileError
from smelt.files import check_folder


def check_output(path: Path | None) -> None:
    """Check that the folder of an output file exists."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"cannot write {path}", expected="a file", got="a folder", remedy=f"{path / 'NAME'}")
    check_folder(path)


def make_folder(path: Path | None) -> None:
    """Make the folder for several output files, if it does not exist."""
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot write to {path}", expected="a folder", got=error, remedy="give a folder that you may write to"
        ) from error
