"""Run a program on NumPy arrays, op by op, as the specification says: the reference that engines are compared with.

`run(program, args)` runs one process; `run_grid` runs replicas x partitions that exchange data. Processes are
generators that yield an `Exchange` whenever they wait for each other: no threads, and a deadlock is an error.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Generator, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from smelt.dim import Size, solve, substitute
from smelt.dtype import Array
from smelt.errors import RunError, ShapeError, SizeError, SmeltError
from smelt.frozen import Frozen
from smelt.ir.core import Func, Op, Program, Region, Type, Value, used_values, walk
from smelt.ir.lapack import computation
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import Exchange, Process, Receive, Rendezvous, Send
from smelt.ir.ops.random import Source
from smelt.ir.ops.shape import check_room
from smelt.ir.size_checks import Check, size_checks
from smelt.shape import Shape
from smelt.size import assignment
from smelt.stop import Stop

Callback: TypeAlias = Callable[..., Any]
Steps: TypeAlias = Generator[Exchange, Any, tuple[Any, ...]]
Grid: TypeAlias = Sequence[Sequence[tuple[Func, tuple[Any, ...]]]]


def run(
    program: Program,
    args: Sequence[Any] = (),
    *,
    func: str | None = None,
    callbacks: Mapping[str, Callback] | None = None,
    stop: Stop | None = None,
) -> tuple[Any, ...]:
    """Run a function (default: the entry) on arrays; `callbacks` answer custom calls by target name. Before
    each op `stop` is asked.

    Results are arrays, one per result. Tokens are None, tuples are Python tuples.
    """
    entry = program.main if func is None else program.func(func)
    world = World(program, callbacks or {}, stop=stop)
    return run_grid(world, [[(entry, tuple(args))]])[0][0]


@dataclass(slots=True)
class World:
    """What all processes of one run share."""

    program: Program
    callbacks: Mapping[str, Callback]
    infeed: deque[tuple[Any, ...]] = field(default_factory=deque)
    outfeed: list[tuple[Any, ...]] = field(default_factory=list)
    probes: dict[str, list[Array]] = field(default_factory=dict)
    expand: Callable[..., Func] = computation  # a LAPACK call as the function that computes it
    plans: dict[Region, _Plan] = field(default_factory=dict)
    introduced: dict[Func, dict[Op | Region, frozenset[str]]] = field(default_factory=dict)
    random: Source = field(default_factory=Source)  # what `rng` draws from
    stop: Stop | None = None  # when to end

    def parallel(self, grid: Grid, infeed: Sequence[tuple[Any, ...]]) -> list[list[tuple[Any, ...]]]:
        """Run a grid of processes that have a queue of their own and share everything else."""
        return run_grid(replace(self, infeed=deque(infeed)), grid)


class _Plan(Frozen):
    """For each op of a region: how it is evaluated, and the values that no later op uses."""

    steps: tuple[tuple[Op, Any, bool, tuple[Value, ...]], ...]
    elementwise: bool  # all values have one shape; each op makes one, element by element
    symbolic: bool  # some argument's size is a symbol
    checks: Mapping[Op, tuple[Check, ...]]  # what ops ask of sizes


class Frame:
    """One activation of a function in one process: the values it has computed and the sizes it has seen."""

    def __init__(self, world: World, func: Func, process: Process) -> None:
        self.world = world
        self.program = world.program
        self.process = process
        self.func = func
        self.values: dict[Value, Any] = {}
        self.symbols: dict[str, int] = {}

    # -- for the ops' `evaluate` --

    def shape(self, type: Type) -> tuple[int, ...]:
        """The sizes of a tensor type as numbers."""
        assert isinstance(type, Shape)
        return type.numbers(self.symbols)

    def lanes(self, region: Region, *args: Array) -> tuple[Array, ...]:
        """Run a region over scalars for every lane at once where its ops allow, else lane by lane."""
        lanes = np.broadcast_shapes(*(arg.shape for arg in args))
        plan = self._plan(region)
        if plan.elementwise:
            self.values.update(zip(region.args, args, strict=True))
            for op, evaluate, _, _ in plan.steps:
                out = evaluate(self, op, *(self.values[operand] for operand in op.operands))
                self.values[op.results[0]] = out
            return tuple(np.broadcast_to(self.values[value], lanes) for value in region.results)
        spread = [np.broadcast_to(arg, lanes) for arg in args]
        types = [value.shape.dtype.numpy for value in region.results]
        results = tuple(np.empty(lanes, dtype) for dtype in types)
        for lane in np.ndindex(lanes):
            for result, value in zip(
                results, self.call(region, *(np.asarray(arg[lane]) for arg in spread)), strict=True
            ):
                result[lane] = value
        return results

    def is_elementwise(self, region: Region) -> bool:
        return self._plan(region).elementwise

    def call(self, region: Region, *args: Any) -> tuple[Any, ...]:
        """Run a region once; nothing inside may wait for another process."""
        steps = self.steps(region, *args)
        try:
            next(steps)
        except StopIteration as stop:
            result: tuple[Any, ...] = stop.value
            return result
        raise RunError(
            "a collective op inside a reduction, sort or scatter body cannot run", where=region.ops[0].location
        )

    def invoke(self, func: Func, *args: Any) -> Steps:
        """Call another function: `results = yield from frame.invoke(func, *args)`."""
        inner = Frame(self.world, func, self.process)
        inner.enter(args)
        return (yield from inner.steps(func.body, *args))

    def steps(self, region: Region, *args: Any) -> Steps:
        """Run a region in this frame: `results = yield from frame.steps(region, *args)`."""
        values = self.values
        values.update(zip(region.args, args, strict=True))
        plan = self._plan(region)
        if plan.symbolic and region is not self.func.body:
            self._learn(region, region.args, args)
        stop = self.world.stop
        for op, evaluate, waits, dead in plan.steps:
            if stop is not None:
                stop.check()
            operands = [values[operand] for operand in op.operands]
            try:
                checks = plan.checks.get(op)
                if checks is not None:
                    self._check_sizes(op, checks)
                if waits:  # never inside errstate: processes take turns, and its state would leak from one to another
                    out = yield from evaluate(self, op, *operands)
                else:
                    with np.errstate(all="ignore"):
                        out = evaluate(self, op, *operands)
                if len(op.results) == 1 and not isinstance(out, tuple):
                    out = (out,)
                self._keep(op, out)
                if checks is not None:
                    self._check_sizes(op, checks)
            except SmeltError as error:
                if error.where is None:
                    error.where = op.location
                raise
            except MemoryError as error:
                raise RunError(f"{op.name}: no memory for the result", got=op, where=op.location) from error
            except RecursionError:
                raise
            except Exception as error:  # a bug of ours must not end a process that runs a user's program
                fault = f"{type(error).__name__}: {error}"
                remedy = "this is a bug of smelt: please report it with the program"
                raise RunError(f"{op.name} cannot be computed", got=fault, where=op.location, remedy=remedy) from error
            for value in dead:
                values.pop(value, None)
        return tuple(values[value] for value in region.results)

    # -- keeping the books --

    def enter(self, args: Sequence[Any]) -> None:
        """Check the arguments against the function's types and learn the sizes from them."""
        func = self.func
        if len(args) != len(func.args):
            raise RunError(f"@{func.name}: wrong number of arguments", expected=len(func.args), got=len(args))
        patterns: list[Any] = []
        actual: list[int] = []
        for i, (value, arg) in enumerate(zip(func.args, args, strict=True)):
            if isinstance(value.type, Shape):
                _check_argument(func, i, value.type, arg)
                patterns += value.type.sizes
                actual += arg.shape
        try:
            self.symbols = solve(patterns, actual)
        except ShapeError as error:
            raise ShapeError(f"@{func.name}: {error.message}", expected=error.expected, got=error.got) from None

    def _check_sizes(self, op: Op, checks: Sequence[Check]) -> None:
        """Check what an op requires of sizes, and room for its results; unbound symbols are checked later."""
        for check in checks:
            if check.symbols <= self.symbols.keys() and not check.holds(self.symbols):
                got = assignment({name: self.symbols[name] for name in sorted(check.symbols)})
                raise SizeError(check.why, expected=check.text, got=got, where=op.location)
        for value in op.results:
            if isinstance(value.type, Shape) and value.type.symbols <= self.symbols.keys():
                check_room(op, value.type, value.type.numbers(self.symbols))

    def _keep(self, op: Op, out: Sequence[Any]) -> None:
        assert len(out) == len(op.results), f"{op.name} gave {len(out)} results for {len(op.results)}"
        static = True
        for value, array in zip(op.results, out, strict=True):
            shape = value.type
            if isinstance(shape, Shape):
                assert isinstance(array, np.ndarray | np.generic), f"{op.name} gave a {type(array).__name__}"
                assert array.dtype == shape.dtype.numpy, f"{op.name} gave {array.dtype} for {shape}"
                if shape.is_static:
                    if array.shape != shape.sizes:
                        assumed = any(isinstance(v.type, Shape) and not v.type.is_static for v in op.operands)
                        assert assumed, f"{op.name} gave {array.shape} for {shape}"
                        raise SizeError(
                            f"{op.name}: a size is not what the program promised", expected=shape, got=list(array.shape)
                        )
                else:
                    static = False
                array = np.asarray(array)
            self.values[value] = array
        if not static:
            self._learn(op, op.results, out)

    def _learn(self, owner: Op | Region, values: Sequence[Value], arrays: Sequence[Any]) -> None:
        """Bind the symbols that are introduced here; every other size must be what was proven or assumed."""
        for name in self._introduced_symbols().get(owner, ()):
            self.symbols.pop(name, None)
        patterns: list[Size] = []
        actual: list[int] = []
        for value, array in zip(values, arrays, strict=True):
            if isinstance(value.type, Shape) and not value.type.is_static:
                patterns += [substitute(size, self.symbols) for size in value.type.sizes]
                actual += array.shape
        try:
            self.symbols |= solve(patterns, actual)
        except ShapeError as error:
            name = owner.name if isinstance(owner, Op) else "a region"
            types = [str(value.type) for value in values]
            raise SizeError(f"{name}: a size is not what the program promised", expected=types, got=actual) from error

    def _introduced_symbols(self) -> dict[Op | Region, frozenset[str]]:
        introduced = self.world.introduced.get(self.func)
        if introduced is None:
            introduced = self.world.introduced[self.func] = {}
            seen = set(_symbols(self.func.args))
            for op in walk(self.func.body):
                owners: list[tuple[Op | Region, tuple[Value, ...]]] = [(op, op.results)]
                owners += [(region, region.args) for region in op.regions]
                for owner, values in owners:
                    new = _symbols(values) - seen
                    if new:
                        introduced[owner] = frozenset(new)
                        seen |= new
        return introduced

    def _plan(self, region: Region) -> _Plan:
        plan = self.world.plans.get(region)
        if plan is None:
            plan = self.world.plans[region] = _plan_region(region)
        return plan


