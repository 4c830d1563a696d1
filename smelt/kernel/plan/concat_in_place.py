"""Concatenation and padding without copies: producers write into the concatenated buffer.

`find_parts(op, …)` lists the operands of a `concatenate` or `pad` that can be computed inside its buffer, each with the
`View` of its elements there. `materialise` asks; a value with a view has no buffer of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from smelt.dim import Size, product
from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.kernel.build.families import ANCHORS, PULLS, SINKS, UPDATES
from smelt.kernel.loops.nest import View, tensor

CONTAINERS = frozenset({"stablehlo.concatenate", "stablehlo.pad"})
# Ops that can read a value through a view.
READERS = frozenset(
    f"stablehlo.{name}"
    for name in (
        *("concatenate", "pad", "slice", "reverse", "transpose", "broadcast_in_dim", "reduce", "reduce_window"),
        *("select", "clamp", "compare", "convert"),
    )
)
Users = Mapping[Value, Sequence[Op]]


class Part(Frozen):
    """An operand of a concatenation or padding that is computed in its buffer, through a view."""

    operand: int
    value: Value
    view: View


def row_major(sizes: Sequence[Size]) -> View:
    return View(0, tuple(product(sizes[d + 1 :]) for d in range(len(sizes))))


def operand_starts(op: Op) -> list[tuple[Size, ...]]:
    """The index of the first element of each operand."""
    if op.name == "stablehlo.pad":
        return [tuple(op.attrs["edge_padding_low"])]
    axis, rank = op.attrs["dimension"], tensor(op.result).rank
    found: list[tuple[Size, ...]] = []
    before: Size = 0
    for operand in op.operands:
        found.append(tuple(before if d == axis else 0 for d in range(rank)))
        before = before + tensor(operand).sizes[axis]
    return found


def is_container(op: Op, known: set[str]) -> bool:
    """Whether an op only concatenates or pads, with sizes that are known before the run."""
    if op.name not in CONTAINERS or not tensor(op.result).symbols <= known:
        return False
    if op.name == "stablehlo.concatenate":
        return True
    edges = (*op.attrs["edge_padding_low"], *op.attrs["edge_padding_high"])
    return min(edges, default=0) >= 0 and not any(op.attrs["interior_padding"])


def find_parts(op: Op, view: View, users: Users, is_free: Callable[[Value, View], bool]) -> list[Part]:
    """The operands that can be computed in place; `view`: that of the result itself; `is_free`: the caller's veto."""
    found: list[Part] = []
    for i, start in enumerate(operand_starts(op)):
        offset = view.offset + sum((at * step for at, step in zip(start, view.strides, strict=True)), start=0)
        part = _find_part(i, op.operands[i], View(offset, view.strides), users, op)
        if part is not None and all(each.value is not part.value for each in found) and is_free(part.value, part.view):
            found.append(part)
    return found


def _find_part(number: int, value: Value, view: View, users: Users, whole: Op) -> Part | None:
    """The value that a kernel computes for an operand, below reshapes that keep the view."""
    while value.op is not None and value.op.name == "stablehlo.reshape" and len(users.get(value, ())) == 1:
        source = value.op.operands[0]
        turned = view.reshape(tensor(value).sizes, tensor(source).sizes)
        if turned is None:
            break
        whole = value.op
        value, view = source, turned
    op = value.op
    if op is None or value not in users or len(op.results) != 1 or op.name == "stablehlo.constant":
        return None
    writes = op.name in ANCHORS or (op.name in PULLS and op.name not in SINKS)
    if not writes or op.name in UPDATES or not all(_reads(user, value, view, whole) for user in users[value]):
        return None
    return Part(number, value, view)


def _reads(user: Op, value: Value, view: View, whole: Op) -> bool:
    """Whether an op can read a value through a view."""
    if user is whole or user.name in READERS or OPS[user.name].elementwise or user.name in ANCHORS:
        return True
    if user.name == "stablehlo.reshape":
        return view.reshape(tensor(value).sizes, tensor(user.result).sizes) is not None
    return False
