"""bf16 GEMM and convolution: `smelt.packed_pdot`, `smelt.packed_pconv`, bf16 rows × bf16 panels → f32.

The loops are those of `gemm.py` and `conv.py` with another `Form`; the micro-kernel is `emit/tile_bf16.py`.
"""

from __future__ import annotations

from smelt.ir.core import Op
from smelt.ir.ops.packed_words import PAIR
from smelt.kernel.build.conv import implicit_gemm
from smelt.kernel.build.gemm import packed_gemm
from smelt.kernel.build.gemm_int8 import packed_element
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.form import BF16
from smelt.kernel.loops.grammar import Expr
from smelt.kernel.loops.nest import Index, Nest, pull


@pull("smelt.pack_pairs")
def pack_pairs(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return packed_element(nest, op, index, PAIR)


@sink("smelt.packed_pdot", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_pdot(nest: Nest, op: Op, output: Output) -> None:
    packed_gemm(nest, op, output, BF16)


@sink("smelt.packed_pconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_pconv(nest: Nest, op: Op, output: Output) -> None:
    implicit_gemm(nest, op, output, BF16)
