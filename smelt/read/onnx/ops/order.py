"""Operators that sort, and those that keep some elements: their number, which depends on data, is a new symbol."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dim import at_most, product
from smelt.dtype import dtype, i64
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.attributes import ScatterDims
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.ops.control import element_at, inner_graph, while_loop
from smelt.read.onnx.ops.reduce import running
from smelt.read.onnx.registry import Sizes, onnx_op
from smelt.shape import Shape

_KEYS = 8  # columns that one sort compares

# ---- order ----


@onnx_op("TopK", since=11, single=("K",))
def top_k(g: Graph, X: Value, K: Sizes, *, axis: int = -1, largest: int = 1, sorted: int = 1) -> tuple[Value, Value]:
    """Sorted whether asked or not; of equal elements the one with the lower index comes first."""
    place = axis_of(axis, X.shape.rank)
    places = g.iota(i64, X.shape.sizes, place)
    values, indices = sorted_with(g, X, places, place, descending=bool(largest))
    return g.slice_axis(values, place, 0, K[0]), g.slice_axis(indices, place, 0, K[0])


def sorted_with(g: Graph, x: Value, places: Value, axis: int, *, descending: bool) -> tuple[Value, Value]:
    """A stable sort along an axis that takes another tensor along. nan counts as greatest."""

    def before(r: Builder, args: Any) -> Value:
        a, b = (args[1], args[0]) if descending else (args[0], args[1])
        less = r.compare(a, b, comparison_direction="LT")
        if x.shape.element.is_float:
            nan = r.compare(b, b, comparison_direction="NE")
            number = r.compare(a, a, comparison_direction="EQ")
            less = r.or_(less, r.and_(nan, number))
        return less

    values, indices = g.sort((x, places), axis, before)
    return values, indices


@onnx_op("TopK", since=10, single=("K",))
def top_k_10(g: Graph, X: Value, K: Sizes, *, axis: int = -1) -> tuple[Value, Value]:
    return top_k(g, X, K, axis=axis)


@onnx_op("TopK", since=1)
def top_k_1(g: Graph, X: Value, *, k: int, axis: int = -1) -> tuple[Value, Value]:
    return top_k(g, X, (k,), axis=axis)


# ---- results whose size depends on data ----


def keep_where(g: Graph, flags: Value, columns: list[Value]) -> list[Value]:
    """The elements of vectors where a vector of flags is true, in order; their number is a new symbol."""
    rank_key = g.convert(g.unary("not", flags), dtype("i8"))
    ordered = g.sort((rank_key, *columns), 0, _first_less)[1:]
    count = g.reshape(g.sum(g.convert(flags, i64), (0,)), (1,))
    zero, one = (g.const(np.array([n], np.int64), i64) for n in (0, 1))
    kept: list[Value] = []
    for column in ordered:
        # Every column has the same length: the first one's symbol is all of theirs.
        result = None if not kept else Shape.of(column.shape.dtype, kept[0].shape.sizes)
        cut = g.b.real_dynamic_slice(column, zero, count, one, result=result)
        kept.append(cut)
        g.item(cut)
    return kept


@onnx_op("NonZero", since=9)
def non_zero(g: Graph, X: Value) -> Value:
    rank = X.shape.rank
    if rank == 0:
        raise UnsupportedError("NonZero of a scalar")
    flags = g.compare(X, g.like(0, X), "NE")
    total = X.shape.count
    columns = [g.reshape(g.iota(i64, X.shape.sizes, i), (total,)) for i in range(rank)]
    kept = keep_where(g, g.reshape(flags, (total,)), columns)
    return g.concat([g.reshape(each, (1, each.shape.sizes[0])) for each in kept], 0)


@onnx_op("Compress", since=9)
def compress(g: Graph, input: Value, condition: Tensor, *, axis: int | None = None) -> Value:
    x = g.reshape(input, (input.shape.count,)) if axis is None else input
    place = 0 if axis is None else axis_of(axis, x.shape.rank)
    if condition.rank != 1:
        raise ShapeError("Compress: condition must be a vector", got=condition.shape)
    known = g.elements(condition)
    if known is not None:
        places = np.flatnonzero(known).astype(np.int64)
        if places.size:
            g.check_at_most(int(places[-1]) + 1, x.shape.sizes[place], "Compress: elements that condition selects")
        return g.take(x, g.value(Tensor.constant(places)), place)
    flags, size = g.value(condition), x.shape.sizes[place]
    (kept,) = keep_where(g, flags, [g.iota(i64, flags.shape.sizes, 0)])
    is_within = at_most(flags.shape.sizes[0], size)  # else nothing behind the axis may be selected
    return g.take(x, kept, place) if is_within else g.take_checked(x, kept, place)


@onnx_op("Unique", since=11)
def unique(g: Graph, X: Value, *, axis: int | None = None, sorted: int = 1) -> tuple[Value, ...]:
    """The different slices along an axis, in order of value or of first appearance."""
    x = g.reshape(X, (X.shape.count,)) if axis is None else X
    place = 0 if axis is None else axis_of(axis, x.shape.rank)
    count = x.shape.sizes[place]
    if count == 0:
        return x, *(g.const(np.zeros(0, np.int64), i64) for _ in range(3))
    order = (place, *(i for i in range(x.shape.rank) if i != place))
    rows = g.reshape(g.transpose(x, order), (count, product(n for i, n in enumerate(x.shape.sizes) if i != place)))
    places = g.iota(i64, (count,), 0)
    source = _order_of_rows(g, rows, places)
    ordered = g.take(rows, source, 0)
    previous = g.take(ordered, g.binary("maximum", g.plus(places, -1), g.like(0, places)), 0)
    differs = g.reduce(g.compare(ordered, previous, "NE"), (1,), "or", False)
    starts = g.binary("or", differs, g.compare(places, g.like(0, places), "EQ"))  # where a new value begins
    group = g.plus(running(g, g.convert(starts, i64), 0, "add", 0, False, False), -1)
    first_of_group = _scatter_groups(g, group, source, "minimum", (1 << 63) - 1)
    count_of_group = _scatter_groups(g, group, g.like(1, source), "add", 0)
    group_of_place = _put(g, source, group)
    exists = g.compare(count_of_group, g.like(0, count_of_group), "GT")
    if not sorted:  # groups in the order of first appearance
        by_first = g.sort((first_of_group, count_of_group, places), 0, _first_less)
        first_of_group, count_of_group, groups = by_first
        exists = g.compare(count_of_group, g.like(0, count_of_group), "GT")
        new_number = _put(g, groups, places)
        group_of_place = g.take(new_number, group_of_place, 0)
    indices, counts = keep_where(g, exists, [first_of_group, count_of_group])
    values = g.take(x, indices, place)
    return values, indices, group_of_place, counts


def _first_less(r: Builder, args: Any) -> Value:
    return r.compare(args[0], args[1], comparison_direction="LT")


def _order_of_rows(g: Graph, rows: Value, places: Value) -> Value:
    """The places of rows in lexicographic order; of equal rows the first comes first."""
    width = rows.shape.sizes[1]
    if isinstance(width, int) and width <= _KEYS:
        keys = [g.reshape(g.slice_axis(rows, 1, i, i + 1), places.shape.sizes) for i in range(width)]

        def before(r: Builder, args: Any) -> Value:
            less = r.constant(False, "i1")
            for i in reversed(range(width)):
                a, b = args[2 * i], args[2 * i + 1]
                same = r.compare(a, b, comparison_direction="EQ")
                less = r.or_(r.compare(a, b, comparison_direction="LT"), r.and_(same, less))
            return less

        last: Value = g.sort((*keys, places), 0, before)[-1]
        return last
    total = g.size(width)

    def iterate(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        """A stable sort by one column; the first column comes last."""
        inner = inner_graph(g, r, args)
        at, order = args
        key = inner.take(element_at(inner, rows, at, 1), order, 0)
        return [inner.plus(at, -1), inner.sort((key, order), 0, _first_less)[1]]

    def test(r: RegionBuilder, args: tuple[Value, ...]) -> list[Value]:
        return [r.compare(args[0], zero, comparison_direction="GE")]

    zero = g.scalar(0, i64)
    return while_loop(g, [g.plus(total, -1), places], test, iterate)[1]


def _scatter_groups(g: Graph, group: Value, values: Value, op: str, start: int) -> Value:
    dims = ScatterDims(inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    body = g.b.combine(op, i64)
    return g.scatter(g.full(start, values.shape), group, values, dims, body)


def _put(g: Graph, places: Value, values: Value) -> Value:
    """A vector with `values[i]` at `places[i]`."""
    dims = ScatterDims(inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,), index_vector_dim=1)
    return g.scatter(
        g.like(0, values), places, values, dims, g.scalar_region(values.shape.element, lambda r, a, b: b), True
    )
