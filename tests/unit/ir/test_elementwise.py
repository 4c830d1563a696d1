"""Elementwise ops against Python's own numbers, NumPy's definitions and values worked out by hand."""

import bisect
import cmath
import functools
import itertools
import math
import random
from fractions import Fraction
from typing import Any

import jax
import ml_dtypes
import numpy as np
import pytest

from smelt.dim import symbol
from smelt.dtype import DTYPES, Quantized, dtype
from smelt.errors import SmeltError, VerifyError
from smelt.ir.attributes import Constant, Float, Int, ResultAccuracy
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Token, Tuple
from smelt.ir.interpret import Frame, World, run
from smelt.ir.ops import OPS, elementwise
from smelt.ir.ops.definition import Process
from smelt.shape import Shape

NAN, INF = math.nan, math.inf


def shape_of(array):
    return Shape(dtype(array.dtype), *array.shape)


def evaluate(name, *arrays, types=None, result=None, **attrs):
    """The result of one op on arrays, whose types are given or follow from NumPy's."""
    types = types or [shape_of(array) for array in arrays]
    f = FuncBuilder("main", types)
    name = name if "." in name else f"stablehlo.{name}"
    op = f.op(name, *f.args, result=result, **attrs)
    return run(Program.of(f.func(op.result)), arrays)[0]


def make(name, *types, result=None, **attrs):
    """The result type of an op on values of these types."""
    f = FuncBuilder("main", types)
    return f.op(name if "." in name else f"stablehlo.{name}", *f.args, result=result, **attrs).result.type


def assert_same(got, want):
    """Equal bit for bit, except that every nan is like every other."""
    assert got.dtype == want.dtype
    got, want = (
        np.asarray(x).astype(np.complex128) if x.dtype.kind == "c" else np.asarray(x).astype(np.float64)
        for x in (got, want)
    )
    np.testing.assert_array_equal(got, want)
    for part in (np.real, np.imag):
        number = ~np.isnan(part(want))
        np.testing.assert_array_equal(np.signbit(part(got))[number], np.signbit(part(want))[number])


# ---- functions ----

FUNCTIONS = {
    "cosine": math.cos,
    "exponential": math.exp,
    "exponential_minus_one": math.expm1,
    "log": math.log,
    "log_plus_one": math.log1p,
    "logistic": lambda x: 1 / (1 + math.exp(-x)),
    "rsqrt": lambda x: 1 / math.sqrt(x),
    "sine": math.sin,
    "sqrt": math.sqrt,
    "tan": math.tan,
    "tanh": math.tanh,
    "cbrt": math.cbrt,
    "chlo.acosh": lambda x: math.acosh(1 + x),
    "chlo.asin": lambda x: math.asin(x / 4),
    "chlo.acos": lambda x: math.acos(x / 4),
    "chlo.asinh": math.asinh,
    "chlo.atan": math.atan,
    "chlo.atanh": lambda x: math.atanh(x / 4),
    "chlo.cosh": math.cosh,
    "chlo.sinh": math.sinh,
    "chlo.tan": math.tan,
    "chlo.erf": math.erf,
    "chlo.erfc": math.erfc,
    "chlo.lgamma": math.lgamma,
}
PREPARED = {
    "chlo.acosh": lambda x: 1 + x,
    "chlo.asin": lambda x: x / 4,
    "chlo.acos": lambda x: x / 4,
    "chlo.atanh": lambda x: x / 4,
}


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("element", ["f32", "f16", "bf16", "f8E5M2"])
def test_functions_of_narrow_floats_are_rounded_once(name, element):
    of = dtype(element).numpy
    inputs = np.array([0.0625, 0.5, 1.0, 1.25, 1.75, 2.5, 3.5]).astype(of)
    arguments = PREPARED.get(name, lambda x: x)(inputs.astype(np.float64)).astype(of)
    exact = [FUNCTIONS[name](x) for x in inputs.astype(float).tolist()]
    if name in PREPARED:  # 1 + x and x / 4 must be exact for the oracle to see the same argument
        assert (arguments.astype(float) == PREPARED[name](inputs.astype(float))).all() or element == "f8E5M2"
        inverse = {"chlo.acosh": lambda x: x - 1}.get(name, lambda x: x * 4)
        exact = [FUNCTIONS[name](inverse(x)) for x in arguments.astype(float).tolist()]
    got = evaluate(name, arguments)
    if element == "f32" and name in ("chlo.cosh", "chlo.sinh"):  # see the next test
        np.testing.assert_allclose(got, exact, rtol=2e-7)
    else:
        assert_same(got, nearest(exact, element))


