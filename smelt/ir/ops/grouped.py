"""Grouped GEMM on packed operands: what passes emit in place of `chlo.ragged_dot` (mixtures of experts).

Rows are sorted by group; group g multiplies its `sizes[g]` rows by its own matrix, and rows behind the last group are
zeros. `smelt.grouped_dot` is `smelt.packed_dot` of each group, `smelt.grouped_block_dot` is `smelt.packed_block_dot`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from smelt.dtype import Array, DType, f32
from smelt.ir.attributes import STRING
from smelt.ir.core import Op, Type
from smelt.ir.ops.definition import Attr, Call, Frame, OpDef
from smelt.ir.ops.packed import LAYOUT, check_panels, check_types, sum_products
from smelt.ir.ops.packed_blocks import check_block_dot, multiply_blocks
from smelt.layout import Layout
from smelt.shape import Shape


def _check_sizes(call: Call, groups: int) -> None:
    """The last operand says how many rows each group of the panels before it has."""
    sizes, panels = call.shape(groups), call.shape(groups - 1)
    plain = isinstance(sizes.dtype, DType) and sizes.dtype.is_integer and sizes.rank == 1
    call.require(plain, "", "the sizes of groups are integers [group]", got=sizes)
    call.same_size(sizes.sizes[0], panels.sizes[0], "", "there is a size for each group of the panels")
    call.require(
        call.shape(0).sizes[0] == 1, "", "the rows of all groups are one matrix [1, row, k]", got=call.shape(0)
    )


def _infer_dot(call: Call) -> Sequence[Type]:
    lhs, result = call.shape(0), call.declared_shape()
    check_types(call)
    call.require(lhs.rank == 3, "", "the left operand must be [1, row, k]", got=lhs)
    call.require(result.rank == 3, "", "the result must be [1, row, column]", got=result)
    check_panels(call, call.shape(1).sizes[0], lhs.sizes[2], result.sizes[2])
    _check_sizes(call, 2)
    return [Shape.of(result.dtype, (*lhs.sizes[:2], result.sizes[2]))]


def _dot(frame: Frame, op: Op, lhs: Array, rhs: Array, sizes: Array) -> Array:
    shape = frame.shape(op.result.type)
    matrices = Layout.parse(op.attrs["layout"]).restore(rhs, (rhs.shape[0], lhs.shape[2], shape[2]))
    total = op.result.shape.element
    return _per_group(shape, total, sizes, lambda g, rows: sum_products(lhs[:, rows], matrices[g : g + 1], total))


def _infer_block_dot(call: Call) -> Sequence[Type]:
    check_block_dot(call)
    _check_sizes(call, 4)
    return [Shape.of(f32, (*call.shape(0).sizes[:2], call.declared_shape().sizes[2]))]


def _block_dot(frame: Frame, op: Op, q: Array, scale: Array, totals: Array, panels: Array, sizes: Array) -> Array:
    shape = frame.shape(op.result.type)

    def multiply(group: int, rows: slice) -> Array:
        left = q[:, rows], scale[:, rows], totals[:, rows]
        return multiply_blocks(op.attrs["format"], shape[2], *left, panels[group : group + 1])

    return _per_group(shape, op.result.shape.element, sizes, multiply)


def _per_group(shape: tuple[int, ...], element: DType, sizes: Array, multiply: Callable[[int, slice], Array]) -> Array:
    made, end = np.zeros(shape, element.numpy), 0
    for group, size in enumerate(sizes.tolist()):
        begin, end = end, end + size
        rows = slice(min(max(begin, 0), shape[1]), min(max(end, 0), shape[1]))
        if rows.start < rows.stop:
            made[:, rows] = multiply(group, rows)
    return made


ROWS = [
    OpDef("smelt.grouped_dot", "lhs rhs sizes", _infer_dot, _dot, (LAYOUT,)),
    OpDef(
        "smelt.grouped_block_dot",
        "q scale totals panels sizes",
        _infer_block_dot,
        _block_dot,
        (Attr("format", STRING),),
    ),
]
