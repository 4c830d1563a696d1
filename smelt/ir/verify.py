"""Checking a finished program: every op against the op table, every value defined before use, every call resolved.

`verify(program)` raises `VerifyError` at the first violation and returns the equalities of sizes that the program takes
for granted; `verify_all` lists every violation. Readers call it on what they read, tests on what passes made.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from smelt.dim import Size, minimum, symbols
from smelt.errors import SmeltError, VerifyError
from smelt.ir.build import settle
from smelt.ir.core import Func, FuncType, Op, Program, Region, Tuple, Type, Value, walk
from smelt.ir.ops import definition_of
from smelt.ir.ops.definition import UNKNOWN, Call, Scope
from smelt.ir.ops.signature import bare_symbol
from smelt.shape import Shape
from smelt.theory import Fact, atoms_in

SIZED_BY_DATA = frozenset(
    f"{dialect}.{name}"
    for dialect in ("stablehlo", "chlo")
    for name in (
        "dynamic_broadcast_in_dim",
        "dynamic_conv",
        "dynamic_gather",
        "dynamic_iota",
        "dynamic_pad",
        "dynamic_reshape",
        "real_dynamic_slice",
    )
)
CALLING_KINDS = ("symbol", "array of symbol", "array of array of symbol")


def verify(program: Program) -> list[str]:
    """The assumed facts as text; raises on the first violation."""
    facts = [f"{a} == {b} ({why})" for a, b, why in assumptions(program)]
    return list(dict.fromkeys([*facts, *dynamic_broadcasts(program)]))


def dynamic_broadcasts(program: Program) -> Iterator[str]:
    """Dynamic dimensions that are broadcast to others: each is 1 or the same, which no equality says."""
    for have, wanted in _broadcast_sizes(program):
        what = as_upper_bound(have, wanted) or f"{have} == {wanted} or {have} == 1"
        yield f"{what} (stablehlo.broadcast_in_dim: a dynamic dimension is repeated or kept)"


def assumes_broadcasts(program: Program) -> bool:
    """Whether dynamic dimensions are assumed to be equal where one of them could be 1."""
    return any(as_upper_bound(have, wanted) is None for have, wanted in _broadcast_sizes(program))


def _broadcast_sizes(program: Program) -> Iterator[tuple[Size, Size]]:
    """A dynamic dimension of an operand and the other size that it is broadcast to."""
    for op in (op for func in program.funcs.values() for op in walk(func.body)):
        if op.name == "stablehlo.broadcast_in_dim":
            sizes = op.results[0].shape.sizes
            for have, dim in zip(op.operands[0].shape.sizes, op.attrs["broadcast_dimensions"], strict=True):
                if not isinstance(have, int) and have != sizes[dim]:
                    yield have, sizes[dim]


def as_upper_bound(have: Size, wanted: Size) -> Fact | None:
    """`n <= 512` for `min(n, 512) == n`, whether or not 1 would do as well."""
    for limit in (arg for atom in atoms_in(have) if atom.op == "min" for arg in atom.args):
        if isinstance(limit, int) and limit > 1 and minimum(wanted, limit) == have:
            return Fact("<=", wanted, limit)
    return None


def assumptions(program: Program) -> list[tuple[Size, Size, str]]:
    """The equalities of sizes that a program assumes, and why; raises on the first violation."""
    check = _Check(program, keep_going=False)
    check.program()
    return check.assumed


def verify_all(program: Program) -> list[SmeltError]:
    """Every violation, in the program's order; empty for a valid program."""
    check = _Check(program, keep_going=True)
    check.program()
    return check.errors


def callees(op: Op) -> Iterator[str]:
    """The functions that an op names in its attributes."""
    for attr in definition_of(op.name, op.location).attrs:
        if attr.kind.name in CALLING_KINDS and attr.name in op.attrs:
            pending = [op.attrs[attr.name]]
            while pending:
                item = pending.pop()
                if isinstance(item, str):
                    yield item
                else:
                    pending += reversed(item)


@dataclass(slots=True)
class _Level:
    """A region being walked: where it stands, and what it has defined so far."""

    region: Region
    owner: Op | None
    ops: Iterator[Op]
    defined: list[Value] = field(default_factory=list)
    pending: Op | None = None  # the op whose regions are being walked
    regions: Iterator[Region] = field(default_factory=lambda: iter(()))


