# ruff: noqa: E501  # programs are texts
"""Ops whose bounds are tensors, gathers, scatters and regions as ONNX: onnxruntime gives what the reference gives."""

from __future__ import annotations

import numpy as np
import onnxruntime
import pytest

from smelt.dtype import Array, dtype
from tests.unit.write.test_onnx_rows import agree, export, main

RNG = np.random.default_rng(7)
X = RNG.normal(size=(2, 6)).astype("f4")


def ints(*numbers: int) -> Array:
    return np.array(numbers, np.int32)


CASES: dict[str, tuple[str, list[Array], str]] = {
    "reshape": (
        main(
            "x:tensor<2x6xf32> s:tensor<2xi32>",
            "tensor<?x?xf32>",
            "%r = stablehlo.dynamic_reshape %x, %s : (tensor<2x6xf32>, tensor<2xi32>) -> tensor<?x?xf32>\n%r",
        ),
        [X, ints(3, 4)],
        "Cast Reshape",
    ),
    "broadcast": (
        main(
            "x:tensor<2x6xf32> s:tensor<3xi32>",
            "tensor<?x?x?xf32>",
            "%r = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0, 2] : (tensor<2x6xf32>, tensor<3xi32>) -> tensor<?x?x?xf32>\n%r",
        ),
        [X, ints(2, 3, 6)],
        "Reshape Cast Expand",
    ),
    "iota": (
        main(
            "s:tensor<2xi32>",
            "tensor<?x?xi32>",
            "%r = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi32>) -> tensor<?x?xi32>\n%r",
        ),
        [ints(2, 3)],
        "Cast Gather Range Cast Expand",
    ),
    "pad": (
        main(
            "x:tensor<2x6xf32> v:tensor<f32> l:tensor<2xi32> h:tensor<2xi32>",
            "tensor<?x?xf32>",
            "%c = stablehlo.constant dense<0> : tensor<2xi32>\n%r = stablehlo.dynamic_pad %x, %v, %l, %h, %c : (tensor<2x6xf32>, tensor<f32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>\n%r",
        ),
        [X, np.array(7, np.float32), ints(1, 0), ints(0, 2)],
        "",
    ),
    "slice": (
        main(
            "x:tensor<2x6xf32> a:tensor<2xi32> b:tensor<2xi32> c:tensor<2xi32>",
            "tensor<?x?xf32>",
            "%r = stablehlo.real_dynamic_slice %x, %a, %b, %c : (tensor<2x6xf32>, tensor<2xi32>, tensor<2xi32>, tensor<2xi32>) -> tensor<?x?xf32>\n%r",
        ),
        [X, ints(0, 1), ints(2, 6), ints(1, 2)],
        "Cast Cast Cast Slice",
    ),
    "set": (
        main(
            "x:tensor<2x6xf32> n:tensor<i32>",
            "tensor<2x?xf32>",
            "%r = stablehlo.set_dimension_size %x, %n, dim = 1 : (tensor<2x6xf32>, tensor<i32>) -> tensor<2x?xf32>\n%r",
        ),
        [X, np.array(4, np.int32)],
        "",
    ),
    "dyngather": (
        main(
            "x:tensor<4x6xf32> i:tensor<3x1xi32> s:tensor<2xi32>",
            "tensor<3x2xf32>",
            '%r = "stablehlo.dynamic_gather"(%x, %i, %s) {dimension_numbers = #stablehlo.gather<offset_dims = [1], collapsed_slice_dims = [0], start_index_map = [0], index_vector_dim = 1>, indices_are_sorted = false} : (tensor<4x6xf32>, tensor<3x1xi32>, tensor<2xi32>) -> tensor<3x2xf32>\n%r',
        ),
        [RNG.normal(size=(4, 6)).astype("f4"), ints(0, 3, 9).reshape(3, 1), ints(1, 2)],
        "",
    ),
    "map": (
        main(
            "x:tensor<2x6xf32> y:tensor<2x6xf32>",
            "tensor<2x6xf32>",
            """%r = "stablehlo.map"(%x, %y) ({
^bb0(%a: tensor<f32>, %b: tensor<f32>):
 %c = stablehlo.subtract %a, %b : tensor<f32>
 stablehlo.return %c : tensor<f32>
}) {dimensions = array<i64: 0, 1>} : (tensor<2x6xf32>, tensor<2x6xf32>) -> tensor<2x6xf32>
%r""",
        ),
        [X, X * 2],
        "Sub",
    ),
    "hard_swish": (
        main(
            "x:tensor<2x6xf32>",
            "tensor<2x6xf32>",
            """%c3 = stablehlo.constant dense<3.0> : tensor<2x6xf32>
%c0 = stablehlo.constant dense<0.0> : tensor<2x6xf32>
%c6 = stablehlo.constant dense<6.0> : tensor<2x6xf32>
%a = stablehlo.add %x, %c3 : tensor<2x6xf32>
%b = stablehlo.clamp %c0, %a, %c6 : tensor<2x6xf32>
%m = stablehlo.multiply %x, %b : tensor<2x6xf32>
%r = stablehlo.divide %m, %c6 : tensor<2x6xf32>
%r""",
        ),
        [X * 4],
        "HardSwish",
    ),
    "gather batching": (
        main(
            "x:tensor<3x4x5xf32> i:tensor<4x3x2x1xi32>",
            "tensor<4x3x2x2xf32>",
            '%r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [3], collapsed_slice_dims = [], operand_batching_dims = [0, 1], start_indices_batching_dims = [1, 0], start_index_map = [2], index_vector_dim = 3>, slice_sizes = array<i64: 1, 1, 2>, indices_are_sorted = false} : (tensor<3x4x5xf32>, tensor<4x3x2x1xi32>) -> tensor<4x3x2x2xf32>\n%r',
        ),
        [RNG.normal(size=(3, 4, 5)).astype("f4"), RNG.integers(-2, 6, (4, 3, 2, 1)).astype("i4")],
        "",
    ),
    "gather points": (
        main(
            "x:tensor<4x6xf32> i:tensor<2x3xi32>",
            "tensor<3xf32>",
            '%r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [], collapsed_slice_dims = [0, 1], start_index_map = [1, 0], index_vector_dim = 0>, slice_sizes = array<i64: 1, 1>, indices_are_sorted = false} : (tensor<4x6xf32>, tensor<2x3xi32>) -> tensor<3xf32>\n%r',
        ),
        [RNG.normal(size=(4, 6)).astype("f4"), ints(5, 0, 9, -1, 3, 2).reshape(2, 3)],
        "",
    ),
    "gather middle": (
        main(
            "x:tensor<3x5x2xf32> i:tensor<4xi32>",
            "tensor<3x2x4xf32>",
            '%r = "stablehlo.gather"(%x, %i) {dimension_numbers = #stablehlo.gather<offset_dims = [0, 1], collapsed_slice_dims = [1], start_index_map = [1], index_vector_dim = 1>, slice_sizes = array<i64: 3, 1, 2>, indices_are_sorted = false} : (tensor<3x5x2xf32>, tensor<4xi32>) -> tensor<3x2x4xf32>\n%r',
        ),
        [RNG.normal(size=(3, 5, 2)).astype("f4"), ints(4, 0, 7, -3)],
        "Cast Reshape Reshape Reshape Max Min Gather Transpose",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_bounds_that_are_tensors(name: str):
    text, arrays, operators = CASES[name]
    found = agree(text, arrays, 1e-5)
    assert not operators or found == operators.split()


@pytest.mark.parametrize(
    ("kind", "by"),
    [
        ("i8", "add"),
        ("i16", "maximum"),
        ("f32", "multiply"),
        ("ui8", "minimum"),
        ("f64", ""),
        ("i1", ""),
        ("i32", "add"),
    ],
)
def test_scatters(kind: str, by: str):
    """Several updates of one row, and one that is out of bounds; narrow integers add up in i32."""
    body = f"%c = stablehlo.{by} %a, %b : tensor<{kind}>\nstablehlo.return %c" if by else "stablehlo.return %b"
    text = main(
        f"x:tensor<5x3x{kind}> i:tensor<4x1xi32> u:tensor<4x2x{kind}>",
        f"tensor<5x3x{kind}>",
        f"""%r = "stablehlo.scatter"(%x, %i, %u) ({{
        ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>):
        {body} : tensor<{kind}>
        }}) {{scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [1], inserted_window_dims = [0], scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}} : (tensor<5x3x{kind}>, tensor<4x1xi32>, tensor<4x2x{kind}>) -> tensor<5x3x{kind}>
        %r""",
    )
    places = [3, 7, 3 if by else 1, -1]
    x, u = (RNG.integers(0, 2 if kind == "i1" else 99, size).astype(dtype(kind).numpy) for size in ((5, 3), (4, 2)))
    found = agree(text, [x, np.array(places, np.int32).reshape(4, 1), u])
    assert found.count("Cast") == 1 + 3 * (dtype(kind).bits in (8, 16))  # the indices; x, the updates, the result


def test_scatters_of_batches():
    text = main(
        "x:tensor<3x4x5xf32> i:tensor<4x3x2x1xi32> u:tensor<4x3x2x2xf32>",
        "tensor<3x4x5xf32>",
        """%r = "stablehlo.scatter"(%x, %i, %u) ({
        ^bb0(%a: tensor<f32>, %b: tensor<f32>):
        %c = stablehlo.add %b, %a : tensor<f32>
        stablehlo.return %c : tensor<f32>
        }) {scatter_dimension_numbers = #stablehlo.scatter<update_window_dims = [3], input_batching_dims = [0, 1], scatter_indices_batching_dims = [1, 0], scatter_dims_to_operand_dims = [2], index_vector_dim = 3>} : (tensor<3x4x5xf32>, tensor<4x3x2x1xi32>, tensor<4x3x2x2xf32>) -> tensor<3x4x5xf32>
        %r""",
    )
    agree(
        text,
        [
            RNG.normal(size=(3, 4, 5)).astype("f4"),
            RNG.integers(-1, 6, (4, 3, 2, 1)).astype("i4"),
            RNG.normal(size=(4, 3, 2, 2)).astype("f4"),
        ],
        1e-5,
    )


def sort(kind: str, compare: str, axis: int) -> str:
    tensor = f"tensor<4x5x{kind}>"
    return main(
        f"x:{tensor} y:tensor<4x5xi32>",
        f"{tensor}, tensor<4x5xi32>",
        f"""%r:2 = "stablehlo.sort"(%x, %y) ({{
        ^bb0(%a: tensor<{kind}>, %b: tensor<{kind}>, %c: tensor<i32>, %d: tensor<i32>):
        %o = stablehlo.compare {compare}
        stablehlo.return %o : tensor<i1>
        }}) {{dimension = {axis} : i64, is_stable = true}} : ({tensor}, tensor<4x5xi32>) -> ({tensor}, tensor<4x5xi32>)
        %r#0, %r#1""",
    )


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(
    ("kind", "pair", "operators"),
    [
        ("i32", "LT, %a, %b", "TopK GatherElements"),
        ("i32", "GT, %a, %b", "TopK GatherElements"),
        ("i16", "GT, %a, %b", "TopK GatherElements"),
        ("i32", "GT, %b, %a", ""),
        ("f32", "LT, %a, %b", ""),
        ("ui64", "LT, %a, %b", ""),
        ("f32", "LT, %c, %d", ""),
    ],
)
def test_sorts(kind: str, pair: str, axis: int, operators: str):
    """Ties stay in order; a comparator of the first key alone is a TopK where that has the type."""
    of = "i32" if "%c" in pair else kind
    text = sort(kind, f"{pair} : (tensor<{of}>, tensor<{of}>) -> tensor<i1>", axis)
    x = RNG.integers(0, 4, (4, 5)).astype(dtype(kind).numpy)
    found = agree(text, [x, np.arange(20, dtype=np.int32).reshape(4, 5) % 7])
    assert ("TopK" in found) == bool(operators)
    assert not operators or found == operators.split()


def test_a_sort_by_less_or_equal():
    text = sort("i32", "LE, %a, %b : (tensor<i32>, tensor<i32>) -> tensor<i1>", 1)
    x = RNG.permutation(20).astype(np.int32).reshape(4, 5)
    numbers = np.arange(20, dtype=np.int32).reshape(4, 5)
    assert "TopK" not in agree(text, [x, numbers])
    made, tied = export(text), x % 3  # the comparator says nothing about the order of ties: they stay as they are
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    got = session.run(None, dict(zip((port.name for port in made.graph.input), (tied, numbers), strict=True)))
    order = np.argsort(tied, 1, kind="stable")
    for found, given in zip(got, (tied, numbers), strict=True):
        np.testing.assert_array_equal(found, np.take_along_axis(given, order, 1))
