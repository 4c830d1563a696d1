"""Tables as wide as the terminal: rows → lines on stdout. Every command that prints a table calls it.

Numbers are never truncated. If a table is too wide, text wraps first; then the least important columns are dropped
(`--json` has them all).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap
from typing import NamedTuple

from rich.console import Console

WIDE = 160  # columns of a file or a pipe
LONG = 16  # characters of a word that may be broken
GAP = "  "


class Column(NamedTuple):
    """A head, whether the cells are text (else numbers), and `drop`: the highest is dropped first, 0 never."""

    head: str
    is_text: bool = False
    drop: int = 0


def open_console() -> Console:
    """Stdout; as wide as the terminal or COLUMNS, and wide where it goes to a file or a pipe."""
    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(highlight=False, width=None if known else WIDE)


def print_table(console: Console, columns: Sequence[Column], rows: Iterable[Sequence[str]]) -> None:
    """Print a head (unless it is empty) and the rows; cells are plain text, not markup."""
    heads = [column.head for column in columns]
    lines = list(layout(columns, [heads, *rows], console.width))
    for i, line in enumerate(lines if any(heads) else lines[1:]):
        console.print(line, markup=False, soft_wrap=True, style="bold" if i == 0 and any(heads) else None)


def print_facts(console: Console, facts: Iterable[tuple[str, str]]) -> None:
    """Print rows of a name and a text."""
    print_table(console, (Column("", True), Column("", True)), facts)


def layout(columns: Sequence[Column], rows: Sequence[Sequence[str]], room: int) -> Iterable[str]:
    """The text of each row; it has several lines if cells wrap."""
    kept = list(range(len(columns)))
    least = [max(_least_width(column, row[i]) for row in rows) for i, column in enumerate(columns)]
    while sum(least[i] for i in kept) + len(GAP) * (len(kept) - 1) > room:
        last = max(kept, key=lambda i: (columns[i].drop, i))
        if not columns[last].drop:
            break
        kept.remove(last)
    widths = {i: max(len(line) for row in rows for line in row[i].splitlines() or [""]) for i in kept}
    while sum(widths.values()) + len(GAP) * (len(kept) - 1) > room:
        slack = {i: widths[i] - least[i] for i in kept}
        widest = max(kept, key=lambda i: (slack[i] > 0, widths[i]))
        if slack[widest] <= 0:
            break
        widths[widest] -= 1
    for row in rows:
        cells = [[part for line in row[i].splitlines() for part in wrap(line, widths[i]) or [""]] or [""] for i in kept]
        aligned = zip(kept, zip(*zip_longest(*cells, fillvalue=""), strict=True), strict=True)
        padded = [[_pad(columns[i], part, widths[i]) for part in parts] for i, parts in aligned]
        yield "\n".join(GAP.join(parts).rstrip() for parts in zip(*padded, strict=True))


def _pad(column: Column, text: str, width: int) -> str:
    return text.ljust(width) if column.is_text else text.rjust(width)


def _least_width(column: Column, text: str) -> int:
    """The least width of a column: whole numbers; for text and heads the longest word, up to a limit."""
    if not column.is_text and text != column.head:
        return len(text)
    return min(max(map(len, text.split()), default=0), LONG)
