"""A kernel under construction: scopes of statements, and values pulled into them.

`Nest.pull(value, index)` gives an element of a value: a load where the value is materialised, else the result of its
op's rule in `PULLS`. Every result gets a name in the outermost scope where it is valid: common subexpressions are
computed once, and loop invariants (also whole reductions) are hoisted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TypeVar

from smelt.dim import Size, divide_exact, product
from smelt.dtype import DType, i1, i64
from smelt.errors import UnsupportedError
from smelt.frozen import Frozen
from smelt.ir.core import Op, Region, Value
from smelt.kernel.loops.grammar import (
    Amount,
    Apply,
    Convert,
    Declare,
    Expr,
    Fold,
    For,
    If,
    Let,
    Level,
    Load,
    Number,
    Place,
    Set,
    Stmt,
    Store,
    Tile,
    Var,
    While,
    add,
    reads_memory,
    scale,
    split,
    used_variables,
    variables,
)
from smelt.kernel.tune.schedules import (
    Blocked,
    Blocking,
    ExpandDepthwise,
    KernelKey,
    Lookup,
    RowBands,
    Schedule,
    blocking_of,
    default_schedule,
    no_schedule,
)
from smelt.kernel.tune.tunables import Tunables
from smelt.shape import Shape
from smelt.target import BASELINE, Target

DEEP = 64  # ops of a body that may wait for one another
C = TypeVar("C", bound=Schedule)
Index = tuple[Expr, ...]
Pull = Callable[["Nest", Op, int, Index], Expr]

PULLS: dict[str, Pull] = {}


def pull(*names: str) -> Callable[[Pull], Pull]:
    """Register the rule that computes one element of an op's result from elements of its operands."""

    def register(rule: Pull) -> Pull:
        for name in names:
            PULLS[name] = rule
        return rule

    return register


class SplitLoopError(Exception):
    """Raised while a kernel is written: split the loop over `var`; the inner one has `inner` iterations."""

    def __init__(self, var: Var, inner: Size) -> None:
        super().__init__(var.name)
        self.var = var
        self.inner = inner


@dataclass(slots=True, eq=False)
class Scope:
    """A sequence of statements. `fence`: loads must not be hoisted out of it (a guard protects them)."""

    parent: Scope | None
    depth: int
    fence: bool = False
    statements: list[Stmt] = field(default_factory=list)
    names: dict[Expr, Var] = field(default_factory=dict)


class View(Frozen):
    """The elements of a value inside a larger buffer: at `offset` + the sum of index * stride."""

    offset: Size
    strides: tuple[Size, ...]

    def at(self, index: Index) -> Expr:
        return add(*(scale(at, stride) for at, stride in zip(index, self.strides, strict=True)), self.offset)

    def reshape(self, sizes: Sequence[Size], target: Sequence[Size]) -> View | None:
        """The same elements in another shape, if that has strides."""
        strides: list[Size] = []
        for ours, theirs in groups(sizes, target):
            axes = [d for d in ours if sizes[d] != 1]
            if [sizes[d] for d in axes] == [target[d] for d in theirs if target[d] != 1]:
                held = iter([self.strides[d] for d in axes])
                strides += [0 if target[d] == 1 else next(held) for d in theirs]
                continue
            if any(self.strides[a] != self.strides[b] * sizes[b] for a, b in pairwise(axes)):
                return None
            step: Size = self.strides[axes[-1]] if axes else 0
            inner: list[Size] = []
            for d in reversed(theirs):
                inner.append(step)
                step = step * target[d]
            strides += reversed(inner)
        return View(self.offset, tuple(strides))


class Expansion(Frozen):
    """The feature map [batch, y, x, channel] of a fused expand + depthwise kernel: a GEMM and elementwise ops compute
    `last`, which is padded with one number."""

    dot: Op
    last: Value
    edge: Value | None
    before: tuple[int, int]  # rows and pixels of padding
    inside: frozenset[Op]  # ops without other users


