"""What `fuse` stores and what it computes again where it is used: kernels are held to the ops that they cover."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.engine.native import NativeEngine
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.kernel.plan.fuse import fuse
from smelt.kernel.plan.plan import Launch

GATE = """
func.func @main(%image: tensor<2x5x7x24xf32>, %gate: tensor<2x24xf32>) -> tensor<2x5x7x24xf32> {
  %0 = stablehlo.logistic %gate : tensor<2x24xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0, 3] : (tensor<2x24xf32>) -> tensor<2x5x7x24xf32>
  %2 = stablehlo.multiply %image, %1 : tensor<2x5x7x24xf32>
  return %2 : tensor<2x5x7x24xf32>
}"""
ROWS = """
func.func @main(%rows: tensor<6x24xf32>, %scale: tensor<6xf32>) -> tensor<6x24xf32> {
  %0 = stablehlo.rsqrt %scale : tensor<6xf32>
  %1 = stablehlo.broadcast_in_dim %0, dims = [0] : (tensor<6xf32>) -> tensor<6x24xf32>
  %2 = stablehlo.multiply %rows, %1 : tensor<6x24xf32>
  return %2 : tensor<6x24xf32>
}"""
TRIANGLE = """
func.func @main(%x: tensor<8x5xf32>) -> tensor<8x5xf32> {
  %0 = stablehlo.iota dim = 0 : tensor<8x8xi32>
  %1 = stablehlo.iota dim = 1 : tensor<8x8xi32>
  %2 = stablehlo.compare GE, %0, %1 : (tensor<8x8xi32>, tensor<8x8xi32>) -> tensor<8x8xi1>
  %3 = stablehlo.convert %2 : (tensor<8x8xi1>) -> tensor<8x8xf32>
  %4 = stablehlo.dot %3, %x : (tensor<8x8xf32>, tensor<8x5xf32>) -> tensor<8x5xf32>
  return %4 : tensor<8x5xf32>
}"""


def kernels(program: Program) -> list[set[str]]:
    """The ops of every kernel, without their dialects."""
    launches = (step for step in fuse(program.main).steps if isinstance(step, Launch))
    return [{op.partition(".")[2] for op in each.kernel.ops} for each in launches]


def test_a_costly_number_for_each_channel_is_computed_once() -> None:
    """It changes along the innermost loop and not along those around it: pulled, each pixel would compute it."""
    assert kernels(parse(GATE)) == [{"logistic"}, {"multiply", "broadcast_in_dim"}]


def test_a_costly_number_for_each_row_stays_with_its_row() -> None:
    """The loop over the row does not change it, so one kernel computes it once as well."""
    assert kernels(parse(ROWS)) == [{"rsqrt", "multiply", "broadcast_in_dim"}]


@pytest.mark.parametrize("text", [GATE, ROWS, TRIANGLE], ids=["gate", "rows", "triangle"])
def test_all_are_right(text: str, seed: int) -> None:
    program, random = parse(text), np.random.default_rng(seed)
    arguments = [random.uniform(0.1, 2, arg.shape.numbers({})).astype(np.float32) for arg in program.main.args]
    (want,), (got,) = run(program, arguments), NativeEngine().compile(program)(*arguments)
    np.testing.assert_allclose(got, want, rtol=1e-6)
