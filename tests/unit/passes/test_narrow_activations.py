"""Precision bf16_activations: what is rounded, and that the numbers stay close to those of f32."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.device.cuda import TARGETS
from smelt.dtype import bf16
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.special import erf
from smelt.ir.text import parse
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.fuse_attention import COMPOSITES
from smelt.passes.narrow_activations import ERF, ERF_REACH
from smelt.passes.quantise import with_precision

NAME = "bf16_activations"
RESIDUAL = """func.func @main(%x: tensor<40x32xf32>, %w: tensor<32x64xf32> {smelt.weight = "w"},
    %v: tensor<64x32xf32> {smelt.weight = "v"}) -> (tensor<40x32xf32>, tensor<40xf32>) {
  %c = stablehlo.constant dense<1.5> : tensor<40x64xf32>
  %0 = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0]
    : (tensor<40x32xf32>, tensor<32x64xf32>) -> tensor<40x64xf32>
  %1 = stablehlo.divide %0, %c : tensor<40x64xf32>
  %2 = stablehlo.tanh %1 : tensor<40x64xf32>
  %3 = stablehlo.dot_general %2, %v, contracting_dims = [1] x [0]
    : (tensor<40x64xf32>, tensor<64x32xf32>) -> tensor<40x32xf32>
  %4 = stablehlo.add %3, %x : tensor<40x32xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %5 = stablehlo.reduce(%4 init: %z) applies stablehlo.add across dimensions = [1]
    : (tensor<40x32xf32>, tensor<f32>) -> tensor<40xf32>
  %6 = chlo.erf %4 : tensor<40x32xf32> -> tensor<40x32xf32>
  return %6, %5 : tensor<40x32xf32>, tensor<40xf32>
}"""
FIRST = """func.func @main(%x: tensor<2x3x9x10xf32>, %w: tensor<16x3x3x3xf32> {smelt.weight = "w"})
    -> tensor<2x16x5x5xf32> {
  %0 = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1],
    window = {stride = [2, 2], pad = [[1, 1], [1, 1]]} {batch_group_count = 1 : i64, feature_group_count = 1 : i64}
    : (tensor<2x3x9x10xf32>, tensor<16x3x3x3xf32>) -> tensor<2x16x5x5xf32>
  return %0 : tensor<2x16x5x5xf32>
}"""
ATTENTION = """func.func @main(%x: tensor<2x20x32xf32>, %q: tensor<32x32xf32> {smelt.weight = "q"},
    %k: tensor<32x32xf32> {smelt.weight = "k"}, %v: tensor<32x32xf32> {smelt.weight = "v"}) -> tensor<2x20x32xf32> {
  %0 = stablehlo.dot_general %x, %q, contracting_dims = [2] x [0]
    : (tensor<2x20x32xf32>, tensor<32x32xf32>) -> tensor<2x20x32xf32>
  %1 = stablehlo.dot_general %x, %k, contracting_dims = [2] x [0]
    : (tensor<2x20x32xf32>, tensor<32x32xf32>) -> tensor<2x20x32xf32>
  %2 = stablehlo.dot_general %x, %v, contracting_dims = [2] x [0]
    : (tensor<2x20x32xf32>, tensor<32x32xf32>) -> tensor<2x20x32xf32>
  %3 = stablehlo.dot_general %0, %1, batching_dims = [0] x [0], contracting_dims = [2] x [2]
    : (tensor<2x20x32xf32>, tensor<2x20x32xf32>) -> tensor<2x20x20xf32>
  %least = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %4 = stablehlo.reduce(%3 init: %least) applies stablehlo.maximum across dimensions = [2]
    : (tensor<2x20x20xf32>, tensor<f32>) -> tensor<2x20xf32>
  %5 = stablehlo.broadcast_in_dim %4, dims = [0, 1] : (tensor<2x20xf32>) -> tensor<2x20x20xf32>
  %6 = stablehlo.subtract %3, %5 : tensor<2x20x20xf32>
  %7 = stablehlo.exponential %6 : tensor<2x20x20xf32>
  %z = stablehlo.constant dense<0.0> : tensor<f32>
  %8 = stablehlo.reduce(%7 init: %z) applies stablehlo.add across dimensions = [2]
    : (tensor<2x20x20xf32>, tensor<f32>) -> tensor<2x20xf32>
  %9 = stablehlo.broadcast_in_dim %8, dims = [0, 1] : (tensor<2x20xf32>) -> tensor<2x20x20xf32>
  %10 = stablehlo.divide %7, %9 : tensor<2x20x20xf32>
  %11 = stablehlo.dot_general %10, %2, batching_dims = [0] x [0], contracting_dims = [2] x [1]
    : (tensor<2x20x20xf32>, tensor<2x20x32xf32>) -> tensor<2x20x32xf32>
  return %11 : tensor<2x20x32xf32>
}"""


def narrow(text: str) -> Program:
    found = with_precision(parse(text), NAME)
    verify(found)
    return found


@pytest.mark.parametrize("text", [RESIDUAL, FIRST, ATTENTION], ids=["residual", "first", "attention"])
def test_numbers_stay_close(text: str, seed: int) -> None:
    program, found = parse(text), narrow(text)
    random = np.random.default_rng(seed)
    given = []
    for arg, attrs in zip(program.main.args, program.main.arg_attrs, strict=True):
        each = random.standard_normal(arg.shape.numbers(), np.float32)
        given.append(each * np.float32(0.2) if "smelt.weight" in attrs else each)
    for got, want in zip(run(found, given), run(program, given), strict=True):
        off = np.abs(got - want).max() / np.abs(want).max()
        assert 0 < off < 0.03  # it is rounded, and no more


def test_residuals_are_read_rounded_and_constants_multiply() -> None:
    found = narrow(RESIDUAL).main.body.ops
    names = [op.name for op in found]
    assert "stablehlo.divide" not in names
    assert "chlo.erf" not in names
    added = next(op for op in found if op.name == "stablehlo.add")
    users = [op for op in found if added.result in op.operands]
    assert [(op.name, op.result.shape.dtype) for op in users] == [("stablehlo.convert", bf16)]


def test_erf_is_a_polynomial() -> None:
    x = np.concatenate([np.linspace(-6, 6, 100_001), [-np.inf, np.inf]]).astype(np.float32)
    square = np.minimum(np.maximum(x, -ERF_REACH), ERF_REACH).astype(np.float64)
    found = square * np.polyval(ERF[::-1], square**2)
    assert np.abs(found - erf(x.astype(np.float64))).max() < 3e-5


def test_the_first_convolution_has_whole_runs_of_channels() -> None:
    (found,) = [op for op in narrow(FIRST).main.body.ops if op.name == "stablehlo.convolution"]
    maps, kernel = (value.shape for value in found.operands)
    assert (maps.sizes, maps.dtype, kernel.sizes) == ((2, 11, 12, 8), bf16, (3, 3, 8, 16))


def test_query_key_and_value_are_one_product() -> None:
    """And attention is one op of bf16."""
    lowered, _ = pipeline.run(narrow(ATTENTION), composites=COMPOSITES, target=TARGETS["sm_90"])
    ops = {op.name: op for op in lowered.main.body.ops}
    assert {value.shape.dtype for value in (*ops["smelt.attention"].operands, ops["smelt.attention"].result)} == {bf16}
