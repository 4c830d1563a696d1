"""Random numbers, Fourier transforms, the breadth of jnp, and linear algebra."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax import random as jrandom

from tests.conformance.jax_cases.case import (
    C64,
    CLOSE,
    COMPLEXES,
    EXACT,
    F32,
    F64,
    U32,
    UNSIGNED,
    Array,
    Case,
    Tolerance,
    anything,
    one,
    ordinary,
)

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
