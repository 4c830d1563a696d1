"""Pattern matching: each spelling of a composite is found, near misses are not, every bit stays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from smelt.engine.compile import lower
from smelt.engine.native import NativeEngine
from smelt.ir.build import FuncBuilder
from smelt.ir.core import Program, Value, walk
from smelt.ir.interpret import run
from smelt.ir.structure import same
from smelt.ir.text import parse, print_program
from smelt.ir.verify import verify
from smelt.passes import pipeline
from smelt.passes.recognise import recognise
from smelt.shape import Shape
from tests.unit.passes.composite_references import check_meanings

jax = pytest.importorskip("jax")
jnp = jax.numpy


def found_in(program: Program) -> tuple[Program, Counter[str]]:
    simple, _ = pipeline.run(program, until="simplify")
    marked = recognise(simple)
    verify(marked)
    assert same(parse(print_program(marked)), marked)
    return marked, Counter(op.attrs["name"] for op in marked.main.body.ops if op.name == "stablehlo.composite")


def composites(function: Callable[..., Any], *sizes: tuple[int, ...]) -> Counter[str]:
    """What is found in a function that JAX spells out; the results must not change by a bit."""
    args = [np.random.default_rng(i).standard_normal(size).astype(np.float32) for i, size in enumerate(sizes)]
    program = parse(jax.jit(function).lower(*args).as_text())
    marked, counts = found_in(program)
    simple, _ = pipeline.run(program, until="simplify")
    for before, after in zip(run(simple, args), run(marked, args), strict=True):
        np.testing.assert_array_equal(before, after)
    check_meanings(marked, args)
    inlined, _ = pipeline.run(marked, until="simplify")
    assert not any(op.name == "stablehlo.composite" for op in inlined.main.body.ops), "unknown names are inlined"
    return counts


X = (2, 3, 8)


def layer_norm(x, scale, bias, epsilon=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + epsilon) * scale + bias


def layer_norm_with_sqrt(x, scale, bias):
    centred = x - jnp.mean(x, -1, keepdims=True)
    return scale * (centred / jnp.sqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6)) + bias


def rms_norm(x, scale):
    return x * jax.lax.rsqrt(jnp.mean(jnp.square(x), -1, keepdims=True) + 1e-6) * scale


def gelu_taken_out(x):
    return 0.5 * x * (1 + jnp.tanh(0.7978845608 * x * (1 + 0.044715 * x * x)))


def fast_layer_norm(x, scale, bias):
    """Flax' variance is a difference, and its scale goes to the inverse root."""
    mean = x.mean(-1, keepdims=True)
    variance = jnp.maximum(0.0, jnp.mean(jax.lax.square(x), -1, keepdims=True) - jax.lax.square(mean))
    return (x - mean) * (jax.lax.rsqrt(variance + 1e-6) * scale.reshape(1, 1, -1)) + bias.reshape(1, 1, -1)


def batch_like_layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    factor = jax.lax.rsqrt(((x - mean) ** 2).mean(-1, keepdims=True) + 1e-3) * scale
    return x * factor + (bias - mean * factor)


def narrow_rms_norm(x, scale):
    """Computed in f32 and scaled in bf16, as LLaMA does."""
    wide = x.astype(jnp.bfloat16).astype(jnp.float32)
    normal = wide * jax.lax.rsqrt(jnp.mean(wide**2, -1, keepdims=True) + 1e-6)
    return normal * scale


def capped_attention(q, k, v):
    scores = jnp.tanh(jnp.einsum("bqd,bkd->bqk", q, k) * 0.25 / 5.0) * 5.0
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def boolean_attention(q, k, v):
    seen = jnp.tril(jnp.ones((3, 5), bool))
    return jax.nn.dot_product_attention(q, k, v, mask=seen[None, None])


def safe_attention(q, k, v, mask):
    """Rows without a key give zeros."""
    scores = jnp.einsum("bqd,bkd->bqk", q, k) + jnp.where(mask > 0, 0.0, -jnp.inf)[None]
    weights = jax.nn.softmax(scores)
    return jnp.einsum("bqk,bkd->bqd", jnp.where(jnp.isnan(weights), 0.0, weights), v)


