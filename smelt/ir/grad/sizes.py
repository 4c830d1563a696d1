"""Sizes as values where gradients need them: an axis of a tensor at hand and a number, else `ir.size_ops`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from smelt.dim import Size
from smelt.dtype import i64
from smelt.errors import UnsupportedError
from smelt.ir.build import Builder
from smelt.ir.core import Value
from smelt.ir.size_ops import SizeOps, Source, sources_of
from smelt.shape import Shape

_SCALAR, _ONE = Shape.of(i64, ()), Shape.of(i64, (1,))


def size_list(b: Builder, sizes: Sequence[Size], near: Sequence[Value]) -> Value:
    """Sizes as an i64 vector, from dimensions of the values `near` and of the builder's arguments."""
    if all(isinstance(size, int) for size in sizes):
        return b.constant(list(sizes), i64)
    parts = [b.reshape(size_value(b, size, near), result=_ONE) for size in sizes]
    return parts[0] if len(parts) == 1 else b.concatenate(*parts, dimension=0)


def size_value(b: Builder, size: Size, near: Sequence[Value]) -> Value:
    """A size as an i64 scalar."""
    if isinstance(size, int):
        return b.constant(size, i64)
    near = [*vars(b).get("args", ()), *near]
    for value in near:
        for axis, have in enumerate(value.shape.sizes):
            rest = size - have
            if isinstance(rest, int) and not isinstance(have, int):
                wide = b.convert(b.get_dimension_size(value, dimension=axis), result=_SCALAR)
                return b.add(wide, b.constant(rest, i64)) if rest else wide
    sources = sources_of(near)

    def find(name: str) -> Source:
        if name not in sources:
            raise UnsupportedError(
                f"the size {name} is not known in the gradient",
                expected="a tensor with an axis that determines it",
                where=b.location,
                remedy=f"give the program an argument with the axis {name}",
            )
        return sources[name]

    def emit(name: str, *operands: Value, **keywords: Any) -> Value:
        return b.op(name, *operands, **keywords).result

    return SizeOps(emit, find).scalar(size)
