"""Pages that are not full and whose content is known: what a sequence left behind, for one that begins alike.

`Pages` asks for them where the full pages of a prefix end. Such a page is copied, since both sequences go on in it.
"""

from __future__ import annotations

from collections.abc import Sequence


class Tails:
    """For the hash of the full pages before it, a page and the tokens in it; the latest of each hash."""

    def __init__(self) -> None:
        self._pages: dict[bytes, tuple[int, list[int]]] = {}
        self._hash: dict[int, bytes] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._hash

    def put(self, before: bytes, page: int, tokens: list[int]) -> int | None:
        """Keep a page; the page that is no longer kept for it: the older one, or itself where that has more."""
        old = self._pages.get(before)
        if old is not None and old[1][: len(tokens)] == tokens:
            return page
        if old is not None:
            del self._hash[old[0]]
        self._pages[before], self._hash[page] = (page, list(tokens)), before
        return None if old is None else old[0]

    def find(self, before: bytes, tokens: Sequence[int]) -> tuple[int, int] | None:
        """A page that begins with some of the tokens, and with how many."""
        page, known = self._pages.get(before, (0, []))
        count = next((i for i, (a, b) in enumerate(zip(known, tokens, strict=False)) if a != b), None)
        count = min(len(known), len(tokens)) if count is None else count
        return (page, count) if count else None

    def drop(self, page: int) -> None:
        """The page has other content from now on."""
        del self._pages[self._hash.pop(page)]

    def clear(self) -> None:
        self._pages.clear()
        self._hash.clear()
