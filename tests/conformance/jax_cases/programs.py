"""Whole programs: control flow, and small networks with their gradients and batched forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import jax
import ml_dtypes
import numpy as np
from jax import lax
from jax import numpy as jnp

from tests.conformance.jax_cases.case import EXACT, F32, I32, Array, Case, Draw, Tolerance, between, few, one

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
