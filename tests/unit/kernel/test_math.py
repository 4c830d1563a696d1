"""The float functions of the native engine against double precision and mpmath, in units of the last place.

f32: two million arguments spread over all exponents; f64: some thousands against 60 digits. The greatest distances that
`smelt.kernel.math.ULP` states are asserted, with multiply-add instructions and without, and so are special values.
"""

from __future__ import annotations

import math as libm
from collections.abc import Callable
from functools import cache
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from smelt.dtype import DTYPES, Array, DType, f32, f64, i1
from smelt.errors import VerifyError
from smelt.ir.build import make
from smelt.ir.core import Value
from smelt.ir.ops import OPS
from smelt.ir.ops.definition import Scope
from smelt.kernel import math
from smelt.shape import Shape
from tests.unit.kernel.compiled import Case, Compiled, of_op

BINARY = ("atan2", "power")
FUNCTIONS = tuple(math.ULP)

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, np.inf, -np.inf, np.nan)


@cache
def functions(plain: bool) -> Compiled:
    cases = {
        f"{name}_{of}": of_op(name, [of] * (2 if name in BINARY else 1)) for name in FUNCTIONS for of in (f32, f64)
    }
    return Compiled(cases, plain=plain)


def _logistic(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1.0 + e)


def _each(fn: Callable[[float], float]) -> Callable[[Array], Array]:
    return lambda x: np.asarray(np.frompyfunc(fn, 1, 1)(x), np.float64)


# f32 functions in double precision, whose own error is a billionth of a unit in the last place of f32.
DOUBLE: dict[str, Callable[..., Array]] = {
    "atan2": np.arctan2,
    "cbrt": np.cbrt,
    "cosine": np.cos,
    "erf": _each(libm.erf),
    "erfc": _each(libm.erfc),
    "exponential": np.exp,
    "exponential_minus_one": np.expm1,
    "log": np.log,
    "log_plus_one": np.log1p,
    "logistic": _logistic,
    "power": np.power,
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "sine": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}
EXACT: dict[str, Callable[..., Any]] = {
    "atan2": mp.atan2,
    "cbrt": lambda x: mp.sign(x) * mp.cbrt(abs(x)),
    "cosine": mp.cos,
    "erf": mp.erf,
    "erfc": mp.erfc,
    "exponential": mp.exp,
    "exponential_minus_one": lambda x: mp.expm1(max(x, -1000)),
    "log": mp.log,
    "log_plus_one": mp.log1p,
    "logistic": lambda x: 1 / (1 + mp.exp(-min(x, 1000))),
    "power": mp.power,
    "rsqrt": lambda x: 1 / mp.sqrt(x),
    "sine": mp.sin,
    "sqrt": mp.sqrt,
    "tan": mp.tan,
    "tanh": lambda x: mp.tanh(max(min(x, 1000), -1000)),
}


