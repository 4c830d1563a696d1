"""Files that a command is asked to write: checked before the work begins, so that no compile is lost."""

from __future__ import annotations

from pathlib import Path

from smelt.errors import FileError
from smelt.files import check_folder


def check_output(path: Path | None) -> None:
    """The folder of a file to be written must be there."""
    if path is None:
        return
    if path.is_dir():
        raise FileError(f"cannot write {path}", expected="a file", got="a folder", remedy=f"{path / 'NAME'}")
    check_folder(path)


def make_folder(path: Path | None) -> None:
    """A folder for several files, made where it is not there."""
    if path is None:
        return
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(
            f"cannot write to {path}", expected="a folder", got=error, remedy="give a folder that you may write to"
        ) from error
