"""`--size batch=4`: values of a model's dynamic dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.errors import SmeltError


def parse_sizes(sizes: Sequence[str], known: Iterable[str] | None = None) -> dict[str, int]:
    """The `--size` options as numbers; `known`: the names of the symbols, if they are known yet."""
    said: dict[str, int] = {}
    for item in sizes:
        name, _, value = item.rpartition("=")
        if not name or not value.isdecimal() or (known is not None and name not in known):
            names = ", ".join(known or ())
            expected = "none: every size is fixed" if known is not None and not names else f"{names or 'NAME'}=NUMBER"
            first = next(iter(known), "") if known is not None else "NAME"
            remedy = f"--size {first}=2" if first else "leave --size out"
            raise SmeltError("--size is not understood", expected=expected, got=item, remedy=remedy)
        said[name] = int(value)
    return said