def test_hyperbolic_functions_in_single_precision_follow_their_formula():
    """Values of the public suite, which allows a distance of 0.001: the nearest f32 are -14654.519 and -8601.565."""
    got = evaluate("chlo.sinh", np.array([-10.285651, -9.752847, 0.5], np.float32))
    np.testing.assert_allclose(got, [-14654.525390625, -8601.5703125, math.sinh(0.5)], rtol=0, atol=0.001)
    got = evaluate("chlo.cosh", np.array([INF, -INF, NAN, 0.0], np.float32))
    assert_same(got, np.array([INF, INF, NAN, 1.0], np.float32))


def nearest(values, element):
    """Each value in an element type, by comparing it exactly with its two neighbours among all values of the type."""
    of = dtype(element).numpy
    if of.type in (np.float32, np.float64, np.float16):
        return np.array(values).astype(of)
    ordered, codes = every_value(element)
    out = []
    for value in map(Fraction, values):
        at = bisect.bisect_left(ordered, value)
        below, above = ordered[max(at - 1, 0)], ordered[min(at, len(ordered) - 1)]
        if Fraction(above) == value:
            below = above
        ties_up = codes[above] % 2 == 0
        down = value - Fraction(below) < Fraction(above) - value
        level = value - Fraction(below) == Fraction(above) - value
        out.append(below if down or (level and not ties_up) else above)
    return np.array(out).astype(of)  # exact: every one is representable


@functools.cache
def every_value(element):
    """The finite values of an element type in order, and the bit pattern of each."""
    of = dtype(element).numpy
    bits = np.arange(1 << dtype(element).bits, dtype=np.dtype(f"u{of.itemsize}"))
    with np.errstate(invalid="ignore"):  # signalling nans
        values = bits.view(of).astype(np.float64).tolist()
    codes = {value + 0.0: code for code, value in reversed(list(enumerate(values))) if math.isfinite(value)}
    return sorted(codes), codes


@pytest.mark.parametrize("element", ["bf16", "f8E4M3FN", "f8E5M2", "f8E4M3B11FNUZ", "f8E3M4", "f4E2M1FN", "f6E3M2FN"])
def test_double_to_narrow_rounds_once(element):
    """A double a hair above a tie goes up, which it does not when it passes through f32."""
    of = dtype(element).numpy
    step = float(ml_dtypes.finfo(of).eps)
    values = []
    for base in (1.0, 1.0 + step):
        tie = base + step / 2
        values += [tie, tie + 2.0**-45, tie - 2.0**-45, -tie, -tie - 2.0**-45, -tie + 2.0**-45]
    got = evaluate("convert", np.array(values), result=Shape(element, len(values)))
    assert_same(got, nearest(values, element))


def test_integers_to_bf16_round_once():
    values = [
        (1 << 62) + (1 << 54) + 1,
        (1 << 62) + (1 << 54),
        -(1 << 62) - (1 << 54) - 1,
        (1 << 30) + (1 << 22) + 1,
        257,
        259,
    ]
    got = evaluate("convert", np.array(values), result=Shape("bf16", len(values)))
    bits = [math.frexp(float(abs(v)))[1] for v in values]
    exact = []
    for value, width in zip(values, bits, strict=True):
        unit = 1 << max(width - 8, 0)
        exact.append(float(round(Fraction(value, unit)) * unit))  # round() breaks ties to even
    assert got.astype(float).tolist() == exact


# ---- convert ----

VALUES = [name for name in DTYPES if name != "index"]  # no op computes on those


@pytest.mark.parametrize("pair", list(itertools.product(VALUES, VALUES)), ids="-".join)
def test_every_conversion_keeps_zero_and_one(pair):
    of, to = map(dtype, pair)
    inputs = np.array([1, 1]).astype(of.numpy) if "E8M0" in pair[0] + pair[1] else np.array([0, 1]).astype(of.numpy)
    got = evaluate("convert", inputs, types=[Shape(of, 2)], result=Shape(to, 2))
    assert got.dtype == to.numpy
    assert got.astype(np.complex128).real.tolist() == [float(inputs[0].astype(np.complex128).real), 1.0]


@pytest.mark.parametrize(
    ("element", "low", "high"),
    [
        ("i8", -128, 127),
        ("ui8", 0, 255),
        ("i64", -(2**63), 2**63 - 1),
        ("ui64", 0, 2**64 - 1),
        ("i4", -8, 7),
        ("ui2", 0, 3),
    ],
)
def test_floats_saturate_as_integers(element, low, high):
    inputs = np.array([1e30, -1e30, INF, -INF, NAN, 1.99, -0.99])
    got = evaluate("convert", inputs, result=Shape(element, 7))
    assert [int(x) for x in got] == [high, low, high, low, 0, 1, 0]