@dataclass(slots=True)
class Nest:
    """One kernel for a target. `stored`: the program's buffer of each materialised value; `views`: its elements there,
    if the buffer is larger. `buffers`: those that the kernel uses."""

    stored: Mapping[Value, int]
    target: Target = BASELINE
    buffers: list[int] = field(default_factory=list)
    scope: Scope = field(default_factory=lambda: Scope(None, 0))
    places: dict[Var, Scope] = field(default_factory=dict)  # the scope of each variable
    values: dict[Value, Expr] = field(default_factory=dict)  # arguments of a region whose body is being written
    pulled: dict[tuple[Value, Index], Expr] = field(default_factory=dict)
    covered: dict[Op, None] = field(default_factory=dict)
    splittable: dict[Var, None] = field(default_factory=dict)
    serial: int = 0
    temporary: Callable[[Shape], int] | None = None  # allocates a buffer of the program
    views: Mapping[Value, View] = field(default_factory=dict)
    expanded: Mapping[Value, Expansion] = field(default_factory=dict)  # feature maps that the kernel computes in bands
    scratches: list[int] = field(default_factory=list)  # buffers of this kernel alone
    schedules: Lookup = no_schedule
    chosen: dict[KernelKey, Schedule] = field(default_factory=dict)  # by the kernel's builders
    tunables: Tunables | None = None  # block sizes are set at run time

    # -- names and scopes --

    def var(self, dtype: DType = i64, extent: Size | None = None, stem: str = "v") -> Var:
        self.serial += 1
        return Var(f"{stem}{self.serial}", dtype, extent)

    def buffer(self, number: int) -> int:
        """The kernel's own number of a buffer of the program."""
        if number not in self.buffers:
            self.buffers.append(number)
        return self.buffers.index(number)

    def scratch(self, shape: Shape) -> int:
        """A buffer of the program that only this kernel uses."""
        assert self.temporary is not None, "a kernel of this kind has no memory of its own"
        self.scratches.append(self.temporary(shape))
        return self.scratches[-1]

    def choose_schedule(self, key: KernelKey, kind: type[C]) -> C:
        """The schedule of a kernel: tuned, or the default."""
        found = self.schedules(key)
        chosen = found if isinstance(found, kind) else default_schedule(key)
        assert isinstance(chosen, kind), "every key has a default of its kind"
        self.chosen[key] = chosen
        return chosen

    def blocking(self, key: KernelKey, schedule: Blocked) -> Blocking:
        """The block sizes of a schedule; symbols where they are set at run time."""
        return blocking_of(key, schedule) if self.tunables is None else self.tunables.blocking(key)

    def bands(self, key: KernelKey, schedule: ExpandDepthwise) -> RowBands:
        """The same for fused expand + depthwise."""
        return RowBands.of(key, schedule) if self.tunables is None else self.tunables.bands(key)

    def emit(self, statement: Stmt) -> None:
        self.scope.statements.append(statement)

    def outermost_scope(self, expr: Expr) -> Scope:
        """The outermost scope where an expression is valid."""
        depth = max((self.places[var].depth for var in variables(expr)), default=0)
        guarded = reads_memory(expr)
        scope = self.scope
        while scope.depth > depth and scope.parent is not None and not (guarded and scope.fence):
            scope = scope.parent
        return scope

    def let(self, expr: Expr, extent: Size | None = None) -> Expr:
        """A name for an expression; the same one for the same expression. `extent`: it is in [0, extent)."""
        if isinstance(expr, Var | Number | Amount):
            return expr
        scope: Scope | None = self.scope
        while scope is not None:
            if expr in scope.names:
                return scope.names[expr]
            scope = scope.parent
        outermost = self.outermost_scope(expr)
        var = self.var(expr.dtype, extent)
        outermost.statements.append(Let(var, expr))
        outermost.names[expr] = var
        self.places[var] = outermost
        return var

    def declare(self, dtype: DType, value: Expr) -> Var:
        """A mutable variable in this scope."""
        var = self.var(dtype)
        self.places[var] = self.scope
        self.emit(Declare(var, value))
        return var

    def visible(self, expr: Expr) -> bool:
        """Whether all variables of an expression are in scope."""
        for var in variables(expr):
            place, scope = self.places[var], self.scope
            while scope.depth > place.depth and scope.parent is not None:
                scope = scope.parent
            if scope is not place:
                return False
        return True

    def keep(self, expr: Expr) -> Expr:
        """The current value of an expression whose variables may change later."""
        if isinstance(expr, Number):
            return expr
        var = self.var(expr.dtype)
        self.places[var] = self.scope
        self.emit(Let(var, expr))
        return var

    # -- tiles --

    def tile(self, stem: str, dtype: DType, count: int) -> str:
        """The name of a new tile."""
        name = self.var(dtype, stem=stem).name
        self.emit(Tile(name, dtype, count))
        return name

    def read(self, array: int | str, index: Expr, dtype: DType) -> Expr:
        """The current value of an element of a tile, or of a buffer of the kernel, which may change later."""
        return self.keep(Load(Place(array, index), dtype))

    def write(self, array: int | str, index: Expr, value: Expr) -> None:
        self.emit(Store(Place(array, index), value))

    # -- scopes --

    @contextmanager
    def inner(self, *, fence: bool = False) -> Iterator[Scope]:
        """An inner scope; the caller emits its statements."""
        outer = self.scope
        self.scope = Scope(outer, outer.depth + 1, fence)
        try:
            yield self.scope
        finally:
            self.scope = outer

    @contextmanager
    def guard(self, condition: Expr) -> Iterator[None]:
        """Statements that run if a condition holds."""
        with self.inner(fence=True) as scope:
            yield
        self.emit(If(condition, tuple(scope.statements)))

    @contextmanager
    def loop(
        self,
        extent: Size | Expr,
        level: Level = "serial",
        *,
        splittable: bool = False,
        fence: bool = False,
        most: Size | None = None,
    ) -> Iterator[Var]:
        """A loop. `fence`: it may have no iteration because there is nothing to read, so loads stay inside. `most`: it
        has at most as many."""
        size = extent if isinstance(extent, Size) else None
        var = self.var(i64, most if size is None else size, "at")
        with self.inner(fence=fence) as scope:
            self.places[var] = scope
            if splittable:
                self.splittable[var] = None
            yield var
        self.emit(For(var, Amount(size) if size is not None else extent, tuple(scope.statements), level))  # type: ignore[arg-type]

    @contextmanager
    def loops(
        self, extents: Sequence[Size], level: Level = "serial", *, splittable: bool = False
    ) -> Iterator[tuple[Expr, ...]]:
        """Nested loops, the last one innermost; no loop for an extent of one."""
        if not extents:
            yield ()
        elif extents[0] == 1:
            with self.loops(extents[1:], level, splittable=splittable) as rest:
                yield (Number(0), *rest)
        else:
            with (
                self.loop(extents[0], level, splittable=splittable) as first,
                self.loops(extents[1:], level, splittable=splittable) as rest,
            ):
                yield (first, *rest)

    @contextmanager
    def repeat(self, condition: Callable[[], Expr]) -> Iterator[None]:
        """A while loop; the condition is computed before each iteration."""
        with self.inner(fence=True) as scope:
            goes_on = condition()
            head = tuple(scope.statements)
            yield
        self.emit(While(head, goes_on, tuple(scope.statements[len(head) :])))

    def choose(self, condition: Expr, then: Callable[[], Expr], otherwise: Callable[[], Expr], dtype: DType) -> Expr:
        """One of two values; only the chosen one is computed."""
        result = self.declare(dtype, Number(0, dtype))
        branches = []
        for branch in (then, otherwise):
            with self.inner(fence=True) as scope:
                value = branch()
                self.emit(Set(result, value))
            branches.append(tuple(scope.statements))
        self.emit(If(condition, *branches))
        return result

    # -- values --

    def pull(self, value: Value, index: Index) -> Expr:
        """An element of a value."""
        bound = self.values.get(value)
        if bound is not None:
            return bound
        key = (value, index)
        known = self.pulled.get(key)
        if known is not None and self.visible(known):
            return known
        shape = tensor(value)
        if value in self.stored:
            found = self.load(value, self.offset(value, index))
        else:
            op = value.op
            assert op is not None, f"an argument of a region of type {shape} has no value"
            rule = PULLS.get(op.name)
            if rule is None:
                raise unsupported(op)
            self.covered[op] = None
            found = rule(self, op, value.index, index)
        self.pulled[key] = found
        return found

    def offset(self, value: Value, index: Index) -> Expr:
        """The offset of an element in the buffer of its value."""
        view = self.views.get(value)
        return flat(index, tensor(value).sizes) if view is None else view.at(index)

    def load(self, value: Value, offset: Expr) -> Expr:
        """A load from the buffer of a materialised value."""
        return self.let(Load(Place(self.buffer(self.stored[value]), offset), tensor(value).element))

    def store(self, number: int, offset: Expr, value: Expr) -> None:
        self.emit(Store(Place(self.buffer(number), offset), value))

    def apply(self, function: str, *args: Expr, dtype: DType | None = None, detail: tuple[int, ...] = ()) -> Expr:
        return self.let(Apply(function, args, dtype or args[0].dtype, detail))

    def convert(self, x: Expr, dtype: DType) -> Expr:
        return x if x.dtype == dtype else self.let(Convert(x, dtype))

    def both(self, *conditions: Expr) -> Expr:
        """All conditions hold."""
        total = conditions[0] if conditions else Number(True, i1)
        for each in conditions[1:]:
            total = self.apply("and", total, each, dtype=i1)
        return total

    def less(self, x: Expr, y: Expr) -> Expr:
        return self.apply("LT", x, y, dtype=i1)

    def clamp(self, x: Expr, high: Size) -> Expr:
        """An index clamped to [0, high]."""
        return self.apply("clamp", Number(0), x, Amount(high), dtype=i64)

    def inline(self, region: Region, args: Sequence[Expr]) -> tuple[Expr, ...]:
        """The results of a region over scalars, for these arguments."""
        values, pulled = self.values, self.pulled
        self.values = values | dict(zip(region.args, args, strict=True))
        self.pulled = {}  # the body's values depend on these arguments
        for value in _used_scalars(region) if len(region.ops) > DEEP else ():
            self.pull(value, ())  # in order: Python's stack is too short for hundreds of ops that wait for operands
        results = tuple(self.pull(value, ()) for value in region.results)
        self.values, self.pulled = values, pulled
        return results

    def fold(self, function: str, start: Expr, extent: Size, value: Callable[[Var], Expr]) -> Expr:
        """A reduction by one associative function, in the outermost scope where it is valid."""
        total = self.var(start.dtype, stem="total")
        with self.inner() as scope:
            var = self.var(i64, extent, "at")
            self.places[var] = scope
            term = value(var)
        outermost = self.outermost_scope_of(scope, start, term)
        outermost.statements.append(Fold(var, Amount(extent), tuple(scope.statements), term, total, function, start))
        self.places[total] = outermost
        return total

    def outermost_scope_of(self, scope: Scope, *more: Expr) -> Scope:
        """The outermost scope where a finished inner scope is valid."""
        used = {*used_variables(scope.statements), *(var for expr in more for var in variables(expr))}
        depth = max((self.places[var].depth for var in used if self.places[var].depth < scope.depth), default=0)
        found = self.scope
        while found.depth > depth and found.parent is not None and not found.fence:
            found = found.parent
        return found


