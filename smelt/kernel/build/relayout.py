"""`smelt.relayout`: an element of a stored array is an element of the tensor, or zero where its layout pads."""

from __future__ import annotations

from collections.abc import Sequence

from smelt.dim import Size
from smelt.ir.core import Op
from smelt.kernel.loops.grammar import Amount, Expr, Number, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, pull, tensor
from smelt.layout import Digit, Layout


@pull("smelt.relayout")
def relayout(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    value, layout, element = op.operands[0], Layout.parse(op.attrs["layout"]), tensor(op.result).element
    sizes = tensor(value).sizes
    at = tensor_index(layout, index, sizes)
    inside = [
        nest.less(nest.let(each), Amount(size))
        for axis, (each, size) in enumerate(zip(at, sizes, strict=True))
        if layout.pads(axis, sizes)
    ]
    if not inside:
        return nest.pull(value, at)
    return nest.choose(nest.both(*inside), lambda: nest.pull(value, at), lambda: Number(0, element), element)


def tensor_index(layout: Layout, index: Index, sizes: Sequence[Size]) -> Index:
    """The index into a tensor of these sizes, from an index into its stored array."""
    terms: list[list[Expr]] = [[] for _ in layout.letters]
    for rest, group in zip(index, layout.axes, strict=True):
        values: list[tuple[Digit, Expr]] = []
        for digit in reversed(group[1:]):
            rest, value = split(rest, digit.count(sizes))
            values.append((digit, value))
        for digit, value in ((group[0], rest), *reversed(values)):
            terms[digit.axis].append(scale(value, digit.by))
    return tuple(add(*each) for each in terms)
