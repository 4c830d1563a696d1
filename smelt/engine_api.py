"""The protocols of engines: Engine, Executable, Platform, and the signature of a program.

An engine compiles a program for a target into an Executable; `prepare` binds the weights; a call runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, Self, TypeVar, runtime_checkable

from smelt.activity import QUEUE
from smelt.buffer import Buffer, HostBuffer, host_stats
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen

if TYPE_CHECKING:
    from smelt.shape import Shape
    from smelt.stop import Stop
    from smelt.weights import Stored, Weights

P_contra = TypeVar("P_contra", contravariant=True)


class Port(NamedTuple):
    """One input, output or weight of a program.

    `labels`: the numbers are places in this table of strings. `keys`: what each column stands for.
    """

    name: str
    shape: Shape
    labels: tuple[str, ...] = ()
    keys: tuple[int | str, ...] = ()


class Signature(NamedTuple):
    """What an executable takes and gives, in order."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    weights: tuple[Port, ...] = ()

    def __str__(self) -> str:
        inputs, outputs = (", ".join(f"{each.name}: {each.shape}" for each in ports) for ports in self[:2])
        return f"({inputs}) → ({outputs})"

    def html(self, title: str) -> str:
        """A table of inputs and outputs, for notebooks."""
        from html import escape

        named = [("input", port) for port in self.inputs] + [("output", port) for port in self.outputs]
        rows = "".join(
            f"<tr><td>{kind}</td><td>{escape(port.name)}</td><td><code>{escape(str(port.shape))}</code></td></tr>"
            for kind, port in named
        )
        return f"<table><caption>{escape(title)}</caption>{rows}</table>"


class Closing(ABC):
    """Base of classes with a signature that can be closed: `with` blocks, repr, and HTML for notebooks."""

    signature: Signature

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__}{self.signature}>"

    def _repr_html_(self) -> str:
        return self.signature.html(repr(self).partition("(")[0].strip("<>"))


class KernelUse(Frozen):
    """A kernel that runs ops of a program: its kind, the ops, and how often it is launched (loops counted once).

    The kind "numpy" is the interpreter.
    """

    kind: str
    ops: tuple[str, ...]
    count: int


class Memory(Frozen):
    """Bytes that one run of a program needs, as its engine counts them; `code` where it says so."""

    arguments: int
    outputs: int
    temporary: int
    aliased: int = 0
    code: int | None = None


class Cost(Frozen):
    """What one run of a program does, as its engine counts it."""

    flops: float
    bytes_accessed: float
    transcendentals: float | None = None


class Executable(Protocol):
    """A compiled function. With weights it must be prepared before it can be called."""

    @property
    def signature(self) -> Signature: ...

    @property
    def kernels(self) -> tuple[KernelUse, ...]:
        """The kernels of the compiled program; every op is in one of them."""
        ...

    def prepare(self, weights: Weights) -> Executable:
        """The same function with its weights bound; may be called several times, with different weights."""
        ...

    def __call__(self, *inputs: Any, stop: Stop | None = None) -> tuple[Any, ...]:
        """Run on arrays or buffers, in the signature's order. Results are arrays, or buffers where the engine answers
        before it is done; `smelt.buffer.as_array` takes both. `stop` says when the call has to end."""
        ...

    def close(self) -> None:
        """Free its memory. Closing twice is harmless; calling afterwards is an error."""
        ...


@runtime_checkable
class Trimmable(Protocol):
    """An executable that keeps memory for later calls."""

    def trim(self) -> None:
        """Free pooled memory that no call uses."""
        ...


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
        """What brings tensors to this device; they stay mapped where the engine works in host memory."""
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
