"""Ownership of the KV cache's pages: reference counts, shared prefixes, LRU reuse.

A full page is known by the hash of all tokens up to its end (a chain, salted by the model), so a sequence that begins
as another one did takes its pages. Full pages are never written again. A page without references keeps its content
until the room is needed. With `copies` a sequence that ended leaves its last page, too, which is copied by those that
begin alike. Where all layers have a window, pages that left it are given back; where some have, they have pages of
their own (`sliding`), and a prefix is known where both know it. No arrays here: `cache` holds them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as List
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np

from smelt.llm.config import LONG, PAGE
from smelt.llm.tails import Tails


@dataclass(slots=True, eq=False)
class Sequence:
    """The pages of one sequence. `length` tokens are written; `chain` are the hashes of its full pages. The first
    `gone` pages left the window: they are given back, and nothing reads what stands for them."""

    pages: list[int] = field(default_factory=list)
    length: int = 0
    chain: list[bytes] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)  # tokens of the page that is not full
    gone: int = 0
    is_long: bool = False  # its rotary positions have the frequencies `Rope.long`
    most: int | None = None  # tokens that it may have before it must be computed again with these
    sliding: Sequence | None = None  # its pages in the layers with a window, where these have their own

    @property
    def room(self) -> int:
        """Tokens that could be written in addition."""
        room = len(self.pages) * PAGE
        return (room if self.most is None else min(room, self.most)) - self.length

    @property
    def next_position(self) -> int:
        """Of the next token, as a step takes it."""
        return self.length + LONG * self.is_long

    @property
    def held(self) -> list[int]:
        """The pages that it has now."""
        return self.pages[self.gone :]


def pages_in_window(window: int, chunk: int) -> int:
    """Pages that a sequence holds at most while a step reads `chunk` tokens: the window before the page that the step
    begins in, that page, and those that it fills."""
    return -(-(window - 1) // PAGE) + -(-chunk // PAGE) + 2


class Pages:
    """`limit` pages, of which those below `used` have ever been taken. `window`: how many keys a query sees, its own
    included, in every layer. `switch`: tokens of a sequence up to which its rotary positions have their first
    frequencies (`Config.switch`); pages of both kinds are known by different hashes."""

    def __init__(
        self,
        limit: int,
        salt: bytes = b"",
        window: int | None = None,
        copies: bool = False,
        switch: int | None = None,
        sliding: Pages | None = None,
        small: int | None = None,
    ) -> None:
        """`sliding`: pages of layers with a window, which are reserved, known and given back together with these. Above
        `small` pages in use, cached ones are taken before new ones."""
        assert limit >= 1
        self.sliding = sliding
        self._small = limit if small is None else small
        self._copying = copies
        self._tails = Tails()
        self._copies: list[tuple[int, int]] = []  # from page to page, before the next step
        self.limit = limit
        self.window = window
        self.switch = switch
        self.used = 0
        self._salts = [blake2b(salt + kind, digest_size=16).digest() for kind in (b"", b"long")]
        self._free: list[int] = []
        self._counts: dict[int, int] = {}  # reference counts of pages in use
        self._idle: OrderedDict[int, None] = OrderedDict()  # cached pages without references, oldest first
        self._known: dict[bytes, int] = {}
        self._hash: dict[int, bytes] = {}

    @property
    def available(self) -> int:
        """Pages that could be taken now."""
        return self.limit - self.used + len(self._free) + len(self._idle)

    @property
    def held(self) -> int:
        """Pages that sequences hold."""
        return len(self._counts)

    @property
    def cached(self) -> int:
        """Cached pages without references."""
        return len(self._idle)

    # ---- sequences ----

    def match(self, tokens: List[int], length: int | None = None) -> Sequence:
        """A sequence with the known pages of a prefix; at least one token is left over to compute. `length`: of the
        whole sequence, where that is not all of the tokens."""
        is_long = self.is_long(len(tokens) if length is None else length)
        found = self._match(tokens, is_long)
        if self.sliding is not None:
            beside = self.sliding._match(tokens[: found.length + 1], is_long)
            if beside.length < found.length:
                self.free(found)
                found = self._match(tokens[: beside.length + 1], is_long)
            found.sliding = beside
        return found

    def _match(self, tokens: List[int], is_long: bool) -> Sequence:
        found = Sequence(is_long=is_long, most=None if is_long else self.switch)
        known: list[int | None] = []
        best = run = 0  # pages of the longest prefix that can go on; known pages in a row
        for at in range(0, len(tokens) - PAGE, PAGE):
            found.chain.append(self._next(found, tokens[at : at + PAGE]))
            known.append(self._known.get(found.chain[-1]))
            run = 0 if known[-1] is None else run + 1
            if run >= len(known) - self.left_window(len(known)):
                best = len(known)
            elif self.window is None:
                break
        found.gone = self.left_window(best)
        found.pages = [0 if page is None or i < found.gone else page for i, page in enumerate(known[:best])]
        found.length = best * PAGE
        del found.chain[best:]
        for page in found.held:
            self._hold(page)
        return found

    def copy_tail(self, sequence: Sequence, tokens: List[int]) -> None:
        """Go on after `match` in a copy of a page that is not full; at least one token is left over to compute."""
        kinds = [(self, sequence), *([] if self.sliding is None else [(self.sliding, sequence.sliding)])]
        found = [(pages, each, pages._find_tail(each, tokens)) for pages, each in kinds if each is not None]
        ready = [(pages, each, tail) for pages, each, tail in found if tail is not None and pages._has_room(tail[0])]
        if len(ready) == len(kinds):
            count = min(tail[1] for _, _, tail in ready)
            for pages, each, (source, _) in ready:
                pages._go_on_in_copy(each, source, tokens[each.length : each.length + count])

    def _find_tail(self, sequence: Sequence, tokens: List[int]) -> tuple[int, int] | None:
        """The page to go on in, and how many of its tokens are those that follow."""
        rest = tokens[sequence.length :]
        if self._copying and len(rest) == PAGE and (full := self._known.get(self._next(sequence, rest))) is not None:
            return full, PAGE - 1  # the tokens end with the page, of which the last one is computed
        return self._tails.find(self._last(sequence), rest[:-1])

    def _has_room(self, source: int) -> bool:
        """Whether a page can be taken while `source` is held."""
        return self.available > (source in self._idle)

    def _go_on_in_copy(self, sequence: Sequence, source: int, tokens: List[int]) -> None:
        self._hold(source)
        page = self._take()
        self._copies.append((source, page))
        sequence.pages.append(page)
        sequence.tail = list(tokens)
        sequence.length += len(tokens)

    def take_copies(self) -> list[tuple[int, int]]:
        """The copies of pages, (from, to), that are made now, in order."""
        made, self._copies = self._copies, []
        for source, _ in made:
            self._drop(source)
        return made

    def is_long(self, length: int) -> bool:
        """Whether a sequence of this length has the frequencies `Rope.long`."""
        return self.switch is not None and length > self.switch

    def count_shared(self, tokens: List[int], length: int | None = None) -> tuple[int, int]:
        """The number of pages that `match` would return, and how many of them have no references now."""
        found = self.match(tokens, length)
        alone = sum(self._counts[page] == 1 for page in found.held)
        count = len(found.held)
        self.free(found)
        return count, alone

    def reserve(self, sequence: Sequence, count: int) -> bool:
        """Allocate room for more tokens; False, with nothing changed, if there are not enough pages, or the sequence
        is at its longest."""
        if sequence.most is not None and sequence.length + count > sequence.most:
            return False
        needed = -(-(count - sequence.room) // PAGE)
        if needed > self.available:
            return False
        if self.sliding is not None and sequence.sliding is not None:
            if not self.sliding.reserve(sequence.sliding, count):
                return False
        sequence.pages += [self._take() for _ in range(needed)]
        return True

    def count_room(self, sequence: Sequence) -> int:
        """Tokens that could be reserved now."""
        room = sequence.room + self.available * PAGE
        if self.sliding is None or sequence.sliding is None:
            return room
        return min(room, self.sliding.count_room(sequence.sliding))

    def commit(self, sequence: Sequence, tokens: List[int]) -> None:
        """These tokens are written now; pages that they fill become known."""
        assert len(tokens) <= sequence.room
        if self.sliding is not None and sequence.sliding is not None:
            self.sliding.commit(sequence.sliding, tokens)
        sequence.length += len(tokens)
        sequence.tail += tokens
        while len(sequence.tail) >= PAGE:
            digest = self._next(sequence, sequence.tail[:PAGE])
            del sequence.tail[:PAGE]
            page = sequence.pages[len(sequence.chain)]
            sequence.chain.append(digest)
            if digest not in self._known:  # else another page has the same content already
                self._known[digest], self._hash[page] = page, digest
        self._drop_behind(sequence)

    def left_window(self, full: int) -> int:
        """Pages before the window of the tokens after a number of full pages."""
        return 0 if self.window is None else max(0, (full * PAGE - self.window + 1) // PAGE)

    def _drop_behind(self, sequence: Sequence) -> None:
        """Give back the pages that no token after the full pages sees."""
        for i in range(sequence.gone, self.left_window(len(sequence.chain))):
            self._drop(sequence.pages[i])
            sequence.pages[i] = 0
            sequence.gone = i + 1

    def count_needed(self, tokens: int, chunk: int) -> int:
        """Pages that a sequence of `tokens` tokens holds at most, if steps read up to `chunk` of them."""
        whole = -(-tokens // PAGE)
        return whole if self.window is None else min(whole, pages_in_window(self.window, chunk))

    def fork(self, sequence: Sequence) -> Sequence:
        """Another sequence with the same full pages; the tokens after them are to be computed again."""
        count = len(sequence.chain)
        for page in sequence.pages[sequence.gone : count]:
            self._hold(page)
        beside = None
        if self.sliding is not None and sequence.sliding is not None:
            beside = self.sliding.fork(sequence.sliding)
        pages, chain = sequence.pages[:count], sequence.chain[:count]
        return replace(sequence, pages=pages, length=count * PAGE, chain=chain, tail=[], sliding=beside)

    def truncate(self, sequence: Sequence, length: int) -> int:
        """Forget the tokens from `length` on, or from the beginning of its page where that is full: full pages are not
        written again. What is left: nothing where the window before it is gone."""
        full = len(sequence.chain)
        beside = sequence.sliding
        is_gone = sequence.gone > self.left_window(min(length // PAGE, full))
        if self.sliding is not None and beside is not None:
            is_gone = is_gone or (self.sliding.truncate(beside, length) == 0 and beside.length < sequence.length)
        if is_gone:
            self.free(sequence)
            return 0
        if length < full * PAGE:
            length = length // PAGE * PAGE
            sequence.chain, sequence.tail = sequence.chain[: length // PAGE], []
        else:
            del sequence.tail[length - full * PAGE :]
        keep = -(-length // PAGE)
        for page in sequence.pages[keep:]:
            self._drop(page)
        del sequence.pages[keep:]
        sequence.length = min(sequence.length, length)
        return sequence.length

    def free(self, sequence: Sequence) -> None:
        if self._copying and sequence.tail:
            self._keep_tail(sequence)
        for page in reversed(sequence.held):  # so that beginnings stay known for longest
            self._drop(page)
        sequence.pages, sequence.length, sequence.chain, sequence.tail, sequence.gone = [], 0, [], [], 0
        if self.sliding is not None and sequence.sliding is not None:
            self.sliding.free(sequence.sliding)

    def forget(self) -> None:
        """Forget all pages: their content is lost."""
        self.take_copies()
        self._tails.clear()
        self._free += self._idle
        self._idle.clear()
        self._known.clear()
        self._hash.clear()
        if self.sliding is not None:
            self.sliding.forget()

    def chain(self, tokens: List[int], is_long: bool = False) -> list[bytes]:
        """The hashes of the full pages of tokens."""
        found = Sequence(is_long=is_long)
        for at in range(0, len(tokens) // PAGE * PAGE, PAGE):
            found.chain.append(self._next(found, tokens[at : at + PAGE]))
        return found.chain

    def adopt(self, digest: bytes) -> int | None:
        """A page for content that is known from elsewhere; None where it is known already or there is no room."""
        if digest in self._known or not self.available:
            return None
        page = self._take()
        self._known[digest], self._hash[page] = page, digest
        self._drop(page)
        return page

    # ---- pages ----

    def _last(self, sequence: Sequence) -> bytes:
        """The hash of all full pages."""
        return sequence.chain[-1] if sequence.chain else self._salts[sequence.is_long]

    def _next(self, sequence: Sequence, tokens: List[int]) -> bytes:
        return blake2b(self._last(sequence) + np.array(tokens, "<i4").tobytes(), digest_size=16).digest()

    def _keep_tail(self, sequence: Sequence) -> None:
        gone = self._tails.put(self._last(sequence), sequence.pages[len(sequence.chain)], sequence.tail)
        if gone is not None and gone in self._idle:
            del self._idle[gone]
            self._free.append(gone)

    def _take(self) -> int:
        if self._free:
            page = self._free.pop()
        elif self.used < (self.limit if not self._idle else min(self.limit, self._small)):
            page = self.used
            self.used += 1
        else:
            page, _ = self._idle.popitem(last=False)
            if page in self._tails:
                self._tails.drop(page)
            else:
                del self._known[self._hash.pop(page)]
        self._counts[page] = 1
        return page

    def _hold(self, page: int) -> None:
        self._idle.pop(page, None)
        self._counts[page] = self._counts.get(page, 0) + 1

    def _drop(self, page: int) -> None:
        self._counts[page] -= 1
        if self._counts[page]:
            return
        del self._counts[page]
        if page in self._hash or page in self._tails:
            self._idle[page] = None
        else:
            self._free.append(page)
