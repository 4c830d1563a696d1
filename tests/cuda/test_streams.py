"""Several queues of a device: random programs that give each other buffers, on queues that run their work as late and
in as odd an order as events allow, have the results of plain sequential ones."""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import pytest

from bench.cuda_streams import Programs, overlap, stress
from smelt.device import gpu_buffer, order, registry
from smelt.device.dlpack import export_array, import_array
from smelt.device.entry import DataCheck, Entry
from smelt.device.gpu_buffer import Block, GpuBuffer
from smelt.device.gpu_program import GpuBound, GpuProgram, Loaded
from smelt.device.host_plan import PlanProgram
from smelt.device.order import Order
from smelt.dtype import Array
from smelt.errors import RunError
from smelt.shape import Shape
from tests.cuda.emulated import EmulatedCuda, compiler
from tests.cuda.schedule import Event, LazyDriver, LazyQueue
from tests.unit.device.test_host_plan import HostDriver, buffer, launch

COUNT = 3  # elements of every array
CASES, STEPS, THREADED = 300, 60, 20
SHAPE = Shape("ui64", COUNT)
LIMIT = np.uint64(1 << 40)


class Host(HostDriver):
    """Memory and kernels at once; freed memory does not come again by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.data = np.zeros(1 << 20, np.uint8)

    def launch(self, function: Any, blocks: int, threads: int, arguments: Sequence[int], *_: Any, **__: Any) -> None:
        function(self, *arguments)


def arrays(driver: HostDriver, *addresses: int) -> list[Array]:
    return [driver.view(each, "ui64", COUNT) for each in addresses]


def scale(driver: HostDriver, source: int, target: int, *_: int) -> None:
    x, y = arrays(driver, source, target)
    y[:] = 3 * x


def add(driver: HostDriver, a: int, b: int, target: int, *_: int) -> None:
    x, y, z = arrays(driver, a, b, target)
    z[:] = (x + y) % LIMIT


def increase(driver: HostDriver, target: int, source: int, *_: int) -> None:
    x, y = arrays(driver, target, source)
    x[:] = (x + 5 * y) % LIMIT


def compare(driver: HostDriver, source: int, flags: int, *_: int) -> None:
    (x,) = arrays(driver, source)
    driver.view(flags, "ui8", 1)[0] = bool((x < LIMIT).all())


KERNELS: dict[str, Any] = {each.__name__: each for each in (scale, add, increase, compare)}
SIZES = [COUNT, 8 * COUNT, 1]


def make_program(driver: Any, steps: list[dict[str, Any]], buffers: list[dict[str, Any]], **more: Any) -> GpuProgram:
    """Every array has the same shape. A bound argument comes first."""
    given = {"steps": steps, "sizes": SIZES, "entry_checks": [], "checks": [], "slots": [[1], [1]], "buffers": buffers}
    kinds = Counter(each["kind"] for each in buffers)
    names = tuple("abcdefgh"[: kinds["argument"]])
    entry = Entry("f", (SHAPE,) * kinds["argument"], (SHAPE,) * kinds["result"], (), names, **more)
    return GpuProgram(driver, PlanProgram(given, KERNELS.__getitem__), entry, [])


def array(kind: str, index: int = 0, slot: int | None = None) -> dict[str, Any]:
    return buffer(kind, "ui64", [0], 1, index=index, slot=slot)


def sum_program(driver: Any) -> GpuProgram:
    """(w, x, y) → 3 x + w, y + 3 x: through temporaries."""
    steps = [
        launch("scale", buffers=[1, 3], sizes=[]),
        launch("add", buffers=[3, 0, 4], sizes=[]),
        launch("add", buffers=[2, 3, 5], sizes=[]),
    ]
    made = [array("argument", i) for i in range(3)]
    return make_program(driver, steps, [*made, array("temporary", slot=0), array("result"), array("result", 1)])


def update_program(driver: Any) -> GpuProgram:
    """(w, x, y) → x + 5 w + 5 y, in the memory of x."""
    steps = [launch("increase", buffers=[1, 0], sizes=[]), launch("increase", buffers=[1, 2], sizes=[])]
    steps.append({"do": "copy", "source": 1, "target": 3})
    made = [array("argument", i) for i in range(3)]
    return make_program(driver, steps, [*made, array("result")], donated=(1,), reused=((0, 1),))


def checked_program(driver: Any) -> GpuProgram:
    """(w, x) → x + w, with a check of data that is judged later."""
    flags = buffer("temporary", "i1", [2], 2, slot=1)
    steps = [
        launch("compare", buffers=[1, 2], sizes=[]),
        {"do": "require", "flags": 2, "check": 0, "numbers": [], "later": True},
        launch("add", buffers=[1, 0, 3], sizes=[]),
    ]
    made = [array("argument", 0), array("argument", 1), flags, array("result")]
    return make_program(driver, steps, made, data=(DataCheck("x is too large", False, None),))


def branch_program(driver: Any) -> GpuProgram:
    """(w, x) → x + w, after the host has read a flag."""
    flags = buffer("temporary", "i1", [2], 2, slot=1)
    steps = [
        launch("compare", buffers=[1, 2], sizes=[]),
        {"do": "require", "flags": 2, "check": 0, "numbers": []},
        launch("add", buffers=[1, 0, 3], sizes=[]),
        launch("scale", buffers=[1, 4], sizes=[]),
    ]
    made = [array("argument", 0), array("argument", 1), flags, array("result"), array("temporary", slot=0)]
    return make_program(driver, steps, made, data=(DataCheck("x is too large", False, None),))


class Case:
    """Buffers and what they must hold."""

    def __init__(self, driver: LazyDriver, seed: int) -> None:
        self.driver, self.random, self.values = driver, random.Random(seed), np.random.default_rng(seed)
        self.held: list[tuple[GpuBuffer, Array]] = []
        self.bounds: list[tuple[Any, GpuProgram, GpuBound, GpuBuffer, list[Array]]] = []
        self.kinds: tuple[Any, ...] = (sum_program, update_program, checked_program, branch_program)
        self.programs = [kind(driver) for kind in self.kinds]
        self.weights = [(GpuBuffer.of(driver, w, SHAPE), [w]) for w in (self.new(), self.new())]
        self.done = Counter[str]()

    def new(self) -> Array:
        return self.values.integers(0, 1000, COUNT, np.uint64)

    def pick(self) -> tuple[GpuBuffer, Array]:
        if not self.held:
            self.upload()
        return self.random.choice(self.held)

    def take(self) -> tuple[GpuBuffer, Array]:
        found = self.pick()
        self.held = [each for each in self.held if each[0] is not found[0]]
        return found

    def pick_or_make(self, share: float) -> tuple[Any, Array]:
        """A buffer, or an array in host memory."""
        value = self.new()
        return self.pick() if self.random.random() < share else (value, value)

    # -- what may happen --

    def upload(self) -> None:
        value = self.new()
        self.held.append((GpuBuffer.of(self.driver, value, SHAPE), value))

    def upload_together(self) -> None:
        """Their memory is one block, their users are not the same."""
        found = [self.new() for _ in range(3)]
        self.held += zip(GpuBuffer.of_all(self.driver, found), found, strict=True)

    def bind(self) -> None:
        i = self.random.randrange(len(self.programs))
        if self.random.random() < 0.5:
            weight, value = self.random.choice(self.weights)
            bound = self.programs[i].bind((weight,))
        else:
            value = [self.new()]
            bound = self.programs[i].bind((value[0],))
            assert bound._held is not None
            weight = bound._held[0]
        self.bounds.append((self.kinds[i], self.programs[i], bound, weight, value))

    def close(self) -> None:
        if len(self.bounds) > 2:
            self.bounds.pop(self.random.randrange(len(self.bounds)))[2].close()

    def trim(self) -> None:
        if self.bounds:
            self.random.choice(self.bounds)[2].trim()

    def call(self) -> None:
        if not self.bounds:
            self.bind()
        kind, _, bound, _, (w,) = self.random.choice(self.bounds)
        if kind is update_program:
            x, before = self.take()
            y, other = self.pick_or_make(0.8)
            if isinstance(y, GpuBuffer) and y.block is x.block:
                y = other  # from the host: a block is not donated and read
            (found,) = bound((x, y))
            assert x.is_deleted
            self.held.append((found, (before + 5 * w + 5 * other) % LIMIT))
            return
        x, value = self.pick_or_make(0.8)
        if kind is sum_program:
            y, other = self.pick()
            want = [(3 * value + w) % LIMIT, (other + 3 * value) % LIMIT]
            given: tuple[Any, ...] = (x, y)
        else:
            want, given = [(value + w) % LIMIT], (x,)
        out = self.find_out(given) if len(want) == 1 and self.random.random() < 0.3 else None
        self.held += zip(bound(given, out), want, strict=True)

    def find_out(self, given: Sequence[Any]) -> tuple[GpuBuffer] | None:
        """A buffer that may be written: none that the call reads, though perhaps in its block."""
        able = [each for each, _ in self.held if all(each is not other for other in given)]
        found = self.random.choice(able) if able else None
        self.held = [each for each in self.held if each[0] is not found]
        return None if found is None else (found,)

    def copy(self) -> None:
        x, value = self.pick()
        self.held.append((x.copy(), value))

    def copy_from(self) -> None:
        x, _ = self.take()
        y, value = self.pick()
        x.copy_from(y)
        self.held.append((x, value))

    def enlarge(self) -> None:
        x, value = self.pick()
        grown = x.enlarge(2 * COUNT)
        zeros = np.zeros(COUNT, np.uint64)
        self.held.append((GpuBuffer(self.driver, SHAPE, grown.block), value))
        self.held.append((GpuBuffer(self.driver, SHAPE, grown.block, 8 * COUNT), zeros))

    def change_weight(self) -> None:
        """Bound programs read it from then on."""
        y, value = self.pick()
        if y.guard is not None:
            y.judge()
        places = [*self.weights, *((weight, now) for *_, weight, now in self.bounds)]
        weight, now = self.random.choice(places)
        weight.copy_from(y)
        now[0] = value

    def drop(self) -> None:
        self.take()

    def delete(self) -> None:
        self.take()[0].delete()

    def copy_to_host(self) -> None:
        self.pick()[0].copy_to_host()

    def read(self) -> None:
        x, value = self.pick()
        assert x.numpy().tolist() == value.tolist()

    def export(self) -> None:
        """Another library reads it and writes it, on a stream of its own."""
        x, value = self.take()
        stream, plain, found = self.random.choice((7, 8, None)), self.driver.plain, list[Array]()
        theirs, after = import_array(x.__dlpack__(stream=stream), "x"), (7 * value) % LIMIT
        line, address = self.driver.outside(stream), theirs.address
        line.add(lambda: found.append(plain.view(address, "ui64", COUNT).copy()))
        line.add(lambda: plain.upload(address, after))
        del theirs  # they are done with it, though their stream may not be
        if self.random.random() < 0.5:
            assert x.numpy().tolist() == after.tolist()
            assert found[0].tolist() == value.tolist()
        self.held.append((x, after))

    def bring(self) -> None:
        """An array of another library, which is gone after the call."""
        if not any(kind is sum_program for kind, *_ in self.bounds):
            return
        _, _, bound, _, (w,) = self.random.choice([each for each in self.bounds if each[0] is sum_program])
        value = self.new()
        theirs = Theirs(self.driver, value, self.random.choice((7, 8)))
        y, other = self.pick()
        found = bound((theirs, y))
        self.held += zip(found, ((3 * value + w) % LIMIT, (other + 3 * value) % LIMIT), strict=True)

    def run(self, steps: int = STEPS) -> None:
        actions: dict[Callable[[], None], int] = {
            self.upload: 3, self.upload_together: 1, self.bind: 2, self.close: 1, self.trim: 1, self.call: 24,
            self.copy: 2, self.copy_from: 2, self.enlarge: 1, self.change_weight: 1, self.drop: 8, self.delete: 1,
            self.copy_to_host: 2, self.read: 1, self.export: 1, self.bring: 2,
        }  # fmt: skip
        names, weights = [*actions], [*actions.values()]
        for _ in range(steps):
            action = self.random.choices(names, weights)[0]
            action()
            self.done[action.__name__] += 1
            while len(self.held) > 12:
                self.take()
        while self.held:
            x, value = self.take()
            assert x.numpy().tolist() == value.tolist()


class Theirs:
    """An array of another library: its memory is overwritten, in the order of its stream, once nobody uses it."""

    def __init__(self, driver: LazyDriver, value: Array, stream: int) -> None:
        self.driver, self.stream, self.line = driver, stream, driver.outside(stream)
        self.address, plain = driver.plain.allocate(8 * COUNT), driver.plain
        self.line.add(lambda: plain.upload(self.address, value))

    def __dlpack__(self, stream: int) -> Any:
        self.driver.outside(stream).after(self.line.mark())
        return export_array(self.address, (COUNT,), SHAPE.element, self.driver.number, Freed(self))

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, self.driver.number


class Freed:
    """Whoever drops it is done with the memory, its work included."""

    def __init__(self, theirs: Theirs) -> None:
        self.overwrite = partial(theirs.driver.plain.upload, theirs.address, np.full(COUNT, 99, np.uint64))

    def __del__(self) -> None:
        self.overwrite()


def run_case(seed: int) -> tuple[LazyDriver, Case]:
    few = random.Random(seed).random() < 0.3
    driver = LazyDriver(Host(), seed, most_spared=256 if few else 1 << 20, most_queues=1 + seed % 4)
    case = Case(driver, seed)
    case.run()
    return driver, case


def test_programs_on_several_queues_have_the_results_of_one(seed: int) -> None:
    met, replays, done = 0, 0, Counter[str]()
    for i in range(CASES):
        try:
            driver, case = run_case(1000 * seed + i)
        except BaseException as error:
            error.add_note(f"run_case({1000 * seed + i})")
            raise
        met, replays, done = met + driver.schedule.met, replays + driver.replays, done + case.done
    assert met > 10 * CASES
    assert replays > CASES
    assert len(done) == 16


def no_wait(self: Order, mark: Any) -> None: ...


def no_marks(block: Any) -> Sequence[Any]:
    return ()


def end_without_readers(queue: Any, reads: Any, writes: Any, plain: Any = order.end) -> None:
    plain(queue, (), writes)


def end_without_writes(queue: Any, reads: Any, writes: Any, plain: Any = order.end) -> None:
    plain(queue, reads, ())


def begin_without_reads(queue: Any, reads: Any, writes: Any, plain: Any = order.begin) -> None:
    plain(queue, (), writes)


def begin_without_writes(queue: Any, reads: Any, writes: Any, plain: Any = order.begin) -> None:
    plain(queue, reads, ())


def move_home_and_forget_nobody(block: Any, queue: Any) -> None:
    block.home = queue


def users_without_holders(block: Any) -> dict[Any, float]:
    found = {} if block.shared is None else dict(block.shared.readers)
    return found | {block.home: order.NOW}


def home_alone(block: Any) -> list[Any]:
    return [block.home]


FORGOTTEN: dict[str, list[tuple[Any, str, Any]]] = {
    "all waits": [(Order, "await_mark", no_wait)],
    "marks of freed memory": [(gpu_buffer, "marks_of_others", no_marks)],
    "waits for freed memory": [(LazyQueue, "is_done", lambda self, event: True)],
    "notes of readers": [("both", "end", end_without_readers)],
    "writes to bound arguments": [("both", "end", end_without_writes)],
    "waits of readers": [("both", "begin", begin_without_reads)],
    "waits of writers": [("both", "begin", begin_without_writes)],
    "that a write makes copies stale": [(order, "_move_home", move_home_and_forget_nobody)],
    "programs that hold memory": [(order, "_users", users_without_holders)],
    "who uses the memory of another library": [(gpu_buffer, "list_users", home_alone)],
    "their streams": [(gpu_buffer, "follow_stream", lambda block, stream: None)],
    "to look for home": [(order, "hold", lambda queue, blocks: None), ("program", "hold", lambda queue, blocks: None)],
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_is_forgotten_is_noticed(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from smelt.device import gpu_program

    for place, name, wrong in FORGOTTEN[what]:
        for each in {"both": [gpu_program, order], "program": [gpu_program]}.get(place, [place]):
            monkeypatch.setattr(each, name, wrong)
    for seed in range(2 * CASES):
        try:
            run_case(seed)
        except (AssertionError, RunError):
            return
    raise AssertionError(f"nobody missed {what}")


# ---- threads ----


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads that take turns often."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty")
def test_threads_that_share_blocks(seed: int) -> None:
    """Each thread has buffers of its own; others are in the same blocks, and weights are read by all."""
    for i in range(THREADED):
        driver = LazyDriver(Host(), 1000 * seed + i, most_queues=3)
        cases = [Case(driver, 10 * i + j) for j in range(3)]
        together = [cases[0].new() for _ in range(12)]
        parts = [*zip(GpuBuffer.of_all(driver, together), together, strict=True)]
        errors = list[BaseException]()

        def work(case: Case, errors: list[BaseException] = errors) -> None:
            try:
                case.run(40)
            except BaseException as error:
                errors.append(error)

        for case in cases:
            case.kinds = case.kinds[:3]  # flags are read in one place
            case.programs, case.weights = cases[0].programs[:3], cases[0].weights
            case.change_weight = case.export = lambda: None  # type: ignore[method-assign]
            case.held, parts = parts[:4], parts[4:]
        threads = [threading.Thread(target=work, args=(case,)) for case in cases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            errors[0].add_note(f"seed {1000 * seed + i}")
            raise errors[0]


# ---- queues of programs, and their memory ----


def test_a_program_has_the_queue_with_the_fewest_programs() -> None:
    driver = LazyDriver(Host(), 1, most_queues=3)
    x = GpuBuffer.of(driver, np.arange(COUNT, dtype=np.uint64), SHAPE)

    def call(bound: GpuBound) -> Any:
        bound((x,))
        return bound._queue

    def bind(weight: Any = None) -> GpuBound:
        return checked_program(driver).bind((np.zeros(COUNT, np.uint64) if weight is None else weight,))

    first = bind()
    unused = bind()
    assert call(first) is driver.queues.first
    second, third, fourth = bind(), bind(), bind()
    assert [call(each) for each in (second, third, fourth)] == [*driver.queues.all[1:], driver.queues.first]
    assert driver.queues.current is call(fourth)
    assert unused._queue is None  # one that is never called has none
    second.close()  # gives its queue back
    assert call(fifth := bind()) is driver.queues.all[1]
    weight = GpuBuffer.of(driver, np.zeros(COUNT, np.uint64), SHAPE)
    one, other = bind(weight), bind(weight)
    assert call(one) is call(other), "they are parts of one model"
    again = one._program.bind((weight,))
    assert call(again) is not call(one), "to run at the same time"
    assert fifth._queue is not None


def test_a_program_takes_turns_with_another_one() -> None:
    """Where they are said to give each other buffers."""
    driver, x = LazyDriver(Host(), 1, most_queues=3), np.zeros(COUNT, np.uint64)
    step, draw, other = (checked_program(driver).bind((x,)) for _ in range(3))
    draw.share_queue(step)
    for each in (step, draw, other):
        each((x,))
    assert step._queue is draw._queue
    assert other._queue is not step._queue


def test_code_that_runs_on_two_queues_is_loaded_twice() -> None:
    """Its kernels count in static memory."""
    driver, loads = LazyDriver(Host(), 1), list[dict[str, Any]]()

    def again() -> Callable[[str], Any]:
        loads.append({name: partial(kernel) for name, kernel in KERNELS.items()})
        return loads[-1].__getitem__

    program = checked_program(driver)
    program.loaded = Loaded(again)
    x = np.arange(COUNT, dtype=np.uint64)
    one, two, three = (program.bind((x,)) for _ in range(3))
    for bound in (one, two, one, two):
        assert bound((x,))[0].numpy().tolist() == [0, 2, 4]
    assert len(loads) == 1
    assert one._plan is program.plan
    assert two._plan.functions["add"] is loads[0]["add"]
    one.close()
    del one
    three((x,))
    assert len(loads) == 1, "on the queue of the first one"


def test_freed_memory_waits_for_those_that_read_it() -> None:
    """Two blocks of a size wait; the third is taken again, and the queue waits for its readers."""
    driver = LazyDriver(Host(), 1)
    driver.schedule.haste = 0.0
    a, b = driver.queues.first, LazyQueue(driver)
    driver.queues.all.append(b)
    b.is_done = lambda event: event.is_reached  # type: ignore[method-assign]
    a.is_done = b.is_done  # type: ignore[method-assign]

    def use_on_both() -> int:
        block = Block(a, 100)
        with order.in_order(b, (block,)):
            b.clear(block.address, 0)
        return block.address

    first, second = use_on_both(), use_on_both()
    assert second != first, "b may still read it"
    assert not [each for each in a.work if isinstance(each, Event) and each.line is b]  # type: ignore[attr-defined]
    third = Block(a, 100)
    assert third.address == first
    assert [each for each in a.work if isinstance(each, Event) and each.line is b]  # type: ignore[attr-defined]
    b.wait()
    fourth = Block(a, 100)
    assert fourth.address == second
    assert len([each for each in a.work if isinstance(each, Event) and each.line is b]) == 1  # type: ignore[attr-defined]


def test_memory_of_one_queue_alone_meets_no_event() -> None:
    driver = LazyDriver(Host(), 1)
    x = GpuBuffer.of(driver, np.arange(COUNT, dtype=np.uint64), SHAPE)
    bound = update_program(driver).bind((np.ones(COUNT, np.uint64),))
    other = checked_program(driver).bind((np.ones(COUNT, np.uint64),))
    bound((x.copy(), x))
    other((np.ones(COUNT, np.uint64),))
    before = driver.queues.crossings
    for _ in range(5):
        (y,) = bound((x.copy(), x))
        y.copy().enlarge(2 * COUNT).copy_to_host()
        del y
        other((np.ones(COUNT, np.uint64),))[0].delete()
    assert driver.queues.is_shared
    assert driver.queues.crossings == before
    other((x,))
    assert driver.queues.crossings == before + 1


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("what", ["a write, then a read", "a read, then a write", "two writes"])
def test_other_parts_of_a_block_are_used_in_the_middle_of_a_call(what: str, seed: int) -> None:
    """Two buffers are in one block. A call on one queue uses `a`. When it has looked where its memory is, and before it
    begins, another thread's call on another queue uses `b`."""
    driver = LazyDriver(Host(), seed, most_queues=3)
    driver.schedule.haste = 0.0
    zeros, x = np.zeros(COUNT, np.uint64), np.arange(COUNT, dtype=np.uint64)
    one, two, three = (checked_program(driver).bind((zeros,)) for _ in range(3))
    for each in (one, two, three):
        each((x,))
    assert len({each._queue for each in (one, two, three)}) == 3
    driver.queues.local.queue = queue = one._queue  # the home of what comes
    a, b = GpuBuffer.of_all(driver, [x, x + 1])
    assert a.block is b.block
    assert a.block.home is queue
    plain, results = queue.launch, list[Any]()

    def launch(*given: Any, **more: Any) -> None:
        queue.launch = plain  # type: ignore[method-assign]
        results.extend(two((x + 7,), (b,)) if "write" in what.split("then")[-1] else two((b,)))
        plain(*given, **more)

    queue.launch = launch  # type: ignore[method-assign]
    if what == "a read, then a write":
        (found,) = one((a,))
        two((x + 9,), (a,))  # must not overtake it
        assert a.numpy().tolist() == (x + 9).tolist()
        assert found.numpy().tolist() == x.tolist()
        return
    one((x + 5,), (a,))
    last = three if what == "two writes" else two
    assert last((a,))[0].numpy().tolist() == (x + 5).tolist()
    assert b.numpy().tolist() == (x + (7 if what == "two writes" else 1)).tolist()


# ---- generated kernels ----


@pytest.fixture
def lazy(monkeypatch: pytest.MonkeyPatch, seed: int) -> Iterator[EmulatedCuda]:
    if compiler() is None:
        pytest.skip("no C++ compiler: pip install ziglang")
    device = EmulatedCuda(seed)
    monkeypatch.setitem(registry.KINDS, "cuda", lambda: device)
    registry.find_device.cache_clear()
    yield device
    registry.find_device.cache_clear()


@pytest.mark.usefixtures("lazy")
def test_compiled_programs_in_threads(seed: int) -> None:
    programs = Programs()
    assert overlap(programs, small=True)["same bits"]
    found = stress(programs, small=True, seed=seed)
    assert found["compared"] > 20
    assert found["queues"] > 2


@pytest.mark.usefixtures("lazy")
def test_compiled_programs_that_do_not_wait_have_other_bits(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = Programs()
    monkeypatch.setattr(Order, "await_mark", no_wait)
    wrong = 0
    for i in range(5):
        try:
            stress(programs, small=True, seed=seed + i)
        except AssertionError as error:
            wrong += "other bits in threads" in str(error)
    assert wrong