def _used_scalars(region: Region) -> list[Value]:
    """The scalars that the results of a region are computed from, in order."""
    used = set(region.results)
    found = []
    for op in reversed(region.ops):
        if not used.isdisjoint(op.results):
            used.update(op.operands)
            found += [value for value in op.results if value in used and tensor(value).rank == 0]
    return found[::-1]


# ---- shapes and offsets ----


def flat(index: Index, sizes: Sequence[Size]) -> Expr:
    """Row-major offset."""
    offset: Expr = Number(0)
    for at, size in zip(index, sizes, strict=True):
        offset = add(scale(offset, size), at)
    return offset


def reshape_index(nest: Nest, index: Index, sizes: Sequence[Size], target: Sequence[Size]) -> Index:
    """The index into `target` of the element at `index` of `sizes`: the same row-major offset."""
    result: list[Expr] = []
    for ours, theirs in groups(sizes, target):
        offset = flat(tuple(index[d] for d in ours), [sizes[d] for d in ours])
        parts: list[Expr] = []
        for d in reversed(theirs[1:]):
            if isinstance(offset, Var) and offset in nest.splittable and offset.extent is not None:
                if divide_exact(offset.extent, target[d]) is not None and target[d] not in (1, offset.extent):
                    raise SplitLoopError(offset, target[d])
            offset, low = split(offset, target[d])
            parts.append(low)
        if theirs:
            parts.append(offset)
        result += reversed(parts)
    return tuple(result)


