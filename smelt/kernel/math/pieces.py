"""How the scalar functions are written down: named pieces of C, polynomials and exact constants.

A piece is one `static inline` function; `order` gives the pieces that a text needs, each behind the ones it uses.
Used by every file of this package; nothing here knows an op.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_NAME = re.compile(r"\bsmelt_\w+")


def number(value: float, suffix: str) -> str:
    """An exact C constant: hexadecimal, in parentheses where it is negative."""
    text = float(value).hex() + ("f" if suffix == "f32" else "")
    return f"({text})" if text.startswith("-") else text


def horner(variable: str, coefficients: Sequence[float], suffix: str) -> str:
    """c0 + c1 x + c2 x² + … with one multiply-add per coefficient."""
    text = number(coefficients[-1], suffix)
    for c in reversed(coefficients[:-1]):
        text = f"smelt_fma_{suffix}({text}, {variable}, {number(c, suffix)})"
    return text


def order(source: str, pieces: Mapping[str, str]) -> list[str]:
    """The names of the pieces that `source` needs, each after those it uses itself."""
    placed: dict[str, None] = {}
    pending = [(name, False) for name in reversed(_names(source, pieces))]
    while pending:
        name, ready = pending.pop()
        if ready:
            placed[name] = None
        elif name not in placed:
            pending.append((name, True))
            pending += [(inner, False) for inner in reversed(_names(pieces[name], pieces)) if inner != name]
    return list(placed)


def _names(text: str, pieces: Mapping[str, str]) -> list[str]:
    return [name for name in dict.fromkeys(_NAME.findall(text)) if name in pieces]
