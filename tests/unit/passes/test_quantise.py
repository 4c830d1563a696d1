"""Dynamic quantisation on request: what becomes int8 or bf16 GEMM, its error against f32, and what is rejected."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.dtype import Array
from smelt.engine.compile import lower
from smelt.engine.native import NativeEngine
from smelt.errors import UnsupportedError
from smelt.ir.attributes import ConvDims, DotDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.rewrite import Edit
from smelt.ir.text import print_program
from smelt.passes.quantise import _is_non_negative, check_precision, with_precision
from smelt.passes.split_prepare import WEIGHT
from smelt.shape import Shape
from smelt.weights import Weights
from tests.packed import op_names

MATRIX = DotDims((), (), (1,), (0,))


def weighted(lhs: Shape, rhs: Shape, *, weight: bool = True) -> FuncBuilder:
    marks: list[dict[str, Any]] = [{}, {WEIGHT: "w"} if weight else {}]
    return FuncBuilder("main", [lhs, rhs], ["x", "w"], marks)


def matrix_product(rows: int, depth: int, columns: int, *, weight: bool = True) -> Program:
    f = weighted(Shape("f32", rows, depth), Shape("f32", depth, columns), weight=weight)
    return Program.of(f.func(f.dot_general(*f.args, dot_dimension_numbers=MATRIX, result=Shape("f32", rows, columns))))


def ops(program: Program) -> set[str]:
    return op_names(lower(program))


def call(program: Program, x: Array, w: Array) -> Array:
    found: Array = NativeEngine().compile(program).prepare(Weights.of({"w": w}))(x)[0]
    return found


def test_weight_matmuls_in_int8(seed: int) -> None:
    """Half a step of rows and of weights for each term is the most that rounding can do."""
    random = np.random.default_rng(seed)
    x, w = random.normal(1, 2, (7, 96)).astype(np.float32), random.normal(size=(96, 70)).astype(np.float32)
    x[3], w[:, 5] = 0, 0
    program = matrix_product(7, 96, 70)
    quantised = with_precision(program, "int8")
    assert "smelt.packed_dot ui8" in ops(quantised)
    exact = x.astype(np.float64) @ w
    a = (np.maximum(x.max(1), 0) - np.minimum(x.min(1), 0)) / 255
    b = np.abs(w).max(0) / 127
    reach = np.abs(x).sum(1)[:, None] * b / 2 + a[:, None] * np.abs(w).sum(0) / 2 + 96 * a[:, None] * b / 4
    found = call(quantised, x, w)
    assert (np.abs(found - exact) <= 1.01 * reach).all()
    assert not np.array_equal(found, exact.astype(np.float32))
    np.testing.assert_array_equal(found[3], 0)
    np.testing.assert_array_equal(found[:, 5], 0)
    np.testing.assert_allclose(found, run(quantised, [x, w])[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_row_does_not_depend_on_the_others(precision: str, seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(9, 64)).astype(np.float32), random.normal(size=(64, 33)).astype(np.float32)
    alone, together = (with_precision(matrix_product(rows, 64, 33), precision) for rows in (1, 9))
    found = call(together, x, w)
    for i in range(9):
        np.testing.assert_array_equal(call(alone, x[i : i + 1], w)[0], found[i])


def scaled_to_fp8(x: Array, axis: int) -> tuple[Array, Array]:
    """fp8 as ml_dtypes rounds, and the scales."""
    scale = np.maximum(np.abs(x).max(axis, keepdims=True) * np.float32(1 / 448), np.float32(1e-30))
    return (x * (1 / scale)).astype(ml_dtypes.float8_e4m3fn).astype(np.float64), scale


def test_weight_matmuls_in_fp8(seed: int) -> None:
    """Products of numbers that ml_dtypes rounded, on the reference and on native; zeros stay zeros."""
    random = np.random.default_rng(seed)
    x, w = random.normal(1, 2, (7, 96)).astype(np.float32), random.normal(size=(96, 70)).astype(np.float32)
    x[2], w[:, 7] = x[2] * 1e-20, w[:, 7] * 1e20
    x[3], w[:, 5] = 0, 0
    rounded = with_precision(matrix_product(7, 96, 70), "fp8")
    assert "f8E4M3FN" in print_program(rounded)
    (x8, x_scale), (w8, w_scale) = scaled_to_fp8(x, 1), scaled_to_fp8(w, 0)
    want, reach = (x8 @ w8) * x_scale * w_scale, (np.abs(x8) @ np.abs(w8)) * x_scale * w_scale
    for found in (run(rounded, [x, w])[0], call(rounded, x, w)):
        assert (np.abs(found - want) <= 1e-5 * reach).all()
    exact = x.astype(np.float64) @ w
    error = np.abs(want - exact) / np.maximum(np.abs(x).astype(np.float64) @ np.abs(w), 1e-30)
    assert 1e-3 < error.max() < 2**-3  # each operand is off by 1/16 at most, but for numbers below the scale


def test_fp8_leaves_other_products(seed: int) -> None:
    """Products of two activations, and convolutions, which are rounded to bf16."""
    program = matrix_product(7, 96, 70, weight=False)
    assert print_program(with_precision(program, "fp8")) == print_program(with_precision(program, "f32"))
    f = weighted(Shape("f32", 1, 9, 9, 32), Shape("f32", 3, 3, 32, 16))
    dims = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
    made = f.convolution(
        *f.args,
        dimension_numbers=dims,
        feature_group_count=1,
        batch_group_count=1,
        result=Shape("f32", 1, 7, 7, 16),
    )
    text = print_program(with_precision(Program.of(f.func(made)), "fp8"))
    assert "bf16" in text
    assert "f8E4M3FN" not in text


@pytest.mark.parametrize("positive", [False, True])
def test_weight_convolutions_in_int8(positive: bool, seed: int) -> None:
    lax = pytest.importorskip("jax").lax
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(2, 16, 9, 8)).astype(np.float32), random.normal(size=(24, 16, 3, 3)).astype(np.float32)
    f = weighted(Shape("f32", *x.shape), Shape("f32", *w.shape))
    images = f.args[0]
    if positive:
        images, x = f.maximum(images, f.full(0.0, images.shape)), np.maximum(x, 0)
    made = f.convolution(
        images,
        f.args[1],
        padding=((1, 1), (1, 1)),
        dimension_numbers=ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3)),
        feature_group_count=1,
        batch_group_count=1,
        result=Shape("f32", 2, 24, 9, 8),
    )
    quantised = with_precision(Program.of(f.func(made)), "int8")
    assert "smelt.packed_conv ui8" in ops(quantised)
    step = np.abs(x).max((1, 2, 3)) / (255 if positive else 127)
    rough = np.round(x / step[:, None, None, None]) * step[:, None, None, None]
    each = np.abs(w).max((1, 2, 3), keepdims=True) / 127
    whole = np.round(w / each) * each
    expected = np.asarray(lax.conv(rough.astype(np.float32), whole.astype(np.float32), (1, 1), "SAME"))
    once = step.max() * np.abs(w).max()  # a number between two steps may be rounded to either
    np.testing.assert_allclose(call(quantised, x, w), expected, rtol=1e-4, atol=once)


@pytest.mark.parametrize(("channels", "features"), [(16, 16), (15, 16), (16, 15), (20, 16), (18, 16)])
def test_the_least_convolution_in_int8(channels: int, features: int) -> None:
    """16 channels and 16 features, and channels in groups of four."""
    f = weighted(Shape("f32", 1, channels, 4, 4), Shape("f32", features, channels, 1, 1))
    dims = ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3))
    made = f.convolution(*f.args, dimension_numbers=dims, feature_group_count=1, batch_group_count=1,
                         result=Shape("f32", 1, features, 4, 4))  # fmt: skip
    program = Program.of(f.func(made))
    quantised = print_program(with_precision(program, "int8")) != print_program(program)
    assert quantised == (channels >= 16 and features >= 16 and channels % 4 == 0)


def rounded(x: Array) -> Array:
    """To bf16, as ml_dtypes does it."""
    return x.astype(ml_dtypes.bfloat16).astype(np.float64)


def test_bf16_rounds_both_operands_of_weight_matmuls(seed: int) -> None:
    random = np.random.default_rng(seed)
    x, w = random.normal(1, 2, (7, 96)).astype(np.float32), random.normal(size=(96, 70)).astype(np.float32)
    program = with_precision(matrix_product(7, 96, 70), "bf16")
    kinds = {str(value.shape.dtype) for op in program.main.body.ops for value in op.operands if "dot" in op.name}
    assert kinds == {"bf16"}
    exact, reach = rounded(x) @ rounded(w), np.abs(rounded(x)) @ np.abs(rounded(w))
    for found in (call(program, x, w), run(program, [x, w])[0]):
        assert found.dtype == np.float32
        assert (np.abs(found - exact) <= 97 * 2.0**-24 * reach).all()
    assert np.abs(exact - x.astype(np.float64) @ w).max() > 1e-3, "nothing was rounded"


@pytest.mark.parametrize(("channels", "groups"), [(16, 1), (64, 2), (17, 1)])
def test_bf16_convolutions_need_even_channels(channels: int, groups: int, seed: int) -> None:
    """An odd number of channels stays f32, on every target alike."""
    jax = pytest.importorskip("jax")
    random = np.random.default_rng(seed)
    x, w = random.normal(size=(2, channels, 9, 8)), random.normal(size=(32, channels // groups, 3, 3))
    x, w = x.astype(np.float32), w.astype(np.float32)
    f = weighted(Shape("f32", *x.shape), Shape("f32", *w.shape))
    made = f.convolution(
        *f.args,
        padding=((1, 1), (1, 1)),
        dimension_numbers=ConvDims(0, 1, (2, 3), 1, 0, (2, 3), 0, 1, (2, 3)),
        feature_group_count=groups,
        batch_group_count=1,
        result=Shape("f32", 2, 32, 9, 8),
    )
    with jax.enable_x64(True):
        given = (rounded(x), rounded(w)) if channels % 2 == 0 else (x.astype(np.float64), w.astype(np.float64))
        exact, reach = (
            np.asarray(jax.lax.conv_general_dilated(*each, (1, 1), "SAME", feature_group_count=groups))
            for each in (given, tuple(map(np.abs, given)))
        )
    found = call(with_precision(Program.of(f.func(made)), "bf16"), x, w)
    assert (np.abs(found - exact) <= 9 * channels * 2.0**-24 * reach).all()


def test_tf32_rounds_both_operands_of_weight_matmuls(seed: int) -> None:
    """To nearest even, with 10 bits of mantissa; the program says so, and every engine computes it."""
    random = np.random.default_rng(seed)
    x, w = random.normal(1, 2, (7, 96)).astype(np.float32), random.normal(size=(96, 70)).astype(np.float32)
    x[0, 0], x[0, 1] = 1 + 2.0**-11, 1 + 3 * 2.0**-11  # ties
    program = with_precision(matrix_product(7, 96, 70), "tf32")
    assert [op.name for op in program.main.body.ops].count("stablehlo.reduce_precision") == 2
    assert with_precision(program, "tf32").main.body.ops == program.main.body.ops
    a, b = (
        np.round(each.astype(np.float64) * 2.0**10 / (s := 2.0 ** np.floor(np.log2(np.abs(each))))) * s / 2**10
        for each in (x, w)
    )
    assert (a[0, 0], a[0, 1]) == (1, 1 + 2.0**-9)
    for found in (call(program, x, w), run(program, [x, w])[0]):
        assert (np.abs(found - a @ b) <= 97 * 2.0**-24 * (np.abs(a) @ np.abs(b))).all()
    assert np.abs(a @ b - x.astype(np.float64) @ w).max() > 1e-4, "nothing was rounded"


@pytest.mark.parametrize("precision", ["bf16", "tf32", "int8"])
def test_other_matmuls_stay_f32(precision: str) -> None:
    for program in (matrix_product(8, 64, 64, weight=False), matrix_product(8, 4, 64)):
        assert "smelt.packed_dot f32" in ops(program)
        assert ops(with_precision(program, precision)) == ops(program)


def test_f32_changes_nothing() -> None:
    program = matrix_product(8, 64, 64)
    assert with_precision(program, "f32") is program


@pytest.mark.parametrize("precision", ["f16", "int4"])
def test_unsupported_precision_is_rejected(precision: str) -> None:
    with pytest.raises(UnsupportedError, match="int8"):
        with_precision(matrix_product(8, 64, 64), precision)


@pytest.mark.parametrize(
    ("bound", "wanted"), [([0.0, 0.0], True), ([0.0, 2.0], True), ([0.0, -0.5], False), ([-1.0, -1.0], False)]
)
def test_values_that_are_known_not_to_be_negative(bound: list[float], wanted: bool) -> None:
    """The larger of a value and constants of at least 0; a value that is clamped to them from below."""
    f = FuncBuilder("main", [Shape("f32", 2)])
    x, low, high = f.args[0], f.constant(np.array(bound, np.float32)), f.full(9.0, Shape("f32", 2))
    values = [f.maximum(x, low), f.maximum(low, x), f.clamp(low, x, high), f.reshape(f.maximum(x, low), result=x.shape)]
    others = [f.minimum(x, low), f.clamp(f.negate(high), x, high), f.add(x, low), x, f.maximum(x, x)]
    edit = Edit(f.func(*values, *others, sure := f.logistic(x)), {})
    assert [_is_non_negative(edit, value) for value in values] == [wanted] * len(values)
    assert [_is_non_negative(edit, value) for value in others] == [False] * len(others)
    assert _is_non_negative(edit, sure)


@pytest.mark.parametrize(
    ("precision", "message", "remedy"),
    [
        ("f16", "there is no f16 GEMM kernel", 'precision="bf16", "tf32", "int8", "fp8" or "f32"'),
        ("int4", "unknown precision", None),
    ],
)
def test_a_precision_without_a_kernel_is_named(precision: str, message: str, remedy: str | None) -> None:
    with pytest.raises(UnsupportedError) as caught:
        check_precision(precision)
    assert (caught.value.message, caught.value.got) == (message, precision)
    assert caught.value.own_remedy == remedy
    for known in ("f32", "bf16", "tf32", "int8"):
        assert known in str(caught.value.expected)
        check_precision(known)