def spread(random: np.random.Generator, of: DType, count: int) -> Array:
    """Numbers of all exponents, as many near 1, and every pair of special values in front."""
    unsigned = np.dtype(f"u{of.bits // 8}")
    everywhere = random.integers(0, 1 << of.bits, count // 2, dtype=unsigned, endpoint=False).view(of.numpy)
    scale = random.choice([0.1, 0.5, 1.0, 4.0, 30.0, 90.0, 1e4], count - count // 2)
    near = (random.standard_normal(count - count // 2) * scale).astype(of.numpy)
    edges = np.array([*SPECIAL, np.finfo(of.numpy).smallest_subnormal, np.finfo(of.numpy).max], of.numpy)
    return np.concatenate([edges, -edges, everywhere, near])


def distance(got: Array, want: Array) -> Array:
    """|got - want| in units of the last place that got's type has at want; want is more precise."""
    info = np.finfo(got.dtype)
    power = np.maximum(np.frexp(np.abs(want))[1] - 1, info.minexp)
    with np.errstate(all="ignore"):
        off = np.ldexp(np.abs(got.astype(want.dtype) - want), info.nmant - power)
    return np.where(np.isfinite(got) & np.isfinite(want), off, 0.0)


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_f32(name: str, plain: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = spread(random, f32, 500_000 if plain else 2_000_000)
    args = [x]
    if name in BINARY:
        args.append(random.permutation(x))
        pairs = [np.array(each, np.float32) for each in zip(*((a, b) for a in SPECIAL for b in SPECIAL), strict=True)]
        args = [np.concatenate([pair, arg]) for pair, arg in zip(pairs, args, strict=True)]
    got = functions(plain)(f"{name}_f32", *args)
    with np.errstate(all="ignore"):
        want = DOUBLE[name](*(arg.astype(np.float64) for arg in args))
        rounded = want.astype(np.float32)
    check(name, got, want, rounded, args)


def check(name: str, got: Array, want: Array, rounded: Array, args: list[Array]) -> None:
    """Within the stated distance; nan where the oracle has nan, infinities and the signs of zeros equal."""
    off = distance(got, want)
    worst = int(np.argmax(off))
    assert off[worst] <= math.ULP[name], (name, [arg[worst] for arg in args], got[worst], want[worst])
    same = np.where(np.isnan(rounded), np.isnan(got), np.signbit(got) == np.signbit(rounded))
    same &= np.isinf(got) == np.isinf(rounded)
    assert same.all(), [(*(arg[at] for arg in args), got[at], want[at]) for at in np.flatnonzero(~same)[:4]]


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_f64(name: str, plain: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = spread(random, f64, 2000)
    args = [x, random.permutation(x)] if name in BINARY else [x]
    got = functions(plain)(f"{name}_f64", *args)
    with np.errstate(all="ignore"):
        near = DOUBLE[name](*args)
    # mpmath says how far off an ordinary result is; where it knows no signs of zeros and no infinities NumPy does.
    ordinary = np.isfinite(near) & (near != 0) & np.isfinite(got)
    for arg in args:
        ordinary &= np.isfinite(arg) & (arg != 0)
    edge = np.isfinite(near) & ~ordinary
    np.testing.assert_allclose(got[edge], near[edge], rtol=4e-16, atol=0)
    with mp.workdps(60):
        off = [_exact_distance(name, g, row) for g, row in zip(got[ordinary], _rows(args, ordinary), strict=True)]
    worst = int(np.argmax(off))
    assert off[worst] <= math.ULP[name], (name, _rows(args, ordinary)[worst], got[ordinary][worst])
    same = np.where(np.isnan(near), np.isnan(got), np.signbit(got) == np.signbit(near))
    same &= np.isinf(got) == np.isinf(near)
    assert same.all(), [(*(arg[at] for arg in args), got[at], near[at]) for at in np.flatnonzero(~same)[:4]]


def _rows(args: list[Array], where: Array) -> list[tuple[float, ...]]:
    return list(zip(*(arg[where].tolist() for arg in args), strict=True))


def _exact_distance(name: str, got: float, args: tuple[float, ...]) -> float:
    if max(abs(arg) for arg in args) > 1e200:  # more digits of pi
        with mp.workdps(400):
            exact = EXACT[name](*map(mp.mpf, args))
    else:
        exact = EXACT[name](*map(mp.mpf, args))
    power = max(mp.frexp(exact)[1] - 1, -1022)
    return float(abs(mp.mpf(got) - exact) * mp.mpf(2) ** (52 - power))


# ---- exact ops ----

ROUNDING = ("ceil", "floor", "round_nearest_afz", "round_nearest_even", "sign", "abs", "negate", "square")
TWO = ("add", "subtract", "multiply", "divide", "remainder", "maximum", "minimum", "next_after")
TESTS = ("is_finite", "is_inf", "is_pos_inf", "is_neg_inf")
RELATIONS: dict[str, Callable[[Array, Array], Array]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}


@cache
def exact(plain: bool) -> Compiled:
    cases: dict[str, Case] = {}
    for of in (f32, f64):
        cases |= {f"{name}_{of}": of_op(name, [of]) for name in ROUNDING}
        cases |= {f"{name}_{of}": of_op(name, [of, of]) for name in TWO}
        cases |= {f"{name}_{of}": of_op(name, [of], i1) for name in TESTS}
        cases |= {f"{name}_{of}": of_op(name, [of, of], i1) for name in RELATIONS}
        cases |= {f"{name}_TOTALORDER_{of}": of_op(f"{name}_TOTALORDER", [of, of], i1) for name in RELATIONS}
        cases[f"clamp_{of}"] = of_op("clamp", [of, of, of])
        for bits in FORMATS:
            cases[f"reduce_{bits[0]}_{bits[1]}_{of}"] = (math.reduce_precision("x0", of, *bits), [of], of)
    return Compiled(cases, fast=False, plain=plain)


FORMATS = ((5, 10), (8, 7), (4, 3), (2, 0), (8, 3), (11, 52), (1, 1))


def same_floats(got: Array, want: Array) -> None:
    """Equal bit patterns, but for nan, where any will do."""
    differ = ~((np.isnan(got) & np.isnan(want)) | ((got == want) & (np.signbit(got) == np.signbit(want))))
    assert not differ.any(), [(at, got[at], want[at]) for at in np.flatnonzero(differ)[:4]]


@pytest.mark.parametrize("plain", [False, True], ids=["fused", "plain"])
@pytest.mark.parametrize("of", [f32, f64], ids=str)
def test_exact_ops_of_floats(of: DType, plain: bool, seed: int) -> None:
    random = np.random.default_rng(seed)
    x = spread(random, of, 200_000)
    halves = np.arange(-20, 20, 0.25).astype(of.numpy)
    grid = np.array(SPECIAL, of.numpy)
    x = np.concatenate([grid.repeat(grid.size), halves, x])
    y = np.concatenate([np.tile(grid, grid.size), x[grid.size**2 :][random.permutation(x.size - grid.size**2)]])
    y[grid.size**2 :: 3] = x[grid.size**2 :: 3]  # equal operands
    run = exact(plain)
    oracles: dict[str, Callable[..., Array]] = {
        "ceil": np.ceil,
        "floor": np.floor,
        "round_nearest_even": np.rint,
        "round_nearest_afz": lambda a: np.copysign(np.floor(np.abs(a)) + (np.abs(a) % 1 >= 0.5), a),
        "sign": lambda a: np.asarray(np.where(a == 0, a, np.sign(a))),
        "abs": np.abs,
        "negate": np.negative,
        "square": lambda a: a * a,
        "add": np.add,
        "subtract": np.subtract,
        "multiply": np.multiply,
        "divide": np.divide,
        "remainder": np.fmod,
        "maximum": lambda a, b: np.where((a == 0) & (b == 0), a + b, np.maximum(a, b)),
        "minimum": lambda a, b: np.where((a == 0) & (b == 0), -(-a - b), np.minimum(a, b)),
        "next_after": lambda a, b: np.asarray(np.where(a == b, b, np.nextafter(a, b))),
    }
    with np.errstate(all="ignore"):
        for name in ROUNDING:
            same_floats(run(f"{name}_{of}", x), oracles[name](x))
        for name in TWO:
            same_floats(run(f"{name}_{of}", x, y), oracles[name](x, y))
        for name, relation in RELATIONS.items():
            np.testing.assert_array_equal(run(f"{name}_{of}", x, y), relation(x, y), name)
        inside = oracles["minimum"](oracles["maximum"](x, np.full_like(x, -1)), np.abs(y))
        same_floats(run(f"clamp_{of}", np.full_like(x, -1), x, np.abs(y)), inside)
    np.testing.assert_array_equal(run(f"is_finite_{of}", x), np.isfinite(x))
    np.testing.assert_array_equal(run(f"is_inf_{of}", x), np.isinf(x))
    np.testing.assert_array_equal(run(f"is_pos_inf_{of}", x), x == np.inf)
    np.testing.assert_array_equal(run(f"is_neg_inf_{of}", x), x == -np.inf)


@pytest.mark.parametrize("of", [f32, f64], ids=str)
def test_total_order(of: DType) -> None:
    """-nan < -inf < -1 < -0 < +0 < 1 < inf < nan."""
    nan = np.array(np.nan, of.numpy)
    ordered = np.array([np.copysign(nan, -1), -np.inf, -1, -1e-40, -0.0, 0.0, 1e-40, 1, np.inf, nan], of.numpy)
    rank = np.arange(ordered.size)
    a, b = (grid.ravel() for grid in np.meshgrid(rank, rank))
    for name, relation in RELATIONS.items():
        got = exact(False)(f"{name}_TOTALORDER_{of}", ordered[a], ordered[b])
        np.testing.assert_array_equal(got, relation(a, b), name)


def test_reduce_precision(seed: int) -> None:
    """To f16's and bf16's own widths: NumPy's casts, but subnormal results are zeros."""
    x = spread(np.random.default_rng(seed), f32, 100_000)
    x = np.where(np.isnan(x), np.float32(np.nan), x)  # NumPy warns about signalling ones
    with np.errstate(all="ignore"):
        half = x.astype(np.float16).astype(np.float32)
    tiny = np.abs(half) < 2.0**-14
    got = exact(False)("reduce_5_10_f32", x)
    same_floats(got[~tiny], half[~tiny])
    assert (got[tiny & (np.abs(x) < 2.0**-15)] == 0).all()
    same_floats(exact(False)("reduce_11_52_f64", x.astype(np.float64)), x.astype(np.float64))
    few = np.array([1.0, 1.4, 1.5, 3.0, 2.9, 6.0, np.inf, -0.0, 0.4], np.float32)
    want = np.array([1.0, 1.0, 2.0, 2.0, 2.0, np.inf, np.inf, -0.0, 0.0], np.float32)  # ties to the even pattern
    same_floats(exact(False)("reduce_2_0_f32", few), want)


# ---- the package ----


# Ops that attributes choose have functions of their own. The remainder of complex numbers is left open.
ELSEWHERE = ("compare", "constant", "constant_like", "reduce_precision")


def test_every_op_of_the_table_is_known() -> None:
    """For every element type that an op's own inference allows there is C."""
    seen = 0
    for name, row in OPS.items():
        short = name.partition(".")[2]
        if not row.elementwise or short in ELSEWHERE or short.startswith("broadcast_"):
            continue
        for of in DTYPES.values():
            types = [of] * len(row.operands.split())
            if short == "select":
                types[0] = i1
            try:
                declared = [Shape.of(of, ())] if short == "convert" else None
                op = make(name, [Value(Shape.of(each, ())) for each in types], declared=declared, scope=Scope())
            except VerifyError:
                continue
            if (short, of.kind) == ("remainder", "complex"):
                continue
            seen += 1
            text = math.apply(short, ["x", "y", "z"][: len(types)], types, op.results[0].shape.element)
            assert text is not None, f"{name} of {of}"
    assert seen > 700


def test_a_prelude_holds_what_is_named_and_nothing_else() -> None:
    text = math.prelude("smelt_tanh_f32(x)")
    assert "smelt_exp_near_f32" in text
    assert "smelt_log_f32" not in text
    assert text.index("smelt_fma_f32(") < text.index("smelt_exp_split_f32(") < text.index("smelt_tanh_f32(")
    assert math.prelude("x + y") == math.TYPES + "\n"
