"""Program → XLA: one compiled program per combination of sizes, in an LRU cache.

A call runs `SizedProgram`; `Prepare` runs once on the weights. `engine.pjrt` calls it with a client in this process or
in a worker.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, TypeAlias

from smelt.activity import note_compile
from smelt.buffer import sizes_of
from smelt.dim import solve
from smelt.dtype import Array
from smelt.errors import ShapeError, SizeError, UnsupportedError
from smelt.frozen import Frozen
from smelt.guard import guard_results, open_guards
from smelt.ir.core import Func, Op, Program, Region, Value, walk
from smelt.ir.ops.control import is_assertion, require
from smelt.ir.text import print_program
from smelt.passes import pipeline
from smelt.passes.lift_checks import lift_checks
from smelt.passes.lower import SCANS, lower
from smelt.passes.specialise import specialise
from smelt.shape import Shape

Key: TypeAlias = tuple[tuple[int, ...], ...]


class DeviceClient(Protocol):
    """The client's methods that the engine uses, in this process or in a worker."""

    platform: str
    lost: str | None

    @property
    def version(self) -> str: ...
    def put(self, array: Array, shape: Shape, *, shared: bool = False) -> Any: ...
    def hold(self, buffers: Sequence[Any]) -> Any: ...
    def compile(self, text: str, results: Sequence[Shape]) -> Any: ...
    def load(self, data: bytes, results: Sequence[Shape]) -> Any: ...
    def stats(self) -> dict[str, float]: ...


class Compilation(Frozen):
    """One run of XLA's compiler, and its reason."""

    sizes: Mapping[str, int]
    reason: str
    seconds: float


class Check(Frozen):
    """A run-time check, with the values for its message: `count` results from `first` on."""

    op: Op
    first: int
    count: int

    def judge(self, results: Sequence[Any]) -> None:
        arrays = [result.numpy() for result in results[self.first : self.first + self.count]]
        require(self.op, *arrays)


def _lift_checks(program: Program) -> tuple[Program, tuple[Check, ...]]:
    """Turn run-time checks into results that are read after the run: XLA has no checks."""
    lifted, found = lift_checks(program)
    place = len(program.main.results)
    checks = []
    for each in found:
        checks.append(Check(each.op, place, len(each.operands)))
        place += len(each.operands)
    return lifted, tuple(checks)


@dataclass(slots=True)
class SizedProgram:
    """A function, and its compiled programs by sizes."""

    source: Program
    program: Program  # the function with checks as additional results
    checks: tuple[Check, ...]
    client: DeviceClient
    donated: frozenset[int]
    limit: int
    compilations: list[Compilation] = field(default_factory=list)
    kept: OrderedDict[Key, Any] = field(default_factory=OrderedDict)
    dropped: set[Key] = field(default_factory=set)
    latest: Any = None
    lock: Any = field(default_factory=threading.Lock)

    @staticmethod
    def of(program: Program, client: DeviceClient, limit: int, donated: frozenset[int] = frozenset()) -> SizedProgram:
        return SizedProgram(program, *_lift_checks(program), client, donated, limit)

    def start(self, loaded: Any, arguments: Sequence[Any], held: Any = None) -> tuple[Any, ...]:
        """Run on the held buffers and the arguments. A failed check is raised when a result is read; if there is no
        result, it is raised here."""
        results: tuple[Any, ...] = loaded(arguments, held)
        before = open_guards(arguments)
        if not self.checks and not before:
            return results
        own = results[: len(self.source.main.results)]
        guard = guard_results(own, partial(self._judge, results) if self.checks else None, before)
        if guard is not None and not own:
            guard()
        return own

    def _judge(self, results: Sequence[Any]) -> None:
        for check in self.checks:
            check.judge(results)

    @property
    def args(self) -> tuple[Value, ...]:
        return self.program.main.args

    @property
    def is_static(self) -> bool:
        return all(arg.shape.is_static for arg in self.args)

    def find_program(self, key: Key) -> Any:
        """The compiled program for these argument sizes (empty if all sizes are static)."""
        found = self.kept.get(key)
        if found is not None:
            if len(self.kept) > 1:
                with self.lock:
                    self.kept.move_to_end(key)
            return found
        with self.lock:
            found = self.kept.get(key)
            return self._compile(key) if found is None else found

    def values(self, key: Key) -> dict[str, int]:
        if not key:
            return {}
        patterns = [size for arg in self.args for size in arg.shape.sizes]
        try:
            return solve(patterns, [size for sizes in key for size in sizes])
        except ShapeError as error:
            shapes = [str(arg.shape) for arg in self.args]
            raise SizeError(error.message, expected=", ".join(shapes), got=list(key)) from error

    def restore(self, key: Key, blob: bytes) -> None:
        """Add a deserialised program."""
        self._keep(key, self.client.load(blob, self._results(self.values(key))))

    def _results(self, values: Mapping[str, int]) -> list[Shape]:
        results = self.program.main.results
        return [Shape.of(value.shape.dtype, value.shape.numbers(values)) for value in results]

    def _compile(self, key: Key) -> Any:
        values = self.values(key)
        start = time.perf_counter()
        program = lower_scans(specialise(self.program, values))
        _refuse(program)
        text = print_program(_annotate(program, self.donated), export=True)
        results = [value.shape for value in program.main.results]
        made = self.client.compile(text, results)
        seconds = time.perf_counter() - start
        note_compile()
        self.compilations.append(Compilation(values, self._reason(key, values), seconds))
        self._keep(key, made)
        return made

    def _keep(self, key: Key, made: Any) -> None:
        self.kept[key] = self.latest = made
        self.dropped.discard(key)
        if len(self.kept) > self.limit:
            oldest, program = self.kept.popitem(last=False)
            self.dropped.add(oldest)
            program.close()

    def _reason(self, key: Key, values: Mapping[str, int]) -> str:
        if not key:
            return "all sizes are static"
        if key in self.dropped:
            return f"its program was evicted: at most {self.limit} are cached"
        if not self.compilations:
            return "the first call"
        last = self.compilations[-1].sizes
        changed = [f"{name} is {size}, was {last.get(name)}" for name, size in values.items() if size != last.get(name)]
        return "new sizes: " + ", ".join(changed)


