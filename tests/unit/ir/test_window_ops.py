"""reduce_window, select_and_scatter and convolution against JAX, Python integers and values worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.dim import evaluate, symbol
from smelt.dtype import Quantized, dtype
from smelt.errors import RunError, VerifyError
from smelt.ir.attributes import ConvDims
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Region, Token
from smelt.ir.interpret import run
from smelt.ir.ops import window as family
from smelt.ir.ops.reduce import SEQUENTIAL
from smelt.shape import Shape


def shape_of(x: np.ndarray) -> Shape:
    return Shape.of(dtype(x.dtype), x.shape)


def body(f: FuncBuilder, name: str, scalar: Shape, **attrs: Any) -> Region:
    with f.region(scalar, scalar) as r:
        return r.result(getattr(r, name)(*r.args, **attrs))


def windowed(name: str, x: np.ndarray, init: Any, **window: Any) -> np.ndarray:
    scalar = Shape.of(dtype(x.dtype), ())
    f = FuncBuilder("main", [shape_of(x), scalar])
    out = f.reduce_window(*f.args, regions=[body(f, name, scalar)], **window)
    return run(Program.of(f.func(out)), [x, np.array(init, x.dtype)])[0]


# ---- reduce_window ----


def test_reduce_window_by_hand() -> None:
    """The example of the specification: base dilation 2, window dilation 3, stride 4."""
    got = windowed(
        "add",
        np.array([[1, 2], [3, 4], [5, 6]]),
        0,
        window_dimensions=(2, 1),
        window_strides=(4, 1),
        base_dilations=(2, 1),
        window_dilations=(3, 1),
        padding=((2, 1), (0, 0)),
    )
    assert got.tolist() == [[0, 0], [3, 4]]


def test_padding_counts_as_initial_values() -> None:
    got = windowed("add", np.array([1, 2, 3]), 10, window_dimensions=(3,), padding=((2, 0),))
    assert got.tolist() == [10 + 10 + 10 + 1, 10 + 10 + 1 + 2, 10 + 1 + 2 + 3]
    assert windowed("add", np.array([1, 2, 3, 4]), 0, window_dimensions=(2,), padding=((-1, -1),)).tolist() == [5]


@pytest.mark.parametrize("seed", range(24))
def test_reduce_window_agrees_with_jax(seed: int) -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(seed)
    rank = int(rng.integers(1, 4))
    name, function, init = [("add", jax.lax.add, 0), ("maximum", jax.lax.max, -99), ("minimum", jax.lax.min, 99)][
        seed % 3
    ]
    x = rng.integers(-50, 50, rng.integers(1, 8, rank)).astype(np.int32)
    window = rng.integers(1, 4, rank).tolist()
    strides, base, dilations = (rng.integers(1, 4, rank).tolist() for _ in range(3))
    padding = [tuple(pair) for pair in rng.integers(0, 5, (rank, 2)).tolist()]
    wanted = jax.lax.reduce_window(x, np.int32(init), function, window, strides, padding, base, dilations)
    got = windowed(
        name,
        x,
        init,
        window_dimensions=tuple(window),
        window_strides=tuple(strides),
        base_dilations=tuple(base),
        window_dilations=tuple(dilations),
        padding=tuple(padding),
    )
    assert got.tolist() == np.asarray(wanted).tolist()


@pytest.mark.parametrize(
    ("size", "dilation", "stride"), [(1, 1, 1), (13, 1, 1), (64, 1, 1), (77, 1, 3), (20, 4, 1), (33, 3, 2)]
)
def test_long_windows_are_sums_of_slices(size: int, dilation: int, stride: int) -> None:
    x = np.random.default_rng(size).integers(-100, 100, (3, 100))
    got = windowed("add", x, 0, window_dimensions=(1, size), window_strides=(1, stride), window_dilations=(1, dilation))
    starts = range(0, 100 - (size - 1) * dilation, stride)
    wanted = [[sum(int(row[s + i * dilation]) for i in range(size)) for s in starts] for row in x]
    assert got.tolist() == wanted


def test_cumulative_sum_is_fast_and_exact() -> None:
    x = np.random.default_rng(0).standard_normal((10_000, 8)).astype(np.float32)
    got = windowed("add", x, 0, window_dimensions=(10_000, 1), padding=((9_999, 0), (0, 0)))
    np.testing.assert_array_equal(got, np.cumsum(x.astype(np.longdouble), axis=0).astype(np.float32))


@pytest.mark.parametrize("length", [9, SEQUENTIAL + 1])
def test_any_body(length: int) -> None:
    """A running maximum with its index, by a body of two values: in order, or in blocks where the window is long."""
    value, number = Shape("f32"), Shape("i32")
    f = FuncBuilder("main", [Shape("f32", length), Shape("i32", length), value, number])
    with f.region(value, number, value, number) as r:
        wins = r.compare(r.args[0], r.args[2], comparison_direction="GE")
        r.result(r.select(wins, r.args[0], r.args[2]), r.select(wins, r.args[1], r.args[3]))
    out = f.reduce_window(*f.args, window_dimensions=(length,), padding=((length - 1, 0),), regions=[r.body])
    x = np.random.default_rng(length).integers(0, 1000, length).astype(np.float32)
    numbers = np.arange(length, dtype=np.int32)
    best, index = run(Program.of(f.func(*out)), [x, numbers, np.array(-np.inf, np.float32), np.array(-1, np.int32)])
    assert best.tolist() == np.maximum.accumulate(x).tolist()
    assert index[-1] == x.argmax()
    assert all(best[i] == x[index[i]] for i in range(length))


def test_narrow_floats_round_once() -> None:
    x = np.full(512, 1.0, ml_dtypes.bfloat16)  # a running bf16 sum would stop at 256
    assert float(windowed("add", x, 0, window_dimensions=(512,))[0]) == 512


F, S = Shape("f32", 4, 6), Shape("f32")


@pytest.mark.parametrize(
    ("attrs", "label"),
    [
        ({"window_dimensions": (2,)}, "reduce_window_c4"),
        ({"window_dimensions": (2, 0)}, "reduce_window_c5"),
        ({"window_dimensions": (2, 2), "window_strides": (1,)}, "reduce_window_c6"),
        ({"window_dimensions": (2, 2), "window_strides": (1, 0)}, "reduce_window_c7"),
        ({"window_dimensions": (2, 2), "base_dilations": (1, 1, 1)}, "reduce_window_c8"),
        ({"window_dimensions": (2, 2), "base_dilations": (1, -1)}, "reduce_window_c9"),
        ({"window_dimensions": (2, 2), "window_dilations": (1,)}, "reduce_window_c10"),
        ({"window_dimensions": (2, 2), "window_dilations": (0, 1)}, "reduce_window_c11"),
        ({"window_dimensions": (2, 2), "padding": ((0, 0),)}, "reduce_window_c12"),
        ({"window_dimensions": (2, 2), "padding": ((0,), (0,))}, "reduce_window_c12"),
        ({"window_dimensions": (2, 2), "result": Shape("f32", 3, 4)}, "declared result size"),
    ],
)
def test_reduce_window_is_verified(attrs: dict[str, Any], label: str) -> None:
    f = FuncBuilder("main", [F, S])
    with pytest.raises(VerifyError, match=label):
        f.reduce_window(*f.args, regions=[body(f, "add", S)], **attrs)


def test_reduce_window_operands_are_verified() -> None:
    f = FuncBuilder("main", [F, S, Shape("f32", 4, 5), Shape("f64"), Token()])
    add = body(f, "add", S)
    x, init, other, double, token = f.args
    for operands, label in (
        ((x,), "reduce_window_c1"),
        ((), "reduce_window_c1"),
        ((x, other, init, init), "reduce_window_c2"),
        ((x, double), "reduce_window_c3"),
        ((x, x), "reduce_window_i2"),
        ((x, token), "must be a tensor"),
    ):
        with pytest.raises(VerifyError, match=label):
            f.reduce_window(*operands, window_dimensions=(1, 1), regions=[add])
    with pytest.raises(VerifyError, match="reduce_window_c13"):
        f.reduce_window(x, init, window_dimensions=(1, 1), regions=[body(f, "add", Shape("f16"))])


def test_huge_padding_is_an_error_not_a_crash() -> None:
    with pytest.raises(RunError, match="too large for memory"):
        windowed("add", np.ones(2), 0, window_dimensions=(1 << 50,), padding=((1 << 50, 0),))


def test_sizes_that_are_symbols() -> None:
    n = symbol("N")
    f = FuncBuilder("main", [Shape("f32", n, n), S])
    out = f.reduce_window(
        *f.args, window_dimensions=(3, 3), window_strides=(2, 1), padding=((1, 1), (0, 0)), regions=[body(f, "add", S)]
    )
    for number in (0, 1, 2, 5, 8):
        x = np.ones((number, number), np.float32)
        (got,) = run(Program.of(f.func(out)), [x, np.array(0, np.float32)])
        assert got.shape == tuple(evaluate(size, {"N": number}) for size in out.shape.sizes)
        assert got.shape == (max((number - 1) // 2 + 1, 0), max(number - 2, 0))


# ---- select_and_scatter ----


@pytest.mark.parametrize("seed", range(8))
def test_select_and_scatter_agrees_with_jax(seed: int) -> None:
    """The gradient of a maximum pool, which JAX computes on its own."""
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(seed)
    x = rng.permutation(6 * 7).reshape(6, 7).astype(np.float32)
    window, strides = tuple(rng.integers(1, 4, 2).tolist()), tuple(rng.integers(1, 4, 2).tolist())
    padding = tuple((int(rng.integers(0, w)), int(rng.integers(0, w))) for w in window)

    def pool(x: Any) -> Any:
        return jax.lax.reduce_window(x, -np.inf, jax.lax.max, window, strides, padding)

    pooled, back = jax.vjp(pool, x)
    source = rng.integers(-9, 9, pooled.shape).astype(np.float32)
    f = FuncBuilder("main", [shape_of(x), shape_of(source), S])
    regions = [body(f, "compare", S, comparison_direction="GE"), body(f, "add", S)]
    out = f.select_and_scatter(
        *f.args, window_dimensions=window, window_strides=strides, padding=padding, regions=regions
    )
    (got,) = run(Program.of(f.func(out)), [x, source, np.array(0, np.float32)])
    assert got.tolist() == np.asarray(back(source)[0]).tolist()


def scattered(scatter: str, init: int, x: Sequence[int], source: Sequence[int], **window: Any) -> list[int]:
    scalar = Shape("i32")
    f = FuncBuilder("main", [Shape("i32", len(x)), Shape("i32", len(source)), scalar])
    regions = [body(f, "compare", scalar, comparison_direction="GE"), body(f, scatter, scalar)]
    out = f.select_and_scatter(*f.args, regions=regions, **window)
    args = [np.array(x, np.int32), np.array(source, np.int32), np.array(init, np.int32)]
    return run(Program.of(f.func(out)), args)[0].tolist()


def test_select_and_scatter_by_hand() -> None:
    three = {"window_dimensions": (3,)}
    # windows 1 5 2 | 5 2 2 | 2 2 9 | 2 9 4 choose positions 1, 1, 4, 4
    assert scattered("add", 100, [1, 5, 2, 2, 9, 4], [1, 2, 3, 4], **three) == [100, 103, 100, 100, 107, 100]
    assert scattered("subtract", 0, [1, 5, 2, 2, 9, 4], [1, 2, 3, 4], **three) == [0, -3, 0, 0, -7, 0]
    assert scattered("maximum", 2, [1, 5, 2, 2, 9, 4], [9, 1, 0, 1], **three) == [2, 9, 2, 2, 2, 2]
    # of equals the first stays; a window of nothing but padding chooses nothing; padding is never chosen
    assert scattered("add", 0, [7, 7], [1, 2], window_dimensions=(2,), window_strides=(2,), padding=((0, 2),)) == [1, 0]
    assert scattered("add", 0, [-5], [1, 2], window_dimensions=(2,), padding=((1, 1),)) == [3]


def test_select_and_scatter_is_verified() -> None:
    f = FuncBuilder("main", [Shape("f32", 4), Shape("f32", 2), Shape("f32", 3), S, Shape("f64", 2), Shape("f64")])
    x, good, long, init, double, scalar = f.args
    select, add = body(f, "compare", S, comparison_direction="GE"), body(f, "add", S)
    for operands, regions, label in (
        ((x, long, init), [select, add], "c2"),
        ((x, double, init), [select, add], "c1"),
        ((x, good, scalar), [select, add], "c3"),
        ((x, good, good), [select, add], "i3"),
        ((x, good, init), [add, add], "c9"),
        ((x, good, init), [select, select], "c10"),
    ):
        with pytest.raises(VerifyError, match=f"select_and_scatter_{label}"):
            f.select_and_scatter(*operands, window_dimensions=(2,), window_strides=(2,), regions=regions)
    with pytest.raises(VerifyError, match="select_and_scatter_c4"):
        f.select_and_scatter(x, good, init, window_dimensions=(2, 2), regions=[select, add])


# ---- convolution ----

NHWC = ConvDims(0, 3, (1, 2), 2, 3, (0, 1), 0, 3, (1, 2))
NWC = ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, (1,))


def convolved(
    lhs: np.ndarray, rhs: np.ndarray, dims: ConvDims, result: Shape | None = None, **attrs: Any
) -> np.ndarray:
    f = FuncBuilder("main", [shape_of(lhs), shape_of(rhs)])
    given = {"feature_group_count": 1, "batch_group_count": 1} | attrs
    out = f.convolution(*f.args, dimension_numbers=dims, result=result, **given)
    return run(Program.of(f.func(out)), [lhs, rhs])[0]


@pytest.mark.parametrize("seed", range(24))
def test_convolution_agrees_with_jax(seed: int) -> None:
    jax = pytest.importorskip("jax")
    rng = np.random.default_rng(seed)
    spatial = int(rng.integers(0, 4))
    groups = int(rng.integers(1, 4))
    features, batches = ((groups, 1), (1, groups), (1, 1))[seed % 3]
    batch, inputs, outputs = 2 * batches, int(rng.integers(1, 4)), 2 * groups
    big = seed % 2  # a kernel with more elements than the window has positions, or the other way round
    sizes = rng.integers(4, 8, spatial).tolist()
    kernel = rng.integers(3, 5, spatial).tolist() if big else rng.integers(1, 3, spatial).tolist()
    places = [rng.permutation(spatial + 2).tolist() for _ in range(3)]
    lhs_shape, rhs_shape = [0] * (spatial + 2), [0] * (spatial + 2)
    for shape, place, given in (
        (lhs_shape, places[0], [batch, inputs * features, *sizes]),
        (rhs_shape, places[1], [outputs, inputs, *kernel]),
    ):
        for at, size in zip(place, given, strict=True):
            shape[at] = size
    lhs, rhs = (rng.integers(-9, 9, shape).astype(np.float32) for shape in (lhs_shape, rhs_shape))
    strides = rng.integers(1, 4, spatial).tolist()
    base, dilations = (rng.integers(1, 3, spatial).tolist() for _ in range(2))
    padding = [tuple(pair) for pair in rng.integers(-2, 4, (spatial, 2)).tolist()]
    a, b, c = places
    wanted = jax.lax.conv_general_dilated(
        lhs,
        rhs,
        strides,
        padding,
        base,
        dilations,
        jax.lax.ConvDimensionNumbers(tuple(a), tuple(b), tuple(c)),
        features,
        batches,
        precision="highest",
    )
    dims = ConvDims(a[0], a[1], tuple(a[2:]), b[1], b[0], tuple(b[2:]), c[0], c[1], tuple(c[2:]))
    got = convolved(
        lhs,
        rhs,
        dims,
        window_strides=tuple(strides),
        padding=tuple(padding),
        lhs_dilation=tuple(base),
        rhs_dilation=tuple(dilations),
        feature_group_count=features,
        batch_group_count=batches,
    )
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-4)


def test_defaults_and_reversal() -> None:
    lhs, rhs = np.arange(5.0).reshape(1, 5, 1), np.array([1.0, 10.0]).reshape(2, 1, 1)
    assert convolved(lhs, rhs, NWC)[0, :, 0].tolist() == [10, 21, 32, 43]
    assert convolved(lhs, rhs, NWC, window_reversal=(True,))[0, :, 0].tolist() == [1, 12, 23, 34]
    assert convolved(lhs, np.ones((9, 1, 1)), NWC).shape == (1, 0, 1)
    assert convolved(np.ones((0, 5, 1)), rhs, NWC).shape == (0, 4, 1)
    assert convolved(np.ones((1, 5, 0)), np.ones((2, 0, 3)), NWC).tolist() == np.zeros((1, 4, 3)).tolist()


def test_integers_wrap_in_the_result() -> None:
    lhs, rhs = np.full((1, 4, 1), 127, np.int8), np.full((3, 1, 1), 127, np.int8)
    assert convolved(lhs, rhs, NWC)[0, 0, 0] == (3 * 127 * 127 + 128) % 256 - 128
    assert convolved(lhs, rhs, NWC, Shape("i32", 1, 2, 1))[0, 0, 0] == 3 * 127 * 127
    big = np.full((1, 2, 1), 2**62 + 3, np.int64)
    assert int(convolved(big, big.reshape(2, 1, 1), NWC)[0, 0, 0]) == (2 * (2**62 + 3) ** 2 + 2**63) % 2**64 - 2**63
    yes = np.array([True, False, False, True]).reshape(1, 4, 1)
    assert convolved(yes, yes[0, :2, :, None].reshape(2, 1, 1), NWC)[0, :, 0].tolist() == [True, False, False]


def test_complex_and_narrow_floats() -> None:
    lhs = (np.arange(4) + 1j).astype(np.complex64).reshape(1, 4, 1)
    rhs = np.array([1j, 2], np.complex64).reshape(2, 1, 1)
    assert convolved(lhs, rhs, NWC)[0, :, 0].tolist() == [1 + 2j, 3 + 3j, 5 + 4j]
    ones = np.ones((1, 512, 1), ml_dtypes.bfloat16)
    assert float(convolved(ones, np.ones((512, 1, 1), ml_dtypes.bfloat16), NWC)[0, 0, 0]) == 512


def test_quantized_convolutions() -> None:
    """lhs (q-1)*0.5 and rhs q*2 (per feature q*2 and q*4); the result is stored with scale 1 and zero point 7."""
    i8, f32 = dtype("i8"), dtype("f32")
    left = Quantized(i8, f32, (0.5,), (1,), None, -128, 127)
    per_axis = Quantized(i8, f32, (2.0, 4.0), (0, 0), 2, -128, 127)
    result = Quantized(i8, f32, (1.0,), (7,), None, -128, 127)
    lhs = np.array([3, 5, -1], np.int8).reshape(1, 3, 1)  # 1, 2, -1
    rhs = np.array([[1, 2], [3, 1]], np.int8).reshape(2, 1, 2)  # feature 0: 2, 6; feature 1: 8, 4
    given: dict[str, Any] = {"dimension_numbers": NWC, "feature_group_count": 1, "batch_group_count": 1}
    f = FuncBuilder("main", [Shape.of(left, (1, 3, 1)), Shape.of(per_axis, (2, 1, 2))])
    out = f.convolution(*f.args, result=Shape.of(result, (1, 2, 2)), **given)
    (got,) = run(Program.of(f.func(out)), [lhs, rhs])
    assert got[0].tolist() == [[2 + 12 + 7, 8 + 8 + 7], [4 - 6 + 7, 16 - 4 + 7]]
    f = FuncBuilder("main", [Shape("f32", 1, 3, 1), Shape.of(per_axis, (2, 1, 2))])
    out = f.convolution(*f.args, result=Shape("f32", 1, 2, 2), **given)
    (got,) = run(Program.of(f.func(out)), [np.array([1, 2, -1], np.float32).reshape(1, 3, 1), rhs])
    assert got[0].tolist() == [[14, 16], [-2, 12]]
    along_inputs = Quantized(i8, f32, (2.0,), (0,), 1, -128, 127)
    other = Quantized(dtype("i4"), f32, (2.0,), (0,), None, -8, 7)
    for types, declared, label in (
        ((left, along_inputs), result, "c29"),
        ((left, other), result, "c31"),
        ((left, f32), f32, "c28"),
        ((f32, left), left, "c28"),
        ((dtype("f64"), left), dtype("f64"), "c34"),
        ((left, left), Quantized(i8, f32, (1.0, 1.0), (0, 0), 2, -128, 127), "c33"),
        ((left, per_axis), Quantized(i8, f32, (1.0, 1.0), (0, 0), 1, -128, 127), "c30"),
    ):
        f = FuncBuilder("main", [Shape.of(types[0], (1, 3, 1)), Shape.of(types[1], (2, 1, 2))])
        with pytest.raises(VerifyError, match=f"convolution_{label}"):
            f.convolution(*f.args, result=Shape.of(declared, (1, 2, 2)), **given)


@pytest.mark.parametrize(
    ("lhs", "rhs", "attrs", "label"),
    [
        ("f32", (3, 2, 4, 1), {}, "c1"),
        ("f64", (3, 2, 4), {}, "c27"),
        ("f32", (3, 3, 4), {}, "c14"),
        ("f32", (0, 2, 4), {}, "i2"),
        ("f32", (3, 2, 4), {"window_strides": (1, 1)}, "c2"),
        ("f32", (3, 2, 4), {"window_strides": (0,)}, "c3"),
        ("f32", (3, 2, 4), {"padding": ((0, 0), (0, 0))}, "c4"),
        ("f32", (3, 2, 4), {"padding": ((0,),)}, "c4"),
        ("f32", (3, 2, 4), {"lhs_dilation": (1, 1)}, "c5"),
        ("f32", (3, 2, 4), {"lhs_dilation": (0,)}, "c6"),
        ("f32", (3, 2, 4), {"rhs_dilation": (1, 1)}, "c7"),
        ("f32", (3, 2, 4), {"rhs_dilation": (-1,)}, "c8"),
        ("f32", (3, 2, 4), {"window_reversal": (True, False)}, "c9"),
        ("f32", (3, 2, 4), {"batch_group_count": 2}, "c10"),
        ("f32", (3, 2, 4), {"feature_group_count": 4}, "c11"),
        ("f32", (3, 1, 3), {"feature_group_count": 2}, "c16"),
        ("f32", (3, 2, 4), {"feature_group_count": 0}, "c21"),
        ("f32", (3, 2, 4), {"batch_group_count": -1}, "c22"),
        ("f32", (3, 2, 4), {"batch_group_count": 2, "feature_group_count": 2}, "c23"),
        ("f32", (3, 2, 4), {"precision_config": ("DEFAULT",) * 3}, "c24"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 0, (1,), 1, 2, (0,), 0, 2, (1,))}, "c13"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 3, (1,), 1, 2, (0,), 0, 2, (1,))}, "c13"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 2, (), 1, 2, (0,), 0, 2, (1,))}, "c12"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 2, (1,), 1, 1, (0,), 0, 2, (1,))}, "c18"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 2, (1,), 1, 2, (0, 1), 0, 2, (1,))}, "c17"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 2, (1,), 1, 2, (0,), 0, -2, (1,))}, "c20"),
        ("f32", (3, 2, 4), {"dimension_numbers": ConvDims(0, 2, (1,), 1, 2, (0,), 0, 2, ())}, "c19"),
    ],
)
def test_convolution_is_verified(lhs: str, rhs: tuple[int, ...], attrs: dict[str, Any], label: str) -> None:
    f = FuncBuilder("main", [Shape(lhs, 1, 5, 2), Shape("f32", *rhs)])
    given: dict[str, Any] = {"dimension_numbers": NWC, "feature_group_count": 1, "batch_group_count": 1} | attrs
    with pytest.raises(VerifyError, match=rf"convolution_{label}\b"):
        f.convolution(*f.args, **given)


def test_convolution_of_small_ranks_is_refused() -> None:
    for rank in (0, 1):
        f = FuncBuilder("main", [Shape("f32", *[2] * rank), Shape("f32", *[2] * rank)])
        with pytest.raises(VerifyError):
            f.convolution(*f.args, dimension_numbers=NWC, feature_group_count=1, batch_group_count=1)


def test_convolution_of_symbolic_sizes() -> None:
    n, h = symbol("N"), symbol("H")
    f = FuncBuilder("main", [Shape("f32", n, h, h, 3), Shape("f32", 3, 3, 3, 4)])
    same = ((1, 1), (1, 1))
    out = f.convolution(
        *f.args, window_strides=(2, 1), padding=same, dimension_numbers=NHWC, feature_group_count=1, batch_group_count=1
    )
    assert out.type == Shape("f32", n, "(H + 1)//2", h, 4)
    (got,) = run(Program.of(f.func(out)), [np.ones((2, 5, 5, 3), np.float32), np.ones((3, 3, 3, 4), np.float32)])
    assert got.shape == (2, 3, 5, 4)
    assert got[0, 1, 2, 0] == 27


def test_spread() -> None:
    """Padding and holes; negative padding takes from what is there, holes included."""
    x = np.array([1, 2, 3])
    assert family.spread(x, [(1, 2)], [2], 0).tolist() == [0, 1, 0, 2, 0, 3, 0, 0]
    assert family.spread(x, [(-1, 0)], [2], 0).tolist() == [0, 2, 0, 3]
    assert family.spread(x, [(-2, -1)], [2], 9).tolist() == [2, 9]
    assert family.spread(x, [(-3, 1)], [3], 9).tolist() == [2, 9, 9, 3, 9]
    assert family.spread(x, [(-9, 1)], [2], 0).tolist() == []
    assert family.spread(x, [(-9, 9)], [2], 7).tolist() == [7] * 5
    assert family.spread(x[:0], [(1, 1)], [2], 7).tolist() == [7, 7]
