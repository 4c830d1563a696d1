"""The cotangent of softmax from its result: against JAX, in every spelling that is found and in some that are not."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import smelt
from smelt import Tensor
from smelt.ir.core import Program
from smelt.ir.interpret import run
from smelt.ir.text import parse


def loss(x: Tensor, v: Tensor) -> Tensor:
    return (x.softmax("b") * v).square().sum() + (x.softmax("a") * v).sum()


def loss_of_jax(x: jax.Array, v: jax.Array) -> jax.Array:
    return ((jax.nn.softmax(x, 1) * v) ** 2).sum() + (jax.nn.softmax(x, 0) * v).sum()


def test_first_and_second_derivatives(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x, v = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    ours = smelt.grad(loss)(smelt.tensor(x, "a b"), smelt.tensor(v, "a b"))
    np.testing.assert_allclose(ours.numpy(), jax.grad(loss_of_jax)(x, v), rtol=1e-5, atol=1e-6)
    twice = smelt.hessian(lambda x: loss(x, smelt.tensor(v, "a b")))(smelt.tensor(x, "a b"))
    np.testing.assert_allclose(twice.numpy(), jax.hessian(loss_of_jax)(x, v), rtol=1e-4, atol=1e-5)


def test_by_a_value_in_the_middle(seed: int) -> None:
    """Who asks for the gradient by the exponentials gets that, not zero."""
    rng = np.random.default_rng(seed)
    x, v = (rng.normal(size=(3, 4)).astype(np.float32) for _ in range(2))
    t = smelt.tensor(x, "a b")
    powers = (t - t.max("b")).exp()
    value = (powers / powers.sum("b") * smelt.tensor(v, "a b")).sum()

    def of(e: jax.Array) -> jax.Array:
        return (e / e.sum(1, keepdims=True) * v).sum()

    np.testing.assert_allclose(
        value.grad(powers).numpy(), jax.grad(of)(np.exp(x - x.max(1, keepdims=True))), rtol=1e-4, atol=1e-6
    )


def ratio(powers: jax.Array, axis: int, keep: bool = True) -> jax.Array:
    return powers / powers.sum(axis, keepdims=keep)


CASES = {
    "softmax": lambda x: jax.nn.softmax(x, 1),
    "softmax over two axes": lambda x: jax.nn.softmax(x, (0, 1)),
    "softmax shifted by a row": lambda x: ratio(jnp.exp(x - x[:1]), 0),
    "not shifted": lambda x: ratio(jnp.exp(x), 1),
    "shifted by all": lambda x: ratio(jnp.exp(x - 2 * x.T), 1),
    "another sum": lambda x: ratio(jnp.exp(x - x.max(1, keepdims=True)), 1, keep=False),
}


@pytest.mark.parametrize("name", CASES)
def test_programs_of_jax(name: str, seed: int) -> None:
    f = CASES[name]
    rng = np.random.default_rng(seed)
    x, g = (rng.normal(size=(4, 4)).astype(np.float32) for _ in range(2))
    program: Program = smelt.vjp(parse(jax.jit(f).lower(x).as_text()))
    value, slope = run(program, [x, g])
    want, pull = jax.vjp(f, x)
    np.testing.assert_allclose(value, want, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slope, pull(g)[0], rtol=1e-4, atol=1e-5)
    divisions = [op.name for op in program.main.body.ops].count("stablehlo.divide")
    assert (divisions == 1) is name.startswith("softmax"), "the backward pass of softmax needs none of its own"
