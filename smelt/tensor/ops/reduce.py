"""Ops along axes: sums and other reductions, softmax, cumulative ops, sorting, top_k.

Axes are given by name (`"s"`, `"h k"`, a tuple) or by number where they have no names; none means all of them. With
`keep=True` a reduced axis stays with size 1. Sums of integers keep their type; averages need floats.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from smelt.dim import Size, product
from smelt.dtype import DType, dtype, i32, i64, integer_range
from smelt.ir.core import Region
from smelt.shape import Shape
from smelt.tensor.axes import Axis, SizeLike, find_axes, find_axis, name_at, size_of
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import insert, move_back, move_last, relabel, take_slices
from smelt.tensor.proving import at_most
from smelt.tensor.record import (
    Leaf,
    binary_region,
    constant,
    emit,
    emit_all,
    inside,
    operand,
    region_of,
    require,
    scalar_region,
    scalar_regions,
    size_tensor,
    tensor_of,
)
from smelt.tensor.source import refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

Axes: TypeAlias = Axis | Sequence[Axis] | None


def _drop_names(x: Tensor, places: Sequence[int]) -> tuple[str, ...] | None:
    names = x.shape.names
    return None if names is None else tuple(name for i, name in enumerate(names) if i not in places)


def _restore(x: Tensor, reduced: Tensor, places: Sequence[int]) -> Tensor:
    """The reduced axes again, with size 1."""
    for place in sorted(places):
        reduced = insert(reduced, x.shape.names[place] if x.shape.names else place, place)
    return reduced


def _reduce(x: Tensor, places: Sequence[int], op: str, start: el.Number, keep: bool) -> Tensor:
    region = binary_region(op, x.dtype)
    dims = tuple(sorted(places))
    start_value = constant(start, x.dtype)
    result = emit("reduce", x, start_value, names=_drop_names(x, places), regions=(region,), dimensions=dims)
    return _restore(x, result, places) if keep else result


def _require_kind(what: str, x: Tensor, *kinds: str) -> None:
    if x.dtype.kind not in kinds:
        remedy = 'cast first: .to("f32")' if "float" in kinds else "compare first: x != 0"
        refuse(f"{what}: not for {x.dtype}", operand("operand", x), remedy=remedy)


def sum(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """Added up."""
    _require_kind("sum", x, "int", "uint", "float", "complex")
    return _reduce(x, find_axes("sum", operand("operand", x), axes), "add", 0, keep)


def prod(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """Multiplied."""
    _require_kind("prod", x, "int", "uint", "float", "complex")
    return _reduce(x, find_axes("prod", operand("operand", x), axes), "multiply", 1, keep)


def max(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """The largest element; the lowest value of the type where there is none."""
    _require_kind("max", x, "bool", "int", "uint", "float")
    return _reduce(x, find_axes("max", operand("operand", x), axes), "maximum", el.lowest(x.dtype), keep)


def min(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """The smallest element; the highest value of the type where there is none."""
    _require_kind("min", x, "bool", "int", "uint", "float")
    return _reduce(x, find_axes("min", operand("operand", x), axes), "minimum", el.highest(x.dtype), keep)


def all(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """Whether all hold."""
    _require_kind("all", x, "bool")
    return _reduce(x, find_axes("all", operand("operand", x), axes), "and", True, keep)


def any(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """Whether one holds."""
    _require_kind("any", x, "bool")
    return _reduce(x, find_axes("any", operand("operand", x), axes), "or", False, keep)


def count(x: Tensor, axes: Axes = None, element: str | DType = i32) -> Tensor:
    """The number of elements along axes, as a scalar tensor.

    A number that does not fit the element type is an error: proven not to occur, or checked when the program runs.
    """
    places, wanted = find_axes("count", operand("operand", x), axes), dtype(element)
    found = product(x.shape.sizes[place] for place in places)
    made = _count(x, places, wanted)
    if not wanted.is_integer or wanted is i64:
        return made
    most = integer_range(wanted)[1]
    if isinstance(found, int):
        if found > most:
            refuse(f"count: {found} does not fit {wanted}", operand("operand", x), remedy='.count(…, "i64")')
        return made
    if at_most(found, most):
        return made
    return require(made, ("count", found, wanted), partial(_check_fits, x, found, most, wanted))


def _check_fits(x: Tensor, found: Size, most: int, element: DType) -> tuple[Tensor, str, Sequence[Tensor]]:
    """The run-time check that a size fits an element type."""
    number = size_tensor(found, [x])
    return el.less_equal(number, constant(most, i64)), f"count: {{0}} does not fit {element}", [number]


def _count(x: Tensor, places: Sequence[int], element: DType | None = None) -> Tensor:
    """How many elements are reduced to one, as a scalar of x's type unless another is given."""
    found = product(x.shape.sizes[place] for place in places)
    if isinstance(found, int):
        return constant(found, element or x.dtype)
    return el.cast(size_tensor(found, [x]), element or x.dtype)


