"""Shortened text of `inspect` and `check` without `--verbose`: the head of a long list, short names for long symbols.

Only text is shortened; JSON records are complete.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

LONG = 12  # characters of a symbol that is shown as it is
TEXT = 60  # characters of a text
MORE = "--verbose shows all"


def fold_list(items: Sequence[str], most: int, verbose: bool) -> list[str]:
    """The first items, and how many more there are."""
    if verbose or len(items) <= most + 1:
        return list(items)
    return [*items[:most], f"… and {len(items) - most} more ({MORE})"]


def fold_text(text: str, verbose: bool) -> str:
    """The start of the first line."""
    if verbose or (len(text) <= TEXT and "\n" not in text):
        return text
    lines = text.splitlines()
    size = f"{len(lines)} lines" if len(lines) > 1 else f"{len(text)} characters"
    return f"{lines[0][:TEXT]} … ({size}, {MORE})".lstrip()


class ShortNames:
    """Symbols with names too long for a formula, as `d0`, `d1`, …"""

    def __init__(self, symbols: Iterable[str]) -> None:
        every = sorted(set(symbols))
        free = (f"d{i}" for i in range(2 * len(every) + 1) if f"d{i}" not in every)
        self.names: Mapping[str, str] = {name: next(free) for name in every if len(name) > LONG}

    def shorten(self, text: str) -> str:
        """A text with short names in place of long ones."""
        if not self.names:
            return text
        either = "|".join(re.escape(name) for name in sorted(self.names, key=len, reverse=True))
        return re.sub(rf"(?<![\w.])({either})(?![\w.])", lambda found: self.names[found[1]], text)

    def legend(self) -> list[str]:
        """`d0 = p2o.DynamicDimension.0` for each."""
        return [f"{short} = {name}" for name, short in self.names.items()]