def kept_attention(q, k, v, mask):
    """The same, with the weights that are numbers kept."""
    weights = jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k) + jnp.where(mask > 0, 0.0, -jnp.inf)[None])
    return jnp.einsum("bqk,bkd->bqd", jnp.where(weights == weights, weights, 0.0), v)


def attention(q, k, v):
    scores = jnp.einsum("bqd,bkd->bqk", q, k) / np.sqrt(8).astype(np.float32)
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def masked_attention(q, k, v, mask):
    scores = jnp.einsum("bqd,bkd->bqk", q * 0.35, k) + mask[None]
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)


def _powers(x):
    return jnp.exp(x - x.max(1, keepdims=True))


FOUND: list[tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = [
    ("smelt.softmax", lambda x: jax.nn.softmax(x, -1), [X]),
    ("smelt.softmax", lambda x: jax.nn.softmax(x, 1), [X]),
    (
        "smelt.softmax",
        lambda x: jnp.exp(x - x.max(1, keepdims=True)) / jnp.exp(x - x.max(1, keepdims=True)).sum(1, keepdims=True),
        [X],
    ),
    ("smelt.layer_norm", layer_norm, [X, (8,), (8,)]),
    ("smelt.layer_norm", layer_norm_with_sqrt, [X, (8,), (8,)]),
    ("smelt.layer_norm", lambda x: layer_norm(x, 1.0, 0.0), [X]),
    ("smelt.rms_norm", rms_norm, [X, (8,)]),
    ("smelt.gelu", lambda x: jax.nn.gelu(x, approximate=True), [X]),
    ("smelt.gelu", lambda x: 0.5 * x * (1 + jax.lax.erf(x / np.sqrt(2).astype(np.float32))), [X]),
    ("smelt.gelu", lambda x: x * ((jax.lax.erf(x * 0.70710678) + 1) * 0.5), [X]),
    ("smelt.gelu", gelu_taken_out, [X]),
    ("smelt.silu", jax.nn.silu, [X]),
    ("smelt.silu", lambda x: x / (1 + jnp.exp(-x)), [X]),
    ("smelt.hard_swish", jax.nn.hard_swish, [X]),
    ("smelt.hard_swish", lambda x: x * jnp.clip(x / 6 + 0.5, 0, 1), [X]),
    ("smelt.attention", attention, [(2, 3, 8), (2, 5, 8), (2, 5, 4)]),
    ("smelt.attention", masked_attention, [(2, 3, 8), (2, 5, 8), (2, 5, 4), (3, 5)]),
    ("smelt.attention", capped_attention, [(2, 3, 8), (2, 5, 8), (2, 5, 4)]),
    ("smelt.attention", safe_attention, [(2, 3, 8), (2, 5, 8), (2, 5, 4), (3, 5)]),
    ("smelt.attention", kept_attention, [(2, 3, 8), (2, 5, 8), (2, 5, 4), (3, 5)]),
    ("smelt.attention", jax.nn.dot_product_attention, [(2, 3, 4, 8), (2, 5, 4, 8), (2, 5, 4, 8)]),
    ("smelt.attention", jax.nn.dot_product_attention, [(2, 3, 4, 8), (2, 5, 2, 8), (2, 5, 2, 8)]),
    ("smelt.attention", lambda q, k, v: jax.nn.dot_product_attention(q, k, v, is_causal=True), [(2, 5, 4, 8)] * 3),
    ("smelt.attention", boolean_attention, [(2, 3, 4, 8), (2, 5, 4, 8), (2, 5, 4, 8)]),
    ("smelt.layer_norm", fast_layer_norm, [X, (8,), (8,)]),
    ("smelt.layer_norm", batch_like_layer_norm, [X, (8,), (8,)]),
    ("smelt.rms_norm", narrow_rms_norm, [X, (8,)]),
    ("smelt.layer_norm", layer_norm, [(1, 3, 8), (8,), (8,)]),
    ("smelt.rms_norm", rms_norm, [(1, 1, 8), (8,)]),
    ("smelt.rms_norm", lambda x, y: rms_norm(x * y, 1.0), [X, X]),
    ("smelt.gelu", lambda x, y: jax.nn.gelu(x * y), [X, X]),
    ("smelt.silu", lambda x, y: jax.nn.silu(x * y), [X, X]),
    ("smelt.hard_swish", lambda x, y: jax.nn.hard_swish(x * y), [X, X]),
    ("smelt.attention", attention, [(1, 1, 8), (1, 5, 8), (1, 5, 4)]),
    ("smelt.gelu", lambda x: jax.nn.gelu(x, approximate=False), [X]),
    ("smelt.gelu", lambda x: x * (0.5 + 0.5 * jax.lax.erf(x * 0.70710678)), [X]),
    ("smelt.gelu", lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x + 0.035677408 * x**3)), [X]),
    ("smelt.silu", lambda x: x * (0.5 * (1 + jnp.tanh(0.5 * x))), [X]),
    ("smelt.hard_swish", lambda x: x * jnp.maximum(jnp.minimum(x / 6 + 0.5, 1), 0), [X]),
    ("smelt.softmax", lambda x: jnp.exp(x - x.max(1, keepdims=True)) * (1 / _powers(x).sum(1, keepdims=True)), [X]),
]


