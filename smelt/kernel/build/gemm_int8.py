"""int8 GEMM and convolution: `smelt.packed_qdot`, `smelt.packed_qconv`, uint8 rows × int8 panels → int32 (VNNI).

The loops are those of `gemm.py` and `conv.py` with another `Form`; the micro-kernel is `emit/tile_int8.py`. Sums are
exact in any order. Zero points, scales and `smelt.round_to_byte` follow as the epilogue.
"""

from __future__ import annotations

from smelt.ir.core import Op
from smelt.ir.ops.packed_words import QUAD
from smelt.kernel.build.conv import implicit_gemm
from smelt.kernel.build.gemm import packed_gemm
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import INT8
from smelt.kernel.loops.grammar import Amount, Expr, Number, add, scale, split
from smelt.kernel.loops.nest import Index, Nest, pull, tensor


@pull("smelt.pack_quads")
def pack_quads(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return packed_element(nest, op, index, QUAD)


def packed_element(nest: Nest, op: Op, index: Index, k_pack: int) -> Expr:
    """B as packed panels [group, panel, k / k_pack, k_pack * j + k % k_pack]; zero past the last column and row."""
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
    packed_gemm(nest, op, output, INT8)


@sink("smelt.packed_qconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_qconv(nest: Nest, op: Op, output: Output) -> None:
    implicit_gemm(nest, op, output, INT8)
