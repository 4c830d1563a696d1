"""What every engine's result has in common: the Executable protocol, and the signature of a program.

An engine compiles a program for a target into an Executable; `prepare` binds the weights; a call runs it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, runtime_checkable

from smelt.frozen import Frozen

if TYPE_CHECKING:
    from smelt.shape import Shape
    from smelt.stop import Stop
    from smelt.weights import Weights


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
class Compiling(Protocol):
    """An executable that compiles more programs for new kinds of inputs."""

    def stop_compiling(self, remedy: str) -> None:
        """From now on, refuse calls that need a program which is not compiled, with this remedy."""
        ...


@runtime_checkable
class Trimmable(Protocol):
    """An executable that keeps memory for later calls."""

    def trim(self) -> None:
        """Free pooled memory that no call uses."""
        ...
