"""Long reductions on a GPU whose body selects among its arguments (argmax and the like): slices of a row in parallel.

Such a body is associative and rounds nothing, so the result is that of the order. Called by `plan.fuse`.
"""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dtype import i64
from smelt.ir.core import Op
from smelt.kernel.loops.grammar import Expr, Number, Set, Var, add, scale
from smelt.kernel.loops.nest import Nest, tensor

LONG, SLICES = 1024, 256  # elements of a row that are worth it; slices, one for each thread of a block
SELECTS = frozenset(("compare", "select", "and", "or", "xor", "not", "maximum", "minimum"))


def is_long_selection(op: Op) -> bool:
    if op.name != "stablehlo.reduce" or len(op.attrs["dimensions"]) != 1:
        return False
    extent = tensor(op.operands[0]).sizes[op.attrs["dimensions"][0]]
    names = {each.name.partition(".")[2] for each in op.regions[0].ops}
    plain = not any(tensor(value).element.is_complex for value in op.results)
    return isinstance(extent, int) and extent >= LONG and len(op.results) > 1 and names <= SELECTS and plain


def reduce_selection(nest: Nest, op: Op, targets: Sequence[int]) -> None:
    """Each thread reduces a slice in order; then the slices are reduced in order."""
    count, body, axis = len(op.results), op.regions[0], op.attrs["dimensions"][0]
    inputs, starts = op.operands[:count], op.operands[count:]
    sizes = tensor(inputs[0]).sizes
    extent = sizes[axis]
    assert isinstance(extent, int)
    each = -(-extent // SLICES)
    kinds = [tensor(arg).element for arg in body.args[:count]]

    def combine(totals: Sequence[Var], items: Sequence[Expr]) -> None:
        found = [nest.keep(one) for one in nest.inline(body, [*map(nest.keep, totals), *items])]
        for total, one in zip(totals, found, strict=True):
            nest.emit(Set(total, one))

    with nest.loops([size for d, size in enumerate(sizes) if d != axis]) as index:

        def elements(at: Expr) -> list[Expr]:
            place = (*index[:axis], at, *index[axis:])
            return [nest.convert(nest.pull(value, place), kind) for value, kind in zip(inputs, kinds, strict=True)]

        tiles = [nest.tile("slice", kind, SLICES) for kind in kinds]
        with nest.loop(-(-extent // each), "lane") as lane:
            first = nest.let(scale(lane, each))
            totals = [nest.declare(kind, one) for kind, one in zip(kinds, elements(first), strict=True)]
            left = nest.apply("minimum", Number(each - 1), nest.let(add(extent - 1, scale(first, -1))), dtype=i64)
            with nest.loop(left, "ordered", fence=True) as i:
                combine(totals, elements(nest.let(add(first, i, 1))))
            for tile, total in zip(tiles, totals, strict=True):
                nest.write(tile, lane, nest.keep(total))
        begun = [nest.convert(nest.pull(start, ()), kind) for start, kind in zip(starts, kinds, strict=True)]
        whole = [nest.declare(kind, start) for kind, start in zip(kinds, begun, strict=True)]
        with nest.loop(-(-extent // each), "ordered") as number:
            combine(whole, [nest.read(tile, number, kind) for tile, kind in zip(tiles, kinds, strict=True)])
        for target, total, value in zip(targets, whole, op.results, strict=True):
            nest.store(target, nest.offset(value, index), nest.convert(nest.keep(total), tensor(value).element))
