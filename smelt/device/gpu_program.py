"""Programs of a device with a `Driver`: a plan on the host, kernels and arrays on the device.

`GpuProgram` and `GpuBound` are the `Program` and `Bound` of `device.program`. A bound program has one queue of the
device, where its calls take turns; those of programs on other queues run at the same time.
"""

from __future__ import annotations

import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.abi import NO_MEMORY, UNFIT
from smelt.buffer import bytes_text, check_array, check_shape
from smelt.device.api import Arrays, Memory
from smelt.device.dlpack import CUDA
from smelt.device.driver import Driver, Queue
from smelt.device.entry import Entry, solve_symbols
from smelt.device.gpu_buffer import Block, GpuBuffer, static_shape
from smelt.device.host_plan import PlanError, PlanProgram, Run, Sized
from smelt.device.order import NOW, Queues, begin, crosses, end, hold
from smelt.dtype import Array, ui8
from smelt.errors import CancelledError, MemoryLimitError, RunError, SmeltError
from smelt.guard import Guard, guard_results, open_guards
from smelt.shape import Shape
from smelt.stop import Stop

SMALLER = "use smaller sizes"
MOST_GRAPHS = 32  # of a bound program
MOST_PREPARED = 64
APART = 9 << 10  # bytes behind notes that are kept: few results have such a size
GRAPHS = True  # calls that come again replay graphs