@pytest.mark.parametrize("case", range(len(FOUND)))
def test_patterns_are_found(case: int) -> None:
    name, function, sizes = FOUND[case]
    assert composites(function, *sizes) == {name: 1}


def _scaled_after(q, k, v, mask):
    return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax((jnp.einsum("bqd,bkd->bqk", q, k) + mask) * 0.5), v)


NOT_FOUND: list[tuple[str, Callable[..., Any], list[tuple[int, ...]]]] = [
    ("the sum of another axis", lambda x: jnp.exp(x - x.max(2, keepdims=True)) / jnp.exp(x).sum(1, keepdims=True), [X]),
    ("no maximum", lambda x: jnp.exp(x) / jnp.exp(x).sum(1, keepdims=True), [X]),
    ("a mean over too few", lambda x: x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True) / 7 + 1e-6), [X]),
    ("another constant", lambda x: 0.5 * x * (1 + jax.lax.erf(x * 0.6)), [X]),
    ("another half", lambda x: 0.4 * x * (1 + jax.lax.erf(x * 0.70710678)), [X]),
    ("another one", lambda x: 0.5 * x * (2 + jax.lax.erf(x * 0.70710678)), [X]),
    ("another argument", lambda x, y: 0.5 * x * (1 + jax.lax.erf(y * 0.70710678)), [X, X]),
    ("another root, taken out", lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * x * (1 + 0.0445965 * x * x))), [X]),
    ("another cube, taken out", lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.05 * x * x))), [X]),
    ("another power, taken out", lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x * (1 + 0.044715 * x))), [X]),
    ("another root", lambda x: 0.5 * x * (1 + jnp.tanh(0.8 * x + 0.035677408 * x**3)), [X]),
    ("another cube", lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x + 0.04 * x**3)), [X]),
    ("another power", lambda x: 0.5 * x * (1 + jnp.tanh(0.79788456 * x + 0.035677408 * x**2)), [X]),
    ("the complement of another argument", lambda x: 0.5 * x * jax.lax.erfc(x * 0.70710678), [X]),
    ("a logistic of twice", lambda x: x / (1 + jnp.exp(-2 * x)), [X]),
    ("a logistic over two", lambda x: x / (2 + jnp.exp(-x)), [X]),
    ("a logistic by the tanh of all", lambda x: x * (0.5 * (1 + jnp.tanh(x))), [X]),
    ("a logistic by another half", lambda x: x * (0.4 * (1 + jnp.tanh(0.5 * x))), [X]),
    ("another limit", lambda x: x * jnp.clip(x + 3, 0, 5) / 6, [X]),
    ("another sixth", lambda x: x * jnp.clip(x + 3, 0, 6) / 7, [X]),
    ("another least", lambda x: x * jnp.clip(x + 3, 1, 6) / 6, [X]),
    ("squares of another value", lambda x, y: x * jax.lax.rsqrt((y * y).mean(-1, keepdims=True) + 1e-6), [X, X]),
    ("cubes", lambda x: x * jax.lax.rsqrt((x * x * x).mean(-1, keepdims=True) + 1e-6), [X]),
    ("a root, not its inverse", lambda x: x * jnp.sqrt((x * x).mean(-1, keepdims=True) + 1e-6), [X]),
    ("another gate", lambda x, y: x * jax.nn.sigmoid(y), [X, X]),
    ("another clamp", lambda x: x * jnp.clip(x / 6 + 0.25, 0, 1), [X]),
    ("a scale over a mask", lambda q, k, v, m: _scaled_after(q, k, v, m), [(2, 3, 8), (2, 5, 8), (2, 5, 4), (3, 5)]),
    ("a value in between is wanted", lambda x: (jax.nn.silu(x), jax.nn.sigmoid(x)), [X]),
]