def test_integers_wrap():
    got = evaluate("convert", np.array([300, -1, 127, 128]), result=Shape("i8", 4))
    assert got.tolist() == [44, -1, 127, -128]
    got = evaluate("convert", np.array([300, -1, 7, 8]), result=Shape("i4", 4))
    assert [int(x) for x in got] == [-4, -1, 7, -8]


def test_complex_and_booleans_convert():
    z = np.array([0, 2j, 3 - 1j, complex(NAN, 0)])
    for element, to in (("i1", bool), ("i32", np.int32)):
        with pytest.warns(np.exceptions.ComplexWarning):
            want = jax.lax.convert_element_type(jax.numpy.asarray(z, np.complex64), to)
        assert evaluate("convert", z, result=Shape(element, 4)).tolist() == want.tolist()
    assert evaluate("convert", np.array([0.0, -0.5, NAN]), result=Shape("i1", 3)).tolist() == [False, True, True]


# ---- arithmetic ----


def test_booleans():
    x, y = np.array([[a, b] for a in (False, True) for b in (False, True)]).T
    table = {
        "add": x | y,
        "multiply": x & y,
        "and": x & y,
        "or": x | y,
        "xor": x ^ y,
        "maximum": x | y,
        "minimum": x & y,
    }
    for name, want in table.items():
        assert evaluate(name, x, y).tolist() == want.tolist()
    assert evaluate("not", x).tolist() == (~x).tolist()


@pytest.mark.parametrize("element", ["i2", "i4", "ui4", "i8", "ui8", "i32", "ui64"])
def test_integer_arithmetic_wraps(element):
    of = dtype(element)
    low = -(1 << of.bits - 1) if of.kind == "int" else 0
    high = low + (1 << of.bits) - 1
    values = [low, high, 1 if high > 1 else 0, 0, high - 1]
    x, y = (np.array(side, dtype=object) for side in zip(*itertools.product(values, values), strict=True))
    a, b = (side.astype(np.uint64 if of.name == "ui64" else np.int64).astype(of.numpy) for side in (x, y))

    def wrap(value):
        return (value - low) % (1 << of.bits) + low

    table: dict[str, Any] = {
        "add": int.__add__,
        "subtract": int.__sub__,
        "multiply": int.__mul__,
        "maximum": max,
        "minimum": min,
    }
    table |= {"and": int.__and__, "or": int.__or__, "xor": int.__xor__}
    for name, oracle in table.items():
        got = [int(v) for v in evaluate(name, a, b)]
        assert got == [wrap(oracle(int(p), int(q))) for p, q in zip(x, y, strict=True)], name
    assert [int(v) for v in evaluate("negate", a)] == [wrap(-int(p)) for p in x]
    assert [int(v) for v in evaluate("not", a)] == [wrap(~int(p)) for p in x]
    if of.kind == "int":
        assert [int(v) for v in evaluate("abs", a)] == [wrap(abs(int(p))) for p in x]
        assert [int(v) for v in evaluate("sign", a)] == [(int(p) > 0) - (int(p) < 0) for p in x]


@pytest.mark.parametrize("element", ["f32", "f16", "bf16"])
def test_float_arithmetic_is_rounded_once(element):
    of = dtype(element).numpy
    draw = np.random.default_rng(7)
    bits = draw.integers(0, 1 << 8 * of.itemsize, 300, dtype=np.uint64).astype(np.dtype(f"u{of.itemsize}"))
    x, y = bits.view(of)[:150], bits.view(of)[150:]
    usable = np.isfinite(x.astype(float)) & np.isfinite(y.astype(float)) & (y.astype(float) != 0)
    x, y = x[usable], y[usable]
    limit = float(ml_dtypes.finfo(of).max)
    pairs = [(Fraction(float(a)), Fraction(float(b))) for a, b in zip(x, y, strict=True)]
    for name, oracle in {"add": Fraction.__add__, "multiply": Fraction.__mul__, "divide": Fraction.__truediv__}.items():
        got = evaluate(name, x, y).astype(float)
        for (a, b), value in zip(pairs, got.tolist(), strict=True):
            exact = oracle(a, b)
            if abs(exact) > limit:
                continue
            neighbours = np.array([value, value]).astype(of)
            below, above = (
                np.nextafter(n, s, dtype=of) if of != dtype("bf16").numpy else step(n, s)
                for n, s in zip(neighbours, (-INF, INF), strict=True)
            )
            error = abs(Fraction(value) - exact)
            assert all(error <= abs(Fraction(float(n)) - exact) for n in (below, above) if math.isfinite(float(n))), (
                name,
                a,
                b,
            )


