"""Gradients of attention in blocks of queries: the numbers of JAX, and no scores in memory."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Tensor, nn
from smelt.dtype import Array
from smelt.engine.compile import plan_program
from smelt.engine.native import NativeEngine
from smelt.ir.core import walk
from smelt.ir.grad import attention as rule
from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.passes.grad import vjp
from smelt.tensor.jit.compile import compile
from smelt.tensor.jit.trace import trace

BATCH, HEADS, DEPTH = 2, 4, 5
CASES: dict[str, dict[str, Any]] = {  # queries, keys; the rest are variants
    "blocks alone": {"sizes": (16, 24)},
    "a part of a block is left": {"sizes": (21, 9), "causal": True},
    "grouped heads": {"sizes": (20, 24), "groups": 2, "causal": True, "softcap": 3.0},
    "a mask of booleans": {"sizes": (20, 24), "mask": "where"},
    "a bias that is trained": {"sizes": (20, 24), "mask": "add", "causal": True},
}


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rule, "BLOCK", 8)
    monkeypatch.setattr(rule, "SMALL", 1)


class Case:
    """Random inputs, and the loss for smelt and for JAX."""

    def __init__(self, seed: int, sizes: tuple[int, int], groups: int = HEADS, mask: str = "", **options: Any) -> None:
        rng = np.random.default_rng(seed)
        queries, keys = sizes
        self.heads, self.options, self.mask = groups, options, mask
        shapes = {"q": (queries, HEADS), "k": (keys, groups), "v": (keys, groups)}
        self.arrays: list[Array] = [rng.normal(size=(BATCH, *shape, DEPTH)) for shape in shapes.values()]
        self.weights = rng.normal(size=(BATCH, queries, HEADS, DEPTH))
        self.seen = rng.random((BATCH, queries, keys)) < 0.7
        self.seen[..., 0] = True
        if mask == "add":
            self.arrays.append(rng.normal(size=(HEADS, queries, keys)))

    def tensors(self) -> list[Tensor]:
        group = "h" if self.heads == HEADS else "g"
        names = ("b s h k", f"b t {group} k", f"b t {group} k", "h s t")
        return [smelt.tensor(array, name) for array, name in zip(self.arrays, names, strict=False)]

    def on_tensors(self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None = None) -> Tensor:
        mask = smelt.tensor(self.seen, "b s t") if self.mask == "where" else bias
        made = nn.attention(q, k, v, mask=mask, **self.options)
        return (made * smelt.tensor(self.weights, "b s h k")).sum()

    def on_arrays(self, q: Any, k: Any, v: Any, bias: Any = 0.0) -> Any:
        k, v = (jnp.repeat(x, HEADS // self.heads, 2) for x in (k, v))
        scores = jnp.einsum("bshk,bthk->bhst", q, k) / np.sqrt(DEPTH)
        cap = self.options.get("softcap")
        scores = (jnp.tanh(scores / cap) * cap if cap else scores) + bias
        seen = self.seen[:, None] if self.mask == "where" else True
        if self.options.get("causal"):
            seen &= np.tri(q.shape[1], k.shape[1], dtype=bool)
        weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), -1)
        return (jnp.einsum("bhst,bthk->bshk", weights, v) * self.weights).sum()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.usefixtures("small_blocks")
def test_gradients_agree_with_jax(name: str, seed: int) -> None:
    case = Case(seed, **CASES[name])
    places = tuple(range(len(case.arrays)))
    tensors = case.tensors()
    compiled = compile(lambda *given: smelt.grad(case.on_tensors, places)(*given), *tensors, engine="reference")
    assert any(op.name == "chlo.scan" for op in walk(compiled.program.main.body)), "in blocks"
    found = compiled(*case.arrays)
    with jax.enable_x64(True):
        wanted = jax.grad(case.on_arrays, places)(*map(jnp.asarray, case.arrays))
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=1e-9, atol=1e-10)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("engine", ["native", "pjrt"])
def test_engines_and_second_derivatives_agree(engine: str, seed: int) -> None:
    """Along a direction: the derivative of the gradient's length."""
    case = Case(seed, **CASES["a part of a block is left"])
    case.arrays = [array.astype(np.float32) for array in case.arrays]
    case.weights = case.weights.astype(np.float32)

    def ours(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slopes = smelt.grad(case.on_tensors, (0, 1, 2))(q, k, v)
        return slopes[0].square().sum() + slopes[1].square().sum() + slopes[2].square().sum()

    def theirs(*given: Any) -> Any:
        return sum((slope**2).sum() for slope in jax.grad(case.on_arrays, (0, 1, 2))(*given))

    found = smelt.grad(ours, (0, 1, 2))(*case.tensors())
    smelt.realize(*found, engine=engine)
    wanted = jax.grad(theirs, (0, 1, 2))(*case.arrays)
    for got, want in zip(found, wanted, strict=True):
        np.testing.assert_allclose(got.numpy(), want, rtol=2e-3, atol=2e-3 * float(np.abs(want).max()))


@pytest.mark.usefixtures("small_blocks")
def test_a_program_of_jax_and_a_derivative_by_the_weights(seed: int) -> None:
    """Blocks in an imported program; where the weights themselves are asked for, they are kept."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=(3, 19, 4)).astype(np.float32) for _ in range(3))

    def attend(q: Any, k: Any, v: Any) -> Any:
        return jax.nn.softmax(q @ k.transpose(0, 2, 1) * 0.5) @ v

    program = vjp(parse(jax.jit(attend).lower(q, k, v).as_text()))
    assert any(op.name == "chlo.scan" for op in walk(program.main.body))
    value, back = jax.vjp(attend, q, k, v)
    g = rng.normal(size=value.shape).astype(np.float32)
    for got, want in zip(run(program, [q, k, v, g])[1:], back(g), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)

    x, y, z = (smelt.tensor(array, names) for array, names in ((q, "b s k"), (k, "b t k"), (v, "b t e")))
    weights = (x.dot(y, "k") * 0.5).softmax("t")
    (slope,) = weights.dot(z, "t").sum().grad((weights,))
    np.testing.assert_allclose(slope.numpy(), np.broadcast_to(v.sum(-1)[:, None], weights.shape.numbers()), rtol=1e-5)


@pytest.mark.skipif(NativeEngine().missing() is not None, reason="no compiler")
def test_scores_are_never_in_memory() -> None:
    """Forward and backward pass of 2 × 4 × 1024 × 1024 scores: no buffer holds a quarter of them."""
    shapes = [f"f32[b=2, {axis}=1024, h=4, k=16]" for axis in "stt"]
    backward = smelt.value_and_grad(lambda q, k, v: nn.attention(q, k, v, causal=True).square().sum(), (0, 1, 2))
    (path,) = trace(lambda q, k, v: backward(q, k, v), *map(smelt.symbolic, shapes)).paths
    plan, memory = plan_program(path.program).main
    scores = 2 * 4 * 1024 * 1024 * 4
    assert max(buffer.bytes for buffer in plan.buffers) < scores / 4
    assert memory.peak({}) < scores