@pytest.mark.parametrize("case", range(len(NOT_FOUND)), ids=[name for name, *_ in NOT_FOUND])
def test_near_misses_are_not_matched(case: int) -> None:
    name, function, sizes = NOT_FOUND[case]
    assert composites(function, *sizes) == ({"smelt.softmax": 1} if name == "a scale over a mask" else {})


def test_equal_blocks_share_one_decomposition_for_every_batch() -> None:
    f = FuncBuilder("main", [Shape("f32", "B", 4)])
    value: Value = f.args[0]
    for _ in range(3):
        value = f.multiply(value, f.logistic(value))
    marked, counts = found_in(Program.of(f.func(value)))
    assert counts == {"smelt.silu": 3}
    assert set(marked.funcs) == {"main", "smelt.silu.0"}
    x = np.linspace(-3, 3, 8, dtype=np.float32).reshape(2, 4)
    expected = x.astype(np.float64)
    for _ in range(3):
        expected = expected / (1 + np.exp(-expected))
    np.testing.assert_allclose(run(marked, [x])[0], expected, rtol=1e-5)


def test_an_engine_gets_only_the_names_it_knows() -> None:
    program = parse(jax.jit(lambda x: jax.nn.silu(jax.nn.softmax(x))).lower(np.zeros((2, 3), np.float32)).as_text())
    optimised, _ = pipeline.run(program, composites={"smelt.softmax"})
    names = [op.attrs["name"] for op in optimised.main.body.ops if op.name == "stablehlo.composite"]
    assert names == ["smelt.softmax"]


def test_blocks_inside_a_loop_over_layers() -> None:
    def layers(x, scales):
        return jax.lax.scan(lambda x, scale: (jax.nn.silu(rms_norm(x, scale)), None), x, scales)[0]

    args = [np.random.default_rng(i).standard_normal(sizes).astype(np.float32) for i, sizes in enumerate((X, (4, 8)))]
    simple, _ = pipeline.run(parse(jax.jit(layers).lower(*args).as_text()), until="simplify")
    marked = recognise(simple)
    verify(marked)
    found = Counter(op.attrs["name"] for op in walk(marked.main.body) if op.name == "stablehlo.composite")
    assert found == {"smelt.rms_norm": 1, "smelt.silu": 1}
    np.testing.assert_array_equal(run(simple, args)[0], run(marked, args)[0])


def test_integer_matmuls_of_jax() -> None:
    def product(x, w, scale):
        total = jax.lax.dot_general(x, w, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32)
        return total.astype(jnp.float32) * scale

    generator = np.random.default_rng(0)
    args = [generator.integers(-128, 128, sizes).astype(np.int8) for sizes in ((3, 8), (8, 5))]
    args.append(generator.uniform(0.01, 0.1, 5).astype(np.float32))
    simple, _ = pipeline.run(parse(jax.jit(product).lower(*args).as_text()), until="simplify")
    marked, counts = found_in(simple)
    assert counts == {"smelt.qdot": 1}
    np.testing.assert_array_equal(run(simple, args)[0], run(marked, args)[0])
    check_meanings(marked, args)


