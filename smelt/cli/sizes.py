"""`--size batch=4`: numbers for the symbols of a model's inputs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.engine.sample import default_sizes
from smelt.engine_api import Signature
from smelt.errors import SmeltError


def given_sizes(signature: Signature, sizes: Sequence[str]) -> dict[str, int]:
    """Every dynamic dimension of the inputs: what the user said, else a default."""
    chosen = default_sizes([port.shape for port in signature.inputs])
    return chosen | said_sizes(sizes, chosen)


def said_sizes(sizes: Sequence[str], known: Iterable[str] | None = None) -> dict[str, int]:
    """What the user said about sizes; `known` are the names there are, if that is known yet."""
    said: dict[str, int] = {}
    for item in sizes:
        name, _, value = item.rpartition("=")
        if not name or not value.isdecimal() or (known is not None and name not in known):
            names = ", ".join(known or ())
            expected = "none: every size is fixed" if known is not None and not names else f"{names or 'NAME'}=NUMBER"
            raise SmeltError("--size is not understood", expected=expected, got=item)
        said[name] = int(value)
    return said
