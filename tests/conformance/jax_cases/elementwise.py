"""One element in, one element out: unary and binary functions, comparisons, conversions of every pair of types."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax.scipy import special as jspecial

from tests.conformance.jax_cases.case import (
    ALL,
    BOOL,
    CLOSE,
    COMPLEXES,
    EXACT,
    F32,
    F64,
    FLOATS,
    I32,
    I64,
    INTS,
    NARROW,
    REALS,
    SIGNED,
    Array,
    Case,
    Draw,
    Tolerance,
    anything,
    between,
    few,
    kind,
    limits,
    one,
    ordinary,
    types,
)

# ---- elementwise ----


def unary() -> Iterator[Case]:
    floats, inexact = FLOATS, FLOATS + COMPLEXES
    rows: list[tuple[str, Callable[..., Any], Sequence[np.dtype[Any]], Draw, Tolerance]] = [
        ("neg", lax.neg, [*REALS, *COMPLEXES], anything, EXACT),
        ("abs", lax.abs, [*SIGNED, *FLOATS], anything, EXACT),
        ("abs", lax.abs, COMPLEXES, ordinary, CLOSE),
        ("sign", lax.sign, REALS, anything, EXACT),
        ("sign", lax.sign, COMPLEXES, ordinary, CLOSE),
        ("floor", lax.floor, floats, anything, EXACT),
        ("ceil", lax.ceil, floats, anything, EXACT),
        ("round_away", partial(lax.round, rounding_method=lax.RoundingMethod.AWAY_FROM_ZERO), floats, anything, EXACT),
        ("round_even", partial(lax.round, rounding_method=lax.RoundingMethod.TO_NEAREST_EVEN), floats, anything, EXACT),
        ("is_finite", lax.is_finite, floats, anything, EXACT),
        ("not", lax.bitwise_not, [BOOL, *INTS], anything, EXACT),
        ("population_count", lax.population_count, INTS, anything, EXACT),
        ("clz", lax.clz, INTS, anything, EXACT),
        ("sqrt", lax.sqrt, floats, anything, CLOSE),
        ("sqrt", lax.sqrt, COMPLEXES, ordinary, Tolerance(8, 4)),
        ("rsqrt", lax.rsqrt, floats, anything, Tolerance(3)),
        ("cbrt", lax.cbrt, floats, anything, CLOSE),
        ("exp", lax.exp, inexact, between(-5, 5), Tolerance(4, 4)),
        ("exp2", lax.exp2, floats, between(-5, 5), Tolerance(6)),
        ("expm1", lax.expm1, inexact, between(-3, 3), Tolerance(4, 8)),
        ("log", lax.log, floats, anything, Tolerance(4)),
        ("log", lax.log, COMPLEXES, ordinary, Tolerance(4, 64)),
        ("log1p", lax.log1p, inexact, between(-0.4, 5), Tolerance(4, 8)),
        ("sin", lax.sin, inexact, between(-6, 6), Tolerance(4, 4)),
        ("cos", lax.cos, inexact, between(-6, 6), Tolerance(4, 4)),
        ("tan", lax.tan, inexact, between(-1, 1), Tolerance(4, 4)),
        ("tanh", lax.tanh, inexact, between(-3, 3), Tolerance(6, 4)),
        ("logistic", lax.logistic, inexact, between(-2, 2), Tolerance(6, 8)),
        ("asin", lax.asin, inexact, between(-1, 1), Tolerance(8, 4)),
        ("acos", lax.acos, inexact, between(-1, 1), Tolerance(8, 4)),
        ("atan", lax.atan, inexact, between(-4, 4), Tolerance(8, 4)),
        ("sinh", lax.sinh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("cosh", lax.cosh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("asinh", lax.asinh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("acosh", lax.acosh, floats, between(1.1, 4), Tolerance(8, 4)),
        ("acosh", lax.acosh, COMPLEXES, between(-4, 4), Tolerance(8, 4)),
        ("atanh", lax.atanh, inexact, between(-0.9, 0.9), Tolerance(8, 64)),
        ("erf", lax.erf, floats, between(-4, 4), Tolerance(6, 4)),
        ("erfc", lax.erfc, floats, between(-4, 4), Tolerance(64, 4)),
        ("erf_inv", lax.erf_inv, floats, between(-0.99, 0.99), Tolerance(32, 8)),
        ("lgamma", lax.lgamma, floats, between(0.1, 20), Tolerance(32, 4)),
        ("digamma", lax.digamma, floats, between(0.1, 20), Tolerance(32, 8)),
        ("bessel_i0e", lax.bessel_i0e, floats, between(-10, 10), Tolerance(16)),
        ("bessel_i1e", lax.bessel_i1e, floats, between(-10, 10), Tolerance(16, 2)),
        ("real", lax.real, COMPLEXES, anything, EXACT),
        ("imag", lax.imag, COMPLEXES, anything, EXACT),
        ("conj", lax.conj, COMPLEXES, anything, EXACT),
        ("integer_pow_0", partial(lax.integer_pow, y=0), [*REALS, *COMPLEXES], ordinary, EXACT),
        ("integer_pow_3", partial(lax.integer_pow, y=3), [*INTS, *FLOATS], ordinary, CLOSE),
        ("integer_pow_7", partial(lax.integer_pow, y=7), [*INTS, *FLOATS], ordinary, Tolerance(6)),
        ("integer_pow_-2", partial(lax.integer_pow, y=-2), inexact, between(0.5, 2), Tolerance(6, 4)),
        ("square", lax.square, [*REALS, *COMPLEXES], ordinary, Tolerance(2, 2)),
        ("reciprocal", jnp.reciprocal, inexact, between(0.5, 2), Tolerance(2, 2)),
        ("signbit", jnp.signbit, floats, anything, EXACT),
        ("frexp", jnp.frexp, FLOATS[2:], ordinary, EXACT),
        ("nan_to_num", jnp.nan_to_num, floats, anything, EXACT),
        ("trunc", jnp.trunc, floats, anything, EXACT),
        ("rint", jnp.rint, floats, anything, EXACT),
        ("isnan", jnp.isnan, inexact, anything, EXACT),
        ("isposinf", jnp.isposinf, floats, anything, EXACT),
        ("angle", jnp.angle, COMPLEXES, ordinary, CLOSE),
        ("sinc", jnp.sinc, FLOATS[2:], between(-3, 3), Tolerance(8, 8)),
        ("logaddexp_self", lambda x: jnp.logaddexp(x, 0), FLOATS[2:], ordinary, Tolerance(16, 4)),
        ("gammaln", jspecial.gammaln, FLOATS[2:], between(0.1, 20), Tolerance(32, 4)),
        ("ndtri", jspecial.ndtri, FLOATS[2:], between(0.01, 0.99), Tolerance(64, 16)),
        ("ndtr", jspecial.ndtr, FLOATS[2:], between(-4, 4), Tolerance(64, 4)),
        ("log_ndtr", jspecial.log_ndtr, FLOATS[2:], between(-8, 4), Tolerance(64, 8)),
        ("expi", jspecial.expi, FLOATS[2:], between(0.5, 8), Tolerance(64, 16)),
        ("entr", jspecial.entr, FLOATS[2:], between(-1, 3), Tolerance(8, 4)),
        ("i0", jspecial.i0, FLOATS[2:], between(-5, 5), Tolerance(32)),
        ("spence", jspecial.spence, FLOATS[2:], between(0.1, 8), Tolerance(256, 64)),
        ("logit", jspecial.logit, FLOATS[2:], between(0.05, 0.95), Tolerance(16, 16)),
        ("relu", jax.nn.relu, floats, anything, EXACT),
        ("gelu", jax.nn.gelu, FLOATS, ordinary, Tolerance(16, 8)),
        ("gelu_erf", partial(jax.nn.gelu, approximate=False), FLOATS[2:], ordinary, Tolerance(16, 8)),
        ("softplus", jax.nn.softplus, FLOATS, ordinary, Tolerance(16, 8)),
        ("silu", jax.nn.silu, FLOATS, ordinary, Tolerance(16, 8)),
        ("elu", jax.nn.elu, FLOATS, ordinary, Tolerance(16, 8)),
        ("mish", jax.nn.mish, FLOATS[2:], ordinary, Tolerance(16, 8)),
        ("log_sigmoid", jax.nn.log_sigmoid, FLOATS[2:], ordinary, Tolerance(16, 8)),
        ("hard_swish", jax.nn.hard_swish, FLOATS, ordinary, Tolerance(8, 4)),
    ]
    for name, function, dtypes, draw, tolerance in rows:
        for dtype in dtypes:
            yield one(f"{name}_{dtype}", function, ((4, 33), dtype, draw), tolerance=tolerance)
    for dtype in FLOATS:
        for exponent, mantissa in ((8, 23), (5, 10), (8, 7), (4, 3), (5, 2), (11, 52), (2, 1)):
            yield one(
                f"reduce_precision_e{exponent}m{mantissa}_{dtype}",
                partial(lax.reduce_precision, exponent_bits=exponent, mantissa_bits=mantissa),
                ((7, 30), dtype, anything),
            )
    for dtype in NARROW[:2]:
        yield one(f"neg_{dtype}", lax.neg, ((64,), dtype, anything))
    for dtype in NARROW[2:]:
        yield one(f"exp_{dtype}", lax.exp, ((64,), dtype, ordinary), tolerance=Tolerance(1))
        yield one(f"floor_{dtype}", lax.floor, ((64,), dtype, ordinary))


def binary() -> Iterator[Case]:
    rows: list[tuple[str, Callable[..., Any], Sequence[np.dtype[Any]], Draw, Draw, Tolerance]] = [
        ("add", lax.add, [*REALS, *COMPLEXES], anything, anything, EXACT),
        ("sub", lax.sub, [*REALS, *COMPLEXES], anything, anything, EXACT),
        ("mul", lax.mul, REALS, anything, anything, EXACT),
        ("mul", lax.mul, COMPLEXES, ordinary, ordinary, Tolerance(3, 4)),
        ("div", lax.div, REALS, anything, anything, CLOSE),
        ("div", lax.div, COMPLEXES, ordinary, ordinary, Tolerance(6, 6)),
        ("rem", lax.rem, REALS, anything, anything, EXACT),
        ("max", lax.max, [BOOL, *REALS], anything, anything, EXACT),
        ("max", lax.max, COMPLEXES, few, few, EXACT),
        ("min", lax.min, [BOOL, *REALS], anything, anything, EXACT),
        ("min", lax.min, COMPLEXES, few, few, EXACT),
        ("and", lax.bitwise_and, [BOOL, *INTS], anything, anything, EXACT),
        ("or", lax.bitwise_or, [BOOL, *INTS], anything, anything, EXACT),
        ("xor", lax.bitwise_xor, [BOOL, *INTS], anything, anything, EXACT),
        ("shift_left", lax.shift_left, INTS, anything, between(0, 70), EXACT),
        ("shift_right_logical", lax.shift_right_logical, INTS, anything, between(0, 70), EXACT),
        ("shift_right_arithmetic", lax.shift_right_arithmetic, INTS, anything, between(0, 70), EXACT),
        ("pow", lax.pow, FLOATS, between(0.1, 4), between(-3, 3), Tolerance(8, 2)),
        ("pow_special", lax.pow, FLOATS, given_pow(0), given_pow(1), Tolerance(8, 2)),
        ("atan2", lax.atan2, FLOATS, anything, anything, Tolerance(8)),
        ("nextafter", lax.nextafter, FLOATS, anything, anything, EXACT),
        ("igamma", lax.igamma, FLOATS, between(0.2, 8), between(0.1, 10), Tolerance(256, 16)),
        ("igammac", lax.igammac, FLOATS, between(0.2, 8), between(0.1, 10), Tolerance(256, 16)),
        ("igamma_grad_a", lax.igamma_grad_a, FLOATS[2:], between(0.5, 4), between(0.5, 5), Tolerance(512, 64)),
        ("random_gamma_grad", lax.random_gamma_grad, FLOATS[2:], between(0.5, 4), between(0.5, 5), Tolerance(512, 64)),
        ("polygamma", lax.polygamma, FLOATS[2:], given_small_ints(), between(0.5, 5), Tolerance(512, 64)),
        ("zeta", lax.zeta, FLOATS[2:], between(1.5, 5), between(0.5, 5), Tolerance(64, 8)),
        ("floor_divide", jnp.floor_divide, REALS, anything, between(1, 9), EXACT),
        ("mod", jnp.mod, REALS, ordinary, between(1, 9), Tolerance(3, 2)),
        ("hypot", jnp.hypot, FLOATS[2:], ordinary, ordinary, Tolerance(4)),
        ("logaddexp", jnp.logaddexp, FLOATS[2:], ordinary, ordinary, Tolerance(16, 8)),
        ("copysign", jnp.copysign, FLOATS, anything, anything, EXACT),
        ("heaviside", jnp.heaviside, FLOATS, anything, anything, EXACT),
        ("ldexp", lambda x, n: jnp.ldexp(x, n.astype(np.int32)), FLOATS[2:], ordinary, between(-9, 9), EXACT),
        ("gcd", jnp.gcd, [I32, I64], between(-90, 90), between(-90, 90), EXACT),
        ("lcm", jnp.lcm, [I32, I64], between(-90, 90), between(-90, 90), EXACT),
        ("xlogy", jspecial.xlogy, FLOATS[2:], between(0, 3), between(0.2, 3), Tolerance(8, 8)),
        ("float_power", jnp.power, INTS, between(0, 4), between(0, 4), EXACT),
        ("mulhi", lambda x, y: (x * y) >> 3, INTS, anything, anything, EXACT),
    ]
    for name, function, dtypes, left, right, tolerance in rows:
        for dtype in dtypes:
            yield one(f"{name}_{dtype}", function, ((5, 31), dtype, left), ((5, 31), dtype, right), tolerance=tolerance)
    compares = {"eq": lax.eq, "ne": lax.ne, "lt": lax.lt, "le": lax.le, "gt": lax.gt, "ge": lax.ge}
    for (name, function), dtype in product(compares.items(), ALL):
        if dtype in COMPLEXES and name not in ("eq", "ne"):
            continue
        yield one(f"{name}_{dtype}", function, ((5, 31), dtype, anything), ((5, 31), dtype, anything))
    for name in compares:
        if name not in ("eq", "ne"):
            yield one(f"total_order_{name}", partial(total, name), ((90,), F32, anything), ((90,), F32, anything))
    for dtype in NARROW:
        for name, function in (("add", lax.add), ("mul", lax.mul), ("max", lax.max)):
            yield one(f"{name}_{dtype}", function, ((64,), dtype, ordinary), ((64,), dtype, ordinary))
    for dtype in (F32, F64):
        yield one(
            f"betainc_{dtype}",
            lax.betainc,
            ((40,), dtype, between(0.3, 5)),
            ((40,), dtype, between(0.3, 5)),
            ((40,), dtype, between(0.02, 0.98)),
            tolerance=Tolerance(512, 32),
        )
        yield one(f"complex_{dtype}", lax.complex, ((3, 4), dtype, anything), ((3, 4), dtype, anything))


def given_pow(which: int) -> Draw:
    values = (0.0, -0.0, 1.0, -1.0, 2.0, -2.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 3.0, -3.0)
    pairs = list(product(values, values))
    return lambda random, shape, dtype: np.resize([pair[which] for pair in pairs], shape).astype(dtype)


def given_small_ints() -> Draw:
    return lambda random, shape, dtype: random.integers(1, 4, shape).astype(dtype)


def total(name: str, x: Array, y: Array) -> Array:
    """jnp's sort order on floats, through the comparator that lowers to a TOTALORDER compare."""
    order = {"lt": lax.lt_to_p, "le": lax.le_to_p}
    if name in order:
        return order[name].bind(x, y)
    return {"gt": lax.lt_to_p, "ge": lax.le_to_p}[name].bind(y, x)


