"""A language model in its worker: an event loop that answers many requests at once over one socket.

The loop is made before the worker gives up its rights, since it needs a pair of sockets.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import threading
from queue import SimpleQueue
from typing import Any

from smelt.errors import SmeltError
from smelt.serve.isolation.channel import ClosedError
from smelt.serve.isolation.packets import (
    MOST_ERROR,
    MOST_EVENTS,
    Answered,
    Ask,
    Begun,
    Event,
    Finished,
    Packets,
    Said,
    Wrong,
    to_raw,
)
from smelt.serve.text_model import Emitted, LocalTexts, Token

METHODS = ("prompt", "encode", "decode", "embed", "score")


def make_loop() -> asyncio.AbstractEventLoop:
    """A loop that waits with `poll`, which a worker may call."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def record_error(error: BaseException) -> dict[str, str]:
    if not isinstance(error, SmeltError):
        error = SmeltError("the model failed inside its worker", got=f"{type(error).__name__}: {error}")
    return {name: str(text)[:MOST_ERROR] for name, text in error.record().items()}


class TextWorker:
    """Requests run on the loop, the tokenizer in threads. Tokens go from the engine's thread to one that sends."""

    def __init__(self, texts: LocalTexts, packets: Packets, loop: asyncio.AbstractEventLoop) -> None:
        self._texts, self._packets, self._loop = texts, packets, loop
        self._running: dict[int, asyncio.Task[None] | Emitted] = {}  # what can be cancelled
        self._events: SimpleQueue[Event | None] = SimpleQueue()

    def run(self) -> None:
        """Answer until the server is gone, or the loop is stopped."""
        sending = threading.Thread(target=self._send, name="smelt-events", daemon=True)
        sending.start()
        self._loop.add_reader(self._packets.socket.fileno(), self._hear)
        self._loop.run_forever()
        self._events.put(None)
        sending.join()

    def _hear(self) -> None:
        try:
            said = self._packets.receive_asked()
        except ClosedError:
            os._exit(0)
        if isinstance(said, Ask):
            task = self._running[said.number] = self._loop.create_task(self._answer(said))
            task.add_done_callback(lambda _: self._forget(said.number, task))
        elif said.number in self._running:
            self._running[said.number].cancel()

    def _forget(self, number: int, done: asyncio.Task[None] | Emitted) -> None:
        if self._running.get(number) is done:
            del self._running[number]

    async def _answer(self, asked: Ask) -> None:
        try:
            if asked.method == "generate":
                await self._generate(asked.number, **asked.given)
            else:
                assert asked.method in METHODS, asked.method
                result = await getattr(self._texts, asked.method)(**asked.given)
                self._events.put(Answered(asked.number, to_raw(result)))
        except asyncio.CancelledError:
            pass  # no one waits
        except Exception as error:
            self._events.put(Wrong(asked.number, record_error(error)))

    async def _generate(self, number: int, **given: Any) -> None:
        run = self._running[number] = await self._texts.prepare(**given)

        def emit(token: Token | None) -> None:
            if token is not None:
                self._events.put(Said(number, token))
                return
            self._loop.call_soon_threadsafe(self._forget, number, run)
            if run.error is not None:
                self._events.put(Wrong(number, record_error(run.error)))
            else:
                self._events.put(Finished(number, run.finish, run.said))

        self._events.put(Begun(number))
        run.start(emit)

    def _send(self) -> None:
        """One packet for all that the answers of a step say: they are there before this thread has its turn."""
        while (event := self._events.get()) is not None:
            events = [event]
            while len(events) < MOST_EVENTS and not self._events.empty():
                if (event := self._events.get()) is None:
                    return
                events.append(event)
            try:
                self._packets.send(events)
            except ClosedError:
                os._exit(0)
