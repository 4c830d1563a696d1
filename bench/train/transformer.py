"""A character-level transformer (pre-norm, causal, GELU) as one loss for smelt, JAX and PyTorch, over the same weights.

`WIDE` has 10.7 million parameters, as nanoGPT's model of Shakespeare. Only NumPy is imported at the top: each
framework has a process of its own (`worker.py`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True, slots=True)
class Sizes:
    """Characters, width, layers, heads, length of a context, sequences in a batch."""

    vocabulary: int = 65
    width: int = 384
    layers: int = 6
    heads: int = 6
    context: int = 256
    batch: int = 8


WIDE = Sizes()
SMALL = Sizes(width=128, layers=2, heads=4, context=64)


def draw_weights(sizes: Sizes, seed: int = 0) -> Arrays:
    """Normal weights of scale 0.02, zero biases, norms that start as the identity."""
    rng, d = np.random.default_rng(seed), sizes.width
    shapes: dict[str, tuple[int, ...]] = {"tokens": (sizes.vocabulary, d), "positions": (sizes.context, d)}
    for i in range(sizes.layers):
        shapes |= {f"{i}.norm1.weight": (d,), f"{i}.norm1.bias": (d,), f"{i}.norm2.weight": (d,)}
        shapes |= {f"{i}.norm2.bias": (d,), f"{i}.qkv.weight": (d, 3 * d), f"{i}.qkv.bias": (3 * d,)}
        shapes |= {f"{i}.out.weight": (d, d), f"{i}.out.bias": (d,), f"{i}.up.weight": (d, 4 * d)}
        shapes |= {f"{i}.up.bias": (4 * d,), f"{i}.down.weight": (4 * d, d), f"{i}.down.bias": (d,)}
    shapes |= {"norm.weight": (d,), "norm.bias": (d,), "head": (d, sizes.vocabulary)}
    made = {}
    for name, shape in shapes.items():
        if len(shape) > 1:
            made[name] = rng.normal(scale=0.02, size=shape).astype(np.float32)
        else:
            made[name] = np.full(shape, float(name.endswith("weight")), np.float32)
    return made


def draw_batch(sizes: Sizes, step: int) -> tuple[np.ndarray, ...]:
    """Tokens and the next ones, of a sequence that can be learnt: each token adds one of three numbers to the last."""
    rng = np.random.default_rng([7, step])
    moves = rng.choice([1, 2, 5], size=(sizes.batch, sizes.context + 1), p=[0.7, 0.2, 0.1])
    text = (np.cumsum(moves, 1) + rng.integers(sizes.vocabulary, size=(sizes.batch, 1))) % sizes.vocabulary
    return text[:, :-1].astype(np.int32), text[:, 1:].astype(np.int32)


# ---- smelt ----


def axes_of(name: str) -> str:
    """Names of a weight's axes: width d, joint projection j, hidden f, characters v."""
    found = {
        "tokens": "v d",
        "positions": "s d",
        "head": "d v",
        "qkv.weight": "d j",
        "qkv.bias": "j",
        "out.weight": "e d",
    }
    found |= {"up.weight": "d f", "up.bias": "f", "down.weight": "f d"}
    return found.get(name, found.get(name.split(".", 1)[-1], "d"))


def smelt_loss(sizes: Sizes) -> tuple[Any, list[str]]:
    from smelt import Tensor, nn, train

    def norm(x: Tensor, p: dict[str, Tensor], name: str) -> Tensor:
        centred = x - x.mean("d")
        scaled = centred * (centred.square().mean("d") + 1e-5).rsqrt()
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Tensor, p: dict[str, Tensor], name: str, over: str) -> Tensor:
        return x.dot(p[f"{name}.weight"], over) + p[f"{name}.bias"]

    def loss(p: dict[str, Tensor], tokens: Tensor, targets: Tensor) -> Tensor:
        x = p["tokens"].take(tokens, "v") + p["positions"]
        for i in range(sizes.layers):
            joint = linear(norm(x, p, f"{i}.norm1"), p, f"{i}.qkv", "d").split("j", n=3, h=sizes.heads, k=None)
            q, k, v = (joint.slice(n=slice(j, j + 1)).squeeze("n") for j in range(3))
            mixed = nn.attention(q, k.rename(s="t"), v.rename(s="t"), causal=True)
            x = x + linear(mixed.merge("h k", "e"), p, f"{i}.out", "e")
            x = x + linear(linear(norm(x, p, f"{i}.norm2"), p, f"{i}.up", "d").gelu(), p, f"{i}.down", "f")
        return train.cross_entropy(norm(x, p, "norm").dot(p["head"], "d"), targets, "v")

    shape = f"i32[b={sizes.batch}, s={sizes.context}]"
    return loss, [shape, shape]


# ---- JAX ----


def jax_loss(sizes: Sizes) -> Any:
    import jax
    import jax.numpy as jnp

    def norm(x: Any, p: Any, name: str) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]

    def linear(x: Any, p: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def loss(p: Any, tokens: Any, targets: Any) -> Any:
        x = p["tokens"][tokens] + p["positions"]
        b, s, d = x.shape
        seen = jnp.tril(jnp.ones((s, s), bool))
        for i in range(sizes.layers):
            joint = linear(norm(x, p, f"{i}.norm1"), p, f"{i}.qkv").reshape(b, s, 3, sizes.heads, -1)
            q, k, v = joint[:, :, 0], joint[:, :, 1], joint[:, :, 2]
            scores = jnp.einsum("bqhk,bthk->bhqt", q, k) / math.sqrt(d // sizes.heads)
            weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
            x = x + linear(jnp.einsum("bhqt,bthk->bqhk", weights, v).reshape(b, s, d), p, f"{i}.out")
            hidden = jax.nn.gelu(linear(norm(x, p, f"{i}.norm2"), p, f"{i}.up"), approximate=False)
            x = x + linear(hidden, p, f"{i}.down")
        logits = norm(x, p, "norm") @ p["head"]
        chosen = jnp.take_along_axis(logits, targets[..., None], -1)[..., 0]
        return (jax.scipy.special.logsumexp(logits, -1) - chosen).mean()

    return loss


# ---- PyTorch ----


def torch_loss(sizes: Sizes) -> Any:
    import torch.nn.functional as f

    def norm(x: Any, p: Any, name: str) -> Any:
        return f.layer_norm(x, x.shape[-1:], p[f"{name}.weight"], p[f"{name}.bias"], 1e-5)

    def linear(x: Any, p: Any, name: str) -> Any:
        return x @ p[f"{name}.weight"] + p[f"{name}.bias"]

    def loss(p: Any, tokens: Any, targets: Any) -> Any:
        x = p["tokens"][tokens] + p["positions"]
        b, s, d = x.shape
        for i in range(sizes.layers):
            joint = linear(norm(x, p, f"{i}.norm1"), p, f"{i}.qkv").reshape(b, s, 3, sizes.heads, -1)
            q, k, v = joint.permute(2, 0, 3, 1, 4)
            mixed = f.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(mixed.transpose(1, 2).reshape(b, s, d), p, f"{i}.out")
            x = x + linear(f.gelu(linear(norm(x, p, f"{i}.norm2"), p, f"{i}.up")), p, f"{i}.down")
        logits = norm(x, p, "norm") @ p["head"]
        return f.cross_entropy(logits.flatten(0, 1), targets.flatten().long())

    return loss
