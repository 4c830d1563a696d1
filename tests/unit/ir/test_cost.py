"""Costs known by hand: products, convolutions, reductions, branches, calls, and the memory of a chain."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dim import symbol
from smelt.engine.compile import lower
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.composites import encode
from smelt.ir.core import Program, walk
from smelt.ir.cost import Memory, memory, operations
from smelt.ir.text import parse
from smelt.shape import Shape
from tests.unit.ir.test_paged_attention_op import program as paged
from tests.unit.kernel.test_winograd import program as winograd


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


def convolution(channels: int, outputs: int, kernel: int, groups: int, size: int) -> Program:
    f = FuncBuilder("main", [Shape("f32", 2, channels, size, size)])
    w = f.constant(np.ones((outputs, channels // groups, kernel, kernel), np.float32))
    dims, edge = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3)), (kernel // 2, kernel // 2)
    out = f.convolution(
        f.args[0], w, dimension_numbers=dims, feature_group_count=groups, batch_group_count=1, padding=(edge, edge),
        result=Shape("f32", 2, outputs, size, size),
    )  # fmt: skip
    return Program.of(f.func(out))


@pytest.mark.parametrize(
    ("made", "becomes"),
    [(winograd(1, (24, 20), 64, 48), "winograd_conv"), (convolution(24, 32, 5, 1, 9), "packed_conv"),
     (convolution(32, 32, 3, 32, 9), "depthwise_conv"), (convolution(32, 48, 1, 1, 9), "packed_dot")],
    ids=lambda each: each if isinstance(each, str) else "",
)  # fmt: skip
def test_packed_ops_count_what_they_replace(made: Program, becomes: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMELT_TARGET", "avx2")
    lowered = lower(made)
    assert f"smelt.{becomes}" in {op.name for op in walk(lowered.main.body)}
    assert operations(lowered) == operations(made)


def test_attention_counts_two_matmuls() -> None:
    """q: B × 3 queries × 4 heads of 8, two of which share a head of 5 keys; values of 6."""
    said = {
        "operands": "q k v",
        "layout": "bqhgd,bkhd,bkhe->bqhge",
        "scale": 0.5,
        "softcap": 0.0,
        "fill": (),
        "guarded": 0,
    }
    shapes = [Shape("f32", "B", 3, 2, 2, 8), Shape("f32", "B", 5, 2, 8), Shape("f32", "B", 5, 2, 6)]
    f = FuncBuilder("main", shapes)
    attributes = encode("smelt.attention", said)
    result = Shape("f32", "B", 3, 2, 2, 6)
    out = f.op("smelt.attention", *f.args, composite_attributes=attributes, width=8, result=result).result
    assert operations(Program.of(f.func(out))) == 2 * (8 + 6) * (3 * 2 * 2) * 5 * symbol("B")


def test_paged_attention_counts_every_key_of_the_table() -> None:
    """Queries N × 6 heads of 8; pages of 4 keys, values of 10; a table of M pages for each sequence."""
    made = paged((6, 2, 8, 10, 4, 0, 0.0, False, "f32"))
    assert operations(made) == 2 * (8 + 10) * 6 * 4 * symbol("N") * symbol("M")


def test_reductions_windows_loops_and_ops_that_compute_nothing() -> None:
    program = parse("""
    func.func @main(%x: tensor<6x5xf32>, %n: tensor<i32>) -> (tensor<5xf32>, tensor<5x5xf32>, tensor<i32>) {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %a = stablehlo.reduce(%x init: %z) applies stablehlo.add across dimensions = [0]
        : (tensor<6x5xf32>, tensor<f32>) -> tensor<5xf32>
      %w = "stablehlo.reduce_window"(%x, %z) ({
      ^bb0(%p: tensor<f32>, %q: tensor<f32>):
        %s = stablehlo.multiply %p, %q : tensor<f32>
        %t = stablehlo.add %s, %q : tensor<f32>
        stablehlo.return %t : tensor<f32>
      }) {window_dimensions = array<i64: 2, 1>} : (tensor<6x5xf32>, tensor<f32>) -> tensor<5x5xf32>
      %h = stablehlo.convert %x : (tensor<6x5xf32>) -> tensor<6x5xf16>
      %l = stablehlo.while(%i = %n) : tensor<i32>
      cond {
        %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
        stablehlo.return %c : tensor<i1>
      } do {
        %j = stablehlo.add %i, %n : tensor<i32>
        %k = stablehlo.add %j, %n : tensor<i32>
        stablehlo.return %k : tensor<i32>
      }
      return %a, %w, %l : tensor<5xf32>, tensor<5x5xf32>, tensor<i32>
    }
    """)
    assert operations(program) == 30 + (30 * 2 * 2) + (1 + 2)
