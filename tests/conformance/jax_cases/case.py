"""What a case of the JAX sweep is: a function, arguments to draw, and how near the results must be to JAX's.

The other files here are the table; they import this one. JAX computes its side inside `oracle()`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import ml_dtypes
import numpy as np

Array = Any
Draw = Callable[[np.random.Generator, tuple[int, ...], np.dtype[Any]], Array]


@contextmanager
def oracle() -> Iterator[None]:
    """JAX with 64-bit types, on the CPU, and without optimisations: sooner compiled, and nearer to what was written."""
    before = jax.config.jax_enable_x64  # type: ignore[attr-defined]  # made at run time
    jax.config.update("jax_enable_x64", True)
    jax.config.update("jax_disable_most_optimizations", True)
    try:
        with jax.default_device(jax.devices("cpu")[0]):
            yield
    finally:
        jax.config.update("jax_enable_x64", before)
        jax.config.update("jax_disable_most_optimizations", False)


@dataclass(frozen=True)
class Tolerance:
    """An element may lie `ulp` representable values from JAX's, or `scaled` epsilons times the largest element."""

    ulp: int = 0
    scaled: float = 0


EXACT = Tolerance()
CLOSE = Tolerance(3)
SUM = Tolerance(1)  # of whole numbers: exact, but JAX may leave out the zero that a sum starts from, and keep a -0.0


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
        ends = [float(end) for end in (info.max, info.min, info.tiny)]
        pool = np.array([*SPECIAL_FLOATS, *ends, -ends[-1]])
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
    low = 0 if dtype == np.bool_ or (kind(dtype) == "int" and limits(dtype)[0] == 0) else -3
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