def step(value, towards):
    """The bf16 next to a value."""
    return evaluate("chlo.next_after", np.array(value), np.array(towards, value.dtype))


def test_maximum_and_minimum_of_floats():
    x = np.array([1.0, NAN, 2.0, -0.0, 0.0, -INF])
    y = np.array([2.0, 1.0, NAN, 0.0, -0.0, INF])
    assert_same(evaluate("maximum", x, y), np.array([2.0, NAN, NAN, 0.0, 0.0, INF]))
    assert_same(evaluate("minimum", x, y), np.array([1.0, NAN, NAN, -0.0, -0.0, -INF]))


def test_complex_numbers_compare_by_real_part_first():
    x, y = np.array([1 + 5j, 2 + 1j, 2 + 3j]), np.array([2 - 5j, 2 + 2j, 2 + 3j])
    assert evaluate("maximum", x, y).tolist() == [2 - 5j, 2 + 2j, 2 + 3j]
    assert evaluate("minimum", x, y).tolist() == [1 + 5j, 2 + 1j, 2 + 3j]
    compared = {
        d: evaluate("compare", x, y, comparison_direction=d).tolist() for d in ("EQ", "NE", "LT", "LE", "GT", "GE")
    }
    assert compared == {
        "EQ": [False, False, True],
        "NE": [True, True, False],
        "LT": [True, True, False],
        "LE": [True, True, True],
        "GT": [False, False, False],
        "GE": [False, False, True],
    }


def test_complex_functions():
    z = np.array([1 + 2j, -0.5 + 0.25j, -3 - 1j])
    for name, oracle in {
        "exponential": cmath.exp,
        "log": cmath.log,
        "sqrt": cmath.sqrt,
        "tanh": cmath.tanh,
        "sine": cmath.sin,
    }.items():
        want = [oracle(complex(x)) for x in z]
        np.testing.assert_allclose(evaluate(name, z), want, rtol=1e-15)
        assert evaluate(name, z.astype(np.complex64)).tolist() == np.array(want, np.complex64).tolist()
    assert evaluate("abs", np.array([3 + 4j], np.complex64)).tolist() == [5.0]
    assert evaluate("real", z).tolist() == z.real.tolist()
    assert evaluate("imag", z).tolist() == z.imag.tolist()
    assert evaluate("imag", np.array([2.0])).tolist() == [0.0]
    assert evaluate("chlo.conj", z).tolist() == [x.conjugate() for x in z.tolist()]
    made = evaluate("complex", np.array([INF, 1.0], np.float32), np.array([2.0, NAN], np.float32))
    assert_same(made, np.array([complex(INF, 2), complex(1, NAN)], np.complex64))
    assert evaluate("multiply", z, z[::-1]).tolist() == [
        a * b for a, b in zip(z.tolist(), z[::-1].tolist(), strict=True)
    ]
    np.testing.assert_allclose(evaluate("divide", z, z[::-1]), z / z[::-1], rtol=1e-15)


def test_complex_division_at_the_edges():
    """C99's annex G, which XLA follows too."""
    cases = [
        (complex(INF, INF), 1j, complex(INF, -INF)),
        (1 + 1j, 0j, complex(INF, INF)),
        (complex(0, -INF), 0j, complex(NAN, -INF)),
        (1 + 1j, complex(INF, NAN), 0j),
        (1e308 + 1e308j, 1e308 + 1e308j, 1 + 0j),
        (1e-320 + 1e-320j, 1e-320 + 0j, 1 + 1j),
        (1e300 + 1e-300j, 1e-300j, complex(1, -INF)),
        (complex(NAN, NAN), 1 + 0j, complex(NAN, NAN)),
    ]
    x, y, want = (np.array(column) for column in zip(*cases, strict=True))
    np.testing.assert_array_equal(evaluate("divide", x, y), want)


