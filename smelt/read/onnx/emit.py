"""Helpers that emit StableHLO for ONNX operators: broadcasting, slices, reductions, gathers, with symbolic sizes.

`Emit` wraps a builder. Its methods take and return values of the program. Where StableHLO needs a static size and the
size is symbolic, they emit the `dynamic_*` op with computed sizes. `read.onnx.graph` derives from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ml_dtypes
import numpy as np

from smelt.dim import Size, at_most, floordiv, maximum, minimum, mod, product, symbols
from smelt.dtype import DType, dtype, i1, i64, integer_range
from smelt.errors import ShapeError, UnsupportedError
from smelt.ir.attributes import DotDims, GatherDims, ScatterDims
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.core import Region, Type, Value
from smelt.ir.size_ops import SizeOps, Source
from smelt.shape import Shape


def ints(sizes: Sequence[Size]) -> tuple[int, ...] | None:
    """The sizes as numbers, if none has symbols."""
    return tuple(sizes) if all(type(size) is int for size in sizes) else None  # type: ignore[arg-type]


def axis_of(axis: int, rank: int, what: str = "axis") -> int:
    """A dimension number that may count from the end."""
    if not -rank <= axis < rank:
        raise ShapeError(f"{what} is out of range", expected=f"-{rank} to {rank - 1}", got=axis)
    return axis % rank


def axes_of(axes: Sequence[int], rank: int, what: str = "axes") -> tuple[int, ...]:
    """Dimension numbers that may count from the end, all different."""
    found = tuple(axis_of(axis, rank, what) for axis in axes)
    if len(set(found)) != len(found):
        raise ShapeError(f"{what} must be different", got=list(axes))
    return found


class Emit:
    """A builder with ONNX's vocabulary."""

    def __init__(self, b: Builder, births: dict[str, Source], given: set[str]) -> None:
        self.b = b
        self.given = given  # symbols that inputs have
        self.births = births  # symbol → a value with a dimension of exactly that size

    # -- constants --

    def const(self, array: Any, element: DType) -> Value:
        """A small constant."""
        return self.b.constant(np.asarray(array), element)

    def scalar(self, number: float | int | bool, element: DType) -> Value:
        if element.is_integer:
            low, high = integer_range(element)
            assert low <= number <= high, f"{number} is no {element}"
        return self.b.constant(number, element)

    def full(self, number: float | int | bool, shape: Shape) -> Value:
        return self.broadcast_to(self.scalar(number, shape.element), shape.sizes)

    def like(self, number: float | int | bool, value: Value) -> Value:
        """One number in the shape of a value."""
        return self.full(number, value.shape)

    def iota(self, element: DType, sizes: Sequence[Size], axis: int) -> Value:
        return self.b.iota(iota_dimension=axis, result=Shape.of(element, sizes))

    # -- sizes as values --

    def size(self, size: Size) -> Value:
        """A size as a scalar of i64."""
        return self._sizes().scalar(size)

    def size_vector(self, sizes: Sequence[Size], element: DType = i64) -> Value:
        """Sizes as a vector."""
        known = ints(sizes)
        if known is not None:
            return self.const(np.array(known, np.int64).astype(element.numpy), element)
        return self.convert(self._sizes().vector(sizes), element)

    def _sizes(self) -> SizeOps:
        return SizeOps(lambda name, *operands, **attrs: self.b.op(name, *operands, **attrs).result, self._source)

    def _source(self, name: str) -> Source:
        if name not in self.births:
            raise UnsupportedError("a size is needed as a number and no tensor has it", got=name)
        return self.births[name]

    # -- shape --

    def reshape(self, x: Value, sizes: Sequence[Size]) -> Value:
        if x.shape.sizes == tuple(sizes):
            return x
        return self.b.reshape(x, result=Shape.of(x.shape.dtype, sizes))

    def broadcast_in_dim(self, x: Value, sizes: Sequence[Size], dims: Sequence[int]) -> Value:
        if x.shape.sizes == tuple(sizes) and tuple(dims) == tuple(range(len(sizes))):
            return x
        pairs = [(size, sizes[d]) for size, d in zip(x.shape.sizes, dims, strict=True)]
        if any(not isinstance(a, int) and a != b and (self.is_late(a) or self.is_late(b)) for a, b in pairs):
            target = self.size_vector(sizes)  # broadcasting of a data-dependent size is decided at run time
            return self.b.dynamic_broadcast_in_dim(x, target, broadcast_dimensions=tuple(dims))
        shape = Shape.of(x.shape.dtype, sizes)
        return self.b.broadcast_in_dim(x, broadcast_dimensions=tuple(dims), result=shape)

    def broadcast_to(self, x: Value, sizes: Sequence[Size]) -> Value:
        """NumPy's broadcast: sizes align at the end."""
        rank = len(sizes)
        if x.shape.rank > rank:
            raise ShapeError("a shape cannot lose dimensions by broadcasting", expected=list(sizes), got=x.shape)
        return self.broadcast_in_dim(x, sizes, range(rank - x.shape.rank, rank))

    def is_late(self, size: Size) -> bool:
        """Whether a size is data-dependent: no input has it."""
        return not symbols(size) <= self.given

    def broadcast_sizes(self, *shapes: Sequence[Size]) -> tuple[Size, ...]:
        """The sizes that several shapes are broadcast to."""
        rank = max((len(sizes) for sizes in shapes), default=0)
        result: list[Size] = [1] * rank
        for sizes in shapes:
            for i, size in enumerate(sizes, rank - len(sizes)):
                result[i] = self.join(result[i], size)
        return tuple(result)

    def join(self, a: Size, b: Size) -> Size:
        """The size that two are broadcast to: 1 gives way, and a number wins. Of two that inputs have the first, and
        where that is not right at run time, another program; of two data-dependent ones, the exact result."""
        if b == 1 or a == b:
            return a
        if a == 1:
            return b
        if isinstance(a, int) and isinstance(b, int):
            raise ShapeError("sizes do not broadcast", expected=a, got=b)
        if isinstance(a, int) or isinstance(b, int):
            return a if isinstance(a, int) else b
        return floordiv(a * b, maximum(minimum(a, b), 1)) if self.is_late(a) or self.is_late(b) else a

    def together(self, *values: Value) -> tuple[Value, ...]:
        """All broadcast to one shape."""
        sizes = self.broadcast_sizes(*(value.shape.sizes for value in values))
        return tuple(self.broadcast_to(value, sizes) for value in values)

    def keep_shape(self, x: Value, result: Value, what: str) -> Value:
        """A result of an input and parameters: they are broadcast to the input, never the input to them."""
        if x.shape.rank != result.shape.rank:
            raise ShapeError(f"{what}: a parameter does not fit the input", expected=x.shape, got=result.shape)
        for size, found in zip(x.shape.sizes, result.shape.sizes, strict=True):
            if isinstance(size, int) and isinstance(found, int) and size != found:
                raise ShapeError(f"{what}: a parameter does not fit the input", expected=x.shape, got=result.shape)
            if size != found:
                a, b = self.size(size), self.size(found)
                self.check(self.compare(a, b, "EQ"), f"{what}: a parameter of size {{1}} does not fit {{0}}", a, b)
        return result

    def along(self, vector: Value, rank: int, axis: int) -> Value:
        """A vector as a tensor of a rank whose other sizes are 1."""
        sizes: list[Size] = [1] * rank
        sizes[axis] = vector.shape.count
        return self.reshape(vector, sizes)

    def expand_dims(self, x: Value, axes: Sequence[int]) -> Value:
        """Dimensions of size 1 at `axes` of the result."""
        rank = x.shape.rank + len(axes)
        rest = iter(x.shape.sizes)
        places = axes_of(axes, rank)
        return self.reshape(x, [1 if i in places else next(rest) for i in range(rank)])

    def transpose(self, x: Value, order: Sequence[int]) -> Value:
        if tuple(order) == tuple(range(x.shape.rank)):
            return x
        return self.b.transpose(x, permutation=tuple(order))

    def concat(self, parts: Sequence[Value], axis: int) -> Value:
        return parts[0] if len(parts) == 1 else self.b.concatenate(*parts, dimension=axis)

    def slice(self, x: Value, starts: Sequence[Size], limits: Sequence[Size], strides: Sequence[int]) -> Value:
        """Part of a tensor; strides are positive."""
        if all(start == 0 for start in starts) and tuple(limits) == x.shape.sizes and set(strides) <= {1}:
            return x
        return self._sizes().slice(x, starts, limits, strides)

    def slice_axis(self, x: Value, axis: int, start: Size, limit: Size, stride: int = 1) -> Value:
        starts: list[Size] = [0] * x.shape.rank
        limits = list(x.shape.sizes)
        strides = [1] * x.shape.rank
        starts[axis], limits[axis], strides[axis] = start, limit, stride
        return self.slice(x, starts, limits, strides)

    def pad(
        self, x: Value, value: Value, low: Sequence[Size], high: Sequence[Size], interior: Sequence[int] | None = None
    ) -> Value:
        between = interior or (0,) * x.shape.rank
        if all(amount == 0 for amount in (*low, *high, *between)):
            return x
        return self._sizes().pad(x, value, low, high, between)

    def reverse(self, x: Value, axes: Sequence[int]) -> Value:
        return self.b.reverse(x, dimensions=tuple(axes)) if axes else x

    # -- elements --

    def convert(self, x: Value, element: DType) -> Value:
        if x.shape.dtype == element:
            return x
        return self.b.convert(x, result=x.shape.with_dtype(element))

    def compare(self, a: Value, b: Value, direction: str) -> Value:
        return self.b.compare(a, b, comparison_direction=direction)

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        return self.b.select(condition, a, b)

    def binary(self, name: str, a: Value, b: Value) -> Value:
        """`add`, `multiply` … of two values that are broadcast first."""
        a, b = self.together(a, b)
        return self.b.op(f"stablehlo.{name}", a, b).result

    def unary(self, name: str, x: Value) -> Value:
        return self.b.op(name if "." in name else f"stablehlo.{name}", x).result

    def times(self, x: Value, number: float | int) -> Value:
        return x if number == 1 else self.b.multiply(x, self.like(number, x))

    def plus(self, x: Value, number: float | int) -> Value:
        return x if number == 0 else self.b.add(x, self.like(number, x))

    def choose(self, condition: Value, a: Value, b: Value) -> Value:
        """Select after broadcasting all three."""
        return self.select(*self.together(condition, a, b))

    def in_f32(self, function: Callable[[Value], Value], x: Value) -> Value:
        """A function of a narrow float computed in f32."""
        element = x.shape.element
        if not element.is_float or element.bits >= 32:
            return function(x)
        return self.convert(function(self.convert(x, dtype("f32"))), element)

    # -- reductions --

    def reduce(self, x: Value, axes: Sequence[int], kind: str, init: float | int | bool, keep: bool = False) -> Value:
        """`add`, `maximum` … over axes."""
        if not axes:
            return x
        result = self.b.reduce_by(kind, x, init, sorted(axes))
        return self.expand_dims(result, sorted(axes)) if keep else result

    def region(self, *args: Type) -> AbstractContextManager[RegionBuilder]:
        """A region inside the present place, which may be a region itself."""
        return self.b.region(*args)

    def scalar_region(self, element: DType, fn: Callable[[Builder, Value, Value], Value]) -> Region:
        """A region over two scalars of one type."""
        with self.region(Shape.of(element, ()), Shape.of(element, ())) as r:
            return r.result(fn(r, *r.args))

    def sum(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        return self.reduce(x, axes, "add", 0, keep)

    def max(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        return self.reduce(x, axes, "maximum", lowest(x.shape.element), keep)

    def min(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        return self.reduce(x, axes, "minimum", highest(x.shape.element), keep)

    def count(self, x: Value, axes: Sequence[int], element: DType) -> Value:
        """How many elements a reduction over axes joins, as a scalar."""
        size = product(x.shape.sizes[axis] for axis in axes)
        return self.scalar(size, element) if isinstance(size, int) else self.convert(self.size(size), element)

    def mean(self, x: Value, axes: Sequence[int], keep: bool = False) -> Value:
        total = self.sum(x, axes, keep)
        return self.binary("divide", total, self.count(x, axes, x.shape.element)) if axes else total

    # -- indices --

    def wrap(self, indices: Value, size: Size) -> Value:
        """Indices that count from the end where they are negative."""
        element = indices.shape.element
        if element.kind == "uint":
            return indices
        moved = self.binary("add", indices, self.convert(self.size(size), element))
        return self.select(self.compare(indices, self.like(0, indices), "LT"), moved, indices)

    def check(self, holds: Value, message: str, *numbers: Value) -> None:
        """A boolean that must be true when the program runs; `{0}` in the message is the first of the numbers."""
        self.b.custom_call(
            holds, *numbers, result=[], call_target_name="smelt.check", has_side_effect=True, error_message=message
        )

    def check_multiple(self, size: Size, count: int, what: str) -> None:
        """A size is a multiple of a number: proven, refused, or checked when the program runs."""
        rest = mod(size, count)
        if isinstance(rest, int):
            if rest:
                raise ShapeError(what, expected=f"a multiple of {count}", got=size)
            return
        holds = self.compare(self.size(rest), self.scalar(0, i64), "LE")
        self.check(holds, f"{what}: {{0}} is no multiple of {count}", self.size(size))

    def check_at_most(self, least: Size, size: Size, what: str) -> None:
        """A size is at least another one: proven, refused, or checked when the program runs."""
        if at_most(least, size):
            return
        if at_most(size + 1, least):
            raise ShapeError(what, expected=f"at most {size}", got=least)
        a, b = self.size(least), self.size(size)
        self.check(self.compare(a, b, "LE"), f"{what}: {{0}} is more than {{1}}", a, b)

    def check_range(self, indices: Value, size: Size, *, negative: bool = True) -> None:
        """Check at run time that indices are in [-size, size), or in [0, size) where negative ones are not allowed."""
        element = indices.shape.element
        if indices.shape.rank > 1:  # one long reduction is faster than several short ones
            indices = self.reshape(indices, [product(indices.shape.sizes)])
        axes = range(indices.shape.rank)
        extent = self.convert(self.size(size), i64)
        low, high = integer_range(element)
        least = self.convert(self.reduce(indices, axes, "minimum", high), i64)
        most = self.convert(self.reduce(indices, axes, "maximum", low), i64)
        first = self.unary("negate", extent) if negative else self.scalar(0, i64)
        above = self.compare(least, first, "GE")
        below = self.compare(most, extent, "LT")
        message = "an index is out of range: indices are {0} to {1}, and the axis has the size {2}"
        self.check(self.binary("and", above, below), message, least, most, extent)

    def take_checked(self, x: Value, indices: Value, axis: int) -> Value:
        """`take` of run-time indices, checked to be in [0, size)."""
        self.check_range(indices, x.shape.sizes[axis], negative=False)
        return self.take(x, indices, axis)

    def gather(self, x: Value, indices: Value, dims: GatherDims, slice_sizes: Sequence[Size]) -> Value:
        if any(size == 0 and part == 1 for size, part in zip(x.shape.sizes, slice_sizes, strict=True)):
            return self._nothing(x, indices, dims, slice_sizes)
        return self._sizes().gather(x, indices, dims, slice_sizes)

    def _nothing(self, x: Value, indices: Value, dims: GatherDims, slice_sizes: Sequence[Size]) -> Value:
        """A gather from an empty tensor: an empty result, or an index out of range at run time."""
        dropped = {*dims.collapsed_slice_dims, *dims.operand_batching_dims}
        parts = iter([size for i, size in enumerate(slice_sizes) if i not in dropped])
        rest = iter([size for i, size in enumerate(indices.shape.sizes) if i != dims.index_vector_dim])
        index_rank = indices.shape.rank - (dims.index_vector_dim < indices.shape.rank)
        rank = index_rank + len(dims.offset_dims)
        sizes = [next(parts) if i in dims.offset_dims else next(rest) for i in range(rank)]
        if 0 not in sizes:
            raise ShapeError("there is nothing to select from", got=x.shape)
        return self.full(0, Shape.of(x.shape.element, sizes))

    def take(self, x: Value, indices: Value, axis: int) -> Value:
        """NumPy's `take` of indices that are not negative."""
        rank, many = x.shape.rank, indices.shape.rank
        window = [1 if i == axis else size for i, size in enumerate(x.shape.sizes)]
        dims = GatherDims(
            offset_dims=(*range(axis), *range(axis + many, rank - 1 + many)),
            collapsed_slice_dims=(axis,),
            start_index_map=(axis,),
            index_vector_dim=many,
        )
        return self.gather(x, indices, dims, window)

    def scatter(
        self, x: Value, indices: Value, updates: Value, dims: ScatterDims, body: Region, unique: bool = False
    ) -> Value:
        return self.b.scatter(
            x,
            indices,
            updates,
            scatter_dimension_numbers=dims,
            indices_are_sorted=False,
            unique_indices=unique,
            regions=[body],
        )

    # -- matrix multiplication --

    def dot(
        self,
        a: Value,
        b: Value,
        contract: tuple[Sequence[int], Sequence[int]],
        batch: tuple[Sequence[int], Sequence[int]] = ((), ()),
        element: DType | None = None,
    ) -> Value:
        """`dot_general`: batch dimensions first, then what is left of a and of b."""
        dims = DotDims(tuple(batch[0]), tuple(batch[1]), tuple(contract[0]), tuple(contract[1]))
        left = [s for i, s in enumerate(a.shape.sizes) if i not in (*contract[0], *batch[0])]
        right = [s for i, s in enumerate(b.shape.sizes) if i not in (*contract[1], *batch[1])]
        sizes = [a.shape.sizes[i] for i in batch[0]] + left + right
        shape = Shape.of(element or a.shape.element, sizes)
        return self.b.dot_general(a, b, dot_dimension_numbers=dims, result=shape)

    def matmul(self, a: Value, b: Value, element: DType | None = None) -> Value:
        """NumPy's `matmul`."""
        if a.shape.rank == 0 or b.shape.rank == 0:
            raise ShapeError("a matrix product of a scalar", got=f"{a.shape} and {b.shape}")
        if a.shape.rank == 1:
            rows = self.matmul(self.expand_dims(a, (0,)), b, element)
            return self.reshape(rows, (*rows.shape.sizes[:-2], rows.shape.sizes[-1]) if b.shape.rank > 1 else ())
        if b.shape.rank == 1:
            return self.dot(a, b, ((a.shape.rank - 1,), (0,)), element=element)
        if b.shape.rank == 2:  # one matrix for all batches: a plain GEMM
            return self.dot(a, b, ((a.shape.rank - 1,), (0,)), element=element)
        batch = self.broadcast_sizes(a.shape.sizes[:-2], b.shape.sizes[:-2])
        a = self.broadcast_to(a, (*batch, *a.shape.sizes[-2:]))
        b = self.broadcast_to(b, (*batch, *b.shape.sizes[-2:]))
        n = len(batch)
        return self.dot(a, b, ((n + 1,), (n,)), (range(n), range(n)), element)

    # -- sorting and limits --

    def sort(self, values: Sequence[Value], axis: int, comparator: Callable[[Builder, Sequence[Value]], Value]) -> Any:
        """Stable; the comparator sees two scalars per value, in order."""
        types = [Shape.of(value.shape.dtype, ()) for value in values for _ in range(2)]
        with self.region(*types) as r:
            body = r.result(comparator(r, r.args))
        result = self.b.sort(*values, dimension=axis, is_stable=True, regions=[body])
        return result if isinstance(result, tuple) else (result,)

    def all_true(self, shape: Shape) -> Value:
        return self.full(True, shape.with_dtype(i1))


def lowest(element: DType) -> float | int | bool:
    """The identity of `maximum`."""
    if element.is_float:
        return float("-inf") if _has_infinity(element) else -greatest_finite(element)
    return integer_range(element)[0] if element.kind != "bool" else False


def highest(element: DType) -> float | int | bool:
    """The identity of `minimum`."""
    if element.is_float:
        return float("inf") if _has_infinity(element) else greatest_finite(element)
    return integer_range(element)[1] if element.kind != "bool" else True


def _has_infinity(element: DType) -> bool:
    return bool(np.isinf(np.array(np.inf).astype(element.numpy).astype(np.float64)))


def greatest_finite(element: DType) -> float:
    """The greatest number of a float type."""
    return float(ml_dtypes.finfo(element.numpy).max)  # type: ignore[no-untyped-call]
