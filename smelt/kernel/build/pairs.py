"""Two products of the same rows, of which one block has both sums of an element: a gate and what it gates.

Their columns alternate where `passes.merge_dots` has made one product of two; those of block-quantised weights are the
halves of one. `plan.materialise` finds them, and what reads both parts at the same index becomes the epilogue of their
kernel.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from smelt.dim import Size
from smelt.ir.blocks import RUN
from smelt.ir.core import Op, Value
from smelt.ir.ops.packed import PAIRED
from smelt.kernel.loops.grammar import Expr, add, scale, split


def find_pair(op: Op, users: Mapping[Value, Sequence[Op]]) -> tuple[Value, ...]:
    """The two parts of a product that are all that is read of it; () where there are none."""
    if op.name == "smelt.packed_block_dot":
        return _find_halves(op, users)
    if op.name not in ("smelt.packed_dot", "smelt.grouped_dot"):
        return ()
    *outer, columns = op.result.shape.sizes
    apart = _only(users.get(op.result, ()), "stablehlo.reshape")
    if apart is None or not isinstance(columns, int) or columns % (2 * PAIRED):
        return ()
    if apart.result.shape.sizes != (*outer, columns // (2 * PAIRED), 2, PAIRED):
        return ()
    parts: dict[int, Value] = {}
    for each in users.get(apart.result, ()):
        last = _only(users.get(each.result, ()), "stablehlo.reshape")
        if last is None or last.result.shape.sizes != (*outer, columns // 2) or (at := _part(each)) is None:
            return ()
        parts[at] = last.result
    read = len(users.get(apart.result, ()))
    return (parts[0], parts[1]) if read == 2 and len(parts) == 2 else ()


def _find_halves(op: Op, users: Mapping[Value, Sequence[Op]]) -> tuple[Value, ...]:
    """The halves of the columns."""
    *outer, columns = op.result.shape.sizes
    if not isinstance(columns, int) or columns % (2 * RUN):
        return ()
    parts: dict[int, Value] = {}
    read = users.get(op.result, ())
    for each in read:
        first = _first(each)
        whole = first is not None and each.result.shape.sizes == (*outer, columns // 2) and not any(first[:-1])
        if first is None or not whole or first[-1] not in (0, columns // 2):
            return ()
        parts[first[-1] * 2 // columns] = each.result
    return (parts[0], parts[1]) if len(read) == 2 and len(parts) == 2 else ()


def _only(users: Sequence[Op], name: str) -> Op | None:
    return users[0] if len(users) == 1 and users[0].name == name else None


def _part(op: Op) -> int | None:
    """Which part an op takes, by a slice, or where there is a dynamic dimension by a negative padding."""
    first, sizes = _first(op), op.operands[0].shape.sizes
    if first is None:
        return None
    whole = (*sizes[:-2], 1, sizes[-1])
    alone = op.result.shape.sizes == whole and not any(first[:-2]) and first[-1] == 0
    return first[-2] if alone and first[-2] in (0, 1) else None


def _first(op: Op) -> tuple[int, ...] | None:
    """Where adjacent elements begin that an op takes, by a slice or by a negative padding."""
    match op.name:
        case "stablehlo.slice":
            return tuple(op.attrs["start_indices"]) if set(op.attrs["strides"]) <= {1} else None
        case "stablehlo.pad":
            plain = not any(op.attrs["interior_padding"])
            return tuple(-low for low in op.attrs["edge_padding_low"]) if plain else None
    return None


def paired_columns(column: Expr) -> tuple[Expr, Expr]:
    """The columns of the product that have both parts of a column."""
    many, rest = split(column, PAIRED)
    left = add(scale(many, 2 * PAIRED), rest)
    return left, add(left, PAIRED)


def half(size: Size) -> int:
    """Columns of a part."""
    assert isinstance(size, int)
    return size // 2