def test_sign_and_rounding_keep_the_sign_of_zero():
    x = np.array([NAN, -2.5, -0.0, 0.0, 0.5, 1.5, -0.4])
    assert_same(evaluate("sign", x), np.array([NAN, -1, -0.0, 0.0, 1, 1, -1]))
    assert_same(evaluate("round_nearest_even", x), np.array([NAN, -2, -0.0, 0.0, 0.0, 2.0, -0.0]))
    assert_same(evaluate("round_nearest_afz", x), np.array([NAN, -3, -0.0, 0.0, 1.0, 2.0, -0.0]))
    assert_same(evaluate("ceil", x), np.array([NAN, -2, -0.0, 0.0, 1.0, 2.0, -0.0]))
    assert_same(evaluate("floor", x), np.array([NAN, -3, -0.0, 0.0, 0.0, 1.0, -1]))
    assert_same(
        evaluate("remainder", np.array([7.5, -7.5, 1.0]), np.array([2.0, 2.0, INF])), np.array([1.5, -1.5, 1.0])
    )


def test_predicates():
    x = np.array([INF, -INF, NAN, 0.0], ml_dtypes.bfloat16)
    assert evaluate("is_finite", x).tolist() == [False, False, False, True]
    assert evaluate("chlo.is_inf", x).tolist() == [True, True, False, False]
    assert evaluate("chlo.is_pos_inf", x).tolist() == [True, False, False, False]
    assert evaluate("chlo.is_neg_inf", x).tolist() == [False, True, False, False]


# ---- compare, clamp, select ----


@pytest.mark.parametrize("element", ["f64", "f32", "f16", "bf16"])
def test_total_order(element):
    of = dtype(element).numpy
    order = np.array([math.copysign(NAN, -1.0), -INF, -1.0, -0.0, 0.0, 1.0, INF, NAN]).astype(of)
    order[0] = -np.abs(order[0])
    ranks = np.arange(8)
    x, y = (side.ravel() for side in np.meshgrid(ranks, ranks))
    for direction, oracle in {
        "LT": np.less,
        "LE": np.less_equal,
        "EQ": np.equal,
        "GE": np.greater_equal,
        "NE": np.not_equal,
    }.items():
        got = evaluate("compare", order[x], order[y], comparison_direction=direction, compare_type="TOTALORDER")
        assert got.tolist() == oracle(x, y).tolist()


def test_compare_of_nan_is_unordered():
    x, y = np.array([NAN, 1.0, -0.0]), np.array([NAN, NAN, 0.0])
    got = {
        d: evaluate("compare", x, y, comparison_direction=d, compare_type="FLOAT").tolist()
        for d in ("EQ", "NE", "LE", "GT")
    }
    assert got == {
        "EQ": [False, False, True],
        "NE": [True, True, False],
        "LE": [False, False, True],
        "GT": [False, False, False],
    }


def test_compare_of_unsigned_and_narrow_integers():
    x, y = np.array([2**64 - 1, 0], np.uint64), np.array([1, 1], np.uint64)
    assert evaluate("compare", x, y, comparison_direction="GT", compare_type="UNSIGNED").tolist() == [True, False]
    a, b = np.array([-8, 7]).astype(ml_dtypes.int4), np.array([7, 7]).astype(ml_dtypes.int4)
    assert evaluate("compare", a, b, comparison_direction="LT").tolist() == [True, False]


def test_clamp_and_select_take_scalars():
    x = np.array([-5.0, 0.5, 5.0, NAN], np.float32)
    assert_same(evaluate("clamp", np.array(-1.0), x.astype(float), np.array(1.0)), np.array([-1, 0.5, 1, NAN]))
    bounds = np.array([0, 0, 0, 0], np.float32), np.array([1, 1, 9, 9], np.float32)
    assert_same(evaluate("clamp", bounds[0], x, bounds[1]), np.array([0, 0.5, 5, NAN], np.float32))
    y = np.array([1, 2, 3, 4], np.float32)
    assert_same(evaluate("select", np.array(True), x, y), x)
    assert_same(evaluate("select", np.array([True, False, True, False]), x, y), np.array([-5, 2, 5, 4], np.float32))


def test_reduce_precision():
    x = np.array([65520.0, 65519.0, 1.0 + 2.0**-11, 2.0**-25], np.float32)
    got = evaluate("reduce_precision", x, exponent_bits=5, mantissa_bits=10)
    assert_same(got, np.array([INF, 65504, 1, 0], np.float32))


# ---- constants, regions ----


def test_constants():
    f = FuncBuilder("main", [Shape("f32", 2, 3)])
    value = f.constant(np.array([1, 2], np.int8))
    like = f.op("chlo.constant_like", *f.args, value=Float(1.5, dtype("bf16"))).result
    whole = f.op("chlo.constant_like", *f.args, value=Int(-1, dtype("i8"))).result
    results = run(Program.of(f.func(value, like, whole)), [np.zeros((2, 3), np.float32)])
    assert results[0].tolist() == [1, 2]
    assert results[1].dtype == ml_dtypes.bfloat16
    assert results[1].astype(float).tolist() == [[1.5] * 3] * 2
    assert results[2].tolist() == [[-1] * 3] * 2


