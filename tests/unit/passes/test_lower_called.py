"""Custom calls that stand for ops with open sizes: what they become gives the same as the calls themselves."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.ir.core import walk
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.passes import pipeline

WINDOW = """
func.func @main(%x: tensor<?x3xi32>) -> tensor<?x2xi32> {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %ones = stablehlo.constant dense<1> : tensor<2xi32>
  %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x3xi32>) -> tensor<i32>
  %n1 = stablehlo.reshape %n : (tensor<i32>) -> tensor<1xi32>
  %two = stablehlo.constant dense<2> : tensor<1xi32>
  %one = stablehlo.constant dense<1> : tensor<1xi32>
  %window = stablehlo.concatenate %n1, %two, dim = 0 : (tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>
  %less = stablehlo.subtract %n1, %one : tensor<1xi32>
  %none = stablehlo.constant dense<0> : tensor<3xi32>
  %edges = stablehlo.concatenate %less, %none, dim = 0 : (tensor<1xi32>, tensor<3xi32>) -> tensor<4xi32>
  %padding = stablehlo.reshape %edges : (tensor<4xi32>) -> tensor<2x2xi32>
  %y = stablehlo.custom_call @stablehlo.dynamic_reduce_window(%x, %zero, %window, %ones, %ones, %ones, %padding)
    {called_computations = [@plus]} : (tensor<?x3xi32>, tensor<i32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>,
    tensor<2xi32>, tensor<2x2xi32>) -> tensor<?x2xi32>
  return %y : tensor<?x2xi32>
}
func.func private @plus(%a: tensor<i32>, %b: tensor<i32>) -> tensor<i32> {
  %0 = stablehlo.add %a, %b : tensor<i32>
  stablehlo.return %0 : tensor<i32>
}
"""
LARGEST = """
func.func @main(%x: tensor<?x4xf32>, %y: tensor<?xi32>) -> (tensor<?x?xf32>, tensor<?x?xi32>) {
  %k = stablehlo.get_dimension_size %y, dim = 0 : (tensor<?xi32>) -> tensor<i32>
  %0:2 = stablehlo.custom_call @stablehlo.dynamic_top_k(%x, %k)
    : (tensor<?x4xf32>, tensor<i32>) -> (tensor<?x?xf32>, tensor<?x?xi32>)
  return %0#0, %0#1 : tensor<?x?xf32>, tensor<?x?xi32>
}
"""


def same(text: str, *args: Array) -> None:
    program = parse(text)
    lowered, _ = pipeline.run(program, lowered=True)
    assert not any(op.name == "stablehlo.custom_call" for op in walk(lowered.main.body))
    wanted = run(program, args)
    for found in (run(lowered, args), NativeEngine().compile(program)(*args)):
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == want.dtype
            assert got.tolist() == want.tolist()


@pytest.mark.parametrize("size", [1, 4, 7])
def test_windows_as_long_as_the_input(size: int) -> None:
    same(WINDOW, np.arange(3 * size, dtype=np.int32).reshape(size, 3) % 5)


@pytest.mark.parametrize("count", [0, 1, 4])
def test_the_largest_of_each_row(count: int) -> None:
    rows = np.array([[3, 1, 3, 2], [-0.0, 0.0, -1, np.inf], [5, 6, 7, 8]], np.float32)
    same(LARGEST, rows, np.zeros(count, np.int32))
