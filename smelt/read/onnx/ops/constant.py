"""Operators that make elements: constants, ranges, diagonals, triangles, one-hot vectors."""

from __future__ import annotations

from typing import Any

import numpy as np

from smelt.dim import Poly, Size, maximum
from smelt.dtype import Array, dtype, i64
from smelt.errors import ParseError, ShapeError, UnsupportedError
from smelt.ir.core import Value
from smelt.read.onnx.emit import axis_of, ints
from smelt.read.onnx.file.tensors import element_type
from smelt.read.onnx.fold import SMALL, is_small
from smelt.read.onnx.graph import Graph
from smelt.read.onnx.items import Item, Tensor, Text
from smelt.read.onnx.registry import Sizes, onnx_op


@onnx_op("Constant")
def constant(
    g: Graph,
    *,
    value: Item | None = None,
    sparse_value: Tensor | None = None,
    value_float: float | None = None,
    value_floats: tuple[float, ...] | None = None,
    value_int: int | None = None,
    value_ints: tuple[int, ...] | None = None,
    value_string: str | None = None,
    value_strings: tuple[str, ...] | None = None,
) -> Item:
    if value is not None:
        return value
    if sparse_value is not None:
        return sparse_value
    for number, kind in (
        (value_float, np.float32),
        (value_int, np.int64),
        (value_floats, np.float32),
        (value_ints, np.int64),
    ):
        if number is not None:
            return Tensor.constant(np.array(number, kind))
    text = value_string if value_string is not None else value_strings
    if text is None:
        raise ParseError("Constant: no value")
    return Text(np.array(text, object))


@onnx_op("ConstantOfShape", since=9)
def constant_of_shape(g: Graph, input: Sizes, *, value: Tensor | None = None) -> Tensor | Value:
    number = np.zeros(1, np.float32) if value is None else g.numbers(value, "value")
    if number.size != 1:
        raise ParseError("ConstantOfShape: attribute 'value'", expected="one element", got=number.size)
    return _fill(g, number.reshape(()), input)


def _fill(g: Graph, number: Array, sizes: Sizes) -> Tensor | Value:
    if any(isinstance(n, int) and n < 0 for n in sizes):
        raise ShapeError("a negative size", got=list(sizes))
    known = ints(sizes)
    if known is not None and is_small(known):
        return Tensor.constant(np.full(known, number, number.dtype))
    return g.broadcast_to(g.const(number, dtype(number.dtype)), sizes)


@onnx_op("Range", since=11, single=("start", "limit", "delta"))
def range_(g: Graph, start: Tensor, limit: Tensor, delta: Tensor, *, stash_type: int = 1) -> Tensor | Value:
    known = [g.elements(each) for each in (start, limit, delta)]
    element = start.element
    if any(each is not None and each.dtype == object for each in known) and all(each is not None for each in known):
        first, last, step = (each.reshape(-1)[0] for each in known if each is not None)
        if not isinstance(step, Poly) and step == int(step) and step != 0:
            step = int(step)
            count = maximum(-((_whole(first) - _whole(last)) // step), 0)
            return _count_from(g, g.value(start), count, g.value(delta))
        raise UnsupportedError("Range with a step that depends on sizes", got=step)
    numbers = [g.numbers(each, name) for each, name in ((start, "start"), (limit, "limit"), (delta, "delta"))]
    first, last, step = (each.reshape(-1)[0].item() for each in numbers)
    if step == 0:
        raise ShapeError("Range with a step of 0")
    exact = element.is_integer
    total = max(0, -((first - last) // step) if exact else int(np.ceil((last - first) / step)))
    if total <= SMALL and exact:
        return Tensor.constant((first + np.arange(total) * step).astype(element.numpy))
    return _count_from(g, g.value(start), total, g.value(delta))


def _whole(number: Any) -> Size:
    if isinstance(number, Poly):
        return number
    if number != int(number):
        raise UnsupportedError("Range of sizes and fractions", got=number)
    return int(number)


def _count_from(g: Graph, start: Value, count: Size, step: Value) -> Value:
    """start, start + step, …"""
    places = g.iota(start.shape.element, (count,), 0)
    return g.binary("add", g.binary("multiply", places, g.reshape(step, ())), g.reshape(start, ()))


@onnx_op("EyeLike", since=9)
def eye_like(g: Graph, input: Tensor, *, dtype: int | None = None, k: int = 0) -> Value:
    if input.rank != 2:
        raise ShapeError("EyeLike takes a matrix", got=input.shape)
    element = input.element if dtype is None else element_type(dtype, g.location)
    rows, columns = (g.iota(i64, input.sizes, axis) for axis in (0, 1))
    return g.convert(g.compare(g.plus(rows, k), columns, "EQ"), element)


@onnx_op("Trilu", since=14)
def trilu(g: Graph, input: Value, k: Value | None = None, *, upper: int = 1) -> Value:
    rank = input.shape.rank
    if rank < 2:
        raise ShapeError("Trilu takes matrices", got=input.shape)
    rows, columns = (g.iota(i64, input.shape.sizes, axis) for axis in (rank - 2, rank - 1))
    if k is not None:
        rows = g.binary("add", rows, g.reshape(g.convert(k, i64), ()))
    kept = g.compare(columns, rows, "GE" if upper else "LE")
    return g.select(kept, input, g.like(0, input))


@onnx_op("OneHot", since=9)
def one_hot(g: Graph, indices: Value, depth: Sizes, values: Value, *, axis: int = -1) -> Value:
    if len(depth) != 1:
        raise ShapeError("OneHot: depth is one number", got=len(depth))
    count = depth[0] if isinstance(depth[0], Poly) else int(depth[0])
    rank = indices.shape.rank + 1
    place = axis_of(axis, rank)
    placed = g.expand_dims(g.wrap(g.convert(indices, i64), count), (place,))
    sizes = [count if i == place else n for i, n in enumerate(placed.shape.sizes)]
    hot = g.compare(g.broadcast_to(placed, sizes), g.iota(i64, sizes, place), "EQ")
    off, on = (g.reshape(g.slice_axis(values, 0, i, i + 1), ()) for i in (0, 1))
    return g.select(hot, g.broadcast_to(on, sizes), g.broadcast_to(off, sizes))