def mean(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """The average, of floats."""
    _require_kind("mean", x, "float", "complex")
    places = find_axes("mean", operand("operand", x), axes)
    return el.divide(_reduce(x, places, "add", 0, keep), _count(x, places))


def var(x: Tensor, axes: Axes = None, *, keep: bool = False, correction: int = 0) -> Tensor:
    """The average square of the distance from the average; `correction` is taken off the count."""
    _require_kind("var", x, "float")
    places = find_axes("var", operand("operand", x), axes)
    centred = el.subtract(x, _spread(mean(x, axes, keep=True), x))
    number = _count(x, places)
    if correction:
        number = el.subtract(number, correction)
    return el.divide(_reduce(el.square(centred), places, "add", 0, keep), number)


def _spread(reduced: Tensor, x: Tensor) -> Tensor:
    """A tensor with axes of size 1 repeated to the shape of x."""
    return el.spread(reduced, x.shape, tuple(range(x.shape.rank)))


def std(x: Tensor, axes: Axes = None, *, keep: bool = False, correction: int = 0) -> Tensor:
    """The square root of the variance."""
    _require_kind("std", x, "float")
    find_axes("std", operand("operand", x), axes)
    return el.function("sqrt", var(x, axes, keep=keep, correction=correction))


def norm(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """The Euclidean length."""
    _require_kind("norm", x, "float")
    find_axes("norm", operand("operand", x), axes)
    return el.function("sqrt", sum(el.square(x), axes, keep=keep))


def logsumexp(x: Tensor, axes: Axes = None, *, keep: bool = False) -> Tensor:
    """log(sum(exp(x))), without overflow."""
    _require_kind("logsumexp", x, "float")
    places = find_axes("logsumexp", operand("operand", x), axes)
    peak = max(x, axes, keep=True)
    peak = el.where(el.function("isfinite", peak), peak, 0.0)
    total = el.function("log", sum(el.function("exp", el.subtract(x, _spread(peak, x))), axes, keep=True))
    result = el.add(total, peak)
    if keep:
        return result
    names = _drop_names(x, places)
    sizes = [size for i, size in enumerate(x.shape.sizes) if i not in places]
    return emit("reshape", result, names=names, result=Shape.of(x.dtype, sizes))


def softmax(x: Tensor, axes: Axes) -> Tensor:
    """exp(x) / sum(exp(x)) along axes, without overflow."""
    _require_kind("softmax", x, "float")
    find_axes("softmax", operand("operand", x), axes)
    grown = el.function("exp", el.subtract(x, _spread(max(x, axes, keep=True), x)))
    return el.divide(grown, _spread(sum(grown, axes, keep=True), x))


def log_softmax(x: Tensor, axes: Axes) -> Tensor:
    """The logarithm of softmax, without overflow."""
    _require_kind("log_softmax", x, "float")
    find_axes("log_softmax", operand("operand", x), axes)
    centred = el.subtract(x, _spread(max(x, axes, keep=True), x))
    total = el.function("log", sum(el.function("exp", centred), axes, keep=True))
    return el.subtract(centred, _spread(total, x))


# ---- argmax, argmin ----


def _arg_region(element: DType, direction: str) -> Region:
    """Of two (value, place) pairs the better one: a nan wins over numbers, the earlier place over equals."""

    def better(a: Tensor, i: Tensor, b: Tensor, j: Tensor) -> tuple[Tensor, Tensor]:
        wins = el._compare(direction, direction, a, b)
        if element.is_float:
            wins = emit("or", wins, el.not_equal(a, a))
        same = el.equal(a, b)
        if element.is_float:
            same = emit("or", same, emit("and", el.not_equal(a, a), el.not_equal(b, b)))
        earlier = emit("and", same, el.less(i, j))
        first = emit("or", emit("and", wins, emit("not", same)), earlier)
        return emit("select", first, a, b), emit("select", first, i, j)

    return scalar_regions((element, i32, element, i32), better)


def _arg_reduce(what: str, direction: str, x: Tensor, axis: Axis | None, keep: bool) -> Tensor:
    _require_kind(what, x, "bool", "int", "uint", "float")
    shown = operand("operand", x)
    if axis is None:
        if x.shape.rank != 1:
            refuse(f"{what}: along which axis?", shown, remedy=f'.{what}("s")')
        place = 0
    else:
        place = find_axis(what, shown, axis)
    if not (answer := at_most(1, x.shape.sizes[place])):
        refuse(f"{what}: {name_at(x.shape, place)} may be empty", shown, answer=answer)
    indices = emit("iota", names=x.shape.names, result=Shape.of(i32, x.shape.sizes), iota_dimension=place)
    start = el.lowest(x.dtype) if direction == "GT" else el.highest(x.dtype)
    starts = constant(start, x.dtype), constant((1 << 31) - 1, i32)
    names = _drop_names(x, [place])
    region = _arg_region(x.dtype, direction)
    _, result = emit_all("reduce", (x, indices, *starts), (names, names), regions=(region,), dimensions=(place,))
    return _restore(x, result, [place]) if keep else result


def argmax(x: Tensor, axis: Axis | None = None, *, keep: bool = False) -> Tensor:
    """The index of the first largest element of an axis, as i32; a nan counts as the largest."""
    return _arg_reduce("argmax", "GT", x, axis, keep)


def argmin(x: Tensor, axis: Axis | None = None, *, keep: bool = False) -> Tensor:
    """The index of the first smallest element of an axis, as i32; a nan counts as the smallest."""
    return _arg_reduce("argmin", "LT", x, axis, keep)


# ---- cumulative ----


def _scan_along(what: str, x: Tensor, axis: Axis, op: str, start: el.Number, reverse: bool) -> Tensor:
    place = find_axis(what, operand("operand", x), axis)
    sizes = [size for i, size in enumerate(x.shape.sizes) if i != place]
    first = el.spread(constant(start, x.dtype), Shape.of(x.dtype, sizes), ()) if sizes else constant(start, x.dtype)
    region = _row_region(Shape.of(x.dtype, sizes), lambda a, carry: emit(op, a, carry))
    names = x.shape.names
    total, _ = emit_all(
        "chlo.scan",
        (relabel(x, None), first),
        (names, None),
        regions=(region,),
        dimension=place,
        is_reverse=reverse,
    )
    return total


def _row_region(row: Shape, build: Callable[[Tensor, Tensor], Tensor]) -> Region:
    """A scan's body over rows: each result is both output and carry."""
    with inside() as home:
        args = [Leaf(row, home=home), Leaf(row, home=home)]
        result = build(tensor_of(args[0], None), tensor_of(args[1], None)).value
        return region_of(home, args, [result, result])


def cumsum(x: Tensor, axis: Axis, *, reverse: bool = False) -> Tensor:
    """Sums of all elements up to each one."""
    _require_kind("cumsum", x, "int", "uint", "float", "complex")
    return _scan_along("cumsum", x, axis, "add", 0, reverse)


def cumprod(x: Tensor, axis: Axis, *, reverse: bool = False) -> Tensor:
    """Products of all elements up to each one."""
    _require_kind("cumprod", x, "int", "uint", "float", "complex")
    return _scan_along("cumprod", x, axis, "multiply", 1, reverse)


def cummax(x: Tensor, axis: Axis, *, reverse: bool = False) -> Tensor:
    """The largest of all elements up to each one."""
    _require_kind("cummax", x, "bool", "int", "uint", "float")
    return _scan_along("cummax", x, axis, "maximum", el.lowest(x.dtype), reverse)


def cummin(x: Tensor, axis: Axis, *, reverse: bool = False) -> Tensor:
    """The smallest of all elements up to each one."""
    _require_kind("cummin", x, "bool", "int", "uint", "float")
    return _scan_along("cummin", x, axis, "minimum", el.highest(x.dtype), reverse)


# ---- sorting ----


def _comes_before(element: DType, descending: bool) -> Callable[[Tensor, Tensor], Tensor]:
    """The comparison "a before b"; nans come last in both directions."""

    def compare(a: Tensor, b: Tensor) -> Tensor:
        less = emit("compare", a, b, comparison_direction="GT" if descending else "LT")
        if not element.is_float:
            return less
        number, other = (
            emit("compare", a, a, comparison_direction="EQ"),
            emit("compare", b, b, comparison_direction="NE"),
        )
        return emit("or", less, emit("and", number, other))

    return compare


def sort(x: Tensor, axis: Axis, *, descending: bool = False) -> Tensor:
    """In order along an axis; equal elements stay in order, nans come last."""
    _require_kind("sort", x, "bool", "int", "uint", "float")
    place = find_axis("sort", operand("operand", x), axis)
    region = scalar_region(x.dtype, _comes_before(x.dtype, descending))
    return emit("sort", x, names=x.shape.names, regions=(region,), dimension=place, is_stable=True)


def _sort_places(what: str, x: Tensor, place: int, descending: bool) -> tuple[Tensor, Tensor]:
    _require_kind(what, x, "bool", "int", "uint", "float")
    indices = emit("iota", names=x.shape.names, result=Shape.of(i32, x.shape.sizes), iota_dimension=place)
    before = _comes_before(x.dtype, descending)
    region = scalar_regions((x.dtype, x.dtype, i32, i32), lambda a, b, _i, _j: (before(a, b),))
    names = x.shape.names
    values, order = emit_all("sort", (x, indices), (names, names), regions=(region,), dimension=place, is_stable=True)
    return values, order


def argsort(x: Tensor, axis: Axis, *, descending: bool = False) -> Tensor:
    """The indices that sort an axis, as i32."""
    place = find_axis("argsort", operand("operand", x), axis)
    return _sort_places("argsort", x, place, descending)[1]


def top_k(x: Tensor, k: SizeLike, axis: Axis) -> tuple[Tensor, Tensor]:
    """The k largest elements of an axis in descending order, and their indices (i32). The axis must have k."""
    shown = operand("operand", x)
    place, wanted = find_axis("top_k", shown, axis), size_of(k)
    size = x.shape.sizes[place]
    if not (answer := at_most(wanted, size)):
        refuse(
            f"top_k: {name_at(x.shape, place)} of size {size} may have fewer than {wanted} elements",
            shown,
            answer=answer,
        )
    if not (answer := at_most(0, wanted)):
        refuse(f"top_k: {wanted} elements may be negative", shown, answer=answer)
    _require_kind("top_k", x, "bool", "int", "uint", "float")
    if isinstance(wanted, int):
        last = move_last(x, place)
        names = last.shape.names
        values, indices = emit_all("chlo.top_k", (last,), (names, names), k=wanted)
        return move_back(values, place), move_back(indices, place)
    values, indices = _sort_places("top_k", x, place, True)
    from_start = {place: slice(0, k)}
    return take_slices(values, from_start), take_slices(indices, from_start)