def test_attention_with_merged_heads_and_a_conversion(seed: int) -> None:
    """The last conversion sees heads nowhere by themselves: what is found must begin before them, and have a kernel."""

    def block(q, k, v):
        heads = [each.reshape(2, -1, 4, 8).transpose(0, 2, 1, 3) for each in (q, k, v)]
        scores = jax.numpy.einsum("bhqd,bhkd->bhqk", *heads[:2]) * 0.125
        mixed = jax.numpy.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores), heads[2])
        return mixed.transpose(0, 2, 1, 3).reshape(2, -1, 32).astype(jax.numpy.bfloat16)

    random = np.random.default_rng(seed)
    given = [random.normal(size=(2, size, 32)).astype(np.float32) for size in (3, 5, 5)]
    program = parse(jax.jit(block).lower(*given).as_text())
    assert "smelt.attention" in {op.name for op in lower(program).main.body.ops}
    (found,) = NativeEngine().compile(program)(*given)
    np.testing.assert_allclose(
        found.astype(np.float32), np.asarray(block(*given)).astype(np.float32), rtol=2.0**-7, atol=1e-5
    )


def test_the_depth_of_rotated_queries_stays_one_axis(seed: int) -> None:
    """Halves of rotary positions are joined by a reshape: kernels have one letter for the depth."""

    def block(q, k, v):
        q, k = (jnp.stack([-each[..., 4:], each[..., :4]], -2).reshape(each.shape) for each in (q, k))
        return jnp.einsum("hqk,hkd->hqd", jax.nn.softmax(jnp.einsum("hqd,hkd->hqk", q, k), -1), v)

    random = np.random.default_rng(seed)
    given = [random.normal(size=(2, size, 8)).astype(np.float32) for size in (3, 5, 5)]
    program = parse(jax.jit(block).lower(*given).as_text())
    assert "smelt.attention" in {op.name for op in lower(program).main.body.ops}
    (found,) = NativeEngine().compile(program)(*given)
    np.testing.assert_allclose(found, np.asarray(block(*given)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("order", "layout"), [((2, 0, 1), "bqk"), ((0, 2, 1), "bqk"), ((1, 0, 2), "qbk")], ids=["last", "swapped", "kept"]
)
def test_the_keys_of_a_bias_stay_adjacent(order: tuple[int, ...], layout: str) -> None:
    """A transpose that moves the keys stays in front of the attention, where it runs once for all layers."""

    def biased(q: Any, k: Any, v: Any, bias: Any) -> Any:
        scores = jnp.einsum("bqd,bkd->bqk", q, k) + bias.transpose(order)
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(scores), v)

    sizes = [(3, 8, 16), (3, 8, 16), (3, 8, 16), tuple((3, 8, 8)[order.index(i)] for i in range(3))]
    assert composites(biased, *sizes)["smelt.attention"] == 1
    args = [np.zeros(size, np.float32) for size in sizes]
    marked, _ = found_in(parse(jax.jit(biased).lower(*args).as_text()))
    (found,) = (op for op in marked.main.body.ops if op.attrs.get("name") == "smelt.attention")
    mask = dict(found.attrs["composite_attributes"].items)["layout"].split("->")[0].split(",")[3]
    assert mask == layout


def test_patterns_do_not_cross_loop_bodies() -> None:
    """A composite's inputs may come from around the loop; what the loop makes stays there."""

    def steps(x, y):
        return jax.lax.fori_loop(0, 3, lambda i, x: x * jax.nn.sigmoid(x) + jax.nn.silu(y), x)

    args = [np.random.default_rng(i).standard_normal(X).astype(np.float32) for i in range(2)]
    simple, _ = pipeline.run(parse(jax.jit(steps).lower(*args).as_text()), until="simplify")
    marked = recognise(simple)
    verify(marked)
    np.testing.assert_array_equal(run(simple, args)[0], run(marked, args)[0])
