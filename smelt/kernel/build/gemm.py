"""GEMM: `smelt.packed_dot` over packed B panels by a register-tile micro-kernel; `dot_general` as scalar loops.

`packed_dot` holds the loops around the micro-kernel (`Mma`): chunks of rows × panels × K-blocks, for every `Form` (f32,
bf16, int8). `conv.py` has the implicit GEMM of convolutions, `relayout.py` packs panels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from smelt.dim import Size, ceildiv, maximum, minimum
from smelt.dtype import DType, f32, f64, i64
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.kernel.build.reduce import sum_over
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import BF16, F32, F32_BF16, F32_F16, INT8, Form
from smelt.kernel.loops.grammar import (
    Affine,
    Amount,
    Chunk,
    Expr,
    Load,
    Mma,
    Number,
    Place,
    Quotient,
    Slice,
    Var,
    add,
    affine,
    scale,
)
from smelt.kernel.loops.nest import Index, Nest, Scope, tensor, unsupported
from smelt.kernel.loops.tensor_tile import TENSOR
from smelt.kernel.tune.schedules import DYNAMIC_ROWS, MIN_CHUNKS, ROWS, Blocking, Gemm, KernelKey, chunk_size, estimate
from smelt.layout import panels as panel_layout
from smelt.target import Target, tile_shape


@sink("stablehlo.dot_general", anchor=True)
def dot_general(nest: Nest, op: Op, output: Output) -> None:
    """Any types and axes, one element at a time."""
    dims = op.attrs["dot_dimension_numbers"]
    lhs, rhs = op.operands
    result = tensor(op.result)
    with nest.loops(result.sizes) as vars:
        left: dict[int, Expr] = {}
        right: dict[int, Expr] = {}
        places = iter(vars)
        for a, b in zip(dims.lhs_batching_dimensions, dims.rhs_batching_dimensions, strict=True):
            left[a] = right[b] = next(places)
        contracting = list(zip(dims.lhs_contracting_dimensions, dims.rhs_contracting_dimensions, strict=True))
        for side, operand, at in ((left, lhs, 0), (right, rhs, 1)):
            for d in range(tensor(operand).rank):
                if d not in side and all(pair[at] != d for pair in contracting):
                    side[d] = next(places)
        kind = accumulator([tensor(lhs).element, tensor(rhs).element], result.element)

        def term(inner: tuple[Expr, ...]) -> Expr:
            a, b = dict(left), dict(right)
            for (x, y), var in zip(contracting, inner, strict=True):
                a[x] = b[y] = var
            first = nest.pull(lhs, tuple(a[d] for d in range(tensor(lhs).rank)))
            second = nest.pull(rhs, tuple(b[d] for d in range(tensor(rhs).rank)))
            return nest.apply("multiply", nest.convert(first, kind), nest.convert(second, kind), dtype=kind)

        total = sum_over(nest, kind, [tensor(lhs).sizes[x] for x, _ in contracting], term)
        output.finish(nest, op, vars, nest.convert(total, result.element))


def accumulator(operands: Sequence[DType], result: DType) -> DType:
    """The accumulator type: at least f32, exact for integers; the sum is rounded once."""
    if result.is_complex:
        return result
    if all(each.kind == "bool" for each in (*operands, result)):
        return result
    if not any(each.is_float for each in operands):
        if result.is_integer:
            return result
        return i64 if result.kind == "bool" or max(each.bits for each in operands) > 16 else f64
    return f64 if any(each.bits == 64 for each in (*operands, result)) else f32


PASS_COLUMNS = 64  # columns of the panels that a chunk of rows passes together
ROW_BLOCKS = {BF16: 384, INT8: 192}  # rows per cache-resident K-block


FORMS = (F32, F32_F16, F32_BF16, BF16, INT8, *TENSOR)


def form_of(op: Op) -> Form | None:
    """The form of a packed product, if there is a micro-kernel for its types and its layout."""
    left, right = map(tensor, op.operands[:2])
    types, line = (left.element, right.element, tensor(op.result).element), right.sizes[-1]
    if not isinstance(line, int):
        return None
    alike = (form for form in FORMS if (form.left, form.right, form.total) == types)
    return next((each for each in alike if op.attrs["layout"] == panel_layout(line // each.k_pack, each.k_pack)), None)


def required_form(op: Op) -> Form:
    form = form_of(op)
    if form is None:
        raise unsupported(op, f"of {tensor(op.operands[0]).element} with the layout {op.attrs['layout']}")
    return form


def contiguous_operands(op: Op) -> tuple[int, ...]:
    """Packed steps of k are adjacent in both operands."""
    form = form_of(op)
    return (1,) if form is None or form.k_pack == 1 else (0, 1)


@sink("smelt.packed_dot", anchor=True, addressed=(0, 1), in_runs=contiguous_operands)
def packed_dot(nest: Nest, op: Op, output: Output) -> None:
    """Loops of a packed GEMM: each K-block of a panel stays cache-resident for a chunk of rows."""
    form = required_form(op)
    lhs, panels = op.operands
    groups, rows, depth = tensor(lhs).sizes
    _, count, _, line = tensor(panels).sizes
    assert isinstance(line, int)
    width = line // form.k_pack
    fits = form.left != f32 or count == 1 or rows_fit(nest.target, rows, depth)
    few = form.left == f32 and count != 1 and may_be_few(nest.target, rows)
    together = 2 if few and fits else 1 if fits else max(1, PASS_COLUMNS // width)
    passes = ceildiv(count, together) if together > 1 else count
    key = KernelKey.of("gemm", groups=groups, rows=rows, depth=depth, panels=passes, width=together * width)
    schedule, blocking = _choose_schedule(nest, key, form)
    chunks, room = count_chunks(rows, blocking.rows, ROWS, groups * passes), blocking.max_rows
    with nest.loops((groups, passes, chunks) if schedule.panels_outer else (groups, chunks, passes)) as (group, *inner):
        number, chunk = inner if schedule.panels_outer else reversed(inner)
        first, used = chunk_bounds(nest, chunk, rows, chunks)
        tile = nest.tile("tile", form.total, together * room * width)
        result = tensor(op.result).sizes[2]
        panels_here = Panels.of(nest, number, (count, together), room, (width, result), form.total)
        multiply(nest, op, tile, (group, first, used), panels_here, blocking.call_rows, form, few=few)
        with nest.loop(used, "ordered") as row, panels_here.each(nest) as (begin, _, columns):
            here = (group, add(first, row))
            columns.store(nest, op, output, tile, add(begin, row), lambda column: (*here, column))


def rows_fit(target: Target, rows: Size, depth: Size) -> bool:
    """Whether a chunk of rows stays in L2 from one panel to the next.

    Else narrow panels are taken together: the rows of a K-block stay there for all, and the chunk is read less often.
    """
    count = min(rows, DYNAMIC_ROWS) if isinstance(rows, int) else DYNAMIC_ROWS
    return 4 * count * estimate(depth) <= target.cache_bytes[1] * 3 // 4


def may_be_few(target: Target, rows: Size) -> bool:
    """Whether there may be so few rows that they pass two panels side by side."""
    few = tile_shape(target).few_rows
    return few > 0 and (not isinstance(rows, int) or rows <= few)


def _choose_schedule(nest: Nest, key: KernelKey, form: Form) -> tuple[Gemm, Blocking]:
    """The tuned schedule of f32 rows; other types have a fixed one."""
    if form.left == f32:
        schedule = nest.choose_schedule(key, Gemm)
        return schedule, nest.blocking(key, schedule)
    count, others, most = ceildiv(key["rows"], ROWS), key["panels"] * key["groups"], ROW_BLOCKS[form]
    if "rows" not in key.dynamic:
        most = ROWS * chunk_size(count, max(1, most // ROWS), others)
    return Gemm(most, ROWS), Blocking(ROWS, most, 1, most)


def count_chunks(count: Size, most: Size, least: int, others: Size) -> Size:
    """The number of chunks of at most `most` rows. With a dynamic number of rows there are more, of at least `least`
    rows each, if `others` (the product of the other parallel loops) is too small for all cores."""
    if isinstance(count, int):
        return ceildiv(count, most)
    return minimum(ceildiv(count, least), maximum(ceildiv(count, most), min_chunks(others)))


def min_chunks(others: Size) -> int:
    """The least number of chunks that keeps all cores busy, next to `others` parallel iterations."""
    return -(-MIN_CHUNKS // max(1, estimate(others)))


def multiply(
    nest: Nest,
    op: Op,
    tile: str,
    rows: tuple[Expr, Expr, Expr],
    panels_here: Panels,
    height: Size,
    form: Form = F32,
    *,
    few: bool = False,
    matrix: Expr | None = None,
) -> None:
    """Rows (group, first, count) × panels, K-block by K-block, into a local tile. `few`: one call takes all panels.
    `matrix`: which one the panels are of, where that is not the group's."""
    lhs, panels = op.operands[:2]
    group, first, used = rows
    depth, shared = tensor(lhs).sizes[2], tensor(panels).sizes[0] == 1
    which = matrix if matrix is not None else Number(0) if shared else group
    with nest.loop(maximum(ceildiv(depth, form.block), 1), "ordered") as block:
        done = nest.let(scale(block, form.block))
        extent = nest.apply("minimum", Number(form.block), nest.let(add(depth, scale(done, -1))), dtype=i64)
        lines = nest.let(scale(block, form.block // form.k_pack))
        with panels_here.all(nest) if few else panels_here.each(nest) as (begin, panel, columns):
            b = panel_slice(nest, op, (which, panel, lines), extent, columns)
            whole = few and isinstance(used, Amount)  # so little work that its estimate must not count a loop
            with row_tiles(nest, used, height, whole=whole) as ((part, parts), above, tall):
                a = row_slice(nest, op, lhs, (group, add(first, above), done), (tall, extent))
                sums = columns.sums(tile, add(begin, above), tall)
                nest.emit(Mma(sums, a, b, form, accumulate=block, prefetch=Chunk(part, parts)))


def chunk_bounds(nest: Nest, number: Expr, count: Size, parts: Size) -> tuple[Expr, Expr]:
    """(first, count) of one of several nearly equal chunks."""
    if parts == 1:
        return Number(0), Amount(count)
    first = nest.let(Quotient(nest.let(scale(number, count)), parts))
    after = nest.let(Quotient(nest.let(scale(add(number, 1), count)), parts))
    return first, nest.let(add(after, scale(first, -1)))


@contextmanager
def row_tiles(
    nest: Nest, rows: Expr, most: Size, *, whole: bool = False
) -> Iterator[tuple[tuple[Expr, Expr], Expr, Expr]]:
    """A loop over nearly equal tiles of at most `most` rows: ((number, count), first row, rows). `whole`: only one."""
    if whole:
        yield (Number(0), Number(1)), Number(0), rows
        return
    parts = nest.let(Quotient(nest.let(add(rows, most - 1)), most))
    with nest.loop(parts, "ordered") as part:
        first, after = (
            nest.let(nest.apply("divide", nest.let(nest.apply("multiply", each, rows, dtype=i64)), parts, dtype=i64))
            for each in (part, nest.let(add(part, 1)))
        )
        yield (part, parts), first, nest.let(add(after, scale(first, -1)))


class Columns(Frozen):
    """The columns of one panel, of which `used` exist. `element`: the accumulator type.

    Of several adjacent `panels` only the last may have fewer; the sums of the next one are `room` rows further on.
    """

    first: Expr
    width: int
    used: Expr
    element: DType = f32
    panels: Expr | None = None
    room: int = 0

    @staticmethod
    def of(nest: Nest, panel: Expr, width: int, count: Size, element: DType = f32) -> Columns:
        first = scale(panel, width)
        if isinstance(count, int) and (count % width == 0 or count < width):
            return Columns(first, width, Number(min(count, width)), element)
        left = nest.let(add(count, scale(first, -1)))
        return Columns(first, width, nest.let(nest.apply("minimum", Number(width), left, dtype=i64)), element)

    def sums(self, tile: str, row: Expr, rows: Expr) -> Slice:
        """Rows of a tile of sums, from `row` on."""
        place, sizes, strides = Place(tile, scale(row, self.width)), (rows, self.used), (Number(self.width), Number(1))
        if self.panels is None:
            return Slice(place, sizes, strides)
        return Slice(place, (self.panels, *sizes), (Number(self.room * self.width), *strides))

    def store(self, nest: Nest, op: Op, output: Output, tile: str, row: Expr, index: Callable[[Expr], Index]) -> None:
        """Store one row of the tile through the epilogue."""
        with nest.loop(self.used, "lane") as j:
            element = nest.read(tile, add(scale(row, self.width), j), self.element)
            output.finish(nest, op, index(add(self.first, j)), element)

    def store_rows(self, nest: Nest, op: Op, output: Output, tile: str, first: tuple[Expr, Expr], rows: Expr) -> None:
        """Store rows of the tile through the epilogue; `first`: the index (group, row) of the first one."""
        with nest.loop(rows, "ordered") as row:
            here = (first[0], add(first[1], row))
            self.store(nest, op, output, tile, row, lambda column: (*here, column))


class Panels(Frozen):
    """Panels that rows pass together, from `first` on. Each has `room` rows of a tile of sums."""

    first: Expr
    count: int | Expr | None  # None: one, without a loop
    room: int
    width: int
    columns: Size  # of the whole result
    element: DType
    only: Columns | None = None

    @staticmethod
    def of(
        nest: Nest, number: Expr, counts: tuple[Size, int], room: int, sizes: tuple[int, Size], element: DType = f32
    ) -> Panels:
        """Those of pass `number`; `counts`: of all panels and of a pass; `sizes`: columns of a panel and of all."""
        (count, together), (width, columns) = counts, sizes
        if together == 1:
            only = Columns.of(nest, number, width, columns, element)
            return Panels(number, None, room, width, columns, element, only)
        first = nest.let(scale(number, together))
        whole = isinstance(count, int) and count % together == 0
        left = Number(together) if whole else nest.let(add(count, scale(first, -1)))
        here = together if whole else nest.let(nest.apply("minimum", Number(together), left, dtype=i64))
        return Panels(first, here, room, width, columns, element)

    @contextmanager
    def each(self, nest: Nest) -> Iterator[tuple[Expr, Expr, Columns]]:
        """A loop over the panels: (first row of its sums in the tile, panel, its columns)."""
        if self.only is not None:
            yield Number(0), self.first, self.only
            return
        assert self.count is not None
        with nest.loop(self.count, "ordered") as at:
            panel = add(self.first, at)
            columns = Columns.of(nest, panel, self.width, self.columns, self.element)
            yield scale(at, self.room), panel, columns

    @contextmanager
    def all(self, nest: Nest) -> Iterator[tuple[Expr, Expr, Columns]]:
        """All of them at once."""
        assert self.count is not None
        last = Columns.of(nest, nest.let(add(self.first, self.count, -1)), self.width, self.columns, self.element)
        count = Number(self.count) if isinstance(self.count, int) else self.count
        yield Number(0), self.first, last.replace(panels=count, room=self.room)


# ---- addresses of operands ----


def row_slice(nest: Nest, op: Op, value: Value, index: Index, sizes: tuple[Expr, Expr]) -> Slice:
    """Rows × steps of a value [group, row, k] from an index on, as [row, tap, k] with one tap."""
    buffer, form, axes = _required_strides(nest, op, value)
    strides = [dict(form.terms).get(axis, 0) for axis in axes]
    start = add(*(scale(at, stride) for at, stride in zip(index, strides, strict=True)), form.constant)
    (rows, extent), (_, row, k) = sizes, strides
    return Slice(Place(buffer, start), (rows, Number(1), extent), (Amount(row), Number(0), Amount(k)))


def panel_slice(nest: Nest, op: Op, index: Index, extent: Expr, columns: Columns) -> Slice:
    """Rows of a packed panel [k, column], or of several [panel, k, column], from an index (group, panel, k) on."""
    panels = op.operands[1]
    place = element_place(nest, op, panels, (*index, Number(0)))
    sizes, strides = (extent, columns.used), (axis_stride(nest, op, panels, 2), Number(1))
    if columns.panels is None:
        return Slice(place, sizes, strides)
    return Slice(place, (columns.panels, *sizes), (axis_stride(nest, op, panels, 1), *strides))


def element_place(nest: Nest, op: Op, value: Value, index: Index) -> Place:
    """The index of an element of a value."""
    buffer, form, axes = _required_strides(nest, op, value)
    steps = dict(form.terms)
    parts = (scale(at, steps.get(axis, 0)) for at, axis in zip(index, axes, strict=True))
    return Place(buffer, add(*parts, form.constant))


def axis_stride(nest: Nest, op: Op, value: Value, axis: int) -> Expr:
    """The stride of an axis."""
    _, form, axes = _required_strides(nest, op, value)
    return Amount(dict(form.terms).get(axes[axis], 0))


def memory_layout(nest: Nest, op: Op, value: Value) -> tuple[int, Size, tuple[Size, ...]]:
    """(buffer, offset of the first element, strides) of a value."""
    buffer, form, axes = _required_strides(nest, op, value)
    steps = dict(form.terms)
    return buffer, form.constant, tuple(steps.get(axis, 0) for axis in axes)


def _required_strides(nest: Nest, op: Op, value: Value) -> tuple[int, Affine, tuple[Var, ...]]:
    found = find_strides(nest, value)
    assert found is not None, f"{op.name}: fuse stores operands that have no strides"
    return found


def find_strides(nest: Nest, value: Value) -> tuple[int, Affine, tuple[Var, ...]] | None:
    """The memory layout of a value: the buffer, and the offset as an affine form of one fresh variable per axis."""
    sizes = tensor(value).sizes
    with nest.inner() as scope:
        axes = tuple(nest.var(i64, size, "axis") for size in sizes)
        for axis in axes:
            nest.places[axis] = scope
        element = nest.pull(value, axes)
        at: Scope | None = scope  # a load that depends on no axis is bound further out
        load: Expr | None = None
        while at is not None and load is None:
            load = next((expr for expr, var in at.names.items() if var is element), None)
            at = at.parent
        if not isinstance(load, Load) or isinstance(load.place.array, str):
            return None
    form = affine(load.place.index)
    plain = all(atom in axes for atom, _ in form.terms)
    return (load.place.array, form, axes) if plain else None
