"""Products of bf16: `smelt.packed_pdot` and `smelt.packed_pconv` fill tiles of f32 from rows and panels of bf16.

The loops are those of `build_contract` and `build_conv` with another `Form`. `fuse` imports the rules.
"""

from __future__ import annotations

from smelt.dtype import f32
from smelt.ir.core import Op
from smelt.ir.ops.packed_words import PAIR
from smelt.kernel.build_contract import Form, contract
from smelt.kernel.build_conv import convolve
from smelt.kernel.build_qdot import in_words
from smelt.kernel.loop import Expr
from smelt.kernel.nest import Index, Nest, pull
from smelt.kernel.sinks import Output, sink

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
