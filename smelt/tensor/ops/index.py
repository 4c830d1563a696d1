"""Gather and scatter: take, scatter, one_hot, slices and updates at data-dependent positions.

Axes that operand and indices share by name are batch axes: each batch has its own indices. `take` and slices clamp an
index outside the axis, `scatter` ignores it, as in StableHLO; `update` refuses it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from smelt.dim import Size, minimum
from smelt.dtype import DType, dtype, i64
from smelt.ir.attributes import GatherDims, ScatterDims
from smelt.shape import Shape
from smelt.tensor.axes import Axis, SizeLike, check_names, find_axis, name_at, size_of
from smelt.tensor.ops import elementwise as el
from smelt.tensor.ops.move import permute, relabel
from smelt.tensor.proving import at_most, equal
from smelt.tensor.record import (
    constant,
    emit,
    is_tensor,
    operand,
    require,
    scalar_region,
    size_ops,
    size_tensor,
    tensor_of,
)
from smelt.tensor.source import Operand, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor


# ---- axes of operand and indices ----


class _Lookup:
    """Which axes of an operand and of indices are batch axes, indexed, or kept whole."""

    def __init__(self, what: str, x: Tensor, indices: Tensor, axis: Axis, paired: bool) -> None:
        self.x, self.indices, self.what = x, indices, what
        self.left, self.right = operand("operand", x), operand("indices", indices)
        self.place = find_axis(what, self.left, axis)
        if not indices.dtype.is_integer:
            refuse(f"{what}: indices must be integers", self.left, self.right, blame=1, remedy='.to("i32")')
        named = x.shape.names is not None
        if indices.shape.rank and named != (indices.shape.names is not None):
            refuse(f"{what}: named and unnamed axes do not mix", self.left, self.right, blame=1)
        self.batch: list[tuple[int, int]] = []  # (axis of x, axis of indices)
        if named and paired and set(x.shape.names or ()) != set(indices.shape.names or ()):
            remedy = f".take(…) takes all indices at every position, .{what}(…) those of the position itself"
            refuse(f"{what}: operand and indices have different axes", self.left, self.right, blame=1, remedy=remedy)
        if named:
            own = x.shape.names or ()
            for j, name in enumerate(indices.shape.names or ()):
                if name in own and own.index(name) != self.place:
                    self.batch.append((own.index(name), j))
        elif paired:
            if x.shape.rank != indices.shape.rank:
                refuse(f"{what}: operand and indices have different numbers of axes", self.left, self.right, blame=1)
            self.batch = [(i, i) for i in range(x.shape.rank) if i != self.place]
        for i, j in self.batch:
            if not (answer := equal(x.shape.sizes[i], indices.shape.sizes[j])):
                sizes = f"{x.shape.sizes[i]} and {indices.shape.sizes[j]}"
                message = f"{what}: {name_at(x.shape, i)} has different sizes, {sizes}"
                refuse(message, self.left, self.right, answer=answer, blame=1)
        self.batch.sort()
        of_x, of_indices = {i for i, _ in self.batch}, {j for _, j in self.batch}
        self.kept = [i for i in range(x.shape.rank) if i != self.place and i not in of_x]
        self.looked = [j for j in range(indices.shape.rank) if j not in of_indices]

    @property
    def result_order(self) -> list[int]:
        """The permutation of (indices' axes, kept axes) to the result: the indices' axes replace the indexed one."""
        partner = dict(self.batch)
        order: list[int] = []
        rank = self.indices.shape.rank
        for i in range(self.x.shape.rank):
            if i == self.place:
                order += self.looked
            elif i in partner:
                order.append(partner[i])
            else:
                order.append(rank + self.kept.index(i))
        return order

    @property
    def names(self) -> tuple[str, ...] | None:
        """The names of (indices' axes, kept axes)."""
        if self.x.shape.names is None:
            return None
        return (*(self.indices.shape.names or ()), *(self.x.shape.names[i] for i in self.kept))

    @property
    def sizes(self) -> list[Size]:
        return [*self.indices.shape.sizes, *(self.x.shape.sizes[i] for i in self.kept)]


def _take(what: str, x: Tensor, indices: Tensor, axis: Axis, paired: bool) -> Tensor:
    look = _Lookup(what, x, indices, axis, paired)
    if look.names is not None:
        check_names(what, look.names, look.left, look.right)
    rank = indices.shape.rank
    batching = tuple(i for i, _ in look.batch)
    dims = GatherDims(
        offset_dims=tuple(range(rank, rank + len(look.kept))),
        collapsed_slice_dims=(look.place,),
        operand_batching_dims=batching,
        start_indices_batching_dims=tuple(j for _, j in look.batch),
        start_index_map=(look.place,),
        index_vector_dim=rank,
    )
    # A slice fits into its axis, an empty one too: looking up in an axis of size 0 gives zeros.
    whole = [
        size if i in look.kept else 1 if at_most(1, size) else minimum(size, 1) for i, size in enumerate(x.shape.sizes)
    ]
    made = size_ops(whole, [x]).gather(x.value, indices.value, dims, whole, Shape.of(x.dtype, look.sizes))
    return permute(tensor_of(made, look.names), look.result_order)


def take(x: Tensor, indices: Tensor, axis: Axis) -> Tensor:
    """Gather elements of an axis at `indices`: `table.take(ids, "v")`.

    The indices' axes replace the axis. Axes that both have by name are batch axes.
    """
    (indices,) = el.lift("take", (indices,), ("indices",))
    return _take("take", x, indices, axis, False)


def take_along(x: Tensor, indices: Tensor, axis: Axis) -> Tensor:
    """Gather along one axis for each position of all others; `indices` have the same axes as the operand."""
    return _take("take_along", x, indices, axis, True)


_COMBINE = {"set": None, "add": "add", "multiply": "multiply", "max": "maximum", "min": "minimum"}


def scatter(
    x: Tensor, indices: Tensor, updates: Tensor, axis: Axis, how: str = "set", *, paired: bool = False
) -> Tensor:
    """The operand with updates written at `indices`, or combined with its elements.

    The updates have the axes that `take` would give. `how` is set, add, multiply, max or min; of several updates of
    one element, "set" keeps one.
    """
    if how not in _COMBINE:
        refuse(f"scatter: unknown mode {how!r}", remedy="one of " + ", ".join(_COMBINE))
    look = _Lookup("scatter", x, indices, axis, paired)
    third = operand("updates", updates)
    updates = el.cast(updates, x.dtype) if updates.dtype is not x.dtype else updates
    order = look.result_order
    shown = [look.left, look.right, third]
    if look.names is not None:
        check_names("scatter", look.names, *shown)
        if updates.shape.names is None or set(updates.shape.names) != set(look.names):
            wanted = " ".join(look.names[i] for i in order)
            refuse(
                "scatter: the updates have other axes than the places", *shown, blame=2, details=[("wanted", wanted)]
            )
        updates = permute(updates, [updates.shape.names.index(name) for name in look.names])
    else:
        if updates.shape.rank != len(order):
            refuse(f"scatter: the updates need {len(order)} axes", *shown, blame=2)
        updates = permute(updates, [order.index(i) for i in range(len(order))])
    for i, (have, want) in enumerate(zip(updates.shape.sizes, look.sizes, strict=True)):
        if not (answer := equal(have, want)):
            message = f"scatter: {name_at(updates.shape, i)} of the updates has size {have}, not {want}"
            refuse(message, *shown, answer=answer, blame=2)
    rank = indices.shape.rank
    dims = ScatterDims(
        update_window_dims=tuple(range(rank, rank + len(look.kept))),
        inserted_window_dims=(look.place,),
        input_batching_dims=tuple(i for i, _ in look.batch),
        scatter_indices_batching_dims=tuple(j for _, j in look.batch),
        scatter_dims_to_operand_dims=(look.place,),
        index_vector_dim=rank,
    )
    op = _COMBINE[how]
    region = scalar_region(x.dtype, lambda a, b: b if op is None else emit(op, a, b))
    return emit("scatter", x, indices, updates, names=x.shape.names, regions=(region,), scatter_dimension_numbers=dims)


def one_hot(x: Tensor, size: SizeLike, axis: str | None = None, element: str | DType = "f32") -> Tensor:
    """1 at the position that each integer names along a new last axis, 0 elsewhere."""
    shown = operand("operand", x)
    if not x.dtype.is_integer:
        refuse("one_hot: indices must be integers", shown, remedy='.to("i32")')
    if x.shape.rank and (axis is None) != (x.shape.names is None):
        refuse("one_hot: named and unnamed axes do not mix", shown, remedy='.one_hot(size, "name")')
    names = None if axis is None else check_names("one_hot", (*(x.shape.names or ()), axis), shown)
    shape = Shape.of(x.dtype, (*x.shape.sizes, size_of(size)), names)
    places = emit("iota", names=names, result=shape, iota_dimension=shape.rank - 1)
    wide = el.spread(relabel(x, None), Shape.of(x.dtype, shape.sizes), tuple(range(x.shape.rank)))
    return el.cast(el.equal(places, relabel(wide, names)), dtype(element))


# ---- slices and updates at data-dependent positions ----


def _start(what: str, given: Any, shown: Operand, near: Sequence[Tensor]) -> Tensor:
    """Where a slice starts, as a scalar i64."""
    if is_tensor(given):
        if given.shape.rank or not given.dtype.is_integer:
            refuse(f"{what}: a start must be an integer scalar", shown, operand("start", given))
        return el.cast(given, i64)
    return size_tensor(size_of(given), near)


def dynamic_slice(x: Tensor, slices: Mapping[Axis, tuple[Any, SizeLike]]) -> Tensor:
    """A slice whose start is a tensor: `x.dynamic_slice(s=(start, 4))`. The start is clamped to fit the axis."""
    shown = operand("operand", x)
    starts: list[Tensor] = [constant(0, i64)] * x.shape.rank
    sizes = list(x.shape.sizes)
    for axis, (start, count) in slices.items():
        place, size = find_axis("dynamic_slice", shown, axis), size_of(count)
        if not (answer := at_most(size, x.shape.sizes[place])) or not (answer := at_most(0, size)):
            room = f"{name_at(x.shape, place)} has {x.shape.sizes[place]}"
            message = f"dynamic_slice: {size} elements are not always there: {room}"
            refuse(message, shown, answer=answer)
        starts[place], sizes[place] = _start("dynamic_slice", start, shown, [x]), size
    if all(isinstance(size, int) for size in sizes):
        return emit("dynamic_slice", x, *starts, names=x.shape.names, slice_sizes=tuple(sizes))
    one = Shape.of(i64, (1,))
    first, limit = [], []
    for place, start in enumerate(starts):
        length = size_tensor(sizes[place], [x])
        most = emit("subtract", size_tensor(x.shape.sizes[place], [x]), length)
        inside = emit("clamp", constant(0, i64), start, most)
        first.append(emit("reshape", inside, result=one))
        limit.append(emit("reshape", emit("add", inside, length), result=one))
    bounds = [each[0] if len(each) == 1 else emit("concatenate", *each, dimension=0) for each in (first, limit)]
    steps = tensor_of(size_ops((), [x]).vector([1] * x.shape.rank), None)
    return emit("real_dynamic_slice", x, *bounds, steps, names=x.shape.names, result=Shape.of(x.dtype, sizes))


def update(x: Tensor, part: Tensor, starts: Mapping[Axis, Any]) -> Tensor:
    """The operand with a part of it overwritten: `cache.update(new, s=position)`.

    The part has the same axes. Along axes with a start it must fit: proven where the start is a size, checked at run
    time where it is a tensor. Along all others it has the operand's size.
    """
    left, right = operand("operand", x), operand("part", part)
    if x.shape.names is not None and part.shape.names is not None:
        odd = [
            name
            for name in (*x.shape.names, *part.shape.names)
            if name not in x.shape.names or name not in part.shape.names
        ]
        if odd:
            message = f'update: only one of the two has an axis "{odd[0]}"'
            refuse(message, left, right, blame=1, remedy="the part has the operand's axes: .rename(…)")
        part = permute(part, [part.shape.names.index(name) for name in x.shape.names])
    elif x.shape.names != part.shape.names or x.shape.rank != part.shape.rank:
        refuse("update: the two have different axes", left, right, blame=1)
    if part.dtype is not x.dtype:
        refuse(f"update: {part.dtype} into {x.dtype}", left, right, blame=1, remedy=f'.to("{x.dtype}")')
    places: list[Tensor] = [constant(0, i64)] * x.shape.rank
    given = {find_axis("update", left, axis): start for axis, start in starts.items()}
    for place, (have, room) in enumerate(zip(part.shape.sizes, x.shape.sizes, strict=True)):
        name = name_at(x.shape, place)
        if place in given:
            places[place] = _start("update", given[place], left, [x, part])
            if not (answer := at_most(have, room)):
                message = f"update: {have} elements do not always fit into {name} of size {room}"
                refuse(message, left, right, answer=answer, blame=1)
            start = None if is_tensor(given[place]) else size_of(given[place])
            if start is not None and not ((answer := at_most(0, start)) and (answer := at_most(start + have, room))):
                message = f"update: {have} elements from {start} on do not always fit into {name} of size {room}"
                refuse(message, left, right, answer=answer, blame=1)
        elif not (answer := equal(have, room)):
            message = f"update: {name} has size {have} in the part and {room} in the operand"
            remedy = (
                None
                if answer.missing is None
                else f"say where it starts ({name.strip(chr(34))}=0), or state {answer.missing}"
            )
            refuse(message, left, right, answer=answer, blame=1, remedy=remedy)
    made = emit("dynamic_update_slice", x, part, *places, names=x.shape.names)
    for place, start in given.items():
        if is_tensor(start):
            have, room, name = part.shape.sizes[place], x.shape.sizes[place], name_at(x.shape, place)
            demand = ("update", start.value, have, room)
            require(made, demand, partial(_check_inside, places[place], have, room, name, [x, part]))
    return made


def _check_inside(
    start: Tensor, have: Size, room: Size, name: str, near: Sequence[Tensor]
) -> tuple[Tensor, str, Sequence[Tensor]]:
    """The run-time check that a part fits into an axis."""
    last = size_tensor(room - have, near)
    holds = emit("and", el.less_equal(constant(0, i64), start), el.less_equal(start, last))
    return holds, f"update: the part does not fit into {name}: it starts at {{0}}, and at most at {{1}}", [start, last]