class Prepare(Frozen):
    """@prepare, run once on the weights. A weight that is bound unchanged does not go through XLA."""

    source: Program
    computed: SizedProgram  # computes the results that are not arguments
    recipe: tuple[int, ...]  # for each bound value: an argument, or -1 - a computed result

    @staticmethod
    def of(program: Program, client: DeviceClient, limit: int) -> Prepare:
        main = program.main
        computed = list(dict.fromkeys(value for value in main.results if value.op is not None))
        recipe = tuple(value.index if value.op is None else -1 - computed.index(value) for value in main.results)
        body = Region(main.args, main.body.ops, tuple(computed))
        reduced = program.replace(Func("main", body, "public", main.arg_attrs, location=main.location))
        return Prepare(program, SizedProgram.of(reduced, client, limit), recipe)

    def __call__(self, weights: Sequence[Any]) -> list[Any]:
        """Compute the values to bind."""
        made: tuple[Any, ...] = ()
        if self.computed.program.main.results:
            key = () if self.computed.is_static else tuple(sizes_of(each) for each in weights)
            made = self.computed.start(self.computed.find_program(key), weights)
            for value in made[:1] if self.computed.checks else ():
                value.wait()  # raises if a check failed
        return [weights[place] if place >= 0 else made[-1 - place] for place in self.recipe]


def lower_scans(program: Program) -> Program:
    """What was left of scans: running sums and the like, over sizes that are known now."""
    if not any(op.name == "chlo.scan" for func in program.funcs.values() for op in walk(func.body)):
        return program
    return pipeline.per_function(partial(lower, rules=SCANS))(program)


def _refuse(program: Program) -> None:
    """Refuse programs that XLA accepts but computes differently from the specification."""
    for op in (op for func in program.funcs.values() for op in walk(func.body)):
        if is_assertion(op):
            raise UnsupportedError(
                "XLA cannot run a check inside the body of a reduction, or one of dynamic shape inside a loop",
                got=op,
                where=op.location,
                remedy="use engine='native'",
            )
        if op.name == "stablehlo.bitcast_convert":
            kinds = {value.shape.dtype.kind for value in (op.operands[0], op.result)}
            if len(kinds) == 2 and "bool" in kinds:
                raise UnsupportedError("XLA stores booleans in bytes, not in bits", got=op, where=op.location)


def _annotate(program: Program, donated: frozenset[int]) -> Program:
    """The program without argument and result attributes that XLA does not know."""
    main = program.main
    donor: Any = {"jax.buffer_donor": True}
    attrs = tuple(donor if i in donated else {} for i in range(len(main.args)))
    return program.replace(Func("main", main.body, "public", attrs, location=main.location))
