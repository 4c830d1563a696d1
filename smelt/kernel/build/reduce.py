"""Reductions: `reduce` as a value to pull, which is hoisted out of loops where it is invariant, or as a kernel.

A body of one associative function becomes a `Fold` along the innermost axis; any other body runs in order.
"""

from __future__ import annotations

from collections.abc import Callable

from smelt.dim import Size, ceildiv, maximum, product
from smelt.dtype import DType, i64
from smelt.ir.core import Op, Region
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Declare, Expr, Number, Set, Var, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, pull, reshape_index, tensor
from smelt.kernel.tune.schedules import ColumnReduction, KernelKey
from smelt.shape import Shape

Element = Callable[[dict[int, Expr]], Expr]
TALL = 256  # rows per partial total
FEW = 8  # columns up to which reducing by rows does not pay
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


@pull("stablehlo.reduce")
def reduce(nest: Nest, op: Op, result: int, index: Index) -> Expr:
    count = len(op.results)
    inputs, starts = op.operands[:count], op.operands[count:]
    body, reduced = op.regions[0], tuple(op.attrs["dimensions"])
    sizes = tensor(inputs[0]).sizes
    dims = sorted(reduced)
    function = body_function(body) if count == 1 and dims else None
    if function is None or starts[0].type != body.args[0].type:
        return reduce_in_order(nest, op, index)[result]
    kept = iter(index)
    outer = {d: at for d in range(len(sizes)) if d not in reduced for at in [next(kept)]}
    start = nest.pull(starts[0], ())

    def element(inner: dict[int, Expr]) -> Expr:
        places = {**outer, **inner}
        return nest.pull(inputs[0], tuple(places[d] for d in range(len(sizes))))

    if len(dims) == 1:
        return nest.fold(function, start, sizes[dims[0]], lambda var: element({dims[0]: var}))
    return _nest(nest, op, function, start, dims, element)


def _nest(nest: Nest, op: Op, function: str, start: Expr, dims: list[int], element: Element) -> Expr:
    """Serial loops around a fold along the last axis."""
    sizes = tensor(op.operands[0]).sizes
    dtype = start.dtype
    with nest.inner() as scope:
        total = nest.var(dtype, stem="total")
        nest.places[total] = scope
        with nest.loops([sizes[d] for d in dims[:-1]], "ordered") as vars:
            places: dict[int, Expr] = dict(zip(dims[:-1], vars, strict=True))
            part = nest.fold(
                function,
                identity(function, dtype),
                sizes[dims[-1]],
                lambda var: element({**places, dims[-1]: var}),
            )
            nest.emit(Set(total, nest.apply(function, nest.keep(total), part, dtype=dtype)))
    home = nest.outermost_scope_of(scope, start)
    home.statements += [Declare(total, start), *scope.statements]
    nest.places[total] = home
    return total


def is_column_reduction(op: Op) -> bool:
    """Whether the last axis stays, so that rows can be accumulated into a row of totals (column reduction)."""
    reduced, sizes = op.attrs["dimensions"], tensor(op.operands[0]).sizes
    if len(op.results) != 1 or not reduced or not sizes or len(sizes) - 1 in reduced:
        return False
    dtype = tensor(op.result).element
    plain = body_function(op.regions[0]) is not None and op.operands[1].type == op.regions[0].args[0].type
    return plain and not (dtype.is_float and dtype.bits < 32) and not (isinstance(sizes[-1], int) and sizes[-1] < FEW)


def reduce_columns(nest: Nest, op: Op, target: int) -> None:
    """Partial totals of a fixed number of rows, on all cores; then their totals."""
    inputs, start = op.operands
    sizes, dtype, function = tensor(inputs).sizes, tensor(op.result).element, body_function(op.regions[0])
    assert function is not None
    reduced = sorted(op.attrs["dimensions"])
    outer = [d for d in range(len(sizes) - 1) if d not in reduced]
    columns, rows = sizes[-1], product([sizes[d] for d in reduced])
    parts = maximum(ceildiv(rows, TALL), 1)
    held = [sizes[d] for d in outer]
    key = KernelKey.of("column_reduction", outer=product(held), rows=rows, columns=columns, bytes=dtype.numpy.itemsize)
    wide = nest.choose_schedule(key, ColumnReduction).columns
    room = None if parts == 1 else nest.scratch(Shape.of(dtype, (*held, parts, columns)))
    with nest.loops((*held, parts, ceildiv(columns, wide))) as (*at, part, block):
        first, begin = nest.let(scale(block, wide)), nest.let(scale(part, TALL))
        used = nest.apply("minimum", Number(wide), nest.let(add(columns, scale(first, -1))), dtype=i64)
        count = nest.apply("minimum", Number(TALL), nest.let(add(rows, scale(begin, -1))), dtype=i64)
        totals = nest.tile("totals", dtype, wide)
        with nest.loop(used, "lane") as j:
            nest.write(totals, j, nest.pull(start, ()) if room is None else identity(function, dtype))
        with nest.loop(count, "ordered") as turn:
            row = nest.let(add(begin, turn))
            inner = reshape_index(nest, (row,), (rows,), [sizes[d] for d in reduced])
            places = dict(zip((*outer, *reduced), (*at, *inner), strict=True))
            with nest.loop(used, "lane") as j:
                element = nest.pull(inputs, (*(places[d] for d in range(len(sizes) - 1)), add(first, j)))
                old = nest.read(totals, j, dtype)
                nest.write(totals, j, nest.apply(function, old, element, dtype=dtype))
        with nest.loop(used, "lane") as j:
            total, column = nest.read(totals, j, dtype), add(first, j)
            if room is None:
                nest.store(target, nest.offset(op.result, (*at, column)), total)
            else:
                nest.store(room, flat((*at, part, column), (*held, parts, columns)), total)
    if room is None:
        return
    with nest.loops((*held, columns)) as (*at, column):
        total = nest.declare(dtype, nest.pull(start, ()))
        with nest.loop(parts, "ordered") as part:
            more = nest.read(nest.buffer(room), flat((*at, part, column), (*held, parts, columns)), dtype)
            nest.emit(Set(total, nest.apply(function, nest.keep(total), more, dtype=dtype)))
        nest.store(target, nest.offset(op.result, (*at, column)), nest.keep(total))


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
