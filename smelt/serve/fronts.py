"""Several server processes behind one socket (`--workers N`): the supervisor that starts them, and their link to it.

Each process accepts connections from the same listening socket and has models of its own. One that ends is
restarted. What an administrator loads or unloads in one is loaded or unloaded in all, and `/metrics` is their sum.
Messages are lines of JSON over a Unix socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from smelt.errors import SmeltError
from smelt.serve.config import Config
from smelt.serve.isolation.sandbox import end_with_parent
from smelt.serve.problems import UnavailableError

log = logging.getLogger("smelt.serve")
SECONDS = 600.0  # for the others to load a model
MOST_LINE = 64 << 20
MOST_PAUSE = 5.0
LEAST_LIFE = 10.0  # seconds; a process that ended before is started again after a growing pause


class Message(msgspec.Struct):
    """`to`: what to do, of the process that asks or of the supervisor; else the answer to a number."""

    number: int
    to: str = ""
    text: str = ""
    answers: list[str] = []


_decode = msgspec.json.Decoder(Message).decode
_encode = msgspec.json.Encoder().encode
Answer = Callable[[str, str], Awaitable[str]]  # what to do, and with what


class Link:
    """One end of the socket between the supervisor and a server process: questions in both directions."""

    def __init__(self, answer: Callable[[str, str], Awaitable[list[str]]]) -> None:
        self._answer = answer
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[list[str]]] = {}
        self._writer: asyncio.StreamWriter | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def run(self, end: socket.socket) -> None:
        """Answer until the other end closes."""
        reader, self._writer = await asyncio.open_unix_connection(sock=end, limit=MOST_LINE)
        try:
            while line := await reader.readline():
                said = _decode(line)
                if said.to:
                    task = asyncio.create_task(self._reply(said))
                    self._running.add(task)
                    task.add_done_callback(self._running.discard)
                elif (waiting := self._waiting.pop(said.number, None)) is not None and not waiting.done():
                    waiting.set_result(said.answers)
        except (OSError, msgspec.DecodeError):
            pass
        finally:
            for waiting in self._waiting.values():
                if not waiting.done():
                    waiting.set_exception(UnavailableError("another server process has ended", retry_after=1))
            self._writer.close()
            self._writer = None

    async def _reply(self, said: Message) -> None:
        self._send(Message(said.number, answers=await self._answer(said.to, said.text)))

    def _send(self, message: Message) -> None:
        if self._writer is not None:
            self._writer.write(_encode(message) + b"\n")

    async def ask(self, to: str, text: str) -> list[str]:
        if self._writer is None:
            return []
        number = next(self._numbers)
        waiting: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = waiting
        self._send(Message(number, to, text))
        async with asyncio.timeout(SECONDS):
            return await waiting


class Others:
    """The other server processes, as one of them sees them."""

    def __init__(self, answer: Answer) -> None:
        self._work = answer
        self._link = Link(self._answer)

    async def _answer(self, to: str, text: str) -> list[str]:
        try:
            return [await self._work(to, text)]
        except SmeltError as error:
            return [f"error: {error}"]

    async def run(self, end: socket.socket) -> None:
        await self._link.run(end)

    async def ask(self, to: str, text: str) -> list[str]:
        """What every other process answers."""
        return await self._link.ask(to, text)


class Supervisor:
    """Starts server processes, starts them again when they end, and passes messages on."""

    def __init__(self, config: Config, listener: socket.socket, quiet: bool) -> None:
        self._config, self._listener, self._quiet = config, listener, quiet
        self._links: dict[int, Link] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._unloaded: set[str] = set()  # by an administrator: they stay so in processes that start later
        self._stopping = False

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._stop)
        await asyncio.gather(*(self._keep(i) for i in range(self._config.workers)))

    def _stop(self) -> None:
        self._stopping = True
        for process in self._processes.values():
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)

    async def _keep(self, index: int) -> None:
        """Keep one server process running until the server stops."""
        failures = 0
        while True:
            started = time.monotonic()
            code = await self._one(index, quiet=self._quiet or index > 0 or failures > 0)
            if self._stopping:
                return
            failures = failures + 1 if time.monotonic() - started < LEAST_LIFE else 1
            log.error("server process %d ended with %d and is started again", index, code)
            await asyncio.sleep(min(MOST_PAUSE, 0.1 * 2.0 ** (failures - 1)))

    async def _one(self, index: int, quiet: bool) -> int:
        ours, theirs = socket.socketpair()
        files = (self._listener.fileno(), theirs.fileno())
        said = {"config": msgspec.to_builtins(divide(self._config)), "quiet": quiet, "unloaded": sorted(self._unloaded)}
        command = [sys.executable, "-m", "smelt.serve.front", *map(str, files)]
        process = subprocess.Popen(command, pass_fds=files, stdin=subprocess.PIPE)
        self._processes[index] = process
        theirs.close()
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(msgspec.json.encode(said))
            process.stdin.close()
        link = self._links[index] = Link(lambda to, text: self._pass_on(index, to, text))
        ended = asyncio.create_task(asyncio.to_thread(process.wait))
        if self._stopping:
            process.send_signal(signal.SIGTERM)
        await link.run(ours)
        self._links.pop(index, None)
        return await ended

    async def _pass_on(self, index: int, to: str, text: str) -> list[str]:
        """Ask all but the process that asks."""
        if to == "unload":
            self._unloaded.add(text)
        elif to == "load":
            self._unloaded.discard(text)
        links = [link for other, link in self._links.items() if other != index]
        found = await asyncio.gather(*(link.ask(to, text) for link in links), return_exceptions=True)
        return [text for answers in found if isinstance(answers, list) for text in answers]


def divide(config: Config) -> Config:
    """The configuration of one of several processes: memory and rates are shared by all."""
    keys = [
        msgspec.structs.replace(key, per_minute=max(1, key.per_minute // config.workers)) if key.per_minute else key
        for key in config.keys
    ]
    budget = None if config.budget is None else config.budget // config.workers
    return msgspec.structs.replace(config, keys=keys, memory_budget=budget)


def supervise(config: Config, listener: socket.socket, quiet: bool) -> None:
    """Run `workers` server processes until SIGTERM or Ctrl-C."""
    os.set_inheritable(listener.fileno(), True)
    with reserve_port(config) as port:
        config = msgspec.structs.replace(config, grpc_port=port)
        asyncio.run(Supervisor(config, listener, quiet).run())


@contextlib.contextmanager
def reserve_port(config: Config) -> Any:
    """The port for gRPC, which every process opens for itself; a free one where the configuration asks for any."""
    if config.grpc_port is None:
        yield None
        return
    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind((config.host, config.grpc_port))
        yield held.getsockname()[1]


def sum_metrics(texts: list[str]) -> str:
    """Prometheus texts of several processes as one: values of equal names and labels are added."""
    values: dict[str, float] = {}
    order: list[str] = []
    for text in texts:
        for line in text.splitlines():
            name, _, value = line.rpartition(" ")
            if line.startswith("#"):
                if line not in values:
                    order.append(line)
                    values[line] = 0
            elif name in values:
                earliest = name.startswith("process_start_time")
                values[name] = min(values[name], float(value)) if earliest else values[name] + float(value)
            else:
                order.append(name)
                values[name] = float(value)
    return "\n".join(line if line.startswith("#") else f"{line} {_number(values[line])}" for line in order) + "\n"


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def end_with_supervisor() -> None:
    if sys.platform == "linux":
        end_with_parent(signal.SIGTERM)
