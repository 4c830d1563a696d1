"""Products of bytes: `smelt.packed_qdot` and `smelt.packed_qconv` fill tiles of i32 from rows of ui8 and panels of i8.

The loops are those of `build_contract` and `build_conv` with another `Form`. Sums are exact, so nothing here decides
about bits. What shifts, scales and rounds the sums follows as the epilogue, `smelt.round_to_byte` at its end.
"""

from __future__ import annotations

from smelt.dtype import i32
from smelt.ir.core import Op
from smelt.ir.ops.packed_words import QUAD
from smelt.kernel.build.conv import convolve
from smelt.kernel.build.gemm import Form, contract
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Amount, Expr, Number, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, pull, tensor

BYTES = Form(i32, QUAD, block=512, row_block=192)


@pull("smelt.pack_quads")
def pack_quads(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return in_words(nest, op, index, QUAD)


def in_words(nest: Nest, op: Op, index: Index, k_pack: int) -> Expr:
    """[group, panel, word, together * j + step]: column `panel * width + j`, zero where there is none."""
    group, panel, word, at = index
    depth, columns = tensor(op.operands[0]).sizes[1:]
    width, element = op.attrs["width"], tensor(op.result).element
    j, step = split(at, k_pack)
    column, k = add(scale(panel, width), j), add(scale(word, k_pack), step)
    there = [
        nest.less(nest.let(index), Amount(size))
        for index, size, whole in ((k, depth, k_pack), (column, columns, width))
        if not isinstance(size, int) or size % whole
    ]
    if not there:
        return nest.pull(op.operands[0], (group, k, column))
    return nest.choose(
        nest.both(*there), lambda: nest.pull(op.operands[0], (group, k, column)), lambda: Number(0, element), element
    )


@sink("smelt.packed_qdot", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qdot(nest: Nest, op: Op, output: Output) -> None:
    contract(nest, op, output, BYTES)


@sink("smelt.packed_qconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qconv(nest: Nest, op: Op, output: Output) -> None:
    convolve(nest, op, output, BYTES)
