"""A worker: one model in a process that can read its files and answer its sockets, and do nothing else.

The sockets are: control (how it started; cancellation), the compiler process, and one for each call at once; a language
model answers everything on the first of them (`text_worker`). A worker gives up its rights before it opens the model
file. It ends when the server closes a socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from smelt.activity import count_compiles
from smelt.buffer import bytes_text
from smelt.bundle.record import signature_record
from smelt.client.wire import to_bytes
from smelt.device.runtime import limit_this_thread
from smelt.dtype import Array
from smelt.engine_api import Signature
from smelt.errors import MemoryLimitError
from smelt.model import LoadedModel
from smelt.run.executable import share_weights
from smelt.serve.config import ModelConfig
from smelt.serve.isolation import sandbox
from smelt.serve.isolation.channel import HELLO, Call, Cancelled, Channel, ClosedError, Failed, Ready
from smelt.serve.isolation.compiler import ask_compiler
from smelt.serve.isolation.packets import Packets
from smelt.serve.isolation.text_worker import TextWorker, make_loop, record_error
from smelt.serve.opening import is_language, open_model, open_texts, stop_compiling, warm_up
from smelt.serve.queue import INLINE
from smelt.serve.text_model import About, LocalTexts
from smelt.stop import Cancel

RECENT = 1000  # calls; a cancelled one that is older has ended


class WorkerSetup(msgspec.Struct):
    """The configuration of a worker."""

    name: str
    path: str
    config: ModelConfig
    readable: list[str]
    memory: int | None
    shares: bool = False  # leave weights in their file


class Loaded(msgspec.Struct):
    """What a worker reports about its model."""

    layers: list[str]  # of the sandbox
    seconds: float
    compiles: Annotated[int, msgspec.Meta(ge=0)] = 0
    about: About | None = None  # of a language model, for which what follows is empty
    engine: str = ""
    signature: Any = None  # `bundle.record`
    provenance: dict[str, str] = {}
    metadata: dict[str, str] = {}


def run(given: Any, sockets: list[socket.socket]) -> None:
    setup = msgspec.convert(given, WorkerSetup)
    control, compiler, *calls = (Channel(each) for each in sockets)
    control.socket.send(HELLO)
    with contextlib.closing(make_loop()) as loop:
        _serve(setup, control, compiler, calls, loop)


def _serve(
    setup: WorkerSetup, control: Channel, compiler: Channel, calls: list[Channel], loop: asyncio.AbstractEventLoop
) -> None:
    layers = sandbox.confine_worker(map(Path, setup.readable), setup.memory)
    ask_compiler(compiler)
    if setup.shares:
        share_weights()
    started = time.perf_counter()
    try:
        with count_compiles() as made:
            model = _load(setup)
    except Exception as error:
        control.send(Failed(0, record_error(error)))
        return
    about = _describe(model, layers, time.perf_counter() - started, made.count)
    control.send_bytes(Ready, msgspec.json.encode(about))
    if isinstance(model, LocalTexts):
        TextWorker(model, Packets(calls[0].socket), loop).run()
    else:
        _Worker(model, control, setup.config).run(calls)


def _load(setup: WorkerSetup) -> LoadedModel | LocalTexts:
    path, config = Path(setup.path), setup.config
    if is_language(path):
        return open_texts(setup.name, path, config)
    model = open_model(path, config)
    if config.warm_up:
        warm_up(setup.name, path, config, model)
    stop_compiling(config, model)
    return model


def _describe(model: LoadedModel | LocalTexts, layers: list[str], seconds: float, compiles: int) -> Loaded:
    if isinstance(model, LocalTexts):
        return Loaded(layers, seconds, compiles, model.about)
    ports = signature_record(Signature(model.signature.inputs, model.signature.outputs, model.optional))
    return Loaded(layers, seconds, compiles, None, model.engine, ports, model.provenance, dict(model.metadata))


class _Worker:
    """Threads that run calls, and one that hears of cancelled ones."""

    def __init__(self, model: LoadedModel, control: Channel, config: ModelConfig) -> None:
        self.model, self.control, self._most = model, control, config.output_limit
        self._may_compile = config.compile_on_request
        self._tokens: dict[int, Cancel] = {}
        self._cancelled: set[int] = set()
        self._short: dict[int, bool] = {}  # whether calls are worth no second thread, by the magnitude of their inputs

    def run(self, calls: list[Channel]) -> None:
        for channel in calls[1:]:
            threading.Thread(target=self._serve, args=(channel,), daemon=True).start()
        threading.Thread(target=self._listen, daemon=True).start()
        self._serve(calls[0])

    def _listen(self) -> None:
        try:
            while True:
                said = self.control.receive()
                assert isinstance(said, Cancelled)
                self._cancelled.add(said.number)  # first: the call itself may arrive later
                token = self._tokens.get(said.number)
                if token is not None:
                    token.cancel()
        except ClosedError:
            os._exit(0)

    def _serve(self, channel: Channel) -> None:
        try:
            while True:
                said = channel.receive()
                assert isinstance(said, Call)
                self._answer(channel, said)
        except ClosedError:
            os._exit(0)

    def _answer(self, channel: Channel, call: Call) -> None:
        token = self._tokens[call.number] = Cancel()
        if self._cancelled:
            if call.number in self._cancelled:
                token.cancel()
            for number in list(self._cancelled):  # a copy: the other thread adds to it
                if number < call.number - RECENT:
                    self._cancelled.discard(number)
        try:
            inputs = channel.tensors(call.tensors, copy=False)
            outputs, compiles = self._call(inputs, call.timeout, token)
            self._check_size(outputs)
        except ClosedError:
            raise
        except Exception as error:
            channel.send(Failed(call.number, record_error(error)))
        else:
            channel.send_done(call.number, outputs, compiles)
        finally:
            del self._tokens[call.number]

    def _check_size(self, outputs: Mapping[str, Array]) -> None:
        """The server ends a worker that sends more."""
        size = sum(len(to_bytes(a)) if a.dtype.kind in "OUS" else a.nbytes for a in outputs.values())
        if size > self._most:
            raise MemoryLimitError(
                "the outputs are too large",
                expected=f"max_output = {bytes_text(self._most)} at most",
                got=bytes_text(size),
                remedy="a smaller batch, or a larger max_output in the model's settings",
            )

    def _call(self, inputs: dict[str, Array], timeout: float | None, token: Cancel) -> tuple[dict[str, Array], int]:
        """The outputs, and how many programs were compiled for them."""
        magnitude = sum(array.nbytes for array in inputs.values()).bit_length()
        limit_this_thread(1 if self._short.get(magnitude) else 0)
        started, compiles = time.thread_time(), 0
        if self._may_compile:
            with count_compiles() as made:
                outputs = self.model.run(inputs, timeout=timeout, cancel=token)
            compiles = made.count
        else:
            outputs = self.model.run(inputs, timeout=timeout, cancel=token)
        self._short[magnitude] = time.thread_time() - started < INLINE
        return outputs, compiles
