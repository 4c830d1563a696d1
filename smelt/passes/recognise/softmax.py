"""The finder of softmax, and `align_row_maximum`, which gives scores and their row maximum one order of axes.

JAX' einsums transpose scores and row maximum separately: `transpose(max(y))` next to `transpose(y)`. A maximum over the
same elements is the same number, so it is taken of the transposed scores. Called by `recognise`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from smelt.ir.clone import clone_region
from smelt.ir.core import Op, Value
from smelt.ir.rewrite import Edit
from smelt.passes.recognise.matcher import Matcher
from smelt.passes.recognise.outline import Found


def softmax(matcher: Matcher, root: Op) -> Iterator[Found]:
    for powers, spread, total in _quotients(matcher, root):
        shifted = matcher.under(powers, "exponential")
        found = matcher.reduction(total, "add")
        if (
            shifted is None
            or found is None
            or found[0] is not powers
            or matcher.spread(spread, powers, found[1]) is None
        ):
            continue
        difference = matcher.pair(shifted, "subtract")
        if difference is None or len(found[1]) != 1:
            continue
        x, peak = difference
        highest = matcher.spread(peak, x, found[1])
        if highest is None:
            continue
        for other, bound in matcher.orders(highest, "maximum"):  # JAX takes the maximum with -inf once more
            if matcher.number(bound) == -math.inf:
                highest = matcher.row(other).source
                break
        if matcher.reduction(highest, "maximum") == (x, found[1]):
            yield Found("smelt.softmax", (x,), {"axis": found[1][0]})


def _quotients(matcher: Matcher, root: Op) -> Iterator[tuple[Value, Value, Value]]:
    """(a, broadcast divisor or factor, b) of a / b or a * (1 / b)."""
    if root.name == "stablehlo.divide":
        x, y = matcher.operands(root)
        yield x, y, matcher.row(y).source
    elif root.name == "stablehlo.multiply":
        for x, factor in matcher.orders(root.results[0], "multiply"):
            reciprocal = matcher.pair(matcher.row(factor).source, "divide")
            if reciprocal is not None and matcher.number(reciprocal[0]) == 1.0:
                total = matcher.row(reciprocal[1])
                if total.is_plain:
                    yield x, factor, total.source


def align_row_maximum(edit: Edit, op: Op) -> None:
    """Replace `transpose(max(y))` by `max(transpose(y))` where both orders agree, also under `max(·, constant)`."""
    if op.name != "stablehlo.transpose":
        return
    matcher = Matcher(edit)
    (reduced,) = edit.operands(op)
    bound: Value | None = None
    for x, other in matcher.orders(reduced, "maximum"):
        if matcher.number(other) is not None and matcher.op(x, "reduce") is not None:
            reduced, bound = x, other
            break
    found = matcher.reduction(reduced, "maximum")
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
        most = build.maximum(most, build.full(_require(matcher, bound), most.shape))
    edit.replace(user.results[0], moved)
    edit.replace(op.results[0], most)
    for old in (user, op, edit.maker(op.operands[0]), reduce):
        if old is not None and old in edit:
            edit.erase_if_dead(old)


def _agree(order: tuple[int, ...], axis: int, reduced: tuple[int, ...]) -> bool:
    """Whether the transpose of the reduced value is the transpose of its operand without the reduced axis."""
    return tuple(d if d < axis else d - 1 for d in order if d != axis) == tuple(reduced)


def _require(matcher: Matcher, value: Value) -> float:
    number = matcher.number(value)
    assert number is not None
    return number
