"""A language model in its worker: an event loop that answers many requests at once over one socket.

The loop is made before the worker gives up its rights, since it needs a pair of sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import selectors
from typing import Any

from smelt.errors import SmeltError
from smelt.serve.isolation.channel import ClosedError
from smelt.serve.isolation.packets import Answered, Ask, Begun, Event, Finished, Packets, Said, Wrong, to_raw
from smelt.serve.text_model import LocalTexts

METHODS = ("prompt", "encode", "decode", "embed", "score")
MOST_TEXT = 4000  # characters of a part of an error


def make_loop() -> asyncio.AbstractEventLoop:
    """A loop that waits with `poll`, which a worker may call."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def record_error(error: BaseException) -> dict[str, str]:
    if not isinstance(error, SmeltError):
        error = SmeltError("the model failed inside its worker", got=f"{type(error).__name__}: {error}")
    return {name: str(text)[:MOST_TEXT] for name, text in error.record().items()}


class TextWorker:
    """Everything runs on the loop; the engine and the tokenizer in threads."""

    def __init__(self, texts: LocalTexts, packets: Packets, loop: asyncio.AbstractEventLoop) -> None:
        self._texts, self._packets, self._loop = texts, packets, loop
        self._running: dict[int, asyncio.Task[None]] = {}
        self._events: list[Event] = []  # since the last packet

    def run(self) -> None:
        """Answer until the server is gone."""
        self._loop.add_reader(self._packets.socket.fileno(), self._hear)
        self._loop.run_forever()

    def _hear(self) -> None:
        try:
            said = self._packets.receive_asked()
        except ClosedError:
            os._exit(0)
        if isinstance(said, Ask):
            task = self._running[said.number] = self._loop.create_task(self._answer(said))
            task.add_done_callback(lambda _: self._running.pop(said.number))
        elif said.number in self._running:
            self._running[said.number].cancel()

    async def _answer(self, asked: Ask) -> None:
        try:
            if asked.method == "generate":
                await self._generate(asked.number, **asked.given)
            else:
                assert asked.method in METHODS, asked.method
                result = await getattr(self._texts, asked.method)(**asked.given)
                self._say(Answered(asked.number, to_raw(result)))
        except asyncio.CancelledError:
            pass  # no one waits
        except Exception as error:
            self._say(Wrong(asked.number, record_error(error)))

    async def _generate(self, number: int, **given: Any) -> None:
        run = await self._texts.generate(**given)
        self._say(Begun(number))
        try:
            async with contextlib.aclosing(aiter(run)) as tokens:
                async for token in tokens:
                    self._say(Said(number, token))
        finally:
            run.cancel()
        self._say(Finished(number, run.finish, run.said))

    def _say(self, event: Event) -> None:
        """One packet for all that the answers of a step say."""
        if not self._events:
            self._loop.call_soon(self._flush)
        self._events.append(event)

    def _flush(self) -> None:
        events, self._events = self._events, []
        try:
            self._packets.send(events)
        except ClosedError:
            os._exit(0)
