"""Layout ops: transpose, rename, split and merge axes, slice, pad, concatenate, broadcast; new tensors.

Sizes may be symbolic throughout; a slice or padding by symbolic amounts becomes a `dynamic_*` op. Reshapes only split
and merge adjacent axes. `Tensor`'s methods call these functions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from types import EllipsisType
from typing import TYPE_CHECKING, Any, TypeAlias

from smelt import dim as sizes_of
from smelt.dim import Fact, Size, ceildiv, divide_exact, floordiv, product
from smelt.dtype import DType, dtype, i32
from smelt.shape import Shape
from smelt.tensor.argument_types import with_argument_errors
from smelt.tensor.axes import (
    Axis,
    SizeLike,
    check_names,
    find_axes,
    find_axis,
    name_at,
    names_of,
    shape_of,
    size_of,
)
from smelt.tensor.facts import decide
from smelt.tensor.ops.elementwise import Number, cast, lift, spread
from smelt.tensor.promotion import promote
from smelt.tensor.proving import at_most, current_facts, equal
from smelt.tensor.record import constant, emit, is_tensor, operand, size_ops, tensor_of
from smelt.tensor.source import Operand, refuse

if TYPE_CHECKING:
    from smelt.tensor.core import Tensor

Index: TypeAlias = "int | slice | EllipsisType | Tensor | None"


# ---- order and names ----


def transpose(x: Tensor, *axes: Axis) -> Tensor:
    """The axes in another order: all of them by name (`"b h s k"`) or number, or reversed where none are given."""
    if len(axes) == 1 and isinstance(axes[0], str):
        axes = names_of(axes[0])
    if not axes:
        places = tuple(reversed(range(x.shape.rank)))
    else:
        places = find_axes("transpose", operand("operand", x), axes)
    if len(places) != x.shape.rank:
        missing = [name_at(x.shape, place) for place in range(x.shape.rank) if place not in places]
        refuse(f"transpose: {', '.join(missing)} would be lost", operand("operand", x), remedy="name every axis")
    return permute(x, places)


def permute(x: Tensor, places: Sequence[int]) -> Tensor:
    """Permute axes by number."""
    if tuple(places) == tuple(range(x.shape.rank)):
        return x
    names = None if x.shape.names is None else tuple(x.shape.names[place] for place in places)
    return emit("transpose", x, names=names, permutation=tuple(places))


def move_last(x: Tensor, place: int) -> Tensor:
    """Move one axis behind all others."""
    return permute(x, [*(i for i in range(x.shape.rank) if i != place), place])


def move_back(x: Tensor, place: int) -> Tensor:
    """Move the last axis back: undoes `move_last`."""
    order = list(range(x.shape.rank - 1))
    order.insert(place, x.shape.rank - 1)
    return permute(x, order)


def rename(x: Tensor, /, **names: str) -> Tensor:
    """Axes under other names: `x.rename(s="t")`."""
    shown = operand("operand", x)
    for old in names:
        find_axis("rename", shown, old)
    return relabel(x, check_names("rename", [names.get(name, name) for name in x.shape.names or ()], shown))


def named(x: Tensor, *names: str) -> Tensor:
    """Names for all axes, in order: `x.named("b", "s", "d")` or `x.named("b s d")`."""
    given = names_of(names[0]) if len(names) == 1 else names
    shown = operand("operand", x)
    if len(given) != x.shape.rank:
        refuse(f"named: {len(given)} names for {x.shape.rank} axes", shown)
    return relabel(x, check_names("named", given, shown))


def unnamed(x: Tensor) -> Tensor:
    """The same tensor without names: its axes are known by number."""
    return relabel(x, None)


def relabel(x: Tensor, names: tuple[str, ...] | None) -> Tensor:
    """The same value with other names for its axes."""
    shape = Shape.of(x.dtype, x.shape.sizes, names if x.shape.rank else None)
    return type(x)(x.value, shape)


# ---- splitting, merging, reshaping ----


def _reshape_to(x: Tensor, sizes: Sequence[Size], names: tuple[str, ...] | None) -> Tensor:
    if tuple(sizes) == x.shape.sizes:
        return x if names == x.shape.names else relabel(x, names)
    return emit("reshape", x, names=names, result=Shape.of(x.dtype, sizes))


def split(x: Tensor, axis: Axis, parts: Mapping[str, SizeLike | None] | Sequence[SizeLike | None]) -> Tensor:
    """One axis as several: `x.split("d", h="H", k="K")`. One size may be None: what is left."""
    shown = operand("operand", x)
    place = find_axis("split", shown, axis)
    whole = x.shape.sizes[place]
    given = list(parts.values()) if isinstance(parts, Mapping) else list(parts)
    sizes = _solve_parts(shown, name_at(x.shape, place), whole, given)
    names: tuple[str, ...] | None = None
    if x.shape.names is not None:
        if not isinstance(parts, Mapping):
            refuse("split: the new axes need names", shown, remedy='.split("d", h=…, k=…)')
        names = (*x.shape.names[:place], *parts, *x.shape.names[place + 1 :])
        check_names("split", names, shown)
    return _reshape_to(x, [*x.shape.sizes[:place], *sizes, *x.shape.sizes[place + 1 :]], names)


def _solve_parts(shown: Operand, what: str, whole: Size, parts: Sequence[SizeLike | None]) -> list[Size]:
    inferred = [i for i, part in enumerate(parts) if part is None]
    known = [size_of(part) for part in parts if part is not None]
    if len(inferred) > 1:
        refuse(f"split: only one part of {what} may be None", shown)
    if not inferred:
        if not (answer := equal(product(known), whole)):
            shape = " * ".join(f"({size})" if " " in str(size) else str(size) for size in known)
            refuse(f"split: {what} has size {whole}, the parts give {shape}", shown, answer=answer)
        return known
    rest = product(known)
    exact = divide_exact(whole, rest) if rest != 0 else None
    if exact is None or not at_most(1, rest):
        if not (answer := current_facts().divides(rest, whole)):
            refuse(f"split: {rest} does not always divide {what} of size {whole}", shown, answer=answer)
        exact = exact if exact is not None and equal(exact * rest, whole) else floordiv(whole, rest)
    sizes = iter(known)
    return [exact if part is None else next(sizes) for part in parts]


def merge(x: Tensor, axes: str | Sequence[Axis], into: str | None = None) -> Tensor:
    """Neighbouring axes as one: `x.merge("h k", "d")`. The first varies slowest."""
    shown = operand("operand", x)
    places = find_axes("merge", shown, axes)
    if not places:
        refuse("merge: no axes to merge", shown)
    if any(b != a + 1 for a, b in pairwise(places)):
        order = [i for i in range(x.shape.rank) if i not in places]
        order[min(places) : min(places)] = places
        wanted = " ".join(name_at(x.shape, place).strip('"') for place in order)
        remedy = f'bring them together first: .transpose("{wanted}")'
        refuse("merge: the axes are not adjacent in that order, so elements would be scrambled", shown, remedy=remedy)
    sizes = x.shape.sizes
    first, last = places[0], places[-1] + 1
    names: tuple[str, ...] | None = None
    if x.shape.names is not None:
        if into is None:
            refuse("merge: the merged axis needs a name", shown, remedy='.merge("h k", "d")')
        names = check_names("merge", (*x.shape.names[:first], into, *x.shape.names[last:]), shown)
    return _reshape_to(x, [*sizes[:first], product(sizes[first:last]), *sizes[last:]], names)


def reshape(x: Tensor, /, *sizes: SizeLike, **named_sizes: SizeLike) -> Tensor:
    """Another shape with the same elements in the same order; it may only split axes and merge neighbours.

    `x.reshape(6, -1)` without names, `x.reshape(b="B", h="H", k="K")` with. One size may be -1.
    """
    shown = operand("operand", x)
    if x.shape.rank and (x.shape.names is not None) != bool(named_sizes) and (sizes or named_sizes):
        hint = "name the new axes: .reshape(b=…, d=…)" if x.shape.names else "give the axes names first: .named(…)"
        refuse("reshape: named and unnamed axes do not mix", shown, remedy=hint)
    names = check_names("reshape", tuple(named_sizes), shown) if named_sizes else None
    wanted = _solve_inferred(
        [size_of(size) for size in (named_sizes.values() if named_sizes else sizes)], x.shape, shown
    )
    target = Operand("wanted", Shape.of(x.dtype, wanted, names))
    answer = equal(product(wanted), x.shape.count)
    if not answer:
        details = []
        if answer.counterexample:
            have = sizes_of.evaluate(x.shape.count, answer.counterexample)
            want = sizes_of.evaluate(product(wanted), answer.counterexample)
            details = [("elements", f"{have} there, {want} wanted")]
        remedy = "a reshape keeps every element: reduce or slice an axis that should go"
        refuse("reshape: the number of elements changes", shown, target, answer=answer, details=details, remedy=remedy)
    _check_groups(x.shape, Shape.of(x.dtype, wanted, names), shown, target)
    return _reshape_to(x, wanted, names)


def _solve_inferred(sizes: list[Size], shape: Shape, shown: Operand) -> list[Size]:
    places = [i for i, size in enumerate(sizes) if size == -1]
    if len(places) > 1:
        refuse("reshape: only one size may be -1", shown)
    if places:
        rest = product(size for size in sizes if size != -1)
        if rest == 0:
            refuse("reshape: -1 is ambiguous beside an axis of size 0", shown, remedy="give the size itself")
        exact = divide_exact(shape.count, rest)
        sizes[places[0]] = floordiv(shape.count, rest) if exact is None else exact
    return sizes


def _check_groups(old: Shape, new: Shape, shown: Operand, target: Operand) -> None:
    """Old and new axes fall into groups of equal size, one axis on at least one side of each.

    Axes of size 1 are in no group: wherever they stand, no element moves.
    """
    if old.count == 0:
        return  # there is nothing to scramble
    before = [i for i, size in enumerate(old.sizes) if size != 1]
    after = [j for j, size in enumerate(new.sizes) if size != 1]
    while before or after:
        ours, theirs = _first_group([old.sizes[i] for i in before], [new.sizes[j] for j in after])
        _check_group(old, new, before[:ours], after[:theirs], shown, target)
        before, after = before[ours:], after[theirs:]


def _first_group(old: Sequence[Size], new: Sequence[Size]) -> tuple[int, int]:
    """How many sizes of each side make up equal products, as few as can be; all where none are proven equal."""
    for both in range(1, len(old) + len(new)):
        for ours in range(max(0, both - len(new)), min(len(old), both) + 1):
            have, want = product(old[:ours]), product(new[: both - ours])
            if have == want or equal(have, want):
                return ours, both - ours
    return len(old), len(new)


def _check_group(
    old: Shape, new: Shape, before: Sequence[int], after: Sequence[int], shown: Operand, target: Operand
) -> None:
    old_names = [old.names[i] for i in before] if old.names else []
    new_names = [new.names[j] for j in after] if new.names else []
    moved = [name for name in new_names if name in (old.names or ()) and name not in old_names]
    several = len(before) > 1 and len(after) > 1
    kept = [name for name in new_names if name in old_names]
    mixed = several and (kept or not _refines([old.sizes[i] for i in before], [new.sizes[j] for j in after]))
    if mixed or moved:
        left = ", ".join(name_at(old, i) for i in before)
        right = ", ".join(name_at(new, j) for j in after)
        remedy = "split and merge neighbours, and move axes with .transpose(…)"
        refuse(f"reshape: {left} → {right} would scramble elements of different axes", shown, target, remedy=remedy)


def _refines(old: Sequence[Size], new: Sequence[Size]) -> bool:
    """Whether splitting axes on both sides can give the same axes."""
    ours, theirs = list(reversed(old)), list(reversed(new))
    while ours and theirs:
        a, b = ours.pop(), theirs.pop()
        if (quotient := divide_exact(a, b)) is not None:
            ours += [quotient] if quotient != 1 else []
        elif (quotient := divide_exact(b, a)) is not None:
            theirs += [quotient]
        else:
            return False
    return all(size == 1 for size in (*ours, *theirs))


def flatten(x: Tensor, into: str | None = None) -> Tensor:
    """All axes as one."""
    return merge(x, tuple(x.shape.names or range(x.shape.rank)), into) if x.shape.rank != 1 else x


# ---- axes of size one, broadcasting ----


def insert(x: Tensor, axis: Axis, place: int = 0) -> Tensor:
    """A new axis of size 1: `x.insert("h")` with names, `x.insert(0)` without."""
    shown = operand("operand", x)
    names: tuple[str, ...] | None = None
    if isinstance(axis, str):
        if x.shape.rank and x.shape.names is None:
            refuse("insert: named and unnamed axes do not mix", shown, remedy="give the axes names first: .named(…)")
        at = place % (x.shape.rank + 1)
        old = x.shape.names or ()
        names = check_names("insert", (*old[:at], axis, *old[at:]), shown)
    else:
        if x.shape.names is not None:
            refuse("insert: the new axis needs a name", shown, remedy='.insert("name")')
        at = axis % (x.shape.rank + 1)
    return _reshape_to(x, [*x.shape.sizes[:at], 1, *x.shape.sizes[at:]], names)


def squeeze(x: Tensor, axes: Axis | Sequence[Axis]) -> Tensor:
    """Remove axes of size 1."""
    shown = operand("operand", x)
    places = find_axes("squeeze", shown, axes)
    for place in places:
        if not (answer := equal(x.shape.sizes[place], 1)):
            refuse(f"squeeze: {name_at(x.shape, place)} has size {x.shape.sizes[place]}, not 1", shown, answer=answer)
    return drop(x, places)


def drop(x: Tensor, places: Sequence[int]) -> Tensor:
    """Remove axes of size 1, by number."""
    keep = [i for i in range(x.shape.rank) if i not in places]
    names = None if x.shape.names is None else tuple(x.shape.names[i] for i in keep)
    return _reshape_to(x, [x.shape.sizes[i] for i in keep], names)


def broadcast(x: Tensor, /, *sizes: SizeLike, **named_sizes: SizeLike) -> Tensor:
    """The tensor repeated along new axes in front: `x.broadcast(b="B")`. Axes of size 1 may be repeated by name, too.

    Without names the sizes are those of the whole result, as in NumPy.
    """
    shown = operand("operand", x)
    if named_sizes:
        if x.shape.rank and x.shape.names is None:
            refuse("broadcast: named and unnamed axes do not mix", shown, remedy="give the axes names first: .named(…)")
        old = x.shape.names or ()
        new = [name for name in named_sizes if name not in old]
        wanted = {name: size_of(size) for name, size in named_sizes.items()}
        shape = Shape.of(
            x.dtype,
            [*(wanted[name] for name in new), *(wanted.get(n, s) for n, s in zip(old, x.shape.sizes, strict=True))],
            (*new, *old),
        )
    else:
        if x.shape.names is not None:
            refuse("broadcast: the new axes need names", shown, remedy='.broadcast(b="B")')
        shape = Shape.of(x.dtype, [size_of(size) for size in sizes])
    return broadcast_to(x, shape)


def broadcast_to(x: Tensor, shape: Shape | str) -> Tensor:
    """The tensor repeated to a shape that has all of its axes."""
    wanted = shape_of(shape)
    shown, target = operand("operand", x), Operand("wanted", Shape.of(x.dtype, wanted.sizes, wanted.names))
    if wanted.names is not None and x.shape.names is not None:
        if any(name not in wanted.names for name in x.shape.names):
            refuse("broadcast: an axis would be lost", shown, target)
        places = tuple(wanted.names.index(name) for name in x.shape.names)
    elif x.shape.rank and (wanted.names is None) != (x.shape.names is None):
        refuse("broadcast: named and unnamed axes do not mix", shown, target)
    else:
        if x.shape.rank > wanted.rank:
            refuse("broadcast: an axis would be lost", shown, target)
        places = tuple(range(wanted.rank - x.shape.rank, wanted.rank))
    for place, size in zip(places, x.shape.sizes, strict=True):
        if size != 1 and not (answer := equal(size, wanted.sizes[place])):
            message = f"broadcast: {name_at(wanted, place)} has size {size}, not {wanted.sizes[place]}"
            refuse(message, shown, target, answer=answer)
    return spread(x, Shape.of(x.dtype, wanted.sizes, wanted.names), places)


def _check_times(what: str, shown: Operand, times: SizeLike) -> Size:
    count = size_of(times)
    if not (answer := at_most(0, count)):
        refuse(f"{what}: {count} times may be negative", shown, answer=answer)
    return count


def repeat(x: Tensor, axis: Axis, times: SizeLike) -> Tensor:
    """Every element along an axis repeated that many times."""
    shown = operand("operand", x)
    place, count = find_axis("repeat", shown, axis), _check_times("repeat", shown, times)
    sizes = list(x.shape.sizes)
    wide = Shape.of(x.dtype, [*sizes[: place + 1], count, *sizes[place + 1 :]])
    spread_places = tuple(i + (i > place) for i in range(x.shape.rank))
    sizes[place] = sizes[place] * count
    return _reshape_to(spread(relabel(x, None), wide, spread_places), sizes, x.shape.names)


def tile(x: Tensor, axis: Axis, times: SizeLike) -> Tensor:
    """The whole axis repeated that many times."""
    shown = operand("operand", x)
    place, count = find_axis("tile", shown, axis), _check_times("tile", shown, times)
    sizes = list(x.shape.sizes)
    wide = Shape.of(x.dtype, [*sizes[:place], count, *sizes[place:]])
    spread_places = tuple(i + (i >= place) for i in range(x.shape.rank))
    sizes[place] = sizes[place] * count
    return _reshape_to(spread(relabel(x, None), wide, spread_places), sizes, x.shape.names)


# ---- slices ----


def _smaller(a: Size, b: Size) -> Size:
    """min(a, b), as one of the two where the facts say which."""
    return a if at_most(a, b) else b if at_most(b, a) else sizes_of.minimum(a, b)


def _nonneg(a: Size) -> Size:
    return a if at_most(0, a) else 0 if at_most(a, 0) else sizes_of.maximum(a, 0)


def _slice_bound(given: object, size: Size, default: Size) -> Size:
    """One end of a slice, clamped to the axis as in Python."""
    if given is None:
        return default
    bound = size_of(given)
    return _nonneg(size + bound) if _from_end(bound) else _smaller(bound, size)


def _from_end(place: Size) -> bool:
    """Whether an index counts from the end: a branch of the program where its sign is unknown."""
    if isinstance(place, int) or at_most(0, place):
        return isinstance(place, int) and place < 0
    return bool(at_most(place, -1)) or not decide(Fact("<=", 0, place))


def _slice_range(shown: Operand, place: int, given: slice) -> tuple[Size, Size, int, Size]:
    """(start, limit, step, count) of a slice of an axis."""
    size = shown.shape.sizes[place]
    step = 1 if given.step is None else size_of(given.step)
    if not isinstance(step, int) or step < 1:
        remedy = "reverse the axis with .flip(…), then take a positive step"
        refuse(f"slice: {name_at(shown.shape, place)} needs a positive step, not {step}", shown, remedy=remedy)
    start, limit = _slice_bound(given.start, size, 0), _slice_bound(given.stop, size, size)
    if limit is size and isinstance(given.start, int) and 0 <= given.start < step:
        return start, limit, step, floordiv(size + step - 1 - given.start, step)
    length = _nonneg(limit - start)
    if length != limit - start:
        limit = start + length
    return start, limit, step, ceildiv(length, step)


def take_slices(x: Tensor, slices: Mapping[int, slice]) -> Tensor:
    """Slices of axes by number; others are kept whole."""
    shown = operand("operand", x)
    whole = [(0, size, 1, size) for size in x.shape.sizes]
    ranges: list[tuple[Size, Size, int, Size]] = [
        _slice_range(shown, place, slices[place]) if place in slices else whole[place] for place in range(x.shape.rank)
    ]
    if ranges == whole:
        return x
    starts, limits, steps, counts = (tuple(each[i] for each in ranges) for i in range(4))
    return _slice(x, starts, limits, steps, counts)


def _slice(
    x: Tensor, starts: Sequence[Size], limits: Sequence[Size], steps: Sequence[Size], sizes: Sequence[Size]
) -> Tensor:
    ops = size_ops((*starts, *limits), [x])
    return tensor_of(ops.slice(x.value, starts, limits, steps, Shape.of(x.dtype, sizes)), x.shape.names)


def pick(x: Tensor, place: int, at: SizeLike) -> Tensor:
    """One index of an axis, which is removed. It must be inside for all sizes."""
    shown = operand("operand", x)
    size, index = x.shape.sizes[place], size_of(at)
    start = size + index if _from_end(index) else index
    if not (answer := at_most(start + 1, size)) or not (answer := at_most(0, start)):
        refuse(f"index {index} is not always inside {name_at(x.shape, place)} of size {size}", shown, answer=answer)
    return drop(_window(x, place, start, 1), [place])


def _window(x: Tensor, place: int, start: Size, count: Size) -> Tensor:
    """`count` elements of an axis from `start` on, which is known to fit."""
    starts: list[Size] = [0] * x.shape.rank
    limits = list(x.shape.sizes)
    sizes = list(x.shape.sizes)
    starts[place], limits[place], sizes[place] = start, start + count, count
    return _slice(x, starts, limits, (1,) * x.shape.rank, sizes)


def getitem(x: Tensor, index: Index | tuple[Index, ...]) -> Tensor:
    """`x[1:, ::2]`, `x[..., 0]`: numbers, slices and `...` by position."""
    items = list(index) if isinstance(index, tuple) else [index]
    shown = operand("operand", x)
    used = sum(item is not None and item is not Ellipsis for item in items)
    if used > x.shape.rank:
        refuse(f"{used} indices for {x.shape.rank} axes", shown)
    if sum(item is Ellipsis for item in items) > 1:
        refuse("only one ... in an index", shown)
    rest = [slice(None)] * (x.shape.rank - used)
    at = items.index(Ellipsis) if any(item is Ellipsis for item in items) else len(items)
    items[at : at + 1] = rest
    slices: dict[int, slice] = {}
    picked: list[tuple[int, Any]] = []
    new: list[int] = []
    place = 0
    for item in items:
        if item is None:
            if x.shape.names is not None:
                refuse("the new axis needs a name", shown, remedy='.insert("name")')
            new.append(place - len(picked) + len(new))
            continue
        if isinstance(item, slice):
            slices[place] = item
        elif is_tensor(item):
            remedy = f".take(index, {name_at(x.shape, place).removeprefix('axis ')})"
            refuse("an index that is a tensor needs its axis", shown, remedy=remedy)
        else:
            picked.append((place, item))
        place += 1
    turned = [p for p, s in slices.items() if s.step == -1 and s.start is None and s.stop is None]
    if turned:
        x = emit("reverse", x, names=x.shape.names, dimensions=tuple(turned))
        slices = {p: s for p, s in slices.items() if p not in turned}
    x = take_slices(x, slices)
    for place, item in reversed(picked):
        x = pick(x, place, item)
    for place in new:
        x = insert(x, place)
    return x


def slice_named(x: Tensor, slices: Mapping[Axis, slice | SizeLike]) -> Tensor:
    """Slices and indices by name: `x.slice(s=slice(1, None), b=0)`."""
    shown = operand("operand", x)
    found = {find_axis("slice", shown, axis): given for axis, given in slices.items()}
    x = take_slices(x, {place: given for place, given in found.items() if isinstance(given, slice)})
    for place, given in sorted(found.items(), reverse=True):
        if not isinstance(given, slice):
            x = pick(x, place, given)
    return x


def flip(x: Tensor, axes: Axis | Sequence[Axis] | None = None) -> Tensor:
    """Elements in reverse order along axes."""
    places = find_axes("flip", operand("operand", x), axes)
    return emit("reverse", x, names=x.shape.names, dimensions=places)


def roll(x: Tensor, axis: Axis, shift: SizeLike) -> Tensor:
    """Elements shifted along an axis; those shifted past the end reappear at the front."""
    shown = operand("operand", x)
    place = find_axis("roll", shown, axis)
    size, moved = x.shape.sizes[place], size_of(shift)
    if not (answer := at_most(0, moved)) or not (answer := at_most(moved, size)):
        message = f"roll: by {moved}, which is not always between 0 and the size {size} of {name_at(x.shape, place)}"
        refuse(message, shown, answer=answer)
    tail = _window(x, place, size - moved, moved)
    return concatenate([tail, _window(x, place, 0, size - moved)], axis)


# ---- pad, concatenate, stack ----


def pad(x: Tensor, amounts: Mapping[Axis, Any], value: Number | Tensor = 0) -> Tensor:
    """Elements added around: `x.pad(s=(0, 3), value=0.0)`; amounts are (before, after) or (before, after, between)."""
    shown = operand("operand", x)
    low: list[Size] = [0] * x.shape.rank
    high: list[Size] = [0] * x.shape.rank
    inner: list[Size] = [0] * x.shape.rank
    for axis, given in amounts.items():
        place = find_axis("pad", shown, axis)
        numbers = [size_of(amount) for amount in (given if isinstance(given, tuple | list) else (given, given))]
        if len(numbers) not in (2, 3):
            refuse(f"pad: {name_at(x.shape, place)} takes (before, after)", shown)
        for number in numbers:
            if not (answer := at_most(0, number)):
                remedy = "cut elements off with a slice" if answer.missing is None else None
                refuse(f"pad: the amount {number} may be negative", shown, answer=answer, remedy=remedy)
        low[place], high[place], inner[place] = (*numbers, 0)[:3]
    (_, fill) = lift("pad", (x, value), ("operand", "value"))
    fill = cast(fill, x.dtype)
    between = [sizes_of.maximum(s - 1, 0) * k for s, k in zip(x.shape.sizes, inner, strict=True)]
    sizes = [s + a + b + c for s, a, b, c in zip(x.shape.sizes, low, high, between, strict=True)]
    ops = size_ops((*low, *high, *inner), [x])
    return tensor_of(ops.pad(x.value, fill.value, low, high, inner, Shape.of(x.dtype, sizes)), x.shape.names)


def concatenate(tensors: Sequence[Tensor], axis: Axis) -> Tensor:
    """Tensors concatenated along an axis; all other axes are the same.

    >>> from smelt.tensor import tensor
    >>> concatenate([tensor([1, 2], "s"), tensor([3], "s")], "s").numpy().tolist()
    [1, 2, 3]
    """
    if not tensors:
        refuse("concatenate: there is no tensor")
    shown = [operand(_ordinal(i, len(tensors)), tensor) for i, tensor in enumerate(tensors)]
    places = [find_axis("concatenate", each, axis, others=shown[:i]) for i, each in enumerate(shown)]
    first, place = tensors[0], places[0]
    element = promote("concatenate", *shown)
    aligned = [cast(first, element)]
    for other, each in zip(tensors[1:], shown[1:], strict=True):
        same_axes("concatenate", shown[0], each)
        if first.shape.names is not None and other.shape.names is not None:
            other = permute(other, [other.shape.names.index(name) for name in first.shape.names])
        for at, (a, b) in enumerate(zip(first.shape.sizes, other.shape.sizes, strict=True)):
            if at != place and not (answer := equal(a, b)):
                message = f"concatenate: {name_at(first.shape, at)} has different sizes, {a} and {b}"
                refuse(message, shown[0], each, answer=answer)
        aligned.append(cast(other, element))
    return emit("concatenate", *aligned, names=first.shape.names, dimension=place)


def _ordinal(place: int, count: int) -> str:
    return ("left", "right")[place] if count == 2 else f"tensor {place}"


def same_axes(what: str, first: Operand, other: Operand) -> None:
    """Two operands have the same axes: by name, or as many."""
    a, b = first.shape.names, other.shape.names
    if (a is None) != (b is None) and first.shape.rank and other.shape.rank:
        refuse(f"{what}: named and unnamed axes do not mix", first, other)
    if a is not None and b is not None and set(a) != set(b):
        odd = next(name for name in (*a, *b) if name not in a or name not in b)
        refuse(f'{what}: only one of the operands has an axis "{odd}"', first, other)
    if first.shape.rank != other.shape.rank:
        refuse(f"{what}: the operands have different numbers of axes", first, other)


def stack(tensors: Sequence[Tensor], axis: Axis, place: int = 0) -> Tensor:
    """Tensors of one shape side by side along a new axis."""
    if not tensors:
        refuse("stack: there is no tensor")
    first = operand(_ordinal(0, len(tensors)), tensors[0])
    for i, other in enumerate(tensors[1:], 1):
        same_axes("stack", first, operand(_ordinal(i, len(tensors)), other))
    return concatenate([insert(tensor, axis, place) for tensor in tensors], axis)


def chunk(x: Tensor, axis: Axis, sizes: int | Sequence[SizeLike]) -> list[Tensor]:
    """Chunks along an axis: that many equal ones, or ones of given sizes."""
    shown = operand("operand", x)
    place = find_axis("chunk", shown, axis)
    whole = x.shape.sizes[place]
    if isinstance(sizes, int):
        if sizes < 1:
            refuse(f"chunk: into {sizes} chunks", shown, remedy="at least one")
        if not (answer := current_facts().divides(sizes, whole)):
            refuse(
                f"chunk: {sizes} does not always divide {name_at(x.shape, place)} of size {whole}", shown, answer=answer
            )
        parts: list[Size] = [floordiv(whole, sizes)] * sizes
    else:
        parts = [size_of(size) for size in sizes]
        if not (answer := equal(sum(parts, start=0), whole)):
            refuse(f"chunk: the chunks do not add up to {whole}", shown, answer=answer)
    pieces, start = [], 0
    for part in parts:
        pieces.append(_window(x, place, start, part))
        start = start + part  # type: ignore[assignment]
    return pieces


# ---- new tensors ----


@with_argument_errors
def full(shape: Shape | str, value: Number | Tensor) -> Tensor:
    """One number everywhere."""
    wanted = shape_of(shape)
    scalar = cast(value, wanted.element) if is_tensor(value) else constant(value, wanted.element)
    if scalar.shape.rank:
        refuse("full: the value is not a scalar", operand("value", scalar))
    return spread(scalar, wanted, ()) if wanted.rank else scalar


@with_argument_errors
def zeros(shape: Shape | str) -> Tensor:
    """0 everywhere."""
    return full(shape, 0)


@with_argument_errors
def ones(shape: Shape | str) -> Tensor:
    """1 everywhere."""
    return full(shape, 1)


@with_argument_errors
def iota(shape: Shape | str, axis: Axis = 0) -> Tensor:
    """The index along an axis, in every element of a shape."""
    wanted = shape_of(shape)
    if wanted.names is not None and not isinstance(axis, str) and -wanted.rank <= axis < wanted.rank:
        axis = wanted.names[axis]
    place = find_axis("iota", Operand("shape", wanted), axis)
    return emit("iota", names=wanted.names, result=wanted, iota_dimension=place)


@with_argument_errors
def arange(size: SizeLike, axis: str | None = None, element: str | DType = i32) -> Tensor:
    """0, 1, 2, … along one axis: `arange("S", "s")`."""
    wanted = Shape.of(dtype(element), (size_of(size),), None if axis is None else (axis,))
    return emit("iota", names=wanted.names, result=wanted, iota_dimension=0)
