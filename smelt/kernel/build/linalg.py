"""Linear algebra besides GEMM: `cholesky`, `triangular_solve`, `einsum` and `chlo.ragged_dot` (grouped GEMM).

Registered in `sinks.SINKS`. Factors and solutions are computed in f64 and rounded once. The matrices of a batch run in
parallel, the rows of a matrix in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from smelt.dim import Size
from smelt.dtype import DType, c128, f64, i1, i64
from smelt.ir.core import Op
from smelt.ir.ops.linear import einsum_labels, ragged_mode, ragged_prefix
from smelt.kernel.build.gemm import accumulator
from smelt.kernel.build.reduce import sum_over
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.fold import identity
from smelt.kernel.loops.grammar import Expr, Fold, Number, Set, add, scale
from smelt.kernel.loops.nest import Index, Nest, flat, tensor, unsupported
from smelt.shape import Shape


def wide(element: DType) -> DType:
    """The type to compute in."""
    return c128 if element.is_complex else f64


def _conjugate(nest: Nest, x: Expr) -> Expr:
    return nest.apply("conj", x) if x.dtype.is_complex else x


class _Scratch:
    """A scratch buffer, read and written by index. Its content changes, so loads are not moved."""

    def __init__(self, nest: Nest, element: DType, sizes: Sequence[Size]) -> None:
        self.nest, self.element, self.sizes = nest, element, sizes
        self.number = nest.scratch(Shape.of(element, sizes))

    def load(self, index: Index) -> Expr:
        return self.nest.read(self.nest.buffer(self.number), flat(index, self.sizes), self.element)

    def store(self, index: Index, value: Expr) -> None:
        self.nest.store(self.number, flat(index, self.sizes), value)


def _sum(nest: Nest, dtype: DType, extent: Expr, term: Callable[[Expr], Expr]) -> Expr:
    """A sum whose extent depends on outer loops, at this point."""
    if dtype.is_complex:
        total = nest.declare(dtype, Number(0, dtype))
        with nest.loop(extent, "ordered") as at:
            nest.emit(Set(total, nest.keep(nest.apply("add", nest.keep(total), term(at)))))
        return nest.keep(total)
    result = nest.var(dtype, stem="total")
    with nest.inner() as scope:
        var = nest.var(i64, None, "at")
        nest.places[var] = scope
        value = term(var)
    nest.emit(Fold(var, extent, tuple(scope.statements), value, result, "add", identity("add", dtype)))
    nest.places[result] = nest.scope
    return result


# ---- cholesky ----


@sink("stablehlo.cholesky")
def cholesky(nest: Nest, op: Op, output: Output) -> None:
    """Cholesky–Banachiewicz, row by row."""
    a, lower = op.operands[0], op.attrs["lower"]
    element, sizes = tensor(a).element, tensor(a).sizes
    kind, size = wide(element), sizes[-1]
    factor = _Scratch(nest, kind, sizes)
    with nest.loops(sizes[:-2]) as batch, nest.loop(size, "ordered") as i:

        def source(j: Expr) -> Expr:
            if lower:
                return nest.convert(nest.pull(a, (*batch, i, j)), kind)
            return _conjugate(nest, nest.convert(nest.pull(a, (*batch, j, i)), kind))

        def rest(j: Expr) -> Expr:
            def term(k: Expr) -> Expr:
                row = _conjugate(nest, factor.load((*batch, j, k)))
                return nest.apply("multiply", factor.load((*batch, i, k)), row)

            return nest.apply("subtract", source(j), _sum(nest, kind, j, term))

        with nest.loop(i, "ordered") as j:
            factor.store((*batch, i, j), nest.apply("divide", rest(j), factor.load((*batch, j, j))))
        square = rest(i)
        pivot = nest.apply("sqrt", nest.apply("real", square, dtype=f64) if kind.is_complex else square)
        factor.store((*batch, i, i), nest.convert(pivot, kind))
    with nest.loops(sizes) as index:
        *outer, row, column = index
        place = index if lower else (*outer, column, row)
        inside = nest.apply("GE", place[-2], place[-1], dtype=i1)
        value = nest.choose(
            inside, lambda: nest.convert(factor.load(place), element), lambda: Number(0, element), element
        )
        if not lower:
            value = _conjugate(nest, nest.keep(value))
        nest.store(output.targets[0], flat(index, sizes), value)


# ---- triangular_solve ----


@sink("stablehlo.triangular_solve")
def triangular_solve(nest: Nest, op: Op, output: Output) -> None:
    """The matrix is copied so that forward substitution applies; then each column of b is solved."""
    a, b = op.operands
    left, sizes = op.attrs["left_side"], tensor(b).sizes
    element, size = tensor(b).element, tensor(a).sizes[-1]
    columns = sizes[-1] if left else sizes[-2]
    kind = wide(element)
    turned = (op.attrs["transpose_a"] != "NO_TRANSPOSE") != (not left)  # x @ m == b is m^T @ x^T == b^T
    forward = op.attrs["lower"] != turned

    def place(i: Expr) -> Expr:
        return i if forward else add(scale(i, -1), size - 1)

    matrix = _Scratch(nest, kind, tensor(a).sizes)
    solved = _Scratch(nest, kind, (*sizes[:-2], columns, size))
    with nest.loops(tensor(a).sizes) as (*batch, i, k):
        at = (place(k), place(i)) if turned else (place(i), place(k))
        entry = nest.convert(nest.pull(a, (*batch, *at)), kind)
        matrix.store((*batch, i, k), _conjugate(nest, entry) if op.attrs["transpose_a"] == "ADJOINT" else entry)
    with nest.loops((*sizes[:-2], columns)) as (*batch, column), nest.loop(size, "ordered") as i:
        right = nest.pull(b, (*batch, place(i), column) if left else (*batch, column, place(i)))

        def term(k: Expr) -> Expr:
            return nest.apply("multiply", matrix.load((*batch, i, k)), solved.load((*batch, column, k)))

        rest = nest.apply("subtract", nest.convert(right, kind), _sum(nest, kind, i, term))
        if not op.attrs["unit_diagonal"]:
            rest = nest.apply("divide", rest, matrix.load((*batch, i, i)))
        solved.store((*batch, column, i), rest)
    with nest.loops(sizes) as index:
        *batch, row, column = index
        held = (*batch, column, place(row)) if left else (*batch, row, place(column))
        nest.store(output.targets[0], flat(index, sizes), nest.convert(solved.load(held), element))


# ---- einsum ----


@sink("stablehlo.einsum", "stablehlo.unary_einsum", anchor=True)
def einsum(nest: Nest, op: Op, output: Output) -> None:
    """The sum over every label that the result does not name."""
    shapes = [tensor(operand) for operand in op.operands]
    terms, names = einsum_labels(op.attrs["einsum_config"], [shape.rank for shape in shapes])
    sizes = {
        label: size
        for labels, shape in zip(terms, shapes, strict=True)
        for label, size in zip(labels, shape.sizes, strict=True)
    }
    kind = accumulator([shape.element for shape in shapes], tensor(op.result).element)
    inner = [label for label in sizes if label not in names]
    with nest.loops([sizes[label] for label in names]) as outer:
        places: dict[str, Expr] = dict(zip(names, outer, strict=True))

        def term(vars: tuple[Expr, ...]) -> Expr:
            at = {**places, **dict(zip(inner, vars, strict=True))}
            factors = [
                nest.convert(nest.pull(operand, tuple(at[label] for label in labels)), kind)
                for operand, labels in zip(op.operands, terms, strict=True)
            ]
            return factors[0] if len(factors) == 1 else nest.apply("multiply", *factors)

        total = sum_over(nest, kind, [sizes[label] for label in inner], term)
        output.finish(nest, op, outer, nest.convert(total, tensor(op.result).element))


# ---- ragged_dot ----


@sink("chlo.ragged_dot")
def ragged_dot(nest: Nest, op: Op, output: Output) -> None:
    match ragged_mode(op.attrs["ragged_dot_dimension_numbers"]):
        case "contracting":
            _ragged_contracting(nest, op, output)
        case "free":
            _ragged_free(nest, op, output)
        case _:
            raise unsupported(op, "of batches")  # `passes.lower` turns it into a dot_general


class _Ragged:
    """The axes of a ragged dot and the bounds of its groups."""

    def __init__(self, nest: Nest, op: Op) -> None:
        self.nest, self.op = nest, op
        self.dims = op.attrs["ragged_dot_dimension_numbers"]
        self.lhs, self.rhs, self.groups = (tensor(operand) for operand in op.operands)
        self.element = tensor(op.result).element
        self.kind = accumulator([self.lhs.element, self.rhs.element], self.element)
        dims = self.dims
        self.batch = list(zip(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions, strict=True))
        self.contracting = list(zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True))
        taken = [{pair[side] for pair in (*self.batch, *self.contracting)} for side in (0, 1)]
        self.left = [d for d in range(self.lhs.rank) if d not in taken[0]]
        self.right = [d for d in range(self.rhs.rank) if d not in taken[1] and d not in dims.rhs_group_dimensions]
        self.ragged = dims.lhs_ragged_dimensions[0]
        self.prefix = ragged_prefix(self.lhs.rank, dims) if self.groups.rank > 1 else []

    def size(self, outer: dict[int, Expr], group: Expr) -> Expr:
        """The size of a group, for the batch index `outer`."""
        index = (*(outer[d] for d in self.prefix), group)
        return self.nest.convert(self.nest.pull(self.op.operands[2], index), i64)

    def product(self, a: dict[int, Expr], b: dict[int, Expr]) -> Expr:
        nest, (lhs, rhs) = self.nest, self.op.operands[:2]
        x = nest.convert(nest.pull(lhs, tuple(a[d] for d in range(self.lhs.rank))), self.kind)
        y = nest.convert(nest.pull(rhs, tuple(b[d] for d in range(self.rhs.rank))), self.kind)
        return nest.apply("multiply", x, y)


def _ragged_free(nest: Nest, op: Op, output: Output) -> None:
    """The group of an lhs row selects the slice of rhs; rows past all groups give zeros."""
    r = _Ragged(nest, op)
    sizes = tensor(op.result).sizes
    count = len(r.batch) + len(r.left)
    with nest.loops(sizes[:count]) as rows:
        a = dict(zip([*(x for x, _ in r.batch), *r.left], rows, strict=True))
        position = a[r.ragged]
        group, end = nest.declare(i64, Number(-1)), nest.declare(i64, Number(0))
        with nest.loop(r.groups.sizes[-1], "ordered") as g:
            begin = nest.keep(end)
            nest.emit(Set(end, add(begin, r.size(a, g))))
            inside = nest.both(nest.apply("GE", position, begin, dtype=i1), nest.less(position, nest.keep(end)))
            with nest.guard(nest.keep(inside)):
                nest.emit(Set(group, g))
        chosen = nest.keep(group)
        belongs = nest.keep(nest.apply("GE", chosen, Number(0), dtype=i1))
        with nest.loops(sizes[count:]) as columns:
            b = {y: a[x] for x, y in r.batch} | dict(zip(r.right, columns, strict=True))
            b[r.dims.rhs_group_dimensions[0]] = chosen

            def term(inner: tuple[Expr, ...]) -> Expr:
                left = a | {x: at for (x, _), at in zip(r.contracting, inner, strict=True)}
                return r.product(left, b | {y: at for (_, y), at in zip(r.contracting, inner, strict=True)})

            def total() -> Expr:
                depth = [r.lhs.sizes[x] for x, _ in r.contracting]
                return nest.convert(sum_over(nest, r.kind, depth, term), r.element)

            value = nest.choose(belongs, total, lambda: Number(0, r.element), r.element)
            nest.store(output.targets[0], flat((*rows, *columns), sizes), value)


def _ragged_contracting(nest: Nest, op: Op, output: Output) -> None:
    """Each group sums over its own range of the ragged axis."""
    r = _Ragged(nest, op)
    sizes = tensor(op.result).sizes
    others = [(x, y) for x, y in r.contracting if x != r.ragged]
    partner = dict(r.contracting)[r.ragged]
    with nest.loops(sizes) as index:
        group, *rest = index
        places = iter(rest)
        a = {x: next(places) for x, _ in r.batch}
        b = {y: a[x] for x, y in r.batch}
        a |= {d: next(places) for d in r.left}
        b |= {d: next(places) for d in r.right}
        total = nest.declare(r.kind, identity("add", r.kind))
        with nest.loops([r.lhs.sizes[x] for x, _ in others], "ordered") as inner:
            left = a | {x: at for (x, _), at in zip(others, inner, strict=True)}
            right = b | {y: at for (_, y), at in zip(others, inner, strict=True)}
            begin, end = _group_bounds(r, left, group)

            def term(at: Expr) -> Expr:
                place = nest.let(add(begin, at))
                return r.product(left | {r.ragged: place}, right | {partner: place})

            part = _sum(nest, r.kind, nest.let(add(end, scale(begin, -1))), term)
            nest.emit(Set(total, nest.keep(nest.apply("add", nest.keep(total), part))))
        nest.store(output.targets[0], flat(index, sizes), nest.convert(nest.keep(total), r.element))


def _group_bounds(r: _Ragged, outer: dict[int, Expr], group: Expr) -> tuple[Expr, Expr]:
    """[begin, end) of a group on the ragged axis."""
    nest, size = r.nest, r.lhs.sizes[r.ragged]
    begin = nest.declare(i64, Number(0))
    with nest.loop(group, "ordered") as g:
        nest.emit(Set(begin, add(nest.keep(begin), r.size(outer, g))))
    first = nest.keep(begin)
    low = nest.clamp(first, size)
    return low, nest.apply("maximum", low, nest.clamp(nest.let(add(first, r.size(outer, group))), size))
