"""The models that `smelt pull` downloaded: `org/name` → a folder or a file here. Nothing opens a socket.

A model exists once its record does: that is written after all files, and removed before any is changed.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from smelt.errors import FileError

RECORD = "smelt-pull.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


def store_folder() -> Path:
    """SMELT_STORE, or a folder among the user's data."""
    chosen = os.environ.get("SMELT_STORE")
    if chosen:
        return Path(chosen)
    data = os.environ.get("XDG_DATA_HOME")
    try:
        home = Path(data) if data else Path.home() / ".local" / "share"
    except (RuntimeError, KeyError) as error:
        raise FileError("there is no home folder for models", remedy="set SMELT_STORE to a folder") from error
    return home / "smelt" / "models"


def is_name(text: str) -> bool:
    return NAME.fullmatch(text) is not None and ".." not in text


def read_record(folder: Path) -> dict[str, Any] | None:
    """What was pulled into a folder; None where nothing was, or not all of it."""
    try:
        found: dict[str, Any] = json.loads((folder / RECORD).read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found


def resolve(path: str | Path) -> Path:
    """`org/name` or `org/name/FILE` of a model that was pulled, where no such path is on disk; else the path itself."""
    given = Path(path)
    parts = str(path).split("/")
    name = "/".join(parts[:2])
    if given.exists() or not 2 <= len(parts) <= 3 or not is_name(name):
        return given
    folder = store_folder() / name
    if not folder.is_dir():
        return given
    if read_record(folder) is None:
        raise FileError(f"{name} is not complete", where=folder, remedy=f"smelt pull {name}")
    if len(parts) == 3:
        if not (folder / parts[2]).is_file():
            raise FileError(
                f"{name} has no file {parts[2]!r}",
                expected=", ".join(models_in(folder)) or name,
                remedy=f"smelt pull {name}",
            )
        return folder / parts[2]
    if (folder / "config.json").is_file() and not any(each.suffix == ".gguf" for each in folder.iterdir()):
        return folder
    found = models_in(folder)
    if len(found) != 1:
        raise FileError(
            f"{name} has {len(found)} models",
            expected=", ".join(f"{name}/{each}" for each in found) or "one",
            remedy="name one of them",
        )
    return folder / found[0]


def models_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.suffix in (".gguf", ".onnx", ".smelt"))


def list_models() -> list[dict[str, Any]]:
    """The records of all models in the store."""
    root = store_folder()
    folders = sorted(root.glob("*/*"))
    return [{**record, "path": str(folder)} for folder in folders if (record := read_record(folder)) is not None]
