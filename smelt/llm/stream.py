"""Results of running requests: `Run` for threads, `AsyncRun` for coroutines, `EmittedRun` for callbacks on the engine's
thread.

Iterate over `Piece`s. Leaving the loop, `close`, an exception in the waiting thread (Ctrl-C) or a cancelled task ends
the requests between steps.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

from smelt.llm.engine import Engine
from smelt.llm.request import Answer, Piece, Request


class _Requests:
    """The requests of one call; the first one is streamed, the others are alternatives."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        self._engine, self._requests = engine, list(requests)
        self._streams = True  # the caller streams

    def _is_wanted(self, number: int, piece: Piece | None) -> bool:
        """Whether the waiting thread is woken: for pieces of the first answer where it streams, and for ends."""
        return piece is None or (number == 0 and self._streams)

    @property
    def finish(self) -> str:
        """How it ended; "length" until then."""
        return self._requests[0].finish or "length"

    @property
    def timings(self) -> dict[str, float]:
        return self._requests[0].timings

    def cancel(self) -> None:
        for request in self._requests:
            if request.finish is None:
                self._engine.cancel(request)

    def _answer(self) -> Answer:
        first, *others = (request.answer() for request in self._requests)
        return replace(first, alternatives=tuple(others))


class EmittedRun(_Requests):
    """The same for a caller who takes pieces as they are made, on the engine's thread."""

    def start(self, emit: Callable[[Piece | None], None]) -> None:
        """Begin. `emit` gets the pieces of the first answer, and None at its end; it must not wait."""
        self._requests[0].emit = emit
        self._engine.submit(*self._requests)

    @property
    def error(self) -> BaseException | None:
        return self._requests[0].error


class Run(_Requests):
    """A generation: an iterator over the `Piece`s of its first answer."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        super().__init__(engine, requests)
        self._made = self._pieces()

    def __iter__(self) -> Iterator[Piece]:
        return self._made

    def close(self) -> None:
        """End it here."""
        self._made.close()
        self.cancel()

    def answer(self, _: Any = None) -> Answer:
        """Wait for the whole answer."""
        self._streams = False
        for _piece in self._made:
            pass
        return self._answer()

    def _pieces(self) -> Generator[Piece, None, None]:
        queue: SimpleQueue[tuple[int, Piece | None]] = SimpleQueue()

        def emit(number: int, piece: Piece | None) -> None:
            if self._is_wanted(number, piece):
                queue.put((number, piece))

        for i, request in enumerate(self._requests):
            request.emit = partial(emit, i)
        left = len(self._requests)
        try:
            self._engine.submit(*self._requests)
            while left:
                i, piece = queue.get()
                if piece is None:
                    left -= 1
                    if self._requests[i].error is not None:
                        raise self._requests[i].error  # type: ignore[misc]
                elif i == 0:
                    yield piece
        finally:
            self.cancel()


class AsyncRun(_Requests):
    """The same for coroutines."""

    def __init__(self, engine: Engine, requests: Sequence[Request]) -> None:
        super().__init__(engine, requests)
        self._made = self._pieces()

    def __aiter__(self) -> AsyncIterator[Piece]:
        return self._made

    async def close(self) -> None:
        """End it here."""
        await self._made.aclose()
        self.cancel()

    async def answer(self) -> Answer:
        self._streams = False
        async for _ in self._made:
            pass
        return self._answer()

    async def _pieces(self) -> AsyncGenerator[Piece, None]:
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[int, Piece | None]] = asyncio.Queue()

        def emit(number: int, piece: Piece | None) -> None:
            if self._is_wanted(number, piece):
                with suppress(RuntimeError):  # the loop is closed: no one waits
                    loop.call_soon_threadsafe(queue.put_nowait, (number, piece))

        for i, request in enumerate(self._requests):
            request.emit = partial(emit, i)
        left = len(self._requests)
        try:
            self._engine.submit(*self._requests)
            while left:
                i, piece = await queue.get()
                if piece is None:
                    left -= 1
                    if self._requests[i].error is not None:
                        raise self._requests[i].error  # type: ignore[misc]
                elif i == 0:
                    yield piece
        finally:
            self.cancel()
