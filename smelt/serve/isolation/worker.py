"""A worker: one model in a process that can read its files and answer its sockets, and do nothing else.

The sockets are: control (how it started; cancellation), the compiler process, and one for each call at once. A worker
gives up its rights before it opens the model file. It ends when the server closes a socket.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from smelt.bundle.record import signature_record
from smelt.device.runtime import limit_this_thread
from smelt.dtype import Array
from smelt.engine_api import Signature
from smelt.errors import SmeltError, UnsupportedError
from smelt.llm.stored import LANGUAGE
from smelt.model import LoadedModel
from smelt.run.load import SUFFIX, has_file
from smelt.serve.config import ModelConfig
from smelt.serve.isolation import sandbox
from smelt.serve.isolation.channel import HELLO, Call, Cancelled, Channel, ClosedError, Failed, Ready
from smelt.serve.isolation.compiler import ask_compiler
from smelt.serve.opening import held_bytes, open_model, warm_up
from smelt.serve.queue import INLINE
from smelt.stop import Cancel

RECENT = 1000  # calls; a cancelled one that is older has ended
MOST_TEXT = 4000  # characters of a part of an error


class WorkerSetup(msgspec.Struct):
    """What a worker is told."""

    name: str
    path: str
    config: ModelConfig
    readable: list[str]
    memory: int | None


class Loaded(msgspec.Struct):
    """What a worker says about its model."""

    layers: list[str]  # of the sandbox
    engine: str
    signature: Any  # `bundle.record`
    provenance: dict[str, str]
    metadata: dict[str, str]
    memory: int
    input_bytes: int  # of the calls that warmed it up
    times: list[float]
    seconds: float


def run(given: Any, sockets: list[socket.socket]) -> None:
    setup = msgspec.convert(given, WorkerSetup)
    control, compiler, *calls = (Channel(each) for each in sockets)
    control.socket.send(HELLO)
    layers = sandbox.confine_worker(map(Path, setup.readable), setup.memory)
    ask_compiler(compiler)
    try:
        model, loaded = _load(setup, layers)
    except Exception as error:
        control.send(Failed(0, _record(error)))
        return
    control.send_bytes(Ready, msgspec.json.encode(loaded))
    _Worker(model, control).run(calls)


def _load(setup: WorkerSetup, layers: list[str]) -> tuple[LoadedModel, Loaded]:
    started = time.perf_counter()
    path, config = Path(setup.path), setup.config
    if path.suffix.lower() == SUFFIX and has_file(path, LANGUAGE):
        raise UnsupportedError(
            "a bundle of a language model is not isolated: its code would run inside the server",
            got=path,
            remedy="`trusted = true` for this model, or --trusted, if you trust who made it",
        )
    model = open_model(path, config)
    inputs, times = warm_up(setup.name, path, config, model) if config.warm_up else ({}, [])
    ports = Signature(model.signature.inputs, model.signature.outputs, model.optional)
    return model, Loaded(
        layers,
        model.engine,
        signature_record(ports),
        model.provenance,
        dict(model.metadata),
        held_bytes(model),
        sum(array.nbytes for array in inputs.values()),
        times,
        time.perf_counter() - started,
    )


def _record(error: Exception) -> dict[str, Any]:
    if not isinstance(error, SmeltError):
        error = SmeltError("the model failed inside its worker", got=f"{type(error).__name__}: {error}")
    return {name: text[:MOST_TEXT] for name, text in error.record().items()}


class _Worker:
    """Threads that run calls, and one that hears of cancelled ones."""

    def __init__(self, model: LoadedModel, control: Channel) -> None:
        self.model, self.control = model, control
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
            outputs = self._call(inputs, call.timeout, token)
        except ClosedError:
            raise
        except Exception as error:
            channel.send(Failed(call.number, _record(error)))
        else:
            channel.send_done(call.number, outputs)
        finally:
            del self._tokens[call.number]

    def _call(self, inputs: dict[str, Array], timeout: float | None, token: Cancel) -> dict[str, Array]:
        magnitude = sum(array.nbytes for array in inputs.values()).bit_length()
        limit_this_thread(1 if self._short.get(magnitude) else 0)
        started = time.thread_time()
        outputs = self.model.run(inputs, timeout=timeout, cancel=token)
        self._short[magnitude] = time.thread_time() - started < INLINE
        return outputs