def _plan_region(region: Region) -> _Plan:
    own = {value for op in region.ops for value in op.results} - set(region.results)
    steps: list[tuple[Op, Any, bool, tuple[Value, ...]]] = []
    for op in reversed(region.ops):
        used = dict.fromkeys(used_values(op))
        for value in op.results:
            if isinstance(value.type, Shape) and value.type.is_static:
                check_room(op, value.type, value.type.numbers())
        dead = tuple(value for value in (*used, *op.results) if value in own)
        own.difference_update(dead)
        row = OPS[op.name]
        steps.append((op, row.evaluate, inspect.isgeneratorfunction(row.evaluate), dead))
    steps.reverse()
    types = [value.type for value in (*region.args, *region.results, *(r for op in region.ops for r in op.results))]
    shapes = {each.sizes if isinstance(each, Shape) else None for each in types}
    simple = all(OPS[op.name].elementwise and len(op.results) == 1 for op in region.ops)
    symbolic = [op for op in region.ops if _symbols((*op.operands, *op.results))]
    checks = {op: size_checks(op) for op in symbolic}
    return _Plan(tuple(steps), simple and None not in shapes and len(shapes) <= 1, bool(_symbols(region.args)), checks)


def _symbols(values: Sequence[Value]) -> frozenset[str]:
    return frozenset().union(*(value.type.symbols for value in values if isinstance(value.type, Shape)))


