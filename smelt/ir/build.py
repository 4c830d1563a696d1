"""Making ops: the one way in, which looks the op up, proves its constraints and infers its result types.

`make` is what text, front ends and passes call; `Builder` collects ops into a region or a function.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any

import numpy as np

from smelt.dim import Size
from smelt.dtype import Array, ElementType, dtype
from smelt.errors import Location
from smelt.ir.attributes import Constant
from smelt.ir.builders import OpMethods
from smelt.ir.core import Attrs, Func, FuncType, Future, Op, Region, Tuple, Type, Value
from smelt.ir.ops import definition_of
from smelt.ir.ops.definition import UNKNOWN, Call, Scope, op_attrs
from smelt.shape import Shape


def make(
    name: str,
    operands: Sequence[Value],
    attrs: Attrs = MappingProxyType({}),
    regions: Sequence[Region] = (),
    declared: Sequence[Type] | None = None,
    *,
    scope: Scope,
    location: Location | None = None,
    result_names: Sequence[str] = (),
    signatures: Mapping[str, FuncType] = MappingProxyType({}),
) -> Op:
    """One op, verified. `declared` types may hold `UNKNOWN` sizes; `signatures` are the functions it may call."""
    definition = definition_of(name, location)
    filled = MappingProxyType(op_attrs(definition, attrs))
    call = Call(name, operands, filled, regions, declared, scope=scope, location=location, signatures=signatures)
    definition.check_counts(call)
    types = settle(call, definition.infer(call))
    return Op(name, operands, types, filled, regions, location, result_names)


def settle(call: Call, inferred: Sequence[Type]) -> list[Type]:
    """The result types: the declared ones, completed by the inferred ones; both must agree."""
    if call.declared is None:
        return list(inferred)
    if len(call.declared) != len(inferred):
        call.fail("", "wrong number of results", expected=len(inferred), got=len(call.declared))
    return [
        have if have is want and not isinstance(have, Shape) else _settle_one(call, have, want)
        for have, want in zip(inferred, call.declared, strict=True)
    ]


def _settle_one(call: Call, have: Type, want: Type) -> Type:
    if isinstance(have, Shape) and isinstance(want, Shape):
        if have == want and (want.is_static or UNKNOWN not in want.sizes):
            return want
        if have.dtype != want.dtype or have.rank != want.rank:
            call.fail("", "the declared result type is not the inferred one", expected=have, got=want)
        sizes: list[Size] = []
        for inferred, declared in zip(have.sizes, want.sizes, strict=True):
            bound = None if have.bounds is None else have.bounds[len(sizes)]
            if declared == UNKNOWN:
                sizes.append(inferred)
            else:
                call.same_size(inferred, declared, "", "a declared result size is not the inferred one")
                if bound is not None and isinstance(declared, int):
                    call.at_most(declared, bound, "", "a declared result size is larger than its bound")
                sizes.append(declared)
        if any(size == UNKNOWN for size in sizes):
            call.fail("", "a result size is not known here", expected="a number or a formula", got=want)
        return Shape.of(have.dtype, sizes, None, _dynamic_bounds(call, sizes, want.bounds))
    if isinstance(have, Tuple | Future) and type(have) is type(want) and len(have.types) == len(want.types):
        return type(have)(tuple(_settle_part(call, *each) for each in zip(have.types, want.types, strict=True)))
    if have != want:
        call.fail("", "the declared result type is not the inferred one", expected=have, got=want)
    return want


def _dynamic_bounds(
    call: Call, sizes: Sequence[Size], bounds: Sequence[int | None] | None
) -> tuple[int | None, ...] | None:
    """The bounds of dynamic dimensions; an inferred static size must be within its bound."""
    if bounds is None:
        return None
    for size, bound in zip(sizes, bounds, strict=True):
        if bound is not None:
            call.at_most(size, bound, "", "a size is larger than its bound")
    return tuple(None if isinstance(size, int) else bound for size, bound in zip(sizes, bounds, strict=True))


def _settle_part(call: Call, have: Type, want: Type) -> Type:
    """A part of a tuple is the value that went in: its sizes are not declared or they are the same."""
    if isinstance(have, Shape) and isinstance(want, Shape) and UNKNOWN not in want.sizes and have.sizes != want.sizes:
        call.fail("", "the declared result type is not the inferred one", expected=have, got=want)
    return _settle_one(call, have, want)


class Builder(OpMethods):
    """Collects ops in order. `b.add(x, y)` makes `stablehlo.add`; `b.op("chlo.erf", x)` any op of the table.

    Attributes are keyword arguments with typed values, `result=` declares result types, `regions=` passes regions.
    """

    def __init__(self, scope: Scope | None = None, location: Location | None = None) -> None:
        self.scope = scope or Scope()
        self.ops: list[Op] = []
        self.location = location
        self.signatures: dict[str, FuncType] = {}

    def op(
        self,
        name: str,
        /,
        *operands: Value,
        result: Type | Sequence[Type] | None = None,
        regions: Sequence[Region] = (),
        **attrs: Any,
    ) -> Op:
        """Make an op of any dialect and append it."""
        declared: Any = result if result is None or isinstance(result, list | tuple) else [result]
        made = make(
            name,
            operands,
            {key: value for key, value in attrs.items() if value is not None},
            regions,
            declared,
            scope=self.scope,
            location=self.location,
            signatures=self.signatures,
        )
        self.ops.append(made)
        return made

    def constant(self, value: Any, element: ElementType | str | None = None) -> Value:
        """A constant from a NumPy array, a number or a list."""
        kind = None if element is None else dtype(element) if isinstance(element, str) else element
        array: Array = np_array(value, kind)
        constant = Constant.of(array, kind or dtype(array.dtype))
        return self.op("stablehlo.constant", value=constant).result

    def full(self, value: float | int | bool | complex, shape: Shape) -> Value:
        """One scalar in every element of a shape."""
        scalar = self.constant(value, shape.dtype)
        if not shape.rank:
            return scalar
        return self.broadcast_in_dim(scalar, broadcast_dimensions=(), result=shape)

    def combine(self, name: str, element: ElementType) -> Region:
        """The body of a reduction by one op: it combines two scalars."""
        scalar = Shape.of(element, ())
        with self.region(scalar, scalar) as r:
            return r.result(r.op(f"stablehlo.{name}", *r.args).result)

    def reduce_by(self, name: str, x: Value, init: complex | bool, axes: Iterable[int]) -> Value:
        """A reduction over axes by one op."""
        element = x.shape.dtype
        body = self.combine(name, element)
        return self.reduce(x, self.constant(init, element), dimensions=tuple(axes), regions=[body])

    @contextmanager
    def region(self, *args: Type) -> Iterator[RegionBuilder]:
        """`with b.region(Shape("f32")) as r: r.result(r.add(r.args[0], …))`, then pass `r.body` to an op."""
        inner = RegionBuilder(self, args)
        yield inner
        assert inner.body is not None, "the region returned nothing: call .result(...)"


class RegionBuilder(Builder):
    """A builder for the inside of an op."""

    def __init__(self, outer: Builder, args: Sequence[Type]) -> None:
        super().__init__(outer.scope, outer.location)
        self.signatures = outer.signatures
        self.args = tuple(Value(type, None, i) for i, type in enumerate(args))
        self.body: Any = None  # the Region, once `result` has finished it

    def result(self, *values: Value) -> Region:
        region = self.body = Region(self.args, tuple(self.ops), values)
        return region


class FuncBuilder(Builder):
    """A builder for a function: `f.args` are its arguments, `f.func(*results)` the finished function."""

    def __init__(
        self, name: str, args: Sequence[Type], arg_names: Sequence[str] = (), arg_attrs: Sequence[Attrs] = ()
    ) -> None:
        taken = frozenset().union(*(arg.symbols for arg in args if isinstance(arg, Shape)))
        super().__init__(Scope(taken))
        self.name = name
        names = arg_names or ("",) * len(args)
        self.args = tuple(Value(type, None, i, names[i]) for i, type in enumerate(args))
        self.arg_attrs = tuple(arg_attrs)

    def func(self, *results: Value, visibility: str = "public", result_attrs: Sequence[Attrs] = ()) -> Func:
        body = Region(self.args, tuple(self.ops), results)
        return Func(self.name, body, visibility, self.arg_attrs, tuple(result_attrs))


def np_array(value: Any, element: ElementType | None) -> Array:
    """A NumPy array of an element type."""
    array = np.asarray(value)
    return array if element is None or array.dtype == element.numpy else array.astype(element.numpy)
