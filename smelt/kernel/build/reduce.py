"""Reductions: `reduce` as a value to pull, which is hoisted out of loops where it is invariant, or as a kernel.

A body of one associative function becomes a `Fold` along the innermost axis; any other body runs in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from smelt.dim import Size, ceildiv, floordiv, maximum, minimum, product
from smelt.dtype import DType, f32, i1, i64
from smelt.ir.core import Op, Region
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Amount, Declare, Expr, Fold, Number, Set, Var, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, pull, reshape_index, tensor
from smelt.kernel.tune.schedules import ColumnReduction, KernelKey
from smelt.shape import Shape

Element = Callable[[dict[int, Expr]], Expr]
TALL = 256  # rows per partial total
FEW = 8  # columns up to which reducing by rows does not pay
LONG = 32 << 10  # elements above which a reduction is split on a GPU
PART = 1024  # elements of a part
ASSOCIATIVE = frozenset({"add", "multiply", "maximum", "minimum", "and", "or", "xor"})


def body_function(region: Region) -> str | None:
    """The associative op of a reduction body, if it is a single one on both arguments."""
    if len(region.ops) != 1 or len(region.args) != 2 or region.results != region.ops[0].results:
        return None
    op = region.ops[0]
    name = op.name.partition(".")[2]
    if name not in ASSOCIATIVE or {*op.operands} != {*region.args} or len({arg.type for arg in region.args}) > 1:
        return None
    return name if op.result.type == region.args[0].type and not tensor(op.result).element.is_complex else None


def find_function(op: Op) -> str | None:
    """The associative function of a reduction with one result; None: its body runs in order."""
    if len(op.results) != 1 or not op.attrs["dimensions"] or op.operands[1].type != op.regions[0].args[0].type:
        return None
    return body_function(op.regions[0])


def total_type(dtype: DType) -> DType:
    """The type of totals: narrow floats are added up in f32."""
    return f32 if dtype.is_float and dtype.bits < 32 else dtype


@pull("stablehlo.reduce")
def reduce(nest: Nest, op: Op, result: int, index: Index) -> Expr:
    count = len(op.results)
    inputs, starts = op.operands[:count], op.operands[count:]
    reduced = tuple(op.attrs["dimensions"])
    sizes = tensor(inputs[0]).sizes
    dims = sorted(reduced)
    function = find_function(op)
    if function is None:
        return reduce_in_order(nest, op, index)[result]
    kept = iter(index)
    outer = {d: at for d in range(len(sizes)) if d not in reduced for at in [next(kept)]}
    start = nest.pull(starts[0], ())

    def element(inner: dict[int, Expr]) -> Expr:
        places = {**outer, **inner}
        return nest.pull(inputs[0], tuple(places[d] for d in range(len(sizes))))

    return _fold_axes(nest, function, start, dims, [sizes[d] for d in dims], element)


def _fold_axes(
    nest: Nest, function: str, start: Expr, dims: list[int], sizes: Sequence[Size], element: Element
) -> Expr:
    """A fold along the last axis, with serial loops around it where there are several."""
    if len(dims) == 1:
        return nest.fold(function, start, sizes[0], lambda var: element({dims[0]: var}))
    dtype = start.dtype
    with nest.inner() as scope:
        total = nest.var(dtype, stem="total")
        nest.places[total] = scope
        with nest.loops(sizes[:-1], "ordered") as vars:
            places: dict[int, Expr] = dict(zip(dims[:-1], vars, strict=True))
            nothing = identity(function, dtype)
            part = nest.fold(function, nothing, sizes[-1], lambda var: element({**places, dims[-1]: var}))
            nest.emit(Set(total, nest.apply(function, nest.keep(total), part, dtype=dtype)))
    home = nest.outermost_scope_of(scope, start)
    home.statements += [Declare(total, start), *scope.statements]
    nest.places[total] = home
    return total


def is_column_reduction(op: Op) -> bool:
    """Whether the last axis stays, so that rows can be accumulated into a row of totals (column reduction)."""
    reduced, sizes = op.attrs["dimensions"], tensor(op.operands[0]).sizes
    if not reduced or not sizes or len(sizes) - 1 in reduced or find_function(op) is None:
        return False
    return not (isinstance(sizes[-1], int) and sizes[-1] < FEW)


@dataclass(slots=True)
class Columns:
    """A column reduction: rows of elements at an index of the axes in `held`. The order of additions is that of parts
    of `TALL` rows, then of as many parts, then of what is left; the initial value comes last."""

    nest: Nest
    op: Op

    @property
    def function(self) -> str:
        found = find_function(self.op)
        assert found is not None
        return found

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tensor(self.op.operands[0]).sizes

    @property
    def reduced(self) -> list[int]:
        return sorted(self.op.attrs["dimensions"])

    @property
    def outer(self) -> list[int]:
        return [d for d in range(len(self.sizes) - 1) if d not in self.reduced]

    @property
    def held(self) -> list[Size]:
        return [self.sizes[d] for d in self.outer]

    @property
    def rows(self) -> Size:
        return product([self.sizes[d] for d in self.reduced])

    @property
    def columns(self) -> Size:
        return self.sizes[-1]

    @property
    def kind(self) -> DType:
        return total_type(tensor(self.op.result).element)

    @property
    def nothing(self) -> Number:
        """What a total begins with."""
        return identity(self.function, self.kind)

    def element(self, at: Sequence[Expr], row: Expr, column: Expr) -> Expr:
        inner = reshape_index(self.nest, (row,), (self.rows,), [self.sizes[d] for d in self.reduced])
        places = dict(zip((*self.outer, *self.reduced), (*at, *inner), strict=True))
        found = self.nest.pull(self.op.operands[0], (*(places[d] for d in range(len(self.sizes) - 1)), column))
        return self.nest.convert(found, self.kind)

    def combine(self, total: Expr, more: Expr) -> Expr:
        return self.nest.apply(self.function, total, more, dtype=self.kind)

    def accumulate(self, total: Var, more: Expr) -> None:
        self.nest.emit(Set(total, self.combine(self.nest.keep(total), more)))

    def room(self, parts: Size) -> int:
        """A buffer for the totals of parts."""
        return self.nest.scratch(Shape.of(self.kind, (*self.held, parts, self.columns)))

    def part(self, at: Sequence[Expr], part: Expr, column: Expr, parts: Size) -> Expr:
        """The place of a part's total."""
        return flat((*at, part, column), (*self.held, parts, self.columns))

    def finish(self, target: int, at: Sequence[Expr], column: Expr, total: Expr) -> None:
        """Store the total of a column."""
        nest, result = self.nest, self.op.result
        start = nest.convert(nest.pull(self.op.operands[1], ()), self.kind)
        whole = nest.convert(self.combine(start, total), tensor(result).element)
        nest.store(target, nest.offset(result, (*at, column)), whole)

    def finish_parts(self, target: int, room: int, parts: Size) -> None:
        """The totals of all parts, in order: a thread for each column."""
        nest, kind = self.nest, self.kind
        groups = ceildiv(parts, TALL)
        with nest.loops((*self.held, self.columns)) as (*at, column):
            total = nest.declare(kind, self.nothing)
            with nest.loop(groups, "ordered") as group:
                first = nest.let(scale(group, TALL))
                count = nest.apply("minimum", Number(TALL), nest.let(add(parts, scale(first, -1))), dtype=i64)
                some = nest.declare(kind, self.nothing)
                with nest.loop(count, "ordered") as part:
                    place = self.part(at, add(first, part), column, parts)
                    self.accumulate(some, nest.read(nest.buffer(room), place, kind))
                self.accumulate(total, nest.keep(some))
            self.finish(target, at, column, nest.keep(total))