def _check_argument(func: Func, index: int, shape: Shape, arg: Any) -> None:
    if not isinstance(arg, np.ndarray):
        raise RunError(f"@{func.name}: argument {index} is no array", expected=shape, got=type(arg).__name__)
    if arg.dtype != shape.dtype.numpy or arg.ndim != shape.rank or (shape.is_static and arg.shape != shape.sizes):
        raise RunError(
            f"@{func.name}: argument {index} does not fit", expected=shape, got=f"{arg.dtype}{list(arg.shape)}"
        )


# ---- several processes ----


def run_grid(world: World, grid: Grid) -> list[list[tuple[Any, ...]]]:
    """Run `grid[replica][partition] = (function, arguments)` until all are done; gives the results in that layout."""
    try:
        with np.errstate(all="ignore"):
            return _run_grid(world, grid)
    except RecursionError:
        raise RunError("calls or regions are nested too deeply", remedy="inline some of them") from None


def _run_grid(world: World, grid: Grid) -> list[list[tuple[Any, ...]]]:
    running: dict[Process, Steps] = {}
    for replica, row in enumerate(grid):
        for partition, (func, args) in enumerate(row):
            process = Process(replica, partition, len(grid), len(row))
            frame = Frame(world, func, process)
            frame.enter(args)
            running[process] = frame.steps(func.body, *args)
    done = take_turns(running)
    return [[done[Process(r, p, len(grid), len(row))] for p in range(len(row))] for r, row in enumerate(grid)]


