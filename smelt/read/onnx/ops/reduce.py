"""Reductions, cumulative sums, argmax and argmin."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from smelt.dim import Size
from smelt.dtype import f64, i64
from smelt.ir.core import Value
from smelt.read.onnx.emit import axes_of, axis_of
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Tensor
from smelt.read.onnx.registry import Ints, onnx_op

SHORT = 64  # elements that cumulative sums combine in a few steps

Reduction = Callable[[Graph, Value, Sequence[int]], Value]


def _register(name: str, fn: Reduction, since: int) -> None:
    """A reduction. Its axes are an input from opset `since` on, an attribute before."""

    @onnx_op(name, since=since)
    def reduce(
        g: Graph, data: Tensor, axes: Ints | None = None, *, keepdims: int = 1, noop_with_empty_axes: int = 0
    ) -> Value | Tensor:
        if not axes and noop_with_empty_axes:
            return _reduce(g, fn, g.value(data), (), bool(keepdims))
        known = _count(data, name) if not keepdims and data.rank == 1 else None
        return known or _reduce(g, fn, g.value(data), axes or range(data.rank), bool(keepdims))

    @onnx_op(name, since=1)
    def old(g: Graph, data: Value, *, axes: tuple[int, ...] | None = None, keepdims: int = 1) -> Value:
        return _reduce(g, fn, data, range(data.shape.rank) if axes is None else axes, bool(keepdims))


def _count(data: Tensor, name: str) -> Tensor | None:
    """Products and sums of sizes are sizes."""
    if not data.is_symbolic or data.known is None or name not in ("ReduceProd", "ReduceSum"):
        return None
    total: Any = 1 if name == "ReduceProd" else 0
    for each in data.known.tolist():
        total = total * each if name == "ReduceProd" else total + each
    result = data.known[:1].reshape(()).copy() if data.known.size else data.known
    result[()] = total
    return Tensor.symbolic(result, data.element)


def _reduce(g: Graph, fn: Reduction, x: Value, axes: Sequence[int], keep: bool) -> Value:
    places = sorted(axes_of(axes, x.shape.rank))
    element = x.shape.element
    wide = g.in_f32(lambda v: fn(g, v, places), x) if element.is_float else fn(g, x, places)
    return g.expand_dims(wide, places) if keep and places else wide


def _squares(g: Graph, x: Value) -> Value:
    return g.binary("multiply", x, x)


def _size(g: Graph, x: Value) -> Value:
    return x if x.shape.element.kind == "uint" else g.unary("abs", x)


def _log_sum_exp(g: Graph, x: Value, axes: Sequence[int]) -> Value:
    if not axes:
        return x
    top = g.max(x, axes, keep=True)
    finite = g.unary("is_finite", top)
    safe = g.select(finite, top, g.like(0, top))
    total = g.sum(g.unary("exponential", g.binary("subtract", x, safe)), axes)
    return g.binary("add", g.unary("log", total), g.reshape(safe, total.shape.sizes))


def _in_floats(fn: Reduction) -> Reduction:
    """A reduction with logarithms, for integers too: computed in f64, cut to the element type."""

    def reduce(g: Graph, x: Value, axes: Sequence[int]) -> Value:
        element = x.shape.element
        return fn(g, x, axes) if element.is_float else g.convert(fn(g, g.convert(x, f64), axes), element)

    return reduce


def _root(g: Graph, x: Value) -> Value:
    if x.shape.element.is_float:
        return g.unary("sqrt", x)
    from_float = g.unary("sqrt", g.convert(x, f64))
    return g.convert(from_float, x.shape.element)


def _extreme(kind: str) -> Reduction:
    def fn(g: Graph, x: Value, axes: Sequence[int]) -> Value:
        return g.max(x, axes) if kind == "max" else g.min(x, axes)

    return fn


_register("ReduceSum", lambda g, x, axes: g.sum(x, axes), 13)
_register("ReduceMean", lambda g, x, axes: g.mean(x, axes), 18)
_register("ReduceProd", lambda g, x, axes: g.reduce(x, axes, "multiply", 1), 18)
_register("ReduceMax", _extreme("max"), 18)
_register("ReduceMin", _extreme("min"), 18)
_register("ReduceL1", lambda g, x, axes: g.sum(_size(g, x), axes), 18)
_register("ReduceL2", lambda g, x, axes: _root(g, g.sum(_squares(g, x), axes)), 18)
_register("ReduceSumSquare", lambda g, x, axes: g.sum(_squares(g, x), axes), 18)
_register("ReduceLogSum", _in_floats(lambda g, x, axes: g.unary("log", g.sum(x, axes))), 18)
_register("ReduceLogSumExp", _in_floats(_log_sum_exp), 18)


def _places(name: str, greatest: bool) -> None:
    @onnx_op(name)
    def arg(g: Graph, data: Value, *, axis: int = 0, keepdims: int = 1, select_last_index: int = 0) -> Value:
        place = axis_of(axis, data.shape.rank)
        sizes = data.shape.sizes
        best = g.max(data, (place,), keep=True) if greatest else g.min(data, (place,), keep=True)
        same = g.compare(data, g.broadcast_to(best, sizes), "EQ")
        if data.shape.element.is_float:  # a nan beats everything
            same = g.binary("or", same, g.compare(data, data, "NE"))
        at = g.iota(i64, sizes, place)
        if select_last_index:
            return g.max(g.select(same, at, g.like(-1, at)), (place,), keep=bool(keepdims))
        return g.min(g.select(same, at, g.like((1 << 63) - 1, at)), (place,), keep=bool(keepdims))


_places("ArgMax", True)
_places("ArgMin", False)


def running(g: Graph, x: Value, axis: int, kind: str, start: int, exclusive: bool, reverse: bool) -> Value:
    """A cumulative sum or product, rounded to the element type once per element."""
    size = x.shape.sizes[axis]
    if isinstance(size, int) and size <= SHORT:
        return g.in_f32(lambda v: _running_steps(g, v, axis, size, kind, start, exclusive, reverse), x)
    return _running_scan(g, x, axis, kind, start, exclusive, reverse)


def _running_steps(
    g: Graph, x: Value, axis: int, size: int, kind: str, start: int, exclusive: bool, reverse: bool
) -> Value:
    """A few elements: each step combines elements twice as far apart."""
    identity = g.scalar(start, x.shape.element)
    zeros: list[Size] = [0] * x.shape.rank

    def shift(value: Value, by: int) -> Value:
        low, high = list(zeros), list(zeros)
        if reverse:
            low[axis], high[axis] = -by, by
        else:
            low[axis], high[axis] = by, -by
        return g.pad(value, identity, low, high)

    if exclusive and size:
        x = shift(x, 1)
    step = 1
    while step < size:
        x = g.binary(kind, x, shift(x, step))
        step *= 2
    return x


def _running_scan(g: Graph, x: Value, axis: int, kind: str, start: int, exclusive: bool, reverse: bool) -> Value:
    """Many elements, or any number of them: one step for each. Floats are carried in f64, as in long windows."""
    element = x.shape.element
    wide = g.convert(x, f64) if element.is_float else x
    row = wide.shape.with_sizes(size for d, size in enumerate(x.shape.sizes) if d != axis)
    with g.region(row, row) as r:
        item, before = r.args
        after = r.op(f"stablehlo.{kind}", before, item).result
        given = before if exclusive else after
        output = given if row.dtype == element else r.convert(given, result=row.with_dtype(element))
        body = r.result(output, after)
    scan = g.b.op("chlo.scan", wide, g.full(start, row), regions=[body], dimension=axis, is_reverse=reverse)
    return scan.results[0]


@onnx_op("CumSum", since=11, single=("axis",))
def cum_sum(g: Graph, x: Value, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Value:
    return running(g, x, axis_of(axis[0], x.shape.rank), "add", 0, bool(exclusive), bool(reverse))


@onnx_op("CumProd", since=26, single=("axis",))
def cum_prod(g: Graph, x: Value, axis: Ints, *, exclusive: int = 0, reverse: int = 0) -> Value:
    return running(g, x, axis_of(axis[0], x.shape.rank), "multiply", 1, bool(exclusive), bool(reverse))
