"""`smelt cache`: list and clear the compile cache of this machine."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rich.markup import escape

from smelt.buffer import bytes_text
from smelt.cli.tables import Column, open_console, print_table
from smelt.device import cache
from smelt.errors import FileError

WHEN = "%Y-%m-%d %H:%M"
COLUMNS = (Column("model", True), Column("size"), Column("last used", True), Column("key", True, drop=1))


def ls(as_json: bool) -> None:
    """List the entries, the most recently used first."""
    store = cache.default()
    entries = sorted(store.entries(), key=lambda entry: -entry.used)
    total = sum(entry.bytes for entry in entries)
    if as_json:
        rows = [
            {
                "key": entry.key,
                "model": entry.name or None,
                "file": entry.path.name,
                "bytes": entry.bytes,
                "used": entry.used,
            }
            for entry in entries
        ]
        print(json.dumps({"folder": str(store.folder), "limit": store.limit, "bytes": total, "entries": rows}))
        return
    console = open_console()
    listed = [
        (entry.name or "-", bytes_text(entry.bytes), time.strftime(WHEN, time.localtime(entry.used)), entry.key[:12])
        for entry in entries
    ]
    if entries:
        print_table(console, COLUMNS, listed)
    limit = f"{len(entries)} entries, {bytes_text(total)} of {bytes_text(store.limit)}"
    console.print(f"{escape(str(store.folder))}: {limit}", soft_wrap=True)


def clear(as_json: bool) -> None:
    """Remove every entry; other files in the folder stay."""
    store = cache.default()
    try:
        count, freed = store.clear()
    except OSError as error:
        raise FileError(
            f"cannot clear {store.folder}", got=error, remedy="set SMELT_CACHE_DIR to a folder of yours"
        ) from error
    if as_json:
        print(json.dumps({"folder": str(store.folder), "removed": count, "bytes": freed}))
    else:
        _say(store.folder, count, freed)


def _say(folder: Path, count: int, freed: int) -> None:
    print(f"{folder}: removed {count} entries, {bytes_text(freed)}")
