"""Ops as ONNX, one JAX function for each family: its StableHLO is exported, and onnxruntime compared with JAX."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import onnx
import onnxruntime
import pytest
from jax import lax

import smelt
from smelt.write.onnx import build, to_model

Array = np.ndarray
RNG = np.random.default_rng(11)
F = RNG.normal(size=(4, 6)).astype(np.float32)
G = RNG.normal(size=(4, 6)).astype(np.float32)
INTS = RNG.integers(-9, 9, (4, 6)).astype(np.int32)
MORE = RNG.integers(-3, 3, (4, 6)).astype(np.int32)
IMAGES = RNG.normal(size=(2, 6, 9, 8)).astype(np.float32)
KERNEL = RNG.normal(size=(4, 3, 3, 2)).astype(np.float32)
TWO = [F, G]
UNIT = 3 * np.eye(4, dtype=np.float32)
BYTES = [INTS.astype("i1"), MORE.astype("i1")]
WIDE = [IMAGES.astype("f8"), KERNEL.astype("f8")]
ODD = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-30, -2.5, 2.5, 0.5, 3e9], np.float32)
U = np.array([0, 1, 2**31, 2**32 - 1, 12345], np.uint32)


def convolve(strides: tuple[int, int], dims: tuple[str, str, str], **more: Any) -> Callable[..., Any]:
    return lambda x, w: lax.conv_general_dilated(x, w, strides, dimension_numbers=dims, **more)


NCHW = ("NCHW", "OIHW", "NCHW")
CASES: dict[str, tuple[Callable[..., Any], list[Array]]] = {
    "functions": (lambda x: (jnp.exp(x), jnp.log1p(x), jnp.expm1(x), lax.rsqrt(x), jnp.cbrt(x), lax.erf(x)), [F]),
    "trigonometry": (lambda x, y: (jnp.sin(x), jnp.tan(x), jnp.arctan2(x, y), jnp.sinh(x), jnp.arcsinh(x)), [F, G]),
    "doubles": (lambda x, y: (jnp.arctan2(x, y), jnp.tanh(x), jnp.log1p(jnp.abs(x))), [F.astype("f8"), G.astype("f8")]),
    "odd floats": (
        lambda x: (jnp.sign(x), jnp.isfinite(x), x.astype(jnp.int32), lax.round(x), jnp.round(x), jnp.maximum(x, 0.5)),
        [ODD],
    ),
    "integers": (
        lambda x, y: (x // 3, lax.div(x, y), lax.rem(x, y), x**3, jnp.sign(x), jnp.clip(x, -2, y + 3)),
        [INTS, MORE],
    ),
    "bits": (
        lambda x: (x << 3, x >> 2, ~x, x & 6, lax.population_count(x), lax.clz(x), lax.shift_right_arithmetic(x, x)),
        [U],
    ),
    "narrow": (lambda x, y: (x + y, x * y, jnp.maximum(x, y), x.astype(jnp.bfloat16) * 1.5), BYTES),
    "select": (lambda x, y: (jnp.where(x > y, x, 0.0), jnp.where(x[:, :1] > 0, True, y > 0), (x > 0) ^ (y > 0)), TWO),
    "shapes": (lambda x: (x[::2, 5:1:-2], x.T.reshape(3, 8), jnp.flip(x, 0)), [F]),
    "padding": (lambda x: lax.pad(x, jnp.float32(1), ((1, -2, 0), (0, 3, 0))), [F]),
    "interior padding": (lambda x: lax.pad(x, jnp.float32(7), ((1, 2, 1), (0, -1, 2))), [F]),
    "concatenate": (lambda x, y: jnp.concatenate([x, y[:2]], 0), [F, G]),
    "gather": (
        lambda x, i: (x[i[0] % 4], x[:, i[0] % 6], jnp.take_along_axis(x, i % 6, 1)),
        [F, np.abs(INTS).astype("i8")],
    ),
    "dynamic slice": (
        lambda x, i: (
            lax.dynamic_slice(x, (i[0, 0], i[0, 1]), (2, 3)),
            lax.dynamic_update_slice(x, x[:2, :2], (i[1, 0], i[1, 1])),
        ),
        [F, INTS],
    ),
    "scatter": (lambda x, i: (x.at[i[0]].add(2.0), x.at[1, 2].set(9.0), x.at[:, i[1] % 6].max(0.5)), [F, INTS]),
    "sort": (lambda x: (jnp.sort(x, 0), jnp.argsort(x, 1), lax.top_k(x, 3)), [F]),
    "sort of keys": (lambda k, x: lax.sort((k, x), dimension=1, num_keys=1), [INTS, F]),
    "reduce": (lambda x: (x.sum(1), x.max(), jnp.prod(x, 0), jnp.argmax(x, 1), (x > 0).any(0), (x > 0).all()), [F]),
    "cumulative": (lambda x: (jnp.cumsum(x, 1), lax.cummax(x, 0), lax.cumprod(x, 1, reverse=True)), [F]),
    "pooling": (
        lambda x: (
            lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "SAME"),
            lax.reduce_window(x, 0.0, lax.add, (1, 1, 2, 2), (1, 1, 2, 2), "VALID"),
            lax.reduce_window(x, 0.0, lax.add, (2, 1, 2, 1), (1, 1, 2, 2), ((0, 0), (0, 0), (1, 0), (0, 0))),
        ),
        [IMAGES],
    ),
    "gradient of pooling": (
        jax.grad(lambda x: (lax.reduce_window(x, -jnp.inf, lax.max, (1, 1, 3, 2), (1, 1, 2, 1), "VALID") ** 2).sum()),
        [IMAGES],
    ),
    "products": (
        lambda x, y: (x @ y.T, jnp.einsum("ab,cb->ca", x, y), jnp.einsum("ab,ab->b", x, y), jnp.vdot(x, y)),
        [F, G],
    ),
    "batched products": (lambda x: jnp.einsum("bchw,bckw->bhkc", x, x), [IMAGES]),
    "integer products": (lambda x, y: lax.dot(x, y.T, preferred_element_type=jnp.int32), BYTES),
    "convolution": (convolve((2, 1), NCHW, padding=((1, 2), (0, 1)), feature_group_count=2), [IMAGES, KERNEL]),
    "convolution of channels last": (
        convolve((1, 1), ("NHWC", "HWIO", "NHWC"), padding="SAME", rhs_dilation=(2, 1)),
        [IMAGES.transpose(0, 2, 3, 1), RNG.normal(size=(3, 2, 6, 4)).astype(np.float32)],
    ),
    "transposed convolution": (
        convolve((1, 1), NCHW, padding=((2, 1), (-1, 2)), lhs_dilation=(2, 3), feature_group_count=2),
        [IMAGES, KERNEL],
    ),
    "gradient of a convolution": (
        jax.grad(lambda w, x: (convolve((1, 1), NCHW, padding="SAME", feature_group_count=6)(x, w) ** 2).sum()),
        [RNG.normal(size=(6, 1, 3, 3)).astype(np.float32), IMAGES],
    ),
    "convolution in f64": (convolve((2, 1), NCHW, padding="SAME", feature_group_count=2), WIDE),
    "complex": (
        lambda x, y: (
            jnp.real(lax.complex(x, y) * lax.complex(y, x) / lax.complex(x, y + 3.0)),
            jnp.abs(jnp.exp(lax.complex(x, y))),
            jnp.angle(jnp.sqrt(lax.complex(x, y)) @ lax.complex(y, x).T),
        ),
        [F, G],
    ),
    "fourier": (lambda x: (jnp.abs(jnp.fft.fft2(x)), jnp.fft.irfft(jnp.fft.rfft(x, axis=1) * 2j, 6, axis=1)), [F]),
    "complex loop": (
        lambda x: jnp.real(lax.fori_loop(0, 4, lambda i, z: z * z + lax.complex(x, x) * 0.1, lax.complex(x, x * 0.0))),
        [F * 0.3],
    ),
    "solve": (
        lambda x, y: (
            lax.linalg.cholesky(x @ x.T + UNIT),
            lax.linalg.triangular_solve(jnp.triu(x[:, :4]) + UNIT, y, left_side=True, lower=False),
            lax.linalg.triangular_solve(x[:, :4] + UNIT, y.T, lower=True, unit_diagonal=True, transpose_a=True),
        ),
        [F, G],
    ),
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: (c[0] * 2 + i, c[1] + c[0].sum()), (x, 0.0)), [F]),
    "scan": (lambda x: lax.scan(lambda c, row: (c * 0.5 + row, c.sum()), jnp.zeros(6), x), [F]),
    "branches": (lambda i, x: lax.switch(i[0, 0] % 3, [jnp.sin, jnp.cos, lambda y: y * 2.0], x), [np.abs(INTS), F]),
    "norms": (lambda x: (jax.nn.softmax(x, 0), jax.nn.gelu(x), jax.nn.standardize(x), jax.nn.logsumexp(x, 1)), [F]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_exported_function_computes_the_same(name: str):
    function, arrays = CASES[name]
    with jax.enable_x64(True):
        wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(jax.jit(function)(*arrays))]
        program = smelt.parse(jax.jit(function).lower(*arrays).as_text())
    model, _ = to_model(build(program), {})
    onnx.checker.check_model(model, full_check=True)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    feed = dict(zip((port.name for port in model.graph.input), arrays, strict=True))
    casts = [port.name for port in model.graph.output if port.type.tensor_type.elem_type == onnx.TensorProto.BFLOAT16]
    assert not casts or name == "narrow"
    names = [port.name for port in model.graph.output if port.name not in casts]
    kept = [value for value, port in zip(wanted, model.graph.output, strict=True) if port.name not in casts]
    for ours, theirs in zip(session.run(names, feed), kept, strict=True):
        assert ours.dtype == theirs.dtype
        tolerance = 1e-12 if theirs.dtype == np.float64 else 3e-5
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)
