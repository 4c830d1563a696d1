"""A language model in a worker process, as the server calls it: `RemoteTexts`. Everything runs on the event loop.

Requests and answers share one socket and are numbered. A worker that dies fails its answers; later requests wait for
the next worker. Every message of a worker is checked on arrival: that it belongs to a request, the number of tokens,
types and sizes, and its deadline.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import socket
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from smelt.errors import ParseError, error_of
from smelt.serve.isolation.channel import ClosedError
from smelt.serve.isolation.packets import (
    MOST,
    Answered,
    Ask,
    Begun,
    Event,
    Finished,
    Packets,
    Said,
    Stop,
    Wrong,
    encode,
)
from smelt.serve.isolation.remote import RemoteModel
from smelt.serve.isolation.restarts import MOST_PAUSE, Restarts
from smelt.serve.mailbox import Mailbox
from smelt.serve.problems import RequestError, TooLargeError, UnavailableError
from smelt.serve.text_model import Scores, TextModel, TextRun, Token, Vectors

log = logging.getLogger("smelt.serve")
T = TypeVar("T")
GRACE = 5.0  # seconds after its deadline in which a worker must have answered
MOST_READ = 32  # packets per iteration of the event loop
LEAST_ANSWER, MOST_GROWTH = 1 << 20, 256  # bytes that any answer may have, and more for each byte of the request
LAST = (Answered, Finished, Wrong)  # of an exchange
FINISHES = ("stop", "length", "deadline", "cancelled")


class _Exchange:
    """A request and what the worker says to it. `left`: tokens that may come; None: one result."""

    __slots__ = ("_has_begun", "_taken", "events", "left", "longest", "number", "overdue")

    def __init__(self, number: int, left: int | None, longest: int, timeout: float | None) -> None:
        self.number, self.left, self.longest = number, left, longest  # bytes of a result
        self._has_begun = False
        self._taken: list[Event | Exception] = []
        self.events: Mailbox[Event | Exception] = Mailbox()
        self.overdue = None if timeout is None else time.monotonic() + timeout + GRACE

    def take(self, event: Event) -> bool:
        """Whether the event may come now; it is there for `next` then."""
        if type(event) is Said and self._has_begun and self.left:  # nearly all are
            self.left -= 1
            self.events.put(event)
            return True
        match event:
            case Answered(result=result):
                fits = self.left is None and len(bytes(result)) <= self.longest
            case Begun():
                fits = self.left is not None and not self._has_begun
                self._has_begun = True
            case Said():
                fits = False
            case Finished():
                fits = self._has_begun
            case Wrong():
                fits = True
        if fits:
            self.events.put(event)
        return fits

    async def next(self) -> Event:
        """The first event that came. Nothing comes after it before it was taken but the tokens of an answer."""
        if not self._taken:
            self._taken = await self.events.take()
        return _event_of(self._taken.pop(0))

    async def tokens(self) -> list[Token] | Finished:
        """The tokens that came, at least one; or how the answer ended."""
        if not self._taken:
            self._taken = await self.events.take()
        found, last = [], len(self._taken)
        for i, event in enumerate(self._taken):
            if not isinstance(event, Said):
                last = i
                break
            found.append(event.token)
        self._taken = self._taken[last:]
        if found:
            return found
        end = _event_of(self._taken[0])
        assert isinstance(end, Finished)
        return end


def _event_of(found: Event | Exception) -> Event:
    if isinstance(found, Wrong):
        raise error_of(dict(found.error))
    if isinstance(found, Exception):
        raise found
    return found


class RemoteTexts(TextModel):
    def __init__(self, worker: RemoteModel) -> None:
        assert worker.loaded.about is not None, "a worker of tensors"
        self.worker, self.about = worker, worker.loaded.about
        self._restarts = Restarts(worker, self._attach, self._fail_all)
        self._numbers = itertools.count(1)
        self._exchanges: dict[int, _Exchange] = {}
        self._packets: Packets | None = None  # while the worker is there
        self._loop: asyncio.AbstractEventLoop | None = None
        self._unsent: deque[bytes] = deque()
        self._late = 0  # events that may still come for what was stopped
        self._watching: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def restarts(self) -> int:  # type: ignore[override]
        return self._restarts.count

    # ---- what can be asked ----

    async def prompt(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> list[int]:
        return await self._ask("prompt", list[int], messages=list(messages), tools=list(tools))

    async def encode(self, texts: Sequence[str]) -> list[list[int]]:
        found = await self._ask("encode", list[list[int]], texts=list(texts))
        return self._expect(found, len(found) == len(texts))

    async def decode(self, tokens: Sequence[int]) -> str:
        return await self._ask("decode", str, tokens=list(tokens))

    async def embed(self, texts: Sequence[str] | Sequence[Sequence[int]]) -> Vectors:
        found = await self._ask("embed", Vectors, MOST, texts=list(texts))
        return self._expect(found, found.is_whole and found.shape[0] == len(texts))

    async def score(self, query: str, texts: Sequence[str]) -> Scores:
        found = await self._ask("score", Scores, query=query, texts=list(texts))
        return self._expect(found, len(found.logits) == len(texts))

    async def generate(self, prompt: Sequence[int], options: Mapping[str, Any], said: bool) -> TextRun:
        given = {"prompt": list(prompt), "options": dict(options), "said": said}
        exchange = await self._begin("generate", given, options["max_tokens"], 0, options.get("timeout"))
        try:
            await exchange.next()  # `Begun`
        except BaseException:
            self.stop(exchange)
            raise
        return _RemoteRun(self, exchange)

    async def _ask(self, method: str, kind: type[T], longest: int = 0, /, **given: Any) -> T:
        exchange = await self._begin(method, given, None, longest, self.worker.config.timeout)
        try:
            found = await exchange.next()
            assert isinstance(found, Answered)
            try:
                return msgspec.msgpack.decode(bytes(found.result), type=kind)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise self._refuse_unexpected() from error
        finally:
            self.stop(exchange)

    def _expect(self, found: T, is_right: bool) -> T:
        if not is_right:
            raise self._refuse_unexpected()
        return found

    # ---- out ----

    async def _begin(
        self, method: str, given: dict[str, Any], tokens: int | None, longest: int, timeout: float | None
    ) -> _Exchange:
        number = next(self._numbers)
        data = self._encode(Ask(number, method, given))
        loop = await self._wait_for_worker()
        exchange = _Exchange(number, tokens, longest or LEAST_ANSWER + MOST_GROWTH * len(data), timeout)
        self._exchanges[number] = exchange
        if self._watching is None and exchange.overdue is not None:
            self._watching = loop.call_later(GRACE, self._watch)
        self._send(data)
        return exchange

    def _encode(self, asked: Ask) -> bytes:
        try:
            data = encode(asked)
        except ValueError as error:
            raise RequestError(
                f"{self.worker.name}: the request cannot be passed to the model",
                expected="integers of 64 bits at most, texts in Unicode, little nesting",
                got=error,
            ) from error
        if len(data) > MOST:
            raise TooLargeError(f"{self.worker.name}: the request is too large", expected=f"at most {MOST} bytes")
        return data

    def attach(self) -> asyncio.AbstractEventLoop:
        """Listen to the worker on this event loop: one that ends is started again before it is asked."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._attach()
        return self._loop

    async def _wait_for_worker(self) -> asyncio.AbstractEventLoop:
        loop = self.attach()
        while True:
            if self._closed:
                raise UnavailableError(f"{self.worker.name} is being unloaded", retry_after=1)
            if self._restarts.is_hopeless:
                raise UnavailableError(f"{self.worker.name}: its worker process keeps ending", retry_after=MOST_PAUSE)
            if self._packets is not None:
                return loop
            await self._restarts.wait()

    def stop(self, exchange: _Exchange) -> None:
        """Its answer is there, or not wanted any more."""
        if self._exchanges.pop(exchange.number, None) is not None:
            self._late += 2 + (exchange.left or 0)  # besides tokens: that it begins and ends
            self._send(encode(Stop(exchange.number)))

    def _send(self, data: bytes) -> None:
        self._unsent.append(data)
        if len(self._unsent) == 1:
            self._flush()

    def _flush(self) -> None:
        if self._packets is None or self._loop is None:
            self._unsent.clear()  # the requests have been failed
            return
        try:
            while self._unsent:
                self._packets.send_encoded(self._unsent[0], socket.MSG_DONTWAIT)
                self._unsent.popleft()
            self._loop.remove_writer(self._packets.socket.fileno())
        except BlockingIOError:
            self._loop.add_writer(self._packets.socket.fileno(), self._flush)
        except ClosedError:
            self._lose()

    # ---- back ----

    def _attach(self) -> None:
        assert self._loop is not None
        self.about = self.worker.loaded.about or self.about
        self._packets, self._late = Packets(self.worker.slots[0].socket), 0
        self._loop.add_reader(self._packets.socket.fileno(), self._hear)

    def _hear(self) -> None:
        try:
            for _ in range(MOST_READ):
                assert self._packets is not None
                for event in self._packets.receive_events(socket.MSG_DONTWAIT):
                    self._take(event)
        except BlockingIOError:
            return
        except ParseError as error:
            if not isinstance(error, ClosedError):
                log.error("%s: %s", self.worker.name, error)
            self._lose()

    def _take(self, event: Event) -> None:
        exchange = self._exchanges.get(event.number)
        if exchange is None:
            self._late -= 1
        if self._late < 0 or (exchange is not None and not exchange.take(event)):
            raise ParseError("the worker sent a message that belongs to no request", got=type(event).__name__)
        if exchange is not None and type(event) in LAST:
            del self._exchanges[event.number]
            self._restarts.note_success()

    def _watch(self) -> None:
        """End a worker that does not answer long after a deadline."""
        self._watching = None
        overdue = [each.overdue for each in self._exchanges.values() if each.overdue is not None]
        if overdue and min(overdue) < time.monotonic():
            log.error("%s: its worker does not answer; it is ended", self.worker.name)
            self.worker.kill()
        elif overdue and self._loop is not None:
            self._watching = self._loop.call_later(GRACE, self._watch)

    # ---- workers that end ----

    def _refuse_unexpected(self) -> UnavailableError:
        """The worker sent a message that belongs to no request: kill it."""
        self._lose()
        return self._gone_error("answered what was not asked")

    def _gone_error(self, how: str) -> UnavailableError:
        return UnavailableError(
            f"{self.worker.name}: its worker process {how}",
            remedy="send it again; the worker is started anew",
            retry_after=1,
        )

    def _lose(self) -> None:
        if self._packets is None or self._loop is None:
            return
        self._detach()
        self._fail_all("")
        self._restarts.begin(self._loop, wanted=not self._closed)

    def _detach(self) -> None:
        if self._packets is not None and self._loop is not None and not self._loop.is_closed():
            file = self._packets.socket.fileno()
            if file >= 0:
                self._loop.remove_reader(file)
                self._loop.remove_writer(file)
        self._packets = None
        self._unsent.clear()

    def _fail_all(self, why: str) -> None:
        exchanges, self._exchanges = self._exchanges, {}
        for each in exchanges.values():
            each.events.put(self._gone_error(f"is gone: {why}" if why else "ended while it ran the request"))

    async def drain(self, seconds: float) -> None:
        await super().drain(seconds)
        self._closed = True
        await self._restarts.stop()
        self._detach()
        self._fail_all("it is being unloaded")
        if self._watching is not None:
            self._watching.cancel()

    def close(self) -> None:
        self.worker.close()


class _RemoteRun(TextRun):
    def __init__(self, texts: RemoteTexts, exchange: _Exchange) -> None:
        self._texts, self._exchange = texts, exchange

    async def take(self) -> list[Token]:
        found = await self._exchange.tokens()
        if isinstance(found, list):
            return found
        self.finish = found.finish if found.finish in FINISHES else "stop"
        self.said = found.said
        return []

    def cancel(self) -> None:
        self._texts.stop(self._exchange)
