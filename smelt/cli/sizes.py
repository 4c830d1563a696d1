"""`--size batch=4`: values of a model's dynamic dimensions, and defaults that the program accepts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from smelt.engine.sample import default_sizes
from smelt.engine_api import Signature
from smelt.errors import SmeltError
from smelt.ir.assumptions import broken_by
from smelt.ir.core import Program

DOUBLINGS = 13  # of a default that is too small for a program


def given_sizes(signature: Signature, sizes: Sequence[str], program: Program | None = None) -> dict[str, int]:
    """A value for every dynamic dimension of the inputs: the given one, else a default.

    Defaults that break an assumption of `program` are doubled until they do not.
    """
    chosen = default_sizes([port.shape for port in signature.inputs])
    said = parse_sizes(sizes, chosen)
    if program is None or not chosen.keys() - said.keys():
        return chosen | said
    tried = chosen | said
    for _ in range(DOUBLINGS):
        small = {name for fact in broken_by(program, tried) for name in fact.symbols} - said.keys()
        if not small:
            return tried
        tried = {name: 2 * size if name in small else size for name, size in tried.items()}
    return chosen | said


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
