"""What a device makes of code, as protocols: Program, Bound and Account. Type checkers read them; nothing runs here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from smelt.device.api import Arrays, Memory
from smelt.shape import Shape
from smelt.stop import Stop


class Account(Protocol):
    """Bytes that several programs may take together, their calls included.

    A call that finds too little left waits for others to end; one that could never fit is refused.
    """

    limit: int

    @property
    def fixed(self) -> int:
        """Bytes that stay between calls."""
        ...

    def take(self, count: int, what: str) -> None:
        """Count bytes that stay, once running calls have left room for them."""
        ...

    def give(self, count: int) -> None:
        """Take bytes off the account that stay no longer."""
        ...

    def span(self, count: int) -> int:
        """The bytes that a block of `count` bytes really takes."""
        ...


class Bound(Protocol):
    """A program with its first arguments bound: a function over the others. Any number of threads may call it."""

    def __call__(self, inputs: Arrays, out: Arrays | None = None, stop: Stop | None = None) -> Arrays:
        """Run on the remaining arguments; results are new, or those given as `out`.

        A device that has its own memory takes arrays, HostBuffers and its own Buffers, and gives Buffers. It marks
        donated Buffers as used up, and gives results that reuse their memory as new Buffers.
        """
        ...

    @property
    def memory(self) -> Memory: ...

    def call_bytes(self, sizes: Mapping[str, int]) -> int:
        """Bytes that one call takes. Unknown symbols count as 1, data-dependent sizes as 0."""
        ...

    def cancel(self) -> None:
        """Stop the running calls: they raise CancelledError. Later calls run."""
        ...

    def trim(self) -> None:
        """Release the memory that no call uses now."""
        ...

    def close(self) -> None:
        """Release everything; running calls end as usual. Closing twice is harmless."""
        ...


class Program(Protocol):
    """A function of loaded code, with what it takes and gives."""

    @property
    def arguments(self) -> tuple[Shape, ...]: ...

    @property
    def results(self) -> tuple[Shape, ...]: ...

    @property
    def donated(self) -> tuple[int, ...]:
        """Arguments that a call may overwrite."""
        ...

    @property
    def reused(self) -> Mapping[int, int]:
        """Results that take the memory of a donated argument."""
        ...

    @property
    def constant_bytes(self) -> int: ...

    def bind(self, arrays: Arrays, sizes: Mapping[str, int] = ..., account: Any = None) -> Bound:
        """The program with its first arguments given. Arrays in host memory are copied where the device has its own.

        `sizes`: symbols that no remaining argument determines. `account`: what calls take is counted there.
        """
        ...
