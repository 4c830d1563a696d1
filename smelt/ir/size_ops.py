"""Sizes → ops: a polynomial as an i64 scalar that a program computes from the dimensions of its values.

The inverse of `sizes.trace`. Called by the text export, the ONNX reader and the recording of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from smelt.dim import Atom, Poly, Size, at_most, symbol, symbols
from smelt.dtype import Array, i64
from smelt.errors import ShapeError
from smelt.ir.attributes import Constant, GatherDims
from smelt.ir.core import Type, Value
from smelt.shape import Shape
from smelt.size import compute_size

_SCALAR, _ONE = Shape("i64"), Shape("i64", 1)

Source = tuple[Value, int]  # a value and one of its axes


def slope_of(size: Size, name: str) -> int:
    """k > 0 where a size is `k*name` plus what does not depend on `name`; else 0."""
    if isinstance(size, int):
        return 0
    slope = next((c for monomial, c in size.terms if len(monomial) == 1 and monomial[0].name == name), 0)
    return slope if slope > 0 and name not in symbols(size - slope * symbol(name)) else 0


def sources_of(values: Sequence[Value]) -> dict[str, Source]:
    """For each symbol an axis that determines it, alone or with symbols that other axes determine."""
    found: dict[str, Source] = {}
    axes = [(value, i, size) for value in values for i, size in enumerate(value.shape.sizes) if isinstance(size, Poly)]
    axes.sort(key=lambda axis: len(axis[2].terms))  # the simplest first
    known = -1
    while known < len(found):
        known = len(found)
        for value, place, size in axes:
            unknown = symbols(size) - found.keys()
            if len(unknown) == 1 and slope_of(size, name := next(iter(unknown))):
                found[name] = value, place
    return found


def _are_numbers(*sizes: Size) -> bool:
    return all(isinstance(size, int) for size in sizes)


@dataclass(slots=True)
class SizeOps:
    """Sizes as values, and ops that take sizes as attributes or, where those have symbols, as operands.

    `emit(name, *operands, **attributes)` adds an op; `source(name)` is an axis whose size determines that symbol.
    """

    emit: Callable[..., Value]
    source: Callable[[str], Source]
    computed: dict[Size, Value] = field(default_factory=dict)  # the scalars that exist already

    def slice(
        self,
        x: Value,
        starts: Sequence[Size],
        limits: Sequence[Size],
        strides: Sequence[Size],
        result: Type | None = None,
    ) -> Value:
        """`slice`, or `real_dynamic_slice` where a bound has symbols."""
        if _are_numbers(*starts, *limits):
            bounds = {"start_indices": tuple(starts), "limit_indices": tuple(limits), "strides": tuple(strides)}
            return self.emit("stablehlo.slice", x, **bounds)
        vectors = [self.vector(each) for each in (starts, limits, strides)]
        return self.emit("stablehlo.real_dynamic_slice", x, *vectors, result=result)

    def pad(
        self,
        x: Value,
        value: Value,
        low: Sequence[Size],
        high: Sequence[Size],
        interior: Sequence[Size],
        result: Type | None = None,
    ) -> Value:
        """`pad`, or `dynamic_pad` where an amount has symbols."""
        if _are_numbers(*low, *high, *interior):
            edges = {"edge_padding_low": tuple(low), "edge_padding_high": tuple(high)}
            return self.emit("stablehlo.pad", x, value, interior_padding=tuple(interior), **edges)
        vectors = [self.vector(each) for each in (low, high, interior)]
        return self.emit("stablehlo.dynamic_pad", x, value, *vectors, result=result)

    def gather(
        self, x: Value, indices: Value, dims: GatherDims, sizes: Sequence[Size], result: Type | None = None
    ) -> Value:
        """`gather`, or `dynamic_gather` where a size of the slices has symbols."""
        if _are_numbers(*sizes):
            return self.emit("stablehlo.gather", x, indices, dimension_numbers=dims, slice_sizes=tuple(sizes))
        return self.emit(
            "stablehlo.dynamic_gather", x, indices, self.vector(sizes), dimension_numbers=dims, result=result
        )

    def vector(self, sizes: Sequence[Size]) -> Value:
        """Sizes as a vector, as the `dynamic_*` ops take them."""
        if _are_numbers(*sizes):
            return self._constant(np.array(sizes, object))
        parts = [self.emit("stablehlo.reshape", self.scalar(size), result=_ONE) for size in sizes]
        return parts[0] if len(parts) == 1 else self.emit("stablehlo.concatenate", *parts, dimension=0)

    def scalar(self, size: Size) -> Value:
        found = self.computed.get(size)
        if found is None:
            found = self._constant(np.array(size, object)) if isinstance(size, int) else self._polynomial(size)
            self.computed[size] = found
        return found

    def _constant(self, numbers: Array) -> Value:
        if any(not -(1 << 63) <= number < 1 << 63 for number in numbers.flat):
            raise ShapeError("a size does not fit 64 bits", expected="less than 2^63", got=numbers.tolist())
        return self.emit("stablehlo.constant", value=Constant.of(numbers.astype(np.int64), i64))

    def _polynomial(self, size: Poly) -> Value:
        multiply, add = (partial(self.emit, f"stablehlo.{name}") for name in ("multiply", "add"))
        computed: Value = compute_size(size, self.scalar, self._atom, multiply, add)
        return computed

    def _atom(self, atom: Atom) -> Value:
        size = Poly((((atom,), 1),))
        if size in self.computed:
            return self.computed[size]
        if atom.op == "symbol":
            found = self._symbol(atom.name)
        elif atom.op in ("max", "min"):
            found = self.emit(f"stablehlo.{atom.op}imum", *map(self.scalar, atom.args))
        else:
            found = self._divide(atom)
        self.computed[size] = found
        return found

    def _divide(self, atom: Atom) -> Value:
        """`//` or `%`, rounded down; StableHLO's `divide` and `remainder` round towards zero."""
        a, b = map(self.scalar, atom.args)
        found = self.emit("stablehlo.divide" if atom.op == "//" else "stablehlo.remainder", a, b)
        if all(at_most(0, size) for size in atom.args):
            return found
        rest = self.emit("stablehlo.remainder", a, b) if atom.op == "//" else found
        zero = self.scalar(0)
        below = [self.emit("stablehlo.compare", x, zero, comparison_direction="LT") for x in (rest, b)]
        inexact = self.emit("stablehlo.compare", rest, zero, comparison_direction="NE")
        rounded_up = self.emit("stablehlo.and", inexact, self.emit("stablehlo.xor", *below))
        lower = self.emit("stablehlo.add", found, self.scalar(-1) if atom.op == "//" else b)
        return self.emit("stablehlo.select", rounded_up, lower, found)

    def _symbol(self, name: str) -> Value:
        """A symbol, from an axis whose size is `k*symbol` plus what is known."""
        value, axis = self.source(name)
        size = value.shape.sizes[axis]
        slope = slope_of(size, name)
        assert slope, f"{size} does not determine {name}"
        found = self.emit("stablehlo.get_dimension_size", value, dimension=axis)
        wide = self.emit("stablehlo.convert", found, result=_SCALAR)
        rest = size - slope * symbol(name)
        if rest != 0:
            wide = self.emit("stablehlo.subtract", wide, self.scalar(rest))
        return wide if slope == 1 else self.emit("stablehlo.divide", wide, self.scalar(slope))
