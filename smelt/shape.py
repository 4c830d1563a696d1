"""Shape: an element type and the sizes of the axes; in the front end axes have names too.

A size is a number or a polynomial over symbols (`smelt.size`). The IR uses shapes without names as its tensor types.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from smelt.dtype import DType, ElementType, Quantized, dtype
from smelt.errors import ShapeError
from smelt.size import Poly, Size, evaluate, parse_size, product, substitute, symbols


class Shape:
    """What a tensor looks like. Immutable, compared by value.

    >>> Shape("f32", 2, 3), Shape("f32", b="B", d=512), Shape("i32")
    (f32[2, 3], f32[b=B, d=512], i32[])
    """

    __slots__ = ("_hash", "bounds", "dtype", "is_static", "names", "sizes")

    dtype: ElementType
    sizes: tuple[Size, ...]
    names: tuple[str, ...] | None
    _hash: int
    bounds: tuple[int | None, ...] | None  # upper bounds of symbolic sizes, where they were stated
    is_static: bool

    def __init__(self, element: str | ElementType, *sizes: Size | str, **named: Size | str) -> None:
        if sizes and named:
            raise ShapeError("a shape has named axes or unnamed ones, not both", got=f"{sizes} and {sorted(named)}")
        given = tuple(_size(size) for size in (sizes or named.values()))
        _set(
            self,
            element if isinstance(element, (DType, Quantized)) else dtype(element),
            given,
            tuple(named) or None,
            None,
        )

    @staticmethod
    def of(
        element: ElementType,
        sizes: Iterable[Size],
        names: tuple[str, ...] | None = None,
        bounds: tuple[int | None, ...] | None = None,
    ) -> Shape:
        """A shape from checked parts: what the compiler itself calls."""
        shape = object.__new__(Shape)
        if bounds is not None and all(bound is None for bound in bounds):
            bounds = None
        _set(shape, element, tuple(sizes), names, bounds)
        return shape

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Shape is immutable: make a new one instead of setting {name!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        return Shape.of, (self.dtype, self.sizes, self.names, self.bounds)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return (
            isinstance(other, Shape)
            and self.dtype == other.dtype
            and self.sizes == other.sizes
            and self.names == other.names
            and self.bounds == other.bounds
        )

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        names = self.names or ("",) * self.rank
        axes = (f"{name}={size}" if name else str(size) for name, size in zip(names, self.sizes, strict=True))
        return f"{self.dtype}[{', '.join(axes)}]"

    @property
    def rank(self) -> int:
        return len(self.sizes)

    @property
    def count(self) -> Size:
        """How many elements."""
        return product(self.sizes)

    @property
    def symbols(self) -> frozenset[str]:
        """The symbols in the sizes."""
        return frozenset() if self.is_static else frozenset().union(*(symbols(size) for size in self.sizes))

    @property
    def element(self) -> DType:
        """The element type where no quantised one is possible."""
        assert isinstance(self.dtype, DType), f"{self} is quantised"
        return self.dtype

    def numbers(self, values: Mapping[str, int] = {}) -> tuple[int, ...]:
        """The sizes as integers, given the symbols' values."""
        if self.is_static:
            return self.sizes  # type: ignore[return-value]
        return tuple(evaluate(size, values) for size in self.sizes)

    def substitute(self, values: Mapping[str, Size]) -> Shape:
        """The same shape with symbols replaced."""
        if self.is_static:
            return self
        return self.with_sizes(substitute(size, values) for size in self.sizes)

    def with_dtype(self, element: ElementType) -> Shape:
        return Shape.of(element, self.sizes, self.names, self.bounds)

    def with_sizes(self, sizes: Iterable[Size]) -> Shape:
        return Shape.of(self.dtype, sizes)


def _set(
    shape: Shape,
    element: ElementType,
    sizes: tuple[Size, ...],
    names: tuple[str, ...] | None,
    bounds: tuple[int | None, ...] | None,
) -> None:
    put = object.__setattr__
    put(shape, "dtype", element)
    put(shape, "sizes", sizes)
    put(shape, "names", names)
    put(shape, "bounds", bounds)
    put(shape, "is_static", all(type(size) is int for size in sizes))
    put(shape, "_hash", hash((element, sizes, names)))


def _size(given: Size | str) -> Size:
    size = parse_size(given) if isinstance(given, str) else getattr(given, "size", given)  # the front end's Dim has one
    if isinstance(size, Poly) or (type(size) is int and size >= 0):
        return size
    raise ShapeError("not a size", expected="a number of at least 0, a symbol or a formula", got=repr(given))
