"""Gradients of programs with dynamic dimensions: one gradient program for every size, compared with JAX at some."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

from smelt.ir.interpret import run
from smelt.ir.text import parse
from smelt.passes.grad import jvp, vjp
from tests.unit.grad.cases import Draw
from tests.unit.grad.test_rules import assert_close, evaluate


@pytest.fixture(autouse=True, scope="module")
def x64() -> Iterator[None]:
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def conv(**options: Any) -> Callable[..., Any]:
    options = {"window_strides": (1, 1), "padding": ((1, 1), (1, 0)), **options}
    return lambda x, w: lax.conv_general_dilated(x, w, **options)


def pool(body: Any, init: float, strides: tuple[int, ...]) -> Callable[..., Any]:
    return lambda x: lax.reduce_window(x, np.float64(init), body, (1, 3), strides, ((0, 0), (1, 1)))


# name → function, shapes of its arguments
CASES: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "elementwise": (lambda x, y: jnp.tanh(x) * y, ("a, b", "a, b")),
    "broadcast": (lambda x, y: x + y, ("a, b", "b")),
    "stretch": (lambda x, y: x * y, ("a, b", "a, 1")),
    "reshape": (lambda x: jnp.sin(x.reshape(-1)), ("a, b",)),
    "split": (lambda x: x.reshape(x.shape[0], 2, -1).sum(1), ("a, 2*b",)),
    "transpose": (lambda x: x.T * 2, ("a, b",)),
    "slice": (lambda x: x[1:] * x[:-1], ("a + 1, b",)),
    "strided": (lambda x: x[::2, 1:], ("a, b + 1",)),
    "static slice": (lambda x: x[:2], ("a + 2, b",)),
    "pad": (lambda x: jnp.pad(x, ((1, 2), (0, 0))) ** 2, ("a, b",)),
    "interior": (lambda x, v: lax.pad(x, v, [(1, 0, 1), (-1, 2, 0)]), ("a, b + 1", "")),
    "concatenate": (lambda x, y: jnp.concatenate([x, y, x], 0) ** 2, ("a, b", "c, b")),
    "matmul": (jnp.matmul, ("a, b", "b, c")),
    "batched": (lambda x, y: jnp.einsum("abc,acd->bad", x, y), ("a, b, 3", "a, 3, c")),
    "sum": (lambda x: jnp.sum(x * x, 0), ("a, b",)),
    "mean": (lambda x: jnp.mean(x * x), ("a, b",)),
    "max": (lambda x: jnp.max(x, 1), ("a, b",)),
    "prod": (lambda x: jnp.prod(x, 0), ("a, b",)),
    "softmax": (lambda x: jax.nn.log_softmax(x), ("a, b",)),
    "take": (lambda x: x[jnp.array([0, 1, 0])], ("a + 1, b",)),
    "put": (lambda x, y: x.at[jnp.array([0, 1])].set(y), ("a + 1, b", "2, b")),
    "add at": (lambda x, y: x.at[jnp.array([0, 1])].add(y), ("a + 1, b", "2, b")),
    "sort": (lambda x: jnp.sort(x, 1), ("a, b",)),
    "dynamic slice": (lambda x: lax.dynamic_slice(x, (1, 0), (1, 2)), ("a + 1, b + 1",)),
    "dynamic update": (lambda x, y: lax.dynamic_update_slice(x, y, (1, 0)), ("a + 1, b", "1, b")),
    "scan": (lambda x, c: lax.scan(lambda s, r: (jnp.tanh(s * r), s), c, x), ("a, b", "b")),
    "fori": (lambda x: lax.fori_loop(0, x.shape[0], lambda i, s: jnp.sin(s) + x[i], x[0]), ("a, b",)),
    "cond": (lambda x: lax.cond(x.sum() > 0, lambda: x * x, lambda: jnp.sin(x)), ("a, b",)),
    "conv": (conv(), ("a, 2, b + 2, 5", "3, 2, 3, 2")),
    "strided conv": (conv(window_strides=(2, 3)), ("a, 2, b + 4, c + 3", "3, 2, 3, 2")),
    "dilated conv": (conv(lhs_dilation=(2, 1), rhs_dilation=(1, 2)), ("a, 2, b + 2, c + 3", "3, 2, 3, 2")),
    "grouped conv": (conv(feature_group_count=2, window_strides=(2, 1)), ("a, 4, b + 4, 5", "6, 2, 3, 2")),
    "sum pool": (pool(lax.add, 0.0, (1, 1)), ("a, b + 2",)),
    "strided sum pool": (pool(lax.add, 0.0, (1, 2)), ("a, b + 2",)),
    "max pool": (pool(lax.max, -np.inf, (1, 2)), ("a, b + 2",)),
    "norm": (lambda x, s: (x - x.mean(1, keepdims=True)) * lax.rsqrt(x.var(1, keepdims=True) + 1) * s, ("a, b", "b")),
}


@pytest.mark.parametrize("name", CASES)
def test_one_gradient_for_all_sizes(name: str, seed: int):
    fn, shapes = CASES[name]
    scope = export.SymbolicScope()
    symbolic = [jax.ShapeDtypeStruct(export.symbolic_shape(text, scope=scope), np.float64) for text in shapes]
    program = parse(export.export(jax.jit(fn), platforms=("cpu",))(*symbolic).mlir_module())
    backward, forward = vjp(program), jvp(program)
    d = Draw(seed)
    for numbers in ({"a": 3, "b": 4, "c": 2}, {"a": 1, "b": 1, "c": 3}, {"a": 4, "b": 2, "c": 1}):
        inputs = tuple(d(*(int(eval(size, {}, numbers)) for size in text.split(",") if size)) for text in shapes)
        tangents = tuple(d(*x.shape) for x in inputs)
        results = jax.tree.leaves(jax.eval_shape(fn, *inputs))
        seeds = tuple(d(*result.shape) for result in results)

        def pull(inputs: Any, seeds: Any) -> Any:
            return jax.vjp(lambda *args: jax.tree.leaves(fn(*args)), *inputs)[1](list(seeds))

        want = evaluate(pull, inputs, seeds)
        got = run(backward, [*inputs, *seeds])[len(results) :]
        for i, (a, b) in enumerate(zip(got, want, strict=True)):
            assert_close(a, b, f"cotangent {i} at {numbers}")
        moved = run(forward, [*inputs, *tangents])[len(results) :]
        left = sum(np.sum(seed * each) for seed, each in zip(seeds, moved, strict=True))
        assert_close(sum(np.sum(g * t) for g, t in zip(got, tangents, strict=True)), left, "the modes disagree")
