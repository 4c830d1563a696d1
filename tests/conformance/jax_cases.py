"""The table of the JAX sweep: functions over lax and jnp, each with arguments to draw and how near the results must be.

`cases()` gives all of them, `exports()` those with symbolic sizes; `jax_sweep.py` lowers, runs and compares them. JAX
is imported here and nowhere else, with 64-bit types on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax import random as jrandom
from jax.scipy import special as jspecial

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_disable_most_optimizations", True)  # the oracle: sooner compiled, and nearer to what was written

Array = Any
Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Array]


@dataclass(frozen=True)
class Tolerance:
    """An element may lie `ulp` representable values from JAX's, or `scaled` epsilons times the largest element."""

    ulp: int = 0
    scaled: float = 0


EXACT = Tolerance()
CLOSE = Tolerance(3)


@dataclass(frozen=True)
class Arg:
    """An argument to draw."""

    shape: tuple[int | str, ...]  # a name stands for a symbolic size
    dtype: np.dtype[Any]
    draw: Draw


@dataclass(frozen=True)
class Case:
    """One program: a function and its arguments. With `sizes` it is exported and runs once for each of them."""

    name: str
    function: Callable[..., Any]
    args: tuple[Arg, ...]
    tolerance: Tolerance = EXACT
    sizes: tuple[dict[str, int], ...] = ()
    constraints: tuple[str, ...] = ()
    platform: str = "cpu"  # whose lowering is taken; the result to compare with is always the CPU's


# ---- drawing ----

SPECIAL_FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 10.0, math.inf, -math.inf, math.nan)


