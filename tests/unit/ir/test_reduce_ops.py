"""reduce, map, the batch norms and chlo.scan against Python's and NumPy's own definitions and JAX."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import Quantized, dtype
from smelt.errors import VerifyError
from smelt.ir.build import Builder, FuncBuilder
from smelt.ir.core import Program, Region, Token, Value
from smelt.ir.interpret import run
from smelt.ir.ops import reduce as family
from smelt.shape import Shape

Body = Callable[[Any, tuple[Value, ...]], tuple[Value, ...]]


def body(f: Builder, name: str, *types: Shape) -> Region:
    """A region that is one op of two scalars."""
    with f.region(*types) as r:
        return r.result(getattr(r, name)(*r.args))


def reduced(name: str, x: np.ndarray, init: Any, dimensions: tuple[int, ...]) -> np.ndarray:
    element = dtype(x.dtype)
    scalar = Shape.of(element, ())
    f = FuncBuilder("main", [Shape.of(element, x.shape), scalar])
    out = f.reduce(*f.args, dimensions=dimensions, regions=[body(f, name, scalar, scalar)])
    return run(Program.of(f.func(out)), [x, np.asarray(init, x.dtype)])[0]


@pytest.mark.parametrize(("name", "choose"), [("maximum", max), ("minimum", min)])
def test_the_greater_and_the_less_of_every_two_floats(name: str, choose: Callable[..., Any]) -> None:
    """Beside a zero any other number is itself; of two zeros the negative one is less."""
    numbers = [-2.0, -1.0, -0.0, 0.0, 1.0, 2.0]
    for a, b in itertools.product(numbers, repeat=2):
        want = choose(a, b, key=lambda each: (each, math.copysign(1, each)))
        got = float(reduced(name, np.array([a], np.float32), b, (0,)))
        assert (got, math.copysign(1, got)) == (want, math.copysign(1, want)), (a, b)


def test_integer_sums_and_products_wrap() -> None:
    x = np.array([[100, 100, 100], [-128, -1, 7]], np.int8)
    assert reduced("add", x, 5, (1,)).tolist() == [(305 + 128) % 256 - 128, (-117 + 128) % 256 - 128]
    assert reduced("multiply", x, 1, (0, 1)).item() == (100**3 * -128 * -1 * 7 + 128) % 256 - 128
    y = np.array([2**63, 2**63 + 5], np.uint64)
    assert int(reduced("add", y, 1, (0,))) == 6
    four = np.array([7, 7, 3], ml_dtypes.int4)
    assert int(reduced("add", four, 0, (0,))) == 17 - 16
    assert reduced("add", four, 0, (0,)).dtype == ml_dtypes.int4


@pytest.mark.parametrize("name", ["f16", "bf16", "f32", "f8E4M3FN"])
def test_float_sums_round_once(name: str) -> None:
    element = dtype(name)
    x = (np.random.default_rng(0).standard_normal(1000) / 64).astype(element.numpy)
    exact = sum(Fraction(float(v)) for v in x)
    got = Fraction(float(reduced("add", x, 0, (0,))))
    if element.bits == 32:
        assert got == Fraction(float(np.float32(float(exact))))
        return
    bits = np.arange(1 << element.bits, dtype=np.uint8 if element.bits == 8 else np.uint16)
    finite = [Fraction(float(v)) for v in bits.view(element.numpy) if math.isfinite(float(v))]
    assert abs(got - exact) == min(abs(v - exact) for v in finite)


def test_booleans_or_and_and() -> None:
    x = np.array([[True, False, True], [False, False, False]])
    for name, wanted in (("add", [True, False]), ("maximum", [True, False]), ("or_", [True, False])):
        assert reduced(name, x, False, (1,)).tolist() == wanted
    for name in ("multiply", "minimum", "and_"):
        assert reduced(name, x | x[:, ::-1], True, (1,)).tolist() == [False, False]
    assert reduced("xor", x, True, (0, 1)).item() is True


@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_extremes_of_zeros_and_nan(name: str) -> None:
    """Every order of the same numbers has the same result: -0.0 < 0.0, and nan wins."""
    for numbers in ([-0.0, 0.0, -0.0], [-0.0, -0.0, -0.0], [0.0, -1.0, -0.0], [1.0, math.nan, -0.0]):
        for order in itertools.permutations(numbers):
            for dtype_ in (np.float32, ml_dtypes.bfloat16, np.float64):
                start = -math.inf if name == "maximum" else math.inf
                got = float(reduced(name, np.array([order], dtype_), start, (1,))[0])
                key = [(math.copysign(1, v), v) for v in numbers]
                if any(map(math.isnan, numbers)):
                    assert math.isnan(got)
                else:
                    pick = max(key) if name == "maximum" else min(key)
                    assert (math.copysign(1, got), got) == pick
    assert math.copysign(1, float(reduced("maximum", np.array([-0.0]), 0.0, (0,)))) == 1
    assert math.copysign(1, float(reduced("minimum", np.array([0.0]), -0.0, (0,)))) == -1
    assert math.copysign(1, float(reduced("add", np.full(100, -0.0), -0.0, (0,)))) == -1


def test_empty_and_no_dimensions() -> None:
    assert reduced("add", np.zeros((2, 0), np.float32), 3, (1,)).tolist() == [3, 3]
    assert reduced("maximum", np.zeros((0, 2), np.int32), -7, (0,)).tolist() == [-7, -7]
    assert reduced("add", np.array([1.0, 2.0], np.float32), 0.5, ()).tolist() == [1.5, 2.5]
    assert reduced("multiply", np.array(3.0), 2, ()).item() == 6


def argmax(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """The variadic body that JAX emits: greater or nan wins, of equals the lower index."""
    value, number = Shape.of(dtype(x.dtype), ()), Shape("i32")
    f = FuncBuilder("main", [Shape.of(value.dtype, x.shape), Shape.of(number.dtype, x.shape), value, number])
    with f.region(value, number, value, number) as r:
        a, i, b, j = r.args
        wins = r.or_(r.compare(a, b, comparison_direction="GT"), r.compare(a, a, comparison_direction="NE"))
        first = r.and_(r.compare(a, b, comparison_direction="EQ"), r.compare(i, j, comparison_direction="LT"))
        r.result(r.select(wins, a, b), r.select(r.or_(wins, first), i, j))
    out = f.reduce(*f.args, dimensions=(axis,), regions=[r.body])
    numbers = np.broadcast_to(
        np.arange(x.shape[axis], dtype=np.int32).reshape([-1 if d == axis else 1 for d in range(x.ndim)]), x.shape
    )
    args = [x, numbers, np.array(-np.inf, x.dtype), np.array(0, np.int32)]
    return run(Program.of(f.func(*out)), args)


@pytest.mark.parametrize("length", [1, 7, family.SEQUENTIAL, family.SEQUENTIAL + 1, 2 * family.SEQUENTIAL + 3])
def test_variadic_body(length: int) -> None:
    """The greatest is drawn, last, first and in the middle; long rows are combined as a tree, odd ones too."""
    x = np.random.default_rng(1).integers(-50, 50, (4, length)).astype(np.float32)
    x[[1, 2, 3], [length - 1, 0, length // 2]] = 60
    value, index = argmax(x, 1)
    assert value.tolist() == x.max(axis=1).tolist()
    assert index.tolist() == x.argmax(axis=1).tolist()


def test_any_body_runs_in_order() -> None:
    """acc * 2 + x is not associative: up to SEQUENTIAL elements go in the order of their indices."""
    f = FuncBuilder("main", [Shape("i64", 2, 2, 3), Shape("i64")])
    with f.region(Shape("i64"), Shape("i64")) as r:
        r.result(r.add(r.multiply(r.args[0], r.constant(2, "i64")), r.args[1]))
    out = f.reduce(*f.args, dimensions=(2, 0), regions=[r.body])
    x = np.arange(12).reshape(2, 2, 3)
    (got,) = run(Program.of(f.func(out)), [x, np.array(1)])
    for lane in range(2):
        total = 1
        for value in x[:, lane, :].reshape(-1):
            total = total * 2 + int(value)
        assert got[lane] == total


def test_body_wider_than_inputs() -> None:
    wide = Shape("i32")
    f = FuncBuilder("main", [Shape("i8", 4), Shape("i8")])
    out = f.reduce(*f.args, dimensions=(0,), regions=[body(f, "add", wide, wide)])
    assert out.type == wide
    assert run(Program.of(f.func(out)), [np.full(4, 100, np.int8), np.array(1, np.int8)])[0] == 401


def test_quantized_sum() -> None:
    """Scale 0.5, zero point 3: 8 and 5 stand for 2.5 and 1.0; their sum 3.5 is stored as 10."""
    element = Quantized(dtype("i8"), dtype("f32"), (0.5,), (3,), None, -128, 127)
    scalar = Shape.of(element, ())
    f = FuncBuilder("main", [Shape.of(element, (2,)), scalar])
    out = f.reduce(*f.args, dimensions=(0,), regions=[body(f, "add", scalar, scalar)])
    assert run(Program.of(f.func(out)), [np.array([8, 5], np.int8), np.array(3, np.int8)])[0] == 10


def test_symbolic_sizes() -> None:
    n = symbol("N")
    f = FuncBuilder("main", [Shape("f32", n, 3, n + 1), Shape("f32")])
    out = f.reduce(*f.args, dimensions=(1,), regions=[body(f, "add", Shape("f32"), Shape("f32"))])
    assert out.type == Shape("f32", n, n + 1)
    assert (
        run(Program.of(f.func(out)), [np.ones((2, 3, 3), np.float32), np.array(0, np.float32)])[0].tolist()
        == [[3.0] * 3] * 2
    )


F, S = Shape("f32", 2, 3), Shape("f32")


@pytest.mark.parametrize(
    ("args", "dimensions", "types", "label"),
    [
        ([F, S, S], (0,), [S, S], "reduce_c3"),
        ([], (0,), [S, S], "reduce_c3"),
        ([F, Shape("f32", 3, 2), S, S], (0,), [S, S, S, S], "reduce_c1"),
        ([F, Shape("f64")], (0,), [S, S], "reduce_c2"),
        ([F, Shape("f32", 1)], (0,), [S, S], "reduce_i2"),
        ([F, S], (2,), [S, S], "reduce_c4"),
        ([F, S], (-1,), [S, S], "reduce_c4"),
        ([F, S], (1, 1), [S, S], "reduce_c5"),
        ([S, S], (0,), [S, S], "reduce_c4"),
        ([F, S], (0,), [S], "reduce_c6"),
        ([F, S], (0,), [S, S, S], "reduce_c6"),
        ([F, S], (0,), [Shape("f16"), Shape("f16")], "reduce_c6"),
        ([F, S], (0,), [Shape("i32"), Shape("i32")], "reduce_c6"),
        ([F, S], (0,), [Shape("f32", 1), Shape("f32", 1)], "reduce_c6"),
        ([F, Token()], (0,), [S, S], "must be a tensor"),
        ([F, S], (0,), [Token(), S], "reduce_c6"),
    ],
)
def test_reduce_is_verified(args: list[Any], dimensions: tuple[int, ...], types: list[Any], label: str) -> None:
    f = FuncBuilder("main", args)
    with f.region(*types) as r:
        r.result(r.args[0])
    with pytest.raises(VerifyError, match=label):
        f.reduce(*f.args, dimensions=dimensions, regions=[r.body])


def test_map() -> None:
    f = FuncBuilder("main", [Shape("i64", 2, 2), Shape("i64", 2, 2)])
    with f.region(Shape("i64"), Shape("i64")) as r:
        r.result(r.compare(r.args[0], r.args[1], comparison_direction="LT"))
    out = f.map(*f.args, dimensions=(0, 1), regions=[r.body])
    assert out.type == Shape("i1", 2, 2)
    args = [np.array([[0, 5], [2, 9]]), np.array([[4, 5], [6, 7]])]
    assert run(Program.of(f.func(out)), args)[0].tolist() == [[True, False], [True, False]]
    for dimensions in ((0,), (1, 0), (), (0, 1, 2)):
        with pytest.raises(VerifyError, match="map_c3"):
            f.map(*f.args, dimensions=dimensions, regions=[r.body])
    with pytest.raises(VerifyError, match="map_c4"):
        f.map(f.args[0], dimensions=(0, 1), regions=[r.body])
    with pytest.raises(VerifyError, match="map_c2"):
        f.map(dimensions=(), regions=[r.body])


def normalised(name: str, arrays: list[np.ndarray], feature: int) -> tuple[np.ndarray, ...]:
    f = FuncBuilder("main", [Shape.of(dtype(x.dtype), x.shape) for x in arrays])
    out = f.op(f"stablehlo.{name}", *f.args, epsilon=1e-3, feature_index=feature)
    return run(Program.of(f.func(*out.results)), arrays)


def test_batch_norms() -> None:
    """Inference and training from the definition; the gradient by finite differences of the training output."""
    rng = np.random.default_rng(2)
    x, grad = rng.standard_normal((4, 3, 5)), rng.standard_normal((4, 3, 5))
    scale, offset = rng.standard_normal(3), rng.standard_normal(3)
    mean, variance = x.mean(axis=(0, 2)), x.var(axis=(0, 2))
    lay = (slice(None), None)
    epsilon = float(np.float32(1e-3))
    wanted = (x - mean[lay]) / np.sqrt(variance[lay] + epsilon) * scale[lay] + offset[lay]
    got = normalised("batch_norm_training", [x, scale, offset], 1)
    for a, b in zip(got, (wanted, mean, variance), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13)
    (same,) = normalised("batch_norm_inference", [x, scale, offset, mean, variance], 1)
    np.testing.assert_allclose(same, wanted, rtol=1e-13)

    def loss(*parts: np.ndarray) -> float:
        return float((normalised("batch_norm_training", list(parts), 1)[0] * grad).sum())

    grads = normalised("batch_norm_grad", [x, scale, mean, variance, grad], 1)
    for position, gradient in ((0, grads[0]), (1, grads[1]), (2, grads[2])):
        parts = [x, scale, offset]
        for index in list(np.ndindex(parts[position].shape))[::7]:
            step = np.zeros_like(parts[position])
            step[index] = 1e-5
            up, down = ([p + s * step if i == position else p for i, p in enumerate(parts)] for s in (1, -1))
            assert (loss(*up) - loss(*down)) / 2e-5 == pytest.approx(gradient[index], rel=1e-5, abs=1e-8)


def test_batch_norm_is_verified() -> None:
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f32", 3), Shape("f32", 2), Shape("f64", 3), Shape("i32", 2, 3)])
    x, good, short, double, whole = f.args
    for operands, feature, label in (
        ((x, good, good), 2, "c1"),
        ((x, good, good), -1, "c1"),
        ((x, good, short), 1, "c3"),
        ((x, double, good), 1, "c2"),
        ((whole, good, good), 1, "i1"),
        ((x, x, good), 1, "c3"),
    ):
        with pytest.raises(VerifyError, match=f"batch_norm_training_{label}"):
            f.batch_norm_training(*operands, epsilon=0.0, feature_index=feature)
    with pytest.raises(VerifyError, match="batch_norm_grad_c3"):
        f.batch_norm_grad(x, good, good, good, good, epsilon=0.0, feature_index=1)


def test_scan() -> None:
    """Running sums along dimension 1, forwards and backwards."""
    x = np.array([[1, 2, 3], [4, 5, 6]], np.int32)
    for reverse in (False, True):
        f = FuncBuilder("main", [Shape("i32", 2, 3), Shape("i32", 2)])
        with f.region(Shape("i32", 2), Shape("i32", 2)) as r:
            total = r.add(*r.args)
            r.result(total, r.constant(0, "i32"), total)
        with pytest.raises(VerifyError, match="no room"):  # an output of rank 0 cannot be scanned along dimension 1
            f.op("chlo.scan", *f.args, dimension=1, regions=[r.body])
        region = Region(r.body.args, r.body.ops, (total, total))
        out = f.op("chlo.scan", *f.args, dimension=1, is_reverse=reverse, regions=[region])
        assert [value.type for value in out.results] == [Shape("i32", 2, 3), Shape("i32", 2)]
        all_, last = run(Program.of(f.func(*out.results)), [x, np.array([10, 20], np.int32)])
        wanted = np.cumsum(x[:, ::-1] if reverse else x, axis=1) + np.array([[10], [20]])
        assert all_.tolist() == (wanted[:, ::-1] if reverse else wanted).tolist()
        assert last.tolist() == wanted[:, -1].tolist()


@pytest.mark.parametrize(
    ("operands", "args", "attrs", "message"),
    [
        (["x"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 0}, "one argument per operand"),
        (["x", "i"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 0}, "region takes has the wrong type"),
        (["x", "c"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 2}, "scanned dimension"),
        (["x", "c"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": -1}, "scanned dimension"),
        (["x", "x"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 1}, "region takes has the wrong type"),
        (["c", "c"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 0}, "at least one input"),
        (
            ["x", "c"],
            [Shape("f32", 3), Shape("f32", 3)],
            {"dimension": 0, "operandSegmentSizes": (2, 0)},
            "both segment sizes",
        ),
        (["x", "t"], [Shape("f32", 3), Shape("f32", 3)], {"dimension": 0}, "must be a tensor"),
    ],
)
def test_scan_is_verified(operands: list[str], args: list[Shape], attrs: dict[str, Any], message: str) -> None:
    f = FuncBuilder("main", [Shape("f32", 2, 3), Shape("f32", 3), Shape("i32", 3), Token()])
    named = dict(zip("xcit", f.args, strict=True))
    with f.region(*args) as r:
        r.result(*r.args)
    with pytest.raises(VerifyError, match=message):
        f.op("chlo.scan", *(named[name] for name in operands), regions=[r.body], **attrs)


def test_reduce_agrees_with_jax() -> None:
    jax = pytest.importorskip("jax")
    x = np.random.default_rng(3).standard_normal((3, 4, 5)).astype(np.float32)
    for name, function in (
        ("add", jax.lax.add),
        ("multiply", jax.lax.mul),
        ("maximum", jax.lax.max),
        ("minimum", jax.lax.min),
    ):
        init = np.float32({"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}[name])
        for axes in ((0,), (1, 2), (2, 0), (0, 1, 2)):
            np.testing.assert_allclose(reduced(name, x, init, axes), jax.lax.reduce(x, init, function, axes), rtol=1e-5)
