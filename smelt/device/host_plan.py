"""A plan as plain data (`kernel.emit.plan_json`), run by the host: sizes, checks, loops and branches here,
kernels through a `Queue`.

`PlanProgram` is read once, `Sized` holds what depends on the sizes of a call, `Run` is one call.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, groupby
from typing import Any

import numpy as np

from smelt.abi import FAILED, NO_MEMORY, TOO_LARGE, UNFIT
from smelt.device.driver import Queue
from smelt.dtype import dtype
from smelt.errors import RunError
from smelt.size import Size, evaluate, parse_size, symbols

MOST_BLOCKS = 1 << 20
MOST_SCRATCH = 256 << 20  # bytes of one launch
MOST_BYTES = 1 << 50  # of one buffer of data-dependent size: more is a mistake
LIMIT = 1 << 63
NOT_TAKEN = 0  # what a division by 0 gives: it is in a branch that is not taken
OVERLAP = True  # launches that wait themselves for the one before may begin before it ends
SHORTEST_PAUSE, LONGEST_PAUSE = 20e-6, 1e-3  # seconds between two questions whether the device is done
PREFETCHING = 128  # blocks of a launch that prefetches for a later one
NOTE = 8  # bytes: places of notes are multiples
ALIGN = 256  # bytes: where the memory of launches begins
STRAIGHT = ("launch", "copy", "ensure")  # steps that do not depend on data


class PlanError(Exception):
    """A call ended with a status of `smelt.abi` and a record of numbers."""

    def __init__(self, status: int, record: Sequence[int] = ()) -> None:
        super().__init__(status)
        self.status, self.record = status, tuple(record)


class PlanProgram:
    """A program: its plan, its functions on the device."""

    def __init__(self, plan: Mapping[str, Any], find: Callable[[str], Any]) -> None:
        self.plan = plan
        self.sizes: list[Size] = [each if isinstance(each, int) else parse_size(each) for each in plan["sizes"]]
        # The last data-dependent symbol that each size has; -1: none.
        self.last = [max((int(n[1:]) for n in symbols(size) if n[0] == "m"), default=-1) for size in self.sizes]
        self.functions = {name: find(name) for name in {each["function"] for each in list_launches(plan["steps"])}}
        self._known: dict[tuple[int, ...], Sized] = {}
        # Of the last call, where the plan has timestamps: (step, event before, event behind), and data-dependent sizes.
        self.is_timed: bool = plan.get("timed", False)
        self.marks: list[tuple[int, Any, Any]] = []
        self.measured: Mapping[str, int] = {}

    def with_functions(self, find: Callable[[str], Any]) -> PlanProgram:
        """The same plan with functions of its code, loaded once more."""
        return PlanProgram(self.plan, find)

    @cached_property
    def segments(self) -> tuple[tuple[bool, tuple[Mapping[str, Any], ...]], ...]:
        """The steps in runs: of launches and copies alone, which a graph may hold (True), and of others.

        Empty where sizes depend on data, or where no run is worth a graph. A whole program always is.
        """
        steps = self.plan["steps"]
        if "measure" in _kinds(steps):
            return ()
        runs = tuple((plain, tuple(run)) for plain, run in groupby(steps, is_straight))
        return runs if (len(runs) == 1 and runs[0][0]) or any(plain and len(run) > 1 for plain, run in runs) else ()

    @cached_property
    def later(self) -> tuple[Mapping[str, Any], ...]:
        """The checks of data that are judged when a result is read: the host does not wait for their flags."""
        return tuple(step for step in self.plan["steps"] if step.get("later"))

    def note_layout(self, numbers: Sequence[int]) -> list[list[tuple[int, int, int]]]:
        """What each of these checks notes: buffers (flags, then numbers) with places and bytes in the call's notes."""
        found, at = list[list[tuple[int, int, int]]](), 0
        for step in self.later:
            found.append([])
            for buffer in (step["flags"], *step["numbers"]):
                count = numbers[self.plan["buffers"][buffer]["bytes"]]
                found[-1].append((buffer, at, count))
                at += -(-count // NOTE) * NOTE
        return found

    def note_bytes(self, numbers: Sequence[int]) -> int:
        """The bytes of a call's notes."""
        return max(
            (at + -(-count // NOTE) * NOTE for each in self.note_layout(numbers) for _, at, count in each), default=0
        )

    def judge(self, notes: Any, numbers: Sequence[int]) -> None:
        """Raise PlanError where the notes of a call have a check that failed."""
        for step, ((_, at, count), *others) in zip(self.later, self.note_layout(numbers), strict=True):
            if not notes[at : at + count].all():
                kinds = [dtype(self.plan["buffers"][buffer]["element"]).numpy for buffer, _, _ in others]
                each = zip(kinds, others, strict=True)
                values = [int(notes[first : first + size].view(kind)[0]) for kind, (_, first, size) in each]
                raise PlanError(FAILED + step["check"], values)

    @cached_property
    def results(self) -> tuple[int, ...]:
        """The buffers of the results, in their order."""
        found = [(each["index"], i) for i, each in enumerate(self.plan["buffers"]) if each["kind"] == "result"]
        return tuple(i for _, i in sorted(found))

    def compute_sizes(self, values: Sequence[int]) -> Sized:
        """What a call with these symbols needs. Raises PlanError where a check of sizes fails."""
        key = tuple(values)
        found = self._known.get(key)
        if found is None:
            found = Sized.of(self, key)
            if len(self._known) > 64:
                self._known.clear()
            self._known[key] = found
        return found


def is_straight(step: Mapping[str, Any]) -> bool:
    """Whether a graph may hold a step."""
    return step["do"] in STRAIGHT or bool(step.get("later"))


def _kinds(steps: Sequence[Mapping[str, Any]]) -> set[str]:
    """The kinds of steps and of those inside them."""
    inside = [(*step.get("head", ()), *step.get("body", ()), *chain(*step.get("branches", ()))) for step in steps]
    return {step["do"] for step in steps}.union(*map(_kinds, inside))


def list_launches(steps: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The launches of steps and of those inside them."""
    found: list[Mapping[str, Any]] = []
    for step in steps:
        match step["do"]:
            case "launch":
                found += step["launches"]
            case "repeat":
                found += list_launches(step["head"]) + list_launches(step["body"])
            case "branch":
                found += chain(*map(list_launches, step["branches"]))
    return found


def count_blocks(launch: Mapping[str, Any], numbers: Sequence[int]) -> int:
    """How many blocks a launch gets; 0: there is nothing to do."""
    if launch["single"]:
        return 1
    most: int = launch.get("most", MOST_BLOCKS)
    if launch["scratch"]:
        most = max(1, MOST_SCRATCH // (launch["scratch"] * launch["per_block"]))
    if launch["extent"] is None:
        return min(most, 1024)
    per_block: int = launch["per_block"]
    count: int = -(-numbers[launch["extent"]] // per_block)
    return min(most, max(0, count))


def shared_bytes(launches: Sequence[Mapping[str, Any]], numbers: Sequence[int]) -> int:
    """Bytes that the launches of a kernel share."""
    found = 0
    for one in launches:
        each = one["saved"]
        if one["scratch"]:  # few have some
            each += one["scratch"] * one["per_block"] * count_blocks(one, numbers)
        found = max(found, each)
    return found


@dataclass(frozen=True, slots=True)
class Sized:
    """The numbers of a call: values of symbols, of sizes that are no data's, offsets of slots in its memory, the offset
    of the memory that launches share (not those in loops and branches), and its bytes."""

    symbols: Mapping[str, int]
    numbers: tuple[int, ...]
    offsets: tuple[int, ...]
    memory: int
    memory_bytes: int

    @property
    def arena(self) -> int:
        return self.memory + self.memory_bytes

    @staticmethod
    def of(program: PlanProgram, values: Sequence[int]) -> Sized:
        plan = program.plan
        known = {f"n{i}": value for i, value in enumerate(values)}
        each = zip(program.sizes, program.last, strict=True)
        numbers = tuple(evaluate(size, known, NOT_TAKEN) if last < 0 else 0 for size, last in each)
        for i in plan["entry_checks"]:
            if not _holds(plan["checks"][i], numbers):
                raise PlanError(i + 1)
        if any(abs(number) >= LIMIT for number in numbers):
            raise PlanError(TOO_LARGE)
        offsets, total = [], 0
        for slot in plan["slots"]:
            offsets.append(total)
            total += max(0, *(numbers[size] for size in slot))
        launches = (step["launches"] for step in plan["steps"] if step["do"] == "launch")
        memory = max((shared_bytes(each, numbers) for each in launches), default=0)
        total = -(-total // ALIGN) * ALIGN if memory else total
        if total + memory >= LIMIT:
            raise PlanError(TOO_LARGE)
        return Sized(known, numbers, tuple(offsets), total, memory)


def _holds(check: Sequence[Any], numbers: Sequence[int]) -> bool:
    a, b = numbers[check[0]], numbers[check[2]]
    holds: bool = {"==": a == b, "<=": a <= b, "!=": a != b}[check[1]]
    return holds


@dataclass(slots=True)
class Run:
    """One call. `buffers` are addresses; `poll` raises where the call must end.

    Memory that the call allocates is in `owned`: temporaries, and results of data-dependent size.
    """

    program: PlanProgram
    queue: Queue
    sized: Sized
    buffers: list[int]
    poll: Callable[[], None]
    numbers: list[int] = field(default_factory=list)
    values: dict[str, int] = field(default_factory=dict)
    owned: list[int] = field(default_factory=list)
    held: dict[int, int] = field(default_factory=dict)  # bytes of buffers of data-dependent size
    memory: int = 0  # of launches: saved variables and scratch
    memory_bytes: int = 0
    marks: list[tuple[int, Any, Any]] = field(default_factory=list)
    notes: int = 0  # the address of what checks note that are judged later
    waits: bool = False  # the call waits for its work and polls meanwhile
    follows: bool = False  # the last thing that was done is a launch of this call

    def __post_init__(self) -> None:
        self.numbers = list(self.sized.numbers)
        self.values = dict(self.sized.symbols)

    def start(self) -> None:
        self.steps(self.program.plan["steps"])

    def allocate(self, count: int) -> int:
        address = self.queue.allocate(count)
        self.owned.append(address)
        return address

    def free(self) -> None:
        for address in self.owned:
            self.queue.free(address)
        self.owned = []

    # -- steps --

    def steps(self, steps: Sequence[Mapping[str, Any]]) -> None:
        self.follows = False
        for step in steps:
            self.follows = self.follows and step["do"] == "launch"
            begin = self.queue.event() if self.program.is_timed and "step" in step else None
            match step["do"]:
                case "launch":
                    self.launch(step["launches"])
                case "copy":
                    source, target = self.buffers[step["source"]], self.buffers[step["target"]]
                    count = self.numbers[self.program.plan["buffers"][step["target"]]["bytes"]]
                    if source != target and count:
                        self.queue.move(target, source, count)
                case "repeat":
                    self.repeat(step)
                case "branch":
                    self.steps(step["branches"][self.select(step["selector"], len(step["branches"]))])
                case "require" if step.get("later"):
                    self.note(self.program.later.index(step))
                case "require":
                    self.require(step)
                case "measure":
                    self.measure(step)
                case "ensure":
                    self.ensure(step["checks"])
            if begin is not None:
                self.marks.append((step["step"], begin, self.queue.event()))
            self.poll()

    def launch(self, launches: Sequence[Mapping[str, Any]]) -> None:
        memory = shared_bytes(launches, self.numbers)
        if memory > self.memory_bytes:
            self.memory, self.memory_bytes = self.allocate(memory), memory
        for each in launches:
            blocks = count_blocks(each, self.numbers)
            if blocks:
                arguments = [self.buffers[i] for i in each["buffers"]]
                arguments += [self.numbers[i] for i in each["sizes"]]
                function = self.program.functions[each["function"]]
                if each.get("prefetch") and not each["scratch"]:  # which every block would need
                    blocks = max(blocks, PREFETCHING)  # blocks without iterations only prefetch
                overlap = OVERLAP and self.follows and (bool(each["awaits"]) or each["waits"])
                arguments += [self.memory, *self.next_pieces(each)]
                arguments += [int(overlap and each["ahead"])] if "ahead" in each else []
                self.queue.launch(function, blocks, each["threads"], arguments, each["shared"], overlap=overlap)
                self.follows = True

    def next_pieces(self, launch: Mapping[str, Any]) -> list[int]:
        """Address, number, distance and bytes of the pieces of memory that a launch prefetches for a later one."""
        if not launch.get("prefetches"):
            return []
        buffer, *pieces = launch.get("prefetch", (0, 0, 0, 0))
        return [self.buffers[buffer], *pieces]

    def repeat(self, step: Mapping[str, Any]) -> None:
        while True:
            self.steps(step["head"])
            if not self.fetch(step["flag"], "ui8", 1)[0]:
                return
            self.poll()
            self.steps(step["body"])

    def select(self, selector: int, count: int) -> int:
        if self.program.plan["buffers"][selector]["element"] == "i1":
            return 0 if self.fetch(selector, "ui8", 1)[0] else 1
        chosen = int(self.fetch(selector, "i32", 1)[0])
        return chosen if 0 <= chosen < count else count - 1

    def note(self, number: int) -> None:
        """Copy what a check needs to the notes of the call."""
        for buffer, at, count in self.program.note_layout(self.numbers)[number]:
            if count:
                self.queue.move(self.notes + at, self.buffers[buffer], count)

    def require(self, step: Mapping[str, Any]) -> None:
        sizes = self.program.plan["buffers"][step["flags"]]["sizes"]
        count = int(np.prod([self.numbers[size] for size in sizes], dtype=np.int64))
        if count and not self.fetch(step["flags"], "ui8", count).all():
            raise PlanError(FAILED + step["check"], [self.scalar(each) for each in step["numbers"]])

    def scalar(self, buffer: int) -> int:
        return int(self.fetch(buffer, self.program.plan["buffers"][buffer]["element"], 1)[0])

    def measure(self, step: Mapping[str, Any]) -> None:
        """Define symbols; then compute what depends on them and on no later one: sizes, memory."""
        source, places = step["source"], step["symbols"]
        if isinstance(source, int):
            found = [int(each) for each in self.fetch(source, "i64", len(places))]
        else:
            found = [self.numbers[size] for size in source]
        self.values.update((f"m{at}", value) for at, value in zip(places, found, strict=True))
        for i, last in enumerate(self.program.last):
            if last in places:
                self.numbers[i] = evaluate(self.program.sizes[i], self.values, NOT_TAKEN)
        self.grow(places)

    def grow(self, places: Sequence[int]) -> None:
        """Memory for the buffers whose size is known only now."""
        for i, buffer in enumerate(self.program.plan["buffers"]):
            if not (buffer["deferred"] and max(self.program.last[size] for size in buffer["sizes"]) in places):
                continue
            count = evaluate(self.program.sizes[buffer["bytes"]], self.values, NOT_TAKEN)
            if not 0 <= count <= MOST_BYTES:
                raise PlanError(NO_MEMORY, [count])
            if count > self.held.get(i, -1):
                self.buffers[i], self.held[i] = self.allocate(max(count, 1)), count

    def ensure(self, checks: Sequence[int]) -> None:
        for i in checks:
            check = self.program.plan["checks"][i]
            if not _holds(check, self.numbers):
                raise PlanError(UNFIT + i, [self.numbers[check[0]], self.numbers[check[2]]])

    def fetch(self, buffer: int, element: str, count: int) -> Any:
        """The first elements of a buffer, on the host."""
        array = np.empty(count, np.uint8 if element == "i1" else dtype(element).numpy)
        if self.waits:
            self.await_work()
        self.queue.download(array, self.buffers[buffer])
        return array

    def await_work(self, event: Any = None) -> None:
        """Wait until the device has done what is in front of a mark, with polls: a kernel that runs too long ends the
        call, though not itself."""
        event, pause = event or self.queue.event(), SHORTEST_PAUSE
        while not self.queue.is_done(event):
            try:
                self.poll()
            except RunError as error:
                error.remedy = f"{error.remedy}; the device ends what it has begun, and later calls wait for that"
                raise
            time.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
