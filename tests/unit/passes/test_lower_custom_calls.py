"""JAX' custom calls for dynamic shapes: the lowered ops give the results of the calls."""

from __future__ import annotations

import numpy as np
import pytest

from smelt.dtype import Array
from smelt.engine.native import NativeEngine
from smelt.errors import RunError
from smelt.ir.core import walk
from smelt.ir.interpret import run
from smelt.ir.ops.control import is_assertion
from smelt.ir.text import parse
from smelt.passes import pipeline
from smelt.target import BASELINE

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
# Two inputs of different types; every number of the window comes with the call.
TOGETHER = """
func.func @main(%x: tensor<?x?xf32>, %y: tensor<?x?xi32>, %window: tensor<2xi64>, %strides: tensor<2xi64>,
    %bases: tensor<2xi64>, %dilations: tensor<2xi64>, %padding: tensor<2x2xi64>) -> (tensor<?x?xf32>, tensor<?x?xi32>) {
  %low = stablehlo.constant dense<0xFF800000> : tensor<f32>
  %none = stablehlo.constant dense<-1> : tensor<i32>
  %0:2 = stablehlo.custom_call @stablehlo.dynamic_reduce_window(%x, %y, %low, %none, %window, %strides, %bases,
    %dilations, %padding) {called_computations = [@greater]} : (tensor<?x?xf32>, tensor<?x?xi32>, tensor<f32>,
    tensor<i32>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, tensor<2xi64>, tensor<2x2xi64>)
    -> (tensor<?x?xf32>, tensor<?x?xi32>)
  return %0#0, %0#1 : tensor<?x?xf32>, tensor<?x?xi32>
}
func.func private @greater(%a: tensor<f32>, %i: tensor<i32>, %b: tensor<f32>, %j: tensor<i32>)
    -> (tensor<f32>, tensor<i32>) {
  %more = stablehlo.compare GE, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
  %value = stablehlo.select %more, %a, %b : tensor<i1>, tensor<f32>
  %place = stablehlo.select %more, %i, %j : tensor<i1>, tensor<i32>
  stablehlo.return %value, %place : tensor<f32>, tensor<i32>
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
    lowered, _ = pipeline.run(program, target=BASELINE)
    assert all(is_assertion(op) for op in walk(lowered.main.body) if op.name == "stablehlo.custom_call")
    wanted = run(program, args)
    for found in (run(lowered, args), NativeEngine().compile(program)(*args)):
        for got, want in zip(found, wanted, strict=True):
            assert got.dtype == want.dtype
            assert got.tolist() == want.tolist()


@pytest.mark.parametrize("size", [1, 4, 7])
def test_dynamic_window_of_the_input_size(size: int) -> None:
    same(WINDOW, np.arange(3 * size, dtype=np.int32).reshape(size, 3) % 5)


WINDOWS = {
    "steps": ((2, 3), (2, 1), (1, 1), (1, 1), ((0, 0), (1, 1))),
    "holes in the window": ((2, 2), (1, 2), (1, 1), (2, 3), ((1, 0), (0, 2))),
    "holes in the inputs": ((3, 2), (1, 1), (2, 3), (1, 1), ((0, 1), (0, 0))),
    "cut edges": ((1, 2), (1, 1), (1, 1), (1, 1), ((-1, 0), (0, -1))),
    "longer than the inputs": ((9, 2), (2, 1), (1, 1), (1, 1), ((0, 0), (0, 0))),
}


@pytest.mark.parametrize("name", WINDOWS)
def test_dynamic_windows_with_strides_and_dilations(name: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = random.integers(0, 9, (5, 6)).astype(np.float32)
    same(TOGETHER, x, np.arange(30, dtype=np.int32).reshape(5, 6), *(np.array(part) for part in WINDOWS[name]))


def test_a_window_with_stride_zero_is_rejected() -> None:
    ones = np.ones(2, np.int64)
    inputs = np.ones((3, 3), np.float32), np.ones((3, 3), np.int32)
    with pytest.raises(RunError, match="must be positive"):
        NativeEngine().compile(parse(TOGETHER))(*inputs, ones, 0 * ones, ones, ones, np.zeros((2, 2), np.int64))


@pytest.mark.parametrize("count", [0, 1, 4])
def test_dynamic_top_k(count: int) -> None:
    rows = np.array([[3, 1, 3, 2], [-0.0, 0.0, -1, np.inf], [5, 6, 7, 8]], np.float32)
    same(LARGEST, rows, np.zeros(count, np.int32))


BITS = """
func.func @main(%s: tensor<{words}xui64>, %n: tensor<1xi64>) -> (tensor<{words}xui64>, tensor<?xui32>) {{
  %0:2 = "stablehlo.custom_call"(%s, %n) {{call_target_name = "stablehlo.dynamic_rng_bit_generator"{attribute}}}
    : (tensor<{words}xui64>, tensor<1xi64>) -> (tensor<{words}xui64>, tensor<?xui32>)
  return %0#0, %0#1 : tensor<{words}xui64>, tensor<?xui32>
}}
"""


@pytest.mark.parametrize(
    ("attribute", "words", "name"),
    [
        ("", 2, "DEFAULT"),
        (", rng_algorithm = #stablehlo<rng_algorithm THREE_FRY>", 2, "THREE_FRY"),
        (", rng_algorithm = #stablehlo<rng_algorithm PHILOX>", 3, "PHILOX"),
        (", rng_algorithm = #stablehlo<rng_algorithm DEFAULT>", 2, "DEFAULT"),
    ],
)
def test_dynamic_bits_keep_their_algorithm(attribute: str, words: int, name: str) -> None:
    lowered, _ = pipeline.run(parse(BITS.format(attribute=attribute, words=words)), target=BASELINE)
    found = [op.attrs["rng_algorithm"] for op in walk(lowered.main.body) if op.name == "stablehlo.rng_bit_generator"]
    assert found == [name]
