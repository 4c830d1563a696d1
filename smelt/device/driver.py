"""Driver: the few calls of a GPU's driver that `host_plan` needs, as a protocol. `cuda_driver` implements it.

Work runs in the order of the calls; only `download` and `wait` block.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from smelt.dtype import Array


class Driver(Protocol):
    """A device with memory of its own. Addresses are integers. `number`: of the device among those of its kind."""

    number: int

    @property
    def stream(self) -> int | None:
        """The address of the stream of its work; None: there is none to wait for."""
        ...

    def hand_over(self, stream: int | None) -> None:
        """Work on another library's stream from now on waits for ours so far; None: its default stream."""
        ...

    def follow(self, stream: int | None) -> None:
        """Our work from now on waits for that of another library's stream so far."""
        ...

    def keep_until_done(self, owner: Any) -> None:
        """Keep an object alive until the work so far is done."""
        ...

    def load(self, code: bytes) -> Any:
        """Code as `compile` gave it, loaded."""
        ...

    def function(self, module: Any, name: str) -> Any:
        """A kernel of a module; None where it has no such kernel."""
        ...

    def launch(
        self,
        function: Any,
        blocks: int,
        threads: int,
        arguments: Sequence[int],
        shared: int = 0,
        *,
        overlap: bool = False,
    ) -> None:
        """Run a kernel. Every argument has 64 bits. `shared`: bytes of memory of a block. `overlap`: it may begin
        before the launch in front of it ends, for which it waits itself."""
        ...

    def allocate(self, count: int) -> int:
        """New memory; RunError where there is none."""
        ...

    def free(self, address: int) -> None:
        """Return memory, once the work before is done."""
        ...

    def upload(self, address: int, array: Array) -> None:
        """Copy a contiguous array to the device. The array may change afterwards."""
        ...

    def fill(self, address: int, count: int, read: Callable[[Array, int], None]) -> None:
        """Copy bytes to the device that `read(part, start)` gives: it fills arrays, in several threads at once."""
        ...

    def download(self, array: Array, address: int) -> None:
        """Copy to a contiguous array on the host, after the work before."""
        ...

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        """Begin to copy to a contiguous array. What is given waits for the copy, and for no work that came later."""
        ...

    def move(self, target: int, source: int, count: int) -> None:
        """Copy bytes on the device."""
        ...

    def clear(self, address: int, count: int) -> None:
        """Set bytes on the device to 0."""
        ...

    def wait(self) -> None:
        """Wait for the work; raises its errors."""
        ...

    def event(self) -> Any:
        """A mark behind the work so far. In a graph that is recorded: a mark that every replay sets again."""
        ...

    def is_done(self, event: Any) -> bool:
        """Whether the work before a mark is done, without waiting for it; raises its errors."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two marks, once both are reached."""
        ...

    def record(self, work: Callable[[], None]) -> Any:
        """Record the launches and copies of `work` as a graph, without running them."""
        ...

    def replay(self, graph: Any) -> None:
        """Do what a graph holds."""
        ...

    def forget(self, graph: Any) -> None:
        """Free a graph, once it is done."""
        ...