def reduce_columns(nest: Nest, op: Op, target: int) -> None:
    """Partial totals of a fixed number of rows, on all cores; then their totals."""
    found = Columns(nest, op)
    held, rows, columns, kind = found.held, found.rows, found.columns, found.kind
    parts = maximum(ceildiv(rows, TALL), 1)
    width = tensor(op.result).element.numpy.itemsize
    key = KernelKey.of("column_reduction", outer=product(held), rows=rows, columns=columns, bytes=width)
    wide = nest.choose_schedule(key, ColumnReduction).columns
    room = None if parts == 1 else found.room(parts)
    with nest.loops((*held, parts, ceildiv(columns, wide))) as (*at, part, block):
        first, begin = nest.let(scale(block, wide)), nest.let(scale(part, TALL))
        used = nest.apply("minimum", Number(wide), nest.let(add(columns, scale(first, -1))), dtype=i64)
        count = nest.apply("minimum", Number(TALL), nest.let(add(rows, scale(begin, -1))), dtype=i64)
        totals = nest.tile("totals", kind, wide)
        with nest.loop(used, "lane") as j:
            nest.write(totals, j, found.nothing)
        with nest.loop(count, "ordered") as turn:
            row = nest.let(add(begin, turn))
            with nest.loop(used, "lane") as j:
                element = found.element(at, row, add(first, j))
                nest.write(totals, j, found.combine(nest.read(totals, j, kind), element))
        with nest.loop(used, "lane") as j:
            total, column = nest.read(totals, j, kind), add(first, j)
            if room is None:
                found.finish(target, at, column, total)
            else:
                nest.store(room, found.part(at, part, column, parts), total)
    if room is not None:
        found.finish_parts(target, room, parts)


