"""Programs that XLA compiled for a device, in the compile cache: the next process reads them instead of compiling.

In: the text of a program and all that its code depends on. `pjrt.Client` looks here for devices other than the CPU,
where compiling a language model takes many seconds. What cannot be read or written is compiled as without a cache.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from smelt.device import cache
from smelt.errors import SmeltError

VERSION = "1"
log = logging.getLogger("smelt")


def key_of(text: str, version: str, options: Mapping[str, str]) -> str:
    """`version`: of XLA and the kind of device."""
    said = [VERSION, version, os.environ.get("XLA_FLAGS", ""), repr(sorted(options.items())), text]
    return hashlib.blake2b("\0".join(said).encode(), digest_size=20).hexdigest()


def find(key: str) -> bytes | None:
    """What `keep` was given under a key."""
    return cache.default().read(key)


def discard(key: str) -> None:
    """Remove an entry that XLA cannot load; the next program replaces it."""
    cache.default().discard(key)


def keep(key: str, serialize: Callable[[], bytes]) -> None:
    """Store a compiled program, if XLA can write it."""
    try:
        with tempfile.TemporaryDirectory(prefix=cache.SCRATCH) as folder:
            made = Path(folder) / "program"
            made.write_bytes(serialize())
            cache.default().put(key, made)
    except (OSError, SmeltError) as error:
        log.info("XLA's program is not kept: %s", error)
