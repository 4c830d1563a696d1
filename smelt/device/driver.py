"""Driver and Queue: the few calls of a GPU's driver that `host_plan` needs, as protocols. `cuda_driver` and
`cuda_queue` implement them.

Work of a queue runs in the order of the calls; only `download` and `wait` block. `order` keeps several queues in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from smelt.dtype import Array

if TYPE_CHECKING:
    from smelt.device.order import Mark, Order, Queues


class Driver(Protocol):
    """A device with memory of its own. Addresses are integers. `number`: of the device among those of its kind."""

    number: int
    queues: Queues

    def load(self, code: bytes) -> Any:
        """Code as `compile` gave it, loaded."""
        ...

    def function(self, module: Any, name: str) -> Any:
        """A kernel of a module; None where it has no such kernel."""
        ...

    def seconds(self, first: Any, second: Any) -> float:
        """The time between two events, once both are reached."""
        ...

    def wait(self) -> None:
        """Wait for the work of all queues; raises its errors."""
        ...


class Queue(Protocol):
    """Work of a device that runs in order."""

    order: Order

    @property
    def stream(self) -> int | None:
        """The address that other libraries know it by; None: there is none to wait for."""
        ...

    # -- other queues --

    def mark(self) -> Any:
        """An event behind the work so far, of which only the order counts; never part of a graph."""
        ...

    def after(self, event: Any) -> None:
        """Work from now on waits for an event of another queue. The host does not."""
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

    # -- work --

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
        """New memory, for work of this queue from now on; RunError where there is none."""
        ...

    def free(self, address: int, after: Sequence[Mark] = ()) -> None:
        """Return memory, once the work of this queue so far is done, and that in front of some marks."""
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
        """A timestamp behind the work so far. In a graph that is recorded: one that every replay sets again."""
        ...

    def is_done(self, event: Any) -> bool:
        """Whether the work before an event is done, without waiting for it; raises its errors."""
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