def anything(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Ordinary values mixed with the ends of the type: infinities, NaN, both zeros, the largest, the smallest.

    No subnormals: JAX's arithmetic on the CPU flushes them to zero.
    """
    count = math.prod(shape)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    if kind(dtype) == "complex":
        part = np.dtype(np.float32 if dtype == np.complex64 else np.float64)
        return join(ordinary(random, shape, part), ordinary(random, shape, part)).astype(dtype)
    if kind(dtype) == "float":
        info = ml_dtypes.finfo(dtype)
        ends = [info.max, info.min, info.tiny, -float(info.tiny)]
        pool = np.array([*SPECIAL_FLOATS, *(float(end) for end in ends)])
        values = random.normal(0, 3, count)
    else:
        low, high = limits(dtype)
        pool = np.array([low, high, low + 1, high - 1, 0, 1, min(2, high), max(low, -1)], object)
        values = np.array([int(v) for v in random.integers(max(low, -100), min(high, 100), count)], object)
    chosen = random.random(count) < 0.4
    with np.errstate(all="ignore"):
        mixed = np.where(chosen, pool[random.integers(0, len(pool), count)], values)
        return mixed.astype(np.float64 if kind(dtype) == "float" else wide(dtype)).astype(dtype).reshape(shape)


def ordinary(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Values of moderate size."""
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(np.bool_)
    if kind(dtype) == "complex":
        return join(random.normal(0, 2, shape), random.normal(0, 2, shape)).astype(dtype)
    if kind(dtype) == "float":
        return random.normal(0, 2, shape).astype(dtype)
    low, high = limits(dtype)
    return random.integers(max(low, -9), min(high, 9), shape, endpoint=True).astype(dtype)


def between(low: float, high: float) -> Draw:
    """Uniform values in an interval; integers include both ends."""

    def draw(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        if kind(dtype) in ("int", "bool"):
            return random.integers(int(low), int(high), shape, endpoint=True).astype(dtype)
        if kind(dtype) == "complex":
            return join(random.uniform(low, high, shape), random.uniform(low, high, shape)).astype(dtype)
        return random.uniform(low, high, shape).astype(dtype)

    return draw


def few(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Small whole numbers with many repetitions, exactly summable in every type."""
    low = 0 if dtype == np.bool_ or kind(dtype) == "int" and limits(dtype)[0] == 0 else -3
    real = random.integers(low, 3, shape, endpoint=True)
    if dtype == np.bool_:
        return real > 1
    return (join(real, random.integers(low, 3, shape)) if kind(dtype) == "complex" else real).astype(dtype)


def distinct(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """No two equal elements."""
    return random.permutation(math.prod(shape)).reshape(shape).astype(dtype)


def given(*values: Any) -> Draw:
    """One of these arrays."""

    def draw(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
        return np.asarray(values[int(random.integers(len(values)))]).astype(dtype).reshape(shape)

    return draw


def join(real: Array, imaginary: Array) -> Array:
    return np.asarray(real) + 1j * np.asarray(imaginary)


def kind(dtype: np.dtype[Any]) -> str:
    """bool, int, float or complex, for NumPy's and ml_dtypes' types."""
    if dtype == np.bool_:
        return "bool"
    if dtype.kind == "c":
        return "complex"
    if dtype.kind in "iu" or dtype.name in ("int4", "uint4", "int2", "uint2"):
        return "int"
    return "float"


def limits(dtype: np.dtype[Any]) -> tuple[int, int]:
    info = ml_dtypes.iinfo(dtype)
    return int(info.min), int(info.max)


def wide(dtype: np.dtype[Any]) -> np.dtype[Any]:
    return np.dtype(np.uint64 if limits(dtype)[0] == 0 else np.int64)


# ---- element types ----


def types(names: str) -> list[np.dtype[Any]]:
    return [np.dtype(getattr(ml_dtypes, name) if hasattr(ml_dtypes, name) else name) for name in names.split()]


SIGNED, UNSIGNED = types("int8 int16 int32 int64"), types("uint8 uint16 uint32 uint64")
INTS = SIGNED + UNSIGNED
FLOATS = types("bfloat16 float16 float32 float64")
COMPLEXES = types("complex64 complex128")
BOOL, I32, I64, U32, F32, F64, C64 = types("bool int32 int64 uint32 float32 float64 complex64")
REALS = INTS + FLOATS
ALL = [BOOL, *REALS, *COMPLEXES]
SAMPLE = [BOOL, *types("int8 uint16 int32 uint64 bfloat16 float32 float64 complex64")]
NARROW = types(
    "int4 uint4 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz float8_e5m2fnuz float8_e3m4 float8_e4m3"
)


def one(
    name: str,
    function: Callable[..., Any],
    *args: tuple[Sequence[int | str], Any, Draw] | Arg,
    tolerance: Tolerance = EXACT,
    **rest: Any,
) -> Case:
    made = tuple(arg if isinstance(arg, Arg) else Arg(tuple(arg[0]), np.dtype(arg[1]), arg[2]) for arg in args)
    return Case(name, function, made, tolerance, **rest)


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
        ("log", lax.log, COMPLEXES, ordinary, Tolerance(4, 4)),
        ("log1p", lax.log1p, inexact, between(-0.4, 5), Tolerance(4, 8)),
        ("sin", lax.sin, inexact, between(-6, 6), Tolerance(4, 4)),
        ("cos", lax.cos, inexact, between(-6, 6), Tolerance(4, 4)),
        ("tan", lax.tan, inexact, between(-1, 1), Tolerance(4, 4)),
        ("tanh", lax.tanh, inexact, between(-3, 3), Tolerance(6, 4)),
        ("logistic", lax.logistic, inexact, between(-4, 4), Tolerance(6, 8)),
        ("asin", lax.asin, inexact, between(-1, 1), Tolerance(8, 4)),
        ("acos", lax.acos, inexact, between(-1, 1), Tolerance(8, 4)),
        ("atan", lax.atan, inexact, between(-4, 4), Tolerance(8, 4)),
        ("sinh", lax.sinh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("cosh", lax.cosh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("asinh", lax.asinh, inexact, between(-3, 3), Tolerance(8, 4)),
        ("acosh", lax.acosh, floats, between(1.1, 4), Tolerance(8, 4)),
        ("acosh", lax.acosh, COMPLEXES, between(-4, 4), Tolerance(8, 4)),
        ("atanh", lax.atanh, inexact, between(-0.9, 0.9), Tolerance(8, 8)),
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
    inexact = FLOATS + COMPLEXES
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
    for name, function in compares.items():
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


# ---- moving elements ----


def moves() -> Iterator[Case]:
    pads = [
        (((1, 2, 0), (0, 1, 0)), "edges"),
        (((-1, 1, 0), (2, -2, 0)), "negative"),
        (((0, 0, 2), (1, 0, 1)), "interior"),
        (((-2, -1, 1), (-3, 4, 2)), "both"),
        (((0, 0, 0), (-3, -1, 0)), "empty"),
    ]
    for (config, name), dtype in product(pads, SAMPLE):
        yield one(f"pad_{name}_{dtype}", partial(pad, config=config), ((3, 4), dtype, anything), ((), dtype, anything))
    for dtype in ALL:
        a = ((4, 5, 6), dtype, anything)
        yield one(f"slice_{dtype}", lambda x: lax.slice(x, (1, 0, 2), (4, 5, 6), (2, 1, 3)), a)
        yield one(f"reverse_{dtype}", lambda x: lax.rev(x, (0, 2)), a)
        yield one(f"transpose_{dtype}", lambda x: lax.transpose(x, (2, 0, 1)), a)
        yield one(f"reshape_{dtype}", lambda x: lax.reshape(x, (6, 20)), a)
        yield one(f"reshape_dims_{dtype}", lambda x: lax.reshape(x, (6, 20), (2, 0, 1)), a)
        yield one(f"concatenate_{dtype}", lambda x: lax.concatenate([x, x[:, 1:3], x[:, :0]], 1), a)
        yield one(f"broadcast_{dtype}", lambda x: lax.broadcast_in_dim(x[:, :1], (2, 4, 5, 6), (1, 2, 3)), a)
        yield one(f"squeeze_{dtype}", lambda x: lax.squeeze(x[:1, :, 2:3], (0, 2)), a)
        yield one(f"expand_{dtype}", lambda x: lax.expand_dims(x, (1, -1)), a)
        yield one(f"roll_{dtype}", lambda x: jnp.roll(x, (1, -2), (0, 2)), a)
        yield one(f"tile_{dtype}", lambda x: jnp.tile(x, (2, 1, 2)), a)
        yield one(f"tril_{dtype}", lambda x: jnp.tril(x, -1), a)
        yield one(f"repeat_{dtype}", lambda x: jnp.repeat(x, 3, axis=1), a)
        yield one(f"stack_{dtype}", lambda x: jnp.stack([x, x], 1), a)
        yield one(f"constant_{dtype}", partial(constant, dtype), ((), dtype, anything))
        yield one(f"splat_{dtype}", partial(lambda dtype, x: jnp.full((3, 2), 1, dtype) + x, dtype), ((), dtype, few))
        where = (((4, 5, 6), BOOL, anything), a, a)
        yield one(f"select_{dtype}", lax.select, *where)
        yield one(f"select_scalar_{dtype}", lax.select, ((), BOOL, anything), a, a)
        start = ((3,), I32, between(-3, 8))
        yield one(f"dynamic_slice_{dtype}", lambda x, s: lax.dynamic_slice(x, (s[0], s[1], s[2]), (2, 5, 3)), a, start)
        yield one(
            f"dynamic_update_slice_{dtype}",
            lambda x, u, s: lax.dynamic_update_slice(x, u, (s[0], s[1], s[2])),
            a,
            ((2, 5, 3), dtype, anything),
            start,
        )
    for index in (*SIGNED, *UNSIGNED):
        draw = anything
        yield one(
            f"dynamic_slice_by_{index}",
            lambda x, s: lax.dynamic_slice(x, (s,), (3,)),
            ((9,), F32, few),
            ((), index, draw),
        )
        yield one(
            f"dynamic_update_by_{index}",
            lambda x, s: lax.dynamic_update_slice(x, x[:3] + 1, (s,)),
            ((9,), F32, few),
            ((), index, draw),
        )
    for dtype in [*REALS, *COMPLEXES]:
        for axis in (0, 1):
            yield one(f"iota_{axis}_{dtype}", partial(lambda d, a: lax.broadcasted_iota(d, (4, 5), a), dtype, axis))
    for dtype in REALS:
        three = (((3, 4), dtype, anything),) * 3
        yield one(f"clamp_{dtype}", lax.clamp, ((3, 4), dtype, between(0, 3)), three[0], ((3, 4), dtype, between(4, 9)))
        yield one(f"clamp_scalar_{dtype}", lax.clamp, ((), dtype, between(0, 3)), three[0], ((), dtype, between(4, 9)))
        yield one(f"clip_{dtype}", lambda x: jnp.clip(x, 1, 5), three[0])
    for count, dtype in product((2, 3, 5), SAMPLE[:6]):
        which = ((3, 4), I32, between(0, count - 1))
        yield one(f"select_{count}_{dtype}", lax.select_n, which, *[((3, 4), dtype, anything)] * count)


def pad(x: Array, value: Array, config: Sequence[tuple[int, int, int]]) -> Array:
    return lax.pad(x, value, config)


def constant(dtype: np.dtype[Any], x: Array) -> Array:
    """A constant of many different elements, the ends of the type among them."""
    return jnp.asarray(anything(np.random.default_rng(7), (5, 30), dtype)) == x


# ---- folds ----


def folds() -> Iterator[Case]:
    a = (4, 5, 6)
    for dtype in ALL:
        x = (a, dtype, few)
        if dtype != BOOL:
            yield one(f"sum_{dtype}", lambda x: lax.reduce_sum_p.bind(x, axes=(0, 2), out_sharding=None), x)
            yield one(f"cumsum_{dtype}", lambda x: lax.cumsum(x, 1), x)
            yield one(f"cumsum_reverse_{dtype}", lambda x: lax.cumsum(x, 2, reverse=True), x)
            yield one(f"prod_{dtype}", lambda x: jnp.prod(x[:, :2, 0], 0, dtype=x.dtype), x)
            signless = CLOSE if dtype in COMPLEXES else EXACT
            yield one(f"cumprod_{dtype}", lambda x: lax.cumprod(x[:, :2], 0), x, tolerance=signless)
            yield one(f"window_sum_{dtype}", lambda x: window(x, 0, lax.add), x)
        if dtype not in COMPLEXES:
            y = (a, dtype, anything if dtype not in FLOATS else few)
            yield one(f"max_{dtype}", lambda x: jnp.max(x, (0, 1)), y)
            yield one(f"min_{dtype}", lambda x: jnp.min(x, 2), y)
            yield one(f"argmax_{dtype}", lambda x: lax.argmax(x, 1, np.int32), (a, dtype, anything))
            yield one(f"argmin_{dtype}", lambda x: lax.argmin(x, 2, np.int64), (a, dtype, anything))
            if dtype != BOOL:
                yield one(f"cummax_{dtype}", lambda x: lax.cummax(x, 1), y)
                yield one(f"cummin_{dtype}", lambda x: lax.cummin(x, 0, reverse=True), y)
                yield one(f"window_max_{dtype}", lambda x: lax.reduce_window_max_p.bind(x, **WINDOW), y)
                yield one(f"window_min_{dtype}", lambda x: lax.reduce_window_min_p.bind(x, **WINDOW), y)
    for dtype in (BOOL, *INTS):
        for name, function in (("and", lax.reduce_and), ("or", lax.reduce_or), ("xor", lax.reduce_xor)):
            yield one(f"reduce_{name}_{dtype}", partial(lambda f, x: f(x, (1,)), function), (a, dtype, anything))
    for dtype in FLOATS:
        close = Tolerance(32, 16)
        yield one(f"cumlogsumexp_{dtype}", lambda x: lax.cumlogsumexp(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"logsumexp_{dtype}", lambda x: jax.nn.logsumexp(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"softmax_{dtype}", lambda x: jax.nn.softmax(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"log_softmax_{dtype}", lambda x: jax.nn.log_softmax(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"mean_{dtype}", lambda x: jnp.mean(x, 1), (a, dtype, ordinary), tolerance=close)
        yield one(f"var_{dtype}", lambda x: jnp.var(x, (0, 1)), (a, dtype, ordinary), tolerance=close)
        yield one(f"norm_{dtype}", lambda x: jnp.linalg.norm(x, axis=1), (a, dtype, ordinary), tolerance=close)
        yield one(f"standardize_{dtype}", lambda x: jax.nn.standardize(x, 1), (a, dtype, ordinary), tolerance=close)
        pool = partial(lax.reduce_window, init_value=-np.inf, computation=lax.max)
        yield one(
            f"max_pool_gradient_{dtype}",
            jax.grad(
                lambda x: (pool(x, window_dimensions=(2, 3, 2), window_strides=(1, 2, 2), padding="SAME") * 2).sum()
            ),
            (a, dtype, distinct),
        )
        yield one(
            f"select_and_gather_add_{dtype}",
            lambda x: jax.jvp(
                partial(pool, window_dimensions=(1, 3, 2), window_strides=(1, 1, 2), padding="VALID"), (x,), (x + 1,)
            ),
            ((2, 5, 6), dtype if dtype != F64 else F32, distinct),
        )
    shapes = [
        ("same", {"padding": ((0, 1), (1, 1), (0, 0))}),
        ("strided", {"window_strides": (2, 1, 3)}),
        ("base_dilated", {"base_dilation": (2, 1, 3), "padding": ((1, 0), (0, 0), (2, 1))}),
        ("window_dilated", {"window_dilation": (1, 3, 2)}),
        ("negative_pad", {"padding": ((-1, 0), (0, -1), (1, 1))}),
        ("all", {"window_strides": (2, 1, 2), "base_dilation": (1, 2, 2), "window_dilation": (2, 1, 2)}),
    ]
    computations = {"add": (lax.add, 0), "max": (lax.max, -9), "min": (lax.min, 9), "mul": (lax.mul, 1)}
    for (name, rest), (which, (body, init)), dtype in product(shapes, computations.items(), (I32, F32)):
        yield one(f"window_{which}_{name}_{dtype}", partial(window, init=init, body=body, **rest), (a, dtype, few))
    yield one(
        "window_general",
        lambda x: lax.reduce_window(x, np.float32(1), lambda p, q: p * 2 + q, (1, 2, 3), (1, 1, 1), "VALID"),
        (a, F32, few),
    )
    yield one(
        "window_pairs",
        lambda x, y: lax.reduce_window(
            (x, y), (np.float32(-99), np.int32(0)), first_of_larger, (1, 2, 3), (1, 2, 1), "SAME"
        ),
        (a, F32, distinct),
        (a, I32, ordinary),
    )
    yield one(
        "reduce_pairs",
        lambda x, y: lax.reduce((x, y), (np.float32(-99), np.int32(0)), first_of_larger, (0, 2)),
        (a, F32, distinct),
        (a, I32, ordinary),
    )
    yield one("reduce_general", lambda x: lax.reduce(x, np.int32(3), lambda p, q: p * 3 + q, (1,)), (a, I32, ordinary))
    yield one("reduce_nothing", lambda x: lax.reduce(x[:, :0], np.int32(3), lax.add, (1,)), (a, I32, ordinary))
    yield one("associative_scan", lambda x: lax.associative_scan(jnp.add, x, axis=1), (a, I32, ordinary))
    yield one("ptp", lambda x: jnp.ptp(x, 1), (a, F32, ordinary))
    yield one("all_any", lambda x: (jnp.all(x > 0, 1), jnp.any(x > 2, (0, 2))), (a, F32, ordinary))
    yield one("count_nonzero", lambda x: jnp.count_nonzero(x, 1), (a, I32, few))
    yield one("nanmax", lambda x: (jnp.nanmax(x, 1), jnp.nanargmin(x, 1), jnp.nansum(x > 1)), (a, F32, anything))


WINDOW: dict[str, Any] = {
    "window_dimensions": (2, 1, 3),
    "window_strides": (1, 2, 2),
    "padding": ((1, 0), (0, 0), (0, 2)),
    "base_dilation": (1, 1, 1),
    "window_dilation": (1, 1, 1),
}


def window(
    x: Array,
    init: int,
    body: Callable[[Array, Array], Array],
    window_strides: tuple[int, ...] = (1, 1, 1),
    padding: Any = "VALID",
    base_dilation: tuple[int, ...] = (1, 1, 1),
    window_dilation: tuple[int, ...] = (1, 1, 1),
) -> Array:
    first = jnp.asarray(init, x.dtype)
    return lax.reduce_window(x, first, body, (2, 2, 2), window_strides, padding, base_dilation, window_dilation)


def first_of_larger(a: Sequence[Array], b: Sequence[Array]) -> tuple[Array, Array]:
    keep = a[0] >= b[0]
    return jnp.where(keep, a[0], b[0]), jnp.where(keep, a[1], b[1])


# ---- products ----


def products() -> Iterator[Case]:
    dims: dict[str, tuple[Any, tuple[int, ...], tuple[int, ...]]] = {
        "matrix": ((((1,), (0,)), ((), ())), (4, 3), (3, 5)),
        "transposed": ((((0,), (1,)), ((), ())), (3, 4), (5, 3)),
        "outer": ((((), ()), ((), ())), (2, 3), (4,)),
        "vectors": ((((0,), (0,)), ((), ())), (6,), (6,)),
        "batch": ((((2,), (1,)), ((0,), (0,))), (2, 4, 3), (2, 3, 5)),
        "batches": ((((1, 3), (3, 0)), ((0, 2), (1, 2))), (2, 3, 4, 5), (5, 2, 4, 3)),
        "batch_only": ((((), ()), ((0,), (0,))), (3,), (3,)),
        "empty": ((((1,), (0,)), ((), ())), (4, 0), (0, 5)),
    }
    for (name, (numbers, left, right)), dtype in product(dims.items(), ALL):
        yield one(
            f"dot_{name}_{dtype}",
            partial(lax.dot_general, dimension_numbers=numbers),
            (left, dtype, few),
            (right, dtype, few),
        )
    pairs = product(ALL, ALL)
    for left_type, right_type in pairs:
        if left_type != right_type:
            yield one(
                f"dot_{left_type}_{right_type}",
                partial(lax.dot_general, dimension_numbers=dims["matrix"][0]),
                ((4, 3), left_type, few),
                ((3, 5), right_type, few),
            )
    for dtype, wanted in [
        *product(types("int8 uint8 int16"), types("int32 int64 float32")),
        *product(types("bfloat16 float16"), types("float32 float64")),
        *product(NARROW[2:4], types("float32 bfloat16")),
        (C64, np.dtype(np.complex128)),
    ]:
        yield one(
            f"dot_{dtype}_to_{wanted}",
            partial(lax.dot_general, dimension_numbers=dims["matrix"][0], preferred_element_type=wanted),
            ((4, 3), dtype, few),
            ((3, 5), dtype, few),
        )
    for precision in ("default", "high", "highest", "BF16_BF16_F32", "F32_F32_F32"):
        yield one(
            f"dot_{precision}",
            partial(
                lax.dot_general,
                dimension_numbers=dims["matrix"][0],
                precision=precision.lower() if precision[0].islower() else lax.DotAlgorithmPreset[precision],
            ),
            ((4, 3), F32, few),
            ((3, 5), F32, few),
        )
    yield one("ragged_dot", lax.ragged_dot, ((7, 3), F32, few), ((4, 3, 5), F32, few), ((4,), I32, given([2, 0, 3, 2])))
    for equation, left, right in [
        ("ij,jk->ik", (2, 3), (3, 4)), ("ij,ij->", (2, 3), (2, 3)), ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)),
        ("ij,k->kij", (2, 3), (4,)), ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("ii,i->i", (3, 3), (3,)),
    ]:  # fmt: skip
        yield one(f"einsum_{equation}", partial(jnp.einsum, equation), (left, F32, few), (right, F32, few))
    yield from convolutions()


def convolutions() -> Iterator[Case]:
    def conv(name: str, left: tuple[int, ...], right: tuple[int, ...], dtype: Any = F32, **rest: Any) -> Case:
        options = {"window_strides": (1,) * (len(left) - 2), "padding": "VALID"} | rest
        function = partial(lax.conv_general_dilated, **options)
        return one(f"conv_{name}_{dtype}", function, (left, dtype, few), (right, dtype, few))

    for dtype in [*REALS, *COMPLEXES]:
        yield conv("plain", (2, 3, 9, 10), (4, 3, 3, 5), dtype)
    layouts = [
        "NCHW OIHW NCHW",
        "NHWC HWIO NHWC",
        "NHWC HWOI NCHW",
        "NCHW HWIO NHWC",
        "HWNC OHWI HNWC",
        "CHWN IHWO CHWN",
    ]
    for layout in layouts:
        left, right, out = layout.split()
        sizes, kernel = dict(zip("NCHW", (2, 3, 7, 8), strict=True)), dict(zip("OIHW", (4, 3, 3, 2), strict=True))
        yield conv(
            "layout_" + layout.replace(" ", "_"),
            tuple(sizes[c] for c in left),
            tuple(kernel[c] for c in right),
            dimension_numbers=(left, right, out),
        )
    a, b = (2, 4, 7, 8), (6, 4, 3, 2)
    yield conv("strides", a, b, window_strides=(2, 3))
    yield conv("same", a, b, padding="SAME")
    yield conv("same_lower_strided", a, b, padding="SAME_LOWER", window_strides=(2, 2))
    yield conv("padding", a, b, padding=((3, 1), (0, 2)))
    yield conv("negative_padding", a, b, padding=((-1, 1), (2, -2)))
    yield conv("left_dilation", a, b, lhs_dilation=(2, 3), padding=((1, 2), (0, 1)))
    yield conv("right_dilation", a, b, rhs_dilation=(2, 3))
    yield conv(
        "both_dilations",
        a,
        b,
        rhs_dilation=(1, 2),
        lhs_dilation=(3, 1),
        window_strides=(2, 1),
        padding=((2, 2), (1, -1)),
    )
    yield conv("feature_groups", a, (6, 2, 3, 2), feature_group_count=2)
    yield conv("depthwise", a, (8, 1, 3, 2), feature_group_count=4)
    yield conv("batch_groups", (6, 4, 7, 8), (6, 4, 3, 2), batch_group_count=3)
    yield conv("batch_groups_2", (4, 3, 5, 5), (4, 3, 2, 2), batch_group_count=2, padding="SAME")
    yield conv("groups_i32", a, (6, 2, 3, 2), I32, feature_group_count=2)
    yield conv("window_larger_than_input", (1, 1, 2, 2), (1, 1, 3, 3))
    yield conv("no_batch", (0, 3, 5, 5), (2, 3, 2, 2))
    yield conv("no_features", (2, 0, 5, 5), (2, 0, 2, 2))
    yield conv("0d", (3, 4), (5, 4))
    yield conv("1d", (2, 3, 9), (4, 3, 3), window_strides=(2,), padding=((1, 2),))
    yield conv("3d", (1, 2, 4, 5, 6), (3, 2, 2, 3, 2), padding="SAME")
    yield conv("1d_nwc", (2, 9, 3), (3, 3, 4), dimension_numbers=("NWC", "WIO", "NWC"), rhs_dilation=(2,))
    for dtype, wanted in (
        (np.int8, np.int32),
        (np.int8, np.float32),
        (ml_dtypes.bfloat16, np.float32),
        (np.float16, np.float64),
    ):
        yield conv(f"to_{np.dtype(wanted)}", a, b, np.dtype(dtype), preferred_element_type=wanted)
    loss = lambda x, w: lax.conv_general_dilated(x, w, (2, 1), "SAME", rhs_dilation=(1, 2)).sum()  # noqa: E731
    yield one("conv_gradients", jax.grad(loss, (0, 1)), (a, F32, few), (b, F32, few))
    yield one(
        "conv_gradients_grouped", jax.grad(partial(grouped_loss, 2), (0, 1)), (a, F32, few), ((6, 2, 3, 2), F32, few)
    )
    yield one(
        "conv_vmap", jax.vmap(lambda x, w: lax.conv(x, w, (1, 1), "VALID")), ((3, *a), F32, few), ((3, *b), F32, few)
    )
    yield one(
        "conv_transpose",
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"),
        ((1, 4, 4, 2), F32, few),
        ((3, 3, 2, 3), F32, few),
    )
    yield one("conv_patches", lambda x: lax.conv_general_dilated_patches(x, (2, 3), (1, 2), "VALID"), (a, F32, few))


def grouped_loss(groups: int, x: Array, w: Array) -> Array:
    return (lax.conv_general_dilated(x, w, (1, 2), ((1, 0), (0, 1)), feature_group_count=groups) * 2).sum()


# ---- indexing and order ----


def indexing() -> Iterator[Case]:
    index = between(-4, 6)
    modes = ("clip", "fill", "promise_in_bounds")
    for dtype, mode in product(SAMPLE, modes):
        draw = index if mode != "promise_in_bounds" else between(0, 3)
        yield one(f"take_{mode}_{dtype}", partial(take, mode), ((4, 5), dtype, anything), ((6,), I32, draw))
        yield one(f"gather_{mode}_{dtype}", partial(gather, mode), ((4, 5, 6), dtype, anything), ((3, 2), I64, draw))
    for dtype, mode, (name, function) in product(
        SAMPLE,
        ("clip", "drop"),
        {"set": "set", "add": "add", "mul": "multiply", "min": "min", "max": "max"}.items(),
    ):
        if dtype == BOOL and name != "set" or dtype == C64 and name in ("min", "max"):
            continue
        unique = name == "set"
        yield one(
            f"scatter_{name}_{mode}_{dtype}",
            partial(scatter, function, mode),
            ((4, 5, 6), dtype, few),
            ((3, 2), I32, given([[0, 3], [2, 7], [-1, 0]], [[9, 1], [3, 4], [1, 1]]) if unique else index),
            ((3, 6), dtype, few),
        )
    for kind_of_index in (*SIGNED, *UNSIGNED):
        yield one(
            f"take_by_{kind_of_index}", partial(take, "clip"), ((4, 5), F32, few), ((6,), kind_of_index, between(0, 9))
        )
    a = ((5, 6, 7), I32, anything)
    i = ((3, 2), I32, between(-5, 4))
    indexed: dict[str, Callable[..., Any]] = {
        "row": lambda x, i: x[i],
        "two": lambda x, i: x[i, i],
        "split": lambda x, i: x[i, :, i],
        "sliced": lambda x, i: x[1:4, i, ::2],
        "negative_step": lambda x, i: x[::-2, ..., i],
        "newaxis": lambda x, i: x[:, None, i, 0],
        "scalar": lambda x, i: x[i[0, 0], 2, i[1, 1]],
        "take_along": lambda x, i: jnp.take_along_axis(x, (x % 5), 1),
        "put_along": lambda x, i: x.at[i, :, 0].add(3),
        "at_slice": lambda x, i: x.at[1:3, ::2].set(5),
        "at_get_fill": lambda x, i: x.at[i * 3].get(mode="fill", fill_value=-7),
        "compress_where": lambda x, i: jnp.where(x > 3, x, -x),
        "nonzero": lambda x, i: jnp.nonzero(x[0] > 3, size=9, fill_value=-1),
        "searchsorted": lambda x, i: jnp.searchsorted(jnp.sort(x[0, 0]), i),
        "bincount": lambda x, i: jnp.bincount((x % 7).ravel(), length=7),
        "diagonal": lambda x, i: jnp.diagonal(x, 1, 0, 2),
        "unique": lambda x, i: jnp.unique(x % 5, size=9, fill_value=77, return_counts=True),
        "segment_sum": lambda x, i: jax.ops.segment_sum(x, jnp.array([0, 2, 2, 1, 9]), 4),
        "gradient_of_gather": lambda x, i: jax.grad(lambda y: (y[i] * 3).sum())(x.astype(np.float32) % 5),
        "batched": lambda x, i: jax.vmap(lambda r, j: r[j])(x, (x[:, 0, :3] % 6)),
        "batched_update": lambda x, i: jax.vmap(lambda r, j: r.at[j].add(2))(x, (x[:, 0, :3] % 6)),
        "batched_dynamic_slice": lambda x, i: jax.vmap(lambda r, s: lax.dynamic_slice(r, (s, s), (2, 3)))(
            x, x[:, 0, 0]
        ),
        "argsort": lambda x, i: jnp.argsort(x, axis=1),
        "lexsort": lambda x, i: jnp.lexsort((x[0, 0] % 3, x[0, 1] % 2)),
        "median": lambda x, i: jnp.median(x.astype(np.float32), axis=1),
        "partition": lambda x, i: jnp.sort(jnp.partition(x, 2, axis=0), axis=0),
    }
    for name, function in indexed.items():
        yield one(f"at_{name}", function, a, i)
    for dtype in ALL:
        for stable in (True, False):
            yield one(
                f"sort_{stable}_{dtype}",
                partial(lax.sort, dimension=1, is_stable=stable),
                ((4, 30), dtype, anything if dtype not in COMPLEXES else few),
            )
        if dtype not in COMPLEXES:
            yield one(f"sort_pair_{dtype}", sort_pair, ((30,), dtype, anything), ((30,), I32, ordinary))
        if dtype not in (BOOL, *COMPLEXES):
            yield one(f"top_k_{dtype}", lambda x: lax.top_k(x, 4), ((3, 20), dtype, anything))
    for keys in (1, 2, 3):
        yield one(
            f"sort_{keys}_keys",
            lambda x, y, z, keys=keys: lax.sort((x, y, z), num_keys=keys, dimension=0, is_stable=True),
            ((40, 2), I32, few),
            ((40, 2), F32, few),
            ((40, 2), np.dtype(np.uint8), few),
        )
    yield one("sort_empty", lambda x: lax.sort(x[:, :0], dimension=1), ((4, 3), F32, few))
    yield one(
        "percentile",
        lambda x: jnp.percentile(x, jnp.array([5.0, 50.0, 90.0]), axis=0),
        ((20, 3), F64, ordinary),
        tolerance=CLOSE,
    )


def take(mode: str, x: Array, i: Array) -> Array:
    return x.at[i].get(mode=mode)


def gather(mode: str, x: Array, i: Array) -> Array:
    numbers = lax.GatherDimensionNumbers(offset_dims=(1, 2), collapsed_slice_dims=(1,), start_index_map=(2, 0))
    return lax.gather(x, i, numbers, (3, 1, 2), mode=mode)


def scatter(function: str, mode: str, x: Array, i: Array, u: Array) -> Array:
    return getattr(x.at[i[:, 0], i[:, 1]], function)(u, mode=mode)


def sort_pair(x: Array, y: Array) -> Any:
    return lax.sort((x, y), num_keys=1, is_stable=True)


# ---- random numbers, transforms, linear algebra without LAPACK ----


def randoms() -> Iterator[Case]:
    key = ((2,), U32, anything)
    close = Tolerance(64, 16)
    rows: list[tuple[str, Callable[..., Any], Tolerance]] = [
        ("split", lambda k: jrandom.split(k, 3), EXACT),
        ("fold_in", lambda k: jrandom.fold_in(k, 7), EXACT),
        ("bits_8", lambda k: jrandom.bits(k, (5,), np.uint8), EXACT),
        ("bits_16", lambda k: jrandom.bits(k, (5,), np.uint16), EXACT),
        ("bits_32", lambda k: jrandom.bits(k, (3, 5), np.uint32), EXACT),
        ("bits_64", lambda k: jrandom.bits(k, (5,), np.uint64), EXACT),
        ("uniform_f32", lambda k: jrandom.uniform(k, (9,), np.float32), EXACT),
        ("uniform_f64", lambda k: jrandom.uniform(k, (9,), np.float64, -3, 5), Tolerance(2)),
        ("uniform_bf16", lambda k: jrandom.uniform(k, (9,), ml_dtypes.bfloat16), EXACT),
        ("randint_i32", lambda k: jrandom.randint(k, (9,), -5, 90, np.int32), EXACT),
        ("randint_u8", lambda k: jrandom.randint(k, (9,), 3, 200, np.uint8), EXACT),
        ("randint_i64", lambda k: jrandom.randint(k, (9,), -(1 << 60), 1 << 60, np.int64), EXACT),
        ("normal_f32", lambda k: jrandom.normal(k, (9,), np.float32), close),
        ("normal_f64", lambda k: jrandom.normal(k, (9,), np.float64), close),
        ("truncated_normal", lambda k: jrandom.truncated_normal(k, -1, 2, (9,), np.float32), close),
        ("bernoulli", lambda k: jrandom.bernoulli(k, 0.3, (9,)), EXACT),
        ("permutation", lambda k: jrandom.permutation(k, 9), EXACT),
        ("choice", lambda k: jrandom.choice(k, 20, (6,), replace=False), EXACT),
        ("categorical", lambda k: jrandom.categorical(k, jnp.log(jnp.arange(1.0, 6.0)), shape=(7,)), EXACT),
        ("exponential", lambda k: jrandom.exponential(k, (9,)), close),
        ("gumbel", lambda k: jrandom.gumbel(k, (9,)), close),
        ("laplace", lambda k: jrandom.laplace(k, (9,)), close),
        ("cauchy", lambda k: jrandom.cauchy(k, (9,)), Tolerance(1024, 64)),
        ("gamma", lambda k: jrandom.gamma(k, 2.5, (4,)), close),
        ("beta", lambda k: jrandom.beta(k, 2.5, 0.7, (3,)), close),
        ("poisson", lambda k: jrandom.poisson(k, 3.5, (5,)), EXACT),
        ("dirichlet", lambda k: jrandom.dirichlet(k, jnp.array([1.0, 2.0, 0.5])), close),
        ("rademacher", lambda k: jrandom.rademacher(k, (9,)), EXACT),
        ("maxwell", lambda k: jrandom.maxwell(k, (4,)), close),
        ("orthogonal_free", lambda k: jrandom.ball(k, 3, 2.0, (2,)), close),
    ]
    for name, function, tolerance in rows:
        yield one(name, function, key, tolerance=tolerance)
    for algorithm in ("three_fry", "philox", "default"):
        for dtype, shape in product(UNSIGNED, ((), (1,), (7,), (2, 3), (3, 5, 2))):
            chosen = getattr(lax.RandomAlgorithm, f"RNG_{algorithm.upper()}")
            yield one(
                f"rng_{algorithm}_{dtype}_{'x'.join(map(str, shape))}",
                partial(bits, chosen, shape, dtype),
                ((4,), U32, anything),
            )


def bits(algorithm: Any, shape: tuple[int, ...], dtype: Any, key: Array) -> Any:
    return lax.rng_bit_generator(key, shape, dtype=dtype, algorithm=algorithm)


def transforms() -> Iterator[Case]:
    near = Tolerance(3, 16)
    for length in (1, 4, 7, 12):
        for dtype in COMPLEXES:
            for name, function in (("fft", jnp.fft.fft), ("ifft", jnp.fft.ifft)):
                yield one(f"{name}_{length}_{dtype}", function, ((3, length), dtype, ordinary), tolerance=near)
        for dtype in (F32, F64):
            yield one(f"rfft_{length}_{dtype}", jnp.fft.rfft, ((3, length), dtype, ordinary), tolerance=near)
            yield one(
                f"irfft_{length}_{dtype}",
                partial(jnp.fft.irfft, n=length),
                ((3, length // 2 + 1), np.dtype(np.complex64 if dtype == F32 else np.complex128), ordinary),
                tolerance=near,
            )
    yield one("fft2", jnp.fft.fft2, ((2, 4, 6), C64, ordinary), tolerance=near)
    yield one("fftn", partial(jnp.fft.fftn, axes=(0, 1, 2)), ((3, 4, 5), C64, ordinary), tolerance=near)
    yield one("rfftn", partial(jnp.fft.rfftn, axes=(0, 1, 2)), ((3, 4, 5), F32, ordinary), tolerance=near)
    yield one("irfftn", partial(jnp.fft.irfftn, axes=(1, 2)), ((2, 4, 5), C64, ordinary), tolerance=near)
    yield one("fftshift", jnp.fft.fftshift, ((3, 4), F32, ordinary))
    broad: dict[str, tuple[Callable[..., Any], Tolerance]] = {
        "matrix_power": (lambda x: jnp.linalg.matrix_power(x, 3), Tolerance(8, 16)),
        "kron": (lambda x: jnp.kron(x, x[:2]), CLOSE),
        "cross": (lambda x: jnp.cross(x[:, :3], x[:, 1:]), Tolerance(8, 4)),
        "convolve": (lambda x: jnp.convolve(x[0], x[1], mode="same"), Tolerance(16, 8)),
        "interp": (lambda x: jnp.interp(x, jnp.arange(-3.0, 3.0), jnp.arange(6.0) ** 2), Tolerance(16, 16)),
        "polyval": (lambda x: jnp.polyval(jnp.array([1.0, -2, 3]), x), Tolerance(16, 8)),
        "cov": (lambda x: jnp.cov(x), Tolerance(16, 16)),
        "corrcoef": (lambda x: jnp.corrcoef(x), Tolerance(32, 32)),
        "trapezoid": (lambda x: jnp.trapezoid(x, axis=1), Tolerance(16, 8)),
        "gradient": (lambda x: jnp.gradient(x), CLOSE),
        "diff": (lambda x: jnp.diff(x, 2, axis=1), CLOSE),
        "histogram": (lambda x: jnp.histogram(x, bins=5, range=(-3, 3))[0], EXACT),
        "digitize": (lambda x: jnp.digitize(x, jnp.array([-1.0, 0.5, 2.0])), EXACT),
        "vander": (lambda x: jnp.vander(x[0], 4), Tolerance(8, 4)),
        "meshgrid": (lambda x: jnp.meshgrid(x[0], x[:, 0]), EXACT),
        "one_hot": (lambda x: jax.nn.one_hot(x.astype(np.int32), 3), EXACT),
        "pad_reflect": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode="reflect"), EXACT),
        "pad_wrap": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode="wrap"), EXACT),
        "pad_edge": (lambda x: jnp.pad(x, ((1, 2), (0, 3)), mode="edge"), EXACT),
        "resize": (lambda x: jax.image.resize(x, (7, 6), "bilinear"), Tolerance(16, 16)),
        "resize_cubic": (lambda x: jax.image.resize(x, (3, 9), "bicubic"), Tolerance(32, 32)),
        "solve_triangular_loop": (
            lambda x: forward_substitution(x @ x.T + 9 * jnp.eye(4, dtype=x.dtype), x),
            Tolerance(64, 64),
        ),
        "cholesky_loop": (lambda x: cholesky_loop(x @ x.T + 9 * jnp.eye(4, dtype=x.dtype)), Tolerance(64, 64)),
        "power_iteration": (lambda x: power_iteration(x @ x.T), Tolerance(1024, 1024)),
        "expm_series": (lambda x: series(x @ x.T / 30), Tolerance(64, 64)),
        "gradient_of_norm": (jax.grad(lambda x: jnp.sqrt((x * x).sum())), Tolerance(16, 8)),
        "hessian": (jax.hessian(lambda x: (jnp.tanh(x[0]) * x[1]).sum()), Tolerance(64, 16)),
        "jacobian": (jax.jacrev(lambda x: jnp.sin(x).sum(1) ** 2), Tolerance(64, 16)),
        "checkpoint": (jax.grad(lambda x: jax.checkpoint(lambda y: jnp.sin(jnp.sin(y)))(x).sum()), Tolerance(16, 8)),
        "custom_jvp": (lambda x: jax.jvp(jax.nn.relu, (x,), (x,)), EXACT),
        "stop_gradient": (jax.grad(lambda x: (lax.stop_gradient(x) * x).sum()), EXACT),
        "optimization_barrier": (lambda x: lax.optimization_barrier((x, x + 1)), EXACT),
        "nested_jit": (lambda x: jax.jit(lambda y: y * 2)(x) + jax.jit(lambda y: y * 2)(x + 1), EXACT),
        "many_results": (lambda x: {"a": x, "b": (x[0], x.sum() > 0), "c": []}, EXACT),
        "unused": (lambda x: jnp.zeros(3), EXACT),
    }
    for name, (function, tolerance) in broad.items():
        yield one(f"{name}", function, ((4, 4), F32, ordinary), tolerance=tolerance)


def solvers() -> Iterator[Case]:
    """Linear algebra as TPUs get it: on the CPU, JAX calls LAPACK instead of these ops."""
    near = Tolerance(256, 256)
    for dtype in (F32, F64, C64, np.dtype(np.complex128)):
        for shape in ((1, 1), (4, 4), (2, 3, 5, 5)):
            name = f"{dtype}_{'x'.join(map(str, shape))}"
            matrix = (shape, dtype, definite)
            yield one(f"cholesky_{name}", lax.linalg.cholesky, matrix, tolerance=near, platform="tpu")
        for left, lower, transpose, conjugate, unit in product((True, False), repeat=5):
            options = {
                "left_side": left,
                "lower": lower,
                "transpose_a": transpose,
                "conjugate_a": conjugate,
                "unit_diagonal": unit,
            }
            name = "_".join(key.split("_")[0] for key, chosen in options.items() if chosen)
            yield one(
                f"triangular_solve_{dtype}_{name}",
                partial(lax.linalg.triangular_solve, **options),
                ((2, 4, 4), dtype, definite),
                ((2, 4, 3) if left else (2, 3, 4), dtype, ordinary),
                tolerance=near,
                platform="tpu",
            )
    for name, function in {
        "solve_triangular": lambda a, b: jax.scipy.linalg.solve_triangular(a, b, lower=True),
        "cho_solve": lambda a, b: jax.scipy.linalg.cho_solve((jnp.linalg.cholesky(a), True), b),
        "cholesky_gradient": lambda a, b: jax.grad(lambda x: jnp.linalg.cholesky(x).sum())(a),
        "tridiagonal": lambda a, b: lax.linalg.tridiagonal_solve(a[0], a[1] + 9, a[2], b),
        "logdet": lambda a, b: jnp.log(jnp.diagonal(jnp.linalg.cholesky(a))).sum(),
        "multivariate": lambda a, b: b.T @ lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
    }.items():
        yield one(name, function, ((4, 4), F32, definite), ((4, 2), F32, ordinary), tolerance=near, platform="tpu")


def definite(random: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Well-conditioned positive definite matrices."""
    root = ordinary(random, shape, dtype)
    return (root @ np.swapaxes(root, -1, -2).conj() / 4 + 3 * np.eye(shape[-1])).astype(dtype)


def forward_substitution(a: Array, b: Array) -> Array:
    def step(i: Array, x: Array) -> Array:
        return x.at[i].set((b[i] - a[i] @ x) / a[i, i])

    return lax.fori_loop(0, 4, step, jnp.zeros_like(b))


def cholesky_loop(a: Array) -> Array:
    def column(factor: Array, j: Array) -> tuple[Array, None]:
        rest = a[:, j] - factor @ factor[j]
        made = jnp.where(jnp.arange(4) >= j, rest / jnp.sqrt(rest[j]), 0)
        return factor.at[:, j].set(made), None

    return lax.scan(column, jnp.zeros_like(a), jnp.arange(4))[0]


def power_iteration(a: Array) -> Array:
    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        v, count = state
        w = a @ v
        return w / jnp.sqrt((w * w).sum()), count + 1

    return lax.while_loop(lambda state: state[1] < 8, step, (jnp.ones(4, a.dtype), 0))


def series(a: Array) -> Array:
    def step(carry: tuple[Array, Array], n: Array) -> tuple[tuple[Array, Array], Array]:
        total, term = carry
        term = term @ a / n
        return (total + term, term), term.sum()

    one = jnp.eye(4, dtype=a.dtype)
    return lax.scan(step, (one, one), jnp.arange(1, 9).astype(a.dtype))


# ---- control flow and networks ----


def control() -> Iterator[Case]:
    x, i = ((4, 3), F32, few), ((), I32, between(-2, 6))
    functions: dict[str, Callable[..., Any]] = {
        "cond": lambda x, i: lax.cond(i > 2, lambda y: y * 2, lambda y: y - 1, x),
        "switch": lambda x, i: lax.switch(i, [lambda y: y, lambda y: y * 2, lambda y: y[::-1]], x),
        "nested": lambda x, i: lax.cond(
            i > 0, lambda y: lax.switch(i, [jnp.sin, jnp.abs, jnp.negative], y), jnp.abs, x
        ),
        "while": lambda x, i: lax.while_loop(lambda s: s[0] < 9, lambda s: (s[0] + 2, s[1] + s[0]), (i, x)),
        "while_never": lambda x, i: lax.while_loop(lambda s: s[0] > 99, lambda s: (s[0], s[1] + 1), (i, x)),
        "fori": lambda x, i: lax.fori_loop(0, i, lambda j, y: y + j, x),
        "fori_static": lambda x, i: lax.fori_loop(1, 5, lambda j, y: y * 2 + i, x),
        "scan": lambda x, i: lax.scan(lambda c, r: (c + r, c * 2), x[0], x),
        "scan_reverse": lambda x, i: lax.scan(lambda c, r: (c - r, c), x[0], x, reverse=True),
        "scan_unroll": lambda x, i: lax.scan(lambda c, r: (c - r, c), x[0], x, unroll=2),
        "scan_no_input": lambda x, i: lax.scan(lambda c, _: (c + 1, c.sum()), x, None, length=3),
        "map": lambda x, i: lax.map(lambda r: r @ x[0], x),
        "map_batched": lambda x, i: lax.map(lambda r: r @ x[0], x, batch_size=3),
        "while_vmap": lambda x, i: jax.vmap(lambda r: lax.while_loop(lambda s: s.sum() < 20, lambda s: s + 3, r))(x),
        "cond_vmap": lambda x, i: jax.vmap(lambda r: lax.cond(r[0] > 0, lambda y: y * 2, lambda y: -y, r))(x),
        "scan_gradient": lambda x, i: jax.grad(lambda z: lax.scan(lambda c, r: (c * r, c), z[0], z)[0].sum())(x),
        "while_in_scan": lambda x, i: lax.scan(
            lambda c, r: (lax.fori_loop(0, 3, lambda _, q: q + r, c), r[0]), x[0], x
        ),
        "closure": lambda x, i: lax.fori_loop(0, 3, lambda j, y: y + x[j % 4] * i, x[0]),
        "custom_vjp": lambda x, i: jax.grad(lambda z: jax.nn.relu6(z).sum())(x),
    }
    for name, function in functions.items():
        yield one(name, function, x, i, tolerance=Tolerance(3, 2) if name == "nested" else EXACT)


def layer_norm(x: Array, gain: Array, shift: Array) -> Array:
    mean = x.mean(-1, keepdims=True)
    return (x - mean) * lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-5) * gain + shift


def mlp(x: Array, up: Array, bias: Array, down: Array) -> Array:
    return jax.nn.softmax(jax.nn.gelu(x @ up + bias) @ down)


def attention(x: Array, qkv: Array, out: Array) -> Array:
    batch, length, width = x.shape
    q, k, v = (y.reshape(batch, length, 2, width // 2).transpose(0, 2, 1, 3) for y in jnp.split(x @ qkv, 3, -1))
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(width // 2)
    mask = jnp.tril(jnp.ones((length, length), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v).transpose(0, 2, 1, 3).reshape(batch, length, width) @ out


def block(x: Array, qkv: Array, out: Array, up: Array, down: Array, gain: Array) -> Array:
    x = x + attention(layer_norm(x, gain, gain * 0), qkv, out)
    return x + jax.nn.gelu(layer_norm(x, gain, gain * 0) @ up) @ down


def conv_net(x: Array, first: Array, second: Array, dense: Array) -> Array:
    y = jax.nn.relu(lax.conv_general_dilated(x, first, (1, 1), "SAME"))
    y = lax.reduce_window(y, -jnp.inf, lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    y = jax.nn.relu(lax.conv_general_dilated(y, second, (2, 2), "SAME", feature_group_count=2))
    y = y.mean((2, 3)) @ dense
    return jax.nn.log_softmax(y)


def lstm(x: Array, w: Array, u: Array, b: Array) -> Any:
    def step(carry: tuple[Array, Array], row: Array) -> tuple[tuple[Array, Array], Array]:
        h, c = carry
        i, f, g, o = jnp.split(row @ w + h @ u + b, 4, -1)
        c = jax.nn.sigmoid(f + 1) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
        h = jax.nn.sigmoid(o) * jnp.tanh(c)
        return (h, c), h

    zero = jnp.zeros((x.shape[1], u.shape[0]), x.dtype)
    return lax.scan(step, (zero, zero), x)


def gru_while(x: Array, w: Array, u: Array) -> Array:
    def step(state: tuple[Array, Array]) -> tuple[Array, Array]:
        t, h = state
        z, r, n = jnp.split(x[t] @ w, 3, -1)
        a, b, c = jnp.split(h @ u, 3, -1)
        gate = jax.nn.sigmoid(z + a)
        return t + 1, (1 - gate) * jnp.tanh(n + jax.nn.sigmoid(r + b) * c) + gate * h

    return lax.while_loop(lambda s: s[0] < x.shape[0], step, (0, jnp.zeros((x.shape[1], u.shape[0]), x.dtype)))[1]


def networks() -> Iterator[Case]:
    def f(*shape: int | str) -> tuple[tuple[int | str, ...], Any, Draw]:
        return shape, F32, between(-0.6, 0.6)

    near = Tolerance(16, 64)
    rows: dict[str, tuple[Callable[..., Any], list[Any]]] = {
        "mlp": (mlp, [f(3, 8), f(8, 16), f(16), f(16, 4)]),
        "attention": (attention, [f(2, 5, 8), f(8, 24), f(8, 8)]),
        "block": (block, [f(2, 5, 8), f(8, 24), f(8, 8), f(8, 16), f(16, 8), f(8)]),
        "conv_net": (conv_net, [f(2, 3, 8, 8), f(4, 3, 3, 3), f(6, 2, 3, 3), f(6, 5)]),
        "lstm": (lstm, [f(5, 2, 3), f(3, 16), f(4, 16), f(16)]),
        "gru_while": (gru_while, [f(5, 2, 3), f(3, 12), f(4, 12)]),
    }
    for name, (function, args) in rows.items():
        yield one(f"{name}", function, *args, tolerance=near)
        batched = [((3, *shape), dtype, draw) for shape, dtype, draw in args]
        yield one(f"{name}_vmap", jax.vmap(function), *batched, tolerance=near)
        yield one(
            f"{name}_vmap_shared",
            jax.vmap(function, (0, *[None] * (len(args) - 1))),
            batched[0],
            *args[1:],
            tolerance=near,
        )
        half = [(shape, np.dtype(ml_dtypes.bfloat16), draw) for shape, dtype, draw in args]
        if name != "conv_net":
            yield one(f"{name}_bf16", function, *half, tolerance=Tolerance(8, 16))
        if name != "gru_while":
            gradient = jax.value_and_grad(partial(scalar, function), tuple(range(len(args))))
            yield one(f"{name}_gradient", gradient, *args, tolerance=Tolerance(64, 256))
    yield one(
        "training_step",
        lambda x, y, *w: [p - 0.1 * g for p, g in zip(w, jax.grad(cross_entropy, 2)(x, y, w), strict=True)],
        f(3, 8),
        ((3,), I32, between(0, 3)),
        *rows["mlp"][1][1:],
        tolerance=Tolerance(64, 256),
    )
    yield one(
        "embedding", lambda i, e: layer_norm(e[i], e[0], e[1]), ((2, 5), I32, between(0, 9)), f(10, 8), tolerance=near
    )
    yield one("generate", generate, f(11, 6), f(6, 11), ((), I32, between(0, 10)))


def scalar(function: Callable[..., Any], *args: Array) -> Array:
    return sum((leaf.astype(np.float32) ** 2).mean() for leaf in jax.tree_util.tree_leaves(function(*args)))


def cross_entropy(x: Array, y: Array, weights: Sequence[Array]) -> Array:
    return -jnp.log(mlp(x, *weights))[jnp.arange(3), y].mean()


def generate(embed: Array, out: Array, first: Array) -> Array:
    """A greedy loop over a growing buffer, as a language model's decoding is."""

    def step(i: Array, tokens: Array) -> Array:
        seen = jnp.where(jnp.arange(8)[:, None] < i, embed[tokens], 0).sum(0)
        return tokens.at[i].set(jnp.argmax(seen @ out).astype(np.int32))

    return lax.fori_loop(1, 8, step, jnp.zeros(8, np.int32).at[0].set(first))


# ---- symbolic sizes ----


def exports() -> Iterator[Case]:
    """Programs whose sizes are symbols: lowered once, run at several sizes."""

    def f(*shape: int | str, dtype: Any = F32, draw: Draw = between(-0.6, 0.6)) -> Arg:
        return Arg(shape, np.dtype(dtype), draw)

    near = Tolerance(16, 64)
    b = ({"b": 1}, {"b": 3}, {"b": 8})
    bs = ({"b": 1, "s": 4}, {"b": 3, "s": 2}, {"b": 2, "s": 7})
    whole = partial(f, dtype=I32, draw=few)
    rows: list[tuple[str, Callable[..., Any], list[Arg], tuple[dict[str, int], ...], tuple[str, ...]]] = [
        ("add", lambda x, y: x + y, [f("b", 4), f("b", 4)], b, ()),
        ("broadcast", lambda x, y: x + y, [f("b", 4), f(4)], b, ()),
        ("broadcast_one", lambda x: jnp.broadcast_to(x[:, :1], x.shape), [f("b", 4)], b, ()),
        ("sum", lambda x: x.sum(0), [whole("b", 4)], b, ()),
        ("mean", lambda x: x.mean(), [f("b", 4)], b, ()),
        ("flatten", lambda x: x.reshape(-1), [f("b", 4)], b, ()),
        ("flatten_batch", lambda x: x.reshape(x.shape[0], -1), [f("b", 3, 4)], b, ()),
        ("merge", lambda x: x.reshape(x.shape[0] * x.shape[1], 3), [f("b", "s", 3)], bs, ()),
        ("split", lambda x: x.reshape(-1, 2, 3), [f("2*b", 3)], b, ()),
        ("transpose", lambda x: x.T, [f("b", "s")], bs, ()),
        ("concatenate", lambda x, y: jnp.concatenate([x, y, x]), [f("b", 4), f("s", 4)], bs, ()),
        ("pad", lambda x: jnp.pad(x, ((1, 2), (0, 1))), [f("b", 4)], b, ()),
        ("slice_end", lambda x: x[1:], [f("b", 4)], ({"b": 2}, {"b": 5}), ("b >= 2",)),
        ("slice_last", lambda x: x[-1], [f("b", 4)], b, ()),
        ("slice_stride", lambda x: x[::2], [f("b", 4)], b, ()),
        ("reverse", lambda x: x[::-1], [f("b", 4)], b, ()),
        ("dot", lambda x, y: x @ y, [whole("b", "s"), whole("s", 5)], bs, ()),
        ("gram", lambda x: x @ x.T, [whole("b", 3)], b, ()),
        ("batched_dot", lambda x, y: jnp.einsum("bij,bjk->bik", x, y), [whole("b", 2, "s"), whole("b", "s", 3)], bs, ()),
        ("iota", lambda x: jnp.arange(x.shape[0]), [f("b", 4)], b, ()),
        ("iota_2d", lambda x: lax.broadcasted_iota(np.int32, x.shape, 1), [f("b", "s")], bs, ()),
        ("tril", lambda x: jnp.tril(x), [f("b", "b")], b, ()),
        ("size_as_value", lambda x: x * x.shape[0], [f("b", 4)], b, ()),
        ("size_arithmetic", lambda x: jnp.zeros((x.shape[0] * 2 + 1,)) + x.shape[1], [f("b", "s")], bs, ()),
        ("floordiv", lambda x: jnp.zeros((x.shape[0] // 2 + 1, x.shape[0] % 3)), [f("b", 4)], b, ()),
        ("max_size", lambda x, y: jnp.zeros(jax.core.max_dim(x.shape[0], y.shape[0])), [f("b"), f("s")], bs, ()),
        ("ones_like", lambda x: jnp.ones_like(x) + jnp.eye(x.shape[0]), [f("b", "b")], b, ()),
        ("tile", lambda x: jnp.tile(x, (2, 1)), [f("b", 4)], b, ()),
        ("repeat", lambda x: jnp.repeat(x, 3, axis=0), [f("b", 4)], b, ()),
        ("stack", lambda x: jnp.stack([x, x], 1), [f("b", 4)], b, ()),
        ("gather", lambda x, i: x[i], [f("b", 4), f("s", dtype=I32, draw=between(-3, 9))], bs, ()),
        ("gather_rows", lambda x, i: x[jnp.arange(x.shape[0]), i], [f("b", 4), f("b", dtype=I32, draw=between(0, 3))], b, ()),
        ("scatter", lambda x, i: x.at[i].add(1), [whole("b", 4), f("s", dtype=I32, draw=between(-3, 9))], bs, ()),
        ("take_along", lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), [f("b", "s")], bs, ()),
        ("dynamic_slice", lambda x, i: lax.dynamic_slice(x, (i, i), (1, 2)), [f("b", 4), f(dtype=I32, draw=between(-2, 9))], b, ()),
        ("dynamic_update", lambda x, i: x.at[i].set(7.0), [f("b", 4), f(dtype=I32, draw=between(0, 9))], b, ()),
        ("sort", lambda x: jnp.sort(x, 0), [f("b", 4)], b, ()),
        ("argmax", lambda x: jnp.argmax(x, 0), [whole("b", 4)], b, ()),
        ("top_k", lambda x: lax.top_k(x, 2), [f("b", 6)], b, ()),
        ("top_k_symbolic", lambda x: lax.top_k(x, x.shape[1] // 2 + 1), [f("b", "s")], bs, ()),
        ("random_bits", lambda k, x: bits(lax.RandomAlgorithm.RNG_THREE_FRY, (x.shape[0], 3), np.dtype(np.uint32), k), [Arg((4,), U32, anything), f("b")], b, ()),
        ("cumsum", lambda x: jnp.cumsum(x, 0), [whole("b", 4)], b, ()),
        ("cummax", lambda x: lax.cummax(x, 1), [whole("b", "s")], bs, ()),
        ("window", lambda x: lax.reduce_window(x, 0, lax.add, (2, 2), (1, 2), "SAME"), [whole("b", 4)], b, ()),
        ("conv", lambda x, w: lax.conv(x, w, (1, 1), "SAME"), [f("b", 3, 8, 8), f(4, 3, 3, 3)], b, ()),
        ("conv_any_size", lambda x, w: lax.conv(x, w, (1, 1), "VALID"), [f("b", 3, "s", "s"), f(4, 3, 3, 3)], ({"b": 1, "s": 5}, {"b": 2, "s": 9}), ("s >= 3",)),
        ("conv_same_any_size", lambda x, w: lax.conv(x, w, (2, 2), "SAME"), [f("b", 3, "s", "s"), f(4, 3, 3, 3)], ({"b": 1, "s": 5}, {"b": 2, "s": 8}), ("s >= 3",)),
        ("pool_any_size", lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"), [f("b", "s")], ({"b": 3, "s": 4}, {"b": 4, "s": 9}), ("b >= 2", "s >= 2")),
        ("while", lambda x: lax.fori_loop(0, x.shape[0], lambda i, y: y + x[i], jnp.zeros(4)), [f("b", 4)], b, ()),
        ("scan", lambda x: lax.scan(lambda c, r: (c + r, c), jnp.zeros(4), x), [f("b", 4)], b, ()),
        ("map", lambda x: lax.map(lambda r: r * 2, x), [f("b", 4)], b, ()),
        ("cond", lambda x: lax.cond(x.sum() > 0, lambda y: y * 2, lambda y: -y, x), [f("b", 4)], b, ()),
        ("vmap", jax.vmap(lambda r: r @ r), [whole("b", 4)], b, ()),
        ("softmax", jax.nn.softmax, [f("b", "s")], bs, ()),
        ("one_hot", lambda i: jax.nn.one_hot(i, 5), [f("b", "s", dtype=I32, draw=between(0, 4))], bs, ()),
        ("where", lambda x: jnp.where(x > 0, x, 0), [f("b", 4)], b, ()),
        ("uniform", lambda k, x: jrandom.uniform(k, x.shape, np.float32), [Arg((2,), U32, anything), f("b", 4)], b, ()),
        ("nonzero", lambda x: jnp.nonzero(x > 0, size=3), [whole("b")], ({"b": 4}, {"b": 6}), ()),
        ("outer", lambda x, y: x[:, None] * y[None], [f("b"), f("s")], bs, ()),
        ("difference", lambda x: x[1:] - x[:-1], [f("b", 4)], ({"b": 2}, {"b": 5}), ("b >= 2",)),
        ("shape_assertion", lambda x, y: x + y[: x.shape[0]], [f("b", 4), f("b + 2", 4)], b, ()),
        ("mlp", mlp, [f("b", 8), f(8, 16), f(16), f(16, 4)], b, ()),
        ("mlp_width", mlp, [f("b", "d"), f("d", 16), f(16), f(16, 4)], ({"b": 2, "d": 3}, {"b": 1, "d": 8}), ()),
        ("attention", attention, [f("b", "s", 8), f(8, 24), f(8, 8)], bs, ()),
        ("block", block, [f("b", "s", 8), f(8, 24), f(8, 8), f(8, 16), f(16, 8), f(8)], bs, ()),
        ("conv_net", conv_net, [f("b", 3, 8, 8), f(4, 3, 3, 3), f(6, 2, 3, 3), f(6, 5)], b, ()),
        ("lstm", lstm, [f("s", "b", 3), f(3, 16), f(4, 16), f(16)], bs, ()),
        ("gru_while", gru_while, [f("s", "b", 3), f(3, 12), f(4, 12)], bs, ()),
        ("mlp_gradient", jax.grad(lambda w, x, u, v: mlp(x, w, u, v)[:, 0].sum()), [f(8, 16), f("b", 8), f(16), f(16, 4)], b, ()),
        ("block_gradient", jax.grad(lambda *w: block(*w).sum()), [f("b", "s", 8), f(8, 24), f(8, 8), f(8, 16), f(16, 8), f(8)], bs, ()),
    ]  # fmt: skip
    for name, function, args, sizes, constraints in rows:
        yield Case(name, function, tuple(args), near, sizes, constraints)


GROUPS: tuple[Callable[[], Iterator[Case]], ...] = (
    unary, binary, converts, moves, folds, products, indexing, randoms, transforms, solvers, control, networks, exports,
)  # fmt: skip


def cases() -> list[Case]:
    """The whole table; names are unique."""
    found: dict[str, Case] = {}
    for group in GROUPS:
        for case in group():
            name = f"{group.__name__}/{case.name}"
            assert name not in found, name
            found[name] = replace(case, name=name)
    return list(found.values())