@contextmanager
def loops_as_one(nest: Nest, extents: Sequence[Size]) -> Iterator[list[Expr]]:
    """Nested loops; on a GPU as one, so that no reduction is hoisted between them, whose block would run the rest."""
    if nest.target.kind != "simt":
        with nest.loops(extents) as index:
            yield list(index)
        return
    with nest.loops((product(extents),)) as at:
        yield [nest.let(each) for each in reshape_index(nest, at, (product(extents),), extents)]


def is_long_reduction(op: Op) -> bool:
    """Whether a GPU splits a reduction into parts, which depends on its length alone: a block would be busy for long
    with each result. Where the length is dynamic, that of everything to one number is, if it is long then."""
    if op.name != "stablehlo.reduce" or find_function(op) is None or is_column_reduction(op):
        return False
    sizes = tensor(op.operands[0]).sizes
    length = product([sizes[d] for d in op.attrs["dimensions"]])
    return length > LONG if isinstance(length, int) else not tensor(op.result).sizes


def reduce_long(nest: Nest, op: Op, target: int) -> None:
    """The results of parts of the last axis, then those of parts of these, until few are left."""
    sizes, dtype, function = tensor(op.operands[0]).sizes, tensor(op.result).element, find_function(op)
    assert function is not None
    kind, nothing = total_type(dtype), identity(function, total_type(dtype))
    reduced = sorted(op.attrs["dimensions"])
    kept, (*outer, axis) = [d for d in range(len(sizes)) if d not in reduced], reduced
    around, held = [sizes[d] for d in kept], [sizes[d] for d in outer]
    length = product([sizes[d] for d in reduced])
    here = 1 if isinstance(length, int) else minimum(floordiv(length, LONG + 1), 1)  # 0 where it is not long

    def pull_input(places: dict[int, Expr]) -> Expr:
        return nest.pull(op.operands[0], tuple(places[d] for d in range(len(sizes))))

    def element(at: Sequence[Expr], i: Expr) -> Expr:
        return nest.convert(pull_input(dict(zip((*kept, *outer, axis), (*at, i), strict=True))), kind)

    def read(room: int, parts: Size, at: Sequence[Expr], i: Expr) -> Expr:
        return nest.read(nest.buffer(room), flat((*at, i), (*around, parts)), kind)

    room, count = reduce_parts(nest, function, kind, [*around, *held], sizes[axis], element, here)
    parts, is_first = product([*held, count]), True
    while parts > PART if isinstance(parts, int) else is_first:
        room, parts = reduce_parts(nest, function, kind, around, parts, partial(read, room, parts))
        is_first = False
    with nest.loops(around) as index:
        total = nest.fold(function, nothing, parts, partial(read, room, parts, index))
        start = nest.pull(op.operands[1], ())
        whole = nest.convert(nest.apply(function, nest.convert(start, kind), total, dtype=kind), dtype)
        if here != 1:  # there are no parts, or none of these
            short = [sizes[reduced[0]] * (1 - here), *(sizes[d] for d in reduced[1:])]
            plain = _fold_axes(nest, function, start, reduced, short, pull_input)
            is_long = nest.apply("NE", Amount(here), Number(0), dtype=i1)
            whole = nest.apply("select", is_long, whole, plain, dtype=dtype)
        nest.store(target, nest.offset(op.result, index), whole)