def test_rows_run_over_lanes():
    """A body over scalars, constants included, is evaluated for all lanes at once."""
    f = FuncBuilder("main", [])
    scalar = Shape("bf16")
    with f.region(scalar, scalar) as r:
        total = r.add(r.args[0], r.constant(0.5, "bf16"))
        less = r.compare(total, r.args[1], comparison_direction="LT")
        r.result(r.select(less, total, r.args[1]))
    assert r.body is not None
    func = f.func()
    frame = Frame(World(Program.of(func), {}), func, Process())
    x, y = np.arange(6.0).reshape(2, 3).astype(scalar.dtype.numpy), np.full((2, 3), 3.0).astype(scalar.dtype.numpy)
    assert all(OPS[op.name].elementwise for op in r.body.ops)
    (got,) = frame.lanes(r.body, x, y)
    assert got.astype(float).tolist() == [[0.5, 1.5, 2.5], [3, 3, 3]]


# ---- chlo.broadcast_* ----


def test_broadcast_like_numpy():
    x, y = np.arange(6.0).reshape(2, 1, 3), np.arange(12.0).reshape(4, 3)
    assert evaluate("chlo.broadcast_add", x, y).tolist() == (x + y).tolist()
    assert evaluate("chlo.broadcast_subtract", np.array(2.0), y).tolist() == (2 - y).tolist()
    compared = evaluate("chlo.broadcast_compare", x, y, comparison_direction="LT")
    assert compared.tolist() == (x < y).tolist()
    pred = np.array([True, False, True])
    assert evaluate("chlo.broadcast_select", pred, x, np.array(-1.0)).tolist() == np.where(pred, x, -1.0).tolist()
    made = evaluate("chlo.broadcast_complex", x, y)
    assert made.tolist() == (x + 1j * y).tolist()


def test_broadcast_dimensions_place_the_smaller_operand():
    x, y = np.arange(2.0), np.arange(6.0).reshape(2, 3)
    want = (x[:, None] - y).tolist()
    assert evaluate("chlo.broadcast_subtract", x, y, broadcast_dimensions=(0,)).tolist() == want
    assert evaluate("chlo.broadcast_subtract", y, x, broadcast_dimensions=(0,)).tolist() == (-np.array(want)).tolist()


def test_broadcast_of_symbols():
    n, m = symbol("n"), symbol("m")
    assert make("chlo.broadcast_add", Shape("f32", n, 1), Shape("f32", 1, m)) == Shape("f32", n, m)
    assert make("chlo.broadcast_add", Shape("f32", n), Shape("f32", n)) == Shape("f32", n)
    assert make("chlo.broadcast_add", Shape("f32", n), Shape("f32", 4)) == Shape("f32", 4)  # assumed: n = 4
    with pytest.raises(VerifyError):
        make("chlo.broadcast_add", Shape("f32", n), Shape("f32", n + 1))


@pytest.mark.parametrize("dims", [(0, 1), (2,), (-1,), ()])
def test_broadcast_dimensions_are_checked(dims):
    with pytest.raises(VerifyError, match="broadcast_dimensions"):
        make("chlo.broadcast_add", Shape("f32", 3), Shape("f32", 3, 3), broadcast_dimensions=dims)


def test_every_binary_op_has_a_broadcasting_one():
    plain = {name.partition(".")[2] for name in OPS if name.startswith("chlo.broadcast_")}
    names = (
        "add and atan2 compare complex divide maximum minimum multiply next_after or polygamma power remainder select"
    )
    names += " shift_left shift_right_arithmetic shift_right_logical subtract xor zeta"
    assert plain == {f"broadcast_{name}" for name in names.split()}


# ---- quantised ----


def quantized(scales, zero_points, axis=None, storage="i8", low=-128, high=127):
    return Quantized(dtype(storage), dtype("f32"), tuple(scales), tuple(zero_points), axis, low, high)


def test_quantised_addition():
    a, b, c = quantized([0.5], [0]), quantized([0.25], [4]), quantized([1.0], [-1])
    x, y = np.array([4, -6, 127, 1], np.int8), np.array([8, 0, 127, 2], np.int8)
    # 2 + 1, -3 - 1, 63.5 + 30.75, 0.5 - 0.5; halves would go to even, and everything moves by the zero point
    got = evaluate("add", x, y, types=[Shape(a, 4), Shape(b, 4)], result=Shape(c, 4))
    assert got.tolist() == [2, -5, 93, -1]
    assert got.dtype == np.int8


