"""`--size batch=4`: numbers for the symbols of a model's inputs."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.engine_api import Signature
from smelt.errors import SmeltError


def given_sizes(signature: Signature, sizes: Sequence[str]) -> dict[str, int]:
    """Every open size of the inputs: what the user said, else 1."""
    chosen: dict[str, int] = {name: 1 for port in signature.inputs for name in sorted(port.shape.symbols)}
    for item in sizes:
        name, _, value = item.partition("=")
        if name not in chosen or not value.isdigit():
            expected = f"one of {', '.join(chosen)} = a number" if chosen else "none: every size is fixed"
            raise SmeltError("--size is not understood", expected=expected, got=item)
        chosen[name] = int(value)
    return chosen
