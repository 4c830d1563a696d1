"""API keys: who may call which model, and how often."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from fnmatch import fnmatchcase

from smelt.serve.config import KeyConfig
from smelt.serve.http import Request
from smelt.serve.problems import BusyError, ForbiddenError, UnauthorizedError


class Keys:
    """The keys of a server. Without any, everything but administration is open."""

    def __init__(self, keys: Sequence[KeyConfig], admin: bool) -> None:
        self._keys = {bytes.fromhex(key.sha256): key for key in keys}
        self._admin = admin
        self._buckets: dict[str, tuple[float, float]] = {}  # tokens left, and when

    def admit(self, request: Request) -> KeyConfig | None:
        """The key of a request, found by its digest: how long that takes says nothing about a key."""
        if not self._keys:
            return None
        given = request.headers.get(b"authorization", b"")
        if given[:7].lower() != b"bearer " or not (secret := given[7:].strip()):
            secret = request.headers.get(b"x-api-key", b"").strip()
        found = self._keys.get(hashlib.sha256(secret).digest())
        if found is None:
            raise UnauthorizedError("no valid API key", remedy="send the header Authorization: Bearer KEY")
        self.count(found)
        return found

    def count(self, key: KeyConfig | None) -> None:
        """A token bucket that fills `per_minute` times a minute."""
        if key is None or key.per_minute is None:
            return
        now = time.monotonic()
        left, since = self._buckets.get(key.name, (float(key.per_minute), now))
        left = min(float(key.per_minute), left + (now - since) * key.per_minute / 60)
        if left < 1:
            self._buckets[key.name] = (left, now)
            raise BusyError(
                f"the key {key.name} is used too often",
                expected=f"at most {key.per_minute} requests a minute",
                retry_after=(1 - left) * 60 / max(key.per_minute, 1),
            )
        self._buckets[key.name] = (left - 1, now)

    def opens(self, key: KeyConfig | None, name: str) -> bool:
        """Whether a key may see and call a model."""
        return key is None or "*" in key.models or any(fnmatchcase(name, pattern) for pattern in key.models)

    def check_model(self, key: KeyConfig | None, name: str) -> None:
        if key is not None and not self.opens(key, name):
            raise ForbiddenError(f"the key {key.name} does not open {name!r}")

    def check_admin(self, key: KeyConfig | None) -> None:
        if not (key.admin if key is not None else self._admin and not self._keys):
            raise ForbiddenError(
                "this needs an admin key", remedy="a key with `admin = true`, or --admin for a server without keys"
            )
