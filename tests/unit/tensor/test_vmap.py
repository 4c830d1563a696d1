"""`smelt.vmap` does for all slices what the function does for each; every op can be batched."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import smelt
from smelt import Tensor, nn
from smelt.tensor import TensorError

RNG = np.random.default_rng(5)
N = 3


def draw(*sizes: int) -> np.ndarray:
    return np.asarray(RNG.normal(size=sizes), np.float32)


W = smelt.tensor(draw(4, 6), "d f")
PICK = smelt.tensor(np.array([2, 0, 2]), "k")

FUNCTIONS: dict[str, tuple[Callable[..., Any], list[str]]] = {
    "elementwise": (lambda x: (x * 2.0).tanh() + 1.0, ["n d"]),
    "where": (lambda x, s: smelt.where(s > 0.0, x, x * 2.0), ["n d", "n"]),
    "clamp": (lambda x, s: x.clamp(-1.0, 0.5) * s, ["n d", "n"]),
    "fixed": (lambda x, y: x * y, ["n d", "d"]),
    "sum": (lambda x: x.sum("d"), ["n s d"]),
    "softmax": (lambda x: x.softmax("d"), ["s n d"]),
    "dot": (lambda x, y: x.dot(y, "d"), ["n s d", "n d"]),
    "dot left": (lambda x: x.dot(W, "d"), ["n s d"]),
    "dot right": (lambda x: W.dot(x, "d"), ["n s d"]),
    "batched dot": (lambda x, y: x.dot(y, "d"), ["n s d", "s d"]),
    "transpose": (lambda x: x.transpose("d s"), ["n s d"]),
    "slice": (lambda x: x[1:], ["n s d"]),
    "pad": (lambda x: x.pad(s=(1, 2)), ["n s d"]),
    "flip": (lambda x: x.flip("d"), ["n s d"]),
    "concatenate": (lambda x, y: smelt.concatenate([x, y], "s"), ["n s d", "s d"]),
    "merge": (lambda x: x.merge("s d", "m"), ["n s d"]),
    "sort": (lambda x: x.sort("d"), ["n s d"]),
    "take": (lambda x: x.take(PICK, "d"), ["n s d"]),
    "argmax": (lambda x: x.argmax("d"), ["n s d"]),
    "cumsum": (lambda x: x.cumsum("s"), ["n s d"]),
    "pool": (lambda x: x.max_pool({"s": 2}), ["n s d"]),
    "scan": (lambda x: smelt.scan(lambda c, r: ((c + r).tanh(), c * r), x[0] * 0.0, x, "s")[1], ["n s d"]),
    "loop": (lambda x: smelt.fori_loop(3, lambda i, s: s.sin() + x, x), ["n d"]),
    "branch": (lambda x: smelt.cond(x.sum() > 0.0, lambda: x * x, lambda: x.sin()), ["n d"]),
    "gradient": (lambda x: (x * x * x).sum().grad(x), ["n d"]),
    "unnamed": (lambda x: x.unnamed() * 2.0, ["n d"]),
    "constant": (lambda x: smelt.zeros("f32[q=2]"), ["n d"]),
    "gelu": (lambda x: nn.gelu(x), ["n d"]),
}
SIZES = {"n": N, "s": 5, "d": 4}


def arguments(names: list[str]) -> list[Tensor]:
    return [smelt.tensor(draw(*(SIZES[name] for name in text.split())), text) for text in names]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_slices_at_once(name: str):
    function, names = FUNCTIONS[name]
    given = arguments(names)
    got = smelt.vmap(function, "n")(*given)
    assert got.axes is None or got.axes[0] == "n"
    for i in range(N):
        one = function(*(x.slice(n=i) if "n" in (x.axes or ()) else x for x in given))
        np.testing.assert_allclose(got.numpy()[i], one.numpy(), rtol=1e-5, atol=1e-6)


def test_structures_sizes_and_refusals():
    x, y = arguments(["n d", "n s d"])
    made = smelt.vmap(lambda p: {"a": p["x"].sum(), "b": (p["y"] * p["x"]).sum("s")}, "n")({"x": x, "y": y})
    assert {key: value.axes for key, value in made.items()} == {"a": ("n",), "b": ("n", "d")}
    symbolic = smelt.symbolic("f32[n=N, s=S, d=4]")
    assert str(smelt.vmap(lambda t: t.dot(W, "d").softmax("s"), "n")(symbolic).shape) == "f32[n=N, s=S, f=6]"
    slopes = smelt.grad(lambda t: smelt.vmap(lambda r: r.tanh().sum(), "n")(t).sum())(x)
    np.testing.assert_allclose(slopes.numpy(), 1 - np.tanh(x.numpy()) ** 2, rtol=1e-5)
    with pytest.raises(TensorError, match="no argument has an axis"):
        smelt.vmap(lambda t: t, "q")(x)
    with pytest.raises(TensorError, match="different sizes along"):
        smelt.vmap(lambda a, b: a.sum() + b.sum(), "n")(x, smelt.zeros("f32[n=7]"))
    with pytest.raises(TensorError, match="of its own"):
        smelt.vmap(lambda t: t.rename(d="n"), "n")(x)
