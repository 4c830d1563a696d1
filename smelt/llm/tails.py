"""Partial pages of finished sequences, for sequences with the same beginning.

`Pages` asks for them where the full pages of a prefix end. Such a page is copied, since both sequences go on in it.
"""

from __future__ import annotations

from collections.abc import Sequence

MOST = 8  # pages that begin after the same full pages
LEAST = 8  # tokens that are worth a copy


class Tails:
    """For the hash of the full pages before them, pages with the tokens in each, latest last."""

    def __init__(self) -> None:
        self._pages: dict[bytes, dict[int, list[int]]] = {}
        self._hash: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._hash

    def put(self, before: bytes, page: int, tokens: list[int]) -> int | None:
        """Keep a page; the page that is not kept for it, or no longer: itself where another one has its tokens, one
        whose tokens it has, or the oldest of many."""
        known = self._pages.get(before, {})
        if any(each[: len(tokens)] == tokens for each in known.values()):
            return page
        gone = next((old for old, each in known.items() if tokens[: len(each)] == each), None)
        if gone is None and len(known) == MOST:
            gone = next(iter(known))
        if gone is not None:
            self.drop(gone)
        self._pages.setdefault(before, {})[page] = list(tokens)
        self._hash[page] = before
        return gone

    def find(self, before: bytes, tokens: Sequence[int]) -> tuple[int, int] | None:
        """The page that begins with most of the tokens, and with how many."""
        known = self._pages.get(before, {})
        found = max(((_common(each, tokens), page) for page, each in known.items()), default=(0, 0))
        return (found[1], found[0]) if found[0] >= LEAST else None

    def drop(self, page: int) -> None:
        """The page has other content from now on."""
        before = self._hash.pop(page)
        del self._pages[before][page]
        if not self._pages[before]:
            del self._pages[before]

    def clear(self) -> None:
        self._pages.clear()
        self._hash.clear()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two begin with alike."""
    differing = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differing, min(len(a), len(b)))
