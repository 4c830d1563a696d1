"""The protocols of engines and of devices with their own memory, and Platform: the device and the engine in use."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, runtime_checkable

from smelt.activity import QUEUE
from smelt.buffer import Buffer, HostBuffer, host_stats
from smelt.engine_api import Executable
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

if TYPE_CHECKING:
    from smelt.weights import Stored

P_contra = TypeVar("P_contra", contravariant=True)


class Engine(Protocol[P_contra]):
    """Turns programs into executables."""

    @property
    def name(self) -> str: ...

    def missing(self) -> str | None:
        """Why this engine cannot work here, with the remedy; None where it can."""
        ...

    def compile(self, program: P_contra, *, donate: Iterable[str] = ()) -> Executable:
        """`donate`: inputs that a call may use up, so that results take their place in memory."""
        ...


@runtime_checkable
class Placing(Protocol):
    """An engine whose device has a memory of its own."""

    def put(self, buffer: HostBuffer) -> Buffer:
        """A copy on the device, or the same memory where it can be shared for good."""
        ...

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        """Copies tensors of at most `largest` bytes to the device; see `Weights.to_device`."""
        ...

    def stats(self) -> dict[str, float]:
        """What `Platform.stats` says, of the device."""
        ...


P = TypeVar("P")


class Platform(Frozen, Generic[P]):
    """The device and the engine in use."""

    device: str
    engine: Engine[P]

    def __str__(self) -> str:
        return f"{self.engine.name} on {self.device}"

    def put(self, buffer: HostBuffer) -> Buffer:
        """The buffer on this device; itself where the engine works in host memory."""
        return self.engine.put(buffer) if isinstance(self.engine, Placing) else buffer

    def stage(self, largest: int) -> AbstractContextManager[Callable[[Stored], Buffer]]:
        """What uploads tensors to this device; for an engine in host memory they stay mapped."""
        if isinstance(self.engine, Placing):
            return self.engine.stage(largest)
        return nullcontext(lambda stored: HostBuffer(stored.fetch(), stored.shape, owns=False))

    def stats(self) -> dict[str, float]:
        """What the device is doing, or this process where the engine works in host memory.

        `bytes_in_use` and `peak_bytes_in_use`; `queue`, the running and waiting calls; `busy`, the fraction of the time
        since the last call of `stats` (0 to 1) in which there was one.
        """
        if isinstance(self.engine, Placing):
            return self.engine.stats()
        queue, busy = QUEUE.activity.sample()
        return {**host_stats(), "queue": queue, "busy": busy}


def choose(name: str, engines: Sequence[Engine[P_contra]]) -> Engine[P_contra]:
    """The engine of that name, or the first that works for `auto`."""
    if name == "auto":
        for engine in engines:
            if engine.missing() is None:
                return engine
        reasons = [f"{engine.name}: {engine.missing()}" for engine in engines]
        raise UnsupportedError(
            "no engine can run here", got="; ".join(reasons), remedy='install what an engine needs, or device="cpu"'
        )
    for engine in engines:
        if engine.name == name:
            reason = engine.missing()
            if reason is None:
                return engine
            raise UnsupportedError(f"the engine {name} cannot run here", got=reason, remedy='engine="auto"')
    known = ", ".join(each.name for each in engines)
    raise UnsupportedError("unknown engine", expected=f"auto, {known}", got=name, remedy='engine="auto"')
