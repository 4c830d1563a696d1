"""Maxima moved behind the transposes of what they are taken from, so that softmax sees one order of axes.

JAX' einsums transpose scores and their maxima apart: `transpose(max(y))` next to `transpose(y)`. A maximum over the
same elements is the same number, so it is taken of the transposed scores. Called by `recognise` before the finders.
"""

from __future__ import annotations

from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.look import Look


def move_peak(edit: Edit, op: Op) -> None:
    """Take `transpose(max(y))` of `transpose(y)` where both orders agree; a maximum with a number may be between."""
    if op.name != "stablehlo.transpose":
        return
    look = Look(edit)
    (reduced,) = edit.operands(op)
    bound: Value | None = None
    for x, other in look.orders(reduced, "maximum"):
        if look.number(other) is not None and look.op(x, "reduce") is not None:
            reduced, bound = x, other
            break
    found = look.reduced(reduced, "maximum")
    if found is None or len(found[1]) != 1:
        return
    y, (axis,) = found
    for user in edit.users(y):
        if user.name == "stablehlo.transpose" and _agree(user.attrs["permutation"], axis, op.attrs["permutation"]):
            break
    else:
        return
    reduce = edit.maker(reduced)
    assert reduce is not None
    order = user.attrs["permutation"]
    build = edit.before(op)
    moved = build.transpose(y, permutation=order)
    body = clone_region(reduce.regions[0], {})
    start = edit.operands(reduce)[1]
    most = build.reduce(moved, start, dimensions=(order.index(axis),), regions=[body])
    if bound is not None:
        most = build.maximum(most, build.full(_required(look, bound), most.shape))
    edit.replace(user.results[0], moved)
    edit.replace(op.results[0], most)
    for old in (user, op, edit.maker(op.operands[0]), reduce):
        if old is not None and old in edit:
            edit.erase_if_dead(old)


def _agree(order: tuple[int, ...], axis: int, reduced: tuple[int, ...]) -> bool:
    """Whether a transpose of what was reduced is the transpose of the whole, less the reduced axis."""
    return tuple(d if d < axis else d - 1 for d in order if d != axis) == tuple(reduced)


def _required(look: Look, value: Value) -> float:
    number = look.number(value)
    assert number is not None
    return number
