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


def text(body: str, args: str, result: str) -> str:
    return f"func.func @main({args}) -> {result} {{ {body} return %r : {result} }}"


STRETCH = text(
    "%r = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0, 1] : "
    "(tensor<?x?xf64>, tensor<2xi64>) -> tensor<?x?xf64>",
    "%x: tensor<?x?xf64>, %s: tensor<2xi64>",
    "tensor<?x?xf64>",
)
CONV = text(
    '%r = "stablehlo.dynamic_conv"(%x, %w, %p) {window_strides = array<i64: 2>, lhs_dilation = array<i64: 2>, '
    "rhs_dilation = array<i64: 1>, dimension_numbers = #stablehlo.conv<[b, f, 0]x[o, i, 0]->[b, f, 0]>, "
    "feature_group_count = 1 : i64, batch_group_count = 1 : i64} : "
    "(tensor<2x3x5xf64>, tensor<4x3x2xf64>, tensor<1x2xi64>) -> tensor<2x4x?xf64>",
    "%x: tensor<2x3x5xf64>, %w: tensor<4x3x2xf64>, %p: tensor<1x2xi64>",
    "tensor<2x4x?xf64>",
)
PAD = text(
    "%z = stablehlo.slice %x [0:1, 0:1] : (tensor<3x4xf64>) -> tensor<1x1xf64> "
    "%v = stablehlo.reshape %z : (tensor<1x1xf64>) -> tensor<f64> "
    '%q = "stablehlo.dynamic_pad"(%x, %v, %p, %p, %p) : (tensor<3x4xf64>, tensor<f64>, tensor<2xi64>, tensor<2xi64>, '
    "tensor<2xi64>) -> tensor<?x?xf64> %r = stablehlo.sine %q : tensor<?x?xf64>",
    "%x: tensor<3x4xf64>, %p: tensor<2xi64>",
    "tensor<?x?xf64>",
)
SLICE = text(
    '%r = "stablehlo.real_dynamic_slice"(%x, %b, %e, %s) : (tensor<6x7xf64>, tensor<2xi64>, tensor<2xi64>, '
    "tensor<2xi64>) -> tensor<?x?xf64>",
    "%x: tensor<6x7xf64>, %b: tensor<2xi64>, %e: tensor<2xi64>, %s: tensor<2xi64>",
    "tensor<?x?xf64>",
)
DATA = [
    (STRETCH, [(1, 4)], [[3, 4]]),
    (STRETCH, [(3, 4)], [[3, 4]]),
    (STRETCH, [(1, 1)], [[3, 2]]),
    (CONV, [(2, 3, 5), (4, 3, 2)], [[[1, 2]]]),
    (PAD, [(3, 4)], [[1, 2]]),
    (SLICE, [(6, 7)], [[1, 0], [6, 5], [2, 3]]),
    (SLICE, [(6, 7)], [[2, 1], [2, 7], [1, 2]]),
]


@pytest.mark.parametrize(("source", "shapes", "numbers"), DATA)
def test_sizes_that_only_data_knows(source: str, shapes: list[tuple[int, ...]], numbers: list[Any], seed: int):
    d = Draw(seed)
    program = parse(source)
    inputs = [d(*shape) for shape in shapes]
    tangents = [d(*shape) for shape in shapes]
    sizes = [np.array(number, np.int64) for number in numbers]
    (moved,) = run(jvp(program), [*inputs, *sizes, *tangents])[1:]
    low, high = (
        run(program, [*(x + h * t for x, t in zip(inputs, tangents, strict=True)), *sizes])[0] for h in (-1e-6, 1e-6)
    )
    np.testing.assert_allclose(moved, (high - low) / 2e-6, rtol=1e-6, atol=1e-7)
    g = d(*moved.shape)
    back = run(vjp(program), [*inputs, *sizes, g])[1:]
    assert [each.shape for each in back] == shapes
    assert_close(
        sum(np.sum(a * t) for a, t in zip(back, tangents, strict=True)), np.sum(g * moved), "the modes disagree"
    )
