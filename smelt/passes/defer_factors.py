"""A row's factor behind the product: what normalises rows is not waited for where they are rounded, on a GPU.

`round_blocks(x * r * w)`, where r is one number for each row that a reduction of x gives (RMSNorm) and w one for each
column, becomes `round_blocks(x * w)`, and every product of these rows multiplies its result by r. So whatever computes
x rounds it as well, and the product finds r while it multiplies.

The integers of a run of 32 do not depend on a factor of all of them, and its scale is proportional to it: results
differ by the rounding of f32, and by a step where that moves a quotient across the middle between two integers. A row
with a NaN or an infinity gives NaN, as before; so does one whose r is infinite (a row of zeros without an epsilon).
Where squares overflow r is 0, and so is the row, unless its product overflows: then it is NaN.
Called by `pipeline` after `merge_dots`.
"""

from __future__ import annotations

from collections.abc import Set

from smelt.frozen import Frozen
from smelt.ir.core import Op, Value
from smelt.ir.ops import OPS
from smelt.ir.rewrite import Edit
from smelt.shape import Shape

MOST = 64  # ops that compute the factor
PLAIN = ("stablehlo.broadcast_in_dim", "stablehlo.constant", "stablehlo.reshape")


class _Factor(Frozen):
    """`row` spreads a number for each row along the last axis; `rest`: what it multiplies."""

    row: Op
    rest: tuple[Value, ...]


class _Squares(Frozen):
    """The ops that compute numbers of rows from the sums of the squares of `base`."""

    ops: frozenset[Op]
    base: Value


def defer_factors(edit: Edit) -> int:
    """Multiply products of rounded rows by the factors of the rows; returns the number of roundings that changed."""
    count = 0
    made: dict[tuple[Value, ...], Value] = {}  # of roundings of the same rows, in another format
    for op in [op for op in edit.ops() if op.name == "smelt.round_blocks"]:
        users = list(dict.fromkeys(user for value in op.results for user in edit.users(value)))
        alone = not any(edit.is_returned(value) for value in op.results)
        plain = all(user.name == "smelt.packed_block_dot" and len(user.operands) == 4 for user in users)
        if users and alone and plain and (found := _find_factor(edit, op)) is not None:
            _defer(edit, op, users, found, made)
            count += 1
    return count


def _defer(edit: Edit, op: Op, users: list[Op], found: _Factor, made: dict[tuple[Value, ...], Value]) -> None:
    b, rows = edit.before(op), op.operands[0].shape
    if found.rest not in made:
        first, *others = found.rest
        for other in others:
            first = b.multiply(first, other)
        made[found.rest] = b.reshape(first, result=rows)
    rounded = b.op("smelt.round_blocks", made[found.rest], **op.attrs).results
    (factor,), shape = edit.operands(found.row), found.row.result.shape
    # One number for each row, in the order of the rows.
    dims, lead = found.row.attrs["broadcast_dimensions"], shape.with_sizes(shape.sizes[:-1])
    if dims and dims[-1] == shape.rank - 1:
        factor, dims = b.reshape(factor, result=factor.shape.with_sizes(factor.shape.sizes[:-1])), dims[:-1]
    if factor.shape.sizes != lead.sizes:
        factor = b.broadcast_in_dim(factor, broadcast_dimensions=dims, result=lead)
    factor = b.add(factor, b.subtract(factor, factor))  # NaN where it is infinite, as the row is
    factor = factor if lead.sizes == rows.sizes[:2] else b.reshape(factor, result=Shape.of(rows.dtype, rows.sizes[:2]))
    for user in users:
        panels = edit.operands(user)[3]
        dot = edit.before(user).op(user.name, *rounded, panels, factor, result=user.result.shape, **user.attrs)
        edit.replace(user.result, dot.result)
        edit.erase(user)
    unused = [op]
    while unused:
        gone = unused.pop()
        if gone in edit and edit.erase_if_dead(gone):
            unused += [maker for value in gone.operands if (maker := edit.maker(value)) is not None]


def _find_factor(edit: Edit, op: Op) -> _Factor | None:
    """The factor of the rows that are rounded, where they are stored without it."""
    value = _below_reshapes(edit, op.operands[0])
    depth = op.operands[0].shape.sizes[2]
    if value.shape.rank < 2 or value.shape.sizes[-1] != depth:
        return None
    products = _products(edit, value)
    leaves = [each for product in products for each in edit.operands(product) if edit.maker(each) not in products]
    rows = [(maker, found) for each in leaves if (maker := edit.maker(each)) and (found := _find_squares(edit, maker))]
    if len(rows) != 1:
        return None
    (row, squares), *_ = rows
    rest = tuple(each for each in leaves if edit.maker(each) is not row)
    whole = any(_below_reshapes(edit, each) is squares.base for each in rest)
    return _Factor(row, rest) if whole and _is_stored(edit, squares.base, {*products, *squares.ops}) else None


def _products(edit: Edit, value: Value) -> list[Op]:
    """The multiplications that make a value, in the order of what they multiply."""
    maker = edit.maker(value)
    if maker is None or maker.name != "stablehlo.multiply":
        return []
    left, right = edit.operands(maker)
    return [*_products(edit, left), maker, *_products(edit, right)]


def _find_squares(edit: Edit, op: Op) -> _Squares | None:
    """What a number for each row, which an op spreads along the last axis, is computed from."""
    if op.name != "stablehlo.broadcast_in_dim":
        return None
    dims, (source,), last = op.attrs["broadcast_dimensions"], edit.operands(op), op.result.shape.rank - 1
    if list(dims) != sorted(dims) or (last in dims and source.shape.sizes[-1] != 1):
        return None
    seen, sums, stack = {op}, list[Op](), [source]
    while stack:
        maker = edit.maker(stack.pop())
        if maker is None or maker in seen:
            continue
        if maker.name == "stablehlo.reduce":
            sums.append(maker)
        elif OPS[maker.name].elementwise or maker.name in PLAIN:
            stack += edit.operands(maker)
        else:
            return None
        seen.add(maker)
    if len(sums) != 1 or len(seen) > MOST or not _adds_rows(sums[0]):
        return None
    square = edit.maker(edit.operands(sums[0])[0])
    if square is None or square.name != "stablehlo.multiply" or len(set(edit.operands(square))) > 1:
        return None
    base = _below_reshapes(edit, edit.operands(square)[0])
    return _Squares(frozenset({*seen, square}), base) if base.shape.sizes == op.result.shape.sizes else None


def _adds_rows(op: Op) -> bool:
    """Whether a reduction adds up the last axis."""
    (x, *_), body = op.operands, op.regions[0]
    adds = len(body.ops) == 1 and body.ops[0].name == "stablehlo.add"
    return adds and len(op.results) == 1 and op.attrs["dimensions"] == (x.shape.rank - 1,)


def _is_stored(edit: Edit, base: Value, inside: Set[Op]) -> bool:
    """Whether a value has other readers than the norm: then it is in memory anyway."""
    stack = [base]
    while stack:
        value = stack.pop()
        if value.op is None or edit.is_returned(value):
            return True
        for user in edit.users(value):
            if user.name == "stablehlo.reshape":
                stack.append(user.result)
            elif user not in inside:
                return True
    return False


def _below_reshapes(edit: Edit, value: Value) -> Value:
    value = edit.value(value)
    while value.op is not None and value.op.name == "stablehlo.reshape":
        value = edit.operands(value.op)[0]
    return value