def converts() -> Iterator[Case]:
    for source, target in product(ALL, ALL):
        if source in COMPLEXES and target not in COMPLEXES:
            continue
        draw = anything if (kind(source), kind(target)) != ("float", "int") else between(-100, 100)
        if kind(source) == "float" and kind(target) == "int" and limits(target)[0] == 0:
            draw = between(0, 100)
        yield one(
            f"convert_{source}_{target}", partial(lax.convert_element_type, new_dtype=target), ((99,), source, draw)
        )
    for narrow, other in product(NARROW, [*types("int8 uint8 int32 bfloat16 float16 float32 float64"), BOOL]):
        function = partial(lax.convert_element_type, new_dtype=other)
        yield one(f"convert_{narrow}_{other}", function, ((99,), narrow, ordinary))
        back = partial(lax.convert_element_type, new_dtype=narrow)
        draw = between(0, 7) if kind(narrow) == "int" and kind(other) == "float" else anything
        yield one(f"convert_{other}_{narrow}", back, ((99,), other, draw))
    for source, target in product([*INTS, *FLOATS], repeat=2):
        size, new = source.itemsize, target.itemsize
        shape = (6, max(1, new // size)) if new > size else (6,)
        yield one(
            f"bitcast_{source}_{target}", partial(lax.bitcast_convert_type, new_dtype=target), (shape, source, raw)
        )


def raw(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Bits that are no NaN of a float of any width."""
    count = math.prod(shape) * dtype.itemsize
    return (random.integers(0, 120, count).astype(np.uint8) & 0x3F).view(dtype).reshape(shape)