def groups(sizes: Sequence[Size], target: Sequence[Size]) -> Iterator[tuple[list[int], list[int]]]:
    """The shortest runs of axes that hold the same elements: ([axes of sizes], [axes of target])."""
    i = j = 0
    while i < len(sizes) or j < len(target):
        ours, theirs = [i] if i < len(sizes) else [], [j] if j < len(target) else []
        i, j = i + len(ours), j + len(theirs)
        while (left := product(sizes[d] for d in ours)) != (right := product(target[d] for d in theirs)):
            grow_ours = i < len(sizes) and (j >= len(target) or _grows(left, right))
            if grow_ours:
                ours.append(i)
                i += 1
            elif j < len(target):
                theirs.append(j)
                j += 1
            elif i < len(sizes):
                ours.append(i)
                i += 1
            else:
                break  # products that are equal only by assumption: one group
        yield ours, theirs


def _grows(left: Size, right: Size) -> bool:
    """Whether the left product must take another axis to reach the right one."""
    if isinstance(left, int) and isinstance(right, int):
        return left < right
    return divide_exact(right, left) is not None if left != 0 else False


def tensor(value: Value) -> Shape:
    shape = value.type
    if not isinstance(shape, Shape) or not isinstance(shape.dtype, DType):
        raise UnsupportedError("the native engine does not support this type", got=shape, remedy="engine='reference'")
    return shape


def unsupported(op: Op, detail: str = "") -> UnsupportedError:
    return UnsupportedError(
        f"the native engine does not support {op.name}{' ' + detail if detail else ''}",
        where=op.location,
        remedy="engine='reference'",
    )
