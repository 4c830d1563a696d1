"""Plans run by the host, on a driver whose memory is a NumPy array and whose kernels are Python functions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from smelt.abi import FAILED, NO_MEMORY, TOO_LARGE, UNFIT
from smelt.device.api import Memory
from smelt.device.cuda_driver import _check
from smelt.device.cuda_errors import explain_setup, explain_version
from smelt.device.entry import DataCheck, Entry, SizeCheck
from smelt.device.gpu_buffer import Block, GpuBuffer
from smelt.device.gpu_program import MOST_GRAPHS, GpuAccount, GpuBound, GpuProgram, to_device
from smelt.device.host_plan import MOST_BLOCKS, MOST_BYTES, PlanError, PlanProgram, Run, count_blocks, shared_bytes
from smelt.device.order import Mark, Order, Queues
from smelt.dtype import Array, dtype
from smelt.errors import CancelledError, DeviceError, MemoryLimitError, RunError, ShapeError, SizeError, TimedOutError
from smelt.shape import Shape
from smelt.stop import Cancel, Stop


class HostDriver:
    """Memory from address 1000 on; every call is noted."""

    number = 3

    def __init__(self) -> None:
        self.data, self.next = np.zeros(1 << 16, np.uint8), 1000
        self.allocated: dict[int, int] = {}
        self.launches: list[tuple[Any, ...]] = []
        self.overlaps: list[bool] = []
        self.moves: list[tuple[int, int, int]] = []
        self.replayed, self.forgotten, self.waited, self.graph = 0, 0, 0, list[Callable[[], None]]()
        self.recording, self.queries = False, 0
        self.stream: int | None = None
        self.queues = Queues(lambda: self, most=1)
        self.order = Order(self, self.queues)
        self.streams: list[tuple[str, Any]] = []

    def view(self, address: int, element: str, count: int) -> Array:
        size = dtype(element).numpy.itemsize * count
        return self.data[address : address + size].view(dtype(element).numpy)

    def load(self, code: bytes) -> Any: ...

    def function(self, module: Any, name: str) -> Any: ...

    def allocate(self, count: int) -> int:
        address = self.next
        self.next += -(-count // 64) * 64
        self.allocated[address] = count
        return address

    def free(self, address: int, after: Sequence[Mark] = ()) -> None:
        assert not after, "there is one queue"
        del self.allocated[address]

    def mark(self) -> Any: ...

    def after(self, event: Any) -> None: ...

    def upload(self, address: int, array: Array) -> None:
        self.data[address : address + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)

    def fill(self, address: int, count: int, read: Callable[[Array, int], None]) -> None:
        for start in range(0, count, 100):
            part = np.empty(min(100, count - start), np.uint8)
            read(part, start)
            self.upload(address + start, part)

    def begin_download(self, array: Array, address: int) -> Callable[[], None]:
        self.download(array, address)
        return lambda: None

    def clear(self, address: int, count: int) -> None:
        self.data[address : address + count] = 0

    def download(self, array: Array, address: int) -> None:
        array.reshape(-1).view(np.uint8)[:] = self.data[address : address + array.nbytes]

    def _do(self, work: Callable[[], None]) -> None:
        if self.recording:
            self.graph.append(work)
        else:
            work()

    def move(self, target: int, source: int, count: int) -> None:
        def work() -> None:
            self.moves.append((target, source, count))
            self.data[target : target + count] = self.data[source : source + count].copy()

        self._do(work)

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
        def work() -> None:
            self.launches.append((function, blocks, threads, list(arguments), shared))
            if callable(function):
                function(self, *arguments)

        self.overlaps.append(overlap)
        self._do(work)

    def hand_over(self, stream: int | None) -> None:
        self.streams.append(("hand over", stream))

    def follow(self, stream: int | None) -> None:
        self.streams.append(("follow", stream))

    def keep_until_done(self, owner: Any) -> None:
        self.streams.append(("keep", owner))

    def wait(self) -> None:
        self.waited += 1

    def event(self) -> Any:
        return self.launches[:]

    def seconds(self, first: Any, second: Any) -> float:
        return float(len(second) - len(first))

    def is_done(self, event: Any) -> bool:
        self.queries += 1
        return self.queries % 3 == 0

    def record(self, work: Callable[[], None]) -> Any:
        self.graph, self.recording = [], True
        work()
        self.recording = False
        return self.graph

    def replay(self, graph: Any) -> None:
        self.replayed += 1
        for work in graph:
            work()

    def forget(self, graph: Any) -> None:
        self.forgotten += 1


def buffer(kind: str, element: str, sizes: list[int], bytes: int, **more: Any) -> dict[str, Any]:
    return {"kind": kind, "element": element, "sizes": sizes, "bytes": bytes, "deferred": False, "slot": None} | more


def launch(function: str = "k", **more: Any) -> dict[str, Any]:
    each = {
        "function": function, "buffers": [0], "sizes": [0], "threads": 32, "shared": 16, "awaits": [], "waits": False,
        "single": False, "scratch": 0, "per_block": 4, "extent": 0, "saved": 0,
    }  # fmt: skip
    return {"do": "launch", "launches": [each | more]}


def plan(steps: list[dict[str, Any]], sizes: list[Any], **more: Any) -> PlanProgram:
    given = {"steps": steps, "sizes": sizes, "entry_checks": [], "checks": [], "slots": [], "buffers": []} | more
    return PlanProgram(given, lambda name: name)


def run(program: PlanProgram, *values: int, buffers: Sequence[int] = (), polls: list[int] | None = None) -> Run:
    counted = [] if polls is None else polls
    driver = HostDriver()
    return Run(program, driver, program.compute_sizes(values), [*buffers], lambda: counted.append(1))


def test_sizes_of_a_call() -> None:
    checks = [[0, "<=", 1], [0, "==", 2], [2, "!=", 1]]
    made = plan(
        [], ["n0", 8, "n1 + 1", "4*n0", "m0", "n0//n1"], entry_checks=[0, 2], checks=checks, slots=[[0, 3], [2]]
    )
    sized = made.compute_sizes([5, 3])
    assert (sized.numbers, sized.offsets, sized.arena) == ((5, 8, 4, 20, 0, 1), (0, 20), 24)
    assert sized.symbols == {"n0": 5, "n1": 3}
    assert made.compute_sizes([5, 3]) is sized
    assert made.last == [-1, -1, -1, -1, 0, -1]
    assert made.compute_sizes([0, 0]).numbers[5] == 0  # a division in a branch that is not taken
    for values, status in (((9, 3), 1), ((5, 7), 3), ((1, 1 << 63), TOO_LARGE)):
        with pytest.raises(PlanError) as caught:
            made.compute_sizes(values)
        assert (caught.value.status, caught.value.record) == (status, ())
    half = plan([], ["n0"], slots=[[0], [0]])
    with pytest.raises(PlanError) as caught:
        half.compute_sizes([1 << 62])
    assert caught.value.status == TOO_LARGE
    assert half.compute_sizes([(1 << 62) - 1]).arena == (1 << 63) - 2
    assert plan([], [-4, 3], slots=[[0], [1, 0]]).compute_sizes([]).offsets == (0, 0)
    for i in range(70):
        half.compute_sizes([i])
    assert len(half._known) <= 65


@pytest.mark.parametrize(
    ("given", "blocks"),
    [
        ({"single": True}, 1),
        ({}, 3),
        ({"per_block": 3}, 4),
        ({"extent": None}, 1024),
        ({"extent": None, "scratch": 32 << 20}, 2),
        ({"scratch": 32 << 20}, 2),  # 256 MiB for all blocks
        ({"scratch": (32 << 20) + 1}, 1),
        ({"scratch": 1 << 40}, 1),
        ({"extent": 1}, 0),
        ({"extent": 2, "per_block": 1}, MOST_BLOCKS),
        ({"extent": 3}, 0),
        ({"most": 2}, 2),  # blocks that run at once
        ({"most": 5}, 3),
    ],
)
def test_blocks_of_a_launch(given: dict[str, Any], blocks: int) -> None:
    step = launch(**given)
    made = run(plan([step], [12, 0, 1 << 40, -8]), buffers=[1])
    assert count_blocks(step["launches"][0], made.numbers) == blocks


def test_launches_share_memory_and_get_buffers_then_sizes_then_memory() -> None:
    steps = [launch(saved=8, buffers=[1, 0], sizes=[1, 0]), launch("other", scratch=2, saved=3), launch(extent=2)]
    polls: list[int] = []
    made = run(plan(steps, [12, 7, 0]), buffers=[70, 80], polls=polls)
    assert made.program.functions == {"k": "k", "other": "other"}
    assert made.sized.memory_bytes == 3 + 2 * 4 * 3
    assert shared_bytes([], made.numbers) == 0
    made.start()
    driver: Any = made.queue
    first, second = driver.launches
    assert first == ("k", 3, 32, [80, 70, 7, 12, 1000], 16)
    assert second == ("other", 3, 32, [70, 12, 1064], 16)
    assert driver.allocated == {1000: 8, 1064: 27}
    assert len(polls) == 3
    made.free()
    assert driver.allocated == {}


def test_launches_begin_early_if_they_wait_themselves() -> None:
    """For the launch in front of them: the first launch has none, and a copy waits for nobody."""
    buffers = [buffer("argument", "f32", [0], 1), buffer("result", "f32", [0], 1)]
    copy = {"do": "copy", "source": 0, "target": 1}
    early = [launch(waits=True), launch(waits=True), launch(awaits=[0]), launch()]
    made = run(plan([*early, copy, *early], [12, 8, 0], buffers=buffers), buffers=[1000, 1100])
    made.start()
    assert made.queue.overlaps == [False, True, True, False] * 2  # type: ignore[attr-defined]


def test_copies_move_bytes_between_different_buffers() -> None:
    buffers = [buffer("argument", "f32", [0], 1), buffer("result", "f32", [0], 1), buffer("result", "f32", [2], 2)]
    steps = [{"do": "copy", "source": 0, "target": 1}, {"do": "copy", "source": 1, "target": 1}]
    steps += [{"do": "copy", "source": 0, "target": 2}]
    made = run(plan(steps, [2, 8, 0], buffers=buffers), buffers=[1000, 1100, 1200])
    made.start()
    assert made.queue.moves == [(1100, 1000, 8)]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("element", "value", "branch"),
    [("i1", 1, 0), ("i1", 0, 1), ("i32", 0, 0), ("i32", 2, 2), ("i32", 3, 2), ("i32", -1, 2), ("i32", 1, 1)],
)
def test_branches(element: str, value: int, branch: int) -> None:
    branches = [[launch(str(i), single=True)] for i in range(3 if element == "i32" else 2)]
    made = run(
        plan([{"do": "branch", "selector": 0, "branches": branches}], [1], buffers=[buffer("argument", element, [], 0)])
    )
    made.buffers.append(2000)
    made.queue.view(2000, "ui8" if element == "i1" else element, 1)[0] = value  # type: ignore[attr-defined]
    made.start()
    assert [each[0] for each in made.queue.launches] == [str(branch)]  # type: ignore[attr-defined]
    assert made.program.functions.keys() == {*map(str, range(len(branches)))}


def test_loops_end_where_the_flag_is_false() -> None:
    def step(driver: HostDriver, address: int, *_: int) -> None:
        driver.view(address, "ui8", 1)[0] -= 1

    body = [launch("body", single=True)]
    made = plan([{"do": "repeat", "head": [launch("head", single=True)], "flag": 0, "body": body}], [1])
    made.functions["body"] = step
    polls: list[int] = []
    call = run(made, buffers=[2000], polls=polls)
    call.queue.view(2000, "ui8", 1)[0] = 3  # type: ignore[attr-defined]
    call.start()
    names = [each[0] if isinstance(each[0], str) else "body" for each in call.queue.launches]  # type: ignore[attr-defined]
    assert names == ["head", "body"] * 3 + ["head"]
    assert len(polls) == 4 + 3 + 3 + 1


def test_checks_of_data_and_of_sizes() -> None:
    buffers = [buffer("argument", "i1", [0, 1], 0), buffer("argument", "i64", [], 0), buffer("argument", "i1", [2], 0)]
    require = {"do": "require", "flags": 0, "check": 5, "numbers": [1]}
    made = run(plan([require, {**require, "flags": 2}], [2, 3, 0], buffers=buffers), buffers=[2000, 2100, 2200])
    flags = made.queue.view(2000, "ui8", 7)  # type: ignore[attr-defined]
    flags[:6] = 1
    made.start()
    flags[5] = 0
    made.queue.view(2100, "i64", 1)[0] = -7  # type: ignore[attr-defined]
    with pytest.raises(PlanError) as caught:
        made.start()
    assert (caught.value.status, caught.value.record) == (FAILED + 5, (-7,))
    ensure = {"do": "ensure", "checks": [0, 1]}
    with pytest.raises(PlanError) as caught:
        run(plan([ensure], [2, 3], checks=[[0, "<=", 1], [0, "==", 1]])).start()
    assert (caught.value.status, caught.value.record) == (UNFIT + 1, (2, 3))
    run(plan([ensure], [2, 2], checks=[[0, "<=", 1], [0, "==", 1]])).start()


def test_sizes_from_data_grow_buffers() -> None:
    buffers = [
        buffer("argument", "i64", [0], 0),
        buffer("temporary", "f32", [1], 2, deferred=True),
        buffer("temporary", "f32", [3], 4, deferred=True),
    ]
    sizes = [2, "m0", "4*m0", "m0 + m1", "4*m0 + 4*m1", "n0 + 1"]
    measure = {"do": "measure", "source": 0, "symbols": [0]}
    made = run(
        plan([measure, {"do": "measure", "source": [5], "symbols": [1]}], sizes, buffers=buffers),
        6,
        buffers=[2000, 0, 0],
    )
    assert made.program.segments == ()
    values = made.queue.view(2000, "i64", 1)  # type: ignore[attr-defined]
    driver: Any = made.queue
    for value, held in ((3, {1: 12, 2: 40}), (2, {1: 12, 2: 40}), (4, {1: 16, 2: 44}), (0, {1: 16, 2: 44})):
        values[0] = value
        made.start()
        assert made.numbers == [2, value, 4 * value, value + 7, 4 * value + 28, 7]
        assert made.held == held
        assert [driver.allocated[each] for each in made.buffers[1:]] == [held[1], held[2]]
    for value in (-1, MOST_BYTES // 4 + 1):
        values[0] = value
        with pytest.raises(PlanError) as caught:
            made.start()
        assert (caught.value.status, caught.value.record) == (NO_MEMORY, (4 * value,))
    empty = run(plan([measure], sizes, buffers=buffers[:2]), 6, buffers=[2000, 0])
    empty.start()
    assert (empty.held, empty.queue.allocated) == ({1: 0}, {1000: 1})  # type: ignore[attr-defined]


def test_runs_of_steps_that_a_graph_may_hold() -> None:
    copy, ensure, require = {"do": "copy"}, {"do": "ensure"}, {"do": "require"}
    one = launch()
    assert plan([one, copy, require, ensure], [1]).segments == (
        (True, (one, copy)),
        (False, (require,)),
        (True, (ensure,)),
    )
    assert plan([one, require, one], [1]).segments == ()
    assert plan([one, one, {"do": "repeat", "head": [], "body": [{"do": "measure"}]}], [1]).segments == ()


# ---- programs ----


def double(driver: HostDriver, source: int, target: int, count: int, *_: int) -> None:
    driver.view(target, "f32", count)[:] = 2 * driver.view(source, "f32", count)


def doubling(entry: Entry | None = None, account: GpuAccount | None = None, **more: Any) -> tuple[HostDriver, GpuBound]:
    """y = 2 (w + x): the argument w is bound; x is copied into a temporary first."""
    buffers = [
        buffer("argument", "f32", [0], 1, index=0),
        buffer("argument", "f32", [0], 1, index=1),
        buffer("temporary", "f32", [0], 1, slot=0),
        buffer("result", "f32", [0], 1, index=0),
        buffer("constant", "ui8", [2], 2, index=0),
    ]

    def add(driver: HostDriver, target: int, w: int, constant: int, count: int, *_: int) -> None:
        assert driver.view(constant, "ui8", 3).tolist() == [1, 2, 3]
        driver.view(target, "f32", count)[:] += driver.view(w, "f32", count)

    steps = [
        {"do": "copy", "source": 1, "target": 2},
        launch("add", buffers=[2, 0, 4], sizes=[0]),
        launch("double", buffers=[2, 3], sizes=[0]),
    ]
    found = {"add": add, "double": double}
    given = {
        "steps": steps, "sizes": ["n0", "4*n0", 3, 8], "entry_checks": [0], "checks": [[0, "<=", 3]], "slots": [[1]],
        "buffers": buffers,
    } | more  # fmt: skip
    driver = HostDriver()
    shape = Shape("f32", "N")
    entry = entry or Entry("f", (shape, shape), (shape,), ("N",), ("w", "x"), (SizeCheck("N <= 8", "too long"),))
    program = GpuProgram(driver, PlanProgram(given, found.__getitem__), entry, [bytes([1, 2, 3])])
    return driver, program.bind((np.array([1, 2, 3], np.float32),), {"N": 3, "other": 5}, account)


def f32(*values: float) -> Array:
    return np.array(values, np.float32)


def test_a_program_on_a_device() -> None:
    driver, bound = doubling()
    for i in range(4):  # the second call of the same buffers records a graph, later ones replay it
        (result,) = bound((f32(10, 20, 30),))
        assert result.numpy().tolist() == [22, 44, 66]
        assert result.shape == Shape("f32", 3)
        assert driver.replayed == 0, i
    x, out = GpuBuffer.of(driver, f32(1, 1, 1), Shape("f32", 3)), GpuBuffer(driver, Shape("f32", 3))
    for i in range(4):
        driver.upload(x.address, f32(i, i, i))
        (result,) = bound((x,), (out,))
        assert result is out
        assert out.numpy().tolist() == [2 * (i + 1), 2 * (i + 2), 2 * (i + 3)]
        assert driver.replayed == max(0, i)
    assert bound.memory == Memory(12, 3, 12, 0, 1)
    assert bound.call_bytes({"N": 7}) == 24
    bound.trim()
    gc.collect()
    assert driver.forgotten == 1
    bound.close()
    with pytest.raises(RunError, match="the executable is closed"):
        bound((x,))


def test_a_call_that_came_before_asks_the_driver_for_memory_and_one_graph() -> None:
    driver, bound = doubling()
    x = GpuBuffer.of(driver, f32(1, 1, 1), Shape("f32", "N"))
    driver.allocate = lambda count: 30_000 + 64 * (count == 12)  # type: ignore[method-assign]
    driver.free = lambda address, after=(): None  # type: ignore[method-assign]
    for _ in range(2):
        bound((x,))
    called: list[str] = []
    for name in ("allocate", "upload", "download", "move", "launch", "wait", "is_done", "record", "replay"):
        plain = getattr(driver, name)

        def note(*given: Any, name: str = name, plain: Any = plain) -> Any:
            called.append(name)
            return plain(*given)

        setattr(driver, name, note)
    replay, driver.replay = driver.replay, lambda graph: called.append("replay")  # type: ignore[method-assign]
    same = GpuBuffer(driver, x.copy().shape, x.block)  # another buffer on the same memory
    called.clear()
    bound((same,))
    assert called == ["allocate", "replay"]
    driver.replay = replay  # type: ignore[method-assign]
    called.clear()
    bound((x,), stop=Stop(60.0))  # with a limit of time it waits, and polls meanwhile
    assert [each for each in called if each in ("replay", "is_done")] == ["replay", *["is_done"] * 3]


def test_a_kernel_that_runs_too_long_ends_the_call() -> None:
    driver, bound = doubling()
    driver.is_done = lambda event: False  # type: ignore[method-assign]
    with pytest.raises(TimedOutError) as caught:
        bound((f32(1, 2, 3),), stop=Stop(0.01))
    assert caught.value.started
    token = Cancel()
    driver.is_done = lambda event: bool(token.cancel())  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(CancelledError):
        bound((f32(1, 2, 3),), stop=Stop(None, token))
    driver.is_done = lambda event: bool(bound.cancel())  # type: ignore[method-assign, func-returns-value]
    with pytest.raises(CancelledError):
        bound((f32(1, 2, 3),), stop=Stop(60.0))
    del driver.is_done
    assert bound((f32(1, 2, 3),), stop=Stop(60.0))[0].numpy().tolist() == [4, 8, 12]


def test_graphs_are_few() -> None:
    driver, bound = doubling()
    inputs = [GpuBuffer.of(driver, f32(1, 1, 1), Shape("f32", 3)) for _ in range(MOST_GRAPHS + 3)]
    out = GpuBuffer(driver, Shape("f32", 3))
    for x in inputs:
        bound((x,), (out,))
        bound((x,), (out,))
    assert driver.replayed == len(inputs)
    assert len(bound._graphs) == len(bound._seen) == MOST_GRAPHS
    gc.collect()
    assert driver.forgotten == 3


def test_graphs_share_the_memory_of_launches() -> None:
    """A model in use has graphs of many sizes: each with such memory of its own would fill the device."""
    steps = [
        {"do": "copy", "source": 1, "target": 2},
        launch("add", buffers=[2, 0, 4], sizes=[0], saved=1000),
        launch("double", buffers=[2, 3], sizes=[0], scratch=20, per_block=1),
    ]
    driver, bound = doubling(steps=steps)
    inputs = [GpuBuffer.of(driver, f32(i, 1, 1), Shape("f32", 3)) for i in range(6)]
    out = GpuBuffer(driver, Shape("f32", 3))
    for x in inputs * 2:
        before = sum(driver.allocated.values())
        bound((x,), (out,))
        if x is not inputs[0]:
            assert sum(driver.allocated.values()) == before
    assert len(bound._graphs) == len(inputs)
    assert out.numpy().tolist() == [2 * 6, 2 * 3, 2 * 4]
    memories = {given[-1] for _, _, _, given, *_ in driver.launches}
    assert len(memories) == 1  # behind what the plan has in this memory
    assert bound.memory.arenas == 256 + 1000
    assert bound.call_bytes({"N": 3}) == 256 + 1000 + 12
    with pytest.raises(MemoryLimitError):
        doubling(steps=steps, account=GpuAccount(1000))[1]((inputs[0].numpy(),))


def test_mistakes_of_a_call() -> None:
    driver, bound = doubling()
    with pytest.raises(RunError, match="wrong number of inputs") as caught:
        bound(())
    assert caught.value.expected == ["x"]
    with pytest.raises(ShapeError):
        bound((f32(1, 2),))
    with pytest.raises(RunError, match="'x' is on another device"):
        bound((GpuBuffer.of(HostDriver(), f32(1, 2, 3), Shape("f32", 3)),))
    with pytest.raises(ShapeError, match="output buffer 0"):
        bound((f32(1, 2, 3),), (GpuBuffer(driver, Shape("f32", 4)),))
    gone = GpuBuffer.of(driver, f32(1, 2, 3), Shape("f32", 3))
    gone.delete()
    gone.delete()
    assert gone.is_deleted
    with pytest.raises(RunError, match="the buffer was deleted"):
        bound((gone,))
    token = Cancel()
    token.cancel()
    with pytest.raises(CancelledError):
        bound((f32(1, 2, 3),), stop=Stop(None, token))


def test_a_failed_call_frees_its_memory_and_says_that_it_began() -> None:
    shape = Shape("f32", "N")
    checks = (SizeCheck("N <= 8", "too long"),)
    data = (DataCheck("{0} of {1} are wrong", False, None), DataCheck("sizes", True, None))
    entry = Entry("f", (shape, shape), (shape,), ("N",), ("w", "x"), checks, data)
    flags = buffer("argument", "i1", [0], 0, index=1)
    steps = [launch("add", buffers=[0], saved=4), {"do": "require", "flags": 1, "check": 0, "numbers": [1]}]
    driver, bound = doubling(entry, steps=steps, buffers=[buffer("argument", "f32", [0], 1, index=0), flags,
                                                           buffer("result", "f32", [0], 1, index=0)])  # fmt: skip
    bound._program.plan.functions["add"] = None
    with pytest.raises(RunError, match="0 of 0 are wrong") as caught:
        bound((f32(0, 0, 0),))
    assert caught.value.started
    assert 4 not in driver.allocated.values()  # the memory of the launch
    assert bound._explain(PlanError(NO_MEMORY, [77])).got == "77 bytes requested"
    assert isinstance(bound._explain(PlanError(FAILED + 1)), SizeError)
    unfit = bound._explain(PlanError(UNFIT, [4, 5]))
    assert (unfit.message, unfit.got) == ("too long", "4 and 5")


def test_sizes_that_are_refused() -> None:
    _, bound = doubling()
    assert bound.call_bytes({}) == 24
    long = bound._program.bind((f32(*range(9)),))
    with pytest.raises(SizeError, match="too long") as caught:
        long((f32(*range(9)),))
    assert "9" in str(caught.value.got)
    assert long.call_bytes({"N": 9}) == 0
    assert long.call_bytes({}) == 2 * 4
    with pytest.raises(ShapeError, match="do not fit together"):
        long((f32(1),))


def test_donated_inputs_are_given_away() -> None:
    shape = Shape("f32", "N")
    entry = Entry("f", (shape, shape), (shape,), ("N",), ("w", "x"), donated=(1,), reused=((0, 1),))
    driver, bound = doubling(entry, entry_checks=[])
    x = GpuBuffer.of(driver, f32(1, 2, 3), Shape("f32", 3))
    address = x.address
    (result,) = bound((x,))
    assert result.address == address
    assert result.numpy().tolist() == [4, 8, 12]
    with pytest.raises(RunError, match="the buffer was donated"):
        x.numpy()
    for wrong in ((), (result, result)):
        with pytest.raises(RunError, match="wrong number of inputs"):
            bound(wrong)
    with pytest.raises(RunError, match="'x' is donated and given twice"):
        bound((bound._held[0],))  # type: ignore[index]
    driver.is_done = lambda event: False  # type: ignore[method-assign]
    late = GpuBuffer.of(driver, f32(1, 1, 1), Shape("f32", 3))
    with pytest.raises(TimedOutError):
        bound((late,), stop=Stop(0.001))
    assert late.is_deleted  # the call began, and may have overwritten it
    later = GpuBuffer.of(driver, f32(1, 1, 1), Shape("f32", 3))
    for _ in range(3):
        (later,) = bound((later,))
    assert later.numpy().tolist() == [22, 36, 50]


def test_results_of_a_size_that_data_gives() -> None:
    shape = Shape("f32", "N")
    entry = Entry("f", (shape, shape), (Shape("f32", "M"),), ("N",), ("w", "x"))
    buffers = [
        buffer("argument", "f32", [0], 1, index=0),
        buffer("argument", "i64", [0], 1, index=1),
        buffer("result", "f32", [2], 3, index=0, deferred=True),
    ]
    steps = [{"do": "measure", "source": 1, "symbols": [0]}, launch("double", buffers=[0, 2], sizes=[2], extent=2)]
    entry = entry.replace(arguments=(shape, Shape("i64", 1)))
    driver, bound = doubling(
        entry, steps=steps, buffers=buffers, sizes=["n0", "4*n0", "m0", "4*m0"], entry_checks=[], slots=[]
    )
    for count in (2, 0):
        (result,) = bound((np.array([count]),))
        assert result.shape == Shape("f32", count)
        assert result.numpy().tolist() == [2, 4][:count]
    with pytest.raises(RunError, match="no memory left") as caught:
        bound((np.array([-3]),))
    assert caught.value.got == "-12 bytes requested"
    del result, caught
    gc.collect()
    assert sorted(driver.allocated.values()) == [3, 12]  # the constant, and what is bound


def test_an_account_bounds_what_is_held_and_a_call() -> None:
    account = GpuAccount(100)
    account.take(60, "weights")
    with pytest.raises(MemoryLimitError, match="weights: the model needs more memory") as caught:
        account.take(41, "weights")
    assert (caught.value.expected, caught.value.got) == ("at most 100 B", "41 B beside 60 B")
    account.take(40, "more")
    account.give(40)
    assert (account.fixed, account.span(7)) == (60, 7)
    account.check_call(40)
    with pytest.raises(MemoryLimitError, match="the call needs more memory") as caught:
        account.check_call(41)
    assert caught.value.expected == "at most 40 B beside what the model holds"
    account.take(17, "rest")
    _, bound = doubling(account=account)
    with pytest.raises(MemoryLimitError):
        bound((f32(1, 2, 3),))
    account.give(1)
    bound((f32(1, 2, 3),))


def test_buffers() -> None:
    driver = HostDriver()
    empty = Block(driver, 0)
    assert (driver.allocated[empty.address], empty.bytes) == (1, 0)
    made = GpuBuffer.of(driver, np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3)), Shape("f32", "A", "B"))
    assert (made.shape, made.nbytes, made.dtype) == (Shape("f32", 2, 3), 24, np.dtype(np.float32))
    assert made.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
    other = made.copy()
    assert other.address != made.address
    assert other.to_host().numpy().tolist() == made.numpy().tolist()
    assert made.renew().address == made.address
    assert GpuBuffer(driver, Shape("f32", 1), made.block, 4).numpy().tolist() == [1]
    assert GpuBuffer(driver, Shape("f32", 0)).copy().numpy().tolist() == []
    assert np.array(made, np.int32).tolist() == [[0, 1, 2], [3, 4, 5]]
    assert made.wait() is made
    assert driver.waited == 1
    assert made.__dlpack_device__() == (2, 3)
    assert to_device(driver, made, Shape("f32", 2, 3), "x") is made
    with pytest.raises(ShapeError):
        to_device(driver, made, Shape("f32", 3, 3), "x")
    address = made.address
    assert address in driver.allocated
    del made
    gc.collect()
    assert address not in driver.allocated


@pytest.mark.parametrize(
    ("status", "kind", "message", "remedy"),
    [
        ("CUDA_ERROR_OUT_OF_MEMORY", RunError, "no memory left on the GPU", "use smaller sizes"),
        ("CUDA_ERROR_LAUNCH_TIMEOUT", DeviceError, "a kernel ran longer than", "a GPU without a display"),
        ("CUDA_ERROR_ILLEGAL_ADDRESS", DeviceError, "a kernel used memory that is not its own", "a new process"),
        ("CUDA_ERROR_ECC_UNCORRECTABLE", DeviceError, "memory of the GPU is damaged", 'device="cpu" still works'),
        ("CUDA_ERROR_UNSUPPORTED_PTX_VERSION", DeviceError, "older than the compiler", "update the driver"),
        ("CUDA_ERROR_INVALID_VALUE", DeviceError, "a launch failed on the GPU", "nvidia-smi"),
    ],
)
def test_errors_of_the_driver(status: str, kind: type[Exception], message: str, remedy: str) -> None:
    with pytest.raises(kind, match=message) as caught:
        _check((status, 1), "a launch")
    assert remedy in str(caught.value)


def test_drivers_that_are_too_old() -> None:
    assert explain_version(13000, 13) is explain_version(13020, 12) is explain_version(12000) is None
    assert "it supports CUDA 11.4, smelt needs CUDA 12" in str(explain_version(11040))
    assert 'CUDA 12.8, NVRTC makes code for CUDA 13: update the driver, or pip install "nvidia-cuda-nvrtc<13"' in str(
        explain_version(12080, 13)
    )
    assert "CUDA_VISIBLE_DEVICES" in explain_setup("CUDA_ERROR_NO_DEVICE")
    assert "restart the machine" in explain_setup("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH")
    assert "(UNKNOWN): nvidia-smi" in explain_setup("CUDA_ERROR_UNKNOWN")


def test_answers_of_the_driver() -> None:
    assert _check(("CUDA_SUCCESS", 5), "") == 5
    assert _check(("SUCCESS",), "") is None


def test_sizes_that_a_call_is_refused_for() -> None:
    entry = Entry("f", (), (), ("N",), (), (SizeCheck("N <= 2", "first"), SizeCheck("N <= 3", "second")))
    for check, why, expected in ((0, "first", "N <= 2"), (1, "second", "N <= 3")):
        refused = entry.refuse(check, {"N": 9})
        assert isinstance(refused, SizeError)
        assert (refused.message, refused.expected) == (why, expected)
        assert "9" in str(refused.got)
    assert entry.refuse(TOO_LARGE - 1, {"N": 9}).message == "a size is too large for any machine"
