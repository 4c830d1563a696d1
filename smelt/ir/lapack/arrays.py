"""Batched matrices as values of a program under construction, with NumPy's operators and broadcasting.

`Work` holds the builder that ops go to; inside of a loop's body that is the body's own. Called by the routines of this
package. Only leading (batch) dimensions may be dynamic.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import DType, f64, i32
from smelt.ir.attributes import DotDims
from smelt.ir.build import Builder, RegionBuilder
from smelt.ir.core import Value
from smelt.shape import Shape

Number = int | float | complex


class Arr:
    """A tensor under construction."""

    __slots__ = ("value", "work")

    def __init__(self, work: Work, value: Value) -> None:
        self.work, self.value = work, value

    @property
    def sizes(self) -> tuple[Size, ...]:
        return tuple(self.value.shape.sizes)

    @property
    def rank(self) -> int:
        return self.value.shape.rank

    @property
    def dtype(self) -> DType:
        return self.value.shape.element

    def size(self, axis: int) -> int:
        """A size that must be a number."""
        size = self.sizes[axis]
        assert isinstance(size, int)
        return size

    # ---- elementwise ----

    def _binary(self, name: str, other: Arr | Number, swap: bool = False) -> Arr:
        left, right = self.work.align(self, other)
        if swap:
            left, right = right, left
        return self.work.emit(name, left, right)

    def __add__(self, other: Arr | Number) -> Arr:
        return self._binary("add", other)

    __radd__ = __add__

    def __sub__(self, other: Arr | Number) -> Arr:
        return self._binary("subtract", other)

    def __rsub__(self, other: Number) -> Arr:
        return self._binary("subtract", other, swap=True)

    def __mul__(self, other: Arr | Number) -> Arr:
        return self._binary("multiply", other)

    __rmul__ = __mul__

    def __truediv__(self, other: Arr | Number) -> Arr:
        return self._binary("divide", other)

    def __rtruediv__(self, other: Number) -> Arr:
        return self._binary("divide", other, swap=True)

    def __neg__(self) -> Arr:
        return self.work.emit("negate", self)

    def __and__(self, other: Arr) -> Arr:
        return self._binary("and", other)

    def __or__(self, other: Arr) -> Arr:
        return self._binary("or", other)

    def __invert__(self) -> Arr:
        return self.work.emit("not", self)

    def maximum(self, other: Arr | Number) -> Arr:
        return self._binary("maximum", other)

    def minimum(self, other: Arr | Number) -> Arr:
        return self._binary("minimum", other)

    def _compare(self, direction: str, other: Arr | Number) -> Arr:
        left, right = self.work.align(self, other)
        return Arr(self.work, self.work.b.compare(left.value, right.value, comparison_direction=direction))

    def __lt__(self, other: Arr | Number) -> Arr:
        return self._compare("LT", other)

    def __le__(self, other: Arr | Number) -> Arr:
        return self._compare("LE", other)

    def __gt__(self, other: Arr | Number) -> Arr:
        return self._compare("GT", other)

    def __ge__(self, other: Arr | Number) -> Arr:
        return self._compare("GE", other)

    def equals(self, other: Arr | Number) -> Arr:
        return self._compare("EQ", other)

    def abs(self) -> Arr:
        """Magnitudes; real for complex numbers."""
        return self.work.emit("abs", self)

    def sqrt(self) -> Arr:
        return self.work.emit("sqrt", self)

    def real(self) -> Arr:
        return self.work.emit("real", self) if self.dtype.is_complex else self

    def imag(self) -> Arr:
        return self.work.emit("imag", self) if self.dtype.is_complex else self * 0.0

    def conj(self) -> Arr:
        if not self.dtype.is_complex:
            return self
        return self.work.emit("complex", self.real(), -self.imag())

    def to(self, dtype: DType) -> Arr:
        if dtype is self.dtype:
            return self
        return Arr(self.work, self.work.b.convert(self.value, result=Shape.of(dtype, self.sizes)))

    def square(self) -> Arr:
        """|x|^2, real."""
        if not self.dtype.is_complex:
            return self * self
        return self.real() * self.real() + self.imag() * self.imag()

    def sign(self) -> Arr:
        """1 or -1 with the sign of a real number; that of 0 is 1."""
        return (self >= 0.0).where(self * 0.0 + 1.0, -1.0)

    def where(self, then: Arr | Number, otherwise: Arr | Number) -> Arr:
        """Elements of `then` where this mask holds."""
        work = self.work
        if isinstance(then, Arr):
            then, otherwise = work.align(then, otherwise)
        else:
            assert isinstance(otherwise, Arr)
            otherwise, then = work.align(otherwise, then)
        sizes = work.common(self.sizes, then.sizes)
        mask, left, right = (work.spread(each, sizes) for each in (self, then, otherwise))
        return Arr(work, work.b.select(mask.value, left.value, right.value))

    # ---- reductions ----

    def _reduce(self, name: str, start: Number | bool, axes: Sequence[int]) -> Arr:
        work = self.work
        axes = sorted(axis % self.rank for axis in axes)
        kept = [1 if axis in axes else size for axis, size in enumerate(self.sizes)]
        return Arr(work, work.b.reduce_by(name, self.value, start, axes)).reshape(kept)

    def sum(self, *axes: int) -> Arr:
        """Sums with their axes kept as 1."""
        return self._reduce("add", 0, axes)

    def max(self, *axes: int) -> Arr:
        return self._reduce("maximum", -np.inf if self.dtype.is_float else -(1 << 31), axes)

    def min(self, *axes: int) -> Arr:
        return self._reduce("minimum", np.inf if self.dtype.is_float else (1 << 31) - 1, axes)

    def any(self) -> Arr:
        """Whether any element holds: one scalar."""
        return self._reduce("or", False, range(self.rank)).reshape([])

    def all(self, *axes: int) -> Arr:
        return self._reduce("and", True, axes)

    def norm(self, *axes: int) -> Arr:
        """Euclidean norms that do not overflow before their result does; axes are kept as 1."""
        scale = self.abs().max(*axes)
        safe = ((scale > 0.0) & (scale < np.inf)).where(scale, 1.0)
        return (self / safe.to(self.dtype)).square().sum(*axes).sqrt() * safe

    def scale(self) -> Arr:
        """What to divide each matrix by, so that products of its elements neither overflow nor underflow: mostly 1."""
        most = self.abs().max(1, 2)
        extreme = (most > 1e100) | ((most < 1e-100) & (most > 0.0))
        return extreme.where(most, 1.0)

    # ---- moving ----

    def reshape(self, sizes: Sequence[Size]) -> Arr:
        if tuple(sizes) == self.sizes:
            return self
        return Arr(self.work, self.work.b.reshape(self.value, result=Shape.of(self.dtype, sizes)))

    @property
    def mT(self) -> Arr:  # noqa: N802  # NumPy's name
        order = (*range(self.rank - 2), self.rank - 1, self.rank - 2)
        return Arr(self.work, self.work.b.transpose(self.value, permutation=order))

    @property
    def mH(self) -> Arr:  # noqa: N802
        return self.mT.conj()

    def __matmul__(self, other: Arr) -> Arr:
        batch = tuple(range(self.rank - 2))
        dims = DotDims(batch, batch, (self.rank - 1,), (self.rank - 2,))
        return Arr(self.work, self.work.b.dot_general(self.value, other.value, dot_dimension_numbers=dims))

    def slice_axis(self, axis: int, start: int, stop: int) -> Arr:
        """From `start` to `stop` along one axis."""
        return self.at({axis: (start, stop - start)})

    def at(self, places: Mapping[int, tuple[int | Arr, int]]) -> Arr:
        """A slice: for each given axis a start, which is clamped, and a size. The other axes are whole."""
        work = self.work
        named = {axis % self.rank: place for axis, place in places.items()}
        starts = [_scalar(work, named[d][0]) if d in named else work.number(0) for d in range(self.rank)]
        sizes = tuple(named[d][1] if d in named else size for d, size in enumerate(self.sizes))
        if all(isinstance(size, int) for size in sizes):
            low = tuple(start for d in range(self.rank) if isinstance(start := named.get(d, (0, 0))[0], int))
            if len(low) == self.rank:
                high = tuple(start + size for start, size in zip(low, sizes, strict=True))
                one = (1,) * self.rank
                return Arr(work, work.b.slice(self.value, start_indices=low, limit_indices=high, strides=one))
            return Arr(work, work.b.dynamic_slice(self.value, *(each.value for each in starts), slice_sizes=sizes))
        limits = []
        for d, size in enumerate(self.sizes):
            if d in named:
                assert isinstance(size, int)
                starts[d] = starts[d].minimum(size - named[d][1])
                limits.append(starts[d] + named[d][1])
            else:
                limits.append(Arr(work, work.b.get_dimension_size(self.value, dimension=d)))
        step = work.full(1, i32, (self.rank,))
        first, last = (work.concatenate(0, *(each.reshape((1,)) for each in row)).value for row in (starts, limits))
        result = Shape.of(self.dtype, sizes)
        return Arr(work, work.b.real_dynamic_slice(self.value, first, last, step.value, result=result))

    def update(self, part: Arr, places: dict[int, Arr]) -> Arr:
        """This array with a part of it replaced, from computed positions on."""
        work = self.work
        named = {axis % self.rank: place for axis, place in places.items()}
        starts = [named[d].value if d in named else work.number(0).value for d in range(self.rank)]
        return Arr(work, work.b.dynamic_update_slice(self.value, part.value, *starts))

    def pad(self, *high: int) -> Arr:
        """More zeros after the end of the last axes."""
        zero = self.work.b.constant(0, self.dtype)
        none = (0,) * self.rank
        edges = (0,) * (self.rank - len(high)) + high
        return Arr(
            self.work,
            self.work.b.pad(self.value, zero, edge_padding_low=none, edge_padding_high=edges, interior_padding=none),
        )


def _scalar(work: Work, position: int | Arr) -> Arr:
    return position if isinstance(position, Arr) else work.number(position)


class Work:
    """Where ops go, and what makes arrays from nothing."""

    def __init__(self, b: Builder) -> None:
        self.b = b

    def emit(self, name: str, *operands: Arr) -> Arr:
        return Arr(self, self.b.op(f"stablehlo.{name}", *(each.value for each in operands)).results[0])

    def number(self, value: Number, dtype: DType = i32) -> Arr:
        return Arr(self, self.b.constant(value, dtype))

    def full(self, value: Number, dtype: DType, sizes: Sequence[Size]) -> Arr:
        return Arr(self, self.b.full(value, Shape.of(dtype, sizes)))

    def index(self, rank: int, axis: int, count: int) -> Arr:
        """0, 1, 2, … along an axis of an array of that rank; the other axes are 1."""
        sizes = [1] * rank
        sizes[axis] = count
        return Arr(self, self.b.iota(iota_dimension=axis % rank, result=Shape.of(i32, sizes)))

    def eye(self, dtype: DType, batch: Sequence[Size], rows: int, columns: int) -> Arr:
        rank = len(batch) + 2
        mask = self.index(rank, -2, rows).equals(self.index(rank, -1, columns))
        return mask.where(self.full(1, dtype, (*batch, rows, columns)), 0)

    def concatenate(self, axis: int, *parts: Arr) -> Arr:
        axis %= parts[0].rank
        return Arr(self, self.b.concatenate(*(part.value for part in parts), dimension=axis))

    def common(self, left: Sequence[Size], right: Sequence[Size]) -> tuple[Size, ...]:
        """The sizes of both, 1 taking the other's; the shorter one lacks leading axes."""
        rank = max(len(left), len(right))
        padded = [(1,) * (rank - len(each)) + tuple(each) for each in (left, right)]
        return tuple(b if a == 1 else a for a, b in zip(*padded, strict=True))

    def spread(self, array: Arr, sizes: Sequence[Size]) -> Arr:
        if array.sizes == tuple(sizes):
            return array
        first = len(sizes) - array.rank
        result = Shape.of(array.dtype, sizes)
        dims = tuple(range(first, len(sizes)))
        return Arr(self, self.b.broadcast_in_dim(array.value, broadcast_dimensions=dims, result=result))

    def align(self, left: Arr, right: Arr | Number) -> tuple[Arr, Arr]:
        """Both with the same sizes and element type; a real array beside a complex one becomes complex."""
        if not isinstance(right, Arr):
            return left, self.full(right, left.dtype, left.sizes)
        if left.dtype is not right.dtype:
            kind = left.dtype if left.dtype.is_complex else right.dtype
            left, right = left.to(kind), right.to(kind)
        sizes = self.common(left.sizes, right.sizes)
        return self.spread(left, sizes), self.spread(right, sizes)

    # ---- control ----

    def _region(self, r: RegionBuilder, function: Callable[..., Any], arguments: Sequence[Value]) -> None:
        outer, self.b = self.b, r
        try:
            found = function(*(Arr(self, value) for value in arguments))
            found = found if isinstance(found, tuple) else (found,)
            r.result(*(each.value for each in found))
        finally:
            self.b = outer

    def loop(self, goes_on: Callable[..., Arr], step: Callable[..., Any], *state: Arr) -> tuple[Arr, ...]:
        """`while goes_on(*state): state = step(*state)`."""
        types = [each.value.type for each in state]
        regions = []
        for function in (goes_on, step):
            with self.b.region(*types) as r:
                self._region(r, function, r.args)
            regions.append(r.body)
        op = self.b.op("stablehlo.while", *(each.value for each in state), regions=regions)
        return tuple(Arr(self, value) for value in op.results)

    def repeat(self, start: int | Arr, stop: int | Arr, step: Callable[..., Any], *state: Arr) -> tuple[Arr, ...]:
        """`for k in range(start, stop): state = step(k, *state)`."""
        if isinstance(start, int) and isinstance(stop, int) and start >= stop:
            return state  # nothing of the body may fit
        first = start if isinstance(start, Arr) else self.number(start)

        def turn(k: Arr, *now: Arr) -> tuple[Arr, ...]:
            found = step(k, *now)
            return (k + 1, *(found if isinstance(found, tuple) else (found,)))

        return self.loop(lambda k, *_: k < stop, turn, first, *state)[1:]

    def branch(self, holds: Arr, then: Callable[..., Any], otherwise: Callable[..., Any]) -> tuple[Arr, ...]:
        """What one of two functions without arguments returns; `holds` is a scalar."""
        regions = []
        for function in (then, otherwise):
            with self.b.region() as r:
                self._region(r, function, ())
            regions.append(r.body)
        op = self.b.op("stablehlo.if", holds.value, regions=regions)
        return tuple(Arr(self, value) for value in op.results)

    def sort_columns(self, keys: Arr, *matrices: Arr, descending: bool = False) -> tuple[Arr, ...]:
        """Keys `[batch, 1, n]` in order, and the columns of matrices `[batch, m, n]` with them."""
        found = []
        for matrix in (keys, *matrices):
            key = self.spread(keys, matrix.sizes)
            scalars = [Shape.of(each.dtype, ()) for each in (key, key, matrix, matrix)]
            with self.b.region(*scalars) as r:
                direction = "GT" if descending else "LT"
                r.result(r.compare(r.args[0], r.args[1], comparison_direction=direction, compare_type="TOTALORDER"))
            axis = matrix.rank - 1
            op = self.b.op("stablehlo.sort", key.value, matrix.value, regions=[r.body], dimension=axis, is_stable=True)
            found.append(Arr(self, op.results[1]))
        return tuple(found)


REAL, COUNT = f64, i32
