"""Axes: dynamic dimensions as Python values, axes by name or number, and alignment of elementwise operands.

`Dim` is a symbolic size for arithmetic and comparisons. `align` broadcasts operands: by name where axes have names, by
position (strictly) where they have none. Every op of `smelt.tensor` calls this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, NoReturn, TypeAlias, final

from smelt.dim import Answer, Fact, Poly, Size, floordiv, mod, parse_size
from smelt.errors import ShapeError
from smelt.shape import Shape
from smelt.tensor.facts import decide
from smelt.tensor.proving import equal, resolve_size
from smelt.tensor.record import is_tensor
from smelt.tensor.source import NumberError, Operand, refuse, suggest_fact


@final
class Dim:
    """A dynamic dimension in Python: arithmetic returns sizes, comparisons are branches that the tracer follows.

    >>> 2 * Dim(parse_size("S")) + 1
    2*S + 1
    """

    __slots__ = ("size",)

    size: Poly  # what `Shape` reads, too

    def __init__(self, size: Poly) -> None:
        self.size = size

    def __add__(self, other: int | Dim | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(self.size + size_of(other))

    def __radd__(self, other: int | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(self.size + size_of(other))

    def __sub__(self, other: int | Dim | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(self.size - size_of(other))

    def __rsub__(self, other: int | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(size_of(other) - self.size)

    def __mul__(self, other: int | Dim | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(self.size * size_of(other))

    def __rmul__(self, other: int | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(self.size * size_of(other))

    def __floordiv__(self, other: int | Dim | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(floordiv(self.size, size_of(other)))

    def __rfloordiv__(self, other: int | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(floordiv(size_of(other), self.size))

    def __mod__(self, other: int | Dim | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(mod(self.size, size_of(other)))

    def __rmod__(self, other: int | Poly) -> int | Dim:
        return NotImplemented if is_tensor(other) else dim(mod(size_of(other), self.size))

    def __pow__(self, exponent: float) -> int | Dim:
        return dim(self.size**exponent) if isinstance(exponent, int) and exponent >= 0 else self._no_number()

    def __neg__(self) -> int | Dim:
        return dim(-self.size)

    def __truediv__(self, other: object) -> Any:
        return NotImplemented if is_tensor(other) else self._no_number()

    def __rtruediv__(self, other: object) -> NoReturn:
        self._no_number()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, int | Dim | Poly):
            return NotImplemented
        size = size_of(other)
        return self.size == size or decide(Fact("==", self.size, size))

    def __ne__(self, other: object) -> bool:
        same = self.__eq__(other)
        return same if same is NotImplemented else not same

    def __lt__(self, other: SizeLike) -> bool:
        return decide(Fact("<=", self.size + 1, size_of(other)))

    def __le__(self, other: SizeLike) -> bool:
        return decide(Fact("<=", self.size, size_of(other)))

    def __gt__(self, other: SizeLike) -> bool:
        return decide(Fact("<=", size_of(other) + 1, self.size))

    def __ge__(self, other: SizeLike) -> bool:
        return decide(Fact("<=", size_of(other), self.size))

    def __bool__(self) -> bool:
        return not decide(Fact("==", self.size, 0))

    def __hash__(self) -> NoReturn:
        refuse(
            f"the dynamic dimension {self.size} has no hash: a set would compare its formula, not its value",
            details=[("size", str(self.size))],
            remedy="compare it: n == 3 or n == 4, n in (3, 4)",
        )

    def __index__(self) -> NoReturn:
        self._no_number()

    __int__ = __float__ = __index__

    def _no_number(self) -> NoReturn:
        refuse(
            f"the dynamic dimension {self.size} has no value before the function is called",
            details=[("size", str(self.size))],
            remedy='compute with it (+ - * // %), take it as a tensor, x.count("axis", "f32"), or fix the size',
            kind=NumberError,
        )

    def __repr__(self) -> str:
        return str(self.size)


SizeLike: TypeAlias = int | str | Poly | Dim
Axis: TypeAlias = int | str


def dim(size: Size) -> int | Dim:
    """A size as Python sees it: a number, or a Dim."""
    return size if isinstance(size, int) else Dim(size)


def size_of(given: object) -> Size:
    """A size from a number, a Dim, a polynomial or a text like `"H*K"`."""
    if isinstance(given, Dim):
        return given.size
    if isinstance(given, int | Poly):
        return given
    if isinstance(given, str):
        return resolve_size(parse_size(given))
    try:
        return index(given)  # type: ignore[arg-type]
    except TypeError:
        refuse("not a size", details=[("got", repr(given))], remedy='a number, a symbol "S" or a formula "H*K"')


# ---- names ----


def names_of(names: str | Sequence[str]) -> tuple[str, ...]:
    """`"h k"`, `"h, k"` or a sequence of names as a tuple."""
    return tuple(names.replace(",", " ").split()) if isinstance(names, str) else tuple(names)


def check_names(what: str, names: Sequence[str], *operands: Operand) -> tuple[str, ...]:
    """Names for axes: identifiers, each once."""
    for name in names:
        if not name.isidentifier():
            refuse(f"{what}: {name!r} is not a name for an axis", *operands)
        if list(names).count(name) > 1:
            refuse(
                f'{what}: two axes would be called "{name}"', *operands, remedy="rename one of them first: .rename(…)"
            )
    return tuple(names)


def find_axis(
    what: str, operand: Operand, axis: Axis, *, blame: int | None = None, others: Sequence[Operand] = ()
) -> int:
    """The index of an axis that is given by name, or by number where axes have no names."""
    shape = operand.shape
    shown = (operand, *others)
    if isinstance(axis, str):
        if shape.names is None:
            hint = "its axes have no names: give them some with .named(…), or use numbers"
            refuse(f'{what}: the {operand.label} has no axis "{axis}"', *shown, blame=blame, remedy=hint)
        if axis not in shape.names:
            hint = " or ".join(f'"{name}"' for name in shape.names) or f"leave {what} out: a scalar has no axes"
            refuse(f'{what}: the {operand.label} has no axis "{axis}"', *shown, blame=blame, remedy=hint)
        return shape.names.index(axis)
    place = index(axis)
    if shape.names is not None:
        if -shape.rank <= place < shape.rank:
            hint = f'say "{shape.names[place]}"'
        else:
            hint = "say its name"
        refuse(f"{what}: axes with names are given by name", *shown, blame=blame, remedy=hint)
    if not -shape.rank <= place < shape.rank:
        refuse(f"{what}: there is no axis {place}", *shown, blame=blame)
    return place % shape.rank


def find_axes(what: str, operand: Operand, axes: Axis | Sequence[Axis] | None) -> tuple[int, ...]:
    """Indices of several axes, in the order given; None is all of them."""
    if axes is None:
        return tuple(range(operand.shape.rank))
    if isinstance(axes, str):
        axes = names_of(axes)
    elif isinstance(axes, int):
        axes = (axes,)
    places = tuple(find_axis(what, operand, axis) for axis in axes)
    if len(set(places)) != len(places):
        refuse(f"{what}: an axis is named twice", operand)
    return places


def name_at(shape: Shape, place: int) -> str:
    """How errors call an axis."""
    return f'"{shape.names[place]}"' if shape.names else f"axis {place}"


# ---- alignment ----


Places: TypeAlias = tuple[int, ...]  # for each axis of an operand, its place in the result


def align(what: str, operands: Sequence[Operand], *, outer: bool = False) -> tuple[Shape, list[Places]]:
    """The common shape of elementwise operands (with the first one's element type), and where their axes go.

    With names: axes of one name are one axis and must have one size; the axes of one operand contain all others, or
    the user says `outer`. Without names: the last axes align, sizes are equal or plainly 1, and only one operand may
    stretch. Scalars go with everything. The result has the axes in the order of the operand that has most of them, the
    left one where several do.
    """
    first = operands[0]
    same = first.shape.names
    if all(each.shape.names == same and each.shape.sizes == first.shape.sizes for each in operands[1:]):
        return first.shape, [tuple(range(first.shape.rank))] * len(operands)
    full = [operand for operand in operands if operand.shape.rank]
    if not full:
        return first.shape, [()] * len(operands)
    named = [operand.shape.names is not None for operand in full]
    if all(named):
        return _align_names(what, operands, full, outer)
    if any(named):
        bare = [Operand(each.label, Shape.of(each.shape.dtype, each.shape.sizes), each.place) for each in operands]
        _align_places(what, bare, [each for each in bare if each.shape.rank])  # report a simpler mistake first
        remedy = "name the axes of the other operand: .named(…)"
        refuse(f"{what}: named and unnamed axes do not mix", *operands, remedy=remedy)
    return _align_places(what, operands, full)


def _align_names(
    what: str, operands: Sequence[Operand], full: Sequence[Operand], outer: bool
) -> tuple[Shape, list[Places]]:
    names: list[str] = []
    sizes: list[Size] = []
    widest = max(full, key=lambda operand: operand.shape.rank)
    for operand in (widest, *full):
        assert operand.shape.names is not None
        for name, size in zip(operand.shape.names, operand.shape.sizes, strict=True):
            if name not in names:
                names.append(name)
                sizes.append(size)
                continue
            if size is not (known := sizes[names.index(name)]) and not (answer := equal(known, size)):
                message = f'{what}: the axis "{name}" has different sizes, {known} and {size}'
                refuse(message, *operands, answer=answer, remedy=_suggest_name(name, (known, size), answer.missing))
    if not outer and len(names) > widest.shape.rank:
        _refuse_outer(what, operands, full, widest)
    result = Shape.of(operands[0].shape.dtype, sizes, tuple(names))
    return result, [tuple(names.index(name) for name in operand.shape.names or ()) for operand in operands]


def _suggest_name(name: str, sizes: tuple[Size, Size], missing: str | None) -> str:
    if 1 in sizes:
        return f'an axis of size 1 is not repeated by itself: leave it out with .squeeze("{name}") or without keep=True'
    return f'if these are different axes, give one another name: .rename({name}="…"){suggest_fact(missing)}'


def _refuse_outer(what: str, operands: Sequence[Operand], full: Sequence[Operand], widest: Operand) -> NoReturn:
    own = widest.shape.names or ()
    extra = next(
        (name, size)
        for operand in full
        for name, size in zip(operand.shape.names or (), operand.shape.sizes, strict=True)
        if name not in own
    )
    others = [name for name, size in zip(own, widest.shape.sizes, strict=True) if size == extra[1]]
    alone = [name for name in others if not all(name in (each.shape.names or ()) for each in full)]
    remedy = "to combine every pair, use smelt.outer(…)"
    if alone:
        remedy = f'if "{extra[0]}" is "{alone[0]}", .rename({extra[0]}="{alone[0]}"); {remedy}'
    refuse(f'{what}: neither operand has all axes of the other (only one has "{extra[0]}")', *operands, remedy=remedy)


def _align_places(what: str, operands: Sequence[Operand], full: Sequence[Operand]) -> tuple[Shape, list[Places]]:
    rank = max(operand.shape.rank for operand in full)
    sizes: list[Size] = [1] * rank
    for operand in full:
        for place, size in enumerate(operand.shape.sizes, rank - operand.shape.rank):
            if size == 1:
                continue
            if sizes[place] == 1:
                sizes[place] = size
            elif sizes[place] is not size and not (answer := equal(sizes[place], size)):
                message = f"{what}: axis {place} has different sizes, {sizes[place]} and {size}"
                refuse(
                    message,
                    *operands,
                    answer=answer,
                    remedy=_suggest_transpose([each.shape.sizes for each in full], answer),
                )
    if not any(operand.shape.rank == rank and not _is_stretched(operand, sizes) for operand in full):
        shown = ", ".join(map(str, sizes))
        message = f"{what}: both operands would have to be repeated, to [{shown}]"
        refuse(message, *operands, remedy="name the axes, or make the shape explicit with .broadcast(…)")
    result = Shape.of(operands[0].shape.dtype, sizes)
    return result, [tuple(range(rank - each.shape.rank, rank)) if each.shape.rank else () for each in operands]


def _suggest_transpose(shapes: Sequence[Sequence[Size]], answer: Answer) -> str | None:
    """The remedy where the axes have the same sizes in another order."""
    first, other = shapes[0], shapes[-1]
    order = permutation_of(other, first)
    if order is None:
        return None
    return f"put the axes in the same order: .transpose({', '.join(map(str, order))}){suggest_fact(answer.missing)}"


def permutation_of(sizes: Sequence[Size], wanted: Sequence[Size]) -> list[int] | None:
    """The order that makes sizes the wanted ones; None where there is none but their own."""
    order: list[int] = []
    for want in wanted:
        found = next((i for i, size in enumerate(sizes) if size == want and i not in order), None)
        if found is None:
            return None
        order.append(found)
    return order if len(order) == len(sizes) and order != sorted(order) else None


def _is_stretched(operand: Operand, sizes: Sequence[Size]) -> bool:
    return any(have == 1 and want != 1 for have, want in zip(operand.shape.sizes, sizes, strict=True))


# ---- shapes from text ----


def parse_shape(text: str) -> tuple[str | None, tuple[Size, ...], tuple[str, ...] | None]:
    """(element type or None, sizes, names or None) of `"f32[b=B, s=S, d=512]"` or the short form `"[B, S, D]"`.

    In the short form the axes are called like the symbols, in lower case; where sizes are numbers or repeat, axes have
    no names.

    >>> parse_shape("f32[b=B, d=512]"), parse_shape("[B, S]")[2], parse_shape("[B, 1]")[2]
    (('f32', (B, 512), ('b', 'd')), ('b', 's'), None)
    """
    head, bracket, rest = text.strip().partition("[")
    if not bracket or not rest.endswith("]"):
        raise ShapeError("not a shape", expected='"f32[b=B, s=S, d=512]" or "[B, S, D]"', got=repr(text))
    parts = [part.strip() for part in _split_commas(rest[:-1])]
    pairs = [part.partition("=") for part in parts if part]
    if any(equals for _, equals, _ in pairs) and not all(equals for _, equals, _ in pairs):
        raise ShapeError("a shape has named axes or unnamed ones, not both", got=repr(text))
    if pairs and pairs[0][1]:
        names: tuple[str, ...] | None = tuple(name.strip() for name, _, _ in pairs)
        sizes = tuple(parse_size(size) for _, _, size in pairs)
        if len(set(names or ())) != len(pairs) or not all(name.isidentifier() for name in names or ()):
            raise ShapeError("the names of axes are identifiers, each once", got=repr(text))
        return head.strip() or None, sizes, names
    sizes = tuple(parse_size(size) for size, _, _ in pairs)
    lower = tuple(str(size).lower() for size in sizes)
    distinct = len(set(lower)) == len(lower) and all(name.isidentifier() for name in lower)
    return head.strip() or None, sizes, lower if distinct and lower else None


def _split_commas(text: str) -> list[str]:
    """The text at its top-level commas: `max(S, 1)` is one size."""
    parts, depth, last = [], 0, 0
    for place, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(text[last:place])
            last = place + 1
    return [*parts, text[last:]]


def shape_of(given: Any) -> Shape:
    """A Shape, or the text of one with its element type."""
    if isinstance(given, Shape):
        return given
    element, sizes, names = parse_shape(given)
    if element is None:
        raise ShapeError("a shape needs an element type here", expected='"f32[…]"', got=repr(given))
    return Shape.of(Shape(element).dtype, [resolve_size(size) for size in sizes], names)
