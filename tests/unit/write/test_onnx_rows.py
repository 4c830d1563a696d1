# ruff: noqa: E501  # programs are texts
"""Each writer on programs that tell its attributes apart: onnxruntime gives what the reference gives, by the operators
that are expected; and each reason for a refusal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import smelt
from smelt.dtype import Array, dtype
from smelt.errors import FileError, UnsupportedError
from smelt.ir.interpret import run
from smelt.write.onnx import build, model, to_model

RNG = np.random.default_rng(5)


def export(text: str) -> onnx.ModelProto:
    made, _ = to_model(build(smelt.parse(text)), {})
    onnx.checker.check_model(made, full_check=True)
    return made


def agree(text: str, arrays: Sequence[Array], rtol: float = 1e-6) -> list[str]:
    """Compare onnxruntime with the reference; gives the operators in order."""
    made = export(text)
    session = onnxruntime.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = dict(zip((port.name for port in made.graph.input), arrays, strict=True))
    for ours, theirs in zip(session.run(None, feed), run(smelt.parse(text), list(arrays)), strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=rtol)
    return [node.op_type for node in made.graph.node]


def main(args: str, results: str, body: str) -> str:
    """`args`: name:type …; the last line of the body names what is returned."""
    ports = ", ".join("%{}: {}".format(*each.split(":")) for each in args.split())
    *lines, values = body.strip().splitlines()
    return f"func.func @main({ports}) -> ({results}) {{\n" + "\n".join(lines) + f"\nreturn {values} : {results}\n}}"


# ---- elementwise ----

X = RNG.uniform(-0.95, 0.95, (3, 4))
FUNCTIONS = ("chlo.acos", "chlo.asin", "chlo.atan", "stablehlo.tan", "chlo.sinh", "chlo.cosh", "chlo.asinh",
             "chlo.atanh", "stablehlo.logistic", "stablehlo.cbrt", "stablehlo.log_plus_one",
             "stablehlo.exponential_minus_one", "stablehlo.rsqrt", "stablehlo.sign")  # fmt: skip


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_functions_of_floats(kind: str):
    names = [f"%r{i}" for i in range(len(FUNCTIONS))]
    tensor = f"tensor<3x4x{kind}>"
    lines = [
        f"{at} = {name} %x : {tensor} -> {tensor}" if "chlo" in name else f"{at} = {name} %x : {tensor}"
        for at, name in zip(names, FUNCTIONS, strict=True)
    ]
    text = main(f"x:{tensor}", ", ".join([tensor] * len(names)), "\n".join([*lines, ", ".join(names)]))
    for scale in (1, 1e-6):
        agree(text, [(X * scale).astype(dtype(kind).numpy)], 1e-13 if kind == "f64" else 3e-6)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_inverse_hyperbolic_functions_of_large_numbers(kind: str):
    tensor = f"tensor<9x{kind}>"
    body = f"%a = chlo.asinh %x : {tensor} -> {tensor}\n%b = chlo.acosh %y : {tensor} -> {tensor}\n"
    body += f"%c = chlo.sinh %z : {tensor} -> {tensor}\n%a, %b, %c"
    x = np.array([0, -0.2, 3, 2e3, -2e4, 5e7, -2e8, 1e15, 1e30], dtype(kind).numpy)
    z = np.array([0, 1e-9, -0.3, 0.6, -2, 30, -80, 1e3, -1e3], dtype(kind).numpy)
    text = main(f"x:{tensor} y:{tensor} z:{tensor}", ", ".join([tensor] * 3), body)
    agree(text, [x, 1 + np.abs(x), z], 1e-13 if kind == "f64" else 3e-6)


INTEGERS = [f"{sign}{bits}" for sign in ("i", "ui") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("kind", INTEGERS)
def test_integers_of_every_width(kind: str):
    low, high = np.iinfo(dtype(kind).numpy).min, np.iinfo(dtype(kind).numpy).max
    bits = dtype(kind).bits
    x = np.array([low, high, 0, 1, 2, 3, 5, high - 1, high // 2, 100, 7, 11], dtype(kind).numpy)
    y = np.array([3, 2, 0, 5, 7, 4, 3, 1, high, bits - 1, bits, bits + 1], dtype(kind).numpy)
    if low:
        x[4:6], y[5:8] = (-1, -3), (-1, -2, low)
    names = ("shift_left", "shift_right_logical", "shift_right_arithmetic", "power", "divide", "remainder", "maximum",
             "minimum", "add", "multiply", "subtract", "and", "or", "xor")  # fmt: skip
    tensor = f"tensor<12x{kind}>"
    lines = [f"%{name} = stablehlo.{name} %x, %y : {tensor}" for name in names]
    single = ("negate", "not", "popcnt", "count_leading_zeros", "abs", "sign")[: 6 if low else 4]
    lines += [f"%{name} = stablehlo.{name} %x : {tensor}" for name in single]
    values = ", ".join(f"%{name}" for name in (*names, *single))
    results = ", ".join([tensor] * (len(names) + len(single)))
    agree(main(f"x:{tensor} y:{tensor}", results, "\n".join([*lines, values])), [x, y])


@pytest.mark.parametrize("target", ["i8", "ui8", "i16", "ui16", "i32", "ui32", "i64", "ui64"])
@pytest.mark.parametrize("source", ["f32", "f64"])
def test_floats_as_integers(source: str, target: str):
    """Out of range the nearest number, 0 for nan, else towards 0."""
    info = np.iinfo(dtype(target).numpy)
    near = [float(info.max) + d for d in (-1, 0, 1)] + [float(info.min) + d for d in (-1, 0, 1)]
    x = np.array([0, -0.6, 0.6, 1.5, -1.5, 2.5, 100.9, -100.9, np.inf, -np.inf, np.nan, 3e9, 1e19, *near])
    text = main(
        f"x:tensor<19x{source}>",
        f"tensor<19x{target}>",
        f"%r = stablehlo.convert %x : (tensor<19x{source}>) -> tensor<19x{target}>\n%r",
    )
    agree(text, [x.astype(dtype(source).numpy)])


def test_floats_of_every_kind_in_order():
    x = np.array([np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, 2], np.float32)
    a, b = (each.reshape(-1).copy() for each in np.meshgrid(x, x))
    directions = ("EQ", "NE", "LT", "LE", "GT", "GE")
    lines = [
        f"%{kind}{each} = stablehlo.compare {each}, %x, %y, {kind} : (tensor<64xf32>, tensor<64xf32>) -> tensor<64xi1>"
        for kind in ("TOTALORDER", "FLOAT")
        for each in directions
    ]
    values = ", ".join(line.split(" = ")[0] for line in lines)
    agree(
        main("x:tensor<64xf32> y:tensor<64xf32>", ", ".join(["tensor<64xi1>"] * 12), "\n".join([*lines, values])),
        [a, b],
    )


def test_booleans():
    tensor = "tensor<8xi1>"
    pairs = ("add", "multiply", "maximum", "minimum", "and", "or", "xor")
    lines = [f"%{name} = stablehlo.{name} %x, %y : {tensor}" for name in pairs]
    lines += [
        f"%{name} = stablehlo.compare {name}, %x, %y : ({tensor}, {tensor}) -> {tensor}"
        for name in ("EQ", "NE", "LT", "LE", "GT", "GE")
    ]
    lines += [
        f"%select = stablehlo.select %z, %x, %y : {tensor}, {tensor}",
        f"%not = stablehlo.not %x : {tensor}",
        f"%clamp = stablehlo.clamp %x, %y, %z : {tensor}",
    ]
    values = ", ".join(line.split(" = ")[0] for line in lines)
    x, y, z = (np.array([i >> bit & 1 for i in range(8)], bool) for bit in (2, 1, 0))
    text = main(f"x:{tensor} y:{tensor} z:{tensor}", ", ".join([tensor] * len(lines)), "\n".join([*lines, values]))
    agree(text, [x, y, z | x])  # a low bound above the high one is not defined


def test_rounding_to_fewer_bits():
    body = """
    %a = stablehlo.reduce_precision %x, format = e8m7 : tensor<6xf32>
    %b = stablehlo.reduce_precision %x, format = e8m23 : tensor<6xf32>
    %c = stablehlo.reduce_precision %y, format = e11m52 : tensor<6xf64>
    %d = chlo.square %x : tensor<6xf32> -> tensor<6xf32>
    %e = stablehlo.round_nearest_afz %x : tensor<6xf32>
    %f = stablehlo.round_nearest_even %x : tensor<6xf32>
    %a, %b, %c, %d, %e, %f"""
    f32, f64 = "tensor<6xf32>", "tensor<6xf64>"
    text = main(f"x:{f32} y:{f64}", ", ".join([f32, f32, f64, f32, f32, f32]), body)
    x = np.array([1.2345678, -2.5, 2.5, 0.5, 3.1, -0.49999], np.float32)
    agree(text, [x, x.astype(np.float64)])


# ---- moving data ----

MOVES: dict[str, tuple[str, list[Array], list[str]]] = {
    "slice": (
        main(
            "x:tensor<4x6x3xf32>",
            "tensor<2x2x3xf32>",
            "%r = stablehlo.slice %x [0:3:2, 1:5:3, 0:3:1] : (tensor<4x6x3xf32>) -> tensor<2x2x3xf32>\n%r",
        ),
        [RNG.normal(size=(4, 6, 3)).astype("f4")],
        ["Slice"],
    ),
    "iota": (
        main(
            "n:tensor<2xi32> x:tensor<?x3xf32,#smelt.sizes<N,3>>",
            "tensor<?x3xf32,#smelt.sizes<N,3>>",
            """
            %i = stablehlo.iota dim = 0 : tensor<?x3xf32,#smelt.sizes<N,3>>
            %j = stablehlo.iota dim = 1 : tensor<?x3xf32,#smelt.sizes<N,3>>
            %s = stablehlo.subtract %i, %j : tensor<?x3xf32,#smelt.sizes<N,3>>
            %r = stablehlo.add %s, %x : tensor<?x3xf32,#smelt.sizes<N,3>>
            %r""",
        ),
        [np.array([5, 3], np.int32), RNG.normal(size=(5, 3)).astype("f4")],
        [],
    ),
    "sizes": (
        main(
            "x:tensor<?x7xf32,#smelt.sizes<N,7>>",
            "tensor<i32>",
            """
            %n = stablehlo.get_dimension_size %x, dim = 0 : (tensor<?x7xf32,#smelt.sizes<N,7>>) -> tensor<i32>
            %m = stablehlo.get_dimension_size %x, dim = 1 : (tensor<?x7xf32,#smelt.sizes<N,7>>) -> tensor<i32>
            %r = stablehlo.subtract %n, %m : tensor<i32>
            %r""",
        ),
        [np.zeros((4, 7), np.float32)],
        ["Shape", "Cast", "Reshape", "Sub"],
    ),
    "bits of integers": (
        main(
            "x:tensor<4xi32> y:tensor<4xui8>",
            "tensor<4xui32>, tensor<4xi8>",
            """
            %a = stablehlo.bitcast_convert %x : (tensor<4xi32>) -> tensor<4xui32>
            %b = stablehlo.bitcast_convert %y : (tensor<4xui8>) -> tensor<4xi8>
            %a, %b""",
        ),
        [np.array([-1, 0, 5, -(1 << 31)], np.int32), np.array([0, 127, 128, 255], np.uint8)],
        ["Cast", "Cast"],
    ),
    "index select": (
        main(
            "x:tensor<4x5x2xf32> i:tensor<3x2xi32>",
            "tensor<4x3x2x2xf32>",
            '%r = "stablehlo.torch_index_select"(%x, %i) {dim = 1 : i64, batch_dims = 0 : i64} : '
            "(tensor<4x5x2xf32>, tensor<3x2xi32>) -> tensor<4x3x2x2xf32>\n%r",
        ),
        [RNG.normal(size=(4, 5, 2)).astype("f4"), np.array([[0, 4], [2, 2], [1, 3]], np.int32)],
        ["Cast", "Gather"],
    ),
    "products of axes": (
        main(
            "x:tensor<2x3x4xf32> y:tensor<4x5xf32> v:tensor<4xf32>",
            "tensor<2x3x5xf32>, tensor<5xf32>, tensor<5x2x3xf32>",
            """
            %a = stablehlo.dot_general %x, %y, contracting_dims = [2] x [0] : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<2x3x5xf32>
            %b = stablehlo.dot %v, %y : (tensor<4xf32>, tensor<4x5xf32>) -> tensor<5xf32>
            %c = "stablehlo.einsum"(%x, %y) {einsum_config = "abc,cd->dab"} : (tensor<2x3x4xf32>, tensor<4x5xf32>) -> tensor<5x2x3xf32>
            %a, %b, %c""",
        ),
        [RNG.normal(size=size).astype("f4") for size in ((2, 3, 4), (4, 5), (4,))],
        ["MatMul", "Einsum", "Transpose"],
    ),
    "products of batches": (
        main(
            "x:tensor<2x3x4xf32> y:tensor<5x2x4xf32>",
            "tensor<2x3x5xf32>, tensor<3x5xf32>",
            """
            %a = stablehlo.dot_general %x, %y, batching_dims = [0] x [1], contracting_dims = [2] x [2] : (tensor<2x3x4xf32>, tensor<5x2x4xf32>) -> tensor<2x3x5xf32>
            %b = stablehlo.dot_general %x, %y, contracting_dims = [0, 2] x [1, 2] : (tensor<2x3x4xf32>, tensor<5x2x4xf32>) -> tensor<3x5xf32>
            %a, %b""",
        ),
        [RNG.normal(size=size).astype("f4") for size in ((2, 3, 4), (5, 2, 4))],
        ["Transpose", "MatMul", "Einsum"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MOVES)
def test_moves_and_products(name: str):
    text, arrays, operators = MOVES[name]
    found = agree(text, arrays, 3e-6)
    assert found == operators or not operators, found


def convolution(x: str, w: str, y: str, window: str, groups: str = "feature_group_count = 1 : i64") -> str:
    both = (
        f"batch_group_count = 1 : i64, {groups}" if "feature" in groups else f"feature_group_count = 1 : i64, {groups}"
    )
    return main(
        f"x:tensor<{x}> w:tensor<{w}>",
        f"tensor<{y}>",
        f"%r = stablehlo.convolution(%x, %w) dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1], window = {{{window}}}"
        f" {{{both}}} : (tensor<{x}>, tensor<{w}>) -> tensor<{y}>\n%r",
    )


WINDOWS = {
    "reversed in one axis": convolution("1x2x6x7xf32", "3x2x2x3xf32", "1x3x5x5xf32", "reverse = [false, true]"),
    "reversed in both": convolution("1x2x6x7xf32", "3x2x2x3xf32", "1x3x5x5xf32", "reverse = [true, true]"),
    "f64, strides and holes": convolution(
        "2x4x9x8xf64", "6x2x3x2xf64", "2x6x4x9xf64",
        "stride = [2, 1], pad = [[1, 2], [0, 3]], rhs_dilate = [2, 2]", "feature_group_count = 2 : i64",
    ),
    "groups of batches": convolution("4x3x5x5xf32", "6x3x2x2xf32", "2x6x4x4xf32", "stride = [1, 1]", "batch_group_count = 2 : i64"),
    "cropped": convolution("1x2x6x7xf32", "3x2x2x3xf32", "1x3x3x6xf32", "pad = [[-1, -1], [-1, 2]]"),
    "spread": convolution("1x2x3x2xf32", "3x2x2x3xf32", "1x3x6x4xf32", "pad = [[1, 1], [1, 1]], lhs_dilate = [2, 3]"),
    "bytes": convolution("1x2x6x7xi8", "3x2x2x3xi8", "1x3x5x5xi32", "stride = [1, 1]"),
    "short integers": convolution("1x2x6x7xi16", "3x2x2x3xi16", "1x3x5x5xi16", "stride = [1, 1]"),
}  # fmt: skip


@pytest.mark.parametrize("name", WINDOWS)
def test_convolutions(name: str):
    made = smelt.parse(WINDOWS[name])
    arrays = []
    for value in made.main.args:
        element, sizes = value.shape.element, value.shape.numbers()
        drawn = RNG.normal(size=sizes) if element.is_float else RNG.integers(-9, 9, sizes)
        arrays.append(drawn.astype(element.numpy))
    operators = agree(WINDOWS[name], arrays, 1e-12 if "f64" in name else 1e-5)
    expected = "ConvInteger" if name == "bytes" else "Einsum" if "f64" in name or "short" in name else "Conv"
    assert expected in operators


# ---- reductions, control flow, composites ----


def reduce_window(body: str, more: str, result: str, init: str = "0.0") -> str:
    return main(
        "x:tensor<2x3x8x9xf32>",
        f"tensor<{result}>",
        f"""%z = stablehlo.constant dense<{init}> : tensor<f32>
        %r = "stablehlo.reduce_window"(%x, %z) ({{
        ^bb0(%p: tensor<f32>, %q: tensor<f32>):
          {body}
          stablehlo.return %s : tensor<f32>
        }}) {{{more}}} : (tensor<2x3x8x9xf32>, tensor<f32>) -> tensor<{result}>
        %r""",
    )


ADD, MAX = "%s = stablehlo.add %p, %q : tensor<f32>", "%s = stablehlo.maximum %p, %q : tensor<f32>"
OWN = "%t = stablehlo.multiply %p, %q : tensor<f32>\n%s = stablehlo.subtract %p, %t : tensor<f32>"
LOW = "0xFF800000"
# the body, attributes, sizes of the result, the initial value, operators
POOLS: dict[str, tuple[str, str, str, str, list[str]]] = {
    "max": (MAX, "window_dimensions = array<i64: 1, 1, 2, 3>, window_strides = array<i64: 1, 1, 2, 1>",
            "2x3x4x7xf32", LOW, ["MaxPool"]),
    "sum": (ADD, "window_dimensions = array<i64: 1, 1, 2, 3>, padding = dense<[[0,0],[0,0],[1,0],[0,2]]> : tensor<4x2xi64>",
            "2x3x8x9xf32", "0.0", ["AveragePool", "Mul"]),
    "max over channels": (MAX, "window_dimensions = array<i64: 1, 2, 1, 1>, window_dilations = array<i64: 1, 2, 1, 1>",
                          "2x1x8x9xf32", LOW, ["Slice", "Slice", "Max"]),
    "sum from 3": (ADD, "window_dimensions = array<i64: 1, 1, 2, 1>", "2x3x7x9xf32", "3.0",
                   ["Slice", "Slice", "Add", "Add"]),
    "padded by more than the window": (
        MAX, "window_dimensions = array<i64: 1, 1, 2, 1>, padding = dense<[[0,0],[0,0],[2,0],[0,0]]> : tensor<4x2xi64>",
        "2x3x9x9xf32", LOW, ["Pad", "Slice", "Slice", "Max"]),
    "sums of all before": (
        ADD, "window_dimensions = array<i64: 1, 1, 8, 1>, padding = dense<[[0,0],[0,0],[7,0],[0,0]]> : tensor<4x2xi64>",
        "2x3x8x9xf32", "0.0", ["AveragePool", "Mul"]),
    "of its own": (OWN, "window_dimensions = array<i64: 1, 1, 2, 2>, window_strides = array<i64: 1, 1, 3, 2>",
                   "2x3x3x4xf32", "0.5", []),
    "spread": (ADD, "window_dimensions = array<i64: 1, 1, 2, 2>, base_dilations = array<i64: 1, 1, 2, 3>",
               "2x3x14x24xf32", "0.0", []),
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_windows_of_reductions(name: str):
    body, more, result, init, operators = POOLS[name]
    found = agree(reduce_window(body, more, result, init), [RNG.normal(size=(2, 3, 8, 9)).astype("f4")], 3e-6)
    assert found == operators or not operators, found


@pytest.mark.parametrize("direction", ["[3, 0]", "[0, 3]"])
def test_cumulative_sums(direction: str):
    body = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %r = "stablehlo.reduce_window"(%x, %z) ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      {ADD}
      stablehlo.return %s : tensor<f32>
    }}) {{window_dimensions = array<i64: 4, 1>, padding = dense<[{direction}, [0, 0]]> : tensor<2x2xi64>}}
      : (tensor<4x5xf32>, tensor<f32>) -> tensor<4x5xf32>
    %r"""
    text = main("x:tensor<4x5xf32>", "tensor<4x5xf32>", body)
    assert agree(text, [RNG.normal(size=(4, 5)).astype("f4")]) == ["CumSum"]


def test_a_window_over_a_whole_axis_with_holes_is_no_cumulative_sum():
    body = f"""%z = stablehlo.constant dense<0.0> : tensor<f32>
    %r = "stablehlo.reduce_window"(%x, %z) ({{
    ^bb0(%p: tensor<f32>, %q: tensor<f32>):
      {ADD}
      stablehlo.return %s : tensor<f32>
    }}) {{window_dimensions = array<i64: 4, 1>, window_dilations = array<i64: 2, 1>, padding = dense<[[3, 0], [0, 0]]> : tensor<2x2xi64>}}
      : (tensor<4x5xf32>, tensor<f32>) -> tensor<1x5xf32>
    %r"""
    operators = agree(main("x:tensor<4x5xf32>", "tensor<1x5xf32>", body), [RNG.normal(size=(4, 5)).astype("f4")])
    assert "CumSum" not in operators


def reduction(kind: str, op: str, init: str, axes: str, sizes: str, result: str) -> str:
    return main(
        f"x:tensor<{sizes}{kind}>",
        f"tensor<{result}{kind}>",
        f"""%z = stablehlo.constant dense<{init}> : tensor<{kind}>
        %r = stablehlo.reduce(%x init: %z) applies stablehlo.{op} across dimensions = [{axes}] : (tensor<{sizes}{kind}>, tensor<{kind}>) -> tensor<{result}{kind}>
        %r""",
    )


@pytest.mark.parametrize(
    ("kind", "op", "init", "operators"),
    [
        ("f32", "add", "0.0", ["ReduceSum"]),
        ("f32", "add", "1.5", ["ReduceSum", "Add"]),
        ("f32", "multiply", "1.0", ["ReduceProd"]),
        ("f32", "maximum", "0xFF800000", ["ReduceMax"]),
        ("f32", "maximum", "0.25", ["ReduceMax", "Max"]),
        ("f32", "minimum", "0x7F800000", ["ReduceMin"]),
        ("i1", "and", "true", ["Cast", "ReduceMin", "Cast"]),
        ("i1", "or", "false", ["Cast", "ReduceMax", "Cast"]),
        ("i1", "add", "false", ["Cast", "ReduceMax", "Cast"]),
        ("i32", "maximum", "-2147483648", ["ReduceMax"]),
        ("i8", "minimum", "127", ["ReduceMin"]),
        ("ui64", "maximum", "0", ["BitwiseXor", "Cast", "ReduceMax", "Cast", "BitwiseXor"]),
        ("ui64", "minimum", "18446744073709551615", ["BitwiseXor", "Cast", "ReduceMin", "Cast", "BitwiseXor"]),
        ("ui16", "maximum", "0", ["Cast", "ReduceMax", "Cast"]),
    ],
)
def test_reductions(kind: str, op: str, init: str, operators: list[str]):
    element = dtype(kind)
    sizes = (3, 5, 4)
    drawn = RNG.normal(size=sizes) if element.is_float else RNG.integers(0, 2 if kind == "i1" else 99, sizes)
    array = drawn.astype(element.numpy)
    if kind == "ui64":
        array = array | (array % 2 << np.uint64(63))
    for axes, result in (("1", "3x4x"), ("0, 2", "5x"), ("0, 1, 2", "")):
        assert agree(reduction(kind, op, init, axes, "3x5x4x", result), [array]) == operators


def test_branches_of_one_value():
    """If and case with several operands inside; an index out of range takes the last branch."""
    body = """
    %r = "stablehlo.case"(%i) ({
      stablehlo.return %x : tensor<2xf32>
    }, {
      %a = stablehlo.negate %x : tensor<2xf32>
      stablehlo.return %a : tensor<2xf32>
    }, {
      %b = stablehlo.add %x, %x : tensor<2xf32>
      stablehlo.return %b : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    %s = "stablehlo.case"(%i) ({
      %c = stablehlo.cosine %x : tensor<2xf32>
      stablehlo.return %c : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    %o:2 = stablehlo.optimization_barrier %r, %s : tensor<2xf32>, tensor<2xf32>
    %o#1, %o#0"""
    text = main("i:tensor<i32> x:tensor<2xf32>", "tensor<2xf32>, tensor<2xf32>", body)
    for index in (-1, 0, 1, 2, 3):
        agree(text, [np.array(index, np.int32), np.array([1.5, -2], np.float32)])


# ---- what is refused ----

F = "tensor<4xf32>"
REFUSALS: dict[str, tuple[str, str]] = {
    "products of booleans": (
        main("x:tensor<2x3xi1> y:tensor<3x2xi1>", "tensor<2x2xi1>",
             "%r = stablehlo.dot_general %x, %y, contracting_dims = [1] x [0] : (tensor<2x3xi1>, tensor<3x2xi1>) -> tensor<2x2xi1>\n%r"),
        "stablehlo.dot_general: products of booleans",
    ),
    "bits of floats": (
        main(f"x:{F}", "tensor<4xi32>", f"%r = stablehlo.bitcast_convert %x : ({F}) -> tensor<4xi32>\n%r"),
        "stablehlo.bitcast_convert: ONNX cannot see the bits of floats, nor split integers into parts",
    ),
    "precision": (
        main(f"x:{F}", F, f"%r = stablehlo.reduce_precision %x, format = e5m10 : {F}\n%r"),
        "stablehlo.reduce_precision: rounding to 5 bits of exponent and 10 of mantissa",
    ),
    "a custom call": (
        main(f"x:{F}", F, f'%r = stablehlo.custom_call @other(%x) : ({F}) -> {F}\n%r'),
        "stablehlo.custom_call: the custom call 'other': code that ONNX does not have",
    ),
    "random numbers": (
        main("x:tensor<2xui64>", "tensor<2xui64>, tensor<4xui32>",
             "%r:2 = stablehlo.rng_bit_generator %x, algorithm = PHILOX : (tensor<2xui64>) -> (tensor<2xui64>, tensor<4xui32>)\n%r#0, %r#1"),
        "stablehlo.rng_bit_generator: ONNX has no generator of random bits with a state",
    ),
    "a system that is too large": (
        main("x:tensor<65x65xf32>", "tensor<65x65xf32>", "%r = stablehlo.cholesky %x, lower = true : tensor<65x65xf32>\n%r"),
        "stablehlo.cholesky: a system of more than 64 equations: ONNX has no solver",
    ),
    "a sort": (
        main("x:tensor<1025xf32>", "tensor<1025xf32>",
             """%r = "stablehlo.sort"(%x) ({
             ^bb0(%a: tensor<f32>, %b: tensor<f32>):
               %c = stablehlo.compare LT, %a, %b : (tensor<f32>, tensor<f32>) -> tensor<i1>
               stablehlo.return %c : tensor<i1>
             }) {dimension = 0 : i64} : (tensor<1025xf32>) -> tensor<1025xf32>
             %r"""),
        "stablehlo.sort: a sort of more than 1024 elements with a comparator that TopK does not have",
    ),
    "a scatter": (
        main("x:tensor<5xf32> i:tensor<2x1xi32> u:tensor<2xf32>", "tensor<5xf32>",
             """%r = "stablehlo.scatter"(%x, %i, %u) ({
             ^bb0(%a: tensor<f32>, %b: tensor<f32>):
               %c = stablehlo.divide %a, %b : tensor<f32>
               stablehlo.return %c : tensor<f32>
             }) {scatter_dimension_numbers = #stablehlo.scatter<inserted_window_dims = [0],
                 scatter_dims_to_operand_dims = [0], index_vector_dim = 1>}
               : (tensor<5xf32>, tensor<2x1xi32>, tensor<2xf32>) -> tensor<5xf32>
             %r"""),
        "stablehlo.scatter: a scatter with a computation other than add, multiply, maximum, minimum or the update itself",
    ),
    "large windows": (
        reduce_window(OWN, "window_dimensions = array<i64: 1, 1, 33, 32>, padding = dense<[[0,0],[0,0],[16,16],[16,16]]> : tensor<4x2xi64>",
                      "2x3x8x10xf32"),
        "stablehlo.reduce_window: a window of more than 1024 elements with a computation of its own",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSALS)
def test_refusals(name: str):
    text, reason = REFUSALS[name]
    with pytest.raises(UnsupportedError) as caught:
        export(text)
    assert str(caught.value.got).split(";")[0].split(" (")[0] == reason
    assert caught.value.message == f"{len(str(caught.value.got).split(';'))} things in the program have no ONNX form"


def test_reasons_name_how_often_and_where():
    text = main(
        f"x:{F}",
        F,
        f"""
    %a = chlo.digamma %x : {F} -> {F} loc("net.py":3:5)
    %b = chlo.digamma %a : {F} -> {F} loc("net.py":4:5)
    %c = chlo.lgamma %b : {F} -> {F} loc("net.py":9:1)
    %c""",
    )
    with pytest.raises(UnsupportedError, match="2 things") as caught:
        export(text)
    first, second = str(caught.value.got).split("; ")
    assert first.startswith("chlo.digamma: ONNX has no such function (2 times, first at")
    assert "net.py:3:5" in first
    assert second.startswith("chlo.lgamma: ONNX has no such function (")
    assert "net.py:9:1" in second
    assert "times" not in second


# ---- the file ----


@pytest.mark.parametrize(
    ("kind", "numbers"), [("i4", [-8, 7, -1, 3, 2]), ("ui4", [15, 1, 9]), ("i2", [-2, 1, -1, 0, 1])]
)
def test_integers_of_few_bits_are_packed(kind: str, numbers: list[int]):
    """Two or four to a byte, the first in the low bits; what is left is zero."""
    if kind == "i2":
        packed = model._raw(dtype(kind), np.array(numbers).astype(dtype(kind).numpy))
        fields = [byte >> shift & 3 for byte in packed.tolist() for shift in (0, 2, 4, 6)]
        assert fields == [number & 3 for number in numbers] + [0] * 3
        return
    tensor = model._tensor(onnx, "w", dtype(kind), np.array(numbers).astype(dtype(kind).numpy))
    assert onnx.numpy_helper.to_array(tensor).astype(int).tolist() == numbers


def test_the_head_of_the_file():
    made = export(main(f"x:{F}", F, f"%r = stablehlo.negate %x : {F}\n%r"))
    assert (made.producer_name, made.producer_version, made.ir_version) == ("smelt", smelt.__version__, 10)
    assert [(each.domain, each.version) for each in made.opset_import] == [("", 21)]
    assert [(node.op_type, list(node.input), list(node.output)) for node in made.graph.node] == [
        ("Neg", ["x"], [made.graph.output[0].name])
    ]


def test_a_message_that_is_too_large(tmp_path: Any, monkeypatch: pytest.MonkeyPatch):
    program = smelt.parse(main(f"x:{F}", F, f"%r = stablehlo.negate %x : {F}\n%r"))

    def fail(*_: Any) -> None:
        raise ValueError("more than 2 GB")

    monkeypatch.setattr(model, "write_atomically", fail)
    with pytest.raises(FileError, match=r"a.onnx is too large for one protobuf message"):
        model.write(program, {}, tmp_path / "a.onnx")


def test_weights_in_a_file_of_their_own_are_aligned():
    element = dtype("f32")
    arrays = {"a": np.arange(3, dtype=np.float32), "b": np.arange(1024, dtype=np.float32), "c": np.ones(2, np.float32)}
    weights = {name: (name, element, each.shape) for name, each in arrays.items()}
    built = model.Built((), (), (), {}, weights)
    assert not built.is_large
    made, stored = to_model(built, arrays, "w.data")
    entries = [{each.key: each.value for each in tensor.external_data} for tensor in made.graph.initializer]
    assert [(each["location"], each["offset"], each["length"]) for each in entries] == [
        ("w.data", "0", "12"), ("w.data", "4096", "4096"), ("w.data", "8192", "8"),
    ]  # fmt: skip
    data = b"".join(map(bytes, model._pad(stored)))
    assert len(data) == 3 * 4096
    for (name, array), entry in zip(arrays.items(), entries, strict=True):
        at = int(entry["offset"])
        assert data[at : at + int(entry["length"])] == array.tobytes(), name
    half = model.Built((), (), (), {}, {"a": ("a", element, (1 << 28,))})
    assert half.is_large
    assert not model.Built((), (), (), {}, {"a": ("a", element, ((1 << 28) - 1,))}).is_large