class _Check:
    def __init__(self, program: Program, keep_going: bool) -> None:
        self.source = program
        self.keep_going = keep_going
        self.errors: list[SmeltError] = []
        self.assumed: list[tuple[Size, Size, str]] = []
        self.signatures: Mapping[str, FuncType] = {name: func.type for name, func in program.funcs.items()}
        self.seen: set[Value] = set()  # every value defined anywhere: a second definition is an error
        self.visible: set[Value] = set()
        self.scope = Scope()
        self.known: set[str] = set()
        self.named: frozenset[str] = frozenset()

    def report(self, error: SmeltError) -> None:
        if not self.keep_going:
            raise error
        self.errors.append(error)

    def program(self) -> None:
        for name, func in self.source.funcs.items():
            if name != func.name:
                self.report(VerifyError("a function is listed under another name", expected=func.name, got=name))
            self.func(func)
        self.recursion()

    # -- one function --

    def func(self, func: Func) -> None:
        self.named = _types_symbols(_all_types(func))
        self.scope = Scope(self.named)
        self.known = set(_types_symbols(value.type for value in func.args))
        self.visible = set()
        stack = [self.enter(func.body, None)]
        while stack:
            level = stack[-1]
            inner = next(level.regions, None)
            if inner is not None:
                stack.append(self.enter(inner, level.pending))
                continue
            if level.pending is not None:
                self.finish(level, level.pending)
                level.pending = None
            op = next(level.ops, None)
            if op is None:
                self.leave(level, func)
                stack.pop()
                continue
            for i, operand in enumerate(op.operands):
                self.use(operand, op, f"operand {i}")
            level.pending, level.regions = op, iter(op.regions)

    def enter(self, region: Region, owner: Op | None) -> _Level:
        level = _Level(region, owner, iter(region.ops))
        for arg in region.args:
            self.define(arg, level, owner)
            self.known |= _types_symbols([arg.type])
            if UNKNOWN in _sizes(arg.type):
                self.report(VerifyError("a size of an argument is not known", got=arg.type, where=_where(owner)))
        return level

    def leave(self, level: _Level, func: Func) -> None:
        what = f"@{func.name}" if level.owner is None else f"a region of {level.owner.name}"
        for i, value in enumerate(level.region.results):
            self.use(value, level.owner, f"result {i} of {what}")
        self.visible.difference_update(level.defined)

    def define(self, value: Value, level: _Level, op: Op | None) -> None:
        if value in self.seen:
            self.report(VerifyError(f"%{value.name or value.index} is defined twice", got=value.type, where=_where(op)))
        self.seen.add(value)
        self.visible.add(value)
        level.defined.append(value)

    def use(self, value: Value, op: Op | None, what: str) -> None:
        if value in self.visible:
            return
        why = "outside the region that defines it" if value in self.seen else "before it is defined"
        name = value.name or (value.op.name if value.op else f"arg{value.index}")
        message = f"{op.name + ': ' if op else ''}{what} is used {why}"
        got = f"%{name} : {value.type}"
        self.report(VerifyError(message, expected="a value defined earlier", got=got, where=_where(op)))

    def finish(self, level: _Level, op: Op) -> None:
        """All regions of an op are in order: now the op itself."""
        before = len(self.scope.equalities)
        try:
            self.infer(op)
            self.keep_assumptions(op, before)
        except SmeltError as error:
            if error.where is None:
                error.where = op.location
            self.report(error)
        for i, value in enumerate(op.results):
            if value.op is not op or value.index != i:
                self.report(
                    VerifyError(f"{op.name}: result {i} belongs to another op", got=value.op, where=op.location)
                )
            self.define(value, level, op)
            self.known |= _types_symbols([value.type])

    def infer(self, op: Op) -> None:
        definition = definition_of(op.name, op.location)
        declared = [value.type for value in op.results]
        call = Call(
            op.name,
            op.operands,
            op.attrs,
            op.regions,
            declared,
            scope=self.scope,
            location=op.location,
            signatures=self.signatures,
        )
        definition.check_counts(call)
        settle(call, definition.infer(call))
        if any(UNKNOWN in _sizes(type) for type in declared):
            call.fail("", "a result size is not known", expected="a number or a formula", got=declared)
        sizes = [size for type in declared for size in _sizes(type)]
        bare = {bare_symbol(size) for size in sizes}
        for name in sorted(_types_symbols(declared) - self.known - {each for each in bare if each is not None}):
            call.fail("", f"the symbol {name} is not known here", expected=sorted(self.known), got=declared)

    def keep_assumptions(self, op: Op, before: int) -> None:
        """Symbols that inference made up say nothing; symbols that nothing else binds may not be equated."""
        for (a, b), why in islice(self.scope.equalities.items(), before, None):
            mentioned = symbols(a) | symbols(b)
            if not mentioned <= self.named:
                continue
            introduced = _types_symbols(value.type for value in op.results) if op.name in SIZED_BY_DATA else frozenset()
            unknown = sorted(mentioned - self.known - introduced)
            if unknown:
                raise VerifyError(
                    f"{op.name}: the symbol {unknown[0]} is not known here", expected=f"{a} == {b}", where=op.location
                )
            self.assumed.append((a, b, why))

    # -- calls --

    def recursion(self) -> None:
        """No function calls itself, directly or through others."""
        calls = {name: self.calls_of(func) for name, func in self.source.funcs.items()}
        done: set[str] = set()
        for start in calls:
            path = {} if start in done else {start: iter(calls[start])}
            while path:
                last = next(reversed(path))
                name = next(path[last], None)
                if name is None:
                    del path[last]
                    done.add(last)
                elif name in path:
                    self.report_cycle([*path], name)
                elif name in calls and name not in done:
                    path[name] = iter(calls[name])

    def report_cycle(self, path: list[str], name: str) -> None:
        way = " -> ".join(f"@{each}" for each in [*path[path.index(name) :], name])
        where = self.source.funcs[name].location
        self.report(VerifyError(f"@{name} calls itself", expected="no recursion", got=way, where=where))

    def calls_of(self, func: Func) -> list[str]:
        names: dict[str, None] = {}
        for op in walk(func.body):
            try:
                names |= dict.fromkeys(callees(op))
            except SmeltError:  # an unknown op: reported already
                continue
        return list(names)


def _where(op: Op | None) -> object:
    return None if op is None else op.location


def _all_types(func: Func) -> Iterator[Type]:
    for value in func.args:
        yield value.type
    for op in walk(func.body):
        for value in op.results:
            yield value.type
        for region in op.regions:
            for value in region.args:
                yield value.type


def _types_symbols(types: Iterable[Type]) -> frozenset[str]:
    found: set[str] = set()
    for type in types:
        if isinstance(type, Shape):
            if not type.is_static:
                found |= type.symbols
        elif isinstance(type, Tuple):
            found |= _types_symbols(type.types)
    return frozenset(found)


def _sizes(type: Type) -> tuple[Size, ...]:
    return type.sizes if isinstance(type, Shape) else ()
