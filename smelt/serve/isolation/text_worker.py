"""A language model in its worker: an event loop that answers many requests at once over one socket.

The loop is made before the worker gives up its rights, since it needs a pair of sockets.
"""

from __future__ import annotations

import asyncio
import os
import selectors
import socket
import threading
from collections import deque
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
    encode,
    to_raw,
)
from smelt.serve.text_model import CHAT, Emitted, LocalTexts, Token

METHODS = ("prompt", "encode", "decode", "embed", "score")


def make_loop() -> asyncio.AbstractEventLoop:
    """A loop that waits with `poll`, which a worker may call."""
    return asyncio.SelectorEventLoop(selectors.PollSelector())


def record_error(error: BaseException) -> dict[str, str]:
    if not isinstance(error, SmeltError):
        error = SmeltError("the model failed inside its worker", got=f"{type(error).__name__}: {error}")
    return {name: str(text)[:MOST_ERROR] for name, text in error.record().items()}


class Outbox:
    """Events on their way to the server, from any thread. `send` sends all that is there and never waits: what the
    socket has no room for is sent by a thread, which is the only one that sends then."""

    def __init__(self, packets: Packets) -> None:
        self._packets = packets
        self._events: deque[Event] = deque()
        self._sending = threading.Lock()
        self._unsent: SimpleQueue[bytes | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._send_slowly, name="smelt-events", daemon=True)
        self._thread.start()

    def add(self, event: Event) -> None:
        """Have an event sent with the next ones."""
        self._events.append(event)

    def put(self, event: Event) -> None:
        self._events.append(event)
        self.send()

    def send(self) -> None:
        # A thread that finds the lock taken leaves its events to the other, which looks again when it has released it.
        while self._events and self._sending.acquire(blocking=False):
            data = self._encode_next()
            try:
                self._packets.send_encoded(data, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._unsent.put(data)  # with the lock
                return
            except ClosedError:
                os._exit(0)
            self._sending.release()

    def _encode_next(self) -> bytes:
        events: list[Event] = []
        while self._events and len(events) < MOST_EVENTS:
            events.append(self._events.popleft())
        try:
            return encode(events)
        except ValueError:
            return encode([_sendable(event) for event in events])

    def _send_slowly(self) -> None:
        while (data := self._unsent.get()) is not None:
            try:
                self._packets.send_encoded(data)
            except ClosedError:
                os._exit(0)
            self._sending.release()
            self.send()

    def close(self) -> None:
        self._unsent.put(None)
        self._thread.join()


def _sendable(event: Event) -> Event:
    """The event; or, if it cannot be encoded, the failure of its answer."""
    try:
        encode([event])
    except ValueError as error:
        return Wrong(event.number, record_error(error))
    return event


class TextWorker:
    """Requests run on the loop, the tokenizer in threads. The engine's thread sends the tokens of a step together."""

    def __init__(self, texts: LocalTexts, packets: Packets, loop: asyncio.AbstractEventLoop) -> None:
        self._texts, self._packets, self._loop = texts, packets, loop
        self._running: dict[int, asyncio.Task[None] | Emitted] = {}  # what can be cancelled
        self._outbox = Outbox(packets)
        if texts.about.kind == CHAT:
            texts.on_step(self._outbox.send)

    def run(self) -> None:
        """Answer until the server closes the socket, or the loop is stopped."""
        self._loop.add_reader(self._packets.socket.fileno(), self._hear)
        self._loop.run_forever()
        self._outbox.close()

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
                self._outbox.put(Answered(asked.number, to_raw(result)))
        except asyncio.CancelledError:
            pass  # no one waits
        except Exception as error:
            self._outbox.put(Wrong(asked.number, record_error(error)))

    async def _generate(self, number: int, **given: Any) -> None:
        run = self._running[number] = await self._texts.prepare(**given)

        def emit(token: Token | None) -> None:
            if token is not None:
                self._outbox.add(Said(number, token))  # sent after the step
                return
            self._loop.call_soon_threadsafe(self._forget, number, run)
            self._outbox.put(_end_of(number, run))

        self._outbox.put(Begun(number))
        run.start(emit)


def _end_of(number: int, run: Emitted) -> Event:
    """How an answer ended. Its server waits for that, whatever fails."""
    try:
        if run.error is None:
            return Finished(number, run.finish, run.said)
        return Wrong(number, record_error(run.error))
    except Exception as error:  # e.g. of the tokenizer
        return Wrong(number, record_error(error))
