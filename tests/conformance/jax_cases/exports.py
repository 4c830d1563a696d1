"""Programs whose sizes are symbols: exported once, run at several sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp
from jax import random as jrandom

from tests.conformance.jax_cases.case import F32, I32, U32, Arg, Case, Draw, Tolerance, anything, between, few
from tests.conformance.jax_cases.numeric import bits
from tests.conformance.jax_cases.programs import attention, block, conv_net, gru_while, lstm, mlp

# ---- symbolic sizes ----


SMALL = between(-0.6, 0.6)


def exports() -> Iterator[Case]:
    """Programs whose sizes are symbols: lowered once, run at several sizes."""

    def f(*shape: int | str, dtype: Any = F32, draw: Draw = SMALL) -> Arg:
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
        (
            "batched_dot",
            lambda x, y: jnp.einsum("bij,bjk->bik", x, y),
            [whole("b", 2, "s"), whole("b", "s", 3)],
            bs,
            (),
        ),
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
        (
            "gather_rows",
            lambda x, i: x[jnp.arange(x.shape[0]), i],
            [f("b", 4), f("b", dtype=I32, draw=between(0, 3))],
            b,
            (),
        ),
        ("scatter", lambda x, i: x.at[i].add(1), [whole("b", 4), f("s", dtype=I32, draw=between(-3, 9))], bs, ()),
        ("take_along", lambda x: jnp.take_along_axis(x, jnp.argsort(x, 1), 1), [f("b", "s")], bs, ()),
        (
            "dynamic_slice",
            lambda x, i: lax.dynamic_slice(x, (i, i), (1, 2)),
            [f("b", 4), f(dtype=I32, draw=between(-2, 9))],
            b,
            (),
        ),
        ("dynamic_update", lambda x, i: x.at[i].set(7.0), [f("b", 4), f(dtype=I32, draw=between(0, 9))], b, ()),
        ("sort", lambda x: jnp.sort(x, 0), [f("b", 4)], b, ()),
        ("argmax", lambda x: jnp.argmax(x, 0), [whole("b", 4)], b, ()),
        ("top_k", lambda x: lax.top_k(x, 2), [f("b", 6)], b, ()),
        ("top_k_symbolic", lambda x: lax.top_k(x, x.shape[1] // 2 + 1), [f("b", "s")], bs, ()),
        (
            "random_bits",
            lambda k, x: bits(lax.RandomAlgorithm.RNG_THREE_FRY, (x.shape[0], 3), np.dtype(np.uint32), k),
            [Arg((4,), U32, anything), f("b")],
            b,
            (),
        ),
        ("cumsum", lambda x: jnp.cumsum(x, 0), [whole("b", 4)], b, ()),
        ("cummax", lambda x: lax.cummax(x, 1), [whole("b", "s")], bs, ()),
        ("window", lambda x: lax.reduce_window(x, 0, lax.add, (2, 2), (1, 2), "SAME"), [whole("b", 4)], b, ()),
        ("conv", lambda x, w: lax.conv(x, w, (1, 1), "SAME"), [f("b", 3, 8, 8), f(4, 3, 3, 3)], b, ()),
        (
            "conv_any_size",
            lambda x, w: lax.conv(x, w, (1, 1), "VALID"),
            [f("b", 3, "s", "s"), f(4, 3, 3, 3)],
            ({"b": 1, "s": 5}, {"b": 2, "s": 9}),
            ("s >= 3",),
        ),
        (
            "conv_same_any_size",
            lambda x, w: lax.conv(x, w, (2, 2), "SAME"),
            [f("b", 3, "s", "s"), f(4, 3, 3, 3)],
            ({"b": 1, "s": 5}, {"b": 2, "s": 8}),
            ("s >= 3",),
        ),
        (
            "pool_any_size",
            lambda x: lax.reduce_window(x, -np.inf, lax.max, (2, 2), (2, 2), "VALID"),
            [f("b", "s")],
            ({"b": 3, "s": 4}, {"b": 4, "s": 9}),
            ("b >= 2", "s >= 2"),
        ),
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
        (
            "mlp_gradient",
            jax.grad(lambda w, x, u, v: mlp(x, w, u, v)[:, 0].sum()),
            [f(8, 16), f("b", 8), f(16), f(16, 4)],
            b,
            (),
        ),
        (
            "block_gradient",
            jax.grad(lambda *w: block(*w).sum()),
            [f("b", "s", 8), f(8, 24), f(8, 8), f(8, 16), f(16, 8), f(8)],
            bs,
            (),
        ),
    ]
    for name, function, args, sizes, constraints in rows:
        yield Case(name, function, tuple(args), near, sizes, constraints)