def test_quantised_results_saturate_and_ties_go_to_even():
    a, c = quantized([0.5], [0]), quantized([1.0], [0], low=-10, high=10)
    narrow = quantized([0.5], [0], low=-10, high=10)
    x = np.array([1, 3, 5, 127, -128], np.int8)
    with pytest.raises(VerifyError):
        make("negate", Shape(a, 5), result=Shape(c, 5))  # another storage range is another type
    got = evaluate("negate", x, types=[Shape(narrow, 5)], result=Shape(c, 5))
    assert got.tolist() == [0, -2, -2, -10, 10]


def test_quantised_per_axis_addition():
    a, b = quantized([1.0, 2.0], [0, 1], axis=0), quantized([1.0], [0])
    x, y = np.array([[1, 2], [3, 4]], np.int8), np.array([[1, 1], [1, 1]], np.int8)
    got = evaluate("add", x, y, types=[Shape(a, 2, 2), Shape(b, 2, 2)], result=Shape(a, 2, 2))
    assert got.tolist() == [[2, 3], [4, 4]]  # (4 + 1) / 2 + 1 = 3.5 and (6 + 1) / 2 + 1 = 4.5 go to 4
    for wrong, label in ((b, "add_c5|add_c6"), (quantized([1.0, 2.0], [0, 1], axis=1), "add_c6")):
        with pytest.raises(VerifyError, match=label):
            make("add", Shape(a, 2, 2), Shape(b, 2, 2), result=Shape(wrong, 2, 2))
    with pytest.raises(VerifyError, match="c13"):
        make("add", Shape(a, 3, 2), Shape(b, 3, 2), result=Shape(a, 3, 2))


def test_quantised_compare_and_select():
    a, b = quantized([0.5], [0]), quantized([1.0], [1])
    x, y = np.array([4, 5], np.int8), np.array([3, 3], np.int8)
    types = [Shape(a, 2), Shape(b, 2)]
    assert evaluate("compare", x, y, types=types, comparison_direction="EQ").tolist() == [True, False]
    pred = np.array([True, False])
    got = evaluate("select", pred, x, y, types=[Shape("i1", 2), *types], result=Shape(b, 2))
    assert got.tolist() == [3, 3]


# ---- refusals ----

REFUSED = [
    ("subtract", [Shape("i1", 2), Shape("i1", 2)], {}),
    ("subtract", [Shape("f32", 2), Shape("f32", 3)], {}),
    ("add", [Shape("f32", 2), Shape("f64", 2)], {}),
    ("add", [Shape("f32"), Shape("f32", 1)], {}),
    ("add", [Shape("f32"), Token()], {}),
    ("add", [Shape("f32", 2)], {}),
    ("abs", [Shape("ui8", 2)], {}),
    ("sign", [Shape("i1", 2)], {}),
    ("not", [Shape("f32", 2)], {}),
    ("popcnt", [Shape("i1", 2)], {}),
    ("shift_left", [Shape("f32"), Shape("f32")], {}),
    ("cosine", [Shape("i32")], {}),
    ("cosine", [Shape("f32")], {"result_accuracy": ResultAccuracy(ulps=-1, mode="TOLERANCE")}),
    ("cosine", [Shape("f32")], {"result_accuracy": ResultAccuracy(ulps=1)}),
    ("floor", [Shape("complex<f32>")], {}),
    ("complex", [Shape("f16"), Shape("f16")], {}),
    ("complex", [Shape("f32"), Shape("f64")], {}),
    ("compare", [Shape("f32"), Shape("f32")], {}),
    ("compare", [Shape("f32"), Shape("f32")], {"comparison_direction": "LT", "compare_type": "SIGNED"}),
    ("compare", [Shape("i1"), Shape("i1")], {"comparison_direction": "LT", "compare_type": "SIGNED"}),
    ("compare", [Shape("ui8"), Shape("i8")], {"comparison_direction": "LT"}),
    ("clamp", [Shape("f32", 1), Shape("f32", 2), Shape("f32")], {}),
    ("clamp", [Shape("f32"), Shape("f32", 2), Shape("f64")], {}),
    ("select", [Shape("i8"), Shape("f32", 2), Shape("f32", 2)], {}),
    ("select", [Shape("i1", 1), Shape("f32", 2), Shape("f32", 2)], {}),
    ("select", [Shape("i1"), Shape("f32", 2), Shape("f64", 2)], {}),
    ("convert", [Shape("f32", 2)], {}),
    ("convert", [Shape("f32", 2)], {"result": Shape("i8", 3)}),
    ("convert", [Shape("f32", 2)], {"result": Token()}),
    ("reduce_precision", [Shape("f32")], {"exponent_bits": 0, "mantissa_bits": 3}),
    ("reduce_precision", [Shape("f32")], {"exponent_bits": 3, "mantissa_bits": -1}),
    ("real", [Shape("i32")], {}),
    ("negate", [Shape(quantized([1.0, 2.0], [0, 0], axis=0), 2)], {}),
    ("chlo.zeta", [Shape("complex<f32>"), Shape("complex<f32>")], {}),
    ("chlo.mulhi", [Shape("f32"), Shape("f32")], {}),
    ("chlo.broadcast_add", [Shape("f32", 2), Shape("f32", 3)], {}),
    ("chlo.broadcast_and", [Shape("f32", 2), Shape("f32", 2)], {}),
    ("chlo.constant_like", [Shape("f32", 2)], {"value": "one"}),
]


