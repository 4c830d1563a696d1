"""Costs known by hand: products, convolutions, reductions, branches, calls, and the memory of a chain."""

from __future__ import annotations

import numpy as np

from smelt.dim import symbol
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.cost import Memory, memory, operations
from smelt.ir.text import parse
from smelt.shape import Shape


def test_a_product_counts_two_operations_per_pair() -> None:
    f = FuncBuilder("main", [Shape("f32", "B", 3, 5), Shape("f32", "B", 5, 7)])
    dims = DotDims((0,), (0,), (2,), (1,))
    out = f.dot_general(*f.args, dot_dimension_numbers=dims, result=Shape("f32", "B", 3, 7))
    assert operations(Program.of(f.func(out))) == 2 * 3 * 5 * 7 * symbol("B")


def test_a_grouped_convolution_counts_the_channels_of_a_group() -> None:
    f = FuncBuilder("main", [Shape("f32", 1, 8, 6, 6), Shape("f32", 16, 4, 3, 3)])
    dims = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    out = f.convolution(
        *f.args, dimension_numbers=dims, feature_group_count=2, batch_group_count=1, result=Shape("f32", 1, 16, 4, 4)
    )
    assert operations(Program.of(f.func(out))) == 2 * (16 * 4 * 4) * (4 * 3 * 3)


def test_branches_count_as_the_dearest_and_calls_as_their_bodies() -> None:
    program = parse("""
    func.func @main(%p: tensor<i1>, %x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = "stablehlo.if"(%p) ({
        %1 = call @twice(%x) : (tensor<8xf32>) -> tensor<8xf32>
        stablehlo.return %1 : tensor<8xf32>
      }, {
        stablehlo.return %x : tensor<8xf32>
      }) : (tensor<i1>) -> tensor<8xf32>
      return %0 : tensor<8xf32>
    }
    func.func private @twice(%x: tensor<8xf32>) -> tensor<8xf32> {
      %0 = stablehlo.tanh %x : tensor<8xf32>
      %1 = stablehlo.add %0, %0 : tensor<8xf32>
      return %1 : tensor<8xf32>
    }
    """)
    assert operations(program) == 16


def test_the_peak_is_what_is_alive_at_once() -> None:
    f = FuncBuilder("main", [Shape("f32", "B", 256)])
    x = f.tanh(f.args[0])
    y = f.tanh(x)
    z = f.add(x, y)
    func = f.func(f.tanh(z))
    kilo = 1024
    assert memory(func, {"B": 2}) == Memory(2 * kilo, 2 * kilo, 6 * kilo)  # x, y and z
    assert memory(func, {}) == Memory(kilo, kilo, 3 * kilo)
    assert memory(f.func(f.constant(np.zeros(0, np.float32))), {}).results == 0
