"""Models with state between requests: a sequence is named by a correlation id, and has the state that its last request
left.

The parameters are Triton's: `sequence_id`, with `sequence_start` in the first request and `sequence_end` in the last.
A model's `state` names the inputs that come from the sequence and the outputs that become them; clients see neither.
Requests of a sequence run in order, those of several share calls where rows are independent. `oip` calls it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from smelt.dtype import Array
from smelt.engine_api import Port
from smelt.errors import ShapeError, SmeltError, UnsupportedError
from smelt.serve.problems import BusyError, DeadlineError, RequestError
from smelt.serve.queue import Inputs, ModelQueue, Timing
from smelt.size import evaluate

IDLE = 600.0  # seconds after which a sequence without requests is forgotten
LONGEST_ID = 256  # characters


@dataclass(slots=True, eq=False)
class _Sequence:
    state: dict[str, Array] = field(default_factory=dict)  # by input; empty: it begins
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    waiting: int = 0  # requests
    used: float = field(default_factory=time.monotonic)


class Sequences:
    """The sequences of one model. Each client has at most `most`. Everything runs on the event loop."""

    def __init__(self, name: str, state: Mapping[str, str], most: int) -> None:
        self.name, self._state, self._most = name, dict(state), most
        self._sequences: dict[tuple[str, int | str], _Sequence] = {}
        self._counts: Counter[str] = Counter()  # by client

    def __len__(self) -> int:
        return len(self._sequences)

    async def infer(
        self,
        queue: ModelQueue,
        ports: Sequence[Port],
        inputs: Inputs,
        parameters: Mapping[str, Any],
        client: str,
        timeout: float | None,
        priority: int,
    ) -> tuple[dict[str, Array], Timing]:
        """The outputs of the next request of a sequence, which belongs to the client that began it."""
        key = client, _identity(self.name, parameters)
        starts, ends = _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end")
        sequence = self._begin(key) if starts else self._find(key)
        sequence.waiting += 1
        begun = time.perf_counter()
        try:
            try:
                async with asyncio.timeout(timeout):
                    await sequence.turn.acquire()
            except TimeoutError:
                raise DeadlineError(f"{self.name}: the deadline passed before the request could run") from None
            try:
                if not sequence.state and not starts:
                    raise self._missing(key)  # its first request failed
                left = None if timeout is None else max(0.0, timeout - (time.perf_counter() - begun))
                state = sequence.state or _zeros(self.name, ports, self._state, inputs)
                outputs, timing = await queue.infer({**inputs, **state}, left, priority, client)
                sequence.state = {into: outputs.pop(origin) for into, origin in self._state.items()}
                return outputs, timing
            finally:
                sequence.turn.release()
        finally:
            sequence.waiting -= 1
            sequence.used = time.monotonic()
            is_over = ends or (not sequence.state and not sequence.waiting)
            if is_over and self._sequences.get(key) is sequence:
                self._forget(key)

    def _begin(self, key: tuple[str, int | str]) -> _Sequence:
        if key not in self._sequences:
            if self._counts[key[0]] >= self._most:
                self._forget_idle()
            if self._counts[key[0]] >= self._most:
                raise BusyError(f"{self.name} is busy", expected=f"at most {self._most} sequences", retry_after=1)
            self._counts[key[0]] += 1
        made = self._sequences[key] = _Sequence()
        return made

    def _find(self, key: tuple[str, int | str]) -> _Sequence:
        found = self._sequences.get(key)
        if found is None:
            raise self._missing(key)
        return found

    def _missing(self, key: tuple[str, int | str]) -> RequestError:
        return RequestError(f"{self.name}: no such sequence", got=str(key[1]), remedy="begin it: sequence_start = true")

    def _forget_idle(self) -> None:
        now = time.monotonic()
        for key in [k for k, each in self._sequences.items() if not each.waiting and now - each.used > IDLE]:
            self._forget(key)

    def _forget(self, key: tuple[str, int | str]) -> None:
        del self._sequences[key]
        self._counts[key[0]] -= 1


def check_state(name: str, state: Mapping[str, str], inputs: Sequence[Port], outputs: Sequence[Port]) -> None:
    """Refuse a `state` that does not fit its model."""
    given, made = ({port.name: port for port in ports} for ports in (inputs, outputs))
    for into, origin in state.items():
        for known, wanted, what in ((given, into, "input"), (made, origin, "output")):
            if wanted not in known:
                raise UnsupportedError(
                    f"{name}: the state names no {what} of the model",
                    expected=", ".join(known),
                    got=wanted,
                    remedy="state = { INPUT = OUTPUT } with names of the model: smelt inspect lists them",
                )
        if given[into].shape.dtype != made[origin].shape.dtype or given[into].shape.rank != made[origin].shape.rank:
            raise ShapeError(
                f"{name}: the output {origin!r} cannot become the input {into!r}",
                expected=given[into].shape,
                got=made[origin].shape,
                remedy=f"name another output for {into!r}",
            )
    if len(state) == len(inputs):
        raise UnsupportedError(f"{name}: every input is state", remedy="leave one input to the clients")


def _identity(name: str, parameters: Mapping[str, Any]) -> int | str:
    found = parameters.get("sequence_id", 0)
    if isinstance(found, bool) or not isinstance(found, int | str) or not found or len(str(found)) > LONGEST_ID:
        raise RequestError(
            f"{name} has state: a request belongs to a sequence",
            expected="the parameter sequence_id, a number that is not 0 or a text",
            got=repr(found)[:80],
        )
    return found


def _flag(parameters: Mapping[str, Any], name: str) -> bool:
    found = parameters.get(name, False)
    if not isinstance(found, bool):
        raise RequestError(f"{name} is true or false", got=repr(found)[:80])
    return found


def _zeros(name: str, ports: Sequence[Port], state: Mapping[str, str], inputs: Inputs) -> dict[str, Array]:
    """The state in which a sequence begins. Dynamic dimensions are those of the request's inputs."""
    sizes: dict[str, int] = {}
    for port in ports:
        if port.name in inputs:
            for size, real in zip(port.shape.sizes, inputs[port.name].shape, strict=True):
                if not isinstance(size, int):
                    sizes.setdefault(str(size), real)
    made = {}
    for port in ports:
        if port.name in state:
            try:
                shape = [size if isinstance(size, int) else evaluate(size, sizes) for size in port.shape.sizes]
            except (KeyError, SmeltError) as error:
                raise RequestError(
                    f"{name}: the inputs do not say how large the state {port.name!r} is", expected=port.shape
                ) from error
            made[port.name] = np.zeros(shape, port.shape.dtype.numpy)
    return made
