"""Products of the same rows by several weights become one product, where a GPU would have too few blocks for each.

The packed panels of the weights are concatenated in `prepare`; each product is a slice of the columns. A sum has the
same terms in the same order as before. Called by `pipeline`, after `pack_weights`.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import accumulate, pairwise

from smelt.ir.core import Op, Region, Value
from smelt.ir.rewrite import Edit, has_effect
from smelt.layout import Layout
from smelt.passes.crop import crop
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape

MANY_COLUMNS = 8192  # a product with as many has enough blocks, and keeps its epilogue,
FEW_ROWS = 32  # unless it has few rows: then a launch costs more than the epilogue's results in memory


def merge_dots(edit: Edit) -> int:
    """Merge packed products of the same rows; gives the number of products that went."""
    count, regions = 0, [edit.func.body]
    while regions:
        region = regions.pop()
        count += _merge_in(edit, region)
        regions += [inner for op in edit.ops(region) for inner in op.regions]
    return count


def _merge_in(edit: Edit, region: Region) -> int:
    weights = {arg for arg, attrs in zip(edit.func.args, edit.func.arg_attrs, strict=True) if WEIGHT in attrs}
    groups: dict[Hashable, list[Op]] = {}
    for op in edit.ops(region):
        if op.name == "smelt.packed_dot" and _can_merge(edit, op, weights):
            lhs, panels = edit.operands(op)
            key = (_source(edit, lhs), lhs.type, panels.shape.dtype, op.result.shape.dtype, op.attrs["layout"])
            groups.setdefault(key, []).append(op)
    several = [ops for ops in groups.values() if len(ops) > 1]
    for ops in several:
        _merge(edit, ops)
    return sum(len(ops) - 1 for ops in several)


def _source(edit: Edit, value: Value) -> Value:
    """The value that was reshaped."""
    while (maker := edit.maker(value)) is not None and maker.name == "stablehlo.reshape":
        value = maker.operands[0]
    return edit.value(value)


def _can_merge(edit: Edit, op: Op, weights: set[Value]) -> bool:
    """Whether whole panels of weights are multiplied, of few columns or by few rows."""
    panels, columns = edit.operands(op)[1], op.result.shape.sizes[2]
    count = panels.shape.sizes[1]
    width = Layout.parse(op.attrs["layout"]).axes[-1][0].size
    rows = op.result.shape.sizes[1]
    few = isinstance(rows, int) and rows <= FEW_ROWS
    whole = isinstance(columns, int) and columns == count * width and (few or columns < MANY_COLUMNS)
    return whole and panels.shape.sizes[0] == 1 and _depends_on(edit, panels, weights)


def _depends_on(edit: Edit, value: Value, weights: set[Value]) -> bool:
    """Whether a value depends on weights and on nothing else but constants, through ops that may be repeated."""
    stack, seen = [edit.value(value)], set[Value]()
    while stack:
        each = stack.pop()
        if each in seen:
            continue
        seen.add(each)
        if each.op is None:
            if each not in weights:
                return False
        elif each.op.regions or has_effect(each.op) or len(each.op.results) > 1:
            return False
        else:
            stack += edit.operands(each.op)
    return any(each in weights for each in seen)


def _merge(edit: Edit, ops: list[Op]) -> None:
    first = ops[0]
    build = edit.before(first)
    copies: dict[Value, Value] = {}

    def copy(value: Value) -> Value:
        """The value in front of the first product; other weights may come after it."""
        value = edit.value(value)
        if value.op is None:
            return value
        if value not in copies:
            operands = [copy(each) for each in value.op.operands]
            copies[value] = build.op(value.op.name, *operands, result=value.type, **value.op.attrs).result
        return copies[value]

    panels = build.concatenate(*(copy(edit.operands(op)[1]) for op in ops), dimension=1)
    lhs, layout = edit.operands(first)[0], first.attrs["layout"]
    ends = [*accumulate(size for op in ops if isinstance(size := op.result.shape.sizes[2], int))]
    total = Shape.of(first.result.shape.dtype, (*first.result.shape.sizes[:2], ends[-1]))
    whole = build.op("smelt.packed_dot", lhs, panels, result=total, layout=layout).result
    parts = [crop(build, whole, {2: pair}) for pair in pairwise([0, *ends])]
    for op, part in zip(ops, parts, strict=True):
        edit.replace(op.result, part)
        edit.erase(op)
