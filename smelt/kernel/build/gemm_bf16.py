"""Products of bf16: `smelt.packed_pdot` and `smelt.packed_pconv` fill tiles of f32 from rows and panels of bf16.

The loops are those of `build_contract` and `build_conv` with another `Form`. `fuse` imports the rules.
"""

from __future__ import annotations

from smelt.dtype import f32
from smelt.ir.core import Op
from smelt.ir.ops.packed_words import PAIR
from smelt.kernel.build.conv import convolve
from smelt.kernel.build.gemm import Form, contract
from smelt.kernel.build.gemm_int8 import in_words
from smelt.kernel.build.sinks import Output, sink
from smelt.kernel.loops.grammar import Expr
from smelt.kernel.loops.nest import Index, Nest, pull

PAIRS = Form(f32, PAIR, block=256)


@pull("smelt.pack_pairs")
def pack_pairs(nest: Nest, op: Op, _: int, index: Index) -> Expr:
    return in_words(nest, op, index, PAIR)


@sink("smelt.packed_pdot", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_pdot(nest: Nest, op: Op, output: Output) -> None:
    contract(nest, op, output, PAIRS)


@sink("smelt.packed_pconv", anchor=True, addressed=(0, 1), in_runs=(0, 1))
def packed_pconv(nest: Nest, op: Op, output: Output) -> None:
    convolve(nest, op, output, PAIRS)