class GpuAccount:
    """Bytes that several programs may take together. A call never waits for another one: each is counted alone."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._fixed = 0
        self._lock = threading.Lock()

    @property
    def fixed(self) -> int:
        return self._fixed

    def take(self, count: int, what: str) -> None:
        with self._lock:
            if self._fixed + count > self.limit:
                raise MemoryLimitError(
                    f"{what}: the model needs more memory than allowed",
                    expected=f"at most {bytes_text(self.limit)}",
                    got=f"{bytes_text(count)} beside {bytes_text(self._fixed)}",
                    remedy="set a higher memory_limit",
                )
            self._fixed += count

    def give(self, count: int) -> None:
        with self._lock:
            self._fixed -= count

    def span(self, count: int) -> int:
        return count

    def check_call(self, count: int) -> None:
        """Refuse a call that takes too much."""
        if self._fixed + count > self.limit:
            raise MemoryLimitError(
                "the call needs more memory than allowed",
                expected=f"at most {bytes_text(self.limit - self._fixed)} beside what the model holds",
                got=bytes_text(count),
                remedy="set a higher memory_limit, or use smaller sizes",
            )


class Loaded:
    """Code on a device. Its kernels have static memory (counters of split K): work on two queues at once would mix it
    up. `again` loads it once more and gives what finds its functions; None: it has no such memory."""

    def __init__(self, again: Callable[[], Callable[[str], Any]] | None = None) -> None:
        self.again = again
        self.queue: Queue | None = None  # of all that uses it
        self._users = 0
        self._leave: Callable[[], object] | None = None

    def join(self, queues: Queues, preferred: Sequence[Queue]) -> Queue:
        """The queue, for one more program. The caller has the lock."""
        if self.queue is None or not self._users:
            before = self.queue
            self.queue, self._leave = queues.choose(self, preferred)
            if before is not None:  # work of what is closed may still run there
                self.queue.order.await_epoch(before.order, NOW)
        self._users += 1
        return self.queue

    def part(self, queues: Queues) -> None:
        """A program is closed, or gone."""
        with queues.lock:
            self._users -= 1
            if not self._users and self._leave is not None:
                self._leave()


class GpuProgram:
    """A function of loaded code."""

    def __init__(
        self,
        driver: Driver,
        plan: PlanProgram,
        entry: Entry,
        constants: Sequence[bytes | Array],
        loaded: Loaded | None = None,
    ) -> None:
        self.driver, self.plan, self.entry, self.loaded = driver, plan, entry, loaded or Loaded()
        self.queues: list[Queue] = []  # of bound programs
        self.constants = [_constant(driver, each) for each in constants]

    @property
    def arguments(self) -> tuple[Shape, ...]:
        return self.entry.arguments

    @property
    def results(self) -> tuple[Shape, ...]:
        return self.entry.results

    @property
    def donated(self) -> tuple[int, ...]:
        return self.entry.donated

    @property
    def reused(self) -> Mapping[int, int]:
        return dict(self.entry.reused)

    @property
    def constant_bytes(self) -> int:
        return sum(each.nbytes for each in self.constants)

    def bind(self, arrays: Arrays, sizes: Mapping[str, int] = MappingProxyType({}), account: Any = None) -> GpuBound:
        each = zip(arrays, self.arguments, self.entry.names, strict=False)
        held = [to_device(self.driver, array, shape, repr(name)) for array, shape, name in each]
        for buffer in held:
            buffer.judge()  # no call waits for them later
        return GpuBound(self, held, sizes, account)


def _constant(driver: Driver, given: bytes | Array) -> GpuBuffer:
    array = np.frombuffer(given, np.uint8) if isinstance(given, bytes) else given.reshape(-1).view(np.uint8)
    return GpuBuffer.of(driver, array, Shape("ui8", array.size))


def to_device(driver: Driver, given: Any, shape: Shape, what: str, queue: Queue | None = None) -> GpuBuffer:
    """A buffer on the device; the same one if it is there already. `queue`: that of a copy."""
    if isinstance(given, GpuBuffer):
        if given.client is not driver:
            raise RunError(f"{what} is on another device", remedy="copy it here: platform.put(buffer)")
        check_shape(given.shape, shape, what)
        return given
    if getattr(given, "__dlpack_device__", None) is not None and given.__dlpack_device__() == (CUDA, driver.number):
        lent = GpuBuffer.from_dlpack(driver, given, what, queue)
        check_shape(lent.shape, shape, what)
        return lent
    array = check_array(given.numpy() if hasattr(given, "numpy") else given, shape, what)
    return GpuBuffer.of(driver, array, shape, queue)


class Recorded:
    """A call: a graph for each run of launches and copies.

    `whole`: the one graph that holds all of the call; None where the host has a part in it.
    """

    __slots__ = ("__weakref__", "graphs", "is_used", "marks", "whole")

    def __init__(self, queue: Queue, run: Run) -> None:
        self.graphs: list[Any] = []
        for plain, steps in run.program.segments:
            graph = queue.record(partial(run.steps, steps)) if plain else None
            self.graphs.append(graph)
            if plain:
                weakref.finalize(self, queue.forget, graph).atexit = False
        self.whole = self.graphs[0] if len(self.graphs) == 1 else None
        self.marks, run.marks = run.marks, []
        self.is_used = True  # since the last time that graphs were too many

    def replay(self, run: Run) -> None:
        """The steps that are in no graph need this call's own `run`."""
        for graph, (plain, steps) in zip(self.graphs, run.program.segments, strict=True):
            if plain:
                run.queue.replay(graph)
            else:
                run.steps(steps)
        run.marks = [*self.marks, *run.marks]


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a call with inputs of these shapes needs: the numbers of its plan; for every result the input whose memory
    it takes (-1: memory of its own), its shape (None: it depends on data) and its bytes; where the addresses of buffers
    come from; and the bytes that a call takes. `key` identifies the sizes of a call."""

    inputs: tuple[Shape, ...]
    sized: Sized
    results: tuple[tuple[int, Shape | None, int], ...]
    table: tuple[tuple[int, int], ...]
    bytes: int
    key: tuple[int, ...]
    notes: int  # bytes of checks that are judged later
    fresh: tuple[tuple[Shape, int], ...] | None  # shapes and bytes, where every result has memory of its own


class GpuBound:
    """A program with its first arguments bound."""

    def __init__(
        self, program: GpuProgram, held: Sequence[GpuBuffer], sizes: Mapping[str, int], account: GpuAccount | None
    ) -> None:
        self._program, self._plan, self._account = program, program.plan, account
        self._held: tuple[GpuBuffer, ...] | None = tuple(held)
        self._sizes = {name: size for name, size in sizes.items() if name in program.entry.symbols}
        self._cancelled = 0
        self._queue: Queue | None = None  # from the first call on
        self._leave: Sequence[weakref.finalize[..., Any]] = ()  # give it back
        self._beside: GpuBound | None = None  # a program on the same queue
        self._arena: GpuBuffer | None = None
        self._notes: GpuBuffer | None = None  # what checks of the last call noted
        self._addresses = [each.address for each in held], [each.address for each in program.constants]
        self._held_blocks = {id(each.block) for each in held}
        self._donated = tuple(place - len(held) for place in program.donated)
        self._written = tuple(at for at in program.reused.values() if at < len(held))  # bound arguments
        self._lent = tuple(i for i in range(len(program.arguments) - len(held)) if i not in self._donated)
        self._reused = program.reused
        self._prepared: dict[tuple[int, ...], Prepared] = {}  # by the identities of the inputs' shapes,
        self._by_sizes: dict[tuple[tuple[int, ...], ...], Prepared] = {}  # and by their sizes
        self._seen: dict[tuple[int, ...], None] = {}  # sizes and addresses of calls,
        self._graphs: dict[tuple[int, ...], Recorded] = {}  # and of those that came again

    def __call__(self, inputs: Arrays, out: Arrays | None = None, stop: Stop | None = None) -> Arrays:
        """A call with the sizes and addresses of earlier ones is one lookup and the launch of a graph. It does not wait
        for its results, except with a `stop`."""
        program, held = self._program, self._held
        if held is None:
            raise RunError("the executable is closed", remedy="compile or load the model again")
        if stop is not None:
            stop.check()
        queue = self._queue or self._choose_queue(held)
        order = queue.order
        queues = order.queues
        if queues.is_shared:
            queues.local.queue = queue  # the copies of this thread follow its calls
        given: Sequence[GpuBuffer] = inputs
        known = self._known_call(inputs)
        if known is None:
            given = self._fit(inputs, held)
            sizes = tuple([each.shape.numbers() for each in given])
            known = self._by_sizes.get(sizes) or self._prepare(held, given, sizes)
        run = None
        with order.turn:
            crossings = queues.crossings
            if self._account is not None:
                self._account.check_call(known.bytes)
            if known.fresh is not None and out is None:
                driver = program.driver
                results: list[Any] = [GpuBuffer(driver, shape, Block(queue, count)) for shape, count in known.fresh]
            else:
                results = self._results(known, held, given, out, queue)
            if known.notes and (self._notes is None or self._notes.nbytes < known.notes):
                self._drop_graphs()
                self._notes = self._new_buffer(known.notes, queue)
            key = (*known.key, *[each.at for each in given], *[each.at if each is not None else 0 for each in results])
            recorded = self._graphs.get(key) if GRAPHS and stop is None else None
            used = None
            if queues.is_shared and self._meets_others(queue, held, given, out):
                used = self._list_blocks(held, given, out)
                begin(queue, *used)
            try:
                if recorded is not None and recorded.whole is not None:
                    queue.replay(recorded.whole)
                    recorded.is_used = True
                    self._plan.marks = recorded.marks
                    done: Arrays = tuple(results)
                else:
                    run = self._new_run(known, given, results, stop, queue)
                    run.notes = 0 if self._notes is None else self._notes.address
                    done = self._run(run, results, key)
            except BaseException:
                end(queue, *(used or self._list_blocks(held, given, out)))
                self._give_away(inputs)  # what began may have overwritten them
                raise
            if used is not None or queues.crossings != crossings:
                end(queue, *(used or self._list_blocks(held, given, out)))
            notes = self._keep_notes(known.notes, queue) if known.notes else None
            last = queue.event() if run is not None and run.waits else None
        if self._donated:
            self._give_away(inputs)
        if run is not None and run.waits:
            self._await(run, last)
        if out is not None:
            for result in done:
                result.guard = None  # of an earlier call
                result.forget_copy()
        before: list[Guard] = []
        for each in given:
            if each.guard is not None:
                before = open_guards(given)
                break
        if before or notes is not None:
            judge = None if notes is None else partial(self._judge, known, notes)
            guard = guard_results(done, judge, before)
            if guard is not None and (stop is not None or not done):
                guard()  # otherwise when a result is read
        return done

    def share_queue(self, other: GpuBound) -> None:
        """Before the first call: calls take turns with those of a program that was called, as they give each other
        buffers."""
        self._beside = other

    def _choose_queue(self, held: Sequence[GpuBuffer]) -> Queue:
        """The queue of all calls. Programs of the same code, or with the same weights, are parts of one model, and
        share a queue: they give each other buffers. The same program, bound again, is to run at the same time."""
        program, loaded = self._program, self._program.loaded
        queues, blocks = program.driver.queues, [each.block for each in (*held, *program.constants)]
        with queues.lock:
            if self._queue is not None:
                return self._queue
            if loaded.queue is not None and loaded.queue in program.queues:
                queue, leave = queues.choose(self)
                if queue is not loaded.queue and loaded.again is not None:
                    self._plan = program.plan.with_functions(loaded.again())
            else:
                preferred = [queue for each in held if each.block.shared for queue in each.block.shared.holders]
                if self._beside is not None and self._beside._queue is not None:
                    preferred = [self._beside._queue, *preferred]
                queue = loaded.join(queues, preferred)
                leave = weakref.finalize(self, loaded.part, queues)
            program.queues.append(queue)
            self._leave = leave, weakref.finalize(self, program.queues.remove, queue)
            for each in self._leave:
                each.atexit = False
            hold(queue, blocks)
            self._queue = queue
            return queue

    def _meets_others(
        self, queue: Queue, held: Sequence[GpuBuffer], given: Sequence[GpuBuffer], out: Arrays | None
    ) -> bool:
        """Whether a call uses memory that other queues use as well. `order.crosses`, without lists of what is used."""
        for each in given:
            if each.block.home is not queue:
                return True
        if self._donated or self._written or out is not None:
            return crosses(queue, *self._list_blocks(held, given, out))
        return False

    def _list_blocks(
        self, held: Sequence[GpuBuffer], given: Sequence[GpuBuffer], out: Arrays | None
    ) -> tuple[list[Block], list[Block]]:
        """The blocks that a call reads and those that it writes, except what belongs to its queue alone."""
        writes = [given[i].block for i in self._donated]
        writes += [held[i].block for i in self._written]
        if out is not None:
            writes += [each.block for each in out]
        return [given[i].block for i in self._lent], writes

    def _new_buffer(self, count: int, queue: Queue) -> GpuBuffer:
        """Bytes for this program alone."""
        return GpuBuffer(self._program.driver, static_shape(ui8, (count,)), Block(queue, count))

    def _keep_notes(self, count: int, queue: Queue) -> GpuBuffer:
        """A copy of a call's notes until they are judged: every call writes them at the same place, so that calls with
        the addresses of earlier ones replay their graphs. The copy has a size that results do not have, and does not
        take the places of those that come again."""
        assert self._notes is not None
        kept = GpuBuffer(self._program.driver, static_shape(ui8, (count,)), Block(queue, count + APART))
        queue.move(kept.address, self._notes.address, count)
        return kept

    def _judge(self, known: Prepared, notes: GpuBuffer) -> None:
        """Raise where a check of a call failed."""
        try:
            self._plan.judge(notes.numpy(), known.sized.numbers)
        except PlanError as error:
            explained = self._explain(error)
            explained.started = True
            raise explained from None

    def _give_away(self, inputs: Arrays) -> None:
        for place in self._donated:
            if isinstance(inputs[place], GpuBuffer):
                inputs[place].give_away()

    def _known_call(self, inputs: Arrays) -> Prepared | None:
        """What is known of a call with buffers of these shapes; None where more must be checked."""
        driver, wanted = self._program.driver, len(self._program.arguments) - len(self._addresses[0])
        if len(inputs) != wanted:
            return None
        for each in inputs:
            if type(each) is not GpuBuffer or each.client is not driver or each.at < 0:
                return None
        if self._donated:
            taken = {id(inputs[i].block) for i in self._donated}
            others = [id(inputs[i].block) for i in self._lent]
            is_apart = taken.isdisjoint(others) and taken.isdisjoint(self._held_blocks)
            if len(taken) < len(self._donated) or not is_apart:
                return None  # one is given twice
        return self._prepared.get(tuple([id(each.shape) for each in inputs]))

    def _new_run(
        self,
        known: Prepared,
        given: Sequence[GpuBuffer],
        results: Sequence[GpuBuffer | None],
        stop: Stop | None,
        queue: Queue,
    ) -> Run:
        """A call that has no graph yet, or that the host has a part in: its loops, its limits of time."""
        cancelled = self._cancelled

        def poll() -> None:
            if self._cancelled != cancelled:
                raise CancelledError("the call was cancelled")
            if stop is not None:
                stop.check()

        run = Run(self._plan, queue, known.sized, self._table(known, given, results, queue), poll)
        run.waits = stop is not None
        if self._arena is not None:
            run.memory, run.memory_bytes = self._arena.address + known.sized.memory, known.sized.memory_bytes
        return run

    def _await(self, run: Run, end: Any) -> None:
        """Wait for the end of a call; other threads may begin theirs meanwhile."""
        try:
            run.await_work(end)
        except SmeltError as error:
            error.started = True
            raise

    def _prepare(
        self, held: Sequence[GpuBuffer], given: Sequence[GpuBuffer], sizes: tuple[tuple[int, ...], ...]
    ) -> Prepared:
        """What depends on the shapes of the inputs alone."""
        program, entry = self._program, self._program.entry
        all_sizes = [*(each.shape.numbers() for each in held), *sizes]
        values = solve_symbols(entry.arguments, entry.names[len(held) :], all_sizes, self._sizes)
        sized = self._find_sized(values)
        places = [self._plan.plan["buffers"][i] for i in self._plan.results]
        shapes = [
            None if place["deferred"] else static_shape(shape.dtype, tuple(sized.numbers[i] for i in place["sizes"]))
            for shape, place in zip(program.results, places, strict=True)
        ]
        results = tuple(
            (self._reused.get(i, -1), shape, 0 if shape is None else sized.numbers[place["bytes"]])
            for i, (shape, place) in enumerate(zip(shapes, places, strict=True))
        )
        kinds = {"argument": 0, "result": len(program.arguments), "constant": len(program.arguments) + len(places)}
        table = [
            (kinds[each["kind"]] + each["index"], 0)
            if each["kind"] in kinds
            else (-1 if each["slot"] is None else -2, 0 if each["slot"] is None else sized.offsets[each["slot"]])
            for each in self._plan.plan["buffers"]
        ]
        inputs = tuple(each.shape for each in given)
        notes = self._plan.note_bytes(sized.numbers)
        taken = sized.arena + self._result_bytes(sized) + notes
        fresh = tuple((shape, count) for at, shape, count in results if at < 0 and shape is not None)
        alone = fresh if len(fresh) == len(results) else None
        made = Prepared(inputs, sized, results, tuple(table), taken, tuple(sized.symbols.values()), notes, alone)
        if len(self._by_sizes) >= MOST_PREPARED:
            self._prepared.clear()
            self._by_sizes.clear()
        self._prepared[tuple(map(id, inputs))] = self._by_sizes[sizes] = made
        return made

    def _fit(self, inputs: Arrays, held: Sequence[GpuBuffer]) -> list[GpuBuffer]:
        entry = self._program.entry
        shapes, names = entry.arguments[len(held) :], entry.names[len(held) :]
        if len(inputs) != len(shapes):
            raise RunError(
                "wrong number of inputs", expected=list(names), got=len(inputs), remedy="one array per input"
            )
        driver, whats = self._program.driver, [f"the input {name!r}" for name in names]
        given = [to_device(driver, *each, self._queue) for each in zip(inputs, shapes, whats, strict=True)]
        times = Counter(id(each.block) for each in (*given, *held)) if entry.donated else {}
        for i in (place - len(held) for place in entry.donated):
            if times[id(given[i].block)] > 1:
                raise RunError(f"the input {names[i]!r} is donated and given twice", remedy=".copy() one of them")
        return given

    def _find_sized(self, values: Mapping[str, int]) -> Sized:
        try:
            return self._plan.compute_sizes([values[name] for name in self._program.entry.symbols])
        except PlanError as error:
            raise self._program.entry.refuse(error.status - 1, values) from None

    def _result_bytes(self, sized: Sized) -> int:
        kinds = self._plan.plan["buffers"]
        return sum(sized.numbers[each["bytes"]] for each in kinds if each["kind"] == "result" and not each["deferred"])

    def _results(
        self,
        known: Prepared,
        held: Sequence[GpuBuffer],
        given: Sequence[GpuBuffer],
        out: Arrays | None,
        queue: Queue,
    ) -> list[GpuBuffer | None]:
        """The result buffers; None for those of data-dependent size."""
        driver, found = self._program.driver, list[GpuBuffer | None]()
        for i, (at, shape, count) in enumerate(known.results):
            if shape is None:
                found.append(None)
            elif at >= 0:
                found.append((held[at] if at < len(held) else given[at - len(held)]).renew())
            elif out is not None:
                check_shape(out[i].shape, shape, f"output buffer {i}")
                found.append(out[i])
            else:
                found.append(GpuBuffer(driver, shape, Block(queue, count)))
        return found

    def _table(
        self, known: Prepared, given: Sequence[GpuBuffer], results: Sequence[GpuBuffer | None], queue: Queue
    ) -> list[int]:
        """The address of every buffer of the plan."""
        sized, arena = known.sized, 0
        if sized.arena:
            if self._arena is None or self._arena.nbytes < sized.arena:
                self._drop_graphs()
                self._arena = self._new_buffer(sized.arena, queue)
            arena = self._arena.address
        there = [*self._addresses[0], *(each.address for each in given)]
        there += [0 if each is None else each.address for each in results]
        there += self._addresses[1]
        return [there[at] if at >= 0 else arena + offset if at == -2 else 0 for at, offset in known.table]

    def _run(self, run: Run, results: Sequence[GpuBuffer | None], key: tuple[int, ...]) -> Arrays:
        """Enqueue the work of a call."""
        try:
            if GRAPHS and self._plan.segments:
                self._replay(run, key)
            else:
                run.start()
            self._plan.marks, self._plan.measured = run.marks, run.values
            return self._finish(run, results)
        except BaseException as error:
            run.free()
            explained = self._explain(error) if isinstance(error, PlanError) else error
            if isinstance(explained, SmeltError):
                explained.started = True
            raise explained from None

    def _replay(self, run: Run, key: tuple[int, ...]) -> None:
        """A call with the sizes and addresses of an earlier one replays a graph, which the second such call records."""
        if key not in self._seen:
            self._seen[key] = None
            run.start()
        else:
            known = self._graphs.get(key) or Recorded(run.queue, run)
            known.replay(run)
            known.is_used, self._graphs[key] = True, known
        if len(self._seen) > MOST_GRAPHS:
            del self._seen[next(iter(self._seen))]
        while len(self._graphs) > MOST_GRAPHS:
            oldest = next(iter(self._graphs))
            recorded = self._graphs.pop(oldest)
            if recorded.is_used:  # it stays for another round
                recorded.is_used, self._graphs[oldest] = False, recorded

    def _drop_graphs(self) -> None:
        """Graphs hold the addresses of the arena."""
        self._graphs.clear()
        self._seen.clear()

    def _explain(self, error: PlanError) -> SmeltError:
        record = (*error.record, 0, 0)
        if error.status == NO_MEMORY:
            return RunError("no memory left", got=f"{record[0]} bytes requested", remedy=SMALLER)
        assert error.status < 2 * UNFIT, "sizes are checked before the call"
        return self._program.entry.explain(error.status, record)

    def _finish(self, run: Run, results: Sequence[GpuBuffer | None]) -> Arrays:
        """The results. Those of data-dependent size are copied out of the memory of the call."""
        program, done = self._program, []
        for shape, result, i in zip(program.results, results, self._plan.results, strict=True):
            if result is None:
                numbers = [run.numbers[size] for size in self._plan.plan["buffers"][i]["sizes"]]
                found = static_shape(shape.dtype, tuple(numbers))
                count = math.prod(numbers) * shape.dtype.numpy.itemsize
                result = GpuBuffer(program.driver, found, Block(run.queue, count))
                if count:
                    run.queue.move(result.address, run.buffers[i], count)
            done.append(result)
        run.free()
        return tuple(done)

    @property
    def memory(self) -> Memory:
        bound = sum(each.nbytes for each in self._held or ())
        arena = self._arena.nbytes if self._arena is not None else 0
        return Memory(bound, self._program.constant_bytes, arena, 0, 1)

    def call_bytes(self, sizes: Mapping[str, int]) -> int:
        known = {name: self._sizes.get(name, sizes.get(name, 1)) for name in self._program.entry.symbols}
        try:
            sized = self._plan.compute_sizes([known[name] for name in self._program.entry.symbols])
        except PlanError:
            return 0  # the call itself says why it refuses these sizes
        return sized.arena + self._result_bytes(sized)

    def cancel(self) -> None:
        self._cancelled += 1

    def trim(self) -> None:
        with self._turn:
            self._arena = self._notes = None
            self._drop_graphs()

    def close(self) -> None:
        with self._turn:
            self._held = self._arena = self._notes = None
            self._drop_graphs()
        for leave in self._leave:
            leave()

    @property
    def _turn(self) -> AbstractContextManager[object]:
        return nullcontext() if self._queue is None else self._queue.order.turn