@pytest.mark.parametrize(
    ("name", "types", "attrs"), REFUSED, ids=lambda value: value if isinstance(value, str) else None
)
def test_refused(name, types, attrs):
    with pytest.raises(VerifyError):
        make(name, *types, **attrs)


ACCURATE = ResultAccuracy(ulps=3, mode="TOLERANCE")


def test_accuracy_is_accepted():
    assert make("cosine", Shape("f32", 2), result_accuracy=ACCURATE) == Shape("f32", 2)
    assert make("cosine", Shape("f32", 2), result_accuracy=ResultAccuracy(mode="HIGHEST")) == Shape("f32", 2)


def test_declared_sizes_win_over_symbols():
    n = symbol("n")
    assert make("add", Shape("f32", n), Shape("f32", 3)) == Shape("f32", 3)
    assert make("clamp", Shape("f32"), Shape("f32", n), Shape("f32")) == Shape("f32", n)
    with pytest.raises(VerifyError):
        make("add", Shape("f32", n), Shape("f32", n + 1))


TYPES: list[Any] = [
    *(
        Shape(element, *sizes)
        for element in ("f32", "i8", "ui4", "i1", "complex<f64>", "f8E4M3FN")
        for sizes in ((), (2,), (1, 2), (0,))
    ),
    Shape("f32", symbol("n")),
    Shape(quantized([0.5], [0]), 2),
    Shape(quantized([0.5, 1.0], [0, 1], axis=0), 2),
    Shape(quantized([0.5, 1.0], [0, 1], axis=3), 2),
    Token(),
    Tuple((Shape("f32"),)),
]
ATTRS: dict[str, list[Any]] = {
    "comparison_direction": ["LT", "NE"],
    "compare_type": [None, "FLOAT", "TOTALORDER", "SIGNED", "NOTYPE"],
    "broadcast_dimensions": [None, (), (0,), (1,), (0, 1), (-3,), (7, 7)],
    "exponent_bits": [5, 0, -3, 10**12],
    "mantissa_bits": [2, -1, 0, 10**12],
    "result_accuracy": [None, ACCURATE, ResultAccuracy(mode="WRONG")],
    "value": [Float(2.0, dtype("f16")), Int(3, dtype("i1")), Constant.of(np.zeros(2), dtype("f64"))],
}


@pytest.mark.parametrize("row", elementwise.ROWS, ids=lambda row: row.name)
def test_malformed_ops_are_refused_and_others_run(row):
    """Whatever the types and attributes are, the answer is a SmeltError or a result of the promised type."""
    pick = random.Random(row.name)
    ran = 0
    for _ in range(400):
        operands = [pick.choice(TYPES) for _ in row.operands.split()]
        if pick.random() < 0.7:
            operands = [pick.choice(TYPES)] * len(operands)
        if row.name.endswith("select") and pick.random() < 0.8:
            operands[0] = pick.choice([Shape("i1"), Shape("i1", 2)])
        attrs = {attr.name: pick.choice(ATTRS[attr.name]) for attr in row.attrs}
        if row.name.endswith(".constant"):
            attrs["value"] = ATTRS["value"][-1]
        result = pick.choice([None, None, *operands, *TYPES])
        f = FuncBuilder("main", operands)
        try:
            op = f.op(row.name, *f.args, result=result, **attrs)
            arrays = [
                np.ones([3 if not isinstance(s, int) else s for s in t.sizes]).astype(t.dtype.numpy) for t in operands
            ]
            (got,) = run(Program.of(f.func(op.result)), arrays)
        except SmeltError:
            continue
        assert got.dtype == op.result.shape.dtype.numpy
        ran += 1
    assert ran > 0