def take_turns(running: dict[Process, Steps]) -> dict[Process, tuple[Any, ...]]:
    """Let processes go on and exchange what they wait for, until all are done; gives what each returned."""
    inbox: dict[Process, Any] = dict.fromkeys(running)
    waiting: dict[Process, Exchange] = {}
    done: dict[Process, tuple[Any, ...]] = {}
    mail: dict[Hashable, deque[Any]] = {}
    while running:
        for process in [p for p in running if p in inbox]:
            try:
                waiting[process] = running[process].send(inbox.pop(process))
            except StopIteration as stop:
                done[process] = stop.value
                del running[process]
        if running and not _deliver(waiting, inbox, mail):
            stuck = ", ".join(f"{p}: {waiting[p].describe()}" for p in running)
            raise RunError("the processes wait for each other and none can go on", got=stuck)
    return done


def _deliver(waiting: dict[Process, Exchange], inbox: dict[Process, Any], mail: dict[Hashable, deque[Any]]) -> bool:
    """Complete every exchange whose partners are all there; say whether any was."""
    moved = False
    for process, exchange in list(waiting.items()):
        if process not in waiting:
            continue
        match exchange:
            case Send(channel, payload):
                mail.setdefault(channel, deque()).append(payload)
                inbox[process] = None
            case Receive(channel):
                if not mail.get(channel):
                    continue
                inbox[process] = mail[channel].popleft()
            case Rendezvous(key, members, _):
                partners = [waiting.get(member) for member in members]
                if not all(isinstance(other, Rendezvous) and other.key == key for other in partners):
                    continue
                payloads = {member: waiting[member].payload for member in members}  # type: ignore[union-attr]
                for member in members:
                    inbox[member] = payloads
                    del waiting[member]
                moved = True
                continue
        del waiting[process]
        moved = True
    return moved
