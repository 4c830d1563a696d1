"""Compiled steps in the compile cache: a checkpoint that was loaded before is loaded without the compiler.

An entry is a bundle without weights, with code for this processor (`engine.store.store_build`). Its key covers all that
the code depends on: configuration, names, formats and sizes of the weights, precision, target, tuned schedules, and
smelt's own files. What cannot be read or written here is compiled as if there were no cache.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

from smelt.bundle.stored import StoredModel
from smelt.bundle.write import serialize
from smelt.callable_package import call_later
from smelt.device import cache as kept
from smelt.device.registry import find_device
from smelt.errors import SmeltError
from smelt.llm.checkpoint import Checkpoint
from smelt.run import load as bundles
from smelt.run.executable import NativeExecutable, Store

VERSION = "1"
TUNED = "tuned.jsonl"  # in the cache's folder, unless SMELT_TUNING says otherwise
log = logging.getLogger("smelt")


def key_of(checkpoint: Checkpoint, precision: str) -> str | None:
    """The key of a checkpoint's step on this machine; None without a cache, or where smelt's own files are hidden."""
    if kept.contents() is None:
        return None
    weights = checkpoint.weights
    held = [(name, str(checkpoint.formats.get(name)), str(weights.shape(name))) for name in sorted(weights)]
    stamps = _stamps(Path(__file__).parents[1])
    if not stamps:
        return None
    target = find_device().target()
    here = [json.dumps(target.as_json(), sort_keys=True), str(target.cores), " ".join(target.flags), _tuning(), stamps]
    parts = [VERSION, precision, repr(checkpoint.config), repr(held), *here]
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=20).hexdigest()


def find(key: str, store: Store) -> NativeExecutable | None:
    """The step of a key, without weights; `store` makes its bundle."""
    contents = kept.contents()
    content = None if contents is None else contents.read(key)
    if content is None:
        return None
    try:
        made = bundles.deserialize(content, call_later("smelt.engine.store", "recompile"))
    except SmeltError as error:
        log.warning("a compiled step in the cache cannot be used: %s", error.message)
        return None
    return made.with_store(store) if isinstance(made, NativeExecutable) else None


def keep(key: str, store: Callable[[], StoredModel], name: str) -> None:
    """Put a compiled step under a key; `name` is the model's, for `smelt cache ls`."""
    try:
        with kept.compiling_for(name):
            if (contents := kept.contents()) is not None:
                contents.keep(key, serialize(store()))
    except (OSError, SmeltError) as error:
        log.warning("the compiled step is not kept: %s", error)


def _stamps(folder: Path) -> str:
    """Names, sizes and times of the files that decide how a step is compiled; they change with smelt itself."""
    found = []
    try:
        for place, _, names in os.walk(folder):
            for name in names:
                if name.endswith((".py", ".c", ".h")):
                    stat = os.stat(os.path.join(place, name))
                    found.append(f"{place}/{name} {stat.st_size} {stat.st_mtime_ns}")
    except OSError:
        return ""
    return "\n".join(sorted(found))


def _tuning() -> str:
    """What tuned schedules are there."""
    setting = os.environ.get("SMELT_TUNING", "")
    path = kept.default().folder / TUNED if not setting else Path(setting)
    try:
        return f"{setting} {hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()}"
    except OSError:
        return setting
