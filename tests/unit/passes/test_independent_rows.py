"""Rows of a batch that are proven independent may be run together: what mixes them is refused, with the op named."""

from __future__ import annotations

import re

import numpy as np
import pytest

from smelt.engine.native import NativeEngine
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.model import read
from smelt.passes.independent_rows import batch_symbol, find_mixing

X = "tensor<?x6xf32, #smelt.sizes<B, 6>>"


def program(body: str, result: str = X, argument: str = X) -> Program:
    return parse(f"func.func @main(%x: {argument}) -> {result} {{\n{body}\n  return %r : {result}\n}}")


ZERO = "  %z = stablehlo.constant dense<0.0> : tensor<f32>\n"
ROW = "tensor<?xf32, #smelt.sizes<B>>"
SUM = "applies stablehlo.add across dimensions"
INDEPENDENT = {
    "elementwise": program(f"  %r = stablehlo.tanh %x : {X}"),
    "a sum along the row": program(
        f"{ZERO}  %r = stablehlo.reduce(%x init: %z) {SUM} = [1] : ({X}, tensor<f32>) -> {ROW}", ROW
    ),
    "a matmul with a constant": program(
        "  %w = stablehlo.constant dense<0.5> : tensor<6x6xf32>\n"
        f"  %r = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : ({X}, tensor<6x6xf32>) -> {X}"
    ),
    "positions along the row": program(
        f"  %i = stablehlo.iota dim = 1 : {X}\n  %r = stablehlo.add %x, %i : {X}",
    ),
    "rows that are split and joined": program(
        f"  %a = stablehlo.reshape %x : ({X}) -> tensor<?x3xf32, #smelt.sizes<2*B, 3>>\n"
        "  %b = stablehlo.exponential %a : tensor<?x3xf32, #smelt.sizes<2*B, 3>>\n"
        f"  %r = stablehlo.reshape %b : (tensor<?x3xf32, #smelt.sizes<2*B, 3>>) -> {X}"
    ),
    "there and back": program(
        f"  %a = stablehlo.transpose %x, dims = [1, 0] : ({X}) -> tensor<6x?xf32, #smelt.sizes<6, B>>\n"
        "  %b = stablehlo.reverse %a, dims = [0] : tensor<6x?xf32, #smelt.sizes<6, B>>\n"
        f"  %r = stablehlo.transpose %b, dims = [1, 0] : (tensor<6x?xf32, #smelt.sizes<6, B>>) -> {X}"
    ),
    "a dot of each row with itself": program(
        f"  %r = stablehlo.dot_general %x, %x, batching_dims = [0] x [0], contracting_dims = [1] x [1] "
        f": ({X}, {X}) -> {ROW}",
        ROW,
    ),
}
MIXING = {
    "the position in the batch": (
        program(f"  %i = stablehlo.iota dim = 0 : {X}\n  %r = stablehlo.add %x, %i : {X}"),
        "iota.*counts along a dynamic dimension",
    ),
    "every row with every row": (
        program(
            f"  %r = stablehlo.dot_general %x, %x, contracting_dims = [1] x [1] "
            f": ({X}, {X}) -> tensor<?x?xf32, #smelt.sizes<B, B>>",
            "tensor<?x?xf32, #smelt.sizes<B, B>>",
        ),
        "dot_general.*different axes",
    ),
    "a sum over the batch": (
        program(
            f"{ZERO}  %s = stablehlo.reduce(%x init: %z) {SUM} = [0] : ({X}, tensor<f32>) -> tensor<6xf32>\n"
            f"  %r = stablehlo.broadcast_in_dim %s, dims = [1] : (tensor<6xf32>) -> {X}"
        ),
        "reduces over the rows",
    ),
    "the size of the batch": (
        program(
            f"  %n = stablehlo.get_dimension_size %x, dim = 0 : ({X}) -> tensor<i32>\n"
            "  %f = stablehlo.convert %n : (tensor<i32>) -> tensor<f32>\n"
            f"  %b = stablehlo.broadcast_in_dim %f, dims = [] : (tensor<f32>) -> {X}\n"
            f"  %r = stablehlo.divide %x, %b : {X}"
        ),
        "get_dimension_size.*no rule",
    ),
    "rows in reverse": (program(f"  %r = stablehlo.reverse %x, dims = [0] : {X}"), "reverse.*across the rows"),
    "columns as rows": (
        program(
            f"  %a = stablehlo.transpose %x, dims = [1, 0] : ({X}) -> tensor<6x?xf32, #smelt.sizes<6, B>>\n"
            f"  %r = stablehlo.reshape %a : (tensor<6x?xf32, #smelt.sizes<6, B>>) -> {X}"
        ),
        "reshape.*sizes before",
    ),
    "random numbers": (
        program(
            "  %a = stablehlo.constant dense<0.0> : tensor<f32>\n  %b = stablehlo.constant dense<1.0> : tensor<f32>\n"
            "  %s = stablehlo.constant dense<[6]> : tensor<1xi64>\n"
            "  %u = stablehlo.rng %a, %b, %s, distribution = UNIFORM "
            ": (tensor<f32>, tensor<f32>, tensor<1xi64>) -> tensor<6xf32>\n"
            f"  %v = stablehlo.broadcast_in_dim %u, dims = [1] : (tensor<6xf32>) -> {X}\n"
            f"  %r = stablehlo.add %x, %v : {X}"
        ),
        "rng.*draws random numbers",
    ),
}


@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_rows_are_proven(name: str) -> None:
    main = INDEPENDENT[name].main
    assert batch_symbol(main) == "B"
    assert find_mixing(main, "B") is None
    x = np.random.default_rng(1).standard_normal((5, 6)).astype(np.float32)
    native = NativeEngine().compile(INDEPENDENT[name])
    for call in (lambda x: run(INDEPENDENT[name], [x])[0], lambda x: native(x)[0]):
        np.testing.assert_array_equal(call(x), np.concatenate([call(x[i : i + 1]) for i in range(5)]))


@pytest.mark.parametrize("name", MIXING)
def test_rows_that_are_mixed_are_found(name: str) -> None:
    found, reason = MIXING[name]
    assert re.search(reason, find_mixing(found.main, "B") or "proven")


def test_networks_with_a_dynamic_batch_are_proven() -> None:
    digits = read("smelt/assets/digits.onnx")[0].main
    symbol = batch_symbol(digits)
    assert symbol is not None
    assert find_mixing(digits, symbol) is None


def test_inputs_without_rows_forbid_batches() -> None:
    """An input that all rows share may differ between two requests."""
    text = f"func.func @main(%x: {X}, %s: tensor<f32>) -> {X} {{\n  return %x : {X}\n}}"
    assert batch_symbol(parse(text).main) is None
