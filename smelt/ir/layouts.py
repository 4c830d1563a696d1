"""Layouts of composites: `(bh)qd,bhkd,bhke->bqhe`, one term per operand; an axis is a letter or a product of letters.

`ir.composites` defines the layouts. In: the text, and the sizes of operands and results. Out: the sizes of the letters.
Called by the ops and kernels of composites.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from smelt.dim import Size, divide_exact, product

Word = tuple[str, ...]  # the letters of each axis; "" for an axis of size one

_AXIS = re.compile(r"\(([A-Za-z]+)\)|([A-Za-z])|(\.)")


def parse(layout: str) -> tuple[tuple[Word, ...], Word] | None:
    """The words of the operands and the result's; None for a text that is no layout."""
    operands, arrow, result = layout.partition("->")
    words = [_word(text) for text in (*operands.split(","), result)]
    if not arrow or any(word is None for word in words):
        return None
    known = [word for word in words if word is not None]
    return tuple(known[:-1]), known[-1]


def _word(text: str) -> Word | None:
    axes: list[str] = []
    at = 0
    while at < len(text):
        found = _AXIS.match(text, at)
        if found is None:
            return None
        axes.append((found[1] or found[2] or "") if not found[3] else "")
        at = found.end()
    letters = "".join(axes)
    return tuple(axes) if len(set(letters)) == len(letters) else None


def letters(word: Word) -> str:
    return "".join(word)


def sizes_of(pairs: Iterable[tuple[Word, Sequence[Size]]]) -> dict[str, Size] | None:
    """The sizes of letters, from words and the sizes of their axes; None where they do not fit or are unknown."""
    axes: list[tuple[str, Size]] = []
    for word, sizes in pairs:
        if len(word) != len(sizes):
            return None
        axes += zip(word, sizes, strict=True)
    known: dict[str, Size] = {}
    open_axes = axes
    while open_axes:
        later = []
        for axis, size in open_axes:
            unknown = [letter for letter in axis if letter not in known]
            if len(unknown) > 1:
                later.append((axis, size))
            elif unknown:
                others = product(known[letter] for letter in axis if letter in known)
                rest = divide_exact(size, others)
                if rest is not None:
                    known[unknown[0]] = rest
                elif others == 0:
                    later.append((axis, size))  # another axis may determine it
                else:
                    return None
        if len(later) == len(open_axes):
            return None
        open_axes = later
    return known if all(product(known[letter] for letter in axis) == size for axis, size in axes) else None