def reduce_parts(
    nest: Nest,
    function: str,
    kind: DType,
    around: Sequence[Size],
    length: Size,
    element: Callable[[Sequence[Expr], Expr], Expr],
    here: Size = 1,
) -> tuple[int, Size]:
    """(A buffer with the results of parts of rows, how many each row has). `here`: 0 where there are none."""
    parts = ceildiv(length, PART) * here
    room = nest.scratch(Shape.of(kind, (*around, parts)))
    with loops_as_one(nest, (*around, parts)) as (*at, part):
        first = nest.let(scale(part, PART))
        count: Expr = Amount(PART)
        if not isinstance(length, int) or length % PART:
            count = nest.apply("minimum", Number(PART), nest.let(add(length, scale(first, -1))), dtype=i64)
        total = nest.var(kind, stem="total")
        with nest.inner() as scope:
            i = nest.var(i64, PART, "at")
            nest.places[i] = scope
            term = element(at, add(first, i))
        nest.emit(Fold(i, count, tuple(scope.statements), term, total, function, identity(function, kind)))
        nest.places[total] = nest.scope
        nest.store(room, flat((*at, part), (*around, parts)), total)
    return room, parts


def reduce_in_order(nest: Nest, op: Op, index: Index) -> tuple[Var, ...]:
    """Any body and any number of inputs, sequentially."""
    count = len(op.results)
    inputs, starts = op.operands[:count], op.operands[count:]
    body, reduced = op.regions[0], sorted(op.attrs["dimensions"])
    sizes = tensor(inputs[0]).sizes
    kinds = [tensor(arg).element for arg in body.args[:count]]
    totals = tuple(
        nest.declare(kind, nest.convert(nest.pull(start, ()), kind)) for kind, start in zip(kinds, starts, strict=True)
    )
    with nest.loops([sizes[d] for d in reduced], "ordered") as vars:
        kept = iter(index)
        inner = dict(zip(reduced, vars, strict=True))
        place = tuple(inner[d] if d in inner else next(kept) for d in range(len(sizes)))
        items = [nest.convert(nest.pull(value, place), kind) for value, kind in zip(inputs, kinds, strict=True)]
        results = nest.inline(body, [*map(nest.keep, totals), *items])
        held = [nest.keep(result) for result in results]
        for total, result in zip(totals, held, strict=True):
            nest.emit(Set(total, result))
    for value, total in zip(op.results, totals, strict=True):
        nest.pulled[value, index] = total
    return totals


def sum_over(nest: Nest, dtype: DType, extents: list[Size], term: Callable[[tuple[Expr, ...]], Expr]) -> Expr:
    """The sum of a term over nested loops: a fold along the last one, the others around it in order."""
    if not extents:
        return term(())
    if dtype.is_complex:
        total = nest.declare(dtype, Number(0, dtype))
        with nest.loops(extents, "ordered") as vars:
            nest.emit(Set(total, nest.apply("add", nest.keep(total), term(vars), dtype=dtype)))
        return total
    zero = identity("add", dtype)
    if len(extents) == 1:
        return nest.fold("add", zero, extents[0], lambda var: term((var,)))
    total = nest.declare(dtype, zero)
    with nest.loops(extents[:-1], "ordered") as vars:
        part = nest.fold("add", zero, extents[-1], lambda var: term((*vars, var)))
        nest.emit(Set(total, nest.apply("add", nest.keep(total), part, dtype=dtype)))
    return total
