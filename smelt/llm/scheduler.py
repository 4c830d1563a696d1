"""Continuous batching: which requests compute how many tokens in the next step.

Decoding sequences go first, one token each; the rest of the step's token budget prefills prompts in chunks. A request
starts when the pages for its whole prompt are free, so that nothing runs out in the middle; when decoding needs more
pages than there are, the youngest request is preempted and recomputed later. No arrays and no clock here: `engine`
calls `plan`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from smelt.llm.config import PAGE
from smelt.llm.pages import Pages
from smelt.llm.request import Request

SCORED = 64  # tokens of a request whose logits are all wanted, per step


@dataclass(frozen=True, slots=True)
class Part:
    """A number of tokens of a request, in the next step."""

    request: Request
    count: int

    @property
    def is_last(self) -> bool:
        """Whether the tokens reach the request's last one, after which one is to be chosen."""
        return self.count == self.request.pending

    @property
    def rows(self) -> list[int]:
        """The tokens whose logits are wanted."""
        if self.request.scores:
            return list(range(self.count))
        return [self.count - 1] if self.is_last else []


class Scheduler:
    """`most(pages, count)`: tokens that a step may read, of `count` sequences with up to `pages` pages each;
    `sequences` run at once."""

    def __init__(self, pages: Pages, most: Callable[[int, int], int], sequences: int) -> None:
        self.pages = pages
        self.waiting: list[Request] = []
        self.running: list[Request] = []  # in the order of their numbers
        self.preempted = 0  # how often
        self._blocked = False  # no waiting request can begin before one ends or arrives
        self._most = most
        self._sequences = sequences
        self._arrived = 0
        self._served = Counter[str]()  # tokens, by client

    @property
    def is_settled(self) -> bool:
        """Whether all that can run does."""
        return not self.waiting or self._blocked or len(self.running) >= self._sequences

    def add(self, request: Request) -> None:
        self._blocked = False
        self._arrived += 1
        request.number = self._arrived
        clients = {each.client for each in (*self.waiting, *self.running)}
        if not clients:
            self._served.clear()
        elif request.client not in clients:  # an idle client gathers no credit
            least = min(self._served[each] for each in clients)
            self._served[request.client] = max(self._served[request.client], least)
        self.waiting.append(request)

    def drop(self, gone: Callable[[Request], bool]) -> list[Request]:
        """Remove cancelled requests."""
        found = [request for request in (*self.running, *self.waiting) if gone(request)]
        for request in found:
            self.remove(request)
        return found

    def remove(self, request: Request) -> None:
        self._blocked = False
        self._give_back(request)
        for requests in (self.running, self.waiting):
            if request in requests:
                requests.remove(request)

    def preempt(self, request: Request) -> None:
        """Free a request's pages; it is recomputed when there is room."""
        self.remove(request)
        self.waiting.append(request)
        self.preempted += 1

    def plan(self) -> list[Part]:
        """The next step's work; pages for it are reserved."""
        for request in [each for each in self.running if self._is_outgrown(each)]:
            self.remove(request)  # all its keys are to be computed with other rotary positions
            self.waiting.append(request)
        parts = self._generating()
        left = self._count_left(parts)
        self._blocked = left <= 0  # decoding sequences leave no room for prompts
        for request in [each for each in self.running if each.pending > 1]:
            count = self._read(request, left)
            if count:
                parts.append(Part(request, count))
                left -= count
        while left > 0 and len(self.running) < self._sequences and (new := self._next()) is not None:
            if not self._begin(new):
                self._blocked = True
                break
            count = self._read(new, self._count_left(parts))
            if count:
                parts.append(Part(new, count))
            left = self._count_left(parts)
        if not parts and self.running:  # prompts hold each other's pages
            self.preempt(self.running[-1])
            return self.plan()
        self.serve(parts)
        return parts

    def serve(self, parts: list[Part]) -> None:
        """Count the tokens of a step for their clients."""
        for part in parts:
            self._served[part.request.client] += part.count

    # ---- parts of a plan ----

    def _count_left(self, parts: list[Part]) -> int:
        longest = max((_pages(len(each.tokens)) for each in self.running), default=1)
        return max(0, self._most(longest, len(self.running)) - sum(part.count for part in parts))

    def _generating(self) -> list[Part]:
        """One token for each decoding sequence, oldest first; the youngest are preempted if pages run out."""
        most = self._count_left([])
        parts: list[Part] = []
        for request in [each for each in self.running if each.pending == 1]:
            while len(parts) < most and request in self.running:
                assert request.sequence is not None
                if self.pages.reserve(request.sequence, 1):
                    parts.append(Part(request, 1))
                    break
                self.preempt(self.running[-1])
        return parts

    def _read(self, request: Request, left: int) -> int:
        """How many tokens of a prompt the step reads."""
        assert request.sequence is not None
        room = self.pages.count_room(request.sequence)
        count = min(request.pending, left, room, SCORED if request.scores else left)
        if count > 0:
            self.pages.reserve(request.sequence, count)
        return max(count, 0)

    def _next(self) -> Request | None:
        """The next waiting request: of the client that was served least, oldest first."""
        ready = [each for each in self.waiting if each.after is None or each.after.is_read]
        return min(ready, key=lambda each: (self._served[each.client], each.number), default=None)

    def _begin(self, request: Request) -> bool:
        """Start a request if there are pages for its tokens and for those of all running requests."""
        known, length = [] if request.scores else request.tokens, len(request.tokens)
        shared, idle = self.pages.count_shared(known, length)
        promised = sum(max(0, self._count_needed(each) - _count_held(each)) for each in self.running)
        if self.pages.available - idle < promised + max(0, self._count_needed(request) - shared) and self.running:
            return False
        request.sequence = self.pages.match(known, length)
        if not request.scores:
            self.pages.copy_tail(request.sequence, request.tokens)
        if not request.generated:
            request.cached = request.sequence.length
        self.waiting.remove(request)
        self.running.append(request)
        self.running.sort(key=lambda each: each.number)
        return True

    def _is_outgrown(self, request: Request) -> bool:
        most = None if request.sequence is None else request.sequence.most
        return most is not None and len(request.tokens) > most

    def _count_needed(self, request: Request) -> int:
        """Pages that a request holds at most until its next token is there."""
        count = len(request.tokens) + 1
        return self.pages.count_needed(count, self._most(_pages(count), 1))

    def _give_back(self, request: Request) -> None:
        if request.sequence is not None:
            self.pages.free(request.sequence)
            request.sequence = None


def _pages(tokens: int) -> int:
    return -(-tokens // PAGE)


def _count_held(request: Request) -> int:
    return 0 if request.sequence is None else len(request.sequence.held)
